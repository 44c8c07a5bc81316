//! The test of the tests: each sync is removed from the program in turn, and a power cut must then show it.
//!
//! Called by `make syncs` with a binary that has the feature `faults`: `HAUL_TEST_SKIP_SYNC` names one of the sink's
//! syncs, `HAUL_TEST_SKIP_STATE_SYNC` one of those on the state directory. Syncs of single files and directories are
//! shown on the crash file system, those of whole file systems on ext4 in an image that is shut down. Each scenario also runs with nothing removed, and then nothing may be missing.

use std::fmt;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use haul_crashfs::Mood;
use serde_json::Value;

use crate::dataset::{Plan, big_file, set_time};
use crate::disk::{Disk, Medium};
use crate::process::{Guarded, unblock_signals};
use crate::rounds::MIB;
use crate::tree::{self, Options, compare};
use crate::watchdog;
use crate::world::{claims, parse_events};

const RUN_LIMIT: Duration = Duration::from_secs(120);
/// A cut hits a program that goes its own pace; a removed sync must show in one of so many.
const ATTEMPTS: u32 = 25;
const RESUMED_BYTES: u64 = 160 * MIB;
const RESUMED_BANDWIDTH: &str = "64MiB";

/// Of many files this one is never made, where some are to be under way.
const HANGING: &str = "file-003000";
/// Whoever reports nothing for so long waits for it. A journal is not committed by itself that soon.
const QUIET: Duration = Duration::from_millis(300);

/// What to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The binary, built with the feature `faults`.
    pub haul: PathBuf,
    /// Where all files go.
    pub directory: PathBuf,
    /// Only these syncs; none: all.
    pub only: Vec<String>,
}

/// What is done before the power goes, and what must be there afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scenario {
    /// A tree is done: all of it is there, and the job's record says so.
    End,
    /// The same for a tree without files, whose own name no file makes durable.
    Bare,
    /// Files were reported as done while others are under way: they are there.
    Claims,
    /// A file has come half-way: the next run goes on from there, reads nothing again, and the result is right.
    Resume,
    /// A file was complete but for its mode: the mode is right.
    Attributes,
}

/// Everything that haul makes durable, and where its absence must show.
const SYNCS: [(&str, Medium, Scenario); 18] = [
    ("object-data", Medium::Crashfs, Scenario::Resume),
    ("object-sums", Medium::Crashfs, Scenario::Resume),
    ("temp-name", Medium::Crashfs, Scenario::Resume),
    ("member-data", Medium::Crashfs, Scenario::End),
    ("sealed-data", Medium::Crashfs, Scenario::End),
    ("skipped-attributes", Medium::Crashfs, Scenario::Attributes),
    ("final-name", Medium::Crashfs, Scenario::Claims),
    ("parent-names", Medium::Crashfs, Scenario::Claims),
    ("directory-attributes", Medium::Crashfs, Scenario::End),
    ("destination-name", Medium::Crashfs, Scenario::Bare),
    ("file-system-data", Medium::Ext4, Scenario::Resume),
    ("file-system-names", Medium::Ext4, Scenario::Claims),
    ("file-system-directories", Medium::Ext4, Scenario::End),
    ("state/log-data", Medium::Crashfs, Scenario::Resume),
    ("state/log-names", Medium::Crashfs, Scenario::Resume),
    ("state/state-directories", Medium::Crashfs, Scenario::Resume),
    ("state/job-record", Medium::Crashfs, Scenario::End),
    ("state/job-name", Medium::Crashfs, Scenario::End),
];

/// The names of all syncs, those on the state directory behind `state/`.
pub fn names() -> impl Iterator<Item = &'static str> {
    SYNCS.iter().map(|(name, ..)| *name)
}

/// Removes each sync, and none. True if every removal was noticed and nothing else was.
pub fn run(settings: &Settings) -> io::Result<bool> {
    let haul = settings.haul.canonicalize()?;
    let sources = Sources::make(&settings.directory)?;
    let mut passed = true;
    let mut controlled = Vec::new();
    for (name, medium, scenario) in SYNCS {
        if !settings.only.is_empty() && !settings.only.iter().any(|only| only == name) {
            continue;
        }
        let stage = |removed| Stage { haul: &haul, sources: &sources, scenario, removed };
        if !controlled.contains(&(medium, scenario)) {
            controlled.push((medium, scenario));
            let finding = stage(None).play(medium, &settings.directory)?;
            println!("syncs: {:<24} {medium:?} {scenario:?}: {}", "(none removed)", Told(&finding));
            passed &= finding.is_none();
        }
        let mut finding = None;
        for _ in 0..ATTEMPTS {
            finding = stage(Some(name)).play(medium, &settings.directory)?;
            if finding.is_some() {
                break;
            }
        }
        let verdict = if finding.is_some() { "noticed" } else { "NOT NOTICED" };
        println!("syncs: {name:<24} {medium:?} {scenario:?}: {verdict}: {}", Told(&finding));
        passed &= finding.is_some();
    }
    println!("syncs: {}", if passed { "passed" } else { "FAILED" });
    Ok(passed)
}

