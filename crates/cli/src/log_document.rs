//! What a directory of object logs says, for [`crate::log_show`]: read once, and decoded as the next run would.
//!
//! Nothing is locked or written, so a log may be written while it is read. What was found is held in memory and decoded
//! from there; `docs/spec/object_log_reader.py` prints the same document from the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use haul_model::{Bitmap, Code, Timestamp};
use haul_mover::Error;
use haul_objectlog::{
    Binding, Config, LogContents, LogStore, ObjectLog, RecordContents, Unreadable, log_number, read_numbered,
};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::paths::{hex, show};

/// How often new names are looked for, and damage is looked at again, where a process is at work.
const ATTEMPTS_MAX: usize = 8;

/// Where logs are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Their directory; one that is not there holds none.
    pub directory: PathBuf,
    /// Only the log of this name.
    pub only: Option<String>,
}

/// What the logs of a directory say.
#[derive(Serialize, Debug)]
pub struct Document {
    version: u32,
    pub directory: String,
    /// By number.
    pub logs: Vec<Log>,
    /// What counts, by path.
    pub entries: Vec<Entry>,
}

/// One log; without mechanism, method and K none of its index pages can be read.
#[derive(Serialize, Debug)]
#[allow(missing_docs)]
pub struct Log {
    pub name: String,
    number: u64,
    pub bytes: u64,
    pub mechanism: Option<&'static str>,
    pub method: Option<&'static str>,
    pub transaction_files: Option<u32>,
    /// Index pages, records and cells that were not believed.
    pub damaged: u64,
    pub records: Vec<Record>,
}

/// What one log says of a file.
#[derive(Serialize, Debug)]
#[allow(missing_docs)]
pub struct Record {
    #[serde(flatten)]
    pub path: Path,
    generation: u32,
    pub continued: bool,
    origin: Option<[u64; 2]>,
    #[serde(flatten)]
    pub source: Source,
    extents: Vec<[u64; 2]>,
    pub done: Done,
    done_count: u64,
}

/// What all logs together say of a file.
#[derive(Serialize, Debug)]
#[allow(missing_docs)]
pub struct Entry {
    #[serde(flatten)]
    pub path: Path,
    #[serde(flatten)]
    pub source: Source,
    pub log: String,
    pub continued: bool,
    pub done: Done,
    done_count: u64,
}

/// A path of any bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Path(pub Vec<u8>);

/// To what a record is bound.
#[derive(Serialize, Clone, Debug)]
#[allow(missing_docs)]
pub struct Source {
    hash_kind: u8,
    pub object_bytes: u32,
    pub objects: u64,
    pub size: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
    inode: u64,
    pub token: String,
    sink_boot: Option<String>,
}

/// The objects that are durable.
#[derive(Clone, Debug)]
pub struct Done(pub Bitmap);

impl Done {
    /// Maximal ranges, both ends included, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = [u64; 2]> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let first = self.next_one(from)?;
            from = self.0.next_zero(first).unwrap_or(self.0.len());
            Some([first, from - 1])
        })
    }

    fn next_one(&self, from: u64) -> Option<u64> {
        let (at, shift) = ((from / 64) as usize, from % 64);
        let words = self.0.words().get(at..)?;
        let first = words.first()? >> shift << shift;
        let rest = words.iter().skip(1).copied();
        let (index, word) = std::iter::once(first).chain(rest).enumerate().find(|(_, word)| *word != 0)?;
        Some((at + index) as u64 * 64 + u64::from(word.trailing_zeros()))
    }
}

impl Serialize for Done {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.ranges())
    }
}

impl Serialize for Path {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Path", 2)?;
        fields.serialize_field("path", &std::str::from_utf8(&self.0).ok())?;
        fields.serialize_field("path_hex", &hex(&self.0))?;
        fields.end()
    }
}

impl Source {
    fn new(binding: &Binding) -> Source {
        let Binding { identity, object_bytes, objects, hash_kind, token, sink_boot } = *binding;
        let time = |time: Timestamp| (time.seconds, time.nanos);
        Source {
            hash_kind,
            object_bytes,
            objects,
            size: identity.size,
            mtime: time(identity.mtime),
            ctime: time(identity.ctime),
            inode: identity.inode,
            token: hex(&token.0),
            sink_boot: sink_boot.map(|boot| hex(&boot)),
        }
    }

