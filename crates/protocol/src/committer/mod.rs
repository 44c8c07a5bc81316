//! Groups what was written into syncs, and carries each group through the order rule.
//!
//! A group goes through three phases: contents become durable (then its objects are acknowledged), files get their final
//! names, names become durable (then its entries are acknowledged). One group is under way at a time; what is written
//! meanwhile gathers in the next one. So a slow medium makes large groups and a fast one small ones, without a setting.
//!
//! Files on a congested target have groups of their own, beside those of the others, so that these do not wait for it. They
//! may take up a part of what may wait in all.
//!
//! Where each file is made durable by itself ([`Committer::sync_each`]), a sync may hold up the writes into its file. So what
//! was written of a file is *held* until it is whole, and released earlier only as that takes long or too much waits ([`held`]);
//! several groups are under way, each with other files. One that takes long *straggles*: its group goes on without it, and
//! nothing else of it is synced until that has ended.

mod held;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use hashbrown::{HashMap, HashSet};
use haul_model::EntryId;
use haul_model::limits::{
    SYNC_GROUP_BYTES, SYNC_GROUP_BYTES_MAX, SYNC_GROUP_BYTES_TARGET, SYNC_GROUP_FILES_MAX,
};

use self::held::HeldFiles;
use crate::planted::{Bug, Planted};

/// A group is started at the latest when one part of so many of what may wait in all does, so that writing goes on while
/// the group is being synced.
const START_SHARE: u64 = 4;
const START_FILES: usize = SYNC_GROUP_FILES_MAX / 4;
/// The most that waits for slow targets, but for what is on its way when there is so much.
const SLOW_SHARE: u64 = 4;
/// Groups of a lane that are under way where each file is made durable by itself: so many that none of its threads is
/// idle because every group waits for a slow one of its files.
const GROUPS_EACH: usize = 32;
const SECOND: u64 = 1_000_000_000;
/// Bounds of how long something waits for company.
const DELAY_NANOS_MIN: u64 = 2_000_000;
const DELAY_NANOS_MAX: u64 = 500_000_000;

/// One object that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrittenObject {
    /// The file.
    pub id: EntryId,
    /// Object number.
    pub index: u32,
    /// Its length.
    pub bytes: u32,
}

/// A whole file that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrittenFile {
    /// The file.
    pub id: EntryId,
    /// What of it is not durable yet.
    pub bytes: u64,
}

/// What is asked of storage at once: a group, or of one file what is in it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Part {
    /// Objects of files that stay open.
    pub objects: Vec<WrittenObject>,
    /// Whole files.
    pub files: Vec<WrittenFile>,
}

impl Part {
    /// Each file, once.
    pub fn ids(&self) -> Vec<EntryId> {
        let mut ids: Vec<EntryId> = self.objects.iter().map(|object| object.id).collect();
        ids.extend(self.files.iter().map(|file| file.id));
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn bytes(&self) -> u64 {
        let objects = self.objects.iter().map(|object| u64::from(object.bytes)).sum::<u64>();
        objects + self.files.iter().map(|file| file.bytes).sum::<u64>()
    }

    fn into_each(self) -> Vec<Part> {
        let mut parts: BTreeMap<EntryId, Part> = BTreeMap::new();
        self.objects.into_iter().for_each(|object| parts.entry(object.id).or_default().objects.push(object));
        self.files.into_iter().for_each(|file| parts.entry(file.id).or_default().files.push(file));
        parts.into_values().collect()
    }
}

/// What becomes durable together.
#[derive(Clone, Default, Debug)]
pub struct Group {
    /// Objects of files that stay open.
    pub objects: Vec<WrittenObject>,
    /// Whole files that are to be published: bundle members and sealed files.
    pub files: Vec<WrittenFile>,
    /// Symlinks that were made.
    pub links: Vec<EntryId>,
    bytes: u64,
    since_nanos: u64,
}

impl Group {
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.files.is_empty() && self.links.is_empty()
    }

    fn absorb(&mut self, mut other: Group) {
        self.objects.append(&mut other.objects);
        self.files.append(&mut other.files);
        self.links.append(&mut other.links);
        self.bytes += other.bytes;
    }

    fn has_only_links(&self) -> bool {
        self.objects.is_empty() && self.files.is_empty()
    }
}

/// Where the group under way is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Contents.
    Sync,
    /// They are durable; the names of another group are being made.
    Synced,
    /// Final names.
    Publish,
    /// Durability of the names.
    SyncNames,
}

