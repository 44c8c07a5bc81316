//! The source master: announces, reads, sends, logs, closes.
//!
//! [`Source`] holds the entries that are open and nothing else: an entry leaves its table when it has ended. The parts:
//! `announce` (scan in, answers back), `bundles` (small files, target by target), `choose` (which object is next: the
//! scheduler), `transfer` (objects and bundles through slots and credits), `spill` (objects that wait outside of slots),
//! `settle` (what is durable, what must come again, how entries end).

mod announce;
mod bundles;
mod choose;
mod lent;
mod looks;
mod settle;
mod spill;
mod transfer;

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use hashbrown::{HashMap, HashSet};
use haul_model::limits::{ENTRIES_OPEN_MAX, FILES_OPEN_MAX};
use haul_model::op::{Progress, SourceDone, SourceOp};
use haul_model::placement::ARCHIVE;
use haul_model::profile::Waiting;
use haul_model::report::{Fact, Share, Stats};
use haul_model::stripe::Unlike;
use haul_model::{
    Bitmap, BlockId, Code, Entry, EntryId, Failure, Hash, Laid, Placement, Plan, SlotId, Target, Token,
};
use haul_wire::{FEATURE_BEFORE, Member, Message};

use self::bundles::Bundles;
pub use self::bundles::WAIT_NANOS as BUNDLE_WAIT_NANOS;
use self::choose::Wanted;
use self::lent::Lent;
use self::looks::Looks;
use self::spill::{Kept, Spill};

use crate::clock::Clock;
use crate::credit::Credits;
use crate::directories::Directories;
use crate::entries::Entries;
use crate::event::{Action, Event, LogOp, LogView, Logged, Outcome};
use crate::extents::Extent;
use crate::hands::Hands;
use crate::planted::{Bug, Planted};
use crate::scheduler::{self, Policy, Said, Scheduler, TargetId, Ticket};
use crate::states::{Coverage, SourceCause, SourceState, source_step};
use crate::window::Window;

/// What does not change during a session.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of a slot, and of an object where nothing asks for smaller ones.
    pub object_bytes: u32,
    /// Files up to this size travel in bundles; at most `object_bytes`. Empty files always do.
    pub bundle_bytes_max: u64,
    /// Slots of the source's pool.
    pub slots: u32,
    /// How many of them are used at least; the rest as needed.
    pub slots_least: u32,
    /// I/O threads.
    pub hands: u32,
    /// How many there may be where files are on several targets.
    pub hands_max: u32,
    /// How targets are chosen.
    pub policy: Policy,
    /// After how long a request is taken for hung; as measured if nobody says.
    pub hangs_after_nanos: Option<u64>,
    /// Bytes that may be put away while the sink cannot take them; 0: none. In [`Policy::FileOrder`] none are.
    pub spill_bytes_max: u64,
    /// Files with objects that may be on the way at a time, where there are few descriptors; never more than [`FILES_OPEN_MAX`].
    pub files_open_max: usize,
    /// Names of the SOURCEs below the destination (empty: merged into it).
    pub roots: Vec<Box<[u8]>>,
    /// Report each file that is done, not only those that failed.
    pub report_done: bool,
    /// For the simulator.
    pub planted: Planted,
}

/// An open entry.
struct Held {
    entry: Arc<Entry>,
    state: SourceState,
    /// How it lies here, in objects of the size that is proposed to the sink.
    laid: Laid,
    /// What it is striped as, if that was chosen for it.
    stripes: Option<Box<Plan>>,
    /// What the log said when it was announced; until it is answered. Few have it.
    logged: Option<Box<Logged>>,
    /// How often it was asked for again as a member.
    attempts: u8,
    /// The bundle that it was lent in as a member (see [`lent`]), or 0: nobody has looked at it yet.
    lent: u32,
    /// It is on its way as a member, or at the sink, and was not asked for again.
    sent: bool,
    /// How often it has started again because it changed.
    restarts: u8,
    /// How it lies there; until it is answered.
    at_sink: Option<Box<Laid>>,
    /// Of files with objects, once answered.
    objects: Option<Box<Objects>>,
}

