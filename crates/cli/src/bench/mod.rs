//! `haul bench`: measures haul with transfers of its own making.
//!
//! [`faults`] is the evaluation of the object logs, [`congestion`] that of the scheduler, [`peers`] the comparison with other movers.
//! They run `haul cp`, or `haul bench transfer` in processes of their own, which is the same with data that nobody needs a disk
//! for; [`shell`] stands in for ssh, so that the far end runs on this host.

pub mod congestion;
pub mod faults;
pub mod peers;
mod shell;

use std::path::{Path, PathBuf};
use std::time::Duration;

use haul_bench::process;
use haul_model::Code;
use haul_mover::Error;
use haul_storage::synthetic::{Sizes, SyntheticSpec};
use serde::{Deserialize, Serialize};

use crate::options::{Bench, BenchCommand, BenchTransfer};
use crate::session;

/// Files in each directory of synthetic data.
const FILES_PER_DIRECTORY: u64 = 1000;
/// Faults are set off at a share of the bytes: progress must be known that well.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// `haul bench`
pub fn bench(arguments: Bench) -> Result<u8, Error> {
    match arguments.what {
        BenchCommand::Faults(arguments) => faults::run(&arguments),
        BenchCommand::Congestion(arguments) => congestion::run(&arguments),
        BenchCommand::Peers(arguments) => peers::run(&arguments),
        BenchCommand::Raw(arguments) => peers::raw(&arguments),
        BenchCommand::RawReceive(arguments) => peers::raw_receive(&arguments),
        BenchCommand::Transfer(arguments) => transfer(&arguments),
        BenchCommand::Shell(arguments) => Err(shell::run(&arguments)),
    }
}

/// The program that is measured: this one.
fn this_program() -> Result<PathBuf, Error> {
    std::env::current_exe().map_err(|error| Error::os(Code::SystemRefused, "finding this program", &error))
}

/// As it was typed, for reports.
fn command_line() -> String {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    format!("haul {}", words.join(" "))
}

/// What came of what was measured, unless a signal ends everything.
fn conclude(result: std::io::Result<()>, about: &str, leave_nothing: fn()) -> Result<u8, Error> {
    process::leave_the_rest_to_the_end();
    // Also of those that went well some leave a process behind.
    process::end_descendants(process::own_pid());
    result.map_err(|error| {
        leave_nothing();
        Error::os(Code::BenchFailed, about, &error)
    })?;
    Ok(0)
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path)
        .map_err(|error| Error::os(Code::SystemRefused, path.display().to_string(), &error))
}

fn transfer(arguments: &BenchTransfer) -> Result<u8, Error> {
    let measure =
        Measure { measured: true, synthetic: arguments.synthetic.clone(), discard: arguments.discard };
    session::measured(&arguments.copy, measure)
}

/// What a measured transfer does otherwise than `haul cp`. Travels in the greeting.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct Measure {
    /// Progress is told more often.
    pub measured: bool,
    /// The source's files are computed: `files=N,size=BYTES,seed=N`.
    pub synthetic: Option<String>,
    /// The sink checks contents and keeps none.
    pub discard: bool,
}

impl Measure {
    /// How often progress is told, where not as usual.
    pub fn progress_every(&self) -> Option<Duration> {
        self.measured.then_some(PROGRESS_EVERY)
    }

    /// The source's files, if they are computed.
    pub fn synthetic(&self) -> Result<Option<SyntheticSpec>, Error> {
        self.synthetic.as_deref().map(parse_synthetic).transpose()
    }
}

fn parse_synthetic(text: &str) -> Result<SyntheticSpec, Error> {
    let wrong = || Error::new(Code::Usage, format!("{text:?} is not files=N,size=BYTES,seed=N"));
    let mut spec =
        SyntheticSpec { seed: 0, files: 0, files_per_directory: FILES_PER_DIRECTORY, sizes: Sizes::Fixed(0) };
    for field in text.split(',') {
        let (name, value) = field.split_once('=').ok_or_else(wrong)?;
        let value: u64 = value.parse().map_err(|_| wrong())?;
        match name {
            "files" => spec.files = value,
            "size" => spec.sizes = Sizes::Fixed(value),
            "seed" => spec.seed = value,
            _ => return Err(wrong()),
        }
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synthetic_data_is_said_in_words() {
        let spec = parse_synthetic("files=3,size=70,seed=9").unwrap();
        assert_eq!((spec.files, spec.bytes_total(), spec.seed), (3, 210, 9));
        for wrong in ["", "files", "files=x", "files=1,colour=2", "files=-1"] {
            assert!(parse_synthetic(wrong).is_err(), "{wrong}");
        }
    }
}
