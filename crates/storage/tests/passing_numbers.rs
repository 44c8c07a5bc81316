//! Where a file has its number no longer than the kernel remembers it (FAT, much of FUSE), another number is no other file. What such
//! file systems do with names that are the same to them, or that they do not take.

mod sink_support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use haul_buffers::Pool;
use haul_model::op::{Prepared, SinkOp};
use haul_model::{Code, EntryId, Token};
use haul_storage::conformance_sink::{Driver, OBJECT, content};
use haul_storage::conformance_source::{confirm, read_members, read_object, restat, scan_all};
use haul_storage::sink::{Decision, PosixSink, SinkRoot, SourceName, SyncMode};
use haul_storage::source::{PosixSource, Root, SourceOptions};
use haul_stripefs::{Mount, Options, StripeFs, control};
use sink_support::Scratch;

struct Mounted {
    // Unmounted first.
    _mount: Mount,
    filesystem: StripeFs,
    _scratch: tempfile::TempDir,
    data: PathBuf,
}

impl Mounted {
    fn new() -> Mounted {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let filesystem = StripeFs::open(&Options::new(vec![at("target")], at("mds"))).unwrap();
        fs::create_dir(at("data")).unwrap();
        let mount = Mount::new(&filesystem, &at("data")).expect("FUSE can be mounted");
        Mounted { _mount: mount, filesystem, data: at("data"), _scratch: scratch }
    }

    /// A session that puts what it gets into the directory.
    fn driver(&self, scratch: &Scratch, session_tag: [u8; 4]) -> Driver {
        let root = SinkRoot::open(&self.data, Decision::Into, &[SourceName::Contents]).unwrap();
        Driver::new(Box::new(PosixSink::open(root, scratch.settings(session_tag)).unwrap()))
    }

    fn names(&self) -> Vec<String> {
        let listed = fs::read_dir(&self.data).unwrap();
        listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn turn(&self, knob: &str) {
        control::execute(&self.filesystem, knob).unwrap();
    }

    /// From now on all have other numbers.
    fn forget(&self) {
        control::execute(&self.filesystem, "numbers=pass").unwrap();
        // Until what was known of them is old.
        thread::sleep(Duration::from_millis(1100));
    }
}

#[test]
fn a_file_with_another_number_is_the_file_that_it_was() {
    let mounted = Mounted::new();
    let path = mounted.data.join("below/file");
    fs::create_dir(mounted.data.join("below")).unwrap();
    fs::write(&path, vec![7; 100_000]).unwrap();
    // Its change time is its own.
    fs::File::options().write(true).open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    thread::sleep(Duration::from_millis(30));
    let pool = Pool::new(1, 1 << 20).unwrap();
    for root in [mounted.data.clone(), path.clone()] {
        control::execute(&mounted.filesystem, "numbers=stay").unwrap();
        thread::sleep(Duration::from_millis(1100));
        let open = || {
            let options = SourceOptions { recursive: true, ..SourceOptions::default() };
            PosixSource::new(vec![Root::new(root.to_str().unwrap())], options)
        };
        let source = open();
        let found = scan_all(&mut source.scan(Arc::new(AtomicU64::new(1))), 1);
        let (_, entry) = &found.files[0];
        let number = fs::metadata(&path).unwrap().ino();
        mounted.forget();
        assert_ne!(fs::metadata(&path).unwrap().ino(), number);
        // In this session, and for what a log of it says to the next.
        assert_eq!(confirm(&source, &pool, entry), Ok(()));
        assert!(read_object(&source, &pool, entry, 0, 100_000, true).is_ok());
        assert!(read_members(&source, &pool, &[Arc::clone(entry)]).1[0].is_ok());
        assert_eq!(restat(&source, &pool, entry).unwrap().identity, entry.identity);
        let again = scan_all(&mut open().scan(Arc::new(AtomicU64::new(1))), 1);
        assert!(again.files[0].1.identity.is_still(&entry.identity));
    }
    // What has changed is told all the same.
    let source = PosixSource::new(vec![Root::new(path.to_str().unwrap())], SourceOptions::default());
    let (_, entry) = &scan_all(&mut source.scan(Arc::new(AtomicU64::new(1))), 1).files[0];
    fs::rename(&path, mounted.data.join("below/old")).unwrap();
    fs::write(&path, vec![8; 100_000]).unwrap();
    thread::sleep(Duration::from_millis(1100));
    assert!(confirm(&source, &pool, entry).is_err());
}

/// Nothing else would tell it from another one of its size and time, and the log of the one would be believed of the other.
#[test]
fn the_number_counts_where_a_file_has_no_change_time_of_its_own() {
    let mounted = Mounted::new();
    let path = mounted.data.join("file");
    fs::write(&path, b"content").unwrap();
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
    let scan = || {
        let source = PosixSource::new(vec![Root::new(path.to_str().unwrap())], SourceOptions::default());
        scan_all(&mut source.scan(Arc::new(AtomicU64::new(1))), 1).files[0].1.identity
    };
    // Both are of one moment.
    rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::empty()).unwrap();
    thread::sleep(Duration::from_millis(1100));
    let before = scan();
    assert_eq!(before.ctime, before.mtime);
    mounted.forget();
    assert!(before.inode != 0 && !before.is_still(&scan()));
}

