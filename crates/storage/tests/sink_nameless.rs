//! Members that have no name before their final one: in memory as on a disk, and in memory as it is, where they get it at once.

mod sink_support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use haul_model::op::{MemberWrite, MembersStep, Progress, SinkOp};
use haul_model::{BlockId, Code, EntryId, Hash, SlotId, Token};
use haul_storage::conformance_sink::{Driver, Seen};
use haul_storage::sink::{Faults, SinkSettings, SyncMode};
use rustix::fs::XattrFlags;
use sink_support::{Scratch, as_user, look, names, plant};

fn open_descriptors_of(scratch: &Scratch) -> usize {
    let below = scratch.destination.canonicalize().unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap();
    let leads = |entry: std::io::Result<fs::DirEntry>| fs::read_link(entry.ok()?.path()).ok();
    // The kernel calls them `/path/#inode (deleted)`.
    open.filter_map(leads)
        .filter(|path| path.starts_with(&below) && path.to_string_lossy().contains("/#"))
        .count()
}

/// In memory, whatever the directory for temporary files is.
fn in_memory() -> Scratch {
    let scratch = Scratch::fast(SyncMode::Measured);
    assert!(scratch.destination.starts_with("/dev/shm"), "the tests need /dev/shm");
    scratch
}

/// A session that takes memory for a disk: names wait for their syncs.
fn session(scratch: &Scratch) -> (Driver, EntryId) {
    let faults = Some(Arc::new(Faults::default()));
    scratch.session_with(SinkSettings { faults, ..scratch.settings(*b"one.") })
}

