//! Small files wait here until they fill a bundle. Each bundle is of one target of this end, so that it is a request of
//! that target like an object is.
//!
//! What must stay true: open bundles are few ([`OPEN_MAX`]) and so is what waits in them ([`WAITING_MAX`]); the one that
//! was begun first is closed first; none is open for longer than [`WAIT_NANOS`] while anything happens.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::HashMap;
use haul_model::limits::MEMBERS_MAX;
use haul_model::{EntryId, Target};

use super::Source;
use super::choose::Wanted;
use crate::pace::FILE_COST_BYTES;
use crate::planted::Bug;
use crate::scheduler::{Class, Request, TargetId};

/// Bundles that are filled at a time. Each holds up what is in it, so no more than keep as many threads busy as there
/// may be.
const OPEN_MAX: usize = 64;
/// Files that wait in open bundles; a quarter of what may be open in all.
const WAITING_MAX: usize = haul_model::limits::ENTRIES_OPEN_MAX / 4;
/// A bundle that does not fill leaves after so long, as full as it is: half of what people take for standing still.
pub const WAIT_NANOS: u64 = 500_000_000;

/// A bundle that is being filled, or waits to be read.
pub(super) struct Pile {
    pub target: Target,
    pub members: Vec<EntryId>,
    /// Of all members.
    bytes: u64,
    /// As the scheduler counts them.
    cost: u64,
    begun_nanos: u64,
}

/// All bundles of which nothing was read yet.
#[derive(Default)]
pub(super) struct Bundles {
    /// In the order in which they were begun.
    open: VecDeque<Pile>,
    waiting: usize,
    /// The scheduler has these.
    closed: HashMap<u32, Pile>,
    next: u32,
    /// Some were closed, and the scheduler has not heard of them.
    full: Vec<Pile>,
}

impl Bundles {
    /// How many the scheduler has.
    pub fn queued(&self) -> u64 {
        self.closed.len() as u64
    }

    /// The scheduler has picked it, or given it back.
    pub fn take(&mut self, number: u32) -> Option<Pile> {
        self.closed.remove(&number)
    }

    fn add(&mut self, id: EntryId, bytes: u64, target: Target, room: u64, now_nanos: u64) {
        let mut place = self.open.iter().position(|pile| pile.target == target);
        if let Some(at) = place
            && self.open[at].bytes + bytes > room
        {
            self.close(at);
            place = None;
        }
        let at = place.unwrap_or_else(|| {
            if self.open.len() >= OPEN_MAX {
                self.close(0);
            }
            self.open.push_back(Pile {
                target,
                members: Vec::new(),
                bytes: 0,
                cost: 0,
                begun_nanos: now_nanos,
            });
            self.open.len() - 1
        });
        let pile = &mut self.open[at];
        pile.members.push(id);
        pile.bytes += bytes;
        pile.cost += bytes.max(FILE_COST_BYTES);
        self.waiting += 1;
        if pile.bytes >= room || pile.members.len() >= MEMBERS_MAX {
            self.close(at);
        } else if self.waiting > WAITING_MAX {
            self.close(0);
        }
    }

    fn close(&mut self, at: usize) {
        if let Some(pile) = self.open.remove(at) {
            self.waiting -= pile.members.len();
            self.full.push(pile);
        }
    }
}

impl Source {
    /// A small file waits for the bundle of its target.
    pub(super) fn queue_small(&mut self, id: EntryId) {
        let Some(held) = self.entries.get_mut(id) else { return };
        held.sent = false;
        let (bytes, target) = (held.entry.size(), held.laid.placement.target(0));
        let target = if self.config.planted.has(Bug::BundlesOfAnyTarget) { 0 } else { target };
        let room = u64::from(self.config.object_bytes);
        self.bundles.add(id, bytes, target, room, self.clock.now());
    }

    /// Closes what need not be waited for, and shows the scheduler what is closed.
    pub(super) fn close_bundles(&mut self) {
        let bundles = &mut self.bundles;
        // Nothing is under way that could add to them.
        let no_more = self.announced == 0 && self.scan_ended;
        let now = self.clock.now();
        let waited = |pile: &Pile| now.saturating_sub(pile.begun_nanos) >= WAIT_NANOS;
        let forgotten = self.config.planted.has(Bug::BundleNeverDue);
        while bundles.open.front().is_some_and(|pile| no_more || waited(pile) && !forgotten) {
            bundles.close(0);
        }
        for pile in core::mem::take(&mut self.bundles.full) {
            self.show_bundle(pile);
        }
    }

    /// Nothing is under way, and a thread would stand idle: the oldest bundle goes as it is. False if there is none.
    pub(super) fn close_oldest_bundle(&mut self) -> bool {
        let any = self.blocks.is_empty() && !self.bundles.open.is_empty();
        if any {
            self.bundles.close(0);
            self.close_bundles();
        }
        any
    }

    /// For how long the oldest bundle that is not full has been waited for.
    pub fn bundle_age_nanos(&self) -> u64 {
        let oldest = self.bundles.open.front();
        oldest.map_or(0, |pile| self.clock.now().saturating_sub(pile.begun_nanos))
    }

    fn show_bundle(&mut self, pile: Pile) {
        self.bundles.next = self.bundles.next.wrapping_add(1);
        let number = self.bundles.next;
        self.meet(pile.target);
        let request = Request {
            item: Wanted::Bundle(number),
            target: TargetId(u32::from(pile.target)),
            // Its members may end up on any targets there; only the sink knows, and only when they are made.
            gate: None,
            class: Class::Bundle,
            bytes: u32::try_from(pile.cost).unwrap_or(u32::MAX),
        };
        self.bundles.closed.insert(number, pile);
        // Numbers of targets are below the scheduler's bound; see `haul_model::limits`.
        let _ = self.scheduler.push(request, self.clock.now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = 1 << 20;

    fn full(bundles: &mut Bundles) -> Vec<(Target, usize)> {
        bundles.full.drain(..).map(|pile| (pile.target, pile.members.len())).collect()
    }

    #[test]
    fn files_of_one_target_go_in_one_bundle_until_it_is_full() {
        let mut bundles = Bundles::default();
        for number in 0..7 {
            bundles.add(EntryId(number), ROOM / 4, (number % 2) as Target, ROOM, 0);
        }
        assert_eq!(full(&mut bundles), [(0, 4)], "the other lacks one");
        bundles.add(EntryId(8), ROOM / 2, 1, ROOM, 0);
        assert_eq!(full(&mut bundles), [(1, 3)], "what does not fit begins the next");
        assert_eq!((bundles.open.len(), bundles.waiting), (1, 1));
        (0..MEMBERS_MAX as u64).for_each(|number| bundles.add(EntryId(number), 0, 5, ROOM, 0));
        assert_eq!(full(&mut bundles), [(5, MEMBERS_MAX)]);
    }

    #[test]
    fn open_bundles_and_what_waits_in_them_are_bounded() {
        let mut bundles = Bundles::default();
        for number in 0..5000 {
            bundles.add(EntryId(number), 1, (number % 4000) as Target, ROOM, 0);
            assert!(bundles.open.len() <= OPEN_MAX && bundles.waiting <= WAITING_MAX);
        }
        assert_eq!(full(&mut bundles)[0], (0, 1), "the first one leaves first");
        for number in 0..100_000 {
            bundles.add(EntryId(number), 1, (number % 60) as Target, ROOM, 0);
            assert!(bundles.waiting <= WAITING_MAX);
        }
        let waiting: usize = bundles.open.iter().map(|pile| pile.members.len()).sum();
        assert_eq!(waiting, bundles.waiting);
    }
}
