use alloc::collections::VecDeque;

use haul_model::EntryId;

use super::pace::Lately;
use super::*;

const SECOND: u64 = 1_000_000_000;

fn errands(watched: bool) -> Errands<u32> {
    let mut errands = Errands::new(u32::MAX, Some(8 * SECOND), Planted::default());
    if watched {
        errands.watch();
    }
    errands
}

fn ask(errands: &mut Errands<u32>, lane: Lane, about: u32) {
    errands.ask(lane, SinkOp::Forget { id: EntryId(1) }, about, Vec::new());
}

fn hand_out_all(errands: &mut Errands<u32>, now_nanos: u64) -> Vec<u64> {
    core::iter::from_fn(|| errands.hand_out(now_nanos)).map(|handed| handed.number).collect()
}

#[test]
fn one_that_hangs_is_relieved_then_given_up_and_its_answer_counts_no_more() {
    let mut errands = errands(true);
    ask(&mut errands, Lane::Sync, 5);
    let [number] = hand_out_all(&mut errands, 0)[..] else { panic!("it was not handed out") };
    assert_eq!(errands.deadline_nanos(), Some(2 * SECOND));
    assert!(errands.next_long(2 * SECOND - 1).is_none());
    let long = errands.next_long(2 * SECOND).unwrap();
    assert_eq!((long.number, long.about, long.replace), (number, 5, true));
    assert!(errands.next_long(3 * SECOND).is_none(), "once");
    assert_eq!(errands.deadline_nanos(), Some(8 * SECOND));
    assert_eq!(errands.give_up(8 * SECOND - 1), None);
    assert_eq!(errands.give_up(8 * SECOND), Some(GivenUp { about: 5, begun: true }));
    assert!(errands.is_idle());
    assert_eq!(errands.finished(number, 9 * SECOND), Finished::Late(5));
    assert_eq!(errands.finished(number, 9 * SECOND), Finished::Unknown);
}

fn seal(progress: &Progress) -> SinkOp {
    let entry = haul_model::Entry {
        id: EntryId(2),
        parent: EntryId(1),
        name: b"large"[..].into(),
        kind: haul_model::Kind::File,
        attributes: Default::default(),
        identity: haul_model::Identity { size: 1 << 40, ..Default::default() },
        links: 1,
        link_target: Default::default(),
    };
    let (token, progress) = (haul_model::Token([7; 16]), progress.clone());
    SinkOp::Seal { entry: entry.into(), token, object_bytes: 4 << 20, root: None, progress }
}

#[test]
fn one_that_reads_a_file_once_more_is_given_up_when_it_gets_no_further() {
    let mut errands = errands(true);
    let (reading, still) = (Progress::default(), Progress::default());
    errands.ask(Lane::Sync, seal(&reading), 5, Vec::new());
    errands.ask(Lane::Sync, seal(&still), 6, Vec::new());
    let numbers = hand_out_all(&mut errands, 0);
    for second in 1..=7 {
        assert!(reading.begins(second));
        let long = core::iter::from_fn(|| errands.next_long(second as u64 * SECOND)).map(|long| long.about);
        let expected = if second == 2 { Vec::from([6]) } else { Vec::new() };
        assert_eq!(long.collect::<Vec<_>>(), expected, "{second}");
        assert_eq!(errands.give_up(second as u64 * SECOND), None);
    }
    assert!(reading.begins(8));
    // Also where the one behind it was heard of later.
    assert_eq!(errands.give_up(8 * SECOND), Some(GivenUp { about: 6, begun: true }));
    assert!(!still.begins(1), "nobody waits for it");
    assert_eq!(errands.give_up(16 * SECOND - 1), None);
    assert_eq!(errands.give_up(16 * SECOND), Some(GivenUp { about: 5, begun: true }));
    assert_eq!(errands.finished(numbers[0], 17 * SECOND), Finished::Late(5));
    // What one took that was always heard of says nothing of how long others may be silent.
    let again = Progress::default();
    let mut errands = Errands::new(u32::MAX, None, Planted::default());
    errands.watch();
    errands.ask(Lane::Sync, seal(&again), 7, Vec::new());
    let [number] = hand_out_all(&mut errands, 0)[..] else { panic!("it was not handed out") };
    for second in 1..=1000 {
        assert!(again.begins(second));
        assert_eq!(errands.give_up(second as u64 * SECOND), None);
    }
    assert_eq!(errands.finished(number, 1001 * SECOND), Finished::InTime(7));
    ask(&mut errands, Lane::Sync, 8);
    hand_out_all(&mut errands, 1001 * SECOND);
    assert_eq!(errands.deadline_nanos(), Some(1003 * SECOND));
    assert!(errands.next_long(1003 * SECOND).is_some());
    assert_eq!(errands.give_up(1001 * SECOND + LIMIT_NANOS_MIN), Some(GivenUp { about: 8, begun: true }));
}

