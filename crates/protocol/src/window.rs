//! How many of its slots an end uses.
//!
//! As many as go by while one of them is away, twice over, and a few more: enough that neither storage nor the network waits for the
//! other, and no more, because a slot that comes back soon is still in the processor's cache, and one that was never used costs
//! no memory. *Away* is the shortest trip of late (over the network and back; out of this end) and what storage takes for one. It grows
//! at once and shrinks over seconds.
//!
//! Where storage rests for half of the time or more, what it takes is what it takes now and then: as long as those that together
//! make a twentieth of the time. While it stands still so long the network goes on, and storage catches up. A stall that is rarer
//! than that costs less than the memory that would hide it. Storage that is at work nearly always never catches up: what waits for
//! it would only be memory.
//!
//! An end may have more slots than are worth having nearby. Those beyond are for what is on its way over a long network alone: as many
//! as go by in a round trip, as the network says how long that takes. What waits for storage, or in queues, never leads there.
//!
//! Where files are on several targets all (of those nearby) are used: which of them will be slow is not known beforehand.

/// At least so long is counted before anything is concluded.
const PERIOD_NANOS_MIN: u64 = 10_000_000;
/// What is not needed any more goes within a few times this.
const SHRINK_NANOS: u64 = 2_000_000_000;
/// *Of late* is the last one or two times this.
const LATE_NANOS: u64 = 5_000_000_000;
/// Times what goes by: one part is away while the other one is being used.
const TIMES: u64 = 2;
/// Storage that is at work for this share of the time at most can catch up: one in so many.
const CATCHES_UP: u64 = 2;
/// Storage that stands still for one in so many parts of the time is worth slots.
const NOTED: u64 = 20;
/// And in the beginning, of so much time.
const NOTED_OF_NANOS_MIN: u64 = 1_000_000_000;
/// Times that storage takes are told apart by their powers of two.
const POWERS: usize = 40;
/// Parts of a slot in which it is reckoned.
const PARTS: u64 = 1024;

/// Reckons it from what happens.
pub(crate) struct Window {
    least: u64,
    /// How many there may be whatever they are for, and all there are.
    near: u64,
    most: u64,
    /// Of the network.
    round_trip_nanos: u64,
    /// In parts of a slot.
    limit: u64,
    /// Slots that went by in this period, and when it began.
    count: u64,
    since_nanos: u64,
    /// The one before and this one.
    late: [Seen; 2],
}

/// What was seen for a while.
#[derive(Clone, Copy)]
struct Seen {
    since_nanos: u64,
    trip_nanos_min: Option<u64>,
    /// Uses of storage, by the power of two of what they took.
    stored: [Uses; POWERS],
}

/// How often storage was used, and for how long in all.
#[derive(Clone, Copy, Default)]
struct Uses {
    count: u64,
    nanos: u64,
}

impl Uses {
    fn and(self, other: Uses) -> Uses {
        Uses { count: self.count + other.count, nanos: self.nanos.saturating_add(other.nanos) }
    }

    fn mean_nanos(self) -> u64 {
        self.nanos / self.count.max(1)
    }
}

impl Seen {
    fn since(since_nanos: u64) -> Seen {
        Seen { since_nanos, trip_nanos_min: None, stored: [Uses::default(); POWERS] }
    }

    fn and(self, later: Seen) -> Seen {
        let trips = [self.trip_nanos_min, later.trip_nanos_min];
        let mut stored = self.stored;
        stored.iter_mut().zip(later.stored).for_each(|(uses, later)| *uses = uses.and(later));
        Seen { since_nanos: self.since_nanos, trip_nanos_min: trips.into_iter().flatten().min(), stored }
    }

    /// A slot is not here for so long.
    fn away_nanos(&self, now_nanos: u64) -> u64 {
        let passed = now_nanos.saturating_sub(self.since_nanos);
        let all = self.stored.into_iter().fold(Uses::default(), Uses::and);
        let catches_up = all.nanos <= passed / CATCHES_UP;
        let storage = if catches_up { self.now_and_then_nanos(passed) } else { None };
        self.trip_nanos_min.unwrap_or(0).saturating_add(storage.unwrap_or(all.mean_nanos()))
    }

