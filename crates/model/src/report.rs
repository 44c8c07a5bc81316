//! What is told of a transfer while it runs and at its end.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::limits::{BATCH_ITEMS_MAX, FAILED_BYTES_MAX};
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
    /// Content acknowledged as durable by this session, but for files that were given up or have started again.
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

/// What one file has added to the counters before it was complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Of [`Stats::bytes_done`].
    pub bytes_done: u64,
    /// Of [`Stats::bytes_skipped`].
    pub bytes_skipped: u64,
    /// Of [`Stats::objects_skipped`].
    pub objects_skipped: u64,
}

impl Share {
    /// Of its content.
    pub fn bytes_there(&self) -> u64 {
        self.bytes_done.saturating_add(self.bytes_skipped)
    }
}

impl Stats {
    /// The file goes, with what was durable of it.
    pub fn take_back(&mut self, share: Share) {
        self.bytes_done = self.bytes_done.saturating_sub(share.bytes_done);
        self.bytes_skipped = self.bytes_skipped.saturating_sub(share.bytes_skipped);
        self.objects_skipped = self.objects_skipped.saturating_sub(share.objects_skipped);
    }

    /// Files that are there: of this session, and from before. What the other end counts may be anything.
    pub fn files_there(&self) -> u64 {
        self.files_done.saturating_add(self.files_skipped)
    }

    /// Content that is there.
    pub fn bytes_there(&self) -> u64 {
        self.bytes_done.saturating_add(self.bytes_skipped)
    }

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
        .fold(0, |sum: u64, count| sum.saturating_add(*count))
    }
}

/// What failed at the end: with its path as long as there is room for that in one message, and counted beyond.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FailedPaths {
    named: Vec<(Box<[u8]>, Failure)>,
    bytes: usize,
    more: u64,
}

impl FailedPaths {
    /// With so many more that are not named.
    pub fn with_more(self, more: u64) -> FailedPaths {
        FailedPaths { more, ..self }
    }

    /// One more, under the path that `path` makes if it is named.
    pub fn add(&mut self, failure: Failure, path: impl FnOnce() -> Box<[u8]>) {
        if self.more == 0 && self.named.len() < BATCH_ITEMS_MAX {
            let path = path();
            if self.bytes + path.len() <= FAILED_BYTES_MAX {
                self.bytes += path.len();
                self.named.push((path, failure));
                return;
            }
        }
        self.more = self.more.saturating_add(1);
    }

    /// These, and then those that were here.
    pub fn after(self, first: impl IntoIterator<Item = (Box<[u8]>, Failure)>) -> FailedPaths {
        let all: FailedPaths = first.into_iter().chain(self.named).collect();
        let more = all.more.saturating_add(self.more);
        all.with_more(more)
    }

    /// Those with their paths.
    pub fn named(&self) -> &[(Box<[u8]>, Failure)] {
        &self.named
    }

    /// How many others failed.
    pub fn more(&self) -> u64 {
        self.more
    }

    /// All that failed.
    pub fn count(&self) -> u64 {
        self.more.saturating_add(self.named.len() as u64)
    }

    /// They are named, and then the others counted.
    pub fn into_facts(self) -> impl Iterator<Item = Fact> {
        let more = Some(Fact::FailedToo { count: self.more }).filter(|_| self.more > 0);
        let fact = |(path, failure): (Box<[u8]>, _)| Fact::Failed { path: path.into_vec(), failure };
        self.named.into_iter().map(fact).chain(more)
    }
}

impl FromIterator<(Box<[u8]>, Failure)> for FailedPaths {
    fn from_iter<I: IntoIterator<Item = (Box<[u8]>, Failure)>>(failed: I) -> FailedPaths {
        let mut all = FailedPaths::default();
        failed.into_iter().for_each(|(path, failure)| all.add(failure, || path));
        all
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
    /// As many more failed as cannot be named.
    FailedToo {
        /// Directories.
        count: u64,
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

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::Code;

    #[test]
    fn what_cannot_be_named_is_counted() {
        let failed = |count: usize, bytes: usize| -> FailedPaths {
            (0..count).map(|_| (vec![b'x'; bytes].into(), Code::SinkAttributes.into())).collect()
        };
        for (count, bytes, named) in [
            (0, 0, 0),
            (1, 4096, 1),
            (BATCH_ITEMS_MAX, 3, BATCH_ITEMS_MAX),
            (BATCH_ITEMS_MAX + 7, 3, BATCH_ITEMS_MAX),
            (1000, 4096, FAILED_BYTES_MAX / 4096),
        ] {
            let failed = failed(count, bytes);
            assert_eq!(failed.named().len(), named);
            assert_eq!((failed.more(), failed.count()), ((count - named) as u64, count as u64));
            let facts: Vec<_> = failed.into_facts().collect();
            assert_eq!(facts.len(), named + usize::from(count > named));
        }
        let first = failed(3, 10).after([(b"."[..].into(), Code::SinkSync.into())]);
        assert_eq!((&*first.named()[0].0, first.count()), (&b"."[..], 4));
        let full = failed(5000, 10).after([(b"."[..].into(), Code::SinkSync.into())]);
        assert_eq!((&*full.named()[0].0, full.count()), (&b"."[..], 5001));
    }
}
