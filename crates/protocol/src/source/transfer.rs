//! Objects and bundles: from the queue into a slot, from the slot into a credit.

use alloc::sync::Arc;
use alloc::vec::Vec;

use haul_model::op::{MemberRead, Progress, SourceOp};
use haul_model::{BlockId, Code, Entry, EntryId, Failure, Hash, SlotId};
use haul_wire::{Member, Message};

use super::choose::Wanted;
use super::{Block, Content, Source, Stage};
use crate::event::{Action, LogOp};
use crate::planted::Bug;
use crate::resume::object_range;
use crate::scheduler::{Picked, Ticket};
use crate::states::{SourceCause, SourceState};
use crate::window::Stand;

impl Source {
    /// Fills free slots.
    pub(super) fn start_reads(&mut self) {
        while self.reading < self.hands.at_a_time()
            && self.may_use_another_slot()
            && let Some(local) = self.free.pop()
        {
            let started = self.may_send_on() && self.start_next(local, false) || self.start_ahead(local);
            if !started {
                self.free.push(local);
                return;
            }
            self.free_min = self.free_min.min(self.free.len());
        }
    }

    /// Only where all is on one target, here and there, is it known how many are enough. What can go into the spill fills all slots
    /// first.
    fn may_use_another_slot(&self) -> bool {
        let used = self.config.slots as usize - self.free.len();
        let all = self.several_targets || self.hands.has_several_targets() || self.slots_for_spill() > 0;
        all || used < self.window.slots()
    }

    /// How slots stand between storage and the network.
    pub(super) fn stand(&self) -> Stand {
        let used = self.config.slots as usize - self.free.len();
        let to_send = self.blocks.len().saturating_sub((self.reading + self.lost) as usize);
        if to_send == 0 && self.link_up && self.credits.held() > 0 {
            Stand::Empty
        } else if self.reading == 0 && used >= self.window.slots() {
            Stand::Full
        } else {
            Stand::Between
        }
    }

    /// Reads the next one into this slot; `ahead`: to put it away.
    pub(super) fn start_next(&mut self, local: SlotId, ahead: bool) -> bool {
        let Some(Picked { item, ticket, .. }) = self.choose(ahead) else { return false };
        match item {
            Wanted::Object { id, index, again } => {
                let wanted = (id, index, again || ahead);
                let Some(block) = self.start_object(wanted, ticket, local) else {
                    return false;
                };
                if ahead {
                    self.will_put_away(block);
                }
                true
            }
            Wanted::Bundle(number) => self.start_bundle(number, ticket, local),
            Wanted::Back { id, index } => self.start_unspill((id, index), ticket, local),
            // Those have slots already.
            Wanted::PutAway { .. } => false,
        }
    }

    fn start_bundle(&mut self, number: u32, ticket: Ticket, local: SlotId) -> bool {
        let Some(pile) = self.bundles.take(number) else { return false };
        let mut members: Vec<Arc<Entry>> = Vec::new();
        let mut again = false;
        for id in pile.members {
            if self.step(id, SourceCause::Packed).is_ok() {
                let held = &self.entries[id];
                again |= held.attempts > 0;
                members.push(held.entry.clone());
            }
        }
        let asked = members.iter().map(|entry| entry.id).collect();
        let progress = Progress::default();
        let mark = progress.mark();
        let content = Content::Bundle { asked, members: Vec::new(), progress: progress.clone(), mark };
        let block = self.new_block(local, 0, content, ticket);
        let on_the_way = self.hashes_on_the_way && !again && !self.hands.has_several_targets();
        let op = SourceOp::ReadMembers { block, slot: local, members, again, on_the_way, progress };
        self.actions.push_back(Action::Source(op));
        true
    }

    fn start_object(
        &mut self,
        wanted: (EntryId, u32, bool),
        ticket: Ticket,
        local: SlotId,
    ) -> Option<BlockId> {
        let (id, index, again) = wanted;
        let held = self.entries.get(id)?;
        let objects = held.objects.as_deref()?;
        let entry = held.entry.clone();
        let single = objects.durable.len() == 1;
        let (offset, length) = object_range(entry.size(), objects.object_bytes, index);
        let content = Content::Object { id, index, hash: None };
        let block = self.new_block(local, length, content, ticket);
        let slot = local;
        let gently = self.hands.has_several_targets();
        // Of a file that is one object FILE_CLOSE tells the hash.
        let on_the_way = self.hashes_on_the_way && !single && !again && !gently;
        let op =
            SourceOp::ReadObject { block, entry, offset, length, slot, single, again, on_the_way, gently };
        self.actions.push_back(Action::Source(op));
        Some(block)
    }

