//! One step beneath a held directory, and what an errno means at each end.
//!
//! The root that the user named is trusted; everything below it is reached from a held descriptor, one checked name at
//! a time, and no symbolic link, magic link or `..` is ever followed. Both halves of this crate resolve names only
//! through these functions.
//!
//! What must stay true: no function here takes a path that a peer chose; a name is a single component.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use haul_model::limits::NAME_BYTES_MAX;
use haul_model::{Code, Failure};
use rustix::fs::{self, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result, retry_on_intr};

use crate::leases::{self, Leases};

/// Whether a name may be looked up or made in a held directory.
///
/// Empty, `.`, `..` and names with `/` or NUL are attempts to leave it; over-long ones cannot be stored.
pub fn check_name(name: &[u8]) -> std::result::Result<(), Failure> {
    if name.is_empty() || name == b"." || name == b".." || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err(Code::Confinement.into());
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Code::NameInvalid.into());
    }
    Ok(())
}

/// Opens the directory `name` in `parent` for listing, searching and syncing.
///
/// `ENOTDIR` where something else stands there, a symlink included.
pub fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    match open_beneath(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        Err(Errno::LOOP) => Err(Errno::NOTDIR),
        other => other,
    }
}

/// Holds the directory `name` in `parent` without needing read permission: good for lookups and `fstat`, not for
/// listing or syncing.
pub fn hold_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    match open_beneath(parent, name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
        Err(Errno::LOOP) => Err(Errno::NOTDIR),
        other => other,
    }
}

/// Walks down from `base` through as many of `names` as one system call takes; returns the directory that was reached
/// and how many names led to it (at least 1).
///
/// The caller checks what was reached against what it expects and goes on from there, so a path may be of any length.
pub fn open_some_directories(base: BorrowedFd<'_>, names: &[&[u8]]) -> Result<(OwnedFd, usize)> {
    /// The kernel takes 4096 bytes with the NUL.
    const PATH_BYTES_MAX: usize = 4095;
    let first = names.first().ok_or(Errno::INVAL)?;
    let mut path = Vec::new();
    let mut count = 0;
    if has_openat2() {
        for name in names {
            if path.len() + 1 + name.len() > PATH_BYTES_MAX || check_name(name).is_err() {
                break;
            }
            if count > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            count += 1;
        }
    }
    if count < 2 {
        return Ok((open_directory(base, first)?, 1));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let walk = || fs::openat2(base, &*path, flags, Mode::empty(), RESOLVE);
    match leases::again(walk, std::thread::sleep) {
        Err(Errno::LOOP) => Err(Errno::NOTDIR),
        other => Ok((other?, count)),
    }
}

/// Opens `name` in `parent` with these flags. `ELOOP` where a symlink stands there.
///
/// `O_NOFOLLOW`, `O_CLOEXEC` and `O_NOCTTY` are always added. Anything may stand under the name: give `O_NONBLOCK`
/// where a fifo must not block, and check the kind with `fstat`. A file on which somebody holds a lease is waited for.
pub fn open_beneath(parent: BorrowedFd<'_>, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    if check_name(name).is_err() {
        return Err(if name.len() > NAME_BYTES_MAX { Errno::NAMETOOLONG } else { Errno::XDEV });
    }
    open_checked(parent, name, flags, mode, (has_openat2(), Leases::Awaited))
}

/// The same for a look that may as well not be had: a file on which somebody holds a lease is refused with `EAGAIN`.
pub fn look_beneath(parent: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd> {
    check_name(name).map_err(|_| Errno::XDEV)?;
    open_checked(parent, name, flags, Mode::empty(), (has_openat2(), Leases::Respected))
}

fn open_checked(
    parent: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
    (openat2, leases): (bool, Leases),
) -> Result<OwnedFd> {
    let checked = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |flags: OFlags, mode| {
        if openat2 {
            fs::openat2(parent, name, flags, mode, RESOLVE)
        } else {
            // A single checked component with O_NOFOLLOW cannot leave `parent` either; openat2 adds magic links.
            fs::openat(parent, name, flags, mode)
        }
    };
    // openat2, unlike openat, refuses flags that mean nothing beside O_PATH.
    let terminal = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY };
    let flags = flags | checked | terminal;
    if leases == Leases::Respected {
        return retry_on_intr(|| open(flags, mode));
    }
    leases::open(flags, || open(flags, mode), || open(OFlags::PATH | checked, Mode::empty()))
}

const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_SYMLINKS);

/// Kernels before 5.6 lack it, and some container filters answer `EPERM` to it.
fn has_openat2() -> bool {
    static PROBED: OnceLock<bool> = OnceLock::new();
    *PROBED.get_or_init(|| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        !matches!(fs::openat2(CWD, c".", flags, Mode::empty(), RESOLVE), Err(Errno::NOSYS | Errno::PERM))
    })
}

