//! What haul costs at any size: processor time per GB from 1 to 64 GB, time per file from ten thousand to a million files.
//!
//! The source computes its files and the sink checks and forgets them, so that no disk and no memory file system is in the
//! way: names, hashes, messages and logs are real.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::run::finished_children;
use super::tool::haul;
use crate::evaluation::say;
use crate::faults::transfer::reap;
use crate::process::{Guarded, POLL, descendants, end_descendants, unblock_signals};
use crate::tree;

/// A run that takes longer is ended.
const RUN_LIMIT: Duration = Duration::from_secs(1800);
/// How often memory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes of each of many files.
const SMALL_BYTES: u64 = 1000;

/// What grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The bytes of one file.
    Bytes,
    /// The number of small files.
    Files,
}

impl Kind {
    /// In files.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Bytes => "bytes",
            Kind::Files => "files",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Kind> {
        [Kind::Bytes, Kind::Files].into_iter().find(|kind| kind.name() == name)
    }
}

/// What one run took.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cost {
    /// What grows.
    pub kind: Kind,
    /// How many files.
    pub files: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// From 1.
    pub round: usize,
    /// From the start to the end.
    pub seconds: f64,
    /// Of both ends.
    pub processor_seconds: f64,
    /// The most resident memory of both ends together, in bytes.
    pub resident: u64,
}

/// The sizes at full scale: one file of 1 to 64 GB, and 10^4 to 10^6 files.
fn sizes(scale: f64) -> Vec<(Kind, u64, u64)> {
    let scaled = |number: u64| ((number as f64 * scale).round() as u64).max(1);
    let bytes = [1, 4, 16, 64].map(|gigabytes| (Kind::Bytes, 1, scaled(gigabytes * 1_000_000_000)));
    let files = [10_000, 100_000, 1_000_000].map(|files| (Kind::Files, scaled(files), SMALL_BYTES));
    bytes.into_iter().chain(files).collect()
}

/// Runs all sizes `runs` times; `done` is called after each round with what there is so far, and whether that is all.
pub fn run(
    program: &Path,
    directory: &Path,
    scale: f64,
    runs: usize,
    mut done: impl FnMut(&[Cost], bool) -> io::Result<()>,
) -> io::Result<()> {
    let mut costs = Vec::new();
    // The first run touches what was never touched.
    let sizes = sizes(scale);
    if let Some(first) = sizes.first() {
        once(program, directory, *first, 0)?;
    }
    for round in 1..=runs {
        for size in &sizes {
            let cost = once(program, directory, *size, round)?;
            say(&format!(
                "cost, round {round} of {runs}: {} files, {:.2} GB: {:.2} s, {:.2} processor seconds, {:.0} MiB",
                cost.files,
                cost.bytes as f64 / 1e9,
                cost.seconds,
                cost.processor_seconds,
                cost.resident as f64 / 1_048_576.0
            ));
            costs.push(cost);
        }
        done(&costs, round == runs)?;
    }
    Ok(())
}

fn once(
    program: &Path,
    directory: &Path,
    (kind, files, file_bytes): (Kind, u64, u64),
    round: usize,
) -> io::Result<Cost> {
    let directory = directory.join("cost");
    tree::remove(&directory)?;
    fs::create_dir_all(&directory)?;
    let (errors, output) = (directory.join("errors"), directory.join("events"));
    let name = program.to_string_lossy();
    let mut command = Command::new(program);
    haul(&mut command, &directory.join("state"));
    command.args(["bench", "transfer", "-r", "--json"]);
    command.arg("--ssh").arg(format!("'{name}' bench shell")).arg("--haul-path").arg(&*name);
    command.arg("--synthetic").arg(format!("files={files},size={file_bytes},seed=1"));
    command.args(["--discard", "/synthetic"]).arg(format!("localhost:{}", directory.join("sink").display()));
    command.stdin(Stdio::null()).stdout(fs::File::create(&output)?).stderr(fs::File::create(&errors)?);
    let before = finished_children();
    let started = Instant::now();
    let mut child = Guarded::spawn(unblock_signals(&mut command))?;
    let (mut resident, mut looked) = (0, started);
    while child.status().is_none() && started.elapsed() < RUN_LIMIT {
        if looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            let family = descendants(child.pid()).into_iter().map(|seen| seen.pid).chain([child.pid()]);
            resident = resident.max(family.map(super::run::resident_peak).sum());
        }
        std::thread::sleep(POLL);
    }
    let seconds = started.elapsed().as_secs_f64();
    let Some(status) = child.status() else {
        end_descendants(child.pid());
        child.kill();
        let limit = RUN_LIMIT.as_secs();
        return Err(io::Error::other(format!("{files} files of {file_bytes} bytes: ended after {limit} s")));
    };
    if !status.success() {
        let said = fs::read_to_string(&errors).unwrap_or_default();
        return Err(io::Error::other(format!("{files} files of {file_bytes} bytes: {}", said.trim())));
    }
    reap();
    let events = fs::read_to_string(&output)?;
    let summary: Value =
        events.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    if summary["files_done"].as_u64() != Some(files) {
        return Err(io::Error::other(format!("{files} files were to be moved: {summary}")));
    }
    let processor_seconds = finished_children().saturating_sub(before).as_secs_f64();
    tree::remove(&directory)?;
    Ok(Cost { kind, files, bytes: files * file_bytes, round, seconds, processor_seconds, resident })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_and_follow_the_scale() {
        let full = sizes(1.0);
        assert_eq!(full.first(), Some(&(Kind::Bytes, 1, 1_000_000_000)));
        assert_eq!(full.last(), Some(&(Kind::Files, 1_000_000, 1000)));
        assert_eq!(sizes(0.001)[4], (Kind::Files, 10, 1000));
        assert!(sizes(1e-12).iter().all(|(_, files, bytes)| *files > 0 && *bytes > 0));
    }
}
