//! Making contents and names durable, in groups.
//!
//! On file systems that are known to do it right one `syncfs` covers a group; elsewhere each file is synced on its own
//! descriptor, several at a time. A failed sync is never repeated on a descriptor: the kernel reports an error once and
//! may call the same pages clean the next time.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use haul_model::{Code, Entry, EntryId, Failure};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::directories::Directory;
use super::faults::{Reach, SyncPoint};
use super::file_systems::{FileSystem, SyncMode};
use super::objects::Unfinished;
use super::{PosixSink, State, lock};
use crate::confine::sink_failure;
use crate::page_cache;

/// Threads that sync one large group file by file.
const THREADS_MAX: usize = 16;
/// Files for which another thread pays.
const CALLS_PER_THREAD: usize = 4;

/// Smaller ones stay in the page cache: to open them again costs more than their few pages are worth.
const DROPPED_MEMBER_BYTES_MIN: u64 = 16 << 10;

/// Whether a member's pages are worth a call that drops them.
pub(super) fn is_worth_dropping(member: &Entry) -> bool {
    member.size() >= DROPPED_MEMBER_BYTES_MIN
}

/// The row for a sync that failed; a full disk keeps its own row, as it is often only noticed then.
pub(super) fn sync_failure(errno: Errno) -> Failure {
    let failure = sink_failure(errno);
    match failure.code {
        Code::SinkNoSpace | Code::SinkQuota | Code::SinkReadOnly => failure,
        _ => Failure::os(Code::SinkSync, errno.raw_os_error()),
    }
}

/// One file of a group.
enum Work {
    Member {
        descriptor: Option<OwnedFd>,
        synced: bool,
        file_system: Arc<FileSystem>,
        errors: u64,
    },
    File(Arc<Unfinished>),
    /// It is named already: an earlier group made it durable.
    Done,
    Unknown,
}

impl Work {
    fn file_system(&self) -> Option<&Arc<FileSystem>> {
        match self {
            Work::Member { file_system, .. } => Some(file_system),
            Work::File(file) => Some(&file.directory.file_system),
            Work::Done | Work::Unknown => None,
        }
    }
}

impl PosixSink {
    pub(super) fn sync_files(&self, files: &[EntryId]) -> Vec<(EntryId, Failure)> {
        let group = self.take_work(files);
        let save = |(_, work): &(EntryId, Work)| match work {
            Work::File(file) => self.save_hashes(file),
            Work::Member { .. } | Work::Done | Work::Unknown => Ok(()),
        };
        let saved: Vec<Result<(), Failure>> = group.iter().map(save).collect();
        let mut whole = Wholes::default();
        if self.sync != SyncMode::Never {
            let systems = group.iter().filter_map(|(_, work)| work.file_system());
            systems.filter(|system| system.whole).for_each(|system| whole.add(system));
            whole.sync(self, SyncPoint::FileSystemData);
        }
        // Threads only for those that each need a call of their own.
        let each = |(_, work): &&(EntryId, Work)| match work {
            Work::Member { descriptor, .. } => descriptor.is_some(),
            Work::File(file) => !file.directory.file_system.whole,
            Work::Done | Work::Unknown => false,
        };
        let threads = threads_for(group.iter().filter(each).count());
        let mut results = in_parallel(&group, threads, |(_, work)| self.sync_one(work, &whole));
        for (result, saved) in results.iter_mut().zip(saved).filter(|(_, saved)| saved.is_err()) {
            *result = saved;
        }
        self.sync_temporary_names(&group, &mut results);
        self.note_synced_members(&group, &results);
        self.drop_members(&group, &results);
        let mut failed = Vec::new();
        for ((id, work), result) in group.into_iter().zip(results) {
            let Err(failure) = result else {
                self.is_durable(&work);
                continue;
            };
            match work {
                Work::File(file) => file.lose(),
                Work::Member { .. } => {
                    let state = lock(&self.states).remove(&id);
                    state.into_iter().for_each(|state| self.remove_state(state));
                }
                Work::Done | Work::Unknown => {}
            }
            failed.push((id, failure));
        }
        failed
    }

