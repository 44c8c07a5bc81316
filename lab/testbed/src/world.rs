//! Two hosts on one machine, and runs of the program under test between them.
//!
//! "Near" is where the command is typed, "far" what ssh starts. Each has a state directory of its own. The far end is
//! started through a script that notes its process id, so that it can be found however it was started.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use haul_crashfs::random::Random;
use serde_json::Value;

use crate::process::{Guarded, descendants, unblock_signals};
use crate::sshd::Sshd;

/// Where the data goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Route {
    /// From here to the far host.
    Push,
    /// From the far host to here.
    Pull,
    /// Both ends in one process.
    Local,
}

impl Route {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Route::Push => "push",
            Route::Pull => "pull",
            Route::Local => "local",
        }
    }
}

/// The program under test.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    help: String,
}

impl Program {
    /// Finds out which options it has.
    pub fn new(path: &Path) -> io::Result<Program> {
        let path = path.canonicalize().map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}; `make build` makes it", path.display()))
        })?;
        let output = Command::new(&path).args(["cp", "--help"]).stdin(Stdio::null()).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!(
                "{} cp --help ends with {}",
                path.display(),
                output.status
            )));
        }
        Ok(Program { path, help: String::from_utf8_lossy(&output.stdout).into_owned() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Is it the one with bugs that loops are tried with? It has no options.
    pub fn is_stand_in(&self) -> bool {
        self.path.file_name().is_some_and(|name| name == "stand-in")
    }

    /// Does `cp` have this option?
    pub fn has(&self, option: &str) -> bool {
        self.help
            .split(|character: char| !(character.is_alphanumeric() || character == '-'))
            .any(|word| word == option)
    }
}

/// What one command is to do; the same job may be run again and again.
#[derive(Clone, Debug)]
pub struct Job {
    /// Where the data goes.
    pub route: Route,
    /// Clear data on the wire.
    pub plain: bool,
    /// Data streams; the program's default where it is none.
    pub streams: Option<u32>,
    /// Bytes of the slot pool.
    pub memory_bytes: Option<u64>,
    /// How long an end waits for a lost peer.
    pub reconnect: Option<Duration>,
    /// The object log, if not the default.
    pub log: Option<LogChoice>,
    /// How contents are checked, if not as usual.
    pub hash: Option<&'static str>,
    /// Where the source keeps what the sink cannot take yet, if anywhere.
    pub spill: Option<PathBuf>,
    /// `--engine` and `--io`, if not as measured.
    pub engine: Option<(&'static str, &'static str)>,
    /// A push hashes what is in memory while it waits for the other end. What a process reads is then more than what it sends.
    pub hashes_early: bool,
    /// The tree that is read.
    pub source: PathBuf,
    /// DEST as it is typed.
    pub destination: PathBuf,
    /// DEST was there before the first run: then the tree lands in it under the source's name.
    pub into: bool,
}

impl Job {
    /// How contents are checked: mostly as usual.
    pub fn draw_hash(random: &mut Random) -> Option<&'static str> {
        *random.pick(&[None, None, None, Some("xxh3"), Some("none")])
    }

    /// How files are read and written: half of the time as measured.
    pub fn draw_engine(random: &mut Random) -> Option<(&'static str, &'static str)> {
        random.chance(128).then(|| {
            (*random.pick(&["auto", "posix", "uring"]), *random.pick(&["auto", "buffered", "direct"]))
        })
    }

    /// Where the tree must be at the end.
    pub fn result(&self) -> PathBuf {
        if self.into {
            self.destination.join(self.source.file_name().expect("the source has a name"))
        } else {
            self.destination.clone()
        }
    }

    /// A path of an event, whose first component is the tree itself, relative to the tree.
    pub fn within(path: &[u8]) -> &[u8] {
        path.iter().position(|byte| *byte == b'/').map_or(b"", |at| &path[at + 1..])
    }

    /// The path of a failure, which is told as it was typed if the tree is where it is to blame, relative to the tree; of the tree
    /// itself nothing.
    pub fn below<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        let below = |tree: &Path| {
            let tree = tree.as_os_str().as_bytes();
            let at = path.windows(tree.len()).position(|bytes| bytes == tree)?;
            match &path[at + tree.len()..] {
                [] => Some(&path[path.len()..]),
                rest => rest.strip_prefix(b"/"),
            }
        };
        below(&self.source).or_else(|| below(&self.result())).unwrap_or_else(|| Job::within(path))
    }
}

