//! Drives the sink's master: its link, storage and slots.

use std::collections::VecDeque;

use haul_model::op::{Lane, MembersStep, SinkDone, SinkOp};
use haul_model::report::{Fact, Stats};
use haul_model::{Code, Failure};
use haul_protocol::link::{Frame, Link};
use haul_protocol::sink::{Config, Sink};
use haul_protocol::{Action, Event, Outcome};
use haul_wire::{Message, Role};

use crate::content::Payload;
use crate::refused::refused;
use crate::sink_storage::{Context, SinkStorage, Started};
use crate::trace::Short;
use crate::world::{Happening, World, note};

/// The sink's process.
pub(crate) struct SinkEnd {
    pub session: u32,
    pub machine: Sink,
    pub link: Link,
    /// The connection that it uses.
    pub up: Option<u32>,
    /// Connections so far.
    pub generation: u32,
    pub slots: Vec<Payload>,
    /// Payloads that came after its end.
    pub late: usize,
    /// Slots into which a payload may come.
    pub granted: Vec<bool>,
    pub storage: SinkStorage,
    pub outcome: Option<Outcome>,
    /// What it has named as failed.
    pub failed: Vec<(Vec<u8>, Failure)>,
    /// What it has named as done.
    pub done: Vec<Vec<u8>>,
    /// Operations of the ordered lane that wait for the one under way.
    ordered: VecDeque<SinkOp>,
    ordered_busy: bool,
    /// Bundles whose members are being made.
    making: std::collections::BTreeSet<haul_model::BlockId>,
    tick_at: Option<u64>,
    /// Frames that may stay unconfirmed.
    confirm_after: u64,
}

impl SinkEnd {
    pub(crate) fn new(session: u32, config: Config, link: Link, confirm_after: u64) -> Self {
        SinkEnd {
            session,
            link,
            up: None,
            generation: 0,
            slots: vec![Payload::default(); config.slots as usize],
            late: 0,
            granted: vec![false; config.slots as usize],
            machine: Sink::new(config),
            storage: SinkStorage::new(session),
            outcome: None,
            failed: vec![],
            done: vec![],
            ordered: VecDeque::new(),
            ordered_busy: false,
            making: Default::default(),
            tick_at: None,
            confirm_after,
        }
    }

    /// The next operation of the ordered lane that nobody has begun.
    pub(crate) fn next_ordered(&mut self) -> Option<SinkOp> {
        self.ordered.pop_front()
    }
}

impl World {
    /// The sink of this session, if its process lives: the present one, or one that lingers.
    fn sink_of(&mut self, session: u32) -> Option<&mut SinkEnd> {
        [&mut self.sink, &mut self.lingering].into_iter().flatten().find(|end| end.session == session)
    }

    /// An event for a sink's master, and everything that follows from it at once.
    pub(crate) fn sink_event(&mut self, session: u32, event: Event) {
        let now = self.now;
        let Some(end) = self.sink_of(session) else { return };
        end.machine.on_event(event, now);
        while let Some(action) = self.sink_of(session).and_then(|end| end.machine.next_action()) {
            self.sink_action(session, action);
        }
        let Some(end) = self.sink_of(session) else { return };
        if end.outcome.is_none() && end.machine.deadline_nanos() != end.tick_at {
            end.tick_at = end.machine.deadline_nanos();
            if let Some(at) = end.tick_at {
                self.queue.push(at.max(now), Happening::Tick { session });
            }
        }
    }

    pub(crate) fn on_tick(&mut self, session: u32) -> bool {
        let now = self.now;
        let due = |end: &&mut SinkEnd| end.tick_at.is_some_and(|at| at <= now) && end.outcome.is_none();
        let Some(end) = self.sink_of(session).filter(due) else { return false };
        end.tick_at = None;
        self.sink_event(session, Event::Tick);
        true
    }

