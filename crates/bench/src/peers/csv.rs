//! What came out, as numbers: one line for each run, each tool and each case.
//!
//! A case that is run again replaces its own lines; the others stay.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::case::{Case, Dataset};
use super::cost::{Cost, Kind};
use super::run::Sample;
use super::tool::{self, Class, Tool};
use crate::evaluation::csv::{Row, field, read, replace, version};

const CASES: &str = "case,files,bytes,storage,load_before,title,command";
const RUNS: &str = "case,tool,round,seconds,near_processor_seconds,far_processor_seconds,near_resident_bytes,\
    far_resident_bytes,problem";
const TOOLS: &str = "case,tool,version,command";
const COSTS: &str = "kind,files,bytes,round,seconds,processor_seconds,resident_bytes";

/// How a case was measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// What was moved.
    pub dataset: Dataset,
    /// Between which file systems.
    pub storage: String,
    /// What else the machine had to do.
    pub load: String,
    /// The command line of the evaluation.
    pub command: String,
}

/// One run of one tool, or why there is none.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// What was moved.
    pub case: Case,
    /// By whom.
    pub tool: &'static Tool,
    /// From 1; 0 is the run that does not count.
    pub round: usize,
    /// What it took, or what went wrong.
    pub outcome: Result<Sample, String>,
}

/// What a tool was in a case.
#[derive(Clone, PartialEq, Debug)]
pub struct Used {
    /// Which case.
    pub case: Case,
    /// Which tool.
    pub tool: &'static Tool,
    /// What it says of itself.
    pub version: String,
    /// As it was started.
    pub command: String,
}

/// Everything that is there.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Results {
    /// The cases, in their order.
    pub cases: Vec<Measured>,
    /// All runs.
    pub runs: Vec<Run>,
    /// All tools.
    pub used: Vec<Used>,
    /// What haul costs at any size.
    pub costs: Vec<Cost>,
    /// The program and the command that measured it.
    pub costs_made: Option<String>,
}

impl Results {
    /// Forgets a case that is to be measured anew.
    pub fn forget(&mut self, case: Case) {
        self.cases.retain(|one| one.dataset.case != case);
        self.runs.retain(|one| one.case != case);
        self.used.retain(|one| one.case != case);
    }

    /// There were good runs of nothing but what has none now: of all, or of one form of haul that was asked.
    pub fn lacks_what_was_in(&self, before: &Results, case: Case) -> bool {
        let good = |results: &Results, tool: &Tool| {
            results.runs.iter().any(|run| run.case == case && run.tool == tool && run.outcome.is_ok())
        };
        let asked = |run: &&Run| run.case == case && run.tool.class == Class::Haul;
        let is_lost = |run: &Run| !good(self, run.tool) && good(before, run.tool);
        let has_none = !self.runs.iter().any(|run| run.case == case && run.outcome.is_ok());
        let had_some = before.runs.iter().any(|run| run.case == case && run.outcome.is_ok());
        has_none && had_some || self.runs.iter().filter(asked).any(is_lost)
    }

    /// What haul could not do is no comparison, whatever came of the others.
    pub fn has_haul_done(&self, case: Case) -> io::Result<()> {
        let runs = self.runs.iter().filter(|run| run.case == case && run.tool.class == Class::Haul);
        let mut failed = runs.filter_map(|run| Some((run.tool.name, run.outcome.as_ref().err()?)));
        failed.next().map_or(Ok(()), |(name, problem)| Err(io::Error::other(format!("{name}: {problem}"))))
    }
}

/// The directory of the files.
pub struct Files {
    directory: PathBuf,
    made: String,
}

impl Files {
    /// The directory is made if it is not there.
    pub fn open(directory: &Path, haul: &Path, command: &str) -> io::Result<Files> {
        fs::create_dir_all(directory)?;
        Ok(Files { directory: directory.to_owned(), made: format!("{}: {command}", version(haul)) })
    }

    /// The program and the command of this evaluation.
    pub fn made(&self) -> &str {
        &self.made
    }

    fn path(&self, part: &str) -> PathBuf {
        self.directory.join(format!("peers-{part}.csv"))
    }

    fn write_part(&self, part: &str, header: &str, rows: &str) -> io::Result<()> {
        self.write_made(part, &self.made, header, rows)
    }

    fn write_made(&self, part: &str, made: &str, header: &str, rows: &str) -> io::Result<()> {
        replace(&self.path(part), &format!("# {made}\n{header}\n{rows}"))
    }

    /// Everything.
    pub fn write(&self, results: &Results) -> io::Result<()> {
        let mut rows = String::new();
        for Measured { dataset: Dataset { case, title, files, bytes }, storage, load, command } in
            &results.cases
        {
            let (storage, load, title, command) = (field(storage), field(load), field(title), field(command));
            let _ = writeln!(rows, "{},{files},{bytes},{storage},{load},{title},{command}", case.name());
        }
        self.write_part("cases", CASES, &rows)?;
        let mut rows = String::new();
        for Run { case, tool, round, outcome } in &results.runs {
            let _ = write!(rows, "{},{},{round},", case.name(), tool.name);
            let _ = match outcome {
                Ok(sample) => writeln!(
                    rows,
                    "{:.4},{:.3},{:.3},{},{},",
                    sample.seconds,
                    sample.near_processor_seconds,
                    sample.far_processor_seconds,
                    sample.near_resident,
                    sample.far_resident
                ),
                Err(problem) => writeln!(rows, ",,,,,{}", field(problem)),
            };
        }
        self.write_part("runs", RUNS, &rows)?;
        let mut rows = String::new();
        for Used { case, tool, version, command } in &results.used {
            let _ = writeln!(rows, "{},{},{},{}", case.name(), tool.name, field(version), field(command));
        }
        self.write_part("tools", TOOLS, &rows)?;
        let mut rows = String::new();
        for Cost { kind, files, bytes, round, seconds, processor_seconds, resident } in &results.costs {
            let kind = kind.name();
            let _ = writeln!(
                rows,
                "{kind},{files},{bytes},{round},{seconds:.4},{processor_seconds:.3},{resident}"
            );
        }
        self.write_made("cost", results.costs_made.as_ref().unwrap_or(&self.made), COSTS, &rows)
    }

