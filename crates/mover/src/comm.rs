//! The comm threads of one connection: frames in, frames out, payloads in or out ([`payload`]).
//!
//! They never wait for storage. Each reports what it finds to the master; the first one that fails reports the loss of
//! the connection. When the master lets a connection go, [`Connection::tear_down`] closes its streams, and the
//! connection is *down* once every thread has ended: only then is no slot in their hands any more.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver as Queue, Sender as QueueSender, bounded, unbounded};
use haul_buffers::Pool;
use haul_model::limits::MESSAGES_WAITING_BYTES_MAX;
use haul_model::profile::Stage;
use haul_protocol::link::Frame;
use haul_topology::ThreadKind;
use haul_transport::{Arrivals, Closer, Receiver, Sender, Stream};
use haul_wire::{FRAME_HEADER_BYTES, FrameHeader, Malformed, Role};

use crate::connection::{Established, put_frame};
use crate::log::CommLog;
use crate::master::{Input, Inputs};
use crate::muster::Muster;
use crate::payload::{self, Carriage, Outgoing};
use crate::pieces::UnderWay;
use crate::{Error, threads};

/// Frames that leave together are written together, up to this many bytes.
const WRITE_BATCH_BYTES: usize = 256 << 10;
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How long threads may take to end once their streams are closed.
const LINGER_MAX: Duration = Duration::from_secs(10);

/// The threads of one connection.
pub(crate) struct Connection {
    pub(crate) epoch: u32,
    pub(crate) frames: QueueSender<Frame>,
    pub(crate) payloads: QueueSender<Outgoing>,
    /// Of the streams that are idle for now: they join the others when it goes.
    nothing: Option<QueueSender<Outgoing>>,
    /// Messages up to this one have been written, or are being written; the other end cannot have received more.
    pub(crate) written: Arc<AtomicU64>,
    closers: Vec<Closer>,
    /// Of its data streams.
    arrivals: Vec<Arrivals>,
    under_way: UnderWay,
    threads: Vec<JoinHandle<()>>,
    writer: JoinHandle<()>,
    ending: Arc<Inputs>,
}

impl Connection {
    /// Starts the threads. Of its data streams no more than `busy` carry payloads: on a path that is cut again and again the first
    /// one is whole the sooner the fewer are on their way with it.
    pub(crate) fn start(
        established: Established,
        (role, busy): (Role, usize),
        pool: &Arc<Pool>,
        log: Option<CommLog>,
        inputs: &Inputs,
        muster: &Muster,
    ) -> Result<Self, Error> {
        let mut closers = Vec::new();
        let started = Self::start_threads(established, (role, busy), pool, log, inputs, muster, &mut closers);
        if started.is_err() {
            closers.iter().for_each(Closer::close);
        }
        started.map(|connection| Connection { closers, ..connection })
    }

