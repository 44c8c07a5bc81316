//! Hashes that come behind payloads: what a source may leave to be hashed on its way, and what a sink takes for a hash.

#[path = "support/single.rs"]
mod single;
mod support;

use haul_model::op::{SinkOp, SourceDone, SourceOp};
use haul_model::{BlockId, Code, Hash, SlotId};
use haul_protocol::sink::Sink;
use haul_protocol::source::Source;
use haul_protocol::{Action, Event};
use haul_wire::{Message, Repair, RepairReason};
use single::{ID, sink_begins, sink_config, source_begins, source_config};
use support::{NoLog, OBJECT};

const HASH: Hash = Hash([7; 32]);

/// What a source of one file asks of storage and announces. Storage has no hash where it need not.
struct From {
    source: Source,
    may_be_on_the_way: Vec<bool>,
    announced: Vec<(BlockId, Option<Hash>)>,
}

impl From {
    fn new(one_host: bool, objects: u32) -> From {
        let source = Source::new(source_config());
        let mut from = From { source, may_be_on_the_way: Vec::new(), announced: Vec::new() };
        from.event(Event::OneHost(one_host));
        source_begins(objects).into_iter().for_each(|event| from.event(event));
        from
    }

    fn event(&mut self, event: Event) {
        self.source.on_event(event, &mut NoLog, 0);
        while let Some(action) = self.source.next_action() {
            match action {
                Action::Source(SourceOp::ReadObject { block, on_the_way, .. }) => {
                    self.may_be_on_the_way.push(on_the_way);
                    let result = Ok((!on_the_way).then_some(HASH));
                    return self.event(Event::SourceDone(SourceDone::Object { block, result }));
                }
                Action::Send(Message::NewBlock { block, hash, .. }) => self.announced.push((block, hash)),
                Action::Ended(outcome) => panic!("{outcome:?}"),
                _ => {}
            }
        }
    }
}

#[test]
fn within_one_host_objects_are_hashed_on_their_way_the_first_time() {
    let mut near = From::new(true, 2);
    assert_eq!(near.may_be_on_the_way, [true; 2]);
    assert!(near.announced.len() == 2 && near.announced.iter().all(|(_, hash)| hash.is_none()));
    for (block, _) in near.announced.clone() {
        near.event(Event::Sent(block));
    }
    let repair = Repair { id: ID, index: Some(1), reason: RepairReason::Hash };
    near.event(Event::Message(Message::Repair(vec![repair])));
    assert_eq!(near.may_be_on_the_way, [true, true, false], "what is sent again is looked at first");
    assert_eq!(near.announced[2].1, Some(HASH));

    assert_eq!(From::new(false, 2).may_be_on_the_way, [false; 2], "a network leaves time");
    assert_eq!(From::new(true, 1).may_be_on_the_way, [false], "FILE_CLOSE tells its hash");
}

/// An object's announcement and payload come in this order; the hash that storage is to check, or how the session ends.
fn arrives(announced: Option<Hash>, followed: Option<Hash>, payload_first: bool) -> Result<Hash, Code> {
    let mut sink = Sink::new(sink_config());
    let (block, slot, epoch, length) = (BlockId(1), SlotId(0), 1, OBJECT);
    let announcement = Message::NewBlock { block, slot, epoch, id: ID, index: 1, length, hash: announced };
    let mut both =
        [Event::Message(announcement), Event::Payload { epoch, block, slot, length, hash: followed }];
    if payload_first {
        both.reverse();
    }
    for event in sink_begins(2).into_iter().chain(both) {
        sink.on_event(event, 0);
        while let Some(action) = sink.next_action() {
            match action {
                Action::Sink(SinkOp::WriteObject { hash, .. }) => return Ok(hash),
                Action::Send(Message::Error(failure)) => return Err(failure.code),
                _ => {}
            }
        }
    }
    panic!("it is neither written nor refused")
}

#[test]
fn a_hash_comes_with_the_announcement_or_behind_the_payload_and_not_with_both() {
    for payload_first in [false, true] {
        assert_eq!(arrives(Some(HASH), None, payload_first), Ok(HASH));
        assert_eq!(arrives(None, Some(HASH), payload_first), Ok(HASH));
        assert_eq!(arrives(None, None, payload_first), Err(Code::Protocol));
        assert_eq!(arrives(Some(HASH), Some(HASH), payload_first), Err(Code::Protocol));
    }
}
