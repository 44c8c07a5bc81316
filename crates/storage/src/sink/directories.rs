//! The directories of a session: who holds whom, and descriptors of those in use.
//!
//! A directory is known by the inode that it was when it was first seen. Its descriptor may be closed to make room and
//! is opened again from the nearest ancestor that is still open, one component at a time without following links; if
//! another inode stands there then, everything below it fails. So a path is never longer than the kernel allows, and a
//! directory that somebody swaps is noticed instead of followed.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};

use haul_model::limits::DIRECTORIES_OPEN_MAX;
use haul_model::{Code, EntryId, Failure};
use rustix::io::Errno;

use super::attributes::{Status, status};
use super::file_systems::FileSystem;
use super::spool::RecordId;
use super::{lock, read, write};
use crate::confine::{self, sink_failure};
use crate::local;

/// One directory at the sink.
pub(crate) struct Directory {
    /// `None` for the one that holds the destination, and for the destination that sources are merged into.
    pub parent: Option<Arc<Directory>>,
    /// In its parent.
    pub name: Box<[u8]>,
    /// Device and inode when it was first seen.
    pub identity: (u64, u64),
    /// This session made it: what it did not put there is not there.
    pub made: bool,
    /// Steps below the destination.
    pub depth: u32,
    /// Where its attributes wait for the end of the session.
    pub record: RecordId,
    /// What it lies on.
    pub file_system: Arc<FileSystem>,
    /// Its own name was made durable by this session. (One that was found may still be a killed session's.)
    pub name_durable: AtomicBool,
    /// Making its name durable failed: nothing in it can be called durable any more.
    pub name_lost: AtomicBool,
    /// What is made in it may get more than it is asked to have; once somebody has looked.
    pub hands_down: OnceLock<bool>,
    /// Names in it that differ in case are the same; once somebody has looked.
    pub folds: OnceLock<bool>,
    descriptor: Mutex<Option<Arc<OwnedFd>>>,
    /// One sync at a time: an error is told once, to whoever comes first.
    syncing: Mutex<()>,
    sync_failures: AtomicU64,
    /// Since the descriptor was last considered for closing.
    used: AtomicBool,
}

/// What is known of a new directory.
pub(crate) struct Found {
    /// Opened for reading.
    pub descriptor: OwnedFd,
    /// Of that descriptor.
    pub status: Status,
    /// This session made it.
    pub made: bool,
}

impl Directory {
    /// The root of a tree of directories: held for the whole session, its name is not ours.
    pub fn held(found: Found, record: RecordId, file_system: Arc<FileSystem>) -> Arc<Directory> {
        let directory = Directory::new(None, Box::default(), &found, record, file_system);
        directory.name_durable.store(true, Ordering::Relaxed);
        *lock(&directory.descriptor) = Some(Arc::new(found.descriptor));
        Arc::new(directory)
    }

    fn new(
        parent: Option<Arc<Directory>>,
        name: Box<[u8]>,
        found: &Found,
        record: RecordId,
        file_system: Arc<FileSystem>,
    ) -> Directory {
        Directory {
            depth: parent.as_ref().map_or(0, |parent| parent.depth + 1),
            parent,
            name,
            identity: (found.status.device, found.status.inode),
            made: found.made,
            record,
            file_system,
            name_durable: AtomicBool::new(false),
            name_lost: AtomicBool::new(false),
            hands_down: OnceLock::new(),
            folds: OnceLock::new(),
            descriptor: Mutex::new(None),
            syncing: Mutex::new(()),
            sync_failures: AtomicU64::new(0),
            used: AtomicBool::new(true),
        }
    }

    /// Syncs that have failed so far, those of the whole file system among them. If there are more once a name was synced than
    /// before it was made, it may be lost.
    pub fn sync_failures(&self) -> u64 {
        self.sync_failures.load(Ordering::Acquire) + self.file_system.errors()
    }

    /// Runs a sync of it; no other one runs meanwhile. That may be one which nobody waits for any more: then this one hangs
    /// as well, and so never takes that one's loss for its own success.
    pub fn sync<E>(&self, sync: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let _alone = lock(&self.syncing);
        let result = sync();
        if result.is_err() {
            self.sync_failures.fetch_add(1, Ordering::AcqRel);
        }
        result
    }

    fn open_descriptor(&self) -> Option<Arc<OwnedFd>> {
        let held = lock(&self.descriptor).clone();
        if held.is_some() {
            self.used.store(true, Ordering::Relaxed);
        }
        held
    }
}

impl Drop for Directory {
    /// A chain may be as deep as the deepest path; it must not be dropped by recursion.
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(mut directory) = next.and_then(Arc::into_inner) {
            next = directory.parent.take();
        }
    }
}

/// All directories that are not settled.
pub(crate) struct Directories {
    table: RwLock<HashMap<EntryId, Arc<Directory>>>,
    /// Those with a descriptor that may be closed, oldest first.
    open: Mutex<VecDeque<Weak<Directory>>>,
    open_max: usize,
}