#[test]
fn a_directory_with_another_number_was_not_moved() {
    let mounted = Mounted::new();
    let scratch = Scratch::new(SyncMode::Measured);
    let names = [SourceName::Named(b"top".to_vec())];
    let root = SinkRoot::open(&mounted.data, Decision::Into, &names).unwrap();
    let driver = Driver::new(Box::new(PosixSink::open(root, scratch.settings(*b"one.")).unwrap()));
    let top = driver.directory(EntryId::root(0), b"");
    let below = driver.directory(top, b"below");
    driver.put_member(below, b"file", b"content");
    for id in [below, top] {
        driver.end(id);
        driver.run(SinkOp::Forget { id });
    }
    mounted.forget();
    assert_eq!(driver.finish(), []);
    for name in ["top", "top/below"] {
        let found = fs::metadata(mounted.data.join(name)).unwrap();
        assert_eq!((found.permissions().mode() & 0o7777, found.mtime()), (0o755, 1_500_000_000), "{name}");
    }
}

const BYTES: usize = 2 * OBJECT as usize;

/// A session with an unfinished file of this name, which ends there.
fn killed_midway(mounted: &Mounted, scratch: &Scratch, name: &[u8]) -> Token {
    let driver = mounted.driver(scratch, *b"one.");
    let top = driver.directory(EntryId::root(0), b"");
    let file = driver.file(top, name, BYTES);
    let token = driver.start(&file);
    driver.put_member(top, b"README", b"content");
    assert_eq!(driver.write_object(&file, token, &content(1, BYTES), 0), Ok(()));
    token
}

#[test]
fn what_goes_on_does_not_take_the_place_of_a_file_whose_name_is_the_same() {
    let mounted = Mounted::new();
    let scratch = Scratch::new(SyncMode::Measured);
    mounted.turn("case=ignored");
    mounted.turn("paths=numbered");
    let token = killed_midway(&mounted, &scratch, b"Readme");
    let driver = mounted.driver(&scratch, *b"two.");
    let top = driver.directory(EntryId::root(0), b"");
    assert_eq!(driver.prepare(&driver.file(top, b"README", 7), None, false), Prepared::Skip);
    let file = driver.file(top, b"Readme", BYTES);
    assert_eq!(driver.prepare(&file, Some(token), true), Prepared::Fail(Code::NameTaken.into()));
    // Nor do two that both come now, in either order; where letters are told apart each has its own.
    for (first, second, is_same) in
        [("new", "New", true), ("\u{3c3}", "\u{3c2}", false), ("\u{e9}", "\u{c9}", true)]
    {
        let [first, second] = [first, second].map(|name| driver.file(top, name.as_bytes(), 1));
        let written = driver.write_members(&[(&first, b"1"), (&second, b"2")]);
        assert_eq!(written, [Ok(()), Ok(())]);
        let ids = [first.id, second.id];
        assert_eq!(driver.sync(&ids), []);
        let failed: Vec<_> = is_same.then_some((second.id, Code::NameTaken.into())).into_iter().collect();
        assert_eq!(driver.publish(&ids), failed);
        failed.iter().for_each(|(id, _)| driver.discard(*id, Token::NONE));
    }
    assert_eq!(fs::read(mounted.data.join("README")).unwrap(), b"content");
}

