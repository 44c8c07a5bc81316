//! Each bug that can be planted in the scheduler is found by its simulator, as `planted_bugs` does for the masters.

use haul_sim::SchedulerBug;
use haul_sim::many::{Batch, run_many_schedulers};
use haul_sim::scheduler::SchedulerOptions;

/// Histories within which each must be found.
const HISTORIES_MAX: u64 = 10_000;

#[test]
fn every_planted_bug_is_found() {
    let mut hidden = Vec::new();
    for bug in SchedulerBug::ALL.iter().copied() {
        let options = SchedulerOptions { bug: Some(bug), ..SchedulerOptions::default() };
        let batch = Batch { seed: 0, histories: HISTORIES_MAX, time: None, threads: 1, violations_max: 1 };
        let (_, violations) = run_many_schedulers(&batch, &options);
        match violations.first() {
            Some((seed, violation)) => {
                println!("{:20} {:>6} histories  {violation}", format!("{bug:?}"), seed + 1)
            }
            None => hidden.push(bug),
        }
    }
    assert!(hidden.is_empty(), "not found within {HISTORIES_MAX} histories: {hidden:?}");
}