/// The row of the error table for a system call that failed at the sink, on something below the destination.
pub fn sink_failure(errno: Errno) -> Failure {
    let code = match errno {
        Errno::ACCESS | Errno::PERM => Code::SinkPermission,
        Errno::NOSPC => Code::SinkNoSpace,
        Errno::DQUOT => Code::SinkQuota,
        Errno::ROFS => Code::SinkReadOnly,
        Errno::NOTDIR | Errno::LOOP => Code::SinkNotDirectory,
        Errno::ISDIR => Code::SinkIsDirectory,
        Errno::NAMETOOLONG | Errno::ILSEQ => Code::NameInvalid,
        Errno::XDEV => Code::Confinement,
        _ => Code::SinkWrite,
    };
    Failure::os(code, errno.raw_os_error())
}

/// The row of the error table for a system call that failed at the source, on an entry that the scan had seen.
///
/// A name that now holds another kind of thing is a change, not an attack: the user's own tree is read.
pub fn source_failure(errno: Errno) -> Failure {
    let code = match errno {
        // What a server that came back calls stale may be there under its name: that it cannot be read now, too.
        Errno::NOENT => Code::SourceVanished,
        Errno::ACCESS | Errno::PERM => Code::SourcePermission,
        Errno::NOTDIR | Errno::LOOP | Errno::ISDIR | Errno::XDEV | Errno::NXIO => Code::SourceChanged,
        _ => Code::SourceRead,
    };
    Failure::os(code, errno.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_stale_handle_is_tried_again_and_costs_nothing_that_is_durable() {
        let failure = source_failure(Errno::STALE);
        assert!(failure.code == Code::SourceRead && failure.may_pass());
        assert!(!source_failure(Errno::NOENT).may_pass());
    }

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a/", b"a\0b", b"../x"] {
            assert_eq!(check_name(name), Err(Code::Confinement.into()), "{name:?}");
        }
        assert_eq!(check_name(&[b'a'; NAME_BYTES_MAX + 1]), Err(Code::NameInvalid.into()));
        for name in [&b"..."[..], b" ", b"\n", b"-rf", b"\xff\xfe", b"..a", b"a\\b", &[b'a'; NAME_BYTES_MAX]]
        {
            assert_eq!(check_name(name), Ok(()), "{name:?}");
        }
    }

    #[test]
    fn no_symlink_is_followed_and_no_name_with_a_slash_opened() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir(scratch.path().join("inside")).unwrap();
        std::fs::write(scratch.path().join("inside/file"), b"x").unwrap();
        std::os::unix::fs::symlink("inside", scratch.path().join("to-directory")).unwrap();
        std::os::unix::fs::symlink("inside/file", scratch.path().join("to-file")).unwrap();
        let held = OwnedFd::from(std::fs::File::open(scratch.path()).unwrap());
        let parent = held.as_fd();
        let read = |name: &[u8]| open_beneath(parent, name, OFlags::RDONLY, Mode::empty());
        assert!(open_directory(parent, b"inside").is_ok());
        assert_eq!(open_directory(parent, b"to-directory").unwrap_err(), Errno::NOTDIR);
        assert_eq!(hold_directory(parent, b"to-directory").unwrap_err(), Errno::NOTDIR);
        assert_eq!(read(b"to-file").unwrap_err(), Errno::LOOP);
        assert_eq!(read(b"inside/file").unwrap_err(), Errno::XDEV);
        assert_eq!(read(b"..").unwrap_err(), Errno::XDEV);
    }

    #[test]
    fn a_kernel_without_openat2_is_as_strict() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir(scratch.path().join("inside")).unwrap();
        std::fs::write(scratch.path().join("file"), b"x").unwrap();
        std::os::unix::fs::symlink("inside", scratch.path().join("to-directory")).unwrap();
        std::os::unix::fs::symlink("file", scratch.path().join("to-file")).unwrap();
        let held = OwnedFd::from(std::fs::File::open(scratch.path()).unwrap());
        let directory = OFlags::RDONLY | OFlags::DIRECTORY;
        for openat2 in [true, false] {
            let open = |name: &[u8], flags| {
                open_checked(held.as_fd(), name, flags, Mode::empty(), (openat2, Leases::Awaited)).map(|_| ())
            };
            assert_eq!(open(b"inside", directory), Ok(()));
            assert_eq!(open(b"file", OFlags::RDWR), Ok(()));
            assert_eq!(open(b"to-file", OFlags::RDWR), Err(Errno::LOOP));
            assert!(matches!(open(b"to-directory", directory), Err(Errno::LOOP | Errno::NOTDIR)));
            assert!(matches!(
                open(b"to-directory", OFlags::PATH | OFlags::DIRECTORY),
                Err(Errno::LOOP | Errno::NOTDIR)
            ));
            assert_eq!(open(b"file", directory), Err(Errno::NOTDIR));
        }
        let (reached, count) = open_some_directories(held.as_fd(), &[b"inside"]).unwrap();
        assert_eq!(count, 1);
        assert_eq!(open_some_directories(reached.as_fd(), &[b"..", b"inside"]).unwrap_err(), Errno::XDEV);
        let through_a_link: [&[u8]; 2] = [b"to-directory", b"x"];
        assert_eq!(open_some_directories(held.as_fd(), &through_a_link).unwrap_err(), Errno::NOTDIR);
        assert_eq!(open_some_directories(held.as_fd(), &[]).unwrap_err(), Errno::INVAL);
    }
}
