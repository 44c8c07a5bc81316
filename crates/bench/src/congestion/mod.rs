//! What is a scheduler worth that knows which target holds what, and which targets are slow: the evaluation of LADS, with
//! haul.
//!
//! - [`laboratory`]: parallel file systems on devices that are slowed one by one ([`device`]), in a mount namespace of their own:
//!   two emulated ones ([`stripes`]), or one that really runs ([`volume`]: GlusterFS, CephFS). [`filesystem`]: what is asked of any.
//! - [`weather`]: which targets are slow, and when. [`mover`]: who moves the files. [`transfer`]: one run, and what it was
//!   worth; [`trace`]: what the targets saw of it; [`sampler`]: what can be seen of them from outside.
//! - [`devices`]: how fast the targets really are. [`probe`]: how long a neighbour waits.
//! - [`csv`], [`report`], [`pictures`]: what came out, as numbers and for people.
//!
//! What must stay true: all movers of a round meet the same weather; the bound is computed from the rates that were really
//! set, at the times at which they were.

mod about;
pub mod csv;
pub mod device;
pub mod devices;
pub mod filesystem;
pub mod laboratory;
pub mod mover;
pub mod pictures;
pub mod probe;
pub mod report;
pub mod sampler;
pub mod stripes;
pub mod trace;
pub mod transfer;
pub mod volume;
pub mod weather;

use std::fmt::{self, Display};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use laboratory::leave_nothing;

use crate::evaluation::{Lottery, say};
use crate::process;
use laboratory::Laboratory;
use mover::Mover;
use transfer::{Case, Outcome, Picture};

/// As in the paper.
pub const TARGETS: usize = 11;
/// A slow target has one part of so many of its rate.
pub const SLOWED: u64 = 10;
/// Targets of each file.
pub const STRIPES: u32 = 4;
/// Bytes of a stripe, and so of an object.
pub const STRIPE_BYTES: u32 = 1 << 20;
/// Bytes of each target at the paper's scale: 5.9 GB in all.
const TARGET_BYTES: u64 = 512 << 20;

/// Which parallel file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum System {
    /// The emulated one (lab/stripefs): files are striped over targets, as evenly as can be; two of them, one for each end.
    Stripefs,
    /// A GlusterFS volume that really runs: each file is on one brick, by the hash of its name. One volume, for either end.
    Gluster,
    /// A CephFS that really runs: files are cut into objects, each on one OSD by the hash of its name. One, for either end.
    Ceph,
}

impl System {
    /// For files and people.
    pub const fn name(self) -> &'static str {
        match self {
            System::Stripefs => "stripefs",
            System::Gluster => "gluster",
            System::Ceph => "ceph",
        }
    }

    /// What names of its files in the report begin with.
    pub const fn prefix(self) -> &'static str {
        match self {
            System::Stripefs => "lads",
            System::Gluster => "lads-gluster",
            System::Ceph => "lads-ceph",
        }
    }

    /// Bytes of a file, at any scale. Where files are on one target or two there are more of them, or their number would be all that
    /// is measured.
    pub const fn file_bytes(self) -> u64 {
        match self {
            System::Stripefs => 64 << 20,
            System::Gluster | System::Ceph => 8 << 20,
        }
    }

    /// It tells of each request at each target.
    pub const fn has_trace(self) -> bool {
        matches!(self, System::Stripefs)
    }
}

/// Which end's targets are slow; the other end is no file system, so that it cannot be the bound.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum End {
    /// Files are read from slow targets.
    Source,
    /// Files are written to slow targets.
    Sink,
    /// Both, with slow targets of their own.
    Both,
}

impl End {
    /// All three.
    pub const ALL: [End; 3] = [End::Source, End::Sink, End::Both];

    /// `source`, `sink`, `both`.
    pub const fn name(self) -> &'static str {
        match self {
            End::Source => "source",
            End::Sink => "sink",
            End::Both => "both",
        }
    }

    /// Files are read from a parallel file system.
    pub fn reads(self) -> bool {
        self != End::Sink
    }

    /// Files are written to a parallel file system.
    pub fn writes(self) -> bool {
        self != End::Source
    }
}

