//! The bytes of version 1: for every mechanism and method the logs of one fixed history, compared byte for byte.
//!
//! `HAUL_GOLDEN_WRITE=1 cargo test -p haul-objectlog --test golden every_combination` writes them anew; only a new
//! version of the format may need that, or a field that the present one lacked.

mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;

use haul_objectlog::{Config, MemoryStore, ObjectLog};
use support::{binding, combinations, slow_reader};

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden"].iter().collect()
}

fn path_of(version: u64) -> Vec<u8> {
    match version {
        1 => b"one object".to_vec(),
        2 => b"dir/\xff\n second".to_vec(),
        3 => b"grows".to_vec(),
        4 => (0..600u32).map(|index| b'a' + (index % 26) as u8).collect(),
        _ => b"moved".to_vec(),
    }
}

fn objects_of(version: u64) -> u64 {
    [1, 954, 1500, 130, 64][version as usize - 1]
}

fn is_done(version: u64, object: u64) -> bool {
    match version {
        1 => true,
        2 => object % 3 == 1,
        3 => object < 1000 && object != 77,
        4 => object >= 100,
        _ => object.is_multiple_of(2) || object == 63,
    }
}

/// Two runs: "moved" begins in the first, continues in the second, and is the only one that the second has not begun.
fn history(config: Config) -> BTreeMap<String, Vec<u8>> {
    let config = Config { transaction_files: 3, ..config };
    let mut store = MemoryStore::new();
    let (mut log, _) = ObjectLog::open(&mut store, config).unwrap();
    let handle = log.begin(&path_of(5), binding(5, 64)).unwrap();
    (0..64).step_by(2).for_each(|object| assert!(log.record(handle, object).unwrap()));
    log.sync().unwrap();
    drop(log);

    let (mut log, _) = ObjectLog::open(&mut store, config).unwrap();
    let handle = log.resume(&path_of(5)).unwrap();
    log.record(handle, 63).unwrap();
    let gone = log.begin(b"finished", binding(6, 10)).unwrap();
    log.record(gone, 9).unwrap();
    log.flush().unwrap();
    for version in 1..5 {
        let handle = log.begin(&path_of(version), binding(version, objects_of(version))).unwrap();
        // Two passes, so that numbers are not in order and cells are written again.
        for pass in 0..2 {
            let objects =
                (0..objects_of(version)).filter(|object| object % 2 != pass && is_done(version, *object));
            for object in objects {
                log.record(handle, object).unwrap();
                if object % 400 == 399 {
                    log.flush().unwrap();
                }
            }
        }
    }
    log.finish(gone).unwrap();
    log.sync().unwrap();
    drop(log);
    store.files()
}

/// What all of them say.
fn expected() -> BTreeMap<Vec<u8>, (haul_objectlog::Binding, Vec<u64>)> {
    (1..6)
        .map(|version| {
            let objects = objects_of(version);
            let done = (0..objects).filter(|object| is_done(version, *object)).collect();
            (path_of(version), (binding(version, objects), done))
        })
        .collect()
}

#[test]
fn every_combination_writes_the_bytes_that_it_always_wrote() {
    for config in combinations() {
        let folder = folder().join(format!("{}-{}", config.mechanism.name(), config.method.name()));
        let files = history(config);
        if std::env::var_os("HAUL_GOLDEN_WRITE").is_some() {
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).unwrap();
            for (name, bytes) in &files {
                std::fs::write(folder.join(name), bytes).unwrap();
            }
        }
        let golden = read(&folder);
        assert_eq!(golden.keys().collect::<Vec<_>>(), files.keys().collect::<Vec<_>>(), "{config:?}");
        for (name, bytes) in &golden {
            let first = bytes.iter().zip(&files[name]).position(|(golden, now)| golden != now);
            let lengths = (bytes.len(), files[name].len());
            assert!(
                first.is_none() && lengths.0 == lengths.1,
                "{config:?} {name}: {lengths:?}, differs at {first:?}"
            );
        }
    }
}

fn read(folder: &std::path::Path) -> BTreeMap<String, Vec<u8>> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|file| {
            let file = file.unwrap();
            (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())
        })
        .collect()
}

#[test]
fn logs_of_version_1_are_read_by_the_log_and_by_the_slow_reader_alike() {
    for config in combinations() {
        let folder = folder().join(format!("{}-{}", config.mechanism.name(), config.method.name()));
        let files = read(&folder);
        let (log, replay) =
            ObjectLog::open(MemoryStore::with_files(files.clone()), Config::default()).unwrap();
        let found: BTreeMap<_, _> = log
            .iter()
            .map(|(path, logged)| {
                let done: Vec<u64> =
                    (0..logged.done.len()).filter(|&object| logged.done.get(object)).collect();
                (path.to_vec(), (logged.binding, done))
            })
            .collect();
        assert_eq!(found, expected(), "{config:?}");
        assert_eq!((replay.pages_damaged, replay.logs_damaged), (0, 0));
        let slow = slow_reader::read_all(&files);
        assert_eq!(slow.len(), found.len());
        for (path, record) in slow {
            let (binding, done) = &found[&path];
            let identity = &binding.identity;
            assert_eq!(&record.done, done);
            assert_eq!(
                (record.size, record.inode, record.object_bytes, record.objects, record.hash_kind),
                (identity.size, identity.inode, binding.object_bytes, binding.objects, binding.hash_kind)
            );
            assert_eq!(record.mtime, (identity.mtime.seconds, identity.mtime.nanos));
            assert_eq!(record.ctime, (identity.ctime.seconds, identity.ctime.nanos));
            assert_eq!((record.token, record.sink_boot), (binding.token.0, binding.sink_boot));
            assert_eq!((record.mechanism, record.method), (config.mechanism as u8, config.method as u8));
            assert_eq!(record.origin.is_some(), path == b"moved");
        }
    }
}
