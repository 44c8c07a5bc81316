//! haul on an emulated parallel file system: what is slow, fails or hangs on one target stays with it.
//!
//! Called by `make striped`. Source and destination are striped file systems (lab/stripefs) of this process; haul is the
//! real binary. Each scenario is looked at by other means than haul's.

mod chosen;
mod full;
mod hang;
mod lov;
mod neighbours;
mod small;
mod spill;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use haul_stripefs::{Mount, Options, StripeFs, control};
use serde_json::Value;

use crate::dataset::big_file;
use crate::process::{Guarded, unblock_signals};
use crate::remember_mount;
use crate::tree::{self, compare};
use crate::watchdog;
use crate::world::parse_events;

const TARGETS: usize = 6;
const STRIPES: u16 = 3;
const STRIPE_BYTES: u32 = 1 << 20;
/// A pool that both file systems have.
const POOL: &str = "flash";
const POOL_TARGETS: [u32; 4] = [1, 3, 4, 5];
const FILES: usize = 8;
const FILE_BYTES: u64 = 12 << 20;
const RUN_LIMIT: Duration = Duration::from_secs(120);
/// After so long a target of these tests hangs.
const HANGS_AFTER: &str = "2";

/// What to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The binary under test.
    pub haul: PathBuf,
    /// Where all files go.
    pub directory: PathBuf,
}

/// Plays all scenarios. True if all went as they should.
pub fn run(settings: &Settings) -> io::Result<bool> {
    let haul = settings.haul.canonicalize()?;
    let mut passed = true;
    let (striped, whole) = ((STRIPES, STRIPE_BYTES), (1, hang::WHOLE_BYTES));
    let scenarios: [(&str, Cut, Scenario); 25] = [
        ("striped-to-striped", striped, striped_to_striped),
        ("slow-target", striped, slow_target),
        ("failing-source-target", striped, failing_source_target),
        ("failing-sink-target", striped, failing_sink_target),
        ("hanging-source-target", striped, hanging_source_target),
        ("hanging-sink-target", whole, hang::hanging_sink_target),
        ("hanging-sink-syncs", whole, hang::hanging_sink_syncs),
        ("late-sink-syncs", whole, hang::late_sink_syncs),
        ("full-sink-target", whole, full::full_sink_target),
        ("full-sink", whole, full::full_sink),
        ("small-slow-source-target", striped, small::slow_source_target),
        ("small-slow-sink-target", striped, small::slow_sink_target),
        ("small-failing-sink-target", striped, small::failing_sink_target),
        ("small-hanging-sink-target", striped, small::hanging_sink_target),
        ("small-hanging-sink-syncs", striped, small::hanging_sink_syncs),
        ("small-full-sink-target", striped, small::full_sink_target),
        ("small-full-sink", striped, small::full_sink),
        ("chosen-stripes", striped, chosen::chosen_stripes),
        ("pool-only-at-the-source", striped, chosen::pool_only_at_the_source),
        ("spill-slow-sink", striped, spill::slow_sink),
        ("spill-stalled-sink-target", striped, spill::stalled_sink_target),
        ("spill-killed-source", striped, spill::killed_source),
        ("spill-full", striped, spill::full_spill),
        ("share-a-slow-target", striped, neighbours::share_a_slow_target),
        ("killed-neighbour", striped, neighbours::killed_neighbour),
    ];
    for (name, cut, scenario) in scenarios {
        watchdog::step(format!("striped: {name}"));
        let directory = settings.directory.join(name);
        fs::create_dir(&directory)?;
        let bed = Bed::new(&haul, &directory, cut)?;
        let started = Instant::now();
        let finding = scenario(&bed)?;
        drop(bed);
        tree::remove(&directory)?;
        let verdict = finding.as_deref().unwrap_or("as it should be");
        println!("striped: {name:<26} {:5.1} s: {verdict}", started.elapsed().as_secs_f64());
        passed &= finding.is_none();
    }
    println!("striped: {}", if passed { "passed" } else { "FAILED" });
    Ok(passed)
}

