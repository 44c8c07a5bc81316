//! A mounted one.

use std::io;
use std::path::Path;

use crate::filesystem::StripeFs;
use crate::fuse::Adapter;

/// Threads that take requests from the kernel. They only hand them on, so two keep both directions flowing.
const THREADS: usize = 2;

/// Unmounts when it is dropped, also while files in it are open or requests hang.
pub struct Mount(haul_fuse::Mount);

impl Mount {
    /// Mounts over an existing directory: by itself as root, and then for all users, else through `fusermount3`.
    pub fn new(filesystem: &StripeFs, directory: &Path) -> io::Result<Mount> {
        let mut config = haul_fuse::config("stripefs", THREADS);
        config.clone_fd = true;
        if rustix::process::geteuid().is_root() {
            config.acl = fuser::SessionACL::All;
        }
        haul_fuse::Mount::new(Adapter::new(filesystem.clone()), directory, &config).map(Mount)
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        self.0.directory()
    }
}
