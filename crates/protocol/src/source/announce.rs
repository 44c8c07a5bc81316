//! What the scan finds goes out as NEW_FILE; what the sink answers decides how each entry goes on.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use hashbrown::{HashMap, HashSet};
use haul_model::error::Blame;
use haul_model::limits::{BATCH_BYTES_SOFT, BATCH_ITEMS_MAX};
use haul_model::placement::is_object_size;
use haul_model::report::{Fact, Share};
use haul_model::stripe::Unlike;
use haul_model::{Bitmap, Code, Entry, EntryId, Failure, Item, Kind, Laid, Placement, Plan, Token};
use haul_wire::{Answer, Message, NewFile};

use super::{Held, Objects, Source};
use crate::directories::end_of;
use crate::event::{Action, LogOp, LogView, Logged};
use crate::planted::Bug;
use crate::resume::{believe, object_range, objects_of};
use crate::states::{SourceCause, SourceState};

/// Collects NEW_FILE items and cuts them into messages.
#[derive(Default)]
struct Batch {
    items: Vec<NewFile>,
    bytes: usize,
    /// How many directories end in it.
    directories: usize,
}

/// Whole directories in one message, at most. The first answer comes when all of them are made, which takes a while where
/// storage is far.
const DIRECTORIES_TOGETHER_MAX: usize = 16;

/// Bytes of a part of a plan of stripes, at most.
const PART_BYTES: usize = 36;

/// An entry that is to be announced.
pub(super) struct Opening {
    pub entry: Arc<Entry>,
    pub laid: Laid,
    pub stripes: Option<Box<Plan>>,
    pub logged: Option<Logged>,
    pub restarts: u8,
}

impl Source {
    pub(super) fn on_scanned(&mut self, items: Vec<Item>, log: &mut dyn LogView) -> Result<(), Failure> {
        let mut batch = Batch::default();
        for item in items {
            match item {
                Item::Entry(entry) if entry.kind == Kind::Other => {
                    self.stats.files_total += 1;
                    self.without_contents += 1;
                    self.fail_unannounced(&entry, Code::UnsupportedKind.into());
                }
                Item::Entry(entry) => self.announce(Arc::new(entry), self.plain(), None, log, &mut batch)?,
                Item::Laid(entry, laid, stripes) => {
                    self.announce(Arc::new(entry), *laid, stripes, log, &mut batch)?;
                }
                Item::End(id) => {
                    self.push(&mut batch, NewFile::End(id), 16);
                    let mut settled = Vec::new();
                    self.directories.end(id, &mut settled)?;
                    batch.directories += 1;
                    // The end of the directory must have been announced before storage forgets it. Mostly its files are
                    // not done yet, and the next directory's go with them.
                    if !settled.is_empty() || batch.directories == DIRECTORIES_TOGETHER_MAX {
                        self.flush(&mut batch);
                    }
                    for id in settled {
                        self.actions.push_back(Action::Source(haul_model::op::SourceOp::Forget { id }));
                    }
                }
            }
        }
        self.flush(&mut batch);
        Ok(())
    }

    pub(super) fn on_scan_failed(&mut self, path: Box<[u8]>, failure: Failure) {
        self.stats.files_total += 1;
        self.stats.files_failed += 1;
        let path = end_of(path);
        self.actions.push_back(Action::Fact(Fact::Failed { path: path.to_vec(), failure }));
        self.actions.push_back(Action::Send(Message::Notice { path, failure }));
    }

    fn fail_unannounced(&mut self, entry: &Entry, failure: Failure) {
        self.report_failed(entry, failure);
        let path = self.directories.path(entry.parent, &entry.name).into();
        self.actions.push_back(Action::Send(Message::Notice { path, failure }));
    }

    /// How a file lies of which nothing more is known.
    fn plain(&self) -> Laid {
        Laid { object_bytes: self.config.object_bytes, placement: Placement::default() }
    }

    fn announce(
        &mut self,
        entry: Arc<Entry>,
        laid: Laid,
        stripes: Option<Box<Plan>>,
        log: &mut dyn LogView,
        batch: &mut Batch,
    ) -> Result<(), Failure> {
        // Also of a small file: it may start again as a large one.
        let mut laid = laid.cut_to_at_most(self.config.object_bytes);
        let mut logged = None;
        match entry.kind {
            Kind::Directory => {
                self.directories.enter(entry.id, entry.parent, &entry.name)?;
                self.directories.hold(entry.id);
                self.stats.directories += 1;
            }
            Kind::File | Kind::Symlink | Kind::Other => {
                self.directories.check_parent(entry.parent)?;
                self.stats.files_total += 1;
                self.stats.hard_links += u64::from(entry.kind == Kind::File && entry.links > 1);
            }
        }
        if self.has_objects(&entry)
            && let Err(failure) = objects_of(entry.size(), laid.object_bytes)
        {
            self.fail_unannounced(&entry, failure);
            return Ok(());
        }
        if entry.kind != Kind::Directory {
            self.stats.bytes_total = self.stats.bytes_total.saturating_add(entry.size());
        }
        if self.has_objects(&entry) {
            logged = log.lookup(&self.directories.key(entry.parent, &entry.name));
            let planted = self.config.planted;
            logged =
                logged.filter(|logged| believe(logged, &entry.identity, self.config.object_bytes, planted));
            // What was begun goes on in objects of the same size.
            if let Some(logged) = &logged
                && !planted.has(Bug::LogOfOtherObjectSize)
            {
                laid = laid.cut_to(logged.object_bytes);
            }
            self.foresee(&laid);
        }
        self.open(Opening { entry, laid, stripes, logged, restarts: 0 }, batch);
        Ok(())
    }