impl Directories {
    /// At most `open_max` descriptors, besides those of held directories and those in use at the moment.
    pub fn new(open_max: usize) -> Self {
        Directories {
            table: RwLock::new(HashMap::new()),
            open: Mutex::new(VecDeque::new()),
            open_max: open_max.max(1),
        }
    }

    /// How many descriptors it keeps.
    pub fn open_max(&self) -> usize {
        self.open_max
    }

    /// The directory that the source calls `id`.
    pub fn get(&self, id: EntryId) -> Option<Arc<Directory>> {
        read(&self.table).get(&id).cloned()
    }

    /// There is room for one more.
    pub fn has_room(&self) -> bool {
        read(&self.table).len() < DIRECTORIES_OPEN_MAX
    }

    /// A directory was made or found below `parent`.
    pub fn add(
        &self,
        id: EntryId,
        parent: Arc<Directory>,
        name: &[u8],
        found: Found,
        record: RecordId,
        file_system: Arc<FileSystem>,
    ) {
        let directory = Arc::new(Directory::new(Some(parent), name.into(), &found, record, file_system));
        self.keep_open(&directory, Arc::new(found.descriptor));
        write(&self.table).insert(id, directory);
    }

    /// A directory that stays open.
    pub fn add_held(&self, id: EntryId, directory: Arc<Directory>) {
        write(&self.table).insert(id, directory);
    }

    /// Nothing more will happen in it.
    pub fn forget(&self, id: EntryId) {
        // Dropped outside the lock: closing may take a while.
        let forgotten = write(&self.table).remove(&id);
        drop(forgotten);
    }

    /// Its descriptor, opened again if need be.
    pub fn descriptor(&self, directory: &Arc<Directory>) -> Result<Arc<OwnedFd>, Failure> {
        if let Some(held) = directory.open_descriptor() {
            return Ok(held);
        }
        let opened = Arc::new(self.reopen(directory)?);
        self.keep_open(directory, Arc::clone(&opened));
        Ok(opened)
    }

    /// Runs `open`; again where descriptors have run out, without those of directories that are not in use.
    pub fn retry_without_cache<T>(&self, open: impl Fn() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
        local::when_descriptors_run_out(|| self.shed(), open)
    }

    fn shed(&self) {
        let mut open = lock(&self.open);
        let held = open.drain(..).filter_map(|owner| owner.upgrade());
        let closing: Vec<_> = held.map(|owner| lock(&owner.descriptor).take()).collect();
        drop(open);
        drop(closing);
    }

    /// Closes the descriptor of a directory whose sync failed: it must not be synced again.
    pub fn close(&self, directory: &Directory) {
        if directory.parent.is_some() {
            lock(&directory.descriptor).take();
        }
    }

    fn reopen(&self, directory: &Arc<Directory>) -> Result<OwnedFd, Failure> {
        let mut below = vec![Arc::clone(directory)];
        let mut base = loop {
            let last = &below[below.len() - 1];
            let Some(parent) = &last.parent else { return Err(Code::Internal.into()) };
            if let Some(held) = parent.open_descriptor() {
                break held;
            }
            let parent = Arc::clone(parent);
            below.push(parent);
        };
        let steps: Vec<&[u8]> = below.iter().rev().map(|directory| &*directory.name).collect();
        let mut taken = 0;
        loop {
            let open = || confine::open_some_directories(base.as_fd(), &steps[taken..]);
            let (descriptor, count) = self.retry_without_cache(open).map_err(reopen_failure)?;
            taken += count;
            let reached = &below[below.len() - taken];
            check_identity(&descriptor, reached.identity)?;
            if taken == below.len() {
                return Ok(descriptor);
            }
            base = Arc::new(descriptor);
        }
    }

    fn keep_open(&self, directory: &Arc<Directory>, descriptor: Arc<OwnedFd>) {
        let mut closing = None;
        {
            let mut open = lock(&self.open);
            // Second chance: one that was used since its last turn goes to the end instead. Each turn clears a mark,
            // so two rounds are enough.
            for _ in 0..2 * open.len() {
                if open.len() < self.open_max {
                    break;
                }
                let Some(candidate) = open.pop_front() else { break };
                let Some(owner) = candidate.upgrade() else { continue };
                if owner.used.swap(false, Ordering::Relaxed) {
                    open.push_back(candidate);
                } else {
                    closing = lock(&owner.descriptor).take();
                }
            }
            if lock(&directory.descriptor).replace(descriptor).is_none() {
                open.push_back(Arc::downgrade(directory));
            }
            directory.used.store(true, Ordering::Relaxed);
        }
        drop(closing);
    }
}

/// Fails unless `descriptor` is the directory that it was.
pub(crate) fn check_identity(descriptor: &OwnedFd, identity: (u64, u64)) -> Result<(), Failure> {
    let now = status(descriptor.as_fd()).map_err(sink_failure)?;
    match local::may_be(descriptor, (now.device, now.inode), identity) {
        true => Ok(()),
        false => Err(Code::SinkMoved.into()),
    }
}

/// A directory that was there does not open any more.
pub(crate) fn reopen_failure(errno: Errno) -> Failure {
    match errno {
        Errno::NOENT => Code::SinkMoved.into(),
        _ => sink_failure(errno),
    }
}
