//! Which payload is written next: the scheduler knows which target each one burdens.

use alloc::vec::Vec;

use haul_model::{BlockId, Code, EntryId, Failure, Target};
use haul_wire::RepairReason;

use super::Sink;
use super::receive::{Stage, Work};
use crate::committer::Lane;
use crate::event::Action;
use crate::planted::Bug;
use crate::scheduler::{Class, Finished, Pace, Request, TargetId, Ticket};
use crate::states::SinkState;

/// What the scheduler has.
#[derive(Clone, Copy)]
pub(super) enum ToWrite {
    Object(BlockId),
    /// Members of a bundle that were made on this target.
    Members(BlockId, Target),
}

impl Sink {
    /// A payload waits for a thread. Where the members of a bundle will lie nobody knows before they are made.
    pub(super) fn queue_write(&mut self, block: BlockId, work: &Work) {
        match work {
            Work::Bundle { .. } => self.bundles.push_back(block),
            Work::Object { id, index, length, .. } => {
                let target = self.target_of(*id, *index);
                self.push(ToWrite::Object(block), target, Class::Object, *length);
            }
        }
    }

    pub(super) fn push(&mut self, item: ToWrite, target: Target, class: Class, bytes: u32) {
        self.meet(target);
        let target = TargetId(u32::from(target));
        let gate = (target.0 > 0).then_some(target);
        let request = Request { item, target, gate, class, bytes };
        // Numbers of targets are below the scheduler's bound; see `haul_model::limits`.
        let _ = self.scheduler.push(request, self.clock.now());
    }

    /// Something is on this target.
    pub(super) fn meet(&mut self, target: Target) {
        if self.hands.has_met(target) {
            return;
        }
        if target != 0 {
            self.told_targets = true;
            // Nothing holds it back; see `hold_back`.
            let _ = self.scheduler.set_allowance(TargetId(u32::from(target)), u32::MAX);
        }
        if let Some(hands) = self.hands.meet(target) {
            self.scheduler.set_threads(hands, self.clock.now());
            self.actions.push_back(Action::Hands(hands));
        }
        if self.hands.has_several_targets() {
            self.errands.watch();
            // Where one call makes everything durable, it does so on all targets at once.
            if self.config.syncs_each {
                self.committer.set_targets(self.hands.targets());
            }
        }
    }

    /// While too much waits for slow targets nothing more is written to them, and the source is told to send them hardly
    /// anything. So they never fill the window, or the slots.
    fn hold_back(&mut self) {
        if self.committer.slow_is_full() {
            // Every event comes by here, and there may be thousands of targets.
            let state = Some((self.scheduler.turns(), self.lag_turns, self.hands.targets()));
            if self.held_back_for == state {
                return;
            }
            self.held_back_for = state;
            let slow = |target: &Target| self.lane_of_target(*target) == Lane::Slow;
            let slow: Vec<Target> = self.hands.all_met().filter(slow).collect();
            for target in slow {
                if self.held_back.insert(target) {
                    self.set_held_back(target, 0);
                }
            }
        } else {
            self.held_back_for = None;
            for target in core::mem::take(&mut self.held_back) {
                self.set_held_back(target, u32::MAX);
            }
        }
    }

    fn set_held_back(&mut self, target: Target, units: u32) {
        let number = TargetId(u32::from(target));
        let _ = self.scheduler.set_allowance(number, units);
        let known = self.scheduler.target(number).map(|view| view.allowance);
        self.allowances.extend(known.map(|allowance| (target, allowance)));
    }

    /// If its file system tells.
    pub(super) fn target_of_object(&self, id: EntryId, index: u32) -> Option<Target> {
        Some(self.target_of(id, index)).filter(|target| *target != 0)
    }

    fn target_of(&self, id: EntryId, index: u32) -> Target {
        let objects = self.entries.get(id).and_then(|held| held.objects.as_deref());
        objects.map_or(0, |objects| objects.placement.target(index))
    }

