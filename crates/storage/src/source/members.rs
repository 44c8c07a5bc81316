//! Whole small files, one behind the other into a slot.
//!
//! Five system calls a file: open, status, read, status, close. The second status is what proves that the bytes
//! belong to one version: it is taken after the last byte was read and must equal what the scan saw. A member that is
//! hashed on its way is read by whoever sends it, and so the second status is taken there. Of one that was hashed early it was
//! taken then, and only bytes with that hash are accepted.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use haul_buffers::{FileRange, Onlooker, Pool};
use haul_model::limits::{GENTLE_PIECE_BYTES, HASHES_FOLLOWING_MAX};
use haul_model::op::{MemberRead, Progress};
use haul_model::{Code, Entry, EntryId, Failure, Hash, HashKind, Identity, SlotId};
use rustix::io::{Errno, pread, read, retry_on_intr};

use super::directories::{Directories, Location};
use super::early::{EarlyHashes, FILE_BYTES_MIN};
use super::files::{Noatime, check_version, open_regular};
use super::objects::{Wanted, hash_object};
use super::status::{self, Status};
use crate::absent::Passing;
use crate::confine::{check_name, source_failure};
use crate::hashing::{ObjectHasher, TOGETHER_BYTES, are_better_together, whole_hash, whole_hashes};
use crate::leases::{Leases, patiently};
use crate::{faults, local, page_cache};

/// Lets `read` fill one space after the other in the slot: as many bytes as the entry has, and none where it fails.
///
/// How many bytes are used, and one result for each member. Those in the slot that `read` has not hashed are hashed here,
/// together with their neighbours.
pub(crate) fn pack(
    pool: &Pool,
    (slot, kind): (SlotId, HashKind),
    (members, progress): (&[Arc<Entry>], &Progress),
    mut read: impl FnMut(&Entry, &mut [u8]) -> Result<Packed, Failure>,
) -> (u32, Vec<Result<MemberRead, Failure>>) {
    let Some(mut lease) = pool.lease(slot) else {
        return (0, vec![Err(Code::Internal.into()); members.len()]);
    };
    lease.set_lent(false);
    let mut used = 0;
    let (mut ranges, mut unhashed) = (Vec::new(), Unhashed::default());
    let mut results = Vec::with_capacity(members.len());
    for entry in members {
        progress.begins(results.len());
        let mut put = || {
            let size = u32::try_from(entry.size()).ok();
            let end = size.and_then(|size| size.checked_add(used)).ok_or(Failure::new(Code::Internal))?;
            let space = lease.get_mut(used as usize..end as usize).ok_or(Failure::new(Code::Internal))?;
            let length = space.len();
            let Packed { hash, file, onlooker } = read(entry, space)?;
            let offset = std::mem::replace(&mut used, end);
            if hash.is_none() && onlooker.is_none() {
                unhashed.add(results.len(), offset as usize..end as usize);
            }
            if let Some(file) = file {
                ranges.push(FileRange { start: offset as usize, length, file, offset: 0, onlooker });
            }
            Ok(MemberRead { offset, hash })
        };
        let result = put();
        results.push(result);
        if unhashed.bytes >= TOGETHER_BYTES {
            unhashed.hash(kind, &mut lease, &mut results);
        }
    }
    unhashed.hash(kind, &mut lease, &mut results);
    lease.set_file_ranges(ranges);
    (used, results)
}

/// Members that are in the slot and are to be hashed.
#[derive(Default)]
struct Unhashed {
    /// Their numbers, and where they are.
    members: Vec<(usize, Range<usize>)>,
    bytes: usize,
}

impl Unhashed {
    fn add(&mut self, number: usize, range: Range<usize>) {
        self.bytes += range.len();
        self.members.push((number, range));
    }

    /// All of them, which are gone then.
    fn hash(&mut self, kind: HashKind, slot: &mut [u8], results: &mut [Result<MemberRead, Failure>]) {
        let contents: Vec<&[u8]> = self.members.iter().map(|(_, range)| &slot[range.clone()]).collect();
        let hashes = whole_hashes(kind, &contents);
        for ((number, range), made) in self.members.drain(..).zip(hashes) {
            faults::source_bytes_hashed(&mut slot[range]);
            if let Ok(MemberRead { hash, .. }) = &mut results[number] {
                *hash = Some(made);
            }
        }
        self.bytes = 0;
    }
}

