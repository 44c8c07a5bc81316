//! Which way a device is read or written: measured on the transfer's own objects.
//!
//! A pure function of what was measured: time is passed in. Each way that can be is given a few objects, twice over (the first
//! time touches memory that nobody has touched before), and what counts is the better time: how long at least one request of it
//! was under way, and, as far as processors are scarce, what it cost of them. The usual way is the first of the list, and any
//! other must be clearly better: what is about as good changes nothing.

use super::{Io, Way, Wish};

/// Of each way, at a time.
const TRIAL_BYTES: u64 = 16 << 20;
/// And at least so many objects, so that threads overlap as they usually do.
const TRIAL_OBJECTS: u32 = 4;
/// How often each way gets its turn,
const ROUNDS: u32 = 2;
/// unless its first one cost so many times what the best one did: there is no memory that slow.
const HOPELESS: f64 = 2.5;
/// A way takes the place of one before it in the list if it costs less than this share of it.
const BETTER: f64 = 0.9;
/// So many objects after a turn of the page cache count nothing: the kernel is still reading ahead what nobody will want.
const SETTLING_OBJECTS: u32 = 2;
/// After so many bytes all are measured again: somebody may have disturbed the first time.
const FIRST_REVIEW_BYTES: u64 = 512 << 20;
/// Then after so many times more,
const REVIEW_GROWTH: u64 = 8;
/// at most after so many: devices fill up, and others come and go.
const REVIEW_BYTES_MAX: u64 = 32 << 30;

/// What an object took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Took {
    /// Its bytes.
    pub bytes: u64,
    /// Of the thread that was at it.
    pub processor_nanos: u64,
}

/// One object that is under way: whose turn it was when it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    trial: usize,
    number: u64,
}

/// What is known of one way.
#[derive(Clone, Debug)]
struct Trial {
    way: Way,
    refused: bool,
    /// Nanoseconds a byte, of the best turn so far.
    cost: Option<f64>,
    /// Bytes a second in that turn.
    rate: f64,
}

/// The objects of one turn.
#[derive(Clone, Copy, Default, Debug)]
struct Measured {
    number: u64,
    /// Objects that are still to go by before it begins.
    settling: u32,
    under_way: u32,
    since_nanos: u64,
    busy_nanos: u64,
    processor_nanos: u64,
    bytes: u64,
    objects: u32,
}

/// The ways of one device in one direction.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    trials: Vec<Trial>,
    /// What is left where all of these are refused, the better one first.
    instead: Vec<Way>,
    processors: u32,
    /// Whose turn it is, and how often all had theirs; `None`: it is decided.
    turn: Option<(usize, u32)>,
    measured: Measured,
    chosen: usize,
    since_review: u64,
    review_after: u64,
}

impl Choice {
    /// Among these, of which the first is the usual one. Of one there is nothing to be measured.
    pub fn new(ways: &[Way], processors: u32) -> Choice {
        let trial = |way: &Way| Trial { way: *way, refused: false, cost: None, rate: 0.0 };
        let mut choice = Choice {
            trials: ways.iter().map(trial).collect(),
            instead: Vec::new(),
            processors: processors.max(1),
            turn: None,
            measured: Measured::default(),
            chosen: 0,
            since_review: 0,
            review_after: FIRST_REVIEW_BYTES,
        };
        choice.measure();
        choice
    }

    /// Where none of them can be had, these are used, with nothing to be measured.
    pub fn or(self, instead: &[Way]) -> Choice {
        Choice { instead: instead.to_vec(), ..self }
    }

    /// There is nothing to choose, and nothing unusual.
    pub fn is_usual(&self) -> bool {
        matches!(&self.trials[..], [] | [Trial { way: Way::USUAL, .. }])
    }

    /// How the next object goes. With a turn, what it took is to be told.
    pub fn begin(&mut self, now_nanos: u64) -> (Way, Option<Turn>) {
        let Some((trial, _)) = self.turn else { return (self.chosen_way(), None) };
        if self.measured.settling > 0 {
            self.measured.settling -= 1;
            return (self.trials[trial].way, None);
        }
        if self.measured.under_way == 0 {
            self.measured.since_nanos = now_nanos;
        }
        self.measured.under_way += 1;
        (self.trials[trial].way, Some(Turn { trial, number: self.measured.number }))
    }

