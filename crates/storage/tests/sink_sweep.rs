//! What an earlier session has left unfinished goes, or is listed, and nothing else does.

mod sink_support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

use haul_model::op::Prepared;
use haul_model::{EntryId, Hash, Token};
use haul_storage::conformance_sink::{Driver, JOB, OBJECT, Seen, content};
use haul_storage::sink::{SourceName, SyncMode, leftovers};
use sink_support::{Scratch, names, plant};

const ONE: [u8; 4] = *b"one.";
const TWO: [u8; 4] = *b"two.";

fn root_of(bytes: &[u8]) -> Hash {
    Hash(*blake3::hash(bytes).as_bytes())
}

#[test]
fn the_sweep_waits_for_all_sources_that_share_a_directory() {
    let scratch = Scratch::new(SyncMode::EachFile);
    let sources = [SourceName::Contents, SourceName::Named(b"file".to_vec())];
    let size = 2 * OBJECT as usize;
    let bytes = content(1, size);
    let token = {
        let driver = Driver::new(Box::new(scratch.posix(ONE, &sources, None)));
        let file = driver.file(EntryId::root(1), b"", size);
        let token = driver.start(&file);
        assert_eq!(driver.write_object(&file, token, &bytes, 1), Ok(()));
        let stale = driver.file(EntryId::root(1), b"", 1);
        assert_eq!(driver.write_members(&[(&stale, b"x")]), [Ok(())]);
        token
    };
    let driver = Driver::new(Box::new(scratch.posix(TWO, &sources, None)));
    let top = driver.directory(EntryId::root(0), b"");
    // The first source has ended before the second is heard of.
    driver.end(top);
    driver.end(EntryId::root(0));
    let file = driver.file(EntryId::root(1), b"", size);
    assert_eq!(driver.prepare(&file, Some(token), true), Prepared::Resume(token));
    assert_eq!(driver.write_object(&file, token, &bytes, 0), Ok(()));
    assert_eq!(driver.seal(&file, token, None), Ok(root_of(&bytes)));
    driver.settle(&[file.id]);
    assert_eq!(names(&scratch.destination).len(), 2, "the stale one is still there");
    assert_eq!(driver.finish(), []);
    assert_eq!(names(&scratch.destination), [b"file".to_vec()].into());
}

/// A kill between the two calls that put it in the place of another one leaves it there.
#[test]
fn a_symlink_that_was_begun_beside_the_destination_goes_with_the_next_session() {
    let scratch = Scratch::new(SyncMode::EachFile);
    let sources = [SourceName::Named(b"link".to_vec())];
    let begun = {
        let other = [SourceName::Named(b"file".to_vec())];
        let driver = Driver::new(Box::new(scratch.posix(ONE, &other, None)));
        let token = driver.start(&driver.file(EntryId::root(0), b"", 2 * OBJECT as usize));
        scratch.destination.join(format!(".haul-{token}"))
    };
    let _ = fs::remove_file(&begun);
    symlink("nowhere", &begun).unwrap();
    let driver = Driver::new(Box::new(scratch.posix(TWO, &sources, None)));
    let link = driver.symlink(EntryId::root(0), b"", b"target");
    assert_eq!(driver.prepare(&link, None, false), Prepared::Made);
    assert_eq!(driver.finish(), []);
    assert_eq!(names(&scratch.destination), [b"link".to_vec()].into());
}

#[test]
fn left_over_files_are_listed_and_removed_without_following_links() {
    let scratch = Scratch::new(SyncMode::EachFile);
    let (driver, top) = scratch.session(ONE);
    let below = driver.directory(top, b"below");
    let mut expected = BTreeSet::new();
    for (parent, at) in [(top, "top"), (below, "top/below")] {
        let file = driver.file(parent, b"large", 2 * OBJECT as usize);
        let token = driver.start(&file);
        driver.write_in_parts(&file, token, &content(1, 2 * OBJECT as usize));
        expected.insert((format!("{at}/.haul-{token}"), 2 * u64::from(OBJECT)));
        expected.insert((format!("{at}/.haul-{token}.sums"), 120));
    }
    drop(driver);
    let foreign = format!(".haul-{}", Token([9; 16]));
    plant(&scratch.path(b"top").join(&foreign), &Seen::file(b"another job's"));
    plant(&scratch.outside.join(&foreign), &Seen::file(b"x"));
    symlink(&scratch.outside, scratch.path(b"top/link")).unwrap();
    let found: Vec<_> =
        leftovers(&scratch.destination, Some(JOB)).unwrap().collect::<Result<_, _>>().unwrap();
    let listed = found.iter().map(|file| (file.path.to_str().unwrap().to_owned(), file.size)).collect();
    assert_eq!(expected, listed);
    assert_eq!(leftovers(&scratch.destination, None).unwrap().count(), 5);
    for file in &found {
        assert_eq!(file.token.job_tag(), JOB);
        file.remove().unwrap();
    }
    assert_eq!(leftovers(&scratch.destination, Some(JOB)).unwrap().count(), 0);
    assert!(scratch.path(b"top").join(&foreign).exists());
    assert_eq!(leftovers(&scratch.destination.join("none"), None).unwrap_err().errno, 2);
}
