//! Errands of the sink that hang: for long, for too long, or for ever.

use std::collections::{BTreeMap, BTreeSet};

use haul_model::op::{Lane, MembersStep, SinkOp};
use haul_model::{BlockId, EntryId, Target};

use crate::sink_storage::Started;
use crate::stuck;
use crate::tree::PathId;
use crate::world::{Happening, World, note};

/// Threads that are replaced for each that a lane has: what the master promises.
const REPLACED_PER_THREAD: u32 = 2;
/// So many errands of one target hang: what waits for it may be given up.
const HUNG_ARE_DEAD: u32 = 2;

/// What hangs in this session.
#[derive(Default)]
pub(crate) struct Hung {
    /// How many did, or may have been taken for it.
    pub count: u32,
    /// On each target.
    on: BTreeMap<Target, u32>,
    /// Errands that are about one file, and those of them whose thread got a successor.
    single: BTreeMap<u64, EntryId>,
    late: BTreeMap<u64, EntryId>,
    /// Targets that count as dead.
    pub dead: Vec<Target>,
    /// They will never be done.
    pub for_ever: Vec<Started>,
    /// Threads that have a successor and did not come back, by lane and errand.
    relieved: BTreeMap<u64, Lane>,
    /// How many threads each lane has.
    threads: BTreeMap<u64, u32>,
    /// Which lane each errand is of that has begun since files are known to be on several targets.
    lanes: BTreeMap<u64, Lane>,
    /// Files of which a sync is under way, by errand.
    syncing: BTreeMap<u64, Vec<EntryId>>,
    /// Groups whose names are made durable, by errand; but for those that may be given up.
    naming: BTreeMap<u64, u64>,
    /// Bundles of which a member takes long to be made.
    pub making: BTreeSet<BlockId>,
    /// Reads that hang.
    pub reads: BTreeSet<BlockId>,
    /// Targets of the source that count as dead.
    pub dead_at_source: Vec<Target>,
    /// Half so many reads may hang at a time.
    pub bearable_at_source: u32,
    /// Writes that hang.
    pub writes: stuck::Writes,
    /// What writes that hung were about.
    pub stuck: BTreeSet<EntryId>,
    /// Half so many may hang at a time.
    pub bearable: u32,
    /// A file that somebody has locked.
    pub locked: Option<EntryId>,
}

/// How an errand goes that does not go as usual.
enum Hang {
    /// It takes long, but not too long.
    Long,
    /// It is done, and its end is told, when nobody waits any more.
    Late,
    /// It is done in time, and its end is told too late.
    ToldLate,
    ForEver,
}

/// The files or entries that an operation is about.
fn about(op: &SinkOp) -> Vec<EntryId> {
    match op {
        SinkOp::Lay { entry, .. } | SinkOp::Seal { entry, .. } => vec![entry.id],
        SinkOp::Discard { id, .. } => vec![*id],
        SinkOp::Sync { files, .. } | SinkOp::Publish { files, .. } => files.clone(),
        SinkOp::SyncNames { entries, .. } => entries.clone(),
        _ => Vec::new(),
    }
}

