//! What every mechanism with every method does from the first object of a file to its end.

mod support;

use std::collections::BTreeMap;

use haul_objectlog::{Config, Error, LogStore, Mechanism, MemoryStore, Method, ObjectLog, Replay, read_log};
use support::{binding, combinations, slow_reader};

fn open(store: &mut MemoryStore, config: Config) -> (ObjectLog<&mut MemoryStore>, Replay) {
    ObjectLog::open(store, config).unwrap()
}

fn done(log: &ObjectLog<&mut MemoryStore>) -> BTreeMap<Vec<u8>, Vec<u64>> {
    let objects =
        |logged: &haul_objectlog::Logged| (0..logged.done.len()).filter(|&o| logged.done.get(o)).collect();
    log.iter().map(|(path, logged)| (path.to_vec(), objects(logged))).collect()
}

#[test]
fn nothing_is_written_before_the_first_object_nor_for_a_file_that_ends_before_the_flush() {
    for config in combinations() {
        let mut store = MemoryStore::new();
        let (mut log, replay) = open(&mut store, config);
        assert_eq!(replay, Replay::default());
        let first = log.begin(b"a", binding(1, 10)).unwrap();
        let second = log.begin(b"b", binding(2, 10)).unwrap();
        log.flush().unwrap();
        log.record(second, 3).unwrap();
        log.finish(second).unwrap();
        log.flush().unwrap();
        assert_eq!((log.usage().bytes, log.usage().files, log.len()), (0, 0, 1), "{config:?}");
        log.finish(first).unwrap();
        drop(log);
        assert_eq!(store.changes(), 0, "{config:?}");
    }
}

#[test]
fn what_was_flushed_is_read_back_exactly_and_continues_until_nothing_is_left() {
    for config in combinations() {
        let mut store = MemoryStore::new();
        let (mut log, _) = open(&mut store, config);
        let sizes = [1, 2, 63, 64, 65, 129, 1000, 4032, 4033, 10_000];
        for (version, objects) in sizes.into_iter().enumerate() {
            let path = format!("dir/{version}");
            let handle = log.begin(path.as_bytes(), binding(version as u64, objects)).unwrap();
            for object in (0..objects).filter(|object| object % 3 == 0) {
                assert!(log.record(handle, object).unwrap());
                assert!(!log.record(handle, object).unwrap());
                if object % 900 == 0 {
                    log.flush().unwrap();
                }
            }
        }
        log.flush().unwrap();
        let before = done(&log);
        drop(log);

        let (mut log, replay) = open(&mut store, config);
        assert_eq!(done(&log), before, "{config:?}");
        let objects: u64 = before.values().map(|objects| objects.len() as u64).sum();
        assert_eq!((replay.entries, replay.objects), (10, objects));
        assert_eq!((replay.pages_damaged, replay.logs_damaged), (0, 0));
        for (version, objects) in sizes.into_iter().enumerate() {
            let path = format!("dir/{version}");
            let logged = log.lookup(path.as_bytes()).unwrap();
            assert_eq!(logged.binding.difference(&binding(version as u64, objects)), None);
            let handle = log.resume(path.as_bytes()).unwrap();
            for object in (0..objects).rev() {
                assert_eq!(log.record(handle, object).unwrap(), object % 3 != 0);
            }
            log.flush().unwrap();
        }
        drop(log);

        let (mut log, replay) = open(&mut store, config);
        assert_eq!(replay.objects, sizes.iter().sum::<u64>(), "{config:?}");
        for version in 0..sizes.len() {
            let handle = log.resume(format!("dir/{version}").as_bytes()).unwrap();
            assert!(log.get(handle).unwrap().done.is_full());
            log.finish(handle).unwrap();
        }
        log.close().unwrap();
        assert!(store.durable_files().is_empty(), "{config:?}");
    }
}

