//! One history: threads that take requests to devices, a far end behind gates, and a clock.

use std::collections::BTreeMap;

use haul_protocol::scheduler::{Class, Finished, Picked, Request, Scheduler, TargetId, TargetView, Ticket};

use super::model::Model;
use super::plan::{Arrival, Device, Plan, SECOND};
use super::report::{Count, SchedulerReport};
use crate::queue::Queue;
use crate::random::Random;

enum Event {
    /// A request comes, or comes again.
    Push {
        id: u32,
    },
    /// The I/O of a request ends.
    Ends {
        ticket: Ticket,
        done: bool,
    },
    /// The other end is done with it; `lost`: its target failed.
    FarDone {
        ticket: Ticket,
        lost: bool,
    },
    Allowance {
        gate: u32,
        units: u32,
    },
    GateFails {
        gate: u32,
    },
    /// Neighbours say what the plan has at this place.
    Neighbours {
        number: usize,
    },
    Wake,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Not pushed yet, or to be pushed again.
    Away,
    Waiting,
    UnderWay,
    AtFarEnd,
    Done,
    /// Its I/O failed, or that of the other end, as often as it was tried.
    Failed,
    WrittenOff,
    HandedBack,
    Cancelled,
}

#[derive(Clone, Copy)]
pub(super) struct Flight {
    pub id: u32,
    pub started: u64,
    /// It was written off; `Some(true)` if its thread was replaced.
    pub lost: Option<bool>,
    /// And another one of its file was lost there before.
    pub excused: bool,
}

/// Events after which a history must have come to its end.
const EVENTS_MAX: u64 = 200_000;
/// How long a request that failed stays away.
const RETRY: u64 = SECOND;

pub(super) struct World {
    pub plan: Plan,
    pub scheduler: Scheduler<u32>,
    pub model: Model,
    pub states: Vec<State>,
    tries: Vec<u8>,
    pub flights: BTreeMap<Ticket, Flight>,
    queue: Queue<Event>,
    pub now: u64,
    random: Random,
    pub idle: u32,
    slots: u32,
    far_free: Vec<u64>,
    wake: u64,
    pub report: SchedulerReport,
    trace: Option<Vec<String>>,
    views: Vec<Option<TargetView>>,
}

impl World {
    pub fn new(plan: Plan, random: Random, trace: bool) -> World {
        let (targets, gates, requests) = (plan.devices.len(), plan.fars.len(), plan.arrivals.len());
        World {
            scheduler: Scheduler::new(plan.config),
            model: Model::new(plan.config, targets, gates),
            states: vec![State::Away; requests],
            tries: vec![0; requests],
            flights: BTreeMap::new(),
            queue: Queue::default(),
            now: 0,
            random,
            idle: plan.config.threads,
            slots: plan.config.slots,
            far_free: vec![0; gates],
            wake: u64::MAX,
            report: SchedulerReport::default(),
            trace: trace.then(Vec::new),
            views: Vec::new(),
            plan,
        }
    }

