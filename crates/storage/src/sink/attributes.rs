//! Mode, owner and times at the sink.
//!
//! What must stay true: attributes are set on held descriptors; setuid and setgid never come from a peer; a symlink is
//! never followed.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use haul_model::{Attributes, Code, Failure, Timestamp};
use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};
use rustix::io::{Errno, Result};

/// Permission bits that a peer may set: all but setuid and setgid.
const MODE_MASK: u32 = 0o1777;
const SETGID: u32 = 0o2000;

/// What `fstat` said, with the same types on every machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Status {
    pub device: u64,
    pub inode: u64,
    pub kind: FileType,
    pub mode: u32,
    pub links: u64,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub mtime: Timestamp,
}

#[allow(clippy::unnecessary_cast, clippy::useless_conversion)]
impl From<Stat> for Status {
    fn from(stat: Stat) -> Self {
        Status {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: stat.st_mode as u32 & 0o7777,
            links: stat.st_nlink as u64,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: stat.st_size.max(0) as u64,
            mtime: Timestamp { seconds: stat.st_mtime as i64, nanos: stat.st_mtime_nsec as u32 },
        }
    }
}

/// Status of what a descriptor holds.
pub(crate) fn status(descriptor: BorrowedFd<'_>) -> Result<Status> {
    fs::fstat(descriptor).map(Status::from)
}

/// What is preserved at this sink.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preserve {
    /// Owner and group too.
    pub owner: bool,
}

impl Preserve {
    /// The mode that a file gets.
    pub fn file_mode(wanted: &Attributes) -> u32 {
        wanted.mode & MODE_MASK
    }

    /// The mode that a directory gets: a setgid bit that it has at the sink (inherited there) stays.
    pub fn directory_mode(wanted: &Attributes, present: u32) -> u32 {
        wanted.mode & MODE_MASK | present & SETGID
    }

    /// Sets everything on a file that was just written; but for its mode where it has that already, and no bits that another
    /// owner would clear.
    ///
    /// Owner first, because changing it may clear mode bits; times last, because nothing may touch them any more.
    pub fn complete(self, file: BorrowedFd<'_>, wanted: &Attributes, has_mode: bool) -> Result<()> {
        if self.owner {
            set_owner(file, wanted)?;
        }
        if !has_mode {
            fs::fchmod(file, Mode::from_raw_mode(Self::file_mode(wanted)))?;
        }
        fs::futimens(file, &timestamps(wanted)?)
    }

    /// Whether the owner has to be set.
    pub fn differs_in_owner(self, present: &Status, wanted: &Attributes) -> bool {
        self.owner && (present.uid, present.gid) != (wanted.uid, wanted.gid)
    }

