//! A file system that loses what was not synced.
//!
//! It is mounted below a program under test and keeps two states: what the kernel shows, and what is on the medium.
//! Only `fsync`, `fdatasync` and `fsync` of a directory carry something from the first to the second; on a crash every
//! other change is, by a seeded choice for each item, lost, kept or torn, and the mount goes on with what survived.
//!
//! - [`disk`] is the model: nodes, names, contents, the choice. It knows nothing of FUSE, clocks or threads.
//! - [`faults`] makes operations fail, hang or crawl, and lets syncs lie.
//! - [`CrashFs`] is the handle that a test holds; [`Mount`] is a mounted one, [`control`] the same by a Unix socket.
//!
//! Called by the crash loop of the testbed, by tests in process, and by people through the binary `crashfs`.
//!
//! What must stay true: nothing that a successful sync covered is ever lost, unless a fault asked for it.

#![warn(missing_docs)]

pub mod control;
pub mod disk;
pub mod faults;
mod fuse;
mod handle;
mod mount;
pub mod random;

pub use disk::{CrashReport, Mood};
pub use faults::{Kind, SyncClass};
pub use handle::CrashFs;
pub use mount::Mount;
