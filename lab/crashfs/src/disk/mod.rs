//! The model of a disk with a cache that forgets.
//!
//! Rules of durability, for a program that takes POSIX at its word:
//!
//! - `fsync` of a file carries its bytes, size and attributes to the medium; `fdatasync` its bytes and size. Neither
//!   makes any name of it durable.
//! - `fsync` of a directory makes its names durable (made, renamed, removed), and the directory's own attributes; not
//!   the directory's own name in its parent, and nothing of what the names lead to.
//! - A rename within a directory is one change: after a crash the old state or the new one. A rename into another
//!   directory may leave both names, never none. A name that was replaced leads to the old file or to the new one.
//! - The changes of one name survive in order: what survives of its history is a prefix.
//! - The target of a symlink is durable with its name, its attributes at once: nobody can open a symlink to sync it.
//!
//! Nothing in here blocks, reads a clock or touches the machine: every call takes the time.

mod content;
mod crash;
mod names;
mod node;

use std::collections::{BTreeMap, HashMap};

pub use content::{PAGE_BYTES, SECTOR_BYTES};
pub use crash::{CrashReport, Mood};
pub use node::{Attributes, Body};
use node::{Directory, Node};
use rustix::io::Errno;

use crate::random::Random;

/// Number of a node: what `st_ino` shows.
pub type Number = u64;

/// The root directory.
pub const ROOT: Number = 1;

/// Longest name in bytes, as on most file systems.
pub const NAME_BYTES_MAX: usize = 255;

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Time {
    /// Negative before 1970.
    pub seconds: i64,
    /// 0..1_000_000_000.
    pub nanos: u32,
}

/// Result of an operation.
pub type Result<T> = std::result::Result<T, Errno>;

/// What a sync carries to the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Bytes and size.
    Data,
    /// Bytes, size and attributes.
    All,
}

/// What `stat` shows.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// The node.
    pub number: Number,
    /// The `S_IFMT` bits.
    pub format: u32,
    /// Bytes.
    pub size: u64,
    /// In 512-byte units.
    pub blocks: u64,
    /// Names.
    pub links: u32,
    /// Device number of a special file.
    pub device: u32,
    /// The rest.
    pub attributes: Attributes,
}

/// One change of names that is not durable.
#[derive(Clone, Debug)]
enum Change {
    /// A name was made (or leads elsewhere now).
    Link { directory: Number, name: Vec<u8>, node: Number },
    /// A name was removed.
    Unlink { directory: Number, name: Vec<u8>, node: Number },
    /// A name was changed within its directory, possibly over another.
    Rename { directory: Number, from: Vec<u8>, to: Vec<u8>, node: Number },
    /// The new name of a move between directories, and where it came from.
    Arrive { directory: Number, name: Vec<u8>, node: Number, from: (Number, Vec<u8>) },
    /// The old name of the move whose arrival has this sequence number.
    Leave { directory: Number, name: Vec<u8>, node: Number, arrival: u64 },
}

impl Change {
    fn directory(&self) -> Number {
        match self {
            Change::Link { directory, .. }
            | Change::Unlink { directory, .. }
            | Change::Rename { directory, .. }
            | Change::Arrive { directory, .. }
            | Change::Leave { directory, .. } => *directory,
        }
    }

    fn node(&self) -> Number {
        match self {
            Change::Link { node, .. }
            | Change::Unlink { node, .. }
            | Change::Rename { node, .. }
            | Change::Arrive { node, .. }
            | Change::Leave { node, .. } => *node,
        }
    }

    /// The names whose history it belongs to.
    fn names(&self) -> Vec<(Number, Vec<u8>)> {
        match self {
            Change::Link { directory, name, .. }
            | Change::Unlink { directory, name, .. }
            | Change::Leave { directory, name, .. } => vec![(*directory, name.clone())],
            Change::Rename { directory, from, to, .. } => {
                vec![(*directory, from.clone()), (*directory, to.clone())]
            }
            Change::Arrive { directory, name, from, .. } => vec![(*directory, name.clone()), from.clone()],
        }
    }
}

/// An open file or directory.
struct Handle {
    node: Number,
    /// Of a directory: what it held when it was opened or rewound.
    listing: Vec<(Vec<u8>, Number)>,
}

/// See the module.
pub struct Disk {
    nodes: HashMap<Number, Node>,
    changes: BTreeMap<u64, Change>,
    handles: HashMap<u64, Handle>,
    next_number: Number,
    next_change: u64,
    next_handle: u64,
    generation: u64,
    bytes_read: u64,
    pages: u64,
    /// Pages beyond which writes find no space.
    pages_max: u64,
    /// Chance (of 256) that an overwritten dirty page had been written back.
    early_write_back: u16,
    random: Random,
}