    /// Gives threads that are idle something to do. Bundles and objects take turns, so that neither waits for the other.
    pub(super) fn start_writes(&mut self) -> Result<(), Failure> {
        self.write_off()?;
        self.hold_back();
        while self.writing < self.hands.at_a_time() {
            self.bundle_turn = !self.bundle_turn;
            let bundle = if self.bundle_turn { self.next_bundle() } else { None };
            if let Some(block) = bundle {
                self.start_write(block, None, false)?;
                continue;
            }
            let Some(picked) = self.scheduler.pick(self.clock.now()) else {
                let Some(block) = self.next_bundle() else { break };
                self.start_write(block, None, false)?;
                continue;
            };
            let gently = picked.pace == Pace::Gentle;
            match picked.item {
                ToWrite::Object(block) if self.is_set_aside(block, picked.ticket) => {}
                ToWrite::Object(block) => self.start_write(block, Some(picked.ticket), gently)?,
                ToWrite::Members(block, target) => self.start_fill(block, target, picked.ticket, gently)?,
            }
        }
        self.give_up_dead()
    }

    /// The bundle whose members are made next, if the metadata server may have more to do.
    fn next_bundle(&mut self) -> Option<BlockId> {
        let unpaced = self.config.planted.has(Bug::CreatesUnpaced);
        if self.creates.allows() || unpaced { self.bundles.pop_front() } else { None }
    }

    /// While its file is being synced an object is not written: on some file systems it would wait for that sync, and its
    /// own target would seem to be slow, or to hang.
    fn is_set_aside(&mut self, block: BlockId, ticket: Ticket) -> bool {
        let file = match self.writes.get(&block).map(|write| &write.work) {
            Some(Work::Object { id, .. }) => *id,
            _ => return false,
        };
        let straggles = self.committer.is_straggling(file);
        let ignored = straggles && self.config.planted.has(Bug::StragglerSyncedAgain);
        if ignored || !straggles && !self.syncing.contains_key(&file) {
            return false;
        }
        self.scheduler.cancel(ticket, self.clock.now());
        self.set_aside.entry(file).or_default().push(block);
        true
    }

    /// That sync has come to its end, one way or the other.
    pub(super) fn take_up_again(&mut self, file: EntryId) {
        for block in self.set_aside.remove(&file).unwrap_or_default() {
            if let Some(work) = self.writes.get(&block).map(|write| write.work.clone()) {
                self.queue_write(block, &work);
                self.more_to_write = true;
            }
        }
    }

    /// Storage has answered. False if nobody waited any more.
    pub(super) fn has_written(&mut self, block: BlockId, done: bool) -> bool {
        let Some(write) = self.writes.get(&block) else { return true };
        let late = write.ticket.is_some_and(|ticket| {
            let finished = self.scheduler.finished(ticket, self.clock.now(), done);
            self.scheduler.gate_done(ticket);
            matches!(finished, Finished::Late { .. })
        });
        if !late {
            self.writing -= 1;
            self.object_leaves_storage(block);
        }
        !late
    }

    fn object_leaves_storage(&mut self, block: BlockId) {
        if let Some(Work::Object { id, .. }) = self.writes.get(&block).map(|write| &write.work) {
            self.leaves_storage(*id);
        }
    }

    /// A write that was chosen is not handed to storage after all.
    pub(super) fn cancel_write(&mut self, block: BlockId) {
        let ticket = self.writes.get(&block).and_then(|write| write.ticket);
        if let Some(ticket) = ticket {
            self.scheduler.cancel(ticket, self.clock.now());
        }
        self.writing -= 1;
    }

    /// Writes that take too long: their threads are replaced, and their objects are asked for again. A file of which a second
    /// one is lost on the same target is named, and says nothing of that target: a write that hangs may keep all others out of
    /// its file. Where everything is on one target there is nothing better to do than to wait for it.
    fn write_off(&mut self) -> Result<(), Failure> {
        self.give_up_making()?;
        if !self.hands.has_several_targets() {
            return Ok(());
        }
        self.renew_parts();
        while let Some(lost) = self.scheduler.expire(self.clock.now()) {
            self.writing -= 1;
            let block = match lost.item {
                ToWrite::Object(block) => block,
                ToWrite::Members(block, target) => {
                    self.lose_part(block, target, lost.ticket, lost.replace)?;
                    continue;
                }
            };
            let Some(Work::Object { id, index, .. }) = self.writes.get(&block).map(|write| &write.work)
            else {
                continue;
            };
            let (id, index) = (*id, *index);
            let known = self.hangs_on(id, lost.target) && !self.config.planted.has(Bug::FileBlamesTarget);
            if known {
                self.scheduler.excuse(lost.ticket, self.clock.now());
            }
            if let Some(write) = self.writes.get_mut(&block) {
                write.stage = Stage::Lost;
            }
            self.lost += 1;
            self.leaves_storage(id);
            self.count_lost(id, 1);
            self.hangs(id);
            if lost.replace {
                self.actions.push_back(Action::Replace(block, None));
            }
            match self.no_longer_written(id)? {
                true if known => self.give_up_waiting(id, Failure::os(Code::SinkWrite, TIMED_OUT))?,
                true => self.ask_again(id, Some(index), RepairReason::Sync),
                false => {}
            }
        }
        self.give_up_dead()
    }

