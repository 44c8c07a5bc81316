//! The source half: datasets are read below the SOURCEs that the user named, and nothing else is.
//!
//! [`PosixSource`] performs the source master's operations on a file system; the scan
//! ([`PosixScan`](crate::scan::PosixScan)) shares its table of directories, so that a file is opened below the very
//! directory in which the scan found it.

mod directories;
mod early;
mod files;
mod fresh;
mod lend;
mod mapping;
mod members;
mod objects;
mod posix;
mod status;

use std::sync::OnceLock;

pub use early::HashingEarly;
pub use lend::{Lender, is_lent};
pub use posix::{PosixSource, SourceOptions};

pub(crate) use directories::Directories;
pub(crate) use files::Noatime;
pub(crate) use lend::LentMembers;
pub(crate) use members::{Packed, pack};
pub(crate) use objects::hash_in_place;
pub(crate) use status::{Place, Status, link_target};

/// A SOURCE of the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Root {
    /// As the user typed it, relative to the working directory. Trusted: it may lead through symlinks, and one that
    /// ends in `/` is followed itself.
    pub path: Vec<u8>,
    /// What the scan puts in front of the paths of errors, once that is known.
    label: OnceLock<Vec<u8>>,
}

impl Root {
    /// Errors name it as the user did.
    pub fn new(path: impl Into<Vec<u8>>) -> Self {
        let path = path.into();
        Root { label: path.clone().into(), path }
    }

    /// Errors name it `label`; empty for paths that are relative to the SOURCE.
    pub fn with_label(path: impl Into<Vec<u8>>, label: impl Into<Vec<u8>>) -> Self {
        Root { path: path.into(), label: label.into().into() }
    }

    /// How errors name it is told later ([`PosixSource::name_roots`]); a scan that has one to tell waits until then.
    pub fn without_label(path: impl Into<Vec<u8>>) -> Self {
        Root { path: path.into(), label: OnceLock::new() }
    }

    /// Waits until it is known.
    pub fn label(&self) -> &[u8] {
        self.label.wait()
    }

    /// The first word holds.
    pub(crate) fn set_label(&self, label: &[u8]) {
        let _ = self.label.set(label.into());
    }
}