impl Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What slows the targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Throttle {
    /// The kernel's I/O throttle, on devices of their own.
    Kernel,
    /// The emulated file system itself; needs no devices.
    Emulated,
}

/// Bytes a second of one target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rates {
    /// As it should be.
    pub healthy: u64,
    /// Congested.
    pub slow: u64,
}

/// What to evaluate.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program under test.
    pub haul: PathBuf,
    /// Which parallel file system.
    pub system: System,
    /// The emulated parallel file system.
    pub stripefs: PathBuf,
    /// What serves volumes.
    pub testbed: PathBuf,
    /// Where the laboratory is while it is there; it is in memory.
    pub directory: PathBuf,
    /// Where the report goes.
    pub report: PathBuf,
    /// The command line, for the report.
    pub command: String,
    /// Of the paper's bytes.
    pub scale: f64,
    /// Bytes a second of all targets of one end together.
    pub rate: u64,
    /// What slows targets.
    pub throttle: Throttle,
    /// I/O threads of each end, whatever the policy.
    pub threads: u16,
    /// Which ends.
    pub ends: Vec<End>,
    /// How many targets are slow.
    pub slow: Vec<usize>,
    /// They stay the same.
    pub constant: bool,
    /// They move.
    pub moving: bool,
    /// How often they move.
    pub step: Duration,
    /// Who moves the files; those that are not installed are left out.
    pub movers: Vec<Mover>,
    /// Runs of each kind.
    pub runs: usize,
    /// How fast the devices are.
    pub devices: bool,
    /// Transfers.
    pub transfers: bool,
    /// The neighbour.
    pub probe: bool,
    /// How long a neighbour is watched.
    pub probe_seconds: f64,
    /// Of the order of runs and of what is slow.
    pub seed: u64,
}

impl Settings {
    /// Of one target.
    pub fn rates(&self) -> Rates {
        let healthy = self.rate / TARGETS as u64;
        Rates { healthy, slow: healthy / SLOWED }
    }

    /// A multiple of the targets, so that all can have the same.
    pub fn files(&self) -> u64 {
        let of_target = TARGET_BYTES as f64 * self.scale / self.system.file_bytes() as f64;
        (of_target.round() as u64).max(1) * TARGETS as u64
    }

    /// Bytes of a run.
    pub fn bytes(&self) -> u64 {
        self.files() * self.system.file_bytes()
    }
}

/// Runs all of it and writes the report; each part is written when it is done, so that nothing is lost. What earlier
/// evaluations left in the directory of the report is part of the new one.
pub fn run(settings: &Settings) -> io::Result<()> {
    process::adopt_orphans()?;
    let mut files = csv::Files::open(settings)?;
    if settings.devices || settings.transfers || settings.probe {
        say(&format!(
            "{} files of {} MiB on {TARGETS} targets ({})",
            settings.files(),
            settings.system.file_bytes() >> 20,
            settings.system.name()
        ));
        for mover in settings.movers.iter().filter(|mover| !mover.is_installed()) {
            say(&format!("{mover} is not installed: it is left out"));
        }
        let laboratory = Laboratory::new(settings)?;
        if settings.devices {
            files.write_devices(&devices::run(settings, &laboratory)?)?;
            report::write(settings, &files)?;
        }
        if settings.transfers {
            transfers(settings, &laboratory, &mut files)?;
        }
        if settings.probe {
            probe::run(settings, &laboratory, |all| files.write_probes(all))?;
        }
    }
    report::write(settings, &files)
}

