//! Unfinished files that nobody will go on with.
//!
//! A name says by its tags whose it is. What carries the tag of this job, but not of this session, and was not taken up
//! by a resume, is left over from a session that was killed: only that is removed. Where a resume failed it stays.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{self, AtFlags, Mode, OFlags, RawDir};

use super::tokens::parse;
use super::{PosixSink, lock};

impl PosixSink {
    /// Removes left-over files from one directory. What cannot be removed stays for a later session.
    pub(super) fn sweep(&self, held: BorrowedFd<'_>) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A descriptor of its own: the position of the held one is shared.
        let Ok(listed) = fs::openat(held, c".", flags, Mode::empty()) else { return };
        let mut buffer = [const { MaybeUninit::<u8>::uninit() }; 32 << 10];
        let mut entries = RawDir::new(&listed, &mut buffer);
        while let Some(Ok(entry)) = entries.next() {
            let Some(token) = parse(entry.file_name().to_bytes()) else { continue };
            let left_over = self.tokens.is_of_job(token)
                && !self.tokens.is_of_session(token)
                && !lock(&self.resumed).contains(&token)
                && !lock(&self.spared).contains(&token);
            if left_over {
                let _ = fs::unlinkat(held, entry.file_name(), AtFlags::empty());
            }
        }
    }
}
