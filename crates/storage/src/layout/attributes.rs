//! Extended attributes of one file.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::fs;
use rustix::io::{Errno, Result};

/// No Linux file system stores or invents longer values (XATTR_SIZE_MAX).
pub(super) const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;
/// Nearly all values fit; a longer one costs a second call.
const USUAL_BYTES: usize = 4 << 10;

/// Where attributes come from: an open file, or a test.
pub trait Attributes {
    /// The value of one, at most 64 KiB.
    fn get(&self, name: &CStr) -> Result<Vec<u8>>;

    /// The number of the file on its file system, where that is known.
    fn inode(&self) -> Option<u64> {
        None
    }
}

impl Attributes for BorrowedFd<'_> {
    fn get(&self, name: &CStr) -> Result<Vec<u8>> {
        let mut usual = [0; USUAL_BYTES];
        match fs::fgetxattr(self, name, &mut usual) {
            Ok(length) => Ok(usual[..length].to_vec()),
            Err(Errno::RANGE) => {
                let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
                let length = fs::fgetxattr(self, name, &mut *value)?;
                value.truncate(length);
                Ok(value)
            }
            Err(errno) => Err(errno),
        }
    }

    fn inode(&self) -> Option<u64> {
        fs::fstat(self).ok().map(|found| found.st_ino)
    }
}

/// Whether a file system that answers so will never know any attribute of this kind.
pub(super) fn is_never(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS)
}
