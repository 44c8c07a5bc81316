//! The rules of the scheduler, one at a time, through its public face.

#[path = "support/requests.rs"]
mod requests;

use haul_protocol::scheduler::{
    Class, Config, Finished, Lads, OutOfRange, Pace, Picked, Policy, Request, Said, Scheduler, TARGETS_MAX,
    TargetId, Told,
};
use requests::*;

fn scheduler(threads: u32, policy: Policy) -> Scheduler<u64> {
    Scheduler::new(Config::new(threads, 1000, policy))
}

fn gated(item: u64, target: u32, gate: u32) -> Request<u64> {
    Request { gate: Some(TargetId(gate)), ..object(item, target) }
}

fn urgent(item: u64, target: u32) -> Request<u64> {
    Request { class: Class::Urgent, ..object(item, target) }
}

/// One after the other, each done at both ends before the next one is picked.
fn pick_each(scheduler: &mut Scheduler<u64>, count: usize) -> Vec<u64> {
    let one = |_| {
        let picked = scheduler.pick(0).unwrap();
        scheduler.finished(picked.ticket, 0, true);
        scheduler.gate_done(picked.ticket);
        picked.item
    };
    (0..count).map(one).collect()
}

fn items(picked: &[Picked<u64>]) -> Vec<u64> {
    picked.iter().map(|picked| picked.item).collect()
}

/// One after the other: each takes `took`, as far as its target says.
fn serve(scheduler: &mut Scheduler<u64>, now: &mut u64, took: impl Fn(TargetId) -> u64) -> Picked<u64> {
    let picked = scheduler.pick(*now).expect("there is work");
    *now += took(picked.target);
    assert_eq!(scheduler.finished(picked.ticket, *now, true), Finished::InTime);
    picked
}

#[test]
fn the_target_with_the_fewest_under_way_is_next_and_equals_take_turns() {
    let mut scheduler = scheduler(30, Policy::Layout);
    push_all(&mut scheduler, (0..30).map(|item| object(item, (item / 10) as u32)));
    let picked = pick_all(&mut scheduler, 7, 0);
    assert_eq!(items(&picked), [0, 10, 20, 1, 11, 21, 2]);
    scheduler.finished(picked[4].ticket, MS, true);
    assert_eq!(
        items(&pick_all(&mut scheduler, 3, MS)),
        [12, 22, 13],
        "target 1 had the fewest, then all had two"
    );
}

#[test]
fn one_target_alone_has_all_threads_and_with_a_second_a_third_of_them() {
    let mut scheduler = scheduler(9, Policy::Adaptive(Default::default()));
    push_all(&mut scheduler, (0..100).map(|item| object(item, 4)));
    let names = |item| Request { class: Class::Name, ..object(item, 0) };
    push_all(&mut scheduler, (100..110).map(names));
    let picked = pick_all(&mut scheduler, 9, 0);
    let on =
        |picked: &[Picked<u64>], target| picked.iter().filter(|it| it.target == TargetId(target)).count();
    assert_eq!((on(&picked, 4), on(&picked, 0)), (7, 2), "names are steered, and do not make the disk share");
    push_all(&mut scheduler, (200..300).map(|item| object(item, 5)));
    picked.iter().for_each(|it| _ = scheduler.finished(it.ticket, MS, true));
    let picked = pick_all(&mut scheduler, 9, MS);
    assert!(on(&picked, 4) <= 3 && on(&picked, 5) <= 3, "{picked:?}");
}

#[test]
fn fewer_slots_than_threads_make_the_share() {
    let mut scheduler = Scheduler::new(Config::new(30, 6, Policy::Layout));
    push_all(&mut scheduler, (0..100).map(|item| object(item, item as u32 % 2)));
    assert_eq!(pick_all(&mut scheduler, 30, 0).len(), 4);
    let mut tiny = Scheduler::new(Config::new(1, 1, Policy::Layout));
    push_all(&mut tiny, (0..4).map(|item| object(item, item as u32 % 2)));
    assert_eq!(pick_all(&mut tiny, 30, 0).len(), 2, "at least one each");
}

