//! How many of its slots an end uses.
//!
//! A few, with as many more as go by in the network's round trip, twice over; or as many as go by in a trip, twice over, if that is
//! more; and what evens out storage and network where each of them waits for the other now and then. No more than that: a slot
//! that comes back soon is still in the processor's cache, and one that was never used costs no memory.
//!
//! - *A trip* is the shortest one of late: over the network and back, or out of this end.
//! - *Each waits for the other:* for a part of the time that is worth it all slots are with the side that empties them, and for as long,
//!   at other times, none is. Then more slots are more throughput. Where only one of them waits, it is faster than the other, and what
//!   lies between them would only be memory: slow storage does not fill the pool.
//!
//! Neither waits as short as those for a processor count, nor as much of a trip.
//!
//! It grows at once and shrinks over seconds.
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
/// Waits are weighed when so much time has passed, and afresh after so much more.
const WAITS_NANOS_MIN: u64 = 250_000_000;
/// So long a thread may wait for a processor. It adds up where processors are short, and no slot is a remedy for that: shorter waits do
/// not count, and trips by so much less.
const WAIT_NANOS_MIN: u64 = 20_000_000;
/// Each side has waited for so long before it is concluded that it waits for the other: longer waits for a processor come by chance.
const WAITED_NANOS_MIN: u64 = 5 * WAIT_NANOS_MIN;
/// Waiting for one in so many parts of the time is worth slots.
const NOTED: u64 = 20;
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
    /// The part of it that lets one side go on while the other one waits.
    between: u64,
    waits: Waits,
    /// Slots that went by in this period, and when it began.
    count: u64,
    since_nanos: u64,
    /// The one before and this one.
    late: [Seen; 2],
}

/// The shortest trip of a while.
#[derive(Clone, Copy)]
struct Seen {
    since_nanos: u64,
    trip_nanos_min: Option<u64>,
}

impl Seen {
    fn since(since_nanos: u64) -> Seen {
        Seen { since_nanos, trip_nanos_min: None }
    }
}

/// How a pool stands between the side that fills its slots and the one that empties them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stand {
    /// All are with the side that empties: the other one waits.
    Full,
    /// None is: it waits.
    Empty,
    /// Neither waits.
    Between,
}

/// For how long each side has waited.
struct Waits {
    since_nanos: u64,
    full_nanos: u64,
    empty_nanos: u64,
    now: Stand,
    now_since_nanos: u64,
}

impl Waits {
    fn since(now: Stand, since_nanos: u64) -> Waits {
        Waits { since_nanos, full_nanos: 0, empty_nanos: 0, now, now_since_nanos: since_nanos }
    }

    fn passes(&mut self, next: Stand, now_nanos: u64) {
        // Most of what happens leaves the pool as it stands: the wait goes on.
        let passed = now_nanos.saturating_sub(self.now_since_nanos);
        if next == self.now && passed < WAIT_NANOS_MIN {
            return;
        }
        match self.now {
            Stand::Full if passed >= WAIT_NANOS_MIN => self.full_nanos += passed,
            Stand::Empty if passed >= WAIT_NANOS_MIN => self.empty_nanos += passed,
            _ => {}
        }
        (self.now, self.now_since_nanos) = (next, now_nanos);
    }

