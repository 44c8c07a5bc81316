//! What is durable, what must come again, and how entries end.

use alloc::boxed::Box;

use haul_model::error::Blame;
use haul_model::limits::{ATTEMPTS_MAX, RESTARTS_MAX};
use haul_model::op::SourceOp;
use haul_model::report::{Fact, FailedPaths};
use haul_model::{Code, Entry, EntryId, Failure, Hash, Kind};
use haul_wire::{Message, Repair, RepairReason, Settled};

use super::Source;
use super::announce::Opening;
use crate::event::{Action, LogOp, Logged};
use crate::planted::Bug;
use crate::resume::{object_range, objects_of};
use crate::states::{SourceCause, SourceState};

impl super::Objects {
    /// It is not the first time that this object has failed.
    fn was_tried_again(&self, index: u32) -> bool {
        self.attempts.iter().any(|(other, _)| *other == index)
    }

    /// This object has failed once more. False if that was often enough.
    fn may_try_again(&mut self, index: u32) -> bool {
        let position = self.attempts.iter().position(|(other, _)| *other == index);
        let position = position.unwrap_or_else(|| {
            self.attempts.push((index, 0));
            self.attempts.len() - 1
        });
        self.attempts[position].1 += 1;
        self.attempts[position].1 < ATTEMPTS_MAX
    }
}

impl Source {
    /// BLOCK_SYNC of an object: only now is it logged. For entries that have ended meanwhile it means nothing.
    pub(super) fn on_durable(&mut self, id: EntryId, index: u32) -> Result<(), Failure> {
        let Some(held) = self.entries.get_mut(id).filter(|held| held.state == SourceState::Active) else {
            return Ok(());
        };
        let size = held.entry.size();
        let Some(objects) = held.objects.as_deref_mut() else { return Ok(()) };
        // Once is enough; and what was never sent is nowhere.
        if objects.durable.get(u64::from(index)) {
            return Ok(());
        }
        if !objects.sent.remove(&index) {
            return Err(Failure::new(Code::Protocol));
        }
        objects.durable.set(u64::from(index));
        let early = self.config.planted.has(Bug::SealWithoutAll)
            && objects.durable.count() + 1 == objects.durable.len();
        let full = objects.durable.is_full() || early;
        let bytes = u64::from(object_range(size, objects.object_bytes, index).1);
        objects.counted.bytes_done += bytes;
        self.stats.bytes_done += bytes;
        self.actions.push_back(Action::Log(LogOp::Record { id, index }));
        if full {
            let _ = self.confirm(id);
        }
        Ok(())
    }

    /// Everything of the file is durable; it counts only if it was one version that was read.
    pub(super) fn confirm(&mut self, id: EntryId) -> Result<(), Failure> {
        self.step(id, SourceCause::AllDurable)?;
        let entry = self.entries[id].entry.clone();
        if self.config.planted.has(Bug::CloseUnconfirmed) {
            return self.on_confirmed(id, Ok(()));
        }
        self.look(id, SourceOp::Confirm { entry });
        Ok(())
    }

    pub(super) fn on_confirmed(&mut self, id: EntryId, result: Result<(), Failure>) -> Result<(), Failure> {
        let confirming = |held: &&mut super::Held| held.state == SourceState::Confirming;
        let Some(held) = self.entries.get_mut(id).filter(confirming) else { return Ok(()) };
        let root = held.objects.as_deref().and_then(|objects| objects.root);
        match result {
            Ok(()) => {
                self.step(id, SourceCause::Confirmed)?;
                self.actions.push_back(Action::Send(Message::FileClose { id, root }));
                if self.config.planted.has(Bug::LogGoneBeforeDone) {
                    self.actions.push_back(Action::Log(LogOp::Remove { id }));
                }
                Ok(())
            }
            Err(failure) => self.on_unreadable(id, failure),
        }
    }

    /// The entry cannot be read, or is not what was announced any more.
    pub(super) fn on_unreadable(&mut self, id: EntryId, failure: Failure) -> Result<(), Failure> {
        if failure.code == Code::SourceChanged {
            self.step(id, SourceCause::Changed)?;
            let entry = self.entries[id].entry.clone();
            self.look(id, SourceOp::Restat { entry });
            return Ok(());
        }
        self.give_up(id, SourceCause::ReadFailed, failure)
    }

    /// What cannot be read now may be another time: what is durable of it stays then, and what is logged.
    fn give_up(&mut self, id: EntryId, cause: SourceCause, failure: Failure) -> Result<(), Failure> {
        let own = cause == SourceCause::ReadFailed;
        let stays = own && failure.may_pass();
        self.give_up_keeping(id, cause, failure, stays)
    }

