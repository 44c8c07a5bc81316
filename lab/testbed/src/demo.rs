//! The demonstration: a real dataset moves between two endpoints over loopback ssh, the sink is killed half-way, the same
//! command continues, and programs that have nothing to do with haul compare the trees.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::dataset::Plan;
use crate::process::{signal, wait_gone};
use crate::rounds::MIB;
use crate::tree;
use crate::world::{Job, Outcome, Program, Route, Running, World};

const RUN_LIMIT: Duration = Duration::from_secs(3600);
/// How often the progress is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// Files of the generated source tree.
const SOURCE_FILES: u64 = 40_000;

/// What to show.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The binary.
    pub haul: PathBuf,
    /// A tree of the user's; else one is made.
    pub source: Option<PathBuf>,
    /// Where it goes; else a directory that is removed afterwards.
    pub destination: Option<PathBuf>,
    /// For everything that the demonstration makes itself.
    pub directory: PathBuf,
    /// Size of the dataset that is made.
    pub mib: u64,
}

/// Shows it; true if the trees are the same at the end.
pub fn run(settings: &Settings) -> io::Result<bool> {
    let world = World::new(Program::new(&settings.haul)?, &settings.directory.join("hosts"), None)?;
    step("Two endpoints");
    tell(&format!(
        "here, and an sshd of our own on port {} of 127.0.0.1, with its own keys",
        world.sshd().port()
    ));
    tell("nothing in ~/.ssh is read or written");

    step("A dataset");
    let source = match &settings.source {
        Some(source) => source.canonicalize()?,
        None => make_dataset(settings)?,
    };
    let totals = tree::totals(&source)?;
    tell(&format!(
        "{} files, {} directories, {} symlinks, {} in {}",
        totals.files,
        totals.directories,
        totals.symlinks,
        size(totals.bytes),
        source.display()
    ));
    let destination = settings.destination.clone().unwrap_or_else(|| settings.directory.join("destination"));
    let destination = std::path::absolute(destination)?;
    let job = Job {
        route: Route::Push,
        plain: false,
        streams: None,
        memory_bytes: None,
        reconnect: Some(Duration::from_secs(5)),
        log: None,
        hash: None,
        spill: None,
        engine: None,
        hashes_early: false,
        into: destination.is_dir(),
        source,
        destination,
    };

    step("It moves, and the far end is killed half-way");
    tell(&format!("$ {}", shown(&world.command(&job))));
    let mut run = world.start(&job)?;
    let killed = kill_half_way(&mut run, totals.bytes);
    let first = finish(&mut run)?;
    if let Some(pid) = killed {
        tell(&format!("killed process {pid} (SIGKILL): the end that writes"));
        tell(&format!("the command: {}", first.told()));
        let (complete, unfinished) = what_is_there(&job.result());
        tell(&format!(
            "at the destination: {complete} complete files, {unfinished} unfinished ones under names of their own"
        ));
    } else {
        tell("it was done before it could be killed; a larger SOURCE shows more");
    }

    step("The same command again");
    let (mut last, mut sent) = (first.clone(), first.number("bytes_sent").unwrap_or(0));
    if killed.is_some() {
        let mut run = world.start(&job)?;
        follow(&mut run, totals.bytes, u64::MAX);
        last = finish(&mut run)?;
        sent += last.number("bytes_sent").unwrap_or(0);
        tell(&format!("the command: {}", last.told()));
        let number = |field: &str| last.number(field).unwrap_or(0);
        tell(&format!(
            "{} were there already, {} sent",
            size(number("bytes_skipped")),
            size(number("bytes_sent"))
        ));
        tell(&format!(
            "both runs together sent {} more than the dataset has",
            size(sent.saturating_sub(totals.bytes))
        ));
    }

    step("Are they the same?");
    let same = verify(&job)?;

    step("And once more");
    let mut run = world.start(&job)?;
    let idle = finish(&mut run)?;
    tell(&format!(
        "the command: {}, sent {}",
        idle.told(),
        size(idle.number("bytes_sent").unwrap_or(u64::MAX))
    ));

    step("The summary of the run that finished it");
    if let Some(summary) = last.summary() {
        for line in serde_json::to_string_pretty(summary).unwrap_or_default().lines() {
            println!("   {line}");
        }
    }
    let passed = same && last.is_done() && idle.is_done() && idle.number("bytes_sent") == Some(0);
    println!();
    println!("demo: {} passed, {} failed", u8::from(passed), u8::from(!passed));
    Ok(passed)
}