    /// Each side waits, and long enough that it is worth something.
    fn in_turn(&self, passed_nanos: u64) -> bool {
        self.full_nanos.min(self.empty_nanos) >= (passed_nanos / NOTED).max(WAITED_NANOS_MIN)
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
            between: 0,
            waits: Waits::since(Stand::Between, 0),
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

    /// From now on the pool stands so.
    pub fn stands(&mut self, stand: Stand, now_nanos: u64) {
        if self.since_nanos == 0 {
            // Nothing has gone by yet, so nobody waits for anybody.
            return;
        }
        self.waits.passes(stand, now_nanos);
        let passed = now_nanos.saturating_sub(self.waits.since_nanos);
        if passed < WAITS_NANOS_MIN {
            return;
        }
        if self.waits.in_turn(passed) {
            self.between = (self.between + (self.limit / 2).max(PARTS)).min(self.near * PARTS);
        } else if passed >= LATE_NANOS {
            self.between -= (self.between / 4).max(PARTS).min(self.between);
        } else {
            return;
        }
        self.waits = Waits::since(stand, now_nanos);
    }

    /// One has made a trip that took so long.
    pub fn travelled(&mut self, nanos: u64, now_nanos: u64) {
        if self.since_nanos == 0 {
            self.since_nanos = now_nanos.saturating_sub(nanos).max(1);
            self.late.iter_mut().for_each(|seen| seen.since_nanos = self.since_nanos);
            self.waits = Waits::since(Stand::Between, now_nanos);
        }
        let seen = &mut self.late[1];
        seen.trip_nanos_min = Some(seen.trip_nanos_min.map_or(nanos, |shortest| shortest.min(nanos)));
        self.count += 1;
        self.conclude(now_nanos);
    }

    /// What goes by in so long, twice over, in parts of a slot.
    fn go_by(&self, nanos: u64, passed_nanos: u64) -> u64 {
        let parts = u128::from(TIMES * self.count * PARTS) * u128::from(nanos) / u128::from(passed_nanos);
        parts.min(u128::from(self.most * PARTS)) as u64
    }

    fn conclude(&mut self, now_nanos: u64) {
        let trip = self.late.iter().filter_map(|seen| seen.trip_nanos_min).min().unwrap_or(0);
        let passed = now_nanos.saturating_sub(self.since_nanos);
        if passed < PERIOD_NANOS_MIN.max(trip) {
            return;
        }
        // A trip has slots among the few that it waits for; those that the network itself holds are not among them.
        let far = self.least * PARTS + self.go_by(self.round_trip_nanos, passed);
        let most = far.max(self.near * PARTS).min(self.most * PARTS);
        let goes_by = self.go_by(trip.saturating_sub(WAIT_NANOS_MIN), passed);
        let needed = (goes_by.max(far) + self.between).min(most);
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
    const SECOND: u64 = 1000 * MILLI;

    /// So many slots a second, for so long.
    fn run(window: &mut Window, now: &mut u64, (rate, trip): (u64, u64), nanos: u64) {
        for _ in 0..rate * nanos / SECOND {
            *now += SECOND / rate;
            window.travelled(trip, *now);
        }
    }

    /// So many times one after the other: it stands so for so long, while slots go by.
    fn stand(window: &mut Window, now: &mut u64, times: usize, stands: &[(Stand, u64)]) {
        for _ in 0..times {
            for (stand, nanos) in stands {
                window.stands(*stand, *now);
                run(window, now, (1000, MILLI), *nanos);
            }
        }
    }

    #[test]
    fn as_many_as_go_by_in_a_trip_twice_over() {
        let (mut window, mut now) = (Window::new(8, 4096), 0);
        assert_eq!(window.slots(), 8);
        run(&mut window, &mut now, (1000, 100 * MILLI), SECOND);
        assert!((158..=168).contains(&window.slots()), "but for 20 ms: {}", window.slots());
        let mut near = Window::new(8, 4096);
        run(&mut near, &mut 0, (2000, MILLI / 2), SECOND);
        assert_eq!(near.slots(), 8, "they are among the few");
    }

    #[test]
    fn a_trip_as_long_as_a_wait_for_a_processor_is_not_worth_memory() {
        let (mut window, mut now) = (Window::new(5, 64), 0);
        run(&mut window, &mut now, (270, 13 * MILLI), 10 * SECOND);
        assert_eq!(window.slots(), 5, "seven go by in it, twice over");
        run(&mut window, &mut now, (270, 23 * MILLI), 10 * SECOND);
        assert_eq!(window.slots(), 5, "of such trips it is a small part that counts");
    }

    #[test]
    fn what_was_enough_by_chance_is_found_out_from_a_small_beginning() {
        // No more than the window comes in a trip.
        let (mut window, mut now) = (Window::new(8, 256), 0);
        let trip = 100 * MILLI;
        for _ in 0..16 {
            let slots = window.slots() as u64;
            run(&mut window, &mut now, (slots * 10, trip), trip);
        }
        assert_eq!(window.slots(), 256);
    }

    #[test]
    fn where_each_side_waits_for_the_other_it_grows_until_neither_does() {
        let (mut window, mut now) = (Window::new(8, 256), 0);
        run(&mut window, &mut now, (1000, MILLI), 100 * MILLI);
        let waits = [(Stand::Full, 20 * MILLI), (Stand::Between, 60 * MILLI), (Stand::Empty, 20 * MILLI)];
        stand(&mut window, &mut now, 20, &waits);
        let grown = window.slots();
        assert!((16..=64).contains(&grown), "{grown}");
        stand(&mut window, &mut now, 40, &waits);
        assert_eq!(window.slots(), 256, "as long as they do");
        stand(&mut window, &mut now, 1, &[(Stand::Between, 1000 * MILLI)]);
        assert_eq!(window.slots(), 256, "they may do so again");
        stand(&mut window, &mut now, 600, &[(Stand::Between, 1000 * MILLI)]);
        assert!(window.slots() <= 12, "{}", window.slots());
    }

    #[test]
    fn a_stall_now_and_then_is_bridged_if_what_waits_catches_up() {
        let (mut window, mut now) = (Window::new(8, 256), 0);
        let stall =
            [(Stand::Full, 400 * MILLI), (Stand::Between, 2600 * MILLI), (Stand::Empty, 1000 * MILLI)];
        stand(&mut window, &mut now, 12, &stall);
        assert_eq!(window.slots(), 256);
        let (mut window, mut now) = (Window::new(8, 256), 0);
        let stall = [(Stand::Full, 400 * MILLI), (Stand::Between, 3600 * MILLI)];
        stand(&mut window, &mut now, 12, &stall);
        assert!(window.slots() <= 12, "nobody waits for the one that stalls: {}", window.slots());
    }

    #[test]
    fn a_side_that_waits_alone_is_only_the_faster_one() {
        for faster in [Stand::Full, Stand::Empty] {
            let (mut window, mut now) = (Window::new(8, 256), 0);
            stand(&mut window, &mut now, 200, &[(faster, 90 * MILLI), (Stand::Between, 10 * MILLI)]);
            assert!(window.slots() <= 12, "{}", window.slots());
        }
    }

    #[test]
    fn a_wait_that_is_rare_is_not_worth_memory() {
        let (mut window, mut now) = (Window::new(8, 256), 0);
        let rare = [(Stand::Full, 3 * MILLI), (Stand::Between, 94 * MILLI), (Stand::Empty, 3 * MILLI)];
        stand(&mut window, &mut now, 200, &rare);
        assert!(window.slots() <= 12, "{}", window.slots());
    }

    #[test]
    fn waits_for_a_processor_are_not_worth_memory_however_many_they_are() {
        let (mut window, mut now) = (Window::new(8, 256), 0);
        let short = [(Stand::Full, 15 * MILLI), (Stand::Empty, 15 * MILLI)];
        stand(&mut window, &mut now, 2000, &short);
        assert!(window.slots() <= 12, "{}", window.slots());
    }

    #[test]
    fn two_longer_waits_come_together_by_chance() {
        let (mut window, mut now) = (Window::new(8, 256), 0);
        let chance = [(Stand::Full, 24 * MILLI), (Stand::Empty, 65 * MILLI), (Stand::Between, 3000 * MILLI)];
        stand(&mut window, &mut now, 20, &chance);
        assert!(window.slots() <= 12, "{}", window.slots());
    }

    #[test]
    fn a_wait_lasts_until_the_pool_stands_otherwise() {
        let (mut window, mut now) = (Window::new(8, 256), 0);
        run(&mut window, &mut now, (1000, MILLI), 100 * MILLI);
        // The master looks at each event.
        for _ in 0..60 {
            for waits in [Stand::Full, Stand::Empty] {
                stand(&mut window, &mut now, 50, &[(waits, MILLI)]);
            }
        }
        assert_eq!(window.slots(), 256);
    }

    #[test]
    fn before_anything_went_by_nobody_waits() {
        let mut window = Window::new(8, 256);
        for second in 1..100 {
            window.stands(if second % 2 == 0 { Stand::Full } else { Stand::Empty }, second * SECOND);
        }
        run(&mut window, &mut (100 * SECOND), (1000, MILLI), 100 * MILLI);
        assert!(window.slots() <= 12, "{}", window.slots());
    }

    #[test]
    fn trips_of_the_past_are_forgotten() {
        let (mut window, mut now) = (Window::new(8, 256), 0);
        run(&mut window, &mut now, (1000, MILLI), SECOND);
        assert!(window.slots() < 16, "{}", window.slots());
        run(&mut window, &mut now, (1000, 100 * MILLI), 12 * SECOND);
        assert!(window.slots() > 155, "another route: {}", window.slots());
    }

    #[test]
    fn beyond_those_nearby_there_are_as_many_as_the_network_is_long() {
        let mut window = Window::new(8, 64).reaching(1024);
        let mut now = 0;
        run(&mut window, &mut now, (1000, 400 * MILLI), 4 * SECOND);
        assert_eq!(window.slots(), 64, "they wait somewhere, and the network is short");
        window.round_trip(100 * MILLI);
        run(&mut window, &mut now, (1000, 400 * MILLI), 4 * SECOND);
        assert!(
            (200..=210).contains(&window.slots()),
            "{}: a round trip's worth, twice over",
            window.slots()
        );
        window.round_trip(10_000 * MILLI);
        run(&mut window, &mut now, (1000, 9_000 * MILLI), 30 * SECOND);
        assert_eq!(window.slots(), 1024, "all there are");
        window.round_trip(10 * MILLI);
        run(&mut window, &mut now, (1000, 10 * MILLI), 30 * SECOND);
        assert!(window.slots() < 64, "{}", window.slots());
    }

    #[test]
    fn storage_and_network_that_wait_for_each_other_lead_to_no_slot_that_is_not_nearby() {
        let (mut window, mut now) = (Window::new(8, 64).reaching(1024), 0);
        window.round_trip(MILLI);
        stand(&mut window, &mut now, 50, &[(Stand::Full, 100 * MILLI), (Stand::Empty, 100 * MILLI)]);
        assert_eq!(window.slots(), 64);
    }

    #[test]
    fn never_less_than_one_and_never_more_than_there_are() {
        for (least, most) in [(0, 1), (9, 3), (u32::MAX, u32::MAX)] {
            let mut window = Window::new(least, most);
            window.travelled(u64::MAX / 8, 1);
            window.stands(Stand::Full, u64::MAX / 4);
            window.stands(Stand::Empty, u64::MAX / 2);
            window.travelled(u64::MAX / 8, u64::MAX);
            assert!((1..=most as usize).contains(&window.slots()));
        }
    }
}
