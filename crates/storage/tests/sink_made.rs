//! Members that are made first and written target by target.

mod sink_support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use haul_model::op::{Landed, MemberWrite, MemberWritten, MembersStep, Progress, SinkDone, SinkOp};
use haul_model::{BlockId, Code, Entry, Hash, SlotId, Target, Token};
use haul_storage::conformance_sink::Driver;
use haul_storage::sink::SyncMode;
use sink_support::Scratch;

/// The first target of the layout file; the mount itself had its number before.
const ONE: Target = 3;
const FILL: MembersStep = MembersStep::Fill { target: ONE, gently: true };

/// A member whose bytes are in slot 0 from `offset` on.
fn member(driver: &Driver, entry: &Entry, offset: usize, bytes: &[u8]) -> MemberWrite {
    driver.pool().lease(SlotId(0)).unwrap()[offset..][..bytes.len()].copy_from_slice(bytes);
    let hash = Hash(*blake3::hash(bytes).as_bytes());
    MemberWrite { entry: Arc::new(entry.clone()), offset: offset as u32, hash }
}

/// What is under temporary names, by its bytes.
fn unfinished(top: &Path) -> Vec<Vec<u8>> {
    let read = |entry: std::io::Result<fs::DirEntry>| fs::read(entry.unwrap().path()).unwrap();
    let mut found: Vec<_> = fs::read_dir(top).unwrap().map(read).collect();
    found.sort();
    found
}

fn made(target: Target) -> MemberWritten {
    Ok(Landed::Made(target))
}

#[test]
fn what_is_made_is_empty_until_its_target_can_take_it() {
    let scratch = Scratch::fast(SyncMode::EachFile).striped();
    let (driver, top) = scratch.session(*b"one.");
    let (one, other, empty) =
        (driver.file(top, b"one", 3), driver.file(top, b"other", 600_000), driver.file(top, b"empty", 0));
    let large = vec![7; 600_000];
    let writes = [
        member(&driver, &one, 0, b"one"),
        member(&driver, &other, 3, &large),
        member(&driver, &empty, 600_003, b""),
    ];
    let results = driver.members_step(MembersStep::Make, &writes, 600_003);
    assert_eq!(
        results,
        [made(ONE), made(ONE), Ok(Landed::Written)],
        "nothing is to be written of an empty file"
    );
    let directory = scratch.path(b"top");
    assert_eq!(unfinished(&directory), [vec![], vec![], vec![]] as [Vec<u8>; 3]);
    // Two threads at a time may read the slot, and nobody may write into it meanwhile.
    let reading = driver.pool().read(SlotId(0)).unwrap();
    assert!(driver.pool().lease(SlotId(0)).is_none());
    assert_eq!(driver.members_step(FILL, &writes[1..2], 600_003), [Ok(Landed::Written)], "in pieces");
    drop(reading);
    assert_eq!(driver.members_step(FILL, &writes[..1], 600_003), [Ok(Landed::Written)]);
    driver.settle(&[one.id, other.id, empty.id]);
    let read = |name: &str| fs::read(directory.join(name)).unwrap();
    assert_eq!((read("one"), read("other"), read("empty")), (b"one".to_vec(), large, vec![]));
}

#[test]
fn what_is_made_is_private_until_it_is_whole() {
    for mode in [SyncMode::EachFile, SyncMode::Measured] {
        let scratch = Scratch::fast(mode).striped();
        let (driver, top) = scratch.session(*b"one.");
        let file = driver.file(top, b"file", 4);
        let writes = [member(&driver, &file, 0, b"data")];
        assert_eq!(driver.members_step(MembersStep::Make, &writes, 4), [made(ONE)]);
        let [unfinished] = &fs::read_dir(scratch.path(b"top")).unwrap().collect::<Vec<_>>()[..] else {
            panic!("one is there")
        };
        let status = unfinished.as_ref().unwrap().metadata().unwrap();
        assert_eq!(status.mode() & 0o7777, 0o600);
        assert_eq!(driver.members_step(FILL, &writes, 4), [Ok(Landed::Written)]);
        driver.settle(&[file.id]);
        let status = fs::metadata(scratch.path(b"top/file")).unwrap();
        assert_eq!(status.mode() & 0o7777, file.attributes.mode & 0o1777);
    }
}

