//! Files that arrive in objects, in any order, from several threads, over several sessions.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use haul_buffers::{Lease, Pool};
use haul_model::error::Retry;
use haul_model::limits::GENTLE_PIECE_BYTES;
use haul_model::profile::Stage;
use haul_model::{Code, Entry, Failure, Hash, Kind, SlotId, Token};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::retry_on_intr;

use super::attributes::{Status, status};
use super::directories::Directory;
use super::hashes::Cut;
use super::prepare::open_whatever_its_mode;
use super::table::Hashes;
use super::{Contents, PosixSink, State, lock};
use crate::carry::write_all_at;
use crate::confine::{self, sink_failure};
use crate::engine::{Engines, Reach, Way};
use crate::hashing::is_object;
use crate::layout::{self, stripe::Plan};
use crate::page_cache::InUse;

/// One object, as it is to be written.
#[derive(Clone, Copy)]
pub(super) struct Object {
    pub object_bytes: u32,
    pub offset: u64,
    pub length: u32,
    pub hash: Hash,
    pub single: bool,
    /// In small pieces.
    pub gently: bool,
}

/// A file between its first byte and its final name.
pub(super) struct Unfinished {
    pub token: Token,
    /// Of each of its objects but the last.
    pub object_bytes: AtomicU32,
    pub entry: Arc<Entry>,
    pub directory: Arc<Directory>,
    open: Mutex<Open>,
    /// Where it is copied to and hashed from.
    pub in_use: InUse,
    /// Of its objects.
    pub hashes: Mutex<Hashes>,
    /// One change of the table at a time.
    pub table_changes: Mutex<()>,
    /// Its attributes are set and its root is known.
    pub sealed: AtomicBool,
    /// Its temporary name is durable.
    pub name_durable: AtomicBool,
    /// One sync at a time: an error is told once, to whoever comes first.
    pub syncing: Mutex<()>,
    losses: Losses,
    /// This session has made it, and each write has gone well: what was not written yet is a hole.
    is_sound: AtomicBool,
}

#[derive(Default)]
struct Open {
    contents: Option<Arc<OwnedFd>>,
    /// How engines get at its contents.
    reach: Option<Arc<Reach>>,
    /// Device and inode, once the file was made or found.
    identity: Option<(u64, u64)>,
    /// It is as long as it will be.
    has_length: bool,
}

/// Whether what was written since the last good sync may have been lost.
///
/// Failures are counted for the file and for its file system; their sum only grows. A write belongs to the sum that held
/// when it began. Once the sum has grown, every sync of the file fails until something is written anew: the master has
/// been told by then that all since the last good sync is lost.
struct Losses {
    /// Failed syncs of this file.
    failed: AtomicU64,
    /// The sum that what is not synced yet relies on.
    relies_on: AtomicU64,
    /// A failure was told; the next write begins anew.
    told: AtomicBool,
}

impl Unfinished {
    /// A file of this session; it is made by the first write.
    pub fn new(entry: &Arc<Entry>, token: Token, object_bytes: u32, directory: Arc<Directory>) -> Self {
        let failures = directory.file_system.errors();
        Unfinished {
            token,
            object_bytes: AtomicU32::new(object_bytes),
            entry: Arc::clone(entry),
            directory,
            open: Mutex::default(),
            in_use: InUse::default(),
            hashes: Mutex::default(),
            table_changes: Mutex::new(()),
            sealed: AtomicBool::new(false),
            name_durable: AtomicBool::new(false),
            syncing: Mutex::new(()),
            losses: Losses {
                failed: AtomicU64::new(0),
                relies_on: AtomicU64::new(failures),
                told: AtomicBool::new(false),
            },
            is_sound: AtomicBool::new(false),
        }
    }

    /// A file of an earlier session, which was checked.
    pub fn resumed(
        entry: &Arc<Entry>,
        token: Token,
        object_bytes: u32,
        directory: Arc<Directory>,
        present: &Status,
    ) -> Self {
        let file = Self::new(entry, token, object_bytes, directory);
        let mut open = lock(&file.open);
        (open.identity, open.has_length) = (Some((present.device, present.inode)), true);
        drop(open);
        lock(&file.hashes).has_table();
        file
    }

    /// Failures so far that concern this file.
    pub fn failures(&self) -> u64 {
        self.directory.file_system.errors() + self.losses.failed.load(Ordering::Acquire)
    }

    /// Something was written, or set, and `before` it there had been so many failures. False if there was one meanwhile: then
    /// it may be lost already.
    pub fn was_written(&self, before: u64) -> bool {
        if self.failures() != before {
            return false;
        }
        if self.losses.told.swap(false, Ordering::AcqRel) {
            self.losses.relies_on.store(before, Ordering::Release);
        }
        true
    }

    /// No sync has failed since what is not synced yet was written.
    pub fn holds(&self) -> bool {
        self.losses.relies_on.load(Ordering::Acquire) == self.failures()
    }