    /// An object that had a turn has ended; `None`: it failed, or went another way.
    pub fn end(&mut self, turn: Turn, now_nanos: u64, took: Option<Took>) {
        // It began in a turn that has ended since.
        if turn.number != self.measured.number {
            return;
        }
        let measured = &mut self.measured;
        measured.busy_nanos += now_nanos.saturating_sub(measured.since_nanos);
        measured.since_nanos = now_nanos;
        measured.under_way = measured.under_way.saturating_sub(1);
        if let Some(Took { bytes, processor_nanos }) = took {
            measured.bytes += bytes;
            measured.objects += 1;
            measured.processor_nanos += processor_nanos;
        }
        if measured.bytes >= TRIAL_BYTES && measured.objects >= TRIAL_OBJECTS {
            self.judge(turn.trial);
            self.next_turn();
        }
    }

    /// So many bytes went the way that was chosen.
    pub fn went(&mut self, bytes: u64) {
        self.since_review += bytes;
        if self.turn.is_none() && self.since_review >= self.review_after {
            self.review_after = (self.review_after * REVIEW_GROWTH).min(REVIEW_BYTES_MAX);
            self.measure();
        }
    }

    /// These cannot be used here.
    pub fn refuse(&mut self, refused: impl Fn(Way) -> bool) {
        self.trials.iter_mut().filter(|trial| refused(trial.way)).for_each(|trial| trial.refused = true);
        self.instead.retain(|way| !refused(*way));
        match self.turn {
            Some((trial, _)) if self.trials[trial].refused => self.next_turn(),
            None if self.trials[self.chosen].refused => self.decide(),
            _ => {}
        }
    }

    /// Which way it is; `None` while it is measured.
    pub fn decided(&self) -> Option<Way> {
        self.turn.is_none().then(|| self.chosen_way())
    }

    /// Those that were measured, in bytes a second.
    pub fn rates(&self) -> Vec<(Way, f64)> {
        let measured = self.trials.iter().filter(|trial| trial.cost.is_some());
        measured.map(|trial| (trial.way, trial.rate)).collect()
    }

    /// If all are refused, what always works.
    fn chosen_way(&self) -> Way {
        let chosen = self.trials.get(self.chosen).filter(|trial| !trial.refused).map(|trial| trial.way);
        chosen.or(self.instead.first().copied()).unwrap_or(Way::USUAL)
    }

    fn measure(&mut self) {
        self.since_review = 0;
        self.trials.iter_mut().for_each(|trial| trial.cost = None);
        self.turn = None;
        if self.trials.iter().filter(|trial| !trial.refused).count() > 1 {
            let first = self.trials.iter().position(|trial| !trial.refused);
            self.turn = first.map(|first| (first, 0));
        }
        self.measured = Measured { number: self.measured.number + 1, ..Measured::default() };
    }

    fn judge(&mut self, trial: usize) {
        let Measured { busy_nanos, processor_nanos, bytes, .. } = self.measured;
        let trial = &mut self.trials[trial];
        // A second of one of few processors is worth more than one of many.
        let nanos = busy_nanos as f64 + processor_nanos as f64 / f64::from(self.processors);
        let cost = nanos / bytes as f64;
        if trial.cost.is_none_or(|before| cost < before) {
            trial.cost = Some(cost);
            trial.rate = bytes as f64 * 1e9 / busy_nanos.max(1) as f64;
        }
    }

