//! What every source must do, as one suite that each implementation passes.
//!
//! Called from tests with a [`Fixture`]; it panics with what was expected. A new implementation (or a decorator around
//! one) is finished when [`check_all`] passes for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use blake3::hazmat::{Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};
use haul_buffers::{FileRange, Pool};
use haul_model::limits::HASHES_FOLLOWING_MAX;
use haul_model::op::{MemberRead, Progress, SourceDone, SourceOp};
use haul_model::{BlockId, Code, Entry, EntryId, Failure, Hash, Item, Kind, SlotId};

use crate::SourceStorage;
use crate::scan::{Scan, Scanned, push_name};

/// Bytes of an object in the suite.
pub const OBJECT: u64 = 64 << 10;

/// Sizes around every edge of chunks and objects.
pub const SIZES: [u64; 12] = [
    0,
    1,
    1023,
    1024,
    1025,
    4096,
    OBJECT - 1,
    OBJECT,
    OBJECT + 1,
    2 * OBJECT,
    3 * OBJECT + 1,
    5 * OBJECT - 7,
];

/// An implementation with a dataset of one SOURCE: a directory, in it directories, in these files, with a file of
/// each of [`SIZES`] among them.
pub trait Fixture: Send + Sync {
    /// The storage, the same each time.
    fn storage(&self) -> &dyn SourceStorage;

    /// A new scan of the dataset.
    fn scan(&self, ids: Arc<AtomicU64>) -> Box<dyn Scan>;

    /// What the file at this path below the SOURCE holds.
    fn content(&self, path: &[u8]) -> Vec<u8>;

    /// Changes the file at this path. False if this source never changes.
    fn change(&self, path: &[u8], change: Change) -> bool;
}

/// What can happen to a file while it is read. Each must be noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A byte more.
    Grow,
    /// A byte less.
    Shrink,
    /// Other bytes, as many.
    Rewrite,
    /// Another file under the name, with the same bytes and modification time.
    Replace,
    /// The name is gone.
    Vanish,
}

impl Change {
    /// All of them.
    pub const ALL: [Change; 5] =
        [Change::Grow, Change::Shrink, Change::Rewrite, Change::Replace, Change::Vanish];

    fn code(self) -> Code {
        if self == Change::Vanish { Code::SourceVanished } else { Code::SourceChanged }
    }
}

/// A dataset after a scan.
pub struct Found {
    /// In the order of the scan.
    pub items: Vec<Item>,
    /// Regular files by their path below the SOURCE, in the order of the scan.
    pub files: Vec<(Vec<u8>, Arc<Entry>)>,
}

/// Scans everything and checks what holds for every scan.
pub fn scan_all(scan: &mut dyn Scan, first_id: u64) -> Found {
    let mut found = Vec::new();
    loop {
        let before = found.len();
        if !scan.next(&mut found) {
            assert_eq!(found.len(), before, "the call that says that nothing is left appends nothing");
            break;
        }
        assert!(found.len() > before, "a call without finds ends the scan");
        assert!(found.len() <= before + 1100, "batches are bounded");
    }
    assert!(!scan.next(&mut found), "once ended, always ended");
    let items: Vec<Item> = found
        .into_iter()
        .map(|scanned| match scanned {
            Scanned::Item(item) => item,
            Scanned::Error { path, failure } => panic!("{}: {failure}", path.escape_ascii()),
        })
        .collect();
    check_order(&items, first_id);
    let files = files_of(&items);
    Found { items, files }
}

/// Strictly depth first, parents before children, each directory ended once, ids in order.
pub fn check_order(items: &[Item], first_id: u64) {
    let mut next_id = first_id;
    let mut open: Vec<EntryId> = Vec::new();
    for item in items {
        match item {
            Item::Entry(entry) | Item::Laid(entry, ..) => {
                assert_eq!(entry.id, EntryId(next_id), "ids are consecutive");
                next_id += 1;
                match open.last() {
                    Some(directory) => assert_eq!(entry.parent, *directory, "depth first"),
                    None => assert!(entry.parent.root_index().is_some(), "top entries hang below a root"),
                }
                assert_eq!(entry.name.is_empty(), open.is_empty(), "exactly top entries have no name");
                assert_eq!(entry.link_target.is_empty(), entry.kind != Kind::Symlink);
                if entry.kind == Kind::Directory {
                    open.push(entry.id);
                }
            }
            Item::End(id) => assert_eq!(open.pop(), Some(*id), "the deepest directory ends first"),
        }
    }
    assert!(open.is_empty(), "every directory ends");
}

