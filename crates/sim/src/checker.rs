//! What must hold, checked when it is claimed and when it could break.
//!
//! The checker sees what the masters say and do, and both disks; it never looks into a master, but for its public
//! counters at the end of a session.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use haul_model::limits::{
    ENTRIES_OPEN_MAX, RESTARTS_MAX, SYNC_GROUP_BYTES, SYNC_GROUP_BYTES_MAX, SYNC_GROUP_BYTES_TARGET,
};
use haul_model::placement::is_object_size;
use haul_model::{Bitmap, BlockId, Code, Entry, EntryId, Failure, Hash, Kind, Target, Token};
use haul_protocol::source::BUNDLE_WAIT_NANOS;
use haul_protocol::{LogOp, LogView};
use haul_wire::{Answer, Message, NewFile, Settled};

use crate::content::{HOLE, Piece, root_of};
use crate::disk::Thing;
use crate::tree::{PathId, Tree};
use crate::world::World;

/// How an entry ended, as the source told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// FILE_ID: it is there.
    Skipped,
    /// Reported as done.
    Done,
    /// It changed; another entry takes its place.
    Restarted,
}

/// An entry as it was announced.
pub(crate) struct Record {
    pub path: PathId,
    pub stamp: u32,
    pub kind: Kind,
    object_bytes: u32,
    /// Of the sink's unfinished file.
    token: Token,
    /// The log and the unfinished file fit it, so it must be resumed.
    resumable: Option<Token>,
    /// Objects that are on their way, or were sent and not asked for again.
    sent: Bitmap,
    /// Of those, asked for again and not sent yet.
    asked: Vec<u32>,
    /// Their hashes, shortened.
    hashes: Vec<(u32, u64)>,
    pub end: Option<End>,
    /// FILE_CLOSE was said: all of it is durable.
    closed: bool,
    /// And it failed since, but stays at the sink.
    kept: bool,
}

fn shortened(hash: &Hash) -> u64 {
    u64::from_le_bytes(hash.0[..8].try_into().expect("eight bytes"))
}

/// What is known of the present session, and a little of those before.
#[derive(Default)]
pub(crate) struct Checker {
    pub object_bytes: u32,
    pub streams: usize,
    sink_slots: u32,
    pub(crate) syncs_each: bool,
    pub bytes_sent: u64,
    pub objects_sent: u64,
    /// Payloads that have not left the source yet, with their lengths; a connection takes them along.
    pub leaving: BTreeMap<BlockId, u32>,
    /// What is in each payload of this connection.
    pub contents: BTreeMap<BlockId, Vec<(EntryId, Option<u32>)>>,
    /// What was taken along: it counts when it is sent again.
    pub taken_back: BTreeSet<(EntryId, Option<u32>)>,
    /// Objects and members that the sink asked for again.
    pub asked: u64,
    /// Of those, sent again.
    pub sent_again: u64,
    /// By path: something happened to it in this session, so it may fail.
    pub troubled: Vec<bool>,
    /// Paths of which something hung, or an unfinished file stays: what is left of them nobody knows.
    pub hung: Vec<PathId>,
    pub scanned: Vec<(PathId, u32)>,
    pub unreadable: Vec<PathId>,
    /// Of small files: the target that they begin on, where that was told.
    pub targets: BTreeMap<EntryId, Target>,
    /// Everything is at the sink already.
    pub nothing_to_do: bool,
    records: Vec<Record>,
    /// By path: the entry announced last.
    latest: Vec<Option<EntryId>>,
    restarted: Vec<Record>,
    /// Sent and not known to be durable.
    exposed: Vec<(EntryId, Option<u32>, u32)>,
    exposed_bytes: u64,
    /// What was sent within the last second, and when.
    recent: VecDeque<(u64, u32)>,
    recent_bytes: u64,
    /// When the first was.
    sending_since: Option<u64>,
    /// The most that was sent within a second.
    second_bytes: u64,
    /// By state: a file in this state is complete at the sink, the source knows.
    finished: Vec<bool>,
}