#[test]
fn a_sync_is_late_only_where_others_are_not() {
    let mut errands = Errands::new(u32::MAX, None, Planted::default());
    errands.watch();
    let sync = |errands: &mut Errands<u32>, now| {
        errands.ask(Lane::Sync, SinkOp::Sync { group: 1, files: Vec::new() }, 5, Vec::new());
        let [number] = hand_out_all(errands, now)[..] else { panic!("it was not handed out") };
        number
    };
    for nanos in [3 * SECOND, 100 * SECOND, 3 * SECOND, SECOND, 3 * SECOND] {
        let number = sync(&mut errands, 0);
        assert_eq!(errands.deadline_nanos(), Some(2 * SECOND), "five of them are needed to know");
        errands.finished(number, nanos);
    }
    let number = sync(&mut errands, 0);
    assert_eq!(errands.deadline_nanos(), Some(12 * SECOND));
    assert!(errands.next_long(12 * SECOND - 1).is_none());
    assert_eq!(errands.next_long(12 * SECOND).map(|long| long.number), Some(number));
    ask(&mut errands, Lane::Lay, 6);
    let [lay] = hand_out_all(&mut errands, 12 * SECOND)[..] else { panic!("it was not handed out") };
    assert!(errands.next_long(14 * SECOND - 1).is_none());
    assert_eq!(errands.next_long(14 * SECOND).map(|long| long.number), Some(lay), "it is no sync");
    errands.finished(lay, 14 * SECOND);
    errands.finished(number, 12 * SECOND);
    for _ in 0..Lately::MOST {
        let number = sync(&mut errands, 0);
        errands.finished(number, SECOND / 10);
    }
    sync(&mut errands, 0);
    assert_eq!(errands.deadline_nanos(), Some(2 * SECOND), "it follows what they take now");
    let mut hasty = Errands::new(u32::MAX, Some(SECOND), Planted::default());
    hasty.watch();
    (0..Lately::MOST).for_each(|_| hasty.syncs.add(&[], 3 * SECOND));
    sync(&mut hasty, 0);
    assert_eq!(hasty.deadline_nanos(), Some(SECOND / LONG_PART), "never later than a part of the limit");
}

#[test]
fn where_all_is_on_one_target_it_is_waited_for() {
    let mut errands = errands(false);
    ask(&mut errands, Lane::Sync, 5);
    let [number] = hand_out_all(&mut errands, 0)[..] else { panic!("it was not handed out") };
    assert_eq!(errands.deadline_nanos(), None);
    assert!(errands.next_long(u64::MAX).is_none() && errands.give_up(u64::MAX).is_none());
    assert_eq!(errands.finished(number, u64::MAX), Finished::InTime(5));
}

