//! Files with objects on a target that does not answer: what stays of them for a later session, and what does not.

#[path = "support/many.rs"]
mod many;
#[path = "support/single.rs"]
#[allow(dead_code)]
mod single;
#[allow(dead_code)]
mod support;

use std::collections::VecDeque;
use std::sync::Arc;

use haul_model::op::{Prepared, SinkDone, SinkOp};
use haul_model::placement::Piece;
use haul_model::{BlockId, Code, Entry, EntryId, Failure, Hash, Laid, Placement, SlotId, Target, Token};
use haul_protocol::sink::{Config, Sink};
use haul_protocol::{Action, Event};
use haul_wire::{Message, NewFile, Role, Settled};
use many::roots;
use single::{file, sink_config};
use support::{OBJECT, peer};

/// It answers.
const GOOD: Target = 3;
const HUNG: Target = 4;
const SECOND: u64 = 1_000_000_000;

/// Until these files may be sent, whose objects are on these targets, one after the other.
fn begins(files: &[(EntryId, &[Target])]) -> VecDeque<Event> {
    let laid = |targets: &[Target]| {
        let pieces = vec![Piece { first: 0, run: 1, targets: targets.into() }];
        Laid { object_bytes: OBJECT, placement: Placement::new(pieces).unwrap() }
    };
    let step = |(id, targets): &(EntryId, &[Target])| {
        let name = id.0.to_string().into_bytes().into();
        let entry = Arc::new(Entry {
            id: *id,
            parent: EntryId::root(id.0 as u32),
            name,
            ..file(targets.len() as u32)
        });
        NewFile::Entry { entry, object_bytes: Some(OBJECT), resume: None, stripes: None }
    };
    let prepared = SinkDone::Prepared {
        batch: 1,
        answers: files.iter().map(|(id, _)| (*id, Prepared::Start(Token([id.0 as u8; 16])))).collect(),
        laid: files.iter().map(|(id, targets)| (*id, laid(targets))).collect(),
        unlaid: Vec::new(),
    };
    [
        Event::LinkUp { epoch: 1, peer: peer(Role::Source, 8) },
        Event::Message(Message::NewFile(files.iter().map(step).collect())),
        Event::SinkDone(prepared),
    ]
    .into()
}

/// An object, in the slot of the same number as its block.
fn object(block: u64, id: EntryId, index: u32) -> [Event; 2] {
    let (slot, epoch, length, hash) = (SlotId(block as u32), 1, OBJECT, Some(Hash([7; 32])));
    let block = BlockId(block);
    [
        Event::Message(Message::NewBlock { block, slot, epoch, id, index, length, hash }),
        Event::Payload { epoch, block, slot, length, hashes: Vec::new() },
    ]
}

/// What the sink does with its files.
#[derive(Default)]
struct Seen {
    settled: Vec<(EntryId, Settled)>,
    /// Whether a file stays that storage is to let go of.
    discarded: Vec<(EntryId, bool)>,
    hanging: Vec<BlockId>,
    /// Files of which an object is.
    durable: Vec<EntryId>,
}

struct Bed {
    sink: Sink,
    seen: Seen,
    hangs: Vec<EntryId>,
}

impl Bed {
    fn new(hangs: &[EntryId]) -> Bed {
        let config =
            Config { lies_apart: true, hangs_after_nanos: Some(5 * SECOND), roots: roots(), ..sink_config() };
        Bed { sink: Sink::new(config), seen: Seen::default(), hangs: hangs.to_vec() }
    }

