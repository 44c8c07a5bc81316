//! How many bundles may be at making their files at a time. The metadata server is a target like any other: when it
//! becomes slow, more creates at a time only wait longer, and everybody else with them.
//!
//! Steered as the depth of a storage target is (`scheduler::congestion`): down when creates take longer than the fastest
//! of the last 10 to 20 s because they wait for one another, or for others; up while they do not. What is under way is
//! never stopped, and two may always be: one is served, one waits.

use crate::scheduler::{Policy, Steering};

/// Bytes that stand for a file beside its own: creating and closing it takes about as long as so many in a stream.
pub const FILE_COST_BYTES: u64 = 16 << 10;

/// What a bundle of fewer files takes says more about the way to the server than about the server.
const MEASURED_BYTES_MIN: u64 = 64 * FILE_COST_BYTES;

/// Paces one end's creates.
pub struct Pace {
    /// None: nobody wants to know of congestion.
    steering: Option<Steering>,
    under_way: u32,
}

/// A bundle whose files are being made.
#[derive(Clone, Copy)]
pub struct Making {
    begun_nanos: u64,
    depth: u32,
}

impl Pace {
    /// As many as `most` at first.
    pub fn new(policy: Policy, most: u32) -> Pace {
        let steered = matches!(policy, Policy::Adaptive(_) | Policy::Lads(_));
        Pace { steering: steered.then(|| Steering::new(most)), under_way: 0 }
    }

    /// How many may be under way.
    pub fn limit(&self) -> u32 {
        self.steering.as_ref().map_or(u32::MAX, Steering::depth)
    }

    /// May another one begin?
    pub fn allows(&self) -> bool {
        self.under_way < self.limit()
    }

    /// One begins.
    pub fn begin(&mut self, now_nanos: u64) -> Making {
        self.under_way += 1;
        Making { begun_nanos: now_nanos, depth: self.under_way }
    }

    /// One hangs, which tells nothing of those that do not.
    pub fn forget(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// One has ended that was worth so many bytes; there are `most` threads' worth of them at most.
    pub fn end(&mut self, making: Making, bytes: u64, now_nanos: u64, most: u32) {
        // Of those that begin and end together each sees fewer at one of its ends.
        let depth = making.depth.max(self.under_way);
        self.under_way = self.under_way.saturating_sub(1);
        if let Some(steering) = self.steering.as_mut().filter(|_| bytes >= MEASURED_BYTES_MIN) {
            let nanos = now_nanos.saturating_sub(making.begun_nanos);
            steering.ended(nanos, bytes, depth, now_nanos, most);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::scheduler::Adaptive;

    const MOST: u32 = 16;
    const BYTES: u64 = 1 << 20;

    /// Keeps as many under way as it may, on a server that makes `width` at a time, each in `nanos`.
    fn run(pace: &mut Pace, now: &mut u64, width: u64, nanos: u64, rounds: u32) -> u32 {
        for _ in 0..rounds {
            let mut begun = Vec::new();
            while pace.allows() && begun.len() < MOST as usize {
                begun.push(pace.begin(*now));
            }
            *now += nanos * (begun.len() as u64).div_ceil(width);
            begun.into_iter().for_each(|making| pace.end(making, BYTES, *now, MOST));
        }
        pace.limit()
    }

    #[test]
    fn fewer_are_under_way_when_creating_gets_slow_and_more_when_it_recovers() {
        let mut pace = Pace::new(Policy::Adaptive(Adaptive::default()), MOST);
        let mut now = 0;
        assert_eq!(run(&mut pace, &mut now, 64, 1_000_000, 50), MOST, "nothing waits");
        let slow = run(&mut pace, &mut now, 64, 10_000_000, 50);
        assert!(slow <= 4, "{slow} at a time on a server that takes ten times as long");
        // The slow time is usual by now: 20 s have passed.
        assert!(run(&mut pace, &mut now, 64, 10_000_000, 4000) >= MOST - 1);
        run(&mut pace, &mut now, 64, 50_000_000, 50);
        assert_eq!(run(&mut pace, &mut now, 64, 1_000_000, 400), MOST, "it is quick again");
    }

    #[test]
    fn a_narrow_server_gets_little_more_than_it_serves() {
        let mut pace = Pace::new(Policy::Adaptive(Adaptive::default()), MOST);
        let mut now = 0;
        // Alone at first, so that it is known how quick it is.
        let making = pace.begin(now);
        now += 1_000_000;
        pace.end(making, BYTES, now, MOST);
        let limit = run(&mut pace, &mut now, 2, 1_000_000, 200);
        assert!((2..=6).contains(&limit), "{limit} at a time on a server that serves 2");
    }

    #[test]
    fn bundles_of_a_few_files_say_nothing() {
        let mut pace = Pace::new(Policy::Adaptive(Adaptive::default()), MOST);
        let making = pace.begin(0);
        pace.end(making, FILE_COST_BYTES, 1_000, MOST);
        assert_eq!(run(&mut pace, &mut 1_000, 64, 20_000_000, 50), MOST, "not slow, but larger");
    }

    #[test]
    fn who_does_not_look_for_congestion_paces_nothing() {
        let mut pace = Pace::new(Policy::Layout, MOST);
        assert_eq!(run(&mut pace, &mut 0, 1, 1_000_000, 50), u32::MAX);
    }
}
