//! Figures 5, 6 and 7: what a log costs while nothing fails, in time, processor time, memory and room.
//!
//! Each round runs every variant once, in an order drawn anew, with the runs without a log in between; a log's cost is
//! the difference within its round, so that what drifts on the machine drifts for both.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::transfer::{Running, Setup, children_seconds, reap};
use super::variant::Variant;
use super::{Lottery, Settings, say};
use crate::statistics::Estimate;

/// Runs without a log in each round: the more, the less their noise adds to that of every other.
const BASELINES: usize = 4;

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// From the start of the command to its end.
    pub seconds: f64,
    /// Of both ends.
    pub processor_seconds: f64,
    /// Of both ends, in bytes.
    pub resident_peak: u64,
    /// Room that the logs took, at most.
    pub log_bytes: u64,
    /// Logs at a time, at most.
    pub log_files: u64,
}

/// All runs of one workload.
#[derive(Clone, Default)]
pub struct Overhead {
    /// The runs of each variant, each with its round.
    pub samples: BTreeMap<Variant, Vec<(usize, Sample)>>,
}

impl Overhead {
    /// Of this variant.
    pub fn samples(&self, variant: Variant) -> &[(usize, Sample)] {
        self.samples.get(&variant).map_or(&[], Vec::as_slice)
    }

    /// A quantity of one variant.
    pub fn estimate(&self, variant: Variant, quantity: fn(&Sample) -> f64) -> Option<Estimate> {
        let values: Vec<f64> = self.samples(variant).iter().map(|(_, sample)| quantity(sample)).collect();
        Estimate::of(&values)
    }

    /// By how much a quantity is above that without a log, in percent of it: of the differences within rounds.
    pub fn overhead_percent(&self, variant: Variant, quantity: fn(&Sample) -> f64) -> Option<Estimate> {
        let all = self.estimate(Variant::NoLog, quantity)?.mean;
        let differences: Vec<f64> = self
            .samples(variant)
            .iter()
            .filter_map(|(round, sample)| {
                let without: Vec<f64> = self
                    .samples(Variant::NoLog)
                    .iter()
                    .filter(|(other, _)| other == round)
                    .map(|(_, sample)| quantity(sample))
                    .collect();
                Some((quantity(sample) - Estimate::of(&without)?.mean) / all * 100.0)
            })
            .collect();
        Estimate::of(&differences)
    }
}

/// Rounds until every interval is as narrow as asked for, or there were enough.
pub fn run(settings: &Settings, base: &Setup, variants: &[Variant]) -> io::Result<Overhead> {
    let mut overhead = Overhead::default();
    let mut lottery = Lottery::new(settings.seed);
    for round in 1..=settings.rounds_max {
        let mut order: Vec<Variant> = variants.to_vec();
        order.extend([Variant::NoLog; BASELINES]);
        lottery.shuffle(&mut order);
        for variant in order {
            let sample = measure(&Setup { variant, ..base.clone() })?;
            overhead.samples.entry(variant).or_default().push((round, sample));
        }
        let widest = variants
            .iter()
            .filter_map(|variant| overhead.overhead_percent(*variant, |sample| sample.seconds))
            .map(|estimate| estimate.half_width)
            .fold(0.0, f64::max);
        say(&format!("{} workload, round {round}: widest interval +-{widest:.2} %", base.workload.name));
        if round >= settings.runs && widest <= settings.precision_percent {
            break;
        }
    }
    Ok(overhead)
}

/// One run of its own, from nothing to the end.
pub fn measure(setup: &Setup) -> io::Result<Sample> {
    remove(&setup.directory)?;
    let before = children_seconds();
    let mut running = Running::start(setup)?;
    running.wait_for_share(0.9, Duration::ZERO)?;
    let resident_peak = running.resident_peak();
    let started = running.started;
    let ended = running.wait_for_success(Duration::ZERO)?;
    reap(&[]);
    let processor_seconds = children_seconds() - before;
    let log = &ended.summary["log"];
    Ok(Sample {
        seconds: (ended.at - started).as_secs_f64(),
        processor_seconds,
        resident_peak,
        log_bytes: log["bytes_peak"].as_u64().unwrap_or(0),
        log_files: log["files_peak"].as_u64().unwrap_or(0),
    })
}

/// Removes what an earlier run left.
pub fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64) -> Sample {
        Sample { seconds, processor_seconds: 0.0, resident_peak: 0, log_bytes: 0, log_files: 0 }
    }

    #[test]
    fn what_drifts_for_both_is_not_an_overhead() {
        let log = Variant::DEFAULT_LOG;
        let mut overhead = Overhead::default();
        for round in 0..10 {
            let drift = f64::from(round);
            let mut add = |variant, seconds| {
                overhead.samples.entry(variant).or_default().push((round as usize, sample(seconds)));
            };
            add(Variant::NoLog, 99.0 + drift);
            add(Variant::NoLog, 101.0 + drift);
            add(log, 101.0 + drift);
        }
        let percent = overhead.overhead_percent(log, |sample| sample.seconds).unwrap();
        assert!((percent.mean - 100.0 / 104.5).abs() < 1e-9, "{percent:?}");
        assert!(percent.half_width < 1e-9, "{percent:?}");
        assert!(overhead.estimate(log, |sample| sample.seconds).unwrap().half_width > 1.0);
    }
}
