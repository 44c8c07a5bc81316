//! One run: a mover, what is slow meanwhile, and what the run was worth.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::fs;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haul_sim::bound::{Load, bound_nanos};

use super::device::Direction;
use super::filesystem::{FileSystem, Moved, Seen};
use super::laboratory::Laboratory;
use super::mover::{Mover, Sink, Source};
use super::trace::{self, Stretch, Waiting};
use super::weather::{self, Forecast, Record};
use super::{End, Settings};
use crate::peers::run as peers;
use crate::peers::servers::{self, Server};
use crate::process::{Guarded, end_descendants, look, ticks, unblock_signals, wait_gone};
use crate::tree::{self, Options};

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
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Rounds share their weather.
    pub round: usize,
    /// From the start of the process to its end, and until everything that was written is on the targets.
    pub seconds: f64,
    /// The work-conserving bound: no scheduler is faster.
    pub bound_seconds: f64,
    /// When the last byte of targets that were never slow had moved, and the bound of that.
    pub others_seconds: f64,
    /// See there.
    pub others_bound_seconds: f64,
    /// Requests under way at a slow target, on average; none where none was slow, or the file system does not tell.
    pub at_slow: Option<f64>,
    /// Requests under way at a healthy target, on average; none where the file system does not tell.
    pub at_healthy: Option<f64>,
    /// Share of all requests under way that were at slow targets; none where the file system does not tell.
    pub share_slow: Option<f64>,
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
    file_system: &'a dyn FileSystem,
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
    let source = Studied { file_system: laboratory.source(), forecast: forecast(0), is_source: true };
    let sink = Studied { file_system: laboratory.sink(), forecast: forecast(1), is_source: false };
    [source, sink]
        .into_iter()
        .filter(|end| if end.is_source { case.end.reads() } else { case.end.writes() })
        .collect()
}

/// A mover that runs, and what it speaks with.
pub struct Started {
    /// The mover itself.
    pub process: Guarded,
    server: Option<Server>,
}

impl Started {
    /// Both ends of all but one are below the mover.
    fn servers(&self) -> Vec<i32> {
        self.server.iter().map(Server::pid).collect()
    }
}

impl From<Guarded> for Started {
    fn from(process: Guarded) -> Started {
        Started { process, server: None }
    }
}

/// Starts a mover between the two file systems, or one of them and nothing.
pub fn start(settings: &Settings, laboratory: &Laboratory, end: End, mover: Mover) -> io::Result<Started> {
    let scratch = laboratory.scratch()?;
    let from = match end.reads() {
        true => Source::Tree(laboratory.source().directory().join(Laboratory::TREE)),
        false if mover.policy().is_some() => Source::Nothing("/synthetic".into()),
        false => Source::Nothing(laboratory.plain_tree(settings)?),
    };
    let to = match end.writes() {
        true => Sink::Tree(laboratory.sink().directory().join(Laboratory::COPY)),
        false => Sink::Nothing(laboratory.plain.join(Laboratory::COPY)),
    };
    let (Sink::Tree(sink) | Sink::Nothing(sink)) = &to;
    let server = mover.daemon().map(|daemon| servers::start(daemon, &scratch, sink)).transpose()?;
    let port = server.as_ref().map_or(0, Server::port);
    let mut command = mover.command(settings, &from, &to, &scratch.join("state"), port);
    if mover == Mover::Bbcp {
        // It does not make it itself.
        fs::create_dir_all(sink)?;
    }
    if let Some(programs) = laboratory.programs() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(programs.to_owned()).chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(all).map_err(io::Error::other)?);
    }
    command.stdin(Stdio::null()).stdout(fs::File::create(scratch.join("stdout"))?);
    command.stderr(fs::File::create(scratch.join("stderr"))?);
    let process = Guarded::spawn(unblock_signals(&mut command))?;
    Ok(Started { process, server })
}