#[test]
fn every_combination_goes_on_with_the_logs_of_every_other() {
    for written in combinations() {
        let mut template = MemoryStore::new();
        let (mut log, _) = open(&mut template, written);
        for version in 0..6 {
            let handle = log.begin(&[version as u8], binding(version, 700)).unwrap();
            (0..700).step_by(5).for_each(|object| assert!(log.record(handle, object).unwrap()));
        }
        log.sync().unwrap();
        let before = done(&log);
        drop(log);
        for config in combinations() {
            let mut store = template.clone();
            let (mut log, _) = open(&mut store, config);
            assert_eq!(done(&log), before);
            let handle = log.resume(&[3]).unwrap();
            log.record(handle, 1).unwrap();
            log.flush().unwrap();
            drop(log);
            let (log, _) = open(&mut store, Config::default());
            let mut expected = before.clone();
            expected.get_mut(&[3][..]).unwrap().insert(1, 1);
            assert_eq!(done(&log), expected, "{written:?} then {config:?}");
            if config.mechanism == Mechanism::Universal {
                assert_eq!(
                    log.usage().files,
                    1,
                    "the universal log takes in all others: {written:?}, {config:?}"
                );
            }
        }
    }
}

#[test]
fn logs_of_files_and_transactions_go_as_soon_as_they_are_complete() {
    for method in Method::ALL {
        for (mechanism, expected) in [
            // Logs that are there after each of ten files is finished; a transaction has four files.
            (Mechanism::File, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
            (Mechanism::Transaction, [3, 3, 3, 2, 2, 2, 2, 1, 1, 1]),
            (Mechanism::Universal, [1; 10]),
        ] {
            let mut store = MemoryStore::new();
            let (mut log, _) = open(&mut store, Config { mechanism, method, ..Config::default() });
            let handles: Vec<_> = (0..10)
                .map(|version| {
                    let handle = log.begin(&[version as u8], binding(version, 9)).unwrap();
                    log.record(handle, 0).unwrap();
                    handle
                })
                .collect();
            log.flush().unwrap();
            let mut files = Vec::new();
            for handle in handles {
                log.finish(handle).unwrap();
                log.flush().unwrap();
                files.push(log.usage().files);
            }
            assert_eq!(files, expected, "{mechanism:?} {method:?}");
            log.close().unwrap();
            assert!(store.durable_files().is_empty());
        }
    }
}

/// Nothing can be written any more; removals need no room.
struct Full<'a>(&'a mut MemoryStore, bool);

impl LogStore for Full<'_> {
    type Error = ();

    fn list(&mut self) -> Result<Vec<String>, ()> {
        self.0.list().map_err(drop)
    }

    fn length(&mut self, name: &str) -> Result<Option<u64>, ()> {
        self.0.length(name).map_err(drop)
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, ()> {
        self.0.read_at(name, offset, buffer).map_err(drop)
    }

    fn write_at(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), ()> {
        if self.1 { Err(()) } else { self.0.write_at(name, offset, bytes).map_err(drop) }
    }

    fn remove(&mut self, name: &str) -> Result<(), ()> {
        self.0.remove(name).map_err(drop)
    }

    fn sync(&mut self, names: &[&str]) -> Result<(), ()> {
        self.0.sync(names).map_err(drop)
    }

    fn sync_names(&mut self) -> Result<(), ()> {
        self.0.sync_names().map_err(drop)
    }
}

#[test]
fn where_there_is_no_room_any_more_the_log_of_a_job_that_is_done_goes_all_the_same() {
    for config in combinations() {
        let mut store = MemoryStore::new();
        let mut log = ObjectLog::open(Full(&mut store, false), config).unwrap().0;
        let handles = [1, 2].map(|version| {
            let handle = log.begin(&[version], binding(version.into(), 9)).unwrap();
            log.record(handle, 0).unwrap();
            handle
        });
        log.flush().unwrap();
        handles.into_iter().for_each(|handle| log.finish(handle).unwrap());
        log.store_mut().1 = true;
        assert!(log.wind_up().is_ok(), "{config:?}");
        drop(log);
        assert!(store.durable_files().is_empty(), "{config:?}");
    }
}

