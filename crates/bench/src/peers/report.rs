//! The comparison for people: peers.md, with a table and a picture for each case.

use std::fs;
use std::io;
use std::path::Path;

use super::bars::{Bound, FLAT, bars};
use super::case::Case;
use super::cost::Kind;
use super::csv::{Files, Measured, Results};
use super::figures::{CostAt, Figures, Medians, costs};
use super::pictures;
use super::tool::{Class, TOOLS, Tool, from_name};
use crate::evaluation::page::Page;
use crate::evaluation::say;
use crate::machine;

const MIB: f64 = 1_048_576.0;

/// The table in the slides of mdtmFTP: client and server, 95 ms apart, 2 x 40 Gb/s, SSDs to disks, 4 streams; GridFTP with
/// -pp -cc 8. Seconds; what failed there has none.
const MDTMFTP: [(Case, &str, f64, [Option<f64>; 3]); 3] = [
    (Case::Big, "1 x 100 GB", 100e9, [Some(74.18), Some(79.89), Some(91.18)]),
    (Case::Thirty, "30 x 10 GB", 300e9, [Some(192.19), Some(217.0), Some(320.17)]),
    (Case::Tree, "Linux tree", 0.0, [Some(10.51), None, Some(1006.02)]),
];

/// Writes it from what is there.
pub fn write(haul: &Path, directory: &Path, files: &Files) -> io::Result<()> {
    let results = files.read()?;
    let medians = Medians::new(&results);
    let mut report = Report { page: Page::new(directory), results: &results, medians };
    report.head(haul);
    report.bars();
    for measured in &results.cases {
        report.case(measured)?;
    }
    report.mdtmftp();
    report.costs()?;
    report.tools();
    report.notes();
    let path = directory.join("peers.md");
    fs::write(&path, report.page.text)?;
    say(&format!("written: {}", path.display()));
    Ok(())
}

struct Report<'a> {
    page: Page<'a>,
    results: &'a Results,
    medians: Medians<'a>,
}

