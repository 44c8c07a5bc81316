//! How many slots an end uses: few on a short way, as many as it takes on a long one, more where there are several targets.

mod support;

use std::collections::HashMap;
use std::sync::Arc;

use haul_model::limits::{SYNC_GROUP_BYTES, SYNC_GROUP_BYTES_MAX, SYNC_GROUP_BYTES_TARGET};
use haul_model::op::{Prepared, SinkDone, SinkOp, SourceDone, SourceOp};
use haul_model::placement::Piece;
use haul_model::{
    Attributes, BlockId, Code, Entry, EntryId, Hash, Identity, Item, Kind, SlotId, Target, Token,
};
use haul_model::{Laid, Placement};
use haul_protocol::scheduler::{Adaptive, Policy};
use haul_protocol::sink::{self, Sink};
use haul_protocol::source::{self, Source};
use haul_protocol::{Action, Event, Planted};
use haul_wire::{Answer, Message, NewFile, Role};
use support::{NoLog, OBJECT, on, peer};

const SLOTS: u32 = 256;
const LEAST: u32 = 8;
/// Files by themselves.
const ROOTS: u32 = 5000;
const MILLI: u64 = 1_000_000;

/// A sink, and a source that fills each slot as soon as it is granted.
struct End {
    sink: Sink,
    now: u64,
    blocks: u64,
    granted: Vec<SlotId>,
    started: Vec<BlockId>,
    syncs: Vec<(u64, u64, Vec<EntryId>)>,
    /// What was told of each target last.
    allowances: HashMap<Target, u32>,
}

impl End {
    /// Of `SLOTS` slots, of which so many are for anything.
    fn new(near: u32) -> End {
        End::with_syncs(near, false)
    }

    /// `each`: storage makes files durable one by one.
    fn with_syncs(near: u32, each: bool) -> End {
        let sink = Sink::new(sink::Config {
            slots: SLOTS,
            slots_near: near,
            slots_least: LEAST,
            hands: 2,
            hands_max: 2,
            policy: Policy::Adaptive(Adaptive::default()),
            hangs_after_nanos: None,
            syncs_each: each,
            lies_apart: false,
            errand_threads_max: u32::MAX,
            slot_bytes: OBJECT,
            recursive: true,
            roots: (0..ROOTS).map(|number| number.to_string().into_bytes().into()).collect(),
            report_done: false,
            planted: Planted::default(),
        });
        let mut end = End {
            sink,
            now: 0,
            blocks: 0,
            granted: Vec::new(),
            started: Vec::new(),
            syncs: Vec::new(),
            allowances: HashMap::new(),
        };
        end.event(Event::LinkUp { epoch: 1, peer: peer(Role::Source, SLOTS) });
        assert_eq!(end.granted.len(), LEAST as usize, "so many at first");
        end
    }

    fn event(&mut self, event: Event) {
        self.sink.on_event(event, self.now);
        while let Some(action) = self.sink.next_action() {
            match action {
                Action::Grant(slot) => self.granted.push(slot),
                Action::Sink(SinkOp::WriteObject { block, .. }) => self.started.push(block),
                Action::Errand { number, op: SinkOp::Sync { group, files }, .. } => {
                    self.syncs.push((number, group, files));
                }
                Action::Send(Message::BlockDone { allowances, .. }) => self.allowances.extend(allowances),
                Action::Send(Message::Error(failure)) => panic!("{failure}"),
                _ => {}
            }
        }
    }

    /// Its first object comes, and storage never answers.
    fn file_on(&mut self, number: u32, target: Target) {
        let entry = Arc::new(file(number, 1));
        let id = entry.id;
        let step = NewFile::Entry { entry, object_bytes: Some(OBJECT), resume: None, stripes: None };
        self.event(Event::Message(Message::NewFile(vec![step])));
        self.event(Event::SinkDone(SinkDone::Prepared {
            batch: u64::from(number) + 1,
            answers: vec![(id, Prepared::Start(Token([1; 16])))],
            laid: vec![(id, on(target))],
            unlaid: Vec::new(),
        }));
        let slot = self.granted.pop().expect("a slot is granted");
        self.arrive(id, slot);
    }

    /// Files of one object arrive and are written, on one target after the other, and none is ever durable. How many, until
    /// no more may come.
    fn written_until_full(&mut self, targets: Target) -> u64 {
        for number in 0..ROOTS {
            if self.granted.is_empty() {
                return self.blocks;
            }
            self.file_on(number, (number % u32::from(targets)) as Target + 1);
            let block = BlockId(self.blocks);
            self.event(Event::SinkDone(SinkDone::Written { block, result: Ok(()) }));
        }
        panic!("all of them could come");
    }

