//! The spill: a file without a name on fast storage of the source's host, for objects that the sink cannot take yet.
//!
//! [`Spilling`] stands before any [`SourceStorage`] and performs the two operations about the spill itself. Which part of
//! the file holds what is the master's business; nothing here remembers it, nothing is made durable, and with the process
//! the file is gone.
//!
//! The spill is believed nothing. What comes back is hashed, and the master compares. Where contents are not hashed
//! (`--hash none`) what is put away gets a mark, its XXH3, which the master keeps and gives back with the wish to read it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use haul_buffers::{FileRange, Pool};
use haul_model::op::{SourceDone, SourceOp};
use haul_model::{Code, Failure, Hash, HashKind, SlotId};
use rustix::fs::{self, AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};

use crate::hashing::{ObjectHasher, PIECE_BYTES, whole_hash};
use crate::page_cache::Latest;
use crate::source::hash_in_place;
use crate::{SourceStorage, faults, local};

/// The file grows by so much at a time: its parts lie together, and a full file system is noticed before it is written to.
const STEP_BYTES: u64 = 64 << 20;
/// Of what is free in the directory, unless somebody says how much.
const SHARE_OF_FREE: u64 = 2;

/// The file.
pub struct SpillFile {
    file: Arc<OwnedFd>,
    room: u64,
    /// Bytes that the file system has set aside; `None` if it does not do that.
    set_aside: Mutex<Option<u64>>,
    in_place: bool,
    hash: HashKind,
    /// It may be larger than all memory: it is not what others on this host have in the page cache that should go.
    latest: Latest,
}

impl SpillFile {
    /// In this directory; `room`: how large it may grow (half of what is free there, unless somebody says). `in_place`: the
    /// streams take bytes straight from files.
    pub fn create(directory: &Path, room: Option<u64>, in_place: bool) -> io::Result<SpillFile> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = fs::open(directory, flags, Mode::empty())?;
        let file = match fs::openat(&directory, ".", OFlags::TMPFILE | FILE_FLAGS, MODE) {
            // A file system that knows no files without names.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => with_a_name(&directory)?,
            other => other?,
        };
        let room = match room {
            Some(room) => room,
            None => {
                let free = fs::fstatvfs(&file)?;
                free.f_bavail.saturating_mul(free.f_frsize) / SHARE_OF_FREE
            }
        };
        // As for the files of a source: only where what was just written is in this kernel's cache.
        let in_place = in_place && local::is_known(&file).unwrap_or(false);
        Ok(SpillFile::over(file, room, in_place))
    }

    fn over(file: OwnedFd, room: u64, in_place: bool) -> SpillFile {
        SpillFile {
            file: Arc::new(file),
            room,
            set_aside: Mutex::new(Some(0)),
            in_place,
            hash: HashKind::default(),
            latest: Latest::default(),
        }
    }

    /// Contents are hashed so. Where they are not, streams take nothing from the file: what has gone from its end is sent as zeros.
    pub fn hashed(self, hash: HashKind) -> SpillFile {
        SpillFile { hash, in_place: self.in_place && hash != HashKind::None, ..self }
    }

    /// Bytes that it may take.
    pub fn room(&self) -> u64 {
        self.room
    }

    fn write(&self, pool: &Pool, slot: SlotId, at: u64, length: u32) -> Result<Option<Hash>, Failure> {
        let lease = pool.lease(slot).ok_or(Failure::new(Code::Internal))?;
        let bytes = lease.get(..length as usize).ok_or(Failure::new(Code::Internal))?;
        self.set_aside(at + u64::from(length)).map_err(failure)?;
        let mut written = 0;
        while written < bytes.len() {
            faults::spill_write().map_err(failure)?;
            let count = retry_on_intr(|| pwrite(&self.file, &bytes[written..], at + written as u64));
            match count.map_err(failure)? {
                0 => return Err(failure(Errno::NOSPC)),
                count => written += count,
            }
        }
        let mark = (self.hash == HashKind::None).then(|| mark_of(bytes));
        drop(lease);
        self.latest.written(&self.file, at, length);
        Ok(mark)
    }

    /// Room for all up to `end` is there, or it is an error.
    fn set_aside(&self, end: u64) -> Result<(), Errno> {
        let mut held = self.set_aside.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(before) = held.filter(|before| *before < end) else { return Ok(()) };
        let step = end.next_multiple_of(STEP_BYTES).min(self.room.max(end));
        let allocate =
            |end| retry_on_intr(|| fs::fallocate(&self.file, FallocateFlags::empty(), before, end - before));
        // Of the last step the beginning may still fit.
        let done = allocate(step).map(|()| step).or_else(|_| allocate(end).map(|()| end));
        match done {
            Ok(end) => *held = Some(end),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::SPIPE) => *held = None,
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    fn read(&self, pool: &Pool, slot: SlotId, at: u64, wanted: Wanted) -> Result<Hash, Failure> {
        let length = wanted.length;
        let result = self.read_and_hash(pool, slot, at, wanted);
        self.latest.read(&self.file, at, length);
        result
    }

    fn read_and_hash(&self, pool: &Pool, slot: SlotId, at: u64, wanted: Wanted) -> Result<Hash, Failure> {
        let Wanted { offset, length, single, mark } = wanted;
        let mut lease = pool.lease(slot).ok_or(Failure::new(Code::Internal))?;
        let new = || ObjectHasher::new(self.hash, offset, length, single);
        if lease.len() < length as usize {
            return Err(Code::Internal.into());
        }
        if self.in_place {
            let read = |at, piece: &mut [u8]| self.read_piece(at, piece);
            let hash = hash_in_place(&self.file, (at, length), PIECE_BYTES, new, read, || Ok(()))?;
            let (file, length) = (Arc::clone(&self.file), length as usize);
            lease.set_file_ranges(vec![FileRange { start: 0, length, file, offset: at, onlooker: None }]);
            return Ok(hash);
        }
        lease.set_file_ranges(Vec::new());
        let mut hasher = new()?;
        let mut from = at;
        for piece in lease[..length as usize].chunks_mut(PIECE_BYTES) {
            self.read_piece(from, piece)?;
            hasher.update(piece);
            from += piece.len() as u64;
        }
        if self.hash == HashKind::None && mark != Some(mark_of(&lease[..length as usize])) {
            return Err(Code::SpillFailed.into());
        }
        Ok(hasher.finish())
    }

    fn read_piece(&self, at: u64, piece: &mut [u8]) -> Result<(), Failure> {
        let mut filled = 0;
        while filled < piece.len() {
            faults::spill_read().map_err(failure)?;
            let count = retry_on_intr(|| pread(&self.file, &mut piece[filled..], at + filled as u64));
            match count.map_err(failure)? {
                0 => return Err(failure(Errno::IO)),
                count => filled += count,
            }
        }
        Ok(())
    }
}

