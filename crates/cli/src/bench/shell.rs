//! Stands in for ssh: runs the far end on this host, in a session of its own, as sshd would.

use std::os::unix::process::CommandExt;
use std::process::Command;

use haul_model::Code;
use haul_mover::Error;

use crate::options::BenchShell;

/// `haul bench shell HOST COMMAND...`; returns only if it fails.
pub fn run(arguments: &BenchShell) -> Error {
    // A far end is not ended by a signal to the terminal's processes.
    let _ = rustix::process::setsid();
    let words: Vec<_> = arguments.words.iter().filter_map(|word| word.to_str()).collect();
    let error = Command::new("/bin/sh").arg("-c").arg(words.join(" ")).exec();
    Error::os(Code::SshFailed, "/bin/sh", &error)
}
