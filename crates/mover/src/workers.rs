//! I/O threads: they take operations from a queue and hand them to storage.
//!
//! One queue a lane (see `model::op::Lane`): names in order on one thread, contents on several, syncs on their own, so
//! that a sync that takes long holds up neither.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver as Queue, Sender as QueueSender, unbounded};
use haul_buffers::Pool;
use haul_model::op::{Lane, MembersStep, SinkOp, SourceOp};
use haul_model::{BlockId, Target};
use haul_protocol::Event;
use haul_storage::{SinkStorage, SourceStorage};

use crate::master::{Input, Inputs};

/// The queues of one end's I/O threads.
pub(crate) struct Workers {
    source: Option<Crew<SourceOp>>,
    sink: Option<[Crew<SinkOp>; 3]>,
    aborted: Arc<AtomicBool>,
}

/// Threads that make things durable: two groups may be under way, and a large one is synced by storage in parallel
/// within one operation. The others keep sealing and discarding apart from them.
const SYNC_THREADS: usize = 4;
/// How long threads may take to end what they are at, once nothing more is to be done.
const LINGER_MAX: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl Workers {
    /// For a source.
    pub(crate) fn source(
        storage: Arc<dyn SourceStorage>,
        count: usize,
        pool: &Arc<Pool>,
        inputs: &Inputs,
    ) -> Self {
        let aborted = Arc::new(AtomicBool::new(false));
        let run = move |op, pool: &Pool| storage.run(op, pool).map(Event::SourceDone);
        let about = |op: &SourceOp| match op {
            SourceOp::ReadObject { block, .. }
            | SourceOp::ReadMembers { block, .. }
            | SourceOp::Spill { block, .. }
            | SourceOp::Unspill { block, .. } => Some((*block, None)),
            _ => None,
        };
        let crew = Crew::new("haul-read", count, Work { run: Arc::new(run), about }, &aborted, pool, inputs);
        Workers { source: Some(crew), sink: None, aborted }
    }

    /// For a sink.
    pub(crate) fn sink(
        storage: Arc<dyn SinkStorage>,
        count: usize,
        pool: &Arc<Pool>,
        inputs: &Inputs,
    ) -> Self {
        let aborted = Arc::new(AtomicBool::new(false));
        let run: Arc<Run<SinkOp>> =
            Arc::new(move |op, pool: &Pool| storage.run(op, pool).map(Event::SinkDone));
        let about = |op: &SinkOp| match op {
            SinkOp::WriteObject { block, .. } => Some((*block, None)),
            SinkOp::WriteMembers { block, step: MembersStep::Fill { target, .. }, .. } => {
                Some((*block, Some(*target)))
            }
            _ => None,
        };
        let crew = |name, count| {
            let work = Work { run: Arc::clone(&run), about };
            Crew::new(name, count, work, &aborted, pool, inputs)
        };
        let crews = [crew("haul-names", 1), crew("haul-write", count), crew("haul-sync", SYNC_THREADS)];
        Workers { source: None, sink: Some(crews), aborted }
    }

    /// Queues an operation of the source.
    pub(crate) fn run_source(&self, op: SourceOp) {
        if let Some(crew) = &self.source {
            let _ = crew.queue.send(op);
        }
    }

    /// Queues an operation of the sink on its lane.
    pub(crate) fn run_sink(&self, op: SinkOp) {
        if let Some([ordered, data, sync]) = &self.sink {
            let crew = match op.lane() {
                Lane::Ordered => ordered,
                Lane::Data => data,
                Lane::Sync => sync,
            };
            let _ = crew.queue.send(op);
        }
    }

    /// So many threads for contents.
    pub(crate) fn grow(&mut self, count: usize) {
        if let Some(crew) = &mut self.source {
            crew.grow(count);
        }
        if let Some([_, data, _]) = &mut self.sink {
            data.grow(count);
        }
    }

    /// The thread that is at this is taken for hung: another one does what is queued in its place.
    pub(crate) fn replace(&mut self, about: About) {
        if let Some(crew) = &mut self.source {
            crew.replace(about);
        }
        if let Some([_, data, _]) = &mut self.sink {
            data.replace(about);
        }
    }

    /// Operations that have not begun are dropped: the session has been stopped.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
    }

    /// No more operations; waits until those under way have ended, but for threads that hang.
    pub(crate) fn finish(self) {
        let mut threads: Vec<JoinHandle<()>> = self.source.map(Crew::dismiss).unwrap_or_default();
        threads.extend(self.sink.into_iter().flatten().flat_map(Crew::dismiss));
        let deadline = Instant::now() + LINGER_MAX;
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(LOOK_AGAIN);
        }
        threads.into_iter().filter(JoinHandle::is_finished).for_each(|thread| drop(thread.join()));
    }
}

