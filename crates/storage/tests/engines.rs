//! Every engine does what the usual one does, whatever the machine lets it do.

mod sink_support;

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use haul_buffers::Pool;
use haul_model::op::{SourceDone, SourceOp};
use haul_model::{BlockId, Code, Entry, EntryId, Failure, Hash, SlotId};
use haul_storage::SourceStorage;
use haul_storage::conformance_sink::{self, Driver};
use haul_storage::conformance_source::scan_all;
use haul_storage::engine::{Direction, Engine, Engines, Io, Note, Trouble, Way, Wish};
use haul_storage::sink::{SourceName, SyncMode};
use haul_storage::source::{PosixSource, Root, SourceOptions};
use haul_testkit::{COUNTED, DISK, cached, cached_eq, lacks, lacks_here, undisturbed};
use sink_support::Scratch;

const OBJECT: usize = 4 << 20;

/// What a user can ask for.
fn wishes() -> Vec<Wish> {
    let engines = [None, Some(Engine::Posix), Some(Engine::Uring)];
    let ios = [None, Some(Io::Buffered), Some(Io::Direct)];
    engines.into_iter().flat_map(|engine| ios.map(|io| Wish { engine, io })).collect()
}

/// What a machine can be like.
fn troubles() -> [Trouble; 7] {
    [
        Trouble::default(),
        Trouble { no_ring: true, ..Trouble::default() },
        Trouble { no_direct: true, ..Trouble::default() },
        Trouble { no_direct_requests: true, ..Trouble::default() },
        Trouble { no_direct_memory: true, ..Trouble::default() },
        Trouble { no_registration: true, ..Trouble::default() },
        Trouble { cut_short: true, ..Trouble::default() },
    ]
}

const URING_DIRECT: Wish = Wish { engine: Some(Engine::Uring), io: Some(Io::Direct) };

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 4093) as u8).collect()
}

/// A file on a disk (directories for temporary files are often in memory), and a source that reads it.
struct Bed {
    scratch: tempfile::TempDir,
    entry: Arc<Entry>,
    source: PosixSource,
    engines: Arc<Engines>,
    pool: Arc<Pool>,
}

impl Bed {
    fn new(contents: &[u8], wish: Wish, trouble: Trouble, in_place: bool) -> Bed {
        let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Bed::at(scratch, contents, wish, trouble, in_place)
    }

    fn at(scratch: tempfile::TempDir, contents: &[u8], wish: Wish, trouble: Trouble, in_place: bool) -> Bed {
        fs::write(scratch.path().join("file"), contents).unwrap();
        let engines = Arc::new(Engines::with_trouble(Direction::Read, wish, trouble));
        let root = Root::new(scratch.path().join("file").to_str().unwrap());
        let options = SourceOptions { in_place, ..SourceOptions::default() };
        let source = PosixSource::with_engines(vec![root], options, Arc::clone(&engines));
        let found = scan_all(&mut source.scan(Arc::new(AtomicU64::new(1))), 1);
        let entry = Arc::clone(&found.files[0].1);
        Bed { scratch, entry, source, engines, pool: Pool::new(2, OBJECT as u32).unwrap() }
    }

    fn path(&self) -> std::path::PathBuf {
        self.scratch.path().join("file")
    }

    fn objects(&self) -> usize {
        (self.entry.size() as usize).div_ceil(OBJECT)
    }

    fn read(&self, number: usize, again: bool) -> Result<Hash, Failure> {
        let offset = (number * OBJECT) as u64;
        let length = (OBJECT as u64).min(self.entry.size() - offset) as u32;
        let (block, entry, slot) = (BlockId(1), Arc::clone(&self.entry), SlotId(number as u32 % 2));
        let (single, on_the_way, gently) = (self.objects() == 1, false, false);
        let op =
            SourceOp::ReadObject { block, entry, offset, length, slot, single, again, on_the_way, gently };
        match self.source.run(op, &self.pool) {
            Some(SourceDone::Object { result, .. }) => result.map(|hash| hash.expect("it is hashed here")),
            other => panic!("{other:?}"),
        }
    }

    /// Reads all of it, and looks at each slot.
    fn check(&self, contents: &[u8], about: &str) {
        for (number, object) in contents.chunks(OBJECT).enumerate() {
            let hash = self.read(number, false).unwrap_or_else(|failure| panic!("{about}: {failure:?}"));
            let mut hasher = blake3::Hasher::new();
            let expected = match self.objects() {
                1 => *hasher.update(object).finalize().as_bytes(),
                _ => {
                    use blake3::hazmat::HasherExt;
                    hasher.set_input_offset((number * OBJECT) as u64);
                    hasher.update(object).finalize_non_root()
                }
            };
            assert_eq!(hash.0, expected, "{about}: object {number}");
            let lease = self.pool.lease(SlotId(number as u32 % 2)).unwrap();
            assert!(lease[..object.len()] == *object, "{about}: object {number}");
        }
    }
}

