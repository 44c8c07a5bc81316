//! One measured transfer: a source process, the far end that it starts, what they say, and what is done to them.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal};
use serde_json::Value;

use super::variant::{Variant, Workload};
use crate::process::{Guarded, descendants, look, signal, ticks, unblock_signals, wait_gone, wait_until};

/// A run that takes longer than this beyond what was expected of it hangs.
const HANGS: Duration = Duration::from_secs(300);
/// A far end ends soon after the near one.
const LINGERS: Duration = Duration::from_secs(5);

/// What is to run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The program under test.
    pub haul: PathBuf,
    /// What is moved.
    pub workload: Workload,
    /// How.
    pub variant: Variant,
    /// Bytes a second, at most.
    pub bandwidth: Option<u64>,
    /// Buffer memory of each end.
    pub memory: Option<u64>,
    /// Who writes the log, if not the default.
    pub writer: Option<&'static str>,
    /// Real files to move, for movers that cannot do without.
    pub files: Option<PathBuf>,
    /// Everything that comes of it; made and removed by the caller.
    pub directory: PathBuf,
}

impl Setup {
    /// Where it is moved to.
    pub fn destination(&self) -> PathBuf {
        self.directory.join("sink")
    }

    fn command(&self) -> Command {
        match self.variant {
            Variant::Rsync => self.rsync(),
            Variant::Bbcp => self.bbcp(),
            _ => self.haul(),
        }
    }

    fn haul(&self) -> Command {
        let haul = self.haul.to_string_lossy();
        let mut command = Command::new(&self.haul);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HAUL_")) {
            command.env_remove(name);
        }
        // Nobody's settings and nobody's state.
        command.env("HAUL_STATE_DIR", self.directory.join("state"));
        command.env("XDG_CONFIG_HOME", self.directory.join("no-config"));
        command.args(["bench", "transfer", "-r", "--json", "--reconnect", "20"]);
        command.arg("--ssh").arg(format!("'{haul}' bench shell")).arg("--haul-path").arg(&*haul);
        command.args(self.variant.options());
        if let Some(rate) = self.bandwidth {
            command.arg("--bandwidth").arg(rate.to_string());
        }
        if let Some(memory) = self.memory {
            command.arg("--memory").arg(memory.to_string());
        }
        if let Some(writer) = self.writer {
            command.arg("--log-writer").arg(writer);
        }
        let Workload { files, file_bytes, .. } = self.workload;
        command.arg("--synthetic").arg(format!("files={files},size={file_bytes},seed=1"));
        command.args(["--discard", "/synthetic"]);
        command.arg(format!("localhost:{}", self.destination().display()));
        command
    }

    /// The rest of a file is appended if what is there is a part of it.
    fn rsync(&self) -> Command {
        let mut command = Command::new("rsync");
        command.args(["-a", "--partial", "--append-verify", "--no-compress"]);
        if let Some(rate) = self.bandwidth {
            command.arg(format!("--bwlimit={}", rate.div_ceil(1024)));
        }
        command.args(self.files.as_deref()).arg(self.destination());
        command
    }

    fn bbcp(&self) -> Command {
        let mut command = Command::new("bbcp");
        command.args(["-a", "-r", "-s", "2", "-w", "8m"]);
        command.args(["-S", "bbcp", "-T", "bbcp"]);
        if let Some(rate) = self.bandwidth {
            command.arg("-x").arg(rate.to_string());
        }
        command.args(self.files.as_deref()).arg(format!("localhost:{}", self.destination().display()));
        command
    }
}

/// What hits a transfer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// SIGKILL to the process that reads.
    Source,
    /// SIGKILL to the process that writes.
    Sink,
    /// All connections are cut.
    Network,
}

impl Fault {
    /// All three.
    pub const ALL: [Fault; 3] = [Fault::Source, Fault::Sink, Fault::Network];

    /// `source`, `sink`, `network`.
    pub const fn name(self) -> &'static str {
        match self {
            Fault::Source => "source",
            Fault::Sink => "sink",
            Fault::Network => "network",
        }
    }
}

