//! Announcements and payloads meet in a slot; what is whole is written; the slot is granted again.

use alloc::vec::Vec;

use haul_model::limits::ATTEMPTS_MAX;
use haul_model::op::{MembersStep, Progress, SinkOp};
use haul_model::{BlockId, Code, EntryId, Failure, Hash, SlotId};
use haul_wire::{Member, Repair, RepairReason};

use super::Sink;
use super::parts::Part;
use crate::committer::WrittenObject;
use crate::event::Action;
use crate::pace::Making;
use crate::planted::Bug;
use crate::resume::object_range;
use crate::scheduler::Ticket;
use crate::states::{SinkCause, SinkState};
use crate::window::Stand;

/// What a slot of the sink is doing.
pub(super) enum Slot {
    /// Free, not granted.
    Withheld,
    /// A payload may come.
    Granted,
    /// The payload has arrived before its announcement, with so many hashes behind it.
    Arrived { block: BlockId, length: u32, hashes: Vec<Hash> },
    /// It is announced; the payload has not arrived.
    Announced { block: BlockId, length: u32, work: Work },
    /// Storage is at work on it.
    Writing,
}

/// Where a payload is that arrived whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for a thread.
    Queued,
    /// Storage writes it.
    Writing,
    /// Storage has not answered for so long that nobody waits any more.
    Lost,
}

/// A payload that is to be written.
pub(super) struct Write {
    pub slot: SlotId,
    pub work: Work,
    pub stage: Stage,
    /// Of an object: what the scheduler knows it by.
    pub ticket: Option<Ticket>,
    /// Of a bundle: since its members are being made.
    pub making: Option<Making>,
    /// And at which one storage is.
    pub progress: Progress,
    /// As it was seen last, and since when it has been so.
    pub mark: (u32, u64),
    /// That takes long: its thread has a successor, and it keeps nobody from beginning.
    pub relieved: bool,
    /// Members that are made and not written.
    pub parts: Vec<Part>,
    pub length: u32,
    /// How often storage has failed to write it.
    failures: u8,
    /// A sync of its file has failed since it began: whatever storage answers, it may be lost.
    lost: bool,
}

/// What is to be done with a payload. Once it has arrived, all hashes are known.
#[derive(Clone)]
pub(super) enum Work {
    Object { id: EntryId, index: u32, length: u32, hash: Option<Hash> },
    Bundle { members: Vec<Member> },
}

impl Work {
    /// As it was announced, with what followed the payload: those hashes, in order, that the announcement lacks.
    fn with_hashes(mut self, followed: Vec<Hash>) -> Result<Work, Failure> {
        let mut followed = followed.into_iter();
        let mut complete = |hash: &mut Option<Hash>| {
            *hash = hash.or_else(|| followed.next());
            hash.is_some()
        };
        let complete = match &mut self {
            Work::Object { hash, .. } => complete(hash),
            Work::Bundle { members } => members.iter_mut().all(|member| complete(&mut member.hash)),
        };
        if complete && followed.next().is_none() { Ok(self) } else { Err(Failure::new(Code::Protocol)) }
    }
}

impl Sink {
    fn slot(&mut self, slot: SlotId) -> Result<&mut Slot, Failure> {
        self.slots.get_mut(slot.0 as usize).ok_or(Failure::new(Code::LimitExceeded))
    }

    pub(super) fn on_manifest(
        &mut self,
        block: BlockId,
        slot: SlotId,
        epoch: u32,
        length: u32,
        members: Vec<Member>,
    ) -> Result<(), Failure> {
        let mut end = 0;
        for member in &members {
            let held = self.entries.get(member.id).ok_or(Failure::new(Code::Protocol))?;
            let size = held.entry.size();
            let fits = member.offset >= end && u64::from(member.offset) + size <= u64::from(length);
            if held.objects.is_some() || !fits {
                return Err(Failure::new(Code::Protocol));
            }
            end = member.offset + size as u32;
            self.step(member.id, SinkCause::Manifested)?;
        }
        self.on_new_block(block, slot, epoch, length, Work::Bundle { members })
    }

