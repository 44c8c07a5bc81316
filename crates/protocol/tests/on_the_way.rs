//! Hashes that come behind payloads: what a source may leave to be hashed on its way, and what a sink takes for a hash.

#[path = "support/single.rs"]
mod single;
mod support;

use std::sync::Arc;

use haul_model::op::{MemberRead, Prepared, SinkDone, SinkOp, SourceDone, SourceOp};
use haul_model::{BlockId, Code, Entry, EntryId, Hash, Identity, Item, SlotId, Token};
use haul_protocol::sink::Sink;
use haul_protocol::source::Source;
use haul_protocol::{Action, Event, sink, source};
use haul_wire::{Answer, Member, Message, NewFile, Repair, RepairReason, Role};
use single::{ID, file, sink_begins, sink_config, source_begins, source_config};
use support::{NoLog, OBJECT, peer};

const HASH: Hash = Hash([7; 32]);

/// Small files and their sizes.
const SMALL: [(EntryId, u64); 3] = [(EntryId(2), 300), (EntryId(3), 20), (EntryId(4), 100)];

/// Each is a SOURCE of its own.
fn roots() -> Vec<Box<[u8]>> {
    [b"a", b"b", b"c"].map(|name| Box::from(name.as_slice())).into()
}

fn small((id, size): (EntryId, u64)) -> Entry {
    let parent = EntryId::root(id.0 as u32 - 2);
    Entry { id, parent, identity: Identity { size, ..Identity::default() }, ..file(1) }
}

/// What a source of one file asks of storage and announces. Storage has no hash where it need not.
struct From {
    source: Source,
    may_be_on_the_way: Vec<bool>,
    announced: Vec<(BlockId, Option<Hash>)>,
    manifests: Vec<(BlockId, Vec<Member>)>,
}

impl From {
    fn new(may: bool, objects: u32) -> From {
        From::with(source_config(), may, source_begins(objects))
    }

    fn with(config: source::Config, may: bool, begins: Vec<Event>) -> From {
        let (source, may_be_on_the_way) = (Source::new(config), Vec::new());
        let mut from = From { source, may_be_on_the_way, announced: Vec::new(), manifests: Vec::new() };
        from.event(Event::HashesOnTheWay(may));
        begins.into_iter().for_each(|event| from.event(event));
        from
    }