#[test]
fn urgent_requests_come_first_and_know_no_limit_but_death() {
    let mut scheduler = scheduler(3, Policy::Layout);
    push_all(&mut scheduler, (0..10).map(|item| object(item, item as u32 % 2)));
    pick_all(&mut scheduler, 2, 0);
    push_all(&mut scheduler, (50..60).map(|item| urgent(item, 0)));
    let picked = pick_all(&mut scheduler, 9, 0);
    assert_eq!(items(&picked), (50..59).collect::<Vec<_>>());
    assert_eq!(scheduler.pick_urgent(0).map(|it| it.item), Some(59));
    assert!(scheduler.pick_urgent(0).is_none(), "an object needs a slot");
}

#[test]
fn objects_and_bundles_take_turns_by_bytes() {
    let mut scheduler = scheduler(100, Policy::Layout);
    push_all(&mut scheduler, (0..1000).map(|item| Request { bytes: 4 * MIB, ..object(item, 0) }));
    push_all(&mut scheduler, (1000..2000).map(|item| Request { class: Class::Bundle, ..object(item, 0) }));
    let picked = pick_all(&mut scheduler, 100, 0);
    let bundles = picked.iter().filter(|it| it.item >= 1000).count();
    assert_eq!(bundles, 80, "four bundles for each object");
    let small = |class| move |item| Request { class, bytes: 0, ..object(item, 1) };
    push_all(&mut scheduler, (0..9).map(small(Class::Bundle)));
    push_all(&mut scheduler, (10..19).map(small(Class::Object)));
    let picked: Vec<_> = pick_all(&mut scheduler, 8, 0);
    assert_eq!(
        picked.iter().filter(|it| it.item >= 10).count(),
        4,
        "nothing counts as something: {picked:?}"
    );
}

#[test]
fn a_class_that_was_idle_does_not_claim_what_it_missed() {
    let mut scheduler = scheduler(2000, Policy::Layout);
    push_all(&mut scheduler, (0..2000).map(|item| object(item, 0)));
    pick_all(&mut scheduler, 500, 0);
    push_all(&mut scheduler, (5000..6000).map(|item| Request { class: Class::Bundle, ..object(item, 0) }));
    let picked = pick_all(&mut scheduler, 100, 0);
    assert_eq!(picked.iter().filter(|it| it.item >= 5000).count(), 50);
}

/// A file that is striped over many targets of the other end, beside small files: there is always a gate with nothing under way.
#[test]
fn bundles_have_their_turns_beside_objects_behind_many_gates() {
    let mut scheduler = scheduler(8, Policy::Layout);
    push_all(&mut scheduler, (0..6400).map(|item| gated(item, 0, item as u32 % 64)));
    push_all(
        &mut scheduler,
        (10_000..11_000).map(|item| Request { class: Class::Bundle, ..object(item, 0) }),
    );
    let picked = pick_each(&mut scheduler, 1000);
    assert_eq!(picked.iter().filter(|item| **item >= 10_000).count(), 500);
}

#[test]
fn objects_behind_closed_gates_do_not_claim_what_they_missed() {
    let mut scheduler = scheduler(8, Policy::Layout);
    scheduler.set_allowance(TargetId(7), 0).unwrap();
    push_all(&mut scheduler, (0..1000).map(|item| gated(item, 0, 7)));
    push_all(&mut scheduler, (5000..7000).map(|item| Request { class: Class::Bundle, ..object(item, 0) }));
    let serve = |scheduler: &mut Scheduler<u64>, picks: usize| {
        let picked = pick_each(scheduler, picks);
        picked.iter().filter(|item| **item < 5000).count()
    };
    assert_eq!(serve(&mut scheduler, 500), 0);
    scheduler.set_allowance(TargetId(7), 100).unwrap();
    let objects = serve(&mut scheduler, 100);
    assert!(matches!(objects, 50 | 51), "{objects}");
}