const RESTART_BIT: u64 = 1 << 62;
const SECOND: u64 = 1_000_000_000;

impl Record {
    /// An object was hashed, or will be on its way.
    fn has_hash(&mut self, index: u32, hash: Option<&Hash>) {
        self.hashes.retain(|(other, _)| *other != index);
        self.hashes.extend(hash.map(|hash| (index, shortened(hash))));
    }
}

impl Checker {
    /// The object at this offset was hashed on its way.
    pub(crate) fn was_hashed(&mut self, id: EntryId, offset: u64, hash: &Hash) {
        if let Some(record) = self.record_mut(id) {
            record.has_hash((offset / u64::from(record.object_bytes)) as u32, Some(hash));
        }
    }

    pub(crate) fn record(&self, id: EntryId) -> Option<&Record> {
        match id.0.checked_sub(RESTART_BIT) {
            Some(index) => self.restarted.get(index as usize),
            None => self.records.get(id.0.checked_sub(1)? as usize),
        }
    }

    fn record_mut(&mut self, id: EntryId) -> Option<&mut Record> {
        match id.0.checked_sub(RESTART_BIT) {
            Some(index) => self.restarted.get_mut(index as usize),
            None => self.records.get_mut(id.0.checked_sub(1)? as usize),
        }
    }

    /// The entry announced last for this path.
    pub(crate) fn last_record(&self, path: PathId) -> Option<&Record> {
        self.record(self.latest(path)?)
    }

    fn latest(&self, path: PathId) -> Option<EntryId> {
        self.latest.get(path).copied().flatten()
    }

    /// All entries that were announced.
    pub(crate) fn all_records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().chain(&self.restarted)
    }

    fn expose(&mut self, id: EntryId, index: Option<u32>, bytes: u32) {
        self.exposed.push((id, index, bytes));
        self.exposed_bytes += u64::from(bytes);
    }

    fn count_second(&mut self, bytes: u32, now_nanos: u64) {
        self.sending_since.get_or_insert(now_nanos);
        self.recent.push_back((now_nanos, bytes));
        self.recent_bytes += u64::from(bytes);
        while let Some((sent, bytes)) = self.recent.front().copied()
            && sent + SECOND < now_nanos
        {
            self.recent.pop_front();
            self.recent_bytes -= u64::from(bytes);
        }
        self.second_bytes = self.second_bytes.max(self.recent_bytes);
    }

    /// What a kill may cost: what is under way, and one second of what is written but at least and at most so much. Where files are
    /// synced one by one, at least also a part for each target.
    fn exposure_max(&self, now_nanos: u64) -> u64 {
        let under_way = u64::from(self.sink_slots) * u64::from(self.object_bytes);
        // Written in a second that has passed: what was sent in that one, and was under way before.
        let passed = self.sending_since.is_some_and(|since| since + SECOND <= now_nanos);
        let second = if passed { self.second_bytes + under_way } else { 0 };
        // Files of which nobody knows where they lie are on target 0.
        let targets = if self.syncs_each { crate::lay::TARGETS + 1 } else { 0 };
        let least = SYNC_GROUP_BYTES.max(targets * SYNC_GROUP_BYTES_TARGET);
        second.clamp(least, SYNC_GROUP_BYTES_MAX) + under_way
    }

    fn cover(&mut self, covered: impl Fn(EntryId, Option<u32>) -> bool) {
        let bytes = &mut self.exposed_bytes;
        self.exposed.retain(|(id, index, length)| {
            let gone = covered(*id, *index);
            *bytes -= if gone { u64::from(*length) } else { 0 };
            !gone
        });
    }

    pub(crate) fn is_finished(&self, stamp: u32) -> bool {
        self.finished.get(stamp as usize).copied().unwrap_or(false)
    }

    pub(crate) fn finish(&mut self, stamp: u32) {
        if self.finished.len() <= stamp as usize {
            self.finished.resize(stamp as usize + 1, false);
        }
        self.finished[stamp as usize] = true;
    }
}