fn files_of(items: &[Item]) -> Vec<(Vec<u8>, Arc<Entry>)> {
    let mut paths: HashMap<EntryId, Vec<u8>> = HashMap::new();
    let mut files = Vec::new();
    for item in items {
        let (Item::Entry(entry) | Item::Laid(entry, ..)) = item else { continue };
        let mut path = paths.get(&entry.parent).cloned().unwrap_or_default();
        push_name(&mut path, &entry.name);
        match entry.kind {
            Kind::Directory => drop(paths.insert(entry.id, path)),
            Kind::File => files.push((path, Arc::new(entry.clone()))),
            Kind::Symlink | Kind::Other => {}
        }
    }
    files
}

/// The root of a file from the hashes of its objects, in order. `None` if they do not fit its size.
pub fn combine(objects: &[Hash], object_bytes: u64, size: u64) -> Option<Hash> {
    fn subtree(objects: &[Hash], object_bytes: u64, length: u64) -> Option<[u8; 32]> {
        if length <= object_bytes {
            return (objects.len() == 1).then(|| objects[0].0);
        }
        let (left, right) = halves(objects, object_bytes, length)?;
        Some(merge_subtrees_non_root(&left, &right, Mode::Hash))
    }
    fn halves(objects: &[Hash], object_bytes: u64, length: u64) -> Option<([u8; 32], [u8; 32])> {
        let left = left_subtree_len(length);
        let (before, behind) = objects.split_at_checked((left / object_bytes) as usize)?;
        Some((subtree(before, object_bytes, left)?, subtree(behind, object_bytes, length - left)?))
    }
    if size <= object_bytes {
        return (objects.len() == 1).then(|| objects[0]);
    }
    let (left, right) = halves(objects, object_bytes, size)?;
    Some(Hash(*merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()))
}

/// `ReadMembers` into slot 0.
pub fn read_members(
    storage: &dyn SourceStorage,
    pool: &Pool,
    members: &[Arc<Entry>],
) -> (u32, Vec<Result<MemberRead, Failure>>) {
    let (length, results) = read_or_leave_members(storage, pool, members, false);
    let hashed = |read: &Result<MemberRead, Failure>| read.is_ok_and(|read| read.hash.is_none());
    assert!(!results.iter().any(hashed), "nobody else hashes them");
    (length, results)
}

/// The same; `on_the_way`: it may be left to who sends them to hash them.
pub fn read_or_leave_members(
    storage: &dyn SourceStorage,
    pool: &Pool,
    members: &[Arc<Entry>],
    on_the_way: bool,
) -> (u32, Vec<Result<MemberRead, Failure>>) {
    let (block, slot, members) = (BlockId(9), SlotId(0), members.to_vec());
    let asked = members.len();
    let progress = Progress::default();
    let begins = progress.mark();
    let told = progress.clone();
    let op = SourceOp::ReadMembers { block, slot, members, again: false, on_the_way, progress };
    match storage.run(op, pool) {
        Some(SourceDone::Members { block: BlockId(9), length, results }) => {
            assert_eq!(results.len(), asked, "one result for each member");
            let is_lent = |result: &Result<MemberRead, _>| result.is_ok_and(|it| it.hash == Some(Hash::LENT));
            let goes_on = told.mark() != begins || length == 0 || results.iter().all(is_lent);
            assert!(goes_on, "it is told that storage has come to the first and the next");
            (length, results)
        }
        other => panic!("not the completion of ReadMembers: {other:?}"),
    }
}

