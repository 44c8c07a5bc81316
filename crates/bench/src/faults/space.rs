//! Figure 7 at any scale: the room that the logs take, which one run of each tells.

use std::collections::BTreeMap;
use std::io;

use super::overhead::measure;
use super::transfer::Setup;
use super::variant::Variant;
use crate::evaluation::say;

/// The most that the logs of a transfer took at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Logs.
    pub files: u64,
}

/// One run of each; `keep` is told what is known after each.
pub fn run(
    base: &Setup,
    variants: &[Variant],
    mut keep: impl FnMut(&BTreeMap<Variant, Room>) -> io::Result<()>,
) -> io::Result<()> {
    let mut rooms = BTreeMap::new();
    for &variant in variants {
        let sample = measure(&Setup { variant, ..base.clone() })?;
        say(&format!(
            "{} workload, {variant}: {} bytes in {:.0} s",
            base.workload.name, sample.log_bytes, sample.seconds
        ));
        rooms.insert(variant, Room { bytes: sample.log_bytes, files: sample.log_files });
        keep(&rooms)?;
    }
    Ok(())
}
