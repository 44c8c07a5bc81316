//! Runs in figures: medians and spreads of each tool in each case, and ratios of them.

use super::case::Case;
use super::cost::{Cost, Kind};
use super::csv::Results;
use super::run::Sample;
use super::tool::{TOOLS, Tool};
use crate::statistics::median;

/// Of the runs of one tool in one case.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figures {
    /// How many runs.
    pub runs: usize,
    /// The median, in seconds.
    pub seconds: f64,
    /// The shortest run.
    pub best: f64,
    /// The longest.
    pub worst: f64,
    /// Processor seconds for each GB (10^9 bytes): the median of the near end.
    pub near_cost: f64,
    /// The same of the far end.
    pub far_cost: f64,
    /// The median of both ends together.
    pub cost: f64,
    /// The most memory of the near end, in bytes: the median of the runs.
    pub near_resident: f64,
    /// The same of the far end.
    pub far_resident: f64,
}

/// Of all cases.
pub struct Medians<'a> {
    results: &'a Results,
}

impl<'a> Medians<'a> {
    /// Of what is there.
    pub fn new(results: &'a Results) -> Medians<'a> {
        Medians { results }
    }

    /// Of one tool in one case; none where no run of it counts.
    pub fn of(&self, case: Case, tool: &Tool) -> Option<Figures> {
        let gigabytes = self.gigabytes(case)?;
        let runs =
            self.results.runs.iter().filter(|run| run.case == case && run.tool == tool && run.round > 0);
        let samples: Vec<&Sample> = runs.filter_map(|run| run.outcome.as_ref().ok()).collect();
        let middle =
            |of: fn(&Sample) -> f64| median(&samples.iter().map(|sample| of(sample)).collect::<Vec<_>>());
        let seconds = samples.iter().map(|sample| sample.seconds);
        Some(Figures {
            runs: samples.len(),
            seconds: middle(|sample| sample.seconds)?,
            best: seconds.clone().fold(f64::INFINITY, f64::min),
            worst: seconds.fold(0.0, f64::max),
            near_cost: middle(|sample| sample.near_processor_seconds)? / gigabytes,
            far_cost: middle(|sample| sample.far_processor_seconds)? / gigabytes,
            cost: middle(|sample| sample.near_processor_seconds + sample.far_processor_seconds)? / gigabytes,
            near_resident: middle(|sample| sample.near_resident as f64)?,
            far_resident: middle(|sample| sample.far_resident as f64)?,
        })
    }

    /// The same by name.
    pub fn named(&self, case: Case, name: &str) -> Option<Figures> {
        self.of(case, super::tool::from_name(name)?)
    }

    /// GB (10^9 bytes) of a case.
    pub fn gigabytes(&self, case: Case) -> Option<f64> {
        let measured = self.results.cases.iter().find(|one| one.dataset.case == case)?;
        Some(measured.dataset.bytes as f64 / 1e9)
    }

    /// Why a tool was not measured, or not to the end.
    pub fn problem(&self, case: Case, tool: &Tool) -> Option<&str> {
        let mut runs = self.results.runs.iter().filter(|run| run.case == case && run.tool == tool);
        runs.find_map(|run| run.outcome.as_ref().err()).map(String::as_str)
    }

    /// The fastest of those that are wanted and never failed.
    pub fn fastest(&self, case: Case, wanted: impl Fn(&Tool) -> bool) -> Option<(&'static Tool, Figures)> {
        TOOLS
            .iter()
            .filter(|tool| wanted(tool) && self.problem(case, tool).is_none())
            .filter_map(|tool| Some((tool, self.of(case, tool)?)))
            .min_by(|(_, one), (_, other)| one.seconds.total_cmp(&other.seconds))
    }

    /// Those that are wanted, and of which nothing is known: neither a run nor why there is none.
    pub fn not_asked(&self, case: Case, wanted: impl Fn(&Tool) -> bool) -> Vec<&'static str> {
        let is_known = |tool: &Tool| self.results.runs.iter().any(|run| run.case == case && run.tool == tool);
        let missing = TOOLS.iter().filter(|tool| tool.takes_part_in(case) && wanted(tool) && !is_known(tool));
        missing.map(|tool| tool.name).collect()
    }

    /// Those that are wanted, and that failed or could not be asked: however fast they may be, they are not among those that haul is
    /// compared with.
    pub fn failed(&self, case: Case, wanted: impl Fn(&Tool) -> bool) -> Vec<&'static str> {
        let failed = |tool: &Tool| wanted(tool) && self.problem(case, tool).is_some();
        TOOLS.iter().filter(|tool| failed(tool)).map(|tool| tool.name).collect()
    }
}

/// What haul costs at one size: medians.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CostAt {
    /// How many files.
    pub files: u64,
    /// Bytes of all.
    pub bytes: u64,
    /// From the start to the end.
    pub seconds: f64,
    /// Of both ends.
    pub processor_seconds: f64,
    /// The most memory of both ends together, in bytes.
    pub resident: f64,
}

impl CostAt {
    /// Processor seconds for each GB.
    pub fn per_gigabyte(&self) -> f64 {
        self.processor_seconds / (self.bytes as f64 / 1e9)
    }

    /// Microseconds for each file.
    pub fn per_file(&self) -> f64 {
        self.seconds / self.files as f64 * 1e6
    }
}

/// All sizes of a kind, the smallest first.
pub fn costs(all: &[Cost], kind: Kind) -> Vec<CostAt> {
    let mut sizes: Vec<(u64, u64)> =
        all.iter().filter(|cost| cost.kind == kind).map(|cost| (cost.files, cost.bytes)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let at = |(files, bytes): (u64, u64)| {
        let runs = all.iter().filter(|cost| (cost.kind, cost.files, cost.bytes) == (kind, files, bytes));
        let middle = |of: fn(&Cost) -> f64| median(&runs.clone().map(of).collect::<Vec<_>>());
        Some(CostAt {
            files,
            bytes,
            seconds: middle(|cost| cost.seconds)?,
            processor_seconds: middle(|cost| cost.processor_seconds)?,
            resident: middle(|cost| cost.resident as f64)?,
        })
    };
    sizes.into_iter().filter_map(at).collect()
}