    pub(super) fn on_new_block(
        &mut self,
        block: BlockId,
        slot: SlotId,
        epoch: u32,
        length: u32,
        work: Work,
    ) -> Result<(), Failure> {
        if length > self.object_bytes || epoch > self.epoch {
            return Err(Failure::new(Code::Protocol));
        }
        let lost = epoch < self.epoch;
        let awaited = self.config.planted.has(Bug::OldAnnouncementAwaited);
        let forgets = self.config.planted.has(Bug::FollowingHashForgotten);
        match self.slot(slot)? {
            Slot::Granted if lost && !awaited => {
                // Where a payload is on its way into the slot all the same, nobody may be allowed to send another one there.
                self.actions.push_back(Action::TakeBack(slot));
                self.on_lost(slot, work)
            }
            state @ Slot::Granted => {
                *state = Slot::Announced { block, length, work };
                Ok(())
            }
            Slot::Arrived { block: arrived, length: arrived_length, hashes }
                if *arrived == block && *arrived_length == length =>
            {
                let hashes = if forgets { Vec::new() } else { core::mem::take(hashes) };
                let work = work.with_hashes(hashes)?;
                self.write(block, slot, length, work)
            }
            Slot::Arrived { .. } => {
                self.distrust();
                self.on_lost(slot, work)
            }
            _ => Err(Failure::new(Code::Protocol)),
        }
    }

    fn distrust(&mut self) {
        if !self.config.planted.has(Bug::MismatchAwaited) {
            self.actions.push_back(Action::Distrust);
        }
    }

    /// A payload of an older connection is none: its slot may have been granted anew since.
    pub(super) fn on_payload(
        &mut self,
        epoch: u32,
        block: BlockId,
        slot: SlotId,
        (length, mut hashes): (u32, Vec<Hash>),
    ) -> Result<(), Failure> {
        if self.config.planted.has(Bug::FollowingHashesSwapped) {
            hashes.reverse();
        }
        let old = epoch != self.epoch;
        if old && !self.config.planted.has(Bug::OldEpochAccepted) {
            return Ok(());
        }
        self.has_travelled(slot);
        match self.slot(slot)? {
            state @ Slot::Granted => {
                *state = Slot::Arrived { block, length, hashes };
                Ok(())
            }
            Slot::Announced { block: announced, length: announced_length, work }
                if *announced == block && *announced_length == length || old =>
            {
                let (block, work) = (*announced, work.clone().with_hashes(hashes)?);
                self.write(block, slot, length, work)
            }
            _ if old => Ok(()),
            // What was announced has been lost, as the end of the connection will tell.
            Slot::Announced { .. } => {
                self.distrust();
                Ok(())
            }
            _ => Err(Failure::new(Code::Protocol)),
        }
    }

    /// What was announced and has not arrived will not: it is asked for again, and its slot is free.
    pub(super) fn on_link_down(&mut self) {
        if self.config.planted.has(Bug::LostPayloadForgotten) {
            return;
        }
        for index in 0..self.slots.len() {
            let slot = SlotId(index as u32);
            match &self.slots[index] {
                Slot::Announced { work, .. } => {
                    let work = work.clone();
                    self.actions.push_back(Action::Revoke(slot));
                    // Only fails for entries in impossible states, which the next event would show as well.
                    let _ = self.on_lost(slot, work);
                }
                // What had come of a payload in part has used it up.
                Slot::Granted if !self.config.planted.has(Bug::GrantsUsedInPart) => {
                    self.actions.push_back(Action::Grant(slot));
                }
                _ => {}
            }
        }
    }

    fn on_lost(&mut self, slot: SlotId, work: Work) -> Result<(), Failure> {
        match work {
            Work::Object { id, index, .. } => self.ask_again(id, Some(index), RepairReason::Lost),
            Work::Bundle { members } => {
                for member in members {
                    self.step(member.id, SinkCause::AskedAgain)?;
                    self.ask_again(member.id, None, RepairReason::Lost);
                }
            }
        }
        self.free(slot);
        Ok(())
    }

    pub(super) fn ask_again(&mut self, id: EntryId, index: Option<u32>, reason: RepairReason) {
        self.repairs.push(Repair { id, index, reason });
    }

    pub(super) fn free(&mut self, slot: SlotId) {
        self.slots[slot.0 as usize] = Slot::Withheld;
        self.withheld.push(slot);
    }

