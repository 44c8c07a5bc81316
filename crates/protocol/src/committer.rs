//! Groups what was written into syncs, and carries each group through the order rule.
//!
//! A group goes through three phases: contents become durable (then its objects are acknowledged), files get their final
//! names, names become durable (then its entries are acknowledged). One group is under way at a time; what is written
//! meanwhile gathers in the next one. So a slow medium makes large groups and a fast one small ones, without a setting.
//!
//! Files on a congested target have groups of their own, beside those of the others, so that these do not wait for it. They
//! may take up a part of what may wait in all. And where each file is made durable by itself, one that takes long
//! *straggles*: its group goes on without it, and nothing else of it is synced until that has ended.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use hashbrown::HashMap;
use haul_model::EntryId;
use haul_model::limits::{SYNC_GROUP_BYTES, SYNC_GROUP_FILES_MAX};

use crate::planted::{Bug, Planted};

/// A group is started at the latest when this much waits: half of what may wait in all, so that writing goes on while
/// the group is being synced.
const START_BYTES: u64 = SYNC_GROUP_BYTES / 4;
const START_FILES: usize = SYNC_GROUP_FILES_MAX / 4;
/// The most that waits for slow targets, but for what is on its way when there is so much.
const SLOW_BYTES_MAX: u64 = SYNC_GROUP_BYTES / 4;
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
    running: Option<Running>,
    last_nanos: u64,
}

impl Groups {
    fn bytes(&self) -> u64 {
        self.gathering.bytes + self.running.as_ref().map_or(0, |running| running.group.bytes)
    }

    fn files(&self) -> usize {
        self.gathering.files.len() + self.running.as_ref().map_or(0, |running| running.group.files.len())
    }

    fn deadline_nanos(&self) -> Option<u64> {
        let waits = self.running.is_none() && !self.gathering.is_empty();
        waits.then(|| self.gathering.since_nanos + self.delay_nanos())
    }

    /// Waiting as long as the last group took keeps the medium at most half busy with syncs.
    fn delay_nanos(&self) -> u64 {
        self.last_nanos.clamp(DELAY_NANOS_MIN, DELAY_NANOS_MAX)
    }

    fn is_due(&self, now_nanos: u64, quiet: bool) -> bool {
        self.running.is_none()
            && !self.gathering.is_empty()
            && (quiet
                || self.gathering.bytes >= START_BYTES
                || self.gathering.files.len() >= START_FILES
                || now_nanos >= self.gathering.since_nanos + self.delay_nanos())
    }
}

/// The groups of one sink.
#[derive(Default)]
pub struct Committer {
    planted: Planted,
    lanes: [Groups; 2],
    /// Files of the slow lane, with how many objects of each wait there: a file is in one lane at a time, so that a failed
    /// sync tells of all that was lost.
    slow: HashMap<EntryId, usize>,
    /// The same of the other one.
    brisk: HashMap<EntryId, usize>,
    /// Files that their groups did not wait for, with the objects of each that were written since.
    straggling: HashMap<EntryId, Vec<WrittenObject>>,
    straggling_bytes: u64,
    groups: u64,
}

impl Committer {
    /// Nothing waits.
    pub fn new(planted: Planted) -> Self {
        Committer { planted, ..Committer::default() }
    }

    /// An object was written. `lane`: where it belongs unless more of its file waits in the other one.
    pub fn add_object(&mut self, object: WrittenObject, lane: Lane, now_nanos: u64) {
        if !self.planted.has(Bug::StragglerSyncedAgain)
            && let Some(held) = self.straggling.get_mut(&object.id)
        {
            held.push(object);
            self.straggling_bytes += u64::from(object.bytes);
            return;
        }
        self.gather(object.id, u64::from(object.bytes), lane, now_nanos).objects.push(object);
    }

    /// A whole file was written, attributes set.
    pub fn add_file(&mut self, id: EntryId, bytes: u64, lane: Lane, now_nanos: u64) {
        self.gather(id, bytes, lane, now_nanos).files.push(WrittenFile { id, bytes });
    }

    /// A symlink was made.
    pub fn add_link(&mut self, id: EntryId, now_nanos: u64) {
        self.gather_in(Lane::Brisk, 0, now_nanos).links.push(id);
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
        if let Some(held) = self.straggling.get_mut(&id) {
            let held = core::mem::take(held);
            self.straggling_bytes -= held.iter().map(|object| u64::from(object.bytes)).sum::<u64>();
            taken.extend(held);
        }
        taken
    }

