//! What the sink asks of its storage beside the moving of contents: files to be made, sealed, synced, named, removed.
//!
//! Syncs are what takes long, and on some file systems they are what moves the bytes to a target. So they are handed out target
//! by target, a few at a time on each; everything else goes before them, in the order in which it was asked for.
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
/// A sync that waits for one of its targets while so many others were handed out goes first, even if there is more under way
/// than usual: files on one target are always found one that has less to do than all of several.
const OVERTAKEN_MAX: u64 = 64;
/// Threads that are replaced, for each thread of a lane.
const REPLACED_PER_THREAD: u32 = 2;
/// Where nothing is watched, a thread finds its next errand as soon as it is idle.
const AHEAD: u32 = 2;

/// Threads that make things durable where all is on one target: two groups, and seals and removals beside them. Storage
/// syncs a large group in parallel within one errand.
const SYNC_THREADS: u32 = 4;
/// And where each file is an errand: a few for each of many targets.
const SYNC_THREADS_SEVERAL: u32 = 32;
const SLOW_THREADS: u32 = 16;
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
    /// How many syncs had been handed out by then.
    after: u64,
}

/// What is waited for differently. In the order in which they are handed out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    /// No sync.
    Quick,
    Sync,
    /// Either, when no group waits for it any more.
    Aside,
}

/// What waits, by its kind and the targets that it is on.
struct Queues<A>(BTreeMap<(Kind, Vec<Target>), VecDeque<Waiting<A>>>);

impl<A> Default for Queues<A> {
    fn default() -> Self {
        Queues(BTreeMap::new())
    }
}

impl<A> Queues<A> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push(&mut self, kind: Kind, targets: Vec<Target>, waiting: Waiting<A>) {
        self.0.entry((kind, targets)).or_default().push_back(waiting);
    }

    /// Takes the one of the lowest rank, of several the one that was asked for first. Those without a rank are left.
    fn take<R: Ord>(
        &mut self,
        rank: impl Fn(Kind, &[Target], &Waiting<A>) -> Option<R>,
    ) -> Option<(Kind, Vec<Target>, Waiting<A>)> {
        let ranked = self.0.iter().filter_map(|(key, queue)| {
            let first = queue.front()?;
            Some((rank(key.0, &key.1, first)?, first.place, key))
        });
        let (_, _, key) = ranked.min_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)))?;
        let (kind, targets) = key.clone();
        let queue = self.0.get_mut(&(kind, targets.clone()))?;
        let waiting = queue.pop_front()?;
        if queue.is_empty() {
            self.0.remove(&(kind, targets.clone()));
        }
        Some((kind, targets, waiting))
    }
}

struct UnderWay<A> {
    about: A,
    targets: Vec<Target>,
    is_sync: bool,
    /// It burdens its targets until it ends or takes long.
    counts: bool,
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
    /// What is under way on each target, in [`WHOLE`]s: of a file that is on several each has its part. Those that take long
    /// do not count: whether they hold up others is told by [`LateOnes::bar`].
    loads: BTreeMap<Target, u32>,
}

impl<A> Default for Desk<A> {
    fn default() -> Self {
        Desk {
            waiting: Queues::default(),
            under_way: BTreeMap::new(),
            given_up: BTreeMap::new(),
            replaced: 0,
            longest_nanos: 0,
            loads: BTreeMap::new(),
        }
    }
}

impl<A> Desk<A> {
    /// Threads that are at work, or hang and have no successor.
    fn busy(&self) -> u32 {
        (self.under_way.len() + self.given_up.len()) as u32 - self.replaced
    }

    /// The most that is under way on one of these.
    fn load(&self, targets: &[Target]) -> u32 {
        targets.iter().filter_map(|target| self.loads.get(target)).max().copied().unwrap_or(0)
    }

    fn burden(&mut self, targets: &[Target]) {
        for target in targets {
            *self.loads.entry(*target).or_default() += part_of(targets);
        }
    }

