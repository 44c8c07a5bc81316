//! Hashes of contents as they arrive, so that copy and hash share the cache; of small ones, many at a time.
//!
//! BLAKE3: the value of an object is that of its subtree, so that those of all objects make the root of the file. XXH3: that
//! of an object is seeded with its offset, so that an object in the wrong place is found; that of a file is made of those of
//! its objects.

use blake3::hazmat::{HasherExt, Mode, max_subtree_len, merge_subtrees_non_root, merge_subtrees_root};
use haul_buffers::Onlooker;
use haul_meter::within;
use haul_model::profile::Stage;
use haul_model::{Code, Failure, Hash, HashKind};
use twox_hash::XxHash3_128;

use crate::abreast;

/// What is read, then hashed, at a time: well within a core's second-level cache, and enough that a system call is little beside it.
pub(crate) const PIECE_BYTES: usize = 128 << 10;

impl Onlooker for ObjectHasher {
    fn see(&mut self, bytes: &[u8]) {
        self.update(bytes);
    }

    fn hash(self: Box<Self>) -> Hash {
        self.finish()
    }
}

/// Of small files that are hashed together: half of such a cache holds them.
pub(crate) const TOGETHER_BYTES: usize = 512 << 10;

/// Where nothing is hashed.
const NOTHING: Hash = Hash([0; 32]);

enum State {
    None,
    Blake3 { hasher: Box<blake3::Hasher>, single: bool },
    Xxh3(Box<XxHash3_128>),
}

/// Hashes one object: as a whole file if it is all of it, else as the part at its offset.
pub(crate) struct ObjectHasher(State);

impl ObjectHasher {
    /// `Internal` for a range that is no subtree of BLAKE3: there is no hash for it.
    pub fn new(kind: HashKind, offset: u64, length: u32, single: bool) -> Result<Self, Failure> {
        let subtree = offset.is_multiple_of(blake3::CHUNK_LEN as u64)
            && length > 0
            && max_subtree_len(offset).is_none_or(|longest| u64::from(length) <= longest);
        let whole = offset == 0 && length > 0;
        if !(if single { whole } else { subtree }) {
            return Err(Code::Internal.into());
        }
        Ok(ObjectHasher::at(kind, offset, single))
    }

    /// For a range of which it is known that it is an object.
    pub fn at(kind: HashKind, offset: u64, single: bool) -> Self {
        ObjectHasher(match kind {
            HashKind::None => State::None,
            HashKind::Blake3 => {
                let mut hasher = Box::new(blake3::Hasher::new());
                if !single {
                    hasher.set_input_offset(offset);
                }
                State::Blake3 { hasher, single }
            }
            HashKind::Xxh3 => State::Xxh3(Box::new(XxHash3_128::with_seed(seed(offset, single)))),
        })
    }

    /// The next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        if matches!(self.0, State::None) {
            return;
        }
        let _hash = within(Stage::Hash).bytes(bytes.len() as u64);
        match &mut self.0 {
            State::None => {}
            State::Blake3 { hasher, .. } => drop(hasher.update(bytes)),
            State::Xxh3(hasher) => hasher.write(bytes),
        }
    }

    /// All bytes were given.
    pub fn finish(self) -> Hash {
        match self.0 {
            State::None => NOTHING,
            State::Blake3 { hasher, single: true } => Hash(*hasher.finalize().as_bytes()),
            State::Blake3 { hasher, single: false } => Hash(hasher.finalize_non_root()),
            State::Xxh3(hasher) => of_xxh3(hasher.finish_128()),
        }
    }
}

fn seed(offset: u64, single: bool) -> u64 {
    // Not 0 at offset 0: a part is no whole file.
    if single { 0 } else { !offset }
}

fn of_xxh3(value: u128) -> Hash {
    let mut hash = [0; 32];
    hash[..16].copy_from_slice(&value.to_be_bytes());
    Hash(hash)
}

/// Of an object that is all there. Its range must be that of an object (`Cut::index`).
pub(crate) fn object_hash(kind: HashKind, bytes: &[u8], offset: u64, single: bool) -> Hash {
    if single {
        return whole_hash(kind, bytes);
    }
    if kind == HashKind::Xxh3 {
        let _hash = within(Stage::Hash).bytes(bytes.len() as u64);
        return of_xxh3(XxHash3_128::oneshot_with_seed(seed(offset, false), bytes));
    }
    let mut hasher = ObjectHasher::at(kind, offset, single);
    hasher.update(bytes);
    hasher.finish()
}

