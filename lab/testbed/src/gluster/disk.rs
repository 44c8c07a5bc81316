//! XFS in a file, on a loop device: what a brick stands on.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::network::succeed;
use crate::remember_mount;

/// XFS makes none smaller than 300 MB; the file has holes where nothing was written.
const BYTES_MIN: u64 = 320 << 20;

/// A mounted image; unmounted, and its device freed, when it is dropped.
pub struct Disk {
    at: PathBuf,
}

impl Disk {
    /// Makes `DIRECTORY/NAME.xfs` and mounts it at `DIRECTORY/NAME`.
    pub fn make(directory: &Path, name: &str, bytes: u64) -> io::Result<Disk> {
        let (image, at) = (directory.join(format!("{name}.xfs")), directory.join(name));
        File::create(&image)?.set_len(bytes.max(BYTES_MIN))?;
        fs::create_dir(&at)?;
        succeed(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(&image))?;
        remember_mount(at.clone());
        succeed(Command::new("mount").args(["-o", "loop,noatime"]).arg(&image).arg(&at))?;
        Ok(Disk { at })
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.at
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The device goes with the last of its users, also where one is still there.
        if let Err(error) = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH) {
            eprintln!("testbed: {}: {error}", self.at.display());
        }
    }
}
