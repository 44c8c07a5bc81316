//! Histories of the scheduler, of a number that fits into each change's tests; `haul-sim --scheduler` runs more of them.

use haul_sim::many::{Batch, run_many_schedulers};
use haul_sim::scheduler::{SchedulerOptions, run_scheduler};

const HISTORIES: u64 = 2_000;

#[test]
fn histories_hold_and_reach_everything() {
    let batch = Batch { seed: 0, histories: HISTORIES, time: None, threads: 2, violations_max: 5 };
    let (report, violations) = run_many_schedulers(&batch, &SchedulerOptions::default());
    assert!(violations.is_empty(), "{violations:#?}");
    assert_eq!(report.histories, HISTORIES);
    for (what, count) in report.rows() {
        assert!(count > HISTORIES / 20, "{what}: {count}");
    }
}

#[test]
fn a_seed_is_a_history() {
    let options = SchedulerOptions { trace: true, ..SchedulerOptions::default() };
    for seed in 0..20 {
        let (_, trace) = run_scheduler(seed, &options);
        assert!(trace.len() > 10);
        assert_eq!(trace, run_scheduler(seed, &options).1, "{seed}");
    }
}
