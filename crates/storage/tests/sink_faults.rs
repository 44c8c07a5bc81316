//! What is synced when, and what becomes of it when that fails.

mod sink_support;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_model::op::Prepared;
use haul_model::{Code, EntryId, Failure, Kind, Token};
use haul_storage::conformance_sink::{Driver, Fixture, OBJECT, Seen, TIME, content};
use haul_storage::sink::{
    Decision, Fault, Faults, PosixSink, SinkRoot, SinkSettings, SourceName, SyncMode, SyncPoint,
};
use sink_support::{Scratch, as_user, look, names, plant};

const ONE: [u8; 4] = *b"one.";
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn session(scratch: &Scratch, faults: Faults) -> (Driver, EntryId, Arc<Faults>) {
    let faults = Arc::new(faults);
    let settings = SinkSettings { faults: Some(Arc::clone(&faults)), ..scratch.settings(ONE) };
    let (driver, top) = scratch.session_with(settings);
    (driver, top, faults)
}

fn failing(point: SyncPoint, nth: u64) -> Faults {
    Faults::default().fail(Fault::Sync(point), nth, EIO)
}

fn lost(id: EntryId) -> (EntryId, Failure) {
    (id, Failure::os(Code::SinkSync, EIO))
}

/// Whether this process has a file with such a name open below `scratch`.
fn is_open(scratch: &Scratch, name: &str) -> bool {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut open = links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok());
    open.any(|path| path.starts_with(&scratch.destination) && path.to_string_lossy().contains(name))
}

/// What was synced since the last call, by name, sorted: a group is synced in no particular order.
struct Watch {
    faults: Arc<Faults>,
    seen: usize,
}

impl Watch {
    fn new(faults: Arc<Faults>) -> Self {
        Watch { seen: faults.seen().len(), faults }
    }

    fn since(&mut self) -> Vec<&'static str> {
        let all = self.faults.seen();
        let new = all[self.seen..].iter().filter_map(|fault| match fault {
            Fault::Sync(point) => Some(point.name()),
            Fault::Write | Fault::Table | Fault::Lay | Fault::Reread => None,
        });
        let mut new: Vec<_> = new.collect();
        self.seen = all.len();
        new.sort_unstable();
        new
    }
}

#[test]
fn every_acknowledgement_has_its_syncs_where_files_are_synced_one_by_one() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let (driver, top, faults) = session(&scratch, Faults::default());
    let mut watch = Watch::new(faults);
    let below = driver.directory(top, b"below");
    let bytes = content(1, 2 * OBJECT as usize);
    let (large, small) = (driver.file(below, b"large", bytes.len()), driver.file(below, b"small", 1));
    let token = driver.start(&large);
    assert_eq!(driver.write_object(&large, token, &bytes, 0), Ok(()));
    assert_eq!(driver.write_members(&[(&small, b"x")]), [Ok(())]);
    assert_eq!(watch.since(), [""; 0], "writing waits for no device");
    assert_eq!(driver.sync(&[large.id, small.id]), []);
    assert_eq!(
        watch.since(),
        ["member-data", "object-data", "object-sums", "parent-names", "parent-names", "temp-name"],
        "the parents are the directory above and the one that holds the destination"
    );
    assert_eq!(driver.write_object(&large, token, &bytes, 1), Ok(()));
    assert_eq!(driver.sync(&[large.id]), []);
    assert_eq!(watch.since(), ["object-data", "object-sums"], "its name is durable already");
    assert!(driver.seal(&large, token, None).is_ok());
    assert_eq!(driver.sync(&[large.id]), []);
    assert_eq!(watch.since(), ["object-sums", "sealed-data"]);
    assert_eq!(driver.publish(&[large.id, small.id]), []);
    assert_eq!(watch.since(), [""; 0]);
    let link = driver.symlink(top, b"link", b"x");
    assert_eq!(driver.prepare(&link, None, false), Prepared::Made);
    assert_eq!(driver.sync_names(&[large.id, small.id, link.id]), []);
    assert_eq!(watch.since(), ["final-name", "final-name"], "one for each directory");
    assert_eq!(driver.finish(), []);
    assert_eq!(watch.since(), ["destination-name", "directory-attributes", "directory-attributes"]);
}