#[test]
fn a_lane_whose_threads_all_hang_takes_nothing_from_the_others() {
    let mut errands = errands(true);
    for about in 0..100 {
        ask(&mut errands, Lane::Slow, about);
        ask(&mut errands, Lane::Sync, about);
    }
    let handed: Vec<Lane> = core::iter::from_fn(|| errands.hand_out(0)).map(|handed| handed.lane).collect();
    let of = |lane| handed.iter().filter(|other| **other == lane).count() as u32;
    assert_eq!((of(Lane::Sync), of(Lane::Slow)), (SYNC_THREADS_SEVERAL, SLOW_THREADS));
}

#[test]
fn threads_are_replaced_up_to_a_bound_and_then_all_is_handed_back() {
    let mut errands = errands(true);
    for about in 0..100 {
        ask(&mut errands, Lane::Lay, about);
    }
    let (mut replaced, mut given_up, mut now) = (0, 0, 0);
    while !errands.is_idle() {
        hand_out_all(&mut errands, now);
        while let Some(long) = errands.next_long(now) {
            replaced += u32::from(long.replace);
        }
        while errands.give_up(now).is_some() {
            given_up += 1;
        }
        now += SECOND;
        assert!(now < 1000 * SECOND, "something is waited for without end");
    }
    assert_eq!((replaced, given_up), (LAY_THREADS * REPLACED_PER_THREAD, 100));
}

#[test]
fn a_thread_that_comes_back_can_be_replaced_again() {
    let mut errands = errands(true);
    let mut now = 0;
    for about in 0..100 {
        ask(&mut errands, Lane::Lay, about);
        let [number] = hand_out_all(&mut errands, now)[..] else { panic!("it was not handed out") };
        now += 9 * SECOND;
        assert!(errands.next_long(now).unwrap().replace);
        assert_eq!(errands.give_up(now), Some(GivenUp { about, begun: true }));
        assert_eq!(errands.finished(number, now), Finished::Late(about));
    }
}

#[test]
fn without_a_limit_it_follows_from_the_longest_so_far() {
    let mut errands = Errands::new(u32::MAX, None, Planted::default());
    errands.watch();
    ask(&mut errands, Lane::Sync, 1);
    let [number] = hand_out_all(&mut errands, 0)[..] else { panic!("it was not handed out") };
    assert_eq!(errands.give_up(LIMIT_NANOS_MIN - 1), None);
    assert_eq!(errands.finished(number, 50 * SECOND), Finished::InTime(1));
    ask(&mut errands, Lane::Sync, 2);
    hand_out_all(&mut errands, 0);
    assert_eq!(errands.give_up(LIMIT_TIMES * 50 * SECOND - 1), None);
    assert_eq!(errands.give_up(LIMIT_TIMES * 50 * SECOND), Some(GivenUp { about: 2, begun: true }));
}

fn sync() -> SinkOp {
    SinkOp::Sync { group: 1, files: Vec::new() }
}

/// `about` is the target.
fn ask_on(errands: &mut Errands<u32>, lane: Lane, target: Target) {
    errands.ask(lane, sync(), target.into(), Vec::from([target]));
}

#[test]
fn a_target_that_hangs_never_holds_all_threads() {
    let mut errands = errands(true);
    let quick: u32 = 60;
    for _ in 0..quick {
        ask_on(&mut errands, Lane::Sync, 7);
        ask_on(&mut errands, Lane::Sync, 7);
        ask_on(&mut errands, Lane::Sync, 1);
    }
    let (mut done, mut aside, mut given_up, mut now) = (0, 0, 0, 0);
    while !errands.is_idle() {
        while let Some(Handed { number, .. }) = errands.hand_out(now) {
            let on = errands.desks.iter().find_map(|desk| desk.under_way.get(&number)).unwrap().about;
            if on == 1 {
                assert_eq!(errands.finished(number, now), Finished::InTime(1));
                done += 1;
            }
        }
        while errands.next_long(now).is_some() {}
        while let Some((op, about, targets)) = errands.next_barred() {
            assert_eq!(about, 7);
            errands.ask_aside(op, about, targets);
            aside += 1;
        }
        while let Some(GivenUp { about, .. }) = errands.give_up(now) {
            assert_eq!(about, 7, "the others have nothing to do with it");
            given_up += 1;
        }
        if now > 3 * SECOND {
            assert_eq!(done, quick, "they need not wait until something is given up");
        }
        now += SECOND;
        assert!(now < 100 * SECOND, "something is waited for without end");
    }
    assert_eq!((done, given_up), (quick, 2 * quick));
    assert!(aside > quick, "{aside} did not hold up their groups");
}

