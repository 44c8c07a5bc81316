//! Connections that come and go without bringing anything.
//!
//! Where an attempt to connect fails, `--reconnect` says for how long others follow. But there are paths on which every connection
//! stands and is lost again as soon as something passes: a tunnel that swallows long packets, somebody who alters payloads. On
//! those a transfer must come to an end, too.

use std::time::{Duration, Instant};

/// So many connections in a row that brought nothing may be bad luck.
const IN_VAIN_MAX: u32 = 5;
/// A connection that stood for so long was of use to somebody: storage may be busy for hours with what tells of no progress.
const LONG: Duration = Duration::from_secs(600);
/// The other end of a session is waited for at least so long, however short `--reconnect` is: nothing was lost yet.
const FIRST_MIN: Duration = Duration::from_secs(20);
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How long to try for the first connection of a session, or for another one after it was lost.
pub(crate) fn in_all(reconnect: Duration, first: bool) -> Duration {
    if first { reconnect.max(FIRST_MIN) } else { reconnect }
}

/// How long to wait before the next attempt where the first of them was so long ago.
pub(crate) fn pause(tried_for: Duration) -> Duration {
    tried_for.mul_f32(0.2).clamp(PAUSE_MIN, PAUSE_MAX)
}

/// The lost connections since something came of one.
#[derive(Default)]
pub(crate) struct InVain {
    progress: u64,
    count: u32,
    /// When the first of them was lost.
    since: Option<Instant>,
}

impl InVain {
    /// A connection is lost that stood for so long. `progress` is a number that has changed if anything came of it; it also falls, where
    /// a file turns out to be smaller than it was.
    pub(crate) fn lost(&mut self, progress: u64, stood: Duration, now: Instant) {
        if progress != self.progress || stood >= LONG {
            *self = InVain { progress, ..InVain::default() };
        } else {
            self.count += 1;
            self.since.get_or_insert(now);
        }
    }

    /// Of so many streams, on how many the next one sends payloads: a quarter, and a quarter of that, for each that brought nothing.
    pub(crate) fn busy_of(&self, streams: usize) -> usize {
        (streams >> (2 * self.count).min(31)).max(1)
    }

    /// Has anything come since the last one was lost?
    pub(crate) fn is_over(&self, progress: u64) -> bool {
        progress != self.progress
    }

    /// Nothing will come of the next one either.
    pub(crate) fn is_hopeless(&self, patience: Duration, now: Instant) -> bool {
        self.count >= IN_VAIN_MAX && self.tried_for(now) >= patience
    }

    /// How long to wait before the next one: not at all, unless the last one brought nothing.
    pub(crate) fn pause(&self, now: Instant) -> Option<Duration> {
        (self.count > 0).then(|| pause(self.tried_for(now)))
    }

    fn tried_for(&self, now: Instant) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIEF: Duration = Duration::from_secs(90);
    const PATIENCE: Duration = Duration::from_secs(120);

    #[test]
    fn the_first_connection_is_no_other_one() {
        assert_eq!(in_all(Duration::ZERO, true), FIRST_MIN);
        assert_eq!(in_all(PATIENCE, true), PATIENCE);
        assert_eq!(in_all(Duration::ZERO, false), Duration::ZERO);
    }

    #[test]
    fn connections_that_bring_something_may_be_lost_for_ever() {
        let (mut vain, start) = (InVain::default(), Instant::now());
        for number in 0..1000 {
            let now = start + Duration::from_secs(60) * number;
            // Every third one brings something.
            vain.lost(u64::from(number / 3 + 1), BRIEF, now);
            assert!(!vain.is_hopeless(PATIENCE, now), "after {number}");
            assert_eq!(vain.pause(now).is_none(), number % 3 == 0);
        }
    }

    #[test]
    fn what_comes_counts_also_after_a_file_has_become_smaller() {
        let (mut vain, start) = (InVain::default(), Instant::now());
        for number in 0..100 {
            let now = start + Duration::from_secs(60) * number;
            // It was announced with 10 GB, and has 100 bytes now.
            let file = if number < 2 { 10_000_000_000 } else { 100 };
            vain.lost(file + 1_000_000 * u64::from(number + 1), BRIEF, now);
            assert!(!vain.is_hopeless(PATIENCE, now) && vain.pause(now).is_none(), "after {number}");
        }
    }

    #[test]
    fn those_that_bring_nothing_end_after_a_number_and_a_time() {
        let (mut vain, start) = (InVain::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        // Fast ones: the time counts.
        vain.lost(7, BRIEF, at(0));
        for second in 1..=120 {
            vain.lost(7, BRIEF, at(second));
            assert!(!vain.is_hopeless(PATIENCE, at(second)));
        }
        vain.lost(7, BRIEF, at(121));
        assert!(vain.is_hopeless(PATIENCE, at(121)));
        // Slow ones: their number.
        vain.lost(8, BRIEF, at(200));
        for number in 1..=4 {
            vain.lost(8, BRIEF, at(200 + 1000 * number));
            assert!(!vain.is_hopeless(PATIENCE, at(200 + 1000 * number)));
        }
        vain.lost(8, BRIEF, at(6000));
        assert!(vain.is_hopeless(PATIENCE, at(6000)));
    }

    #[test]
    fn the_fewer_bring_anything_the_fewer_streams_send() {
        let mut vain = InVain::default();
        let mut busy = Vec::new();
        for number in 0..6 {
            busy.push([64, 4, 1].map(|streams| vain.busy_of(streams)));
            vain.lost(u64::from(number == 4), BRIEF, Instant::now());
            assert!(!vain.is_over(u64::from(number == 4)) && vain.is_over(7));
        }
        assert_eq!(busy, [[64, 4, 1], [16, 1, 1], [4, 1, 1], [1, 1, 1], [1, 1, 1], [64, 4, 1]]);
    }

    #[test]
    fn a_connection_that_stood_long_was_not_in_vain() {
        let (mut vain, start) = (InVain::default(), Instant::now());
        for hour in 1..100 {
            let now = start + Duration::from_secs(3600 * hour);
            vain.lost(0, LONG, now);
            assert!(!vain.is_hopeless(PATIENCE, now) && vain.pause(now).is_none());
        }
    }

    #[test]
    fn the_longer_it_goes_on_the_longer_are_the_pauses() {
        let (mut vain, start) = (InVain::default(), Instant::now());
        assert_eq!(vain.pause(start), None);
        vain.lost(0, BRIEF, start);
        assert_eq!(vain.pause(start), Some(PAUSE_MIN));
        assert_eq!(vain.pause(start + Duration::from_secs(10)), Some(Duration::from_secs(2)));
        assert_eq!(vain.pause(start + Duration::from_secs(1000)), Some(PAUSE_MAX));
    }
}
