//! Figures 8, 9 and 10: what a fault costs, by where it hits and when.
//!
//! Runs are paced, so that many can run side by side without being in each other's way: the estimated recovery time of
//! the paper's equation 1 is then the time that is really lost, and not noise.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::Settings;
use super::transfer::{Fault, Running, Setup, reap};
use super::variant::{Variant, Workload};
use crate::evaluation::{Lottery, say};
use crate::process::leave_the_rest_to_the_end;
use crate::statistics::Estimate;
use crate::tree::{self, Options, remove};

/// Bytes that a token bucket lets pass at once, in seconds: with less than that, nothing can be paced.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is run: without a fault, or with one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Case {
    /// How it is moved and logged.
    pub variant: Variant,
    /// What hits it, and at which percent of the bytes; nothing: the time that it takes undisturbed.
    pub fault: Option<(Fault, u32)>,
}

/// What came out of a run with a fault.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// TBF of equation 1: from the start to the fault, or until the mover noticed and ended.
    pub before_seconds: f64,
    /// TAF: of the run that continued, or from the cut on.
    pub after_seconds: f64,
    /// Sent over all runs, beyond the workload; not known of every mover.
    pub bytes_again: Option<u64>,
    /// From the restart (or the cut) to the first new object on its way.
    pub first_object_seconds: Option<f64>,
}

/// All runs of one workload.
#[derive(Default)]
pub struct Recovery {
    /// Bytes a second.
    pub bandwidth: u64,
    /// Runs without a fault, in seconds.
    pub undisturbed: BTreeMap<Variant, Vec<f64>>,
    /// Runs with one.
    pub outcomes: BTreeMap<Case, Vec<Outcome>>,
    /// Runs that failed, and were made once more.
    pub repeated: u64,
    /// Other movers that failed twice.
    pub left_out: BTreeSet<Variant>,
}

impl Recovery {
    /// TT of equation 1.
    pub fn undisturbed_seconds(&self, variant: Variant) -> Option<f64> {
        let runs = self.undisturbed.get(&variant)?;
        Some(Estimate::of(runs)?.mean)
    }

    /// By how much the undisturbed time is above that without a log, in percent of it.
    pub fn log_percent(&self, variant: Variant) -> Option<Estimate> {
        let without = self.undisturbed.get(&Variant::NoLog)?;
        let difference = Estimate::difference(self.undisturbed.get(&variant)?, without)?;
        Some(difference.times(100.0 / Estimate::of(without)?.mean))
    }

    fn values(&self, case: Case, quantity: impl Fn(&Outcome) -> Option<f64>) -> Option<Vec<f64>> {
        Some(self.outcomes.get(&case)?.iter().filter_map(quantity).collect())
    }

    fn estimate(&self, case: Case, quantity: impl Fn(&Outcome) -> Option<f64>) -> Option<Estimate> {
        Estimate::of(&self.values(case, quantity)?)
    }

    /// How much more than an undisturbed run: both were measured, so both have their error.
    fn beyond(&self, case: Case, quantity: impl Fn(&Outcome) -> Option<f64>) -> Option<Estimate> {
        Estimate::difference(&self.values(case, quantity)?, self.undisturbed.get(&case.variant)?)
    }

    /// ER = TBF + TAF - TT, in seconds.
    pub fn recovery_seconds(&self, case: Case) -> Option<Estimate> {
        self.beyond(case, |outcome| Some(outcome.seconds()))
    }

    /// ER without the time that the work in flight takes to be sent again and without the start of the new run, in
    /// percent of TT.
    pub fn overhead_percent(&self, case: Case) -> Option<Estimate> {
        let bandwidth = self.bandwidth as f64;
        let rest = self.beyond(case, |outcome| {
            let in_flight = outcome.bytes_again? as f64 / bandwidth;
            Some(outcome.seconds() - in_flight - first_object(case, outcome)?)
        })?;
        Some(rest.times(100.0 / self.undisturbed_seconds(case.variant)?))
    }

