//! Opening files, and the descriptors that stay open between the objects of one file.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use haul_model::{Code, Entry, EntryId, Failure, Identity, Kind};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::directories::{Directories, Location};
use super::fresh;
use super::status::Status;
use crate::absent::Absent;
use crate::engine::Reach;
use crate::leases::{self, Leases};
use crate::page_cache;

/// Reading must not change what is read: `O_NOATIME` where the kernel permits it, which is for one's own files, or
/// for everybody's with `CAP_FOWNER`.
pub(crate) struct Noatime {
    user: u32,
    /// Somebody else's file was refused; ask only for one's own from now on.
    denied: AtomicBool,
}

impl Noatime {
    pub fn new() -> Self {
        Noatime { user: rustix::process::geteuid().as_raw(), denied: AtomicBool::new(false) }
    }

    /// Calls `open` with `O_NOATIME` or nothing. `owner`: of the file, where it is known.
    pub fn open<T>(&self, owner: Option<u32>, open: impl Fn(OFlags) -> Result<T, Errno>) -> Result<T, Errno> {
        let own = owner == Some(self.user);
        if own || !self.denied.load(Ordering::Relaxed) {
            match open(OFlags::NOATIME) {
                Err(Errno::PERM) => {
                    if !own {
                        self.denied.store(true, Ordering::Relaxed);
                    }
                }
                other => return other,
            }
        }
        open(OFlags::empty())
    }
}

/// Opens the file at `location` and checks that it is the version of `entry.identity`, and that one can tell if it does not stay so.
///
/// Anything may have been put under the name since it was scanned: a symlink is not followed, a fifo not waited for
/// (`O_NONBLOCK` means nothing to most regular files; what it keeps from being waited for is in [`leases`](crate::leases)), a
/// terminal not adopted.
pub(crate) fn open_regular(
    directories: &Directories,
    location: &Location<'_>,
    noatime: &Noatime,
    entry: &Entry,
    leases: Leases,
) -> Result<(OwnedFd, Status), Failure> {
    if entry.kind != Kind::File {
        return Err(Code::Internal.into());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | location.nofollow();
    let open = |flags| fs::openat(location.directory(), location.name, flags, Mode::empty());
    let held = OFlags::PATH | OFlags::CLOEXEC | location.nofollow();
    let descriptor = directories.retry_without_cache(|| {
        noatime.open(Some(entry.attributes.uid), |extra| {
            let open_file = || open(flags | extra);
            match leases {
                Leases::Awaited => leases::open(flags | extra, open_file, || open(held)),
                Leases::Respected => retry_on_intr(open_file),
            }
        })
    })?;
    let mut status = check_version(&descriptor, &entry.identity)?;
    let left = fresh::time_left(entry.identity.ctime);
    if !left.is_zero() {
        thread::sleep(left);
        status = check_version(&descriptor, &entry.identity)?;
    }
    Ok((descriptor, status))
}

/// Is the descriptor a regular file of this version? Its status.
pub(crate) fn check_version(descriptor: &OwnedFd, identity: &Identity) -> Result<Status, Failure> {
    let status = Status::of(descriptor).map_err(crate::confine::source_failure)?;
    if status.kind() == Kind::File && identity.is_still(&status.identity()) {
        Ok(status)
    } else {
        Err(Code::SourceChanged.into())
    }
}

/// A file between its first object and its release.
pub(crate) struct OpenFile {
    pub descriptor: Arc<OwnedFd>,
    /// On a local file system whose pages stay in this kernel's cache: its objects can be sent from the file.
    pub known: bool,
    /// The sink takes its objects itself.
    pub lent: bool,
    /// It has holes.
    pub sparse: bool,
    /// How engines get at it.
    pub reach: Reach,
    /// The version that was opened.
    identity: Identity,
    /// What was not in the page cache.
    absent: Absent,
    /// Next to nothing of it was.
    cold: bool,
}

/// A file of which less than this part was in the page cache is read as if none of it were: what is there later was read ahead
/// for us, and nobody can tell the one from the other.
const COLD: u64 = 16;

impl OpenFile {
    /// Opened for this entry; nothing is known of it yet.
    pub fn new(entry: &Entry, descriptor: OwnedFd, reach: Reach) -> OpenFile {
        let pages = page_cache::pages(&descriptor);
        let all = entry.size().div_ceil(rustix::param::page_size() as u64);
        let absent = Absent::of(&descriptor, entry.size(), pages);
        let cold = pages.is_some_and(|pages| pages < all.div_ceil(COLD));
        OpenFile {
            descriptor: Arc::new(descriptor),
            known: false,
            lent: false,
            sparse: false,
            reach,
            identity: entry.identity,
            absent,
            cold,
        }
    }

    /// Somebody had most of this range in the page cache before it was read.
    pub fn is_cached(&self, offset: u64, length: u32) -> bool {
        !self.cold && page_cache::holds_most_of(&self.descriptor, offset, length)
    }

    /// It was read up to here.
    pub fn was_read(&self, offset: u64, length: u32) {
        self.absent.drop_behind(&self.descriptor, offset, length);
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.absent.drop_all(&self.descriptor);
    }
}

/// Files that stay open. Their number is bounded by the master
/// ([`FILES_OPEN_MAX`](haul_model::limits::FILES_OPEN_MAX)).
#[derive(Default)]
pub(crate) struct OpenFiles {
    files: Mutex<HashMap<EntryId, Arc<OpenFile>>>,
}

impl OpenFiles {
    /// The file's descriptor, if it is open and of this version.
    pub fn get(&self, entry: &Entry) -> Option<Arc<OpenFile>> {
        let files = self.lock();
        files.get(&entry.id).filter(|file| file.identity == entry.identity).cloned()
    }

    /// Keeps what was opened for the entry with this id. If another thread was faster, its descriptor is used: all
    /// objects of a file come from one.
    pub fn keep(&self, opened: OpenFile, id: EntryId) -> Arc<OpenFile> {
        let opened = Arc::new(opened);
        let mut files = self.lock();
        let replaced = match files.get(&id) {
            Some(other) if other.identity == opened.identity => return Arc::clone(other),
            // What is left of the version before the file started again.
            _ => files.insert(id, Arc::clone(&opened)),
        };
        drop(files);
        drop(replaced);
        opened
    }

    /// Closes the file's descriptor as soon as no read uses it.
    pub fn release(&self, id: EntryId) {
        let released = self.lock().remove(&id);
        drop(released);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<EntryId, Arc<OpenFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
