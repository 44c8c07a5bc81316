//! A source that lives in memory, for tests of everything above storage.
//!
//! It behaves like a file system whose clock ticks at every change: a test writes, appends, replaces or removes files
//! while a transfer runs, and the transfer must notice. Directories are found again by their inode, so renaming one
//! does not disturb the reads below it, as with held descriptors.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use haul_buffers::Pool;
use haul_model::op::{SourceDone, SourceOp};
use haul_model::{
    Attributes, Code, Entry, EntryId, Failure, Hash, HashKind, Identity, Item, Kind, SlotId, Timestamp,
};

use crate::hashing::ObjectHasher;
use crate::scan::{SCAN_BATCH, Scan, Scanned, is_unfinished_name, push_name};
use crate::source::{Packed, Root, pack};
use crate::{SourceStorage, spill};

/// A changeable tree and the source on top of it. Clones share the tree.
#[derive(Clone)]
pub struct MemorySource {
    tree: Arc<Mutex<Tree>>,
    roots: Arc<[Root]>,
    recursive: bool,
}

struct Tree {
    /// Removed files stay: somebody may have them open.
    nodes: HashMap<Inode, Node>,
    clock: i64,
    /// What a file system keeps descriptors for.
    directories: HashMap<EntryId, Inode>,
    files: HashMap<EntryId, (Inode, Identity)>,
}

type Inode = u64;
type Names = BTreeMap<Vec<u8>, Inode>;
const TOP: Inode = 1;

struct Node {
    content: Content,
    attributes: Attributes,
    ctime: Timestamp,
}

enum Content {
    Directory(Names),
    File(Vec<u8>),
    Symlink(Vec<u8>),
    Fifo,
}

impl MemorySource {
    /// An empty tree. The paths of `roots` are relative to its top.
    pub fn new(roots: Vec<Root>, recursive: bool) -> Self {
        let mut tree = Tree {
            nodes: HashMap::new(),
            clock: 1_000_000_000,
            directories: HashMap::new(),
            files: HashMap::new(),
        };
        tree.add(Content::Directory(Names::new()), 0o755);
        MemorySource { tree: Arc::new(Mutex::new(tree)), roots: roots.into(), recursive }
    }

    /// Makes the directory and those above it.
    pub fn make_directory(&self, path: &[u8]) {
        self.lock().make_directory(path);
    }

    /// Creates a file or changes its content, keeping the inode.
    pub fn write(&self, path: &[u8], content: impl Into<Vec<u8>>) {
        let mut tree = self.lock();
        match tree.find(path) {
            Some(inode) => tree.change(inode, |bytes| *bytes = content.into()),
            None => tree.put(path, Content::File(content.into()), 0o644),
        }
    }

    /// Adds bytes to a file.
    pub fn append(&self, path: &[u8], more: &[u8]) {
        let mut tree = self.lock();
        let inode = tree.find(path).expect("a file to append to");
        tree.change(inode, |bytes| bytes.extend_from_slice(more));
    }

    /// Cuts a file.
    pub fn truncate(&self, path: &[u8], length: usize) {
        let mut tree = self.lock();
        let inode = tree.find(path).expect("a file to cut");
        tree.change(inode, |bytes| bytes.truncate(length));
    }

    /// Puts a new file under the name, as editors do.
    pub fn replace(&self, path: &[u8], content: impl Into<Vec<u8>>) {
        self.lock().put(path, Content::File(content.into()), 0o644);
    }

    /// Makes a symlink.
    pub fn symlink(&self, path: &[u8], target: impl Into<Vec<u8>>) {
        self.lock().put(path, Content::Symlink(target.into()), 0o777);
    }

    /// Makes something that is neither file, directory nor symlink.
    pub fn fifo(&self, path: &[u8]) {
        self.lock().put(path, Content::Fifo, 0o644);
    }

    /// Takes the name away, whatever it names.
    pub fn remove(&self, path: &[u8]) {
        let (above, name) = split(path);
        let mut tree = self.lock();
        let inode = tree.find(path).expect("something to remove");
        let parent = tree.find(above).expect("its directory");
        tree.names(parent).remove(name);
        tree.touch(inode, false);
    }