    fn sink_action(&mut self, session: u32, action: Action) {
        let present = session == self.session;
        match action {
            Action::Send(message) => {
                if present {
                    note!(self, "sink sends {}", Short(&message));
                    self.check_sink_message(&message);
                }
                let frame = self.sink_of(session).and_then(|end| end.link.send(&message));
                if let Some(frame) = frame.filter(|_| present) {
                    self.transmit(Role::Source, frame);
                }
            }
            Action::Grant(slot) => {
                if let Some(end) = self.sink_of(session) {
                    end.granted[slot.0 as usize] = true;
                }
            }
            Action::Revoke(slot) => {
                if let Some(end) = self.sink_of(session) {
                    end.granted[slot.0 as usize] = false;
                }
            }
            Action::TakeBack(slot) => {
                let granted = |end: &mut SinkEnd| std::mem::take(&mut end.granted[slot.0 as usize]);
                if !self.sink_of(session).is_some_and(granted) {
                    self.violate(format!("{slot:?} is taken back, and a payload has come for it"));
                }
            }
            Action::Distrust => {
                let up = self.sink_of(session).and_then(|end| end.up);
                if present && up == Some(self.connection.epoch) {
                    note!(self, "the sink distrusts its connection");
                    self.sever();
                }
            }
            Action::Sink(op) => self.start_write(session, op),
            Action::Errand { number, lane, threads, op } => {
                note!(self, "sink starts errand {number}, to {}", Short(&op));
                self.start_errand(session, number, (lane, threads), op);
            }
            Action::Relieve { lane, number } => {
                note!(self, "the thread of errand {number} gets a successor");
                self.relieve(session, lane, number);
            }
            Action::Fact(Fact::Failed { path, failure }) => {
                note!(self, "sink: {} {failure}", String::from_utf8_lossy(&path));
                if let Some(end) = self.sink_of(session) {
                    end.failed.push((path, failure));
                }
            }
            Action::Fact(Fact::FailedToo { count }) => {
                self.violate(format!("the sink does not name {count} directories"));
            }
            Action::Fact(Fact::SpillFailed { failure, .. }) => {
                let told = self.source.as_ref().is_none_or(|end| !present || end.spill.has_told());
                if !told {
                    self.violate(format!("the sink tells of a spill that has not failed: {failure}"));
                }
            }
            Action::Fact(Fact::Done { path, .. }) => {
                if let Some(end) = self.sink_of(session) {
                    end.done.push(path);
                }
            }
            Action::Fact(Fact::Unlike { path, .. }) => {
                self.violate(format!("{path:?} is striped otherwise"));
            }
            Action::Ended(outcome) => {
                note!(self, "sink of session {session} has ended: {outcome:?}");
                if let Some(end) = self.sink_of(session) {
                    end.outcome = Some(outcome);
                }
                if let Some(failure) = outcome.failure.filter(|it| present && Self::is_own_fault(*it)) {
                    self.violate(format!("the sink ends with: {failure} ({:?})", failure.code));
                }
            }
            Action::Hands(_) => {}
            Action::Replace(block, part) if self.hung.writes.contains_key(&(block, part)) => {
                note!(self, "the thread of block {} gets a successor", block.0);
            }
            Action::Replace(block, None) if self.hung.making.contains(&block) => {
                note!(self, "the thread of block {} gets a successor", block.0);
                if let Some(end) = self.sink_of(session) {
                    end.making.remove(&block);
                }
            }
            // Other than that storage answers in time, but to a process that is stuck.
            Action::Replace(block, _) if self.lingering.as_ref().is_none_or(|end| end.session != session) => {
                self.violate(format!("the thread of {block:?} is replaced"));
            }
            Action::Replace(block, _) => {
                if let Some(end) = self.sink_of(session) {
                    end.making.remove(&block);
                }
            }
            Action::Payload { .. } | Action::Source(_) | Action::RelieveLook(_) | Action::Log(_) => {
                self.violate("the sink acts as a source".into())
            }
        }
    }

    pub(crate) fn sink_link_down(&mut self) {
        let Some(end) = &mut self.sink else { return };
        let epoch = end.up.take();
        end.link.disconnected();
        note!(self, "sink notices that connection {epoch:?} is gone");
        self.sink_event(self.session, Event::LinkDown);
        self.wait_for_peer(Role::Sink);
    }

    pub(crate) fn sink_frame(&mut self, frame: &Frame) {
        let Some(end) = &mut self.sink else { return };
        let received = end.link.receive(&frame.header, &frame.body);
        let ended = end.outcome.is_some();
        match received {
            Ok(Some(message)) if !ended => {
                note!(self, "sink receives {}", Short(&message));
                let last = matches!(message, Message::Bye(_) | Message::Error(_));
                self.check_count(&message);
                self.sink_event(self.session, Event::Message(message));
                self.confirm_sink(last);
            }
            Ok(_) => self.confirm_sink(ended && frame.header.sequence != 0),
            Err(failure) => {
                let header = frame.header;
                self.violate(format!("the sink's link refuses an honest frame: {failure}: {header:?}"));
            }
        }
    }

    /// Until the source has told its counters, the user of a pull is shown those of the sink.
    fn check_count(&mut self, message: &Message) {
        let (Message::Bye(told), Some(end)) = (message, &self.sink) else { return };
        let counted = end.machine.stats();
        let all =
            |stats: &Stats| (stats.files_total, stats.bytes_total, stats.files_there(), stats.bytes_there());
        if all(counted) != all(told) {
            let (counted, told) = (*counted, *told);
            self.violate(format!("the sink has counted {counted:?}, told is {told:?}"));
        }
        if told.bytes_there() > told.bytes_total {
            self.violate(format!("there is more than there was: {told:?}"));
        }
    }

    fn confirm_sink(&mut self, at_once: bool) {
        let Some(end) = &mut self.sink else { return };
        let pending = if at_once { 1 } else { end.confirm_after };
        if let Some(frame) = end.link.confirmation(pending) {
            self.transmit(Role::Source, frame);
        }
    }

