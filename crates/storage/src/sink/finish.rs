//! The attributes of directories, deepest first, when everything below them is done.
//!
//! Records come from the spool last first, so a directory is opened below its parents while they are still writable and
//! searchable for us. Descriptors of the last parents are kept; a deeper chain is walked again from there. Each directory
//! is a few calls that wait for storage, so where that is far several threads take their turns, each directory after all
//! that are below it.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_model::report::FailedPaths;
use haul_model::{Code, Failure};
use rustix::fs::{self, AtFlags, CWD, Mode};
use rustix::io::Errno;

use super::attributes::{Preserve, Status, attributes_failure, refuses, set_owner, status, timestamps};
use super::directories::{check_identity, reopen_failure};
use super::durable::{Wholes, sync_failure};
use super::faults::SyncPoint;
use super::file_systems::SyncMode;
use super::spool::{Lookup, Record, RecordId};
use super::upwards::{Below, Upwards};
use super::{PosixSink, lock};
use crate::confine::{open_directory, open_some_directories, sink_failure};

/// Bytes of a path in a report; a longer one loses its beginning.
const PATH_BYTES_MAX: usize = 4096;

/// Threads that finish directories, where each of them waits for storage and descriptors suffice.
const THREADS_MAX: u32 = 16;
/// Of those that may be open because others in them are finished, each thread may need as many for itself.
const DESCRIPTORS_PER_THREAD: usize = 4;
/// Another thread pays after so many directories and so much time, for each that there is.
const DIRECTORIES_PER_THREAD: u32 = 8;
const TIME_PER_THREAD: Duration = Duration::from_millis(2);
/// Where SOURCEs meet so many directories are closed to us after all others; more are rare, and take their turn.
const CLOSED_LATE_MAX: usize = 1 << 16;
/// What the owner of a directory may do with it when it is open to him.
const OPEN: u32 = 0o700;
/// Storage is far if a directory takes longer: then threads wait, rather than compete for processors.
const FAR: Duration = Duration::from_micros(50);

impl PosixSink {
    pub(super) fn finish_directories(&self, whole: bool) -> FailedPaths {
        let open = Mutex::new(Open::new(self.directories.open_max(), self.spool.lookup()));
        let closed = Mutex::new(Closed::default());
        let (failures, finished) = (Mutex::new(FailedPaths::default()), AtomicU64::new(0));
        let given_up = || self.given_up.load(Ordering::Relaxed);
        let steps = self.spool.finish().take_while(|_| !given_up());
        let steps = Upwards::new(steps.map(|step| step.map(|(id, record)| Step(id, record))));
        let finish = |Step(id, record): &Step| {
            if given_up() {
                return 0;
            }
            if let Err(failure) = self.finish_directory((&open, &closed), *id, record, whole) {
                lock(&failures).add(failure, || self.path_of(record).into());
            }
            // Before this one.
            finished.fetch_add(1, Ordering::Relaxed)
        };
        let threads_max = (self.directories.open_max() / DESCRIPTORS_PER_THREAD) as u32;
        let mut crew = Crew::of_one(threads_max.min(THREADS_MAX));
        thread::scope(|scope| {
            steps.run(|step| {
                if crew.grows(finish(step)) {
                    let help = || steps.run(|step| _ = finish(step));
                    // Where no thread can be had, this one does it all.
                    let _ = thread::Builder::new().name("haul-finish".into()).spawn_scoped(scope, help);
                }
            });
        });
        let closed = closed.into_inner().unwrap_or_else(PoisonError::into_inner);
        for Late { id, record, mode } in closed.in_order().take_while(|_| !given_up()) {
            if let Err(failure) = self.close_directory(&open, id, &record, mode) {
                lock(&failures).add(failure, || self.path_of(&record).into());
            }
        }
        drop(open);
        if given_up() {
            return FailedPaths::default();
        }
        let failed = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (unread, lost) = (steps.error(), self.spool.lost());
        let unread = unread.or(lost.map(|(_, why)| why)).map(spool_failure);
        // What is about all of them is named in any case.
        let about_all = unread.into_iter().chain(self.finish_destination(whole).err());
        let failed = failed.after(about_all.map(|failure| (self.own_name.clone(), failure)));
        let more = failed.more() + lost.map_or(0, |(count, _)| count - 1);
        failed.with_more(more)
    }

