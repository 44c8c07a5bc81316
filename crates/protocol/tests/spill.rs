//! The source with a spill beside it, one moment at a time: what it reads ahead, and what becomes of it when its device
//! answers no more.

mod support;

use haul_model::op::{SourceDone, SourceOp};
use haul_model::report::Fact;
use haul_model::{
    Attributes, BlockId, Code, Entry, EntryId, Failure, Hash, Identity, Item, Kind, SlotId, Target, Token,
};
use haul_protocol::scheduler::Policy;
use haul_protocol::source::{Config, Source};
use haul_protocol::{Action, Event, Planted};
use haul_wire::{Answer, Message, Role};
use support::{NoLog, OBJECT, on, peer};

const OBJECTS: u32 = 6;
const SECOND: u64 = 1_000_000_000;
/// The sink's target that both files are on.
const THERE: Target = 7;

/// A source, and what it wants of storage.
struct Bed {
    source: Source,
    now: u64,
    wanted: Vec<SourceOp>,
    sent: Vec<(EntryId, u32)>,
    told: Vec<(Failure, u64)>,
    files_failed: usize,
}

fn hash(id: EntryId, offset: u64) -> Hash {
    Hash([(id.0 * 16 + offset / u64::from(OBJECT)) as u8; 32])
}

/// Of what was put away there.
fn mark(at: u64) -> Hash {
    Hash([(at / u64::from(OBJECT)) as u8 + 100; 32])
}

impl Bed {
    /// Two files on two targets here and one there, which takes one object at a time; 16 slots.
    fn new(spill_objects: u64) -> Bed {
        let mut bed = Bed::of(2, spill_objects, usize::MAX);
        bed.allow(1, &[]);
        bed.start(&[1, 2], THERE);
        bed
    }

    /// So many files, on two targets here in turn, that are announced.
    fn of(files: u32, spill_objects: u64, files_open_max: usize) -> Bed {
        let config = Config {
            object_bytes: OBJECT,
            bundle_bytes_max: 0,
            slots: 16,
            slots_least: 1,
            hands: 12,
            hands_max: 12,
            policy: Policy::Layout,
            hangs_after_nanos: Some(SECOND),
            spill_bytes_max: spill_objects * u64::from(OBJECT),
            files_open_max,
            roots: (0..files).map(|number| number.to_string().into_bytes().into()).collect(),
            report_done: false,
            planted: Planted::default(),
        };
        let (wanted, sent, told) = (Vec::new(), Vec::new(), Vec::new());
        let mut bed = Bed { source: Source::new(config), now: 0, wanted, sent, told, files_failed: 0 };
        bed.event(Event::LinkUp { epoch: 1, peer: peer(Role::Sink, 16) });
        let file = |number: u32| Entry {
            id: EntryId(u64::from(number) + 1),
            parent: EntryId::root(number),
            name: Box::default(),
            kind: Kind::File,
            attributes: Attributes::default(),
            identity: Identity { size: u64::from(OBJECT * OBJECTS), ..Identity::default() },
            links: 1,
            link_target: Box::default(),
        };
        let here = |number: u32| on((number % 2) as Target + 1);
        let items = (0..files).map(|number| Item::Laid(file(number), Box::new(here(number)), None));
        bed.event(Event::Scanned(items.collect()));
        bed
    }

    /// The sink will have these files, on this target.
    fn start(&mut self, ids: &[u64], there: Target) {
        let ids = || ids.iter().map(|id| EntryId(*id));
        self.event(Event::Message(Message::FileId {
            answers: ids().map(|id| (id, Answer::Start(Token([1; 16])))).collect(),
            laid: ids().map(|id| (id, on(there))).collect(),
            unlike: Vec::new(),
        }));
    }

