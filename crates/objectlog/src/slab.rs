//! Numbered places that are used again.

use alloc::vec::Vec;

/// Values under small numbers; the number of a removed value is given out again.
pub(crate) struct Slab<T> {
    values: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Slab { values: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.values[slot as usize] = Some(value);
            return slot;
        }
        self.values.push(Some(value));
        (self.values.len() - 1) as u32
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.values.get_mut(slot as usize)?.take();
        if value.is_some() {
            self.free.push(slot);
        }
        value
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.values.get(slot as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.values.get_mut(slot as usize)?.as_mut()
    }

    /// In the order of the numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.values.iter().enumerate().filter_map(|(slot, value)| Some((slot as u32, value.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.values.iter_mut().enumerate().filter_map(|(slot, value)| Some((slot as u32, value.as_mut()?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }
}
