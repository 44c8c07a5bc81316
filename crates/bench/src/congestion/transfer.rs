//! One run: a mover, what is slow meanwhile, and what the run was worth.

use std::fmt::{self, Display};
use std::fs;
use std::io;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haul_sim::bound::{Load, bound_nanos};

use super::filesystem::FileSystem;
use super::laboratory::Laboratory;
use super::mover::{From, Mover, To};
use super::trace::{self, Request, Stretch, Waiting};
use super::weather::{self, Forecast, Record};
use super::{End, FILE_BYTES, Settings};
use crate::process::{Guarded, look, ticks, unblock_signals, wait_gone};

/// A run that takes so many times the slowest that could be is hung.
const HANGS: f64 = 4.0;
/// And no run is before this.
const HANGS_MIN: Duration = Duration::from_secs(60);
/// Steps of a picture.
const STRETCHES: usize = 240;

/// A kind of run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Case {
    /// Whose targets are slow.
    pub end: End,
    /// How many, at each end that has any.
    pub slow: usize,
    /// Others every few seconds.
    pub moving: bool,
    /// Who moves the files.
    pub mover: Mover,
}

impl Case {
    /// The order of its objects is shown.
    pub fn is_drawn(&self) -> bool {
        self.end == End::Source && self.slow == 1 && self.moving && self.mover.policy().is_some()
    }
}

impl Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { end, slow, moving, mover } = self;
        let motion = if *moving { ", moving" } else { "" };
        write!(f, "{mover}, {slow} slow at {end}{motion}")
    }
}

/// What came out of one run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outcome {
    /// Rounds share their weather.
    pub round: usize,
    /// From the start of the process to its end.
    pub seconds: f64,
    /// The work-conserving bound: no scheduler is faster.
    pub bound_seconds: f64,
    /// When the last byte of targets that were never slow had moved, and the bound of that.
    pub others_seconds: f64,
    /// See there.
    pub others_bound_seconds: f64,
    /// Requests under way at a slow target, on average; none where none was slow.
    pub at_slow: Option<f64>,
    /// Requests under way at a healthy target, on average.
    pub at_healthy: f64,
    /// Share of all requests under way that were at slow targets.
    pub share_slow: f64,
    /// How far the fullest target is above the mean, of the end where that is more.
    pub imbalance: f64,
    /// Share of the processors' time that was used, by everything on this machine.
    pub busy: f64,
    /// Share of the processors' time that the host of this machine took.
    pub stolen: f64,
    /// Processor time of the mover.
    pub mover_processor_seconds: f64,
    /// Processor time of the file systems.
    pub file_system_processor_seconds: f64,
}

impl Outcome {
    /// 1 is the best that there is.
    pub fn share_of_bound(&self) -> f64 {
        self.bound_seconds / self.seconds
    }
}

/// What a picture shows of a run.
pub struct Picture {
    /// What each target worked on.
    pub stretches: Vec<Stretch>,
    /// When each target was slow.
    pub slow: Vec<Vec<(f64, f64)>>,
    /// How long the run took.
    pub seconds: f64,
}

/// One end that is studied.
struct Studied<'a> {
    file_system: &'a FileSystem,
    forecast: Forecast,
    is_source: bool,
}

fn studied<'a>(
    settings: &Settings,
    laboratory: &'a Laboratory,
    case: Case,
    round: usize,
) -> Vec<Studied<'a>> {
    let forecast = |seed: u64| Forecast {
        slow: case.slow,
        step: case.moving.then_some(settings.step),
        // Two ends, and two rounds, have weathers of their own; movers of a round have the same.
        seed: settings.seed.wrapping_mul(1009).wrapping_add(2 * round as u64 + seed),
    };
    let source = Studied { file_system: &laboratory.source, forecast: forecast(0), is_source: true };
    let sink = Studied { file_system: &laboratory.sink, forecast: forecast(1), is_source: false };
    [source, sink]
        .into_iter()
        .filter(|end| if end.is_source { case.end.reads() } else { case.end.writes() })
        .collect()
}

/// Starts a mover between the two file systems, or one of them and nothing.
pub fn start(settings: &Settings, laboratory: &Laboratory, end: End, mover: Mover) -> io::Result<Guarded> {
    let scratch = laboratory.scratch()?;
    let from = match end.reads() {
        true => From::Tree(laboratory.source.directory.join(Laboratory::TREE)),
        false if mover.policy().is_some() => From::Nothing("/synthetic".into()),
        false => From::Nothing(laboratory.plain_tree(settings.files())?),
    };
    let to = match end.writes() {
        true => To::Tree(laboratory.sink.directory.join("copy")),
        false => To::Nothing(laboratory.plain.join("copy")),
    };
    let mut command = mover.command(settings, &from, &to, &scratch.join("state"));
    command.stdin(Stdio::null()).stdout(fs::File::create(scratch.join("stdout"))?);
    command.stderr(fs::File::create(scratch.join("stderr"))?);
    Guarded::spawn(unblock_signals(&mut command))
}

