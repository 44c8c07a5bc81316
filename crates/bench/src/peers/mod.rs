//! haul side by side with its peers, and with the most that this machine can do.
//!
//! - [`tool`]: who moves the files, and how each is started; [`servers`]: the far ends that they need.
//! - [`case`]: what is moved; [`run`]: one run, and its result compared; [`raw`]: the raw pair; [`cost`]: haul at any size.
//! - [`csv`], [`figures`], [`bars`], [`report`], [`pictures`]: what came out, as numbers and for people.
//!
//! What must stay true: all tools of a case move the same bytes between the same file systems in the same minutes, in an
//! order drawn by lot; each result is compared with the source; what cannot be measured is a row with its reason. Where it
//! may be, everything lives in namespaces of its own ([`own_mounts`](crate::evaluation::own_mounts), [`own_network`](crate::evaluation::own_network)), so that
//! nothing is left and no server is reached from outside.

pub mod bars;
pub mod case;
pub mod cost;
pub mod csv;
pub mod figures;
pub mod pictures;
pub mod raw;
pub mod report;
pub mod run;
pub mod servers;
pub mod tool;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use case::Case;
use csv::{Files, Measured, Results, Run, Used};
use run::Stage;
use servers::Servers;
use tool::{TOOLS, Tool};

use crate::evaluation::{Lottery, say, tool as system};
use crate::process::leave_the_rest_to_the_end;
use crate::{process, tree};

/// A tool that takes longer in the run that does not count is run less often.
const SLOW_SECONDS: f64 = 60.0;
/// So often.
const SLOW_RUNS: usize = 2;
/// While a signal ends this process another thread may still make files below what is removed.
const REMOVE_TRIES: u32 = 20;

/// What to compare.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program under test.
    pub haul: PathBuf,
    /// Where memory file systems are mounted, or files lie if this is not root; removed afterwards.
    pub directory: PathBuf,
    /// A directory on a disk, for the cases that need one.
    pub disk: Option<PathBuf>,
    /// Where the report goes.
    pub report: PathBuf,
    /// The command line, for the report.
    pub command: String,
    /// Which cases.
    pub cases: Vec<Case>,
    /// What haul costs at any size.
    pub cost: bool,
    /// Only these tools; none: all.
    pub tools: Vec<&'static Tool>,
    /// Runs of each tool in each case that count.
    pub runs: usize,
    /// Of the full sizes.
    pub scale: f64,
    /// Of the order of runs.
    pub seed: u64,
    /// Mounts of this process are its own: memory file systems may be mounted.
    pub has_own_mounts: bool,
    /// So is its network: servers that let everybody in may be started.
    pub has_own_network: bool,
}

/// Measures, and writes the report; each round is written when it is done, so that nothing is lost. What earlier
/// comparisons left in the directory of the report is part of the new one, but for the cases that are measured again. A
/// case that cannot be measured does not keep the others from it; the first such is told at the end.
pub fn run(settings: &Settings) -> io::Result<()> {
    process::adopt_orphans()?;
    let files = Files::open(&settings.report, &settings.haul, &settings.command)?;
    let mut results = files.read()?;
    let mut failed = None;
    if !settings.cases.is_empty() || settings.cost {
        let places = Places::new(settings)?;
        for case in &settings.cases {
            let before = results.clone();
            let compared = compare(settings, &places, *case, &files, &mut results);
            if let Err(error) = compared.and_then(|()| results.has_haul_done(*case)) {
                leave_the_rest_to_the_end();
                let error = format!("{}: {error}", case.name());
                say(&error);
                failed = failed.or(Some(io::Error::other(error)));
                places.clear(*case)?;
                // What was measured once is not lost for what cannot be measured today.
                if results.lacks_what_was_in(&before, *case) {
                    results = before;
                }
            }
            files.write(&results)?;
            report::write(&settings.haul, &settings.report, &files)?;
        }
        if settings.cost {
            let directory = places.root.join("work");
            let had = !results.costs.is_empty();
            let done = cost::run(&settings.haul, &directory, settings.scale, settings.runs, |costs, all| {
                if !had || all {
                    results.costs = costs.to_vec();
                    results.costs_made = Some(files.made().to_owned());
                }
                files.write(&results)
            });
            if let Err(error) = done {
                leave_the_rest_to_the_end();
                say(&error.to_string());
                failed = failed.or(Some(error));
            }
        }
    }
    report::write(&settings.haul, &settings.report, &files)?;
    failed.map_or(Ok(()), Err)
}

/// What a signal must not leave behind: what is mounted, and what is only a directory.
static LEFT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Unmounts and removes everything; for a process that is about to end, and whose children have ended.
pub fn leave_nothing() {
    for path in std::mem::take(&mut *LEFT.lock().unwrap_or_else(PoisonError::into_inner)) {
        // It may not be one.
        let _ = system(Command::new("umount").arg("--lazy").arg(&path));
        let mut removed = tree::remove(&path);
        for _ in 1..REMOVE_TRIES {
            if removed.is_ok() {
                break;
            }
            std::thread::sleep(process::POLL);
            removed = tree::remove(&path);
        }
        if let Err(error) = removed {
            say(&format!("{} is left over: {error}", path.display()));
        }
    }
}