/// Of a whole file that is all there.
pub(crate) fn whole_hash(kind: HashKind, bytes: &[u8]) -> Hash {
    if kind == HashKind::None {
        return NOTHING;
    }
    let _hash = within(Stage::Hash).bytes(bytes.len() as u64);
    match kind {
        HashKind::None => NOTHING,
        HashKind::Blake3 => Hash(*blake3::hash(bytes).as_bytes()),
        HashKind::Xxh3 => of_xxh3(XxHash3_128::oneshot(bytes)),
    }
}

/// Whether whole files of that size take less time together ([`whole_hashes`]). Others are best hashed when they are touched anyway:
/// copy and hash share the cache then.
pub(crate) fn are_better_together(kind: HashKind, bytes: usize) -> bool {
    kind == HashKind::Blake3 && abreast::pays(bytes)
}

/// Of whole files that are all there, in order.
pub(crate) fn whole_hashes(kind: HashKind, contents: &[&[u8]]) -> Vec<Hash> {
    // Nothing is to be seen of it in a profile then.
    if contents.is_empty() {
        return Vec::new();
    }
    match kind {
        HashKind::Blake3 => {
            let bytes = contents.iter().map(|bytes| bytes.len() as u64).sum();
            let _hash = within(Stage::Hash).bytes(bytes);
            abreast::hash_each(contents)
        }
        HashKind::None | HashKind::Xxh3 => contents.iter().map(|bytes| whole_hash(kind, bytes)).collect(),
    }
}

/// Whether these bytes are those that were announced; where nothing is hashed nobody can tell.
pub(crate) fn is_object(kind: HashKind, bytes: &[u8], offset: u64, single: bool, announced: Hash) -> bool {
    kind == HashKind::None || object_hash(kind, bytes, offset, single) == announced
}

/// Combines the values of all objects of a file, in order; needs memory for one value per level of BLAKE3's tree.
pub(crate) enum Combiner {
    None,
    Blake3 { stack: Vec<[u8; 32]>, pushed: u64 },
    Xxh3 { hasher: Box<XxHash3_128>, pushed: u64 },
}

impl Combiner {
    /// Nothing yet.
    pub fn new(kind: HashKind) -> Self {
        match kind {
            HashKind::None => Combiner::None,
            HashKind::Blake3 => Combiner::Blake3 { stack: Vec::with_capacity(32), pushed: 0 },
            HashKind::Xxh3 => Combiner::Xxh3 { hasher: Box::new(XxHash3_128::new()), pushed: 0 },
        }
    }

    /// The value of the next object.
    pub fn push(&mut self, value: Hash) {
        match self {
            Combiner::None => {}
            Combiner::Blake3 { stack, pushed } => {
                // A subtree is merged only once it is known that something follows it: the last merge makes the root.
                while stack.len() > pushed.count_ones() as usize {
                    merge(stack);
                }
                stack.push(value.0);
                *pushed += 1;
            }
            Combiner::Xxh3 { hasher, pushed } => {
                hasher.write(&value.0[..HashKind::Xxh3.bytes()]);
                *pushed += 1;
            }
        }
    }

    /// The hash of the file; `None` with fewer than two objects, whose hash is not made of those of objects.
    pub fn root(self) -> Option<Hash> {
        match self {
            Combiner::None => Some(NOTHING),
            Combiner::Blake3 { mut stack, .. } => {
                while stack.len() > 2 {
                    merge(&mut stack);
                }
                let [left, right] = stack[..] else { return None };
                Some(Hash(*merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()))
            }
            Combiner::Xxh3 { hasher, pushed } => (pushed >= 2).then(|| of_xxh3(hasher.finish_128())),
        }
    }
}

