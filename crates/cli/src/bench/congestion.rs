//! `haul bench congestion`: settings from the command line for the evaluation of the scheduler.

use std::time::Duration;

use haul_bench::congestion::mover::Mover;
use haul_bench::congestion::{End, Settings, System, Throttle, leave_nothing, run as evaluate};
use haul_bench::evaluation::{own_mounts, own_network};
use haul_bench::process;
use haul_model::Code;
use haul_mover::Error;

use super::{absolute, command_line, conclude, this_program};
use crate::options::{
    BenchCongestion, BenchCongestionPart, BenchEnd, BenchFileSystem, BenchMotion, BenchThrottle,
};

/// A neighbour is not watched longer, unless asked for.
const PROBE_SECONDS_MAX: f64 = 30.0;
/// Of the time that all files take without congestion: then most of them are still under way.
const PROBE_SHARE: f64 = 0.7;
/// Bytes a second of all targets of an end: what the processors of a small machine serve with room to spare.
const STRIPEFS_RATE: u64 = 400_000_000;
/// The same through bricks and client of GlusterFS: with haul they take some 16 s of processor time for a gigabyte that is written.
const GLUSTER_RATE: u64 = 60_000_000;
/// And through OSDs and client of Ceph: some 18 s of processor time for a gigabyte that is written.
const CEPH_RATE: u64 = 40_000_000;

/// `haul bench congestion`
pub fn run(arguments: &BenchCongestion) -> Result<u8, Error> {
    let mut settings = settings(arguments)?;
    let typical_seconds = settings.bytes() as f64 / settings.rate as f64;
    settings.probe_seconds =
        arguments.probe_seconds.unwrap_or((typical_seconds * PROBE_SHARE).min(PROBE_SECONDS_MAX)).max(1.0);
    if settings.devices || settings.transfers || settings.probe {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::new(Code::Usage, "devices are mounted and slowed: that needs root"));
        }
        let (program, name) = match settings.system {
            System::Stripefs => (&settings.stripefs, "stripefs"),
            System::Gluster | System::Ceph => (&settings.testbed, "testbed"),
        };
        if !program.is_file() {
            return Err(Error::new(Code::Usage, format!("there is no {}", program.display())).hint(format!(
                "build it (cargo build --release -p haul-{name}), or say where it is with --{name}"
            )));
        }
        // Before any other thread: they have the namespace of the one that starts them.
        own_mounts().map_err(|error| Error::os(Code::SystemRefused, "a mount namespace", &error))?;
        if settings.movers.iter().any(|mover| mover.daemon().is_some()) {
            own_network().map_err(|error| Error::os(Code::SystemRefused, "a network namespace", &error))?;
        }
    }
    process::end_all_on_signal(leave_nothing);
    conclude(evaluate(&settings), "the evaluation", leave_nothing)
}

fn settings(arguments: &BenchCongestion) -> Result<Settings, Error> {
    let haul = this_program()?;
    let system = match arguments.file_system {
        BenchFileSystem::Stripefs => System::Stripefs,
        BenchFileSystem::Gluster => System::Gluster,
        BenchFileSystem::Ceph => System::Ceph,
    };
    let (parts, ends) = what(arguments, system)?;
    let testbed = arguments.testbed.clone().unwrap_or_else(|| haul.with_file_name("testbed"));
    let stripefs = arguments.stripefs.clone().unwrap_or_else(|| haul.with_file_name("stripefs"));
    let has = |part| parts.contains(&part);
    let mut slow: Vec<usize> = arguments.slow.iter().copied().map(usize::from).collect();
    slow.sort_unstable();
    slow.dedup();
    Ok(Settings {
        haul,
        system,
        stripefs,
        testbed,
        directory: arguments.dir.clone().unwrap_or_else(std::env::temp_dir),
        report: absolute(&arguments.report)?,
        command: command_line(),
        scale: arguments.scale,
        rate: arguments.rate.unwrap_or(match system {
            System::Stripefs => STRIPEFS_RATE,
            System::Gluster => GLUSTER_RATE,
            System::Ceph => CEPH_RATE,
        }),
        throttle: match arguments.throttle {
            BenchThrottle::Kernel => Throttle::Kernel,
            BenchThrottle::Emulated => Throttle::Emulated,
        },
        threads: arguments.threads,
        ends: ends
            .iter()
            .map(|end| match end {
                BenchEnd::Source => End::Source,
                BenchEnd::Sink => End::Sink,
                BenchEnd::Both => End::Both,
            })
            .collect(),
        slow,
        constant: arguments.motion.contains(&BenchMotion::Constant),
        moving: arguments.motion.contains(&BenchMotion::Moving),
        step: Duration::from_secs_f64(arguments.step.clamp(0.1, 3600.0)),
        movers: arguments.mover.iter().map(|name| mover(name)).collect::<Result<_, _>>()?,
        runs: arguments.runs as usize,
        devices: has(BenchCongestionPart::Devices),
        transfers: has(BenchCongestionPart::Transfers),
        probe: has(BenchCongestionPart::Neighbour),
        probe_seconds: 0.0,
        seed: arguments.seed,
    })
}

/// Parts and ends as asked for, or all that a file system has; a user's mistake where it lacks one.
fn what(
    arguments: &BenchCongestion,
    system: System,
) -> Result<(Vec<BenchCongestionPart>, Vec<BenchEnd>), Error> {
    use BenchCongestionPart::{Devices, Neighbour, Report, Transfers};
    let (parts, ends): (&[_], &[_]) = match system {
        System::Stripefs => {
            (&[Devices, Transfers, Neighbour, Report], &[BenchEnd::Source, BenchEnd::Sink, BenchEnd::Both])
        }
        System::Gluster | System::Ceph => (&[Transfers, Report], &[BenchEnd::Source, BenchEnd::Sink]),
    };
    let lacks = |what: String| {
        let text = format!("there is no {what} with --file-system {}", system.name());
        Err(Error::new(Code::Usage, text).hint("parts transfers and report, ends source and sink"))
    };
    if let Some(part) = arguments.part.iter().find(|part| !parts.contains(part)) {
        return lacks(format!("part {part:?}").to_lowercase());
    }
    if let Some(end) = arguments.end.iter().find(|end| !ends.contains(end)) {
        return lacks(format!("end {end:?}").to_lowercase());
    }
    if system != System::Stripefs && arguments.throttle == BenchThrottle::Emulated {
        return lacks("emulated throttle".to_owned());
    }
    let parts = if arguments.part.is_empty() { parts } else { &arguments.part };
    let ends = if arguments.end.is_empty() { ends } else { &arguments.end };
    Ok((parts.to_vec(), ends.to_vec()))
}

fn mover(name: &str) -> Result<Mover, Error> {
    Mover::from_name(name).ok_or_else(|| {
        Error::new(Code::Usage, format!("{name:?} moves nothing"))
            .hint("file-order, layout, lads, adaptive, cp, rsync, bbcp or gridftp")
    })
}
