//! What is lost on a target: what it says of it, and what it does not.

#[path = "support/requests.rs"]
mod requests;

use std::collections::VecDeque;

use haul_protocol::scheduler::{Config, Finished, Pace, Picked, Policy, Scheduler, TargetId};
use requests::{MS, SECOND, object, pick_all, push_all};

#[test]
fn what_is_lost_for_the_same_reason_does_not_count_twice() {
    let mut scheduler = Scheduler::new(Config::new(12, 48, Policy::Layout));
    push_all(&mut scheduler, (0..9).map(|item| object(item, 1)).chain([object(9, 2)]));
    assert_eq!(pick_all(&mut scheduler, 5, 0).len(), 5, "a third, and one on the other");
    let now = 31 * SECOND;
    let lost: Vec<_> =
        std::iter::from_fn(|| scheduler.expire(now)).filter(|lost| lost.target.0 == 1).collect();
    assert_eq!(lost.len(), 4);
    assert!(scheduler.target(TargetId(1)).unwrap().dead);
    assert!(lost[1..].iter().all(|lost| scheduler.excuse(lost.ticket, now)));
    assert!(!scheduler.excuse(lost[1].ticket, now), "it has been said");
    let view = scheduler.target(TargetId(1)).unwrap();
    assert_eq!((view.dead, view.suspect, view.lost, view.depth), (false, true, 4, 5), "room for one more");
    let next = scheduler.pick(now).expect("it lives");
    assert_eq!((next.target.0, next.pace), (1, Pace::Gentle));
    assert!(scheduler.pick(now).is_none_or(|picked| picked.target.0 != 1), "one at a time");
    // Of another file.
    assert_eq!(scheduler.expire(now + 31 * SECOND).map(|lost| lost.item), Some(next.item));
    assert!(scheduler.target(TargetId(1)).unwrap().dead);
    for back in &lost {
        assert_eq!(scheduler.finished(back.ticket, now, true), Finished::Late { spare: true });
    }
    let view = scheduler.target(TargetId(1)).unwrap();
    assert_eq!((view.dead, view.lost), (false, 1));
}

/// Two disks and the threads of a small machine: a third of them is one.
#[test]
fn one_lost_request_is_not_enough_where_a_share_is_one_thread() {
    let mut scheduler = Scheduler::new(Config::new(4, 16, Policy::Layout));
    push_all(&mut scheduler, [object(0, 1), object(1, 1), object(2, 1), object(3, 2)]);
    assert_eq!(pick_all(&mut scheduler, 4, 0).len(), 2);
    let now = 31 * SECOND;
    let lost: Vec<_> = std::iter::from_fn(|| scheduler.expire(now)).collect();
    assert_eq!(lost.len(), 2, "one of each");
    let view = scheduler.target(TargetId(1)).unwrap();
    assert_eq!((view.dead, view.suspect), (false, true));
    let again = scheduler.pick(now).expect("it is tried");
    assert_eq!((again.item, again.pace), (1, Pace::Gentle));
    assert!(scheduler.expire(now + 31 * SECOND).is_some());
    assert!(scheduler.target(TargetId(1)).unwrap().dead);
}

#[test]
fn an_archive_takes_its_time_and_is_asked_for_several_at_a_time_all_the_same() {
    let config = Config { archive: Some(1), ..Config::new(12, 48, Policy::Adaptive(Default::default())) };
    let mut scheduler = Scheduler::new(config);
    push_all(&mut scheduler, (0..10).map(|item| object(item, 1)));
    push_all(&mut scheduler, (0..4000).map(|item| object(100 + item, 2 + (item % 2) as u32)));
    let mut now = 0;
    let waits = |picked: &Picked<u64>| picked.target.0 == 1;
    let first: Vec<_> = pick_all(&mut scheduler, 12, now);
    let mut restored: VecDeque<_> = first.iter().filter(|picked| waits(picked)).map(|it| it.ticket).collect();
    assert_eq!(restored.len(), 4);
    let mut others: VecDeque<_> = first.iter().filter(|it| !waits(it)).map(|it| it.ticket).collect();
    // A file is brought back every minute; the other targets answer at once.
    for _ in 0..6 {
        for _ in 0..200 {
            now += 300 * MS;
            if let Some(ticket) = others.pop_front() {
                scheduler.finished(ticket, now, true);
            }
            while restored.len() + others.len() < 12
                && let Some(picked) = scheduler.pick(now)
            {
                assert_eq!(picked.pace, Pace::Normal);
                if waits(&picked) { &mut restored } else { &mut others }.push_back(picked.ticket);
            }
        }
        assert_eq!(restored.len(), 4, "after {} s", now / SECOND);
        scheduler.finished(restored.pop_front().unwrap(), now, true);
        let view = scheduler.target(TargetId(1)).unwrap();
        assert!(!view.congested && !view.suspect);
    }
}