#[test]
fn names_of_directories_that_a_killed_session_may_have_made_are_synced_too() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    for path in [&b"top"[..], b"top/below"] {
        scratch.plant(path, &Seen::directory());
    }
    scratch.plant(b"top/below/there", &Seen::file(b"x"));
    let (driver, top, faults) = session(&scratch, Faults::default());
    let mut watch = Watch::new(faults);
    let below = driver.directory(top, b"below");
    let mut there = driver.file(below, b"there", 1);
    assert_eq!(driver.prepare(&there, None, false), Prepared::Skip);
    assert_eq!(watch.since(), [""; 0]);
    there.attributes.mode = 0o600;
    assert_eq!(driver.prepare(&there, None, false), Prepared::Skip);
    assert_eq!(watch.since(), ["skipped-attributes"]);
    driver.put_member(below, b"new", b"x");
    assert_eq!(watch.since(), ["final-name", "member-data", "parent-names", "parent-names"]);
    driver.put_member(below, b"newer", b"x");
    assert_eq!(watch.since(), ["final-name", "member-data"]);
    assert_eq!(driver.finish(), []);
    assert_eq!(watch.since(), ["destination-name", "directory-attributes", "directory-attributes"]);
}

#[test]
fn one_call_is_enough_where_the_file_system_is_trusted() {
    let scratch = Scratch::fast(SyncMode::Measured);
    let (driver, top, faults) = session(&scratch, Faults::default());
    let mut watch = Watch::new(faults);
    let below = driver.directory(top, b"below");
    driver.put_member(below, b"small", b"x");
    assert_eq!(watch.since(), ["file-system-data", "file-system-names"]);
    driver.put_objects(below, b"large", &content(1, 2 * OBJECT as usize));
    assert_eq!(watch.since(), ["file-system-data", "file-system-names"]);
    assert_eq!(driver.finish(), []);
    assert_eq!(watch.since(), ["file-system-directories"]);
}

#[test]
fn nothing_is_synced_where_durability_is_not_asked_for() {
    let scratch = Scratch::fast(SyncMode::Never);
    let (driver, top, faults) = session(&scratch, Faults::default());
    driver.put_member(top, b"small", b"x");
    driver.put_objects(top, b"large", &content(1, 2 * OBJECT as usize));
    assert_eq!(driver.finish(), []);
    assert!(faults.seen().iter().all(|fault| *fault == Fault::Write));
}

#[test]
fn a_member_whose_sync_fails_is_told_and_leaves_nothing() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let (driver, top, _) = session(&scratch, failing(SyncPoint::MemberData, 2));
    let files = [&b"a"[..], b"b", b"c"].map(|name| driver.file(top, name, 1));
    let members = files.each_ref().map(|file| (file, &b"x"[..]));
    assert_eq!(driver.write_members(&members), [Ok(()); 3]);
    let ids = files.each_ref().map(|file| file.id);
    assert_eq!(driver.sync(&ids), [lost(ids[1])]);
    assert_eq!(names(&scratch.path(b"top")).len(), 2);
    assert_eq!(driver.publish(&ids), [(ids[1], Code::Internal.into())], "never a name for what was lost");
    assert_eq!(driver.write_members(&members[1..2]), [Ok(())]);
    assert_eq!(driver.sync(&ids), []);
    assert_eq!(driver.publish(&ids), []);
    assert_eq!(driver.sync_names(&ids), []);
    assert_eq!(names(&scratch.path(b"top")), [&b"a"[..], b"b", b"c"].map(<[u8]>::to_vec).into());
}

#[test]
fn an_object_whose_sync_failed_stays_lost_until_it_is_written_again() {
    for point in [SyncPoint::ObjectData, SyncPoint::ObjectSums] {
        let scratch = Scratch::fast(SyncMode::EachFile);
        let (driver, top, faults) = session(&scratch, failing(point, 2));
        let bytes = content(1, 3 * OBJECT as usize);
        let file = driver.file(top, b"large", bytes.len());
        let other = driver.file(top, b"other", bytes.len());
        let (token, other_token) = (driver.start(&file), driver.start(&other));
        driver.write_objects(&other, other_token, &bytes);
        assert_eq!(driver.write_object(&file, token, &bytes, 0), Ok(()));
        assert_eq!(driver.sync(&[file.id]), []);
        assert!(is_open(&scratch, &format!(".haul-{token}")), "it stays open from first write to sync");
        assert_eq!(driver.write_object(&file, token, &bytes, 1), Ok(()));
        assert_eq!(driver.sync(&[file.id, other.id]), [lost(file.id)]);
        // The kernel would now call it clean.
        let mut watch = Watch::new(faults);
        assert_eq!(driver.sync(&[file.id]), [(file.id, Code::SinkSync.into())]);
        assert_eq!(watch.since(), [""; 0], "a failed sync is not repeated");
        assert!(!is_open(&scratch, &format!(".haul-{token}")), "least of all on the same descriptor");
        assert_eq!(driver.write_object(&file, token, &bytes, 1), Ok(()));
        assert_eq!(driver.sync(&[file.id]), []);
        assert_eq!(driver.write_object(&file, token, &bytes, 2), Ok(()));
        assert!(driver.seal(&file, token, None).is_ok());
        driver.settle(&[file.id]);
        assert_eq!(look(&scratch.path(b"top/large")).map(|seen| seen.bytes), Some(bytes));
    }
}

