//! Groups through the order rule: sync, publish, sync the names; only then acknowledge.

use alloc::vec::Vec;

use haul_model::op::{self, SinkOp};
use haul_model::report::Fact;
use haul_model::{Code, EntryId, Failure, Hash};
use haul_wire::{RepairReason, Settled};

use super::Sink;
use super::errand::{About, Share};
use super::full::is_lack_of_room;
use crate::committer::{Lane, Phase, WrittenFile, WrittenObject};
use crate::event::Action;
use crate::planted::Bug;
use crate::states::{SinkCause, SinkState};

/// A file that is made durable by itself, and that nothing more is written into before that has ended.
///
/// On some file systems a sync waits for the writes that are under way, and all others wait for the sync: one write on a slow
/// target would hold up those on others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Syncing {
    /// The sync waits until storage is at nothing of it.
    WhenWritten,
    /// It is in a group.
    Released,
}

impl Sink {
    pub(super) fn start_groups(&mut self, now_nanos: u64) -> Result<(), Failure> {
        if self.each() {
            self.committer.sync_each(now_nanos);
        }
        let quiet = self.is_quiet();
        for id in core::mem::take(&mut self.written_out) {
            self.release(id, now_nanos);
        }
        while let Some(id) = self.committer.next_to_release(now_nanos, quiet) {
            let objects = self.entries.get(id).and_then(|held| held.objects.as_deref());
            if objects.is_some_and(|objects| objects.at_work > 0) {
                self.committer.set_apart(id);
                self.syncing.insert(id, Syncing::WhenWritten);
            } else {
                self.release(id, now_nanos);
            }
        }
        while let Some((number, phase)) = self.committer.start(now_nanos, quiet) {
            match phase {
                Phase::SyncNames => self.sync_names(number, now_nanos)?,
                Phase::Sync | Phase::Synced | Phase::Publish => self.sync(number),
            }
        }
        Ok(())
    }

    /// Each file is an errand of its own where that keeps what hangs apart from the others.
    pub(super) fn each(&self) -> bool {
        self.errands.is_watched() && self.config.syncs_each
    }

    fn lane_of_group(&self, number: u64) -> op::Lane {
        match self.committer.lane(number) {
            Lane::Brisk => op::Lane::Sync,
            Lane::Slow => op::Lane::Slow,
        }
    }

    /// Which threads run what is about a whole file.
    pub(super) fn lane_of_errand(&self, id: EntryId) -> op::Lane {
        match self.lane_of_file(id) {
            Lane::Brisk => op::Lane::Sync,
            Lane::Slow => op::Lane::Slow,
        }
    }

    fn sync(&mut self, number: u64) {
        let lane = self.lane_of_group(number);
        for part in self.committer.parts(number, self.each()) {
            if self.config.planted.has(Bug::PublishBeforeSync) {
                let files = part.files.iter().map(|file| file.id).collect();
                self.ask(lane, SinkOp::Publish { group: 0, files }, About::Nothing);
            }
            let op = SinkOp::Sync { group: number, files: part.ids() };
            self.ask(lane, op, About::Sync(Share::of(number, part)));
        }
    }

    /// What is held of a file is to be synced.
    fn release(&mut self, id: EntryId, now_nanos: u64) {
        if self.committer.release(id, self.lane_of_file(id), now_nanos) {
            self.syncing.insert(id, Syncing::Released);
        } else if self.syncing.get(&id) == Some(&Syncing::WhenWritten) {
            // What was held of it is lost, and will be sent again.
            self.no_longer_synced(id);
        }
    }

    fn no_longer_synced(&mut self, id: EntryId) {
        self.syncing.remove(&id);
        self.take_up_again(id);
    }

    pub(super) fn is_being_synced(&self, id: EntryId) -> bool {
        self.committer.is_straggling(id) || self.syncing.get(&id) == Some(&Syncing::Released)
    }

    /// All of it was written: it need not be held any longer.
    pub(super) fn release_if_whole(&mut self, id: EntryId, now_nanos: u64) {
        if !self.each() {
            return;
        }
        let objects = self.entries.get(id).and_then(|held| held.objects.as_deref());
        let waiting = self.committer.objects_waiting(id) as u64;
        if objects.is_some_and(|objects| objects.durable.count() + waiting >= objects.durable.total()) {
            self.release(id, now_nanos);
        }
    }

    /// Storage is at one write less into this file, or nobody waits for it any more.
    pub(super) fn leaves_storage(&mut self, id: EntryId) {
        if let Some(objects) = self.entries.get_mut(id).and_then(|held| held.objects.as_deref_mut()) {
            objects.at_work -= 1;
            if objects.at_work > 0 {
                return;
            }
        }
        if self.syncing.get(&id) == Some(&Syncing::WhenWritten) {
            self.written_out.push(id);
        }
    }

