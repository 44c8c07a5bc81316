//! How long targets take, in a measure that makes requests comparable: nanoseconds for a MiB, divided by the requests
//! that were under way on the target at the same time (a disk that serves two at once takes twice as long for each).

use alloc::vec::Vec;

use super::CLASSES;

/// Requests below this count as so many bytes: seeks and round trips are most of their time.
const SMALL_BYTES: u64 = 256 << 10;

/// What one request says about its target.
pub(super) fn normalise(nanos: u64, bytes: u32, depth: u32) -> u64 {
    let nanos_per_mib = nanos.saturating_mul(1 << 20) / u64::from(bytes).max(SMALL_BYTES);
    nanos_per_mib / u64::from(depth.max(1))
}

/// How long a request of this size takes at this depth on a target of this measure.
pub(super) fn expected(normal: u64, bytes: u32, depth: u32) -> u64 {
    let mib_20 = u64::from(bytes).max(SMALL_BYTES);
    ((u128::from(normal) * u128::from(mib_20) * u128::from(depth.max(1))) >> 20) as u64
}

/// The recent measure of one target and class, or nothing yet.
#[derive(Clone, Copy, Default)]
pub(super) struct Recent(Option<u64>);

impl Recent {
    pub fn get(self) -> Option<u64> {
        self.0
    }

    /// Moves a quarter of the way: four requests on, an old one is a third of the figure.
    pub fn add(&mut self, normal: u64) {
        self.0 = Some(self.0.map_or(normal, |recent| recent - recent / 4 + normal / 4));
    }
}

/// The usual measure of each class: the lower median of all targets that have one.
#[derive(Default)]
pub(super) struct Typical {
    /// Targets that have been measured.
    sampled: Vec<u32>,
    typical: [Option<u64>; CLASSES],
    /// How many targets each was made from.
    targets: [u32; CLASSES],
    finishes: usize,
    scratch: Vec<u64>,
}

impl Typical {
    /// The median; `None` with fewer than two targets, for then there is nothing to compare with.
    pub fn of(&self, class: usize) -> Option<u64> {
        self.typical[class].filter(|_| self.targets[class] >= 2)
    }

    /// The target was measured for the first time.
    pub fn know(&mut self, target: u32) {
        self.sampled.push(target);
    }

    /// A request has finished. The medians are made anew about once for each target's request, so that a request pays
    /// for one target.
    pub fn finished(&mut self, recent: impl Fn(u32) -> [Recent; CLASSES]) {
        self.finishes += 1;
        if self.finishes < self.sampled.len().max(4) {
            return;
        }
        self.finishes = 0;
        for class in 0..CLASSES {
            self.scratch.clear();
            self.scratch.extend(self.sampled.iter().filter_map(|target| recent(*target)[class].get()));
            self.targets[class] = self.scratch.len() as u32;
            if !self.scratch.is_empty() {
                let middle = (self.scratch.len() - 1) / 2;
                self.typical[class] = Some(*self.scratch.select_nth_unstable(middle).1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_and_small_requests_of_one_target_compare() {
        let large = normalise(400_000_000, 4 << 20, 1);
        assert_eq!(large, normalise(100_000_000, 1 << 20, 1));
        assert_eq!(large, normalise(800_000_000, 4 << 20, 2), "two at once take twice as long");
        assert_eq!(normalise(7, 0, 0), 28, "nothing counts as 256 KiB");
        assert_eq!(expected(large, 4 << 20, 2), 800_000_000);
        assert!(normalise(u64::MAX, 1, 1) > 0 && expected(u64::MAX, 1 << 20, 1) == u64::MAX);
    }

    #[test]
    fn the_median_needs_two_targets_and_follows_them() {
        let mut typical = Typical::default();
        let mut recent = [[Recent::default(); CLASSES]; 3];
        let run = |typical: &mut Typical, recent: [[Recent; CLASSES]; 3]| {
            (0..4).for_each(|_| typical.finished(|target| recent[target as usize]));
        };
        typical.know(0);
        recent[0][0].add(100);
        run(&mut typical, recent);
        assert_eq!(typical.of(0), None);
        for target in [1, 2] {
            typical.know(target);
            recent[target as usize][0].add(1000 * u64::from(target));
        }
        run(&mut typical, recent);
        assert_eq!((typical.of(0), typical.of(1)), (Some(1000), None));
        (0..50).for_each(|_| recent[1][0].add(40));
        run(&mut typical, recent);
        assert_eq!(typical.of(0), Some(100));
    }
}
