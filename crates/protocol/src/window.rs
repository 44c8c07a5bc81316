//! How many of its slots an end uses.
//!
//! As many as go by while one of them is away, twice over, and a few more: enough that neither storage nor the network waits for the
//! other, and no more, because a slot that comes back soon is still in the processor's cache, and one that was never used costs
//! no memory. *Away* is the shortest trip of late (over the network and back; out of this end) and what storage takes, with what that
//! varies by (as TCP reckons how long an answer may take: RFC 6298). It grows at once and shrinks over seconds.
//!
//! Where files are on several targets all slots are used: which of them will be slow is not known beforehand.

/// At least so long is counted before anything is concluded.
const PERIOD_NANOS_MIN: u64 = 10_000_000;
/// What is not needed any more goes within a few times this.
const SHRINK_NANOS: u64 = 2_000_000_000;
/// The shortest trip is that of the last one or two times this.
const TRIP_NANOS: u64 = 5_000_000_000;
/// Times what goes by: one part is away while the other one is being used.
const TIMES: u64 = 2;
/// Parts of a slot in which it is reckoned.
const PARTS: u64 = 1024;

/// Reckons it from what happens.
pub(crate) struct Window {
    least: u64,
    most: u64,
    /// In parts of a slot.
    limit: u64,
    /// Slots that went by in this period, and when it began.
    count: u64,
    since_nanos: u64,
    storage: Varying,
    /// The shortest trips of the last while and of this one, and when this one began.
    trips: [Option<u64>; 2],
    trips_since_nanos: u64,
}

/// How long something takes, and what that varies by.
#[derive(Default)]
struct Varying {
    mean_nanos: u64,
    deviation_nanos: u64,
}

impl Varying {
    fn see(&mut self, nanos: u64) {
        let off = nanos.abs_diff(self.mean_nanos);
        self.deviation_nanos = (3 * self.deviation_nanos + off) / 4;
        self.mean_nanos = (7 * self.mean_nanos + nanos) / 8;
    }

    fn nanos(&self) -> u64 {
        self.mean_nanos + 4 * self.deviation_nanos
    }
}

impl Window {
    /// Of an end with `most` slots; `least` are used in any case.
    pub fn new(least: u32, most: u32) -> Window {
        let (least, most) = (u64::from(least.clamp(1, most)), u64::from(most));
        let storage = Varying::default();
        let limit = least * PARTS;
        Window {
            least,
            most,
            limit,
            count: 0,
            since_nanos: 0,
            storage,
            trips: [None; 2],
            trips_since_nanos: 0,
        }
    }

    /// So many may be in use.
    pub fn slots(&self) -> usize {
        (self.limit / PARTS) as usize
    }

    /// Storage has taken so long over one.
    pub fn stored(&mut self, nanos: u64) {
        self.storage.see(nanos);
    }

    /// One has made a trip that took so long.
    pub fn travelled(&mut self, nanos: u64, now_nanos: u64) {
        if now_nanos.saturating_sub(self.trips_since_nanos) >= TRIP_NANOS {
            self.trips = [self.trips[1], None];
            self.trips_since_nanos = now_nanos;
        }
        self.trips[1] = Some(self.trips[1].map_or(nanos, |shortest| shortest.min(nanos)));
        self.count += 1;
        self.conclude(now_nanos);
    }

    fn conclude(&mut self, now_nanos: u64) {
        let trip = self.trips.into_iter().flatten().min().unwrap_or(0);
        let passed = now_nanos.saturating_sub(self.since_nanos);
        if passed < PERIOD_NANOS_MIN.max(trip) {
            return;
        }
        let away = trip.saturating_add(self.storage.nanos());
        let go_by = u128::from(TIMES * self.count * PARTS) * u128::from(away) / u128::from(passed);
        let most = self.most * PARTS;
        let needed = (self.least * PARTS).saturating_add(go_by.min(u128::from(most)) as u64).min(most);
        self.limit = match self.limit.checked_sub(needed) {
            Some(spare) => {
                let goes = u128::from(spare) * u128::from(passed) / u128::from(SHRINK_NANOS);
                self.limit - goes.min(u128::from(spare)) as u64
            }
            None => needed,
        };
        (self.count, self.since_nanos) = (0, now_nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    /// So many slots a second, for so long.
    fn run(window: &mut Window, now: &mut u64, (rate, trip, storage): (u64, u64, u64), nanos: u64) {
        for _ in 0..rate * nanos / 1_000_000_000 {
            *now += 1_000_000_000 / rate;
            window.stored(storage);
            window.travelled(trip, *now);
        }
    }

    #[test]
    fn as_many_as_go_by_while_one_is_away_twice_over() {
        let (mut window, mut now) = (Window::new(8, 4096), 0);
        assert_eq!(window.slots(), 8);
        run(&mut window, &mut now, (1000, 99 * MILLI, MILLI), 1_000_000_000);
        assert!((200..=210).contains(&window.slots()), "{}", window.slots());
        let mut near = Window::new(8, 4096);
        run(&mut near, &mut 0, (2000, MILLI / 10, MILLI / 2), 1_000_000_000);
        assert!((10..=12).contains(&near.slots()), "{}", near.slots());
    }

    #[test]
    fn what_was_enough_by_chance_is_found_out_from_a_small_beginning() {
        // No more than the window comes in a trip.
        let (mut window, mut now) = (Window::new(8, 256), 0);
        let trip = 100 * MILLI;
        for _ in 0..8 {
            let slots = window.slots() as u64;
            run(&mut window, &mut now, (slots * 10, trip, MILLI), trip);
        }
        assert_eq!(window.slots(), 256);
    }

    #[test]
    fn it_grows_at_once_and_shrinks_over_seconds() {
        let (mut window, mut now) = (Window::new(8, 256), 0);
        run(&mut window, &mut now, (1000, MILLI, MILLI), 1_000_000_000);
        let before = window.slots();
        window.stored(500 * MILLI);
        run(&mut window, &mut now, (1000, MILLI, MILLI), 12 * MILLI);
        assert_eq!(window.slots(), 256, "storage stood still for half a second");
        run(&mut window, &mut now, (1000, MILLI, MILLI), 500 * MILLI);
        assert!((128..256).contains(&window.slots()), "{}", window.slots());
        run(&mut window, &mut now, (1000, MILLI, MILLI), 12_000 * MILLI);
        assert!(window.slots() <= before + 1, "{} was {before}", window.slots());
    }

    #[test]
    fn never_less_than_one_and_never_more_than_there_are() {
        for (least, most) in [(0, 1), (9, 3), (u32::MAX, u32::MAX)] {
            let mut window = Window::new(least, most);
            window.stored(u64::MAX / 8);
            window.travelled(u64::MAX / 8, 1);
            window.travelled(u64::MAX / 8, u64::MAX);
            assert!((1..=most as usize).contains(&window.slots()));
        }
    }
}