/// How a process of a transfer ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// It ended by itself, with success.
    pub success: bool,
    /// When.
    pub at: Instant,
    /// The last event: of a run that came to its end, the summary.
    pub summary: Value,
    /// Bytes sent as of the last event that said so.
    pub bytes_sent: u64,
    /// Processor time of both ends; of a far end that has not ended yet, what it used so far.
    pub processor_seconds: f64,
    /// When bytes were first sent after [`Running::inject`], as far as events tell.
    pub moved_again: Option<Instant>,
}

/// A transfer that runs.
pub struct Running {
    /// When it was started.
    pub started: Instant,
    process: Guarded,
    events: Receiver<(Instant, Value)>,
    bytes_sent: u64,
    last: Value,
    /// Bytes sent when the fault was injected.
    sent_before: Option<u64>,
    moved_again: Option<Instant>,
    errors: PathBuf,
    destination: PathBuf,
    variant: Variant,
    /// The process that writes, once it was seen.
    far: Option<i32>,
    /// Processor time of the process that reads, once it has ended.
    near_used: Duration,
}

impl Running {
    /// Starts it.
    pub fn start(setup: &Setup) -> io::Result<Running> {
        fs::create_dir_all(&setup.directory)?;
        if setup.variant == Variant::Bbcp {
            // It does not make it itself.
            fs::create_dir_all(setup.destination())?;
        }
        let errors = setup.directory.join("stderr");
        let mut command = setup.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(fs::File::create(&errors)?);
        let started = Instant::now();
        let mut process = Guarded::spawn(unblock_signals(&mut command))?;
        let output = process.child().stdout.take().expect("stdout is piped");
        let (sender, events) = mpsc::channel();
        std::thread::Builder::new().name("events".into()).spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Ok(event) = serde_json::from_str(&line) else { continue };
                if sender.send((Instant::now(), event)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Running {
            started,
            process,
            events,

            bytes_sent: 0,
            last: Value::Null,
            sent_before: None,
            moved_again: None,
            errors,
            destination: setup.destination(),
            variant: setup.variant,
            far: None,
            near_used: Duration::ZERO,
        })
    }

