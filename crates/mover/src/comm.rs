//! The comm threads of one connection: frames in, frames out, payloads in or out.
//!
//! They never wait for storage. Each reports what it finds to the master; the first one that fails reports the loss of
//! the connection. When the master lets a connection go, [`Connection::tear_down`] closes its streams, and the
//! connection is *down* once every thread has ended: only then is no slot in their hands any more.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver as Queue, Sender as QueueSender, bounded, unbounded};
use haul_buffers::{FileRange, Pool};
use haul_model::profile::Stage;
use haul_model::{BlockId, Hash, SlotId};
use haul_protocol::Event;
use haul_protocol::link::Frame;
use haul_topology::ThreadKind;
use haul_transport::{Closer, Receiver, Sender};
use haul_wire::{FRAME_HEADER_BYTES, FrameHeader, PAYLOAD_HEADER_BYTES, PayloadHeader, Role};

use crate::connection::{Established, put_frame};
use crate::log::CommLog;
use crate::master::{Input, Inputs};
use crate::muster::Muster;
use crate::{Error, threads};

/// Frames that leave together are written together, up to this many bytes.
const WRITE_BATCH_BYTES: usize = 256 << 10;

/// A payload to be sent.
pub(crate) struct Outgoing {
    pub(crate) block: BlockId,
    pub(crate) slot: SlotId,
    pub(crate) local: SlotId,
    pub(crate) length: u32,
}

/// The threads of one connection.
pub(crate) struct Connection {
    pub(crate) epoch: u32,
    pub(crate) frames: QueueSender<Frame>,
    pub(crate) payloads: QueueSender<Outgoing>,
    closers: Vec<Closer>,
    threads: Vec<JoinHandle<()>>,
    writer: JoinHandle<()>,
    ending: Arc<Inputs>,
}

impl Connection {
    /// Starts the threads.
    pub(crate) fn start(
        established: Established,
        role: Role,
        pool: &Arc<Pool>,
        log: Option<CommLog>,
        inputs: &Inputs,
        muster: &Muster,
    ) -> std::result::Result<Self, Error> {
        let mut closers = Vec::new();
        let started = Self::start_threads(established, role, pool, log, inputs, muster, &mut closers);
        if started.is_err() {
            closers.iter().for_each(Closer::close);
        }
        started.map(|connection| Connection { closers, ..connection })
    }

    fn start_threads(
        established: Established,
        role: Role,
        pool: &Arc<Pool>,
        log: Option<CommLog>,
        inputs: &Inputs,
        muster: &Muster,
        closers: &mut Vec<Closer>,
    ) -> std::result::Result<Self, Error> {
        let epoch = established.epoch;
        let ending = Arc::new(inputs.clone());
        let spawn = |name: &str, work: Work| spawn(name, epoch, &ending, work);
        let mut threads = Vec::new();
        let shared = established.shared;
        let (frames, frames_out) = unbounded();
        let (payloads, payloads_out) = unbounded::<Outgoing>();

        let (sender, receiver, closer) = established.control.split();
        closers.push(closer);
        let placer = muster.placer.clone();
        let write = move |_: &Inputs| {
            let _seat = placer.seat(ThreadKind::Control);
            write_frames(sender, &frames_out)
        };
        let writer = spawn("haul-ctl-out", Box::new(write))?;
        let Muster { meter: of_log, placer } = muster.clone();
        let read = move |inputs: &Inputs| {
            let _seat = placer.seat(ThreadKind::Control);
            let _joined = log.as_ref().map(|_| of_log.join());
            read_frames(receiver, epoch, log.as_ref(), inputs)
        };
        threads.push(spawn("haul-ctl-in", Box::new(read))?);

        for (number, stream) in established.data.into_iter().enumerate() {
            // On an encrypted stream all is ciphering but for what is handed to the system.
            let ciphers = stream.about().cipher.is_some();
            let (sender, receiver, closer) = stream.split();
            closers.push(closer);
            let (pool, muster) = (pool.clone(), muster.clone());
            match role {
                Role::Source => {
                    let payloads = payloads_out.clone();
                    let send = move |inputs: &Inputs| {
                        // The unused half stays open with the other.
                        let _receiver = receiver;
                        let _there = muster.join(ThreadKind::CommOut);
                        let stage = if ciphers { Stage::Cipher } else { Stage::Send };
                        send_payloads(sender, stage, (epoch, shared), &payloads, &pool, inputs)
                    };
                    threads.push(spawn(&format!("haul-out-{number}"), Box::new(send))?);
                }
                Role::Sink => {
                    let receive = move |inputs: &Inputs| {
                        let _sender = sender;
                        let _there = muster.join(ThreadKind::CommIn);
                        let stage = if ciphers { Stage::Cipher } else { Stage::Receive };
                        receive_payloads(receiver, stage, (epoch, shared), &pool, inputs)
                    };
                    threads.push(spawn(&format!("haul-in-{number}"), Box::new(receive))?);
                }
            }
        }
        Ok(Connection { epoch, frames, payloads, closers: Vec::new(), threads, writer, ending })
    }