fn make_dataset(settings: &Settings) -> io::Result<PathBuf> {
    let path = settings.directory.join("dataset");
    fs::create_dir_all(&path)?;
    let needed = 2 * settings.mib * MIB;
    let stat = rustix::fs::statvfs(&path)?;
    let free = stat.f_bavail * stat.f_frsize;
    if free < needed + needed / 4 {
        return Err(io::Error::other(format!(
            "{} has {} free, the demonstration needs {}; choose another place with --dir, or less with --mib",
            path.display(),
            size(free),
            size(needed + needed / 4)
        )));
    }
    // A tree of sources is about a quarter of it, but never a token one.
    let source_files = SOURCE_FILES.min(settings.mib * 20);
    let tree_bytes = source_files * (13 << 10);
    let big_bytes = (settings.mib * MIB).saturating_sub(tree_bytes) / 3;
    tell(&format!(
        "making {} (a source tree, and three files of {}) ...",
        size(settings.mib * MIB),
        size(big_bytes)
    ));
    Plan { source_files, big_files: 3, big_bytes, ..Plan::new(1) }.make(&path)?;
    Ok(path)
}

/// Kills the far end when half of the dataset has been read; its process id.
fn kill_half_way(run: &mut Running, total: u64) -> Option<i32> {
    follow(run, total, total / 2);
    if run.has_ended() {
        return None;
    }
    let far = run.far().last().copied()?;
    signal(far, Signal::KILL).then(|| {
        wait_gone(far, Duration::from_secs(5));
        far
    })
}

/// Shows how far it is until it has read so many bytes, or ends.
fn follow(run: &mut Running, total: u64, until: u64) {
    let started = Instant::now();
    let mut shown = Instant::now();
    let terminal = io::IsTerminal::is_terminal(&io::stdout());
    while !run.has_ended() {
        let read = run.bytes_read().unwrap_or(0);
        if read >= until {
            break;
        }
        if terminal && shown.elapsed() > Duration::from_millis(100) {
            print!("\r   {:.1} s: {} of {} read ", started.elapsed().as_secs_f64(), size(read), size(total));
            let _ = io::stdout().flush();
            shown = Instant::now();
        }
        std::thread::sleep(LOOK);
    }
    if terminal {
        print!("\r{:60}\r", "");
    }
}

fn finish(run: &mut Running) -> io::Result<Outcome> {
    run.wait(RUN_LIMIT).ok_or_else(|| io::Error::other("the command does not end"))
}

fn what_is_there(root: &Path) -> (u64, u64) {
    let Ok(found) = tree::fingerprint(root) else { return (0, 0) };
    let files = found.iter().filter(|(_, (_, mode, ..))| mode & libc::S_IFMT == libc::S_IFREG);
    let (unfinished, complete): (Vec<_>, Vec<_>) = files.partition(|(path, _)| {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        tree::is_unfinished(name)
    });
    (complete.len() as u64, unfinished.len() as u64)
}

/// `diff` compares the bytes, `find` the kinds, modes, times and link targets; haul has no part in it.
fn verify(job: &Job) -> io::Result<bool> {
    let result = job.result();
    tell(&format!("$ diff -r --no-dereference {} {}", job.source.display(), result.display()));
    let output = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([&job.source, &result])
        .stdin(Stdio::null())
        .output()?;
    let bytes_same = output.status.success();
    show_some(&output.stdout);
    tell(if bytes_same { "no byte differs" } else { "DIFFERENT" });
    let format = "%P\\t%y\\t%m\\t%T@\\t%l\\n";
    tell(&format!(
        "$ find TREE -printf '{format}' | sort   # of both: kinds, modes, times (ns), link targets"
    ));
    let list = |root: &Path| -> io::Result<Vec<Vec<u8>>> {
        let output =
            Command::new("find").arg(root).args(["-printf", "%P\\t%y\\t%m\\t%T@\\t%l\\0"]).output()?;
        let mut lines: Vec<Vec<u8>> = output.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
        lines.sort();
        Ok(lines)
    };
    let (expected, actual) = (list(&job.source)?, list(&result)?);
    let attributes_same = expected == actual;
    for line in expected.iter().filter(|line| actual.binary_search(line).is_err()).take(5) {
        show_some(line);
    }
    tell(&if attributes_same {
        format!("all {} entries are the same", expected.len() - 1)
    } else {
        "DIFFERENT".into()
    });
    Ok(bytes_same && attributes_same)
}

fn show_some(text: &[u8]) {
    for line in String::from_utf8_lossy(text).lines().take(5) {
        println!("     {line}");
    }
}

fn shown(command: &Command) -> String {
    let mut text = String::from("haul");
    for argument in command.get_args().filter(|argument| !matches!(argument.to_str(), Some("--json" | "-v")))
    {
        let argument = argument.to_string_lossy();
        text.push(' ');
        if argument.contains(' ') {
            text.push_str(&format!("'{argument}'"));
        } else {
            text.push_str(&argument);
        }
    }
    text
}

fn step(title: &str) {
    println!("\n== {title}");
}

fn tell(text: &str) {
    println!("   {text}");
}

fn size(bytes: u64) -> String {
    match bytes {
        0 => "0 bytes".to_owned(),
        1..MIB => format!("{:.1} KiB", bytes as f64 / 1024.0),
        MIB..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / MIB as f64),
        _ => format!("{:.2} GiB", bytes as f64 / (1024.0 * MIB as f64)),
    }
}
