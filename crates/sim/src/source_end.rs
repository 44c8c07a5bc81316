//! Drives the source's master: its link, storage, scan and log.

use hashbrown::{HashMap, HashSet};
use haul_model::limits::{FILES_OPEN_MAX, HASHES_FOLLOWING_MAX};
use haul_model::op::{MemberRead, SourceDone, SourceOp};
use haul_model::report::Fact;
use haul_model::{Code, Entry, EntryId, Failure, Hash, Item, Kind, Target};
use haul_protocol::link::{Frame, Link};
use haul_protocol::source::{Config, Source};
use haul_protocol::{Action, Event, Outcome};
use haul_wire::{Message, Role};

use crate::content::{HOLE, InFile, Payload, Piece, root_of};
use crate::lay::laid;
use crate::log::JobLog;
use crate::spill::Spill;
use crate::trace::Short;
use crate::tree::{Found, PathId, Scan, Tree};
use crate::world::{Happening, World, note};

/// The source's process.
pub(crate) struct SourceEnd {
    pub machine: Source,
    pub link: Link,
    /// The connection that it uses.
    pub up: Option<u32>,
    /// The connection that it tries to make.
    pub dialing: Option<u32>,
    /// It has waited long enough for the sink.
    pub impatient: bool,
    /// Connections so far.
    pub generation: u32,
    pub slots: Vec<Payload>,
    /// Open files.
    pub handles: HashMap<EntryId, usize>,
    /// What the files lie on.
    pub on: HashMap<PathId, Vec<Target>>,
    /// Directories that storage may need.
    pub directories: HashMap<EntryId, ()>,
    /// Slots that storage is filling.
    pub reading: u32,
    /// Slots that are being sent.
    pub sending: u32,
    pub log: JobLog,
    pub spill: Spill,
    /// Objects that it was asked to read, by where they begin.
    asked: HashSet<(EntryId, u64)>,
    reads_ahead: bool,
    pub outcome: Option<Outcome>,
    /// What it has named as failed.
    pub failed: Vec<(Vec<u8>, Failure)>,
    scan: Scan,
    scan_planned: bool,
    scan_ended: bool,
    log_planned: bool,
    /// Frames that may stay unconfirmed.
    confirm_after: u64,
}

impl SourceEnd {
    pub(crate) fn new(config: Config, link: Link, log: JobLog, confirm_after: u64) -> Self {
        let reads_ahead = config.spill_bytes_max > 0;
        SourceEnd {
            link,
            up: None,
            dialing: None,
            impatient: false,
            generation: 0,
            slots: vec![Payload::default(); config.slots as usize],
            machine: Source::new(config),
            handles: HashMap::new(),
            on: HashMap::new(),
            directories: HashMap::new(),
            reading: 0,
            sending: 0,
            log,
            spill: Spill::default(),
            asked: HashSet::new(),
            reads_ahead,
            outcome: None,
            failed: vec![],
            scan: Scan::default(),
            scan_planned: false,
            scan_ended: false,
            log_planned: false,
            confirm_after,
        }
    }
}

impl World {
    /// An event for the source's master, and everything that follows from it at once.
    pub(crate) fn source_event(&mut self, event: Event) {
        let now = self.now;
        let Some(end) = &mut self.source else { return };
        end.machine.on_event(event, &mut end.log, now);
        self.check_bundles_wait();
        while let Some(action) = self.source.as_mut().and_then(|end| end.machine.next_action()) {
            self.source_action(action);
        }
        let Some(end) = &mut self.source else { return };
        if end.machine.wants_scan() && !end.scan_planned && !end.scan_ended {
            end.scan_planned = true;
            self.after(self.plan.delays.names, Happening::Scan { session: self.session });
        }
    }