struct Told<'a>(&'a Option<String>);

impl fmt::Display for Told<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0.as_deref().unwrap_or("nothing is missing"))
    }
}

/// What is copied.
struct Sources {
    tree: PathBuf,
    bare: PathBuf,
    many: PathBuf,
    large: PathBuf,
}

impl Sources {
    fn make(directory: &Path) -> io::Result<Sources> {
        let at = |name: &str| -> io::Result<PathBuf> {
            let path = directory.join(name);
            fs::create_dir(&path)?;
            Ok(path)
        };
        let sources =
            Sources { tree: at("tree")?, bare: at("bare")?, many: at("many")?, large: at("large")? };
        fs::create_dir_all(sources.bare.join("a/b"))?;
        Plan { small_files: 300, big_files: 1, big_bytes: 10 * MIB, ..Plan::new(1) }.make(&sources.tree)?;
        Plan { small_files: 6000, ..Plan::new(2) }.make(&sources.many)?;
        big_file(&sources.large.join("large"), 3, RESUMED_BYTES)?;
        set_time(&sources.large, 1_600_000_000, 1)?;
        Ok(sources)
    }
}

/// One scenario with one sync removed, or none.
struct Stage<'a> {
    haul: &'a Path,
    sources: &'a Sources,
    scenario: Scenario,
    removed: Option<&'static str>,
}

impl Stage<'_> {
    /// What is missing after the cut.
    fn play(&self, medium: Medium, directory: &Path) -> io::Result<Option<String>> {
        watchdog::step(format!(
            "syncs: {medium:?} {:?} without {}",
            self.scenario,
            self.removed.unwrap_or("none")
        ));
        let found = self.cut(medium, directory);
        match watchdog::has_let_go() {
            // What is not there any more then, no power cut has taken.
            true => Err(io::Error::other("it took too long, and its disk was let go")),
            false => found,
        }
    }

    fn cut(&self, medium: Medium, directory: &Path) -> io::Result<Option<String>> {
        let root = directory.join("disk");
        let disk = Disk::new(medium, 1, &root, &directory.join("image"))?;
        // The power of an ext4 host takes only the sink's disk: its log would be committed with it.
        let host = if medium == Medium::Crashfs { root.as_path() } else { directory };
        // As for an account without `.local`: what is above the state directory is not there either.
        let (account, temporary) = (host.join("account"), host.join("temporary"));
        let result = root.join("data/result");
        fs::create_dir(root.join("data"))?;
        for directory in [&account, &temporary] {
            tree::remove(directory)?;
            fs::create_dir(directory)?;
        }
        disk.sync()?;
        let state = account.join(".local/state/haul");
        let host = Host { stage: self, state, temporary, result, log: directory.join("events") };
        match self.scenario {
            Scenario::End => host.end(&self.sources.tree, &disk, medium),
            Scenario::Bare => host.end(&self.sources.bare, &disk, medium),
            Scenario::Claims => host.claims(&disk),
            Scenario::Resume => host.resume(&disk),
            Scenario::Attributes => host.attributes(&disk),
        }
    }
}

struct Host<'a> {
    stage: &'a Stage<'a>,
    state: PathBuf,
    temporary: PathBuf,
    result: PathBuf,
    log: PathBuf,
}

