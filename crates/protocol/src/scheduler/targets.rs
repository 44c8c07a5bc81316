//! What is known of each target, and the sets that follow from it.
//!
//! [`Targets::refresh`] is the one place that decides what a target may get; it runs after every change of a target.

use alloc::vec::Vec;

use super::bits::{Bits, find_from};
use super::congestion::{Policy, Signal};
use super::flights::Line;
use super::neighbours::Neighbours;
use super::service::{Measure, Recent, Typical, expected, normalise};
use super::{CLASSES, Config, SHARE};
use crate::planted::SchedulerBug;

/// The aging limit that is not set: as long as this much takes on a usual target, and no less than the next.
const AGING_BYTES: u32 = 32 << 20;
const AGING_NANOS_MIN: u64 = 2_000_000_000;
/// However they are excused, no more may be lost on a target than so many times its share, and as many as say that it hangs: each keeps
/// a slot.
const LOST_SHARES: u32 = 2;
/// What a usual target is follows from those that have answered within this.
const TYPICAL_NANOS: u64 = 20_000_000_000;

#[derive(Clone, Default)]
pub(super) struct Target {
    pub known: bool,
    /// It has had objects or bundles, not only names.
    data: bool,
    /// Objects, bundles and names under way.
    pub under_way: u32,
    /// Requests that were written off and have not come back.
    pub lost: u32,
    /// Those of them that say nothing of the target: what they are about hangs, or it has answered since.
    pub excused: u32,
    /// When the last of them was written off.
    pub lost_nanos: u64,
    /// A request was written off, and it has answered none since.
    pub suspect: bool,
    pub line: Line,
    pub recent: [Recent; CLASSES],
    pub signal: Signal,
    /// Other transfers that are at it.
    pub neighbours: Neighbours,
    /// When it last answered, or was found to be waited for.
    pub seen_nanos: Option<u64>,
    /// When this end itself last saw it slow: what it has from neighbours is not for others.
    slow_nanos: Option<u64>,
    /// It is congested, suspect or dead.
    slow: bool,
    /// It is held back and has nothing under way.
    waits: bool,
    /// Since when, whoever's turn it was meanwhile.
    pub since_nanos: u64,
    /// The pick with which it was tried last, or held back.
    pub tried: u64,
    level: u32,
    told: u32,
}

impl Target {
    /// It is being waited for.
    pub fn overdue(&mut self, now_nanos: u64) {
        self.signal.overdue();
        (self.seen_nanos, self.slow_nanos) = (Some(now_nanos), Some(now_nanos));
    }

    /// Did this end itself see it slow within this?
    pub fn was_slow_within(&self, nanos: u64, now_nanos: u64) -> bool {
        self.slow_nanos.is_some_and(|seen| now_nanos.saturating_sub(seen) < nanos)
    }

    /// Is what is known of it fresher than this?
    pub fn seen_within(&self, nanos: u64, now_nanos: u64) -> bool {
        self.seen_nanos.is_some_and(|seen| now_nanos.saturating_sub(seen) < nanos)
    }
}

#[derive(Default)]
struct Level {
    targets: Bits,
    count: u32,
}

pub(super) struct Targets {
    targets: Vec<Target>,
    config: Config,
    /// Targets by how many of their requests are under way.
    levels: Vec<Level>,
    /// Those that may get a request.
    able: Bits,
    /// Those that are held back (congested or suspect) and have nothing under way.
    gentle: Bits,
    gentle_count: u32,
    dead: Bits,
    /// Those whose allowance is not what was told.
    changed: Bits,
    /// How many have had objects or bundles.
    data: u32,
    /// There will be several of them.
    several: bool,
    pub typical: Typical,
    /// Threads that were written off and replaced.
    pub replaced: u32,
    /// And those that were not replaced.
    pub unreplaced: u32,
    /// Slots of requests that were written off: nothing takes their place.
    pub lost_slots: u32,
    /// No target that is held back has waited too long before this.
    pub age_nanos: u64,
    /// No target that is held back has been skipped often enough before this pick.
    pub due_pick: u64,
    /// How often one has become slow, or has ceased to be.
    pub turns: u64,
}

