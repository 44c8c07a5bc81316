//! Hashes that are made before there is another end.
//!
//! While a connection is being made a source has found files already, and processors have little to do. What of these files is
//! in memory is hashed then, object by object, by threads that give way to everybody else. Such a hash counts as if
//! an I/O thread had made it where it leaves an object in its file: it is of the version that was announced, and if other
//! bytes leave later the sink finds them wrong and asks again.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_model::{Code, Entry, EntryId, Failure, Hash, HashKind, Identity, Item, Kind};
use rustix::fs::{Advice, fadvise};

use super::directories::Directories;
use super::files::{Noatime, check_version, open_regular};
use super::objects::{Wanted, hash_in_place, read_piece};
use crate::hashing::ObjectHasher;
use crate::leases::Leases;
use crate::scan::Scanned;
use crate::{faults, local, page_cache};

/// Of the files of the Linux sources a fifth are as large, with four fifths of the bytes, and a login leaves no time for more. What is
/// done to open one takes about 4 us, to read and hash it 7 to 10.
pub(super) const FILE_BYTES_MIN: u64 = 16 << 10;
/// From here on they come first: opening them is little beside hashing them.
const LARGE_BYTES_MIN: u64 = 64 << 10;
/// They only use what nobody else does, but of memory's bandwidth they could use all.
const THREADS_MAX: usize = 4;
/// How long a thread hashes before it naps. To be of the lowest priority is not enough: sessions share the processors among each
/// other, whatever is in them, and to make a connection many processes have to wake each other, each of which would wait for the end of
/// a slice of some milliseconds.
const PIECE_BYTES: usize = 512 << 10;
/// To open a file, and close it, counts as much as to hash so many bytes.
const OPENING_BYTES: usize = 16 << 10;
const NAP: Duration = Duration::from_micros(20);
/// Objects whose hashes are kept.
const HASHES_MAX: usize = 1 << 15;
/// A thread may have to give way with a lock in hand. So others try to have it, so often, and do without it then.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_micros(50);
/// A thread that waits looks so often whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What has been hashed early, and what is to be.
pub(crate) struct EarlyHashes {
    directories: Arc<Directories>,
    noatime: Noatime,
    kind: HashKind,
    object_bytes: u32,
    /// Nobody will ask for what is made later.
    until: Instant,
    ended: AtomicBool,
    todo: Mutex<Todo>,
    more: Condvar,
    making: Mutex<Hashes>,
    /// What was made until they ended.
    made: OnceLock<Mutex<Hashes>>,
}

#[derive(Default)]
struct Todo {
    large: Queue,
    /// Their turn comes where no large one waits.
    small: Queue,
    /// Objects that were begun.
    begun: usize,
    /// Threads that hash one.
    busy: usize,
}

/// Files, in the order in which they were found.
#[derive(Default)]
struct Queue {
    /// And how large their objects are.
    files: VecDeque<(Arc<Entry>, u32)>,
    /// Of the first of them so many bytes are hashed, or being hashed.
    at: u64,
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
    /// For files that a scan of these directories finds, cut to objects of this size unless they lie otherwise.
    pub fn new(directories: Arc<Directories>, kind: HashKind, object_bytes: u32, within: Duration) -> Self {
        EarlyHashes {
            directories,
            noatime: Noatime::new(),
            kind,
            object_bytes,
            until: Instant::now() + within,
            ended: AtomicBool::new(false),
            todo: Mutex::default(),
            more: Condvar::new(),
            making: Mutex::default(),
            made: OnceLock::new(),
        }
    }

    /// The hash of this object, once: if it was hashed, in this version of its file.
    pub fn take(&self, entry: &Entry, offset: u64, length: u32, single: bool) -> Option<Hash> {
        let made = lock(self.made.get()?).remove(&(entry.id, offset))?;
        let fits = made.identity == entry.identity && made.length == length && made.single == single;
        fits.then_some(made.hash)
    }

