//! One end of a session, put together and run: pool, storage, threads, master.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver as Queue, RecvTimeoutError, bounded, never, select};
use haul_buffers::Pool;
use haul_meter::Meter;
use haul_model::profile::{Profile, Stage};
use haul_model::report::Stats;
use haul_model::{Code, Failure, JobId, SessionId};
pub use haul_protocol::Outcome;
use haul_protocol::link::Link;
use haul_protocol::scheduler::{Policy, Said};
use haul_protocol::sink::{self, Sink};
use haul_protocol::source::{self, Source};
use haul_protocol::{Action, Event, LogView, Planted, Waiting};
use haul_storage::placing::Placing;
use haul_storage::scan::{Scan, Scanned};
use haul_storage::{SinkStorage, SourceStorage};
use haul_topology::{Placer, ThreadKind};
use haul_wire::{Connect, FEATURE_BEFORE, FEATURE_PROFILE, Role, VERSION, VERSION_MIN};

use crate::Error;
use crate::connection::{Connector, Introduction};
use crate::log::{LogSummary, Logger, SourceLog};
use crate::master::{Ended, INPUTS_MAX, Input, Inputs, Machine, Master, start_connector};
use crate::muster::Muster;
use crate::neighbours::Neighbours;
use crate::profile::Profiler;
use crate::report::{Report, Reports};
use crate::report_queue::ReportQueue;
use crate::threads;
use crate::workers::Workers;

/// What may be chosen about a session without changing what exists at its end.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Bytes of an object, and of a slot.
    pub object_bytes: u32,
    /// Slots of this end's pool.
    pub slots: u32,
    /// With those that the end that writes uses only for what is on its way over a long network; no fewer than `slots`.
    pub slots_far: u32,
    /// Threads that read or write contents.
    pub io_threads: usize,
    /// After how long a request is taken for hung; as measured if nobody says.
    pub hangs_after: Option<Duration>,
    /// How many of them at most, where files are on several targets.
    pub io_threads_max: usize,
    /// How they choose among storage targets.
    pub policy: Policy,
    /// Files up to this size travel in bundles.
    pub bundle_bytes_max: u64,
    /// How long to go on trying after a connection was lost.
    pub reconnect: Duration,
    /// Nobody waits for this process: a sink that has ended well stays for a connection as long as for any other.
    pub unattended: bool,
    /// Report each file that is done.
    pub report_done: bool,
    /// Payload bytes a second that a source sends at most, over all its streams.
    pub bandwidth: Option<NonZeroU64>,
}

/// Slots for each thread that an end uses however fast it is: one that storage is at, one that comes or goes.
const SLOTS_PER_THREAD: usize = 2;
/// And so many that wait for one of the two.
const SLOTS_BETWEEN: usize = 1;

/// Addresses that slots leave to the stacks and heaps of threads, or the few slots that are always used, where the process may not
/// have so many.
const ADDRESSES_SPARE: usize = 512 << 20;
const ADDRESSES_SPARE_LEAST: usize = 128 << 20;

impl Tuning {
    /// How many slots are used in any case; more of them as the path needs it.
    pub fn slots_least(&self) -> u32 {
        (self.io_threads * SLOTS_PER_THREAD + SLOTS_BETWEEN).min(self.slots as usize) as u32
    }

    /// A pool of so many slots; of those that are always wanted, or fewer, where there is no room for so many addresses.
    pub fn pool(&self, slots: u32) -> Result<Arc<Pool>, Error> {
        const SLOTS_MIN: u32 = 2;
        let Tuning { object_bytes, slots: always, .. } = *self;
        let halved = |from: u32, to: u32| {
            std::iter::successors(Some(from), move |slots| (*slots > to).then(|| (slots / 2).max(to)))
        };
        let least = self.slots_least();
        let many = std::iter::once(slots.max(always)).chain(halved(always, least));
        let tries = many.map(|slots| (slots, ADDRESSES_SPARE));
        let tries = tries.chain(halved(least, SLOTS_MIN).map(|slots| (slots, ADDRESSES_SPARE_LEAST)));
        // Beside it there may be as large a one of the other end, in this process.
        let room = |(slots, spare)| (slots, slots as usize * object_bytes as usize + spare);
        let mut refused = std::io::ErrorKind::OutOfMemory.into();
        let found = tries.map(room).chain([(SLOTS_MIN, 0)]).find_map(|(slots, spare_bytes)| {
            Pool::beside(slots, object_bytes, spare_bytes).map_err(|error| refused = error).ok()
        });
        found.ok_or_else(|| {
            Error::os(Code::SystemRefused, "allocating the slot pool", &refused)
                .hint("this process may have too few addresses (ulimit -v): try a smaller --object-size")
        })
    }
}