    /// Bytes sent again.
    pub fn bytes_again(&self, case: Case) -> Option<Estimate> {
        self.estimate(case, |outcome| outcome.bytes_again.map(|bytes| bytes as f64))
    }

    /// Seconds until the first new object moves.
    pub fn first_object_seconds(&self, case: Case) -> Option<Estimate> {
        self.estimate(case, |outcome| first_object(case, outcome))
    }
}

/// Behind a cut of the network that is when the pace has let a whole object pass, which is no start of anything.
fn first_object(case: Case, outcome: &Outcome) -> Option<f64> {
    outcome.first_object_seconds.filter(|_| !matches!(case.fault, Some((Fault::Network, _))))
}

impl Outcome {
    /// TBF + TAF of equation 1.
    pub fn seconds(&self) -> f64 {
        self.before_seconds + self.after_seconds
    }
}

/// Which cases are run: every log against faults at the source at every point, as in the paper, and against the other
/// two at the last point; the mechanisms with the default method, and what they are compared with, against everything.
pub fn cases(settings: &Settings, variants: &[Variant]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &variant in variants {
        cases.push(Case { variant, fault: None });
        for &fault in &settings.faults {
            for &percent in &settings.points {
                let last = settings.points.last() == Some(&percent);
                let in_full =
                    settings.every_fault || !matches!(variant, Variant::Log(_, method) if method != "bit64");
                if !variant.is_haul() && fault != Fault::Source {
                    continue;
                }
                if fault == Fault::Source || last || in_full {
                    cases.push(Case { variant, fault: Some((fault, percent)) });
                }
            }
        }
    }
    cases
}

/// Runs all cases, `parallel` at a time, in an order drawn by lot; what came out, and whether all of it was run. Another mover that
/// fails twice is left out; where haul does, that is the end.
pub fn run(settings: &Settings, base: &Setup, variants: &[Variant]) -> (Recovery, io::Result<()>) {
    let bandwidth = (base.workload.bytes() as f64 / settings.paced_seconds).max(1.0) as u64;
    let base = Setup { bandwidth: Some(bandwidth), ..base.clone() };
    let mut jobs: Vec<Case> = cases(settings, variants).repeat(settings.runs);
    Lottery::new(settings.seed).shuffle(&mut jobs);
    let total = jobs.len();
    let seconds = total as f64 * (settings.paced_seconds + 2.0) / settings.parallel as f64;
    say(&format!(
        "{} workload: {total} runs with and without faults, {} at a time, about {:.0} min",
        base.workload.name,
        settings.parallel,
        seconds / 60.0
    ));
    let queue = Mutex::new(VecDeque::from(jobs));
    let results = Mutex::new(Recovery { bandwidth, ..Recovery::default() });
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for worker in 0..settings.parallel {
            let (queue, results, failed, base) = (&queue, &results, &failed, &base);
            scope.spawn(move || {
                // Not all start at the same instant, now and later.
                std::thread::sleep(Duration::from_secs_f64(
                    settings.paced_seconds.min(20.0) * worker as f64 / settings.parallel as f64,
                ));
                loop {
                    let Some(case) = lock(queue).pop_front() else { return };
                    let directory = base.directory.join(format!("run-{worker}"));
                    let setup = Setup { variant: case.variant, directory, ..base.clone() };
                    // One more try: a machine that stalls for a minute is not what is measured.
                    let result = play(&setup, case, settings).or_else(|error| {
                        leave_the_rest_to_the_end();
                        say(&format!("{case:?}: {error}; once more"));
                        lock(results).repeated += 1;
                        play(&setup, case, settings)
                    });
                    leave_the_rest_to_the_end();
                    match result {
                        Ok(played) => record(&mut lock(results), case, played),
                        Err(error) if !case.variant.is_haul() => {
                            say(&format!("{}: {error}; it is left out", case.variant));
                            lock(queue).retain(|other| other.variant != case.variant);
                            lock(results).left_out.insert(case.variant);
                        }
                        Err(error) => {
                            lock(queue).clear();
                            lock(failed).get_or_insert(error);
                            return;
                        }
                    }
                }
            });
        }
    });
    reap();
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let Recovery { undisturbed, outcomes, left_out, .. } = &mut results;
    undisturbed.retain(|variant, _| !left_out.contains(variant));
    outcomes.retain(|case, _| !left_out.contains(&case.variant));
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    (results, failed.map_or(Ok(()), Err))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Played {
    Undisturbed(f64),
    Disturbed(Outcome),
}

