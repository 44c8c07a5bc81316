//! A mounted file system.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fuser::{BackgroundSession, Config, Filesystem, MountOption};

/// What every mount of the laboratory wants, for a file system of this name whose requests so many threads take.
pub fn config(name: &str, threads: usize) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(name.into()),
        MountOption::Subtype(name.into()),
        MountOption::DefaultPermissions,
        MountOption::NoSuid,
        MountOption::NoDev,
    ];
    config.n_threads = Some(threads);
    config
}

/// Unmounts when it is dropped, also while files in it are still open.
pub struct Mount {
    directory: PathBuf,
    session: Option<BackgroundSession>,
}

impl Mount {
    /// Mounts over an existing directory: by itself as root, else through `fusermount3`.
    pub fn new(filesystem: impl Filesystem, directory: &Path, config: &Config) -> io::Result<Mount> {
        let session = fuser::spawn_mount(filesystem, directory, config)?;
        Ok(Mount { directory: directory.to_path_buf(), session: Some(session) })
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        // A plain unmount fails while files are open, and waiting for the session then could wait for ever.
        if !detach(&self.directory) && session.umount_and_join().is_err() {
            eprintln!("{} could not be unmounted", self.directory.display());
        }
    }
}

/// Lets go of what is mounted there, and ends every request to it that is not answered: of a file system that nobody wants
/// any more, and whose process may hang. Whoever waits for such a request could not even be killed.
pub fn abort(directory: &Path) -> bool {
    use rustix::mount::{UnmountFlags, unmount};
    unmount(directory, UnmountFlags::FORCE | UnmountFlags::DETACH).is_ok() || detach(directory)
}

/// Lets go of what is mounted there; also of a mount whose process was killed, whose directory answers nothing but
/// "not connected". False if it could not be.
pub fn detach(directory: &Path) -> bool {
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