    /// The same; what is durable of it may stay at the sink, and its log entry with that.
    fn give_up_keeping(
        &mut self,
        id: EntryId,
        cause: SourceCause,
        failure: Failure,
        keeps_its_log: bool,
    ) -> Result<(), Failure> {
        let entry = self.entries.get(id).ok_or(Failure::new(Code::Internal))?.entry.clone();
        self.report_failed(&entry, failure);
        // Where both ends may have given it up by themselves, what counts of it they would see in different ways.
        let counts = keeps_its_log && cause == SourceCause::Refused && !failure.is_unwritten();
        self.close_keeping(id, cause, (keeps_its_log, counts))?;
        self.actions.push_back(Action::Send(Message::FileDrop { id, failure, restarts: false }));
        Ok(())
    }

    /// The file that changed starts again as a new entry, a few times; then it is named.
    pub(super) fn on_restated(
        &mut self,
        id: EntryId,
        result: Result<Box<Entry>, Failure>,
    ) -> Result<(), Failure> {
        // Else nobody has waited for it.
        let Some(held) = self.entries.get(id) else { return Ok(()) };
        let (restarts, old, old_size) = (held.restarts, held.entry.clone(), held.entry.size());
        let (laid, stripes) = (held.laid.clone(), held.stripes.clone());
        let entry = match result {
            Ok(entry) if entry.kind == Kind::File && restarts < RESTARTS_MAX => entry,
            Ok(_) => return self.give_up(id, SourceCause::ReadFailed, Code::SourceChanged.into()),
            Err(failure) => return self.give_up(id, SourceCause::ReadFailed, failure),
        };
        if let Err(failure) = objects_of(entry.size(), laid.object_bytes) {
            return self.give_up(id, SourceCause::ReadFailed, failure);
        }
        self.stats.bytes_total = self.stats.bytes_total.saturating_add(entry.size()).saturating_sub(old_size);
        let kept = self.log_of_old_version(id, &entry);
        self.reopen(*entry, Opening { entry: old, laid, stripes, logged: kept, restarts: restarts + 1 });
        self.close(id, SourceCause::Restated)?;
        let failure = Code::SourceChanged.into();
        self.actions.push_back(Action::Send(Message::FileDrop { id, failure, restarts: true }));
        Ok(())
    }

    /// Nothing: what was sent of the old version is worthless for the new one.
    fn log_of_old_version(&self, id: EntryId, entry: &Entry) -> Option<Logged> {
        if !self.config.planted.has(Bug::LogKeptOnRestart) {
            return None;
        }
        let objects = self.entries.get(id)?.objects.as_deref()?;
        let token = haul_model::Token([0xee; 16]);
        let object_bytes = objects.object_bytes;
        Some(Logged { identity: entry.identity, object_bytes, token, done: objects.durable.clone() })
    }

    pub(super) fn on_repair(&mut self, repair: Repair) -> Result<(), Failure> {
        if self.config.planted.has(Bug::RepairForgotten) {
            return Ok(());
        }
        let counts = repair.reason != RepairReason::Lost;
        let failure = Failure::new(match repair.reason {
            RepairReason::Sync => Code::SinkSync,
            RepairReason::Hash | RepairReason::Lost => Code::HashMismatch,
        });
        match repair.index {
            None => self.repair_member(repair.id, counts, failure),
            Some(index) => self.repair_object(repair.id, index, counts, failure),
        }
    }

    fn repair_member(&mut self, id: EntryId, counts: bool, failure: Failure) -> Result<(), Failure> {
        let bundled = |held: &&mut super::Held| held.state == SourceState::Bundled;
        let Some(held) = self.entries.get_mut(id).filter(bundled) else { return Ok(()) };
        if !held.sent {
            return Err(Failure::new(Code::Protocol));
        }
        held.attempts += u8::from(counts);
        // What could not be had where it was lent has not been sent: this end is asked to look what is wrong with it.
        let lent = core::mem::take(&mut held.lent);
        let was_sent = !counts || lent == 0 || failure.code == Code::SinkSync;
        if !was_sent {
            self.stats.bytes_sent = self.stats.bytes_sent.saturating_sub(held.entry.size());
            self.stats.objects_sent -= u64::from(self.lent.refused(lent));
        } else if lent != 0 {
            self.lent.had(lent);
        }
        if held.attempts >= ATTEMPTS_MAX {
            return self.give_up(id, SourceCause::GivenUp, failure);
        }
        self.step(id, SourceCause::RepairAsked)?;
        let is_again = !self.taken_back.remove(&(id, None)) && was_sent;
        self.stats.objects_repaired += u64::from(is_again);
        self.queue_small(id);
        Ok(())
    }

