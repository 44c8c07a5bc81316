//! Every place where the sink makes something durable, by name, behind one function.
//!
//! The names exist so that a test can remove any one of them and show that a crash then loses something that was
//! called durable. Without the feature `faults` a [`Hooks`] is empty and the function is only the system call.

use std::os::fd::BorrowedFd;

use haul_model::profile::Stage;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::{Errno, Result};

use crate::local;

#[cfg(feature = "faults")]
use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(feature = "faults")]
use std::sync::{Arc, Mutex, OnceLock};
#[cfg(feature = "faults")]
use std::time::Duration;

macro_rules! points {
    ($($(#[$doc:meta])* $variant:ident $name:literal;)*) => {
        /// A place where something is made durable.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum SyncPoint { $($(#[$doc])* $variant,)* }

        impl SyncPoint {
            /// All of them.
            pub const ALL: &'static [SyncPoint] = &[$(SyncPoint::$variant,)*];

            /// As `HAUL_TEST_SKIP_SYNC` names it.
            pub const fn name(self) -> &'static str { match self { $(SyncPoint::$variant => $name,)* } }
        }
    };
}

points! {
    /// Objects of an unfinished file.
    ObjectData "object-data";
    /// Their hashes. Losing them costs a re-read of the file, never data.
    ObjectSums "object-sums";
    /// The name of an unfinished file: without it nothing can be resumed.
    TempName "temp-name";
    /// Contents and attributes of a bundle member.
    MemberData "member-data";
    /// Contents and attributes of a file whose root is known.
    SealedData "sealed-data";
    /// Attributes of a file that was complete already.
    SkippedAttributes "skipped-attributes";
    /// The directory that holds final names and symlinks.
    FinalName "final-name";
    /// The directories above it, up to the one that holds the destination.
    ParentNames "parent-names";
    /// Attributes and names of all directories, at the end.
    DirectoryAttributes "directory-attributes";
    /// The directory that holds the destination, at the end.
    DestinationName "destination-name";
    /// Instead of the points on contents, where a whole file system can be synced.
    FileSystemData "file-system-data";
    /// Instead of the points on names.
    FileSystemNames "file-system-names";
    /// Instead of the points at the end.
    FileSystemDirectories "file-system-directories";
}

/// How much of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// Contents and size.
    Data,
    /// Attributes too; for a directory, its names.
    Everything,
    /// Everything on this file system.
    FileSystem,
}

/// What a `syncfs` keeps to itself an `fsync` on the same file system says. That of an XFS only of a file: a directory has nothing to
/// say once the log that it waits for is gone.
fn ask_the_journal(directory: BorrowedFd<'_>) -> Result<()> {
    if !local::is_xfs(directory)? {
        return fs::fsync(directory);
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match fs::openat(directory, c".", flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => fs::fsync(file),
        Err(errno @ (Errno::IO | Errno::ROFS)) => Err(errno),
        // There is no room, or no right: not said is not lost.
        Err(_) => fs::fsync(directory),
    }
}

/// What tests change; nothing otherwise.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    #[cfg(feature = "faults")]
    faults: Option<Arc<Faults>>,
}

impl Hooks {
    /// With these faults, or those that the environment asks for.
    #[cfg(feature = "faults")]
    pub fn new(faults: Option<Arc<Faults>>) -> Self {
        static ENVIRONMENT: OnceLock<Option<Arc<Faults>>> = OnceLock::new();
        Hooks { faults: faults.or_else(|| ENVIRONMENT.get_or_init(Faults::from_environment).clone()) }
    }

    /// The only caller of `fsync`, `fdatasync` and `syncfs`.
    pub fn sync(&self, point: SyncPoint, descriptor: BorrowedFd<'_>, reach: Reach) -> Result<()> {
        if !self.before_sync(point)? {
            return Ok(());
        }
        let _sync = haul_meter::within(Stage::Sync);
        loop {
            let result = match reach {
                Reach::Data => fs::fdatasync(descriptor),
                Reach::Everything => fs::fsync(descriptor),
                Reach::FileSystem => fs::syncfs(descriptor).and_then(|()| {
                    if local::tells_of_the_journal(descriptor)? {
                        Ok(())
                    } else {
                        ask_the_journal(descriptor)
                    }
                }),
            };
            if result != Err(Errno::INTR) {
                return result;
            }
        }
    }

    /// The same for names. Where directories cannot be synced (OrangeFS) nobody could make them any more durable.
    pub fn sync_directory(&self, point: SyncPoint, directory: BorrowedFd<'_>) -> Result<()> {
        match self.sync(point, directory, Reach::Everything) {
            Err(Errno::INVAL) => Ok(()),
            synced => synced,
        }
    }

    #[cfg(not(feature = "faults"))]
    fn before_sync(&self, _point: SyncPoint) -> Result<bool> {
        Ok(true)
    }

    /// Before a file that was made gets its size.
    pub fn before_lay(&self) -> Result<()> {
        #[cfg(feature = "faults")]
        if let Some(faults) = &self.faults {
            return faults.count(Fault::Lay);
        }
        Ok(())
    }

    /// Before what was written is read again.
    pub fn before_reread(&self) -> Result<()> {
        #[cfg(feature = "faults")]
        if let Some(faults) = &self.faults {
            return faults.count(Fault::Reread);
        }
        Ok(())
    }

    /// Before hashes go beside an unfinished file.
    pub fn before_table(&self) -> Result<()> {
        #[cfg(feature = "faults")]
        if let Some(faults) = &self.faults {
            return faults.count(Fault::Table);
        }
        Ok(())
    }

    /// Memory is to be taken for a disk: its syncs are looked at, or fail.
    pub fn watches_syncs(&self) -> bool {
        #[cfg(feature = "faults")]
        return self.faults.is_some();
        #[cfg(not(feature = "faults"))]
        false
    }

    /// Before contents are written.
    #[cfg(not(feature = "faults"))]
    #[inline]
    pub fn before_write(&self) -> Result<()> {
        Ok(())
    }

    #[cfg(feature = "faults")]
    fn before_sync(&self, point: SyncPoint) -> Result<bool> {
        let Some(faults) = &self.faults else { return Ok(true) };
        faults.count(Fault::Sync(point))?;
        if let Some((_, least)) = faults.slow.filter(|(slow, _)| *slow == point) {
            let now = faults.waiting.fetch_add(1, Ordering::Relaxed) + 1;
            faults.waited_most.fetch_max(now, Ordering::Relaxed);
            std::thread::sleep(least);
            faults.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(!faults.skipped.contains(&point))
    }

    /// Before contents are written.
    #[cfg(feature = "faults")]
    pub fn before_write(&self) -> Result<()> {
        self.faults.as_ref().map_or(Ok(()), |faults| faults.count(Fault::Write))
    }
}

/// Where an error can be made to happen.
#[cfg(feature = "faults")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Contents are written.
    Write,
    /// A file that was made gets its size.
    Lay,
    /// What was written is read again.
    Reread,
    /// Hashes go beside an unfinished file.
    Table,
    /// Something is made durable.
    Sync(SyncPoint),
}

/// What a test asks for: syncs that do nothing, and system calls that fail.
#[cfg(feature = "faults")]
#[derive(Debug, Default)]
pub struct Faults {
    skipped: Vec<SyncPoint>,
    slow: Option<(SyncPoint, Duration)>,
    waiting: AtomicUsize,
    waited_most: AtomicUsize,
    /// Where, after how many calls, with which errno.
    failures: Mutex<Vec<(Fault, u64, i32)>>,
    seen: Mutex<Vec<Fault>>,
    meanwhile: Mutex<Option<(Fault, Meanwhile)>>,
}

#[cfg(feature = "faults")]
struct Meanwhile(Box<dyn FnOnce() + Send>);

#[cfg(feature = "faults")]
impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meanwhile")
    }
}

