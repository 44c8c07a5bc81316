//! I/O threads: they take operations from a queue and hand them to storage.
//!
//! One queue a lane (see `model::op::Lane`): names in order on one thread, contents on several, syncs on their own, so
//! that a sync that takes long holds up neither.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver as Queue, Sender as QueueSender, unbounded};
use haul_buffers::Pool;
use haul_model::op::{Lane, SinkOp, SourceOp};
use haul_protocol::Event;
use haul_storage::{SinkStorage, SourceStorage};

use crate::master::{Input, Inputs};

/// The queues of one end's I/O threads.
pub(crate) struct Workers {
    source: Option<QueueSender<SourceOp>>,
    sink: Option<[QueueSender<SinkOp>; 3]>,
    threads: Vec<JoinHandle<()>>,
    aborted: Arc<AtomicBool>,
}

/// Threads that make things durable: a large group is synced by storage in parallel within one operation, so these
/// only keep sealing and discarding apart from it.
const SYNC_THREADS: usize = 2;

impl Workers {
    /// For a source.
    pub(crate) fn source(
        storage: Arc<dyn SourceStorage>,
        count: usize,
        pool: &Arc<Pool>,
        inputs: &Inputs,
    ) -> Self {
        let (queue, operations) = unbounded();
        let aborted = Arc::new(AtomicBool::new(false));
        let run = guarded(&aborted, move |op, pool: &Pool| storage.run(op, pool).map(Event::SourceDone));
        let threads = start("haul-read", count, &operations, &run, pool, inputs);
        Workers { source: Some(queue), sink: None, threads, aborted }
    }

    /// For a sink.
    pub(crate) fn sink(
        storage: Arc<dyn SinkStorage>,
        count: usize,
        pool: &Arc<Pool>,
        inputs: &Inputs,
    ) -> Self {
        let aborted = Arc::new(AtomicBool::new(false));
        let run = guarded(&aborted, move |op, pool: &Pool| storage.run(op, pool).map(Event::SinkDone));
        let mut threads = Vec::new();
        let mut lane = |name: &str, count| {
            let (queue, operations) = unbounded();
            threads.extend(start(name, count, &operations, &run, pool, inputs));
            queue
        };
        let queues = [lane("haul-names", 1), lane("haul-write", count), lane("haul-sync", SYNC_THREADS)];
        Workers { source: None, sink: Some(queues), threads, aborted }
    }

    /// Queues an operation of the source.
    pub(crate) fn run_source(&self, op: SourceOp) {
        if let Some(queue) = &self.source {
            let _ = queue.send(op);
        }
    }

    /// Queues an operation of the sink on its lane.
    pub(crate) fn run_sink(&self, op: SinkOp) {
        if let Some([ordered, data, sync]) = &self.sink {
            let queue = match op.lane() {
                Lane::Ordered => ordered,
                Lane::Data => data,
                Lane::Sync => sync,
            };
            let _ = queue.send(op);
        }
    }

    /// Operations that have not begun are dropped: the session has been stopped.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
    }

    /// No more operations; waits until those under way have ended.
    pub(crate) fn finish(self) {
        drop((self.source, self.sink));
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

fn guarded<O, F: Fn(O, &Pool) -> Option<Event>>(
    aborted: &Arc<AtomicBool>,
    run: F,
) -> Arc<impl Fn(O, &Pool) -> Option<Event> + use<O, F>> {
    let aborted = aborted.clone();
    Arc::new(move |op, pool: &Pool| if aborted.load(Ordering::Acquire) { None } else { run(op, pool) })
}

fn start<O: Send + 'static>(
    name: &str,
    count: usize,
    operations: &Queue<O>,
    run: &Arc<impl Fn(O, &Pool) -> Option<Event> + Send + Sync + 'static>,
    pool: &Arc<Pool>,
    inputs: &Inputs,
) -> Vec<JoinHandle<()>> {
    let thread = |number: usize| {
        let (operations, run, pool, inputs) = (operations.clone(), run.clone(), pool.clone(), inputs.clone());
        let work = move || {
            while let Ok(op) = operations.recv() {
                if let Some(event) = run(op, &pool)
                    && inputs.send(Input::Event(event)).is_err()
                {
                    return;
                }
            }
        };
        let name = format!("{name}-{number}");
        std::thread::Builder::new().name(name).spawn(work).expect("a thread can be started")
    };
    (0..count).map(thread).collect()
}
