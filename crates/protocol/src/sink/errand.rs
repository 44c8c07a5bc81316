//! What storage is asked to do beside writing: handed out, awaited for a while, given up.

use alloc::vec::Vec;

use haul_model::limits::FILES_OPEN_MAX;
use haul_model::op::{Lane, Prepared, SinkDone, SinkOp};
use haul_model::{Code, EntryId, Failure, Target, Token};

use super::Sink;
use super::choose::TIMED_OUT;
use crate::committer::Part;
use crate::errands::{Finished, GivenUp, Handed, Long};
use crate::event::Action;
use crate::planted::Bug;
use crate::states::{SinkCause, SinkState};

/// Removals that may wait behind what hangs, their entries closed.
const DISCARDS_ASIDE_MAX: usize = 1 << 18;

/// What is remembered of an errand.
#[derive(Clone)]
pub(super) enum About {
    /// The answer to NEW_FILE waits for it.
    Lay {
        id: EntryId,
        prepared: Prepared,
    },
    Seal(EntryId),
    Discard(EntryId),
    Sync(Share),
    Publish(Share),
    /// Of the group with this number.
    Names(u64),
    /// What comes of it is of no interest.
    Nothing,
}

/// A part of a group.
#[derive(Clone)]
pub(super) struct Share {
    /// None if it straggles: its group went on without it.
    pub group: Option<u64>,
    pub part: Part,
    /// Of those that straggle: what its files are on.
    pub targets: Vec<Target>,
}

/// A file that something hangs on.
#[derive(Default)]
pub(super) struct Hanging {
    count: u32,
    /// It is to be removed, or let go of.
    unfinished: Option<(Token, bool)>,
}

/// The files that an errand is at work on, as long as it is.
fn files_of(about: &About) -> Vec<EntryId> {
    match about {
        About::Lay { id, .. } | About::Seal(id) => Vec::from([*id]),
        About::Sync(share) | About::Publish(share) => share.part.ids(),
        About::Discard(_) | About::Names(_) | About::Nothing => Vec::new(),
    }
}

/// The files that an errand would wait for.
fn subjects_of(about: &About) -> Vec<EntryId> {
    match about {
        About::Discard(id) => Vec::from([*id]),
        _ => files_of(about),
    }
}

impl Share {
    pub fn of(group: u64, part: Part) -> Share {
        Share { group: Some(group), part, targets: Vec::new() }
    }
}

impl Sink {
    /// To storage, when a thread is free for it.
    pub(super) fn ask(&mut self, lane: Lane, op: SinkOp, about: About) {
        let targets = if self.each() { self.targets_of(&subjects_of(&about)) } else { Vec::new() };
        self.errands.ask(lane, op, about, targets);
    }

    pub(super) fn hand_out(&mut self) {
        while let Some(Handed { number, lane, threads, op }) = self.errands.hand_out(self.clock.now()) {
            self.actions.push_back(Action::Errand { number, lane, threads, op });
        }
    }

    pub(super) fn on_errand_done(
        &mut self,
        number: u64,
        done: SinkDone,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        let about = match self.errands.finished(number, self.clock.now()) {
            Finished::InTime(about) => about,
            Finished::Late(about) => {
                // Nobody waits for it any more. But what waited for it to let go of a file goes on.
                self.lags_no_more(&about);
                files_of(&about).into_iter().for_each(|id| self.hangs_no_more(id));
                return Ok(());
            }
            Finished::Unknown => return Err(Failure::new(Code::Internal)),
        };
        self.lags_no_more(&about);
        match (about, done) {
            (About::Lay { id, prepared }, SinkDone::Laid { result, unlike, .. }) => {
                self.on_laid(id, prepared, result, unlike, now_nanos)
            }
            (About::Seal(id), SinkDone::Sealed { result, .. }) => self.on_sealed(id, result, now_nanos),
            (About::Discard(id), SinkDone::Discarded { .. }) => self.on_discarded(id),
            (About::Sync(share), SinkDone::Synced { failed, .. }) => self.on_synced(share, failed, now_nanos),
            (About::Publish(share), SinkDone::Published { failed, .. }) => {
                self.on_published(share, failed, now_nanos)
            }
            (About::Names(group), SinkDone::SyncedNames { failed, .. }) => {
                self.on_synced_names(group, failed, now_nanos)
            }
            (About::Nothing, _) => Ok(()),
            _ => Err(Failure::new(Code::Internal)),
        }
    }

