//! Unfinished files that somebody replaces by a copy, and storage that tells late of what it has lost.

mod sink_support;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use haul_model::op::Prepared;
use haul_model::{Code, EntryId, Failure, Token};
use haul_storage::conformance_sink::{Driver, OBJECT, content};
use haul_storage::sink::{Fault, Faults, SinkSettings, SyncMode};
use sink_support::{Scratch, names};

const ONE: [u8; 4] = *b"one.";
const TWO: [u8; 4] = *b"two.";
const ENOSPC: i32 = 28;

/// As `cp -p FILE COPY; mv COPY FILE` does it.
fn replace(scratch: &Scratch, token: Token, suffix: &str) {
    let path = scratch.path(format!("top/.haul-{token}{suffix}").as_bytes());
    let copy = scratch.outside.join("copy");
    fs::copy(&path, &copy).unwrap();
    fs::rename(copy, path).unwrap();
}

/// The table says of the file that is there now that it is the one that was written to: it was given its number, as on another disk.
fn give_number(scratch: &Scratch, token: Token, size: usize) {
    let path = |suffix| scratch.path(format!("top/.haul-{token}{suffix}").as_bytes());
    let number = fs::metadata(path("")).unwrap().ino();
    let table = File::options().read(true).write(true).open(path(".sums")).unwrap();
    let count = (size as u64).div_ceil(OBJECT.into());
    let mut entry = [0; 40];
    table.read_exact_at(&mut entry, count * 40).unwrap();
    entry[..8].copy_from_slice(&number.to_le_bytes());
    let object_bytes = u32::to_le_bytes(OBJECT);
    let place = [(size as u64).to_le_bytes(), count.to_le_bytes()];
    let covered = [&token.0, &place[0][..], &object_bytes, &place[1], &entry[..32]].concat();
    entry[32..].copy_from_slice(&blake3::hash(&covered).as_bytes()[..8]);
    table.write_all_at(&entry, count * 40).unwrap();
}

/// The `nth` of these fails.
fn without_room(scratch: &Scratch, fault: Fault, nth: u64) -> (Driver, EntryId) {
    let faults = Some(Arc::new(Faults::default().fail(fault, nth, ENOSPC)));
    scratch.session_with(SinkSettings { faults, ..scratch.settings(ONE) })
}

/// The next session goes on with it.
fn resumed(scratch: &Scratch, token: Token, bytes: &[u8]) -> (Driver, haul_model::Entry) {
    let (driver, top) = scratch.session(TWO);
    let file = file_of(&driver, top, bytes);
    assert_eq!(driver.prepare(&file, Some(token), true), Prepared::Resume(token));
    (driver, file)
}

fn file_of(driver: &Driver, top: EntryId, bytes: &[u8]) -> haul_model::Entry {
    driver.file(top, b"large", bytes.len())
}

#[test]
fn a_copy_in_the_place_of_an_unfinished_file_is_read_before_it_is_believed() {
    let bytes = content(7, 4 * OBJECT as usize - 5);
    // The hashes beside it may be copied with it.
    for (replaced_at, suffixes, is_whole) in [
        (4, &[""][..], true),
        (4, &["", ".sums"], true),
        (3, &[""], false),
        (3, &["", ".sums"], false),
        (2, &["", ".sums"], false),
    ] {
        let scratch = Scratch::new(SyncMode::EachFile);
        let (driver, top) = scratch.session(ONE);
        let file = file_of(&driver, top, &bytes);
        let token = driver.start(&file);
        for index in 0..4 {
            if index == replaced_at {
                suffixes.iter().for_each(|suffix| replace(&scratch, token, suffix));
            }
            assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
            assert_eq!(driver.sync(&[file.id]), []);
        }
        if replaced_at == 4 {
            suffixes.iter().for_each(|suffix| replace(&scratch, token, suffix));
        }
        drop(driver);
        let (driver, file) = resumed(&scratch, token, &bytes);
        let sealed = driver.seal(&file, token, None).map(drop);
        assert_eq!(
            sealed,
            if is_whole { Ok(()) } else { Err(Code::HashMismatch.into()) },
            "{replaced_at} {suffixes:?}"
        );
        if is_whole {
            driver.settle(&[file.id]);
            assert_eq!(fs::read(scratch.path(b"top/large")).unwrap(), bytes);
        }
    }
}

