//! What is told of a transfer while it runs and at its end.

use alloc::vec::Vec;

use crate::stripe::Unlike;
use crate::{Failure, Hash};

/// Counters of a session, kept by the source and sent to the sink with BYE, so that both ends print the same summary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Files and symlinks found so far.
    pub files_total: u64,
    /// Made complete and durable by this session.
    pub files_done: u64,
    /// Complete before this session.
    pub files_skipped: u64,
    /// Named as failed (files, symlinks and directories).
    pub files_failed: u64,
    /// Directories found so far.
    pub directories: u64,
    /// Files that have more than one hard link; each was copied as a file of its own.
    pub hard_links: u64,
    /// Content of all files found so far.
    pub bytes_total: u64,
    /// Payload handed to the transport, repairs included.
    pub bytes_sent: u64,
    /// Content that did not have to be sent: complete files, and logged objects of unfinished ones.
    pub bytes_skipped: u64,
    /// Content acknowledged as durable by this session.
    pub bytes_done: u64,
    /// Objects and bundles handed to the transport.
    pub objects_sent: u64,
    /// Objects that the log proved durable.
    pub objects_skipped: u64,
    /// Objects and members sent again after a wrong hash, a lost payload or a failed sync.
    pub objects_repaired: u64,
    /// Content that was kept in the source's spill for a while.
    pub bytes_spilled: u64,
}

impl Stats {
    /// Grows with all that has been found, and with all that is settled: what has not to be done again.
    pub fn progress(&self) -> u64 {
        let Stats { files_total, directories, bytes_total, .. } = self;
        let Stats { files_done, files_skipped, files_failed, bytes_done, bytes_skipped, .. } = self;
        [
            files_total,
            directories,
            bytes_total,
            files_done,
            files_skipped,
            files_failed,
            bytes_done,
            bytes_skipped,
        ]
        .into_iter()
        .sum()
    }
}

/// Something worth telling, nearly always about one entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fact {
    /// It is not, and will not be, complete at the sink.
    Failed {
        /// Below the destination, any bytes.
        path: Vec<u8>,
        /// Why.
        failure: Failure,
    },
    /// Complete, durable, and verified to this root.
    Done {
        /// Below the destination, any bytes.
        path: Vec<u8>,
        /// Content bytes.
        bytes: u64,
        /// BLAKE3 root; none for symlinks.
        hash: Option<Hash>,
    },
    /// The first file that is not striped as its source is; there may be more.
    Unlike {
        /// Below the destination, any bytes.
        path: Vec<u8>,
        /// Why.
        why: Unlike,
    },
    /// Not all of the source's spill can be used any more. Told once a session; nothing is lost.
    SpillFailed {
        /// Why.
        failure: Failure,
        /// Bytes of it that still can be.
        room: u64,
    },
}
