//! A deterministic simulator of one job: both masters, a virtual clock, network, disks and log, kills at any event, and a
//! checker of what must hold.
//!
//! A history is one job from its first session to its end, through whatever happens on the way. Everything in it follows
//! from its seed, so each can be played again and looked at. The binary `haul-sim` runs many; the tests run a few and
//! plant bugs to see that the checker finds them.
//!
//! - [`plan`] draws what a history will be like, [`tree`] its dataset.
//! - `world` is the history; `session`, `network`, `source_end` and `sink_end` are its parts.
//! - `spill` is the flash at the source, which may fail, fill up and give back other bytes.
//! - [`disk`] and [`sink_storage`] model the sink's disk, `log` puts the real object log on a disk that loses writes.
//! - [`scheduler`] has histories of its own: of the scheduler alone, with targets that slow down, stall and hang.
//!   [`bound`] computes what no scheduler can better.
//! - [`neighbours`] plays several transfers of one host on the same targets.
//! - `checker` and `ending` say what must hold: an acknowledged object is durable with the right bytes; what is done is
//!   whole, durable and named; nothing half is ever under a final name; a job ends with everything at the sink, or names
//!   what is missing; nothing is sent again without need; slots, credits, descriptors and counters add up.

pub mod bound;
mod checker;
pub mod content;
pub mod disk;
mod ending;
mod hung;
mod lay;
mod log;
pub mod many;
pub mod neighbours;
mod network;
pub mod plan;
pub mod queue;
pub mod random;
mod refused;
pub mod report;
pub mod scheduler;
mod session;
mod sink_end;
pub mod sink_storage;
mod slow;
mod source_end;
mod spill;
mod stuck;
mod trace;
pub mod tree;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use haul_protocol::{Bug, NeighbourBug, SchedulerBug};

use crate::report::Report;
use crate::world::World;

/// How a history is run.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// Planted in both masters; has no effect without the feature `planted-bugs`.
    pub bug: Option<Bug>,
    /// Keep the trace.
    pub trace: bool,
    /// So many small files more than the plan has.
    pub files_more: u64,
}

/// Runs one history. Returns what it came to, and its trace if that was asked for.
pub fn run(seed: u64, options: &Options) -> (Report, Vec<String>) {
    let mut world = World::new(seed, options);
    let panicked = catch_unwind(AssertUnwindSafe(|| world.run()));
    if let Err(cause) = panicked {
        let text = cause.downcast_ref::<String>().cloned();
        let text = text.or_else(|| cause.downcast_ref::<&str>().map(|text| text.to_string()));
        world.violate(format!("panic: {}", text.unwrap_or_default()));
    }
    let mut report = std::mem::take(&mut world.report);
    report.histories = 1;
    report.events_min = report.events;
    report.histories_with_crash = u64::from(report.crashes > 0);
    report.histories_with_cut = u64::from(report.cuts > 0);
    (report, world.trace.take().unwrap_or_default())
}