/// DEST was moved to another disk while objects came, and the copy has the same number there.
#[test]
fn a_copy_that_has_the_number_of_the_original_is_read_before_it_is_believed() {
    let bytes = content(7, 4 * OBJECT as usize - 5);
    for (is_missing, is_damaged) in [(false, false), (false, true), (true, false)] {
        let scratch = Scratch::new(SyncMode::EachFile);
        let (driver, top) = scratch.session(ONE);
        let file = file_of(&driver, top, &bytes);
        let token = driver.start(&file);
        for index in 0..4 {
            if index == 2 && is_missing {
                ["", ".sums"].iter().for_each(|suffix| replace(&scratch, token, suffix));
            }
            assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
            assert_eq!(driver.sync(&[file.id]), []);
        }
        drop(driver);
        if !is_missing {
            replace(&scratch, token, "");
        }
        if is_damaged {
            let path = scratch.path(format!("top/.haul-{token}").as_bytes());
            let copy = File::options().write(true).open(path).unwrap();
            copy.write_all_at(&[!bytes[OBJECT as usize]], OBJECT.into()).unwrap();
        }
        give_number(&scratch, token, bytes.len());
        let (driver, file) = resumed(&scratch, token, &bytes);
        let sealed = driver.seal(&file, token, None).map(drop);
        let is_as_it_was = !is_missing && !is_damaged;
        assert_eq!(sealed, if is_as_it_was { Ok(()) } else { Err(Code::HashMismatch.into()) });
    }
}

/// What a backup has kept of it, and puts back into the file that is there, with its times (`cp -a`, `rsync -a --inplace`).
struct Kept(Vec<(std::path::PathBuf, Vec<u8>, std::time::SystemTime)>);

impl Kept {
    fn of(scratch: &Scratch, token: Token, suffixes: &[&str]) -> Kept {
        let path = |suffix: &&str| scratch.path(format!("top/.haul-{token}{suffix}").as_bytes());
        let kept = |path: std::path::PathBuf| {
            let (bytes, modified) =
                (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap());
            (path, bytes, modified)
        };
        Kept(suffixes.iter().map(|suffix| kept(path(suffix))).collect())
    }

    fn put_back(&self) {
        for (path, bytes, modified) in &self.0 {
            let file = File::options().write(true).truncate(true).open(path).unwrap();
            file.write_all_at(bytes, 0).unwrap();
            file.set_modified(*modified).unwrap();
        }
    }
}

#[test]
fn what_was_put_back_from_a_backup_is_read_before_it_is_believed() {
    let bytes = content(7, 4 * OBJECT as usize - 5);
    for (kept_after, suffixes, sessions, is_whole) in [
        (2, &["", ".sums"][..], 0, false),
        (2, &[""], 0, false),
        (2, &["", ".sums"], 1, false),
        (4, &["", ".sums"], 0, true),
        (4, &[""], 1, true),
    ] {
        let scratch = Scratch::fast(SyncMode::EachFile);
        let (driver, top) = scratch.session(ONE);
        let file = file_of(&driver, top, &bytes);
        let (token, mut kept) = (driver.start(&file), None);
        for index in 0..4 {
            assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
            assert_eq!(driver.sync(&[file.id]), []);
            if index + 1 == kept_after {
                kept = Some(Kept::of(&scratch, token, suffixes));
            }
        }
        drop(driver);
        kept.unwrap().put_back();
        // What one writes hides that the times were set.
        for _ in 0..sessions {
            let (driver, file) = resumed(&scratch, token, &bytes);
            assert_eq!(driver.write_object(&file, token, &bytes, 3), Ok(()));
            assert_eq!(driver.sync(&[file.id]), []);
        }
        let (driver, file) = resumed(&scratch, token, &bytes);
        let sealed = driver.seal(&file, token, None).map(drop);
        let expected = if is_whole { Ok(()) } else { Err(Code::HashMismatch.into()) };
        assert_eq!(sealed, expected, "{kept_after} {suffixes:?} {sessions}");
    }
}

