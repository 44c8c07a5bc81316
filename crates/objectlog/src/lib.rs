//! The object log of FT-LADS: what the source keeps so that a transfer that was killed goes on where it stopped.
//!
//! Three mechanisms (how many files share a log: one, K, all) times six methods (how the numbers of durable objects
//! are written down). Called by the mover and by the simulator, over the small trait [`LogStore`], so that the same
//! code runs on a directory, in memory and on a disk that loses un-synced writes.
//!
//! What must stay true:
//! - A bit that is read back was recorded, for exactly this path and this binding (token, identity, object size,
//!   hash kind). A lost bit costs a resend; a wrong bit would be data loss.
//! - The index record of a file is durable before the first bit of that file is written.
//! - A log is written only by the process that made it. Logs of earlier processes are read, absorbed and removed, so
//!   within one log a generation number names one entry for ever.
//! - Only [`ObjectLog::flush`], [`ObjectLog::sync`] and [`ObjectLog::close`] write to the store; everything else is
//!   memory. After a failed call all of it can be tried again.
//!
//! The formats, the order of writes and what a damaged part costs are in `docs/spec/object-log.md`.
#![no_std]

extern crate alloc;

mod batch;
pub mod conformance;
mod encode;
mod entry;
mod error;
mod flush;
mod format;
mod logfile;
pub mod memory;
mod method;
mod object_log;
mod read;
mod slab;
mod space;
mod store;

pub use entry::{Binding, Difference, Handle, Logged};
pub use error::{Doing, Error};
pub use format::{Extent, Origin, PAGE_BYTES, PATH_BYTES_MAX, VERSION, log_number};
pub use memory::MemoryStore;
pub use method::{Mechanism, Method};
pub use object_log::{Config, ObjectLog, Replay, Usage};
pub use read::{LogContents, RecordContents, Unreadable, read_log, read_numbered};
pub use store::LogStore;

/// Is this the name of a log? Anything else in a directory of logs is left alone.
pub fn is_log_name(name: &str) -> bool {
    format::log_number(name).is_some()
}