    fn offer(&self, found: &[Scanned]) {
        let worth_it = |found: &Scanned| {
            let (entry, object_bytes) = match found {
                Scanned::Item(Item::Entry(entry)) => (entry, self.object_bytes),
                Scanned::Item(Item::Laid(entry, laid, _)) => (entry, laid.object_bytes),
                _ => return None,
            };
            let worth_it = entry.kind == Kind::File && entry.size() >= FILE_BYTES_MIN;
            worth_it.then(|| (Arc::new(entry.clone()), object_bytes))
        };
        let mut files = found.iter().filter_map(worth_it).peekable();
        if files.peek().is_some()
            && !self.has_ended()
            && let Some(mut todo) = try_lock(&self.todo)
        {
            let room = HASHES_MAX.saturating_sub(todo.begun + todo.waiting());
            files.take(room).for_each(|file| todo.add(file));
            self.more.notify_all();
        }
    }

    /// No more is hashed. What has been can be had from now on; so many bytes are.
    fn end(&self) -> u64 {
        self.ended.store(true, Ordering::Relaxed);
        self.more.notify_all();
        let Some(made) = try_lock(&self.making).map(|mut making| std::mem::take(&mut *making)) else {
            return 0;
        };
        let bytes = made.values().map(|made| u64::from(made.length)).sum();
        let _ = self.made.set(Mutex::new(made));
        bytes
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed) || Instant::now() >= self.until
    }

    /// Waits for one; `None` at the end.
    fn next(&self) -> Option<Piece> {
        let mut todo = lock(&self.todo);
        while !self.has_ended() && todo.begun < HASHES_MAX {
            if let Some(piece) = todo.take() {
                return Some(piece);
            }
            (todo, _) = self.more.wait_timeout(todo, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner);
        }
        todo.clear();
        None
    }

    fn run(&self) {
        give_way();
        let (mut last, awake) = (None, Awake::default());
        while let Some(piece) = self.next() {
            let hash = self.hash(&piece, &mut last, &awake);
            let Piece { entry, wanted: Wanted { offset, length, single, .. } } = piece;
            if let Ok(hash) = hash {
                let made = Made { identity: entry.identity, length, single, hash };
                lock(&self.making).insert((entry.id, offset), made);
            }
            let mut todo = lock(&self.todo);
            todo.busy -= 1;
            // Whoever asks for it later says what is wrong with it, if anything is.
            if hash.is_err() {
                todo.leave(entry.id);
            }
            if todo.busy == 0 && todo.waiting() == 0 {
                faults::hashed_early();
            }
        }
    }

    fn hash(
        &self,
        Piece { entry, wanted }: &Piece,
        last: &mut Option<(EntryId, OwnedFd)>,
        awake: &Awake,
    ) -> Result<Hash, Failure> {
        let file = match last.take() {
            Some((id, file)) if id == entry.id => file,
            _ => {
                awake.nap_after(OPENING_BYTES);
                self.open(entry)?
            }
        };
        let (_, file) = last.insert((entry.id, file));
        let Wanted { offset, length, single, .. } = *wanted;
        // Nobody has asked for what would have to be read from storage.
        if !page_cache::holds_all_of(&*file, offset, length) {
            return Err(Code::SourceRead.into());
        }
        let new = || ObjectHasher::new(self.kind, offset, length, single);
        let read = |at, bytes: &mut [u8]| read_piece(file, at, bytes, || Ok(()));
        let pause = || {
            awake.nap_after(PIECE_BYTES.min(length as usize));
            if self.has_ended() { Err(Code::Interrupted.into()) } else { Ok(()) }
        };
        let hash = hash_in_place(file, (offset, length), PIECE_BYTES, new, read, pause)?;
        check_version(file, &entry.identity)?;
        Ok(hash)
    }

    fn open(&self, entry: &Entry) -> Result<OwnedFd, Failure> {
        let location = self.directories.locate(entry)?;
        // To open a file can be work for a server already. Those that the user has named are few.
        if let Some(held) = location.held_directory()
            && !local::is_known(&held).unwrap_or(false)
        {
            return Err(Code::SourceRead.into());
        }
        let (directories, noatime) = (&self.directories, &self.noatime);
        let (file, status) = open_regular(directories, &location, noatime, entry, Leases::Respected)?;
        if status.has_holes() || !local::is_known(&file).unwrap_or(false) {
            return Err(Code::SourceRead.into());
        }
        // What is not there yet is not to be fetched by a look at what is before it.
        let _ = fadvise(&file, 0, None, Advice::Random);
        Ok(file)
    }
}

