//! Groups through the order rule: sync, publish, sync the names; only then acknowledge.

use alloc::vec::Vec;

use haul_model::op::SinkOp;
use haul_model::report::Fact;
use haul_model::{Code, EntryId, Failure, Hash};
use haul_wire::{RepairReason, Settled};

use super::Sink;
use crate::committer::Phase;
use crate::event::Action;
use crate::planted::Bug;
use crate::states::{SinkCause, SinkState};

impl Sink {
    pub(super) fn start_groups(&mut self, now_nanos: u64) {
        let quiet = self.is_quiet();
        while let Some((number, phase)) = self.committer.start(now_nanos, quiet) {
            self.start_group(number, phase);
        }
    }

    fn start_group(&mut self, number: u64, phase: Phase) {
        let Some(group) = self.committer.running(number, phase) else { return };
        let ids = match phase {
            Phase::Sync => group.files_to_sync(),
            Phase::Synced | Phase::Publish | Phase::SyncNames => group.links.clone(),
        };
        if phase == Phase::Sync && self.config.planted.has(Bug::PublishBeforeSync) {
            let files = group.files.clone();
            self.actions.push_back(Action::Sink(SinkOp::Publish { group: 0, files }));
        }
        self.actions.push_back(Action::Sink(self.phase_op(number, phase, ids)));
    }

    /// Contents are durable: objects are acknowledged, whole files get their names.
    ///
    /// A failed sync is never repeated: all that its file received since the last good one is lost, and sent again. That
    /// includes what was written while it ran, or is being written now: the medium may call that clean as well.
    pub(super) fn on_synced(
        &mut self,
        number: u64,
        failed: Vec<(EntryId, Failure)>,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        let failed = if self.config.planted.has(Bug::FailedSyncIgnored) { Vec::new() } else { failed };
        self.committer.running(number, Phase::Sync).ok_or(Failure::new(Code::Internal))?;
        let mut objects = self.committer.take_running_objects(number);
        let files = self.committer.take_running_files(number);
        if !self.config.planted.has(Bug::LostWriteKept) {
            for (id, _) in &failed {
                objects.append(&mut self.committer.take_objects(*id));
                self.lose_writes(*id);
            }
        }
        for object in objects {
            let failure = failure_of(&failed, object.id);
            let Some(held) = self.entries.get_mut(&object.id).filter(|it| it.state == SinkState::Open) else {
                continue;
            };
            match failure {
                None => {
                    if let Some(objects) = held.objects.as_deref_mut() {
                        objects.durable.insert(u64::from(object.index));
                    }
                    self.stats.bytes_done += u64::from(object.bytes);
                    if !self.config.planted.has(Bug::AckBeforeSync) {
                        self.durable.push((object.id, object.index));
                    }
                }
                Some(failure) if !self.ends_the_job(failure) => {
                    self.ask_again(object.id, Some(object.index), RepairReason::Sync);
                }
                Some(_) => {}
            }
        }
        let mut publish = Vec::with_capacity(files.len());
        for id in files {
            match failure_of(&failed, id) {
                None => publish.push(id),
                Some(failure) => self.on_file_unsynced(id, failure)?,
            }
        }
        let naming = self.committer.is_naming();
        let group = self.committer.running(number, Phase::Sync).ok_or(Failure::new(Code::Internal))?;
        if naming && (!publish.is_empty() || !group.links.is_empty()) {
            group.files = publish;
            self.committer.advance(number, Phase::Synced);
            return Ok(());
        }
        self.publish(number, publish, now_nanos)
    }

    /// The group has ended; one that waited for its names goes on.
    fn finish_group(&mut self, number: u64, now_nanos: u64) -> Result<(), Failure> {
        self.committer.finish(number, now_nanos);
        let Some(next) = self.committer.waits_for_names() else { return Ok(()) };
        let group = self.committer.running(next, Phase::Synced).ok_or(Failure::new(Code::Internal))?;
        let files = core::mem::take(&mut group.files);
        self.committer.advance(next, Phase::Sync);
        self.publish(next, files, now_nanos)
    }

    fn on_file_unsynced(&mut self, id: EntryId, failure: Failure) -> Result<(), Failure> {
        let member = self.entries.get(&id).is_some_and(|held| held.objects.is_none());
        if !member {
            return self.give_up(id, SinkCause::CommitFailed, failure);
        }
        if !self.ends_the_job(failure) {
            self.step(id, SinkCause::AskedAgain)?;
            self.ask_again(id, None, RepairReason::Sync);
        }
        Ok(())
    }

    fn publish(&mut self, number: u64, files: Vec<EntryId>, now_nanos: u64) -> Result<(), Failure> {
        if files.is_empty() {
            return self.sync_names(number, files, now_nanos);
        }
        if let Some(group) = self.committer.running(number, Phase::Sync) {
            group.files = files.clone();
        }
        self.committer.advance(number, Phase::Publish);
        self.actions.push_back(Action::Sink(self.phase_op(number, Phase::Publish, files)));
        Ok(())
    }

    pub(super) fn on_published(
        &mut self,
        number: u64,
        failed: Vec<(EntryId, Failure)>,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        if number == 0 && self.config.planted.has(Bug::PublishBeforeSync) {
            return Ok(());
        }
        let group = self.committer.running(number, Phase::Publish).ok_or(Failure::new(Code::Internal))?;
        let mut files = core::mem::take(&mut group.files);
        files.retain(|id| failure_of(&failed, *id).is_none());
        for (id, failure) in failed {
            self.give_up(id, SinkCause::CommitFailed, failure)?;
        }
        self.sync_names(number, files, now_nanos)
    }

    fn sync_names(&mut self, number: u64, files: Vec<EntryId>, now_nanos: u64) -> Result<(), Failure> {
        self.committer.advance(number, Phase::SyncNames);
        let group = self.committer.running(number, Phase::SyncNames).ok_or(Failure::new(Code::Internal))?;
        let mut names = files.clone();
        group.files = files;
        names.extend_from_slice(&group.links);
        if names.is_empty() {
            return self.finish_group(number, now_nanos);
        }
        if self.config.planted.has(Bug::AckBeforeNameDurable) {
            let done: Vec<_> = names.iter().map(|id| (*id, Settled::Done(self.root_of(*id)))).collect();
            self.settled.extend(done);
        }
        self.actions.push_back(Action::Sink(self.phase_op(number, Phase::SyncNames, names)));
        Ok(())
    }

    /// Names are durable: the entries have ended.
    pub(super) fn on_synced_names(
        &mut self,
        number: u64,
        failed: Vec<(EntryId, Failure)>,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        let group = self.committer.running(number, Phase::SyncNames).ok_or(Failure::new(Code::Internal))?;
        let mut names = core::mem::take(&mut group.files);
        names.append(&mut group.links);
        self.finish_group(number, now_nanos)?;
        for id in names {
            match failure_of(&failed, id) {
                None => self.on_complete(id)?,
                Some(failure) => self.give_up(id, SinkCause::CommitFailed, failure)?,
            }
        }
        Ok(())
    }

    fn on_complete(&mut self, id: EntryId) -> Result<(), Failure> {
        let root = self.root_of(id);
        let held = self.entries.get(&id).ok_or(Failure::new(Code::Internal))?;
        let (entry, member) = (held.entry.clone(), held.objects.is_none());
        self.stats.files_done += 1;
        if member {
            self.stats.bytes_done += entry.size();
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
        self.entries.get(&id)?.objects.as_deref()?.root
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
                if let Some(objects) = self.entries.get_mut(&id).and_then(|held| held.objects.as_deref_mut())
                {
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
