//! Storage: what the masters' operations do to files, directories and names.
//!
//! The masters (crate `protocol`) ask with values ([`SourceOp`], [`SinkOp`]); the engine's I/O threads hand each value
//! to one of the two traits below. No protocol in here: storage never decides what comes next.

mod abreast;
mod absent;
mod carry;
pub mod confine;
pub mod conformance_sink;
pub mod conformance_source;
pub mod engine;
mod faults;
mod hashing;
#[cfg(test)]
mod huge_pages;
pub mod layout;
mod leases;
pub mod local;
pub mod memory_sink;
pub mod memory_source;
mod page_cache;
mod piece;
pub mod placing;
pub mod scan;
pub mod sink;
pub mod source;
pub mod spill;
pub mod synthetic;

use std::sync::Arc;

use haul_buffers::Pool;
use haul_model::op::{SinkDone, SinkOp, SourceDone, SourceOp};

/// The source's storage. Called from several threads at once.
pub trait SourceStorage: Send + Sync {
    /// Performs one operation; `None` for those that have no completion. Those about the spill are for
    /// [`Spilling`](spill::Spilling).
    fn run(&self, op: SourceOp, pool: &Pool) -> Option<SourceDone>;
}

impl<S: SourceStorage + ?Sized> SourceStorage for Arc<S> {
    fn run(&self, op: SourceOp, pool: &Pool) -> Option<SourceDone> {
        (**self).run(op, pool)
    }
}

/// The sink's storage. Called from several threads at once: operations of [`Lane::Ordered`](haul_model::op::Lane)
/// from one thread, one after the other; those of the other lanes in parallel.
///
/// The caller holds no lease on a slot that an operation names. A file that a [`SinkDone::Synced`] calls failed has lost
/// everything that was written to it since its last good sync, whichever groups that is in.
pub trait SinkStorage: Send + Sync {
    /// Performs one operation; `None` for those that have no completion.
    fn run(&self, op: SinkOp, pool: &Pool) -> Option<SinkDone>;

    /// Files are made durable one by one, not a whole group with one call: then each can be waited for by itself.
    fn syncs_each(&self) -> bool {
        false
    }

    /// The session has failed: an operation that consists of many small ones may end after the next of them.
    fn give_up(&self) {}

    /// Files may lie on several targets, as far as is known before there are any: then one that hangs need not be all.
    fn lies_apart(&self) -> bool {
        false
    }
}
