//! The evaluation for people: lads.md, lads-gluster.md or lads-ceph.md, with a table and a picture for each question.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use super::about;
use super::csv::{Files, Made};
use super::devices::{Measured, State};
use super::mover::Mover;
use super::pictures;
use super::probe::{Beside, Latency, PIECE_BYTES};
use super::transfer::{Case, Outcome};
use super::{End, Settings, System, TARGETS};
use crate::evaluation::page::{Page, show};
use crate::evaluation::say;
use crate::machine;
use crate::statistics::{Estimate, median};

/// Runs by their kind.
pub type Runs = BTreeMap<Case, Vec<Outcome>>;

/// Writes it from what is there.
pub fn write(settings: &Settings, files: &Files) -> io::Result<()> {
    let mut report = Report { page: Page::new(&settings.report), system: settings.system };
    let (devices, transfers, probes) = (files.devices()?, files.transfers()?, files.probes()?);
    report.head(
        settings,
        [
            ("devices", devices.as_ref().map(|(made, _)| made)),
            ("transfers", transfers.as_ref().map(|(made, _)| made)),
            ("neighbour", probes.as_ref().map(|(made, _)| made)),
        ],
    );
    let runs: Runs =
        transfers.iter().flat_map(|(_, rows)| rows).fold(Runs::new(), |mut runs, (case, outcome)| {
            runs.entry(*case).or_default().push(*outcome);
            runs
        });
    let latencies: &[Latency] = probes.as_ref().map_or(&[], |(_, rows)| rows);
    report.bars(&runs, latencies);
    if let Some((_, measured)) = &devices {
        report.devices(settings, measured);
    }
    if let Some((made, _)) = &transfers {
        report.undisturbed(&runs);
        report.moving(made, &runs)?;
        report.constant(&runs)?;
        if settings.system.has_trace() {
            report.waiting(&runs)?;
        }
        report.order(files)?;
        report.processors(&runs);
    }
    if !latencies.is_empty() {
        report.neighbour(latencies)?;
    }
    let path = settings.report.join(format!("{}.md", settings.system.prefix()));
    fs::write(&path, report.page.text)?;
    say(&format!("written: {}", path.display()));
    Ok(())
}

/// A figure of each run of a kind.
pub fn estimate(runs: &Runs, case: Case, of: impl Fn(&Outcome) -> f64) -> Option<Estimate> {
    Estimate::of(&runs.get(&case)?.iter().map(of).collect::<Vec<_>>())
}

/// How many times longer one mover takes than another, round by round: they met the same weather.
pub fn times_longer(runs: &Runs, case: Case, than: Mover) -> Option<Estimate> {
    let others = runs.get(&Case { mover: than, ..case })?;
    let ratio = |outcome: &Outcome| {
        let other = others.iter().find(|other| other.round == outcome.round)?;
        Some(outcome.seconds / other.seconds)
    };
    Estimate::of(&runs.get(&case)?.iter().filter_map(ratio).collect::<Vec<_>>())
}

/// Which movers there are, in their order.
pub fn movers(runs: &Runs) -> Vec<Mover> {
    Mover::ALL.into_iter().filter(|mover| runs.keys().any(|case| case.mover == *mover)).collect()
}

/// Which ends and numbers of slow targets there are.
pub fn places(runs: &Runs, moving: bool) -> Vec<(End, usize)> {
    let of = |case: &&Case| case.moving == moving && case.slow > 0;
    let mut places: Vec<(End, usize)> = runs.keys().filter(of).map(|case| (case.end, case.slow)).collect();
    places.dedup();
    places
}

/// The middle of what a neighbour found in all rounds: median and p99, in milliseconds.
pub fn latency(all: &[Latency], end: End, beside: Beside, slow: bool) -> Option<(f64, f64)> {
    let middle =
        |figure: fn(&Latency) -> f64| median(&found(all, end, beside, slow).map(figure).collect::<Vec<_>>());
    Some((middle(|latency| latency.median)?, middle(|latency| latency.p99)?))
}

fn found(all: &[Latency], end: End, beside: Beside, slow: bool) -> impl Iterator<Item = &Latency> {
    all.iter().filter(move |latency| latency.end == end && latency.beside == beside && latency.slow == slow)
}

