//! Side by side with scp, rsync and cp: the same bytes, the same machine, one run after the other.
//!
//! From memory file system to memory file system over loopback, interleaved, medians. What would otherwise be measured is
//! kept out: pages are touched before the clock runs, each run begins with an empty destination and an empty state, and the
//! order of the programs changes from round to round. Processor time is that of all processes of both ends: of the near
//! ones by the kernel's account of finished children, of the far ones by the growth of the account of the server that
//! started and waited for them.

mod report;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use haul_crashfs::random::Random;
use rustix::fs::FallocateFlags;
use rustix::mount::MountFlags;

use crate::dataset::{big_file, source_tree};
use crate::process::{Guarded, descendants, look, reap_orphans, ticks, unblock_signals, wait_until};
use crate::rounds::MIB;
use crate::sshd::Sshd;
use crate::tree::{self, Options};
use report::{bars, gb, table, write_report};

const RUN_LIMIT: Duration = Duration::from_secs(600);
/// Files of the Linux source tree of Debian 12, which the generated tree imitates where that is missing.
const TREE_FILES: u64 = 78_579;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The binary.
    pub haul: PathBuf,
    /// Memory file systems are mounted below it.
    pub directory: PathBuf,
    /// The directory of bench.md and bench.svg.
    pub report: Option<PathBuf>,
    /// Of each program on each case.
    pub runs: usize,
    /// Percent.
    pub scale: u64,
    /// Only these; none: all.
    pub cases: Vec<String>,
    /// Only these; none: all.
    pub tools: Vec<String>,
    /// For haul.
    pub streams: Option<u32>,
    /// For haul.
    pub memory: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Tool {
    Haul,
    HaulPlain,
    Scp,
    Rsync,
    RsyncDaemon,
    Cp,
}

impl Tool {
    const ALL: [Tool; 6] = [Tool::Haul, Tool::HaulPlain, Tool::Scp, Tool::Rsync, Tool::RsyncDaemon, Tool::Cp];

    fn word(self) -> &'static str {
        match self {
            Tool::Haul => "haul",
            Tool::HaulPlain => "plain",
            Tool::Scp => "scp",
            Tool::Rsync => "rsync",
            Tool::RsyncDaemon => "rsyncd",
            Tool::Cp => "cp",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Tool::Haul => "haul",
            Tool::HaulPlain => "haul --plain",
            Tool::Scp => "scp",
            Tool::Rsync => "rsync over ssh",
            Tool::RsyncDaemon => "rsync daemon",
            Tool::Cp => "cp -r",
        }
    }

    fn protects(self) -> &'static str {
        match self {
            Tool::Haul => "encrypted, BLAKE3",
            Tool::HaulPlain => "clear, BLAKE3",
            Tool::Scp | Tool::Rsync => "encrypted",
            Tool::RsyncDaemon => "clear",
            Tool::Cp => "one process, no network",
        }
    }
}

struct Case {
    word: &'static str,
    title: String,
    /// Where huge pages are asked for.
    huge: bool,
    source: PathBuf,
    bytes: u64,
    files: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    wall: Duration,
    near: Duration,
    far: Duration,
}

/// Memory file systems, unmounted when dropped.
struct Memory {
    mounts: Vec<PathBuf>,
}

