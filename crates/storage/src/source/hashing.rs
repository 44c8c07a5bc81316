//! BLAKE3 over bytes as they arrive, so that copy and hash share the cache.

use blake3::Hasher;
use blake3::hazmat::{HasherExt, max_subtree_len};
use haul_model::{Code, Failure, Hash};

/// What is read, then hashed, at a time: well within a core's second-level cache.
pub(crate) const PIECE_BYTES: usize = 128 << 10;

/// Hashes one object: the root if it is the whole file, its subtree value at `offset` otherwise.
pub(crate) struct ObjectHasher {
    hasher: Hasher,
    single: bool,
}

impl ObjectHasher {
    /// `Internal` for a range that is no subtree: there is no hash for it.
    pub fn new(offset: u64, length: u32, single: bool) -> Result<Self, Failure> {
        let subtree = offset.is_multiple_of(blake3::CHUNK_LEN as u64)
            && length > 0
            && max_subtree_len(offset).is_none_or(|longest| u64::from(length) <= longest);
        let whole = offset == 0 && length > 0;
        if !(if single { whole } else { subtree }) {
            return Err(Code::Internal.into());
        }
        let mut hasher = Hasher::new();
        if !single {
            hasher.set_input_offset(offset);
        }
        Ok(ObjectHasher { hasher, single })
    }

    /// The next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// All bytes were given.
    pub fn finish(self) -> Hash {
        Hash(if self.single { *self.hasher.finalize().as_bytes() } else { self.hasher.finalize_non_root() })
    }
}

/// Of bytes that are all there.
pub(crate) fn object_hash(offset: u64, bytes: &[u8], single: bool) -> Result<Hash, Failure> {
    let length = u32::try_from(bytes.len()).map_err(|_| Failure::new(Code::Internal))?;
    let mut hasher = ObjectHasher::new(offset, length, single)?;
    hasher.update(bytes);
    Ok(hasher.finish())
}

/// The root of bytes that are all there.
pub(crate) fn whole_hash(bytes: &[u8]) -> Hash {
    Hash(*blake3::hash(bytes).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_are_no_subtree_are_an_error_and_no_panic() {
        let mebibyte = 1 << 20;
        for (offset, length) in [(0, 0), (1, 1), (1000, 24), (1024, 2048), (3 << 20, 2 << 20), (mebibyte, 0)]
        {
            assert_eq!(ObjectHasher::new(offset, length, false).err(), Some(Code::Internal.into()));
        }
        assert!(ObjectHasher::new(mebibyte, 10, true).is_err(), "a whole file starts at 0");
        assert!(ObjectHasher::new(0, 0, true).is_err());
        assert!(ObjectHasher::new(4 << 20, 4 << 20, false).is_ok());
        assert!(ObjectHasher::new(u64::MAX - 1023, 1024, false).is_ok());
    }

    #[test]
    fn two_objects_make_the_root_of_the_file() {
        let bytes: Vec<u8> = (0..3000u32).map(|at| at as u8).collect();
        let left = object_hash(0, &bytes[..2048], false).unwrap();
        let right = object_hash(2048, &bytes[2048..], false).unwrap();
        let root = blake3::hazmat::merge_subtrees_root(&left.0, &right.0, blake3::hazmat::Mode::Hash);
        assert_eq!(whole_hash(&bytes).0, *root.as_bytes());
        assert_eq!(object_hash(0, &bytes, true).unwrap(), whole_hash(&bytes));
    }
}
