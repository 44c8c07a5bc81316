//! What came out, as numbers: one CSV file for each part, which the report is made of.
//!
//! A file starts with lines that say how it was made. A part that is run again replaces its file; the others stay. Of transfers, kinds
//! that are not run again stay, too, if they were made with the same settings: an evaluation may be made piece by piece.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;

use super::devices::{Measured, State};
use super::mover::Mover;
use super::probe::{Beside, Latency};
use super::trace::Stretch;
use super::transfer::{Case, Outcome, Picture};
use super::{End, Settings, System, TARGETS};
pub use crate::evaluation::csv::{Made, Part};
use crate::evaluation::csv::{read, replace, version};

const DEVICES: &str = "end,state,healthy_bytes_per_second,slow_bytes_per_second,busy";
const TRANSFERS: &str = "end,slow,moving,mover,round,seconds,bound_seconds,others_seconds,others_bound_seconds,\
    requests_at_slow,requests_at_healthy,share_of_requests_at_slow,imbalance,busy,stolen,mover_processor_seconds,\
    file_system_processor_seconds";
const PROBES: &str = "end,beside,target,round,count,median_ms,p99_ms,longest_ms";
const ORDER: &str = "kind,target,from,until,file";

/// The directory of the files.
pub struct Files {
    directory: PathBuf,
    system: System,
    /// The program and the command.
    line: String,
    /// With what settings: files that say the same can be joined.
    about: String,
    /// Transfers that were there before, and what made them.
    earlier: (Vec<String>, Vec<(Case, Outcome)>),
}

impl Files {
    /// The directory of the report is made if it is not there.
    pub fn open(settings: &Settings) -> io::Result<Files> {
        fs::create_dir_all(&settings.report)?;
        let version = version(&settings.haul);
        let Settings { rate, threads, seed, probe_seconds, step, system, .. } = settings;
        let about = format!(
            "bytes={} files={} file_bytes={} targets={TARGETS} rate={rate} threads={threads} step_seconds={} \
             throttle={:?} probe_seconds={probe_seconds} seed={seed}",
            settings.bytes(),
            settings.files(),
            system.file_bytes(),
            step.as_secs_f64(),
            settings.throttle
        );
        let mut files = Files {
            directory: settings.report.clone(),
            system: *system,
            line: format!("{version}: {}", settings.command),
            about,
            earlier: Default::default(),
        };
        let transfers = files.transfers()?;
        if let Some((made, rows)) = transfers.filter(|(made, _)| made.has_settings(&files.about)) {
            files.earlier = (made.lines, rows);
        }
        Ok(files)
    }

    fn path(&self, part: &str) -> PathBuf {
        self.directory.join(format!("{}-{part}.csv", self.system.prefix()))
    }

    fn write(&self, part: &str, header: &str, rows: &str) -> io::Result<()> {
        self.write_pieces(part, &[], header, rows)
    }

    /// `lines`: what made the rest of it.
    fn write_pieces(&self, part: &str, lines: &[String], header: &str, rows: &str) -> io::Result<()> {
        let mut text = String::new();
        for line in lines.iter().filter(|line| **line != self.line).chain([&self.line, &self.about]) {
            let _ = writeln!(text, "# {line}");
        }
        replace(&self.path(part), &format!("{text}{header}\n{rows}"))
    }

    /// How fast the targets are.
    pub fn write_devices(&self, all: &[Measured]) -> io::Result<()> {
        let mut rows = String::new();
        for Measured { end, state, healthy_rate, slow_rate, busy } in all {
            let slow = slow_rate.map_or(String::new(), |rate| format!("{rate:.0}"));
            let _ = writeln!(rows, "{end},{},{healthy_rate:.0},{slow},{busy:.4}", state.name());
        }
        self.write("devices", DEVICES, &rows)
    }

    /// See [`Files::write_devices`].
    pub fn devices(&self) -> io::Result<Part<Measured>> {
        read(&self.path("devices"), DEVICES, |row| {
            Some(Measured {
                end: end(row.field(0))?,
                state: State::ALL.into_iter().find(|state| state.name() == row.field(1))?,
                healthy_rate: row.number(2)?,
                slow_rate: row.number(3),
                busy: row.number(4)?,
            })
        })
    }