impl Targets {
    pub fn new(config: Config) -> Targets {
        Targets {
            targets: Vec::new(),
            config,
            levels: Vec::new(),
            able: Bits::default(),
            gentle: Bits::default(),
            gentle_count: 0,
            dead: Bits::default(),
            changed: Bits::default(),
            data: 0,
            several: false,
            typical: Typical::default(),
            replaced: 0,
            unreplaced: 0,
            lost_slots: 0,
            age_nanos: u64::MAX,
            due_pick: u64::MAX,
            turns: 0,
        }
    }

    /// A request of this target exists. With the second target that has objects, the first has a cap too.
    pub fn know(&mut self, index: u32, data: bool, now_nanos: u64, pick: u64) {
        self.hold(index);
        let target = &mut self.targets[index as usize];
        let new = !target.known;
        let new_data = data && !target.data;
        (target.known, target.data) = (true, target.data || data);
        self.data += u32::from(new_data);
        if new {
            target.level = 0;
            if self.levels.is_empty() {
                self.levels.push(Level::default());
            }
            self.levels[0].targets.set(index, true);
            self.levels[0].count += 1;
        }
        if new_data && self.data <= 2 {
            self.refresh_all(now_nanos, pick);
        } else if new || new_data {
            self.refresh(index, now_nanos, pick);
        }
    }

    pub fn refresh_all(&mut self, now_nanos: u64, pick: u64) {
        for index in 0..self.targets.len() as u32 {
            if self.targets[index as usize].known {
                self.refresh(index, now_nanos, pick);
            }
        }
    }

    /// There is room to say something of it.
    pub fn hold(&mut self, index: u32) {
        if self.targets.len() <= index as usize {
            self.targets.resize_with(index as usize + 1, Target::default);
        }
    }

    pub fn get(&self, index: u32) -> Option<&Target> {
        self.targets.get(index as usize)
    }

