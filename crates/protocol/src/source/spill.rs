//! Objects that were read before the sink could take them: kept in the spill, a file on fast storage of the source's host.
//!
//! The way of such an object: it is picked whatever its gate (`choose`), read into a slot as ever, and written from there
//! into an extent of the spill (*put away*); the slot is free again. The scheduler has it anew, as a request of the spill
//! with the same gate. When that is picked it is read back, its hash is compared with the one it was read with, and it
//! goes on as if it came from its file. (Where nothing is hashed storage tells a mark of what it puts away, and compares
//! that itself.)
//!
//! What must stay true: an extent belongs to one object from before it is written until the sink grants the slot that it
//! was sent into (a clear stream sends from the extent itself, and the kernel until then sends again what was lost). An
//! object in the spill counts as one that nobody has read yet; it goes when its file ends. The spill is believed nothing:
//! what cannot be written to it, or does not come back as it was, is read again from its file, and that part of the spill
//! is not used any more.

use alloc::collections::VecDeque;

use hashbrown::HashMap;
use haul_model::limits::{SPILLED_OBJECTS_MAX, TARGETS_MAX};
use haul_model::op::SourceOp;
use haul_model::report::Fact;
use haul_model::{BlockId, Code, EntryId, Failure, Hash, SlotId};
use haul_wire::Message;

use super::choose::Wanted;
use super::{Block, Content, Source, Stage};
use crate::event::Action;
use crate::extents::{Extent, Extents};
use crate::planted::Bug;
use crate::resume::object_range;
use crate::scheduler::{Class, Request, TargetId, Ticket};
use crate::states::SourceState;

/// The scheduler knows the spill by a number that no target has.
pub(super) const SPILL: TargetId = TargetId(TARGETS_MAX as u32);
/// One part of so many of the slots is left to objects that go into the spill: all others may hold what waits for the sink.
const SLOTS_PART: u32 = 4;
/// As many of the threads at most write to it: where it is slow, the others still read.
const HANDS_PART: u32 = 2;

const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

/// An object in the spill.
pub(super) struct Kept {
    pub extent: Extent,
    pub hash: Hash,
    /// By which storage knows it where nothing is hashed.
    mark: Option<Hash>,
}

/// What the master knows of the spill.
pub(super) struct Spill {
    extents: Extents,
    /// Blocks that are being read ahead or put away.
    pub ahead: u32,
    /// Read, and not being written yet.
    waiting: VecDeque<BlockId>,
    pub writing: u32,
    /// Requests of the spill that the scheduler has.
    pub queued: u64,
    /// What was sent from the spill into a slot of the sink that is not granted again yet.
    in_credit: HashMap<SlotId, Extent>,
    told: bool,
}

impl Spill {
    pub fn new(room: u64, object_bytes: u32) -> Spill {
        Spill {
            extents: Extents::new(room, object_bytes),
            ahead: 0,
            waiting: VecDeque::new(),
            writing: 0,
            queued: 0,
            in_credit: HashMap::new(),
            told: false,
        }
    }

    fn has_room(&self) -> bool {
        self.extents.has_room() && self.extents.count() < SPILLED_OBJECTS_MAX
    }

    pub fn give_back(&mut self, extent: Extent) {
        self.extents.give_back(extent);
    }

    /// It is being sent from there.
    pub fn lend(&mut self, slot: SlotId, extent: Extent) {
        if let Some(before) = self.in_credit.insert(slot, extent) {
            self.extents.give_back(before);
        }
    }

    /// The sink has what was sent into this slot, or will not have it.
    pub fn granted(&mut self, slot: SlotId) {
        if let Some(extent) = self.in_credit.remove(&slot) {
            self.extents.give_back(extent);
        }
    }
}

impl Source {
    /// Objects in the spill that wait to be sent.
    pub fn spilled(&self) -> usize {
        let under_way = self.blocks.values().filter(|block| block.extent.is_some()).count();
        self.spill.extents.count() - self.spill.in_credit.len() - under_way
    }

    pub(super) fn slots_for_spill(&self) -> u32 {
        let usable = self.config.slots.saturating_sub(self.lost);
        if usable < 2 || !self.spill.has_room() { 0 } else { (usable / SLOTS_PART).max(1) }
    }

    /// A free slot may go to what is sent straight on. Not the last few: in those others can be read ahead.
    pub(super) fn may_send_on(&self) -> bool {
        self.free.len() as u32 + 1 + self.spill.ahead > self.slots_for_spill()
    }

