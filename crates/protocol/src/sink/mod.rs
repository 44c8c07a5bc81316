//! The sink master: answers, grants, writes, commits, acknowledges.
//!
//! [`Sink`] holds the entries that are open and the state of each slot. The parts: `prepare` (NEW_FILE in, FILE_ID out,
//! drops), `errand` (what storage is asked beside writing, and what hangs), `receive` (announcements and payloads meet in a
//! slot and are written), `parts` (members of bundles, made first and written target by target), `choose` (which of them is next: the
//! scheduler), `commit` (groups through the order rule, acknowledgements), `full` (targets without room), `unlisted` (what could not be
//! listed at the source).

mod choose;
mod commit;
mod errand;
mod full;
mod making;
mod parts;
mod prepare;
mod receive;
mod unlisted;

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use hashbrown::{HashMap, HashSet};
use haul_model::error::Blame;
use haul_model::limits::BATCH_ITEMS_MAX;
use haul_model::op::{MembersStep, SinkDone, SinkOp};
use haul_model::placement::is_object_size;
use haul_model::profile::Waiting;
use haul_model::report::{Fact, FailedPaths, Share, Stats};
use haul_model::stripe::Unlike;
use haul_model::{
    BlockId, Code, Entry, EntryId, Failure, Hash, Laid, ObjectSet, Placement, Plan, SlotId, Target, Token,
};
use haul_wire::{Answer, Message, Repair, Settled};

use self::choose::{TIMED_OUT, ToWrite};
use self::errand::{About, Hanging};
use self::receive::{Slot, Work, Write};
use self::unlisted::Unlisted;
use crate::clock::Clock;
use crate::committer::Committer;
use crate::directories::Directories;
use crate::entries::Entries;
use crate::errands::Errands;
use crate::event::{Action, Event, Outcome};
use crate::hands::Hands;
use crate::pace::Pace;
use crate::planted::{Bug, Planted};
use crate::scheduler::{self, Policy, Said, Scheduler};
use crate::states::{Coverage, SinkCause, SinkState, sink_step};
use crate::window::Window;

/// What does not change during a session.
#[derive(Clone, Debug)]
pub struct Config {
    /// Slots of the sink's pool.
    pub slots: u32,
    /// How many of them may be used whatever for; the others only for what is on its way over a long network.
    pub slots_near: u32,
    /// How many of them are granted at least; the rest as needed.
    pub slots_least: u32,
    /// I/O threads.
    pub hands: u32,
    /// How many there may be where files are on several targets.
    pub hands_max: u32,
    /// How targets are chosen.
    pub policy: Policy,
    /// After how long a request is taken for hung; as measured if nobody says.
    pub hangs_after_nanos: Option<u64>,
    /// Storage makes files durable one by one, so each of a group can be waited for by itself.
    pub syncs_each: bool,
    /// Files may lie on several targets; see `haul_storage::SinkStorage::lies_apart`.
    pub lies_apart: bool,
    /// The most threads that a lane of errands has.
    pub errand_threads_max: u32,
    /// Bytes of a slot.
    pub slot_bytes: u32,
    /// Names of the SOURCEs below the destination (empty: merged into it).
    pub roots: Vec<Box<[u8]>>,
    /// SOURCEs may be directories; else nothing but files comes, each a SOURCE.
    pub recursive: bool,
    /// Report each file that is done, not only those that failed.
    pub report_done: bool,
    /// For the simulator.
    pub planted: Planted,
}

/// An open entry.
struct Held {
    entry: Arc<Entry>,
    state: SinkState,
    /// Names the unfinished file of a file with objects.
    token: Token,
    objects: Option<Box<Objects>>,
    /// Of a member of a bundle: the target that it was made on, if its file system tells.
    on: Option<Target>,
}

/// An answer to NEW_FILE, with how the file lies, and how it is not striped.
struct Told {
    id: EntryId,
    answer: Answer,
    laid: Option<Laid>,
    unlike: Option<Unlike>,
}

