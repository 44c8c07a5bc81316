//! What only a real file system shows: modes and owners, the destination as typed, damage between sessions.

mod sink_support;

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use haul_model::op::Prepared;
use haul_model::{Attributes, Code, EntryId, Failure, Hash, Kind, Timestamp};
use haul_storage::conformance_sink::{Driver, OBJECT, Seen, TIME, content};
use haul_storage::sink::{Decision, Destination, PosixSink, SinkRoot, SourceName, SyncMode, decide, probe};
use haul_testkit::lacks;
use sink_support::{Scratch, as_user, look, names, plant};

const ONE: [u8; 4] = *b"one.";
const TWO: [u8; 4] = *b"two.";

fn root_of(bytes: &[u8]) -> Hash {
    Hash(*blake3::hash(bytes).as_bytes())
}

fn named(names: &[&str]) -> Vec<SourceName> {
    names.iter().map(|name| SourceName::Named(name.as_bytes().to_vec())).collect()
}

#[test]
fn the_destination_is_probed_and_decided_as_cp_does() {
    let scratch = Scratch::new(SyncMode::Measured);
    let at = |name: &str| scratch.destination.join(name);
    plant(&at("directory"), &Seen::directory());
    plant(&at("file"), &Seen::file(b"x"));
    symlink("directory", at("to-directory")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    let one = named(&["a"]);
    let two = named(&["a", "b"]);
    let ways = [
        ("directory", Destination::Directory, Ok(Decision::Into), Ok(Decision::Into)),
        ("directory/", Destination::Directory, Ok(Decision::Into), Ok(Decision::Into)),
        ("directory/.", Destination::Directory, Ok(Decision::Into), Ok(Decision::Into)),
        ("directory/..", Destination::Directory, Ok(Decision::Into), Ok(Decision::Into)),
        ("to-directory", Destination::Directory, Ok(Decision::Into), Ok(Decision::Into)),
        ("file", Destination::Other, Ok(Decision::As), Err(Code::SinkNotDirectory)),
        ("dangling", Destination::Other, Ok(Decision::As), Err(Code::SinkNotDirectory)),
        ("new", Destination::Absent, Ok(Decision::As), Err(Code::SinkMissing)),
        ("new/", Destination::Absent, Ok(Decision::As), Err(Code::SinkMissing)),
        ("to-directory/new", Destination::Absent, Ok(Decision::As), Err(Code::SinkMissing)),
    ];
    for (name, there, for_one, for_two) in ways {
        let path = at(name);
        assert_eq!(probe(&path), Ok(there), "{name}");
        let decided = |sources| decide(&path, there, sources).map_err(|error| error.failure.code);
        assert_eq!((decided(&one), decided(&two)), (for_one, for_two), "{name}");
    }
    for (name, code, path) in [
        ("missing/new", Code::SinkMissing, "missing/"),
        ("missing/new/", Code::SinkMissing, "missing/"),
        ("file/new", Code::SinkNotDirectory, "file/new"),
        ("file/", Code::SinkNotDirectory, "file/"),
        ("dangling/new", Code::SinkMissing, "dangling/"),
    ] {
        let error = probe(&at(name)).unwrap_err();
        assert_eq!((error.failure.code, error.path), (code, at(path)), "{name}");
    }
    assert_eq!(probe(Path::new("")).unwrap_err().failure.code, Code::SinkMissing);
}

#[test]
fn a_link_to_what_a_process_has_open_is_not_replaced() {
    let scratch = Scratch::new(SyncMode::Measured);
    let at = |name: &str| scratch.destination.join(name);
    plant(&at("file"), &Seen::file(b"x"));
    let open = fs::File::open(at("file")).unwrap();
    symlink(format!("/proc/self/fd/{}", open.as_raw_fd()), at("descriptor")).unwrap();
    symlink("descriptor", at("like-dev-stdout")).unwrap();
    for name in ["descriptor", "like-dev-stdout"] {
        assert_eq!(probe(&at(name)).unwrap_err().failure.code, Code::SinkSpecial, "{name}");
    }
    symlink("file", at("to-file")).unwrap();
    assert_eq!(probe(&at("to-file")), Ok(Destination::Other));
}

#[test]
fn sources_that_would_overwrite_each_other_or_escape_do_not_open() {
    let scratch = Scratch::new(SyncMode::Measured);
    let open = |sources: &[SourceName], decision| {
        let opened = SinkRoot::open(&scratch.destination, decision, sources);
        opened.map(|_| ()).map_err(|error| error.failure.code)
    };
    assert_eq!(open(&named(&["a", "b"]), Decision::Into), Ok(()));
    assert_eq!(open(&named(&["a", "b", "a"]), Decision::Into), Err(Code::Usage));
    assert_eq!(open(&named(&["a", "b"]), Decision::As), Err(Code::Usage));
    assert_eq!(open(&[], Decision::Into), Err(Code::Usage));
    for bad in ["", "..", ".", "a/b"] {
        assert_eq!(open(&named(&[bad]), Decision::Into), Err(Code::Confinement), "{bad:?}");
    }
    let reserved = ".haul-00112233445566778899aabbccddeeff";
    assert_eq!(open(&named(&[reserved]), Decision::Into), Err(Code::NameInvalid));
}

fn open_as(scratch: &Scratch, destination: &str) -> Driver {
    let destination = PathBuf::from(destination);
    let root = SinkRoot::open(&destination, Decision::As, &named(&["source"])).unwrap();
    Driver::new(Box::new(PosixSink::open(root, scratch.settings(ONE)).unwrap()))
}

#[test]
fn a_source_can_become_the_destination() {
    let scratch = Scratch::new(SyncMode::EachFile);
    let path = scratch.destination.to_str().unwrap();
    let driver = open_as(&scratch, &format!("{path}/new name"));
    let top = driver.directory(EntryId::root(0), b"");
    driver.put_member(top, b"file", b"x");
    assert_eq!(driver.finish(), []);
    assert_eq!(look(&scratch.path(b"new name/file")), Some(Seen::file(b"x")));

    let driver = open_as(&scratch, &format!("{path}/file"));
    let file = driver.file(EntryId::root(0), b"", 1);
    assert_eq!(driver.write_members(&[(&file, b"1")]), [Ok(())]);
    driver.settle(&[file.id]);
    assert_eq!(look(&scratch.path(b"file")), Some(Seen::file(b"1")));

    let driver = open_as(&scratch, &format!("{path}/only a directory/"));
    let file = driver.file(EntryId::root(0), b"", 1);
    assert_eq!(driver.prepare(&file, None, false), Prepared::Fail(Code::SinkNotDirectory.into()));
    driver.directory(EntryId::root(0), b"");
    assert!(scratch.path(b"only a directory").is_dir());
}

#[test]
fn reports_name_paths_below_the_destination() {
    let scratch = Scratch::new(SyncMode::EachFile);
    let failed_paths = |driver: Driver, at: &str| {
        let top = driver.directory(EntryId::root(0), b"");
        let middle = driver.directory(top, b"middle");
        driver.directory(middle, b"gone");
        fs::remove_dir(scratch.destination.join(at).join("middle/gone")).unwrap();
        driver
            .finish()
            .into_iter()
            .map(|(path, _)| String::from_utf8(path.into()).unwrap())
            .collect::<Vec<_>>()
    };
    let (sources, merged) = (named(&["into"]), [SourceName::Contents]);
    let driver = Driver::new(Box::new(scratch.posix(ONE, &sources, None)));
    assert_eq!(failed_paths(driver, "into"), ["into/middle/gone"]);
    let driver = Driver::new(Box::new(scratch.posix(ONE, &merged, None)));
    assert_eq!(failed_paths(driver, "."), ["middle/gone"]);
    let driver = open_as(&scratch, scratch.destination.join("as").to_str().unwrap());
    assert_eq!(failed_paths(driver, "as"), ["as/middle/gone"]);
}

#[test]
fn an_ordinary_user_can_write_into_read_only_directories_of_his_own() {
    for mode in [SyncMode::Measured, SyncMode::EachFile] {
        let scratch = Scratch::new(mode);
        as_user(&scratch, || {
            plant(&scratch.path(b"top"), &Seen::directory());
            for (name, mode) in [("readable", 0o555), ("closed", 0o000), ("searchable", 0o111)] {
                plant(&scratch.path(b"top").join(name), &Seen { mode, ..Seen::directory() });
            }
            let (driver, top) = scratch.session(ONE);
            for name in [&b"readable"[..], b"closed", b"searchable", b"new"] {
                let mut entry = driver.entry(top, name, Kind::Directory);
                entry.attributes.mode = 0o500;
                assert_eq!(driver.prepare(&entry, None, false), Prepared::Made, "{name:?}");
                driver.put_member(entry.id, b"member", b"x");
                driver.put_objects(entry.id, b"objects", &content(1, 2 * OBJECT as usize));
                let below = driver.directory(entry.id, b"below");
                driver.put_member(below, b"file", b"x");
            }
            assert_eq!(driver.finish(), []);
            for name in ["readable", "closed", "searchable", "new"] {
                let path = scratch.path(b"top").join(name);
                assert_eq!(look(&path).unwrap(), Seen { mode: 0o500, ..Seen::directory() });
                assert_eq!(names(&path).len(), 3);
                // So that the scratch directory can be removed.
                fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            }
        });
    }
}

/// A home directory that everybody may write to locks its owner out of ssh, and a /tmp that nobody else may is none.
#[test]
fn where_contents_go_into_dest_it_stays_as_it_was() {
    let scratch = Scratch::new(SyncMode::EachFile);
    let mine = Seen { mode: 0o710, ..Seen::directory() };
    fs::set_permissions(&scratch.destination, fs::Permissions::from_mode(mine.mode)).unwrap();
    plant(&scratch.path(b"met"), &mine);
    let driver = Driver::new(Box::new(scratch.posix(ONE, &[SourceName::Contents], None)));
    let mut top = driver.entry(EntryId::root(0), b"", Kind::Directory);
    top.attributes.mode = 0o777;
    assert_eq!(driver.prepare(&top, None, false), Prepared::Made);
    driver.put_member(top.id, b"member", b"x");
    driver.directory(top.id, b"met");
    assert_eq!(driver.finish(), []);
    let there = look(&scratch.destination).unwrap();
    assert_eq!((there.mode, there.mtime == TIME), (mine.mode, false));
    assert_eq!(look(&scratch.path(b"met")).unwrap(), Seen::directory());
    assert_eq!(names(&scratch.destination).len(), 2);
}

#[test]
fn a_dest_of_ones_own_that_is_read_only_is_so_again_at_the_end() {
    let scratch = Scratch::new(SyncMode::EachFile);
    as_user(&scratch, || {
        let mode = |mode| {
            fs::set_permissions(&scratch.destination, fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(0o555);
        let contents = [SourceName::Contents, SourceName::Contents];
        let driver = Driver::new(Box::new(scratch.posix(ONE, &contents, None)));
        for root in 0..2 {
            let top = driver.directory(EntryId::root(root), b"");
            driver.put_member(top, format!("of {root}").as_bytes(), b"x");
        }
        assert_eq!(driver.finish(), []);
        assert_eq!(look(&scratch.destination).unwrap().mode, 0o555);
        mode(0o755);
        assert_eq!(names(&scratch.destination).len(), 2);
    });
}

#[test]
fn a_directory_of_somebody_else_keeps_its_attributes_and_gets_its_files() {
    if !rustix::process::geteuid().is_root() {
        return lacks("root");
    }
    let scratch = Scratch::new(SyncMode::EachFile);
    plant(&scratch.path(b"top"), &Seen::directory());
    let shared = Seen { mode: 0o777, ..Seen::directory() };
    for owner in [0, 65_534] {
        let name = format!("of {owner}");
        plant(&scratch.path(b"top").join(&name), &shared);
        chown(scratch.path(b"top").join(&name), Some(owner), None).unwrap();
    }
    chown(scratch.path(b"top"), Some(65_534), None).unwrap();
    as_user(&scratch, || {
        let (driver, top) = scratch.session(ONE);
        for owner in [0, 65_534] {
            let directory = driver.directory(top, format!("of {owner}").as_bytes());
            driver.put_member(directory, b"member", b"x");
        }
        assert_eq!(driver.finish(), []);
    });
    for (owner, mode) in [(0, 0o777), (65_534, 0o755)] {
        let path = scratch.path(b"top").join(format!("of {owner}"));
        assert_eq!(look(&path).unwrap().mode, mode, "{owner}");
        assert_eq!(names(&path).len(), 1, "{owner}");
    }
}

#[test]
fn a_directory_of_somebody_else_in_which_nothing_is_done_keeps_its_times() {
    if !rustix::process::geteuid().is_root() {
        return lacks("root");
    }
    let scratch = Scratch::new(SyncMode::EachFile);
    let shared = Seen { mode: 0o777, ..Seen::directory() };
    plant(&scratch.path(b"top"), &shared);
    let before = look(&scratch.path(b"top")).unwrap();
    as_user(&scratch, || {
        let (driver, _) = scratch.session(ONE);
        assert_eq!(driver.finish(), []);
    });
    let after = look(&scratch.path(b"top")).unwrap();
    assert_eq!((after.mode, after.mtime), (0o777, before.mtime));
}

#[test]
fn an_ordinary_user_is_told_where_he_may_not_write() {
    let scratch = Scratch::new(SyncMode::EachFile);
    if !rustix::process::geteuid().is_root() {
        return lacks("root");
    }
    plant(&scratch.path(b"top"), &Seen::directory());
    plant(&scratch.path(b"top/foreign"), &Seen::directory());
    plant(&scratch.path(b"top/foreign/file"), &Seen::file(b"x"));
    plant(&scratch.path(b"top/hidden"), &Seen { mode: 0o700, ..Seen::directory() });
    chown(scratch.path(b"top"), Some(65_534), Some(65_534)).unwrap();
    as_user(&scratch, || {
        let (driver, top) = scratch.session(ONE);
        let foreign = driver.directory(top, b"foreign");
        let code = |answer| match answer {
            Prepared::Fail(failure) => failure.code,
            other => panic!("{other:?}"),
        };
        let below = driver.entry(foreign, b"below", Kind::Directory);
        assert_eq!(code(driver.prepare(&below, None, false)), Code::SinkPermission);
        let hidden = driver.entry(top, b"hidden", Kind::Directory);
        assert_eq!(code(driver.prepare(&hidden, None, false)), Code::SinkPermission);
        let mut file = driver.file(foreign, b"file", 1);
        file.attributes.mode = 0o600;
        assert_eq!(code(driver.prepare(&file, None, false)), Code::SinkAttributes, "complete, but not his");
        let results = driver.write_members(&[(&file, b"x")]);
        assert_eq!(results[0].unwrap_err().code, Code::SinkPermission);
        let mut changed = driver.entry(top, b"foreign", Kind::Directory);
        changed.attributes.mode = 0o700;
        assert_eq!(driver.prepare(&changed, None, false), Prepared::Made);
        // Its files are named; what it looks like is its owner's.
        assert_eq!(driver.finish(), []);
        assert_eq!(look(&scratch.path(b"top/foreign")).unwrap().mode, 0o755);
    });
}

#[test]
fn a_sealed_read_only_file_goes_on_for_an_ordinary_user() {
    let scratch = Scratch::new(SyncMode::EachFile);
    let bytes = content(1, 2 * OBJECT as usize + 1);
    as_user(&scratch, || {
        let read_only = |driver: &Driver, top| {
            let mut file = driver.file(top, b"large", bytes.len());
            file.attributes.mode = 0o000;
            file
        };
        let (driver, top) = scratch.session(ONE);
        let file = read_only(&driver, top);
        let token = driver.start(&file);
        driver.write_objects(&file, token, &bytes);
        assert_eq!(driver.seal(&file, token, None), Ok(root_of(&bytes)));
        assert_eq!(driver.sync(&[file.id]), []);
        drop(driver);
        let (driver, top) = scratch.session(TWO);
        let file = read_only(&driver, top);
        assert_eq!(driver.prepare(&file, Some(token), true), Prepared::Resume(token));
        assert_eq!(driver.seal(&file, token, None), Ok(root_of(&bytes)));
        driver.settle(&[file.id]);
        assert_eq!(fs::metadata(scratch.path(b"top/large")).unwrap().mode() & 0o7777, 0);
        // Complete, though it cannot even be opened.
        let (driver, top) = scratch.session(*b"thr.");
        let mut file = read_only(&driver, top);
        assert_eq!(driver.prepare(&file, None, true), Prepared::Skip);
        file.attributes.mode = 0o640;
        assert_eq!(driver.prepare(&file, None, true), Prepared::Skip);
        assert_eq!(look(&scratch.path(b"top/large")), Some(Seen { mode: 0o640, ..Seen::file(&bytes) }));
    });
}

#[test]
fn owners_are_preserved_only_when_asked() {
    if !rustix::process::geteuid().is_root() {
        return lacks("root");
    }
    for preserve_owner in [false, true] {
        let scratch = Scratch::new(SyncMode::EachFile);
        plant(&scratch.path(b"top"), &Seen::directory());
        plant(&scratch.path(b"top/there"), &Seen::file(b"same"));
        let mut settings = scratch.settings(ONE);
        settings.preserve_owner = preserve_owner;
        let (driver, top) = scratch.session_with(settings);
        let owned = |mut entry: haul_model::Entry| {
            entry.attributes = Attributes { mode: 0o6755, uid: 1234, gid: 5678, ..entry.attributes };
            entry
        };
        let directory = owned(driver.entry(top, b"directory", Kind::Directory));
        assert_eq!(driver.prepare(&directory, None, false), Prepared::Made);
        let link = owned(driver.symlink(top, b"link", b"x"));
        assert_eq!(driver.prepare(&link, None, false), Prepared::Made);
        let there = owned(driver.file(top, b"there", 4));
        assert_eq!(driver.prepare(&there, None, false), Prepared::Skip);
        let member = owned(driver.file(top, b"member", 1));
        assert_eq!(driver.write_members(&[(&member, b"x")]), [Ok(())]);
        let large = owned(driver.file(top, b"large", 2));
        let token = driver.start(&large);
        assert_eq!(driver.write_object(&large, token, b"ab", 0), Ok(()));
        assert_eq!(driver.seal(&large, token, None), Ok(root_of(b"ab")));
        driver.settle(&[member.id, large.id]);
        assert_eq!(driver.finish(), []);
        let expected = if preserve_owner { (1234, 5678) } else { (0, 0) };
        for name in ["directory", "link", "there", "member", "large"] {
            let found = fs::symlink_metadata(scratch.path(b"top").join(name)).unwrap();
            assert_eq!((found.uid(), found.gid()), expected, "{name}");
            assert_eq!(found.mode() & 0o6000, 0, "{name}: never setuid or setgid");
        }
    }
}

#[test]
fn a_setgid_directory_of_the_sink_stays_one() {
    let scratch = Scratch::new(SyncMode::EachFile);
    plant(&scratch.path(b"top"), &Seen { mode: 0o2775, ..Seen::directory() });
    let (driver, top) = scratch.session(ONE);
    driver.directory(top, b"below");
    assert_eq!(driver.finish(), []);
    assert_eq!(look(&scratch.path(b"top")).unwrap().mode, 0o2755);
    assert_eq!(look(&scratch.path(b"top/below")).unwrap().mode, 0o2755, "inherited at the sink");
}

#[test]
fn damaged_or_lost_hashes_are_computed_again_from_the_file() {
    let bytes = content(7, 5 * OBJECT as usize - 3);
    type Damage = fn(&Path);
    let damages: [(&str, u64, Damage); 6] = [
        ("nothing", 0, |_| ()),
        ("one bit", 1, |table| {
            let file = fs::File::options().write(true).read(true).open(table).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, 95).unwrap();
            file.write_all_at(&[byte[0] ^ 4], 95).unwrap();
        }),
        // With what says whose it is.
        ("torn at the end", 5, |table| {
            fs::File::options().write(true).open(table).unwrap().set_len(3 * 40 + 17).unwrap();
        }),
        ("zeros", 5, |table| fs::write(table, [0; 200]).unwrap()),
        ("moved by one entry", 5, |table| {
            let old = fs::read(table).unwrap();
            fs::write(table, [&old[40..], &old[..40]].concat()).unwrap();
        }),
        ("lost", 5, |table| fs::remove_file(table).unwrap()),
    ];
    for (what, reread, damage) in damages {
        let scratch = Scratch::new(SyncMode::EachFile);
        let (driver, top) = scratch.session(ONE);
        let file = driver.file(top, b"large", bytes.len());
        let token = driver.start(&file);
        driver.write_in_parts(&file, token, &bytes);
        drop(driver);
        damage(&scratch.path(format!("top/.haul-{token}.sums").as_bytes()));
        let sink = std::sync::Arc::new(scratch.posix(TWO, &named(&["top"]), None));
        let driver = Driver::new(Box::new(Shared(sink.clone())));
        let top = driver.directory(EntryId::root(0), b"");
        let file = driver.file(top, b"large", bytes.len());
        assert_eq!(driver.prepare(&file, Some(token), true), Prepared::Resume(token));
        assert_eq!(driver.seal(&file, token, None), Ok(root_of(&bytes)), "{what}");
        assert_eq!(sink.objects_reread(), reread, "{what}");
        driver.settle(&[file.id]);
        assert_eq!(names(&scratch.path(b"top")), [b"large".to_vec()].into());
    }
}

#[test]
fn a_file_that_is_whole_before_anything_is_synced_needs_no_table() {
    let bytes = content(7, 3 * OBJECT as usize);
    for lost in [false, true] {
        let scratch = Scratch::new(SyncMode::EachFile);
        let (driver, top) = scratch.session(ONE);
        let file = driver.file(top, b"large", bytes.len());
        let token = driver.start(&file);
        driver.write_objects(&file, token, &bytes);
        assert_eq!(driver.sync(&[file.id]), []);
        assert_eq!(names(&scratch.path(b"top")).len(), 1, "only its contents");
        if !lost {
            assert_eq!(driver.seal(&file, token, None), Ok(root_of(&bytes)));
            driver.settle(&[file.id]);
            continue;
        }
        // What another session does not know it reads.
        drop(driver);
        let sink = std::sync::Arc::new(scratch.posix(TWO, &named(&["top"]), None));
        let driver = Driver::new(Box::new(Shared(sink.clone())));
        let top = driver.directory(EntryId::root(0), b"");
        let file = driver.file(top, b"large", bytes.len());
        assert_eq!(driver.prepare(&file, Some(token), true), Prepared::Resume(token));
        assert_eq!(driver.seal(&file, token, None), Ok(root_of(&bytes)));
        assert_eq!(sink.objects_reread(), 3);
        driver.settle(&[file.id]);
        assert_eq!(names(&scratch.path(b"top")), [b"large".to_vec()].into());
    }
}

/// A source may send an object once more with other bytes, and end before they are synced: nothing that is said of the file
/// later is of what was there before.
#[test]
fn the_hash_of_an_object_that_was_written_over_is_of_what_is_there() {
    let [bytes, others] = [7, 8].map(|seed| content(seed, 3 * OBJECT as usize));
    let mixed = [
        &bytes[..OBJECT as usize],
        &others[OBJECT as usize..][..OBJECT as usize],
        &bytes[2 * OBJECT as usize..],
    ]
    .concat();
    let scratch = Scratch::new(SyncMode::EachFile);
    let (driver, top) = scratch.session(ONE);
    let file = driver.file(top, b"large", bytes.len());
    let token = driver.start(&file);
    driver.write_in_parts(&file, token, &bytes);
    assert_eq!(driver.write_object(&file, token, &others, 1), Ok(()));
    drop(driver);
    for (session, again) in [(TWO, true), (*b"thre", false)] {
        let driver = Driver::new(Box::new(scratch.posix(session, &named(&["top"]), None)));
        let top = driver.directory(EntryId::root(0), b"");
        let file = driver.file(top, b"large", bytes.len());
        assert_eq!(driver.prepare(&file, Some(token), true), Prepared::Resume(token));
        if again {
            // By a session that knows of the table from before.
            assert_eq!(driver.write_object(&file, token, &bytes, 1), Ok(()));
            assert_eq!(driver.sync(&[file.id]), []);
            assert_eq!(driver.write_object(&file, token, &others, 1), Ok(()));
            continue;
        }
        assert_eq!(driver.seal(&file, token, None), Ok(root_of(&mixed)));
        driver.settle(&[file.id]);
        assert_eq!(fs::read(scratch.path(b"top/large")).unwrap(), mixed);
    }
}

#[test]
fn a_table_that_cannot_be_made_costs_no_objects() {
    let bytes = content(7, 3 * OBJECT as usize);
    let scratch = Scratch::new(SyncMode::EachFile);
    let (driver, top) = scratch.session(ONE);
    let file = driver.file(top, b"large", bytes.len());
    let token = driver.start(&file);
    assert_eq!(driver.write_object(&file, token, &bytes, 0), Ok(()));
    let in_the_way = scratch.path(format!("top/.haul-{token}.sums").as_bytes());
    fs::create_dir(&in_the_way).unwrap();
    assert_eq!(driver.sync(&[file.id]), []);
    for index in 1..3 {
        assert_eq!(driver.write_object(&file, token, &bytes, index), Ok(()));
        assert_eq!(driver.sync(&[file.id]), []);
    }
    // It is hashed again as a whole.
    assert_eq!(driver.seal(&file, token, None), Ok(root_of(&bytes)));
    driver.settle(&[file.id]);
    fs::remove_dir(&in_the_way).unwrap();
    assert_eq!(names(&scratch.path(b"top")), [b"large".to_vec()].into());
}

struct Shared(std::sync::Arc<PosixSink>);

impl haul_storage::SinkStorage for Shared {
    fn run(&self, op: haul_model::op::SinkOp, pool: &haul_buffers::Pool) -> Option<haul_model::op::SinkDone> {
        self.0.run(op, pool)
    }
}

#[test]
fn damaged_contents_do_not_pass_as_the_source_s() {
    let bytes = content(7, 3 * OBJECT as usize);
    let scratch = Scratch::new(SyncMode::EachFile);
    let (driver, top) = scratch.session(ONE);
    let file = driver.file(top, b"large", bytes.len());
    let token = driver.start(&file);
    driver.write_in_parts(&file, token, &bytes);
    drop(driver);
    fs::remove_file(scratch.path(format!("top/.haul-{token}.sums").as_bytes())).unwrap();
    let contents =
        fs::File::options().write(true).open(scratch.path(format!("top/.haul-{token}").as_bytes()));
    contents.unwrap().write_all_at(b"!", 70_000).unwrap();
    let (driver, top) = scratch.session(TWO);
    let file = driver.file(top, b"large", bytes.len());
    assert_eq!(driver.prepare(&file, Some(token), true), Prepared::Resume(token));
    assert_eq!(driver.seal(&file, token, Some(root_of(&bytes))), Err(Code::HashMismatch.into()));
    assert_eq!(driver.publish(&[file.id]).len(), 1);
}

#[test]
fn a_file_that_somebody_made_longer_is_not_sealed() {
    let scratch = Scratch::new(SyncMode::EachFile);
    let (driver, top) = scratch.session(ONE);
    for size in [0, 5, 2 * OBJECT as usize] {
        let bytes = content(1, size);
        let file = driver.file(top, format!("{size}").as_bytes(), size);
        let token = driver.start(&file);
        driver.write_objects(&file, token, &bytes);
        if size == 0 {
            assert_eq!(driver.seal(&file, token, None), Ok(root_of(b"")));
        }
        let contents =
            fs::File::options().write(true).open(scratch.path(format!("top/.haul-{token}").as_bytes()));
        contents.unwrap().write_all_at(b"!", size as u64).unwrap();
        let refused = driver.seal(&file, token, Some(root_of(&bytes))).unwrap_err();
        assert_eq!(refused.code, Code::HashMismatch, "{size}");
    }
}

#[test]
fn directories_are_finished_deepest_first() {
    let scratch = Scratch::new(SyncMode::EachFile);
    as_user(&scratch, || {
        let (driver, top) = scratch.session(ONE);
        // Breadth first, as a scan may announce them; none may be entered once it has its mode.
        let mut level = vec![top];
        for depth in 0..4 {
            let mut next = Vec::new();
            for parent in &level {
                for name in [&b"a"[..], b"b", b"c"] {
                    let mut entry = driver.entry(*parent, name, Kind::Directory);
                    entry.attributes.mode = 0o000;
                    entry.attributes.mtime = Timestamp { seconds: -7 - depth, nanos: 5 };
                    assert_eq!(driver.prepare(&entry, None, false), Prepared::Made);
                    next.push(entry.id);
                }
            }
            level = next;
        }
        assert_eq!(driver.finish(), []);
        // The modes hide what is below: opened level by level, from above.
        let mut level = vec![scratch.path(b"top")];
        for depth in 0..4 {
            let mut next = Vec::new();
            for path in level.iter().flat_map(|path| ["a", "b", "c"].map(|name| path.join(name))) {
                let seen = look(&path).unwrap();
                assert_eq!(
                    (seen.mode, seen.mtime),
                    (0, Timestamp { seconds: -7 - depth, nanos: 5 }),
                    "{path:?}"
                );
                fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
                next.push(path);
            }
            level = next;
        }
    });
}

#[test]
fn atimes_are_kept_and_reading_alone_changes_nothing() {
    let scratch = Scratch::new(SyncMode::EachFile);
    let (driver, top) = scratch.session(ONE);
    let early = Timestamp { seconds: -5, nanos: 1 };
    let mut file = driver.file(top, b"file", 1);
    file.attributes.atime = early;
    assert_eq!(driver.write_members(&[(&file, b"x")]), [Ok(())]);
    driver.settle(&[file.id]);
    let mut empty = driver.entry(top, b"empty", Kind::Directory);
    empty.attributes.atime = early;
    assert_eq!(driver.prepare(&empty, None, false), Prepared::Made);
    assert_eq!(driver.finish(), []);
    let times = |name: &str| {
        let found = fs::metadata(scratch.path(b"top").join(name)).unwrap();
        (found.atime(), found.atime_nsec(), found.mtime(), found.ctime_nsec())
    };
    assert_eq!(times("file").0, -5);
    assert_eq!(times("empty").0, -5);
    let before = (times("file"), times("empty"), times(""));
    let (driver, top) = scratch.session(TWO);
    let file = driver.file(top, b"file", 1);
    assert_eq!(driver.prepare(&file, None, false), Prepared::Skip);
    driver.directory(top, b"empty");
    assert_eq!(driver.finish(), []);
    assert_eq!((times("file"), times("empty"), times("")), before, "a complete tree is not touched");
    assert_eq!(times("file").2, TIME.seconds);
}

#[test]
fn several_threads_write_one_file_and_many_at_once() {
    let scratch = Scratch::fast(SyncMode::EachFile);
    let sink = std::sync::Arc::new(scratch.posix(ONE, &named(&["top"]), None));
    let driver = Driver::new(Box::new(Shared(sink.clone())));
    let top = driver.directory(EntryId::root(0), b"");
    let bytes = content(1, 24 * OBJECT as usize);
    let file = driver.file(top, b"shared", bytes.len());
    let token = driver.start(&file);
    let members: Vec<_> =
        (0..200).map(|number| driver.file(top, format!("{number}").as_bytes(), 3)).collect();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (sink, bytes, file, members) = (sink.clone(), &bytes, &file, &members);
            scope.spawn(move || {
                let own = Driver::new(Box::new(Shared(sink)));
                for index in (part..24).step_by(4) {
                    assert_eq!(own.write_object(file, token, bytes, index), Ok(()));
                    assert_eq!(own.sync(&[file.id]), []);
                }
                for member in members.iter().skip(part as usize).step_by(4) {
                    assert_eq!(own.write_members(&[(member, b"abc")]), [Ok(())]);
                    own.settle(&[member.id]);
                }
            });
        }
    });
    assert_eq!(driver.seal(&file, token, None), Ok(root_of(&bytes)));
    driver.settle(&[file.id]);
    assert_eq!(driver.finish(), []);
    assert_eq!(names(&scratch.path(b"top")).len(), 201);
}