    fn next_turn(&mut self) {
        let Some((trial, round)) = self.turn else { return };
        let is_left = |at: &usize| !self.trials[*at].refused;
        let costs = self.trials.iter().filter(|trial| !trial.refused).filter_map(|trial| trial.cost);
        let bound = costs.fold(f64::INFINITY, f64::min) * HOPELESS;
        let is_hopeful = |at: &usize| is_left(at) && self.trials[*at].cost.is_none_or(|cost| cost <= bound);
        let mut all = 0..self.trials.len();
        // One is enough to come from the first round to the next, and none is worth one of its own alone.
        let (left, hopeful) = (all.clone().filter(is_left).count(), all.clone().filter(is_hopeful).count());
        let in_this =
            (trial + 1..self.trials.len()).find(|at| if round == 0 { is_left(at) } else { is_hopeful(at) });
        self.turn = match in_this {
            _ if left < 2 => None,
            Some(next) => Some((next, round)),
            None if round + 1 < ROUNDS && hopeful > 1 => all.find(is_hopeful).map(|first| (first, round + 1)),
            None => None,
        };
        let settling = if self.trials[trial].way.io == Io::Buffered { SETTLING_OBJECTS } else { 0 };
        self.measured = Measured { number: self.measured.number + 1, settling, ..Measured::default() };
        if self.turn.is_none() {
            self.decide();
        }
    }

    fn decide(&mut self) {
        let mut can_be = self.trials.iter().enumerate().filter(|(_, trial)| !trial.refused);
        let Some((first, trial)) = can_be.next() else { return };
        let mut best = (first, trial.cost.unwrap_or(f64::INFINITY));
        for (at, trial) in can_be {
            if let Some(cost) = trial.cost
                && cost < best.1 * BETTER
            {
                best = (at, cost);
            }
        }
        self.chosen = best.0;
        self.since_review = 0;
    }
}

impl Wish {
    /// The ways that this leaves, the usual one first.
    ///
    /// io_uring through the page cache is tried only for somebody who asks for one of the two: the copies are the same, made
    /// by other threads.
    pub fn ways(self) -> Vec<Way> {
        let all = [Way::USUAL, Way::URING_BUFFERED, Way::POSIX_DIRECT, Way::URING_DIRECT];
        let wished = |way: &Way| {
            self.engine.is_none_or(|engine| engine == way.engine)
                && self.io.is_none_or(|io| io == way.io)
                && (self != Wish::default() || *way != Way::URING_BUFFERED)
        };
        all.into_iter().filter(wished).collect()
    }

