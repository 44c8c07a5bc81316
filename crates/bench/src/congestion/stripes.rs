//! The emulated parallel file system (lab/stripefs), over devices that can be slowed one by one or slow by itself.
//!
//! It tells of every request at every target ([`trace`]).

use std::ffi::CString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use rustix::process::Signal;
use serde_json::Value;

use super::device::{Device, Direction};
use super::filesystem::{FileSystem, Moved, Seen, Watch};
use super::trace::{self, Request};
use super::{STRIPE_BYTES, STRIPES, TARGETS, Throttle};
use crate::evaluation::tool;
use crate::process::{Guarded, look, signal, ticks, unblock_signals, wait_until};
use crate::tree::remove;

/// It ends and unmounts within this, or is killed.
const ENDS: Duration = Duration::from_secs(10);
/// And what it does in the background is done within this.
const SETTLES: Duration = Duration::from_secs(30);

/// One file system. It ends, and its devices go, when it is dropped.
pub struct Stripes {
    directory: PathBuf,
    process: Guarded,
    control: PathBuf,
    trace: PathBuf,
    throttle: Throttle,
    epoch: Instant,
    // Dropped after the process that uses them.
    devices: Vec<Device>,
    parent: PathBuf,
}

impl Stripes {
    /// In a directory that is made: targets with room for so many bytes each.
    pub fn new(parent: &Path, stripefs: &Path, bytes: u64, throttle: Throttle) -> io::Result<Stripes> {
        let path = |name: &str| parent.join(name);
        fs::create_dir(parent)?;
        let (directory, control, trace) = (path("mount"), path("control"), path("trace"));
        fs::create_dir(&directory)?;
        let mut devices = Vec::new();
        let mut directories = Vec::new();
        for number in 0..TARGETS {
            let name = format!("target-{number}");
            match throttle {
                Throttle::Kernel => {
                    let device = Device::new(parent, &name, bytes)?;
                    directories.push(device.directory.clone());
                    devices.push(device);
                }
                Throttle::Emulated => {
                    fs::create_dir(path(&name))?;
                    directories.push(path(&name));
                }
            }
        }
        let mut command = Command::new(stripefs);
        command.arg(&directory).arg("--targets").args(&directories);
        command.arg("--mds").arg(path("mds")).arg("--control").arg(&control).arg("--trace").arg(&trace);
        command.args(["--stripe-count", &STRIPES.to_string(), "--stripe-size", &STRIPE_BYTES.to_string()]);
        if throttle == Throttle::Kernel {
            command.arg("--direct");
        }
        let errors = fs::File::create(path("stderr"))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", stripefs.display()));
        let mut process = Guarded::spawn(unblock_signals(&mut command)).map_err(named)?;
        let mut line = String::new();
        if let Some(output) = process.child().stdout.as_mut() {
            BufReader::new(output).read_line(&mut line)?;
        }
        if !line.starts_with("mounted ") {
            let said = fs::read_to_string(path("stderr")).unwrap_or_default();
            return Err(io::Error::other(format!("{} does not mount: {}", stripefs.display(), said.trim())));
        }
        let mut made = Stripes {
            directory,
            process,
            control,
            trace,
            throttle,
            epoch: Instant::now(),
            devices,
            parent: parent.to_owned(),
        };
        made.epoch = made.find_epoch()?;
        Ok(made)
    }

    /// When the clock of its trace began: as late as the quickest of some answers says.
    fn find_epoch(&self) -> io::Result<Instant> {
        let mut best: Option<(Duration, Instant)> = None;
        for _ in 0..5 {
            let asked = Instant::now();
            let age = self.statistics()?["seconds"].as_f64().unwrap_or(0.0);
            let took = asked.elapsed();
            let epoch = asked + took / 2 - Duration::from_secs_f64(age);
            if best.is_none_or(|(other, _)| took < other) {
                best = Some((took, epoch));
            }
        }
        Ok(best.map_or(self.epoch, |(_, epoch)| epoch))
    }

    fn command(&self, line: &str) -> io::Result<String> {
        let named = |text: String| io::Error::other(format!("{}: {line}: {text}", self.control.display()));
        let mut stream = UnixStream::connect(&self.control).map_err(|error| named(error.to_string()))?;
        stream.write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        answer
            .trim_end()
            .strip_prefix("ok")
            .map(|rest| rest.trim().to_owned())
            .ok_or_else(|| named(answer.clone()))
    }

    fn statistics(&self) -> io::Result<Value> {
        Ok(serde_json::from_str(&self.command("stats")?)?)
    }

