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
//! 2. One that takes longer than the limit is *given up*. A late answer of it counts for nothing. One that reads a file once
//!    more takes as long as that takes: its time runs from when it was heard of last.
//! 3. When all threads of a lane hang and no other is to be had, what waits there is handed back.
//! 4. Those on a target of which several take long wait, so that one target never holds all threads. Their groups do not
//!    wait for them, and when those before them were given up they are, too.
//!
//! Where all is on one target there is nothing better to do than to wait for it.

mod late;
mod pace;
mod queues;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use haul_model::Target;
use haul_model::op::{Lane, Progress, SinkOp};

use self::late::LateOnes;
use self::pace::Syncs;
use self::queues::{Kind, Queues, Waiting};
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

struct UnderWay<A> {
    about: A,
    targets: Vec<Target>,
    is_sync: bool,
    /// It burdens its targets until it ends or takes long.
    counts: bool,
    /// When it was handed out, or was heard of last.
    since_nanos: u64,
    /// Tells how far it has come, and how far it had when that was looked at last.
    progress: Option<(Progress, u32)>,
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

impl<A> UnderWay<A> {
    fn new(op: &SinkOp, about: A, targets: Vec<Target>, counts: bool, now_nanos: u64) -> Self {
        let progress = match op {
            SinkOp::Seal { progress, .. } => Some((progress.clone(), progress.mark())),
            _ => None,
        };
        let is_sync = matches!(op, SinkOp::Sync { .. });
        let (since_nanos, long, replaced) = (now_nanos, false, false);
        UnderWay { about, targets, is_sync, counts, since_nanos, progress, long, replaced }
    }

    /// Whether nothing was heard of it for so long.
    fn is_silent(&mut self, nanos: u64, now_nanos: u64) -> bool {
        if let Some((progress, mark)) = &mut self.progress
            && core::mem::replace(mark, progress.mark()) != *mark
        {
            self.since_nanos = now_nanos;
        }
        self.since_nanos.saturating_add(nanos) <= now_nanos
    }
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

    /// How many of those wait.
    pub fn waiting_aside(&self) -> usize {
        self.desks[place(Lane::Slow)].waiting.count(Kind::Aside)
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
            let unshared = self.planted.has(Bug::SyncsOfOneTarget);
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
                (load < most || unshared).then_some((true, 1 + load))
            });
            desk.waiting = waiting;
            if let Some((kind, targets, Waiting { op, about, .. })) = next {
                self.last += 1;
                let counts = kind != Kind::Quick;
                if counts {
                    desk.burden(&targets);
                    self.syncs_handed_out += 1;
                }
                let begun = UnderWay::new(&op, about, targets, counts, now_nanos);
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
            let under_way = desk.under_way.iter_mut().map(|(number, it)| (*number, it));
            let mut long = under_way.filter(|(_, it)| !it.long);
            if let Some((number, errand)) =
                long.find_map(|(number, it)| it.is_silent(after, now_nanos).then_some((number, it)))
            {
                errand.long = true;
                let (counted, targets) = (core::mem::take(&mut errand.counts), errand.targets.clone());
                self.late.came(number, &errand.targets, errand.since_nanos);
                errand.replaced = desk.replaced < most || self.planted.has(Bug::ReliefUnbounded);
                desk.replaced += u32::from(errand.replaced);
                let (about, replace) = (errand.about.clone(), errand.replaced);
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
            let silent =
                |(number, it): (&u64, &mut UnderWay<A>)| it.is_silent(limit, now_nanos).then_some(*number);
            if let Some(number) = desk.under_way.iter_mut().find_map(silent)
                && let Some(mut errand) = desk.under_way.remove(&number)
            {
                let about = errand.about.clone();
                if let Some((progress, _)) = &errand.progress {
                    progress.abandon();
                }
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
mod tests;
