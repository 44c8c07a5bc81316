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
//! was written of a file is *held* until it is whole, and released earlier only as that takes long or too much waits;
//! several groups are under way, each with other files. One that takes long *straggles*: its group goes on without it, and
//! nothing else of it is synced until that has ended.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use hashbrown::{HashMap, HashSet};
use haul_model::EntryId;
use haul_model::limits::{SYNC_GROUP_BYTES, SYNC_GROUP_BYTES_MAX, SYNC_GROUP_FILES_MAX};

use crate::planted::{Bug, Planted};

/// A group is started at the latest when one part of so many of what may wait in all does, so that writing goes on while
/// the group is being synced.
const START_SHARE: u64 = 4;
const START_FILES: usize = SYNC_GROUP_FILES_MAX / 4;
/// The most that waits for slow targets, but for what is on its way when there is so much.
const SLOW_SHARE: u64 = 4;
/// Files that are not whole hold at most this part of it.
const HELD_SHARE: u64 = 4;
/// Nothing of a file waits for the rest of it for longer than this,
const HELD_NANOS_MAX: u64 = 1_000_000_000;
/// or than this when nothing of it comes.
const IDLE_NANOS_MAX: u64 = 250_000_000;
/// Groups of a lane that are under way where each file is made durable by itself.
const GROUPS_EACH: usize = 4;
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

/// What was written of a file that is in no group yet.
#[derive(Default)]
struct Held {
    objects: Vec<WrittenObject>,
    bytes: u64,
    since_nanos: u64,
    last_nanos: u64,
    /// It will be released once nothing is being written into it.
    set_apart: bool,
}

impl Held {
    fn due_nanos(&self) -> u64 {
        (self.since_nanos + HELD_NANOS_MAX).min(self.last_nanos + IDLE_NANOS_MAX)
    }
}

/// How much may wait: what was written in a second.
struct Window {
    bytes: u64,
    /// When the second began that is being counted.
    since_nanos: Option<u64>,
    written: u64,
}

impl Default for Window {
    fn default() -> Self {
        Window { bytes: SYNC_GROUP_BYTES, since_nanos: None, written: 0 }
    }
}

