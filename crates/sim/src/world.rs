//! One history: the clock, the queue, both ends, what happens to them from outside.
//!
//! The parts of [`World`] are in other files: `session` (how sessions begin and end, kills), `network` (connections),
//! `source_end` and `sink_end` (each drives one master), `checker` (what must hold).

use haul_model::op::{SinkDone, SourceDone, SourceOp};
use haul_model::{BlockId, Code, Failure, SlotId};
use haul_protocol::Event;
use haul_protocol::link::Frame;
use haul_wire::Role;

use crate::checker::Checker;
use crate::content::Payload;
use crate::disk::Disk;
use crate::hung::Hung;
use crate::log::{Kept, Store};
use crate::network::Connection;
use crate::plan::{Blow, Plan, Rates};
use crate::queue::Queue;
use crate::random::Random;
use crate::report::Report;
use crate::sink_end::SinkEnd;
use crate::sink_storage::Started;
use crate::slow::Slow;
use crate::source_end::SourceEnd;
use crate::tree::Tree;
use crate::{Bug, Options};

/// Something that is going to happen. Each belongs to a session; what comes after its end finds nobody.
pub(crate) enum Happening {
    /// A frame arrives on the control stream.
    Frame { session: u32, epoch: u32, to: Role, index: u64, frame: Frame },
    /// A payload leaves its slot.
    Depart { session: u32, epoch: u32, block: BlockId, slot: SlotId, local: SlotId, length: u32 },
    /// A payload arrives.
    Arrive { session: u32, epoch: u32, block: BlockId, slot: SlotId, length: u32, payload: Payload },
    /// An operation of the source takes effect.
    Read { session: u32, op: SourceOp, late: bool },
    /// Its completion.
    ReadReply { session: u32, done: SourceDone },
    /// An operation of the sink takes effect.
    Write { session: u32, started: Started },
    /// Its completion, of an errand with its number.
    WriteReply { session: u32, number: Option<u64>, done: SinkDone },
    /// Time passes while storage is slow.
    Slow(Slow),
    /// The scan finds something.
    Scan { session: u32 },
    /// The sink asked to be woken.
    Tick { session: u32 },
    /// The log is handed to the store.
    LogFlush { session: u32 },
    /// The log is made durable.
    LogSync { session: u32 },
    /// An end notices that its connection is gone.
    LinkDown { session: u32, epoch: u32, of: Role },
    /// The source dials.
    Dial { session: u32 },
    /// An end has waited long enough for the other.
    Patience { session: u32, of: Role, generation: u32 },
    /// The command is given again.
    NewSession,
}

/// Events after which a history must have come to its end.
const EVENTS_MAX: u64 = 60_000;
/// Events that a history has at least: shorter ones go on with another run.
const EVENTS_MIN: u64 = 200;

pub(crate) struct World {
    pub random: Random,
    pub plan: Plan,
    pub bug: Option<Bug>,
    pub queue: Queue<Happening>,
    pub now: u64,
    pub tree: Tree,
    pub disk: Disk,
    pub store: Store,
    pub source: Option<SourceEnd>,
    pub sink: Option<SinkEnd>,
    pub lingering: Option<SinkEnd>,
    pub connection: Connection,
    pub epochs: u32,
    pub session: u32,
    /// A new session is planned.
    pub starting: bool,
    /// What hangs at the sink.
    pub hung: Hung,
    /// What the next session must find in the log.
    pub kept: Kept,
    /// Nothing was to go wrong in this session.
    pub safe: bool,
    pub checker: Checker,
    pub report: Report,
    pub trace: Option<Vec<String>>,
    events_max: u64,
    next_blow: usize,
    done: bool,
    /// Runs after the first that came to its end.
    reruns: u32,
}

/// Writes a line of the trace, if there is one.
macro_rules! note {
    ($world:expr, $($arg:tt)*) => {
        if $world.trace.is_some() {
            let line = format!($($arg)*);
            $world.note(line);
        }
    };
}
pub(crate) use note;

