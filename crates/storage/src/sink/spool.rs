//! Attributes of directories wait here until everything below them is done.
//!
//! A file without a name in the state directory: records are appended as directories are announced, parents first, and
//! read backwards at the end, so that children come before their parents. Memory does not grow with the number of
//! directories, except where the file takes no more: then records stay in memory, up to a bound, until it does. Beyond it those that come are
//! lost, with what is below them; all before have their parents. A session that is killed leaves nothing behind; the next one hears of all
//! directories again.
//!
//! A record is: its length (4 bytes), parent record (8), device (8), inode (8), flags (1), mode, uid, gid (4 each),
//! mtime and atime (8 seconds, 4 nanoseconds each), the name, and its length again, which is what makes reading
//! backwards possible. Little endian; the length counts everything but the two lengths.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use haul_model::limits::NAME_BYTES_MAX;
use haul_model::{Attributes, Timestamp};
use rustix::fs::{self, AtFlags, CWD, Mode, OFlags};
use rustix::io::{Errno, Result};

use super::lock;
use super::tokens::{TempName, TokenMaker};

/// Where a record starts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RecordId(u64);

impl RecordId {
    /// The directory that holds the destination. It has no record: its attributes are not ours.
    pub const HOLDER: RecordId = RecordId(u64::MAX);
    /// There was no room for the record.
    const LOST: RecordId = RecordId(u64::MAX - 1);
}

/// One directory, to be finished.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// Of the directory that holds it.
    pub parent: RecordId,
    /// In its parent; empty for the held destination itself.
    pub name: Box<[u8]>,
    /// Device and inode.
    pub identity: (u64, u64),
    /// This session made it.
    pub made: bool,
    /// To be set.
    pub attributes: Attributes,
}

impl Record {
    /// Of the held destination, where it was not changed.
    pub const MODE_STAYS: u32 = u32::MAX;

    /// The held destination itself.
    pub fn is_holder(&self) -> bool {
        self.parent == RecordId::HOLDER && self.name.is_empty()
    }
}

const LENGTH_BYTES: u64 = 4;
const FIXED_BYTES: usize = 8 + 8 + 8 + 1 + 4 + 4 + 4 + 12 + 12;
const BLOCK_BYTES: usize = 64 << 10;
const RECORD_BYTES_MAX: u64 = 2 * LENGTH_BYTES + (FIXED_BYTES + NAME_BYTES_MAX) as u64;
/// Of records that the file does not take: 50,000 to 200,000 directories. More are lost.
const PENDING_BYTES_MAX: usize = 16 << 20;
/// Whether the file takes some again is tried when so many more are lost.
const TRIED_EVERY: u64 = 256;

/// The records of one session.
pub(crate) struct Spool {
    file: File,
    tail: Mutex<Tail>,
}

#[derive(Default)]
struct Tail {
    /// Whole records that are not in the file, behind those that are.
    pending: Vec<u8>,
    /// Bytes that are in the file.
    written: u64,
    /// The file did not take them when there were so many, for this reason.
    refused: usize,
    why: Option<Errno>,
    /// So many had no place.
    lost: u64,
}

impl Spool {
    /// An empty one in `directory`, which must exist.
    pub fn create(directory: &Path, tokens: &TokenMaker) -> Result<Spool> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let opened = match fs::openat(CWD, directory, flags | OFlags::TMPFILE, mode) {
            Ok(file) => file,
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => {
                let held = fs::openat(CWD, directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
                let name = TempName::contents(tokens.make());
                let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                let file = fs::openat(&held, name.as_c_str(), flags, mode)?;
                fs::unlinkat(&held, name.as_c_str(), AtFlags::empty())?;
                file
            }
            Err(errno) => return Err(errno),
        };
        Ok(Spool { file: File::from(opened), tail: Mutex::new(Tail::default()) })
    }