#[cfg(feature = "faults")]
impl Faults {
    /// Syncs at this point do nothing.
    pub fn skip(mut self, point: SyncPoint) -> Self {
        self.skipped.push(point);
        self
    }

    /// Syncs at this point take at least so long.
    pub fn slow(mut self, point: SyncPoint, least: Duration) -> Self {
        self.slow = Some((point, least));
        self
    }

    /// So many of them at once, at most.
    pub fn slow_at_once(&self) -> usize {
        self.waited_most.load(Ordering::Relaxed)
    }

    /// The `nth` call (from 1) at `fault` fails with `errno`; the calls after it succeed.
    pub fn fail(self, fault: Fault, nth: u64, errno: i32) -> Self {
        lock(&self.failures).push((fault, nth, errno));
        self
    }

    /// Before the next call at `fault` something else happens.
    pub fn meanwhile(&self, fault: Fault, what: impl FnOnce() + Send + 'static) {
        *lock(&self.meanwhile) = Some((fault, Meanwhile(Box::new(what))));
    }

    /// What was called so far, in order.
    pub fn seen(&self) -> Vec<Fault> {
        lock(&self.seen).clone()
    }

    /// `HAUL_TEST_SKIP_SYNC=<point>[,<point>...]` and `HAUL_TEST_FAIL=<point, "write", "lay", "reread" or "table">:<nth>:<errno>[,...]`.
    ///
    /// Panics at a word that it does not know: a test that asks for nothing would pass for the wrong reason.
    fn from_environment() -> Option<Arc<Faults>> {
        let words = |variable: &str| std::env::var(variable).unwrap_or_default();
        let (skips, failures) = (words("HAUL_TEST_SKIP_SYNC"), words("HAUL_TEST_FAIL"));
        let point = |name: &str| {
            let mut points = SyncPoint::ALL.iter();
            *points.find(|point| point.name() == name).unwrap_or_else(|| panic!("no sync point {name:?}"))
        };
        let mut faults = Faults::default();
        for name in skips.split(',').filter(|name| !name.is_empty()) {
            faults = faults.skip(point(name));
        }
        for rule in failures.split(',').filter(|rule| !rule.is_empty()) {
            let parts: Vec<&str> = rule.split(':').collect();
            let [name, nth, errno] = parts[..] else { panic!("not a fault: {rule:?}") };
            let fault = match name {
                "write" => Fault::Write,
                "lay" => Fault::Lay,
                "reread" => Fault::Reread,
                "table" => Fault::Table,
                name => Fault::Sync(point(name)),
            };
            faults = faults.fail(fault, nth.parse().expect("a count"), errno.parse().expect("an errno"));
        }
        let asked = !faults.skipped.is_empty() || !lock(&faults.failures).is_empty();
        asked.then(|| Arc::new(faults))
    }