    fn unburden(&mut self, targets: &[Target]) {
        for target in targets {
            let Some(load) = self.loads.get_mut(target) else { continue };
            *load = load.saturating_sub(part_of(targets));
            if *load == 0 {
                self.loads.remove(target);
            }
        }
    }

    fn limit_nanos(&self, set: Option<u64>) -> u64 {
        set.unwrap_or(self.longest_nanos.saturating_mul(LIMIT_TIMES).max(LIMIT_NANOS_MIN))
    }
}

/// What an errand on these targets is to each of them.
fn part_of(targets: &[Target]) -> u32 {
    WHOLE / targets.len().max(1) as u32
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

    fn is_empty(&self) -> bool {
        self.late.is_empty()
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

    /// So many are late because of one of these, and it is clear which.
    fn bar(&self, targets: &[Target], most: u32, counts: impl Fn(&LateOne) -> bool) -> bool {
        let to_blame = |target: Target| {
            self.late.values().filter(|late| late.suspects == [target] && counts(late)).count()
        };
        !self.late.is_empty() && targets.iter().any(|target| to_blame(*target) >= most as usize)
    }
}

/// What one target may have of the threads of a lane.
fn a_third(threads: u32) -> u32 {
    (threads / 3).max(2)
}

/// How long the last syncs took.
#[derive(Default)]
struct Lately {
    last: VecDeque<u64>,
    /// Their median, which one that hangs does not change.
    usual_nanos: u64,
}

impl Lately {
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

/// The same of all, and of each target that had a file to itself.
#[derive(Default)]
struct Syncs {
    all: Lately,
    alone: BTreeMap<Target, Lately>,
}

impl Syncs {
    fn add(&mut self, targets: &[Target], nanos: u64) {
        self.all.add(nanos);
        if let [target] = targets {
            self.alone.entry(*target).or_default().add(nanos);
        }
    }

    /// How many may be under way on these, where a lane has so many threads. Two keep a target busy; more of them only where
    /// they take so little that each is still done in time.
    fn at_a_time(&self, targets: &[Target], threads: u32) -> u32 {
        let alone = match targets {
            [target] => self.alone.get(target).map(|it| it.usual_nanos).filter(|usual| *usual > 0),
            _ => None,
        };
        let in_time = LONG_NANOS.checked_div(alone.unwrap_or(self.all.usual_nanos)).unwrap_or(0);
        in_time.clamp(2, a_third(threads).into()) as u32
    }

    /// So many that take long tell that their target does. A single one that hangs tells little of it.
    fn telling(&self, targets: &[Target], threads: u32) -> u32 {
        self.at_a_time(targets, threads).min(threads / 6).max(2)
    }
}

/// The errands of a sink. `A` is what the caller remembers of each.
pub(crate) struct Errands<A> {
    desks: [Desk<A>; LANES.len()],
    syncs: Syncs,
    late: LateOnes,
    asked: u64,
    syncs_handed_out: u64,
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
            syncs_handed_out: 0,
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

    /// An errand that is to be done. `targets`: what its files are on, as far as that is known.
    pub fn ask(&mut self, lane: Lane, op: SinkOp, about: A, targets: Vec<Target>) {
        let kind = if matches!(op, SinkOp::Sync { .. }) { Kind::Sync } else { Kind::Quick };
        self.queue(lane, kind, op, about, targets);
    }

    /// The same of one that was handed back by [`Errands::next_barred`]: no group waits for it.
    pub fn ask_aside(&mut self, op: SinkOp, about: A, targets: Vec<Target>) {
        self.queue(Lane::Slow, Kind::Aside, op, about, targets);
    }

    fn queue(&mut self, lane: Lane, kind: Kind, op: SinkOp, about: A, targets: Vec<Target>) {
        self.asked += 1;
        let waiting = Waiting { op, about, place: self.asked, after: self.syncs_handed_out };
        self.desks[place(lane)].waiting.push(kind, targets, waiting);
    }

    /// The next one for which a thread is free; to be asked until there is none.
    pub fn hand_out(&mut self, now_nanos: u64) -> Option<Handed> {
        for (lane, desk) in LANES.into_iter().zip(&mut self.desks) {
            let threads = threads(lane, self.watched).min(self.threads_max);
            let at_once = if self.watched { threads } else { threads * AHEAD };
            if desk.waiting.is_empty() || desk.busy() >= at_once {
                continue;
            }
            let ignored = self.planted.has(Bug::HungTargetTakesAll);
            let (late, syncs, handed_out) = (&self.late, &self.syncs, self.syncs_handed_out);
            let mut waiting = core::mem::take(&mut desk.waiting);
            let next = waiting.take(|kind, targets: &[Target], first: &Waiting<A>| {
                if ignored {
                    return Some((false, 0));
                }
                if late.bar(targets, syncs.telling(targets, threads), |_| true) {
                    return None;
                }
                if kind == Kind::Quick {
                    return Some((false, 0));
                }
                let (load, most) = (desk.load(targets), syncs.at_a_time(targets, threads) * WHOLE);
                let overtaken = targets.len() > 1 && handed_out - first.after > OVERTAKEN_MAX;
                if overtaken && load < 2 * most {
                    return Some((true, 0));
                }
                (load < most).then_some((true, 1 + load))
            });
            desk.waiting = waiting;
            if let Some((kind, targets, Waiting { op, about, .. })) = next {
                self.last += 1;
                let is_sync = matches!(op, SinkOp::Sync { .. });
                let counts = kind != Kind::Quick;
                if counts {
                    desk.burden(&targets);
                    self.syncs_handed_out += 1;
                }
                let since_nanos = now_nanos;
                let begun =
                    UnderWay { about, targets, is_sync, counts, since_nanos, long: false, replaced: false };
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
            if ended.counts {
                desk.unburden(&ended.targets);
            }
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
                self.syncs.add(&ended.targets, nanos);
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
        let usual = self.syncs.all.usual_nanos;
        for (lane, desk) in LANES.into_iter().zip(&mut self.desks) {
            let most = threads(lane, true).min(self.threads_max) * REPLACED_PER_THREAD;
            let after = long_nanos(lane, desk.limit_nanos(self.limit_nanos), usual);
            let long = |it: &(&u64, &mut UnderWay<A>)| !it.1.long && it.1.since_nanos + after <= now_nanos;
            if let Some((number, errand)) = desk.under_way.iter_mut().find(long) {
                errand.long = true;
                let (counted, targets) = (core::mem::take(&mut errand.counts), errand.targets.clone());
                self.late.came(*number, &errand.targets, errand.since_nanos);
                errand.replaced = desk.replaced < most || self.planted.has(Bug::ReliefUnbounded);
                desk.replaced += u32::from(errand.replaced);
                let (about, replace) = (errand.about.clone(), errand.replaced);
                let number = *number;
                if counted {
                    desk.unburden(&targets);
                }
                return Some(Long { number, lane, about, replace });
            }
        }
        None
    }

    /// One that waits behind others of its target that take long: it is handed back, so that its group does not wait for it
    /// either, and to be asked for again, aside. To be asked until there is none.
    pub fn next_barred(&mut self) -> Option<(SinkOp, A, Vec<Target>)> {
        if !self.watched || self.late.is_empty() || self.planted.has(Bug::HungTargetTakesAll) {
            return None;
        }
        for lane in [Lane::Sync, Lane::Slow] {
            let threads = threads(lane, true).min(self.threads_max);
            let barred = |kind, targets: &[Target], _: &Waiting<A>| {
                let barred = self.late.bar(targets, self.syncs.telling(targets, threads), |_| true);
                (kind != Kind::Aside && barred).then_some(())
            };
            if let Some((_, targets, it)) = self.desks[place(lane)].waiting.take(barred) {
                return Some((it.op, it.about, targets));
            }
        }
        None
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
                if core::mem::take(&mut errand.counts) {
                    desk.unburden(&errand.targets);
                }
                if !core::mem::replace(&mut errand.long, true) {
                    self.late.came(number, &errand.targets, errand.since_nanos);
                }
                self.late.was_given_up(number);
                desk.given_up.insert(number, errand);
                return Some(GivenUp { about, begun: true });
            }
            let threads = threads(lane, true).min(self.threads_max);
            let none_left = desk.under_way.is_empty() && desk.busy() >= threads;
            let hopeless = |_, targets: &[Target], _: &Waiting<A>| {
                let telling = || self.syncs.telling(targets, threads);
                (none_left || self.late.bar(targets, telling(), |late| late.given_up)).then_some(())
            };
            if !none_left && self.late.is_empty() {
                continue;
            }
            if let Some((_, _, it)) = desk.waiting.take(hopeless) {
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
        let usual = self.syncs.all.usual_nanos;
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
        self.desks.iter().all(|desk| desk.waiting.is_empty() && desk.under_way.is_empty())
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
        for _ in 0..Lately::MOST {
            let number = sync(&mut errands, 0);
            errands.finished(number, SECOND / 10);
        }
        sync(&mut errands, 0);
        assert_eq!(errands.deadline_nanos(), Some(2 * SECOND), "it follows what they take now");
        let mut hasty = Errands::new(u32::MAX, Some(SECOND), Planted::default());
        hasty.watch();
        (0..Lately::MOST).for_each(|_| hasty.syncs.add(&[], 3 * SECOND));
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

    fn sync() -> SinkOp {
        SinkOp::Sync { group: 1, files: Vec::new() }
    }

    /// `about` is the target.
    fn ask_on(errands: &mut Errands<u32>, lane: Lane, target: Target) {
        errands.ask(lane, sync(), target.into(), Vec::from([target]));
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
            while let Some((op, about, targets)) = errands.next_barred() {
                assert_eq!(about, 7);
                errands.ask_aside(op, about, targets);
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
        let first = hand_out_all(&mut errands, 0);
        assert_eq!(first.len(), 2, "nobody knows yet how long they take");
        while errands.next_long(3 * SECOND).is_some() {}
        assert_eq!(hand_out_all(&mut errands, 3 * SECOND), [], "none but what hangs already");
        while errands.give_up(9 * SECOND).is_some() {}
        assert!(errands.is_idle());
        ask_on(&mut errands, Lane::Sync, 7);
        assert_eq!(errands.give_up(10 * SECOND), Some(GivenUp { about: 7, begun: false }), "as the others");
        for number in first {
            assert_eq!(errands.finished(number, 11 * SECOND), Finished::Late(7));
        }
        ask_on(&mut errands, Lane::Sync, 7);
        assert_eq!((errands.give_up(12 * SECOND), hand_out_all(&mut errands, 12 * SECOND).len()), (None, 1));
    }

    #[test]
    fn no_target_is_idle_while_another_one_has_a_queue() {
        let mut errands = errands(true);
        for target in [1, 1, 1, 1, 2, 1, 3] {
            ask_on(&mut errands, Lane::Sync, target);
        }
        assert_eq!(
            handed_out_on(&mut errands, 0),
            [1, 2, 3, 1],
            "the first of each, then one more to follow it"
        );
        let of_1 = errands.desks[1].under_way.iter().find(|(_, it)| it.about == 1).map(|(number, _)| *number);
        errands.finished(of_1.unwrap(), SECOND);
        assert_eq!(handed_out_on(&mut errands, SECOND), [1]);
    }

    fn handed_out_on(errands: &mut Errands<u32>, now_nanos: u64) -> Vec<u32> {
        let about = |number: u64, errands: &Errands<u32>| {
            errands.desks.iter().find_map(|desk| desk.under_way.get(&number)).unwrap().about
        };
        hand_out_all(errands, now_nanos).into_iter().map(|number| about(number, errands)).collect()
    }

    #[test]
    fn a_file_on_several_targets_is_a_part_of_the_load_of_each() {
        let mut errands = errands(true);
        let on = |errands: &mut Errands<u32>, targets: &[Target]| {
            errands.ask(Lane::Sync, sync(), 0, Vec::from(targets));
        };
        (0..10).for_each(|_| on(&mut errands, &[1, 2, 3, 4]));
        assert_eq!(hand_out_all(&mut errands, 0).len(), 8);
        on(&mut errands, &[4, 5, 6, 7]);
        on(&mut errands, &[5, 6, 7, 8]);
        assert_eq!(hand_out_all(&mut errands, 0).len(), 1, "4 has enough to do");
    }

    #[test]
    fn a_file_on_several_targets_is_not_overtaken_for_ever() {
        let mut errands = errands(true);
        for target in [1, 1, 2, 2] {
            ask_on(&mut errands, Lane::Sync, target);
        }
        let mut under_way: VecDeque<u64> = hand_out_all(&mut errands, 0).into();
        errands.ask(Lane::Sync, sync(), 12, Vec::from([1, 2]));
        for count in 0.. {
            assert!(count <= OVERTAKEN_MAX + 2, "overtaken for ever");
            // There is always one more of each.
            ask_on(&mut errands, Lane::Sync, 1);
            ask_on(&mut errands, Lane::Sync, 2);
            errands.finished(under_way.pop_front().unwrap(), 0);
            let before = errands.last;
            let handed = handed_out_on(&mut errands, 0);
            under_way.extend(before + 1..=errands.last);
            if handed.contains(&12) {
                break;
            }
        }
    }

    #[test]
    fn what_is_no_sync_waits_for_none() {
        let mut errands = errands(true);
        (0..4).for_each(|_| ask_on(&mut errands, Lane::Sync, 7));
        errands.ask(Lane::Sync, SinkOp::Publish { group: 1, files: Vec::new() }, 70, Vec::from([7]));
        assert_eq!(handed_out_on(&mut errands, 0), [70, 7, 7], "a name; and no more syncs than ever");
    }

    #[test]
    fn no_group_of_slow_targets_waits_for_what_is_barred() {
        let mut errands = errands(true);
        (0..2).for_each(|_| ask_on(&mut errands, Lane::Slow, 7));
        assert_eq!(hand_out_all(&mut errands, 0).len(), 2);
        while errands.next_long(2 * SECOND).is_some() {}
        errands.ask(Lane::Slow, SinkOp::Publish { group: 1, files: Vec::new() }, 70, Vec::from([7]));
        assert_eq!(hand_out_all(&mut errands, 2 * SECOND), []);
        let (op, about, targets) = errands.next_barred().expect("its group would wait for 7");
        assert_eq!(about, 70);
        errands.ask_aside(op, about, targets);
        assert!(errands.next_barred().is_none(), "once");
        assert_eq!(hand_out_all(&mut errands, 2 * SECOND), []);
        errands.finished(1, 3 * SECOND);
        assert_eq!(handed_out_on(&mut errands, 3 * SECOND), [70], "it answers again");
    }

    #[test]
    fn where_syncs_are_quick_a_target_has_more_of_them() {
        let mut errands = errands(true);
        let at_a_time = |errands: &Errands<u32>, targets: &[Target]| {
            errands.syncs.at_a_time(targets, SYNC_THREADS_SEVERAL)
        };
        assert_eq!(at_a_time(&errands, &[7]), 2, "nothing is known");
        for (usual, expected) in [(SECOND / 1000, 10), (SECOND / 2, 4), (5 * SECOND, 2)] {
            (0..Lately::MOST).for_each(|_| errands.syncs.add(&[7], usual));
            assert_eq!((at_a_time(&errands, &[7]), at_a_time(&errands, &[7, 8])), (expected, expected));
        }
        (0..Lately::MOST).for_each(|_| errands.syncs.add(&[8], SECOND / 1000));
        assert_eq!((at_a_time(&errands, &[7]), at_a_time(&errands, &[8])), (2, 10), "each as it is itself");
    }
}
