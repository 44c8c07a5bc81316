//! The log as its users see it: open, look up, begin, record, finish. Memory only; [`crate::flush`] writes.

use alloc::collections::{BTreeMap, btree_map};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use haul_model::{Bitmap, limits};

use crate::batch::Batch;
use crate::entry::{Binding, Entry, Handle, Logged, Unwritten};
use crate::error::{Doing, Error};
use crate::format::{self, Origin};
use crate::logfile::LogFile;
use crate::method::{Mechanism, Method};
use crate::read::{self, RecordContents};
use crate::slab::Slab;
use crate::store::LogStore;

/// More logs than one process makes. Their numbers must be free: a log is never written over another.
const NUMBERS_LEFT_MIN: u64 = 1 << 32;

/// How new entries are logged. Logs that are there already are read as their own pages say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// How many files share a log.
    pub mechanism: Mechanism,
    /// How objects are written down.
    pub method: Method,
    /// Files in one log of [`Mechanism::Transaction`]; 0 counts as 1.
    pub transaction_files: u32,
    /// A universal log below this size, in bytes, is never compacted.
    pub compact_bytes_min: u64,
    /// Objects of all files in progress together. Bounds memory at one bit each, whatever a log claims.
    pub objects_max: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mechanism: Mechanism::Universal,
            method: Method::Bit64,
            transaction_files: 4,
            compact_bytes_min: 64 << 10,
            objects_max: 1 << 32,
        }
    }
}

/// What [`ObjectLog::open`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Replay {
    /// Logs that were read.
    pub logs: u64,
    /// Logs of which nothing could be read.
    pub logs_damaged: u64,
    /// Files in progress.
    pub entries: u64,
    /// Objects that are durable, over all entries.
    pub objects: u64,
    /// Index pages, records and data pages that were not believed; each costs resends only.
    pub pages_damaged: u64,
}

/// How much room the logs take in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Now.
    pub bytes: u64,
    /// At most, since the log was opened.
    pub bytes_peak: u64,
    /// Logs now.
    pub files: u64,
    /// Logs at most.
    pub files_peak: u64,
}

impl Usage {
    pub(crate) fn grow(&mut self, bytes: u64, files: u64) {
        self.bytes += bytes;
        self.files += files;
        self.bytes_peak = self.bytes_peak.max(self.bytes);
        self.files_peak = self.files_peak.max(self.files);
    }

    pub(crate) fn shrink(&mut self, bytes: u64, files: u64) {
        self.bytes -= bytes;
        self.files -= files;
    }
}

/// A log that is only read: of an earlier process, or given up by this one.
pub(crate) struct OldLog {
    pub name: String,
    pub bytes: u64,
    /// What it counts as; 0 if it may not even be there.
    pub files: u64,
    /// Entries that count and are nowhere else yet. At 0 the log goes.
    pub unsettled: u32,
    /// Something in it no longer counts, so that the rest moves out and the log goes.
    pub touched: bool,
    pub unsynced: bool,
}

/// The object logs of one job at the source.
///
/// Everything but [`flush`](Self::flush), [`sync`](Self::sync), [`close`](Self::close) and [`open`](Self::open) only
/// changes memory.
pub struct ObjectLog<S: LogStore> {
    pub(crate) store: S,
    pub(crate) config: Config,
    pub(crate) entries: Slab<Entry>,
    by_path: BTreeMap<Arc<[u8]>, u32>,
    next_serial: u32,
    /// Objects of all entries.
    objects: u64,
    pub(crate) next_number: u64,
    /// Where the next entry goes, if that log has room for it.
    pub(crate) current: Option<u32>,
    pub(crate) files: Slab<LogFile>,
    pub(crate) olds: Slab<OldLog>,
    /// Entries with something to write; some may be gone.
    pub(crate) dirty: Vec<u32>,
    /// Logs whose index pages changed.
    pub(crate) listed: Vec<u32>,
    /// Entries that are in a log of this process and in old ones too.
    pub(crate) moved: Vec<u32>,
    /// Old logs that nobody needs.
    pub(crate) settled: Vec<u32>,
    /// Some old log was touched since the last flush.
    pub(crate) absorb: bool,
    pub(crate) names_unsynced: bool,
    /// Why logs could not be read.
    unreadable: Vec<Error<S::Error>>,
    pub(crate) usage: Usage,
    pub(crate) batch: Batch,
}