    pub(super) fn new_block(
        &mut self,
        local: SlotId,
        length: u32,
        content: Content,
        ticket: Ticket,
    ) -> BlockId {
        self.reading += 1;
        self.next_block += 1;
        let block = BlockId(self.next_block);
        let (stage, since_nanos) = (Stage::Reading, self.clock.now());
        let (hangs, extent, ahead) = (None, None, false);
        let new = Block { local, length, content, stage, ticket, hangs, since_nanos, extent, ahead };
        self.blocks.insert(block, new);
        block
    }

    /// It is no block any more. Its slot and its place in the spill are the caller's.
    pub(super) fn forget_block(&mut self, block: BlockId) -> Option<Block> {
        let block = self.blocks.remove(&block)?;
        self.spill.ahead -= u32::from(block.ahead);
        self.lost -= u32::from(block.stage == Stage::Lost);
        Some(block)
    }

    pub(super) fn free_block(&mut self, block: BlockId) -> Option<Ticket> {
        let block = self.forget_block(block)?;
        self.free.push(block.local);
        if let Some(extent) = block.extent {
            self.spill.give_back(extent);
        }
        Some(block.ticket)
    }

    /// It will not be sent: it burdens nothing at the sink.
    pub(super) fn drop_block(&mut self, block: BlockId) {
        if let Some(ticket) = self.free_block(block) {
            self.scheduler.gate_done(ticket);
        }
    }

    pub(super) fn on_object_read(
        &mut self,
        id: BlockId,
        result: Result<Option<Hash>, Failure>,
    ) -> Result<(), Failure> {
        let block = self.blocks.get_mut(&id).ok_or(Failure::new(Code::Internal))?;
        let Content::Object { id: file, index, .. } = &block.content else {
            return Err(Failure::new(Code::Internal));
        };
        let (file, index, ticket, ahead) = (*file, *index, block.ticket, block.ahead);
        let comes_back = block.extent.is_some() && !ahead;
        if !self.has_read(ticket, result.is_ok()) {
            self.free_block(id);
            return Ok(());
        }
        if comes_back {
            self.on_unspilled(id, result);
            self.leave(file);
            return Ok(());
        }
        let block = self.blocks.get_mut(&id).ok_or(Failure::new(Code::Internal))?;
        let Content::Object { hash, .. } = &mut block.content else {
            return Err(Failure::new(Code::Internal));
        };
        let active = self.entries.get(file).is_some_and(|held| held.state == SourceState::Active);
        match result {
            Ok(read) if active && ahead => {
                *hash = read;
                self.put_away(id);
            }
            Ok(read) if active => {
                *hash = read;
                block.stage = Stage::Ready;
                self.ready.push_back(id);
            }
            Ok(_) => self.drop_block(id),
            Err(failure) => {
                self.free_block(id);
                if active {
                    self.on_object_unreadable(file, index, failure)?;
                }
            }
        }
        self.leave(file);
        Ok(())
    }

    pub(super) fn on_members_read(
        &mut self,
        id: BlockId,
        length: u32,
        results: Vec<Result<MemberRead, Failure>>,
    ) -> Result<(), Failure> {
        let ticket = self.blocks.get(&id).ok_or(Failure::new(Code::Internal))?.ticket;
        let done = results.iter().any(Result::is_ok);
        if !self.has_read(ticket, done) {
            // Its members are in other bundles by now.
            self.free_block(id);
            return Ok(());
        }
        let block = self.blocks.get_mut(&id).ok_or(Failure::new(Code::Internal))?;
        let asked = block.content.take_asked();
        let Content::Bundle { members, .. } = &mut block.content else {
            return Err(Failure::new(Code::Internal));
        };
        let mut failed = Vec::new();
        for (id, result) in asked.into_iter().zip(results) {
            match result {
                Ok(MemberRead { offset, hash }) => members.push(Member { id, offset, hash }),
                Err(failure) => failed.push((id, failure)),
            }
        }
        block.length = length;
        block.stage = Stage::Ready;
        if members.is_empty() {
            self.free_block(id);
        } else {
            self.ready.push_back(id)
        }
        failed.into_iter().try_for_each(|(id, failure)| self.on_unreadable(id, failure))
    }