    /// Syncing this file failed.
    pub fn sync_failed(&self) {
        self.losses.failed.fetch_add(1, Ordering::AcqRel);
    }

    /// What was not synced is lost, and the master hears of it now. The descriptors are forgotten: on them the next
    /// sync would report success for what this one lost.
    pub fn lose(&self) {
        self.losses.told.store(true, Ordering::Release);
        self.is_sound.store(false, Ordering::Release);
        self.sealed.store(false, Ordering::Release);
        lock(&self.hashes).lose();
        self.close();
    }

    /// Closes its descriptors; they are opened again when needed.
    pub fn close(&self) {
        let mut open = lock(&self.open);
        (open.contents, open.reach) = (None, None);
        drop(open);
        lock(&self.hashes).close();
    }

    /// Whether this is its inode. Of one that was not made yet nothing can be told.
    pub fn is(&self, found: &Status) -> bool {
        lock(&self.open).identity.is_none_or(|known| known == (found.device, found.inode))
    }

    /// The descriptor of its contents, if it is open now.
    pub fn open_contents(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.open).contents.clone()
    }

    /// How engines get at its contents, which are open there.
    fn reach(&self, engines: &Engines, contents: &OwnedFd) -> Arc<Reach> {
        let mut open = lock(&self.open);
        let device = open.identity.map_or(0, |(device, _)| device);
        let reach = open.reach.get_or_insert_with(|| Arc::new(engines.reach(contents, device)));
        Arc::clone(reach)
    }

    /// How it is cut into objects.
    pub fn cut(&self) -> Cut {
        Cut { size: self.entry.size(), object_bytes: self.object_bytes.load(Ordering::Acquire) }
    }

    /// All of it was written before anything of it was synced: what is next is its final name.
    pub fn is_whole(&self) -> bool {
        lock(&self.hashes).is_whole(self.cut())
    }
}

impl PosixSink {
    pub(super) fn write_object(
        &self,
        entry: &Arc<Entry>,
        token: Token,
        object: Object,
        slot: SlotId,
        pool: &Pool,
    ) -> Result<(), Failure> {
        let cut = Cut::of(entry, object.object_bytes, self.object_bytes)?;
        let index = cut.index(object.offset, object.length, object.single)?;
        let mut lease = pool.lease(slot).ok_or(Code::Internal)?;
        let bytes = lease.get(..object.length as usize).ok_or(Code::Protocol)?;
        let borrowed = self.borrows(object.hash);
        if !borrowed && !is_object(self.hash, bytes, object.offset, object.single, object.hash) {
            return Err(Code::HashMismatch.into());
        }
        let file = self.unfinished(entry, token, object.object_bytes)?;
        // A second copy of an object that the root has vouched for: writing it would change the times.
        if file.sealed.load(Ordering::Acquire) {
            return Ok(());
        }
        let failures = file.failures();
        let contents = self.contents(&file)?;
        let write = || match self.contents {
            Contents::Written if borrowed => {
                let _in_use = file.in_use.from(object.offset);
                let is_hole = file.is_sound.load(Ordering::Acquire);
                self.borrow_object(entry, contents.as_fd(), object, is_hole)
            }
            Contents::Written => {
                let written = self.write_bytes(&file, &contents, object, (&mut lease, pool));
                written.map(|()| object.hash).map_err(sink_failure)
            }
            Contents::Discarded => Ok(object.hash),
        };
        let allowed = self.hooks.before_write().map_err(sink_failure);
        let written = allowed.and_then(|()| self.overwrite(&file, index, write));
        if let Err(failure) = written {
            file.is_sound.store(false, Ordering::Release);
            // NFS, and others that write behind one's back, may have told of what was written before, and once only: the next
            // sync would call good what is lost. File systems of this host tell that of a sync alone.
            let is_storages = failure.is_unwritten() || failure.code.retry() == Retry::Rerun;
            if is_storages && file.directory.file_system.writes_behind {
                file.sync_failed();
            }
            return Err(failure);
        }
        if file.was_written(failures) { Ok(()) } else { Err(Code::SinkSync.into()) }
    }

    /// Writes an object that may have been written before, with the same bytes or others: what is known of it is never of others
    /// than are there.
    fn overwrite(
        &self,
        file: &Unfinished,
        index: u64,
        write: impl FnOnce() -> Result<Hash, Failure>,
    ) -> Result<(), Failure> {
        let may_be_in_table = lock(&file.hashes).begin(index);
        let forgotten = if may_be_in_table { self.forget_hash(file, index) } else { Ok(()) };
        let written = forgotten.and_then(|()| write());
        lock(&file.hashes).end(index, written.ok());
        written.map(drop)
    }

