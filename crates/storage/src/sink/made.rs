//! Members that may lie on several targets: each is made first, for only then it is known on which; and then written
//! with others of that target, so that a slow target holds up its own members and nothing else.
//!
//! A thread that hangs in here comes back when nobody waits for it any more: what it has written counts only if the
//! member was not made anew meanwhile.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use haul_buffers::Pool;
use haul_model::limits::GENTLE_PIECE_BYTES;
use haul_model::op::{Landed, MemberWrite, MemberWritten, Progress};
use haul_model::{Code, Entry, EntryId, Failure, SlotId, Target, Token};

use super::directories::Directory;
use super::members::Member;
use super::{PosixSink, State, lock};
use crate::confine::sink_failure;
use crate::placing::{Objects, Unknown};
use crate::source::{Lender, LentMembers};

/// A member that is made and empty.
pub(super) struct Made {
    pub entry: Arc<Entry>,
    pub token: Token,
    pub directory: Arc<Directory>,
    pub file: OwnedFd,
}

impl PosixSink {
    /// The target that a member's contents will be on, if several come into question and its descriptor can be kept.
    pub(super) fn is_to_be_filled(&self, file: BorrowedFd<'_>, device: u64, size: u64) -> Option<Target> {
        let placing = self.placing.as_ref().filter(|_| size > 0)?;
        let objects = Objects::AtMost(self.object_bytes);
        let laid = placing.without_a_look(device, size, objects);
        let laid = laid.unwrap_or_else(|Unknown| placing.laid(file, device, size, objects))?;
        let target = Some(laid.placement.target(0)).filter(|target| *target != 0)?;
        if self.member_descriptors.fetch_add(1, Ordering::Relaxed) < self.member_descriptors_max {
            return Some(target);
        }
        // Few descriptors on this machine: it is written at once.
        self.member_descriptors.fetch_sub(1, Ordering::Relaxed);
        None
    }

    pub(super) fn fill_members(
        &self,
        (members, progress): (Vec<MemberWrite>, &Progress),
        gently: bool,
        slot: SlotId,
        length: u32,
        pool: &Pool,
    ) -> Vec<MemberWritten> {
        let Some(reading) = pool.read(slot) else {
            return members.iter().map(|_| Err(Code::Internal.into())).collect();
        };
        let bytes = &reading[..reading.len().min(length as usize)];
        let piece = if gently { GENTLE_PIECE_BYTES } else { usize::MAX };
        let mut lent = self.lender.as_ref().map(Lender::members);
        let fill = |(number, member)| {
            let turn = || progress.begins(number);
            self.fill_member(member, bytes, piece, (lent.as_mut(), turn)).map(|()| Landed::Written)
        };
        members.into_iter().enumerate().map(fill).collect()
    }

    fn fill_member(
        &self,
        member: MemberWrite,
        bytes: &[u8],
        piece: usize,
        (lent, turn): (Option<&mut LentMembers<'_>>, impl Fn() -> bool),
    ) -> Result<(), Failure> {
        let MemberWrite { entry, offset, hash } = member;
        let start = offset as usize;
        let end = usize::try_from(entry.size()).ok().and_then(|size| start.checked_add(size));
        let bytes = end.and_then(|end| bytes.get(start..end)).ok_or(Code::Protocol)?;
        let Made { token, directory, file, .. } = self.take_made(entry.id, turn)?;
        let errors = directory.file_system.errors();
        let filled = match lent.filter(|_| self.borrows(hash)) {
            Some(lent) => self.borrow_member(&entry, lent, file.as_fd(), piece),
            None => self.fill(file.as_fd(), bytes, piece).map_err(sink_failure),
        };
        let complete =
            filled.and_then(|()| self.set_attributes((file.as_fd(), false), &directory, &entry.attributes));
        self.member_descriptors.fetch_sub(1, Ordering::Relaxed);
        let descriptor = complete.and_then(|()| self.keep_until_synced(file, &directory));
        let member = descriptor.map(|descriptor| {
            let synced = descriptor.is_none();
            Member {
                entry: Arc::clone(&entry),
                token,
                directory: Arc::clone(&directory),
                descriptor,
                nameless: None,
                synced,
                errors,
            }
        });
        let mut states = lock(&self.states);
        let wanted = matches!(states.get(&entry.id), Some(State::Filling(now)) if *now == token);
        match member {
            Ok(member) if wanted => {
                states.insert(entry.id, State::Member(member));
                Ok(())
            }
            Ok(member) => {
                drop(states);
                self.remove_state(State::Member(member));
                Err(Code::Internal.into())
            }
            Err(failure) => {
                if wanted {
                    states.remove(&entry.id);
                }
                drop(states);
                self.remove_temporary(&entry, &directory, token);
                Err(failure)
            }
        }
    }

    /// If its turn comes: what somebody gave up may be there already, made anew for another thread.
    fn take_made(&self, id: EntryId, turn: impl Fn() -> bool) -> Result<Made, Failure> {
        let mut states = lock(&self.states);
        if !turn() {
            return Err(Code::Internal.into());
        }
        match states.remove(&id) {
            Some(State::Made(made)) => {
                states.insert(id, State::Filling(made.token));
                Ok(made)
            }
            other => {
                states.extend(other.map(|state| (id, state)));
                Err(Code::Internal.into())
            }
        }
    }

    /// It will not be written.
    pub(super) fn remove_made(&self, made: Made) {
        self.member_descriptors.fetch_sub(1, Ordering::Relaxed);
        self.remove_temporary(&made.entry, &made.directory, made.token);
    }
}