/// What both ends know of a session.
pub struct Common {
    /// Choices.
    pub tuning: Tuning,
    /// Which job.
    pub job: JobId,
    /// Which session of it.
    pub session: SessionId,
    /// Epochs up to this one belong to earlier sessions.
    pub epoch: u32,
    /// Names of the SOURCEs below the destination (empty: merged into it).
    pub roots: Vec<Box<[u8]>>,
    /// Makes connections.
    pub connector: Box<dyn Connector>,
    /// Told what happens, on a thread of its own.
    pub reports: Reports,
    /// Gives threads their seats.
    pub placer: Placer,
}

/// The end that reads.
pub struct SourceEnd {
    /// See there.
    pub common: Common,
    /// What is read from.
    pub storage: Arc<dyn SourceStorage>,
    /// What finds the entries.
    pub scan: Box<dyn Scan>,
    /// The object log; without one nothing can be resumed.
    pub log: SourceLog,
    /// Bytes that the storage's spill may take; 0 without one.
    pub spill_bytes_max: u64,
    /// Knows the storage targets, if they are to be shared with other transfers on this host.
    pub shared: Option<Arc<Placing>>,
}

/// The end that writes.
pub struct SinkEnd {
    /// See there.
    pub common: Common,
    /// What is written to.
    pub storage: Arc<dyn SinkStorage>,
    /// As at the source.
    pub shared: Option<Arc<Placing>>,
    /// SOURCEs may be directories.
    pub recursive: bool,
}

/// Of both ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Profiles {
    /// Until it said that all is sent, where the other end is the one that tells.
    pub source: Option<Profile>,
    /// Until it said that all is done, where the other end is the one that tells.
    pub sink: Option<Profile>,
    /// Both are this process: nothing lies between them.
    pub one_process: bool,
    /// For how long this process did not run, though it wanted to: it was stopped.
    pub stood_still: Duration,
}

impl Profiles {
    /// For how long it was stopped, if that is most of the time: nothing else is worth telling.
    pub fn mostly_stood_still(&self) -> Option<Duration> {
        self.stood_still_for_parts(2)
    }

    /// The same, if it is worth telling.
    pub fn stood_still_for_long(&self) -> Option<Duration> {
        self.stood_still_for_parts(10)
    }

    fn stood_still_for_parts(&self, parts: u32) -> Option<Duration> {
        // The end that was stopped does not count that time; the other one, if it is another process, does.
        let ran = || [self.source, self.sink].into_iter().flatten().map(|profile| profile.wall_nanos);
        let [least, most] = [ran().min(), ran().max()].map(|nanos| Duration::from_nanos(nanos.unwrap_or(0)));
        let all = most.max(least + self.stood_still);
        Some(self.stood_still).filter(|stood_still| !stood_still.is_zero() && *stood_still > all / parts)
    }
}

/// How an end ended.
#[derive(Debug)]
pub struct Summary {
    /// Of the machine.
    pub outcome: Outcome,
    /// With what it is about, where the outcome is a failure.
    pub error: Option<Error>,
    /// Where the time of each end went, as far as it is known here.
    pub profiles: Profiles,
    /// Of the source's log, at either end; none if the session never began.
    pub log: Option<LogSummary>,
    /// Threads that wait for storage that has not answered: the process cannot end before it does.
    pub hanging: usize,
    /// It has failed, and the other end may not have heard of it.
    pub untold: bool,
}

/// An end that runs.
pub struct Running {
    inputs: Inputs,
    thread: JoinHandle<Summary>,
    /// Disconnected when it has ended.
    ended: Queue<()>,
}

/// How long the other end may take to end by itself, where one in the same process has failed.
const OTHER_END_MAX: Duration = Duration::from_secs(2);

/// Ends a running end from another thread.
#[derive(Clone)]
pub struct Stopper(Inputs);

impl Stopper {
    /// The session ends as soon as its master takes this up.
    pub fn stop(&self, failure: Failure) {
        let _ = self.0.send(Input::Stop(failure));
    }
}

