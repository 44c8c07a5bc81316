//! What the sink asks of its storage beside the moving of contents: files to be made, sealed, synced, named, removed.
//!
//! An errand is handed out when a thread of its lane is free for it, so the time that it takes is its own. Where files are
//! on several targets the times are watched:
//!
//! 1. One that takes long is *relieved*: another thread takes the place of its own, which ends by itself when it comes back.
//!    So what hangs takes no thread from the rest. So many threads of a lane are replaced at most, as for writes.
//! 2. One that takes longer than the limit is *given up*. A late answer of it counts for nothing.
//! 3. When all threads of a lane hang and no other is to be had, what waits there is handed back.
//! 4. Those on a target of which several take long wait, so that one target never holds all threads. Their groups do not
//!    wait for them, and when those before them were given up they are, too.
//!
//! Where all is on one target there is nothing better to do than to wait for it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use haul_model::Target;
use haul_model::op::{Lane, SinkOp};

use crate::planted::{Bug, Planted};

/// What an errand is given at least before it is given up: a sync waits for all that was written before it, on a slow disk
/// for minutes.
const LIMIT_NANOS_MIN: u64 = 120_000_000_000;
/// And so many times what one of its lane has taken so far.
const LIMIT_TIMES: u64 = 20;
/// An errand that takes longer is relieved, and others do not wait for it any more.
const LONG_NANOS: u64 = 2_000_000_000;
/// Where syncs usually take so long that this is more: so many times what they take. Not for making a file, which waits for none.
const LONG_TIMES: u64 = 4;
/// Or than so much of a limit that somebody has set.
const LONG_PART: u64 = 4;
/// What an errand is to its target if that is its only one.
const WHOLE: u32 = 1 << 16;
/// Threads that are replaced, for each thread of a lane.
const REPLACED_PER_THREAD: u32 = 2;
/// Where nothing is watched, a thread finds its next errand as soon as it is idle.
const AHEAD: u32 = 2;

/// Threads that make things durable where all is on one target: two groups, and seals and removals beside them. Storage
/// syncs a large group in parallel within one errand.
const SYNC_THREADS: u32 = 4;
/// And where each file is an errand: a few for each of many targets.
const SYNC_THREADS_SEVERAL: u32 = 32;
const SLOW_THREADS: u32 = 8;
const LAY_THREADS: u32 = 8;

/// An errand that a thread is to take up.
pub(crate) struct Handed {
    pub number: u64,
    pub lane: Lane,
    /// How many threads its lane has.
    pub threads: u32,
    pub op: SinkOp,
}

/// An errand that takes long.
pub(crate) struct Long<A> {
    pub number: u64,
    pub lane: Lane,
    pub about: A,
    /// Another thread is to take the place of its own.
    pub replace: bool,
}

/// An errand that nobody waits for any more.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct GivenUp<A> {
    pub about: A,
    /// A thread is at it, and may still do it.
    pub begun: bool,
}

/// What the end of an errand means.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Finished<A> {
    /// Somebody waits for it.
    InTime(A),
    /// It was given up.
    Late(A),
    /// There is none such.
    Unknown,
}

struct Waiting<A> {
    op: SinkOp,
    about: A,
    /// Its place in the order in which they were asked for.
    place: u64,
}

/// What waits, by the targets that it is on.
struct Queues<A>(BTreeMap<Vec<Target>, VecDeque<Waiting<A>>>);

impl<A> Default for Queues<A> {
    fn default() -> Self {
        Queues(BTreeMap::new())
    }
}

impl<A> Queues<A> {
    fn push(&mut self, targets: Vec<Target>, waiting: Waiting<A>) {
        self.0.entry(targets).or_default().push_back(waiting);
    }

    /// Takes the one whose targets have the lowest rank, of several the one that was asked for first. Those without a rank
    /// are left.
    fn take(&mut self, rank: impl Fn(&[Target]) -> Option<u32>) -> Option<(Vec<Target>, Waiting<A>)> {
        let first = |(targets, queue): (&Vec<Target>, &VecDeque<Waiting<A>>)| {
            Some((rank(targets)?, queue.front()?.place, targets.clone()))
        };
        let (_, _, targets) = self.0.iter().filter_map(first).min()?;
        let queue = self.0.get_mut(&targets)?;
        let waiting = queue.pop_front()?;
        if queue.is_empty() {
            self.0.remove(&targets);
        }
        Some((targets, waiting))
    }