    /// Reads something that the sink cannot take yet.
    pub(super) fn start_ahead(&mut self, local: SlotId) -> bool {
        self.spill.ahead < self.slots_for_spill() && self.start_next(local, true)
    }

    /// It is being read to be put away: its place is taken now.
    pub(super) fn will_put_away(&mut self, block: BlockId) {
        let Some(block) = self.blocks.get_mut(&block) else { return };
        if let Some(extent) = self.spill.extents.take(block.length) {
            (block.extent, block.ahead) = (Some(extent), true);
            self.spill.ahead += 1;
        }
    }

    /// A request of the spill was picked: is it still to be sent?
    pub(super) fn is_back_wanted(&mut self, id: EntryId, index: u32) -> bool {
        self.spill.queued -= 1;
        self.active_objects(id).is_some_and(|objects| objects.spilled.contains_key(&index))
    }

    /// The way back to a slot.
    pub(super) fn start_unspill(&mut self, wanted: (EntryId, u32), ticket: Ticket, local: SlotId) -> bool {
        let (id, index) = wanted;
        let Some(held) = self.entries.get_mut(id) else { return false };
        let size = held.entry.size();
        let Some(objects) = held.objects.as_deref_mut() else { return false };
        let Some(Kept { extent, hash, mark }) = objects.spilled.remove(&index) else { return false };
        let (offset, length) = object_range(size, objects.object_bytes, index);
        let (single, at, slot) = (objects.durable.len() == 1, extent.at(), local);
        let block = self.new_block(local, length, Content::Object { id, index, hash: Some(hash) }, ticket);
        if self.config.planted.has(Bug::SpillReusedWhileRead) {
            self.spill.give_back(extent);
        } else if let Some(block) = self.blocks.get_mut(&block) {
            block.extent = Some(extent);
        }
        let op = SourceOp::Unspill { block, slot, at, offset, length, single, mark };
        self.actions.push_back(Action::Source(op));
        true
    }

    /// It was read ahead.
    pub(super) fn put_away(&mut self, block: BlockId) {
        if let Some(it) = self.blocks.get_mut(&block) {
            it.stage = Stage::PuttingAway;
            self.spill.waiting.push_back(block);
        }
    }

    /// Gives what was read ahead to threads.
    pub(super) fn start_spills(&mut self) {
        let writing_max = (self.hands.at_a_time() / HANDS_PART).max(1);
        while self.spill.writing < writing_max
            && let Some(block) = self.spill.waiting.pop_front()
        {
            self.start_spill(block);
        }
    }

    fn start_spill(&mut self, id: BlockId) {
        let Some(block) = self.blocks.get(&id) else { return };
        let (Content::Object { id: file, index, .. }, Some(extent)) = (&block.content, &block.extent) else {
            return;
        };
        let (file, index, slot, length, at) = (*file, *index, block.local, block.length, extent.at());
        let item = Wanted::PutAway { id: file, index };
        let request = Request { item, target: SPILL, gate: None, class: Class::Urgent, bytes: length };
        let mut picked = None;
        if self.spill.extents.may_use(extent) && self.is_active(file) {
            // The number of the spill is below the scheduler's bound. Nothing else of this end is urgent.
            let _ = self.scheduler.push(request, self.clock.now());
            picked = self.scheduler.pick_urgent(self.clock.now());
        }
        let Some(picked) = picked else {
            self.free_block(id);
            return self.read_later(file, index);
        };
        if let Some(block) = self.blocks.get_mut(&id) {
            block.ticket = picked.ticket;
        }
        (self.reading, self.spill.writing) = (self.reading + 1, self.spill.writing + 1);
        self.actions.push_back(Action::Source(SourceOp::Spill { block: id, slot, at, length }));
    }