impl Running {
    /// To end it early.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.inputs.clone())
    }

    /// Waits for both ends of a session in one process. Where one has failed the other one, too: there is nobody left that it
    /// could be connected with again.
    pub fn wait_for_both(source: Running, sink: Running) -> (Summary, Summary) {
        let source_first = select! {
            recv(source.ended) -> _ => true,
            recv(sink.ended) -> _ => false,
        };
        let (first, second) = if source_first { (source, sink) } else { (sink, source) };
        let mut first = first.wait();
        let mut cause = None;
        // Of what came before they were connected the other one does not hear.
        let is_heard = |failure: Failure| first.log.is_some() || failure.code != Code::Interrupted;
        let patience = |failure| if is_heard(failure) { OTHER_END_MAX } else { Duration::ZERO };
        if let Some(failure) = first.outcome.failure
            && second.ended.recv_timeout(patience(failure)) == Err(RecvTimeoutError::Timeout)
        {
            second.stopper().stop(failure);
            cause = first.error.clone();
        }
        let mut second = second.wait();
        second.error = cause.or(second.error);
        // What one end has heard of the other's failure does not say what that is about.
        let (one, other) = (first.error.clone(), second.error.clone());
        first.error = with_about(one.clone(), other.clone());
        second.error = with_about(other, one);
        if source_first { (first, second) } else { (second, first) }
    }

    /// Waits for its end.
    pub fn wait(self) -> Summary {
        self.thread.join().unwrap_or_else(|_| Summary {
            outcome: Outcome { failure: Some(Code::Internal.into()), stats: Default::default() },
            error: Some(Error::new(Code::Internal, "the master thread has panicked")),
            profiles: Profiles::default(),
            log: None,
            hanging: 0,
            untold: false,
        })
    }
}

/// What an end ended with, or the same as the other end knows it, if that says what it is about.
fn with_about(error: Option<Error>, other: Option<Error>) -> Option<Error> {
    match (error, other) {
        (Some(bare), Some(full)) if bare.about.is_empty() && bare.failure == full.failure => Some(full),
        (error, _) => error,
    }
}

impl Common {
    fn introduction(&self, role: Role, slots: u32) -> Introduction {
        let connect = Connect {
            version: VERSION,
            version_min: VERSION_MIN,
            role,
            session: self.session,
            job: self.job,
            object_bytes: self.tuning.object_bytes,
            slots,
            features: FEATURE_PROFILE | FEATURE_BEFORE,
        };
        Introduction { connect, epoch: self.epoch, received: 0 }
    }

    /// Starts to speak with other transfers, if there is something to share.
    fn neighbours(&self, shared: Option<Arc<Placing>>, inputs: &Inputs) -> Option<Neighbours> {
        let number = self.session.0.first_chunk()?;
        Some(Neighbours::start(shared?, u64::from_le_bytes(*number), inputs.clone()))
    }

    /// As [`Tuning::pool`] finds it. No more slots than it has are used.
    fn pool(&mut self, slots: u32) -> Result<Arc<Pool>, Error> {
        let pool = self.tuning.pool(slots)?;
        self.tuning.slots = self.tuning.slots.min(pool.count());
        (self.reports)(Report::Buffers { bytes: pool.bytes(), locked_bytes: pool.locked_bytes() });
        Ok(pool)
    }
}

impl SourceEnd {
    /// Starts its threads.
    pub fn start(self) -> Result<Running, Error> {
        let SourceEnd { mut common, storage, scan, log, spill_bytes_max, shared } = self;
        let pool = common.pool(common.tuning.slots)?;
        let introduction = common.introduction(Role::Source, pool.count());
        let (inputs_sender, inputs) = bounded(INPUTS_MAX);
        let neighbours = common.neighbours(shared, &inputs_sender);
        let (reports, delivery) = ReportQueue::start(common.reports)?;
        let muster = Muster { meter: Meter::default(), placer: common.placer };
        let workers = Workers::source(storage, common.tuning.io_threads, &pool, &inputs_sender, &muster)?;
        let (logger, found) = Logger::start(log, inputs_sender.clone(), &muster);
        let of_scan = muster.clone();
        let (scanned, scan_queue) = bounded(4);
        threads::start("haul-scan", move || run_scan(scan, &scanned, &of_scan))?;
        let machine = SourceMachine {
            source: Source::new(source::Config {
                object_bytes: common.tuning.object_bytes,
                bundle_bytes_max: common.tuning.bundle_bytes_max.min(u64::from(common.tuning.object_bytes)),
                slots: common.tuning.slots,
                slots_least: common.tuning.slots_least(),
                hands: common.tuning.io_threads as u32,
                hands_max: common.tuning.io_threads_max as u32,
                policy: common.tuning.policy,
                hangs_after_nanos: nanos(common.tuning.hangs_after),
                spill_bytes_max,
                files_open_max: haul_storage::local::files_open_max(),
                roots: common.roots,
                report_done: common.tuning.report_done,
                planted: Planted::default(),
            }),
            log: found,
        };
        let master = Master {
            machine,
            link: Link::new(Planted::default()),
            introduction,
            connector: start_connector(common.connector, inputs_sender.clone())?,
            workers,
            logger: Some(logger),
            neighbours,
            profiler: Profiler::new(muster.meter.clone(), &pool),
            pool,
            muster,
            scan: scan_queue,
            inputs,
            inputs_sender: inputs_sender.clone(),
            reports,
            tuning: common.tuning,
        };
        launch("haul-source", master, inputs_sender, delivery)
    }
}

