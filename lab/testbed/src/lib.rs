//! The testbed: what is needed to run the real binaries against a real sshd, and to break things while they run.
//!
//! - [`sshd`], [`dataset`], [`tree`], [`process`]: a host, something to move, an independent look at the result, and
//!   a hand on every process.
//! - [`world`], [`attack`], [`rounds`]: two hosts, runs between them, and what is done to these.
//! - [`torture`], [`crash`]: loops that kill, stop, cut and power off at random instants, and check every claim.
//!
//! Called by the binary `testbed`, by the Makefile and by end-to-end tests of other crates. It knows haul only by its
//! command line.

#![warn(missing_docs)]

pub mod attack;
pub mod crash;
pub mod dataset;
pub mod process;
pub mod rounds;
pub mod sshd;
pub mod torture;
pub mod tree;
pub mod world;

use std::path::PathBuf;

/// Mounts of crash file systems that this process made: a signal must not leave them behind.
static MOUNTS: std::sync::Mutex<Vec<PathBuf>> = std::sync::Mutex::new(Vec::new());

/// Remembers a mount for [`process::end_all_on_signal`].
pub fn remember_mount(directory: PathBuf) {
    MOUNTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(directory);
}

pub(crate) fn mounts() -> Vec<PathBuf> {
    MOUNTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
}
