//! NEW_FILE comes in, storage looks and makes, FILE_ID goes out; entries that the source drops.

use alloc::boxed::Box;
use alloc::vec::Vec;

use haul_model::limits::{BATCH_ITEMS_MAX, ENTRIES_OPEN_MAX};
use haul_model::op::{Lane, Prepare, Prepared, Progress, SinkOp};
use haul_model::placement::is_object_size;
use haul_model::report::{Fact, Share};
use haul_model::stripe::Unlike;
use haul_model::{Code, Entry, EntryId, Failure, Hash, Kind, Laid, ObjectSet, Placement, Plan, Token};
use haul_wire::{Answer, Message, NewFile};

use super::choose::TIMED_OUT;
use super::errand::About;
use super::{Held, Objects, Sink, Told, pieces_of};
use crate::event::Action;
use crate::planted::Bug;
use crate::resume::objects_of;
use crate::states::{SinkCause, SinkState};

/// Placements of the largest kind take 5 kB each: so many stay well below a message.
const LAID_ANSWERS_MAX: usize = 64;

impl Sink {
    pub(super) fn on_new_files(&mut self, items: Vec<NewFile>) -> Result<(), Failure> {
        let mut steps = Vec::with_capacity(items.len());
        let mut ended = Vec::new();
        for item in items {
            match item {
                NewFile::End(id) => {
                    // What is left over there of earlier sessions may be of what could not be listed this time.
                    let stays = self.unlisted.may_be_in(|| self.directories.path(id, b""));
                    if !stays || self.config.planted.has(Bug::UnlistedSwept) {
                        steps.push(Prepare::End(id));
                    }
                    self.directories.end(id, &mut ended)?;
                    if self.config.planted.has(Bug::ForgottenWhileOpen) && !ended.contains(&id) {
                        ended.push(id);
                    }
                }
                NewFile::Entry { entry, object_bytes, resume, stripes } => {
                    if self.entries.len() >= ENTRIES_OPEN_MAX {
                        return Err(Failure::new(Code::LimitExceeded));
                    }
                    let is_known = self.entries.contains_key(entry.id);
                    if is_known || !self.config.recursive && entry.kind != Kind::File {
                        return Err(Failure::new(Code::Protocol));
                    }
                    self.meet_root(&entry)?;
                    match entry.kind {
                        Kind::Directory => {
                            self.directories.enter(entry.id, entry.parent, &entry.name)?;
                            self.directories.hold(entry.id);
                            self.stats.directories = self.stats.directories.saturating_add(1);
                        }
                        Kind::File | Kind::Symlink => {
                            self.directories.check_parent(entry.parent)?;
                            self.stats.files_total = self.stats.files_total.saturating_add(1);
                            self.stats.bytes_total = self.stats.bytes_total.saturating_add(entry.size());
                        }
                        Kind::Other => return Err(Failure::new(Code::Protocol)),
                    }
                    self.directories.hold(entry.parent);
                    let objects = object_bytes
                        .map(|bytes| self.new_objects(entry.size(), bytes, stripes))
                        .transpose()?;
                    let held = Held {
                        entry: entry.clone(),
                        state: SinkState::Preparing,
                        token: Token::NONE,
                        objects,
                        on: None,
                    };
                    self.entries.insert(entry.id, held);
                    self.preparing += 1;
                    steps.push(Prepare::Entry { entry, resume, object_bytes });
                }
            }
        }
        self.batches += 1;
        self.actions.push_back(Action::Sink(SinkOp::Prepare { batch: self.batches, items: steps }));
        for id in ended {
            self.actions.push_back(Action::Sink(SinkOp::Forget { id }));
        }
        Ok(())
    }

