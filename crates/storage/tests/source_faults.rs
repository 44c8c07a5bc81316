//! The faults that other tests rely on do happen. Each runs in a process of its own: they are read once.
#![cfg(feature = "faults")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use haul_buffers::Pool;
use haul_model::op::{MemberRead, Progress, SourceDone, SourceOp};
use haul_model::{BlockId, Code, Entry, Failure, SlotId};
use haul_storage::SourceStorage;
use haul_storage::conformance_source::{read_members, scan_all};
use haul_storage::source::{PosixSource, Root, SourceOptions};
use haul_storage::spill::{SpillFile, Spilling};

const SIZE: usize = 1000;

/// Reads three files. What came of each, and what is in the slot.
fn read_three() -> (Vec<Result<MemberRead, Failure>>, Vec<u8>) {
    let scratch = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(scratch.path().join(name), [7; SIZE]).unwrap();
    }
    let root = Root::new(scratch.path().to_str().unwrap());
    let source = PosixSource::new(vec![root], SourceOptions::default());
    let found = scan_all(&mut source.scan(Arc::new(AtomicU64::new(1))), 1);
    let members: Vec<_> = found.files.into_iter().map(|(_, entry)| entry).collect();
    let pool = Pool::new(1, 4096).unwrap();
    let (length, results) = read_members(&source, &pool, &members);
    let slot = pool.lease(SlotId(0)).unwrap();
    (results, slot[..length as usize].to_vec())
}

