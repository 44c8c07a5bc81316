//! Files that were written a moment ago.
//!
//! Whether a file has changed is told by its times, and these have steps: as long as the clock of the file system stands where it
//! stood at the last change, another one leaves no trace. So nothing is read of a file before that clock has gone on.

use std::time::Duration;

use haul_model::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Kernels before 6.13 take the time of the last tick (100 of them a second, on some); clocks of servers are a little off.
const STEP: Duration = Duration::from_millis(20);
/// File systems that have whole seconds (Lustre, ext4 with small inodes),
const STEP_OF_SECONDS: Duration = Duration::from_secs(1);
/// or every other one (FAT, which knows no time of change beside that of modification).
const STEP_OF_FAT: Duration = Duration::from_secs(2);

/// How long until what is written to a file cannot have this time of change any more.
pub(crate) fn time_left(changed: Timestamp) -> Duration {
    let now = clock_gettime(ClockId::Realtime);
    left(changed, (now.tv_sec, now.tv_nsec as u32))
}

fn left(changed: Timestamp, (seconds, nanos): (i64, u32)) -> Duration {
    const SECOND: i128 = 1_000_000_000;
    // What is cut to seconds is the time of a tick, too.
    let step = match (changed.nanos, changed.seconds % 2) {
        (0, 0) => STEP_OF_FAT + STEP,
        (0, _) => STEP_OF_SECONDS + STEP,
        _ => STEP,
    };
    let nanos_of = |seconds, nanos| i128::from(seconds) * SECOND + i128::from(nanos);
    let since: i128 = nanos_of(seconds, nanos) - nanos_of(changed.seconds, changed.nanos);
    match u64::try_from(since).map(Duration::from_nanos) {
        Ok(since) => step.saturating_sub(since),
        // In the future: that is another clock, of which nothing is known.
        Err(_) => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_long_ago_is_not_waited_for() {
        let at = |seconds, nanos| Timestamp { seconds, nanos };
        let millis = Duration::from_millis;
        assert_eq!(left(at(100, 5_000_000), (100, 5_000_000)), STEP);
        assert_eq!(left(at(100, 5_000_000), (100, 20_000_000)), millis(5));
        assert_eq!(left(at(100, 995_000_000), (101, 5_000_000)), millis(10));
        assert_eq!(left(at(100, 5_000_000), (100, 25_000_000)), Duration::ZERO);
        assert_eq!(left(at(100, 5_000_000), (200, 0)), Duration::ZERO);
        // Whole seconds.
        assert_eq!(left(at(101, 0), (101, 250_000_000)), millis(770));
        assert_eq!(left(at(101, 0), (102, 5_000_000)), millis(15), "the clock may be a tick behind");
        assert_eq!(left(at(101, 0), (102, 20_000_000)), Duration::ZERO);
        // Those that FAT has.
        assert_eq!(left(at(100, 0), (100, 250_000_000)), millis(1770));
        assert_eq!(left(at(100, 0), (101, 900_000_000)), millis(120));
        assert_eq!(left(at(100, 0), (102, 20_000_000)), Duration::ZERO);
        // Another clock.
        assert_eq!(left(at(100, 1), (99, 999_999_999)), Duration::ZERO);
        assert_eq!(left(at(i64::MAX, 1), (0, 0)), Duration::ZERO);
        assert_eq!(left(at(0, 1), (i64::MAX, 0)), Duration::ZERO);
    }
}