    /// The same of those of which this is true.
    fn take_where(&mut self, wanted: impl Fn(&[Target]) -> bool) -> Option<(Vec<Target>, Waiting<A>)> {
        self.take(|targets| wanted(targets).then_some(0))
    }
}

struct UnderWay<A> {
    about: A,
    targets: Vec<Target>,
    is_sync: bool,
    since_nanos: u64,
    /// It was found to take long.
    long: bool,
    replaced: bool,
}

/// The errands of one lane.
struct Desk<A> {
    waiting: Queues<A>,
    /// In the order in which they were handed out.
    under_way: BTreeMap<u64, UnderWay<A>>,
    given_up: BTreeMap<u64, UnderWay<A>>,
    /// Threads that have a successor and have not come back.
    replaced: u32,
    /// The longest that was answered in time.
    longest_nanos: u64,
}

impl<A> Default for Desk<A> {
    fn default() -> Self {
        Desk {
            waiting: Queues::default(),
            under_way: BTreeMap::new(),
            given_up: BTreeMap::new(),
            replaced: 0,
            longest_nanos: 0,
        }
    }
}

impl<A> Desk<A> {
    /// Threads that are at work, or hang and have no successor.
    fn busy(&self) -> u32 {
        (self.under_way.len() + self.given_up.len()) as u32 - self.replaced
    }

    /// What is under way on each target, in [`WHOLE`]s: of a file that is on several each has its part. Those that take long
    /// do not count: whether they hold up others is told by [`LateOnes::bar`].
    fn loads(&self) -> BTreeMap<Target, u32> {
        let mut loads = BTreeMap::new();
        for errand in self.under_way.values().filter(|it| !it.long) {
            for target in &errand.targets {
                *loads.entry(*target).or_default() += WHOLE / errand.targets.len() as u32;
            }
        }
        loads
    }

    fn limit_nanos(&self, set: Option<u64>) -> u64 {
        set.unwrap_or(self.longest_nanos.saturating_mul(LIMIT_TIMES).max(LIMIT_NANOS_MIN))
    }
}

/// An errand that takes long and has not come back.
struct LateOne {
    /// Which of its targets may be to blame: those on which no other has been done since it began.
    suspects: Vec<Target>,
    given_up: bool,
}

/// What takes long, by its number, and when something was last done in time on each target.
#[derive(Default)]
struct LateOnes {
    late: BTreeMap<u64, LateOne>,
    answered: BTreeMap<Target, u64>,
}

impl LateOnes {
    fn came(&mut self, number: u64, targets: &[Target], since_nanos: u64) {
        let silent = |it: &&Target| self.answered.get(it).is_none_or(|at| *at <= since_nanos);
        let suspects = targets.iter().filter(silent).copied().collect();
        self.late.insert(number, LateOne { suspects, given_up: false });
    }

    fn was_given_up(&mut self, number: u64) {
        if let Some(late) = self.late.get_mut(&number) {
            late.given_up = true;
        }
    }

    fn went(&mut self, number: u64) {
        self.late.remove(&number);
    }

    fn answer(&mut self, targets: &[Target], now_nanos: u64) {
        self.answered.extend(targets.iter().map(|target| (*target, now_nanos)));
        self.late.values_mut().for_each(|late| late.suspects.retain(|suspect| !targets.contains(suspect)));
    }

    /// As many as one target may have are late because of one of these, and it is clear which.
    fn bar(&self, targets: &[Target], threads: u32, counts: impl Fn(&LateOne) -> bool) -> bool {
        let to_blame = |target: Target| {
            self.late.values().filter(|late| late.suspects == [target] && counts(late)).count()
        };
        !self.late.is_empty() && targets.iter().any(|target| to_blame(*target) >= a_sixth(threads) as usize)
    }
}