/// As on NFS and exfat-fuse: whether a name is free is looked at first, by several at once.
#[test]
fn nor_does_one_of_two_at_once_where_a_name_is_given_by_replacing_only() {
    let mounted = Mounted::new();
    let scratch = Scratch::new(SyncMode::Measured);
    for knob in ["case=ignored", "paths=numbered", "rename_flags=refuse", "mds latency=5ms"] {
        mounted.turn(knob);
    }
    let driver = mounted.driver(&scratch, *b"one.");
    let top = driver.directory(EntryId::root(0), b"");
    let new = driver.directory(top, b"new");
    for round in 0..10 {
        for pair in [["N", "n"], ["\u{c9}", "\u{e9}"]] {
            let files = pair.map(|name| driver.file(new, format!("{name}{round}").as_bytes(), 1));
            let members = files.each_ref().map(|file| (file, &b"x"[..]));
            assert_eq!(driver.write_members(&members), [Ok(()), Ok(())]);
            let ids = files.map(|file| file.id);
            assert_eq!(driver.sync(&ids), []);
            let (driver, together) = (&driver, &Barrier::new(2));
            let failed: Vec<_> = thread::scope(|scope| {
                let publish = |id| {
                    scope.spawn(move || {
                        together.wait();
                        driver.publish(&[id])
                    })
                };
                ids.map(publish).into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            });
            assert!(matches!(failed[..], [(_, failure)] if failure == Code::NameTaken.into()), "{failed:?}");
            driver.discard(failed[0].0, Token::NONE);
        }
    }
}

#[test]
fn an_unfinished_file_that_can_never_have_its_name_goes() {
    for how in ["colons=refused", "colons=missed"] {
        let mounted = Mounted::new();
        let scratch = Scratch::new(SyncMode::Measured);
        let token = killed_midway(&mounted, &scratch, b"12:00");
        assert_eq!(mounted.names().len(), 2);
        mounted.turn(how);
        let driver = mounted.driver(&scratch, *b"two.");
        let top = driver.directory(EntryId::root(0), b"");
        let told = driver.prepare(&driver.file(top, b"12:00", BYTES), Some(token), true);
        assert!(matches!(told, Prepared::Fail(failure) if failure.code == Code::NameInvalid), "{told:?}");
        driver.end(top);
        assert_eq!(driver.finish(), []);
        assert_eq!(mounted.names(), ["README"]);
        // It takes it no longer when all is there.
        for switch in ["colons=taken", "colons=found"] {
            mounted.turn(switch);
        }
        let driver = mounted.driver(&scratch, *b"thr.");
        let top = driver.directory(EntryId::root(0), b"");
        let file = driver.file(top, b"12:00", BYTES);
        let token = driver.start(&file);
        driver.write_objects(&file, token, &content(1, BYTES));
        driver.seal(&file, token, None).unwrap();
        assert_eq!(driver.sync(&[file.id]), []);
        mounted.turn(how);
        let failed = driver.publish(&[file.id]);
        assert!(matches!(failed[..], [(_, failure)] if failure.code == Code::NameInvalid), "{failed:?}");
        driver.let_go(file.id, token, true);
        assert_eq!(mounted.names(), ["README"]);
    }
}
