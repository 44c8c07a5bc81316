//! Members of bundles. On an end whose files may lie on several targets they are made first; then it is known where each
//! lies, and those of one target are a request of that target. What is slow, or hangs, holds up no other part of the
//! bundle; the slot is free again when all parts have ended.

use alloc::vec::Vec;

use haul_model::op::{MemberWrite, MemberWritten, MembersStep, Progress, SinkOp};
use haul_model::{BlockId, Code, EntryId, Failure, Target};
use haul_wire::{Member, RepairReason, Settled};

use super::Sink;
use super::choose::{TIMED_OUT, ToWrite};
use super::receive::{Stage, Work};
use crate::committer::Lane;
use crate::event::Action;
use crate::pace::FILE_COST_BYTES;
use crate::planted::Bug;
use crate::scheduler::{Class, Finished, Ticket};
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

/// Members that lie on one target.
pub(super) struct Part {
    pub target: Target,
    members: Vec<Member>,
    stage: Stage,
    ticket: Option<Ticket>,
}

impl Sink {
    /// As storage wants them.
    pub(super) fn member_writes(&self, members: &[Member]) -> Result<Vec<MemberWrite>, Failure> {
        let write = |member: &Member| {
            let held = self.entries.get(&member.id).ok_or(Failure::new(Code::Internal))?;
            let hash = member.hash.ok_or(Failure::new(Code::Internal))?;
            Ok(MemberWrite { entry: held.entry.clone(), offset: member.offset, hash })
        };
        members.iter().map(write).collect()
    }