    /// Something hangs that is at work on this file: it is not removed before that comes back. Removing it would hang as
    /// well, and on some file systems its whole directory with it.
    pub(super) fn hangs(&mut self, id: EntryId) {
        self.hanging.entry(id).or_default().count += 1;
    }

    pub(super) fn hangs_no_more(&mut self, id: EntryId) {
        let Some(hanging) = self.hanging.get_mut(&id) else { return };
        hanging.count -= 1;
        if hanging.count > 0 {
            return;
        }
        let unfinished = hanging.unfinished;
        self.hanging.remove(&id);
        if let Some((token, keep)) = unfinished {
            self.ask(Lane::Sync, SinkOp::Discard { id, token, keep }, About::Nothing);
        }
    }

    /// Its unfinished file is to be removed, or let go of, once nothing hangs that is at work on it. False if nothing does.
    pub(super) fn discard_when_back(&mut self, id: EntryId, token: Token, keep: bool) -> bool {
        let hanging = self.hanging.get_mut(&id);
        hanging.map(|hanging| hanging.unfinished = Some((token, keep))).is_some()
    }

    /// An unfinished file that was let go of so that it stays goes after all.
    pub(super) fn let_go_of_kept(&mut self, id: EntryId) -> Result<(), Failure> {
        if let Some((_, keep)) = self.hanging.get_mut(&id).and_then(|hanging| hanging.unfinished.as_mut()) {
            *keep = false;
            return self.close(id, SinkCause::Dropped).map(drop);
        }
        self.step(id, SinkCause::Unkept)?;
        let token = self.entries.get(id).ok_or(Failure::new(Code::Internal))?.token;
        self.ask_to_discard(id, token, false);
        Ok(())
    }

    /// Looks for errands that take long, and for those that hang.
    pub(super) fn watch_errands(&mut self, now_nanos: u64) -> Result<(), Failure> {
        while let Some(long) = self.errands.next_long(self.clock.now()) {
            let Long { number, lane, about, replace } = long;
            if replace {
                self.actions.push_back(Action::Relieve { lane, number });
            }
            self.on_long(number, about, now_nanos)?;
        }
        while let Some((op, about, targets)) = self.errands.next_barred() {
            self.on_barred(op, about, targets, now_nanos)?;
        }
        self.give_up_errands(now_nanos).map(drop)
    }

    /// Gives up what hangs, and what waits for threads that all do. True if there was something.
    pub(super) fn give_up_errands(&mut self, now_nanos: u64) -> Result<bool, Failure> {
        let mut any = false;
        while let Some(GivenUp { about, begun }) = self.errands.give_up(self.clock.now()) {
            self.on_given_up(about, begun, now_nanos)?;
            any = true;
        }
        Ok(any)
    }

