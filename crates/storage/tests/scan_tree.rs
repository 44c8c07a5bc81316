//! The scan finds what an independent walk finds, and tells what it cannot.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use haul_model::{Code, Entry, EntryId, Failure, Item, Kind, Timestamp};
use haul_storage::conformance_source::check_order;
use haul_storage::scan::{OWNER_SOCKET, STATE_NEW, Scan, Scanned, push_name};
use haul_storage::source::{PosixSource, Root, SourceOptions};
use proptest::prelude::*;
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// What a scan found: entries by path, SOURCE by SOURCE, and errors.
#[derive(Default)]
struct Found {
    entries: BTreeMap<Vec<u8>, Entry>,
    errors: Vec<(Vec<u8>, Failure)>,
    items: Vec<Item>,
    unfinished: u64,
}

impl Found {
    fn paths(&self) -> Vec<String> {
        self.entries.keys().map(|path| path.escape_ascii().to_string()).collect()
    }

    fn error(&self, path: impl AsRef<[u8]>) -> Option<Code> {
        self.errors.iter().find(|(other, _)| other == path.as_ref()).map(|(_, failure)| failure.code)
    }
}

fn scan(roots: &[Root], recursive: bool) -> Found {
    let options = SourceOptions { recursive, ..SourceOptions::default() };
    let source = PosixSource::new(roots.to_vec(), options);
    let unfinished = Arc::new(AtomicU64::new(0));
    let mut scan = source.scan(Arc::new(AtomicU64::new(1))).counting_unfinished(Arc::clone(&unfinished));
    let mut found = Found::default();
    let mut paths: BTreeMap<EntryId, Vec<u8>> = BTreeMap::new();
    let mut batch = Vec::new();
    while scan.next(&mut batch) {
        for scanned in batch.drain(..) {
            match scanned {
                Scanned::Error { path, failure } => found.errors.push((path, failure)),
                Scanned::Item(item) => {
                    if let Item::Entry(entry) = &item {
                        let path = match entry.parent.root_index() {
                            Some(index) => roots[index as usize].label().to_vec(),
                            None => {
                                let mut path = paths[&entry.parent].clone();
                                push_name(&mut path, &entry.name);
                                path
                            }
                        };
                        paths.insert(entry.id, path.clone());
                        assert!(
                            found.entries.insert(path, entry.clone()).is_none(),
                            "found twice: {entry:?}"
                        );
                    }
                    found.items.push(item);
                }
            }
        }
    }
    found.unfinished = unfinished.load(Ordering::Relaxed);
    check_order(&found.items, 1);
    found
}

fn root(path: &Path) -> Root {
    Root::new(path.as_os_str().as_bytes())
}

/// The same, the simple way.
fn walk(path: &Path, into: &mut BTreeMap<Vec<u8>, fs::Metadata>) {
    let metadata = fs::symlink_metadata(path).unwrap();
    let is_directory = metadata.is_dir();
    into.insert(path.as_os_str().as_bytes().to_vec(), metadata);
    if is_directory {
        for entry in fs::read_dir(path).unwrap() {
            walk(&entry.unwrap().path(), into);
        }
    }
}

fn assert_same(path: &Path, found: &Found) {
    let mut expected = BTreeMap::new();
    walk(path, &mut expected);
    assert!(found.errors.is_empty(), "{:?}", found.errors);
    assert!(expected.keys().eq(found.entries.keys()), "{:?} {:?}", expected.keys(), found.paths());
    for (path, metadata) in &expected {
        let entry = &found.entries[path];
        let kind = match metadata.file_type() {
            kind if kind.is_dir() => Kind::Directory,
            kind if kind.is_file() => Kind::File,
            kind if kind.is_symlink() => Kind::Symlink,
            _ => Kind::Other,
        };
        assert_eq!(entry.kind, kind);
        let attributes = entry.attributes;
        assert_eq!(attributes.mode, metadata.mode() & 0o7777);
        assert_eq!((attributes.uid, attributes.gid), (metadata.uid(), metadata.gid()));
        let time = |seconds, nanos: i64| Timestamp { seconds, nanos: nanos as u32 };
        assert_eq!(attributes.mtime, time(metadata.mtime(), metadata.mtime_nsec()));
        if kind == Kind::File {
            assert_eq!(entry.identity.size, metadata.size());
            assert_eq!(entry.identity.inode, metadata.ino());
            assert_eq!(entry.identity.mtime, attributes.mtime);
            assert_eq!(entry.identity.ctime, time(metadata.ctime(), metadata.ctime_nsec()));
            assert_eq!(u64::from(entry.links), metadata.nlink());
        } else {
            assert_eq!((entry.identity, entry.links), (Default::default(), 1));
        }
        if kind == Kind::Symlink {
            let target = fs::read_link(OsStr::from_bytes(path)).unwrap();
            assert_eq!(&*entry.link_target, target.as_os_str().as_bytes());
        }
    }
}

