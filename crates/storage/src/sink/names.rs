//! What file systems make of names: two that they take for one, and those that they do not take.
//!
//! In a directory that this session made, whatever has a name is an entry of the dataset (but where a name cannot be given without
//! replacing it is only looked at first, and two could find it free at once). In one that was found it may be what
//! an earlier run left, to be replaced; so there the session remembers which names its entries have, but only where names
//! that differ in case are the same (FAT, exFAT, SMB, ext4 with casefold). Each directory is asked once, with a name that
//! something has in it.
//!
//! Two names of one file have one inode number, but where libfuse numbers paths (exfat-fuse) they have two. Where numbers may be of
//! that kind a file is made for a moment, and looked for under the other form of its name.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

use haul_model::{Code, Failure};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::attributes::Status;
use super::directories::Directory;
use super::tokens::{TempName, parse};
use super::{PosixSink, lock};
use crate::confine::sink_failure;
use crate::local;

/// Characters that FAT, exFAT, NTFS or SMB servers do not store, and bytes that are no text.
const UNUSUAL: &[u8] = b"x\x01\"*:<>?\\|\xff";

/// Bytes that the name of a file may have wherever files are kept: eCryptfs takes 143.
const SHORT: usize = 143;

/// The names that entries of this session have where case does not count, until nothing more happens in their directory.
#[derive(Default)]
pub(super) struct Names(Mutex<HashMap<(u64, u64), Spellings>>);

/// Of one directory: by the name without its case. There is more than one where the file system tells letters apart that have one
/// form without case.
type Spellings = HashMap<Vec<u8>, Vec<Box<[u8]>>>;

impl Names {
    /// Whether another entry has this name already, under another one of its forms.
    fn is_taken(&self, directory: (u64, u64), name: &[u8], is_same: impl Fn(&[u8]) -> bool) -> bool {
        let folded = without_case(name);
        let mut seen = 0;
        loop {
            let mut names = lock(&self.0);
            let spellings = names.entry(directory).or_default().entry(folded.clone()).or_default();
            if spellings.iter().any(|taken| **taken == *name) {
                return false;
            }
            let others = spellings.get(seen..).unwrap_or_default().to_vec();
            if others.is_empty() {
                spellings.push(name.into());
                return false;
            }
            seen = spellings.len();
            // Storage is asked without the lock.
            drop(names);
            if others.iter().any(|taken| taken.eq_ignore_ascii_case(name) || is_same(taken)) {
                return true;
            }
        }
    }

    /// Nothing more gets a name in this directory.
    pub(super) fn forget(&self, directory: (u64, u64)) {
        lock(&self.0).remove(&directory);
    }
}

/// Letter by letter, as file systems do it: of letters with two small forms (the Greek sigma) by way of the capital.
fn without_case(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(text) => {
            let capitals = text.chars().flat_map(char::to_uppercase);
            capitals.flat_map(char::to_lowercase).collect::<String>().into_bytes()
        }
        Err(_) => name.to_ascii_lowercase(),
    }
}

impl PosixSink {
    /// An entry has, or is about to have, this name in a directory that was found, or where it could take the place of another one,
    /// and in which something is called `there`.
    pub(super) fn claim_name(
        &self,
        directory: &Directory,
        held: BorrowedFd<'_>,
        name: &[u8],
        there: &[u8],
    ) -> Result<(), Failure> {
        let folds = match directory.folds.get() {
            Some(folds) => *folds,
            None => match self.folds(held, there) {
                Some(folds) => *directory.folds.get_or_init(|| folds),
                // Nothing can be told by it, nor can it have another form in ASCII.
                None => false,
            },
        };
        let is_same = |other: &[u8]| {
            let is_one = || identity(held, name).is_some_and(|it| Some(it) == identity(held, other));
            is_one() || self.takes_for_one(held, name, other).unwrap_or(false)
        };
        if folds && self.names.is_taken(directory.identity, name, is_same) {
            return Err(Code::NameTaken.into());
        }
        Ok(())
    }

    /// Whether names that differ in case are the same here. None where nothing is called `there`, it has no case, or it does not
    /// tell.
    fn folds(&self, held: BorrowedFd<'_>, there: &[u8]) -> Option<bool> {
        let other = swapped(there)?;
        let it = identity(held, there)?;
        let Ok(found) = fs::statat(held, &*other, AtFlags::SYMLINK_NOFOLLOW).map(Status::from) else {
            // Where letters that are not ASCII differ, others may be the same.
            return there.iter().any(u8::is_ascii_alphabetic).then_some(false);
        };
        if (found.device, found.inode) == it {
            return Some(true);
        }
        if local::numbers_stay(held).unwrap_or(true) {
            return Some(false);
        }
        // Nobody else makes names like that of an unfinished file: what has one with other letters is that file.
        if parse(there).is_some() { Some(true) } else { self.takes_for_one(held, b"a", b"A") }
    }

