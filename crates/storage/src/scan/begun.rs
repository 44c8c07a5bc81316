//! A scan that begins before anybody asks it for anything: while a connection is being made, say.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use haul_model::{Code, Entry, Item, Laid};

use super::{Scan, Scanned};

/// So many batches, and about so many bytes, are found at most before somebody asks.
const BATCHES_MAX: usize = 128;
const BYTES_MAX: usize = 16 << 20;

/// Finds what its scan finds; the first part of it on a thread of its own, until it is asked for the first time.
pub struct Begun<S> {
    found: Receiver<Found<S>>,
    asked: Arc<AtomicBool>,
    rest: Option<S>,
    has_failed: bool,
}

enum Found<S> {
    Batch(Vec<Scanned>),
    /// What is left is found where it is asked for.
    Rest(S),
}

impl<S: Scan + 'static> Begun<S> {
    /// Begins. What is found on that thread is shown to `finder`.
    pub fn start(mut scan: S, finder: impl Fn(&[Scanned]) + Send + 'static) -> io::Result<Begun<S>> {
        let (out, found) = channel();
        let asked = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&asked);
        let run = move || {
            let mut bytes = 0;
            for _ in 0..BATCHES_MAX {
                let mut batch = Vec::new();
                if bytes > BYTES_MAX || stop.load(Ordering::Acquire) || !scan.next(&mut batch) {
                    break;
                }
                bytes += batch.iter().map(weight).sum::<usize>();
                finder(&batch);
                if out.send(Found::Batch(batch)).is_err() {
                    return;
                }
            }
            // A scan that has ended ends once more.
            let _ = out.send(Found::Rest(scan));
        };
        thread::Builder::new().name("haul-scan".into()).spawn(run)?;
        Ok(Begun { found, asked, rest: None, has_failed: false })
    }
}

/// Bytes that it keeps in memory, about.
fn weight(found: &Scanned) -> usize {
    let more = match found {
        Scanned::Item(Item::Entry(entry)) => weight_of_names(entry),
        Scanned::Item(Item::Laid(entry, laid, stripes)) => {
            let parts = stripes.iter().map(|plan| size_of_val(&**plan) + size_of_val(plan.parts()));
            weight_of_names(entry) + weight_of_laid(laid) + parts.sum::<usize>()
        }
        Scanned::Item(Item::End(_)) => 0,
        Scanned::Error { path, .. } => path.len(),
    };
    size_of::<Scanned>() + more
}

fn weight_of_names(entry: &Entry) -> usize {
    entry.name.len() + entry.link_target.len()
}

/// A file may lie on thousands of targets.
fn weight_of_laid(laid: &Laid) -> usize {
    let pieces = laid.placement.pieces();
    let targets: usize = pieces.iter().map(|piece| size_of_val(&*piece.targets)).sum();
    size_of::<Laid>() + size_of_val(pieces) + targets
}