struct Running {
    number: u64,
    phase: Phase,
    group: Group,
    /// Parts that storage is at.
    pending: usize,
    started_nanos: u64,
}

/// Which groups something belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// The usual.
    Brisk,
    /// Of files that are on a congested target: nothing else waits for their syncs.
    Slow,
}

/// Groups that follow one another.
#[derive(Default)]
struct Groups {
    gathering: Group,
    running: Vec<Running>,
    last_nanos: u64,
}

impl Groups {
    fn all(&self) -> impl Iterator<Item = &Group> {
        self.running.iter().map(|running| &running.group).chain([&self.gathering])
    }

    fn bytes(&self) -> u64 {
        self.all().map(|group| group.bytes).sum()
    }

    fn files(&self) -> usize {
        self.all().map(|group| group.files.len()).sum()
    }

    /// When it starts the next group although nothing happens. Where several may be under way only names need company.
    fn deadline_nanos(&self, at_once: usize) -> Option<u64> {
        let waits = self.running.len() < at_once && !self.gathering.is_empty();
        waits.then(|| self.gathering.since_nanos + self.delay_nanos())
    }

    /// Waiting as long as the last group took keeps the medium at most half busy with syncs.
    fn delay_nanos(&self) -> u64 {
        self.last_nanos.clamp(DELAY_NANOS_MIN, DELAY_NANOS_MAX)
    }

    fn is_due(&self, now_nanos: u64, quiet: bool, at_once: usize, start_bytes: u64) -> bool {
        self.running.len() < at_once
            && !self.gathering.is_empty()
            && (quiet
                || at_once > 1 && !self.gathering.objects.is_empty()
                || self.gathering.bytes >= start_bytes
                || self.gathering.files.len() >= START_FILES
                || now_nanos >= self.gathering.since_nanos + self.delay_nanos())
    }
}

/// How much may wait: what was written in a second.
struct Window {
    bytes: u64,
    /// And no less than this.
    least: u64,
    /// When the second began that is being counted.
    since_nanos: Option<u64>,
    written: u64,
}

impl Default for Window {
    fn default() -> Self {
        Window { bytes: SYNC_GROUP_BYTES, least: SYNC_GROUP_BYTES, since_nanos: None, written: 0 }
    }
}

impl Window {
    fn set_targets(&mut self, targets: u32) {
        let wanted = u64::from(targets) * SYNC_GROUP_BYTES_TARGET;
        self.least = wanted.clamp(SYNC_GROUP_BYTES, SYNC_GROUP_BYTES_MAX);
        self.bytes = self.bytes.max(self.least);
    }

    fn count(&mut self, bytes: u64, now_nanos: u64) {
        let since_nanos = *self.since_nanos.get_or_insert(now_nanos);
        if now_nanos.saturating_sub(since_nanos) >= SECOND {
            self.bytes = self.written.clamp(self.least, SYNC_GROUP_BYTES_MAX);
            (self.since_nanos, self.written) = (Some(now_nanos), 0);
        }
        self.written += bytes;
    }
}

/// The groups of one sink.
#[derive(Default)]
pub struct Committer {
    planted: Planted,
    lanes: [Groups; 2],
    window: Window,
    /// Each file is made durable by itself.
    each: bool,
    /// Files that are not to be synced yet.
    held: HeldFiles,
    /// Files of the slow lane, with how many objects of each wait there: a file is in one lane at a time, so that a failed
    /// sync tells of all that was lost.
    slow: HashMap<EntryId, usize>,
    /// The same of the other one.
    brisk: HashMap<EntryId, usize>,
    /// Files that their groups did not wait for.
    straggling: HashSet<EntryId>,
    straggling_bytes: u64,
    groups: u64,
}

impl Committer {
    /// Nothing waits.
    pub fn new(planted: Planted) -> Self {
        Committer { planted, ..Committer::default() }
    }

    /// Files are on so many targets: each of them may have something that waits.
    pub fn set_targets(&mut self, targets: u32) {
        self.window.set_targets(targets);
    }

    /// From now on each file is made durable by itself, and not many with one call.
    pub fn sync_each(&mut self, now_nanos: u64) {
        if self.each {
            return;
        }
        self.each = true;
        let gathered = self.lanes.iter().flat_map(|lane| &lane.gathering.objects);
        let files: HashSet<EntryId> = gathered.map(|object| object.id).collect();
        for id in files {
            self.take_objects(id).into_iter().for_each(|object| self.held.hold(object, now_nanos));
        }
    }

