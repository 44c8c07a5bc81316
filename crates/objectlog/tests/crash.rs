//! Whatever is done to a log, and wherever the process or the power ends: what comes back was recorded, and nothing
//! is lost that was promised.

mod support;

use haul_objectlog::Config;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use support::world::{Bug, Step, World};
use support::{Random, combinations};

/// Of each combination, unless `HAUL_CUT_HISTORIES=n` says how many; together about five seconds of one core.
const CUT_HISTORIES: u64 = 8;

fn steps(length: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..100u8, any::<u16>(), any::<u16>()), 1..length)
}

fn random_steps(random: &mut Random, length: u64) -> Vec<Step> {
    (0..length).map(|_| (random.below(100) as u8, random.next() as u16, random.next() as u16)).collect()
}

/// What the steps of a busy history do, and how often in a hundred: files begin, gain objects and end, and now and then
/// all begins anew.
const BUSY: [(u8, u32); 12] = {
    let (begin, resume_all, record, record_all, finish) = ((0, 20), (16, 8), (22, 35), (50, 2), (53, 9));
    let (flush, sync, stale, fail) = ((65, 12), (76, 4), (82, 1), (84, 2));
    let (fail_and_die, die, close) = ((88, 3), (95, 3), (99, 1));
    [begin, resume_all, record, record_all, finish, flush, sync, stale, fail, fail_and_die, die, close]
};

fn busy_random_steps(random: &mut Random, length: u64) -> Vec<Step> {
    let kinds: Vec<u8> =
        BUSY.iter().flat_map(|(kind, weight)| std::iter::repeat_n(*kind, *weight as usize)).collect();
    (0..length).map(|_| (random.one_of(&kinds), random.next() as u16, random.next() as u16)).collect()
}

fn busy_steps(length: usize) -> impl Strategy<Value = Vec<Step>> {
    let kinds = BUSY.iter().map(|(kind, weight)| (*weight, Just(*kind))).collect();
    let kind = prop::strategy::Union::new_weighted(kinds);
    prop::collection::vec((kind, any::<u16>(), any::<u16>()), 1..length)
}

/// A history from a seed, with limits so small that transactions fill up and universal logs are compacted.
fn history(config: Config, seed: u64, bug: Bug, audit: bool) -> Result<u64, String> {
    let mut random = Random(seed);
    let config = Config { transaction_files: 2, compact_bytes_min: 2048, ..config };
    let mut world = World::new(vec![config], random.next(), bug, audit);
    world.run(random_steps(&mut random, 60))?;
    Ok(world.replays)
}

#[test]
fn any_history_of_each_combination_replays_to_what_was_recorded_and_keeps_what_was_synced() {
    for config in combinations() {
        let mut replays = 0;
        for seed in 0..120 {
            replays += history(config, seed, Bug::None, false)
                .unwrap_or_else(|rule| panic!("{config:?}, seed {seed}: {rule}"));
        }
        assert!(replays > 700, "too few restarts to prove anything: {replays}");
    }
}

#[test]
fn data_is_never_written_under_a_record_that_is_not_durable() {
    for config in combinations() {
        for seed in 0..25 {
            history(config, seed, Bug::None, true)
                .unwrap_or_else(|rule| panic!("{config:?}, seed {seed}: {rule}"));
        }
    }
}

#[test]
fn a_record_that_could_not_be_written_is_written_before_its_data_though_its_neighbour_is_gone() {
    // Begin and record paths 0 and 1, a flush that fails at once, finish path 1, flush.
    let steps = [(0, 0, 2), (0, 1, 2), (22, 96, 0), (22, 97, 0), (84, 0, 0), (53, 1, 0), (65, 0, 0)];
    for config in combinations() {
        World::new(vec![config], 0, Bug::None, true)
            .run(steps)
            .unwrap_or_else(|rule| panic!("{config:?}: {rule}"));
    }
}

/// A history of which each step is cut off after every operation of the store, and within every write and sync.
fn cut_history(config: Config, seed: u64, bug: Bug) -> Result<u64, String> {
    let mut random = Random(seed);
    let config = Config { transaction_files: 2, compact_bytes_min: 2048, ..config };
    let mut world = World::cut_everywhere(vec![config], random.next(), bug);
    world.run(busy_random_steps(&mut random, 60))?;
    Ok(world.crashes)
}

#[test]
fn wherever_a_history_is_cut_off_a_part_of_what_was_recorded_comes_back_and_all_that_was_kept() {
    let histories = std::env::var("HAUL_CUT_HISTORIES").map_or(CUT_HISTORIES, |count| count.parse().unwrap());
    let mut crashes = 0;
    for config in combinations() {
        for seed in 0..histories {
            crashes += cut_history(config, seed, Bug::None)
                .unwrap_or_else(|rule| panic!("{config:?}, seed {seed}: {rule}"));
        }
    }
    println!("{crashes} crashes");
    assert!(crashes > 18 * histories * 60, "too few crashes to prove anything: {crashes}");
}

/// The properties above can fail: each planted bug breaks one of them.
#[test]
fn every_planted_bug_is_found() {
    for bug in [Bug::SyncIgnored, Bug::NamesIgnored, Bug::SyncLate, Bug::IndexLate, Bug::Unbound] {
        let found = (0..2000).find_map(|seed| {
            let config = combinations().nth(seed % 18)?;
            history(config, seed as u64, bug, false).err().map(|rule| (seed, rule))
        });
        let (seed, rule) = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: found by history {seed}: {rule}");
        let words = match bug {
            Bug::IndexLate => &["under no durable record"][..],
            Bug::Unbound => &["never recorded"],
            _ => &["is lost", "came back"],
        };
        assert!(words.iter().any(|word| rule.contains(word)), "{bug:?} was found by accident: {rule}");
    }
}

fn mixed(transaction_files: u32, compact_bytes_min: u64) -> Vec<Config> {
    combinations().map(|config| Config { transaction_files, compact_bytes_min, ..config }).collect()
}

fn property(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        max_shrink_iters: 5000,
        max_shrink_time: 20_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

// Restarts with other mechanisms and methods: every log is read as its own pages say.
proptest! {
    #![proptest_config(property(200))]
    #[test]
    fn histories_across_all_mechanisms_and_methods_hold(steps in steps(80), seed in any::<u64>()) {
        let result = World::new(mixed(3, 4096), seed, Bug::None, false).run(steps);
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }
}

proptest! {
    #![proptest_config(property(40))]
    #[test]
    fn histories_across_all_mechanisms_and_methods_hold_wherever_they_are_cut_off(
        steps in busy_steps(60), seed in any::<u64>(),
    ) {
        let result = World::cut_everywhere(mixed(2, 2048), seed, Bug::None).run(steps);
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }
}
