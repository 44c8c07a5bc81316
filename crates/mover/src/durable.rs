//! Every place where an end makes its own state durable, by name, behind one function.
//!
//! Called by the log, the owner's directory and the job record (crate `cli`). The names exist for the same reason as
//! those of the sink's syncs (`haul_storage::sink::SyncPoint`): a test removes one and shows that a power cut then costs
//! something that was promised.

use std::fs::File;
use std::io::Result;

/// A place where state is made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatePoint {
    /// Pages of the object log.
    LogData,
    /// Names of the log's files.
    LogNames,
    /// The directories that hold the state, up to the one that was there before.
    StateDirectories,
    /// The job record's content.
    JobRecord,
    /// The job record's name.
    JobName,
}

impl StatePoint {
    /// All of them.
    pub const ALL: [StatePoint; 5] = [
        StatePoint::LogData,
        StatePoint::LogNames,
        StatePoint::StateDirectories,
        StatePoint::JobRecord,
        StatePoint::JobName,
    ];

    /// As `HAUL_TEST_SKIP_STATE_SYNC` names it.
    pub const fn name(self) -> &'static str {
        match self {
            StatePoint::LogData => "log-data",
            StatePoint::LogNames => "log-names",
            StatePoint::StateDirectories => "state-directories",
            StatePoint::JobRecord => "job-record",
            StatePoint::JobName => "job-name",
        }
    }
}

/// Makes a file's content and size durable, or a directory's names.
pub fn sync(point: StatePoint, file: &File) -> Result<()> {
    hang(point);
    if is_skipped(point) { Ok(()) } else { file.sync_all() }
}

/// Makes a file's content and size durable, and no more.
pub(crate) fn sync_data(point: StatePoint, file: &File) -> Result<()> {
    if is_skipped(point) { Ok(()) } else { file.sync_data() }
}

#[cfg(not(feature = "faults"))]
fn hang(_point: StatePoint) {}

/// For tests: no record of a job becomes durable while there is a file `HAUL_TEST_STATE_HANGS`.
#[cfg(feature = "faults")]
fn hang(point: StatePoint) {
    let file = std::env::var_os("HAUL_TEST_STATE_HANGS").map(std::path::PathBuf::from);
    while point == StatePoint::JobRecord && file.as_ref().is_some_and(|file| file.exists()) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[cfg(not(feature = "faults"))]
fn is_skipped(_point: StatePoint) -> bool {
    false
}

#[cfg(feature = "faults")]
fn is_skipped(point: StatePoint) -> bool {
    static SKIPPED: std::sync::OnceLock<Option<StatePoint>> = std::sync::OnceLock::new();
    let asked = || {
        let name = std::env::var("HAUL_TEST_SKIP_STATE_SYNC").ok()?;
        let found = StatePoint::ALL.into_iter().find(|point| point.name() == name);
        // A test that asks for nothing would pass for the wrong reason.
        Some(found.unwrap_or_else(|| panic!("no state point {name:?}")))
    };
    *SKIPPED.get_or_init(asked) == Some(point)
}