/// What a thread has done since it last slept.
#[derive(Default)]
struct Awake(Cell<usize>);

impl Awake {
    /// As much more as to hash so many bytes.
    fn nap_after(&self, bytes: usize) {
        self.0.set(self.0.get() + bytes);
        if self.0.get() >= PIECE_BYTES {
            self.0.set(0);
            thread::sleep(NAP);
        }
    }
}

impl Todo {
    fn add(&mut self, file: (Arc<Entry>, u32)) {
        let large = file.0.size() >= LARGE_BYTES_MIN;
        let queue = if large { &mut self.large } else { &mut self.small };
        queue.files.push_back(file);
    }

    /// What is to be hashed next.
    fn take(&mut self) -> Option<Piece> {
        let piece = self.large.take().or_else(|| self.small.take())?;
        self.begun += 1;
        self.busy += 1;
        Some(piece)
    }

    /// Files of which something is not being hashed yet.
    fn waiting(&self) -> usize {
        self.large.files.len() + self.small.files.len()
    }

    /// The rest of this file stays as it is.
    fn leave(&mut self, id: EntryId) {
        self.large.leave(id);
        self.small.leave(id);
    }

    fn clear(&mut self) {
        self.large = Queue::default();
        self.small = Queue::default();
    }
}

impl Queue {
    fn take(&mut self) -> Option<Piece> {
        let (entry, object_bytes) = self.files.front().cloned()?;
        let offset = self.at;
        let length = (entry.size() - offset).min(object_bytes.into());
        self.at += length;
        if self.at == entry.size() {
            self.next_file();
        }
        let single = entry.size() == length;
        let length = length as u32;
        Some(Piece { entry, wanted: Wanted { offset, length, single, gently: false } })
    }

    fn next_file(&mut self) {
        self.files.pop_front();
        self.at = 0;
    }

    fn leave(&mut self, id: EntryId) {
        if self.files.front().is_some_and(|(entry, _)| entry.id == id) {
            self.next_file();
        }
    }
}

/// Hashing early, until this goes.
pub struct HashingEarly(Arc<EarlyHashes>);

impl HashingEarly {
    pub(super) fn new(hashes: Arc<EarlyHashes>) -> HashingEarly {
        HashingEarly(hashes)
    }

    /// Takes note of what a scan has found.
    pub fn finder(&self) -> impl Fn(&[Scanned]) + Send + 'static {
        let hashes = Arc::clone(&self.0);
        move |found| hashes.offer(found)
    }

    /// Begins, with as many threads as there are processors, within reason; with none where the system gives none, and where processor
    /// time is rationed, which counts also what gives way.
    pub fn start(&self) {
        let usable = thread::available_parallelism().map_or(1, usize::from);
        let processors = rustix::thread::sched_getaffinity(None).map_or(usable, |all| all.count() as usize);
        if usable < processors {
            return;
        }
        for _ in 0..usable.min(THREADS_MAX) {
            let hashes = Arc::clone(&self.0);
            // Nobody needs it.
            let _ = thread::Builder::new().name("haul-early".into()).spawn(move || hashes.run());
        }
    }

    /// Ends it; of so many bytes the hashes are known.
    pub fn end(self) -> u64 {
        self.0.end()
    }
}

impl Drop for HashingEarly {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
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

/// For those who do not give way.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    (0..TRIES).find_map(|tries| {
        if tries > 0 {
            thread::sleep(PAUSE);
        }
        mutex.try_lock().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;
    use std::sync::atomic::AtomicU64;

    use haul_buffers::Pool;
    use haul_model::op::{Progress, SourceDone, SourceOp};
    use haul_model::{BlockId, SlotId};
    use haul_testkit::{COUNTED, DISK, cached_eq, lacks, lacks_here, undisturbed};