    fn arrive(&mut self, id: EntryId, slot: SlotId) {
        self.blocks += 1;
        let (block, length, hash) = (BlockId(self.blocks), OBJECT, Some(Hash([0; 32])));
        self.event(Event::Message(Message::NewBlock { block, slot, epoch: 1, id, index: 0, length, hash }));
        self.event(Event::Payload { epoch: 1, block, slot, length, hashes: Vec::new() });
    }

    /// Payloads come into all slots that are granted again and again, each so long after its grant.
    fn trips(&mut self, trip: u64, rounds: u64) -> usize {
        for _ in 0..rounds {
            self.now += trip;
            for slot in std::mem::take(&mut self.granted) {
                // Of a file that was dropped meanwhile: its slot is free at once.
                self.arrive(EntryId(98), slot);
            }
        }
        self.granted.len()
    }

    /// For half a minute a payload each millisecond is all that comes.
    fn hardly_anything(&mut self) -> usize {
        self.event(Event::RoundTrip { nanos: MILLI });
        for _ in 0..30_000 {
            self.now += MILLI;
            let slot = self.granted.pop().expect("a slot is granted");
            self.arrive(EntryId(98), slot);
        }
        self.granted.len()
    }
}

/// A file by itself, of so many objects.
fn file(number: u32, objects: u64) -> Entry {
    Entry {
        id: EntryId((u64::from(number) + 1) * 2),
        parent: EntryId::root(number),
        name: Box::default(),
        kind: Kind::File,
        attributes: Attributes::default(),
        identity: Identity { size: u64::from(OBJECT) * objects, ..Identity::default() },
        links: 1,
        link_target: Box::default(),
    }
}

/// Slots that are granted at a time in the end.
fn granted_over(trip: u64, rounds: u64, near: u32, round_trip: u64) -> usize {
    let mut end = End::new(near);
    end.event(Event::RoundTrip { nanos: round_trip });
    end.trips(trip, rounds)
}

#[test]
fn the_sink_grants_as_many_as_the_way_needs() {
    assert_eq!(granted_over(MILLI / 100, 20, SLOTS, 0), LEAST as usize, "a short way");
    assert_eq!(granted_over(100 * MILLI, 20, SLOTS, 0), SLOTS as usize, "a long one");
}

#[test]
fn the_slots_beyond_those_nearby_are_for_the_way_alone() {
    assert_eq!(granted_over(100 * MILLI, 20, 64, 0), 64, "it takes long, but not on the network");
    assert_eq!(granted_over(100 * MILLI, 20, 64, MILLI), 64);
    assert_eq!(granted_over(100 * MILLI, 20, 64, 100 * MILLI), SLOTS as usize, "the way is long");
    assert_eq!(granted_over(MILLI / 100, 20, 64, MILLI / 100), LEAST as usize, "a short way");
}

#[test]
fn a_slot_that_was_granted_for_a_target_that_the_source_knows_is_granted_again() {
    let all = SLOTS as usize;
    let long = 100 * MILLI;
    let mut end = End::new(64);
    end.event(Event::RoundTrip { nanos: long });
    assert_eq!(end.trips(long, 20), all);
    let fewer = end.hardly_anything();
    assert!(fewer < 20, "where nobody waits for that it is not: {fewer}");
    end.file_on(0, 1);
    assert_eq!(end.granted.len(), all - 1, "also what was withheld before");
    assert_eq!(end.hardly_anything(), all - 1, "however few are needed");
}

#[test]
fn where_targets_differ_each_has_its_share_of_what_is_used() {
    let mut end = End::new(64);
    end.file_on(0, 1);
    assert_eq!((end.trips(MILLI, 100), &end.allowances), (7, &HashMap::from([(1, 64)])));
    end.file_on(1, 2);
    assert_eq!(end.trips(MILLI, 100), 62, "two are being written");
    assert_eq!(end.allowances, HashMap::from([(1, 21), (2, 21)]));
    end.event(Event::RoundTrip { nanos: 100 * MILLI });
    assert_eq!(end.trips(100 * MILLI, 200), SLOTS as usize - 2);
    assert_eq!(end.allowances, HashMap::from([(1, 85), (2, 85)]), "over a long network");
}

