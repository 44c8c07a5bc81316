//! Every message survives its bytes; any bytes give a message or an error; version 8 is pinned byte for byte.

use std::sync::Arc;

use haul_model::limits::{MESSAGE_BYTES_MAX, TARGETS_MAX};
use haul_model::placement::{Laid, Piece, Placement};
use haul_model::profile::{Buffers, Profile, Spent, Stage, Waiting};
use haul_model::report::{FailedPaths, Stats};
use haul_model::stripe::{Count, Part, Plan, Pool, Unlike, Where};
use haul_model::{
    Attributes, BlockId, Code, Entry, EntryId, Failure, Hash, Identity, JobId, Kind, SessionId, SlotId,
    Timestamp, Token,
};
use haul_wire::*;
use proptest::prelude::*;

fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

fn time() -> impl Strategy<Value = Timestamp> {
    (any::<i64>(), 0u32..1_000_000_000).prop_map(|(seconds, nanos)| Timestamp { seconds, nanos })
}

fn id() -> impl Strategy<Value = EntryId> {
    (1u64..1 << 62).prop_map(EntryId)
}

fn parent_and_name() -> impl Strategy<Value = (EntryId, Vec<u8>)> {
    let name = prop::collection::vec(any::<u8>(), 1..64).prop_map(|mut name| {
        name.iter_mut().filter(|byte| matches!(**byte, 0 | b'/')).for_each(|byte| *byte = b'x');
        if matches!(&name[..], b"." | b"..") { b"dots".to_vec() } else { name }
    });
    prop_oneof![(0u32..1000).prop_map(|index| (EntryId::root(index), Vec::new())), (id(), name)]
}

fn entry() -> impl Strategy<Value = Entry> {
    let kind = prop_oneof![Just(Kind::File), Just(Kind::Directory), Just(Kind::Symlink)];
    let numbers = (0u32..=0o7777, any::<u32>(), any::<u32>(), 1u64..1 << 62, any::<u64>(), any::<u32>());
    (kind, id(), parent_and_name(), numbers, [time(), time(), time()]).prop_map(
        |(kind, id, (parent, name), (mode, uid, gid, size, inode, links), [mtime, atime, ctime])| {
            let file = kind == Kind::File;
            Entry {
                id,
                parent,
                name: name.into(),
                kind,
                attributes: Attributes { mode, uid, gid, mtime, atime },
                identity: if file { Identity { size, mtime, ctime, inode } } else { Identity::default() },
                links: if file { links } else { 1 },
                link_target: if kind == Kind::Symlink { Box::from(&b"to\xff"[..]) } else { Box::default() },
            }
        },
    )
}

fn token() -> impl Strategy<Value = Token> {
    any::<[u8; 16]>().prop_map(|bytes| Token(if bytes == [0; 16] { [1; 16] } else { bytes }))
}

fn hash() -> impl Strategy<Value = Hash> {
    any::<[u8; 32]>().prop_map(Hash)
}

fn failure() -> impl Strategy<Value = Failure> {
    (prop::sample::select(Code::ALL), 0i32..200).prop_map(|(code, errno)| Failure::os(code, errno))
}

fn new_file() -> impl Strategy<Value = NewFile> {
    prop_oneof![
        id().prop_map(NewFile::End),
        (entry(), prop::option::of(0u32..=64 << 20), prop::option::of(token()), prop::option::of(plan()))
            .prop_map(|(entry, object_bytes, resume, stripes)| {
                let object_bytes = object_bytes.filter(|_| entry.size() > 0);
                let resume = resume.filter(|_| object_bytes.is_some());
                let stripes = stripes.filter(|_| object_bytes.is_some()).map(Box::new);
                NewFile::Entry { entry: Arc::new(entry), object_bytes, resume, stripes }
            }),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let count = prop_oneof![Just(Count::Default), Just(Count::All), (1u16..=2000).prop_map(Count::Exactly)];
    let place = prop::sample::select(vec![Where::Targets, Where::TargetsRepeated, Where::Metadata]);
    let pool = prop::option::of("[a-z0-9_-]{1,15}").prop_map(|name| name.and_then(|name| Pool::new(&name)));
    let part = (1u64..1 << 40, place, count, any::<u32>(), pool);
    (prop::collection::vec(part, 1..6), any::<bool>()).prop_map(|(parts, to_the_end)| {
        let mut end = 0;
        let parts = parts.into_iter().map(|(length, place, count, stripe_size, pool)| {
            end += length;
            Part { end, place, count, stripe_size, pool }
        });
        let mut parts: Vec<_> = parts.collect();
        if to_the_end {
            parts.last_mut().unwrap().end = u64::MAX;
        }
        Plan::new(parts).expect("upwards and within the limits")
    })
}

fn unlike() -> impl Strategy<Value = (EntryId, Unlike)> {
    (id(), prop::sample::select(&Unlike::ALL[..]))
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        Just(Answer::Skip),
        Just(Answer::Made),
        Just(Answer::Start(Token::NONE)),
        token().prop_map(Answer::Start),
        token().prop_map(Answer::Resume),
        failure().prop_map(Answer::Fail),
    ]
}

