//! A GlusterFS volume that distributes whole files over bricks, each brick on a device that can be slowed.
//!
//! `testbed gluster-volume` (lab/testbed) serves and mounts it, in a network of its own. Where a file lies is decided by the hash of
//! its name, not by who writes it. It tells nothing of its requests; the devices are watched instead ([`sampler`]).
//!
//! What must stay true: its bricks use the page cache, so nothing of a file may be in there when it is to be read, and what was written
//! counts as written when it is on the devices.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::Advice;
use rustix::process::Signal;
use serde_json::Value;

use super::TARGETS;
use super::device::{Bytes, Device};
use super::filesystem::{FileSystem, Moved, Seen, Watch};
use super::sampler::{self, Sample, Sampler};
use crate::process::{Guarded, descendants, look, signal, ticks, unblock_signals};
use crate::tree::remove;

/// It unmounts and ends within this, or is killed.
const ENDS: Duration = Duration::from_secs(30);
/// Directory of each brick on its device.
const BRICK: &str = "brick";
/// Of the bytes of the files so many must have come from the devices, or gone to them. The rest is the client's, whose caches
/// cannot be emptied from outside.
const MOVED_MIN: f64 = 0.97;
/// Clients keep what they read for a second or more, and all runs read the same files.
const OPTIONS: [&str; 2] = ["performance.io-cache=off", "performance.quick-read=off"];

/// One volume. It ends, and its devices go, when it is dropped.
pub struct Volume {
    directory: PathBuf,
    process: Guarded,
    // Dropped after the processes that use them.
    devices: Arc<Vec<Device>>,
    parent: PathBuf,
}

impl Volume {
    /// In a directory that is made: bricks with room for so many bytes each. `testbed` is the program.
    pub fn new(parent: &Path, testbed: &Path, bytes: u64) -> io::Result<Volume> {
        fs::create_dir(parent)?;
        let directory = parent.join("mount");
        fs::create_dir(&directory)?;
        let mut devices = Vec::new();
        for number in 0..TARGETS {
            let device = Device::new(parent, &format!("target-{number}"), bytes)?;
            device.hold_writers()?;
            devices.push(device);
        }
        let mut command = Command::new(testbed);
        command.arg("gluster-volume").arg(parent.join("daemon")).arg("--mount").arg(&directory);
        for device in &devices {
            command.arg("--brick").arg(device.directory.join(BRICK));
        }
        for option in OPTIONS {
            command.args(["--option", option]);
        }
        let errors = parent.join("stderr");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(fs::File::create(&errors)?);
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", testbed.display()));
        let process = Guarded::spawn(unblock_signals(&mut command)).map_err(named)?;
        let mut made = Volume { directory, process, devices: Arc::new(devices), parent: parent.to_owned() };
        // One line when all of it runs, none where it ends before.
        let mut line = String::new();
        if let Some(output) = made.process.child().stdout.as_mut() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let told: Value = serde_json::from_str(&line).unwrap_or_default();
        if told["bricks"].as_array().is_none_or(|bricks| bricks.len() != TARGETS) {
            let said = fs::read_to_string(&errors).unwrap_or_default();
            return Err(io::Error::other(format!("no GlusterFS volume: {}", said.trim())));
        }
        Ok(made)
    }

    fn brick(&self, target: usize) -> PathBuf {
        self.devices[target].directory.join(BRICK)
    }

    /// Bytes of files that were moved, against what devices moved: too few came out of a cache, or never arrived.
    fn check(&self, bytes: &[u64], samples: &[Sample], of: fn(&Bytes) -> u64) -> io::Result<()> {
        let moved: u64 = samples.last().map_or(0, |sample| sample.moved.iter().map(of).sum());
        let files: u64 = bytes.iter().sum();
        if moved as f64 >= files as f64 * MOVED_MIN {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{}: of {files} bytes of files only {moved} were moved by the devices",
            self.directory.display()
        )))
    }
}

impl FileSystem for Volume {
    fn directory(&self) -> &Path {
        &self.directory
    }

    fn limit(&self, target: usize, rate: u64) -> io::Result<()> {
        self.devices[target].limit(rate)
    }