    use super::*;
    use crate::SourceStorage;
    use crate::hashing::{object_hash, whole_hash};
    use crate::scan::Scan;
    use crate::source::{PosixSource, Root, SourceOptions};

    const OBJECT: u32 = 1 << 20;
    const BIG: usize = 2 * OBJECT as usize + 5;
    const LITTLE: usize = FILE_BYTES_MIN as usize;
    const SMALL: usize = 300 << 10;
    /// With clear streams it may stay in its file.
    const MEDIUM: usize = 600 << 10;
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

    /// Whether anything can be hashed early here.
    fn is_counted() -> bool {
        let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.write_all(b"x").unwrap();
        page_cache::holds_all_of(&file, 0, 1)
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
        /// A big file, which is three objects, a medium, a small and a little one, one that is too small and one with a hole. `None`
        /// where nothing can be hashed early.
        fn new(kind: HashKind) -> Option<Bed> {
            if !is_counted() {
                return None;
            }
            let directory = tempfile::tempdir_in("/dev/shm").unwrap();
            let path = |name| directory.path().join(name);
            fs::write(path("big"), contents(BIG)).unwrap();
            fs::write(path("medium"), contents(MEDIUM)).unwrap();
            fs::write(path("small"), contents(SMALL)).unwrap();
            fs::write(path("little"), contents(LITTLE)).unwrap();
            fs::write(path("tiny"), contents(FILE_BYTES_MIN as usize - 1)).unwrap();
            File::create(path("sparse")).unwrap().write_all_at(b"x", 3 << 20).unwrap();
            Some(Bed::of(directory, kind, Duration::from_secs(600), 6))
        }

        fn of(directory: tempfile::TempDir, hash: HashKind, within: Duration, expected: usize) -> Bed {
            let root = Root::new(directory.path().to_str().unwrap());
            let options = SourceOptions { hash, in_place: true, ..SourceOptions::default() };
            let source = PosixSource::new(vec![root], options);
            let hashing = source.hash_early(OBJECT, within).unwrap();
            let mut scan = source.scan(Arc::new(AtomicU64::new(1)));
            let mut found = Vec::new();
            while scan.next(&mut found) {}
            let early = Arc::clone(&hashing.0);
            hashing.finder()(&found);
            hashing.start();
            // Where processor time is rationed there is none.
            while Arc::strong_count(&early) < 4 {
                let early = Arc::clone(&early);
                thread::spawn(move || early.run());
            }
            let is_done = |todo: &Todo| todo.waiting() == 0 && todo.busy == 0;
            wait_until(|| is_done(&lock(&early.todo)));
            let bytes = hashing.end();
            // Two threads look every now and then whether they are wanted.
            wait_until(|| Arc::strong_count(&early) == 2);
            let made = lock(early.made.get().unwrap());
            assert_eq!(made.len(), expected);
            assert_eq!(bytes, made.values().map(|made| u64::from(made.length)).sum::<u64>());
            drop(made);
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
            let op = SourceOp::ReadMembers {
                block,
                slot,
                members,
                again,
                on_the_way,
                progress: Progress::default(),
            };
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
            let Some(bed) = Bed::new(kind) else { return lacks(COUNTED) };
            let big = bed.entry("big");
            for (index, bytes) in contents(BIG).chunks(OBJECT as usize).enumerate() {
                let offset = index as u64 * u64::from(OBJECT);
                let made = bed.early.take(&big, offset, bytes.len() as u32, false);
                assert_eq!(made, Some(object_hash(kind, bytes, offset, false)), "{kind:?} at {offset}");
            }
            for (name, size) in [("little", LITTLE), ("small", SMALL), ("medium", MEDIUM)] {
                let made = bed.early.take(&bed.entry(name), 0, size as u32, true);
                assert_eq!(made, Some(whole_hash(kind, &contents(size))), "{kind:?}, {name}");
            }
        }
    }