/// What one target may have of the threads of a lane.
fn a_third(threads: u32) -> u32 {
    (threads / 3).max(2)
}

/// As many as this that take long tell that their target does. A single one that hangs tells little of it.
fn a_sixth(threads: u32) -> u32 {
    (threads / 6).max(2)
}

/// How long the last syncs took.
#[derive(Default)]
struct Syncs {
    last: VecDeque<u64>,
    /// Their median, which one that hangs does not change.
    usual_nanos: u64,
}

impl Syncs {
    /// How many may be under way on one target, where a lane has so many threads. Two keep it busy; more of them only where
    /// they take so little that each is still done in time.
    fn at_a_time(&self, threads: u32) -> u32 {
        let in_time = LONG_NANOS.checked_div(self.usual_nanos).unwrap_or(0);
        in_time.clamp(2, a_third(threads).into()) as u32
    }

    /// The median is taken from so many; fewer than the least say nothing.
    const MOST: usize = 15;
    const FEWEST: usize = 5;

    fn add(&mut self, nanos: u64) {
        self.last.push_back(nanos);
        if self.last.len() > Self::MOST {
            self.last.pop_front();
        }
        if self.last.len() >= Self::FEWEST {
            let mut sorted: Vec<u64> = self.last.iter().copied().collect();
            sorted.sort_unstable();
            self.usual_nanos = sorted[sorted.len() / 2];
        }
    }
}

/// The errands of a sink. `A` is what the caller remembers of each.
pub(crate) struct Errands<A> {
    desks: [Desk<A>; LANES.len()],
    syncs: Syncs,
    late: LateOnes,
    asked: u64,
    last: u64,
    /// The most that a lane has.
    threads_max: u32,
    /// After how long one is given up, if somebody says.
    limit_nanos: Option<u64>,
    watched: bool,
    planted: Planted,
}

/// Those that have errands.
const LANES: [Lane; 3] = [Lane::Lay, Lane::Sync, Lane::Slow];

fn place(lane: Lane) -> usize {
    match lane {
        Lane::Lay => 0,
        Lane::Ordered | Lane::Data | Lane::Sync => 1,
        Lane::Slow => 2,
    }
}

fn threads(lane: Lane, watched: bool) -> u32 {
    match lane {
        Lane::Lay => LAY_THREADS,
        Lane::Slow => SLOW_THREADS,
        _ if watched => SYNC_THREADS_SEVERAL,
        _ => SYNC_THREADS,
    }
}

/// Found to take long after this, where syncs usually take so long.
fn long_nanos(lane: Lane, limit_nanos: u64, usual_nanos: u64) -> u64 {
    let usual = if lane == Lane::Lay { 0 } else { usual_nanos };
    usual.saturating_mul(LONG_TIMES).max(LONG_NANOS).min(limit_nanos / LONG_PART)
}

impl<A: Clone> Errands<A> {
    /// None.
    pub fn new(threads_max: u32, limit_nanos: Option<u64>, planted: Planted) -> Self {
        let desks = LANES.map(|_| Desk::default());
        Errands {
            desks,
            syncs: Syncs::default(),
            late: LateOnes::default(),
            asked: 0,
            last: 0,
            threads_max: threads_max.max(1),
            limit_nanos,
            watched: false,
            planted,
        }
    }

    /// Files are on several targets: from now on none is waited for without end.
    pub fn watch(&mut self) {
        self.watched = true;
    }

    /// See there.
    pub fn is_watched(&self) -> bool {
        self.watched
    }

    /// An errand that is to be done, after those of its lane. `targets`: what its files are on, as far as that is known.
    pub fn ask(&mut self, lane: Lane, op: SinkOp, about: A, targets: Vec<Target>) {
        self.asked += 1;
        self.desks[place(lane)].waiting.push(targets, Waiting { op, about, place: self.asked });
    }

