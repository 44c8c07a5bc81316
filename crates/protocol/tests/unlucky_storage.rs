//! What storage fails to read or write is tried again, so often and not more often; then its file is named, and only that.

#[path = "support/single.rs"]
mod single;
mod support;

use haul_model::limits::ATTEMPTS_MAX;
use haul_model::op::{SinkDone, SinkOp, SourceDone, SourceOp};
use haul_model::report::Fact;
use haul_model::{BlockId, Code, Failure, Hash, SlotId};
use haul_protocol::sink::Sink;
use haul_protocol::source::Source;
use haul_protocol::{Action, Event};
use haul_wire::{Message, Settled};
use single::{ID, sink_begins, sink_config, source_begins, source_config};
use support::{NoLog, OBJECT};

const HASH: Hash = Hash([7; 32]);
const EIO: i32 = 5;

/// What became of an object that storage failed so often: how often it was tried, whether it went on, and what was said of
/// its file.
#[derive(PartialEq, Debug)]
struct Ending {
    tries: u8,
    went_on: bool,
    named: Option<Failure>,
}

fn read_after(failures: u8, failure: Failure) -> Ending {
    let mut source = Source::new(source_config());
    let mut ending = Ending { tries: 0, went_on: false, named: None };
    let mut events = source_begins(1);
    events.reverse();
    while let Some(event) = events.pop() {
        source.on_event(event, &mut NoLog, 0);
        while let Some(action) = source.next_action() {
            match action {
                Action::Source(SourceOp::ReadObject { block, .. }) => {
                    ending.tries += 1;
                    let result = if ending.tries <= failures { Err(failure) } else { Ok(Some(HASH)) };
                    events.push(Event::SourceDone(SourceDone::Object { block, result }));
                }
                Action::Send(Message::NewBlock { .. }) => ending.went_on = true,
                Action::Fact(Fact::Failed { failure, .. }) => ending.named = Some(failure),
                Action::Ended(outcome) => panic!("{outcome:?}"),
                _ => {}
            }
        }
    }
    ending
}

fn written_after(failures: u8, failure: Failure) -> Ending {
    let mut sink = Sink::new(sink_config());
    let mut ending = Ending { tries: 0, went_on: false, named: None };
    let (block, slot, epoch, length) = (BlockId(1), SlotId(0), 1, OBJECT);
    let hash = Some(HASH);
    let mut events = sink_begins(2);
    events.push(Event::Message(Message::NewBlock { block, slot, epoch, id: ID, index: 1, length, hash }));
    events.push(Event::Payload { epoch, block, slot, length, hashes: Vec::new() });
    events.reverse();
    while let Some(event) = events.pop() {
        sink.on_event(event, 0);
        while let Some(action) = sink.next_action() {
            match action {
                Action::Sink(SinkOp::WriteObject { block, slot: from, .. }) => {
                    assert_eq!(from, slot, "it is where it came to");
                    ending.tries += 1;
                    let result = if ending.tries <= failures { Err(failure) } else { Ok(()) };
                    ending.went_on = result.is_ok();
                    events.push(Event::SinkDone(SinkDone::Written { block, result }));
                }
                Action::Grant(freed) if freed == slot && ending.tries > 0 => {
                    assert!(events.is_empty(), "its object is still to be written from there");
                }
                Action::Sink(SinkOp::Discard { id, .. }) => {
                    events.push(Event::SinkDone(SinkDone::Discarded { id }));
                }
                Action::Send(Message::BlockSync { entries, .. }) => {
                    for (_, end) in entries {
                        // What is durable of it stays.
                        let (Settled::Failed(failure) | Settled::Kept(failure)) = end else {
                            panic!("{end:?}")
                        };
                        ending.named = Some(failure);
                    }
                }
                Action::Ended(outcome) => panic!("{outcome:?}"),
                _ => {}
            }
        }
    }
    ending
}

#[test]
fn what_cannot_be_read_is_tried_four_times_and_then_named() {
    assert_eq!(ATTEMPTS_MAX, 4);
    let failure = Failure::os(Code::SourceRead, EIO);
    for failures in 0..4 {
        assert_eq!(read_after(failures, failure), Ending { tries: failures + 1, went_on: true, named: None });
    }
    assert_eq!(read_after(4, failure), Ending { tries: 4, went_on: false, named: Some(failure) });
}

#[test]
fn what_cannot_be_written_is_tried_four_times_and_then_named() {
    let failure = Failure::os(Code::SinkWrite, EIO);
    for failures in 0..4 {
        assert_eq!(
            written_after(failures, failure),
            Ending { tries: failures + 1, went_on: true, named: None }
        );
    }
    assert_eq!(written_after(4, failure), Ending { tries: 4, went_on: false, named: Some(failure) });
}

#[test]
fn what_no_further_try_can_mend_is_not_tried_again() {
    let vanished = Failure::new(Code::SourceVanished);
    assert_eq!(read_after(9, vanished), Ending { tries: 1, went_on: false, named: Some(vanished) });
    let denied = Failure::os(Code::SinkPermission, 13);
    assert_eq!(written_after(9, denied), Ending { tries: 1, went_on: false, named: Some(denied) });
}