    /// Bytes in these objects; the last one is shorter than the others.
    pub fn bytes_in(&self, done: &Done) -> u64 {
        let object_bytes = u64::from(self.object_bytes);
        let missing = match done.0.get(self.objects - 1) {
            true => (self.objects * object_bytes).saturating_sub(self.size),
            false => 0,
        };
        (done.0.count() * object_bytes).saturating_sub(missing).min(self.size)
    }
}

/// Reads and decodes the logs of a place.
pub fn read(place: &Place) -> Result<Document, Error> {
    let mut held = Held::read(place)?;
    for _ in 0..ATTEMPTS_MAX {
        let document = held.decode(place)?;
        if document.logs.iter().all(|log| log.damaged == 0) {
            return Ok(document);
        }
        // A page that was read while it was written looks like damage. What is damaged stays so.
        let again = Held::read(place)?;
        if again == held {
            return Ok(document);
        }
        held = again;
    }
    held.decode(place)
}

/// Logs as they were found, by number and name.
#[derive(PartialEq, Eq, Default)]
struct Held {
    logs: BTreeMap<(u64, String), Vec<u8>>,
}

impl Held {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        Some(self.logs.get(&(log_number(name)?, name.to_owned()))?)
    }

    fn read(place: &Place) -> Result<Held, Error> {
        let mut held = Held::default();
        let mut seen = BTreeSet::new();
        // What moves to a new log is durable there before the old one goes: so it is found in one of them if the old
        // ones are read first, and those that came meanwhile are looked for.
        for _ in 0..ATTEMPTS_MAX {
            let found: Vec<_> = list(place)?.into_iter().filter(|log| seen.insert(log.clone())).collect();
            if found.is_empty() {
                break;
            }
            for log in found {
                if let Some(bytes) = read_file(&place.directory.join(&log.1))? {
                    held.logs.insert(log, bytes);
                }
            }
        }
        Ok(held)
    }

    fn decode(&self, place: &Place) -> Result<Document, Error> {
        let directory = show(place.directory.as_os_str().as_bytes());
        let failed = |error: haul_objectlog::Error<ReadOnly>| {
            let refused = Error::new(error.code(), format!("{directory}: {error}"));
            match error.code() {
                Code::LogVersion => refused.hint("the newer haul that wrote it can show it"),
                _ => refused,
            }
        };
        let mut logs = Vec::new();
        // Of each path the generation of the latest record, its log, and whether it was continued.
        let mut latest: BTreeMap<Path, (u32, &str, bool)> = BTreeMap::new();
        // From the newest to the oldest, as the next run does: if there is too much, it is the old that is left out.
        let mut objects_left = Config::default().objects_max;
        for (number, name) in self.logs.keys().rev() {
            let found = read_numbered(&mut &*self, name, *number, objects_left).map_err(failed)?;
            let log = Log::new(name, *number, found);
            for record in &log.records {
                objects_left -= record.source.objects;
                let this = (record.generation, name.as_str(), record.continued);
                let known = latest.entry(record.path.clone()).or_insert(this);
                if known.1 == name && known.0 < record.generation {
                    *known = this;
                }
            }
            logs.push(log);
        }
        logs.reverse();
        let (log, _) = ObjectLog::open(self, Config::default()).map_err(failed)?;
        let entries = log.iter().map(|(path, logged)| {
            let path = Path(path.to_vec());
            let (_, log, continued) = latest.remove(&path).expect("what counts stands in a log");
            let (done, source) = (Done(logged.done.clone()), Source::new(&logged.binding));
            Entry { path, source, log: log.to_owned(), continued, done_count: done.0.count(), done }
        });
        let entries = entries.collect();
        Ok(Document { version: haul_objectlog::VERSION.into(), directory, logs, entries })
    }
}

impl Log {
    fn new(name: &str, number: u64, found: Result<LogContents, Unreadable>) -> Log {
        let name = name.to_owned();
        match found {
            Ok(log) => Log {
                name,
                number,
                bytes: log.bytes,
                mechanism: Some(log.mechanism.name()),
                method: Some(log.method.name()),
                transaction_files: Some(log.transaction_files),
                damaged: log.pages_damaged,
                records: log.records.into_iter().map(Record::new).collect(),
            },
            Err(log) => Log {
                name,
                number,
                bytes: log.bytes,
                mechanism: None,
                method: None,
                transaction_files: None,
                damaged: log.pages_damaged,
                records: Vec::new(),
            },
        }
    }
}