/// A member that was read.
pub(crate) struct Packed {
    /// Of its bytes, unless they are hashed later: on their way if there is an onlooker, else in the slot.
    pub hash: Option<Hash>,
    /// They were left there; else they are in the slot.
    pub file: Option<Arc<OwnedFd>>,
    /// Sees them on their way.
    pub onlooker: Option<Box<dyn Onlooker>>,
}

impl Packed {
    /// Its bytes are in the slot.
    pub fn in_slot(hash: Option<Hash>) -> Self {
        Packed { hash, file: None, onlooker: None }
    }
}

/// Hashes a member on its way, and looks then whether the file is still the version that was announced.
struct MemberOnlooker {
    hasher: ObjectHasher,
    file: Arc<OwnedFd>,
    identity: Identity,
}

impl Onlooker for MemberOnlooker {
    fn see(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    fn hash(self: Box<Self>) -> Hash {
        let hash = self.hasher.finish();
        match check_version(&self.file, &self.identity) {
            Ok(_) => hash,
            // The sink refuses the bytes and asks again; then the file is looked at before it is sent.
            Err(_) => Hash(hash.0.map(|byte| !byte)),
        }
    }
}

/// Of one bundle; each keeps a file open until it is sent.
const IN_PLACE_MAX: usize = 16;
const _: () = assert!(IN_PLACE_MAX <= HASHES_FOLLOWING_MAX);

/// Which members stay in their files: from how many bytes on.
#[derive(Clone, Copy, Default)]
pub(crate) struct Staying {
    /// They are hashed here.
    pub hashed: Option<usize>,
    /// Those that are in memory are hashed on their way.
    pub hashed_on_the_way: Option<usize>,
}

/// Reads files of one bundle. Neighbours mostly share their directory, so the last one stays at hand.
pub(crate) struct MemberReader<'a> {
    directories: &'a Directories,
    noatime: &'a Noatime,
    hash: HashKind,
    /// What was hashed before.
    early: Option<&'a EarlyHashes>,
    staying: Staying,
    /// So many more may stay in their files.
    left: usize,
    last: Option<(EntryId, Arc<OwnedFd>)>,
    /// The device of the last file, and whether that is memory.
    memory: Option<(u64, bool)>,
    /// And whether this kernel knows all that is true of it.
    coherent: Option<(u64, bool)>,
}

impl<'a> MemberReader<'a> {
    /// For one bundle.
    pub fn new(directories: &'a Directories, noatime: &'a Noatime, hash: HashKind, staying: Staying) -> Self {
        MemberReader {
            directories,
            noatime,
            hash,
            early: None,
            staying,
            left: IN_PLACE_MAX,
            last: None,
            memory: None,
            coherent: None,
        }
    }

    /// Hashes that are here are not made again.
    pub fn with_early(self, early: Option<&'a EarlyHashes>) -> Self {
        MemberReader { early, ..self }
    }

