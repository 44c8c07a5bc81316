//! Members of one bundle that lie on a slow target become durable in a group of their own: the others do not wait for it.

#[path = "support/many.rs"]
mod many;
#[path = "support/single.rs"]
#[allow(dead_code)]
mod single;
#[allow(dead_code)]
mod support;

use std::collections::VecDeque;
use std::sync::Arc;

use haul_model::limits::ENTRIES_OPEN_MAX;
use haul_model::op::{Landed, MembersStep, Prepared, SinkDone, SinkOp};
use haul_model::{BlockId, Code, Entry, EntryId, Failure, Hash, Identity, SlotId, Target, Token};
use haul_protocol::scheduler::{TargetId, Told};
use haul_protocol::sink::{Config, Sink};
use haul_protocol::{Action, Event};
use haul_wire::{Member, Message, NewFile, Role, Settled};
use many::roots;
use single::{file, sink_config};
use support::peer;

const SLOW: Target = 1;
const OTHER: Target = 2;
/// Each lies on one of them.
const FILES: [(EntryId, Target); 4] =
    [(EntryId(2), SLOW), (EntryId(3), OTHER), (EntryId(4), SLOW), (EntryId(5), OTHER)];
const BYTES: u32 = 100;

fn target_of(id: EntryId) -> Target {
    FILES.iter().find(|(file, _)| *file == id).expect("it was announced").1
}

/// Until a bundle with these files is in its slot.
fn arriving(batch: u64, ids: &[EntryId]) -> Vec<Event> {
    let new_file = |id: EntryId| {
        let identity = Identity { size: BYTES.into(), ..Identity::default() };
        let name = id.0.to_string().into_bytes().into();
        let entry = Arc::new(Entry { id, parent: EntryId::root(id.0 as u32), name, identity, ..file(1) });
        NewFile::Entry { entry, object_bytes: None, resume: None, stripes: None }
    };
    let ids = || ids.iter().copied();
    let prepared = SinkDone::Prepared {
        batch,
        answers: ids().map(|id| (id, Prepared::Start(Token::NONE))).collect(),
        laid: Vec::new(),
        unlaid: Vec::new(),
    };
    let (block, slot, epoch, length) = (BlockId(batch), SlotId(0), 1, BYTES * ids().count() as u32);
    let member = |(at, id)| Member { id, offset: at * BYTES, hash: Some(Hash([7; 32])) };
    let members = (0..).zip(ids()).map(member).collect();
    vec![
        Event::LinkUp { epoch, peer: peer(Role::Source, 8) },
        Event::Message(Message::NewFile(ids().map(new_file).collect())),
        Event::SinkDone(prepared),
        Event::Message(Message::Manifest { block, slot, epoch, length, members }),
        Event::Payload { epoch, block, slot, length, hashes: Vec::new() },
    ]
}

/// Which files were synced together.
fn groups(congested: bool) -> Vec<Vec<EntryId>> {
    let mut sink = Sink::new(Config { lies_apart: true, roots: roots(), ..sink_config() });
    let mut groups = Vec::new();
    let mut events = arriving(1, &FILES.map(|(id, _)| id));
    let told = Told { target: TargetId(SLOW.into()), parts: 1, place: 0, under_way: 0, congested };
    events.insert(3, Event::NeighboursSaid(vec![told]));
    events.reverse();
    for now_seconds in 0..100 {
        let event = events.pop().unwrap_or(Event::Tick);
        sink.on_event(event, now_seconds * 1_000_000_000);
        while let Some(action) = sink.next_action() {
            match action {
                Action::Sink(SinkOp::WriteMembers { block, step, members, .. }) => {
                    let landed = |id| match step {
                        MembersStep::Make => Landed::Made(target_of(id)),
                        MembersStep::Fill { .. } => Landed::Written,
                    };
                    let results = members.iter().map(|member| Ok(landed(member.entry.id))).collect();
                    let done = SinkDone::WrittenMembers { block, step, results };
                    events.insert(0, Event::SinkDone(done));
                }
                Action::Errand { number, op: SinkOp::Sync { group, files }, .. } => {
                    let done = SinkDone::Synced { group, failed: Vec::new() };
                    groups.push(files);
                    events.insert(0, Event::ErrandDone { number, done });
                }
                Action::Ended(outcome) => panic!("{outcome:?}"),
                _ => {}
            }
        }
    }
    groups.iter_mut().for_each(|group| group.sort_unstable());
    groups.sort_unstable();
    groups
}

