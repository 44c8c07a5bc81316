//! Time as the schedulers see it: the time in which this process has run.
//!
//! A process that was stopped (Ctrl-Z, a virtual machine that was suspended) finds the clock far ahead; nothing that it
//! waits for has had that time to answer.

/// The most that passes between two events. An end hears of something, if only of the time, more often than that.
const STEP_NANOS_MAX: u64 = 200_000_000;

/// Never goes back, and never jumps.
#[derive(Default)]
pub(crate) struct Clock {
    seen_nanos: u64,
    now_nanos: u64,
}

impl Clock {
    /// The real one says this.
    pub fn advance(&mut self, real_nanos: u64) {
        self.now_nanos += real_nanos.saturating_sub(self.seen_nanos).min(STEP_NANOS_MAX);
        self.seen_nanos = real_nanos.max(self.seen_nanos);
    }

    /// What the real one says when this one says `at`, or when the next event has to come for that.
    pub fn real(&self, at: u64) -> u64 {
        self.seen_nanos + at.saturating_sub(self.now_nanos).min(STEP_NANOS_MAX)
    }

    /// Nanoseconds since it was made.
    pub fn now(&self) -> u64 {
        self.now_nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_counts_as_a_step() {
        let mut clock = Clock::default();
        let steps = [0, 5, 5 + STEP_NANOS_MAX, 3_600_000_000_000, 3_600_000_000_007, 9];
        let times = steps.map(|real| {
            clock.advance(real);
            clock.now()
        });
        let step = STEP_NANOS_MAX;
        assert_eq!(times, [0, 5, 5 + step, 5 + 2 * step, 12 + 2 * step, 12 + 2 * step]);
    }
}
