//! Jobs that are done are forgotten in the end: who copies file by file would fill a home directory with their records.
//!
//! Not those whose record still decides something: of `haul cp -r data new` it says that DEST is to be the copy, not to hold it,
//! though it is there by now.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use haul_mover::owner::remove_directory;
use haul_mover::runner::{is_file_at, try_lock};

use crate::job::{Record, read_record};

/// So many jobs are kept, whatever they are.
const KEPT: usize = 1024;
/// Looked at at a time, the oldest first.
const LOOKED_AT: usize = 256;
/// At a time, so that not every job has to list all others.
const FORGOTTEN: usize = 128;

/// After one more job has been done.
pub fn forget(jobs: &Path) {
    forget_beyond(jobs, KEPT);
}

fn forget_beyond(jobs: &Path, kept: usize) {
    let old = oldest(jobs, kept);
    let forgotten = old.iter().take(LOOKED_AT).filter(|job| forget_one(job));
    // Whatever is left is next after another job.
    forgotten.take(FORGOTTEN).for_each(drop);
}

/// In the order in which they ended, if there are more than that.
fn oldest(jobs: &Path, kept: usize) -> Vec<PathBuf> {
    let entries: Vec<_> = std::fs::read_dir(jobs).into_iter().flatten().flatten().collect();
    if entries.len() <= kept {
        return Vec::new();
    }
    let ended = |entry: std::fs::DirEntry| -> Option<(SystemTime, PathBuf)> {
        Some((entry.metadata().ok()?.modified().ok()?, entry.path()))
    };
    let mut known: Vec<_> = entries.into_iter().filter_map(ended).collect();
    known.sort();
    known.into_iter().map(|(_, job)| job).collect()
}

fn forget_one(job: &Path) -> bool {
    if !read_record(job).is_some_and(|record| is_dispensable(&record)) {
        return false;
    }
    let path = job.join("lock");
    let Ok(lock) = std::fs::File::open(&path) else { return false };
    // A session that has begun meanwhile has the lock, or had it and has written into the record.
    let is_held = try_lock(&lock).unwrap_or(false) && is_file_at(&lock, &path);
    let is_forgotten = is_held && read_record(job).is_some_and(|record| is_dispensable(&record));
    if is_forgotten {
        remove_directory(job);
    }
    is_forgotten
}

/// The same command would do the same without it.
fn is_dispensable(record: &Record) -> bool {
    record.state == "done" && (record.decision.as_deref() == Some("into") || !record.recursive)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use haul_model::JobId;

    use super::*;
    use crate::job::Job;

    struct Jobs(tempfile::TempDir);

    impl Jobs {
        fn new() -> Jobs {
            Jobs(tempfile::tempdir().unwrap())
        }

        /// It ended so many seconds after the first one.
        fn add(&self, number: u8, change: impl FnOnce(&mut Record)) -> Job {
            let mut job =
                Job::open(self.0.path(), &JobId([number; 16]), vec![], "d".into(), None, true).unwrap();
            job.record.state = "done".into();
            job.record.decision = Some("into".into());
            change(&mut job.record);
            job.save().unwrap();
            let ended = UNIX_EPOCH + Duration::from_secs(1_000_000 + u64::from(number));
            std::fs::File::open(&job.directory).unwrap().set_modified(ended).unwrap();
            job
        }

        fn forget_beyond(&self, kept: usize) -> usize {
            let jobs = self.0.path().join("jobs");
            forget_beyond(&jobs, kept);
            std::fs::read_dir(jobs).unwrap().count()
        }
    }

    #[test]
    fn nothing_is_forgotten_before_there_are_many() {
        let jobs = Jobs::new();
        (0..5).for_each(|number| drop(jobs.add(number, |_| ())));
        assert_eq!(jobs.forget_beyond(5), 5);
        assert_eq!(jobs.forget_beyond(4), 0, "more at a time than need be");
    }

    #[test]
    fn the_oldest_go_first_and_not_all_at_once() {
        let jobs = Jobs::new();
        (0..200).rev().for_each(|number| drop(jobs.add(number, |_| ())));
        assert_eq!(jobs.forget_beyond(100), 200 - FORGOTTEN);
        let left = |number: u8| crate::job::directory(jobs.0.path(), &JobId([number; 16])).exists();
        assert!(!left(0) && !left(FORGOTTEN as u8 - 1) && left(FORGOTTEN as u8) && left(199));
    }

    #[test]
    fn what_is_needed_stays() {
        let jobs = Jobs::new();
        for state in ["running", "incomplete", "failed", "interrupted"] {
            drop(jobs.add(state.len() as u8, |record| record.state = state.into()));
        }
        // What DEST is to be only the record knows; of a file it is clear.
        drop(jobs.add(1, |record| record.decision = Some("as".into())));
        drop(jobs.add(2, |record| (record.decision, record.recursive) = (Some("as".into()), false)));
        drop(jobs.add(3, |record| record.decision = None));
        let held = jobs.add(4, |_| ());
        assert_eq!(jobs.forget_beyond(0), 7, "one of them is of no use");
        drop(held);
        assert_eq!(jobs.forget_beyond(0), 6);
    }
}
