//! The evaluation for people: ft-lads.md, with a table and a picture for each figure of the paper.

use std::fs;
use std::io;

use super::csv::Files;
use super::overhead::{Overhead, Sample};
use super::recovery::{Case, Recovery};
use super::transfer::Fault;
use super::variant::{MECHANISMS, METHODS, Variant, Workload};
use super::{Results, Settings, pictures};
use crate::evaluation::page::{Page, show};
use crate::evaluation::say;
use crate::machine;
use crate::statistics::Estimate;

const MIB: f64 = 1_048_576.0;

/// Writes it from what is there.
pub fn write(settings: &Settings, files: &Files) -> io::Result<()> {
    let mut page = Report(Page::new(&settings.report));
    page.head(settings, files);
    for name in ["big", "small"] {
        let results = files.read(name)?;
        if results.overhead.is_none() && results.space.is_none() && results.recovery.is_none() {
            continue;
        }
        page.workload(name, &results)?;
    }
    let path = settings.report.join("ft-lads.md");
    fs::write(&path, page.0.text)?;
    say(&format!("written: {}", path.display()));
    Ok(())
}

/// One quantity of a run, with its unit.
pub struct Quantity {
    /// In names of files.
    pub short: &'static str,
    /// On axes.
    pub label: &'static str,
    /// In the unit of the label.
    pub of: fn(&Sample) -> f64,
}

/// Figures 5 and 6.
pub const QUANTITIES: [Quantity; 3] = [
    Quantity { short: "time", label: "transfer time, s", of: |sample| sample.seconds },
    Quantity { short: "cpu", label: "processor time of both ends, s", of: |sample| sample.processor_seconds },
    Quantity {
        short: "memory",
        label: "resident memory of both ends, MiB",
        of: |sample| sample.resident_peak as f64 / MIB,
    },
];

/// A page, and what is written on it.
struct Report<'a>(Page<'a>);

