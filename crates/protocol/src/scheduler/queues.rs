//! What is queued: one queue for each class of each pair of a target and a gate.
//!
//! Which targets have something that may be taken now is kept as a set, [`Queues::ready`]. It may name a target whose
//! gates have closed meanwhile ([`Queues::check`] finds out and removes it), and never lacks one. Keeping it exact would
//! cost a look at all targets of a gate whenever one opens or closes; where that is cheap (few gates are open) it is
//! done, and where it is not, a target nearly always has another gate that is open.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::CLASSES;
use super::bits::{Bits, find_from};
use super::gates::{Gates, NONE};

/// One request. 16 bytes with an item of 8.
#[derive(Clone, Copy)]
pub(super) struct Queued<T> {
    pub item: T,
    pub target: u32,
    pub bytes: u32,
}

/// A request and where it was.
pub(super) struct Taken<T> {
    pub queued: Queued<T>,
    pub class: usize,
    pub gate: u32,
}

/// A request counts as at least so many bytes in turns, so that small ones have their turns too.
const TURN_BYTES_MIN: u64 = 64 << 10;
/// A target keeps to one gate for so many bytes, unless another one has less under way: objects of one file often share a
/// gate, and are read in sequence. But where the other end is the slower one, each of its targets is to have something.
const GATE_TURN_BYTES: u64 = 32 << 20;
/// So many gates are compared for that: enough that none is left with much more than others, few enough for 2,000 of them.
const GATES_COMPARED: u32 = 8;
/// Room that an emptied queue keeps.
const ROOM_KEPT: usize = 8;
/// With so many open gates or fewer, the set of targets that are ready is made anew when a gate closes.
const OPEN_GATES_FEW: u32 = 16;
/// A gate with fewer targets than this is not worth that.
const GATE_TARGETS_FEW: u32 = 16;

/// The number of [`Class::Object`](super::Class::Object).
const OBJECT: usize = 0;

const NO_PAIR: u32 = u32::MAX;

struct Pair<T> {
    classes: [VecDeque<Queued<T>>; CLASSES],
}

impl<T> Pair<T> {
    fn is_empty(&self) -> bool {
        self.classes.iter().all(VecDeque::is_empty)
    }
}

/// The gate that a class of a target keeps to, and for how many bytes it has.
#[derive(Clone, Copy, Default)]
struct Turn {
    gate: u32,
    bytes: u64,
}

#[derive(Default)]
struct TargetQueues {
    /// Of each class, gates with something queued.
    gates: [Bits; CLASSES],
    /// The pair of each gate, or [`NO_PAIR`]. Pairs are kept only while they hold something.
    pairs: Vec<u32>,
    waiting: [u64; CLASSES],
    /// Bytes served of each class: the one that has had least is next.
    served: [u64; CLASSES],
    /// What the class that was served last had had before.
    clock: u64,
    turns: [Turn; CLASSES],
}

impl TargetQueues {
    fn may_take(&self, gates: &Gates) -> bool {
        (0..CLASSES).any(|class| self.may_take_class(class, gates))
    }

    fn may_take_class(&self, class: usize, gates: &Gates) -> bool {
        self.waiting[class] > 0 && self.gates[class].meets(gates.open())
    }

    /// A class that cannot be served has no claim to the time that it misses.
    fn forgo(&mut self, class: usize) {
        self.served[class] = self.served[class].max(self.clock);
    }
}

#[derive(Default)]
struct GateQueues {
    /// Targets with something queued for this gate.
    targets: Bits,
    count: u32,
}

pub(super) struct Queues<T> {
    pairs: Vec<Pair<T>>,
    free: Vec<u32>,
    targets: Vec<TargetQueues>,
    by_gate: Vec<GateQueues>,
    /// Gates with something queued.
    wanted: Bits,
    ready: Bits,
    /// Targets with anything queued.
    waiting: Bits,
    /// Of them those with objects.
    with_objects: Bits,
    length: u64,
    /// The planted bugs.
    pub newest_first: bool,
    pub largest_class_first: bool,
    pub idle_class_claims: bool,
    pub shut_class_claims: bool,
    pub ungated_waits: bool,
    pub openings_missed: bool,
}

impl<T: Copy> Queues<T> {
    pub fn new() -> Self {
        Queues {
            pairs: Vec::new(),
            free: Vec::new(),
            targets: Vec::new(),
            by_gate: Vec::new(),
            wanted: Bits::default(),
            ready: Bits::default(),
            waiting: Bits::default(),
            with_objects: Bits::default(),
            length: 0,
            newest_first: false,
            largest_class_first: false,
            idle_class_claims: false,
            shut_class_claims: false,
            ungated_waits: false,
            openings_missed: false,
        }
    }

