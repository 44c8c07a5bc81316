//! Unfinished files that nobody will go on with.
//!
//! A name says by its tags whose it is. What carries the tag of this job, but not of this session, and was not taken up
//! by a resume, is left over from a session that was killed: only that is removed. Where a resume failed it stays.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use haul_model::Token;
use rustix::fs::{self, AtFlags, Mode, OFlags, RawDir};

use super::tokens::parse;
use super::{PosixSink, lock};

/// So many that cannot be gone on with are remembered. A source may name any number, whether there is such a file or not.
const SPARED_MAX: usize = 1 << 16;

/// Unfinished files that stay.
#[derive(Default)]
pub(super) struct Spared {
    tokens: HashSet<Token>,
    /// There are more than are remembered: all stay.
    too_many: bool,
}

impl Spared {
    pub fn add(&mut self, token: Token) {
        match self.tokens.len() < SPARED_MAX {
            true => _ = self.tokens.insert(token),
            false => self.too_many = true,
        }
    }

    fn contains(&self, token: Token) -> bool {
        self.too_many || self.tokens.contains(&token)
    }
}

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
                && !lock(&self.spared).contains(token);
            if left_over {
                let _ = fs::unlinkat(held, entry.file_name(), AtFlags::empty());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_more_stay_than_are_remembered_all_do() {
        let token = |number: u32| {
            let mut token = Token::NONE;
            token.0[..4].copy_from_slice(&number.to_le_bytes());
            token
        };
        let mut spared = Spared::default();
        (0..SPARED_MAX as u32).for_each(|number| spared.add(token(number)));
        let another = token(u32::MAX);
        assert!(spared.contains(token(7)) && !spared.contains(another));
        (0..1000).for_each(|_| spared.add(another));
        assert!(spared.contains(another) && spared.contains(token(u32::MAX - 1)));
        assert_eq!(spared.tokens.len(), SPARED_MAX);
    }
}