fn laid() -> impl Strategy<Value = Laid> {
    let targets = prop::collection::vec(0u16..TARGETS_MAX as u16, 1..9);
    let piece = (1u32..1000, 1u32..50, targets);
    (0u32..=64 << 20, prop::collection::vec(piece, 0..5)).prop_map(|(object_bytes, pieces)| {
        let mut next = 0;
        let pieces = pieces.into_iter().map(|(length, run, targets)| {
            let first = next;
            next += length;
            Piece { first, run, targets: targets.into() }
        });
        Laid {
            object_bytes,
            placement: Placement::new(pieces.collect()).expect("in order and within the limits"),
        }
    })
}

fn block() -> impl Strategy<Value = (BlockId, SlotId, u32, u32)> {
    (any::<u64>(), 0u32..4096, any::<u32>(), 0u32..=64 << 20)
        .prop_map(|(block, slot, epoch, length)| (BlockId(block), SlotId(slot), epoch, length))
}

fn repair() -> impl Strategy<Value = Repair> {
    let reason = prop::sample::select(vec![RepairReason::Lost, RepairReason::Hash, RepairReason::Sync]);
    (id(), prop::option::of(0u32..u32::MAX), reason).prop_map(|(id, index, reason)| Repair {
        id,
        index,
        reason,
    })
}

fn list<T: std::fmt::Debug>(item: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
    prop::collection::vec(item, 0..20)
}

fn message() -> impl Strategy<Value = Message> {
    let path = || prop::collection::vec(any::<u8>(), 0..200).prop_map(Vec::into_boxed_slice);
    let settled = prop_oneof![
        prop::option::of(hash()).prop_map(Settled::Done),
        failure().prop_map(Settled::Failed),
        failure().prop_map(Settled::Kept)
    ];
    let connect = (
        any::<[u16; 2]>(),
        any::<[[u8; 16]; 2]>(),
        any::<bool>(),
        0u32..=64 << 20,
        0u32..=4096,
        any::<u64>(),
    )
        .prop_map(|([version, version_min], [session, job], sink, object_bytes, slots, features)| Connect {
            version,
            version_min,
            role: if sink { Role::Sink } else { Role::Source },
            session: SessionId(session),
            job: JobId(job),
            object_bytes,
            slots,
            features,
        });
    let member = (id(), 0u32..=64 << 20, prop::option::of(hash())).prop_map(|(id, offset, hash)| Member {
        id,
        offset,
        hash,
    });
    prop_oneof![
        connect.prop_map(Message::Connect),
        list(new_file()).prop_map(Message::NewFile),
        (list((id(), answer())), list((id(), laid())), prop::collection::vec(unlike(), 0..=2))
            .prop_map(|(answers, laid, unlike)| Message::FileId { answers, laid, unlike }),
        (block(), id(), 0u32..u32::MAX, prop::option::of(hash())).prop_map(
            |((block, slot, epoch, length), id, index, hash)| {
                Message::NewBlock { block, slot, epoch, id, index, length, hash }
            }
        ),
        (block(), list(member)).prop_map(|((block, slot, epoch, length), members)| Message::Manifest {
            block,
            slot,
            epoch,
            length,
            members
        }),
        (list((0u32..4096).prop_map(SlotId)), list((0u16..TARGETS_MAX as u16, any::<u32>())))
            .prop_map(|(slots, allowances)| Message::BlockDone { slots, allowances }),
        (list((id(), 0u32..u32::MAX)), list((id(), settled)))
            .prop_map(|(objects, entries)| Message::BlockSync { objects, entries }),
        list(repair()).prop_map(Message::Repair),
        (id(), prop::option::of(hash())).prop_map(|(id, root)| Message::FileClose { id, root }),
        (id(), failure(), any::<bool>()).prop_map(|(id, failure, restarts)| Message::FileDrop {
            id,
            failure,
            restarts
        }),
        (path(), failure()).prop_map(|(path, failure)| Message::Notice { path, failure }),
        (id(), any::<u64>(), any::<u64>()).prop_map(|(id, objects, bytes)| Message::Before {
            id,
            objects,
            bytes
        }),
        any::<[u64; 4]>().prop_map(|[files_total, bytes_sent, objects_repaired, bytes_spilled]| {
            Message::Bye(Stats {
                files_total,
                bytes_sent,
                objects_repaired,
                bytes_spilled,
                ..Stats::default()
            })
        }),
        (failure(), any::<u64>()).prop_map(|(failure, room)| Message::Spill { failure, room }),
        profile().prop_map(|profile| Message::Profile(Box::new(profile))),
        (list((path(), failure())), any::<u64>())
            .prop_map(|(named, more)| { Message::Finished(FailedPaths::from_iter(named).with_more(more)) }),
        failure().prop_map(Message::Error),
        Just(Message::Ping),
        (any::<[[u8; 5]; 3]>(), any::<[u64; 2]>(), path(), path()).prop_map(
            |(words, [bytes_peak, files_peak], location, lost)| {
                let [mechanism, method, writer] = words.map(|word| Box::from(&word[..]));
                Message::Log(Box::new(LogStatus {
                    mechanism,
                    method,
                    writer,
                    bytes_peak,
                    files_peak,
                    location,
                    lost,
                }))
            }
        ),
    ]
}