#[test]
fn a_sealed_file_whose_sync_fails_gets_no_name_until_it_is_sealed_again() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let (driver, top, _) = session(&scratch, failing(SyncPoint::SealedData, 1));
    let bytes = content(1, 2 * OBJECT as usize);
    let mut file = driver.file(top, b"large", bytes.len());
    file.attributes.mode = 0o444;
    let token = driver.start(&file);
    driver.write_objects(&file, token, &bytes);
    assert_eq!(driver.sync(&[file.id]), []);
    assert!(driver.seal(&file, token, None).is_ok());
    assert_eq!(driver.sync(&[file.id]), [lost(file.id)]);
    assert_eq!(driver.publish(&[file.id]), [(file.id, Code::Internal.into())]);
    assert_eq!(driver.sync(&[file.id]), [(file.id, Code::SinkSync.into())], "it is not repeated");
    assert!(!is_open(&scratch, &format!(".haul-{token}")), "least of all on the same descriptor");
    assert!(driver.seal(&file, token, None).is_ok());
    driver.settle(&[file.id]);
    assert_eq!(look(&scratch.path(b"top/large")), Some(Seen { mode: 0o444, ..Seen::file(&bytes) }));
}

#[test]
fn a_later_session_goes_on_with_a_file_whose_last_step_failed_and_not_with_one_that_was_cut_off() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let (driver, top, _) = session(&scratch, failing(SyncPoint::SealedData, 1));
    let bytes = content(1, 2 * OBJECT as usize);
    let large = driver.file(top, b"large", bytes.len());
    let token = driver.start(&large);
    driver.write_objects(&large, token, &bytes);
    assert_eq!(driver.sync(&[large.id]), []);
    assert!(driver.seal(&large, token, None).is_ok());
    assert_eq!(driver.sync(&[large.id]), [lost(large.id)]);
    driver.let_go(large.id, token, true);
    drop(driver);
    let (driver, top) = scratch.session(*b"two.");
    let large = driver.file(top, b"large", bytes.len());
    assert_eq!(driver.prepare(&large, Some(token), true), Prepared::Resume(token));
    assert!(driver.seal(&large, token, None).is_ok(), "nothing is sent");
    driver.settle(&[large.id]);
    assert_eq!(look(&scratch.path(b"top/large")), Some(Seen::file(&bytes)));

    let short = driver.file(top, b"short", bytes.len());
    let token = driver.start(&short);
    driver.write_objects(&short, token, &bytes);
    let unfinished = scratch.path(format!("top/.haul-{token}").as_bytes());
    std::fs::File::options().write(true).open(unfinished).unwrap().set_len(1).unwrap();
    assert_eq!(driver.seal(&short, token, None), Err(Code::HashMismatch.into()));
}

#[test]
fn names_that_could_not_be_made_durable_are_told() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let (driver, top, _) =
        session(&scratch, failing(SyncPoint::FinalName, 1).fail(Fault::Sync(SyncPoint::TempName), 1, EIO));
    let file = driver.file(top, b"file", 1);
    let bytes = content(1, 2 * OBJECT as usize);
    let (large, whole) = (driver.file(top, b"large", bytes.len()), driver.file(top, b"whole", bytes.len()));
    for (file, objects) in [(&large, 1), (&whole, 2)] {
        let token = driver.start(file);
        for index in 0..objects {
            assert_eq!(driver.write_object(file, token, &bytes, index), Ok(()));
        }
    }
    assert_eq!(driver.write_members(&[(&file, b"x")]), [Ok(())]);
    assert_eq!(driver.sync(&[whole.id]), [], "its final name is next");
    assert_eq!(driver.sync(&[file.id, large.id]), [lost(large.id)], "nobody would find it after a crash");
    assert_eq!(driver.publish(&[file.id]), []);
    assert_eq!(driver.sync_names(&[file.id]), [lost(file.id)]);
    // It is sent again, although something has its name in a directory that this session made.
    assert_eq!(driver.write_members(&[(&file, b"y")]), [Ok(())]);
    driver.settle(&[file.id]);
    assert_eq!(look(&scratch.path(b"top/file")), Some(Seen::file(b"y")));
}

#[test]
fn nothing_in_a_directory_whose_own_name_is_lost_is_called_durable_again() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let (driver, top, _) = session(&scratch, failing(SyncPoint::ParentNames, 1));
    let below = driver.directory(top, b"below");
    for (name, errno) in [(b"first", EIO), (b"later", 0)] {
        let file = driver.file(below, name, 1);
        assert_eq!(driver.write_members(&[(&file, b"x")]), [Ok(())]);
        assert_eq!(driver.sync(&[file.id]), []);
        assert_eq!(driver.publish(&[file.id]), []);
        let lost = Failure::os(Code::SinkSync, errno);
        assert_eq!(driver.sync_names(&[file.id]), [(file.id, lost)]);
    }
    driver.put_member(top, b"beside", b"x");
}