type Scenario = fn(&Bed) -> io::Result<Option<String>>;
/// Stripes of a file at the source, and their bytes.
type Cut = (u16, u32);

/// All of it arrives, cut and striped as asked for.
fn striped_to_striped(bed: &Bed) -> io::Result<Option<String>> {
    bed.source.fill()?;
    let ended = bed.copy(&["--stripe", "2:2MiB"])?;
    if let Some(wrong) = ended.is_not(0).or_else(|| differences(&bed.source, &bed.sink)) {
        return Ok(Some(wrong));
    }
    for name in names() {
        let found = lov::of(&bed.sink.directory.join("tree").join(&name))?;
        if (found.targets().len(), found.parts[0].stripe_bytes) != (2, 2 << 20) {
            return Ok(Some(format!("{name} is striped as {:?}", found.parts)));
        }
    }
    let again = bed.copy(&[])?;
    let sent = again.summary["bytes_sent"].as_u64();
    Ok(again.is_not(0).or_else(|| (sent != Some(0)).then(|| format!("the second run sent {sent:?} bytes"))))
}

/// What is not on the slow target goes as if it were not there.
fn slow_target(bed: &Bed) -> io::Result<Option<String>> {
    bed.source.fill()?;
    bed.source.control("target all rate=24MB");
    bed.source.control("target 1 rate=1MB");
    let mut run = bed.start(&[])?;
    // Everything that has no part on it is done long before what has.
    let slow = bed.source.files_on(1)?;
    let (behind, quick): (Vec<String>, Vec<String>) = names().partition(|name| slow.contains(name));
    let there = |names: &[String]| {
        names.iter().filter(|name| bed.sink.directory.join("tree").join(name).exists()).count()
    };
    let deadline = Instant::now() + RUN_LIMIT;
    while there(&quick) < quick.len() && Instant::now() < deadline && run.child().try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(50));
    }
    let early = there(&behind);
    bed.source.control("target 1 rate=24MB");
    let ended = bed.wait(run)?;
    let all_waited = (early > behind.len() / 4).then(|| {
        format!(
            "of the files with a part on the slow target {early} had arrived before the last of the others"
        )
    });
    Ok(ended.is_not(0).or(all_waited).or_else(|| differences(&bed.source, &bed.sink)))
}

fn failing_source_target(bed: &Bed) -> io::Result<Option<String>> {
    bed.source.fill()?;
    let struck = bed.source.files_on(2)?;
    bed.source.control("target 2 error=EIO");
    let ended = bed.copy(&[])?;
    let wrong = ended.is_not(3).or_else(|| ended.failed_are_not(&struck, "source-read"));
    bed.source.control("target 2 ok");
    Ok(wrong.or(bed.second_run_completes()?))
}

fn failing_sink_target(bed: &Bed) -> io::Result<Option<String>> {
    bed.source.fill()?;
    bed.sink.control("target 4 error=EIO");
    let ended = bed.copy(&["--stripe", "1:1MiB"])?;
    let failed = ended.failed("sink-write");
    let wrong = ended.is_not(3).or_else(|| {
        let some = !failed.is_empty() && failed.len() < FILES;
        (!some).then(|| format!("{} of {FILES} files failed, one target of {TARGETS} did", failed.len()))
    });
    bed.sink.control("target 4 ok");
    Ok(wrong.or(bed.second_run_completes()?))
}

/// The summary comes, though a thread of the source is stuck; when the target answers again the process ends.
fn hanging_source_target(bed: &Bed) -> io::Result<Option<String>> {
    bed.source.fill()?;
    let struck = bed.source.files_on(0)?;
    bed.source.control("target 0 hang");
    let run = bed.start(&["--hang-after", HANGS_AFTER])?;
    let in_time = bed.tells("summary", RUN_LIMIT);
    bed.source.control("target 0 ok");
    let ended = bed.wait(run)?;
    let waited = (!in_time).then(|| "the transfer waits for a target that hangs".to_owned());
    let wrong = waited.or_else(|| ended.is_not(3)).or_else(|| ended.failed_are_not(&struck, "source-read"));
    Ok(wrong.or(bed.second_run_completes()?))
}

