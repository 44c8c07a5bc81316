//! Contents that the source lends: both ends are one process, and nothing has come through the slot.
//!
//! A thread of the sink copies from the source's file into the new one (`carry`), and the hash of what is there then is the
//! object's. That it is the version which was announced is known as ever: of a file in objects the source compares its
//! descriptor with the announcement when all objects are durable, before the file is closed; of a member, here, after the
//! last byte.

use std::os::fd::{AsFd, BorrowedFd};

use haul_meter::within;
use haul_model::limits::GENTLE_PIECE_BYTES;
use haul_model::profile::Stage;
use haul_model::{Code, Entry, Failure, Hash, HashKind};

use super::PosixSink;
use super::objects::Object;
use crate::carry::{Range, carry};
use crate::confine::sink_failure;
use crate::hashing::ObjectHasher;
use crate::source::{LentMembers, Status};

/// As the source says it when it is asked for the bytes again and reads them itself.
const ASK_AGAIN: Code = Code::HashMismatch;

impl PosixSink {
    /// Is what was announced like this to be taken from the source?
    pub(super) fn borrows(&self, announced: Hash) -> bool {
        self.lender.is_some() && announced == Hash::LENT
    }

    /// Copies an object into its file. Its hash, of what is there now.
    pub(super) fn borrow_object(
        &self,
        entry: &Entry,
        contents: BorrowedFd<'_>,
        object: Object,
        is_hole: bool,
    ) -> Result<Hash, Failure> {
        let Object { offset, length, single, gently, .. } = object;
        // Released: it was dropped while this waited.
        let source = self.lender.as_ref().and_then(|lender| lender.file(entry)).ok_or(ASK_AGAIN)?;
        let range = Range { is_hole, ..Range::new(offset, length.into(), entry.size()) };
        let range = if gently { range.in_pieces(GENTLE_PIECE_BYTES) } else { range };
        let mut hasher = ObjectHasher::new(self.hash, offset, length, single)?;
        let looked_at = (self.hash != HashKind::None).then_some(&mut hasher);
        let status = Status::of(&source.descriptor).map_err(|_| ASK_AGAIN)?;
        carry((source.descriptor.as_fd(), &status), contents, range, looked_at)?;
        source.was_read(offset, length);
        Ok(hasher.finish())
    }

    /// Copies a whole small file.
    pub(super) fn borrow_member(
        &self,
        entry: &Entry,
        lent: &mut LentMembers<'_>,
        contents: BorrowedFd<'_>,
        piece: usize,
    ) -> Result<(), Failure> {
        let (source, status) = lent.open(entry).map_err(|_| ASK_AGAIN)?;
        if !lent.may_be_lent(&source, &status) {
            return Err(ASK_AGAIN.into());
        }
        self.hooks.before_write().map_err(sink_failure)?;
        if entry.size() > 0 {
            let _passing = lent.passing(&source, &status);
            let range = Range::new(0, entry.size(), entry.size()).in_pieces(piece);
            let _at = within(Stage::Write);
            carry((source.as_fd(), &status), contents, range, None)?;
            lent.check(&source, entry).map_err(|_| ASK_AGAIN)?;
        }
        Ok(())
    }
}