#[test]
fn a_closed_gate_lets_others_pass_and_opens_again() {
    let mut scheduler = scheduler(90, Policy::Layout);
    scheduler.set_allowance(TargetId(7), 1).unwrap();
    scheduler.set_allowance(TargetId(8), 2).unwrap();
    push_all(
        &mut scheduler,
        [gated(0, 0, 7), gated(1, 0, 7), gated(2, 0, 8), gated(3, 0, 8), gated(4, 0, 8)],
    );
    push_all(&mut scheduler, [gated(5, 1, 7)]);
    let picked = pick_all(&mut scheduler, 9, 0);
    assert_eq!(items(&picked), [0, 2, 3]);
    assert!(!scheduler.gate_done(picked[0].ticket), "it is still being read");
    scheduler.finished(picked[0].ticket, MS, true);
    assert!(scheduler.pick(MS).is_none(), "the unit is out until the other end is done");
    assert!(scheduler.gate_done(picked[0].ticket));
    assert!(!scheduler.gate_done(picked[0].ticket), "once");
    assert_eq!(scheduler.pick(MS).map(|it| it.item), Some(5), "target 1 has nothing under way");
    scheduler.finished(picked[1].ticket, MS, false);
    assert_eq!(scheduler.pick(MS).map(|it| it.item), Some(4), "what failed gives its unit back");
    scheduler.set_allowance(TargetId(7), 2).unwrap();
    assert_eq!(scheduler.pick(MS).map(|it| it.item), Some(1));
    scheduler.set_allowance(TargetId(7), 0).unwrap();
    push_all(&mut scheduler, [gated(9, 1, 7)]);
    assert!(scheduler.pick(MS).is_none());
}

#[test]
fn a_gate_of_which_nothing_is_known_has_a_third_once_there_are_two() {
    let mut scheduler = Scheduler::new(Config::new(90, 9, Policy::Layout));
    push_all(&mut scheduler, (0..9).map(|item| gated(item, 0, 1)));
    assert_eq!(pick_all(&mut scheduler, 90, 0).len(), 9);
    let mut scheduler = Scheduler::new(Config::new(90, 9, Policy::Layout));
    push_all(&mut scheduler, (0..18).map(|item| gated(item, 0, item as u32 % 2)));
    assert_eq!(pick_all(&mut scheduler, 90, 0).len(), 6);
}

#[test]
fn a_failed_gate_hands_back_what_waits_for_it() {
    let mut scheduler = scheduler(3, Policy::Layout);
    push_all(&mut scheduler, [gated(0, 0, 1), gated(1, 0, 2), gated(2, 5, 2)]);
    scheduler.fail_gate(TargetId(2)).unwrap();
    push_all(&mut scheduler, [gated(3, 0, 2)]);
    let mut back: Vec<_> = core::iter::from_fn(|| scheduler.take_dead()).map(|(item, _)| item).collect();
    back.sort_unstable();
    assert_eq!(back, [1, 2, 3]);
    scheduler.set_allowance(TargetId(2), 5).unwrap();
    push_all(&mut scheduler, [gated(4, 1, 2)]);
    assert_eq!(items(&pick_all(&mut scheduler, 9, 0)), [0, 4]);
    assert_eq!((scheduler.take_dead(), scheduler.queued()), (None, 0));
}

#[test]
fn a_hung_target_dies_its_queue_comes_back_and_it_revives_when_it_answers() {
    let mut scheduler = scheduler(6, Policy::Layout);
    push_all(&mut scheduler, (0..10).map(|item| object(item, 0)));
    push_all(&mut scheduler, [object(20, 1), urgent(21, 0)]);
    let picked = pick_all(&mut scheduler, 6, 0);
    assert_eq!(items(&picked), [21, 0, 20, 1]);
    assert_eq!(scheduler.finished(picked[2].ticket, SECOND, true), Finished::InTime);
    assert_eq!(scheduler.deadline_nanos(), Some(30 * SECOND));
    assert!(scheduler.expire(30 * SECOND - 1).is_none());
    let mut lost = Vec::new();
    while let Some(it) = scheduler.expire(30 * SECOND) {
        assert!(it.replace && it.target == TargetId(0));
        lost.push(it);
    }
    assert_eq!(lost.len(), 3, "an urgent one too");
    assert!(scheduler.target(TargetId(0)).unwrap().dead);
    let back: Vec<_> = core::iter::from_fn(|| scheduler.take_dead()).collect();
    assert_eq!(back, (2..10).map(|item| (item, TargetId(0))).collect::<Vec<_>>());
    push_all(&mut scheduler, [object(30, 0), urgent(31, 0)]);
    assert!(scheduler.pick(31 * SECOND).is_none());
    let mut back: Vec<_> = core::iter::from_fn(|| scheduler.take_dead()).map(|(item, _)| item).collect();
    back.sort_unstable();
    assert_eq!(back, [30, 31]);
    // All come back.
    push_all(&mut scheduler, [object(40, 0)]);
    let late = Finished::Late { spare: true };
    assert!(lost.iter().all(|it| scheduler.finished(it.ticket, 40 * SECOND, true) == late));
    assert_eq!(scheduler.finished(lost[0].ticket, 40 * SECOND, true), Finished::Unknown, "once");
    assert_eq!(scheduler.pick(40 * SECOND).map(|it| it.item), Some(40));
    assert_eq!(scheduler.target(TargetId(0)).unwrap().lost, 0);
}

