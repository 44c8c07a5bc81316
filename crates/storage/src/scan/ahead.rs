//! What the scan is to come to next, looked at by several threads at a time.
//!
//! On a file system behind a network each look at a name takes a round trip or two, and nothing else of the scan takes
//! as long. Where looks are quick the threads would cost more than they bring: so they are used where looks were seen to take long.
//!
//! A directory among the names is opened, its first names are read, and those that it does not call directories are looked at, too: so
//! a tree of many small directories takes several round trips at a time as well. Of a directory that is large, or deep, what was seen of
//! those beside it is too old when the scan comes back, and was in vain. So where that was seen fewer are opened.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
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
/// A look that took longer counts as so long: it may have waited for a processor.
const LONGEST: Duration = Duration::from_millis(8);
/// Threads that look.
const THREADS: usize = 8;
/// Fewer names than this are looked at one by one.
const NAMES_MIN: usize = 4;
/// Names that are looked at ahead.
const NAMES_MAX: usize = 256;
/// Directories among them.
const DIRECTORIES_MAX: usize = 16;
/// Names that are looked at in such a directory, before the scan comes to it.
const NAMES_WITHIN: usize = 32;
/// What was seen longer ago is looked at again: the scan may have waited for its reader.
const FRESH: Duration = Duration::from_secs(1);
/// The average is of about so many looks: one that waited for a processor does not make them slow, a disk that moves for one in
/// sixteen does.
const AVERAGED: u64 = 256;

/// What is known of a name.
pub(super) struct Look {
    pub status: Result<Status, Errno>,
    /// How a small file lies, if that was looked at.
    pub laid: Option<Option<Laid>>,
}

/// A directory that the scan is to come to, and what was read of it.
pub(super) struct Scouted {
    pub descriptor: OwnedFd,
    pub status: Status,
    pub listing: Listing,
    pub ahead: Ahead,
}

/// What was found under a name.
pub(super) enum Seen {
    /// What the directory that holds it does not call a directory.
    Name(Look),
    Directory(Box<Scouted>),
    /// A directory that could not be read: the scan will see why.
    Closed,
}

impl Seen {
    /// That is about so many looks.
    fn looks(&self) -> usize {
        match self {
            Seen::Name(_) | Seen::Closed => 1,
            // It was opened, and its names were read.
            Seen::Directory(scouted) => 2 + scouted.ahead.found.len(),
        }
    }
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
        let nanos = nanos.min(LONGEST.as_nanos() as u64);
        let weight = (looks as u64).min(AVERAGED);
        self.usual_nanos = (self.usual_nanos * (AVERAGED - weight) + nanos * weight) / AVERAGED;
    }

    fn is_slow(&self) -> bool {
        self.usual_nanos >= SLOW_NANOS
    }
}

/// Looks at names of one directory, in its order.
pub(super) struct Ahead {
    /// With the position behind each name.
    found: VecDeque<(u64, Seen)>,
    since: Option<Instant>,
    /// So many directories are opened at a time, and were last time.
    reach: usize,
    reached: usize,
}

impl Default for Ahead {
    fn default() -> Self {
        Ahead { found: VecDeque::new(), since: None, reach: DIRECTORIES_MAX, reached: 0 }
    }
}