    /// Reads the file to `space`, which is as long as the file was when it was scanned.
    pub fn read(&mut self, entry: &Entry, space: &mut [u8]) -> Result<Packed, Failure> {
        let (file, status) = self.open(entry)?;
        let length = u32::try_from(space.len()).map_err(|_| Failure::new(Code::Internal))?;
        let early = self.early.filter(|_| u64::from(length) >= FILE_BYTES_MIN);
        let early = early.and_then(|early| early.take(entry, 0, length, true));
        let may_stay = length > 0 && self.left > 0;
        let large = |least: Option<usize>| may_stay && least.is_some_and(|least| space.len() >= least);
        // Streams do not wait for storage.
        if large(self.staying.hashed_on_the_way)
            && local::is_known(&file).unwrap_or(false)
            && page_cache::holds_all_of(&file, 0, length)
        {
            faults::source_read().map_err(source_failure)?;
            self.left -= 1;
            let (file, identity) = (Arc::new(file), entry.identity);
            if early.is_some() {
                return Ok(Packed { hash: early, file: Some(file), onlooker: None });
            }
            let hasher = ObjectHasher::new(self.hash, 0, length, true)?;
            let onlooker: Box<dyn Onlooker> =
                Box::new(MemberOnlooker { hasher, file: Arc::clone(&file), identity });
            return Ok(Packed { hash: None, file: Some(file), onlooker: Some(onlooker) });
        }
        let passing = self.passing(&file, &status);
        // What is still in its file when it is sent cannot be dropped from the page cache here.
        let stays = large(self.staying.hashed) && !passing.goes();
        if stays && local::is_known(&file).unwrap_or(false) {
            drop(passing);
            self.left -= 1;
            let wanted = Wanted { offset: 0, length, single: true, gently: false };
            let hash = match early {
                Some(hash) => hash,
                None => hash_object(self.hash, &file, wanted)?,
            };
            check_version(&file, &entry.identity)?;
            return Ok(Packed { hash: Some(hash), file: Some(Arc::new(file)), onlooker: None });
        }
        let hash = match early {
            Some(hash) => read_hashed(HashKind::None, &file, space).map(|_| Some(hash)),
            // With its neighbours.
            None if are_better_together(self.hash, space.len()) => read_unhashed(&file, space).map(|()| None),
            None => read_hashed(self.hash, &file, space).map(Some),
        }?;
        let is_coherent = self.is_coherent(&file, &status);
        if !is_coherent {
            status::refresh(&file);
        }
        // Nothing lies between the first status and the second where nothing is read.
        if !is_coherent || !space.is_empty() {
            check_version(&file, &entry.identity)?;
        }
        if space.is_empty() {
            is_empty(&file, &entry.identity)?;
        } else if !is_coherent {
            ends_as_it_says(&file, &entry.identity)?;
        }
        Ok(Packed::in_slot(hash))
    }

    /// Opens the file, if it is the version of the entry.
    pub fn open(&mut self, entry: &Entry) -> Result<(OwnedFd, Status), Failure> {
        let location = self.locate(entry)?;
        open_regular(self.directories, &location, self.noatime, entry, Leases::Awaited)
    }

    /// Is what is said of a file there what is true now? A client of a network file system may have been told a while ago.
    fn is_coherent(&mut self, file: &OwnedFd, status: &Status) -> bool {
        let device = status.place().device;
        let coherent = match self.coherent {
            Some((known, coherent)) if known == device => coherent,
            _ => local::is_known(file).unwrap_or(false),
        };
        self.coherent = Some((device, coherent));
        coherent
    }

    /// A file that was opened, before it is read.
    pub fn passing<'f>(&mut self, file: &'f OwnedFd, status: &Status) -> Passing<&'f OwnedFd> {
        let device = status.place().device;
        let in_memory = match self.memory {
            Some((known, in_memory)) if known == device => in_memory,
            _ => local::is_memory(file).unwrap_or(false),
        };
        self.memory = Some((device, in_memory));
        if in_memory { Passing::in_memory(file) } else { Passing::new(file, status.identity().size) }
    }

    fn locate<'e>(&mut self, entry: &'e Entry) -> Result<Location<'e>, Failure>
    where
        'a: 'e,
    {
        if let Some((parent, held)) = &self.last
            && *parent == entry.parent
        {
            check_name(&entry.name)?;
            return Ok(Location::held(Arc::clone(held), &entry.name));
        }
        let location = self.directories.locate(entry)?;
        self.last = location.held_directory().map(|held| (entry.parent, held));
        Ok(location)
    }
}

/// A file that shows no size may have contents all the same, as those of /proc do: they are not what it says that it has. One that has
/// to be waited for (`/proc/kmsg`) has none that anybody could copy.
fn is_empty(file: &OwnedFd, identity: &Identity) -> Result<(), Failure> {
    match retry_on_intr(|| read(file, &mut [0; 1])) {
        Ok(0) => Ok(()),
        // It may just have grown.
        Ok(_) => {
            status::refresh(file);
            check_version(file, identity)?;
            Err(Failure::os(Code::SourceRead, Errno::OPNOTSUPP.raw_os_error()))
        }
        Err(errno) if errno != Errno::AGAIN => Err(source_failure(errno)),
        _ => Err(Failure::os(Code::SourceRead, Errno::OPNOTSUPP.raw_os_error())),
    }
}

