//! State where it does not belong, for as long as it cannot be written where it does; and its way back.
//!
//! What must stay true: of one job nobody works at two places, and what is known of it is nowhere older than what is gone by.

use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use haul_model::{Code, JobId};
use haul_mover::Error;
use haul_mover::owner::{Owner, Started, make_directory, remove_directory};
use haul_topology::service::temporary_directory;

use crate::job::{directory, lock, read_record};

const KEPT_IN: &str = "; it is kept in ";

/// Is a log that is lost for this reason kept elsewhere, here or at the other host?
pub fn is_kept(cause: &str) -> bool {
    cause.contains(KEPT_IN)
}

/// Where state is kept when it cannot be written where it belongs, and what the user is told.
pub fn substitute(error: &Error, required: bool) -> Option<(PathBuf, String)> {
    if required || error.failure.code != Code::StateUnwritable {
        return None;
    }
    // What is not there may be mounted later, and state below it be hidden then.
    if !temporary_directory().is_dir() {
        return None;
    }
    let substitute = substitute_directory();
    make_directory(&substitute).ok()?;
    if !is_own(&substitute) {
        return None;
    }
    let told = std::env::var_os("TMPDIR").is_some_and(|told| Path::new(&told) == temporary_directory());
    let why = if told { ", as TMPDIR says" } else { "" };
    let cause = format!("{error}{KEPT_IN}{} for now{why}", substitute.display());
    Some((substitute, cause))
}

/// What is known of a job at its `place` comes along, unless there is something newer. An error where nobody can tell what it has
/// decided, or who is at it: DEST may be there since, and would be taken for what holds it.
pub fn bring_along(state: &Path, place: &Path, to: &Path) -> Result<(), Error> {
    let _lock = lock(to)?;
    if to.join("job.json").exists() {
        return Ok(());
    }
    let record = place.join("job.json");
    let unknown = |error: &std::io::Error| {
        Err(Error::os(Code::StateDamaged, record.display().to_string(), error)
            .hint("it may say what DEST is: make it readable again; with another state directory DEST is decided anew"))
    };
    // A log that is not complete costs resends: what it says is true wherever it lies.
    let _ = carry_files(&place.join("log"), &to.join("log"));
    match std::fs::symlink_metadata(&record) {
        Ok(_) => {
            let carried = carry_files(place, to);
            match to.join("job.json").exists() {
                true => Ok(()),
                false => unknown(&carried.err().unwrap_or_else(|| ErrorKind::InvalidInput.into())),
            }
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied && is_anothers(state) => Ok(()),
        Err(error) => unknown(&error),
    }
}

/// In a directory of another user that cannot even be looked into (`HOME=/root` of somebody else) this one has never kept anything. In
/// one of its own it may have, before a ticket expired, say.
pub fn is_anothers(state: &Path) -> bool {
    if std::fs::metadata(state).is_ok() {
        return false;
    }
    let nearest =
        state.ancestors().find_map(|directory| Some((directory, std::fs::metadata(directory).ok()?)));
    nearest.is_some_and(|(directory, found)| {
        // It is that one which lets nobody look, and not what is mounted in it.
        let refuses = rustix::fs::access(directory, rustix::fs::Access::EXEC_OK).is_err();
        refuses && found.uid() != rustix::process::geteuid().as_raw()
    })
}

/// The same for a log of the other host, where nothing is decided.
pub fn bring_log_along(state: &Path, part: &Path, substitute: &Path) {
    if !substitute.join(part).exists() {
        let _ = carry_over(&state.join(part), &substitute.join(part));
    }
}

/// State cannot be kept where it belongs, for the first reason, nor elsewhere, for the other one: it counts unless it is of the same
/// kind.
pub fn why_not(error: Error, elsewhere: Error) -> Error {
    if elsewhere.failure.code == Code::StateUnwritable { error } else { elsewhere }
}

pub fn substitute_directory() -> PathBuf {
    temporary_directory().join(format!("haul-state-{}", rustix::process::geteuid().as_raw()))
}

/// Anybody may have made this name.
pub fn is_own(directory: &Path) -> bool {
    std::fs::symlink_metadata(directory).is_ok_and(|found| {
        found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0
    })
}

fn carry_back(from: &Path, to: &Path) -> std::io::Result<()> {
    // It ended before it had one: what is here is all that is known.
    if !from.join("log").exists() {
        return carry_over(from, to);
    }
    // Logs of the same numbers are others.
    match std::fs::remove_dir_all(to.join("log")) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => carry_over(from, to),
    }
}