/// `ReadObject` into slot 0.
pub fn read_object(
    storage: &dyn SourceStorage,
    pool: &Pool,
    entry: &Arc<Entry>,
    offset: u64,
    length: u32,
    single: bool,
) -> Result<Hash, Failure> {
    let result = read_or_leave(storage, pool, entry, (offset, length), single, false);
    result.map(|hash| hash.expect("nobody else hashes it"))
}

/// The same; `on_the_way`: it may be left to who sends it to hash it.
fn read_or_leave(
    storage: &dyn SourceStorage,
    pool: &Pool,
    entry: &Arc<Entry>,
    (offset, length): (u64, u32),
    single: bool,
    on_the_way: bool,
) -> Result<Option<Hash>, Failure> {
    let entry = Arc::clone(entry);
    let op = SourceOp::ReadObject {
        block: BlockId(5),
        entry,
        offset,
        length,
        slot: SlotId(0),
        single,
        again: false,
        on_the_way,
        gently: false,
    };
    match storage.run(op, pool) {
        Some(SourceDone::Object { block: BlockId(5), result }) => result,
        other => panic!("not the completion of ReadObject: {other:?}"),
    }
}

/// `Confirm`.
pub fn confirm(storage: &dyn SourceStorage, pool: &Pool, entry: &Arc<Entry>) -> Result<(), Failure> {
    match storage.run(SourceOp::Confirm { entry: Arc::clone(entry) }, pool) {
        Some(SourceDone::Confirmed { id, result }) if id == entry.id => result,
        other => panic!("not the completion of Confirm: {other:?}"),
    }
}

/// `Restat`.
pub fn restat(storage: &dyn SourceStorage, pool: &Pool, entry: &Arc<Entry>) -> Result<Box<Entry>, Failure> {
    match storage.run(SourceOp::Restat { entry: Arc::clone(entry) }, pool) {
        Some(SourceDone::Restated { id, result }) if id == entry.id => result,
        other => panic!("not the completion of Restat: {other:?}"),
    }
}

/// A pool whose slots hold an object, or all files of [`SIZES`] as one bundle.
pub fn pool() -> Arc<Pool> {
    Pool::new(8, 32 * OBJECT as u32).expect("memory for a few slots")
}

/// The whole suite. `make` gives a fresh dataset each time.
pub fn check_all<F: Fixture>(make: impl Fn() -> F) {
    scans_repeat(&make());
    members_arrive_packed_and_hashed(&make());
    members_that_fail_take_no_space(&make());
    objects_make_the_root(&make());
    ranges_beyond_the_file_are_changes(&make());
    slots_in_use_or_unknown_are_refused(&make());
    unchanged_files_are_confirmed(&make());
    releasing_and_forgetting_need_no_answer(&make());
    threads_share_one_storage(&make());
    for change in Change::ALL {
        changes_before_the_read_are_noticed(&make(), change);
        changes_after_the_first_object_are_noticed(&make(), change);
        changes_after_the_last_object_are_noticed(&make(), change);
        files_start_again(&make(), change);
    }
}

fn start<F: Fixture>(fixture: &F) -> Found {
    scan_all(&mut *fixture.scan(Arc::new(AtomicU64::new(1))), 1)
}

fn largest(found: &Found) -> &(Vec<u8>, Arc<Entry>) {
    found.files.iter().max_by_key(|(_, entry)| entry.size()).expect("a file")
}

fn scans_repeat<F: Fixture>(fixture: &F) {
    let first = start(fixture);
    for size in SIZES {
        assert!(first.files.iter().any(|(_, entry)| entry.size() == size), "a file of {size} bytes");
    }
    let directories = first.items.iter().filter(|item| matches!(item, Item::End(_))).count();
    assert!(directories > 2, "some directories");
    let ids = Arc::new(AtomicU64::new(1000));
    let second = scan_all(&mut *fixture.scan(Arc::clone(&ids)), 1000);
    assert_eq!(first.items.len(), second.items.len());
    let entries = second.items.len() - directories;
    assert_eq!(ids.load(Ordering::Relaxed), 1000 + entries as u64, "one id for each entry");
    for ((one, other), item) in first.items.iter().zip(&second.items).zip(&first.items) {
        if let (Item::Entry(one), Item::Entry(other)) = (one, other) {
            assert_eq!(
                (one.kind, one.identity, &one.name),
                (other.kind, other.identity, &other.name),
                "{item:?}"
            );
        }
    }
}

