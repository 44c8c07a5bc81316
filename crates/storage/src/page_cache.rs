//! The kernel's page cache is left as it was found.
//!
//! A dataset that goes by once would push out what others on the same host work with. So what was not in the cache when a
//! file was opened is dropped from it once it is of no more use, and so is what was written, once it is durable. What was
//! there stays there. All of it is advice. `cachestat` tells it from Linux 6.5 on; before that `mincore` is asked about
//! each page of a range, or about a few of a file. Neither tells it of files that are not ours to write: a few bytes of those are read, if that needs no waiting. On memory file systems the cache is all there is and nothing can be dropped.

use std::collections::{HashMap, VecDeque};
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::mm::{MapFlags, ProtFlags};

use crate::absent::NEAR_BYTES;

/// `cachestat(2)`, the same number on all architectures.
const CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range`; a length of 0 reaches to the end.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// `struct cachestat`.
#[repr(C)]
#[derive(Default)]
struct Pages {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// How many pages of the file are in the cache, or about how many; `None` where the kernel cannot tell.
pub(crate) fn pages(file: impl AsFd) -> Option<u64> {
    pages_of(file, Range { offset: 0, length: 0 })
}

/// At least half of the range is in the cache, or the kernel cannot tell.
pub(crate) fn holds_most_of(file: impl AsFd, offset: u64, length: u32) -> bool {
    let all = u64::from(length).div_ceil(rustix::param::page_size() as u64);
    pages_of(file, Range { offset, length: length.into() }).is_none_or(|cached| cached * 2 >= all)
}

/// Nothing of the range is in the cache, as far as the kernel can tell.
pub(crate) fn holds_none_of(file: impl AsFd, offset: u64, length: u64) -> bool {
    pages_of(file, Range { offset, length }) == Some(0)
}

/// All of the range is in the cache; a guess is not good enough.
pub(crate) fn holds_all_of(file: impl AsFd, offset: u64, length: u32) -> bool {
    let page = rustix::param::page_size() as u64;
    let all = (offset + u64::from(length)).div_ceil(page) - offset / page;
    counted(file, &Range { offset, length: length.into() }).is_some_and(|cached| cached >= all)
}

/// At least half of the range can be had at once, or the kernel cannot tell. Unlike elsewhere here, what is being read in does not count.
pub(crate) fn has_most_ready(file: impl AsFd, offset: u64, length: u32) -> bool {
    let all = u64::from(length).div_ceil(rustix::param::page_size() as u64);
    let samples = Samples::of(&file, &Range { offset, length: length.into() });
    let ready = samples.and_then(|samples| match is_ours(&file) {
        true => samples.mapped(&file),
        false => samples.read(&file),
    });
    ready.is_none_or(|ready| ready * 2 >= all)
}

fn pages_of(file: impl AsFd, range: Range) -> Option<u64> {
    counted(&file, &range).or_else(|| {
        let samples = Samples::of(&file, &range)?;
        if is_ours(&file) { samples.mapped(&file) } else { samples.read(&file) }
    })
}

/// Whether the kernel tells us what is in memory of it: that it does not know, as of files that belong to nobody else.
fn is_ours(file: impl AsFd) -> bool {
    let user = rustix::process::geteuid();
    user.is_root() || rustix::fs::fstat(file).is_ok_and(|status| status.st_uid == user.as_raw())
}

/// This kernel has no `cachestat`.
static UNKNOWN: AtomicBool = AtomicBool::new(false);

/// Whether the kernel counts the pages of this file: not of one that is not ours to write.
pub(crate) fn is_counted(file: impl AsFd) -> bool {
    !UNKNOWN.load(Ordering::Relaxed) && counted_at_once(file, &Range { offset: 0, length: 1 }).is_some()
}

/// Within `undisturbed`: nothing of it is in memory now. False where that cannot be, or nobody counts: memory is all that it is in.
#[cfg(test)]
pub(crate) fn is_emptied(file: impl AsFd) -> bool {
    let kind = rustix::fs::fstatfs(&file).unwrap().f_type;
    drop_all(&file);
    let length = rustix::fs::fstat(&file).unwrap().st_size as u64;
    match counted_pages(&file, 0, length) {
        None => false,
        Some(_) if matches!(kind, 0x0102_1994 | 0x8584_58f6) => false,
        found => {
            haul_testkit::cached_eq!(found, Some(0));
            true
        }
    }
}

#[cfg(test)]
pub(crate) fn counted_pages(file: impl AsFd, offset: u64, length: u64) -> Option<u64> {
    counted(file, &Range { offset, length })
}

/// As the kernel has counted them, or as all of them were asked for.
fn counted(file: impl AsFd, range: &Range) -> Option<u64> {
    if UNKNOWN.load(Ordering::Relaxed) { resident(file, range) } else { counted_at_once(file, range) }
}

/// Each page of a range that is not too long is asked for: without `cachestat`, and of a file that is ours.
fn resident(file: impl AsFd, range: &Range) -> Option<u64> {
    if !(1..=RESIDENT_BYTES_MAX).contains(&range.length) || !is_ours(&file) {
        return None;
    }
    let samples = Samples::of(&file, range)?;
    let mut there = vec![0; usize::try_from(samples.all).ok()?];
    samples.with_mapping(&file, |mapped, bytes| {
        // SAFETY: the pages lie in the mapping, and the kernel writes one byte for each.
        let result = unsafe { libc::mincore(mapped, bytes, there.as_mut_ptr()) };
        (result == 0).then(|| there.iter().filter(|page| **page & 1 == 1).count() as u64)
    })
}

/// It takes 30 ns a page.
const RESIDENT_BYTES_MAX: u64 = 64 << 20;

fn counted_at_once(file: impl AsFd, range: &Range) -> Option<u64> {
    let mut pages = Pages::default();
    // SAFETY: both structures are as the kernel declares them and live until the call returns; flags are 0.
    let result = unsafe {
        libc::syscall(CACHESTAT, file.as_fd().as_raw_fd(), std::ptr::from_ref(range), &raw mut pages, 0)
    };
    if result == 0 {
        return Some(pages.cached);
    }
    // EPERM tells nothing of other files: it may be one that is not ours to write, or a sandbox that refuses what it does not know.
    if std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        UNKNOWN.store(true, Ordering::Relaxed);
    }
    None
}

/// Pages that are asked for instead of all: what is true of a few, all over the range, is taken for true of the rest.
struct Samples {
    page: u64,
    /// Of the range, in pages.
    first: u64,
    all: u64,
}

/// So many at most.
const SAMPLES: u64 = 8;

impl Samples {
    fn of(file: impl AsFd, Range { offset, length }: &Range) -> Option<Samples> {
        let page = rustix::param::page_size() as u64;
        let end = match length {
            0 => rustix::fs::fstat(&file).ok()?.st_size as u64,
            length => offset + length,
        };
        let first = offset / page;
        Some(Samples { page, first, all: end.div_ceil(page).saturating_sub(first) })
    }

    /// How many pages are there, if `is_there` tells it of each, counted from the first.
    fn sum(&self, is_there: impl FnMut(u64) -> Option<bool>) -> Option<u64> {
        let samples = self.all.min(SAMPLES);
        // The first and the last are among them. From the end on: what a look brings lies behind it.
        let places = (0..samples).rev().map(|sample| sample * (self.all - 1) / (samples - 1).max(1));
        let found: Option<u64> = places.map(is_there).map(|there| there.map(u64::from)).sum();
        found.map(|found| found * self.all / samples.max(1))
    }

    /// Without `cachestat`. Of files that are not ours to write the kernel says that all of it is there.
    fn mapped(&self, file: impl AsFd) -> Option<u64> {
        let page = self.page;
        self.with_mapping(file, |mapped, _| {
            self.sum(|place| {
                let mut there = 0u8;
                // SAFETY: the page lies in the mapping, and the kernel writes one byte for it.
                let result = unsafe {
                    libc::mincore(mapped.byte_add((place * page) as usize), page as usize, &raw mut there)
                };
                (result == 0).then_some(there & 1 == 1)
            })
        })
    }

    /// The whole range in a mapping of so many bytes.
    fn with_mapping(
        &self,
        file: impl AsFd,
        look: impl FnOnce(*mut libc::c_void, usize) -> Option<u64>,
    ) -> Option<u64> {
        if self.all == 0 {
            return Some(0);
        }
        let Samples { page, first, all } = *self;
        let bytes = usize::try_from(all * page).ok()?;
        // SAFETY: a mapping of its own, which nobody looks at; it is unmapped below, and a file that shrinks does not matter.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::empty(),
                MapFlags::SHARED,
                &file,
                first * page,
            )
        };
        let mapped = mapped.ok()?;
        let found = look(mapped.cast(), bytes);
        // SAFETY: it was mapped above, and nothing points into it.
        let _ = unsafe { rustix::mm::munmap(mapped, bytes) };
        found
    }

    /// A byte of each is read if it is there. What is not may come for that: about a page each, of a file that is about to be read.
    fn read(&self, file: impl AsFd) -> Option<u64> {
        let fd = file.as_fd();
        self.sum(|place| {
            let mut byte = [0];
            let offset = (self.first + place) * self.page;
            let read = preadv2(fd, &mut [IoSliceMut::new(&mut byte)], offset, ReadWriteFlags::NOWAIT);
            match read {
                Ok(_) => Some(true),
                Err(Errno::AGAIN) => Some(false),
                Err(_) => None,
            }
        })
    }
}

/// Drops what can be dropped of the whole file.
pub(crate) fn drop_all(file: impl AsFd) {
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

/// Places in a file that is written, from where on somebody still looks at what is there: at each, and somewhere behind it.
#[derive(Default)]
pub(crate) struct InUse(Mutex<Vec<u64>>);

/// Until dropped.
pub(crate) struct Use<'a> {
    all: &'a InUse,
    offset: u64,
}

impl InUse {
    /// From `offset` on.
    pub fn from(&self, offset: u64) -> Use<'_> {
        self.places().push(offset);
        Use { all: self, offset }
    }

    fn places(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops what lies in front of all that is in use; the rest is dropped when that is not any more.
    pub fn drop_others(&self, file: impl AsFd) {
        let first = self.places().iter().min().copied();
        match first.map(NonZeroU64::new) {
            None => drop_all(file),
            Some(Some(first)) => drop(fadvise(file, 0, Some(first), Advice::DontNeed)),
            Some(None) => {}
        }
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        let mut all = self.all.places();
        if let Some(place) = all.iter().position(|offset| *offset == self.offset) {
            all.swap_remove(place);
        }
    }
}

/// Writes what the page cache holds of the range, and waits for it. An error is told to whom the file is synced by.
pub(crate) fn await_device(file: impl AsFd, offset: u64, length: u64) {
    let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else { return };
    let all =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: a system call on a descriptor that is open, without any memory.
    let _ = unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), offset, length, all) };
}

/// Of a file that is written and read all over, and used by nobody else, the cache keeps what was written last.
///
/// A part that is read back soon, or whose place is written again, never needs the device: it is forgotten here. What has been there
/// for long is written by the device, and leaves the cache.
pub(crate) struct Latest {
    kept_bytes: u64,
    lanes: Mutex<Lanes>,
}

#[derive(Default)]
struct Lanes {
    newer: Lane,
    /// The device has been told to write it.
    older: Lane,
    /// What is in a lane, by its offset: the number of its entry there. Others are out of date.
    current: HashMap<u64, u64>,
    next: u64,
}

#[derive(Clone, Copy)]
struct Part {
    offset: u64,
    length: u32,
    number: u64,
}

/// The one first that was touched first.
#[derive(Default)]
struct Lane {
    parts: VecDeque<Part>,
    bytes: u64,
}

impl Lane {
    /// At its end; what is more than `most` leaves.
    fn push(&mut self, part: Part, most: u64) -> Vec<Part> {
        self.parts.push_back(part);
        self.bytes += u64::from(part.length);
        let mut left = Vec::new();
        while self.bytes > most
            && let Some(first) = self.parts.pop_front()
        {
            self.bytes -= u64::from(first.length);
            left.push(first);
        }
        left
    }
}

impl Lanes {
    /// What the device is to write, and what the cache is to lose.
    fn put(&mut self, offset: u64, length: u32, half: u64) -> [Vec<Part>; 2] {
        self.next += 1;
        let part = Part { offset, length, number: self.next };
        self.current.insert(offset, part.number);
        let is_current =
            |current: &HashMap<u64, u64>, part: &Part| current.get(&part.offset) == Some(&part.number);
        let aged = self.newer.push(part, half);
        let aged: Vec<_> = aged.into_iter().filter(|part| is_current(&self.current, part)).collect();
        let mut gone = Vec::new();
        for part in aged.iter().flat_map(|part| self.older.push(*part, half)) {
            if is_current(&self.current, &part) {
                self.current.remove(&part.offset);
                gone.push(part);
            }
        }
        [aged, gone]
    }
}

impl Default for Latest {
    fn default() -> Latest {
        Latest::of(NEAR_BYTES)
    }
}

impl Latest {
    /// The cache keeps so many bytes.
    fn of(kept_bytes: u64) -> Latest {
        Latest { kept_bytes, lanes: Mutex::default() }
    }

    /// The part was just written. What is in the newer half no more goes to the device, and what is in the older one no more leaves the
    /// cache: where the device is slow, that is waited for.
    pub fn written(&self, file: impl AsFd, offset: u64, length: u32) {
        let [aged, gone] = self.lanes().put(offset, length, self.kept_bytes / 2);
        // What is not on the device yet is not dropped by this, but written.
        aged.into_iter().for_each(|part| drop_range(&file, part.offset, part.length.into()));
        for Part { offset, length, .. } in gone {
            await_device(&file, offset, length.into());
            drop_range(&file, offset, length.into());
        }
    }

    /// It was just read, for the last time. If it came from the device it leaves the cache again, in its turn.
    pub fn read(&self, file: impl AsFd, offset: u64, length: u32) {
        let was_in_cache = self.lanes().current.remove(&offset).is_some();
        if !was_in_cache {
            self.written(file, offset, length);
        }
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops what can be dropped of the range.
pub(crate) fn drop_range(file: impl AsFd, offset: u64, length: u64) {
    if let Some(length) = NonZeroU64::new(length) {
        let _ = fadvise(file, offset, Some(length), Advice::DontNeed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haul_testkit::{DISK, cached, cached_eq, lacks, lacks_here, undisturbed};
    use std::fs::File;

    const SIZE: usize = 100 * 4096 + 5;

    /// On a disk, if there is one where tests are built; `None` where files are in memory.
    fn on_disk() -> Option<(tempfile::TempDir, File)> {
        let scratch = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = scratch.path().join("file");
        std::fs::write(&path, vec![1; SIZE]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        crate::local::is_disk(&file).unwrap().then_some((scratch, file))
    }

    /// The kernel keeps a page that it is busy with just then, moving it for instance.
    fn drop_all_at_last(file: &File) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while pages(file) != Some(0) {
            assert!(std::time::Instant::now() < deadline, "{:?} pages stay", pages(file));
            drop_all(file);
        }
    }

    /// Pages of the range that a way to sample takes for cached.
    type Sampled = fn(&Samples, &File) -> Option<u64>;

    #[test]
    fn what_is_in_use_and_what_lies_behind_it_is_not_dropped() {
        undisturbed(|| {
            let Some((_scratch, file)) = on_disk() else { return lacks_here(DISK) };
            // Page by page: what the kernel holds in one piece goes as one.
            drop_all_at_last(&file);
            rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
            let look = || {
                let mut byte = [0];
                (0..100).for_each(|page| assert_eq!(rustix::io::pread(&file, &mut byte, page * 4096), Ok(1)));
            };
            let in_use = InUse::default();
            let (first, second) = (in_use.from(40 * 4096), in_use.from(60 * 4096));
            let third = in_use.from(0);
            look();
            in_use.drop_others(&file);
            let Some(all) = counted(&file, &Range { offset: 0, length: 0 }) else {
                return lacks("cachestat");
            };
            cached!(all >= 100, "{all}");
            for (no_more, kept) in [(third, 60), (first, 40)] {
                drop(no_more);
                // A page may be kept for a moment by others.
                for _ in 0..200 {
                    in_use.drop_others(&file);
                    if pages(&file) == Some(kept) {
                        break;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                cached_eq!(pages(&file), Some(kept));
                cached!(holds_all_of(&file, (100 - kept) * 4096, (kept * 4096) as u32));
            }
            drop(second);
            drop_all_at_last(&file);
            cached_eq!(pages(&file), Some(0));
        });
    }

    #[test]
    fn samples_tell_what_the_kernel_tells() {
        undisturbed(|| {
            let ways: [Sampled; 2] =
                [|samples, file| samples.mapped(file), |samples, file| samples.read(file)];
            for (index, way) in ways.into_iter().enumerate() {
                let Some((_scratch, file)) = on_disk() else { return lacks_here(DISK) };
                let sampled =
                    |offset, length| way(&Samples::of(&file, &Range { offset, length }).unwrap(), &file);
                cached_eq!(sampled(0, 0), Some(101), "what was just written is there");
                cached_eq!(sampled(4096 * 3 + 7, 10), Some(1));
                rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
                drop_all_at_last(&file);
                cached_eq!(sampled(0, 0), Some(0));
                if index == 0 {
                    cached_eq!(pages(&file), Some(0), "to ask for them does not bring them");
                }
                // Another one: what a look brings may be on its way still.
                let Some((_scratch, file)) = on_disk() else { return lacks_here(DISK) };
                rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
                drop_all_at_last(&file);
                let mut half = vec![0; SIZE / 2];
                rustix::io::pread(&file, &mut half[..], 0).unwrap();
                let samples = Samples::of(&file, &Range { offset: 0, length: 0 }).unwrap();
                let found = way(&samples, &file).unwrap();
                cached!((40..=60).contains(&found), "{found} of 101 pages, and half of them are there");
            }
        });
    }

    #[test]
    fn all_pages_of_a_range_can_be_asked_for() {
        undisturbed(|| {
            let Some((_scratch, file)) = on_disk() else { return lacks_here(DISK) };
            rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
            drop_all_at_last(&file);
            for page in [3, 50, 51, 100] {
                rustix::io::pread(&file, &mut [0; 1], page * 4096).unwrap();
            }
            for (offset, length, expected) in
                [(0, SIZE as u64, 4), (3 * 4096 + 7, 4096, 1), (50 * 4096, 2 * 4096, 2), (4096, 4096, 0)]
            {
                let range = Range { offset, length };
                cached_eq!(resident(&file, &range), Some(expected), "{offset} {length}");
                cached_eq!(counted_at_once(&file, &range), Some(expected), "{offset} {length}");
            }
            cached_eq!(resident(&file, &Range { offset: 0, length: 0 }), None, "that may be any number");
        });
    }

    #[test]
    fn of_files_of_others_it_is_known_too() {
        undisturbed(|| {
            if !rustix::process::geteuid().is_root() {
                return lacks("root");
            }
            let Some((_scratch, file)) = on_disk() else { return lacks_here(DISK) };
            drop_all_at_last(&file);
            let as_somebody_else = || {
                // SAFETY: this thread alone becomes somebody else (the C library would change all), and ends as such.
                let became = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) };
                assert_eq!(became, 0);
                cached_eq!(pages(&file), Some(0), "nothing of it is there");
                rustix::io::pread(&file, &mut vec![0; SIZE][..], 0).unwrap();
                cached_eq!(pages(&file), Some(101));
                cached!(holds_most_of(&file, 0, SIZE as u32));
            };
            std::thread::scope(|scope| {
                scope.spawn(as_somebody_else).join().unwrap_or_else(|why| std::panic::resume_unwind(why))
            });
            cached_eq!(pages(&file), Some(101));
        });
    }

    #[test]
    fn of_a_file_that_is_for_itself_alone_what_was_written_last_is_kept() {
        undisturbed(|| {
            let Some((scratch, _)) = on_disk() else { return lacks_here(DISK) };
            let file =
                File::options().read(true).write(true).create_new(true).open(scratch.path().join("latest"));
            let file = file.unwrap();
            rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
            const PART: u32 = 64 << 10;
            const KEPT: u64 = 8;
            const ALL: u64 = 64 * PART as u64 / 4096;
            let latest = Latest::of(KEPT * u64::from(PART));
            let place = |number: u64| number * u64::from(PART);
            let write = |number: u64| {
                rustix::io::pwrite(&file, &[number as u8; PART as usize], place(number)).unwrap();
                latest.written(&file, place(number), PART);
            };
            let mut back = vec![0; PART as usize];
            let mut read = |number: u64| {
                rustix::io::pread(&file, &mut back[..], place(number)).unwrap();
                latest.read(&file, place(number), PART);
                assert!(back.iter().all(|byte| *byte == number as u8), "{number}");
            };
            (0..64).for_each(write);
            let Some(written) = counted(&file, &Range { offset: 0, length: 0 }) else {
                return lacks("cachestat");
            };
            cached!(written < ALL / 2, "{written} of {ALL} pages");
            cached!(holds_all_of(&file, place(64 - KEPT / 2), PART), "what was written last is at hand");
            (0..64).for_each(&mut read);
            let after = pages(&file).unwrap();
            cached!(after < ALL / 2, "{after} of {ALL} pages");
            // A place that is used again and again, and what was put there is read back soon: nobody writes it to the device.
            write(1);
            (0..64).for_each(|number| {
                write(number % 2);
                read(number % 2);
            });
            (0..2).for_each(write);
            cached!((0..2).all(|number| holds_all_of(&file, place(number), PART)));
            assert!(latest.lanes().current.len() < 16);
        });
    }

    #[test]
    fn an_empty_file_has_no_pages() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        std::fs::write(&path, b"").unwrap();
        let file = File::open(&path).unwrap();
        let samples = Samples::of(&file, &Range { offset: 0, length: 0 }).unwrap();
        assert_eq!((samples.mapped(&file), samples.read(&file)), (Some(0), Some(0)));
    }
}
