//! Histories of a size that fits into each change's tests; `haul-sim` runs more of them.

use haul_sim::many::{Batch, run_many};
use haul_sim::plan::Plan;
use haul_sim::random::{Random, mix};
use haul_sim::{Bug, Options, run};

/// Enough to reach every row of the state tables.
const HISTORIES: u64 = if cfg!(debug_assertions) { 4_000 } else { 20_000 };

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[test]
fn histories_hold_reach_every_row_and_are_as_rough_as_they_should_be() {
    let batch = Batch { seed: 0, histories: HISTORIES, time: None, threads: threads(), violations_max: 5 };
    let (report, violations) = run_many(&batch, &Options::default());
    assert!(violations.is_empty(), "{violations:#?}");
    assert_eq!(report.histories, HISTORIES);
    assert_eq!(report.rows_missed(), Vec::<String>::new());
    assert!(report.events_min >= 200, "a history of {} events", report.events_min);
    let [put, back] = report.spilled;
    assert!(put >= HISTORIES / 4 && back >= HISTORIES / 8, "{put} objects into spills, {back} back");
    let least = HISTORIES * 45 / 100;
    assert!(report.histories_with_crash >= least, "{} with a crash", report.histories_with_crash);
    assert!(report.histories_with_cut >= least, "{} with a cut", report.histories_with_cut);
}

/// Too rare for any batch of a test; drawn anew once the draws of histories change.
#[test]
fn what_went_wrong_once_does_not_again() {
    // A file was dropped, and while its removal waited for a thread what was written into it was synced.
    let (report, _) = run(943_279, &Options::default());
    assert_eq!(report.violation, None);
}

#[test]
fn every_dataset_has_a_bundle_of_several_files_and_a_file_of_several_objects() {
    for seed in 0..2_000 {
        let plan = Plan::draw(&mut Random::new(mix(seed)));
        let grain = u64::from(plan.grain);
        // The least that a session may bundle, and the most that it may take for one object.
        let (small, large) = (grain / 8, grain * 2);
        let sizes = &plan.shape.sizes;
        assert!(sizes.len() >= 3, "seed {seed}: {} files", sizes.len());
        assert!(sizes.iter().filter(|size| **size <= small).count() >= 2, "seed {seed}: {sizes:?}");
        assert!(sizes.iter().any(|size| *size > large), "seed {seed}: {sizes:?}");
    }
}

#[test]
fn a_seed_is_a_history() {
    let options = Options { trace: true, ..Options::default() };
    for seed in 0..20 {
        let ((one, first), (other, second)) = (run(seed, &options), run(seed, &options));
        assert_eq!(first, second, "seed {seed}");
        assert_eq!((one.events, one.sessions), (other.events, other.sessions));
        let (silent, _) = run(seed, &Options::default());
        assert_eq!(one.events, silent.events, "keeping a trace changes nothing");
    }
}

#[test]
fn entries_that_are_open_are_bounded_however_many_files_there_are() {
    let options = Options { files_more: 40_000, ..Options::default() };
    let (report, _) = run(59, &options);
    assert_eq!(report.violation, None);
    assert!(report.events > 20_000, "{} events", report.events);
}

#[test]
fn histories_that_found_a_bug_once_hold() {
    let seeds = include_str!("../seeds.txt");
    let lines = || seeds.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    assert!(lines().count() >= Bug::ALL.len());
    for line in lines() {
        let seed = line.split_whitespace().next().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| panic!("no seed in {line:?}"));
        assert_eq!(run(seed, &Options::default()).0.violation, None, "{line}");
    }
}
