//! Nothing below the destination leads out of it, whatever stands there or is put there meanwhile.

mod sink_support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use haul_model::op::Prepared;
use haul_model::{Attributes, Code, Entry, EntryId, Failure, Hash, Kind, Token};
use haul_storage::conformance_sink::{OBJECT, Seen, content};
use haul_storage::sink::SyncMode;
use haul_testkit::lacks;
use sink_support::{Scratch, look, names, plant};

const ONE: [u8; 4] = *b"one.";
const TWO: [u8; 4] = *b"two.";

fn temporary(token: Token) -> String {
    format!("top/.haul-{token}")
}

/// A file outside that must stay as it is, and a directory that must stay empty.
fn untouched(scratch: &Scratch) {
    assert_eq!(look(&scratch.outside.join("file")), Some(Seen::file(b"untouched")));
    assert_eq!(names(&scratch.outside), [b"file".to_vec()].into());
}

fn scratch() -> Scratch {
    let scratch = Scratch::new(SyncMode::EachFile);
    plant(&scratch.outside.join("file"), &Seen::file(b"untouched"));
    scratch
}

#[test]
fn a_symlink_as_leaf_is_replaced_and_not_written_through() {
    let scratch = scratch();
    plant(&scratch.path(b"top"), &Seen::directory());
    for name in ["member", "object", "wider"] {
        symlink(scratch.outside.join("file"), scratch.path(b"top").join(name)).unwrap();
    }
    let (driver, top) = scratch.session(ONE);
    driver.put_member(top, b"member", b"untouched");
    driver.put_objects(top, b"object", &content(1, 2 * OBJECT as usize));
    // Same size and time as what the link leads to: still not complete.
    let mut wider = driver.file(top, b"wider", 9);
    wider.attributes.mode = 0o777;
    assert_eq!(driver.prepare(&wider, None, false), Prepared::Start(Token::NONE));
    assert_eq!(driver.finish(), []);
    untouched(&scratch);
    assert_eq!(look(&scratch.path(b"top/member")).unwrap().kind, Kind::File);
    assert_eq!(look(&scratch.path(b"top/object")).unwrap().kind, Kind::File);
}

#[test]
fn a_symlink_as_parent_is_refused() {
    let scratch = scratch();
    plant(&scratch.path(b"top"), &Seen::directory());
    symlink(&scratch.outside, scratch.path(b"top/link")).unwrap();
    let (driver, top) = scratch.session(ONE);
    let link = driver.entry(top, b"link", Kind::Directory);
    let answer = driver.prepare(&link, None, false);
    assert!(matches!(answer, Prepared::Fail(Failure { code: Code::SinkNotDirectory, .. })), "{answer:?}");
    untouched(&scratch);
}

#[test]
fn the_root_that_the_user_named_may_be_a_symlink() {
    let mut scratch = Scratch::new(SyncMode::EachFile);
    let alias = scratch.outside.join("alias");
    symlink(&scratch.destination, &alias).unwrap();
    scratch.destination = alias;
    let (driver, top) = scratch.session(ONE);
    driver.put_member(top, b"file", b"x");
    assert_eq!(driver.finish(), []);
    assert_eq!(look(&scratch.path(b"top/file")), Some(Seen::file(b"x")));
}

#[test]
fn a_parent_that_becomes_a_symlink_while_files_arrive_is_not_followed() {
    let scratch = scratch();
    let (driver, top) = scratch.session(ONE);
    let below = driver.directory(top, b"below");
    let file = driver.file(below, b"file", 1);
    let large = driver.file(below, b"large", 2 * OBJECT as usize);
    let token = driver.start(&large);
    fs::rename(scratch.path(b"top/below"), scratch.path(b"top/moved")).unwrap();
    symlink(&scratch.outside, scratch.path(b"top/below")).unwrap();
    // The held directory is where they go.
    assert_eq!(driver.write_members(&[(&file, b"x")]), [Ok(())]);
    driver.write_objects(&large, token, &content(1, 2 * OBJECT as usize));
    assert!(driver.seal(&large, token, None).is_ok());
    driver.settle(&[file.id, large.id]);
    let failed = driver.finish();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!((&*failed[0].0, failed[0].1.code), (&b"top/below"[..], Code::SinkNotDirectory));
    untouched(&scratch);
    assert_eq!(names(&scratch.path(b"top/moved")), [b"file".to_vec(), b"large".to_vec()].into());
}

