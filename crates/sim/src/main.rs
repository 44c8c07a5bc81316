//! `haul-sim`: runs histories of jobs, or of the scheduler, until one of them breaks a promise, and plays one again.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use haul_sim::bound;
use haul_sim::many::{Batch, run_many, run_many_schedulers};
use haul_sim::report::Report;
use haul_sim::scheduler::{SchedulerOptions, SchedulerReport, run_scheduler};
use haul_sim::{Bug, Options, SchedulerBug, run};

/// A run of this size that does not reach every row of the state tables, or everything that is counted, has failed.
const ALL_ROWS_HISTORIES: u64 = 10_000;
/// Lines of the trace that are shown of a history that failed.
const LINES_SHOWN: usize = 40;

/// Simulates jobs with kills, cuts and bad disks, and checks what haul promises.
#[derive(Parser)]
struct Arguments {
    /// Histories of the scheduler alone
    #[arg(long)]
    scheduler: bool,
    /// Print the shortest time in which any scheduler can move these loads: a line has a name, bytes, and
    /// SECONDS:BYTES_PER_SECOND for each change of rate
    #[arg(long, value_name = "FILE")]
    scheduler_bound: Option<PathBuf>,
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
    let outcome = match &arguments.scheduler_bound {
        Some(file) => print_bound(file),
        None if arguments.scheduler => simulate_scheduler(&arguments),
        None => simulate_jobs(&arguments),
    };
    outcome.unwrap_or_else(|message| {
        eprintln!("{message}");
        ExitCode::from(2)
    })
}

fn print_bound(file: &Path) -> Result<ExitCode, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let loads = bound::parse(&text).map_err(|line| format!("{}: {line}", file.display()))?;
    let seconds = |nanos: Option<u64>| match nanos {
        Some(nanos) => format!("{}.{:09} s", nanos / 1_000_000_000, nanos % 1_000_000_000),
        None => "never".into(),
    };
    for load in &loads {
        println!("{:24} {:>16} bytes {:>20}", load.name, load.bytes, seconds(load.ends_nanos()));
    }
    println!("{:24} {:>22} {:>20}", "bound", "", seconds(bound::bound_nanos(&loads)));
    Ok(ExitCode::SUCCESS)
}

fn simulate_jobs(arguments: &Arguments) -> Result<ExitCode, String> {
    let bug = find_bug(arguments, Bug::ALL)?;
    let options = Options { bug, ..Options::default() };
    let play = |seed| {
        let (report, trace) = run(seed, &Options { trace: true, ..options });
        (report.violation, trace)
    };
    if let Some(seed) = arguments.replay {
        return Ok(replay(seed, play));
    }
    let batch = batch(arguments);
    let begun = Instant::now();
    let (report, violations) = run_many(&batch, &options);
    print_rate(report.histories, begun, &batch);
    print_jobs(&report);
    let missed = report.rows_missed();
    println!("{} rows of the state tables were not reached", missed.len());
    let too_few_rows = !missed.is_empty() && report.histories >= ALL_ROWS_HISTORIES && bug.is_none();
    Ok(conclude(&violations, too_few_rows, play))
}

fn print_jobs(report: &Report) {
    let share = |part: u64| 100.0 * part as f64 / report.histories.max(1) as f64;
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
    let [put, back] = report.spilled;
    println!("{put} objects into spills, {back} back");
    for (row, count) in report.rows() {
        println!("{count:>12}  {row}");
    }
}

fn simulate_scheduler(arguments: &Arguments) -> Result<ExitCode, String> {
    let bug = find_bug(arguments, SchedulerBug::ALL)?;
    let options = SchedulerOptions { bug, ..SchedulerOptions::default() };
    let play = |seed| {
        let (report, trace) = run_scheduler(seed, &SchedulerOptions { trace: true, ..options });
        (report.violation, trace)
    };
    if let Some(seed) = arguments.replay {
        return Ok(replay(seed, play));
    }
    let batch = batch(arguments);
    let begun = Instant::now();
    let (report, violations): (SchedulerReport, _) = run_many_schedulers(&batch, &options);
    print_rate(report.histories, begun, &batch);
    println!("{} events", report.events);
    report.rows().for_each(|(row, count)| println!("{count:>12}  {row}"));
    let missed = report.rows().any(|(_, count)| count == 0);
    Ok(conclude(&violations, missed && report.histories >= ALL_ROWS_HISTORIES && bug.is_none(), play))
}

fn batch(arguments: &Arguments) -> Batch {
    // A panic in a history is a violation like others; its text is in the report.
    std::panic::set_hook(Box::new(|_| {}));
    let threads = arguments.threads.or_else(|| Some(std::thread::available_parallelism().ok()?.get()));
    Batch {
        seed: arguments.seed,
        histories: arguments.histories.unwrap_or(if arguments.seconds.is_some() { u64::MAX } else { 10_000 }),
        time: arguments.seconds.map(Duration::from_secs),
        threads: threads.unwrap_or(1),
        violations_max: arguments.violations.max(1),
    }
}

fn print_rate(histories: u64, begun: Instant, batch: &Batch) {
    let seconds = begun.elapsed().as_secs_f64();
    let rate = histories as f64 / seconds;
    println!("{histories} histories in {seconds:.1} s on {} threads: {rate:.0} a second", batch.threads);
}

/// A history: what did not hold, and its trace.
type Played = (Option<String>, Vec<String>);

fn replay(seed: u64, play: impl Fn(u64) -> Played) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let (violation, trace) = play(seed);
    trace.iter().for_each(|line| println!("{line}"));
    match violation {
        Some(violation) => {
            println!("seed {seed}: {violation}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

fn conclude(violations: &[(u64, String)], failed: bool, play: impl Fn(u64) -> Played) -> ExitCode {
    println!("{} violations", violations.len());
    for (seed, violation) in violations {
        println!("seed {seed}: {violation}");
    }
    let Some((seed, _)) = violations.first() else {
        return if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    };
    let (_, trace) = play(*seed);
    println!("\nthe end of history {seed} (all of it: --replay {seed}):");
    trace.iter().skip(trace.len().saturating_sub(LINES_SHOWN)).for_each(|line| println!("{line}"));
    ExitCode::FAILURE
}

fn find_bug<B: Copy + Debug>(arguments: &Arguments, all: &[B]) -> Result<Option<B>, String> {
    let Some(name) = arguments.bug.as_deref() else { return Ok(None) };
    if !cfg!(feature = "planted-bugs") {
        return Err("--bug needs a build with the feature planted-bugs".into());
    }
    let found = all.iter().find(|bug| format!("{bug:?}") == name);
    let known = || all.iter().map(|bug| format!("{bug:?}")).collect::<Vec<_>>().join(", ");
    found.copied().map(Some).ok_or_else(|| format!("no bug {name}; there are {}", known()))
}