/// A file that comes in objects.
struct Objects {
    /// As its source is striped.
    stripes: Option<Box<Plan>>,
    /// Of each but the last.
    object_bytes: u32,
    /// Which target each is on.
    placement: Placement,
    /// Durable objects of this session.
    durable: ObjectSet,
    /// The source's log says that others were durable before.
    resumed: bool,
    /// Writes that storage has not answered yet.
    writing: u32,
    /// Of those that storage is at, and that somebody waits for.
    at_work: u32,
    /// Of those that nobody waits for any more.
    lost: u32,
    /// Of the whole file, once sealed.
    root: Option<Hash>,
    discarding: bool,
    /// It failed for this, and nothing is wrong with what is durable of it: that stays for a later run.
    keep: Option<Failure>,
    /// It was being let go of when it turned out that it is to be removed.
    unkept: bool,
    /// It was sealed once more, as the sync of the sealed file had failed.
    sealed_again: bool,
    /// What counts of it already.
    counted: Share,
}

/// The sink master.
pub struct Sink {
    config: Config,
    /// The most that an object of this session has.
    object_bytes: u32,
    directories: Directories,
    /// SOURCEs that were announced.
    roots_met: HashMap<u32, EntryId>,
    /// Met before, and not dropped yet to start again.
    roots_left: HashSet<EntryId>,
    entries: Entries<Held>,
    batches: u64,
    preparing: usize,

    slots: Vec<Slot>,
    /// When each was granted.
    granted_nanos: Vec<u64>,
    window: Window,
    /// How many were in use at a time so far: they are the slots that were ever granted.
    slots_used: usize,
    /// The source knows targets of this end, and waits for what it sends to each of them.
    told_targets: bool,
    writes: HashMap<BlockId, Write>,
    scheduler: Scheduler<ToWrite>,
    /// Bundles that wait for a thread to make their members.
    bundles: VecDeque<BlockId>,
    bundle_turn: bool,
    creates: Pace,
    hands: Hands,
    /// Storage is at work on so many payloads.
    writing: u32,
    /// And on so many that nobody waits for any more.
    lost: usize,
    /// Bundles of which a member was never made.
    made_in_vain: u64,
    withheld: Vec<SlotId>,
    granted: Vec<SlotId>,
    committer: Committer,
    errands: Errands<About>,
    syncing: HashMap<EntryId, commit::Syncing>,
    /// Files that nothing is being written into any more.
    written_out: Vec<EntryId>,
    /// Writes were taken up again.
    more_to_write: bool,
    /// Objects of files that are being synced.
    set_aside: HashMap<EntryId, Vec<BlockId>>,
    /// Files that something hangs on; they may have ended long ago.
    hanging: HashMap<EntryId, Hanging>,
    /// Targets on which files straggle, with how many do.
    lagging: HashMap<Target, u32>,
    /// How often one has become such a target, or has ceased to be.
    lag_turns: u64,
    /// Targets that get nothing now, as too much waits for slow ones.
    held_back: BTreeSet<Target>,
    /// What that follows from, as it was at the last look: which targets are slow has not changed since.
    held_back_for: Option<(u64, u64, u32)>,
    /// What the source is to be told of targets.
    allowances: Vec<(Target, u32)>,
    /// Answers to NEW_FILE that are not sent yet.
    answers: Vec<Told>,
    repairs: Vec<Repair>,
    durable: Vec<(EntryId, u32)>,
    settled: Vec<(EntryId, Settled)>,

    clock: Clock,
    epoch: u32,
    connected: bool,
    draining: Option<Failure>,
    /// The first file that met it.
    without_room: Option<EntryId>,
    room: full::Room,
    bye: bool,
    spill_told: bool,
    unlisted: Unlisted,
    finishing: bool,
    ended: bool,
    stats: Stats,
    coverage: Coverage,
    actions: VecDeque<Action>,
}