#[test]
fn one_lost_thread_makes_a_target_suspect_until_it_answers() {
    let mut scheduler = scheduler(9, Policy::Layout);
    push_all(&mut scheduler, (0..10).map(|item| object(item, 0)));
    push_all(&mut scheduler, (10..90).map(|item| object(item, 1)));
    let hung = scheduler.pick(0).unwrap();
    assert_eq!(hung.target, TargetId(0));
    scheduler.expire(30 * SECOND).unwrap();
    let mut now = 31 * SECOND;
    let picked = pick_all(&mut scheduler, 9, now);
    let probes: Vec<_> = picked.iter().filter(|it| it.target == TargetId(0)).collect();
    assert_eq!(
        probes.iter().map(|it| it.pace).collect::<Vec<_>>(),
        [Pace::Gentle],
        "one, when others have enough"
    );
    now += SECOND;
    scheduler.finished(probes[0].ticket, now, false);
    let picked = pick_all(&mut scheduler, 9, now);
    assert!(picked.iter().all(|it| it.target == TargetId(0) && it.pace == Pace::Normal));
    assert_eq!(picked.len(), 2, "its lost thread is part of its share");
}

#[test]
fn when_no_thread_is_left_everything_comes_back() {
    let config = Config { lost_in_all: 1, lost_per_target: 9, ..Config::new(2, 99, Policy::Layout) };
    let mut scheduler = Scheduler::new(config);
    push_all(&mut scheduler, (0..4).map(|item| object(item, item as u32)));
    let mut now = 0;
    let mut threads = 2;
    let mut lost = Vec::new();
    while threads > 0 {
        let idle = threads - scheduler.under_way() as usize;
        let picked = pick_all(&mut scheduler, idle, now);
        assert!(!picked.is_empty() || scheduler.under_way() > 0);
        now += 30 * SECOND;
        while let Some(it) = scheduler.expire(now) {
            threads -= usize::from(!it.replace);
            lost.push(it);
        }
    }
    assert_eq!(lost.len(), 3);
    assert_eq!(scheduler.take_dead(), Some((3, TargetId(3))), "though target 3 has done nothing wrong");
    push_all(&mut scheduler, [object(9, 2)]);
    assert_eq!(scheduler.take_dead(), Some((9, TargetId(2))));
    let spare: Vec<_> = lost.iter().map(|it| scheduler.finished(it.ticket, now, true)).collect();
    assert_eq!(spare.iter().filter(|it| **it == Finished::Late { spare: true }).count(), 1);
    push_all(&mut scheduler, [object(10, 2)]);
    assert_eq!(scheduler.pick(now).map(|it| it.item), Some(10));
}

/// Ten targets, of which target 0 takes `slow`, until every target is known. Returns the time.
fn warm_up(scheduler: &mut Scheduler<u64>, slow: u64) -> u64 {
    push_all(scheduler, (0..100_000).map(|item| object(item, item as u32 % 10)));
    let mut now = 0;
    for _ in 0..200 {
        serve(scheduler, &mut now, |target| if target == TargetId(0) { slow } else { 10 * MS });
    }
    now
}

#[test]
fn lads_skips_a_slow_target_as_often_as_it_is_slower() {
    let mut scheduler = scheduler(30, Policy::Lads(Lads::default()));
    let mut now = warm_up(&mut scheduler, 200 * MS);
    let view = scheduler.target(TargetId(0)).unwrap();
    assert!(view.congested && !scheduler.target(TargetId(1)).unwrap().congested);
    let took = |target| if target == TargetId(0) { 200 * MS } else { 10 * MS };
    let picks: Vec<_> = (0..210).map(|_| serve(&mut scheduler, &mut now, took)).collect();
    let tries: Vec<_> = picks.iter().filter(|it| it.target == TargetId(0)).collect();
    assert!((9..=11).contains(&tries.len()), "20 times slower: {} tries", tries.len());
    assert!(tries.iter().all(|it| it.pace == Pace::Gentle));
    // It recovers.
    (0..300).for_each(|_| _ = serve(&mut scheduler, &mut now, |_| 10 * MS));
    assert!(!scheduler.target(TargetId(0)).unwrap().congested);
}

