//! When a device is done with what it is given, one request after the other.
//!
//! Pure: times are since some beginning. A request starts when the one before is done, or when it arrived if that is
//! later, whatever the thread that waits for it does: oversleeping is made up for while there is more to do, so a busy
//! device does exactly its rate, and idle time is never saved up.

use std::time::Duration;

/// Longest that one reservation takes, but for the slowest rates.
const PIECE_SECONDS: f64 = 0.02;
const PIECE_BYTES_MIN: u64 = 4 << 10;
const PIECE_BYTES_MAX: u64 = 256 << 10;

/// What a device can do; `None` is without limit.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Speed {
    /// Bytes a second, both directions together.
    pub bytes_per_second: Option<f64>,
    /// Requests a second, of any size.
    pub requests_per_second: Option<f64>,
}

impl Speed {
    /// Nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        self.bytes_per_second.is_none() && self.requests_per_second.is_none()
    }

    /// How much of a request of so many bytes is reserved at once.
    pub fn piece_bytes(&self, bytes: u64) -> u64 {
        let rate = self.bytes_per_second.unwrap_or(f64::INFINITY);
        let piece = (rate * PIECE_SECONDS).min(PIECE_BYTES_MAX as f64) as u64;
        bytes.min(piece.max(PIECE_BYTES_MIN))
    }
}

/// The time table of one device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    free_at: Duration,
}

impl Pace {
    /// A request that arrived then is next.
    pub fn begin(&mut self, arrived: Duration, speed: Speed) {
        self.free_at = self.free_at.max(arrived);
        if let Some(rate) = speed.requests_per_second {
            self.free_at += Duration::from_secs_f64(1.0 / rate);
        }
    }

    /// When so many more bytes of it are done.
    pub fn reserve(&mut self, bytes: u64, speed: Speed) -> Duration {
        if let Some(rate) = speed.bytes_per_second {
            self.free_at += Duration::from_secs_f64(bytes as f64 / rate);
        }
        self.free_at
    }

    /// It stood still until now: that time is gone.
    pub fn not_before(&mut self, now: Duration) {
        self.free_at = self.free_at.max(now);
    }

    /// What was reserved beyond now is given back.
    pub fn restart(&mut self, now: Duration) {
        self.free_at = now;
    }
}

/// Regular pauses: the first `pause` of each `period`, counted from the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stalls {
    /// How long.
    pub pause: Duration,
    /// From one beginning to the next; longer than `pause`.
    pub period: Duration,
}

impl Stalls {
    /// When the pause ends in which `now` is.
    pub fn end_of_pause(&self, now: Duration) -> Option<Duration> {
        let into = now.as_nanos() % self.period.as_nanos().max(1);
        let rest = self.pause.as_nanos().checked_sub(into).filter(|rest| *rest > 0)?;
        Some(now + Duration::from_nanos(rest as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_busy_device_does_its_rate_and_an_idle_one_saves_nothing() {
        let speed = Speed { bytes_per_second: Some(1e6), requests_per_second: None };
        let mut pace = Pace::default();
        for _ in 0..10 {
            pace.begin(SECOND, speed);
            for _ in 0..10 {
                pace.reserve(10_000, speed);
            }
        }
        assert_eq!(pace.reserve(0, speed), 2 * SECOND, "1 MB that arrived after one second");
        pace.begin(10 * SECOND, speed);
        assert_eq!(pace.reserve(500_000, speed), 10 * SECOND + SECOND / 2);
    }

    #[test]
    fn requests_cost_time_of_their_own() {
        let speed = Speed { bytes_per_second: None, requests_per_second: Some(100.0) };
        let mut pace = Pace::default();
        (0..200).for_each(|_| pace.begin(Duration::ZERO, speed));
        assert_eq!(pace.reserve(1 << 30, speed), 2 * SECOND);
    }

    #[test]
    fn pieces_are_short_in_time_and_never_empty() {
        let speed = |rate| Speed { bytes_per_second: Some(rate), requests_per_second: None };
        assert_eq!(speed(4e6).piece_bytes(1 << 20), 80_000);
        assert_eq!(speed(1e9).piece_bytes(1 << 20), PIECE_BYTES_MAX);
        assert_eq!(speed(10.0).piece_bytes(1 << 20), PIECE_BYTES_MIN);
        assert_eq!(speed(10.0).piece_bytes(100), 100);
        assert_eq!(Speed::default().piece_bytes(1 << 20), PIECE_BYTES_MAX);
    }

    #[test]
    fn pauses_come_regularly() {
        let stalls = Stalls { pause: SECOND, period: 5 * SECOND };
        assert_eq!(stalls.end_of_pause(SECOND / 4), Some(SECOND));
        assert_eq!(stalls.end_of_pause(SECOND), None);
        assert_eq!(stalls.end_of_pause(10 * SECOND), Some(11 * SECOND));
        assert_eq!(stalls.end_of_pause(14 * SECOND), None);
    }
}
