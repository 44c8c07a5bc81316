//! The same command on the same disks is the same job, though the host goes by another name by now: a container that was started
//! again, a node that gets its number with each boot.
//!
//! Where paths are on disks of this host, its name counts for the id of a job (decision 9). A job that has no record is looked
//! for under the ids that the same command had before: `kin/<hash of the command>` has them, one a line.

use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use haul_model::JobId;
use haul_mover::runner;
use serde::{Deserialize, Serialize};

use crate::job::{self, Identity, Record, read_record};
use crate::paths::unhex;

/// Ids of one command that are looked at.
const LOOKED_AT: usize = 16;
/// Names that many hosts have.
const NAMES_OF_MANY: [&str; 4] = ["localhost", "localhost.localdomain", "(none)", "?"];

/// Where a command was typed.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Whereabouts {
    host: String,
    boot: String,
    /// Kind and number of the file system of each path here.
    file_systems: Vec<(u64, u64)>,
}

impl Whereabouts {
    /// With these paths here. Nothing where one of them is on a file system that cannot be told from others.
    pub fn of<'p>(mut paths: impl Iterator<Item = &'p Path>) -> Option<Whereabouts> {
        let number = |path: &Path| path.ancestors().find_map(haul_storage::local::number_of_file_system);
        Some(Whereabouts {
            host: runner::host(),
            boot: runner::boot()?,
            file_systems: paths.try_fold(Vec::new(), |mut all, path| {
                all.push(number(path)??);
                Some(all)
            })?,
        })
    }

    /// Disks that were copied with all that is on them have one number; hosts that have them are not called the same.
    fn is_same_place(&self, other: &Whereabouts) -> bool {
        let same_name = self.host == other.host && !NAMES_OF_MANY.contains(&&*self.host);
        self.file_systems == other.file_systems && (same_name || self.boot == other.boot)
    }
}

/// What the same command has in common wherever it is typed, and where it was.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Kin {
    /// Of the command without the host.
    pub command: String,
    /// Now.
    pub whereabouts: Whereabouts,
}

impl Kin {
    /// Of a command for which the host counts.
    pub fn of<'p>(identity: &Identity<'_>, paths: impl Iterator<Item = &'p Path>) -> Option<Kin> {
        identity.host.as_ref()?;
        let command = identity.id_of_any_host().to_string();
        Some(Kin { command, whereabouts: Whereabouts::of(paths)? })
    }

    /// Under which id the job is known here, if not under its own.
    pub fn known_as(&self, state: &Path, own: &JobId) -> Option<JobId> {
        if job::directory(state, own).join("job.json").exists() {
            return None;
        }
        let ids = std::fs::read_to_string(self.path(state)).ok()?;
        let is_it = |id: &JobId| {
            let record = read_record(&job::directory(state, id));
            record.and_then(|record| record.kin).is_some_and(|kin| {
                kin.command == self.command && kin.whereabouts.is_same_place(&self.whereabouts)
            })
        };
        let ids = ids.lines().rev().take(LOOKED_AT).filter_map(unhex);
        ids.filter_map(|id| id.try_into().ok().map(JobId)).find(is_it)
    }

    /// The job has this id. Without it a host that is renamed begins it anew.
    pub fn note(&self, state: &Path, id: &JobId) {
        let path = self.path(state);
        let known = std::fs::read_to_string(&path).unwrap_or_default();
        let id = id.to_string();
        if known.lines().rev().take(LOOKED_AT).any(|known| known == id) {
            return;
        }
        let _ = path.parent().map(|directory| DirBuilder::new().mode(0o700).create(directory));
        let file = File::options().create(true).append(true).mode(0o600).open(&path);
        let _ = file.and_then(|mut file| file.write_all(format!("{id}\n").as_bytes()));
    }

    fn path(&self, state: &Path) -> PathBuf {
        state.join("kin").join(&self.command)
    }
}

/// The job in this directory is forgotten.
pub fn forget(job: &Path, record: &Record) {
    let state = job.parent().and_then(Path::parent);
    if let (Some(state), Some(kin)) = (state, &record.kin) {
        let _ = std::fs::remove_file(kin.path(state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_known_by_its_disks_and_by_the_host_or_its_boot() {
        let place = |host: &str, boot: &str, disks: &[(u64, u64)]| Whereabouts {
            host: host.into(),
            boot: boot.into(),
            file_systems: disks.to_vec(),
        };
        let disks = [(1, 2), (3, 4)];
        let first = place("node1", "a", &disks);
        assert!(first.is_same_place(&place("pod7", "a", &disks)), "another name in one boot");
        assert!(first.is_same_place(&place("node1", "b", &disks)), "another boot under one name");
        assert!(!first.is_same_place(&place("node2", "b", &disks)), "disks that were copied");
        assert!(!first.is_same_place(&place("node1", "a", &disks[..1])));
        assert!(!first.is_same_place(&place("node1", "a", &[(1, 2), (3, 5)])), "another disk");
        assert!(!place("localhost", "a", &disks).is_same_place(&place("localhost", "b", &disks)));
    }
}
