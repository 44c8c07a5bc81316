//! What becomes of a big file of which all is durable, when one of its last steps fails, and of one for which there is no room.

#[path = "support/single.rs"]
mod single;
mod support;

use haul_model::op::{SinkDone, SinkOp, SourceDone, SourceOp};
use haul_model::report::Fact;
use haul_model::{BlockId, Code, Failure, Hash, SlotId};
use haul_protocol::sink::Sink;
use haul_protocol::source::Source;
use haul_protocol::{Action, Event, LogOp};
use haul_wire::{Message, Settled};
use single::{ID, sink_begins, sink_config, source_begins, source_config};
use support::{NoLog, OBJECT};

const HASH: Hash = Hash([7; 32]);
const SYNC: Failure = Failure::os(Code::SinkSync, 5);
const NAME: Failure = Failure::os(Code::SinkWrite, 5);

const FULL: Failure = Failure::os(Code::SinkNoSpace, 28);

type Steps = Vec<&'static str>;

/// The steps after FILE_CLOSE, of which some fail (which one, the how manieth of its kind), and how the file ended.
fn close(failing: &[(&str, usize, Failure)]) -> (Steps, Settled) {
    let mut sink = Sink::new(sink_config());
    let (block, slot, epoch, length) = (BlockId(1), SlotId(0), 1, OBJECT);
    let (hash, index) = (Some(HASH), 0);
    let mut events = sink_begins(1);
    events.push(Event::Message(Message::NewBlock { block, slot, epoch, id: ID, index, length, hash }));
    events.push(Event::Payload { epoch, block, slot, length, hashes: Vec::new() });
    events.reverse();
    let (mut steps, mut end) = (Steps::new(), None);
    let step = |steps: &mut Steps, name| {
        steps.push(name);
        let count = steps.iter().filter(|step| **step == name).count();
        // The first thing of all is the sync of its object.
        let failure =
            failing.iter().find(|(step, nth, _)| steps[0] != "sync" && (*step, *nth) == (name, count));
        failure.map(|(_, _, failure)| *failure)
    };
    while let Some(event) = events.pop() {
        sink.on_event(event, 0);
        while let Some(action) = sink.next_action() {
            match action {
                Action::Sink(SinkOp::WriteObject { block, .. }) => {
                    events.push(Event::SinkDone(SinkDone::Written { block, result: Ok(()) }));
                }
                Action::Errand { number, op, .. } => {
                    let mut of_file = |name| step(&mut steps, name).map(|failure| (ID, failure)).into_iter();
                    let done = match op {
                        SinkOp::Sync { group, .. } => {
                            SinkDone::Synced { group, failed: of_file("sync").collect() }
                        }
                        SinkOp::Publish { group, .. } => {
                            SinkDone::Published { group, failed: of_file("name").collect() }
                        }
                        SinkOp::SyncNames { group, .. } => {
                            SinkDone::SyncedNames { group, failed: of_file("sync of the name").collect() }
                        }
                        SinkOp::Seal { .. } => {
                            let failure = of_file("seal").next().map(|(_, failure)| failure);
                            SinkDone::Sealed { id: ID, result: failure.map_or(Ok(HASH), Err) }
                        }
                        SinkOp::Discard { id, keep, .. } => {
                            of_file(if keep { "let go" } else { "remove" }).for_each(drop);
                            SinkDone::Discarded { id }
                        }
                        other => panic!("{other:?}"),
                    };
                    events.push(Event::ErrandDone { number, done });
                }
                Action::Send(Message::BlockSync { objects, entries }) => {
                    if !objects.is_empty() {
                        assert_eq!(std::mem::take(&mut steps), ["sync"], "of its object");
                        events.push(Event::Message(Message::FileClose { id: ID, root: hash }));
                    }
                    end = entries.first().map(|(_, end)| *end).or(end);
                }
                Action::Ended(outcome) => panic!("{outcome:?}"),
                _ => {}
            }
        }
    }
    (steps, end.expect("it has ended"))
}

/// What a source does with the log of a file of so many objects that has ended like this, when all of it was durable. Or what it ends with.
fn log_after(end: Settled, objects: u32) -> Result<Vec<LogOp>, Failure> {
    let mut source = Source::new(source_config());
    let mut events = source_begins(objects);
    events.reverse();
    let mut logged = Vec::new();
    while let Some(event) = events.pop() {
        source.on_event(event, &mut NoLog, 0);
        while let Some(action) = source.next_action() {
            match action {
                Action::Source(SourceOp::ReadObject { block, .. }) => {
                    events.push(Event::SourceDone(SourceDone::Object { block, result: Ok(Some(HASH)) }));
                }
                Action::Send(Message::NewBlock { id, index, .. }) => {
                    let objects = vec![(id, index)];
                    events.push(Event::Message(Message::BlockSync { objects, entries: Vec::new() }));
                }
                Action::Source(SourceOp::Confirm { entry }) => {
                    events.push(Event::SourceDone(SourceDone::Confirmed { id: entry.id, result: Ok(()) }));
                }
                Action::Send(Message::FileClose { id, .. }) => {
                    events.push(Event::Message(Message::BlockSync {
                        objects: Vec::new(),
                        entries: vec![(id, end)],
                    }));
                }
                Action::Log(op) => logged.push(op),
                Action::Ended(outcome) => return Err(outcome.failure.expect("it is broken")),
                _ => {}
            }
        }
    }
    Ok(logged)
}