impl Record {
    fn new(record: RecordContents) -> Record {
        let RecordContents { path, logged, generation, origin, extents } = record;
        Record {
            path: Path(path),
            generation,
            continued: origin.is_some(),
            origin: origin.map(|origin| [origin.log, origin.generation.into()]),
            source: Source::new(&logged.binding),
            extents: extents.iter().map(|extent| [extent.offset, extent.length]).collect(),
            done_count: logged.done.count(),
            done: Done(logged.done),
        }
    }
}

/// Who shows a log never changes it.
#[derive(Debug)]
struct ReadOnly;

impl std::fmt::Display for ReadOnly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the copy of them that was read cannot be changed")
    }
}

impl LogStore for &Held {
    type Error = ReadOnly;

    fn list(&mut self) -> Result<Vec<String>, ReadOnly> {
        Ok(self.logs.keys().map(|(_, name)| name.clone()).collect())
    }

    fn length(&mut self, name: &str) -> Result<Option<u64>, ReadOnly> {
        Ok(self.bytes(name).map(|bytes| bytes.len() as u64))
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, ReadOnly> {
        let start = usize::try_from(offset).ok();
        let rest = start.and_then(|start| self.bytes(name)?.get(start..)).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn write_at(&mut self, _: &str, _: u64, _: &[u8]) -> Result<(), ReadOnly> {
        Err(ReadOnly)
    }

    fn remove(&mut self, _: &str) -> Result<(), ReadOnly> {
        Err(ReadOnly)
    }

    fn sync(&mut self, _: &[&str]) -> Result<(), ReadOnly> {
        Err(ReadOnly)
    }

    fn sync_names(&mut self) -> Result<(), ReadOnly> {
        Err(ReadOnly)
    }
}

/// The logs that are there, the oldest first.
fn list(place: &Place) -> Result<BTreeSet<(u64, String)>, Error> {
    let numbered = |name: String| Some((log_number(&name)?, name));
    if let Some(name) = &place.only {
        return Ok(numbered(name.clone()).into_iter().collect());
    }
    let failed = |error: &io::Error| unreadable(&place.directory, error);
    let names = match std::fs::read_dir(&place.directory) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(failed(&error)),
    };
    let mut found = BTreeSet::new();
    for name in names {
        let name = name.map_err(|error| failed(&error))?.file_name();
        found.extend(name.into_string().ok().and_then(numbered));
    }
    Ok(found)
}

/// None: it went meanwhile, or is no file.
fn read_file(path: &std::path::Path) -> Result<Option<Vec<u8>>, Error> {
    // What only has the name of a log, say a pipe, does not hold the command up.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let read = || -> io::Result<_> {
        let mut file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map_err(|error| unreadable(path, &error)),
    }
}

/// What is in the way of reading, for the user.
pub fn unreadable(path: &std::path::Path, error: &io::Error) -> Error {
    Error::os(Code::SourceRead, show(path.as_os_str().as_bytes()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_maximal_whatever_words_they_cross() {
        let ranges = |objects: &[u64], bits| {
            let mut done = Bitmap::new(bits);
            objects.iter().for_each(|object| assert!(done.set(*object)));
            Done(done).ranges().collect::<Vec<_>>()
        };
        assert_eq!(ranges(&[], 200), [[0; 2]; 0]);
        assert_eq!(ranges(&[0], 1), [[0, 0]]);
        assert_eq!(
            ranges(&[0, 2, 3, 63, 64, 127, 128, 199], 200),
            [[0, 0], [2, 3], [63, 64], [127, 128], [199, 199]]
        );
        assert_eq!(ranges(&(0..128).collect::<Vec<_>>(), 128), [[0, 127]]);
        assert_eq!(ranges(&(64..192).collect::<Vec<_>>(), 1000), [[64, 191]]);
        assert_eq!(ranges(&[999], 1000), [[999, 999]]);
    }
}
