//! Single situations that a crash can leave behind, and that random histories meet too rarely.

mod support;

use std::collections::BTreeMap;

use haul_objectlog::memory::Refused;
use haul_objectlog::{Binding, Config, LogStore, Logged, Mechanism, MemoryStore, Method, ObjectLog};
use support::{Random, binding, combinations, slow_reader};

type Log<'a> = ObjectLog<&'a mut MemoryStore>;

fn open(store: &mut MemoryStore, config: Config) -> Log<'_> {
    ObjectLog::open(store, config).unwrap().0
}

fn with_mechanism(mechanism: Mechanism) -> Config {
    Config { mechanism, transaction_files: 2, ..Config::default() }
}

fn begin(log: &mut Log<'_>, path: &[u8], binding: Binding, objects: &[u64]) {
    let handle = log.begin(path, binding).unwrap();
    objects.iter().for_each(|&object| assert!(log.record(handle, object).unwrap()));
}

/// Where a sync of contents, or of names, never succeeds while it is told so.
#[derive(Default)]
struct Unsynced {
    store: MemoryStore,
    contents: bool,
    names: bool,
}

impl LogStore for Unsynced {
    type Error = Refused;

    fn list(&mut self) -> Result<Vec<String>, Refused> {
        self.store.list()
    }

    fn length(&mut self, name: &str) -> Result<Option<u64>, Refused> {
        self.store.length(name)
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, Refused> {
        self.store.read_at(name, offset, buffer)
    }

    fn write_at(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), Refused> {
        self.store.write_at(name, offset, bytes)
    }

    fn remove(&mut self, name: &str) -> Result<(), Refused> {
        self.store.remove(name)
    }

    fn sync(&mut self, names: &[&str]) -> Result<(), Refused> {
        if self.contents { Err(Refused) } else { self.store.sync(names) }
    }

    fn sync_names(&mut self) -> Result<(), Refused> {
        if self.names { Err(Refused) } else { self.store.sync_names() }
    }
}

/// Another run, in which one more object of `path` becomes durable.
fn go_on(store: &mut MemoryStore, config: Config, object: u64) {
    let mut log = open(store, config);
    let handle = log.resume(b"path").unwrap();
    log.record(handle, object).unwrap();
    log.sync().unwrap();
}

fn objects(logged: &Logged) -> Vec<u64> {
    (0..logged.done.len()).filter(|&object| logged.done.get(object)).collect()
}

fn found(store: &mut MemoryStore, config: Config) -> BTreeMap<Vec<u8>, (Binding, Vec<u64>)> {
    open(store, config)
        .iter()
        .map(|(path, logged)| (path.to_vec(), (logged.binding, objects(logged))))
        .collect()
}

#[test]
fn of_two_records_of_a_path_in_one_log_the_later_one_counts() {
    let config = with_mechanism(Mechanism::Universal);
    let (old, new) = (binding(1, 9), binding(5, 9));
    assert!(
        old.sink_boot.is_none() && new.sink_boot.is_some(),
        "the new record must not fit where the old one was"
    );
    let mut store = MemoryStore::new();
    let mut log = open(&mut store, config);
    begin(&mut log, b"path", old, &[1, 2]);
    (6..9).for_each(|version| begin(&mut log, &[version as u8; 28], binding(version, 9), &[0]));
    log.sync().unwrap();
    begin(&mut log, b"path", new, &[3]);
    log.flush().unwrap();
    drop(log);
    let mut after = store.crash(|| false);
    let records = haul_objectlog::read_log(&mut after, "universal-1.log", 1000).unwrap().unwrap().records;
    assert_eq!(records.iter().filter(|record| record.path == b"path").count(), 2, "the test makes both");
    assert_eq!(found(&mut after, config)[&b"path"[..]].0, new);
}

#[test]
fn a_superseded_record_does_not_come_back_when_the_later_one_is_finished() {
    let config = with_mechanism(Mechanism::Transaction);
    let mut store = MemoryStore::new();
    let mut log = open(&mut store, config);
    begin(&mut log, b"path", binding(1, 9), &[1]);
    begin(&mut log, b"other", binding(2, 9), &[2]);
    log.sync().unwrap();
    begin(&mut log, b"path", binding(3, 9), &[3]);
    log.flush().unwrap();
    drop(log);
    let mut store = store.crash(|| false);
    assert_eq!(store.files().len(), 2, "the old record is in one log, the new one in another");
    let mut log = open(&mut store, config);
    let handle = log.resume(b"path").unwrap();
    assert_eq!(log.get(handle).unwrap().binding, binding(3, 9));
    log.finish(handle).unwrap();
    log.sync().unwrap();
    drop(log);
    let found = found(&mut store.crash(|| false), config);
    assert_eq!(found.keys().collect::<Vec<_>>(), [b"other"]);
    assert_eq!(found[&b"other"[..]].1, [2]);
}

#[test]
fn a_file_that_began_again_in_the_same_room_and_under_the_same_token_takes_no_cell_of_its_former_life() {
    for config in combinations() {
        let config = Config { transaction_files: 9, ..config };
        let mut store = MemoryStore::new();
        let mut log = open(&mut store, config);
        begin(&mut log, b"path", binding(1, 9000), &(0..9000).collect::<Vec<_>>());
        begin(&mut log, b"small", binding(2, 60), &(0..60).collect::<Vec<_>>());
        log.sync().unwrap();
        begin(&mut log, b"path", binding(1, 9000), &[7]);
        log.flush().unwrap();
        // Its record is there, but its cell is not: what stands in its room is of its former life.
        begin(&mut log, b"small", binding(2, 60), &[7]);
        let is_new = config.mechanism == Mechanism::File;
        log.store_mut().fail_after(Some(if is_new { OPERATIONS_OF_A_NEW_LOG } else { 2 }));
        log.flush().unwrap_err();
        drop(log);
        store.fail_after(None);
        let before = found(&mut store, config);
        assert_eq!(before[&b"path"[..]].1, [7], "{config:?}");
        if config.mechanism != Mechanism::File {
            assert!(before[&b"small"[..]].1.is_empty(), "{config:?}");
        }
        // Nor if those cells are damaged so that they say the generation of the new record.
        let mut files = store.files();
        for (name, log) in &mut files {
            for record in slow_reader::index_records(name, log) {
                for page in
                    record.extents.iter().flat_map(|(start, length)| (*start..start + length).step_by(512))
                {
                    if let Some(generation) = log.get_mut(page as usize + 4..page as usize + 8) {
                        generation.copy_from_slice(&record.generation.to_le_bytes());
                    }
                }
            }
        }
        assert_eq!(found(&mut MemoryStore::with_files(files), config), before, "{config:?}");
    }
}

/// On some file systems a lost write shows what its blocks held before. Here that is the page of a log that was removed:
/// at the same offset, under the same number or the same token, of the same generation, and as long.
#[test]
fn what_the_blocks_of_a_removed_log_held_is_not_taken_for_what_a_new_one_lost() {
    for config in combinations() {
        let all: Vec<u64> = (0..700).collect();
        // Of another file, in a log whose number is used again; and of the same, which began again in a later log.
        for (version, number_again) in [(2, true), (1, false)] {
            let mut store = MemoryStore::new();
            let mut log = open(&mut store, config);
            begin(&mut log, b"path", binding(1, 700), &all);
            log.sync().unwrap();
            let removed = log.store_mut().files().into_values().next().unwrap();
            if number_again {
                let handle = log.resume(b"path").unwrap();
                log.finish(handle).unwrap();
                log.close().unwrap();
            }
            let mut log = open(&mut store, config);
            begin(&mut log, b"path", binding(version, 700), &[7]);
            log.store_mut().fail_after(Some(OPERATIONS_OF_A_NEW_LOG));
            log.flush().unwrap_err();
            drop(log);
            let (name, mut new) = store.crash(|| false).files().into_iter().next_back().unwrap();
            assert_eq!(name.ends_with("-1.log"), number_again, "{name}");
            new.extend_from_slice(&removed[new.len()..]);
            let mut store = MemoryStore::with_files([(name, new)]);
            let (bound, objects) = &found(&mut store, config)[&b"path"[..]];
            assert_eq!(*bound, binding(version, 700));
            assert!(objects.is_empty(), "{config:?}, version {version}: {objects:?}");
        }
    }
}

/// Before the first cell of a log: its index page, a sync, and one of its name.
const OPERATIONS_OF_A_NEW_LOG: u64 = 3;

#[test]
fn a_file_that_began_again_takes_nothing_from_a_log_that_comes_back_even_under_the_same_token() {
    for mechanism in Mechanism::ALL {
        let config = Config { transaction_files: 1, ..with_mechanism(mechanism) };
        let mut store = MemoryStore::new();
        let mut log = open(&mut store, config);
        begin(&mut log, b"path", binding(1, 9), &[0, 1, 2]);
        log.sync().unwrap();
        drop(log);
        let mut log = open(&mut store, config);
        begin(&mut log, b"path", binding(1, 9), &[7]);
        log.flush().unwrap();
        drop(log);
        let mut is_removal = true;
        let mut after = store.crash(|| !std::mem::take(&mut is_removal));
        assert_eq!(after.files().len(), 2, "the removal of the old log, and nothing else, is lost");
        assert_eq!(found(&mut after, config)[&b"path"[..]].1, [7]);
    }
}

/// It moves twice, and between that its log fails in every way: of the logs that are removed, any may come back.
#[test]
fn a_file_that_began_again_and_moved_takes_nothing_of_its_former_life_under_the_same_token() {
    let (mut nothing, mut all, mut random) = (0, 0, Random(3));
    for base in combinations().filter(|config| matches!(config.method, Method::Char | Method::Bit64)) {
        let config = Config { transaction_files: 2, ..base };
        for (first, second) in (0..10).flat_map(|first| (0..10).map(move |second| (first, second))) {
            let mut store = MemoryStore::new();
            let mut log = open(&mut store, config);
            begin(&mut log, b"path", binding(1, 9), &[0, 1, 2]);
            begin(&mut log, b"neighbour", binding(2, 9), &[5]);
            log.sync().unwrap();
            drop(log);
            let mut log = open(&mut store, config);
            begin(&mut log, b"path", binding(1, 9), &[0, 7]);
            for fails_after in [first, second] {
                log.store_mut().fail_after(Some(fails_after));
                let _ = log.sync();
            }
            log.store_mut().fail_after(None);
            log.flush().unwrap();
            drop(log);
            for _ in 0..20 {
                let mut after = store.crash(|| random.chance(50));
                match &found(&mut after, config)[&b"path"[..]].1[..] {
                    [] => nothing += 1,
                    [0, 7] => all += 1,
                    mixed => panic!("{config:?}, {first}, {second}: {mixed:?}"),
                }
            }
        }
    }
    assert!(nothing > 10 && all > 3000, "{nothing} and {all} are too few to prove anything");
}

#[test]
fn an_entry_that_moved_takes_only_its_own_objects_from_older_logs() {
    let config = with_mechanism(Mechanism::File);
    let make = |version: u64, objects: &[u64]| {
        let mut store = MemoryStore::new();
        let mut log = open(&mut store, config);
        begin(&mut log, b"path", binding(version, 9), objects);
        log.sync().unwrap();
        drop(log);
        store
    };
    let mut moved = make(1, &[1]);
    go_on(&mut moved, config, 2);
    let moved = moved.files();
    assert_eq!(moved.keys().collect::<Vec<_>>(), ["file-2.log"]);
    for (version, expected) in [(1, vec![1, 2, 5]), (3, vec![1, 2])] {
        let older = make(version, &[5]).files();
        let mut store = MemoryStore::with_files(moved.clone().into_iter().chain(older));
        assert_eq!(found(&mut store, config)[&b"path"[..]], (binding(1, 9), expected));
    }
}

/// As they were written before records said where their entry began.
#[test]
fn a_continued_record_without_an_origin_is_joined_to_all_of_its_binding() {
    let config = with_mechanism(Mechanism::File);
    let mut store = MemoryStore::new();
    let mut log = open(&mut store, config);
    begin(&mut log, b"path", binding(1, 9), &[1]);
    log.sync().unwrap();
    let before = log.store_mut().files();
    drop(log);
    go_on(&mut store, config, 2);
    let (name, with_origin) = store.files().into_iter().next().unwrap();
    for origin in [true, false] {
        let mut log = with_origin.clone();
        let length = usize::from(u16::from_le_bytes([log[28], log[29]]));
        assert_eq!(log[30], 1 | 8, "continued, and where it began");
        if !origin {
            let path_at = 28 + length - b"path".len();
            log[30] = 1;
            log[28..30].copy_from_slice(&(length as u16 - 12).to_le_bytes());
            log[26..28].copy_from_slice(&(length as u16 - 12).to_le_bytes());
            log.copy_within(path_at..path_at + b"path".len(), path_at - 12);
            slow_reader::seal_index_page(&mut log[..512], 0);
        }
        // Its cell is lost, so that it has what the record before it has.
        log.truncate(512);
        let older = before.clone().into_values().next().unwrap();
        let mut store = MemoryStore::with_files([(name.clone(), log), ("file-1.log".into(), older)]);
        assert_eq!(found(&mut store, config)[&b"path"[..]].1, [1], "{origin}");
    }
}

#[test]
fn records_of_an_entry_in_one_log_are_joined_as_those_in_several_are() {
    let config = with_mechanism(Mechanism::Universal);
    let mut store = MemoryStore::new();
    let mut log = open(&mut store, config);
    begin(&mut log, b"path", binding(1, 9), &[1, 2]);
    log.sync().unwrap();
    drop(log);
    go_on(&mut store, config, 3);
    // The record once more, with a later generation of which there is no cell: no process writes that.
    let (name, mut bytes) = store.files().into_iter().next().unwrap();
    let length = usize::from(u16::from_le_bytes([bytes[28], bytes[29]]));
    bytes.copy_within(28..28 + length, 28 + length);
    bytes[28 + length + 4..][..4].copy_from_slice(&7u32.to_le_bytes());
    bytes[24] = 2;
    bytes[26..28].copy_from_slice(&(2 * length as u16).to_le_bytes());
    slow_reader::seal_index_page(&mut bytes[..512], 0);
    let mut store = MemoryStore::with_files([(name, bytes)]);
    assert_eq!(found(&mut store, config)[&b"path"[..]].1, [1, 2, 3]);
    let mut log = open(&mut store, config);
    let handle = log.resume(b"path").unwrap();
    log.finish(handle).unwrap();
    log.close().unwrap();
    assert!(store.files().is_empty(), "the log is held once");
}

#[test]
fn entries_that_lost_all_their_objects_hold_no_log() {
    for mechanism in Mechanism::ALL {
        let config = with_mechanism(mechanism);
        let mut store = MemoryStore::new();
        let mut log = open(&mut store, config);
        begin(&mut log, b"one", binding(1, 9), &[1]);
        begin(&mut log, b"two", binding(2, 9), &[1]);
        log.flush().unwrap();
        drop(log);
        let mut store = store.crash(|| false);
        let mut log = open(&mut store, config);
        assert_eq!((log.len(), log.usage().files > 0), (2, true), "records are durable, data is not");
        let handle = log.resume(b"one").unwrap();
        log.record(handle, 3).unwrap();
        log.flush().unwrap();
        if mechanism != Mechanism::File {
            assert_eq!(log.usage().files, 1, "{mechanism:?}: the old log is needed by nobody");
        }
        log.finish(handle).unwrap();
        let handle = log.resume(b"two").unwrap();
        log.finish(handle).unwrap();
        log.close().unwrap();
        assert!(store.files().is_empty(), "{mechanism:?}");
    }
}

#[test]
fn a_universal_log_takes_in_older_logs_with_the_first_new_file_and_stays_one_at_the_end() {
    let config = with_mechanism(Mechanism::Universal);
    let mut store = MemoryStore::new();
    let mut log = open(&mut store, config);
    begin(&mut log, b"one", binding(1, 9), &[1]);
    log.sync().unwrap();
    drop(log);
    let mut log = open(&mut store, config);
    begin(&mut log, b"two", binding(2, 9), &[2]);
    log.flush().unwrap();
    assert_eq!(log.usage().files, 1);
    begin(&mut log, b"three", binding(3, 9), &[3]);
    log.close().unwrap();
    assert_eq!(store.durable_files().len(), 1);
    assert_eq!(found(&mut store, config).len(), 3);
}

#[test]
fn what_an_earlier_run_left_unsynced_is_written_again_if_its_sync_fails() {
    for mechanism in Mechanism::ALL {
        let config = with_mechanism(mechanism);
        let mut store = MemoryStore::new();
        let mut log = open(&mut store, config);
        begin(&mut log, b"one", binding(1, 9), &[1]);
        log.flush().unwrap();
        drop(log);
        let mut log = open(&mut store, config);
        log.store_mut().fail_after(Some(0));
        log.sync().unwrap_err();
        log.store_mut().fail_after(None);
        log.sync().unwrap();
        drop(log);
        assert_eq!(found(&mut store.crash(|| false), config)[&b"one"[..]].1, [1], "{mechanism:?}");
    }
}

/// How the entries come to move.
#[derive(Clone, Copy, Debug)]
enum Move {
    /// The log of this run is compacted (universal), or is not moved at all.
    Compaction,
    /// From the logs of an earlier run.
    NewRun,
    /// Out of a log of which a sync failed: the first flush is cut off, and the second is not.
    FailedSync,
}

/// Begins 40 files and makes them durable, finishes most of them, and flushes with a store that fails after `cut`
/// operations. True if that was enough.
fn move_entries(store: &mut MemoryStore, config: Config, how: Move, cut: u64) -> bool {
    let mut log = open(store, config);
    for version in 0..40 {
        begin(&mut log, &[version as u8], binding(version, 300), &objects_before(version));
    }
    log.sync().unwrap();
    if let Move::NewRun = how {
        drop(log);
        log = open(store, config);
    }
    for version in 5..40u8 {
        let handle = log.resume(&[version]).unwrap();
        log.finish(handle).unwrap();
    }
    for version in 0..3 {
        let handle = log.resume(&[version]).unwrap();
        log.record(handle, 200).unwrap();
    }
    log.store_mut().fail_after(Some(cut));
    let mut whole = match how {
        Move::FailedSync => log.sync().is_ok(),
        _ => log.flush().is_ok(),
    };
    log.store_mut().fail_after(None);
    if let Move::FailedSync = how {
        begin(&mut log, b"new", binding(50, 300), &[1]);
        log.store_mut().fail_after(Some(cut / 2));
        whole &= log.flush().is_ok();
        log.store_mut().fail_after(None);
    }
    whole
}

fn objects_before(version: u64) -> [u64; 3] {
    [version, version + 60, 299]
}

/// Every point at which a move can be cut off, and many ways to lose data.
#[test]
fn moving_entries_to_a_new_log_loses_nothing_wherever_it_is_cut_off() {
    for base in combinations().filter(|config| matches!(config.method, Method::Char | Method::Bit64)) {
        let config = Config { compact_bytes_min: 2048, transaction_files: 3, ..base };
        for how in [Move::Compaction, Move::NewRun, Move::FailedSync] {
            let mut random = Random(7);
            for cut in 0.. {
                assert!(cut < 200, "a flush that never ends");
                let mut store = MemoryStore::new();
                let whole = move_entries(&mut store, config, how, cut);
                for _ in 0..4 {
                    let share = [0, 30, 70, 100][random.below(4) as usize];
                    let found = found(&mut store.crash(|| random.chance(share)), config);
                    for version in 0..5u64 {
                        let (binding_found, done) = &found[&[version as u8][..]];
                        assert_eq!(*binding_found, binding(version, 300));
                        assert!(
                            objects_before(version).iter().all(|object| done.contains(object)),
                            "{config:?}, {how:?}: {version} lost objects when cut off after {cut}: {done:?}"
                        );
                    }
                }
                if whole {
                    break;
                }
            }
        }
    }
}

#[test]
fn where_no_sync_succeeds_logs_do_not_heap_up_and_nothing_is_forgotten() {
    for config in combinations() {
        for (contents, names) in [(true, false), (false, true)] {
            let (mut log, _) = ObjectLog::open(Unsynced::default(), config).unwrap();
            let first = log.begin(b"first", binding(1, 300)).unwrap();
            assert!(log.record(first, 0).unwrap());
            log.flush().unwrap();
            // What stands in this log is true, and counts until it stands in another one.
            let sound = log.store_mut().store.files().len();
            (log.store_mut().contents, log.store_mut().names) = (contents, names);
            let second = log.begin(b"second", binding(2, 300)).unwrap();
            for object in 1..100 {
                assert!(log.record(first, object).unwrap() && log.record(second, object).unwrap());
                // Without a new log no name is synced.
                assert!(log.sync().is_err() || names && config.mechanism != Mechanism::File);
                assert!(log.store_mut().store.files().len() <= sound + 1, "{config:?}, object {object}");
            }
            (log.store_mut().contents, log.store_mut().names) = (false, false);
            log.sync().unwrap();
            assert_eq!(log.usage().files as usize, log.store_mut().store.files().len());
            let mut after = log.into_store().store.crash(|| false);
            let found = found(&mut after, config);
            assert_eq!(found[&b"first"[..]].1, (0..100).collect::<Vec<_>>(), "{config:?}");
            assert_eq!(found[&b"second"[..]].1, (1..100).collect::<Vec<_>>(), "{config:?}");
        }
    }
}
