//! Which storage target of an end holds each object of a file, as the masters know it.
//!
//! A layout (crate `storage`) speaks of bytes and of names of targets; a placement speaks of objects and of the numbers
//! that one end has given to its targets. It travels in FILE_ID, so that the source knows what it burdens at the sink.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::limits::{OBJECT_BYTES_MIN, PLACEMENT_PIECES_MAX, PLACEMENT_TARGETS_MAX, TARGETS_MAX};

/// A number that one end has given to one of its targets, for as long as the session lasts; below
/// [`TARGETS_MAX`](crate::limits::TARGETS_MAX). 0 is whatever nothing more is known of,
/// 1 is the [`ARCHIVE`].
pub type Target = u16;

/// What is on tape, or the like: whoever reads it waits until it is brought back, and nobody can tell how long that takes.
pub const ARCHIVE: Target = 1;

/// Objects from `first` on, until the next piece begins: `run` of them on the first target, as many on the next, and
/// round again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Its first object.
    pub first: u32,
    /// Neighbouring objects on one target; at least 1.
    pub run: u32,
    /// At least one; one that appears twice holds twice as much.
    pub targets: Box<[Target]>,
}

/// Where the objects of a file are. The default: all of them on target 0.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    pieces: Box<[Piece]>,
}

impl Placement {
    /// Of pieces in order, the first of which begins with object 0; nothing if these are none, or are beyond the limits.
    pub fn new(pieces: Vec<Piece>) -> Option<Placement> {
        let targets: usize = pieces.iter().map(|piece| piece.targets.len()).sum();
        let known = |target: &Target| usize::from(*target) < TARGETS_MAX;
        let sound =
            |piece: &Piece| piece.run > 0 && !piece.targets.is_empty() && piece.targets.iter().all(known);
        let ok = pieces.first().is_none_or(|piece| piece.first == 0)
            && pieces.windows(2).all(|two| two[0].first < two[1].first)
            && pieces.len() <= PLACEMENT_PIECES_MAX
            && targets <= PLACEMENT_TARGETS_MAX
            && pieces.iter().all(sound);
        ok.then(|| Placement { pieces: pieces.into() })
    }

    /// The target that holds this object.
    pub fn target(&self, index: u32) -> Target {
        let after = self.pieces.partition_point(|piece| piece.first <= index);
        let Some(piece) = after.checked_sub(1).and_then(|at| self.pieces.get(at)) else { return 0 };
        let stripe = (index - piece.first) / piece.run;
        piece.targets[stripe as usize % piece.targets.len()]
    }

    /// As it is where each object is cut into `parts`.
    pub fn finer(mut self, parts: u32) -> Placement {
        for piece in &mut self.pieces {
            piece.first = piece.first.saturating_mul(parts);
            piece.run = piece.run.saturating_mul(parts);
        }
        self
    }

    /// As it is where `parts` objects are one: that is where its first part is.
    fn coarser(self, parts: u32) -> Placement {
        let mut pieces: Vec<Piece> = Vec::new();
        for Piece { first, run, targets } in self.pieces {
            let first = first.div_ceil(parts);
            let count = targets.len();
            let step = (parts / run) as usize % count;
            let piece = match run.checked_div(parts) {
                Some(run @ 1..) => Piece { first, run, targets },
                _ => {
                    let targets = (0..count).map(|index| targets[index * step % count]).collect();
                    Piece { first, run: 1, targets }
                }
            };
            // One that has no object of its own any more.
            pieces.pop_if(|last| last.first == first);
            pieces.push(piece);
        }
        Placement { pieces: pieces.into() }
    }

    /// In order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

/// How a file lies at one end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Laid {
    /// Bytes of an object, so that each object is on one target.
    pub object_bytes: u32,
    /// Where they are.
    pub placement: Placement,
}

impl Laid {
    /// With objects of at most this size, a power of two as theirs is.
    pub fn cut_to_at_most(self, object_bytes: u32) -> Laid {
        match self.object_bytes.checked_div(object_bytes) {
            Some(parts @ 2..) => Laid { object_bytes, placement: self.placement.finer(parts) },
            _ => self,
        }
    }

    /// With objects of this size: larger ones may lie on several targets.
    pub fn cut_to(self, object_bytes: u32) -> Laid {
        match object_bytes.checked_div(self.object_bytes) {
            Some(parts @ 2..) => Laid { object_bytes, placement: self.placement.coarser(parts) },
            _ => self.cut_to_at_most(object_bytes),
        }
    }
}

