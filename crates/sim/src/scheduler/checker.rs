//! What must hold, by the rules that `haul_protocol::scheduler` names.

use haul_protocol::scheduler::{Class, Config, Pace, Picked, Policy, TargetId, TargetView, WrittenOff};

use super::model::class_number;
use super::plan::SECOND;
use super::report::Count;
use super::world::{Flight, State, World};

/// A request counts as at least so many bytes in turns of classes.
const TURN_BYTES_MIN: u64 = 64 << 10;
/// What was seen here holds for so long, whatever neighbours say.
const OWN_WORD: u64 = 2 * SECOND;

fn held_back(view: &TargetView) -> bool {
    view.congested || view.suspect
}

impl World {
    /// A request was picked; `views` are the targets as they were before.
    pub(super) fn check_picked(&mut self, picked: &Picked<u32>, views: &[Option<TargetView>]) {
        let (id, target) = (picked.item, picked.target.0);
        let request = self.request(id);
        if self.states[id as usize] != State::Waiting || request.target != target {
            return self.violate(format!("{id} is picked, and was {:?}", self.states[id as usize]));
        }
        if self.model.dead(target) {
            return self.violate(format!("{id} is picked though target {target} is dead"));
        }
        if request.class != Class::Urgent && self.urgent_waits() {
            return self.violate(format!("{id} is picked before what is urgent"));
        }
        if self.flights.contains_key(&picked.ticket) {
            return self.violate(format!("{id} has the ticket of another"));
        }
        if request.class != Class::Urgent && !self.model.in_file_order() {
            self.check_limits(picked, views);
            self.check_choice(picked, views);
            self.check_classes(target, class_number(request.class), request.bytes);
        }
        if !self.model.take(id, &request, true) {
            self.violate(format!("{id} is picked before the first of its queue"));
        }
    }

    fn urgent_waits(&self) -> bool {
        self.model.urgent.iter().any(|id| !self.model.dead(self.request(*id).target))
    }

    fn check_limits(&mut self, picked: &Picked<u32>, views: &[Option<TargetView>]) {
        let target = picked.target.0;
        let it = &self.model.targets[target as usize];
        let held = it.under_way + it.lost;
        let cap = self.model.cap(target);
        let view = views[target as usize];
        let gentle = picked.pace == Pace::Gentle;
        let spared = view.is_some_and(|view| held_back(&view));
        if held >= cap.max(it.lost + 1) {
            return self.violate(format!("target {target} gets more than its share of {cap}"));
        }
        if gentle != spared {
            return self.violate(format!("target {target} is held back: {spared}, and is spared: {gentle}"));
        }
        if spared && it.under_way > 0 {
            return self.violate(format!("target {target} is held back and gets a second request"));
        }
        let part = if spared { it.part_of(1) } else { it.limit(cap) };
        if part == 0 || !spared && held >= part {
            return self.violate(format!("target {target} gets what is its neighbours' part"));
        }
        if view.is_some_and(|view| !spared && held >= view.depth) {
            return self.violate(format!("target {target} gets more than its depth"));
        }
        if let Some(gate) = self.request(picked.item).gate {
            let units = self.model.units(gate);
            if self.model.gates[gate as usize].under_way >= units {
                self.violate(format!("gate {gate} gets more than {units}"));
            }
        }
    }