fn carry_over(from: &Path, to: &Path) -> std::io::Result<()> {
    // The record last: where it is, all else is.
    carry_files(&from.join("log"), &to.join("log"))?;
    carry_files(from, to)
}

fn carry_files(from: &Path, to: &Path) -> std::io::Result<()> {
    let files = match std::fs::read_dir(from) {
        // The log may be where the source is.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        files => files?,
    };
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(to)?;
    for file in files {
        let file = file?;
        if file.file_type()?.is_file() && file.file_name() != "lock" && file.file_name() != "owner.lock" {
            // A record that is cut off could not be read.
            let fresh = to.join("carried.new");
            std::fs::copy(file.path(), &fresh)?;
            std::fs::rename(&fresh, to.join(file.file_name()))?;
        }
    }
    Ok(())
}

/// Where a job was kept while its place could not be written; nobody works there.
pub struct Elsewhere {
    directory: PathBuf,
    lock: std::fs::File,
}

impl Elsewhere {
    /// What has come back is gone by from now on; what stays here would be older.
    pub fn remove(self) {
        if let Some(record) = read_record(&self.directory) {
            crate::kin::forget(&self.directory, &record);
        }
        let _ = remove_directory(&self.directory, self.lock);
    }
}

/// What a job has come to know since its `place` could not be written comes back there. Without it DEST would be decided
/// again, where the job has made it since.
pub fn bring_back(state: &Path, id: &JobId, place: &Path) -> Result<Option<Elsewhere>, Error> {
    let substitute = substitute_directory();
    let from = directory(&substitute, id);
    if state == substitute || !is_own(&substitute) || read_record(&from).is_none() {
        return Ok(None);
    }
    let lock = lock(&from)?;
    // By the time alone nothing is told: one that was begun where this one could not be seen has decided nothing, or something else.
    let sessions = |directory| read_record(directory).map_or(0, |record| record.sessions);
    if sessions(&from) > sessions(place) {
        let unwritable = |error| {
            Error::os(Code::StateUnwritable, place.display().to_string(), &error)
                .hint(haul_mover::owner::state_hint(&error))
        };
        carry_back(&from, place).map_err(unwritable)?;
    }
    Ok(Some(Elsewhere { directory: from, lock }))
}

/// The same for a source at the other host, where nothing is decided: what cannot be brought back costs resends. `used` is when its
/// place was used last, before this session.
pub fn bring_log_back(state: &Path, part: &Path, started: Option<&Started>, used: Option<SystemTime>) {
    let substitute = substitute_directory();
    if state != substitute && is_own(&substitute) {
        bring_log_back_from(&substitute, state, part, started, used);
    }
}

fn bring_log_back_from(
    substitute: &Path,
    state: &Path,
    part: &Path,
    started: Option<&Started>,
    used: Option<SystemTime>,
) {
    let (from, place) = (substitute.join(part), state.join(part));
    if !from.is_dir() {
        return;
    }
    let used_there = used_last(&from);
    let Ok(owner) = Owner::claim(&from, started) else { return };
    let epoch = |directory: &Path| -> Option<u32> {
        std::fs::read_to_string(directory.join("epoch")).ok()?.trim().parse().ok()
    };
    // Both are those of a session that has just begun. Where the place could not be read there they count apart.
    let highest = epoch(&from).max(epoch(&place));
    let is_newer = epoch(&from) > epoch(&place) || used_there > used;
    if !is_newer {
        return owner.remove();
    }
    if carry_back(&from, &place).is_ok() {
        owner.remove();
        let fresh = place.join("epoch.new");
        let written = highest.map_or(Ok(()), |epoch| std::fs::write(&fresh, format!("{epoch}\n")));
        let _ = written.and_then(|()| std::fs::rename(&fresh, place.join("epoch")));
    }
}