#[test]
fn each_target_has_something_that_waits_where_files_are_synced_one_by_one() {
    // What was granted before it was full comes, too.
    let may_wait = |targets, each| {
        let all = End::with_syncs(LEAST, each).written_until_full(targets) * u64::from(OBJECT);
        let least = all - u64::from(LEAST * OBJECT);
        least..=all
    };
    let (usual, of_each) = (SYNC_GROUP_BYTES, 11 * SYNC_GROUP_BYTES_TARGET);
    assert!(may_wait(1, true).contains(&usual) && may_wait(3, true).contains(&usual));
    assert!(may_wait(11, true).contains(&of_each));
    assert!(may_wait(100, true).contains(&SYNC_GROUP_BYTES_MAX));
    assert!(may_wait(11, false).contains(&usual), "one call makes all of them durable");
}

/// Objects of a large file that the source reads ahead while the sink grants nothing.
fn read_ahead(targets: &[Target]) -> usize {
    let mut source = Source::new(source::Config {
        object_bytes: OBJECT,
        bundle_bytes_max: 0,
        slots: SLOTS,
        slots_least: LEAST,
        hands: 12,
        hands_max: 12,
        policy: Policy::Layout,
        hangs_after_nanos: None,
        spill_bytes_max: 0,
        files_open_max: usize::MAX,
        roots: targets.iter().map(|_| b"a".as_slice().into()).collect(),
        report_done: false,
        planted: Planted::default(),
    });
    let mut reads = 0;
    let mut event = |event: Event| {
        source.on_event(event, &mut NoLog, 0);
        while let Some(action) = source.next_action() {
            reads += usize::from(matches!(action, Action::Source(SourceOp::ReadObject { .. })));
        }
        reads
    };
    event(Event::LinkUp { epoch: 1, peer: peer(Role::Sink, SLOTS) });
    let items = (0u32..).zip(targets);
    let items = items.map(|(number, target)| Item::Laid(file(number, 1000), Box::new(on(*target)), None));
    event(Event::Scanned(items.collect()));
    let answers = (1..=targets.len() as u64).map(|id| (EntryId(id * 2), Answer::Start(Token([1; 16]))));
    let answers = answers.collect();
    event(Event::Message(Message::FileId { answers, laid: Vec::new(), unlike: Vec::new() }))
}

#[test]
fn the_source_reads_no_further_ahead_unless_targets_differ() {
    assert_eq!(read_ahead(&[1]), LEAST as usize);
    assert!(read_ahead(&[1, 2, 3]) > LEAST as usize);
}

/// For so long storage writes nothing, then all of it at once; then for so long nothing comes.
fn granted_where_storage_takes(full: u64, empty: u64) -> usize {
    let mut end = End::new(64);
    end.file_on(0, 0);
    let id = EntryId(2);
    for _ in 0..200 {
        for slot in std::mem::take(&mut end.granted) {
            end.arrive(id, slot);
        }
        end.now += full;
        while let Some(block) = end.started.pop() {
            // It is to come again: nothing waits to become durable.
            let result = Err(Code::HashMismatch.into());
            end.event(Event::SinkDone(SinkDone::Written { block, result }));
        }
        end.now += empty;
        end.event(Event::Tick);
    }
    end.granted.len()
}

#[test]
fn the_sink_grants_more_where_storage_and_network_wait_for_each_other() {
    assert_eq!(granted_where_storage_takes(75 * MILLI, 25 * MILLI), 64);
    assert_eq!(granted_where_storage_takes(75 * MILLI, MILLI), LEAST as usize, "the network never waits");
}