fn members_arrive_packed_and_hashed<F: Fixture>(fixture: &F) {
    let (found, pool) = (start(fixture), pool());
    let members: Vec<Arc<Entry>> = found.files.iter().map(|(_, entry)| Arc::clone(entry)).collect();
    for on_the_way in [false, true] {
        let (length, results) = read_or_leave_members(fixture.storage(), &pool, &members, on_the_way);
        let (slot, following) = payload(&pool, length);
        assert!(following.is_empty() || on_the_way && following.len() <= HASHES_FOLLOWING_MAX);
        let mut following = following.into_iter();
        let mut at = 0;
        for ((path, entry), result) in found.files.iter().zip(results) {
            let read = result.unwrap_or_else(|failure| panic!("{}: {failure}", path.escape_ascii()));
            let content = fixture.content(path);
            assert_eq!(read.offset as usize, at, "packed without gaps");
            assert_eq!(content.len() as u64, entry.size());
            assert!(slot[at..at + content.len()] == content[..], "{} has its own bytes", path.escape_ascii());
            let hash = read.hash.or_else(|| following.next()).expect("it is hashed here or on its way");
            assert_eq!(hash.0, *blake3::hash(&content).as_bytes());
            at += content.len();
        }
        assert_eq!(following.next(), None, "one hash for each");
        assert_eq!(length as usize, at);
    }
}

fn members_that_fail_take_no_space<F: Fixture>(fixture: &F) {
    let found = start(fixture);
    let members: Vec<Arc<Entry>> = found
        .files
        .iter()
        .enumerate()
        .map(|(at, (_, entry))| match at % 3 {
            1 => {
                let mut other = Entry::clone(entry);
                other.identity.mtime.nanos ^= 1;
                Arc::new(other)
            }
            _ => Arc::clone(entry),
        })
        .collect();
    let large = pool();
    let (length, results) = read_members(fixture.storage(), &large, &members);
    let (slot, _) = payload(&large, length);
    let mut at = 0;
    for (index, ((path, _), result)) in found.files.iter().zip(results).enumerate() {
        if index % 3 == 1 {
            assert_eq!(result.map_err(|failure| failure.code), Err(Code::SourceChanged));
        } else {
            let content = fixture.content(path);
            let read = result.expect("the others are fine");
            assert_eq!(read.offset as usize, at);
            assert!(slot[at..at + content.len()] == content[..]);
            assert_eq!(read.hash.expect("it is hashed here").0, *blake3::hash(&content).as_bytes());
            at += content.len();
        }
    }
    assert_eq!(length as usize, at);

    // What does not fit is an error of ours; what comes behind it may fit.
    let small = Pool::new(1, 4096).expect("a page");
    let mut members = vec![Arc::clone(&largest(&found).1)];
    members.extend(
        found.files.iter().find(|(_, entry)| entry.size() == 1024).map(|(_, entry)| Arc::clone(entry)),
    );
    let (length, results) = read_members(fixture.storage(), &small, &members);
    assert_eq!(results[0], Err(Code::Internal.into()));
    assert_eq!((length, results[1].expect("it fits").offset), (1024, 0));
}