    /// The next one for which a thread is free; to be asked until there is none.
    pub fn hand_out(&mut self, now_nanos: u64) -> Option<Handed> {
        for (lane, desk) in LANES.into_iter().zip(&mut self.desks) {
            let threads = threads(lane, self.watched).min(self.threads_max);
            let at_a_time = if self.watched { threads } else { threads * AHEAD };
            if desk.busy() >= at_a_time {
                continue;
            }
            let ignored = self.planted.has(Bug::HungTargetTakesAll);
            let (loads, at_a_time) = (desk.loads(), self.syncs.at_a_time(threads));
            // Target by target, so that none is idle while another one has a queue.
            let load = |targets: &[Target]| {
                let barred = !ignored && self.late.bar(targets, threads, |_| true);
                let load = targets.iter().filter_map(|target| loads.get(target)).max().copied().unwrap_or(0);
                (!barred && (ignored || load < at_a_time * WHOLE)).then_some(load)
            };
            if let Some((targets, Waiting { op, about, .. })) = desk.waiting.take(load) {
                self.last += 1;
                let is_sync = matches!(op, SinkOp::Sync { .. });
                let since_nanos = now_nanos;
                let begun = UnderWay { about, targets, is_sync, since_nanos, long: false, replaced: false };
                desk.under_way.insert(self.last, begun);
                return Some(Handed { number: self.last, lane, threads, op });
            }
        }
        None
    }

    /// Storage is done with one.
    pub fn finished(&mut self, number: u64, now_nanos: u64) -> Finished<A> {
        for desk in &mut self.desks {
            let (ended, in_time) = match desk.under_way.remove(&number) {
                Some(ended) => (ended, true),
                None => match desk.given_up.remove(&number) {
                    Some(ended) => (ended, false),
                    None => continue,
                },
            };
            desk.replaced -= u32::from(ended.replaced);
            match ended.long {
                true => self.late.went(number),
                false => self.late.answer(&ended.targets, now_nanos),
            }
            if !in_time && !self.planted.has(Bug::LateAnswerCounts) {
                return Finished::Late(ended.about);
            }
            let nanos = now_nanos.saturating_sub(ended.since_nanos);
            desk.longest_nanos = desk.longest_nanos.max(nanos);
            if ended.is_sync {
                self.syncs.add(nanos);
            }
            return Finished::InTime(ended.about);
        }
        Finished::Unknown
    }

    /// One that takes long, once; to be asked until there is none.
    pub fn next_long(&mut self, now_nanos: u64) -> Option<Long<A>> {
        if !self.watched || self.planted.has(Bug::HangAwaited) {
            return None;
        }
        let usual = self.syncs.usual_nanos;
        for (lane, desk) in LANES.into_iter().zip(&mut self.desks) {
            let most = threads(lane, true).min(self.threads_max) * REPLACED_PER_THREAD;
            let after = long_nanos(lane, desk.limit_nanos(self.limit_nanos), usual);
            let long = |it: &(&u64, &mut UnderWay<A>)| !it.1.long && it.1.since_nanos + after <= now_nanos;
            if let Some((number, errand)) = desk.under_way.iter_mut().find(long) {
                errand.long = true;
                self.late.came(*number, &errand.targets, errand.since_nanos);
                errand.replaced = desk.replaced < most || self.planted.has(Bug::ReliefUnbounded);
                desk.replaced += u32::from(errand.replaced);
                let (about, replace) = (errand.about.clone(), errand.replaced);
                return Some(Long { number: *number, lane, about, replace });
            }
        }
        None
    }

    /// One that waits behind others of its target that take long: it is handed back, to be asked of another lane. To be
    /// asked until there is none.
    pub fn next_barred(&mut self) -> Option<(SinkOp, A)> {
        if !self.watched || self.planted.has(Bug::HungTargetTakesAll) {
            return None;
        }
        let threads = threads(Lane::Sync, true).min(self.threads_max);
        let barred = |targets: &[Target]| self.late.bar(targets, threads, |_| true);
        let (_, it) = self.desks[place(Lane::Sync)].waiting.take_where(barred)?;
        Some((it.op, it.about))
    }

    /// The caller remembers something else of one that is under way.
    pub fn remember(&mut self, number: u64, about: A) {
        if let Some(errand) = self.desks.iter_mut().find_map(|desk| desk.under_way.get_mut(&number)) {
            errand.about = about;
        }
    }