    fn start_threads(
        established: Established,
        (role, busy): (Role, usize),
        pool: &Arc<Pool>,
        log: Option<CommLog>,
        inputs: &Inputs,
        muster: &Muster,
        closers: &mut Vec<Closer>,
    ) -> Result<Self, Error> {
        let epoch = established.epoch;
        let ending = Arc::new(inputs.clone());
        let spawn = |name: &str, control, work: Work| spawn(name, (epoch, control), &ending, work);
        let mut threads = Vec::new();
        let shared = established.shared;
        let (frames, frames_out) = unbounded();
        let (payloads, payloads_out) = unbounded::<Outgoing>();
        let (nothing, nothing_out) = unbounded::<Outgoing>();
        let under_way = UnderWay::default();
        let arrivals = established.data.iter().map(Stream::arrivals).collect();

        let (sender, receiver, closer) = established.control.split();
        closers.push(closer);
        let placer = muster.placer.clone();
        let written = Arc::new(AtomicU64::new(established.peer_received));
        let of_writer = Arc::clone(&written);
        let write = move |_: &Inputs| {
            let _seat = placer.seat(ThreadKind::Control);
            write_frames(sender, &frames_out, &of_writer)
        };
        let writer = spawn("haul-ctl-out", true, Box::new(write))?;
        let Muster { meter: of_log, placer } = muster.clone();
        let read = move |inputs: &Inputs| {
            let _seat = placer.seat(ThreadKind::Control);
            let _joined = log.as_ref().map(|_| of_log.join());
            read_frames(receiver, epoch, log.as_ref(), inputs)
        };
        threads.push(spawn("haul-ctl-in", true, Box::new(read))?);

        for (number, stream) in established.data.into_iter().enumerate() {
            let moving = match role {
                Role::Source => Stage::Send,
                Role::Sink => Stage::Receive,
            };
            let carriage =
                Carriage { under_way: under_way.clone(), ..Carriage::new(&stream, moving, epoch, shared) };
            let (sender, receiver, closer) = stream.split();
            closers.push(closer);
            let (pool, muster) = (pool.clone(), muster.clone());
            match role {
                Role::Source => {
                    let payloads = payloads_out.clone();
                    let idle = (number >= busy).then(|| nothing_out.clone());
                    let send = move |inputs: &Inputs| {
                        // The unused half stays open with the other.
                        let _receiver = receiver;
                        let _there = muster.join(ThreadKind::CommOut);
                        // Nothing ever comes.
                        idle.into_iter().for_each(|nothing| drop(nothing.recv()));
                        payload::send_all(sender, &carriage, &payloads, &pool, inputs)
                    };
                    threads.push(spawn(&format!("haul-out-{number}"), false, Box::new(send))?);
                }
                Role::Sink => {
                    let receive = move |inputs: &Inputs| {
                        let _sender = sender;
                        let _there = muster.join(ThreadKind::CommIn);
                        payload::receive_all(receiver, &carriage, &pool, inputs)
                    };
                    threads.push(spawn(&format!("haul-in-{number}"), false, Box::new(receive))?);
                }
            }
        }
        let closers = Vec::new();
        Ok(Connection {
            epoch,
            frames,
            payloads,
            nothing: Some(nothing),
            written,
            closers,
            arrivals,
            under_way,
            threads,
            writer,
            ending,
        })
    }

    /// Something came of it: all streams carry payloads.
    pub(crate) fn brings_something(&mut self) {
        self.nothing = None;
    }

    /// Bytes that have left, or come, of payloads that have not as a whole.
    pub(crate) fn bytes_under_way(&self) -> u64 {
        self.under_way.bytes()
    }

    /// How many bytes have come over its data streams; none where that is not known.
    pub(crate) fn arrived(&self) -> Option<u64> {
        self.arrivals.iter().map(Arrivals::bytes).sum()
    }

    /// Ends the connection. True if every thread of it has ended; else `Input::Down` follows when they have.
    pub(crate) fn tear_down(self) -> bool {
        self.closers.iter().for_each(Closer::close);
        drop((self.frames, self.payloads, self.nothing));
        Arc::into_inner(self.ending).is_some()
    }

    /// Lets the frames that are queued leave, until then, and closes. For the end of a session. How many threads are left, which
    /// wait for storage.
    pub(crate) fn finish(self, deadline: Instant) -> usize {
        drop((self.frames, self.payloads, self.nothing));
        // A peer may take next to nothing of them, for ever.
        while !self.writer.is_finished() && Instant::now() < deadline {
            std::thread::sleep(LOOK_AGAIN);
        }
        self.closers.iter().for_each(Closer::close);
        let threads: Vec<JoinHandle<()>> = self.threads.into_iter().chain([self.writer]).collect();
        let deadline = Instant::now() + LINGER_MAX;
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(LOOK_AGAIN);
        }
        let (ended, left): (Vec<_>, Vec<_>) = threads.into_iter().partition(JoinHandle::is_finished);
        ended.into_iter().for_each(|thread| drop(thread.join()));
        left.len()
    }
}

/// How a comm thread ends: why, if its connection is lost by it.
pub(crate) type Done = Result<(), String>;

/// What one thread does.
type Work = Box<dyn FnOnce(&Inputs) -> Done + Send>;

/// Held by each thread of a connection: the last one that ends says so.
struct Ends(Option<Arc<Inputs>>);

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(inputs) = self.0.take().and_then(Arc::into_inner) {
            let _ = inputs.send(Input::Down);
        }
    }
}

/// `stream`: of which connection, and whether it is the control stream.
fn spawn(name: &str, stream: (u32, bool), ending: &Arc<Inputs>, work: Work) -> Result<JoinHandle<()>, Error> {
    let (inputs, ends) = (Inputs::clone(ending), Ends(Some(Arc::clone(ending))));
    threads::start(name, move || {
        let _ends = ends;
        if let Err(cause) = work(&inputs) {
            let (epoch, control) = stream;
            let _ = inputs.send(Input::Lost { epoch, control, cause });
        }
    })
}