#[test]
fn members_on_a_slow_target_are_synced_apart_from_the_others() {
    let [on_slow, on_other] = [SLOW, OTHER]
        .map(|wanted| FILES.iter().filter(|(_, on)| *on == wanted).map(|(id, _)| *id).collect::<Vec<_>>());
    assert_eq!(groups(true), [on_slow, on_other]);
}

#[test]
fn where_none_is_slow_they_are_synced_together() {
    assert_eq!(groups(false), [FILES.map(|(id, _)| id)]);
}

/// Files that are given up on a target that hangs are removed when it answers. Until then their entries do not stay: they would be too
/// many long before the target is given up.
#[test]
fn files_that_are_given_up_on_a_target_that_hangs_do_not_fill_the_table() {
    const AT_A_TIME: u32 = 64;
    let mut sink = Sink::new(Config { lies_apart: true, syncs_each: true, roots: roots(), ..sink_config() });
    let (mut now_millis, mut batch) = (0, 0);
    // The bundles that come first are written, and their syncs never end; what comes then cannot be written.
    let mut play = |first: u32, good: bool| {
        let ids = || (first..first + AT_A_TIME).map(|number| EntryId(number.into()));
        batch += 1;
        let mut events: VecDeque<Event> = arriving(batch, &ids().collect::<Vec<_>>()).into();
        if batch > 1 {
            events.pop_front();
        }
        let mut ended = 0;
        while let Some(event) = events.pop_front() {
            now_millis += 1;
            sink.on_event(event, now_millis * 1_000_000);
            while let Some(action) = sink.next_action() {
                match action {
                    Action::Sink(SinkOp::WriteMembers { block, step, members, .. }) => {
                        let landed = |id: EntryId| match step {
                            MembersStep::Make if good && id.0.is_multiple_of(2) => Ok(Landed::Made(OTHER)),
                            MembersStep::Make => Ok(Landed::Made(SLOW)),
                            MembersStep::Fill { .. } if good => Ok(Landed::Written),
                            MembersStep::Fill { .. } => Err(Failure::new(Code::SinkWrite)),
                        };
                        let results = members.iter().map(|member| landed(member.entry.id)).collect();
                        events.push_back(Event::SinkDone(SinkDone::WrittenMembers { block, step, results }));
                    }
                    Action::Errand { number, op: SinkOp::Sync { group, files }, .. }
                        if files.iter().all(|id| id.0.is_multiple_of(2)) =>
                    {
                        let done = SinkDone::Synced { group, failed: Vec::new() };
                        events.push_back(Event::ErrandDone { number, done });
                    }
                    Action::Send(Message::BlockSync { entries, .. }) => {
                        for (id, settled) in entries {
                            let Settled::Failed(failure) = settled else { panic!("{settled:?}") };
                            let drop = Message::FileDrop { id, failure, restarts: false };
                            events.push_back(Event::Message(drop));
                            ended += 1;
                        }
                    }
                    Action::Ended(outcome) => panic!("{outcome:?} of file {first} and others"),
                    _ => {}
                }
            }
            if events.is_empty() && !good && ended < AT_A_TIME {
                events.push_back(Event::Tick);
            }
        }
        if good {
            // Long enough to be late, and no reason to give up.
            now_millis += 5_000;
        }
        now_millis
    };
    let mut passed_millis = 0;
    for bundle in 0..4 + 2 * ENTRIES_OPEN_MAX as u32 / AT_A_TIME {
        passed_millis = play(10 + bundle * AT_A_TIME, bundle < 4);
    }
    assert!(passed_millis < 110_000, "{passed_millis}");
}