    pub fn length(&self) -> u64 {
        self.length
    }

    pub fn length_of(&self, target: u32) -> u64 {
        self.targets.get(target as usize).map_or(0, |queues| queues.waiting.iter().sum())
    }

    /// Targets that may have something to take.
    pub fn ready(&self) -> &Bits {
        &self.ready
    }

    pub fn push(&mut self, queued: Queued<T>, class: usize, gate: u32, gates: &Gates) {
        let target = queued.target;
        if self.targets.len() <= target as usize {
            self.targets.resize_with(target as usize + 1, TargetQueues::default);
        }
        if self.by_gate.len() <= gate as usize {
            self.by_gate.resize_with(gate as usize + 1, GateQueues::default);
        }
        let pair = self.pair(target, gate);
        let was_empty = self.pairs[pair].is_empty();
        let queue = &mut self.pairs[pair].classes[class];
        let is_first = queue.is_empty();
        queue.push_back(queued);
        self.length += 1;
        let queues = &mut self.targets[target as usize];
        if queues.waiting[class] == 0 && !self.idle_class_claims {
            queues.forgo(class);
        }
        queues.waiting[class] += 1;
        if is_first {
            queues.gates[class].set(gate, true);
        }
        if class == OBJECT {
            self.with_objects.set(target, true);
        }
        if was_empty {
            self.waiting.set(target, true);
            let by_gate = &mut self.by_gate[gate as usize];
            by_gate.targets.set(target, true);
            by_gate.count += 1;
            self.wanted.set(gate, true);
            if gates.open().has(gate) {
                self.ready.set(target, true);
            }
        }
    }

    fn pair(&mut self, target: u32, gate: u32) -> usize {
        let pairs = &mut self.targets[target as usize].pairs;
        if pairs.len() <= gate as usize {
            pairs.resize(gate as usize + 1, NO_PAIR);
        }
        let pair = &mut pairs[gate as usize];
        if *pair == NO_PAIR {
            *pair = self.free.pop().unwrap_or_else(|| {
                self.pairs.push(Pair { classes: Default::default() });
                self.pairs.len() as u32 - 1
            });
        }
        *pair as usize
    }

    /// Targets with anything queued, behind open gates or closed ones.
    pub fn waiting(&self) -> &Bits {
        &self.waiting
    }

    /// Targets with objects queued, behind open gates or closed ones.
    pub fn with_objects(&self) -> &Bits {
        &self.with_objects
    }

    /// Gates with anything queued.
    pub fn wanted(&self) -> &Bits {
        &self.wanted
    }

    /// Does this target have something behind an open gate?
    pub fn may_take(&self, target: u32, gates: &Gates) -> bool {
        self.targets.get(target as usize).is_some_and(|queues| queues.may_take(gates))
    }

    /// As [`Queues::may_take`]; a target that has nothing is no longer ready.
    pub fn check(&mut self, target: u32, gates: &Gates) -> bool {
        let may = self.may_take(target, gates);
        if !may {
            self.ready.set(target, false);
        }
        may
    }

    /// The next request of a target; `any` gate, or only those that are open.
    pub fn take(&mut self, target: u32, gates: &Gates, any: bool) -> Option<Taken<T>> {
        let class = self.next_class(target, gates, any)?;
        let queues = self.targets.get_mut(target as usize)?;
        let turn = queues.turns[class];
        let stays = turn.bytes < GATE_TURN_BYTES;
        let from = turn.gate + u32::from(!stays);
        let open = |word| if any { u64::MAX } else { gates.open().word(word) };
        let wanted = &queues.gates[class];
        let next = |from| find_from(from, wanted.words(), |word| wanted.word(word) & open(word));
        let mut gate = next(from)?;
        let mut least = gates.under_way(gate);
        let mut other = gate;
        for _ in 0..GATES_COMPARED {
            other = next(other + 1).unwrap_or(gate);
            if least == 0 || other == gate {
                break;
            }
            if gates.under_way(other) < least {
                (gate, least) = (other, gates.under_way(other));
            }
        }
        if gate != turn.gate || !stays {
            queues.turns[class] = Turn { gate, bytes: 0 };
        }
        let taken = self.take_from(target, gate, class)?;
        if !any {
            self.serve(&taken);
        }
        Some(taken)
    }

