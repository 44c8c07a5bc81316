use super::held::{HELD_NANOS_MAX, HELD_SHARE, IDLE_NANOS_MAX};
use super::*;

fn object(index: u32, bytes: u32) -> WrittenObject {
    WrittenObject { id: EntryId(1), index, bytes }
}

#[test]
fn a_write_during_a_sync_waits_for_the_next_group() {
    let mut committer = Committer::default();
    committer.add_object(object(0, 10), Lane::Brisk, 0);
    assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
    committer.add_object(object(1, 10), Lane::Brisk, 1);
    assert_eq!(committer.start(1, true), None, "one group at a time");
    assert_eq!(committer.running(1, Phase::Sync).unwrap().objects, [object(0, 10)]);
    committer.finish(1, 2);
    assert_eq!(committer.start(2, true), Some((2, Phase::Sync)));
    assert_eq!(committer.running(2, Phase::Sync).unwrap().objects, [object(1, 10)]);
}

#[test]
fn it_waits_for_company_as_long_as_the_last_group_took() {
    let mut committer = Committer::default();
    committer.add_object(object(0, 10), Lane::Brisk, 0);
    committer.start(0, true).unwrap();
    committer.finish(1, 40_000_000);
    committer.add_object(object(1, 10), Lane::Brisk, 50_000_000);
    assert_eq!(committer.start(60_000_000, false), None);
    assert_eq!(committer.deadline_nanos(), Some(90_000_000));
    assert!(committer.start(90_000_000, false).is_some());
}

#[test]
fn what_waits_is_bounded_over_both_groups() {
    let mut committer = Committer::default();
    let start = SYNC_GROUP_BYTES / START_SHARE;
    committer.add_object(object(0, start as u32), Lane::Brisk, 0);
    assert!(committer.start(0, false).is_some(), "large enough at once");
    committer.add_object(object(1, (SYNC_GROUP_BYTES - start - 1) as u32), Lane::Brisk, 0);
    assert!(!committer.is_full());
    committer.add_object(object(2, 1), Lane::Brisk, 0);
    assert!(committer.is_full());
    committer.finish(1, 1);
    assert!(!committer.is_full());
}

#[test]
fn what_a_failed_sync_lost_leaves_the_next_group_too() {
    let mut committer = Committer::default();
    let other = WrittenObject { id: EntryId(2), index: 0, bytes: 7 };
    committer.add_object(object(0, 10), Lane::Brisk, 0);
    committer.add_object(other, Lane::Brisk, 0);
    committer.add_object(object(1, 20), Lane::Brisk, 0);
    assert_eq!(committer.take_objects(EntryId(1)), [object(0, 10), object(1, 20)]);
    assert_eq!(committer.bytes_waiting(), 7);
    assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
    assert_eq!(committer.running(1, Phase::Sync).unwrap().objects, [other]);
}

#[test]
fn a_slow_group_holds_up_no_other() {
    let mut committer = Committer::default();
    let other = WrittenObject { id: EntryId(2), index: 0, bytes: 7 };
    committer.add_object(object(0, 10), Lane::Slow, 0);
    assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
    committer.add_object(other, Lane::Brisk, 1);
    assert_eq!(committer.start(1, true), Some((2, Phase::Sync)));
    committer.finish(2, 2);
    assert!(committer.running(1, Phase::Sync).is_some() && committer.running(2, Phase::Sync).is_none());
    assert_eq!(committer.bytes_waiting(), 10);
}

#[test]
fn a_file_is_in_one_lane_at_a_time() {
    let mut committer = Committer::default();
    committer.add_object(object(0, 10), Lane::Slow, 0);
    committer.add_object(object(1, 10), Lane::Brisk, 0);
    assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
    committer.add_object(object(2, 10), Lane::Brisk, 0);
    assert_eq!(committer.start(0, true), None, "its file is being synced");
    let [part] = &committer.parts(1, false)[..] else { panic!("one part") };
    assert_eq!(part.objects.len(), 2);
    assert!(committer.part_ended(1, part, Vec::new()));
    committer.finish(1, 0);
    assert_eq!(committer.take_objects(EntryId(1)), [object(2, 10)]);
    committer.add_object(object(3, 10), Lane::Brisk, 0);
    assert_eq!(committer.start(0, true), Some((2, Phase::Sync)), "nothing of it waits in the slow lane");
}

#[test]
fn as_much_may_wait_as_is_written_in_a_second() {
    for (second, window) in [(1, 64), (100, 100), (1000, 256)] {
        let mut committer = Committer::default();
        for tenth in 0..=10 {
            committer.add_object(
                object(tenth, (second << 20) / 10),
                Lane::Brisk,
                u64::from(tenth) * SECOND / 10,
            );
        }
        let mib = committer.window.bytes.div_ceil(1 << 20);
        assert_eq!(mib, window, "{second} MiB in a second");
    }
}

/// Files that are synced each by itself; file 1 holds an object.
fn each() -> Committer {
    let mut committer = Committer::default();
    committer.sync_each(0);
    committer.add_object(object(0, 10), Lane::Brisk, 0);
    committer
}

