//! Which object or bundle is next: the scheduler knows which targets of both ends each one burdens.
//!
//! The scheduler sees a window of each file, and of no more files than it needs: where all is on one target, the next
//! object of the first file; where there are several, enough that each of them has something to do.

use alloc::vec::Vec;

use haul_model::limits::ATTEMPTS_MAX;
use haul_model::{BlockId, Code, EntryId, Failure, Laid, SlotId, Target};

use super::{Content, Source, Stage};
use crate::event::Action;
use crate::planted::Bug;
use crate::resume::object_range;
use crate::scheduler::{Class, Finished, Picked, Request, TargetId, Ticket};
use crate::states::{SourceCause, SourceState};

/// Objects of one file that the scheduler has at a time.
const WINDOW: u32 = 256;
/// Objects that it is to have for each slot where there are several targets: the file that comes next may be the one that
/// lies on an idle one.
const SHOWN_PER_SLOT: u64 = 64;
/// Objects that it has at most, those of files that were dropped included.
const QUEUED_MAX: u64 = 1 << 20;

/// What is to be read.
#[derive(Clone, Copy)]
pub(super) enum Wanted {
    Object {
        id: EntryId,
        index: u32,
        /// It was taken up before.
        again: bool,
    },
    /// A bundle that is closed.
    Bundle(u32),
    /// An object that was read ahead: into the spill.
    PutAway { id: EntryId, index: u32 },
    /// And back from there.
    Back { id: EntryId, index: u32 },
}

/// An object that the scheduler is to see.
struct Showing {
    index: u32,
    again: bool,
    here: Target,
    there: Target,
    bytes: u32,
}

impl Source {
    /// The next object or bundle that is worth reading; `ahead`: the next object, whether the sink can take it or not.
    pub(super) fn choose(&mut self, ahead: bool) -> Option<Picked<Wanted>> {
        // Bundles alone would keep all threads busy: of objects there is always one to take turns with them. Where files wait
        // to be opened there are enough others, and more than are opened would only be put back.
        let several = self.several_targets && self.waiting_to_open.is_empty();
        let enough = if several { SHOWN_PER_SLOT * u64::from(self.config.slots) } else { 1 };
        while self.queued().saturating_sub(self.bundles.queued()) < enough && self.show_next_file() {}
        loop {
            let picked = match ahead {
                false => self.scheduler.pick(self.clock.now()),
                true => self.scheduler.pick_ahead(self.clock.now()),
            };
            let Some(picked) = picked else {
                // What is shown has to wait: something else may go.
                if self.show_next_file() || !ahead && self.close_oldest_bundle() {
                    continue;
                }
                // Where a file ends by that, another one may be opened.
                if self.name_dead() {
                    continue;
                }
                return None;
            };
            let (id, index, again) = match picked.item {
                Wanted::Object { id, index, again } => (id, index, again),
                Wanted::Back { id, index } if !self.is_back_wanted(id, index) => {
                    self.scheduler.cancel(picked.ticket, self.clock.now());
                    continue;
                }
                Wanted::Bundle(_) if !self.waiting_to_open.is_empty() => {
                    // What is shown may all wait for the sink, and bundles go on for long.
                    self.show_next_file();
                    return Some(picked);
                }
                _ => return Some(picked),
            };
            if self.may_begin(id) {
                self.show(id);
                return Some(picked);
            }
            // Dropped meanwhile, or one file too many.
            self.scheduler.cancel(picked.ticket, self.clock.now());
            if self.put_back(id, index, again) && self.waiting_to_open.back() != Some(&id) {
                self.waiting_to_open.push_back(id);
            }
        }
    }

    /// An object was picked in vain: it is to be shown again, with what comes behind it. False where its file has ended.
    fn put_back(&mut self, id: EntryId, index: u32, again: bool) -> bool {
        let planted = self.config.planted.has(Bug::PutBackIsRepair);
        let Some(objects) = self.active_objects(id) else { return false };
        if again || planted {
            objects.again.push(index);
        } else {
            let at = objects.put_back.partition_point(|other| *other > index);
            objects.put_back.insert(at, index);
        }
        true
    }

    /// What the scheduler has beside that which waits in the spill.
    fn queued(&self) -> u64 {
        self.scheduler.queued() - self.spill.queued
    }

    pub(super) fn is_active(&self, id: EntryId) -> bool {
        self.entries.get(id).is_some_and(|held| held.state == SourceState::Active)
    }

    pub(super) fn active_objects(&mut self, id: EntryId) -> Option<&mut super::Objects> {
        let held = self.entries.get_mut(id).filter(|held| held.state == SourceState::Active)?;
        held.objects.as_deref_mut()
    }

    /// An object of this file was picked: may it be read? With its first one the file counts as open.
    fn may_begin(&mut self, id: EntryId) -> bool {
        let may_open = self.may_open_file();
        let Some(objects) = self.active_objects(id) else { return false };
        objects.shown -= 1;
        if objects.opened {
            return true;
        }
        objects.opened = may_open;
        self.files_opened += usize::from(may_open);
        may_open
    }

