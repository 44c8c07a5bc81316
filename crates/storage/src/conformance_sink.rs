//! What every sink must do, as one suite that each implementation passes.
//!
//! Called from tests with a [`Fixture`]; it panics with what was expected. A new implementation (or a decorator around
//! one) is finished when [`check_all`] passes for it.

mod driver;

use std::collections::BTreeSet;

use haul_model::op::{MemberWrite, Prepared, SinkOp};
use haul_model::{Attributes, Code, EntryId, Failure, Hash, HashKind, Kind, SlotId, Timestamp, Token};

use crate::SinkStorage;
use crate::scan::is_unfinished_name;
use crate::sink::SourceName;
use crate::sink::tokens::{TempName, TokenMaker};
pub use driver::{Driver, TIME, content};

/// Bytes of an object in the suite.
pub const OBJECT: u32 = 64 << 10;

/// Of the job in the suite.
pub const JOB: [u8; 6] = *b"job-01";

/// An implementation with an empty destination.
pub trait Fixture {
    /// A new session of the job [`JOB`], without preserving owners, on what is there, with objects of [`OBJECT`]
    /// bytes, each SOURCE going into the destination.
    fn open(&self, session_tag: [u8; 4], sources: &[SourceName]) -> Box<dyn SinkStorage>;

    /// What is at this path below the destination.
    fn look(&self, path: &[u8]) -> Option<Seen>;

    /// The names in the directory at this path; empty for the destination itself.
    fn names(&self, path: &[u8]) -> BTreeSet<Vec<u8>>;

    /// Unfinished files have their full size from the beginning: only the master knows then what is missing.
    fn sizes_at_once(&self) -> bool {
        false
    }

    /// A file has its size from its first object on: then, too.
    fn sizes_at_first(&self) -> bool {
        false
    }

    /// Puts something there by other means, replacing what there was.
    fn plant(&self, path: &[u8], seen: &Seen);
}

/// What a tree holds under a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// What it is.
    pub kind: Kind,
    /// Permission bits; of symlinks they mean nothing.
    pub mode: u32,
    /// When it was changed.
    pub mtime: Timestamp,
    /// Contents of a file, target of a symlink.
    pub bytes: Vec<u8>,
}

impl Seen {
    /// A directory as another program would make it.
    pub fn directory() -> Self {
        Seen { kind: Kind::Directory, mode: 0o755, mtime: TIME, bytes: Vec::new() }
    }

    /// A file that looks complete.
    pub fn file(bytes: &[u8]) -> Self {
        Seen { kind: Kind::File, mode: 0o644, mtime: TIME, bytes: bytes.to_vec() }
    }

    /// A symlink.
    pub fn symlink(target: &[u8]) -> Self {
        Seen { kind: Kind::Symlink, mode: 0o777, mtime: TIME, bytes: target.to_vec() }
    }
}