/// Whether a file may be cut into objects of this size, where slots have `slot_bytes`.
pub fn is_object_size(object_bytes: u32, slot_bytes: u32) -> bool {
    (OBJECT_BYTES_MIN..=slot_bytes).contains(&object_bytes) && object_bytes.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn piece(first: u32, run: u32, targets: &[Target]) -> Piece {
        Piece { first, run, targets: targets.into() }
    }

    #[test]
    fn objects_go_round_the_targets_of_their_piece() {
        let placement = Placement::new(vec![piece(0, 1, &[7]), piece(4, 2, &[1, 2, 3])]).unwrap();
        let found: Vec<Target> = (0..18).map(|index| placement.target(index)).collect();
        assert_eq!(found, [7, 7, 7, 7, 1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3, 1, 1]);
        assert_eq!(Placement::default().target(u32::MAX), 0);
    }

    #[test]
    fn smaller_objects_lie_where_the_larger_ones_were() {
        let coarse = Placement::new(vec![piece(0, 1, &[5, 6]), piece(3, 2, &[8, 9])]).unwrap();
        let fine = coarse.clone().finer(4);
        assert!((0..100).all(|index| fine.target(index) == coarse.target(index / 4)));
        let laid = Laid { object_bytes: 4 << 20, placement: coarse };
        assert_eq!(laid.clone().cut_to_at_most(1 << 20), Laid { object_bytes: 1 << 20, placement: fine });
        assert_eq!(laid.clone().cut_to_at_most(4 << 20), laid);
        assert_eq!(laid.clone().cut_to_at_most(8 << 20), laid);
    }

    #[test]
    fn larger_objects_count_as_where_their_first_part_is() {
        let pieces = [
            vec![piece(0, 1, &[5, 6, 7, 8, 9])],
            vec![piece(0, 1, &[5, 6])],
            vec![piece(0, 2, &[5, 6, 7])],
            vec![piece(0, 8, &[5, 6, 7])],
            vec![piece(0, 1, &[4]), piece(8, 2, &[5, 6, 7]), piece(16, 4, &[8, 9])],
        ];
        for pieces in pieces {
            let fine = Placement::new(pieces).unwrap();
            let laid = Laid { object_bytes: 1 << 20, placement: fine.clone() };
            let coarse = laid.cut_to(4 << 20);
            assert_eq!(coarse.object_bytes, 4 << 20);
            assert!(
                (0..100).all(|index| coarse.placement.target(index) == fine.target(4 * index)),
                "{fine:?}"
            );
        }
        // Pieces that become too small go, and what is left is a placement.
        let small = Placement::new(vec![
            piece(0, 1, &[4]),
            piece(1, 1, &[5]),
            piece(2, 1, &[6]),
            piece(5, 3, &[7, 8]),
        ]);
        let coarse = small.unwrap().coarser(4);
        assert_eq!(Placement::new(coarse.pieces().to_vec()), Some(coarse.clone()));
        assert_eq!([0, 1, 2, 3].map(|index| coarse.target(index)), [4, 6, 7, 8]);
        assert_eq!(Placement::default().coarser(4), Placement::default());
    }

    #[test]
    fn what_makes_no_sense_is_no_placement() {
        for pieces in [
            vec![piece(1, 1, &[0])],
            vec![piece(0, 0, &[0])],
            vec![piece(0, 1, &[])],
            vec![piece(0, 1, &[0]), piece(0, 1, &[0])],
            vec![piece(0, 1, &[TARGETS_MAX as Target])],
            vec![piece(0, 1, &vec![0; PLACEMENT_TARGETS_MAX + 1])],
            (0..=PLACEMENT_PIECES_MAX as u32).map(|first| piece(first, 1, &[0])).collect(),
        ] {
            assert_eq!(Placement::new(pieces), None);
        }
        assert_eq!(Placement::new(vec![]), Some(Placement::default()));
    }

    #[test]
    fn sizes_of_objects_are_powers_of_two_that_fit_a_slot() {
        assert!(is_object_size(64 << 10, 64 << 10) && is_object_size(1 << 20, 4 << 20));
        for (object, slot) in [(32 << 10, 4 << 20), (8 << 20, 4 << 20), (3 << 20, 4 << 20), (0, 4 << 20)] {
            assert!(!is_object_size(object, slot));
        }
    }
}