    /// How many groups of a lane may be under way.
    fn at_once(&self) -> usize {
        if self.each { GROUPS_EACH } else { 1 }
    }

    /// An object was written. `lane`: where it belongs unless more of its file waits in the other one; where files are synced
    /// each by itself, [`Committer::release`] says it.
    pub fn add_object(&mut self, object: WrittenObject, lane: Lane, now_nanos: u64) {
        self.window.count(u64::from(object.bytes), now_nanos);
        if self.each {
            self.held.hold(object, now_nanos);
        } else {
            self.gather(object.id, u64::from(object.bytes), lane, now_nanos).objects.push(object);
        }
    }

    /// A whole file was written, attributes set.
    pub fn add_file(&mut self, id: EntryId, bytes: u64, lane: Lane, now_nanos: u64) {
        self.window.count(bytes, now_nanos);
        self.gather(id, bytes, lane, now_nanos).files.push(WrittenFile { id, bytes });
    }

    /// A symlink was made.
    pub fn add_link(&mut self, id: EntryId, now_nanos: u64) {
        self.gather_in(Lane::Brisk, 0, now_nanos).links.push(id);
    }

    /// Objects of this file that were written and are not durable.
    pub fn objects_waiting(&self, id: EntryId) -> usize {
        let held = self.held.count(id);
        let in_lanes = [&self.slow, &self.brisk].map(|waiting| waiting.get(&id).copied().unwrap_or(0));
        held + in_lanes.into_iter().sum::<usize>()
    }

    /// Nothing of it is being synced or about to be: two syncs of a file could take each other's error for their own success.
    fn may_be_synced(&self, id: EntryId) -> bool {
        let straggles = self.straggling.contains(&id) && !self.planted.has(Bug::StragglerSyncedAgain);
        !straggles && !self.slow.contains_key(&id) && !self.brisk.contains_key(&id)
    }

    /// A file that has been held for long enough, or that makes room. To be released or set apart; ask again until there is
    /// none.
    pub fn next_to_release(&mut self, now_nanos: u64, quiet: bool) -> Option<EntryId> {
        let mut held = core::mem::take(&mut self.held);
        let may_be_synced = |id| self.may_be_synced(id);
        let next = held.next_to_release(self.window.bytes, now_nanos, quiet, may_be_synced);
        self.held = held;
        next
    }

    /// It will be released in a while; nobody needs to be reminded of it.
    pub fn set_apart(&mut self, id: EntryId) {
        self.held.set_apart(id);
    }

    /// What is held of a file joins the next group. False if nothing is, or if something of it is being synced.
    pub fn release(&mut self, id: EntryId, lane: Lane, now_nanos: u64) -> bool {
        if !self.may_be_synced(id) {
            return false;
        }
        let objects = self.held.take(id);
        let any = !objects.is_empty();
        for object in objects {
            self.gather(id, u64::from(object.bytes), lane, now_nanos).objects.push(object);
        }
        any
    }

    fn gather(&mut self, id: EntryId, bytes: u64, lane: Lane, now_nanos: u64) -> &mut Group {
        let lane = match lane {
            _ if self.slow.contains_key(&id) => Lane::Slow,
            _ if self.brisk.contains_key(&id) => Lane::Brisk,
            lane => lane,
        };
        let waiting = if lane == Lane::Slow { &mut self.slow } else { &mut self.brisk };
        *waiting.entry(id).or_default() += 1;
        self.gather_in(lane, bytes, now_nanos)
    }

    fn gather_in(&mut self, lane: Lane, bytes: u64, now_nanos: u64) -> &mut Group {
        let gathering = &mut self.lanes[lane as usize].gathering;
        if gathering.is_empty() {
            gathering.since_nanos = now_nanos;
        }
        gathering.bytes += bytes;
        gathering
    }

    fn no_longer_waits(&mut self, lane: usize, id: EntryId, count: usize) {
        let waiting = if lane == Lane::Slow as usize { &mut self.slow } else { &mut self.brisk };
        if let Some(left) = waiting.get_mut(&id) {
            *left -= count.min(*left);
            if *left == 0 {
                waiting.remove(&id);
                self.held.can_be_looked_at(id);
            }
        }
    }

