//! One server of four dies, pauses or hangs while data moves: what needs it is named or waits for it, all else completes.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use rustix::process::Signal;

use super::copies::data;
use super::{Bed, MIB, RUN_LIMIT, Scenario, System, end, files, told};
use crate::process::{signal, wait_gone, wait_until};
use crate::tree;
use crate::world::{Job, Outcome, Route, Running};

/// Of systems whose clients give up: what is listed while a server is down is not all that there is.
pub(super) const OF_THE_IMPATIENT: [(&str, Scenario); 1] = [("source-server-down", source_server_down)];

pub(super) const SCENARIOS: [(&str, Scenario); 5] = [
    ("server-pauses", pauses),
    ("source-server-dies", source_server_dies),
    ("sink-server-dies", sink_server_dies),
    ("source-server-hangs", source_server_hangs),
    ("sink-server-hangs", sink_server_hangs),
];

/// So fast that a fault comes in the middle.
const PACE: &str = "24MiB";
/// A fault comes when so many bytes were read.
const FAULT_AT: u64 = 30 * MIB;
/// The server that is hit.
const VICTIM: usize = 1;
/// Longer than anything healthy takes, and shorter than what clients wait.
const PAUSE: Duration = Duration::from_secs(3);
/// How much longer than the clients haul waits before it gives up a read or write; and how long where they never do.
/// Were it less, files on other servers would be given up too: all is held up until the client gives up the one.
const MORE_PATIENCE: Duration = Duration::from_secs(12);
const PATIENCE: Duration = Duration::from_secs(2);

/// The server of both ends stops for a while: the run goes on by itself.
fn pauses(bed: &Bed, system: &dyn System) -> io::Result<Option<String>> {
    let job = bed.job(Route::Local, &data(system), &system.places()[0].join("pauses"));
    let (mut run, victim) = start(bed, system, &job, &[])?;
    signal(victim, Signal::STOP);
    std::thread::sleep(PAUSE);
    signal(victim, Signal::CONT);
    let outcome = end(&mut run)?;
    let finding = bed.is_wrong(&outcome, &job.result());
    tree::remove(&job.result())?;
    Ok(finding)
}

fn source_server_dies(bed: &Bed, system: &dyn System) -> io::Result<Option<String>> {
    let job = bed.job(Route::Local, &data(system), &bed.directory.join("source-server-dies"));
    let needing = system.needing(VICTIM, &job.source)?;
    struck(bed, system, &job, Signal::KILL, Some(&needing))
}

fn sink_server_dies(bed: &Bed, system: &dyn System) -> io::Result<Option<String>> {
    let job = bed.job(Route::Local, &bed.local, &system.places()[0].join("sink-server-dies"));
    sink_struck(bed, system, &job, Signal::KILL)
}

fn source_server_hangs(bed: &Bed, system: &dyn System) -> io::Result<Option<String>> {
    let job = bed.job(Route::Local, &data(system), &bed.directory.join("source-server-hangs"));
    let needing = system.needing(VICTIM, &job.source)?;
    struck(bed, system, &job, Signal::STOP, Some(&needing))
}

fn sink_server_hangs(bed: &Bed, system: &dyn System) -> io::Result<Option<String>> {
    let job = bed.job(Route::Local, &bed.local, &system.places()[0].join("sink-server-hangs"));
    sink_struck(bed, system, &job, Signal::STOP)
}

/// Where the file system never gives up, syncs wait for the server: then the run completes when that is back.
fn sink_struck(bed: &Bed, system: &dyn System, job: &Job, blow: Signal) -> io::Result<Option<String>> {
    if system.gives_up_after().is_some() {
        return struck(bed, system, job, blow, None);
    }
    let (mut run, victim) = start(bed, system, job, &[])?;
    signal(victim, blow);
    std::thread::sleep(PAUSE);
    mend(system, victim)?;
    let outcome = end(&mut run)?;
    let finding = bed.is_wrong(&outcome, &job.result());
    tree::remove(&job.result())?;
    Ok(finding)
}

