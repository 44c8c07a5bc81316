//! The attributes of directories, deepest first, when everything below them is done.
//!
//! Records come from the spool last first, so a directory is opened below its parents while they are still writable and
//! searchable for us. Descriptors of the last parents are kept; a deeper chain is walked again from there.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use haul_model::limits::BATCH_ITEMS_MAX;
use haul_model::{Code, Failure};
use rustix::fs::{self, Mode};
use rustix::io::Errno;

use super::PosixSink;
use super::attributes::{Preserve, attributes_failure, set_owner, status, timestamps};
use super::directories::{check_identity, reopen_failure};
use super::durable::{Wholes, sync_failure};
use super::faults::{Reach, SyncPoint};
use super::file_systems::SyncMode;
use super::spool::{Lookup, Record, RecordId};
use crate::confine::{open_directory, open_some_directories, sink_failure};

/// Bytes of a path in a report; a longer one loses its beginning.
const PATH_BYTES_MAX: usize = 4096;

impl PosixSink {
    pub(super) fn finish_directories(&self) -> Vec<(Box<[u8]>, Failure)> {
        let mut failed = Vec::new();
        let mut open = Open::new(self.directories.open_max(), self.spool.lookup());
        for step in self.spool.finish() {
            let result = match step {
                Ok((id, record)) => self
                    .finish_directory(&mut open, id, &record)
                    .map_err(|failure| (self.path_of(&record), failure)),
                Err(errno) => Err((b".".to_vec(), Failure::os(Code::StateUnwritable, errno.raw_os_error()))),
            };
            if let Err((path, failure)) = result
                && failed.len() < BATCH_ITEMS_MAX
            {
                failed.push((path.into(), failure));
            }
        }
        drop(open);
        if let Err(failure) = self.finish_destination() {
            failed.truncate(BATCH_ITEMS_MAX - 1);
            failed.push((b"."[..].into(), failure));
        }
        failed
    }

    fn finish_directory(&self, open: &mut Open<'_>, id: RecordId, record: &Record) -> Result<(), Failure> {
        let directory = match open.get(id) {
            Some(directory) => directory,
            None if record.parent == RecordId::HOLDER && record.name.is_empty() => {
                self.directories.descriptor(&self.holder)?
            }
            None => {
                let parent = self.open_parent(open, record.parent)?;
                let found = open_directory(parent.as_fd(), &record.name).map_err(reopen_failure)?;
                check_identity(&found, record.identity)?;
                Arc::new(found)
            }
        };
        if self.sweep_late && !record.made {
            self.sweep(directory.as_fd());
        }
        let set = self.set_directory_attributes(&directory, record).map_err(attributes_failure);
        // Its names are made durable even where its attributes could not be set.
        let whole = self.file_systems.is_whole(record.identity.0);
        if whole || self.sync == SyncMode::Never {
            return set;
        }
        let synced = self.hooks.sync(SyncPoint::DirectoryAttributes, directory.as_fd(), Reach::Everything);
        set.and(synced.map_err(sync_failure))
    }

    fn set_directory_attributes(&self, directory: &OwnedFd, record: &Record) -> rustix::io::Result<()> {
        let wanted = &record.attributes;
        let present = status(directory.as_fd())?;
        let mode = Preserve::directory_mode(wanted, present.mode);
        // One brick tells that it has them; another one may have been away when they were set.
        let on_bricks = self.file_systems.is_gluster(record.identity.0);
        set_if(self.preserve.differs_in_owner(&present, wanted), self.preserve.owner && on_bricks, || {
            set_owner(directory.as_fd(), wanted)
        })?;
        set_if(present.mode != mode, on_bricks, || fs::fchmod(directory, Mode::from_raw_mode(mode)))?;
        // A directory in which nothing has changed is left alone, its atime too.
        set_if(present.mtime != wanted.mtime, on_bricks, || fs::futimens(directory, &timestamps(wanted)?))
    }

