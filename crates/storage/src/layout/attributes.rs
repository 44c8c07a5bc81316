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

    /// What else is known of the file, where something is.
    fn status(&self) -> Option<Status> {
        None
    }
}

/// A file on its file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Its number.
    pub inode: u64,
    /// Its bytes.
    pub size: u64,
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

    fn status(&self) -> Option<Status> {
        let found = fs::fstat(self).ok()?;
        Some(Status { inode: found.st_ino, size: found.st_size.try_into().unwrap_or(0) })
    }
}

/// Whether a file system that answers so will never know any attribute of this kind.
pub(super) fn is_never(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS)
}