    /// Of small files.
    fn of_small(may: bool) -> From {
        let config = source::Config { bundle_bytes_max: OBJECT.into(), roots: roots(), ..source_config() };
        let slots = (0..8).map(SlotId).collect();
        let answers = SMALL.iter().map(|(id, _)| (*id, Answer::Start(Token::NONE))).collect();
        let begins = vec![
            Event::LinkUp { epoch: 1, peer: peer(Role::Sink, 8) },
            Event::Scanned(SMALL.map(|it| Item::Entry(small(it))).to_vec()),
            Event::ScanEnded,
            Event::Message(Message::BlockDone { slots, allowances: Vec::new() }),
            Event::Message(Message::FileId { answers, laid: Vec::new(), unlike: Vec::new() }),
        ];
        From::with(config, may, begins)
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
                Action::Source(SourceOp::ReadMembers { block, members, on_the_way, .. }) => {
                    self.may_be_on_the_way.push(on_the_way);
                    let mut length = 0;
                    let read = |(at, entry): (usize, Arc<Entry>)| {
                        let offset = length;
                        length += entry.size() as u32;
                        // What is small is hashed at once.
                        Ok(MemberRead { offset, hash: (!on_the_way || at == 1).then_some(HASH) })
                    };
                    let results = members.into_iter().enumerate().map(read).collect();
                    return self.event(Event::SourceDone(SourceDone::Members { block, length, results }));
                }
                Action::Send(Message::NewBlock { block, hash, .. }) => self.announced.push((block, hash)),
                Action::Send(Message::Manifest { block, members, .. }) => {
                    self.manifests.push((block, members));
                }
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

#[test]
fn members_of_bundles_are_too() {
    let mut near = From::of_small(true);
    assert_eq!(near.may_be_on_the_way, [true]);
    let hashes =
        |from: &From, at: usize| from.manifests[at].1.iter().map(|member| member.hash).collect::<Vec<_>>();
    assert_eq!(hashes(&near, 0), [None, Some(HASH), None]);
    near.event(Event::Sent(near.manifests[0].0));
    let again = |(id, _)| Repair { id, index: None, reason: RepairReason::Hash };
    near.event(Event::Message(Message::Repair(SMALL[..2].iter().copied().map(again).collect())));
    assert_eq!(near.may_be_on_the_way, [true, false], "what is sent again is looked at first");
    assert_eq!(hashes(&near, 1), [Some(HASH); 2]);

    assert_eq!(From::of_small(false).may_be_on_the_way, [false], "a network leaves time");
}

/// An object's announcement and payload come in this order; the hash that storage is to check, or how the session ends.
fn arrives(announced: Option<Hash>, followed: &[Hash], payload_first: bool) -> Result<Vec<Hash>, Code> {
    let (block, slot, epoch, length) = (BlockId(1), SlotId(0), 1, OBJECT);
    let announcement = Message::NewBlock { block, slot, epoch, id: ID, index: 1, length, hash: announced };
    meet(sink_config(), sink_begins(2), announcement, (length, followed), payload_first)
}

/// The same of a bundle.
fn bundle_arrives(
    announced: [Option<Hash>; 3],
    followed: &[Hash],
    payload_first: bool,
) -> Result<Vec<Hash>, Code> {
    let step = |it| {
        let entry = Arc::new(small(it));
        NewFile::Entry { entry, object_bytes: None, resume: None, stripes: None }
    };
    let prepared = SinkDone::Prepared {
        batch: 1,
        answers: SMALL.map(|(id, _)| (id, Prepared::Start(Token::NONE))).to_vec(),
        laid: Vec::new(),
        unlaid: Vec::new(),
    };
    let begins = vec![
        Event::LinkUp { epoch: 1, peer: peer(Role::Source, 8) },
        Event::Message(Message::NewFile(SMALL.map(step).to_vec())),
        Event::SinkDone(prepared),
    ];
    let offsets = [0, 300, 320];
    let members = (0..3).map(|at| Member { id: SMALL[at].0, offset: offsets[at], hash: announced[at] });
    let (block, slot, epoch, length) = (BlockId(1), SlotId(0), 1, 420);
    let announcement = Message::Manifest { block, slot, epoch, length, members: members.collect() };
    meet(
        sink::Config { roots: roots(), ..sink_config() },
        begins,
        announcement,
        (length, followed),
        payload_first,
    )
}

fn meet(
    config: sink::Config,
    begins: Vec<Event>,
    announcement: Message,
    (length, followed): (u32, &[Hash]),
    payload_first: bool,
) -> Result<Vec<Hash>, Code> {
    let mut sink = Sink::new(config);
    let (block, slot, epoch, hashes) = (BlockId(1), SlotId(0), 1, followed.to_vec());
    let mut both = [Event::Message(announcement), Event::Payload { epoch, block, slot, length, hashes }];
    if payload_first {
        both.reverse();
    }
    for event in begins.into_iter().chain(both) {
        sink.on_event(event, 0);
        while let Some(action) = sink.next_action() {
            match action {
                Action::Sink(SinkOp::WriteObject { hash, .. }) => return Ok(vec![hash]),
                Action::Sink(SinkOp::WriteMembers { members, .. }) => {
                    return Ok(members.iter().map(|member| member.hash).collect());
                }
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
        assert_eq!(arrives(Some(HASH), &[], payload_first), Ok(vec![HASH]));
        assert_eq!(arrives(None, &[HASH], payload_first), Ok(vec![HASH]));
        assert_eq!(arrives(None, &[], payload_first), Err(Code::Protocol));
        assert_eq!(arrives(None, &[HASH; 2], payload_first), Err(Code::Protocol));
        assert_eq!(arrives(Some(HASH), &[HASH], payload_first), Err(Code::Protocol));
    }
}

#[test]
fn so_does_that_of_each_member_in_their_order() {
    let [a, b, c] = [1, 2, 3].map(|byte| Hash([byte; 32]));
    for payload_first in [false, true] {
        let arrives = |announced, followed: &[Hash]| bundle_arrives(announced, followed, payload_first);
        assert_eq!(arrives([Some(a), Some(b), Some(c)], &[]), Ok(vec![a, b, c]));
        assert_eq!(arrives([None, Some(b), None], &[a, c]), Ok(vec![a, b, c]));
        assert_eq!(arrives([None; 3], &[a, b, c]), Ok(vec![a, b, c]));
        assert_eq!(arrives([None, Some(b), None], &[a]), Err(Code::Protocol));
        assert_eq!(arrives([None, Some(b), None], &[a, b, c]), Err(Code::Protocol));
        assert_eq!(arrives([Some(a), Some(b), Some(c)], &[a]), Err(Code::Protocol));
    }
}
