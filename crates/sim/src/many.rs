//! Many histories, on several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::report::Report;
use crate::scheduler::{SchedulerOptions, SchedulerReport, run_scheduler};
use crate::{Options, run};

/// What a history came to, and how many add up.
pub trait Tally: Default + Send {
    /// Adds another, or the sum of others.
    fn add(&mut self, other: &Self);
    /// What did not hold.
    fn violation(&self) -> Option<&str>;
}

/// Which histories to run, and until when.
#[derive(Clone, Copy)]
pub struct Batch {
    /// The seed of the first; the others follow.
    pub seed: u64,
    /// How many at most.
    pub histories: u64,
    /// How long at most.
    pub time: Option<Duration>,
    /// Threads that run them.
    pub threads: usize,
    /// Violations after which it stops.
    pub violations_max: usize,
}

/// Histories taken by a thread at once.
const STRIDE: u64 = 16;

/// Runs histories of jobs. Returns their sum, and the seeds of those in which something did not hold, lowest first.
pub fn run_many(batch: &Batch, options: &Options) -> (Report, Vec<(u64, String)>) {
    run_each(batch, |seed| run(seed, options).0)
}

/// Runs histories of the scheduler, likewise.
pub fn run_many_schedulers(
    batch: &Batch,
    options: &SchedulerOptions,
) -> (SchedulerReport, Vec<(u64, String)>) {
    run_each(batch, |seed| run_scheduler(seed, options).0)
}

fn run_each<R: Tally>(batch: &Batch, history: impl Fn(u64) -> R + Sync) -> (R, Vec<(u64, String)>) {
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let total = Mutex::new((R::default(), Vec::new()));
    let work = || {
        let mut sum = R::default();
        while !stop.load(Ordering::Relaxed) && batch.time.is_none_or(|time| begun.elapsed() < time) {
            let first = next.fetch_add(STRIDE, Ordering::Relaxed);
            if first >= batch.histories {
                break;
            }
            for index in first..batch.histories.min(first + STRIDE) {
                let seed = batch.seed.wrapping_add(index);
                let report = history(seed);
                sum.add(&report);
                if let Some(violation) = report.violation() {
                    let mut total = total.lock().expect("no thread panics while it holds this");
                    total.1.push((seed, violation.to_string()));
                    if total.1.len() >= batch.violations_max {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
        total.lock().expect("no thread panics while it holds this").0.add(&sum);
    };
    std::thread::scope(|scope| {
        for _ in 0..batch.threads.max(1) {
            scope.spawn(work);
        }
    });
    let (report, mut violations) = total.into_inner().expect("all threads have ended");
    violations.sort_by_key(|(seed, _)| *seed);
    (report, violations)
}
