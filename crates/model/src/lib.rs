//! The words that all of haul shares: ids, entries, operations, errors, limits.
//!
//! Everything here is plain data. No crate below this one, no I/O, no clock: `no_std` lets the compiler keep it so.
//! The words mean what the table in ARCHITECTURE.md says, and nothing else.
#![no_std]

extern crate alloc;

pub mod bitmap;
pub mod entry;
pub mod error;
pub mod id;
mod laid;
pub mod layout;
pub mod limits;
pub mod object_set;
pub mod op;
pub mod placement;
pub mod profile;
pub mod report;
pub mod size;
pub mod stripe;

pub use bitmap::Bitmap;
pub use entry::{Attributes, Entry, Identity, Item, Kind, Timestamp};
pub use error::{Blame, Code, Failure, Place};
pub use id::{BlockId, EntryId, Hash, HashKind, JobId, SessionId, SlotId, Token};
pub use layout::{Layout, TargetId};
pub use object_set::ObjectSet;
pub use placement::{Laid, Placement, Target};
pub use stripe::Plan;
