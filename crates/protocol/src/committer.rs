//! Groups what was written into syncs, and carries each group through the order rule.
//!
//! A group goes through three phases: contents become durable (then its objects are acknowledged), files get their final
//! names, names become durable (then its entries are acknowledged). One group is under way at a time; what is written
//! meanwhile gathers in the next one. So a slow medium makes large groups and a fast one small ones, without a setting.

use alloc::vec::Vec;

use haul_model::EntryId;
use haul_model::limits::{SYNC_GROUP_BYTES, SYNC_GROUP_FILES_MAX};

/// A group is started at the latest when this much waits: half of what may wait in all, so that writing goes on while
/// the group is being synced.
const START_BYTES: u64 = SYNC_GROUP_BYTES / 4;
const START_FILES: usize = SYNC_GROUP_FILES_MAX / 4;
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

/// What becomes durable together.
#[derive(Clone, Default, Debug)]
pub struct Group {
    /// Objects of files that stay open.
    pub objects: Vec<WrittenObject>,
    /// Whole files that are to be published: bundle members and sealed files.
    pub files: Vec<EntryId>,
    /// Symlinks that were made.
    pub links: Vec<EntryId>,
    bytes: u64,
    since_nanos: u64,
}

impl Group {
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.files.is_empty() && self.links.is_empty()
    }

    /// Each file with contents to sync, once.
    pub fn files_to_sync(&self) -> Vec<EntryId> {
        let mut ids: Vec<EntryId> = self.objects.iter().map(|object| object.id).collect();
        ids.extend_from_slice(&self.files);
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// Where the group under way is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Contents.
    Sync,
    /// Final names.
    Publish,
    /// Durability of the names.
    SyncNames,
}

struct Running {
    number: u64,
    phase: Phase,
    group: Group,
    started_nanos: u64,
}

/// The groups of one sink.
#[derive(Default)]
pub struct Committer {
    gathering: Group,
    running: Option<Running>,
    groups: u64,
    last_nanos: u64,
}

impl Committer {
    /// An object was written.
    pub fn add_object(&mut self, object: WrittenObject, now_nanos: u64) {
        self.gather(u64::from(object.bytes), now_nanos).objects.push(object);
    }

    /// A whole file was written, attributes set.
    pub fn add_file(&mut self, id: EntryId, bytes: u64, now_nanos: u64) {
        self.gather(bytes, now_nanos).files.push(id);
    }

    /// A symlink was made.
    pub fn add_link(&mut self, id: EntryId, now_nanos: u64) {
        self.gather(0, now_nanos).links.push(id);
    }

    fn gather(&mut self, bytes: u64, now_nanos: u64) -> &mut Group {
        if self.gathering.is_empty() {
            self.gathering.since_nanos = now_nanos;
        }
        self.gathering.bytes += bytes;
        &mut self.gathering
    }

    /// Takes what waits of this file out of the next group: a failed sync has lost it.
    pub fn take_objects(&mut self, id: EntryId) -> Vec<WrittenObject> {
        let objects = core::mem::take(&mut self.gathering.objects);
        let (lost, kept): (Vec<_>, Vec<_>) = objects.into_iter().partition(|object| object.id == id);
        self.gathering.objects = kept;
        self.gathering.bytes -= lost.iter().map(|object| u64::from(object.bytes)).sum::<u64>();
        lost
    }

    /// The planted bug: a write that finished while the sync was running is taken as covered by it.
    #[cfg_attr(not(feature = "planted-bugs"), allow(dead_code))]
    pub(crate) fn add_to_running(&mut self, object: WrittenObject) -> bool {
        match &mut self.running {
            Some(running) if running.phase == Phase::Sync => {
                running.group.objects.push(object);
                true
            }
            _ => false,
        }
    }

    /// Written and not acknowledged yet.
    pub fn bytes_waiting(&self) -> u64 {
        self.gathering.bytes + self.running.as_ref().map_or(0, |running| running.group.bytes)
    }

    /// As much waits as may be lost with a crash: no more credits.
    pub fn is_full(&self) -> bool {
        let files = self.gathering.files.len() + self.running.as_ref().map_or(0, |it| it.group.files.len());
        self.bytes_waiting() >= SYNC_GROUP_BYTES || files >= SYNC_GROUP_FILES_MAX
    }