/// Two bad files on one target, one after the other: it serves all others.
#[test]
fn what_was_lost_does_not_count_once_the_target_has_answered_others() {
    let mut scheduler = Scheduler::new(Config::new(12, 48, Policy::Layout));
    push_all(&mut scheduler, [object(9, 2)]);
    let lose = |scheduler: &mut Scheduler<u64>, item: u64, now: u64| {
        scheduler.push(object(item, 1), now).unwrap();
        while scheduler.pick(now).is_some_and(|picked| picked.item != item) {}
        let after = now + 31 * SECOND;
        let lost: Vec<_> = std::iter::from_fn(|| scheduler.expire(after)).collect();
        assert!(lost.iter().any(|lost| lost.item == item), "{lost:?}");
        lost.into_iter().find(|lost| lost.item == item).unwrap().ticket
    };
    let serve = |scheduler: &mut Scheduler<u64>, item: u64, now: u64| {
        scheduler.push(object(item, 1), now).unwrap();
        let picked = scheduler.pick(now).unwrap();
        assert_eq!(
            (picked.item, scheduler.finished(picked.ticket, now + MS, true)),
            (item, Finished::InTime)
        );
    };
    let is_dead = |scheduler: &Scheduler<u64>| scheduler.target(TargetId(1)).unwrap().dead;
    let mut lost = vec![lose(&mut scheduler, 0, 0)];
    for bad in 1..8 {
        serve(&mut scheduler, 100 + bad, bad * 100 * SECOND);
        lost.push(lose(&mut scheduler, bad, bad * 100 * SECOND + SECOND));
        assert!(!is_dead(&scheduler), "after {bad}");
    }
    // Nothing was answered in between.
    lost.push(lose(&mut scheduler, 8, 1000 * SECOND));
    assert!(is_dead(&scheduler));
    for ticket in lost {
        assert_eq!(scheduler.finished(ticket, 2000 * SECOND, true), Finished::Late { spare: true });
    }
    let view = scheduler.target(TargetId(1)).unwrap();
    assert_eq!((view.dead, view.lost), (false, 0));
}

/// But each keeps a slot.
#[test]
fn a_target_that_has_lost_far_more_than_its_share_is_dead_however_it_answers() {
    let mut scheduler = Scheduler::new(Config::new(6, 48, Policy::Layout));
    push_all(&mut scheduler, [object(1000, 2)]);
    let mut now = 0;
    let mut lost = 0;
    while !scheduler.target(TargetId(1)).is_some_and(|view| view.dead) {
        for item in [lost, 100 + lost] {
            scheduler.push(object(item, 1), now).unwrap();
            while scheduler.pick(now).is_some_and(|picked| picked.item != item) {}
            now += 31 * SECOND;
            let of = |written_off: &haul_protocol::scheduler::WrittenOff<u64>| written_off.item == item;
            let all: Vec<_> = std::iter::from_fn(|| scheduler.expire(now)).collect();
            all.iter().filter(|it| of(it)).for_each(|it| _ = scheduler.excuse(it.ticket, now));
        }
        lost += 1;
        assert!(lost < 20);
    }
    assert_eq!(scheduler.target(TargetId(1)).unwrap().lost, 2 + 2 * 2);
}

/// A file was lost there as a whole; that it has answered since must not leave it to the end.
#[test]
fn what_is_lost_on_a_target_does_not_make_it_look_busy() {
    let config = Config { aging_nanos: Some(2 * SECOND), ..Config::new(12, 48, Policy::Layout) };
    let mut scheduler = Scheduler::new(config);
    push_all(&mut scheduler, (0..6).map(|item| object(item, 1)));
    push_all(&mut scheduler, (100..500).map(|item| object(item, 2 + (item % 4) as u32)));
    let first = pick_all(&mut scheduler, 12, 0);
    let mut busy: VecDeque<_> = first.iter().filter(|it| it.target.0 != 1).map(|it| it.ticket).collect();
    busy.iter().for_each(|ticket| assert_eq!(scheduler.finished(*ticket, MS, true), Finished::InTime));
    busy.clear();
    let mut now = 31 * SECOND;
    let lost: Vec<_> = std::iter::from_fn(|| scheduler.expire(now)).collect();
    assert!(lost.len() >= 2 && lost.iter().all(|lost| lost.target.0 == 1));
    lost[1..].iter().for_each(|lost| assert!(scheduler.excuse(lost.ticket, now)));
    let mut served = 0;
    // Suspect at first, it has its turn after two seconds.
    for _ in 0..60 {
        now += 100 * MS;
        while busy.len() < 12
            && let Some(picked) = scheduler.pick(now)
        {
            match picked.target.0 {
                1 => {
                    served += 1;
                    scheduler.finished(picked.ticket, now, true);
                }
                _ => busy.push_back(picked.ticket),
            }
        }
        busy.pop_front().into_iter().for_each(|ticket| _ = scheduler.finished(ticket, now, true));
    }
    assert_eq!(served, 6 - lost.len(), "all that is left there, long before the others are done");
    assert!(scheduler.queued() > 100);
}