    /// Of the classes that have something behind an open gate (`any`: behind whichever), the one that has had least.
    fn next_class(&mut self, target: u32, gates: &Gates, any: bool) -> Option<usize> {
        let queues = self.targets.get_mut(target as usize)?;
        let may = core::array::from_fn::<bool, CLASSES, _>(|class| {
            if any { queues.waiting[class] > 0 } else { queues.may_take_class(class, gates) }
        });
        let mut those = (0..CLASSES).filter(|class| may[*class]);
        let had = |class: &usize| match self.ungated_waits {
            false => queues.served[*class],
            true => u64::from(queues.gates[*class].has(NONE)),
        };
        let class = match self.largest_class_first {
            false => those.min_by_key(had)?,
            true => those.next()?,
        };
        if !any && !self.shut_class_claims {
            queues.clock = queues.served[class];
            for class in (0..CLASSES).filter(|class| !may[*class]) {
                if queues.waiting[class] > 0 {
                    queues.forgo(class);
                }
            }
        }
        Some(class)
    }

    /// The next object of a target, whatever its gate.
    pub fn take_object(&mut self, target: u32) -> Option<Taken<T>> {
        let queues = self.targets.get(target as usize)?;
        let wanted = &queues.gates[OBJECT];
        let gate = find_from(queues.turns[OBJECT].gate, wanted.words(), |word| wanted.word(word))?;
        let taken = self.take_from(target, gate, OBJECT)?;
        self.serve(&taken);
        Some(taken)
    }

    /// It counts in turns; what is handed back does not.
    fn serve(&mut self, taken: &Taken<T>) {
        let queues = &mut self.targets[taken.queued.target as usize];
        let bytes = u64::from(taken.queued.bytes).max(TURN_BYTES_MIN);
        queues.clock = queues.served[taken.class];
        queues.served[taken.class] += bytes;
        queues.turns[taken.class].bytes += bytes;
    }

    /// The next request behind this gate, of any target.
    pub fn take_behind(&mut self, gate: u32) -> Option<Taken<T>> {
        let target = self.by_gate.get(gate as usize)?.targets.iter().next()?;
        let queues = &self.targets[target as usize];
        let class = (0..CLASSES).find(|class| queues.gates[*class].has(gate))?;
        self.take_from(target, gate, class)
    }

    fn take_from(&mut self, target: u32, gate: u32, class: usize) -> Option<Taken<T>> {
        let queues = &mut self.targets[target as usize];
        let number = queues.pairs[gate as usize] as usize;
        let pair = &mut self.pairs[number];
        let queue = &mut pair.classes[class];
        let queued =
            if self.newest_first && queue.len() > 2 { queue.pop_back()? } else { queue.pop_front()? };
        if queue.capacity() > 8 * ROOM_KEPT && queue.len() < queue.capacity() / 4 {
            queue.shrink_to(queue.capacity() / 2);
        }
        if queue.is_empty() {
            queues.gates[class].set(gate, false);
        }
        queues.waiting[class] -= 1;
        if queues.waiting[OBJECT] == 0 {
            self.with_objects.set(target, false);
        }
        self.length -= 1;
        if pair.is_empty() {
            self.emptied(number, target, gate);
        }
        Some(Taken { queued, class, gate })
    }

    fn emptied(&mut self, pair: usize, target: u32, gate: u32) {
        let queues = &mut self.targets[target as usize];
        if queues.waiting.iter().all(|waiting| *waiting == 0) {
            self.ready.set(target, false);
            self.waiting.set(target, false);
        }
        let by_gate = &mut self.by_gate[gate as usize];
        by_gate.targets.set(target, false);
        by_gate.count -= 1;
        if by_gate.count == 0 {
            self.wanted.set(gate, false);
        }
        queues.pairs[gate as usize] = NO_PAIR;
        self.pairs[pair].classes.iter_mut().for_each(|queue| queue.shrink_to(ROOM_KEPT));
        self.free.push(pair as u32);
    }

    /// A gate was opened. Returns the targets that have something for it.
    pub fn opened(&mut self, gate: u32) -> Option<&Bits> {
        let by_gate = self.by_gate.get(gate as usize)?;
        if !self.openings_missed {
            self.ready.add(&by_gate.targets);
        }
        Some(&by_gate.targets)
    }

    /// A gate was closed.
    pub fn closed(&mut self, gate: u32, gates: &Gates) {
        let many = self.by_gate.get(gate as usize).is_some_and(|gate| gate.count >= GATE_TARGETS_FEW);
        if !many || self.wanted.common(gates.open()) > OPEN_GATES_FEW {
            return;
        }
        self.ready.clear();
        for word in 0..self.wanted.words() {
            let mut open = self.wanted.word(word) & gates.open().word(word);
            while open != 0 {
                let gate = word * 64 + open.trailing_zeros() as usize;
                open &= open - 1;
                self.ready.add(&self.by_gate[gate].targets);
            }
        }
    }
}
