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
    let bytes = u64::from(bytes).max(SMALL_BYTES);
    ((u128::from(normal) * u128::from(bytes) * u128::from(depth.max(1))) >> 20) as u64
}

/// What the last requests of one target and class took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Measure {
    /// As [`normalise`] has it: what the target gets done.
    pub normal: u64,
    /// For a MiB, whatever else was under way: what a request waits. On a target that serves many at once it says more.
    pub latency: u64,
}

/// The recent measure of one target and class, or nothing yet.
#[derive(Clone, Copy, Default)]
pub(super) struct Recent(Option<Measure>);

impl Recent {
    pub fn get(self) -> Option<Measure> {
        self.0
    }

    /// Moves a quarter of the way: four requests on, an old one is a third of the figure.
    pub fn add(&mut self, measure: Measure) {
        let closer = |old: u64, new: u64| old - old / 4 + new / 4;
        self.0 = Some(self.0.map_or(measure, |recent| Measure {
            normal: closer(recent.normal, measure.normal),
            latency: closer(recent.latency, measure.latency),
        }));
    }
}

/// The usual measure of each class: the lower medians of all targets that have one.
#[derive(Default)]
pub(super) struct Typical {
    /// Targets that have been measured.
    sampled: Vec<u32>,
    typical: [Option<Measure>; CLASSES],
    finishes: usize,
    scratch: Vec<u64>,
}

impl Typical {
    /// The medians; `None` with fewer than two targets, for then there is nothing to compare with.
    pub fn of(&self, class: usize) -> Option<Measure> {
        self.typical[class]
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
            let recent = |target: &u32| recent(*target)[class].get();
            let normal =
                median(&mut self.scratch, self.sampled.iter().filter_map(|it| Some(recent(it)?.normal)));
            let latency =
                median(&mut self.scratch, self.sampled.iter().filter_map(|it| Some(recent(it)?.latency)));
            self.typical[class] = normal.zip(latency).map(|(normal, latency)| Measure { normal, latency });
        }
    }
}

fn median(scratch: &mut Vec<u64>, of: impl Iterator<Item = u64>) -> Option<u64> {
    scratch.clear();
    scratch.extend(of);
    let middle = (scratch.len().max(1) - 1) / 2;
    (scratch.len() >= 2).then(|| *scratch.select_nth_unstable(middle).1)
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
        let measure = |normal| Measure { normal, latency: 2 * normal };
        typical.know(0);
        recent[0][0].add(measure(100));
        run(&mut typical, recent);
        assert_eq!(typical.of(0), None);
        for target in [1, 2] {
            typical.know(target);
            recent[target as usize][0].add(measure(1000 * u64::from(target)));
        }
        run(&mut typical, recent);
        assert_eq!((typical.of(0), typical.of(1)), (Some(measure(1000)), None));
        (0..50).for_each(|_| recent[1][0].add(measure(40)));
        run(&mut typical, recent);
        assert_eq!(typical.of(0), Some(measure(100)));
    }
}