fn settle_one(driver: &Driver, id: EntryId) -> Result<(), Code> {
    assert_eq!(driver.sync(&[id]), []);
    match driver.publish(&[id])[..] {
        [] => {
            assert_eq!(driver.sync_names(&[id]), []);
            Ok(())
        }
        [(of, failure)] if of == id => Err(failure.code),
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_seen_of_a_member_before_it_has_its_name_and_nothing_is_left_of_one_that_gets_none() {
    let scratch = in_memory();
    let work = || {
        let (driver, top) = session(&scratch);
        let files =
            [driver.file(top, b"named", 3), driver.file(top, b"discarded", 3), driver.file(top, b"lost", 3)];
        let bundle: Vec<_> = files.iter().map(|file| (file, &b"abc"[..])).collect();
        assert!(driver.write_members(&bundle).iter().all(Result::is_ok));
        assert_eq!(names(&scratch.path(b"top")), [].into());
        assert_eq!(open_descriptors_of(&scratch), 3);
        // Once more: the first one goes.
        assert!(driver.write_members(&bundle[..1]).iter().all(Result::is_ok));
        assert_eq!(open_descriptors_of(&scratch), 3);
        assert_eq!(settle_one(&driver, files[0].id), Ok(()));
        driver.discard(files[1].id, Token::NONE);
        assert_eq!(open_descriptors_of(&scratch), 1);
        drop(driver);
        assert_eq!(open_descriptors_of(&scratch), 0);
        assert_eq!(names(&scratch.path(b"top")), [b"named".to_vec()].into());
        let mode = files[0].attributes.mode & 0o777;
        assert_eq!(
            look(&scratch.path(b"top/named")),
            Some(Seen { mode, mtime: files[0].attributes.mtime, ..Seen::file(b"abc") })
        );
        fs::remove_dir_all(scratch.path(b"top")).unwrap();
    };
    work();
    as_user(&scratch, work);
}

#[test]
fn what_has_the_name_is_replaced_at_once_if_it_may_be() {
    let scratch = in_memory();
    plant(&scratch.path(b"top"), &Seen::directory());
    plant(&scratch.path(b"top/file"), &Seen::file(b"earlier"));
    plant(&scratch.path(b"top/link"), &Seen::symlink(b"file"));
    let (driver, top) = session(&scratch);
    for name in [&b"file"[..], b"link"] {
        let file = driver.file(top, name, 3);
        assert!(driver.write_members(&[(&file, b"new")]).iter().all(Result::is_ok));
        assert_eq!(settle_one(&driver, file.id), Ok(()));
        assert_eq!(fs::read(scratch.path(b"top").join(std::str::from_utf8(name).unwrap())).unwrap(), b"new");
    }
    let file = driver.file(top, b"directory", 3);
    assert!(driver.write_members(&[(&file, b"new")]).iter().all(Result::is_ok));
    plant(&scratch.path(b"top/directory"), &Seen::directory());
    assert!(settle_one(&driver, file.id).is_err(), "a directory is in the way");
    let left: Vec<Vec<u8>> = names(&scratch.path(b"top")).into_iter().collect();
    assert_eq!(left, [&b"directory"[..], b"file", b"link"], "and no temporary name");
}

#[test]
fn in_a_directory_of_this_session_a_name_is_given_once() {
    let scratch = in_memory();
    let (driver, top) = session(&scratch);
    let twins = [driver.file(top, b"twin", 3), driver.file(top, b"twin", 5)];
    assert!(driver.write_members(&[(&twins[0], b"one"), (&twins[1], b"other")]).iter().all(Result::is_ok));
    assert_eq!(settle_one(&driver, twins[0].id), Ok(()));
    assert_eq!(settle_one(&driver, twins[1].id), Err(Code::NameTaken));
    driver.discard(twins[1].id, Token::NONE);
    assert_eq!(fs::read(scratch.path(b"top/twin")).unwrap(), b"one");
    assert_eq!(names(&scratch.path(b"top")), [b"twin".to_vec()].into());
    assert_eq!(open_descriptors_of(&scratch), 0);
}

#[test]
fn in_memory_a_member_is_complete_when_it_is_written() {
    let scratch = in_memory();
    let work = || {
        let (driver, top) = scratch.session(*b"one.");
        let files = [driver.file(top, b"one", 3), driver.file(top, b"other", 3)];
        let bundle: Vec<_> = files.iter().map(|file| (file, &b"abc"[..])).collect();
        assert!(driver.write_members(&bundle).iter().all(Result::is_ok));
        assert!(files.iter().all(|file| driver.is_named(file.id)));
        assert_eq!(open_descriptors_of(&scratch), 0);
        let mode = files[0].attributes.mode & 0o777;
        let expected = Seen { mode, mtime: files[0].attributes.mtime, ..Seen::file(b"abc") };
        assert_eq!(look(&scratch.path(b"top/one")), Some(expected));
        assert_eq!(names(&scratch.path(b"top")), [b"one".to_vec(), b"other".to_vec()].into());
        // Nothing of them is left in the sink, so that a word about them finds nothing.
        driver.discard(files[0].id, Token::NONE);
        assert!(scratch.path(b"top/one").exists());
        fs::remove_dir_all(scratch.path(b"top")).unwrap();
    };
    work();
    as_user(&scratch, work);
}

/// The only difference between the two is what the file system is, not what a test says of it.
#[test]
fn on_a_disk_a_member_gets_its_name_after_its_sync() {
    for (scratch, in_memory) in [(in_memory(), true), (Scratch::on_disk(SyncMode::Measured), false)] {
        let in_memory = in_memory || is_memory(&scratch.destination);
        let (driver, top) = scratch.session_with(scratch.settings(*b"one."));
        let file = driver.file(top, b"named", 3);
        assert_eq!(driver.write_members(&[(&file, b"abc")]), [Ok(())]);
        let there = || look(&scratch.path(b"top/named"));
        assert_eq!(there().is_some(), in_memory, "{:?}", scratch.destination);
        if !in_memory {
            assert_eq!(driver.sync(&[file.id]), []);
            assert_eq!(there(), None, "synced, and not yet to be named");
            assert_eq!(driver.publish(&[file.id]), []);
            assert!(there().is_some());
        }
    }
}

fn is_memory(path: &Path) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    rustix::fs::statfs(path).unwrap().f_type as i64 == TMPFS_MAGIC
}

#[test]
fn in_memory_too_a_name_is_replaced_if_it_may_be_and_given_once_if_not() {
    let scratch = in_memory();
    plant(&scratch.path(b"top"), &Seen::directory());
    plant(&scratch.path(b"top/file"), &Seen::file(b"earlier"));
    plant(&scratch.path(b"top/directory"), &Seen::directory());
    let (driver, top) = scratch.session(*b"one.");
    let below = driver.directory(top, b"below");
    let files = [
        driver.file(top, b"file", 3),
        driver.file(top, b"directory", 3),
        driver.file(below, b"twin", 3),
        driver.file(below, b"twin", 3),
    ];
    let bundle: Vec<_> =
        files.iter().zip([b"new", b"bad", b"one", b"two"]).map(|(file, it)| (file, &it[..])).collect();
    let results = driver.write_members(&bundle);
    let codes: Vec<_> = results.iter().map(|result| result.map_err(|failure| failure.code)).collect();
    assert_eq!(codes, [Ok(()), Err(Code::SinkIsDirectory), Ok(()), Err(Code::NameTaken)]);
    let read = |path: &str| fs::read(scratch.path(path.as_bytes())).unwrap();
    assert_eq!((read("top/file"), read("top/below/twin")), (b"new".to_vec(), b"one".to_vec()));
    assert_eq!(names(&scratch.path(b"top/below")), [b"twin".to_vec()].into(), "and no temporary name");
    assert_eq!(open_descriptors_of(&scratch), 0);
}

#[test]
fn in_memory_too_nothing_that_was_given_up_gets_a_name() {
    let scratch = in_memory();
    let (driver, top) = scratch.session(*b"one.");
    let file = Arc::new(driver.file(top, b"file", 0));
    let write = MemberWrite { entry: file, offset: 0, hash: Hash(*blake3::hash(b"").as_bytes()) };
    let progress = Progress::default();
    assert!(progress.abandon().is_some());
    let (block, step, slot) = (BlockId(3), MembersStep::Make, SlotId(0));
    driver.run(SinkOp::WriteMembers { block, step, slot, length: 0, members: vec![write], progress });
    assert_eq!(names(&scratch.path(b"top")), [].into());
    assert_eq!(open_descriptors_of(&scratch), 0);
}

/// With access for its owner alone, and for nobody else whatever the mode says that is asked for.
fn hand_down(directory: &Path) {
    const NOBODY: u32 = u32::MAX;
    let entries = [(1u16, 7u16, NOBODY), (4, 0, NOBODY), (0x20, 0, NOBODY)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        list.extend(id.to_le_bytes());
    }
    rustix::fs::setxattr(directory, "system.posix_acl_default", &list, XattrFlags::empty()).unwrap();
}

#[test]
fn a_member_has_the_wanted_mode_whatever_new_files_get_in_its_directory() {
    let scratch = in_memory();
    let work = |preserve_owner| {
        let (driver, top) =
            scratch.session_with(SinkSettings { preserve_owner, ..scratch.settings(*b"one.") });
        let directories = [driver.directory(top, b"plain"), driver.directory(top, b"handing-down")];
        hand_down(&scratch.path(b"top/handing-down"));
        for (directory, below) in directories.into_iter().zip(["plain", "handing-down"]) {
            for mode in [0o644, 0o755, 0o600, 0o666, 0o777, 0o444, 0, 0o1644, 0o4755, 0o2750] {
                let name = format!("{mode:o}");
                let mut file = driver.file(directory, name.as_bytes(), 3);
                file.attributes.mode = mode;
                assert!(driver.write_members(&[(&file, b"abc")]).iter().all(Result::is_ok));
                assert!(driver.is_named(file.id));
                let path = scratch.path(b"top").join(below).join(&name);
                let made = fs::symlink_metadata(&path).unwrap();
                assert_eq!(made.mode() & 0o7777, mode & 0o1777, "{below} {name}");
                assert_eq!(made.len(), 3);
            }
        }
        fs::remove_dir_all(scratch.path(b"top")).unwrap();
    };
    work(false);
    work(true);
    as_user(&scratch, || work(false));
}