    /// Is a write into this file lost on that target?
    fn hangs_on(&self, id: EntryId, target: TargetId) -> bool {
        self.writes.values().filter(|write| write.stage == Stage::Lost).any(|write| match &write.work {
            Work::Object { id: of, index, .. } => {
                *of == id && u32::from(self.target_of(id, *index)) == target.0
            }
            Work::Bundle { .. } => false,
        })
    }

    /// So many more, or less, of the writes into a file hang.
    pub(super) fn count_lost(&mut self, id: EntryId, change: i32) {
        if let Some(objects) = self.entries.get_mut(id).and_then(|held| held.objects.as_deref_mut()) {
            objects.lost = objects.lost.saturating_add_signed(change);
        }
    }

    /// Files on a target that answers no more.
    fn give_up_dead(&mut self) -> Result<(), Failure> {
        while let Some((item, _)) = self.scheduler.take_dead() {
            let block = match item {
                ToWrite::Object(block) => block,
                ToWrite::Members(block, target) => {
                    self.give_up_part(block, target)?;
                    continue;
                }
            };
            let Some(write) = self.writes.remove(&block) else { continue };
            self.free(write.slot);
            let Work::Object { id, .. } = write.work else { continue };
            if self.no_longer_written(id)? {
                self.give_up_waiting(id, Failure::os(Code::SinkWrite, TIMED_OUT))?;
            }
        }
        Ok(())
    }

    /// One write less into a file. False if the file was dropped meanwhile.
    pub(super) fn no_longer_written(&mut self, id: EntryId) -> Result<bool, Failure> {
        let Some(held) = self.entries.get_mut(id) else { return Ok(false) };
        if let Some(objects) = held.objects.as_deref_mut() {
            objects.writing -= 1;
        }
        let open = held.state == SinkState::Open;
        if !open {
            self.discard_when_written(id)?;
        }
        Ok(open)
    }

    /// What the source is to know of this end's targets: how many blocks may be under way to each.
    pub(super) fn next_allowances(&mut self) -> Vec<(Target, u32)> {
        let next = || self.scheduler.next_allowance();
        let changed = core::iter::from_fn(next)
            .filter_map(|(target, count)| Some((Target::try_from(target.0).ok()?, count)))
            // Of files of which nothing is known nothing needs to be known at the source.
            .filter(|(target, _)| *target != 0);
        self.allowances.extend(changed);
        let mut allowances = core::mem::take(&mut self.allowances);
        for (target, count) in &mut allowances {
            if self.held_back.contains(target) {
                *count = (*count).min(HELD_BACK_MAX);
            }
        }
        allowances
    }

    /// Which groups an object of this file joins.
    pub(super) fn lane_of(&self, id: EntryId, index: u32) -> Lane {
        self.lane_of_target(self.target_of(id, index))
    }

    /// Which groups a whole file joins.
    pub(super) fn lane_of_file(&self, id: EntryId) -> Lane {
        match self.targets_of(&[id]).into_iter().any(|target| self.lane_of_target(target) == Lane::Slow) {
            true => Lane::Slow,
            false => Lane::Brisk,
        }
    }

    pub(super) fn lane_of_target(&self, target: Target) -> Lane {
        let view = self.scheduler.target(TargetId(u32::from(target)));
        let slow = |view: crate::scheduler::TargetView| view.congested || view.suspect || view.dead;
        let slow = view.is_some_and(slow) || self.lagging.contains_key(&target);
        if target != 0 && slow { Lane::Slow } else { Lane::Brisk }
    }
}

/// Blocks under way to a target that is held back: the next ones are there when it goes on.
const HELD_BACK_MAX: u32 = 2;
/// ETIMEDOUT
pub(super) const TIMED_OUT: i32 = 110;