#[test]
fn a_file_that_begins_again_has_no_objects_of_its_former_life() {
    for config in combinations() {
        let mut store = MemoryStore::new();
        let (mut log, _) = open(&mut store, config);
        let old = log.begin(b"a", binding(1, 50)).unwrap();
        (0..50).for_each(|object| assert!(log.record(old, object).unwrap()));
        log.sync().unwrap();
        let new = log.begin(b"a", binding(2, 50)).unwrap();
        assert_eq!(log.record(old, 0), Err(Error::StaleHandle));
        log.record(new, 7).unwrap();
        log.sync().unwrap();
        drop(log);
        let (log, replay) = open(&mut store, config);
        assert_eq!(done(&log), BTreeMap::from([(b"a".to_vec(), vec![7])]), "{config:?}");
        assert_eq!(replay.pages_damaged, 0);
    }
}

#[test]
fn paths_of_any_bytes_and_any_length_come_back() {
    let paths: [Vec<u8>; 7] = [
        Vec::new(),
        vec![0, b'\n', 0xff, b'/', b'.', b'.'],
        vec![b'a'; 256],
        vec![b'b'; 257],
        vec![b'c'; 504],
        vec![b'd'; 505],
        (0..70_000u32).map(|index| index as u8).collect(),
    ];
    for config in combinations() {
        let mut store = MemoryStore::new();
        let (mut log, _) = open(&mut store, config);
        for (version, path) in paths.iter().enumerate() {
            let handle = log.begin(path, binding(version as u64, 5)).unwrap();
            log.record(handle, 4).unwrap();
        }
        log.flush().unwrap();
        drop(log);
        let (log, _) = open(&mut store, config);
        assert_eq!(done(&log), paths.iter().map(|path| (path.clone(), vec![4])).collect());
    }
}

#[test]
fn entries_that_nobody_asked_for_are_dropped_at_the_end_of_the_job() {
    for config in combinations() {
        let mut store = MemoryStore::new();
        let (mut log, _) = open(&mut store, config);
        for version in 0..5 {
            let handle = log.begin(&[version as u8], binding(version, 9)).unwrap();
            log.record(handle, version).unwrap();
        }
        log.sync().unwrap();
        drop(log);
        let (mut log, _) = open(&mut store, config);
        assert!(log.lookup(&[2]).is_some());
        assert_eq!(log.remove_stale(), 4);
        log.sync().unwrap();
        drop(log);
        let mut after = store.crash(|| false);
        let (log, _) = open(&mut after, config);
        assert_eq!(done(&log), BTreeMap::from([(vec![2], vec![2])]), "{config:?}");
    }
}

#[test]
fn a_log_of_a_newer_version_is_refused_and_left_as_it_is() {
    for config in combinations() {
        let mut store = MemoryStore::new();
        let (mut log, _) = open(&mut store, config);
        let handle = log.begin(b"a", binding(1, 9)).unwrap();
        log.record(handle, 1).unwrap();
        log.sync().unwrap();
        drop(log);
        let (name, mut bytes) = store.files().into_iter().next().unwrap();
        bytes[8..10].copy_from_slice(&2u16.to_le_bytes());
        slow_reader::seal_index_page(&mut bytes[..512], 0);
        let mut store = MemoryStore::with_files([(name.clone(), bytes)]);
        let result = ObjectLog::open(&mut store, config).map(|_| ());
        assert_eq!(result, Err(Error::NewerVersion { name: name.clone(), version: 2 }));
        assert!(matches!(read_log(&mut store, &name, 100), Err(Error::NewerVersion { version: 2, .. })));
        assert_eq!(store.changes(), 0);
    }
}