/// Runs the test `name` in a process that has the fault, unless this is that process.
fn with_fault(name: &str, variable: &str, value: &str, test: impl FnOnce()) {
    if std::env::var_os(variable).is_some() {
        return test();
    }
    let myself = std::env::current_exe().unwrap();
    let output =
        Command::new(myself).args(["--exact", name, "--nocapture"]).env(variable, value).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_second_read_fails() {
    with_fault("the_second_read_fails", "HAUL_TEST_SOURCE_READ_EIO", "2", || {
        let (results, bytes) = read_three();
        let codes: Vec<Option<Code>> =
            results.iter().map(|result| result.err().map(|failure| failure.code)).collect();
        assert_eq!(codes, [None, Some(Code::SourceRead), None]);
        assert_eq!(results[2].unwrap().offset as usize, SIZE);
        assert_eq!(bytes, [7; 2 * SIZE]);
    });
}

#[test]
fn every_read_from_the_second_on_fails() {
    with_fault("every_read_from_the_second_on_fails", "HAUL_TEST_SOURCE_READ_EIO", "2+", || {
        let (results, _) = read_three();
        assert_eq!(results.iter().filter(|result| result.is_err()).count(), 2);
    });
}

#[test]
fn a_bit_flipped_before_the_hash_is_hashed() {
    with_fault("a_bit_flipped_before_the_hash_is_hashed", "HAUL_TEST_SOURCE_FLIP_BEFORE_HASH", "3", || {
        let (results, bytes) = read_three();
        assert_eq!(bytes[..2 * SIZE], [7; 2 * SIZE]);
        assert_ne!(bytes[2 * SIZE..], [7; SIZE]);
        assert_eq!(results[2].unwrap().hash.unwrap().0, *blake3::hash(&bytes[2 * SIZE..]).as_bytes());
    });
}

#[test]
fn a_bit_flipped_after_the_hash_shows_in_the_hash() {
    with_fault(
        "a_bit_flipped_after_the_hash_shows_in_the_hash",
        "HAUL_TEST_SOURCE_FLIP_AFTER_HASH",
        "1",
        || {
            let (results, bytes) = read_three();
            assert_ne!(bytes[..SIZE], [7; SIZE]);
            assert_eq!(results[0].unwrap().hash.unwrap().0, *blake3::hash(&[7; SIZE]).as_bytes());
        },
    );
}

/// Puts three objects into a spill and gets them back: which of the six steps failed, and how.
fn spill_three() -> Vec<(usize, Failure)> {
    let scratch = tempfile::tempdir().unwrap();
    let source = PosixSource::new(vec![Root::new("/")], SourceOptions::default());
    let file = SpillFile::create(scratch.path(), Some(1 << 20), false).unwrap();
    let (storage, pool) = (Spilling::new(source, file), Pool::new(1, 4096).unwrap());
    let (block, slot, length) = (BlockId(1), SlotId(0), SIZE as u32);
    let puts = (0..3).map(|at| SourceOp::Spill { block, slot, at: at << 16, length });
    let gets = (0..3).map(|at| SourceOp::Unspill {
        block,
        slot,
        at: at << 16,
        offset: 0,
        length,
        single: true,
        mark: None,
    });
    let failed = |(number, op)| match storage.run(op, &pool) {
        Some(
            SourceDone::Spilled { result: Err(failure), .. }
            | SourceDone::Object { result: Err(failure), .. },
        ) => Some((number, failure)),
        _ => None,
    };
    puts.chain(gets).enumerate().filter_map(failed).collect()
}

#[test]
fn the_second_write_to_the_spill_fails() {
    with_fault("the_second_write_to_the_spill_fails", "HAUL_TEST_SPILL_WRITE_EIO", "2", || {
        let failure = Failure::os(Code::SpillFailed, 5);
        // Room was set aside for it: what comes back are zeros, and their hash tells.
        assert_eq!(spill_three(), [(1, failure)]);
    });
}

#[test]
fn reads_from_the_spill_fail_from_the_second_on() {
    with_fault("reads_from_the_spill_fail_from_the_second_on", "HAUL_TEST_SPILL_READ_EIO", "2+", || {
        let failure = Failure::os(Code::SpillFailed, 5);
        assert_eq!(spill_three(), [(4, failure), (5, failure)]);
    });
}

/// A file that is large enough to be hashed on its way, and in memory.
fn large_in_memory() -> (tempfile::TempDir, PosixSource, Arc<Entry>) {
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    std::fs::write(scratch.path().join("a"), vec![7; 300_000]).unwrap();
    let root = Root::new(scratch.path().to_str().unwrap());
    let source = PosixSource::new(vec![root], SourceOptions::default());
    let found = scan_all(&mut source.scan(Arc::new(AtomicU64::new(1))), 1);
    let entry = Arc::clone(&found.files[0].1);
    (scratch, source, entry)
}

#[test]
fn after_a_read_in_vain_nothing_is_left_to_streams_unread() {
    with_fault(
        "after_a_read_in_vain_nothing_is_left_to_streams_unread",
        "HAUL_TEST_SOURCE_READ_EIO",
        "2",
        || {
            let (_scratch, source, entry) = large_in_memory();
            let pool = Pool::new(1, 1 << 20).unwrap();
            let read = |again| {
                let (block, entry, slot) = (BlockId(1), Arc::clone(&entry), SlotId(0));
                let op = SourceOp::ReadObject {
                    block,
                    entry,
                    offset: 0,
                    length: 300_000,
                    slot,
                    single: true,
                    again,
                    on_the_way: true,
                    gently: false,
                };
                match source.run(op, &pool) {
                    Some(SourceDone::Object { result, .. }) => result,
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(read(false), Ok(None), "it is hashed on its way");
            assert!(read(true).is_err());
            assert!(matches!(read(false), Ok(Some(_))), "it is read before it is sent");
        },
    );
}

#[test]
fn after_members_were_read_in_vain_none_is_left_to_streams_unread() {
    with_fault(
        "after_members_were_read_in_vain_none_is_left_to_streams_unread",
        "HAUL_TEST_SOURCE_READ_EIO",
        "2",
        || {
            let (_scratch, source, entry) = large_in_memory();
            let pool = Pool::new(1, 1 << 20).unwrap();
            let read = |again| {
                let (block, slot, members) = (BlockId(1), SlotId(0), vec![Arc::clone(&entry)]);
                let op = SourceOp::ReadMembers {
                    block,
                    slot,
                    members,
                    again,
                    on_the_way: true,
                    progress: Progress::default(),
                };
                match source.run(op, &pool) {
                    Some(SourceDone::Members { results, .. }) => results[0],
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(read(false).unwrap().hash, None, "it is hashed on its way");
            assert!(read(true).is_err());
            assert!(read(false).unwrap().hash.is_some(), "it is read before it is sent");
        },
    );
}

#[test]
fn few_members_stay_in_their_files_at_a_time() {
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    std::fs::write(scratch.path().join("a"), vec![7; 4096]).unwrap();
    let root = Root::new(scratch.path().to_str().unwrap());
    let options = SourceOptions { in_place: true, in_place_member_bytes_min: 1, ..SourceOptions::default() };
    let source = PosixSource::new(vec![root], options);
    let found = scan_all(&mut source.scan(Arc::new(AtomicU64::new(1))), 1);
    let pool = Pool::new(40, 1 << 20).unwrap();
    for slot in 0..40 {
        let (block, slot, members) = (BlockId(1), SlotId(slot), vec![Arc::clone(&found.files[0].1); 16]);
        let op = SourceOp::ReadMembers {
            block,
            slot,
            members,
            again: false,
            on_the_way: false,
            progress: Progress::default(),
        };
        assert!(source.run(op, &pool).is_some());
    }
    assert!((240..300).contains(&pool.file_ranges_held()), "{}", pool.file_ranges_held());
}
