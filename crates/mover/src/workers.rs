//! I/O threads: they take operations from a queue and hand them to storage.
//!
//! One queue a lane (see `model::op::Lane`): names in order on one thread, contents on several, and errands (files that are
//! made, sealed, synced, named, removed; at the source what is asked of a file beside its contents) on threads of their own,
//! so that one that takes long holds up neither. A thread whose work the master has taken for hung gets a successor, and
//! nobody waits for its end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver as Queue, Sender as QueueSender, unbounded};
use haul_buffers::Pool;
use haul_meter::At;
use haul_model::op::{Lane, MembersStep, SinkOp, SourceDone, SourceOp};
use haul_model::profile::Stage;
use haul_model::{BlockId, EntryId, Hash, Target};
use haul_protocol::Event;
use haul_storage::{SinkStorage, SourceStorage};
use haul_topology::ThreadKind;

use crate::master::{Input, Inputs};
use crate::muster::Muster;
use crate::{Error, threads};

/// The queues of one end's I/O threads.
pub(crate) struct Workers {
    source: Option<SourceCrews>,
    sink: Option<SinkCrews>,
    aborted: Arc<AtomicBool>,
    /// What it writes to, if it does.
    sink_storage: Option<Arc<dyn SinkStorage>>,
}

struct SourceCrews {
    reads: Crew<SourceOp, About>,
    /// Whatever else is asked of a file: what hangs there holds up no read.
    looks: Crew<SourceOp, EntryId>,
    /// Files are closed, which nobody waits for.
    closes: Crew<SourceOp, EntryId>,
}

/// Threads that ask about files, beside those that take long.
const LOOK_THREADS: usize = 16;
const CLOSE_THREADS: usize = 2;

struct SinkCrews {
    ordered: Crew<SinkOp, About>,
    data: Crew<SinkOp, About>,
    lay: Crew<Errand, u64>,
    sync: Crew<Errand, u64>,
    slow: Crew<Errand, u64>,
}

impl SinkCrews {
    fn of_errands(&mut self, lane: Lane) -> &mut Crew<Errand, u64> {
        match lane {
            Lane::Lay => &mut self.lay,
            Lane::Slow => &mut self.slow,
            Lane::Ordered | Lane::Data | Lane::Sync => &mut self.sync,
        }
    }
}

/// An operation of the sink, and the number by which its master knows it.
struct Errand {
    number: u64,
    op: SinkOp,
}

