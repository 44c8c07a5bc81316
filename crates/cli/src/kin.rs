//! The same command on the same disks is the same job, though the host goes by another name by now: a container that was started
//! again, a node that gets its number with each boot.
//!
//! Where paths are on disks of this host, its name counts for the id of a job (decision 9). A job that has no record is looked
//! for under the ids that the same command had before: `kin/<hash of the command>` has them, one a line.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use haul_model::JobId;
use haul_mover::runner;
use haul_storage::local::number_of_file_system;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use serde::{Deserialize, Serialize};

use crate::job::{self, Identity, Record, read_record};
use crate::paths::{hex, unhex};

/// Ids of one command that are looked at.
const LOOKED_AT: usize = 16;
/// Names that many hosts have.
const NAMES_OF_MANY: [&str; 4] = ["localhost", "localhost.localdomain", "(none)", "?"];

/// File systems whose number is that of their device (XFS, F2FS), and whose inodes are the same on each.
const NUMBERED_BY_DEVICE: [u64; 2] = [0x5846_5342, 0xF2F5_2010];

/// Where a command was typed.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Whereabouts {
    host: String,
    boot: String,
    /// What is there of each path of this host.
    places: Vec<Place>,
}

/// A path, or the last directory on the way to it that is there: containers have other directories under one name.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
struct Place {
    /// Its bytes, in hex.
    path: String,
    /// Kind and number.
    file_system: (u64, u64),
    inode: u64,
    /// When it was made, in seconds and nanoseconds.
    born: Option<(i64, u32)>,
}

impl Place {
    /// Nothing where it is on a file system that cannot be told from others.
    fn of(path: &Path) -> Option<Place> {
        let there = path.ancestors().find(|there| there.exists())?;
        let file_system = number_of_file_system(there)??;
        let asked = StatxFlags::INO | StatxFlags::BTIME;
        let found = statx(CWD, there, AtFlags::empty(), asked).ok()?;
        let is_told = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        let born = is_told.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec));
        let is_telling = born.is_some() || !NUMBERED_BY_DEVICE.contains(&file_system.0);
        let path = hex(there.as_os_str().as_bytes());
        is_telling.then_some(Place { path, file_system, inode: found.stx_ino, born })
    }

    /// It is still that one.
    fn is_there(&self) -> bool {
        let path = unhex(&self.path).map(OsString::from_vec).map(PathBuf::from);
        path.and_then(|path| Place::of(&path)).is_some_and(|there| there == *self)
    }
}

impl Whereabouts {
    /// With these paths here.
    pub fn of<'p>(paths: impl Iterator<Item = &'p Path>) -> Option<Whereabouts> {
        let places = paths.map(Place::of).collect::<Option<_>>()?;
        Some(Whereabouts { host: runner::host(), boot: runner::boot()?, places })
    }

    /// Was this written down where the same command is typed now? Disks that were copied with all that is on them cannot be told from
    /// each other; hosts that have them are not called the same.
    fn is_of(&self, now: &Whereabouts) -> bool {
        let same_name = self.host == now.host && !NAMES_OF_MANY.contains(&&*now.host);
        // What was not there yet is where it would have been.
        let same = |(then, now): (&Place, &Place)| then.file_system == now.file_system && then.is_there();
        (same_name || self.boot == now.boot)
            && self.places.len() == now.places.len()
            && self.places.iter().zip(&now.places).all(same)
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

/// As another version may have written it.
pub fn if_readable<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Kin>, D::Error> {
    let written = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(written).ok())
}