    /// Nobody here will look at it again.
    fn is_durable(&self, work: &Work) {
        if self.sync == SyncMode::Never {
            return;
        }
        match work {
            Work::File(file) => drop(file.open_contents().map(|contents| file.in_use.drop_others(contents))),
            Work::Member { descriptor: Some(member), .. } => page_cache::drop_all(member),
            // Those that a `syncfs` covers are closed when they are written: see `drop_members`.
            Work::Member { descriptor: None, .. } | Work::Done | Work::Unknown => {}
        }
    }

    /// Members that a `syncfs` made durable are opened once more, to drop them from the page cache: the larger ones, which are
    /// most of all bytes and few of all files. Those without a name are still open when they get it: see `name_at_last`.
    fn drop_members(&self, group: &[(EntryId, Work)], results: &[Result<(), Failure>]) {
        let covered = |work: &Work| match work {
            Work::Member { descriptor: None, file_system, .. } => file_system.whole && !file_system.in_memory,
            _ => false,
        };
        if self.sync == SyncMode::Never || !group.iter().any(|(_, work)| covered(work)) {
            return;
        }
        let mut large = Vec::new();
        let states = lock(&self.states);
        for ((id, work), result) in group.iter().zip(results) {
            if let Some(State::Member(member)) = states.get(id)
                && result.is_ok()
                && covered(work)
                && member.nameless.is_none()
                && is_worth_dropping(&member.entry)
            {
                let name = self.temporary_name(&member.entry, &member.directory, member.token);
                large.push((Arc::clone(&member.directory), name));
            }
        }
        drop(states);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        for (directory, name) in large {
            // It is only a kindness to others.
            let Ok(held) = self.directories.descriptor(&directory) else { continue };
            let _ = openat(&held, name.as_c_str(), flags, Mode::empty()).map(page_cache::drop_all);
        }
    }

    fn note_synced_members(&self, group: &[(EntryId, Work)], results: &[Result<(), Failure>]) {
        let mut states = lock(&self.states);
        for ((id, work), result) in group.iter().zip(results) {
            if let Work::Member { descriptor: Some(_), .. } = work {
                self.member_descriptors.fetch_sub(1, Ordering::Relaxed);
                if let (Ok(()), Some(State::Member(member))) = (result, states.get_mut(id)) {
                    member.synced = true;
                }
            }
        }
    }

    fn take_work(&self, files: &[EntryId]) -> Vec<(EntryId, Work)> {
        let mut states = lock(&self.states);
        let take = |id: &EntryId| {
            let work = match states.get_mut(id) {
                Some(State::Member(member)) => Work::Member {
                    descriptor: member.descriptor.take(),
                    synced: member.synced,
                    file_system: Arc::clone(&member.directory.file_system),
                    errors: member.errors,
                },
                Some(State::Unfinished(file)) => Work::File(Arc::clone(file)),
                Some(State::Named(..)) => Work::Done,
                Some(State::Made(_) | State::Filling(_)) | None => Work::Unknown,
            };
            (*id, work)
        };
        files.iter().map(take).collect()
    }

    fn sync_one(&self, work: &Work, whole: &Wholes) -> Result<(), Failure> {
        match work {
            Work::Member { descriptor, synced, file_system, errors } => {
                if let Some(result) = whole.result(file_system) {
                    result?;
                    return if file_system.errors() == *errors { Ok(()) } else { Err(Code::SinkSync.into()) };
                }
                match descriptor {
                    Some(file) => self
                        .hooks
                        .sync(SyncPoint::MemberData, file.as_fd(), Reach::Everything)
                        .map_err(sync_failure),
                    // When it was written, or by an earlier group.
                    None if *synced => Ok(()),
                    // Another group is at it: what becomes of that is not known here.
                    None => Err(Code::SinkSync.into()),
                }
            }
            Work::File(file) => {
                if let Some(result) = whole.result(&file.directory.file_system) {
                    result?;
                } else if self.sync != SyncMode::Never {
                    self.sync_unfinished(file)?;
                }
                if file.holds() { Ok(()) } else { Err(Code::SinkSync.into()) }
            }
            Work::Done => Ok(()),
            Work::Unknown => Err(Code::Internal.into()),
        }
    }