impl Ahead {
    /// Looks at what comes next, if that brings something. No more directories are opened than there is room for.
    pub fn fill(
        &mut self,
        listing: &Listing,
        directory: BorrowedFd<'_>,
        pace: &mut Pace,
        room: impl FnOnce() -> usize,
        look: impl Fn(BorrowedFd<'_>, &CStr, FileType) -> Seen + Sync,
    ) {
        let lost = match self.since {
            Some(since) if since.elapsed() > FRESH => self.directories(),
            _ if !self.found.is_empty() => return,
            _ => 0,
        };
        self.found.clear();
        if !pace.is_slow() {
            return;
        }
        self.reach = match lost {
            0 if self.reached == self.reach => (2 * self.reach).min(DIRECTORIES_MAX),
            0 => self.reach,
            _ => (self.reached - lost).max(1),
        };
        let (reach, mut directories) = (self.reach.min(room()), 0);
        let within_reach = |it: &(&CStr, FileType, u64)| {
            let counts = it.1 == FileType::Directory && directories < reach;
            directories += usize::from(counts);
            counts || it.1 != FileType::Directory
        };
        let names: Vec<_> = listing.upcoming().take_while(within_reach).take(NAMES_MAX).collect();
        self.reached = 0;
        if names.is_empty() || names.len() < NAMES_MIN && directories < 2.min(self.reach) {
            return;
        }
        let found = at_a_time(&names, pace, |name, file_type| look(directory, name, file_type));
        self.found.extend(found.into_iter().zip(&names).map(|(seen, (.., cookie))| (*cookie, seen)));
        self.since = Some(Instant::now());
        self.reached = self.directories();
    }

    /// Looks at the first names of a directory that is being opened ahead itself.
    pub fn of_first(listing: &Listing, look: impl Fn(&CStr) -> Look) -> Ahead {
        let no_directory = |it: &(&CStr, FileType, u64)| it.1 != FileType::Directory;
        let names = listing.upcoming().take_while(no_directory).take(NAMES_WITHIN);
        let found = names.map(|(name, _, cookie)| (cookie, Seen::Name(look(name)))).collect();
        Ahead { found, since: Some(Instant::now()), ..Ahead::default() }
    }

    /// What is known of the name before this position.
    pub fn take(&mut self, cookie: u64) -> Option<Seen> {
        self.found.front().filter(|(of, _)| *of == cookie)?;
        self.found.pop_front().map(|(_, seen)| seen)
    }

    /// Directories that are open and that the scan has not come to.
    pub fn directories(&self) -> usize {
        self.found.iter().filter(|(_, seen)| matches!(seen, Seen::Directory(_))).count()
    }
}

/// Looks at names with several threads. As many as there are names, or fewer if a thread is lost.
fn at_a_time(
    names: &[(&CStr, FileType, u64)],
    pace: &mut Pace,
    look: impl Fn(&CStr, FileType) -> Seen + Sync,
) -> Vec<Seen> {
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut found, mut time) = (Vec::new(), Duration::ZERO);
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((name, file_type, _)) = names.get(index) else { break };
            let started = Instant::now();
            let seen = look(name, *file_type);
            time += started.elapsed().min(LONGEST * seen.looks() as u32);
            found.push((index, seen));
        }
        (found, time)
    };
    let mut all: Vec<_> = names.iter().map(|_| None).collect();
    thread::scope(|scope| {
        let helper = || thread::Builder::new().name("haul-look".into()).spawn_scoped(scope, work);
        // Those that cannot be started are done without.
        let helpers: Vec<_> = (1..THREADS.min(names.len())).map_while(|_| helper().ok()).collect();
        let own = work();
        let others = helpers.into_iter().filter_map(|helper| helper.join().ok());
        for (found, time) in [own].into_iter().chain(others) {
            pace.took(found.iter().map(|(_, seen)| seen.looks()).sum(), time);
            found.into_iter().for_each(|(index, seen)| all[index] = Some(seen));
        }
    });
    all.into_iter().map_while(|seen| seen).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::os::fd::AsFd;
    use std::sync::Mutex;

    use super::*;
    use crate::scan::listing::Scratch;
    use rustix::fs::{CWD, Mode, OFlags};

    fn listed(names: usize) -> (tempfile::TempDir, std::fs::File, Listing) {
        let scratch = tempfile::tempdir().unwrap();
        (0..names).for_each(|name| std::fs::write(scratch.path().join(name.to_string()), b"x").unwrap());
        let directory = std::fs::File::open(scratch.path()).unwrap();
        let mut listing = Listing::default();
        assert!(listing.refill(directory.as_fd(), &mut Scratch::new()).unwrap());
        (scratch, directory, listing)
    }

    fn look(directory: BorrowedFd<'_>, name: &CStr, _: FileType) -> Seen {
        Seen::Name(Look { status: Status::of_name(directory, name, false), laid: None })
    }

    /// Opens what is a directory.
    fn scout(directory: BorrowedFd<'_>, name: &CStr, file_type: FileType) -> Seen {
        if file_type != FileType::Directory {
            return look(directory, name, file_type);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let descriptor = rustix::fs::openat(directory, name, flags, Mode::empty()).unwrap();
        let (status, mut listing) = (Status::of(&descriptor).unwrap(), Listing::default());
        listing.refill(descriptor.as_fd(), &mut Scratch::new()).unwrap();
        let ahead =
            Ahead::of_first(&listing, |name| match look(descriptor.as_fd(), name, FileType::RegularFile) {
                Seen::Name(look) => look,
                _ => unreachable!(),
            });
        Seen::Directory(Box::new(Scouted { descriptor, status, listing, ahead }))
    }

    fn room() -> usize {
        usize::MAX
    }

    fn slow() -> Pace {
        let mut pace = Pace::default();
        pace.took(1000, Duration::from_secs(1));
        pace
    }

    impl Ahead {
        fn is_old(&mut self) {
            self.since = self.since.map(|since| since - 2 * FRESH);
        }
    }

    #[test]
    fn each_name_has_its_own_look_and_several_threads_look() {
        let (_scratch, directory, mut listing) = listed(100);
        let (mut ahead, threads) = (Ahead::default(), Mutex::new(HashSet::new()));
        ahead.fill(&listing, directory.as_fd(), &mut slow(), room, |directory, name, file_type| {
            threads.lock().unwrap().insert(thread::current().id());
            thread::sleep(Duration::from_millis(2));
            look(directory, name, file_type)
        });
        assert_eq!(threads.lock().unwrap().len(), THREADS);
        for _ in 0..100 {
            let (name, _, cookie) = listing.next().unwrap();
            let expected = Status::of_name(CWD, _scratch.path().join(name.to_str().unwrap()), false).unwrap();
            let Some(Seen::Name(Look { status, .. })) = ahead.take(cookie) else { panic!("{name:?}") };
            assert_eq!(status.unwrap().place(), expected.place());
        }
        assert!(ahead.take(0).is_none() && listing.next().is_none());
    }

    /// So many directories, with three files each.
    fn listed_directories(count: usize) -> (tempfile::TempDir, std::fs::File, Listing) {
        let scratch = tempfile::tempdir().unwrap();
        for directory in 0..count {
            let directory = scratch.path().join(directory.to_string());
            std::fs::create_dir(&directory).unwrap();
            (0..3).for_each(|name| std::fs::write(directory.join(name.to_string()), b"x").unwrap());
        }
        let directory = std::fs::File::open(scratch.path()).unwrap();
        let mut listing = Listing::default();
        assert!(listing.refill(directory.as_fd(), &mut Scratch::new()).unwrap());
        (scratch, directory, listing)
    }

    #[test]
    fn directories_are_opened_and_looked_into_by_several_threads() {
        let (scratch, directory, mut listing) = listed_directories(100);
        let (mut ahead, threads) = (Ahead::default(), Mutex::new(HashSet::new()));
        let mut within = 0;
        loop {
            ahead.fill(&listing, directory.as_fd(), &mut slow(), room, |directory, name, file_type| {
                threads.lock().unwrap().insert(thread::current().id());
                thread::sleep(Duration::from_millis(2));
                scout(directory, name, file_type)
            });
            let Some((name, _, cookie)) = listing.next() else { break };
            let Some(Seen::Directory(mut scouted)) = ahead.take(cookie) else { panic!("{name:?}") };
            let expected = Status::of_name(CWD, scratch.path().join(name.to_str().unwrap()), false).unwrap();
            assert_eq!(scouted.status.place(), expected.place());
            while let Some((_, _, cookie)) = scouted.listing.next() {
                within += usize::from(matches!(scouted.ahead.take(cookie), Some(Seen::Name(_))));
            }
        }
        assert_eq!(within, 300, "each has its own look");
        assert!(threads.lock().unwrap().len() > 2 * THREADS, "others for each 16 directories");
    }

    #[test]
    fn fewer_directories_are_opened_where_that_was_in_vain_and_more_where_it_was_not() {
        let (_scratch, directory, mut listing) = listed_directories(200);
        let mut ahead = Ahead::default();
        let mut fill = |ahead: &mut Ahead, takes: usize, old: bool| {
            ahead.fill(&listing, directory.as_fd(), &mut slow(), room, scout);
            let reached = ahead.reached;
            for _ in 0..takes {
                let (_, _, cookie) = listing.next().unwrap();
                assert!(matches!(ahead.take(cookie), Some(Seen::Directory(_))));
            }
            if old {
                ahead.is_old();
            }
            reached
        };
        assert_eq!(fill(&mut ahead, 5, true), DIRECTORIES_MAX);
        assert_eq!(fill(&mut ahead, 1, true), 5, "as many as were of use");
        assert_eq!(fill(&mut ahead, 0, true), 1);
        assert_eq!(fill(&mut ahead, 1, false), 1, "never none");
        assert_eq!(fill(&mut ahead, 2, false), 2, "all of them were of use");
        assert_eq!(fill(&mut ahead, 4, false), 4);
        assert_eq!(fill(&mut ahead, 8, false), 8);
        assert_eq!(fill(&mut ahead, DIRECTORIES_MAX, false), DIRECTORIES_MAX);
        assert_eq!(fill(&mut ahead, 0, false), DIRECTORIES_MAX, "and no more");
    }

    #[test]
    fn no_more_directories_are_opened_than_there_is_room_for() {
        let (_scratch, directory, listing) = listed_directories(100);
        for room in [0, 1, 3] {
            let mut ahead = Ahead::default();
            ahead.fill(&listing, directory.as_fd(), &mut slow(), || room, scout);
            let expected = if room < 2 { 0 } else { room };
            assert_eq!(ahead.directories(), expected, "one alone needs no threads");
        }
    }

    #[test]
    fn where_looks_are_quick_none_is_made_ahead() {
        let (_scratch, directory, listing) = listed(100);
        let mut pace = slow();
        pace.took(1000, Duration::from_millis(10));
        let mut ahead = Ahead::default();
        ahead
            .fill(&listing, directory.as_fd(), &mut pace, room, |_, _, _| panic!("there is nothing to gain"));
        let (_scratch, directory, listing) = listed(NAMES_MIN - 1);
        ahead.fill(&listing, directory.as_fd(), &mut slow(), room, |_, _, _| panic!("they are too few"));
    }

    #[test]
    fn the_average_follows_what_is_seen() {
        let mut pace = Pace::default();
        pace.took(1, Duration::from_millis(20));
        assert!(!pace.is_slow(), "a single one may have waited for a processor");
        (0..200).for_each(|_| pace.took(1, Duration::from_micros(1)));
        pace.took(1, Duration::from_millis(20));
        assert!(!pace.is_slow(), "so may one of many");
        let mut pace = Pace::default();
        for moves in 0..4 {
            (0..15).for_each(|_| pace.took(1, Duration::from_micros(1)));
            assert_eq!(pace.is_slow(), moves > 2, "a disk moves for one in sixteen");
            pace.took(1, Duration::from_millis(6));
        }
        (0..500).for_each(|_| pace.took(1, Duration::from_micros(1)));
        assert!(!pace.is_slow());
        (0..20).for_each(|_| pace.took(1, Duration::from_millis(1)));
        assert!(pace.is_slow(), "each goes a long way");
        (0..500).for_each(|_| pace.took(1, Duration::from_micros(1)));
        pace.took(0, Duration::ZERO);
        pace.took(1_000_000, Duration::from_secs(1_000));
        assert!(pace.is_slow());
    }

    #[test]
    fn what_was_seen_long_ago_is_looked_at_again() {
        let (_scratch, directory, mut listing) = listed(10);
        let mut ahead = Ahead::default();
        ahead.fill(&listing, directory.as_fd(), &mut slow(), room, look);
        let looks = AtomicUsize::new(0);
        let counted = |directory: BorrowedFd<'_>, name: &CStr, file_type| {
            looks.fetch_add(1, Ordering::Relaxed);
            look(directory, name, file_type)
        };
        ahead.fill(&listing, directory.as_fd(), &mut slow(), room, counted);
        assert_eq!(looks.load(Ordering::Relaxed), 0, "there are some");
        let (_, _, first) = listing.next().unwrap();
        assert!(ahead.take(first).is_some());
        ahead.is_old();
        ahead.fill(&listing, directory.as_fd(), &mut slow(), room, counted);
        assert_eq!(looks.load(Ordering::Relaxed), 9);
    }
}
