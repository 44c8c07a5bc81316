//! What is swapped in between scan and read is neither followed nor waited for, and named rightly.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use haul_buffers::Pool;
use haul_model::op::{Progress, SourceDone, SourceOp};
use haul_model::{BlockId, Code, Entry, Failure, Kind, SlotId};
use haul_storage::SourceStorage;
use haul_storage::conformance_source::{confirm, read_members, read_object, restat, scan_all};
use haul_storage::source::{PosixSource, Root, SourceOptions};
use haul_stripefs::{Mount, Options, StripeFs, control};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Files on a server, and what it says of them itself.
struct Served {
    // Unmounted first.
    _mount: Mount,
    filesystem: StripeFs,
    scratch: tempfile::TempDir,
}

impl Served {
    fn new() -> Served {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let filesystem = StripeFs::open(&Options::new(vec![at("target")], at("mds"))).unwrap();
        fs::create_dir(at("data")).unwrap();
        let mount = Mount::new(&filesystem, &at("data")).expect("FUSE can be mounted");
        Served { _mount: mount, filesystem, scratch }
    }

    /// Another client does something to it, of which this one hears nothing.
    fn changes(&self) {
        let file = self.scratch.path().join("mds/tree/file");
        let file = fs::File::options().write(true).open(file).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
    }
}

/// Attributes are believed for a second on this file system: a look at them alone would say that nothing has changed.
#[test]
fn whether_a_file_has_changed_its_server_is_asked() {
    let served = Served::new();
    let data = served.scratch.path().join("data");
    fs::write(data.join("file"), vec![7; 100_000]).unwrap();
    thread::sleep(Duration::from_millis(30));
    let pool = Pool::new(1, 1 << 20).unwrap();
    for is_read in [true, false] {
        let root = Root::new(data.to_str().unwrap());
        let source = PosixSource::new(vec![root], SourceOptions::default());
        let found = scan_all(&mut source.scan(Arc::new(AtomicU64::new(1))), 1);
        let (_, entry) = &found.files[0];
        if is_read {
            assert!(read_object(&source, &pool, entry, 0, 100_000, true).is_ok());
        }
        assert_eq!(confirm(&source, &pool, entry), Ok(()));
        served.changes();
        assert_eq!(confirm(&source, &pool, entry), Err(Code::SourceChanged.into()), "read: {is_read}");
        // Until this client has heard of it.
        thread::sleep(Duration::from_millis(1100));
        fs::write(data.join("file"), vec![7; 100_000]).unwrap();
        thread::sleep(Duration::from_millis(30));
    }
}

/// Half of it would be called a copy.
#[test]
fn a_file_with_more_in_it_than_it_says_is_named() {
    let served = Served::new();
    let data = served.scratch.path().join("data");
    let pool = Pool::new(1, 1 << 20).unwrap();
    for (number, halved) in [true, false].into_iter().enumerate() {
        let path = data.join(number.to_string());
        fs::write(&path, vec![7; 100_000]).unwrap();
        thread::sleep(Duration::from_millis(30));
        let word = if halved { "sizes=halved" } else { "sizes=told" };
        control::execute(&served.filesystem, word).unwrap();
        // Until what was known of it is old.
        thread::sleep(Duration::from_millis(1100));
        let source = PosixSource::new(vec![Root::new(path.to_str().unwrap())], SourceOptions::default());
        let found = scan_all(&mut source.scan(Arc::new(AtomicU64::new(1))), 1);
        let (_, entry) = &found.files[0];
        assert_eq!(entry.size(), if halved { 50_000 } else { 100_000 });
        let told = Failure::os(Code::SourceRead, rustix::io::Errno::OPNOTSUPP.raw_os_error());
        let expected = if halved { Err(told) } else { Ok(()) };
        assert_eq!(
            read_members(&source, &pool, &[Arc::clone(entry)]).1[0].as_ref().map(drop),
            expected.as_ref().copied()
        );
        assert!(read_object(&source, &pool, entry, 0, entry.size() as u32, true).is_ok());
        assert_eq!(confirm(&source, &pool, entry), expected);
    }
}

