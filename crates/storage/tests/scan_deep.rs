//! Depth costs the scan and the reads neither descriptors nor paths.

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use haul_model::limits::DEPTH_MAX;
use haul_model::{Code, Entry, EntryId, Failure, Item, Kind};
use haul_storage::conformance_source::{check_order, pool, read_members};
use haul_storage::scan::{Scan, Scanned};
use haul_storage::source::{PosixSource, Root, SourceOptions};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::{Errno, write};

/// A chain of directories that is as deep as one likes, made and removed by descriptor.
struct Chain {
    scratch: tempfile::TempDir,
    /// Names of directories from the top down, the top itself not included.
    names: Vec<Vec<u8>>,
}

impl Chain {
    /// `fill` is called with each directory and its level, the top being 0, before the next one is made in it.
    fn new(names: Vec<Vec<u8>>, fill: impl Fn(&OwnedFd, usize)) -> Self {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        Self::new_in(&base, names, fill)
    }

    fn new_in(base: &Path, names: Vec<Vec<u8>>, fill: impl Fn(&OwnedFd, usize)) -> Self {
        let scratch = tempfile::tempdir_in(base).unwrap();
        let mut held = open_directory(CWD, scratch.path().as_os_str().as_bytes());
        fill(&held, 0);
        for (level, name) in names.iter().enumerate() {
            mkdirat(&held, &name[..], Mode::RWXU).unwrap();
            held = open_directory(&held, name);
            fill(&held, level + 1);
        }
        Chain { scratch, names }
    }

    fn top(&self) -> PathBuf {
        self.scratch.path().to_path_buf()
    }

    fn source(&self, directory_descriptors_max: usize) -> PosixSource {
        let root = Root::with_label(self.top().as_os_str().as_bytes(), "top");
        PosixSource::new(vec![root], SourceOptions { directory_descriptors_max, ..SourceOptions::default() })
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        let mut held = open_directory(CWD, self.scratch.path().as_os_str().as_bytes());
        let mut left = Vec::new();
        for name in &self.names {
            match openat(
                &held,
                &name[..],
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            ) {
                Ok(below) => held = below,
                Err(_) => break,
            }
            left.push(name);
        }
        // Upwards, so that nothing recurses as deep as the chain.
        loop {
            for entry in Dir::read_from(&held).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type() != FileType::Directory {
                    let _ = unlinkat(&held, entry.file_name(), AtFlags::empty());
                }
            }
            let Some(name) = left.pop() else { break };
            held = open_directory(&held, b"..");
            let _ = unlinkat(&held, &name[..], AtFlags::REMOVEDIR);
        }
    }
}

fn open_directory(at: impl AsFd, name: &[u8]) -> OwnedFd {
    openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn make_file(at: &OwnedFd, name: &str, content: &[u8]) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(at, name, flags, Mode::RUSR | Mode::WUSR).unwrap();
    assert_eq!(write(&file, content).unwrap(), content.len());
}

struct Found {
    entries: Vec<Arc<Entry>>,
    errors: Vec<(Vec<u8>, Failure)>,
}

/// Scans to the end; `between` is called after each batch.
fn scan(source: &PosixSource, mut between: impl FnMut(usize)) -> Found {
    let mut scan = source.scan(Arc::new(AtomicU64::new(1)));
    let (mut batch, mut items, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    while scan.next(&mut batch) {
        for scanned in batch.drain(..) {
            match scanned {
                Scanned::Item(item) => items.push(item),
                Scanned::Error { path, failure } => errors.push((path, failure)),
            }
        }
        assert!(items.len() < 1_000_000, "the scan goes round in circles");
        between(items.len());
    }
    check_order(&items, 1);
    let entries = items
        .into_iter()
        .filter_map(|item| if let Item::Entry(entry) = item { Some(Arc::new(entry)) } else { None });
    Found { entries: entries.collect(), errors }
}

/// How often each name of a file was found.
fn counts(found: &Found) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for entry in found.entries.iter().filter(|entry| entry.kind == Kind::File) {
        *counts.entry(String::from_utf8(entry.name.to_vec()).unwrap()).or_default() += 1;
    }
    counts
}

/// A chain with `files` files in each directory: its stream is interrupted by the way down somewhere among them.
fn bushy(depth: usize, files: usize) -> Chain {
    Chain::new(downwards(depth), |held, level| fill(held, level, files))
}

fn bushy_in(base: &Path, depth: usize, files: usize) -> Chain {
    Chain::new_in(base, downwards(depth), |held, level| fill(held, level, files))
}

fn downwards(depth: usize) -> Vec<Vec<u8>> {
    (1..=depth).map(|level| format!("down{level}").into_bytes()).collect()
}

fn fill(held: &OwnedFd, level: usize, files: usize) {
    (0..files).for_each(|file| make_file(held, &format!("level{level}file{file}"), b""));
}

/// Positions in a directory mean something else on each file system, so this runs on two.
#[test]
fn every_name_of_every_level_is_found_once() {
    for chain in [bushy(400, 9), bushy_in(&std::env::temp_dir(), 200, 9)] {
        let found = scan(&chain.source(1), |_| ());
        assert_eq!(found.errors, []);
        let counts = counts(&found);
        assert_eq!(counts.len(), (chain.names.len() + 1) * 9);
        assert!(counts.values().all(|count| *count == 1));
    }
}

