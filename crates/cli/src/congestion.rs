//! `--congestion`, `--congestion-threshold`, `--congestion-skips`: what they mean for the engine, and as words of the
//! greeting.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use haul_mover::Policy;
use haul_mover::scheduler::{Adaptive, Lads};

use crate::options::Congestion;

/// A request over T is slow; M requests go elsewhere before a slow target is tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// T, for a MiB with nothing else under way on the target; as measured if nobody says.
    pub threshold: Option<Time>,
    /// M; as measured if nobody says.
    pub skips: Option<u32>,
}

/// T is at most an hour, and no target answers within a microsecond.
const NANOS: std::ops::RangeInclusive<u64> = 1_000..=3_600_000_000_000;
/// Beyond this a target is not tried again before it has to be anyway (aging).
pub const SKIPS_MAX: u32 = 1_000_000;

/// Such a policy compares with a threshold.
pub fn has_threshold(congestion: Congestion) -> bool {
    matches!(congestion, Congestion::Lads | Congestion::Adaptive)
}

/// Such a policy leaves a slow target out for a number of requests.
pub fn has_skips(congestion: Congestion) -> bool {
    congestion == Congestion::Lads
}

/// For the engine.
pub fn policy(congestion: Congestion, limits: Limits) -> Policy {
    let threshold_nanos = limits.threshold.map(|time| time.0);
    match congestion {
        Congestion::Adaptive => Policy::Adaptive(Adaptive { threshold_nanos, ..Adaptive::default() }),
        Congestion::Lads => Policy::Lads(Lads { threshold_nanos, skip: limits.skips, ..Lads::default() }),
        Congestion::Layout => Policy::Layout,
        Congestion::None => Policy::FileOrder,
    }
}

/// The words for the greeting.
pub fn words(policy: Policy) -> (&'static str, Limits) {
    let threshold = |nanos: Option<u64>| nanos.map(Time);
    match policy {
        Policy::Adaptive(adaptive) => {
            ("adaptive", Limits { threshold: threshold(adaptive.threshold_nanos), skips: None })
        }
        Policy::Lads(lads) => {
            ("lads", Limits { threshold: threshold(lads.threshold_nanos), skips: lads.skip })
        }
        Policy::Layout => ("layout", Limits::default()),
        Policy::FileOrder => ("none", Limits::default()),
    }
}

/// What such words mean, if they mean anything.
pub fn policy_of(name: &str, threshold_nanos: Option<u64>, skips: Option<u32>) -> Option<Policy> {
    let congestion = Congestion::from_str(name, false).ok()?;
    let fits = (threshold_nanos.is_none() || has_threshold(congestion))
        && (skips.is_none() || has_skips(congestion));
    let sound = threshold_nanos.is_none_or(|nanos| NANOS.contains(&nanos))
        && skips.is_none_or(|skips| (1..=SKIPS_MAX).contains(&skips));
    let limits = Limits { threshold: threshold_nanos.map(Time), skips };
    (sound && fits).then(|| policy(congestion, limits))
}

/// A time as people write it: `20ms`, `1.5s`, `800us`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Time(u64);

impl Time {
    /// In nanoseconds.
    pub fn nanos(self) -> u64 {
        self.0
    }
}

/// The largest that divides it is shown.
const UNITS: [(&str, u64); 3] = [("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

impl std::str::FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        let wrong = || "a time is like 20ms, 1.5s or 800us, up to 3600s".to_owned();
        let split = text.find(|letter: char| letter.is_ascii_alphabetic()).ok_or_else(wrong)?;
        let (number, unit) = text.split_at(split);
        let nanos = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
        let number: f64 = number.parse().map_err(|_| wrong())?;
        // Out of range, and no number at all, saturate to what is out of range here.
        let nanos = (number * nanos as f64).round() as u64;
        if NANOS.contains(&nanos) { Ok(Time(nanos)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS.iter().rev().find(|(_, nanos)| self.0.is_multiple_of(*nanos));
        match whole {
            Some((unit, nanos)) => write!(f, "{}{unit}", self.0 / nanos),
            None => write!(f, "{:?}", Duration::from_nanos(self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_written() {
        for (text, nanos, shown) in [
            ("20ms", 20_000_000, "20ms"),
            ("1.5s", 1_500_000_000, "1500ms"),
            ("800us", 800_000, "800us"),
            ("3600s", 3_600_000_000_000, "3600s"),
            ("1000ms", 1_000_000_000, "1s"),
            ("1us", 1_000, "1us"),
        ] {
            let time: Time = text.parse().unwrap();
            assert_eq!((time.nanos(), time.to_string().as_str()), (nanos, shown));
            assert_eq!(time.to_string().parse(), Ok(time));
        }
        for wrong in ["", "20", "ms", "0ms", "-1s", "20 ms", "20m", "3601s", "0.5us", "nans", "infs", "1e99s"]
        {
            assert!(wrong.parse::<Time>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_was_set_survives_the_greeting() {
        let limits = |threshold: Option<u64>, skips| Limits { threshold: threshold.map(Time), skips };
        for (congestion, limits) in [
            (Congestion::Lads, limits(Some(20_000_000), Some(8))),
            (Congestion::Lads, limits(None, None)),
            (Congestion::Adaptive, limits(Some(5_000), None)),
            (Congestion::Layout, limits(None, None)),
            (Congestion::None, limits(None, None)),
        ] {
            let set = policy(congestion, limits);
            let (name, Limits { threshold, skips }) = words(set);
            assert_eq!(policy_of(name, threshold.map(Time::nanos), skips), Some(set));
        }
        for (name, threshold, skips) in [
            ("fast", None, None),
            ("lads", Some(0), None),
            ("lads", Some(u64::MAX), None),
            ("lads", None, Some(0)),
            ("lads", None, Some(u32::MAX)),
            ("adaptive", None, Some(8)),
            ("layout", Some(20_000_000), None),
        ] {
            assert_eq!(policy_of(name, threshold, skips), None, "{name}");
        }
    }
}