    /// Takes what waits of this file out of the next groups: a failed sync has lost it.
    pub fn take_objects(&mut self, id: EntryId) -> Vec<WrittenObject> {
        let mut taken = Vec::new();
        for lane in 0..self.lanes.len() {
            let gathering = &mut self.lanes[lane].gathering;
            let objects = core::mem::take(&mut gathering.objects);
            let (lost, kept): (Vec<_>, Vec<_>) = objects.into_iter().partition(|object| object.id == id);
            gathering.objects = kept;
            gathering.bytes -= lost.iter().map(|object| u64::from(object.bytes)).sum::<u64>();
            self.no_longer_waits(lane, id, lost.len());
            taken.extend(lost);
        }
        taken.extend(self.held.take(id));
        taken
    }

    /// The planted bug: a write that finished while the sync was running is taken as covered by it.
    #[cfg_attr(not(feature = "planted-bugs"), allow(dead_code))]
    pub(crate) fn add_to_running(&mut self, object: WrittenObject) -> bool {
        match self.lanes[Lane::Brisk as usize].running.first_mut() {
            Some(running) if running.phase == Phase::Sync => {
                running.group.objects.push(object);
                true
            }
            _ => false,
        }
    }

    /// Written and not acknowledged yet.
    pub fn bytes_waiting(&self) -> u64 {
        self.lanes.iter().map(Groups::bytes).sum::<u64>() + self.held.bytes() + self.straggling_bytes
    }

    /// As much waits as may be lost with a crash: no more credits. Of files that storage is at only the bytes count: as many
    /// may gather meanwhile.
    pub fn is_full(&self) -> bool {
        let files: usize = self.lanes.iter().map(Groups::files).sum();
        self.bytes_waiting() >= self.window.bytes || files >= SYNC_GROUP_FILES_MAX
    }

    /// As much waits for slow targets as may: nothing more is to be written to them. So there is always room for the others.
    pub fn slow_is_full(&self) -> bool {
        let waiting = self.lanes[Lane::Slow as usize].bytes() + self.straggling_bytes;
        waiting >= self.window.bytes / SLOW_SHARE
    }

    /// Nothing waits and nothing is under way.
    pub fn is_idle(&self) -> bool {
        let idle = |lane: &Groups| lane.running.is_empty() && lane.gathering.is_empty();
        self.lanes.iter().all(idle) && self.held.is_empty() && self.straggling.is_empty()
    }

    /// When to ask [`Committer::next_to_release`] and [`Committer::start`] again although nothing happens.
    pub fn deadline_nanos(&self) -> Option<u64> {
        // What has only names to make durable waits for those of another group, not for a time.
        let naming = self.is_naming();
        let waits = |lane: &&Groups| !(naming && lane.gathering.has_only_links());
        let groups = self.lanes.iter().filter(waits).filter_map(|lane| lane.deadline_nanos(self.at_once()));
        groups.chain(self.held.deadline_nanos()).min()
    }

    /// Begins a group that is due; to be asked until there is none. `quiet`: nothing is being written that could join it.
    pub fn start(&mut self, now_nanos: u64, quiet: bool) -> Option<(u64, Phase)> {
        let (naming, at_once) = (self.is_naming(), self.at_once());
        let start_bytes = self.window.bytes / START_SHARE;
        let due = |lane: &&mut Groups| {
            lane.is_due(now_nanos, quiet, at_once, start_bytes)
                && !(naming && lane.gathering.has_only_links())
        };
        let lane = self.lanes.iter_mut().find(due)?;
        self.groups += 1;
        let group = core::mem::take(&mut lane.gathering);
        let phase = if group.has_only_links() { Phase::SyncNames } else { Phase::Sync };
        let number = self.groups;
        lane.running.push(Running { number, phase, group, pending: 0, started_nanos: now_nanos });
        Some((number, phase))
    }

    fn all_running(&self) -> impl Iterator<Item = &Running> {
        self.lanes.iter().flat_map(|lane| &lane.running)
    }

    /// Names of a group are being made, or made durable: one group at a time. A directory tells of an error once, so a group
    /// could take another one's loss for its own success.
    pub fn is_naming(&self) -> bool {
        self.all_running().any(|it| matches!(it.phase, Phase::Publish | Phase::SyncNames))
    }

    /// A group that waits for that, the first that was started, and with it others of its lane. They go on as one.
    pub fn next_for_names(&mut self) -> Option<u64> {
        let synced = |it: &Running| it.phase == Phase::Synced;
        let number = self.all_running().filter(|it| synced(it)).map(|it| it.number).min()?;
        let lane = self.lane_of(number)?;
        let running = &mut self.lanes[lane].running;
        let names = |it: &Running| it.group.files.len() + it.group.links.len();
        let mut room = START_FILES;
        let joins = |it: &mut Running| {
            let joins = synced(it) && it.number != number && names(it) <= room;
            room -= if joins { names(it) } else { 0 };
            joins
        };
        let others: Vec<Running> = running.extract_if(.., joins).collect();
        let first = self.get_mut(number)?;
        for Running { group, started_nanos, .. } in others {
            first.group.absorb(group);
            first.started_nanos = first.started_nanos.min(started_nanos);
        }
        Some(number)
    }