/// `cp -r` sets no times, and a snapshot may have a part of an object. What is not in the table was not there.
#[test]
fn what_has_gone_back_is_noticed_where_the_table_has_gone_back_with_it() {
    let bytes = content(7, 4 * OBJECT as usize - 5);
    for of_the_third in [0, OBJECT / 2] {
        let scratch = Scratch::fast(SyncMode::EachFile);
        let (driver, top) = scratch.session(ONE);
        let file = file_of(&driver, top, &bytes);
        let token = driver.start(&file);
        let path = |suffix| scratch.path(format!("top/.haul-{token}{suffix}").as_bytes());
        let mut table = Vec::new();
        for index in 0..4 {
            assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
            assert_eq!(driver.sync(&[file.id]), []);
            if index == 1 {
                table = fs::read(path(".sums")).unwrap();
            }
        }
        drop(driver);
        let put_back = |suffix, from: u64, bytes: &[u8]| {
            File::options().write(true).open(path(suffix)).unwrap().write_all_at(bytes, from).unwrap();
        };
        let from = u64::from(2 * OBJECT + of_the_third);
        put_back("", from, &vec![0; bytes.len() - from as usize]);
        put_back(".sums", 0, &table);
        let (driver, file) = resumed(&scratch, token, &bytes);
        assert_eq!(driver.seal(&file, token, None), Err(Code::HashMismatch.into()), "{of_the_third}");
    }
}

#[test]
fn what_was_put_back_and_has_no_hashes_begins_anew() {
    for objects in [1, 3] {
        let bytes = content(7, objects * OBJECT as usize - 5);
        let scratch = Scratch::fast(SyncMode::EachFile);
        let (driver, top) = scratch.session(ONE);
        let file = file_of(&driver, top, &bytes);
        let token = driver.start(&file);
        for index in 0..objects as u64 {
            assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
        }
        assert_eq!(driver.sync(&[file.id]), []);
        drop(driver);
        let claim = || {
            let (driver, top) = scratch.session(TWO);
            let file = file_of(&driver, top, &bytes);
            driver.prepare(&file, Some(token), true)
        };
        assert_eq!(claim(), Prepared::Resume(token), "it is as it was written");
        Kept::of(&scratch, token, &[""]).put_back();
        assert!(matches!(claim(), Prepared::Start(other) if other != token), "{objects}");
    }
}

#[test]
fn what_was_written_gets_its_name_and_not_what_is_in_its_place() {
    let bytes = content(7, 3 * OBJECT as usize);
    for is_sealed in [false, true] {
        let scratch = Scratch::new(SyncMode::EachFile);
        let (driver, top) = scratch.session(ONE);
        let file = file_of(&driver, top, &bytes);
        let token = driver.start(&file);
        driver.write_in_parts(&file, token, &bytes);
        if !is_sealed {
            replace(&scratch, token, "");
        }
        assert!(driver.seal(&file, token, None).is_ok());
        assert_eq!(driver.sync(&[file.id]), []);
        if is_sealed {
            replace(&scratch, token, "");
        }
        assert_eq!(driver.publish(&[file.id]), [(file.id, Failure::new(Code::HashMismatch))]);
        assert!(!names(&scratch.path(b"top")).contains(&b"large"[..]));
    }
}