    /// What those uses of storage take, the longest ones, that together make a part of the time that is worth it.
    fn now_and_then_nanos(&self, passed: u64) -> Option<u64> {
        let noted = passed.max(NOTED_OF_NANOS_MIN) / NOTED;
        let mut longest = Uses::default();
        for uses in self.stored.into_iter().rev() {
            longest = longest.and(uses);
            if longest.nanos >= noted {
                return Some(longest.mean_nanos());
            }
        }
        None
    }
}

impl Window {
    /// Of an end with `most` slots; `least` are used in any case.
    pub fn new(least: u32, most: u32) -> Window {
        let (least, most) = (u64::from(least.clamp(1, most)), u64::from(most));
        Window {
            least,
            near: most,
            most,
            round_trip_nanos: 0,
            limit: least * PARTS,
            count: 0,
            since_nanos: 0,
            late: [Seen::since(0); 2],
        }
    }

    /// With so many in all; the further ones only as far as the network is long.
    pub fn reaching(mut self, most: u32) -> Window {
        self.most = self.near.max(u64::from(most));
        self
    }

    /// So long is the network: there and back again, with nothing in its way.
    pub fn round_trip(&mut self, nanos: u64) {
        self.round_trip_nanos = nanos;
    }

    /// So many may be in use.
    pub fn slots(&self) -> usize {
        (self.limit / PARTS) as usize
    }

    /// Storage has taken so long over one.
    pub fn stored(&mut self, nanos: u64) {
        let power = (nanos.max(1).ilog2() as usize).min(POWERS - 1);
        let uses = &mut self.late[1].stored[power];
        *uses = uses.and(Uses { count: 1, nanos });
    }

    /// One has made a trip that took so long.
    pub fn travelled(&mut self, nanos: u64, now_nanos: u64) {
        if self.since_nanos == 0 {
            // Storage did not rest before: there was nothing to do.
            self.since_nanos = now_nanos.saturating_sub(nanos);
            self.late.iter_mut().for_each(|seen| seen.since_nanos = self.since_nanos);
        }
        let seen = &mut self.late[1];
        seen.trip_nanos_min = Some(seen.trip_nanos_min.map_or(nanos, |shortest| shortest.min(nanos)));
        self.count += 1;
        self.conclude(now_nanos);
    }

    /// In parts of a slot: those nearby, or what is on its way over the network, twice over.
    fn bound(&self, passed_nanos: u64) -> u64 {
        let on_the_way = u128::from(TIMES * self.count * PARTS) * u128::from(self.round_trip_nanos)
            / u128::from(passed_nanos);
        let most = self.most * PARTS;
        let far = (self.least * PARTS).saturating_add(on_the_way.min(u128::from(most)) as u64);
        far.min(most).max(self.near * PARTS)
    }

    fn conclude(&mut self, now_nanos: u64) {
        let late = self.late[0].and(self.late[1]);
        let passed = now_nanos.saturating_sub(self.since_nanos);
        if passed < PERIOD_NANOS_MIN.max(late.trip_nanos_min.unwrap_or(0)) {
            return;
        }
        let away = late.away_nanos(now_nanos);
        let go_by = u128::from(TIMES * self.count * PARTS) * u128::from(away) / u128::from(passed);
        let most = self.bound(passed);
        let needed = (self.least * PARTS).saturating_add(go_by.min(u128::from(most)) as u64).min(most);
        self.limit = match self.limit.checked_sub(needed) {
            Some(spare) => {
                let goes = u128::from(spare) * u128::from(passed) / u128::from(SHRINK_NANOS);
                self.limit - goes.min(u128::from(spare)) as u64
            }
            None => needed,
        };
        (self.count, self.since_nanos) = (0, now_nanos);
        if now_nanos.saturating_sub(self.late[1].since_nanos) >= LATE_NANOS {
            self.late = [self.late[1], Seen::since(now_nanos)];
        }
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
        let often = (1000, MILLI, MILLI / 5);
        run(&mut window, &mut now, often, 4_000_000_000);
        let before = window.slots();
        window.stored(500 * MILLI);
        run(&mut window, &mut now, often, 12 * MILLI);
        assert_eq!(window.slots(), 256, "storage stood still for half a second");
        run(&mut window, &mut now, often, 4_000 * MILLI);
        assert_eq!(window.slots(), 256, "it may do so again");
        run(&mut window, &mut now, often, 20_000 * MILLI);
        assert!(window.slots() <= before + 1, "{} was {before}", window.slots());
    }

