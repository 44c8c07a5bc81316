//! The source master's operations on a file system.
//!
//! Called by the I/O threads, several at once. What they share is the table of directories and the table of open
//! files, each locked for a look-up and never during a system call that may wait.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use haul_buffers::{FileRange, Onlooker, Pool};
use haul_model::op::{SourceDone, SourceOp};
use haul_model::{Code, Entry, Failure, Hash, HashKind, Kind, SlotId};
use rustix::fs::{Advice, fadvise};
use rustix::io::retry_on_intr;

use super::Root;
use super::directories::Directories;
use super::early::{EarlyHashes, HashingEarly};
use super::files::{Noatime, OpenFile, OpenFiles, check_version, open_regular};
use super::members::{MemberReader, Staying, ends_as_it_says, pack};
use super::objects::{Wanted, hash_object, read_object};
use super::status::{self, Status, link_target};
use crate::confine::source_failure;
use crate::engine::{Direction, Engines, Way, Wish};
use crate::hashing::ObjectHasher;
use crate::leases::Leases;
use crate::local::Budget;
use crate::scan::PosixScan;
use crate::{SourceStorage, faults, local, page_cache, spill};

/// Above so many ranges of files in slots, members of bundles are copied: each of them keeps a file open.
const MEMBERS_IN_PLACE_MAX: usize = 256;

/// A range of a file is left there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stays {
    /// It was hashed before anybody asked for it.
    HashedEarly(Hash),
    /// It is hashed here.
    Hashed,
    /// Whoever sends it hashes it.
    HashedOnTheWay,
    /// Nobody does.
    Unhashed,
}

/// How a source is read.
#[derive(Clone, Copy, Debug)]
pub struct SourceOptions {
    /// Directories are copied (`-r`). Without it a directory is an error and a SOURCE that is a symlink is followed,
    /// as `cp` does.
    pub recursive: bool,
    /// How contents are hashed.
    pub hash: HashKind,
    /// Descriptors kept open for directories, besides the few of the scan.
    pub directory_descriptors_max: usize,
    /// The streams take bytes straight from files: objects are hashed here, where they are, and their slots stand for the
    /// range. Only where the page cache is the file's own and local, so that what was just read is still there. What cannot be
    /// read any more is told to the sink in place of the bytes; what has gone from the end of the file is zeros.
    pub in_place: bool,
    /// Members of bundles stay in their files from this size on, where they may: below it, what is looked up before costs as much
    /// as it saves.
    pub in_place_member_bytes_min: usize,
    /// The sink is in this process and takes what it is lent ([`Lender`](super::Lender)): of files on known local file systems
    /// nothing is read here, but for what is asked for again.
    pub lend: bool,
}

impl Default for SourceOptions {
    fn default() -> Self {
        SourceOptions {
            recursive: true,
            hash: HashKind::default(),
            directory_descriptors_max: 1024,
            in_place: false,
            in_place_member_bytes_min: 256 << 10,
            lend: false,
        }
    }
}

/// Reads datasets from a POSIX file system.
pub struct PosixSource {
    pub(super) directories: Arc<Directories>,
    pub(super) files: OpenFiles,
    pub(super) noatime: Noatime,
    recursive: bool,
    pub(super) hash: HashKind,
    /// Streams take bytes straight from files.
    in_place: bool,
    /// Something could not be read that had been left in its file, and that nobody hashes.
    read_in_vain: AtomicBool,
    in_place_member_bytes_min: usize,
    lend: bool,
    /// Hashes that were made before there was another end.
    early: OnceLock<Arc<EarlyHashes>>,
    engines: Arc<Engines>,
}

impl PosixSource {
    /// The SOURCEs in the order of the command line.
    pub fn new(roots: Vec<Root>, options: SourceOptions) -> Self {
        let engines = Engines::new(Direction::Read, Wish::default());
        PosixSource::with_engines(roots, options, Arc::new(engines))
    }

    /// With these engines.
    pub fn with_engines(roots: Vec<Root>, options: SourceOptions, engines: Arc<Engines>) -> Self {
        // As at the sink: the same process may be both.
        let descriptors = Budget::of_this_process().directories.min(options.directory_descriptors_max);
        let directories = Directories::new(roots, !options.recursive, descriptors);
        PosixSource {
            directories: Arc::new(directories),
            files: OpenFiles::default(),
            noatime: Noatime::new(),
            recursive: options.recursive,
            hash: options.hash,
            in_place: options.in_place && !faults::changes_source_bytes(),
            read_in_vain: AtomicBool::new(false),
            in_place_member_bytes_min: options.in_place_member_bytes_min,
            lend: options.lend && !faults::changes_source_bytes(),
            early: OnceLock::new(),
            engines,
        }
    }

    /// What reads the objects of its files.
    pub fn engines(&self) -> &Arc<Engines> {
        &self.engines
    }

    /// How errors name the SOURCEs, where that was not known before.
    pub fn name_roots(&self, labels: &[Box<[u8]>]) {
        for (index, label) in (0..).zip(labels) {
            if let Some(root) = self.directories.root(index) {
                root.set_label(label);
            }
        }
    }