    /// Sets owner and times of the symlink `name` itself; never the owner of anything else that has got that name meanwhile
    /// (`EEXIST`).
    pub fn complete_symlink(
        self,
        parent: BorrowedFd<'_>,
        name: impl rustix::path::Arg + Copy,
        wanted: &Attributes,
    ) -> Result<()> {
        if self.owner {
            let (uid, gid) = owner(wanted)?;
            let held =
                fs::openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            if Status::from(fs::fstat(&held)?).kind != FileType::Symlink {
                return Err(Errno::EXIST);
            }
            fs::chownat(&held, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        }
        fs::utimensat(parent, name, &timestamps(wanted)?, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// What a file system says that lets nobody set modes, or only somebody else.
pub(crate) fn refuses(errno: Errno) -> bool {
    matches!(errno, Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL)
}

/// Sets owner and group.
pub(crate) fn set_owner(file: BorrowedFd<'_>, wanted: &Attributes) -> Result<()> {
    let (uid, gid) = owner(wanted)?;
    fs::fchown(file, Some(uid), Some(gid))
}

/// -1 means "leave it" to the system calls, so it is never a number to set.
fn owner(wanted: &Attributes) -> Result<(Uid, Gid)> {
    if wanted.uid == u32::MAX || wanted.gid == u32::MAX {
        return Err(Errno::INVAL);
    }
    Ok((Uid::from_raw(wanted.uid), Gid::from_raw(wanted.gid)))
}

/// For `futimens`. Out-of-range nanoseconds would mean "now" or "leave it" there.
pub(crate) fn timestamps(wanted: &Attributes) -> Result<Timestamps> {
    let spec = |time: Timestamp| {
        let valid = time.nanos < 1_000_000_000;
        valid.then(|| Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.into() }).ok_or(Errno::INVAL)
    };
    Ok(Timestamps { last_access: spec(wanted.atime)?, last_modification: spec(wanted.mtime)? })
}

/// Changes the mode of what an `O_PATH` descriptor holds, which `fchmod` refuses.
///
/// The magic link is our own, of a descriptor whose kind the caller has checked not to be a symlink.
pub(crate) fn set_mode_of_held(held: BorrowedFd<'_>, mode: u32) -> Result<()> {
    fs::chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), Mode::from_raw_mode(mode))
}

/// Makes what `held` holds (an `O_PATH` descriptor) usable for its owner, if that is us; else `EACCES` stays.
pub(crate) fn open_up(held: &impl AsFd, bits: u32) -> Result<()> {
    let present = status(held.as_fd())?;
    let ours = present.uid == rustix::process::geteuid().as_raw();
    if !ours || present.mode & bits == bits || present.kind == FileType::Symlink {
        return Err(Errno::ACCESS);
    }
    match set_mode_of_held(held.as_fd(), present.mode | bits) {
        // No /proc.
        Err(Errno::NOENT) => Err(Errno::ACCESS),
        other => other,
    }
}

/// The row for attributes that could not be set; a full or failing disk keeps its own row.
pub(crate) fn attributes_failure(errno: Errno) -> Failure {
    let failure = crate::confine::sink_failure(errno);
    match failure.code {
        Code::SinkNoSpace | Code::SinkQuota | Code::SinkReadOnly => failure,
        _ => Failure::os(Code::SinkAttributes, errno.raw_os_error()),
    }
}

/// Both times in units of what the file system stores.
pub(crate) fn same_time(one: Timestamp, other: Timestamp, unit_nanos: u64) -> bool {
    let units = |time: Timestamp| {
        (i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos))
            .div_euclid(i128::from(unit_nanos.max(1)))
    };
    units(one) == units(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setuid_and_setgid_never_come_from_a_peer() {
        let wanted = Attributes { mode: 0o107_777, ..Attributes::default() };
        assert_eq!(Preserve::file_mode(&wanted), 0o1777);
        assert_eq!(Preserve::directory_mode(&wanted, 0o700), 0o1777);
        assert_eq!(Preserve::directory_mode(&wanted, 0o2700), 0o3777, "the sink's own setgid stays");
    }

    /// As where somebody has put it there, in a directory of his, since the symlink was looked at.
    #[test]
    fn what_is_not_a_symlink_does_not_get_the_owner_of_one() {
        use std::os::unix::fs::MetadataExt;
        if !rustix::process::geteuid().is_root() {
            return haul_testkit::lacks("root");
        }
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        std::fs::write(at("file"), b"").unwrap();
        std::os::unix::fs::symlink("nowhere", at("link")).unwrap();
        let held = std::fs::File::open(scratch.path()).unwrap();
        let wanted = Attributes { uid: 1234, gid: 5678, ..Attributes::default() };
        let complete = |name: &str| Preserve { owner: true }.complete_symlink(held.as_fd(), name, &wanted);
        let owner = |name: &str| std::fs::symlink_metadata(at(name)).map(|it| (it.uid(), it.gid())).unwrap();
        assert_eq!((complete("file"), owner("file")), (Err(Errno::EXIST), (0, 0)));
        assert_eq!((complete("link"), owner("link")), (Ok(()), (1234, 5678)));
    }

    #[test]
    fn special_values_of_system_calls_are_refused() {
        let time = |nanos| Timestamp { seconds: 0, nanos };
        for nanos in [1_000_000_000, (1 << 30) - 1, (1 << 30) - 2, u32::MAX] {
            assert!(timestamps(&Attributes { mtime: time(nanos), ..Attributes::default() }).is_err());
            assert!(timestamps(&Attributes { atime: time(nanos), ..Attributes::default() }).is_err());
        }
        assert!(owner(&Attributes { uid: u32::MAX, ..Attributes::default() }).is_err());
        assert!(owner(&Attributes { gid: u32::MAX, ..Attributes::default() }).is_err());
    }

    #[test]
    fn times_are_compared_in_the_unit_that_is_stored_also_before_1970() {
        let time = |seconds, nanos| Timestamp { seconds, nanos };
        assert!(same_time(time(5, 999_999_999), time(5, 0), 1_000_000_000));
        assert!(!same_time(time(5, 999_999_999), time(6, 0), 1_000_000_000));
        assert!(same_time(time(-1, 999_999_999), time(-1, 0), 1_000_000_000));
        assert!(!same_time(time(-1, 0), time(0, 0), 1_000_000_000));
        assert!(!same_time(time(5, 1), time(5, 0), 1));
        assert!(same_time(time(5, 199), time(5, 100), 100));
    }
}