/// How many requests to a slow target a neighbour had answered, over all rounds.
fn requests(all: &[Latency], end: End, beside: Beside) -> Option<Estimate> {
    Estimate::of(&found(all, end, beside, true).map(|latency| latency.count as f64).collect::<Vec<_>>())
}

/// How many times as long a neighbour waits at a slow target, on average, as beside one `cp`, round by round. He always waits for one
/// request, so that is told by how many were answered in the same time. (A median of waits jumps between those within a slice of
/// the throttle and those to the next one.)
pub fn waits(all: &[Latency], end: End, beside: Beside) -> Option<Estimate> {
    let ratios = found(all, end, beside, true).filter_map(|mine| {
        let copy = found(all, end, Beside::OneCopy, true).find(|copy| copy.round == mine.round)?;
        Some(copy.count as f64 / mine.count as f64)
    });
    Estimate::of(&ratios.collect::<Vec<_>>())
}

/// And how many times as long it may.
pub const WAITS_BAR: f64 = 1.25;

/// Fewer have no 99th of a hundred.
const P99_COUNT_MIN: f64 = 100.0;

/// A page, and what is written on it.
struct Report<'a> {
    page: Page<'a>,
    system: System,
}

/// Where rows were made at different times, perhaps on different machines.
const SEVERAL_COMMANDS: &str = "Where a table's rows were made by several of these commands, rounds are paired by their number alone: \
                                what one kind takes longer than another is an indication then, and its interval says less than it seems to.";