    /// Adds a record. That it was lost is told at the end: the directory itself is usable.
    pub fn append(&self, record: &Record) -> RecordId {
        let mut tail = lock(&self.tail);
        if tail.pending.len() >= PENDING_BYTES_MAX && tail.lost.is_multiple_of(TRIED_EVERY) {
            self.flush(&mut tail);
        }
        if tail.pending.len() >= PENDING_BYTES_MAX || record.parent == RecordId::LOST {
            tail.lost += 1;
            return RecordId::LOST;
        }
        let id = RecordId(tail.written + tail.pending.len() as u64);
        encode(record, &mut tail.pending);
        if tail.pending.len() >= tail.refused + BLOCK_BYTES {
            self.flush(&mut tail);
        }
        id
    }

    fn flush(&self, tail: &mut Tail) {
        match self.file.write_all_at(&tail.pending, tail.written) {
            Ok(()) => {
                tail.written += tail.pending.len() as u64;
                tail.refused = 0;
                tail.pending.clear();
                tail.pending.shrink_to(2 * BLOCK_BYTES);
            }
            // There may be room later, and more of it is not needed before the end.
            Err(error) => {
                tail.refused = tail.pending.len();
                tail.why = Some(Errno::from_io_error(&error).unwrap_or(Errno::IO));
            }
        }
    }

    /// All that are not lost, last first.
    pub fn finish(&self) -> Backwards<'_> {
        let tail = lock(&self.tail);
        let end = tail.written + tail.pending.len() as u64;
        Backwards { spool: self, end, block: tail.pending.clone(), start: tail.written }
    }

    /// How many are lost, and why, if any are.
    pub fn lost(&self) -> Option<(u64, Errno)> {
        let tail = lock(&self.tail);
        (tail.lost > 0).then(|| (tail.lost, tail.why.unwrap_or(Errno::IO)))
    }

    /// Looks records up by their id.
    pub fn lookup(&self) -> Lookup<'_> {
        Lookup { spool: self, block: Vec::new(), start: 0 }
    }

    fn read_exact(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let read = self.file.read_exact_at(buffer, offset);
        read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

/// Single records. A chain of parents, each written shortly before its child, costs few reads.
pub(crate) struct Lookup<'a> {
    spool: &'a Spool,
    /// Bytes of the file from `start` on.
    block: Vec<u8>,
    start: u64,
}

impl Lookup<'_> {
    /// One record.
    pub fn get(&mut self, id: RecordId) -> Result<Record> {
        if let Some(found) = self.find(id) {
            return Ok(found);
        }
        let tail = lock(&self.spool.tail);
        let written = tail.written;
        if id.0 >= written {
            return record_at(&tail.pending, written, id).ok_or(Errno::IO);
        }
        drop(tail);
        let end = id.0.saturating_add(RECORD_BYTES_MAX).min(written);
        self.start = end.saturating_sub(BLOCK_BYTES as u64);
        self.block.resize((end - self.start) as usize, 0);
        self.spool.read_exact(&mut self.block, self.start)?;
        self.find(id).ok_or(Errno::IO)
    }

    fn find(&self, id: RecordId) -> Option<Record> {
        record_at(&self.block, self.start, id)
    }
}

/// One of those that begin at `start`.
fn record_at(bytes: &[u8], start: u64, id: RecordId) -> Option<Record> {
    let bytes = bytes.get(usize::try_from(id.0.checked_sub(start)?).ok()?..)?;
    let (length, bytes) = bytes.split_first_chunk()?;
    decode(bytes.get(..u32::from_le_bytes(*length) as usize)?)
}

/// The records, last first. Ends after the first error.
pub(crate) struct Backwards<'a> {
    spool: &'a Spool,
    /// Behind the next record.
    end: u64,
    /// Bytes from `start` on: first those that are not in the file, then of the file.
    block: Vec<u8>,
    start: u64,
}