    fn sync_unfinished(&self, file: &Unfinished) -> Result<(), Failure> {
        let _alone = lock(&file.syncing);
        if !file.holds() {
            return Err(Code::SinkSync.into());
        }
        let (contents, table) = (file.open_contents(), lock(&file.hashes).open_table());
        let (point, reach) = if file.sealed.load(Ordering::Acquire) {
            (SyncPoint::SealedData, Reach::Everything)
        } else {
            (SyncPoint::ObjectData, Reach::Data)
        };
        let sync = |descriptor: Option<Arc<OwnedFd>>, point, reach| match descriptor {
            Some(descriptor) => self.hooks.sync(point, descriptor.as_fd(), reach),
            // Nothing was written since it was closed.
            None => Ok(()),
        };
        let synced =
            sync(contents, point, reach).and_then(|()| sync(table, SyncPoint::ObjectSums, Reach::Data));
        if synced.is_err() {
            file.sync_failed();
        }
        synced.map_err(sync_failure)
    }

    /// An unfinished file that nobody finds after a crash cannot be resumed. One that is whole is about to have another name.
    fn sync_temporary_names(&self, group: &[(EntryId, Work)], results: &mut [Result<(), Failure>]) {
        if self.sync == SyncMode::Never {
            return;
        }
        let is_new = |file: &Unfinished| {
            let named_next = file.sealed.load(Ordering::Acquire) || file.is_whole();
            !file.directory.file_system.whole && !file.name_durable.load(Ordering::Acquire) && !named_next
        };
        let new = || {
            group.iter().filter_map(|(_, work)| match work {
                Work::File(file) if is_new(file) => Some(file),
                _ => None,
            })
        };
        let synced = self.sync_directories(new().map(|file| &file.directory), SyncPoint::TempName);
        for ((_, work), result) in group.iter().zip(results) {
            let Work::File(file) = work else { continue };
            if result.is_err() || !is_new(file) {
                continue;
            }
            match synced.get(&Arc::as_ptr(&file.directory)) {
                Some(Err(failure)) => *result = Err(*failure),
                _ => file.name_durable.store(true, Ordering::Release),
            }
        }
    }

    pub(super) fn sync_names(&self, entries: &[EntryId]) -> Vec<(EntryId, Failure)> {
        let mut failed = Vec::new();
        let mut named = Vec::with_capacity(entries.len());
        let states = lock(&self.states);
        for id in entries {
            match states.get(id) {
                Some(State::Named(directory, failures)) => {
                    named.push((*id, Arc::clone(directory), *failures))
                }
                _ => failed.push((*id, Code::Internal.into())),
            }
        }
        drop(states);
        let synced =
            self.sync_directories(named.iter().map(|(_, directory, _)| directory), SyncPoint::FinalName);
        let mut states = lock(&self.states);
        for (id, directory, failures) in named {
            let lost = match synced.get(&Arc::as_ptr(&directory)) {
                Some(Err(failure)) => Some(*failure),
                _ if directory.sync_failures() != failures => Some(Code::SinkSync.into()),
                _ => None,
            };
            match lost {
                Some(failure) => {
                    lock(&self.named_in_vain).insert(id);
                    failed.push((id, failure));
                }
                None => drop(states.remove(&id)),
            }
        }
        failed
    }

