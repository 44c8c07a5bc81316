//! A destination in a directory of its own, looked at by other means than the sink's.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use haul_model::{EntryId, HashKind, Kind, Timestamp};
use haul_storage::SinkStorage;
use haul_storage::conformance_sink::{Driver, Fixture, JOB, OBJECT, Seen};
use haul_storage::engine::{Direction, Engines, Trouble, Wish};
use haul_storage::layout::{self, LayoutFile, Layouts};
use haul_storage::placing::Placing;
use haul_storage::sink::{
    Contents, Decision, Faults, PosixSink, SinkRoot, SinkSettings, SourceName, SyncMode,
};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use tempfile::TempDir;

pub struct Scratch {
    _scratch: TempDir,
    pub destination: PathBuf,
    pub outside: PathBuf,
    state: PathBuf,
    mode: SyncMode,
    placing: Option<Arc<Placing>>,
    engines: Option<(Wish, Trouble)>,
}

impl Scratch {
    pub fn new(mode: SyncMode) -> Self {
        let scratch = tempfile::tempdir().expect("a directory for the test");
        Self::at(scratch, mode)
    }

    /// On a disk, if there is one where tests are built: directories for temporary files are often in memory.
    pub fn on_disk(mode: SyncMode) -> Self {
        let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        Self::at(scratch.expect("a directory for the test"), mode)
    }

    /// In memory where the machine has such a place, for tests with many syncs.
    pub fn fast(mode: SyncMode) -> Self {
        let scratch = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self::at(scratch.expect("a directory for the test"), mode)
    }

    /// All files lie on several targets.
    pub fn striped(mut self) -> Self {
        let layout_file = LayoutFile::parse(b"/ 1MiB one two three\n").expect("a good layout file");
        let options = layout::Options { layout_file: Some(layout_file), ..layout::Options::default() };
        self.placing = Some(Arc::new(Placing::new(Arc::new(Layouts::new(options)))));
        self
    }

    /// Files are written by these engines.
    pub fn written_by(mut self, wish: Wish, trouble: Trouble) -> Self {
        self.engines = Some((wish, trouble));
        self
    }

    fn at(scratch: TempDir, mode: SyncMode) -> Self {
        let at = |name: &str| {
            let path = scratch.path().join(name);
            std::fs::create_dir(&path).expect("an empty directory");
            path
        };
        Scratch {
            destination: at("destination"),
            outside: at("outside"),
            state: at("state"),
            _scratch: scratch,
            mode,
            placing: None,
            engines: None,
        }
    }

    pub fn settings(&self, session_tag: [u8; 4]) -> SinkSettings {
        SinkSettings {
            preserve_owner: false,
            job_tag: JOB,
            session_tag,
            object_bytes: OBJECT,
            spool_directory: self.state.clone(),
            hash: HashKind::Blake3,
            sync: self.mode,
            contents: Contents::Written,
            placing: self.placing.clone(),
            stripe: None,
            lender: None,
            faults: None,
        }
    }

    pub fn posix(&self, session_tag: [u8; 4], sources: &[SourceName], faults: Option<Faults>) -> PosixSink {
        let settings = SinkSettings { faults: faults.map(Arc::new), ..self.settings(session_tag) };
        self.with(settings, sources)
    }

    pub fn with(&self, settings: SinkSettings, sources: &[SourceName]) -> PosixSink {
        let root =
            SinkRoot::open(&self.destination, Decision::Into, sources).expect("the destination is there");
        let sink = PosixSink::open(root, settings).expect("the sink opens");
        match self.engines {
            Some((wish, trouble)) => {
                sink.with_engines(Arc::new(Engines::with_trouble(Direction::Write, wish, trouble)))
            }
            None => sink,
        }
    }

    /// A session with the directory `top` in it.
    pub fn session(&self, session_tag: [u8; 4]) -> (Driver, EntryId) {
        self.session_with(self.settings(session_tag))
    }

    pub fn session_with(&self, settings: SinkSettings) -> (Driver, EntryId) {
        let driver = Driver::new(Box::new(self.with(settings, &[SourceName::Named(b"top".to_vec())])));
        let top = driver.directory(EntryId::root(0), b"");
        (driver, top)
    }

    pub fn path(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() {
            self.destination.clone()
        } else {
            self.destination.join(OsStr::from_bytes(path))
        }
    }
}

impl Fixture for Scratch {
    fn sizes_at_once(&self) -> bool {
        self.placing.is_some()
    }

    fn sizes_at_first(&self) -> bool {
        true
    }

    fn open(&self, session_tag: [u8; 4], sources: &[SourceName]) -> Box<dyn SinkStorage> {
        Box::new(self.posix(session_tag, sources, None))
    }

    fn look(&self, path: &[u8]) -> Option<Seen> {
        look(&self.path(path))
    }

    fn names(&self, path: &[u8]) -> BTreeSet<Vec<u8>> {
        names(&self.path(path))
    }

    fn plant(&self, path: &[u8], seen: &Seen) {
        plant(&self.path(path), seen);
    }
}

pub fn names(path: &Path) -> BTreeSet<Vec<u8>> {
    let listed = std::fs::read_dir(path).expect("a directory");
    listed.map(|entry| entry.expect("an entry").file_name().into_vec()).collect()
}

pub fn look(path: &Path) -> Option<Seen> {
    let found = std::fs::symlink_metadata(path).ok()?;
    let (kind, bytes) = if found.is_dir() {
        (Kind::Directory, Vec::new())
    } else if found.is_symlink() {
        (Kind::Symlink, std::fs::read_link(path).expect("a link").into_os_string().into_vec())
    } else if found.is_file() {
        (Kind::File, std::fs::read(path).expect("a readable file"))
    } else {
        (Kind::Other, Vec::new())
    };
    let mtime = Timestamp { seconds: found.mtime(), nanos: found.mtime_nsec() as u32 };
    Some(Seen { kind, mode: found.mode() & 0o7777, mtime, bytes })
}

pub fn plant(path: &Path, seen: &Seen) {
    match seen.kind {
        Kind::Directory => std::fs::create_dir(path),
        Kind::Symlink => std::os::unix::fs::symlink(OsStr::from_bytes(&seen.bytes), path),
        _ => std::fs::write(path, &seen.bytes),
    }
    .expect("it can be planted");
    if seen.kind != Kind::Symlink {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(seen.mode)).expect("its owner");
    }
    let time = Timespec { tv_sec: seen.mtime.seconds, tv_nsec: seen.mtime.nanos.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("its owner");
}

/// Runs `work` as an ordinary user who owns `scratch`; where the test is not run by root, as who it is.
///
/// The kernel keeps credentials for each thread: only the one that does the work gives up root.
pub fn as_user(scratch: &Scratch, work: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        return work();
    }
    const NOBODY: u32 = 65_534;
    for path in [scratch._scratch.path(), &scratch.destination, &scratch.outside, &scratch.state] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("root may");
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (uid, gid) = (rustix::fs::Uid::from_raw(NOBODY), rustix::fs::Gid::from_raw(NOBODY));
            rustix::thread::set_thread_groups(&[]).expect("root may");
            rustix::thread::set_thread_res_gid(gid, gid, gid).expect("root may");
            rustix::thread::set_thread_res_uid(uid, uid, uid).expect("root may");
            work();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}