/// A file that is sent in objects.
struct Objects {
    /// Of each but the last.
    object_bytes: u32,
    /// Which target of this end each is on.
    here: Placement,
    /// And of the sink.
    there: Placement,
    /// Durable at the sink.
    durable: Bitmap,
    /// Objects before this number have been shown to the scheduler, or were durable before.
    next: u64,
    /// Objects that the scheduler has of it.
    shown: u32,
    /// At the sink or on its way there; not durable yet, nor asked for again.
    sent: HashSet<u32>,
    /// To be sent again.
    again: Vec<u32>,
    /// Picked before its file could be opened, the last one first: nobody has read those yet.
    put_back: Vec<u32>,
    /// How often each of those was asked for again.
    attempts: Vec<(u32, u8)>,
    /// In the spill: read, and not sent yet.
    spilled: HashMap<u32, Kept>,
    /// It counts against the limit of open files.
    opened: bool,
    /// The root, where one object is all.
    root: Option<Hash>,
    /// Each was lent when it was first sent.
    lent: bool,
    /// What counts of it already.
    counted: Share,
}

enum Content {
    /// Without a hash where it is hashed on its way.
    Object { id: EntryId, index: u32, hash: Option<Hash> },
    Bundle {
        asked: Vec<EntryId>,
        members: Vec<Member>,
        /// How far storage is, and was at the last look.
        progress: Progress,
        mark: u32,
    },
}

impl Content {
    /// What is in it: an object of a file, or members as a whole.
    fn items(&self) -> Vec<(EntryId, Option<u32>)> {
        match self {
            Content::Object { id, index, .. } => vec![(*id, Some(*index))],
            Content::Bundle { members, .. } => members.iter().map(|member| (member.id, None)).collect(),
        }
    }

    /// The file that storage is at.
    fn is_at(&self) -> Option<EntryId> {
        match self {
            Content::Bundle { asked, progress, .. } => asked.get(progress.mark() as usize).copied(),
            Content::Object { id, .. } => Some(*id),
        }
    }