fn profile() -> impl Strategy<Value = Profile> {
    let spent = any::<[[u64; 4]; Stage::COUNT]>();
    let buffers = (any::<[u32; 3]>(), any::<Option<u64>>());
    (any::<[u64; 2]>(), any::<u32>(), 0u16..=1000, spent, any::<[u64; Waiting::COUNT]>(), buffers).prop_map(
        |(nanos, processors, host_busy_permille, spent, waited, (slots, round_trip_nanos))| {
            let ([wall_nanos, processor_nanos], [slots_used, slots, slot_bytes]) = (nanos, slots);
            let buffers = Buffers { slots_used, slots, slot_bytes };
            let mut profile = Profile {
                wall_nanos,
                processor_nanos,
                processors,
                host_busy_permille,
                buffers,
                round_trip_nanos,
                ..Profile::default()
            };
            for (stage, [busy_nanos, processor_nanos, times, bytes]) in Stage::ALL.iter().zip(spent) {
                *profile.spent_mut(*stage) = Spent { busy_nanos, processor_nanos, times, bytes };
            }
            for (waiting, nanos) in Waiting::ALL.iter().zip(waited) {
                *profile.waited_nanos_mut(*waiting) = nanos;
            }
            profile
        },
    )
}

/// A later version may know more stages; a hostile end may say anything.
#[test]
fn what_a_profile_names_that_nobody_knows_is_passed_over_and_bounded() {
    let mut known = Profile { wall_nanos: 9, processors: 2, ..Profile::default() };
    known.spent_mut(Stage::Sync).times = 5;
    *known.waited_nanos_mut(Waiting::Sync) = 6;
    let sync = [Stage::Sync as u8, 0, 0, 5, 0];
    let later =
        [&[9, 0, 2, 0, 2, 60, 1, 2, 3, 4][..], &sync, &[2, Waiting::Sync as u8, 6, 61, 1, 0, 0, 0, 0]]
            .concat();
    assert_eq!(Message::decode(17, &later), Ok(Message::Profile(Box::new(known))));
    let many =
        |count: u8| [&[9, 0, 2, 0, 0, count][..], &[61, 1].repeat(usize::from(count)), &[0; 4]].concat();
    assert!(Message::decode(17, &many(64)).is_ok());
    assert!(Message::decode(17, &many(65)).is_err());
    assert!(Message::decode(17, &[9, 0, 2, 0, 0, 0, 0, 0, 0, 2, 0]).is_err(), "neither known nor unknown");
    assert!(Message::decode(17, &[9, 0, 2, 0xe9, 0x07, 0, 0]).is_err(), "more than all of the time");
}