impl<S: Scan + 'static> Scan for Begun<S> {
    fn next(&mut self, out: &mut Vec<Scanned>) -> bool {
        self.asked.store(true, Ordering::Release);
        if self.rest.is_none() {
            match self.found.recv() {
                Ok(Found::Batch(mut batch)) => {
                    out.append(&mut batch);
                    return true;
                }
                Ok(Found::Rest(scan)) => self.rest = Some(scan),
                // Its thread has panicked: what is missing must not look like the end.
                Err(_) if !self.has_failed => {
                    self.has_failed = true;
                    let failure = Code::Internal.into();
                    out.push(Scanned::Error { path: b".".to_vec(), failure });
                    return true;
                }
                Err(_) => return false,
            }
        }
        self.rest.as_mut().is_some_and(|scan| scan.next(out))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use haul_model::placement::Piece;
    use haul_model::{EntryId, Placement};

    use super::*;

    /// So many batches of one find each.
    struct Counted {
        next: u64,
        end: u64,
        asked: Arc<std::sync::Mutex<Vec<thread::ThreadId>>>,
    }

    impl Scan for Counted {
        fn next(&mut self, out: &mut Vec<Scanned>) -> bool {
            self.asked.lock().unwrap().push(thread::current().id());
            if self.next == self.end {
                return false;
            }
            out.push(Scanned::Item(Item::End(EntryId(self.next))));
            self.next += 1;
            true
        }
    }

    fn all(scan: &mut impl Scan) -> Vec<u64> {
        let mut found = Vec::new();
        while scan.next(&mut found) {}
        let id = |found: Scanned| match found {
            Scanned::Item(Item::End(EntryId(id))) => id,
            other => panic!("{other:?}"),
        };
        found.into_iter().map(id).collect()
    }

    #[test]
    fn all_is_found_once_and_in_order_however_much_there_is() {
        for end in [0, 1, BATCHES_MAX as u64 - 1, BATCHES_MAX as u64, 3 * BATCHES_MAX as u64] {
            let asked = Arc::default();
            let mut begun =
                Begun::start(Counted { next: 0, end, asked: Arc::clone(&asked) }, |_| ()).unwrap();
            if end % 2 == 0 {
                thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(all(&mut begun), (0..end).collect::<Vec<_>>());
            assert!(!begun.next(&mut Vec::new()), "it stays at its end");
        }
    }

    #[test]
    fn it_begins_unasked_and_goes_so_far_and_no_further() {
        let asked: Arc<std::sync::Mutex<Vec<thread::ThreadId>>> = Arc::default();
        let end = 10 * BATCHES_MAX as u64;
        let (show, shown) = channel();
        let scan = Counted { next: 0, end, asked: Arc::clone(&asked) };
        let mut begun = Begun::start(scan, move |found| show.send(found.len()).unwrap()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while asked.lock().unwrap().len() < BATCHES_MAX && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(20));
        assert_eq!(asked.lock().unwrap().len(), BATCHES_MAX);
        assert_eq!(shown.iter().sum::<usize>(), BATCHES_MAX, "it is shown, and nothing after it");
        assert_eq!(all(&mut begun).len() as u64, end);
        let here = thread::current().id();
        let own = asked.lock().unwrap().iter().filter(|thread| **thread == here).count() as u64;
        assert_eq!(own, end - BATCHES_MAX as u64 + 1, "the rest is found where it is asked for");
    }

    struct Panics(Arc<AtomicBool>);

    impl Scan for Panics {
        fn next(&mut self, _out: &mut Vec<Scanned>) -> bool {
            self.0.store(true, Ordering::SeqCst);
            panic!("on purpose");
        }
    }

    #[test]
    fn a_scan_that_panics_has_not_ended_well() {
        let is_at_it: Arc<AtomicBool> = Arc::default();
        let mut begun = Begun::start(Panics(Arc::clone(&is_at_it)), |_| ()).unwrap();
        while !is_at_it.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        let mut found = Vec::new();
        assert!(begun.next(&mut found));
        let failed = |found: &Scanned| matches!(found, Scanned::Error { failure, .. } if failure.code == Code::Internal);
        assert!(found.len() == 1 && failed(&found[0]), "{found:?}");
        assert!(!begun.next(&mut found));
    }

    /// Errors with paths of a megabyte.
    struct Large(Arc<std::sync::atomic::AtomicUsize>);

    impl Scan for Large {
        fn next(&mut self, out: &mut Vec<Scanned>) -> bool {
            self.0.fetch_add(1, Ordering::SeqCst);
            out.push(Scanned::Error { path: vec![b'x'; 1 << 20], failure: Code::SourceRead.into() });
            true
        }
    }

    #[test]
    fn an_entry_counts_once_with_its_name_and_its_targets() {
        let file = tempfile::tempfile().unwrap();
        let status = crate::source::Status::of(&file).unwrap();
        let mut entry = status.entry(EntryId(1), EntryId::root(0), b"").unwrap();
        entry.name = b"a name".as_slice().into();
        let alone = weight(&Scanned::Item(Item::Entry(entry.clone())));
        assert_eq!(alone, size_of::<Scanned>() + 6);
        let piece = Piece { first: 0, run: 1, targets: vec![0; 1000].into() };
        let placement = Placement::new(vec![piece]).unwrap();
        let laid = Box::new(Laid { object_bytes: 1 << 20, placement });
        let with_targets = weight(&Scanned::Item(Item::Laid(entry, laid, None)));
        assert!((2000..2200).contains(&(with_targets - alone)), "{with_targets}, {alone}");
    }

    #[test]
    fn what_is_large_is_found_early_up_to_some_bytes_only() {
        let asked = Arc::default();
        let _begun = Begun::start(Large(Arc::clone(&asked)), |_| ()).unwrap();
        let enough = BYTES_MAX >> 20;
        let deadline = Instant::now() + Duration::from_secs(30);
        while asked.load(Ordering::SeqCst) < enough && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(20));
        assert_eq!(asked.load(Ordering::SeqCst), enough);
    }
}
