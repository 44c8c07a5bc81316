//! The source's spill: a device that may fail, fill up, or give back other bytes than it was given.
//!
//! What it holds is kept by place. The checks here are about places: nothing is put where something is being read, or being
//! sent from; nothing comes back but what was put there last. That wrong bytes never leave is checked at the sink.

use std::collections::BTreeMap;

use haul_model::op::SourceOp;
use haul_model::{Code, Failure, Hash, SlotId};

use crate::content::{GARBAGE, Payload, Piece};
use crate::world::{World, note};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// The file, of one session.
#[derive(Default)]
pub(crate) struct Spill {
    /// What begins where.
    held: BTreeMap<u64, Piece>,
    /// Where the operations under way work, and how long they are.
    busy: Vec<(u64, u32)>,
    /// The streams take bytes straight from it.
    pub in_place: bool,
    pub bytes_put: u64,
    /// Of what came back whole.
    pub bytes_taken: u64,
    told: bool,
    /// It has failed.
    troubled: bool,
}

impl Spill {
    /// The source has said that it failed.
    pub(crate) fn has_told(&self) -> bool {
        self.told
    }
}

impl World {
    /// An operation on the spill begins: nothing else works where it does.
    pub(crate) fn check_spill_op(&mut self, op: &SourceOp) {
        let (SourceOp::Spill { at, length, .. } | SourceOp::Unspill { at, length, .. }) = *op else { return };
        let Some(end) = &mut self.source else { return };
        let overlaps =
            |(other, size): &(u64, u32)| at < other + u64::from(*size) && *other < at + u64::from(length);
        let busy = end.spill.busy.iter().any(overlaps);
        end.spill.busy.push((at, length));
        if busy {
            self.violate(format!("two operations are under way at {at} of the spill"));
        }
    }

    fn spill_done(&mut self, at: u64, length: u32) {
        let Some(end) = &mut self.source else { return };
        if let Some(index) = end.spill.busy.iter().position(|busy| *busy == (at, length)) {
            end.spill.busy.swap_remove(index);
        }
    }

    /// Puts what the slot holds away.
    pub(crate) fn spill(&mut self, slot: SlotId, at: u64, length: u32) -> Result<(), Failure> {
        self.spill_done(at, length);
        let fails = self.random.chance(self.rates().spill_write_error);
        let full = fails && self.random.coin();
        let Some(end) = &mut self.source else { return Err(Code::Internal.into()) };
        // What stood there is gone, also where the new is not all there.
        end.spill
            .held
            .retain(|other, piece| other + u64::from(piece.length) <= at || at + u64::from(length) <= *other);
        if fails {
            end.spill.troubled = true;
            return Err(Failure::os(Code::SpillFailed, if full { ENOSPC } else { EIO }));
        }
        let payload = &end.slots[slot.0 as usize];
        let whole = payload
            .pieces
            .first()
            .copied()
            .filter(|piece| piece.length == length && payload.in_spill.is_none());
        let Some(piece) = whole else {
            self.violate(format!("slot {} does not hold the {length} bytes that are put away", slot.0));
            return Err(Code::Internal.into());
        };
        end.spill.held.insert(at, piece);
        end.spill.bytes_put += u64::from(length);
        self.report.spilled[0] += 1;
        Ok(())
    }

    /// Gets it back into a slot.
    pub(crate) fn unspill(
        &mut self,
        slot: SlotId,
        at: u64,
        (offset, length, single): (u64, u32, bool),
    ) -> Result<Hash, Failure> {
        self.spill_done(at, length);
        let fails = self.random.chance(self.rates().spill_read_error);
        let wrong = fails && self.random.coin();
        let Some(end) = &mut self.source else { return Err(Code::Internal.into()) };
        if fails && !wrong {
            end.spill.troubled = true;
            return Err(Failure::os(Code::SpillFailed, EIO));
        }
        let held = end.spill.held.get(&at).copied();
        let Some(piece) = held.filter(|piece| (piece.offset, piece.length) == (offset, length)) else {
            self.violate(format!(
                "{length} bytes of offset {offset} are wanted from {at} of the spill: {held:?}"
            ));
            return Err(Code::Internal.into());
        };
        if wrong {
            end.spill.troubled = true;
            let piece = Piece { content: GARBAGE, ..piece };
            end.slots[slot.0 as usize] = Payload { pieces: [piece].into(), ..Payload::default() };
            return Ok(piece.hash(offset, single));
        }
        let in_spill = end.spill.in_place.then_some(at);
        end.slots[slot.0 as usize] = Payload { pieces: [piece].into(), in_spill, ..Payload::default() };
        end.spill.bytes_taken += u64::from(length);
        self.report.spilled[1] += 1;
        Ok(piece.hash(offset, single))
    }

    /// A payload arrives that was sent from the spill: until now it must have stood there.
    pub(crate) fn check_sent_from_spill(&mut self, payload: &Payload) {
        let (Some(at), Some(end)) = (payload.in_spill, &self.source) else { return };
        let held = end.spill.held.get(&at);
        if held != payload.pieces.first() {
            self.violate(format!("what is sent from {at} of the spill was replaced meanwhile by {held:?}"));
        }
    }

    /// The source says that its spill has failed.
    pub(crate) fn check_spill_told(&mut self) {
        let Some(end) = &mut self.source else { return };
        let before = std::mem::replace(&mut end.spill.told, true);
        if before || !end.spill.troubled {
            note!(self, "the spill failed before: {before}");
            self.violate("the spill is said to have failed, and has not, or it was said before".into());
        }
    }
}