#[test]
fn a_failed_file_system_fails_everything_that_was_written_before() {
    let scratch = Scratch::fast(SyncMode::Measured);
    let (driver, top, _) = session(&scratch, failing(SyncPoint::FileSystemData, 1));
    let bytes = content(1, 2 * OBJECT as usize);
    let small = [&b"a"[..], b"b"].map(|name| driver.file(top, name, 1));
    let large = [&b"c"[..], b"d"].map(|name| driver.file(top, name, bytes.len()));
    let tokens = large.each_ref().map(|file| driver.start(file));
    for (file, token) in large.iter().zip(tokens) {
        driver.write_objects(file, token, &bytes);
    }
    assert_eq!(driver.write_members(&small.each_ref().map(|file| (file, &b"x"[..]))), [Ok(()); 2]);
    let (first, second) = ([small[0].id, large[0].id], [small[1].id, large[1].id]);
    assert_eq!(driver.sync(&first), first.map(lost));
    // The error is told once; it was about these as well.
    assert_eq!(driver.sync(&second), second.map(|id| (id, Code::SinkSync.into())));
    assert_eq!(driver.write_members(&small.each_ref().map(|file| (file, &b"x"[..]))), [Ok(()); 2]);
    for (file, token) in large.iter().zip(tokens) {
        driver.write_objects(file, token, &bytes);
        assert!(driver.seal(file, token, None).is_ok());
    }
    driver.settle(&[first, second].concat());
    assert_eq!(names(&scratch.path(b"top")).len(), 4);
}

#[test]
fn a_failed_file_system_fails_names_that_were_made_before() {
    let scratch = Scratch::fast(SyncMode::Measured);
    let (driver, top, _) = session(&scratch, failing(SyncPoint::FileSystemData, 1));
    let link = driver.symlink(top, b"link", b"x");
    assert_eq!(driver.prepare(&link, None, false), Prepared::Made);
    let file = driver.file(top, b"file", 1);
    assert_eq!(driver.write_members(&[(&file, b"x")]), [Ok(())]);
    assert_eq!(driver.sync(&[file.id]), [lost(file.id)]);
    // The sync of its name succeeds: the error was told already.
    assert_eq!(driver.sync_names(&[link.id]), [(link.id, Code::SinkSync.into())]);
    let inode = |name: &[u8]| std::fs::symlink_metadata(scratch.path(name)).unwrap().ino();
    let before = inode(b"top/link");
    let _kept = std::fs::hard_link(scratch.path(b"top/link"), scratch.path(b"kept"));
    assert_eq!(driver.prepare(&link, None, false), Prepared::Made);
    assert_eq!(driver.sync_names(&[link.id]), []);
    assert_ne!(inode(b"top/link"), before, "it is made again, not found");
}

#[test]
fn failures_at_the_end_are_told_with_their_paths() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let faults = failing(SyncPoint::DirectoryAttributes, 2);
    let (driver, top, _) = session(&scratch, faults.fail(Fault::Sync(SyncPoint::DestinationName), 1, ENOSPC));
    for name in [&b"a"[..], b"b", b"c"] {
        let mut entry = driver.entry(top, name, Kind::Directory);
        entry.attributes.mode = 0o711;
        assert_eq!(driver.prepare(&entry, None, false), Prepared::Made);
    }
    let failed = driver.finish();
    assert_eq!(
        failed,
        [
            (b""[..].into(), Failure::os(Code::SinkNoSpace, ENOSPC)),
            (b"top/b"[..].into(), Failure::os(Code::SinkSync, EIO)),
        ]
    );
    for name in [&b"top/a"[..], b"top/b", b"top/c"] {
        assert_eq!(look(&scratch.path(name)).unwrap().mode, 0o711, "one that fails does not stop the rest");
    }
}

#[test]
fn what_a_source_becomes_is_told_with_its_own_name() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let faults = failing(SyncPoint::DirectoryAttributes, 1)
        .fail(Fault::Sync(SyncPoint::DirectoryAttributes), 2, EIO)
        .fail(Fault::Sync(SyncPoint::DestinationName), 1, ENOSPC);
    let settings = SinkSettings { faults: Some(Arc::new(faults)), ..scratch.settings(ONE) };
    let source = [SourceName::Named(b"source".to_vec())];
    let root = SinkRoot::open(&scratch.path(b"new"), Decision::As, &source).unwrap();
    let driver = Driver::new(Box::new(PosixSink::open(root, settings).unwrap()));
    let top = driver.directory(EntryId::root(0), b"");
    driver.directory(top, b"below");
    let lost = |path: &[u8]| (path.into(), Failure::os(Code::SinkSync, EIO));
    let no_room = Failure::os(Code::SinkNoSpace, ENOSPC);
    assert_eq!(driver.finish(), [(b"new"[..].into(), no_room), lost(b"new/below"), lost(b"new")]);
}