const FILE_FLAGS: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A file that loses its name at once.
fn with_a_name(directory: &OwnedFd) -> io::Result<OwnedFd> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let name = format!(".haul-spill-{:032x}", u128::from_le_bytes(random));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | FILE_FLAGS;
    let file = fs::openat(directory, &name, flags, MODE)?;
    fs::unlinkat(directory, &name, AtFlags::empty())?;
    Ok(file)
}

fn failure(errno: Errno) -> Failure {
    Failure::os(Code::SpillFailed, errno.raw_os_error())
}

/// What bytes that are put away are known by.
fn mark_of(bytes: &[u8]) -> Hash {
    whole_hash(HashKind::Xxh3, bytes)
}

/// One object, as its hash needs it.
struct Wanted {
    offset: u64,
    length: u32,
    single: bool,
    mark: Option<Hash>,
}

/// A source with a spill beside it.
pub struct Spilling<S> {
    source: S,
    spill: SpillFile,
}

impl<S: SourceStorage> Spilling<S> {
    /// Everything else goes to `source`.
    pub fn new(source: S, spill: SpillFile) -> Self {
        Spilling { source, spill }
    }
}

impl<S: SourceStorage> SourceStorage for Spilling<S> {
    fn run(&self, op: SourceOp, pool: &Pool) -> Option<SourceDone> {
        match op {
            SourceOp::Spill { block, slot, at, length } => {
                Some(SourceDone::Spilled { block, result: self.spill.write(pool, slot, at, length) })
            }
            SourceOp::Unspill { block, slot, at, offset, length, single, mark } => {
                let result = self.spill.read(pool, slot, at, Wanted { offset, length, single, mark });
                Some(SourceDone::Object { block, result: result.map(Some) })
            }
            op => self.source.run(op, pool),
        }
    }
}