fn objects_make_the_root<F: Fixture>(fixture: &F) {
    let (found, pool) = (start(fixture), pool());
    for (path, entry) in found.files.iter().filter(|(_, entry)| entry.size() > 0) {
        let content = fixture.content(path);
        let count = entry.size().div_ceil(OBJECT);
        let mut hashes = vec![None; count as usize];
        // Out of order, as the scheduler does.
        for index in (0..count).rev() {
            let offset = index * OBJECT;
            let length = OBJECT.min(entry.size() - offset) as u32;
            let hash = read_object(fixture.storage(), &pool, entry, offset, length, count == 1);
            hashes[index as usize] = Some(hash.unwrap_or_else(|failure| panic!("{entry:?}: {failure}")));
            let expected = &content[offset as usize..][..length as usize];
            assert!(payload(&pool, length).0 == *expected, "object {index} of {}", path.escape_ascii());
            let range = (offset, length);
            let here = read_or_leave(fixture.storage(), &pool, entry, range, count == 1, true).expect("read");
            let (bytes, on_the_way) = payload(&pool, length);
            let on_the_way = on_the_way.first().copied();
            assert!(bytes == *expected, "object {index} of {} on its way", path.escape_ascii());
            assert!(here.is_none() == on_the_way.is_some(), "it is hashed here or on its way");
            assert_eq!(here.or(on_the_way), hashes[index as usize], "wherever it is hashed");
        }
        let hashes: Vec<Hash> = hashes.into_iter().flatten().collect();
        let root = combine(&hashes, OBJECT, entry.size()).expect("one hash for each object");
        assert_eq!(root.0, *blake3::hash(&content).as_bytes(), "the root of {} bytes", entry.size());
        assert_eq!(confirm(fixture.storage(), &pool, entry), Ok(()));
    }
}

/// What a stream would send of what was read to slot 0, and the hashes that it would send behind it.
fn payload(pool: &Pool, length: u32) -> (Vec<u8>, Vec<Hash>) {
    let mut slot = pool.lease(SlotId(0)).expect("the slot is given back");
    let mut bytes = slot[..length as usize].to_vec();
    let mut hashes = Vec::new();
    for FileRange { start, length, file, offset, onlooker } in slot.take_file_ranges() {
        let range = &mut bytes[start..start + length];
        assert_eq!(rustix::io::pread(&file, &mut *range, offset), Ok(length), "the file stays open");
        hashes.extend(onlooker.map(|mut onlooker| {
            range.chunks(1000).for_each(|piece| onlooker.see(piece));
            onlooker.hash()
        }));
    }
    (bytes, hashes)
}

fn ranges_beyond_the_file_are_changes<F: Fixture>(fixture: &F) {
    let (found, pool) = (start(fixture), pool());
    let (_, entry) = largest(&found);
    let last = entry.size() / OBJECT * OBJECT;
    for (offset, length) in [(last, OBJECT as u32), (last + OBJECT, 1), (1 << 62, 1024)] {
        let result = read_object(fixture.storage(), &pool, entry, offset, length, false);
        assert_eq!(result.map_err(|failure| failure.code), Err(Code::SourceChanged), "{offset}+{length}");
    }
    // Ranges that have no hash are our own mistake, and no panic.
    for (offset, length, single) in
        [(1, 1024, false), (OBJECT, 2 * OBJECT as u32, false), (OBJECT, 1024, true)]
    {
        let result = read_object(fixture.storage(), &pool, entry, offset, length, single);
        assert_eq!(result, Err(Code::Internal.into()), "{offset}+{length}");
    }
}

fn slots_in_use_or_unknown_are_refused<F: Fixture>(fixture: &F) {
    let found = start(fixture);
    let (_, entry) = largest(&found);
    let tiny = Pool::new(1, 4096).expect("a page");
    let result = read_object(fixture.storage(), &tiny, entry, 0, OBJECT as u32, false);
    assert_eq!(result, Err(Code::Internal.into()), "a slot that is too small");
    let pool = pool();
    let lease = pool.lease(SlotId(0)).expect("free");
    let result = read_object(fixture.storage(), &pool, entry, 0, OBJECT as u32, false);
    assert_eq!(result, Err(Code::Internal.into()), "a slot in use");
    drop(lease);
    let lease = pool.lease(SlotId(0)).expect("free");
    let (length, results) = read_members(fixture.storage(), &pool, &[Arc::clone(entry)]);
    assert_eq!((length, results), (0, vec![Err(Code::Internal.into())]));
    drop(lease);
    let op = SourceOp::ReadMembers {
        block: BlockId(1),
        slot: SlotId(99),
        members: vec![Arc::clone(entry)],
        again: false,
        on_the_way: true,
        progress: Progress::default(),
    };
    assert!(matches!(fixture.storage().run(op, &pool), Some(SourceDone::Members { length: 0, .. })));
    assert!(read_object(fixture.storage(), &pool, entry, 0, OBJECT as u32, false).is_ok());
}