impl Backwards<'_> {
    /// The `count` bytes that end at `end`.
    fn tail(&mut self, end: u64, count: u64) -> Result<&[u8]> {
        let from = end.checked_sub(count).ok_or(Errno::IO)?;
        if from < self.start || end > self.start + self.block.len() as u64 {
            self.start = end.saturating_sub(BLOCK_BYTES as u64).min(from);
            self.block.resize((end - self.start) as usize, 0);
            self.spool.read_exact(&mut self.block, self.start)?;
        }
        Ok(&self.block[(from - self.start) as usize..(end - self.start) as usize])
    }

    fn step(&mut self) -> Result<(RecordId, Record)> {
        let length = self.tail(self.end, LENGTH_BYTES)?;
        let length = u32::from_le_bytes(length.try_into().map_err(|_| Errno::IO)?);
        if length as usize > BLOCK_BYTES - 2 * LENGTH_BYTES as usize {
            return Err(Errno::IO);
        }
        let whole = u64::from(length) + 2 * LENGTH_BYTES;
        let end = self.end;
        let bytes = self.tail(end, whole)?;
        let record = decode(&bytes[LENGTH_BYTES as usize..][..length as usize]).ok_or(Errno::IO)?;
        self.end = end - whole;
        if record.parent != RecordId::HOLDER && record.parent.0 >= self.end {
            return Err(Errno::IO);
        }
        Ok((RecordId(self.end), record))
    }
}

impl Iterator for Backwards<'_> {
    type Item = Result<(RecordId, Record)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.end == 0 {
            return None;
        }
        let step = self.step();
        Some(step.inspect_err(|_| self.end = 0))
    }
}

fn encode(record: &Record, out: &mut Vec<u8>) {
    let length = ((FIXED_BYTES + record.name.len()) as u32).to_le_bytes();
    let wanted = &record.attributes;
    out.extend_from_slice(&length);
    for number in [record.parent.0, record.identity.0, record.identity.1] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.push(u8::from(record.made));
    for number in [wanted.mode, wanted.uid, wanted.gid] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    for time in [wanted.mtime, wanted.atime] {
        out.extend_from_slice(&time.seconds.to_le_bytes());
        out.extend_from_slice(&time.nanos.to_le_bytes());
    }
    out.extend_from_slice(&record.name);
    out.extend_from_slice(&length);
}

