//! What the scan is to come to next, looked at by several threads at a time.
//!
//! On a file system behind a network each look at a name takes a round trip or two, and nothing else of the scan takes
//! as long. Where looks are quick the threads would cost more than they bring: so they are used where looks were seen to take long, for
//! names that the directory does not call directories, up to the next one that it does.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use haul_model::Laid;
use rustix::fs::FileType;
use rustix::io::Errno;

use super::listing::Listing;
use crate::source::Status;

/// From so long on, on average, looks are made ahead.
const SLOW_NANOS: u64 = 50_000;
/// Threads that look.
const THREADS: usize = 8;
/// Fewer names than this are looked at one by one.
const NAMES_MIN: usize = 4;
/// Names that are looked at ahead.
const NAMES_MAX: usize = 256;
/// What was seen longer ago is looked at again: the scan may have waited for its reader.
const FRESH: Duration = Duration::from_secs(1);
/// The average is of about so many looks.
const AVERAGED: u64 = 16;

/// What is known of a name.
pub(super) struct Look {
    pub status: Result<Status, Errno>,
    /// How a small file lies, if that was looked at.
    pub laid: Option<Option<Laid>>,
}

/// How long looks take.
#[derive(Default)]
pub(super) struct Pace {
    usual_nanos: u64,
}

impl Pace {
    /// So many looks took so long.
    pub fn took(&mut self, looks: usize, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) / looks.max(1) as u64;
        let weight = (looks as u64).min(AVERAGED);
        self.usual_nanos = (self.usual_nanos * (AVERAGED - weight) + nanos.saturating_mul(weight)) / AVERAGED;
    }

    fn is_slow(&self) -> bool {
        self.usual_nanos >= SLOW_NANOS
    }
}

/// Looks at names of one directory, in its order.
#[derive(Default)]
pub(super) struct Ahead {
    /// With the position behind each name.
    found: VecDeque<(u64, Look)>,
    since: Option<Instant>,
}

impl Ahead {
    /// Looks at what comes next, if that brings something.
    pub fn fill(
        &mut self,
        listing: &Listing,
        directory: BorrowedFd<'_>,
        pace: &mut Pace,
        look: impl Fn(BorrowedFd<'_>, &CStr) -> Look + Sync,
    ) {
        if self.since.is_some_and(|since| since.elapsed() > FRESH) {
            self.found.clear();
        }
        if !self.found.is_empty() || !pace.is_slow() {
            return;
        }
        let no_directory = |it: &(&CStr, FileType, u64)| it.1 != FileType::Directory;
        let names: Vec<_> = listing.upcoming().take_while(no_directory).take(NAMES_MAX).collect();
        if names.len() < NAMES_MIN {
            return;
        }
        let next = AtomicUsize::new(0);
        let work = || {
            let (mut found, mut time) = (Vec::new(), Duration::ZERO);
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some((name, ..)) = names.get(index) else { break };
                let started = Instant::now();
                found.push((index, look(directory, name)));
                time += started.elapsed();
            }
            (found, time)
        };
        let mut all = Vec::with_capacity(names.len());
        thread::scope(|scope| {
            let helper = || thread::Builder::new().name("haul-look".into()).spawn_scoped(scope, work);
            // Those that cannot be started are done without.
            let helpers: Vec<_> = (1..THREADS.min(names.len())).map_while(|_| helper().ok()).collect();
            let own = work();
            let others = helpers.into_iter().filter_map(|helper| helper.join().ok());
            for (found, time) in [own].into_iter().chain(others) {
                pace.took(found.len(), time);
                all.extend(found);
            }
        });
        all.sort_unstable_by_key(|(index, _)| *index);
        self.found.extend(all.into_iter().filter_map(|(index, look)| Some((names.get(index)?.2, look))));
        self.since = Some(Instant::now());
    }

