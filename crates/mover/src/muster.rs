//! Where the threads of an end report when they start: their time is measured, and they are given a seat.

use haul_meter::Meter;
use haul_topology::placer::Seated;
use haul_topology::{Placer, ThreadKind};

/// For all threads of an end.
#[derive(Clone)]
pub(crate) struct Muster {
    pub(crate) meter: Meter,
    pub(crate) placer: Placer,
}

/// The calling thread is there, until this is dropped.
pub(crate) type There = (haul_meter::Joined, Seated);

impl Muster {
    /// The calling thread has started.
    pub(crate) fn join(&self, kind: ThreadKind) -> There {
        (self.meter.join(), self.placer.seat(kind))
    }
}
