//! What was measured, as tables, verdicts and a picture.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use haul_chart::{Bar, Group, Rows};

use super::{Case, Sample, Settings, Tool};
use crate::machine;

fn median(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    let mut values: Vec<f64> = samples.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[length / 2],
        length => f64::midpoint(values[length / 2 - 1], values[length / 2]),
    }
}

fn wall(samples: &[Sample]) -> f64 {
    median(samples, |sample| sample.wall.as_secs_f64())
}

pub(super) fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

pub(super) fn table(case: &Case, samples: &BTreeMap<Tool, Vec<Sample>>) -> String {
    let mut text = String::from(
        "| program | seconds, median (best) | GB/s | files/s | time, haul = 1 | CPU s/GB near | far | both |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let haul = samples.get(&Tool::Haul).map(|samples| wall(samples));
    for (tool, samples) in samples {
        let seconds = wall(samples);
        let best = samples.iter().map(|sample| sample.wall.as_secs_f64()).fold(f64::INFINITY, f64::min);
        let near = median(samples, |sample| sample.near.as_secs_f64()) / gb(case.bytes);
        let far = median(samples, |sample| sample.far.as_secs_f64()) / gb(case.bytes);
        let _ = writeln!(
            text,
            "| {} ({}) | {seconds:.2} ({best:.2}) | {:.2} | {:.0} | {} | {near:.2} | {far:.2} | {:.2} |",
            tool.name(),
            tool.protects(),
            gb(case.bytes) / seconds,
            case.files as f64 / seconds,
            haul.map_or_else(|| "-".into(), |haul| format!("{:.2}", seconds / haul)),
            near + far
        );
    }
    text
}

/// What the project has promised, and whether it held.
pub(super) fn bars(results: &[(Case, BTreeMap<Tool, Vec<Sample>>)]) -> Vec<(String, bool)> {
    let mut bars = Vec::new();
    let mut compare =
        |case: &Case, samples: &BTreeMap<Tool, Vec<Sample>>, ours: Tool, theirs: Tool, factor: f64| {
            if let (Some(ours_samples), Some(theirs_samples)) = (samples.get(&ours), samples.get(&theirs)) {
                let ratio = wall(theirs_samples) / wall(ours_samples);
                let text = format!(
                    "{} on {}: {ratio:.2} x the speed of {} (at least {factor:.1})",
                    ours.name(),
                    case.title,
                    theirs.name()
                );
                bars.push((text, ratio >= factor));
            }
        };
    for (case, samples) in results {
        match case.word {
            "big" => compare(case, samples, Tool::Haul, Tool::Scp, 3.0),
            "tree" => compare(case, samples, Tool::Haul, Tool::Rsync, 1.0),
            _ => {}
        }
        compare(case, samples, Tool::HaulPlain, Tool::RsyncDaemon, 1.0);
    }
    bars
}

pub(super) fn write_report(
    settings: &Settings,
    directory: &Path,
    results: &[(Case, BTreeMap<Tool, Vec<Sample>>)],
    bars: &[(String, bool)],
    mounted: bool,
    load: &str,
) -> io::Result<()> {
    let cores = machine::cores();
    let mut text = format!(
        "# Side by side\n\nMade by `make bench`: {} interleaved runs of each program in changing order, after one that does not \
         count and whose result is compared with the source. From memory file system to memory file system of one machine{}; the \
         network is loopback, so all programs share the same {cores} cores and processor time is what limits them. Pages of the \
         destination are touched before each run. Times are from typing the command to its end, ssh login included.\n\n\
         ![bars](bench.svg)\n\n",
        settings.runs,
        if mounted {
            " (the big file on one with huge pages)"
        } else {
            " (not mounted for this purpose: no root)"
        },
    );
    for (case, samples) in results {
        let _ = writeln!(
            text,
            "## {}\n\n{} files, {:.2} GB.\n\n{}",
            case.title,
            case.files,
            gb(case.bytes),
            table(case, samples)
        );
    }
    text.push_str("## What was promised\n\n");
    for (bar, passed) in bars {
        let _ = writeln!(text, "- {}: {bar}", if *passed { "met" } else { "**not met**" });
    }
    let _ = write!(
        text,
        "\n## How to read it\n\n- haul hashes every byte at both ends (BLAKE3), checks before it writes and syncs before it \
         acknowledges; scp and the rsync daemon do neither, rsync checks files with a hash of its own. `cp -r` is one process \
         and no network.\n- CPU s/GB: user and system time of all processes of an end, of ssh too.\n- scp and cp keep no times, and scp leaves out symlinks that lead to directories; the rsync daemon tidies the paths that symlinks lead to.\n\n\
         ## Machine\n\n{}| load before | {load} |\n| ssh | {} |\n| rsync | {} |\n| cp | {} |\n\n## Commands\n\n```\n\
         haul cp -r{} [--plain] --ssh 'ssh -F CONFIG' --haul-path HAUL SOURCE 127.0.0.1:DEST\nscp -q -r -F CONFIG SOURCE 127.0.0.1:DEST\n\
         rsync -a -e 'ssh -F CONFIG' SOURCE/ 127.0.0.1:DEST/\nrsync -a SOURCE/ rsync://127.0.0.1:PORT/sink/result/\ncp -r SOURCE DEST\n```\n",
        machine::table(&settings.haul),
        machine::first_line("ssh", &["-V"]),
        machine::first_line("rsync", &["--version"]),
        machine::first_line("cp", &["--version"]),
        settings.streams.map(|streams| format!(" --streams {streams}")).unwrap_or_default()
            + &settings.memory.as_ref().map(|memory| format!(" --memory {memory}")).unwrap_or_default(),
    );
    fs::create_dir_all(directory)?;
    fs::write(directory.join("bench.md"), text)?;
    let figure = Rows {
        title: "Speed in GB/s (longer is faster)".into(),
        groups: results.iter().map(|(case, samples)| group(case, samples)).collect(),
        ..Rows::default()
    };
    let written = haul_chart::write(directory, "bench", &figure.svg())?;
    let pictures = written.png.as_ref().map_or("bench.svg", |_| "bench.svg, bench.png");
    println!("written to {}: bench.md, {pictures}", directory.display());
    Ok(())
}

fn group(case: &Case, samples: &BTreeMap<Tool, Vec<Sample>>) -> Group {
    let bars = samples.iter().map(|(tool, samples)| {
        let value = gb(case.bytes) / wall(samples);
        let accent = matches!(tool, Tool::Haul | Tool::HaulPlain);
        Bar {
            label: tool.name().into(),
            value: value.into(),
            text: format!("{value:.2} GB/s, {:.2} s", wall(samples)),
            accent,
        }
    });
    Group { title: case.title.clone(), bars: bars.collect() }
}