    /// Opens the directory of a record, from the nearest of its parents that is open.
    fn open_parent(&self, open: &mut Open<'_>, id: RecordId) -> Result<Arc<OwnedFd>, Failure> {
        let mut below = Vec::new();
        let mut next = id;
        let mut base = loop {
            if let Some(found) = open.get(next) {
                break found;
            }
            if next == RecordId::HOLDER {
                break self.directories.descriptor(&self.holder)?;
            }
            let record = open.records.get(next).map_err(spool_failure)?;
            let parent = record.parent;
            // The held destination: its record is not a step.
            if !record.name.is_empty() {
                below.push((next, record));
            }
            next = parent;
        };
        while !below.is_empty() {
            let kept = below.len() <= open.max / 2;
            let names: Vec<&[u8]> = if kept {
                // One at a time: each of these is needed soon, when its own turn comes.
                below.last().map(|(_, record)| &*record.name).into_iter().collect()
            } else {
                below[open.max / 2..].iter().rev().map(|(_, record)| &*record.name).collect()
            };
            let (reached, count) = open_some_directories(base.as_fd(), &names).map_err(reopen_failure)?;
            drop(names);
            let rest = below.len() - count;
            let (id, identity) = (below[rest].0, below[rest].1.identity);
            check_identity(&reached, identity)?;
            below.truncate(rest);
            base = Arc::new(reached);
            if kept {
                open.keep(id, Arc::clone(&base));
            }
        }
        Ok(base)
    }

    /// What remains beside the directories: the names of the SOURCEs themselves, and whole file systems.
    fn finish_destination(&self) -> Result<(), Failure> {
        let held = self.directories.descriptor(&self.holder)?;
        if self.holder_has_files.load(Ordering::Relaxed) {
            self.sweep(held.as_fd());
        }
        if self.sync == SyncMode::Never {
            return Ok(());
        }
        let mut whole = Wholes::default();
        let systems = self.file_systems.all();
        systems.iter().filter(|system| system.whole).for_each(|system| whole.add(system));
        let mut result = Ok(());
        whole.sync(self, SyncPoint::FileSystemDirectories);
        for system in &systems {
            result = result.and(whole.result(system).unwrap_or(Ok(())));
        }
        if !self.holder.file_system.whole {
            let synced = self.hooks.sync(SyncPoint::DestinationName, held.as_fd(), Reach::Everything);
            result = result.and(synced.map_err(sync_failure));
        }
        result
    }

    /// Below the destination, for a report.
    fn path_of(&self, record: &Record) -> Vec<u8> {
        let mut records = self.spool.lookup();
        let mut names = vec![record.name.clone()];
        let mut bytes = record.name.len();
        let mut next = record.parent;
        while next != RecordId::HOLDER {
            let Ok(record) = records.get(next) else { break };
            bytes += record.name.len() + 1;
            if bytes > PATH_BYTES_MAX {
                names.push(b"..."[..].into());
                break;
            }
            next = record.parent;
            names.push(record.name);
        }
        if next == RecordId::HOLDER && !self.named_in_reports {
            names.pop();
        }
        names.retain(|name| !name.is_empty());
        names.reverse();
        if names.is_empty() { b".".to_vec() } else { names.join(&b'/') }
    }
}

/// Sets what has to be set; and once more, if that can be, what may be set only in part. Who does not own the directory
/// may not, and need not.
fn set_if(
    has_to: bool,
    in_part: bool,
    set: impl FnOnce() -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    if has_to {
        set()
    } else {
        if in_part {
            let _ = set();
        }
        Ok(())
    }
}

fn spool_failure(errno: Errno) -> Failure {
    Failure::os(Code::StateUnwritable, sink_failure(errno).errno)
}

/// Directories that are open because others in them were finished.
struct Open<'a> {
    records: Lookup<'a>,
    max: usize,
    descriptors: HashMap<RecordId, Arc<OwnedFd>>,
    order: VecDeque<RecordId>,
}

impl<'a> Open<'a> {
    fn new(max: usize, records: Lookup<'a>) -> Self {
        Open { records, max: max.max(2), descriptors: HashMap::new(), order: VecDeque::new() }
    }

    fn get(&self, id: RecordId) -> Option<Arc<OwnedFd>> {
        self.descriptors.get(&id).cloned()
    }

    fn keep(&mut self, id: RecordId, descriptor: Arc<OwnedFd>) {
        if self.order.len() >= self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.descriptors.remove(&oldest);
        }
        self.order.push_back(id);
        self.descriptors.insert(id, descriptor);
    }
}
