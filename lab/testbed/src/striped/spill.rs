//! A destination that is slow, stands still, or is killed for, while the source puts away what it cannot take yet.
//!
//! How far the source was read is asked of its file system, never of haul.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Bed, FILE_BYTES, FILES, RUN_LIMIT, Striped, control, differences};
use crate::process::Guarded;
use crate::remember_mount;

/// Buffers of each end: a sixth of what is copied.
const MEMORY: &str = "16MiB";
const MEMORY_BYTES: u64 = 16 << 20;
const TOTAL: u64 = FILES as u64 * FILE_BYTES;
/// Of a spill that is too small for what there is to put away.
const SMALL_BYTES: u64 = 24 << 20;

/// The destination takes 10 s for all of it; the source is read to its end long before.
pub fn slow_sink(bed: &Bed) -> io::Result<Option<String>> {
    bed.source.fill()?;
    bed.sink.control("target all rate=1600kB");
    let run = bed.start_all(&spill(bed)?)?;
    let read = bed.source.read_to_its_end();
    let taken = bed.sink.bytes("bytes_written");
    bed.sink.control("target all rate=0");
    let ended = bed.wait(run)?;
    let early = (!read || taken > TOTAL / 2)
        .then(|| format!("read to its end: {read}, when the destination had {taken} of {TOTAL} bytes"));
    let told = ended.summary["bytes_spilled"].as_u64();
    let spilled = !told.is_some_and(|told| (TOTAL / 4..=TOTAL).contains(&told));
    let spilled = spilled.then(|| format!("{told:?} bytes are said to have been in the spill"));
    Ok(ended.is_not(0).or(early).or(spilled).or_else(|| differences(&bed.source, &bed.sink)))
}

/// One target of the destination stands still: what is for it is put away as well.
pub fn stalled_sink_target(bed: &Bed) -> io::Result<Option<String>> {
    bed.source.fill()?;
    bed.sink.control("target 1 hang");
    let mut options = spill(bed)?;
    options.extend(["--stripe", "6:1MiB"].map(str::to_owned));
    let run = bed.start_all(&options)?;
    let read = bed.source.read_to_its_end();
    bed.sink.control("target 1 ok");
    let ended = bed.wait(run)?;
    let waited =
        (!read).then(|| "the source waits for a target that stands still at the destination".to_owned());
    Ok(ended.is_not(0).or(waited).or_else(|| differences(&bed.source, &bed.sink)))
}

/// What was in the spill is gone with its process, and comes from the source again.
pub fn killed_source(bed: &Bed) -> io::Result<Option<String>> {
    bed.source.fill()?;
    bed.sink.control("target all rate=1600kB");
    let options = spill(bed)?;
    let mut run = bed.start_all(&options)?;
    let read = bed.source.read_to_its_end();
    run.child().kill()?;
    let killed = bed.wait(run)?;
    bed.sink.control("target all rate=0");
    let left = fs::read_dir(bed.spill_directory())?.count();
    let again = bed.wait(bed.start_all(&options)?)?;
    let wrong = (!read || killed.code.is_some() || left > 0)
        .then(|| format!("read to its end: {read}, {:?}, {left} files in the spill directory", killed.code));
    Ok(wrong.or_else(|| again.is_not(0)).or_else(|| differences(&bed.source, &bed.sink)))
}

/// A spill that is full before it is as large as was said: one warning, and what fits is used again and again.
pub fn full_spill(bed: &Bed) -> io::Result<Option<String>> {
    bed.source.fill()?;
    bed.sink.control("target all rate=4MB");
    let options = spill(bed)?;
    let small = SmallSpace::mount(bed.spill_directory())?;
    let ended = bed.wait(bed.start_all(&options)?)?;
    bed.sink.control("target all rate=0");
    drop(small);
    let text = fs::read_to_string(bed.directory.join("events"))?;
    let told: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let told: Vec<&Value> = told.iter().filter(|event| event["event"] == "spill_failed").collect();
    let room = told.first().and_then(|event| event["room"].as_u64());
    let spilled = ended.summary["bytes_spilled"].as_u64();
    // Several writes fail at once, and the one that is told of may lie behind others: as far as buffers reach.
    let most = SMALL_BYTES + MEMORY_BYTES;
    let right = told.len() == 1
        && room.is_some_and(|room| (SMALL_BYTES / 2..=most).contains(&room))
        && spilled > room;
    let wrong = (!right).then(|| format!("it told {told:?}, and {spilled:?} bytes were in the spill"));
    Ok(ended.is_not(0).or(wrong).or_else(|| differences(&bed.source, &bed.sink)))
}

fn spill(bed: &Bed) -> io::Result<Vec<String>> {
    let directory = bed.spill_directory();
    if !directory.exists() {
        fs::create_dir(&directory)?;
    }
    let directory =
        directory.into_os_string().into_string().map_err(|_| io::Error::other("a path that is no text"))?;
    Ok(["--memory", MEMORY, "--spill", &directory, "--spill-max", "256MiB"].map(str::to_owned).into())
}

impl Bed {
    fn start_all(&self, options: &[String]) -> io::Result<Guarded> {
        self.start(&options.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn spill_directory(&self) -> PathBuf {
        self.directory.join("spill")
    }
}

impl Striped {
    /// Sum over its targets.
    fn bytes(&self, counter: &str) -> u64 {
        let text = control::execute(&self.filesystem, "stats").expect("a good command");
        let stats: Value = serde_json::from_str(&text).unwrap_or_default();
        let targets = stats["targets"].as_array().map_or(&[][..], Vec::as_slice);
        targets.iter().filter_map(|target| target[counter].as_u64()).sum()
    }

    /// Waits until all of every file has been read. False if that takes too long.
    fn read_to_its_end(&self) -> bool {
        let deadline = Instant::now() + RUN_LIMIT;
        while self.bytes("bytes_read") < TOTAL && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.bytes("bytes_read") >= TOTAL
    }
}

/// A small memory file system.
struct SmallSpace(PathBuf);

impl SmallSpace {
    fn mount(directory: PathBuf) -> io::Result<SmallSpace> {
        let options = format!("size={SMALL_BYTES}");
        let mut command = Command::new("mount");
        run(command.args(["-t", "tmpfs", "-o", &options, "haul-spill"]).arg(&directory))?;
        remember_mount(directory.clone());
        Ok(SmallSpace(directory))
    }
}

impl Drop for SmallSpace {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg(Path::new(&self.0)));
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {status}"))) }
}
