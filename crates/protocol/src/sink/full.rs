//! Storage without room: where files are on several targets it concerns those on a target that is full, and the job only when
//! none has room.

use alloc::vec::Vec;

use haul_model::error::Retry;
use haul_model::{Failure, Target};

use super::Sink;
use crate::planted::Bug;

/// All targets that are known are full, or it is not known which: after so many failures of this kind, with nothing that could
/// be written between them, no others are hoped for.
const IN_A_ROW: u32 = 64;

/// What is known of it.
#[derive(Default)]
pub(super) struct Room {
    /// Targets that had none when they were last written to.
    full: Vec<Target>,
    /// Failures since something could be written.
    in_a_row: u32,
}

/// No room, no quota, or only to be read: it goes on when somebody has seen to that.
pub(super) fn is_lack_of_room(failure: Failure) -> bool {
    failure.code.retry() == Retry::Rerun
}

impl Sink {
    /// Some failures concern every file to come: the job ends once what is under way has ended, and goes on when the
    /// cause is gone. Everything else concerns one file.
    pub(super) fn ends_the_job(&mut self, failure: Failure, target: Option<Target>) -> bool {
        if !is_lack_of_room(failure) {
            return false;
        }
        self.room.in_a_row += 1;
        if let Some(target) = target.filter(|target| !self.room.full.contains(target)) {
            self.room.full.push(target);
        }
        let ends = !self.some_may_have_room(target) || self.config.planted.has(Bug::FullTargetEndsJob);
        if ends && self.draining.is_none() {
            self.draining = Some(failure);
        }
        ends
    }

    /// Others than this target, that is.
    fn some_may_have_room(&self, target: Option<Target>) -> bool {
        // What else is open may be on others that were not met yet.
        let several = self.hands.has_several_targets() || target.is_some() && self.entries.len() > 1;
        let full = |met: Target| met == 0 || self.room.full.contains(&met);
        let all_are_full = target.is_none() || self.hands.all_met().all(full);
        several && (!all_are_full || self.room.in_a_row < IN_A_ROW)
    }

    /// Something could be written there.
    pub(super) fn has_room(&mut self, target: Option<Target>) {
        self.room.in_a_row = 0;
        if let Some(target) = target {
            self.room.full.retain(|full| *full != target);
        }
    }
}
