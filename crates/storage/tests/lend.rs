//! Both ends in one process: what the source lends, the sink takes from its files.

mod sink_support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use haul_buffers::Pool;
use haul_model::op::{MemberWrite, Prepared, Progress, SourceDone, SourceOp};
use haul_model::{BlockId, Code, Entry, Failure, Hash, Item, SlotId, Token};
use haul_storage::SourceStorage;
use haul_storage::conformance_sink::{Driver, OBJECT};
use haul_storage::conformance_source::{confirm, read_members, read_object, scan_all};
use haul_storage::sink::{Fault, Faults, SinkSettings, SyncMode};
use haul_storage::source::{Lender, PosixSource, Root, SourceOptions};
use sink_support::{Scratch, names};

/// Ids of the scan; the driver's own are smaller.
const FIRST: u64 = 1000;

/// A source with one file, and a sink that borrows from it.
struct Bed {
    _source: tempfile::TempDir,
    path: PathBuf,
    source: Arc<PosixSource>,
    entry: Arc<Entry>,
    scratch: Scratch,
    driver: Driver,
    pool: Arc<Pool>,
}

impl Bed {
    fn new(bytes: &[u8]) -> Bed {
        Bed::with(bytes, Scratch::fast(SyncMode::Measured))
    }

    fn with(bytes: &[u8], scratch: Scratch) -> Bed {
        Bed::with_faults(bytes, scratch, None)
    }

    fn with_faults(bytes: &[u8], scratch: Scratch, faults: Option<Arc<Faults>>) -> Bed {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let path = directory.path().join("file");
        fs::write(&path, bytes).unwrap();
        let root = Root::new(directory.path().to_str().unwrap());
        let options = SourceOptions { lend: true, ..SourceOptions::default() };
        let source = Arc::new(PosixSource::new(vec![root], options));
        let found = scan_all(&mut source.scan(Arc::new(AtomicU64::new(FIRST))), FIRST);
        let settings =
            SinkSettings { lender: Some(Lender::new(&source)), faults, ..scratch.settings(*b"one.") };
        let (driver, _) = scratch.session_with(settings);
        let Some(Item::Entry(top)) = found.items.first() else { panic!("{:?}", found.items) };
        assert_eq!(driver.prepare(top, None, false), Prepared::Made);
        let entry = Arc::clone(&found.files[0].1);
        let pool = Pool::new(1, 4 << 20).unwrap();
        Bed { _source: directory, path, source, entry, scratch, driver, pool }
    }

    /// What the source says of the file as the only member of a bundle, and the sink to that.
    fn member(&self) -> Result<(), Failure> {
        let (length, results) = read_members(&*self.source, &self.pool, &[Arc::clone(&self.entry)]);
        let read = results[0].unwrap();
        assert_eq!((length, read.offset, read.hash), (self.entry.size() as u32, 0, Some(Hash::LENT)));
        assert!(self.pool.lease(SlotId(0)).unwrap().is_lent());
        let write = MemberWrite { entry: Arc::clone(&self.entry), offset: 0, hash: Hash::LENT };
        self.driver.run_members(vec![write], length)[0]
    }

    /// The same of its `index`-th object.
    fn object(&self, token: Token, index: u64) -> Result<(), Failure> {
        let (size, offset) = (self.entry.size(), index * u64::from(OBJECT));
        let range = (offset, u64::from(OBJECT).min(size - offset) as u32, size <= u64::from(OBJECT));
        let read = read_object(&*self.source, &self.pool, &self.entry, range.0, range.1, range.2);
        assert_eq!(read, Ok(Hash::LENT));
        assert!(self.pool.lease(SlotId(0)).unwrap().is_lent());
        self.driver.run_object(&self.entry, token, range, Hash::LENT)
    }

    fn arrived(&self) -> Vec<u8> {
        fs::read(self.scratch.path(b"top/file")).unwrap()
    }

    fn rewrite(&self, bytes: &[u8]) {
        rewrite(&self.path, &self.entry, bytes);
    }
}

/// After the kernel's clock for files has moved on: else nothing could tell the versions apart.
fn rewrite(path: &Path, entry: &Entry, bytes: &[u8]) {
    loop {
        fs::write(path, bytes).unwrap();
        let now = fs::metadata(path).unwrap();
        if (now.ctime(), now.ctime_nsec() as u32)
            != (entry.identity.ctime.seconds, entry.identity.ctime.nanos)
        {
            return;
        }
    }
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251 + at / 4096) as u8).collect()
}

fn root_of(bytes: &[u8]) -> Hash {
    Hash(*blake3::hash(bytes).as_bytes())
}

const ASK_AGAIN: Result<(), Failure> = Err(Failure::new(Code::HashMismatch));

#[test]
fn lent_objects_arrive_and_their_hashes_make_the_root_of_what_arrived() {
    for size in [1, OBJECT as usize, OBJECT as usize + 1, 5 * OBJECT as usize + 17] {
        let all = bytes(size);
        let bed = Bed::new(&all);
        let token = bed.driver.start(&bed.entry);
        let objects = size.div_ceil(OBJECT as usize) as u64;
        for index in (0..objects).rev() {
            assert_eq!(bed.object(token, index), Ok(()));
        }
        assert_eq!(confirm(&*bed.source, &bed.pool, &bed.entry), Ok(()));
        // Of a file of one object the source says what it has said of that.
        let told = (objects == 1).then_some(Hash::LENT);
        assert_eq!(bed.driver.seal(&bed.entry, token, told), Ok(root_of(&all)));
        bed.driver.settle(&[bed.entry.id]);
        assert!(bed.arrived() == all, "{size}");
    }
}

