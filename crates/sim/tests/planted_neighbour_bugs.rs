//! Each bug that can be planted in a neighbourhood breaks what its test asks for.

#[path = "support/neighbours.rs"]
mod support;

use haul_sim::neighbours::{Setup, run};
use haul_sim::{NeighbourBug, SchedulerBug};
use support::*;

fn found(bug: NeighbourBug) -> Option<String> {
    let figures = || run(&Setup { bug: Some(bug), ..transfers(4) });
    match bug {
        NeighbourBug::EverybodyFirst => too_many(&figures(), &run(&transfers(1))),
        NeighbourBug::TurnsStand => starved(&figures(), 4),
        NeighbourBug::HeardForEver => not_taken_over(Some(bug)),
        NeighbourBug::UsersForgotten => unfair_to_users(Some(bug)),
    }
}

#[test]
fn every_planted_bug_is_found() {
    for bug in NeighbourBug::ALL.iter().copied() {
        let violation = found(bug);
        println!("{:16} {violation:?}", format!("{bug:?}"));
        assert!(violation.is_some(), "{bug:?} is not found");
    }
}

#[test]
fn a_scheduler_that_ignores_its_neighbours_is_found() {
    let alone = run(&transfers(1));
    assert_eq!(unfair(&run(&transfers(4))), None, "without a bug");
    for bug in [SchedulerBug::NeighboursIgnored, SchedulerBug::TurnIgnored] {
        let figures = run(&Setup { scheduler_bug: Some(bug), ..transfers(4) });
        let violation = too_many(&figures, &alone);
        println!("{bug:?}: {violation:?}");
        assert!(violation.is_some(), "{bug:?} is not found");
    }
}