    /// What stands at DEST is made by one entry: another would replace what it has made. One that starts again is told of before it
    /// is dropped, as it keeps its directory.
    fn meet_root(&mut self, entry: &Entry) -> Result<(), Failure> {
        let Some(root) = entry.parent.root_index() else { return Ok(()) };
        match self.roots_met.insert(root, entry.id) {
            Some(before)
                if !self.entries.contains_key(before) || self.roots_left.len() >= ENTRIES_OPEN_MAX =>
            {
                Err(Failure::new(Code::Protocol))
            }
            before => {
                self.roots_left.extend(before);
                Ok(())
            }
        }
    }

    fn new_objects(
        &self,
        size: u64,
        object_bytes: u32,
        stripes: Option<Box<Plan>>,
    ) -> Result<Box<Objects>, Failure> {
        if !is_object_size(object_bytes, self.object_bytes) {
            return Err(Failure::new(Code::Protocol));
        }
        let total = objects_of(size, object_bytes)?;
        Ok(Box::new(Objects {
            stripes,
            object_bytes,
            placement: Placement::default(),
            durable: ObjectSet::new(total),
            resumed: false,
            writing: 0,
            at_work: 0,
            lost: 0,
            root: None,
            discarding: false,
            keep: None,
            unkept: false,
            sealed_again: false,
            counted: Share::default(),
        }))
    }

    pub(super) fn on_prepared(
        &mut self,
        prepared: Vec<(EntryId, Prepared)>,
        laid: Vec<(EntryId, Laid)>,
        unlaid: Vec<EntryId>,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        // Both are in the order of the answers.
        let (mut laid, mut unlaid) = (laid.into_iter().peekable(), unlaid.into_iter().peekable());
        for (id, prepared) in prepared {
            if unlaid.next_if_eq(&id).is_some() {
                self.ask_to_lay(id, prepared)?;
                if !self.config.planted.has(Bug::AnsweredUnlaid) {
                    continue;
                }
            }
            let laid = laid.next_if(|(of, _)| *of == id).map(|(_, laid)| laid);
            self.answer_laid(id, prepared, laid, None, now_nanos)?;
        }
        let all = laid.next().is_none() && unlaid.next().is_none();
        if all { Ok(()) } else { Err(Failure::new(Code::Internal)) }
    }

    /// Its unfinished file has to be made before it is known how it lies. That may take as long as the slowest of its
    /// targets: names do not wait for it.
    fn ask_to_lay(&mut self, id: EntryId, prepared: Prepared) -> Result<(), Failure> {
        let held = self.entries.get_mut(id).ok_or(Failure::new(Code::Internal))?;
        let objects = held.objects.as_deref_mut().ok_or(Failure::new(Code::Internal))?;
        let (token, resumed) = match prepared {
            Prepared::Start(token) => (token, false),
            Prepared::Resume(token) => (token, true),
            _ => return Err(Failure::new(Code::Internal)),
        };
        let (entry, object_bytes) = (held.entry.clone(), objects.object_bytes);
        let stripes = objects.stripes.take();
        self.errands.watch();
        let op = SinkOp::Lay { entry, token, resumed, object_bytes, stripes };
        self.ask(Lane::Lay, op, About::Lay { id, prepared });
        Ok(())
    }

    pub(super) fn on_laid(
        &mut self,
        id: EntryId,
        prepared: Prepared,
        result: Result<Option<Laid>, Failure>,
        unlike: Option<Unlike>,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        if self.config.planted.has(Bug::AnsweredUnlaid) {
            return Ok(());
        }
        match result {
            Ok(laid) => self.answer_laid(id, prepared, laid, unlike, now_nanos),
            Err(failure) => self.answer_laid(id, Prepared::Fail(failure), None, None, now_nanos),
        }
    }