    /// One that nobody waits for any more: it has taken longer than the limit, or no thread will ever take it up. To be
    /// asked until there is none.
    pub fn give_up(&mut self, now_nanos: u64) -> Option<GivenUp<A>> {
        if !self.watched || self.planted.has(Bug::HangAwaited) {
            return None;
        }
        for (lane, desk) in LANES.into_iter().zip(&mut self.desks) {
            let limit = desk.limit_nanos(self.limit_nanos);
            if let Some(oldest) = desk.under_way.first_entry()
                && oldest.get().since_nanos.saturating_add(limit) <= now_nanos
            {
                let (number, mut errand) = oldest.remove_entry();
                let about = errand.about.clone();
                if !core::mem::replace(&mut errand.long, true) {
                    self.late.came(number, &errand.targets, errand.since_nanos);
                }
                self.late.was_given_up(number);
                desk.given_up.insert(number, errand);
                return Some(GivenUp { about, begun: true });
            }
            let threads = threads(lane, true).min(self.threads_max);
            let none_left = desk.under_way.is_empty() && desk.busy() >= threads;
            let hopeless =
                |targets: &[Target]| none_left || self.late.bar(targets, threads, |late| late.given_up);
            if let Some((_, it)) = desk.waiting.take_where(hopeless) {
                return Some(GivenUp { about: it.about, begun: false });
            }
        }
        None
    }

    /// When to ask for those again, if none ends before.
    pub fn deadline_nanos(&self) -> Option<u64> {
        if !self.watched {
            return None;
        }
        let usual = self.syncs.usual_nanos;
        let of = |(lane, desk): (Lane, &Desk<A>)| {
            let limit = desk.limit_nanos(self.limit_nanos);
            let after = |it: &UnderWay<A>| if it.long { limit } else { long_nanos(lane, limit, usual) };
            let next = |it: &UnderWay<A>| it.since_nanos + after(it);
            desk.under_way.values().map(next).min()
        };
        LANES.into_iter().zip(&self.desks).filter_map(of).min()
    }