#[test]
fn a_log_after_which_no_number_is_left_is_refused_rather_than_written_over() {
    for config in combinations() {
        let mut store = MemoryStore::new();
        let (mut log, _) = open(&mut store, config);
        let handle = log.begin(b"a", binding(1, 9)).unwrap();
        log.record(handle, 1).unwrap();
        log.sync().unwrap();
        drop(log);
        let name = format!("{}-{}.log", config.mechanism.name(), u64::MAX);
        let files = store.files().into_iter().chain([(name.clone(), vec![1; 512])]);
        let mut store = MemoryStore::with_files(files);
        let result = ObjectLog::open(&mut store, config).map(|_| ());
        assert_eq!(result, Err(Error::NumbersUsedUp { name }));
        assert_eq!(store.changes(), 0);
    }
}

#[test]
fn limits_are_errors_and_bound_what_a_log_may_claim() {
    let config = Config { objects_max: 1000, ..Config::default() };
    let mut store = MemoryStore::new();
    let (mut log, _) = open(&mut store, config);
    let first = log.begin(b"a", binding(1, 600)).unwrap();
    assert_eq!(log.begin(b"b", binding(2, 401)), Err(Error::TooManyObjects { objects: 401 }));
    let second = log.begin(b"b", binding(2, 400)).unwrap();
    assert_eq!(log.begin(b"c", binding(3, 1 << 32)), Err(Error::TooManyObjects { objects: 1 << 32 }));
    let long = vec![b'x'; haul_objectlog::PATH_BYTES_MAX + 1];
    assert_eq!(log.begin(&long, binding(3, 1)), Err(Error::PathTooLong { bytes: long.len() }));
    assert_eq!(log.record(first, 600), Err(Error::ObjectOutOfRange { object: 600, objects: 600 }));
    log.record(first, 599).unwrap();
    log.record(second, 0).unwrap();
    log.flush().unwrap();
    drop(log);
    let (log, replay) = open(&mut store, Config { objects_max: 999, ..config });
    assert_eq!((log.len(), replay.pages_damaged), (1, 1), "an entry beyond the limit counts as damaged");

    let mut store = MemoryStore::new();
    let (mut log, _) = open(&mut store, config);
    for version in 0..10 {
        let handle = log.begin(b"a", binding(version, 900)).unwrap();
        log.finish(handle).unwrap();
    }
}

#[test]
fn names_that_no_log_has_are_left_alone() {
    let mut store = MemoryStore::new();
    store.write_at("notes.txt", 0, b"mine").unwrap();
    store.write_at("universal-01.log", 0, b"not ours").unwrap();
    let (mut log, replay) = open(&mut store, Config::default());
    assert_eq!(replay, Replay::default());
    let handle = log.begin(b"a", binding(1, 9)).unwrap();
    log.record(handle, 1).unwrap();
    log.flush().unwrap();
    log.finish(handle).unwrap();
    log.close().unwrap();
    assert_eq!(store.list().unwrap(), ["notes.txt", "universal-01.log"]);
}

#[test]
fn a_log_can_be_shown_as_the_paper_lists_it() {
    let mut store = MemoryStore::new();
    let config = Config { mechanism: Mechanism::Transaction, method: Method::Int, ..Config::default() };
    let (mut log, _) = open(&mut store, config);
    let handle = log.begin(b"a", binding(1, 954)).unwrap();
    (0..100).for_each(|object| assert!(log.record(handle, object).unwrap()));
    log.flush().unwrap();
    drop(log);
    let contents = read_log(&mut store, "transaction-1.log", 1 << 20).unwrap().unwrap();
    assert_eq!((contents.mechanism, contents.method), (config.mechanism, config.method));
    let record = &contents.records[0];
    assert_eq!((record.path.as_slice(), record.logged.binding.objects), (&b"a"[..], 954));
    assert_eq!(record.logged.done.count(), 100);
    // 63 numbers of 8 bytes a page: 100 numbers are in the first two of the 16 pages that 954 will need.
    let taken: Vec<(u64, u64)> = record.extents.iter().map(|extent| (extent.offset, extent.length)).collect();
    assert_eq!(taken, [(512, 512), (1024, 512), (0, 0), (0, 0), (0, 0)]);
    assert_eq!(read_log(&mut store, "transaction-2.log", 1).unwrap(), None);
}
