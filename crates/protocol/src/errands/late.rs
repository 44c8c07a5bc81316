//! What takes long, and which target is to blame for it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use haul_model::Target;

/// An errand that takes long and has not come back.
pub(super) struct LateOne {
    /// Which of its targets may be to blame: those on which no other has been done since it began.
    suspects: Vec<Target>,
    pub given_up: bool,
}

/// What takes long, by its number, and when something was last done in time on each target.
#[derive(Default)]
pub(super) struct LateOnes {
    late: BTreeMap<u64, LateOne>,
    answered: BTreeMap<Target, u64>,
}

impl LateOnes {
    pub fn came(&mut self, number: u64, targets: &[Target], since_nanos: u64) {
        let silent = |it: &&Target| self.answered.get(it).is_none_or(|at| *at <= since_nanos);
        let suspects = targets.iter().filter(silent).copied().collect();
        self.late.insert(number, LateOne { suspects, given_up: false });
    }

    pub fn is_empty(&self) -> bool {
        self.late.is_empty()
    }

    pub fn was_given_up(&mut self, number: u64) {
        if let Some(late) = self.late.get_mut(&number) {
            late.given_up = true;
        }
    }

    pub fn went(&mut self, number: u64) {
        self.late.remove(&number);
    }

    pub fn answer(&mut self, targets: &[Target], now_nanos: u64) {
        self.answered.extend(targets.iter().map(|target| (*target, now_nanos)));
        self.late.values_mut().for_each(|late| late.suspects.retain(|suspect| !targets.contains(suspect)));
    }

    /// So many are late because of one of these, and it is clear which.
    pub fn bar(&self, targets: &[Target], most: u32, counts: impl Fn(&LateOne) -> bool) -> bool {
        let to_blame = |target: Target| {
            self.late.values().filter(|late| late.suspects == [target] && counts(late)).count()
        };
        !self.late.is_empty() && targets.iter().any(|target| to_blame(*target) >= most as usize)
    }
}