/// As where big files were moved to an archive with symlinks left in their places, and the rest is copied after them.
#[test]
fn a_file_is_not_replaced_by_a_symlink_that_leads_to_it() {
    let scratch = Scratch::new(SyncMode::Measured);
    plant(&scratch.path(b"top"), &Seen::directory());
    let at = |name: &str| scratch.destination.join("top").join(name);
    symlink(&scratch.destination, scratch.outside.join("way")).unwrap();
    for name in ["beside", "absolute", "around", "over", "twice", "elsewhere"] {
        plant(&at(name), &Seen::file(name.as_bytes()));
    }
    symlink("over", at("between")).unwrap();
    fs::hard_link(at("twice"), at("again")).unwrap();
    let absolute = at("absolute");
    let around = scratch.outside.join("way/top/around");
    let (driver, top) = scratch.session(ONE);
    let prepare = |name: &str, target: &str| {
        driver.prepare(&driver.symlink(top, name.as_bytes(), target.as_bytes()), None, false)
    };
    let refused = Prepared::Fail(Code::LinkToItself.into());
    assert_eq!(prepare("beside", "beside"), refused);
    assert_eq!(prepare("absolute", absolute.to_str().unwrap()), refused);
    assert_eq!(prepare("around", around.to_str().unwrap()), refused);
    assert_eq!(prepare("over", "between"), refused);
    for name in ["beside", "absolute", "around", "over"] {
        assert_eq!(look(&at(name)), Some(Seen::file(name.as_bytes())));
    }
    // Nothing is lost where the file has another name, or the symlink leads to another one.
    assert_eq!(prepare("twice", "again"), Prepared::Made);
    assert_eq!(prepare("elsewhere", "beside"), Prepared::Made);
    assert_eq!(fs::read(at("twice")).unwrap(), b"twice");
    assert_eq!(fs::read(at("elsewhere")).unwrap(), b"beside");
    assert_eq!(names(&at("")).len(), 8, "nothing is left over");
}

#[test]
fn a_name_that_is_too_long_is_told_before_anything_of_the_file_is_sent() {
    let scratch = Scratch::new(SyncMode::Measured);
    let (driver, top) = scratch.session(ONE);
    for (length, fits) in [(255, true), (256, false)] {
        let answer = driver.prepare(&driver.file(top, &vec![b'x'; length], 2 * OBJECT as usize), None, true);
        match fits {
            true => assert!(matches!(answer, Prepared::Start(_)), "{answer:?}"),
            false => assert_eq!(answer, Prepared::Fail(Failure::os(Code::NameInvalid, 36))),
        }
    }
}
