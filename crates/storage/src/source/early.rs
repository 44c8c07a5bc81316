//! Hashes that are made before there is another end.
//!
//! While a connection is being made a source has found files already, and processors have little to do. What of these files is
//! in memory is hashed then, object by object, by threads that give way to everybody else. Such a hash counts as if
//! an I/O thread had made it where it leaves an object in its file: it is of the version that was announced, and if other
//! bytes leave later the sink finds them wrong and asks again.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_meter::Meter;
use haul_model::profile::{Profile, Stage};
use haul_model::{Code, Entry, EntryId, Failure, Hash, HashKind, Identity, Item, Kind};
use rustix::fs::{Advice, fadvise};

use super::directories::Directories;
use super::files::{Noatime, check_version, open_regular};
use super::objects::{Wanted, hash_in_place, read_piece};
use crate::hashing::ObjectHasher;
use crate::scan::Scanned;
use crate::{local, page_cache};

/// Smaller files cost more to open twice than to hash late.
const FILE_BYTES_MIN: u64 = 256 << 10;
/// They only use what nobody else does, but of memory's bandwidth they could use all.
const THREADS_MAX: usize = 4;
/// How long a thread hashes before it naps. To be of the lowest priority is not enough: sessions share the processors among each
/// other, whatever is in them, and to make a connection many processes have to wake each other, each of which would wait for the end of
/// a slice of some milliseconds.
const PIECE_BYTES: usize = 512 << 10;
const NAP: Duration = Duration::from_micros(20);
/// So often whoever ends it tries to have what was made, and does without it then.
const HANDOVER_TRIES: u32 = 100;
const HANDOVER_PAUSE: Duration = Duration::from_micros(100);
/// Objects whose hashes are kept.
const HASHES_MAX: usize = 1 << 16;

/// What has been hashed early, and what is to be.
pub(crate) struct EarlyHashes {
    directories: Arc<Directories>,
    noatime: Noatime,
    kind: HashKind,
    object_bytes: u32,
    /// Nobody will ask for what is made later.
    until: Instant,
    todo: Mutex<Todo>,
    more: Condvar,
    making: Mutex<Hashes>,
    /// What was made until they ended.
    made: OnceLock<Mutex<Hashes>>,
    meter: Meter,
}

#[derive(Default)]
struct Todo {
    files: VecDeque<Arc<Entry>>,
    /// Of the first of them so many bytes are hashed, or being hashed.
    at: u64,
    /// Objects that were begun.
    begun: usize,
    ended: bool,
}

/// Of objects, by the file and their place in it.
type Hashes = HashMap<(EntryId, u64), Made>;

struct Made {
    identity: Identity,
    length: u32,
    single: bool,
    hash: Hash,
}

/// An object that is to be hashed.
struct Piece {
    entry: Arc<Entry>,
    wanted: Wanted,
}

impl EarlyHashes {
    /// For files that a scan of these directories finds, cut to objects of this size.
    pub fn new(directories: Arc<Directories>, kind: HashKind, object_bytes: u32, within: Duration) -> Self {
        EarlyHashes {
            directories,
            noatime: Noatime::new(),
            kind,
            object_bytes,
            until: Instant::now() + within,
            todo: Mutex::default(),
            more: Condvar::new(),
            making: Mutex::default(),
            made: OnceLock::new(),
            meter: Meter::default(),
        }
    }

    /// The hash of this object, once: if it was hashed, in this version of its file.
    pub fn take(&self, entry: &Entry, offset: u64, length: u32, single: bool) -> Option<Hash> {
        let made = lock(self.made.get()?).remove(&(entry.id, offset))?;
        let fits = made.identity == entry.identity && made.length == length && made.single == single;
        fits.then_some(made.hash)
    }

    fn offer(&self, found: &[Scanned]) {
        let large = |found: &Scanned| match found {
            Scanned::Item(Item::Entry(entry) | Item::Laid(entry, ..))
                if entry.kind == Kind::File && entry.size() >= FILE_BYTES_MIN =>
            {
                Some(Arc::new(entry.clone()))
            }
            _ => None,
        };
        let mut files = found.iter().filter_map(large).peekable();
        if files.peek().is_none() {
            return;
        }
        let mut todo = lock(&self.todo);
        if !todo.ended {
            todo.files.extend(files);
            self.more.notify_all();
        }
    }

    fn end(&self) {
        let mut todo = lock(&self.todo);
        todo.ended = true;
        todo.files.clear();
        self.more.notify_all();
        drop(todo);
        // A thread may have had to give way with the lock in hand.
        for _ in 0..HANDOVER_TRIES {
            if let Ok(mut making) = self.making.try_lock() {
                let _ = self.made.set(Mutex::new(std::mem::take(&mut making)));
                return;
            }
            thread::sleep(HANDOVER_PAUSE);
        }
    }

