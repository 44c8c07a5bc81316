//! The testbed: what is needed to run the real binaries against a real sshd, and to break things while they run.
//!
//! - [`sshd`], [`dataset`], [`tree`], [`process`]: a host, something to move, an independent look at the result, and
//!   a hand on every process.
//! - [`world`], [`attack`], [`rounds`]: two hosts, runs between them, and what is done to these.
//! - [`disk`]: what can lose power.
//! - [`torture`], [`crash`]: loops that kill, stop, cut and power off at random instants, and check every claim.
//! - [`syncs`]: each sync is removed from the program in turn, and a power cut must show it.
//! - [`striped`]: what is slow, fails or hangs on one target of an emulated parallel file system stays with it.
//! - [`parallel`], [`gluster`], [`ceph`]: the same and more on parallel file systems that really run;
//!   [`network`] keeps their servers to themselves.
//! - [`watchdog`]: what a loop begins ends, or is told and ended.
//! - [`demo`]: the same for people; [`machine`] says where.
//!
//! Called by the binary `testbed`, by the Makefile and by end-to-end tests of other crates. It knows haul only by its
//! command line.

#![warn(missing_docs)]

pub mod attack;
pub mod ceph;
pub mod crash;
pub mod dataset;
pub mod demo;
pub mod disk;
pub mod gluster;
pub mod network;
pub mod parallel;
pub mod rounds;
pub mod striped;
pub mod syncs;
pub mod torture;
pub mod watchdog;
pub mod world;

pub use haul_bench::{machine, process, sshd, tree};

use std::path::{Path, PathBuf};

/// What this process has mounted and made: a signal must not leave it behind.
static LEFT: std::sync::Mutex<(Vec<PathBuf>, Vec<PathBuf>)> = std::sync::Mutex::new((Vec::new(), Vec::new()));

/// Remembers a mount for [`process::end_all_on_signal`].
pub fn remember_mount(directory: PathBuf) {
    LEFT.lock().unwrap_or_else(std::sync::PoisonError::into_inner).0.push(directory);
}

/// Remembers a directory that is to be removed, for [`process::end_all_on_signal`].
pub fn remember_directory(directory: PathBuf) {
    LEFT.lock().unwrap_or_else(std::sync::PoisonError::into_inner).1.push(directory);
}

/// Remembers a file that is to be removed and is in no directory that is, for [`process::end_all_on_signal`].
pub fn remember_file(path: PathBuf) {
    remember_directory(path);
}

/// Unmounts all that was remembered; whoever waits for a request to it gets an error.
pub fn let_go() {
    for mount in &LEFT.lock().unwrap_or_else(std::sync::PoisonError::into_inner).0 {
        haul_crashfs::Mount::abort(mount);
    }
}

/// Unmounts and removes all that was remembered. A thread that is still at work may start and write something meanwhile.
pub fn leave_nothing() {
    const ATTEMPTS: u32 = 5;
    let_go();
    let left = LEFT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for path in &left.1 {
        let mut removed = remove(path);
        for _ in 1..ATTEMPTS {
            if removed.is_ok() {
                break;
            }
            process::end_descendants(process::own_pid());
            removed = remove(path);
        }
        if let Err(error) = removed {
            eprintln!("testbed: {} is left over: {error}", path.display());
        }
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => tree::remove(path),
        Ok(_) => std::fs::remove_file(path),
        Err(_) => Ok(()),
    }
}