    fn count(&self, at: Fault) -> Result<()> {
        lock(&self.seen).push(at);
        let what = lock(&self.meanwhile).take_if(|(fault, _)| *fault == at);
        if let Some((_, Meanwhile(what))) = what {
            what();
        }
        let mut result = Ok(());
        lock(&self.failures).retain_mut(|(fault, left, errno)| {
            if *fault == at {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    result = Err(Errno::from_raw_os_error(*errno));
                    return false;
                }
            }
            true
        });
        result
    }
}

#[cfg(feature = "faults")]
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(all(test, feature = "faults"))]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// Older kernels are told nothing by `syncfs` then: this is what is asked there.
    #[test]
    fn a_journal_that_has_stopped_says_so_when_it_is_asked() {
        use std::process::Command;
        let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
            let output = Command::new(program).args(arguments).output().expect("it is installed (make deps)");
            assert!(output.status.success(), "{program}: {output:?}");
        };
        for kind in ["ext4", "xfs"] {
            let scratch = tempfile::tempdir().unwrap();
            // What is mounted in there goes with the thread that mounts it.
            crate::huge_pages::with_memory(scratch.path(), c"size=450m", || {
                let (image, at) = (scratch.path().join("image"), scratch.path().join("at"));
                std::fs::create_dir(&at).unwrap();
                std::fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
                run(&format!("mkfs.{kind}"), &["-q".as_ref(), image.as_os_str()]);
                run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()]);
                let held =
                    fs::open(&at, fs::OFlags::RDONLY | fs::OFlags::CLOEXEC, fs::Mode::empty()).unwrap();
                assert_eq!(ask_the_journal(held.as_fd()), Ok(()), "{kind}");
                run("xfs_io", &["-x".as_ref(), "-c".as_ref(), "shutdown".as_ref(), at.as_os_str()]);
                assert_eq!(ask_the_journal(held.as_fd()), Err(Errno::IO), "{kind}");
            });
        }
    }

    #[test]
    fn each_sync_can_be_removed_and_only_that_one() {
        // A descriptor that cannot be synced tells whether somebody tried.
        let flags = fs::OFlags::PATH | fs::OFlags::CLOEXEC;
        let held = fs::open("/", flags, fs::Mode::empty()).unwrap();
        for removed in SyncPoint::ALL {
            let hooks = Hooks::new(Some(Arc::new(Faults::default().skip(*removed))));
            for point in SyncPoint::ALL {
                for reach in [Reach::Data, Reach::Everything, Reach::FileSystem] {
                    let expected = if point == removed { Ok(()) } else { Err(Errno::BADF) };
                    assert_eq!(hooks.sync(*point, held.as_fd(), reach), expected, "{removed:?} {point:?}");
                }
            }
        }
    }
}