#[test]
fn files_are_read_below_paths_that_no_system_call_takes() {
    let long = |level: usize| format!("{level:0>200}").into_bytes();
    let chain = Chain::new((1..=300).map(long).collect(), |held, level| {
        make_file(held, "here", format!("content of level {level}").as_bytes());
    });
    let source = chain.source(8);
    let found = scan(&source, |_| ());
    assert_eq!(found.errors, []);
    let files: Vec<Arc<Entry>> = found.entries.into_iter().filter(|entry| entry.kind == Kind::File).collect();
    assert_eq!(files.len(), 301);
    let pool = pool();
    // From the top and from the bottom: both ways, directories have to be opened again.
    for order in [files.clone(), files.iter().rev().cloned().collect()] {
        let (length, results) = read_members(&source, &pool, &order);
        let slot = pool.lease(haul_model::SlotId(0)).unwrap();
        let text = String::from_utf8(slot[..length as usize].to_vec()).unwrap();
        assert!(results.iter().all(|result| result.is_ok()));
        let mut levels: Vec<usize> =
            text.split("content of level ").skip(1).map(|level| level.parse().unwrap()).collect();
        levels.sort();
        assert!(levels.into_iter().eq(0..=300));
    }
}

#[test]
fn the_limit_of_depth_ends_in_an_error_and_not_in_a_loop() {
    let chain = Chain::new(vec![b"d".to_vec(); DEPTH_MAX + 2], |held, level| {
        if level % 1000 == 0 || level + 2 > DEPTH_MAX {
            make_file(held, &format!("at{level}"), b"");
        }
    });
    let found = scan(&chain.source(16), |_| ());
    let [(path, failure)] = &found.errors[..] else { panic!("{} errors", found.errors.len()) };
    assert_eq!((failure.code, failure.errno), (Code::SourceRead, Errno::LOOP.raw_os_error()));
    assert_eq!(path.len(), "top".len() + 2 * DEPTH_MAX, "the path of the directory that was not entered");
    let directories = found.entries.iter().filter(|entry| entry.kind == Kind::Directory).count();
    assert_eq!(directories, DEPTH_MAX, "levels 0 to DEPTH_MAX - 1");
    let counts = counts(&found);
    assert!(
        counts.contains_key(&format!("at{}", DEPTH_MAX - 1))
            && !counts.contains_key(&format!("at{DEPTH_MAX}"))
    );
    assert_eq!(counts["at0"] + counts["at1000"] + counts["at65000"], 3);
}

/// The directory that the scan is in, or one above it, is moved to another place: over `..` the scan would come out
/// there and tell things that are not of the dataset.
#[test]
fn a_branch_that_is_moved_away_does_not_lead_the_scan_astray() {
    let chain = bushy(300, 9);
    let foreign = tempfile::tempdir_in(chain.top().parent().unwrap()).unwrap();
    for file in 0..100 {
        fs::write(foreign.path().join(format!("foreign{file}")), b"").unwrap();
    }
    // Level 60: above the directories that the scan holds when it is at the bottom.
    let mut branch = chain.top();
    (1..=60).for_each(|level| branch.push(format!("down{level}")));
    let aside = foreign.path().join("aside");
    let source = chain.source(1);
    let mut moved = false;
    let found = scan(&source, |items| {
        if items > 1500 && !moved {
            fs::rename(&branch, &aside).unwrap();
            moved = true;
        }
    });
    fs::rename(&aside, &branch).unwrap();
    assert!(moved);
    let counts = counts(&found);
    assert!(counts.values().all(|count| *count == 1));
    assert!(!counts.keys().any(|name| name.starts_with("foreign")));
    for level in 0..60 {
        for file in 0..9 {
            assert!(
                counts.contains_key(&format!("level{level}file{file}")),
                "level {level}: {:?}",
                found.errors
            );
        }
    }
    // What was moved is still listed to its end: the scan was in it.
    assert_eq!(counts.len(), 301 * 9, "{:?}", found.errors);
    assert_eq!(found.errors, []);
}

#[test]
fn a_directory_above_that_is_replaced_is_named_and_the_rest_is_found() {
    let chain = bushy(300, 9);
    let mut replaced = chain.top();
    (1..=60).for_each(|level| replaced.push(format!("down{level}")));
    let below = replaced.join("down61");
    let aside = tempfile::tempdir_in(chain.top().parent().unwrap()).unwrap();
    let source = chain.source(1);
    let mut done = false;
    let found = scan(&source, |items| {
        if items > 1500 && !done {
            // Now level 60 can neither be reached from below nor from above.
            fs::rename(&below, aside.path().join("down61")).unwrap();
            fs::rename(&replaced, aside.path().join("old60")).unwrap();
            fs::create_dir(&replaced).unwrap();
            fs::write(replaced.join("foreign"), b"").unwrap();
            done = true;
        }
    });
    fs::remove_dir_all(&replaced).unwrap();
    fs::rename(aside.path().join("old60"), &replaced).unwrap();
    fs::rename(aside.path().join("down61"), &below).unwrap();
    let counts = counts(&found);
    assert!(counts.values().all(|count| *count == 1));
    assert!(!counts.contains_key("foreign"));
    for level in (0..60).chain(61..=300) {
        for file in 0..9 {
            assert!(
                counts.contains_key(&format!("level{level}file{file}")),
                "level {level}: {:?}",
                found.errors
            );
        }
    }
    let [(path, failure)] = &found.errors[..] else { panic!("{:?}", found.errors) };
    assert!(path.ends_with(b"/down59/down60"), "{}", path.escape_ascii());
    assert_eq!(failure.code, Code::SourceChanged);
    assert_eq!(found.entries.iter().filter(|entry| entry.id == EntryId(1)).count(), 1);
}
