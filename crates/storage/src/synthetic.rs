//! A source without a disk: any number of files of any sizes whose content follows from a seed.
//!
//! For the bounds of memory and the figures of the object log, where a real dataset of that size is in the way: a
//! million small files, or a hundred of 1 GB. Nothing is kept per file; name, size and bytes are computed, and so is the
//! check of what arrived.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use haul_buffers::Pool;
use haul_model::op::{SourceDone, SourceOp};
use haul_model::{
    Attributes, Code, Entry, EntryId, Failure, Hash, HashKind, Identity, Item, Kind, SlotId, Timestamp,
};

use crate::hashing::{ObjectHasher, PIECE_BYTES, whole_hash};
use crate::scan::{SCAN_BATCH, Scan, Scanned};
use crate::source::{Packed, pack};
use crate::{SourceStorage, spill};

/// What the dataset is.
///
/// One SOURCE, a directory, with the directories `d0`, `d1`, ... in it, and in these the files `f0`, `f1`, ...,
/// numbered through.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SyntheticSpec {
    /// Other bytes for another seed.
    pub seed: u64,
    /// How many files.
    pub files: u64,
    /// Files in each directory; at least 1.
    pub files_per_directory: u64,
    /// How large they are.
    pub sizes: Sizes,
}

/// Sizes of files by their number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sizes {
    /// All the same.
    Fixed(u64),
    /// One after the other, again and again; all 0 if there are none.
    Cycle(Vec<u64>),
    /// Anything from the first to the last, both included.
    Uniform(u64, u64),
}

impl SyntheticSpec {
    /// How many directories hold files.
    pub fn directories(&self) -> u64 {
        self.files.div_ceil(self.files_per_directory.max(1))
    }

    /// Bytes of the file with this number.
    pub fn size(&self, file: u64) -> u64 {
        match &self.sizes {
            Sizes::Fixed(size) => *size,
            Sizes::Cycle(sizes) if sizes.is_empty() => 0,
            Sizes::Cycle(sizes) => sizes[(file % sizes.len() as u64) as usize],
            Sizes::Uniform(low, high) => {
                let choices = high.saturating_sub(*low).saturating_add(1);
                low + mix(self.seed ^ mix(file)) % choices
            }
        }
    }

    /// Bytes of all files.
    pub fn bytes_total(&self) -> u64 {
        match &self.sizes {
            Sizes::Fixed(size) => size.saturating_mul(self.files),
            _ => (0..self.files).map(|file| self.size(file)).sum(),
        }
    }

    /// Where the file stands below the SOURCE.
    pub fn path(&self, file: u64) -> String {
        format!("d{}/f{file}", file / self.files_per_directory.max(1))
    }

    /// The number of the file at this path below the SOURCE.
    pub fn file_at(&self, path: &[u8]) -> Option<u64> {
        let name = path.rsplit(|byte| *byte == b'/').next()?;
        let file = std::str::from_utf8(name.strip_prefix(b"f")?).ok()?.parse().ok()?;
        (file < self.files && self.path(file).as_bytes() == path).then_some(file)
    }

    /// The bytes of a file from `offset` on.
    pub fn fill(&self, file: u64, offset: u64, bytes: &mut [u8]) {
        let key = mix(self.seed ^ mix(file.wrapping_add(1)));
        let lead = (offset.wrapping_neg() % 8).min(bytes.len() as u64) as usize;
        let (head, body) = bytes.split_at_mut(lead);
        // The head is the end of the word that `offset` is in the middle of, or part of it.
        let within = (offset % 8) as usize;
        let first = word(key, offset / 8).to_le_bytes();
        for (to, from) in head.iter_mut().zip(first.iter().skip(within)) {
            *to = *from;
        }
        let start = offset.div_ceil(8);
        let mut words = body.chunks_exact_mut(8);
        let mut index = start;
        for space in &mut words {
            space.copy_from_slice(&word(key, index).to_le_bytes());
            index += 1;
        }
        for (to, from) in words.into_remainder().iter_mut().zip(word(key, index).to_le_bytes()) {
            *to = from;
        }
    }

    /// Are these the bytes of the file from `offset` on?
    pub fn check(&self, file: u64, offset: u64, bytes: &[u8]) -> bool {
        let mut expected = [0; 4096];
        let mut at = offset;
        bytes.chunks(expected.len()).all(|piece| {
            let expected = &mut expected[..piece.len()];
            self.fill(file, at, expected);
            at += piece.len() as u64;
            expected == piece
        }) && at <= self.size(file)
    }

