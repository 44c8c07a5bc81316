//! What the checker knows of its own: what is queued, under way and lost, by the rules as they are written down.

use std::collections::VecDeque;

use haul_protocol::scheduler::{Class, Config, Policy, TargetView};

use super::plan::Arrival;

/// The third of the threads or slots.
const SHARE: u32 = 3;

#[derive(Clone)]
pub(super) struct Target {
    pub under_way: u32,
    pub lost: u32,
    /// Of those, the ones that are about a file of which another one is lost, or after which something began that was answered.
    pub excused: u32,
    /// When the last one was.
    pub lost_at: u64,
    /// A request was written off, and none was answered since.
    pub suspect: bool,
    /// It has had an object or a bundle.
    pub data: bool,
    /// Since when it could have been picked as one that is held back, at the latest.
    pub since: u64,
    /// Picks of others while it was held back for too long.
    pub overtaken: u32,
    /// Picks of others while it had nothing under way.
    pub passed: u32,
    /// Bytes of other classes that were served while one waited behind an open gate.
    pub behind: [u64; 3],
    /// In how many parts it is shared with neighbours, and which is ours.
    pub part: (u32, u32),
    /// When it last answered.
    pub answered: Option<u64>,
}

impl Default for Target {
    fn default() -> Target {
        Target {
            under_way: 0,
            lost: 0,
            excused: 0,
            lost_at: 0,
            suspect: false,
            data: false,
            since: 0,
            overtaken: 0,
            passed: 0,
            behind: [0; 3],
            part: (1, 0),
            answered: None,
        }
    }
}

impl Target {
    /// Which of so many requests are ours: all whose number is that of our part, counted in turns.
    pub fn part_of(&self, whole: u32) -> u32 {
        let (parts, place) = self.part;
        (0..whole).filter(|number| number % parts == place).count() as u32
    }

    /// The same for what may be under way or lost: one at least beside what is lost.
    pub fn limit(&self, whole: u32) -> u32 {
        self.part_of(whole.saturating_sub(self.lost).max(1)) + self.lost
    }
}

#[derive(Clone, Default)]
pub(super) struct Gate {
    pub allowance: Option<u32>,
    pub under_way: u32,
    pub known: bool,
    pub failed: bool,
}

pub(super) struct Model {
    config: Config,
    pub targets: Vec<Target>,
    pub gates: Vec<Gate>,
    /// Waiting requests by target, gate and class (objects, bundles, names).
    queues: Vec<VecDeque<u32>>,
    pub urgent: VecDeque<u32>,
    /// All but urgent ones, in file order.
    pub in_order: VecDeque<u32>,
    pub replaced: u32,
    /// Threads that are lost and were not replaced.
    pub unreplaced: u32,
    /// Slots of requests that were written off.
    pub lost_slots: u32,
}

pub(super) fn class_number(class: Class) -> usize {
    match class {
        Class::Object => 0,
        Class::Bundle => 1,
        Class::Name => 2,
        Class::Aside | Class::Urgent => 3,
    }
}

impl Model {
    pub fn new(config: Config, targets: usize, gates: usize) -> Model {
        Model {
            config,
            targets: vec![Target::default(); targets],
            gates: vec![Gate::default(); gates],
            queues: vec![VecDeque::new(); targets * (gates + 1) * 3],
            urgent: VecDeque::new(),
            in_order: VecDeque::new(),
            replaced: 0,
            unreplaced: 0,
            lost_slots: 0,
        }
    }

    pub fn in_file_order(&self) -> bool {
        self.config.policy == Policy::FileOrder
    }

    fn queue(&self, target: u32, gate: Option<u32>, class: usize) -> usize {
        let gate = gate.map_or(0, |gate| gate as usize + 1);
        (target as usize * (self.gates.len() + 1) + gate) * 3 + class
    }

    pub fn push(&mut self, id: u32, request: &Arrival, now: u64) {
        if matches!(request.class, Class::Object | Class::Bundle) {
            self.targets[request.target as usize].data = true;
        }
        if request.class == Class::Urgent {
            self.urgent.push_back(id);
        } else if self.in_file_order() {
            self.in_order.push_back(id);
        } else {
            if let Some(gate) = request.gate {
                self.gates[gate as usize].known = true;
            }
            if !self.may_take(request.target) {
                self.targets[request.target as usize].since = now;
            }
            let queue = self.queue(request.target, request.gate, class_number(request.class));
            self.queues[queue].push_back(id);
        }
    }

