//! The engine: runs one end of a session, or both in one process.
//!
//! The masters of crate `protocol` decide; this crate gives them threads. Per end: one **master** thread
//! ([`master`]), **I/O** threads over a [`haul_storage`] trait ([`workers`]), and per connection **comm** threads, one a
//! stream and direction ([`comm`]). Between them travel slot numbers and operations, never payload bytes.
//!
//! - [`end`] puts an end together and runs it to its outcome.
//! - [`connection`] makes connections, first ones and later ones: dials or accepts, exchanges CONNECT.
//! - [`log`] keeps the object log in a directory and writes it off the master's thread.
//! - [`neighbours`] speaks with other transfers on this host about storage targets.
//! - [`bottleneck`] names what held a transfer up, from what both ends have measured.
//! - [`threads`] starts threads, where the system has some left.
//! - [`owner`] makes sure that one process at a time acts for a job.
//!
//! What must stay true: the master never blocks but on its inputs, and what its caller is told is written by another thread; queues towards the master are bounded, queues away
//! from it are bounded by what the machines let be under way; slots are leased by one thread at a time (crate
//! `buffers` checks it); after `LinkDown` no thread of the old connection touches a slot.

pub mod bottleneck;
mod comm;
pub mod connection;
pub mod durable;
pub mod end;
mod error;
pub mod log;
mod master;
mod missing;
mod muster;
mod neighbours;
pub mod owner;
mod patience;
mod payload;
mod pieces;
pub mod process;
mod profile;
mod report;
mod report_queue;
pub mod runner;
pub mod threads;
mod workers;

pub use bottleneck::Bottleneck;
pub use end::{SinkEnd, SourceEnd, Tuning};
pub use error::Error;
pub use haul_protocol::scheduler::{self, Policy};
pub use report::{Report, Reports};

/// Versions of the protocol that this engine speaks, oldest and newest.
pub const PROTOCOL: (u16, u16) = (haul_wire::VERSION_MIN, haul_wire::VERSION);