/// The file systems.
struct Places {
    /// In memory, as root: of a file system of its own.
    root: PathBuf,
    disk: Option<PathBuf>,
    has_huge_pages: bool,
}

/// One of them.
struct Place {
    path: PathBuf,
    /// What it is in words.
    storage: String,
    /// What is written there is to be waited for, whatever the case is called.
    is_on_disk: bool,
}

impl Drop for Places {
    fn drop(&mut self) {
        leave_nothing();
    }
}

impl Places {
    fn new(settings: &Settings) -> io::Result<Places> {
        use std::os::unix::fs::PermissionsExt;
        let directory = |parent: &Path| -> io::Result<PathBuf> {
            fs::create_dir_all(parent)?;
            // Servers are told of it in files in which a blank ends a path.
            if parent
                .to_string_lossy()
                .contains(|c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '\\'))
            {
                let path = parent.display();
                return Err(io::Error::other(format!("{path}: its path must have no blanks and no quotes")));
            }
            let path =
                tempfile::Builder::new().prefix("haul-peers-").tempdir_in(parent)?.keep().canonicalize()?;
            LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
            // Servers that will not be root must get in.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            Ok(path)
        };
        let root = directory(&settings.directory)?;
        let mut places = Places { root, disk: None, has_huge_pages: false };
        if settings.has_own_mounts {
            let mount = |path: &Path, options: &str| {
                system(Command::new("mount").args(["-t", "tmpfs", "-o", options, "haul-peers"]).arg(path))
                    .map(drop)
            };
            mount(&places.root, "size=90%,mode=755")?;
            fs::create_dir(places.root.join("huge"))?;
            let huge = mount(&places.root.join("huge"), "size=90%,mode=755,huge=always");
            places.has_huge_pages = huge.is_ok();
            if let Err(error) = huge {
                say(&format!("no memory file system with huge pages, so one without: {error}"));
            }
        } else {
            say(
                "no memory file systems are mounted: results lie in the directory for temporary files, or in that of --dir",
            );
            fs::create_dir(places.root.join("huge"))?;
        }
        fs::create_dir(places.root.join("plain"))?;
        fs::create_dir(places.root.join("work"))?;
        if settings.cases.iter().any(|case| case.is_on_disk()) {
            places.disk = settings.disk.as_deref().map(directory).transpose()?;
        }
        Ok(places)
    }

    /// Where a case happens.
    fn of(&self, case: Case) -> Option<Place> {
        let path = match case {
            case if case.is_on_disk() => self.disk.clone()?,
            case if case.has_big_files() => self.root.join("huge"),
            _ => self.root.join("plain"),
        };
        let kind = crate::machine::first_line("stat", &["-f", "-c", "%T", &path.to_string_lossy()]);
        let is_in_memory = matches!(kind.as_str(), "tmpfs" | "ramfs");
        let name = match is_in_memory {
            false => "disk",
            true if self.has_huge_pages && path.ends_with("huge") => "memory, huge pages",
            true => "memory",
        };
        let storage = format!("{name} ({kind})");
        Some(Place { path, storage, is_on_disk: case.is_on_disk() || !is_in_memory })
    }

    /// What a case that failed has left.
    fn clear(&self, case: Case) -> io::Result<()> {
        let Some(place) = self.of(case) else { return Ok(()) };
        ["source", "sink", "state"].iter().try_for_each(|name| tree::remove(&place.path.join(name)))
    }
}

fn compare(
    settings: &Settings,
    places: &Places,
    case: Case,
    files: &Files,
    results: &mut Results,
) -> io::Result<()> {
    let Some(Place { path: place, storage, is_on_disk }) = places.of(case) else {
        say(&format!("{}: left out, as no --disk was given", case.name()));
        return Ok(());
    };
    say(&format!("{}: making what is moved", case.name()));
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let source = place.join("source");
    let dataset = case::make(case, settings.scale, &source)?;
    results.forget(case);
    let tools: Vec<&'static Tool> = TOOLS
        .iter()
        .filter(|tool| {
            tool.takes_part_in(case) && (settings.tools.is_empty() || settings.tools.contains(tool))
        })
        .collect();
    results.cases.push(Measured {
        dataset: dataset.clone(),
        storage,
        load: load.trim().to_owned(),
        command: files.made().to_owned(),
    });
    results.cases.sort_by_key(|one| one.dataset.case);
    let work = places.root.join("work");
    let (sink, scratch) = (place.join("sink"), work.join("run"));
    // A user's home directory is on a disk.
    let state = if is_on_disk { place.join("state") } else { scratch.join("state") };
    fs::create_dir_all(&sink)?;
    let present = present(settings, case, &tools, results);
    let servers = Servers::start(&present, &work.join("servers"), &sink, settings.has_own_network)?;
    let stage = Stage {
        haul: &settings.haul,
        dataset: &dataset,
        source: &source,
        sink: &sink,
        scratch: &scratch,
        state: &state,
        servers: &servers,
        is_on_disk,
    };
    stage.prepare()?;
    let contest = Contest { settings, stage, files };
    let done = contest.rounds(present, results);
    contest.stage.clear()?;
    drop(servers);
    tree::remove(&source)?;
    tree::remove(&sink)?;
    done
}

