//! Which targets are congested, and how much may be under way on the others.
//!
//! Congested is a target that most of its last few requests say is slow: they took longer than the threshold T, which is
//! [`SLOW`] times the median of all targets, or set; and each waited longer than is usual, for a target that serves many
//! at once gets little done with one request, however healthy it is. One that is being waited for that long counts at once. Then one
//! request at a time goes there, in small pieces ([`Pace::Gentle`](super::Pace)). What differs is when:
//!
//! - [`Policy::Lads`] serves others M times before it tries again (M is how many times slower than the median the
//!   target is, or set);
//! - [`Policy::Adaptive`] keeps one request under way there, as far as a third of the threads goes, and steers how many
//!   are under way on each of the others by their latency, as TCP Vegas does: up while latency stays near its minimum,
//!   down when requests begin to queue at the target.

use super::service::{Measure, expected, normalise};
use super::{CLASSES, SHARE};

/// How the next target is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// One queue in the order of the requests, whatever their targets and gates: what tools do that know no layout.
    FileOrder,
    /// The target with the fewest under way; congestion is not looked for.
    Layout,
    /// Congested targets are skipped.
    Lads(Lads),
    /// Depth follows latency; congested targets get one request at a time.
    Adaptive(Adaptive),
}

/// Settings of [`Policy::Lads`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lads {
    /// T, in nanoseconds for a MiB with one request under way; `None`: from the median.
    pub threshold_nanos: Option<u64>,
    /// Requests that are looked back at, 1 to 8.
    pub window: u8,
    /// M, in picks; `None`: from the median.
    pub skip: Option<u32>,
}

/// Settings of [`Policy::Adaptive`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Adaptive {
    /// As in [`Lads`].
    pub threshold_nanos: Option<u64>,
    /// As in [`Lads`].
    pub window: u8,
}

/// Requests that are looked back at: with three, one that is slow by chance says nothing, and two in a row do.
const WINDOW: u8 = 3;

impl Default for Lads {
    fn default() -> Self {
        Lads { threshold_nanos: None, window: WINDOW, skip: None }
    }
}

impl Default for Adaptive {
    fn default() -> Self {
        Adaptive { threshold_nanos: None, window: WINDOW }
    }
}

/// So many times slower than the median is congested.
const SLOW: u64 = 3;
/// And a latency of so many halves of the usual one.
const LATE_HALVES: u64 = 3;
/// A request under way counts as slow when it has taken so many times the threshold.
const OVERDUE: u64 = 2;
/// The most that M is made.
const SKIP_MAX: u64 = 100;
/// One request is served and one waits: less would let a healthy target idle between two requests.
const DEPTH_MIN: u32 = 2;
/// The controller counts in sixteenths of a request.
const ONE: u32 = 16;
/// Grow while fewer requests than this wait at the target, shrink when more than that do (Vegas' alpha and beta).
const WAITING_FEW: u64 = ONE as u64;
const WAITING_MANY: u64 = 3 * ONE as u64;
/// The minimum of latency is that of this span and the one before: a page cache, a move, a tenant change it.
const SPAN_NANOS: u64 = 10_000_000_000;
/// Longer latencies (3 days) all count as this.
const LATENCY_MAX: u64 = 1 << 48;

impl Policy {
    /// A request of this size that takes longer is slow. `typical` are the medians.
    pub(super) fn slow_nanos(&self, typical: Option<Measure>, bytes: u32, depth: u32) -> Option<u64> {
        let set = match self {
            Policy::FileOrder | Policy::Layout => return None,
            Policy::Lads(lads) => lads.threshold_nanos,
            Policy::Adaptive(adaptive) => adaptive.threshold_nanos,
        };
        if let Some(threshold) = set {
            return Some(expected(threshold, bytes, depth));
        }
        let Measure { normal, latency } = typical?;
        let slow = expected(normal.saturating_mul(SLOW), bytes, depth);
        Some(slow.max(expected(latency.saturating_mul(LATE_HALVES) / 2, bytes, 1)))
    }

