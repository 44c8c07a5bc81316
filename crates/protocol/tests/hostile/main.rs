//! Each master against a peer that says anything at any time.
//!
//! The peer's messages are well formed, because the wire crate refuses all others, but have no sense. Whatever it says,
//! a master must not panic, must not hand one slot to two operations, must not send without a credit, and must act no
//! more once it has ended. Storage answers honestly, and fails now and then.

mod peers;
mod random;
mod storage;

use haul_model::op::{SinkOp, SourceOp};
use haul_model::{
    BlockId, Code, EntryId, Hash, Identity, Item, JobId, Kind, SessionId, SlotId, Timestamp, Token,
};
use haul_protocol::scheduler::{Adaptive, Policy};
use haul_protocol::sink::{self, Sink};
use haul_protocol::source::{self, Source};
use haul_protocol::{Action, Event, LogView, Logged, Planted};
use haul_wire::{Connect, Message, Role};

use crate::peers::{Announcer, Answerer};
use crate::random::{OBJECT_BYTES, Random, SLOTS};
use crate::storage::{answer_sink, answer_source, local_of, slot_of};

/// A payload: block, slot, length, and the hashes behind it.
type Arriving = (BlockId, SlotId, u32, Vec<Hash>);

const HISTORIES: u64 = 4_000;
const STEPS: u64 = 250;

/// Only what survives the wire reaches a master.
fn through_the_wire(message: &Message) -> Option<Message> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    Message::decode(message.kind(), &bytes).ok()
}

fn peer(role: Role, random: &mut Random) -> Connect {
    Connect {
        version: haul_wire::VERSION,
        version_min: haul_wire::VERSION_MIN,
        role,
        session: SessionId([0; 16]),
        job: JobId([0; 16]),
        object_bytes: if random.one_in(20) {
            random.pick(&[0, 1, OBJECT_BYTES * 2, u32::MAX])
        } else {
            OBJECT_BYTES
        },
        slots: if random.one_in(20) { random.pick(&[0, 1, 4096]) } else { SLOTS },
        features: u64::MAX,
    }
}

fn roots() -> Vec<Box<[u8]>> {
    vec![b"a".as_slice().into(), Box::default()]
}

