//! What a dataset is made of: entries with their attributes and identity.

use alloc::boxed::Box;

use crate::{EntryId, Laid, Plan};

/// Seconds and nanoseconds since 1970, as the file system stores them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// 0..1_000_000_000.
    pub nanos: u32,
}

/// What kind of thing an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link; its target is [`Entry::link_target`].
    Symlink,
    /// A fifo, socket or device: named in the report, never created.
    Other,
}

/// What is preserved of an entry beside its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// Permission bits (0o7777). The sink drops setuid and setgid.
    pub mode: u32,
    /// Owner; applied only with `-p` as root.
    pub uid: u32,
    /// Group; applied only with `-p` as root.
    pub gid: u32,
    /// Last modification.
    pub mtime: Timestamp,
    /// Last access.
    pub atime: Timestamp,
}

/// What tells two versions of a source file apart. Compared before FILE_CLOSE and before a log is believed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Identity {
    /// Bytes.
    pub size: u64,
    /// Last modification.
    pub mtime: Timestamp,
    /// Last status change: catches edits that put mtime back.
    pub ctime: Timestamp,
    /// Inode number: catches a file that was replaced. 0 where a file has another one whenever the kernel has forgotten it, and a
    /// change time that is not its modification's.
    pub inode: u64,
}

impl Identity {
    /// Is what is `seen` later the same version?
    pub fn is_still(&self, seen: &Identity) -> bool {
        let inode = if self.inode == 0 { 0 } else { seen.inode };
        *self == Identity { inode, ..*seen }
    }
}

/// One entry of the dataset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Unique within the session.
    pub id: EntryId,
    /// The directory that holds it, announced before.
    pub parent: EntryId,
    /// Name within the parent: any bytes but `/` and NUL; empty exactly below [`EntryId::root`].
    pub name: Box<[u8]>,
    /// Directory, file, symlink, other.
    pub kind: Kind,
    /// To be set at the sink.
    pub attributes: Attributes,
    /// Of files; all zero elsewhere.
    pub identity: Identity,
    /// More than 1: a hard link (copied as a file, counted).
    pub links: u32,
    /// Of symlinks; empty elsewhere.
    pub link_target: Box<[u8]>,
}

impl Entry {
    /// Bytes of content: the size of a file, 0 for everything else.
    pub fn size(&self) -> u64 {
        if self.kind == Kind::File { self.identity.size } else { 0 }
    }
}

/// The scan as a stream: an entry, or the end of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// A new entry; its parent came before.
    Entry(Entry),
    /// A new file of which it is known how it lies, and what it was striped as if that was chosen for it.
    Laid(Entry, Box<Laid>, Option<Box<Plan>>),
    /// No further entry of this directory will come.
    End(EntryId),
}