impl Window {
    fn count(&mut self, bytes: u64, now_nanos: u64) {
        let since_nanos = *self.since_nanos.get_or_insert(now_nanos);
        if now_nanos.saturating_sub(since_nanos) >= SECOND {
            self.bytes = self.written.clamp(SYNC_GROUP_BYTES, SYNC_GROUP_BYTES_MAX);
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
    held: HashMap<EntryId, Held>,
    held_bytes: u64,
    /// When to look for those that have been held for long enough.
    look_nanos: u64,
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

    /// From now on each file is made durable by itself, and not many with one call.
    pub fn sync_each(&mut self, now_nanos: u64) {
        if self.each {
            return;
        }
        self.each = true;
        let gathered = self.lanes.iter().flat_map(|lane| &lane.gathering.objects);
        let files: HashSet<EntryId> = gathered.map(|object| object.id).collect();
        for id in files {
            self.take_objects(id).into_iter().for_each(|object| self.hold(object, now_nanos));
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
            self.hold(object, now_nanos);
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

    fn hold(&mut self, object: WrittenObject, now_nanos: u64) {
        let held = self.held.entry(object.id).or_default();
        if held.objects.is_empty() {
            held.since_nanos = now_nanos;
        }
        held.last_nanos = now_nanos;
        held.objects.push(object);
        held.bytes += u64::from(object.bytes);
        self.held_bytes += u64::from(object.bytes);
        self.look_nanos = self.look_nanos.min(held.due_nanos());
    }

    /// Objects of this file that were written and are not durable.
    pub fn objects_waiting(&self, id: EntryId) -> usize {
        let held = self.held.get(&id).map_or(0, |held| held.objects.len());
        let in_lanes = [&self.slow, &self.brisk].map(|waiting| waiting.get(&id).copied().unwrap_or(0));
        held + in_lanes.into_iter().sum::<usize>()
    }

    /// Nothing of it is being synced or about to be: two syncs of a file could take each other's error for their own success.
    fn may_be_synced(&self, id: EntryId) -> bool {
        let straggles = self.straggling.contains(&id) && !self.planted.has(Bug::StragglerSyncedAgain);
        !straggles && !self.slow.contains_key(&id) && !self.brisk.contains_key(&id)
    }

    fn may_be_released(&self, id: EntryId, held: &Held) -> bool {
        !held.set_apart && self.may_be_synced(id)
    }

    /// A file that has been held for long enough, or that makes room. To be released or set apart; ask again until there is
    /// none.
    pub fn next_to_release(&mut self, now_nanos: u64, quiet: bool) -> Option<EntryId> {
        if self.held.is_empty() {
            return None;
        }
        let most = self.window.bytes / HELD_SHARE;
        if self.held_bytes > most {
            // Those that are set apart make room soon: not all files at once are to stand still.
            let can = || self.held.iter().filter(|(id, held)| self.may_be_released(**id, held));
            let largest = can().max_by_key(|(id, held)| (held.bytes, **id));
            if can().map(|(_, held)| held.bytes).sum::<u64>() > most
                && let Some((id, _)) = largest
            {
                return Some(*id);
            }
        }
        if !quiet && now_nanos < self.look_nanos {
            return None;
        }
        let can = self.held.iter().filter(|(id, held)| self.may_be_released(**id, held));
        let oldest = can.map(|(id, held)| (held.due_nanos(), *id)).min();
        self.look_nanos = oldest.map_or(u64::MAX, |(due, _)| due);
        oldest.filter(|(due, _)| quiet || *due <= now_nanos).map(|(_, id)| id)
    }

    /// It will be released in a while; nobody needs to be reminded of it.
    pub fn set_apart(&mut self, id: EntryId) {
        if let Some(held) = self.held.get_mut(&id) {
            held.set_apart = true;
        }
    }

    /// What is held of a file joins the next group. False if nothing is, or if something of it is being synced.
    pub fn release(&mut self, id: EntryId, lane: Lane, now_nanos: u64) -> bool {
        if !self.may_be_synced(id) {
            return false;
        }
        let Some(held) = self.held.remove(&id) else { return false };
        self.held_bytes -= held.bytes;
        for object in held.objects {
            self.gather(id, u64::from(object.bytes), lane, now_nanos).objects.push(object);
        }
        true
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
                self.can_be_looked_at(id);
            }
        }
    }

    /// What was held back because something else of this file was being synced.
    fn can_be_looked_at(&mut self, id: EntryId) {
        if let Some(held) = self.held.get(&id) {
            self.look_nanos = self.look_nanos.min(held.due_nanos());
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
        if let Some(held) = self.held.remove(&id) {
            self.held_bytes -= held.bytes;
            taken.extend(held.objects);
        }
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
        self.lanes.iter().map(Groups::bytes).sum::<u64>() + self.held_bytes + self.straggling_bytes
    }

    /// As much waits as may be lost with a crash: no more credits.
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
        let held = (!self.held.is_empty() && self.look_nanos < u64::MAX).then_some(self.look_nanos);
        groups.chain(held).min()
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

    /// A group that waits for that; the first that began to.
    pub fn waits_for_names(&self) -> Option<u64> {
        self.all_running().filter(|it| it.phase == Phase::Synced).map(|it| it.number).min()
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
                self.take_objects(id).into_iter().for_each(|object| self.hold(object, now_nanos));
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
            self.can_be_looked_at(id);
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
mod tests {
    use super::*;

    fn object(index: u32, bytes: u32) -> WrittenObject {
        WrittenObject { id: EntryId(1), index, bytes }
    }

    #[test]
    fn a_write_during_a_sync_waits_for_the_next_group() {
        let mut committer = Committer::default();
        committer.add_object(object(0, 10), Lane::Brisk, 0);
        assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
        committer.add_object(object(1, 10), Lane::Brisk, 1);
        assert_eq!(committer.start(1, true), None, "one group at a time");
        assert_eq!(committer.running(1, Phase::Sync).unwrap().objects, [object(0, 10)]);
        committer.finish(1, 2);
        assert_eq!(committer.start(2, true), Some((2, Phase::Sync)));
        assert_eq!(committer.running(2, Phase::Sync).unwrap().objects, [object(1, 10)]);
    }

    #[test]
    fn it_waits_for_company_as_long_as_the_last_group_took() {
        let mut committer = Committer::default();
        committer.add_object(object(0, 10), Lane::Brisk, 0);
        committer.start(0, true).unwrap();
        committer.finish(1, 40_000_000);
        committer.add_object(object(1, 10), Lane::Brisk, 50_000_000);
        assert_eq!(committer.start(60_000_000, false), None);
        assert_eq!(committer.deadline_nanos(), Some(90_000_000));
        assert!(committer.start(90_000_000, false).is_some());
    }

    #[test]
    fn what_waits_is_bounded_over_both_groups() {
        let mut committer = Committer::default();
        let start = SYNC_GROUP_BYTES / START_SHARE;
        committer.add_object(object(0, start as u32), Lane::Brisk, 0);
        assert!(committer.start(0, false).is_some(), "large enough at once");
        committer.add_object(object(1, (SYNC_GROUP_BYTES - start - 1) as u32), Lane::Brisk, 0);
        assert!(!committer.is_full());
        committer.add_object(object(2, 1), Lane::Brisk, 0);
        assert!(committer.is_full());
        committer.finish(1, 1);
        assert!(!committer.is_full());
    }

    #[test]
    fn what_a_failed_sync_lost_leaves_the_next_group_too() {
        let mut committer = Committer::default();
        let other = WrittenObject { id: EntryId(2), index: 0, bytes: 7 };
        committer.add_object(object(0, 10), Lane::Brisk, 0);
        committer.add_object(other, Lane::Brisk, 0);
        committer.add_object(object(1, 20), Lane::Brisk, 0);
        assert_eq!(committer.take_objects(EntryId(1)), [object(0, 10), object(1, 20)]);
        assert_eq!(committer.bytes_waiting(), 7);
        assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
        assert_eq!(committer.running(1, Phase::Sync).unwrap().objects, [other]);
    }

    #[test]
    fn a_slow_group_holds_up_no_other() {
        let mut committer = Committer::default();
        let other = WrittenObject { id: EntryId(2), index: 0, bytes: 7 };
        committer.add_object(object(0, 10), Lane::Slow, 0);
        assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
        committer.add_object(other, Lane::Brisk, 1);
        assert_eq!(committer.start(1, true), Some((2, Phase::Sync)));
        committer.finish(2, 2);
        assert!(committer.running(1, Phase::Sync).is_some() && committer.running(2, Phase::Sync).is_none());
        assert_eq!(committer.bytes_waiting(), 10);
    }

    #[test]
    fn a_file_is_in_one_lane_at_a_time() {
        let mut committer = Committer::default();
        committer.add_object(object(0, 10), Lane::Slow, 0);
        committer.add_object(object(1, 10), Lane::Brisk, 0);
        assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
        committer.add_object(object(2, 10), Lane::Brisk, 0);
        assert_eq!(committer.start(0, true), None, "its file is being synced");
        let [part] = &committer.parts(1, false)[..] else { panic!("one part") };
        assert_eq!(part.objects.len(), 2);
        assert!(committer.part_ended(1, part, Vec::new()));
        committer.finish(1, 0);
        assert_eq!(committer.take_objects(EntryId(1)), [object(2, 10)]);
        committer.add_object(object(3, 10), Lane::Brisk, 0);
        assert_eq!(committer.start(0, true), Some((2, Phase::Sync)), "nothing of it waits in the slow lane");
    }

    #[test]
    fn as_much_may_wait_as_is_written_in_a_second() {
        for (second, window) in [(1, 64), (100, 100), (1000, 256)] {
            let mut committer = Committer::default();
            for tenth in 0..=10 {
                committer.add_object(
                    object(tenth, (second << 20) / 10),
                    Lane::Brisk,
                    u64::from(tenth) * SECOND / 10,
                );
            }
            let mib = committer.window.bytes.div_ceil(1 << 20);
            assert_eq!(mib, window, "{second} MiB in a second");
        }
    }

    /// Files that are synced each by itself; file 1 holds an object.
    fn each() -> Committer {
        let mut committer = Committer::default();
        committer.sync_each(0);
        committer.add_object(object(0, 10), Lane::Brisk, 0);
        committer
    }

    #[test]
    fn what_is_held_of_a_file_is_released_when_it_is_whole_or_has_waited() {
        let mut committer = each();
        assert_eq!(committer.next_to_release(0, false), None);
        assert_eq!(committer.start(0, true), None, "it is held");
        assert_eq!((committer.objects_waiting(EntryId(1)), committer.bytes_waiting()), (1, 10));
        assert_eq!(committer.deadline_nanos(), Some(IDLE_NANOS_MAX));
        assert_eq!(committer.next_to_release(IDLE_NANOS_MAX - 1, false), None);
        assert_eq!(committer.next_to_release(IDLE_NANOS_MAX, false), Some(EntryId(1)));
        // More comes all the time.
        let mut now = 0;
        while committer.next_to_release(now, false).is_none() {
            now += IDLE_NANOS_MAX / 2;
            committer.add_object(object(1, 10), Lane::Brisk, now);
        }
        assert_eq!(now, HELD_NANOS_MAX);
        assert_eq!(committer.next_to_release(0, true), Some(EntryId(1)), "nothing more comes");
        committer.release(EntryId(1), Lane::Slow, now);
        assert_eq!(committer.next_to_release(now, true), None);
        assert_eq!(committer.start(now, true), Some((1, Phase::Sync)));
        assert_eq!(committer.lane(1), Lane::Slow);
    }

    #[test]
    fn what_was_gathered_of_a_file_that_is_being_synced_is_held_from_now_on() {
        let mut committer = Committer::default();
        committer.add_object(object(0, 10), Lane::Brisk, 0);
        assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
        committer.add_object(object(1, 10), Lane::Brisk, 0);
        committer.sync_each(0);
        assert_eq!((committer.next_to_release(0, true), committer.start(0, true)), (None, None));
        let [part] = &committer.parts(1, false)[..] else { panic!("one file") };
        assert!(committer.part_ended(1, part, Vec::new()));
        assert_eq!((committer.next_to_release(0, true), committer.bytes_waiting()), (Some(EntryId(1)), 10));
    }

    #[test]
    fn the_file_that_holds_most_makes_room() {
        let mut committer = each();
        let large = WrittenObject { id: EntryId(2), index: 0, bytes: (SYNC_GROUP_BYTES / HELD_SHARE) as u32 };
        committer.add_object(large, Lane::Brisk, 0);
        assert_eq!(committer.next_to_release(0, false), Some(EntryId(2)));
        committer.release(EntryId(2), Lane::Brisk, 0);
        assert_eq!(committer.next_to_release(0, false), None);
        assert!(committer.start(0, false).is_some(), "it is a group");
    }

    #[test]
    fn a_file_that_is_about_to_make_room_is_enough() {
        let mut committer = each();
        let most = SYNC_GROUP_BYTES / HELD_SHARE;
        for (file, bytes) in [(2, most), (3, most - 20), (4, most - 30)] {
            let bytes = bytes as u32;
            committer.add_object(WrittenObject { id: EntryId(file), index: 0, bytes }, Lane::Brisk, 0);
        }
        let mut stand_still = Vec::new();
        while let Some(id) = committer.next_to_release(0, false) {
            committer.set_apart(id);
            stand_still.push(id.0);
        }
        assert_eq!(stand_still, [2, 3], "what is left may be held");
    }

    #[test]
    fn several_groups_are_under_way_and_no_file_is_in_two() {
        let mut committer = each();
        for file in 2..=GROUPS_EACH as u64 + 2 {
            committer.add_object(WrittenObject { id: EntryId(file), index: 0, bytes: 1 }, Lane::Brisk, 0);
        }
        for file in 1..=GROUPS_EACH as u64 {
            committer.release(EntryId(file), Lane::Brisk, 0);
            assert_eq!(committer.start(0, true), Some((file, Phase::Sync)));
        }
        committer.release(EntryId(GROUPS_EACH as u64 + 1), Lane::Brisk, 0);
        assert_eq!(committer.start(0, true), None);
        committer.add_object(object(1, 10), Lane::Brisk, 0);
        committer.release(EntryId(1), Lane::Slow, 0);
        assert_eq!(
            committer.next_to_release(0, true),
            Some(EntryId(GROUPS_EACH as u64 + 2)),
            "file 1 is being synced"
        );
        let [part] = &committer.parts(1, true)[..] else { panic!("one file") };
        assert!(committer.part_ended(1, part, Vec::new()));
        committer.finish(1, 0);
        assert_eq!(committer.next_to_release(IDLE_NANOS_MAX, false), Some(EntryId(1)));
    }

    #[test]
    fn a_group_does_not_wait_for_what_straggles_and_syncs_nothing_else_of_it_meanwhile() {
        let mut committer = Committer::default();
        committer.sync_each(0);
        let other = WrittenObject { id: EntryId(2), index: 0, bytes: 7 };
        for written in [object(0, 10), other, object(1, 20)] {
            committer.add_object(written, Lane::Brisk, 0);
        }
        assert!([1, 2].into_iter().all(|id| committer.release(EntryId(id), Lane::Brisk, 0)));
        committer.add_file(EntryId(3), 5, Lane::Brisk, 0);
        assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
        committer.add_object(object(2, 40), Lane::Brisk, 0);
        let [hangs, goes, file] = &committer.parts(1, true)[..] else { panic!("one part for each file") };
        assert_eq!((hangs.objects.len(), goes.objects.len(), file.files.len()), (2, 1, 1));
        assert!(!committer.part_ended(1, goes, Vec::new()));
        assert!(!committer.part_ended(1, file, file.files.clone()));
        assert!(committer.straggles(1, hangs, 0), "the group has ended without it");
        assert_eq!(committer.bytes_waiting(), 75);
        committer.finish(1, 0);
        committer.add_object(object(3, 60), Lane::Brisk, 0);
        committer.release(EntryId(1), Lane::Slow, 0);
        assert_eq!((committer.next_to_release(0, true), committer.start(0, true)), (None, None));
        assert_eq!(committer.deadline_nanos(), None, "no time will change that");
        assert!(!committer.is_idle());
        assert_eq!(committer.bytes_waiting(), 130);
        committer.straggled(hangs);
        assert_eq!(committer.next_to_release(0, true), Some(EntryId(1)));
        committer.release(EntryId(1), Lane::Slow, 0);
        assert_eq!(committer.start(0, true), Some((2, Phase::Sync)));
        assert_eq!((committer.lane(2), committer.bytes_waiting()), (Lane::Slow, 100));
    }

    #[test]
    fn what_waits_for_slow_targets_leaves_room_for_the_others() {
        let mut committer = Committer::default();
        let most = (SYNC_GROUP_BYTES / SLOW_SHARE) as u32;
        committer.add_object(object(0, most - 1), Lane::Slow, 0);
        assert!(!committer.slow_is_full());
        committer.add_object(object(1, 1), Lane::Slow, 0);
        assert!(committer.slow_is_full() && !committer.is_full());
        assert!(committer.start(0, true).is_some());
        let [part] = &committer.parts(1, true)[..] else { panic!("one file") };
        assert!(committer.slow_is_full());
        committer.straggles(1, part, 0);
        committer.finish(1, 0);
        assert!(committer.slow_is_full(), "what straggles counts");
        committer.straggled(part);
        assert!(!committer.slow_is_full() && committer.is_idle());
    }

    #[test]
    fn names_are_made_for_one_group_at_a_time() {
        let mut committer = Committer::default();
        committer.add_object(object(0, 10), Lane::Slow, 0);
        assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
        committer.advance(1, Phase::Publish);
        assert!(committer.is_naming());
        committer.add_link(EntryId(3), 0);
        assert_eq!(committer.start(0, true), None, "nothing but names");
        assert_eq!(committer.deadline_nanos(), None, "no time will change that");
        committer.add_file(EntryId(4), 10, Lane::Brisk, 0);
        assert_eq!(committer.start(0, true), Some((2, Phase::Sync)));
        committer.advance(2, Phase::Synced);
        assert_eq!(committer.waits_for_names(), Some(2));
        committer.finish(1, 1);
        assert!(!committer.is_naming());
    }

    #[test]
    fn new_symlinks_need_only_their_names_synced() {
        let mut committer = Committer::default();
        committer.add_link(EntryId(3), 0);
        assert_eq!(committer.start(0, true), Some((1, Phase::SyncNames)));
    }
}
