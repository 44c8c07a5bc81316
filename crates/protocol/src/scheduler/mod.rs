//! What a free I/O thread does next: a queue for each storage target, the same code at both ends.
//!
//! The caller [pushes](Scheduler::push) requests, and [picks](Scheduler::pick) one whenever an I/O thread is idle and a
//! slot is free. What must stay true:
//!
//! 1. **Fewest first.** Of the targets that are not congested the one with the fewest requests under way is next; among
//!    equals they take turns. A queue (target, gate and class) is first in, first out, so what is pushed in the order of
//!    a file is read in that order.
//! 2. **Share.** A target holds at most a third of the threads or slots, whichever are fewer, lost ones included, and
//!    at least 1 beside those that it has lost. This holds from the moment at which another target has had an object or a
//!    bundle; a file system that is one target has all of them. (What was under way at that moment is not taken back.)
//! 3. **Nothing waits for ever.** A request that takes longer than a bound is [written off](Scheduler::expire). A target
//!    that has lost [`Config::lost_per_target`] threads, each to another file ([`Scheduler::excuse`]), and has answered
//!    nothing that began since, or twice its share and those, is dead: what is queued for it is
//!    [handed back](Scheduler::take_dead). When one of its threads comes back it lives again.
//! 4. **Aging.** A congested target that could be tried is tried within [`Config::aging_nanos`], or as the second pick
//!    after that.
//! 5. **Gentle.** A congested target, or one that lost a thread and has not answered since, gets one request at a time,
//!    in pieces of at most [`GENTLE_PIECE_BYTES`](haul_model::limits::GENTLE_PIECE_BYTES).
//! 6. **Gates.** A request may need a unit of one of the other end's targets; without one it lets others pass. The unit is
//!    held from the pick until [`Scheduler::gate_done`]. Of some gates of a target the one with the fewest under way is
//!    next: the slower end is not to have a few busy targets and many idle ones. Classes of a target take turns by bytes,
//!    those that have something behind an open gate; one that has not has no claim to the time that it misses.
//! 7. **Work conserving.** [`Scheduler::pick`] returns `None` only if every target with work behind an open gate has as
//!    much under way as it may have, and each has at least one.
//! 8. Urgent requests (closing a file, repairs, the log) come first and know no limit but death.
//! 9. **Neighbours.** Where other transfers of this host are at a target, rules 2, 5 and 7 hold for all of them together:
//!    each has its part, or its turn ([`Scheduler::neighbours_said`]). What they say of a target counts only where nothing
//!    fresh is known here.
//!
//! A pick costs well under a microsecond with 2,000 targets and 10,000,000 requests (`tests/scheduler_cost.rs`): targets
//! are sets of bits, so no question visits them one by one. Memory is that of the queued requests (16 bytes each with an
//! item of 8) and 5 bytes for each pair of a target and a gate.
//!
//! # How a master uses it
//!
//! ```
//! use haul_protocol::scheduler::{Class, Config, Finished, Pace, Policy, Request, Scheduler, TargetId};
//!
//! // 12 I/O threads, 64 slots.
//! let mut scheduler = Scheduler::new(Config::new(12, 64, Policy::Adaptive(Default::default())));
//! // An object on target 3 that the sink will write to its target 7.
//! let object = Request { item: 42u64, target: TargetId(3), gate: Some(TargetId(7)), class: Class::Object, bytes: 4 << 20 };
//! scheduler.push(object, 0).unwrap();
//!
//! // A thread is idle and a slot is free. Without a slot: `pick_urgent`.
//! let picked = scheduler.pick(1_000).unwrap();
//! assert_eq!((picked.item, picked.pace), (42, Pace::Normal));
//! // The read has ended ...
//! assert_eq!(scheduler.finished(picked.ticket, 2_000_000, true), Finished::InTime);
//! // ... and the sink has written it.
//! assert!(scheduler.gate_done(picked.ticket));
//!
//! // At `deadline_nanos`, and whenever else: what takes too long, and what will not be done.
//! while let Some(lost) = scheduler.expire(10_000_000) {
//!     // lost.item failed for now; lost.replace: start a thread in place of the one that hangs.
//! }
//! while let Some((item, target)) = scheduler.take_dead() {
//!     // Retry it later (push), or name its file.
//! }
//! // What changed for the other end's scheduler goes there with the credits; it calls `set_allowance`.
//! while let Some((target, units)) = scheduler.next_allowance() {}
//! ```

