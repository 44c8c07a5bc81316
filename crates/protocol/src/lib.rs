//! The two masters as pure state machines: `on_event(event, now)` changes state and queues [`Action`]s.
//!
//! No clock, thread, file, socket or payload byte in here, so the same code runs in the engine (`haul-mover`) and in
//! the simulator (`haul-sim`), where thousands of histories a second are replayed from a seed.
//!
//! - [`source::Source`] announces entries, cuts files into objects, fills bundles, sends into credits, logs what is
//!   durable, closes files.
//! - [`sink::Sink`] answers, grants slots, writes, groups what was written into syncs, publishes, acknowledges.
//! - [`scheduler::Scheduler`] says what a free I/O thread does next, at both ends: a queue for each storage target.
//! - [`pace::Pace`] says how many files may be created at a time.
//! - [`neighbours::Neighbourhood`] works out which part of each target is this transfer's, where others are at it.
//! - [`link::Link`] numbers control messages, so that a lost connection loses and repeats none.
//!
//! What must stay true is the order rule of ARCHITECTURE.md. Each of its clauses can be broken on purpose by a
//! [`planted::Bug`]; the simulator must find every one of them.
#![no_std]

extern crate alloc;

mod clock;
pub mod committer;
pub mod credit;
pub mod directories;
mod entries;
mod errands;
pub mod event;
mod extents;
mod hands;
pub mod link;
pub mod neighbours;
pub mod pace;
pub mod planted;
pub mod resume;
pub mod scheduler;
pub mod sink;
pub mod source;
pub mod states;
mod window;

pub use event::{Action, Event, LogOp, LogView, Logged, Outcome};
pub use haul_model::profile::Waiting;
pub use planted::{Bug, NeighbourBug, Planted, SchedulerBug};
