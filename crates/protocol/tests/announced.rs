//! What a source's NEW_FILE messages hold: the entries of many directories go together, and nothing is forgotten too early.

#[path = "support/single.rs"]
#[allow(dead_code)]
mod single;
#[allow(dead_code)]
mod support;

use haul_model::op::SourceOp;
use haul_model::{Bitmap, Entry, EntryId, Identity, Item, Kind, Token};
use haul_protocol::source::{self, Source};
use haul_protocol::{Action, Event, LogView, Logged};
use haul_wire::{Answer, Connect, Message, NewFile, Role};
use single::{file, source_config};
use support::{NoLog, OBJECT, on, peer};

const TREE: EntryId = EntryId(1);

fn entry(id: EntryId, parent: EntryId, kind: Kind) -> Item {
    let identity = Identity { size: 10, ..Identity::default() };
    Item::Entry(Entry {
        id,
        parent,
        kind,
        name: format!("{}", id.0).into_bytes().into(),
        identity,
        ..file(1)
    })
}

fn source() -> Source {
    let config = source::Config { bundle_bytes_max: OBJECT.into(), ..source_config() };
    let mut source = Source::new(config);
    told(&mut source, Event::LinkUp { epoch: 1, peer: peer(Role::Sink, 8) });
    let tree = Entry { id: TREE, kind: Kind::Directory, ..file(1) };
    told(&mut source, Event::Scanned(vec![Item::Entry(tree)]));
    answered(&mut source, TREE);
    source
}

/// What of this the tests look at, in order: the ends and numbers of entries of each NEW_FILE, and what storage may forget.
#[derive(PartialEq, Eq, Debug)]
enum Told {
    New { entries: usize, ends: Vec<EntryId> },
    Forget(EntryId),
}

fn told(source: &mut Source, event: Event) -> Vec<Told> {
    source.on_event(event, &mut NoLog, 0);
    let mut told = Vec::new();
    while let Some(action) = source.next_action() {
        match action {
            Action::Send(Message::NewFile(items)) => {
                let ends = items.iter().filter_map(|item| match item {
                    NewFile::End(id) => Some(*id),
                    NewFile::Entry { .. } => None,
                });
                let ends: Vec<_> = ends.collect();
                told.push(Told::New { entries: items.len() - ends.len(), ends });
            }
            Action::Source(SourceOp::Forget { id }) => told.push(Told::Forget(id)),
            _ => {}
        }
    }
    told
}

fn answered(source: &mut Source, id: EntryId) -> Vec<Told> {
    let answers = vec![(id, Answer::Made)];
    told(source, Event::Message(Message::FileId { answers, laid: Vec::new(), unlike: Vec::new() }))
}

#[test]
fn entries_of_sixteen_directories_go_in_one_message() {
    let mut source = source();
    let directories: Vec<_> = (0..100).map(|number| EntryId(10 + number * 3)).collect();
    let items = directories.iter().flat_map(|id| {
        let [first, second] = [1, 2].map(|more| entry(EntryId(id.0 + more), *id, Kind::File));
        [entry(*id, TREE, Kind::Directory), first, second, Item::End(*id)]
    });
    let told = told(&mut source, Event::Scanned(items.collect()));
    let together =
        directories.chunks(16).map(|some| Told::New { entries: some.len() * 3, ends: some.into() });
    assert_eq!(told, together.collect::<Vec<_>>());
}

#[test]
fn a_directory_that_is_forgotten_at_its_end_was_announced_to_be_at_its_end() {
    let mut source = source();
    let [first, second] = [EntryId(10), EntryId(11)];
    let made = vec![entry(first, TREE, Kind::Directory), entry(second, TREE, Kind::Directory)];
    assert_eq!(told(&mut source, Event::Scanned(made)), [Told::New { entries: 2, ends: Vec::new() }]);
    answered(&mut source, first);
    let ended = vec![Item::End(first), Item::End(second)];
    let told = told(&mut source, Event::Scanned(ended));
    // The second one's answer is still to come.
    let end = |id| Told::New { entries: 0, ends: vec![id] };
    assert_eq!(told, [end(first), Told::Forget(first), end(second)]);
    assert_eq!(answered(&mut source, second), [Told::Forget(second)]);
}

/// As where a layout file, or a newer haul, says more of a file that was begun than was known then.
#[test]
fn what_was_begun_in_larger_objects_goes_on_in_them() {
    struct Begun(Logged);
    impl LogView for Begun {
        fn lookup(&mut self, _path: &[u8]) -> Option<Logged> {
            Some(self.0.clone())
        }
    }
    let entry = file(8);
    let (object_bytes, token) = (4 * OBJECT, Token([1; 16]));
    let logged = Logged { identity: entry.identity, object_bytes, token, done: Bitmap::new(2) };
    let mut source = Source::new(source::Config { object_bytes, ..source_config() });
    let peer = Connect { object_bytes, ..peer(Role::Sink, 8) };
    let mut told = Vec::new();
    for event in
        [Event::LinkUp { epoch: 1, peer }, Event::Scanned(vec![Item::Laid(entry, Box::new(on(1)), None)])]
    {
        source.on_event(event, &mut Begun(logged.clone()), 0);
        while let Some(action) = source.next_action() {
            if let Action::Send(Message::NewFile(items)) = action {
                told.extend(items);
            }
        }
    }
    let [NewFile::Entry { object_bytes: Some(bytes), resume: Some(of), .. }] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((*bytes, *of), (object_bytes, token));
}
