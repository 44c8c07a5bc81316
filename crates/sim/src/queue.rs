//! What is going to happen, by time. Things of one instant happen in the order in which they were planned.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A queue of future events.
pub struct Queue<T> {
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    planned: u32,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { heap: BinaryHeap::new(), slots: vec![], free: vec![], planned: 0 }
    }
}

impl<T> Queue<T> {
    /// Plans `event` at `nanos`.
    pub fn push(&mut self, nanos: u64, event: T) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(event);
        self.planned += 1;
        self.heap.push(Reverse((nanos, self.planned, slot)));
    }

    /// The next event and its time.
    pub fn pop(&mut self) -> Option<(u64, T)> {
        loop {
            let Reverse((nanos, _, slot)) = self.heap.pop()?;
            self.free.push(slot);
            if let Some(event) = self.slots[slot as usize].take() {
                return Some((nanos, event));
            }
        }
    }

    /// How many events `wanted` names.
    pub fn count(&self, wanted: impl Fn(&T) -> bool) -> usize {
        self.slots.iter().flatten().filter(|event| wanted(event)).count()
    }

    /// Takes out all events that `wanted` names, in the order of their planning slots.
    pub fn take(&mut self, wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let slots = self.slots.iter_mut();
        slots.filter(|slot| slot.as_ref().is_some_and(&wanted)).filter_map(Option::take).collect()
    }
}