#[test]
fn lent_members_arrive_also_target_by_target() {
    for size in [0, 1, 4096, 200_000, 3 << 20] {
        let all = bytes(size);
        for scratch in [Scratch::fast(SyncMode::Measured), Scratch::fast(SyncMode::EachFile).striped()] {
            let bed = Bed::with(&all, scratch);
            assert_eq!(bed.member(), Ok(()));
            bed.driver.settle(&[bed.entry.id]);
            assert!(bed.arrived() == all, "{size}");
        }
    }
}

#[test]
fn what_is_asked_for_again_comes_through_the_slot() {
    let all = bytes(1000);
    let bed = Bed::new(&all);
    let (block, slot, again) = (BlockId(1), SlotId(0), true);
    for lent_before in [true, false] {
        if lent_before {
            bed.pool.lease(slot).unwrap().set_lent(true);
        }
        let entry = Arc::clone(&bed.entry);
        let (single, on_the_way, gently) = (true, false, false);
        let (offset, length) = (0, 1000);
        let op =
            SourceOp::ReadObject { block, entry, offset, length, slot, single, again, on_the_way, gently };
        match bed.source.run(op, &bed.pool) {
            Some(SourceDone::Object { result, .. }) => assert_eq!(result, Ok(Some(root_of(&all)))),
            other => panic!("{other:?}"),
        }
        let mut lease = bed.pool.lease(slot).unwrap();
        assert!(!lease.is_lent() && lease[..1000] == all);
        lease.set_lent(lent_before);
        drop(lease);
        let (members, on_the_way) = (vec![Arc::clone(&bed.entry)], false);
        let op =
            SourceOp::ReadMembers { block, slot, members, again, on_the_way, progress: Progress::default() };
        match bed.source.run(op, &bed.pool) {
            Some(SourceDone::Members { results, .. }) => {
                assert_eq!(results[0].unwrap().hash, Some(root_of(&all)))
            }
            other => panic!("{other:?}"),
        }
        assert!(!bed.pool.lease(slot).unwrap().is_lent());
    }
}

#[test]
fn a_source_that_changed_is_asked_again_and_nothing_is_left_of_the_attempt() {
    let whole = 3 * OBJECT as usize;
    for other in [&bytes(whole + 1)[..], &bytes(10), &vec![9; whole], b""] {
        let bed = Bed::new(&bytes(whole));
        bed.rewrite(other);
        assert_eq!(bed.member(), ASK_AGAIN, "{}", other.len());
        assert!(names(&bed.scratch.path(b"top")).is_empty(), "{}", other.len());
    }
    let bed = Bed::new(&bytes(whole));
    fs::remove_file(&bed.path).unwrap();
    assert_eq!(bed.member(), ASK_AGAIN);
}

/// Between the look at it and the copy: nothing but the look after the last byte can tell.
#[test]
fn a_small_file_that_changes_while_it_is_copied_is_asked_for_again() {
    for size in [1000, 100_000, 3 * OBJECT as usize] {
        let faults = Arc::new(Faults::default());
        let bed =
            Bed::with_faults(&bytes(size), Scratch::fast(SyncMode::Measured), Some(Arc::clone(&faults)));
        let (path, entry) = (bed.path.clone(), Arc::clone(&bed.entry));
        faults.meanwhile(Fault::Write, move || rewrite(&path, &entry, &vec![9; size]));
        assert_eq!(bed.member(), ASK_AGAIN, "{size}");
        assert!(names(&bed.scratch.path(b"top")).is_empty(), "{size}");
    }
}

#[test]
fn a_file_in_objects_that_changes_meanwhile_is_found_out_before_it_is_closed() {
    let whole = 3 * OBJECT as usize;
    let bed = Bed::new(&bytes(whole));
    let token = bed.driver.start(&bed.entry);
    assert_eq!(bed.object(token, 0), Ok(()));
    bed.rewrite(&bytes(whole / 2));
    assert_eq!(bed.object(token, 2), ASK_AGAIN, "it is gone");
    assert_eq!(bed.object(token, 0), Ok(()), "nobody can tell yet");
    assert_eq!(confirm(&*bed.source, &bed.pool, &bed.entry), Err(Code::SourceChanged.into()));
}

#[test]
fn a_file_that_was_dropped_meanwhile_is_not_opened_again() {
    let bed = Bed::new(&bytes(1000));
    let token = bed.driver.start(&bed.entry);
    assert_eq!(bed.object(token, 0), Ok(()));
    bed.source.run(SourceOp::Release { id: bed.entry.id }, &bed.pool);
    assert_eq!(bed.driver.run_object(&bed.entry, token, (0, 1000, true), Hash::LENT), ASK_AGAIN);
}

#[test]
fn nothing_is_taken_for_lent_where_nobody_lends() {
    let scratch = Scratch::fast(SyncMode::Measured);
    let (driver, top) = scratch.session(*b"one.");
    let (member, object) = (driver.file(top, b"member", 3), driver.file(top, b"object", 3));
    let write = MemberWrite { entry: Arc::new(member), offset: 0, hash: Hash::LENT };
    assert_eq!(driver.run_members(vec![write], 3), [ASK_AGAIN]);
    let token = driver.start(&object);
    assert_eq!(driver.run_object(&object, token, (0, 3, true), Hash::LENT), ASK_AGAIN);
    driver.write_objects(&object, token, b"abc");
    assert_eq!(driver.seal(&object, token, Some(Hash::LENT)), Err(Code::HashMismatch.into()));
}