    /// Walks the SOURCEs. `ids` is the next free entry id, 1 in a new session.
    ///
    /// Operations are answered only for entries that a scan of this very source has found.
    pub fn scan(&self, ids: Arc<AtomicU64>) -> PosixScan {
        PosixScan::new(Arc::clone(&self.directories), self.recursive, ids)
    }

    /// Files in memory, which a scan of this source finds, can be hashed as objects of this size before there is a sink, within
    /// this time.
    pub fn hash_early(&self, object_bytes: u32, within: Duration) -> Option<HashingEarly> {
        let late = faults::changes_source_bytes() || faults::hashes_late();
        if self.hash == HashKind::None || self.lend || late {
            return None;
        }
        let new = || EarlyHashes::new(Arc::clone(&self.directories), self.hash, object_bytes, within);
        Some(HashingEarly::new(Arc::clone(self.early.get_or_init(|| Arc::new(new())))))
    }

    fn read_object(
        &self,
        entry: &Entry,
        wanted: Wanted,
        (again, on_the_way): (bool, bool),
        slot: SlotId,
        pool: &Pool,
    ) -> Result<Option<Hash>, Failure> {
        let Wanted { offset, length, single, gently } = wanted;
        let file = match self.files.get(entry) {
            Some(file) => file,
            None => self.open(entry)?,
        };
        if file.lent && !again {
            return self.lend_object(length, slot, pool).map(Some);
        }
        let mut lease = pool.lease(slot).ok_or(Failure::new(Code::Internal))?;
        lease.set_lent(false);
        let usual = again || gently || file.sparse;
        let mut attempt = self.engines.attempt(&file.reach, usual, || file.is_cached(offset, length));
        // Bytes that did not arrive as they were hashed go through the slot: a file may change and show no trace of it.
        let early = self.early.get().filter(|_| !again);
        let early = early.and_then(|early| early.take(entry, offset, length, single));
        let stays = match attempt.way() {
            Way::USUAL if !again => self.stays(&file, wanted, (early, on_the_way)),
            _ => None,
        };
        if let Some(stays) = stays {
            // Where streams need a copy after all, it goes there.
            if lease.len() < length as usize {
                return Err(Code::Internal.into());
            }
            let mut onlooker = None;
            let hash = match stays {
                Stays::HashedEarly(hash) => Some(hash),
                Stays::HashedOnTheWay => {
                    faults::source_read().map_err(source_failure)?;
                    let hasher = ObjectHasher::new(self.hash, offset, length, single)?;
                    onlooker = Some(Box::new(hasher) as Box<dyn Onlooker>);
                    None
                }
                Stays::Hashed | Stays::Unhashed => Some(hash_object(self.hash, &file.descriptor, wanted)?),
            };
            if stays == Stays::Hashed {
                attempt.done(length.into());
            }
            file.was_read(offset, length);
            let (file, length) = (Arc::clone(&file.descriptor), length as usize);
            lease.set_file_ranges(vec![FileRange { start: 0, length, file, offset, onlooker }]);
            return Ok(hash);
        }
        lease.set_file_ranges(Vec::new());
        if again {
            // A change that does show is named for what it is.
            check_version(&file.descriptor, &entry.identity)?;
        }
        let kind = if early.is_some() { HashKind::None } else { self.hash };
        let read = read_object(kind, &file, wanted, &mut attempt, (&mut lease, pool));
        if again && read.is_err() {
            self.read_in_vain.store(true, Ordering::Relaxed);
        }
        let hash = read?;
        attempt.done(length.into());
        file.was_read(offset, length);
        Ok(Some(early.unwrap_or(hash)))
    }

    /// Whether this range can be left to a stream, and how. Where nobody has looked at it before, it must be in memory, as
    /// streams do not wait for storage, and nothing may have failed before, as a connection is lost with each range that does.
    fn stays(
        &self,
        file: &OpenFile,
        wanted: Wanted,
        (early, on_the_way): (Option<Hash>, bool),
    ) -> Option<Stays> {
        let unseen = self.hash == HashKind::None || on_the_way || early.is_some();
        if !file.known || !(self.in_place || on_the_way) {
            return None;
        }
        let readable = || {
            let in_memory = page_cache::holds_all_of(&file.descriptor, wanted.offset, wanted.length);
            in_memory && !self.read_in_vain.load(Ordering::Relaxed)
        };
        if unseen && readable() {
            let late = if self.hash == HashKind::None { Stays::Unhashed } else { Stays::HashedOnTheWay };
            return Some(early.map_or(late, Stays::HashedEarly));
        }
        (self.in_place && self.hash != HashKind::None).then_some(Stays::Hashed)
    }

