//! Members of bundles. On an end whose files may lie on several targets they are made first; then it is known where each
//! lies, and those of one target are a request of that target. What is slow, or hangs, holds up no other part of the
//! bundle; the slot is free again when all parts have ended.

use alloc::vec::Vec;

use haul_model::op::{Landed, MemberWrite, MemberWritten, MembersStep, Progress, SinkOp};
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

/// Members that lie on one target.
pub(super) struct Part {
    pub target: Target,
    members: Vec<Member>,
    stage: Stage,
    ticket: Option<Ticket>,
    /// How far storage is, and was at the last look.
    progress: Progress,
    mark: u32,
    /// If it is lost: the file that storage was at.
    hangs: Option<EntryId>,
}

impl Part {
    fn new(target: Target) -> Part {
        let progress = Progress::default();
        let mark = progress.mark();
        Part { target, members: Vec::new(), stage: Stage::Queued, ticket: None, progress, mark, hangs: None }
    }
}

impl Sink {
    /// As storage wants them.
    pub(super) fn member_writes(&self, members: &[Member]) -> Result<Vec<MemberWrite>, Failure> {
        let write = |member: &Member| {
            let held = self.entries.get(member.id).ok_or(Failure::new(Code::Internal))?;
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
        let taken_as_named = self.config.planted.has(Bug::WrittenTakenAsNamed);
        for (member, result) in members.into_iter().zip(results) {
            match result {
                Ok(Landed::Made(target)) if !taken_as_written => {
                    if let Some(held) = self.entries.get_mut(member.id) {
                        held.on = (target != 0).then_some(target);
                    }
                    let place = parts.iter().position(|part| part.target == target);
                    let place = place.unwrap_or_else(|| {
                        parts.push(Part::new(target));
                        parts.len() - 1
                    });
                    parts[place].members.push(member);
                }
                Ok(Landed::Named) => self.on_member_named(member.id)?,
                Ok(Landed::Written) if taken_as_named => self.on_member_named(member.id)?,
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

    fn member_bytes(&self, id: EntryId) -> u64 {
        self.entries.get(id).map_or(0, |held| held.entry.size())
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
        let progress = part.progress.clone();
        let members = part.members.clone();
        let members = self.member_writes(&members)?;
        self.writing += 1;
        let step = MembersStep::Fill { target, gently };
        let op = SinkOp::WriteMembers { block, step, slot, length, members, progress };
        self.actions.push_back(Action::Sink(op));
        Ok(())
    }

    /// A part is some hundred files, one written after the other: as long as storage comes to the next one it does not hang.
    pub(super) fn renew_parts(&mut self) {
        if self.config.planted.has(Bug::SlowPartHangs) {
            return;
        }
        let now = self.clock.now();
        if self.scheduler.deadline_nanos().is_none_or(|deadline| deadline > now) {
            return;
        }
        let parts = self.writes.values_mut().flat_map(|write| &mut write.parts);
        for part in parts.filter(|part| part.stage == Stage::Writing) {
            let before = core::mem::replace(&mut part.mark, part.progress.mark());
            if let Some(ticket) = part.ticket.filter(|_| part.mark != before) {
                self.scheduler.renew(ticket, now);
            }
        }
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
                self.has_room(self.entries.get(id).and_then(|held| held.on));
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

    /// There is nothing to wait for: it has ended.
    fn on_member_named(&mut self, id: EntryId) -> Result<(), Failure> {
        self.step(id, SinkCause::Written)?;
        self.has_room(None);
        self.on_complete(id)
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

    /// Those of one target hang: they are asked for again, and made anew, and the thread comes to none of the rest. A file at which a
    /// second part is lost there is named, and says nothing of the target.
    pub(super) fn lose_part(
        &mut self,
        block: BlockId,
        target: Target,
        ticket: Ticket,
        replace: bool,
    ) -> Result<(), Failure> {
        let parts = || self.writes.values().flat_map(|write| &write.parts);
        let at = |part: &Part| part.members.get(part.progress.mark() as usize).map(|member| member.id);
        let hangs = parts().find(|part| part.ticket == Some(ticket)).and_then(at);
        let is_known = |part: &Part| part.target == target && part.hangs == hangs;
        let planted = self.config.planted.has(Bug::FileBlamesTarget);
        let named = hangs.filter(|_| parts().any(is_known) && !planted);
        if named.is_some() {
            self.scheduler.excuse(ticket, self.clock.now());
        }
        let Some(write) = self.writes.get_mut(&block) else { return Ok(()) };
        let was_lost = write.is_lost();
        let Some(part) = write.parts.iter_mut().find(|part| part.target == target) else { return Ok(()) };
        (part.stage, part.hangs) = (Stage::Lost, hangs);
        if !self.config.planted.has(Bug::LatePartGoesOn) {
            part.progress.abandon();
        }
        let members = core::mem::take(&mut part.members);
        self.recount(block, was_lost);
        if replace {
            self.actions.push_back(Action::Replace(block, Some(target)));
        }
        for member in members {
            if named == Some(member.id) {
                let timed_out = Failure::os(Code::SinkWrite, TIMED_OUT);
                self.give_up(member.id, SinkCause::WriteFailed, timed_out)?;
                continue;
            }
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
    /// Only what hangs is left of it.
    fn is_lost(&self) -> bool {
        !self.parts.is_empty() && self.parts.iter().all(|part| part.stage == Stage::Lost)
    }
}
