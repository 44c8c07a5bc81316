//! Damage anywhere in a log costs resends: what is read is a part of what was recorded, and nothing panics.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use haul_objectlog::{Binding, Config, MemoryStore, ObjectLog, read_log};
use support::allocation::{self, Counting};
use support::{Random, binding, combinations, slow_reader};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Recorded = BTreeMap<Vec<u8>, (Binding, BTreeSet<u64>)>;

/// Logs with short and long paths, entries that grew, an entry that is gone, and one that moved.
fn make(config: Config) -> (BTreeMap<String, Vec<u8>>, Recorded) {
    let config = Config { transaction_files: 3, ..config };
    let mut store = MemoryStore::new();
    let mut recorded = Recorded::new();
    for run in 0..2 {
        let (mut log, _) = ObjectLog::open(&mut store, config).unwrap();
        for version in 0..8u64 {
            let path = vec![b'a' + version as u8; [1, 30, 300, 1200][version as usize % 4]];
            let objects = [1, 70, 954, 5000][version as usize % 4];
            let handle = match log.resume(&path) {
                Some(handle) if version < 6 => handle,
                _ => log.begin(&path, binding(run * 100 + version, objects)).unwrap(),
            };
            for object in (0..objects).filter(|object| object % 4 == run || objects == 1) {
                log.record(handle, object).unwrap();
                if object % 500 == 0 {
                    log.flush().unwrap();
                }
            }
            if version == 6 {
                log.finish(handle).unwrap();
            }
        }
        log.sync().unwrap();
        for (path, logged) in log.iter() {
            let done = (0..logged.done.len()).filter(|&object| logged.done.get(object)).collect();
            recorded.insert(path.to_vec(), (logged.binding, done));
        }
    }
    (store.files(), recorded)
}

fn damage(random: &mut Random, files: &mut BTreeMap<String, Vec<u8>>) {
    let names: Vec<String> = files.keys().cloned().collect();
    if names.is_empty() {
        return;
    }
    let name = &names[random.below(names.len() as u64) as usize];
    let other = files[&names[random.below(names.len() as u64) as usize]].clone();
    let Some(log) = files.get_mut(name) else { return };
    if log.is_empty() || other.is_empty() {
        return;
    }
    let length = log.len() as u64;
    let start = random.below(length) as usize;
    let end = (start + random.below(600) as usize).min(log.len());
    match random.below(9) {
        0 => log[start] ^= 1 << random.below(8),
        1 => log[start..end].fill(0),
        2 => log[start..end].iter_mut().for_each(|byte| *byte = random.next() as u8),
        3 => log.truncate(start),
        4 => log.extend((0..random.below(2000)).map(|_| random.next() as u8)),
        5 | 6 => {
            // A page from elsewhere: of this log or of another one.
            let from = random.below(other.len() as u64) as usize / 512 * 512;
            let to = start / 512 * 512;
            let bytes = 512.min(other.len() - from).min(log.len() - to);
            log[to..to + bytes].copy_from_slice(&other[from..from + bytes]);
        }
        7 => log[start..end].fill(0xff),
        _ => {
            files.remove(name);
        }
    }
}

#[test]
fn damaged_logs_give_a_part_of_what_was_recorded_and_can_be_gone_on_with() {
    for config in combinations() {
        let (files, recorded) = make(config);
        let (mut whole, mut parts) = (0, 0);
        let mut random = Random(1);
        for round in 0..50 {
            let mut damaged = files.clone();
            (0..random.below(4)).for_each(|_| damage(&mut random, &mut damaged));
            let mut store = MemoryStore::with_files(damaged);
            let (mut log, _) = ObjectLog::open(&mut store, config).unwrap();
            let mut same = log.len() == recorded.len();
            for (path, logged) in log.iter() {
                let (binding, done) = &recorded[path];
                assert_eq!(*binding, logged.binding, "{config:?}, round {round}");
                for object in (0..logged.done.len()).filter(|&object| logged.done.get(object)) {
                    assert!(done.contains(&object), "{config:?}, round {round}: object {object}");
                }
                same &= logged.done.count() == done.len() as u64;
            }
            whole += u64::from(same);
            parts += u64::from(!same);
            for path in recorded.keys() {
                if let Some(handle) = log.resume(path) {
                    log.record(handle, 0).unwrap();
                }
            }
            let entries = log.len();
            log.sync().unwrap();
            drop(log);
            let (log, replay) = ObjectLog::open(&mut store, config).unwrap();
            assert_eq!(
                (log.len(), replay.pages_damaged, replay.logs_damaged),
                (entries, 0, 0),
                "{config:?}, {round}"
            );
        }
        assert!(whole > 5 && parts > 15, "the damage is too weak or too strong: {whole} {parts}");
    }
}