pub(crate) fn text(error: std::io::Error) -> String {
    error.to_string()
}

/// Says in `written` how far it is: before the other end can have received it.
fn write_frames(mut sender: Box<dyn Sender>, frames: &Queue<Frame>, written: &AtomicU64) -> Done {
    let mut bytes = Vec::new();
    while let Ok(frame) = frames.recv() {
        long_way();
        bytes.clear();
        put_frame(&mut bytes, &frame);
        let mut last = frame.header.sequence;
        while bytes.len() < WRITE_BATCH_BYTES
            && let Ok(frame) = frames.try_recv()
        {
            put_frame(&mut bytes, &frame);
            last = last.max(frame.header.sequence);
        }
        written.fetch_max(last, Ordering::AcqRel);
        sender.send(&[IoSlice::new(&bytes)]).map_err(text)?;
    }
    sender.finish().map_err(text)
}

#[cfg(not(feature = "faults"))]
fn long_way() {}

/// For tests: with `HAUL_TEST_FRAMES_LATE=MILLISECONDS` messages leave so much later, those that come together together.
#[cfg(feature = "faults")]
fn long_way() {
    static LATE: std::sync::OnceLock<Option<std::time::Duration>> = std::sync::OnceLock::new();
    let asked = || {
        let text = std::env::var("HAUL_TEST_FRAMES_LATE").ok()?;
        Some(std::time::Duration::from_millis(text.parse().expect("milliseconds")))
    };
    if let Some(late) = LATE.get_or_init(asked) {
        std::thread::sleep(*late);
    }
}

/// What a message takes in memory beside its body, at least: many have next to none.
const MESSAGE_BYTES: usize = 256;

/// Bytes of a message that waits for the master, as long as it does.
pub(crate) struct Weight(usize, Arc<AtomicUsize>);

impl Weight {
    fn new(body_bytes: usize, all: &Arc<AtomicUsize>) -> Weight {
        let bytes = body_bytes + MESSAGE_BYTES;
        all.fetch_add(bytes, Ordering::AcqRel);
        Weight(bytes, Arc::clone(all))
    }

    /// With the others, so that nothing more is received.
    pub(crate) fn is_too_much(&self) -> bool {
        self.1.load(Ordering::Acquire) > MESSAGES_WAITING_BYTES_MAX
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0, Ordering::AcqRel);
    }
}

/// With a `log`, what a frame leads to is written to it before the next frame is received.
fn read_frames(mut receiver: Box<dyn Receiver>, epoch: u32, log: Option<&CommLog>, inputs: &Inputs) -> Done {
    let mut bytes = [0; FRAME_HEADER_BYTES];
    let waiting: Arc<AtomicUsize> = Arc::default();
    loop {
        receiver.receive(&mut bytes).map_err(text)?;
        let header = match FrameHeader::decode(&bytes) {
            Ok(header) => header,
            // The stream is as the other end wrote it: another connection would bring the same.
            Err(Malformed(what)) => {
                let _ = inputs.send(Input::Malformed { epoch, what });
                return Ok(());
            }
        };
        // The number of those that wait is bounded; large ones are fewer.
        while waiting.load(Ordering::Acquire) > MESSAGES_WAITING_BYTES_MAX {
            std::thread::sleep(LOOK_AGAIN);
        }
        let mut body = vec![0; header.length as usize];
        if !body.is_empty() {
            receiver.receive(&mut body).map_err(text)?;
        }
        let weight = Weight::new(body.len(), &waiting);
        let (to_log, operations) = match log {
            Some(_) => Some(bounded(1)).unzip(),
            None => (None, None),
        };
        if inputs.send(Input::Frame { epoch, header, body, to_log, weight }).is_err() {
            return Ok(());
        }
        let (Some(log), Some(operations)) = (log, operations) else { continue };
        // A master that lets the connection go drops the question.
        if let Ok(operations) = operations.recv() {
            log.write(operations);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_messages_with_nothing_in_them_only_so_many_wait_too() {
        let (all, mut waiting) = (Arc::default(), Vec::new());
        let most = MESSAGES_WAITING_BYTES_MAX / size_of::<Input>();
        while waiting.last().is_none_or(|last: &Weight| !last.is_too_much()) {
            waiting.push(Weight::new(0, &all));
            assert!(waiting.len() <= most);
        }
        drop(waiting);
        assert_eq!(all.load(Ordering::Acquire), 0);
    }
}