type Check = (&'static str, fn(&dyn Fixture));

/// All checks, each with a fixture of its own.
pub fn check_all(mut fixture: impl FnMut() -> Box<dyn Fixture>) {
    let checks: &[Check] = &[
        ("a tree of every kind arrives with its attributes", tree_arrives),
        ("names are bytes", names_are_bytes),
        ("names that would leave are refused", bad_names_are_refused),
        ("a wrong hash writes nothing", wrong_hash_writes_nothing),
        ("ranges are checked", ranges_are_checked),
        ("the root is that of the whole file", roots),
        ("a file goes on in a later session", resume),
        ("only a file that is beyond doubt goes on", resume_is_refused),
        ("an unfinished file is that of one entry", of_two_entries),
        ("complete files are skipped, others are sent", skip_rules),
        ("what stands in the way", in_the_way),
        ("symlinks are replaced at once or left alone", symlinks),
        ("only own left-over files are swept", sweep),
        ("no final name before its time", no_early_names),
        ("a discarded file leaves nothing", discard),
        ("what is let go of can be resumed", let_go),
        ("twice is once", idempotence),
        ("directories that were there keep what is in them", merge),
        ("contents are merged into the destination", contents),
    ];
    for (what, check) in checks {
        eprintln!("sink: {what}");
        check(&*fixture());
    }
}

const FIRST: [u8; 4] = *b"one.";
const SECOND: [u8; 4] = *b"two.";

fn named() -> Vec<SourceName> {
    vec![SourceName::Named(b"top".to_vec())]
}

/// A session with the directory `top` in it.
fn session(fixture: &dyn Fixture, tag: [u8; 4]) -> (Driver, EntryId) {
    let driver = Driver::new(fixture.open(tag, &named()));
    let top = driver.directory(EntryId::root(0), b"");
    (driver, top)
}

fn seen(fixture: &dyn Fixture, path: &str) -> Seen {
    fixture.look(path.as_bytes()).unwrap_or_else(|| panic!("{path} is missing"))
}

/// Names but for unfinished files: a sink may make that of a file as soon as it may come.
fn finished(fixture: &dyn Fixture, path: &str) -> Vec<Vec<u8>> {
    names(fixture, path).into_iter().filter(|name| !is_unfinished_name(name)).collect()
}

fn names(fixture: &dyn Fixture, path: &str) -> Vec<Vec<u8>> {
    fixture.names(path.as_bytes()).into_iter().collect()
}

fn root_of(bytes: &[u8]) -> Hash {
    Hash(*blake3::hash(bytes).as_bytes())
}

fn failed(code: Code) -> Prepared {
    Prepared::Fail(Failure::new(code))
}

fn code_of<T: std::fmt::Debug>(result: Result<T, Failure>) -> Code {
    result.expect_err("this cannot succeed").code
}

fn tree_arrives(fixture: &dyn Fixture) {
    let driver = Driver::new(fixture.open(FIRST, &named()));
    let early = Timestamp { seconds: -86_400 * 365, nanos: 999_999_999 };
    let mut top = driver.entry(EntryId::root(0), b"", Kind::Directory);
    top.attributes = Attributes { mode: 0o755, mtime: early, atime: TIME, ..top.attributes };
    assert_eq!(driver.prepare(&top, None, false), Prepared::Made);
    let mut locked = driver.entry(top.id, b"locked", Kind::Directory);
    locked.attributes.mode = 0o555;
    assert_eq!(driver.prepare(&locked, None, false), Prepared::Made);
    let empty = driver.directory(top.id, b"empty");
    let mut small = driver.file(locked.id, b"small", 5);
    small.attributes = Attributes { mode: 0o106_751, mtime: early, atime: TIME, ..small.attributes };
    let nothing = driver.file(locked.id, b"nothing", 0);
    let members: [(_, &[u8]); 2] = [(&small, b"small"), (&nothing, b"")];
    for (entry, _) in members {
        assert_eq!(driver.prepare(entry, None, false), Prepared::Start(Token::NONE));
    }
    assert_eq!(driver.write_members(&members), [Ok(()), Ok(())]);
    let big = content(1, 3 * OBJECT as usize + 17);
    let mut large = driver.file(locked.id, b"large", big.len());
    large.attributes = Attributes { mode: 0o400, mtime: early, ..large.attributes };
    let token = driver.start(&large);
    for index in [3, 1, 0, 2] {
        assert_eq!(driver.write_object(&large, token, &big, index), Ok(()));
    }
    assert_eq!(driver.seal(&large, token, None), Ok(root_of(&big)));
    let none = driver.file(locked.id, b"none", 0);
    let token = driver.start(&none);
    assert_eq!(driver.seal(&none, token, Some(root_of(b""))), Ok(root_of(b"")));
    driver.settle(&[small.id, nothing.id, large.id, none.id]);
    let mut link = driver.symlink(top.id, b"link", b"../out/of \xff here");
    link.attributes.mtime = early;
    assert_eq!(driver.prepare(&link, None, false), Prepared::Made);
    assert_eq!(driver.sync_names(&[link.id]), []);
    for id in [locked.id, empty, top.id] {
        driver.end(id);
    }
    assert_eq!(driver.finish(), []);

    let file = |mode, mtime, bytes: &[u8]| Seen { kind: Kind::File, mode, mtime, bytes: bytes.to_vec() };
    assert_eq!(seen(fixture, "top/locked/small"), file(0o751, early, b"small"), "without setuid and setgid");
    assert_eq!(seen(fixture, "top/locked/nothing"), file(0o644, TIME, b""));
    assert_eq!(seen(fixture, "top/locked/none"), file(0o644, TIME, b""));
    assert_eq!(seen(fixture, "top/locked/large"), file(0o400, early, &big));
    assert_eq!(seen(fixture, "top/locked"), Seen { mode: 0o555, ..Seen::directory() });
    assert_eq!(seen(fixture, "top/empty"), Seen::directory());
    assert_eq!(seen(fixture, "top"), Seen { mtime: early, ..Seen::directory() });
    let link = seen(fixture, "top/link");
    assert_eq!((link.kind, link.mtime, &*link.bytes), (Kind::Symlink, early, &b"../out/of \xff here"[..]));
    assert_eq!(names(fixture, "top"), [&b"empty"[..], b"link", b"locked"]);
    assert_eq!(names(fixture, "top/locked"), [&b"large"[..], b"none", b"nothing", b"small"]);
}

fn names_are_bytes(fixture: &dyn Fixture) {
    let (driver, top) = session(fixture, FIRST);
    let long = [b'n'; 255];
    let odd: [&[u8]; 9] =
        [b"\n", b" x ", b"-rf", b"\xff\xfe", b"a\\b", b"\x1b[31m", b"...", b".haul-notes", &long];
    for name in odd {
        let below = driver.directory(top, name);
        driver.put_member(below, name, name);
    }
    assert_eq!(driver.finish(), []);
    for name in odd {
        let path = [b"top", name, name].join(&b'/');
        assert_eq!(fixture.look(&path).map(|seen| seen.bytes), Some(name.to_vec()), "{name:?}");
    }
}

fn bad_names_are_refused(fixture: &dyn Fixture) {
    let (driver, top) = session(fixture, FIRST);
    let reserved = TempName::contents(TokenMaker::new(JOB, FIRST).make());
    let reserved_sums = TempName::sums(TokenMaker::new(JOB, FIRST).make());
    let upper = reserved.as_bytes().to_ascii_uppercase();
    let bad: [(&[u8], Code); 9] = [
        (b"", Code::Confinement),
        (b".", Code::Confinement),
        (b"..", Code::Confinement),
        (b"a/b", Code::Confinement),
        (b"/etc", Code::Confinement),
        (b"a\0b", Code::Confinement),
        (reserved.as_bytes(), Code::NameInvalid),
        (reserved_sums.as_bytes(), Code::NameInvalid),
        (&upper, Code::NameInvalid),
    ];
    for (name, code) in bad {
        for kind in [Kind::Directory, Kind::File, Kind::Symlink] {
            let entry = driver.symlink(top, name, b"target");
            let entry = haul_model::Entry { kind, ..entry };
            assert_eq!(driver.prepare(&entry, None, true), failed(code), "{name:?}");
        }
        // Each operation checks for itself.
        let file = driver.file(top, name, 1);
        assert_eq!(driver.write_members(&[(&file, b"x")]), [Err(code.into())], "{name:?}");
        let good = driver.file(top, b"good", 1);
        let token = driver.start(&good);
        assert_eq!(driver.write_object(&file, token, b"x", 0), Err(code.into()), "{name:?}");
    }
    let kind = Kind::Other;
    assert_eq!(driver.prepare(&driver.entry(top, b"fifo", kind), None, true), failed(Code::UnsupportedKind));
    for (parent, name, code) in [
        (EntryId::root(0), &b".bashrc"[..], Code::Confinement),
        (EntryId::root(1), b"", Code::Confinement),
        (EntryId::root(u32::MAX), b"", Code::Confinement),
        (EntryId(999_999), b"x", Code::SinkParentFailed),
    ] {
        for kind in [Kind::Directory, Kind::File] {
            let entry = driver.entry(parent, name, kind);
            assert_eq!(driver.prepare(&entry, None, true), failed(code), "{parent:?} {name:?}");
        }
        let file = driver.file(parent, name, 1);
        assert_eq!(driver.write_members(&[(&file, b"x")]), [Err(code.into())], "{parent:?} {name:?}");
    }
    let mut fake = driver.entry(top, b"x", Kind::Directory);
    fake.id = EntryId::root(0);
    assert!(matches!(driver.prepare(&fake, None, false), Prepared::Fail(_)));
    for (name, target) in [(&b"empty"[..], &b""[..]), (b"nul", b"a\0b"), (b"long", &[b't'; 4096])] {
        let link = driver.symlink(top, name, target);
        assert_eq!(driver.prepare(&link, None, false), failed(Code::NameInvalid));
    }
    assert_eq!(finished(fixture, "top"), Vec::<Vec<u8>>::new());
    assert_eq!(names(fixture, ""), [b"top"]);
}

fn wrong_hash_writes_nothing(fixture: &dyn Fixture) {
    let (driver, top) = session(fixture, FIRST);
    let (good, bad) = (driver.file(top, b"good", 4), driver.file(top, b"bad", 4));
    driver.pool().lease(SlotId(0)).unwrap()[..8].copy_from_slice(b"goodBAD!");
    let member = |entry: &haul_model::Entry, offset, bytes| MemberWrite {
        entry: std::sync::Arc::new(entry.clone()),
        offset,
        hash: root_of(bytes),
    };
    let results = driver.run_members(vec![member(&bad, 4, b"bad!"), member(&good, 0, b"good")], 8);
    assert_eq!(results, [Err(Code::HashMismatch.into()), Ok(())]);
    assert_eq!(driver.sync(&[good.id]), []);
    assert_eq!(driver.publish(&[bad.id, good.id]), [(bad.id, Code::Internal.into())]);
    assert_eq!(names(fixture, "top"), [b"good"], "neither a file nor a temporary one");

    // Larger ones too, wherever they are damaged.
    let whole = content(4, 400_001);
    let large = driver.file(top, b"larger", whole.len());
    for wrong in [0, 200_000, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[wrong] ^= 1;
        driver.pool().lease(SlotId(0)).unwrap()[..whole.len()].copy_from_slice(&damaged);
        let results = driver.run_members(vec![member(&large, 0, &whole)], whole.len() as u32);
        assert_eq!(results, [Err(Code::HashMismatch.into())], "byte {wrong}");
        assert_eq!(driver.publish(&[large.id]), [(large.id, Code::Internal.into())]);
        assert_eq!(names(fixture, "top"), [b"good"], "byte {wrong}");
    }
    assert_eq!(driver.write_members(&[(&large, &whole)]), [Ok(())]);
    driver.settle(&[large.id]);
    assert_eq!(seen(fixture, "top/larger"), Seen::file(&whole));

    let bytes = content(2, 2 * OBJECT as usize);
    let large = driver.file(top, b"large", bytes.len());
    let token = driver.start(&large);
    driver.pool().lease(SlotId(1)).unwrap()[..OBJECT as usize].copy_from_slice(&bytes[..OBJECT as usize]);
    let root = root_of(&bytes[..OBJECT as usize]);
    let result = driver.run_object(&large, token, (0, OBJECT, false), root);
    assert_eq!(result, Err(Code::HashMismatch.into()), "the root of these bytes is not their subtree value");
    assert_eq!(driver.write_object(&large, token, &bytes, 1), Ok(()));
    driver.pool().lease(SlotId(1)).unwrap()[17] ^= 1;
    let hash = crate::hashing::object_hash(HashKind::Blake3, &bytes[OBJECT as usize..], OBJECT.into(), false);
    let result = driver.run_object(&large, token, (OBJECT.into(), OBJECT, false), hash);
    assert_eq!(result, Err(Code::HashMismatch.into()));
    assert_eq!(driver.write_object(&large, token, &bytes, 0), Ok(()));
    let wrong = Hash([1; 32]);
    assert_eq!(driver.seal(&large, token, Some(wrong)), Err(Code::HashMismatch.into()));
    assert_eq!(driver.publish(&[large.id]), [(large.id, Code::Internal.into())], "it is not sealed");
    assert_eq!(driver.seal(&large, token, None), Ok(root_of(&bytes)), "the refused bytes were not written");
}

fn ranges_are_checked(fixture: &dyn Fixture) {
    let (driver, top) = session(fixture, FIRST);
    let file = std::sync::Arc::new(driver.file(top, b"file", 10));
    let member = |offset| MemberWrite { entry: file.clone(), offset, hash: root_of(&[0; 10]) };
    driver.pool().lease(SlotId(0)).unwrap().fill(0);
    for (offset, length) in [(1, 10), (0, 9), (u32::MAX, 10), (10, 10), (u32::MAX - 4, u32::MAX)] {
        let results = driver.run_members(vec![member(offset)], length);
        assert_eq!(results, [Err(Code::Protocol.into())], "{offset} {length}");
    }
    let mut huge = driver.file(top, b"huge", 10);
    huge.identity.size = u64::MAX;
    let huge = MemberWrite { entry: huge.into(), offset: 1, hash: root_of(b"") };
    assert_eq!(driver.run_members(vec![huge], 10), [Err(Code::Protocol.into())]);
    let folder = driver.entry(top, b"folder", Kind::Directory);
    let folder = MemberWrite { entry: folder.into(), offset: 0, hash: root_of(b"") };
    assert_eq!(driver.run_members(vec![folder], 10), [Err(Code::Protocol.into())]);

    let bytes = vec![0; 2 * OBJECT as usize + 5];
    let large = driver.file(top, b"large", bytes.len());
    let token = driver.start(&large);
    for range in [
        (1, OBJECT, false),
        (1024, OBJECT, false),
        (0, OBJECT - 1, false),
        (0, 0, false),
        (0, OBJECT, true),
        (2 * u64::from(OBJECT), 6, false),
        (3 * u64::from(OBJECT), 5, false),
        (u64::MAX, 1, false),
        (u64::MAX - 1023, u32::MAX, false),
    ] {
        let result = driver.run_object(&large, token, range, Hash([0; 32]));
        assert_eq!(result, Err(Code::Protocol.into()), "{range:?}");
    }
    let held = driver.pool().lease(SlotId(1));
    let result = driver.run_object(&large, token, (0, OBJECT, false), Hash([0; 32]));
    assert_eq!(result, Err(Code::Internal.into()), "the slot is somebody else's");
    drop(held);
    let stray = Token([9; 16]);
    assert_eq!(driver.write_object(&large, stray, &bytes, 0), Err(Code::Internal.into()));
    assert_eq!(code_of(driver.seal(&large, stray, None)), Code::Internal);
    assert_eq!(driver.sync(&[EntryId(77_777)]).len(), 1);
    assert_eq!(driver.publish(&[EntryId(77_777)]).len(), 1);
    assert_eq!(driver.sync_names(&[EntryId(77_777)]).len(), 1);
    driver.discard(EntryId(77_777), stray);
    driver.run(SinkOp::Forget { id: EntryId(77_777) });
    driver.end(EntryId(77_777));
    assert_eq!(finished(fixture, "top"), Vec::<Vec<u8>>::new());

    // Neighbours of one that is not there keep their own hashes.
    driver.pool().lease(SlotId(0)).unwrap()[..20].copy_from_slice(b"0123456789abcdefghij");
    let named = |name, offset, bytes: &[u8]| MemberWrite {
        entry: driver.file(top, name, 10).into(),
        offset,
        hash: root_of(bytes),
    };
    let first = named(b"first", 0, b"0123456789");
    let second = named(b"second", 10, b"abcdefghij");
    let results = driver.run_members(vec![first, member(11), second], 20);
    assert_eq!(results, [Ok(()), Err(Code::Protocol.into()), Ok(())]);
}

fn roots(fixture: &dyn Fixture) {
    let (driver, top) = session(fixture, FIRST);
    let unit = OBJECT as usize;
    for objects in 1..=5 {
        for size in [1, unit / 2 + 1, unit - 1, unit].map(|last| (objects - 1) * unit + last) {
            let bytes = content(size as u64, size);
            let entry = driver.file(top, format!("{size}").as_bytes(), size);
            let token = driver.start(&entry);
            // Last first: nothing may rely on the order.
            for index in (0..objects as u64).rev() {
                assert_eq!(driver.write_object(&entry, token, &bytes, index), Ok(()));
            }
            assert_eq!(driver.sync(&[entry.id]), []);
            assert_eq!(driver.seal(&entry, token, None), Ok(root_of(&bytes)), "{size} bytes");
            driver.settle(&[entry.id]);
            assert_eq!(seen(fixture, &format!("top/{size}")).bytes, bytes);
        }
    }
    let short = driver.file(top, b"short", 2 * unit);
    let token = driver.start(&short);
    assert_eq!(driver.write_object(&short, token, &content(1, 2 * unit), 0), Ok(()));
    if !fixture.sizes_at_first() {
        assert_eq!(code_of(driver.seal(&short, token, None)), Code::HashMismatch, "an object is missing");
    }
}

fn resume(fixture: &dyn Fixture) {
    let bytes = content(3, 4 * OBJECT as usize + 100);
    let (driver, top) = session(fixture, FIRST);
    let large = driver.file(top, b"large", bytes.len());
    let token = driver.start(&large);
    assert_eq!(driver.write_object(&large, token, &bytes, 4), Ok(()));
    assert_eq!(driver.write_object(&large, token, &bytes, 1), Ok(()));
    assert_eq!(driver.sync(&[large.id]), []);
    let single = driver.file(top, b"single", 100);
    let single_token = driver.start(&single);
    assert_eq!(driver.write_object(&single, single_token, &bytes[..100], 0), Ok(()));
    assert_eq!(driver.seal(&single, single_token, None), Ok(root_of(&bytes[..100])));
    drop(driver);

    let (driver, top) = session(fixture, SECOND);
    let large = driver.file(top, b"large", bytes.len());
    assert_eq!(driver.prepare(&large, Some(token), true), Prepared::Resume(token));
    let single = driver.file(top, b"single", 100);
    assert_eq!(driver.prepare(&single, Some(single_token), true), Prepared::Resume(single_token));
    driver.end(top);
    for index in [0, 2, 3] {
        assert_eq!(driver.write_object(&large, token, &bytes, index), Ok(()));
    }
    assert_eq!(driver.sync(&[large.id, single.id]), []);
    assert_eq!(driver.seal(&large, token, None), Ok(root_of(&bytes)));
    assert_eq!(driver.seal(&single, single_token, None), Ok(root_of(&bytes[..100])));
    driver.settle(&[large.id, single.id]);
    assert_eq!(driver.finish(), []);
    assert_eq!(seen(fixture, "top/large"), Seen::file(&bytes));
    assert_eq!(seen(fixture, "top/single"), Seen::file(&bytes[..100]));
    assert_eq!(names(fixture, "top"), [&b"large"[..], b"single"], "nothing is left over");
}

fn resume_is_refused(fixture: &dyn Fixture) {
    let size = 2 * OBJECT as usize;
    fixture.plant(b"top", &Seen::directory());
    let tokens = TokenMaker::new(JOB, FIRST);
    let plant = |token, planted: &Seen| {
        fixture.plant(&[b"top/", TempName::contents(token).as_bytes()].concat(), planted);
        token
    };
    let unfinished = Seen { mode: 0o600, ..Seen::file(&vec![1; size]) };
    let doubtful = [
        tokens.make(),
        plant(TokenMaker::new(*b"other!", FIRST).make(), &unfinished),
        plant(tokens.make(), &Seen::symlink(b"/etc/passwd")),
        plant(tokens.make(), &Seen::directory()),
        plant(tokens.make(), &Seen::file(&vec![1; size + 1])),
        Token::NONE,
    ];
    let (driver, top) = session(fixture, SECOND);
    for (number, token) in doubtful.into_iter().enumerate() {
        let entry = driver.file(top, format!("{number}").as_bytes(), size);
        match driver.prepare(&entry, Some(token), true) {
            Prepared::Start(new) => assert!(new != token && new != Token::NONE),
            other => panic!("{number} must start again: {other:?}"),
        }
    }
    let good = plant(tokens.make(), &unfinished);
    let entry = driver.file(top, b"good", size);
    assert_eq!(driver.prepare(&entry, Some(good), true), Prepared::Resume(good));
    assert_eq!(driver.prepare(&entry, Some(good), true), Prepared::Resume(good), "it has it already");
}

/// What is complete under the name of the one could be written to as the other.
fn of_two_entries(fixture: &dyn Fixture) {
    let bytes = content(5, 2 * OBJECT as usize);
    let (driver, top) = session(fixture, FIRST);
    let first = driver.file(top, b"first", bytes.len());
    let token = driver.start(&first);
    driver.write_objects(&first, token, &bytes);
    let starts = |driver: &Driver, name: &str, token| {
        let entry = driver.file(top, name.as_bytes(), bytes.len());
        match driver.prepare(&entry, Some(token), true) {
            Prepared::Start(new) => assert_ne!(new, token),
            other => panic!("{name} must start anew: {other:?}"),
        }
    };
    starts(&driver, "second", token);
    driver.let_go(first.id, token, true);
    drop(driver);

    let (driver, top) = session(fixture, SECOND);
    let first = driver.file(top, b"first", bytes.len());
    assert_eq!(driver.prepare(&first, Some(token), true), Prepared::Resume(token));
    starts(&driver, "third", token);
    assert_eq!(driver.seal(&first, token, None), Ok(root_of(&bytes)));
    starts(&driver, "fourth", token);
    driver.settle(&[first.id]);
    starts(&driver, "fifth", token);
    assert_eq!(seen(fixture, "top/first"), Seen::file(&bytes));
}

fn skip_rules(fixture: &dyn Fixture) {
    fixture.plant(b"top", &Seen::directory());
    let there = Seen::file(b"same");
    for name in ["same", "mode", "mtime", "nanos", "size", "objects"] {
        fixture.plant(format!("top/{name}").as_bytes(), &there);
    }
    fixture.plant(b"top/link", &Seen::symlink(b"same"));
    let (driver, top) = session(fixture, FIRST);
    let same = driver.file(top, b"same", 4);
    assert_eq!(driver.prepare(&same, None, false), Prepared::Skip);
    let objects = driver.file(top, b"objects", 4);
    assert_eq!(driver.prepare(&objects, Some(Token([1; 16])), true), Prepared::Skip);
    let mut mode = driver.file(top, b"mode", 4);
    mode.attributes.mode = 0o4400;
    assert_eq!(driver.prepare(&mode, None, false), Prepared::Skip);
    assert_eq!(seen(fixture, "top/mode"), Seen { mode: 0o400, ..there.clone() }, "the attributes were set");
    for (name, seconds, nanos) in [(&b"mtime"[..], 1, 0), (b"nanos", 0, 1)] {
        let mut entry = driver.file(top, name, 4);
        entry.attributes.mtime.seconds += seconds;
        entry.attributes.mtime.nanos += nanos;
        assert_eq!(driver.prepare(&entry, None, false), Prepared::Start(Token::NONE), "{name:?}");
    }
    let size = driver.file(top, b"size", 5);
    assert_eq!(driver.prepare(&size, None, false), Prepared::Start(Token::NONE));
    let link = driver.file(top, b"link", 4);
    assert_eq!(driver.prepare(&link, None, false), Prepared::Start(Token::NONE), "a link is never followed");
    let new = driver.file(top, b"new", 4);
    assert_eq!(driver.prepare(&new, None, false), Prepared::Start(Token::NONE));
    assert_eq!(names(fixture, "top").len(), 7, "looking leaves nothing behind");
    driver.put_member(top, b"link", b"file");
    assert_eq!(seen(fixture, "top/link"), Seen::file(b"file"));
    assert_eq!(seen(fixture, "top/same"), there);
}

fn in_the_way(fixture: &dyn Fixture) {
    for name in ["top", "outside", "top/directory"] {
        fixture.plant(name.as_bytes(), &Seen::directory());
    }
    fixture.plant(b"top/file", &Seen::file(b"file"));
    fixture.plant(b"top/link", &Seen::symlink(b"../outside"));
    let (driver, top) = session(fixture, FIRST);
    for name in [&b"file"[..], b"link"] {
        let entry = driver.entry(top, name, Kind::Directory);
        let answer = driver.prepare(&entry, None, false);
        assert!(matches!(answer, Prepared::Fail(Failure { code: Code::SinkNotDirectory, .. })), "{answer:?}");
        let below = driver.file(entry.id, b"below", 1);
        assert_eq!(driver.prepare(&below, None, true), failed(Code::SinkParentFailed));
        assert_eq!(driver.write_members(&[(&below, b"x")]), [Err(Code::SinkParentFailed.into())]);
    }
    let file = driver.file(top, b"directory", 1);
    assert_eq!(driver.prepare(&file, None, false), failed(Code::SinkIsDirectory));
    let link = driver.symlink(top, b"directory", b"x");
    assert_eq!(driver.prepare(&link, None, false), failed(Code::SinkIsDirectory));
    // It appeared only after the sink had looked.
    assert_eq!(driver.refused_name(&file, b"x"), Code::SinkIsDirectory);
    driver.discard(file.id, Token::NONE);
    assert_eq!(names(fixture, "top"), [&b"directory"[..], b"file", b"link"]);
    assert_eq!(names(fixture, "outside"), Vec::<Vec<u8>>::new());
    assert_eq!(seen(fixture, "top/file"), Seen::file(b"file"));
}

fn symlinks(fixture: &dyn Fixture) {
    fixture.plant(b"top", &Seen::directory());
    let old = Timestamp { seconds: 5, nanos: 6 };
    fixture.plant(b"top/same", &Seen { mtime: old, ..Seen::symlink(b"target") });
    fixture.plant(b"top/other", &Seen::symlink(b"elsewhere"));
    fixture.plant(b"top/file", &Seen::file(b"content"));
    let (driver, top) = session(fixture, FIRST);
    let same = driver.symlink(top, b"same", b"target");
    assert_eq!(driver.prepare(&same, None, false), Prepared::Skip);
    let mut made = Vec::new();
    for name in [&b"other"[..], b"file", b"new"] {
        let link = driver.symlink(top, name, b"target");
        assert_eq!(driver.prepare(&link, None, false), Prepared::Made);
        made.push(link.id);
    }
    assert_eq!(driver.sync_names(&made), []);
    for name in ["same", "other", "file", "new"] {
        let link = seen(fixture, &format!("top/{name}"));
        assert_eq!((link.kind, link.mtime, &*link.bytes), (Kind::Symlink, TIME, &b"target"[..]), "{name}");
    }
    assert_eq!(names(fixture, "top").len(), 4, "nothing is left over");
}

fn sweep(fixture: &dyn Fixture) {
    for name in [&b"top"[..], b"top/below"] {
        fixture.plant(name, &Seen::directory());
    }
    let (earlier, other) = (TokenMaker::new(JOB, FIRST), TokenMaker::new(*b"other!", FIRST));
    // A file has its whole length from its first object on.
    let unfinished = Seen { mode: 0o600, ..Seen::file(&vec![0; 4 * OBJECT as usize]) };
    let plant = |directory: &[u8], token| {
        for name in [TempName::contents(token), TempName::sums(token)] {
            fixture.plant(&[directory, name.as_bytes()].concat(), &unfinished);
        }
        token
    };
    let resumed = plant(b"top/", earlier.make());
    for directory in [&b"top/"[..], b"top/below/"] {
        plant(directory, earlier.make());
        plant(directory, other.make());
    }
    fixture.plant(b"top/.haul-notes", &Seen::file(b"mine"));
    let (driver, top) = session(fixture, SECOND);
    let below = driver.directory(top, b"below");
    let going_on = driver.file(top, b"going on", 4 * OBJECT as usize);
    assert_eq!(driver.prepare(&going_on, Some(resumed), true), Prepared::Resume(resumed));
    let writing = driver.file(top, b"writing", 4);
    let token = driver.start(&writing);
    assert_eq!(driver.write_object(&writing, token, b"data", 0), Ok(()));
    let member = driver.file(top, b"member", 4);
    assert_eq!(driver.write_members(&[(&member, b"data")]), [Ok(())]);
    driver.end(top);
    assert_eq!(names(fixture, "top/below").len(), 4, "its own end has not come");
    driver.end(below);
    assert_eq!(names(fixture, "top/below").len(), 2, "the other job's file and hashes");
    // below, notes, 2 going on, 2 of the other job, 1 writing; the member, where it has a name before its last.
    assert!((7..=8).contains(&names(fixture, "top").len()), "{:?}", names(fixture, "top"));
    assert_eq!(driver.seal(&writing, token, None), Ok(root_of(b"data")));
    driver.settle(&[writing.id, member.id]);
}

fn no_early_names(fixture: &dyn Fixture) {
    fixture.plant(b"top", &Seen::directory());
    fixture.plant(b"top/large", &Seen::file(b"the old one"));
    let bytes = content(4, 2 * OBJECT as usize);
    let (driver, top) = session(fixture, FIRST);
    let large = driver.file(top, b"large", bytes.len());
    let token = driver.start(&large);
    let temporary = [b"top/", TempName::contents(token).as_bytes()].concat();
    driver.write_objects(&large, token, &bytes);
    assert_eq!(fixture.look(&temporary).map(|seen| seen.mode), Some(0o600), "nobody else may read it yet");
    assert_eq!(driver.sync(&[large.id]), []);
    assert_eq!(driver.publish(&[large.id]), [(large.id, Code::Internal.into())]);
    assert_eq!(driver.seal(&large, token, None), Ok(root_of(&bytes)));
    assert_eq!(driver.sync(&[large.id]), []);
    assert_eq!(seen(fixture, "top/large"), Seen::file(b"the old one"));
    assert_eq!(driver.publish(&[large.id]), []);
    assert_eq!(seen(fixture, "top/large"), Seen::file(&bytes));
    assert_eq!(driver.sync_names(&[large.id]), []);
    assert_eq!(names(fixture, "top"), [b"large"]);
}

fn discard(fixture: &dyn Fixture) {
    let bytes = content(5, 2 * OBJECT as usize);
    let (driver, top) = session(fixture, FIRST);
    let (large, small) = (driver.file(top, b"large", bytes.len()), driver.file(top, b"small", 1));
    let token = driver.start(&large);
    assert_eq!(driver.write_object(&large, token, &bytes, 0), Ok(()));
    assert_eq!(driver.sync(&[large.id]), []);
    assert_eq!(driver.write_members(&[(&small, b"x")]), [Ok(())]);
    let there = names(fixture, "top");
    // The small one where it has a name before its last.
    assert!((2..=3).contains(&there.len()), "two files and one table of hashes: {there:?}");
    driver.discard(large.id, Token([3; 16]));
    assert_eq!(names(fixture, "top"), there, "that was another version of it");
    driver.discard(large.id, token);
    driver.discard(small.id, Token::NONE);
    // Where the small one was complete when it was written there was nothing to drop.
    let complete: Vec<_> = driver.is_named(small.id).then(|| b"small".to_vec()).into_iter().collect();
    assert_eq!(names(fixture, "top"), complete);
    let again = driver.start(&large);
    assert_ne!(again, token);
    driver.write_objects(&large, again, &bytes);
    // Prepared anew: what it had goes.
    let third = driver.start(&large);
    assert_eq!(names(fixture, "top").len(), usize::from(fixture.sizes_at_once()) + complete.len());
    driver.write_objects(&large, third, &bytes);
    assert_eq!(driver.seal(&large, third, None), Ok(root_of(&bytes)));
    driver.settle(&[large.id]);
    assert_eq!(names(fixture, "top"), [vec![b"large".to_vec()], complete].concat());
}

fn let_go(fixture: &dyn Fixture) {
    let bytes = content(5, 2 * OBJECT as usize);
    let (token, complete) = {
        let (driver, top) = session(fixture, FIRST);
        let (large, small) = (driver.file(top, b"large", bytes.len()), driver.file(top, b"small", 1));
        let token = driver.start(&large);
        assert_eq!(driver.write_object(&large, token, &bytes, 0), Ok(()));
        assert_eq!(driver.sync(&[large.id]), []);
        let held = names(fixture, "top");
        assert_eq!(driver.write_members(&[(&small, b"x")]), [Ok(())]);
        driver.let_go(large.id, token, true);
        driver.let_go(small.id, Token::NONE, true);
        let complete = driver.is_named(small.id).then(|| b"small".to_vec());
        let held: Vec<_> = held.into_iter().chain(complete.clone()).collect();
        assert_eq!(names(fixture, "top"), held, "of a small file nothing can be resumed");
        assert_eq!(driver.finish(), []);
        (token, complete)
    };
    let (driver, top) = session(fixture, SECOND);
    let large = driver.file(top, b"large", bytes.len());
    assert_eq!(driver.prepare(&large, Some(token), true), Prepared::Resume(token));
    assert_eq!(driver.write_object(&large, token, &bytes, 1), Ok(()));
    assert_eq!(driver.seal(&large, token, None), Ok(root_of(&bytes)));
    driver.settle(&[large.id]);
    let expected: Vec<_> = [b"large".to_vec()].into_iter().chain(complete).collect();
    assert_eq!(names(fixture, "top"), expected);
}

fn idempotence(fixture: &dyn Fixture) {
    let bytes = content(6, 2 * OBJECT as usize + 1);
    let (driver, top) = session(fixture, FIRST);
    let below = driver.entry(top, b"below", Kind::Directory);
    assert_eq!(driver.prepare(&below, None, false), Prepared::Made);
    assert_eq!(driver.prepare(&below, None, false), Prepared::Made);
    let mut moved = below.clone();
    moved.name = b"elsewhere"[..].into();
    assert_eq!(driver.prepare(&moved, None, false), failed(Code::Protocol), "an id means one directory");
    let twin = driver.entry(top, b"below", Kind::Directory);
    assert_eq!(driver.prepare(&twin, None, false), failed(Code::NameTaken), "two entries of one name");
    let large = driver.file(below.id, b"large", bytes.len());
    let token = driver.start(&large);
    for index in [0, 0, 2, 1, 1, 2] {
        assert_eq!(driver.write_object(&large, token, &bytes, index), Ok(()));
    }
    assert_eq!(driver.sync(&[large.id]), []);
    assert_eq!(driver.sync(&[large.id]), []);
    assert_eq!(driver.seal(&large, token, None), Ok(root_of(&bytes)));
    assert_eq!(driver.seal(&large, token, Some(root_of(&bytes))), Ok(root_of(&bytes)));
    assert_eq!(driver.write_object(&large, token, &bytes, 1), Ok(()), "a late copy");
    let small = driver.file(below.id, b"small", 3);
    assert_eq!(driver.write_members(&[(&small, b"one")]), [Ok(())]);
    let is_named = driver.is_named(small.id);
    if !is_named {
        assert_eq!(driver.write_members(&[(&small, b"two")]), [Ok(())]);
    }
    let both = [large.id, small.id];
    assert_eq!(driver.sync(&both), []);
    assert_eq!(driver.publish(&both), []);
    assert_eq!(driver.publish(&both), []);
    assert_eq!(driver.sync_names(&both), []);
    let other = driver.file(below.id, b"small", 3);
    assert_eq!(driver.refused_name(&other, b"bad"), Code::NameTaken, "a second of its name");
    driver.discard(other.id, Token::NONE);
    assert_eq!(driver.finish(), []);
    assert_eq!(seen(fixture, "top/below/large"), Seen::file(&bytes), "the late copy changed no time");
    assert_eq!(seen(fixture, "top/below/small"), Seen::file(if is_named { b"one" } else { b"two" }));
    assert_eq!(names(fixture, "top/below"), [&b"large"[..], b"small"]);
}

fn merge(fixture: &dyn Fixture) {
    let old = Timestamp { seconds: 77, nanos: 0 };
    fixture.plant(b"top", &Seen { mode: 0o500, mtime: old, ..Seen::directory() });
    fixture.plant(b"top/kept", &Seen::file(b"kept"));
    let (driver, top) = session(fixture, FIRST);
    driver.put_member(top, b"new", b"new");
    assert_ne!(seen(fixture, "top").mtime, TIME, "its own attributes come at the end");
    assert_eq!(driver.finish(), []);
    assert_eq!(seen(fixture, "top"), Seen::directory());
    assert_eq!(seen(fixture, "top/kept"), Seen::file(b"kept"));
    assert_eq!(names(fixture, "top"), [&b"kept"[..], b"new"]);
}

fn contents(fixture: &dyn Fixture) {
    let sources = [SourceName::Contents, SourceName::Named(b"file".to_vec())];
    let driver = Driver::new(fixture.open(FIRST, &sources));
    let top = driver.directory(EntryId::root(0), b"");
    driver.put_objects(top, b"from contents", b"1");
    let file = driver.file(EntryId::root(1), b"", 1);
    let token = driver.start(&file);
    assert_eq!(driver.write_object(&file, token, b"2", 0), Ok(()));
    assert_eq!(driver.seal(&file, token, None), Ok(root_of(b"2")));
    driver.settle(&[file.id]);
    let wrong = driver.file(EntryId::root(0), b"", 1);
    assert_eq!(driver.prepare(&wrong, None, true), failed(Code::SinkIsDirectory));
    assert_eq!(driver.finish(), []);
    assert_eq!(names(fixture, ""), [&b"file"[..], b"from contents"]);
    assert_eq!(seen(fixture, "file"), Seen::file(b"2"));
}
