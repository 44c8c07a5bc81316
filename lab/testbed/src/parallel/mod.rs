//! haul on parallel file systems that really run: their layouts are read, data goes in and out, haul is killed, and so
//! are their servers.
//!
//! Called for GlusterFS (`make gluster`) and CephFS (`make ceph`); what differs between them is a [`System`]. Every
//! result is looked at by other means than haul's: bytes are compared, and where files lie is asked of the file system.
//!
//! [`copies`]: what has to work when all servers do. [`faults`]: when one of them dies, pauses or hangs. [`layouts`]: how what haul says
//! of a tree is looked at. [`evaluation`]: the evaluation of the scheduler, on a file system of its own.

mod copies;
mod evaluation;
mod faults;
pub(crate) mod layouts;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::dataset::{big_file, small_files};
use crate::rounds::mib;
use crate::tree::{self, Options, compare, compare_one};
use crate::watchdog;
use crate::world::{Job, Outcome, Program, Route, Running, World, claims};

const MIB: u64 = 1 << 20;
/// Spread over four servers, so many files leave none of them idle.
const FILES: u64 = 24;
const FILE_BYTES: u64 = 3 * MIB + 4097;
const SMALL_FILES: u64 = 60;
/// Larger than the first shard of a sharded volume, and than an object of CephFS.
const WIDE_BYTES: u64 = 11 * MIB + 1;
/// Of each end's slots: what a killed end had in its hands.
const MEMORY_BYTES: u64 = 8 * MIB;
/// No run of these tests takes so long unless it hangs.
const RUN_LIMIT: Duration = Duration::from_secs(90);

/// A parallel file system of this machine, with its servers at hand.
pub trait System {
    /// For people.
    fn name(&self) -> &'static str;

    /// Two directories on it to copy between.
    fn places(&self) -> [PathBuf; 2];

    /// A directory with programs that haul asks of it, if there are any.
    fn programs(&self) -> Option<PathBuf> {
        None
    }

    /// What is wrong with what `haul layout` says of the files of a tree; `haul` starts the program.
    fn layout_is_wrong(&self, haul: &dyn Fn() -> Command, tree: &Path) -> io::Result<Option<String>>;

    /// Does what it takes to see what is stored, and not what a client remembers.
    fn refresh(&self) -> io::Result<()>;

    /// Files of a tree, relative to it, that cannot be read without a server.
    fn needing(&self, server: usize, tree: &Path) -> io::Result<BTreeSet<Vec<u8>>>;

    /// The process of a server of the first place.
    fn server(&self, number: usize) -> io::Result<i32>;

    /// Starts servers of the first place that were killed, and waits until all answer.
    fn restart(&self) -> io::Result<()>;

    /// After so long without an answer its client gives up by itself; none where it never does.
    fn gives_up_after(&self) -> Option<Duration>;
}

type Scenario = fn(&Bed, &dyn System) -> io::Result<Option<String>>;

/// What to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The binary under test.
    pub haul: PathBuf,
    /// Where all files go.
    pub directory: PathBuf,
    /// Of the scenarios behind the first ones, which make what all read, only these; all if empty.
    pub only: Vec<String>,
}

/// Starts a system in a directory of this name and plays the scenarios on it, then the evaluation. True if all went as they should.
pub(crate) fn run_all<S: System>(
    settings: &Settings,
    name: &'static str,
    start: impl Fn(&Path) -> io::Result<S>,
) -> io::Result<bool> {
    let (evaluation, only): (Vec<String>, Vec<String>) =
        settings.only.iter().cloned().partition(|name| name == evaluation::NAME);
    let all = settings.only.is_empty();
    let mut passed = true;
    if all || !only.is_empty() {
        passed &= match attempt(settings, &only, "first", name, &start) {
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                println!("{name}: hung; all is played once more, on a new one: {error}");
                attempt(settings, &only, "second", name, &start)?
            }
            result => result?,
        };
    }
    if all || !evaluation.is_empty() {
        passed &= evaluation::run(settings, name)?;
    }
    Ok(passed)
}

/// Plays the scenarios on a new system. [`ErrorKind::TimedOut`] says that the system hangs while its servers live: that is
/// nothing that haul could mend, and no verdict.
fn attempt<S: System>(
    settings: &Settings,
    only: &[String],
    directory: &str,
    name: &str,
    start: impl Fn(&Path) -> io::Result<S>,
) -> io::Result<bool> {
    watchdog::step(format!("{name}: the start"));
    let directory = settings.directory.join(directory);
    fs::create_dir(&directory)?;
    let system = start(&directory.join(name))?;
    let passed = run(&Settings { only: only.to_vec(), directory, ..settings.clone() }, &system);
    watchdog::step(format!("{name}: the end"));
    passed
}