    /// Everything is done at once, but for the second objects of all files and all of those that hang.
    fn play(&mut self, mut events: VecDeque<Event>, now_seconds: u64) {
        while let Some(event) = events.pop_front() {
            self.sink.on_event(event, now_seconds * SECOND);
            while let Some(action) = self.sink.next_action() {
                match action {
                    Action::Sink(SinkOp::WriteObject { block, entry, offset, .. }) => {
                        if offset > 0 || self.hangs.contains(&entry.id) {
                            self.seen.hanging.push(block);
                        } else {
                            events.push_back(Event::SinkDone(SinkDone::Written { block, result: Ok(()) }));
                        }
                    }
                    Action::Errand { number, op, .. } => {
                        let done = match op {
                            SinkOp::Sync { group, files } => {
                                self.seen.durable.extend(files);
                                SinkDone::Synced { group, failed: Vec::new() }
                            }
                            SinkOp::Discard { id, keep, .. } => {
                                self.seen.discarded.push((id, keep));
                                SinkDone::Discarded { id }
                            }
                            other => panic!("{other:?}"),
                        };
                        events.push_back(Event::ErrandDone { number, done });
                    }
                    Action::Send(Message::BlockSync { entries, .. }) => self.seen.settled.extend(entries),
                    Action::Ended(outcome) => panic!("{outcome:?}"),
                    _ => {}
                }
            }
        }
    }

    fn wait(&mut self, from_seconds: u64, to_seconds: u64) {
        (from_seconds..to_seconds).for_each(|now| self.play([Event::Tick].into(), now));
    }
}

#[test]
fn a_file_that_only_waits_for_a_target_that_answers_no_more_stays() {
    let (waits, hangs, other) = (EntryId(2), EntryId(3), EntryId(4));
    let mut bed = Bed::new(&[hangs, other]);
    let mut events = begins(&[(waits, &[GOOD, HUNG]), (hangs, &[HUNG; 3]), (other, &[HUNG; 3])]);
    events.extend(object(0, waits, 0));
    (0..3).for_each(|index| {
        events.extend(object(1 + 2 * u64::from(index), hangs, index));
        events.extend(object(2 + 2 * u64::from(index), other, index));
    });
    bed.play(events, 0);
    // As many as there are threads for it are at it already.
    bed.play(object(7, waits, 1).into(), 1);
    bed.wait(1, 300);
    let end = |id| bed.seen.settled.iter().find(|(of, _)| *of == id).map(|(_, end)| *end);
    let timed_out = Failure::os(Code::SinkWrite, 110);
    assert_eq!(end(waits), Some(Settled::Kept(timed_out)), "what is on the other target is durable");
    assert_eq!(end(hangs), Some(Settled::Failed(timed_out)), "it may be written to yet");
}

#[test]
fn a_file_on_which_writes_hang_is_named_alone() {
    let (hangs, other, elsewhere) = (EntryId(2), EntryId(3), EntryId(4));
    let mut bed = Bed::new(&[hangs]);
    let mut events = begins(&[(hangs, &[HUNG; 6]), (other, &[HUNG]), (elsewhere, &[GOOD])]);
    events.extend(object(0, elsewhere, 0));
    (0..6).for_each(|index| events.extend(object(1 + u64::from(index), hangs, index)));
    bed.play(events, 0);
    bed.wait(1, 60);
    let timed_out = Failure::os(Code::SinkWrite, 110);
    assert_eq!(bed.seen.settled, [(hangs, Settled::Failed(timed_out))]);
    bed.play(object(7, other, 0).into(), 60);
    bed.wait(60, 300);
    assert_eq!((bed.seen.settled.len(), bed.seen.durable), (1, vec![elsewhere, other]), "its target answers");
}

#[test]
fn a_file_that_was_to_stay_does_not_when_a_write_of_it_hangs() {
    let id = EntryId(2);
    let failure = Failure::os(Code::SourceRead, 5);
    for hangs in [false, true] {
        let mut bed = Bed::new(&[]);
        let mut events = begins(&[(id, &[GOOD, HUNG])]);
        events.extend(object(0, id, 0));
        events.extend(object(1, id, 1));
        // While the second one is being written the source cannot read a third.
        events.push_back(Event::Message(Message::FileDrop { id, failure, restarts: false }));
        bed.play(events, 0);
        assert_eq!((bed.seen.hanging.len(), bed.seen.discarded.len()), (1, 0));
        if hangs {
            bed.wait(1, 60);
        }
        let block = bed.seen.hanging[0];
        bed.play([Event::SinkDone(SinkDone::Written { block, result: Ok(()) })].into(), 61);
        assert_eq!(bed.seen.discarded, [(id, !hangs)]);
    }
}
