//! The source's side of the world: a random dataset whose files change behind the mover's back.
//!
//! Each state that a file was ever in has a stamp, which is also its ctime: so an entry says by itself which state it
//! was announced in. States with the same bytes share a content.

use haul_model::{Attributes, Entry, EntryId, Identity, Item, Kind, Timestamp};

use crate::plan::Shape;
use crate::random::Random;

/// Index of a path of the dataset, in the order of the scan.
pub type PathId = usize;

/// One path. It stays in the table when there is nothing under it any more.
pub struct Node {
    /// `None` for the top of a SOURCE.
    pub parent: Option<PathId>,
    /// Which SOURCE.
    pub root: u32,
    /// Within the parent; empty for the top of a SOURCE.
    pub name: Box<[u8]>,
    /// As it is reported: below the destination.
    pub path: Vec<u8>,
    /// As the log finds it: below its SOURCE.
    pub key: Vec<u8>,
    /// What is there (a file only if there is an inode too).
    pub kind: Kind,
    /// Index of the file's inode.
    pub inode: Option<usize>,
    /// Of symlinks.
    pub target: Box<[u8]>,
    /// Permission bits of directories.
    pub mode: u32,
    /// In the order of the scan.
    pub children: Vec<PathId>,
}

/// A file that a name or a descriptor leads to.
#[derive(Clone, Copy)]
pub struct Inode {
    /// Its state: index into the stamps.
    pub stamp: u32,
}

/// A state that a file was in.
#[derive(Clone, Copy)]
pub struct Stamp {
    /// The path under which it was then.
    pub path: PathId,
    /// Its bytes.
    pub content: u32,
    /// Their number.
    pub size: u64,
    /// When they were written, as far as can be seen.
    pub mtime: Timestamp,
    /// Permission bits.
    pub mode: u32,
    /// Inode number.
    pub number: u64,
}

/// What the scan came to.
pub enum Found {
    /// An entry or the end of a directory.
    Item(Item),
    /// A directory that cannot be read.
    Unreadable(PathId),
}

/// The dataset.
pub struct Tree {
    /// All paths.
    pub nodes: Vec<Node>,
    /// The tops of the SOURCEs.
    pub roots: Vec<PathId>,
    /// Files, with or without a name.
    pub inodes: Vec<Inode>,
    /// All states so far; the first one is nobody's.
    pub stamps: Vec<Stamp>,
    /// Names of the SOURCEs below the destination.
    pub labels: Vec<Box<[u8]>>,
}

impl Tree {
    /// A dataset of the given shape.
    pub fn draw(shape: &Shape, random: &mut Random) -> Tree {
        let mut tree = Tree { nodes: vec![], roots: vec![], inodes: vec![], stamps: vec![], labels: vec![] };
        tree.stamps.push(Stamp {
            path: 0,
            content: 0,
            size: 0,
            mtime: Timestamp::default(),
            mode: 0,
            number: 0,
        });
        let label: &[u8] = if random.chance(200) { b"" } else { b"top" };
        tree.add_root(label, Kind::Directory, random);
        let mut directories = vec![0];
        for _ in 0..shape.directories {
            let parent = *random.pick(&directories);
            directories.push(tree.add(parent, Kind::Directory, random));
        }
        for size in &shape.sizes {
            let parent = *random.pick(&directories);
            let path = tree.add(parent, Kind::File, random);
            tree.make_file(path, *size, random);
        }
        for _ in 0..shape.symlinks {
            let parent = *random.pick(&directories);
            tree.add(parent, Kind::Symlink, random);
        }
        for _ in 0..shape.others {
            let parent = *random.pick(&directories);
            tree.add(parent, Kind::Other, random);
        }
        for _ in 0..shape.absent {
            let parent = *random.pick(&directories);
            tree.add(parent, Kind::File, random);
        }
        if let Some(size) = shape.file_root {
            let path = tree.add_root(b"single", Kind::File, random);
            tree.make_file(path, size, random);
        }
        tree
    }

    fn add_root(&mut self, label: &[u8], kind: Kind, random: &mut Random) -> PathId {
        let (id, root) = (self.nodes.len(), self.roots.len() as u32);
        let target = format!("to{id}").into_bytes().into();
        self.labels.push(label.into());
        self.roots.push(id);
        self.nodes.push(Node {
            parent: None,
            root,
            name: Box::default(),
            path: label.to_vec(),
            key: format!("{root}/").into_bytes(),
            kind,
            inode: None,
            target,
            mode: 0o700 | random.below(0o100) as u32,
            children: vec![],
        });
        id
    }