#[derive(Clone, Debug)]
enum Node {
    Directory,
    File(u16),
    Symlink(Vec<u8>),
    HardLink(usize),
    Fifo,
}

/// Names that have broken other programs, and any other bytes.
fn name() -> impl Strategy<Value = Vec<u8>> {
    let awkward =
        ["\n", "\r", " ", "-rf", "a b ", "\\", "@", "$(x)", "%s", "\x1b[2J", "..a", "...", "*", ".haul-x"];
    let awkward: Vec<Vec<u8>> = awkward.iter().map(|name| name.as_bytes().to_vec()).collect();
    prop_oneof![
        1 => proptest::sample::select(awkward),
        1 => Just(vec![b'n'; 255]),
        4 => proptest::collection::vec(1u8..=255, 1..20).prop_map(|mut name| {
            name.iter_mut().filter(|byte| **byte == b'/').for_each(|byte| *byte = 0xff);
            if name == b"." || name == b".." { name.push(b'x') }
            name
        }),
    ]
}

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![
        4 => Just(Node::Directory),
        6 => any::<u16>().prop_map(Node::File),
        2 => name().prop_map(Node::Symlink),
        1 => any::<usize>().prop_map(Node::HardLink),
        1 => Just(Node::Fifo),
    ]
}

fn build(top: &Path, nodes: &[(usize, Vec<u8>, Node)]) {
    let mut directories = vec![top.to_path_buf()];
    let mut files: Vec<PathBuf> = Vec::new();
    for (parent, name, node) in nodes {
        let path = directories[parent % directories.len()].join(OsStr::from_bytes(name));
        if fs::symlink_metadata(&path).is_ok() {
            continue;
        }
        match node {
            Node::Directory => {
                fs::create_dir(&path).unwrap();
                directories.push(path);
            }
            Node::File(size) => {
                fs::write(&path, vec![7; usize::from(*size)]).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o400 | u32::from(size % 512)))
                    .unwrap();
                files.push(path);
            }
            Node::Symlink(target) => symlink(OsStr::from_bytes(target), &path).unwrap(),
            Node::HardLink(which) if !files.is_empty() => {
                fs::hard_link(&files[which % files.len()], &path).unwrap();
            }
            Node::HardLink(_) | Node::Fifo => mkfifoat(CWD, &path, Mode::RUSR).unwrap(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_random_tree_is_found_as_it_is(
        nodes in proptest::collection::vec((any::<usize>(), name(), node()), 0..120),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path().join("top");
        fs::create_dir(&top).unwrap();
        build(&top, &nodes);
        assert_same(&top, &scan(&[root(&top)], true));
    }
}

#[test]
fn more_names_than_a_batch_and_a_buffer_hold_are_all_found() {
    let scratch = tempfile::tempdir().unwrap();
    for directory in 0..3 {
        let path = scratch.path().join(format!("directory{directory}"));
        fs::create_dir(&path).unwrap();
        for file in 0..3000 {
            fs::write(path.join(format!("a-name-of-some-length-{file}")), b"").unwrap();
        }
    }
    assert_same(scratch.path(), &scan(&[root(scratch.path())], true));
}

#[test]
fn sources_are_taken_as_cp_takes_them() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("real")).unwrap();
    fs::write(at("real/inside"), b"x").unwrap();
    fs::write(at("file"), b"abc").unwrap();
    symlink("real", at("to-directory")).unwrap();
    symlink("file", at("to-file")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    let only = |name: &str, recursive| scan(&[root(&at(name))], recursive);
    let kinds = |found: &Found| found.entries.values().map(|entry| entry.kind).collect::<Vec<_>>();

    for link in ["to-directory", "to-file", "dangling"] {
        assert_eq!(kinds(&only(link, true)), [Kind::Symlink], "{link}");
    }
    assert_eq!(kinds(&only("to-directory/", true)), [Kind::Directory, Kind::File]);
    assert_eq!(kinds(&only("real/", true)), [Kind::Directory, Kind::File]);
    assert_eq!(kinds(&only("file", true)), [Kind::File]);

    // Without -r, links are followed and directories refused.
    let followed = only("to-file", false);
    assert_eq!(kinds(&followed), [Kind::File]);
    assert_eq!(followed.entries.values().next().unwrap().identity.size, 3);
    assert_eq!(only("dangling", false).errors[0].1.code, Code::SourceMissing);
    for directory in ["real", "to-directory"] {
        let found = only(directory, false);
        assert_eq!((found.items.len(), found.errors[0].1.code), (0, Code::SourceDirectory));
    }

    for missing in ["missing", "file/", "file/below", "missing/below"] {
        let found = only(missing, true);
        assert_eq!((found.items.len(), found.errors.len()), (0, 1), "{missing}");
        assert_eq!(found.error(at(missing).as_os_str().as_bytes()), Some(Code::SourceMissing), "{missing}");
    }
    assert_eq!(scan(&[Root::new("")], true).error(""), Some(Code::SourceMissing));
    assert!(scan(&[Root::new("a\0b")], true).error("a\0b").is_some());
}