impl World {
    pub(crate) fn new(seed: u64, options: &Options) -> World {
        let mut random = Random::new(crate::random::mix(seed));
        let mut plan = Plan::draw(&mut random);
        // Of its own, so that a seed without a lock is the history that it was before there were any.
        plan.draw_lock(&mut Random::new(crate::random::mix(seed ^ 0x6c6f_636b)));
        let tiny = u64::from(plan.grain) / 4096;
        plan.shape.sizes.extend((0..options.files_more).map(|_| random.below(tiny)));
        let tree = Tree::draw(&plan.shape, &mut random);
        let disk = Disk::new(plan.grain);
        let events_max = EVENTS_MAX + 200 * plan.shape.sizes.len() as u64;
        let mut world = World {
            random,
            plan,
            bug: options.bug,
            queue: Queue::default(),
            now: 0,
            tree,
            disk,
            store: Store::default(),
            source: None,
            sink: None,
            lingering: None,
            connection: Connection::default(),
            epochs: 0,
            session: 0,
            starting: false,
            hung: Hung::default(),
            kept: Kept::default(),
            safe: false,
            checker: Checker::default(),
            report: Report::default(),
            trace: options.trace.then(Vec::new),
            events_max,
            next_blow: 0,
            done: false,
            reruns: 0,
        };
        world.disk.fit(&world.tree);
        world.occupy();
        world
    }

