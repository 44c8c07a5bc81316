//! A scan that begins before anybody asks it for anything: while a connection is being made, say.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use super::{Scan, Scanned};

/// So many batches are found at most before somebody asks.
const BATCHES_MAX: usize = 64;

/// Finds what its scan finds; the first part of it on a thread of its own, until it is asked for the first time.
pub struct Begun<S> {
    found: Receiver<Found<S>>,
    asked: Arc<AtomicBool>,
    rest: Option<S>,
}

enum Found<S> {
    Batch(Vec<Scanned>),
    /// What is left is found where it is asked for.
    Rest(S),
}

impl<S: Scan + 'static> Begun<S> {
    /// Begins.
    pub fn start(mut scan: S) -> io::Result<Begun<S>> {
        let (out, found) = channel();
        let asked = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&asked);
        let run = move || {
            for _ in 0..BATCHES_MAX {
                let mut batch = Vec::new();
                if stop.load(Ordering::Acquire) || !scan.next(&mut batch) {
                    break;
                }
                if out.send(Found::Batch(batch)).is_err() {
                    return;
                }
            }
            // A scan that has ended ends once more.
            let _ = out.send(Found::Rest(scan));
        };
        thread::Builder::new().name("haul-scan".into()).spawn(run)?;
        Ok(Begun { found, asked, rest: None })
    }
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
                Err(_) => return false,
            }
        }
        self.rest.as_mut().is_some_and(|scan| scan.next(out))
    }

    fn unfinished_skipped(&self) -> u64 {
        self.rest.as_ref().map_or(0, Scan::unfinished_skipped)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use haul_model::{EntryId, Item};

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

        fn unfinished_skipped(&self) -> u64 {
            self.next
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
            let mut begun = Begun::start(Counted { next: 0, end, asked: Arc::clone(&asked) }).unwrap();
            if end % 2 == 0 {
                thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(all(&mut begun), (0..end).collect::<Vec<_>>());
            assert!(!begun.next(&mut Vec::new()), "it stays at its end");
            assert_eq!(begun.unfinished_skipped(), end);
        }
    }

    #[test]
    fn it_begins_unasked_and_goes_so_far_and_no_further() {
        let asked: Arc<std::sync::Mutex<Vec<thread::ThreadId>>> = Arc::default();
        let end = 10 * BATCHES_MAX as u64;
        let mut begun = Begun::start(Counted { next: 0, end, asked: Arc::clone(&asked) }).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while asked.lock().unwrap().len() < BATCHES_MAX && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(20));
        assert_eq!(asked.lock().unwrap().len(), BATCHES_MAX);
        assert_eq!(all(&mut begun).len() as u64, end);
        let here = thread::current().id();
        let own = asked.lock().unwrap().iter().filter(|thread| **thread == here).count() as u64;
        assert_eq!(own, end - BATCHES_MAX as u64 + 1, "the rest is found where it is asked for");
    }
}