    /// What earlier evaluations left.
    pub fn read(&self) -> io::Result<Results> {
        let case = |row: &Row| Case::from_name(row.field(0));
        let cases = read(&self.path("cases"), CASES, |row| {
            let title = row.field(5).to_owned();
            let dataset = Dataset { case: case(row)?, title, files: row.number(1)?, bytes: row.number(2)? };
            let text = |index| row.field(index).to_owned();
            Some(Measured { dataset, storage: text(3), load: text(4), command: text(6) })
        })?;
        let runs = read(&self.path("runs"), RUNS, |row| {
            let outcome = match row.field(8) {
                "" => Ok(Sample {
                    seconds: row.number(3)?,
                    near_processor_seconds: row.number(4)?,
                    far_processor_seconds: row.number(5)?,
                    near_resident: row.number(6)?,
                    far_resident: row.number(7)?,
                }),
                problem => Err(problem.to_owned()),
            };
            Some(Run {
                case: case(row)?,
                tool: tool::from_name(row.field(1))?,
                round: row.number(2)?,
                outcome,
            })
        })?;
        let used = read(&self.path("tools"), TOOLS, |row| {
            let (version, command) = (row.field(2).to_owned(), row.field(3).to_owned());
            Some(Used { case: case(row)?, tool: tool::from_name(row.field(1))?, version, command })
        })?;
        let costs = read(&self.path("cost"), COSTS, |row| {
            Some(Cost {
                kind: Kind::from_name(row.field(0))?,
                files: row.number(1)?,
                bytes: row.number(2)?,
                round: row.number(3)?,
                seconds: row.number(4)?,
                processor_seconds: row.number(5)?,
                resident: row.number(6)?,
            })
        })?;
        let costs_made = costs.as_ref().and_then(|(made, _)| made.lines.first().cloned());
        Ok(Results {
            costs_made,
            cases: cases.map_or_else(Vec::new, |(_, rows)| rows),
            runs: runs.map_or_else(Vec::new, |(_, rows)| rows),
            used: used.map_or_else(Vec::new, |(_, rows)| rows),
            costs: costs.map_or_else(Vec::new, |(_, rows)| rows),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_again_and_a_case_is_replaced_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let files =
            Files::open(&scratch.path().join("report"), Path::new("/bin/true"), "haul bench peers").unwrap();
        assert_eq!(files.read().unwrap(), Results::default());
        let (haul, cp) = (tool::from_name("haul").unwrap(), tool::from_name("cp").unwrap());
        let sample = Sample {
            seconds: 1.5,
            near_processor_seconds: 0.25,
            far_processor_seconds: 0.5,
            near_resident: 4096,
            far_resident: 8192,
        };
        let measured = |case| Measured {
            dataset: Dataset { case, title: "one file of 4 GiB".into(), files: 1, bytes: 7 },
            storage: "memory".into(),
            load: "0.1 0.2".into(),
            command: "haul bench peers --peer haul,cp".into(),
        };
        let run = |case, tool, round, outcome| Run { case, tool, round, outcome };
        let mut results = Results {
            cases: vec![measured(Case::Big), measured(Case::Tree)],
            runs: vec![
                run(Case::Big, haul, 1, Ok(sample)),
                run(Case::Tree, haul, 1, Ok(Sample { seconds: 2.5, ..sample })),
                run(Case::Tree, cp, 0, Err("it failed, \"no\"".into())),
            ],
            used: vec![Used {
                case: Case::Big,
                tool: cp,
                version: "cp 9".into(),
                command: "cp -r A B".into(),
            }],
            costs: vec![Cost {
                kind: Kind::Bytes,
                files: 1,
                bytes: 1 << 30,
                round: 1,
                seconds: 0.5,
                processor_seconds: 0.75,
                resident: 12,
            }],
            costs_made: Some("haul 1: haul bench peers --case cost".into()),
        };
        files.write(&results).unwrap();
        assert_eq!(files.read().unwrap(), results);
        results.has_haul_done(Case::Tree).unwrap();
        results.runs.push(run(Case::Tree, haul, 2, Err("failed: no sshd".into())));
        results.has_haul_done(Case::Big).unwrap();
        assert_eq!(results.has_haul_done(Case::Tree).unwrap_err().to_string(), "haul: failed: no sshd");
        assert!(!results.lacks_what_was_in(&results.clone(), Case::Tree), "its first run was good");
        let mut failed = results.clone();
        failed.runs.retain(|run| run.case != Case::Tree || run.outcome.is_err());
        assert!(failed.lacks_what_was_in(&results, Case::Tree));
        failed.runs.push(run(Case::Tree, cp, 1, Ok(sample)));
        assert!(failed.lacks_what_was_in(&results, Case::Tree), "cp is not what was asked");
        assert!(!failed.lacks_what_was_in(&Results::default(), Case::Tree));
        results.runs.pop();
        results.forget(Case::Tree);
        assert_eq!((results.cases.len(), results.runs.len(), results.used.len()), (1, 1, 1));
        let text = fs::read_to_string(files.path("runs")).unwrap();
        fs::write(files.path("runs"), text.replace("big,haul", "big,nobody")).unwrap();
        assert!(files.read().is_err());
    }
}