/// Slots that the source uses in the end, where for so long the sink grants nothing, and then for so long storage reads nothing.
fn used_where_the_sink_takes(full: u64, empty: u64) -> usize {
    let mut source = Source::new(source::Config {
        object_bytes: OBJECT,
        bundle_bytes_max: 0,
        slots: 64,
        slots_least: LEAST,
        hands: 64,
        hands_max: 64,
        policy: Policy::Layout,
        hangs_after_nanos: None,
        spill_bytes_max: 0,
        files_open_max: usize::MAX,
        roots: vec![b"a".as_slice().into()],
        report_done: false,
        planted: Planted::default(),
    });
    let (mut reads, mut sends, mut now) = (Vec::new(), Vec::new(), 0);
    let mut event = |event: Event, now: u64, reads: &mut Vec<BlockId>, sends: &mut Vec<(BlockId, SlotId)>| {
        source.on_event(event, &mut NoLog, now);
        while let Some(action) = source.next_action() {
            match action {
                Action::Source(SourceOp::ReadObject { block, .. }) => reads.push(block),
                Action::Payload { block, slot, .. } => sends.push((block, slot)),
                _ => {}
            }
        }
    };
    event(Event::LinkUp { epoch: 1, peer: peer(Role::Sink, SLOTS) }, now, &mut reads, &mut sends);
    let items = vec![Item::Laid(file(0, 1_000_000), Box::new(on(0)), None)];
    event(Event::Scanned(items), now, &mut reads, &mut sends);
    let answers = vec![(EntryId(2), Answer::Start(Token([1; 16])))];
    let message = Message::FileId { answers, laid: Vec::new(), unlike: Vec::new() };
    event(Event::Message(message), now, &mut reads, &mut sends);
    let mut used = 0;
    let mut free: Vec<SlotId> = (0..SLOTS).map(SlotId).collect();
    for _ in 0..200 {
        let blocks = std::mem::take(&mut reads);
        used = blocks.len() + sends.len();
        for block in blocks {
            event(
                Event::SourceDone(SourceDone::Object { block, result: Ok(Some(Hash([0; 32]))) }),
                now,
                &mut reads,
                &mut sends,
            );
        }
        now += full;
        // One more than there are payloads: then it is storage that the network waits for.
        let slots = free.split_off(free.len() - (used + 1 - sends.len()).min(free.len()));
        event(
            Event::Message(Message::BlockDone { slots, allowances: Vec::new() }),
            now,
            &mut reads,
            &mut sends,
        );
        for (block, slot) in std::mem::take(&mut sends) {
            event(Event::Sent(block), now, &mut reads, &mut sends);
            free.push(slot);
        }
        now += empty;
        event(Event::Tick, now, &mut reads, &mut sends);
    }
    used
}

#[test]
fn the_source_reads_further_ahead_where_storage_and_network_wait_for_each_other() {
    let used = used_where_the_sink_takes(75 * MILLI, 25 * MILLI);
    assert!(used > 32, "{used}");
    let used = used_where_the_sink_takes(75 * MILLI, MILLI);
    assert!(used <= LEAST as usize + 1, "{used}");
}

/// Where files are synced one by one, nothing is written into a file while it is being synced, and it is not synced while
/// something is written into it: on some file systems each would wait for the other, and its target seem slow.
#[test]
fn a_file_is_either_written_or_synced() {
    let mut end = End::with_syncs(64, true);
    end.file_on(7, 2);
    let block = BlockId(end.blocks);
    end.event(Event::SinkDone(SinkDone::Written { block, result: Err(Code::HashMismatch.into()) }));
    let entry = Arc::new(file(0, 4));
    let id = entry.id;
    let step = NewFile::Entry { entry, object_bytes: Some(OBJECT), resume: None, stripes: None };
    end.event(Event::Message(Message::NewFile(vec![step])));
    let pieces = vec![Piece { first: 0, run: 1, targets: [1, 2].into() }];
    let laid = Laid { object_bytes: OBJECT, placement: Placement::new(pieces).unwrap() };
    end.event(Event::SinkDone(SinkDone::Prepared {
        batch: 2,
        answers: vec![(id, Prepared::Start(Token([1; 16])))],
        laid: vec![(id, laid)],
        unlaid: Vec::new(),
    }));
    let arrive = |end: &mut End, index: u32| {
        let slot = end.granted.pop().expect("a slot is granted");
        end.blocks += 1;
        let (block, length, hash) = (BlockId(end.blocks), OBJECT, Some(Hash([0; 32])));
        end.event(Event::Message(Message::NewBlock { block, slot, epoch: 1, id, index, length, hash }));
        end.event(Event::Payload { epoch: 1, block, slot, length, hashes: Vec::new() });
        block
    };
    let written = |end: &mut End, block| {
        end.event(Event::SinkDone(SinkDone::Written { block, result: Ok(()) }));
    };
    let first = arrive(&mut end, 0);
    let second = arrive(&mut end, 1);
    assert!(end.started.contains(&first) && end.started.contains(&second));
    written(&mut end, first);
    end.now += 300 * MILLI;
    end.event(Event::Tick);
    assert_eq!(end.syncs, [], "the second one is being written");
    let third = arrive(&mut end, 2);
    assert!(!end.started.contains(&third), "it is about to be synced");
    written(&mut end, second);
    let [(number, group, files)] = &end.syncs[..] else { panic!("{:?}", end.syncs) };
    let (number, group) = (*number, *group);
    assert_eq!(files, &[id]);
    assert!(!end.started.contains(&third), "it is being synced");
    end.event(Event::ErrandDone { number, done: SinkDone::Synced { group, failed: Vec::new() } });
    assert!(end.started.contains(&third), "there may be no later event to do it");
}