#[test]
fn what_is_held_of_a_file_is_released_when_it_is_whole_or_has_waited() {
    let mut committer = each();
    assert_eq!(committer.next_to_release(0, false), None);
    assert_eq!(committer.start(0, true), None, "it is held");
    assert_eq!((committer.objects_waiting(EntryId(1)), committer.bytes_waiting()), (1, 10));
    assert_eq!(committer.deadline_nanos(), Some(IDLE_NANOS_MAX));
    assert_eq!(committer.next_to_release(IDLE_NANOS_MAX - 1, false), None);
    assert_eq!(committer.next_to_release(IDLE_NANOS_MAX, false), Some(EntryId(1)));
    // More comes all the time.
    let mut now = 0;
    while committer.next_to_release(now, false).is_none() {
        now += IDLE_NANOS_MAX / 2;
        committer.add_object(object(1, 10), Lane::Brisk, now);
    }
    assert_eq!(now, HELD_NANOS_MAX);
    assert_eq!(committer.next_to_release(0, true), Some(EntryId(1)), "nothing more comes");
    committer.release(EntryId(1), Lane::Slow, now);
    assert_eq!(committer.next_to_release(now, true), None);
    assert_eq!(committer.start(now, true), Some((1, Phase::Sync)));
    assert_eq!(committer.lane(1), Lane::Slow);
}

#[test]
fn what_was_gathered_of_a_file_that_is_being_synced_is_held_from_now_on() {
    let mut committer = Committer::default();
    committer.add_object(object(0, 10), Lane::Brisk, 0);
    assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
    committer.add_object(object(1, 10), Lane::Brisk, 0);
    committer.sync_each(0);
    assert_eq!((committer.next_to_release(0, true), committer.start(0, true)), (None, None));
    let [part] = &committer.parts(1, false)[..] else { panic!("one file") };
    assert!(committer.part_ended(1, part, Vec::new()));
    assert_eq!((committer.next_to_release(0, true), committer.bytes_waiting()), (Some(EntryId(1)), 10));
}

#[test]
fn the_file_that_holds_most_makes_room() {
    let mut committer = each();
    let large = WrittenObject { id: EntryId(2), index: 0, bytes: (SYNC_GROUP_BYTES / HELD_SHARE) as u32 };
    committer.add_object(large, Lane::Brisk, 0);
    assert_eq!(committer.next_to_release(0, false), Some(EntryId(2)));
    committer.release(EntryId(2), Lane::Brisk, 0);
    assert_eq!(committer.next_to_release(0, false), None);
    assert!(committer.start(0, false).is_some(), "it is a group");
}

#[test]
fn a_file_that_is_about_to_make_room_is_enough() {
    let mut committer = each();
    let most = SYNC_GROUP_BYTES / HELD_SHARE;
    for (file, bytes) in [(2, most), (3, most - 20), (4, most - 30)] {
        let bytes = bytes as u32;
        committer.add_object(WrittenObject { id: EntryId(file), index: 0, bytes }, Lane::Brisk, 0);
    }
    let mut stand_still = Vec::new();
    while let Some(id) = committer.next_to_release(0, false) {
        committer.set_apart(id);
        stand_still.push(id.0);
    }
    assert_eq!(stand_still, [2, 3], "what is left may be held");
}

#[test]
fn several_groups_are_under_way_and_no_file_is_in_two() {
    let mut committer = each();
    for file in 2..=GROUPS_EACH as u64 + 2 {
        committer.add_object(WrittenObject { id: EntryId(file), index: 0, bytes: 1 }, Lane::Brisk, 0);
    }
    for file in 1..=GROUPS_EACH as u64 {
        committer.release(EntryId(file), Lane::Brisk, 0);
        assert_eq!(committer.start(0, true), Some((file, Phase::Sync)));
    }
    committer.release(EntryId(GROUPS_EACH as u64 + 1), Lane::Brisk, 0);
    assert_eq!(committer.start(0, true), None);
    committer.add_object(object(1, 10), Lane::Brisk, 0);
    committer.release(EntryId(1), Lane::Slow, 0);
    assert_eq!(
        committer.next_to_release(0, true),
        Some(EntryId(GROUPS_EACH as u64 + 2)),
        "file 1 is being synced"
    );
    let [part] = &committer.parts(1, true)[..] else { panic!("one file") };
    assert!(committer.part_ended(1, part, Vec::new()));
    committer.finish(1, 0);
    assert_eq!(committer.next_to_release(IDLE_NANOS_MAX, false), Some(EntryId(1)));
}

