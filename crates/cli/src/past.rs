//! Jobs that are done are forgotten in the end: who copies file by file would fill a home directory with their records.
//!
//! Not those whose record still decides something: of `haul cp -r data new` it says that DEST is to be the copy, not to hold it,
//! though it is there by now.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use haul_mover::owner::{is_gone, remove_directory};
use haul_mover::runner::{is_file_at, try_lock};

use crate::job::{Record, random, read_record};
use crate::kin;

/// So many jobs are kept, whatever they are.
const KEPT: usize = 1024;
/// Looked at at a time, the oldest, and as many from anywhere behind them: those that stay are never in the way of others.
const LOOKED_AT: usize = 128;
/// At a time, so that not every job has to list all others.
const FORGOTTEN: usize = 128;

/// After one more job has been done.
pub fn forget(jobs: &Path) {
    forget_beyond(jobs, KEPT);
}

fn forget_beyond(jobs: &Path, kept: usize) {
    let old = oldest(jobs, kept);
    // The newer half of what is kept stays, whatever else has to.
    let old = &old[..old.len().saturating_sub(kept / 2)];
    let (oldest, later) = old.split_at(old.len().min(LOOKED_AT));
    let mut bytes = [0; 8];
    let _ = random(&mut bytes);
    let from = usize::from_le_bytes(bytes) % later.len().max(1);
    let others = later.iter().skip(from).take(LOOKED_AT);
    // Whatever is left may be next after another job.
    oldest.iter().chain(others).filter(|job| forget_one(job)).take(FORGOTTEN).for_each(drop);
}

/// In the order in which they ended, if there are more than that.
fn oldest(jobs: &Path, kept: usize) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(jobs).into_iter().flatten().flatten();
    let entries: Vec<_> = entries.filter(|entry| !is_gone(&entry.file_name())).collect();
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
    // On NFS an exclusive lock needs a file that is open for writing.
    let Ok(lock) = std::fs::File::options().read(true).write(true).open(&path) else { return false };
    // A session that has begun meanwhile has the lock, or had it and has written into the record.
    let is_held = try_lock(&lock).unwrap_or(false) && is_file_at(&lock, &path);
    let Some(record) = read_record(job).filter(|record| is_held && is_dispensable(record)) else {
        return false;
    };
    kin::forget(job, &record);
    remove_directory(job, lock).is_ok()
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
    use crate::job::{About, Job};

    struct Jobs(tempfile::TempDir);

    impl Jobs {
        fn new() -> Jobs {
            Jobs(tempfile::tempdir().unwrap())
        }

        /// It ended so many seconds after the first one.
        fn add(&self, number: u8, change: impl FnOnce(&mut Record)) -> Job {
            let about = About { recursive: true, ..About::default() };
            let mut job = Job::open(self.0.path(), &JobId([number; 16]), &about).unwrap();
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
        assert_eq!(jobs.forget_beyond(4), 2, "more at a time than need be, and not the newest");
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
    fn those_that_stay_are_in_the_way_of_none_that_need_not() {
        let jobs = Jobs::new();
        let many = LOOKED_AT as u8 + 40;
        (0..many).for_each(|number| drop(jobs.add(number, |record| record.decision = Some("as".into()))));
        (many..many + 10).for_each(|number| drop(jobs.add(number, |_| ())));
        let was_killed = jobs.0.path().join("jobs/.gone-1");
        std::fs::create_dir(&was_killed).unwrap();
        let left = |_: &u32| jobs.forget_beyond(0) == usize::from(many) + 1;
        assert!((0..1000).any(|time| left(&time)), "they stay for ever");
        assert!(was_killed.exists() && jobs.forget_beyond(many.into()) == usize::from(many) + 1);
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