/// Those that are installed; of the others it is written down why not.
fn present(
    settings: &Settings,
    case: Case,
    tools: &[&'static Tool],
    results: &mut Results,
) -> Vec<&'static Tool> {
    let help = Command::new(&settings.haul).args(["cp", "--help"]).output();
    let help = help.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let mut present = Vec::new();
    for tool in tools {
        match tool.missing(&help) {
            None => present.push(*tool),
            Some(problem) => {
                say(&format!("{}: {}: {problem}", case.name(), tool.name));
                results.runs.push(Run { case, tool, round: 0, outcome: Err(problem) });
            }
        }
    }
    present
}

/// One tool that is still in the running.
struct Runner {
    tool: &'static Tool,
    /// How many runs count.
    runs: usize,
}

struct Contest<'a> {
    settings: &'a Settings,
    stage: Stage<'a>,
    files: &'a Files,
}

impl Contest<'_> {
    fn rounds(&self, tools: Vec<&'static Tool>, results: &mut Results) -> io::Result<()> {
        let case = self.stage.dataset.case;
        let mut lottery = Lottery::new(self.settings.seed);
        let mut tools = tools;
        lottery.shuffle(&mut tools);
        let mut runners = Vec::new();
        for tool in tools {
            match self.first(tool, results) {
                Ok(runner) => runners.push(runner),
                Err(error) => self.failed(tool, 0, &error, results),
            }
        }
        if runners.is_empty() {
            return Err(io::Error::other("no tool came through its first run"));
        }
        for round in 1..=self.settings.runs {
            lottery.shuffle(&mut runners);
            let mut left = Vec::new();
            for runner in runners {
                if round > runner.runs {
                    continue;
                }
                match self.checked(runner.tool) {
                    Ok(sample) => {
                        say(&format!(
                            "{}, round {round} of {}: {}: {:.2} s",
                            case.name(),
                            self.settings.runs,
                            runner.tool.name,
                            sample.seconds
                        ));
                        results.runs.push(Run { case, tool: runner.tool, round, outcome: Ok(sample) });
                        left.push(runner);
                    }
                    Err(error) => self.failed(runner.tool, round, &error, results),
                }
            }
            runners = left;
            self.files.write(results)?;
        }
        Ok(())
    }

    /// Nothing comes of a run that a signal has ended together with all else.
    fn run(&self, tool: &'static Tool) -> io::Result<run::Sample> {
        let result = self.stage.run(tool);
        leave_the_rest_to_the_end();
        result
    }

    /// The run that does not count.
    fn first(&self, tool: &'static Tool, results: &mut Results) -> io::Result<Runner> {
        if let Some(problem) = self.stage.servers.problem(tool) {
            return Err(io::Error::other(problem.to_owned()));
        }
        let case = self.stage.dataset.case;
        let command = self.stage.with_place(|place| tool::shown(&tool.command(place), place));
        results.used.push(Used { case, tool, version: tool.version(&self.settings.haul), command });
        let sample = self.checked(tool)?;
        let is_slow = sample.seconds > SLOW_SECONDS;
        let runs = if is_slow { self.settings.runs.min(SLOW_RUNS) } else { self.settings.runs };
        say(&format!("{}, first run: {}: {:.2} s, as it should be", case.name(), tool.name, sample.seconds));
        Ok(Runner { tool, runs })
    }

    /// One run, whose result is compared with the source.
    fn checked(&self, tool: &'static Tool) -> io::Result<run::Sample> {
        let sample = self.run(tool)?;
        self.stage.check(tool)?;
        self.stage.clear()?;
        Ok(sample)
    }

    fn failed(&self, tool: &'static Tool, round: usize, error: &io::Error, results: &mut Results) {
        let case = self.stage.dataset.case;
        say(&format!("{}, round {round}: {} failed: {error}", case.name(), tool.name));
        // Paths of this run are nobody's business.
        let text = error.to_string().replace(&*self.stage.sink.to_string_lossy(), "SINK");
        let text = text.replace(&*self.stage.source.to_string_lossy(), "SOURCE");
        results.runs.push(Run { case, tool, round, outcome: Err(format!("failed: {text}")) });
    }
}