    /// The planted bug: a write that finished while the sync was running is taken as covered by it.
    #[cfg_attr(not(feature = "planted-bugs"), allow(dead_code))]
    pub(crate) fn add_to_running(&mut self, object: WrittenObject) -> bool {
        match &mut self.lanes[Lane::Brisk as usize].running {
            Some(running) if running.phase == Phase::Sync => {
                running.group.objects.push(object);
                true
            }
            _ => false,
        }
    }

    /// Written and not acknowledged yet.
    pub fn bytes_waiting(&self) -> u64 {
        self.lanes.iter().map(Groups::bytes).sum::<u64>() + self.straggling_bytes
    }

    /// As much waits as may be lost with a crash: no more credits.
    pub fn is_full(&self) -> bool {
        let files: usize = self.lanes.iter().map(Groups::files).sum();
        self.bytes_waiting() >= SYNC_GROUP_BYTES || files >= SYNC_GROUP_FILES_MAX
    }

    /// As much waits for slow targets as may: nothing more is to be written to them. So there is always room for the others.
    pub fn slow_is_full(&self) -> bool {
        self.lanes[Lane::Slow as usize].bytes() + self.straggling_bytes >= SLOW_BYTES_MAX
    }

    /// Nothing waits and nothing is under way.
    pub fn is_idle(&self) -> bool {
        let idle = |lane: &Groups| lane.running.is_none() && lane.gathering.is_empty();
        self.lanes.iter().all(idle) && self.straggling.is_empty()
    }

    /// When to ask [`Committer::start`] again although nothing happens.
    pub fn deadline_nanos(&self) -> Option<u64> {
        // What has only names to make durable waits for those of another group, not for a time.
        let naming = self.is_naming();
        let waits = |lane: &&Groups| !(naming && lane.gathering.has_only_links());
        self.lanes.iter().filter(waits).filter_map(Groups::deadline_nanos).min()
    }

    /// Begins a group that is due; to be asked until there is none. `quiet`: nothing is being written that could join it.
    pub fn start(&mut self, now_nanos: u64, quiet: bool) -> Option<(u64, Phase)> {
        let naming = self.is_naming();
        let due = |lane: &&mut Groups| {
            lane.is_due(now_nanos, quiet) && !(naming && lane.gathering.has_only_links())
        };
        let lane = self.lanes.iter_mut().find(due)?;
        self.groups += 1;
        let group = core::mem::take(&mut lane.gathering);
        let phase = if group.has_only_links() { Phase::SyncNames } else { Phase::Sync };
        lane.running =
            Some(Running { number: self.groups, phase, group, pending: 0, started_nanos: now_nanos });
        Some((self.groups, phase))
    }

    /// Names of a group are being made, or made durable: one group at a time. A directory tells of an error once, so a group
    /// could take another one's loss for its own success.
    pub fn is_naming(&self) -> bool {
        let naming = |lane: &Groups| {
            lane.running.as_ref().is_some_and(|it| matches!(it.phase, Phase::Publish | Phase::SyncNames))
        };
        self.lanes.iter().any(naming)
    }

    /// A group that waits for that.
    pub fn waits_for_names(&self) -> Option<u64> {
        let waits =
            |lane: &Groups| lane.running.as_ref().filter(|it| it.phase == Phase::Synced).map(|it| it.number);
        self.lanes.iter().find_map(waits)
    }

    fn lane_of(&self, number: u64) -> Option<usize> {
        let runs = |lane: &Groups| lane.running.as_ref().is_some_and(|running| running.number == number);
        self.lanes.iter().position(runs)
    }

    /// The group under way that has this number, if it is in this phase.
    pub fn running(&mut self, number: u64, phase: Phase) -> Option<&mut Group> {
        let running = self.lanes[self.lane_of(number)?].running.as_mut()?;
        (running.phase == phase).then_some(&mut running.group)
    }

    /// The lane of the group under way.
    pub fn lane(&self, number: u64) -> Lane {
        if self.lane_of(number) == Some(Lane::Slow as usize) { Lane::Slow } else { Lane::Brisk }
    }

    /// Takes objects and files out of the group, to be asked of storage: all at once, or file by file.
    pub fn parts(&mut self, number: u64, each: bool) -> Vec<Part> {
        let Some(running) = self.lane_of(number).and_then(|lane| self.lanes[lane].running.as_mut()) else {
            return Vec::new();
        };
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
        let Some(running) = &mut self.lanes[lane].running else { return false };
        running.group.bytes -= part.bytes() - go_on.iter().map(|file| file.bytes).sum::<u64>();
        running.group.files.extend(go_on);
        running.pending -= 1;
        running.pending == 0
    }