    /// Those that are known.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Target)> {
        (0u32..).zip(&self.targets).filter(|(_, target)| target.known)
    }

    /// Numbers are below this.
    pub fn length(&self) -> u32 {
        self.targets.len() as u32
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A target that is known or held.
    pub fn at(&mut self, index: u32) -> &mut Target {
        &mut self.targets[index as usize]
    }

    pub fn is_dead(&self, index: u32) -> bool {
        self.dead.has(index)
    }

    pub fn dead(&self) -> &Bits {
        &self.dead
    }

    pub fn gentle(&self) -> &Bits {
        &self.gentle
    }

    pub fn any_gentle(&self) -> bool {
        self.gentle_count > 0
    }

    pub fn next_changed(&mut self) -> Option<(u32, u32)> {
        let index = self.changed.iter().next()?;
        self.changed.set(index, false);
        let allowance = self.allowance(index);
        self.targets[index as usize].told = allowance;
        Some((index, allowance))
    }

    pub fn set_threads(&mut self, threads: u32) {
        self.config.threads = threads;
    }

    pub fn set_slots(&mut self, slots: u32) {
        self.config.slots = slots;
    }

    /// The most that one target may hold of threads and slots: a third, once another target has objects or will have some.
    pub fn cap(&self, index: u32) -> u32 {
        let all = self.config.threads.min(self.config.slots).max(1);
        if self.shares(index) { (all / SHARE).max(1) } else { all }
    }

    /// It is known from elsewhere that there will be objects of several targets. False if it was known before.
    pub fn expect_several(&mut self) -> bool {
        !core::mem::replace(&mut self.several, true)
    }

    /// What an archive brings back takes minutes, and says nothing of what is slow; it gains from being asked for together.
    pub fn is_archive(&self, index: u32) -> bool {
        self.config.archive == Some(index) && !self.config.planted.has(SchedulerBug::ArchiveHeldBack)
    }

    /// Does another target have objects, or will it?
    fn shares(&self, index: u32) -> bool {
        // What an archive brings back, nobody is waiting for the threads that wait for it: there will be others.
        if self.several || self.config.archive == Some(index) {
            return true;
        }
        let own = self.get(index).is_some_and(|target| target.data);
        self.data > u32::from(own)
    }

    /// A target that has the disk for itself is not steered: there is nothing better to do with a thread.
    fn is_steered(&self, index: u32) -> bool {
        matches!(self.config.policy, Policy::Adaptive(_))
            && (self.shares(index) || !self.targets[index as usize].data)
            && !self.is_archive(index)
    }

    pub fn is_congested(&self, index: u32) -> bool {
        let is_congested = |target: &Target| target.signal.is_congested(&self.config.policy);
        self.get(index).is_some_and(is_congested) && !self.is_archive(index)
    }

    /// How many requests may be under way on it or lost, of all transfers of this host.
    fn depth_of_all(&self, index: u32) -> u32 {
        let cap = self.cap(index);
        if self.is_steered(index) { self.targets[index as usize].signal.depth().min(cap) } else { cap }
    }

    /// How many of them may be this transfer's. What it lost there is its own; while the target lives there is room for one beside.
    pub fn depth(&self, index: u32) -> u32 {
        let Target { lost, neighbours, .. } = &self.targets[index as usize];
        let least = u32::from(!self.config.planted.has(SchedulerBug::LostFillTarget));
        let whole = self.depth_of_all(index).saturating_sub(*lost).max(least);
        let part = if self.config.planted.has(SchedulerBug::NeighboursIgnored) {
            whole
        } else {
            neighbours.part_of(whole)
        };
        part + lost
    }

    /// Requests of other transfers that are there too, as far as they count.
    pub fn crowd(&self, index: u32) -> u32 {
        self.targets[index as usize].neighbours.crowd(self.depth_of_all(index))
    }

    /// Has it lost as many threads as a dead one?
    fn has_lost_enough(&self, index: u32) -> bool {
        let Target { lost, excused, .. } = &self.targets[index as usize];
        let excused = if self.config.planted.has(SchedulerBug::ExcuseIgnored) { 0 } else { *excused };
        let least = self.config.lost_per_target.max(1);
        *lost >= least + excused || *lost >= least + LOST_SHARES * self.cap(index)
    }

    /// All threads, or all slots, are stuck, and no more are to be had.
    pub fn exhausted(&self) -> bool {
        let slots =
            if self.config.planted.has(SchedulerBug::LostSlotsForgotten) { 0 } else { self.lost_slots };
        self.unreplaced >= self.config.threads.max(1) || slots >= self.config.slots.max(1)
    }

    /// How many requests the other end may have under way for this target: its share of the slots, for what is on its way
    /// over a long network; of one that is held back the next, so that it is there when one ends. What is lost keeps its unit.
    pub fn allowance(&self, index: u32) -> u32 {
        let slots = self.config.slots.max(1);
        let share = if self.shares(index) { (slots / SHARE).max(1) } else { slots };
        let target = &self.targets[index as usize];
        let units = if target.suspect || self.is_congested(index) { share.min(2) } else { share };
        if self.dead.has(index) { 0 } else { units.max(target.lost + 1) }
    }

    /// Decides anew what the target may get.
    pub fn refresh(&mut self, index: u32, now_nanos: u64, pick: u64) {
        let planted = self.config.planted;
        let cap = if planted.has(SchedulerBug::CapIgnored) { u32::MAX } else { self.depth(index) };
        let dead =
            (self.exhausted() || self.has_lost_enough(index)) && !planted.has(SchedulerBug::DeadServed);
        let target = &self.targets[index as usize];
        let held_back = target.suspect || self.is_congested(index);
        let held = target.under_way + target.lost;
        let idle = target.under_way == 0 || planted.has(SchedulerBug::CongestedTwice);
        let turn = target.neighbours.part_of(1) > 0 || planted.has(SchedulerBug::TurnIgnored);
        let waits = !dead && held_back && idle;
        let gentle = waits && turn;
        self.able.set(index, !dead && !held_back && held < cap);
        self.dead.set(index, dead);
        let busy = if planted.has(SchedulerBug::LostIsBusy) { held } else { target.under_way };
        self.set_level(index, busy);
        let target = &mut self.targets[index as usize];
        self.turns +=
            u64::from(core::mem::replace(&mut target.slow, held_back || dead) != (held_back || dead));
        if waits && !target.waits {
            (target.since_nanos, target.tried) = (now_nanos, pick);
        }
        target.waits = waits;
        if gentle && !self.gentle.has(index) {
            let (since, tried) = (target.since_nanos, target.tried);
            self.age_nanos = self.age_nanos.min(since.saturating_add(self.aging_nanos()));
            self.due_pick = self.due_pick.min(tried.saturating_add(self.skip(index)));
        }
        self.gentle_count += u32::from(gentle);
        self.gentle_count -= u32::from(self.gentle.has(index));
        self.gentle.set(index, gentle);
        let told = self.targets[index as usize].told;
        self.changed.set(index, self.allowance(index) != told);
    }

    fn set_level(&mut self, index: u32, level: u32) {
        let target = &mut self.targets[index as usize];
        let old = core::mem::replace(&mut target.level, level);
        if old == level {
            return;
        }
        if self.levels.len() <= level as usize {
            self.levels.resize_with(level as usize + 1, Level::default);
        }
        let old = &mut self.levels[old as usize];
        old.targets.set(index, false);
        old.count -= 1;
        let new = &mut self.levels[level as usize];
        new.targets.set(index, true);
        new.count += 1;
    }

    /// The first target from `from` on, of those with the fewest under way, that may get a request and is in `ready`.
    pub fn least_busy(&self, ready: &Bits, from: u32) -> Option<u32> {
        let words = ready.words().min(self.able.words());
        let find = |level: &Level| {
            let word = |word| level.targets.word(word) & self.able.word(word) & ready.word(word);
            (level.count > 0).then(|| find_from(from, words, word)).flatten()
        };
        match self.config.planted.has(SchedulerBug::BusiestFirst) {
            false => self.levels.iter().find_map(find),
            true => self.levels.iter().rev().find_map(find),
        }
    }

    /// A request like this that takes longer is slow.
    pub fn slow_nanos(&self, class: usize, bytes: u32, depth: u32) -> Option<u64> {
        self.config.policy.slow_nanos(self.typical.of(class), bytes, depth)
    }

    /// How long a request like this usually takes on this target.
    pub fn usual_nanos(&self, index: u32, class: usize, bytes: u32, depth: u32) -> Option<u64> {
        let Measure { normal, latency } = self.get(index)?.recent.get(class)?.get()?;
        Some(expected(normal, bytes, depth).max(expected(latency, bytes, 1)))
    }

    /// M.
    pub fn skip(&self, index: u32) -> u64 {
        let recent = &self.targets[index as usize].recent;
        let measured = (0..CLASSES).find(|class| recent[*class].get().is_some()).unwrap_or(0);
        self.config.policy.skip(recent[measured].get(), self.typical.of(measured))
    }

    pub fn aging_nanos(&self) -> u64 {
        let derived = || {
            let usual = self.typical.of(0).map_or(0, |typical| expected(typical.normal, AGING_BYTES, 1));
            usual.max(AGING_NANOS_MIN)
        };
        self.config.aging_nanos.unwrap_or_else(derived)
    }

    /// A request was answered in time: what it says of its target.
    pub fn measured(&mut self, index: u32, sample: Sample, now_nanos: u64) {
        let Sample { class, nanos, bytes, depth } = sample;
        if self.is_archive(index) {
            self.targets[index as usize].seen_nanos = Some(now_nanos);
            return;
        }
        let measure = Measure { normal: normalise(nanos, bytes, depth), latency: normalise(nanos, bytes, 1) };
        let slow = self.slow_nanos(class, bytes, depth).is_some_and(|slow| nanos > slow);
        let steered = self.is_steered(index).then(|| self.cap(index));
        let target = &mut self.targets[index as usize];
        if target.recent.iter().all(|recent| recent.get().is_none()) {
            self.typical.know(index);
        }
        target.seen_nanos = Some(now_nanos);
        target.recent[class].add(measure);
        target.signal.observe(slow);
        if slow {
            target.slow_nanos = Some(now_nanos);
        }
        if let Some(most) = steered {
            target.signal.steer(class, measure.latency, depth, now_nanos, most);
        }
        let targets = &self.targets;
        self.typical.finished(|index| {
            let target = &targets[index as usize];
            // Who has nothing to do any more says nothing of how quick targets are now.
            let is_of_now = target.under_way > 0 || target.seen_within(TYPICAL_NANOS, now_nanos);
            if is_of_now { target.recent } else { [Recent::default(); CLASSES] }
        });
    }
}

/// One answer.
pub(super) struct Sample {
    pub class: usize,
    pub nanos: u64,
    pub bytes: u32,
    /// Requests under way on the target meanwhile, those of neighbours included.
    pub depth: u32,
}
