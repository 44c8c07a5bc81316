//! Trees far deeper than the longest path, up to the limit: without recursion, and without walking down anew for each
//! directory.

mod sink_support;

use std::ffi::CString;
use std::os::fd::OwnedFd;

use haul_model::Kind;
use haul_model::limits::DEPTH_MAX;
use haul_model::op::Prepared;
use haul_model::{Code, EntryId, Failure};
use haul_storage::conformance_sink::Driver;
use haul_storage::sink::SyncMode;
use rustix::fs::{Mode, OFlags, openat};
use sink_support::Scratch;

fn chain(driver: &Driver, top: EntryId, depth: usize) -> Vec<EntryId> {
    let mut chain = vec![top];
    while chain.len() < depth {
        chain.push(driver.directory(chain[chain.len() - 1], b"d"));
    }
    chain
}

#[test]
fn a_deep_tree_is_made_and_finished() {
    const DEPTH: usize = 4096;
    let scratch = Scratch::fast(SyncMode::Measured);
    let (driver, top) = scratch.session(*b"one.");
    let chain = chain(&driver, top, DEPTH);
    // Closed long ago; all of the way down is walked again.
    driver.put_member(chain[DEPTH / 2], b"file", b"x");
    assert_eq!(driver.finish(), []);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut held: OwnedFd = std::fs::File::open(scratch.path(b"top")).unwrap().into();
    let mut finished = 1;
    while let Ok(next) = openat(&held, c"d", flags, Mode::empty()) {
        let found = rustix::fs::fstat(&next).unwrap();
        assert_eq!((found.st_mode & 0o7777, found.st_mtime), (0o755, 1_500_000_000));
        finished += 1;
        held = next;
    }
    assert_eq!(finished, DEPTH);
    remove_chain(&scratch);
}

#[test]
fn a_tree_deeper_than_the_limit_is_refused() {
    let scratch = Scratch::fast(SyncMode::Measured);
    let (driver, top) = scratch.session(*b"one.");
    let chain = chain(&driver, top, DEPTH_MAX);
    let deeper = driver.entry(chain[DEPTH_MAX - 1], b"d", Kind::Directory);
    let answer = driver.prepare(&deeper, None, false);
    assert_eq!(answer, Prepared::Fail(Failure::new(Code::LimitExceeded)));
    // Dropping the chain does not recurse either.
    drop(driver);
    remove_chain(&scratch);
}

/// Takes pieces off the chain until it is short enough for everybody.
fn remove_chain(scratch: &Scratch) {
    const PIECE: usize = 1000;
    let piece = CString::new("d/".repeat(PIECE)).unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let top: OwnedFd = std::fs::File::open(scratch.path(b"top")).unwrap().into();
    while let Ok(below) = openat(&top, &*piece, flags, Mode::empty()) {
        if rustix::fs::renameat(&below, c"d", &top, c"rest").is_err() {
            break;
        }
        std::fs::remove_dir_all(scratch.path(b"top/d")).unwrap();
        rustix::fs::renameat(&top, c"rest", &top, c"d").unwrap();
    }
}