#[test]
fn what_haul_itself_has_for_a_moment_is_passed_over_and_other_sockets_are_named() {
    let scratch = tempfile::tempdir().unwrap();
    let _listening = [OWNER_SOCKET, "other.sock"].map(|name| UnixListener::bind(scratch.path().join(name)));
    for name in STATE_NEW.into_iter().chain(["file"]) {
        fs::write(scratch.path().join(name), b"x").unwrap();
    }
    let found = scan(&[root(scratch.path())], true);
    let kinds: Vec<Kind> = found.entries.values().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [Kind::Directory, Kind::File, Kind::Other], "{:?}", found.paths());
    assert_eq!(found.unfinished, 2, "that they are left out is told");
}

#[test]
fn each_source_hangs_below_its_own_root_and_one_that_is_missing_stops_no_other() {
    let scratch = tempfile::tempdir().unwrap();
    fs::create_dir(scratch.path().join("one")).unwrap();
    fs::write(scratch.path().join("one/inside"), b"").unwrap();
    fs::write(scratch.path().join("two"), b"").unwrap();
    let roots = ["one", "none", "two"].map(|name| root(&scratch.path().join(name)));
    let found = scan(&roots, true);
    let parents: Vec<EntryId> = found.entries.values().map(|entry| entry.parent).collect();
    assert_eq!(parents, [EntryId::root(0), EntryId(1), EntryId::root(2)]);
    assert_eq!(found.errors.len(), 1);
    assert_eq!(found.error(roots[1].label()), Some(Code::SourceMissing));
    // The pseudo directories never end: nobody entered them.
    assert_eq!(found.items.iter().filter(|item| matches!(item, Item::End(_))).count(), 1);
}

#[test]
fn our_own_unfinished_files_are_passed_over_and_nothing_else() {
    let scratch = tempfile::tempdir().unwrap();
    let token = "00112233445566778899aabbccddeeff";
    let unfinished = [format!(".haul-{token}"), format!(".haul-{token}.sums")];
    for name in &unfinished {
        fs::write(scratch.path().join(name), b"half").unwrap();
    }
    let mut others =
        vec![format!(".haul-{token}.old"), format!(".haul-{}", &token[2..]), ".haul-".to_owned()];
    for name in &others {
        fs::write(scratch.path().join(name), b"").unwrap();
    }
    // One that was to replace something.
    symlink("x", scratch.path().join(format!(".haul-{}", token.replace('0', "2")))).unwrap();
    // Not ours whatever it is called: haul makes files and symlinks.
    let directory = format!(".haul-{}", token.replace('0', "1"));
    fs::create_dir(scratch.path().join(&directory)).unwrap();
    others.push(directory);
    let found = scan(&[Root::with_label(scratch.path().as_os_str().as_bytes(), "")], true);
    let mut names: Vec<String> = found.paths().into_iter().filter(|path| !path.is_empty()).collect();
    names.sort();
    others.sort();
    assert_eq!((names, found.unfinished), (others, 3));
    // One that the user names is taken.
    let found = scan(&[root(&scratch.path().join(&unfinished[0]))], true);
    assert_eq!((found.entries.len(), found.unfinished), (1, 0));
}

#[test]
fn what_cannot_be_read_is_named_and_stops_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    for directory in ["closed", "blind", "open"] {
        fs::create_dir(at(directory)).unwrap();
        fs::write(at(directory).join("inside"), b"x").unwrap();
    }
    fs::write(at("unreadable"), b"x").unwrap();
    let set_mode =
        |name: &str, mode| fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    set_mode("closed", 0o300);
    set_mode("blind", 0o600);
    set_mode("unreadable", 0o000);
    let found =
        without_privileges(|| scan(&[Root::with_label(scratch.path().as_os_str().as_bytes(), "x")], true));
    set_mode("closed", 0o700);
    set_mode("blind", 0o700);
    // A directory that cannot be listed exists, empty; of one that cannot be searched the names are known.
    assert_eq!(found.paths(), ["x", "x/blind", "x/closed", "x/open", "x/open/inside", "x/unreadable"]);
    assert_eq!(found.errors.len(), 2, "{:?}", found.errors);
    assert_eq!(found.error("x/closed"), Some(Code::SourcePermission));
    assert_eq!(found.error("x/blind/inside"), Some(Code::SourcePermission));
}

/// Runs in a thread that may do no more than an ordinary user.
fn without_privileges<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective = CapabilitySet::empty();
            set_capabilities(None, sets).unwrap();
            what()
        });
        thread.join().unwrap()
    })
}
