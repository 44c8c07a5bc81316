//! How many slots an end uses: few on a short way, as many as it takes on a long one, all where there are several targets.

mod support;

use haul_model::op::SourceOp;
use haul_model::{Attributes, BlockId, Entry, EntryId, Hash, Identity, Item, Kind, SlotId, Target, Token};
use haul_protocol::scheduler::{Adaptive, Policy};
use haul_protocol::sink::{self, Sink};
use haul_protocol::source::{self, Source};
use haul_protocol::{Action, Event, Planted};
use haul_wire::{Answer, Message, Role};
use support::{NoLog, OBJECT, on, peer};

const SLOTS: u32 = 256;
const LEAST: u32 = 8;
const MILLI: u64 = 1_000_000;

/// Slots that the sink has granted at a time when payloads have come into all of them again and again, each so long after its
/// grant.
fn granted_over(trip: u64, rounds: u64) -> usize {
    let mut sink = Sink::new(sink::Config {
        slots: SLOTS,
        slots_least: LEAST,
        hands: 2,
        hands_max: 2,
        policy: Policy::Adaptive(Adaptive::default()),
        hangs_after_nanos: None,
        syncs_each: false,
        errand_threads_max: u32::MAX,
        slot_bytes: OBJECT,
        roots: vec![b"a".as_slice().into()],
        report_done: false,
        planted: Planted::default(),
    });
    let (mut now, mut blocks, mut granted) = (0, 0, Vec::<SlotId>::new());
    let mut event = |event: Event, now, granted: &mut Vec<SlotId>| {
        sink.on_event(event, now);
        while let Some(action) = sink.next_action() {
            if let Action::Grant(slot) = action {
                granted.push(slot);
            }
        }
    };
    event(Event::LinkUp { epoch: 1, peer: peer(Role::Source, SLOTS) }, now, &mut granted);
    assert_eq!(granted.len(), LEAST as usize, "so many at first");
    for _ in 0..rounds {
        now += trip;
        for slot in std::mem::take(&mut granted) {
            blocks += 1;
            let (block, length, hash) = (BlockId(blocks), OBJECT, Hash([0; 32]));
            // Of a file that was dropped meanwhile: its slot is free at once.
            let id = EntryId(99);
            let announced = Message::NewBlock { block, slot, epoch: 1, id, index: 0, length, hash };
            event(Event::Message(announced), now, &mut granted);
            event(Event::Payload { epoch: 1, block, slot, length }, now, &mut granted);
        }
    }
    granted.len()
}

#[test]
fn the_sink_grants_as_many_as_the_way_needs() {
    assert_eq!(granted_over(MILLI / 100, 20), LEAST as usize, "a short way");
    assert_eq!(granted_over(100 * MILLI, 20), SLOTS as usize, "a long one");
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
    let file = |number: u32| Entry {
        id: EntryId(u64::from(number) + 1),
        parent: EntryId::root(number),
        name: Box::default(),
        kind: Kind::File,
        attributes: Attributes::default(),
        identity: Identity { size: u64::from(OBJECT) * 1000, ..Identity::default() },
        links: 1,
        link_target: Box::default(),
    };
    let items = (0u32..).zip(targets);
    let items = items.map(|(number, target)| Item::Laid(file(number), Box::new(on(*target)), None));
    event(Event::Scanned(items.collect()));
    let answers = (1..=targets.len() as u64).map(|id| (EntryId(id), Answer::Start(Token([1; 16]))));
    let answers = answers.collect();
    event(Event::Message(Message::FileId { answers, laid: Vec::new(), unlike: Vec::new() }))
}

#[test]
fn the_source_reads_no_further_ahead_unless_targets_differ() {
    assert_eq!(read_ahead(&[1]), LEAST as usize);
    assert!(read_ahead(&[1, 2, 3]) > LEAST as usize);
}