    /// Ends the connection. True if every thread of it has ended; else `Input::Down` follows when they have.
    pub(crate) fn tear_down(self) -> bool {
        self.closers.iter().for_each(Closer::close);
        drop((self.frames, self.payloads));
        Arc::into_inner(self.ending).is_some()
    }

    /// Lets the frames that are queued leave, then closes. For the end of a session.
    pub(crate) fn finish(self) {
        drop((self.frames, self.payloads));
        let _ = self.writer.join();
        self.closers.iter().for_each(Closer::close);
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

type Result = std::result::Result<(), String>;

/// What one thread does.
type Work = Box<dyn FnOnce(&Inputs) -> Result + Send>;

/// Held by each thread of a connection: the last one that ends says so.
struct Ends(Option<Arc<Inputs>>);

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(inputs) = self.0.take().and_then(Arc::into_inner) {
            let _ = inputs.send(Input::Down);
        }
    }
}

fn spawn(
    name: &str,
    epoch: u32,
    ending: &Arc<Inputs>,
    work: Work,
) -> std::result::Result<JoinHandle<()>, Error> {
    let (inputs, ends) = (Inputs::clone(ending), Ends(Some(Arc::clone(ending))));
    threads::start(name, move || {
        let _ends = ends;
        if let Err(cause) = work(&inputs) {
            let _ = inputs.send(Input::Lost { epoch, cause });
        }
    })
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

fn write_frames(mut sender: Box<dyn Sender>, frames: &Queue<Frame>) -> Result {
    let mut bytes = Vec::new();
    while let Ok(frame) = frames.recv() {
        long_way();
        bytes.clear();
        put_frame(&mut bytes, &frame);
        while bytes.len() < WRITE_BATCH_BYTES
            && let Ok(frame) = frames.try_recv()
        {
            put_frame(&mut bytes, &frame);
        }
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

/// With a `log`, what a frame leads to is written to it before the next frame is received.
fn read_frames(
    mut receiver: Box<dyn Receiver>,
    epoch: u32,
    log: Option<&CommLog>,
    inputs: &Inputs,
) -> Result {
    let mut bytes = [0; FRAME_HEADER_BYTES];
    loop {
        receiver.receive(&mut bytes).map_err(text)?;
        let header = FrameHeader::decode(&bytes).map_err(|error| error.0.to_owned())?;
        let mut body = vec![0; header.length as usize];
        if !body.is_empty() {
            receiver.receive(&mut body).map_err(text)?;
        }
        let Some(log) = log else {
            if inputs.send(Input::Frame { epoch, header, body, to_log: None }).is_err() {
                return Ok(());
            }
            continue;
        };
        let (to_log, operations) = bounded(1);
        if inputs.send(Input::Frame { epoch, header, body, to_log: Some(to_log) }).is_err() {
            return Ok(());
        }
        // A master that lets the connection go drops the question.
        if let Ok(operations) = operations.recv() {
            log.write(operations);
        }
    }
}

/// Within one process a byte follows each header: this one where the payload is lent, and then nothing else.
const LENT: u8 = 1;
/// The payload follows.
const SENT: u8 = 0;

fn send_payloads(
    mut sender: Box<dyn Sender>,
    stage: Stage,
    (epoch, shared): (u32, bool),
    payloads: &Queue<Outgoing>,
    pool: &Pool,
    inputs: &Inputs,
) -> Result {
    while let Ok(Outgoing { block, slot, local, length }) = payloads.recv() {
        let mut header = PayloadHeader { epoch, block, slot, length, hashes_following: 0 };
        let mut lease = pool.lease(local).expect("the master gives a slot to one thread at a time");
        let lent = lease.is_lent();
        let at = haul_meter::at(stage).bytes(if lent { 0 } else { length.into() });
        if lent {
            assert!(shared, "nothing is lent to another process");
            sender.send(&[IoSlice::new(&header.encode()), IoSlice::new(&[LENT])]).map_err(text)?;
        } else {
            let ranges = lease.take_file_ranges();
            let seen = ranges.iter().filter(|range| range.onlooker.is_some()).count();
            header.hashes_following =
                u8::try_from(seen).expect("storage leaves few to be hashed on their way");
            let header = [&header.encode()[..], if shared { &[SENT] } else { &[] }].concat();
            let payload = &mut lease[..length as usize];
            send_parts(&mut *sender, &header, payload, ranges).map_err(text)?;
        }
        drop((at, lease));
        if inputs.send(Input::Event(Event::Sent(block))).is_err() {
            return Ok(());
        }
    }
    sender.finish().map_err(text)
}

/// Sends the payload behind its header: what was left in files from there, the rest from the slot. Behind it follow the hashes of
/// what was seen on its way.
fn send_parts(
    sender: &mut dyn Sender,
    header: &[u8],
    payload: &mut [u8],
    ranges: Vec<FileRange>,
) -> std::io::Result<()> {
    let mut head = header;
    let mut sent = 0;
    let mut hashes = Vec::new();
    for FileRange { start, length, file, offset, onlooker } in ranges {
        if start > sent {
            sender.send(&[IoSlice::new(head), IoSlice::new(&payload[sent..start])])?;
            head = &[];
        }
        sent = start + length;
        let room = &mut payload[start..sent];
        let head = std::mem::take(&mut head);
        match onlooker {
            None => sender.send_file(head, file.as_fd(), offset, room, None)?,
            Some(mut onlooker) => {
                let mut see = |bytes: &[u8]| onlooker.see(bytes);
                sender.send_file(head, file.as_fd(), offset, room, Some(&mut see))?;
                hashes.extend(onlooker.hash().0);
            }
        }
    }
    if sent < payload.len() || !head.is_empty() {
        sender.send(&[IoSlice::new(head), IoSlice::new(&payload[sent..])])?;
    }
    if hashes.is_empty() { Ok(()) } else { sender.send(&[IoSlice::new(&hashes)]) }
}

fn receive_payloads(
    mut receiver: Box<dyn Receiver>,
    stage: Stage,
    (epoch, shared): (u32, bool),
    pool: &Pool,
    inputs: &Inputs,
) -> Result {
    let mut bytes = [0; PAYLOAD_HEADER_BYTES];
    loop {
        receiver.receive(&mut bytes).map_err(text)?;
        let header = PayloadHeader::decode(&bytes).map_err(|error| error.0.to_owned())?;
        let mut how = [SENT];
        if shared {
            receiver.receive(&mut how).map_err(text)?;
        }
        let length = header.length as usize;
        if header.epoch != epoch || length > pool.slot_bytes() {
            return Err("a payload is of another connection or too long".into());
        }
        let Some(mut lease) = pool.lease_granted(header.slot) else {
            return Err("a payload came for a slot that was not granted".into());
        };
        if length > 0 && how != [LENT] {
            let _at = haul_meter::at(stage).bytes(header.length.into());
            receiver.receive(&mut lease[..length]).map_err(text)?;
        }
        drop(lease);
        let mut hashes = vec![Hash([0; 32]); header.hashes_following.into()];
        for Hash(bytes) in &mut hashes {
            receiver.receive(bytes).map_err(text)?;
        }
        let PayloadHeader { block, slot, length, .. } = header;
        let event = Event::Payload { epoch, block, slot, length, hashes };
        if inputs.send(Input::Event(event)).is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::OwnedFd;

    #[test]
    fn what_was_left_in_files_arrives_between_what_is_in_the_slot() {
        let slot: Vec<u8> = (0..1000).map(|at| (at % 249) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0xff; 2000]).unwrap();
        let file = Arc::new(OwnedFd::from(file));
        let range = |start, length, offset| {
            let file = Arc::clone(&file);
            FileRange { start, length, file, offset, onlooker: None }
        };
        let cases = [
            vec![],
            vec![range(0, 1000, 5)],
            vec![range(0, 10, 0), range(990, 10, 1990)],
            vec![range(400, 200, 0)],
            vec![range(100, 1, 3), range(101, 99, 0), range(300, 700, 0)],
            vec![range(0, 500, 0)],
        ];
        for ranges in cases {
            let (near, far) = haul_transport::memory::pair(4096);
            let ((mut sender, _receiver, _), (_sender, mut receiver, _)) = (near.split(), far.split());
            let mut expected = [b"header".as_slice(), &slot].concat();
            let places: Vec<_> = ranges.iter().map(|range| (range.start, range.length)).collect();
            for range in &ranges {
                expected[6 + range.start..][..range.length].fill(0xff);
            }
            send_parts(&mut *sender, b"header", &mut slot.clone(), ranges).unwrap();
            sender.finish().unwrap();
            let mut arrived = vec![0; expected.len()];
            receiver.receive(&mut arrived).unwrap();
            assert!(arrived == expected, "{places:?}");
            assert!(receiver.receive(&mut [0]).is_err(), "nothing follows");
        }
    }

    /// Takes the bytes themselves for their hash.
    #[derive(Default)]
    struct First(Vec<u8>);

    impl haul_buffers::Onlooker for First {
        fn see(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }

        fn hash(self: Box<Self>) -> Hash {
            Hash(self.0[..32].try_into().unwrap())
        }
    }

    /// One payload with these ranges through a stream: with which hashes, and how, it arrives.
    fn arrives(length: u32, ranges: Vec<FileRange>) -> (Vec<Hash>, Vec<u8>) {
        let inputs = crossbeam_channel::unbounded();
        let (near, far) = haul_transport::memory::pair(1 << 20);
        let ((sender, _receiver, _), (_sender, receiver, _)) = (near.split(), far.split());
        let (source, sink) = (Pool::new(1, 1 << 20).unwrap(), Pool::new(2, 1 << 20).unwrap());
        let (slot, local) = (SlotId(1), SlotId(0));
        sink.grant(slot);
        let mut lease = source.lease(local).unwrap();
        lease.fill(0xee);
        lease.set_file_ranges(ranges);
        drop(lease);
        let payloads = unbounded();
        payloads.0.send(Outgoing { block: BlockId(5), slot, local, length }).unwrap();
        drop(payloads.0);
        send_payloads(sender, Stage::Send, (1, false), &payloads.1, &source, &inputs.0).unwrap();
        receive_payloads(receiver, Stage::Receive, (1, false), &sink, &inputs.0).unwrap_err();
        let events: Vec<Input> = inputs.1.try_iter().collect();
        let [
            Input::Event(Event::Sent(BlockId(5))),
            Input::Event(Event::Payload { hashes, length: came, .. }),
        ] = &events[..]
        else {
            panic!("other events")
        };
        assert_eq!(*came, length);
        (hashes.clone(), sink.lease(slot).unwrap()[..length as usize].to_vec())
    }

    #[test]
    fn the_hashes_of_what_was_seen_on_its_way_follow_it_in_order() {
        let bytes: Vec<u8> = (0..200_000).map(|at| (at % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let file = Arc::new(OwnedFd::from(file));
        let range = |start, length, offset, seen: bool| {
            let onlooker = seen.then(|| Box::new(First::default()) as Box<dyn haul_buffers::Onlooker>);
            FileRange { start, length, file: Arc::clone(&file), offset, onlooker }
        };
        let first = |offset: usize| Hash(bytes[offset..][..32].try_into().unwrap());
        assert_eq!(arrives(199_000, vec![range(0, 199_000, 1000, true)]).0, [first(1000)]);

        let ranges = vec![
            range(0, 70_000, 7, true),
            range(70_000, 100, 0, false),
            range(80_000, 100_000, 13, true),
            range(180_000, 500, 50, true),
        ];
        let (hashes, came) = arrives(190_000, ranges);
        assert_eq!(hashes, [first(7), first(13), first(50)]);
        let mut expected = vec![0xee; 190_000];
        for (at, length, offset) in
            [(0, 70_000, 7), (70_000, 100, 0), (80_000, 100_000, 13), (180_000, 500, 50)]
        {
            expected[at..at + length].copy_from_slice(&bytes[offset..][..length]);
        }
        assert!(came == expected);
        assert!(arrives(100, Vec::new()).0.is_empty());
    }

    #[test]
    fn an_empty_payload_is_a_header_alone() {
        let (near, far) = haul_transport::memory::pair(4096);
        let ((mut sender, _receiver, _), (_sender, mut receiver, _)) = (near.split(), far.split());
        send_parts(&mut *sender, b"header", &mut [], Vec::new()).unwrap();
        let mut arrived = [0; 6];
        receiver.receive(&mut arrived).unwrap();
        assert_eq!(&arrived, b"header");
    }
}