fn run(settings: &Settings, system: &dyn System) -> io::Result<bool> {
    let bed = Bed::new(&settings.haul, &settings.directory, system.programs())?;
    let mut passed = true;
    let mut scenarios: Vec<(&str, Scenario)> = [&copies::SCENARIOS[..], &faults::SCENARIOS].concat();
    if system.gives_up_after().is_some() {
        scenarios.extend(faults::OF_THE_IMPATIENT);
    }
    let known = |name: &String| scenarios.iter().any(|(other, _)| other == name);
    if let Some(unknown) = settings.only.iter().find(|name| !known(name)) {
        return Err(io::Error::other(format!("there is no scenario {unknown}")));
    }
    for (number, (name, scenario)) in scenarios.into_iter().enumerate() {
        let wanted = settings.only.is_empty() || settings.only.iter().any(|only| only == name);
        if number >= copies::FIRST && !wanted {
            continue;
        }
        watchdog::step(format!("{}: {name}", system.name()));
        let started = Instant::now();
        let result = scenario(&bed, system);
        if watchdog::has_let_go() {
            let what = format!("{name} did not end, and when its mounts were let go: {result:?}");
            return Err(io::Error::new(ErrorKind::TimedOut, what));
        }
        let (finding, goes_on) = match result {
            Ok(finding) => (finding, true),
            Err(error) if error.kind() == ErrorKind::TimedOut => return Err(error),
            // A finding, too, but nothing can be played behind it.
            Err(error) => (Some(error.to_string()), false),
        };
        let verdict = finding.as_deref().unwrap_or("as it should be");
        println!("{}: {name:<24} {:5.1} s: {verdict}", system.name(), started.elapsed().as_secs_f64());
        passed &= finding.is_none();
        if finding.is_some() {
            bed.keep_evidence(name);
        }
        if !goes_on {
            break;
        }
    }
    println!("{}: {}", system.name(), if passed { "passed" } else { "FAILED" });
    Ok(passed)
}

/// Two hosts, a tree on a disk of this machine, and runs between that and a system.
struct Bed {
    world: World,
    directory: PathBuf,
    local: PathBuf,
}

impl Bed {
    fn new(haul: &Path, directory: &Path, programs: Option<PathBuf>) -> io::Result<Bed> {
        let world = World::new(Program::new(haul)?, &directory.join("world"), None)?;
        let world = match programs {
            Some(programs) => world.with_programs(programs)?,
            None => world,
        };
        let local = directory.join("local");
        fs::create_dir(&local)?;
        for place in 0..4 {
            fs::create_dir(local.join(format!("part-{place}")))?;
        }
        for number in 0..FILES {
            let path = local.join(format!("part-{}/file-{number:02}", number % 4));
            big_file(&path, number, FILE_BYTES + number * 8191)?;
        }
        big_file(&local.join("wide"), FILES, WIDE_BYTES)?;
        big_file(&local.join("a name (of> gluster) :x"), FILES + 1, FILE_BYTES)?;
        fs::write(local.join("empty"), b"")?;
        std::os::unix::fs::symlink("part-0/file-00", local.join("link"))?;
        small_files(&local.join("small"), 1, SMALL_FILES)?;
        Ok(Bed { world, directory: directory.to_owned(), local })
    }

    fn job(&self, route: Route, source: &Path, destination: &Path) -> Job {
        Job {
            route,
            plain: false,
            streams: None,
            memory_bytes: Some(MEMORY_BYTES),
            reconnect: None,
            log: None,
            hash: None,
            spill: None,
            engine: None,
            hashes_early: false,
            source: source.to_owned(),
            destination: destination.to_owned(),
            into: false,
        }
    }

    /// Runs a job to its end.
    fn run(&self, job: &Job, options: &[&str]) -> io::Result<Outcome> {
        let mut run = self.world.start_with(job, options)?;
        end(&mut run)
    }

    /// What keeps the result of a finished job from being right.
    fn is_wrong(&self, outcome: &Outcome, result: &Path) -> Option<String> {
        if !outcome.is_done() {
            return Some(format!("{}: {:?}", outcome.told(), outcome.summary()));
        }
        match compare(&self.local, result, &Options::default()) {
            Ok(found) if found.is_same() => None,
            Ok(found) => {
                Some(format!("{} differences, the first: {}", found.count, found.differences.first()?))
            }
            Err(error) => Some(format!("{} cannot be compared: {error}", result.display())),
        }
    }