    /// The group does not wait for this part any more; what was written of its files since is held back. True if it was the
    /// last one.
    pub fn straggles(&mut self, number: u64, part: &Part) -> bool {
        for id in part.ids() {
            let ignored = self.planted.has(Bug::StragglerSyncedAgain);
            let held = if ignored { Vec::new() } else { self.take_objects(id) };
            self.straggling_bytes += held.iter().map(|object| u64::from(object.bytes)).sum::<u64>();
            self.straggling.insert(id, held);
        }
        self.straggling_bytes += part.bytes();
        self.part_ended(number, part, Vec::new())
    }

    /// A sync of this file takes long.
    pub fn is_straggling(&self, id: EntryId) -> bool {
        self.straggling.contains_key(&id)
    }

    /// It has come to its end, one way or the other: what was written since can be synced.
    pub fn straggled(&mut self, part: &Part, now_nanos: u64) {
        self.straggling_bytes -= part.bytes();
        for id in part.ids() {
            for object in self.straggling.remove(&id).unwrap_or_default() {
                self.straggling_bytes -= u64::from(object.bytes);
                self.add_object(object, Lane::Slow, now_nanos);
            }
        }
    }

    fn leaves_lane(&mut self, lane: usize, part: &Part) {
        part.objects.iter().for_each(|object| self.no_longer_waits(lane, object.id, 1));
        part.files.iter().for_each(|file| self.no_longer_waits(lane, file.id, 1));
    }

    /// Entries of the group whose names are being made durable.
    pub fn names(&self, number: u64) -> Vec<EntryId> {
        let running = self.lane_of(number).and_then(|lane| self.lanes[lane].running.as_ref());
        running.map_or_else(Vec::new, |running| {
            let files = running.group.files.iter().map(|file| file.id);
            files.chain(running.group.links.iter().copied()).collect()
        })
    }

    /// The group enters its next phase.
    pub fn advance(&mut self, number: u64, phase: Phase) {
        if let Some(running) = self.lane_of(number).and_then(|lane| self.lanes[lane].running.as_mut()) {
            running.phase = phase;
        }
    }

    /// The group has ended.
    pub fn finish(&mut self, number: u64, now_nanos: u64) {
        let Some(lane) = self.lane_of(number).map(|lane| &mut self.lanes[lane]) else { return };
        if let Some(running) = lane.running.take() {
            lane.last_nanos = now_nanos.saturating_sub(running.started_nanos);
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
        committer.add_object(object(0, START_BYTES as u32), Lane::Brisk, 0);
        assert!(committer.start(0, false).is_some(), "large enough at once");
        committer.add_object(object(1, (SYNC_GROUP_BYTES - START_BYTES - 1) as u32), Lane::Brisk, 0);
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
    fn a_group_does_not_wait_for_what_straggles_and_syncs_nothing_else_of_it_meanwhile() {
        let mut committer = Committer::default();
        let other = WrittenObject { id: EntryId(2), index: 0, bytes: 7 };
        for written in [object(0, 10), other, object(1, 20)] {
            committer.add_object(written, Lane::Brisk, 0);
        }
        committer.add_file(EntryId(3), 5, Lane::Brisk, 0);
        assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
        committer.add_object(object(2, 40), Lane::Brisk, 0);
        let [hangs, goes, file] = &committer.parts(1, true)[..] else { panic!("one part for each file") };
        assert_eq!((hangs.objects.len(), goes.objects.len(), file.files.len()), (2, 1, 1));
        assert!(!committer.part_ended(1, goes, Vec::new()));
        assert!(!committer.part_ended(1, file, file.files.clone()));
        assert!(committer.straggles(1, hangs), "the group has ended without it");
        assert_eq!(committer.bytes_waiting(), 75);
        committer.finish(1, 0);
        committer.add_object(object(3, 60), Lane::Brisk, 0);
        assert_eq!(committer.start(0, true), None, "its file is being synced");
        assert!(!committer.is_idle());
        assert_eq!(committer.bytes_waiting(), 130);
        committer.straggled(hangs, 0);
        assert_eq!(committer.start(0, true), Some((2, Phase::Sync)));
        assert_eq!((committer.lane(2), committer.bytes_waiting()), (Lane::Slow, 100));
    }

    #[test]
    fn what_waits_for_slow_targets_leaves_room_for_the_others() {
        let mut committer = Committer::default();
        committer.add_object(object(0, SLOW_BYTES_MAX as u32 - 1), Lane::Slow, 0);
        assert!(!committer.slow_is_full());
        committer.add_object(object(1, 1), Lane::Slow, 0);
        assert!(committer.slow_is_full() && !committer.is_full());
        assert!(committer.start(0, true).is_some());
        let [part] = &committer.parts(1, true)[..] else { panic!("one file") };
        assert!(committer.slow_is_full());
        committer.straggles(1, part);
        committer.finish(1, 0);
        assert!(committer.slow_is_full(), "what straggles counts");
        committer.straggled(part, 0);
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