/// One of the eighteen logs, and who writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogChoice {
    mechanism: &'static str,
    method: &'static str,
    writer: &'static str,
}

impl LogChoice {
    /// Half of the time the default, else any.
    pub fn choose(random: &mut Random) -> Option<LogChoice> {
        random.chance(128).then(|| LogChoice {
            mechanism: random.pick::<&str>(&["file", "transaction", "universal"]),
            method: random.pick::<&str>(&["char", "int", "enc", "binary", "bit8", "bit64"]),
            writer: random.pick::<&str>(&["comm", "thread"]),
        })
    }
}

impl std::fmt::Display for LogChoice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}+{} by {}", self.mechanism, self.method, self.writer)
    }
}

/// Both hosts and the way between them.
pub struct World {
    program: Program,
    sshd: Sshd,
    directory: PathBuf,
    near_state: PathBuf,
    far_state: PathBuf,
    /// Where both hosts look for programs first.
    programs: Option<PathBuf>,
    runs: std::cell::Cell<u64>,
}

impl World {
    /// Starts the far host's sshd. All files are below `directory`, but for the state directories where given.
    pub fn new(program: Program, directory: &Path, states: Option<(PathBuf, PathBuf)>) -> io::Result<World> {
        fs::create_dir_all(directory)?;
        let directory = directory.canonicalize()?;
        let sshd = Sshd::start(&directory.join("sshd"))?;
        let (near_state, far_state) =
            states.unwrap_or_else(|| (directory.join("near-state"), directory.join("far-state")));
        fs::create_dir_all(directory.join("runs"))?;
        let world = World {
            program,
            sshd,
            directory,
            near_state,
            far_state,
            programs: None,
            runs: std::cell::Cell::new(0),
        };
        world.write_far_script()?;
        Ok(world)
    }

    /// Both hosts find programs in this directory before all others.
    pub fn with_programs(self, directory: PathBuf) -> io::Result<World> {
        let world = World { programs: Some(directory), ..self };
        world.write_far_script()?;
        Ok(world)
    }

    fn write_far_script(&self) -> io::Result<()> {
        let script = self.directory.join("far-haul");
        let path = self.programs.as_ref().map(|programs| format!("PATH={}:$PATH ", programs.display()));
        // exec keeps the process id that is noted.
        fs::write(
            &script,
            format!(
                "#!/bin/sh\necho $$ >> {}\n{}HAUL_STATE_DIR={} exec {} \"$@\"\n",
                self.directory.join("far.pids").display(),
                path.unwrap_or_default(),
                self.far_state.display(),
                self.program.path().display()
            ),
        )?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
    }

    /// The far host's sshd.
    pub fn sshd(&self) -> &Sshd {
        &self.sshd
    }

    /// The program under test.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Both state directories: near, far.
    pub fn states(&self) -> (&Path, &Path) {
        (&self.near_state, &self.far_state)
    }

    /// The program at the near host.
    pub fn haul(&self) -> Command {
        let mut command = Command::new(self.program.path());
        if let Some(programs) = &self.programs {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let all = std::iter::once(programs.clone()).chain(std::env::split_paths(&path));
            // Names without a colon, as they were made here or in a PATH.
            command.env("PATH", std::env::join_paths(all).unwrap_or(path));
        }
        command
    }

