//! What has to work while all servers do: copies in, out and between, layouts, and haul killed in the middle.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use super::{Bed, MEMORY_BYTES, MIB, RUN_LIMIT, Scenario, System, end, files, size};
use crate::process::{signal, wait_gone, wait_until};
use crate::tree;
use crate::world::{Job, Route, Running};

pub(super) const SCENARIOS: [(&str, Scenario); 7] = [
    ("in", copy_in),
    ("between", copy_between),
    ("out", copy_out),
    ("layout", layout),
    ("sink-killed", sink_killed),
    ("source-killed", source_killed),
    ("both-killed", both_killed),
];

/// So many of the scenarios make what the others read.
pub(super) const FIRST: usize = 2;
/// So fast that a kill comes in the middle, and so slow that much is durable by then.
const PACE: &str = "24MiB";
const PACE_BYTES: u64 = 24 * MIB;
/// A kill comes when so much of the data was read, in percent.
const KILLED_AT: u64 = 70;
/// What a process reads that is not data: libraries, directories, its log.
const READ_NOISE_BYTES: u64 = 4 * MIB;

/// The tree that [`copy_in`] makes on the first place; the other scenarios read it.
pub(super) fn data(system: &dyn System) -> PathBuf {
    system.places()[0].join("data")
}

/// And [`copy_between`] on the second.
fn other_data(system: &dyn System) -> PathBuf {
    system.places()[1].join("data")
}

fn copy_in(bed: &Bed, system: &dyn System) -> io::Result<Option<String>> {
    copy(bed, system, &bed.job(Route::Local, &bed.local, &data(system)))
}

fn copy_between(bed: &Bed, system: &dyn System) -> io::Result<Option<String>> {
    copy(bed, system, &bed.job(Route::Local, &data(system), &other_data(system)))
}

fn copy_out(bed: &Bed, system: &dyn System) -> io::Result<Option<String>> {
    let result = bed.directory.join("out");
    let wrong = copy(bed, system, &bed.job(Route::Local, &other_data(system), &result))?;
    tree::remove(&result)?;
    Ok(wrong)
}

/// All of it arrives, and a second run knows that.
fn copy(bed: &Bed, system: &dyn System, job: &Job) -> io::Result<Option<String>> {
    let outcome = bed.run(job, &[])?;
    system.refresh()?;
    let wrong = bed.is_wrong(&outcome, &job.result());
    Ok(wrong.or(bed.moves_again(job)?))
}

fn layout(bed: &Bed, system: &dyn System) -> io::Result<Option<String>> {
    for tree in [data(system), other_data(system)] {
        if let Some(wrong) = system.layout_is_wrong(&|| bed.world.haul(), &tree)? {
            return Ok(Some(wrong));
        }
    }
    Ok(None)
}

fn sink_killed(bed: &Bed, system: &dyn System) -> io::Result<Option<String>> {
    let job = bed.job(Route::Push, &bed.local, &system.places()[0].join("sink-killed"));
    killed(bed, system, &job, |run| run.far())
}

fn source_killed(bed: &Bed, system: &dyn System) -> io::Result<Option<String>> {
    let job = bed.job(Route::Pull, &other_data(system), &bed.directory.join("source-killed"));
    killed(bed, system, &job, |run| run.far())
}

fn both_killed(bed: &Bed, system: &dyn System) -> io::Result<Option<String>> {
    let job = bed.job(Route::Local, &data(system), &system.places()[1].join("both-killed"));
    killed(bed, system, &job, |run| vec![run.near()])
}

/// Killed in the middle and continued with the same command: what was durable is not sent again.
fn killed(
    bed: &Bed,
    system: &dyn System,
    job: &Job,
    victims: fn(&Running) -> Vec<i32>,
) -> io::Result<Option<String>> {
    let total = bed.bytes()?;
    let mut run = bed.world.start_with(job, &["--bandwidth", PACE])?;
    let read_enough = |run: &Running| run.bytes_read().is_some_and(|read| read > total * KILLED_AT / 100);
    wait_until(RUN_LIMIT, || read_enough(&run) || run.has_ended());
    let read = run.bytes_read().unwrap_or(0).saturating_sub(READ_NOISE_BYTES);
    let hit = victims(&run);
    for pid in &hit {
        signal(*pid, Signal::KILL);
        wait_gone(*pid, Duration::from_secs(10));
    }
    let outcome = end(&mut run)?;
    if hit.is_empty() || outcome.claims_done() {
        return Ok(Some(format!("could not be killed in the middle: {}", outcome.told())));
    }
    let complete = complete_bytes(&job.result())?;
    system.refresh()?;

    let outcome = bed.run(job, &[])?;
    let number = |field: &str| outcome.number(field).unwrap_or(0);
    let (sent, skipped) = (number("bytes_sent"), number("bytes_skipped"));
    // In the slots of both ends, and what a second's group had not made durable.
    let in_hand = 2 * MEMORY_BYTES + PACE_BYTES;
    let allowed = (total - read.min(total)) + in_hand;
    let again = (sent > allowed)
        .then(|| format!("sent {} after {} of {} had been read", size(sent), size(read), size(total)));
    let forgot = (skipped < complete)
        .then(|| format!("skipped {}, but {} were complete", size(skipped), size(complete)));
    system.refresh()?;
    let wrong = bed.is_wrong(&outcome, &job.result());
    let finding = wrong.or(again).or(forgot).or(bed.moves_again(job)?);
    tree::remove(&job.result())?;
    Ok(finding)
}

/// Bytes of files that have their final names.
fn complete_bytes(root: &Path) -> io::Result<u64> {
    if fs::symlink_metadata(root).is_err() {
        return Ok(0);
    }
    let mut sum = 0;
    for path in files(root)? {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if !tree::is_unfinished(name) {
            sum += fs::symlink_metadata(super::join(root, &path))?.len();
        }
    }
    Ok(sum)
}