#[test]
fn a_group_does_not_wait_for_what_straggles_and_syncs_nothing_else_of_it_meanwhile() {
    let mut committer = Committer::default();
    committer.sync_each(0);
    let other = WrittenObject { id: EntryId(2), index: 0, bytes: 7 };
    for written in [object(0, 10), other, object(1, 20)] {
        committer.add_object(written, Lane::Brisk, 0);
    }
    assert!([1, 2].into_iter().all(|id| committer.release(EntryId(id), Lane::Brisk, 0)));
    committer.add_file(EntryId(3), 5, Lane::Brisk, 0);
    assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
    committer.add_object(object(2, 40), Lane::Brisk, 0);
    let [hangs, goes, file] = &committer.parts(1, true)[..] else { panic!("one part for each file") };
    assert_eq!((hangs.objects.len(), goes.objects.len(), file.files.len()), (2, 1, 1));
    assert!(!committer.part_ended(1, goes, Vec::new()));
    assert!(!committer.part_ended(1, file, file.files.clone()));
    assert!(committer.straggles(1, hangs, 0), "the group has ended without it");
    assert_eq!(committer.bytes_waiting(), 75);
    committer.finish(1, 0);
    committer.add_object(object(3, 60), Lane::Brisk, 0);
    committer.release(EntryId(1), Lane::Slow, 0);
    assert_eq!((committer.next_to_release(0, true), committer.start(0, true)), (None, None));
    assert_eq!(committer.deadline_nanos(), None, "no time will change that");
    assert!(!committer.is_idle());
    assert_eq!(committer.bytes_waiting(), 130);
    committer.straggled(hangs);
    assert_eq!(committer.next_to_release(0, true), Some(EntryId(1)));
    committer.release(EntryId(1), Lane::Slow, 0);
    assert_eq!(committer.start(0, true), Some((2, Phase::Sync)));
    assert_eq!((committer.lane(2), committer.bytes_waiting()), (Lane::Slow, 100));
}

#[test]
fn what_waits_for_slow_targets_leaves_room_for_the_others() {
    let mut committer = Committer::default();
    let most = (SYNC_GROUP_BYTES / SLOW_SHARE) as u32;
    committer.add_object(object(0, most - 1), Lane::Slow, 0);
    assert!(!committer.slow_is_full());
    committer.add_object(object(1, 1), Lane::Slow, 0);
    assert!(committer.slow_is_full() && !committer.is_full());
    assert!(committer.start(0, true).is_some());
    let [part] = &committer.parts(1, true)[..] else { panic!("one file") };
    assert!(committer.slow_is_full());
    committer.straggles(1, part, 0);
    committer.finish(1, 0);
    assert!(committer.slow_is_full(), "what straggles counts");
    committer.straggled(part);
    assert!(!committer.slow_is_full() && committer.is_idle());
}

#[test]
fn names_are_made_for_one_group_at_a_time() {
    let mut committer = Committer::default();
    committer.add_object(object(0, 10), Lane::Slow, 0);
    assert_eq!(committer.start(0, true), Some((1, Phase::Sync)));
    committer.advance(1, Phase::Publish);
    assert!(committer.is_naming());
    committer.add_link(EntryId(3), 0);
    assert_eq!(committer.start(0, true), None, "nothing but names");
    assert_eq!(committer.deadline_nanos(), None, "no time will change that");
    committer.add_file(EntryId(4), 10, Lane::Brisk, 0);
    assert_eq!(committer.start(0, true), Some((2, Phase::Sync)));
    committer.advance(2, Phase::Synced);
    assert_eq!(committer.next_for_names(), Some(2));
    committer.finish(1, 1);
    assert!(!committer.is_naming());
}

#[test]
fn new_symlinks_need_only_their_names_synced() {
    let mut committer = Committer::default();
    committer.add_link(EntryId(3), 0);
    assert_eq!(committer.start(0, true), Some((1, Phase::SyncNames)));
}

#[test]
fn what_may_wait_grows_with_the_targets_up_to_a_bound() {
    for (targets, most) in [
        (2, SYNC_GROUP_BYTES),
        (5, 5 * SYNC_GROUP_BYTES_TARGET),
        (11, 11 * SYNC_GROUP_BYTES_TARGET),
        (1000, SYNC_GROUP_BYTES_MAX),
    ] {
        let mut committer = Committer::default();
        committer.set_targets(targets);
        committer.add_object(object(0, (most - 1) as u32), Lane::Brisk, 0);
        assert!(!committer.is_full(), "{targets}");
        // A second in which little was written takes nothing of it away.
        committer.add_object(object(1, 0), Lane::Brisk, 2 * SECOND);
        committer.add_object(object(2, 0), Lane::Brisk, 4 * SECOND);
        assert!(!committer.is_full(), "{targets}");
        committer.add_object(object(3, 1), Lane::Brisk, 4 * SECOND);
        assert!(committer.is_full(), "{targets}");
    }
}

#[test]
fn files_that_wait_are_bounded_however_small_they_are() {
    let mut committer = Committer::default();
    for number in 0..SYNC_GROUP_FILES_MAX as u64 {
        assert!(!committer.is_full(), "{number}");
        committer.add_file(EntryId(number), 0, Lane::Brisk, 0);
    }
    assert!(committer.is_full());
    assert!(committer.start(0, true).is_some());
    assert!(committer.is_full(), "started");
}