impl World {
    /// A thread takes up an errand.
    pub(crate) fn start_errand(
        &mut self,
        session: u32,
        number: u64,
        (lane, threads): (Lane, u32),
        op: SinkOp,
    ) {
        let present = session == self.session;
        if present {
            self.hung.threads.insert(number, threads);
            if let SinkOp::Sync { files, .. } = &op {
                let again = files.iter().find(|id| self.hung.syncing.values().flatten().any(|it| it == *id));
                if let Some(id) = again.copied() {
                    self.violate(format!("{id:?} is synced while a sync of it is under way"));
                }
                self.hung.syncing.insert(number, files.clone());
            }
            let watchful = self.sink.as_ref().is_some_and(|end| end.machine.is_watchful());
            let each = watchful && self.checker.syncs_each;
            if each {
                self.check_shared(lane, threads, &op);
                self.hung.lanes.insert(number, lane);
            }
            if let SinkOp::Discard { id, .. } = &op
                && self
                    .hung
                    .syncing
                    .iter()
                    .any(|(number, files)| files.contains(id) && self.hung.single.contains_key(number))
            {
                self.violate(format!("{id:?} is removed while a sync of it is under way"));
            }
            if let SinkOp::Seal { entry, .. } = &op {
                self.check_nothing_stuck(entry.id);
            }
            self.check_names(&op);
            self.check_not_barred(threads, &op);
            // Of names it is not known which target they hang on.
            let of_a_file = !matches!(op, SinkOp::Lay { .. } | SinkOp::SyncNames { .. });
            if let ([id], true) = (&about(&op)[..], each && of_a_file) {
                self.hung.single.insert(number, *id);
            }
        }
        let hang = if present { self.draw_hang(&op) } else { None };
        if let SinkOp::SyncNames { group, .. } = &op
            && present
            && matches!(hang, None | Some(Hang::Long))
        {
            self.hung.naming.insert(number, *group);
        }
        let Some(started) = self.started(session, op, Some(number)) else { return };
        let nanos = match started.op.lane() {
            Lane::Lay => self.plan.delays.names,
            _ => self.plan.delays.sync,
        };
        let limit = self.plan.hangs_after;
        match hang {
            None => self.after(nanos, Happening::Write { session, started }),
            Some(Hang::Long) => {
                let at = self.now + limit / 8 + self.random.below(limit / 2);
                self.queue.push(at, Happening::Write { session, started });
            }
            Some(Hang::Late) => {
                let at = self.now + limit + self.random.below(3 * limit);
                self.queue.push(at, Happening::Write { session, started: Started { late: true, ..started } });
            }
            Some(Hang::ToldLate) => {
                let started = Started { told_late: true, ..started };
                self.after(nanos, Happening::Write { session, started });
            }
            Some(Hang::ForEver) => self.hung.for_ever.push(Started { late: true, ..started }),
        }
    }

    /// For how long a member of this bundle is not made, if one hangs; none: for ever.
    pub(crate) fn draw_hung_making(&mut self, session: u32, op: &SinkOp) -> Option<Option<u64>> {
        let SinkOp::WriteMembers { block, step: MembersStep::Make, members, progress, .. } = op else {
            return None;
        };
        let end = self.sink.as_ref().filter(|end| end.session == session && end.machine.is_watchful())?;
        let slots = end.slots.len();
        // Half of the slots would be too many.
        let may_hang = (self.hung.making.len() + 1) * 2 < slots && !members.is_empty();
        if !may_hang || !self.random.chance(self.rates().hang) {
            return None;
        }
        let at = self.random.below(members.len() as u64) as usize;
        note!(self, "member {at} of block {} hangs", block.0);
        progress.begins(at);
        self.hung.making.insert(*block);
        self.are_troubled(vec![members[at].entry.id]);
        let limit = self.plan.hangs_after;
        let nanos = limit / 2 + self.random.below(3 * limit);
        Some(self.random.coin().then_some(nanos))
    }

    fn draw_hang(&mut self, op: &SinkOp) -> Option<Hang> {
        let end = self.sink.as_ref().filter(|end| end.machine.is_watchful())?;
        let hung = self.rates().hung;
        if hung != 0 && about(op).into_iter().any(|id| end.storage.is_on(id, hung)) {
            self.is_dead(hung);
            self.counts_as_hung(op);
            return Some(Hang::ForEver);
        }
        if !self.random.chance(self.rates().hang) {
            return None;
        }
        let hang = match self.random.below(4) {
            0 => Hang::Long,
            1 => Hang::Late,
            2 => Hang::ToldLate,
            _ => Hang::ForEver,
        };
        if matches!(hang, Hang::Long) {
            return Some(hang);
        }
        self.counts_as_hung(op);
        note!(self, "it hangs");
        Some(hang)
    }

    /// It may fail for what hangs, and leave something behind.
    fn counts_as_hung(&mut self, op: &SinkOp) {
        self.hung.count += 1;
        self.are_troubled(about(op));
        let Some(end) = self.sink.as_ref() else { return };
        let targets: Vec<Target> =
            about(op).into_iter().flat_map(|id| end.storage.targets_of(id)).filter(|it| *it != 0).collect();
        for target in targets {
            let count = self.hung.on.entry(target).or_default();
            *count += 1;
            if *count == HUNG_ARE_DEAD {
                self.is_dead(target);
            }
        }
        // With no thread left, what was not begun fails as well.
        if self.hung.count >= self.plan.errand_threads {
            self.checker.troubled.iter_mut().for_each(|troubled| *troubled = true);
            self.checker.hung.extend(0..self.tree.nodes.len());
        }
    }

