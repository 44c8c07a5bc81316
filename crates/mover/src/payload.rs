//! What the comm threads of data streams do: payloads out of slots and files onto a stream, and off it into granted slots.
//!
//! The bytes are those of `docs/spec/wire.md`. Behind a payload, the hashes of what was hashed on its way follow on encrypted
//! streams only: on a clear one, whoever alters the bytes could alter their hashes to fit.

use std::io::IoSlice;
use std::os::fd::AsFd;

use crossbeam_channel::Receiver as Queue;
use haul_buffers::{FileRange, Pool};
use haul_model::profile::Stage;
use haul_model::{BlockId, Hash, SlotId};
use haul_protocol::Event;
use haul_transport::{Receiver, Sender, Stream};
use haul_wire::{PAYLOAD_HEADER_BYTES, PayloadHeader};

use crate::comm::{Done, text};
use crate::master::{Input, Inputs};
use crate::pieces::{Pieces, UnderWay};

/// A payload to be sent.
pub(crate) struct Outgoing {
    pub(crate) block: BlockId,
    pub(crate) slot: SlotId,
    pub(crate) local: SlotId,
    pub(crate) length: u32,
}

/// A data stream, as its payloads see it.
pub(crate) struct Carriage {
    /// What moving bytes over it counts as.
    pub(crate) stage: Stage,
    /// The connection.
    pub(crate) epoch: u32,
    /// Both ends are this process.
    pub(crate) shared: bool,
    /// Nobody on the path can alter what it carries.
    pub(crate) encrypted: bool,
    /// Of all streams of the connection.
    pub(crate) under_way: UnderWay,
}

impl Carriage {
    /// `moving` is the stage of a clear stream. On an encrypted one all is ciphering but for what is handed to the system.
    pub(crate) fn new(stream: &Stream, moving: Stage, epoch: u32, shared: bool) -> Self {
        let encrypted = stream.about().cipher.is_some();
        let stage = if encrypted { Stage::Cipher } else { moving };
        Carriage { stage, epoch, shared, encrypted, under_way: UnderWay::default() }
    }
}

/// Within one process a byte follows each header: this one where the payload is lent, and then nothing else.
const LENT: u8 = 1;
/// The payload follows.
const SENT: u8 = 0;

pub(crate) fn send_all(
    mut sender: Box<dyn Sender>,
    carriage: &Carriage,
    payloads: &Queue<Outgoing>,
    pool: &Pool,
    inputs: &Inputs,
) -> Done {
    let &Carriage { stage, epoch, shared, encrypted, ref under_way } = carriage;
    let mut pieces = Pieces::new(under_way);
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
            never_read();
            assert!(seen == 0 || encrypted, "only what is encrypted is hashed on its way");
            header.hashes_following = seen.try_into().expect("storage leaves few to be hashed on their way");
            let header = header.encode();
            let head = [&header[..], if shared { &[SENT] } else { &[] }].concat();
            let payload = &mut lease[..length as usize];
            let hashes = send_parts(&mut *sender, &head, payload, ranges, &mut pieces).map_err(text)?;
            if !hashes.is_empty() {
                sender.send(&[IoSlice::new(&hashes)]).map_err(text)?;
            }
        }
        drop((at, lease));
        pieces.whole();
        if inputs.send(Input::Event(Event::Sent(block))).is_err() {
            return Ok(());
        }
    }
    sender.finish().map_err(text)
}

#[cfg(not(feature = "faults"))]
fn never_read() {}

/// For tests: with `HAUL_TEST_STREAM_HANGS` what was left in its file is never read.
#[cfg(feature = "faults")]
fn never_read() {
    while std::env::var_os("HAUL_TEST_STREAM_HANGS").is_some() {
        std::thread::sleep(std::time::Duration::from_secs(3600));
    }
}