    /// Which members of a bundle may stay in their files.
    fn members_staying(&self, (again, on_the_way): (bool, bool), pool: &Pool) -> Staying {
        let room = pool.file_ranges_held() < MEMBERS_IN_PLACE_MAX;
        if again || !room || self.hash == HashKind::None || faults::changes_source_bytes() {
            return Staying::default();
        }
        let on_the_way = on_the_way && !self.read_in_vain.load(Ordering::Relaxed);
        Staying {
            hashed: self.in_place.then_some(self.in_place_member_bytes_min),
            hashed_on_the_way: on_the_way.then_some(self.in_place_member_bytes_min),
        }
    }

    fn open(&self, entry: &Entry) -> Result<Arc<OpenFile>, Failure> {
        let location = self.directories.locate(entry)?;
        let (descriptor, status) =
            open_regular(&self.directories, &location, &self.noatime, entry, Leases::Awaited)?;
        // Objects come roughly in order; the larger read-ahead keeps a disk busy. Best effort.
        let _ = fadvise(&descriptor, 0, None, Advice::Sequential);
        let as_it_is = !faults::changes_source_bytes();
        let known = as_it_is && local::is_known(&descriptor).unwrap_or(false);
        let lent = self.lend && as_it_is && local::may_be_lent(&descriptor).unwrap_or(false);
        let reach = self.engines.reach(&descriptor, status.place().device);
        let mut file = OpenFile::new(entry, descriptor, reach);
        (file.known, file.lent, file.sparse) = (known, lent, status.has_holes());
        Ok(self.files.keep(file, entry.id))
    }

    fn confirm(&self, entry: &Entry) -> Result<(), Failure> {
        faults::hang("HAUL_TEST_SOURCE_LOOK_HANGS", &entry.name);
        if let Some(file) = self.files.get(entry) {
            if file.known {
                return check_version(&file.descriptor, &entry.identity).map(drop);
            }
            status::refresh(&file.descriptor);
            check_version(&file.descriptor, &entry.identity)?;
            return ends_as_it_says(&file.descriptor, &entry.identity);
        }
        // Nothing was read in this session: the log proved every object, so the name is all there is to ask, of its server.
        let location = self.directories.locate(entry)?;
        status::refresh_name(location.directory(), location.name, location.follow);
        let now = self.look(entry)?;
        if now.kind() == Kind::File && entry.identity.is_still(&now.identity()) {
            Ok(())
        } else {
            Err(Code::SourceChanged.into())
        }
    }

    fn restat(&self, entry: &Entry) -> Result<Box<Entry>, Failure> {
        let status = self.look(entry)?;
        let mut now = status.entry(entry.id, entry.parent, &entry.name)?;
        if entry.identity.inode == 0 {
            now.identity.inode = 0;
        }
        if now.kind == Kind::Symlink {
            let location = self.directories.locate(entry)?;
            now.link_target = link_target(location.directory(), location.name)?;
        }
        Ok(Box::new(now))
    }

    fn look(&self, entry: &Entry) -> Result<Status, Failure> {
        let location = self.directories.locate(entry)?;
        retry_on_intr(|| Status::of_name(location.directory(), location.name, location.follow))
            .map_err(source_failure)
    }
}

impl SourceStorage for PosixSource {
    fn run(&self, op: SourceOp, pool: &Pool) -> Option<SourceDone> {
        match op {
            SourceOp::ReadObject {
                block,
                entry,
                offset,
                length,
                slot,
                single,
                again,
                on_the_way,
                gently,
            } => {
                let wanted = Wanted { offset, length, single, gently };
                let result = self.read_object(&entry, wanted, (again, on_the_way), slot, pool);
                Some(SourceDone::Object { block, result })
            }
            SourceOp::ReadMembers { block, slot, members, again, on_the_way, progress } => {
                if self.lend
                    && !again
                    && let Some((length, results)) = self.lend_members(slot, &members, pool)
                {
                    return Some(SourceDone::Members { block, length, results });
                }
                let staying = self.members_staying((again, on_the_way), pool);
                let mut reader = MemberReader::new(&self.directories, &self.noatime, self.hash, staying);
                if !again {
                    reader = reader.with_early(self.early.get().map(|early| &**early));
                }
                let (length, results) =
                    pack(pool, (slot, self.hash), (&members, &progress), |entry, space| {
                        reader.read(entry, space)
                    });
                if again
                    && results
                        .iter()
                        .any(|result| result.is_err_and(|failure| failure.code == Code::SourceRead))
                {
                    self.read_in_vain.store(true, Ordering::Relaxed);
                }
                Some(SourceDone::Members { block, length, results })
            }
            SourceOp::Confirm { entry } => {
                Some(SourceDone::Confirmed { id: entry.id, result: self.confirm(&entry) })
            }
            SourceOp::Restat { entry } => {
                Some(SourceDone::Restated { id: entry.id, result: self.restat(&entry) })
            }
            op @ (SourceOp::Spill { .. } | SourceOp::Unspill { .. }) => spill::none(&op),
            SourceOp::Release { id } => {
                self.files.release(id);
                None
            }
            SourceOp::Forget { id } => {
                self.directories.forget(id);
                None
            }
        }
    }
}