    /// Sets the permission bits.
    pub fn set_mode(&self, path: &[u8], mode: u32) {
        let mut tree = self.lock();
        let inode = tree.find(path).expect("something to change");
        tree.touch(inode, false);
        tree.nodes.get_mut(&inode).expect("found").attributes.mode = mode;
    }

    /// What a file holds now.
    pub fn content(&self, path: &[u8]) -> Option<Vec<u8>> {
        let tree = self.lock();
        match &tree.nodes.get(&tree.find(path)?)?.content {
            Content::File(bytes) => Some(bytes.clone()),
            _ => None,
        }
    }

    /// Walks the roots. `ids` is the next free entry id.
    pub fn scan(&self, ids: Arc<AtomicU64>) -> MemoryScan {
        MemoryScan { source: self.clone(), ids, next_root: 0, stack: Vec::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_object(
        &self,
        entry: &Entry,
        range: (u64, u32),
        single: bool,
    ) -> Result<(Vec<u8>, Hash), Failure> {
        let mut tree = self.lock();
        let inode = match tree.files.get(&entry.id) {
            Some((inode, identity)) if *identity == entry.identity => *inode,
            _ => {
                let inode = self.locate(&tree, entry)?;
                tree.check(inode, entry)?;
                tree.files.insert(entry.id, (inode, entry.identity));
                inode
            }
        };
        let start = usize::try_from(range.0).unwrap_or(usize::MAX);
        let end = start.saturating_add(range.1 as usize);
        let bytes = tree.file(inode)?.get(start..end).ok_or(Failure::new(Code::SourceChanged))?;
        let mut hasher = ObjectHasher::new(HashKind::Blake3, range.0, range.1, single)?;
        hasher.update(bytes);
        Ok((bytes.to_vec(), hasher.finish()))
    }

    fn read_member(&self, entry: &Entry, space: &mut [u8]) -> Result<(), Failure> {
        let tree = self.lock();
        let inode = self.locate(&tree, entry)?;
        tree.check(inode, entry)?;
        space.copy_from_slice(tree.file(inode)?);
        Ok(())
    }

    fn confirm(&self, entry: &Entry) -> Result<(), Failure> {
        let tree = self.lock();
        let inode = match tree.files.get(&entry.id) {
            Some((inode, identity)) if *identity == entry.identity => *inode,
            _ => self.locate(&tree, entry)?,
        };
        tree.check(inode, entry)
    }

    fn restat(&self, entry: &Entry) -> Result<Box<Entry>, Failure> {
        let tree = self.lock();
        let inode = self.locate(&tree, entry)?;
        Ok(Box::new(tree.entry(inode, entry.id, entry.parent, &entry.name)?))
    }

    fn locate(&self, tree: &Tree, entry: &Entry) -> Result<Inode, Failure> {
        let found = match entry.parent.root_index() {
            Some(index) => {
                tree.find(&self.roots.get(index as usize).ok_or(Failure::new(Code::Internal))?.path)
            }
            None => {
                let parent = tree.directories.get(&entry.parent).ok_or(Failure::new(Code::Internal))?;
                tree.child(*parent, &entry.name)
            }
        };
        found.ok_or(Failure::new(Code::SourceVanished))
    }
}

impl SourceStorage for MemorySource {
    fn run(&self, op: SourceOp, pool: &Pool) -> Option<SourceDone> {
        match op {
            SourceOp::ReadObject { block, entry, offset, length, slot, single, .. } => {
                let result = self
                    .read_object(&entry, (offset, length), single)
                    .and_then(|(bytes, hash)| fill(pool, slot, &bytes).map(|()| Some(hash)));
                Some(SourceDone::Object { block, result })
            }
            SourceOp::ReadMembers { block, slot, members, progress, .. } => {
                let (length, results) =
                    pack(pool, (slot, HashKind::Blake3), (&members, &progress), |entry, space| {
                        self.read_member(entry, space).map(|()| Packed::in_slot(None))
                    });
                Some(SourceDone::Members { block, length, results })
            }
            SourceOp::Confirm { entry } => {
                Some(SourceDone::Confirmed { id: entry.id, result: self.confirm(&entry) })
            }
            SourceOp::Restat { entry } => {
                Some(SourceDone::Restated { id: entry.id, result: self.restat(&entry) })
            }
            op @ (SourceOp::Spill { .. } | SourceOp::Unspill { .. }) => spill::none(&op),
            SourceOp::Release { id } => {
                self.lock().files.remove(&id);
                None
            }
            SourceOp::Forget { id } => {
                self.lock().directories.remove(&id);
                None
            }
        }
    }
}

fn fill(pool: &Pool, slot: SlotId, bytes: &[u8]) -> Result<(), Failure> {
    let mut lease = pool.lease(slot).ok_or(Failure::new(Code::Internal))?;
    lease.get_mut(..bytes.len()).ok_or(Failure::new(Code::Internal))?.copy_from_slice(bytes);
    Ok(())
}

impl Tree {
    fn tick(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp { seconds: self.clock, nanos: 7 }
    }

    fn add(&mut self, content: Content, mode: u32) -> Inode {
        let inode = TOP + self.nodes.len() as u64;
        let now = self.tick();
        let attributes = Attributes { mode, uid: 0, gid: 0, mtime: now, atime: now };
        self.nodes.insert(inode, Node { content, attributes, ctime: now });
        inode
    }

    fn put(&mut self, path: &[u8], content: Content, mode: u32) {
        let (above, name) = split(path);
        let parent = self.make_directory(above);
        let inode = self.add(content, mode);
        if let Some(before) = self.names(parent).insert(name.to_vec(), inode) {
            self.touch(before, false);
        }
        self.touch(parent, true);
    }

    fn make_directory(&mut self, path: &[u8]) -> Inode {
        let mut at = TOP;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            at = match self.child(at, name) {
                Some(inode) => inode,
                None => {
                    let inode = self.add(Content::Directory(Names::new()), 0o755);
                    self.names(at).insert(name.to_vec(), inode);
                    inode
                }
            };
        }
        at
    }

    fn names(&mut self, inode: Inode) -> &mut Names {
        match self.nodes.get_mut(&inode).map(|node| &mut node.content) {
            Some(Content::Directory(names)) => names,
            _ => panic!("a test put something below what is not a directory"),
        }
    }

    fn change(&mut self, inode: Inode, change: impl FnOnce(&mut Vec<u8>)) {
        match self.nodes.get_mut(&inode).map(|node| &mut node.content) {
            Some(Content::File(bytes)) => change(bytes),
            _ => panic!("a test wrote to what is not a file"),
        }
        self.touch(inode, true);
    }

    fn touch(&mut self, inode: Inode, modified: bool) {
        let now = self.tick();
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.ctime = now;
            if modified {
                node.attributes.mtime = now;
            }
        }
    }

