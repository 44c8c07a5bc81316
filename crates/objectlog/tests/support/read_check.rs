//! What must hold whatever bytes are found as logs: shared by the fuzz target and by the bounded test.
//!
//! - Opening neither panics, nor changes anything, nor takes more memory than the specification says, and says the
//!   same twice and to the slow reader.
//! - Going on with what was found loses nothing and invents nothing, after a kill and after a power cut, and when
//!   every file is finished nothing is left.

use std::collections::{BTreeMap, BTreeSet};

use haul_objectlog::{Binding, Config, Error, MemoryStore, ObjectLog, Replay, read_log};

use super::case::Case;
use super::slow_reader::{self, SlowRecord};
use super::{Random, allocation, binding};

pub type Files = BTreeMap<String, Vec<u8>>;
/// By path: to what it is bound, and its objects.
pub type Entries = BTreeMap<Vec<u8>, (Binding, BTreeSet<u64>)>;
type Log<'s> = ObjectLog<&'s mut MemoryStore>;

/// What one case came to.
#[derive(Default)]
pub struct Outcome {
    /// Nothing was read, because a log is of a newer version or no number is left for a new one.
    pub refused: bool,
    pub entries: Entries,
    pub replay: Replay,
    /// Bytes that opening took at most; 0 where nobody counts.
    pub peak_bytes: u64,
}

/// Runs one case, and panics if a rule is broken.
pub fn check(bytes: &[u8]) -> Outcome {
    let case = Case::decode(bytes);
    let config = case.config();
    let files = case.files();
    let Some(outcome) = read(&files, config) else { return Outcome { refused: true, ..Outcome::default() } };
    syncing_keeps_everything(&files, config, &outcome.entries);
    going_on_keeps_everything(&files, config, &outcome.entries, &mut Random(u64::from(case.action)));
    outcome
}

fn entries_of(log: &Log<'_>) -> Entries {
    let objects = |logged: &haul_objectlog::Logged| {
        (0..logged.done.len()).filter(|&object| logged.done.get(object)).collect()
    };
    log.iter().map(|(path, logged)| (path.to_vec(), (logged.binding, objects(logged)))).collect()
}

/// An entry without objects says nothing: it may be there or not.
fn with_objects(entries: &Entries) -> Entries {
    let some = entries.iter().filter(|(_, (_, done))| !done.is_empty());
    some.map(|(path, entry)| (path.clone(), entry.clone())).collect()
}

/// For messages: the beginnings of paths, and how many objects.
fn summary(entries: &Entries) -> Vec<String> {
    let line = |(path, (_, done)): (&Vec<u8>, &(Binding, BTreeSet<u64>))| {
        format!("{} {}", path[..path.len().min(20)].escape_ascii(), done.len())
    };
    entries.iter().map(line).collect()
}

/// Section 10: the log, a bit for each object, and room to read. In memory a record and its entry take more than the 80
/// bytes and up that they have in the log: pages full of the smallest records come to seven times their length. Two
/// bitmaps become a third where entries are joined.
fn peak_bytes_max(files: &Files, objects: u64) -> u64 {
    const BUFFER_BYTES: u64 = 64 << 10;
    let logs: u64 = files.iter().map(|(name, log)| 100 + (name.len() + log.len()) as u64).sum();
    BUFFER_BYTES + 10 * logs + objects / 8 * 2
}

fn open<'s>(store: &'s mut MemoryStore, config: Config) -> (Log<'s>, Replay) {
    ObjectLog::open(store, config).unwrap_or_else(|error| panic!("cannot open again: {error:?}"))
}

fn read(files: &Files, config: Config) -> Option<Outcome> {
    let mut store = MemoryStore::with_files(files.clone());
    let records: Vec<SlowRecord> =
        files.iter().flat_map(|(name, log)| slow_reader::read_log(name, log)).collect();
    let objects: u64 = records.iter().map(|record| record.objects).sum();
    let (first, peak_bytes) = allocation::peak_of(|| ObjectLog::open(&mut store, config));
    let peak_bytes_max = peak_bytes_max(files, objects.min(config.objects_max));
    assert!(peak_bytes <= peak_bytes_max, "opening took {peak_bytes} bytes, {peak_bytes_max} are allowed");
    let is_newer = slow_reader::is_newer(files);
    let (first, replay) = match first {
        Ok(opened) => opened,
        Err(Error::NewerVersion { .. }) => {
            assert!(is_newer, "refused, but no page is newer");
            assert_eq!(store.changes(), 0);
            return None;
        }
        Err(Error::NumbersUsedUp { name }) => {
            let number = slow_reader::log_number(&name);
            assert!(number.is_some_and(|number| number > u64::MAX - (1 << 32)), "{name} was refused");
            assert_eq!(store.changes(), 0);
            return None;
        }
        Err(error) => panic!("cannot open: {error:?}"),
    };
    assert!(!is_newer, "a newer page was read");
    let entries = entries_of(&first);
    drop(first);
    let (second, replay_again) = open(&mut store, config);
    assert_eq!((entries_of(&second), replay_again), (entries.clone(), replay), "the second opening differs");
    drop(second);
    assert_eq!((store.changes(), &store.files()), (0, files), "opening changed something");

    if objects <= config.objects_max {
        if !have_twins(&records) {
            compare(&entries, slow_reader::read_all(files));
        }
        for (name, log) in files {
            let found = read_log(&mut store, name, config.objects_max).unwrap();
            let records = found.map(|log| log.records).unwrap_or_default();
            let slow = slow_reader::read_log(name, log);
            assert_eq!(records.len(), slow.len(), "{name}: records");
            for (record, slow) in records.iter().zip(slow) {
                assert_eq!(
                    (
                        &record.path,
                        record.generation,
                        record.origin.map(|origin| (origin.log, origin.generation)),
                        record.logged.done.count()
                    ),
                    (&slow.path, slow.generation, slow.origin, slow.done.len() as u64),
                    "{name}"
                );
            }
        }
    }
    Some(Outcome { refused: false, entries, replay, peak_bytes })
}

