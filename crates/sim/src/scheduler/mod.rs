//! Histories of [`haul_protocol::scheduler`]: random targets, threads, gates and policies; targets that slow down, move,
//! stall, fail or hang for ever; and a checker of its rules.
//!
//! - `plan` draws what a history will be like.
//! - `world` is the history: threads, devices, a far end.
//! - `model` knows what is queued and under way, on its own; `checker` holds the scheduler against it.
//!
//! The checker takes the scheduler's word on one thing: which targets are congested, and how deep they are steered. That
//! these come true is what measurements are for; whatever they are, no rule may break.

mod checker;
mod model;
mod plan;
mod report;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use haul_protocol::SchedulerBug;

pub use report::{Count, SchedulerReport};

use crate::random::{Random, mix};
use plan::Plan;
use world::World;

/// How a history is run.
#[derive(Clone, Copy, Default)]
pub struct SchedulerOptions {
    /// Planted in the scheduler; has no effect without the feature `planted-bugs`.
    pub bug: Option<SchedulerBug>,
    /// Keep the trace.
    pub trace: bool,
}

/// Runs one history. Returns what it came to, and its trace if that was asked for.
pub fn run_scheduler(seed: u64, options: &SchedulerOptions) -> (SchedulerReport, Vec<String>) {
    // Other histories than those of the masters with the same seed.
    let mut random = Random::new(mix(seed ^ 0x7363_6865_6475_6c65));
    let mut plan = Plan::draw(&mut random);
    // Of their own, so that a seed without neighbours is the history that it was before there were any.
    plan.draw_files(&mut Random::new(mix(seed ^ 0x6669_6c65)));
    plan.draw_neighbours(&mut Random::new(mix(seed ^ 0x6e65_6967_6862_6f75)));
    plan.config.planted = planted(options.bug);
    let mut world = World::new(plan, random, options.trace);
    let panicked = catch_unwind(AssertUnwindSafe(|| world.run()));
    if let Err(cause) = panicked {
        let text = cause.downcast_ref::<String>().cloned();
        let text = text.or_else(|| cause.downcast_ref::<&str>().map(|text| text.to_string()));
        world.violate(format!("panic: {}", text.unwrap_or_default()));
    }
    let mut report = std::mem::take(&mut world.report);
    report.histories = 1;
    (report, world.take_trace())
}

#[cfg(feature = "planted-bugs")]
fn planted(bug: Option<SchedulerBug>) -> haul_protocol::Planted<SchedulerBug> {
    haul_protocol::Planted(bug)
}

#[cfg(not(feature = "planted-bugs"))]
fn planted(_: Option<SchedulerBug>) -> haul_protocol::Planted<SchedulerBug> {
    haul_protocol::Planted::default()
}
