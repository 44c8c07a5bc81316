//! What file systems make of names: two that they take for one, and those that they do not take.
//!
//! In a directory that this session made, whatever has a name is an entry of the dataset. In one that was found it may be what
//! an earlier run left, to be replaced; so there the session remembers which names its entries have, but only where names
//! that differ in case are the same (FAT, exFAT, SMB, ext4 with casefold). Each directory is asked once, with a name that
//! something has in it.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

use haul_model::{Code, Failure};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::attributes::Status;
use super::directories::Directory;
use super::tokens::TempName;
use super::{PosixSink, lock};
use crate::confine::sink_failure;

/// Characters that FAT, exFAT, NTFS or SMB servers do not store, and bytes that are no text.
const UNUSUAL: &[u8] = b"x\x01\"*:<>?\\|\xff";

/// Bytes that the name of a file may have wherever files are kept: eCryptfs takes 143.
const SHORT: usize = 143;

/// The names that entries of this session have where case does not count, until nothing more happens in their directory.
#[derive(Default)]
pub(super) struct Names(Mutex<HashMap<(u64, u64), Spellings>>);

/// Of one directory: by the name without its case.
type Spellings = HashMap<Vec<u8>, Box<[u8]>>;

impl Names {
    /// Whether another entry has this name already, under another one of its forms.
    fn is_taken(&self, directory: (u64, u64), name: &[u8], is_same: impl FnOnce(&[u8]) -> bool) -> bool {
        let taken = match lock(&self.0).entry(directory).or_default().entry(without_case(name)) {
            Slot::Vacant(free) => {
                free.insert(name.into());
                return false;
            }
            Slot::Occupied(taken) => taken.get().clone(),
        };
        // Storage is asked without the lock.
        *taken != *name && (taken.eq_ignore_ascii_case(name) || is_same(&taken))
    }

    /// Nothing more gets a name in this directory.
    pub(super) fn forget(&self, directory: (u64, u64)) {
        lock(&self.0).remove(&directory);
    }
}

fn without_case(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(text) => text.to_lowercase().into_bytes(),
        Err(_) => name.to_ascii_lowercase(),
    }
}

impl PosixSink {
    /// An entry has, or is about to have, this name in a directory that was found, in which something is called `there`.
    pub(super) fn claim_name(
        &self,
        directory: &Directory,
        held: BorrowedFd<'_>,
        name: &[u8],
        there: &[u8],
    ) -> Result<(), Failure> {
        let folds = match directory.folds.get() {
            Some(folds) => *folds,
            None => match folds(held, there) {
                Some(folds) => *directory.folds.get_or_init(|| folds),
                // Nothing can be told by it, nor can it have another form in ASCII.
                None => false,
            },
        };
        let is_same = |other: &[u8]| identity(held, name).is_some_and(|it| Some(it) == identity(held, other));
        if folds && self.names.is_taken(directory.identity, name, is_same) {
            return Err(Code::NameTaken.into());
        }
        Ok(())
    }

    /// Whether a file can have this name in the directory: better known before all its contents are there.
    pub(super) fn try_name(
        &self,
        directory: &Directory,
        held: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<(), Failure> {
        // What is too long cannot be looked up either.
        if name.len() > SHORT
            && let Err(errno @ Errno::NAMETOOLONG) = fs::statat(held, name, AtFlags::SYMLINK_NOFOLLOW)
        {
            return Err(name_failure(errno));
        }
        let is_unusual = |byte: &u8| UNUSUAL[1..].contains(byte) || *byte < b' ';
        let is_usual = std::str::from_utf8(name).is_ok() && !name.iter().any(is_unusual);
        if is_usual
            || *directory.file_system.any_name.get_or_init(|| self.can_be_called(held, UNUSUAL).is_ok())
        {
            return Ok(());
        }
        match self.can_be_called(held, name) {
            Err(errno @ (Errno::INVAL | Errno::ILSEQ)) => Err(name_failure(errno)),
            // Whatever else it is, the file itself will tell.
            _ => Ok(()),
        }
    }

    /// Makes a file whose name has this one in it, and removes it again.
    fn can_be_called(&self, held: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
        let name = TempName::placed_as(name, self.tokens.make());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let create = || fs::openat(held, name.as_c_str(), flags, Mode::from_raw_mode(0o600));
        drop(self.directories.retry_without_cache(create)?);
        fs::unlinkat(held, name.as_c_str(), AtFlags::empty())
    }
}

/// Whether names that differ in case are the same here. None where nothing is called `there`, or it has no case.
fn folds(held: BorrowedFd<'_>, there: &[u8]) -> Option<bool> {
    let swapped: Vec<u8> = there.iter().map(|byte| swapped(*byte)).collect();
    if swapped == there {
        return None;
    }
    let it = identity(held, there)?;
    Some(identity(held, &swapped) == Some(it))
}

fn swapped(byte: u8) -> u8 {
    if byte.is_ascii_lowercase() { byte.to_ascii_uppercase() } else { byte.to_ascii_lowercase() }
}

/// What it is, if it has no second name as far as its file system can tell.
fn identity(held: BorrowedFd<'_>, name: &[u8]) -> Option<(u64, u64)> {
    let it = fs::statat(held, name, AtFlags::SYMLINK_NOFOLLOW).map(Status::from).ok()?;
    (it.kind == FileType::Directory || it.links <= 1).then_some((it.device, it.inode))
}

/// What cannot be made or called so: the row for names that a file system does not take, besides those for all else.
pub(super) fn name_failure(errno: Errno) -> Failure {
    match errno {
        Errno::INVAL => Failure::os(Code::NameInvalid, errno.raw_os_error()),
        _ => sink_failure(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_by_another_form_of_it_in_the_same_directory() {
        let names = Names::default();
        let taken = |directory, name: &str, same| names.is_taken((1, directory), name.as_bytes(), |_| same);
        assert!(!taken(1, "README", false) && !taken(1, "README", false), "the same entry again");
        assert!(taken(1, "Readme", false) && taken(1, "readme", false));
        assert!(!taken(2, "readme", false), "another directory");
        assert!(!taken(1, "Ärger", false));
        // Only the file system knows which letters it takes for the same.
        assert!(!taken(1, "ärger", false) && taken(1, "ärger", true));
        names.forget((1, 2));
        assert!(!taken(2, "Readme", false) && taken(1, "Readme", false));
        assert!(!names.is_taken((1, 1), b"\xffA", |_| false) && names.is_taken((1, 1), b"\xffa", |_| false));
    }
}
