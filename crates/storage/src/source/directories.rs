//! The directories that the scan has entered: how to stand in one of them again.
//!
//! The scan adds a directory when it enters it, reads look it up by the parent of their file, `Forget` drops it. Each
//! node knows its parent, its name and the device and inode number that the scan saw; descriptors are kept for the
//! directories used lately and opened again, from the nearest ancestor that is held, when they are needed.
//!
//! What must stay true: a descriptor handed out belongs to the very directory that the scan listed. A directory (or
//! symlink) that was put in its place fails the comparison, whatever its name. Nothing waits for a disk while the
//! table is locked.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use haul_model::{Code, Entry, EntryId, Failure};
use rustix::fs::{self, CWD, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::Root;
use super::status::{Place, Status};
use crate::confine::{check_name, hold_directory, source_failure};
use crate::local;

/// Shared by the scan and the reads of one session.
pub(crate) struct Directories {
    roots: Vec<Root>,
    /// A SOURCE that is a symlink is followed: `cp` without `-r` does.
    follow_roots: bool,
    descriptors_max: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    nodes: HashMap<EntryId, Node>,
    /// Nodes with a descriptor in the order in which they get a second chance or lose it; ids without one are stale.
    queue: VecDeque<EntryId>,
    held: usize,
}

struct Node {
    parent: EntryId,
    name: Box<[u8]>,
    place: Place,
    descriptor: Option<Arc<OwnedFd>>,
    /// Used since it came to the front of the queue.
    used: bool,
}

/// A directory to stand in and a name to look up there.
pub(crate) struct Location<'a> {
    directory: Option<Arc<OwnedFd>>,
    /// A single component, or a SOURCE as the user typed it.
    pub name: &'a [u8],
    /// Only ever for a SOURCE.
    pub follow: bool,
}

impl<'a> Location<'a> {
    /// A checked name in a directory that is held.
    pub fn held(directory: Arc<OwnedFd>, name: &'a [u8]) -> Self {
        Location { directory: Some(directory), name, follow: false }
    }

    /// The directory, if this is not a SOURCE itself.
    pub fn held_directory(&self) -> Option<Arc<OwnedFd>> {
        self.directory.clone()
    }

    /// The directory's descriptor.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_ref().map_or(CWD, |held| held.as_fd())
    }

    /// `O_NOFOLLOW` unless this is a SOURCE that is to be followed.
    pub fn nofollow(&self) -> OFlags {
        if self.follow { OFlags::empty() } else { OFlags::NOFOLLOW }
    }
}

struct Step {
    id: EntryId,
    parent: EntryId,
    name: Box<[u8]>,
    place: Place,
}

impl Directories {
    pub fn new(roots: Vec<Root>, follow_roots: bool, descriptors_max: usize) -> Self {
        Directories { roots, follow_roots, descriptors_max: descriptors_max.max(1), table: Mutex::default() }
    }

    /// The SOURCE with this number.
    pub fn root(&self, index: u32) -> Option<&Root> {
        self.roots.get(index as usize)
    }

    /// So many descriptors are kept at most: fewer where the process may have few.
    pub fn descriptors_max(&self) -> usize {
        self.descriptors_max
    }