    /// The command of a job, as it would be typed.
    pub fn command(&self, job: &Job) -> Command {
        let mut command = self.haul();
        command.arg("cp").arg("-r").arg("-v").arg("--json");
        if job.plain {
            command.arg("--plain");
        }
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value
                && self.program.has(name)
            {
                command.arg(name).arg(value);
            }
        };
        option("--streams", job.streams.filter(|_| job.route != Route::Local).map(|count| count.to_string()));
        option("--memory", job.memory_bytes.map(|bytes| bytes.to_string()));
        option("--reconnect", job.reconnect.map(|time| time.as_secs().max(1).to_string()));
        if let Some(log) = &job.log {
            option("--log-mechanism", Some(log.mechanism.into()));
            option("--log-method", Some(log.method.into()));
            option("--log-writer", Some(log.writer.into()));
        }
        option("--hash", job.hash.map(str::to_owned));
        option("--engine", job.engine.map(|(engine, _)| engine.to_owned()));
        option("--io", job.engine.map(|(_, io)| io.to_owned()));
        option("--spill", job.spill.as_ref().map(|directory| directory.display().to_string()));
        if job.route != Route::Local {
            command.arg("--ssh").arg(self.sshd.ssh_command());
            command.arg("--haul-path").arg(self.directory.join("far-haul"));
        }
        let remote = |path: &Path| format!("127.0.0.1:{}", path.display());
        match job.route {
            Route::Push => command.arg(&job.source).arg(remote(&job.destination)),
            Route::Pull => command.arg(remote(&job.source)).arg(&job.destination),
            Route::Local => command.arg(&job.source).arg(&job.destination),
        };
        command.env("HAUL_STATE_DIR", &self.near_state);
        if !job.hashes_early {
            command.env("HAUL_TEST_HASHES_LATE", "1");
        }
        command
    }

    /// Starts a job.
    pub fn start(&self, job: &Job) -> io::Result<Running> {
        self.start_with(job, &[])
    }

    /// Starts a job with more options.
    pub fn start_with(&self, job: &Job, options: &[&str]) -> io::Result<Running> {
        let number = self.runs.get();
        self.runs.set(number + 1);
        let file = |kind: &str| self.directory.join("runs").join(format!("{number}.{kind}"));
        let far_before = self.far_pids().len();
        let mut command = self.command(job);
        command.args(options);
        command.stdin(Stdio::null()).stdout(File::create(file("out"))?).stderr(File::create(file("err"))?);
        let started = Instant::now();
        let child = Guarded::spawn(unblock_signals(&mut command))?;
        Ok(Running {
            child,
            route: job.route,
            started,
            out: file("out"),
            err: file("err"),
            far_pids: self.directory.join("far.pids"),
            far_before,
        })
    }

    fn far_pids(&self) -> Vec<i32> {
        read_pids(&self.directory.join("far.pids"))
    }
}

fn read_pids(path: &Path) -> Vec<i32> {
    fs::read_to_string(path).unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
}

/// A run under way; killed when dropped.
pub struct Running {
    child: Guarded,
    route: Route,
    started: Instant,
    out: PathBuf,
    err: PathBuf,
    far_pids: PathBuf,
    far_before: usize,
}

impl Running {
    /// The end where the command was typed.
    pub fn near(&self) -> i32 {
        self.child.pid()
    }

    /// Far ends that it started, the latest last; none for local runs, or before ssh has logged in.
    pub fn far(&self) -> Vec<i32> {
        read_pids(&self.far_pids).split_off(self.far_before)
    }

    /// The ssh processes that the near end runs.
    pub fn ssh(&self) -> Vec<i32> {
        descendants(self.near()).into_iter().filter(|seen| seen.name == "ssh").map(|seen| seen.pid).collect()
    }

    /// The end that reads.
    pub fn source(&self) -> Option<i32> {
        match self.route {
            Route::Push | Route::Local => Some(self.near()),
            Route::Pull => self.far().last().copied(),
        }
    }

    /// The end that writes.
    pub fn sink(&self) -> Option<i32> {
        match self.route {
            Route::Push => self.far().last().copied(),
            Route::Pull | Route::Local => Some(self.near()),
        }
    }

    /// How long it has been running.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Has it ended?
    pub fn has_ended(&mut self) -> bool {
        self.child.status().is_some()
    }

    /// Waits until an instant of the run; false where it ended before.
    pub fn wait_for_instant(&mut self, instant: Duration) -> bool {
        let left = instant.saturating_sub(self.elapsed());
        self.child.wait(left).is_none()
    }

    /// Bytes that the source's end has read so far, as the kernel counts them: `sendfile` too, mappings not. More than what it has sent by what it
    /// holds in slots.
    pub fn bytes_read(&self) -> Option<u64> {
        counted(self.source()?, "rchar: ")
    }

    /// Bytes that the sink's end has written so far, as the kernel counts them: not those that a ring wrote. More than what was
    /// written into files by its logs, hashes and events.
    pub fn bytes_written(&self) -> Option<u64> {
        counted(self.sink()?, "wchar: ")
    }