    /// Contents are durable: objects are acknowledged, whole files get their names once the rest of their group is so far.
    ///
    /// A failed sync is never repeated: all that its file received since the last good one is lost, and sent again. That
    /// includes what was written while it ran, or is being written now: the medium may call that clean as well.
    pub(super) fn on_synced(
        &mut self,
        share: Share,
        failed: Vec<(EntryId, Failure)>,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        let failed = if self.config.planted.has(Bug::FailedSyncIgnored) { Vec::new() } else { failed };
        let mut objects = share.part.objects.clone();
        if !self.config.planted.has(Bug::LostWriteKept) {
            for (id, _) in &failed {
                objects.append(&mut self.committer.take_objects(*id));
                self.lose_writes(*id);
            }
        }
        self.settle_objects(objects, &failed)?;
        let (mut go_on, mut lost) = (Vec::new(), Vec::new());
        for file in &share.part.files {
            match failure_of(&failed, file.id) {
                None => go_on.push(*file),
                Some(failure) => lost.push((file.id, failure)),
            }
        }
        for (id, failure) in lost {
            self.on_file_unsynced(id, failure)?;
        }
        let group = self.part_has_ended(&share, go_on, now_nanos)?;
        group.map_or(Ok(()), |group| self.after_sync(group, now_nanos))
    }

    fn settle_objects(
        &mut self,
        objects: Vec<WrittenObject>,
        failed: &[(EntryId, Failure)],
    ) -> Result<(), Failure> {
        for object in objects {
            let failure = failure_of(failed, object.id);
            let Some(held) = self.entries.get_mut(object.id).filter(|it| it.state == SinkState::Open) else {
                continue;
            };
            match failure {
                None => {
                    let bytes = u64::from(object.bytes);
                    // One that was sent again counts once.
                    if let Some(objects) = held.objects.as_deref_mut()
                        && objects.durable.insert(object.index.into())
                    {
                        // What was durable before, as the source says, is not so once more.
                        let rest = held.entry.size() - objects.counted.bytes_there().min(held.entry.size());
                        let bytes = bytes.min(rest);
                        objects.counted.bytes_done += bytes;
                        self.stats.bytes_done = self.stats.bytes_done.saturating_add(bytes);
                    }
                    if !self.config.planted.has(Bug::AckBeforeSync) {
                        self.durable.push((object.id, object.index));
                    }
                }
                // Sent again it would not find room either.
                Some(failure) if is_lack_of_room(failure) => {
                    let target = self.target_of_object(object.id, object.index);
                    self.give_up_on(target, object.id, SinkCause::WriteFailed, failure)?;
                }
                Some(_) => self.ask_again(object.id, Some(object.index), RepairReason::Sync),
            }
        }
        Ok(())
    }

    /// Storage is done with a part of a group, or nobody waits for it any more. The number of the group if it was its last.
    pub(super) fn part_has_ended(
        &mut self,
        share: &Share,
        go_on: Vec<WrittenFile>,
        now_nanos: u64,
    ) -> Result<Option<u64>, Failure> {
        let ids = share.part.ids();
        let waited: Vec<EntryId> = ids.iter().copied().filter(|id| self.is_being_synced(*id)).collect();
        let ended = match share.group {
            Some(group) => {
                Some(group).filter(|_| self.committer.part_ended(group, &share.part, go_on.clone()))
            }
            None => {
                self.committer.straggled(&share.part);
                None
            }
        };
        for id in ids {
            self.no_longer_synced(id);
            self.release_if_whole(id, now_nanos);
        }
        // What was dropped meanwhile can be removed.
        waited.into_iter().try_for_each(|id| self.discard_when_written(id))?;
        if share.group.is_some() {
            return Ok(ended);
        }
        // They are taken up by a group again: each of its steps is done already, or is done once more.
        go_on
            .into_iter()
            .for_each(|file| self.committer.add_file(file.id, file.bytes, Lane::Slow, now_nanos));
        Ok(None)
    }

    /// All of a group that did not straggle is durable: names are next, unless those of another group are being made.
    pub(super) fn after_sync(&mut self, number: u64, now_nanos: u64) -> Result<(), Failure> {
        let naming = self.committer.is_naming();
        let group = self.committer.running(number, Phase::Sync).ok_or(Failure::new(Code::Internal))?;
        // Only where a bug was planted are there any.
        let objects = core::mem::take(&mut group.objects);
        if naming && (!group.files.is_empty() || !group.links.is_empty()) {
            self.committer.advance(number, Phase::Synced);
        }
        self.settle_objects(objects, &[])?;
        match self.committer.running(number, Phase::Sync) {
            Some(_) => self.publish(number, now_nanos),
            None => Ok(()),
        }
    }

    /// The group has ended; one that waited for its names goes on. (It may have had none itself, and others have not ended.)
    fn finish_group(&mut self, number: u64, now_nanos: u64) -> Result<(), Failure> {
        self.committer.finish(number, now_nanos);
        if self.committer.is_naming() && !self.config.planted.has(Bug::NamesOfTwoGroups) {
            return Ok(());
        }
        let Some(next) = self.committer.next_for_names() else { return Ok(()) };
        self.publish(next, now_nanos)
    }

