//! The master thread: takes inputs one at a time to its machine and carries the machine's actions out.
//!
//! The same loop serves both ends; what differs is the [`Machine`]. The loop also keeps the connection: it feeds frames
//! through the link, notices silence, lets a lost connection go, asks for a new one within `--reconnect`.

mod connecting;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver as Queue, Sender as QueueSender, never, select};
use haul_buffers::Pool;
use haul_model::profile::Waiting;
use haul_model::report::Stats;
use haul_model::{Code, Failure};
use haul_protocol::link::Link;
use haul_protocol::scheduler::Said;
use haul_protocol::{Action, Event, LogOp, Outcome};
use haul_transport::rate::Limit;
use haul_wire::{FrameHeader, LogStatus, Message, Role};

use crate::comm::Weight;
use crate::connection::{Connector, Established, Introduction};
use crate::end::Profiles;
use crate::log::{CommStands, LogSummary, Logger, NO_ANSWER};
use crate::missing::Missing;
use crate::muster::Muster;
use crate::neighbours::{BEAT_MILLIS, Heard, Neighbours};
use crate::patience::InVain;
use crate::payload::Outgoing;
use crate::profile::Profiler;
use crate::report::Report;
use crate::report_queue::ReportQueue;
use crate::workers::Workers;
use crate::{Error, Tuning, threads};
use connecting::Wire;

/// What reaches a master.
pub(crate) enum Input {
    /// For the machine.
    Event(Event),
    /// From the control stream.
    Frame {
        epoch: u32,
        header: FrameHeader,
        body: Vec<u8>,
        to_log: Option<QueueSender<Vec<LogOp>>>,
        weight: Weight,
    },
    /// A comm thread has failed: one of the control stream, or of a data stream.
    Lost { epoch: u32, control: bool, cause: String },
    /// The other end has sent what no frame begins with.
    Malformed { epoch: u32, what: &'static str },
    /// All threads of the connection that was torn down have ended.
    Down,
    /// An attempt to connect has ended.
    Connected(Box<Result<Established, Error>>),
    /// What neighbours say.
    Neighbours(Heard),
    /// The log cannot be written any more.
    LogLost { cause: String },
    /// End the session.
    Stop(Failure),
}

/// Towards the master: bounded, so that a peer that floods us waits.
pub(crate) type Inputs = QueueSender<Input>;

/// Inputs that may wait for the master. The master never blocks on anybody, so a full queue always drains.
pub(crate) const INPUTS_MAX: usize = 4096;

const TICK: Duration = Duration::from_millis(50);
/// Neighbours are told so often.
const BEAT: Duration = Duration::from_millis(BEAT_MILLIS as u64);
/// A PING goes out after this much silence of ours.
const PING_AFTER: Duration = Duration::from_secs(2);
/// The other end is taken for gone after this much silence of its.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// A loop that waits so much longer than it was to did not run: its process was stopped, or the host had no time for it.
const STOOD_STILL_MIN: Duration = Duration::from_secs(2);
/// How long the other end may take to confirm that it has heard how the session ended: of a failure,
const FAREWELL_OF_FAILURE_MAX: Duration = Duration::from_secs(2);
/// and of success. Longer than [`SILENCE_MAX`], so that both have noticed that their connection is lost, and made another one.
const FAREWELL_MAX: Duration = Duration::from_secs(if cfg!(test) { 8 } else { 40 });
/// The other end closes its streams once it has confirmed: that may be noticed in sending before the confirmation is read.
const CONFIRMATION_MAX: Duration = Duration::from_secs(1);
/// How long the last messages have in any case to leave, and at most.
const LAST_WORDS_MIN: Duration = Duration::from_secs(1);
const LAST_WORDS_MAX: Duration = Duration::from_secs(10);
/// The threads of a lost connection have at least so long to end; else as long as a new one may take.
const ENDING_MIN: Duration = Duration::from_secs(10);

/// What the two masters have in common.
pub(crate) trait Machine {
    const ROLE: Role;
    fn on_event(&mut self, event: Event, now_nanos: u64);
    fn next_action(&mut self) -> Option<Action>;
    fn said(&self) -> Vec<Said>;
    fn wants_scan(&self) -> bool;
    fn deadline_nanos(&self) -> Option<u64>;
    fn stats(&self) -> Stats;
    fn totals_are_final(&self) -> bool;
    fn waiting(&self) -> Option<Waiting>;
    fn slots_used(&self) -> u32;
    /// Something is announced that has not come.
    fn awaits_payload(&self) -> bool;
}

/// Everything that a master works with.
pub(crate) struct Master<M: Machine> {
    pub(crate) machine: M,
    pub(crate) link: Link,
    pub(crate) introduction: Introduction,
    pub(crate) connector: QueueSender<Request>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) workers: Workers,
    pub(crate) logger: Option<Logger>,
    pub(crate) neighbours: Option<Neighbours>,
    pub(crate) muster: Muster,
    pub(crate) profiler: Profiler,
    pub(crate) scan: Queue<Vec<Event>>,
    pub(crate) inputs: Queue<Input>,
    pub(crate) inputs_sender: Inputs,
    pub(crate) reports: ReportQueue,
    pub(crate) tuning: Tuning,
}

