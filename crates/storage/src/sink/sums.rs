//! The hashes of the objects of an unfinished file, beside it in `.haul-<token>.sums`.
//!
//! A table with one entry of 40 bytes for each object, at 40 times its number: the object's hash, and 8 bytes of a
//! check over the token, the object size, the number and the hash. An entry that is torn, damaged, forgotten or of
//! another file or cut does not pass its check, and its object is hashed again from the file. Where there is none the object was
//! not durable, unless the table says that it may lack some.
//!
//! Behind the last one an entry of the same form says which inode the objects were written to: where others have a hash it has the inode's
//! number (8 bytes), and where the file system tells when it was made 1 (1), the seconds (8) and the nanoseconds (4) of that; then 1 (1)
//! where hashes of objects that are durable may be missing in the table.

use haul_model::{Hash, Timestamp, Token};

use super::hashes::Cut;

/// Bytes of one entry.
pub(crate) const ENTRY_BYTES: usize = 40;

/// In the place of one that holds no longer: the object's hash is that of what is in the file.
pub(crate) const FORGOTTEN: [u8; ENTRY_BYTES] = [0xff; ENTRY_BYTES];

/// There was none yet, neither a whole one nor one that is torn, damaged or forgotten.
pub(crate) fn is_none(entry: &[u8]) -> bool {
    entry.iter().all(|byte| *byte == 0)
}

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

/// Which one of all that ever had its number, here or on another disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Inode {
    pub number: u64,
    /// When it was made, where that is told.
    pub born: Option<Timestamp>,
}

impl Inode {
    /// Is it that one? Numbers alone count where one of the two does not say when it was made.
    pub fn is(&self, other: &Inode) -> bool {
        let born = self.born.zip(other.born);
        self.number == other.number && born.is_none_or(|(one, other)| one == other)
    }
}

/// What the entry behind the last one says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Of {
    pub inode: Inode,
    /// Not each object that is durable has its hash in the table.
    pub lacks: bool,
}

/// The entry behind the last one.
pub(crate) fn encode_of(token: Token, cut: Cut, Of { inode, lacks }: Of) -> [u8; ENTRY_BYTES] {
    let mut hash = [0; 32];
    hash[21] = u8::from(lacks);
    hash[..8].copy_from_slice(&inode.number.to_le_bytes());
    if let Some(Timestamp { seconds, nanos }) = inode.born {
        hash[8] = 1;
        hash[9..17].copy_from_slice(&seconds.to_le_bytes());
        hash[17..21].copy_from_slice(&nanos.to_le_bytes());
    }
    encode(token, cut, cut.count(), Hash(hash))
}

/// What it says, if it is whole.
pub(crate) fn decode_of(token: Token, cut: Cut, entry: &[u8]) -> Option<Of> {
    let hash = decode(token, cut, cut.count(), entry)?;
    let (number, rest) = hash.0.split_first_chunk()?;
    let (is_told, rest) = rest.split_first()?;
    let (seconds, rest) = rest.split_first_chunk()?;
    let (nanos, rest) = rest.split_first_chunk()?;
    let (seconds, nanos) = (i64::from_le_bytes(*seconds), u32::from_le_bytes(*nanos));
    let born = (*is_told == 1).then_some(Timestamp { seconds, nanos });
    let inode = Inode { number: u64::from_le_bytes(*number), born };
    Some(Of { inode, lacks: *rest.first()? == 1 })
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
        assert_eq!(decode(token, cut, 0, &FORGOTTEN), None);
        assert!(is_none(&[0; ENTRY_BYTES]) && !is_none(&FORGOTTEN) && !is_none(&entry));
        let born = [None, Some(Timestamp { seconds: -3, nanos: 999_999_999 })];
        for (born, lacks) in born.into_iter().flat_map(|born| [(born, false), (born, true)]) {
            let of = Of { inode: Inode { number: 9, born }, lacks };
            let entry = encode_of(token, cut, of);
            assert_eq!((decode(token, cut, 3, &entry), decode_of(token, cut, &entry)), (None, Some(of)));
        }
        assert_eq!(decode_of(token, cut, &entry), None, "of no object");
        for bit in 0..ENTRY_BYTES * 8 {
            let mut damaged = entry;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(token, cut, 3, &damaged), None, "bit {bit}");
        }
    }

    #[test]
    fn an_inode_is_known_by_its_number_and_when_it_was_made() {
        let at = |nanos| Some(Timestamp { seconds: 5, nanos });
        let inode = |number, born| Inode { number, born };
        assert!(inode(9, at(1)).is(&inode(9, at(1))));
        assert!(!inode(9, at(1)).is(&inode(9, at(2))));
        assert!(!inode(9, at(1)).is(&inode(8, at(1))));
        for (one, other) in [(None, at(1)), (at(1), None), (None, None)] {
            assert!(inode(9, one).is(&inode(9, other)));
            assert!(!inode(9, one).is(&inode(8, other)));
        }
    }
}