    fn lane_of(&self, number: u64) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.running.iter().any(|running| running.number == number))
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Running> {
        self.lanes.iter_mut().flat_map(|lane| &mut lane.running).find(|running| running.number == number)
    }

    /// The group under way that has this number, if it is in this phase.
    pub fn running(&mut self, number: u64, phase: Phase) -> Option<&mut Group> {
        let running = self.get_mut(number)?;
        (running.phase == phase).then_some(&mut running.group)
    }

    /// It has not ended.
    pub fn is_running(&self, number: u64) -> bool {
        self.lane_of(number).is_some()
    }

    /// The lane of the group under way.
    pub fn lane(&self, number: u64) -> Lane {
        if self.lane_of(number) == Some(Lane::Slow as usize) { Lane::Slow } else { Lane::Brisk }
    }

    /// Takes objects and files out of the group, to be asked of storage: all at once, or file by file.
    pub fn parts(&mut self, number: u64, each: bool) -> Vec<Part> {
        let Some(running) = self.get_mut(number) else { return Vec::new() };
        let objects = core::mem::take(&mut running.group.objects);
        let all = Part { objects, files: core::mem::take(&mut running.group.files) };
        let parts = match each {
            true => all.into_each(),
            false if all == Part::default() => Vec::new(),
            false => Vec::from([all]),
        };
        running.pending = parts.len();
        parts
    }

    /// Storage is done with a part; these files go on with the group. True if it was the last one.
    pub fn part_ended(&mut self, number: u64, part: &Part, go_on: Vec<WrittenFile>) -> bool {
        let Some(lane) = self.lane_of(number) else { return false };
        self.leaves_lane(lane, part);
        let Some(running) = self.get_mut(number) else { return false };
        running.group.bytes -= part.bytes() - go_on.iter().map(|file| file.bytes).sum::<u64>();
        running.group.files.extend(go_on);
        running.pending -= 1;
        running.pending == 0
    }

    /// The group does not wait for this part any more. True if it was the last one.
    pub fn straggles(&mut self, number: u64, part: &Part, now_nanos: u64) -> bool {
        for id in part.ids() {
            self.straggling.insert(id);
            if !self.planted.has(Bug::StragglerSyncedAgain) {
                self.take_objects(id).into_iter().for_each(|object| self.held.hold(object, now_nanos));
            }
        }
        self.straggling_bytes += part.bytes();
        self.part_ended(number, part, Vec::new())
    }

    /// A sync of this file takes long.
    pub fn is_straggling(&self, id: EntryId) -> bool {
        self.straggling.contains(&id)
    }

    /// It has come to its end, one way or the other: what was written since can be synced.
    pub fn straggled(&mut self, part: &Part) {
        self.straggling_bytes -= part.bytes();
        for id in part.ids() {
            self.straggling.remove(&id);
            self.held.can_be_looked_at(id);
        }
    }

    fn leaves_lane(&mut self, lane: usize, part: &Part) {
        part.objects.iter().for_each(|object| self.no_longer_waits(lane, object.id, 1));
        part.files.iter().for_each(|file| self.no_longer_waits(lane, file.id, 1));
    }

    /// Entries of the group whose names are being made durable.
    pub fn names(&self, number: u64) -> Vec<EntryId> {
        let running = self.all_running().find(|running| running.number == number);
        running.map_or_else(Vec::new, |running| {
            let files = running.group.files.iter().map(|file| file.id);
            files.chain(running.group.links.iter().copied()).collect()
        })
    }

    /// The group enters its next phase.
    pub fn advance(&mut self, number: u64, phase: Phase) {
        if let Some(running) = self.get_mut(number) {
            running.phase = phase;
        }
    }

    /// The group has ended.
    pub fn finish(&mut self, number: u64, now_nanos: u64) {
        let Some(lane) = self.lane_of(number).map(|lane| &mut self.lanes[lane]) else { return };
        if let Some(place) = lane.running.iter().position(|running| running.number == number) {
            let ended = lane.running.swap_remove(place);
            lane.last_nanos = now_nanos.saturating_sub(ended.started_nanos);
        }
    }
}

#[cfg(test)]
mod tests;
