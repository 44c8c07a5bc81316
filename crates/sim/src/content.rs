//! Contents as numbers: each version of a file's content has one, and hashes are computed from it.
//!
//! A piece of content is told from every other by (content, offset, length), so the model finds mixed, misplaced and torn
//! bytes as surely as real bytes would show them, without any.

use std::rc::Rc;

use haul_model::{EntryId, Hash};

use crate::random::mix;

/// Nothing was ever written here: a hole.
pub const HOLE: u32 = 0;
/// Torn, or altered on the way.
pub const GARBAGE: u32 = u32::MAX;

/// Some bytes in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where they start in the slot.
    pub at: u32,
    /// Of which content.
    pub content: u32,
    /// Where they come from in the file.
    pub offset: u64,
    /// How many.
    pub length: u32,
}

impl Piece {
    /// The BLAKE3 subtree value at the file offset `offset`; the root if it is the whole file.
    pub fn hash(&self, offset: u64, single: bool) -> Hash {
        match single {
            true if self.offset == 0 => root_of(self.content, u64::from(self.length)),
            true => hash(&[3, u64::from(self.content), self.offset, u64::from(self.length)]),
            false => hash(&[1, u64::from(self.content), self.offset, u64::from(self.length), offset]),
        }
    }
}

/// What a slot holds.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    /// One piece for an object, one for each member of a bundle.
    pub pieces: Rc<[Piece]>,
    /// Bytes were altered on the way, on purpose, or one of its members was another version when it left: it may be refused.
    pub altered: bool,
    /// They are still in the spill, from here on: the slot stands for them.
    pub in_spill: Option<u64>,
    /// Pieces that are still in their files, in order.
    pub in_files: Rc<[InFile]>,
    /// Of these as they left; behind all bytes.
    pub hashes: Vec<Hash>,
}

/// A piece of a payload that is still in its file.
#[derive(Clone, Copy, Debug)]
pub struct InFile {
    /// Which piece.
    pub piece: usize,
    /// Of this entry.
    pub id: EntryId,
    /// Where.
    pub inode: usize,
    /// Of a member: the version that was announced.
    pub stamp: Option<u32>,
}

/// The root hash of a whole file.
pub fn root_of(content: u32, size: u64) -> Hash {
    if size == 0 { hash(&[0]) } else { hash(&[2, u64::from(content), size]) }
}

fn hash(of: &[u64]) -> Hash {
    let value = of.iter().fold(0x6861_756c, |state, word| mix(state ^ mix(*word)));
    let mut bytes = [0; 32];
    for (lane, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&mix(value ^ lane as u64).to_le_bytes());
    }
    Hash(bytes)
}