    pub(crate) fn note(&mut self, line: String) {
        let (events, micros) = (self.report.events, self.now / 1000);
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{events:6} {micros:>10} µs  {line}"));
        }
    }

    /// Something does not hold. The first such thing ends the history.
    pub(crate) fn violate(&mut self, what: String) {
        note!(self, "VIOLATION: {what}");
        self.report.violation.get_or_insert(what);
    }

    /// From 1 to `nanos_max`.
    pub(crate) fn delay(&mut self, nanos_max: u64) -> u64 {
        let max = if self.random.chance(700) { nanos_max / 8 } else { nanos_max };
        1 + self.random.below(max.max(1))
    }

    pub(crate) fn rates(&self) -> Rates {
        if self.session <= self.plan.faulty_sessions { self.plan.rates } else { Rates::default() }
    }

    /// Plans `happening` after at most `nanos_max`.
    pub(crate) fn after(&mut self, nanos_max: u64, happening: Happening) {
        let at = self.now + self.delay(nanos_max);
        self.queue.push(at, happening);
    }

    /// Runs the history to its end.
    pub(crate) fn run(&mut self) {
        self.start_session();
        while self.report.violation.is_none() && !self.done {
            self.strike();
            let Some((now, happening)) = self.queue.pop() else {
                let ends =
                    (self.source.as_ref().map(|it| it.outcome), self.sink.as_ref().map(|it| it.outcome));
                self.violate(format!("nothing is left to happen, but source and sink are at {ends:?}"));
                break;
            };
            self.now = now;
            if self.happen(happening) {
                self.report.events += 1;
            }
            if self.report.events > self.events_max {
                self.violate("it does not come to an end".into());
            }
            self.look_for_end();
        }
        self.collect_coverage();
    }

    /// What is due from outside. A blow that cannot fall yet waits.
    fn strike(&mut self) {
        while let Some((at, blow)) = self.plan.blows.get(self.next_blow).copied() {
            if at > self.report.events {
                return;
            }
            let fell = match blow {
                Blow::Kill { source, sink, power } => self.kill(source, sink, power),
                Blow::Cut => self.cut(),
                Blow::Change => {
                    self.change();
                    true
                }
                Blow::Stop { source } => self.interrupt(source),
            };
            if !fell {
                return;
            }
            self.next_blow += 1;
        }
    }

    /// Asks an end to stop. False if it has ended, or is not there.
    fn interrupt(&mut self, source: bool) -> bool {
        let stop = || Event::Stop(Failure::new(Code::Interrupted));
        if source && self.source.as_ref().is_some_and(|end| end.outcome.is_none()) {
            note!(self, "the source is interrupted");
            self.source_event(stop());
        } else if !source && self.sink.as_ref().is_some_and(|end| end.outcome.is_none()) {
            note!(self, "the sink is interrupted");
            self.sink_event(self.session, stop());
        } else {
            return false;
        }
        true
    }

    /// Nothing goes wrong from here on.
    pub(crate) fn is_safe(&self) -> bool {
        self.session > self.plan.faulty_sessions && self.next_blow == self.plan.blows.len()
    }

    /// A file changes.
    pub(crate) fn change(&mut self) {
        // Files that are being read are the interesting ones.
        let open = self.source.iter().flat_map(|end| end.handles.values());
        let stamps = open.map(|inode| self.tree.inodes[*inode].stamp as usize);
        let mut open: Vec<usize> = stamps.map(|stamp| self.tree.stamps[stamp].path).collect();
        open.sort_unstable();
        let preferred =
            if open.is_empty() || self.random.coin() { None } else { Some(*self.random.pick(&open)) };
        if let Some((path, what)) = self.tree.mutate(preferred, self.plan.grain, &mut self.random) {
            note!(self, "file {path} {what}");
            self.checker.nothing_to_do = false;
            self.disk.fit(&self.tree);
            self.checker.troubled.resize(self.tree.nodes.len(), false);
            self.checker.troubled[path] = true;
        }
    }

    /// False: it came too late to be an event.
    pub(crate) fn happen(&mut self, happening: Happening) -> bool {
        match happening {
            Happening::Frame { session, epoch, to, index, frame } => {
                self.on_frame(session, epoch, to, index, frame)
            }
            Happening::Depart { session, epoch, block, slot, local, length } => {
                self.on_depart(session, epoch, block, slot, local, length)
            }
            Happening::Arrive { session, epoch, block, slot, length, payload } => {
                self.on_arrive(session, epoch, block, slot, length, payload)
            }
            Happening::Read { session, op, late } => self.on_read(session, op, late),
            Happening::ReadReply { session, done } => self.on_read_reply(session, done),
            Happening::Write { session, started } => self.on_write(session, started),
            Happening::WriteReply { session, number, done } => self.on_write_reply(session, number, done),
            Happening::Scan { session } => self.on_scan(session),
            Happening::Slow(slow) => self.on_slow(slow),
            Happening::Tick { session } => self.on_tick(session),
            Happening::LogFlush { session } => self.on_log_flush(session),
            Happening::LogSync { session } => self.on_log_sync(session),
            Happening::LinkDown { session, epoch, of } => self.on_link_down(session, epoch, of),
            Happening::Dial { session } => self.on_dial(session),
            Happening::Patience { session, of, generation } => self.on_patience(session, of, generation),
            Happening::NewSession => {
                self.succeed();
                true
            }
        }
    }

    /// The job has come to its end. Goes on with another run if the history is too short, or to see what a run that
    /// finds everything there does.
    pub(crate) fn job_ended(&mut self, complete: bool) {
        let short = self.report.events < EVENTS_MIN;
        let again = self.reruns == 0 && self.random.chance(if complete { 60 } else { 500 });
        if !short && !again || self.reruns > 30 {
            self.done = true;
            return;
        }
        self.reruns += 1;
        let inodes = self.tree.nodes.iter().filter_map(|node| node.inode);
        let unchanged =
            inodes.into_iter().all(|inode| self.checker.is_finished(self.tree.inodes[inode].stamp));
        self.checker.nothing_to_do = complete && unchanged && !(short && self.random.chance(900));
        if !self.checker.nothing_to_do {
            for _ in 0..self.random.between(1, 3) {
                self.change();
            }
        }
        if !complete {
            // Whatever was in the way is gone, so nothing may be missing after this run.
            self.plan.faulty_sessions = 0;
        }
        self.starting = true;
        self.after(1_000_000, Happening::NewSession);
    }

    /// A failure that honest ends never cause each other.
    pub(crate) fn is_own_fault(failure: Failure) -> bool {
        matches!(failure.code, Code::Protocol | Code::Internal | Code::LimitExceeded)
    }
}