#[test]
fn every_engine_reads_every_length_on_every_machine() {
    for length in [1, 4095, 4096, 4097, 65_536, OBJECT - 1, OBJECT, OBJECT + 1, 2 * OBJECT + 70_001] {
        let contents = bytes(length);
        for wish in wishes() {
            for trouble in troubles() {
                let bed = Bed::new(&contents, wish, trouble, false);
                bed.check(&contents, &format!("{length} bytes, {wish:?}, {trouble:?}"));
            }
        }
    }
}

#[test]
fn what_is_cut_short_under_the_reader_is_a_change_with_every_engine() {
    for wish in wishes() {
        for left in [0, 1, 4096, OBJECT - 4096, OBJECT - 1] {
            let bed = Bed::new(&bytes(OBJECT), wish, Trouble::default(), false);
            // It is open by then.
            bed.read(0, false).unwrap();
            File::options().write(true).open(bed.path()).unwrap().set_len(left as u64).unwrap();
            assert_eq!(bed.read(0, false), Err(Code::SourceChanged.into()), "{wish:?}, {left} bytes");
        }
    }
}

#[test]
fn holes_are_read_as_zeros_with_every_engine() {
    let mut contents = vec![0; 2 * OBJECT];
    contents[OBJECT / 2..][..5000].copy_from_slice(&bytes(5000));
    for wish in wishes() {
        let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = scratch.path().join("file");
        let bed = {
            let bed = Bed::at(scratch, &[], wish, Trouble::default(), true);
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(contents.len() as u64).unwrap();
            file.write_all_at(&bytes(5000), (OBJECT / 2) as u64).unwrap();
            let found = scan_all(&mut bed.source.scan(Arc::new(AtomicU64::new(1))), 1);
            Bed { entry: Arc::clone(&found.files[0].1), ..bed }
        };
        bed.check_hashes(&contents, &format!("{wish:?}"));
    }
}

impl Bed {
    /// Of bytes that may stay in their file.
    fn check_hashes(&self, contents: &[u8], about: &str) {
        use blake3::hazmat::HasherExt;
        for (number, object) in contents.chunks(OBJECT).enumerate() {
            let mut hasher = blake3::Hasher::new();
            hasher.set_input_offset((number * OBJECT) as u64);
            let expected = hasher.update(object).finalize_non_root();
            assert_eq!(self.read(number, false).map(|hash| hash.0), Ok(expected), "{about}: object {number}");
        }
    }
}

#[test]
fn what_a_machine_cannot_do_is_told_once_and_done_otherwise() {
    let contents = bytes(2 * OBJECT);
    let notes = |wish, trouble| {
        let bed = Bed::new(&contents, wish, trouble, false);
        bed.check(&contents, &format!("{trouble:?}"));
        let (told, notes) = bed.engines.told();
        (told[0].chosen, notes)
    };
    let (chosen, told) = notes(URING_DIRECT, Trouble { no_ring: true, ..Trouble::default() });
    assert_eq!(chosen, Some(Way::POSIX_DIRECT), "the other wish is met");
    assert!(matches!(told[..], [Note::NoRing(_)]), "{told:?}");
    let wish = Wish { engine: Some(Engine::Posix), ..URING_DIRECT };
    let (chosen, told) = notes(wish, Trouble { no_direct: true, ..Trouble::default() });
    assert_eq!(chosen, Some(Way::USUAL));
    assert!(matches!(told[..], [Note::NoDirect(..)]), "{told:?}");
    let (_, told) = notes(wish, Trouble::default());
    assert_eq!(told, []);
    let (chosen, told) = notes(URING_DIRECT, Trouble { no_registration: true, ..Trouble::default() });
    match haul_storage::engine::rings_are_allowed() {
        Ok(()) => {
            assert_eq!(chosen, Some(Way::URING_DIRECT));
            assert!(matches!(told[..], [Note::NotRegistered(_)]), "{told:?}");
        }
        Err(_) => assert!(matches!(told[..], [Note::NoRing(_)]), "{told:?}"),
    }
}