/// When a session began last that has its state there.
pub fn used_last(directory: &Path) -> Option<SystemTime> {
    std::fs::metadata(directory.join("epoch")).ok()?.modified().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Places(tempfile::TempDir);

    impl Places {
        fn new() -> Places {
            let places = Places(tempfile::tempdir().unwrap());
            std::fs::create_dir_all(places.place().join("log")).unwrap();
            std::fs::write(places.place().join("log/entries"), "what is durable").unwrap();
            places
        }

        fn state(&self) -> PathBuf {
            self.0.path().join("state")
        }

        fn place(&self) -> PathBuf {
            self.state().join("jobs/1")
        }

        fn there(&self) -> PathBuf {
            self.0.path().join("elsewhere/jobs/1")
        }

        fn bring_along(&self) -> bool {
            match bring_along(&self.state(), &self.place(), &self.there()) {
                Ok(()) => true,
                Err(error) => {
                    assert_eq!(error.failure.code, Code::StateDamaged, "{error}");
                    false
                }
            }
        }

        fn record_there(&self) -> Option<String> {
            std::fs::read_to_string(self.there().join("job.json")).ok()
        }
    }

    #[test]
    fn a_record_comes_along_also_where_an_earlier_command_was_killed_before_it_did() {
        let places = Places::new();
        std::fs::write(places.place().join("job.json"), "decided").unwrap();
        std::fs::create_dir_all(places.there().join("log")).unwrap();
        std::fs::write(places.there().join("carried.new"), "deci").unwrap();
        assert!(places.bring_along());
        assert_eq!(places.record_there().as_deref(), Some("decided"));
        assert!(places.there().join("log/entries").exists());
        std::fs::write(places.there().join("job.json"), "newer").unwrap();
        assert!(places.bring_along());
        assert_eq!(places.record_there().as_deref(), Some("newer"));
    }

    /// A session at each of these, one after the other, and what its log says; then what is known at the place.
    fn after_sessions_at(places: &[&str]) -> String {
        let bed = tempfile::tempdir().unwrap();
        let part = Path::new("far/1");
        let own = |name: &str| bed.path().join(name);
        let session = |at: &str, log: &str| {
            let directory = own(at).join(part);
            Owner::claim(&directory, None).unwrap();
            std::fs::create_dir_all(directory.join("log")).unwrap();
            std::fs::write(directory.join("log/entries"), log).unwrap();
            // Times have steps.
            std::thread::sleep(std::time::Duration::from_millis(30));
        };
        for (number, at) in places.iter().enumerate() {
            session(at, &number.to_string());
        }
        let used = used_last(&own("state").join(part));
        Owner::claim(&own("state").join(part), None).unwrap();
        bring_log_back_from(&own("elsewhere"), &own("state"), part, None, used);
        assert!(!own("elsewhere").join(part).exists(), "only one place has it");
        std::fs::read_to_string(own("state").join(part).join("log/entries")).unwrap()
    }

    #[test]
    fn the_log_of_the_last_session_counts_wherever_that_was() {
        assert_eq!(after_sessions_at(&["elsewhere"]), "0");
        assert_eq!(
            after_sessions_at(&["state", "state", "state", "elsewhere"]),
            "3",
            "though there were more here"
        );
        assert_eq!(after_sessions_at(&["elsewhere", "state"]), "1");
    }

    #[test]
    fn a_job_of_which_nobody_can_tell_what_it_has_decided_does_not_begin_anew_elsewhere() {
        let places = Places::new();
        assert!(places.bring_along(), "there is none");
        // It cannot be read as a file.
        std::fs::create_dir(places.place().join("job.json")).unwrap();
        assert!(!places.bring_along());
        assert_eq!(places.record_there(), None);
    }
}