fn record(recovery: &mut Recovery, case: Case, played: Played) {
    match played {
        Played::Undisturbed(seconds) => recovery.undisturbed.entry(case.variant).or_default().push(seconds),
        Played::Disturbed(outcome) => recovery.outcomes.entry(case).or_default().push(outcome),
    }
}

fn play(setup: &Setup, case: Case, settings: &Settings) -> io::Result<Played> {
    remove(&setup.directory)?;
    let limit = Duration::from_secs_f64(settings.paced_seconds * 2.0) + PATIENCE;
    let mut first = Running::start(setup)?;
    let started = first.started;
    let Some((fault, percent)) = case.fault else {
        let ended = first.wait_for_success(limit)?;
        check(&ended.summary, setup)?;
        return Ok(Played::Undisturbed((ended.at - started).as_secs_f64()));
    };
    if !first.wait_for_bytes(setup.workload.point(percent), limit)? {
        return Err(io::Error::other(format!("the run ended before the fault: {}", first.said())));
    }
    let hit = first.inject(fault)?;
    let total = setup.workload.bytes();
    if fault == Fault::Network {
        let ended = first.wait_for_success(limit)?;
        check(&ended.summary, setup)?;
        let first_object_seconds = ended.moved_again.map(|at| (at - hit).as_secs_f64());
        return Ok(Played::Disturbed(Outcome {
            before_seconds: (hit - started).as_secs_f64(),
            after_seconds: (ended.at - hit).as_secs_f64(),
            bytes_again: Some(ended.bytes_sent.saturating_sub(total)),
            first_object_seconds,
        }));
    }
    let broken = first.wait(limit)?;
    if broken.success {
        return Err(io::Error::other("the run ended well in spite of the fault"));
    }
    let before = if fault == Fault::Source { hit } else { broken.at };
    let second = Running::start(setup)?;
    let restarted = second.started;
    let ended = second.wait_for_success(limit)?;
    check(&ended.summary, setup)?;
    let is_haul = setup.variant.is_haul();
    let sent = broken.bytes_sent + ended.bytes_sent;
    Ok(Played::Disturbed(Outcome {
        before_seconds: (before - started).as_secs_f64(),
        after_seconds: (ended.at - restarted).as_secs_f64(),
        bytes_again: is_haul.then(|| sent.saturating_sub(total)),
        first_object_seconds: ended.summary["seconds_to_first_object"].as_f64(),
    }))
}

/// The summary says that everything is there, which haul has checked; of the others their results tell.
fn check(summary: &Value, setup: &Setup) -> io::Result<()> {
    if !setup.variant.is_haul() {
        return compare(setup);
    }
    let Workload { files, .. } = setup.workload;
    let count = |name: &str| summary[name].as_u64().unwrap_or(0);
    let complete = summary["state"] == "done" && count("files_done") + count("files_skipped") == files;
    if complete { Ok(()) } else { Err(io::Error::other(format!("not all is there: {summary}"))) }
}

