//! A mounted crash file system.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fuser::{BackgroundSession, Config, MountOption};

use crate::fuse::Adapter;
use crate::handle::CrashFs;

/// Threads that answer the kernel: operations of two processes overlap, more only wait for each other.
const THREADS: usize = 2;

/// Unmounts when it is dropped, also while files in it are still open.
pub struct Mount {
    directory: PathBuf,
    session: Option<BackgroundSession>,
}

impl Mount {
    /// Mounts over an existing directory: by itself as root, else through `fusermount3`.
    pub fn new(filesystem: &CrashFs, directory: &Path) -> io::Result<Mount> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("crashfs".into()),
            MountOption::Subtype("crashfs".into()),
            MountOption::DefaultPermissions,
            MountOption::NoSuid,
            MountOption::NoDev,
        ];
        config.n_threads = Some(THREADS);
        let session = fuser::spawn_mount(Adapter::new(filesystem.clone()), directory, &config)?;
        Ok(Mount { directory: directory.to_path_buf(), session: Some(session) })
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Lets go of a mount whose process was killed: its directory answers nothing but "not connected".
    pub fn detach_stale(directory: &Path) {
        detach(directory);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        // A plain unmount fails while files are open, and waiting for the session then could wait for ever.
        if !detach(&self.directory) && session.umount_and_join().is_err() {
            eprintln!("crashfs: {} could not be unmounted", self.directory.display());
        }
    }
}

fn detach(directory: &Path) -> bool {
    if rustix::mount::unmount(directory, rustix::mount::UnmountFlags::DETACH).is_ok() {
        return true;
    }
    Command::new("fusermount3")
        .args(["-u", "-z", "-q", "--"])
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
