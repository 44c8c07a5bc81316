//! Small files travel in bundles; a target that is slow, or fails, keeps only its own to itself all the same.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use super::{Bed, Ended, HANGS_AFTER, RUN_LIMIT, Striped, differences, lov};

const FILES: usize = 300;
const FILE_BYTES: usize = 16 << 10;
/// Files of one stripe unit lie on their first target, and that is 0 or 3: three stripes each, over six targets.
const SLOW: u32 = 3;
/// All that is on it takes half a minute.
const SLOW_RATE: &str = "target 3 rate=80KB";
const QUICK_RATE: &str = "target 3 rate=24MB";
/// A healthy disk under these targets may take seconds for a sync while the machine is busy.
const SYNC_HANGS_AFTER: &str = "8";
/// Longer than anything takes that waits for a hung target twice.
const SYNC_HANG_LIMIT: Duration = Duration::from_secs(40);

fn names() -> impl Iterator<Item = String> {
    (0..FILES).map(|number| format!("small-{number}"))
}

fn fill(source: &Striped) -> io::Result<()> {
    let tree = source.directory.join("tree");
    fs::create_dir(&tree)?;
    for (seed, name) in names().enumerate() {
        fs::write(tree.join(name), vec![seed as u8; FILE_BYTES])?;
    }
    Ok(())
}

/// Those whose bytes are on this target.
fn on(striped: &Striped, target: u32) -> io::Result<BTreeSet<String>> {
    let tree = striped.directory.join("tree");
    let mut found = BTreeSet::new();
    for name in names().filter(|name| tree.join(name).exists()) {
        if lov::of(&tree.join(&name))?.targets().first() == Some(&target) {
            found.insert(name);
        }
    }
    Ok(found)
}

fn arrived(bed: &Bed) -> BTreeSet<String> {
    names().filter(|name| bed.sink.directory.join("tree").join(name).exists()).collect()
}

/// Copies while one target is slow, until so many of the others have arrived; of those on the slow one hardly any may be
/// there then. `slow_ones` tells which of those that have arrived these are.
fn others_arrive(
    bed: &Bed,
    slow: &Striped,
    others: usize,
    slow_ones: impl Fn(&BTreeSet<String>) -> io::Result<usize>,
) -> io::Result<Option<String>> {
    slow.control(SLOW_RATE);
    let mut run = bed.start(&[])?;
    let deadline = Instant::now() + RUN_LIMIT;
    let (mut quick, mut behind) = (0, 0);
    while quick < others && Instant::now() < deadline && run.child().try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(50));
        let there = arrived(bed);
        behind = slow_ones(&there)?;
        quick = there.len().saturating_sub(behind);
    }
    slow.control(QUICK_RATE);
    let ended = bed.wait(run)?;
    let waited = quick < others || behind > others / 4;
    let waited = waited.then(|| {
        format!("{quick} of {others} small files had arrived, and {behind} of those on the slow target")
    });
    Ok(ended.is_not(0).or(waited).or_else(|| differences(&bed.source, &bed.sink)))
}

pub fn slow_source_target(bed: &Bed) -> io::Result<Option<String>> {
    fill(&bed.source)?;
    let slow = on(&bed.source, SLOW)?;
    others_arrive(bed, &bed.source, FILES - slow.len(), |there| Ok(there.intersection(&slow).count()))
}

/// Nobody knows where a small file will be before it is made; half of them come to be on the slow target.
pub fn slow_sink_target(bed: &Bed) -> io::Result<Option<String>> {
    fill(&bed.source)?;
    others_arrive(bed, &bed.sink, FILES / 3, |_| Ok(on(&bed.sink, SLOW)?.len()))
}

pub fn failing_sink_target(bed: &Bed) -> io::Result<Option<String>> {
    fill(&bed.source)?;
    bed.sink.control("target 3 error=EIO");
    let ended = bed.copy(&[])?;
    let failed = ended.failed("sink-write");
    let there = on(&bed.sink, SLOW)?;
    let wrong = ended.is_not(3).or_else(|| {
        let apart = failed.len() + arrived(bed).len() == FILES && !failed.is_empty() && there.is_empty();
        (!apart).then(|| format!("{} of {FILES} files failed, {} arrived", failed.len(), arrived(bed).len()))
    });
    bed.sink.control("target 3 ok");
    Ok(wrong.or(bed.second_run_completes()?))
}

