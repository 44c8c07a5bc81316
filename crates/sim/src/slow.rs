//! Bundles that storage goes through slowly: at each file for less than the limit, at all of them for longer.

use haul_model::op::{MembersStep, Progress, SinkOp};
use haul_protocol::Event;
use haul_wire::Role;

use crate::world::{Happening, World, note};

/// Time does not pass for an end that hears of nothing.
pub(crate) const TICK_NANOS: u64 = 150_000_000;
/// Files at which storage dwells in one bundle.
const STOPS_MAX: u64 = 4;
/// What has taken so long gets another thread, as [`haul_protocol::sink`] has it; or a quarter of the limit.
const MAKING_LONG_NANOS: u64 = 2_000_000_000;
/// No limit for making a file is lowered any further than that.
const MAKING_LIMIT_NANOS: u64 = 10_000_000_000;

/// One of them.
pub(crate) struct Slow {
    session: u32,
    of: Role,
    progress: Progress,
    /// When storage comes to which member, the first last.
    stops: Vec<(u64, usize)>,
    ends_at: u64,
}

impl World {
    /// For how long these members are read, if that goes slowly.
    pub(crate) fn draw_slow_reading(
        &mut self,
        session: u32,
        progress: &Progress,
        members: usize,
    ) -> Option<u64> {
        self.draw_slow((session, Role::Source), progress, members, self.plan.hangs_after)
    }

    /// For how long these members are made, or filled, if that goes slowly.
    pub(crate) fn draw_slow_writing(&mut self, session: u32, op: &SinkOp) -> Option<u64> {
        let SinkOp::WriteMembers { step, members, progress, .. } = op else { return None };
        let limit = self.plan.hangs_after;
        let limit = match step {
            MembersStep::Make => MAKING_LONG_NANOS.min(limit.min(MAKING_LIMIT_NANOS) / 4),
            MembersStep::Fill { .. } => limit,
        };
        self.draw_slow((session, Role::Sink), progress, members.len(), limit)
    }

    fn draw_slow(
        &mut self,
        (session, of): (u32, Role),
        progress: &Progress,
        members: usize,
        limit: u64,
    ) -> Option<u64> {
        let may_be = session == self.session && members > 1 && self.rates().hang > 0;
        if !may_be || !self.random.chance(self.rates().hang / 4) {
            return None;
        }
        progress.begins(0);
        // It is seen at the next tick that storage has come to the next one.
        let most = limit / 10 * 9 - TICK_NANOS;
        let mut at = self.now + self.random.between(limit / 4, most);
        let mut member = 0;
        let mut stops = Vec::new();
        for _ in 0..self.random.between(1, STOPS_MAX) {
            member += 1 + self.random.below(members as u64) as usize;
            if member >= members {
                break;
            }
            stops.push((at, member));
            at += self.random.between(limit / 4, most);
        }
        note!(self, "{of:?} is slow with {members} members, {} times", stops.len() + 1);
        stops.reverse();
        let slow = Slow { session, of, progress: progress.clone(), stops, ends_at: at };
        self.queue.push(self.now + TICK_NANOS, Happening::Slow(slow));
        Some(at - self.now)
    }

    /// Time passes for this end although nothing else happens.
    pub(crate) fn let_time_pass(&mut self, session: u32, of: Role, ends_at: u64) {
        let slow = Slow { session, of, progress: Progress::default(), stops: Vec::new(), ends_at };
        self.queue.push(self.now + TICK_NANOS, Happening::Slow(slow));
    }

    /// Time passes for the end that has it.
    pub(crate) fn on_slow(&mut self, mut slow: Slow) -> bool {
        if slow.session != self.session {
            return false;
        }
        while let Some((_, member)) = slow.stops.pop_if(|(at, _)| *at <= self.now) {
            slow.progress.begins(member);
        }
        let goes_on = match slow.of {
            Role::Source => self.source.as_ref().is_some_and(|end| end.outcome.is_none()),
            Role::Sink => self.sink.as_ref().is_some_and(|end| end.outcome.is_none()),
        };
        if !goes_on {
            return false;
        }
        match slow.of {
            Role::Source => self.source_event(Event::Tick),
            Role::Sink => self.sink_event(slow.session, Event::Tick),
        }
        if self.now + TICK_NANOS < slow.ends_at {
            self.queue.push(self.now + TICK_NANOS, Happening::Slow(slow));
        }
        false
    }
}
