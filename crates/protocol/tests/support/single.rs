//! Masters that have one file to move.

use haul_model::{Attributes, Entry, EntryId, Identity, Kind};
use haul_protocol::scheduler::{Adaptive, Policy};
use haul_protocol::{Planted, sink, source};

use crate::support::OBJECT;

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
        errand_threads_max: u32::MAX,
        slot_bytes: OBJECT,
        roots: vec![b"a".as_slice().into()],
        report_done: false,
        planted: Planted::default(),
    }
}