fn decode(bytes: &[u8]) -> Option<Record> {
    let mut rest = bytes;
    let mut take = |count: usize| {
        let (head, tail) = rest.split_at_checked(count)?;
        rest = tail;
        Some(head)
    };
    let mut long = || Some(u64::from_le_bytes(take(8)?.try_into().ok()?));
    let (parent, device, inode) = (RecordId(long()?), long()?, long()?);
    let made = take(1)?[0] != 0;
    let mut short = || Some(u32::from_le_bytes(take(4)?.try_into().ok()?));
    let (mode, uid, gid) = (short()?, short()?, short()?);
    let mut time = || {
        let seconds = i64::from_le_bytes(take(8)?.try_into().ok()?);
        Some(Timestamp { seconds, nanos: u32::from_le_bytes(take(4)?.try_into().ok()?) })
    };
    let (mtime, atime) = (time()?, time()?);
    let attributes = Attributes { mode, uid, gid, mtime, atime };
    Some(Record { parent, name: rest.into(), identity: (device, inode), made, attributes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(parent: RecordId, number: u64) -> Record {
        let time = Timestamp { seconds: -(number as i64), nanos: number as u32 };
        let attributes = Attributes {
            mode: 0o755,
            uid: 7,
            gid: 9,
            mtime: time,
            atime: Timestamp { seconds: 1, nanos: 2 },
        };
        let name = vec![b'a' + (number % 26) as u8; (number % 1025) as usize].into();
        Record { parent, name, identity: (3, number), made: number.is_multiple_of(2), attributes }
    }

    #[test]
    fn records_come_back_last_first_and_by_their_id() {
        let scratch = tempfile::tempdir().unwrap();
        let spool = Spool::create(scratch.path(), &TokenMaker::new([0; 6], [0; 4])).unwrap();
        assert!(spool.finish().next().is_none());
        let mut ids = vec![RecordId::HOLDER];
        for number in 0..3000 {
            ids.push(spool.append(&record(ids[(number / 2) as usize], number)));
        }
        let mut expected = (0..3000).rev();
        for (step, number) in spool.finish().zip(&mut expected) {
            let (id, read) = step.unwrap();
            assert_eq!((id, &read), (ids[number as usize + 1], &record(ids[(number / 2) as usize], number)));
            assert_eq!(spool.lookup().get(id).unwrap(), read);
        }
        assert_eq!(expected.next(), None, "every record was read");
        let mut lookup = spool.lookup();
        for number in (0..3000).rev().chain((0..3000).step_by(700)) {
            let found = lookup.get(ids[number as usize + 1]).unwrap();
            assert_eq!(found, record(ids[(number / 2) as usize], number));
        }
        assert!(lookup.get(RecordId(1 << 60)).is_err());
        assert!(lookup.get(RecordId::HOLDER).is_err());
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "it has no name");
        assert_eq!(spool.finish().count(), 3000, "finishing again is possible");
    }

    /// That the file has no room for them, now or ever, costs no record while memory has.
    #[test]
    fn what_the_file_does_not_take_stays_in_memory() {
        let scratch = tempfile::tempdir().unwrap();
        for room in [0..0, 0..1, 1..2, 2..3, 0..3] {
            let tokens = TokenMaker::new([0; 6], [0; 4]);
            let mut spool = Spool::create(scratch.path(), &tokens).unwrap();
            let file = |number| match room.contains(&number) {
                true => spool_file(&scratch, &format!("{room:?}")),
                false => full(),
            };
            let mut ids = vec![RecordId::HOLDER];
            for third in 0..3 {
                spool.file = file(third);
                for number in third * 1000..(third + 1) * 1000 {
                    ids.push(spool.append(&record(ids[(number / 2) as usize], number)));
                }
            }
            // What was written is in the one that had room.
            spool.file = file(room.start);
            let read: Vec<_> = spool.finish().map(|step| step.unwrap()).collect();
            assert_eq!(read.len(), 3000, "{room:?}");
            for ((id, read), number) in read.iter().zip((0..3000).rev()) {
                assert_eq!(*read, record(ids[(number / 2) as usize], number), "{room:?}");
                assert_eq!(spool.lookup().get(*id).as_ref(), Ok(read), "{room:?}");
            }
        }
    }

    /// Those before have their parents; who was lost has nobody below.
    #[test]
    fn beyond_what_has_room_in_memory_new_records_are_lost_until_the_file_takes_them() {
        let scratch = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(scratch.path(), &TokenMaker::new([0; 6], [0; 4])).unwrap();
        let add = |spool: &Spool, parent, bytes: usize| -> Vec<RecordId> {
            let long = |number| Record { name: vec![b'n'; 255].into(), ..record(parent, number) };
            (0..(bytes / 310) as u64).map(|number| spool.append(&long(number))).collect()
        };
        let early = add(&spool, RecordId::HOLDER, 3 * BLOCK_BYTES);
        spool.flush(&mut lock(&spool.tail));
        let kept = std::mem::replace(&mut spool.file, full());
        let many = add(&spool, early[0], 2 * PENDING_BYTES_MAX);
        let in_memory = many.partition_point(|id| *id != RecordId::LOST);
        assert!(
            in_memory * 330 > PENDING_BYTES_MAX && many[in_memory..].iter().all(|id| *id == RecordId::LOST)
        );
        assert!(lock(&spool.tail).pending.len() < PENDING_BYTES_MAX + BLOCK_BYTES);
        spool.file = kept;
        let late = add(&spool, many[0], 3 * BLOCK_BYTES);
        let before = late.partition_point(|id| *id == RecordId::LOST);
        assert!(before < TRIED_EVERY as usize, "{before}");
        assert_eq!(spool.append(&record(RecordId::LOST, 1)), RecordId::LOST, "it cannot be reached");
        let lost = many.len() - in_memory + before + 1;
        assert_eq!(spool.lost(), Some((lost as u64, Errno::NOSPC)));
        let expected: Vec<_> = [&early, &many[..in_memory], &late[before..]].concat();
        let read: Vec<_> = spool.finish().map(|step| step.unwrap().0).collect();
        assert!(read.iter().eq(expected.iter().rev()));
        for id in read {
            assert!(spool.lookup().get(id).is_ok());
        }
    }

    fn full() -> File {
        File::options().read(true).write(true).open("/dev/full").unwrap()
    }

    fn spool_file(scratch: &tempfile::TempDir, name: &str) -> File {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).open(scratch.path().join(name)).unwrap()
    }
}