#[test]
fn aging_serves_a_target_that_is_skipped() {
    let skip = Some(u32::MAX);
    let policy = Policy::Lads(Lads { skip, ..Lads::default() });
    let mut scheduler = Scheduler::new(Config { aging_nanos: Some(SECOND), ..Config::new(30, 99, policy) });
    let mut now = warm_up(&mut scheduler, 200 * MS);
    let mut last = now;
    let mut tries = 0;
    for _ in 0..1000 {
        let before = now;
        let took = |target| if target == TargetId(0) { 200 * MS } else { 10 * MS };
        if serve(&mut scheduler, &mut now, took).target == TargetId(0) {
            assert!(before - last <= SECOND + 20 * MS, "skipped for {} ms", (before - last) / MS);
            last = now;
            tries += 1;
        }
    }
    assert!(tries > 5);
}

#[test]
fn aging_serves_a_suspect_target_between_congested_ones() {
    let aging_nanos = Some(0);
    let config = Config { aging_nanos, ..Config::new(30, 99, Policy::Adaptive(Default::default())) };
    let mut scheduler = Scheduler::new(config);
    push_all(&mut scheduler, (0..4000).map(|item| object(item, item as u32 % 4)));
    // Target 1 loses a request; its neighbours on both sides are congested and stay so; target 3 is well.
    let lost = (0..4).filter_map(|_| scheduler.pick(0)).find(|it| it.target.0 == 1).expect("one of each");
    let mut now = 60 * SECOND;
    while let Some(it) = scheduler.expire(now) {
        if it.ticket != lost.ticket {
            scheduler.finished(it.ticket, now, true);
        }
    }
    let slow = |target| Told { congested: true, ..told(target, 1, 0) };
    let mut picked = Vec::new();
    for _ in 0..6 {
        now += SECOND;
        scheduler.neighbours_said(&[slow(0), slow(2)], now);
        let it = scheduler.pick(now).expect("there is work");
        picked.push(it.target.0);
        scheduler.finished(it.ticket, now, false);
    }
    assert!(picked.contains(&1), "target 1 waits while its neighbours have turn after turn: {picked:?}");
}

#[test]
fn adaptive_keeps_one_request_under_way_on_a_congested_target() {
    let mut scheduler = scheduler(30, Policy::Adaptive(Default::default()));
    let now = warm_up(&mut scheduler, 200 * MS);
    assert_eq!(
        scheduler.target(TargetId(0)).unwrap().depth,
        scheduler.target(TargetId(0)).unwrap().depth.min(10)
    );
    let picked = pick_all(&mut scheduler, 30, now);
    let slow: Vec<_> = picked.iter().filter(|it| it.target == TargetId(0)).collect();
    assert_eq!(slow.iter().map(|it| it.pace).collect::<Vec<_>>(), [Pace::Gentle]);
    assert!(picked.len() > 18, "the others have two each or more: {}", picked.len());
}

#[test]
fn a_request_that_is_waited_for_too_long_counts_as_slow() {
    let mut scheduler = scheduler(30, Policy::Adaptive(Default::default()));
    let mut now = warm_up(&mut scheduler, 10 * MS);
    assert!(!scheduler.target(TargetId(0)).unwrap().congested);
    let stuck: Vec<_> = (0..10).map(|_| scheduler.pick(now).unwrap()).collect();
    assert_eq!(stuck.iter().filter(|it| it.target == TargetId(0)).count(), 1);
    for it in stuck.iter().filter(|it| it.target != TargetId(0)) {
        scheduler.finished(it.ticket, now + 10 * MS, true);
    }
    now += SECOND;
    let picked = pick_all(&mut scheduler, 40, now);
    assert!(picked.iter().all(|it| it.target != TargetId(0)));
    assert!(scheduler.target(TargetId(0)).unwrap().congested);
}