impl<S: LogStore> ObjectLog<S> {
    /// Reads what is there. Nothing is written before the first flush.
    pub fn open(store: S, config: Config) -> Result<(Self, Replay), Error<S::Error>> {
        let mut log = ObjectLog {
            store,
            config: Config { transaction_files: config.transaction_files.max(1), ..config },
            entries: Slab::new(),
            by_path: BTreeMap::new(),
            next_serial: 0,
            objects: 0,
            next_number: 1,
            current: None,
            files: Slab::new(),
            olds: Slab::new(),
            dirty: Vec::new(),
            listed: Vec::new(),
            moved: Vec::new(),
            settled: Vec::new(),
            absorb: false,
            // An earlier process may have left removals that are not durable.
            names_unsynced: true,
            unreadable: Vec::new(),
            usage: Usage::default(),
            batch: Batch::default(),
        };
        let replay = log.replay()?;
        Ok((log, replay))
    }

    /// Why logs of earlier runs could not be read. What they say is not known now; they stay.
    pub fn unreadable(&self) -> &[Error<S::Error>] {
        &self.unreadable
    }

    fn replay(&mut self) -> Result<Replay, Error<S::Error>> {
        let mut replay = Replay::default();
        let names = self.store.list().map_err(|error| Error::Store {
            doing: Doing::Reading,
            name: String::new(),
            error,
        })?;
        let mut logs: Vec<(u64, String)> =
            names.into_iter().filter_map(|name| Some((format::log_number(&name)?, name))).collect();
        logs.sort_unstable_by(|one, other| other.cmp(one));
        if let Some((number, name)) = logs.first() {
            if *number > u64::MAX - NUMBERS_LEFT_MIN {
                return Err(Error::NumbersUsedUp { name: name.clone() });
            }
            self.next_number = number + 1;
        }
        let mut objects_left = self.config.objects_max;
        // How far back older records may still be joined to an entry, unless its beginning has been found.
        let mut open_ends: BTreeMap<u32, Option<Origin>> = BTreeMap::new();
        for (number, name) in logs {
            let (bytes, damaged, mut records) =
                match read::read_numbered(&mut self.store, &name, number, objects_left) {
                    // The others are none the worse for it. It stays, as it may be read another time.
                    Err(error @ Error::Store { .. }) => {
                        replay.logs_damaged += 1;
                        self.unreadable.push(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                    Ok(Ok(contents)) => {
                        replay.logs += 1;
                        replay.pages_damaged += contents.pages_damaged;
                        (contents.bytes, contents.pages_damaged > 0, contents.records)
                    }
                    Ok(Err(unreadable)) => {
                        replay.logs_damaged += u64::from(unreadable.damaged);
                        (unreadable.bytes, false, Vec::new())
                    }
                };
            let old = self.olds.insert(OldLog {
                name,
                bytes,
                files: 1,
                unsettled: 0,
                touched: false,
                unsynced: true,
            });
            if damaged {
                // What is good of it moves to a new log, so that the damage is told of only once.
                self.touch(old);
            }
            self.usage.grow(bytes, 1);
            // Stable: of those of one generation, which nobody writes, the one that stands earlier counts as the later.
            records.sort_by_key(|record| core::cmp::Reverse(record.generation));
            for record in records {
                objects_left = objects_left.saturating_sub(record.logged.binding.objects);
                self.replay_record(record, number, old, &mut open_ends);
            }
            if self.olds.get(old).is_some_and(|log| log.unsettled == 0) {
                self.settled.push(old);
            }
        }
        replay.entries = self.entries.len() as u64;
        replay.objects = self.entries.iter().map(|(_, entry)| entry.logged.done.count()).sum();
        Ok(replay)
    }

    /// Records come latest first.
    fn replay_record(
        &mut self,
        record: RecordContents,
        number: u64,
        old: u32,
        open_ends: &mut BTreeMap<u32, Option<Origin>>,
    ) {
        let RecordContents { path, logged, generation, origin, .. } = record;
        let here = Origin { log: number, generation };
        if let Some(&slot) = self.by_path.get(path.as_slice()) {
            let open_end = open_ends.insert(slot, None).flatten();
            let Some((entry, open_end)) = self
                .entries
                .get_mut(slot)
                .zip(open_end)
                .filter(|(entry, open_end)| here >= *open_end && entry.logged.binding == logged.binding)
            else {
                self.touch(old);
                return;
            };
            let known = entry.logged.done.words();
            let words = known.iter().zip(logged.done.words()).map(|(one, other)| one | other).collect();
            entry.logged.done = Bitmap::from_words(words, logged.binding.objects);
            open_ends.insert(slot, origin.map(|origin| origin.max(open_end)));
            // An entry holds a log once, however many of its records are in it.
            if entry.old.last() != Some(&old) {
                entry.old.push(old);
                self.hold(old);
            }
            return;
        }
        let slot =
            self.insert(Arc::from(path), logged, alloc::vec![old], Some(origin.unwrap_or(here)), false);
        open_ends.insert(slot, origin);
        self.hold(old);
    }

    fn hold(&mut self, old: u32) {
        if let Some(log) = self.olds.get_mut(old) {
            log.unsettled += 1;
        }
    }

    /// Something in this old log no longer counts: what else is in it moves out at the next flush.
    pub(crate) fn touch(&mut self, old: u32) {
        if let Some(log) = self.olds.get_mut(old) {
            log.touched = true;
            self.absorb = true;
        }
    }

    /// One entry less needs this old log.
    pub(crate) fn settle_one(&mut self, old: u32) {
        self.touch(old);
        if let Some(log) = self.olds.get_mut(old) {
            log.unsettled -= 1;
            if log.unsettled == 0 {
                self.settled.push(old);
            }
        }
    }

    fn insert(
        &mut self,
        path: Arc<[u8]>,
        logged: Logged,
        old: Vec<u32>,
        origin: Option<Origin>,
        seen: bool,
    ) -> u32 {
        self.objects = self.objects.saturating_add(logged.binding.objects);
        self.next_serial = self.next_serial.wrapping_add(1);
        let slot = self.entries.insert(Entry {
            path: path.clone(),
            logged,
            seen,
            dirty: false,
            place: None,
            old,
            origin,
            unwritten: Unwritten::All,
            serial: self.next_serial,
        });
        self.by_path.insert(path, slot);
        slot
    }

    /// What the log holds of this file, to be compared ([`Binding::difference`]) before it is believed.
    pub fn lookup(&mut self, path: &[u8]) -> Option<&Logged> {
        let entry = self.entries.get_mut(*self.by_path.get(path)?)?;
        entry.seen = true;
        Some(&entry.logged)
    }

    /// Every file in progress, by path.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Logged)> {
        self.by_path.iter().filter_map(|(path, &slot)| Some((&**path, &self.entries.get(slot)?.logged)))
    }

    /// Starts an entry without objects; one that is there under the same path is dropped.
    ///
    /// Nothing is written for it before an object has been recorded.
    pub fn begin(&mut self, path: &[u8], binding: Binding) -> Result<Handle, Error<S::Error>> {
        if path.len() > format::PATH_BYTES_MAX {
            return Err(Error::PathTooLong { bytes: path.len() });
        }
        if let Some(&slot) = self.by_path.get(path) {
            self.remove(slot);
        }
        let objects = binding.objects;
        if objects > limits::OBJECTS_PER_FILE_MAX
            || self.objects.saturating_add(objects) > self.config.objects_max
        {
            return Err(Error::TooManyObjects { objects });
        }
        let logged = Logged { binding, done: Bitmap::new(objects) };
        let slot = self.insert(Arc::from(path), logged, Vec::new(), None, true);
        Ok(self.handle(slot))
    }

    /// Goes on with an entry that [`lookup`](Self::lookup) found and that is believed.
    pub fn resume(&mut self, path: &[u8]) -> Option<Handle> {
        let slot = *self.by_path.get(path)?;
        self.entries.get_mut(slot)?.seen = true;
        Some(self.handle(slot))
    }

    fn handle(&self, slot: u32) -> Handle {
        Handle { slot, serial: self.entries.get(slot).map_or(0, |entry| entry.serial) }
    }

    fn slot(&self, handle: Handle) -> Result<u32, Error<S::Error>> {
        match self.entries.get(handle.slot) {
            Some(entry) if entry.serial == handle.serial => Ok(handle.slot),
            _ => Err(Error::StaleHandle),
        }
    }

    /// What is known of an entry.
    pub fn get(&self, handle: Handle) -> Option<&Logged> {
        let slot = self.slot(handle).ok()?;
        Some(&self.entries.get(slot)?.logged)
    }

    /// Object `object` of this file is durable at the sink. False if that was known.
    ///
    /// Only called for durable objects: a bit never goes back to 0. It is in the store after the next flush.
    pub fn record(&mut self, handle: Handle, object: u64) -> Result<bool, Error<S::Error>> {
        let slot = self.slot(handle)?;
        let Some(entry) = self.entries.get_mut(slot) else { return Err(Error::StaleHandle) };
        let objects = entry.logged.binding.objects;
        if object >= objects {
            return Err(Error::ObjectOutOfRange { object, objects });
        }
        if !entry.logged.done.set(object) {
            return Ok(false);
        }
        entry.unwritten.note(object);
        if !entry.dirty {
            entry.dirty = true;
            self.dirty.push(slot);
        }
        Ok(true)
    }

    /// The file is complete and durable under its final name: its entry goes.
    pub fn finish(&mut self, handle: Handle) -> Result<(), Error<S::Error>> {
        let slot = self.slot(handle)?;
        self.remove(slot);
        Ok(())
    }

    /// The file starts again or is given up: its entry goes. The same as [`finish`](Self::finish) to the log.
    pub fn drop_entry(&mut self, handle: Handle) -> Result<(), Error<S::Error>> {
        self.finish(handle)
    }

    /// Drops every entry that nobody looked up, resumed or began in this run; how many. For the end of a complete job.
    pub fn remove_stale(&mut self) -> u64 {
        let stale: Vec<u32> =
            self.entries.iter().filter(|(_, entry)| !entry.seen).map(|(slot, _)| slot).collect();
        stale.iter().for_each(|&slot| self.remove(slot));
        stale.len() as u64
    }

    fn remove(&mut self, slot: u32) {
        let Some(entry) = self.entries.remove(slot) else { return };
        if let btree_map::Entry::Occupied(found) = self.by_path.entry(entry.path) {
            found.remove();
        }
        self.objects -= entry.logged.binding.objects;
        if let Some(place) = entry.place
            && let Some(file) = self.files.get_mut(place.file)
        {
            file.remove_record(place.page, slot, place.record_bytes);
            place.extents.into_iter().chain(place.path_extent).for_each(|extent| file.give(extent));
            if !file.listed {
                file.listed = true;
                self.listed.push(place.file);
            }
        }
        for old in entry.old {
            self.settle_one(old);
        }
    }

    /// How much room the logs take.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Files in progress.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// No file is in progress.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The store, for instance to switch its decorators.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// The store. What was not flushed is lost.
    pub fn into_store(self) -> S {
        self.store
    }
}