    /// What is wished in two ways may be had in one.
    pub fn instead(self) -> &'static [Way] {
        match self.ways()[..] {
            [Way::URING_DIRECT] => &[Way::POSIX_DIRECT, Way::URING_BUFFERED],
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;

    const MIB: u64 = 1 << 20;
    const OBJECT: u64 = 4 * MIB;

    /// Nanoseconds of an object, and of the processor, by way.
    type Device = fn(Way) -> (u64, u64);

    /// Moves so many objects, one after the other; which ways they went.
    fn run(choice: &mut Choice, objects: usize, device: Device) -> Vec<Way> {
        let mut now = 0;
        let mut went = Vec::new();
        for _ in 0..objects {
            let (way, turn) = choice.begin(now);
            let (nanos, processor_nanos) = device(way);
            now += nanos;
            match turn {
                Some(turn) => choice.end(turn, now, Some(Took { bytes: OBJECT, processor_nanos })),
                None => choice.went(OBJECT),
            }
            went.push(way);
        }
        went
    }

    fn auto() -> Choice {
        Choice::new(&Wish::default().ways(), 2)
    }

    #[test]
    fn the_fastest_way_stays() {
        let mut choice = auto();
        let went = run(&mut choice, 40, |way| match way {
            Way::URING_DIRECT => (1_000_000, 100_000),
            Way::POSIX_DIRECT => (2_000_000, 100_000),
            _ => (3_000_000, 1_000_000),
        });
        assert_eq!(choice.decided(), Some(Way::URING_DIRECT));
        assert_eq!(went[..4], [Way::USUAL; 4], "what is short goes as ever");
        assert!(went[24..].iter().all(|way| *way == Way::URING_DIRECT), "{went:?}");
        let rates = choice.rates();
        assert_eq!(rates.len(), 3);
        assert!((rates[0].1 - OBJECT as f64 / 3e-3).abs() < 1.0, "{rates:?}");
    }

    #[test]
    fn what_is_about_as_good_changes_nothing() {
        let mut choice = auto();
        run(&mut choice, 40, |way| if way == Way::USUAL { (1_050_000, 0) } else { (1_000_000, 0) });
        assert_eq!(choice.decided(), Some(Way::USUAL));
        let mut choice = auto();
        run(&mut choice, 40, |way| match way {
            Way::USUAL => (2_000_000, 0),
            Way::POSIX_DIRECT => (1_000_000, 0),
            _ => (950_000, 0),
        });
        assert_eq!(choice.decided(), Some(Way::POSIX_DIRECT), "and no ring is used for nothing");
    }

    #[test]
    fn as_fast_for_less_of_the_processor_is_better_where_processors_are_few() {
        let device: Device =
            |way| if way == Way::USUAL { (1_000_000, 900_000) } else { (1_000_000, 100_000) };
        let of = |processors| {
            let mut choice = Choice::new(&[Way::USUAL, Way::POSIX_DIRECT], processors);
            run(&mut choice, 40, device);
            choice.decided()
        };
        assert_eq!((of(2), of(64)), (Some(Way::POSIX_DIRECT), Some(Way::USUAL)));
    }

    #[test]
    fn what_the_first_turn_suffers_from_is_forgiven() {
        let mut choice = auto();
        // Memory is touched for the first time while the usual way has its turn.
        run(&mut choice, 4, |_| (4_000_000, 0));
        run(&mut choice, 24, |way| (if way == Way::USUAL { 1_000_000 } else { 2_000_000 }, 0));
        assert_eq!(choice.decided(), Some(Way::USUAL));
    }

    #[test]
    fn what_is_hopeless_has_no_second_turn() {
        let mut choice = auto();
        let went = run(&mut choice, 30, |way| match way {
            Way::USUAL => (9_000_000, 0),
            Way::POSIX_DIRECT => (1_500_000, 0),
            _ => (1_000_000, 0),
        });
        assert_eq!(went.iter().filter(|way| **way == Way::USUAL).count(), 4);
        assert_eq!(went.iter().filter(|way| **way == Way::POSIX_DIRECT).count(), 10, "two settle");
        assert_eq!(choice.decided(), Some(Way::URING_DIRECT));
        let mut choice = auto();
        let went =
            run(&mut choice, 30, |way| if way == Way::USUAL { (1_000_000, 0) } else { (9_000_000, 0) });
        assert_eq!(
            went.iter().filter(|way| **way == Way::USUAL).count(),
            20,
            "nobody is left to compare with"
        );
    }

    #[test]
    fn objects_under_way_together_count_their_common_time() {
        // Two threads: each object takes 2 ms, two of them at a time.
        let mut choice = Choice::new(&[Way::USUAL, Way::POSIX_DIRECT], 1);
        let took = Some(Took { bytes: OBJECT, processor_nanos: 0 });
        let mut now = 0;
        for _ in 0..2 {
            let (_, one) = choice.begin(now);
            let (_, other) = choice.begin(now);
            now += 2_000_000;
            choice.end(one.unwrap(), now, took);
            choice.end(other.unwrap(), now, took);
            // Nothing to do: that is nobody's time.
            now += 50_000_000;
        }
        let rate = choice.rates()[0].1;
        assert!((rate - 2.0 * OBJECT as f64 / 2e-3).abs() < 1e3, "{rate}");
    }

    #[test]
    fn failures_count_nothing_and_stragglers_disturb_no_later_turn() {
        let mut choice = auto();
        let took = Some(Took { bytes: TRIAL_BYTES, processor_nanos: 0 });
        let (_, straggler) = choice.begin(0);
        for _ in 0..TRIAL_OBJECTS {
            let (way, turn) = choice.begin(0);
            assert_eq!(way, Way::USUAL);
            choice.end(turn.unwrap(), 1000, None);
        }
        assert!(choice.rates().is_empty());
        for _ in 0..TRIAL_OBJECTS {
            let (_, turn) = choice.begin(1000);
            choice.end(turn.unwrap(), 2000, took);
        }
        for _ in 0..SETTLING_OBJECTS {
            assert_eq!(choice.begin(3000), (Way::POSIX_DIRECT, None), "it settles");
        }
        let (way, turn) = choice.begin(3000);
        assert_eq!(way, Way::POSIX_DIRECT);
        let before = choice.clone();
        choice.end(straggler.unwrap(), 9_000_000, took);
        assert_eq!(format!("{before:?}"), format!("{choice:?}"));
        choice.end(turn.unwrap(), 4000, None);
    }

    #[test]
    fn what_is_refused_is_not_used_again() {
        let mut choice = auto();
        let device: Device = |way| if way == Way::USUAL { (9_000_000, 0) } else { (1_000_000, 0) };
        run(&mut choice, 6, device);
        choice.refuse(|way| way.io == Io::Direct);
        assert_eq!(choice.decided(), Some(Way::USUAL), "nothing is left to be measured");
        let mut choice = auto();
        choice.refuse(|way| way.engine == Engine::Uring);
        assert!(run(&mut choice, 40, device).iter().all(|way| way.engine == Engine::Posix));
        assert_eq!(choice.decided(), Some(Way::POSIX_DIRECT));
        choice.refuse(|way| way.io == Io::Direct);
        assert_eq!(choice.decided(), Some(Way::USUAL), "after it was chosen, too");
        let mut forced = Choice::new(&[Way::URING_DIRECT], 1);
        assert_eq!((forced.decided(), forced.is_usual()), (Some(Way::URING_DIRECT), false));
        forced.refuse(|_| true);
        assert_eq!(forced.decided(), Some(Way::USUAL), "something always works");
        let forced = |refused: fn(Way) -> bool| {
            let wish = Wish { engine: Some(Engine::Uring), io: Some(Io::Direct) };
            let mut forced = Choice::new(&wish.ways(), 1).or(wish.instead());
            forced.refuse(refused);
            forced.decided()
        };
        assert_eq!(forced(|way| way.engine == Engine::Uring), Some(Way::POSIX_DIRECT), "one wish can be met");
        assert_eq!(forced(|way| way.io == Io::Direct), Some(Way::URING_BUFFERED));
        assert_eq!(forced(|_| true), Some(Way::USUAL));
    }

    #[test]
    fn it_is_measured_again_now_and_then() {
        let mut choice = auto();
        let fast: Device = |way| if way == Way::USUAL { (2_000_000, 0) } else { (1_000_000, 0) };
        run(&mut choice, 28, fast);
        assert_eq!(choice.decided(), Some(Way::POSIX_DIRECT));
        let objects = |bytes: u64| (bytes / OBJECT) as usize;
        run(&mut choice, objects(FIRST_REVIEW_BYTES), |_| (2_000_000, 0));
        assert_eq!(choice.decided(), None);
        run(&mut choice, 28, |_| (2_000_000, 0));
        assert_eq!(choice.decided(), Some(Way::USUAL));
        run(&mut choice, objects(FIRST_REVIEW_BYTES * REVIEW_GROWTH) / 2, fast);
        assert_eq!(choice.decided(), Some(Way::USUAL), "more and more rarely");
        run(&mut choice, objects(FIRST_REVIEW_BYTES * REVIEW_GROWTH) / 2 + 28, fast);
        assert_eq!(choice.decided(), Some(Way::POSIX_DIRECT));
        let mut alone = Choice::new(&[Way::USUAL], 1);
        assert!(alone.is_usual());
        run(&mut alone, objects(REVIEW_BYTES_MAX) + 1, fast);
        assert_eq!(alone.decided(), Some(Way::USUAL));
    }

    #[test]
    fn flags_leave_fewer_ways() {
        let ways = |engine, io| Wish { engine, io }.ways();
        assert_eq!(ways(None, None), [Way::USUAL, Way::POSIX_DIRECT, Way::URING_DIRECT]);
        assert_eq!(ways(Some(Engine::Posix), None), [Way::USUAL, Way::POSIX_DIRECT]);
        assert_eq!(ways(None, Some(Io::Buffered)), [Way::USUAL, Way::URING_BUFFERED]);
        assert_eq!(ways(Some(Engine::Uring), Some(Io::Direct)), [Way::URING_DIRECT]);
        assert_eq!(ways(Some(Engine::Posix), Some(Io::Buffered)), [Way::USUAL]);
    }
}
