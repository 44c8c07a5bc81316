//! For tests: a file system with huge pages.

use std::path::Path;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

/// Calls `work` in a thread for which this directory is a file system in memory with huge pages; not where nobody may mount one.
pub(crate) fn with_huge_pages(directory: &Path, work: impl FnOnce() + Send) {
    with_memory(directory, c"size=128m,huge=always", work);
}

/// The same with these options.
pub(crate) fn with_memory(directory: &Path, options: &std::ffi::CStr, work: impl FnOnce() + Send) {
    let apart = || {
        // SAFETY: nothing is shared with other threads but memory and descriptors, which it leaves alone.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            return false;
        }
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        mount("none", directory, "tmpfs", MountFlags::empty(), Some(options)).unwrap();
        work();
        true
    };
    if !std::thread::scope(|scope| scope.spawn(apart).join().unwrap()) {
        haul_testkit::lacks("root, to mount a file system");
    }
}