#[test]
fn no_thread_is_idle_while_only_congested_targets_have_work() {
    let mut scheduler = scheduler(30, Policy::Lads(Lads { skip: Some(1_000_000), ..Lads::default() }));
    let mut now = 0;
    push_all(&mut scheduler, (0..60).map(|item| object(item, item as u32 % 3)));
    push_all(&mut scheduler, (60..100).map(|item| object(item, 0)));
    for _ in 0..100 {
        serve(&mut scheduler, &mut now, |target| if target == TargetId(0) { 500 * MS } else { MS });
    }
    assert_eq!(scheduler.queued(), 0);
}

#[test]
fn in_file_order_nothing_overtakes() {
    let mut scheduler = scheduler(4, Policy::FileOrder);
    scheduler.set_allowance(TargetId(0), 0).unwrap();
    push_all(&mut scheduler, [gated(0, 3, 0), gated(1, 3, 0), object(2, 3), object(3, 0), object(4, 0)]);
    assert_eq!(items(&pick_all(&mut scheduler, 5, 0)), [0, 1, 2, 3, 4]);
    push_all(&mut scheduler, [object(5, 3), object(6, 0)]);
    while scheduler.expire(30 * SECOND).is_some() {}
    push_all(&mut scheduler, [object(7, 1)]);
    assert_eq!(scheduler.pick(30 * SECOND).map(|it| it.item), Some(7));
    assert_eq!(core::iter::from_fn(|| scheduler.take_dead()).map(|it| it.0).collect::<Vec<_>>(), [5, 6]);
}

#[test]
fn the_other_end_is_told_what_has_changed() {
    let mut scheduler = Scheduler::new(Config::new(12, 30, Policy::Adaptive(Default::default())));
    push_all(&mut scheduler, [object(0, 0)]);
    assert_eq!(scheduler.next_allowance(), Some((TargetId(0), 30)), "alone: all slots");
    push_all(&mut scheduler, [object(1, 1)]);
    let told: Vec<_> = core::iter::from_fn(|| scheduler.next_allowance()).collect();
    assert_eq!(told, [(TargetId(0), 10), (TargetId(1), 10)]);
    scheduler.set_slots(36, 0);
    let told: Vec<_> = core::iter::from_fn(|| scheduler.next_allowance()).collect();
    assert_eq!(told, [(TargetId(0), 12), (TargetId(1), 12)], "more slots are used");
    pick_all(&mut scheduler, 2, 0);
    while scheduler.expire(30 * SECOND).is_some() {}
    assert_eq!(scheduler.next_allowance(), Some((TargetId(0), 2)), "suspect");
    assert_eq!(scheduler.next_allowance(), Some((TargetId(1), 2)));
    assert_eq!(scheduler.next_allowance(), None);
}

#[test]
fn numbers_out_of_range_are_refused() {
    let mut scheduler = scheduler(1, Policy::Layout);
    assert_eq!(scheduler.push(object(0, TARGETS_MAX), 0), Err(OutOfRange));
    assert_eq!(scheduler.push(gated(0, 0, TARGETS_MAX), 0), Err(OutOfRange));
    assert_eq!(scheduler.set_allowance(TargetId(TARGETS_MAX), 0), Err(OutOfRange));
    assert_eq!(scheduler.fail_gate(TargetId(TARGETS_MAX)), Err(OutOfRange));
    assert_eq!(scheduler.queued(), 0);
    assert!(scheduler.push(gated(0, TARGETS_MAX - 1, TARGETS_MAX - 1), 0).is_ok());
    assert_eq!(scheduler.pick(0).map(|it| it.item), Some(0));
}