    /// A finished job run again moves nothing.
    fn moves_again(&self, job: &Job) -> io::Result<Option<String>> {
        let outcome = self.run(job, &[])?;
        let sent = outcome.number("bytes_sent");
        let idle = outcome.is_done() && sent == Some(0);
        Ok((!idle).then(|| format!("done, and the next run: {}, sent {sent:?} bytes", outcome.told())))
    }

    /// Of a run that was to end with exit code 3: the files that it named as failed; what it claims is looked at.
    fn failed(&self, job: &Job, outcome: &Outcome) -> Result<BTreeSet<Vec<u8>>, String> {
        if outcome.status.code() != Some(3) {
            return Err(format!("not exit 3, but {}: {:?}", outcome.told(), outcome.summary()));
        }
        // Times of directories are set when nothing of theirs failed.
        let options = Options { times: false, modes: false, unfinished: false, ..Options::default() };
        for path in claims(&outcome.events) {
            match compare_one(&self.local, &job.result(), &path, &options) {
                Ok(found) if found.is_same() => {}
                Ok(found) => {
                    let what = found.differences.first().map(ToString::to_string).unwrap_or_default();
                    return Err(format!("claimed to be there, and {what}"));
                }
                Err(error) => return Err(format!("claimed to be there: {}: {error}", tree::shown(&path))),
            }
        }
        let failed = outcome.events.iter().filter(|event| event["event"] == "failed");
        let path = |event: &serde_json::Value| Some(job.below(event["path"].as_str()?.as_bytes()).to_vec());
        Ok(failed.filter_map(path).collect())
    }

    /// All files of the tree that are not in a set are at a destination, byte for byte.
    fn lacks_others(&self, result: &Path, but: &BTreeSet<Vec<u8>>) -> io::Result<Option<String>> {
        let options = Options { times: false, modes: false, unfinished: false, ..Options::default() };
        for path in files(&self.local)?.difference(but) {
            match compare_one(&self.local, result, path, &options) {
                Ok(found) if found.is_same() => {}
                Ok(found) => {
                    let what = found.differences.first().map(ToString::to_string).unwrap_or_default();
                    return Ok(Some(format!("needs nothing of the server: {what}")));
                }
                Err(error) => return Ok(Some(format!("{}: {error}", tree::shown(path)))),
            }
        }
        Ok(None)
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(tree::totals(&self.local)?.bytes)
    }

    /// Events and errors of the runs so far, and the state of both hosts, beside the directory of this attempt.
    fn keep_evidence(&self, name: &str) {
        let kept = self.directory.with_file_name(format!("failed-{name}"));
        let _ = Command::new("cp").arg("-a").arg(self.directory.join("world")).arg(&kept).status();
    }
}

/// Waits for the end of a run.
fn end(run: &mut Running) -> io::Result<Outcome> {
    run.wait(RUN_LIMIT).ok_or_else(|| {
        let hangs = watchdog::waits_for_a_server(run.near());
        let kind = if hangs { ErrorKind::TimedOut } else { ErrorKind::Other };
        io::Error::new(kind, format!("a run does not end. There are\n{}", watchdog::processes()))
    })
}

/// All files of a tree, relative to it.
pub(crate) fn files(root: &Path) -> io::Result<BTreeSet<Vec<u8>>> {
    let found = tree::fingerprint(root)?.into_iter();
    let is_file = |mode: u32| mode & libc::S_IFMT == libc::S_IFREG;
    let below = |path: Vec<u8>| path.strip_prefix(b"/").map(<[u8]>::to_vec).unwrap_or(path);
    Ok(found.filter(|(_, (_, mode, ..))| is_file(*mode)).map(|(path, _)| below(path)).collect())
}

/// A path below a root.
pub(crate) fn join(root: &Path, path: &[u8]) -> PathBuf {
    root.join(OsStr::from_bytes(path))
}

/// A path without its root.
pub(crate) fn below(root: &Path, path: &Path) -> Vec<u8> {
    path.strip_prefix(root).unwrap_or(path).as_os_str().as_bytes().to_vec()
}

/// The block device that a directory is on, `major:minor`.
pub(crate) fn device_of(directory: &Path) -> io::Result<String> {
    let device = fs::metadata(directory)?.dev();
    Ok(format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
}

/// How many files are in a set, and the first ones.
fn told(set: &BTreeSet<Vec<u8>>) -> String {
    let first: Vec<String> = set.iter().take(3).map(|path| tree::shown(path)).collect();
    format!("{} files ({}, ...)", set.len(), first.join(", "))
}

/// `12.3 MiB`
fn size(bytes: u64) -> String {
    format!("{:.1} MiB", mib(bytes))
}