    /// Runs, so far. Kinds that are not among them stay as they were.
    pub fn write_transfers(&self, all: &[(Case, Outcome)]) -> io::Result<()> {
        let (lines, earlier) = &self.earlier;
        let is_new = |case: &Case| all.iter().any(|(other, _)| other == case);
        let kept: Vec<_> = earlier.iter().filter(|(case, _)| !is_new(case)).collect();
        let lines = if kept.is_empty() { &[][..] } else { lines };
        let mut rows = String::new();
        for (Case { end, slow, moving, mover }, outcome) in kept.into_iter().chain(all) {
            let Outcome { round, seconds, bound_seconds, others_seconds, others_bound_seconds, .. } = outcome;
            let Outcome { at_slow, at_healthy, share_slow, imbalance, busy, stolen, .. } = outcome;
            let Outcome { mover_processor_seconds, file_system_processor_seconds, .. } = outcome;
            let [at_slow, at_healthy] =
                [at_slow, at_healthy].map(|requests| requests.map_or(String::new(), |it| format!("{it:.3}")));
            let share_slow = share_slow.map_or(String::new(), |share| format!("{share:.5}"));
            let _ = writeln!(
                rows,
                "{end},{slow},{moving},{mover},{round},{seconds:.4},{bound_seconds:.4},{others_seconds:.4},\
                 {others_bound_seconds:.4},{at_slow},{at_healthy},{share_slow},{imbalance:.5},{busy:.4},{stolen:.4},\
                 {mover_processor_seconds:.2},{file_system_processor_seconds:.2}"
            );
        }
        self.write_pieces("transfers", lines, TRANSFERS, &rows)
    }

    /// See [`Files::write_transfers`].
    pub fn transfers(&self) -> io::Result<Part<(Case, Outcome)>> {
        read(&self.path("transfers"), TRANSFERS, |row| {
            let case = Case {
                end: end(row.field(0))?,
                slow: row.number(1)?,
                moving: row.number(2)?,
                mover: Mover::from_name(row.field(3))?,
            };
            let outcome = Outcome {
                round: row.number(4)?,
                seconds: row.number(5)?,
                bound_seconds: row.number(6)?,
                others_seconds: row.number(7)?,
                others_bound_seconds: row.number(8)?,
                at_slow: row.number(9),
                at_healthy: row.number(10),
                share_slow: row.number(11),
                imbalance: row.number(12)?,
                busy: row.number(13)?,
                stolen: row.number(14)?,
                mover_processor_seconds: row.number(15)?,
                file_system_processor_seconds: row.number(16)?,
            };
            Some((case, outcome))
        })
    }

    /// What the neighbour found.
    pub fn write_probes(&self, all: &[Latency]) -> io::Result<()> {
        let mut rows = String::new();
        for Latency { end, beside, slow, round, count, median, p99, longest } in all {
            let target = if *slow { "slow" } else { "healthy" };
            let beside = beside.name();
            let _ =
                writeln!(rows, "{end},{beside},{target},{round},{count},{median:.3},{p99:.3},{longest:.3}");
        }
        self.write("probe", PROBES, &rows)
    }

    /// See [`Files::write_probes`].
    pub fn probes(&self) -> io::Result<Part<Latency>> {
        read(&self.path("probe"), PROBES, |row| {
            Some(Latency {
                end: end(row.field(0))?,
                beside: Beside::from_name(row.field(1))?,
                slow: row.field(2) == "slow",
                round: row.number(3)?,
                count: row.number(4)?,
                median: row.number(5)?,
                p99: row.number(6)?,
                longest: row.number(7)?,
            })
        })
    }

    /// In which order a mover took the objects of a run.
    pub fn write_order(&self, case: Case, picture: &Picture) -> io::Result<()> {
        let mut rows = format!("run,,0,{:.3},\n", picture.seconds);
        for (target, spans) in picture.slow.iter().enumerate() {
            spans.iter().for_each(|(from, until)| {
                let _ = writeln!(rows, "slow,{target},{from:.3},{until:.3},");
            });
        }
        for Stretch { target, from, until, file } in &picture.stretches {
            let _ = writeln!(rows, "file,{target},{from:.3},{until:.3},{file}");
        }
        self.write(&format!("order-{}", case.mover), ORDER, &rows)
    }

    /// See [`Files::write_order`].
    pub fn order(&self, mover: Mover) -> io::Result<Option<Picture>> {
        let read = read(&self.path(&format!("order-{mover}")), ORDER, |row| {
            let target = row.number(1).unwrap_or(0);
            Some((
                row.field(0).to_owned(),
                target,
                row.number(2)?,
                row.number(3)?,
                row.number(4).unwrap_or(0),
            ))
        })?;
        Ok(read.map(|(_, rows)| {
            let mut picture =
                Picture { stretches: Vec::new(), slow: vec![Vec::new(); TARGETS], seconds: 0.0 };
            for (kind, target, from, until, file) in rows {
                match kind.as_str() {
                    "run" => picture.seconds = until,
                    "slow" => picture.slow[usize::min(target, TARGETS - 1)].push((from, until)),
                    _ => picture.stretches.push(Stretch { target, from, until, file }),
                }
            }
            picture
        }))
    }
}