    fn start_write(&mut self, session: u32, op: SinkOp) {
        note!(self, "sink starts to {}", Short(&op));
        let Some(end) = self.sink_of(session) else { return };
        if let SinkOp::WriteMembers { block, step: MembersStep::Make, .. } = op {
            end.making.insert(block);
            let (making, limit) = (end.making.len(), end.machine.creates_limit());
            if making > limit as usize {
                self.violate(format!("{making} bundles are being made at a time, {limit} may be"));
            }
        }
        let Some(end) = self.sink_of(session) else { return };
        let ordered = op.lane() == Lane::Ordered;
        if ordered && std::mem::replace(&mut end.ordered_busy, true) {
            end.ordered.push_back(op);
            return;
        }
        self.launch(session, op);
    }

    fn launch(&mut self, session: u32, op: SinkOp) {
        let nanos = if op.lane() == Lane::Ordered { self.plan.delays.names } else { self.plan.delays.write };
        let hangs = self.draw_hung_making(session, &op).map(|nanos| (nanos, false));
        let hangs = hangs.or_else(|| self.draw_stuck_write(session, &op).map(|nanos| (nanos, true)));
        let hangs = hangs.or_else(|| self.draw_slow_writing(session, &op).map(|nanos| (Some(nanos), false)));
        let Some(started) = self.started(session, op, None) else { return };
        match hangs {
            None => self.after(nanos, Happening::Write { session, started }),
            Some((Some(nanos), late)) => {
                let started = Started { late, ..started };
                self.queue.push(self.now + nanos, Happening::Write { session, started });
            }
            Some((None, late)) => self.hung.for_ever.push(Started { late, ..started }),
        }
    }

    /// Storage takes an operation up.
    pub(crate) fn started(&self, session: u32, op: SinkOp, number: Option<u64>) -> Option<Started> {
        let end = [&self.sink, &self.lingering].into_iter().flatten().find(|end| end.session == session)?;
        Some(Started { number, ..end.storage.start(op, &self.disk) })
    }

    /// An operation of a sink takes effect, unless a newer session owns the destination.
    pub(crate) fn on_write(&mut self, session: u32, started: Started) -> bool {
        let Some(end) = self.sink_of(session).filter(|end| end.outcome.is_none()) else { return false };
        if started.op.lane() == Lane::Ordered {
            match end.ordered.pop_front() {
                Some(next) => self.launch(session, next),
                None => end.ordered_busy = false,
            }
        }
        let (number, told_late) = (started.number, started.told_late);
        let done =
            if session == self.session { self.perform(session, started) } else { refused(&started.op) };
        if let Some(done) = done {
            let reply = Happening::WriteReply { session, number, done };
            if told_late {
                let limit = self.plan.hangs_after;
                let at = self.now + limit + self.random.below(3 * limit);
                self.queue.push(at, reply);
            } else if self.random.coin() {
                self.happen(reply);
            } else {
                self.after(self.plan.delays.reply, reply);
            }
        }
        true
    }

    /// Lets storage perform an operation on the disk.
    pub(crate) fn perform(&mut self, session: u32, started: Started) -> Option<SinkDone> {
        let rates = self.rates();
        let end = [&mut self.sink, &mut self.lingering].into_iter().flatten();
        let end = end.into_iter().find(|end| end.session == session)?;
        let mut context = Context {
            disk: &mut self.disk,
            tree: &self.tree,
            random: &mut self.random,
            rates,
            troubled: &mut self.checker.troubled,
            late: started.late || started.told_late,
            hung: !self.checker.hung.is_empty(),
            left: &mut self.checker.hung,
            unlisted: &self.checker.unreadable,
            dead: &self.hung.dead,
            published: vec![],
            broken: None,
        };
        let done = end.storage.perform(started, &end.slots, &mut context);
        let Context { published, broken, .. } = context;
        if let Some(broken) = broken {
            self.violate(format!("the sink breaks the contract of its storage: {broken}"));
        }
        published.into_iter().for_each(|path| self.check_published(path));
        done
    }

    pub(crate) fn on_write_reply(&mut self, session: u32, number: Option<u64>, done: SinkDone) -> bool {
        if self.sink_of(session).is_none_or(|end| end.outcome.is_some()) {
            return false;
        }
        note!(self, "sink: {}", Short(&done));
        if let SinkDone::WrittenMembers { block, step: MembersStep::Make, .. } = done {
            if session == self.session {
                self.hung.making.remove(&block);
            }
            if let Some(end) = self.sink_of(session) {
                end.making.remove(&block);
            }
        }
        let back = match done {
            SinkDone::Written { block, .. } => Some((block, None)),
            SinkDone::WrittenMembers { block, step: MembersStep::Fill { target, .. }, .. } => {
                Some((block, Some(target)))
            }
            _ => None,
        };
        if let Some(back) = back.filter(|_| session == self.session) {
            self.hung.writes.remove(&back);
        }
        let event = match number {
            Some(number) => {
                self.errand_ended(session, number);
                Event::ErrandDone { number, done }
            }
            None => Event::SinkDone(done),
        };
        self.sink_event(session, event);
        true
    }

    /// An end that was left over hears that it is superseded.
    pub(crate) fn supersede(&mut self, session: u32) {
        self.sink_event(session, Event::Stop(Failure::new(Code::Superseded)));
    }
}