    fn source_action(&mut self, action: Action) {
        let session = self.session;
        match action {
            Action::Send(message) => {
                self.check_source_message(&message);
                if let Message::Bye(_) = message {
                    self.checker.leaving.clear();
                }
                note!(self, "source sends {}", Short(&message));
                let frame = self.source.as_mut().and_then(|end| end.link.send(&message));
                if let Some(frame) = frame {
                    self.transmit(Role::Sink, frame);
                }
            }
            Action::Payload { epoch, block, slot, local, length } => {
                self.checker.bytes_sent += u64::from(length);
                self.checker.objects_sent += 1;
                self.checker.leaving.insert(block, length);
                let Some(end) = self.source.as_mut() else { return };
                end.sending += 1;
                self.dispatch(epoch, block, slot, local, length);
            }
            Action::Source(op) => {
                if let SourceOp::ReadMembers { members, .. } = &op {
                    self.check_bundle(members);
                }
                self.start_read(op);
            }
            Action::Log(op) => {
                note!(self, "log {}", Short(&op));
                self.check_log_op(&op);
                let Some(end) = &mut self.source else { return };
                let result = end.log.apply(op);
                if !std::mem::replace(&mut end.log_planned, true) {
                    self.after(self.plan.delays.log, Happening::LogFlush { session });
                }
                if let Err(error) = result {
                    self.on_log_error(&error.to_string());
                }
            }
            Action::Fact(fact) => self.source_fact(fact),
            Action::Ended(outcome) => {
                note!(self, "source has ended: {outcome:?}");
                if let Some(end) = &mut self.source {
                    end.outcome = Some(outcome);
                }
                if let Some(failure) = outcome.failure.filter(|failure| Self::is_own_fault(*failure)) {
                    self.violate(format!("the source ends with: {failure} ({:?})", failure.code));
                }
            }
            Action::Hands(_) => {}
            Action::Replace(block, None) if self.hung.reads.contains(&block) => {
                note!(self, "the thread of block {} gets a successor", block.0);
            }
            // Other than that storage answers in time.
            Action::Replace(block, _) => self.violate(format!("the thread of {block:?} is replaced")),
            Action::RelieveLook(id) => self.violate(format!("the thread of {id:?} is replaced")),
            Action::Grant(_)
            | Action::Revoke(_)
            | Action::TakeBack(_)
            | Action::Distrust
            | Action::Sink(_)
            | Action::Errand { .. }
            | Action::Relieve { .. } => self.violate("the source acts as a sink".into()),
        }
    }

    fn source_fact(&mut self, fact: Fact) {
        match fact {
            Fact::Failed { path, failure } => {
                note!(self, "source: {} {failure}", String::from_utf8_lossy(&path));
                self.check_failed(&path, failure);
                if let Some(end) = &mut self.source {
                    end.failed.push((path, failure));
                }
            }
            Fact::Done { path, bytes, hash } => self.check_done_fact(&path, bytes, hash),
            Fact::FailedToo { count } => self.violate(format!("{count} directories are not named")),
            // Nothing here is striped.
            Fact::Unlike { path, .. } => self.violate(format!("{path:?} is striped otherwise")),
            Fact::SpillFailed { failure, room } => {
                note!(self, "source: spill has room for {room} B: {failure}");
                self.check_spill_told();
            }
        }
    }

    pub(crate) fn source_link_down(&mut self) {
        note!(self, "source notices that connection {} is gone", self.connection.epoch);
        let Some(end) = &mut self.source else { return };
        end.up = None;
        end.sending = 0;
        end.link.disconnected();
        let mut contents = std::mem::take(&mut self.checker.contents);
        for (block, length) in std::mem::take(&mut self.checker.leaving) {
            self.checker.bytes_sent -= u64::from(length);
            self.checker.objects_sent -= 1;
            self.checker.taken_back.extend(contents.remove(&block).into_iter().flatten());
        }
        self.source_event(Event::LinkDown);
        self.wait_for_peer(Role::Source);
    }

    pub(crate) fn source_frame(&mut self, frame: &Frame) {
        let Some(end) = &mut self.source else { return };
        let received = end.link.receive(&frame.header, &frame.body);
        let ended = end.outcome.is_some();
        match received {
            Ok(Some(message)) if !ended => {
                note!(self, "source receives {}", Short(&message));
                let last = matches!(message, Message::Finished(_) | Message::Error(_));
                self.check_source_receives(&message);
                self.source_event(Event::Message(message));
                self.confirm_source(last);
            }
            Ok(_) => self.confirm_source(ended && frame.header.sequence != 0),
            Err(failure) => {
                let header = frame.header;
                self.violate(format!("the source's link refuses an honest frame: {failure}: {header:?}"));
            }
        }
    }