    fn child(&self, parent: Inode, name: &[u8]) -> Option<Inode> {
        match &self.nodes.get(&parent)?.content {
            Content::Directory(names) => names.get(name).copied(),
            _ => None,
        }
    }

    fn find(&self, path: &[u8]) -> Option<Inode> {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.try_fold(TOP, |at, name| self.child(at, name))
    }

    fn file(&self, inode: Inode) -> Result<&[u8], Failure> {
        match self.nodes.get(&inode).map(|node| &node.content) {
            Some(Content::File(bytes)) => Ok(bytes),
            _ => Err(Code::SourceChanged.into()),
        }
    }

    fn check(&self, inode: Inode, entry: &Entry) -> Result<(), Failure> {
        let now = self.entry(inode, entry.id, entry.parent, &entry.name)?;
        if now.kind == Kind::File && now.identity == entry.identity {
            Ok(())
        } else {
            Err(Code::SourceChanged.into())
        }
    }

    fn entry(&self, inode: Inode, id: EntryId, parent: EntryId, name: &[u8]) -> Result<Entry, Failure> {
        let node = self.nodes.get(&inode).ok_or(Failure::new(Code::SourceVanished))?;
        let identity = |size: usize| Identity {
            size: size as u64,
            mtime: node.attributes.mtime,
            ctime: node.ctime,
            inode,
        };
        let (kind, identity, target) = match &node.content {
            Content::Directory(_) => (Kind::Directory, Identity::default(), &[][..]),
            Content::File(bytes) => (Kind::File, identity(bytes.len()), &[][..]),
            Content::Symlink(target) => (Kind::Symlink, Identity::default(), &target[..]),
            Content::Fifo => (Kind::Other, Identity::default(), &[][..]),
        };
        Ok(Entry {
            id,
            parent,
            name: name.into(),
            kind,
            attributes: node.attributes,
            identity,
            links: 1,
            link_target: target.into(),
        })
    }
}