/// Each sync of a directory takes a while, as on storage that is far.
fn far() -> Faults {
    Faults::default().slow(SyncPoint::DirectoryAttributes, Duration::from_millis(2))
}

#[test]
fn directories_are_finished_together_where_each_waits_for_storage() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let (driver, top, faults) =
        session(&scratch, far().fail(Fault::Sync(SyncPoint::DirectoryAttributes), 150, EIO));
    let mut directories = 1;
    for branch in 0..20 {
        let mut above = top;
        for name in [format!("b{branch}"), "c".into(), "d".into()] {
            above = driver.directory(above, name.as_bytes());
            for leaf in 0..5 {
                driver.directory(above, format!("{leaf}").as_bytes());
            }
            directories += 6;
        }
    }
    let failed = driver.finish();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(faults.slow_at_once() >= 8, "{} at once", faults.slow_at_once());
    let sync = Fault::Sync(SyncPoint::DirectoryAttributes);
    assert_eq!(faults.seen().iter().filter(|fault| **fault == sync).count(), directories);
    for path in ["top", "top/b7", "top/b19/c/d/4"] {
        assert_eq!(look(&scratch.path(path.as_bytes())).unwrap().mode, 0o755, "{path}");
    }
}

#[test]
fn directories_of_a_session_that_has_failed_are_not_finished() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let slow = Faults::default().slow(SyncPoint::DirectoryAttributes, Duration::from_millis(20));
    let (driver, top, faults) = session(&scratch, slow);
    (0..2000).for_each(|name| _ = driver.directory(top, format!("{name}").as_bytes()));
    std::thread::scope(|scope| {
        let finishing = scope.spawn(|| driver.finish());
        let sync = Fault::Sync(SyncPoint::DirectoryAttributes);
        let finished = || faults.seen().iter().filter(|fault| **fault == sync).count();
        let deadline = Instant::now() + Duration::from_secs(20);
        while finished() < 10 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        driver.give_up();
        let then = finished();
        assert!((10..1000).contains(&then), "{then}");
        assert_eq!(finishing.join().unwrap(), []);
        assert!(finished() <= then + 16, "those that were under way: {then}, then {}", finished());
    });
}

#[test]
fn an_ordinary_user_finishes_closed_directories_after_what_is_in_them() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    as_user(&scratch, || {
        let (driver, top, faults) = session(&scratch, far());
        let closed = |parent, name: &str| {
            let mut entry = driver.entry(parent, name.as_bytes(), Kind::Directory);
            entry.attributes.mode = 0;
            assert_eq!(driver.prepare(&entry, None, false), Prepared::Made, "{name:?}");
            entry.id
        };
        let mut all = Vec::new();
        for first in 0..6 {
            let above = closed(top, &format!("{first}"));
            all.push(format!("top/{first}"));
            for second in 0..6 {
                let within = closed(above, &format!("{second}"));
                all.push(format!("top/{first}/{second}"));
                for third in 0..3 {
                    closed(within, &format!("{third}"));
                    all.push(format!("top/{first}/{second}/{third}"));
                }
            }
        }
        assert_eq!(driver.finish(), []);
        assert!(faults.slow_at_once() >= 6, "{} at once", faults.slow_at_once());
        for path in all {
            let path = scratch.path(path.as_bytes());
            assert_eq!(look(&path).unwrap().mode, 0, "{path:?}");
            // So that what is below it can be seen, and all of it removed.
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        }
    });
}

#[test]
fn where_two_sources_meet_the_first_has_the_last_word() {
    for below_second in [0, 100] {
        let scratch = Scratch::fast(SyncMode::EachFile);
        let settings = SinkSettings { faults: Some(Arc::new(far())), ..scratch.settings(ONE) };
        let contents = [SourceName::Contents, SourceName::Contents];
        let driver = Driver::new(Box::new(scratch.with(settings, &contents)));
        for (root, mode, below) in [(0, 0o700, 0), (1, 0o755, below_second)] {
            let top = driver.directory(EntryId::root(root), b"");
            let mut entry = driver.entry(top, b"shared", Kind::Directory);
            entry.attributes.mode = mode;
            assert_eq!(driver.prepare(&entry, None, false), Prepared::Made);
            (0..below).for_each(|below| _ = driver.directory(entry.id, format!("{below}").as_bytes()));
            (0..below).for_each(|below| _ = driver.directory(top, format!("{below}").as_bytes()));
        }
        assert_eq!(driver.finish(), []);
        assert_eq!(look(&scratch.path(b"shared")).unwrap().mode, 0o700, "{below_second}");
    }
}

