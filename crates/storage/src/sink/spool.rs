//! Attributes of directories wait here until everything below them is done.
//!
//! A file without a name in the state directory: records are appended as directories are announced, parents first, and
//! read backwards at the end, so that children come before their parents. Memory does not grow with the number of
//! directories. A session that is killed leaves nothing behind; the next one hears of all directories again.
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

/// The records of one session.
pub(crate) struct Spool {
    file: File,
    tail: Mutex<Tail>,
}

#[derive(Default)]
struct Tail {
    /// Not in the file yet.
    pending: Vec<u8>,
    /// Bytes that are in the file.
    written: u64,
    /// Records may be missing since this happened.
    failed: Option<Errno>,
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

    /// Adds a record. An error is kept and told by [`Spool::finish`]: the directory itself is usable.
    pub fn append(&self, record: &Record) -> RecordId {
        let mut tail = lock(&self.tail);
        let id = RecordId(tail.written + tail.pending.len() as u64);
        encode(record, &mut tail.pending);
        if tail.pending.len() >= BLOCK_BYTES {
            self.flush(&mut tail);
        }
        id
    }

    fn flush(&self, tail: &mut Tail) {
        match self.file.write_all_at(&tail.pending, tail.written) {
            Ok(()) => {
                tail.written += tail.pending.len() as u64;
            }
            Err(error) => {
                // Offsets stay what they were told to be; the gap ends the reading backwards.
                tail.written += tail.pending.len() as u64;
                tail.failed = Some(Errno::from_io_error(&error).unwrap_or(Errno::IO));
            }
        }
        tail.pending.clear();
    }

    /// Everything is in the file: reads it backwards.
    pub fn finish(&self) -> Backwards<'_> {
        let mut tail = lock(&self.tail);
        self.flush(&mut tail);
        Backwards { spool: self, end: tail.written, block: Vec::new(), start: 0, failed: tail.failed }
    }

    /// Looks records up by their id; what is not in the file yet is not found.
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
        let end = id.0.saturating_add(RECORD_BYTES_MAX).min(lock(&self.spool.tail).written);
        self.start = end.saturating_sub(BLOCK_BYTES as u64);
        self.block.resize((end - self.start) as usize, 0);
        self.spool.read_exact(&mut self.block, self.start)?;
        self.find(id).ok_or(Errno::IO)
    }

    fn find(&self, id: RecordId) -> Option<Record> {
        let bytes = self.block.get(usize::try_from(id.0.checked_sub(self.start)?).ok()?..)?;
        let (length, bytes) = bytes.split_first_chunk()?;
        decode(bytes.get(..u32::from_le_bytes(*length) as usize)?)
    }
}

/// The records, last first. Ends after the first error.
pub(crate) struct Backwards<'a> {
    spool: &'a Spool,
    /// Behind the next record.
    end: u64,
    /// Bytes of the file from `start` on.
    block: Vec<u8>,
    start: u64,
    failed: Option<Errno>,
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
            return self.failed.take().map(Err);
        }
        let step = self.step();
        Some(step.map_err(|errno| {
            self.end = 0;
            // Why there is a gap, rather than that there is one.
            self.failed.take().unwrap_or(errno)
        }))
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

    #[test]
    fn a_full_state_directory_is_told_at_the_end() {
        let file = File::options().read(true).write(true).open("/dev/full").unwrap();
        let spool = Spool { file, tail: Mutex::new(Tail::default()) };
        spool.append(&record(RecordId::HOLDER, 5));
        let told: Vec<_> = spool.finish().collect();
        assert!(told.iter().any(|step| step.is_err()), "{told:?}");
    }
}