/// The directory part and the last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// Walks a [`MemorySource`] in the order of names.
pub struct MemoryScan {
    source: MemorySource,
    ids: Arc<AtomicU64>,
    next_root: usize,
    stack: Vec<MemoryFrame>,
}

struct MemoryFrame {
    id: EntryId,
    inode: Inode,
    path: Vec<u8>,
    last: Option<Vec<u8>>,
}

impl MemoryScan {
    fn begin_root(&mut self, out: &mut Vec<Scanned>) -> bool {
        let roots = Arc::clone(&self.source.roots);
        let Some(root) = roots.get(self.next_root) else { return false };
        let parent = EntryId::root(self.next_root as u32);
        self.next_root += 1;
        let found = self.source.lock().find(&root.path);
        match found {
            None => {
                out.push(Scanned::Error { path: root.label().to_vec(), failure: Code::SourceMissing.into() })
            }
            Some(inode) => self.visit(inode, parent, b"", root.label().to_vec(), out),
        }
        true
    }

    fn advance(&mut self, out: &mut Vec<Scanned>) {
        let source = self.source.clone();
        let Some(frame) = self.stack.last_mut() else { return };
        let from = frame.last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut tree = source.lock();
        let next = match tree.nodes.get_mut(&frame.inode).map(|node| &mut node.content) {
            Some(Content::Directory(names)) => {
                let mut rest = names.range::<[u8], _>((from, Bound::Unbounded));
                rest.next().map(|(name, inode)| (name.clone(), *inode))
            }
            _ => None,
        };
        drop(tree);
        let Some((name, inode)) = next else {
            out.push(Scanned::Item(Item::End(frame.id)));
            self.stack.pop();
            return;
        };
        let (parent, mut path) = (frame.id, frame.path.clone());
        frame.last = Some(name.clone());
        push_name(&mut path, &name);
        self.visit(inode, parent, &name, path, out);
    }

    fn visit(&mut self, inode: Inode, parent: EntryId, name: &[u8], path: Vec<u8>, out: &mut Vec<Scanned>) {
        let mut tree = self.source.lock();
        let entry = tree.entry(inode, EntryId(0), parent, name);
        let error = match entry {
            Ok(entry) if entry.kind == Kind::Directory && !self.source.recursive => {
                Code::SourceDirectory.into()
            }
            Ok(entry) if matches!(entry.kind, Kind::File | Kind::Symlink) && is_unfinished_name(name) => {
                return;
            }
            Ok(mut entry) => {
                entry.id = EntryId(self.ids.fetch_add(1, Ordering::Relaxed));
                if entry.kind == Kind::Directory {
                    tree.directories.insert(entry.id, inode);
                    self.stack.push(MemoryFrame { id: entry.id, inode, path, last: None });
                }
                out.push(Scanned::Item(Item::Entry(entry)));
                return;
            }
            Err(failure) => failure,
        };
        out.push(Scanned::Error { path, failure: error });
    }
}

impl Scan for MemoryScan {
    fn next(&mut self, out: &mut Vec<Scanned>) -> bool {
        let before = out.len();
        while out.len() < before + SCAN_BATCH {
            if !self.stack.is_empty() {
                self.advance(out);
            } else if !self.begin_root(out) {
                break;
            }
        }
        out.len() > before
    }
}