mod bits;
mod choose;
mod congestion;
mod flights;
mod gates;
mod neighbours;
mod queues;
mod requests;
mod service;
mod targets;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

pub use congestion::{Adaptive, Lads, Policy, Steering};
pub use flights::Ticket;
pub use neighbours::{Said, Told};
pub use requests::{
    Class, Config, Finished, OutOfRange, Pace, Picked, Request, TargetId, TargetView, WrittenOff,
};

use crate::planted::SchedulerBug;
use flights::{Flight, Flights, Place, Stage, URGENT};
use gates::Gates;
use queues::{Queued, Queues, Taken};
use targets::{Sample, Targets};

/// Numbers of targets and gates are below this. Lustre has at most 8,150 targets.
pub const TARGETS_MAX: u32 = 16_384;
/// One target holds at most one part of so many.
const SHARE: u32 = 3;
/// Classes that wait in queues: all but urgent ones.
const CLASSES: usize = 4;

/// The queues of one end. `T` is what the caller calls a request; times are nanoseconds of any clock that never goes back.
pub struct Scheduler<T> {
    config: Config,
    queues: Queues<T>,
    gates: Gates,
    targets: Targets,
    flights: Flights<T>,
    urgent: VecDeque<Queued<T>>,
    /// The one queue of [`Policy::FileOrder`].
    in_order: VecDeque<(Queued<T>, usize)>,
    /// Requests of dead targets that were found in `urgent` or `in_order`.
    handed_back: VecDeque<Queued<T>>,
    failed_gates: bits::Bits,
    /// Targets at which there are neighbours.
    shared: Vec<u32>,
    picks: u64,
    turn: u32,
    gentle_turn: u32,
    aged_turn: u32,
    gentle_under_way: u32,
    last_was_aged: bool,
}

impl<T: Copy> Scheduler<T> {
    /// Nothing is queued.
    pub fn new(config: Config) -> Self {
        let mut queues = Queues::new();
        queues.newest_first = config.planted.has(SchedulerBug::NewestFirst);
        queues.largest_class_first = config.planted.has(SchedulerBug::LargestClassFirst);
        queues.idle_class_claims = config.planted.has(SchedulerBug::IdleClassClaims);
        queues.shut_class_claims = config.planted.has(SchedulerBug::ShutClassClaims);
        queues.ungated_waits = config.planted.has(SchedulerBug::UngatedWaits);
        queues.openings_missed = config.planted.has(SchedulerBug::OpeningMissed);
        let mut gates = Gates::new((config.slots / SHARE).max(1));
        gates.ignored = config.planted.has(SchedulerBug::GateIgnored);
        Scheduler {
            queues,
            gates,
            targets: Targets::new(config),
            flights: Flights::new(),
            urgent: VecDeque::new(),
            in_order: VecDeque::new(),
            handed_back: VecDeque::new(),
            failed_gates: bits::Bits::default(),
            shared: Vec::new(),
            picks: 0,
            turn: 0,
            gentle_turn: 0,
            aged_turn: 0,
            gentle_under_way: 0,
            last_was_aged: false,
            config,
        }
    }

    /// Queues a request behind those of its target, gate and class. What is queued for a dead target comes back with
    /// [`Scheduler::take_dead`].
    pub fn push(&mut self, request: Request<T>, now_nanos: u64) -> Result<(), OutOfRange> {
        let Request { item, target, gate, class, bytes } = request;
        if target.0 >= TARGETS_MAX || gate.is_some_and(|gate| gate.0 >= TARGETS_MAX) {
            return Err(OutOfRange);
        }
        let data = matches!(class, Class::Object | Class::Bundle);
        self.targets.know(target.0, data, now_nanos, self.picks);
        let queued = Queued { item, target: target.0, bytes };
        let Some(class) = class.number() else {
            self.urgent.push_back(queued);
            return Ok(());
        };
        if self.config.policy == Policy::FileOrder {
            self.in_order.push_back((queued, class));
            return Ok(());
        }
        let gate = gate.map_or(gates::NONE, |gate| gate.0 + 1);
        if let Some(other) = self.gates.know(gate) {
            self.judge_gate(other);
        }
        self.queues.push(queued, class, gate, &self.gates);
        if self.targets.gentle().has(target.0) {
            self.look_at_held_back();
        }
        Ok(())
    }

    /// There will be objects of several targets, whatever has been queued so far: from now on none of them gets more than its
    /// share.
    pub fn expect_several(&mut self, now_nanos: u64) {
        if self.targets.expect_several() {
            self.targets.refresh_all(now_nanos, self.picks);
        }
    }