#[test]
fn where_sources_meet_none_closes_a_directory_to_another() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    // What is as it should be is left alone: somebody else's may not be changed.
    let theirs = Seen { kind: Kind::Directory, mode: 0o555, mtime: TIME, bytes: Vec::new() };
    plant(&scratch.path(b"theirs"), &theirs);
    as_user(&scratch, || {
        for (number, modes) in
            [[0o755, 0], [0o755, 0o400], [0, 0o755], [0o600, 0o500], [0, 0o600]].iter().enumerate()
        {
            let faults = Arc::new(far());
            let settings = SinkSettings { faults: Some(Arc::clone(&faults)), ..scratch.settings(ONE) };
            let contents = [SourceName::Contents, SourceName::Contents];
            let driver = Driver::new(Box::new(scratch.with(settings, &contents)));
            let directory = |parent, name: &str, mode| {
                let mut entry = driver.entry(parent, name.as_bytes(), Kind::Directory);
                entry.attributes.mode = mode;
                assert_eq!(driver.prepare(&entry, None, false), Prepared::Made, "{name:?}");
                entry.id
            };
            let shared = format!("shared{number}");
            for (root, mode) in modes.iter().enumerate() {
                let top = driver.directory(EntryId::root(root as u32), b"");
                directory(top, "theirs", 0o555);
                let shared = directory(top, &shared, *mode);
                for below in 0..4 {
                    let inner = directory(shared, &format!("of {root} {below}"), 0o050);
                    directory(inner, "deeper", 0o750);
                }
            }
            assert_eq!(driver.finish(), [], "{modes:?}");
            // Each of 22 when its turn comes, and of those that are closed to us the eight below once more at the end.
            let sync = Fault::Sync(SyncPoint::DirectoryAttributes);
            let syncs = faults.seen().iter().filter(|fault| **fault == sync).count();
            assert!(syncs >= 22 + 8, "{modes:?}: {syncs} syncs");
            let mode = |path: &str| look(&scratch.path(path.as_bytes())).unwrap().mode;
            let open = |path: &str| {
                let path = scratch.path(path.as_bytes());
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
            };
            assert_eq!(mode(&shared), modes[0], "{modes:?}");
            open(&shared);
            for inner in (0..2).flat_map(|root| (0..4).map(move |below| format!("of {root} {below}"))) {
                let inner = format!("{shared}/{inner}");
                assert_eq!(mode(&inner), 0o050, "{modes:?}: {inner}");
                open(&inner);
                assert_eq!(mode(&format!("{inner}/deeper")), 0o750, "{modes:?}: {inner}");
            }
        }
    });
}

#[test]
fn a_full_disk_fails_one_member_and_leaves_nothing_of_it() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let faults = Faults::default().fail(Fault::Write, 2, ENOSPC).fail(Fault::Write, 4, 122);
    let (driver, top, _) = session(&scratch, faults);
    plant(&scratch.path(b"top/b"), &Seen::file(b"old"));
    let files = [&b"a"[..], b"b", b"c"].map(|name| driver.file(top, name, 1));
    let results = driver.write_members(&files.each_ref().map(|file| (file, &b"x"[..])));
    assert_eq!(results, [Ok(()), Err(Failure::os(Code::SinkNoSpace, ENOSPC)), Ok(())]);
    driver.settle(&[files[0].id, files[2].id]);
    assert_eq!(names(&scratch.path(b"top")), [&b"a"[..], b"b", b"c"].map(<[u8]>::to_vec).into());
    assert_eq!(look(&scratch.path(b"top/b")), Some(Seen::file(b"old")));
    let large = driver.file(top, b"large", 1);
    let token = driver.start(&large);
    assert_eq!(driver.write_object(&large, token, b"x", 0), Err(Failure::os(Code::SinkQuota, 122)));
    assert_eq!(driver.write_object(&large, token, b"x", 0), Ok(()), "once there is room again");
}

#[test]
fn a_file_of_an_earlier_session_stays_if_it_cannot_be_made_ready_and_a_new_one_does_not() {
    let scratch = Scratch::fast(SyncMode::EachFile).striped();
    let bytes = content(1, 3 * OBJECT as usize);
    let (driver, top, _) = session(&scratch, Faults::default());
    let file = driver.file(top, b"large", bytes.len());
    let token = driver.start(&file);
    assert_eq!(driver.write_object(&file, token, &bytes, 1), Ok(()));
    assert_eq!(driver.sync(&[file.id]), []);
    drop(driver);

    let faults = Faults::default().fail(Fault::Lay, 1, EIO).fail(Fault::Lay, 2, EIO);
    let settings = SinkSettings { faults: Some(Arc::new(faults)), ..scratch.settings(*b"two.") };
    let (driver, top) = scratch.session_with(settings);
    let file = driver.file(top, b"large", bytes.len());
    let failed = Prepared::Fail(Failure::os(Code::SinkWrite, EIO));
    assert_eq!(driver.prepare(&file, Some(token), true), failed);
    let before = names(&scratch.path(b"top"));
    assert!(before.contains(format!(".haul-{token}").as_bytes()), "{before:?}");
    let new = driver.file(top, b"new", bytes.len());
    assert_eq!(driver.prepare(&new, None, true), failed);
    assert_eq!(names(&scratch.path(b"top")), before);
    drop(driver);

    let (driver, top) = scratch.session(*b"tri.");
    let file = driver.file(top, b"large", bytes.len());
    assert_eq!(driver.prepare(&file, Some(token), true), Prepared::Resume(token));
}