    fn settle(&self) -> io::Result<()> {
        self.flush()?;
        each_file(&self.directory, &mut |path, _| forget(path))?;
        (0..TARGETS).try_for_each(|target| each_file(&self.brick(target), &mut |path, _| forget(path)))
    }

    fn bytes_of(&self, tree: &str) -> io::Result<Vec<u64>> {
        let of = |target| {
            let mut bytes = 0;
            each_file(&self.brick(target).join(tree), &mut |_, found| {
                bytes += found;
                Ok(())
            })?;
            Ok(bytes)
        };
        (0..TARGETS).map(of).collect()
    }

    fn flush(&self) -> io::Result<()> {
        std::thread::scope(|scope| {
            let flushes: Vec<_> = self.devices.iter().map(|device| scope.spawn(|| device.flush())).collect();
            flushes.into_iter().try_for_each(|flush| {
                flush.join().unwrap_or_else(|_| Err(io::Error::other("a flush has panicked")))
            })
        })
    }

    fn watch(&self) -> io::Result<Watch> {
        Sampler::new(self.devices.clone()).map(Watch::Devices)
    }

    fn seen(&self, watch: Watch, started: Instant, moved: Moved) -> io::Result<Seen> {
        let Watch::Devices(sampler) = watch else {
            return Err(io::Error::other("another file system's watch"));
        };
        let samples = sampler.finish()?;
        let (bytes, of): (_, fn(&Bytes) -> u64) = match moved {
            Moved::Read(bytes) => (bytes.to_vec(), |bytes| bytes.read),
            Moved::Written(tree) => (self.bytes_of(tree)?, |bytes| bytes.written),
        };
        self.check(&bytes, &samples, of)?;
        let end = |(target, bytes): (usize, &u64)| sampler::end_of(&samples, target, *bytes, started, of);
        Ok(Seen { ends: bytes.iter().enumerate().map(end).collect(), bytes, requests: None })
    }

    /// Of the daemon, the bricks and the client.
    fn processor_time(&self) -> Duration {
        let below = descendants(self.process.pid()).into_iter();
        below.chain(look(self.process.pid())).map(|seen| ticks(seen.ticks)).sum()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = self.unlimited();
        // It takes everything down when its standard input ends.
        drop(self.process.child().stdin.take());
        if self.process.wait(ENDS).is_none() {
            signal(self.process.pid(), Signal::TERM);
            self.process.wait(ENDS);
            self.process.kill();
        }
        self.devices = Arc::default();
        let _ = remove(&self.parent);
    }
}

/// All files below a directory, with their sizes; none where there is no such directory. What a brick keeps for itself is left out.
fn each_file(directory: &Path, act: &mut dyn FnMut(&Path, u64) -> io::Result<()>) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name() == ".glusterfs" {
            continue;
        }
        let found = entry.metadata()?;
        match found.is_dir() {
            true => each_file(&entry.path(), act)?,
            false => act(&entry.path(), found.len())?,
        }
    }
    Ok(())
}

/// What is in the page cache of a file, and on its device, goes.
fn forget(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::fadvise(fs::File::open(path)?, 0, None, Advice::DontNeed)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_brick_are_those_below_its_directories_and_not_its_own() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        fs::create_dir_all(path("tree/deep")).unwrap();
        fs::create_dir_all(path(".glusterfs/ab")).unwrap();
        fs::write(path("tree/one"), [1; 10]).unwrap();
        fs::write(path("tree/deep/two"), [2; 5]).unwrap();
        // Leads to another brick.
        fs::write(path("tree/three"), []).unwrap();
        fs::write(path(".glusterfs/ab/handle"), [3; 99]).unwrap();
        let mut found = Vec::new();
        each_file(scratch.path(), &mut |path, bytes| {
            forget(path)?;
            found.push((path.file_name().unwrap().to_str().unwrap().to_owned(), bytes));
            Ok(())
        })
        .unwrap();
        found.sort();
        assert_eq!(found, [("one".into(), 10), ("three".into(), 0), ("two".into(), 5)]);
        let mut count = 0;
        each_file(&path("nothing"), &mut |_, _| {
            count += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(count, 0);
    }
}
