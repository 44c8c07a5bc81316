//! From a layout, in bytes and targets of the host, to what the masters know of it.

use alloc::vec::Vec;

use crate::layout::{Component, Layout, TargetId};
use crate::placement::{Laid, Piece, Placement, Target};

impl Layout {
    /// How a file of `size` lies in objects of at most `object_bytes_max`; nothing where that is more than a placement can
    /// say. `number` gives a target the number that the masters know it by.
    pub fn laid(
        &self,
        size: u64,
        object_bytes_max: u32,
        number: impl Fn(TargetId) -> Target,
    ) -> Option<Laid> {
        let object_bytes = self.object_size(object_bytes_max);
        let placement = self.placement(size, object_bytes, number)?;
        Some(Laid { object_bytes, placement })
    }

    /// Which target holds each object of this size. One that lies across an edge is where it begins.
    pub fn placement(
        &self,
        size: u64,
        object_bytes: u32,
        number: impl Fn(TargetId) -> Target,
    ) -> Option<Placement> {
        let object = u64::from(object_bytes);
        let mut pieces: Vec<Piece> = Vec::new();
        let push = |pieces: &mut Vec<Piece>, first: u64, run: u64, targets: Vec<Target>| {
            let piece = Piece {
                first: first as u32,
                run: run.min(u64::from(u32::MAX)) as u32,
                targets: targets.into(),
            };
            // What has no object of its own is passed over.
            pieces.retain(|earlier| earlier.first < piece.first);
            pieces.push(piece);
        };
        push(&mut pieces, 0, 1, [0].into());
        for Component { range, stripes } in self.components() {
            let end = range.end.min(size).div_ceil(object);
            let mut first = range.start.div_ceil(object);
            if end > u64::from(u32::MAX) {
                return None;
            }
            if first >= end {
                continue;
            }
            let at = |index: u64| self.target_at(index * object).map_or(0, &number);
            let Some(stripes) = stripes else {
                push(&mut pieces, first, 1, [0].into());
                continue;
            };
            let run = (stripes.run() / object).max(1);
            if first % run > 0 && first + run - first % run < end {
                push(&mut pieces, first, run, [at(first)].into());
                first += run - first % run;
            }
            // After so many runs it is the first target's turn again, at a run's beginning.
            let turn = stripes.turn() / common_divisor(stripes.turn(), run * object);
            let turn = turn.min((end - first).div_ceil(run));
            if turn > crate::limits::PLACEMENT_TARGETS_MAX as u64 {
                return None;
            }
            push(&mut pieces, first, run, (0..turn).map(|stripe| at(first + stripe * run)).collect());
        }
        Placement::new(pieces)
    }
}

fn common_divisor(one: u64, other: u64) -> u64 {
    let (mut one, mut other) = (one, other);
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one.max(1)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::layout::Stripes;

    const MIB: u64 = 1 << 20;

    fn round_robin(stripe: u64, targets: &[u32]) -> Stripes {
        Stripes::round_robin(stripe, targets.iter().map(|target| TargetId(*target)).collect()).unwrap()
    }

    fn agrees(layout: &Layout, size: u64, object_bytes_max: u32) -> Laid {
        let laid = layout.laid(size, object_bytes_max, |target| target.0 as Target + 1).unwrap();
        for index in 0..size.div_ceil(u64::from(laid.object_bytes)) {
            let offset = index * u64::from(laid.object_bytes);
            let wanted = layout.target_at(offset).map_or(0, |target| target.0 as Target + 1);
            assert_eq!(laid.placement.target(index as u32), wanted, "object {index} of {laid:?}");
        }
        laid
    }

    #[test]
    fn each_object_is_where_the_layout_has_its_first_byte() {
        for stripe in [64 << 10, MIB, 3 * MIB, 4 * MIB, 64 * MIB] {
            for targets in [&[4][..], &[0, 1], &[5, 3, 9], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]] {
                for object in [1 << 20, 4 << 20] {
                    for size in [1, MIB, 33 * MIB + 5, 200 * MIB] {
                        agrees(&Layout::whole(round_robin(stripe, targets)), size, object);
                    }
                }
            }
        }
    }

    #[test]
    fn components_follow_one_another() {
        let component = |range, stripes| Component { range, stripes };
        let layout = Layout::new(vec![
            component(0..4 * MIB, Some(round_robin(MIB, &[0]))),
            component(4 * MIB..65 * MIB, Some(round_robin(4 * MIB, &[1, 2, 3]))),
            component(65 * MIB..300 * MIB, Some(round_robin(MIB, &[4, 5, 6, 7]))),
            component(300 * MIB..u64::MAX, None),
        ]);
        let laid = agrees(&layout.unwrap(), 333 * MIB, 4 << 20);
        assert_eq!(laid.object_bytes, 1 << 20, "no object is on two targets");
    }

    #[test]
    fn a_hole_in_front_is_on_no_target_that_is_known() {
        let component = Component { range: MIB..u64::MAX, stripes: Some(round_robin(MIB, &[3, 4])) };
        let laid = agrees(&Layout::new(vec![component]).unwrap(), 10 * MIB, 1 << 20);
        assert_eq!(laid.placement.target(0), 0);
    }

    #[test]
    fn what_a_placement_cannot_say_is_left_out() {
        let many: Vec<u32> = (0..5000).collect();
        let layout = Layout::whole(round_robin(MIB, &many));
        assert_eq!(layout.laid(1 << 40, 1 << 20, |target| target.0 as Target), None);
        assert!(
            layout.laid(100 * MIB, 1 << 20, |target| target.0 as Target).is_some(),
            "few of them are used"
        );
    }
}