    fn open(&mut self, opening: Opening, batch: &mut Batch) {
        let Opening { entry, laid, stripes, logged, restarts } = opening;
        self.directories.hold(entry.parent);
        let resume = logged.as_ref().map(|logged| logged.token);
        let object_bytes = self.has_objects(&entry).then_some(laid.object_bytes);
        let told = stripes.clone().filter(|_| object_bytes.is_some());
        let parts = told.as_ref().map_or(0, |plan| plan.parts().len());
        let bytes = entry.name.len() + entry.link_target.len() + 80 + parts * PART_BYTES;
        let file = NewFile::Entry { entry: entry.clone(), object_bytes, resume, stripes: told };
        self.push(batch, file, bytes);
        self.announced += 1;
        let held = Held {
            entry,
            state: SourceState::Announced,
            laid,
            stripes,
            logged: logged.map(Box::new),
            attempts: 0,
            lent: 0,
            sent: false,
            restarts,
            at_sink: None,
            objects: None,
        };
        self.entries.insert(held.entry.id, held);
    }

    /// The entry as it is now takes the place of the one that changed. It is announced before the old one is dropped,
    /// so that their directory stays alive.
    pub(super) fn reopen(&mut self, mut entry: Entry, as_before: Opening) {
        entry.id = EntryId(self.next_restart);
        self.next_restart += 1;
        let mut batch = Batch::default();
        self.open(Opening { entry: Arc::new(entry), ..as_before }, &mut batch);
        self.flush(&mut batch);
    }

    fn push(&mut self, batch: &mut Batch, item: NewFile, bytes: usize) {
        batch.items.push(item);
        batch.bytes += bytes;
        if batch.items.len() == BATCH_ITEMS_MAX || batch.bytes >= BATCH_BYTES_SOFT {
            self.flush(batch);
        }
    }

    fn flush(&mut self, batch: &mut Batch) {
        if !batch.items.is_empty() {
            self.actions.push_back(Action::Send(Message::NewFile(core::mem::take(&mut batch.items))));
            (batch.bytes, batch.directories) = (0, 0);
        }
    }

    /// Does the file travel in objects of its own?
    pub(super) fn has_objects(&self, entry: &Entry) -> bool {
        entry.kind == Kind::File && entry.size() > self.config.bundle_bytes_max
    }

    /// How a file lies at the sink; its answer follows.
    pub(super) fn on_laid(&mut self, id: EntryId, laid: Laid) -> Result<(), Failure> {
        let held = self.entries.get_mut(id).filter(|held| held.state == SourceState::Announced);
        let held = held.ok_or(Failure::new(Code::Protocol))?;
        if !is_object_size(laid.object_bytes, held.laid.object_bytes) {
            return Err(Failure::new(Code::Protocol));
        }
        held.at_sink = Some(Box::new(laid));
        Ok(())
    }

    /// The sink cannot stripe a file as it is striped here; its answer follows.
    pub(super) fn on_unlike(&mut self, id: EntryId, why: Unlike) -> Result<(), Failure> {
        let held = self.entries.get(id).filter(|held| held.state == SourceState::Announced);
        let entry = held.ok_or(Failure::new(Code::Protocol))?.entry.clone();
        if !core::mem::replace(&mut self.unlike_told[why as usize], true) {
            let path = self.directories.path(entry.parent, &entry.name);
            self.actions.push_back(Action::Fact(Fact::Unlike { path, why }));
        }
        Ok(())
    }