#[test]
fn a_member_is_written_once_for_each_time_that_it_is_made() {
    let scratch = Scratch::fast(SyncMode::EachFile).striped();
    let (driver, top) = scratch.session(*b"one.");
    let file = driver.file(top, b"file", 4);
    let writes = [member(&driver, &file, 0, b"data")];
    let never = driver.members_step(FILL, &writes, 4);
    assert_eq!(never, [Err(Code::Internal.into())], "it was not made");
    assert_eq!(driver.members_step(MembersStep::Make, &writes, 4), [made(ONE)]);
    assert_eq!(driver.members_step(MembersStep::Make, &writes, 4), [made(ONE)], "its target hung, say");
    let directory = scratch.path(b"top");
    assert_eq!(unfinished(&directory), [vec![]] as [Vec<u8>; 1], "the first one is gone");
    assert_eq!(driver.members_step(FILL, &writes, 4), [Ok(Landed::Written)]);
    assert_eq!(driver.members_step(FILL, &writes, 4), [Err(Code::Internal.into())]);
    driver.settle(&[file.id]);
    assert_eq!(fs::read(directory.join("file")).unwrap(), b"data");
}

#[test]
fn who_was_given_up_takes_nothing_that_was_made_anew() {
    let scratch = Scratch::fast(SyncMode::EachFile).striped();
    let (driver, top) = scratch.session(*b"one.");
    let (one, two) = (driver.file(top, b"one", 3), driver.file(top, b"two", 3));
    let writes = [member(&driver, &one, 0, b"one"), member(&driver, &two, 3, b"two")];
    assert_eq!(driver.members_step(MembersStep::Make, &writes, 6), [made(ONE), made(ONE)]);
    let progress = Progress::default();
    progress.abandon();
    assert_eq!(driver.members_step(MembersStep::Make, &writes, 6), [made(ONE), made(ONE)]);
    let (block, slot) = (BlockId(7), SlotId(0));
    let late =
        SinkOp::WriteMembers { block, step: FILL, slot, length: 6, members: writes.to_vec(), progress };
    let Some(SinkDone::WrittenMembers { results, .. }) = driver.run(late) else {
        panic!("there is an answer")
    };
    assert!(results.iter().all(Result::is_err), "{results:?}");
    let written = Ok(Landed::Written);
    assert_eq!(driver.members_step(FILL, &writes, 6), [written, written]);
    driver.settle(&[one.id, two.id]);
    let read = |name: &[u8]| fs::read(scratch.path(name)).unwrap();
    assert_eq!((read(b"top/one"), read(b"top/two")), (b"one".to_vec(), b"two".to_vec()));
}

#[test]
fn what_is_dropped_before_it_is_written_leaves_nothing_behind() {
    let scratch = Scratch::fast(SyncMode::EachFile).striped();
    let (driver, top) = scratch.session(*b"one.");
    let file = driver.file(top, b"file", 4);
    let writes = [member(&driver, &file, 0, b"data")];
    assert_eq!(driver.members_step(MembersStep::Make, &writes, 4), [made(ONE)]);
    driver.discard(file.id, Token::NONE);
    assert!(unfinished(&scratch.path(b"top")).is_empty());
    assert_eq!(driver.members_step(FILL, &writes, 4), [Err(Code::Internal.into())]);
}

#[test]
fn wrong_bytes_are_not_even_made() {
    let scratch = Scratch::fast(SyncMode::EachFile).striped();
    let (driver, top) = scratch.session(*b"one.");
    let file = driver.file(top, b"file", 4);
    let wrong = MemberWrite { hash: Hash([1; 32]), ..member(&driver, &file, 0, b"data") };
    assert_eq!(driver.members_step(MembersStep::Make, &[wrong], 4), [Err(Code::HashMismatch.into())]);
    assert!(unfinished(&scratch.path(b"top")).is_empty());
}