    /// Fewest first, turns, aging.
    fn check_choice(&mut self, picked: &Picked<u32>, views: &[Option<TargetView>]) {
        let chosen = picked.target.0;
        let busy = |world: &World, target: u32| world.model.targets[target as usize].under_way;
        let chosen_busy = busy(self, chosen);
        let gentle = picked.pace == Pace::Gentle;
        self.report.count(if gentle { Count::Gentle } else { Count::Normal });
        let targets = views.len() as u32;
        for (target, view) in (0..targets).zip(views) {
            let Some(before) = view else { continue };
            let may_take = self.model.may_take(target) && !self.model.dead(target);
            let it = &mut self.model.targets[target as usize];
            if target == chosen || !may_take {
                (it.passed, it.overtaken) = (0, 0);
                continue;
            }
            // What became congested while it was looked at is not to be compared.
            let after = self.scheduler.target(TargetId(target)).unwrap_or(*before);
            let healthy = !held_back(before) && !held_back(&after);
            let others = busy(self, target);
            let held = others + self.model.targets[target as usize].lost;
            if !gentle && healthy && others < chosen_busy && held < before.depth {
                return self.violate(format!("target {chosen} has {chosen_busy}, and {target} has {others}"));
            }
            let limit = self.plan.config.aging_nanos;
            let it = &mut self.model.targets[target as usize];
            let old = limit.is_some_and(|limit| self.now >= it.since + limit);
            let waits = held_back(before) && it.under_way == 0 && it.part_of(1) > 0;
            it.overtaken = if waits && old { it.overtaken + 1 } else { 0 };
            let idle = healthy && others == 0 && held < before.depth;
            it.passed = if !gentle && idle { it.passed + 1 } else { it.passed };
            let (passed, overtaken) = (it.passed, it.overtaken);
            if overtaken > 0 {
                self.report.count(Count::Aged);
            }
            if passed > targets {
                return self.violate(format!("target {target} has nothing under way and is passed by"));
            }
            if overtaken > 2 * targets + 2 {
                return self.violate(format!("target {target} is skipped for longer than the limit"));
            }
        }
        self.model.targets[chosen as usize].since = self.now;
    }

    /// Neighbours were heard; `views` are the targets as they were before.
    pub(super) fn check_heard(&mut self, views: &[Option<TargetView>]) {
        for (target, before) in (0..).zip(views) {
            let Some(after) = self.scheduler.target(TargetId(target)) else { continue };
            let turned = after.congested && !before.is_some_and(|before| before.congested);
            let it = &self.model.targets[target as usize];
            // What is under way may have been found to take too long.
            let (answered, waits) = (it.answered, it.under_way > 0);
            let fresh = answered.is_some_and(|answered| self.now < answered + OWN_WORD);
            self.report.count(if turned { Count::Advised } else { Count::Heard });
            if turned && fresh && !waits {
                self.violate(format!("target {target} is congested because neighbours say so"));
            }
        }
    }

    /// Classes of a target are served by bytes, those with something behind an open gate.
    fn check_classes(&mut self, target: u32, class: usize, bytes: u32) {
        let waits = [0, 1, 2].map(|other| other != class && self.model.waits(target, other));
        let it = &mut self.model.targets[target as usize];
        for (other, waits) in waits.into_iter().enumerate() {
            let more = u64::from(bytes).max(TURN_BYTES_MIN);
            it.behind[other] = if waits { it.behind[other] + more } else { 0 };
        }
        // The class that is served may be behind by its largest request, and so may the third one.
        let most = 3 * (4 << 20);
        if let Some(other) = it.behind.iter().position(|behind| *behind > most) {
            self.violate(format!("target {target} lets class {other} wait"));
        }
    }

    /// A thread is idle and nothing was picked.
    pub(super) fn check_idle(&mut self, with_slot: bool) {
        if self.urgent_waits() {
            return self.violate("a thread is idle and something urgent waits".into());
        }
        if !with_slot {
            return self.report.count(Count::NoSlot);
        }
        self.report.count(Count::Idle);
        if self.model.in_order.iter().any(|id| !self.model.dead(self.request(*id).target)) {
            return self.violate("a thread is idle and a request waits".into());
        }
        for target in 0..self.plan.devices.len() as u32 {
            let Some(view) = self.scheduler.target(TargetId(target)) else { continue };
            if self.model.dead(target) || !self.model.may_take(target) {
                continue;
            }
            let it = &self.model.targets[target as usize];
            let spared = held_back(&view);
            let held = if spared { it.under_way } else { it.under_way + it.lost };
            if held < self.model.depth_min(target, &view) {
                let under_way = it.under_way;
                return self.violate(format!(
                    "a thread is idle, target {target} has work and {under_way} under way"
                ));
            }
        }
    }

