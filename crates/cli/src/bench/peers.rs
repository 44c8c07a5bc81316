//! `haul bench peers`: from options to the comparison; and the ends of the raw pair.

use std::io;
use std::process::Command;

use haul_bench::evaluation::{own_mounts, own_network};
use haul_bench::peers::case::Case;
use haul_bench::peers::tool::{TOOLS, Tool, from_name};
use haul_bench::peers::{Settings, leave_nothing, raw, run as compare};
use haul_bench::process;
use haul_model::Code;
use haul_mover::Error;

use super::{absolute, command_line, conclude, this_program};
use crate::options::{BenchCase, BenchPeers, BenchPeersPart, BenchRaw, BenchRawReceive};

/// `haul bench peers`
pub fn run(arguments: &BenchPeers) -> Result<u8, Error> {
    let mut settings = settings(arguments)?;
    if !settings.cases.is_empty() || settings.cost {
        // Before any other thread: they have the namespaces of the one that starts them. Only root mounts.
        settings.has_own_mounts =
            rustix::process::geteuid().is_root() && has_own("a mount namespace", own_mounts);
        settings.has_own_network = has_own("a network namespace", own_network);
    }
    process::end_all_on_signal(leave_nothing);
    conclude(compare(&settings), "the comparison", leave_nothing)
}

/// Containers, and some systems for who is not root, allow none: what needs it is left out, and says so.
fn has_own(what: &str, make: fn() -> io::Result<()>) -> bool {
    make().inspect_err(|error| eprintln!("haul: {what} of its own: {error}")).is_ok()
}

fn settings(arguments: &BenchPeers) -> Result<Settings, Error> {
    let is_run = arguments.part == BenchPeersPart::Run;
    let cases = arguments.case.iter().filter_map(|case| case.case());
    Ok(Settings {
        haul: this_program()?,
        directory: arguments.dir.clone().unwrap_or_else(std::env::temp_dir),
        disk: arguments.disk.clone(),
        report: absolute(&arguments.report)?,
        command: command_line(),
        cases: if is_run { cases.collect() } else { Vec::new() },
        cost: is_run && arguments.case.contains(&BenchCase::Cost),
        tools: arguments.peer.iter().map(|name| tool(name)).collect::<Result<_, _>>()?,
        runs: arguments.runs as usize,
        scale: arguments.scale,
        seed: arguments.seed,
        has_own_mounts: false,
        has_own_network: false,
    })
}

fn tool(name: &str) -> Result<&'static Tool, Error> {
    from_name(name).ok_or_else(|| {
        let names: Vec<&str> = TOOLS.iter().map(|tool| tool.name).collect();
        Error::new(Code::Usage, format!("{name:?} is not one of those that are compared"))
            .hint(names.join(" "))
    })
}

impl BenchCase {
    /// One of those in which tools are compared.
    fn case(self) -> Option<Case> {
        match self {
            BenchCase::Big => Some(Case::Big),
            BenchCase::Thirty => Some(Case::Thirty),
            BenchCase::Files => Some(Case::Files),
            BenchCase::Tree => Some(Case::Tree),
            BenchCase::BigDisk => Some(Case::BigDisk),
            BenchCase::TreeDisk => Some(Case::TreeDisk),
            BenchCase::Cost => None,
        }
    }
}

/// `haul bench raw`
pub fn raw(arguments: &BenchRaw) -> Result<u8, Error> {
    let mut receiver = Command::new(this_program()?);
    receiver.args(["bench", "raw-receive"]);
    raw::copy(&arguments.source, &arguments.dest, receiver)
        .map_err(|error| Error::os(Code::BenchFailed, "the raw sender", &error))?;
    Ok(0)
}

/// `haul bench raw-receive`
pub fn raw_receive(arguments: &BenchRawReceive) -> Result<u8, Error> {
    raw::receive_once(&arguments.dest, arguments.bytes)
        .map_err(|error| Error::os(Code::BenchFailed, "the raw receiver", &error))?;
    Ok(0)
}