/// What hangs is not its target, but one file on it: those beside it are written.
#[test]
fn a_member_at_which_every_write_hangs_is_named_alone() {
    const HANGS: EntryId = EntryId(4);
    let config =
        Config { lies_apart: true, hangs_after_nanos: Some(5_000_000_000), roots: roots(), ..sink_config() };
    let mut sink = Sink::new(Config { hands: 6, hands_max: 6, ..config });
    let mut events: VecDeque<Event> = arriving(1, &FILES.map(|(id, _)| id)).into();
    let (mut settled, mut durable, mut bundles, mut hung) = (Vec::new(), Vec::new(), 1, 0);
    // Of the time between two looks only a little counts: the process may have been stopped.
    for second in 0..300 {
        events.push_back(Event::Tick);
        while let Some(event) = events.pop_front() {
            sink.on_event(event, second * 1_000_000_000);
            while let Some(action) = sink.next_action() {
                match action {
                    Action::Sink(SinkOp::WriteMembers { block, step, members, progress, .. }) => {
                        let fills = matches!(step, MembersStep::Fill { .. });
                        let at = members.iter().position(|member| member.entry.id == HANGS);
                        if let Some(at) = at.filter(|_| fills) {
                            progress.begins(at);
                            hung += 1;
                            continue;
                        }
                        let landed = |id| if fills { Landed::Written } else { Landed::Made(target_of(id)) };
                        let results = members.iter().map(|member| Ok(landed(member.entry.id))).collect();
                        events.push_back(Event::SinkDone(SinkDone::WrittenMembers { block, step, results }));
                    }
                    Action::Errand { number, op, .. } => {
                        let done = match op {
                            SinkOp::Sync { group, files } => {
                                durable.extend(files);
                                SinkDone::Synced { group, failed: Vec::new() }
                            }
                            SinkOp::Publish { group, .. } => {
                                SinkDone::Published { group, failed: Vec::new() }
                            }
                            SinkOp::SyncNames { group, .. } => {
                                SinkDone::SyncedNames { group, failed: Vec::new() }
                            }
                            SinkOp::Discard { id, .. } => SinkDone::Discarded { id },
                            other => panic!("{other:?}"),
                        };
                        events.push_back(Event::ErrandDone { number, done });
                    }
                    // They come again.
                    Action::Send(Message::Repair(asked)) => {
                        bundles += 1;
                        let ids: Vec<EntryId> = asked.iter().map(|repair| repair.id).collect();
                        let skip = |event: &Event| {
                            matches!(event, Event::Message(Message::Manifest { .. }) | Event::Payload { .. })
                        };
                        events.extend(again(bundles, &ids).into_iter().filter(skip));
                    }
                    Action::Send(Message::BlockSync { entries, .. }) => settled.extend(entries),
                    Action::Ended(outcome) => panic!("{outcome:?}"),
                    _ => {}
                }
            }
        }
    }
    let failed: Vec<_> = settled.iter().filter(|(_, end)| !matches!(end, Settled::Done(_))).collect();
    assert_eq!(failed, [&(HANGS, Settled::Failed(Failure::os(Code::SinkWrite, 110)))], "{hung} hung");
    durable.sort_unstable();
    assert_eq!(durable, [2, 3, 5].map(EntryId));
}

/// The same bundle, in another slot: the first one is not free before what hangs comes back.
fn again(batch: u64, ids: &[EntryId]) -> Vec<Event> {
    let moved = |event| match event {
        Event::Message(Message::Manifest { block, epoch, length, members, .. }) => {
            Event::Message(Message::Manifest { block, slot: SlotId(batch as u32), epoch, length, members })
        }
        Event::Payload { epoch, block, length, hashes, .. } => {
            Event::Payload { epoch, block, slot: SlotId(batch as u32), length, hashes }
        }
        other => other,
    };
    arriving(batch, ids).into_iter().map(moved).collect()
}