impl Report<'_> {
    fn head(&mut self, settings: &Settings, files: &Files) {
        self.0.line("# What remembering every object costs, and what a fault costs then\n");
        self.0.line(
            "The evaluation of FT-LADS (section 6 of the paper), run with haul. Both ends are processes of this machine and \
             talk over encrypted loopback connections. The source computes its files; the sink checks every object and \
             keeps no contents, but names, object hashes, syncs and logs are real. haul runs with `--object-size 1MiB \
             --bundle-below 0`, so that every file has objects and log entries as in the paper; `default` is haul as it \
             comes: small files in bundles, objects of 4 MiB.\n",
        );
        self.0.line(
            "Written by `haul bench faults` from the CSV files beside this page, which were made by:\n",
        );
        for line in files.commands() {
            self.0.line(format!("- {line}"));
        }
        self.0.line("");
        self.0.text.push_str(&machine::table(&settings.haul));
        self.0.line("\nValues are means with 99 % confidence intervals (Student's t). Runs are interleaved in an order drawn by lot.");
    }

    fn workload(&mut self, name: &str, results: &Results) -> io::Result<()> {
        self.0.line(format!(
            "\n## {} files: the {name} workload",
            if name == "big" { "100" } else { "10,000" }
        ));
        if let Some((workload, overhead)) = &results.overhead {
            self.overhead(workload, overhead)?;
        }
        let measured = results.overhead.as_ref().map(|(workload, overhead)| {
            let room = |variant| {
                let samples = overhead.samples(variant).iter().map(|(_, sample)| sample);
                samples.fold((0, 0), |most: (u64, u64), sample| {
                    (most.0.max(sample.log_bytes), most.1.max(sample.log_files))
                })
            };
            let rooms = Variant::logs()
                .filter(|variant| !overhead.samples(*variant).is_empty())
                .map(|variant| (variant, room(variant)));
            (workload, rooms.collect::<Vec<_>>())
        });
        let at_scale = results.space.as_ref().map(|(workload, rooms)| {
            (workload, rooms.iter().map(|(variant, room)| (*variant, (room.bytes, room.files))).collect())
        });
        if let Some((workload, rooms)) = at_scale.or(measured) {
            self.space(workload, &rooms)?;
        }
        if let Some((workload, recovery)) = &results.recovery {
            self.paced(workload, recovery)?;
            self.recovery(workload, recovery)?;
        }
        Ok(())
    }

    fn paced(&mut self, workload: &Workload, recovery: &Recovery) -> io::Result<()> {
        self.0.line(format!(
            "\n### Without faults, paced ({}, {:.1} MB/s)\n",
            size(workload),
            recovery.bandwidth as f64 / 1e6
        ));
        self.0.line(
            "Where storage or the network decides how long a transfer takes, as in the paper, and not the processor: by how \
             much a log makes it longer.\n",
        );
        self.0.line(format!("| above no log, % | {} |", METHODS.join(" | ")));
        self.0.line(format!("|---|{}", "---|".repeat(METHODS.len())));
        let mut worst: Option<(Variant, Estimate)> = None;
        for mechanism in MECHANISMS {
            let cells = METHODS.map(|method| {
                let variant = Variant::Log(mechanism, method);
                let more = recovery.log_percent(variant);
                if let Some(more) = more
                    && worst.is_none_or(|(_, other)| more.upper() > other.upper())
                {
                    worst = Some((variant, more));
                }
                show(more, 3)
            });
            self.0.line(format!("| {mechanism} | {} |", cells.join(" | ")));
        }
        if let Some((variant, more)) = worst {
            self.0.line(format!(
                "\nThe log whose interval reaches highest is {variant}: {} % of the transfer time. The paper's bar is 1 %.",
                show(Some(more), 3)
            ));
        }
        let picture = pictures::paced(self.0.directory, workload, recovery)?;
        self.0.picture(&picture);
        Ok(())
    }

    fn overhead(&mut self, workload: &Workload, overhead: &Overhead) -> io::Result<()> {
        let figure = if workload.name == "big" { 5 } else { 6 };
        self.0.line(format!(
            "\n### Figure {figure}: without faults ({}, {:.1} MB/s each)\n",
            size(workload),
            overhead.bandwidth as f64 / 1e6
        ));
        self.0.line(
            "Each run with a log has one without beside it, at the same time, paced together to at most 60 % of what the \
             machine can do; *above no log* is the difference within these pairs. What a log costs a transfer that nothing \
             but the processor holds up is the column of processor time.\n",
        );
        self.0.line(
            "| log | runs | time, s | above no log, % | processor time, s | above no log, % | memory, MiB |",
        );
        self.0.line("|---|---|---|---|---|---|---|");
        let variants = [Variant::NoLog].into_iter().chain(Variant::logs()).chain([Variant::Default]);
        let mut worst: Option<(Variant, Estimate)> = None;
        for variant in variants {
            let Some(time) = overhead.estimate(variant, QUANTITIES[0].of) else { continue };
            let percent = |index: usize| match variant {
                Variant::NoLog => None,
                _ => overhead.overhead_percent(variant, QUANTITIES[index].of),
            };
            let more = percent(0);
            if let (Variant::Log(..), Some(more)) = (variant, more)
                && worst.is_none_or(|(_, other)| more.upper() > other.upper())
            {
                worst = Some((variant, more));
            }
            let cell = |estimate, digits| show(estimate, digits);
            self.0.line(format!(
                "| {variant} | {} | {} | {} | {} | {} | {} |",
                time.count,
                cell(Some(time), 3),
                cell(more, 2),
                cell(overhead.estimate(variant, QUANTITIES[1].of), 3),
                cell(percent(1), 2),
                cell(overhead.estimate(variant, QUANTITIES[2].of), 1),
            ));
        }
        if let Some((variant, more)) = worst {
            self.0.line(format!(
                "\nThe log whose interval reaches highest is {variant}: {} % of the transfer time. The paper's bar is 1 %.",
                show(Some(more), 2)
            ));
        }
        let pooled = |index: usize| show(overhead.pooled_percent(QUANTITIES[index].of), 2);
        self.0.line(format!(
            "Over the pairs of all logs: {} % of the transfer time, {} % of the processor time.",
            pooled(0),
            pooled(1)
        ));
        for picture in pictures::overhead(self.0.directory, workload, overhead)? {
            self.0.picture(&picture);
        }
        Ok(())
    }

    fn space(&mut self, workload: &Workload, rooms: &[(Variant, (u64, u64))]) -> io::Result<()> {
        self.0.line(format!("\n### Figure 7: room for the logs at most ({})\n", size(workload)));
        self.0.line(format!("Bytes, and logs at a time.\n\n| | {} |", METHODS.join(" | ")));
        self.0.line(format!("|---|{}", "---|".repeat(METHODS.len())));
        for mechanism in MECHANISMS {
            let cells = METHODS.map(|method| {
                let found = rooms.iter().find(|(variant, _)| *variant == Variant::Log(mechanism, method));
                found.map_or("-".into(), |(_, (bytes, files))| format!("{bytes} ({files})"))
            });
            self.0.line(format!("| {mechanism} | {} |", cells.join(" | ")));
        }
        let picture = pictures::space(self.0.directory, workload, rooms)?;
        self.0.picture(&picture);
        Ok(())
    }

    fn recovery(&mut self, workload: &Workload, recovery: &Recovery) -> io::Result<()> {
        let figure = if workload.name == "big" { 8 } else { 9 };
        self.0.line(format!(
            "\n### Figure {figure}: recovery by fault point ({}, paced to {:.1} MB/s)\n",
            size(workload),
            recovery.bandwidth as f64 / 1e6
        ));
        self.0.line(
            "*recovery* is ER = TBF + TAF - TT of the paper's equation 1. *again* is what was sent twice: the work in flight, \
             and with no log everything of unfinished files. *first object* is the time from the restart (from the cut, if \
             only the network failed) until a new object is on its way. *rest* is what is left of the recovery time without \
             the time that *again* takes at this rate and without *first object*, in percent of TT.\n",
        );
        if recovery.repeated > 0 {
            self.0.line(format!(
                "{} runs failed; each was made once more, and is not among these.\n",
                recovery.repeated
            ));
        }
        for variant in &recovery.left_out {
            self.0.line(format!("{variant} failed twice, and is left out.\n"));
        }
        self.0.line("| moved with | fault | at, % | runs | TT, s | recovery, s | again, MiB | first object, s | rest, % |");
        self.0.line("|---|---|---|---|---|---|---|---|---|");
        let mut worst: Option<(Case, Estimate)> = None;
        let mut slowest: Option<f64> = None;
        for case in recovery.outcomes.keys() {
            let Some((fault, percent)) = case.fault else { continue };
            let rest = recovery.overhead_percent(*case);
            let first = recovery.first_object_seconds(*case);
            if let (Variant::Log(..), Some(rest)) = (case.variant, rest)
                && worst.is_none_or(|(_, other)| rest.mean > other.mean)
            {
                worst = Some((*case, rest));
            }
            if let (Variant::Log(..), Some(first)) = (case.variant, first) {
                slowest = Some(slowest.unwrap_or(0.0).max(first.mean));
            }
            self.0.line(format!(
                "| {} | {} | {percent} | {} | {:.2} | {} | {} | {} | {} |",
                case.variant,
                fault.name(),
                recovery.outcomes[case].len(),
                recovery.undisturbed_seconds(case.variant).unwrap_or(f64::NAN),
                show(recovery.recovery_seconds(*case), 2),
                show(recovery.bytes_again(*case).map(|bytes| bytes.times(1.0 / MIB)), 1),
                show(first, 2),
                show(rest, 2),
            ));
        }
        if let (Some((case, rest)), Some(slowest)) = (worst, slowest) {
            let fault = case.fault.map_or("", |(fault, _)| fault.name());
            self.0.line(format!(
                "\nOf the logs, the worst mean of *rest* is {} % ({}, {fault}); the slowest mean until the first object is \
                 {slowest:.2} s.",
                show(Some(rest), 2),
                case.variant
            ));
        }
        for picture in pictures::recovery_lines(self.0.directory, workload, recovery)? {
            self.0.picture(&picture);
        }
        self.0.line("\n### Figure 10: recovery at the last fault point\n");
        for picture in pictures::recovery_bars(self.0.directory, workload, recovery)? {
            self.0.picture(&picture);
        }
        Ok(())
    }
}

fn size(workload: &Workload) -> String {
    format!("{} files of {}", workload.files, bytes(workload.file_bytes))
}

fn bytes(bytes: u64) -> String {
    match bytes {
        1_000_000_000.. => format!("{:.4} GB", bytes as f64 / 1e9),
        1_000_000.. => format!("{:.4} MB", bytes as f64 / 1e6),
        1_000.. => format!("{:.4} kB", bytes as f64 / 1e3),
        _ => format!("{bytes} B"),
    }
    .replace(".0000", "")
}

/// The points at which faults hit, in order.
pub fn points(recovery: &Recovery) -> Vec<u32> {
    let mut points: Vec<u32> =
        recovery.outcomes.keys().filter_map(|case| case.fault.map(|(_, percent)| percent)).collect();
    points.sort_unstable();
    points.dedup();
    points
}

/// A case of a log.
pub fn case(variant: Variant, fault: Fault, percent: u32) -> Case {
    Case { variant, fault: Some((fault, percent)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(&Workload::big(1.0)), "100 files of 1 GB");
        assert_eq!(size(&Workload::small(0.02)), "10000 files of 200 kB");
        assert_eq!(bytes(1_500_000), "1.5000 MB");
    }
}
