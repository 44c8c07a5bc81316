//! `haul-sim`: runs histories of jobs until one of them breaks a promise, and plays one again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use haul_sim::many::{Batch, run_many};
use haul_sim::{Bug, Options, run};

/// A run of this size that does not reach every row of the state tables has failed.
const ALL_ROWS_HISTORIES: u64 = 10_000;
/// Lines of the trace that are shown of a history that failed.
const LINES_SHOWN: usize = 40;

/// Simulates jobs with kills, cuts and bad disks, and checks what haul promises.
#[derive(Parser)]
struct Arguments {
    /// How many histories
    #[arg(long, value_name = "N")]
    histories: Option<u64>,
    /// How long to run
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// Seed of the first history; the others follow
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "T")]
    threads: Option<usize>,
    /// Play one history again and print all of it
    #[arg(long, value_name = "SEED")]
    replay: Option<u64>,
    /// Plant a bug; needs the feature `planted-bugs`
    #[arg(long, value_name = "NAME")]
    bug: Option<String>,
    /// Violations after which to stop
    #[arg(long, value_name = "N", default_value_t = 1)]
    violations: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let bug = match arguments.bug.as_deref().map(find_bug).transpose() {
        Ok(bug) => bug,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    // A panic in a history is a violation like others; its text is in the report.
    std::panic::set_hook(Box::new(|_| {}));
    let options = Options { bug, ..Options::default() };
    if let Some(seed) = arguments.replay {
        let (report, trace) = run(seed, &Options { trace: true, ..options });
        trace.iter().for_each(|line| println!("{line}"));
        return match report.violation {
            Some(violation) => {
                println!("seed {seed}: {violation}");
                ExitCode::FAILURE
            }
            None => ExitCode::SUCCESS,
        };
    }
    let threads = arguments.threads.or_else(|| Some(std::thread::available_parallelism().ok()?.get()));
    let batch = Batch {
        seed: arguments.seed,
        histories: arguments.histories.unwrap_or(if arguments.seconds.is_some() { u64::MAX } else { 10_000 }),
        time: arguments.seconds.map(Duration::from_secs),
        threads: threads.unwrap_or(1),
        violations_max: arguments.violations.max(1),
    };
    let begun = Instant::now();
    let (report, violations) = run_many(&batch, &options);
    let seconds = begun.elapsed().as_secs_f64();
    let share = |part: u64| 100.0 * part as f64 / report.histories.max(1) as f64;
    println!(
        "{} histories in {seconds:.1} s on {} threads: {:.0} a second",
        report.histories,
        batch.threads,
        report.histories as f64 / seconds
    );
    println!(
        "{} events (at least {} in a history), {} sessions, {} crashes in {:.0} % of the histories, {} cuts in {:.0} %",
        report.events,
        report.events_min,
        report.sessions,
        report.crashes,
        share(report.histories_with_crash),
        report.cuts,
        share(report.histories_with_cut)
    );
    for (row, count) in report.rows() {
        println!("{count:>12}  {row}");
    }
    let missed = report.rows_missed();
    println!("{} rows of the state tables were not reached", missed.len());
    println!("{} violations", violations.len());
    let too_few_rows = !missed.is_empty() && report.histories >= ALL_ROWS_HISTORIES && bug.is_none();
    for (seed, violation) in &violations {
        println!("seed {seed}: {violation}");
    }
    let Some((seed, _)) = violations.first() else {
        return if too_few_rows { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    };
    let (_, trace) = run(*seed, &Options { trace: true, ..options });
    println!("\nthe end of history {seed} (all of it: --replay {seed}):");
    trace.iter().skip(trace.len().saturating_sub(LINES_SHOWN)).for_each(|line| println!("{line}"));
    ExitCode::FAILURE
}

fn find_bug(name: &str) -> Result<Bug, String> {
    if !cfg!(feature = "planted-bugs") {
        return Err("--bug needs a build with the feature planted-bugs".into());
    }
    let known = || Bug::ALL.iter().map(|bug| format!("{bug:?}"));
    let found = Bug::ALL.iter().find(|bug| format!("{bug:?}") == name);
    found
        .copied()
        .ok_or_else(|| format!("no bug {name}; there are {}", known().collect::<Vec<_>>().join(", ")))
}