#[test]
fn what_is_read_ahead_passes_closed_gates_and_takes_no_unit() {
    let mut scheduler = scheduler(90, Policy::Layout);
    scheduler.set_allowance(TargetId(7), 1).unwrap();
    push_all(&mut scheduler, (0..4).map(|item| gated(item, 0, 7)));
    push_all(&mut scheduler, [gated(10, 1, 8)]);
    scheduler.set_allowance(TargetId(8), 0).unwrap();
    let straight = scheduler.pick(0).unwrap();
    assert!(scheduler.pick(0).is_none(), "both gates are closed");
    let ahead: Vec<_> = (0..9).map_while(|_| scheduler.pick_ahead(0)).collect();
    assert_eq!(items(&ahead), [10, 1, 2, 3], "the target with the fewest under way first");
    scheduler.finished(ahead[1].ticket, MS, true);
    assert!(!scheduler.gate_done(ahead[1].ticket), "it held no unit");
    let aside = Request { target: TargetId(4096), class: Class::Aside, ..gated(1, 0, 7) };
    push_all(&mut scheduler, [aside]);
    assert!(scheduler.pick(MS).is_none(), "it waits for the same gate");
    assert!(scheduler.pick_ahead(MS).is_none(), "what was put aside is not read ahead");
    scheduler.finished(straight.ticket, MS, true);
    scheduler.gate_done(straight.ticket);
    let back = scheduler.pick(2 * MS).unwrap();
    assert_eq!((back.item, back.target), (1, TargetId(4096)));
    scheduler.finished(back.ticket, 3 * MS, true);
    assert!(scheduler.gate_done(back.ticket));
}

#[test]
fn what_was_put_aside_takes_no_share_from_the_one_target_that_is_read() {
    let mut scheduler = scheduler(9, Policy::Adaptive(Default::default()));
    push_all(&mut scheduler, (0..50).map(|item| object(item, 0)));
    let aside = |item| Request { class: Class::Aside, ..object(item, 4096) };
    push_all(&mut scheduler, (100..150).map(aside));
    let picked = pick_all(&mut scheduler, 9, 0);
    let read = picked.iter().filter(|it| it.target == TargetId(0)).count();
    assert!(read >= 6, "{read} of 9");
}

#[test]
fn nothing_is_read_ahead_from_a_target_that_is_held_back() {
    let mut scheduler = scheduler(9, Policy::Layout);
    push_all(&mut scheduler, (0..10).map(|item| gated(item, 0, 7)));
    let hung = scheduler.pick(0).unwrap();
    assert_eq!(hung.target, TargetId(0));
    scheduler.expire(30 * SECOND).unwrap();
    scheduler.set_allowance(TargetId(7), 0).unwrap();
    assert!(scheduler.pick_ahead(31 * SECOND).is_none(), "it lost a thread");
    scheduler.finished(hung.ticket, 32 * SECOND, true);
    assert_eq!(scheduler.pick_ahead(32 * SECOND).map(|it| it.item), Some(1));
}

fn told(target: u32, parts: u32, place: u32) -> Told {
    Told { target: TargetId(target), parts, place, under_way: 0, congested: false }
}

#[test]
fn a_target_is_shared_with_neighbours_for_as_long_as_they_are_there() {
    // A third of 21 threads is 7: of three, the first has 3 of them and the last has 2.
    for (place, part) in [(0, 3), (1, 2), (2, 2)] {
        let mut scheduler = scheduler(21, Policy::Layout);
        push_all(&mut scheduler, (0..100).map(|item| object(item, item as u32 % 2)));
        scheduler.neighbours_said(&[told(0, 3, place)], 0);
        let picked = pick_all(&mut scheduler, 21, 0);
        let on_first = picked.iter().filter(|it| it.target.0 == 0).count();
        assert_eq!((on_first, picked.len()), (part, part + 7));
        scheduler.neighbours_said(&[], MS);
        assert_eq!(pick_all(&mut scheduler, 21, MS).len(), 7 - part, "they have gone");
    }
}

#[test]
fn what_neighbours_call_congested_is_tried_with_one_request_and_then_judged_by_its_answers() {
    let mut scheduler = scheduler(21, Policy::Adaptive(Default::default()));
    let congested = Told { congested: true, ..told(0, 1, 0) };
    scheduler.neighbours_said(&[congested], 0);
    push_all(&mut scheduler, (0..200).map(|item| object(item, item as u32 % 2)));
    let on_first = |picked: &[Picked<u64>]| -> Vec<Picked<u64>> {
        picked.iter().filter(|it| it.target.0 == 0).copied().collect()
    };
    let mut now = 0;
    for _ in 0..2 {
        let picked = on_first(&pick_all(&mut scheduler, 21, now));
        assert_eq!(picked.len(), 1);
        assert_eq!(picked[0].pace, Pace::Gentle);
        now += MS;
        scheduler.finished(picked[0].ticket, now, true);
        // Said again and again: what was seen here counts more.
        scheduler.neighbours_said(&[congested], now);
    }
    let picked = on_first(&pick_all(&mut scheduler, 21, now));
    assert!(picked.len() > 1 && picked[0].pace == Pace::Normal, "{picked:?}");
    let said: Vec<Said> = scheduler.said(now).collect();
    assert_eq!((said[0].under_way, said[0].congested, said[0].wants), (picked.len() as u32, false, true));
}