proptest! {
    #[test]
    fn a_message_survives_its_bytes(message in message()) {
        let bytes = encode(&message);
        prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
        prop_assert_eq!(Message::decode(message.kind(), &bytes), Ok(message));
    }

    #[test]
    fn no_message_is_cut_short_or_has_a_tail_unnoticed(message in message(), cut in any::<prop::sample::Index>()) {
        let mut bytes = encode(&message);
        if !bytes.is_empty() {
            let kept = cut.index(bytes.len());
            let short = Message::decode(message.kind(), &bytes[..kept]);
            prop_assert_ne!(short.as_ref(), Ok(&message));
        }
        bytes.push(0);
        prop_assert!(Message::decode(message.kind(), &bytes).is_err());
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(kind in any::<u8>(), bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(message) = Message::decode(kind % 18, &bytes) {
            // Whatever is accepted has one encoding only: nothing can be smuggled in another. But a failure that only a
            // newer version knows is an internal one.
            if !format!("{message:?}").contains("Internal") {
                prop_assert_eq!(encode(&message), bytes);
            }
        }
    }

    #[test]
    fn damaged_messages_are_other_messages_or_errors(message in message(), at in any::<prop::sample::Index>(), flip in 1u8..) {
        let mut bytes = encode(&message);
        prop_assume!(!bytes.is_empty());
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let _ = Message::decode(message.kind(), &bytes);
    }

    #[test]
    fn headers_survive_their_bytes(epoch in any::<u32>(), sequence in any::<u64>(), received in any::<u64>(), kind in any::<u8>(), hashes_following in 0u8..32) {
        let frame = FrameHeader { length: 17, epoch, sequence, received, kind };
        prop_assert_eq!(FrameHeader::decode(&frame.encode()), Ok(frame));
        let payload = PayloadHeader { epoch, block: BlockId(sequence), slot: SlotId(epoch), length: 3, hashes_following };
        prop_assert_eq!(PayloadHeader::decode(&payload.encode()), Ok(payload));
    }
}

/// A counts of items that do not follow must not cost memory.
#[test]
fn a_count_over_what_follows_is_refused_at_once() {
    for kind in [1, 2, 4, 5, 9, 12] {
        assert!(Message::decode(kind, &[0x80, 0x08]).is_err(), "kind {kind}: 1024 items in no bytes");
        assert!(Message::decode(kind, &[0xff, 0xff, 0xff, 0xff, 0x0f]).is_err(), "kind {kind}");
    }
}

#[test]
fn names_that_leave_their_directory_are_refused() {
    let mut entry = Entry {
        id: EntryId(2),
        parent: EntryId(1),
        name: Box::from(&b"x"[..]),
        kind: Kind::Directory,
        attributes: Attributes::default(),
        identity: Identity::default(),
        links: 1,
        link_target: Box::default(),
    };
    let decoded = |entry: &Entry| {
        let step = NewFile::Entry {
            entry: Arc::new(entry.clone()),
            object_bytes: None,
            resume: None,
            stripes: None,
        };
        let message = Message::NewFile(vec![step]);
        Message::decode(1, &encode(&message))
    };
    assert!(decoded(&entry).is_ok());
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b", &[b'x'; 1025]] {
        entry.name = name.into();
        assert!(decoded(&entry).is_err(), "{name:?}");
    }
    entry.parent = EntryId::root(0);
    entry.name = Box::from(&b"x"[..]);
    assert!(decoded(&entry).is_err(), "a source brings a name of its own");
    entry.name = Box::default();
    assert!(decoded(&entry).is_ok());
    entry.id = EntryId::root(0);
    assert!(decoded(&entry).is_err(), "an entry is a root");
}

#[test]
fn lengths_over_their_limit_are_refused() {
    let mut header =
        FrameHeader { length: MESSAGE_BYTES_MAX as u32, epoch: 1, sequence: 1, received: 0, kind: 1 };
    assert!(FrameHeader::decode(&header.encode()).is_ok());
    header.length += 1;
    assert!(FrameHeader::decode(&header.encode()).is_err());
    let (block, slot) = (BlockId(1), SlotId(1));
    let payload = PayloadHeader { epoch: 1, block, slot, length: 64 << 20, hashes_following: 31 };
    let bytes = payload.encode();
    assert_eq!(PayloadHeader::decode(&bytes).unwrap(), payload);
    let mut longer = bytes;
    longer[20] += 1;
    assert!(PayloadHeader::decode(&longer).is_err());
    let mut bytes = bytes;
    bytes[0] ^= 1;
    assert!(PayloadHeader::decode(&bytes).is_err(), "the stream has lost its place");
}