impl Disk {
    /// Empty; `seed` decides which dirty pages are written back early.
    pub fn new(seed: u64, uid: u32, gid: u32, now: Time) -> Self {
        let attributes = Attributes { mode: 0o755, uid, gid, accessed: now, modified: now, changed: now };
        let mut root = Node::new(Body::Directory(Directory::new(ROOT)), attributes, b"");
        root.held = 1;
        Disk {
            nodes: HashMap::from([(ROOT, root)]),
            changes: BTreeMap::new(),
            handles: HashMap::new(),
            next_number: ROOT + 1,
            next_change: 1,
            next_handle: 1,
            generation: 1,
            bytes_read: 0,
            pages: 0,
            pages_max: u64::MAX,
            early_write_back: 64,
            random: Random::fork(seed, "write-back"),
        }
    }

    /// Grows with each crash: inodes of the time before are other inodes.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Bytes that the shown contents occupy.
    pub fn bytes_used(&self) -> u64 {
        self.pages * PAGE_BYTES
    }

    /// Somebody was given bytes of contents.
    pub fn count_read(&mut self, bytes: usize) {
        self.bytes_read += bytes as u64;
    }

    /// Bytes of contents that were read.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Writes beyond this many bytes in use fail with `ENOSPC`.
    pub fn set_space(&mut self, bytes: Option<u64>) {
        self.pages_max = bytes.map_or(u64::MAX, |bytes| bytes / PAGE_BYTES);
    }

    /// Bytes beyond which there is no space.
    pub fn space(&self) -> Option<u64> {
        (self.pages_max != u64::MAX).then(|| self.pages_max * PAGE_BYTES)
    }

    /// Nodes, shown or only still on the medium or held open.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Changes of names that are not durable.
    pub fn names_unsynced(&self) -> usize {
        self.changes.len()
    }

    /// The name that a node was last given.
    pub fn last_name(&self, number: Number) -> &[u8] {
        self.nodes.get(&number).map_or(b"", |node| &node.last_name)
    }

    /// What `stat` shows.
    pub fn stat(&self, number: Number) -> Result<Stat> {
        let node = self.node(number)?;
        let (format, size, blocks, device) = match &node.body {
            Body::File(content) => (libc::S_IFREG, content.size(), content.pages() * (PAGE_BYTES / 512), 0),
            Body::Directory(directory) => (libc::S_IFDIR, directory.names.len() as u64 * 32, 0, 0),
            Body::Symlink(target) => (libc::S_IFLNK, target.len() as u64, 0, 0),
            Body::Special { format, device } => (*format, 0, 0, *device),
        };
        // One means "not counted" to programs that would tell subdirectories by it.
        let links = if self.is_directory(number) { node.links.min(1) } else { node.links };
        Ok(Stat { number, format, size, blocks, links, device, attributes: node.attributes })
    }

    /// Target of a symlink.
    pub fn read_link(&self, number: Number) -> Result<&[u8]> {
        match &self.node(number)?.body {
            Body::Symlink(target) => Ok(target),
            _ => Err(Errno::INVAL),
        }
    }

    /// Changes attributes; the status-change time becomes `now`.
    pub fn set_attributes(
        &mut self,
        number: Number,
        now: Time,
        set: impl FnOnce(&mut Attributes),
    ) -> Result<()> {
        let node = self.node_mut(number)?;
        set(&mut node.attributes);
        node.attributes.changed = now;
        if matches!(node.body, Body::Symlink(_)) {
            node.durable_attributes = node.attributes;
        }
        Ok(())
    }

    /// Cuts or extends a file.
    pub fn set_size(&mut self, number: Number, size: u64, now: Time) -> Result<()> {
        let (before, after) = {
            let node = self.node_mut(number)?;
            let Body::File(content) = &mut node.body else { return Err(Errno::ISDIR) };
            let before = content.pages();
            content.set_size(size);
            (node.attributes.modified, node.attributes.changed) = (now, now);
            (before, content.pages())
        };
        self.pages = self.pages + after - before;
        Ok(())
    }

