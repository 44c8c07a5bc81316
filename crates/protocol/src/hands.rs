//! How many I/O threads an end should have.
//!
//! Where everything is on one target (a disk, or nobody knows), a few threads keep it and the processor busy. Where files
//! are on several targets, each of them needs a thread to wait for it, or the fast ones wait for the slow ones.

use alloc::vec::Vec;

use haul_model::Target;

/// Threads for each target: while one request is served, the next is there.
const PER_TARGET: u32 = 2;
/// Operations for each thread where there is one target.
const AHEAD: u32 = 2;

/// Counts the targets that were met.
pub(crate) struct Hands {
    met: Vec<u64>,
    targets: u32,
    now: u32,
    max: u32,
}

impl Hands {
    /// `least` of them, and up to `max` where there are several targets.
    pub fn new(least: u32, max: u32) -> Hands {
        Hands { met: Vec::new(), targets: 0, now: least, max: max.max(least) }
    }

    /// How many operations storage has at a time. With one target there is nothing to choose: then each thread finds the
    /// next one as soon as it is idle.
    pub fn at_a_time(&self) -> u32 {
        if self.has_several_targets() { self.now } else { self.now * AHEAD }
    }

    /// There are several targets.
    pub fn has_several_targets(&self) -> bool {
        self.targets > 1
    }

    /// How many there are.
    pub fn targets(&self) -> u32 {
        self.targets
    }

    /// It was met already.
    pub fn has_met(&self, target: Target) -> bool {
        self.met.get(usize::from(target) / 64).is_some_and(|word| word >> (target % 64) & 1 == 1)
    }

    /// Those that were met.
    pub fn all_met(&self) -> impl Iterator<Item = Target> {
        (0..self.met.len() as Target * 64).filter(|target| self.has_met(*target))
    }

    /// Something is on this target: how many threads there should be, if that is to change.
    pub fn meet(&mut self, target: Target) -> Option<u32> {
        if self.has_met(target) {
            return None;
        }
        let (word, bit) = (usize::from(target) / 64, target % 64);
        if self.met.len() <= word {
            self.met.resize(word + 1, 0);
        }
        self.met[word] |= 1 << bit;
        self.targets += 1;
        let wanted = (self.targets * PER_TARGET).clamp(self.now, self.max);
        let changes = self.targets == 2 || self.targets > 2 && wanted > self.now;
        if changes {
            self.now = wanted;
        }
        changes.then_some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_target_needs_no_more_and_several_two_for_each() {
        let mut hands = Hands::new(3, 7);
        assert_eq!((hands.meet(5), hands.meet(5), hands.at_a_time()), (None, None, 6));
        assert!(!hands.has_several_targets());
        assert_eq!((hands.meet(200), hands.at_a_time()), (Some(4), 4));
        let mut fixed = Hands::new(5, 5);
        assert_eq!((fixed.meet(1), fixed.meet(2), fixed.at_a_time()), (None, Some(5), 5));
        assert_eq!(
            (hands.meet(0), hands.meet(0), hands.meet(1), hands.meet(2)),
            (Some(6), None, Some(7), None)
        );
        assert!(hands.has_several_targets());
    }
}