    /// Grants what is free, unless too much waits to become durable or the session is ending.
    pub(super) fn grant_withheld(&mut self) {
        let full = self.committer.is_full() && !self.config.planted.has(Bug::GroupUnbounded);
        if !self.connected || full || self.draining.is_some() {
            return;
        }
        // What hangs has its slot for as long as it does.
        let usable = self.slots_usable() + self.lost;
        while self.slots.len() - self.withheld.len() < usable
            && let Some(slot) = self.withheld.pop()
        {
            self.slots[slot.0 as usize] = Slot::Granted;
            self.granted_nanos[slot.0 as usize] = self.clock.now();
            self.granted.push(slot);
        }
        let used = self.slots.len() - self.withheld.len();
        if used > self.slots_used {
            self.slots_used = used;
            if used > self.config.slots_near as usize {
                self.scheduler.set_slots(used as u32, self.clock.now());
            }
        }
    }

    /// Is there a payload that is announced and has not come?
    pub fn awaits_payload(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Announced { .. }))
    }

    /// Slots that may be in use at a time.
    ///
    /// A slot that is granted again tells the source that what it sent into it burdens its target no more. So where the source
    /// knows targets, each slot that was ever granted is granted again: one that is withheld would burden its target for ever.
    /// Since the slot freed last is used first, no others were ever granted than as many as were in use at a time.
    fn slots_usable(&self) -> usize {
        let mut usable = self.window.slots();
        if self.told_targets && !self.config.planted.has(Bug::SlotsTakenBack) {
            usable = usable.max(self.slots_used);
        }
        if self.hands.has_several_targets() {
            // Which of them slows down next is not known from what has passed.
            usable = usable.max(self.slots.len().min(self.config.slots_near as usize));
        }
        usable
    }

    /// How slots stand between the network and storage.
    pub(super) fn stand(&self) -> Stand {
        match self.writes.len() - self.lost {
            0 => Stand::Empty,
            written if written >= self.slots_usable() => Stand::Full,
            _ => Stand::Between,
        }
    }

    /// A payload came into this slot.
    fn has_travelled(&mut self, slot: SlotId) {
        let now_nanos = self.clock.now();
        let granted_nanos = self.granted_nanos.get(slot.0 as usize).copied().unwrap_or(now_nanos);
        self.window.travelled(now_nanos - granted_nanos, now_nanos);
    }

    /// The payload is whole: it is to be written.
    fn write(&mut self, block: BlockId, slot: SlotId, length: u32, work: Work) -> Result<(), Failure> {
        if let Work::Object { id, index, .. } = &work {
            let Some(held) = self.entries.get_mut(*id).filter(|held| held.state == SinkState::Open) else {
                // Dropped while it was on its way.
                self.free(slot);
                return Ok(());
            };
            let objects = held.objects.as_deref_mut().ok_or(Failure::new(Code::Protocol))?;
            let (_, expected) = object_range(held.entry.size(), objects.object_bytes, *index);
            if u64::from(*index) >= objects.durable.total() || length != expected {
                return Err(Failure::new(Code::Protocol));
            }
            objects.writing += 1;
        }
        self.queue_write(block, &work);
        let write = Write {
            slot,
            work,
            stage: Stage::Queued,
            ticket: None,
            making: None,
            progress: Progress::default(),
            mark: (0, 0),
            relieved: false,
            parts: Vec::new(),
            length,
            failures: 0,
            lost: false,
        };
        if self.writes.insert(block, write).is_some() {
            return Err(Failure::new(Code::Protocol));
        }
        self.slots[slot.0 as usize] = Slot::Writing;
        self.stats.objects_sent = self.stats.objects_sent.saturating_add(1);
        self.stats.bytes_sent = self.stats.bytes_sent.saturating_add(u64::from(length));
        if self.config.planted.has(Bug::GrantWhileWriting) {
            self.free(slot);
        }
        Ok(())
    }

    /// A thread takes it on: to storage, which checks its hash before it writes.
    pub(super) fn start_write(
        &mut self,
        block: BlockId,
        ticket: Option<Ticket>,
        gently: bool,
    ) -> Result<(), Failure> {
        let write = self.writes.get_mut(&block).ok_or(Failure::new(Code::Internal))?;
        (write.stage, write.ticket) = (Stage::Writing, ticket);
        let (slot, length) = (write.slot, write.length);
        self.writing += 1;
        let op = match &write.work {
            Work::Object { id, index, hash, .. } => {
                let (id, index) = (*id, *index);
                let hash = hash.ok_or(Failure::new(Code::Internal))?;
                let open = |held: &&super::Held| held.state == SinkState::Open;
                let Some(held) = self.entries.get(id).filter(open) else {
                    // Dropped while it waited.
                    self.cancel_write(block);
                    self.written(block)?;
                    return self.no_longer_written(id).map(drop);
                };
                let (entry, token) = (held.entry.clone(), held.token);
                let objects = self.entries.get_mut(id).and_then(|held| held.objects.as_deref_mut());
                let objects = objects.ok_or(Failure::new(Code::Internal))?;
                objects.at_work += 1;
                let object_bytes = objects.object_bytes;
                let (offset, length) = object_range(entry.size(), object_bytes, index);
                SinkOp::WriteObject {
                    block,
                    entry,
                    token,
                    object_bytes,
                    offset,
                    length,
                    slot,
                    hash,
                    single: objects.durable.total() == 1,
                    gently,
                }
            }
            Work::Bundle { members } => {
                let members = members.clone();
                let writes = self.member_writes(&members)?;
                let making = self.creates.begin(self.clock.now());
                let progress = Progress::default();
                let mark = (progress.mark(), self.clock.now());
                if let Some(write) = self.writes.get_mut(&block) {
                    write.mark = mark;
                    (write.making, write.progress, write.relieved) = (Some(making), progress.clone(), false);
                }
                let step = MembersStep::Make;
                SinkOp::WriteMembers { block, step, slot, length, members: writes, progress }
            }
        };
        self.actions.push_back(Action::Sink(op));
        Ok(())
    }

    pub(super) fn written(&mut self, block: BlockId) -> Result<Write, Failure> {
        let write = self.writes.remove(&block).ok_or(Failure::new(Code::Internal))?;
        if !self.config.planted.has(Bug::GrantWhileWriting) {
            self.free(write.slot);
        }
        Ok(write)
    }

    /// A sync of this file has failed: what is being written into it now may be lost with the rest.
    pub(super) fn lose_writes(&mut self, file: EntryId) {
        for write in self.writes.values_mut() {
            write.lost |=
                write.stage != Stage::Queued && matches!(write.work, Work::Object { id, .. } if id == file);
        }
    }

    pub(super) fn on_written(
        &mut self,
        block: BlockId,
        result: Result<(), Failure>,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        let awaited = self.has_written(block, result.is_ok());
        if awaited && result.is_err_and(|failure| failure.code == Code::SinkWrite) && self.write_again(block)
        {
            return Ok(());
        }
        let write = self.written(block)?;
        let Work::Object { id, index, length, .. } = write.work else {
            return Err(Failure::new(Code::Internal));
        };
        if !awaited {
            self.lost -= 1;
            self.count_lost(id, -1);
            self.hangs_no_more(id);
            return Ok(());
        }
        if !self.no_longer_written(id)? {
            return Ok(());
        }
        let object = WrittenObject { id, index, bytes: length };
        match result {
            Ok(()) if !write.lost => self.add_object(object, now_nanos),
            Ok(()) => self.ask_again(id, Some(index), RepairReason::Sync),
            Err(failure) if failure.code == Code::SinkSync => {
                self.ask_again(id, Some(index), RepairReason::Sync);
            }
            Err(failure) if failure.code == Code::HashMismatch => {
                if self.config.planted.has(Bug::HashMismatchWritten) {
                    self.add_object(object, now_nanos);
                } else {
                    self.ask_again(id, Some(index), RepairReason::Hash);
                }
            }
            Err(failure) => {
                let target = self.target_of_object(id, index);
                self.give_up_on(target, id, SinkCause::WriteFailed, failure)?;
            }
        }
        Ok(())
    }

    /// Storage may do better the next time. It is in its slot still.
    fn write_again(&mut self, block: BlockId) -> bool {
        let Some(write) = self.writes.get_mut(&block) else { return false };
        write.failures += 1;
        if write.failures >= ATTEMPTS_MAX || write.lost {
            return false;
        }
        (write.stage, write.ticket) = (Stage::Queued, None);
        let work = write.work.clone();
        self.queue_write(block, &work);
        true
    }

    fn add_object(&mut self, object: WrittenObject, now_nanos: u64) {
        self.has_room(self.target_of_object(object.id, object.index));
        if self.config.planted.has(Bug::AckBeforeSync) {
            self.durable.push((object.id, object.index));
        }
        if self.config.planted.has(Bug::LateWriteInGroup) && self.committer.add_to_running(object) {
            return;
        }
        let lane = self.lane_of(object.id, object.index);
        self.committer.add_object(object, lane, now_nanos);
        self.release_if_whole(object.id, now_nanos);
    }

    /// Nothing is on its way into storage that could join a group.
    pub(super) fn is_quiet(&self) -> bool {
        self.writes.len() == self.lost
    }
}
