//! What the other end may claim, and what it may not.

#[path = "support/single.rs"]
mod single;
#[allow(dead_code)]
mod support;

use std::sync::Arc;

use haul_model::op::{MemberRead, SourceDone, SourceOp};
use haul_model::report::Stats;
use haul_model::{Code, Entry, EntryId, Failure, Kind, Token};
use haul_protocol::sink::{Config, Sink};
use haul_protocol::source::{self, Source};
use haul_protocol::{Action, Event, LogOp, Outcome};
use haul_wire::{Answer, Message, NewFile, Repair, RepairReason, Role, Settled};
use single::{ID, file, sink_begins, sink_config, source_begins, source_config};
use support::{NoLog, OBJECT, peer};

/// How the session ended, if it has.
fn ended(sink: &mut Sink, events: Vec<Event>) -> Option<Outcome> {
    let mut outcome = None;
    for event in events {
        sink.on_event(event, 0);
        while let Some(action) = sink.next_action() {
            if let Action::Ended(how) = action {
                outcome = Some(how);
            }
        }
    }
    outcome
}

/// Of so many files, none of which is here.
fn bye(files_total: u64, files_failed: u64) -> Event {
    let stats = Stats {
        files_total,
        files_done: files_total - files_failed,
        bytes_done: u64::MAX,
        files_failed,
        ..Stats::default()
    };
    Event::Message(Message::Bye(stats))
}

fn broken(outcome: Option<Outcome>) -> bool {
    outcome.is_some_and(|outcome| outcome.failure.is_some_and(|failure| failure.code == Code::Protocol))
}

#[test]
fn nothing_is_done_before_each_source_was_told_of_or_has_failed() {
    let up = || Event::LinkUp { epoch: 1, peer: peer(Role::Source, 8) };
    assert!(broken(ended(&mut Sink::new(sink_config()), vec![up(), bye(0, 0)])), "nothing came");
    let mut sink = Sink::new(sink_config());
    assert_eq!(ended(&mut sink, vec![up(), bye(9, 1)]), None, "it has failed there");
    let entry = Arc::new(Entry { kind: Kind::Directory, ..file(0) });
    let step = NewFile::Entry { entry, object_bytes: None, resume: None, stripes: None };
    let told = || Event::Message(Message::NewFile(vec![step.clone()]));
    assert!(
        broken(ended(&mut Sink::new(sink_config()), vec![up(), told(), bye(0, 0)])),
        "a directory goes on"
    );
    let end = || Event::Message(Message::NewFile(vec![NewFile::End(ID)]));
    assert_eq!(ended(&mut Sink::new(sink_config()), vec![up(), told(), end(), bye(0, 0)]), None);
    assert!(
        broken(ended(&mut Sink::new(sink_config()), vec![up(), told(), end(), bye(1, 0)])),
        "nowhere here"
    );
}

/// It was said to start again, and never did.
#[test]
fn a_file_that_was_to_start_again_is_none_that_is_there() {
    let dropped = |restarts| {
        let failure = Code::SourceChanged.into();
        let mut events = sink_begins(1);
        events.push(Event::Message(Message::FileDrop { id: ID, failure, restarts }));
        events
    };
    for total in [0, 1] {
        let mut sink = Sink::new(sink_config());
        assert!(broken(ended(&mut sink, [dropped(true), vec![bye(total, 0)]].concat())), "{total}");
    }
    let mut sink = Sink::new(sink_config());
    assert_eq!(ended(&mut sink, [dropped(false), vec![bye(1, 0)]].concat()), None);
    assert_eq!((sink.stats().files_failed, sink.stats().files_done), (1, 0));
}