/// Some log has two records of one path and generation: which of them counts is said nowhere.
fn have_twins(records: &[SlowRecord]) -> bool {
    let keys: BTreeSet<_> =
        records.iter().map(|record| (&record.log, &record.path, record.generation)).collect();
    keys.len() < records.len()
}

fn compare(entries: &Entries, slow: BTreeMap<Vec<u8>, SlowRecord>) {
    assert_eq!(entries.len(), slow.len(), "entries");
    for (path, record) in slow {
        let (binding, done) = &entries[&path];
        let slow: BTreeSet<u64> = record.done.iter().copied().collect();
        assert_eq!(*done, slow, "{}", path.escape_ascii());
        let Binding { identity, object_bytes, objects, hash_kind, token, sink_boot } = *binding;
        let (mtime, ctime) = (identity.mtime, identity.ctime);
        assert_eq!(
            (identity.size, identity.inode, object_bytes, objects, hash_kind, token.0, sink_boot),
            (
                record.size,
                record.inode,
                record.object_bytes,
                record.objects,
                record.hash_kind,
                record.token,
                record.sink_boot
            )
        );
        assert_eq!(
            ((mtime.seconds, mtime.nanos), (ctime.seconds, ctime.nanos)),
            (record.mtime, record.ctime)
        );
    }
}

/// Everything with objects is there, nothing else has any, and nothing is damaged.
fn must_hold(store: &mut MemoryStore, config: Config, expected: &Entries, when: &str) {
    let (log, replay) = open(store, config);
    let found = entries_of(&log);
    assert_eq!((replay.pages_damaged, replay.logs_damaged), (0, 0), "{when}: damage stays");
    let (found_objects, expected_objects) = (with_objects(&found), with_objects(expected));
    assert!(
        found_objects == expected_objects,
        "{when}: {:?} instead of {:?}",
        summary(&found_objects),
        summary(&expected_objects)
    );
    for (path, (binding, _)) in &found {
        assert_eq!(expected.get(path).map(|(binding, _)| binding), Some(binding), "{when}");
    }
}

/// A sync alone: what was damaged or doubled moves, the rest stays, and nothing changes for a reader.
fn syncing_keeps_everything(files: &Files, config: Config, entries: &Entries) {
    let mut store = MemoryStore::with_files(files.clone());
    let (mut log, _) = open(&mut store, config);
    log.sync().unwrap();
    let usage = log.usage();
    drop(log);
    must_hold(&mut store, config, entries, "after a sync");
    let is_log = |name: &String| slow_reader::log_number(name).is_some();
    let logs: Vec<u64> =
        store.files().iter().filter(|(name, _)| is_log(name)).map(|(_, log)| log.len() as u64).collect();
    assert_eq!((usage.files, usage.bytes), (logs.len() as u64, logs.iter().sum()), "the room that is told");
    must_hold(&mut store.crash(|| false), config, entries, "after a sync and a power cut");
}

/// Some entries go on, some end, some begin again, new ones come; then a kill, a power cut, and the end of the job.
pub fn going_on_keeps_everything(files: &Files, config: Config, entries: &Entries, random: &mut Random) {
    let mut store = MemoryStore::with_files(files.clone());
    let mut expected = entries.clone();
    let (mut log, _) = open(&mut store, config);
    let mut paths: Vec<Vec<u8>> = expected.keys().cloned().collect();
    paths.extend([b"new".to_vec(), vec![b'n'; 700]]);
    for (index, path) in paths.iter().enumerate() {
        let choice = random.below(5);
        let handle = match expected.get(path) {
            Some(_) if choice == 0 => continue,
            Some(_) if choice < 4 => log.resume(path).unwrap(),
            _ => {
                let new = binding(1000 + index as u64, random.one_of(&[1, 70, 1000, 5000]));
                // The limit may be reached already; then the entry that was there is gone all the same.
                expected.remove(path);
                let Ok(handle) = log.begin(path, new) else { continue };
                expected.insert(path.clone(), (new, BTreeSet::new()));
                handle
            }
        };
        if choice == 1 {
            log.finish(handle).unwrap();
            expected.remove(path);
            continue;
        }
        let (binding, done) = expected.get_mut(path).unwrap();
        for _ in 0..random.below(100) {
            let object = random.below(binding.objects);
            assert_eq!(log.record(handle, object).unwrap(), done.insert(object));
        }
        if random.chance(30) {
            log.flush().unwrap();
        }
    }
    log.flush().unwrap();
    drop(log);
    must_hold(&mut store, config, &expected, "after a kill");
    let (mut log, _) = open(&mut store, config);
    log.sync().unwrap();
    drop(log);
    let mut store = store.crash(|| false);
    must_hold(&mut store, config, &expected, "after a power cut");
    let (mut log, _) = open(&mut store, config);
    let paths: Vec<Vec<u8>> = log.iter().map(|(path, _)| path.to_vec()).collect();
    for path in paths {
        let handle = log.resume(&path).unwrap();
        log.finish(handle).unwrap();
    }
    log.close().unwrap();
    let left: Vec<String> =
        store.files().into_keys().filter(|name| slow_reader::log_number(name).is_some()).collect();
    assert!(left.is_empty(), "left at the end: {left:?}");
}