    /// Nothing waits and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.running.is_none() && self.gathering.is_empty()
    }

    /// When to ask [`Committer::start`] again although nothing happens.
    pub fn deadline_nanos(&self) -> Option<u64> {
        let waits = self.running.is_none() && !self.gathering.is_empty();
        waits.then(|| self.gathering.since_nanos + self.delay_nanos())
    }

    /// Waiting as long as the last group took keeps the medium at most half busy with syncs.
    fn delay_nanos(&self) -> u64 {
        self.last_nanos.clamp(DELAY_NANOS_MIN, DELAY_NANOS_MAX)
    }

    /// Begins the next group if it is due. `quiet`: nothing is being written that could join it.
    pub fn start(&mut self, now_nanos: u64, quiet: bool) -> Option<(u64, Phase)> {
        if self.running.is_some() || self.gathering.is_empty() {
            return None;
        }
        let due = quiet
            || self.gathering.bytes >= START_BYTES
            || self.gathering.files.len() >= START_FILES
            || now_nanos >= self.gathering.since_nanos + self.delay_nanos();
        if !due {
            return None;
        }
        self.groups += 1;
        let group = core::mem::take(&mut self.gathering);
        let only_links = group.objects.is_empty() && group.files.is_empty();
        let phase = if only_links { Phase::SyncNames } else { Phase::Sync };
        self.running = Some(Running { number: self.groups, phase, group, started_nanos: now_nanos });
        Some((self.groups, phase))
    }

    /// The group under way, if it has this number and is in this phase.
    pub fn running(&mut self, number: u64, phase: Phase) -> Option<&mut Group> {
        let running = self.running.as_mut()?;
        (running.number == number && running.phase == phase).then_some(&mut running.group)
    }

    /// The group under way enters its next phase.
    pub fn advance(&mut self, phase: Phase) {
        if let Some(running) = &mut self.running {
            running.phase = phase;
        }
    }

    /// The group under way has ended.
    pub fn finish(&mut self, now_nanos: u64) {
        if let Some(running) = self.running.take() {
            self.last_nanos = now_nanos.saturating_sub(running.started_nanos);
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
        committer.add_object(object(0, 10), 0);
        assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
        committer.add_object(object(1, 10), 1);
        assert_eq!(committer.start(1, true), None, "one group at a time");
        assert_eq!(committer.running(1, Phase::Sync).unwrap().objects, [object(0, 10)]);
        committer.finish(2);
        assert_eq!(committer.start(2, true), Some((2, Phase::Sync)));
        assert_eq!(committer.running(2, Phase::Sync).unwrap().objects, [object(1, 10)]);
    }

    #[test]
    fn it_waits_for_company_as_long_as_the_last_group_took() {
        let mut committer = Committer::default();
        committer.add_object(object(0, 10), 0);
        committer.start(0, true).unwrap();
        committer.finish(40_000_000);
        committer.add_object(object(1, 10), 50_000_000);
        assert_eq!(committer.start(60_000_000, false), None);
        assert_eq!(committer.deadline_nanos(), Some(90_000_000));
        assert!(committer.start(90_000_000, false).is_some());
    }

    #[test]
    fn what_waits_is_bounded_over_both_groups() {
        let mut committer = Committer::default();
        committer.add_object(object(0, START_BYTES as u32), 0);
        assert!(committer.start(0, false).is_some(), "large enough at once");
        committer.add_object(object(1, (SYNC_GROUP_BYTES - START_BYTES - 1) as u32), 0);
        assert!(!committer.is_full());
        committer.add_object(object(2, 1), 0);
        assert!(committer.is_full());
        committer.finish(1);
        assert!(!committer.is_full());
    }

    #[test]
    fn what_a_failed_sync_lost_leaves_the_next_group_too() {
        let mut committer = Committer::default();
        let other = WrittenObject { id: EntryId(2), index: 0, bytes: 7 };
        committer.add_object(object(0, 10), 0);
        committer.add_object(other, 0);
        committer.add_object(object(1, 20), 0);
        assert_eq!(committer.take_objects(EntryId(1)), [object(0, 10), object(1, 20)]);
        assert_eq!(committer.bytes_waiting(), 7);
        assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
        assert_eq!(committer.running(1, Phase::Sync).unwrap().objects, [other]);
    }

    #[test]
    fn new_symlinks_need_only_their_names_synced() {
        let mut committer = Committer::default();
        committer.add_link(EntryId(3), 0);
        assert_eq!(committer.start(0, true), Some((1, Phase::SyncNames)));
    }
}