/// What a source without a spill answers: nobody who knows that it has none asks.
pub(crate) fn none(op: &SourceOp) -> Option<SourceDone> {
    let failure = Failure::new(Code::Internal);
    match op {
        SourceOp::Spill { block, .. } => Some(SourceDone::Spilled { block: *block, result: Err(failure) }),
        SourceOp::Unspill { block, .. } => Some(SourceDone::Object { block: *block, result: Err(failure) }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashing::object_hash;
    use haul_model::BlockId;

    const BLOCK: BlockId = BlockId(3);
    const SLOT: SlotId = SlotId(1);
    const UNIT: u64 = 64 << 10;

    /// There is no source: what is about the spill never gets there.
    struct Nothing;

    impl SourceStorage for Nothing {
        fn run(&self, _op: SourceOp, _pool: &Pool) -> Option<SourceDone> {
            None
        }
    }

    fn spilling(file: SpillFile) -> (Spilling<Nothing>, Arc<Pool>) {
        (Spilling::new(Nothing, file), Pool::new(3, 1 << 20).unwrap())
    }

    fn temporary(in_place: bool) -> SpillFile {
        SpillFile::create(&std::env::temp_dir(), Some(1 << 30), in_place).unwrap()
    }

    fn put(spill: &Spilling<Nothing>, pool: &Pool, at: u64, bytes: &[u8]) -> Result<Option<Hash>, Failure> {
        pool.lease(SLOT).unwrap()[..bytes.len()].copy_from_slice(bytes);
        let length = bytes.len() as u32;
        let op = SourceOp::Spill { block: BLOCK, slot: SLOT, at, length };
        let Some(SourceDone::Spilled { block: BLOCK, result }) = spill.run(op, pool) else {
            panic!("no answer")
        };
        pool.lease(SLOT).unwrap().fill(0xaa);
        result
    }

    fn get(spill: &Spilling<Nothing>, pool: &Pool, at: u64, wanted: Wanted) -> Result<Hash, Failure> {
        let Wanted { offset, length, single, mark } = wanted;
        let op = SourceOp::Unspill { block: BLOCK, slot: SlotId(2), at, offset, length, single, mark };
        let Some(SourceDone::Object { block: BLOCK, result }) = spill.run(op, pool) else {
            panic!("no answer")
        };
        result.map(|hash| hash.expect("it is hashed here"))
    }

    fn bytes(length: usize, seed: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 251 + seed) as u8).collect()
    }

    #[test]
    fn objects_come_back_as_they_were_put_with_the_hash_of_their_place_in_their_file() {
        for in_place in [false, true] {
            let (spill, pool) = spilling(temporary(in_place));
            let sizes = [1, 4095, 4096, 4097, 65_535, 65_536, 65_537, 1 << 20];
            for (number, size) in sizes.into_iter().enumerate() {
                put(&spill, &pool, number as u64 * 16 * UNIT, &bytes(size, number)).unwrap();
            }
            for (number, size) in sizes.into_iter().enumerate() {
                let at = number as u64 * 16 * UNIT;
                let (content, length) = (bytes(size, number), size as u32);
                for (offset, single) in [(0, true), (5 << 20, false)] {
                    let hash = get(&spill, &pool, at, Wanted { offset, length, single, mark: None }).unwrap();
                    assert_eq!(hash, object_hash(HashKind::Blake3, &content, offset, single));
                    let mut lease = pool.lease(SlotId(2)).unwrap();
                    let ranges = lease.take_file_ranges();
                    assert_eq!(ranges.len(), usize::from(spill.spill.in_place), "{size}");
                    match ranges.first() {
                        None => assert!(lease[..size] == content, "{size}"),
                        Some(range) => {
                            let mut found = vec![0; size];
                            pread(&range.file, &mut found, range.offset).unwrap();
                            assert!((range.start, range.length) == (0, size) && found == content);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn where_nothing_is_hashed_nothing_leaves_from_the_file() {
        let (spill, pool) = spilling(temporary(true).hashed(HashKind::None));
        let mark = put(&spill, &pool, 0, &bytes(4096, 1)).unwrap();
        // Of an object that was in the slot before and never sent.
        let range =
            FileRange { start: 0, length: 1, file: Arc::clone(&spill.spill.file), offset: 0, onlooker: None };
        pool.lease(SlotId(2)).unwrap().set_file_ranges(vec![range]);
        get(&spill, &pool, 0, Wanted { offset: 0, length: 4096, single: true, mark }).unwrap();
        let mut lease = pool.lease(SlotId(2)).unwrap();
        assert!(lease.take_file_ranges().is_empty() && lease[..4096] == bytes(4096, 1));
    }

    #[test]
    fn a_place_that_is_used_again_holds_what_was_put_there_last() {
        let (spill, pool) = spilling(temporary(false));
        for round in 0..5 {
            put(&spill, &pool, UNIT, &bytes(5000, round)).unwrap();
        }
        let wanted = Wanted { offset: 0, length: 5000, single: true, mark: None };
        let hash = get(&spill, &pool, UNIT, wanted).unwrap();
        assert_eq!(hash, object_hash(HashKind::Blake3, &bytes(5000, 4), 0, true));
    }

    #[test]
    fn bytes_that_changed_on_the_device_have_another_hash() {
        let (spill, pool) = spilling(temporary(false));
        put(&spill, &pool, 0, &bytes(70_000, 1)).unwrap();
        pwrite(&spill.spill.file, &[0x55, 0x66], 69_000).unwrap();
        let hash =
            get(&spill, &pool, 0, Wanted { offset: 0, length: 70_000, single: true, mark: None }).unwrap();
        assert_ne!(hash, object_hash(HashKind::Blake3, &bytes(70_000, 1), 0, true));
    }

    #[test]
    fn where_nothing_is_hashed_bytes_that_changed_on_the_device_are_noticed_too() {
        let (spill, pool) = spilling(temporary(false).hashed(HashKind::None));
        let mark = put(&spill, &pool, 0, &bytes(70_000, 1)).unwrap();
        let back = || get(&spill, &pool, 0, Wanted { offset: 0, length: 70_000, single: true, mark });
        assert_eq!(back(), Ok(Hash([0; 32])));
        pwrite(&spill.spill.file, &[0x55, 0x66], 69_000).unwrap();
        assert_eq!(back(), Err(Code::SpillFailed.into()));
    }

    #[test]
    fn a_device_that_is_full_says_so_and_what_it_has_lost_is_an_error() {
        let full = fs::open("/dev/full", FILE_FLAGS, Mode::empty()).unwrap();
        let (spill, pool) = spilling(SpillFile::over(full, 1 << 30, false));
        assert_eq!(put(&spill, &pool, 0, b"bytes"), Err(Failure::os(Code::SpillFailed, 28)));
        let (spill, pool) = spilling(temporary(false));
        put(&spill, &pool, 0, &bytes(70_000, 1)).unwrap();
        fs::ftruncate(&spill.spill.file, 69_999).unwrap();
        let lost = get(&spill, &pool, 0, Wanted { offset: 0, length: 70_000, single: true, mark: None });
        assert_eq!(lost, Err(Failure::os(Code::SpillFailed, 5)));
    }

    #[test]
    fn the_file_has_no_name_and_grows_in_steps_up_to_its_room() {
        let scratch = tempfile::tempdir().unwrap();
        let file = SpillFile::create(scratch.path(), Some(STEP_BYTES + UNIT), true).unwrap();
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
        let size = |spill: &SpillFile| fs::fstat(&spill.file).unwrap().st_size as u64;
        let (spill, pool) = spilling(file);
        put(&spill, &pool, 0, b"one").unwrap();
        assert_eq!(size(&spill.spill), STEP_BYTES);
        put(&spill, &pool, STEP_BYTES, b"other").unwrap();
        assert_eq!(size(&spill.spill), STEP_BYTES + UNIT, "no more than was said");
        let named =
            with_a_name(&fs::open(scratch.path(), OFlags::DIRECTORY, Mode::empty()).unwrap()).unwrap();
        assert_eq!(pwrite(&named, b"bytes", 0), Ok(5));
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error_and_room_follows_from_what_is_free() {
        let scratch = tempfile::tempdir().unwrap();
        let missing = scratch.path().join("missing");
        assert_eq!(SpillFile::create(&missing, None, false).err().unwrap().kind(), io::ErrorKind::NotFound);
        let room = SpillFile::create(scratch.path(), None, false).unwrap().room();
        let free = fs::statvfs(scratch.path()).unwrap();
        assert!(room > 0 && room <= free.f_blocks * free.f_frsize / 2);
    }
}