    /// Waits for one; `None` at the end.
    fn next(&self) -> Option<Piece> {
        let mut todo = lock(&self.todo);
        loop {
            if todo.ended || todo.begun == HASHES_MAX || Instant::now() >= self.until {
                return None;
            }
            if let Some(entry) = todo.files.front().cloned() {
                let offset = todo.at;
                let length = (entry.size() - offset).min(self.object_bytes.into());
                todo.at += length;
                todo.begun += 1;
                let single = entry.size() == length;
                if todo.at == entry.size() {
                    todo.next_file();
                }
                let length = length as u32;
                return Some(Piece { entry, wanted: Wanted { offset, length, single, gently: false } });
            }
            todo = self.more.wait(todo).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run(&self) {
        give_way();
        let _joined = self.meter.join();
        let mut last = None;
        while let Some(piece) = self.next() {
            let _at = haul_meter::at(Stage::Read);
            match self.hash(&piece, &mut last) {
                Ok(hash) => {
                    let Piece { entry, wanted: Wanted { offset, length, single, .. } } = piece;
                    let made = Made { identity: entry.identity, length, single, hash };
                    lock(&self.making).insert((entry.id, offset), made);
                }
                // Whoever asks for it later says what is wrong with it, if anything is.
                Err(_) => lock(&self.todo).leave(piece.entry.id),
            }
        }
    }

    fn hash(
        &self,
        Piece { entry, wanted }: &Piece,
        last: &mut Option<(EntryId, OwnedFd)>,
    ) -> Result<Hash, Failure> {
        let file = match last.take() {
            Some((id, file)) if id == entry.id => file,
            _ => self.open(entry)?,
        };
        let (_, file) = last.insert((entry.id, file));
        // Nobody has asked for what would have to be read from storage.
        if !page_cache::holds_all_of(&*file, wanted.offset, wanted.length) {
            return Err(Code::SourceRead.into());
        }
        let Wanted { offset, length, single, .. } = *wanted;
        let new = || ObjectHasher::new(self.kind, offset, length, single);
        let read = |at, bytes: &mut [u8]| read_piece(file, at, bytes, || Ok(()));
        let hash = hash_in_place(file, (offset, length), PIECE_BYTES, new, read, || thread::sleep(NAP))?;
        check_version(file, &entry.identity)?;
        Ok(hash)
    }

    fn open(&self, entry: &Entry) -> Result<OwnedFd, Failure> {
        let location = self.directories.locate(entry)?;
        let (file, status) = open_regular(&self.directories, &location, &self.noatime, entry)?;
        if status.has_holes() || !local::is_known(&file).unwrap_or(false) {
            return Err(Code::SourceRead.into());
        }
        // What is not there yet is not to be fetched by a look at what is before it.
        let _ = fadvise(&file, 0, None, Advice::Random);
        Ok(file)
    }
}

impl Todo {
    fn next_file(&mut self) {
        self.files.pop_front();
        self.at = 0;
    }

    /// The rest of this file stays as it is.
    fn leave(&mut self, id: EntryId) {
        if self.files.front().is_some_and(|entry| entry.id == id) {
            self.next_file();
        }
    }
}

/// Threads that hash early, until this goes.
pub struct HashingEarly(Arc<EarlyHashes>);

impl HashingEarly {
    /// As many as there are processors, within reason; none where the system gives none.
    pub(super) fn start(hashes: Arc<EarlyHashes>) -> HashingEarly {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..processors.min(THREADS_MAX) {
            let hashes = Arc::clone(&hashes);
            // Nobody needs it.
            let _ = thread::Builder::new().name("haul-early".into()).spawn(move || hashes.run());
        }
        HashingEarly(hashes)
    }

    /// Takes note of what a scan has found.
    pub fn finder(&self) -> impl Fn(&[Scanned]) + Send + 'static {
        let hashes = Arc::clone(&self.0);
        move |found| hashes.offer(found)
    }

    /// So many bytes have been hashed.
    pub fn bytes(&self) -> u64 {
        let mut profile = Profile::default();
        self.0.meter.read(&mut profile);
        profile.spent(Stage::Hash).bytes
    }
}

impl Drop for HashingEarly {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// This thread runs when nobody else wants to, and naps no longer than it wants to. Best effort.
fn give_way() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: both change this thread only; the structure lives until the call returns.
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters);
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
    }
}