    /// Sends what was read, as far as the credits go. True if something need not be sent any more.
    pub(super) fn send_ready(&mut self) -> bool {
        let mut any_dropped = false;
        while self.link_up
            && let Some(id) = self.ready.front().copied()
        {
            if !self.still_wanted(id) {
                self.ready.pop_front();
                self.drop_block(id);
                any_dropped = true;
                continue;
            }
            let twice = self.config.planted.has(Bug::CreditUsedTwice) && self.credits.held() == 1;
            let slot = if twice { self.credits.peek() } else { self.credits.take() };
            let Some(slot) = slot else { break };
            self.ready.pop_front();
            self.send_block(id, slot);
        }
        any_dropped
    }

    /// A file that was dropped while its object waited is not sent.
    fn still_wanted(&self, block: BlockId) -> bool {
        match self.blocks.get(&block).map(|block| &block.content) {
            Some(Content::Object { id, .. }) => {
                self.entries.get(*id).is_some_and(|held| held.state == SourceState::Active)
            }
            Some(Content::Bundle { .. }) => true,
            None => false,
        }
    }

    fn send_block(&mut self, id: BlockId, slot: SlotId) {
        let (epoch, now_nanos) = (self.epoch, self.clock.now());
        let Some(block) = self.blocks.get_mut(&id) else { return };
        (block.stage, block.since_nanos) = (Stage::Sending, now_nanos);
        let (local, length) = (block.local, block.length);
        self.in_credit.insert(slot, block.ticket);
        if !self.config.planted.has(Bug::SpillReusedWhileSent)
            && let Some(extent) = block.extent.take()
        {
            self.spill.lend(slot, extent);
        }
        let mut sent = None;
        let announcement = match &mut block.content {
            Content::Object { id: file, index, hash } => {
                sent = Some((*file, *index, *hash));
                Message::NewBlock { block: id, slot, epoch, id: *file, index: *index, length, hash: *hash }
            }
            Content::Bundle { members, .. } => {
                let is_lent = members.iter().any(|member| member.hash == Some(Hash::LENT));
                let bundle = is_lent.then(|| self.lent.begins(members.len()));
                for member in &*members {
                    if let Some(held) = self.entries.get_mut(member.id) {
                        held.sent = true;
                        held.lent = bundle.unwrap_or(held.lent);
                    }
                }
                Message::Manifest { block: id, slot, epoch, length, members: core::mem::take(members) }
            }
        };
        self.stats.objects_sent += 1;
        self.stats.bytes_sent += u64::from(length);
        self.actions.push_back(Action::Send(announcement));
        self.actions.push_back(Action::Payload { epoch, block: id, slot, local, length });
        if let Some((file, index, hash)) = sent {
            self.after_object_sent(file, index, hash);
        }
    }

    fn after_object_sent(&mut self, file: EntryId, index: u32, hash: Option<Hash>) {
        if self.config.planted.has(Bug::LogBeforeSync) {
            self.actions.push_back(Action::Log(LogOp::Record { id: file, index }));
        }
        let early = self.config.planted.has(Bug::CloseBeforeDurable);
        let Some(objects) = self.entries.get_mut(file).and_then(|held| held.objects.as_deref_mut()) else {
            return;
        };
        objects.sent.insert(index);
        objects.lent |= hash == Some(Hash::LENT);
        if objects.durable.len() == 1 {
            objects.root = hash;
        }
        if early {
            objects.durable.set(u64::from(index));
            if objects.durable.is_full() {
                let _ = self.confirm(file);
            }
        }
    }

    pub(super) fn on_sent(&mut self, id: BlockId) {
        if let Some(block) = self.blocks.get(&id) {
            let now_nanos = self.clock.now();
            self.window.travelled(now_nanos - block.since_nanos, now_nanos);
        }
        self.free_block(id);
    }
}
