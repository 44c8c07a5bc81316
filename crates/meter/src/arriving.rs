//! For how long at least one payload was arriving, on whatever stream.
//!
//! What the threads of several streams are busy with adds up to more than the time that passed; this does not. It tells a wire
//! that is full from one on which nothing is.

use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Of one end.
#[derive(Default)]
pub(crate) struct Arrivals(Mutex<Union>);

#[derive(Default)]
struct Union {
    payloads: u32,
    /// When the first of them began.
    since: Option<Instant>,
    /// Of those before.
    nanos: u64,
}

impl Union {
    fn nanos_until(&self, now: Instant) -> u64 {
        let passed = self.since.map_or(0, |since| now.saturating_duration_since(since).as_nanos() as u64);
        self.nanos + passed
    }
}

impl Arrivals {
    fn with<T>(&self, work: impl FnOnce(&mut Union) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn begin(&self, now: Instant) {
        self.with(|union| {
            union.payloads += 1;
            union.since.get_or_insert(now);
        });
    }

    pub(crate) fn end(&self, now: Instant) {
        self.with(|union| {
            union.payloads = union.payloads.saturating_sub(1);
            if union.payloads == 0 {
                union.nanos = union.nanos_until(now);
                union.since = None;
            }
        });
    }

    pub(crate) fn nanos_until(&self, now: Instant) -> u64 {
        self.with(|union| union.nanos_until(now))
    }
}

/// A payload arrives at this thread, for as long as this lives.
#[must_use = "it has arrived where this goes"]
pub struct Arriving {
    pub(crate) counted: bool,
    /// It belongs to the thread.
    pub(crate) thread: PhantomData<*const ()>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn moments_at_which_several_payloads_arrive_count_once() {
        let start = Instant::now();
        let at = |nanos| start + Duration::from_nanos(nanos);
        let arrivals = Arrivals::default();
        assert_eq!(arrivals.nanos_until(at(5)), 0);
        arrivals.begin(at(10));
        arrivals.begin(at(12));
        assert_eq!(arrivals.nanos_until(at(15)), 5);
        arrivals.end(at(20));
        assert_eq!(arrivals.nanos_until(at(25)), 15);
        arrivals.end(at(30));
        assert_eq!(arrivals.nanos_until(at(90)), 20, "nothing arrived since");
        arrivals.begin(at(100));
        arrivals.end(at(101));
        assert_eq!(arrivals.nanos_until(at(101)), 21);
    }
}