#[test]
fn a_target_is_blamed_only_if_no_other_can_be() {
    let mut errands = errands(true);
    let on = |errands: &mut Errands<u32>, targets: &[Target]| {
        errands.ask(Lane::Slow, SinkOp::Forget { id: EntryId(1) }, 0, Vec::from(targets));
    };
    for _ in 0..2 {
        on(&mut errands, &[7, 8]);
    }
    hand_out_all(&mut errands, 0);
    while errands.next_long(3 * SECOND).is_some() {}
    on(&mut errands, &[8]);
    let [other] = hand_out_all(&mut errands, 3 * SECOND)[..] else { panic!("8 may be well") };
    on(&mut errands, &[7]);
    on(&mut errands, &[8]);
    assert_eq!(hand_out_all(&mut errands, 3 * SECOND).len(), 2, "so may 7");
    errands.finished(other, 4 * SECOND);
    on(&mut errands, &[8]);
    on(&mut errands, &[7]);
    on(&mut errands, &[7, 9]);
    assert_eq!(hand_out_all(&mut errands, 4 * SECOND).len(), 1, "it is 7");
}

#[test]
fn a_target_that_comes_back_is_asked_again() {
    let mut errands = errands(true);
    for _ in 0..SYNC_THREADS_SEVERAL {
        ask_on(&mut errands, Lane::Sync, 7);
    }
    let first = hand_out_all(&mut errands, 0);
    assert_eq!(first.len(), 2, "nobody knows yet how long they take");
    while errands.next_long(3 * SECOND).is_some() {}
    assert_eq!(hand_out_all(&mut errands, 3 * SECOND), [], "none but what hangs already");
    while errands.give_up(9 * SECOND).is_some() {}
    assert!(errands.is_idle());
    ask_on(&mut errands, Lane::Sync, 7);
    assert_eq!(errands.give_up(10 * SECOND), Some(GivenUp { about: 7, begun: false }), "as the others");
    for number in first {
        assert_eq!(errands.finished(number, 11 * SECOND), Finished::Late(7));
    }
    ask_on(&mut errands, Lane::Sync, 7);
    assert_eq!((errands.give_up(12 * SECOND), hand_out_all(&mut errands, 12 * SECOND).len()), (None, 1));
}

#[test]
fn no_target_is_idle_while_another_one_has_a_queue() {
    let mut errands = errands(true);
    for target in [1, 1, 1, 1, 2, 1, 3] {
        ask_on(&mut errands, Lane::Sync, target);
    }
    assert_eq!(handed_out_on(&mut errands, 0), [1, 2, 3, 1], "the first of each, then one more to follow it");
    let of_1 = errands.desks[1].under_way.iter().find(|(_, it)| it.about == 1).map(|(number, _)| *number);
    errands.finished(of_1.unwrap(), SECOND);
    assert_eq!(handed_out_on(&mut errands, SECOND), [1]);
}

fn handed_out_on(errands: &mut Errands<u32>, now_nanos: u64) -> Vec<u32> {
    let about = |number: u64, errands: &Errands<u32>| {
        errands.desks.iter().find_map(|desk| desk.under_way.get(&number)).unwrap().about
    };
    hand_out_all(errands, now_nanos).into_iter().map(|number| about(number, errands)).collect()
}