    /// Takes a request out. False if it is not the first of its queue, though `first` says that it must be.
    pub fn take(&mut self, id: u32, request: &Arrival, first: bool) -> bool {
        let queue = match request.class {
            Class::Urgent => &mut self.urgent,
            _ if self.config.policy == Policy::FileOrder => &mut self.in_order,
            class => {
                let queue = self.queue(request.target, request.gate, class_number(class));
                &mut self.queues[queue]
            }
        };
        match queue.iter().position(|waiting| *waiting == id) {
            Some(index) => queue.remove(index).is_some() && (index == 0 || !first),
            None => false,
        }
    }

    /// Does another target have objects?
    pub fn shares(&self, target: u32) -> bool {
        if self.config.archive == Some(target) {
            return true;
        }
        let others = self.targets.iter().enumerate().filter(|(index, _)| *index != target as usize);
        others.into_iter().any(|(_, other)| other.data)
    }

    pub fn cap(&self, target: u32) -> u32 {
        let all = self.config.threads.min(self.config.slots);
        if self.shares(target) { (all / SHARE).max(1) } else { all }
    }

    pub fn exhausted(&self) -> bool {
        self.unreplaced >= self.config.threads || self.lost_slots >= self.config.slots
    }

    pub fn dead(&self, target: u32) -> bool {
        let it = &self.targets[target as usize];
        let most = self.config.lost_per_target + 2 * self.cap(target);
        self.exhausted() || it.lost - it.excused >= self.config.lost_per_target || it.lost >= most
    }

    /// How many may be under way behind a gate.
    pub fn units(&self, gate: u32) -> u32 {
        let it = &self.gates[gate as usize];
        let share = (self.config.slots / SHARE).max(1);
        let alone = self.gates.iter().filter(|gate| gate.known).count() < 2;
        if it.failed { 0 } else { it.allowance.unwrap_or(if alone { u32::MAX } else { share }) }
    }

    fn open(&self, gate: usize) -> bool {
        gate == 0 || self.gates[gate - 1].under_way < self.units(gate as u32 - 1)
    }

    /// Does it have something behind an open gate?
    pub fn may_take(&self, target: u32) -> bool {
        let gates = self.gates.len() + 1;
        let queues = &self.queues[target as usize * gates * 3..][..gates * 3];
        queues
            .chunks(3)
            .enumerate()
            .any(|(gate, classes)| classes.iter().any(|queue| !queue.is_empty()) && self.open(gate))
    }

    /// Does this class have something for this target, behind an open gate?
    pub fn waits(&self, target: u32, class: usize) -> bool {
        let gates = self.gates.len() + 1;
        let queues = &self.queues[target as usize * gates * 3..][..gates * 3];
        queues.chunks(3).enumerate().any(|(gate, classes)| !classes[class].is_empty() && self.open(gate))
    }

    /// A request that should have been handed back: its target is dead, or its gate has failed.
    pub fn forgotten(&self, request: impl Fn(u32) -> Arrival) -> Option<u32> {
        let exhausted = self.exhausted();
        let first =
            |queue: &VecDeque<u32>| queue.front().copied().filter(|id| self.dead(request(*id).target));
        let lines = [&self.urgent, &self.in_order].into_iter().find_map(first);
        let queues = || self.queues.iter().filter_map(|queue| queue.front().copied());
        let gone = |id: &u32| {
            let request = request(*id);
            exhausted
                || self.dead(request.target)
                || request.gate.is_some_and(|gate| self.gates[gate as usize].failed)
        };
        lines.or_else(|| queues().find(gone))
    }

    /// As many may be under way as that without a look at latency.
    pub fn depth_min(&self, target: u32, view: &TargetView) -> u32 {
        let it = &self.targets[target as usize];
        match self.config.policy {
            _ if view.congested || view.suspect => it.part_of(1),
            Policy::Adaptive(_) if self.shares(target) || !it.data => it.limit(self.cap(target).min(2)),
            _ => it.limit(self.cap(target)),
        }
    }
}