/// On NFS a write without room tells of what was written before it, too, and the sync that follows tells of nothing.
#[test]
fn after_a_write_that_failed_no_sync_vouches_for_what_was_written_before() {
    let bytes = content(7, 4 * OBJECT as usize);
    let scratch = Scratch::new(SyncMode::EachFile);
    let (driver, top) = without_room(&scratch, Fault::Write, 3);
    let file = file_of(&driver, top, &bytes);
    let token = driver.start(&file);
    assert_eq!(driver.write_object(&file, token, &bytes, 0), Ok(()));
    assert_eq!(driver.sync(&[file.id]), []);
    assert_eq!(driver.write_object(&file, token, &bytes, 1), Ok(()));
    let failed = driver.write_object(&file, token, &bytes, 2);
    assert_eq!(failed, Err(Failure::os(Code::SinkNoSpace, ENOSPC)));
    let lost = driver.sync(&[file.id]);
    assert_eq!(lost, [(file.id, Failure::new(Code::SinkSync))], "the second object may be lost");
    for index in 1..4 {
        assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
    }
    assert_eq!(driver.sync(&[file.id]), []);
    assert!(driver.seal(&file, token, None).is_ok());
    driver.settle(&[file.id]);
    assert_eq!(fs::read(scratch.path(b"top/large")).unwrap(), bytes);
}

/// One that was written in part is not to say of other bytes what it says of those that were there.
#[test]
fn what_got_into_a_table_that_had_no_room_for_all_is_forgotten_with_its_object() {
    let bytes = content(7, 4 * OBJECT as usize - 5);
    let others = content(8, bytes.len());
    let scratch = Scratch::new(SyncMode::EachFile);
    // The inode, the first object, and then the third one.
    let (driver, top) = without_room(&scratch, Fault::Table, 3);
    let file = file_of(&driver, top, &bytes);
    let token = driver.start(&file);
    for index in [0, 2] {
        assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
    }
    assert_eq!(driver.sync(&[file.id]), []);
    assert_eq!(driver.write_object(&file, token, &others, 0), Ok(()));
    drop(driver);
    let (driver, file) = resumed(&scratch, token, &bytes);
    for index in [1, 3] {
        assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
    }
    assert_eq!(driver.sync(&[file.id]), []);
    let sealed = driver.seal(&file, token, None);
    let is_there = [&others[..OBJECT as usize], &bytes[OBJECT as usize..]].concat();
    let scratch = Scratch::new(SyncMode::EachFile);
    let (driver, top) = scratch.session(ONE);
    let file = file_of(&driver, top, &is_there);
    let token = driver.start(&file);
    driver.write_in_parts(&file, token, &is_there);
    assert_eq!(sealed, driver.seal(&file, token, None));
}

/// A file system that writes nothing in place (btrfs) has no room then even for a word that there was none.
#[test]
fn a_table_that_cannot_even_say_that_it_lacks_hashes_goes() {
    let bytes = content(7, 4 * OBJECT as usize - 5);
    let scratch = Scratch::new(SyncMode::EachFile);
    // The inode, the first object; the second one, and what it lacks.
    let faults = Faults::default().fail(Fault::Table, 3, ENOSPC).fail(Fault::Table, 4, ENOSPC);
    let (driver, top) =
        scratch.session_with(SinkSettings { faults: Some(Arc::new(faults)), ..scratch.settings(ONE) });
    let file = file_of(&driver, top, &bytes);
    let token = driver.start(&file);
    for index in 0..2 {
        assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
        assert_eq!(driver.sync(&[file.id]), [], "the objects are durable all the same");
    }
    drop(driver);
    let (driver, file) = resumed(&scratch, token, &bytes);
    for index in 2..4 {
        assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
        assert_eq!(driver.sync(&[file.id]), []);
    }
    assert!(driver.seal(&file, token, None).is_ok(), "they are hashed again from the file");
    driver.settle(&[file.id]);
    assert_eq!(fs::read(scratch.path(b"top/large")).unwrap(), bytes);
}