    /// A file that takes long is no longer waited for by the others of its group.
    fn on_long(&mut self, number: u64, about: About, now_nanos: u64) -> Result<(), Failure> {
        let Some((group, last)) = self.straggles(&about, now_nanos) else { return Ok(()) };
        match about {
            About::Sync(share) => {
                let alone = self.alone(share);
                self.errands.remember(number, About::Sync(alone));
                if last { self.after_sync(group, now_nanos) } else { Ok(()) }
            }
            About::Publish(share) => {
                let alone = self.alone(share);
                self.errands.remember(number, About::Publish(alone));
                if last { self.sync_names(group, now_nanos) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    /// If its group waits for it, that goes on without it: the group, and whether this was the last part of it.
    fn straggles(&mut self, about: &About, now_nanos: u64) -> Option<(u64, bool)> {
        let share = match about {
            About::Sync(share) | About::Publish(share) if self.config.syncs_each => share,
            _ => return None,
        };
        let group = share.group?;
        let targets = self.targets_of(&share.part.ids());
        self.lags(&targets, 1);
        Some((group, self.committer.straggles(group, &share.part, now_nanos)))
    }

    /// As it is remembered from then on.
    fn alone(&self, share: Share) -> Share {
        let targets = self.targets_of(&share.part.ids());
        Share { group: None, part: share.part, targets }
    }

    /// An unfinished file may hold a descriptor until it is removed; a member of a bundle does not.
    fn discards_aside_max(&self, id: EntryId) -> usize {
        let has_objects = self.entries.get(id).is_some_and(|held| held.objects.is_some());
        if has_objects { FILES_OPEN_MAX } else { DISCARDS_ASIDE_MAX }
    }

    /// Nor is one that could only join those that take long.
    fn on_barred(
        &mut self,
        op: SinkOp,
        about: About,
        targets: Vec<Target>,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        let Some((group, last)) = self.straggles(&about, now_nanos) else {
            // Nobody waits for a file to be removed: its entry does not stay for it, or those of all that is given up meanwhile
            // would be too many.
            if let About::Discard(id) = about
                && self.errands.waiting_aside() < self.discards_aside_max(id)
            {
                self.errands.ask_aside(op, About::Nothing, targets);
                return self.on_discarded(id);
            }
            self.errands.ask_aside(op, about, targets);
            return Ok(());
        };
        match about {
            About::Sync(share) => {
                let alone = self.alone(share);
                self.errands.ask_aside(op, About::Sync(alone), targets);
                if last { self.after_sync(group, now_nanos) } else { Ok(()) }
            }
            About::Publish(share) => {
                let alone = self.alone(share);
                self.errands.ask_aside(op, About::Publish(alone), targets);
                if last { self.sync_names(group, now_nanos) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    /// It hangs: what it is about fails. Whether it was done nobody knows, so nothing counts as done.
    fn on_given_up(&mut self, about: About, begun: bool, now_nanos: u64) -> Result<(), Failure> {
        let (write, sync) = (Failure::os(Code::SinkWrite, TIMED_OUT), Failure::os(Code::SinkSync, TIMED_OUT));
        if begun {
            // What it lags on lags until it comes back.
            files_of(&about).into_iter().for_each(|id| self.hangs(id));
        } else {
            self.lags_no_more(&about);
        }
        match about {
            About::Lay { id, prepared } => {
                // One that an earlier session has begun stays for a later one.
                if let Prepared::Start(token) = prepared {
                    self.discard_when_back(id, token, false);
                }
                self.on_laid(id, prepared, Err(write), None, now_nanos)
            }
            About::Seal(id) => self.on_sealed(id, Err(write), now_nanos),
            About::Discard(id) => self.on_discarded(id),
            About::Sync(share) if self.config.planted.has(Bug::AbandonedSyncGood) => {
                self.on_synced(share, Vec::new(), now_nanos)
            }
            About::Sync(share) => {
                self.fail_files(&share.part, sync)?;
                let last = self.part_has_ended(&share, Vec::new(), now_nanos)?;
                last.map_or(Ok(()), |group| self.after_sync(group, now_nanos))
            }
            About::Publish(share) => {
                self.fail_files(&share.part, write)?;
                let last = self.part_has_ended(&share, Vec::new(), now_nanos)?;
                last.map_or(Ok(()), |group| self.sync_names(group, now_nanos))
            }
            About::Names(group) => {
                let names = self.committer.names(group);
                let failed = names.into_iter().map(|id| (id, sync)).collect();
                self.on_synced_names(group, failed, now_nanos)
            }
            About::Nothing => Ok(()),
        }
    }

    fn fail_files(&mut self, part: &Part, failure: Failure) -> Result<(), Failure> {
        for id in part.ids() {
            self.committer.take_objects(id);
            match self.entries.get(id).map(|held| held.state) {
                Some(SinkState::Open) => self.give_up(id, SinkCause::WriteFailed, failure)?,
                Some(SinkState::Committing) => self.give_up(id, SinkCause::CommitFailed, failure)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes an unfinished file, or lets go of it.
    pub(super) fn ask_to_discard(&mut self, id: EntryId, token: Token, keep: bool) {
        let lane = self.lane_of_errand(id);
        self.ask(lane, SinkOp::Discard { id, token, keep }, About::Discard(id));
    }

    /// What these files are on, as far as that is known.
    pub(super) fn targets_of(&self, files: &[EntryId]) -> Vec<Target> {
        let mut targets = Vec::new();
        for held in files.iter().filter_map(|id| self.entries.get(*id)) {
            match &held.objects {
                Some(objects) => targets.extend(objects.placement.pieces().iter().flat_map(|it| &it.targets)),
                None => targets.extend(held.on),
            }
        }
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// A part that straggled does so no more.
    fn lags_no_more(&mut self, about: &About) {
        if let About::Sync(share) | About::Publish(share) = about {
            let targets = share.targets.clone();
            self.lags(&targets, -1);
        }
    }

    /// So many more, or less, of the files on these targets straggle.
    fn lags(&mut self, targets: &[Target], change: i32) {
        for target in targets {
            let count = self.lagging.entry(*target).or_default();
            let before = *count;
            *count = count.saturating_add_signed(change);
            self.lag_turns += u64::from((before == 0) != (*count == 0));
            if *count == 0 {
                self.lagging.remove(target);
            }
        }
    }
}