/// How long threads may take to end what they are at, once nothing more is to be done. What storage has not answered by then
/// the kernel holds; the process ends when it lets go.
const LINGER_MAX: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl Workers {
    /// For a source.
    pub(crate) fn source(
        storage: Arc<dyn SourceStorage>,
        count: usize,
        pool: &Arc<Pool>,
        inputs: &Inputs,
        muster: &Muster,
    ) -> Result<Self, Error> {
        let aborted = Arc::new(AtomicBool::new(false));
        let run: Arc<Run<SourceOp>> = Arc::new(move |op, pool: &Pool| {
            // They are many, and nothing is waited for.
            let at = (!matches!(op, SourceOp::Forget { .. })).then(|| at_source(&op));
            let object_bytes = match op {
                SourceOp::ReadObject { length, .. } => length,
                _ => 0,
            };
            let done = storage.run(op, pool);
            drop(at.map(|at| at.bytes(done.as_ref().map_or(0, |done| bytes_read(object_bytes, done)))));
            done.map(Event::SourceDone)
        });
        let about = |op: &SourceOp| match op {
            SourceOp::ReadObject { block, .. }
            | SourceOp::ReadMembers { block, .. }
            | SourceOp::Spill { block, .. }
            | SourceOp::Unspill { block, .. } => Some((*block, None)),
            _ => None,
        };
        let work = Work { run: Arc::clone(&run), about, kind: ThreadKind::Io };
        let reads = Crew::new("haul-read", count, work, &aborted, pool, inputs, muster)?;
        // Their threads start with the first question.
        let others = |name| {
            let about = |op: &SourceOp| match op {
                SourceOp::Confirm { entry } | SourceOp::Restat { entry } => Some(entry.id),
                _ => None,
            };
            let work = Work { run: Arc::clone(&run), about, kind: ThreadKind::Errand };
            Crew::new(name, 0, work, &aborted, pool, inputs, muster)
        };
        let crews = SourceCrews { reads, looks: others("haul-ask")?, closes: others("haul-close")? };
        Ok(Workers { source: Some(crews), sink: None, aborted, sink_storage: None })
    }

    /// For a sink.
    pub(crate) fn sink(
        storage: Arc<dyn SinkStorage>,
        count: usize,
        pool: &Arc<Pool>,
        inputs: &Inputs,
        muster: &Muster,
    ) -> Result<Self, Error> {
        let aborted = Arc::new(AtomicBool::new(false));
        let (of_errands, sink_storage) = (Arc::clone(&storage), Some(Arc::clone(&storage)));
        let run: Arc<Run<SinkOp>> = Arc::new(move |op, pool: &Pool| {
            let _at = (!matches!(op, SinkOp::Forget { .. })).then(|| at_sink(&op));
            storage.run(op, pool).map(Event::SinkDone)
        });
        let about = |op: &SinkOp| match op {
            SinkOp::WriteObject { block, .. }
            | SinkOp::WriteMembers { block, step: MembersStep::Make, .. } => Some((*block, None)),
            SinkOp::WriteMembers { block, step: MembersStep::Fill { target, .. }, .. } => {
                Some((*block, Some(*target)))
            }
            _ => None,
        };
        let crew = |name, count, kind| {
            let work = Work { run: Arc::clone(&run), about, kind };
            Crew::new(name, count, work, &aborted, pool, inputs, muster)
        };
        let run: Arc<Run<Errand>> = Arc::new(move |Errand { number, op }, pool: &Pool| {
            let _at = at_sink(&op);
            of_errands.run(op, pool).map(|done| Event::ErrandDone { number, done })
        });
        // Their threads start with their first errand.
        let errands = |name| {
            let about = |errand: &Errand| Some(errand.number);
            let work = Work { run: Arc::clone(&run), about, kind: ThreadKind::Errand };
            Crew::new(name, 0, work, &aborted, pool, inputs, muster)
        };
        let crews = SinkCrews {
            ordered: crew("haul-names", 1, ThreadKind::Errand)?,
            data: crew("haul-write", count, ThreadKind::Io)?,
            lay: errands("haul-lay")?,
            sync: errands("haul-sync")?,
            slow: errands("haul-slow")?,
        };
        Ok(Workers { source: None, sink: Some(crews), aborted, sink_storage })
    }

    /// Queues an operation of the source. Fails where there is no thread for it, and none is to be had.
    pub(crate) fn run_source(&mut self, op: SourceOp) -> Result<(), Error> {
        let Some(crews) = &mut self.source else { return Ok(()) };
        let (crew, threads) = match op {
            SourceOp::Confirm { .. } | SourceOp::Restat { .. } => (&mut crews.looks, LOOK_THREADS),
            SourceOp::Release { .. } | SourceOp::Forget { .. } => (&mut crews.closes, CLOSE_THREADS),
            SourceOp::ReadObject { .. }
            | SourceOp::ReadMembers { .. }
            | SourceOp::Spill { .. }
            | SourceOp::Unspill { .. } => {
                crews.reads.send(op);
                return Ok(());
            }
        };
        crew.send(op);
        crew.grow(threads.min(crew.pending.load(Ordering::Acquire)))
    }

    /// Queues an operation of the sink on its lane.
    pub(crate) fn run_sink(&self, op: SinkOp) {
        if let Some(crews) = &self.sink {
            let crew = if op.lane() == Lane::Ordered { &crews.ordered } else { &crews.data };
            crew.send(op);
        }
    }

    /// Queues an errand of the sink. Its lane has up to so many threads. Fails where it has none, and none is to be had.
    pub(crate) fn run_errand(
        &mut self,
        number: u64,
        lane: Lane,
        threads: usize,
        op: SinkOp,
    ) -> Result<(), Error> {
        let Some(crews) = &mut self.sink else { return Ok(()) };
        let crew = crews.of_errands(lane);
        crew.send(Errand { number, op });
        // No more than there are errands at a time.
        crew.grow(threads.min(crew.pending.load(Ordering::Acquire)))
    }

    /// So many threads for contents, as far as they are to be had.
    pub(crate) fn grow(&mut self, count: usize) {
        // It only fails where there is none yet.
        if let Some(crews) = &mut self.source {
            let _ = crews.reads.grow(count);
        }
        if let Some(crews) = &mut self.sink {
            let _ = crews.data.grow(count);
        }
    }

    /// The thread that is at this is taken for hung: another one does what is queued in its place.
    pub(crate) fn replace(&mut self, about: About) {
        if let Some(crews) = &mut self.source {
            crews.reads.replace(about);
        }
        if let Some(crews) = &mut self.sink {
            crews.data.replace(about);
        }
    }

    /// The thread that is on this errand takes long: another one takes its place.
    pub(crate) fn relieve(&mut self, lane: Lane, number: u64) {
        if let Some(crews) = &mut self.sink {
            crews.of_errands(lane).replace(number);
        }
    }

    /// The same of what was asked about a file of the source.
    pub(crate) fn relieve_look(&mut self, id: EntryId) {
        if let Some(crews) = &mut self.source {
            crews.looks.replace(id);
        }
    }

    /// Operations that have not begun are dropped: the session has been stopped.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.sink_storage.iter().for_each(|storage| storage.give_up());
    }

    /// No more operations; waits until those under way have ended, but not for ever. How many threads are left, those with a
    /// successor included.
    pub(crate) fn finish(self) -> usize {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        let mut hanging: Vec<JoinHandle<()>> = Vec::new();
        let mut take = |(own, replaced): Dismissed| {
            threads.extend(own);
            hanging.extend(replaced);
        };
        if let Some(SourceCrews { reads, looks, closes }) = self.source {
            take(reads.dismiss());
            [looks, closes].into_iter().for_each(|crew| take(crew.dismiss()));
        }
        if let Some(SinkCrews { ordered, data, lay, sync, slow }) = self.sink {
            [ordered, data].into_iter().for_each(|crew| take(crew.dismiss()));
            [lay, sync, slow].into_iter().for_each(|crew| take(crew.dismiss()));
        }
        let deadline = Instant::now() + LINGER_MAX;
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(LOOK_AGAIN);
        }
        threads.append(&mut hanging);
        let (ended, left): (Vec<_>, Vec<_>) = threads.into_iter().partition(JoinHandle::is_finished);
        ended.into_iter().for_each(|thread| drop(thread.join()));
        left.len()
    }
}