impl Memory {
    fn mount(&mut self, path: &Path, huge: bool) -> io::Result<()> {
        fs::create_dir_all(path)?;
        let options = if huge { c"size=90%,huge=always,mode=0755" } else { c"size=90%,mode=0755" };
        match rustix::mount::mount("tmpfs", path, "tmpfs", MountFlags::NODEV | MountFlags::NOSUID, options) {
            Ok(()) => {
                crate::remember_mount(path.to_owned());
                self.mounts.push(path.to_owned());
                Ok(())
            }
            // As an ordinary user it is measured on what is there; the report says so.
            Err(rustix::io::Errno::PERM) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for mount in self.mounts.drain(..) {
            haul_crashfs::Mount::detach_stale(&mount);
        }
    }
}

struct RsyncDaemon {
    server: Guarded,
    port: u16,
}

impl RsyncDaemon {
    fn start(directory: &Path, destination: &Path) -> io::Result<RsyncDaemon> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let owner = if rustix::process::geteuid().is_root() { "uid = 0\ngid = 0\n" } else { "" };
        let configuration = directory.join("rsyncd.conf");
        fs::write(
            &configuration,
            format!(
                "address = 127.0.0.1\nport = {port}\nuse chroot = no\n{owner}hosts allow = 127.0.0.1\n\
                 log file = {}\n[sink]\npath = {}\nread only = no\nmunge symlinks = no\n",
                directory.join("rsyncd.log").display(),
                destination.display()
            ),
        )?;
        let mut command = Command::new("rsync");
        command.args(["--daemon", "--no-detach", "--config"]).arg(&configuration);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Guarded::spawn(unblock_signals(&mut command))?;
        if !wait_until(Duration::from_secs(5), || TcpStream::connect(("127.0.0.1", port)).is_ok()) {
            return Err(io::Error::other("the rsync daemon did not start"));
        }
        Ok(RsyncDaemon { server, port })
    }
}

struct Bench {
    settings: Settings,
    sshd: Sshd,
    daemon: RsyncDaemon,
    sink: PathBuf,
    state: PathBuf,
}

/// Measures, prints, and writes the report.
pub fn run(settings: &Settings) -> io::Result<bool> {
    let settings = Settings { haul: settings.haul.canonicalize()?, ..settings.clone() };
    let directory = &settings.directory;
    let mut memory = Memory { mounts: Vec::new() };
    for (name, huge) in [("big", true), ("tree", false)] {
        memory.mount(&directory.join(name), huge)?;
    }
    let mounted = !memory.mounts.is_empty();
    let tools: Vec<Tool> = Tool::ALL
        .into_iter()
        .filter(|tool| settings.tools.is_empty() || settings.tools.iter().any(|word| word == tool.word()))
        .collect();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut results = Vec::new();
    for word in ["big", "files", "tree"] {
        if !settings.cases.is_empty() && !settings.cases.iter().any(|wanted| wanted == word) {
            continue;
        }
        let case = make_case(&settings, word)?;
        let sink = directory.join(if case.huge { "big" } else { "tree" }).join("sink");
        fs::create_dir_all(&sink)?;
        let bench = Bench {
            sshd: Sshd::start(&directory.join("sshd"))?,
            daemon: RsyncDaemon::start(directory, &sink)?,
            state: directory.join("state"),
            settings: settings.clone(),
            sink,
        };
        println!("\n{} ({} files, {:.2} GB)", case.title, case.files, gb(case.bytes));
        let samples = bench.measure(&case, &tools)?;
        print!("{}", table(&case, &samples));
        tree::remove(&case.source)?;
        results.push((case, samples));
    }
    let bars = bars(&results);
    println!();
    for (text, passed) in &bars {
        println!("{} {text}", if *passed { "met    " } else { "NOT MET" });
    }
    if let Some(report) = &settings.report {
        write_report(&settings, report, &results, &bars, mounted, load.trim())?;
    }
    drop(memory);
    Ok(bars.iter().all(|(_, passed)| *passed))
}

