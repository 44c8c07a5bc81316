//! Sets of small numbers, a bit each: 2,000 targets are 32 words, so a question about all of them is 32 operations.

use alloc::vec::Vec;

/// A set of numbers; grows with what is put in.
#[derive(Default)]
pub(super) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    pub fn set(&mut self, index: u32, on: bool) {
        let (word, bit) = (index as usize / 64, index % 64);
        if word >= self.words.len() {
            if !on {
                return;
            }
            self.words.resize(word + 1, 0);
        }
        self.words[word] = self.words[word] & !(1 << bit) | u64::from(on) << bit;
    }

    pub fn has(&self, index: u32) -> bool {
        self.word(index as usize / 64) >> (index % 64) & 1 == 1
    }

    /// How many words it has; those beyond are 0.
    pub fn words(&self) -> usize {
        self.words.len()
    }

    #[inline]
    pub fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Adds all of `other`.
    pub fn add(&mut self, other: &Bits) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        self.words.iter_mut().zip(&other.words).for_each(|(word, more)| *word |= more);
    }

    /// Is anything in both?
    pub fn meets(&self, other: &Bits) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// How many are in both.
    pub fn common(&self, other: &Bits) -> u32 {
        self.words.iter().zip(&other.words).map(|(a, b)| (a & b).count_ones()).sum()
    }

    /// All numbers, from the lowest.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            let mut rest = *word;
            core::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(index as u32 * 64 + bit)
            })
        })
    }
}

/// The first number of a set of `words` words, at or after `from` and then from 0.
#[inline]
pub(super) fn find_from(from: u32, words: usize, word: impl Fn(usize) -> u64) -> Option<u32> {
    find_where(from, words, word, |_| true)
}

/// As [`find_from`], of those that pass.
#[inline]
pub(super) fn find_where(
    from: u32,
    words: usize,
    word: impl Fn(usize) -> u64,
    mut test: impl FnMut(u32) -> bool,
) -> Option<u32> {
    let mut first = |index: usize, mut bits: u64| {
        while bits != 0 {
            let number = index as u32 * 64 + bits.trailing_zeros();
            if test(number) {
                return Some(number);
            }
            bits &= bits - 1;
        }
        None
    };
    let split = from as usize / 64;
    if split >= words {
        return (0..words).find_map(|index| first(index, word(index)));
    }
    let behind = u64::MAX << (from % 64);
    first(split, word(split) & behind)
        .or_else(|| (split + 1..words).find_map(|index| first(index, word(index))))
        .or_else(|| (0..split).find_map(|index| first(index, word(index))))
        .or_else(|| first(split, word(split) & !behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_from_anywhere_once_round() {
        let mut bits = Bits::default();
        for index in [0, 63, 64, 200] {
            bits.set(index, true);
        }
        let find = |from| find_from(from, bits.words(), |word| bits.word(word));
        assert_eq!([0, 1, 64, 65, 200, 201, 9999].map(find), [0, 63, 64, 200, 200, 0, 0].map(Some));
        assert_eq!(bits.iter().collect::<Vec<_>>(), [0, 63, 64, 200]);
        bits.set(200, false);
        bits.set(5000, false);
        assert!(!bits.has(200) && !bits.has(5000) && bits.words() == 4);
        assert_eq!(find_from(3, 0, |_| 1), None);
    }

    #[test]
    fn sets_of_different_lengths_meet_where_both_are() {
        let (mut a, mut b) = (Bits::default(), Bits::default());
        a.set(3, true);
        b.set(130, true);
        assert!(!a.meets(&b));
        a.add(&b);
        assert!(a.meets(&b) && a.common(&b) == 1);
    }
}
