//! Who moves the files.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{STRIPE_BYTES, STRIPES, Settings, System};
use crate::evaluation::installed;
use crate::peers::servers::Daemon;

/// A program, or haul with one of its policies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mover {
    /// haul in the order of files.
    FileOrder,
    /// haul, target by target.
    Layout,
    /// haul, which skips slow targets.
    Lads,
    /// haul, which follows latencies.
    Adaptive,
    /// cp
    Cp,
    /// rsync
    Rsync,
    /// bbcp
    Bbcp,
    /// GridFTP
    GridFtp,
}

/// What is read.
#[derive(Clone, Debug)]
pub enum Source {
    /// A tree.
    Tree(PathBuf),
    /// Files that are computed, or for others than haul a tree in memory.
    Nothing(PathBuf),
}

/// What is written.
#[derive(Clone, Debug)]
pub enum Sink {
    /// A directory that is made.
    Tree(PathBuf),
    /// Contents are checked and forgotten; others than haul write them into memory.
    Nothing(PathBuf),
}

impl Mover {
    /// All of them.
    pub const ALL: [Mover; 8] = [
        Mover::FileOrder,
        Mover::Layout,
        Mover::Lads,
        Mover::Adaptive,
        Mover::Cp,
        Mover::Rsync,
        Mover::Bbcp,
        Mover::GridFtp,
    ];

    /// As in the report and the files.
    pub const fn name(self) -> &'static str {
        match self {
            Mover::FileOrder => "file-order",
            Mover::Layout => "layout",
            Mover::Lads => "lads",
            Mover::Adaptive => "adaptive",
            Mover::Cp => "cp",
            Mover::Rsync => "rsync",
            Mover::Bbcp => "bbcp",
            Mover::GridFtp => "gridftp",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Mover> {
        Mover::ALL.into_iter().find(|mover| mover.name() == name)
    }

    /// The policy of haul.
    pub const fn policy(self) -> Option<&'static str> {
        match self {
            Mover::FileOrder => Some("none"),
            Mover::Layout => Some("layout"),
            Mover::Lads => Some("lads"),
            Mover::Adaptive => Some("adaptive"),
            Mover::Cp | Mover::Rsync | Mover::Bbcp | Mover::GridFtp => None,
        }
    }

    /// haul is; another program may be.
    pub fn is_installed(self) -> bool {
        match self {
            Mover::GridFtp => installed("globus-url-copy").and(installed("globus-gridftp-server")).is_some(),
            _ => self.policy().is_some() || installed(self.name()).is_some(),
        }
    }

    /// What it speaks with, if that has to run already.
    pub const fn daemon(self) -> Option<Daemon> {
        match self {
            Mover::GridFtp => Some(Daemon::GridFtp),
            _ => None,
        }
    }

    /// How to start it. `state` is a directory for haul, `port` that of its daemon.
    pub fn command(self, settings: &Settings, from: &Source, to: &Sink, state: &Path, port: u16) -> Command {
        let (Source::Tree(source) | Source::Nothing(source), Sink::Tree(sink) | Sink::Nothing(sink)) =
            (from, to);
        let mut command;
        match self {
            Mover::Cp => {
                command = Command::new("cp");
                command.arg("-r");
            }
            Mover::Rsync => {
                command = Command::new("rsync");
                command.args(["-r", "--whole-file"]);
            }
            Mover::Bbcp => {
                command = Command::new("bbcp");
                command.args(["-r", "-s", "4", "-w", "8m", "-S", "bbcp", "-T", "bbcp"]);
                command.arg(source).arg(format!("localhost:{}", sink.display()));
                return command;
            }
            Mover::GridFtp => {
                command = Command::new("globus-url-copy");
                // As many files at a time as haul has threads.
                command.args(["-r", "-cd", "-fast", "-cc", &settings.threads.to_string()]);
                command.arg(format!("file://{}/", source.display()));
                command.arg(format!("ftp://127.0.0.1:{port}{}/", sink.display()));
                return command;
            }
            _ => return self.haul(settings, from, to, state),
        }
        command.arg(source).arg(sink);
        command
    }

    fn haul(self, settings: &Settings, from: &Source, to: &Sink, state: &Path) -> Command {
        let mut command = Command::new(&settings.haul);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HAUL_")) {
            command.env_remove(name);
        }
        // Nobody's settings and nobody's state.
        command.env("HAUL_STATE_DIR", state).env("XDG_CONFIG_HOME", state.join("no-config"));
        command.args(["bench", "transfer", "-r", "--json", "--bundle-below", "0"]);
        command.args(["--object-size", &STRIPE_BYTES.to_string()]);
        if settings.system == System::Stripefs {
            command.args(["--stripe", &format!("{STRIPES}:{STRIPE_BYTES}")]);
        }
        command.args(["--io-threads", &settings.threads.to_string()]);
        command.args(["--congestion", self.policy().unwrap_or("none")]);
        if let Source::Nothing(_) = from {
            let (files, bytes, seed) = (settings.files(), settings.system.file_bytes(), settings.seed);
            command.arg("--synthetic").arg(format!("files={files},size={bytes},seed={seed}"));
        }
        if let Sink::Nothing(_) = to {
            command.arg("--discard");
        }
        let (Source::Tree(source) | Source::Nothing(source), Sink::Tree(sink) | Sink::Nothing(sink)) =
            (from, to);
        command.arg(source).arg(sink);
        command
    }
}

impl Display for Mover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
