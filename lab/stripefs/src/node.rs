//! One file or directory of the metadata server, held while the kernel knows it.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{
    self, AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::attribute::{self, View};
use crate::layout::Layout;

/// Where layouts are kept, for files and, as the default of new ones, for directories.
const KEPT_LAYOUT: &str = "trusted.stripefs.layout";
/// Larger than any attribute may be.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// An object's file, open.
pub struct ObjectFile {
    /// For reading and writing.
    pub file: OwnedFd,
    /// The same past the page cache, where that is wanted.
    pub direct: Option<OwnedFd>,
    /// Its name is not durable yet.
    pub is_new: AtomicBool,
}

/// What changes while a node is known.
#[derive(Default)]
pub struct NodeState {
    /// The layout, once it was read; `Some(None)` is none.
    layout: Option<Option<Arc<Layout>>>,
    /// What it is to get once it needs objects: its directory's default when it was made.
    pub wish: Option<Arc<Layout>>,
    /// Opened so many times.
    pub opens: u32,
    /// No name leads to it any more.
    pub dead: bool,
    /// Its objects that are open, by id.
    pub objects: HashMap<u64, Arc<ObjectFile>>,
    /// Its file at the metadata server, open.
    body: Option<Arc<OwnedFd>>,
}

impl NodeState {
    /// Nobody has it open any more.
    pub fn close(&mut self) {
        self.objects.clear();
        self.body = None;
    }
}

/// A node.
pub struct Node {
    /// Its inode number.
    pub number: u64,
    /// What it is.
    pub kind: FileType,
    held: OwnedFd,
    state: Mutex<NodeState>,
}

impl Node {
    /// Of a descriptor that was opened with `O_PATH`.
    pub fn new(number: u64, kind: FileType, held: OwnedFd) -> Node {
        Node { number, kind, held, state: Mutex::default() }
    }

    /// For the calls that take a directory and a name.
    pub fn held(&self) -> impl AsFd + '_ {
        &self.held
    }

    /// For the calls that take no `O_PATH` descriptor.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.held.as_raw_fd())
    }

    /// What changes.
    pub fn state(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its status; the size of a file is that of its body.
    pub fn status(&self) -> Result<Stat, Errno> {
        fs::fstat(&self.held)
    }

    /// Bytes of the file.
    pub fn size(&self) -> Result<u64, Errno> {
        Ok(self.status()?.st_size.max(0) as u64)
    }

    /// The layout of a file, or the default of a directory's new files; `None` where it has none of its own.
    pub fn layout(&self) -> Result<Option<Arc<Layout>>, Errno> {
        self.layout_of(&mut self.state())
    }

    /// The same with the state that is held.
    pub fn layout_of(&self, state: &mut NodeState) -> Result<Option<Arc<Layout>>, Errno> {
        if let Some(known) = &state.layout {
            return Ok(known.clone());
        }
        let layout = match self.attribute(KEPT_LAYOUT) {
            Ok(bytes) if self.kind == FileType::Directory => Some(Arc::new(attribute::decode_wish(&bytes)?)),
            Ok(bytes) => Some(Arc::new(attribute::decode_stored(&bytes)?)),
            Err(Errno::NODATA) => None,
            Err(errno) => return Err(errno),
        };
        state.layout = Some(layout.clone());
        Ok(layout)
    }

    /// Keeps a layout.
    pub fn set_layout(&self, state: &mut NodeState, layout: Layout) -> Result<Arc<Layout>, Errno> {
        let bytes = attribute::encode(&layout, View::Stored);
        fs::setxattr(self.path(), KEPT_LAYOUT, &bytes, XattrFlags::empty())?;
        let layout = Arc::new(layout);
        state.layout = Some(Some(Arc::clone(&layout)));
        Ok(layout)
    }

    /// Forgets the default of a directory.
    pub fn remove_layout(&self) -> Result<(), Errno> {
        let mut state = self.state();
        match fs::removexattr(self.path(), KEPT_LAYOUT) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
        state.layout = Some(None);
        Ok(())
    }

    /// An attribute that users may see.
    pub fn attribute(&self, name: impl rustix::path::Arg) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; ATTRIBUTE_BYTES_MAX];
        let length = fs::getxattr(self.path(), name, bytes.as_mut_slice())?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// The names of its attributes, each with a zero behind it, without those that are its own affair.
    pub fn attribute_names(&self) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; ATTRIBUTE_BYTES_MAX];
        let length = match fs::listxattr(self.path(), bytes.as_mut_slice()) {
            Err(Errno::OPNOTSUPP) => 0,
            other => other?,
        };
        let names = bytes[..length].split_inclusive(|byte| *byte == 0);
        Ok(names.filter(|name| !is_private(&name[..name.len() - 1])).flatten().copied().collect())
    }

    /// Sets an attribute.
    pub fn set_attribute(
        &self,
        name: impl rustix::path::Arg,
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<(), Errno> {
        fs::setxattr(self.path(), name, value, flags)
    }

    /// Removes an attribute.
    pub fn remove_attribute(&self, name: impl rustix::path::Arg) -> Result<(), Errno> {
        fs::removexattr(self.path(), name)
    }

    /// Its file at the metadata server: the size, the times, and what a metadata component holds.
    pub fn body(&self) -> Result<Arc<OwnedFd>, Errno> {
        self.body_of(&mut self.state())
    }

    fn body_of(&self, state: &mut NodeState) -> Result<Arc<OwnedFd>, Errno> {
        if let Some(body) = &state.body {
            return Ok(Arc::clone(body));
        }
        let body = fs::openat(CWD, self.path(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let body = Arc::new(body);
        // Kept until the last user closes the file.
        if state.opens > 0 {
            state.body = Some(Arc::clone(&body));
        }
        Ok(body)
    }

    /// Something was written up to there: it is at least so long now, and modified.
    pub fn written_to(&self, end: u64) -> Result<(), Errno> {
        let mut state = self.state();
        if self.size()? < end {
            let body = self.body_of(&mut state)?;
            return fs::ftruncate(&*body, end);
        }
        self.set_times(None, Some(NOW))
    }

    /// Makes it so long.
    pub fn set_size(&self, bytes: u64) -> Result<(), Errno> {
        let mut state = self.state();
        let body = self.body_of(&mut state)?;
        fs::ftruncate(&*body, bytes)
    }

    /// Access and modification; what is not given stays.
    pub fn set_times(&self, accessed: Option<Timespec>, modified: Option<Timespec>) -> Result<(), Errno> {
        let times =
            Timestamps { last_access: accessed.unwrap_or(LEFT), last_modification: modified.unwrap_or(LEFT) };
        fs::utimensat(&self.held, c"", &times, AtFlags::EMPTY_PATH)
    }

    /// Owner and group; what is not given stays.
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        fs::chownat(&self.held, c"", uid.map(Uid::from_raw), gid.map(Gid::from_raw), AtFlags::EMPTY_PATH)
    }

    /// Permissions.
    pub fn set_mode(&self, mode: u32) -> Result<(), Errno> {
        fs::chmod(self.path(), Mode::from_raw_mode(mode & 0o7777))
    }
}

/// Now, by the clock of the metadata server.
pub const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
const LEFT: Timespec = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };

/// Whether an attribute is of the emulation's own making.
pub fn is_private(name: &[u8]) -> bool {
    name.starts_with(b"trusted.stripefs.")
}