    /// The next request, for a thread that is idle; if it is not urgent it needs a slot.
    pub fn pick(&mut self, now_nanos: u64) -> Option<Picked<T>> {
        let urgent_last = self.config.planted.has(SchedulerBug::UrgentWaits);
        if !urgent_last && let Some(picked) = self.pick_urgent(now_nanos) {
            return Some(picked);
        }
        let picked = match self.config.policy {
            Policy::FileOrder => self.pick_in_order(now_nanos),
            _ => self.choose(now_nanos).and_then(|target| {
                let taken = self.queues.take(target, &self.gates, false)?;
                Some(self.begin(taken, now_nanos))
            }),
        };
        if picked.is_none() && urgent_last { self.pick_urgent(now_nanos) } else { picked }
    }

    /// The next urgent request: it needs no slot.
    pub fn pick_urgent(&mut self, now_nanos: u64) -> Option<Picked<T>> {
        while let Some(queued) = self.urgent.pop_front() {
            if self.targets.is_dead(queued.target) {
                self.handed_back.push_back(queued);
                continue;
            }
            return Some(self.begin(Taken { queued, class: URGENT, gate: gates::NONE }, now_nanos));
        }
        None
    }

    /// The next object whatever its gate, for a caller that can put aside what the other end cannot take yet: no unit is
    /// held for it, so it is to be pushed again, as [`Class::Aside`]. Only of targets that are not held back, and none in
    /// [`Policy::FileOrder`], which knows no gates.
    pub fn pick_ahead(&mut self, now_nanos: u64) -> Option<Picked<T>> {
        let target = self.ahead(now_nanos)?;
        let taken = self.queues.take_object(target)?;
        Some(self.begin(Taken { gate: gates::NONE, ..taken }, now_nanos))
    }

    fn pick_in_order(&mut self, now_nanos: u64) -> Option<Picked<T>> {
        while let Some((queued, class)) = self.in_order.pop_front() {
            if self.targets.is_dead(queued.target) {
                self.handed_back.push_back(queued);
                continue;
            }
            return Some(self.begin(Taken { queued, class, gate: gates::NONE }, now_nanos));
        }
        None
    }

    fn begin(&mut self, taken: Taken<T>, now_nanos: u64) -> Picked<T> {
        let Taken { queued, class, gate } = taken;
        let Queued { item, target: index, bytes } = queued;
        let urgent = class == URGENT;
        let ordered = self.config.policy == Policy::FileOrder;
        let gentle = !urgent && !ordered && self.targets.gentle().has(index);
        let target = self.targets.at(index);
        target.under_way += u32::from(!urgent);
        let own = target.under_way.max(1);
        // However many neighbours there are: what hangs is found as soon.
        let usual = self.targets.usual_nanos(index, class, bytes, own);
        let patience = self.config.patience_nanos(index, usual);
        let depth = own + self.targets.crowd(index);
        let deadline_nanos = now_nanos.saturating_add(patience);
        let flight = Flight {
            item,
            target: index,
            gate,
            bytes,
            class,
            depth,
            gentle,
            started_nanos: now_nanos,
            deadline_nanos,
            stage: Stage::UnderWay,
            place: Place::default(),
        };
        let line = &mut self.targets.at(index).line;
        let ticket = self.flights.begin(flight, (!urgent).then_some(line));
        if gentle {
            self.gentle_under_way += 1;
            self.gentle_turn = index + 1;
        }
        if gate != gates::NONE {
            self.gates.take(gate);
            self.judge_gate(gate);
        }
        self.targets.refresh(index, now_nanos, self.picks);
        let spare = gentle && !self.config.planted.has(SchedulerBug::GentleNotTold);
        let pace = if spare { Pace::Gentle } else { Pace::Normal };
        Picked { ticket, item, target: TargetId(index), pace }
    }