/// As long as the clock stands where it stood at the last change, the next one would leave no trace.
#[test]
fn nothing_is_read_of_a_file_that_was_written_this_moment() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("data");
    let pool = Pool::new(1, 4096).unwrap();
    for whole in [true, false] {
        fs::write(&path, b"new").unwrap();
        let source = PosixSource::new(vec![Root::new(path.to_str().unwrap())], SourceOptions::default());
        let found = scan_all(&mut source.scan(Arc::new(AtomicU64::new(1))), 1);
        let (_, entry) = &found.files[0];
        match whole {
            true => assert!(read_members(&source, &pool, &[Arc::clone(entry)]).1[0].is_ok()),
            false => assert!(read_object(&source, &pool, entry, 0, 3, true).is_ok()),
        }
        let changed = fs::metadata(&path).unwrap().modified().unwrap();
        let since = changed.elapsed().unwrap();
        assert!(since >= Duration::from_millis(20), "it was read {since:?} after it was written");
    }
}

struct Dataset {
    scratch: tempfile::TempDir,
    source: Arc<PosixSource>,
    files: Vec<(String, Arc<Entry>)>,
}

impl Dataset {
    /// `data/sub/deep/{inner,other}` and `data/outer`, scanned with a single directory descriptor.
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir_all(scratch.path().join("data/sub/deep")).unwrap();
        for path in ["data/sub/deep/inner", "data/sub/deep/other", "data/outer"] {
            fs::write(scratch.path().join(path), b"a secret of ours").unwrap();
        }
        let root = Root::new(scratch.path().join("data").to_str().unwrap());
        let options = SourceOptions { directory_descriptors_max: 1, ..SourceOptions::default() };
        Self::scan(scratch, PosixSource::new(vec![root], options))
    }

    fn scan(scratch: tempfile::TempDir, source: PosixSource) -> Self {
        let found = scan_all(&mut source.scan(Arc::new(AtomicU64::new(1))), 1);
        let files = found.files.into_iter().map(|(path, entry)| (String::from_utf8(path).unwrap(), entry));
        Dataset { scratch, source: Arc::new(source), files: files.collect() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.scratch.path().join("data").join(path)
    }

    fn entry(&self, path: &str) -> &Arc<Entry> {
        &self.files.iter().find(|(other, _)| other == path).unwrap().1
    }

    /// Both kinds of read, which must agree; in a thread, because a hang is one of the things that must not happen.
    fn read(&self, path: &str) -> Result<(), Failure> {
        let (source, entry) = (Arc::clone(&self.source), Arc::clone(self.entry(path)));
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let pool = Pool::new(1, 4096).unwrap();
            let (length, results) = read_members(&*source, &pool, &[Arc::clone(&entry)]);
            let object = read_object(&*source, &pool, &entry, 0, entry.size() as u32, true);
            assert_eq!(
                object.map_err(|failure| failure.code),
                results[0].map(|read| read.hash.unwrap()).map_err(|f| f.code)
            );
            if results[0].is_err() {
                assert_eq!(length, 0);
                let slot = pool.lease(SlotId(0)).unwrap();
                assert!(slot.iter().all(|byte| *byte == 0), "not a byte of what stands there was read");
            }
            tell.send(results[0].map(|_| ())).unwrap();
        });
        told.recv_timeout(Duration::from_secs(20)).expect("the read came back")
    }

    fn code(&self, path: &str) -> Code {
        self.read(path).expect_err("something was swapped in").code
    }
}

/// Runs in a thread that may do no more than an ordinary user.
fn without_privileges<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective = CapabilitySet::empty();
            set_capabilities(None, sets).unwrap();
            what()
        });
        thread.join().unwrap()
    })
}

/// As Samba does with kernel oplocks. What it answers fcntl is 0 if it is fine, or the lease.
fn control(file: &fs::File, command: i32, argument: i32) -> i32 {
    // SAFETY: these commands of fcntl take a number, and the descriptor is open.
    unsafe { libc::fcntl(file.as_raw_fd(), command, argument) }
}

