//! Members of one bundle that lie on a slow target become durable in a group of their own: the others do not wait for it.

#[path = "support/single.rs"]
#[allow(dead_code)]
mod single;
#[allow(dead_code)]
mod support;

use std::sync::Arc;

use haul_model::op::{Landed, MembersStep, Prepared, SinkDone, SinkOp};
use haul_model::{BlockId, Entry, EntryId, Hash, Identity, SlotId, Target, Token};
use haul_protocol::scheduler::{TargetId, Told};
use haul_protocol::sink::{Config, Sink};
use haul_protocol::{Action, Event};
use haul_wire::{Member, Message, NewFile, Role};
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

/// Until a bundle with all files is in its slot.
fn events(congested: bool) -> Vec<Event> {
    let new_file = |id: EntryId| {
        let identity = Identity { size: BYTES.into(), ..Identity::default() };
        let name = id.0.to_string().into_bytes().into();
        let entry = Arc::new(Entry { id, name, identity, ..file(1) });
        NewFile::Entry { entry, object_bytes: None, resume: None, stripes: None }
    };
    let ids = || FILES.iter().map(|(id, _)| *id);
    let prepared = SinkDone::Prepared {
        batch: 1,
        answers: ids().map(|id| (id, Prepared::Start(Token::NONE))).collect(),
        laid: Vec::new(),
        unlaid: Vec::new(),
    };
    let told = Told { target: TargetId(SLOW.into()), parts: 1, place: 0, under_way: 0, congested };
    let (block, slot, epoch, length) = (BlockId(1), SlotId(0), 1, BYTES * FILES.len() as u32);
    let member = |(at, id)| Member { id, offset: at * BYTES, hash: Some(Hash([7; 32])) };
    let members = (0..).zip(ids()).map(member).collect();
    vec![
        Event::LinkUp { epoch, peer: peer(Role::Source, 8) },
        Event::Message(Message::NewFile(ids().map(new_file).collect())),
        Event::SinkDone(prepared),
        Event::NeighboursSaid(vec![told]),
        Event::Message(Message::Manifest { block, slot, epoch, length, members }),
        Event::Payload { epoch, block, slot, length, hashes: Vec::new() },
    ]
}

/// Which files were synced together.
fn groups(congested: bool) -> Vec<Vec<EntryId>> {
    let mut sink = Sink::new(Config { lies_apart: true, ..sink_config() });
    let mut groups = Vec::new();
    let mut events = events(congested);
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
