//! The file systems that a destination spans: which of them can be synced as a whole, and to what unit they store
//! times.
//!
//! `syncfs` reports a write-back error once per descriptor, to whichever call comes first. So there is one descriptor
//! per file system, opened before the first write, and an error that any call gets counts against everything that was
//! written before it: that is what [`FileSystem::errors`] is for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use haul_model::{Attributes, Timestamp};
use rustix::fs::{self, AtFlags, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Result;

use super::attributes::{Status, same_time, status, timestamps};
use super::faults::{Hooks, Reach, SyncPoint};
use super::lock;
use super::tokens::{TempName, TokenMaker};
use crate::{layout, local};

/// How things are made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SyncMode {
    /// A file system at a time on those that are known to report errors then, else file by file.
    #[default]
    Measured,
    /// File by file everywhere.
    EachFile,
    /// Not at all: an acknowledged object survives a killed process, not a power cut.
    Never,
}

/// One file system below the destination.
pub(crate) struct FileSystem {
    device: u64,
    /// Held since before the first write here, so that `syncfs` on it reports every error since.
    anchor: OwnedFd,
    /// May be synced as a whole.
    pub whole: bool,
    /// A write may tell of what had been written before, and is the last to do so.
    pub writes_behind: bool,
    /// It could be written to when it was met.
    writable: bool,
    /// The page cache is all there is.
    pub in_memory: bool,
    /// A GlusterFS volume: a file lies where its name says, and a directory on every brick.
    pub gluster: bool,
    errors: AtomicU64,
    started: AtomicU64,
    running: Mutex<()>,
    measured: OnceLock<Measured>,
    /// A file that gets its first name when it is complete costs less here than one that is renamed then.
    pub prefers_late_names: bool,
    /// Whether that can be done, once it was tried.
    pub names_late: OnceLock<bool>,
    /// Files can have any name that Linux knows, once it was tried.
    pub any_name: OnceLock<bool>,
    /// What is set on a symlink is set on that, once it was tried.
    sets_links: OnceLock<bool>,
}

impl FileSystem {
    /// Of an open directory.
    fn of(directory: BorrowedFd<'_>, device: u64, mode: SyncMode) -> Result<FileSystem> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let anchor = fs::openat(directory, c".", flags, Mode::empty())?;
        Ok(FileSystem {
            device,
            whole: mode == SyncMode::Measured && local::tells_of_errors(&anchor)?,
            writes_behind: mode == SyncMode::EachFile || !local::is_known(&anchor)?,
            writable: is_writable(&anchor)?,
            in_memory: local::is_memory(&anchor)?,
            gluster: layout::is_gluster(anchor.as_fd()),
            prefers_late_names: local::prefers_late_names(&anchor)?,
            anchor,
            errors: AtomicU64::new(0),
            started: AtomicU64::new(0),
            running: Mutex::new(()),
            measured: OnceLock::new(),
            names_late: OnceLock::new(),
            any_name: OnceLock::new(),
            sets_links: OnceLock::new(),
        })
    }