/// The summary comes while threads of the sink are stuck. What these write when they come back harms nobody.
pub fn hanging_sink_target(bed: &Bed) -> io::Result<Option<String>> {
    fill(&bed.source)?;
    bed.sink.control("target 3 hang");
    let started = Instant::now();
    let run = bed.start(&["--hang-after", HANGS_AFTER])?;
    while !bed.has_summary() && started.elapsed() < RUN_LIMIT {
        std::thread::sleep(Duration::from_millis(50));
    }
    let in_time = bed.has_summary();
    bed.sink.control("target 3 ok");
    let ended = bed.wait(run)?;
    let (failed, there) = (ended.failed("sink-write").len(), arrived(bed).len());
    let wrong = (!in_time).then(|| "the transfer waits for a target that hangs".to_owned());
    let wrong = wrong.or_else(|| ended.is_not(3)).or_else(|| {
        // Some come to be on another target when they are made anew.
        let apart = failed + there == FILES && failed > 0 && there >= FILES / 3;
        (!apart).then(|| format!("{failed} of {FILES} files failed, {there} arrived"))
    });
    Ok(wrong.or(bed.second_run_completes()?))
}

/// Half of all syncs hang, many more than there are threads.
pub fn hanging_sink_syncs(bed: &Bed) -> io::Result<Option<String>> {
    fill(&bed.source)?;
    bed.sink.control("target 3 hang=sync");
    let run = bed.start(&["--hang-after", SYNC_HANGS_AFTER])?;
    let started = Instant::now();
    let in_time = bed.tells("summary", RUN_LIMIT);
    let took = started.elapsed();
    bed.sink.control("target 3 ok");
    let ended = bed.wait(run)?;
    let waited = (!in_time || took > SYNC_HANG_LIMIT).then(|| format!("it took {took:?}"));
    Ok(waited.or_else(|| ended.is_not(3)).or(only_those_on_it_failed(bed, &ended, "sink-sync")?))
}

pub fn full_sink_target(bed: &Bed) -> io::Result<Option<String>> {
    fill(&bed.source)?;
    bed.sink.control("target 3 error=ENOSPC");
    let ended = bed.copy(&[])?;
    let wrong = ended.is_not(3).or(only_those_on_it_failed(bed, &ended, "sink-no-space")?);
    bed.sink.control("target 3 ok");
    Ok(wrong.or(bed.second_run_completes()?))
}

/// No target has room: the job ends with that, and does not go on to name every file.
pub fn full_sink(bed: &Bed) -> io::Result<Option<String>> {
    fill(&bed.source)?;
    bed.sink.control("target all error=ENOSPC");
    let ended = bed.copy(&[])?;
    let told = ended.failed("sink-no-space").len();
    let named_all = (told == FILES).then(|| "each file is named".to_owned());
    let other = ended.summary["error"]["code"] != "sink-no-space";
    let wrong = ended.is_not(1).or(named_all).or_else(|| other.then(|| format!("{}", ended.summary)));
    bed.sink.control("target all ok");
    Ok(wrong.or(bed.second_run_completes()?))
}

/// About half of the files are on the target: they are named, and each of the others has arrived.
fn only_those_on_it_failed(bed: &Bed, ended: &Ended, code: &str) -> io::Result<Option<String>> {
    let (failed, there) = (ended.failed(code).len(), arrived(bed).len());
    let apart = failed + there == FILES && failed <= FILES * 2 / 3 && there <= FILES * 2 / 3;
    let wrong = (!apart).then(|| format!("{failed} of {FILES} files failed, {there} arrived"));
    let struck = on(&bed.sink, SLOW)?.len();
    Ok(wrong.or_else(|| (struck > 0).then(|| format!("{struck} files have arrived on the target"))))
}