    fn answer_laid(
        &mut self,
        id: EntryId,
        prepared: Prepared,
        laid: Option<Laid>,
        unlike: Option<Unlike>,
        now_nanos: u64,
    ) -> Result<(), Failure> {
        self.preparing -= 1;
        if let Some(why) = unlike {
            let entry = self.entries.get(id).ok_or(Failure::new(Code::Internal))?.entry.clone();
            let path = self.directories.path(entry.parent, &entry.name);
            self.actions.push_back(Action::Fact(Fact::Unlike { path, why }));
        }
        if let Some(laid) = &laid {
            self.lay(id, laid)?;
        }
        if let Some(objects) = self.entries.get_mut(id).and_then(|held| held.objects.as_deref_mut()) {
            objects.stripes = None;
        }
        if let Some(answer) = self.answer(id, prepared, now_nanos)? {
            self.answers.push(Told { id, answer, laid, unlike });
        }
        Ok(())
    }

    pub(super) fn flush_answers(&mut self) {
        // As many at a time as fit a message for sure, however finely they are striped.
        let any_laid = self.answers.iter().any(|told| told.laid.is_some());
        let most = if any_laid { LAID_ANSWERS_MAX } else { BATCH_ITEMS_MAX };
        for piece in pieces_of(&mut self.answers, most) {
            let (mut answers, mut all_laid) = (Vec::with_capacity(piece.len()), Vec::new());
            let mut all_unlike = Vec::new();
            for Told { id, answer, laid, unlike } in piece {
                answers.push((id, answer));
                all_laid.extend(laid.map(|laid| (id, laid)));
                all_unlike.extend(unlike.map(|why| (id, why)));
            }
            let message = Message::FileId { answers, laid: all_laid, unlike: all_unlike };
            self.actions.push_back(Action::Send(message));
        }
    }

    /// How a file lies is known as soon as its unfinished file is.
    fn lay(&mut self, id: EntryId, laid: &Laid) -> Result<(), Failure> {
        let held = self.entries.get_mut(id).ok_or(Failure::new(Code::Internal))?;
        let size = held.entry.size();
        let objects = held.objects.as_deref_mut().ok_or(Failure::new(Code::Internal))?;
        objects.durable = ObjectSet::new(objects_of(size, laid.object_bytes)?);
        objects.object_bytes = laid.object_bytes;
        objects.placement = laid.placement.clone();
        for piece in laid.placement.pieces() {
            piece.targets.iter().for_each(|target| self.meet(*target));
        }
        Ok(())
    }

    fn answer(&mut self, id: EntryId, prepared: Prepared, now_nanos: u64) -> Result<Option<Answer>, Failure> {
        let held = self.entries.get_mut(id).ok_or(Failure::new(Code::Internal))?;
        let entry = held.entry.clone();
        Ok(Some(match (entry.kind, prepared) {
            (Kind::Directory, Prepared::Made | Prepared::Skip) => {
                self.close(id, SinkCause::Present)?;
                self.release_parent(id);
                Answer::Made
            }
            (_, Prepared::Skip) => {
                self.stats.files_skipped = self.stats.files_skipped.saturating_add(1);
                self.stats.bytes_skipped = self.stats.bytes_skipped.saturating_add(entry.size());
                self.close(id, SinkCause::Present)?;
                Answer::Skip
            }
            (_, Prepared::Made) => {
                self.step(id, SinkCause::LinkMade)?;
                self.committer.add_link(id, now_nanos);
                Answer::Made
            }
            (_, Prepared::Start(token)) => {
                held.token = token;
                match &held.objects {
                    Some(_) => self.step(id, SinkCause::Started)?,
                    None => self.step(id, SinkCause::StartedSmall)?,
                }
                Answer::Start(token)
            }
            (_, Prepared::Resume(token)) => {
                held.token = token;
                let objects = held.objects.as_deref_mut().ok_or(Failure::new(Code::Internal))?;
                objects.resumed = true;
                self.step(id, SinkCause::Resumed)?;
                Answer::Resume(token)
            }
            (kind, Prepared::Fail(failure)) => {
                // What was to come into a directory for which there was no room is not what is wrong.
                let has_begun = self.draining.is_some();
                let follows = has_begun && failure.code == Code::SinkParentFailed;
                if follows || self.ends_the_job(failure, None) && has_begun {
                    return Ok(None);
                }
                self.report_failed(&entry, failure);
                self.close(id, SinkCause::Refused)?;
                if kind == Kind::Directory {
                    self.release_parent(id);
                }
                Answer::Fail(failure)
            }
        }))
    }