    fn confirm_source(&mut self, at_once: bool) {
        let Some(end) = &mut self.source else { return };
        let pending = if at_once { 1 } else { end.confirm_after };
        if let Some(frame) = end.link.confirmation(pending) {
            self.transmit(Role::Sink, frame);
        }
    }

    pub(crate) fn on_scan(&mut self, session: u32) -> bool {
        let rates = self.rates();
        let Some(end) = self.source.as_mut().filter(|it| session == self.session && it.outcome.is_none())
        else {
            return false;
        };
        end.scan_planned = false;
        let mut items = Vec::new();
        let items_max = (self.plan.shape.sizes.len() / 6).clamp(1, 1300) + self.random.below(6) as usize;
        for _ in 0..items_max {
            match end.scan.next(&self.tree, rates.scan_error, &mut self.random) {
                Some(Found::Item(item)) => {
                    if let Item::Entry(entry) = &item {
                        let path = self.tree.path_of(entry);
                        self.checker.scanned.push((path, Tree::stamp_of(entry)));
                        if entry.kind == Kind::Directory {
                            end.directories.insert(entry.id, ());
                        }
                    }
                    items.push(match item {
                        Item::Entry(entry) if entry.kind == Kind::File && self.random.chance(300) => {
                            let object_bytes = self.plan.grain << self.random.below(3);
                            let laid = laid(object_bytes, &mut self.random);
                            self.checker.targets.insert(entry.id, laid.placement.target(0));
                            let targets =
                                laid.placement.pieces().iter().flat_map(|piece| piece.targets.iter());
                            let targets: Vec<Target> = targets.copied().collect();
                            let path = self.tree.path_of(&entry);
                            if targets.iter().any(|target| self.hung.dead_at_source.contains(target)) {
                                self.checker.troubled[path] = true;
                            }
                            end.on.insert(path, targets);
                            Item::Laid(entry, Box::new(laid), None)
                        }
                        item => item,
                    });
                }
                Some(Found::Unreadable(path)) => {
                    self.checker.unreadable.push(path);
                    self.checker.troubled[path] = true;
                    let failure = Failure::os(Code::SourcePermission, 13);
                    let path = self.tree.nodes[path].path.clone().into();
                    if !items.is_empty() {
                        self.source_event(Event::Scanned(items));
                    }
                    self.source_event(Event::ScanFailed { path, failure });
                    return true;
                }
                None => {
                    end.scan_ended = true;
                    break;
                }
            }
        }
        let scan_ended = end.scan_ended;
        note!(self, "scan finds {} items", items.len());
        if !items.is_empty() {
            self.source_event(Event::Scanned(items));
        }
        if scan_ended {
            self.source_event(Event::ScanEnded);
        }
        self.check_open_entries();
        true
    }

    fn start_read(&mut self, op: SourceOp) {
        note!(self, "source starts to {}", Short(&op));
        let Some(end) = &mut self.source else { return };
        match op {
            SourceOp::Release { id } => {
                end.handles.remove(&id);
            }
            SourceOp::Forget { id } => {
                if end.directories.remove(&id).is_none() {
                    self.violate(format!("the source forgets {id:?}, which is not held"));
                }
            }
            op => {
                if let SourceOp::ReadObject { entry, offset, again, .. } = &op {
                    let is_first = end.asked.insert((entry.id, *offset));
                    // Read ahead is what may come once more.
                    if is_first && *again && !end.reads_ahead {
                        self.violate(format!("an object at {offset} is read again, and was never read"));
                        return;
                    }
                }
                let is_restat = matches!(op, SourceOp::Confirm { .. } | SourceOp::Restat { .. });
                end.reading += u32::from(!is_restat);
                self.check_spill_op(&op);
                let session = self.session;
                if let Some(hangs) = self.draw_stuck_read(&op) {
                    if let Some(nanos) = hangs {
                        self.queue.push(self.now + nanos, Happening::Read { session, op, late: true });
                    }
                    return;
                }
                let slow = match &op {
                    SourceOp::ReadMembers { members, progress, .. } => {
                        self.draw_slow_reading(session, progress, members.len())
                    }
                    _ => None,
                };
                let read = Happening::Read { session, op, late: false };
                match slow {
                    None => self.after(self.plan.delays.read, read),
                    Some(nanos) => self.queue.push(self.now + nanos, read),
                }
            }
        }
    }

