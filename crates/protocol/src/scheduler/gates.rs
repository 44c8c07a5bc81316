//! Gates: what the other end's targets can take. The unit of a gate is held from the pick until
//! [`Scheduler::gate_done`](super::Scheduler::gate_done); a gate without a unit left is closed.
//!
//! Number 0 is "no gate": it is always open.

use alloc::vec;
use alloc::vec::Vec;

use super::bits::Bits;
use super::flights::{Stage, Ticket};
use super::{OutOfRange, Scheduler, TARGETS_MAX, TargetId};
use crate::planted::SchedulerBug;

/// The number of "no gate".
pub(super) const NONE: u32 = 0;

#[derive(Clone, Copy, Default)]
struct Gate {
    /// What the other end said; `None`: nothing yet.
    allowance: Option<u32>,
    under_way: u32,
    known: bool,
    failed: bool,
}

pub(super) struct Gates {
    gates: Vec<Gate>,
    /// Those with a unit left.
    open: Bits,
    known: u32,
    /// Units of a gate of which the other end has said nothing, once there is more than one gate.
    share: u32,
    /// The planted bug.
    pub ignored: bool,
}

impl Gates {
    pub fn new(share: u32) -> Gates {
        let mut gates =
            Gates { gates: vec![Gate::default()], open: Bits::default(), known: 0, share, ignored: false };
        gates.open.set(NONE, true);
        gates
    }

    pub fn open(&self) -> &Bits {
        &self.open
    }

    /// A request for this gate exists. With the second gate the first is limited to its share too; its number is
    /// returned.
    pub fn know(&mut self, gate: u32) -> Option<u32> {
        if gate == NONE {
            return None;
        }
        if self.gates.len() <= gate as usize {
            self.gates.resize(gate as usize + 1, Gate::default());
        }
        if self.gates[gate as usize].known {
            return None;
        }
        self.gates[gate as usize].known = true;
        self.known += 1;
        self.judge(gate);
        let other =
            |(index, it): (usize, &Gate)| (it.known && index != gate as usize).then_some(index as u32);
        if self.known == 2 { self.gates.iter().enumerate().find_map(other) } else { None }
    }

    pub fn set_allowance(&mut self, gate: u32, units: u32) {
        let gate = &mut self.gates[gate as usize];
        (gate.allowance, gate.failed) = (Some(units), false);
    }

    pub fn fail(&mut self, gate: u32) {
        self.gates[gate as usize].failed = true;
    }

    pub fn take(&mut self, gate: u32) {
        if gate != NONE {
            self.gates[gate as usize].under_way += 1;
        }
    }

    /// How many requests are under way for it. "No gate" counts as if there were always one: nobody says when they end.
    pub fn under_way(&self, gate: u32) -> u32 {
        if gate == NONE { 1 } else { self.gates[gate as usize].under_way }
    }

    pub fn give_back(&mut self, gate: u32) {
        if gate != NONE {
            self.gates[gate as usize].under_way -= 1;
        }
    }

    /// Opens or closes a gate as its numbers say. Tells whether that was a change, and whether it is open now.
    pub fn judge(&mut self, number: u32) -> (bool, bool) {
        let gate = &self.gates[number as usize];
        let units = gate.allowance.unwrap_or(if self.known > 1 { self.share } else { u32::MAX });
        let open = number == NONE || !gate.failed && (gate.under_way < units || self.ignored);
        let changed = self.open.has(number) != open;
        self.open.set(number, open);
        (changed, open)
    }
}

impl<T: Copy> Scheduler<T> {
    /// The other end says how many requests may be under way for one of its targets: picked here and not done there.
    pub fn set_allowance(&mut self, gate: TargetId, units: u32) -> Result<(), OutOfRange> {
        let number = self.gate_number(gate)?;
        self.gates.set_allowance(number, units);
        self.failed_gates.set(number, false);
        self.judge_gate(number);
        Ok(())
    }

    /// The other end's target will take nothing more: what waits for it comes out of
    /// [`take_dead`](Scheduler::take_dead), until an allowance is set again.
    pub fn fail_gate(&mut self, gate: TargetId) -> Result<(), OutOfRange> {
        let number = self.gate_number(gate)?;
        self.gates.fail(number);
        self.failed_gates.set(number, true);
        self.judge_gate(number);
        Ok(())
    }

    fn gate_number(&mut self, gate: TargetId) -> Result<u32, OutOfRange> {
        if gate.0 >= TARGETS_MAX {
            return Err(OutOfRange);
        }
        if let Some(other) = self.gates.know(gate.0 + 1) {
            self.judge_gate(other);
        }
        Ok(gate.0 + 1)
    }

    /// The other end is done with a request whose I/O here has succeeded (or its payload was lost). False if there is
    /// none such with a gate; in [`Policy::FileOrder`](super::Policy::FileOrder) none has.
    pub fn gate_done(&mut self, ticket: Ticket) -> bool {
        let Some(flight) = self.flights.get(ticket).filter(|flight| flight.stage == Stage::AtOtherEnd) else {
            return false;
        };
        self.flights.free(ticket);
        if !self.config.planted.has(SchedulerBug::GateNotGivenBack) {
            self.give_back(flight.gate);
        }
        true
    }

    pub(super) fn give_back(&mut self, gate: u32) {
        self.gates.give_back(gate);
        self.judge_gate(gate);
    }

    /// Opens or closes a gate as its numbers say.
    pub(super) fn judge_gate(&mut self, gate: u32) {
        match self.gates.judge(gate) {
            (false, _) => {}
            (true, false) => self.queues.closed(gate, &self.gates),
            (true, true) => {
                let targets = self.queues.opened(gate);
                if targets.is_some_and(|targets| targets.meets(self.targets.gentle())) {
                    self.look_at_held_back();
                }
            }
        }
    }

    /// One that is held back has got work: it may be its turn.
    pub(super) fn look_at_held_back(&mut self) {
        (self.targets.age_nanos, self.targets.due_pick) = (0, 0);
    }

    /// What to tell the other end: a target of this end whose allowance has changed, and how many requests may be under
    /// way for it at both ends. Ask until there is none; only the latest figure of a target is kept.
    pub fn next_allowance(&mut self) -> Option<(TargetId, u32)> {
        let (target, units) = self.targets.next_changed()?;
        Some((TargetId(target), units))
    }
}
