//! `haul bench congestion --file-system gluster` (or `ceph`), as small as it can be: eleven servers stand on devices, one of these is slow,
//! files are read and written, and what came out is written. In a laboratory of its own.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use super::Settings;
use crate::watchdog;

/// As a scenario is asked for.
pub(super) const NAME: &str = "evaluation";
/// Where the kernel has no throttle that this can use, haul says so with these words.
const NO_THROTTLE: &str = "the kernel's I/O throttle is not there";

/// True if it went as it should. Where the machine cannot slow a device, that is said.
pub(super) fn run(settings: &Settings, system: &str) -> io::Result<bool> {
    watchdog::step(format!("{system}: {NAME}"));
    let directory = settings.directory.join(NAME);
    let (report, scratch) = (directory.join("report"), directory.join("scratch"));
    fs::create_dir(&directory)?;
    let mut command = Command::new(&settings.haul);
    command.args(["bench", "congestion", "--file-system", system, "--scale", "0.0001"]);
    command.args(["--end", "source,sink", "--slow", "1", "--motion", "moving", "--step", "1"]);
    command.args(["--mover", "file-order,adaptive", "--runs", "1"]);
    command.arg("--testbed").arg(std::env::current_exe()?);
    command.arg("--report").arg(&report).arg("--dir").arg(&scratch);
    let output = crate::process::unblock_signals(&mut command).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let finding = match output.status.success() {
        false if said.contains(NO_THROTTLE) => {
            println!("{system}: {NAME:<24} NOT RUN: {NO_THROTTLE}");
            return Ok(true);
        }
        false => Some(said.trim().to_owned()),
        true => is_wrong(system, &report, &scratch)?,
    };
    println!("{system}: {NAME:<24}          {}", finding.as_deref().unwrap_or("as it should be"));
    Ok(finding.is_none())
}

/// What is wrong with what it wrote, or left behind.
fn is_wrong(system: &str, report: &Path, scratch: &Path) -> io::Result<Option<String>> {
    let transfers = fs::read_to_string(report.join(format!("lads-{system}-transfers.csv")))?;
    for end in ["source", "sink"] {
        for mover in ["file-order", "adaptive"] {
            let start = format!("{end},1,true,{mover},0,");
            let row = transfers.lines().find(|line| line.starts_with(&start));
            if !row.is_some_and(is_plausible) {
                return Ok(Some(format!("{start}: {row:?}")));
            }
        }
    }
    let page = fs::read_to_string(report.join(format!("lads-{system}.md")))?;
    let picture = format!("lads-{system}-moving.svg");
    let parts = ["| source | 1 |", "| sink | 1 |", &picture];
    let lacks = parts.into_iter().find(|part| !page.contains(part));
    if let Some(part) = lacks {
        return Ok(Some(format!("{part} is not in the report")));
    }
    let left = fs::read_dir(scratch)?.count();
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let is_left = left > 0 || mounts.contains(&*scratch.to_string_lossy());
    Ok(is_left.then(|| "something of the laboratory is left over".to_owned()))
}

/// Nobody is faster than the bound, which is that of what the fullest server has (at least 8 MiB, at 5.45 MB/s or less); and nothing is said of
/// requests, as nobody has seen any.
fn is_plausible(row: &str) -> bool {
    let fields: Vec<&str> = row.split(',').collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
    let (Some(seconds), Some(bound), Some(others)) = (number(5), number(6), number(7)) else { return false };
    // The throttle lets a little pass that it has saved up.
    let honest = bound > 1.5 && seconds > bound * 0.9 && others > 0.0;
    honest && fields.len() == 17 && fields[9..12].iter().all(|field| field.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_cannot_be_is_noticed() {
        let row = |seconds, requests| {
            format!("sink,1,true,adaptive,0,{seconds},3.0,2.5,2.4,{requests},0.6,0.7,0.0,1.2,2.1")
        };
        assert!(is_plausible(&row("3.2", ",,")));
        assert!(!is_plausible(&row("1.2", ",,")), "faster than the bound");
        assert!(!is_plausible(&row("3.2", "1.0,2.0,0.1")), "requests that nobody saw");
        assert!(!is_plausible("sink,1,true,adaptive,0,"));
    }
}