    /// What is to be read of a file: from where on, and whether it was before.
    fn reads_of(&self, file: u64) -> Vec<(u64, bool)> {
        let of = |op: &SourceOp| match op {
            SourceOp::ReadObject { entry, offset, again, .. } if entry.id == EntryId(file) => {
                Some((offset / u64::from(OBJECT), *again))
            }
            _ => None,
        };
        self.wanted.iter().filter_map(of).collect()
    }

    fn event(&mut self, event: Event) {
        self.source.on_event(event, &mut NoLog, self.now);
        while let Some(action) = self.source.next_action() {
            match action {
                Action::Source(op) => {
                    if let SourceOp::Unspill { at, mark: of, .. } = op {
                        assert_eq!(of, Some(mark(at)), "it is known again by what it was put away with");
                    }
                    self.wanted.push(op);
                }
                Action::Send(Message::NewBlock { id, index, hash: told, .. }) => {
                    assert_eq!(told, Some(hash(id, u64::from(index) * u64::from(OBJECT))));
                    self.sent.push((id, index));
                }
                Action::Fact(Fact::SpillFailed { failure, room }) => self.told.push((failure, room)),
                Action::Fact(Fact::Failed { .. }) => self.files_failed += 1,
                Action::Ended(outcome) => panic!("{outcome:?}"),
                _ => {}
            }
        }
    }

    /// The sink's target may have so many, and these slots are free again.
    fn allow(&mut self, count: u32, slots: &[u32]) {
        let slots = slots.iter().map(|slot| SlotId(*slot)).collect();
        self.event(Event::Message(Message::BlockDone { slots, allowances: vec![(THERE, count)] }));
    }

    /// Storage answers what `does` it; all else hangs.
    fn answer(&mut self, does: impl Fn(&SourceOp) -> Option<Result<(), Failure>>) {
        while let Some(index) = self.wanted.iter().position(|op| does(op).is_some()) {
            let op = self.wanted.remove(index);
            let result = does(&op).expect("it was found by that");
            let done = match op {
                SourceOp::ReadObject { block, entry, offset, .. } => {
                    SourceDone::Object { block, result: result.map(|()| Some(hash(entry.id, offset))) }
                }
                SourceOp::Spill { block, at, .. } => {
                    SourceDone::Spilled { block, result: result.map(|()| Some(mark(at))) }
                }
                op => panic!("{op:?}"),
            };
            self.event(Event::SourceDone(done));
        }
    }

    fn blocks(&self, of: impl Fn(&SourceOp) -> Option<BlockId>) -> Vec<BlockId> {
        self.wanted.iter().filter_map(of).collect()
    }
}

fn reads(op: &SourceOp) -> Option<Result<(), Failure>> {
    matches!(op, SourceOp::ReadObject { .. }).then_some(Ok(()))
}

fn reads_and_puts_away(op: &SourceOp) -> Option<Result<(), Failure>> {
    matches!(op, SourceOp::ReadObject { .. } | SourceOp::Spill { .. }).then_some(Ok(()))
}

fn back(op: &SourceOp) -> Option<BlockId> {
    if let SourceOp::Unspill { block, .. } = op { Some(*block) } else { None }
}

#[test]
fn all_is_read_while_the_sink_takes_one_and_comes_back_when_its_gate_opens() {
    let mut bed = Bed::new(100);
    bed.answer(reads_and_puts_away);
    let all = 2 * u64::from(OBJECTS);
    assert_eq!(bed.source.spilled() as u64, all - 1);
    assert_eq!(bed.source.stats().bytes_spilled, (all - 1) * u64::from(OBJECT));
    assert!(bed.wanted.is_empty(), "{:?}", bed.wanted);
    bed.allow(100, &[0]);
    assert_eq!(bed.sent.len(), 1, "what went straight on");
    assert!(!bed.blocks(back).is_empty());
}

#[test]
fn without_a_spill_the_gate_holds_everything_up() {
    let mut bed = Bed::new(0);
    bed.answer(reads);
    assert_eq!((bed.source.spilled(), bed.source.slots_free()), (0, 15));
}

