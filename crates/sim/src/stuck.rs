//! Reads and writes that hang, of objects and of the members of bundles: they are written off, and what comes of them yet may do no harm.

use std::collections::BTreeMap;
use std::sync::Arc;

use haul_model::op::{MembersStep, SinkOp, SourceOp};
use haul_model::{BlockId, Entry, EntryId, Target};
use haul_wire::Role;

use crate::slow::TICK_NANOS;
use crate::tree::PathId;
use crate::world::{World, note};

impl World {
    /// Is it about the one file that is locked?
    fn is_locked(&mut self, id: EntryId) -> bool {
        self.rates().locks && *self.hung.locked.get_or_insert(id) == id
    }

    /// How long this write takes, if it hangs; none: for ever.
    pub(crate) fn draw_stuck_write(&mut self, session: u32, op: &SinkOp) -> Option<Option<u64>> {
        let end = self.sink.as_ref().filter(|end| end.session == session && end.machine.writes_off())?;
        let (block, part, target, ids) = match op {
            SinkOp::WriteObject { block, entry, offset, .. } => {
                (*block, None, end.storage.target_at(entry.id, *offset), vec![entry.id])
            }
            SinkOp::WriteMembers { block, step: MembersStep::Fill { target, .. }, members, .. } => {
                (*block, Some(*target), *target, members.iter().map(|member| member.entry.id).collect())
            }
            _ => return None,
        };
        // Half of the slots, or of the threads that may be replaced, would be too many.
        let stuck = (self.hung.writes.len() + self.hung.making.len() + 1) as u32;
        if target == 0 || stuck * 2 > self.hung.bearable {
            return None;
        }
        let locked = matches!(op, SinkOp::WriteObject { .. }) && self.is_locked(ids[0]);
        if !locked && !self.random.chance(self.rates().hang) {
            return None;
        }
        note!(self, "block {} hangs on target {target}, locked: {locked}", block.0);
        self.hung.writes.insert((block, part), ids.clone());
        self.hung.stuck.extend(ids.iter().copied());
        // Its file gets no final name meanwhile; and where there are few threads, all that is there may be given up.
        self.are_troubled(ids);
        if !locked {
            self.is_dead(target);
        }
        Some(self.draw_stuck(session, Role::Sink))
    }

    /// How long this read takes, if it hangs; none: for ever.
    pub(crate) fn draw_stuck_read(&mut self, op: &SourceOp) -> Option<Option<u64>> {
        let end = self.source.as_ref().filter(|end| end.machine.writes_off())?;
        let path_of = |entry| self.tree.path_of(entry);
        // Which of its targets an object is on, and how a file lies that has started again, are the master's business.
        let (block, mut paths, targets) = match op {
            SourceOp::ReadObject { block, entry, .. } => {
                let path = path_of(entry);
                (*block, vec![path], end.on.get(&path).cloned().unwrap_or_default())
            }
            SourceOp::ReadMembers { block, members, .. } => {
                let first = |entry: &Arc<Entry>| self.checker.targets.get(&entry.id).copied().unwrap_or(0);
                let paths = members.iter().map(|entry| path_of(entry)).collect();
                (*block, paths, members.iter().map(first).collect())
            }
            _ => return None,
        };
        let stuck = self.hung.reads.len() as u32 + 1;
        if targets.is_empty() || targets.contains(&0) || stuck * 2 > self.hung.bearable_at_source {
            return None;
        }
        let locked = matches!(op, SourceOp::ReadObject { entry, .. } if self.is_locked(entry.id));
        if !locked && !self.random.chance(self.rates().hang) {
            return None;
        }
        note!(self, "block {} hangs on the source's targets {targets:?}, locked: {locked}", block.0);
        if !locked {
            let end = self.source.as_ref()?;
            let beside = |(path, on): (&PathId, &Vec<Target>)| {
                on.iter().any(|target| targets.contains(target)).then_some(*path)
            };
            paths.extend(end.on.iter().filter_map(beside));
            self.hung.dead_at_source.extend(targets);
        }
        paths.into_iter().for_each(|path| self.checker.troubled[path] = true);
        self.hung.reads.insert(block);
        Some(self.draw_stuck(self.session, Role::Source))
    }

    fn draw_stuck(&mut self, session: u32, of: Role) -> Option<u64> {
        let limit = self.plan.hangs_after;
        let delays = self.plan.delays;
        self.let_time_pass(session, of, self.now + 2 * limit);
        match self.random.below(4) {
            0 => None,
            // It comes back while what it was about is being sent again.
            1 => Some(limit + self.random.below(TICK_NANOS + 4 * (delays.payload + delays.write))),
            _ => Some(limit / 2 + self.random.below(3 * limit)),
        }
    }

    /// Slots that they keep.
    pub(crate) fn slots_stuck(&self) -> usize {
        let mut blocks: Vec<BlockId> = self.hung.writes.keys().map(|(block, _)| *block).collect();
        blocks.dedup();
        blocks.len()
    }

    /// Of a file that is to get its final name no write may be under way.
    pub(crate) fn check_nothing_stuck(&mut self, id: EntryId) {
        if self.hung.writes.values().flatten().any(|stuck| *stuck == id) {
            self.violate(format!("{id:?} is sealed, and a write that hangs may hit it yet"));
        }
    }
}

/// So many may hang of what has so many slots and threads.
pub(crate) fn bearable(slots: u32, threads: u32) -> u32 {
    slots.min(2 * threads)
}

/// Writes that have not come back: of a block, or of what is on one target of a bundle.
pub(crate) type Writes = BTreeMap<(BlockId, Option<Target>), Vec<EntryId>>;