impl World {
    pub(crate) fn begin_checks(
        &mut self,
        object_bytes: u32,
        sink_slots: u32,
        syncs_each: bool,
        streams: usize,
    ) {
        let paths = self.tree.nodes.len();
        let before = std::mem::take(&mut self.checker);
        self.checker = Checker {
            object_bytes,
            streams,
            sink_slots,
            syncs_each,
            troubled: vec![false; paths],
            latest: vec![None; paths],
            nothing_to_do: before.nothing_to_do,
            finished: before.finished,
            ..Checker::default()
        };
    }

    /// What the source is about to say.
    pub(crate) fn check_source_message(&mut self, message: &Message) {
        match message {
            Message::NewFile(items) => items.iter().for_each(|item| self.on_announced(item)),
            Message::NewBlock { block, id, index, length, hash, .. } => {
                self.checker.contents.insert(*block, vec![(*id, Some(*index))]);
                if let Some(record) = self.checker.record_mut(*id) {
                    record.has_hash(*index, hash.as_ref());
                }
                self.on_sending(*id, Some(*index), *length);
            }
            Message::Manifest { block, members, .. } => {
                let contents = members.iter().map(|member| (member.id, None)).collect();
                self.checker.contents.insert(*block, contents);
                for member in members {
                    let size = self.checker.record(member.id).map_or(0, |record| {
                        self.tree.stamps.get(record.stamp as usize).map_or(0, |stamp| stamp.size)
                    });
                    self.on_sending(member.id, None, size as u32);
                }
            }
            Message::FileClose { id, root } => {
                let whole = self.checker.record(*id).filter(|record| record.sent.len() == 1);
                let sent = whole.and_then(|record| record.hashes.first()).map(|(_, hash)| *hash);
                if sent.is_some() && root.as_ref().map(shortened) != sent {
                    self.violate(format!("{id:?} is closed without the hash that it was read with"));
                }
                if let Some(record) = self.checker.record_mut(*id) {
                    record.closed = true;
                }
            }
            Message::FileDrop { id, restarts, .. } => {
                self.checker.cover(|other, _| other == *id);
                if let Some(record) = self.checker.record_mut(*id).filter(|_| *restarts) {
                    record.end = Some(End::Restarted);
                }
            }
            _ => {}
        }
    }

    /// A bundle is a request of one target. (A file that starts again has a new number, and lies where it did.)
    pub(crate) fn check_bundle(&mut self, members: &[Arc<Entry>]) {
        let scanned = members.iter().filter(|entry| entry.id.0 < RESTART_BIT);
        let mut on = scanned.map(|entry| self.checker.targets.get(&entry.id).copied().unwrap_or(0));
        let first = on.next();
        if let Some(other) = on.find(|target| Some(*target) != first) {
            self.violate(format!("one bundle has files on targets {first:?} and {other}"));
        }
    }

    /// Small files do not wait long for others to fill their bundle.
    pub(crate) fn check_bundles_wait(&mut self) {
        let Some(end) = self.source.as_ref().filter(|end| !end.machine.has_ended()) else { return };
        let age = end.machine.bundle_age_nanos();
        if age >= BUNDLE_WAIT_NANOS {
            self.violate(format!("a bundle has been waited for {} ms", age / 1_000_000));
        }
    }

    /// The memory of both ends follows what is under way, not the dataset.
    pub(crate) fn check_open_entries(&mut self) {
        let source = self.source.as_ref().map_or(0, |end| end.machine.open_entries());
        let sink = self.sink.as_ref().map_or(0, |end| end.machine.open_entries());
        if source.max(sink) > ENTRIES_OPEN_MAX {
            self.violate(format!("too many entries are open: {source} and {sink}"));
        }
    }

