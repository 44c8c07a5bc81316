//! How long syncs take, and how many a target has at a time.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use haul_model::Target;

use super::LONG_NANOS;

/// What one target may have of the threads of a lane.
pub(super) fn a_third(threads: u32) -> u32 {
    (threads / 3).max(2)
}

/// How long the last syncs took.
#[derive(Default)]
pub(super) struct Lately {
    last: VecDeque<u64>,
    /// Their median, which one that hangs does not change.
    pub usual_nanos: u64,
}

impl Lately {
    /// The median is taken from so many; fewer than the least say nothing.
    pub const MOST: usize = 15;
    const FEWEST: usize = 5;

    pub fn add(&mut self, nanos: u64) {
        self.last.push_back(nanos);
        if self.last.len() > Self::MOST {
            self.last.pop_front();
        }
        if self.last.len() >= Self::FEWEST {
            let mut sorted: Vec<u64> = self.last.iter().copied().collect();
            sorted.sort_unstable();
            self.usual_nanos = sorted[sorted.len() / 2];
        }
    }
}

/// The same of all, and of each target that had a file to itself.
#[derive(Default)]
pub(super) struct Syncs {
    pub all: Lately,
    alone: BTreeMap<Target, Lately>,
}

impl Syncs {
    pub fn add(&mut self, targets: &[Target], nanos: u64) {
        self.all.add(nanos);
        if let [target] = targets {
            self.alone.entry(*target).or_default().add(nanos);
        }
    }

    /// How many may be under way on these, where a lane has so many threads. Two keep a target busy; more of them only where
    /// they take so little that each is still done in time.
    pub fn at_a_time(&self, targets: &[Target], threads: u32) -> u32 {
        let alone = match targets {
            [target] => self.alone.get(target).map(|it| it.usual_nanos).filter(|usual| *usual > 0),
            _ => None,
        };
        let in_time = LONG_NANOS.checked_div(alone.unwrap_or(self.all.usual_nanos)).unwrap_or(0);
        in_time.clamp(2, a_third(threads).into()) as u32
    }

    /// So many that take long tell that their target does. A single one that hangs tells little of it.
    pub fn telling(&self, targets: &[Target], threads: u32) -> u32 {
        self.at_a_time(targets, threads).min(threads / 6).max(2)
    }
}