    #[test]
    fn a_stall_that_is_rare_is_not_worth_memory() {
        let (mut window, mut now) = (Window::new(8, 256), 0);
        let often = (1000, MILLI, MILLI / 5);
        for round in 0..10 {
            run(&mut window, &mut now, often, 1_000_000_000);
            window.stored(40 * MILLI);
            assert!(window.slots() < 16, "{round}: {}", window.slots());
        }
        for _ in 0..10 {
            run(&mut window, &mut now, often, 500 * MILLI);
            window.stored(40 * MILLI);
        }
        run(&mut window, &mut now, often, 20 * MILLI);
        assert!(window.slots() > 80, "often enough: {}", window.slots());
    }

    #[test]
    fn storage_that_never_rests_is_not_given_more_to_wait_for_it() {
        let (mut window, mut now) = (Window::new(8, 256), 0);
        for _ in 0..200 {
            run(&mut window, &mut now, (1000, MILLI / 10, MILLI), 50 * MILLI);
            now += 100 * MILLI;
            window.stored(100 * MILLI);
            assert!(window.slots() <= 20, "{}", window.slots());
        }
    }

    #[test]
    fn trips_of_the_past_are_forgotten() {
        let (mut window, mut now) = (Window::new(8, 256), 0);
        run(&mut window, &mut now, (1000, MILLI, MILLI / 5), 1_000_000_000);
        assert!(window.slots() < 16, "{}", window.slots());
        run(&mut window, &mut now, (1000, 100 * MILLI, MILLI / 5), 12_000_000_000);
        assert!(window.slots() > 190, "another route: {}", window.slots());
    }

    #[test]
    fn beyond_those_nearby_there_are_as_many_as_the_network_is_long() {
        let often = |trip, storage| (1000, trip, storage);
        let mut window = Window::new(8, 64).reaching(1024);
        let mut now = 0;
        run(&mut window, &mut now, often(400 * MILLI, MILLI / 5), 4_000_000_000);
        assert_eq!(window.slots(), 64, "they wait somewhere, and the network is short");
        window.round_trip(100 * MILLI);
        run(&mut window, &mut now, often(400 * MILLI, MILLI / 5), 4_000_000_000);
        assert!(
            (200..=210).contains(&window.slots()),
            "{}: a round trip's worth, twice over",
            window.slots()
        );
        window.round_trip(10_000 * MILLI);
        run(&mut window, &mut now, often(9_000 * MILLI, MILLI / 5), 30_000_000_000);
        assert_eq!(window.slots(), 1024, "all there are");
        window.round_trip(10 * MILLI);
        run(&mut window, &mut now, often(10 * MILLI, MILLI / 5), 30_000_000_000);
        assert!(window.slots() < 64, "{}", window.slots());
    }

    #[test]
    fn slow_storage_leads_to_no_slot_that_is_not_nearby() {
        let (mut window, mut now) = (Window::new(8, 64).reaching(1024), 0);
        window.round_trip(MILLI);
        run(&mut window, &mut now, (1000, MILLI, MILLI / 5), 4_000_000_000);
        window.stored(900 * MILLI);
        run(&mut window, &mut now, (1000, MILLI, MILLI / 5), 100 * MILLI);
        assert_eq!(window.slots(), 64);
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