/// What is guarded is valid between any two steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;
    use std::sync::atomic::AtomicU64;

    use haul_buffers::Pool;
    use haul_model::op::{SourceDone, SourceOp};
    use haul_model::{BlockId, SlotId};

    use super::*;
    use crate::SourceStorage;
    use crate::hashing::{object_hash, whole_hash};
    use crate::scan::Scan;
    use crate::source::{PosixSource, Root, SourceOptions};

    const OBJECT: u32 = 1 << 20;
    const BIG: usize = 2 * OBJECT as usize + 5;
    const SMALL: usize = 300 << 10;
    /// What nobody would compute: who tells it has it from what was hashed early.
    const FORGED: Hash = Hash([7; 32]);

    fn contents(size: usize) -> Vec<u8> {
        (0..size).map(|at| (at / 7) as u8).collect()
    }

    fn wait_until(mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A source of which all has been hashed that is to be.
    struct Bed {
        directory: tempfile::TempDir,
        source: PosixSource,
        entries: Vec<Arc<Entry>>,
        early: Arc<EarlyHashes>,
        pool: Arc<Pool>,
    }

    impl Bed {
        /// A big file, which is three objects, a small one, one that is too small and one with a hole.
        fn new(kind: HashKind) -> Bed {
            let directory = tempfile::tempdir_in("/dev/shm").unwrap();
            let path = |name| directory.path().join(name);
            fs::write(path("big"), contents(BIG)).unwrap();
            fs::write(path("small"), contents(SMALL)).unwrap();
            fs::write(path("tiny"), contents(FILE_BYTES_MIN as usize - 1)).unwrap();
            File::create(path("sparse")).unwrap().write_all_at(b"x", 3 << 20).unwrap();
            Bed::of(directory, kind, Duration::from_secs(600), 4)
        }

        fn of(directory: tempfile::TempDir, hash: HashKind, within: Duration, expected: usize) -> Bed {
            let root = Root::new(directory.path().to_str().unwrap());
            let options = SourceOptions { hash, in_place: true, ..SourceOptions::default() };
            let source = PosixSource::new(vec![root], options);
            let hashing = source.hash_early(OBJECT, within).unwrap();
            let mut scan = source.scan(Arc::new(AtomicU64::new(1)));
            let mut found = Vec::new();
            while scan.next(&mut found) {}
            hashing.finder()(&found);
            let early = Arc::clone(&hashing.0);
            let is_done = || lock(&early.todo).files.is_empty() && lock(&early.making).len() >= expected;
            wait_until(|| is_done() || Instant::now() >= early.until);
            drop(hashing);
            wait_until(|| Arc::strong_count(&early) == 2);
            assert_eq!(lock(early.made.get().unwrap()).len(), expected);
            let entries = found.into_iter().filter_map(|found| match found {
                Scanned::Item(Item::Entry(entry) | Item::Laid(entry, ..)) => Some(Arc::new(entry)),
                _ => None,
            });
            let (entries, pool) = (entries.collect(), Pool::new(2, 2 * OBJECT).unwrap());
            Bed { directory, source, entries, early, pool }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn entry(&self, name: &str) -> Arc<Entry> {
            let named = |entry: &&Arc<Entry>| *entry.name == *name.as_bytes();
            Arc::clone(self.entries.iter().find(named).unwrap())
        }

        fn forge(&self, entry: &Entry, offset: u64) {
            lock(self.early.made.get().unwrap()).get_mut(&(entry.id, offset)).unwrap().hash = FORGED;
        }

        /// The hash of the object at this offset, and whether it stays in its file and is looked at by nobody.
        fn object(&self, entry: &Arc<Entry>, offset: u64, again: bool) -> Result<(Hash, bool), Failure> {
            let length = (entry.size() - offset).min(OBJECT.into()) as u32;
            let (block, slot, entry) = (BlockId(1), SlotId(0), Arc::clone(entry));
            let (single, on_the_way, gently) = (false, false, false);
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
            let Some(SourceDone::Object { result, .. }) = self.source.run(op, &self.pool) else {
                panic!("it was asked for an object");
            };
            let ranges = self.pool.lease(slot).unwrap().take_file_ranges();
            let stays = ranges.len() == 1 && ranges[0].onlooker.is_none();
            result.map(|hash| (hash.unwrap(), stays))
        }

        fn member(&self, entry: &Arc<Entry>, (again, on_the_way): (bool, bool)) -> Result<Hash, Failure> {
            let (block, slot, members) = (BlockId(1), SlotId(0), vec![Arc::clone(entry)]);
            let op = SourceOp::ReadMembers { block, slot, members, again, on_the_way };
            let Some(SourceDone::Members { results, .. }) = self.source.run(op, &self.pool) else {
                panic!("it was asked for members");
            };
            drop(self.pool.lease(slot).unwrap().take_file_ranges());
            results[0].map(|read| read.hash.unwrap())
        }
    }

    #[test]
    fn what_is_hashed_early_is_what_would_be_hashed_later() {
        for kind in [HashKind::Blake3, HashKind::Xxh3] {
            let bed = Bed::new(kind);
            let big = bed.entry("big");
            for (index, bytes) in contents(BIG).chunks(OBJECT as usize).enumerate() {
                let offset = index as u64 * u64::from(OBJECT);
                let made = bed.early.take(&big, offset, bytes.len() as u32, false);
                assert_eq!(made, Some(object_hash(kind, bytes, offset, false)), "{kind:?} at {offset}");
            }
            let made = bed.early.take(&bed.entry("small"), 0, SMALL as u32, true);
            assert_eq!(made, Some(whole_hash(kind, &contents(SMALL))), "{kind:?}");
        }
    }

    #[test]
    fn it_is_told_once_and_what_the_sink_finds_wrong_is_hashed_as_it_is_read() {
        let bed = Bed::new(HashKind::Blake3);
        let big = bed.entry("big");
        let offset = u64::from(OBJECT);
        let hash = object_hash(
            HashKind::Blake3,
            &contents(BIG)[OBJECT as usize..][..OBJECT as usize],
            offset,
            false,
        );
        bed.forge(&big, offset);
        assert_eq!(bed.object(&big, offset, false), Ok((FORGED, true)));
        assert_eq!(bed.object(&big, offset, true), Ok((hash, false)));
        assert_eq!(bed.object(&big, offset, false), Ok((hash, true)), "hashed in its file");
        bed.forge(&big, 0);
        assert_ne!(bed.object(&big, 0, true).unwrap().0, FORGED, "it is not even looked for");
        for on_the_way in [false, true] {
            let bed = Bed::new(HashKind::Blake3);
            let small = bed.entry("small");
            bed.forge(&small, 0);
            assert_eq!(bed.member(&small, (false, on_the_way)), Ok(FORGED));
            let hash = whole_hash(HashKind::Blake3, &contents(SMALL));
            assert_eq!(bed.member(&small, (true, on_the_way)), Ok(hash));
        }
    }

    #[test]
    fn it_is_of_one_version_and_one_way_to_cut_it() {
        let bed = Bed::new(HashKind::Blake3);
        let big = bed.entry("big");
        assert_eq!(bed.early.take(&big, 0, OBJECT - 1, false), None);
        assert_eq!(bed.early.take(&bed.entry("small"), 0, SMALL as u32, false), None);
        bed.forge(&big, u64::from(OBJECT));
        // The kernel's clock must move on, or nothing could tell the versions apart.
        thread::sleep(Duration::from_millis(20));
        let changed: Vec<u8> = contents(BIG).iter().map(|byte| !byte).collect();
        fs::write(bed.path("big"), &changed).unwrap();
        assert_eq!(bed.object(&big, u64::from(OBJECT), false), Err(Code::SourceChanged.into()));
        let Some(SourceDone::Restated { result, .. }) =
            bed.source.run(SourceOp::Restat { entry: Arc::clone(&big) }, &bed.pool)
        else {
            panic!("it was asked for the file as it is now");
        };
        let now = Arc::new(*result.unwrap());
        assert_eq!(now.id, big.id);
        let bytes = &changed[OBJECT as usize..][..OBJECT as usize];
        let hash = object_hash(HashKind::Blake3, bytes, OBJECT.into(), false);
        assert_eq!(bed.object(&now, u64::from(OBJECT), false), Ok((hash, true)));
    }

    #[test]
    fn what_is_not_in_memory_is_not_fetched() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let cold = directory.path().join("cold");
        fs::write(&cold, contents(BIG)).unwrap();
        let cold = File::open(cold).unwrap();
        if !local::is_disk(&cold).unwrap() {
            return;
        }
        cold.sync_all().unwrap();
        page_cache::drop_all(&cold);
        // The first object is there; to read it must not bring what follows it.
        fadvise(&cold, 0, None, Advice::Random).unwrap();
        cold.read_exact_at(&mut vec![0; OBJECT as usize], 0).unwrap();
        let before = page_cache::pages(&cold);
        Bed::of(directory, HashKind::Blake3, Duration::from_secs(600), 1);
        assert_eq!(page_cache::pages(&cold), before);
    }

    #[test]
    fn it_has_its_time() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::write(directory.path().join("big"), contents(BIG)).unwrap();
        Bed::of(directory, HashKind::Blake3, Duration::ZERO, 0);
    }

    #[test]
    fn nobody_waits_for_a_thread_that_gives_way() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let root = Root::new(directory.path().to_str().unwrap());
        let source = PosixSource::new(vec![root], SourceOptions::default());
        let hashing = source.hash_early(OBJECT, Duration::from_secs(600)).unwrap();
        let early = Arc::clone(&hashing.0);
        let making = lock(&early.making);
        drop(hashing);
        assert!(early.made.get().is_none());
        drop(making);
    }
}