    fn on_announced(&mut self, item: &NewFile) {
        let NewFile::Entry { entry, object_bytes, resume, .. } = item else { return };
        let (path, stamp) = (self.tree.path_of(entry), Tree::stamp_of(entry));
        let mut resumable = None;
        if object_bytes.is_some()
            && let Some(end) = &mut self.source
        {
            let logged = end.log.lookup(&self.tree.nodes[path].key);
            resumable = logged
                .filter(|logged| {
                    let fits = is_object_size(logged.object_bytes, self.checker.object_bytes);
                    let proposed = object_bytes.is_some_and(|bytes| bytes >= logged.object_bytes);
                    logged.identity == entry.identity && fits && proposed
                })
                .map(|logged| logged.token)
                .filter(|token| self.disk.find(*token).is_some());
            if resumable.is_some() && *resume != resumable {
                self.violate(format!("{:?} is not resumed, though its log fits", entry.id));
            }
        }
        let count = object_bytes.map_or(1, |bytes| entry.size().div_ceil(u64::from(bytes)));
        let record = Record {
            path,
            stamp,
            kind: entry.kind,
            object_bytes: object_bytes.unwrap_or(self.checker.object_bytes),
            token: Token::NONE,
            resumable,
            sent: Bitmap::new(count),
            asked: vec![],
            hashes: vec![],
            end: None,
            closed: false,
            kept: false,
        };
        let restarts = self.checker.restarted.iter().filter(|record| record.path == path).count();
        if restarts > usize::from(RESTARTS_MAX) {
            self.violate(format!("path {path} starts again for the {restarts}th time"));
        }
        self.checker.latest.resize(self.tree.nodes.len(), None);
        self.checker.latest[path] = Some(entry.id);
        match entry.id.0.checked_sub(RESTART_BIT) {
            Some(index) if index as usize == self.checker.restarted.len() => {
                self.checker.restarted.push(record)
            }
            None => {
                // Entries of a kind that is never announced leave gaps.
                while self.checker.records.len() as u64 + 1 < entry.id.0 {
                    self.checker.records.push(Record {
                        path: usize::MAX,
                        stamp: 0,
                        kind: Kind::Other,
                        object_bytes: 1,
                        token: Token::NONE,
                        resumable: None,
                        sent: Bitmap::new(0),
                        asked: vec![],
                        hashes: vec![],
                        end: None,
                        closed: false,
                        kept: false,
                    });
                }
                self.checker.records.push(record);
            }
            _ => self.violate(format!("the entry {:?} is out of order", entry.id)),
        }
    }

    /// An object, or a member, is being sent.
    fn on_sending(&mut self, id: EntryId, index: Option<u32>, bytes: u32) {
        let Some(record) = self.checker.record_mut(id) else {
            return self.violate(format!("{id:?} is sent, but was never announced"));
        };
        let (path, stamp) = (record.path, record.stamp);
        let again = record.asked.iter().position(|asked| *asked == index.unwrap_or(0));
        let again = again.map(|position| record.asked.swap_remove(position));
        let first = record.sent.set(u64::from(index.unwrap_or(0)));
        let is_new = self.checker.taken_back.remove(&(id, index));
        self.checker.sent_again += u64::from(again.is_some() && !is_new);
        if !first {
            self.violate(format!("{id:?} {index:?} is sent again, though nobody asked for it"));
        }
        if self.checker.is_finished(stamp) {
            self.violate(format!("{id:?} is sent, though path {path} was complete at the sink"));
        }
        self.checker.expose(id, index, bytes);
        self.checker.count_second(bytes, self.now);
        let bound = self.checker.exposure_max(self.now);
        if self.checker.exposed_bytes > bound {
            let bytes = self.checker.exposed_bytes;
            self.violate(format!(
                "{bytes} bytes are sent and not durable: a kill would cost more than {bound}"
            ));
        }
    }

    /// What the source hears, before it does.
    pub(crate) fn check_source_receives(&mut self, message: &Message) {
        match message {
            Message::FileId { answers, .. } => {
                answers.iter().for_each(|(id, answer)| self.on_answer(*id, *answer));
            }
            Message::BlockSync { objects, entries } => {
                self.checker.cover(|id, index| {
                    index.is_some_and(|index| objects.contains(&(id, index)))
                        || entries.iter().any(|(other, _)| *other == id)
                });
                for (id, settled) in entries {
                    if let (Some(record), Settled::Kept(_)) = (self.checker.record_mut(*id), settled) {
                        record.kept = record.closed;
                    }
                }
            }
            Message::Repair(repairs) => {
                for repair in repairs {
                    self.checker.cover(|id, index| id == repair.id && index == repair.index);
                    if let Some(record) = self.checker.record_mut(repair.id) {
                        let index = repair.index.unwrap_or(0);
                        record.sent.clear(u64::from(index));
                        record.asked.push(index);
                    }
                    self.checker.asked += 1;
                }
            }
            _ => {}
        }
    }

