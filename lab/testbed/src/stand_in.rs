//! A mover as simple as can be, with haul's command line: the loops are tested with it.
//!
//! It is right, or has the one bug that `STAND_IN_BUG` names. The far end does nothing but live: the near end reads and
//! writes both trees itself, file by file, each synced before it is named as done.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use haul_testbed::process::{is_alive, own_pid, signal, wait_gone};
use haul_testbed::tree::{UNFINISHED_PREFIX, entries, kind, open_directory, open_root};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::process::Signal;

const HELP: &str = "--plain --streams --memory --reconnect --ssh --haul-path --json -v -r";
const CHUNK_BYTES: usize = 64 << 10;

/// What each chunk of a file that is named too early takes at least.
const EARLY_PACE: Duration = Duration::from_micros(300);

/// What may be wrong with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    NoFileSync,
    NoDirectorySync,
    EarlyName,
    EarlyClaim,
    LeftOvers,
    FalseDone,
    SkipsBySize,
    SendsTwice,
    FarLingers,
    NoTakeover,
}

impl Bug {
    fn from_environment() -> Bug {
        match std::env::var("STAND_IN_BUG").as_deref() {
            Ok("no-file-sync") => Bug::NoFileSync,
            Ok("no-directory-sync") => Bug::NoDirectorySync,
            Ok("early-name") => Bug::EarlyName,
            Ok("early-claim") => Bug::EarlyClaim,
            Ok("left-overs") => Bug::LeftOvers,
            Ok("false-done") => Bug::FalseDone,
            Ok("skips-by-size") => Bug::SkipsBySize,
            Ok("sends-twice") => Bug::SendsTwice,
            Ok("far-lingers") => Bug::FarLingers,
            Ok("no-takeover") => Bug::NoTakeover,
            _ => Bug::None,
        }
    }
}

struct Mover {
    bug: Bug,
    sent: u64,
    files: u64,
    temporary: u64,
    /// Finished directories; their times are set at the end, deepest first.
    directories: Vec<(OwnedFd, Stat)>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    if let [way] = &arguments[..]
        && way.starts_with("far")
    {
        return far(way == "far-lingers");
    }
    match near(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stand-in: {error}");
            ExitCode::from(4)
        }
    }
}

/// Lives as long as its ssh does.
fn far(lingers: bool) -> ExitCode {
    println!("ready");
    let mut byte = [0];
    while io::stdin().read(&mut byte).is_ok_and(|length| length > 0) {}
    if lingers {
        std::thread::sleep(Duration::from_secs(600));
    }
    ExitCode::SUCCESS
}

fn near(arguments: &[String]) -> io::Result<()> {
    let value = |name: &str| {
        arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1)).cloned()
    };
    let [.., source, destination] = arguments else {
        return Err(io::Error::other("SOURCE and DEST are needed"));
    };
    let bug = Bug::from_environment();
    let state =
        PathBuf::from(std::env::var_os("HAUL_STATE_DIR").ok_or_else(|| io::Error::other("no state"))?);
    fs::create_dir_all(&state)?;
    take_over(&state, bug)?;
    if let (Some(ssh), Some(path)) = (value("--ssh"), value("--haul-path")) {
        // The far end ends with this process, not before it: its end is watched.
        std::mem::forget(start_far(&ssh, &path, bug)?);
    }
    let path = |text: &str| PathBuf::from(text.strip_prefix("127.0.0.1:").unwrap_or(text));
    let (source, mut destination) = (path(source), path(destination));
    // Into DEST or as DEST is decided by the first run.
    let decision = state.join("into");
    if !decision.exists() {
        write_durably(&decision, if destination.is_dir() { b"1" } else { b"0" })?;
    }
    if fs::read(&decision)? == b"1" {
        let name = source.file_name().ok_or_else(|| io::Error::other("no name"))?;
        destination.push(name);
    }
    let prefix = destination.file_name().expect("a name").as_bytes().to_vec();
    if !destination.exists() {
        fs::create_dir(&destination)?;
    }
    let mut mover = Mover { bug, sent: 0, files: 0, temporary: 0, directories: Vec::new() };
    mover.sync_directory(&open_root(destination.parent().expect("a parent"))?)?;
    let (a, b) = (open_root(&source)?, open_root(&destination)?);
    if bug == Bug::FalseDone {
        println!("{{\"event\":\"summary\",\"state\":\"done\",\"bytes_sent\":0}}");
    }
    mover.directory(&a, &b, &prefix)?;
    mover.directories.push((b, rustix::fs::fstat(&a)?));
    for (directory, stat) in &mover.directories {
        mover.attributes(directory, stat)?;
        mover.sync_directory(directory)?;
    }
    let sent = mover.sent;
    println!(
        "{{\"event\":\"summary\",\"state\":\"done\",\"bytes_sent\":{sent},\"files_done\":{}}}",
        mover.files
    );
    Ok(())
}

/// One owner: whoever ran before is ended first.
fn take_over(state: &Path, bug: Bug) -> io::Result<()> {
    let path = state.join("owner");
    if let Some(old) = fs::read_to_string(&path).ok().and_then(|text| text.parse::<i32>().ok())
        && old != own_pid()
        && is_alive(old)
        && bug != Bug::NoTakeover
    {
        signal(old, Signal::KILL);
        wait_gone(old, Duration::from_secs(5));
    }
    // Held until the process ends: that is how the loop tells an owner. Shared, so that a bug can own beside another.
    let lock = Box::leak(Box::new(File::create(state.join("owner-lock"))?));
    rustix::fs::flock(&*lock, rustix::fs::FlockOperation::LockShared)?;
    fs::write(path, own_pid().to_string())
}