#[test]
fn a_sink_survives_whatever_a_source_says() {
    let (mut written, mut contradicted) = (0, 0);
    'histories: for seed in 0..HISTORIES {
        let random = &mut Random(seed);
        let config = sink::Config {
            slots: SLOTS,
            slots_near: 2,
            slots_least: 1,
            hands: 2,
            hands_max: 5,
            policy: Policy::Adaptive(Adaptive::default()),
            hangs_after_nanos: None,
            syncs_each: random.one_in(2),
            lies_apart: false,
            errand_threads_max: random.pick(&[1, 3, u32::MAX]),
            slot_bytes: OBJECT_BYTES,
            recursive: true,
            roots: roots(),
            report_done: true,
            planted: Planted::default(),
        };
        let mut sink = Sink::new(config);
        let (mut epoch, mut up, mut ended) = (0, false, false);
        // With the number of those that are errands.
        let mut pending: Vec<(Option<u64>, SinkOp)> = Vec::new();
        let mut granted = [false; SLOTS as usize];
        // Payloads of which a part has come.
        let mut receiving: Vec<Arriving> = Vec::new();
        let mut announcer = Announcer::default();
        let senseless = random.pick(&[2, 20, 100_000]);
        for step in 0..STEPS {
            let event = match random.below(10) {
                _ if !up => {
                    epoch += 1;
                    up = true;
                    let nanos = random.pick(&[0, 1_000_000, u64::MAX]);
                    sink.on_event(Event::RoundTrip { nanos }, step * 1_000_000);
                    Event::LinkUp { epoch, peer: peer(Role::Source, random) }
                }
                0 if random.one_in(6) => {
                    up = false;
                    announcer.payloads.clear();
                    receiving.clear();
                    Event::LinkDown
                }
                0 | 1 if !receiving.is_empty() && random.one_in(2) => {
                    let next = random.below(receiving.len() as u64) as usize;
                    let (block, slot, length, hashes) = receiving.swap_remove(next);
                    Event::Payload { epoch, block, slot, length, hashes }
                }
                0 | 1 => {
                    // The comm threads receive only into what was granted, and only from the present connection.
                    let (block, slot, length, hashes) =
                        match announcer.payloads.is_empty() || random.one_in(senseless) {
                            true if !random.one_in(senseless) => continue,
                            true => {
                                let slot = SlotId(random.below(u64::from(SLOTS)) as u32);
                                (
                                    BlockId(random.below(12)),
                                    slot,
                                    random.pick(&[0, 100, OBJECT_BYTES]),
                                    random.hashes(),
                                )
                            }
                            false => {
                                let payloads = &mut announcer.payloads;
                                payloads.swap_remove(random.below(payloads.len() as u64) as usize)
                            }
                        };
                    if !std::mem::take(&mut granted[slot.0 as usize]) {
                        continue;
                    }
                    if random.one_in(4) {
                        receiving.push((block, slot, length, hashes));
                        continue;
                    }
                    Event::Payload { epoch, block, slot, length, hashes }
                }
                2..=4 if !pending.is_empty() => {
                    let (number, op) = pending.swap_remove(random.below(pending.len() as u64) as usize);
                    written += u64::from(slot_of(&op).is_some());
                    match (number, answer_sink(op, random)) {
                        (Some(number), Some(done)) => Event::ErrandDone { number, done },
                        (None, Some(done)) => Event::SinkDone(done),
                        (_, None) => continue,
                    }
                }
                5 => Event::Tick,
                _ => {
                    let message = match random.one_in(senseless) {
                        true => random.source_message(epoch),
                        // What is on its way now was lost with an earlier connection, it says.
                        false if granted[0] && random.one_in(400) => {
                            granted[0] = false;
                            let (block, slot, length) = (BlockId(random.below(12)), SlotId(0), 100);
                            receiving.push((block, slot, length, random.hashes()));
                            let (id, index, hash) = (random.id(), 0, random.some_hash());
                            Message::NewBlock { block, slot, epoch: epoch - 1, id, index, length, hash }
                        }
                        false => announcer.message(epoch, &granted, random),
                    };
                    match through_the_wire(&message) {
                        Some(message) => Event::Message(message),
                        None => continue,
                    }
                }
            };
            sink.on_event(event, step * 1_000_000);
            while let Some(action) = sink.next_action() {
                assert!(!ended, "seed {seed}: it acts after its end: {action:?}");
                let comes = |slot: SlotId| receiving.iter().any(|(_, into, ..)| *into == slot);
                match action {
                    Action::Sink(op) => {
                        if let Some(slot) = slot_of(&op) {
                            let busy = pending.iter().any(|(_, other)| slot_of(other) == Some(slot));
                            assert!(
                                !busy && !granted[slot.0 as usize] && !comes(slot),
                                "seed {seed}: {slot:?} is used twice"
                            );
                        }
                        pending.push((None, op));
                    }
                    Action::Errand { number, op, .. } => pending.push((Some(number), op)),
                    Action::Grant(slot) => {
                        let busy = pending.iter().any(|(_, op)| slot_of(op) == Some(slot));
                        assert!(!busy, "seed {seed}: {slot:?} is granted while it is written");
                        assert!(!comes(slot), "seed {seed}: {slot:?} is granted while it is received into");
                        granted[slot.0 as usize] = true;
                    }
                    Action::Revoke(slot) => granted[slot.0 as usize] = false,
                    Action::TakeBack(slot) if std::mem::take(&mut granted[slot.0 as usize]) => {}
                    Action::TakeBack(_) => {
                        contradicted += 1;
                        // What the master does then.
                        sink.on_event(Event::Stop(Code::Protocol.into()), step * 1_000_000);
                        while sink.next_action().is_some() {}
                        continue 'histories;
                    }
                    Action::Send(message) => announcer.hear(&message),
                    Action::Ended(_) => ended = true,
                    _ => {}
                }
            }
        }
    }
    assert!(written > 10_000, "the peer never got far enough to be written: {written}");
    assert!(contradicted > 100, "what is on its way was never said to be lost: {contradicted}");
}

struct SomeLog(u64);

impl LogView for SomeLog {
    fn lookup(&mut self, _path: &[u8]) -> Option<Logged> {
        self.0 += 1;
        let identity = Identity { size: u64::from(OBJECT_BYTES) * 3, ..Identity::default() };
        let mut done = haul_model::Bitmap::new(3);
        for index in (0..3).filter(|index| self.0 >> index & 1 == 1) {
            done.set(index);
        }
        Some(Logged { identity, object_bytes: OBJECT_BYTES, token: Token([1; 16]), done })
    }
}