fn make_case(settings: &Settings, word: &'static str) -> io::Result<Case> {
    let scaled = |number: u64| (number * settings.scale / 100).max(1);
    let root = settings.directory.join(if word == "big" { "big" } else { "tree" });
    let source = root.join("source");
    println!("making {word} ...");
    let title = match word {
        "big" => {
            fs::create_dir(&source)?;
            big_file(&source.join("big"), 1, scaled(4096) * MIB)?;
            format!("one file of {:.1} GiB", scaled(4096) as f64 / 1024.0)
        }
        "files" => {
            fs::create_dir(&source)?;
            for number in 0..scaled(2000) {
                big_file(&source.join(format!("file-{number:04}")), number, MIB)?;
            }
            format!("{} files of 1 MiB", scaled(2000))
        }
        _ => match linux_source() {
            Some(archive) if settings.scale == 100 => {
                fs::create_dir(&source)?;
                let status = Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&source).status()?;
                if !status.success() {
                    return Err(io::Error::other(format!("{} cannot be unpacked", archive.display())));
                }
                format!("the tree of {}", archive.file_name().unwrap_or_default().to_string_lossy())
            }
            _ => {
                source_tree(&source, 1, scaled(TREE_FILES))?;
                format!("a generated source tree of {} files", scaled(TREE_FILES))
            }
        },
    };
    // rsync leaves a directory's time alone where it differs by less than a second.
    crate::dataset::set_time(&source, 1_600_000_000, 0)?;
    let totals = tree::totals(&source)?;
    Ok(Case { word, title, huge: word == "big", source, bytes: totals.bytes, files: totals.files })
}

fn linux_source() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir("/usr/src")
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("linux-source-") && name.ends_with(".tar.xz")
        })
        .collect();
    found.sort();
    found.pop()
}

impl Bench {
    fn measure(&self, case: &Case, tools: &[Tool]) -> io::Result<BTreeMap<Tool, Vec<Sample>>> {
        let mut samples: BTreeMap<Tool, Vec<Sample>> = BTreeMap::new();
        let mut random = Random::new(1);
        // The round before the first warms programs and caches, and is where results are compared.
        for round in 0..=self.settings.runs {
            let mut order = tools.to_vec();
            for last in (1..order.len()).rev() {
                order.swap(last, random.below(last as u64 + 1) as usize);
            }
            for tool in order {
                let sample = self.once(case, tool)?;
                if round == 0 {
                    self.check(case, tool)?;
                } else {
                    samples.entry(tool).or_default().push(sample);
                }
                tree::remove(&self.result())?;
            }
        }
        Ok(samples)
    }

    fn result(&self) -> PathBuf {
        self.sink.join("result")
    }