    /// The thread is back. `done`: its I/O succeeded; if not, nothing goes to the other end, and the gate's unit is given
    /// back. What it says of a request that was written off counts no more.
    pub fn finished(&mut self, ticket: Ticket, now_nanos: u64, done: bool) -> Finished {
        let Some(flight) = self.flights.get(ticket) else { return Finished::Unknown };
        match flight.stage {
            Stage::UnderWay => {
                self.answered(ticket, &flight, now_nanos, done);
                Finished::InTime
            }
            Stage::Lost { replaced, excused } => {
                let index = flight.target;
                if !self.config.planted.has(SchedulerBug::RevivalMissed) {
                    self.targets.at(index).lost -= 1;
                }
                if !self.config.planted.has(SchedulerBug::ExcuseKept) {
                    self.targets.at(index).excused -= u32::from(excused);
                }
                self.targets.at(index).suspect = false;
                if self.config.planted.has(SchedulerBug::CountedTwice) {
                    let target = self.targets.at(index);
                    target.under_way = target.under_way.saturating_sub(1);
                } else {
                    self.flights.free(ticket);
                }
                let was_exhausted = self.targets.exhausted();
                match replaced {
                    true => self.targets.replaced -= 1,
                    false => self.targets.unreplaced -= 1,
                }
                self.targets.lost_slots -= u32::from(flight.class != URGENT);
                match was_exhausted && !self.targets.exhausted() {
                    true => self.targets.refresh_all(now_nanos, self.picks),
                    false => self.targets.refresh(index, now_nanos, self.picks),
                }
                Finished::Late { spare: replaced }
            }
            Stage::AtOtherEnd | Stage::Free => Finished::Unknown,
        }
    }

    /// A request that was picked will not be done after all: storage never heard of it, and nothing is learnt of its target.
    pub fn cancel(&mut self, ticket: Ticket, now_nanos: u64) -> bool {
        let Some(flight) = self.flights.get(ticket).filter(|flight| flight.stage == Stage::UnderWay) else {
            return false;
        };
        if self.config.planted.has(SchedulerBug::CancelCures) {
            self.answered(ticket, &flight, now_nanos, false);
            return true;
        }
        self.end(ticket, &flight, Stage::Free);
        if flight.gate != gates::NONE {
            self.give_back(flight.gate);
        }
        self.targets.refresh(flight.target, now_nanos, self.picks);
        true
    }

    fn answered(&mut self, ticket: Ticket, flight: &Flight<T>, now_nanos: u64, done: bool) {
        let (index, gated) = (flight.target, flight.gate != gates::NONE);
        let stage = if gated && done { Stage::AtOtherEnd } else { Stage::Free };
        let depth = self.end(ticket, flight, stage);
        let target = self.targets.at(index);
        target.suspect = false;
        // It serves others: what was lost before is about what it was lost with.
        let is_served =
            flight.started_nanos > target.lost_nanos && !self.config.planted.has(SchedulerBug::LossStays);
        if target.lost > target.excused && is_served {
            target.excused = target.lost;
            self.flights.excuse_all(index);
        }
        if done && flight.class != URGENT {
            let nanos = now_nanos.saturating_sub(flight.started_nanos);
            // Of requests that begin and end together each sees fewer at one of its ends.
            let depth = flight.depth.max(depth + self.targets.crowd(index));
            self.targets.measured(
                index,
                Sample { class: flight.class, nanos, bytes: flight.bytes, depth },
                now_nanos,
            );
        }
        if gated && !done {
            self.give_back(flight.gate);
        }
        self.targets.refresh(index, now_nanos, self.picks);
    }

    /// Takes a request out of those under way. Returns how many there were on its target, itself included.
    fn end(&mut self, ticket: Ticket, flight: &Flight<T>, stage: Stage) -> u32 {
        let target = self.targets.at(flight.target);
        let depth = target.under_way;
        let urgent = flight.class == URGENT;
        self.flights.end(ticket, stage, (!urgent).then_some(&mut target.line));
        if !urgent {
            target.under_way = depth.saturating_sub(1);
        }
        self.gentle_under_way -= u32::from(flight.gentle);
        depth
    }

    /// When [`Scheduler::expire`] has something to do, if no request ends before.
    pub fn deadline_nanos(&self) -> Option<u64> {
        self.flights.deadline_nanos()
    }

    /// A request has come further than it was: it is given as much time again as one of which nothing is known.
    pub fn renew(&mut self, ticket: Ticket, now_nanos: u64) {
        let Some(flight) = self.flights.get(ticket) else { return };
        let patience = self.config.patience_nanos(flight.target, None);
        self.flights.renew(ticket, now_nanos.saturating_add(patience));
    }

