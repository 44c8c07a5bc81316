//! Making a file that is striped as planned.
//!
//! Lustre takes `lustre.lov` for a file that has no objects yet, and gives it objects at the first open for writing. A
//! file that `mknod` made has none; neither has one that was opened with `O_LOV_DELAY_CREATE`. Setting the attribute of
//! a file that has objects does nothing, and Lustre then says that all went well: so what was stored is read back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Uid, XattrFlags};
use rustix::io::{Errno, Result};

use super::attributes::Attributes;
use super::lov;
use super::lustre::ATTRIBUTE;
use super::stripe::Plan;
use crate::confine::{self, open_beneath};

/// `O_LOV_DELAY_CREATE` of `lustre_user.h`: two flags that mean nothing for regular files.
const DELAY_CREATE: OFlags = OFlags::from_bits_retain((libc::O_NOCTTY | libc::O_ASYNC) as u32);

/// What became of the plan. The file is made in any case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The file is striped so.
    Set,
    /// The file system chose another way, e.g. because there are fewer targets.
    Other(Plan),
    /// As far as it does not say which targets: its pools were not taken.
    WithoutPools,
    /// The file system does not take it; the file is striped as it likes.
    Refused(Errno),
}

/// Makes the file `name` in `parent`, which must not be there, and opens it for reading and writing.
///
/// As `openat` with `O_CREAT | O_EXCL`, no symlink is followed, and an error leaves nothing behind.
pub fn create(parent: BorrowedFd<'_>, name: &[u8], mode: Mode, plan: &Plan) -> Result<(OwnedFd, Outcome)> {
    create_as(parent, name, mode, plan, rustix::process::geteuid())
}

/// `user` is who owns what this process makes, if the file system says so.
fn create_as(
    parent: BorrowedFd<'_>,
    name: &[u8],
    mode: Mode,
    plan: &Plan,
    user: Uid,
) -> Result<(OwnedFd, Outcome)> {
    let (file, writable) = create_without_objects(parent, name, mode, user)?;
    let outcome = match set(&file, plan) {
        // Lustre takes a pool that is not there and restricts nothing; others may say no.
        Outcome::Refused(_) if plan.pools().next().is_some() => match set(&file, &plan.without_pools()) {
            Outcome::Refused(errno) => Outcome::Refused(errno),
            Outcome::Set | Outcome::Other(_) | Outcome::WithoutPools => Outcome::WithoutPools,
        },
        outcome => outcome,
    };
    if writable {
        return Ok((file, outcome));
    }
    let opened =
        open_beneath(parent, name, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty()).and_then(|opened| {
            if identity(&opened)? == identity(&file)? { Ok(opened) } else { Err(Errno::STALE) }
        });
    match opened {
        Ok(opened) => Ok((opened, outcome)),
        Err(errno) => Err(removed(parent, name, errno)),
    }
}

/// A file that cannot be used goes; what somebody else put in its place is theirs.
fn removed(parent: BorrowedFd<'_>, name: &[u8], errno: Errno) -> Errno {
    if errno != Errno::STALE {
        let _ = fs::unlinkat(parent, name, AtFlags::empty());
    }
    errno
}