    /// All that is on this target may be given up.
    pub(crate) fn is_dead(&mut self, target: Target) {
        if self.hung.dead.contains(&target) {
            return;
        }
        self.hung.dead.push(target);
        let ids = self.sink.as_ref().map(|end| end.storage.all_on(target));
        self.are_troubled(ids.unwrap_or_default());
    }

    pub(crate) fn are_troubled(&mut self, ids: Vec<EntryId>) {
        let paths: Vec<PathId> = ids.into_iter().filter_map(|id| self.path_of(id)).collect();
        for path in paths {
            self.checker.troubled[path] = true;
            self.checker.hung.push(path);
        }
    }

    /// Where so many hang already no other may join them. But for a removal: of a file that was given up, and whose late answer has
    /// come, the sink does not know any more what it was on.
    fn check_not_barred(&mut self, threads: u32, op: &SinkOp) {
        let hung = self.rates().hung;
        if matches!(op, SinkOp::Discard { .. }) {
            return;
        }
        let Some(end) = self.sink.as_ref().filter(|_| hung != 0 && self.checker.syncs_each) else { return };
        let late = self.hung.late.values().filter(|id| end.storage.targets_of(**id) == [hung]).count() as u32;
        if late >= (threads / 6).max(2) && about(op).into_iter().any(|id| end.storage.is_on(id, hung)) {
            self.violate(format!("one more errand of a target on which {late} hang"));
        }
    }

    /// One target never has more than a third of a lane's threads for syncs.
    fn check_shared(&mut self, lane: Lane, threads: u32, op: &SinkOp) {
        let SinkOp::Sync { files, .. } = op else { return };
        // Those that take long do not count, and what has hung may be one of them.
        let quiet = self.rates().hung == 0 && self.hung.count == 0 && self.hung.stuck.is_empty();
        let (Some(end), [id], true) = (&self.sink, &files[..], quiet) else {
            return;
        };
        let on = end.storage.targets_of(*id);
        let alike = |(number, files): (&u64, &Vec<EntryId>)| {
            self.hung.lanes.get(number) == Some(&lane)
                && !self.hung.late.contains_key(number)
                && matches!(&files[..], [other] if end.storage.targets_of(*other) == on)
        };
        let syncs = self.hung.syncing.iter().filter(|it| alike(*it)).count() as u32;
        if on.len() == 1 && on != [0] && syncs >= (threads / 3).max(2) {
            self.violate(format!("one more sync of a target that has {syncs} under way"));
        }
    }

    fn path_of(&self, id: EntryId) -> Option<PathId> {
        self.checker.record(id).map(|record| record.path)
    }

    /// The thread that is on an errand gets a successor.
    pub(crate) fn relieve(&mut self, session: u32, lane: Lane, number: u64) {
        if session != self.session {
            return;
        }
        let threads = self.hung.threads.get(&number).copied().unwrap_or(0);
        self.hung.relieved.insert(number, lane);
        if let Some(id) = self.hung.single.get(&number) {
            self.hung.late.insert(number, *id);
        }
        let relieved = self.hung.relieved.values().filter(|other| **other == lane).count() as u32;
        if relieved > threads * REPLACED_PER_THREAD {
            self.violate(format!("{relieved} threads of {threads} have a successor"));
        }
    }

    /// A thread is back from its errand.
    pub(crate) fn errand_ended(&mut self, session: u32, number: u64) {
        if session == self.session {
            self.hung.relieved.remove(&number);
            self.hung.single.remove(&number);
            self.hung.late.remove(&number);
            self.hung.syncing.remove(&number);
            self.hung.lanes.remove(&number);
            self.hung.naming.remove(&number);
        }
    }

    /// A directory tells of an error once: a group whose names are made now could take the loss of another one for its success.
    fn check_names(&mut self, op: &SinkOp) {
        let (SinkOp::Publish { group, .. } | SinkOp::SyncNames { group, .. }) = op else { return };
        // What its group did not wait for gets its name alone, and is synced with another group: it is durable if no sync of its
        // directory has failed since.
        if self.sink.as_ref().is_none_or(|end| !end.machine.is_group_running(*group)) {
            return;
        }
        if let Some(other) = self.hung.naming.values().copied().find(|other| other != group) {
            self.violate(format!(
                "names of group {group} are made while those of group {other} are made durable"
            ));
        }
    }
}