/// It was down before the run began: what is not there is in a directory that was named.
fn source_server_down(bed: &Bed, system: &dyn System) -> io::Result<Option<String>> {
    let job = bed.job(Route::Local, &data(system), &bed.directory.join("source-server-down"));
    let victim = system.server(VICTIM)?;
    signal(victim, Signal::KILL);
    wait_gone(victim, RUN_LIMIT);
    let outcome = bed.run(&job, &[])?;
    mend(system, victim)?;
    let finding = match bed.failed(&job, &outcome) {
        Err(wrong) => Some(wrong),
        Ok(failed) => {
            let there = files(&job.result())?;
            let all = files(&bed.local)?;
            let missing: BTreeSet<&Vec<u8>> = all.difference(&there).collect();
            let is_named = |path: &Vec<u8>| {
                let above = (0..path.len()).filter(|at| path[*at] == b'/').map(|at| &path[..at]);
                above.chain([&path[..], b""]).any(|part| failed.contains(part))
            };
            let unnamed = missing.iter().find(|path| !is_named(path));
            let unnamed = unnamed.map(|path| format!("{} is missing and not named", tree::shown(path)));
            let none = missing.is_empty().then(|| "nothing was on the server".to_owned());
            unnamed.or(none)
        }
    };
    let again = bed.run(&job, &[])?;
    let finding = finding.or_else(|| bed.is_wrong(&again, &job.result()));
    tree::remove(&job.result())?;
    Ok(finding)
}

/// A server is hit for good: the run ends with exit 3 and the names of what needed it. When the server is back, the
/// same command completes.
fn struck(
    bed: &Bed,
    system: &dyn System,
    job: &Job,
    blow: Signal,
    needing: Option<&BTreeSet<Vec<u8>>>,
) -> io::Result<Option<String>> {
    let patience = system.gives_up_after().map_or(PATIENCE, |client| client + MORE_PATIENCE);
    let patience = patience.as_secs().to_string();
    let (mut run, victim) = start(bed, system, job, &["--hang-after", &patience])?;
    signal(victim, blow);
    let mut silent = None;
    if system.gives_up_after().is_none() {
        // What waits for the server goes on waiting, and with it the process: but it has said all. It cannot be killed.
        wait_until(RUN_LIMIT, || run.has_summary() || run.has_ended());
        silent = (!run.has_summary()).then(|| "waits for the server, for ever".to_owned());
        mend(system, victim)?;
    }
    let outcome = end(&mut run)?;
    // What was done before is looked at when it can be reached again.
    mend(system, victim)?;
    let finding = silent.map_or_else(|| judge(bed, job, &outcome, needing), |silent| Ok(Some(silent)))?;
    let again = bed.run(job, &[])?;
    let still_wrong = || bed.is_wrong(&again, &job.result()).map(|wrong| format!("the next run: {wrong}"));
    let finding = finding.or_else(still_wrong);
    tree::remove(&job.result())?;
    Ok(finding)
}

fn judge(
    bed: &Bed,
    job: &Job,
    outcome: &Outcome,
    needing: Option<&BTreeSet<Vec<u8>>>,
) -> io::Result<Option<String>> {
    let failed = match bed.failed(job, outcome) {
        Ok(failed) => failed,
        Err(wrong) => return Ok(Some(wrong)),
    };
    let all = files(&bed.local)?.len();
    if failed.is_empty() || failed.len() * 4 >= all * 3 {
        return Ok(Some(format!("{} of {all} failed, one server of four did", told(&failed))));
    }
    if let Some(needing) = needing {
        let others: BTreeSet<Vec<u8>> = failed.difference(needing).cloned().collect();
        if !others.is_empty() {
            return Ok(Some(format!("{} failed and need nothing of the server", told(&others))));
        }
    }
    bed.lacks_others(&job.result(), &failed)
}

/// Starts a run and waits until it is in the middle; with the process that is to be hit.
fn start(bed: &Bed, system: &dyn System, job: &Job, options: &[&str]) -> io::Result<(Running, i32)> {
    // What a client has in its memory needs no server.
    system.refresh()?;
    let victim = system.server(VICTIM)?;
    let options = [&["--bandwidth", PACE], options].concat();
    let mut run = bed.world.start_with(job, &options)?;
    wait_until(RUN_LIMIT, || run.bytes_read().is_some_and(|read| read > FAULT_AT) || run.has_ended());
    Ok((run, victim))
}

fn mend(system: &dyn System, victim: i32) -> io::Result<()> {
    signal(victim, Signal::CONT);
    system.restart()
}