impl SinkEnd {
    /// Starts its threads.
    pub fn start(self) -> Result<Running, Error> {
        let SinkEnd { mut common, storage, shared, recursive } = self;
        let pool = common.pool(common.tuning.slots_far)?;
        let introduction = common.introduction(Role::Sink, pool.count());
        let (inputs_sender, inputs) = bounded(INPUTS_MAX);
        let neighbours = common.neighbours(shared, &inputs_sender);
        let (reports, delivery) = ReportQueue::start(common.reports)?;
        let (syncs_each, lies_apart) = (storage.syncs_each(), storage.lies_apart());
        let muster = Muster { meter: Meter::default(), placer: common.placer };
        let workers = Workers::sink(storage, common.tuning.io_threads, &pool, &inputs_sender, &muster)?;
        let machine = SinkMachine(Sink::new(sink::Config {
            slots: pool.count(),
            slots_near: common.tuning.slots.min(pool.count()),
            slots_least: common.tuning.slots_least(),
            hands: common.tuning.io_threads as u32,
            hands_max: common.tuning.io_threads_max as u32,
            policy: common.tuning.policy,
            hangs_after_nanos: nanos(common.tuning.hangs_after),
            slot_bytes: common.tuning.object_bytes,
            syncs_each,
            lies_apart,
            errand_threads_max: u32::MAX,
            roots: common.roots,
            recursive,
            report_done: common.tuning.report_done,
            planted: Planted::default(),
        }));
        let master = Master {
            machine,
            link: Link::new(Planted::default()),
            introduction,
            connector: start_connector(common.connector, inputs_sender.clone())?,
            workers,
            logger: None,
            neighbours,
            profiler: Profiler::new(muster.meter.clone(), &pool),
            pool,
            muster,
            scan: never(),
            inputs,
            inputs_sender: inputs_sender.clone(),
            reports,
            tuning: common.tuning,
        };
        launch("haul-sink", master, inputs_sender, delivery)
    }
}