    /// An operation of the source takes effect.
    pub(crate) fn on_read(&mut self, session: u32, op: SourceOp, late: bool) -> bool {
        if session != self.session || self.source.as_ref().is_none_or(|end| end.outcome.is_some()) {
            return false;
        }
        let done = match op {
            SourceOp::ReadObject { block, entry, offset, length, slot, single, on_the_way, .. } => {
                let on_the_way = on_the_way && self.random.coin();
                let result = self.read_object(&entry, (offset, length, single), late).map(|(piece, hash)| {
                    let end = self.source.as_mut();
                    let in_file = end.and_then(|end| {
                        let inode = end.handles.get(&entry.id).filter(|_| on_the_way);
                        let in_file =
                            inode.map(|inode| InFile { piece: 0, id: entry.id, inode: *inode, stamp: None });
                        let (pieces, in_files) = ([piece].into(), in_file.into_iter().collect());
                        end.slots[slot.0 as usize] = Payload { pieces, in_files, ..Payload::default() };
                        in_file
                    });
                    in_file.is_none().then_some(hash)
                });
                SourceDone::Object { block, result }
            }
            SourceOp::ReadMembers { block, slot, members, on_the_way, .. } => {
                let mut pieces = Vec::new();
                let mut in_files = Vec::new();
                let mut results = Vec::with_capacity(members.len());
                let mut used = 0;
                for entry in &members {
                    results.push(self.read_member(entry, used, late).map(|(piece, inode, hash)| {
                        let offset = used;
                        used += piece.length;
                        let may_stay =
                            on_the_way && piece.length > 0 && in_files.len() < HASHES_FOLLOWING_MAX;
                        let stays = may_stay && self.random.coin();
                        if stays {
                            let stamp = Some(Tree::stamp_of(entry));
                            in_files.push(InFile { piece: pieces.len(), id: entry.id, inode, stamp });
                        }
                        pieces.extend((piece.length > 0).then_some(piece));
                        MemberRead { offset, hash: (!stays).then_some(hash) }
                    }));
                }
                if let Some(end) = &mut self.source {
                    let (pieces, in_files) = (pieces.into(), in_files.into());
                    end.slots[slot.0 as usize] = Payload { pieces, in_files, ..Payload::default() };
                }
                SourceDone::Members { block, length: used, results }
            }
            SourceOp::Spill { block, slot, at, length } => {
                SourceDone::Spilled { block, result: self.spill(slot, at, length).map(|()| None) }
            }
            SourceOp::Unspill { block, slot, at, offset, length, single, .. } => SourceDone::Object {
                block,
                result: self.unspill(slot, at, (offset, length, single)).map(Some),
            },
            SourceOp::Confirm { entry } => {
                SourceDone::Confirmed { id: entry.id, result: self.confirm_version(&entry) }
            }
            SourceOp::Restat { entry } => {
                let result = self.restat(&entry).map(Box::new);
                SourceDone::Restated { id: entry.id, result }
            }
            SourceOp::Release { .. } | SourceOp::Forget { .. } => return false,
        };
        if self.random.coin() {
            self.reply_read(done);
        } else {
            self.after(self.plan.delays.reply, Happening::ReadReply { session, done });
        }
        true
    }

    pub(crate) fn on_read_reply(&mut self, session: u32, done: SourceDone) -> bool {
        if session != self.session || self.source.as_ref().is_none_or(|end| end.outcome.is_some()) {
            return false;
        }
        self.reply_read(done);
        true
    }

    fn reply_read(&mut self, done: SourceDone) {
        note!(self, "source: {}", Short(&done));
        if let Some(end) = &mut self.source {
            let is_restat = matches!(done, SourceDone::Confirmed { .. } | SourceDone::Restated { .. });
            end.reading -= u32::from(!is_restat);
        }
        if let SourceDone::Object { block, .. } | SourceDone::Members { block, .. } = done {
            self.hung.reads.remove(&block);
        }
        self.source_event(Event::SourceDone(done));
    }

