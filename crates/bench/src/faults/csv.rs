//! What came out, as numbers: one CSV file for each workload and part, which a report is made of.
//!
//! A file starts with lines that say how it was made. A part that is run again replaces its file; the others stay.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Results;
use super::overhead::{Overhead, Sample};
use super::recovery::{Case, Outcome, Recovery};
use super::space::Room;
use super::transfer::Fault;
use super::variant::{Variant, Workload};
use crate::evaluation::csv::{self, Made, Row, replace};
use crate::machine;

/// The directory of the files.
pub struct Files {
    directory: PathBuf,
    made: String,
}

const OVERHEAD: &str =
    "variant,pair,seconds,processor_seconds,resident_peak_bytes,log_bytes_peak,log_files_peak";
const SPACE: &str = "variant,log_bytes_peak,log_files_peak";
const RECOVERY: &str = "variant,fault,percent,before_seconds,after_seconds,bytes_again,first_object_seconds";

impl Files {
    /// The directory is made if it is not there. `scratch` is where the runs keep their states and sinks.
    pub fn open(directory: &Path, command: &str, haul: &Path, scratch: &Path) -> io::Result<Files> {
        fs::create_dir_all(directory)?;
        let version = csv::version(haul);
        let kind = machine::first_line("stat", &["-f", "-c", "%T", &scratch.to_string_lossy()]);
        let made = format!("# {version}, states and sinks on {kind}: {command}\n");
        Ok(Files { directory: directory.to_owned(), made })
    }

    fn path(&self, workload: &str, part: &str) -> PathBuf {
        self.directory.join(format!("ft-lads-{workload}-{part}.csv"))
    }

    /// Whether it was measured before.
    pub fn has(&self, workload: &str, part: &str) -> bool {
        self.path(workload, part).exists()
    }

    fn write(
        &self,
        workload: &Workload,
        part: &str,
        extra: &str,
        header: &str,
        rows: &str,
    ) -> io::Result<()> {
        let Workload { name, files, file_bytes } = workload;
        let text = format!("{}# files={files} file_bytes={file_bytes}{extra}\n{header}\n{rows}", self.made);
        replace(&self.path(name, part), &text)
    }

    /// Figures 5 to 7.
    pub fn write_overhead(&mut self, workload: &Workload, overhead: &Overhead) -> io::Result<()> {
        let mut rows = String::new();
        for (variant, samples) in &overhead.samples {
            for (pair, sample) in samples {
                let Sample { seconds, processor_seconds, resident_peak, log_bytes, log_files } = sample;
                let _ = writeln!(
                    rows,
                    "{variant},{pair},{seconds:.4},{processor_seconds:.4},{resident_peak},{log_bytes},{log_files}"
                );
            }
        }
        let extra = format!(" bytes_per_second={}", overhead.bandwidth);
        self.write(workload, "overhead", &extra, OVERHEAD, &rows)
    }

    /// Figure 7.
    pub fn write_space(&self, workload: &Workload, rooms: &BTreeMap<Variant, Room>) -> io::Result<()> {
        let mut rows = String::new();
        for (variant, room) in rooms {
            let _ = writeln!(rows, "{variant},{},{}", room.bytes, room.files);
        }
        self.write(workload, "space", "", SPACE, &rows)
    }

    /// Figures 8 to 10.
    pub fn write_recovery(&mut self, workload: &Workload, recovery: &Recovery) -> io::Result<()> {
        let mut rows = String::new();
        for (variant, runs) in &recovery.undisturbed {
            for seconds in runs {
                let _ = writeln!(rows, "{variant},none,0,0,{seconds:.4},,");
            }
        }
        for (case, outcomes) in &recovery.outcomes {
            let Some((fault, percent)) = case.fault else { continue };
            for outcome in outcomes {
                let Outcome { before_seconds, after_seconds, bytes_again, first_object_seconds } = outcome;
                let again = bytes_again.map_or(String::new(), |bytes| bytes.to_string());
                let first = first_object_seconds.map_or(String::new(), |seconds| format!("{seconds:.4}"));
                let _ = writeln!(
                    rows,
                    "{},{},{percent},{before_seconds:.4},{after_seconds:.4},{again},{first}",
                    case.variant,
                    fault.name()
                );
            }
        }
        let left_out: Vec<String> = recovery.left_out.iter().map(Variant::to_string).collect();
        let (bandwidth, repeated) = (recovery.bandwidth, recovery.repeated);
        let extra =
            format!(" bytes_per_second={bandwidth} repeated={repeated} left_out={}", left_out.join(","));
        self.write(workload, "recovery", &extra, RECOVERY, &rows)
    }

    /// How each file was made.
    pub fn commands(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for workload in ["big", "small"] {
            for part in ["overhead", "space", "recovery"] {
                let text = fs::read_to_string(self.path(workload, part)).unwrap_or_default();
                if let Some(line) = text.lines().next().and_then(|line| line.strip_prefix("# ")) {
                    lines.push(format!("{workload}, {part}: `{line}`"));
                }
            }
        }
        lines
    }