/// A table that could not be written once says later what it could not say then, and what it is of.
#[test]
fn hashes_that_found_no_room_are_kept_for_the_next_group() {
    let bytes = content(7, 4 * OBJECT as usize - 5);
    // The inode, then an object of each group.
    for nth in 1..4 {
        let scratch = Scratch::new(SyncMode::EachFile);
        let (driver, top) = without_room(&scratch, Fault::Table, nth);
        let file = file_of(&driver, top, &bytes);
        let token = driver.start(&file);
        for index in 0..4 {
            assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
            assert_eq!(driver.sync(&[file.id]), [], "the objects are durable all the same");
        }
        // DEST is moved to where there is room.
        ["", ".sums"].iter().for_each(|suffix| replace(&scratch, token, suffix));
        drop(driver);
        let (driver, file) = resumed(&scratch, token, &bytes);
        assert!(driver.seal(&file, token, None).is_ok(), "{nth}");
        driver.settle(&[file.id]);
        assert_eq!(fs::read(scratch.path(b"top/large")).unwrap(), bytes);
    }
}

/// A device, or a server, that said it was durable goes back to what it was before.
#[test]
fn objects_that_are_gone_again_do_not_come_back_as_zeros() {
    let bytes = content(7, 4 * OBJECT as usize - 5);
    let scratch = Scratch::new(SyncMode::EachFile);
    let (driver, top) = scratch.session(ONE);
    let file = file_of(&driver, top, &bytes);
    let token = driver.start(&file);
    let [path, table] =
        ["", ".sums"].map(|suffix| scratch.path(format!("top/.haul-{token}{suffix}").as_bytes()));
    let write = |from| {
        for index in [from, from + 1] {
            assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
        }
        assert_eq!(driver.sync(&[file.id]), []);
    };
    write(0);
    let before = fs::read(&table).unwrap();
    write(2);
    drop(driver);
    fs::write(&table, before).unwrap();
    cut_off(&path, 2 * u64::from(OBJECT), bytes.len());
    let (driver, file) = resumed(&scratch, token, &bytes);
    assert_eq!(driver.seal(&file, token, None).map(drop), Err(Code::HashMismatch.into()));
}

/// What lies behind becomes a hole.
fn cut_off(path: &Path, length: u64, size: usize) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(length).unwrap();
    file.set_len(size as u64).unwrap();
}

/// A copy within one host has them, and a file that was whole before anything was synced has no table.
#[test]
fn holes_that_belong_there_are_no_loss() {
    let mut bytes = content(7, 4 * OBJECT as usize);
    bytes[OBJECT as usize..].fill(0);
    for kept in [0, 2] {
        let scratch = Scratch::new(SyncMode::EachFile);
        let (driver, top) = scratch.session(ONE);
        let file = file_of(&driver, top, &bytes);
        let token = driver.start(&file);
        for index in 0..4 {
            assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
            if index < kept {
                assert_eq!(driver.sync(&[file.id]), []);
            }
        }
        assert_eq!(driver.sync(&[file.id]), []);
        drop(driver);
        let unfinished = |suffix| scratch.path(format!("top/.haul-{token}{suffix}").as_bytes());
        assert_eq!(unfinished(".sums").exists(), kept > 0);
        cut_off(&unfinished(""), OBJECT.into(), bytes.len());
        let (driver, file) = resumed(&scratch, token, &bytes);
        assert!(driver.seal(&file, token, None).is_ok(), "{kept}");
        driver.settle(&[file.id]);
        assert_eq!(fs::read(scratch.path(b"top/large")).unwrap(), bytes);
    }
}

/// A file of terabytes is not hashed for nobody.
#[test]
fn when_the_session_is_given_up_nothing_is_hashed_again() {
    let bytes = content(7, 4 * OBJECT as usize);
    for is_given_up in [false, true] {
        let scratch = Scratch::new(SyncMode::EachFile);
        let (driver, top) = scratch.session(ONE);
        let file = file_of(&driver, top, &bytes);
        let token = driver.start(&file);
        for index in 0..4 {
            assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
            assert_eq!(driver.sync(&[file.id]), []);
        }
        drop(driver);
        fs::remove_file(scratch.path(format!("top/.haul-{token}.sums").as_bytes())).unwrap();
        let (driver, file) = resumed(&scratch, token, &bytes);
        if is_given_up {
            driver.give_up();
        }
        assert_eq!(driver.seal(&file, token, None).is_err(), is_given_up);
    }
}