    /// Where a SOURCE is found.
    pub fn locate_root<'a>(&self, root: &'a Root) -> Location<'a> {
        Location { directory: None, name: &root.path, follow: self.follow_roots }
    }

    /// The scan has entered a directory, and this is its descriptor if it can be opened.
    pub fn enter(
        &self,
        id: EntryId,
        parent: EntryId,
        name: &[u8],
        place: Place,
        descriptor: Option<Arc<OwnedFd>>,
    ) {
        let mut table = self.lock();
        table.nodes.insert(id, Node { parent, name: name.into(), place, descriptor: None, used: false });
        let surplus = descriptor.map(|held| table.keep(id, held, self.descriptors_max));
        drop(table);
        drop(surplus);
    }

    /// Nothing of this directory will be asked for again.
    pub fn forget(&self, id: EntryId) {
        let mut table = self.lock();
        let node = table.nodes.remove(&id);
        if node.as_ref().is_some_and(|node| node.descriptor.is_some()) {
            table.held -= 1;
        }
        drop(table);
        drop(node);
    }

    /// The process ran out of descriptors: give back those that can be opened again.
    pub fn shed(&self) {
        let mut table = self.lock();
        let surplus = table.evict_to(0);
        drop(table);
        drop(surplus);
    }

    /// Where this entry is found.
    pub fn locate<'a>(&'a self, entry: &'a Entry) -> Result<Location<'a>, Failure> {
        if let Some(index) = entry.parent.root_index() {
            let root = self.root(index).ok_or(Failure::new(Code::Internal))?;
            return Ok(self.locate_root(root));
        }
        check_name(&entry.name)?;
        Ok(Location::held(self.hold(entry.parent)?, &entry.name))
    }

    /// A descriptor of the directory, good for lookups but perhaps not for listing.
    pub fn hold(&self, id: EntryId) -> Result<Arc<OwnedFd>, Failure> {
        let (mut held, steps) = self.climb(id)?;
        for step in steps.into_iter().rev() {
            let opened = self.retry_without_cache(|| self.open_step(held.as_deref(), &step))?;
            let now = Status::of(&opened).map_err(source_failure)?.place();
            if !now.may_be(step.place, &opened) {
                return Err(Code::SourceChanged.into());
            }
            let opened = Arc::new(opened);
            let mut table = self.lock();
            let surplus = table.keep(step.id, Arc::clone(&opened), self.descriptors_max);
            drop(table);
            drop(surplus);
            held = Some(opened);
        }
        held.ok_or(Failure::new(Code::Internal))
    }

    /// Runs `open`; again after [`Directories::shed`] where descriptors have run out.
    pub fn retry_without_cache<T>(&self, open: impl Fn() -> Result<T, Errno>) -> Result<T, Failure> {
        local::when_descriptors_run_out(|| self.shed(), open).map_err(source_failure)
    }

    /// The nearest ancestor that is held, and the way down from it, deepest first.
    fn climb(&self, id: EntryId) -> Result<(Option<Arc<OwnedFd>>, Vec<Step>), Failure> {
        let mut steps = Vec::new();
        let mut table = self.lock();
        let mut id = id;
        while id.root_index().is_none() {
            let node = table.nodes.get_mut(&id).ok_or(Failure::new(Code::Internal))?;
            if let Some(descriptor) = &node.descriptor {
                node.used = true;
                return Ok((Some(Arc::clone(descriptor)), steps));
            }
            steps.push(Step { id, parent: node.parent, name: node.name.clone(), place: node.place });
            id = node.parent;
        }
        Ok((None, steps))
    }

    fn open_step(&self, held: Option<&OwnedFd>, step: &Step) -> Result<OwnedFd, Errno> {
        if let Some(held) = held {
            return hold_directory(held.as_fd(), &step.name);
        }
        let root = step.parent.root_index().and_then(|index| self.root(index)).ok_or(Errno::INVAL)?;
        let location = self.locate_root(root);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | location.nofollow();
        retry_on_intr(|| fs::openat(location.directory(), location.name, flags, Mode::empty()))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn held(&self) -> usize {
        let table = self.lock();
        assert_eq!(table.held, table.nodes.values().filter(|node| node.descriptor.is_some()).count());
        table.held
    }
}

impl Table {
    /// Keeps the descriptor; what is returned is to be closed once the table is unlocked.
    fn keep(&mut self, id: EntryId, descriptor: Arc<OwnedFd>, descriptors_max: usize) -> Vec<Arc<OwnedFd>> {
        match self.nodes.get_mut(&id) {
            Some(node) if node.descriptor.is_none() => {
                node.descriptor = Some(descriptor);
                node.used = false;
            }
            // Forgotten meanwhile, or another thread was faster.
            _ => return Vec::new(),
        }
        self.queue.push_back(id);
        self.held += 1;
        let surplus = self.evict_to(descriptors_max);
        // Forgotten directories leave their ids behind; without this they would pile up.
        if self.queue.len() > 2 * descriptors_max + 64 {
            let nodes = &self.nodes;
            self.queue.retain(|id| nodes.get(id).is_some_and(|node| node.descriptor.is_some()));
        }
        surplus
    }