    /// Everything that is there for a workload.
    pub fn read(&self, name: &'static str) -> io::Result<Results> {
        let mut results = Results::default();
        let samples = csv::read(&self.path(name, "overhead"), OVERHEAD, |row| {
            let sample = Sample {
                seconds: row.number(2)?,
                processor_seconds: row.number(3)?,
                resident_peak: row.number(4)?,
                log_bytes: row.number(5)?,
                log_files: row.number(6)?,
            };
            Some((variant(row)?, (row.number(1)?, sample)))
        })?;
        if let Some((made, rows)) = samples {
            let mut overhead =
                Overhead { bandwidth: made.must_say("bytes_per_second")?, ..Overhead::default() };
            for (variant, sample) in rows {
                overhead.samples.entry(variant).or_default().push(sample);
            }
            results.overhead = Some((workload(&made, name)?, overhead));
        }
        let rooms = csv::read(&self.path(name, "space"), SPACE, |row| {
            Some((variant(row)?, Room { bytes: row.number(1)?, files: row.number(2)? }))
        })?;
        if let Some((made, rooms)) = rooms {
            results.space = Some((workload(&made, name)?, rooms.into_iter().collect()));
        }
        let outcomes = csv::read(&self.path(name, "recovery"), RECOVERY, |row| {
            let fault = match row.field(1) {
                "none" => None,
                name => Some(Fault::ALL.into_iter().find(|fault| fault.name() == name)?),
            };
            let outcome = Outcome {
                before_seconds: row.number(3)?,
                after_seconds: row.number(4)?,
                bytes_again: optional(row, 5)?,
                first_object_seconds: optional(row, 6)?,
            };
            let percent = row.number(2)?;
            Some((variant(row)?, fault.map(|fault| (fault, percent)), outcome))
        })?;
        if let Some((made, rows)) = outcomes {
            let mut recovery = Recovery {
                bandwidth: made.must_say("bytes_per_second")?,
                repeated: made.says("repeated").unwrap_or(0),
                left_out: made
                    .says("left_out")
                    .unwrap_or_else(String::new)
                    .split(',')
                    .filter_map(Variant::from_name)
                    .collect(),
                ..Recovery::default()
            };
            for (variant, fault, outcome) in rows {
                if fault.is_some() {
                    recovery.outcomes.entry(Case { variant, fault }).or_default().push(outcome);
                } else {
                    recovery.undisturbed.entry(variant).or_default().push(outcome.after_seconds);
                }
            }
            results.recovery = Some((workload(&made, name)?, recovery));
        }
        Ok(results)
    }
}

/// A row's variant.
fn variant(row: &Row) -> Option<Variant> {
    Variant::from_name(row.field(0))
}

/// A field that may be empty, but not wrong.
fn optional<T: std::str::FromStr>(row: &Row, index: usize) -> Option<Option<T>> {
    if row.field(index).is_empty() { Some(None) } else { row.number(index).map(Some) }
}

fn workload(made: &Made, name: &'static str) -> io::Result<Workload> {
    Ok(Workload { name, files: made.must_say("files")?, file_bytes: made.must_say("file_bytes")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_was_written_is_read_again_and_another_part_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let mut files =
            Files::open(scratch.path(), "haul bench faults", Path::new("/bin/true"), scratch.path()).unwrap();
        let workload = Workload::big(0.5);
        let log = Variant::DEFAULT_LOG;
        let sample =
            Sample { seconds: 1.5, processor_seconds: 2.25, resident_peak: 7, log_bytes: 4096, log_files: 1 };
        let mut overhead = Overhead { bandwidth: 7, ..Overhead::default() };
        overhead.samples.insert(log, vec![(1, sample), (2, sample)]);
        files.write_overhead(&workload, &overhead).unwrap();
        let left_out = BTreeSet::from([Variant::Rsync, Variant::Bbcp]);
        let mut recovery =
            Recovery { bandwidth: 9, repeated: 2, left_out: left_out.clone(), ..Recovery::default() };
        recovery.undisturbed.insert(log, vec![60.5]);
        let outcome = Outcome {
            before_seconds: 1.0,
            after_seconds: 2.0,
            bytes_again: None,
            first_object_seconds: Some(0.25),
        };
        let case = Case { variant: log, fault: Some((Fault::Sink, 40)) };
        recovery.outcomes.insert(case, vec![outcome]);
        files.write_recovery(&workload, &recovery).unwrap();

        let read = files.read("big").unwrap();
        let (size, overhead) = read.overhead.unwrap();
        assert_eq!(size, workload);
        assert_eq!((overhead.bandwidth, overhead.samples(log).len()), (7, 2));
        assert_eq!(overhead.samples(log)[1].1.log_bytes, 4096);
        let (_, recovery) = read.recovery.unwrap();
        assert_eq!((recovery.bandwidth, recovery.repeated, recovery.undisturbed[&log][0]), (9, 2, 60.5));
        assert_eq!(recovery.left_out, left_out);
        let outcome = recovery.outcomes[&case][0];
        assert_eq!((outcome.bytes_again, outcome.first_object_seconds), (None, Some(0.25)));
        assert!(files.has("big", "recovery") && !files.has("big", "space"));
        assert!(read.space.is_none() && files.read("small").unwrap().overhead.is_none());
        assert_eq!(files.commands().len(), 2);
        // A fault that nobody knows is not taken for none.
        let path = files.path("big", "recovery");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, text.replace(",sink,", ",storm,")).unwrap();
        assert!(files.read("big").is_err());
    }
}