/// Sends the payload behind its head: what was left in files from there, the rest from the slot. Returns the hashes of what was
/// seen on its way, one behind the other.
fn send_parts(
    sender: &mut dyn Sender,
    mut head: &[u8],
    payload: &mut [u8],
    ranges: Vec<FileRange>,
    pieces: &mut Pieces,
) -> std::io::Result<Vec<u8>> {
    let mut sent = 0;
    let mut hashes = Vec::new();
    for FileRange { start, length, file, offset, mut onlooker } in ranges {
        pieces.pass(sent..start, |piece| {
            let head = std::mem::take(&mut head);
            sender.send(&[IoSlice::new(head), IoSlice::new(&payload[piece])])
        })?;
        sent = start + length;
        pieces.pass(start..sent, |piece| {
            let (head, offset) = (std::mem::take(&mut head), offset + (piece.start - start) as u64);
            let room = &mut payload[piece];
            match &mut onlooker {
                None => sender.send_file(head, file.as_fd(), offset, room, None),
                Some(onlooker) => {
                    let mut see = |bytes: &[u8]| onlooker.see(bytes);
                    sender.send_file(head, file.as_fd(), offset, room, Some(&mut see))
                }
            }
        })?;
        hashes.extend(onlooker.into_iter().flat_map(|onlooker| onlooker.hash().0));
    }
    pieces.pass(sent..payload.len(), |piece| {
        let head = std::mem::take(&mut head);
        sender.send(&[IoSlice::new(head), IoSlice::new(&payload[piece])])
    })?;
    if !head.is_empty() {
        sender.send(&[IoSlice::new(head)])?;
    }
    Ok(hashes)
}

pub(crate) fn receive_all(
    mut receiver: Box<dyn Receiver>,
    carriage: &Carriage,
    pool: &Pool,
    inputs: &Inputs,
) -> Done {
    let &Carriage { stage, epoch, shared, encrypted, ref under_way } = carriage;
    let mut pieces = Pieces::new(under_way);
    let mut bytes = [0; PAYLOAD_HEADER_BYTES];
    loop {
        receiver.receive(&mut bytes).map_err(text)?;
        let header = PayloadHeader::decode(&bytes).map_err(|error| error.0.to_owned())?;
        let mut how = [SENT];
        if shared {
            receiver.receive(&mut how).map_err(text)?;
        }
        let arriving = haul_meter::arriving();
        let length = header.length as usize;
        if header.epoch != epoch || length > pool.slot_bytes() {
            return Err("a payload is of another connection or too long".into());
        }
        if header.hashes_following > 0 && !encrypted {
            return Err("hashes follow a payload in clear, where anybody could have made them".into());
        }
        let Some(mut lease) = pool.lease_granted(header.slot) else {
            return Err("a payload came for a slot that was not granted".into());
        };
        if length > 0 && how != [LENT] {
            let _at = haul_meter::at(stage).bytes(header.length.into());
            pieces.pass(0..length, |piece| receiver.receive(&mut lease[piece])).map_err(text)?;
        }
        // Until all of it is there nobody else has the slot.
        let hashes = receive_hashes(&mut *receiver, header.hashes_following.into())?;
        drop((lease, arriving));
        pieces.whole();
        let PayloadHeader { block, slot, length, .. } = header;
        let event = Event::Payload { epoch, block, slot, length, hashes };
        if inputs.send(Input::Event(event)).is_err() {
            return Ok(());
        }
    }
}