/// Pages of the file that are in the cache; `None` where the kernel cannot tell (`cachestat` is there from Linux 6.5 on).
fn cached(path: &Path) -> Option<u64> {
    let file = File::open(path).unwrap();
    let (range, mut pages) = ([0u64; 2], [0u64; 5]);
    // SAFETY: `cachestat(2)` reads two numbers, offset and length, and writes five.
    let result = unsafe { libc::syscall(451, file.as_raw_fd(), range.as_ptr(), pages.as_mut_ptr(), 0) };
    (result == 0).then_some(pages[0])
}

fn drop_from_cache(path: &Path) {
    use rustix::fs::{Advice, fadvise};
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
}

/// Each way had its turns, and one was chosen.
fn was_measured(engines: &Engines) {
    let (told, _) = engines.told();
    assert!(told[0].chosen.is_some(), "{told:?}");
    let expected = if haul_storage::engine::rings_are_allowed().is_ok() { 3 } else { 2 };
    assert_eq!(told[0].rates.len(), expected, "{told:?}");
    assert!(told[0].rates.iter().all(|(_, rate)| *rate > 0.0), "{told:?}");
}

#[test]
fn the_best_way_to_read_is_measured_on_a_disk_and_nothing_stays_in_the_cache() {
    undisturbed(|| {
        let contents = bytes(30 * OBJECT);
        let bed = Bed::new(&contents, Wish::default(), Trouble::default(), false);
        if haul_storage::engine::is_measured(&bed.path()) != Some(true) {
            return lacks_here(DISK);
        }
        drop_from_cache(&bed.path());
        if cached(&bed.path()).is_none() {
            return lacks(COUNTED);
        }
        cached_eq!(cached(&bed.path()), Some(0));
        let (told, _) = {
            bed.read(0, false).unwrap();
            bed.engines.told()
        };
        assert_eq!((told.len(), told[0].chosen), (1, None), "it is being measured");
        bed.check_hashes(&contents, "measured");
        was_measured(&bed.engines);
        cached!(cached(&bed.path()) != Some(0), "some of it went through the cache");
        assert!(bed.source.run(SourceOp::Release { id: bed.entry.id }, &bed.pool).is_none());
        cached_eq!(cached(&bed.path()), Some(0), "pages stay");
    });
}

#[test]
fn the_best_way_to_write_is_measured_on_a_disk_and_nothing_stays_in_the_cache() {
    undisturbed(|| {
        let contents = bytes(30 * OBJECT);
        let scratch = Scratch::on_disk(SyncMode::Measured).written_by(Wish::default(), Trouble::default());
        if haul_storage::engine::is_measured(&scratch.destination) != Some(true) {
            return lacks_here(DISK);
        }
        let sink = scratch.posix([1; 4], &[SourceName::Named(b"top".to_vec())], None);
        let engines = Arc::clone(sink.engines());
        let driver = Driver::new(Box::new(sink));
        let top = driver.directory(EntryId::root(0), b"");
        let entry = driver.file(top, b"file", contents.len());
        let token = driver.start(&entry);
        driver.write_objects(&entry, token, &contents);
        was_measured(&engines);
        assert!(driver.seal(&entry, token, None).is_ok());
        driver.settle(&[entry.id]);
        let path = scratch.path(b"top/file");
        if cached(&path).is_none() {
            return lacks(COUNTED);
        }
        cached_eq!(cached(&path), Some(0), "pages stay");
        assert!(fs::read(&path).unwrap() == contents);
    });
}

#[test]
fn what_is_in_the_page_cache_is_read_from_there_and_not_measured() {
    undisturbed(|| {
        let contents = bytes(8 * OBJECT);
        let bed = Bed::new(&contents, Wish::default(), Trouble::default(), true);
        if haul_storage::engine::is_measured(&bed.path()) != Some(true) {
            return lacks_here(DISK);
        }
        bed.check_hashes(&contents, "cached");
        let (told, _) = bed.engines.told();
        cached_eq!(told[0].rates, [], "nothing was measured");
        cached!(!bed.pool.lease(SlotId(0)).unwrap().take_file_ranges().is_empty(), "it leaves from its file");
        // Whoever asks for it gets it all the same, and loses nothing of what was in the cache.
        let bed = Bed::new(&contents, URING_DIRECT, Trouble::default(), true);
        File::open(bed.path()).unwrap().sync_all().unwrap();
        let before = cached(&bed.path());
        bed.check(&contents, "asked for");
        cached_eq!(cached(&bed.path()), before);
    });
}