fn merge(stack: &mut Vec<[u8; 32]>) {
    if let (Some(right), Some(left)) = (stack.pop(), stack.pop()) {
        stack.push(merge_subtrees_non_root(&left, &right, Mode::Hash));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASHED: [HashKind; 2] = [HashKind::Blake3, HashKind::Xxh3];

    #[test]
    fn ranges_that_are_no_subtree_are_an_error_and_no_panic() {
        let mebibyte = 1 << 20;
        for kind in HashKind::ALL {
            let new = |offset, length, single| ObjectHasher::new(kind, offset, length, single);
            for (offset, length) in
                [(0, 0), (1, 1), (1000, 24), (1024, 2048), (3 << 20, 2 << 20), (mebibyte, 0)]
            {
                assert_eq!(new(offset, length, false).err(), Some(Code::Internal.into()));
            }
            assert!(new(mebibyte, 10, true).is_err(), "a whole file starts at 0");
            assert!(new(0, 0, true).is_err());
            assert!(new(4 << 20, 4 << 20, false).is_ok());
            assert!(new(u64::MAX - 1023, 1024, false).is_ok());
        }
    }

    #[test]
    fn hashes_in_pieces_and_at_once_are_the_same() {
        let bytes: Vec<u8> = (0..70_000u32).map(|at| ((at * 7) >> 3) as u8).collect();
        for kind in HashKind::ALL {
            for (length, piece) in
                [(1, 1), (240, 7), (241, 100), (1024, 1000), (65_536, 4096), (65_536, 65_536)]
            {
                for (offset, single) in [(0, true), (0, false), (1 << 20, false)] {
                    let bytes = &bytes[..length];
                    let mut hasher = ObjectHasher::new(kind, offset, length as u32, single).unwrap();
                    bytes.chunks(piece).for_each(|piece| hasher.update(piece));
                    let hash = hasher.finish();
                    assert_eq!(hash, object_hash(kind, bytes, offset, single), "{kind:?} {length} {piece}");
                    assert!(is_object(kind, bytes, offset, single, hash));
                }
            }
        }
    }

    #[test]
    fn other_bytes_another_place_and_a_part_instead_of_a_whole_are_found() {
        let bytes = [5; 2048];
        let mut other = bytes;
        other[2047] ^= 1;
        for kind in HASHED {
            let hash = object_hash(kind, &bytes, 4096, false);
            assert!(!is_object(kind, &other, 4096, false, hash));
            assert!(!is_object(kind, &bytes, 8192, false, hash));
            assert!(!is_object(kind, &bytes, 0, true, object_hash(kind, &bytes, 0, false)));
        }
        assert!(is_object(HashKind::None, &other, 8192, false, NOTHING), "nobody can tell");
    }

    /// Both ends compute them, and they are in logs: no version may change them (docs/spec/wire.md).
    #[test]
    fn the_hashes_of_parts_stay_as_they_are() {
        let parts = [0, 2048].map(|offset| object_hash(HashKind::Xxh3, &[5; 2048], offset, false));
        let mut combiner = Combiner::new(HashKind::Xxh3);
        parts.iter().for_each(|part| combiner.push(*part));
        let all = [parts[0], parts[1], combiner.root().unwrap()];
        assert_eq!(
            all.map(|hash| hash.to_string()[..32].to_owned()),
            [
                "17b1d6a422f7a99ccc6d1f73e78688fc",
                "b8822044d6278b66a9ebb8c2c66b4284",
                "24166f027a1f7fbbde30b8fc497a18d6"
            ]
        );
    }

    #[test]
    fn the_hashes_of_whole_files_are_those_of_the_usual_tools() {
        let hex = |kind: HashKind, bytes| whole_hash(kind, bytes).to_string()[..2 * kind.bytes()].to_owned();
        assert_eq!(hex(HashKind::Xxh3, b""), "99aa06d3014798d86001c324468d497f");
        let blake3 = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(hex(HashKind::Blake3, b""), blake3);
    }

    #[test]
    fn objects_combine_in_their_order() {
        let bytes: Vec<u8> = (0..3000u32).map(|at| at as u8).collect();
        for kind in HASHED {
            let left = object_hash(kind, &bytes[..2048], 0, false);
            let right = object_hash(kind, &bytes[2048..], 2048, false);
            let root = |values: &[Hash]| {
                let mut combiner = Combiner::new(kind);
                values.iter().for_each(|value| combiner.push(*value));
                combiner.root()
            };
            assert_ne!(root(&[left, right]), root(&[right, left]));
            assert_eq!((root(&[left]), root(&[])), (None, None));
            if kind == HashKind::Blake3 {
                assert_eq!(root(&[left, right]), Some(whole_hash(kind, &bytes)));
            }
        }
    }
}