    /// Whether a file that is called by the one name is found by the other. None where that cannot be tried.
    fn takes_for_one(&self, held: BorrowedFd<'_>, one: &[u8], other: &[u8]) -> Option<bool> {
        let token = self.tokens.make();
        let [made, other] = [TempName::around(one, token)?, TempName::around(other, token)?];
        self.make_briefly(held, &made, || {
            fs::statat(held, other.as_c_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
        })
        .ok()
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
        let token = self.tokens.make();
        let is_text = std::str::from_utf8(name).is_ok() && !name.iter().any(is_unusual);
        let text = if is_text { None } else { TempName::around(name, token) };
        let trials = [text, TempName::of_device(name, token), TempName::ending_as(name, token)];
        if trials.iter().all(Option::is_none) {
            return Ok(());
        }
        let takes_unusual = || {
            let unusual = TempName::placed_as(UNUSUAL, token);
            self.make_briefly(held, &unusual, || ()).is_ok()
        };
        if *directory.file_system.any_name.get_or_init(takes_unusual) {
            return Ok(());
        }
        for trial in trials.iter().flatten() {
            // Whatever else it is, the file itself will tell.
            if let Err(errno) = self.make_briefly(held, trial, || ())
                && let failure = self.refusal(held, errno)
                && failure.code == Code::NameInvalid
            {
                return Err(failure);
            }
        }
        Ok(())
    }

    /// What could not be made, with a name of its own, in a directory that is there. Some (exfat-fuse) say of a name that they do not
    /// take that there is no such file: it is the name if another one can be made.
    pub(super) fn refusal(&self, held: BorrowedFd<'_>, errno: Errno) -> Failure {
        let plain = || TempName::contents(self.tokens.make());
        if errno == Errno::NOENT && self.make_briefly(held, &plain(), || ()).is_ok() {
            return Code::NameInvalid.into();
        }
        name_failure(errno)
    }

    /// Makes a file, and removes it again.
    fn make_briefly<T>(
        &self,
        held: BorrowedFd<'_>,
        name: &TempName,
        meanwhile: impl FnOnce() -> T,
    ) -> rustix::io::Result<T> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let create = || fs::openat(held, name.as_c_str(), flags, Mode::from_raw_mode(0o600));
        drop(self.directories.retry_without_cache(create)?);
        let found = meanwhile();
        fs::unlinkat(held, name.as_c_str(), AtFlags::empty())?;
        Ok(found)
    }
}

/// The name in its other case. None if it has none.
fn swapped(name: &[u8]) -> Option<Vec<u8>> {
    let swap = |byte: &u8| {
        if byte.is_ascii_lowercase() { byte.to_ascii_uppercase() } else { byte.to_ascii_lowercase() }
    };
    let other: Vec<u8> = if name.iter().any(u8::is_ascii_alphabetic) {
        name.iter().map(swap).collect()
    } else {
        let text = std::str::from_utf8(name).ok()?;
        let small = text.chars().flat_map(char::to_lowercase).collect::<String>();
        let other = if small == text { text.chars().flat_map(char::to_uppercase).collect() } else { small };
        other.into_bytes()
    };
    (other != name).then_some(other)
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
    fn a_name_has_another_case_in_ascii_or_in_all_letters() {
        let other = |name: &str| swapped(name.as_bytes()).map(|name| String::from_utf8(name).unwrap());
        for (name, expected) in [("aB.\u{e4}", "Ab.\u{e4}"), ("\u{e4}1", "\u{c4}1"), ("\u{c4}", "\u{e4}")] {
            assert_eq!(other(name).as_deref(), Some(expected));
        }
        assert_eq!((other("12"), other("\u{6f22}"), swapped(b"\xff")), (None, None, None));
    }

    #[test]
    fn a_name_is_taken_by_another_form_of_it_in_the_same_directory() {
        let names = Names::default();
        let taken = |directory, name: &str, same| names.is_taken((1, directory), name.as_bytes(), |_| same);
        assert!(!taken(1, "README", false) && !taken(1, "README", false), "the same entry again");
        assert!(taken(1, "Readme", false) && taken(1, "readme", false));
        assert!(!taken(2, "readme", false), "another directory");
        assert!(!taken(1, "Ärger", false));
        // Only the file system knows which letters it takes for the same.
        assert!(taken(1, "ärger", true) && !taken(1, "ärger", false));
        // Both stay known where they are two.
        assert!(!taken(1, "\u{17f}", false) && !taken(1, "s", false) && taken(1, "S", false));
        assert!(!taken(1, "\u{3c2}", false) && taken(1, "\u{3c3}", true), "one capital, two small letters");
        names.forget((1, 2));
        assert!(!taken(2, "Readme", false) && taken(1, "Readme", false));
        assert!(!names.is_taken((1, 1), b"\xffA", |_| false) && names.is_taken((1, 1), b"\xffa", |_| false));
    }
}