impl Sink {
    /// A session that has not begun.
    pub fn new(config: Config) -> Self {
        let hands = Hands::new(config.hands, config.hands_max);
        let near = config.slots_near.min(config.slots);
        Sink {
            object_bytes: config.slot_bytes,
            directories: Directories::new(config.roots.clone()),
            roots_met: HashMap::new(),
            roots_left: HashSet::new(),
            entries: Entries::new(),
            batches: 0,
            preparing: 0,
            slots: (0..config.slots).map(|_| Slot::Withheld).collect(),
            granted_nanos: vec![0; config.slots as usize],
            window: Window::new(config.slots_least, near).reaching(config.slots),
            slots_used: 0,
            told_targets: false,
            writes: HashMap::new(),
            scheduler: Scheduler::new(scheduler::Config {
                patience_nanos: config.hangs_after_nanos,
                ..scheduler::Config::new(hands.at_a_time(), near, config.policy)
            }),
            bundles: VecDeque::new(),
            bundle_turn: false,
            creates: Pace::new(config.policy, hands.at_a_time()),
            hands,
            writing: 0,
            lost: 0,
            made_in_vain: 0,
            withheld: (0..config.slots).rev().map(SlotId).collect(),
            granted: Vec::new(),
            committer: Committer::new(config.planted),
            errands: Errands::new(config.errand_threads_max, config.hangs_after_nanos, config.planted),
            syncing: HashMap::new(),
            written_out: Vec::new(),
            more_to_write: false,
            set_aside: HashMap::new(),
            hanging: HashMap::new(),
            lagging: HashMap::new(),
            lag_turns: 0,
            held_back: BTreeSet::new(),
            held_back_for: None,
            allowances: Vec::new(),
            answers: Vec::new(),
            repairs: Vec::new(),
            durable: Vec::new(),
            settled: Vec::new(),
            clock: Clock::default(),
            epoch: 0,
            connected: false,
            draining: None,
            without_room: None,
            room: full::Room::default(),
            bye: false,
            spill_told: false,
            unlisted: Unlisted::default(),
            finishing: false,
            ended: false,
            stats: Stats::default(),
            coverage: Coverage::default(),
            actions: VecDeque::new(),
            config,
        }
    }

    /// Counters: this end's own until BYE, then the source's.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The source has found everything, so the totals are final. One that does not tell of a SOURCE, as it has failed, tells with BYE.
    pub fn totals_are_final(&self) -> bool {
        self.bye || self.roots_met.len() == self.config.roots.len() && self.directories.all_ended()
    }

    /// Rows of the state table that were taken.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// When to send [`Event::Tick`] although nothing happens.
    pub fn deadline_nanos(&self) -> Option<u64> {
        // Time passes for what is watched only as far as this end sees it pass.
        let watched = self.errands.deadline_nanos().map(|at| self.clock.real(at));
        let making = self.making_deadline_nanos().map(|at| self.clock.real(at));
        self.committer.deadline_nanos().into_iter().chain(watched).chain(making).min()
    }

    /// What holds it up now: storage, if it has most of the slots that are in use.
    pub fn waiting(&self) -> Option<Waiting> {
        if !self.connected {
            return None;
        }
        let coming = self.slots.len().saturating_sub(self.withheld.len() + self.writes.len());
        Some(if self.committer.is_full() {
            Waiting::Sync
        } else if self.writes.len() >= coming.max(1) {
            Waiting::Write
        } else if !self.writes.is_empty() {
            Waiting::Next
        } else if self.preparing > 0 {
            Waiting::Names
        } else if self.bye || !self.committer.is_idle() {
            Waiting::Settle
        } else {
            Waiting::Payload
        })
    }

    /// Bundles whose members may be made at a time.
    pub fn creates_limit(&self) -> u32 {
        self.creates.limit()
    }

    /// Something of this group is not durable yet, and it waits for that.
    pub fn is_group_running(&self, number: u64) -> bool {
        self.committer.is_running(number)
    }