#[test]
fn a_spill_that_hangs_on_the_way_back_is_left_and_its_objects_are_read_again() {
    let mut bed = Bed::new(100);
    bed.answer(reads_and_puts_away);
    bed.allow(100, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
    let hung = bed.blocks(back);
    assert!(hung.len() >= 2, "{hung:?}");
    for _ in 0..8 {
        bed.now += SECOND;
        bed.event(Event::Tick);
        bed.answer(reads);
    }
    let hung = bed.blocks(back);
    let timed_out = Failure::os(Code::SpillFailed, 110);
    assert_eq!(bed.told, [(timed_out, 0)], "told once");
    let mut sent = bed.sent.clone();
    sent.sort_unstable();
    let all: Vec<_> =
        [1, 2].into_iter().flat_map(|id| (0..OBJECTS).map(move |index| (EntryId(id), index))).collect();
    assert_eq!((sent, bed.files_failed), (all, 0), "each object, once");
    // What hung answers after all: its slots are free again, and nothing is sent a second time.
    let free = bed.source.slots_free();
    for block in &hung {
        bed.event(Event::SourceDone(SourceDone::Object { block: *block, result: Ok(Some(Hash([0; 32]))) }));
    }
    assert_eq!((bed.source.slots_free(), bed.sent.len()), (free + hung.len(), 12));
    assert_eq!(bed.source.spilled(), 0);
}

#[test]
fn a_spill_that_hangs_while_it_is_written_costs_slots_and_no_object() {
    let mut bed = Bed::new(100);
    bed.answer(reads);
    let written = |op: &SourceOp| if let SourceOp::Spill { block, .. } = op { Some(*block) } else { None };
    assert!(!bed.blocks(written).is_empty());
    for _ in 0..8 {
        bed.now += SECOND;
        bed.event(Event::Tick);
        bed.answer(reads);
    }
    assert_eq!(bed.told.len(), 1);
    bed.allow(100, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
    bed.answer(reads);
    assert_eq!((bed.sent.len(), bed.files_failed), (12, 0));
    let hung = bed.blocks(written);
    let free = bed.source.slots_free();
    for block in &hung {
        bed.event(Event::SourceDone(SourceDone::Spilled { block: *block, result: Ok(None) }));
    }
    assert_eq!((bed.source.slots_free(), bed.source.spilled()), (free + hung.len(), 0));
}

#[test]
fn a_spill_that_is_full_is_used_as_far_as_it_goes() {
    let mut bed = Bed::new(100);
    let full = |op: &SourceOp| match op {
        SourceOp::Spill { at, .. } if *at >= 3 * u64::from(OBJECT) => {
            Some(Err(Failure::os(Code::SpillFailed, 28)))
        }
        op => reads_and_puts_away(op),
    };
    bed.answer(full);
    assert_eq!(bed.source.spilled(), 3);
    assert_eq!(bed.told, [(Failure::os(Code::SpillFailed, 28), 3 * u64::from(OBJECT))]);
    bed.answer(full);
    assert_eq!((bed.told.len(), bed.files_failed), (1, 0));
}

#[test]
fn what_waited_for_a_place_is_read_from_its_beginning_and_for_the_first_time() {
    let mut bed = Bed::of(2, 0, 1);
    bed.allow(100, &[]);
    bed.start(&[1, 2], THERE);
    // A third of the threads for each target.
    assert_eq!((bed.reads_of(1).len(), bed.reads_of(2).len()), (4, 0));
    let gone = Err(Failure::os(Code::SourceVanished, 2));
    let first = |op: &SourceOp| matches!(op, SourceOp::ReadObject { entry, .. } if entry.id == EntryId(1));
    bed.answer(|op| first(op).then_some(gone));
    assert_eq!(bed.reads_of(2), [(0, false), (1, false), (2, false), (3, false)]);
}