    /// Those first that had to wait for another one to end.
    fn show_next_file(&mut self) -> bool {
        while self.may_open_file()
            && self.queued() < QUEUED_MAX
            && let Some(id) = self.waiting_to_open.pop_front().or_else(|| self.files.pop_front())
        {
            if self.active_objects(id).is_some() {
                self.show(id);
                return true;
            }
        }
        false
    }

    /// Fills the window of a file.
    pub(super) fn show(&mut self, id: EntryId) {
        while let Some(Showing { index, again, here, there, bytes }) = self.next_to_show(id) {
            self.meet(here);
            self.several_targets |= there != 0;
            let request = Request {
                item: Wanted::Object { id, index, again },
                target: TargetId(u32::from(here)),
                gate: (there != 0).then_some(TargetId(u32::from(there))),
                class: Class::Object,
                bytes,
            };
            // Numbers of targets are below the scheduler's bound; see `haul_model::limits`.
            let _ = self.scheduler.push(request, self.clock.now());
        }
    }

    fn next_to_show(&mut self, id: EntryId) -> Option<Showing> {
        let held = self.entries.get_mut(id)?;
        let size = held.entry.size();
        let objects = held.objects.as_deref_mut().filter(|objects| objects.shown < WINDOW)?;
        let repair = objects.again.pop();
        let again = repair.is_some();
        let index = match repair.or_else(|| objects.put_back.pop()) {
            Some(index) => index,
            None => {
                let index = objects.durable.next_zero(objects.next)?;
                objects.next = index + 1;
                index as u32
            }
        };
        objects.shown += 1;
        let (here, there) = (objects.here.target(index), objects.there.target(index));
        let bytes = object_range(size, objects.object_bytes, index).1;
        Some(Showing { index, again, here, there, bytes })
    }

    /// Something is on this target.
    pub(super) fn meet(&mut self, target: Target) {
        if let Some(hands) = self.hands.meet(target) {
            self.scheduler.set_threads(hands, self.clock.now());
            self.actions.push_back(Action::Hands(hands));
        }
        if self.hands.has_several_targets() {
            self.several_targets = true;
            self.scheduler.expect_several(self.clock.now());
        }
    }

    /// A file on this target was announced, long before the sink has answered. A file system that lists a directory target by
    /// target shows those of its first target first, and that is not to get all threads because nothing else is known yet.
    pub(super) fn foresee(&mut self, laid: &Laid) {
        self.meet(laid.placement.target(0));
    }

    /// A slot of the sink is free again: what was sent into it burdens the sink's target no more.
    pub(super) fn on_granted(&mut self, slot: SlotId) -> Result<(), Failure> {
        self.credits.granted(slot)?;
        self.spill.granted(slot);
        if let Some(ticket) = self.in_credit.remove(&slot) {
            self.scheduler.gate_done(ticket);
        }
        Ok(())
    }

    pub(super) fn on_allowance(&mut self, target: Target, count: u32) -> Result<(), Failure> {
        let gate = TargetId(u32::from(target));
        let told = if count == 0 {
            // It answers no more: what is for it will not get there.
            self.dead_at_sink.insert(target);
            self.scheduler.fail_gate(gate)
        } else {
            self.dead_at_sink.remove(&target);
            self.scheduler.set_allowance(gate, count)
        };
        told.map_err(|_| Failure::new(Code::Protocol))
    }

    /// Reads that take too long: their threads are replaced, and their objects are read again. A file of which a second one is
    /// lost on the same target is named, and says nothing of that target: somebody may have locked it, or a block of it is bad.
    /// Where everything is on one target there is nothing better to do than to wait for it.
    pub(super) fn write_off(&mut self) {
        if !self.hands.has_several_targets() {
            return;
        }
        self.renew_bundles();
        while let Some(lost) = self.scheduler.expire(self.clock.now()) {
            let of = |(_, block): &(&BlockId, &super::Block)| block.ticket == lost.ticket;
            let Some((block, it)) = self.blocks.iter().find(of) else { continue };
            let block = *block;
            let is_payload = matches!(lost.item, Wanted::Object { .. } | Wanted::Bundle(_));
            let hangs = it.content.is_at().filter(|_| is_payload).map(|file| (file, lost.target));
            let known = hangs.is_some() && self.blocks.values().any(|other| other.hangs == hangs);
            let Some(it) = self.blocks.get_mut(&block) else { continue };
            (it.stage, it.hangs) = (Stage::Lost, hangs);
            let asked = it.content.take_asked();
            self.reading -= 1;
            self.lost += 1;
            let planted = self.config.planted.has(Bug::FileBlamesTarget);
            let named = hangs.filter(|_| known && !planted).map(|(file, _)| file);
            if named.is_some() {
                self.scheduler.excuse(lost.ticket, self.clock.now());
            }
            if lost.replace {
                self.actions.push_back(Action::Replace(block, None));
            }
            let (id, index) = match lost.item {
                Wanted::Object { id, index, .. } => (id, index),
                Wanted::PutAway { id, index } | Wanted::Back { id, index } => {
                    let puts_away = matches!(lost.item, Wanted::PutAway { .. });
                    self.spill.writing -= u32::from(puts_away);
                    self.spill_failed(Failure::os(Code::SpillFailed, TIMED_OUT), 0);
                    (id, index)
                }
                Wanted::Bundle(_) => {
                    self.read_members_again(asked, named);
                    continue;
                }
            };
            if named.is_some() && self.is_active(id) {
                // It only fails for an entry that is gone.
                let _ = self.on_unreadable(id, Failure::os(Code::SourceRead, TIMED_OUT));
                self.leave(id);
                continue;
            }
            let active = |held: &&mut super::Held| held.state == SourceState::Active;
            if let Some(held) = self.entries.get_mut(id).filter(active)
                && let Some(objects) = held.objects.as_deref_mut()
            {
                objects.again.push(index);
                self.show(id);
            }
            self.leave(id);
        }
        self.name_dead();
    }

