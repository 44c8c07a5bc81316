//! Other transfers on this host are at the same targets: what is said of them, and what they say.
//!
//! A target's depth is split by what the engine was told ([`Told`]; `crate::neighbours` works it out). That others see it
//! congested counts where nothing fresh is known here: it then begins as congested, and two quick answers say otherwise.

use alloc::vec::Vec;

use super::requests::TargetId;
use super::targets::Targets;
use super::{Policy, Scheduler};
use crate::planted::SchedulerBug;

/// What was seen here counts for so long before others know better.
const OWN_WORD_NANOS: u64 = 2_000_000_000;
/// And is told to others for so long.
const TOLD_NANOS: u64 = 10_000_000_000;

/// What the neighbours make of one target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// Which.
    pub target: TargetId,
    /// What may be under way there comes in so many parts, this transfer's included; at least 1.
    pub parts: u32,
    /// Which of them is this transfer's, from 0: the first ones get what is left over.
    pub place: u32,
    /// Requests of the others there.
    pub under_way: u32,
    /// It looks congested, or hangs, to one of them.
    pub congested: bool,
}

/// What this end says of one target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said {
    /// Which.
    pub target: TargetId,
    /// Requests under way.
    pub under_way: u32,
    /// Something waits for it that could go now.
    pub wants: bool,
    /// It was congested when it was last seen, not long ago.
    pub congested: bool,
    /// It lost a request and has not answered since.
    pub hangs: bool,
}

/// What a target is shared with.
#[derive(Clone, Copy)]
pub(super) struct Neighbours {
    parts: u32,
    place: u32,
    under_way: u32,
}

impl Default for Neighbours {
    fn default() -> Self {
        Neighbours { parts: 1, place: 0, under_way: 0 }
    }
}

impl Neighbours {
    /// Of so many requests, how many may be this transfer's.
    pub fn part_of(self, whole: u32) -> u32 {
        whole / self.parts + u32::from(self.place < whole % self.parts)
    }

    /// How many requests of others there count beside `whole` that one transfer alone may have: no claim can make the
    /// target look faster than that.
    pub fn crowd(self, whole: u32) -> u32 {
        self.under_way.min(whole)
    }
}

impl<T: Copy> Scheduler<T> {
    /// All that neighbours say now: a target that is not named has none any more.
    pub fn neighbours_said(&mut self, all: &[Told], now_nanos: u64) {
        if all.is_empty() && self.shared.is_empty() {
            return;
        }
        let planted = self.config.planted;
        let before = core::mem::take(&mut self.shared);
        if before.is_empty()
            && let Some(first) = all.first().filter(|told| told.parts > 1)
        {
            // Those who begin together begin at different targets.
            self.turn =
                (u64::from(self.targets.length()) * u64::from(first.place) / u64::from(first.parts)) as u32;
        }
        for index in before {
            if !planted.has(SchedulerBug::NeighboursKept) {
                self.targets.share(index, Neighbours::default());
            }
        }
        let mut changed: Vec<u32> = Vec::with_capacity(all.len());
        for Told { target, parts, place, under_way, congested } in all.iter().copied() {
            if target.0 >= super::TARGETS_MAX {
                continue;
            }
            let parts = parts.max(1);
            self.targets.share(target.0, Neighbours { parts, place: place % parts, under_way });
            changed.push(target.0);
            if congested {
                self.targets.heed(target.0, now_nanos);
            }
        }
        self.shared = changed;
        self.look_at_what_is_waited_for(now_nanos);
        self.targets.refresh_all(now_nanos, self.picks);
        if self.targets.any_gentle() {
            self.look_at_held_back();
        }
    }

    /// Who has used up its part picks no more there, and so would not see that nothing comes back.
    fn look_at_what_is_waited_for(&mut self, now_nanos: u64) {
        for index in self.shared.clone() {
            if !self.targets.is_congested(index) && self.is_waited_for(index, now_nanos) {
                self.targets.at(index).overdue(now_nanos);
            }
        }
    }

    /// What neighbours may want to know, of each target that was ever asked for.
    pub fn said(&self, now_nanos: u64) -> impl Iterator<Item = Said> + '_ {
        self.targets.all().map(move |(index, target)| Said {
            target: TargetId(index),
            under_way: target.under_way,
            wants: self.queues.may_take(index, &self.gates) && !self.targets.is_dead(index),
            congested: self.targets.is_congested(index) && target.was_slow_within(TOLD_NANOS, now_nanos),
            hangs: target.suspect,
        })
    }
}

impl Targets {
    /// Who else is there. Nothing follows before the next refresh.
    fn share(&mut self, index: u32, neighbours: Neighbours) {
        self.hold(index);
        self.at(index).neighbours = neighbours;
    }

    /// Others see this target congested: believed where nothing fresh is known here.
    fn heed(&mut self, index: u32, now_nanos: u64) {
        let stubborn = self.at(index).seen_within(OWN_WORD_NANOS, now_nanos);
        let stubborn = stubborn && !self.config().planted.has(SchedulerBug::AdviceObeyed);
        if self.looks_for_congestion() && !stubborn && !self.is_congested(index) {
            self.at(index).signal.overdue();
        }
    }

    fn looks_for_congestion(&self) -> bool {
        matches!(self.config().policy, Policy::Lads(_) | Policy::Adaptive(_))
    }
}