    #[test]
    fn it_is_told_once_and_what_the_sink_finds_wrong_is_hashed_as_it_is_read() {
        let Some(bed) = Bed::new(HashKind::Blake3) else { return lacks(COUNTED) };
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
        // To the slot, in its file, and in its file to be hashed on the way.
        for (name, size, on_the_way) in [
            ("little", LITTLE, false),
            ("small", SMALL, false),
            ("medium", MEDIUM, false),
            ("small", SMALL, true),
        ] {
            let Some(bed) = Bed::new(HashKind::Blake3) else { return lacks(COUNTED) };
            let member = bed.entry(name);
            bed.forge(&member, 0);
            assert_eq!(bed.member(&member, (false, on_the_way)), Ok(FORGED));
            let hash = whole_hash(HashKind::Blake3, &contents(size));
            assert_eq!(bed.member(&member, (true, on_the_way)), Ok(hash));
        }
    }

    #[test]
    fn it_is_of_one_version_and_one_way_to_cut_it() {
        let Some(bed) = Bed::new(HashKind::Blake3) else { return lacks(COUNTED) };
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
        undisturbed(|| {
            let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let cold = directory.path().join("cold");
            fs::write(&cold, contents(BIG)).unwrap();
            let cold = File::open(cold).unwrap();
            if !local::is_disk(&cold).unwrap() {
                return lacks_here(DISK);
            }
            if !is_counted() {
                return lacks(COUNTED);
            }
            cold.sync_all().unwrap();
            page_cache::drop_all(&cold);
            // The first object is there; to read it must not bring what follows it.
            fadvise(&cold, 0, None, Advice::Random).unwrap();
            cold.read_exact_at(&mut vec![0; OBJECT as usize], 0).unwrap();
            let before = page_cache::pages(&cold);
            Bed::of(directory, HashKind::Blake3, Duration::from_secs(600), 1);
            cached_eq!(page_cache::pages(&cold), before);
        });
    }

    fn nothing(within: Duration, options: SourceOptions) -> Option<HashingEarly> {
        let source = PosixSource::new(vec![Root::new("/dev/shm")], options);
        source.hash_early(OBJECT, within)
    }

    fn some_file() -> Scanned {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(BIG as u64).unwrap();
        let status = crate::source::Status::of(&file).unwrap();
        Scanned::Item(Item::Entry(status.entry(EntryId(1), EntryId::root(0), b"").unwrap()))
    }

    fn found(id: u64, size: u64) -> Scanned {
        let Scanned::Item(Item::Entry(mut entry)) = some_file() else { unreachable!() };
        entry.id = EntryId(id);
        entry.identity.size = size;
        Scanned::Item(Item::Entry(entry))
    }

    #[test]
    fn large_files_come_first_and_others_as_they_were_found() {
        if !is_counted() {
            return lacks(COUNTED);
        }
        let hashing = nothing(Duration::from_secs(600), SourceOptions::default()).unwrap();
        let next = || {
            let piece = hashing.0.next().unwrap();
            (piece.entry.id.0, piece.wanted.offset, piece.wanted.single)
        };
        let (small, large) = (LARGE_BYTES_MIN - 1, LARGE_BYTES_MIN);
        let finder = hashing.finder();
        finder(&[
            found(1, small),
            found(2, 2 * u64::from(OBJECT)),
            found(3, FILE_BYTES_MIN - 1),
            found(4, small),
        ]);
        assert_eq!(next(), (2, 0, false));
        finder(&[found(5, large)]);
        assert_eq!([next(), next(), next()], [(2, OBJECT.into(), false), (5, 0, true), (1, 0, true)]);
        finder(&[found(6, large)]);
        assert_eq!([next(), next()], [(6, 0, true), (4, 0, true)]);
        // One that cannot be read is left; others are not.
        finder(&[found(7, small), found(8, 2 * u64::from(OBJECT)), found(9, large)]);
        assert_eq!(next(), (8, 0, false));
        lock(&hashing.0.todo).leave(EntryId(8));
        assert_eq!([next(), next()], [(9, 0, true), (7, 0, true)]);
        assert_eq!(lock(&hashing.0.todo).waiting(), 0);
    }

