//! A source whose file system lists a directory target by target: what the first target gets while the sink has answered for
//! nothing else.

mod support;

use haul_model::op::SourceOp;
use haul_model::{Attributes, Entry, EntryId, Identity, Item, Kind, Target, Token};
use haul_protocol::scheduler::{Adaptive, Policy};
use haul_protocol::source::{Config, Source};
use haul_protocol::{Action, Event, Planted};
use haul_wire::{Answer, Message, Role};
use support::{NoLog, OBJECT, on, peer};

const OBJECTS: u32 = 40;
const THREADS: u32 = 12;

fn file(number: u32) -> Entry {
    Entry {
        id: EntryId(u64::from(number) + 1),
        parent: EntryId::root(number),
        name: Box::default(),
        kind: Kind::File,
        attributes: Attributes::default(),
        identity: Identity { size: u64::from(OBJECT * OBJECTS), ..Identity::default() },
        links: 1,
        link_target: Box::default(),
    }
}

/// How many objects of each file are read at a time, when files are on these targets and the sink has answered for the first, and
/// then for all.
fn reads(policy: Policy, slots_least: u32, targets: &[Target]) -> [Vec<usize>; 2] {
    let roots = (0..targets.len()).map(|_| b"a".as_slice().into()).collect();
    let mut source = Source::new(Config {
        object_bytes: OBJECT,
        bundle_bytes_max: 0,
        slots: 64,
        slots_least,
        hands: THREADS,
        hands_max: THREADS,
        policy,
        hangs_after_nanos: None,
        spill_bytes_max: 0,
        files_open_max: usize::MAX,
        roots,
        report_done: false,
        planted: Planted::default(),
    });
    let several = targets.iter().any(|target| *target != targets[0]);
    let mut counts = vec![0; targets.len()];
    let mut event = |event: Event| {
        source.on_event(event, &mut NoLog, 0);
        while let Some(action) = source.next_action() {
            if let Action::Source(SourceOp::ReadObject { entry, gently, .. }) = action {
                assert_eq!(gently, several, "several targets are read in small pieces");
                counts[entry.id.0 as usize - 1] += 1;
            }
        }
        counts.clone()
    };
    event(Event::LinkUp { epoch: 1, peer: peer(Role::Sink, 64) });
    let items =
        (0u32..).zip(targets).map(|(number, target)| Item::Laid(file(number), Box::new(on(*target)), None));
    event(Event::Scanned(items.collect()));
    let answer = |number: usize| (EntryId(number as u64 + 1), Answer::Start(Token([1; 16])));
    let mut answered = |numbers: std::ops::Range<usize>| {
        let answers = numbers.map(answer).collect();
        event(Event::Message(Message::FileId { answers, laid: Vec::new(), unlike: Vec::new() }))
    };
    [answered(0..1), answered(1..targets.len())]
}

#[test]
fn the_first_target_of_a_listing_does_not_get_all_threads() {
    for policy in [Policy::Layout, Policy::Adaptive(Adaptive::default())] {
        let [first, all] = reads(policy, 64, &[2, 2, 3, 4]);
        assert!((2..=THREADS as usize / 3).contains(&first[0]), "{policy:?}: {first:?}");
        assert!(all[2] >= 2 && all[3] >= 2, "{policy:?}: others have theirs: {all:?}");
    }
}

#[test]
fn where_all_is_on_one_target_it_gets_all_threads() {
    let [first, _] = reads(Policy::Adaptive(Adaptive::default()), 64, &[2, 2, 2]);
    assert!(first[0] >= THREADS as usize, "{first:?}");
}
