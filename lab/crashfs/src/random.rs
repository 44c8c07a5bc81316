//! Seeded choices: the same seed makes the same choices on every machine.

/// SplitMix64: small, fast, and good enough to choose faults with. Not for secrets.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// All choices follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Random { state: seed ^ 0x9e37_79b9_7f4a_7c15 }
    }

    /// A generator of its own for one purpose, so that more choices elsewhere do not shift the ones made here.
    pub fn fork(seed: u64, purpose: &str) -> Self {
        let mut state = seed ^ 0xcbf2_9ce4_8422_2325;
        for byte in purpose.bytes() {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let mut random = Random { state };
        random.next();
        random
    }

    /// 64 random bits.
    #[expect(clippy::should_implement_trait, reason = "an endless generator, never used as an iterator")]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.state;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// 0..`end`; 0 where `end` is 0. The bias is below 2^-32 for every `end` that fits in 32 bits.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// `first..=last`.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True in `share` of 256 cases: 0 never, 256 always.
    pub fn chance(&mut self, share: u16) -> bool {
        (self.next() >> 56) < u64::from(share)
    }

    /// One of them.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let mut chunks = bytes.chunks_exact_mut(8);
        for chunk in &mut chunks {
            chunk.copy_from_slice(&self.next().to_le_bytes());
        }
        let rest = chunks.into_remainder();
        let word = self.next().to_le_bytes();
        let length = rest.len();
        rest.copy_from_slice(&word[..length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_choices_and_purposes_differ() {
        let take = |mut random: Random| (0..4).map(|_| random.next()).collect::<Vec<_>>();
        assert_eq!(take(Random::fork(7, "a")), take(Random::fork(7, "a")));
        assert_ne!(take(Random::fork(7, "a")), take(Random::fork(7, "b")));
        assert_ne!(take(Random::fork(7, "a")), take(Random::fork(8, "a")));
    }

    #[test]
    fn chance_reaches_never_and_always() {
        let mut random = Random::new(1);
        assert!((0..10_000).all(|_| !random.chance(0) && random.chance(256)));
        let half = (0..10_000).filter(|_| random.chance(128)).count();
        assert!((4_000..6_000).contains(&half), "{half}");
    }
}