#[test]
fn a_sealed_file_whose_sync_fails_is_sealed_once_more() {
    let (steps, end) = close(&[("sync", 1, SYNC)]);
    assert_eq!(steps, ["seal", "sync", "seal", "sync", "name", "sync of the name"]);
    assert_eq!(end, Settled::Done(Some(HASH)));
}

#[test]
fn what_is_durable_stays_when_a_last_step_fails() {
    let again: [&str; 4] = ["seal", "sync", "seal", "sync"];
    for (failing, steps) in [
        (vec![("sync", 1, SYNC), ("sync", 2, SYNC)], [&again[..], &["let go"]].concat()),
        (vec![("sync", 1, SYNC), ("name", 1, NAME)], [&again[..], &["name", "let go"]].concat()),
        (vec![("name", 1, NAME)], vec!["seal", "sync", "name", "let go"]),
        (vec![("sync of the name", 1, SYNC)], vec!["seal", "sync", "name", "sync of the name", "let go"]),
        (vec![("seal", 1, Code::SinkAttributes.into())], vec!["seal", "let go"]),
    ] {
        let failure = failing.last().unwrap().2;
        assert_eq!(close(&failing), (steps, Settled::Kept(failure)), "{failing:?}");
    }
    let wrong = Failure::new(Code::HashMismatch);
    assert_eq!(close(&[("seal", 1, wrong)]), (vec!["seal", "remove"], Settled::Failed(wrong)));
}

#[test]
fn the_log_of_a_file_stays_with_its_unfinished_file() {
    let removed = |end| matches!(log_after(end, 1).unwrap().last(), Some(LogOp::Remove { id: ID }));
    assert!(removed(Settled::Done(Some(HASH))));
    assert!(removed(Settled::Failed(NAME)));
    assert!(!removed(Settled::Kept(NAME)));
}

/// What is told, in order.
#[derive(Debug, PartialEq)]
enum Told {
    Durable(u32),
    Settled(Settled),
    Failed(Failure),
    Error(Failure),
}

#[test]
fn what_was_written_is_acknowledged_before_the_file_is_named_and_the_job_ends() {
    let mut sink = Sink::new(sink_config());
    let mut events = sink_begins(2);
    for index in 0..2 {
        let (block, slot, epoch, length) = (BlockId(u64::from(index) + 1), SlotId(index), 1, OBJECT);
        let hash = Some(Hash([7; 32]));
        events.push(Event::Message(Message::NewBlock { block, slot, epoch, id: ID, index, length, hash }));
        events.push(Event::Payload { epoch, block, slot, length, hashes: Vec::new() });
    }
    let (mut told, mut writes, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
    let mut handle = |sink: &mut Sink, event| {
        sink.on_event(event, 0);
        while let Some(action) = sink.next_action() {
            match action {
                Action::Sink(SinkOp::WriteObject { block, .. }) => writes.push(block),
                Action::Errand { number, op: SinkOp::Sync { group, .. }, .. } => {
                    let done = SinkDone::Synced { group, failed: Vec::new() };
                    syncs.push(Event::ErrandDone { number, done });
                }
                Action::Send(Message::BlockSync { objects, entries }) => {
                    told.extend(objects.iter().map(|(_, index)| Told::Durable(*index)));
                    told.extend(entries.iter().map(|(_, end)| Told::Settled(*end)));
                }
                Action::Send(Message::Error(failure)) => told.push(Told::Error(failure)),
                Action::Fact(Fact::Failed { failure, .. }) => told.push(Told::Failed(failure)),
                _ => {}
            }
        }
        (std::mem::take(&mut writes), std::mem::take(&mut syncs))
    };
    let mut blocks = Vec::new();
    for event in events {
        blocks.extend(handle(&mut sink, event).0);
    }
    let [first, second] = blocks[..] else { panic!("{blocks:?}") };
    let (_, mut under_way) =
        handle(&mut sink, Event::SinkDone(SinkDone::Written { block: first, result: Ok(()) }));
    let full = SinkDone::Written { block: second, result: Err(FULL) };
    under_way.extend(handle(&mut sink, Event::SinkDone(full)).1);
    assert!(!under_way.is_empty());
    while let Some(event) = under_way.pop() {
        under_way.extend(handle(&mut sink, event).1);
    }
    use Told::{Durable, Error, Failed};
    let end = Told::Settled(Settled::Kept(FULL));
    assert_eq!(told, [Durable(0), Failed(FULL), end, Error(FULL)]);
}

#[test]
fn nor_does_the_other_end_say_what_is_wrong_here() {
    for end in [Settled::Failed(Code::SourceVanished.into()), Settled::Kept(Code::SourceRead.into())] {
        assert_eq!(log_after(end, 1), Err(Failure::new(Code::Protocol)), "{end:?}");
    }
}

/// The other end cannot say that a file is another one than was read here, where one object is all of it.
#[test]
fn a_hash_that_was_read_here_is_not_taken_from_the_other_end() {
    let other = Hash([8; 32]);
    for claimed in [Some(other), None] {
        assert_eq!(log_after(Settled::Done(claimed), 1), Err(Failure::new(Code::Protocol)), "{claimed:?}");
    }
    // Of several objects it is the other end that has put them together.
    assert!(log_after(Settled::Done(Some(other)), 2).is_ok());
}