impl Kin {
    /// Of a command for which the host counts.
    pub fn of<'p>(identity: &Identity<'_>, paths: impl Iterator<Item = &'p Path>) -> Option<Kin> {
        identity.host.as_ref()?;
        let command = identity.id_of_any_host().to_string();
        Some(Kin { command, whereabouts: Whereabouts::of(paths)? })
    }

    /// Under which id the job is known in one of these places, if not under its own.
    pub fn known_as(&self, states: &[PathBuf], own: &JobId) -> Option<JobId> {
        if states.iter().any(|state| job::directory(state, own).join("job.json").exists()) {
            return None;
        }
        states.iter().find_map(|state| self.known_in(state))
    }

    fn known_in(&self, state: &Path) -> Option<JobId> {
        let ids = std::fs::read_to_string(self.path(state)).ok()?;
        let is_it = |id: &JobId| {
            let record = read_record(&job::directory(state, id));
            record
                .and_then(|record| record.kin)
                .is_some_and(|kin| kin.command == self.command && kin.whereabouts.is_of(&self.whereabouts))
        };
        let ids = ids.lines().rev().take(LOOKED_AT).filter_map(unhex);
        ids.filter_map(|id| id.try_into().ok().map(JobId)).find(is_it)
    }

    /// The job has this id. Without it a host that is renamed begins it anew.
    pub fn note(&self, state: &Path, id: &JobId) {
        let path = self.path(state);
        let known = std::fs::read_to_string(&path).unwrap_or_default();
        let id = id.to_string();
        if known.lines().any(|known| known == id) {
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
    let (Some(state), Some(kin)) = (state, &record.kin) else { return };
    // A record may be anybody's: what it names is a file of this directory, and the job is the one that it lies at.
    let is_its_own = job.file_name() == Some(record.job.as_ref());
    if !is_its_own || unhex(&kin.command).is_none() {
        return;
    }
    let path = kin.path(state);
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    // The same command may have been typed on other hosts.
    let others: String = known.lines().filter(|id| *id != record.job).map(|id| format!("{id}\n")).collect();
    let _ = match others.is_empty() {
        true => std::fs::remove_file(&path),
        false => std::fs::write(&path, others),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_names_no_other_files() {
        let scratch = tempfile::tempdir().unwrap();
        let state = scratch.path().join("state");
        let precious = scratch.path().join("precious");
        let id = JobId([7; 16]);
        let forget_with = |command: &str, at: &str| {
            std::fs::write(&precious, b"\xff precious").unwrap();
            let kin = Kin {
                command: command.into(),
                whereabouts: Whereabouts { host: "h".into(), boot: "b".into(), places: Vec::new() },
            };
            let about = job::About { kin: Some(kin), ..job::About::default() };
            let job = job::Job::open(&state, &id, &about).unwrap();
            forget(&state.join("jobs").join(at), &job.record);
            precious.exists()
        };
        let own = id.to_string();
        assert!(forget_with(precious.to_str().unwrap(), &own));
        assert!(forget_with("../../precious", &own));
        let hex = "0123456789abcdef0123456789abcdef";
        assert!(forget_with(hex, "another") && state.join("kin").join(hex).exists());
        assert!(forget_with(hex, &own) && !state.join("kin").join(hex).exists());
    }

    #[test]
    fn a_place_is_known_by_what_is_there_and_by_the_host_or_its_boot() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        std::fs::create_dir(path("source")).unwrap();
        let paths = [path("source"), path("sink/below")];
        let here = || Whereabouts::of(paths.iter().map(PathBuf::as_path));
        let at = |host: &str, boot: &str| {
            here().map(|here| Whereabouts { host: host.into(), boot: boot.into(), ..here })
        };
        let Some(first) = at("node1", "a") else {
            return haul_testkit::lacks_here("a file system with a number of its own");
        };
        let is_of = |host: &str, boot: &str| first.is_of(&at(host, boot).unwrap());
        assert!(is_of("pod7", "a"), "another name in one boot");
        assert!(is_of("node1", "b"), "another boot under one name");
        assert!(!is_of("node2", "b"), "disks that were copied");
        let of_many = Whereabouts { host: "localhost".into(), ..first.clone() };
        assert!(
            of_many.is_of(&at("localhost", "a").unwrap()) && !of_many.is_of(&at("localhost", "b").unwrap())
        );
        // What was not there when it was written down may be there by now; not on another disk.
        std::fs::create_dir_all(path("sink/below")).unwrap();
        assert!(is_of("pod7", "a"));
        let mut moved = at("pod7", "a").unwrap();
        moved.places[1].file_system.1 += 1;
        assert!(!first.is_of(&moved));
        // Another directory has the name.
        std::fs::rename(path("source"), path("elsewhere")).unwrap();
        assert!(!is_of("pod7", "a"));
        std::fs::create_dir(path("source")).unwrap();
        assert!(!is_of("pod7", "a"));
    }
}