#[test]
fn a_file_that_somebody_holds_a_lease_on_is_read_when_that_is_given_up() {
    /// From fcntl(2); the crate libc does not name it.
    const F_SETSIG: i32 = 10;
    let dataset = Dataset::new();
    let holder = fs::File::options().read(true).write(true).open(dataset.path("outer")).unwrap();
    // The signal that asks for it would end the process if it were the usual one.
    assert_eq!(control(&holder, F_SETSIG, libc::SIGURG), 0);
    assert_eq!(control(&holder, libc::F_SETLEASE, libc::F_WRLCK), 0);
    thread::scope(|scope| {
        let read = scope.spawn(|| dataset.read("outer"));
        while control(&holder, libc::F_GETLEASE, 0) == libc::F_WRLCK {
            thread::yield_now();
        }
        drop(holder);
        assert_eq!(read.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_symlink_swapped_in_for_a_file_is_refused() {
    let dataset = Dataset::new();
    for target in ["other", "/etc/passwd", "/dev/zero", "nowhere"] {
        fs::remove_file(dataset.path("sub/deep/inner")).unwrap();
        symlink(target, dataset.path("sub/deep/inner")).unwrap();
        assert_eq!(dataset.code("sub/deep/inner"), Code::SourceChanged, "{target}");
    }
    assert!(dataset.read("sub/deep/other").is_ok());
    let pool = Pool::new(1, 4096).unwrap();
    let now = restat(&*dataset.source, &pool, dataset.entry("sub/deep/inner")).unwrap();
    assert_eq!((now.kind, &*now.link_target), (Kind::Symlink, &b"nowhere"[..]));
}

#[test]
fn a_symlink_to_the_very_same_file_is_refused_too() {
    let dataset = Dataset::new();
    fs::rename(dataset.path("outer"), dataset.path("moved")).unwrap();
    symlink("moved", dataset.path("outer")).unwrap();
    assert_eq!(dataset.code("outer"), Code::SourceChanged);
}

#[test]
fn a_symlink_swapped_in_for_a_directory_is_refused() {
    let dataset = Dataset::new();
    // The one descriptor goes to another directory, so that the way down has to be walked again.
    assert!(dataset.read("outer").is_ok());
    fs::rename(dataset.path("sub"), dataset.path("aside")).unwrap();
    symlink("aside", dataset.path("sub")).unwrap();
    assert_eq!(dataset.code("sub/deep/inner"), Code::SourceChanged);
    fs::remove_file(dataset.path("sub")).unwrap();
    assert_eq!(dataset.code("sub/deep/inner"), Code::SourceVanished);
    // The same files in another directory of the same name.
    fs::create_dir(dataset.path("sub")).unwrap();
    fs::rename(dataset.path("aside/deep"), dataset.path("sub/deep")).unwrap();
    assert_eq!(dataset.code("sub/deep/inner"), Code::SourceChanged);
    assert!(dataset.read("outer").is_ok(), "nothing else is disturbed");
}

#[test]
fn a_fifo_that_is_swapped_in_does_not_hang_the_read() {
    let dataset = Dataset::new();
    fs::remove_file(dataset.path("sub/deep/inner")).unwrap();
    mkfifoat(CWD, dataset.path("sub/deep/inner"), Mode::RUSR | Mode::WUSR).unwrap();
    assert_eq!(dataset.code("sub/deep/inner"), Code::SourceChanged);
}

#[test]
fn sockets_and_directories_that_are_swapped_in_are_changes() {
    let dataset = Dataset::new();
    fs::remove_file(dataset.path("sub/deep/inner")).unwrap();
    let _listener = UnixListener::bind(dataset.path("sub/deep/inner")).unwrap();
    assert_eq!(dataset.code("sub/deep/inner"), Code::SourceChanged);
    fs::remove_file(dataset.path("outer")).unwrap();
    fs::create_dir(dataset.path("outer")).unwrap();
    assert_eq!(dataset.code("outer"), Code::SourceChanged);
}

#[test]
fn a_directory_that_is_renamed_while_it_is_held_disturbs_no_read() {
    let dataset = Dataset::new();
    let pool = Pool::new(1, 4096).unwrap();
    assert!(dataset.read("sub/deep/inner").is_ok());
    fs::rename(dataset.path("sub"), dataset.scratch.path().join("elsewhere")).unwrap();
    assert!(dataset.read("sub/deep/other").is_ok(), "its directory is held");
    assert_eq!(confirm(&*dataset.source, &pool, dataset.entry("sub/deep/inner")), Ok(()));
}

#[test]
fn a_file_without_permission_is_named_as_such() {
    let dataset = Dataset::new();
    fs::set_permissions(dataset.path("outer"), fs::Permissions::from_mode(0o000)).unwrap();
    let failure = without_privileges(|| {
        let pool = Pool::new(1, 4096).unwrap();
        read_members(&*dataset.source, &pool, &[Arc::clone(dataset.entry("outer"))]).1[0]
    });
    assert_eq!(failure.map_err(|failure| failure.code), Err(Code::SourcePermission));
}

#[test]
fn somebody_elses_file_is_read_without_the_privilege_to_keep_its_access_time() {
    let scratch = tempfile::tempdir().unwrap();
    fs::create_dir(scratch.path().join("data")).unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["one", "two"] {
        fs::write(scratch.path().join("data").join(name), b"for everybody").unwrap();
    }
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root, for a file of somebody else");
    }
    for path in ["data", "data/one", "data/two"] {
        std::os::unix::fs::chown(scratch.path().join(path), Some(12345), None).unwrap();
    }
    without_privileges(|| {
        let root = Root::new(scratch.path().join("data").to_str().unwrap());
        let source = PosixSource::new(vec![root], SourceOptions::default());
        let found = scan_all(&mut source.scan(Arc::new(AtomicU64::new(1))), 1);
        let members: Vec<Arc<Entry>> = found.files.into_iter().map(|(_, entry)| entry).collect();
        let pool = Pool::new(1, 4096).unwrap();
        let (length, results) = read_members(&source, &pool, &members);
        assert_eq!((length, results.len()), (26, 2), "{results:?}");
    });
}

#[test]
fn reading_leaves_access_times_alone() {
    let dataset = Dataset::new();
    // Older than the modification: the kernel would update it even where it is lazy about that.
    let ancient = fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH + Duration::from_secs(1000));
    for path in ["outer", "sub/deep/inner", "sub", "sub/deep"] {
        fs::File::open(dataset.path(path)).unwrap().set_times(ancient).unwrap();
    }
    let root = Root::new(dataset.path("").to_str().unwrap());
    let options = SourceOptions::default();
    let dataset = Dataset::scan(dataset.scratch, PosixSource::new(vec![root], options));
    assert!(dataset.read("outer").is_ok());
    assert!(dataset.read("sub/deep/inner").is_ok());
    for path in ["outer", "sub/deep/inner", "sub", "sub/deep"] {
        assert_eq!(fs::metadata(dataset.path(path)).unwrap().atime(), 1000, "{path}");
    }
}

fn single(path: &Path, recursive: bool) -> Dataset {
    let options = SourceOptions { recursive, ..SourceOptions::default() };
    let source = PosixSource::new(vec![Root::new(path.to_str().unwrap())], options);
    Dataset::scan(tempfile::tempdir().unwrap(), source)
}

#[test]
fn a_source_that_is_a_file_is_read_and_watched_like_any_other() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("file");
    fs::write(&path, b"alone").unwrap();
    let dataset = single(&path, true);
    assert!(dataset.read("").is_ok());
    fs::rename(&path, scratch.path().join("moved")).unwrap();
    assert_eq!(single_code(&dataset), Code::SourceVanished);
    symlink("moved", &path).unwrap();
    assert_eq!(single_code(&dataset), Code::SourceChanged);
    // Named as a symlink and without -r it is followed, as cp does.
    assert!(single(&path, false).read("").is_ok());
}

/// A fresh thread has no descriptor of the file; the one that is open from before is released first.
fn single_code(dataset: &Dataset) -> Code {
    use haul_model::op::SourceOp;
    use haul_storage::SourceStorage;
    let pool = Pool::new(1, 4096).unwrap();
    dataset.source.run(SourceOp::Release { id: dataset.entry("").id }, &pool);
    dataset.code("")
}

#[test]
fn what_changes_between_hash_and_send_is_named_when_it_is_read_again() {
    // A file system where bytes stay in their files.
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = scratch.path().join("data");
    fs::write(&path, vec![1; 4096]).unwrap();
    let options = SourceOptions { in_place: true, ..SourceOptions::default() };
    let source = PosixSource::new(vec![Root::new(path.to_str().unwrap())], options);
    let dataset = Dataset::scan(scratch, source);
    let entry = &dataset.files[0].1;
    let pool = Pool::new(1, 4096).unwrap();
    let read = |again| {
        let (block, entry, slot) = (BlockId(1), Arc::clone(entry), SlotId(0));
        let (single, on_the_way, gently) = (true, false, false);
        let (offset, length) = (0, 4096);
        let op =
            SourceOp::ReadObject { block, entry, offset, length, slot, single, again, on_the_way, gently };
        match dataset.source.run(op, &pool) {
            Some(SourceDone::Object { result, .. }) => result.map_err(|failure| failure.code),
            other => panic!("{other:?}"),
        }
    };
    let ranges = || pool.lease(SlotId(0)).unwrap().take_file_ranges().len();
    assert_eq!((read(false).is_ok(), ranges()), (true, 1));
    assert_eq!((read(true).is_ok(), ranges()), (true, 0), "the second time the bytes are in the slot");
    // The kernel's clock for files ticks every few milliseconds.
    thread::sleep(Duration::from_millis(20));
    fs::write(&path, vec![2; 4096]).unwrap();
    assert_eq!(read(true), Err(Code::SourceChanged));
}

#[test]
fn bytes_stay_in_their_file_where_the_sink_would_notice_a_change_or_where_nothing_is_noticed_anyway() {
    use haul_model::HashKind;
    use std::os::unix::fs::FileExt;
    for (hash, in_memory) in HashKind::ALL.into_iter().flat_map(|hash| [(hash, true), (hash, false)]) {
        let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = scratch.path().join("data");
        let file = fs::File::create(&path).unwrap();
        // A stream does not wait for storage: what no thread has looked at must be in memory, and a hole is not.
        file.write_all_at(&[1; 4096], if in_memory { 0 } else { 4096 }).unwrap();
        file.write_all_at(&[1; 4096], 4096).unwrap();
        let expected = fs::read(&path).unwrap();
        let options =
            SourceOptions { in_place: true, in_place_member_bytes_min: 1, hash, ..SourceOptions::default() };
        let source = PosixSource::new(vec![Root::new(path.to_str().unwrap())], options);
        let dataset = Dataset::scan(scratch, source);
        let pool = Pool::new(1, 8192).unwrap();
        let (block, slot, again, length) = (BlockId(1), SlotId(0), false, 8192);
        let entry = || Arc::clone(&dataset.files[0].1);
        let object = SourceOp::ReadObject {
            block,
            entry: entry(),
            offset: 0,
            length,
            slot,
            single: true,
            again,
            on_the_way: false,
            gently: false,
        };
        let members = |on_the_way| SourceOp::ReadMembers {
            block,
            slot,
            members: vec![entry()],
            again,
            on_the_way,
            progress: Progress::default(),
        };
        let hashed = hash != HashKind::None;
        let cases = [(object, hashed || in_memory), (members(false), hashed), (members(true), hashed)];
        for (op, stays) in cases {
            dataset.source.run(op, &pool);
            let mut lease = pool.lease(slot).unwrap();
            let in_file = !lease.take_file_ranges().is_empty();
            assert_eq!(in_file, stays, "{hash:?}, in memory: {in_memory}");
            assert!(in_file || lease[..] == expected, "{hash:?}, in memory: {in_memory}");
        }
    }
}

#[test]
fn a_file_with_holes_is_read_without_filling_them() {
    use std::os::unix::fs::FileExt;
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = scratch.path().join("sparse");
    let file = fs::File::create(&path).unwrap();
    file.write_all_at(b"end", (4 << 20) - 3).unwrap();
    let before = file.metadata().unwrap().blocks();
    let options = SourceOptions { in_place: true, ..SourceOptions::default() };
    let source = PosixSource::new(vec![Root::new(path.to_str().unwrap())], options);
    let dataset = Dataset::scan(scratch, source);
    let pool = Pool::new(1, 4 << 20).unwrap();
    let hash = read_object(&*dataset.source, &pool, &dataset.files[0].1, 0, 4 << 20, true).unwrap();
    assert_eq!(hash.0, *blake3::hash(&fs::read(&path).unwrap()).as_bytes());
    assert_eq!(file.metadata().unwrap().blocks(), before, "reading has made pages of the holes");
}

#[test]
fn bytes_are_hashed_on_their_way_only_where_they_are_in_memory() {
    use haul_model::{Hash, HashKind};
    use std::os::unix::fs::FileExt;
    for (hash, in_memory, in_place) in [
        (HashKind::Blake3, true, false),
        (HashKind::Xxh3, true, true),
        (HashKind::Blake3, false, false),
        (HashKind::Xxh3, false, true),
    ] {
        let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = scratch.path().join("data");
        let file = fs::File::create(&path).unwrap();
        // A hole is not in memory.
        file.write_all_at(&[1; 4096], if in_memory { 0 } else { 4096 }).unwrap();
        file.write_all_at(&[1; 8192], 4096).unwrap();
        let options = SourceOptions { in_place, hash, ..SourceOptions::default() };
        let source = PosixSource::new(vec![Root::new(path.to_str().unwrap())], options);
        let dataset = Dataset::scan(scratch, source);
        let pool = Pool::new(1, 8192).unwrap();
        let read = |on_the_way, again| {
            let (block, entry, slot) = (BlockId(1), Arc::clone(&dataset.files[0].1), SlotId(0));
            let (offset, length, single, gently) = (0, 8192, false, false);
            let op = SourceOp::ReadObject {
                block,
                entry,
                offset,
                length,
                slot,
                single,
                again,
                on_the_way,
                gently,
            };
            match dataset.source.run(op, &pool) {
                Some(SourceDone::Object { result, .. }) => result.unwrap(),
                other => panic!("{other:?}"),
            }
        };
        let ranges = || pool.lease(SlotId(0)).unwrap().take_file_ranges();
        let here: Option<Hash> = read(false, false);
        assert!(here.is_some() && ranges().iter().all(|range| range.onlooker.is_none()));
        assert_eq!(read(true, true), here, "the second time it is in the slot");
        assert!(ranges().is_empty());
        let first = read(true, false);
        assert_eq!(first, here.filter(|_| !in_memory), "{hash:?}");
        let ranges = ranges();
        assert_eq!(ranges.len(), usize::from(in_memory || in_place), "streams do not wait for storage");
        for range in ranges.into_iter().filter(|_| in_memory) {
            let mut onlooker = range.onlooker.expect("it is hashed on its way");
            onlooker.see(&[1; 8192]);
            assert_eq!(Some(onlooker.hash()), here);
        }
    }
}

#[test]
fn what_was_left_of_the_last_object_of_a_slot_is_gone_when_the_next_one_is_in_it() {
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = scratch.path().join("data");
    fs::write(&path, vec![1; 4096]).unwrap();
    let options = SourceOptions { in_place: true, in_place_member_bytes_min: 1, ..SourceOptions::default() };
    let source = PosixSource::new(vec![Root::new(path.to_str().unwrap())], options);
    let dataset = Dataset::scan(scratch, source);
    let entry = &dataset.files[0].1;
    let pool = Pool::new(1, 4096).unwrap();
    let object = |again| SourceOp::ReadObject {
        block: BlockId(1),
        entry: Arc::clone(entry),
        offset: 0,
        length: 4096,
        slot: SlotId(0),
        single: true,
        again,
        on_the_way: false,
        gently: false,
    };
    let members = |again| SourceOp::ReadMembers {
        block: BlockId(1),
        slot: SlotId(0),
        members: vec![Arc::clone(entry)],
        again,
        on_the_way: false,
        progress: Progress::default(),
    };
    // The first one is never sent: its connection was lost.
    for second in [object(true), members(true)] {
        assert!(dataset.source.run(object(false), &pool).is_some());
        assert_eq!(pool.file_ranges_held(), 1);
        assert!(dataset.source.run(second, &pool).is_some());
        assert!(pool.lease(SlotId(0)).unwrap().take_file_ranges().is_empty());
    }
}