    /// Is the directory `copy` what the SOURCE is, nothing less and nothing more? The error names the first difference.
    pub fn check_tree(&self, copy: &Path) -> io::Result<()> {
        let mut directories = 0;
        let mut files = 0;
        for directory in std::fs::read_dir(copy)? {
            let directory = directory?;
            directories += 1;
            for file in std::fs::read_dir(directory.path())? {
                let path = file?.path();
                files += 1;
                let below = path.strip_prefix(copy).map_err(io::Error::other)?;
                let number = self.file_at(below.as_os_str().as_encoded_bytes());
                let number = number.ok_or_else(|| difference(&path, "is not part of the dataset"))?;
                self.check_file(number, &path)?;
            }
        }
        if (directories, files) != (self.directories(), self.files) {
            let found = format!("{directories} directories and {files} files");
            return Err(difference(copy, &format!("has {found}, the dataset has other numbers")));
        }
        Ok(())
    }

    fn check_file(&self, number: u64, path: &Path) -> io::Result<()> {
        let mut file = File::open(path)?;
        let mut piece = vec![0; 64 << 10];
        let mut at = 0;
        loop {
            match file.read(&mut piece)? {
                0 if at == self.size(number) => return Ok(()),
                0 => return Err(difference(path, &format!("has {at} bytes"))),
                count if !self.check(number, at, &piece[..count]) => {
                    return Err(difference(path, &format!("has other bytes behind {at}")));
                }
                count => at += count as u64,
            }
        }
    }

    fn file_entry(&self, file: u64, id: EntryId, parent: EntryId) -> Entry {
        let mtime = Timestamp { seconds: 1_600_000_000 + (file % 1_000_000) as i64, nanos: 123_456_789 };
        Entry {
            id,
            parent,
            name: format!("f{file}").into_bytes().into(),
            kind: Kind::File,
            attributes: Attributes { mode: 0o644, uid: 0, gid: 0, mtime, atime: mtime },
            identity: Identity { size: self.size(file), mtime, ctime: mtime, inode: file + 1 },
            links: 1,
            link_target: Box::default(),
        }
    }

    /// The file that the entry was made for.
    fn file_of(&self, entry: &Entry) -> Result<u64, Failure> {
        let file = entry.identity.inode.wrapping_sub(1);
        if file >= self.files {
            return Err(Code::SourceVanished.into());
        }
        let same = self.file_entry(file, entry.id, entry.parent).identity == entry.identity;
        if same { Ok(file) } else { Err(Code::SourceChanged.into()) }
    }
}

fn difference(path: &Path, what: &str) -> io::Error {
    io::Error::other(format!("{} {what}", path.display()))
}