type Run<O> = dyn Fn(O, &Pool) -> Option<Event> + Send + Sync;

/// What the threads of a crew do.
struct Work<O> {
    run: Arc<Run<O>>,
    /// What an operation is about, if somebody may stop waiting for it.
    about: fn(&O) -> Option<About>,
}

/// A block; of a bundle its members on one target.
type About = (BlockId, Option<Target>);

/// What it guards is one value.
fn lock(at: &Mutex<Option<About>>) -> MutexGuard<'_, Option<About>> {
    at.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<O> Clone for Work<O> {
    fn clone(&self) -> Self {
        Work { run: Arc::clone(&self.run), about: self.about }
    }
}

/// The threads of one queue.
struct Crew<O> {
    name: &'static str,
    queue: QueueSender<O>,
    operations: Queue<O>,
    work: Work<O>,
    aborted: Arc<AtomicBool>,
    pool: Arc<Pool>,
    inputs: Inputs,
    threads: Vec<Thread>,
}

struct Thread {
    handle: JoinHandle<()>,
    /// What it is at.
    at: Arc<Mutex<Option<About>>>,
    /// Another one has its place: it ends after what it is at.
    replaced: Arc<AtomicBool>,
}

impl<O: Send + 'static> Crew<O> {
    fn new(
        name: &'static str,
        count: usize,
        work: Work<O>,
        aborted: &Arc<AtomicBool>,
        pool: &Arc<Pool>,
        inputs: &Inputs,
    ) -> Self {
        let (queue, operations) = unbounded();
        let (aborted, pool, inputs) = (Arc::clone(aborted), Arc::clone(pool), inputs.clone());
        let mut crew = Crew { name, queue, operations, work, aborted, pool, inputs, threads: Vec::new() };
        crew.grow(count);
        crew
    }

    fn grow(&mut self, count: usize) {
        while self.threads.len() < count {
            let thread = self.start(self.threads.len());
            self.threads.push(thread);
        }
    }

    fn replace(&mut self, about: About) {
        let at_it = |thread: &Thread| *lock(&thread.at) == Some(about);
        if let Some(number) = self.threads.iter().position(at_it) {
            // It ends by itself, if ever: nobody waits for it.
            let new = self.start(number);
            std::mem::replace(&mut self.threads[number], new).replaced.store(true, Ordering::Release);
        }
    }

    fn start(&self, number: usize) -> Thread {
        let (operations, work, aborted) =
            (self.operations.clone(), self.work.clone(), Arc::clone(&self.aborted));
        let (pool, inputs) = (Arc::clone(&self.pool), self.inputs.clone());
        let (at, replaced) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
        let (now, goes) = (Arc::clone(&at), Arc::clone(&replaced));
        let run = move || {
            while let Ok(op) = operations.recv() {
                if aborted.load(Ordering::Acquire) {
                    continue;
                }
                *lock(&now) = (work.about)(&op);
                let event = (work.run)(op, &pool);
                *lock(&now) = None;
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
        let name = format!("{}-{number}", self.name);
        let handle = std::thread::Builder::new().name(name).spawn(run).expect("a thread can be started");
        Thread { handle, at, replaced }
    }

    /// No more operations come.
    fn dismiss(self) -> Vec<JoinHandle<()>> {
        self.threads.into_iter().map(|thread| thread.handle).collect()
    }
}