#[test]
fn a_name_is_not_durable_if_a_sync_of_its_directory_failed_since_it_was_made() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let (driver, top, _) = session(&scratch, failing(SyncPoint::FinalName, 1));
    let files = [&b"a"[..], b"b"].map(|name| driver.file(top, name, 1));
    let ids = files.each_ref().map(|file| file.id);
    assert_eq!(driver.write_members(&files.each_ref().map(|file| (file, &b"x"[..]))), [Ok(()); 2]);
    assert_eq!(driver.sync(&ids), []);
    assert_eq!(driver.publish(&ids), []);
    assert_eq!(driver.sync_names(&ids[..1]), [lost(ids[0])]);
    // The kernel told of the error, and would now call all that was in the directory clean.
    assert_eq!(driver.sync_names(&ids[1..]), [(ids[1], Code::SinkSync.into())]);
}

#[test]
fn the_environment_can_ask_for_faults() {
    const CHILD: &str = "HAUL_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let scratch = Scratch::fast(SyncMode::EachFile);
        let (driver, top) = scratch.session(ONE);
        let files = [&b"a"[..], b"b"].map(|name| driver.file(top, name, 1));
        let results = driver.write_members(&files.each_ref().map(|file| (file, &b"x"[..])));
        assert_eq!(results, [Ok(()), Err(Failure::os(Code::SinkNoSpace, ENOSPC))]);
        let ids = files.each_ref().map(|file| file.id);
        assert_eq!(driver.sync(&ids[..1]), [lost(ids[0])]);
        driver.discard(ids[0], Token::NONE);
        return;
    }
    let child = |fail: &str| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_environment_can_ask_for_faults"]).env(CHILD, "1");
        let command = command.env("HAUL_TEST_FAIL", fail).env("HAUL_TEST_SKIP_SYNC", "final-name,temp-name");
        command.output().unwrap().status.success()
    };
    assert!(child("write:2:28,member-data:1:5"));
    assert!(!child("write:2:28,membre-data:1:5"), "a word that is not known is not ignored");
}

#[test]
fn what_is_written_while_a_sync_of_its_file_system_fails_is_lost() {
    let scratch = Scratch::fast(SyncMode::Measured);
    let (driver, top, faults) = session(&scratch, failing(SyncPoint::FileSystemData, 1));
    let driver = Arc::new(driver);
    let bytes = content(1, 2 * OBJECT as usize);
    let (large, other) = (driver.file(top, b"large", bytes.len()), driver.file(top, b"other", 1));
    let token = driver.start(&large);
    assert_eq!(driver.write_members(&[(&other, b"x")]), [Ok(())]);
    let (syncing, id) = (Arc::clone(&driver), other.id);
    faults.meanwhile(Fault::Write, move || assert_eq!(syncing.sync(&[id]), [lost(id)]));
    let result = driver.write_object(&large, token, &bytes, 0);
    assert_eq!(result.map_err(|failure| failure.code), Err(haul_model::Code::SinkSync));
}

#[test]
fn a_member_that_is_written_while_a_sync_of_its_file_system_fails_is_lost() {
    let scratch = Scratch::fast(SyncMode::Measured);
    let (driver, top, faults) = session(&scratch, failing(SyncPoint::FileSystemData, 1));
    let driver = Arc::new(driver);
    let (small, other) = (driver.file(top, b"small", 1), driver.file(top, b"other", 1));
    assert_eq!(driver.write_members(&[(&other, b"x")]), [Ok(())]);
    let (syncing, id) = (Arc::clone(&driver), other.id);
    faults.meanwhile(Fault::Write, move || assert_eq!(syncing.sync(&[id]), [lost(id)]));
    assert_eq!(driver.write_members(&[(&small, b"x")]), [Ok(())]);
    let failed = driver.sync(&[small.id]);
    assert_eq!(failed.len(), 1, "{failed:?}");
}

#[test]
fn a_file_system_that_fails_at_the_end_is_told() {
    let scratch = Scratch::fast(SyncMode::Measured);
    let (driver, top, _) = session(&scratch, failing(SyncPoint::FileSystemDirectories, 1));
    driver.put_member(top, b"file", b"x");
    let failed = driver.finish();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(&*failed[0].0, b"");
}