/// What a thread is at with this, but for what storage says itself.
fn at_source(op: &SourceOp) -> At {
    match op {
        SourceOp::Spill { length, .. } | SourceOp::Unspill { length, .. } => {
            haul_meter::at(Stage::Spill).bytes(u64::from(*length))
        }
        SourceOp::ReadMembers { members, .. } => {
            let mut at = haul_meter::at(Stage::Read);
            at.count(members.len() as u64);
            at
        }
        SourceOp::ReadObject { .. }
        | SourceOp::Confirm { .. }
        | SourceOp::Restat { .. }
        | SourceOp::Release { .. }
        | SourceOp::Forget { .. } => haul_meter::at(Stage::Read),
    }
}

/// Contents that were read here, of an object of this length or of members: neither what cannot be, nor what is lent.
fn bytes_read(object_bytes: u32, done: &SourceDone) -> u64 {
    let is_lent = |hash: &Option<Hash>| *hash == Some(Hash::LENT);
    match done {
        SourceDone::Object { result: Ok(hash), .. } if !is_lent(hash) => object_bytes.into(),
        SourceDone::Members { length, results, .. }
            if !results.iter().flatten().any(|member| is_lent(&member.hash)) =>
        {
            (*length).into()
        }
        _ => 0,
    }
}

/// The same at the sink.
fn at_sink(op: &SinkOp) -> At {
    match op {
        SinkOp::WriteObject { length, .. } => haul_meter::at(Stage::Write).bytes(u64::from(*length)),
        SinkOp::WriteMembers { members, .. } => {
            let mut at = haul_meter::at(Stage::Create);
            at.count(members.len() as u64);
            at
        }
        SinkOp::Lay { .. } => haul_meter::at(Stage::Create),
        SinkOp::Prepare { .. }
        | SinkOp::Seal { .. }
        | SinkOp::Publish { .. }
        | SinkOp::Discard { .. }
        | SinkOp::Forget { .. }
        | SinkOp::FinishDirectories { .. } => haul_meter::at(Stage::Names),
        SinkOp::Sync { .. } | SinkOp::SyncNames { .. } => haul_meter::at(Stage::Sync),
    }
}

type Run<O> = dyn Fn(O, &Pool) -> Option<Event> + Send + Sync;

/// What the threads of a crew do. `K` tells operations apart that somebody may stop waiting for.
struct Work<O, K> {
    run: Arc<Run<O>>,
    about: fn(&O) -> Option<K>,
    kind: ThreadKind,
}

/// A block; of a bundle its members on one target.
type About = (BlockId, Option<Target>);