fn end(name: &str) -> Option<End> {
    End::ALL.into_iter().find(|end| end.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::tests::settings;

    #[test]
    fn an_evaluation_may_be_made_piece_by_piece() {
        let scratch = tempfile::tempdir().unwrap();
        let settings = Settings { haul: "/bin/true".into(), report: scratch.path().into(), ..settings() };
        let open = |command: &str, scale| {
            Files::open(&Settings { command: command.into(), scale, ..settings.clone() }).unwrap()
        };
        let case = |mover| Case { end: End::Sink, slow: 1, moving: true, mover };
        let run = |seconds| Outcome { seconds, ..Outcome::default() };
        let movers = |files: &Files| {
            let (made, rows) = files.transfers().unwrap().unwrap();
            let rows: Vec<_> = rows.into_iter().map(|(case, run)| (case.mover, run.seconds)).collect();
            (made.lines.len(), rows)
        };
        let first = open("first", 0.5);
        first.write_transfers(&[(case(Mover::Cp), run(1.0)), (case(Mover::Layout), run(2.0))]).unwrap();
        let second = open("second", 0.5);
        second.write_transfers(&[(case(Mover::Layout), run(3.0))]).unwrap();
        assert_eq!(movers(&second), (2, vec![(Mover::Cp, 1.0), (Mover::Layout, 3.0)]));
        // Written after each run: nothing is there twice.
        second.write_transfers(&[(case(Mover::Layout), run(3.0)), (case(Mover::Layout), run(4.0))]).unwrap();
        assert_eq!(movers(&second).1.len(), 3);
        // All of it again, by one command alone.
        let third = open("third", 0.5);
        third.write_transfers(&[(case(Mover::Cp), run(5.0)), (case(Mover::Layout), run(6.0))]).unwrap();
        assert_eq!(movers(&third), (1, vec![(Mover::Cp, 5.0), (Mover::Layout, 6.0)]));
        // Other bytes are another evaluation.
        let other = open("other", 0.25);
        other.write_transfers(&[(case(Mover::Cp), run(7.0))]).unwrap();
        assert_eq!(movers(&other), (1, vec![(Mover::Cp, 7.0)]));
    }

    #[test]
    fn what_was_written_is_read_again() {
        let scratch = tempfile::tempdir().unwrap();
        let settings =
            Settings { haul: "/bin/true".into(), report: scratch.path().join("report"), ..settings() };
        let files = Files::open(&settings).unwrap();
        assert!(files.transfers().unwrap().is_none());

        let case = Case { end: End::Both, slow: 1, moving: true, mover: Mover::Adaptive };
        let outcome = Outcome {
            round: 2,
            seconds: 16.5,
            bound_seconds: 15.25,
            others_seconds: 13.5,
            others_bound_seconds: 12.5,
            at_slow: Some(1.5),
            at_healthy: Some(2.25),
            share_slow: Some(0.0625),
            imbalance: 0.01,
            busy: 0.75,
            stolen: 0.0,
            mover_processor_seconds: 4.25,
            file_system_processor_seconds: 3.5,
        };
        let none = Outcome { at_slow: None, at_healthy: None, share_slow: None, ..outcome };
        files.write_transfers(&[(case, outcome), (Case { slow: 0, ..case }, none)]).unwrap();
        let (made, rows) = files.transfers().unwrap().unwrap();
        assert_eq!(rows, [(case, outcome), (Case { slow: 0, ..case }, none)]);
        assert_eq!((made.says("bytes"), made.says("threads")), (Some(settings.bytes()), Some(32)));
        assert!(
            made.lines.len() == 1 && made.lines[0].ends_with(": haul bench congestion"),
            "{:?}",
            made.lines
        );

        let latency = Latency {
            end: End::Sink,
            beside: Beside::OneCopy,
            slow: true,
            round: 1,
            count: 7,
            median: 20.5,
            p99: 30.25,
            longest: 31.0,
        };
        files.write_probes(&[latency]).unwrap();
        assert_eq!(files.probes().unwrap().unwrap().1, [latency]);
        let measured = Measured {
            end: End::Source,
            state: State::OneSlow,
            healthy_rate: 1e8,
            slow_rate: Some(1e6),
            busy: 0.5,
        };
        files.write_devices(&[measured, Measured { slow_rate: None, ..measured }]).unwrap();
        assert_eq!(files.devices().unwrap().unwrap().1, [measured, Measured { slow_rate: None, ..measured }]);

        let mut slow = vec![Vec::new(); TARGETS];
        slow[3] = vec![(0.0, 3.0)];
        let stretches = vec![Stretch { target: 2, from: 0.5, until: 1.0, file: 9 }];
        files
            .write_order(case, &Picture { stretches: stretches.clone(), slow: slow.clone(), seconds: 4.5 })
            .unwrap();
        let picture = files.order(Mover::Adaptive).unwrap().unwrap();
        assert_eq!((picture.stretches, picture.slow, picture.seconds), (stretches, slow, 4.5));
        assert!(files.order(Mover::Lads).unwrap().is_none());

        // Another file system has files of its own.
        let others = Files::open(&Settings { system: System::Gluster, ..settings }).unwrap();
        assert!(others.transfers().unwrap().is_none());
        others.write_transfers(&[(case, none)]).unwrap();
        assert_eq!(others.transfers().unwrap().unwrap().1, [(case, none)]);
        assert_eq!(files.transfers().unwrap().unwrap().1.len(), 2);
    }
}