#[test]
fn what_was_put_in_the_place_of_an_unfinished_file_is_not_written() {
    for linked in [false, true] {
        let scratch = Scratch::fast(SyncMode::EachFile);
        let (driver, top, _) = session(&scratch, failing(SyncPoint::ObjectData, 1));
        let bytes = content(1, 2 * OBJECT as usize);
        let large = driver.file(top, b"large", bytes.len());
        let token = driver.start(&large);
        assert_eq!(driver.write_object(&large, token, &bytes, 0), Ok(()));
        assert_eq!(driver.sync(&[large.id]).len(), 1, "it is closed now");
        let outside = scratch.outside.join("victim");
        let mut planted = 0;
        for entry in std::fs::read_dir(scratch.path(b"top")).unwrap() {
            let path = entry.unwrap().path();
            if std::fs::metadata(&path).unwrap().len() < OBJECT as u64 {
                continue;
            }
            planted += 1;
            if linked {
                std::fs::hard_link(&path, &outside).unwrap();
            } else {
                std::fs::write(&outside, b"victim").unwrap();
                std::fs::remove_file(&path).unwrap();
                std::fs::rename(&outside, &path).unwrap();
            }
        }
        assert_eq!(planted, 1);
        let result = driver.write_object(&large, token, &bytes, 0);
        assert_eq!(result.map_err(|failure| failure.code), Err(haul_model::Code::SinkWrite), "{linked}");
    }
}

#[test]
fn a_member_that_another_group_is_at_is_not_called_durable() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let (driver, top, faults) = session(&scratch, Faults::default());
    let driver = Arc::new(driver);
    let small = driver.file(top, b"small", 1);
    assert_eq!(driver.write_members(&[(&small, b"x")]), [Ok(())]);
    let (syncing, id) = (Arc::clone(&driver), small.id);
    faults.meanwhile(Fault::Sync(SyncPoint::MemberData), move || assert_eq!(syncing.sync(&[id]).len(), 1));
    driver.sync(&[small.id]);
    assert_eq!(faults.seen().iter().filter(|fault| **fault == Fault::Sync(SyncPoint::MemberData)).count(), 1);
}

/// A later run could never finish it otherwise.
#[test]
fn what_cannot_be_read_back_is_to_be_written_anew() {
    const ENOMEM: i32 = 12;
    for (errno, expected) in [(EIO, Code::HashMismatch), (ENOMEM, Code::SinkWrite)] {
        let bytes = content(7, 3 * OBJECT as usize);
        let scratch = Scratch::new(SyncMode::EachFile);
        let (driver, top, _) = session(&scratch, Faults::default());
        let file = driver.file(top, b"large", bytes.len());
        let token = driver.start(&file);
        driver.write_in_parts(&file, token, &bytes);
        drop(driver);
        std::fs::remove_file(scratch.path(format!("top/.haul-{token}.sums").as_bytes())).unwrap();
        let faults = Arc::new(Faults::default().fail(Fault::Reread, 2, errno));
        let settings = SinkSettings { faults: Some(faults), ..scratch.settings(*b"two.") };
        let (driver, top) = scratch.session_with(settings);
        let file = driver.file(top, b"large", bytes.len());
        assert_eq!(driver.prepare(&file, Some(token), true), Prepared::Resume(token));
        assert_eq!(driver.seal(&file, token, None), Err(Failure::os(expected, errno)));
    }
}

/// The log says that its objects are durable, and their hashes are beside it.
#[test]
fn what_was_cut_off_between_two_sessions_is_not_gone_on_with() {
    let bytes = content(7, 4 * OBJECT as usize - 5);
    let whole = bytes.len() as u64;
    for left in [0, OBJECT as u64, 2 * OBJECT as u64, whole - 1, whole, whole + 1] {
        let scratch = Scratch::new(SyncMode::EachFile);
        let (driver, top, _) = session(&scratch, Faults::default());
        let file = driver.file(top, b"large", bytes.len());
        let token = driver.start(&file);
        for index in 0..2 {
            assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
        }
        assert_eq!(driver.sync(&[file.id]), []);
        drop(driver);
        let unfinished = scratch.path(format!("top/.haul-{token}").as_bytes());
        let unfinished = std::fs::File::options().write(true).open(unfinished).unwrap();
        assert_eq!(unfinished.metadata().unwrap().len(), whole, "else nobody could tell");
        unfinished.set_len(left).unwrap();
        let (driver, top) = scratch.session(*b"two.");
        let file = driver.file(top, b"large", bytes.len());
        let prepared = driver.prepare(&file, Some(token), true);
        assert_eq!(prepared == Prepared::Resume(token), left == whole, "{left} bytes left");
        if left == whole {
            for index in 2..4 {
                assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
            }
            assert!(driver.seal(&file, token, None).is_ok());
        }
    }
}