/// What it guards is one value.
fn lock<K>(at: &Mutex<Option<K>>) -> MutexGuard<'_, Option<K>> {
    at.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<O, K> Clone for Work<O, K> {
    fn clone(&self) -> Self {
        Work { run: Arc::clone(&self.run), about: self.about, kind: self.kind }
    }
}

/// The threads of one queue.
struct Crew<O, K> {
    name: &'static str,
    queue: QueueSender<O>,
    operations: Queue<O>,
    work: Work<O, K>,
    aborted: Arc<AtomicBool>,
    pool: Arc<Pool>,
    inputs: Inputs,
    muster: Muster,
    threads: Vec<Thread<K>>,
    /// Operations that have not ended.
    pending: Arc<AtomicUsize>,
    /// Those that have a successor.
    replaced: Vec<JoinHandle<()>>,
}

/// Threads of a crew that is no longer needed, and those of them that were replaced.
type Dismissed = (Vec<JoinHandle<()>>, Vec<JoinHandle<()>>);

struct Thread<K> {
    handle: JoinHandle<()>,
    /// What it is at.
    at: Arc<Mutex<Option<K>>>,
    /// Another one has its place: it ends after what it is at.
    replaced: Arc<AtomicBool>,
}

impl<O: Send + 'static, K: Copy + PartialEq + Send + 'static> Crew<O, K> {
    fn new(
        name: &'static str,
        count: usize,
        work: Work<O, K>,
        aborted: &Arc<AtomicBool>,
        pool: &Arc<Pool>,
        inputs: &Inputs,
        muster: &Muster,
    ) -> Result<Self, Error> {
        let (queue, operations) = unbounded();
        let (aborted, pool, inputs) = (Arc::clone(aborted), Arc::clone(pool), inputs.clone());
        let (threads, replaced, pending) = (Vec::new(), Vec::new(), Arc::default());
        let muster = muster.clone();
        let mut crew =
            Crew { name, queue, operations, work, aborted, pool, inputs, muster, threads, pending, replaced };
        crew.grow(count)?;
        Ok(crew)
    }

    /// Up to so many threads; fewer do the same, later. Fails where there is none at all.
    fn grow(&mut self, count: usize) -> Result<(), Error> {
        while self.threads.len() < count {
            match self.start(self.threads.len()) {
                Ok(thread) => self.threads.push(thread),
                Err(error) if self.threads.is_empty() => return Err(error),
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn send(&self, op: O) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        // Only fails when the crew is gone.
        let _ = self.queue.send(op);
    }

    fn replace(&mut self, about: K) {
        let at_it = |thread: &Thread<K>| *lock(&thread.at) == Some(about);
        if let Some(place) = self.threads.iter().position(at_it)
            && let Ok(new) = self.start(place)
        {
            // It ends by itself, if ever.
            let Thread { handle, replaced, .. } = std::mem::replace(&mut self.threads[place], new);
            replaced.store(true, Ordering::Release);
            self.replaced.retain(|thread| !thread.is_finished());
            self.replaced.push(handle);
        }
    }

    fn start(&self, number: usize) -> Result<Thread<K>, Error> {
        let (operations, work, aborted) =
            (self.operations.clone(), self.work.clone(), Arc::clone(&self.aborted));
        let (pool, inputs) = (Arc::clone(&self.pool), self.inputs.clone());
        let (at, replaced) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
        let (shown, goes) = (Arc::clone(&at), Arc::clone(&replaced));
        let (pending, muster) = (Arc::clone(&self.pending), self.muster.clone());
        let run = move || {
            let _there = muster.join(work.kind);
            while let Ok(op) = operations.recv() {
                if aborted.load(Ordering::Acquire) {
                    pending.fetch_sub(1, Ordering::AcqRel);
                    continue;
                }
                *lock(&shown) = (work.about)(&op);
                let event = (work.run)(op, &pool);
                *lock(&shown) = None;
                pending.fetch_sub(1, Ordering::AcqRel);
                if let Some(event) = event
                    && inputs.send(Input::Event(event)).is_err()
                {
                    return;
                }
                if goes.load(Ordering::Acquire) {
                    return;
                }
            }
        };
        let handle = threads::start(format!("{}-{number}", self.name), run)?;
        Ok(Thread { handle, at, replaced })
    }

    /// No more operations come.
    fn dismiss(self) -> Dismissed {
        (self.threads.into_iter().map(|thread| thread.handle).collect(), self.replaced)
    }
}