    /// A line of the trace, if there is one.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>14.6} {}", self.now as f64 / 1e9, text()));
        }
    }

    pub fn take_trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }

    /// Something does not hold; the first is kept.
    pub fn violate(&mut self, text: String) {
        self.note(|| format!("VIOLATION {text}"));
        self.report.violation.get_or_insert(text);
    }

    pub fn request(&self, id: u32) -> Arrival {
        self.plan.arrivals[id as usize]
    }

    pub fn run(&mut self) {
        let plan_line = format!(
            "{:?}, {} targets, {} gates, {} requests",
            self.plan.config,
            self.plan.devices.len(),
            self.plan.fars.len(),
            self.states.len()
        );
        self.note(|| plan_line);
        for id in 0..self.states.len() as u32 {
            self.queue.push(self.request(id).at, Event::Push { id });
        }
        for (gate, far) in self.plan.fars.iter().enumerate() {
            let gate = gate as u32;
            for (at, units) in &far.allowances {
                self.queue.push(*at, Event::Allowance { gate, units: *units });
            }
            if let Some(at) = far.fails {
                self.queue.push(at, Event::GateFails { gate });
            }
        }
        for (number, (at, _)) in self.plan.neighbours.iter().enumerate() {
            self.queue.push(*at, Event::Neighbours { number });
        }
        while self.report.violation.is_none()
            && let Some((at, event)) = self.queue.pop()
        {
            self.now = at;
            self.report.events += 1;
            if self.report.events > EVENTS_MAX {
                self.violate("it does not end".into());
            }
            self.happen(event);
            self.write_off();
            self.dispatch();
            self.plan_wake();
        }
        if self.report.violation.is_none() {
            self.check_end();
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Push { id } => self.push(id),
            Event::Ends { ticket, done } => self.ends(ticket, done),
            Event::FarDone { ticket, lost } => self.far_done(ticket, lost),
            Event::Allowance { gate, units } => {
                if !self.model.gates[gate as usize].failed {
                    self.note(|| format!("gate {gate} may have {units}"));
                    let it = &mut self.model.gates[gate as usize];
                    (it.known, it.allowance) = (true, Some(units));
                    self.scheduler.set_allowance(TargetId(gate), units).expect("a number in range");
                }
            }
            Event::GateFails { gate } => {
                self.note(|| format!("gate {gate} fails"));
                let it = &mut self.model.gates[gate as usize];
                (it.known, it.failed) = (true, true);
                self.scheduler.fail_gate(TargetId(gate)).expect("a number in range");
                self.report.count(Count::GateFailed);
            }
            Event::Neighbours { number } => self.neighbours_say(number),
            Event::Wake => self.wake = u64::MAX,
        }
    }

    fn neighbours_say(&mut self, number: usize) {
        let told = std::mem::take(&mut self.plan.neighbours[number].1);
        self.note(|| format!("neighbours say {told:?}"));
        for (target, it) in (0..).zip(&mut self.model.targets) {
            let heard = told.iter().find(|told| told.target.0 == target);
            let had = it.part_of(1);
            it.part = heard.map_or((1, 0), |told| (told.parts, told.place));
            (it.passed, it.overtaken) = (0, 0);
            if had == 0 && it.part_of(1) > 0 {
                it.since = self.now;
            }
        }
        let targets = 0..self.plan.devices.len() as u32;
        let before: Vec<_> = targets.map(|target| self.scheduler.target(TargetId(target))).collect();
        self.scheduler.neighbours_said(&told, self.now);
        self.check_heard(&before);
        let held_back = |view: &TargetView| view.congested || view.suspect;
        for (target, before) in (0..).zip(before) {
            let after = self.scheduler.target(TargetId(target));
            if after.as_ref().is_some_and(held_back) && !before.as_ref().is_some_and(held_back) {
                self.model.targets[target as usize].since = self.now;
            }
        }
    }

    fn push(&mut self, id: u32) {
        let Arrival { target, gate, class, bytes, .. } = self.request(id);
        self.note(|| format!("{id} comes: {class:?} of {target}, gate {gate:?}, {bytes} bytes"));
        self.states[id as usize] = State::Waiting;
        let request = self.request(id);
        self.model.push(id, &request, self.now);
        let request = Request { item: id, target: TargetId(target), gate: gate.map(TargetId), class, bytes };
        self.scheduler.push(request, self.now).expect("a number in range");
    }

    /// Its I/O was no success: it comes again, or has ended.
    fn again_or(&mut self, id: u32, ended: State) {
        let tries = &mut self.tries[id as usize];
        *tries += 1;
        if *tries <= self.plan.retries {
            self.states[id as usize] = State::Away;
            self.queue.push(self.now + RETRY, Event::Push { id });
        } else {
            self.states[id as usize] = ended;
        }
    }

    fn ends(&mut self, ticket: Ticket, done: bool) {
        let Some(flight) = self.flights.get(&ticket).copied() else {
            return self.violate("a ticket was given out twice".into());
        };
        let Flight { id, lost, excused, .. } = flight;
        let request = self.request(id);
        let expected = lost.map_or(Finished::InTime, |spare| Finished::Late { spare });
        let finished = self.scheduler.finished(ticket, self.now, done);
        self.note(|| format!("{id} ends, done: {done}: {finished:?}"));
        if finished != expected {
            return self.violate(format!("{id} has {finished:?}, not {expected:?}"));
        }
        if self.random.chance(self.plan.repeats)
            && self.scheduler.finished(ticket, self.now, done) != Finished::Unknown
        {
            return self.violate(format!("{id} ends twice"));
        }
        let urgent = request.class == Class::Urgent;
        let gated = request.gate.is_some() && !urgent && !self.model.in_file_order();
        let target = &mut self.model.targets[request.target as usize];
        (target.since, target.suspect) = (self.now, false);
        if let Some(replaced) = lost {
            target.lost -= 1;
            target.excused -= u32::from(excused);
            match replaced {
                true => self.model.replaced -= 1,
                false => {
                    self.model.unreplaced -= 1;
                    self.idle += 1;
                }
            }
            self.model.lost_slots -= u32::from(!urgent);
            self.slots += u32::from(!urgent);
            self.flights.remove(&ticket);
            self.report.count(Count::Late);
            return;
        }
        target.under_way -= u32::from(!urgent);
        if done && !urgent {
            target.answered = Some(self.now);
        }
        if flight.started > target.lost_at && target.excused < target.lost {
            target.excused = target.lost;
            let requests = &self.plan.arrivals;
            for other in self.flights.values_mut() {
                let is_there = requests[other.id as usize].target == request.target;
                other.excused |= is_there && other.lost.is_some();
            }
        }
        self.idle += 1;
        self.slots += u32::from(!urgent);
        if done && gated {
            self.states[id as usize] = State::AtFarEnd;
            return self.send(ticket, request.gate.unwrap_or(0));
        }
        self.flights.remove(&ticket);
        if gated {
            self.model.gates[request.gate.unwrap_or(0) as usize].under_way -= 1;
        }
        match done {
            true => self.states[id as usize] = State::Done,
            false => self.again_or(id, State::Failed),
        }
    }

    /// The other end serves what comes through a gate one by one, until that target fails.
    fn send(&mut self, ticket: Ticket, gate: u32) {
        let far = &self.plan.fars[gate as usize];
        let at = self.far_free[gate as usize].max(self.now) + far.pace;
        self.far_free[gate as usize] = at;
        let lost = far.fails.is_some_and(|fails| at > fails);
        let at = if lost { far.fails.unwrap_or(0).max(self.now) + SECOND } else { at };
        self.queue.push(at, Event::FarDone { ticket, lost });
    }

    fn far_done(&mut self, ticket: Ticket, lost: bool) {
        let Some(Flight { id, .. }) = self.flights.remove(&ticket) else { return };
        self.note(|| format!("{id} is done at the far end, lost: {lost}"));
        if !self.scheduler.gate_done(ticket) {
            return self.violate(format!("{id} is not known to be at the far end"));
        }
        let gate = self.request(id).gate.unwrap_or(0);
        self.model.gates[gate as usize].under_way -= 1;
        match lost {
            true => self.again_or(id, State::Failed),
            false => self.states[id as usize] = State::Done,
        }
    }

    fn write_off(&mut self) {
        while let Some(lost) = self.scheduler.expire(self.now) {
            let id = lost.item;
            self.note(|| format!("{id} is written off, replaced: {}", lost.replace));
            let Some(flight) = self.flights.get(&lost.ticket).copied() else {
                return self.violate(format!("{id} is written off and was not under way"));
            };
            self.check_written_off(&lost, &flight);
            let request = self.request(id);
            let urgent = request.class == Class::Urgent;
            let is_of_it = |other: &Flight| {
                other.lost.is_some()
                    && self.request(other.id).target == request.target
                    && other.id % self.plan.files == id % self.plan.files
            };
            let excused = self.flights.values().any(is_of_it);
            if excused && !self.scheduler.excuse(lost.ticket, self.now) {
                return self.violate(format!("{id} cannot be excused"));
            }
            self.flights.insert(lost.ticket, Flight { lost: Some(lost.replace), excused, ..flight });
            let target = &mut self.model.targets[request.target as usize];
            target.under_way -= u32::from(!urgent);
            target.lost += 1;
            target.excused += u32::from(excused);
            target.lost_at = self.now;
            (target.since, target.suspect) = (self.now, true);
            match lost.replace {
                true => {
                    self.model.replaced += 1;
                    self.idle += 1;
                }
                false => self.model.unreplaced += 1,
            }
            self.model.lost_slots += u32::from(!urgent);
            if let Some(gate) = request.gate.filter(|_| !urgent && !self.model.in_file_order()) {
                self.model.gates[gate as usize].under_way -= 1;
            }
            self.report.count(Count::WrittenOff);
            self.again_or(id, State::WrittenOff);
        }
        self.check_overdue();
    }

    fn take_dead(&mut self) {
        while let Some((id, target)) = self.scheduler.take_dead() {
            self.note(|| format!("{id} is handed back"));
            self.check_handed_back(id, target);
            self.report.count(Count::HandedBack);
            self.again_or(id, State::HandedBack);
        }
    }

    fn dispatch(&mut self) {
        self.take_dead();
        while self.idle > 0 && self.report.violation.is_none() {
            let mut views = std::mem::take(&mut self.views);
            views.clear();
            let targets = 0..self.plan.devices.len() as u32;
            views.extend(targets.map(|target| self.scheduler.target(TargetId(target))));
            let picked = match self.slots {
                0 => self.scheduler.pick_urgent(self.now),
                _ => self.scheduler.pick(self.now),
            };
            self.take_dead();
            if let Some(picked) = picked {
                self.check_picked(&picked, &views);
                match self.random.chance(self.plan.cancels) {
                    true => self.cancel(&picked),
                    false => self.start(&picked),
                }
            }
            self.views = views;
            if picked.is_none() {
                self.check_idle(self.slots > 0);
                break;
            }
        }
        self.check_forgotten();
    }

    /// What it is about is gone: it is not done after all.
    fn cancel(&mut self, picked: &Picked<u32>) {
        let id = picked.item;
        self.note(|| format!("{id} is picked, and cancelled"));
        self.states[id as usize] = State::Cancelled;
        self.report.count(Count::Cancelled);
        if !self.scheduler.cancel(picked.ticket, self.now) {
            self.violate(format!("{id} cannot be cancelled"));
        }
    }

    fn start(&mut self, picked: &Picked<u32>) {
        let id = picked.item;
        let request = self.request(id);
        let urgent = request.class == Class::Urgent;
        self.states[id as usize] = State::UnderWay;
        self.idle -= 1;
        self.slots -= u32::from(!urgent);
        let target = &mut self.model.targets[request.target as usize];
        target.under_way += u32::from(!urgent);
        let depth = target.under_way;
        if let Some(gate) = request.gate.filter(|_| !urgent && !self.model.in_file_order()) {
            self.model.gates[gate as usize].under_way += 1;
        }
        self.flights.insert(picked.ticket, Flight { id, started: self.now, lost: None, excused: false });
        self.report.count(Count::Picked);
        let device = &self.plan.devices[request.target as usize];
        let spread = 100 + self.random.below(self.plan.jitter + 1);
        let ends = device.ends(self.now, request.bytes, depth, spread).filter(|_| !self.plan.is_locked(id));
        let done = !self.random.chance(device.errors);
        self.note(|| format!("{id} is picked: {:?}, {depth} under way, ends {ends:?}", picked.pace));
        if let Some(at) = ends {
            self.queue.push(at, Event::Ends { ticket: picked.ticket, done });
        }
    }

    fn plan_wake(&mut self) {
        let Some(deadline) = self.scheduler.deadline_nanos() else { return };
        if deadline <= self.now {
            return self.violate("the deadline has passed".into());
        }
        if deadline < self.wake {
            self.wake = deadline;
            self.queue.push(deadline, Event::Wake);
        }
    }
}

impl Device {
    /// When a request that begins now ends, if ever.
    fn ends(&self, now: u64, bytes: u32, depth: u32, percent: u64) -> Option<u64> {
        let slow = self.slow.iter().filter(|(from, until, _)| (*from..*until).contains(&now));
        let slower = slow.map(|(_, _, times)| *times).max().unwrap_or(1);
        let queueing = u64::from(depth.div_ceil(self.width).max(1));
        let nanos_of_one = (self.pace * u64::from(bytes).max(256 << 10)) >> 20;
        let nanos = nanos_of_one * slower * queueing * percent / 100;
        let mut ends = now + nanos.max(1);
        let mut stalls = self.stalls.clone();
        stalls.sort_unstable();
        for (from, until) in stalls {
            if from <= ends && now < until {
                ends = ends.max(until.checked_add(nanos).filter(|_| until < u64::MAX)?);
            }
        }
        Some(ends)
    }
}
