//! What the file systems of the laboratory share: mounting, commands on a Unix socket, times as the kernel sends them.
//!
//! Used by the crash file system and the emulated parallel one.

#![warn(missing_docs)]

pub mod control;
mod mount;
pub mod times;

pub use mount::{Mount, abort, config, detach};