#[test]
fn in_memory_there_is_nothing_to_choose() {
    let Ok(scratch) = tempfile::tempdir_in("/dev/shm") else { return lacks("/dev/shm") };
    let contents = bytes(3 * OBJECT);
    let bed = Bed::at(scratch, &contents, Wish::default(), Trouble::default(), false);
    bed.check(&contents, "in memory");
    assert_eq!(bed.engines.told(), (vec![], vec![]));
}

#[test]
fn what_is_asked_for_again_and_what_goes_gently_goes_the_usual_way() {
    let contents = bytes(2 * OBJECT);
    let bed = Bed::new(&contents, URING_DIRECT, Trouble { no_ring: true, ..Trouble::default() }, false);
    bed.read(0, true).unwrap();
    let (block, entry, slot) = (BlockId(1), Arc::clone(&bed.entry), SlotId(0));
    let (single, again, gently, length) = (false, false, true, OBJECT as u32);
    let (offset, on_the_way) = (0, false);
    let op = SourceOp::ReadObject { block, entry, offset, length, slot, single, again, on_the_way, gently };
    assert!(matches!(bed.source.run(op, &bed.pool), Some(SourceDone::Object { result: Ok(_), .. })));
    assert_eq!(bed.engines.told().1, [], "nobody asked for a ring");
    bed.read(0, false).unwrap();
    assert!(matches!(bed.engines.told().1[..], [Note::NoRing(_)]));
}

#[test]
fn the_sink_conforms_with_every_engine_on_every_machine() {
    for wish in wishes() {
        conformance_sink::check_all(|| {
            Box::new(Scratch::new(SyncMode::Measured).written_by(wish, Trouble::default()))
        });
    }
    for trouble in troubles() {
        conformance_sink::check_all(|| {
            Box::new(Scratch::new(SyncMode::EachFile).written_by(URING_DIRECT, trouble))
        });
    }
    let direct = Wish { engine: Some(Engine::Posix), ..URING_DIRECT };
    let cut_short = Trouble { cut_short: true, ..Trouble::default() };
    conformance_sink::check_all(|| Box::new(Scratch::new(SyncMode::Never).written_by(direct, cut_short)));
}

#[test]
fn the_sink_conforms_in_memory_with_every_engine() {
    for wish in wishes() {
        conformance_sink::check_all(|| {
            Box::new(Scratch::fast(SyncMode::Measured).written_by(wish, Trouble::default()))
        });
    }
}

#[test]
fn a_read_that_fails_is_named_with_every_engine() {
    const FAULT: &str = "HAUL_TEST_SOURCE_READ_EIO";
    // Faults are read once, so this one has a process of its own.
    if std::env::var_os(FAULT).is_none() {
        let mut myself = std::process::Command::new(std::env::current_exe().unwrap());
        myself.args(["--exact", "a_read_that_fails_is_named_with_every_engine", "--nocapture"]);
        let ended = myself.env(FAULT, "1+").output().unwrap();
        let text = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    for wish in wishes() {
        let bed = Bed::new(&bytes(OBJECT), wish, Trouble::default(), false);
        assert_eq!(bed.read(0, false), Err(Failure::os(Code::SourceRead, libc::EIO)), "{wish:?}");
    }
}

/// Calls `work` in a thread for which this directory is a file system in memory of so many bytes. False where nobody may mount one.
fn with_little_room(directory: &Path, room: &str, work: impl FnOnce() + Send) -> bool {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            // SAFETY: nothing is shared with other threads but memory and descriptors, which it leaves alone.
            if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
                return false;
            }
            let apart = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", apart).unwrap();
            let options = std::ffi::CString::new(format!("size={room}")).unwrap();
            mount("none", directory, "tmpfs", MountFlags::empty(), Some(options.as_c_str())).unwrap();
            work();
            true
        });
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn a_full_disk_is_named_with_every_engine_and_what_fits_is_there() {
    const UNIT: usize = conformance_sink::OBJECT as usize;
    for wish in wishes() {
        let scratch = Scratch::new(SyncMode::Measured).written_by(wish, Trouble::default());
        let could = with_little_room(&scratch.destination, "1036k", || {
            let (driver, top) = scratch.session([1; 4]);
            let contents = bytes(32 * UNIT);
            let entry = driver.file(top, b"file", contents.len());
            let token = driver.start(&entry);
            let wrote = |index| driver.write_object(&entry, token, &contents, index);
            let failed = (0..32).map(wrote).position(|result| match result {
                Ok(()) => false,
                Err(failure) => {
                    assert_eq!(failure.code, Code::SinkNoSpace, "{wish:?}: {failure:?}");
                    true
                }
            });
            assert!(failed.is_some_and(|failed| (8..=16).contains(&failed)), "{wish:?}: {failed:?}");
        });
        if !could {
            return lacks("root, to mount a file system");
        }
    }
}