    /// How long a request may be under way before it counts as slow, although it is not done.
    pub(super) fn overdue_nanos(slow_nanos: u64) -> u64 {
        slow_nanos.saturating_mul(OVERDUE)
    }

    fn window(&self) -> u8 {
        match self {
            Policy::FileOrder | Policy::Layout => WINDOW,
            Policy::Lads(lads) => lads.window.clamp(1, 8),
            Policy::Adaptive(adaptive) => adaptive.window.clamp(1, 8),
        }
    }

    /// M for a target of which the last requests say `recent`. Without an answer, as long as can be.
    pub(super) fn skip(&self, recent: Option<Measure>, typical: Option<Measure>) -> u64 {
        match self {
            Policy::Lads(Lads { skip: Some(skip), .. }) => u64::from(*skip),
            Policy::Lads(_) => match recent.zip(typical) {
                Some((recent, typical)) => (recent.normal / typical.normal.max(1)).clamp(1, SKIP_MAX),
                None => SKIP_MAX,
            },
            _ => 0,
        }
    }

    /// How many requests on congested targets may be under way while others have work.
    pub(super) fn gentle_max(&self, threads: u32) -> u32 {
        if matches!(self, Policy::Adaptive(_)) { threads / SHARE } else { 0 }
    }
}

/// What the last requests say about one target.
#[derive(Clone, Copy)]
pub(super) struct Signal {
    /// The last eight, the newest lowest: a slow one is a 1.
    slow: u8,
    depth: u32,
    /// Nothing has queued yet: depth grows by one with each request.
    starting: bool,
    /// Shortest latency of this span and the last.
    fastest: [[u64; 2]; CLASSES],
    span_ends_nanos: u64,
}

impl Default for Signal {
    fn default() -> Self {
        Signal {
            slow: 0,
            depth: DEPTH_MIN * ONE,
            starting: true,
            fastest: [[u64::MAX; 2]; CLASSES],
            span_ends_nanos: 0,
        }
    }
}

impl Signal {
    pub fn is_congested(&self, policy: &Policy) -> bool {
        let window = policy.window();
        let recent = self.slow & (u8::MAX >> (8 - window));
        recent.count_ones() * 2 > u32::from(window)
    }

    /// A request was answered.
    pub fn observe(&mut self, slow: bool) {
        self.slow = self.slow << 1 | u8::from(slow);
    }

    /// It is being waited for: that says as much as a window full of slow requests.
    pub fn overdue(&mut self) {
        self.slow = u8::MAX;
        (self.depth, self.starting) = (DEPTH_MIN * ONE, true);
    }

    /// How many may be under way.
    pub fn depth(&self) -> u32 {
        self.depth / ONE
    }

    /// A request of this class had this latency (for a MiB) when `depth` were under way; `most` may be.
    pub fn steer(&mut self, class: usize, latency: u64, depth: u32, now_nanos: u64, most: u32) {
        let latency = latency.clamp(1, LATENCY_MAX);
        if now_nanos >= self.span_ends_nanos {
            self.fastest.iter_mut().for_each(|fastest| *fastest = [u64::MAX, fastest[0]]);
            self.span_ends_nanos = now_nanos.saturating_add(SPAN_NANOS);
        }
        let fastest = &mut self.fastest[class];
        fastest[0] = fastest[0].min(latency);
        let fastest = fastest[0].min(fastest[1]);
        // By Little's law: of `depth` requests, the part of latency above the minimum is what waits.
        let waiting = u64::from(depth.min(1 << 12) * ONE) * (latency - fastest) / latency;
        if waiting < WAITING_FEW {
            // A depth that is not used has shown nothing. Half will do: of those that end together the last sees few.
            if 2 * depth * ONE >= self.depth {
                self.depth += if self.starting { ONE } else { (ONE * ONE / self.depth).max(1) };
            }
        } else {
            self.starting = false;
            if waiting > WAITING_MANY {
                self.depth = self.depth.saturating_sub((2 * ONE * ONE / self.depth).max(1));
            }
        }
        self.depth = self.depth.clamp(DEPTH_MIN * ONE, most.max(DEPTH_MIN) * ONE);
    }
}

/// The depth of one target alone, without queues: what paces creates.
pub struct Steering(Signal);