    fn on_answer(&mut self, id: EntryId, answer: Answer) {
        let Some(record) = self.checker.record_mut(id) else { return };
        let (path, stamp, object_bytes) = (record.path, record.stamp, record.object_bytes);
        match answer {
            Answer::Skip => record.end = Some(End::Skipped),
            Answer::Start(_) if record.resumable.is_some() => {
                self.violate(format!("{id:?} starts from nothing, though its unfinished file is there"));
            }
            Answer::Resume(token) => {
                let logged = self.source.as_mut().and_then(|end| end.log.lookup(&self.tree.nodes[path].key));
                let Some(logged) = logged else { return };
                for index in (0..logged.done.len()).filter(|index| logged.done.get(*index)) {
                    if let Some(record) = self.checker.record_mut(id) {
                        record.sent.set(index);
                    }
                    let content = self.tree.stamps[stamp as usize].content;
                    let right = |found, _, _| found == content;
                    if let Err(why) = self.is_durable(path, stamp, token, (object_bytes, index as u32), right)
                    {
                        self.violate(format!("the log says that object {index} of {id:?} is durable: {why}"));
                    }
                }
            }
            _ => {}
        }
    }

    /// What the sink is about to say.
    pub(crate) fn check_sink_message(&mut self, message: &Message) {
        match message {
            Message::FileId { answers, laid, .. } => {
                for (id, laid) in laid {
                    if let Some(record) = self.checker.record_mut(*id) {
                        let size = self.tree.stamps[record.stamp as usize].size;
                        record.object_bytes = laid.object_bytes;
                        record.sent = Bitmap::new(size.div_ceil(u64::from(laid.object_bytes)));
                    }
                }
                for (id, answer) in answers {
                    if let (Some(record), Answer::Start(token) | Answer::Resume(token)) =
                        (self.checker.record_mut(*id), answer)
                    {
                        record.token = *token;
                    }
                }
            }
            Message::BlockSync { objects, entries } => {
                for (id, index) in objects {
                    self.check_acknowledged(*id, *index, "acknowledged");
                }
                for (id, settled) in entries {
                    let Some(record) = self.checker.record(*id) else { continue };
                    match settled {
                        Settled::Done(hash) => {
                            if let Err(why) = self.is_final(record.path, record.stamp, *hash, false) {
                                self.violate(format!("{id:?} is acknowledged as complete: {why}"));
                            }
                        }
                        // A write that hangs may still hit it, and other bytes than were read are wrong.
                        Settled::Failed(failure)
                            if record.closed
                                && failure.code != Code::HashMismatch
                                && self.hung.count == 0
                                && !self.hung.stuck.contains(id) =>
                        {
                            self.violate(format!(
                                "{id:?} is removed for its last step, though all is durable"
                            ));
                        }
                        Settled::Failed(_) | Settled::Kept(_) => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn check_acknowledged(&mut self, id: EntryId, index: u32, what: &str) {
        let Some(record) = self.checker.record(id) else {
            return self.violate(format!("object {index} of {id:?}, which nobody announced, is {what}"));
        };
        // What was read may be of a later state than was announced; that is noticed before the file is closed.
        // Then a write that hung may bring back what was read first.
        let inode = self.tree.nodes[record.path].inode;
        let changed = inode.is_none_or(|inode| self.tree.inodes[inode].stamp != record.stamp);
        if changed && self.hung.stuck.contains(&id) {
            return;
        }
        let sent = record.hashes.iter().find(|(other, _)| *other == index).map(|(_, hash)| *hash);
        let right = |content, offset, length| {
            let piece = Piece { at: 0, content, offset, length };
            Some(shortened(&piece.hash(offset, record.sent.len() == 1))) == sent
        };
        if let Err(why) =
            self.is_durable(record.path, record.stamp, record.token, (record.object_bytes, index), right)
        {
            self.violate(format!("object {index} of {id:?} is {what}: {why}"));
        }
    }

    /// What the source is about to log.
    pub(crate) fn check_log_op(&mut self, op: &LogOp) {
        if let LogOp::Clear = op {
            let held = self.source.iter().flat_map(|end| end.log.held());
            let done = |id: &EntryId| self.checker.record(*id).is_some_and(|it| it.end == Some(End::Done));
            let left: Vec<EntryId> = held.filter(done).collect();
            if !self.checker.unreadable.is_empty() {
                self.violate("the log is cleared, though not all could be listed".into());
            }
            if let Some(id) = left.first() {
                self.violate(format!("the log still has the entry of {id:?}, which is done"));
            }
        }
        if let LogOp::Remove { id } = op
            && let Err(why) = self.may_be_forgotten(*id)
        {
            self.violate(format!("the log entry of {id:?} is removed: {why}"));
        }
        if let LogOp::Record { id, index } = op {
            let token = self.source.as_ref().and_then(|end| end.log.token_of(*id));
            match self.checker.record(*id).map(|record| record.token) {
                Some(expected) if token == Some(expected) => self.check_acknowledged(*id, *index, "logged"),
                expected => self.violate(format!("{id:?} is logged for {token:?}, but is in {expected:?}")),
            }
        }
    }

    /// Is a file complete and durable, or given up, so that its log entry is of no use?
    fn may_be_forgotten(&self, id: EntryId) -> Result<(), String> {
        let Some(record) = self.checker.record(id) else { return Err("it was never announced".into()) };
        let (path, stamp, end) = (record.path, record.stamp, record.end);
        let restarted = !self.checker.last_record(path).is_some_and(|last| std::ptr::eq(last, record));
        let failed = self
            .source
            .as_ref()
            .is_some_and(|end| end.failed.iter().any(|(name, _)| *name == self.tree.nodes[path].path));
        match end {
            _ if record.kept => Err("it is all at the sink, for a later session".into()),
            _ if restarted || failed => Ok(()),
            Some(End::Done | End::Skipped) => self.is_final(path, stamp, None, end == Some(End::Skipped)),
            _ => Err("it is neither complete nor given up".into()),
        }
    }

    /// Would this object survive a power cut of the sink, with the right content?
    fn is_durable(
        &self,
        path: PathId,
        stamp: u32,
        token: Token,
        (object_bytes, index): (u32, u32),
        right: impl Fn(u32, u64, u32) -> bool,
    ) -> Result<(), String> {
        let disk = &self.disk;
        let Some(temp) = disk.temps.iter().rfind(|temp| temp.token == token) else {
            return Err(format!("there is no unfinished file {token:?}"));
        };
        let size = self.tree.stamps[stamp as usize].size;
        let offset = u64::from(index) * u64::from(object_bytes);
        let end = size.min(offset + u64::from(object_bytes));
        let first = disk.cells_of(offset);
        let cells = disk.inodes[temp.inode].cells.get(first..disk.cells_of(end)).unwrap_or(&[]);
        let content = cells.first().map_or(HOLE, |cell| cell.durable);
        let mixed = cells.iter().any(|cell| cell.durable != content);
        if mixed || !right(content, offset, (end - offset) as u32) {
            return Err(format!("its durable cells are {cells:?}"));
        }
        let named = disk.names[path].durable == Some(Thing::File(temp.inode));
        if temp.now && !(temp.durable || named) {
            return Err("no name of its file is durable".into());
        }
        if temp.now && !disk.is_reachable(path, &self.tree) {
            return Err("a directory above it is not durable".into());
        }
        Ok(())
    }

    /// Would this entry survive a power cut, complete and under its final name?
    pub(crate) fn is_final(
        &self,
        path: PathId,
        stamp: u32,
        hash: Option<Hash>,
        skipped: bool,
    ) -> Result<(), String> {
        let disk = &self.disk;
        let state = self.tree.stamps[stamp as usize];
        if !disk.is_reachable(path, &self.tree) {
            return Err("a directory above it is not durable".into());
        }
        let inode = match disk.names[path].durable {
            Some(Thing::File(inode)) if stamp != 0 => inode,
            Some(Thing::Link) if stamp == 0 => return Ok(()),
            other => return Err(format!("its durable name leads to {other:?}")),
        };
        let Some(content) = disk.whole(inode, true).filter(|_| disk.inodes[inode].size == state.size) else {
            return Err(format!("it is not whole: {:?}", disk.inodes[inode]));
        };
        // Who skips a file goes by size and mtime, so its bytes may be those of any state with the same.
        let origin = &self.tree.stamps[content as usize];
        let looks_alike = skipped && origin.path == path && origin.mtime == state.mtime;
        if state.size > 0 && content != state.content && !looks_alike {
            return Err(format!("its content is {content}, not {}", state.content));
        }
        let attributes = &self.tree.stamps[disk.inodes[inode].attributes.durable as usize];
        if (attributes.mtime, attributes.mode) != (state.mtime, state.mode) {
            return Err("its attributes are not durable".into());
        }
        let root = root_of(content, state.size);
        if hash.is_some_and(|hash| hash != root) {
            return Err("its hash is wrong".into());
        }
        Ok(())
    }

    /// Storage gave this path its final name.
    pub(crate) fn check_published(&mut self, path: PathId) {
        if let Err(why) = self.visible(path) {
            self.violate(format!("path {path} has its final name: {why}"));
        }
    }

    /// After a power cut.
    pub(crate) fn check_all_visible(&mut self) {
        for path in 0..self.tree.nodes.len() {
            self.check_published(path);
        }
    }

    /// Is what stands under a final name whole, now and after a power cut?
    fn visible(&self, path: PathId) -> Result<(), String> {
        let name = &self.disk.names[path];
        for thing in [name.now, name.durable] {
            let Some(Thing::File(inode)) = thing else { continue };
            let size = self.disk.inodes[inode].size;
            for durable in [false, true] {
                let content = self.disk.whole(inode, durable).ok_or("it is not whole, or not durable")?;
                let origin = &self.tree.stamps[content as usize];
                if size > 0 && (origin.path, origin.size) != (path, size) {
                    return Err("it has the bytes of another file".into());
                }
            }
        }
        Ok(())
    }

    /// The source reports a file as done.
    pub(crate) fn check_done_fact(&mut self, path: &[u8], bytes: u64, hash: Option<Hash>) {
        let id = self.tree.path_named(path).and_then(|path| self.checker.latest(path));
        let record = id.and_then(|id| self.checker.record_mut(id));
        let Some(record) = record else {
            return self.violate(format!("{} is done, but is no entry", String::from_utf8_lossy(path)));
        };
        let (path, stamp, before) = (record.path, record.stamp, record.end.replace(End::Done));
        if let Err(why) = self.is_final(path, stamp, hash, false) {
            self.violate(format!("path {path} is reported as done: {why}"));
        }
        if before.is_some() || bytes != self.tree.stamps[stamp as usize].size {
            self.violate(format!("path {path} is reported as done with {bytes} bytes after {before:?}"));
        }
        if stamp != 0 {
            self.checker.finish(stamp);
        }
    }

    /// The source names something as failed.
    pub(crate) fn check_failed(&mut self, path: &[u8], failure: Failure) {
        let Some(path) = self.tree.path_named(path) else {
            let path = String::from_utf8_lossy(path).into_owned();
            return self.violate(format!("{path}, which is no path of the dataset, has failed"));
        };
        let other = self.tree.nodes[path].kind == Kind::Other && failure.code == Code::UnsupportedKind;
        if !self.checker.troubled[path] && !other {
            self.violate(format!("path {path} is named as failed ({failure}), but nothing happened to it"));
        }
    }
}