#[test]
fn a_directory_that_is_replaced_by_a_file_or_another_directory_keeps_its_attributes_to_itself() {
    let scratch = scratch();
    let (driver, top) = scratch.session(ONE);
    for name in [&b"file"[..], b"directory", b"gone"] {
        driver.directory(top, name);
        fs::remove_dir(scratch.path(b"top").join(std::str::from_utf8(name).unwrap())).unwrap();
    }
    plant(&scratch.path(b"top/file"), &Seen { mode: 0o600, ..Seen::file(b"x") });
    // So that the new one cannot have the inode of the old one.
    plant(&scratch.path(b"top/spare"), &Seen::directory());
    plant(&scratch.path(b"top/directory"), &Seen { mode: 0o700, ..Seen::directory() });
    let mut failed = driver.finish();
    failed.sort_by(|one, other| one.0.cmp(&other.0));
    let codes: Vec<_> = failed.iter().map(|(path, failure)| (&**path, failure.code)).collect();
    assert_eq!(
        codes,
        [
            (&b"top/directory"[..], Code::SinkMoved),
            (b"top/file", Code::SinkNotDirectory),
            (b"top/gone", Code::SinkMoved),
        ]
    );
    assert_eq!(look(&scratch.path(b"top/file")).unwrap().mode, 0o600);
    assert_eq!(look(&scratch.path(b"top/directory")).unwrap().mode, 0o700);
    assert_eq!(look(&scratch.path(b"top")).unwrap().mode, 0o755, "the others got theirs");
}

#[test]
fn a_destination_that_is_moved_away_or_replaced_is_told() {
    for replaced in [false, true] {
        let scratch = scratch();
        let (driver, top) = scratch.session(ONE);
        driver.put_member(top, b"file", b"x");
        let away = scratch.destination.with_file_name("away");
        fs::rename(&scratch.destination, &away).unwrap();
        if replaced {
            fs::create_dir(&scratch.destination).unwrap();
        }
        let failed: Vec<_> = driver.finish().into_iter().map(|(path, it)| (path, it.code)).collect();
        assert_eq!(failed, [(Box::default(), Code::SinkMoved)], "{replaced}");
        assert_eq!(look(&away.join("top/file")), Some(Seen::file(b"x")));
    }
}

#[test]
fn what_is_planted_under_a_temporary_name_is_not_written() {
    let scratch = scratch();
    let (driver, top) = scratch.session(ONE);
    let bytes = content(2, 2 * OBJECT as usize);
    let file = driver.file(top, b"large", bytes.len());
    let token = driver.start(&file);
    let planted = scratch.path(temporary(token).as_bytes());
    let refused = Err(Failure::os(Code::SinkWrite, rustix::io::Errno::EXIST.raw_os_error()));
    fs::hard_link(scratch.outside.join("file"), &planted).unwrap();
    assert_eq!(driver.write_object(&file, token, &bytes, 0), refused);
    fs::remove_file(&planted).unwrap();
    symlink(scratch.outside.join("file"), &planted).unwrap();
    assert_eq!(driver.write_object(&file, token, &bytes, 0), refused);
    fs::remove_file(&planted).unwrap();
    symlink(scratch.outside.join("new"), &planted).unwrap();
    assert_eq!(driver.write_object(&file, token, &bytes, 0), refused);
    untouched(&scratch);
    fs::remove_file(&planted).unwrap();
    // The table of hashes can be lost, so whatever stands there is removed.
    symlink(scratch.outside.join("file"), scratch.path(format!("{}.sums", temporary(token)).as_bytes()))
        .unwrap();
    driver.write_objects(&file, token, &bytes);
    assert!(driver.seal(&file, token, None).is_ok());
    driver.settle(&[file.id]);
    untouched(&scratch);
    assert_eq!(look(&scratch.path(b"top/large")), Some(Seen::file(&bytes)));
}

/// A session has written and synced the first of two objects of `top/large`: all its bytes, its token, and where it is.
fn left_unfinished(scratch: &Scratch) -> (Vec<u8>, Token, PathBuf) {
    let (driver, top) = scratch.session(ONE);
    let bytes = content(2, 2 * OBJECT as usize);
    let file = driver.file(top, b"large", bytes.len());
    let token = driver.start(&file);
    assert_eq!(driver.write_object(&file, token, &bytes, 0), Ok(()));
    assert_eq!(driver.sync(&[file.id]), []);
    (bytes, token, scratch.path(temporary(token).as_bytes()))
}

