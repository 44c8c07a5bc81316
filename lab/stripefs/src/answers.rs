//! What the kernel sends and gets, in its own types.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{FileAttr, Generation, INodeNo, ReplyEntry, ReplyXattr, Request, TimeOrNow};
use haul_fuse::times;
use rustix::fs::{FileType, Stat, Timespec};
use rustix::io::Errno;

use crate::names::{Owner, ROOT};
use crate::node::{NOW, Node};

/// All changes pass the kernel, so it may believe what it knows; not for long, because sizes grow while others write.
pub(crate) const FRESH: Duration = Duration::from_secs(1);
/// Of `statfs`, and what programs are advised to read and write at once.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// What an entry or a new file is answered with.
pub(crate) type Found = (Arc<Node>, Stat);

/// For the kernel.
pub(crate) fn refusal(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

/// A name was found or made.
pub(crate) fn answer_entry(reply: ReplyEntry, (node, status): Found) {
    reply.entry(&FRESH, &attributes_of(node.number, &status), Generation(0));
}

/// The same of a name that was there, perhaps as if it had a number of its own for each time that the kernel comes to know it, or
/// for each name.
pub(crate) fn answer_looked_up(reply: ReplyEntry, (node, status): Found, more: u64) {
    let number = if node.number != ROOT { node.number | more } else { node.number };
    reply.entry(&FRESH, &attributes_of(number, &status), Generation(0));
}

/// As the kernel keeps them.
pub(crate) fn attributes_of(number: u64, status: &Stat) -> FileAttr {
    let kind = FileType::from_raw_mode(status.st_mode);
    let size = status.st_size.max(0) as u64;
    FileAttr {
        ino: INodeNo(number),
        size,
        // As if without holes: the file is sparse at the metadata server, its bytes are elsewhere.
        blocks: if kind == FileType::RegularFile {
            size.div_ceil(512)
        } else {
            status.st_blocks.max(0) as u64
        },
        atime: times::system_time(status.st_atime, status.st_atime_nsec as u32),
        mtime: times::system_time(status.st_mtime, status.st_mtime_nsec as u32),
        ctime: times::system_time(status.st_ctime, status.st_ctime_nsec as u32),
        crtime: UNIX_EPOCH,
        kind: kind_of(kind),
        perm: (status.st_mode & 0o7777) as u16,
        nlink: status.st_nlink as u32,
        uid: status.st_uid,
        gid: status.st_gid,
        rdev: status.st_rdev as u32,
        blksize: BLOCK_BYTES as u32,
        flags: 0,
    }
}

/// As the kernel tells them apart.
pub(crate) fn kind_of(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::CharacterDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        _ => fuser::FileType::RegularFile,
    }
}

/// Who made the request.
pub(crate) fn owner(request: &Request, mode: u32) -> Owner {
    Owner { uid: request.uid(), gid: request.gid(), mode }
}

/// A time that is to be set.
pub(crate) fn time_spec(time: TimeOrNow) -> Timespec {
    times::sent_time(time).map_or(NOW, |(tv_sec, nanos)| Timespec { tv_sec, tv_nsec: nanos.into() })
}

/// A size of 0 asks how large the answer is.
pub(crate) fn answer_attribute(reply: ReplyXattr, size: u32, value: Result<Vec<u8>, Errno>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(refusal(Errno::RANGE)),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(refusal(errno)),
    }
}
