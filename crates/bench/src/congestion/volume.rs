//! A parallel file system that really runs, each of its servers on a device that can be slowed: a GlusterFS volume that distributes whole
//! files over bricks, or a CephFS whose files are cut into objects on OSDs.
//!
//! `testbed gluster-volume` and `testbed ceph-volume` (lab/testbed) serve and mount it, in a network of its own. Where something lies is
//! decided by the hash of a name, not by who writes it. It tells nothing of its requests; the devices are watched instead ([`sampler`]).
//! What differs between the two is in [`Servers`].
//!
//! What must stay true: nothing of a file may be in a cache when it is to be read, and what was written counts as written when it is on
//! the devices.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::Advice;
use rustix::process::Signal;
use serde_json::Value;

use super::device::{Bytes, Device, Direction};
use super::filesystem::{FileSystem, Moved, Seen, Watch};
use super::sampler::{self, Sample, Sampler};
use super::{System, TARGETS};
use crate::process::{Guarded, descendants, look, signal, ticks, unblock_signals};
use crate::tree::remove;

/// It unmounts and ends within this, or is killed.
const ENDS: Duration = Duration::from_secs(30);
/// What it does in the background is done within this.
const SETTLES: Duration = Duration::from_secs(60);
/// Devices that move less than so much in this time are idle.
const IDLE: Duration = Duration::from_millis(500);
const IDLE_BYTES: u64 = 1 << 20;
/// Directory of each server on its device.
const PLACE: &str = "server";
/// Of the bytes of the files so many must have come from the devices, or gone to them. The rest is the client's, whose caches
/// cannot be emptied from outside.
const MOVED_MIN: f64 = 0.97;

/// What serves the files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Servers {
    /// Of GlusterFS.
    Bricks,
    /// Of Ceph.
    Osds,
}

impl Servers {
    /// Those of a system, if it has any.
    pub const fn of(system: System) -> Option<Servers> {
        match system {
            System::Stripefs => None,
            System::Gluster => Some(Servers::Bricks),
            System::Ceph => Some(Servers::Osds),
        }
    }

    /// How the testbed calls the whole and the parts: a command, an option, a field of its answer.
    const fn words(self) -> [&'static str; 3] {
        match self {
            Servers::Bricks => ["gluster-volume", "--brick", "bricks"],
            Servers::Osds => ["ceph-volume", "--osd", "osds"],
        }
    }

    /// What a server's own file system needs on the device, beside the server's files.
    const fn spare_bytes(self) -> u64 {
        match self {
            Servers::Bricks => 0,
            Servers::Osds => 128 << 20,
        }
    }

    /// How it is run, for servers with room for so many bytes.
    fn arguments(self, bytes: u64) -> Vec<String> {
        let options: &[&str] = match self {
            // Clients keep what they read for a second or more, and all runs read the same files.
            Servers::Bricks => &["performance.io-cache=off", "performance.quick-read=off"],
            Servers::Osds => &[
                // For the same reason neither the client nor OSDs keep contents.
                "client_oc=false",
                "bluestore_default_buffered_read=false",
                "bluestore_cache_size=16777216",
                // Devices in memory need no log for small writes, which would be written twice.
                "bluestore_prefer_deferred_size=0",
                "bluestore_prefer_deferred_size_hdd=0",
                "bluestore_prefer_deferred_size_ssd=0",
                // Eleven OSDs and more on a small machine.
                "bluestore_rocksdb_options=compression=kNoCompression,max_write_buffer_number=2,write_buffer_size=8388608",
            ],
        };
        let mut words: Vec<String> =
            options.iter().flat_map(|option| ["--option".to_owned(), (*option).to_owned()]).collect();
        if self == Servers::Osds {
            words.extend(["--osd-bytes".to_owned(), bytes.to_string()]);
            words.extend(["--groups", "512", "--names-apart"].map(String::from));
        }
        words
    }
}

/// One volume. It ends, and its devices go, when it is dropped.
pub struct Volume {
    directory: PathBuf,
    servers: Servers,
    process: Mutex<Guarded>,
    pid: i32,
    answers: Mutex<BufReader<ChildStdout>>,
    programs: Option<PathBuf>,
    // Dropped after the processes that use them.
    devices: Arc<Vec<Device>>,
    parent: PathBuf,
}