    /// The members that storage was asked for; once.
    fn take_asked(&mut self) -> Vec<EntryId> {
        match self {
            Content::Bundle { asked, .. } => core::mem::take(asked),
            Content::Object { .. } => Vec::new(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Reading,
    /// Storage has not answered for so long that its thread was written off; nobody waits for it.
    Lost,
    /// It was read ahead, and waits to be written to the spill or is.
    PuttingAway,
    Ready,
    Sending,
}

/// An object or bundle that occupies a slot of the source.
struct Block {
    local: SlotId,
    length: u32,
    content: Content,
    stage: Stage,
    /// What the scheduler knows it by.
    ticket: Ticket,
    /// If it is lost: the file that storage was at, and the target.
    hangs: Option<(EntryId, TargetId)>,
    /// When the stage began.
    since_nanos: u64,
    /// Where it is in the spill, or will be.
    extent: Option<Extent>,
    /// It goes into the spill.
    ahead: bool,
}

/// The source master.
pub struct Source {
    config: Config,
    directories: Directories,
    entries: Entries<Held>,
    /// Files that have ended while storage was still reading from them, with their directories.
    leaving: Vec<(EntryId, EntryId)>,
    announced: usize,
    next_restart: u64,

    free: Vec<SlotId>,
    /// The fewest that were.
    free_min: usize,
    window: Window,
    credits: Credits,
    blocks: HashMap<BlockId, Block>,
    /// What was on its way out when a connection was lost, and does not count as sent.
    taken_back: BTreeSet<(EntryId, Option<u32>)>,
    next_block: u64,
    ready: VecDeque<BlockId>,

    scheduler: Scheduler<Wanted>,
    /// Storage is at work on so many blocks.
    reading: u32,
    /// And so many have threads that were written off.
    lost: u32,
    spill: Spill,
    looks: Looks,
    /// What was sent into a slot of the sink that is not granted again yet.
    in_credit: HashMap<SlotId, Ticket>,
    hands: Hands,
    /// Targets of the sink that answer no more.
    dead_at_sink: HashSet<Target>,
    /// Files are on several targets, of this end or the other.
    several_targets: bool,
    /// It was told that there is a file at the sink that is striped otherwise.
    unlike_told: [bool; Unlike::ALL.len()],

    bundles: Bundles,
    lent: Lent,
    /// Files of which the scheduler has seen something, and of which nothing could be read yet: too many were open.
    waiting_to_open: VecDeque<EntryId>,
    /// Files of which the scheduler has seen nothing.
    files: VecDeque<EntryId>,
    files_opened: usize,

    clock: Clock,
    epoch: u32,
    link_up: bool,
    hashes_on_the_way: bool,
    /// The sink wants to know how much of a file was durable before.
    tells_before: bool,
    connected: bool,
    scan_ended: bool,
    bye_sent: bool,
    ended: bool,
    stats: Stats,
    /// Of what failed: that which is neither file, directory nor symlink, and of which there is no log.
    without_contents: u64,
    coverage: Coverage,
    actions: VecDeque<Action>,
}

impl Source {
    /// A session that has not begun.
    pub fn new(config: Config) -> Self {
        assert!(config.bundle_bytes_max <= u64::from(config.object_bytes), "a member must fit into a slot");
        let hands = Hands::new(config.hands, config.hands_max);
        let spill_room = if config.policy == Policy::FileOrder { 0 } else { config.spill_bytes_max };
        Source {
            directories: Directories::new(config.roots.clone()),
            entries: Entries::new(),
            leaving: Vec::new(),
            announced: 0,
            next_restart: 1 << 62,
            free: (0..config.slots).rev().map(SlotId).collect(),
            free_min: config.slots as usize,
            window: Window::new(config.slots_least, config.slots),
            credits: Credits::default(),
            blocks: HashMap::new(),
            taken_back: BTreeSet::new(),
            next_block: 0,
            ready: VecDeque::new(),
            scheduler: Scheduler::new(scheduler::Config {
                patience_nanos: config.hangs_after_nanos,
                archive: Some(ARCHIVE.into()),
                ..scheduler::Config::new(hands.at_a_time(), config.slots, config.policy)
            }),
            reading: 0,
            lost: 0,
            spill: Spill::new(spill_room, config.object_bytes),
            looks: Looks::default(),
            in_credit: HashMap::new(),
            hands,
            dead_at_sink: HashSet::new(),
            several_targets: false,
            unlike_told: Default::default(),
            bundles: Bundles::default(),
            lent: Lent::default(),
            waiting_to_open: VecDeque::new(),
            files: VecDeque::new(),
            files_opened: 0,
            clock: Clock::default(),
            epoch: 0,
            link_up: false,
            hashes_on_the_way: false,
            tells_before: false,
            connected: false,
            scan_ended: false,
            bye_sent: false,
            ended: false,
            stats: Stats::default(),
            without_contents: 0,
            coverage: Coverage::default(),
            actions: VecDeque::new(),
            config,
        }
    }

    /// May the scan go on? What it finds is kept until it has ended.
    pub fn wants_scan(&self) -> bool {
        self.connected && !self.scan_ended && self.entries.len() < ENTRIES_OPEN_MAX / 2
    }

    /// Objects, and their bytes, that count as sent, but are still on their way out of this end.
    pub fn sending(&self) -> (u64, u64) {
        let sending = self.blocks.values().filter(|block| block.stage == Stage::Sending);
        sending.fold((0, 0), |(objects, bytes), block| (objects + 1, bytes + u64::from(block.length)))
    }

    /// Counters so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Slots that were in use at a time, at most.
    pub fn slots_used(&self) -> u32 {
        self.config.slots - self.free_min as u32
    }

    /// The scan has ended, so the totals are final.
    pub fn totals_are_final(&self) -> bool {
        self.scan_ended
    }

    /// Rows of the state table that were taken.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// What holds it up now: where most of what is under way is.
    pub fn waiting(&self) -> Option<Waiting> {
        if !self.connected {
            return None;
        }
        if !self.link_up {
            return Some(Waiting::Link);
        }
        if !self.ready.is_empty() && self.credits.held() == 0 {
            return Some(Waiting::Credit);
        }
        let (mut reading, mut sending) = (0, 0);
        for block in self.blocks.values() {
            match block.stage {
                Stage::Reading | Stage::PuttingAway | Stage::Lost => reading += 1,
                Stage::Sending => sending += 1,
                Stage::Ready => {}
            }
        }
        Some(match (reading, sending) {
            (0, 0) if self.announced > 0 => Waiting::Answers,
            (0, 0) if self.wants_scan() => Waiting::Scan,
            // All has been sent, or as many entries are open as may be.
            (0, 0) => Waiting::Settle,
            _ if sending > reading => Waiting::Send,
            _ => Waiting::Read,
        })
    }

    /// What other transfers on this host may want to know of this end's targets.
    pub fn said(&self) -> impl Iterator<Item = Said> + '_ {
        // Whoever cannot read on now, as nothing leaves, wants nothing of its neighbours.
        let can_take = self.link_up && !self.free.is_empty();
        self.scheduler.said(self.clock.now()).map(move |said| Said { wants: said.wants && can_take, ..said })
    }

    /// Slots that are neither being read into nor being sent.
    pub fn slots_free(&self) -> usize {
        self.free.len()
    }

    /// Slots of the sink that may be sent into.
    pub fn credits_held(&self) -> usize {
        self.credits.held()
    }

    /// Entries that have not ended.
    pub fn open_entries(&self) -> usize {
        self.entries.len()
    }

    /// Directories that are alive.
    pub fn open_directories(&self) -> usize {
        self.directories.len()
    }

    /// What is to be done, in order.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The session has ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Takes one event in. Afterwards [`Source::next_action`] is to be drained.
    pub fn on_event(&mut self, event: Event, log: &mut dyn LogView, now_nanos: u64) {
        if self.ended {
            return;
        }
        self.clock.advance(now_nanos);
        if let Err(failure) = self.handle(event, log) {
            self.fail(failure);
        }
        if !self.ended {
            self.pump();
        }
    }

    fn handle(&mut self, event: Event, log: &mut dyn LogView) -> Result<(), Failure> {
        match event {
            Event::LinkUp { epoch, peer } => {
                self.tells_before = peer.features & FEATURE_BEFORE != 0;
                self.on_link_up(epoch, peer.slots);
            }
            Event::HashesOnTheWay(may) => self.hashes_on_the_way = may,
            Event::LinkDown => self.on_link_down(),
            Event::Scanned(items) => return self.on_scanned(items, log),
            Event::ScanFailed { path, failure } => self.on_scan_failed(path, failure),
            Event::ScanEnded => self.scan_ended = true,
            Event::SourceDone(done) => return self.on_done(done),
            Event::Sent(block) => self.on_sent(block),
            Event::Message(message) => return self.on_message(message),
            Event::Stop(failure) => self.fail(failure),
            Event::NeighboursSaid(told) => self.scheduler.neighbours_said(&told, self.clock.now()),
            Event::Tick => {}
            Event::SinkDone(_)
            | Event::ErrandDone { .. }
            | Event::Payload { .. }
            | Event::RoundTrip { .. } => {
                return Err(Failure::new(Code::Internal));
            }
        }
        Ok(())
    }

    fn on_message(&mut self, message: Message) -> Result<(), Failure> {
        match message {
            Message::FileId { answers, laid, unlike } => {
                unlike.into_iter().try_for_each(|(id, why)| self.on_unlike(id, why))?;
                laid.into_iter().try_for_each(|(id, laid)| self.on_laid(id, laid))?;
                answers.into_iter().try_for_each(|(id, answer)| self.on_answer(id, answer))
            }
            Message::BlockDone { slots, allowances } => {
                slots.into_iter().try_for_each(|slot| self.on_granted(slot))?;
                allowances.into_iter().try_for_each(|(target, count)| self.on_allowance(target, count))
            }
            Message::BlockSync { objects, entries } => {
                for (id, index) in objects {
                    self.on_durable(id, index)?;
                }
                entries.into_iter().try_for_each(|(id, settled)| self.on_settled(id, settled))
            }
            Message::Repair(repairs) => repairs.into_iter().try_for_each(|repair| self.on_repair(repair)),
            Message::Finished(failed) if self.bye_sent => {
                self.on_finished(failed);
                Ok(())
            }
            Message::Error(failure) => {
                self.end(Some(failure));
                Ok(())
            }
            Message::Ping => Ok(()),
            _ => Err(Failure::new(Code::Protocol)),
        }
    }

    fn on_done(&mut self, done: SourceDone) -> Result<(), Failure> {
        match done {
            SourceDone::Object { block, result } => self.on_object_read(block, result),
            SourceDone::Spilled { block, result } => self.on_spilled(block, result),
            SourceDone::Members { block, length, results } => self.on_members_read(block, length, results),
            SourceDone::Confirmed { id, result } => self.on_confirmed(id, result),
            SourceDone::Restated { id, result } => self.on_restated(id, result),
        }
    }

    fn on_link_up(&mut self, epoch: u32, sink_slots: u32) {
        if !self.connected {
            self.credits = Credits::new(sink_slots);
            self.connected = true;
        }
        self.epoch = epoch;
        self.link_up = true;
    }

    /// Payloads that were being sent may or may not have arrived: the sink knows, and asks for what it lacks.
    fn on_link_down(&mut self) {
        self.link_up = false;
        let entries = &self.entries;
        self.taken_back.retain(|(id, _)| entries.get(*id).is_some());
        let mut lost: Vec<_> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.stage == Stage::Sending)
            .map(|(id, block)| (*id, block.local, block.length))
            .collect();
        // In one order in every run: the slot that is freed last is used first.
        lost.sort_unstable_by_key(|(id, ..)| *id);
        for (id, local, length) in lost {
            // Its slot at the sink comes back, and the unit of the sink's target with it.
            let Some(Block { content, extent, .. }) = self.forget_block(id) else { continue };
            if let Some(extent) = extent {
                self.spill.give_back(extent);
            }
            // It has not left, at least not as a whole; it counts when it is sent again. (BYE has told the final counts.)
            if !self.bye_sent {
                self.stats.objects_sent -= 1;
                self.stats.bytes_sent -= u64::from(length);
                self.taken_back.extend(content.items());
            }
            if !self.config.planted.has(Bug::SlotLostAtReconnect) {
                self.free.push(local);
            }
        }
        if self.config.planted.has(Bug::CreditLostAtReconnect) {
            self.credits.forget_all();
        }
    }

    /// Objects are on several targets: a read that hangs is written off.
    pub fn writes_off(&self) -> bool {
        self.hands.has_several_targets()
    }

    /// Starts whatever can be started.
    fn pump(&mut self) {
        self.watch_looks();
        self.write_off();
        self.close_bundles();
        self.start_spills();
        self.start_reads();
        // Slots of files that were dropped meanwhile are free again.
        while self.send_ready() {
            self.start_reads();
        }
        self.window.stands(self.stand(), self.clock.now());
        let nothing_open = self.entries.is_empty()
            || self.config.planted.has(Bug::EndedEarly)
                && self.entries.values().all(|held| held.state == SourceState::Bundled);
        let nothing_open = nothing_open && self.leaving.is_empty();
        if self.scan_ended && self.connected && nothing_open && !self.bye_sent {
            self.bye_sent = true;
            self.actions.push_back(Action::Send(Message::Bye(self.stats)));
        }
    }

    fn step(&mut self, id: EntryId, cause: SourceCause) -> Result<(), Failure> {
        let held = self.entries.get_mut(id).ok_or(Failure::new(Code::Protocol))?;
        let (state, row) = source_step(held.state, cause)?;
        if held.state == SourceState::Announced {
            self.announced -= 1;
        }
        held.state = state;
        self.coverage.source[row] += 1;
        Ok(())
    }

    /// The entry ends: nothing of it stays, and its directory may be settled by that.
    fn close(&mut self, id: EntryId, cause: SourceCause) -> Result<Held, Failure> {
        self.close_keeping(id, cause, (false, cause == SourceCause::Done))
    }

    /// The same. What the log knows of it may be of use in a later run.
    fn close_keeping(
        &mut self,
        id: EntryId,
        cause: SourceCause,
        (keeps_its_log, counts): (bool, bool),
    ) -> Result<Held, Failure> {
        self.step(id, cause)?;
        let mut held = self.entries.remove(id).ok_or(Failure::new(Code::Internal))?;
        self.lent.had(held.lent);
        debug_assert_eq!(held.state, SourceState::Ended);
        if let Some(objects) = &mut held.objects {
            if !counts && !self.config.planted.has(Bug::DroppedCounts) {
                self.stats.take_back(objects.counted);
            }
            let spilled = core::mem::take(&mut objects.spilled);
            self.drop_spilled(id, spilled);
            self.files_opened -= usize::from(objects.opened);
            if !keeps_its_log {
                self.actions.push_back(Action::Log(LogOp::Remove { id }));
            }
            self.leaving.push((id, held.entry.parent));
            self.leave(id);
        } else {
            self.release_parent(held.entry.parent);
        }
        Ok(held)
    }

    /// Releases a file that has ended, unless storage is still reading from it: then after the last read, which would
    /// open it again below a directory that is forgotten.
    fn leave(&mut self, id: EntryId) {
        let reads = |block: &Block| {
            block.stage == Stage::Reading
                && matches!(block.content, Content::Object { id: of, .. } if of == id)
        };
        let Some(position) = self.leaving.iter().position(|(leaving, _)| *leaving == id) else { return };
        if !self.blocks.values().any(reads) || self.config.planted.has(Bug::ReleasedWhileRead) {
            let (_, parent) = self.leaving.swap_remove(position);
            self.actions.push_back(Action::Source(SourceOp::Release { id }));
            self.release_parent(parent);
        }
    }

    fn release_parent(&mut self, parent: EntryId) {
        let mut settled = Vec::new();
        self.directories.release(parent, &mut settled);
        for id in settled {
            self.actions.push_back(Action::Source(SourceOp::Forget { id }));
        }
    }

    /// The entry will not be complete: it is named, at both ends.
    fn report_failed(&mut self, entry: &Entry, failure: Failure) {
        self.stats.files_failed += 1;
        let path = self.directories.path(entry.parent, &entry.name);
        self.actions.push_back(Action::Fact(Fact::Failed { path, failure }));
    }

    fn fail(&mut self, failure: Failure) {
        self.actions.push_back(Action::Send(Message::Error(failure)));
        self.end(Some(failure));
    }

    fn end(&mut self, failure: Option<Failure>) {
        self.ended = true;
        self.actions.push_back(Action::Ended(Outcome { failure, stats: self.stats }));
    }

    fn may_open_file(&self) -> bool {
        self.files_opened < self.config.files_open_max.clamp(1, FILES_OPEN_MAX)
    }

    fn fresh_token(token: Token) -> bool {
        token != Token::NONE
    }
}