    /// So much of a file that goes on was durable before: nothing but what is told depends on it.
    pub(super) fn on_before(&mut self, id: EntryId, objects: u64, bytes: u64) -> Result<(), Failure> {
        let held = self.entries.get_mut(id).ok_or(Failure::new(Code::Protocol))?;
        let size = held.entry.size();
        let resumed =
            held.objects.as_deref_mut().filter(|file| file.resumed && file.counted.objects_skipped == 0);
        let file = resumed.ok_or(Failure::new(Code::Protocol))?;
        if objects == 0 || objects > bytes || bytes > size {
            return Err(Failure::new(Code::Protocol));
        }
        if self.config.planted.has(Bug::BeforeUncounted) {
            return Ok(());
        }
        (file.counted.objects_skipped, file.counted.bytes_skipped) = (objects, bytes);
        self.stats.objects_skipped = self.stats.objects_skipped.saturating_add(objects);
        self.stats.bytes_skipped = self.stats.bytes_skipped.saturating_add(bytes);
        Ok(())
    }

    /// All objects of the file are durable, says the source. Those of this session the sink can count itself.
    pub(super) fn on_file_close(&mut self, id: EntryId, root: Option<Hash>) -> Result<(), Failure> {
        let Some(held) = self.entries.get(id) else { return Ok(()) };
        if matches!(held.state, SinkState::Refusing | SinkState::Refused) {
            return Ok(());
        }
        let objects = held.objects.as_deref().ok_or(Failure::new(Code::Protocol))?;
        let complete = objects.resumed || objects.durable.is_full();
        if (!complete || objects.writing > 0) && !self.config.planted.has(Bug::SealWithoutAll) {
            return Err(Failure::new(Code::Protocol));
        }
        if objects.lost > 0 && !self.config.planted.has(Bug::LateWriteForgotten) {
            // A write that still hangs may hit the file at any time: it gets no final name.
            return self.give_up(id, SinkCause::WriteFailed, Failure::os(Code::SinkWrite, TIMED_OUT));
        }
        self.step(id, SinkCause::Closed)?;
        self.seal(id, root)
    }

    pub(super) fn seal(&mut self, id: EntryId, root: Option<Hash>) -> Result<(), Failure> {
        let held = self.entries.get(id).ok_or(Failure::new(Code::Internal))?;
        let objects = held.objects.as_deref().ok_or(Failure::new(Code::Internal))?;
        let (entry, token, object_bytes) = (held.entry.clone(), held.token, objects.object_bytes);
        let lane = self.lane_of_errand(id);
        let progress = Progress::default();
        self.ask(lane, SinkOp::Seal { entry, token, object_bytes, root, progress }, About::Seal(id));
        Ok(())
    }