/// A scan of eight entries in two directories.
fn scan(random: &mut Random) -> Vec<Item> {
    let mut items = Vec::new();
    let time = Timestamp::default();
    for id in 1..9 {
        let parent = if id == 1 { EntryId::root(0) } else { EntryId(if id > 5 { 5 } else { 1 }) };
        let mut entry = random.entry(EntryId(id), parent);
        if id == 1 || id == 5 {
            entry.kind = Kind::Directory;
            entry.identity = Identity::default();
        }
        entry.attributes.mtime = time;
        items.push(Item::Entry(entry));
    }
    items.extend([Item::End(EntryId(5)), Item::End(EntryId(1))]);
    items
}

#[test]
fn a_source_survives_whatever_a_sink_says() {
    let mut sent = 0;
    for seed in 0..HISTORIES {
        let random = &mut Random(seed);
        let config = source::Config {
            object_bytes: OBJECT_BYTES,
            bundle_bytes_max: 1000,
            slots: SLOTS,
            slots_least: 1,
            hands: 2,
            hands_max: 5,
            policy: Policy::Adaptive(Adaptive::default()),
            hangs_after_nanos: None,
            spill_bytes_max: random.pick(&[0, 3, 1000]) * (64 << 10),
            files_open_max: usize::MAX,
            roots: roots(),
            report_done: true,
            planted: Planted::default(),
        };
        let (mut source, mut log) = (Source::new(config), SomeLog(0));
        let (mut epoch, mut up, mut ended, mut scanned) = (0, false, false, false);
        let mut pending: Vec<SourceOp> = Vec::new();
        let mut sending: Vec<(BlockId, SlotId)> = Vec::new();
        let mut credits: Vec<SlotId> = Vec::new();
        let mut answerer = Answerer::default();
        answerer.withheld.extend((0..SLOTS).map(SlotId));
        let senseless = random.pick(&[2, 20, 100_000]);
        for step in 0..STEPS {
            let event = match random.below(10) {
                _ if !up => {
                    epoch += 1;
                    up = true;
                    let may = random.one_in(2);
                    source.on_event(Event::HashesOnTheWay(may), &mut log, step * 1_000_000);
                    Event::LinkUp { epoch, peer: peer(Role::Sink, random) }
                }
                0 if random.one_in(6) => {
                    up = false;
                    sending.clear();
                    Event::LinkDown
                }
                0 | 1 if source.wants_scan() && !scanned => {
                    scanned = true;
                    Event::Scanned(scan(random))
                }
                0 if scanned => Event::ScanEnded,
                1 | 2 if !sending.is_empty() => {
                    Event::Sent(sending.swap_remove(random.below(sending.len() as u64) as usize).0)
                }
                2..=4 if !pending.is_empty() => {
                    let op = pending.swap_remove(random.below(pending.len() as u64) as usize);
                    match answer_source(op, random) {
                        Some(done) => Event::SourceDone(done),
                        None => continue,
                    }
                }
                _ => {
                    let message = match random.one_in(senseless) {
                        true => random.sink_message(),
                        false => answerer.message(random),
                    };
                    match through_the_wire(&message) {
                        Some(message) => Event::Message(message),
                        None => continue,
                    }
                }
            };
            if let Event::Message(Message::BlockDone { slots, .. }) = &event {
                // A slot that is granted again is the same credit.
                credits.extend(slots);
                credits.sort_unstable();
                credits.dedup();
            }
            source.on_event(event, &mut log, step * 1_000_000);
            while let Some(action) = source.next_action() {
                assert!(!ended, "seed {seed}: it acts after its end: {action:?}");
                match action {
                    Action::Source(op) => {
                        if let Some(slot) = local_of(&op) {
                            let busy = pending.iter().any(|other| local_of(other) == Some(slot))
                                || sending.iter().any(|(_, local)| *local == slot);
                            assert!(!busy, "seed {seed}: {slot:?} is used twice");
                        }
                        pending.push(op);
                    }
                    Action::Payload { block, slot, local, .. } => {
                        let credit = credits.iter().position(|credit| *credit == slot);
                        credits.swap_remove(credit.expect("a payload goes only into a credit"));
                        sending.push((block, local));
                        sent += 1;
                    }
                    Action::Send(message) => answerer.hear(&message),
                    Action::Ended(_) => ended = true,
                    _ => {}
                }
            }
        }
    }
    assert!(sent > 5_000, "the peer never got far enough to be sent anything: {sent}");
}