/// The finaliser of SplitMix64: every bit of the result depends on every bit of the number.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Half of [`mix`]: enough that no two words of a dataset are alike, and as fast as memory.
fn word(key: u64, index: u64) -> u64 {
    let number = key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (number ^ (number >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// The source of a [`SyntheticSpec`].
#[derive(Clone, Debug)]
pub struct SyntheticSource {
    spec: Arc<SyntheticSpec>,
    hash: HashKind,
}

impl SyntheticSource {
    /// No file is made.
    pub fn new(spec: SyntheticSpec) -> Self {
        SyntheticSource { spec: Arc::new(spec), hash: HashKind::default() }
    }

    /// Contents are hashed so.
    pub fn hashed(self, hash: HashKind) -> Self {
        SyntheticSource { hash, ..self }
    }

    /// What the dataset is.
    pub fn spec(&self) -> &SyntheticSpec {
        &self.spec
    }

    /// Walks the dataset. `ids` is the next free entry id.
    pub fn scan(&self, ids: Arc<AtomicU64>) -> SyntheticScan {
        SyntheticScan {
            spec: Arc::clone(&self.spec),
            ids,
            top: None,
            directory: None,
            next_file: 0,
            ended: false,
        }
    }

    fn read_object(
        &self,
        entry: &Entry,
        (offset, length): (u64, u32),
        single: bool,
        slot: SlotId,
        pool: &Pool,
    ) -> Result<Hash, Failure> {
        let file = self.spec.file_of(entry)?;
        if offset.saturating_add(length.into()) > entry.size() {
            return Err(Code::SourceChanged.into());
        }
        let mut lease = pool.lease(slot).ok_or(Failure::new(Code::Internal))?;
        let space = lease.get_mut(..length as usize).ok_or(Failure::new(Code::Internal))?;
        self.produce(file, offset, space, single)
    }

    fn produce(&self, file: u64, offset: u64, space: &mut [u8], single: bool) -> Result<Hash, Failure> {
        let length = u32::try_from(space.len()).map_err(|_| Failure::new(Code::Internal))?;
        let mut hasher = ObjectHasher::new(self.hash, offset, length, single)?;
        let mut at = offset;
        for piece in space.chunks_mut(PIECE_BYTES) {
            self.spec.fill(file, at, piece);
            hasher.update(piece);
            at += piece.len() as u64;
        }
        Ok(hasher.finish())
    }

    fn read_member(&self, entry: &Entry, space: &mut [u8]) -> Result<Hash, Failure> {
        let file = self.spec.file_of(entry)?;
        if space.is_empty() {
            return Ok(whole_hash(self.hash, b""));
        }
        self.produce(file, 0, space, true)
    }

    fn restat(&self, entry: &Entry) -> Result<Box<Entry>, Failure> {
        let number =
            entry.name.strip_prefix(b"f").and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        let file = number.filter(|file| *file < self.spec.files).ok_or(Failure::new(Code::SourceVanished))?;
        Ok(Box::new(self.spec.file_entry(file, entry.id, entry.parent)))
    }
}

impl SourceStorage for SyntheticSource {
    fn run(&self, op: SourceOp, pool: &Pool) -> Option<SourceDone> {
        match op {
            SourceOp::ReadObject { block, entry, offset, length, slot, single, .. } => {
                let result = self.read_object(&entry, (offset, length), single, slot, pool);
                Some(SourceDone::Object { block, result: result.map(Some) })
            }
            SourceOp::ReadMembers { block, slot, members, progress, .. } => {
                let (length, results) =
                    pack(pool, (slot, self.hash), (&members, &progress), |entry, space| {
                        self.read_member(entry, space).map(|hash| Packed::in_slot(Some(hash)))
                    });
                Some(SourceDone::Members { block, length, results })
            }
            SourceOp::Confirm { entry } => {
                let result = self.spec.file_of(&entry).map(|_| ());
                Some(SourceDone::Confirmed { id: entry.id, result })
            }
            SourceOp::Restat { entry } => {
                Some(SourceDone::Restated { id: entry.id, result: self.restat(&entry) })
            }
            op @ (SourceOp::Spill { .. } | SourceOp::Unspill { .. }) => spill::none(&op),
            SourceOp::Release { .. } | SourceOp::Forget { .. } => None,
        }
    }
}

/// Walks a [`SyntheticSource`].
pub struct SyntheticScan {
    spec: Arc<SyntheticSpec>,
    ids: Arc<AtomicU64>,
    top: Option<EntryId>,
    /// The directory that the scan is in, and how many of its files are still to come.
    directory: Option<(EntryId, u64)>,
    next_file: u64,
    ended: bool,
}

impl SyntheticScan {
    fn step(&mut self) -> Item {
        let Some(top) = self.top else {
            let id = self.id();
            self.top = Some(id);
            return Item::Entry(directory_entry(id, EntryId::root(0), b""));
        };
        match &mut self.directory {
            Some((directory, 0)) => {
                let directory = *directory;
                self.directory = None;
                Item::End(directory)
            }
            Some((directory, left)) => {
                let parent = *directory;
                *left -= 1;
                let file = self.next_file;
                self.next_file += 1;
                Item::Entry(self.spec.file_entry(file, self.id(), parent))
            }
            None if self.next_file >= self.spec.files => {
                self.ended = true;
                Item::End(top)
            }
            None => {
                let id = self.id();
                let per_directory = self.spec.files_per_directory.max(1);
                self.directory = Some((id, per_directory.min(self.spec.files - self.next_file)));
                let name = format!("d{}", self.next_file / per_directory);
                Item::Entry(directory_entry(id, top, name.as_bytes()))
            }
        }
    }

    fn id(&self) -> EntryId {
        EntryId(self.ids.fetch_add(1, Ordering::Relaxed))
    }
}

impl Scan for SyntheticScan {
    fn next(&mut self, out: &mut Vec<Scanned>) -> bool {
        let before = out.len();
        while !self.ended && out.len() < before + SCAN_BATCH {
            let item = self.step();
            out.push(Scanned::Item(item));
        }
        out.len() > before
    }
}

fn directory_entry(id: EntryId, parent: EntryId, name: &[u8]) -> Entry {
    let mtime = Timestamp { seconds: 1_600_000_000, nanos: 0 };
    Entry {
        id,
        parent,
        name: name.into(),
        kind: Kind::Directory,
        attributes: Attributes { mode: 0o755, uid: 0, gid: 0, mtime, atime: mtime },
        identity: Identity::default(),
        links: 1,
        link_target: Box::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(sizes: Sizes) -> SyntheticSpec {
        SyntheticSpec { seed: 3, files: 10, files_per_directory: 4, sizes }
    }

    #[test]
    fn any_part_of_a_file_has_the_same_bytes_as_the_whole() {
        let spec = spec(Sizes::Fixed(100));
        let mut whole = [0; 100];
        spec.fill(7, 0, &mut whole);
        for start in 0..40 {
            for end in start..100 {
                let mut part = vec![0; end - start];
                spec.fill(7, start as u64, &mut part);
                assert_eq!(part, whole[start..end], "{start}..{end}");
                assert!(spec.check(7, start as u64, &part));
            }
        }
        let mut other = [0; 100];
        spec.fill(8, 0, &mut other);
        assert_ne!(whole, other);
    }

    #[test]
    fn one_wrong_bit_or_one_byte_too_many_is_noticed() {
        let spec = spec(Sizes::Fixed(10_000));
        let mut bytes = vec![0; 10_000];
        spec.fill(2, 0, &mut bytes);
        assert!(spec.check(2, 0, &bytes));
        assert!(!spec.check(3, 0, &bytes));
        for at in [0, 1, 4095, 4096, 9_999] {
            bytes[at] ^= 4;
            assert!(!spec.check(2, 0, &bytes), "byte {at}");
            bytes[at] ^= 4;
        }
        assert!(!spec.check(2, 1, &bytes), "behind the end of the file");
    }

    #[test]
    fn sizes_follow_the_number_of_the_file() {
        assert_eq!(spec(Sizes::Cycle(vec![5, 6, 7])).size(4), 6);
        assert_eq!(spec(Sizes::Cycle(vec![])).size(4), 0);
        let uniform = spec(Sizes::Uniform(10, 12));
        let sizes: Vec<u64> = (0..100).map(|file| uniform.size(file)).collect();
        assert!(
            (10..=12).all(|size| sizes.contains(&size)) && sizes.iter().all(|size| (10..=12).contains(size))
        );
        assert_eq!(spec(Sizes::Fixed(3)).bytes_total(), 30);
        assert_eq!(spec(Sizes::Cycle(vec![5, 6, 7])).bytes_total(), 59);
    }

    #[test]
    fn paths_and_numbers_belong_together() {
        let spec = spec(Sizes::Fixed(1));
        assert_eq!(spec.directories(), 3);
        assert_eq!(spec.path(9), "d2/f9");
        for file in 0..10 {
            assert_eq!(spec.file_at(spec.path(file).as_bytes()), Some(file));
        }
        for wrong in ["d2/f10", "d1/f9", "f9", "d2/f09", "x/d2/f9", "d2/g9", ""] {
            assert_eq!(spec.file_at(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_copy_is_right_only_if_nothing_is_missing_changed_or_added() {
        let scratch = tempfile::tempdir().unwrap();
        let spec = spec(Sizes::Cycle(vec![0, 1, 70_000]));
        for file in 0..spec.files {
            let path = scratch.path().join(spec.path(file));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mut bytes = vec![0; spec.size(file) as usize];
            spec.fill(file, 0, &mut bytes);
            std::fs::write(path, bytes).unwrap();
        }
        spec.check_tree(scratch.path()).unwrap();
        let victim = scratch.path().join(spec.path(2));
        let good = std::fs::read(&victim).unwrap();
        let mut bad = good.clone();
        bad[69_999] ^= 1;
        std::fs::write(&victim, &bad).unwrap();
        assert!(spec.check_tree(scratch.path()).is_err());
        std::fs::write(&victim, &good[..69_999]).unwrap();
        assert!(spec.check_tree(scratch.path()).is_err());
        std::fs::remove_file(&victim).unwrap();
        assert!(spec.check_tree(scratch.path()).is_err());
        std::fs::write(&victim, &good).unwrap();
        std::fs::write(scratch.path().join("d0/.haul-left"), b"").unwrap();
        assert!(spec.check_tree(scratch.path()).is_err());
        std::fs::remove_file(scratch.path().join("d0/.haul-left")).unwrap();
        std::fs::create_dir(scratch.path().join("d7")).unwrap();
        assert!(spec.check_tree(scratch.path()).is_err());
    }
}