    /// Writes off one request that has taken too long; ask until there is none. Its thread, and its slot if it has one,
    /// are lost until [`Scheduler::finished`] says [`Finished::Late`].
    pub fn expire(&mut self, now_nanos: u64) -> Option<WrittenOff<T>> {
        if self.config.planted.has(SchedulerBug::WrittenOffNever) {
            return None;
        }
        let ticket = self.flights.next_overdue(now_nanos)?;
        let flight = self.flights.get(ticket)?;
        let index = flight.target;
        let replace = self.targets.replaced < self.config.lost_in_all
            || self.config.planted.has(SchedulerBug::ReplacedAlways);
        self.end(ticket, &flight, Stage::Lost { replaced: replace, excused: false });
        let target = self.targets.at(index);
        target.lost += 1;
        (target.suspect, target.lost_nanos) = (true, now_nanos);
        match replace {
            true => self.targets.replaced += 1,
            false => self.targets.unreplaced += 1,
        }
        self.targets.lost_slots += u32::from(flight.class != URGENT);
        if flight.gate != gates::NONE {
            self.give_back(flight.gate);
        }
        match self.targets.exhausted() {
            true => self.targets.refresh_all(now_nanos, self.picks),
            false => self.targets.refresh(index, now_nanos, self.picks),
        }
        Some(WrittenOff { ticket, item: flight.item, target: TargetId(index), replace })
    }

    /// A request that was just written off says nothing of its target: another one is lost there already that is about the same
    /// file, and what hangs may be that. False if it is not known, or has been said.
    pub fn excuse(&mut self, ticket: Ticket, now_nanos: u64) -> bool {
        let Some(target) = self.flights.excuse(ticket) else { return false };
        self.targets.at(target).excused += 1;
        self.targets.refresh(target, now_nanos, self.picks);
        true
    }

    /// A request that will not be picked: its target is dead, or its gate has [failed](Scheduler::fail_gate). Ask until
    /// there is none, after each [`Scheduler::expire`], [`Scheduler::pick`] and [`Scheduler::push`].
    pub fn take_dead(&mut self) -> Option<(T, TargetId)> {
        if self.config.planted.has(SchedulerBug::DeadNotHandedBack) {
            return None;
        }
        let dead = self.targets.dead();
        let is_dead = |queued: &Queued<T>| dead.has(queued.target);
        let queued = if let Some(queued) = self.handed_back.pop_front() {
            queued
        } else if self.urgent.front().is_some_and(is_dead) {
            self.urgent.pop_front()?
        } else if self.in_order.front().is_some_and(|(queued, _)| is_dead(queued)) {
            self.in_order.pop_front()?.0
        } else {
            let waiting = self.queues.waiting();
            let words = waiting.words().min(dead.words());
            match bits::find_from(0, words, |word| waiting.word(word) & dead.word(word)) {
                Some(target) => self.queues.take(target, &self.gates, true)?.queued,
                None => self.take_failed()?.queued,
            }
        };
        Some((queued.item, TargetId(queued.target)))
    }

    fn take_failed(&mut self) -> Option<Taken<T>> {
        let wanted = self.queues.wanted();
        let words = wanted.words().min(self.failed_gates.words());
        let both = |word| wanted.word(word) & self.failed_gates.word(word);
        let gate = bits::find_from(0, words, both)?;
        self.queues.take_behind(gate)
    }

    /// There are so many I/O threads from now on.
    pub fn set_threads(&mut self, threads: u32, now_nanos: u64) {
        self.config.threads = threads;
        self.targets.set_threads(threads);
        self.targets.refresh_all(now_nanos, self.picks);
    }

    /// This end uses so many slots from now on. Gates of which the other end has said nothing keep the share that they had.
    pub fn set_slots(&mut self, slots: u32, now_nanos: u64) {
        self.config.slots = slots;
        self.targets.set_slots(slots);
        self.targets.refresh_all(now_nanos, self.picks);
    }

    /// What is known of a target.
    pub fn target(&self, target: TargetId) -> Option<TargetView> {
        let it = self.targets.get(target.0).filter(|target| target.known)?;
        Some(TargetView {
            under_way: it.under_way,
            lost: it.lost,
            queued: self.queues.length_of(target.0),
            depth: self.targets.depth(target.0),
            allowance: self.targets.allowance(target.0),
            congested: self.targets.is_congested(target.0),
            suspect: it.suspect,
            dead: self.targets.is_dead(target.0),
        })
    }

    /// Another number whenever a target has become congested, suspect or dead, or has ceased to be.
    pub fn turns(&self) -> u64 {
        self.targets.turns
    }

    /// Requests that were pushed and neither picked nor handed back.
    pub fn queued(&self) -> u64 {
        self.queues.length() + (self.urgent.len() + self.in_order.len() + self.handed_back.len()) as u64
    }

    /// Requests that were picked and are neither finished nor written off.
    pub fn under_way(&self) -> u32 {
        self.flights.under_way()
    }
}