/// Asks the connector thread for a connection.
pub(crate) struct Request {
    introduction: Introduction,
    patience: Duration,
}

/// Connections that were asked for are made on this thread, so that the master can go on meanwhile.
pub(crate) fn start_connector(
    mut connector: Box<dyn Connector>,
    inputs: Inputs,
) -> Result<QueueSender<Request>, Error> {
    let (requests, queue) = crossbeam_channel::bounded::<Request>(1);
    let run = move || {
        for Request { introduction, patience } in queue {
            let result = connector.connect(&introduction, patience);
            if inputs.send(Input::Connected(Box::new(result))).is_err() {
                return;
            }
        }
    };
    threads::start("haul-connect", run)?;
    Ok(requests)
}

/// How a session ended, with what the loop noticed on the way.
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) error: Option<Error>,
    pub(crate) profiles: Profiles,
    pub(crate) log: Option<LogSummary>,
    /// Threads that storage has not let go.
    pub(crate) hanging: usize,
    /// It has failed, and the other end may not have heard of it.
    pub(crate) untold: bool,
}

/// A message as it came: decoded it would take up to ten times as much memory.
struct PutAside {
    kind: u8,
    body: Vec<u8>,
    weight: Option<Weight>,
}

/// What a turn of the loop is about.
enum Came {
    Input(Option<Input>),
    /// None when the scan has ended.
    Scanned(Option<Vec<Event>>),
    Nothing,
}

struct Running<M: Machine> {
    master: Master<M>,
    wire: Wire,
    started: Instant,
    heard: Instant,
    spoke: Instant,
    ticked: Instant,
    said: Instant,
    neighbours: usize,
    retry_at: Option<Instant>,
    /// Attempts to connect for the first time that were broken off.
    broken_at_first: u32,
    in_vain: InVain,
    /// When the last connection was made.
    since_connected: Instant,
    /// Of that.
    missing: Missing,
    /// What has come with the connection is not what was announced.
    distrusted: bool,
    last_error: Option<Error>,
    /// It cannot go on, or is not to.
    stopped: bool,
    outcome: Option<Outcome>,
    /// The other end takes a profile.
    tells_profile: bool,
    /// Of a source at the other end.
    peer_log: Option<LogSummary>,
    /// A payload has left or come.
    moved: bool,
    /// What a sink has received, and does not take on before its reports are taken. It counts as waiting, as long as there is a
    /// connection that it came over.
    put_aside: VecDeque<PutAside>,
    /// The thread that receives was given something to log, and has not been heard of since.
    is_logging: bool,
    /// Since when the storage of the log that the comm thread writes does not answer.
    comm_logs_since: Option<Instant>,
    /// Of the last connection.
    written: Arc<AtomicU64>,
    /// One for all connections.
    limit: Option<Limit>,
}

