//! I/O threads: they take operations from a queue and hand them to storage.
//!
//! One queue a lane (see `model::op::Lane`): names in order on one thread, contents on several, syncs on their own, so
//! that a sync that takes long holds up neither.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver as Queue, Sender as QueueSender, unbounded};
use haul_buffers::Pool;
use haul_model::BlockId;
use haul_model::op::{Lane, SinkOp, SourceOp};
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
        let block = |op: &SourceOp| match op {
            SourceOp::ReadObject { block, .. } => Some(*block),
            _ => None,
        };
        let crew = Crew::new("haul-read", count, Work { run: Arc::new(run), block }, &aborted, pool, inputs);
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
        let block = |op: &SinkOp| match op {
            SinkOp::WriteObject { block, .. } => Some(*block),
            _ => None,
        };
        let crew = |name, count| {
            let work = Work { run: Arc::clone(&run), block };
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

    /// The thread that is at this block is taken for hung: another one does what is queued in its place.
    pub(crate) fn replace(&mut self, block: BlockId) {
        if let Some(crew) = &mut self.source {
            crew.replace(block);
        }
        if let Some([_, data, _]) = &mut self.sink {
            data.replace(block);
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
    /// The block that an operation is about, if somebody may stop waiting for it.
    block: fn(&O) -> Option<BlockId>,
}

impl<O> Clone for Work<O> {
    fn clone(&self) -> Self {
        Work { run: Arc::clone(&self.run), block: self.block }
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

/// No block has this number.
const IDLE: u64 = u64::MAX;

struct Thread {
    handle: JoinHandle<()>,
    /// The number of the block that it is at, or [`IDLE`].
    block: Arc<AtomicU64>,
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

    fn replace(&mut self, block: BlockId) {
        let at_it = |thread: &Thread| thread.block.load(Ordering::Acquire) == block.0;
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
        let (block, replaced) = (Arc::new(AtomicU64::new(IDLE)), Arc::new(AtomicBool::new(false)));
        let (at, goes) = (Arc::clone(&block), Arc::clone(&replaced));
        let run = move || {
            while let Ok(op) = operations.recv() {
                if aborted.load(Ordering::Acquire) {
                    continue;
                }
                let about = (work.block)(&op);
                at.store(about.map_or(IDLE, |block| block.0), Ordering::Release);
                let event = (work.run)(op, &pool);
                at.store(IDLE, Ordering::Release);
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
        Thread { handle, block, replaced }
    }

    /// No more operations come.
    fn dismiss(self) -> Vec<JoinHandle<()>> {
        self.threads.into_iter().map(|thread| thread.handle).collect()
    }
}
