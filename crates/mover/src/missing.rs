//! Payloads that are said to have left and do not come, while messages do.
//!
//! The source announces a payload when it gives it to a data stream. What is lost on the way then ends the stream at one of its
//! ends, as a rule; but not where somebody in between confirms what he does not pass on (a proxy, a firewall with a mind of its
//! own). Nothing tells that from a source that waits but the time: so long nothing comes over any data stream only if nothing will.

use std::time::{Duration, Instant};

/// As long as a path may be dead with bytes under way (`haul_transport::tcp::Settings`).
const QUIET_MAX: Duration = Duration::from_secs(90);
/// How often to look.
const BETWEEN: Duration = Duration::from_secs(1);

/// What came of the payloads of one connection.
pub(crate) struct Missing {
    /// By the last look.
    arrived: Option<u64>,
    looked: Instant,
    quiet: Duration,
    quiet_max: Duration,
}

impl Missing {
    /// Of a connection that stands since now.
    pub(crate) fn new(now: Instant) -> Missing {
        Missing { arrived: None, looked: now, quiet: Duration::ZERO, quiet_max: quiet_max() }
    }

    /// Is it time for another look?
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.looked) >= BETWEEN
    }

    /// Has anything come since the last look?
    pub(crate) fn has_more_come(&self, arrived: Option<u64>) -> bool {
        self.arrived.is_some_and(|before| arrived.is_some_and(|arrived| arrived > before))
    }

    /// `awaited`: something is announced that has not come. `arrived`: bytes that have come in all, if that is known. How long it has been
    /// quiet, if that is too long.
    pub(crate) fn look(&mut self, awaited: bool, arrived: Option<u64>, now: Instant) -> Option<Duration> {
        // While this process was stopped nobody looked.
        let passed = now.saturating_duration_since(self.looked).min(2 * BETWEEN);
        self.looked = now;
        let is_quiet = awaited && arrived.is_some() && arrived == self.arrived;
        self.quiet = if is_quiet { self.quiet + passed } else { Duration::ZERO };
        self.arrived = arrived;
        (self.quiet >= self.quiet_max).then_some(self.quiet)
    }
}

#[cfg(not(feature = "faults"))]
fn quiet_max() -> Duration {
    QUIET_MAX
}

/// For tests: `HAUL_TEST_QUIET_MAX=SECONDS`.
#[cfg(feature = "faults")]
fn quiet_max() -> Duration {
    let seconds = |text: String| text.parse().expect("seconds");
    std::env::var("HAUL_TEST_QUIET_MAX").map_or(QUIET_MAX, |text| Duration::from_secs(seconds(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Looks(Missing, Instant);

    impl Looks {
        fn new() -> Looks {
            let now = Instant::now();
            Looks(Missing::new(now), now)
        }

        /// So many seconds pass, with a look in each; whether it was too long at any of them.
        fn pass(&mut self, seconds: u64, awaited: bool, arrived: impl Fn(u64) -> Option<u64>) -> bool {
            let second = Duration::from_secs(1);
            (0..seconds).filter(|number| self.look(second, awaited, arrived(*number))).count() > 0
        }

        fn look(&mut self, later: Duration, awaited: bool, arrived: Option<u64>) -> bool {
            self.1 += later;
            self.0.is_due(self.1) && self.0.look(awaited, arrived, self.1).is_some()
        }
    }

    #[test]
    fn what_is_announced_and_does_not_come_is_missing_after_a_while() {
        let mut looks = Looks::new();
        assert!(!looks.pass(QUIET_MAX.as_secs(), true, |_| Some(5)));
        assert!(looks.pass(1, true, |_| Some(5)));
    }

    #[test]
    fn a_byte_now_and_then_is_enough() {
        assert!(!Looks::new().pass(10_000, true, |second| Some(second / 80)));
    }

    #[test]
    fn nothing_is_missing_where_nothing_is_announced_or_nobody_knows() {
        assert!(!Looks::new().pass(1000, false, |_| Some(5)));
        assert!(!Looks::new().pass(1000, true, |_| None));
        let mut looks = Looks::new();
        for _ in 0..20 {
            assert!(
                !looks.pass(80, true, |_| Some(5)) && !looks.pass(1, false, |_| Some(5)),
                "each for itself"
            );
        }
    }

    #[test]
    fn time_in_which_nobody_looked_does_not_count() {
        let mut looks = Looks::new();
        for _ in 0..10 {
            assert!(!looks.look(Duration::from_secs(3600), true, Some(5)));
        }
    }
}