    /// How many times syncing it failed. Sampled before a write; if it has changed at the sync, the write is lost.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Acquire)
    }

    /// Makes everything durable that was written to it before the call.
    pub fn sync(&self, hooks: &Hooks, point: SyncPoint) -> Result<()> {
        let before = (self.started.load(Ordering::Acquire), self.errors());
        let _running = lock(&self.running);
        // Another thread began, and finished, a sync since this call: it covered this one.
        if self.started.load(Ordering::Acquire) != before.0 && self.errors() == before.1 {
            return Ok(());
        }
        // An error is told once, and somebody else was told of this one.
        if self.errors() != before.1 {
            return Err(rustix::io::Errno::IO);
        }
        self.started.fetch_add(1, Ordering::AcqRel);
        let synced = hooks.sync(point, self.anchor.as_fd(), Reach::FileSystem);
        let result = synced.and_then(|()| self.check_writable());
        if result.is_err() {
            self.errors.fetch_add(1, Ordering::AcqRel);
        }
        result
    }

    /// The kernel makes a file system that can go on no longer read-only, and then has nothing to sync.
    fn check_writable(&self) -> Result<()> {
        if self.writable && !is_writable(&self.anchor)? {
            return Err(rustix::io::Errno::ROFS);
        }
        Ok(())
    }

    /// Which times it can store; measured once, in `directory`.
    pub fn times(&self, directory: BorrowedFd<'_>, tokens: &TokenMaker) -> Times {
        self.measured(directory, tokens).map_or(Times::ANY, |measured| measured.times)
    }

    /// Is this the owner that it shows of what this process makes? It may show one for all (NFS, SMB, FUSE). An error where nothing
    /// can be made that would show it.
    pub fn is_own(&self, owner: u32, directory: BorrowedFd<'_>, tokens: &TokenMaker) -> Result<bool> {
        if owner == rustix::process::geteuid().as_raw() {
            return Ok(true);
        }
        Ok(self.try_measured(directory, tokens)?.owner == owner)
    }

    /// Can it store modes? Where it cannot (FAT, exFAT, SMB, FUSE) they may be refused, or nothing comes of them; measured once.
    pub fn stores_modes(&self, directory: BorrowedFd<'_>, tokens: &TokenMaker) -> bool {
        self.measured(directory, tokens).is_none_or(|measured| measured.modes)
    }

    /// Does a symlink get what is set on it? Over sshfs the file that it leads to does, wherever that is. Tried once, where nobody knows.
    pub fn sets_links(&self, directory: BorrowedFd<'_>, tokens: &TokenMaker) -> bool {
        let knows = || local::numbers_stay(&self.anchor).unwrap_or(false);
        *self.sets_links.get_or_init(|| knows() || sets_links(directory, tokens).unwrap_or(true))
    }

    /// None if nothing can be made in this directory; the next one may do.
    fn measured(&self, directory: BorrowedFd<'_>, tokens: &TokenMaker) -> Option<Measured> {
        self.try_measured(directory, tokens).ok()
    }

    fn try_measured(&self, directory: BorrowedFd<'_>, tokens: &TokenMaker) -> Result<Measured> {
        let measured = self.measured.get().copied();
        let measured = measured.map_or_else(|| measure(directory, tokens), Ok)?;
        Ok(*self.measured.get_or_init(|| measured))
    }
}

/// What only a file can show that is made there.
#[derive(Clone, Copy)]
struct Measured {
    times: Times,
    owner: u32,
    /// Modes that are set are those that it has then.
    modes: bool,
}

