//! The hashes of the objects of an unfinished file, beside it in `.haul-<token>.sums`.
//!
//! A table with one entry of 40 bytes for each object, at 40 times its number: the object's hash, and 8 bytes of a
//! check over the token, the object size, the number and the hash. An entry that is torn, damaged, missing or of
//! another file or cut does not pass its check, and its object is hashed again from the file.
//!
//! Behind the last one an entry of the same form has the number of the inode that the objects were written to, where others have a hash.

use haul_model::{Hash, Token};

use super::hashes::Cut;

/// Bytes of one entry.
pub(crate) const ENTRY_BYTES: usize = 40;

/// The entry of one object.
pub(crate) fn encode(token: Token, cut: Cut, index: u64, hash: Hash) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    entry[..32].copy_from_slice(&hash.0);
    entry[32..].copy_from_slice(&check(token, cut, index, &hash));
    entry
}

/// The hash of one object, if its entry is whole.
pub(crate) fn decode(token: Token, cut: Cut, index: u64, entry: &[u8]) -> Option<Hash> {
    let (hash, stored) = entry.split_first_chunk::<32>()?;
    let hash = Hash(*hash);
    (stored == check(token, cut, index, &hash)).then_some(hash)
}

/// The entry behind the last one: which inode it is.
pub(crate) fn encode_inode(token: Token, cut: Cut, inode: u64) -> [u8; ENTRY_BYTES] {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&inode.to_le_bytes());
    encode(token, cut, cut.count(), Hash(hash))
}

/// Which inode it is, if its entry is whole.
pub(crate) fn decode_inode(token: Token, cut: Cut, entry: &[u8]) -> Option<u64> {
    let hash = decode(token, cut, cut.count(), entry)?;
    hash.0.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn check(token: Token, cut: Cut, index: u64, hash: &Hash) -> [u8; 8] {
    let mut covered = [0; 16 + 8 + 4 + 8 + 32];
    covered[..16].copy_from_slice(&token.0);
    covered[16..24].copy_from_slice(&cut.size.to_le_bytes());
    covered[24..28].copy_from_slice(&cut.object_bytes.to_le_bytes());
    covered[28..36].copy_from_slice(&index.to_le_bytes());
    covered[36..].copy_from_slice(&hash.0);
    let mut first = [0; 8];
    first.copy_from_slice(&blake3::hash(&covered).as_bytes()[..8]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_believed_only_where_it_belongs_and_whole() {
        let (token, cut, hash) = (Token([7; 16]), Cut { size: 1 << 20, object_bytes: 65_536 }, Hash([9; 32]));
        let entry = encode(token, cut, 3, hash);
        assert_eq!(decode(token, cut, 3, &entry), Some(hash));
        assert_eq!(decode(token, cut, 4, &entry), None);
        assert_eq!(decode(Token([8; 16]), cut, 3, &entry), None);
        assert_eq!(decode(token, Cut { object_bytes: 131_072, ..cut }, 3, &entry), None);
        assert_eq!(decode(token, Cut { size: 1 << 21, ..cut }, 3, &entry), None);
        assert_eq!(decode(token, cut, 3, &entry[..39]), None);
        assert_eq!(decode(token, cut, 0, &[0; ENTRY_BYTES]), None, "a hole");
        let inode = encode_inode(token, cut, 9);
        assert_eq!((decode(token, cut, 3, &inode), decode_inode(token, cut, &inode)), (None, Some(9)));
        assert_eq!(decode_inode(token, cut, &entry), None, "of no object");
        for bit in 0..ENTRY_BYTES * 8 {
            let mut damaged = entry;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(token, cut, 3, &damaged), None, "bit {bit}");
        }
    }
}
