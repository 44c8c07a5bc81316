//! Some of a file's objects, as a sink counts them.
//!
//! A set takes memory for what is in it, never for what a peer says that a file has: 2^32 objects cost nothing until
//! they arrive.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

/// Object numbers in one piece.
const PIECE: u64 = 512;
const WORDS: usize = (PIECE / 64) as usize;

/// Some of the numbers from 0 to a file's last object.
#[derive(Default)]
pub struct ObjectSet {
    total: u64,
    count: u64,
    pieces: BTreeMap<u64, Box<[u64; WORDS]>>,
}

impl ObjectSet {
    /// None of `total`.
    pub fn new(total: u64) -> Self {
        ObjectSet { total, count: 0, pieces: BTreeMap::new() }
    }

    /// How many objects the file has.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How many are in.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// All of them are in.
    pub fn is_full(&self) -> bool {
        self.count == self.total
    }

    /// Adds one; nothing happens if it is in, or past the end. Whether it was not in.
    pub fn insert(&mut self, index: u64) -> bool {
        if index >= self.total {
            return false;
        }
        let piece = self.pieces.entry(index / PIECE).or_default();
        let word = &mut piece[(index % PIECE / 64) as usize];
        let is_new = *word >> (index % 64) & 1 == 0;
        self.count += u64::from(is_new);
        *word |= 1 << (index % 64);
        is_new
    }

    /// It is in.
    pub fn contains(&self, index: u64) -> bool {
        let piece = self.pieces.get(&(index / PIECE));
        piece.is_some_and(|piece| piece[(index % PIECE / 64) as usize] >> (index % 64) & 1 == 1)
    }

    /// Takes one out, if it is in.
    pub fn remove(&mut self, index: u64) {
        if self.contains(index)
            && let Some(piece) = self.pieces.get_mut(&(index / PIECE))
        {
            piece[(index % PIECE / 64) as usize] &= !(1 << (index % 64));
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_full_when_each_object_was_added_however_often() {
        for total in [0, 1, 63, 64, 65, 511, 512, 513, 2000] {
            let mut set = ObjectSet::new(total);
            for index in (0..total).rev() {
                assert!(!set.is_full());
                set.insert(index);
                set.insert(index);
                set.insert(total);
            }
            assert!(set.is_full(), "{total}");
        }
    }

    #[test]
    fn what_is_taken_out_is_missing_and_may_come_again() {
        let mut set = ObjectSet::new(1000);
        (0..1000).for_each(|index| _ = set.insert(index));
        for index in [0, 63, 512, 999, 999, 1000, u64::MAX] {
            set.remove(index);
            assert!(!set.contains(index) && !set.is_full());
        }
        assert!(set.contains(1) && set.count() == 996);
        assert!(set.insert(63) && !set.insert(63) && set.contains(63));
    }

    #[test]
    fn a_file_that_is_said_to_be_huge_takes_no_memory() {
        let mut set = ObjectSet::new(u64::from(u32::MAX));
        set.insert(u64::from(u32::MAX) - 1);
        assert_eq!((set.pieces.len(), set.is_full()), (1, false));
    }
}