    /// Nothing waits and nothing is awaited.
    #[cfg(test)]
    fn is_idle(&self) -> bool {
        self.desks.iter().all(|desk| desk.waiting.0.is_empty() && desk.under_way.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use haul_model::EntryId;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn errands(watched: bool) -> Errands<u32> {
        let mut errands = Errands::new(u32::MAX, Some(8 * SECOND), Planted::default());
        if watched {
            errands.watch();
        }
        errands
    }

    fn ask(errands: &mut Errands<u32>, lane: Lane, about: u32) {
        errands.ask(lane, SinkOp::Forget { id: EntryId(1) }, about, Vec::new());
    }

    fn hand_out_all(errands: &mut Errands<u32>, now_nanos: u64) -> Vec<u64> {
        core::iter::from_fn(|| errands.hand_out(now_nanos)).map(|handed| handed.number).collect()
    }

    #[test]
    fn one_that_hangs_is_relieved_then_given_up_and_its_answer_counts_no_more() {
        let mut errands = errands(true);
        ask(&mut errands, Lane::Sync, 5);
        let [number] = hand_out_all(&mut errands, 0)[..] else { panic!("it was not handed out") };
        assert_eq!(errands.deadline_nanos(), Some(2 * SECOND));
        assert!(errands.next_long(2 * SECOND - 1).is_none());
        let long = errands.next_long(2 * SECOND).unwrap();
        assert_eq!((long.number, long.about, long.replace), (number, 5, true));
        assert!(errands.next_long(3 * SECOND).is_none(), "once");
        assert_eq!(errands.deadline_nanos(), Some(8 * SECOND));
        assert_eq!(errands.give_up(8 * SECOND - 1), None);
        assert_eq!(errands.give_up(8 * SECOND), Some(GivenUp { about: 5, begun: true }));
        assert!(errands.is_idle());
        assert_eq!(errands.finished(number, 9 * SECOND), Finished::Late(5));
        assert_eq!(errands.finished(number, 9 * SECOND), Finished::Unknown);
    }

    #[test]
    fn a_sync_is_late_only_where_others_are_not() {
        let mut errands = Errands::new(u32::MAX, None, Planted::default());
        errands.watch();
        let sync = |errands: &mut Errands<u32>, now| {
            errands.ask(Lane::Sync, SinkOp::Sync { group: 1, files: Vec::new() }, 5, Vec::new());
            let [number] = hand_out_all(errands, now)[..] else { panic!("it was not handed out") };
            number
        };
        for nanos in [3 * SECOND, 100 * SECOND, 3 * SECOND, SECOND, 3 * SECOND] {
            let number = sync(&mut errands, 0);
            assert_eq!(errands.deadline_nanos(), Some(2 * SECOND), "five of them are needed to know");
            errands.finished(number, nanos);
        }
        let number = sync(&mut errands, 0);
        assert_eq!(errands.deadline_nanos(), Some(12 * SECOND));
        assert!(errands.next_long(12 * SECOND - 1).is_none());
        assert_eq!(errands.next_long(12 * SECOND).map(|long| long.number), Some(number));
        ask(&mut errands, Lane::Lay, 6);
        let [lay] = hand_out_all(&mut errands, 12 * SECOND)[..] else { panic!("it was not handed out") };
        assert!(errands.next_long(14 * SECOND - 1).is_none());
        assert_eq!(errands.next_long(14 * SECOND).map(|long| long.number), Some(lay), "it is no sync");
        errands.finished(lay, 14 * SECOND);
        errands.finished(number, 12 * SECOND);
        for _ in 0..Syncs::MOST {
            let number = sync(&mut errands, 0);
            errands.finished(number, SECOND / 10);
        }
        sync(&mut errands, 0);
        assert_eq!(errands.deadline_nanos(), Some(2 * SECOND), "it follows what they take now");
        let mut hasty = Errands::new(u32::MAX, Some(SECOND), Planted::default());
        hasty.watch();
        (0..Syncs::MOST).for_each(|_| hasty.syncs.add(3 * SECOND));
        sync(&mut hasty, 0);
        assert_eq!(hasty.deadline_nanos(), Some(SECOND / LONG_PART), "never later than a part of the limit");
    }

    #[test]
    fn where_all_is_on_one_target_it_is_waited_for() {
        let mut errands = errands(false);
        ask(&mut errands, Lane::Sync, 5);
        let [number] = hand_out_all(&mut errands, 0)[..] else { panic!("it was not handed out") };
        assert_eq!(errands.deadline_nanos(), None);
        assert!(errands.next_long(u64::MAX).is_none() && errands.give_up(u64::MAX).is_none());
        assert_eq!(errands.finished(number, u64::MAX), Finished::InTime(5));
    }

    #[test]
    fn a_lane_whose_threads_all_hang_takes_nothing_from_the_others() {
        let mut errands = errands(true);
        for about in 0..100 {
            ask(&mut errands, Lane::Slow, about);
            ask(&mut errands, Lane::Sync, about);
        }
        let handed: Vec<Lane> =
            core::iter::from_fn(|| errands.hand_out(0)).map(|handed| handed.lane).collect();
        let of = |lane| handed.iter().filter(|other| **other == lane).count() as u32;
        assert_eq!((of(Lane::Sync), of(Lane::Slow)), (SYNC_THREADS_SEVERAL, SLOW_THREADS));
    }

    #[test]
    fn threads_are_replaced_up_to_a_bound_and_then_all_is_handed_back() {
        let mut errands = errands(true);
        for about in 0..100 {
            ask(&mut errands, Lane::Lay, about);
        }
        let (mut replaced, mut given_up, mut now) = (0, 0, 0);
        while !errands.is_idle() {
            hand_out_all(&mut errands, now);
            while let Some(long) = errands.next_long(now) {
                replaced += u32::from(long.replace);
            }
            while errands.give_up(now).is_some() {
                given_up += 1;
            }
            now += SECOND;
            assert!(now < 1000 * SECOND, "something is waited for without end");
        }
        assert_eq!((replaced, given_up), (LAY_THREADS * REPLACED_PER_THREAD, 100));
    }

    #[test]
    fn a_thread_that_comes_back_can_be_replaced_again() {
        let mut errands = errands(true);
        let mut now = 0;
        for about in 0..100 {
            ask(&mut errands, Lane::Lay, about);
            let [number] = hand_out_all(&mut errands, now)[..] else { panic!("it was not handed out") };
            now += 9 * SECOND;
            assert!(errands.next_long(now).unwrap().replace);
            assert_eq!(errands.give_up(now), Some(GivenUp { about, begun: true }));
            assert_eq!(errands.finished(number, now), Finished::Late(about));
        }
    }

    #[test]
    fn without_a_limit_it_follows_from_the_longest_so_far() {
        let mut errands = Errands::new(u32::MAX, None, Planted::default());
        errands.watch();
        ask(&mut errands, Lane::Sync, 1);
        let [number] = hand_out_all(&mut errands, 0)[..] else { panic!("it was not handed out") };
        assert_eq!(errands.give_up(LIMIT_NANOS_MIN - 1), None);
        assert_eq!(errands.finished(number, 50 * SECOND), Finished::InTime(1));
        ask(&mut errands, Lane::Sync, 2);
        hand_out_all(&mut errands, 0);
        assert_eq!(errands.give_up(LIMIT_TIMES * 50 * SECOND - 1), None);
        assert_eq!(errands.give_up(LIMIT_TIMES * 50 * SECOND), Some(GivenUp { about: 2, begun: true }));
    }

    /// `about` is the target.
    fn ask_on(errands: &mut Errands<u32>, lane: Lane, target: Target) {
        errands.ask(lane, SinkOp::Forget { id: EntryId(1) }, target.into(), Vec::from([target]));
    }

    #[test]
    fn a_target_that_hangs_never_holds_all_threads() {
        let mut errands = errands(true);
        let quick: u32 = 60;
        for _ in 0..quick {
            ask_on(&mut errands, Lane::Sync, 7);
            ask_on(&mut errands, Lane::Sync, 7);
            ask_on(&mut errands, Lane::Sync, 1);
        }
        let (mut done, mut aside, mut given_up, mut now) = (0, 0, 0, 0);
        while !errands.is_idle() {
            while let Some(Handed { number, .. }) = errands.hand_out(now) {
                let on = errands.desks.iter().find_map(|desk| desk.under_way.get(&number)).unwrap().about;
                if on == 1 {
                    assert_eq!(errands.finished(number, now), Finished::InTime(1));
                    done += 1;
                }
            }
            while errands.next_long(now).is_some() {}
            while let Some((_, about)) = errands.next_barred() {
                assert_eq!(about, 7);
                ask_on(&mut errands, Lane::Slow, 7);
                aside += 1;
            }
            while let Some(GivenUp { about, .. }) = errands.give_up(now) {
                assert_eq!(about, 7, "the others have nothing to do with it");
                given_up += 1;
            }
            if now > 3 * SECOND {
                assert_eq!(done, quick, "they need not wait until something is given up");
            }
            now += SECOND;
            assert!(now < 100 * SECOND, "something is waited for without end");
        }
        assert_eq!((done, given_up), (quick, 2 * quick));
        assert!(aside > quick, "{aside} did not hold up their groups");
    }

    #[test]
    fn a_target_is_blamed_only_if_no_other_can_be() {
        let mut errands = errands(true);
        let on = |errands: &mut Errands<u32>, targets: &[Target]| {
            errands.ask(Lane::Slow, SinkOp::Forget { id: EntryId(1) }, 0, Vec::from(targets));
        };
        for _ in 0..2 {
            on(&mut errands, &[7, 8]);
        }
        hand_out_all(&mut errands, 0);
        while errands.next_long(3 * SECOND).is_some() {}
        on(&mut errands, &[8]);
        let [other] = hand_out_all(&mut errands, 3 * SECOND)[..] else { panic!("8 may be well") };
        on(&mut errands, &[7]);
        on(&mut errands, &[8]);
        assert_eq!(hand_out_all(&mut errands, 3 * SECOND).len(), 2, "so may 7");
        errands.finished(other, 4 * SECOND);
        on(&mut errands, &[8]);
        on(&mut errands, &[7]);
        on(&mut errands, &[7, 9]);
        assert_eq!(hand_out_all(&mut errands, 4 * SECOND).len(), 1, "it is 7");
    }

    #[test]
    fn a_target_that_comes_back_is_asked_again() {
        let mut errands = errands(true);
        for _ in 0..SYNC_THREADS_SEVERAL {
            ask_on(&mut errands, Lane::Sync, 7);
        }
        let mut hanging = Vec::new();
        for seconds in [0, 2, 4] {
            let handed = hand_out_all(&mut errands, seconds * SECOND);
            assert_eq!(handed.len(), 2, "nobody knows yet how long they take");
            hanging.extend(handed);
            while errands.next_long((seconds + 2) * SECOND).is_some() {}
        }
        assert_eq!(hand_out_all(&mut errands, 6 * SECOND), [], "none but what hangs already");
        while errands.give_up(12 * SECOND).is_some() {}
        assert!(errands.is_idle());
        ask_on(&mut errands, Lane::Sync, 7);
        assert_eq!(errands.give_up(13 * SECOND), Some(GivenUp { about: 7, begun: false }), "as the others");
        for number in hanging {
            assert_eq!(errands.finished(number, 14 * SECOND), Finished::Late(7));
        }
        ask_on(&mut errands, Lane::Sync, 7);
        assert_eq!((errands.give_up(15 * SECOND), hand_out_all(&mut errands, 15 * SECOND).len()), (None, 1));
    }

    #[test]
    fn no_target_is_idle_while_another_one_has_a_queue() {
        let mut errands = errands(true);
        for target in [1, 1, 1, 1, 2, 1, 3] {
            ask_on(&mut errands, Lane::Sync, target);
        }
        let handed = |errands: &mut Errands<u32>| -> Vec<u32> {
            let on = |errands: &Errands<u32>, number| errands.desks[1].under_way[&number].about;
            hand_out_all(errands, 0).into_iter().map(|number| on(errands, number)).collect()
        };
        assert_eq!(handed(&mut errands), [1, 2, 3, 1], "the first of each, then one more to follow it");
        let of_1 = errands.desks[1].under_way.iter().find(|(_, it)| it.about == 1).map(|(number, _)| *number);
        errands.finished(of_1.unwrap(), SECOND);
        assert_eq!(handed(&mut errands), [1]);
    }

    #[test]
    fn a_file_on_several_targets_is_a_part_of_the_load_of_each() {
        let mut errands = errands(true);
        let on = |errands: &mut Errands<u32>, targets: &[Target]| {
            errands.ask(Lane::Sync, SinkOp::Forget { id: EntryId(1) }, 0, Vec::from(targets));
        };
        (0..10).for_each(|_| on(&mut errands, &[1, 2, 3, 4]));
        assert_eq!(hand_out_all(&mut errands, 0).len(), 8);
        on(&mut errands, &[4, 5, 6, 7]);
        on(&mut errands, &[5, 6, 7, 8]);
        assert_eq!(hand_out_all(&mut errands, 0).len(), 1, "4 has enough to do");
    }

    #[test]
    fn where_syncs_are_quick_a_target_has_more_of_them() {
        let mut errands = errands(true);
        let at_a_time = |errands: &Errands<u32>| errands.syncs.at_a_time(SYNC_THREADS_SEVERAL);
        for (usual, expected) in [(SECOND / 1000, 10), (SECOND / 2, 4), (5 * SECOND, 2)] {
            (0..Syncs::MOST).for_each(|_| errands.syncs.add(usual));
            assert_eq!(at_a_time(&errands), expected, "{usual} ns");
        }
        (0..Syncs::MOST).for_each(|_| errands.syncs.add(0));
        (0..100).for_each(|_| ask_on(&mut errands, Lane::Sync, 7));
        ask_on(&mut errands, Lane::Sync, 8);
        assert_eq!(hand_out_all(&mut errands, 0).len(), 3, "nothing was measured: as at first");
    }
}
