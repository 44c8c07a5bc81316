//! Which parts of the spill file are in use.
//!
//! Objects have sizes that are powers of two (but for the last of a file), so room is given out in halves of halves of
//! blocks as large as the largest object, and halves that are free grow together again. What was used before is used again
//! before the file grows.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use haul_model::limits::OBJECT_BYTES_MIN;

/// No part is smaller.
const UNIT: u64 = OBJECT_BYTES_MIN as u64;

/// A part of the file: whoever has it has it alone.
#[derive(PartialEq, Eq, Debug)]
pub struct Extent {
    at: u64,
    /// It is [`UNIT`] << order bytes long.
    order: u8,
}

impl Extent {
    /// Where it starts.
    pub fn at(&self) -> u64 {
        self.at
    }
}

/// The parts of one file.
pub struct Extents {
    /// Free ones of each order.
    free: Vec<BTreeSet<u64>>,
    /// Nothing from here on was ever given out.
    end: u64,
    /// Nothing beyond is given out.
    room: u64,
    count: usize,
}

impl Extents {
    /// Of a file that may take `room` bytes, for objects of at most `object_bytes_max`.
    pub fn new(room: u64, object_bytes_max: u32) -> Extents {
        let orders = usize::from(order_of(object_bytes_max)) + 1;
        Extents { free: (0..orders).map(|_| BTreeSet::new()).collect(), end: 0, room, count: 0 }
    }

    fn largest(&self) -> u8 {
        self.free.len() as u8 - 1
    }

    /// Bytes that may be used.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// How many are given out.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Is there room for an object of any size?
    pub fn has_room(&self) -> bool {
        let largest = self.free.last().is_some_and(|free| !free.is_empty());
        largest || self.end.saturating_add(bytes(self.largest())) <= self.room
    }

    /// Room for an object of this many bytes.
    pub fn take(&mut self, length: u32) -> Option<Extent> {
        let order = order_of(length);
        let fits = (order..=self.largest()).find(|order| !self.free[usize::from(*order)].is_empty());
        let (at, mut found) = match fits {
            Some(found) => (self.free[usize::from(found)].pop_first()?, found),
            None if order <= self.largest() && self.has_room() => {
                self.end += bytes(self.largest());
                (self.end - bytes(self.largest()), self.largest())
            }
            None => return None,
        };
        while found > order {
            found -= 1;
            self.free[usize::from(found)].insert(at + bytes(found));
        }
        self.count += 1;
        Some(Extent { at, order })
    }

    /// It is not used any more.
    pub fn give_back(&mut self, extent: Extent) {
        let Extent { mut at, mut order } = extent;
        self.count -= 1;
        if at + bytes(order) > self.room {
            return;
        }
        while order < self.largest() && self.free[usize::from(order)].remove(&(at ^ bytes(order))) {
            at &= !bytes(order);
            order += 1;
        }
        self.free[usize::from(order)].insert(at);
    }

    /// Nothing beyond these bytes is given out any more.
    pub fn limit(&mut self, room: u64) {
        self.room = self.room.min(room);
        for (order, free) in (0..).zip(&mut self.free) {
            free.retain(|at| at + bytes(order) <= self.room);
        }
    }

    /// May it still be written?
    pub fn may_use(&self, extent: &Extent) -> bool {
        extent.at + bytes(extent.order) <= self.room
    }
}

fn order_of(length: u32) -> u8 {
    u64::from(length).max(UNIT).next_power_of_two().ilog2() as u8 - UNIT.ilog2() as u8
}

fn bytes(order: u8) -> u64 {
    UNIT << order
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u32 = 1 << 20;

    #[test]
    fn parts_never_overlap_and_all_room_can_be_used_again() {
        let mut extents = Extents::new(64 << 20, 4 * MIB);
        let mut held: Vec<Extent> = Vec::new();
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..20_000 {
            if random(2) == 0 && !held.is_empty() {
                extents.give_back(held.swap_remove(random(held.len() as u64) as usize));
            } else if let Some(extent) = extents.take(random(u64::from(4 * MIB)) as u32 + 1) {
                let end = extent.at + bytes(extent.order);
                assert!(end <= 64 << 20);
                assert!(held.iter().all(|it| it.at + bytes(it.order) <= extent.at || end <= it.at));
                held.push(extent);
            }
            assert_eq!(extents.count(), held.len());
        }
        held.into_iter().for_each(|extent| extents.give_back(extent));
        let all: Vec<_> = core::iter::from_fn(|| extents.take(4 * MIB)).collect();
        assert_eq!(all.len(), 16, "small parts have grown together");
        assert!(!extents.has_room());
    }

    #[test]
    fn room_that_was_used_comes_before_room_that_was_not() {
        let mut extents = Extents::new(1 << 40, 4 * MIB);
        for _ in 0..100 {
            let (one, other) = (extents.take(MIB).unwrap(), extents.take(4 * MIB).unwrap());
            assert!(one.at < 8 << 20 && other.at < 8 << 20);
            extents.give_back(one);
            extents.give_back(other);
        }
    }

    #[test]
    fn what_lies_beyond_a_limit_is_not_used_again() {
        let mut extents = Extents::new(16 << 20, 4 * MIB);
        let mut held: Vec<_> = (0..13).map(|_| extents.take(MIB).unwrap()).collect();
        let last = held.pop().unwrap();
        assert_eq!(last.at, 12 << 20);
        extents.limit(last.at);
        assert!(!extents.may_use(&last) && extents.may_use(&held[11]) && !extents.has_room());
        extents.give_back(last);
        assert!(extents.take(1).is_none());
        extents.give_back(held.remove(3));
        assert_eq!(extents.take(1).unwrap().at, 3 << 20);
        extents.limit(0);
        held.into_iter().for_each(|extent| extents.give_back(extent));
        assert!(extents.take(1).is_none() && extents.room() == 0);
    }

    #[test]
    fn room_for_less_than_one_object_is_no_room() {
        assert!(!Extents::new(4 * u64::from(MIB) - 1, 4 * MIB).has_room());
        assert!(Extents::new(0, MIB).take(1).is_none());
        assert!(Extents::new(1 << 30, MIB).take(2 * MIB).is_none(), "none is larger than was said");
    }
}