impl Steering {
    /// As deep as `most` at first: it is not slow before it was seen to be.
    pub fn new(most: u32) -> Steering {
        let depth = most.clamp(DEPTH_MIN, 1 << 12) * ONE;
        Steering(Signal { depth, starting: false, ..Signal::default() })
    }

    /// How many may be under way.
    pub fn depth(&self) -> u32 {
        self.0.depth()
    }

    /// A request of so many bytes took so long, and `depth` were under way; `most` may be.
    pub fn ended(&mut self, nanos: u64, bytes: u64, depth: u32, now_nanos: u64, most: u32) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.0.steer(0, normalise(nanos, bytes, 1), depth, now_nanos, most.min(1 << 12));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adaptive() -> Policy {
        Policy::Adaptive(Adaptive::default())
    }

    #[test]
    fn one_slow_request_says_nothing_and_two_of_three_do() {
        let mut signal = Signal::default();
        signal.observe(true);
        assert!(!signal.is_congested(&adaptive()));
        signal.observe(false);
        signal.observe(true);
        assert!(signal.is_congested(&adaptive()));
        signal.observe(false);
        signal.observe(false);
        assert!(!signal.is_congested(&adaptive()));
        signal.overdue();
        assert!(signal.is_congested(&adaptive()));
        let one = Policy::Lads(Lads { window: 0, ..Lads::default() });
        signal.observe(false);
        assert!(!signal.is_congested(&one), "a window of one follows each request");
    }

    #[test]
    fn thresholds_and_skips_come_from_the_median_or_are_set() {
        let measure = |normal, latency| Some(Measure { normal, latency });
        let mib = 1 << 20;
        assert_eq!(adaptive().slow_nanos(measure(100, 100), mib, 1), Some(300));
        assert_eq!(adaptive().slow_nanos(measure(100, 100), 2 * mib, 4), Some(2400), "a serial device");
        let wide = measure(100, 1000);
        assert_eq!(adaptive().slow_nanos(wide, mib, 1), Some(1500), "usual latency is not slow");
        assert_eq!(adaptive().slow_nanos(None, mib, 1), None);
        assert_eq!(Policy::Layout.slow_nanos(wide, mib, 1), None);
        let lads = Policy::Lads(Lads { threshold_nanos: Some(7), ..Lads::default() });
        assert_eq!(lads.slow_nanos(wide, mib, 3), Some(21));
        assert_eq!(lads.skip(measure(1000, 1), measure(100, 1)), 10);
        assert_eq!(lads.skip(None, wide), SKIP_MAX);
        let set = Policy::Lads(Lads { skip: Some(3), ..Lads::default() });
        assert_eq!(set.skip(measure(1000, 1), measure(100, 1)), 3);
    }

    /// A device that serves `width` at once, each in `nanos`.
    fn depth_after(width: u32, most: u32) -> u32 {
        let mut signal = Signal::default();
        for round in 0..2000 {
            let depth = signal.depth();
            let latency = 1_000_000 * u64::from(depth.max(width)) / u64::from(width);
            signal.steer(0, latency, depth, round, most);
        }
        signal.depth()
    }

    #[test]
    fn depth_settles_where_requests_begin_to_queue() {
        assert!((2..=4).contains(&depth_after(1, 64)), "{}", depth_after(1, 64));
        assert!((9..=12).contains(&depth_after(8, 64)), "{}", depth_after(8, 64));
        assert_eq!(depth_after(1000, 21), 21, "no further than the cap");
        assert_eq!(depth_after(8, 1), DEPTH_MIN, "the cap itself holds elsewhere");
    }

    #[test]
    fn a_minimum_is_forgotten() {
        let mut signal = Signal::default();
        signal.steer(0, 1_000, 2, 0, 64);
        for round in 1..100 {
            signal.steer(0, 1_000_000, 2, round * SPAN_NANOS / 10, 64);
        }
        signal.steer(0, 1_000_000, signal.depth(), 11 * SPAN_NANOS, 64);
        assert!(signal.depth() > DEPTH_MIN, "as fast as it gets now");
    }
}
