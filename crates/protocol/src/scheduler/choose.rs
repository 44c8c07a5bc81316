//! Which target is next.
//!
//! In this order: a target that was held back for too long; a congested one, where the policy says so; of the others
//! the one with the fewest under way; and before a thread stands idle, any that is held back.

use super::Scheduler;
use super::bits::find_where;
use super::congestion::Policy;
use crate::planted::SchedulerBug;

impl<T: Copy> Scheduler<T> {
    /// The next target, with something that may be taken.
    pub(super) fn choose(&mut self, now_nanos: u64) -> Option<u32> {
        self.picks += 1;
        if self.targets.any_gentle() {
            // Not twice in a row, so that the aged do not starve the others.
            self.last_was_aged = !self.last_was_aged && now_nanos >= self.targets.age_nanos;
            if self.last_was_aged {
                match self.aged(now_nanos) {
                    Some(target) => {
                        self.aged_turn = target + 1;
                        return Some(target);
                    }
                    None => self.last_was_aged = false,
                }
            }
            if let Some(target) = self.due() {
                return Some(target);
            }
        }
        self.healthy(now_nanos).or_else(|| self.held_back(self.gentle_turn, |_| true))
    }

    /// The next from `from` on of those that are held back, have work and pass.
    fn held_back(&self, from: u32, mut test: impl FnMut(u32) -> bool) -> Option<u32> {
        let (ready, gentle) = (self.queues.ready(), self.targets.gentle());
        let words = ready.words().min(gentle.words());
        let both = |word| ready.word(word) & gentle.word(word);
        find_where(from, words, both, |target| self.queues.may_take(target, &self.gates) && test(target))
    }

    fn aged(&mut self, now_nanos: u64) -> Option<u32> {
        if self.config.planted.has(SchedulerBug::AgingOff) {
            return None;
        }
        let limit = self.targets.aging_nanos();
        let mut next = u64::MAX;
        // Turns of their own: other picks pass over some of those that are held back, and would pass over the same ones.
        let found = self.held_back(self.aged_turn, |target| {
            let since = self.targets.get(target).map_or(0, |target| target.since_nanos);
            let due = since.saturating_add(limit);
            next = next.min(due);
            due <= now_nanos
        });
        if found.is_none() {
            self.targets.age_nanos = next;
        }
        found
    }

    /// A congested target that the policy wants to be tried although others have work.
    fn due(&mut self) -> Option<u32> {
        match self.config.policy {
            Policy::Lads(_) if self.picks >= self.targets.due_pick => {
                let mut next = u64::MAX;
                let found = self.held_back(self.gentle_turn, |target| {
                    let tried = self.targets.get(target).map_or(0, |target| target.tried);
                    let due = tried.saturating_add(self.targets.skip(target));
                    next = next.min(due);
                    due <= self.picks
                });
                if found.is_none() {
                    self.targets.due_pick = next;
                }
                found
            }
            Policy::Adaptive(_)
                if self.gentle_under_way < self.config.policy.gentle_max(self.config.threads) =>
            {
                self.held_back(self.gentle_turn, |target| self.targets.is_congested(target))
            }
            _ => None,
        }
    }

    fn healthy(&mut self, now_nanos: u64) -> Option<u32> {
        loop {
            let target = self.targets.least_busy(self.queues.ready(), self.turn)?;
            if !self.queues.check(target, &self.gates) {
                continue;
            }
            if !self.found_slow(target, now_nanos) {
                self.turn = target + 1;
                return Some(target);
            }
            if self.config.planted.has(SchedulerBug::HealthySkipped) {
                return None;
            }
        }
    }

    /// As [`Scheduler::healthy`], but of all targets with objects, behind whichever gate.
    pub(super) fn ahead(&mut self, now_nanos: u64) -> Option<u32> {
        loop {
            let target = self.targets.least_busy(self.queues.with_objects(), self.turn)?;
            if !self.found_slow(target, now_nanos) {
                self.turn = target + 1;
                return Some(target);
            }
        }
    }

    /// What is waited for too long is held back from now on.
    fn found_slow(&mut self, target: u32, now_nanos: u64) -> bool {
        let slow = self.is_waited_for(target, now_nanos);
        if slow {
            self.targets.at(target).overdue(now_nanos);
            self.targets.refresh(target, now_nanos, self.picks);
        }
        slow
    }

    /// Is its oldest request under way so long that it has to be slow?
    pub(super) fn is_waited_for(&self, target: u32, now_nanos: u64) -> bool {
        let oldest = self.targets.get(target).and_then(|target| self.flights.oldest(&target.line));
        let Some(flight) = oldest.filter(|_| !self.targets.is_archive(target)) else { return false };
        let slow = self.targets.slow_nanos(flight.class, flight.bytes, flight.depth);
        let age = now_nanos.saturating_sub(flight.started_nanos);
        slow.is_some_and(|slow| age > Policy::overdue_nanos(slow))
    }
}