impl Host<'_> {
    fn haul(&self) -> Command {
        let mut command = Command::new(self.stage.haul);
        // Nobody else keeps jobs there, which `status` would show, too.
        command.env("HAUL_STATE_DIR", &self.state).env("TMPDIR", &self.temporary);
        match self.stage.removed.map(|name| name.strip_prefix("state/").ok_or(name)) {
            Some(Ok(name)) => drop(command.env("HAUL_TEST_SKIP_STATE_SYNC", name)),
            Some(Err(name)) => drop(command.env("HAUL_TEST_SKIP_SYNC", name)),
            None => {}
        }
        command
    }

    fn start(&self, source: &Path) -> io::Result<Guarded> {
        let mut command = self.haul();
        command.args(["cp", "-r", "-v", "--json", "--object-size", "1MiB", "--memory", "16MiB"]);
        if self.stage.scenario == Scenario::Resume {
            // Groups become durable and are logged on the way, however fast the machine is.
            command.args(["--bandwidth", RESUMED_BANDWIDTH]);
        }
        if self.stage.scenario == Scenario::Claims {
            command.env("HAUL_TEST_SINK_MAKE_HANGS", HANGING);
        }
        command.arg(source).arg(&self.result);
        command.stdin(Stdio::null()).stdout(File::create(&self.log)?).stderr(Stdio::null());
        Guarded::spawn(unblock_signals(&mut command))
    }

    /// Runs to the end, which must be a good one.
    fn finish(&self, source: &Path) -> io::Result<()> {
        let summary = self.finish_or_tell(source)?;
        match summary["state"] == "done" {
            true => Ok(()),
            false => Err(io::Error::other(format!("an undisturbed run is not done: {summary}"))),
        }
    }

    /// Runs to the end, at which it may name what it misses; its summary.
    fn finish_or_tell(&self, source: &Path) -> io::Result<Value> {
        let status = self.start(source)?.wait(RUN_LIMIT);
        let summary = parse_events(&self.log).pop().unwrap_or_default();
        match status.as_ref().and_then(ExitStatus::code) {
            Some(0 | 3) => Ok(summary),
            _ => Err(io::Error::other(format!("an undisturbed run ends with {status:?}: {summary}"))),
        }
    }

    /// Kills a run once `is_time`; an error if it ended before.
    fn kill_when(&self, source: &Path, mut is_time: impl FnMut(&Guarded) -> bool) -> io::Result<()> {
        let mut run = self.start(source)?;
        let deadline = Instant::now() + RUN_LIMIT;
        while !is_time(&run) && Instant::now() < deadline {
            if run.wait(Duration::from_millis(1)).is_some() {
                return Err(io::Error::other("the run ended before it was killed"));
            }
        }
        run.kill();
        Ok(())
    }

    fn differs(&self, source: &Path) -> io::Result<Option<String>> {
        let comparison = compare(source, &self.result, &Options::default());
        match comparison {
            Ok(comparison) if comparison.is_same() => Ok(None),
            Ok(comparison) => Ok(comparison.differences.first().map(ToString::to_string)),
            Err(error) => Ok(Some(error.to_string())),
        }
    }

    fn end(&self, source: &Path, disk: &Disk, medium: Medium) -> io::Result<Option<String>> {
        self.finish(source)?;
        disk.cut_power(1, Some(Mood::Nothing))?;
        if let Some(difference) = self.differs(source)? {
            return Ok(Some(difference));
        }
        if medium == Medium::Ext4 {
            return Ok(None);
        }
        let output = self.haul().args(["status", "--json"]).stdin(Stdio::null()).output()?;
        let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        Ok((told["state"] != "done").then(|| format!("the job's record says {}", told["state"])))
    }

    fn claims(&self, disk: &Disk) -> io::Result<Option<String>> {
        let source = &self.stage.sources.many;
        // Where one file is never made all others are done at some time: then no later sync makes the names of the last ones
        // durable by the way, as each does on a file system with a journal.
        let (mut most, mut since) = (0, Instant::now());
        self.kill_when(source, |_| {
            let count = claims(&parse_events(&self.log)).len();
            if count > most {
                (most, since) = (count, Instant::now());
            }
            most >= 500 && since.elapsed() >= QUIET
        })?;
        disk.cut_power(1, Some(Mood::Nothing))?;
        for path in claims(&parse_events(&self.log)) {
            let comparison = tree::compare_one(source, &self.result, &path, &Options::default());
            let difference = match &comparison {
                Ok(comparison) => comparison.differences.first().map(ToString::to_string),
                Err(error) => Some(error.to_string()),
            };
            if difference.is_some() {
                return Ok(difference);
            }
        }
        Ok(None)
    }

    fn resume(&self, disk: &Disk) -> io::Result<Option<String>> {
        let source = &self.stage.sources.large;
        // The log is synced once a second: the run must take a few.
        disk.slow_writes(Duration::from_millis(25));
        self.kill_when(source, |run| bytes_read(run.pid()) >= RESUMED_BYTES * 6 / 10)?;
        disk.cut_power(1, Some(Mood::Nothing))?;
        disk.crashfs().inspect(|filesystem| filesystem.faults().clear());
        let bytes_read = || disk.crashfs().map_or(0, |filesystem| filesystem.statistics().bytes_read);
        let read_before = bytes_read();
        let summary = self.finish_or_tell(source)?;
        let read = bytes_read() - read_before;
        if summary["state"] != "done" {
            return Ok(Some(format!(
                "the next run misses something: {} files failed",
                summary["files_failed"]
            )));
        }
        if let Some(difference) = self.differs(source)? {
            return Ok(Some(difference));
        }
        // Some of what was read was durable: groups are of 16 MiB, slots hold as much, the log is a second behind. Without
        // the sync it is nothing at all.
        let skipped = summary["objects_skipped"].as_u64().unwrap_or(0);
        if skipped < RESUMED_BYTES / MIB / 16 {
            return Ok(Some(format!("only {skipped} objects were durable")));
        }
        Ok((read > 4 * MIB).then(|| format!("{} MiB were read again", read / MIB)))
    }

    fn attributes(&self, disk: &Disk) -> io::Result<Option<String>> {
        let source = &self.stage.sources.tree;
        self.finish(source)?;
        let changed = self.result.join("big/big-0");
        fs::set_permissions(&changed, Permissions::from_mode(0o600))?;
        disk.sync()?;
        self.finish(source)?;
        disk.cut_power(1, Some(Mood::Nothing))?;
        self.differs(source)
    }
}

/// What a process has read, as the kernel counts it.
fn bytes_read(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).unwrap_or(0)
}
