//! `haul bench congestion`: settings from the command line for the evaluation of the scheduler.

use std::time::Duration;

use haul_bench::congestion::mover::Mover;
use haul_bench::congestion::{End, Settings, Throttle, leave_nothing, run as evaluate};
use haul_bench::evaluation::own_mounts;
use haul_bench::process;
use haul_model::Code;
use haul_mover::Error;

use super::{absolute, command_line, this_program};
use crate::options::{BenchCongestion, BenchCongestionPart, BenchEnd, BenchMotion, BenchThrottle};

/// A neighbour is not watched longer, unless asked for.
const PROBE_SECONDS_MAX: f64 = 30.0;
/// Of the time that all files take without congestion: then most of them are still under way.
const PROBE_SHARE: f64 = 0.7;

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
        if !settings.stripefs.is_file() {
            return Err(Error::new(Code::Usage, format!("there is no {}", settings.stripefs.display()))
                .hint(
                    "build it (cargo build --release -p haul-stripefs), or say where it is with --stripefs",
                ));
        }
        // Before any other thread: they have the namespace of the one that starts them.
        own_mounts().map_err(|error| Error::os(Code::Internal, "a mount namespace", &error))?;
    }
    process::end_all_on_signal(leave_nothing);
    evaluate(&settings).map_err(|error| {
        process::end_descendants(process::own_pid());
        leave_nothing();
        Error::os(Code::Internal, "the evaluation", &error)
    })?;
    Ok(0)
}

fn settings(arguments: &BenchCongestion) -> Result<Settings, Error> {
    let haul = this_program()?;
    let stripefs = arguments.stripefs.clone().unwrap_or_else(|| haul.with_file_name("stripefs"));
    let has = |part| arguments.part.contains(&part);
    let mut slow: Vec<usize> = arguments.slow.iter().copied().map(usize::from).collect();
    slow.sort_unstable();
    slow.dedup();
    Ok(Settings {
        haul,
        stripefs,
        directory: arguments.dir.clone().unwrap_or_else(std::env::temp_dir),
        report: absolute(&arguments.report)?,
        command: command_line(),
        scale: arguments.scale,
        rate: arguments.rate,
        throttle: match arguments.throttle {
            BenchThrottle::Kernel => Throttle::Kernel,
            BenchThrottle::Emulated => Throttle::Emulated,
        },
        threads: arguments.threads,
        ends: arguments
            .end
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

fn mover(name: &str) -> Result<Mover, Error> {
    Mover::from_name(name).ok_or_else(|| {
        Error::new(Code::Usage, format!("{name:?} moves nothing"))
            .hint("file-order, layout, lads, adaptive, cp, rsync or bbcp")
    })
}