/// The same for one that shows another size than it has, as it is stored, or as somebody guesses: what is behind that would be left
/// out.
pub(super) fn ends_as_it_says(file: &OwnedFd, identity: &Identity) -> Result<(), Failure> {
    match retry_on_intr(|| pread(file, &mut [0; 1], identity.size)) {
        Ok(1) => {
            // It may just have grown, and its client may not know.
            status::refresh(file);
            check_version(file, identity)?;
            Err(Failure::os(Code::SourceRead, Errno::OPNOTSUPP.raw_os_error()))
        }
        _ => Ok(()),
    }
}

fn read_unhashed(file: impl AsFd, space: &mut [u8]) -> Result<(), Failure> {
    read_exactly(&file, space)?;
    faults::source_bytes_read(space);
    Ok(())
}

fn read_hashed(kind: HashKind, file: impl AsFd, space: &mut [u8]) -> Result<Hash, Failure> {
    if space.len() <= GENTLE_PIECE_BYTES {
        read_unhashed(&file, space)?;
        let hash = whole_hash(kind, space);
        faults::source_bytes_hashed(space);
        return Ok(hash);
    }
    let length = u32::try_from(space.len()).map_err(|_| Failure::new(Code::Internal))?;
    let mut hasher = ObjectHasher::new(kind, 0, length, true)?;
    for piece in space.chunks_mut(GENTLE_PIECE_BYTES) {
        read_unhashed(&file, piece)?;
        hasher.update(piece);
        faults::source_bytes_hashed(piece);
    }
    Ok(hasher.finish())
}