/// One run. There is a picture where the file system tells of its requests.
pub fn measure(
    settings: &Settings,
    laboratory: &Laboratory,
    case: Case,
    round: usize,
) -> io::Result<(Outcome, Option<Picture>)> {
    laboratory.clear()?;
    if case.mover.policy().is_none() && !case.end.reads() {
        laboratory.plain_tree(settings)?;
    }
    let ends = studied(settings, laboratory, case, round);
    let (rates, targets) = (settings.rates(), super::TARGETS);
    for end in &ends {
        weather::begin(end.forecast, targets, rates, &|target, rate| end.file_system.limit(target, rate))?;
    }
    let watches = ends.iter().map(|end| end.file_system.watch()).collect::<io::Result<Vec<_>>>()?;
    let file_systems_used = || ends.iter().map(|end| end.file_system.processor_time()).sum::<Duration>();
    let used_before = file_systems_used();
    let processors = Processors::now()?;
    let stop = AtomicBool::new(false);
    let started = Instant::now();
    let mut started_mover = start(settings, laboratory, case.end, case.mover)?;
    let servers = started_mover.servers();
    let servers_before = peers::used(&servers);
    let process = &mut started_mover.process;
    let slowest = settings.bytes() as f64 / (rates.slow * targets as u64) as f64;
    let limit = Duration::from_secs_f64(slowest * HANGS).max(HANGS_MIN);
    let (ended, records) = std::thread::scope(|scope| {
        let follow = |end: &'_ Studied<'_>| {
            let (file_system, forecast) = (end.file_system, end.forecast);
            let direction = if end.is_source { Direction::Read } else { Direction::Write };
            let set = move |target, rate| file_system.change_limit(target, rate, direction);
            weather::follow(forecast, targets, rates, &set, started, &stop)
        };
        let followers: Vec<_> = ends.iter().map(|end| scope.spawn(move || follow(end))).collect();
        let ended = wait_gone(process.pid(), limit);
        // Not all movers wait for that themselves.
        let flushed = if case.end.writes() { laboratory.sink().flush() } else { Ok(()) };
        let seconds = started.elapsed().as_secs_f64();
        stop.store(true, Ordering::Release);
        let joined = followers.into_iter().map(|follower| {
            follower.join().unwrap_or_else(|_| Err(io::Error::other("changing rates has panicked")))
        });
        (ended.then_some(seconds), flushed.and(joined.collect::<io::Result<Vec<Record>>>()))
    });
    let records = records?;
    let said = || fs::read_to_string(scratch_errors(laboratory)).unwrap_or_default();
    let Some(seconds) = ended else {
        end_descendants(process.pid());
        return Err(io::Error::other(format!("{case} hangs: {}", said().trim())));
    };
    let mover_used = look(process.pid()).map_or(Duration::ZERO, |seen| ticks(seen.ticks));
    if !process.wait(HANGS_MIN).is_some_and(|status| status.success()) {
        return Err(io::Error::other(format!("{case} failed: {}", said().trim())));
    }
    let (busy, stolen) = processors.since()?;
    // A server's account grows when its session has ended.
    peers::wait_idle(&servers, &BTreeSet::new());
    let mover_used = mover_used + peers::used(&servers).saturating_sub(servers_before);
    let file_system_processor_seconds = (file_systems_used() - used_before).as_secs_f64();
    let mut summary = Summary::default();
    let mut picture = None;
    for ((end, record), watch) in ends.iter().zip(&records).zip(watches) {
        let moved = match end.is_source {
            true => Moved::Read(&laboratory.source_bytes),
            false => Moved::Written(Laboratory::COPY),
        };
        let seen = end.file_system.seen(watch, started, moved)?;
        summary.add(settings, &seen, record, seconds);
        let drawn = seen.requests.as_ref().map(|requests| Picture {
            stretches: trace::stretches(requests, targets, seconds, STRETCHES),
            slow: (0..targets).map(|target| record.slow_spans(target, seconds)).collect(),
            seconds,
        });
        picture = picture.or(drawn);
    }
    check(settings, laboratory, case)?;
    laboratory.clear()?;
    let outcome = Outcome {
        round,
        seconds,
        bound_seconds: seconds_of(&summary.loads)?,
        others_seconds: summary.others_seconds,
        others_bound_seconds: seconds_of(&summary.others)?,
        at_slow: summary.waiting.and_then(|waiting| waiting.at_slow()),
        at_healthy: summary.waiting.map(|waiting| waiting.at_healthy()),
        share_slow: summary.waiting.map(|waiting| waiting.share_slow()),
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
    waiting: Option<Waiting>,
    imbalance: f64,
}

impl Summary {
    fn add(&mut self, settings: &Settings, seen: &Seen, record: &Record, seconds: f64) {
        let Seen { bytes, ends, requests } = seen;
        let load = |(target, bytes): (usize, &u64)| Load {
            name: target.to_string(),
            bytes: *bytes,
            rates: record.rates(target, settings.rates()),
        };
        let loads: Vec<Load> = bytes.iter().enumerate().map(load).collect();
        let never_slow = |target: &usize| !record.was_slow(*target, seconds);
        let others: Vec<usize> = (0..loads.len()).filter(never_slow).collect();
        self.others.extend(others.iter().map(|target| loads[*target].clone()));
        self.loads.extend(loads);
        self.others_seconds = others.iter().map(|target| ends[*target]).fold(self.others_seconds, f64::max);
        if let Some(requests) = requests {
            let waiting = Waiting::of(requests, record, bytes.len(), seconds);
            self.waiting = Some(self.waiting.map_or(waiting, |other| other.with(waiting)));
        }
        self.imbalance = self.imbalance.max(trace::imbalance(bytes));
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

/// What was written is as much as was to be. That it is the same, haul has checked itself; of the others it is looked at.
fn check(settings: &Settings, laboratory: &Laboratory, case: Case) -> io::Result<()> {
    if case.mover.policy().is_none() {
        return compare(settings, laboratory, case);
    }
    if !case.end.writes() {
        return Ok(());
    }
    let copy = laboratory.sink().directory().join(Laboratory::COPY);
    // haul and rsync put the tree into a directory that is there, and name it so where it is not.
    let found = sizes_below(&copy)?;
    let expected = settings.files() as usize;
    if found.len() == expected && found.iter().all(|size| *size == settings.system.file_bytes()) {
        return Ok(());
    }
    Err(io::Error::other(format!("{case}: {} of {expected} files have arrived", found.len())))
}

fn compare(settings: &Settings, laboratory: &Laboratory, case: Case) -> io::Result<()> {
    laboratory.source().unlimited()?;
    laboratory.sink().unlimited()?;
    let tree = match case.end.reads() {
        true => laboratory.source().directory().join(Laboratory::TREE),
        false => laboratory.plain_tree(settings)?,
    };
    let copy = match case.end.writes() {
        true => laboratory.sink().directory().join(Laboratory::COPY),
        false => laboratory.plain.join(Laboratory::COPY),
    };
    is_same(&tree, &copy).map_err(|wrong| io::Error::other(format!("{case}: {wrong}")))
}

/// Some put the directory itself into the destination, others its contents.
fn is_same(tree: &Path, copy: &Path) -> Result<(), String> {
    let inner = copy.join(tree.file_name().unwrap_or_default());
    let copy = if inner.is_dir() { &inner } else { copy };
    let options = Options { times: false, modes: false, listed_max: 1, ..Options::default() };
    let found = tree::compare(tree, copy, &options).map_err(|error| format!("no result: {error}"))?;
    found.differences.first().map_or(Ok(()), |first| Err(format!("the result differs: {first}")))
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
    fn a_result_of_the_right_size_with_a_wrong_byte_is_none() {
        let scratch = tempfile::tempdir().unwrap();
        let (tree, copy) = (scratch.path().join("tree"), scratch.path().join("copy"));
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("f0"), "contents").unwrap();
        assert!(is_same(&tree, &copy).unwrap_err().contains("no result"));
        for place in [copy.join("tree"), copy.clone()] {
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("f0"), "contEnts").unwrap();
            let wrong = is_same(&tree, &copy).unwrap_err();
            assert!(wrong.contains("byte 4"), "{wrong}");
            fs::write(place.join("f0"), "contents").unwrap();
            is_same(&tree, &copy).unwrap();
            tree::remove(&copy).unwrap();
        }
    }

    #[test]
    fn the_bound_is_that_of_the_targets_as_slow_as_they_were() {
        let settings = Settings { rate: 11_000, ..settings() };
        let record = Record { changes: vec![(Duration::ZERO, vec![0]), (Duration::from_secs(10), vec![1])] };
        let seen = Seen { bytes: vec![5000, 4000, 8000], ends: vec![14.0, 5.0, 7.0], requests: None };
        let mut summary = Summary::default();
        summary.add(&settings, &seen, &record, 15.0);
        // The first one: a tenth of 1,000 a second for 10 s, then 4 s more.
        assert_eq!(seconds_of(&summary.loads).unwrap(), 14.0);
        // The third one was never slow.
        assert_eq!((seconds_of(&summary.others).unwrap(), summary.others_seconds), (8.0, 7.0));
        // 8,000 of 17,000 bytes on one of three.
        assert!((summary.imbalance - (8000.0 * 3.0 / 17_000.0 - 1.0)).abs() < 1e-12);
        // Without requests nothing is said of them; with some, what they say of both ends.
        assert!(summary.waiting.is_none());
        let request =
            trace::Request { start: 0.0, end: 10.0, target: 0, inode: 1, bytes: 500, is_write: false };
        let told = Seen { requests: Some(vec![request]), ..seen };
        summary.add(&settings, &told, &record, 15.0);
        summary.add(&settings, &told, &record, 15.0);
        assert_eq!(summary.waiting.and_then(|waiting| waiting.at_slow()), Some(20.0 / 30.0));
    }
}