fn nanos(duration: Option<Duration>) -> Option<u64> {
    duration.map(|duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

fn launch<M: Machine + Send + 'static>(
    name: &str,
    master: Master<M>,
    inputs: Inputs,
    delivery: JoinHandle<()>,
) -> Result<Running, Error> {
    let (ends, ended) = bounded(0);
    let run = move || {
        let ends: crossbeam_channel::Sender<()> = ends;
        let _seat = master.muster.placer.seat(ThreadKind::Master);
        let Ended { outcome, error, profiles, log, hanging, untold } = master.run();
        drop(ends);
        // The session is over, however long it takes until the last of it can be told.
        let _ = delivery.join();
        Summary { outcome, error, profiles, log, hanging, untold }
    };
    let thread = threads::start(name, run)?;
    Ok(Running { inputs, thread, ended })
}

/// Feeds the master with what the scan finds; stops when nobody takes it any more.
fn run_scan(mut scan: Box<dyn Scan>, out: &crossbeam_channel::Sender<Vec<Event>>, muster: &Muster) {
    let _there = muster.join(ThreadKind::Scan);
    let mut found = Vec::new();
    let mut more = || {
        let mut scanning = haul_meter::at(Stage::Scan);
        let more = scan.next(&mut found);
        scanning.count(found.len() as u64);
        // The next ones are as many.
        let next = Vec::with_capacity(found.len());
        more.then(|| std::mem::replace(&mut found, next))
    };
    while let Some(found) = more() {
        let mut events = Vec::new();
        let mut items = Vec::with_capacity(found.len());
        for scanned in found {
            match scanned {
                Scanned::Item(item) => items.push(item),
                Scanned::Error { path, failure } => {
                    if !items.is_empty() {
                        events.push(Event::Scanned(std::mem::take(&mut items)));
                    }
                    events.push(Event::ScanFailed { path: path.into(), failure });
                }
            }
        }
        if !items.is_empty() {
            events.push(Event::Scanned(items));
        }
        if out.send(events).is_err() {
            return;
        }
    }
    let _ = out.send(vec![Event::ScanEnded]);
}

struct SourceMachine {
    source: Source,
    log: Box<dyn LogView + Send>,
}

impl Machine for SourceMachine {
    const ROLE: Role = Role::Source;

    fn on_event(&mut self, event: Event, now_nanos: u64) {
        self.source.on_event(event, &mut *self.log, now_nanos);
    }

    fn next_action(&mut self) -> Option<Action> {
        self.source.next_action()
    }

    fn said(&self) -> Vec<Said> {
        self.source.said().collect()
    }

    fn wants_scan(&self) -> bool {
        self.source.wants_scan()
    }

    fn deadline_nanos(&self) -> Option<u64> {
        None
    }

    fn stats(&self) -> Stats {
        // What waits for the transport, for a token bucket say, has not left yet.
        let stats = *self.source.stats();
        // What was lent may be refused before this end hears that it has left.
        let (objects, bytes) = self.source.sending();
        let bytes_sent = stats.bytes_sent.saturating_sub(bytes);
        Stats { bytes_sent, objects_sent: stats.objects_sent.saturating_sub(objects), ..stats }
    }

    fn totals_are_final(&self) -> bool {
        self.source.totals_are_final()
    }

    fn waiting(&self) -> Option<Waiting> {
        self.source.waiting()
    }

    fn slots_used(&self) -> u32 {
        self.source.slots_used()
    }

    fn awaits_payload(&self) -> bool {
        false
    }
}

struct SinkMachine(Sink);

impl Machine for SinkMachine {
    const ROLE: Role = Role::Sink;

    fn on_event(&mut self, event: Event, now_nanos: u64) {
        self.0.on_event(event, now_nanos);
    }

    fn next_action(&mut self) -> Option<Action> {
        self.0.next_action()
    }

    fn said(&self) -> Vec<Said> {
        self.0.said().collect()
    }

    fn wants_scan(&self) -> bool {
        false
    }

    fn deadline_nanos(&self) -> Option<u64> {
        self.0.deadline_nanos()
    }

    fn stats(&self) -> Stats {
        *self.0.stats()
    }

    fn totals_are_final(&self) -> bool {
        self.0.totals_are_final()
    }

    fn waiting(&self) -> Option<Waiting> {
        self.0.waiting()
    }

    fn slots_used(&self) -> u32 {
        self.0.slots_used()
    }

    fn awaits_payload(&self) -> bool {
        self.0.awaits_payload()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_other_end_says_of_the_same_failure_is_told() {
        let about = |error: Option<Error>| error.map(|error| error.about);
        let refused = Error::new(Code::SystemRefused, "starting a thread");
        let heard = Error::from(refused.failure);
        let told = with_about(Some(heard.clone()), Some(refused.clone()));
        assert_eq!(about(told).as_deref(), Some("starting a thread"));
        let own = Error::new(Code::SystemRefused, "another thread");
        assert_eq!(about(with_about(Some(own), Some(refused.clone()))).as_deref(), Some("another thread"));
        let lost = Error::from(Failure::new(Code::ConnectionLost));
        assert_eq!(about(with_about(Some(lost), Some(refused.clone()))).as_deref(), Some(""));
        assert_eq!(about(with_about(None, Some(refused))), None, "it ended well");
        assert_eq!(about(with_about(Some(heard), None)).as_deref(), Some(""));
    }
    /// Before they are connected one does not hear why the other ends, and would be waited for.
    #[test]
    fn an_end_that_cannot_hear_of_an_interrupt_is_stopped_at_once() {
        let summary = |failure: Failure| Summary {
            outcome: Outcome { failure: Some(failure), stats: Stats::default() },
            error: Some(failure.into()),
            profiles: Profiles::default(),
            log: None,
            hanging: 0,
            untold: true,
        };
        let running = |end: Box<dyn FnOnce(Queue<Input>) -> Failure + Send>| {
            let (inputs, queue) = bounded(8);
            let (ends, ended) = bounded(0);
            let run = move || {
                let failure = end(queue);
                drop::<crossbeam_channel::Sender<()>>(ends);
                summary(failure)
            };
            Running { inputs, thread: threads::start("end", run).unwrap(), ended }
        };
        let (interrupted, began) = (Failure::new(Code::Interrupted), std::time::Instant::now());
        let source = running(Box::new(move |_| interrupted));
        let sink = running(Box::new(|queue| match queue.recv_timeout(Duration::from_secs(60)) {
            Ok(Input::Stop(failure)) => failure,
            other => panic!("it is not stopped: {}", other.is_ok()),
        }));
        let (_, sink) = Running::wait_for_both(source, sink);
        assert_eq!(sink.outcome.failure, Some(interrupted));
        assert!(began.elapsed() < OTHER_END_MAX, "{:?}", began.elapsed());
    }
}