fn start_far(ssh: &str, path: &str, bug: Bug) -> io::Result<std::process::ChildStdin> {
    let mut words = ssh.split(' ');
    let way = if bug == Bug::FarLingers { "far-lingers" } else { "far" };
    let mut child = Command::new(words.next().expect("a program"))
        .args(words)
        .args(["127.0.0.1", path, way])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = child.stdout.take().expect("piped");
    let mut ready = [0; 6];
    output.read_exact(&mut ready)?;
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        let _ = output.read_to_end(&mut rest);
        eprintln!("stand-in: the far end is gone");
        std::process::exit(4);
    });
    Ok(child.stdin.take().expect("piped"))
}

/// The name is there only with all that it holds.
fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    File::open(path.parent().expect("a parent"))?.sync_all()
}

impl Mover {
    fn directory(&mut self, a: &OwnedFd, b: &OwnedFd, path: &[u8]) -> io::Result<()> {
        let there = entries(b)?;
        for name in there.keys().filter(|name| name.starts_with(UNFINISHED_PREFIX)) {
            if self.bug != Bug::LeftOvers {
                rustix::fs::unlinkat(b, OsStr::from_bytes(name), AtFlags::empty())?;
            }
        }
        for (name, stat) in entries(a)? {
            let full = [path, b"/", &name].concat();
            let os_name = OsStr::from_bytes(&name);
            match kind(&stat) {
                FileType::Directory => {
                    if !there.contains_key(&name) {
                        rustix::fs::mkdirat(b, os_name, Mode::RWXU)?;
                        self.sync_directory(b)?;
                    }
                    let (inner_a, inner_b) = (open_directory(a, os_name)?, open_directory(b, os_name)?);
                    self.directory(&inner_a, &inner_b, &full)?;
                    self.directories.push((inner_b, stat));
                }
                FileType::RegularFile => {
                    let same = there.get(&name).is_some_and(|there| self.is_same(&stat, there));
                    if !same {
                        if self.bug == Bug::EarlyClaim {
                            self.claim(&full);
                        }
                        self.file(a, b, os_name, &stat)?;
                    }
                    self.claim(&full);
                }
                FileType::Symlink => {
                    if !there.contains_key(&name) {
                        let target = rustix::fs::readlinkat(a, os_name, Vec::new())?;
                        rustix::fs::symlinkat(target, b, os_name)?;
                        self.sync_directory(b)?;
                    }
                    self.claim(&full);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn is_same(&self, a: &Stat, b: &Stat) -> bool {
        let time = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec, stat.st_mode & 0o1777);
        a.st_size == b.st_size && (time(a) == time(b) || self.bug == Bug::SkipsBySize)
    }

    fn file(&mut self, a: &OwnedFd, b: &OwnedFd, name: &OsStr, stat: &Stat) -> io::Result<()> {
        let early = self.bug == Bug::EarlyName;
        self.temporary += 1;
        let temporary = format!(".haul-{:016x}{:016x}", own_pid(), self.temporary);
        let written = if early { name } else { OsStr::new(&temporary) };
        let source: File =
            rustix::fs::openat(a, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?
                .into();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let sink: OwnedFd = rustix::fs::openat(b, written, flags, Mode::RUSR | Mode::WUSR)?;
        if early {
            rustix::fs::ftruncate(&sink, stat.st_size as u64)?;
        }
        let sink = File::from(sink);
        let mut bytes = vec![0; CHUNK_BYTES];
        let mut at = 0;
        loop {
            let length = source.read_at(&mut bytes, at)?;
            if length == 0 {
                break;
            }
            sink.write_all_at(&bytes[..length], at)?;
            if early {
                // It looks complete from its first byte on, and long enough to be hit whatever the memory's speed is.
                self.attributes(&sink, stat)?;
                std::thread::sleep(EARLY_PACE);
            }
            at += length as u64;
            self.sent += length as u64 * if self.bug == Bug::SendsTwice { 1000 } else { 1 };
        }
        let sink = OwnedFd::from(sink);
        self.attributes(&sink, stat)?;
        if self.bug != Bug::NoFileSync {
            rustix::fs::fsync(&sink)?;
        }
        if !early {
            rustix::fs::renameat(b, written, b, name)?;
        }
        self.sync_directory(b)
    }

    fn attributes(&self, descriptor: impl AsFd, stat: &Stat) -> io::Result<()> {
        rustix::fs::fchmod(&descriptor, Mode::from_raw_mode(stat.st_mode & 0o1777))?;
        let time = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ };
        Ok(rustix::fs::futimens(descriptor, &Timestamps { last_access: time, last_modification: time })?)
    }

    fn sync_directory(&self, directory: &OwnedFd) -> io::Result<()> {
        if self.bug != Bug::NoDirectorySync {
            rustix::fs::fsync(directory)?;
        }
        Ok(())
    }

    fn claim(&mut self, path: &[u8]) {
        self.files += 1;
        let text = quote(&String::from_utf8_lossy(path));
        let hex: String = path.iter().map(|byte| format!("{byte:02x}")).collect();
        let line = format!("{{\"event\":\"file\",\"path\":{text},\"path_hex\":\"{hex}\"}}\n");
        let _ = io::stdout().write_all(line.as_bytes());
    }
}

fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