    /// What it was asked for since a place in its trace, in seconds from `started` on.
    fn requests(&self, mark: u64, started: Instant) -> io::Result<Vec<Request>> {
        self.statistics()?;
        let mut file = fs::File::open(&self.trace)?;
        file.seek(SeekFrom::Start(mark))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let shift = match self.epoch.checked_duration_since(started) {
            Some(later) => later.as_secs_f64(),
            None => -(started - self.epoch).as_secs_f64(),
        };
        trace::parse(&text, shift)
            .map_err(|line| io::Error::other(format!("{}: {line}", self.trace.display())))
    }

    /// Makes a file that is all on one target, without contents.
    pub fn make_on(&self, name: &str, target: usize) -> io::Result<PathBuf> {
        let path = self.directory.join(name);
        rustix::fs::mknodat(CWD, &path, FileType::RegularFile, Mode::from_raw_mode(0o644), 0)?;
        let path_bytes = CString::new(path.as_os_str().as_bytes())?;
        rustix::fs::setxattr(&path_bytes, "lustre.lov", &one_stripe(target as u16), XattrFlags::empty())?;
        Ok(path)
    }
}

impl FileSystem for Stripes {
    fn directory(&self) -> &Path {
        &self.directory
    }

    fn change_limit(&self, target: usize, rate: u64, direction: Direction) -> io::Result<()> {
        match self.throttle {
            Throttle::Kernel => self.devices[target].change_limit(rate, direction),
            Throttle::Emulated => self.limit(target, rate),
        }
    }

    fn limit(&self, target: usize, rate: u64) -> io::Result<()> {
        match self.throttle {
            Throttle::Kernel => self.devices[target].limit(rate),
            Throttle::Emulated => self.command(&format!("target {target} rate={rate}")).map(drop),
        }
    }

    /// Waits until it has nothing left to do, as the removal of objects goes on in the background.
    fn settle(&self) -> io::Result<()> {
        let idle = || {
            let statistics = self.statistics().unwrap_or_default();
            let busy = |target: &Value| target["queue"] != 0 || target["in_flight"] != 0;
            statistics["targets"].as_array().is_some_and(|targets| !targets.iter().any(busy))
        };
        match wait_until(SETTLES, idle) {
            true => Ok(()),
            false => Err(io::Error::other(format!("{} does not settle", self.directory.display()))),
        }
    }

    /// Of everything that was written so far: the source's files are the first that are.
    fn bytes_of(&self, _tree: &str) -> io::Result<Vec<u64>> {
        let statistics = self.statistics()?;
        let of = |target| statistics["targets"][target]["bytes_written"].as_u64().unwrap_or(0);
        Ok((0..TARGETS).map(of).collect())
    }

    /// It writes past the page cache.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn watch(&self) -> io::Result<Watch> {
        self.statistics()?;
        Ok(Watch::Trace(fs::metadata(&self.trace)?.len()))
    }

    fn seen(&self, watch: Watch, started: Instant, moved: Moved) -> io::Result<Seen> {
        let Watch::Trace(mark) = watch else { return Err(io::Error::other("another file system's watch")) };
        let is_write = matches!(moved, Moved::Written(_));
        let mut requests = self.requests(mark, started)?;
        requests.retain(|request| request.is_write == is_write);
        let bytes = match moved {
            Moved::Read(bytes) => bytes.to_vec(),
            Moved::Written(_) => trace::bytes_by_target(&requests, TARGETS),
        };
        let end = |target| trace::nearly_end(&requests, target);
        Ok(Seen { bytes, ends: (0..TARGETS).map(end).collect(), requests: Some(requests) })
    }

    fn processor_time(&self) -> Duration {
        look(self.process.pid()).map_or(Duration::ZERO, |seen| ticks(seen.ticks))
    }
}

/// Files on chosen targets are made on the emulated file system alone.
pub(super) fn no_stripes() -> io::Error {
    io::Error::other("targets and their neighbours are measured on the emulated file system")
}

/// `lov_user_md_v1`: one stripe, on this target.
fn one_stripe(target: u16) -> Vec<u8> {
    const MAGIC: u32 = 0x0BD1_0BD0;
    const RAID0: u32 = 1;
    let mut bytes = Vec::new();
    bytes.extend(MAGIC.to_le_bytes());
    bytes.extend(RAID0.to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend(STRIPE_BYTES.to_le_bytes());
    bytes.extend(1u16.to_le_bytes());
    bytes.extend(target.to_le_bytes());
    bytes
}

impl Drop for Stripes {
    fn drop(&mut self) {
        let _ = self.unlimited();
        signal(self.process.pid(), Signal::TERM);
        if self.process.wait(ENDS).is_none() {
            self.process.kill();
            let _ = tool(Command::new("umount").arg("-l").arg(&self.directory));
        }
        self.devices.clear();
        let _ = remove(&self.parent);
    }
}