/// A new file, and whether it is open for writing.
fn create_without_objects(
    parent: BorrowedFd<'_>,
    name: &[u8],
    mode: Mode,
    user: Uid,
) -> Result<(OwnedFd, bool)> {
    if confine::check_name(name).is_err() {
        return Err(Errno::XDEV);
    }
    match fs::mknodat(parent, name, FileType::RegularFile, mode, 0) {
        Ok(()) => {
            // Opening it for reading does not make objects; somebody else's file in its place is none of ours.
            let opened = open_beneath(parent, name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
            match opened.and_then(|file| Ok((whose(&file, user)?, file))) {
                Ok((Whose::Ours, file)) => Ok((file, false)),
                Ok((Whose::Unclear, _)) => {
                    fs::unlinkat(parent, name, AtFlags::empty())?;
                    create_with_objects(parent, name, mode)
                }
                Ok((Whose::SomebodyElses, _)) => Err(Errno::STALE),
                Err(errno) => Err(removed(parent, name, errno)),
            }
        }
        // File systems that do not know mknod for files.
        Err(Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
            create_with_objects(parent, name, mode)
        }
        Err(errno) => Err(errno),
    }
}

/// But where the flag is known.
fn create_with_objects(parent: BorrowedFd<'_>, name: &[u8], mode: Mode) -> Result<(OwnedFd, bool)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | DELAY_CREATE;
    Ok((open_beneath(parent, name, flags, mode)?, true))
}

enum Whose {
    Ours,
    /// It is new, but another user's: of many file systems all files are one user's (FUSE), or root's are nobody's.
    Unclear,
    SomebodyElses,
}

fn whose(file: &OwnedFd, user: Uid) -> Result<Whose> {
    let found = fs::fstat(file)?;
    let regular = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    Ok(match regular && found.st_size == 0 && found.st_nlink == 1 {
        true if found.st_uid == user.as_raw() => Whose::Ours,
        true => Whose::Unclear,
        false => Whose::SomebodyElses,
    })
}

fn identity(file: &OwnedFd) -> Result<(u64, u64)> {
    let found = fs::fstat(file)?;
    Ok((found.st_dev, found.st_ino))
}

fn set(file: &OwnedFd, plan: &Plan) -> Outcome {
    match fs::fsetxattr(file, ATTRIBUTE, &lov::encode(plan), XattrFlags::empty()) {
        Ok(()) | Err(Errno::EXIST) => stored(file.as_fd(), plan),
        Err(errno) => Outcome::Refused(errno),
    }
}

fn stored(file: BorrowedFd<'_>, wanted: &Plan) -> Outcome {
    let value = match file.get(ATTRIBUTE) {
        Ok(value) => value,
        Err(errno) => return Outcome::Refused(errno),
    };
    match lov::decode(&value).and_then(|lov| lov.plan()) {
        Some(plan) if plan.fulfils(wanted) => Outcome::Set,
        Some(plan) => Outcome::Other(plan),
        None => Outcome::Refused(Errno::ILSEQ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::stripe::Count;
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::{MetadataExt, symlink};

    fn wanted() -> Plan {
        Plan::plain(Count::Exactly(4), 1 << 20, None)
    }

    #[test]
    fn where_nothing_is_striped_the_file_is_made_all_the_same() {
        let scratch = tempfile::tempdir().unwrap();
        let held = OwnedFd::from(std::fs::File::open(scratch.path()).unwrap());
        let (file, outcome) = create(held.as_fd(), b"new", Mode::from_raw_mode(0o600), &wanted()).unwrap();
        assert_eq!(outcome, Outcome::Refused(Errno::OPNOTSUPP));
        let mut file = std::fs::File::from(file);
        file.write_all(b"written").unwrap();
        file.rewind().unwrap();
        let mut read = String::new();
        file.read_to_string(&mut read).unwrap();
        let found = std::fs::metadata(scratch.path().join("new")).unwrap();
        assert_eq!((&*read, found.mode(), found.nlink()), ("written", 0o100_600, 1));
    }

    #[test]
    fn a_file_system_of_which_all_is_another_users_takes_the_file_too() {
        let scratch = tempfile::tempdir().unwrap();
        let held = OwnedFd::from(std::fs::File::open(scratch.path()).unwrap());
        let another = Uid::from_raw(rustix::process::geteuid().as_raw() + 1);
        let made = create_as(held.as_fd(), b"new", Mode::from_raw_mode(0o600), &wanted(), another);
        let mut file = std::fs::File::from(made.unwrap().0);
        file.write_all(b"written").unwrap();
        assert_eq!(std::fs::read(scratch.path().join("new")).unwrap(), b"written");
        let again = create_as(held.as_fd(), b"new", Mode::from_raw_mode(0o600), &wanted(), another);
        assert_eq!(again.map(|_| ()), Err(Errno::EXIST));
    }

    #[test]
    fn nothing_that_is_there_is_touched_and_no_name_leaves_the_directory() {
        let scratch = tempfile::tempdir().unwrap();
        let held = OwnedFd::from(std::fs::File::open(scratch.path()).unwrap());
        std::fs::write(scratch.path().join("file"), b"kept").unwrap();
        symlink("file", scratch.path().join("link")).unwrap();
        symlink("nowhere", scratch.path().join("dangling")).unwrap();
        let make =
            |name: &[u8]| create(held.as_fd(), name, Mode::from_raw_mode(0o600), &wanted()).map(|_| ());
        for name in [&b"file"[..], b"link", b"dangling"] {
            assert_eq!(make(name), Err(Errno::EXIST));
        }
        for name in [&b"../out"[..], b"", b".", b"..", b"a/b"] {
            assert_eq!(make(name), Err(Errno::XDEV));
        }
        assert_eq!(std::fs::read(scratch.path().join("file")).unwrap(), b"kept");
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 3);
    }
}