    /// Writes the object, which is at the start of the slot.
    fn write_bytes(
        &self,
        file: &Unfinished,
        contents: &OwnedFd,
        object: Object,
        (lease, pool): (&mut Lease<'_>, &Pool),
    ) -> rustix::io::Result<()> {
        let Object { offset, length, gently, .. } = object;
        let reach = file.reach(&self.engines, contents);
        let to = (&*reach, contents);
        let mut attempt = self.engines.attempt(&reach, gently, || false);
        let bytes = length as usize;
        let mut done = 0;
        if attempt.way() != Way::USUAL {
            done = attempt.write(to, offset, bytes, (lease, pool), file.entry.size())?;
        }
        let piece = if gently { GENTLE_PIECE_BYTES } else { bytes.max(1) };
        let mut at = offset + done as u64;
        for piece in lease[done..bytes].chunks(piece) {
            write_all_at(contents, piece, at)?;
            at += piece.len() as u64;
        }
        attempt.await_device(to, offset, length.into());
        attempt.done(length.into());
        Ok(())
    }

    /// The unfinished file `token` of `entry`, new if this is the first that is heard of it.
    pub(super) fn unfinished(
        &self,
        entry: &Arc<Entry>,
        token: Token,
        object_bytes: u32,
    ) -> Result<Arc<Unfinished>, Failure> {
        if let Some(State::Unfinished(file)) = lock(&self.states).get(&entry.id)
            && file.token == token
        {
            return Ok(Arc::clone(file));
        }
        // Only names that this session chose are made; those of earlier ones were claimed before.
        if entry.kind != Kind::File || !self.tokens.is_of_session(token) {
            return Err(Code::Internal.into());
        }
        let (directory, _) = self.locate(entry)?;
        let new = Arc::new(Unfinished::new(entry, token, object_bytes, directory));
        let mut states = lock(&self.states);
        // Another thread may have been first.
        if let Some(State::Unfinished(file)) = states.get(&entry.id)
            && file.token == token
        {
            return Ok(Arc::clone(file));
        }
        let earlier = states.insert(entry.id, State::Unfinished(Arc::clone(&new)));
        drop(states);
        if let Some(earlier) = earlier {
            self.remove_state(earlier);
        }
        Ok(new)
    }

    /// The descriptor of its contents: made by the first call, opened again after a failed sync or a restart.
    pub(super) fn contents(&self, file: &Unfinished) -> Result<Arc<OwnedFd>, Failure> {
        Ok(self.contents_striped(file, None)?.0)
    }

    /// The same; if it is made now, it is to be striped like this. What came of that is told.
    pub(super) fn contents_striped(
        &self,
        file: &Unfinished,
        plan: Option<&Plan>,
    ) -> Result<(Arc<OwnedFd>, Option<layout::Outcome>), Failure> {
        let mut open = file.open.try_lock().unwrap_or_else(|_| {
            // Another thread makes it: waiting for that is no writing.
            let _create = haul_meter::awaits(Stage::Create);
            lock(&file.open)
        });
        if let Some(contents) = &open.contents {
            return Ok((Arc::clone(contents), None));
        }
        let _create = haul_meter::within(Stage::Create);
        let mut outcome = None;
        let held = self.directories.descriptor(&file.directory)?;
        let name = self.temporary_name(&file.entry, &file.directory, file.token);
        let opened = match open.identity {
            None => match plan {
                // Striped otherwise is better than not there.
                Some(plan) => {
                    let create = || layout::create(held.as_fd(), name.as_bytes(), PRIVATE, plan);
                    let (made, came_of_it) =
                        self.directories.retry_without_cache(create).map_err(sink_failure)?;
                    outcome = Some(came_of_it);
                    made
                }
                None => {
                    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
                    let create = || confine::open_beneath(held.as_fd(), name.as_bytes(), flags, PRIVATE);
                    self.directories.retry_without_cache(create).map_err(sink_failure)?
                }
            },
            Some(_) => {
                let flags = OFlags::RDWR | OFlags::NONBLOCK;
                let open = || open_whatever_its_mode(held.as_fd(), name.as_bytes(), flags);
                self.directories.retry_without_cache(open).map_err(sink_failure)?
            }
        };
        let now = status(opened.as_fd()).map_err(sink_failure)?;
        let identity = (now.device, now.inode);
        // Somebody has replaced it, or has given it a second name.
        if open.identity.is_some_and(|known| known != identity) || now.links != 1 {
            return Err(Code::SinkWrite.into());
        }
        open.identity = Some(identity);
        if !open.has_length {
            // Before anything is written it has its whole length: one that is shorter later was cut off. And a file system may let
            // only one write at a time extend a file, so that a slow target would hold up the others.
            retry_on_intr(|| fs::ftruncate(&opened, file.entry.size())).map_err(sink_failure)?;
            open.has_length = true;
            file.is_sound.store(true, Ordering::Release);
        }
        let opened = Arc::new(opened);
        open.contents = Some(Arc::clone(&opened));
        Ok((opened, outcome))
    }
}

/// Until it is complete, nobody else may read it.
pub(super) const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);