/// One run.
pub fn measure(
    settings: &Settings,
    laboratory: &Laboratory,
    case: Case,
    round: usize,
) -> io::Result<(Outcome, Picture)> {
    laboratory.clear()?;
    if case.mover.policy().is_none() && !case.end.reads() {
        laboratory.plain_tree(settings.files())?;
    }
    let ends = studied(settings, laboratory, case, round);
    let (rates, targets) = (settings.rates(), super::TARGETS);
    for end in &ends {
        weather::begin(end.forecast, targets, rates, &|target, rate| end.file_system.limit(target, rate))?;
    }
    let marks = ends.iter().map(|end| end.file_system.mark()).collect::<io::Result<Vec<_>>>()?;
    let file_systems_used = || ends.iter().map(|end| end.file_system.processor_time()).sum::<Duration>();
    let used_before = file_systems_used();
    let processors = Processors::now()?;
    let stop = AtomicBool::new(false);
    let started = Instant::now();
    let mut process = start(settings, laboratory, case.end, case.mover)?;
    let slowest = settings.bytes() as f64 / (rates.slow * targets as u64) as f64;
    let limit = Duration::from_secs_f64(slowest * HANGS).max(HANGS_MIN);
    let (ended, records) = std::thread::scope(|scope| {
        let follow = |end: &'_ Studied<'_>| {
            let (file_system, forecast) = (end.file_system, end.forecast);
            let set = move |target, rate| file_system.limit(target, rate);
            weather::follow(forecast, targets, rates, &set, started, &stop)
        };
        let followers: Vec<_> = ends.iter().map(|end| scope.spawn(move || follow(end))).collect();
        let ended = wait_gone(process.pid(), limit);
        let seconds = started.elapsed().as_secs_f64();
        stop.store(true, Ordering::Release);
        let joined = followers.into_iter().map(|follower| {
            follower.join().unwrap_or_else(|_| Err(io::Error::other("changing rates has panicked")))
        });
        (ended.then_some(seconds), joined.collect::<io::Result<Vec<Record>>>())
    });
    let records = records?;
    let said = || fs::read_to_string(scratch_errors(laboratory)).unwrap_or_default();
    let Some(seconds) = ended else {
        return Err(io::Error::other(format!("{case} hangs: {}", said().trim())));
    };
    let mover_used = look(process.pid()).map_or(Duration::ZERO, |seen| ticks(seen.ticks));
    if !process.wait(HANGS_MIN).is_some_and(|status| status.success()) {
        return Err(io::Error::other(format!("{case} failed: {}", said().trim())));
    }
    let (busy, stolen) = processors.since()?;
    let file_system_processor_seconds = (file_systems_used() - used_before).as_secs_f64();
    let mut summary = Summary::default();
    let mut picture = None;
    for ((end, record), mark) in ends.iter().zip(&records).zip(&marks) {
        let requests: Vec<Request> = end.file_system.since(*mark, started)?;
        let of_files: Vec<Request> =
            requests.into_iter().filter(|request| request.is_write != end.is_source).collect();
        let bytes = match end.is_source {
            true => laboratory.source_bytes.clone(),
            false => trace::bytes_by_target(&of_files, targets),
        };
        summary.add(settings, &of_files, record, &bytes, seconds);
        picture.get_or_insert_with(|| Picture {
            stretches: trace::stretches(&of_files, targets, seconds, STRETCHES),
            slow: (0..targets).map(|target| record.slow_spans(target, seconds)).collect(),
            seconds,
        });
    }
    let picture = picture.ok_or_else(|| io::Error::other("a run without a file system"))?;
    check(settings, laboratory, case)?;
    laboratory.clear()?;
    let outcome = Outcome {
        round,
        seconds,
        bound_seconds: seconds_of(&summary.loads)?,
        others_seconds: summary.others_seconds,
        others_bound_seconds: seconds_of(&summary.others)?,
        at_slow: summary.waiting.at_slow(),
        at_healthy: summary.waiting.at_healthy(),
        share_slow: summary.waiting.share_slow(),
        imbalance: summary.imbalance,
        busy,
        stolen,
        mover_processor_seconds: mover_used.as_secs_f64(),
        file_system_processor_seconds,
    };
    Ok((outcome, picture))
}

/// What all ends of a run say together.
#[derive(Default)]
struct Summary {
    loads: Vec<Load>,
    others: Vec<Load>,
    others_seconds: f64,
    waiting: Waiting,
    imbalance: f64,
}