    fn once(&self, case: &Case, tool: Tool) -> io::Result<Sample> {
        tree::remove(&self.result())?;
        tree::remove(&self.state)?;
        fs::create_dir_all(&self.state)?;
        self.touch(case)?;
        let mut command = self.command(case, tool);
        let errors = self.settings.directory.join("errors");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&errors)?);
        let servers = [self.sshd.pid(), self.daemon.server.pid()];
        let far_before: u64 = servers.iter().filter_map(|pid| look(*pid)).map(|seen| seen.ticks).sum();
        let near_before = finished_children();
        let started = Instant::now();
        let mut child = Guarded::spawn(unblock_signals(&mut command))?;
        let status = child.wait(RUN_LIMIT);
        let wall = started.elapsed();
        if !status.is_some_and(|status| status.success()) {
            let errors = fs::read_to_string(&errors).unwrap_or_default();
            // scp has no way to send a symlink that leads to a directory; it goes on and fails at the end.
            let expected = |line: &str| {
                line.ends_with(" is not a regular file")
                    || line.starts_with("scp: upload ")
                    || line.starts_with("scp: failed to upload directory ")
            };
            if tool != Tool::Scp || status.is_none() || !errors.lines().all(expected) {
                return Err(io::Error::other(format!(
                    "{} on {}: {status:?} {errors}",
                    tool.name(),
                    case.word
                )));
            }
        }
        // The servers' accounts grow when they have waited for their sessions.
        let idle = || servers.iter().all(|pid| descendants(*pid).is_empty());
        if !wait_until(Duration::from_secs(10), idle) {
            let left: Vec<_> = servers.iter().flat_map(|pid| descendants(*pid)).collect();
            println!(
                "testbed: {} left processes behind, so its CPU time is not complete: {left:?}",
                tool.name()
            );
        }
        reap_orphans(&servers);
        let far_after: u64 = servers.iter().filter_map(|pid| look(*pid)).map(|seen| seen.ticks).sum();
        let near = finished_children().saturating_sub(near_before);
        Ok(Sample { wall, near, far: ticks(far_after.saturating_sub(far_before)) })
    }

    /// Pages that the destination will need are touched: the first touch of memory costs more than a copy on a virtual
    /// machine, and whoever came first would pay for it.
    fn touch(&self, case: &Case) -> io::Result<()> {
        let path = self.sink.join("touched");
        let file = File::create(&path)?;
        // Files occupy whole pages.
        let bytes = case.bytes + case.files * 4096;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        drop(file);
        fs::remove_file(path)
    }

    fn command(&self, case: &Case, tool: Tool) -> Command {
        let (source, result) = (&case.source, self.result());
        let remote = format!("127.0.0.1:{}", result.display());
        let configuration = self.sshd.directory().join("ssh_config");
        match tool {
            Tool::Haul | Tool::HaulPlain => {
                let mut command = Command::new(&self.settings.haul);
                command.args(["cp", "-r", "-q"]);
                if tool == Tool::HaulPlain {
                    command.arg("--plain");
                }
                if let Some(streams) = self.settings.streams {
                    command.args(["--streams", &streams.to_string()]);
                }
                if let Some(memory) = &self.settings.memory {
                    command.args(["--memory", memory]);
                }
                command.arg("--ssh").arg(self.sshd.ssh_command()).arg("--haul-path").arg(self.far_haul());
                command.arg(source).arg(remote).env("HAUL_STATE_DIR", &self.state);
                command
            }
            Tool::Scp => {
                let mut command = Command::new("scp");
                command.arg("-q").arg("-r").arg("-F").arg(configuration).arg(source).arg(remote);
                command
            }
            Tool::Rsync => {
                let mut command = Command::new("rsync");
                command.arg("-a").arg("-e").arg(self.sshd.ssh_command());
                command.arg(with_slash(source)).arg(format!("{remote}/"));
                command
            }
            Tool::RsyncDaemon => {
                let mut command = Command::new("rsync");
                command.arg("-a").arg(with_slash(source));
                command.arg(format!("rsync://127.0.0.1:{}/sink/result/", self.daemon.port));
                command
            }
            Tool::Cp => {
                let mut command = Command::new("cp");
                command.arg("-r").arg(source).arg(result);
                command
            }
        }
    }

    /// The far end keeps its state beside the near one's.
    fn far_haul(&self) -> PathBuf {
        let script = self.settings.directory.join("far-haul");
        let text = format!(
            "#!/bin/sh\nHAUL_STATE_DIR={}/far exec {} \"$@\"\n",
            self.state.display(),
            self.settings.haul.display()
        );
        if fs::read_to_string(&script).ok().as_deref() != Some(&text) {
            let made = fs::write(&script, text).and_then(|()| {
                fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            });
            if let Err(error) = made {
                eprintln!("testbed: {}: {error}", script.display());
            }
        }
        script
    }

    fn check(&self, case: &Case, tool: Tool) -> io::Result<()> {
        // scp and cp keep neither times nor modes here: their bytes are compared.
        let keeps = !matches!(tool, Tool::Scp | Tool::Cp);
        let options = Options { times: keeps, modes: keeps, listed_max: 1000, ..Options::default() };
        let comparison = tree::compare(&case.source, &self.result(), &options)?;
        // scp follows symlinks to files and leaves the others out; rsync's daemon tidies the path that one leads to.
        let leaves_symlinks = matches!(tool, Tool::Scp | Tool::RsyncDaemon);
        let is_symlink = |path: &[u8]| {
            let path = case.source.join(OsStr::from_bytes(path));
            path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink())
        };
        match comparison.differences.iter().find(|one| !leaves_symlinks || !is_symlink(&one.path)) {
            None => Ok(()),
            Some(one) => Err(io::Error::other(format!("{} on {} differs: {one}", tool.name(), case.word))),
        }
    }
}

fn with_slash(path: &Path) -> String {
    format!("{}/", path.display())
}

/// Processor time of all children that have ended and been waited for, and of theirs.
fn finished_children() -> Duration {
    // SAFETY: the pointer is to a live local of the right type, which any bytes are valid for.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}
