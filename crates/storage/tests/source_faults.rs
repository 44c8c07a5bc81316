//! The faults that other tests rely on do happen. Each runs in a process of its own: they are read once.
#![cfg(feature = "faults")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use haul_buffers::Pool;
use haul_model::op::MemberRead;
use haul_model::{Code, Failure, SlotId};
use haul_storage::conformance_source::{read_members, scan_all};
use haul_storage::source::{PosixSource, Root, SourceOptions};

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
        assert_eq!(results[2].unwrap().hash.0, *blake3::hash(&bytes[2 * SIZE..]).as_bytes());
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
            assert_eq!(results[0].unwrap().hash.0, *blake3::hash(&[7; SIZE]).as_bytes());
        },
    );
}
