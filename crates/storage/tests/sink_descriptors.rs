//! A sink on a machine that gives few descriptors. One test: the limit is that of the whole process.

mod sink_support;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use haul_model::op::{Landed, MemberWrite, MembersStep};
use haul_model::{Code, EntryId, Hash, SlotId, Token};
use haul_storage::conformance_sink::{Driver, Seen};
use haul_storage::sink::{Fault, Faults, SinkSettings, SyncMode, SyncPoint};
use rustix::fs::{Mode, OFlags, openat};
use rustix::process::{Resource, getrlimit, setrlimit};
use sink_support::{Scratch, names};

const DESCRIPTORS: u64 = 128;
const DEPTH: usize = 200;

#[test]
fn few_descriptors_are_enough_for_long_paths_many_directories_and_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    (limit.current, limit.maximum) = (Some(DESCRIPTORS), Some(DESCRIPTORS));
    setrlimit(Resource::Nofile, limit).unwrap();
    paths_longer_than_the_kernel_takes();
    directories_are_opened_again_and_swapped_ones_noticed();
    more_members_than_descriptors_before_their_sync();
    made_members();
}

fn open_count() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn paths_longer_than_the_kernel_takes() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let (driver, top) = scratch.session(*b"one.");
    let name = [b'd'; 255];
    let mut chain = vec![top];
    for _ in 0..DEPTH {
        chain.push(driver.directory(*chain.last().unwrap(), &name));
    }
    // Their descriptors were closed long ago, by now also those of their parents.
    for (number, depth) in [DEPTH, 0, DEPTH / 2, DEPTH, 1, DEPTH - 1].into_iter().enumerate() {
        driver.put_member(chain[depth], format!("file-{number}").as_bytes(), b"deep");
        assert!(open_count() < DESCRIPTORS as usize);
    }
    assert_eq!(driver.finish(), []);
    let mut held = OwnedFd::from(File::open(scratch.path(b"top")).unwrap());
    for _ in 0..DEPTH {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        held = openat(&held, OsStr::from_bytes(&name), flags, Mode::empty()).unwrap();
        let found = rustix::fs::fstat(&held).unwrap();
        assert_eq!(
            (found.st_mode & 0o7777, found.st_mtime),
            (0o755, 1_500_000_000),
            "finished, however deep"
        );
    }
    let mut bytes = [0; 8];
    let file = openat(&held, "file-3", OFlags::RDONLY, Mode::empty()).unwrap();
    assert_eq!(rustix::io::read(file, &mut bytes), Ok(4));
}

fn directories_are_opened_again_and_swapped_ones_noticed() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let (driver, top) = scratch.session(*b"one.");
    let many: Vec<EntryId> =
        (0..100).map(|number| driver.directory(top, format!("{number}").as_bytes())).collect();
    for (number, id) in many.iter().enumerate() {
        driver.put_member(*id, b"file", format!("{number}").as_bytes());
    }
    assert!(open_count() < DESCRIPTORS as usize / 2);
    // The first ones are closed now; somebody puts other things in their places.
    let move_away = |name: &str| {
        fs::rename(scratch.path(b"top").join(name), scratch.outside.join(name)).unwrap();
    };
    for name in ["0", "1", "2"] {
        move_away(name);
    }
    std::os::unix::fs::symlink(scratch.outside.join("0"), scratch.path(b"top/0")).unwrap();
    sink_support::plant(&scratch.path(b"top/1"), &Seen::directory());
    for (number, code) in [Code::SinkNotDirectory, Code::SinkMoved, Code::SinkMoved].iter().enumerate() {
        let file = driver.file(many[number], b"new", 1);
        let results = driver.write_members(&[(&file, b"x")]);
        assert_eq!(results[0].map_err(|failure| failure.code), Err(*code), "{number}");
        assert_eq!(names(&scratch.outside.join(number.to_string())), [b"file".to_vec()].into());
    }
    assert_eq!(names(&scratch.path(b"top/1")), [].into());
    driver.put_member(many[3], b"new", b"x");
    assert_eq!(driver.finish().len(), 3);
}