fn unchanged_files_are_confirmed<F: Fixture>(fixture: &F) {
    let (found, pool) = (start(fixture), pool());
    for (_, entry) in &found.files {
        assert_eq!(confirm(fixture.storage(), &pool, entry), Ok(()), "without a read before");
        let now = restat(fixture.storage(), &pool, entry).expect("it is there");
        assert_eq!((now.id, now.parent, &now.name), (entry.id, entry.parent, &entry.name));
        assert_eq!((now.kind, now.identity, now.links), (entry.kind, entry.identity, entry.links));
        let mut other = Entry::clone(entry);
        other.identity.ctime.nanos ^= 1;
        let result = confirm(fixture.storage(), &pool, &Arc::new(other));
        assert_eq!(result.map_err(|failure| failure.code), Err(Code::SourceChanged));
    }
}

fn releasing_and_forgetting_need_no_answer<F: Fixture>(fixture: &F) {
    let (found, pool) = (start(fixture), pool());
    let (_, entry) = largest(&found);
    let quiet = |op| assert!(fixture.storage().run(op, &pool).is_none());
    for id in [entry.id, EntryId(u64::MAX >> 1), EntryId::root(0), EntryId::root(77)] {
        quiet(SourceOp::Release { id });
        quiet(SourceOp::Release { id });
    }
    assert!(read_object(fixture.storage(), &pool, entry, 0, OBJECT as u32, false).is_ok());
    quiet(SourceOp::Release { id: entry.id });
    assert!(read_object(fixture.storage(), &pool, entry, 0, OBJECT as u32, false).is_ok(), "opened again");
    quiet(SourceOp::Forget { id: EntryId(u64::MAX >> 1) });
    quiet(SourceOp::Forget { id: EntryId::root(0) });
    quiet(SourceOp::Forget { id: EntryId::root(77) });
    assert_eq!(confirm(fixture.storage(), &pool, entry), Ok(()));
    for item in &found.items {
        if let Item::End(id) = item {
            quiet(SourceOp::Forget { id: *id });
            quiet(SourceOp::Forget { id: *id });
        }
    }
}

fn threads_share_one_storage<F: Fixture>(fixture: &F) {
    const THREADS: u32 = 4;
    let (found, pool) = (start(fixture), pool());
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (found, pool) = (&found, &pool);
            scope.spawn(move || {
                let slot = SlotId(number);
                for round in 0..3 {
                    for (path, entry) in &found.files {
                        let op = if round % 2 == 0 || entry.size() == 0 {
                            let members = vec![Arc::clone(entry)];
                            let (block, again, on_the_way) = (BlockId(1), false, false);
                            SourceOp::ReadMembers {
                                block,
                                slot,
                                members,
                                again,
                                on_the_way,
                                progress: Progress::default(),
                            }
                        } else {
                            let (entry, length) = (Arc::clone(entry), entry.size() as u32);
                            SourceOp::ReadObject {
                                block: BlockId(1),
                                entry,
                                offset: 0,
                                length,
                                slot,
                                single: true,
                                again: false,
                                on_the_way: false,
                                gently: false,
                            }
                        };
                        let hash = match fixture.storage().run(op, pool) {
                            Some(SourceDone::Members { results, .. }) => results[0].expect("read").hash,
                            Some(SourceDone::Object { result, .. }) => result.expect("read"),
                            other => panic!("{other:?}"),
                        };
                        let hash = hash.expect("hashed");
                        assert_eq!(hash.0, *blake3::hash(&fixture.content(path)).as_bytes());
                        fixture.storage().run(SourceOp::Release { id: entry.id }, pool);
                    }
                }
            });
        }
    });
}

