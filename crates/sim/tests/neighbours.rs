//! Several transfers on the same targets: what they have there together, who gets how much, and how long each waits.

#[path = "support/neighbours.rs"]
mod support;

use haul_sim::neighbours::{SECOND, Setup, Transfer, run};
use support::*;

#[test]
fn together_they_have_no_more_under_way_than_one_alone() {
    let alone = run(&transfers(1));
    let shared = run(&transfers(4));
    let deaf = run(&Setup { speak: false, ..transfers(4) });
    for target in 0..TARGETS {
        let [alone, shared, deaf] = [&alone, &shared, &deaf].map(|figures| figures.under_way[target]);
        println!(
            "target {target}: {alone:.2} alone, {shared:.2} of four, {deaf:.2} of four that do not speak"
        );
    }
    assert_eq!(too_many(&shared, &alone), None);
    assert!(too_many(&deaf, &alone).is_some(), "the test can tell");
    assert_eq!(unfair(&shared), None);
    assert_eq!(starved(&shared, 4), None);
    let total = |figures: &haul_sim::neighbours::Figures| figures.bytes.iter().flatten().sum::<u64>();
    println!("bytes: {} alone, {} shared, {} deaf", total(&alone), total(&shared), total(&deaf));
    assert!(total(&shared) * 100 >= total(&deaf) * 95, "what is shared is used");
}

#[test]
fn many_take_turns_and_none_starves() {
    // Each begins with what one alone has, until it has heard the others.
    let window = (50 * SECOND, 110 * SECOND);
    let figures = run(&Setup { window, ..transfers(12) });
    assert_eq!(starved(&figures, 12), None);
    assert_eq!(unfair(&figures), None);
    assert_eq!(too_many(&figures, &run(&Setup { window, ..transfers(1) })), None);
}

#[test]
fn the_part_of_one_that_was_killed_is_not_kept_for_it() {
    assert_eq!(not_taken_over(None), None);
}

#[test]
fn users_get_equal_parts_however_many_transfers_they_have() {
    assert_eq!(unfair_to_users(None), None);
}

#[test]
fn liars_cost_half_and_stop_nothing() {
    let objects = |setup: Setup| Setup {
        transfers: vec![Transfer { objects: 40, ..setup.transfers[0] }],
        rates: vec![RATE; TARGETS],
        window: (0, 1000 * SECOND),
        ..setup
    };
    let alone = run(&objects(transfers(1))).ended[0].expect("it ends");
    let lied_to = run(&objects(Setup { liars: 100, ..transfers(1) })).ended[0].expect("it ends");
    println!("{:.1} s alone, {:.1} s with liars", alone as f64 / 1e9, lied_to as f64 / 1e9);
    assert!(lied_to <= 2 * alone + 4 * SECOND, "{alone} and {lied_to}");
}

#[test]
fn all_of_them_end() {
    let mut setup = transfers(3);
    setup.transfers.iter_mut().for_each(|one| one.objects = 30);
    setup.transfers[2].starts = 7 * SECOND;
    setup.window = (0, 1000 * SECOND);
    assert!(run(&setup).ended.iter().all(Option::is_some));
}
