//! A mounted crash file system.

use std::io;
use std::path::Path;

use crate::fuse::Adapter;
use crate::handle::CrashFs;

/// Threads that answer the kernel: operations of two processes overlap, more only wait for each other.
const THREADS: usize = 2;

/// Unmounts when it is dropped, also while files in it are still open.
pub struct Mount(haul_fuse::Mount);

impl Mount {
    /// Mounts over an existing directory: by itself as root, else through `fusermount3`.
    pub fn new(filesystem: &CrashFs, directory: &Path) -> io::Result<Mount> {
        let config = haul_fuse::config("crashfs", THREADS);
        haul_fuse::Mount::new(Adapter::new(filesystem.clone()), directory, &config).map(Mount)
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        self.0.directory()
    }

    /// Lets go of a mount whose process was killed: its directory answers nothing but "not connected".
    pub fn detach_stale(directory: &Path) {
        haul_fuse::detach(directory);
    }

    /// The same for one whose process may hang: whoever waits for it is told that it is gone.
    pub fn abort(directory: &Path) {
        haul_fuse::abort(directory);
    }
}