fn names() -> impl Iterator<Item = String> {
    (0..FILES).map(|number| format!("file-{number}"))
}

fn differences(source: &Striped, sink: &Striped) -> Option<String> {
    let options = tree::Options::default();
    match compare(&source.directory.join("tree"), &sink.directory.join("tree"), &options) {
        Ok(found) if found.is_same() => None,
        Ok(found) => Some(format!("{} differences: {:?}", found.count, found.differences.first())),
        Err(error) => Some(format!("the trees cannot be compared: {error}")),
    }
}

/// One striped file system.
struct Striped {
    filesystem: StripeFs,
    _mount: Mount,
    directory: PathBuf,
}

impl Striped {
    fn new(directory: &Path, cut: Cut) -> io::Result<Striped> {
        fs::create_dir(directory)?;
        let targets = (0..TARGETS).map(|number| directory.join(format!("target-{number}"))).collect();
        let mut options = Options::new(targets, directory.join("mds"));
        (options.stripe_count, options.stripe_bytes) = cut;
        options.pools = BTreeMap::from([(POOL.into(), POOL_TARGETS.to_vec())]);
        let mountpoint = directory.join("mount");
        fs::create_dir(&mountpoint)?;
        let filesystem = StripeFs::open(&options)?;
        remember_mount(mountpoint.clone());
        let mount = Mount::new(&filesystem, &mountpoint)?;
        Ok(Striped { filesystem, _mount: mount, directory: mountpoint })
    }

    fn control(&self, line: &str) {
        control::execute(&self.filesystem, line).expect("a good command");
    }

    fn fill(&self) -> io::Result<()> {
        let tree = self.directory.join("tree");
        fs::create_dir(&tree)?;
        for (seed, name) in names().enumerate() {
            big_file(&tree.join(name), seed as u64, FILE_BYTES)?;
        }
        Ok(())
    }

    /// An unfinished file has begun on this target.
    fn has_unfinished(&self, target: u32) -> io::Result<bool> {
        let Ok(listed) = fs::read_dir(self.directory.join("tree")) else { return Ok(false) };
        for entry in listed {
            let path = entry?.path();
            if path.to_string_lossy().contains(".haul-") && lov::of(&path)?.targets().contains(&target) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A file is there under its name.
    fn has(&self, name: &str) -> bool {
        self.directory.join("tree").join(name).exists()
    }

    /// Whether one of these files, which are there, has a stripe on this target.
    fn one_is_on(&self, target: u32, names: &BTreeSet<String>) -> io::Result<Option<String>> {
        for name in names {
            if lov::of(&self.directory.join("tree").join(name))?.targets().contains(&target) {
                return Ok(Some(format!("{name} is on the target that hung, and there")));
            }
        }
        Ok(None)
    }

    /// The files that have a stripe on this target.
    fn files_on(&self, target: u32) -> io::Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        for name in names() {
            if lov::of(&self.directory.join("tree").join(&name))?.targets().contains(&target) {
                found.insert(name);
            }
        }
        Ok(found)
    }
}

impl Drop for Striped {
    fn drop(&mut self) {
        self.control("target all ok");
    }
}

struct Bed {
    haul: PathBuf,
    directory: PathBuf,
    source: Striped,
    sink: Striped,
}

impl Bed {
    fn new(haul: &Path, directory: &Path, cut: Cut) -> io::Result<Bed> {
        let (source, sink) =
            (Striped::new(&directory.join("source"), cut)?, Striped::new(&directory.join("sink"), cut)?);
        Ok(Bed { haul: haul.to_owned(), directory: directory.to_owned(), source, sink })
    }

