//! Masters that have one file to move.

use std::sync::Arc;

use haul_model::op::{Prepared, SinkDone};
use haul_model::{Attributes, Entry, EntryId, Identity, Item, Kind, SlotId, Token};
use haul_protocol::scheduler::{Adaptive, Policy};
use haul_protocol::{Event, Planted, sink, source};
use haul_wire::{Answer, Message, NewFile, Role};

use crate::support::{OBJECT, on, peer};

const TOKEN: Token = Token([1; 16]);

pub const ID: EntryId = EntryId(2);

/// A file of so many objects.
pub fn file(objects: u32) -> Entry {
    Entry {
        id: ID,
        parent: EntryId::root(0),
        name: Box::default(),
        kind: Kind::File,
        attributes: Attributes::default(),
        identity: Identity { size: u64::from(OBJECT * objects), ..Identity::default() },
        links: 1,
        link_target: Box::default(),
    }
}

/// No bundles, no spill; nothing hangs.
pub fn source_config() -> source::Config {
    source::Config {
        object_bytes: OBJECT,
        bundle_bytes_max: 0,
        slots: 8,
        slots_least: 8,
        hands: 2,
        hands_max: 2,
        policy: Policy::Adaptive(Adaptive::default()),
        hangs_after_nanos: None,
        spill_bytes_max: 0,
        files_open_max: usize::MAX,
        roots: vec![b"a".as_slice().into()],
        report_done: false,
        planted: Planted::default(),
    }
}

/// The same for a sink.
pub fn sink_config() -> sink::Config {
    sink::Config {
        slots: 8,
        slots_near: 8,
        slots_least: 8,
        hands: 2,
        hands_max: 2,
        policy: Policy::Adaptive(Adaptive::default()),
        hangs_after_nanos: None,
        syncs_each: false,
        lies_apart: false,
        errand_threads_max: u32::MAX,
        slot_bytes: OBJECT,
        recursive: true,
        roots: vec![b"a".as_slice().into()],
        report_done: false,
        planted: Planted::default(),
    }
}

/// Until a source may send the file.
pub fn source_begins(objects: u32) -> Vec<Event> {
    let slots = (0..8).map(SlotId).collect();
    let answers = vec![(ID, Answer::Start(TOKEN))];
    vec![
        Event::LinkUp { epoch: 1, peer: peer(Role::Sink, 8) },
        Event::Scanned(vec![Item::Entry(file(objects))]),
        Event::Message(Message::BlockDone { slots, allowances: Vec::new() }),
        Event::Message(Message::FileId { answers, laid: Vec::new(), unlike: Vec::new() }),
    ]
}

/// Until a sink may be sent the file.
pub fn sink_begins(objects: u32) -> Vec<Event> {
    let entry = Arc::new(file(objects));
    let step = NewFile::Entry { entry, object_bytes: Some(OBJECT), resume: None, stripes: None };
    let prepared = SinkDone::Prepared {
        batch: 1,
        answers: vec![(ID, Prepared::Start(TOKEN))],
        laid: vec![(ID, on(1))],
        unlaid: Vec::new(),
    };
    vec![
        Event::LinkUp { epoch: 1, peer: peer(Role::Source, 8) },
        Event::Message(Message::NewFile(vec![step])),
        Event::SinkDone(prepared),
    ]
}
