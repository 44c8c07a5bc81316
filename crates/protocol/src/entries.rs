//! The open entries of an end, by their numbers.
//!
//! Whoever announces entries counts them, and most end in about the order in which they were announced: so each has the place that its
//! number says, modulo the number of places, and those that come one after the other lie one after the other. Entries are
//! come to so often, and so many are open, that a place which no processor's cache expects is a good part of what a small file costs.
//!
//! What must stay true: numbers may come in any order and from a peer that means harm. One whose place is taken is kept in a map, so
//! it costs what it would cost there, and all places together are no more than entries may be open.

use alloc::vec::Vec;
use core::ops::Index;

use hashbrown::HashMap;
use haul_model::EntryId;
use haul_model::limits::ENTRIES_OPEN_MAX;

/// There are so many places at first.
const PLACES_MIN: usize = 64;
/// And so many at most.
const PLACES_MAX: usize = ENTRIES_OPEN_MAX;

/// What is kept of each open entry.
pub(crate) struct Entries<T> {
    /// A power of two of them.
    places: Vec<Option<(EntryId, T)>>,
    /// Those whose place another has.
    others: HashMap<EntryId, T>,
    len: usize,
}

impl<T> Entries<T> {
    /// None.
    pub fn new() -> Self {
        Entries { places: Vec::new(), others: HashMap::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn contains_key(&self, id: EntryId) -> bool {
        self.get(id).is_some()
    }

    pub fn get(&self, id: EntryId) -> Option<&T> {
        match self.places.get(self.place(id)) {
            Some(Some((there, kept))) if *there == id => Some(kept),
            _ if self.others.is_empty() => None,
            _ => self.others.get(&id),
        }
    }

    pub fn get_mut(&mut self, id: EntryId) -> Option<&mut T> {
        let place = self.place(id);
        match self.places.get_mut(place) {
            Some(Some((there, kept))) if *there == id => Some(kept),
            _ if self.others.is_empty() => None,
            _ => self.others.get_mut(&id),
        }
    }

    /// What was kept of it before.
    pub fn insert(&mut self, id: EntryId, kept: T) -> Option<T> {
        let before = self.remove(id);
        self.len += 1;
        if self.is_crowded(id) {
            self.grow();
        }
        self.put(id, kept);
        before
    }

    pub fn remove(&mut self, id: EntryId) -> Option<T> {
        let place = self.place(id);
        let removed = match self.places.get_mut(place) {
            Some(there) if there.as_ref().is_some_and(|(there, _)| *there == id) => {
                there.take().map(|(_, kept)| kept)
            }
            _ if self.others.is_empty() => None,
            _ => self.others.remove(&id),
        };
        self.len -= usize::from(removed.is_some());
        removed
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten().map(|(_, kept)| kept).chain(self.others.values())
    }

    /// Without places there is no entry in this one.
    fn place(&self, id: EntryId) -> usize {
        id.0 as usize & self.places.len().wrapping_sub(1)
    }

    /// Its place is taken, or there is none, and that would not be so for long with more of them.
    fn is_crowded(&self, id: EntryId) -> bool {
        let taken = self.places.get(self.place(id)).is_none_or(Option::is_some);
        taken && self.len > self.places.len() / 2 && self.places.len() < PLACES_MAX
    }

    fn grow(&mut self) {
        let places = (2 * self.places.len()).max(PLACES_MIN);
        let new = core::iter::repeat_with(|| None).take(places).collect();
        let before = core::mem::replace(&mut self.places, new);
        let others = core::mem::take(&mut self.others);
        before.into_iter().flatten().chain(others).for_each(|(id, kept)| self.put(id, kept));
    }

    /// It is not there yet.
    fn put(&mut self, id: EntryId, kept: T) {
        let place = self.place(id);
        match self.places.get_mut(place) {
            Some(free @ None) => *free = Some((id, kept)),
            _ => drop(self.others.insert(id, kept)),
        }
    }
}

impl<T> Index<EntryId> for Entries<T> {
    type Output = T;

    fn index(&self, id: EntryId) -> &T {
        self.get(id).expect("whoever is sure of it has looked")
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Numbers as they are counted, and as somebody makes them up to meet in one place.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0..3_u8, 0..400_u64, prop::bool::weighted(0.2)), 1..2000)) {
            let (mut entries, mut map) = (Entries::new(), HashMap::new());
            for (number, (what, id, far)) in steps.into_iter().enumerate() {
                let id = EntryId(if far { id << 40 } else { id });
                match what {
                    0 => prop_assert_eq!(entries.insert(id, number), map.insert(id, number)),
                    1 => prop_assert_eq!(entries.remove(id), map.remove(&id)),
                    _ => {
                        prop_assert_eq!(entries.get(id), map.get(&id));
                        prop_assert_eq!(entries.get_mut(id), map.get_mut(&id));
                        prop_assert_eq!(entries.contains_key(id), map.contains_key(&id));
                    }
                }
                prop_assert_eq!(entries.len(), map.len());
                prop_assert_eq!(entries.is_empty(), map.is_empty());
                let (mut all, mut expected) = (entries.values().collect::<Vec<_>>(), map.values().collect::<Vec<_>>());
                all.sort();
                expected.sort();
                prop_assert_eq!(all, expected);
            }
        }
    }

    #[test]
    fn those_that_are_counted_lie_one_after_the_other_and_one_that_stays_is_in_nobodys_way() {
        let mut entries = Entries::new();
        entries.insert(EntryId(0), 0);
        for number in 1..100_000 {
            entries.insert(EntryId(number), number);
            if number > 1000 {
                assert_eq!(entries.remove(EntryId(number - 1000)), Some(number - 1000));
            }
        }
        assert_eq!((entries.len(), entries.get(EntryId(0))), (1001, Some(&0)));
        assert!(entries.places.len() <= 2048, "as many as were open, about");
        assert!(entries.others.len() <= 1, "{}", entries.others.len());
    }

    #[test]
    fn numbers_that_meet_in_one_place_are_kept_and_the_places_stay_bounded() {
        let mut entries = Entries::new();
        for number in 0..10_000 {
            entries.insert(EntryId(number << 32), vec![number]);
        }
        assert_eq!(entries.others.len(), 9_999);
        assert!(entries.places.len() <= PLACES_MAX);
        assert!((0..10_000).all(|number| entries.remove(EntryId(number << 32)) == Some(vec![number])));
        assert!(entries.is_empty());
    }
}
