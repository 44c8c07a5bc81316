//! `crashfs`: mounts a crash file system and answers commands on a Unix socket until it is told to end.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use haul_crashfs::{CrashFs, Mount, control};

/// A file system that loses what was not synced.
///
/// Ends, and unmounts, when its standard input is closed.
#[derive(Parser)]
struct Arguments {
    /// An existing, empty directory.
    directory: PathBuf,
    /// Where to listen for commands (see the module `control`).
    #[arg(long)]
    control: PathBuf,
    /// Decides which dirty pages are written back early.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("crashfs: {}: {error}", arguments.directory.display());
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> std::io::Result<()> {
    let filesystem = CrashFs::new(arguments.seed);
    let listener = UnixListener::bind(&arguments.control)?;
    let mount = Mount::new(&filesystem, &arguments.directory)?;
    std::thread::spawn({
        let filesystem = filesystem.clone();
        move || control::serve(&filesystem, &listener)
    });
    println!("mounted {}", mount.directory().display());
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line)? > 0 {
        line.clear();
    }
    drop(mount);
    std::fs::remove_file(&arguments.control)
}
