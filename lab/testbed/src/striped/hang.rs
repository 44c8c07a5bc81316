//! Targets of the sink that hang: for everything, or for syncs alone.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use super::{Bed, names};

/// Stripes that are longer than a file: with them one object is one file, and nothing of it is on any other target.
pub const WHOLE_BYTES: u32 = 16 << 20;
const WHOLE: [&str; 4] = ["--object-size", "16MiB", "--stripe", "1:16MiB"];
/// A healthy disk under these targets may take seconds for a sync while the machine is busy.
const SYNC_HANGS_AFTER: &str = "8";
/// Longer than anything takes that waits for a hung target twice.
const HUNG_LIMIT: Duration = Duration::from_secs(40);

pub fn hanging_sink_target(bed: &Bed) -> io::Result<Option<String>> {
    hanging_sink(bed, "target 4 hang", &["sink-write", "sink-sync"])
}

/// Writes go through, and only making them durable hangs.
pub fn hanging_sink_syncs(bed: &Bed) -> io::Result<Option<String>> {
    hanging_sink(bed, "target 4 hang=sync", &["sink-sync"])
}

/// The summary comes, names the files of the target and no others, and everything else is there.
fn hanging_sink(bed: &Bed, hang: &str, codes: &[&str]) -> io::Result<Option<String>> {
    bed.source.fill()?;
    bed.sink.control(hang);
    let run = bed.start_in(&WHOLE, &["--hang-after", SYNC_HANGS_AFTER])?;
    let in_time = bed.tells("summary", HUNG_LIMIT);
    let there: BTreeSet<String> = names().filter(|name| bed.sink.has(name)).collect();
    bed.sink.control("target 4 ok");
    let ended = bed.wait(run)?;
    let waited = (!in_time).then(|| "the transfer waits for a target that hangs".to_owned());
    let wrong = waited.or_else(|| ended.is_not(3)).or_else(|| ended.some_failed_not_these(codes, &there));
    Ok(wrong.or(bed.sink.one_is_on(4, &there)?).or(bed.second_run_completes()?))
}

/// A target answers again, when its files have been given up and the transfer still goes on.
pub fn late_sink_syncs(bed: &Bed) -> io::Result<Option<String>> {
    bed.source.fill()?;
    bed.source.control("target all rate=1500KB");
    bed.sink.control("target 4 hang=sync");
    let mut run = bed.start(&["--stripe", "1:16MiB", "--hang-after", SYNC_HANGS_AFTER])?;
    let given_up = bed.tells("failed", HUNG_LIMIT);
    let goes_on = run.child().try_wait()?.is_none() && !bed.tells("summary", Duration::ZERO);
    bed.sink.control("target 4 ok");
    bed.source.control("target all rate=0");
    let ended = bed.wait(run)?;
    let there: BTreeSet<String> = names().filter(|name| bed.sink.has(name)).collect();
    let early = (!given_up || !goes_on).then(|| "nothing was given up while the transfer went on".to_owned());
    let wrong = early.or_else(|| ended.is_not(3));
    // What is being written into a file may wait for the sync that hangs, and be given up first.
    let wrong = wrong.or_else(|| ended.some_failed_not_these(&["sink-sync", "sink-write"], &there));
    Ok(wrong.or(bed.second_run_completes()?))
}
