//! A file on which every read hangs (somebody has locked it, or a block of it is bad) is named alone: its target answers others.

#[path = "support/single.rs"]
#[allow(dead_code)]
mod single;
#[allow(dead_code)]
mod support;

use std::collections::{BTreeSet, VecDeque};

use haul_model::op::{MemberRead, SourceDone, SourceOp};
use haul_model::{Code, Entry, EntryId, Failure, Identity, Item, SlotId, Target, Token};
use haul_protocol::source::{Config, Source};
use haul_protocol::{Action, Event};
use haul_wire::{Answer, Message, Role};
use single::{file, source_config};
use support::{NoLog, OBJECT, on, peer};

const TARGET: Target = 4;
const OTHER: Target = 5;
const SECOND: u64 = 1_000_000_000;
const SMALL: u64 = 100;

/// What was sent of each file, and what was named, when all is done but the reads of the files that are locked.
#[derive(Default)]
struct Seen {
    sent: BTreeSet<EntryId>,
    dropped: Vec<(EntryId, Failure)>,
}

fn run(files: &[(Entry, Target)], locked: &[EntryId]) -> Seen {
    let config = Config {
        bundle_bytes_max: SMALL,
        hands: 2,
        hands_max: 12,
        slots: 24,
        slots_least: 24,
        hangs_after_nanos: Some(5 * SECOND),
        ..source_config()
    };
    let mut source = Source::new(config);
    let laid = |(entry, target): &(Entry, Target)| Item::Laid(entry.clone(), Box::new(on(*target)), None);
    // Only of what is sent in objects the sink keeps something.
    let token = |entry: &Entry| if entry.size() > SMALL { Token([1; 16]) } else { Token::NONE };
    let answers = files.iter().map(|(entry, _)| (entry.id, Answer::Start(token(entry))));
    let mut events: VecDeque<Event> = [
        Event::LinkUp { epoch: 1, peer: peer(Role::Sink, 24) },
        Event::Scanned(files.iter().map(laid).collect()),
        Event::ScanEnded,
        Event::Message(Message::BlockDone { slots: (0..24).map(SlotId).collect(), allowances: Vec::new() }),
        Event::Message(Message::FileId { answers: answers.collect(), laid: Vec::new(), unlike: Vec::new() }),
    ]
    .into();
    let mut seen = Seen::default();
    for second in 0..200 {
        events.push_back(Event::Tick);
        while let Some(event) = events.pop_front() {
            source.on_event(event, &mut NoLog, second * SECOND);
            while let Some(action) = source.next_action() {
                match action {
                    Action::Source(SourceOp::ReadObject { entry, .. }) if locked.contains(&entry.id) => {}
                    Action::Source(SourceOp::ReadObject { block, entry, .. }) => {
                        seen.sent.insert(entry.id);
                        let result = Ok(None);
                        events.push_back(Event::SourceDone(SourceDone::Object { block, result }));
                    }
                    Action::Source(SourceOp::ReadMembers { block, members, progress, .. }) => {
                        let hangs = members.iter().position(|entry| locked.contains(&entry.id));
                        if let Some(at) = hangs {
                            progress.begins(at);
                            continue;
                        }
                        seen.sent.extend(members.iter().map(|entry| entry.id));
                        let read =
                            |at: usize| Ok(MemberRead { offset: (at as u64 * SMALL) as u32, hash: None });
                        let results = (0..members.len()).map(read).collect();
                        let length = members.len() as u32 * SMALL as u32;
                        events.push_back(Event::SourceDone(SourceDone::Members { block, length, results }));
                    }
                    Action::Payload { block, .. } => events.push_back(Event::Sent(block)),
                    Action::Send(Message::FileDrop { id, failure, .. }) => seen.dropped.push((id, failure)),
                    Action::Ended(outcome) => panic!("{outcome:?}"),
                    _ => {}
                }
            }
        }
    }
    seen
}

fn big(id: u64, objects: u32) -> Entry {
    Entry { id: EntryId(id), name: id.to_string().into_bytes().into(), ..file(objects) }
}

fn small(id: u64) -> Entry {
    assert!(SMALL < OBJECT.into());
    Entry { identity: Identity { size: SMALL, ..Identity::default() }, ..big(id, 1) }
}

#[test]
fn a_big_file_on_which_reads_hang_is_named_alone() {
    let files = [(big(2, 9), TARGET), (big(3, 3), TARGET), (big(4, 1), TARGET), (big(5, 2), OTHER)];
    let seen = run(&files, &[EntryId(2)]);
    assert_eq!(seen.dropped, [(EntryId(2), Failure::os(Code::SourceRead, 110))]);
    assert_eq!(seen.sent, BTreeSet::from([3, 4, 5].map(EntryId)));
}

#[test]
fn a_small_one_is_too_and_those_in_its_bundle_are_sent() {
    let files = [(small(2), TARGET), (small(3), TARGET), (small(4), TARGET), (big(5, 2), OTHER)];
    let seen = run(&files, &[EntryId(3)]);
    assert_eq!(seen.dropped, [(EntryId(3), Failure::os(Code::SourceRead, 110))]);
    assert_eq!(seen.sent, BTreeSet::from([2, 4, 5].map(EntryId)));
}

#[test]
fn with_a_second_such_file_the_target_is_what_hangs() {
    let files = [(big(2, 3), TARGET), (big(3, 3), TARGET), (big(4, 1), TARGET), (big(5, 2), OTHER)];
    let seen = run(&files, &[2, 3, 4].map(EntryId));
    let dropped: BTreeSet<EntryId> = seen.dropped.iter().map(|(id, _)| *id).collect();
    assert_eq!((dropped, seen.sent), (BTreeSet::from([2, 3, 4].map(EntryId)), BTreeSet::from([EntryId(5)])));
}