    fn finish_directory(
        &self,
        (open, closed): (&Mutex<Open<'_>>, &Mutex<Closed>),
        id: RecordId,
        record: &Record,
        whole: bool,
    ) -> Result<(), Failure> {
        let directory = self.open_recorded(open, id, record)?;
        if whole && self.may_meet && !record.made {
            self.sweep(directory.as_fd());
        }
        let set = if record.is_holder() {
            // DEST itself, of which only the contents are a SOURCE's: a home directory, or one that many share.
            match record.attributes.mode {
                Record::MODE_STAYS => Ok(()),
                mode => fs::fchmod(&directory, Mode::from_raw_mode(mode)),
            }
        } else {
            self.set_directory_attributes(&directory, closed, id, record).or_else(|errno| {
                // Who has put something into a directory of somebody else's has no say in what it looks like.
                if errno == Errno::PERM && !record.made && is_of_somebody_else(&directory)? {
                    Ok(())
                } else {
                    Err(errno)
                }
            })
        };
        // Its names are made durable even where its attributes could not be set.
        set.map_err(attributes_failure).and(self.sync_finished(&directory, record))
    }

    /// The mode that it did not get in its turn.
    fn close_directory(
        &self,
        open: &Mutex<Open<'_>>,
        id: RecordId,
        record: &Record,
        mode: u32,
    ) -> Result<(), Failure> {
        let directory = self.open_recorded(open, id, record)?;
        self.set_directory_mode(&directory, record, mode).map_err(attributes_failure)?;
        self.sync_finished(&directory, record)
    }

    fn sync_finished(&self, directory: &OwnedFd, record: &Record) -> Result<(), Failure> {
        if self.file_systems.is_whole(record.identity.0) || self.sync == SyncMode::Never {
            return Ok(());
        }
        let synced = self.hooks.sync_directory(SyncPoint::DirectoryAttributes, directory.as_fd());
        synced.map_err(sync_failure)
    }

    fn open_recorded(
        &self,
        open: &Mutex<Open<'_>>,
        id: RecordId,
        record: &Record,
    ) -> Result<Arc<OwnedFd>, Failure> {
        let known = lock(open).get(id);
        if let Some(directory) = known {
            return Ok(directory);
        }
        if record.is_holder() {
            return self.directories.descriptor(&self.holder);
        }
        let parent = self.open_parent(open, record.parent)?;
        let open_it = || open_directory(parent.as_fd(), &record.name);
        let found = self.directories.retry_without_cache(open_it).map_err(reopen_failure)?;
        check_identity(&found, record.identity)?;
        Ok(Arc::new(found))
    }

    fn set_directory_attributes(
        &self,
        directory: &OwnedFd,
        closed: &Mutex<Closed>,
        id: RecordId,
        record: &Record,
    ) -> rustix::io::Result<()> {
        let wanted = &record.attributes;
        let present = status(directory.as_fd())?;
        let mode = Preserve::directory_mode(wanted, present.mode);
        // Another SOURCE may have directories in it whose turn comes later.
        let waits = self.may_meet && lock(closed).has_word(record, mode, present.mode);
        let mode_now = if waits { mode | OPEN } else { mode };
        // One brick tells that it has them; another one may have been away when they were set.
        let on_bricks = self.file_systems.is_gluster(record.identity.0);
        set_if(self.preserve.differs_in_owner(&present, wanted), self.preserve.owner && on_bricks, || {
            set_owner(directory.as_fd(), wanted)
        })?;
        set_if(present.mode != mode_now, on_bricks, || self.set_directory_mode(directory, record, mode_now))?;
        if waits {
            lock(closed).add(id, record, mode);
        }
        // To see whether modes can be set something may have been made in it.
        let present = if present.mode == mode_now { present } else { status(directory.as_fd())? };
        // A directory in which nothing has changed is left alone, its atime too.
        set_if(present.mtime != wanted.mtime, on_bricks, || fs::futimens(directory, &timestamps(wanted)?))
    }

    fn set_directory_mode(&self, directory: &OwnedFd, record: &Record, mode: u32) -> rustix::io::Result<()> {
        // A directory of somebody else keeps its mode. Nothing is made in it to see whether modes can be set: its times would not be as
        // they were.
        let is_somebody_elses = || !record.made && is_of_somebody_else(directory).unwrap_or(false);
        let stores_modes = || {
            let file_system = self.file_systems.known(record.identity.0);
            file_system.is_none_or(|it| it.stores_modes(directory.as_fd(), &self.tokens))
        };
        match fs::fchmod(directory, Mode::from_raw_mode(mode)) {
            Err(Errno::PERM) if is_somebody_elses() => Ok(()),
            Err(errno) if !refuses(errno) || stores_modes() => Err(errno),
            _ => Ok(()),
        }
    }

    /// Opens the directory of a record, from the nearest of its parents that is open.
    fn open_parent(&self, open: &Mutex<Open<'_>>, id: RecordId) -> Result<Arc<OwnedFd>, Failure> {
        let mut below = Vec::new();
        let mut next = id;
        let mut known = lock(open);
        let open_max = known.max;
        let mut base = loop {
            if let Some(found) = known.get(next) {
                break found;
            }
            if next == RecordId::HOLDER {
                break self.directories.descriptor(&self.holder)?;
            }
            let record = known.records.get(next).map_err(spool_failure)?;
            let parent = record.parent;
            // The held destination: its record is not a step.
            if !record.name.is_empty() {
                below.push((next, record));
            }
            next = parent;
        };
        drop(known);
        while !below.is_empty() {
            let kept = below.len() <= open_max / 2;
            let names: Vec<&[u8]> = if kept {
                // One at a time: each of these is needed soon, when its own turn comes.
                below.last().map(|(_, record)| &*record.name).into_iter().collect()
            } else {
                below[open_max / 2..].iter().rev().map(|(_, record)| &*record.name).collect()
            };
            let open_them = || open_some_directories(base.as_fd(), &names);
            let (reached, count) = self.directories.retry_without_cache(open_them).map_err(reopen_failure)?;
            drop(names);
            let rest = below.len() - count;
            let (id, identity) = (below[rest].0, below[rest].1.identity);
            check_identity(&reached, identity)?;
            below.truncate(rest);
            base = Arc::new(reached);
            if kept {
                lock(open).keep(id, Arc::clone(&base));
            }
        }
        Ok(base)
    }

    /// What remains beside the directories: the names of the SOURCEs themselves, and whole file systems.
    fn finish_destination(&self, whole: bool) -> Result<(), Failure> {
        let held = self.directories.descriptor(&self.holder)?;
        if whole && self.holder_has_files.load(Ordering::Relaxed) {
            self.sweep(held.as_fd());
        }
        let stays = self.is_where_it_was(&held);
        if self.sync == SyncMode::Never {
            return stays;
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
            let synced = self.hooks.sync_directory(SyncPoint::DestinationName, held.as_fd());
            result = result.and(synced.map_err(sync_failure));
        }
        result.and(stays)
    }

    /// What was opened by that path at the beginning is what a user finds there at the end.
    fn is_where_it_was(&self, held: &OwnedFd) -> Result<(), Failure> {
        let held = status(held.as_fd()).map_err(sink_failure)?;
        match fs::statat(CWD, &self.holder_path, AtFlags::empty()).map(Status::from) {
            Ok(there) if (there.device, there.inode) != (held.device, held.inode) => {
                Err(Code::SinkMoved.into())
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Err(Code::SinkMoved.into()),
            _ => Ok(()),
        }
    }

    /// Below the destination, for a report: with its own name in front where that is what a SOURCE becomes, as in all reports.
    fn path_of(&self, record: &Record) -> Vec<u8> {
        let mut records = self.spool.lookup();
        let mut names = vec![record.name.clone()];
        let mut bytes = record.name.len();
        let mut next = record.parent;
        while next != RecordId::HOLDER {
            let Ok(record) = records.get(next) else {
                names.push(b"..."[..].into());
                break;
            };
            bytes += record.name.len() + 1;
            if bytes > PATH_BYTES_MAX {
                names.push(b"..."[..].into());
                break;
            }
            next = record.parent;
            names.push(record.name);
        }
        names.retain(|name| !name.is_empty());
        names.reverse();
        names.join(&b'/')
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

fn is_of_somebody_else(directory: &OwnedFd) -> rustix::io::Result<bool> {
    Ok(status(directory.as_fd())?.uid != rustix::process::geteuid().as_raw())
}

/// Where descriptors are missing there is nothing wrong with its directory.
pub(super) fn spool_failure(errno: Errno) -> Failure {
    let code = match errno {
        Errno::MFILE | Errno::NFILE => Code::SystemRefused,
        _ => Code::StateUnwritable,
    };
    Failure::os(code, sink_failure(errno).errno)
}

/// A directory whose turn it is.
struct Step(RecordId, Record);

impl Below for Step {
    type Id = RecordId;
    type Identity = (u64, u64);

    fn id(&self) -> RecordId {
        self.0
    }

    fn parent(&self) -> RecordId {
        self.1.parent
    }

    fn identity(&self) -> (u64, u64) {
        self.1.identity
    }
}

/// Directories that are closed to us when all others are finished, by what they are: the last word counts.
#[derive(Default)]
struct Closed(
    /// The number of its turn beside each.
    HashMap<(u64, u64), (u64, Late)>,
    /// Turns so far.
    u64,
);

struct Late {
    id: RecordId,
    record: Record,
    mode: u32,
}

impl Closed {
    /// The directory is to have this mode, whatever was said of it before. Is it closed to us then, and can that wait?
    fn has_word(&mut self, record: &Record, mode: u32, present: u32) -> bool {
        self.0.remove(&record.identity);
        // One that is as it should be is left alone: it may be somebody else's.
        mode != present && mode & OPEN != OPEN && self.0.len() < CLOSED_LATE_MAX
    }

    fn add(&mut self, id: RecordId, record: &Record, mode: u32) {
        let Closed(late, turn) = self;
        *turn += 1;
        late.insert(record.identity, (*turn, Late { id, record: record.clone(), mode }));
    }

    /// As they had their turns: those below others before them.
    fn in_order(self) -> impl Iterator<Item = Late> {
        let mut late: Vec<_> = self.0.into_values().collect();
        late.sort_unstable_by_key(|(turn, _)| *turn);
        late.into_iter().map(|(_, late)| late)
    }
}

/// How many threads finish directories.
struct Crew {
    begun: Instant,
    threads: u32,
    threads_max: u32,
    /// As many can be busy at once; asked for when it matters.
    processors: Option<u32>,
}

impl Crew {
    fn of_one(threads_max: u32) -> Self {
        Crew { begun: Instant::now(), threads: 1, threads_max, processors: None }
    }

    /// One more pays, now that so many directories are finished.
    fn grows(&mut self, finished: u64) -> bool {
        let (threads, taken) = (self.threads, self.begun.elapsed());
        if finished < u64::from(threads * DIRECTORIES_PER_THREAD) || taken < threads * TIME_PER_THREAD {
            return false;
        }
        let of_one = taken.as_nanos() * u128::from(threads) / u128::from(finished);
        let is_far = of_one > FAR.as_nanos();
        let threads_max = if is_far {
            self.threads_max
        } else {
            let processors = || thread::available_parallelism().map_or(1, |count| count.get() as u32);
            (*self.processors.get_or_insert_with(processors)).min(self.threads_max)
        };
        let grows = threads < threads_max;
        self.threads += u32::from(grows);
        grows
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance_sink::{Driver, JOB, OBJECT, TIME};
    use crate::huge_pages::with_memory;
    use crate::sink::{Decision, SinkRoot, SinkSettings, SourceName};
    use std::os::unix::fs::MetadataExt;

    /// The state of a session has no room for more than a few hundred directories there.
    #[test]
    fn a_full_state_directory_leaves_no_directory_unfinished() {
        let (scratch, state) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        with_memory(state.path(), c"size=64k", || {
            let root = SinkRoot::open(scratch.path(), Decision::Into, &[SourceName::Contents]).unwrap();
            let settings = SinkSettings::new(JOB, *b"one.", OBJECT, state.path().to_owned());
            let driver = Driver::new(Box::new(PosixSink::open(root, settings).unwrap()));
            let top = driver.directory(haul_model::EntryId::root(0), b"");
            (0..3000).for_each(|name| _ = driver.directory(top, format!("{name}").as_bytes()));
            assert!(std::fs::write(state.path().join("more"), [0; 64 << 10]).is_err(), "it is full");
            assert_eq!(driver.finish(), []);
            for name in 0..3000 {
                let found = std::fs::metadata(scratch.path().join(format!("{name}"))).unwrap();
                let expected = (0o755, TIME.seconds);
                assert_eq!((found.mode() & 0o7777, found.mtime()), expected, "{name}");
            }
        });
    }
}
