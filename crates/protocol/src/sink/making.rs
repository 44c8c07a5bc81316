//! Members of bundles that take too long to be made: nobody knows yet where each will lie, so this is watched by itself. One that
//! storage does not come to an end with fails, and the rest of its bundle comes again.

use alloc::vec::Vec;

use haul_model::{BlockId, Code, Failure};
use haul_wire::RepairReason;

use super::Sink;
use super::choose::TIMED_OUT;
use super::receive::{Stage, Work, Write};
use crate::event::Action;
use crate::planted::{Bug, Planted};
use crate::states::SinkCause;

/// What takes longer is not made.
const MAKING_LIMIT_NANOS: u64 = 120_000_000_000;
/// And what takes less is waited for, unless somebody has set a shorter limit.
const MAKING_LIMIT_NANOS_MIN: u64 = 10_000_000_000;

const LOOK_AGAIN_NANOS: u64 = 50_000_000;
/// What takes longer gets another thread for what comes after it; or than so much of a limit that is shorter.
const MAKING_LONG_NANOS: u64 = 2_000_000_000;
const MAKING_LONG_PART: u64 = 4;

fn long_nanos(limit: u64) -> u64 {
    MAKING_LONG_NANOS.min(limit / MAKING_LONG_PART)
}

impl Sink {
    /// Where all is on one target there is nothing better to do than to wait for it.
    fn gives_up_making(&self) -> bool {
        let several = self.errands.is_watched() || self.config.lies_apart;
        several && !self.config.planted.has(Bug::HangAwaited)
    }

    /// Bundles of which a member takes too long to be made: it fails, and the others are asked for again.
    pub(super) fn give_up_making(&mut self) -> Result<(), Failure> {
        if !self.gives_up_making() {
            return Ok(());
        }
        let (now, limit) = (self.clock.now(), self.making_limit_nanos());
        let long = long_nanos(limit);
        let planted = self.config.planted;
        let is_late = |write: &mut Write| write.stands_still(now, planted) >= long;
        let late = self.writes.iter_mut().filter_map(|(block, write)| is_late(write).then_some(*block));
        let mut late: Vec<BlockId> = late.collect();
        // In one order in every run.
        late.sort_unstable();
        for block in late {
            self.relieve_making(block);
            let Some(write) = self.writes.get_mut(&block) else { continue };
            let given_up = write.stands_still(now, planted) >= limit;
            let Some(at) = given_up.then(|| write.progress.abandon()).flatten() else { continue };
            (write.stage, write.making) = (Stage::Lost, None);
            let Work::Bundle { members } = &mut write.work else { continue };
            let members = core::mem::take(members);
            self.lost += 1;
            self.made_in_vain += 1;
            for (number, member) in members.into_iter().enumerate() {
                if number == at {
                    let failure = Failure::os(Code::SinkWrite, TIMED_OUT);
                    self.give_up(member.id, SinkCause::WriteFailed, failure)?;
                } else {
                    self.step(member.id, SinkCause::AskedAgain)?;
                    self.ask_again(member.id, None, RepairReason::Lost);
                }
            }
        }
        // Their slots do not come back either.
        let stuck = self.writes.values().filter(|write| write.is_stuck()).count();
        if stuck > 0 && stuck >= self.slots.len().div_ceil(2) {
            return Err(Failure::new(Code::SinkHangs));
        }
        Ok(())
    }

    /// Another thread takes its place, and others may begin as if it were not.
    fn relieve_making(&mut self, block: BlockId) {
        let Some(write) = self.writes.get_mut(&block).filter(|write| !write.relieved) else { return };
        write.relieved = true;
        self.creates.forget();
        self.writing -= 1;
        self.actions.push_back(Action::Replace(block, None));
    }

    /// When the first of those that are being made now takes too long.
    pub(super) fn making_deadline_nanos(&self) -> Option<u64> {
        if !self.gives_up_making() {
            return None;
        }
        let limit = self.making_limit_nanos();
        let next = |write: &Write| {
            let nanos = if write.relieved { limit } else { long_nanos(limit) };
            write.making.map(|_| write.mark.1.saturating_add(nanos))
        };
        let first = self.writes.values().filter_map(next).min();
        // One that could not be given up has just ended: its answer is on its way.
        first.map(|at| at.max(self.clock.now() + LOOK_AGAIN_NANOS))
    }

    /// The more have hung, the less is waited for the next one.
    fn making_limit_nanos(&self) -> u64 {
        let limit = self.config.hangs_after_nanos.unwrap_or(MAKING_LIMIT_NANOS);
        (limit / (1 + self.made_in_vain)).max(limit.min(MAKING_LIMIT_NANOS_MIN))
    }
}

impl Write {
    /// For how long it has been making the same member.
    fn stands_still(&mut self, now_nanos: u64, planted: Planted) -> u64 {
        if self.stage != Stage::Writing || self.making.is_none() {
            return 0;
        }
        let mark = self.progress.mark();
        if mark != self.mark.0 && !planted.has(Bug::SlowMakingHangs) {
            self.mark = (mark, now_nanos);
        }
        now_nanos.saturating_sub(self.mark.1)
    }

    /// A member of it is being made, for ever.
    fn is_stuck(&self) -> bool {
        self.stage == Stage::Lost && matches!(self.work, Work::Bundle { .. })
    }
}