    fn add(&mut self, parent: PathId, kind: Kind, random: &mut Random) -> PathId {
        let id = self.nodes.len();
        let name: Box<[u8]> = format!("n{id}").into_bytes().into();
        let mut path = self.nodes[parent].path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        let mut key = self.nodes[parent].key.clone();
        if !key.ends_with(b"/") {
            key.push(b'/');
        }
        key.extend_from_slice(&name);
        // The order of the scan is not the order in which the paths were drawn.
        let position = random.below(self.nodes[parent].children.len() as u64 + 1) as usize;
        self.nodes[parent].children.insert(position, id);
        self.nodes.push(Node {
            parent: Some(parent),
            root: self.nodes[parent].root,
            name,
            path,
            key,
            kind,
            inode: None,
            target: format!("to{id}").into_bytes().into(),
            mode: 0o700 | random.below(0o100) as u32,
            children: vec![],
        });
        id
    }

    fn stamp(&mut self, stamp: Stamp) -> u32 {
        self.stamps.push(stamp);
        self.stamps.len() as u32 - 1
    }

    fn make_file(&mut self, path: PathId, size: u64, random: &mut Random) {
        let next = self.stamps.len() as u32;
        let stamp = self.stamp(Stamp {
            path,
            content: next,
            size,
            mtime: Timestamp { seconds: 1_000_000 + i64::from(next), nanos: next },
            mode: 0o600 | random.below(0o200) as u32,
            number: 100 + self.inodes.len() as u64,
        });
        self.nodes[path].inode = Some(self.inodes.len());
        self.inodes.push(Inode { stamp });
    }

    /// The state of the file under this path.
    pub fn state(&self, path: PathId) -> Option<Stamp> {
        Some(self.stamps[self.inodes[self.nodes[path].inode?].stamp as usize])
    }

    /// Which path an entry is about.
    pub fn path_of(&self, entry: &Entry) -> PathId {
        match entry.parent.root_index() {
            Some(root) => self.roots[root as usize],
            None => entry.name[1..].iter().fold(0, |id, digit| id * 10 + usize::from(digit - b'0')),
        }
    }

    /// Which path a report is about; `None` if it is no path of the dataset.
    pub fn path_named(&self, path: &[u8]) -> Option<PathId> {
        let last = path.rsplit(|byte| *byte == b'/').next()?;
        if let Some(root) = self.labels.iter().position(|label| label.as_ref() == path) {
            return Some(self.roots[root]);
        }
        let id = std::str::from_utf8(last.get(1..)?).ok()?.parse().ok()?;
        self.nodes.get(id).is_some_and(|node: &Node| node.path == path).then_some(id)
    }

    /// The state in which an entry was announced.
    pub fn stamp_of(entry: &Entry) -> u32 {
        entry.identity.ctime.seconds as u32
    }

    /// What an inode is bound to.
    pub fn identity(&self, inode: usize) -> Identity {
        let stamp = self.inodes[inode].stamp;
        let Stamp { size, mtime, number, .. } = self.stamps[stamp as usize];
        Identity { size, mtime, ctime: Timestamp { seconds: i64::from(stamp), nanos: 0 }, inode: number }
    }

    /// What stands under this path now; `None` if nothing does.
    pub fn entry(&self, path: PathId, id: EntryId, parent: EntryId) -> Option<Entry> {
        let node = &self.nodes[path];
        let mut entry = Entry {
            id,
            parent,
            name: node.name.clone(),
            kind: node.kind,
            attributes: Attributes { mode: node.mode, ..Attributes::default() },
            identity: Identity::default(),
            links: 1,
            link_target: Box::default(),
        };
        match node.kind {
            Kind::File => {
                entry.identity = self.identity(node.inode?);
                entry.attributes.mode = self.state(path)?.mode;
                entry.attributes.mtime = entry.identity.mtime;
            }
            Kind::Symlink => entry.link_target = node.target.clone(),
            Kind::Directory | Kind::Other => {
                entry.attributes.mtime = Timestamp { seconds: 77, nanos: path as u32 };
            }
        }
        Some(entry)
    }