fn is_writable(anchor: impl AsFd) -> Result<bool> {
    Ok(!fs::fstatvfs(anchor)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// What times a file system can store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Times {
    /// They are cut to a multiple of it.
    unit_nanos: u64,
    /// An earlier one becomes this one, in seconds.
    first: i64,
    /// And a later one this one.
    last: i64,
}

impl Times {
    const ANY: Times = Times { unit_nanos: 1, first: i64::MIN, last: i64::MAX };

    /// What became of [`PROBE`], and of a time far in the past and one far in the future, in seconds. Where those do not become the
    /// first and the last one (over sshfs, on NTFS in user space) they are of another kind: what remains of numbers with too many digits.
    fn of(probe: Timestamp, first: i64, last: i64) -> Times {
        let unit_nanos = unit_of(probe);
        if first > *STORED_ANYWHERE.start() || last < *STORED_ANYWHERE.end() {
            return Times { unit_nanos, ..Times::ANY };
        }
        let (first, last) =
            (if first == -FAR { i64::MIN } else { first }, if last == FAR { i64::MAX } else { last });
        Times { unit_nanos, first, last }
    }

    /// What becomes of a time, but for the unit.
    fn nearest(self, time: Timestamp) -> Timestamp {
        match time.seconds.clamp(self.first, self.last) {
            seconds if seconds == time.seconds => time,
            seconds => Timestamp { seconds, nanos: 0 },
        }
    }
}

/// Differs from itself cut to any unit that a file system may have.
const PROBE: Timestamp = Timestamp { seconds: 1_000_000_001, nanos: 123_456_789 };

/// Further away than what any file system stores that does not store all, and no more: some in user space end themselves over
/// the last times of all.
const FAR: i64 = 1 << 40;

/// Every file system can store what is between these, in seconds: from 1980 (FAT) to 2038 (ext3).
const STORED_ANYWHERE: std::ops::RangeInclusive<i64> = 315_532_800..=0x7fff_ffff;

fn measure(directory: BorrowedFd<'_>, tokens: &TokenMaker) -> Result<Measured> {
    let name = TempName::contents(tokens.make());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = fs::openat(directory, name.as_c_str(), flags, Mode::from_raw_mode(0o600))?;
    let stored = |time: Timestamp| {
        let attributes = Attributes { mtime: time, atime: time, ..Attributes::default() };
        fs::futimens(&file, &timestamps(&attributes)?).and_then(|()| status(file.as_fd()))
    };
    let probe = stored(PROBE);
    // One that refuses it says so of each such file.
    let [first, last] = [-FAR, FAR]
        .map(|seconds| stored(Timestamp { seconds, nanos: 0 }).map_or(seconds, |found| found.mtime.seconds));
    let modes = [0o751, 0o640].into_iter().all(|mode| {
        let set = fs::fchmod(&file, Mode::from_raw_mode(mode)).and_then(|()| status(file.as_fd()));
        set.is_ok_and(|found| found.mode == mode)
    });
    let owner = status(file.as_fd()).map(|found| found.uid);
    fs::unlinkat(directory, name.as_c_str(), AtFlags::empty())?;
    // One that refuses times says so of each file.
    let times = match probe {
        Ok(probe) => Times::of(probe.mtime, first, last),
        Err(_) => Times::ANY,
    };
    Ok(Measured { times, owner: owner?, modes })
}

/// Tried with a symlink that leads to nothing that anybody has.
fn sets_links(directory: BorrowedFd<'_>, tokens: &TokenMaker) -> Result<bool> {
    let [file, link] = [(); 2].map(|()| TempName::contents(tokens.make()));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    drop(fs::openat(directory, file.as_c_str(), flags, Mode::from_raw_mode(0o600))?);
    let set = || {
        fs::symlinkat(file.as_c_str(), directory, link.as_c_str())?;
        let attributes = Attributes { mtime: PROBE, atime: PROBE, ..Attributes::default() };
        fs::utimensat(directory, link.as_c_str(), &timestamps(&attributes)?, AtFlags::SYMLINK_NOFOLLOW)?;
        let found = Status::from(fs::statat(directory, link.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)?);
        Ok(found.mtime.seconds.abs_diff(PROBE.seconds) <= 2)
    };
    let set = set();
    for name in [link, file] {
        let _ = fs::unlinkat(directory, name.as_c_str(), AtFlags::empty());
    }
    set
}

/// The unit to which [`PROBE`] was cut, if it was stored as `stored`.
fn unit_of(stored: Timestamp) -> u64 {
    // Full, 100 ns (NTFS, SMB), 1 us, 1 ms, 10 ms (exFAT), 1 s (Lustre, HFS+), 2 s (FAT).
    const UNITS: [u64; 7] = [1, 100, 1_000, 1_000_000, 10_000_000, 1_000_000_000, 2_000_000_000];
    let exact = |unit: &u64| {
        let nanos = PROBE.seconds as u64 * 1_000_000_000 + u64::from(PROBE.nanos);
        let cut = nanos - nanos % unit;
        stored.seconds == (cut / 1_000_000_000) as i64 && u64::from(stored.nanos) == cut % 1_000_000_000
    };
    UNITS.into_iter().find(exact).unwrap_or(1)
}

/// All file systems of a sink.
pub(crate) struct FileSystems {
    mode: SyncMode,
    known: Mutex<Vec<Arc<FileSystem>>>,
}

impl FileSystems {
    /// None yet.
    pub fn new(mode: SyncMode) -> Self {
        FileSystems { mode, known: Mutex::new(Vec::new()) }
    }

    /// The one that holds this directory.
    pub fn of(&self, directory: BorrowedFd<'_>, device: u64) -> Result<Arc<FileSystem>> {
        let mut known = lock(&self.known);
        if let Some(found) = known.iter().find(|file_system| file_system.device == device) {
            return Ok(Arc::clone(found));
        }
        let new = Arc::new(FileSystem::of(directory, device, self.mode)?);
        known.push(Arc::clone(&new));
        Ok(new)
    }

    /// The one with this number, if it was met.
    pub fn known(&self, device: u64) -> Option<Arc<FileSystem>> {
        lock(&self.known).iter().find(|file_system| file_system.device == device).cloned()
    }

    /// Whether this one can be synced as a whole; no for one that is not known.
    pub fn is_whole(&self, device: u64) -> bool {
        self.known(device).is_some_and(|file_system| file_system.whole)
    }

    /// Whether this one keeps a directory on every brick of a volume; no for one that is not known.
    pub fn is_gluster(&self, device: u64) -> bool {
        self.known(device).is_some_and(|file_system| file_system.gluster)
    }

    /// All that were touched.
    pub fn all(&self) -> Vec<Arc<FileSystem>> {
        lock(&self.known).clone()
    }
}

/// Whether a stored time is the wanted one, as far as its file system can tell.
pub(crate) fn is_stored_as(
    file_system: &FileSystem,
    directory: BorrowedFd<'_>,
    tokens: &TokenMaker,
    stored: Timestamp,
    wanted: Timestamp,
) -> bool {
    // Measuring costs a temporary file: only where it can make a difference.
    let measures = stored.seconds.abs_diff(wanted.seconds) <= 2 || !STORED_ANYWHERE.contains(&wanted.seconds);
    stored == wanted
        || measures && {
            let times = file_system.times(directory, tokens);
            same_time(stored, times.nearest(wanted), times.unit_nanos)
        }
}

#[cfg(test)]
mod tests {
    use rustix::mount::{MountFlags, mount_remount};

    use super::*;
    use crate::huge_pages::with_memory;

    #[test]
    fn a_time_that_cannot_be_stored_is_the_nearest_one_that_can() {
        let ext4 = Times { unit_nanos: 1, first: -(1 << 31), last: 15_032_385_535 };
        let time = |seconds, nanos| Timestamp { seconds, nanos };
        assert_eq!(ext4.nearest(time(16_725_225_600, 7)), time(15_032_385_535, 0));
        assert_eq!(ext4.nearest(time(-3_786_825_600, 7)), time(-(1 << 31), 0));
        assert_eq!(ext4.nearest(time(-1, 7)), time(-1, 7));
    }

    #[test]
    fn what_remains_of_far_times_over_sshfs_and_on_ntfs_is_no_limit() {
        let limits = |first: i64, last: i64| {
            let times = Times::of(PROBE, first, last);
            (times.first, times.last)
        };
        let none = (i64::MIN, i64::MAX);
        assert_eq!(limits(-FAR, FAR), none);
        assert_eq!(limits(0, 0), none, "sshfs and fuse2fs");
        assert_eq!(limits(745_162_779_594, -745_162_779_594), none, "ntfs-3g");
        assert_eq!(limits(-(1 << 31), 15_032_385_535), (-(1 << 31), 15_032_385_535), "ext4");
        assert_eq!(limits(315_532_800, 4_354_819_198), (315_532_800, 4_354_819_198), "FAT");
    }

    #[test]
    fn a_symlink_has_what_is_set_on_it_and_trying_leaves_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = fs::open(scratch.path(), OFlags::RDONLY, Mode::empty()).unwrap();
        let tokens = TokenMaker::new([1; 6], [2; 4]);
        assert_eq!(sets_links(directory.as_fd(), &tokens), Ok(true));
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_unit_is_told_from_what_a_probe_was_cut_to() {
        let stored = |seconds: i64, nanos| unit_of(Timestamp { seconds: 1_000_000_000 + seconds, nanos });
        assert_eq!(stored(1, 123_456_789), 1);
        assert_eq!(stored(1, 123_456_700), 100);
        assert_eq!(stored(1, 123_456_000), 1_000);
        assert_eq!(stored(1, 123_000_000), 1_000_000);
        assert_eq!(stored(1, 120_000_000), 10_000_000);
        assert_eq!(stored(1, 0), 1_000_000_000);
        assert_eq!(stored(0, 0), 2_000_000_000);
        assert_eq!(stored(77, 5), 1, "unknown: times must be equal");
    }

    fn of_any_kind() -> Measured {
        Measured { times: Times::ANY, owner: 0, modes: true }
    }

    /// Tests run where the owner is shown as it is: that another one is taken for it can be seen only by what is not.
    #[test]
    fn what_another_user_has_made_is_not_own() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = fs::open(scratch.path(), OFlags::RDONLY, Mode::empty()).unwrap();
        let system = FileSystem::of(directory.as_fd(), 0, SyncMode::Measured).unwrap();
        let tokens = TokenMaker::new([1; 6], [2; 4]);
        let own = rustix::process::geteuid().as_raw();
        assert!(system.is_own(own, directory.as_fd(), &tokens).unwrap() && system.measured.get().is_none());
        assert!(
            !system.is_own(own + 1, directory.as_fd(), &tokens).unwrap() && system.measured.get().is_some()
        );
        let shown =
            FileSystem { measured: OnceLock::from(Measured { owner: own + 1, ..of_any_kind() }), ..system };
        assert!(
            shown.is_own(own + 1, directory.as_fd(), &tokens).unwrap()
                && shown.is_own(own, directory.as_fd(), &tokens).unwrap()
        );
        // Where nothing can be made nobody knows.
        let unknown = FileSystem { measured: OnceLock::new(), ..shown };
        std::fs::remove_dir(scratch.path()).unwrap();
        assert!(unknown.is_own(own, directory.as_fd(), &tokens).unwrap());
        assert!(unknown.is_own(own + 1, directory.as_fd(), &tokens).is_err());
        std::fs::create_dir(scratch.path()).unwrap();
    }

    #[test]
    fn a_file_system_that_the_kernel_has_made_read_only_has_lost_what_was_not_synced() {
        let scratch = tempfile::tempdir().unwrap();
        with_memory(scratch.path(), c"size=1m", || {
            let directory = fs::open(scratch.path(), OFlags::RDONLY, Mode::empty()).unwrap();
            let system = FileSystem::of(directory.as_fd(), 0, SyncMode::Measured).unwrap();
            let sync = |system: &FileSystem| system.sync(&Hooks::default(), SyncPoint::FileSystemData);
            assert!(system.whole);
            assert_eq!((sync(&system), system.errors()), (Ok(()), 0));
            mount_remount(scratch.path(), MountFlags::RDONLY, c"").unwrap();
            assert_eq!((sync(&system), system.errors()), (Err(rustix::io::Errno::ROFS), 1));
            let met_so = FileSystem::of(directory.as_fd(), 0, SyncMode::Measured).unwrap();
            assert_eq!(sync(&met_so), Ok(()), "nothing was to be written");
        });
    }

    /// A sync that has begun covers nothing that is written since: who comes then needs one of its own.
    #[cfg(feature = "faults")]
    #[test]
    fn a_sync_covers_only_who_came_before_it_began() {
        use crate::sink::faults::{Fault, Faults};
        let scratch = tempfile::tempdir().unwrap();
        let directory = fs::open(scratch.path(), OFlags::RDONLY, Mode::empty()).unwrap();
        let system = Arc::new(FileSystem::of(directory.as_fd(), 0, SyncMode::Measured).unwrap());
        let faults = Arc::new(Faults::default());
        let sync = {
            let (system, faults) = (Arc::clone(&system), Arc::clone(&faults));
            move || system.sync(&Hooks::new(Some(Arc::clone(&faults))), SyncPoint::FileSystemData)
        };
        let (second, (tell, told)) = (sync.clone(), std::sync::mpsc::channel());
        faults.meanwhile(Fault::Sync(SyncPoint::FileSystemData), move || {
            let second = std::thread::spawn(second);
            // It waits for this one by then.
            std::thread::sleep(std::time::Duration::from_millis(100));
            tell.send(second).unwrap();
        });
        assert_eq!(sync(), Ok(()));
        assert_eq!(told.recv().unwrap().join().unwrap(), Ok(()));
        assert_eq!(faults.seen().len(), 2, "the first one had begun before the second one came");
    }

    #[test]
    fn a_file_system_is_measured_once_and_the_probe_is_gone() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = fs::open(scratch.path(), OFlags::RDONLY, Mode::empty()).unwrap();
        let systems = FileSystems::new(SyncMode::Measured);
        let device = status(directory.as_fd()).unwrap().device;
        let system = systems.of(directory.as_fd(), device).unwrap();
        let tokens = TokenMaker::new([1; 6], [2; 4]);
        let times = system.times(directory.as_fd(), &tokens);
        assert_eq!(times.unit_nanos, 1, "tests run where full times are stored");
        assert!(system.stores_modes(directory.as_fd(), &tokens), "and modes");
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
        let time = |nanos| Timestamp { seconds: 5, nanos };
        assert!(is_stored_as(&system, directory.as_fd(), &tokens, time(1), time(1)));
        assert!(!is_stored_as(&system, directory.as_fd(), &tokens, time(1), time(2)));
        let far = |seconds| Timestamp { seconds, nanos: 5 };
        let name = tempfile::NamedTempFile::new_in(scratch.path()).unwrap();
        let attributes = Attributes { mtime: far(1 << 40), atime: far(1 << 40), ..Attributes::default() };
        fs::futimens(&name, &timestamps(&attributes).unwrap()).unwrap();
        let stored = status(name.as_file().as_fd()).unwrap().mtime;
        assert!(is_stored_as(&system, directory.as_fd(), &tokens, stored, far(1 << 40)), "{stored:?}");
        assert!(!is_stored_as(&system, directory.as_fd(), &tokens, time(1), far(1 << 40)));
        assert!(Arc::ptr_eq(&system, &systems.of(directory.as_fd(), device).unwrap()));
    }
}
