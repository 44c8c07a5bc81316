//! Members that have no name until they have their final one.
//!
//! A file without a name is gone when its last descriptor is closed, as it is when the process is killed: nothing is left
//! over. It costs a descriptor until it is named, and one change of the directory less than a temporary name that becomes
//! the final one. Only on file systems where that is more than what they do about files without a name.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use haul_model::{Attributes, Entry, Failure, Token};
use rustix::fs::{self, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use super::PosixSink;
use super::directories::Directory;
use super::durable::is_worth_dropping;
use super::names::name_failure;
use super::objects::PRIVATE;
use super::tokens::TempName;
use crate::confine::sink_failure;
use crate::page_cache;

/// A new one.
pub(super) struct Nameless {
    pub file: OwnedFd,
    /// It need not be set any more.
    pub has_mode: bool,
}

impl PosixSink {
    /// A new file in this directory, if it can do without a name there; with its mode, if it can be made with that.
    pub(super) fn make_nameless(
        &self,
        wanted: &Attributes,
        directory: &Directory,
        held: BorrowedFd<'_>,
    ) -> Option<Nameless> {
        let file_system = &directory.file_system;
        let comes_into_question = file_system.prefers_late_names && file_system.whole;
        if !comes_into_question || !file_system.names_late.get_or_init(|| self.can_name_late(held)) {
            return None;
        }
        let mode = self.creation.mode(wanted, directory, held);
        if self.member_descriptors.fetch_add(1, Ordering::Relaxed) < self.member_descriptors_max
            && let Ok(file) = open_nameless(held, mode.unwrap_or(PRIVATE))
        {
            return Some(Nameless { file, has_mode: mode.is_some() });
        }
        self.member_descriptors.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// Older kernels ask for a privilege, or for /proc.
    fn can_name_late(&self, held: BorrowedFd<'_>) -> bool {
        let name = TempName::contents(self.tokens.make());
        let linked = open_nameless(held, PRIVATE).and_then(|file| link(&file, held, name.as_c_str()));
        linked.and_then(|()| fs::unlinkat(held, name.as_c_str(), AtFlags::empty())).is_ok()
    }

    /// It goes, or has a name now.
    pub(super) fn close_nameless(&self, file: OwnedFd) {
        drop(file);
        self.member_descriptors.fetch_sub(1, Ordering::Relaxed);
    }

    /// Gives it the temporary name that it would have had.
    pub(super) fn name_for_now(
        &self,
        file: &OwnedFd,
        entry: &Entry,
        token: Token,
        directory: &Arc<Directory>,
    ) -> Result<(), Failure> {
        let held = self.directories.descriptor(directory)?;
        let name = self.temporary_name(entry, directory, token);
        link(file, held.as_fd(), name.as_c_str()).map_err(sink_failure)
    }

    /// Gives it, durable as it is, its final name. A file that has lost a name cannot get one again: what fails here is written anew.
    pub(super) fn name_at_last(
        &self,
        file: &OwnedFd,
        entry: &Entry,
        token: Token,
        (directory, held): (&Arc<Directory>, BorrowedFd<'_>),
    ) -> Result<(), Failure> {
        let name = self.name_of(entry)?;
        if !directory.file_system.in_memory && is_worth_dropping(entry) {
            page_cache::drop_all(file);
        }
        match link(file, held, name) {
            // What is there is replaced, if it may be, at once.
            Err(Errno::EXIST) => {
                self.name_for_now(file, entry, token, directory)?;
                let named = self.name(entry, token, directory);
                if named.is_err() {
                    self.remove_temporary(entry, directory, token);
                }
                named
            }
            linked => {
                linked.map_err(name_failure)?;
                if directory.made { Ok(()) } else { self.claim_name(directory, held, name, name) }
            }
        }
    }
}

fn open_nameless(directory: BorrowedFd<'_>, mode: Mode) -> rustix::io::Result<OwnedFd> {
    fs::openat(directory, c".", OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, mode)
}

/// Gives a file its first name.
fn link(file: &OwnedFd, directory: BorrowedFd<'_>, name: impl Arg + Copy) -> rustix::io::Result<()> {
    match fs::linkat(file, c"", directory, name, AtFlags::EMPTY_PATH) {
        // Older kernels let only root do so. The magic link is our own.
        Err(Errno::NOENT | Errno::PERM) => link_by_magic_link(file, directory, name),
        other => other,
    }
}

fn link_by_magic_link(file: &OwnedFd, directory: BorrowedFd<'_>, name: impl Arg) -> rustix::io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::linkat(CWD, path, directory, name, AtFlags::SYMLINK_FOLLOW)
}

#[cfg(test)]
mod tests {
    use haul_buffers::Pool;
    use haul_model::EntryId;
    use haul_model::op::{SinkDone, SinkOp};

    use super::*;
    use crate::SinkStorage;
    use crate::conformance_sink::{Driver, JOB, OBJECT};
    use crate::sink::{Decision, Fault, Faults, SinkRoot, SinkSettings, SourceName};

    #[test]
    fn a_file_gets_its_name_on_older_kernels_too() {
        let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
        let directory = OwnedFd::from(std::fs::File::open(scratch.path()).unwrap());
        let file = open_nameless(directory.as_fd(), PRIVATE).unwrap();
        rustix::io::write(&file, b"new").unwrap();
        link_by_magic_link(&file, directory.as_fd(), "name").unwrap();
        assert_eq!(std::fs::read(scratch.path().join("name")).unwrap(), b"new");
        let again = open_nameless(directory.as_fd(), PRIVATE).unwrap();
        assert_eq!(link_by_magic_link(&again, directory.as_fd(), "name"), Err(Errno::EXIST));
    }

    struct Shared(Arc<PosixSink>);

    impl SinkStorage for Shared {
        fn run(&self, op: SinkOp, pool: &Pool) -> Option<SinkDone> {
            self.0.run(op, pool)
        }
    }

    /// Else later ones would have to take a name at once.
    #[test]
    fn what_fails_or_goes_leaves_no_descriptor_counted() {
        let (scratch, state) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        let sources = [SourceName::Named(b"top".to_vec())];
        let root = SinkRoot::open(scratch.path(), Decision::Into, &sources).unwrap();
        let faults = Faults::default().fail(Fault::Write, 2, 5).fail(Fault::Write, 4, 28);
        let settings = SinkSettings::new(JOB, *b"one.", OBJECT, state.path().to_owned());
        let sink = PosixSink::open(root, SinkSettings { faults: Some(Arc::new(faults)), ..settings });
        let sink = Arc::new(sink.unwrap());
        let driver = Driver::new(Box::new(Shared(Arc::clone(&sink))));
        let top = driver.directory(EntryId::root(0), b"");
        let counted = || sink.member_descriptors.load(Ordering::Relaxed);
        let files = ["a", "b", "c", "d", "e"].map(|name| driver.file(top, name.as_bytes(), 1));
        let results = driver.write_members(&files.each_ref().map(|file| (file, &b"x"[..])));
        assert_eq!(results.iter().filter(|result| result.is_err()).count(), 2);
        assert_eq!(counted(), 3, "those that wait for their names");
        let again = driver.write_members(&[(&files[0], b"x")]);
        assert_eq!((again, counted()), (vec![Ok(())], 3), "the same once more");
        driver.discard(files[0].id, Token::NONE);
        assert_eq!(counted(), 2);
        driver.settle(&[files[2].id, files[4].id]);
        assert_eq!(counted(), 0);
    }
}