    #[test]
    fn no_more_files_wait_than_hashes_are_kept() {
        if !is_counted() {
            return lacks(COUNTED);
        }
        let hashing = nothing(Duration::from_secs(600), SourceOptions::default()).unwrap();
        lock(&hashing.0.todo).begun = HASHES_MAX - 3;
        let finder = hashing.finder();
        (0..5).for_each(|id| finder(&[found(2 * id, FILE_BYTES_MIN), found(2 * id + 1, LARGE_BYTES_MIN)]));
        assert_eq!(lock(&hashing.0.todo).waiting(), 3);
    }

    #[test]
    fn a_thread_naps_after_so_much_work_in_however_small_pieces() {
        let naps = |pieces: usize, bytes: usize| {
            let awake = Awake::default();
            (0..pieces)
                .filter(|_| {
                    awake.nap_after(bytes);
                    awake.0.get() == 0
                })
                .count()
        };
        assert_eq!(naps(4, PIECE_BYTES), 4);
        assert_eq!(naps(64, PIECE_BYTES / 16), 4);
        assert_eq!(naps(15, PIECE_BYTES / 16), 0);
    }

    #[test]
    fn it_has_its_time() {
        for (within, expected) in [(Duration::from_secs(600), true), (Duration::ZERO, false)] {
            let hashing = nothing(within, SourceOptions::default()).unwrap();
            lock(&hashing.0.todo).add(match some_file() {
                Scanned::Item(Item::Entry(entry)) => (Arc::new(entry), OBJECT),
                other => panic!("{other:?}"),
            });
            assert_eq!(hashing.0.next().is_some(), expected);
        }
    }

    #[test]
    fn nothing_is_hashed_early_for_nobody() {
        let none = SourceOptions { hash: HashKind::None, ..SourceOptions::default() };
        assert!(nothing(Duration::from_secs(600), none).is_none());
        let lend = SourceOptions { lend: true, ..SourceOptions::default() };
        assert!(nothing(Duration::from_secs(600), lend).is_none(), "it is hashed where it arrives");
    }

    #[test]
    fn a_file_that_changes_while_it_is_hashed_has_no_hash() {
        let Some(bed) = Bed::new(HashKind::Blake3) else { return lacks(COUNTED) };
        let early = EarlyHashes::new(
            Arc::clone(&bed.early.directories),
            HashKind::Blake3,
            OBJECT,
            Duration::from_secs(600),
        );
        let piece = |offset| {
            let wanted = Wanted { offset, length: OBJECT, single: false, gently: false };
            Piece { entry: bed.entry("big"), wanted }
        };
        let mut last = None;
        assert!(early.hash(&piece(0), &mut last, &Awake::default()).is_ok());
        // It is open now.
        thread::sleep(Duration::from_millis(20));
        File::options().write(true).open(bed.path("big")).unwrap().write_all_at(b"x", 0).unwrap();
        assert_eq!(
            early.hash(&piece(OBJECT.into()), &mut last, &Awake::default()),
            Err(Code::SourceChanged.into())
        );
    }

    #[test]
    fn a_thread_stops_within_an_object_and_takes_no_time_from_anybody() {
        let Some(bed) = Bed::new(HashKind::Blake3) else { return lacks(COUNTED) };
        let directories = Arc::clone(&bed.early.directories);
        let early = EarlyHashes::new(directories, HashKind::Blake3, OBJECT, Duration::ZERO);
        let wanted = Wanted { offset: 0, length: OBJECT, single: false, gently: false };
        let piece = Piece { entry: bed.entry("big"), wanted };
        assert_eq!(early.hash(&piece, &mut None, &Awake::default()), Err(Code::Interrupted.into()));
        let class = thread::spawn(|| {
            give_way();
            // SAFETY: only asks.
            unsafe { libc::sched_getscheduler(0) }
        });
        assert_eq!(class.join().unwrap(), libc::SCHED_IDLE);
    }

    #[test]
    fn nobody_waits_for_a_thread_that_gives_way() {
        let hashing = nothing(Duration::from_secs(600), SourceOptions::default()).unwrap();
        let early = Arc::clone(&hashing.0);
        let (making, todo) = (lock(&early.making), lock(&early.todo));
        hashing.finder()(&[some_file()]);
        assert_eq!(hashing.end(), 0);
        assert!(early.made.get().is_none() && todo.waiting() == 0);
        drop((making, todo));
    }
}
