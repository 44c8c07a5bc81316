//! Which file systems are local and keep their promises: tested, not believed. Never FUSE or NFS.

use std::os::fd::AsFd;

use rustix::fs;

/// `f_type` of the file systems whose `syncfs` waits for data, attributes and names, and reports errors, and whose pages
/// stay in this kernel's cache once they were read.
const KNOWN: [u64; 4] = [
    0xEF53,      // ext4
    0x5846_5342, // XFS
    0x9123_683E, // btrfs
    0x0102_1994, // tmpfs
];

/// Is what the descriptor holds on one of them?
pub(crate) fn is_known(descriptor: impl AsFd) -> rustix::io::Result<bool> {
    #[allow(clippy::unnecessary_cast)]
    let kind = fs::fstatfs(descriptor)?.f_type as u64 & 0xFFFF_FFFF;
    Ok(KNOWN.contains(&kind))
}