impl Report<'_> {
    fn head(&mut self, haul: &Path) {
        self.page.line("# haul side by side with its peers\n");
        self.page.line(
            "haul and other movers on the same data, one run after the other in an order drawn by lot, after one run of each that \
             does not count; each result is compared with the source byte for byte (in sets that earlier versions made the first of \
             each, while of the others files and bytes were counted). \
             Both ends are processes of one machine and share its cores; the network is loopback. Values \
             are medians, in parentheses the shortest and the longest run. A peer can be asked as it comes and as its manual \
             recommends it (`-tuned`); the fastest peer is the fastest of those that were asked, which each table names.\n",
        );
        self.page
            .line("Written by `haul bench peers` from the CSV files beside this page, which were made by:\n");
        for measured in &self.results.cases {
            let Measured { dataset, storage, load, command } = measured;
            let name = dataset.case.name();
            self.page.line(format!("- {name}: `{command}`, {storage}; load before: {load}"));
        }
        self.page.line("");
        self.page.text.push_str(&machine::table(haul));
    }

    /// What was asked for, and what came out.
    fn bars(&mut self) {
        self.page.line("\n## In short\n");
        self.page.heading(&["what", "asked for", "measured", ""]);
        for bar in bars(self.results) {
            let bound = match bar.bound {
                Bound::AtLeast(bound) => format!("at least {bound:.2}"),
                Bound::AtMost(bound) => format!("at most {bound:.2}"),
            };
            let verdict = match bar.is_met() {
                Some(true) => {
                    let mut met = String::from("met");
                    if !bar.not_asked.is_empty() {
                        met.push_str(&format!(", with {} not asked", bar.not_asked.join(", ")));
                    }
                    if !bar.failed.is_empty() {
                        met.push_str(&format!(", without {} (see below)", bar.failed.join(", ")));
                    }
                    met
                }
                Some(false) => "**not met**".into(),
                None => "not measured".into(),
            };
            let measured = match &bar.measured {
                Ok(measured) => format!("{measured:.3}"),
                Err(why) => why.clone(),
            };
            self.page.row([bar.what, bound, measured, verdict]);
        }
    }

    fn case(&mut self, measured: &Measured) -> io::Result<()> {
        let dataset = &measured.dataset;
        let gigabytes = dataset.bytes as f64 / 1e9;
        let mut title = dataset.title.clone();
        title[..1].make_ascii_uppercase();
        self.page.line(format!("\n## {title} ({})\n", dataset.case.name()));
        let files = if dataset.files == 1 { "1 file".into() } else { format!("{} files", dataset.files) };
        self.page.line(format!("{files}, {gigabytes:.2} GB, {}.\n", measured.storage));
        self.page.heading(&[
            "program",
            "kind",
            "runs",
            "seconds",
            "GB/s",
            "files/s",
            "time, haul = 1",
            "time, haul-plain = 1",
            "CPU s/GB near",
            "far",
            "both",
            "memory near, MiB",
            "far",
        ]);
        let of = |name| self.medians.named(dataset.case, name).map(|figures| figures.seconds);
        let (default, plain) = (of("haul"), of("haul-plain"));
        let mut left_out = Vec::new();
        let mut rows = Vec::new();
        for tool in TOOLS.iter().filter(|tool| tool.takes_part_in(dataset.case)) {
            let problem = self.medians.problem(dataset.case, tool);
            let Some(figures) = self.medians.of(dataset.case, tool) else {
                left_out.extend(problem.map(|problem| (tool.name, problem)));
                continue;
            };
            let against =
                |ours: Option<f64>| ours.map_or("-".into(), |ours| format!("{:.2}", figures.seconds / ours));
            let kept = self.totals_note(dataset.case, tool);
            rows.push([
                format!("{}{kept}", tool.name),
                tool.class.name().into(),
                figures.runs.to_string(),
                format!("{:.2} ({:.2} - {:.2})", figures.seconds, figures.best, figures.worst),
                format!("{:.2}", gigabytes / figures.seconds),
                format!("{:.0}", dataset.files as f64 / figures.seconds),
                against(default),
                against(plain),
                format!("{:.2}", figures.near_cost),
                format!("{:.2}", figures.far_cost),
                format!("{:.2}", figures.cost),
                format!("{:.0}", figures.near_resident / MIB),
                format!("{:.0}", figures.far_resident / MIB),
            ]);
            left_out.extend(problem.map(|problem| (tool.name, problem)));
        }
        rows.into_iter().for_each(|row| self.page.row(row));
        if !left_out.is_empty() {
            self.page.line("\nNot measured, or not in all runs:\n");
            self.page.heading(&["program", "why"]);
            left_out.into_iter().for_each(|(name, problem)| self.page.row([name, problem]));
        }
        let picture = pictures::case(self.page.directory, &self.medians, measured)?;
        self.page.picture(&picture);
        Ok(())
    }

    /// A mark for tools that leave symlinks out, where there may be some.
    fn totals_note(&self, case: Case, tool: &Tool) -> &'static str {
        let is_tree = matches!(case, Case::Tree | Case::TreeDisk);
        if is_tree && !tool.keeps().symlinks { " (symlinks not kept)" } else { "" }
    }

    fn mdtmftp(&mut self) {
        self.page.line("\n## The table of mdtmFTP, in shape\n");
        self.page.line(
            "Published: client and server 95 ms apart, 2 x 40 Gb/s, SSDs to disks; seconds. Here: the same shapes, smaller by the \
             factor given, between processes of one machine without any distance; seconds. Only ratios within one side may be \
             compared. GridFTP is published with -pp -cc 8; here it is as it comes or as its manual recommends (-tuned: -pp -cc 8 for many \
             files, -p 4 for big ones), the faster of what was asked, which is named.\n",
        );
        self.page.heading(&[
            "case",
            "mdtmFTP",
            "FDT",
            "GridFTP",
            "GridFTP / mdtmFTP",
            "here, smaller by",
            "haul",
            "haul-plain",
            "FDT here",
            "GridFTP here",
            "GridFTP / haul-plain here",
        ]);
        let seconds = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
        for (case, title, bytes, published) in MDTMFTP {
            let here = |name| self.medians.named(case, name).map(|figures| figures.seconds);
            let scale = match self.medians.gigabytes(case) {
                None => "not measured".into(),
                Some(gigabytes) if bytes > 0.0 => format!("{:.1}", bytes / 1e9 / gigabytes),
                Some(_) => "another tree".into(),
            };
            let faster = |family: &'static str| {
                self.medians.fastest(case, |tool| tool.family == family && tool.class == Class::Clear)
            };
            let named = |found: Option<(&Tool, Figures)>| {
                found.map_or("-".into(), |(tool, figures)| format!("{:.2} ({})", figures.seconds, tool.name))
            };
            let gridftp = faster("GridFTP");
            let ratio = |one: Option<f64>, other: Option<f64>| {
                seconds(one.zip(other).map(|(one, other)| one / other))
            };
            self.page.row([
                title.to_owned(),
                seconds(published[0]),
                published[1].map_or("fails".into(), |value| format!("{value:.2}")),
                seconds(published[2]),
                ratio(published[2], published[0]),
                scale,
                seconds(here("haul")),
                seconds(here("haul-plain")),
                named(faster("FDT")),
                named(gridftp),
                ratio(gridftp.map(|(_, figures)| figures.seconds), here("haul-plain")),
            ]);
        }
    }

    fn costs(&mut self) -> io::Result<()> {
        let of = |kind| costs(&self.results.costs, kind);
        let (bytes, files) = (of(Kind::Bytes), of(Kind::Files));
        if bytes.is_empty() && files.is_empty() {
            return Ok(());
        }
        self.page.line("\n## What haul costs at any size\n");
        self.page.line(format!(
            "Computed files; the sink checks them and keeps no contents. haul as it comes (encrypted, BLAKE3), both ends on this \
             machine. Flat is what grows by at most {:.0} % from the lowest line of a table to the last.\n",
            (FLAT - 1.0) * 100.0
        ));
        if let Some(made) = &self.results.costs_made {
            self.page.line(format!("Made with `{made}`.\n"));
        }
        let row = |cost: &CostAt| {
            [
                cost.files.to_string(),
                format!("{:.3}", cost.bytes as f64 / 1e9),
                format!("{:.2}", cost.seconds),
                format!("{:.3}", cost.per_gigabyte()),
                format!("{:.1}", cost.per_file()),
                format!("{:.0}", cost.resident / MIB),
            ]
        };
        for costs in [&bytes, &files] {
            self.page.heading(&[
                "files",
                "GB",
                "seconds",
                "CPU s/GB",
                "time for a file, µs",
                "memory of both ends, MiB",
            ]);
            costs.iter().for_each(|cost| self.page.row(row(cost)));
            self.page.line("");
        }
        if !bytes.is_empty() {
            let picture = pictures::per_gigabyte(self.page.directory, &bytes)?;
            self.page.picture(&picture);
        }
        if !files.is_empty() {
            let picture = pictures::per_file(self.page.directory, &files)?;
            self.page.picture(&picture);
        }
        Ok(())
    }

    fn tools(&mut self) {
        self.page.line("\n## Programs\n");
        self.page.heading(&["name", "kind", "settings", "version", "command"]);
        for tool in &TOOLS {
            let used = self.results.used.iter().find(|used| used.tool == tool);
            let problem = self
                .results
                .runs
                .iter()
                .filter(|run| run.tool == tool)
                .find_map(|run| run.outcome.as_ref().err());
            let (version, command) = match (used, problem) {
                (Some(used), _) => (used.version.clone(), format!("`{}`", used.command)),
                (None, Some(problem)) => (problem.clone(), "-".into()),
                (None, None) => ("not asked for".into(), "-".into()),
            };
            self.page.row([tool.name, tool.class.name(), tool.setting, &version, &command]);
        }
    }

    fn notes(&mut self) {
        self.page.line("\n## How to read it\n");
        for note in [
            "Times are from typing the command to its end: logins and connections are in them. On a disk they end when everything \
             that was written is there (`syncfs`); the big file is then read from the disk, trees from the page cache.",
            "haul says done when every file is durable under its name; none of the peers does. rsync checks each file with a hash of \
             its own, over the network too.",
            "In memory means a memory file system of its own, for big files one with huge pages. On a virtual machine memory that \
             nobody uses is written to before each run: its first touch costs more than a copy there, and whoever came first would \
             pay for it.",
            "CPU s/GB: user and system time of all processes of an end. The far end is the servers and what they start; the raw pair, \
             tar, cp and haul on one machine have one end only.",
            "Memory: the most that was resident at an end, all its processes together, looked at every 50 ms.",
            "The raw pair reads a file into four registered buffers, sends them over one connection and writes them at the other end, \
             with io_uring at both: the least that a mover can do whose bytes pass through its own memory. Those that the kernel sends \
             from the page cache (`sendfile`) can be faster. It and the peers use the system's congestion control; haul leaves BBR for CUBIC \
             within one host, which is part of what is compared.",
            "rsync compares what it has written with a hash of what it has read in any case; `-c` makes it hash files before it moves \
             anything, too: here those of the source, as there is nothing at the destination.",
            "A tool whose first run takes more than a minute is run at most twice more.",
        ] {
            self.page.line(format!("- {note}"));
        }
        if self
            .results
            .used
            .iter()
            .any(|used| used.tool.class == Class::Clear && Some(used.tool) == from_name("rsyncd"))
        {
            self.page.line(
                "- rsync's daemon tidies the paths that symlinks lead to, so its symlinks are not compared.",
            );
        }
    }
}