    /// Directories above `path`, nearest first.
    pub fn ancestors(&self, path: PathId) -> impl Iterator<Item = PathId> + '_ {
        std::iter::successors(self.nodes[path].parent, |parent| self.nodes[*parent].parent)
    }

    /// One file changes, somehow: the preferred one or any. Which, and how, for the trace.
    pub fn mutate(
        &mut self,
        preferred: Option<PathId>,
        grain: u32,
        random: &mut Random,
    ) -> Option<(PathId, &'static str)> {
        let candidates: Vec<PathId> =
            (0..self.nodes.len()).filter(|path| self.nodes[*path].kind == Kind::File).collect();
        if candidates.is_empty() {
            return None;
        }
        let path = preferred.filter(|path| self.nodes[*path].kind == Kind::File);
        let path = path.unwrap_or_else(|| *random.pick(&candidates));
        let Some(inode) = self.nodes[path].inode else {
            let size = random.below(u64::from(grain) * 3);
            self.make_file(path, size, random);
            return Some((path, "appears"));
        };
        let old = self.stamps[self.inodes[inode].stamp as usize];
        let next = self.stamps.len() as u32;
        let mtime = Timestamp { seconds: 1_000_000 + i64::from(next), nanos: next };
        let changed = Stamp { path, content: next, mtime, ..old };
        let (stamp, what) = match random.below(11) {
            0 | 1 => (changed, "is modified"),
            2 => (Stamp { size: old.size + 1 + random.below(u64::from(grain) * 2), ..changed }, "grows"),
            3 => (Stamp { size: random.below(old.size.max(1)), ..changed }, "shrinks"),
            4 => (Stamp { mode: old.mode ^ 0o100, path, ..old }, "gets another mode"),
            5 => (Stamp { mtime: old.mtime, ..changed }, "is modified with its mtime put back"),
            6 => {
                self.unlink(path);
                return Some((path, "vanishes"));
            }
            7 => {
                self.unlink(path);
                let size = if random.coin() { old.size } else { random.below(u64::from(grain) * 3) };
                self.make_file(path, size, random);
                return Some((path, "is replaced"));
            }
            8 | 9 => (Stamp { size: random.below(old.size / 2 + 1), ..changed }, "shrinks"),
            _ => {
                self.unlink(path);
                self.nodes[path].kind = Kind::Symlink;
                return Some((path, "becomes a symlink"));
            }
        };
        self.inodes[inode].stamp = self.stamp(stamp);
        Some((path, what))
    }

    /// The name goes; who has the file open still reads it, and sees by its ctime that something happened.
    fn unlink(&mut self, path: PathId) {
        if let Some(inode) = self.nodes[path].inode.take() {
            let state = self.stamps[self.inodes[inode].stamp as usize];
            self.inodes[inode].stamp = self.stamp(state);
        }
    }
}

/// Where a scan is.
#[derive(Default)]
pub struct Scan {
    stack: Vec<(PathId, EntryId, usize)>,
    root: usize,
    ids: u64,
}

impl Scan {
    /// The next find; `None` at the end.
    pub fn next(&mut self, tree: &Tree, unreadable: u32, random: &mut Random) -> Option<Found> {
        loop {
            let Some((directory, id, child)) = self.stack.last_mut() else {
                let path = *tree.roots.get(self.root)?;
                self.root += 1;
                let parent = EntryId::root(tree.nodes[path].root);
                // A SOURCE that is not there any more is a failure, unlike what has gone from a directory.
                return Some(self.enter(tree, path, parent).unwrap_or(Found::Unreadable(path)));
            };
            let (directory, id) = (*directory, *id);
            let Some(path) = tree.nodes[directory].children.get(*child).copied() else {
                self.stack.pop();
                return Some(Found::Item(Item::End(id)));
            };
            *child += 1;
            if *child == 1 && random.chance(unreadable) {
                *child = usize::MAX;
                return Some(Found::Unreadable(directory));
            }
            if let Some(found) = self.enter(tree, path, id) {
                return Some(found);
            }
        }
    }

    fn enter(&mut self, tree: &Tree, path: PathId, parent: EntryId) -> Option<Found> {
        let id = EntryId(self.ids + 1);
        let entry = tree.entry(path, id, parent)?;
        self.ids += 1;
        if entry.kind == Kind::Directory {
            self.stack.push((path, id, 0));
        }
        Some(Found::Item(Item::Entry(entry)))
    }
}