    pub(super) fn on_file_drop(
        &mut self,
        id: EntryId,
        failure: Failure,
        restarts: bool,
    ) -> Result<(), Failure> {
        let unanswered = self.config.planted.has(Bug::RefusalUnanswered);
        if unanswered && !self.entries.contains_key(id) {
            return Ok(());
        }
        let held = self.entries.get_mut(id).ok_or(Failure::new(Code::Protocol))?;
        let (entry, before) = (held.entry.clone(), held.state);
        // The source may have dropped it for a reason of its own, while it heard that it stays.
        let as_told = |objects: &Objects| objects.keep == Some(failure) && !restarts;
        let counts = |objects: &&mut Objects| as_told(objects) && !failure.is_unwritten();
        if let Some(objects) = held.objects.as_deref_mut().filter(|objects| !counts(objects)) {
            self.stats.take_back(core::mem::take(&mut objects.counted));
        }
        // The source keeps its log of what it may be able to read another time. What counts of it the two may see in different ways.
        let may_pass = failure.may_pass() && !restarts;
        let mut goes = false;
        if let Some(objects) = held.objects.as_deref_mut() {
            if may_pass && before != SinkState::Refusing && objects.lost == 0 {
                objects.keep = Some(failure);
            } else if objects.keep.is_some() && !may_pass && !as_told(objects) {
                // With its log.
                objects.keep = None;
                goes = objects.discarding && !self.config.planted.has(Bug::KeptForNobody);
                objects.unkept = goes && before == SinkState::Refusing;
            }
        }
        if unanswered && before == SinkState::Refusing {
            return self.step(id, SinkCause::Dropped);
        }
        if restarts {
            self.roots_left.remove(&id);
            // It will be told of once more.
            if let Some(root) = entry.parent.root_index()
                && self.roots_met.get(&root) == Some(&id)
            {
                self.roots_met.remove(&root);
            }
            self.stats.files_total = self.stats.files_total.saturating_sub(1);
            self.stats.bytes_total = self.stats.bytes_total.saturating_sub(entry.size());
        } else {
            self.report_failed(&entry, failure);
        }
        if goes && before == SinkState::Refused {
            return self.let_go_of_kept(id);
        }
        if matches!(before, SinkState::Expecting | SinkState::Refused) {
            self.close(id, SinkCause::Dropped)?;
            return Ok(());
        }
        self.step(id, SinkCause::Dropped)?;
        if before != SinkState::Refusing {
            return self.discard_when_written(id);
        }
        Ok(())
    }

    /// Removes the unfinished file once nothing is being written into it and no sync of it is under way: that may hold a lock
    /// which its removal wants, and its directory with it. Where something hangs that is at work on it, it
    /// counts as removed now, and is when that comes back.
    pub(super) fn discard_when_written(&mut self, id: EntryId) -> Result<(), Failure> {
        if self.is_being_synced(id) && !self.config.planted.has(Bug::DiscardWhileSyncing) {
            return Ok(());
        }
        let goes = |held: &&mut Held| matches!(held.state, SinkState::Refusing | SinkState::Dropping);
        let planted = self.config.planted;
        let Some(held) = self.entries.get_mut(id).filter(goes) else { return Ok(()) };
        // What hangs since it was to stay may come yet, into whatever the file is then.
        let stays = |objects: &Objects| objects.keep.is_some() && objects.lost == 0;
        let (token, keep) = (held.token, held.objects.as_deref().is_some_and(stays));
        if let Some(objects) = held.objects.as_deref_mut() {
            let writing = objects.writing > 0 && !planted.has(Bug::DiscardWhileWriting);
            if writing || objects.discarding {
                return Ok(());
            }
            objects.discarding = true;
            // What was written into it and waits is not to be synced while it is removed.
            self.committer.take_objects(id);
        }
        if self.discard_when_back(id, token, keep) {
            return self.on_discarded(id);
        }
        self.ask_to_discard(id, token, keep);
        Ok(())
    }

    pub(super) fn on_discarded(&mut self, id: EntryId) -> Result<(), Failure> {
        match self.entries.get(id).map(|held| held.state) {
            Some(SinkState::Refusing) => {
                self.step(id, SinkCause::Discarded)?;
                match self.config.planted.has(Bug::RefusalUnanswered) {
                    true => self.close(id, SinkCause::Dropped).map(drop),
                    false => Ok(()),
                }
            }
            _ => {
                let objects = self.entries.get_mut(id).and_then(|held| held.objects.as_deref_mut());
                if objects.is_some_and(|objects| core::mem::take(&mut objects.unkept)) {
                    let token = self.entries.get(id).map_or(Token([0; 16]), |held| held.token);
                    self.ask_to_discard(id, token, false);
                    return Ok(());
                }
                self.close(id, SinkCause::Discarded).map(drop)
            }
        }
    }
}