    /// Bytes at `offset`; fewer than `length` only at the end of the file.
    pub fn read(&self, number: Number, offset: u64, length: u64) -> Result<Vec<u8>> {
        match &self.node(number)?.body {
            Body::File(content) => Ok(content.read(offset, length)),
            Body::Directory(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// Writes; how many bytes found space, at least one.
    pub fn write(&mut self, number: Number, offset: u64, data: &[u8], now: Time) -> Result<usize> {
        let free = self.pages_max.saturating_sub(self.pages);
        let early = self.early_write_back;
        let node = self.nodes.get_mut(&number).ok_or(Errno::STALE)?;
        let Body::File(content) = &mut node.body else { return Err(Errno::INVAL) };
        let mut length = data.len();
        while content.pages_added(offset, length as u64) > free {
            // Up to the end of the page before: what a full disk leaves is a short write.
            let end = offset + length as u64;
            let page_start = (end - 1) / PAGE_BYTES * PAGE_BYTES;
            if page_start <= offset {
                return Err(Errno::NOSPC);
            }
            length = (page_start - offset) as usize;
        }
        let before = content.pages();
        content.write(offset, &data[..length], &mut self.random, early);
        self.pages += content.pages() - before;
        (node.attributes.modified, node.attributes.changed) = (now, now);
        Ok(length)
    }

    /// Carries a file to the medium.
    pub fn sync_file(&mut self, number: Number, scope: Scope) -> Result<()> {
        let node = self.node_mut(number)?;
        if let Body::File(content) = &mut node.body {
            content.sync();
        }
        if scope == Scope::All {
            node.durable_attributes = node.attributes;
        }
        Ok(())
    }

    /// A sync that fails: what was to be written will never be tried again.
    pub fn fail_sync(&mut self, number: Number) -> Result<()> {
        if let Body::File(content) = &mut self.node_mut(number)?.body {
            content.fail_sync();
        }
        Ok(())
    }

    /// Carries the names of a directory to the medium, and with [`Scope::All`] its attributes.
    pub fn sync_directory(&mut self, number: Number, scope: Scope) -> Result<()> {
        self.persist_names(number, u64::MAX)?;
        if scope == Scope::All {
            let node = self.node_mut(number)?;
            node.durable_attributes = node.attributes;
        }
        Ok(())
    }

    /// Carries everything to the medium, as `sync` and a clean shutdown do.
    pub fn sync_all(&mut self) {
        for (_, change) in std::mem::take(&mut self.changes) {
            self.apply(&change);
            self.release_hold(change.node());
        }
        for node in self.nodes.values_mut() {
            node.durable_attributes = node.attributes;
            match &mut node.body {
                Body::File(content) => content.sync(),
                Body::Directory(directory) => directory.pending.clear(),
                Body::Symlink(_) | Body::Special { .. } => {}
            }
        }
    }

    /// A crash right now could lose nothing.
    pub fn is_durable(&self) -> bool {
        self.changes.is_empty()
            && self.nodes.values().all(|node| {
                node.attributes == node.durable_attributes
                    && !matches!(&node.body, Body::File(content) if !content.is_durable())
            })
    }

    /// Opens a file or directory.
    pub fn open(&mut self, number: Number) -> Result<u64> {
        self.node_mut(number)?.opens += 1;
        let handle = self.next_handle;
        self.next_handle += 1;
        self.handles.insert(handle, Handle { node: number, listing: Vec::new() });
        Ok(handle)
    }

    /// The node of a handle; a handle of the time before a crash is stale.
    pub fn opened(&self, handle: u64) -> Result<Number> {
        self.handles.get(&handle).map(|handle| handle.node).ok_or(Errno::STALE)
    }

    /// Closes a handle.
    pub fn close(&mut self, handle: u64) {
        if let Some(Handle { node: number, .. }) = self.handles.remove(&handle) {
            if let Some(node) = self.nodes.get_mut(&number) {
                node.opens -= 1;
            }
            self.collect(number);
        }
    }

    /// The kernel has learned of a node.
    pub fn remember(&mut self, number: Number) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.lookups += 1;
        }
    }

    /// The kernel has forgotten so many lookups of a node.
    pub fn forget(&mut self, number: Number, lookups: u64) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.lookups -= lookups as i64;
        }
        self.collect(number);
    }

    fn node(&self, number: Number) -> Result<&Node> {
        self.nodes.get(&number).ok_or(Errno::STALE)
    }

    fn node_mut(&mut self, number: Number) -> Result<&mut Node> {
        self.nodes.get_mut(&number).ok_or(Errno::STALE)
    }

    fn is_directory(&self, number: Number) -> bool {
        matches!(self.nodes.get(&number), Some(Node { body: Body::Directory(_), .. }))
    }

    fn directory(&self, number: Number) -> Result<&Directory> {
        match &self.node(number)?.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn directory_mut(&mut self, number: Number) -> Result<&mut Directory> {
        match &mut self.node_mut(number)?.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn count_pages(&mut self) {
        self.pages = self
            .nodes
            .values()
            .map(|node| match &node.body {
                Body::File(content) => content.pages(),
                _ => 0,
            })
            .sum();
    }

    fn release_hold(&mut self, number: Number) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.held -= 1;
        }
        self.collect(number);
    }

    /// Frees a node that nobody can reach any more.
    fn collect(&mut self, number: Number) {
        if !self.nodes.get(&number).is_some_and(Node::is_garbage) {
            return;
        }
        match self.nodes.remove(&number).map(|node| node.body) {
            Some(Body::File(content)) => self.pages -= content.pages(),
            Some(Body::Directory(directory)) => {
                for sequence in directory.pending {
                    if let Some(change) = self.changes.remove(&sequence) {
                        self.release_hold(change.node());
                    }
                }
                for child in directory.durable.into_values() {
                    self.release_hold(child);
                }
            }
            _ => {}
        }
    }
}
