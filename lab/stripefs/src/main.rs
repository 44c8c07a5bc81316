//! `stripefs`: mounts an emulated parallel file system, or sends a command to one.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use haul_stripefs::{Mount, Options, StripeFs, control, units};

/// How long requests may take to end when everything else has.
const FINISH_LIMIT: Duration = Duration::from_secs(5);

/// An emulated parallel file system: files are striped over directories that can be made slow, faulty or hung.
///
/// Ends, and unmounts, when its standard input is closed, and on SIGTERM, SIGINT and SIGHUP.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    mount: Option<MountArguments>,
}

#[derive(Subcommand)]
enum Command {
    /// Send a command to a mounted one and print its answer.
    Ctl {
        /// Its control socket.
        socket: PathBuf,
        /// The command, as the README lists them.
        #[arg(required = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

#[derive(clap::Args)]
struct MountArguments {
    /// An existing directory.
    mountpoint: PathBuf,
    /// A directory for each target; they are numbered from 0 on.
    #[arg(long, required = true, num_args = 1.., value_name = "DIR")]
    targets: Vec<PathBuf>,
    /// A directory for the metadata server [default: mds in that of the first target].
    #[arg(long, value_name = "DIR")]
    mds: Option<PathBuf>,
    /// Stripes of a new file; -1 is all targets.
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1..2000))]
    stripe_count: i32,
    /// Bytes of a stripe, a multiple of 64 KiB.
    #[arg(long, default_value = "1MiB", value_parser = units::bytes)]
    stripe_size: u64,
    /// A pool and its targets, like flash=0,2-4; may be repeated.
    #[arg(long, value_name = "NAME=TARGETS")]
    pool: Vec<String>,
    /// Where to listen for commands.
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// A file for one line for each request at a target.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Let the kernel cache contents.
    #[arg(long)]
    cached: bool,
    /// Read and write the targets without the page cache, so that a slow device below is slow for every byte.
    #[arg(long)]
    direct: bool,
    /// Threads that work on the files of one target.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match (arguments.command, arguments.mount) {
        (Some(Command::Ctl { socket, words }), _) => send(&socket, &words.join(" ")),
        (None, Some(mount)) => run(mount),
        (None, None) => Err("there is nothing to mount".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stripefs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn send(socket: &Path, line: &str) -> Result<(), String> {
    let answer = haul_fuse::control::send(socket, line);
    let text = answer.map_err(|error| format!("{}: {error}", socket.display()))??;
    if !text.is_empty() {
        println!("{text}");
    }
    Ok(())
}

fn run(arguments: MountArguments) -> Result<(), String> {
    let mountpoint = arguments.mountpoint.clone();
    let named = |error: std::io::Error| format!("{}: {error}", mountpoint.display());
    let socket = arguments.control.clone();
    // Before any other thread, so that none is hit by a signal.
    let (end, ended) = mpsc::channel();
    watch_signals(end.clone()).map_err(named)?;
    let filesystem = StripeFs::open(&options(arguments)?).map_err(named)?;
    let listener = socket.as_ref().map(UnixListener::bind).transpose();
    let listener = listener.map_err(|error| format!("the control socket: {error}"))?;
    let mount = Mount::new(&filesystem, &mountpoint).map_err(named)?;
    if let Some(listener) = listener {
        let filesystem = filesystem.clone();
        std::thread::spawn(move || {
            haul_fuse::control::serve(&listener, move |line: &str| control::execute(&filesystem, line));
        });
    }
    println!("mounted {}", mount.directory().display());
    std::thread::spawn(move || {
        let mut line = String::new();
        while std::io::stdin().read_line(&mut line).is_ok_and(|length| length > 0) {
            line.clear();
        }
        let _ = end.send(());
    });
    // An error means that nobody can end it any more, which is as good a reason.
    let _ = ended.recv();
    drop(mount);
    filesystem.finish(FINISH_LIMIT);
    if let Some(socket) = socket {
        std::fs::remove_file(&socket).map_err(|error| format!("{}: {error}", socket.display()))?;
    }
    Ok(())
}

fn watch_signals(end: mpsc::Sender<()>) -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            let _ = end.send(());
        }
    });
    Ok(())
}

fn options(arguments: MountArguments) -> Result<Options, String> {
    let mut pools = BTreeMap::new();
    for pool in &arguments.pool {
        let (name, targets) = pool.split_once('=').ok_or("a pool is NAME=TARGETS, like flash=0,2-4")?;
        let targets = control::numbers(targets, arguments.targets.len())?;
        pools.insert(name.to_owned(), targets.into_iter().map(|target| target as u32).collect());
    }
    let mds = arguments.mds.unwrap_or_else(|| arguments.targets[0].join("mds"));
    let stripe_bytes = u32::try_from(arguments.stripe_size).map_err(|_| "a stripe has less than 4 GiB")?;
    Ok(Options {
        stripe_count: if arguments.stripe_count < 0 { u16::MAX } else { arguments.stripe_count as u16 },
        stripe_bytes,
        pools,
        cached: arguments.cached,
        direct: arguments.direct,
        threads: arguments.threads,
        trace: arguments.trace,
        ..Options::new(arguments.targets, mds)
    })
}