    /// Events so far: what a script that watches would have seen.
    pub fn events(&self) -> Vec<Value> {
        parse_events(&self.out)
    }

    /// It has said how it ended; it may wait for a thread that hangs.
    pub fn has_summary(&self) -> bool {
        self.events().iter().any(|event| event["event"] == "summary")
    }

    /// It has said that both ends are connected.
    pub fn is_connected(&self) -> bool {
        self.events().iter().any(|event| event["event"] == "connected")
    }

    /// Waits for its end, bounded; none where it runs on.
    pub fn wait(&mut self, limit: Duration) -> Option<Outcome> {
        let status = self.child.wait(limit)?;
        Some(self.outcome(status))
    }

    /// Kills it and waits.
    pub fn kill(&mut self) {
        self.child.kill();
    }

    fn outcome(&self, status: ExitStatus) -> Outcome {
        let events = self.events();
        let mut errors = String::new();
        let _ = File::open(&self.err).and_then(|file| file.take(64 << 10).read_to_string(&mut errors));
        Outcome { status, elapsed: self.elapsed(), events, errors: errors.trim().to_owned() }
    }

    /// What it wrote to its standard error is removed with its events.
    pub fn forget(&self) {
        let _ = fs::remove_file(&self.out);
        let _ = fs::remove_file(&self.err);
    }
}

/// What the kernel has counted for a process.
fn counted(pid: i32, what: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(what)?.parse().ok())
}

/// Events as `--json` writes them, a line each.
pub fn parse_events(path: &Path) -> Vec<Value> {
    let bytes = fs::read(path).unwrap_or_default();
    // The last line of a killed run may be cut short.
    bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// How long it ran.
    pub elapsed: Duration,
    /// Its events.
    pub events: Vec<Value>,
    /// Its standard error.
    pub errors: String,
}

impl Outcome {
    /// The last summary event.
    pub fn summary(&self) -> Option<&Value> {
        self.events.iter().rev().find(|event| event["event"] == "summary")
    }

    /// A number of the summary.
    pub fn number(&self, field: &str) -> Option<u64> {
        self.summary()?[field].as_u64()
    }

    /// It says that everything is there: by its exit code or by its summary.
    pub fn claims_done(&self) -> bool {
        self.status.code() == Some(0) || self.summary().is_some_and(|summary| summary["state"] == "done")
    }

    /// Exit code and summary say the same, and both say done.
    pub fn is_done(&self) -> bool {
        self.status.code() == Some(0) && self.summary().is_some_and(|summary| summary["state"] == "done")
    }

    /// Of exit code and summary one says done and the other says something else. (One that was killed after its
    /// summary says nothing else.)
    pub fn contradicts_itself(&self) -> bool {
        self.claims_done() && self.status.code().is_some() && !self.is_done()
    }

    /// For people: `exit 4` or `signal 9`.
    pub fn ended(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit {code}"),
            (_, Some(signal)) => format!("signal {signal}"),
            _ => self.status.to_string(),
        }
    }

    /// How it ended, and what it said last if that is no success.
    pub fn told(&self) -> String {
        match self.status.code() {
            Some(code) if code != 0 => format!("{} ({})", self.ended(), self.last_errors()),
            _ => self.ended(),
        }
    }

    /// The last lines of its standard error.
    pub fn last_errors(&self) -> String {
        let lines: Vec<&str> = self.errors.lines().collect();
        lines[lines.len().saturating_sub(2)..].join(" | ").replace("  ", "")
    }
}

/// Paths that events name as complete and durable, relative to the tree.
pub fn claims(events: &[Value]) -> Vec<Vec<u8>> {
    events
        .iter()
        .filter(|event| event["event"] == "file")
        .filter_map(path_of)
        .map(|path| Job::within(&path).to_vec())
        .collect()
}

fn path_of(event: &Value) -> Option<Vec<u8>> {
    // A name that is no text comes in hex as well.
    if let Some(hex) = event["path_hex"].as_str() {
        let digit = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        return (0..hex.len()).step_by(2).map(digit).collect();
    }
    Some(event["path"].as_str()?.as_bytes().to_vec())
}