    /// Storage has put it away, or could not.
    pub(super) fn on_spilled(
        &mut self,
        id: BlockId,
        result: Result<Option<Hash>, Failure>,
    ) -> Result<(), Failure> {
        let block = self.blocks.get(&id).ok_or(Failure::new(Code::Internal))?;
        let (Content::Object { id: file, index, hash: Some(hash) }, Some(extent)) =
            (&block.content, &block.extent)
        else {
            return Err(Code::Internal.into());
        };
        let (file, index, hash, length, at) = (*file, *index, *hash, block.length, extent.at());
        let ticket = block.ticket;
        if !self.has_read(ticket, result.is_ok()) {
            self.free_block(id);
            return Ok(());
        }
        self.spill.writing -= 1;
        let mark = match result {
            Ok(mark) => mark,
            Err(failure) => {
                self.free_block(id);
                self.spill_failed(failure, at);
                if !self.config.planted.has(Bug::SpillFailureLoses) {
                    self.read_later(file, index);
                }
                return Ok(());
            }
        };
        if !self.is_active(file) {
            self.free_block(id);
            return Ok(());
        }
        let Some(Block { local, extent: Some(extent), .. }) = self.forget_block(id) else {
            return Err(Code::Internal.into());
        };
        self.free.push(local);
        self.stats.bytes_spilled += u64::from(length);
        let Some(objects) = self.active_objects(file) else { return Ok(()) };
        let there = objects.there.target(index);
        objects.spilled.insert(index, Kept { extent, hash, mark });
        if self.config.planted.has(Bug::SpilledCountsAsSent) {
            return Ok(());
        }
        let request = Request {
            item: Wanted::Back { id: file, index },
            target: SPILL,
            gate: (there != 0).then_some(TargetId(u32::from(there))),
            class: Class::Aside,
            bytes: length,
        };
        self.spill.queued += 1;
        let _ = self.scheduler.push(request, self.clock.now());
        Ok(())
    }

    /// What came back from the spill: is it what was put there?
    pub(super) fn on_unspilled(&mut self, id: BlockId, result: Result<Option<Hash>, Failure>) {
        let Some(block) = self.blocks.get_mut(&id) else { return };
        let Content::Object { id: file, index, hash } = &block.content else { return };
        let (file, index) = (*file, *index);
        let result = match result {
            Ok(read) if read != *hash && !self.config.planted.has(Bug::SpillBelieved) => {
                Err(Code::SpillFailed.into())
            }
            result => result,
        };
        if !self.entries.get(file).is_some_and(|held| held.state == SourceState::Active) {
            self.drop_block(id);
        } else if let Err(failure) = result {
            self.drop_block(id);
            self.spill_failed(failure, 0);
            self.read_later(file, index);
        } else {
            block.stage = Stage::Ready;
            self.ready.push_back(id);
        }
    }

    /// It will come from its file, once more.
    pub(super) fn read_later(&mut self, id: EntryId, index: u32) {
        if let Some(objects) = self.active_objects(id) {
            objects.again.push(index);
            self.show(id);
        }
    }

    /// A request of the spill that will not be served: its device does not answer.
    pub(super) fn give_up_spilled(&mut self, id: EntryId, index: u32) {
        let kept = self.active_objects(id).and_then(|objects| objects.spilled.remove(&index));
        if let Some(Kept { extent, .. }) = kept {
            self.spill.give_back(extent);
            self.spill_failed(Failure::os(Code::SpillFailed, super::choose::TIMED_OUT), 0);
            self.read_later(id, index);
        }
    }

    /// The spill is not used from `at` on, nor at all if it failed for anything but a lack of space. The user hears it once.
    pub(super) fn spill_failed(&mut self, failure: Failure, at: u64) {
        let full = matches!(failure.errno, ENOSPC | EDQUOT);
        self.spill.extents.limit(if full { at } else { 0 });
        if !core::mem::replace(&mut self.spill.told, true) {
            let room = self.spill.extents.room();
            self.actions.push_back(Action::Fact(Fact::SpillFailed { failure, room }));
            self.actions.push_back(Action::Send(Message::Spill { failure, room }));
        }
    }

    /// A file has ended: nothing of it stays in the spill.
    pub(super) fn drop_spilled(&mut self, id: EntryId, spilled: HashMap<u32, Kept>) {
        if !self.config.planted.has(Bug::SpilledOutlivesFile) {
            spilled.into_values().for_each(|kept| self.spill.give_back(kept.extent));
        }
        let blocks = &self.blocks;
        let of = |block: &BlockId| matches!(blocks.get(block), Some(Block { content: Content::Object { id: of, .. }, .. }) if *of == id);
        let (gone, stay) = self.spill.waiting.drain(..).partition(of);
        self.spill.waiting = stay;
        let gone: VecDeque<BlockId> = gone;
        for block in gone {
            self.free_block(block);
        }
    }
}