/// The hashes behind a payload, if any are said to follow it.
fn receive_hashes(receiver: &mut dyn Receiver, count: usize) -> std::result::Result<Vec<Hash>, String> {
    let mut bytes = vec![0; count * size_of::<Hash>()];
    receiver.receive(&mut bytes).map_err(text)?;
    let (hashes, _) = bytes.as_chunks();
    Ok(hashes.iter().map(|hash| Hash(*hash)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use crossbeam_channel::unbounded;
    use haul_transport::memory;

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
            let (near, far) = memory::pair(4096);
            let ((mut sender, _receiver, _), (_sender, mut receiver, _)) = (near.split(), far.split());
            let mut pieces = Pieces::new(&UnderWay::default());
            let mut expected = [b"header".as_slice(), &slot].concat();
            let places: Vec<_> = ranges.iter().map(|range| (range.start, range.length)).collect();
            for range in &ranges {
                expected[6 + range.start..][..range.length].fill(0xff);
            }
            let hashes = send_parts(&mut *sender, b"header", &mut slot.clone(), ranges, &mut pieces).unwrap();
            assert!(hashes.is_empty());
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

    type Arrived = (Vec<Hash>, Vec<u8>);

    /// Sends one payload with these ranges.
    fn send_one(near: Stream, length: u32, ranges: Vec<FileRange>) {
        let carriage = Carriage { encrypted: true, ..Carriage::new(&near, Stage::Send, 1, false) };
        let (sender, _receiver, _) = near.split();
        let (pool, local) = (Pool::new(1, 1 << 20).unwrap(), SlotId(0));
        let mut lease = pool.lease(local).unwrap();
        lease.fill(0xee);
        lease.set_file_ranges(ranges);
        drop(lease);
        let (payloads, inputs) = (unbounded(), unbounded());
        payloads.0.send(Outgoing { block: BlockId(5), slot: SlotId(1), local, length }).unwrap();
        drop(payloads.0);
        send_all(sender, &carriage, &payloads.1, &pool, &inputs.0).unwrap();
        assert!(matches!(inputs.1.try_recv(), Ok(Input::Event(Event::Sent(BlockId(5))))));
    }

    /// What is reported of the payload that arrives (its hashes, its bytes), if any is, and how the thread ends.
    fn receive_one(far: Stream, encrypted: bool) -> (Option<Arrived>, String) {
        let carriage = Carriage { encrypted, ..Carriage::new(&far, Stage::Receive, 1, false) };
        let (_sender, receiver, _) = far.split();
        let pool = Pool::new(2, 1 << 20).unwrap();
        assert!(pool.grant(SlotId(1)));
        let inputs = unbounded();
        let end = receive_all(receiver, &carriage, &pool, &inputs.0).unwrap_err();
        let reported = inputs.1.try_iter().next().map(|input| {
            let Input::Event(Event::Payload { block: BlockId(5), slot, length, hashes, .. }) = input else {
                panic!("another event")
            };
            (hashes, pool.lease(slot).unwrap()[..length as usize].to_vec())
        });
        (reported, end)
    }

    /// One payload with these ranges through a stream: with which hashes, and how, it arrives.
    fn arrives(length: u32, ranges: Vec<FileRange>) -> Arrived {
        let (near, far) = memory::pair(1 << 20);
        send_one(near, length, ranges);
        receive_one(far, true).0.expect("it arrives")
    }

    #[test]
    fn hashes_that_follow_in_clear_are_refused() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0x11; 5000]).unwrap();
        let file = Arc::new(OwnedFd::from(file));
        let range = |seen: bool| {
            let onlooker = seen.then(|| Box::new(First::default()) as Box<dyn haul_buffers::Onlooker>);
            FileRange { start: 0, length: 5000, file: Arc::clone(&file), offset: 0, onlooker }
        };
        // Whether hashes follow, whether the stream is encrypted, and whether the payload is taken.
        for (seen, encrypted, taken) in
            [(false, false, true), (false, true, true), (true, true, true), (true, false, false)]
        {
            let (near, far) = memory::pair(1 << 20);
            send_one(near, 5000, vec![range(seen)]);
            let (reported, end) = receive_one(far, encrypted);
            assert_eq!(reported.is_some(), taken, "{seen} {encrypted}");
            assert_eq!(end.contains("in clear"), !taken, "{seen} {encrypted}: {end}");
        }
    }

    #[test]
    fn a_payload_that_is_of_another_connection_too_long_or_for_no_credit_is_refused() {
        let right =
            PayloadHeader { epoch: 1, block: BlockId(5), slot: SlotId(1), length: 10, hashes_following: 0 };
        for (header, expected) in [
            (right, None),
            (PayloadHeader { epoch: 2, ..right }, Some("another connection")),
            (PayloadHeader { length: (1 << 20) + 1, ..right }, Some("too long")),
            (PayloadHeader { slot: SlotId(0), ..right }, Some("not granted")),
            (PayloadHeader { slot: SlotId(9), ..right }, Some("not granted")),
        ] {
            let (near, far) = memory::pair(4 << 20);
            let (mut sender, _receiver, _) = near.split();
            let payload = vec![7; header.length as usize];
            sender.send(&[IoSlice::new(&header.encode()), IoSlice::new(&payload)]).unwrap();
            sender.finish().unwrap();
            let (reported, end) = receive_one(far, true);
            assert_eq!(reported.is_some(), expected.is_none(), "{end}");
            assert!(expected.is_none_or(|expected| end.contains(expected)), "{end}");
        }
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
        let (near, far) = memory::pair(4096);
        let ((mut sender, _receiver, _), (_sender, mut receiver, _)) = (near.split(), far.split());
        let mut pieces = Pieces::new(&UnderWay::default());
        send_parts(&mut *sender, b"header", &mut [], Vec::new(), &mut pieces).unwrap();
        let mut arrived = [0; 6];
        receiver.receive(&mut arrived).unwrap();
        assert_eq!(&arrived, b"header");
    }
}
