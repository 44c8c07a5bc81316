//! What a history, or many, came to.

use haul_protocol::states::{Coverage, SINK_TABLE, SOURCE_TABLE};

use crate::many::Tally;

/// Of one history, or summed over many.
#[derive(Clone, Default)]
pub struct Report {
    /// Histories.
    pub histories: u64,
    /// Things that happened.
    pub events: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Kills and power cuts.
    pub crashes: u64,
    /// Connections cut (but by kills).
    pub cuts: u64,
    /// Histories with at least one crash.
    pub histories_with_crash: u64,
    /// Histories with at least one cut.
    pub histories_with_cut: u64,
    /// Objects that were put into a spill, and that came back from it.
    pub spilled: [u64; 2],
    /// Fewest events of a history.
    pub events_min: u64,
    /// Rows of the state tables that were taken.
    pub coverage: Coverage,
    /// What did not hold.
    pub violation: Option<String>,
}

impl Report {
    pub(crate) fn add_source(&mut self, coverage: &Coverage) {
        add(&mut self.coverage.source, &coverage.source);
    }

    pub(crate) fn add_sink(&mut self, coverage: &Coverage) {
        add(&mut self.coverage.sink, &coverage.sink);
    }

    /// Rows of the state tables that no history reached.
    pub fn rows_missed(&self) -> Vec<String> {
        self.rows().into_iter().filter(|(_, count)| *count == 0).map(|(row, _)| row).collect()
    }

    /// All rows of the state tables, with how often each was taken.
    pub fn rows(&self) -> Vec<(String, u64)> {
        let source = SOURCE_TABLE.iter().zip(self.coverage.source);
        let sink = SINK_TABLE.iter().zip(self.coverage.sink);
        let row = |end: &str, row: &dyn std::fmt::Debug| format!("{end} {row:?}");
        let source = source.map(|(entry, count)| (row("source", entry), count));
        source.chain(sink.map(|(entry, count)| (row("sink  ", entry), count))).collect()
    }
}

impl Tally for Report {
    fn add(&mut self, other: &Report) {
        self.events_min =
            if self.histories == 0 { other.events_min } else { self.events_min.min(other.events_min) };
        self.histories += other.histories;
        self.events += other.events;
        self.sessions += other.sessions;
        self.crashes += other.crashes;
        self.cuts += other.cuts;
        add(&mut self.spilled, &other.spilled);
        self.histories_with_crash += other.histories_with_crash;
        self.histories_with_cut += other.histories_with_cut;
        self.add_source(&other.coverage);
        self.add_sink(&other.coverage);
    }

    fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }
}

fn add(sum: &mut [u64], other: &[u64]) {
    sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
}