/// All kinds of runs in each round, in an order drawn by lot; what is done is written after each.
fn transfers(settings: &Settings, laboratory: &Laboratory, files: &mut csv::Files) -> io::Result<()> {
    let mut cases = cases(settings);
    let mut lottery = Lottery::new(settings.seed);
    let mut outcomes = Vec::new();
    // The first run touches memory, and everything else, for the first time: it does not count.
    if let Some(first) = cases.first() {
        say("one run that does not count");
        let first = Case { slow: 0, moving: false, ..*first };
        if measured(settings, laboratory, first, 0)?.is_none() {
            cases.retain(|case| case.mover != first.mover);
        }
    }
    for round in 0..settings.runs {
        let mut order = cases.clone();
        lottery.shuffle(&mut order);
        for (done, case) in order.iter().enumerate() {
            if !cases.contains(case) {
                continue;
            }
            let Some((outcome, picture)) = measured(settings, laboratory, *case, round)? else {
                // What is not always right is no measure.
                cases.retain(|other| other.mover != case.mover);
                outcomes.retain(|(other, _): &(Case, _)| other.mover != case.mover);
                files.write_transfers(&outcomes)?;
                continue;
            };
            say(&format!(
                "round {} of {}, {} of {}: {case}: {:.1} s, {:.3} of the bound, processors {:.0} % busy",
                round + 1,
                settings.runs,
                done + 1,
                order.len(),
                outcome.seconds,
                outcome.share_of_bound(),
                outcome.busy * 100.0
            ));
            if let Some(picture) = picture.filter(|_| round == 0 && case.is_drawn()) {
                files.write_order(*case, &picture)?;
            }
            outcomes.push((*case, outcome));
            files.write_transfers(&outcomes)?;
        }
        report::write(settings, files)?;
    }
    Ok(())
}

/// One run, of another mover than haul once more if it fails. None where that fails twice: it is left out.
fn measured(
    settings: &Settings,
    laboratory: &Laboratory,
    case: Case,
    round: usize,
) -> io::Result<Option<(Outcome, Option<Picture>)>> {
    let tried = || {
        let tried = transfer::measure(settings, laboratory, case, round);
        process::leave_the_rest_to_the_end();
        tried
    };
    let again = |error: io::Error| {
        say(&format!("{error}; once more"));
        tried()
    };
    if case.mover.policy().is_some() {
        // Of haul each failure counts.
        return tried().map(Some);
    }
    match tried().or_else(again) {
        Err(error) => {
            say(&format!("{error}; {} is left out", case.mover));
            Ok(None)
        }
        tried => tried.map(Some),
    }
}

fn cases(settings: &Settings) -> Vec<Case> {
    let mut cases = Vec::new();
    let movers: Vec<Mover> = settings.movers.iter().copied().filter(|mover| mover.is_installed()).collect();
    for &end in &settings.ends {
        for &slow in &settings.slow {
            let motions = [(false, settings.constant || slow == 0), (true, settings.moving && slow > 0)];
            for (moving, _) in motions.into_iter().filter(|(_, wanted)| *wanted) {
                cases.extend(movers.iter().map(|mover| Case { end, slow, moving, mover: *mover }));
            }
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn settings() -> Settings {
        Settings {
            haul: "haul".into(),
            system: System::Stripefs,
            testbed: "testbed".into(),
            stripefs: "stripefs".into(),
            directory: "/nowhere".into(),
            report: "/nowhere".into(),
            command: "haul bench congestion".into(),
            scale: 0.25,
            rate: 400_000_000,
            throttle: Throttle::Kernel,
            threads: 32,
            ends: vec![End::Source, End::Sink],
            slow: vec![0, 1],
            constant: true,
            moving: true,
            step: Duration::from_secs(3),
            movers: vec![Mover::FileOrder, Mover::Adaptive],
            runs: 3,
            devices: true,
            transfers: true,
            probe: true,
            probe_seconds: 10.0,
            seed: 1,
        }
    }

    #[test]
    fn every_scale_has_the_same_bytes_on_every_target() {
        for system in [System::Stripefs, System::Gluster, System::Ceph] {
            for scale in [0.01, 0.125, 0.3, 1.0] {
                let settings = Settings { scale, system, ..settings() };
                assert_eq!(settings.files() % TARGETS as u64, 0);
            }
            assert_eq!(Settings { scale: 1.0, system, ..settings() }.bytes(), 5_905_580_032);
        }
        assert_eq!(settings().files(), 22);
    }

    #[test]
    fn without_slow_targets_nothing_moves() {
        let cases = cases(&settings());
        assert_eq!(cases.len(), 2 * 2 * 3);
        assert!(cases.iter().all(|case| case.slow > 0 || !case.moving));
    }
}
