//! `haul bench faults`: from options to the evaluation.

use haul_bench::faults::transfer::Fault;
use haul_bench::faults::variant::Variant;
use haul_bench::faults::{Settings, leave_nothing, run as evaluate};
use haul_bench::process;
use haul_model::Code;
use haul_mover::Error;

use super::{command_line, conclude, this_program};
use crate::options::{BenchFault, BenchFaults, BenchPart, BenchWorkload, LogWriter};

/// `haul bench faults`
pub fn run(arguments: &BenchFaults) -> Result<u8, Error> {
    process::end_all_on_signal(leave_nothing);
    let haul = this_program()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let settings = Settings {
        haul,
        directory: arguments.dir.clone().unwrap_or_else(std::env::temp_dir),
        report: arguments.report.clone(),
        command: command_line(),
        scale: arguments.scale,
        recovery_scale: arguments.recovery_scale,
        workloads: arguments
            .workload
            .iter()
            .map(|workload| match workload {
                BenchWorkload::Big => "big",
                BenchWorkload::Small => "small",
            })
            .collect(),
        overhead: arguments.part.contains(&BenchPart::Overhead),
        space: arguments.part.contains(&BenchPart::Space),
        recovery: arguments.part.contains(&BenchPart::Recovery),
        only: arguments.log.iter().map(|name| log(name)).collect::<Result<_, _>>()?,
        runs: arguments.runs as usize,
        rounds_max: arguments.rounds_max as usize,
        precision_percent: arguments.precision,
        paced_seconds: arguments.seconds.max(1.0),
        parallel: arguments.parallel.map_or(24 * cores, usize::from).max(1),
        points: arguments.point.clone(),
        faults: arguments
            .fault
            .iter()
            .map(|fault| match fault {
                BenchFault::Source => Fault::Source,
                BenchFault::Sink => Fault::Sink,
                BenchFault::Network => Fault::Network,
            })
            .collect(),
        every_fault: arguments.every_fault,
        writer: arguments.log_writer.map(|writer| match writer {
            LogWriter::Comm => "comm",
            LogWriter::Thread => "thread",
        }),
        seed: arguments.seed,
    };
    conclude(evaluate(&settings), "the evaluation", leave_nothing)
}

fn log(name: &str) -> Result<Variant, Error> {
    Variant::from_name(name).filter(|variant| matches!(variant, Variant::Log(..))).ok_or_else(|| {
        Error::new(Code::Usage, format!("{name:?} is not a log"))
            .hint("a log is MECHANISM+METHOD, e.g. universal+bit64")
    })
}
