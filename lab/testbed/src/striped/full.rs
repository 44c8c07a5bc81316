//! A target of the sink without room: files on it are named, everything else arrives, and what is durable of them stays.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use super::{Bed, RUN_LIMIT, differences, names};

/// A file is on one target as a whole.
const WHOLE: [&str; 2] = ["--stripe", "1:16MiB"];

/// The target fills up while its files are half done; once there is room again they go on from there.
pub fn full_sink_target(bed: &Bed) -> io::Result<Option<String>> {
    bed.source.fill()?;
    bed.sink.control("target all rate=3MB");
    let run = bed.start(&WHOLE)?;
    // A group is made durable each second.
    let started = Instant::now();
    while !bed.sink.has_unfinished(4)? && started.elapsed() < RUN_LIMIT {
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(2500));
    bed.sink.control("target 4 error=ENOSPC");
    bed.sink.control("target all rate=0");
    let ended = bed.wait(run)?;
    let there: BTreeSet<String> = names().filter(|name| bed.sink.has(name)).collect();
    let wrong = ended.is_not(3).or_else(|| ended.some_failed_not_these(&["sink-no-space"], &there));
    if let Some(wrong) = wrong.or(bed.sink.one_is_on(4, &there)?) {
        return Ok(Some(wrong));
    }
    bed.sink.control("target 4 ok");
    let again = bed.copy(&WHOLE)?;
    let skipped = again.summary["objects_skipped"].as_u64().unwrap_or(0);
    let anew = (skipped == 0).then(|| "the second run began the files of the full target anew".to_owned());
    Ok(again.is_not(0).or(anew).or_else(|| differences(&bed.source, &bed.sink)))
}

/// No target has room, and there are fewer files than failures after which hope is given up: each is named.
pub fn full_sink(bed: &Bed) -> io::Result<Option<String>> {
    bed.source.fill()?;
    bed.sink.control("target all error=ENOSPC");
    let ended = bed.copy(&WHOLE)?;
    let told = ended.failed("sink-no-space").len();
    let wrong = (ended.code != Some(3) || told != names().count())
        .then(|| format!("exit code {:?}, {told} files are named", ended.code));
    bed.sink.control("target all ok");
    Ok(wrong.or(bed.second_run_completes()?))
}
