//! How fast the targets really are, and whether the processors could serve them faster.
//!
//! Each target is read (at the source) or written (at the sink) through its file system by two threads, all targets at a
//! time: as they should be, with one of them slow, and without any limit.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::filesystem::FileSystem;
use super::laboratory::Laboratory;
use super::stripes::{Stripes, no_stripes};
use super::transfer::Processors;
use super::{End, Rates, Settings, TARGETS};
use crate::evaluation::say;

/// Of one that is measured.
const FILE_BYTES: u64 = 32 << 20;
/// Of one request, and how many a target has at a time.
const REQUEST_BYTES: usize = 1 << 20;
const THREADS: usize = 2;
/// A throttle lets what it had saved up pass first.
const LEAD_IN: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(6);

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// All targets as they should be.
    Healthy,
    /// One is slow.
    OneSlow,
    /// No limits.
    Unlimited,
}

impl State {
    /// All three.
    pub const ALL: [State; 3] = [State::Healthy, State::OneSlow, State::Unlimited];

    /// For files and people.
    pub const fn name(self) -> &'static str {
        match self {
            State::Healthy => "healthy",
            State::OneSlow => "one-slow",
            State::Unlimited => "unlimited",
        }
    }
}

/// What came out.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// Which end: the source is read, the sink is written.
    pub end: End,
    /// Of what.
    pub state: State,
    /// Bytes a second of all targets together, without the slow one.
    pub healthy_rate: f64,
    /// Bytes a second of the slow one.
    pub slow_rate: Option<f64>,
    /// Share of the processors' time that was used.
    pub busy: f64,
}

/// Measures both ends.
pub fn run(settings: &Settings, laboratory: &Laboratory) -> io::Result<Vec<Measured>> {
    laboratory.clear()?;
    let mut all = Vec::new();
    let [source, sink] = laboratory.stripes().ok_or_else(no_stripes)?;
    for (end, file_system) in [(End::Source, source), (End::Sink, sink)] {
        let paths = (0..TARGETS).map(|target| file_system.make_on(&format!("device-{target}"), target));
        let paths = paths.collect::<io::Result<Vec<PathBuf>>>()?;
        for path in &paths {
            let file = OpenOptions::new().write(true).open(path)?;
            let bytes = vec![1; REQUEST_BYTES];
            let mut offsets = (0..FILE_BYTES).step_by(REQUEST_BYTES);
            offsets.try_for_each(|offset| file.write_all_at(&bytes, offset))?;
        }
        for state in State::ALL {
            let measured = measure(end, file_system, &paths, state, settings.rates())?;
            let slow =
                measured.slow_rate.map_or(String::new(), |rate| format!(", the slow one {:.2}", rate / 1e6));
            say(&format!(
                "devices of the {end}, {}: {:.1} MB/s{slow}, processors {:.0} % busy",
                state.name(),
                measured.healthy_rate / 1e6,
                measured.busy * 100.0
            ));
            all.push(measured);
        }
        file_system.unlimited()?;
        paths.iter().try_for_each(std::fs::remove_file)?;
        file_system.settle()?;
    }
    Ok(all)
}

fn measure(
    end: End,
    file_system: &Stripes,
    paths: &[PathBuf],
    state: State,
    rates: Rates,
) -> io::Result<Measured> {
    let is_slow = |target: usize| state == State::OneSlow && target == 0;
    for target in 0..paths.len() {
        let rate = match state {
            State::Unlimited => 0,
            _ if is_slow(target) => rates.slow,
            _ => rates.healthy,
        };
        file_system.limit(target, rate)?;
    }
    let (stop, moved) = (AtomicBool::new(false), vec![0; paths.len()].into_iter().map(AtomicU64::new));
    let moved: Vec<AtomicU64> = moved.collect();
    let count = || moved.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect::<Vec<u64>>();
    std::thread::scope(|scope| {
        for (path, moved) in paths.iter().zip(&moved) {
            for _ in 0..THREADS {
                scope.spawn(|| keep_busy(path, end == End::Sink, moved, &stop));
            }
        }
        std::thread::sleep(LEAD_IN);
        let (before, begun, processors) = (count(), Instant::now(), Processors::now());
        std::thread::sleep(MEASURED);
        let (after, seconds) = (count(), begun.elapsed().as_secs_f64());
        let shares = processors.and_then(|before| before.since());
        stop.store(true, Ordering::Release);
        let rate = |target: usize| (after[target] - before[target]) as f64 / seconds;
        Ok(Measured {
            end,
            state,
            healthy_rate: (0..paths.len()).filter(|target| !is_slow(*target)).map(rate).sum(),
            slow_rate: (0..paths.len()).find(|target| is_slow(*target)).map(rate),
            busy: shares?.0,
        })
    })
}

/// Reads or writes until it is to stop, or fails: then nothing moves, and the figures show it.
fn keep_busy(path: &PathBuf, is_write: bool, moved: &AtomicU64, stop: &AtomicBool) {
    let work = || -> io::Result<()> {
        let file = if is_write { OpenOptions::new().write(true).open(path)? } else { File::open(path)? };
        let mut bytes = vec![2; REQUEST_BYTES];
        for offset in (0..FILE_BYTES).step_by(REQUEST_BYTES).cycle() {
            if stop.load(Ordering::Acquire) {
                break;
            }
            match is_write {
                true => file.write_all_at(&bytes, offset)?,
                false => file.read_exact_at(&mut bytes, offset)?,
            }
            moved.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    if let Err(error) = work() {
        say(&format!("{}: {error}", path.display()));
    }
}