#[test]
fn what_grows_under_the_reader_is_read_as_it_was() {
    for length in [70_001, OBJECT - 1] {
        let contents = bytes(length);
        for wish in wishes() {
            let bed = Bed::new(&contents, wish, Trouble::default(), false);
            // It is open by then; the sink has what was announced, and before it is closed the change is noticed.
            bed.read(0, false).unwrap();
            File::options().append(true).open(bed.path()).unwrap().write_all(&bytes(100_000)).unwrap();
            bed.check(&contents, &format!("{length} bytes, {wish:?}"));
        }
    }
}

#[test]
fn an_unaligned_end_is_no_reason_to_give_up_direct_io() {
    let contents = bytes(2 * OBJECT + 70_001);
    for engine in [Engine::Posix, Engine::Uring] {
        let wish = Wish { engine: Some(engine), ..URING_DIRECT };
        let bed = Bed::new(&contents, wish, Trouble::default(), false);
        bed.check(&contents, "read");
        let read = bed.engines.told();
        let scratch = Scratch::on_disk(SyncMode::Measured).written_by(wish, Trouble::default());
        let sink = scratch.posix([1; 4], &[SourceName::Named(b"top".to_vec())], None);
        let engines = Arc::clone(sink.engines());
        let driver = Driver::new(Box::new(sink));
        let top = driver.directory(EntryId::root(0), b"");
        driver.put_objects(top, b"file", &contents);
        let written = engines.told();
        assert!(fs::read(scratch.path(b"top/file")).unwrap() == contents);
        for (told, notes) in [read, written] {
            assert!(!notes.iter().any(|note| matches!(note, Note::NoDirect(..))), "{told:?} {notes:?}");
        }
    }
}

#[test]
fn no_engine_changes_access_times() {
    let contents = bytes(2 * OBJECT + 70_001);
    for wish in wishes() {
        let bed = Bed::new(&contents, wish, Trouble::default(), false);
        let ancient =
            fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000));
        File::open(bed.path()).unwrap().set_times(ancient).unwrap();
        let found = scan_all(&mut bed.source.scan(Arc::new(AtomicU64::new(1))), 1);
        let bed = Bed { entry: Arc::clone(&found.files[0].1), ..bed };
        bed.check(&contents, "read");
        assert_eq!(fs::metadata(bed.path()).unwrap().atime(), 1000, "{wish:?}");
    }
}

#[test]
fn nothing_that_was_written_stays_in_the_cache_however_it_is_synced_and_named() {
    undisturbed(|| {
        for (mode, striped) in [
            (SyncMode::EachFile, false),
            (SyncMode::EachFile, true),
            (SyncMode::Measured, false),
            (SyncMode::Measured, true),
        ] {
            let scratch = Scratch::on_disk(mode);
            let scratch = if striped { scratch.striped() } else { scratch };
            if haul_storage::engine::is_measured(&scratch.destination) != Some(true) {
                return lacks_here(DISK);
            }
            let (driver, top) = scratch.session([1; 4]);
            driver.put_member(top, b"member", &bytes(100_000));
            driver.put_objects(top, b"objects", &bytes(5 * conformance_sink::OBJECT as usize + 5));
            for name in ["top/member", "top/objects"] {
                let path = scratch.path(name.as_bytes());
                let Some(pages) = cached(&path) else { return lacks(COUNTED) };
                cached_eq!(pages, 0, "{name}, {mode:?}, striped: {striped}");
            }
        }
    });
}

#[test]
fn what_was_in_the_cache_in_part_stays_there() {
    undisturbed(|| {
        let contents = bytes(2 * OBJECT);
        let bed = Bed::new(&contents, Wish::default(), Trouble::default(), false);
        if haul_storage::engine::is_measured(&bed.path()) != Some(true) {
            return lacks_here(DISK);
        }
        drop_from_cache(&bed.path());
        let file = File::open(bed.path()).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        file.read_exact_at(&mut vec![0; OBJECT / 4], 0).unwrap();
        let Some(before) = cached(&bed.path()) else { return lacks(COUNTED) };
        bed.check(&contents, "in part");
        assert!(bed.source.run(SourceOp::Release { id: bed.entry.id }, &bed.pool).is_none());
        let after = cached(&bed.path()).unwrap();
        cached!(before > 0 && after >= before, "{before} {after}");
    });
}
