//! Where everything happens: parallel file systems, and the files that are moved.
//!
//! All of it is in memory, in a mount namespace that only this process and its children have ([`own_mounts`](crate::evaluation::own_mounts)). So when they end,
//! also by SIGKILL, the kernel unmounts everything and frees the memory and the loop devices. What would stay are the limits
//! of the devices' numbers; [`leave_nothing`] lifts them. (After SIGKILL the bricks of a GlusterFS volume stay as well: its daemon
//! lets them run without it.)

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::filesystem::FileSystem;
use super::stripes::Stripes;
use super::volume::{Servers, Volume};
use super::{Settings, TARGETS, Throttle, device};
use crate::evaluation::{Lottery, say, tool};
use crate::tree::remove;

/// Room for what a file system keeps beside the files: its own log, other objects than those of a run, probes.
const SPARE_BYTES: u64 = 192 << 20;

/// How far the fullest server may be above the mean, as files lie where their names hash to; and there are two trees.
const SERVERS_ROOM: u64 = 3;

/// The laboratory.
pub struct Laboratory {
    systems: Systems,
    /// A directory in memory, for what is no parallel file system.
    pub plain: PathBuf,
    /// Bytes of the files on each target of the source; none on any where no end reads.
    pub source_bytes: Vec<u64>,
    root: Root,
}

/// What there is at the ends.
enum Systems {
    /// One for each: source, sink.
    Stripes(Box<[Stripes; 2]>),
    /// The same for either.
    Volume(Box<Volume>),
}

/// A file system in memory; unmounted and removed when it is dropped.
struct Root(PathBuf);

impl Drop for Root {
    fn drop(&mut self) {
        leave_nothing();
    }
}

/// What a signal must not leave behind.
static ROOT: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Unmounts the laboratory and lifts all limits; for a process that is about to end, and whose children have ended.
pub fn leave_nothing() {
    device::lift_all();
    if let Some(root) = ROOT.lock().unwrap_or_else(PoisonError::into_inner).take() {
        let _ = tool(Command::new("umount").arg("--lazy").arg(&root));
        let _ = fs::remove_dir(&root);
    }
}

impl Laboratory {
    /// The name of the tree that is moved.
    pub const TREE: &str = "tree";
    /// And of what is made of it.
    pub const COPY: &str = "copy";

    /// Makes it; [`own_mounts`](crate::evaluation::own_mounts) was called.
    pub fn new(settings: &Settings) -> io::Result<Laboratory> {
        fs::create_dir_all(&settings.directory)?;
        let root =
            tempfile::Builder::new().prefix("haul-congestion-").tempdir_in(&settings.directory)?.keep();
        *ROOT.lock().unwrap_or_else(PoisonError::into_inner) = Some(root.clone());
        let root = Root(root);
        tool(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", "size=90%,mode=700", "haul-congestion"])
                .arg(&root.0),
        )?;
        let plain = root.0.join("plain");
        fs::create_dir(&plain)?;
        let systems = Systems::new(settings, &root.0)?;
        let mut made = Laboratory { systems, plain, source_bytes: vec![0; TARGETS], root };
        if made.stripes().is_some() || settings.ends.iter().any(|end| end.reads()) {
            made.fill(settings)?;
        }
        Ok(made)
    }

    fn fill(&mut self, settings: &Settings) -> io::Result<()> {
        let source = self.source();
        fill(&source.directory().join(Self::TREE), settings.files(), settings.system.file_bytes())?;
        source.settle()?;
        self.source_bytes = source.bytes_of(Self::TREE)?;
        if settings.throttle == Throttle::Kernel {
            // Of files that are written here, and read from here, nothing is to be in a cache.
            tool(Command::new("sync").arg("-f").arg(self.source().directory()))?;
        }
        Ok(())
    }

    /// Where files are read from, with [`Laboratory::TREE`] in it.
    pub fn source(&self) -> &dyn FileSystem {
        match &self.systems {
            Systems::Stripes(both) => &both[0],
            Systems::Volume(volume) => &**volume,
        }
    }

    /// Where files are written to; [`Laboratory::COPY`] is not there between runs.
    pub fn sink(&self) -> &dyn FileSystem {
        match &self.systems {
            Systems::Stripes(both) => &both[1],
            Systems::Volume(volume) => &**volume,
        }
    }

    /// The emulated ones, source and sink, if they are.
    pub fn stripes(&self) -> Option<&[Stripes; 2]> {
        match &self.systems {
            Systems::Stripes(both) => Some(both),
            Systems::Volume(_) => None,
        }
    }

    /// Where movers find programs that ask the file system, before all others, if it has such.
    pub fn programs(&self) -> Option<&Path> {
        match &self.systems {
            Systems::Stripes(_) => None,
            Systems::Volume(volume) => volume.programs(),
        }
    }

    /// Where a run keeps what it needs besides the file systems.
    pub fn scratch_path(&self) -> PathBuf {
        self.root.0.join("run")
    }

    /// The same, made anew.
    pub fn scratch(&self) -> io::Result<PathBuf> {
        let scratch = self.scratch_path();
        remove(&scratch)?;
        fs::create_dir(&scratch)?;
        Ok(scratch)
    }

    /// As many files as the source has, in memory, for movers that cannot compute what they write: one file by many names.
    pub fn plain_tree(&self, settings: &Settings) -> io::Result<PathBuf> {
        let tree = self.plain.join(Self::TREE);
        if !tree.is_dir() {
            fs::create_dir(&tree)?;
            write_file(&tree.join("f0"), settings.system.file_bytes(), 0)?;
            (1..settings.files())
                .try_for_each(|number| fs::hard_link(tree.join("f0"), tree.join(format!("f{number}"))))?;
        }
        Ok(tree)
    }

    /// Nothing is limited, and what runs have written is gone.
    pub fn clear(&self) -> io::Result<()> {
        self.source().unlimited()?;
        self.sink().unlimited()?;
        remove(&self.sink().directory().join(Self::COPY))?;
        remove(&self.plain.join(Self::COPY))?;
        self.sink().settle()
    }
}

impl Systems {
    fn new(settings: &Settings, root: &Path) -> io::Result<Systems> {
        let even = settings.bytes() / TARGETS as u64;
        let Some(servers) = Servers::of(settings.system) else {
            say("making two parallel file systems");
            let bytes = even * 5 / 4 + SPARE_BYTES;
            let make = |name| Stripes::new(&root.join(name), &settings.stripefs, bytes, settings.throttle);
            return Ok(Systems::Stripes(Box::new([make("source")?, make("sink")?])));
        };
        let name = settings.system.name();
        say(&format!("making a volume ({name})"));
        let bytes = even * SERVERS_ROOM + SPARE_BYTES;
        Ok(Systems::Volume(Volume::new(&root.join(name), &settings.testbed, servers, bytes)?.into()))
    }
}

fn fill(tree: &Path, files: u64, bytes: u64) -> io::Result<()> {
    fs::create_dir(tree)?;
    (0..files).try_for_each(|number| write_file(&tree.join(format!("f{number}")), bytes, number))
}

fn write_file(path: &Path, file_bytes: u64, seed: u64) -> io::Result<()> {
    let mut lottery = Lottery::new(seed);
    let mut bytes = vec![0; 1 << 20];
    bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&lottery.next().to_le_bytes()));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    for number in 0..file_bytes / bytes.len() as u64 {
        // Random bytes are slow to make; a number at the front makes each piece another one.
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&bytes)?;
    }
    Ok(())
}