    pub(super) fn on_answer(&mut self, id: EntryId, answer: Answer) -> Result<(), Failure> {
        let held = self.entries.get(id).ok_or(Failure::new(Code::Protocol))?;
        let (entry, objects) = (held.entry.clone(), self.has_objects(&held.entry));
        match (answer, entry.kind) {
            (Answer::Skip, Kind::File | Kind::Symlink) => {
                self.stats.files_skipped += 1;
                self.stats.bytes_skipped = self.stats.bytes_skipped.saturating_add(entry.size());
                let held = self.close(id, SourceCause::Skipped)?;
                // Its log entry stays until the job is complete: who found it complete did not make its name durable.
                if held.logged.is_some() && self.config.planted.has(Bug::SkipForgetsLog) {
                    let path = self.log_key(&entry);
                    self.actions.push_back(Action::Log(LogOp::Resume { id, path }));
                    self.actions.push_back(Action::Log(LogOp::Remove { id }));
                }
            }
            (Answer::Made, Kind::Directory) => {
                self.close(id, SourceCause::DirectoryMade)?;
                self.release_parent(id);
            }
            (Answer::Made, Kind::Symlink) => self.step(id, SourceCause::LinkMade)?,
            (Answer::Start(token), Kind::File) if objects == Self::fresh_token(token) => {
                if objects {
                    self.start_objects(id, token)?
                } else {
                    self.start_small(id)?
                }
            }
            (Answer::Resume(token), Kind::File) => self.resume_objects(id, token)?,
            // What is wrong at this end the other one does not know.
            (Answer::Fail(failure), _) if failure.code.blame() != Blame::Source => {
                self.report_failed(&entry, failure);
                self.close(id, SourceCause::Refused)?;
                if entry.kind == Kind::Directory {
                    self.release_parent(id);
                }
            }
            _ => return Err(Failure::new(Code::Protocol)),
        }
        Ok(())
    }

    fn start_small(&mut self, id: EntryId) -> Result<(), Failure> {
        self.step(id, SourceCause::StartedSmall)?;
        self.queue_small(id);
        Ok(())
    }

    fn start_objects(&mut self, id: EntryId, token: Token) -> Result<(), Failure> {
        self.step(id, SourceCause::Started)?;
        let planted = self.config.planted;
        let held = self.entries.get_mut(id).ok_or(Failure::new(Code::Internal))?;
        let object_bytes = held.at_sink.as_ref().map_or(held.laid.object_bytes, |laid| laid.object_bytes);
        let objects = objects_of(held.entry.size(), object_bytes)?;
        let durable = match held.logged.take() {
            Some(logged) if planted.has(Bug::LogKeptOnFreshStart) => logged.done,
            Some(logged) if planted.has(Bug::LogKeptOnRestart) && held.restarts > 0 => logged.done,
            _ => Bitmap::new(objects),
        };
        let (entry, identity) = (held.entry.clone(), held.entry.identity);
        self.activate(id, object_bytes, durable);
        let path = self.log_key(&entry);
        self.actions.push_back(Action::Log(LogOp::Begin {
            id,
            path,
            identity,
            object_bytes,
            objects,
            token,
        }));
        Ok(())
    }

    fn resume_objects(&mut self, id: EntryId, token: Token) -> Result<(), Failure> {
        self.step(id, SourceCause::Resumed)?;
        let held = self.entries.get_mut(id).ok_or(Failure::new(Code::Internal))?;
        let logged = held.logged.take().filter(|logged| logged.token == token);
        let logged = logged.ok_or(Failure::new(Code::Protocol))?;
        let (entry, object_bytes) = (held.entry.clone(), held.laid.object_bytes);
        if held.at_sink.as_ref().is_some_and(|laid| laid.object_bytes != object_bytes) {
            return Err(Failure::new(Code::Protocol));
        }
        let skipped = (0..logged.done.len()).filter(|index| logged.done.get(*index));
        let bytes: u64 = skipped
            .map(|index| u64::from(object_range(entry.size(), logged.object_bytes, index as u32).1))
            .sum();
        let objects = logged.done.count();
        self.stats.objects_skipped += objects;
        self.stats.bytes_skipped = self.stats.bytes_skipped.saturating_add(bytes);
        let full = logged.done.is_full();
        self.activate(id, object_bytes, logged.done);
        if let Some(held) = self.entries.get_mut(id).and_then(|held| held.objects.as_deref_mut()) {
            held.counted = Share { bytes_done: 0, bytes_skipped: bytes, objects_skipped: objects };
        }
        if self.tells_before && objects > 0 {
            self.actions.push_back(Action::Send(Message::Before { id, objects, bytes }));
        }
        let path = self.log_key(&entry);
        self.actions.push_back(Action::Log(LogOp::Resume { id, path }));
        if full { self.confirm(id) } else { Ok(()) }
    }

    fn activate(&mut self, id: EntryId, object_bytes: u32, durable: Bitmap) {
        let complete = durable.is_full();
        if let Some(held) = self.entries.get_mut(id) {
            let here = held.laid.clone().cut_to_at_most(object_bytes).placement;
            let there = held.at_sink.take().map_or_else(Placement::default, |laid| laid.placement);
            held.objects = Some(Box::new(Objects {
                object_bytes,
                here,
                there,
                durable,
                next: 0,
                shown: 0,
                again: Vec::new(),
                sent: HashSet::new(),
                put_back: Vec::new(),
                attempts: Vec::new(),
                spilled: HashMap::new(),
                opened: false,
                root: None,
                lent: false,
                counted: Share::default(),
            }));
        }
        if !complete {
            self.files.push_back(id);
        }
    }

    fn log_key(&self, entry: &Entry) -> Vec<u8> {
        self.directories.key(entry.parent, &entry.name)
    }
}