fn more_members_than_descriptors_before_their_sync() {
    // In memory they have a descriptor each until they are named, as far as there are some.
    [SyncMode::EachFile, SyncMode::Measured].into_iter().for_each(more_members_than_descriptors);
}

fn more_members_than_descriptors(mode: SyncMode) {
    let scratch = Scratch::fast(mode);
    // Memory is taken for a disk: names wait.
    let faults = Arc::new(Faults::default());
    let settings = SinkSettings { faults: Some(Arc::clone(&faults)), ..scratch.settings(*b"one.") };
    let (driver, top) = scratch.session_with(settings);
    let files: Vec<_> = (0..500).map(|number| driver.file(top, format!("{number}").as_bytes(), 3)).collect();
    for again in [false, true] {
        let members: Vec<_> = files.iter().map(|file| (file, &b"abc"[..])).collect();
        assert!(driver.write_members(&members).iter().all(|result| result.is_ok()));
        assert!(open_count() < DESCRIPTORS as usize);
        let named = names(&scratch.path(b"top")).len();
        // The second time the first ones have the descriptors still.
        let expected = mode == SyncMode::EachFile || again || (1..500).contains(&named);
        assert!(expected, "{named} have a temporary name");
    }
    let ids: Vec<EntryId> = files.iter().map(|file| file.id).collect();
    driver.settle(&ids);
    assert_eq!(names(&scratch.path(b"top")).len(), 500);
    assert!(open_count() < 40, "{}", open_count());
    let synced = faults.seen().iter().filter(|fault| **fault == Fault::Sync(SyncPoint::MemberData)).count();
    assert!(mode != SyncMode::EachFile || synced >= 500, "each is synced: {synced}");
    // All are there again.
    let before = open_count();
    let files: Vec<_> =
        (500..1000).map(|number| driver.file(top, format!("{number}").as_bytes(), 3)).collect();
    let members: Vec<_> = files.iter().map(|file| (file, &b"abc"[..])).collect();
    assert!(driver.write_members(&members).iter().all(|result| result.is_ok()));
    assert!(
        open_count() >= before + 10,
        "some are kept open again, {mode:?}: {} after {before}",
        open_count()
    );
    let ids: Vec<EntryId> = files.iter().map(|file| file.id).collect();
    driver.settle(&ids);
    assert!(open_count() <= before);
    let files: Vec<_> =
        (1000..1500).map(|number| driver.file(top, format!("{number}").as_bytes(), 3)).collect();
    let members: Vec<_> = files.iter().map(|file| (file, &b"abc"[..])).collect();
    assert!(driver.write_members(&members).iter().all(|result| result.is_ok()));
    assert!(
        open_count() >= before + 10,
        "and after a settlement, too, {mode:?}: {} after {before}",
        open_count()
    );
}

/// Each holds a descriptor until it is filled, or given up.
fn made_members() {
    let scratch = Scratch::fast(SyncMode::EachFile).striped();
    let (driver, top) = scratch.session(*b"one.");
    let member = |driver: &Driver, number: usize| {
        driver.pool().lease(SlotId(0)).unwrap()[..4].copy_from_slice(b"data");
        let entry = driver.file(top, format!("{number}").as_bytes(), 4);
        MemberWrite { entry: Arc::new(entry), offset: 0, hash: Hash(*blake3::hash(b"data").as_bytes()) }
    };
    for number in 0..300 {
        let writes = [member(&driver, number)];
        let made = driver.members_step(MembersStep::Make, &writes, 4);
        assert!(matches!(made[..], [Ok(Landed::Made(_))]), "{number}: {made:?}");
        let id = writes[0].entry.id;
        if number % 2 == 0 {
            driver.discard(id, Token::NONE);
        } else {
            let fill = MembersStep::Fill { target: 2, gently: false };
            assert_eq!(driver.members_step(fill, &writes, 4), [Ok(Landed::Written)]);
            driver.settle(&[id]);
        }
    }
}
