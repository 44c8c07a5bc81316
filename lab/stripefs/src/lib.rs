//! An emulated parallel file system: files striped over targets that can be made slow, faulty or hung one by one.
//!
//! It answers `lustre.lov` in Lustre's binary format and honours a layout that is set when a file is made. How it is
//! used, and where it differs from the real thing, is in `lab/stripefs/README.md`.
//!
//! - [`layout`] says which object has which byte; [`attribute`] is its binary form; `policy` chooses targets.
//! - `device` is a queue with threads; `pace` is its time table, `knobs` what can be changed.
//! - `names` and `node` are the metadata server, in a directory of a real file system.
//! - [`StripeFs`] is the whole; [`Mount`] a mounted one; [`control`] changes it by text.
//!
//! A request goes from the kernel to `fuse`, is split by device in `contents`, waits in each device's queue, and is
//! answered by the device that is last. What must stay true: nothing that waits for one device holds up another.

#![warn(missing_docs)]

mod answers;
pub mod attribute;
mod buffers;
mod contents;
pub mod control;
mod device;
mod files;
mod filesystem;
mod fuse;
mod join;
mod knobs;
pub mod layout;
mod mount;
mod names;
mod node;
mod pace;
mod policy;
mod timer;
mod trace;
pub mod units;
mod xattrs;

pub use device::Counters;
pub use filesystem::{Options, StripeFs};
pub use mount::Mount;