impl<M: Machine> Master<M> {
    /// Runs the session to its end.
    pub(crate) fn run(self) -> Ended {
        let mut running = Running::new(self);
        running.request();
        while running.outcome.is_none() {
            running.turn();
        }
        running.farewell()
    }
}

impl<M: Machine> Running<M> {
    fn new(master: Master<M>) -> Self {
        let now = Instant::now();
        let limit = master.tuning.bandwidth.map(Limit::new);
        Running {
            master,
            wire: Wire::Wanted { since: now, first: true },
            started: now,
            heard: now,
            spoke: now,
            ticked: now,
            said: now,
            neighbours: 0,
            retry_at: None,
            broken_at_first: 0,
            in_vain: InVain::default(),
            since_connected: now,
            missing: Missing::new(now),
            distrusted: false,
            last_error: None,
            stopped: false,
            outcome: None,
            tells_profile: false,
            peer_log: None,
            moved: false,
            put_aside: VecDeque::new(),
            is_logging: false,
            comm_logs_since: None,
            written: Arc::default(),
            limit,
        }
    }

    fn now_nanos(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Waits for one input and handles it, and all that are there already.
    fn turn(&mut self) {
        let mut wait = TICK;
        if let Some(deadline) = self.master.machine.deadline_nanos() {
            wait = wait.min(Duration::from_nanos(deadline.saturating_sub(self.now_nanos())));
        }
        // What it waits for stays the same until something comes.
        if self.master.inputs.is_empty() {
            self.master.profiler.waits(self.waiting());
        }
        // Much of what is found can be such that it is only told of, which no slot and no open entry bounds.
        let has_room = self.master.link.has_room() && !self.master.reports.is_behind();
        let takes_on = self.master.machine.wants_scan() && has_room;
        let scan = if takes_on { self.master.scan.clone() } else { never() };
        let began = Instant::now();
        let came = select! {
            recv(self.master.inputs) -> input => Came::Input(input.ok()),
            recv(scan) -> events => Came::Scanned(events.ok()),
            default(wait) => Came::Nothing,
        };
        let late = began.elapsed().saturating_sub(wait);
        if late > STOOD_STILL_MIN {
            self.stood_still(late);
        }
        match came {
            Came::Input(input) => input.into_iter().for_each(|input| self.on_input(input)),
            Came::Scanned(Some(events)) => events.into_iter().for_each(|event| self.event(event)),
            Came::Scanned(None) => self.master.scan = never(),
            Came::Nothing => self.event(Event::Tick),
        }
        while !self.put_aside.is_empty() && self.outcome.is_none() && !self.master.reports.is_behind() {
            self.take_back();
        }
        self.master.profiler.passed(Instant::now());
        self.tick_if_due();
    }

    /// This process was stopped for so long, and what came meanwhile is still to be read.
    fn stood_still(&mut self, time: Duration) {
        self.heard += time;
        // Nor was anything tried.
        if let Wire::Wanted { since, .. } | Wire::Ending { since } = &mut self.wire {
            *since += time;
        }
        self.master.profiler.stood_still(time);
    }

    /// While the comm thread writes the log it hears nothing. Is there no sense in waiting on?
    fn waits_in_vain_for_comm_log(&mut self) -> bool {
        let Some(logger) = &mut self.master.logger else { return false };
        let stands = logger.comm_stands();
        if stands != CommStands::Stuck {
            self.comm_logs_since = None;
        }
        if stands == CommStands::Free {
            return false;
        }
        self.heard = Instant::now();
        if stands == CommStands::Busy {
            return false;
        }
        let lost = logger.lose();
        let since = *self.comm_logs_since.get_or_insert_with(Instant::now);
        if let Some(cause) = lost {
            self.on_log_lost(cause);
        }
        since.elapsed() >= self.master.tuning.reconnect
    }

    /// What the machine waits for, as far as it can tell.
    fn waiting(&self) -> Option<Waiting> {
        match (self.master.machine.waiting(), &self.wire) {
            // More slots of the sink would only make the queue longer that waits to leave.
            (Some(Waiting::Credit), Wire::Up(connection)) if !connection.payloads.is_empty() => {
                Some(Waiting::Send)
            }
            (Some(Waiting::Credit | Waiting::Settle | Waiting::Answers), _) if self.is_logging => {
                Some(Waiting::Log)
            }
            (waiting, _) => waiting,
        }
    }

    /// The next of what was put aside goes to the machine.
    fn take_back(&mut self) {
        if let Some(PutAside { kind, body, .. }) = self.put_aside.pop_front() {
            match Message::decode(kind, &body) {
                Ok(message) => self.event(Event::Message(message)),
                // It could be decoded when it came.
                Err(_) => self.event(Event::Stop(Code::Internal.into())),
            }
        }
    }

    fn on_input(&mut self, input: Input) {
        match input {
            Input::Event(event) => {
                if matches!(event, Event::Payload { .. }) {
                    self.moves();
                }
                self.event(event);
            }
            Input::Frame { epoch, header, body, to_log, weight } => {
                self.on_frame(epoch, &header, body, weight);
                self.is_logging = false;
                if let (Some(to_log), Some(logger)) = (to_log, &mut self.master.logger) {
                    let operations = logger.take_waiting();
                    self.is_logging = !operations.is_empty();
                    let _ = to_log.send(operations);
                }
            }
            Input::Lost { epoch, cause, .. } => self.on_lost(epoch, cause),
            Input::Malformed { epoch, what } if self.wire.is_up(epoch) => {
                self.last_error = Some(Error::new(Code::Protocol, what));
                self.event(Event::Stop(Code::Protocol.into()));
            }
            Input::Malformed { .. } => {}
            Input::Down => self.on_down(),
            Input::Connected(result) => match *result {
                Ok(established) => self.on_connected(established),
                Err(error) => self.on_unreachable(error),
            },
            Input::Neighbours(heard) => self.on_neighbours(heard),
            Input::LogLost { cause } => self.on_log_lost(cause),
            Input::Stop(failure) => {
                self.stopped = true;
                self.event(Event::Stop(failure));
            }
        }
    }

    fn event(&mut self, event: Event) {
        let now_nanos = self.now_nanos();
        self.master.machine.on_event(event, now_nanos);
        while let Some(action) = self.master.machine.next_action() {
            self.carry_out(action);
        }
        if std::mem::take(&mut self.distrusted)
            && let Wire::Up(connection) = &self.wire
        {
            self.on_lost(connection.epoch, "a payload is not what was announced".into());
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Send(message) => self.send(&message),
            Action::Payload { epoch, block, slot, local, length } => {
                if let Wire::Up(connection) = &self.wire
                    && connection.epoch == epoch
                {
                    let _ = connection.payloads.send(Outgoing { block, slot, local, length });
                    self.moves();
                }
            }
            Action::Grant(slot) => {
                if !self.master.pool.grant(slot) {
                    let what = "a slot was to be granted into which a payload is received";
                    self.stop(Error::new(Code::Protocol, what));
                }
            }
            Action::Revoke(slot) => self.master.pool.revoke(slot),
            Action::TakeBack(slot) => {
                if !self.master.pool.take_back(slot) {
                    let what = "a payload came for a slot whose payload is said to be lost";
                    self.stop(Error::new(Code::Protocol, what));
                }
            }
            Action::Distrust => self.distrusted = true,
            Action::Hands(count) => self.master.workers.grow(count as usize),
            Action::Replace(block, part) => self.master.workers.replace((block, part)),
            Action::Errand { number, lane, threads, op } => {
                if let Err(error) = self.master.workers.run_errand(number, lane, threads as usize, op) {
                    self.stop(error);
                }
            }
            Action::Relieve { lane, number } => self.master.workers.relieve(lane, number),
            Action::RelieveLook(id) => self.master.workers.relieve_look(id),
            Action::Source(op) => {
                if let Err(error) = self.master.workers.run_source(op) {
                    self.stop(error);
                }
            }
            Action::Sink(op) => self.master.workers.run_sink(op),
            Action::Log(op) => {
                if let Some(cause) = self.master.logger.as_mut().and_then(|logger| logger.run(op)) {
                    self.on_log_lost(cause);
                }
            }
            Action::Fact(fact) => self.master.reports.put(Report::Fact(fact)),
            Action::Ended(mut outcome) => {
                if outcome.failure.is_some() {
                    let now = self.stats();
                    (outcome.stats.bytes_sent, outcome.stats.objects_sent) =
                        (now.bytes_sent, now.objects_sent);
                }
                self.outcome = Some(outcome);
            }
        }
    }

    /// The first object of the session is under way.
    fn moves(&mut self) {
        if !std::mem::replace(&mut self.moved, true) {
            self.master.reports.put(Report::FirstObject);
        }
    }

    fn on_neighbours(&mut self, heard: Heard) {
        let Heard { told, transfers } = heard;
        let targets = told.iter().filter(|told| told.parts > 1).count();
        if std::mem::replace(&mut self.neighbours, transfers) != transfers {
            self.master.reports.put(Report::Neighbours { transfers, targets });
        }
        self.event(Event::NeighboursSaid(told));
    }

    /// The initiator is told, whichever end it is; where the log is required, the transfer ends.
    fn on_log_lost(&mut self, cause: String) {
        self.master.reports.put(Report::LogLost { cause: cause.clone() });
        let Some(logger) = &self.master.logger else { return };
        let required = logger.is_required();
        let status = logger.summary().status();
        self.send(&Message::Log(Box::new(status)));
        if required {
            self.last_error = Some(Error::new(Code::LogUnwritable, cause));
            self.event(Event::Stop(Code::LogUnwritable.into()));
        }
    }

    /// A log that is lost stays so: it is told once, whatever is said later.
    fn on_peer_log(&mut self, status: LogStatus) {
        let mut log = LogSummary::of(status);
        let known = self.peer_log.take().and_then(|log| log.lost);
        if let (Some(cause), None) = (&log.lost, &known) {
            self.master.reports.put(Report::LogLost { cause: cause.clone() });
        }
        log.lost = known.or(log.lost);
        self.peer_log = Some(log);
    }

    fn send(&mut self, message: &Message) {
        // What is known of the log at the end goes ahead of the last message.
        if let (Message::Bye(_), Some(logger)) = (message, &self.master.logger) {
            let status = logger.summary().status();
            self.send(&Message::Log(Box::new(status)));
        }
        if let Message::Bye(_) | Message::Finished(_) = message
            && self.tells_profile
            && let Some(profile) = self.master.profiler.own(self.master.machine.slots_used())
        {
            self.send(&Message::Profile(Box::new(profile)));
        }
        if let Some(frame) = self.master.link.send(message)
            && let Wire::Up(connection) = &self.wire
        {
            let _ = connection.frames.send(frame);
            self.spoke = Instant::now();
        }
    }

    fn on_frame(&mut self, epoch: u32, header: &FrameHeader, body: Vec<u8>, weight: Weight) {
        if !self.wire.is_up(epoch) {
            return;
        }
        self.heard = Instant::now();
        match self.receive(header, &body) {
            Ok(Some(Message::Log(status))) if M::ROLE == Role::Sink => self.on_peer_log(*status),
            Ok(Some(Message::Profile(profile))) => self.master.profiler.hear(*profile),
            // It only says that the other end is there, again and again.
            Ok(Some(message @ Message::Ping)) => self.event(Event::Message(message)),
            // A source that gets no answers announces no more than may be open; its own scan it leaves to itself.
            Ok(Some(_))
                if M::ROLE == Role::Sink
                    && (self.master.reports.is_behind() || !self.put_aside.is_empty()) =>
            {
                self.put_aside.push_back(PutAside { kind: header.kind, body, weight: Some(weight) });
            }
            Ok(Some(message)) => self.event(Event::Message(message)),
            Ok(None) => {}
            Err(failure) => self.event(Event::Stop(failure)),
        }
    }

    fn receive(&mut self, header: &FrameHeader, body: &[u8]) -> Result<Option<Message>, Failure> {
        self.check_received(header.received)?;
        self.master.link.receive(header, body)
    }

    /// Whoever confirms what was never written could make what waits to be written as long as it likes: only what is not confirmed
    /// is counted.
    fn check_received(&self, peer_received: u64) -> Result<(), Failure> {
        match peer_received <= self.written.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(Failure::new(Code::Protocol)),
        }
    }

