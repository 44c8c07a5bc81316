//! What does it cost to remember every object, and what does a fault cost then: the evaluation of FT-LADS, with haul.
//!
//! - [`variant`]: the eighteen logs, what they are compared with, and the paper's workloads.
//! - [`transfer`]: one run in processes of its own, and the faults that hit it.
//! - [`overhead`] (figures 5, 6, 7) and [`recovery`] (figures 8, 9, 10): what is run, and what comes out.
//! - [`space`]: figure 7 at any scale.
//! - [`csv`], [`report`], [`pictures`]: what came out, as numbers and for people.
//!
//! By default the source computes its files and the sink checks and forgets their contents, so that no disk is needed
//! or measured; names, hashes of objects and logs are real and durable.

pub mod csv;
pub mod overhead;
pub mod pictures;
pub mod recovery;
pub mod report;
pub mod space;
pub mod transfer;
pub mod variant;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::evaluation::{installed, say};
use crate::tree::remove;
use crate::{dataset, process};
use overhead::Overhead;
use recovery::Recovery;
use space::Room;
use transfer::{Fault, Setup};
use variant::{Variant, Workload};

/// What to evaluate.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program under test.
    pub haul: PathBuf,
    /// Where states and results of the runs lie while they run; removed afterwards.
    pub directory: PathBuf,
    /// Where the report goes.
    pub report: PathBuf,
    /// The command line, for the report.
    pub command: String,
    /// Of the paper's workloads, for overhead and room.
    pub scale: f64,
    /// Of the paper's workloads, for recovery.
    pub recovery_scale: f64,
    /// Which workloads: `big`, `small`.
    pub workloads: Vec<&'static str>,
    /// Figures 5 to 7.
    pub overhead: bool,
    /// Figure 7 alone.
    pub space: bool,
    /// Figures 8 to 10.
    pub recovery: bool,
    /// Which of the logs; all eighteen if empty.
    pub only: Vec<Variant>,
    /// Runs of each kind, at least.
    pub runs: usize,
    /// Rounds of the overhead, at most.
    pub rounds_max: usize,
    /// Half the width that intervals of the overhead are to have, in percent.
    pub precision_percent: f64,
    /// How long an undisturbed run takes where runs with faults are paced.
    pub paced_seconds: f64,
    /// Paced runs of the big workload at a time.
    pub parallel: usize,
    /// Faults at which percent of the bytes.
    pub points: Vec<u32>,
    /// Which kinds.
    pub faults: Vec<Fault>,
    /// Every log against every kind of fault at every point.
    pub every_fault: bool,
    /// Who writes the log.
    pub writer: Option<&'static str>,
    /// Of the order of runs.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            haul: PathBuf::new(),
            directory: PathBuf::new(),
            report: PathBuf::new(),
            command: String::new(),
            scale: 0.02,
            recovery_scale: 0.003,
            workloads: vec!["big", "small"],
            overhead: true,
            space: false,
            recovery: true,
            only: Vec::new(),
            runs: 10,
            rounds_max: 60,
            precision_percent: 1.0,
            paced_seconds: 60.0,
            parallel: 48,
            points: vec![20, 40, 60, 80],
            faults: Fault::ALL.to_vec(),
            every_fault: false,
            writer: None,
            seed: 1,
        }
    }
}

impl Settings {
    /// A file costs more than its bytes: of many small ones fewer runs at a time.
    fn paced(&self, workload: &str) -> Settings {
        match workload {
            "small" => Settings { parallel: (self.parallel / 2).max(1), ..self.clone() },
            _ => self.clone(),
        }
    }
}

/// Everything that came out for one workload.
#[derive(Default)]
pub struct Results {
    /// Figures 5 to 7, and at which size.
    pub overhead: Option<(Workload, Overhead)>,
    /// Figure 7 at a size of its own.
    pub space: Option<(Workload, BTreeMap<Variant, Room>)>,
    /// Figures 8 to 10.
    pub recovery: Option<(Workload, Recovery)>,
}