/// A page that says something else but has the right checksum: nobody but the user can make one, and it may claim
/// anything; it must not take the program down.
#[test]
fn well_summed_nonsense_neither_panics_nor_takes_memory_without_bound() {
    for config in combinations() {
        let config = Config { objects_max: 1 << 20, ..config };
        let (files, _) = make(config);
        let mut random = Random(2);
        for _ in 0..60 {
            let mut forged = files.clone();
            for log in forged.values_mut() {
                let pages: Vec<usize> = log
                    .chunks_exact(512)
                    .enumerate()
                    .filter(|(_, page)| &page[4..8] == b"HOLX")
                    .map(|(index, _)| index * 512)
                    .collect();
                let Some(&page) = pages.get(random.below(pages.len() as u64) as usize) else { continue };
                for _ in 0..=random.below(3) {
                    let reach = if random.chance(50) { 120 } else { 504 };
                    let at = page + 8 + random.below(reach) as usize;
                    let value = [0, 1, 4, 0x7f, 0x80, 0xff, random.next() as u8][random.below(7) as usize];
                    let length = [1, 2, 4, 8][random.below(4) as usize];
                    log[at..(at + length).min(page + 512)].fill(value);
                }
                slow_reader::seal_index_page(&mut log[page..page + 512], page as u64);
            }
            let mut store = MemoryStore::with_files(forged);
            if let Ok((mut log, _)) = ObjectLog::open(&mut store, config) {
                let paths: Vec<Vec<u8>> = log.iter().map(|(path, _)| path.to_vec()).collect();
                for path in paths {
                    let handle = log.resume(&path).unwrap();
                    log.record(handle, 0).unwrap();
                }
                log.flush().unwrap();
            }
        }
    }
}

#[test]
fn a_damaged_page_costs_only_what_is_in_it() {
    for config in combinations() {
        let mut store = MemoryStore::new();
        let (mut log, _) = ObjectLog::open(&mut store, config).unwrap();
        let handle = log.begin(b"big", binding(1, 20_000)).unwrap();
        (0..20_000).for_each(|object| assert!(log.record(handle, object).unwrap()));
        log.sync().unwrap();
        drop(log);
        let (name, log) = store.files().into_iter().next().unwrap();
        let pages = log.len() / 512;
        assert!(pages > 5);
        for page in 1..pages.min(8) {
            let mut damaged = log.clone();
            damaged[page * 512 + 100] ^= 0x10;
            let mut store = MemoryStore::with_files([(name.clone(), damaged)]);
            let (_, replay) = ObjectLog::open(&mut store, config).unwrap();
            assert_eq!((replay.entries, replay.pages_damaged), (1, 1), "{config:?}");
            let lost = 20_000 - replay.objects;
            assert!(lost > 0 && lost <= 4032, "{config:?}: {lost} objects lost with one page");
        }
    }
}

/// Each record is small, and each of them says that a long path is its own.
#[test]
fn records_that_share_a_path_do_not_take_its_room_once_each() {
    const PATH_BYTES: usize = 50_000;
    for config in combinations() {
        let mut store = MemoryStore::new();
        let (mut log, _) = ObjectLog::open(&mut store, config).unwrap();
        let handle = log.begin(&[b'p'; PATH_BYTES], binding(1, 5)).unwrap();
        log.record(handle, 3).unwrap();
        log.sync().unwrap();
        drop(log);
        let (name, mut log) = store.files().into_iter().next().unwrap();
        log.resize(log.len().next_multiple_of(512), 0);
        for _ in 0..200 {
            let page = log.len();
            log.extend_from_within(..512);
            slow_reader::seal_index_page(&mut log[page..], page as u64);
        }
        let mut store = MemoryStore::with_files([(name.clone(), log.clone())]);
        let (contents, peak_bytes) = allocation::peak_of(|| read_log(&mut store, &name, 1 << 20));
        let records = contents.unwrap().unwrap().records;
        assert!(records.iter().all(|record| record.path.len() == PATH_BYTES && record.logged.done.get(3)));
        assert!((1..=3).contains(&records.len()), "{config:?}: {} records", records.len());
        assert!(peak_bytes < 4 * log.len() as u64 + (64 << 10), "{config:?}: {peak_bytes} for {}", log.len());
    }
}