fn changes_before_the_read_are_noticed<F: Fixture>(fixture: &F, change: Change) {
    let (found, pool) = (start(fixture), pool());
    for (path, entry) in found.files.iter().filter(|(_, entry)| entry.size() > 0) {
        if !fixture.change(path, change) {
            return;
        }
        let (length, results) = read_members(fixture.storage(), &pool, &[Arc::clone(entry)]);
        let failed = |result: Result<(), Failure>| {
            assert_eq!(result.map_err(|failure| failure.code), Err(change.code()), "{change:?} of {entry:?}");
        };
        assert_eq!(length, 0);
        failed(results[0].map(|_| ()));
        failed(read_object(fixture.storage(), &pool, entry, 0, 1, entry.size() == 1).map(|_| ()));
        failed(confirm(fixture.storage(), &pool, entry));
    }
}

fn changes_after_the_first_object_are_noticed<F: Fixture>(fixture: &F, change: Change) {
    let (found, pool) = (start(fixture), pool());
    let (path, entry) = largest(&found);
    let last = (entry.size() - 1) / OBJECT * OBJECT;
    let rest = (entry.size() - last) as u32;
    assert!(read_object(fixture.storage(), &pool, entry, 0, OBJECT as u32, false).is_ok());
    if !fixture.change(path, change) {
        return;
    }
    let second = read_object(fixture.storage(), &pool, entry, last, rest, false);
    if change == Change::Shrink {
        assert_eq!(second.map_err(|failure| failure.code), Err(Code::SourceChanged), "the last byte is gone");
    }
    // Other bytes, or the old file under no name: the descriptor tells at the end.
    let result = confirm(fixture.storage(), &pool, entry);
    assert_eq!(result.map_err(|failure| failure.code), Err(Code::SourceChanged), "{change:?}");
}

fn changes_after_the_last_object_are_noticed<F: Fixture>(fixture: &F, change: Change) {
    let (found, pool) = (start(fixture), pool());
    let (path, entry) = largest(&found);
    for offset in (0..entry.size()).step_by(OBJECT as usize) {
        let length = OBJECT.min(entry.size() - offset) as u32;
        assert!(read_object(fixture.storage(), &pool, entry, offset, length, false).is_ok());
    }
    if !fixture.change(path, change) {
        return;
    }
    let result = confirm(fixture.storage(), &pool, entry);
    assert_eq!(result.map_err(|failure| failure.code), Err(Code::SourceChanged), "{change:?}");
}

/// After `SourceChanged` the master asks what is there now and reads that, under the same id.
fn files_start_again<F: Fixture>(fixture: &F, change: Change) {
    let (found, pool) = (start(fixture), pool());
    let (path, entry) = largest(&found);
    assert!(read_object(fixture.storage(), &pool, entry, 0, OBJECT as u32, false).is_ok());
    if !fixture.change(path, change) {
        return;
    }
    if change == Change::Replace {
        // So that the old file and the new one differ in their bytes, too.
        fixture.change(path, Change::Rewrite);
    }
    let now = restat(fixture.storage(), &pool, entry);
    if change == Change::Vanish {
        assert_eq!(now.map_err(|failure| failure.code), Err(Code::SourceVanished));
        return;
    }
    let now = Arc::new(*now.expect("it is there"));
    assert_eq!(now.id, entry.id);
    assert_ne!(now.identity, entry.identity);
    // Without a release in between: the descriptor of the old version must not serve the new one.
    let content = fixture.content(path);
    let mut hashes = Vec::new();
    for offset in (0..now.size()).step_by(OBJECT as usize) {
        let length = OBJECT.min(now.size() - offset) as u32;
        hashes.push(read_object(fixture.storage(), &pool, &now, offset, length, false).expect("read"));
    }
    let root = combine(&hashes, OBJECT, now.size()).expect("one hash for each object");
    assert_eq!(root.0, *blake3::hash(&content).as_bytes());
    assert_eq!(confirm(fixture.storage(), &pool, &now), Ok(()));
}