    fn start(&self, options: &[&str]) -> io::Result<Guarded> {
        self.start_from(&[self.source.directory.join("tree")], &["--object-size", "1MiB"], options)
    }

    fn start_in(&self, cut: &[&str], options: &[&str]) -> io::Result<Guarded> {
        self.start_from(&[self.source.directory.join("tree")], cut, options)
    }

    fn start_from(&self, sources: &[PathBuf], cut: &[&str], options: &[&str]) -> io::Result<Guarded> {
        let mut command = Command::new(&self.haul);
        command.env("HAUL_STATE_DIR", self.directory.join("state"));
        command.env("XDG_CONFIG_HOME", self.directory.join("no-config"));
        command.args(["cp", "-r", "--json"]).args(cut).args(options);
        command.args(sources).arg(&self.sink.directory);
        command.stdin(Stdio::null()).stderr(fs::File::create(self.directory.join("stderr"))?);
        command.stdout(fs::File::create(self.directory.join("events"))?);
        Guarded::spawn(unblock_signals(&mut command))
    }

    /// Waits until the run tells such an event. False if it does not in time.
    fn tells(&self, event: &str, limit: Duration) -> bool {
        let (started, wanted) = (Instant::now(), format!("\"event\":\"{event}\""));
        loop {
            let text = fs::read_to_string(self.directory.join("events")).unwrap_or_default();
            if text.contains(&wanted) {
                return true;
            }
            if started.elapsed() >= limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn wait(&self, mut run: Guarded) -> io::Result<Ended> {
        let status = run.wait(RUN_LIMIT);
        let events = parse_events(&self.directory.join("events"));
        let summary = events.last().cloned().unwrap_or_default();
        let those = |kind: &str| events.iter().filter(|event| event["event"] == kind).cloned().collect();
        let (failed, striped_otherwise) = (those("failed"), those("striped_otherwise"));
        Ok(Ended { code: status.and_then(|status| status.code()), summary, failed, striped_otherwise })
    }

    fn has_summary(&self) -> bool {
        let text = fs::read_to_string(self.directory.join("events")).unwrap_or_default();
        text.contains("\"event\":\"summary\"")
    }

    fn copy(&self, options: &[&str]) -> io::Result<Ended> {
        self.wait(self.start(options)?)
    }

    fn second_run_completes(&self) -> io::Result<Option<String>> {
        let ended = self.copy(&[])?;
        Ok(ended.is_not(0).or_else(|| differences(&self.source, &self.sink)))
    }
}

struct Ended {
    code: Option<i32>,
    summary: Value,
    failed: Vec<Value>,
    striped_otherwise: Vec<Value>,
}

impl Ended {
    fn is_not(&self, code: i32) -> Option<String> {
        (self.code != Some(code)).then(|| format!("exit code {:?}, not {code}: {}", self.code, self.summary))
    }

    fn failed(&self, code: &str) -> BTreeSet<String> {
        let of = |event: &&Value| event["code"] == code;
        let name = |event: &Value| event["path"].as_str()?.rsplit('/').next().map(str::to_owned);
        self.failed.iter().filter(of).filter_map(name).collect()
    }

    /// Some files failed, with these codes, and they are all that are not there.
    fn some_failed_not_these(&self, codes: &[&str], there: &BTreeSet<String>) -> Option<String> {
        let failed: BTreeSet<String> = codes.iter().flat_map(|code| self.failed(code)).collect();
        let missing: BTreeSet<String> = names().filter(|name| !there.contains(name)).collect();
        let right = failed == missing && !missing.is_empty() && !there.is_empty();
        (!right).then(|| {
            format!("{failed:?} failed with {codes:?}, {missing:?} are not there, told is {:?}", self.failed)
        })
    }

    fn failed_are_not(&self, expected: &BTreeSet<String>, code: &str) -> Option<String> {
        let failed = self.failed(code);
        (failed != *expected).then(|| format!("{failed:?} failed with {code}, not {expected:?}"))
    }
}
