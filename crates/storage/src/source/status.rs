//! What the kernel says of one thing, in haul's words.
//!
//! The scan, the reads and the confirmation all compare what this module makes, so that a time stamp is never rounded
//! in one place and not in another.

use std::os::fd::AsFd;

use haul_model::limits::{FILE_BYTES_MAX, LINK_TARGET_BYTES_MAX};
use haul_model::{Attributes, Code, Entry, EntryId, Failure, Identity, Kind, Timestamp};
use rustix::fs::{self, AtFlags, FileType, Stat, StatxFlags};
use rustix::io::Errno;

use crate::confine::source_failure;
use crate::local;

/// The answer of one `fstat` or `fstatat`.
pub(crate) struct Status(Stat);

impl Status {
    /// Of what a descriptor holds.
    pub fn of(descriptor: impl AsFd) -> Result<Status, Errno> {
        fs::fstat(descriptor).map(Status)
    }

    /// Of what stands under `name` in `directory` now.
    pub fn of_name(
        directory: impl AsFd,
        name: impl rustix::path::Arg,
        follow: bool,
    ) -> Result<Status, Errno> {
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        fs::statat(directory, name, flags).map(Status)
    }

    /// Directory, file, symlink, other.
    pub fn kind(&self) -> Kind {
        match FileType::from_raw_mode(self.0.st_mode) {
            FileType::Directory => Kind::Directory,
            FileType::RegularFile => Kind::File,
            FileType::Symlink => Kind::Symlink,
            _ => Kind::Other,
        }
    }

    /// Does it occupy less than it shows? (So does what a file system compresses.)
    pub fn has_holes(&self) -> bool {
        i128::from(self.0.st_blocks) * 512 < i128::from(self.0.st_size)
    }

    /// Is it on a memory file system with huge pages? A file's block is as large as its pages there.
    pub fn has_huge_pages(&self, descriptor: impl AsFd) -> bool {
        const HUGE_PAGE_BYTES: i128 = 2 << 20;
        const TMPFS_MAGIC: i128 = 0x0102_1994;
        i128::from(self.0.st_blksize) >= HUGE_PAGE_BYTES
            && fs::fstatfs(descriptor).is_ok_and(|system| i128::from(system.f_type) == TMPFS_MAGIC)
    }

    /// Device and inode number: what a directory is recognised by.
    pub fn place(&self) -> Place {
        Place { device: self.0.st_dev, inode: self.0.st_ino }
    }

    /// Which version of a file this is.
    pub fn identity(&self) -> Identity {
        Identity {
            // Kernels keep sizes within `off_t`; a negative one is a broken file system and equals no version.
            size: u64::try_from(self.0.st_size).unwrap_or(u64::MAX),
            mtime: timestamp(self.0.st_mtime, self.0.st_mtime_nsec),
            ctime: timestamp(self.0.st_ctime, self.0.st_ctime_nsec),
            inode: self.0.st_ino,
        }
    }

    /// In bytes.
    pub fn size(&self) -> u64 {
        self.identity().size
    }

    fn attributes(&self) -> Attributes {
        Attributes {
            mode: self.0.st_mode & 0o7777,
            uid: self.0.st_uid,
            gid: self.0.st_gid,
            mtime: timestamp(self.0.st_mtime, self.0.st_mtime_nsec),
            atime: timestamp(self.0.st_atime, self.0.st_atime_nsec),
        }
    }

    /// The entry that this is, but for the target of a symlink.
    pub fn entry(&self, id: EntryId, parent: EntryId, name: &[u8]) -> Result<Entry, Failure> {
        let kind = self.kind();
        let (identity, links) = match kind {
            Kind::File => (self.identity(), u32::try_from(self.0.st_nlink).unwrap_or(u32::MAX)),
            _ => (Identity::default(), 1),
        };
        if identity.size > FILE_BYTES_MAX {
            return Err(Failure::os(Code::SourceRead, Errno::OVERFLOW.raw_os_error()));
        }
        Ok(Entry {
            id,
            parent,
            name: name.into(),
            kind,
            attributes: self.attributes(),
            identity,
            links,
            link_target: Box::default(),
        })
    }
}

/// What is said of this file next is what its server says now, not what it said a while ago. Best effort.
pub(crate) fn refresh(descriptor: impl AsFd) {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let _ = fs::statx(descriptor, c"", flags, StatxFlags::BASIC_STATS);
}

/// The same of what stands under `name` in `directory`.
pub(crate) fn refresh_name(directory: impl AsFd, name: impl rustix::path::Arg, follow: bool) {
    let follow = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let _ = fs::statx(directory, name, follow | AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
}

/// Device and inode number of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Place {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

impl Place {
    /// Can what `held` holds, which is here now, be what was there before? Not everywhere does it keep its number.
    pub fn may_be(self, before: Place, held: impl AsFd) -> bool {
        local::may_be(held, (self.device, self.inode), (before.device, before.inode))
    }
}

/// Where the symlink `name` in `directory` points.
pub(crate) fn link_target(directory: impl AsFd, name: impl rustix::path::Arg) -> Result<Box<[u8]>, Failure> {
    let mut buffer = [0u8; LINK_TARGET_BYTES_MAX + 1];
    let length = match fs::readlinkat_raw(directory, name, &mut buffer[..]) {
        Ok(length) => length,
        // Not a symlink any more.
        Err(Errno::INVAL) => return Err(Failure::os(Code::SourceChanged, Errno::INVAL.raw_os_error())),
        Err(errno) => return Err(source_failure(errno)),
    };
    match buffer.get(..length) {
        // No file system stores such a link, but one in user space may show it.
        Some([]) => Err(Failure::os(Code::SourceRead, Errno::NOENT.raw_os_error())),
        Some(target) if target.len() <= LINK_TARGET_BYTES_MAX => Ok(target.into()),
        _ => Err(Failure::os(Code::SourceRead, Errno::NAMETOOLONG.raw_os_error())),
    }
}

/// A broken file system may answer any number of nanoseconds; a peer would refuse them.
fn timestamp(seconds: impl Into<i64>, nanos: impl TryInto<u32>) -> Timestamp {
    Timestamp { seconds: seconds.into(), nanos: nanos.try_into().unwrap_or(u32::MAX).min(999_999_999) }
}