impl Summary {
    fn add(
        &mut self,
        settings: &Settings,
        requests: &[Request],
        record: &Record,
        bytes: &[u64],
        seconds: f64,
    ) {
        let load = |(target, bytes): (usize, &u64)| Load {
            name: target.to_string(),
            bytes: *bytes,
            rates: record.rates(target, settings.rates()),
        };
        let loads: Vec<Load> = bytes.iter().enumerate().map(load).collect();
        let never_slow = |target: usize| !record.was_slow(target, seconds);
        let others = loads.iter().enumerate().filter(|(target, _)| never_slow(*target));
        self.others.extend(others.map(|(_, load)| load.clone()));
        self.loads.extend(loads);
        self.others_seconds = self.others_seconds.max(trace::last_end(requests, never_slow));
        self.waiting = self.waiting.with(Waiting::of(requests, record, bytes.len(), seconds));
        self.imbalance = self.imbalance.max(trace::imbalance(&trace::bytes_by_target(requests, bytes.len())));
    }
}

fn seconds_of(loads: &[Load]) -> io::Result<f64> {
    let nanos =
        bound_nanos(loads).ok_or_else(|| io::Error::other("there is no bound: a target stands still"))?;
    Ok(nanos as f64 / 1e9)
}

fn scratch_errors(laboratory: &Laboratory) -> std::path::PathBuf {
    laboratory.scratch_path().join("stderr")
}

/// What was written is as much as was to be. That it is the same, haul has checked itself.
fn check(settings: &Settings, laboratory: &Laboratory, case: Case) -> io::Result<()> {
    if !case.end.writes() {
        return Ok(());
    }
    let copy = laboratory.sink.directory.join("copy");
    // haul and rsync put the tree into a directory that is there, and name it so where it is not.
    let found = sizes_below(&copy)?;
    let expected = settings.files() as usize;
    if found.len() == expected && found.iter().all(|size| *size == FILE_BYTES) {
        return Ok(());
    }
    Err(io::Error::other(format!("{case}: {} of {expected} files have arrived", found.len())))
}

fn sizes_below(directory: &std::path::Path) -> io::Result<Vec<u64>> {
    let mut sizes = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.metadata()? {
            found if found.is_dir() => sizes.extend(sizes_below(&entry.path())?),
            found => sizes.push(found.len()),
        }
    }
    Ok(sizes)
}

/// What all processors of this machine have done so far.
pub(super) struct Processors {
    all: u64,
    idle: u64,
    stolen: u64,
}

impl Processors {
    pub(super) fn now() -> io::Result<Processors> {
        let text = fs::read_to_string("/proc/stat")?;
        Processors::read(&text).ok_or_else(|| io::Error::other("/proc/stat says nothing of processors"))
    }

    fn read(text: &str) -> Option<Processors> {
        let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).take(8).collect();
        let [_, _, _, idle, waiting, _, _, stolen] = ticks[..] else { return None };
        Some(Processors { all: ticks.iter().sum(), idle: idle + waiting, stolen })
    }

    /// Shares of the time since: busy, and stolen.
    pub(super) fn since(&self) -> io::Result<(f64, f64)> {
        let now = Processors::now()?;
        let all = (now.all - self.all).max(1) as f64;
        let (idle, stolen) = ((now.idle - self.idle) as f64, (now.stolen - self.stolen) as f64);
        Ok(((all - idle - stolen) / all, stolen / all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::tests::settings;

    #[test]
    fn processors_are_counted_as_the_kernel_writes_them() {
        let seen = Processors::read("cpu  10 1 5 100 20 2 3 4 0 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!((seen.all, seen.idle, seen.stolen), (145, 120, 4));
        assert!(Processors::read("intr 1 2\n").is_none());
    }

    #[test]
    fn the_bound_is_that_of_the_targets_as_slow_as_they_were() {
        let settings = Settings { rate: 11_000, ..settings() };
        let record = Record { changes: vec![(Duration::ZERO, vec![0]), (Duration::from_secs(10), vec![1])] };
        let request =
            |target, end| Request { start: 0.0, end, target, inode: 1, bytes: 500, is_write: false };
        let requests = [request(0, 14.0), request(1, 5.0), request(2, 6.0), request(2, 7.0)];
        let mut summary = Summary::default();
        summary.add(&settings, &requests, &record, &[5000, 4000, 8000], 15.0);
        // The first one: a tenth of 1,000 a second for 10 s, then 4 s more.
        assert_eq!(seconds_of(&summary.loads).unwrap(), 14.0);
        // The third one was never slow.
        assert_eq!((seconds_of(&summary.others).unwrap(), summary.others_seconds), (8.0, 7.0));
        // 1000 of 2000 bytes on one of three.
        assert!((summary.imbalance - 0.5).abs() < 1e-12);
    }
}