fn read_exactly(file: &impl AsFd, mut rest: &mut [u8]) -> Result<(), Failure> {
    while !rest.is_empty() {
        faults::source_read().map_err(source_failure)?;
        match patiently(file, || read(file, &mut *rest)).map_err(source_failure)? {
            0 => return Err(Code::SourceChanged.into()),
            count => rest = rest.get_mut(count..).ok_or(Failure::new(Code::Internal))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::moments::{Moment, once};
    use crate::source::Root;
    use std::fs;
    use std::io::Write;
    use std::path::{Path, PathBuf};

    /// One SOURCE that is a file, and its entry.
    fn file(scratch: &Path, size: usize) -> (Directories, Entry, PathBuf) {
        let path = scratch.join("file");
        fs::write(&path, vec![3; size]).unwrap();
        let root = Root::new(path.to_str().unwrap());
        let status = Status::of_name(rustix::fs::CWD, &path, false).unwrap();
        let entry = status.entry(EntryId(1), EntryId::root(0), b"").unwrap();
        (Directories::new(vec![root], false, 4), entry, path)
    }

    fn read(directories: &Directories, entry: &Entry) -> Result<Hash, Failure> {
        let noatime = Noatime::new();
        let mut reader = MemberReader::new(directories, &noatime, HashKind::Blake3, Staying::default());
        let pool = Pool::new(1, (entry.size() as u32).next_multiple_of(4096)).unwrap();
        let members = [Arc::new(entry.clone())];
        let (_, results) =
            pack(&pool, (SlotId(0), HashKind::Blake3), (&members, &Progress::default()), |entry, space| {
                reader.read(entry, space)
            });
        results[0].map(|read| read.hash.expect("it is hashed here"))
    }

    /// The kernel's clock must move on, or nothing could tell the versions apart.
    fn wait_for_the_clock(scratch: &Path, entry: &Entry) {
        let clock = scratch.join("clock");
        loop {
            fs::write(&clock, b"").unwrap();
            let now = Status::of_name(rustix::fs::CWD, &clock, false).unwrap().identity();
            if now.ctime > entry.identity.ctime {
                return;
            }
        }
    }

    type Change = (&'static str, fn(&Path));

    /// What can be done to a file between two system calls of the reader.
    const CHANGES: [Change; 5] = [
        ("grow", |path| fs::File::options().append(true).open(path).unwrap().write_all(b"x").unwrap()),
        ("shrink", |path| fs::File::options().write(true).open(path).unwrap().set_len(1).unwrap()),
        ("rewrite", |path| fs::File::options().write(true).open(path).unwrap().write_all(b"y").unwrap()),
        ("replace", |path| {
            fs::write(path.with_extension("new"), b"other").unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        }),
        ("vanish", |path| fs::remove_file(path).unwrap()),
    ];

    /// As `/proc/kmsg` does, which shows no size.
    #[test]
    fn what_keeps_its_readers_waiting_is_not_waited_for() {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let nothing = haul_model::Identity::default();
        let failure = is_empty(&read, &nothing).unwrap_err();
        assert_eq!(failure, Failure::os(Code::SourceRead, Errno::OPNOTSUPP.raw_os_error()));
        drop(write);
        assert_eq!(is_empty(&read, &nothing), Ok(()));
    }

    #[test]
    fn what_was_empty_and_grows_has_changed() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("log");
        fs::write(&path, b"").unwrap();
        let file: OwnedFd = fs::File::open(&path).unwrap().into();
        let identity = Status::of(&file).unwrap().identity();
        assert_eq!(is_empty(&file, &identity), Ok(()));
        fs::write(&path, b"x").unwrap();
        assert_eq!(is_empty(&file, &identity), Err(Code::SourceChanged.into()));
    }

    #[test]
    fn a_change_at_any_moment_of_the_read_is_noticed() {
        // One read, and several with a change between them.
        for size in [1000, 3 * GENTLE_PIECE_BYTES + 5] {
            for moment in [Moment::Read, Moment::Arrived] {
                for (name, change) in CHANGES {
                    let scratch = tempfile::tempdir().unwrap();
                    let (directories, entry, path) = file(scratch.path(), size);
                    assert_eq!(read(&directories, &entry), Ok(whole_hash(HashKind::Blake3, &vec![3; size])));
                    wait_for_the_clock(scratch.path(), &entry);
                    once(moment, move || change(&path));
                    let result = read(&directories, &entry);
                    assert_eq!(
                        result,
                        Err(Code::SourceChanged.into()),
                        "{name} at {moment:?} of {size} bytes"
                    );
                }
            }
        }
    }

    /// A file that a server has, and that another client changes: what is known of it here is true for a second.
    #[test]
    fn a_change_by_another_client_is_noticed_at_once() {
        if !rustix::process::geteuid().is_root() {
            return haul_testkit::lacks("root");
        }
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let options = haul_stripefs::Options::new(vec![at("target")], at("mds"));
        let filesystem = haul_stripefs::StripeFs::open(&options).unwrap();
        fs::create_dir(at("mounted")).unwrap();
        let _mount = haul_stripefs::Mount::new(&filesystem, &at("mounted")).expect("FUSE can be mounted");
        let (directories, entry, _) = file(&at("mounted"), 1000);
        // A read would make attributes out of date by itself, for its atime; not where nothing can be written.
        rustix::mount::mount_remount(at("mounted"), rustix::mount::MountFlags::RDONLY, c"").unwrap();
        assert!(read(&directories, &entry).is_ok());
        let at_the_server = at("mds/tree/file");
        once(Moment::Arrived, move || {
            let file = fs::File::options().write(true).open(at_the_server).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
        });
        assert_eq!(read(&directories, &entry), Err(Code::SourceChanged.into()));
    }

    /// Small and large, empty, failed, left in its file, known: each has its own hash, whoever makes it.
    #[test]
    fn neighbours_of_all_kinds_have_their_own_hashes() {
        let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
        let sizes = [700, 90_000, 0, 3000, 5, 40_000, 1024, 300_000, 2000];
        let content = |number: usize| vec![number as u8; sizes[number]];
        let mut roots = Vec::new();
        let mut members = Vec::new();
        for number in 0..sizes.len() {
            let path = scratch.path().join(number.to_string());
            fs::write(&path, content(number)).unwrap();
            let status = Status::of_name(rustix::fs::CWD, &path, false).unwrap();
            let (id, root) = (EntryId(number as u64 + 1), EntryId::root(number as u32));
            members.push(status.entry(id, root, b"").unwrap());
            roots.push(Root::new(path.to_str().unwrap()));
        }
        const FAILED: usize = 3;
        members[FAILED].identity.mtime.nanos ^= 1;
        let members: Vec<_> = members.into_iter().map(Arc::new).collect();
        let directories = Directories::new(roots, false, 4);
        let (noatime, pool) = (Noatime::new(), Pool::new(1, 1 << 20).unwrap());
        for kind in [HashKind::Blake3, HashKind::Xxh3] {
            // The one of 300,000 bytes stays in its file.
            let staying = Staying { hashed: Some(200_000), hashed_on_the_way: None };
            let mut reader = MemberReader::new(&directories, &noatime, kind, staying);
            let known = Hash([9; 32]);
            let (_, results) =
                pack(&pool, (SlotId(0), kind), (&members, &Progress::default()), |entry, space| {
                    let packed = reader.read(entry, space)?;
                    assert_eq!(packed.file.is_some(), space.len() == 300_000);
                    Ok(if space.len() == 5 { Packed::in_slot(Some(known)) } else { packed })
                });
            let mut at = 0;
            for (number, result) in results.into_iter().enumerate() {
                if number == FAILED {
                    assert_eq!(result, Err(Code::SourceChanged.into()));
                    continue;
                }
                let expected = if sizes[number] == 5 { known } else { whole_hash(kind, &content(number)) };
                assert_eq!(result, Ok(MemberRead { offset: at, hash: Some(expected) }), "{kind:?}, {number}");
                at += sizes[number] as u32;
            }
        }
    }

    /// As it leaves its file, once by itself and then with a change between two pieces or behind the last one: no hash that is told
    /// then is that of any bytes.
    #[test]
    fn a_change_until_the_last_byte_has_left_is_noticed_too() {
        const SIZE: usize = 300_000;
        let on_the_way = Staying { hashed: None, hashed_on_the_way: Some(1000) };
        for kind in [HashKind::Blake3, HashKind::Xxh3] {
            for (name, change) in CHANGES {
                for changes_at in [None, Some(0), Some(SIZE / 2), Some(SIZE)] {
                    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
                    let (directories, entry, path) = file(scratch.path(), SIZE);
                    let noatime = Noatime::new();
                    let mut reader = MemberReader::new(&directories, &noatime, kind, on_the_way);
                    let packed = reader.read(&entry, &mut vec![0; SIZE]).unwrap();
                    let (None, Some(file), Some(mut onlooker)) = (packed.hash, packed.file, packed.onlooker)
                    else {
                        panic!("it is in memory, so it may stay");
                    };
                    wait_for_the_clock(scratch.path(), &entry);
                    let mut sent = Vec::new();
                    for at in (0..=SIZE).step_by(1000) {
                        if changes_at == Some(at) {
                            change(&path);
                        }
                        // What it has no more leaves as zeros.
                        let mut piece = vec![0; 1000.min(SIZE - at)];
                        let mut filled = 0;
                        while let count @ 1.. =
                            rustix::io::pread(&*file, &mut piece[filled..], (at + filled) as u64).unwrap()
                        {
                            filled += count;
                        }
                        onlooker.see(&piece);
                        sent.extend(piece);
                    }
                    let fits = onlooker.hash() == whole_hash(kind, &sent);
                    assert_eq!(fits, changes_at.is_none(), "{kind:?}, {name} at {changes_at:?}");
                }
            }
        }
    }

    #[test]
    fn a_change_while_it_is_hashed_in_its_file_is_noticed() {
        for (name, change) in CHANGES {
            let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
            let (directories, entry, path) = file(scratch.path(), 300_000);
            let noatime = Noatime::new();
            let staying = Staying { hashed: Some(1000), hashed_on_the_way: None };
            let mut reader = MemberReader::new(&directories, &noatime, HashKind::Blake3, staying);
            assert!(
                reader.read(&entry, &mut vec![0; 300_000]).unwrap().file.is_some(),
                "it stays in its file"
            );
            wait_for_the_clock(scratch.path(), &entry);
            once(Moment::Read, move || change(&path));
            let result = reader.read(&entry, &mut vec![0; 300_000]).map(|packed| packed.hash);
            assert_eq!(result, Err(Code::SourceChanged.into()), "{name}");
        }
    }

    #[test]
    fn few_stay_that_are_hashed_here() {
        let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
        let (directories, entry, _) = file(scratch.path(), 1000);
        let noatime = Noatime::new();
        let staying = Staying { hashed: Some(1000), hashed_on_the_way: None };
        let mut reader = MemberReader::new(&directories, &noatime, HashKind::Blake3, staying);
        let mut stays = || reader.read(&entry, &mut vec![0; 1000]).unwrap().file.is_some();
        assert_eq!((0..2 * IN_PLACE_MAX).filter(|_| stays()).count(), IN_PLACE_MAX);
    }

    #[test]
    fn what_is_in_memory_says_nothing_of_another_device() {
        let (memory, disk) = (
            tempfile::tempdir_in("/dev/shm").unwrap(),
            tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap(),
        );
        let (directories, _, _) = file(memory.path(), 1000);
        let noatime = Noatime::new();
        let mut reader = MemberReader::new(&directories, &noatime, HashKind::Blake3, Staying::default());
        let open = |path: &Path| {
            fs::write(path, vec![1; 50_000]).unwrap();
            let file = fs::File::open(path).unwrap();
            file.sync_all().unwrap();
            page_cache::drop_all(&file);
            let file = OwnedFd::from(file);
            let status = Status::of(&file).unwrap();
            (file, status)
        };
        let (in_memory, on_disk) = (open(&memory.path().join("other")), open(&disk.path().join("file")));
        if !local::is_disk(&on_disk.0).unwrap() {
            return haul_testkit::lacks_here(haul_testkit::DISK);
        }
        assert!(!reader.passing(&in_memory.0, &in_memory.1).goes());
        assert!(reader.passing(&on_disk.0, &on_disk.1).goes(), "it is dropped once it was read");
    }

    #[test]
    fn what_comes_in_parts_is_read_to_its_end() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut space = [0; 10];
        std::thread::scope(|scope| {
            scope.spawn(move || {
                writer.write_all(b"12345").unwrap();
                std::thread::sleep(std::time::Duration::from_millis(50));
                writer.write_all(b"67890").unwrap();
            });
            read_exactly(&reader, &mut space).unwrap();
        });
        assert_eq!(&space, b"1234567890");
    }

    #[test]
    fn few_stay_and_only_what_is_worth_it() {
        let staying = Staying { hashed: None, hashed_on_the_way: Some(1000) };
        for (size, expected) in [(1000, IN_PLACE_MAX), (999, 0)] {
            let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
            let (directories, entry, _) = file(scratch.path(), size);
            let noatime = Noatime::new();
            let mut reader = MemberReader::new(&directories, &noatime, HashKind::Blake3, staying);
            let mut stays = || {
                let packed = reader.read(&entry, &mut vec![0; size]).unwrap();
                assert_eq!(packed.onlooker.is_some(), packed.file.is_some(), "hashed on its way if it stays");
                assert!(packed.hash.is_none() || packed.file.is_none());
                packed.file.is_some()
            };
            // Each keeps a file open.
            assert_eq!((0..2 * IN_PLACE_MAX).filter(|_| stays()).count(), expected, "{size} bytes");
        }
    }

    #[test]
    fn entries_that_no_scan_can_have_made_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let (directories, entry, path) = file(scratch.path(), 10);
        let held = rustix::fs::open(
            scratch.path(),
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY,
            rustix::fs::Mode::empty(),
        );
        let held = Arc::new(held.unwrap());
        let place = Status::of(&held).unwrap().place();
        directories.enter(EntryId(5), EntryId::root(0), b"", place, Some(held));
        let below = |name: &[u8]| Entry { parent: EntryId(5), name: name.into(), ..entry.clone() };
        assert!(read(&directories, &below(b"file")).is_ok());
        for name in [&b"../file"[..], b"..", b".", b"", b"/etc/passwd", b"x/../file", b"file\0"] {
            assert_eq!(read(&directories, &below(name)), Err(Code::Confinement.into()), "{name:?}");
        }
        assert_eq!(
            read(&directories, &Entry { parent: EntryId::root(1), ..entry.clone() }),
            Err(Code::Internal.into())
        );
        assert_eq!(
            read(&directories, &Entry { parent: EntryId(6), ..below(b"file") }),
            Err(Code::Internal.into())
        );
        drop(path);
    }
}
