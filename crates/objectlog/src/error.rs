//! What can go wrong with a log.

use alloc::string::String;
use core::fmt;

use haul_model::Code;

/// What was being done when the store failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// Listing or reading logs at the start.
    Reading,
    /// Writing pages.
    Writing,
    /// Making contents durable.
    Syncing,
    /// Making names durable.
    SyncingNames,
    /// Removing a log that is done with.
    Removing,
}

impl Doing {
    fn text(self) -> &'static str {
        match self {
            Doing::Reading => "reading",
            Doing::Writing => "writing",
            Doing::Syncing => "syncing",
            Doing::SyncingNames => "syncing the names of",
            Doing::Removing => "removing",
        }
    }
}

/// An operation of the log failed. Nothing that was recorded is forgotten: the next flush tries again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error<E> {
    /// The store failed.
    Store {
        /// At what.
        doing: Doing,
        /// On which log; empty if it was the directory itself.
        name: String,
        /// The store's own words.
        error: E,
    },
    /// A log was written by a newer haul. Nothing was changed.
    NewerVersion {
        /// The log.
        name: String,
        /// Its version.
        version: u16,
    },
    /// A log has a number so high that too few are left for later logs. Nothing was changed.
    NumbersUsedUp {
        /// The log.
        name: String,
    },
    /// The file cannot be logged: its path is longer than [`crate::PATH_BYTES_MAX`].
    PathTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The file cannot be logged: it, or it and all files in progress, have more objects than is allowed.
    TooManyObjects {
        /// Objects of this file.
        objects: u64,
    },
    /// No such object in this file.
    ObjectOutOfRange {
        /// The number that was given.
        object: u64,
        /// How many there are.
        objects: u64,
    },
    /// The handle's entry was finished, dropped or replaced.
    StaleHandle,
}

impl<E> Error<E> {
    /// The row of the error table.
    pub fn code(&self) -> Code {
        match self {
            Error::Store { doing: Doing::Reading, .. } => Code::LogDamaged,
            Error::NewerVersion { .. } => Code::LogVersion,
            Error::Store { .. }
            | Error::NumbersUsedUp { .. }
            | Error::PathTooLong { .. }
            | Error::TooManyObjects { .. } => Code::LogUnwritable,
            Error::ObjectOutOfRange { .. } | Error::StaleHandle => Code::Internal,
        }
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Store { doing, name, error } if name.is_empty() => {
                write!(f, "{} the object logs: {error}", doing.text())
            }
            Error::Store { doing, name, error } => {
                write!(f, "{} the object log {name}: {error}", doing.text())
            }
            Error::NewerVersion { name, version } => {
                write!(
                    f,
                    "the object log {name} has version {version}; this haul reads up to {}",
                    crate::VERSION
                )
            }
            Error::NumbersUsedUp { name } => {
                write!(f, "no later log can have a number higher than that of the object log {name}")
            }
            Error::PathTooLong { bytes } => {
                write!(f, "a path of {bytes} bytes is too long for the object log")
            }
            Error::TooManyObjects { objects } => {
                write!(f, "{objects} objects are too many for the object log")
            }
            Error::ObjectOutOfRange { object, objects } => write!(f, "object {object} of {objects} objects"),
            Error::StaleHandle => f.write_str("the log entry is no longer there"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> core::error::Error for Error<E> {}