    /// Waits until so many bytes have been sent. False if it ended before.
    pub fn wait_for_bytes(&mut self, wanted: u64, limit: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + limit + HANGS;
        while self.bytes_sent < wanted {
            if !self.take_event(deadline)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for the next event, or a moment; false at the end of all events.
    fn take_event(&mut self, deadline: Instant) -> io::Result<bool> {
        if Instant::now() >= deadline {
            return Err(io::Error::other(format!("hangs: {}", self.about())));
        }
        match self.events.recv_timeout(Duration::from_millis(50)) {
            Ok((at, event)) => {
                if let Some(sent) = event["bytes_sent"].as_u64() {
                    self.bytes_sent = sent;
                    if self.sent_before.is_some_and(|before| sent > before) {
                        self.moved_again.get_or_insert(at);
                    }
                }
                self.last = event;
                Ok(true)
            }
            Err(RecvTimeoutError::Timeout) => {
                if !self.variant.is_haul() {
                    self.bytes_sent = bytes_below(&self.destination);
                }
                Ok(true)
            }
            Err(RecvTimeoutError::Disconnected) => {
                // It is told of until it is waited for.
                wait_gone(self.process.pid(), HANGS);
                self.near_used = used(self.process.pid());
                let ended = self.process.wait(HANGS).is_some();
                if ended { Ok(false) } else { Err(io::Error::other(format!("hangs: {}", self.about()))) }
            }
        }
    }

    /// Does it; returns when.
    pub fn inject(&mut self, fault: Fault) -> io::Result<Instant> {
        self.sent_before = Some(self.bytes_sent);
        match fault {
            // Its two ends go on when the process that was started is gone.
            Fault::Source if self.variant == Variant::Bbcp => {
                let reader = self.descendant("SRC").ok_or_else(|| io::Error::other("nobody reads"))?;
                signal(reader, Signal::KILL);
            }
            Fault::Source => self.process.kill(),
            Fault::Sink => {
                let far = self.far_end().ok_or_else(|| io::Error::other("there is no far end"))?;
                signal(far, Signal::KILL);
            }
            Fault::Network => {
                if cut(self.process.pid())? == 0 {
                    return Err(io::Error::other("there is no connection to cut"));
                }
            }
        }
        Ok(Instant::now())
    }

    /// The largest resident sets so far of both ends together, in bytes.
    pub fn resident_peak(&mut self) -> u64 {
        self.far = self.far_end();
        resident_peak(self.process.pid()) + self.far.map_or(0, resident_peak)
    }

    /// The process that writes.
    fn far_end(&self) -> Option<i32> {
        self.descendant(match self.variant {
            Variant::Rsync => "",
            Variant::Bbcp => "SNK",
            _ => "serve --stdio",
        })
    }

    /// The last process below the one that was started with this in its command line: a shell may stand between.
    fn descendant(&self, words: &str) -> Option<i32> {
        let below = descendants(self.process.pid()).into_iter().map(|seen| seen.pid);
        below.rev().find(|pid| command_line(*pid).contains(words))
    }

    /// Waits for its end.
    pub fn wait(mut self, limit: Duration) -> io::Result<Ended> {
        let deadline = Instant::now() + limit + HANGS;
        while self.take_event(deadline)? {}
        let at = Instant::now();
        let far = self.far.map_or(Duration::ZERO, |far| {
            wait_gone(far, LINGERS);
            used(far)
        });
        let processor_seconds = (self.near_used + far).as_secs_f64();
        let success = self.process.status().is_some_and(|status| status.success());
        let Running { last, bytes_sent, moved_again, .. } = self;
        Ok(Ended { success, at, summary: last, bytes_sent, processor_seconds, moved_again })
    }

    /// [`wait`](Self::wait), for a run that has to succeed.
    pub fn wait_for_success(self, limit: Duration) -> io::Result<Ended> {
        let (errors, variant) = (self.errors.clone(), self.variant);
        let ended = self.wait(limit)?;
        if !ended.success {
            return Err(io::Error::other(format!(
                "{variant} failed: {} {}",
                last_said(&errors),
                ended.summary
            )));
        }
        Ok(ended)
    }

    /// The last that it has said of what is wrong.
    pub fn said(&self) -> String {
        last_said(&self.errors)
    }

    fn about(&self) -> String {
        format!("{} after {} bytes: {}", self.variant, self.bytes_sent, self.last)
    }
}

fn last_said(errors: &Path) -> String {
    let said = fs::read_to_string(errors).unwrap_or_default();
    said.lines().rev().take(3).collect::<Vec<_>>().join(" / ")
}

fn command_line(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// Bytes of all files below, for movers that do not say how far they are.
fn bytes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => bytes_below(&entry.path()),
            Ok(found) => found.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Ends every TCP connection of a child process, both ways, as a network that fails for good would in the end; how many.
fn cut(pid: i32) -> io::Result<usize> {
    let raw = Pid::from_raw(pid).ok_or_else(|| io::Error::other("no such process"))?;
    let process = rustix::process::pidfd_open(raw, PidfdFlags::empty())?;
    let mut count = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let is_socket = fs::read_link(entry.path())
            .is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let (true, Some(number)) = (is_socket, number) else { continue };
        let Ok(socket) = rustix::process::pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        count += usize::from(shut(socket));
    }
    Ok(count)
}

/// Only what is connected over TCP.
fn shut(socket: OwnedFd) -> bool {
    let stream = std::net::TcpStream::from(socket);
    stream.peer_addr().is_ok() && stream.shutdown(Shutdown::Both).is_ok()
}

/// Processor time of a process that was not waited for yet.
fn used(pid: i32) -> Duration {
    look(pid).map_or(Duration::ZERO, |seen| ticks(seen.ticks))
}

fn resident_peak(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    kilobytes.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Takes in what has ended and has no other parent left; waits a little for those that are ending.
pub fn reap() {
    wait_until(Duration::from_secs(5), || {
        crate::process::reap_orphans();
        descendants(crate::process::own_pid()).is_empty()
    });
}