#[test]
fn an_unfinished_file_with_a_second_name_is_not_resumed() {
    let scratch = scratch();
    let (bytes, token, unfinished) = left_unfinished(&scratch);
    fs::hard_link(&unfinished, scratch.path(b"top/second")).unwrap();
    let (driver, top) = scratch.session(TWO);
    let file = driver.file(top, b"large", bytes.len());
    assert!(matches!(driver.prepare(&file, Some(token), true), Prepared::Start(_)));
    fs::remove_file(scratch.path(b"top/second")).unwrap();
    assert_eq!(driver.prepare(&file, Some(token), true), Prepared::Resume(token));
    // It is replaced after the check, before it is opened for writing.
    fs::remove_file(&unfinished).unwrap();
    fs::hard_link(scratch.outside.join("file"), &unfinished).unwrap();
    assert!(driver.write_object(&file, token, &bytes, 1).is_err());
    untouched(&scratch);
}

#[test]
fn an_unfinished_file_is_found_under_either_of_its_names() {
    let scratch = scratch();
    let (bytes, token, unfinished) = left_unfinished(&scratch);
    // As it is called where names place files.
    let placed = scratch.path(format!("top/.large.haul-{token}").as_bytes());
    fs::rename(&unfinished, &placed).unwrap();
    // Of another file nothing is taken.
    let (driver, top) = scratch.session(TWO);
    let other = driver.file(top, b"other", bytes.len());
    assert!(matches!(driver.prepare(&other, Some(token), true), Prepared::Start(_)));
    let file = driver.file(top, b"large", bytes.len());
    assert_eq!(driver.prepare(&file, Some(token), true), Prepared::Resume(token));
    assert!(!placed.exists());
    driver.end(top);
    assert_eq!(driver.write_object(&file, token, &bytes, 1), Ok(()));
    assert!(driver.seal(&file, token, None).is_ok());
    driver.settle(&[file.id]);
    assert_eq!(driver.finish(), []);
    assert_eq!(look(&scratch.path(b"top/large")), Some(Seen::file(&bytes)));
    assert_eq!(names(&scratch.path(b"top")), [b"large".to_vec()].into());
}

#[test]
fn an_unfinished_file_of_another_user_is_not_resumed() {
    if !rustix::process::geteuid().is_root() {
        return lacks("root");
    }
    let scratch = scratch();
    let (bytes, token, unfinished) = left_unfinished(&scratch);
    std::os::unix::fs::chown(&unfinished, Some(12_345), None).unwrap();
    let (driver, top) = scratch.session(TWO);
    let file = driver.file(top, b"large", bytes.len());
    assert!(matches!(driver.prepare(&file, Some(token), true), Prepared::Start(_)));
    // With owners preserved it may have been sealed for that user already; then it is hidden again until it is named.
    drop(driver);
    let mut settings = scratch.settings(*b"thr.");
    settings.preserve_owner = true;
    let (driver, top) = scratch.session_with(settings);
    let mut file = driver.file(top, b"large", bytes.len());
    file.attributes = Attributes { uid: 12_345, gid: 0, ..file.attributes };
    assert_eq!(driver.prepare(&file, Some(token), true), Prepared::Resume(token));
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(&unfinished).unwrap()), 0);
}

#[test]
fn a_refused_file_is_neither_truncated_nor_renamed() {
    let scratch = scratch();
    plant(&scratch.path(b"top"), &Seen::directory());
    plant(&scratch.path(b"top/old"), &Seen::file(b"the old contents"));
    let (driver, top) = scratch.session(ONE);
    let old = driver.file(top, b"old", 3);
    let wrong = haul_model::op::MemberWrite { entry: old.clone().into(), offset: 0, hash: Hash([0; 32]) };
    assert_eq!(driver.run_members(vec![wrong], 3), [Err(Code::HashMismatch.into())]);
    let strange = Entry { parent: EntryId(4711), ..old };
    assert_eq!(driver.write_members(&[(&strange, b"new")]), [Err(Code::SinkParentFailed.into())]);
    assert_eq!(look(&scratch.path(b"top/old")), Some(Seen::file(b"the old contents")));
    assert_eq!(names(&scratch.path(b"top")), [b"old".to_vec()].into());
}
