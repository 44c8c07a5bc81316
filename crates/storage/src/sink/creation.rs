//! Files that have their mode as soon as they are made: what need not be set afterwards costs nothing.
//!
//! Only where nobody can open a file before it is whole, as those without a name, and where nothing makes another mode of the
//! asked one: neither the process's umask nor what a directory hands down to what is made in it.

use std::os::fd::BorrowedFd;

use haul_model::Attributes;
use rustix::fs::{self, Mode};
use rustix::io::Errno;

use super::attributes::Preserve;
use super::directories::Directory;

/// Where access control lists are that new files inherit.
const INHERITED: &str = "system.posix_acl_default";
/// What a new file may be asked to have; a sticky bit is set like setuid and setgid, afterwards or never.
const PERMISSIONS: u32 = 0o777;

/// What new files of this process have of the mode that they are asked to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Creation {
    umask: u32,
}

impl Creation {
    /// As this process is now. Asking for its umask by setting it would change it for other threads.
    pub(super) fn of_this_process() -> Creation {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Creation { umask: umask_in(&status).unwrap_or(PERMISSIONS) }
    }

    /// The mode to make the file with, if it will be the wanted one.
    pub(super) fn mode(
        self,
        wanted: &Attributes,
        directory: &Directory,
        held: BorrowedFd<'_>,
    ) -> Option<Mode> {
        let mode = Preserve::file_mode(wanted);
        let as_asked = mode & (self.umask | !PERMISSIONS) == 0
            && !*directory.hands_down.get_or_init(|| hands_down(held));
        as_asked.then(|| Mode::from_raw_mode(mode))
    }
}

fn umask_in(status: &str) -> Option<u32> {
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(umask.trim(), 8).ok()
}

/// New files in this directory may get a list of those who have access.
fn hands_down(directory: BorrowedFd<'_>) -> bool {
    let none = [Errno::NODATA, Errno::OPNOTSUPP];
    !matches!(fs::fgetxattr(directory, INHERITED, &mut [0u8; 0]), Err(errno) if none.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_umask_is_read_where_the_kernel_tells_it() {
        assert_eq!(umask_in("Name:\thaul\nUmask:\t0027\nState:\tR (running)\n"), Some(0o027));
        assert_eq!(umask_in("Name:\thaul\n"), None, "before Linux 4.7");
        assert!(Creation::of_this_process().umask <= PERMISSIONS);
    }
}