#[test]
fn a_congested_target_that_waits_for_its_turn_is_tried_when_it_comes_however_many_picks_it_should_be_skipped()
{
    let lads = Lads { skip: Some(u32::MAX), threshold_nanos: Some(1), ..Lads::default() };
    let mut scheduler = scheduler(6, Policy::Lads(lads));
    push_all(&mut scheduler, (0..100).map(|item| object(item, 0)));
    push_all(&mut scheduler, (100..110).map(|item| object(item, 1)));
    let congested = Told { congested: true, ..told(0, 2, 1) };
    scheduler.neighbours_said(&[congested], 0);
    let first = scheduler.target(TargetId(0)).unwrap();
    assert!(first.congested);
    for now in (0..4000).step_by(250) {
        let picked = pick_all(&mut scheduler, 6, now * MS);
        assert!(picked.iter().all(|it| it.target.0 == 1), "it is the other one's turn");
        picked.iter().for_each(|it| _ = scheduler.finished(it.ticket, now * MS, false));
        scheduler.neighbours_said(&[congested], now * MS);
    }
    push_all(&mut scheduler, (200..300).map(|item| object(item, 1)));
    scheduler.neighbours_said(&[Told { place: 0, ..congested }], 4000 * MS);
    let picked = pick_all(&mut scheduler, 2, 4000 * MS);
    assert!(picked.iter().any(|it| it.target.0 == 0), "it has waited for longer than the limit: {picked:?}");
}

/// A pool of flash is read first, and then for hours one of disks.
#[test]
fn targets_that_have_nothing_to_do_any_more_make_the_others_not_slow() {
    let mut scheduler = scheduler(24, Policy::Adaptive(Default::default()));
    let mut now = 0;
    for (targets, took, objects) in [(0..4, MS, 200), (4..8, 40 * MS, 4000)] {
        push_all(
            &mut scheduler,
            targets.flat_map(|target| (0..objects).map(move |item| object(item, target))),
        );
        loop {
            let picked = pick_all(&mut scheduler, 24, now);
            if picked.is_empty() {
                break;
            }
            now += took;
            picked.iter().for_each(|it| _ = scheduler.finished(it.ticket, now, true));
        }
    }
    push_all(&mut scheduler, (4..8).flat_map(|target| (0..9).map(move |item| object(item, target))));
    let picked = pick_all(&mut scheduler, 24, now);
    assert!(picked.len() >= 16, "{} requests to four equal targets", picked.len());
}

/// Else a word that is out of date would go round for ever.
#[test]
fn what_one_neighbour_says_is_not_told_to_the_others() {
    let mut scheduler = scheduler(12, Policy::Adaptive(Default::default()));
    let congested = Told { congested: true, ..told(0, 1, 0) };
    push_all(&mut scheduler, (0..400).map(|item| object(item, item as u32 % 2)));
    let serve_all = |scheduler: &mut Scheduler<u64>, now: &mut u64, took: [u64; 2]| {
        let picked = pick_all(scheduler, 12, *now);
        *now += took[0].max(took[1]);
        for it in picked {
            let began = *now - took[0].max(took[1]);
            scheduler.finished(it.ticket, began + took[it.target.0 as usize], true);
        }
    };
    let mut now = 0;
    for _ in 0..8 {
        serve_all(&mut scheduler, &mut now, [MS, MS]);
    }
    let says = |scheduler: &Scheduler<u64>, now| scheduler.said(now).next().unwrap().congested;
    now += 3 * SECOND;
    scheduler.neighbours_said(&[congested], now);
    assert!(scheduler.target(TargetId(0)).unwrap().congested, "nothing fresher is known here");
    assert!(!says(&scheduler, now), "its answer of three seconds ago was quick");
    for _ in 0..8 {
        serve_all(&mut scheduler, &mut now, [200 * MS, MS]);
    }
    assert!(says(&scheduler, now), "that was seen here");
}
