//! Where few files may be open at a time, the next one is opened as soon as there is a place.

#[path = "support/single.rs"]
#[allow(dead_code)]
mod single;
mod support;

use haul_model::op::{SourceDone, SourceOp};
use haul_model::{Entry, EntryId, Item, SlotId, Token};
use haul_protocol::source::{Config, Source};
use haul_protocol::{Action, Event};
use haul_wire::{Answer, Message, Repair, RepairReason, Role};
use single::{ID, file, source_config};
use support::{NoLog, on, peer};

const NEXT: EntryId = EntryId(3);

/// The files of which objects are read now; each is read at once.
fn read(source: &mut Source, event: Event) -> Vec<EntryId> {
    let mut read = Vec::new();
    let mut events = vec![event];
    while let Some(event) = events.pop() {
        source.on_event(event, &mut NoLog, 0);
        while let Some(action) = source.next_action() {
            match action {
                Action::Source(SourceOp::ReadObject { block, entry, .. }) => {
                    read.push(entry.id);
                    events.push(Event::SourceDone(SourceDone::Object { block, result: Ok(None) }));
                }
                Action::Payload { block, .. } => events.push(Event::Sent(block)),
                _ => {}
            }
        }
    }
    read
}

/// The one that is open ends because its target answers no more, and nothing else happens.
#[test]
fn a_file_on_a_dead_target_makes_room_for_the_next_one() {
    let mut source = Source::new(Config { files_open_max: 1, ..source_config() });
    let next = Entry { id: NEXT, parent: EntryId::root(0), ..file(2) };
    let answers = [ID, NEXT].map(|id| (id, Answer::Start(Token([id.0 as u8; 16]))));
    let laid = vec![(ID, on(4)), (NEXT, on(5))];
    let slots = (0..8).map(SlotId).collect();
    read(&mut source, Event::LinkUp { epoch: 1, peer: peer(Role::Sink, 8) });
    read(&mut source, Event::Scanned(vec![Item::Entry(file(2)), Item::Entry(next)]));
    let mut told = |message| read(&mut source, Event::Message(message));
    assert_eq!(told(Message::BlockDone { slots, allowances: vec![(4, 2), (5, 2)] }), []);
    let answered = told(Message::FileId { answers: answers.to_vec(), laid, unlike: Vec::new() });
    assert_eq!(answered, [ID, ID], "one may be open");
    let lost = Repair { id: ID, index: Some(1), reason: RepairReason::Lost };
    assert_eq!(told(Message::Repair(vec![lost])), [], "the sink has no more room on its target");
    assert_eq!(told(Message::BlockDone { slots: vec![], allowances: vec![(4, 0)] }), [NEXT, NEXT]);
}