    fn repair_object(
        &mut self,
        id: EntryId,
        index: u32,
        counts: bool,
        failure: Failure,
    ) -> Result<(), Failure> {
        let active = |held: &&mut super::Held| held.state == SourceState::Active;
        let Some(held) = self.entries.get_mut(id).filter(active) else { return Ok(()) };
        let Some(objects) = held.objects.as_deref_mut() else { return Ok(()) };
        if !objects.sent.remove(&index) {
            return Err(Failure::new(Code::Protocol));
        }
        // What was on its way when the connection was lost has been taken back then.
        let was_sent =
            !counts || !objects.lent || failure.code == Code::SinkSync || objects.was_tried_again(index);
        if !was_sent {
            let (_, length) = object_range(held.entry.size(), objects.object_bytes, index);
            self.stats.bytes_sent -= u64::from(length);
            self.stats.objects_sent -= 1;
        }
        if counts && !objects.may_try_again(index) {
            return self.give_up(id, SourceCause::GivenUp, failure);
        }
        objects.again.push(index);
        let is_again = !self.taken_back.remove(&(id, Some(index))) && was_sent;
        self.stats.objects_repaired += u64::from(is_again);
        // It was shown, so its file is open.
        self.show(id);
        Ok(())
    }

    /// Storage may do better the next time; a file that has changed will not.
    pub(super) fn on_object_unreadable(
        &mut self,
        id: EntryId,
        index: u32,
        failure: Failure,
    ) -> Result<(), Failure> {
        let objects = self.entries.get_mut(id).and_then(|held| held.objects.as_deref_mut());
        let objects = objects.ok_or(Failure::new(Code::Internal))?;
        if failure.code != Code::SourceRead || !objects.may_try_again(index) {
            return self.on_unreadable(id, failure);
        }
        objects.again.push(index);
        self.show(id);
        Ok(())
    }

    /// BLOCK_SYNC of an entry: it has ended, one way or the other.
    pub(super) fn on_settled(&mut self, id: EntryId, settled: Settled) -> Result<(), Failure> {
        let Some(held) = self.entries.get(id) else { return Ok(()) };
        let entry = held.entry.clone();
        match settled {
            // Of what is wrong at this end the other one does not know.
            Settled::Failed(failure) | Settled::Kept(failure) if failure.code.blame() == Blame::Source => {
                return Err(Failure::new(Code::Protocol));
            }
            Settled::Done(hash) => {
                let unsent = held.state == SourceState::Bundled && !held.sent;
                // Where one object is all, what was read is the file. Of members nothing is told.
                let known =
                    held.objects.as_deref().map(|objects| objects.root.filter(|root| *root != Hash::LENT));
                let is_other = match known {
                    Some(root) => root.is_some() && hash != root,
                    None => hash.is_some(),
                };
                if unsent || is_other || self.has_objects(&entry) != (held.state == SourceState::Closing) {
                    return Err(Failure::new(Code::Protocol));
                }
                if !self.has_objects(&entry) {
                    self.stats.bytes_done += entry.size();
                }
                self.stats.files_done += 1;
                self.report_done(&entry, hash);
                self.close(id, SourceCause::Done)?;
            }
            // It is about to be dropped anyway, and may still start again.
            Settled::Failed(_) | Settled::Kept(_) if held.state == SourceState::Restating => {
                self.step(id, SourceCause::Refused)?;
            }
            Settled::Failed(failure) => self.give_up(id, SourceCause::Refused, failure)?,
            Settled::Kept(failure) => {
                let keeps_its_log = !self.config.planted.has(Bug::KeptFileForgotten);
                self.give_up_keeping(id, SourceCause::Refused, failure, keeps_its_log)?;
            }
        }
        Ok(())
    }

    fn report_done(&mut self, entry: &Entry, hash: Option<Hash>) {
        if self.config.report_done {
            let path = self.directories.path(entry.parent, &entry.name);
            self.actions.push_back(Action::Fact(Fact::Done { path, bytes: entry.size(), hash }));
        }
    }

    pub(super) fn on_finished(&mut self, failed: FailedPaths) {
        // What has failed may not have been looked up in the log, and goes on with it another time.
        let all_seen = self.stats.files_failed == self.without_contents;
        self.stats.files_failed = self.stats.files_failed.saturating_add(failed.count());
        self.actions.extend(failed.into_facts().map(Action::Fact));
        if all_seen || self.config.planted.has(Bug::LogClearedUnlisted) {
            self.actions.push_back(Action::Log(LogOp::Clear));
        }
        self.end(None);
    }
}
