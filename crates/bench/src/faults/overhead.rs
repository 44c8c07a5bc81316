//! Figures 5, 6 and 7: what a log costs while nothing fails, in time, processor time, memory and room.
//!
//! Every run with a log has a run without one beside it, started at the same instant: whatever the machine does
//! meanwhile, it does to both, and a log's cost is the difference within the pair. (One after the other, the same
//! transfer differs by several percent on a shared machine, far more than what is looked for.) Both are paced, together
//! to at most 60 % of what the machine can do: storage and the network decide how long a transfer takes, as in the paper,
//! and not which of the two the scheduler of the machine prefers. What a log costs the processor is told beside it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Barrier;
use std::time::Duration;

use super::Settings;
use super::transfer::{Running, Setup, reap};
use super::variant::Variant;
use crate::evaluation::{Lottery, say};
use crate::statistics::Estimate;
use crate::tree::remove;

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
    /// The pace of each run of a pair, in bytes a second.
    pub bandwidth: u64,
    /// The runs of each variant, each with the number of its pair.
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

    /// By how much a quantity is above that without a log, in percent of what that is beside it: of the differences within pairs.
    pub fn overhead_percent(&self, variant: Variant, quantity: fn(&Sample) -> f64) -> Option<Estimate> {
        Estimate::of(&self.differences_percent(variant, quantity)?)
    }

    /// The same over the pairs of all eighteen logs together.
    pub fn pooled_percent(&self, quantity: fn(&Sample) -> f64) -> Option<Estimate> {
        let differences = |variant| self.differences_percent(variant, quantity).unwrap_or_default();
        Estimate::of(&Variant::logs().flat_map(differences).collect::<Vec<_>>())
    }

    fn differences_percent(&self, variant: Variant, quantity: fn(&Sample) -> f64) -> Option<Vec<f64>> {
        let pair = |(pair, sample): &(usize, Sample)| {
            let without: Vec<f64> = self
                .samples(Variant::NoLog)
                .iter()
                .filter(|(other, _)| other == pair)
                .map(|(_, sample)| quantity(sample))
                .collect();
            Some((quantity(sample), Estimate::of(&without)?.mean))
        };
        let pairs: Vec<(f64, f64)> = self.samples(variant).iter().filter_map(pair).collect();
        // Not of all runs without a log: how long those take follows from what runs beside them.
        let beside: Vec<f64> = pairs.iter().map(|(_, without)| *without).collect();
        let whole = Estimate::of(&beside)?.mean;
        Some(pairs.iter().map(|(with, without)| (with - without) / whole * 100.0).collect())
    }
}

/// Rounds until every interval is as narrow as asked for, or there were enough; `keep` is told what is known after each, and whether
/// that are as many as were asked for.
pub fn run(
    settings: &Settings,
    base: &Setup,
    variants: &[Variant],
    mut keep: impl FnMut(&Overhead, bool) -> io::Result<()>,
) -> io::Result<()> {
    let bandwidth = pace(base)?;
    say(&format!("{} workload: pairs of {:.1} MB/s each", base.workload.name, bandwidth as f64 / 1e6));
    let base = &Setup { bandwidth: Some(bandwidth), ..base.clone() };
    let mut overhead = Overhead { bandwidth, ..Overhead::default() };
    let mut lottery = Lottery::new(settings.seed);
    let mut pair = 0;
    for round in 1..=settings.rounds_max {
        let mut order: Vec<Variant> = variants.to_vec();
        lottery.shuffle(&mut order);
        for variant in order {
            pair += 1;
            let setup =
                |variant, name| Setup { variant, directory: base.directory.join(name), ..base.clone() };
            let (with, without) = (setup(variant, "with"), setup(Variant::NoLog, "without"));
            let (with, without) = side_by_side(&with, &without)?;
            overhead.samples.entry(variant).or_default().push((pair, with));
            overhead.samples.entry(Variant::NoLog).or_default().push((pair, without));
        }
        keep(&overhead, round >= settings.runs.min(settings.rounds_max))?;
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
    Ok(())
}

/// Of what two runs without a log reach together, each may use this share.
const SHARE_OF_FULL_RATE: f64 = 0.3;
/// A paced run is not shorter, or its start is all that is seen.
const SHORTEST_SECONDS: f64 = 5.0;

/// How fast each of two runs at the same time may be.
fn pace(base: &Setup) -> io::Result<u64> {
    let unpaced =
        |name| Setup { variant: Variant::NoLog, directory: base.directory.join(name), ..base.clone() };
    let (one, other) = side_by_side(&unpaced("with"), &unpaced("without"))?;
    let bytes = base.workload.bytes() as f64;
    let full = 2.0 * bytes / one.seconds.max(other.seconds);
    Ok((full * SHARE_OF_FULL_RATE).min(bytes / SHORTEST_SECONDS).max(1.0) as u64)
}

/// Two runs at the same time.
fn side_by_side(one: &Setup, other: &Setup) -> io::Result<(Sample, Sample)> {
    remove(&one.directory)?;
    remove(&other.directory)?;
    let together = Barrier::new(2);
    let (one, other) = std::thread::scope(|scope| {
        let run = |setup| {
            let together = &together;
            move || {
                together.wait();
                run_alone(setup)
            }
        };
        let other = scope.spawn(run(other));
        (run(one)(), other.join())
    });
    reap();
    let other = other.unwrap_or_else(|_| Err(io::Error::other("a run has panicked")));
    Ok((one?, other?))
}

/// One run of its own, from nothing to the end.
pub fn measure(setup: &Setup) -> io::Result<Sample> {
    remove(&setup.directory)?;
    let sample = run_alone(setup);
    reap();
    sample
}

/// A run that is slower, on any machine, hangs.
const SLOWEST_BYTES_PER_SECOND: f64 = 10e6;

fn run_alone(setup: &Setup) -> io::Result<Sample> {
    let limit = Duration::from_secs_f64(setup.workload.bytes() as f64 / SLOWEST_BYTES_PER_SECOND);
    let mut running = Running::start(setup)?;
    running.wait_for_bytes(setup.workload.bytes() / 10 * 9, limit)?;
    let resident_peak = running.resident_peak();
    let started = running.started;
    let ended = running.wait_for_success(limit)?;
    let log = &ended.summary["log"];
    Ok(Sample {
        seconds: (ended.at - started).as_secs_f64(),
        processor_seconds: ended.processor_seconds,
        resident_peak,
        log_bytes: log["bytes_peak"].as_u64().unwrap_or(0),
        log_files: log["files_peak"].as_u64().unwrap_or(0),
    })
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
        assert_eq!(overhead.pooled_percent(|sample| sample.seconds).unwrap().count, 10);
        assert!(overhead.estimate(log, |sample| sample.seconds).unwrap().half_width > 1.0);
    }

    #[test]
    fn a_share_is_of_what_ran_beside_it() {
        let mut overhead = Overhead::default();
        for (pair, variant, with, without) in
            [(1, Variant::DEFAULT_LOG, 101.0, 100.0), (2, Variant::Default, 1.0, 10.0)]
        {
            overhead.samples.entry(variant).or_default().push((pair, sample(with)));
            overhead.samples.entry(Variant::NoLog).or_default().push((pair, sample(without)));
        }
        let percent = |variant| overhead.overhead_percent(variant, |sample| sample.seconds).unwrap().mean;
        assert!((percent(Variant::DEFAULT_LOG) - 1.0).abs() < 1e-9);
        assert!((percent(Variant::Default) + 90.0).abs() < 1e-9, "no run saves more than there is");
    }
}