    /// Makes the names in these directories durable, and those of the directories themselves up to the one that holds
    /// the destination.
    ///
    /// Also of directories that were found: a session that was killed may have made them.
    fn sync_directories<'a>(
        &self,
        directories: impl Iterator<Item = &'a Arc<Directory>>,
        point: SyncPoint,
    ) -> HashMap<*const Directory, Result<(), Failure>> {
        if self.sync == SyncMode::Never {
            return directories.map(|directory| (Arc::as_ptr(directory), Ok(()))).collect();
        }
        let mut wanted = Vec::new();
        // Each directory that has to be synced, once.
        let mut steps: Vec<(&Arc<Directory>, SyncPoint)> = Vec::new();
        let mut seen = HashSet::new();
        let mut whole = Wholes::default();
        for directory in directories {
            if wanted.last().is_none_or(|last| !Arc::ptr_eq(last, directory)) {
                wanted.push(Arc::clone(directory));
            }
            let mut step = Some((directory, point));
            while let Some((next, point)) = step {
                if !seen.insert(Arc::as_ptr(next)) {
                    // So were all above it.
                    break;
                }
                if next.file_system.whole {
                    whole.add(&next.file_system);
                } else {
                    steps.push((next, point));
                }
                let parent = next.parent.as_ref().filter(|_| !next.name_durable.load(Ordering::Acquire));
                step = parent.map(|parent| (parent, SyncPoint::ParentNames));
            }
        }
        whole.sync(self, SyncPoint::FileSystemNames);
        let results = in_parallel(&steps, threads_for(steps.len()), |(directory, point)| {
            self.sync_directory(directory, *point)
        });
        let results: HashMap<_, _> =
            steps.iter().map(|(directory, _)| Arc::as_ptr(directory)).zip(results).collect();
        let result = |directory: &Arc<Directory>| {
            let whole = whole.result(&directory.file_system);
            whole.or_else(|| results.get(&Arc::as_ptr(directory)).copied()).unwrap_or(Ok(()))
        };
        wanted.iter().map(|directory| (Arc::as_ptr(directory), settle_chain(directory, result))).collect()
    }

    fn sync_directory(&self, directory: &Arc<Directory>, point: SyncPoint) -> Result<(), Failure> {
        let held = self.directories.descriptor(directory)?;
        let synced = directory.sync(|| self.hooks.sync_directory(point, held.as_fd()));
        if synced.is_err() {
            self.directories.close(directory);
        }
        synced.map_err(sync_failure)
    }
}

/// What the results of single directories mean for the names in `directory`; remembers it for those above.
fn settle_chain(
    directory: &Arc<Directory>,
    result: impl Fn(&Arc<Directory>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut all = result(directory);
    let mut next = directory;
    while let Some(parent) = &next.parent {
        if next.name_durable.load(Ordering::Acquire) {
            break;
        }
        match result(parent) {
            Ok(()) if !next.name_lost.load(Ordering::Acquire) => {}
            Ok(()) => all = all.and(Err(Code::SinkSync.into())),
            Err(failure) => {
                next.name_lost.store(true, Ordering::Release);
                all = all.and(Err(failure));
            }
        }
        next = parent;
    }
    if all.is_ok() {
        let mut next = directory;
        while let Some(parent) = &next.parent {
            if next.name_durable.swap(true, Ordering::AcqRel) {
                break;
            }
            next = parent;
        }
    }
    all
}

/// File systems that are synced as a whole for one group, and how that went.
#[derive(Default)]
pub(super) struct Wholes(Vec<(Arc<FileSystem>, Result<(), Failure>)>);

impl Wholes {
    /// This one has to be synced too.
    pub fn add(&mut self, file_system: &Arc<FileSystem>) {
        if !self.0.iter().any(|(known, _)| Arc::ptr_eq(known, file_system)) {
            self.0.push((Arc::clone(file_system), Ok(())));
        }
    }

    /// Syncs them all.
    pub fn sync(&mut self, sink: &PosixSink, point: SyncPoint) {
        for (file_system, result) in &mut self.0 {
            *result = file_system.sync(&sink.hooks, point).map_err(sync_failure);
        }
    }

    /// Of this one, if it is among them.
    pub fn result(&self, file_system: &Arc<FileSystem>) -> Option<Result<(), Failure>> {
        self.0.iter().find(|(known, _)| Arc::ptr_eq(known, file_system)).map(|(_, result)| *result)
    }
}

/// Threads for so many calls that each wait for a device.
fn threads_for(calls: usize) -> usize {
    (calls / CALLS_PER_THREAD).min(THREADS_MAX)
}

/// `work` for each item, in order of the items.
fn in_parallel<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if threads < 2 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(item)));
        }
    };
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    std::thread::scope(|scope| {
        // Where no thread can be had, this one does it all.
        let helpers: Vec<_> = (1..threads)
            .filter_map(|_| std::thread::Builder::new().name("sync".into()).spawn_scoped(scope, run).ok())
            .collect();
        let mut done = run();
        for helper in helpers {
            done.extend(helper.join().unwrap_or_default());
        }
        for (index, result) in done {
            results[index] = Some(result);
        }
    });
    results
        .into_iter()
        .map(|result| result.expect("every item was taken by a thread that has ended"))
        .collect()
}