    fn evict_to(&mut self, descriptors_max: usize) -> Vec<Arc<OwnedFd>> {
        let mut surplus = Vec::new();
        while self.held > descriptors_max
            && let Some(id) = self.queue.pop_front()
        {
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            if node.used && descriptors_max > 0 {
                node.used = false;
                self.queue.push_back(id);
            } else if let Some(descriptor) = node.descriptor.take() {
                self.held -= 1;
                surplus.push(descriptor);
            }
        }
        surplus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain of `depth` directories and one file at each level, entered as the scan would.
    fn chain(depth: u64, descriptors_max: usize) -> (tempfile::TempDir, Directories) {
        let scratch = tempfile::tempdir().unwrap();
        let root = Root::new(scratch.path().to_str().unwrap());
        let directories = Directories::new(vec![root], false, descriptors_max);
        let mut path = scratch.path().to_path_buf();
        let mut parent = EntryId::root(0);
        for level in 1..=depth {
            let name = if level == 1 { Vec::new() } else { format!("d{level}").into_bytes() };
            if level > 1 {
                path.push(format!("d{level}"));
                std::fs::create_dir(&path).unwrap();
            }
            let descriptor = OwnedFd::from(std::fs::File::open(&path).unwrap());
            let place = Status::of(&descriptor).unwrap().place();
            directories.enter(EntryId(level), parent, &name, place, Some(Arc::new(descriptor)));
            parent = EntryId(level);
        }
        (scratch, directories)
    }

    #[test]
    fn never_more_descriptors_than_allowed_and_every_directory_comes_back() {
        let (_scratch, directories) = chain(60, 4);
        assert_eq!(directories.held(), 4);
        for level in (1..=60).rev().chain(1..=60) {
            let held = directories.hold(EntryId(level)).unwrap();
            let place = Status::of(&held).unwrap().place();
            assert_eq!(place, directories.lock().nodes[&EntryId(level)].place, "level {level}");
            assert!(directories.held() <= 4);
        }
    }

    #[test]
    fn shedding_closes_everything_and_loses_nothing() {
        let (_scratch, directories) = chain(10, 64);
        let one = directories.hold(EntryId(10)).unwrap();
        directories.shed();
        assert_eq!(directories.held(), 0);
        assert_eq!(Arc::strong_count(&one), 1);
        directories.hold(EntryId(10)).unwrap();
        assert_eq!(directories.held(), 10);
    }

    #[test]
    fn forgotten_directories_leave_nothing_behind() {
        let (_scratch, directories) = chain(2, 4);
        let place = directories.lock().nodes[&EntryId(2)].place;
        for id in 10..100_000 {
            let descriptor = directories.hold(EntryId(2)).unwrap();
            directories.enter(EntryId(id), EntryId(1), b"d2", place, Some(descriptor));
            directories.forget(EntryId(id));
        }
        let table = directories.lock();
        assert_eq!(table.nodes.len(), 2);
        assert!(table.queue.len() < 1000, "{} ids in the queue", table.queue.len());
        drop(table);
        assert!(directories.held() <= 2);
        assert_eq!(directories.hold(EntryId(10)).unwrap_err().code, Code::Internal);
    }

    #[test]
    fn another_directory_under_the_same_name_is_refused() {
        let (scratch, directories) = chain(4, 16);
        directories.shed();
        let at = scratch.path().join("d2/d3");
        std::fs::rename(&at, scratch.path().join("aside")).unwrap();
        std::fs::create_dir_all(at.join("d4")).unwrap();
        assert_eq!(directories.hold(EntryId(4)).unwrap_err().code, Code::SourceChanged);
        std::fs::remove_dir_all(&at).unwrap();
        std::os::unix::fs::symlink(scratch.path().join("aside"), &at).unwrap();
        assert_eq!(directories.hold(EntryId(4)).unwrap_err().code, Code::SourceChanged);
        std::fs::remove_file(&at).unwrap();
        assert_eq!(directories.hold(EntryId(4)).unwrap_err().code, Code::SourceVanished);
        std::fs::rename(scratch.path().join("aside"), &at).unwrap();
        directories.hold(EntryId(4)).unwrap();
    }
}