    /// The first step is done: some are written, others wait for their targets.
    pub(super) fn on_members_made(
        &mut self,
        block: BlockId,
        results: Vec<MemberWritten>,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        if self.writes.get(&block).is_some_and(|write| write.stage == Stage::Lost) {
            // Nobody waited, and nothing of it stays.
            self.lost -= 1;
            return self.written(block).map(drop);
        }
        // Its thread has been replaced, and it does not count any more.
        let relieved = self.writes.get(&block).is_some_and(|write| write.relieved);
        self.writing += u32::from(relieved);
        self.has_written(block, true);
        let write = self.writes.get_mut(&block).ok_or(Failure::new(Code::Internal))?;
        write.stage = Stage::Queued;
        let Work::Bundle { members } = &mut write.work else { return Err(Failure::new(Code::Internal)) };
        let (members, making) = (core::mem::take(members), write.making.take());
        let cost: u64 = members.iter().map(|member| FILE_COST_BYTES + self.member_bytes(member.id)).sum();
        let most = self.hands.at_a_time();
        if let Some(making) = making.filter(|_| !relieved) {
            self.creates.end(making, cost, self.clock.now(), most);
        }
        let mut parts: Vec<Part> = Vec::new();
        let taken_as_written = self.config.planted.has(Bug::MadeTakenAsWritten);
        for (member, result) in members.into_iter().zip(results) {
            match result {
                Ok(Some(target)) if !taken_as_written => {
                    if let Some(held) = self.entries.get_mut(&member.id) {
                        held.on = (target != 0).then_some(target);
                    }
                    let place = parts.iter().position(|part| part.target == target);
                    let place = place.unwrap_or_else(|| {
                        parts.push(Part { target, members: Vec::new(), stage: Stage::Queued, ticket: None });
                        parts.len() - 1
                    });
                    parts[place].members.push(member);
                }
                Ok(_) => self.on_member_written(member.id, Ok(()), Lane::Brisk, now_nanos)?,
                Err(failure) => self.on_member_written(member.id, Err(failure), Lane::Brisk, now_nanos)?,
            }
        }
        for part in &parts {
            let bytes = part.members.iter().map(|member| self.member_bytes(member.id).max(FILE_COST_BYTES));
            let bytes = u32::try_from(bytes.sum::<u64>()).unwrap_or(u32::MAX);
            self.push(ToWrite::Members(block, part.target), part.target, Class::Bundle, bytes);
        }
        if let Some(write) = self.writes.get_mut(&block) {
            write.parts = parts;
        }
        self.end_bundle(block)
    }

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
        let is_late = |write: &mut super::receive::Write| write.stands_still(now) >= long;
        let late = self.writes.iter_mut().filter_map(|(block, write)| is_late(write).then_some(*block));
        let mut late: Vec<BlockId> = late.collect();
        // In one order in every run.
        late.sort_unstable();
        for block in late {
            self.relieve_making(block);
            let Some(write) = self.writes.get_mut(&block) else { continue };
            let given_up = write.stands_still(now) >= limit;
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
            return Err(Failure::os(Code::SinkWrite, TIMED_OUT));
        }
        Ok(())
    }

    /// Another thread takes its place, and others may begin as if it were not.
    fn relieve_making(&mut self, block: BlockId) {
        let Some(write) = self.writes.get_mut(&block).filter(|write| !write.relieved) else { return };
        write.relieved = true;
        if let Some(making) = write.making {
            self.creates.forget(making);
        }
        self.writing -= 1;
        self.actions.push_back(Action::Replace(block, None));
    }

    /// When the first of those that are being made now takes too long.
    pub(super) fn making_deadline_nanos(&self) -> Option<u64> {
        if !self.gives_up_making() {
            return None;
        }
        let limit = self.making_limit_nanos();
        let next = |write: &super::receive::Write| {
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

    fn member_bytes(&self, id: EntryId) -> u64 {
        self.entries.get(&id).map_or(0, |held| held.entry.size())
    }

    /// A thread takes on those of one target.
    pub(super) fn start_fill(
        &mut self,
        block: BlockId,
        target: Target,
        ticket: Ticket,
        gently: bool,
    ) -> Result<(), Failure> {
        let write = self.writes.get_mut(&block).ok_or(Failure::new(Code::Internal))?;
        let (slot, length) = (write.slot, write.length);
        let part = write.parts.iter_mut().find(|part| part.target == target);
        let part = part.ok_or(Failure::new(Code::Internal))?;
        (part.stage, part.ticket) = (Stage::Writing, Some(ticket));
        let members = part.members.clone();
        let members = self.member_writes(&members)?;
        self.writing += 1;
        let step = MembersStep::Fill { target, gently };
        let progress = Progress::default();
        let op = SinkOp::WriteMembers { block, step, slot, length, members, progress };
        self.actions.push_back(Action::Sink(op));
        Ok(())
    }

    /// Those of one target are written, or nobody waits for them any more.
    pub(super) fn on_members_filled(
        &mut self,
        block: BlockId,
        target: Target,
        results: Vec<MemberWritten>,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        let part = self.take_part(block, target).ok_or(Failure::new(Code::Internal))?;
        let done = results.iter().any(Result::is_ok);
        let ticket = part.ticket.ok_or(Failure::new(Code::Internal))?;
        let late = matches!(self.scheduler.finished(ticket, self.clock.now(), done), Finished::Late { .. });
        self.scheduler.gate_done(ticket);
        if !late {
            self.writing -= 1;
            let lane = self.lane_of_target(target);
            for (member, result) in part.members.into_iter().zip(results) {
                self.on_member_written(member.id, result.map(drop), lane, now_nanos)?;
            }
        }
        self.end_bundle(block)
    }

    fn on_member_written(
        &mut self,
        id: EntryId,
        result: Result<(), Failure>,
        lane: Lane,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        match result {
            Ok(()) => {
                self.step(id, SinkCause::Written)?;
                self.has_room(self.entries.get(&id).and_then(|held| held.on));
                let bytes = self.member_bytes(id);
                self.committer.add_file(id, bytes, lane, now_nanos);
                if self.config.planted.has(Bug::MemberAckBeforeSync) {
                    self.settled.push((id, Settled::Done(None)));
                }
            }
            Err(failure) if failure.code == Code::HashMismatch => {
                self.step(id, SinkCause::AskedAgain)?;
                self.ask_again(id, None, RepairReason::Hash);
            }
            Err(failure) => self.give_up(id, SinkCause::WriteFailed, failure)?,
        }
        Ok(())
    }

    fn take_part(&mut self, block: BlockId, target: Target) -> Option<Part> {
        let write = self.writes.get_mut(&block)?;
        let was_lost = write.is_lost();
        let place = write.parts.iter().position(|part| part.target == target)?;
        let part = write.parts.swap_remove(place);
        self.recount(block, was_lost);
        Some(part)
    }

    /// Nobody waits for a bundle of which only what hangs is left.
    fn recount(&mut self, block: BlockId, was_lost: bool) {
        let is_lost = self.writes.get(&block).is_some_and(super::receive::Write::is_lost);
        self.lost += usize::from(is_lost);
        self.lost -= usize::from(was_lost);
    }

    /// The slot is free again when no part is left.
    fn end_bundle(&mut self, block: BlockId) -> Result<(), Failure> {
        let parts = self.writes.get(&block).map_or(0, |write| write.parts.len());
        let early = self.config.planted.has(Bug::SlotFreedAtFirstPart) && parts > 0;
        match self.writes.get(&block) {
            Some(write) if early => {
                let slot = write.slot;
                if !self.withheld.contains(&slot) {
                    self.free(slot);
                }
                Ok(())
            }
            Some(_) if parts == 0 => self.written(block).map(drop),
            _ => Ok(()),
        }
    }

    /// Those of one target hang: they are asked for again, and made anew. What the thread does yet counts for nothing.
    pub(super) fn lose_part(&mut self, block: BlockId, target: Target, replace: bool) -> Result<(), Failure> {
        let Some(write) = self.writes.get_mut(&block) else { return Ok(()) };
        let was_lost = write.is_lost();
        let Some(part) = write.parts.iter_mut().find(|part| part.target == target) else { return Ok(()) };
        part.stage = Stage::Lost;
        let members = core::mem::take(&mut part.members);
        self.recount(block, was_lost);
        if replace {
            self.actions.push_back(Action::Replace(block, Some(target)));
        }
        for member in members {
            self.step(member.id, SinkCause::AskedAgain)?;
            self.ask_again(member.id, None, RepairReason::Sync);
        }
        Ok(())
    }

    /// Those of a target that answers no more.
    pub(super) fn give_up_part(&mut self, block: BlockId, target: Target) -> Result<(), Failure> {
        let Some(part) = self.take_part(block, target) else { return Ok(()) };
        for member in part.members {
            self.give_up(member.id, SinkCause::WriteFailed, Failure::os(Code::SinkWrite, TIMED_OUT))?;
        }
        self.end_bundle(block)
    }
}

impl super::receive::Write {
    /// For how long it has been making the same member.
    fn stands_still(&mut self, now_nanos: u64) -> u64 {
        if self.stage != Stage::Writing || self.making.is_none() {
            return 0;
        }
        let mark = self.progress.mark();
        if mark != self.mark.0 {
            self.mark = (mark, now_nanos);
        }
        now_nanos.saturating_sub(self.mark.1)
    }

    /// A member of it is being made, for ever.
    fn is_stuck(&self) -> bool {
        self.stage == Stage::Lost && matches!(self.work, Work::Bundle { .. })
    }

    /// Only what hangs is left of it.
    fn is_lost(&self) -> bool {
        !self.parts.is_empty() && self.parts.iter().all(|part| part.stage == Stage::Lost)
    }
}