#[test]
#[should_panic(expected = "at most 31 hashes follow a payload")]
fn more_hashes_than_the_header_can_tell_are_not_sent() {
    let (block, slot) = (BlockId(1), SlotId(1));
    let _ = PayloadHeader { epoch: 1, block, slot, length: 1, hashes_following: 32 }.encode();
}

/// A plan is a wish of a stranger: it is bounded, and a pool's name is no path.
#[test]
fn plans_that_make_no_sense_are_refused() {
    let entry = Entry {
        id: EntryId(2),
        parent: EntryId(1),
        name: Box::from(&b"x"[..]),
        kind: Kind::File,
        attributes: Attributes::default(),
        identity: Identity { size: 1, ..Identity::default() },
        links: 1,
        link_target: Box::default(),
    };
    let file =
        NewFile::Entry { entry: Arc::new(entry), object_bytes: Some(1 << 16), resume: None, stripes: None };
    let mut before = encode(&Message::NewFile(vec![file]));
    assert_eq!(before.pop(), Some(0), "no plan");
    let decoded = |plan: &[u8]| Message::decode(1, &[&before, plan].concat());
    let part = |end: &[u8], place: u8, count: &[u8], pool: &[u8]| {
        [end, &[place], count, &[0], &[pool.len() as u8], pool].concat()
    };
    let plan = |parts: &[Vec<u8>]| [&[parts.len() as u8][..], &parts.concat()].concat();
    let good = part(&[9], 0, &[4], b"flash");
    assert!(decoded(&plan(std::slice::from_ref(&good))).is_ok() && decoded(&[0]).is_ok());
    for wrong in [
        plan(&[part(&[9], 3, &[4], b"")]),
        plan(&[part(&[9], 0, &[0xd2, 0x0f], b"")]),
        plan(&[part(&[9], 0, &[4], b"..")]),
        plan(&[part(&[9], 0, &[4], b"a/b")]),
        plan(&[part(&[9], 0, &[4], b"sixteen-letters-")]),
        plan(&[good.clone(), good.clone()]),
        plan(&[part(&[0], 0, &[4], b""), good.clone()]),
        plan(&(1..=65).map(|end| part(&[end], 0, &[4], b"")).collect::<Vec<_>>()),
        vec![64],
    ] {
        assert!(decoded(&wrong).is_err(), "{wrong:x?}");
    }
    assert!(decoded(&plan(&(1..=64).map(|end| part(&[end], 0, &[4], b"")).collect::<Vec<_>>())).is_ok());
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Version 8, byte for byte. A change here is a new version.
#[test]
fn version_8_is_pinned() {
    let entry = Entry {
        id: EntryId(5),
        parent: EntryId::root(1),
        name: Box::default(),
        kind: Kind::File,
        attributes: Attributes {
            mode: 0o644,
            uid: 1000,
            gid: 100,
            mtime: Timestamp { seconds: -1, nanos: 999_999_999 },
            atime: Timestamp { seconds: 1, nanos: 0 },
        },
        identity: Identity {
            size: 300,
            mtime: Timestamp { seconds: -1, nanos: 999_999_999 },
            ctime: Timestamp { seconds: 2, nanos: 3 },
            inode: 9,
        },
        links: 2,
        link_target: Box::default(),
    };
    let mut profile = Profile {
        wall_nanos: 300,
        processor_nanos: 1,
        processors: 2,
        host_busy_permille: 1000,
        buffers: Buffers { slots_used: 5, slots: 64, slot_bytes: 1 << 22 },
        round_trip_nanos: Some(128),
        ..Profile::default()
    };
    *profile.spent_mut(Stage::Hash) = Spent { busy_nanos: 4, processor_nanos: 3, times: 2, bytes: 1 };
    *profile.waited_nanos_mut(Waiting::Names) = 7;
    let finished =
        [(b"a/b"[..].into(), Code::SinkAttributes.into()), (b"."[..].into(), Failure::os(Code::SinkSync, 5))];
    let golden = [
        (
            Message::Finished(FailedPaths::from_iter(finished).with_more(300)),
            "0203612f622000012e1c05ac02".into(),
        ),
        (Message::Profile(Box::new(profile)), "ac020102e807010204030201010a07054080808002018001".into()),
        (
            Message::NewFile(vec![
                NewFile::Entry {
                    entry: Arc::new(entry),
                    object_bytes: Some(1 << 20),
                    resume: Some(Token([7; 16])),
                    stripes: Plan::new(vec![
                        Part {
                            end: 1 << 20,
                            place: Where::Metadata,
                            count: Count::Default,
                            stripe_size: 0,
                            pool: None,
                        },
                        Part {
                            end: 1 << 30,
                            place: Where::Targets,
                            count: Count::Exactly(3),
                            stripe_size: 2 << 20,
                            pool: Pool::new("flash"),
                        },
                        Part {
                            end: u64::MAX,
                            place: Where::TargetsRepeated,
                            count: Count::All,
                            stripe_size: 4 << 20,
                            pool: None,
                        },
                    ])
                    .map(Box::new),
                },
                NewFile::End(EntryId(4)),
            ]),
            "0202000a0300a403e8076401ff93ebdc030200ac020403090280804001".to_owned()
                + &"07".repeat(16)
                + "03"
                + "80804002000000"
                + "8080808004000380808001"
                + "05666c617368"
                + "0001d10f8080800200"
                + "0008",
        ),
        (
            Message::NewBlock {
                block: BlockId(1),
                slot: SlotId(2),
                epoch: 3,
                id: EntryId(4),
                index: 5,
                length: 6,
                hash: Some(Hash([0xab; 32])),
            },
            "01020308050601".to_owned() + &"ab".repeat(32),
        ),
        (
            Message::NewBlock {
                block: BlockId(1),
                slot: SlotId(2),
                epoch: 3,
                id: EntryId(4),
                index: 5,
                length: 6,
                hash: None,
            },
            "01020308050600".to_owned(),
        ),
        (
            Message::Manifest {
                block: BlockId(1),
                slot: SlotId(2),
                epoch: 3,
                length: 200,
                members: vec![
                    Member { id: EntryId(4), offset: 0, hash: None },
                    Member { id: EntryId(5), offset: 130, hash: Some(Hash([0xab; 32])) },
                ],
            },
            "010203c8010208000".to_owned() + "00a820101" + &"ab".repeat(32),
        ),
        (
            Message::FileId {
                answers: vec![(EntryId(1), Answer::Skip), (EntryId(2), Answer::Start(Token::NONE))],
                laid: vec![(
                    EntryId(2),
                    Laid {
                        object_bytes: 1 << 20,
                        placement: Placement::new(vec![Piece { first: 0, run: 4, targets: [1, 200].into() }])
                            .unwrap(),
                    },
                )],
                unlike: vec![(EntryId(2), Unlike::NotTaken)],
            },
            "02020004020104808040010004020".to_owned() + "1c801" + "010401",
        ),
        (
            Message::BlockSync {
                objects: vec![(EntryId(1), 7)],
                entries: vec![
                    (EntryId(2), Settled::Done(None)),
                    (EntryId(3), Settled::Failed(Failure::os(Code::SinkWrite, 5))),
                    (EntryId(4), Settled::Kept(Failure::os(Code::SinkNoSpace, 28))),
                ],
            },
            "0102070304000006011805".to_owned() + "0802151c",
        ),
        (
            Message::Repair(vec![Repair { id: EntryId(1), index: None, reason: RepairReason::Hash }]),
            "01020001".into(),
        ),
        (
            Message::BlockDone { slots: vec![SlotId(0), SlotId(200)], allowances: vec![(3, 130)] },
            "0200c8010103".to_owned() + "8201",
        ),
        (Message::Ping, String::new()),
    ];
    for (message, expected) in golden {
        assert_eq!(hex(&encode(&message)), expected, "{message:?}");
    }
    let frame = FrameHeader { length: 1, epoch: 2, sequence: 3, received: 4, kind: 5 };
    assert_eq!(hex(&frame.encode()), "01000000020000000300000000000000040000000000000005000000");
    let (block, slot) = (BlockId(3), SlotId(4));
    let mut payload = PayloadHeader { epoch: 2, block, slot, length: 5, hashes_following: 0 };
    assert_eq!(hex(&payload.encode()), "4841554c0200000003000000000000000400000005000000");
    payload.hashes_following = 2;
    assert_eq!(hex(&payload.encode()), "4841554c0200000003000000000000000400000005000010");
}
