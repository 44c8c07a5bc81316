//! Each bug that can be planted in the masters is found. What breaks one clause of the order rule, of credits or of the
//! link must show in some history; a bug that stays hidden means that the checker, or the histories, miss something.

use haul_sim::many::{Batch, run_many};
use haul_sim::{Bug, Options, run};

/// Histories within which each must be found: as many as `make test` has.
const HISTORIES_MAX: u64 = 60_000;

#[test]
fn every_planted_bug_is_found() {
    let mut hidden = Vec::new();
    for bug in Bug::ALL.iter().copied() {
        let options = Options { bug: Some(bug), ..Options::default() };
        let batch = Batch { seed: 0, histories: HISTORIES_MAX, time: None, threads: 1, violations_max: 1 };
        let (_, violations) = run_many(&batch, &options);
        match violations.first() {
            Some((seed, violation)) => {
                println!("{:24} {:>6} histories  {violation}", format!("{bug:?}"), seed + 1)
            }
            None => hidden.push(bug),
        }
    }
    assert!(hidden.is_empty(), "not found within {HISTORIES_MAX} histories: {hidden:?}");
}

#[test]
fn without_a_planted_bug_the_same_histories_hold() {
    let batch = Batch { seed: 0, histories: 1_000, time: None, threads: 1, violations_max: 1 };
    let (_, violations) = run_many(&batch, &Options::default());
    assert!(violations.is_empty(), "{violations:?}");
}

/// A seed that no longer finds its bug has come to mean another history: it has to be replaced by one that does.
#[test]
fn seeds_of_past_bugs_still_find_them() {
    let seeds = include_str!("../seeds.txt");
    let mut found = Vec::new();
    for line in seeds.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let mut words = line.split_whitespace();
        let seed = words.next().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| panic!("no seed in {line:?}"));
        let Some(name) = words.next().filter(|name| *name != "-") else { continue };
        let bug = Bug::ALL.iter().copied().find(|bug| format!("{bug:?}") == name);
        let bug = bug.unwrap_or_else(|| panic!("no bug {name}"));
        let (report, _) = run(seed, &Options { bug: Some(bug), ..Options::default() });
        assert!(report.violation.is_some(), "{line}");
        found.push(bug);
    }
    let without: Vec<_> = Bug::ALL.iter().filter(|bug| !found.contains(bug)).collect();
    assert!(without.is_empty(), "no seed is recorded for {without:?}");
}