impl Volume {
    /// In a directory that is made: servers with room for so many bytes each. `testbed` is the program.
    pub fn new(parent: &Path, testbed: &Path, servers: Servers, bytes: u64) -> io::Result<Volume> {
        fs::create_dir(parent)?;
        let directory = parent.join("mount");
        fs::create_dir(&directory)?;
        let mut devices = Vec::new();
        for number in 0..TARGETS {
            devices.push(Device::new(parent, &format!("target-{number}"), bytes + servers.spare_bytes())?);
        }
        let [served, each, told_as] = servers.words();
        let mut command = Command::new(testbed);
        command.arg(served).arg(parent.join("daemon")).arg("--mount").arg(&directory);
        for device in &devices {
            command.arg(each).arg(device.directory.join(PLACE));
        }
        command.args(servers.arguments(bytes));
        let errors = parent.join("stderr");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(fs::File::create(&errors)?);
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", testbed.display()));
        let mut process = Guarded::spawn(unblock_signals(&mut command)).map_err(named)?;
        let answers = process.child().stdout.take().ok_or_else(|| io::Error::other("there is no pipe"))?;
        let mut made = Volume {
            directory,
            servers,
            pid: process.pid(),
            process: Mutex::new(process),
            answers: Mutex::new(BufReader::new(answers)),
            programs: None,
            devices: Arc::new(devices),
            parent: parent.to_owned(),
        };
        // One line when all of it runs, none where it ends before.
        let told = made.answer()?;
        if told[told_as].as_array().is_none_or(|told| told.len() != TARGETS) {
            let said = fs::read_to_string(&errors).unwrap_or_default();
            return Err(io::Error::other(format!("no {served}: {}", said.trim())));
        }
        made.programs = told["programs"].as_str().map(PathBuf::from);
        Ok(made)
    }

    /// Where there are programs that ask it, if it has such.
    pub fn programs(&self) -> Option<&Path> {
        self.programs.as_deref()
    }

    /// The next line of the testbed; null where there is none.
    fn answer(&self) -> io::Result<Value> {
        let mut line = String::new();
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).read_line(&mut line)?;
        Ok(serde_json::from_str(&line).unwrap_or_default())
    }

    fn place(&self, target: usize) -> PathBuf {
        self.devices[target].directory.join(PLACE)
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

    /// Files are whole on bricks, where they are looked at.
    fn bytes_on_bricks(&self, tree: &str) -> io::Result<Vec<u64>> {
        let of = |target| {
            let mut bytes = 0;
            each_file(&self.place(target).join(tree), &mut |_, found| {
                bytes += found;
                Ok(())
            })?;
            Ok(bytes)
        };
        (0..TARGETS).map(of).collect()
    }

    /// Which OSD has which object the cluster tells the testbed.
    fn bytes_on_osds(&self, tree: &str) -> io::Result<Vec<u64>> {
        let tree = self.directory.join(tree);
        if !tree.is_dir() {
            return Ok(vec![0; TARGETS]);
        }
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let input = process.child().stdin.as_mut().ok_or_else(|| io::Error::other("there is no pipe"))?;
        writeln!(input, "{}", tree.display())?;
        let told = self.answer()?;
        let bytes =
            told["bytes"].as_array().map(|all| all.iter().filter_map(Value::as_u64).collect::<Vec<_>>());
        bytes.filter(|bytes| bytes.len() == TARGETS).ok_or_else(|| {
            let said = fs::read_to_string(self.parent.join("stderr")).unwrap_or_default();
            io::Error::other(format!("where files lie is not known: {}", said.trim()))
        })
    }

    /// What was removed, say, is removed from OSDs when they have time.
    fn wait_until_idle(&self) -> io::Result<()> {
        let moved = || -> io::Result<u64> {
            let all = self.devices.iter().map(Device::moved).collect::<io::Result<Vec<Bytes>>>()?;
            Ok(all.iter().map(|bytes| bytes.read + bytes.written).sum())
        };
        let until = Instant::now() + SETTLES;
        let mut before = moved()?;
        while Instant::now() < until {
            std::thread::sleep(IDLE);
            let now = moved()?;
            if now - before < IDLE_BYTES {
                return Ok(());
            }
            before = now;
        }
        Err(io::Error::other(format!("{} does not settle", self.directory.display())))
    }
}

impl FileSystem for Volume {
    fn directory(&self) -> &Path {
        &self.directory
    }

    fn change_limit(&self, target: usize, rate: u64, direction: Direction) -> io::Result<()> {
        self.devices[target].change_limit(rate, direction)
    }

    fn limit(&self, target: usize, rate: u64) -> io::Result<()> {
        self.devices[target].limit(rate)
    }

    fn settle(&self) -> io::Result<()> {
        self.flush()?;
        each_file(&self.directory, &mut |path, _| forget(path))?;
        match self.servers {
            Servers::Bricks => (0..TARGETS)
                .try_for_each(|target| each_file(&self.place(target), &mut |path, _| forget(path))),
            Servers::Osds => self.wait_until_idle(),
        }
    }

    fn bytes_of(&self, tree: &str) -> io::Result<Vec<u64>> {
        match self.servers {
            Servers::Bricks => self.bytes_on_bricks(tree),
            Servers::Osds => self.bytes_on_osds(tree),
        }
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

    /// Of the servers and the client.
    fn processor_time(&self) -> Duration {
        let below = descendants(self.pid).into_iter();
        below.chain(look(self.pid)).map(|seen| ticks(seen.ticks)).sum()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = self.unlimited();
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        // It takes everything down when its standard input ends.
        drop(process.child().stdin.take());
        if process.wait(ENDS).is_none() {
            signal(self.pid, Signal::TERM);
            process.wait(ENDS);
            process.kill();
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
