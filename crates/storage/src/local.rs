//! What this host gives: file systems that are local and keep their promises (tested, not believed; never FUSE or NFS), and
//! descriptors.

use std::os::fd::AsFd;

use rustix::fs;
use rustix::process::{Resource, getrlimit, setrlimit};

/// `f_type` of the file systems whose `syncfs` waits for data, attributes and names, and reports errors, and whose pages
/// stay in this kernel's cache once they were read.
const KNOWN: [u64; 4] = [
    0xEF53,      // ext4
    0x5846_5342, // XFS
    0x9123_683E, // btrfs
    0x0102_1994, // tmpfs
];

/// Those among them that are on a disk and put data there as it is: btrfs compresses and checks what passes through the page
/// cache, and what does not it leaves as it is.
const ON_DISK: [u64; 2] = [KNOWN[0], KNOWN[1]];

/// Those among them where a file that gets its only name late costs less than one that is renamed: XFS and btrfs write down, too,
/// which files have no name.
const LATE_NAMES: [u64; 2] = [KNOWN[0], KNOWN[3]];

/// Is what the descriptor holds on one of them?
pub(crate) fn is_known(descriptor: impl AsFd) -> rustix::io::Result<bool> {
    Ok(KNOWN.contains(&kind(descriptor)?))
}

/// Is it on a disk, so that it can be worth the while to go past the page cache?
pub(crate) fn is_disk(descriptor: impl AsFd) -> rustix::io::Result<bool> {
    Ok(ON_DISK.contains(&kind(descriptor)?))
}

/// Does a file that gets its only name late cost less there than one that is renamed?
pub(crate) fn prefers_late_names(descriptor: impl AsFd) -> rustix::io::Result<bool> {
    Ok(LATE_NAMES.contains(&kind(descriptor)?))
}

/// Is it in memory?
pub(crate) fn is_memory(descriptor: impl AsFd) -> rustix::io::Result<bool> {
    Ok(kind(descriptor)? == KNOWN[3])
}

fn kind(descriptor: impl AsFd) -> rustix::io::Result<u64> {
    #[allow(clippy::unnecessary_cast)]
    let kind = fs::fstatfs(descriptor)?.f_type as u64 & 0xFFFF_FFFF;
    Ok(kind)
}

/// How many descriptors the process may have now.
pub(crate) fn raise_descriptor_limit() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| limit.maximum.is_none_or(|maximum| current < maximum)) {
        limit.current = limit.maximum;
        // Fewer are enough; they are then used more sparingly.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current.map_or(1 << 20, |current| current.min(1 << 20) as usize)
}
