//! A fixed-length set of object numbers, one bit each.

use alloc::vec;
use alloc::vec::Vec;

/// One bit per object of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bitmap {
    words: Vec<u64>,
    bits: u64,
    ones: u64,
}

impl Bitmap {
    /// All zero.
    pub fn new(bits: u64) -> Self {
        Bitmap { words: vec![0; bits.div_ceil(64) as usize], bits, ones: 0 }
    }

    /// From the words of a log (bit `i` is `words[i / 64] >> (i % 64)`). Bits past the end are dropped.
    pub fn from_words(mut words: Vec<u64>, bits: u64) -> Self {
        words.resize(bits.div_ceil(64) as usize, 0);
        if !bits.is_multiple_of(64)
            && let Some(last) = words.last_mut()
        {
            *last &= (1 << (bits % 64)) - 1;
        }
        let ones = words.iter().map(|word| u64::from(word.count_ones())).sum();
        Bitmap { words, bits, ones }
    }

    /// How many bits there are.
    pub fn len(&self) -> u64 {
        self.bits
    }

    /// No bits at all (an empty file).
    pub fn is_empty(&self) -> bool {
        self.bits == 0
    }

    /// How many are one.
    pub fn count(&self) -> u64 {
        self.ones
    }

    /// Every bit is one.
    pub fn is_full(&self) -> bool {
        self.ones == self.bits
    }

    /// The words, bit `i` in `words[i / 64] >> (i % 64)`.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Bit `index`; false past the end.
    pub fn get(&self, index: u64) -> bool {
        index < self.bits && self.words[(index / 64) as usize] >> (index % 64) & 1 == 1
    }

    /// Sets a bit; true if it was zero. Past the end nothing happens.
    pub fn set(&mut self, index: u64) -> bool {
        if index >= self.bits || self.get(index) {
            return false;
        }
        self.words[(index / 64) as usize] |= 1 << (index % 64);
        self.ones += 1;
        true
    }

    /// Clears a bit; true if it was one.
    pub fn clear(&mut self, index: u64) -> bool {
        if !self.get(index) {
            return false;
        }
        self.words[(index / 64) as usize] &= !(1 << (index % 64));
        self.ones -= 1;
        true
    }

    /// The first zero bit at or after `from`.
    pub fn next_zero(&self, from: u64) -> Option<u64> {
        let mut index = from;
        while index < self.bits {
            let rest = !self.words[(index / 64) as usize] >> (index % 64);
            if rest != 0 {
                let found = index + u64::from(rest.trailing_zeros());
                return (found < self.bits).then_some(found);
            }
            index = (index / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_bits_are_found_across_words_and_not_past_the_end() {
        let mut map = Bitmap::new(130);
        for index in 0..130 {
            assert_eq!(map.next_zero(0), Some(index));
            assert!(map.set(index));
            assert!(!map.set(index));
        }
        assert!(map.is_full());
        assert_eq!(map.next_zero(0), None);
        assert!(map.clear(64));
        assert_eq!((map.next_zero(0), map.next_zero(65), map.count()), (Some(64), None, 129));
        assert!(!map.set(130));
    }

    #[test]
    fn stray_bits_of_a_log_are_dropped() {
        let map = Bitmap::from_words(alloc::vec![u64::MAX, u64::MAX, u64::MAX], 65);
        assert_eq!((map.count(), map.words().len()), (65, 2));
    }
}