    pub(super) fn check_written_off(&mut self, lost: &WrittenOff<u32>, flight: &Flight) {
        let Config { patience_nanos, archive, lost_in_all, .. } = self.plan.config;
        let age = self.now - flight.started;
        if flight.id != lost.item
            || flight.lost.is_some()
            || self.states[flight.id as usize] != State::UnderWay
        {
            return self.violate(format!("{} is written off as {}", flight.id, lost.item));
        }
        if patience_nanos.is_some_and(|patience| age < patience) {
            return self.violate(format!("{} is written off after {age} ns", flight.id));
        }
        let target = self.request(flight.id).target;
        if patience_nanos.is_none() && archive == Some(target) {
            return self.violate(format!("{} of the archive is written off after {age} ns", flight.id));
        }
        if lost.replace != (self.model.replaced < lost_in_all) {
            self.violate(format!("{} threads were replaced, of {lost_in_all}", self.model.replaced));
        }
    }

    /// Nothing is under way for longer than the bound.
    pub(super) fn check_overdue(&mut self) {
        let Some(patience) = self.plan.config.patience_nanos else { return };
        let waits =
            |flight: &Flight| flight.lost.is_none() && self.states[flight.id as usize] == State::UnderWay;
        let overdue = |flight: &&Flight| waits(flight) && self.now - flight.started >= patience;
        if let Some(flight) = self.flights.values().find(overdue) {
            self.violate(format!("{} is under way for too long", flight.id));
        }
    }

    pub(super) fn check_handed_back(&mut self, id: u32, target: TargetId) {
        let request = self.request(id);
        let failed = request.gate.is_some_and(|gate| self.model.gates[gate as usize].failed);
        if self.states[id as usize] != State::Waiting || target.0 != request.target {
            return self.violate(format!("{id} is handed back, and was {:?}", self.states[id as usize]));
        }
        if !failed && !self.model.dead(request.target) {
            return self.violate(format!("{id} is handed back, and its target is alive"));
        }
        if !self.model.take(id, &request, false) {
            self.violate(format!("{id} is handed back, and was not queued"));
        }
    }

    /// What nobody will pick has been handed back, and the scheduler agrees which targets are dead.
    pub(super) fn check_forgotten(&mut self) {
        if self.report.violation.is_some() {
            return;
        }
        if let Some(id) = self.model.forgotten(|id| self.request(id)) {
            return self.violate(format!("{id} is not handed back"));
        }
        for target in 0..self.plan.devices.len() as u32 {
            let Some(view) = self.scheduler.target(TargetId(target)) else { continue };
            let dead = self.model.dead(target);
            if view.dead != dead {
                return self
                    .violate(format!("target {target} is dead: {dead}, and taken for: {}", view.dead));
            }
            let it = &self.model.targets[target as usize];
            if (view.under_way, view.lost, view.suspect) != (it.under_way, it.lost, it.suspect) {
                return self.violate(format!("target {target}: {view:?}"));
            }
            if view.congested && self.plan.config.archive == Some(target) {
                return self.violate(format!("target {target} is an archive, and taken for congested"));
            }
            if it.excused > 0 && !dead {
                self.report.count(Count::Excused);
            }
            if dead {
                self.report.count(Count::Dead);
            }
        }
        if self.model.exhausted() {
            self.report.count(Count::Exhausted);
        }
    }

    /// Nothing more will happen.
    pub(super) fn check_end(&mut self) {
        let exhausted = self.model.exhausted() || self.report.counted(Count::Exhausted) > 0;
        for id in 0..self.states.len() as u32 {
            let state = self.states[id as usize];
            let request = self.request(id);
            let failed = request.gate.is_some_and(|gate| self.plan.fars[gate as usize].fails.is_some());
            let errors = self.plan.devices[request.target as usize].errors > 0;
            let held = match state {
                State::Done | State::Cancelled => true,
                State::Failed => errors || failed,
                State::WrittenOff => self.plan.is_sick(request.target),
                State::HandedBack => self.plan.is_sick(request.target) || failed || exhausted,
                State::Away | State::Waiting | State::UnderWay | State::AtFarEnd => false,
            };
            if !held {
                return self
                    .violate(format!("{id} of target {} has come to no end: {state:?}", request.target));
            }
        }
        if self.scheduler.queued() > 0 {
            self.violate(format!("{} requests are queued at the end", self.scheduler.queued()));
        }
        self.report.count(match self.plan.config.policy {
            Policy::FileOrder => Count::FileOrder,
            Policy::Layout => Count::Layout,
            Policy::Lads(_) => Count::Lads,
            Policy::Adaptive(_) => Count::Adaptive,
        });
    }
}