/// Runs all of it and writes the report; each part is written when it is done, so that nothing is lost. What earlier
/// evaluations left in the directory of the report is part of the new one.
pub fn run(settings: &Settings) -> io::Result<()> {
    process::adopt_orphans()?;
    fs::create_dir_all(&settings.directory)?;
    let scratch = tempfile::Builder::new().prefix("haul-bench-").tempdir_in(&settings.directory)?;
    *SCRATCH.lock().unwrap_or_else(PoisonError::into_inner) = Some(scratch.path().to_owned());
    let logs: Vec<Variant> = match settings.only.is_empty() {
        true => Variant::logs().collect(),
        false => settings.only.clone(),
    };
    let at = |name: &str, scale| if name == "big" { Workload::big(scale) } else { Workload::small(scale) };
    let mut files =
        csv::Files::open(&settings.report, &settings.command, &settings.haul, &settings.directory)?;
    let mut failures = Failures::default();
    for &name in &settings.workloads {
        let base = base(settings, at(name, settings.scale), scratch.path());
        if settings.space {
            space::run(&base, &logs, |rooms| files.write_space(&base.workload, rooms))?;
        }
        if settings.overhead {
            let with_default = [logs.clone(), vec![Variant::Default]].concat();
            let had = files.has(name, "overhead");
            let keep = |overhead: &Overhead, enough| match enough || !had {
                true => files.write_overhead(&base.workload, overhead),
                false => Ok(()),
            };
            failures.note(overhead::run(settings, &base, &with_default, keep));
        }
        report::write(settings, &files)?;
    }
    for &name in settings.workloads.iter().filter(|_| settings.recovery) {
        let mut base = base(settings, at(name, settings.recovery_scale), scratch.path());
        // Many at a time share the machine's memory.
        base.memory = Some(PACED_MEMORY_BYTES);
        let mut variants = [logs.clone(), vec![Variant::NoLog, Variant::Default]].concat();
        let peers: Vec<Variant> = [("rsync", Variant::Rsync), ("bbcp", Variant::Bbcp)]
            .into_iter()
            .filter_map(|(program, variant)| installed(program).map(|_| variant))
            .collect();
        if !peers.is_empty() {
            say("making real files for the other movers");
            base.files = Some(make_files(&base.workload, &scratch.path().join("files"))?);
            variants.extend(peers);
        }
        let (recovery, ended) = recovery::run(&settings.paced(name), &base, &variants);
        if let Some(made) = &base.files {
            remove(made)?;
        }
        // A part of it does not take the place of what was measured once.
        if ended.is_ok() || !recovery.undisturbed.is_empty() && !files.has(name, "recovery") {
            files.write_recovery(&base.workload, &recovery)?;
            report::write(settings, &files)?;
        }
        failures.note(ended);
    }
    failures.first.map_or(Ok(()), Err)
}

/// What cannot be measured does not keep the rest from it; the first such is told at the end once more.
#[derive(Default)]
struct Failures {
    first: Option<io::Error>,
}

impl Failures {
    fn note(&mut self, ended: io::Result<()>) {
        if let Err(error) = ended {
            process::leave_the_rest_to_the_end();
            say(&error.to_string());
            self.first.get_or_insert(error);
        }
    }
}

/// What a signal must not leave behind.
static SCRATCH: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Removes what the runs have made; for a process that is about to end.
pub fn leave_nothing() {
    if let Some(scratch) = SCRATCH.lock().unwrap_or_else(PoisonError::into_inner).take() {
        let _ = remove(&scratch);
    }
}

/// Enough for the rates of paced runs.
const PACED_MEMORY_BYTES: u64 = 32 << 20;

fn base(settings: &Settings, workload: Workload, scratch: &Path) -> Setup {
    Setup {
        haul: settings.haul.clone(),
        workload,
        variant: Variant::NoLog,
        bandwidth: None,
        memory: None,
        writer: settings.writer,
        files: None,
        directory: scratch.join("run"),
    }
}

fn make_files(workload: &Workload, directory: &Path) -> io::Result<PathBuf> {
    for file in 0..workload.files {
        let parent = directory.join(format!("d{}", file / 1000));
        fs::create_dir_all(&parent)?;
        dataset::random_file(&parent.join(format!("f{file}")), file, workload.file_bytes)?;
    }
    Ok(directory.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_files_are_as_many_and_as_large_as_the_workload_says() {
        let scratch = tempfile::tempdir().unwrap();
        let workload = Workload { name: "small", files: 1003, file_bytes: 13 };
        let directory = make_files(&workload, &scratch.path().join("files")).unwrap();
        let sizes: Vec<u64> = ["d0", "d1"]
            .iter()
            .flat_map(|name| fs::read_dir(directory.join(name)).unwrap())
            .map(|file| file.unwrap().metadata().unwrap().len())
            .collect();
        assert_eq!((sizes.len(), sizes.iter().sum::<u64>()), (1003, 1003 * 13));
    }
}
