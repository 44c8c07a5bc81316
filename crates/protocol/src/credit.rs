//! Credits: which sink slots the source may send into.
//!
//! The number of credits is conserved: each slot of the sink is withheld, granted, or in use for one block, and comes
//! back exactly once. Neither end believes the other about that.

use alloc::vec;
use alloc::vec::Vec;

use haul_model::{Code, Failure, SlotId};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Credit {
    Absent,
    Held,
    Used,
}

/// The source's ledger of the sink's slots.
#[derive(Default)]
pub struct Credits {
    slots: Vec<Credit>,
    held: Vec<SlotId>,
}

impl Credits {
    /// The sink has this many slots; none is granted yet.
    pub fn new(slots: u32) -> Self {
        Credits { slots: vec![Credit::Absent; slots as usize], held: Vec::new() }
    }

    /// BLOCK_DONE: the slot may be sent into. A slot that is held already, or that does not exist, is a violation.
    pub fn granted(&mut self, slot: SlotId) -> Result<(), Failure> {
        match self.slots.get_mut(slot.0 as usize) {
            Some(credit) if *credit != Credit::Held => {
                *credit = Credit::Held;
                self.held.push(slot);
                Ok(())
            }
            _ => Err(Failure::new(Code::Protocol)),
        }
    }

    /// Uses the credit granted last: its slot is the warmest.
    pub fn take(&mut self) -> Option<SlotId> {
        let slot = self.held.pop()?;
        self.slots[slot.0 as usize] = Credit::Used;
        Some(slot)
    }

    /// How many are held.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    #[cfg_attr(not(feature = "planted-bugs"), allow(dead_code))]
    pub(crate) fn forget_all(&mut self) {
        for slot in self.held.drain(..) {
            self.slots[slot.0 as usize] = Credit::Absent;
        }
    }

    #[cfg_attr(not(feature = "planted-bugs"), allow(dead_code))]
    pub(crate) fn peek(&self) -> Option<SlotId> {
        self.held.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_a_credit_once_at_a_time() {
        let mut credits = Credits::new(2);
        credits.granted(SlotId(1)).unwrap();
        assert!(credits.granted(SlotId(1)).is_err(), "granted twice");
        assert!(credits.granted(SlotId(2)).is_err(), "no such slot");
        assert_eq!(credits.take(), Some(SlotId(1)));
        assert_eq!(credits.take(), None);
        credits.granted(SlotId(1)).unwrap();
        assert_eq!(credits.held(), 1);
    }
}