#[test]
fn a_source_is_told_of_once_and_again_only_if_it_starts_again() {
    let failure = Code::SourceChanged.into();
    let dropped = Event::Message(Message::FileDrop { id: ID, failure, restarts: true });
    let once_more = |id, objects| {
        let object_bytes = (objects > 0).then_some(OBJECT);
        let entry = Arc::new(Entry { id, ..file(objects) });
        let step = NewFile::Entry { entry, object_bytes, resume: None, stripes: None };
        Event::Message(Message::NewFile(vec![step]))
    };
    let other = EntryId(ID.0 + 1);
    let ends = |events: &[Event]| ended(&mut Sink::new(sink_config()), [&sink_begins(1), events].concat());
    assert!(broken(ends(&[once_more(ID, 1)])), "under the same number");
    // It is told of again before it is dropped, since its directory stays for it; or after that.
    for events in [[once_more(other, 1), dropped.clone()], [dropped, once_more(other, 1)]] {
        assert_eq!(ends(&events), None);
    }
    assert!(broken(ends(&[once_more(other, 0), bye(0, 0)])), "two that stay are none");
}

#[test]
fn what_has_failed_at_the_sink_has_failed_whatever_the_source_counts() {
    let mut sink = Sink::new(sink_config());
    let refused = Message::Notice { path: b"a/x".as_slice().into(), failure: Code::SourceRead.into() };
    let mut events = sink_begins(1);
    events.extend([Event::Message(refused), bye(9, 0)]);
    assert_eq!(ended(&mut sink, events), None);
    assert_eq!((sink.stats().files_failed, sink.stats().files_done, sink.stats().bytes_done), (1, 0, 0));
}

/// The record of a transfer would go, if it had found nothing.
#[test]
fn what_was_found_stays_so_whatever_the_source_counts() {
    let mut sink = Sink::new(sink_config());
    let refused = Message::Notice { path: b"b".as_slice().into(), failure: Code::SourceRead.into() };
    let claimed = Stats { hard_links: 1 << 60, bytes_done: 1 << 60, ..Stats::default() };
    let messages = [refused, Message::Bye(claimed)].map(Event::Message);
    assert_eq!(ended(&mut sink, sink_begins(2).into_iter().chain(messages).collect()), None);
    let known = sink.stats();
    assert_eq!((known.files_total, known.bytes_total, known.files_failed), (2, u64::from(2 * OBJECT), 1));
    assert!(known.hard_links <= 2 && known.bytes_done == 0);
}

/// Each end tells of its own storage, and a user would look in vain.
#[test]
fn what_is_wrong_here_the_other_end_does_not_know() {
    for (code, is_wrong) in [(Code::SinkWrite, true), (Code::SourceRead, false), (Code::NameInvalid, true)] {
        let notice = Message::Notice { path: b"a".as_slice().into(), failure: code.into() };
        let events = [sink_begins(1), vec![Event::Message(notice)]].concat();
        assert_eq!(broken(ended(&mut Sink::new(sink_config()), events)), is_wrong, "{code:?}");
    }
    let answered = |failure: Failure| {
        let answers = vec![(ID, Answer::Fail(failure))];
        let mut source = Source::new(source_config());
        let mut events = source_begins(1);
        events[3] = Event::Message(Message::FileId { answers, laid: vec![], unlike: vec![] });
        let mut failure = None;
        for event in events {
            source.on_event(event, &mut NoLog, 0);
            while let Some(action) = source.next_action() {
                if let Action::Ended(outcome) = action {
                    failure = outcome.failure;
                }
            }
        }
        failure
    };
    assert_eq!(answered(Code::UnsupportedKind.into()), Some(Failure::new(Code::Protocol)));
    assert_eq!(answered(Code::SinkPermission.into()), None);
}

#[test]
fn where_no_tree_was_asked_for_none_comes() {
    for kind in [Kind::File, Kind::Directory, Kind::Symlink] {
        let link_target = if kind == Kind::Symlink { b"x".as_slice().into() } else { Box::default() };
        let entry = Arc::new(Entry { kind, link_target, ..file(0) });
        let step = NewFile::Entry { entry, object_bytes: None, resume: None, stripes: None };
        for recursive in [false, true] {
            let mut sink = Sink::new(Config { recursive, ..sink_config() });
            let up = Event::LinkUp { epoch: 1, peer: peer(Role::Source, 8) };
            let outcome = ended(&mut sink, vec![up, Event::Message(Message::NewFile(vec![step.clone()]))]);
            assert_eq!(broken(outcome), !recursive && kind != Kind::File, "{kind:?} {recursive}");
        }
    }
}