    /// What is known of the name before this position.
    pub fn take(&mut self, cookie: u64) -> Option<Look> {
        self.found.front().filter(|(of, _)| *of == cookie)?;
        self.found.pop_front().map(|(_, look)| look)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::os::fd::AsFd;
    use std::sync::Mutex;

    use super::*;
    use crate::scan::listing::Scratch;
    use rustix::fs::CWD;

    fn listed(names: usize) -> (tempfile::TempDir, std::fs::File, Listing) {
        let scratch = tempfile::tempdir().unwrap();
        (0..names).for_each(|name| std::fs::write(scratch.path().join(name.to_string()), b"x").unwrap());
        let directory = std::fs::File::open(scratch.path()).unwrap();
        let mut listing = Listing::default();
        assert!(listing.refill(directory.as_fd(), &mut Scratch::new()).unwrap());
        (scratch, directory, listing)
    }

    fn look(directory: BorrowedFd<'_>, name: &CStr) -> Look {
        Look { status: Status::of_name(directory, name, false), laid: None }
    }

    fn slow() -> Pace {
        let mut pace = Pace::default();
        pace.took(1000, Duration::from_secs(1));
        pace
    }

    #[test]
    fn each_name_has_its_own_look_and_several_threads_look() {
        let (_scratch, directory, mut listing) = listed(100);
        let (mut ahead, threads) = (Ahead::default(), Mutex::new(HashSet::new()));
        ahead.fill(&listing, directory.as_fd(), &mut slow(), |directory, name| {
            threads.lock().unwrap().insert(thread::current().id());
            thread::sleep(Duration::from_millis(2));
            look(directory, name)
        });
        assert_eq!(threads.lock().unwrap().len(), THREADS);
        for _ in 0..100 {
            let (name, _, cookie) = listing.next().unwrap();
            let expected = Status::of_name(CWD, _scratch.path().join(name.to_str().unwrap()), false).unwrap();
            assert_eq!(ahead.take(cookie).unwrap().status.unwrap().place(), expected.place());
        }
        assert!(ahead.take(0).is_none() && listing.next().is_none());
    }

    #[test]
    fn where_looks_are_quick_none_is_made_ahead() {
        let (_scratch, directory, listing) = listed(100);
        let mut pace = slow();
        pace.took(100, Duration::from_millis(1));
        let mut ahead = Ahead::default();
        ahead.fill(&listing, directory.as_fd(), &mut pace, |_, _| panic!("there is nothing to gain"));
        let (_scratch, directory, listing) = listed(NAMES_MIN - 1);
        ahead.fill(&listing, directory.as_fd(), &mut slow(), |_, _| panic!("they are too few"));
    }

    #[test]
    fn the_average_follows_what_is_seen() {
        let mut pace = Pace::default();
        pace.took(1, Duration::from_millis(1));
        assert!(pace.is_slow(), "a single one that takes 20 times as long tells");
        (0..100).for_each(|_| pace.took(1, Duration::from_micros(1)));
        assert!(!pace.is_slow());
        pace.took(0, Duration::ZERO);
        pace.took(1_000_000, Duration::from_secs(1_000));
        assert!(pace.is_slow());
    }

    #[test]
    fn what_was_seen_long_ago_is_looked_at_again() {
        let (_scratch, directory, mut listing) = listed(10);
        let mut ahead = Ahead::default();
        ahead.fill(&listing, directory.as_fd(), &mut slow(), look);
        let looks = AtomicUsize::new(0);
        let counted = |directory: BorrowedFd<'_>, name: &CStr| {
            looks.fetch_add(1, Ordering::Relaxed);
            look(directory, name)
        };
        ahead.fill(&listing, directory.as_fd(), &mut slow(), counted);
        assert_eq!(looks.load(Ordering::Relaxed), 0, "there are some");
        let (_, _, first) = listing.next().unwrap();
        assert!(ahead.take(first).is_some());
        ahead.since = ahead.since.map(|since| since - 2 * FRESH);
        ahead.fill(&listing, directory.as_fd(), &mut slow(), counted);
        assert_eq!(looks.load(Ordering::Relaxed), 9);
    }
}
