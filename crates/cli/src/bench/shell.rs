//! Stands in for ssh: runs the far end on this host, in a session of its own, as sshd would.

use std::os::unix::process::CommandExt;
use std::process::Command;

use haul_model::Code;
use haul_mover::Error;

use crate::options::BenchShell;

/// `haul bench shell [-T] -- HOST COMMAND...`; returns only if it fails.
pub fn run(arguments: &BenchShell) -> Error {
    let words = arguments.words.iter().filter_map(|word| word.to_str());
    // Flags and the host say nothing here.
    let words: Vec<_> = words.skip_while(|word| word.starts_with('-')).skip(1).collect();
    if words.is_empty() {
        return Error::new(Code::Usage, "no command");
    }
    // A far end is not ended by a signal to the terminal's processes.
    let _ = rustix::process::setsid();
    let error = Command::new("/bin/sh").arg("-c").arg(format!("exec {}", words.join(" "))).exec();
    Error::os(Code::SshFailed, "/bin/sh", &error)
}
