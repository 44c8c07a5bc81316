//! Disks that can lose power: the crash file system, which forgets by a seeded choice, and file systems of the kernel in
//! an image, which are shut down with all that they have not written. What they find when they are mounted again is their
//! own recovery's.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use haul_crashfs::{CrashFs, CrashReport, Kind, Mood, Mount, SyncClass};

use crate::network::succeed;
use crate::remember_mount;
use crate::rounds::MIB;

/// XFS makes none smaller than 300 MB; the image has holes where nothing was written.
const IMAGE_BYTES: u64 = 400 * MIB;

const CLOSED_LATE: Duration = Duration::from_secs(10);

/// What a disk is made of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Medium {
    /// Loses what was not synced, more or less of it.
    Crashfs,
    /// With its journal, in an image.
    Ext4,
    /// In an image.
    Xfs,
}

impl Medium {
    /// Each of them.
    pub const ALL: [Medium; 3] = [Medium::Crashfs, Medium::Ext4, Medium::Xfs];

    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Medium::Crashfs => "crashfs",
            Medium::Ext4 => "ext4",
            Medium::Xfs => "xfs",
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A disk that can lose power, mounted until it is dropped.
pub enum Disk {
    /// See there.
    Crashfs {
        /// Its insides.
        filesystem: CrashFs,
        /// Where it can be seen.
        _mount: Mount,
    },
    /// A file system of the kernel.
    Image(Image),
}

impl Disk {
    /// A new, empty one at `at`; `image` is the file that it is in, if it needs one.
    pub fn new(medium: Medium, seed: u64, at: &Path, image: &Path) -> io::Result<Disk> {
        fs::create_dir_all(at)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", at.display())))?;
        remember_mount(at.to_owned());
        if medium != Medium::Crashfs {
            return Ok(Disk::Image(Image::make(medium, at, image)?));
        }
        let filesystem = CrashFs::new(seed);
        let mount = Mount::new(&filesystem, at).map_err(|error| {
            io::Error::new(error.kind(), format!("mounting needs fuse3 and /dev/fuse (make deps): {error}"))
        })?;
        Ok(Disk::Crashfs { filesystem, _mount: mount })
    }

    /// All that is there becomes durable.
    pub fn sync(&self) -> io::Result<()> {
        match self {
            Disk::Crashfs { filesystem, .. } => filesystem.sync_all(),
            Disk::Image(image) => rustix::fs::syncfs(File::open(&image.at)?)?,
        }
        Ok(())
    }

    /// What was not synced is lost, or some of it. Nobody may have a file open. Seed and mood are the crash file system's.
    pub fn cut_power(&self, seed: u64, mood: Option<Mood>) -> io::Result<()> {
        match self {
            Disk::Crashfs { filesystem, .. } => drop(filesystem.crash(seed, mood)),
            Disk::Image(image) => image.cut_power()?,
        }
        Ok(())
    }

    /// The crash file system behind it, if it is one: with faults and counters.
    pub fn crashfs(&self) -> Option<&CrashFs> {
        match self {
            Disk::Crashfs { filesystem, .. } => Some(filesystem),
            Disk::Image(_) => None,
        }
    }

    /// Syncs of these kinds do nothing, where that can be.
    pub fn lie(&self, classes: &[SyncClass]) {
        for class in classes {
            if let Some(filesystem) = self.crashfs() {
                filesystem.faults().lie(class.clone());
            }
        }
    }

    /// Writes take their time, where they can be made to.
    pub fn slow_writes(&self, each: Duration) {
        if let Some(filesystem) = self.crashfs() {
            filesystem.faults().slow(Kind::Write, each);
        }
    }

    /// What power cuts have lost, where it is counted.
    pub fn lost(&self) -> CrashReport {
        self.crashfs().map(|filesystem| filesystem.statistics().lost).unwrap_or_default()
    }
}

/// ext4 or XFS in a file. By itself ext4 writes only after ten minutes: what was not synced is lost.
pub struct Image {
    path: PathBuf,
    at: PathBuf,
    options: &'static str,
}

impl Image {
    fn make(medium: Medium, at: &Path, path: &Path) -> io::Result<Image> {
        File::create(path)?.set_len(IMAGE_BYTES)?;
        let (mut mkfs, options) = match medium {
            Medium::Xfs => (Command::new("mkfs.xfs"), "loop"),
            _ => (Command::new("mkfs.ext4"), "loop,commit=600"),
        };
        let force = if medium == Medium::Xfs { "-f" } else { "-F" };
        succeed(mkfs.args(["-q", force]).arg(path))?;
        let image = Image { path: path.to_owned(), at: at.to_owned(), options };
        image.mount()?;
        let owner =
            format!("{}:{}", rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        succeed(privileged("chown").arg(owner).arg(&image.at))?;
        Ok(image)
    }

    fn mount(&self) -> io::Result<()> {
        succeed(privileged("mount").args(["-o", self.options]).arg(&self.path).arg(&self.at)).map(drop)
    }

    /// The kernel closes what a killed process had in a ring of io_uring some time after the process has gone.
    fn unmount(&self) -> io::Result<()> {
        let deadline = Instant::now() + CLOSED_LATE;
        loop {
            match succeed(privileged("umount").arg(&self.at)) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
                ended => return ended.map(drop),
            }
        }
    }

    fn cut_power(&self) -> io::Result<()> {
        succeed(privileged("xfs_io").args(["-x", "-c", "shutdown"]).arg(&self.at))?;
        self.unmount()?;
        self.mount()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("testbed: {}: {error}", self.at.display());
        }
    }
}

/// Loop devices and their file systems are root's; an ordinary user needs `sudo -n`, as for installing what the tests need.
fn privileged(program: &str) -> Command {
    if rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.args(["-n", program]);
    command
}