    /// It cannot go on.
    fn stop(&mut self, error: Error) {
        let failure = error.failure;
        self.last_error = Some(error);
        self.stopped = true;
        self.event(Event::Stop(failure));
    }

    fn tick_if_due(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.ticked) >= TICK {
            self.ticked = now;
            self.tick();
        }
    }

    fn tick(&mut self) {
        if let Wire::Up(connection) = &mut self.wire
            && self.in_vain.is_over(self.master.machine.stats().progress())
        {
            connection.brings_something();
        }
        if self.retry_at.is_some_and(|at| at <= Instant::now()) {
            self.request();
        }
        if !matches!(self.wire, Wire::Wanted { .. }) && self.waits_in_vain_for_comm_log() {
            return self.stop(Error::new(Code::LogUnwritable, NO_ANSWER));
        }
        if let Wire::Ending { since } = self.wire
            && since.elapsed() > self.master.tuning.reconnect.max(ENDING_MIN)
            && self.comm_logs_since.is_none()
        {
            let told = "a thread of the lost connection waits for storage that does not answer";
            return self.stop(Error::new(Code::ConnectionLost, told));
        }
        if let Wire::Up(connection) = &self.wire {
            let epoch = connection.epoch;
            let now = Instant::now();
            if self.missing.is_due(now) {
                let (awaited, arrived) = (self.master.machine.awaits_payload(), connection.arrived());
                // On a slow path messages come late, behind payloads that wait there.
                if self.missing.has_more_come(arrived) {
                    self.heard = now;
                }
                if let Some(quiet) = self.missing.look(awaited, arrived, now) {
                    let cause =
                        format!("nothing of what the other end has sent came for {} s", quiet.as_secs());
                    return self.on_lost(epoch, cause);
                }
            }
            // What waits may be what was not heard.
            let last = self.put_aside.back().and_then(|message| message.weight.as_ref());
            let full = last.is_some_and(Weight::is_too_much);
            if self.heard.elapsed() > SILENCE_MAX && self.master.inputs.is_empty() && !full {
                let cause = format!("nothing was heard of the other end for {} s", SILENCE_MAX.as_secs());
                return self.on_lost(epoch, cause);
            }
            let pending = if self.spoke.elapsed() > PING_AFTER { 0 } else { 1 };
            self.confirm(pending);
        }
        if let Some(neighbours) = &self.master.neighbours
            && self.said.elapsed() >= BEAT
        {
            self.said = Instant::now();
            if !neighbours.say(self.master.machine.said()) {
                // What was heard last must not hold for ever.
                self.master.neighbours = None;
                self.on_neighbours(Heard { told: Vec::new(), transfers: 0 });
            }
        }
        let progress = Report::Progress {
            stats: self.stats(),
            totals_are_final: self.master.machine.totals_are_final(),
        };
        self.master.reports.put(progress);
    }

    /// With what has passed of payloads that have not as a whole.
    fn stats(&self) -> Stats {
        let mut stats = self.master.machine.stats();
        if let Wire::Up(connection) = &self.wire {
            stats.bytes_sent += connection.bytes_under_way();
        }
        stats
    }

    /// Confirms what was received, so that the other end can forget it.
    fn confirm(&mut self, pending: u64) {
        if let Wire::Up(connection) = &self.wire
            && let Some(frame) = self.master.link.confirmation(pending)
        {
            let _ = connection.frames.send(frame);
            self.spoke = Instant::now();
        }
    }

    /// The machine has ended. Its last messages must reach the other end, as far as that is still possible.
    fn farewell(mut self) -> Ended {
        let outcome = self.outcome.take().expect("the loop ends with an outcome");
        let profiles = self.master.profiler.both(M::ROLE, self.master.machine.slots_used());
        // It is at no target any more.
        self.master.neighbours = None;
        self.put_aside.clear();
        let failed = outcome.failure.is_some();
        if failed {
            self.master.workers.abort();
        }
        let deadline = match failed {
            true => self.tell_of_failure(),
            false => self.tell_of_success(),
        };
        let untold = failed && !self.master.link.is_settled();
        // Whoever still reports has nobody to report to.
        let inputs = self.master.inputs;
        let drain = threads::start("haul-drain", move || inputs.into_iter().for_each(drop));
        let mut hanging = 0;
        if let Wire::Up(connection) = self.wire {
            let now = Instant::now();
            hanging = connection.finish(deadline.clamp(now + LAST_WORDS_MIN, now + LAST_WORDS_MAX));
        }
        hanging += self.master.workers.finish();
        let log = match self.master.logger.map(Logger::finish) {
            Some((log, is_hanging)) => {
                hanging += usize::from(is_hanging);
                Some(log)
            }
            None => self.peer_log,
        };
        drop((self.master.inputs_sender, drain));
        let error = outcome.failure.map(|failure| match self.last_error {
            Some(error) if error.failure.code == failure.code => error,
            _ => failure.into(),
        });
        Ended { outcome, error, profiles, log, hanging, untold }
    }

    /// If the connection is lost, too, the other end finds out by itself that this one has gone.
    fn tell_of_failure(&mut self) -> Instant {
        let deadline = Instant::now() + FAREWELL_OF_FAILURE_MAX;
        self.confirm(1);
        while matches!(self.wire, Wire::Up(_)) && !self.master.link.is_settled() && Instant::now() < deadline
        {
            match self.master.inputs.recv_timeout(TICK) {
                Ok(Input::Frame { epoch, header, body, .. }) => self.on_last_frame(epoch, &header, &body),
                Ok(Input::Lost { .. } | Input::Malformed { .. }) => break,
                _ => {}
            }
        }
        deadline
    }

    /// An other end that does not hear of it would have to take it for a failure: a lost connection is made again for this as for
    /// anything else.
    fn tell_of_success(&mut self) -> Instant {
        let mut lost: Option<(Instant, u32, String)> = None;
        let mut deadline = Instant::now() + FAREWELL_MAX;
        self.confirm(1);
        while !self.master.link.is_settled() && !self.stopped && Instant::now() < deadline {
            // As long as for any other connection, where nobody waits for this process.
            if M::ROLE == Role::Sink && self.master.tuning.unattended && !matches!(self.wire, Wire::Up(_)) {
                deadline = Instant::now() + FAREWELL_MAX;
            }
            match self.master.inputs.recv_timeout(TICK) {
                Ok(Input::Frame { epoch, header, body, .. }) => self.on_last_frame(epoch, &header, &body),
                // Nothing comes over the others any more.
                Ok(Input::Lost { epoch, cause, control: true }) if self.wire.is_up(epoch) => {
                    lost.get_or_insert((Instant::now() + CONFIRMATION_MAX, epoch, cause));
                }
                Ok(input @ Input::Connected(_)) => {
                    lost = None;
                    self.on_input(input);
                }
                Ok(input @ (Input::Down | Input::Stop(_))) => self.on_input(input),
                Ok(Input::Malformed { epoch, .. }) if self.wire.is_up(epoch) => self.stopped = true,
                _ => {}
            }
            if self.master.link.is_settled() {
                break;
            }
            if let Some((_, epoch, cause)) = lost.take_if(|(until, ..)| *until <= Instant::now()) {
                self.on_lost(epoch, cause);
            }
            self.tick_if_due();
        }
        deadline
    }

    fn on_last_frame(&mut self, epoch: u32, header: &FrameHeader, body: &[u8]) {
        if !self.wire.is_up(epoch) {
            return;
        }
        self.heard = Instant::now();
        if let Ok(Some(Message::Error(_))) | Err(_) = self.receive(header, body) {
            // It goes whatever it is told.
            self.stopped = true;
        }
        self.confirm(1);
    }
}

#[cfg(test)]
mod tests;