impl Report<'_> {
    fn head(&mut self, settings: &Settings, parts: [(&str, Option<&Made>); 3]) {
        self.page.line(about::title(self.system));
        self.page.line(about::laboratory(self.system));
        self.page.line(
            "\n- `file-order`: haul in the order of files, with the same number of threads: what tools do that know no layout.\n\
             - `layout`: target by target, the one with the fewest requests under way next.\n\
             - `lads`: slow targets are skipped. `adaptive`: depth follows latency; one small request at a time for a slow one.\n\
             - `cp`, `rsync`, `bbcp`, `gridftp`: over the same mounts; those that were measured. GridFTP has as many files under way as haul has threads.\n",
        );
        self.page.line(
            "The *bound* is the work-conserving one (`haul-sim --scheduler-bound`): every target works as fast as it then is for \
             as long as it has something to do. It is computed for each run from the rates that were set, when they were.\n",
        );
        self.page.line(
            "Written by `haul bench congestion` from the CSV files beside this page, which were made by:\n",
        );
        for (name, made) in parts {
            if let Some(made) = made {
                let number = |word| made.says::<f64>(word).unwrap_or(f64::NAN);
                self.page.line(format!(
                    "- {name}: `{}` ({:.2} GB a run, {:.0} MB/s at an end, {} threads, others every {} s)",
                    made.lines.join("`, `"),
                    number("bytes") / 1e9,
                    number("rate") / 1e6,
                    number("threads"),
                    number("step_seconds")
                ));
            }
        }
        self.page.line("");
        self.page.text.push_str(&machine::table(&settings.haul));
        self.page.line("\nValues are means with 99 % confidence intervals (Student's t); one run has none.");
        if parts.iter().any(|(_, made)| made.is_some_and(|made| made.lines.len() > 1)) {
            self.page.line(SEVERAL_COMMANDS);
        }
    }

    /// What was asked for, and what came out.
    fn bars(&mut self, runs: &Runs, latencies: &[Latency]) {
        self.page.line("\n## In short\n");
        self.page.heading(&["what", "at", "bar", "measured"].map(String::from));
        let adaptive = |end, slow, moving| Case { end, slow, moving, mover: Mover::Adaptive };
        for end in End::ALL {
            let place = end.name();
            if let Some(longer) = times_longer(runs, adaptive(end, 0, false), Mover::FileOrder) {
                let percent = Estimate { mean: (longer.mean - 1.0) * 100.0, ..longer.times(100.0) };
                self.page.row([
                    "no congestion: longer than file order",
                    place,
                    "at most 3 %",
                    &format!("{} %", show(Some(percent), 1)),
                ]);
            }
            // Where the file system leaves a choice.
            let above = estimate(runs, adaptive(end, 0, false), |outcome| outcome.imbalance * 100.0);
            if let Some(above) = above.filter(|_| self.system == System::Stripefs) {
                self.page.row([
                    "no congestion: fullest target above the mean",
                    place,
                    "at most 5 %",
                    &format!("{} %", show(Some(above), 1)),
                ]);
            }
            if let Some(share) = estimate(runs, adaptive(end, 1, true), Outcome::share_of_bound) {
                self.page.row([
                    "1 slow, moving: share of the bound",
                    place,
                    "at least 0.9",
                    &show(Some(share), 3),
                ]);
            }
            let file_order = Case { mover: Mover::FileOrder, ..adaptive(end, 1, true) };
            if let Some(times) = times_longer(runs, file_order, Mover::Adaptive) {
                self.page.row([
                    "1 slow, moving: times as fast as file order",
                    place,
                    "at least 1.5",
                    &show(Some(times), 2),
                ]);
            }
            if let Some(times) = waits(latencies, end, Beside::Transfer(Mover::Adaptive)) {
                self.page.row([
                    "neighbour on a slow target: how long it waits, against one cp",
                    place,
                    &format!("at most {WAITS_BAR}"),
                    &show(Some(times), 2),
                ]);
            }
        }
    }

    fn devices(&mut self, settings: &Settings, all: &[Measured]) {
        let rates = settings.rates();
        self.page.line("\n## How fast the targets are\n");
        self.page.line(format!(
            "Two requests of 1 MiB at a time on each target, through the emulated file system. Set are {:.2} MB/s for a healthy \
             target and {:.2} MB/s for a slow one. Without limits the processors decide: that far the rates are from being \
             bounded by them.\n",
            rates.healthy as f64 / 1e6,
            rates.slow as f64 / 1e6
        ));
        self.page.heading(
            &[
                "end",
                "state",
                "healthy targets, MB/s",
                "of what is set",
                "slow one, MB/s",
                "of what is set",
                "processors busy",
            ]
            .map(String::from),
        );
        for Measured { end, state, healthy_rate, slow_rate, busy } in all {
            let healthy = TARGETS - usize::from(slow_rate.is_some());
            let set = (rates.healthy * healthy as u64) as f64;
            let of_set =
                if *state == State::Unlimited { "-".into() } else { format!("{:.3}", healthy_rate / set) };
            let slow = |of: f64, digits: usize| {
                slow_rate.map_or("-".into(), |rate| format!("{:.digits$}", rate / of))
            };
            self.page.row([
                end.name().to_owned(),
                state.name().into(),
                format!("{:.1}", healthy_rate / 1e6),
                of_set,
                slow(1e6, 2),
                slow(rates.slow as f64, 3),
                format!("{:.0} %", busy * 100.0),
            ]);
        }
    }

    fn undisturbed(&mut self, runs: &Runs) {
        let cases: Vec<Case> = runs.keys().filter(|case| case.slow == 0).copied().collect();
        if cases.is_empty() {
            return;
        }
        self.page.line("\n## Without congestion\n");
        self.page.heading(
            &[
                "end",
                "mover",
                "time, s",
                "share of the bound",
                "longer than file order",
                "fullest target above the mean",
            ]
            .map(String::from),
        );
        for case in cases {
            let longer = times_longer(runs, case, Mover::FileOrder);
            let longer = longer.map(|longer| Estimate { mean: longer.mean - 1.0, ..longer }.times(100.0));
            self.page.row([
                case.end.name().to_owned(),
                case.mover.to_string(),
                show(estimate(runs, case, |outcome| outcome.seconds), 2),
                show(estimate(runs, case, Outcome::share_of_bound), 3),
                format!("{} %", show(longer, 1)),
                format!("{} %", show(estimate(runs, case, |outcome| outcome.imbalance * 100.0), 1)),
            ]);
        }
    }

    fn moving(&mut self, made: &Made, runs: &Runs) -> io::Result<()> {
        let places = places(runs, true);
        if places.is_empty() {
            return Ok(());
        }
        let seconds = made.says::<f64>("step_seconds").unwrap_or(f64::NAN);
        self.page.line(format!("\n## Slow targets that move: others every {seconds} s\n"));
        self.page.line("Share of the work-conserving bound:\n");
        self.table(runs, &places, true, |runs, case| show(estimate(runs, case, Outcome::share_of_bound), 3));
        self.page.picture(&pictures::share_of_bound(
            self.page.directory,
            self.system,
            runs,
            &places,
            seconds,
        )?);
        self.page.line("\nTime lost, in seconds more than the bound:\n");
        let lost = |outcome: &Outcome| outcome.seconds - outcome.bound_seconds;
        self.table(runs, &places, true, |runs, case| show(estimate(runs, case, lost), 1));
        self.page.line("\nHow many times as long as `adaptive` takes:\n");
        self.table(runs, &places, true, |runs, case| show(times_longer(runs, case, Mover::Adaptive), 2));
        Ok(())
    }

    fn constant(&mut self, runs: &Runs) -> io::Result<()> {
        let places = places(runs, false);
        if places.is_empty() {
            return Ok(());
        }
        self.page.line("\n## Slow targets that stay\n");
        self.page.line(
            "What is on a target that stays slow takes its time whatever a scheduler does; what matters is that the rest does not \
             wait for it. Share of the bound of everything that is *not* on a slow target (but for the last hundredth of bytes); with \
             slow targets at both ends that is not known, since what lies on a healthy one here may have to go to a slow one there:\n",
        );
        let at_one_end: Vec<_> = places.iter().copied().filter(|(end, _)| *end != End::Both).collect();
        self.table(runs, &at_one_end, false, |runs, case| {
            show(estimate(runs, case, |outcome| outcome.others_bound_seconds / outcome.others_seconds), 3)
        });
        self.page.picture(&pictures::others(self.page.directory, self.system, runs, &at_one_end)?);
        self.page.line("\nShare of the bound of all:\n");
        self.table(runs, &places, false, |runs, case| show(estimate(runs, case, Outcome::share_of_bound), 3));
        Ok(())
    }

    /// A row for each place, a column for each mover.
    fn table(
        &mut self,
        runs: &Runs,
        places: &[(End, usize)],
        moving: bool,
        cell: impl Fn(&Runs, Case) -> String,
    ) {
        let movers = movers(runs);
        let names = movers.iter().map(ToString::to_string);
        self.page
            .heading(&["end".to_owned(), "slow targets".into()].into_iter().chain(names).collect::<Vec<_>>());
        for &(end, slow) in places {
            let cells = movers.iter().map(|mover| cell(runs, Case { end, slow, moving, mover: *mover }));
            self.page
                .row([end.name().to_owned(), slow.to_string()].into_iter().chain(cells).collect::<Vec<_>>());
        }
    }

    fn waiting(&mut self, runs: &Runs) -> io::Result<()> {
        let moving = places(runs, true);
        let places: Vec<_> = if moving.is_empty() { places(runs, false) } else { moving.clone() };
        if places.is_empty() {
            return Ok(());
        }
        self.page.line("\n## Requests at slow targets\n");
        self.page.line(
            "Requests of the mover that are under way at a target while it is slow, on average, and behind them in parentheses at a \
             healthy one. Each thread that waits at a slow target is missing elsewhere.\n",
        );
        self.table(runs, &places, !moving.is_empty(), |runs, case| {
            let of_slow = estimate(runs, case, |outcome| outcome.at_slow.unwrap_or(0.0));
            let of_healthy = estimate(runs, case, |outcome| outcome.at_healthy.unwrap_or(0.0));
            format!("{} ({})", show(of_slow, 2), show(of_healthy, 2))
        });
        self.page.picture(&pictures::requests_at_slow(
            self.page.directory,
            runs,
            &places,
            !moving.is_empty(),
        )?);
        Ok(())
    }

    fn order(&mut self, files: &Files) -> io::Result<()> {
        let mut first = true;
        for mover in Mover::ALL {
            let Some(picture) = files.order(mover)? else { continue };
            if std::mem::take(&mut first) {
                self.page.line("\n## The order of objects\n");
                self.page.line("Reading from the source while one target is slow, another one every few seconds; the first round.");
            }
            self.page.picture(&pictures::order(self.page.directory, mover, &picture)?);
        }
        Ok(())
    }

    fn processors(&mut self, runs: &Runs) {
        self.page.line("\n## Processors\n");
        self.page.line("They must not be the bound. Shares of all processors, the most of any run:\n");
        self.page.heading(
            &["end", "mover", "busy", "taken by the host", "mover, CPU-s", "file systems, CPU-s"]
                .map(String::from),
        );
        let mut groups: BTreeMap<(End, Mover), Vec<&Outcome>> = BTreeMap::new();
        runs.iter().for_each(|(case, all)| groups.entry((case.end, case.mover)).or_default().extend(all));
        for ((end, mover), all) in groups {
            let most = |of: fn(&Outcome) -> f64| all.iter().map(|outcome| of(outcome)).fold(0.0, f64::max);
            self.page.row([
                end.name().to_owned(),
                mover.to_string(),
                format!("{:.0} %", most(|outcome| outcome.busy) * 100.0),
                format!("{:.0} %", most(|outcome| outcome.stolen) * 100.0),
                format!("{:.1}", most(|outcome| outcome.mover_processor_seconds)),
                format!("{:.1}", most(|outcome| outcome.file_system_processor_seconds)),
            ]);
        }
    }

    fn neighbour(&mut self, all: &[Latency]) -> io::Result<()> {
        self.page.line("\n## The neighbour\n");
        self.page.line(format!(
            "Somebody else asks for {} KiB from a slow target, one request after the other, and from a healthy one; at the source \
             he reads, at the sink he writes (the kernel's throttle counts the two apart). Beside him runs nothing, one `cp` of a \
             file on the slow target, or a transfer that has run for two seconds. How many requests were answered (in parentheses how \
             long one took on average, against one `cp`, round by round), and milliseconds, the middle of all rounds; no 99th percentile \
             of fewer than a hundred requests.",
            PIECE_BYTES >> 10
        ));
        for end in [End::Source, End::Sink] {
            let mut beside: Vec<Beside> =
                all.iter().filter(|found| found.end == end).map(|found| found.beside).collect();
            beside.sort_unstable();
            beside.dedup();
            if beside.is_empty() {
                continue;
            }
            self.page.line(format!("\nAt the {end}:\n"));
            self.page.heading(
                &["beside", "slow: requests", "slow: median", "slow: p99", "healthy: median", "healthy: p99"]
                    .map(String::from),
            );
            for &beside in &beside {
                let (Some(slow), Some(healthy), Some(count)) = (
                    latency(all, end, beside, true),
                    latency(all, end, beside, false),
                    requests(all, end, beside),
                ) else {
                    continue;
                };
                let times = waits(all, end, beside)
                    .map_or(String::new(), |times| format!(" ({})", show(Some(times), 2)));
                self.page.row([
                    beside.name().to_owned(),
                    format!("{:.0}{times}", count.mean),
                    format!("{:.1}", slow.0),
                    if count.mean < P99_COUNT_MIN { "-".into() } else { format!("{:.1}", slow.1) },
                    format!("{:.1}", healthy.0),
                    format!("{:.1}", healthy.1),
                ]);
            }
            self.page.picture(&pictures::neighbour(self.page.directory, all, end, &beside)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(round: usize, seconds: f64) -> Outcome {
        Outcome {
            round,
            seconds,
            bound_seconds: 10.0,
            others_seconds: 1.0,
            others_bound_seconds: 1.0,
            at_slow: None,
            at_healthy: None,
            share_slow: None,
            imbalance: 0.0,
            busy: 0.0,
            stolen: 0.0,
            mover_processor_seconds: 0.0,
            file_system_processor_seconds: 0.0,
        }
    }

    #[test]
    fn movers_are_compared_within_their_rounds() {
        let case = |mover| Case { end: End::Source, slow: 1, moving: true, mover };
        let mut runs = Runs::new();
        runs.insert(case(Mover::FileOrder), vec![outcome(1, 40.0), outcome(0, 30.0), outcome(2, 99.0)]);
        runs.insert(case(Mover::Adaptive), vec![outcome(0, 15.0), outcome(1, 20.0)]);
        let times = times_longer(&runs, case(Mover::FileOrder), Mover::Adaptive).unwrap();
        assert_eq!((times.mean, times.count), (2.0, 2));
        assert!(times_longer(&runs, case(Mover::Lads), Mover::Adaptive).is_none());
        assert_eq!(places(&runs, true), [(End::Source, 1)]);
        assert!(places(&runs, false).is_empty());
        assert_eq!(movers(&runs), [Mover::FileOrder, Mover::Adaptive]);
    }
}