/// With one slot the source cannot have read more than one object.
#[test]
fn what_was_never_sent_is_not_durable() {
    for (index, is_wrong) in [(0, false), (1, true), (3, true), (4, true), (u32::MAX, true)] {
        let mut source = Source::new(source::Config {
            slots: 1,
            slots_least: 1,
            hands: 1,
            hands_max: 1,
            ..source_config()
        });
        let mut events: Vec<Event> = source_begins(4);
        events.reverse();
        let (mut is_sent, mut logged, mut failure) = (false, Vec::new(), None);
        loop {
            let Some(event) = events.pop() else {
                if std::mem::replace(&mut is_sent, false) {
                    events.push(Event::Message(Message::BlockSync {
                        objects: vec![(ID, index)],
                        entries: vec![],
                    }));
                    continue;
                }
                break;
            };
            source.on_event(event, &mut NoLog, 0);
            while let Some(action) = source.next_action() {
                match action {
                    Action::Source(SourceOp::ReadObject { block, .. }) => {
                        events.push(Event::SourceDone(SourceDone::Object { block, result: Ok(None) }));
                    }
                    Action::Payload { .. } => is_sent = true,
                    Action::Log(LogOp::Record { index, .. }) => logged.push(index),
                    Action::Ended(outcome) => failure = outcome.failure,
                    _ => {}
                }
            }
        }
        let wrong = Some(Failure::new(Code::Protocol));
        assert_eq!((logged, failure), if is_wrong { (vec![], wrong) } else { (vec![0], None) }, "{index}");
    }
}

/// It is in a bundle that has not left for want of a slot at the sink.
#[test]
fn nor_is_a_member_that_was_never_sent() {
    let claims = [
        Message::BlockSync { objects: vec![], entries: vec![(ID, Settled::Done(None))] },
        Message::Repair(vec![Repair { id: ID, index: None, reason: RepairReason::Lost }]),
    ];
    for (claim, may_leave) in claims.iter().flat_map(|claim| [(claim, false), (claim, true)]) {
        let mut source = Source::new(source::Config { bundle_bytes_max: OBJECT.into(), ..source_config() });
        let mut events = vec![Event::ScanEnded, Event::Message(claim.clone())];
        let mut begins = source_begins(1);
        if let (false, Event::Message(Message::BlockDone { slots, .. })) = (may_leave, &mut begins[2]) {
            slots.clear();
        }
        let small =
            Message::FileId { answers: vec![(ID, Answer::Start(Token::NONE))], laid: vec![], unlike: vec![] };
        begins[3] = Event::Message(small);
        begins.push(events.remove(0));
        events.extend(begins.into_iter().rev());
        let (mut failure, mut left) = (None, false);
        while let Some(event) = events.pop() {
            source.on_event(event, &mut NoLog, 0);
            while let Some(action) = source.next_action() {
                match action {
                    Action::Source(SourceOp::ReadMembers { block, members, .. }) => {
                        let results =
                            members.iter().map(|_| Ok(MemberRead { offset: 0, hash: None })).collect();
                        let length = members[0].size() as u32;
                        events.push(Event::SourceDone(SourceDone::Members { block, length, results }));
                    }
                    Action::Payload { .. } => left = true,
                    Action::Ended(outcome) => failure = outcome.failure,
                    _ => {}
                }
            }
        }
        let wrong = Some(Failure::new(Code::Protocol));
        assert_eq!((left, failure), (may_leave, if may_leave { None } else { wrong }), "{claim:?}");
    }
}