    /// A bundle is some hundred files, one read after the other: as long as storage comes to the next one it does not hang.
    fn renew_bundles(&mut self) {
        if self.config.planted.has(Bug::SlowBundleHangs) {
            return;
        }
        let now = self.clock.now();
        if self.scheduler.deadline_nanos().is_none_or(|deadline| deadline > now) {
            return;
        }
        for block in self.blocks.values_mut().filter(|block| block.stage == Stage::Reading) {
            if let Content::Bundle { progress, mark, .. } = &mut block.content
                && core::mem::replace(mark, progress.mark()) != *mark
            {
                self.scheduler.renew(block.ticket, now);
            }
        }
    }

    /// Files on a target of either end that answers no more. Whether there was any.
    fn name_dead(&mut self) -> bool {
        let mut any = false;
        while let Some((wanted, _)) = self.scheduler.take_dead() {
            any = true;
            let (id, index) = match wanted {
                Wanted::Object { id, index, .. } | Wanted::Back { id, index } => (id, index),
                // Who wanted to write it has seen that it could not.
                Wanted::PutAway { .. } => continue,
                Wanted::Bundle(_) => {
                    self.name_members(wanted);
                    continue;
                }
            };
            let comes_back = matches!(wanted, Wanted::Back { .. });
            self.spill.queued -= u64::from(comes_back);
            let active = |held: &&super::Held| held.state == SourceState::Active;
            let Some(held) = self.entries.get(id).filter(active) else { continue };
            let there = held.objects.as_deref().map_or(0, |objects| objects.there.target(index));
            let dead_at_sink = self.dead_at_sink.contains(&there);
            if comes_back && !dead_at_sink {
                self.give_up_spilled(id, index);
                continue;
            }
            let code = if dead_at_sink { Code::SinkWrite } else { Code::SourceRead };
            // It only fails for an entry that is gone.
            let _ = self.on_unreadable(id, Failure::os(code, TIMED_OUT));
        }
        any
    }

    /// A bundle that hangs: its members are put in others, but for the one that is to be named.
    fn read_members_again(&mut self, members: Vec<EntryId>, named: Option<EntryId>) {
        for id in members {
            let bundled = |held: &&mut super::Held| held.state == SourceState::Bundled;
            let Some(held) = self.entries.get_mut(id).filter(bundled) else { continue };
            held.attempts += 1;
            let given_up = held.attempts >= ATTEMPTS_MAX || named == Some(id);
            let failure = Failure::os(Code::SourceRead, TIMED_OUT);
            // They only fail for an entry in another state.
            let _ = match given_up {
                true => self.on_unreadable(id, failure),
                false => self.step(id, SourceCause::RepairAsked).map(|()| self.queue_small(id)),
            };
        }
    }

    /// Members of a bundle on a target that answers no more.
    fn name_members(&mut self, wanted: Wanted) {
        let Wanted::Bundle(number) = wanted else { return };
        let members = self.bundles.take(number).map(|pile| pile.members);
        for id in members.into_iter().flatten() {
            if self.step(id, SourceCause::Packed).is_ok() {
                let _ = self.on_unreadable(id, Failure::os(Code::SourceRead, TIMED_OUT));
            }
        }
    }

    /// Storage has answered for this object or bundle. False if nobody waited any more.
    pub(super) fn has_read(&mut self, ticket: Ticket, done: bool) -> bool {
        match self.scheduler.finished(ticket, self.clock.now(), done) {
            Finished::Late { .. } if !self.config.planted.has(Bug::LateReadCounts) => false,
            Finished::Late { .. } => true,
            Finished::InTime | Finished::Unknown => {
                self.reading -= 1;
                true
            }
        }
    }
}

/// ETIMEDOUT
pub(super) const TIMED_OUT: i32 = 110;