    /// A small file is lost, and sent again. A sealed one got nothing but its attributes since the syncs that its objects are
    /// durable by: it gets these once more, and a sync of a descriptor that is opened for it. When that fails, too, it is given up.
    fn on_file_unsynced(&mut self, id: EntryId, failure: Failure) -> Result<(), Failure> {
        if is_lack_of_room(failure) {
            return self.give_up(id, SinkCause::CommitFailed, failure);
        }
        match self.entries.get_mut(id).and_then(|held| held.objects.as_deref_mut()) {
            None => {
                self.step(id, SinkCause::AskedAgain)?;
                self.ask_again(id, None, RepairReason::Sync);
                Ok(())
            }
            Some(objects) if objects.sealed_again => self.give_up(id, SinkCause::CommitFailed, failure),
            Some(objects) => {
                objects.sealed_again = true;
                let root = objects.root;
                self.step(id, SinkCause::Unsealed)?;
                self.seal(id, root)
            }
        }
    }

    fn publish(&mut self, number: u64, now_nanos: u64) -> Result<(), Failure> {
        self.committer.advance(number, Phase::Publish);
        let (lane, parts) = (self.lane_of_group(number), self.committer.parts(number, self.each()));
        if parts.is_empty() {
            return self.sync_names(number, now_nanos);
        }
        for part in parts {
            let op = SinkOp::Publish { group: number, files: part.ids() };
            self.ask(lane, op, About::Publish(Share::of(number, part)));
        }
        Ok(())
    }

    pub(super) fn on_published(
        &mut self,
        share: Share,
        failed: Vec<(EntryId, Failure)>,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        let named = |file: &&WrittenFile| failure_of(&failed, file.id).is_none();
        let go_on: Vec<WrittenFile> = share.part.files.iter().filter(named).copied().collect();
        for (id, failure) in failed {
            self.give_up(id, SinkCause::CommitFailed, failure)?;
        }
        let group = self.part_has_ended(&share, go_on, now_nanos)?;
        group.map_or(Ok(()), |group| self.sync_names(group, now_nanos))
    }

    pub(super) fn sync_names(&mut self, number: u64, now_nanos: u64) -> Result<(), Failure> {
        self.committer.advance(number, Phase::SyncNames);
        let names = self.committer.names(number);
        if names.is_empty() {
            return self.finish_group(number, now_nanos);
        }
        if self.config.planted.has(Bug::AckBeforeNameDurable) {
            let done: Vec<_> = names.iter().map(|id| (*id, Settled::Done(self.root_of(*id)))).collect();
            self.settled.extend(done);
        }
        let lane = self.lane_of_group(number);
        self.ask(lane, SinkOp::SyncNames { group: number, entries: names }, About::Names(number));
        Ok(())
    }

    /// Names are durable: the entries have ended.
    pub(super) fn on_synced_names(
        &mut self,
        number: u64,
        failed: Vec<(EntryId, Failure)>,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        let names = self.committer.names(number);
        self.finish_group(number, now_nanos)?;
        for id in names {
            match failure_of(&failed, id) {
                None => self.on_complete(id)?,
                Some(failure) => self.give_up(id, SinkCause::CommitFailed, failure)?,
            }
        }
        Ok(())
    }

    pub(super) fn on_complete(&mut self, id: EntryId) -> Result<(), Failure> {
        let root = self.root_of(id);
        let held = self.entries.get(id).ok_or(Failure::new(Code::Internal))?;
        let (entry, member) = (held.entry.clone(), held.objects.is_none());
        self.stats.files_done = self.stats.files_done.saturating_add(1);
        if member {
            self.stats.bytes_done = self.stats.bytes_done.saturating_add(entry.size());
        }
        if self.config.report_done {
            let path = self.directories.path(entry.parent, &entry.name);
            self.actions.push_back(Action::Fact(Fact::Done { path, bytes: entry.size(), hash: root }));
        }
        self.close(id, SinkCause::Durable)?;
        let acknowledged = self.config.planted.has(Bug::AckBeforeNameDurable)
            || member && self.config.planted.has(Bug::MemberAckBeforeSync);
        if !acknowledged {
            self.settled.push((id, Settled::Done(root)));
        }
        Ok(())
    }

    fn root_of(&self, id: EntryId) -> Option<Hash> {
        self.entries.get(id)?.objects.as_deref()?.root
    }

    pub(super) fn on_sealed(
        &mut self,
        id: EntryId,
        result: Result<Hash, Failure>,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        match result {
            Ok(root) => {
                self.step(id, SinkCause::Sealed)?;
                if let Some(objects) = self.entries.get_mut(id).and_then(|held| held.objects.as_deref_mut()) {
                    objects.root = Some(root);
                }
                let lane = self.lane_of_file(id);
                self.committer.add_file(id, 0, lane, now_nanos);
                Ok(())
            }
            Err(failure) => self.give_up(id, SinkCause::CommitFailed, failure),
        }
    }
}

fn failure_of(failed: &[(EntryId, Failure)], id: EntryId) -> Option<Failure> {
    failed.iter().find(|(other, _)| *other == id).map(|(_, failure)| *failure)
}