    fn fails_to_read(&mut self, entry: &Entry, late: bool) -> Result<(), Failure> {
        let held = entry.parent.root_index().is_some()
            || self.source.as_ref().is_some_and(|end| end.directories.contains_key(&entry.parent));
        if !held && !late {
            self.violate(format!("{:?} is read, but its directory was forgotten", entry.id));
        }
        if self.random.chance(self.rates().read_error) {
            let path = self.tree.path_of(entry);
            self.checker.troubled[path] = true;
            return Err(Failure::os(Code::SourceRead, 5));
        }
        Ok(())
    }

    /// The inode under the entry's name, if it is the version that was announced.
    fn open(&self, entry: &Entry) -> Result<usize, Failure> {
        let node = &self.tree.nodes[self.tree.path_of(entry)];
        match node.inode {
            _ if node.kind != Kind::File => Err(Code::SourceChanged.into()),
            None => Err(Code::SourceVanished.into()),
            Some(inode) if self.tree.inodes[inode].stamp != Tree::stamp_of(entry) => {
                Err(Code::SourceChanged.into())
            }
            Some(inode) => Ok(inode),
        }
    }

    fn read_object(
        &mut self,
        entry: &Entry,
        (offset, length, single): (u64, u32, bool),
        late: bool,
    ) -> Result<(Piece, Hash), Failure> {
        self.fails_to_read(entry, late)?;
        let known = self.source.as_ref().and_then(|end| end.handles.get(&entry.id).copied());
        let inode = match known {
            Some(inode) => inode,
            // Nobody would close it.
            None if late => self.open(entry)?,
            None => {
                let inode = self.open(entry)?;
                if let Some(end) = &mut self.source {
                    end.handles.insert(entry.id, inode);
                    if end.handles.len() > FILES_OPEN_MAX + end.slots.len() {
                        self.violate("the source has too many files open".into());
                    }
                }
                inode
            }
        };
        let state = self.tree.stamps[self.tree.inodes[inode].stamp as usize];
        if state.size < offset + u64::from(length) {
            return Err(Code::SourceChanged.into());
        }
        let piece = Piece { at: 0, content: state.content, offset, length };
        Ok((piece, piece.hash(offset, single)))
    }

    fn read_member(&mut self, entry: &Entry, at: u32, late: bool) -> Result<(Piece, usize, Hash), Failure> {
        self.fails_to_read(entry, late)?;
        let inode = self.open(entry)?;
        let state = self.tree.stamps[self.tree.inodes[inode].stamp as usize];
        if state.size == 0 {
            return Ok((Piece { at, content: HOLE, offset: 0, length: 0 }, inode, root_of(HOLE, 0)));
        }
        let piece = Piece { at, content: state.content, offset: 0, length: state.size as u32 };
        Ok((piece, inode, piece.hash(0, true)))
    }

    fn confirm_version(&mut self, entry: &Entry) -> Result<(), Failure> {
        self.fails_to_read(entry, false)?;
        let known = self.source.as_ref().and_then(|end| end.handles.get(&entry.id).copied());
        let inode = match known {
            Some(inode) => inode,
            None => self.open(entry)?,
        };
        if self.tree.inodes[inode].stamp == Tree::stamp_of(entry) {
            Ok(())
        } else {
            Err(Code::SourceChanged.into())
        }
    }

    fn restat(&mut self, entry: &Entry) -> Result<Entry, Failure> {
        self.fails_to_read(entry, false)?;
        let path = self.tree.path_of(entry);
        self.tree.entry(path, entry.id, entry.parent).ok_or(Code::SourceVanished.into())
    }

    pub(crate) fn on_log_flush(&mut self, session: u32) -> bool {
        let Some(end) = self.source.as_mut().filter(|_| session == self.session) else { return false };
        end.log_planned = false;
        if let Err(error) = end.log.flush() {
            self.on_log_error(&error.to_string());
        }
        if self.random.coin() {
            self.after(self.plan.delays.log, Happening::LogSync { session });
        }
        true
    }

    pub(crate) fn on_log_sync(&mut self, session: u32) -> bool {
        let Some(end) = self.source.as_mut().filter(|_| session == self.session) else { return false };
        if let Err(error) = end.log.sync() {
            self.on_log_error(&error.to_string());
        }
        true
    }

    /// The transfer goes on; it just cannot be resumed from here.
    pub(crate) fn on_log_error(&mut self, error: &str) {
        note!(self, "the log fails: {error}");
        if !self.plan.log_fails {
            self.violate(format!("the log fails: {error}"));
        }
    }
}