fn compare(setup: &Setup) -> io::Result<()> {
    let wrong = |what: String| io::Error::other(format!("not all is there as it should be: {what}"));
    let files = setup.files.as_deref().ok_or_else(|| wrong("it had no files".into()))?;
    // Both put the directory itself into the destination.
    let result = setup.destination().join(files.file_name().unwrap_or_default());
    let options = Options { times: false, modes: false, listed_max: 1, ..Options::default() };
    let found = tree::compare(files, &result, &options).map_err(|error| wrong(error.to_string()))?;
    found.differences.first().map_or(Ok(()), |first| Err(wrong(first.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_is_equation_one_and_the_rest_of_it_is_named() {
        let case = Case { variant: Variant::DEFAULT_LOG, fault: Some((Fault::Source, 80)) };
        let mut recovery = Recovery { bandwidth: 1_000_000, ..Recovery::default() };
        recovery.undisturbed.insert(case.variant, vec![60.0, 62.0]);
        let outcome = Outcome {
            before_seconds: 49.0,
            after_seconds: 14.0,
            bytes_again: Some(500_000),
            first_object_seconds: Some(0.28),
        };
        recovery.outcomes.insert(case, vec![outcome; 3]);
        assert_eq!(recovery.recovery_seconds(case).unwrap().mean, 2.0);
        let percent = recovery.overhead_percent(case).unwrap().mean;
        assert!((percent - 2.0).abs() < 1e-9, "{percent}");
    }

    /// Of which nothing that is started ends well.
    fn setup(scratch: &std::path::Path, files: std::path::PathBuf) -> Setup {
        Setup {
            haul: "/bin/false".into(),
            workload: Workload { name: "big", files: 1, file_bytes: 8 },
            variant: Variant::Rsync,
            bandwidth: None,
            memory: None,
            writer: None,
            files: Some(files),
            directory: scratch.join("run"),
        }
    }

    #[test]
    fn another_movers_result_is_compared() {
        let scratch = tempfile::tempdir().unwrap();
        let files = scratch.path().join("files");
        std::fs::create_dir(&files).unwrap();
        std::fs::write(files.join("f0"), "contents").unwrap();
        let setup = setup(scratch.path(), files);
        let result = setup.destination().join("files");
        let wrong = |because: &str| {
            let error = check(&Value::Null, &setup).unwrap_err().to_string();
            assert!(error.contains(because), "{error}");
        };
        wrong("No such file");
        std::fs::create_dir_all(&result).unwrap();
        wrong("f0: is missing");
        std::fs::write(result.join("f0"), "contentS").unwrap();
        wrong("byte 7");
        std::fs::write(result.join("f0"), "contents").unwrap();
        check(&Value::Null, &setup).unwrap();
    }

    #[test]
    fn another_mover_that_fails_twice_is_left_out_and_haul_is_not() {
        let scratch = tempfile::tempdir().unwrap();
        let base = setup(scratch.path(), scratch.path().join("missing"));
        let settings =
            Settings { runs: 2, parallel: 1, paced_seconds: 0.1, points: Vec::new(), ..Settings::default() };
        let (found, ended) = run(&settings, &base, &[Variant::Rsync]);
        ended.unwrap();
        assert_eq!(found.left_out, BTreeSet::from([Variant::Rsync]));
        assert!(found.undisturbed.is_empty());
        let (found, ended) = run(&settings, &base, &[Variant::NoLog]);
        assert!(ended.is_err() && found.left_out.is_empty());
    }

    #[test]
    fn every_log_meets_a_fault_at_every_point() {
        let settings = Settings { points: vec![20, 80], ..Settings::default() };
        let variants: Vec<_> = Variant::logs().chain([Variant::NoLog, Variant::Rsync]).collect();
        let cases = cases(&settings, &variants);
        for variant in Variant::logs() {
            for percent in [20, 80] {
                assert!(cases.contains(&Case { variant, fault: Some((Fault::Source, percent)) }));
            }
            for fault in Fault::ALL {
                assert!(cases.contains(&Case { variant, fault: Some((fault, 80)) }));
            }
        }
        let is_rsync = |case: &&Case| case.variant == Variant::Rsync && case.fault.is_some();
        assert!(cases.iter().filter(is_rsync).all(|case| matches!(case.fault, Some((Fault::Source, _)))));
        assert!(cases.contains(&Case { variant: Variant::DEFAULT_LOG, fault: Some((Fault::Network, 20)) }));
    }
}