#[test]
fn a_file_on_several_targets_is_a_part_of_the_load_of_each() {
    let mut errands = errands(true);
    let on = |errands: &mut Errands<u32>, targets: &[Target]| {
        errands.ask(Lane::Sync, sync(), 0, Vec::from(targets));
    };
    (0..10).for_each(|_| on(&mut errands, &[1, 2, 3, 4]));
    assert_eq!(hand_out_all(&mut errands, 0).len(), 8);
    on(&mut errands, &[4, 5, 6, 7]);
    on(&mut errands, &[5, 6, 7, 8]);
    assert_eq!(hand_out_all(&mut errands, 0).len(), 1, "4 has enough to do");
}

#[test]
fn a_file_on_several_targets_is_not_overtaken_for_ever() {
    let mut errands = errands(true);
    for target in [1, 1, 2, 2] {
        ask_on(&mut errands, Lane::Sync, target);
    }
    let mut under_way: VecDeque<u64> = hand_out_all(&mut errands, 0).into();
    errands.ask(Lane::Sync, sync(), 12, Vec::from([1, 2]));
    for count in 0.. {
        assert!(count <= OVERTAKEN_MAX + 2, "overtaken for ever");
        // There is always one more of each.
        ask_on(&mut errands, Lane::Sync, 1);
        ask_on(&mut errands, Lane::Sync, 2);
        errands.finished(under_way.pop_front().unwrap(), 0);
        let before = errands.last;
        let handed = handed_out_on(&mut errands, 0);
        under_way.extend(before + 1..=errands.last);
        if handed.contains(&12) {
            break;
        }
    }
}

#[test]
fn what_is_no_sync_waits_for_none() {
    let mut errands = errands(true);
    (0..4).for_each(|_| ask_on(&mut errands, Lane::Sync, 7));
    errands.ask(Lane::Sync, SinkOp::Publish { group: 1, files: Vec::new() }, 70, Vec::from([7]));
    assert_eq!(handed_out_on(&mut errands, 0), [70, 7, 7], "a name; and no more syncs than ever");
}

#[test]
fn no_group_of_slow_targets_waits_for_what_is_barred() {
    let mut errands = errands(true);
    (0..2).for_each(|_| ask_on(&mut errands, Lane::Slow, 7));
    assert_eq!(hand_out_all(&mut errands, 0).len(), 2);
    while errands.next_long(2 * SECOND).is_some() {}
    errands.ask(Lane::Slow, SinkOp::Publish { group: 1, files: Vec::new() }, 70, Vec::from([7]));
    assert_eq!(hand_out_all(&mut errands, 2 * SECOND), []);
    let (op, about, targets) = errands.next_barred().expect("its group would wait for 7");
    assert_eq!(about, 70);
    errands.ask_aside(op, about, targets);
    assert!(errands.next_barred().is_none(), "once");
    assert_eq!(hand_out_all(&mut errands, 2 * SECOND), []);
    errands.finished(1, 3 * SECOND);
    assert_eq!(handed_out_on(&mut errands, 3 * SECOND), [70], "it answers again");
}

#[test]
fn where_syncs_are_quick_a_target_has_more_of_them() {
    let mut errands = errands(true);
    let at_a_time =
        |errands: &Errands<u32>, targets: &[Target]| errands.syncs.at_a_time(targets, SYNC_THREADS_SEVERAL);
    assert_eq!(at_a_time(&errands, &[7]), 2, "nothing is known");
    for (usual, expected) in [(SECOND / 1000, 10), (SECOND / 2, 4), (5 * SECOND, 2)] {
        (0..Lately::MOST).for_each(|_| errands.syncs.add(&[7], usual));
        assert_eq!((at_a_time(&errands, &[7]), at_a_time(&errands, &[7, 8])), (expected, expected));
    }
    (0..Lately::MOST).for_each(|_| errands.syncs.add(&[8], SECOND / 1000));
    assert_eq!((at_a_time(&errands, &[7]), at_a_time(&errands, &[8])), (2, 10), "each as it is itself");
}