    /// What other transfers on this host may want to know of this end's targets.
    pub fn said(&self) -> impl Iterator<Item = Said> + '_ {
        self.scheduler.said(self.clock.now())
    }

    /// Slots that are granted, or free and not granted.
    pub fn slots_idle(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot, Slot::Withheld | Slot::Granted)).count()
    }

    /// Slots that were granted or in use at a time, at most.
    pub fn slots_used(&self) -> u32 {
        self.slots_used as u32
    }

    /// Slots that are granted and not in use.
    pub fn slots_granted(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot, Slot::Granted)).count()
    }

    /// Entries that have not ended.
    pub fn open_entries(&self) -> usize {
        self.entries.len()
    }

    /// Directories that are alive.
    pub fn open_directories(&self) -> usize {
        self.directories.len()
    }

    /// Files are on several targets: what hangs is given up.
    pub fn is_watchful(&self) -> bool {
        self.errands.is_watched()
    }

    /// Objects are on several targets: a write that hangs is written off.
    pub fn writes_off(&self) -> bool {
        self.hands.has_several_targets()
    }

    /// What is to be done, in order.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The session has ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Takes one event in. Afterwards [`Sink::next_action`] is to be drained.
    pub fn on_event(&mut self, event: Event, now_nanos: u64) {
        if self.ended {
            return;
        }
        self.clock.advance(now_nanos);
        if let Err(failure) = self.handle(event, now_nanos) {
            self.fail(failure);
        }
        if !self.ended
            && let Err(failure) = self.watch_errands(now_nanos).and_then(|()| {
                self.more_to_write = false;
                self.start_writes()
            })
        {
            self.fail(failure);
        }
        if !self.ended {
            self.pump(now_nanos);
        }
    }

    fn handle(&mut self, event: Event, now_nanos: u64) -> Result<(), Failure> {
        match event {
            Event::LinkUp { epoch, peer } => {
                if !self.connected && !is_object_size(peer.object_bytes, self.config.slot_bytes) {
                    return Err(Failure::new(Code::LimitExceeded));
                }
                self.object_bytes = if self.connected { self.object_bytes } else { peer.object_bytes };
                self.connected = true;
                self.epoch = epoch;
            }
            Event::RoundTrip { nanos } => self.window.round_trip(nanos),
            Event::LinkDown => self.on_link_down(),
            Event::Message(message) => return self.on_message(message, now_nanos),
            Event::Payload { epoch, block, slot, length, hashes } => {
                return self.on_payload(epoch, block, slot, (length, hashes));
            }
            Event::SinkDone(done) => return self.on_done(done, now_nanos),
            Event::ErrandDone { number, done } => return self.on_errand_done(number, done, now_nanos),
            Event::Stop(failure) => self.fail(failure),
            Event::NeighboursSaid(told) => self.scheduler.neighbours_said(&told, self.clock.now()),
            Event::Tick => {}
            Event::Scanned(_)
            | Event::ScanFailed { .. }
            | Event::ScanEnded
            | Event::SourceDone(_)
            | Event::HashesOnTheWay(_)
            | Event::Sent(_) => return Err(Failure::new(Code::Internal)),
        }
        Ok(())
    }

    fn on_message(&mut self, message: Message, _now_nanos: u64) -> Result<(), Failure> {
        match message {
            Message::NewFile(items) if !self.bye => self.on_new_files(items),
            Message::NewBlock { block, slot, epoch, id, index, length, hash } => {
                self.on_new_block(block, slot, epoch, length, Work::Object { id, index, length, hash })
            }
            Message::Manifest { block, slot, epoch, length, members } => {
                self.on_manifest(block, slot, epoch, length, members)
            }
            Message::FileClose { id, root } => self.on_file_close(id, root),
            Message::FileDrop { id, failure, restarts } => self.on_file_drop(id, failure, restarts),
            Message::Before { id, objects, bytes } => self.on_before(id, objects, bytes),
            // What is wrong here the source does not know.
            Message::Notice { failure, .. } if failure.code.blame() == Blame::Sink => {
                Err(Failure::new(Code::Protocol))
            }
            Message::Notice { path, failure } => {
                let counted = u64::from(!self.config.planted.has(Bug::NoticeUncounted));
                self.stats.files_total = self.stats.files_total.saturating_add(counted);
                self.stats.files_failed = self.stats.files_failed.saturating_add(1);
                self.unlisted.add(&path, failure);
                self.actions.push_back(Action::Fact(Fact::Failed { path: path.into_vec(), failure }));
                Ok(())
            }
            Message::Spill { failure, room } if !self.spill_told => {
                self.spill_told = true;
                self.actions.push_back(Action::Fact(Fact::SpillFailed { failure, room }));
                Ok(())
            }
            Message::Bye(stats) if !self.bye => self.on_bye(stats),
            Message::Error(failure) => {
                self.end(Some(failure));
                Ok(())
            }
            Message::Ping => Ok(()),
            _ => Err(Failure::new(Code::Protocol)),
        }
    }

    /// What has failed here has failed, and nothing was found or is there but what was counted here, whatever the source counts.
    /// A SOURCE that it never told of, or not to its end, has failed; so has a file that it counts and that is not here.
    fn on_bye(&mut self, stats: Stats) -> Result<(), Failure> {
        let own = self.stats;
        let files_failed = own.files_failed.max(stats.files_failed);
        let is_all =
            self.totals_are_final() && self.roots_left.is_empty() && stats.files_total == own.files_there();
        if files_failed == 0 && !is_all {
            return Err(Failure::new(Code::Protocol));
        }
        self.bye = true;
        // Of these the source alone knows: not all that was sent has come.
        let Stats { hard_links, bytes_sent, objects_sent, objects_repaired, bytes_spilled, .. } = stats;
        let of_source = Stats { bytes_sent, objects_sent, objects_repaired, bytes_spilled, ..own };
        self.stats = Stats { files_failed, hard_links: hard_links.min(own.files_total), ..of_source };
        Ok(())
    }

    fn on_done(&mut self, done: SinkDone, now_nanos: u64) -> Result<(), Failure> {
        match done {
            SinkDone::Prepared { answers, laid, unlaid, .. } => {
                self.on_prepared(answers, laid, unlaid, now_nanos)
            }
            SinkDone::Written { block, result } => self.on_written(block, result, now_nanos),
            SinkDone::WrittenMembers { block, step, results } => match step {
                MembersStep::Make => self.on_members_made(block, results, now_nanos),
                MembersStep::Fill { target, .. } => self.on_members_filled(block, target, results, now_nanos),
            },
            SinkDone::DirectoriesFinished { failed } => {
                self.on_directories_finished(failed);
                Ok(())
            }
            // They are errands.
            SinkDone::Laid { .. }
            | SinkDone::Sealed { .. }
            | SinkDone::Synced { .. }
            | SinkDone::Published { .. }
            | SinkDone::SyncedNames { .. }
            | SinkDone::Discarded { .. } => Err(Failure::new(Code::Internal)),
        }
    }

    /// Starts whatever can be started, and tells the source what has changed.
    fn pump(&mut self, now_nanos: u64) {
        self.window.stands(self.stand(), self.clock.now());
        self.grant_withheld();
        if let Err(failure) = self.start_errands(now_nanos) {
            self.fail(failure);
            return;
        }
        self.flush_messages();
        if let Some(failure) = self.draining
            && self.is_quiet()
            && self.committer.is_idle()
        {
            self.name_without_room(failure);
            self.fail(failure);
            return;
        }
        let committed = self.committer.is_idle() && self.entries.is_empty();
        if self.bye && !self.finishing && (committed || self.config.planted.has(Bug::FinishBeforeCommit)) {
            self.finishing = true;
            self.actions
                .push_back(Action::Sink(SinkOp::FinishDirectories { whole: self.unlisted.is_nothing() }));
        }
    }

    /// What no thread will take up is given back at once, and what can be written is: there may be no later event to do it.
    fn start_errands(&mut self, now_nanos: u64) -> Result<(), Failure> {
        loop {
            self.start_groups(now_nanos)?;
            self.hand_out();
            let given_up = self.give_up_errands(now_nanos)?;
            let more_to_write = core::mem::take(&mut self.more_to_write);
            if more_to_write {
                self.start_writes()?;
            }
            if !given_up && !more_to_write {
                return Ok(());
            }
        }
    }

    fn flush_messages(&mut self) {
        if self.config.planted.has(Bug::CreditBeforeAck) {
            self.flush_granted();
        }
        self.flush_answers();
        for repairs in chunks(&mut self.repairs) {
            self.actions.push_back(Action::Send(Message::Repair(repairs)));
        }
        for objects in chunks(&mut self.durable) {
            self.actions.push_back(Action::Send(Message::BlockSync { objects, entries: Vec::new() }));
        }
        for entries in chunks(&mut self.settled) {
            self.actions.push_back(Action::Send(Message::BlockSync { objects: Vec::new(), entries }));
        }
        // Last, so that the source never holds a credit before the acknowledgements that made room for it: else a kill
        // between the two would cost more than a group.
        self.flush_granted();
    }

    fn flush_granted(&mut self) {
        let (slots, allowances) = (core::mem::take(&mut self.granted), self.next_allowances());
        if !slots.is_empty() || !allowances.is_empty() {
            slots.iter().for_each(|slot| self.actions.push_back(Action::Grant(*slot)));
            self.actions.push_back(Action::Send(Message::BlockDone { slots, allowances }));
        }
    }

    fn on_directories_finished(&mut self, failed: FailedPaths) {
        self.stats.files_failed = self.stats.files_failed.saturating_add(failed.count());
        self.actions.extend(failed.clone().into_facts().map(Action::Fact));
        self.actions.push_back(Action::Send(Message::Finished(failed)));
        self.end(None);
    }

    fn step(&mut self, id: EntryId, cause: SinkCause) -> Result<(), Failure> {
        let held = self.entries.get_mut(id).ok_or(Failure::new(Code::Protocol))?;
        let (state, row) = sink_step(held.state, cause)?;
        held.state = state;
        self.coverage.sink[row] += 1;
        Ok(())
    }

    /// The entry ends: nothing of it stays, and its directory may be settled by that.
    fn close(&mut self, id: EntryId, cause: SinkCause) -> Result<Held, Failure> {
        self.step(id, cause)?;
        let held = self.entries.remove(id).ok_or(Failure::new(Code::Internal))?;
        debug_assert_eq!(held.state, SinkState::Ended);
        self.release_parent(held.entry.parent);
        Ok(held)
    }

    fn release_parent(&mut self, parent: EntryId) {
        let mut settled = Vec::new();
        self.directories.release(parent, &mut settled);
        for id in settled {
            self.actions.push_back(Action::Sink(SinkOp::Forget { id }));
        }
    }

    /// The entry will not be complete: the source is told, and answers with FILE_DROP; its unfinished file goes.
    ///
    /// Until then it stays, and its directory with it: the source may have announced it anew already.
    fn give_up(&mut self, id: EntryId, cause: SinkCause, failure: Failure) -> Result<(), Failure> {
        let targets = self.targets_of(&[id]);
        let target = if targets.len() == 1 { targets.first().copied() } else { None };
        self.give_up_on(target, id, cause, failure)
    }

    /// The same, and it is known which target it failed on.
    fn give_up_on(
        &mut self,
        target: Option<Target>,
        id: EntryId,
        cause: SinkCause,
        failure: Failure,
    ) -> Result<(), Failure> {
        if self.ends_the_job(failure, target) {
            self.without_room.get_or_insert(id);
            return Ok(());
        }
        let keep = self.stays(id, cause, failure);
        self.give_up_for(id, cause, failure, keep)
    }

    /// The job ends, and the first file for which there was no room says where that was. Not before: what is durable of it is
    /// acknowledged by now, and stays for the next session.
    fn name_without_room(&mut self, failure: Failure) {
        let Some(id) = self.without_room.take() else { return };
        let Some(held) = self.entries.get(id) else { return };
        let end = if held.objects.is_some() { Settled::Kept(failure) } else { Settled::Failed(failure) };
        let entry = held.entry.clone();
        self.report_failed(&entry, failure);
        self.settled.push((id, end));
    }

    /// A write into it waits for a target that answers no more; nobody has begun with it, so it does not come behind anybody's back.
    fn give_up_waiting(&mut self, id: EntryId, failure: Failure) -> Result<(), Failure> {
        let objects = self.entries.get(id).and_then(|held| held.objects.as_deref());
        let keep = objects.is_some_and(|objects| objects.lost == 0);
        self.give_up_for(id, SinkCause::WriteFailed, failure, keep)
    }

    fn give_up_for(
        &mut self,
        id: EntryId,
        cause: SinkCause,
        failure: Failure,
        keep: bool,
    ) -> Result<(), Failure> {
        let objects = self.entries.get_mut(id).and_then(|held| held.objects.as_deref_mut());
        let end = match objects.filter(|_| keep) {
            Some(objects) => {
                objects.keep = Some(failure);
                Settled::Kept(failure)
            }
            None => Settled::Failed(failure),
        };
        self.settled.push((id, end));
        if self.config.planted.has(Bug::RefusalUnanswered)
            && let Some(entry) = self.entries.get(id).map(|held| held.entry.clone())
        {
            self.report_failed(&entry, failure);
        }
        self.step(id, cause)?;
        self.discard_when_written(id)
    }

    /// Whether a later run can go on with what is durable of a file that comes in objects.
    ///
    /// For want of room it can, and where an object could not be written: others are durable all the same. And it can when a last step
    /// fails, since all objects had become durable before the first of those: what such a failure may lose is attributes and a name.
    /// Other bytes than were read are no good to anybody.
    fn stays(&self, id: EntryId, cause: SinkCause, failure: Failure) -> bool {
        let objects = self.entries.get(id).and_then(|held| held.objects.as_deref());
        // A write that hangs may come yet, into whatever the file is then.
        if objects.is_some_and(|objects| objects.lost > 0) {
            return false;
        }
        let at_its_end = cause == SinkCause::CommitFailed && failure.code != Code::HashMismatch;
        let at_its_end = at_its_end && !self.config.planted.has(Bug::LastStepTakesAll);
        // Without an error of the system what has its name is another file.
        let told = !matches!(failure.errno, 0 | TIMED_OUT);
        let unwritten = cause == SinkCause::WriteFailed && failure.is_unwritten() && told;
        full::is_lack_of_room(failure) || unwritten || at_its_end
    }

    fn report_failed(&mut self, entry: &Entry, failure: Failure) {
        self.stats.files_failed = self.stats.files_failed.saturating_add(1);
        let path = self.directories.path(entry.parent, &entry.name);
        self.actions.push_back(Action::Fact(Fact::Failed { path, failure }));
    }

    fn fail(&mut self, failure: Failure) {
        self.flush_messages();
        self.actions.push_back(Action::Send(Message::Error(failure)));
        self.end(Some(failure));
    }

    fn end(&mut self, failure: Option<Failure>) {
        self.ended = true;
        self.actions.push_back(Action::Ended(Outcome { failure, stats: self.stats }));
    }
}

/// Empties `items` in pieces that fit into one message each.
fn chunks<T>(items: &mut Vec<T>) -> Vec<Vec<T>> {
    pieces_of(items, BATCH_ITEMS_MAX)
}

fn pieces_of<T>(items: &mut Vec<T>, most: usize) -> Vec<Vec<T>> {
    let mut pieces = Vec::new();
    let mut rest = core::mem::take(items).into_iter();
    loop {
        let piece: Vec<T> = rest.by_ref().take(most).collect();
        if piece.is_empty() {
            return pieces;
        }
        pieces.push(piece);
    }
}
