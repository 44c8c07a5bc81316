//! The file system as the kernel's FUSE client sees it.
//!
//! Looking is answered at once, on the thread that took the request. What a client would ask the metadata server for
//! (making, opening, naming, changing attributes) passes its device when that is slow or faulty. Contents pass the
//! devices that hold them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::Stat;
use rustix::io::Errno;

use crate::answers::{
    BLOCK_BYTES, FRESH, Found, answer_attribute, answer_entry, answer_looked_up, attributes_of, kind_of,
    owner, refusal, time_spec,
};
use crate::buffers::REQUEST_BYTES_MAX;
use crate::filesystem::StripeFs;
use crate::knobs::Kind;
use crate::names::{Listed, OTHER, Owner};
use crate::node::Node;
use crate::xattrs;

/// Requests that the kernel sends without waiting: enough that those of a hung target leave room.
const BACKGROUND_MAX: u16 = 1024;
const NAME_BYTES_MAX: u32 = 255;
/// What remains of `O_LOV_DELAY_CREATE` (`O_NOCTTY` and `FASYNC`): the kernel keeps `O_NOCTTY` to itself.
const DELAY_CREATE: i32 = libc::O_ASYNC;

pub(crate) struct Adapter {
    filesystem: StripeFs,
    /// Listings of the directories that are open.
    listings: Mutex<HashMap<u64, Arc<Vec<Listed>>>>,
    next_handle: AtomicU64,
}

impl Adapter {
    pub(crate) fn new(filesystem: StripeFs) -> Self {
        Adapter { filesystem, listings: Mutex::default(), next_handle: AtomicU64::new(1) }
    }

    fn node(&self, number: INodeNo) -> Result<Arc<Node>, Errno> {
        self.filesystem.shared().names.node(number.0)
    }

    /// The node, or the answer that there is none.
    fn known<R>(&self, number: INodeNo, reply: R, refuse: fn(R, fuser::Errno)) -> Option<(Arc<Node>, R)> {
        match self.node(number) {
            Ok(node) => Some((node, reply)),
            Err(errno) => {
                refuse(reply, refusal(errno));
                None
            }
        }
    }

    /// Has the metadata server do it, and answers.
    fn serve<R: Send + 'static, T: Send + 'static>(
        &self,
        number: INodeNo,
        reply: R,
        refuse: fn(R, fuser::Errno),
        work: impl FnOnce(&StripeFs, &Arc<Node>) -> Result<T, Errno> + Send + 'static,
        answer: impl FnOnce(R, T) + Send + 'static,
    ) {
        let Some((node, reply)) = self.known(number, reply, refuse) else { return };
        let finish = move |result| match result {
            Ok(value) => answer(reply, value),
            Err(errno) => refuse(reply, refusal(errno)),
        };
        let mds = &self.filesystem.shared().mds;
        if mds.is_plain() {
            return finish(work(&self.filesystem, &node));
        }
        let (filesystem, held) = (self.filesystem.clone(), Arc::clone(&node));
        self.filesystem.submit(mds, &node, Kind::Other, move || work(&filesystem, &held), finish);
    }

    fn entry(
        &self,
        parent: INodeNo,
        reply: ReplyEntry,
        work: impl FnOnce(&StripeFs, &Arc<Node>) -> Result<Found, Errno> + Send + 'static,
    ) {
        self.serve(parent, reply, ReplyEntry::error, work, answer_entry);
    }

    fn empty(
        &self,
        number: INodeNo,
        reply: ReplyEmpty,
        work: impl FnOnce(&StripeFs, &Arc<Node>) -> Result<(), Errno> + Send + 'static,
    ) {
        self.serve(number, reply, ReplyEmpty::error, work, |reply, ()| reply.ok());
    }

    /// Who makes something, and the mode that it gets.
    fn owner(&self, request: &Request, mode: u32) -> Owner {
        let refuse = self.filesystem.shared().behaviour.refuse_modes.load(Ordering::Relaxed);
        owner(request, if refuse { mode & libc::S_IFMT | 0o755 } else { mode })
    }

    /// What is said of something that is looked at.
    fn shown(&self, mut status: Stat) -> Stat {
        let halve = self.filesystem.shared().behaviour.halve_sizes.load(Ordering::Relaxed);
        if halve && status.st_mode & libc::S_IFMT == libc::S_IFREG {
            status.st_size /= 2;
        }
        status
    }

    /// Somebody else has the file's lock, and this one does not want to wait for it.
    fn would_wait(&self, flags: OpenFlags) -> bool {
        flags.0 & libc::O_NONBLOCK != 0
            && self.filesystem.shared().behaviour.group_lock.load(Ordering::Relaxed)
    }

    /// How contents are cached: not at all, or while the file is open.
    fn open_flags(&self) -> FopenFlags {
        if self.filesystem.shared().cached {
            FopenFlags::empty()
        } else {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        }
    }

    fn listings(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Vec<Listed>>>> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a file that is opened so gets its objects now.
fn needs_objects(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY && flags & DELAY_CREATE == 0
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Refused where the kernel is older: only speed is lost. Without the first of them each write first asks for
        // `security.capability`.
        for capability in [InitFlags::FUSE_HANDLE_KILLPRIV_V2, InitFlags::FUSE_PARALLEL_DIROPS] {
            let _ = config.add_capabilities(capability);
        }
        let _ = config.set_max_write(REQUEST_BYTES_MAX as u32);
        let _ = config.set_max_readahead(REQUEST_BYTES_MAX as u32);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let shared = self.filesystem.shared();
        let found = self.node(parent).and_then(|parent| {
            let found = shared.names.lookup(&parent, name)?;
            let by_path = shared.behaviour.numbers_by_path.load(Ordering::Relaxed);
            Ok((found, if by_path { shared.names.spelling(&parent, name) } else { 0 }))
        });
        match found {
            Ok(((node, status), spelling)) => {
                let other = shared.behaviour.other_numbers.load(Ordering::Relaxed);
                let more = if other { OTHER } else { spelling };
                answer_looked_up(reply, (node, self.shown(status)), more);
            }
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        self.filesystem.shared().names.forget(ino.0, nlookup);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.node(ino).and_then(|node| node.status()) {
            Ok(status) => reply.attr(&FRESH, &attributes_of(ino.0, &self.shown(status))),
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let refuse =
            mode.is_some() && self.filesystem.shared().behaviour.refuse_modes.load(Ordering::Relaxed);
        let change = move |node: &Node| {
            if refuse {
                return Err(Errno::PERM);
            }
            // The owner first: setting it clears bits of the mode.
            if uid.is_some() || gid.is_some() {
                node.set_owner(uid, gid)?;
            }
            mode.map_or(Ok(()), |mode| node.set_mode(mode))?;
            if atime.is_some() || mtime.is_some() {
                node.set_times(atime.map(time_spec), mtime.map(time_spec))?;
            }
            node.status()
        };
        let answer = move |reply: ReplyAttr, status: Stat| reply.attr(&FRESH, &attributes_of(ino.0, &status));
        let Some(size) = size else {
            return self.serve(ino, reply, ReplyAttr::error, move |_, node| change(node), answer);
        };
        let Some((node, reply)) = self.known(ino, reply, ReplyAttr::error) else { return };
        let cut = Arc::clone(&node);
        self.filesystem.set_size(&node, size, move |result| match result.and_then(|()| change(&cut)) {
            Ok(status) => answer(reply, status),
            Err(errno) => reply.error(refusal(errno)),
        });
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.node(ino).and_then(|node| self.filesystem.shared().names.read_link(&node)) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(refusal(errno)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (name, owner) = (name.to_owned(), self.owner(request, mode));
        self.entry(parent, reply, move |filesystem, parent| {
            let names = &filesystem.shared().names;
            if !matches!(mode & libc::S_IFMT, 0 | libc::S_IFREG) {
                return names.make_special(parent, &name, owner, rdev);
            }
            let found = names.make_file(parent, &name, owner)?;
            found.0.state().wish = Some(Arc::new(filesystem.default_layout(parent)?));
            Ok(found)
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let (name, owner) = (name.to_owned(), self.owner(request, mode));
        self.entry(parent, reply, move |filesystem, parent| {
            filesystem.shared().names.make_directory(parent, &name, owner)
        });
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (name, target, owner) = (link_name.to_owned(), target.to_owned(), self.owner(request, 0o777));
        self.entry(parent, reply, move |filesystem, parent| {
            filesystem.shared().names.make_symlink(parent, &name, &target, owner)
        });
    }

    fn link(&self, _request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let name = newname.to_owned();
        self.entry(newparent, reply, move |filesystem, parent| {
            let names = &filesystem.shared().names;
            names.link(&*names.node(ino.0)?, parent, &name)
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.empty(parent, reply, move |filesystem, parent| {
            if let Some(dead) = filesystem.shared().names.unlink(parent, &name)? {
                filesystem.bury(&dead);
            }
            Ok(())
        });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.empty(parent, reply, move |filesystem, parent| {
            filesystem.shared().names.remove_directory(parent, &name)
        });
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (name, new_name) = (name.to_owned(), newname.to_owned());
        self.empty(parent, reply, move |filesystem, parent| {
            let shared = filesystem.shared();
            let refuse = shared.behaviour.refuse_rename_flags.load(Ordering::Relaxed);
            if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() || (refuse && !flags.is_empty()) {
                return Err(Errno::INVAL);
            }
            let new_parent = shared.names.node(newparent.0)?;
            let replaced = shared.names.rename(parent, &name, &new_parent, &new_name, flags.is_empty())?;
            if let Some(dead) = replaced {
                filesystem.bury(&dead);
            }
            Ok(())
        });
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (opened_as, needs_objects) = (self.open_flags(), needs_objects(flags.0));
        let work = move |filesystem: &StripeFs, node: &Arc<Node>| filesystem.opened(node, needs_objects);
        self.serve(ino, reply, ReplyOpen::error, work, move |reply, ()| {
            reply.opened(FileHandle(0), opened_as);
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (name, owner, opened_as) = (name.to_owned(), self.owner(request, mode), self.open_flags());
        let work = move |filesystem: &StripeFs, parent: &Arc<Node>| {
            let names = &filesystem.shared().names;
            let found = match names.make_file(parent, &name, owner) {
                Err(Errno::EXIST) if flags & libc::O_EXCL == 0 => names.lookup(parent, &name)?,
                made => {
                    let made = made?;
                    made.0.state().wish = Some(Arc::new(filesystem.default_layout(parent)?));
                    made
                }
            };
            filesystem.opened(&found.0, needs_objects(flags))?;
            Ok(found)
        };
        self.serve(parent, reply, ReplyCreate::error, work, move |reply, (node, status): Found| {
            let attributes = attributes_of(node.number, &status);
            reply.created(&FRESH, &attributes, Generation(0), FileHandle(0), opened_as);
        });
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if self.would_wait(flags) {
            return reply.error(refusal(Errno::AGAIN));
        }
        let Some((node, reply)) = self.known(ino, reply, ReplyData::error) else { return };
        self.filesystem.read(&node, offset, size.into(), move |read| match read {
            Ok(bytes) => reply.data(bytes),
            Err(errno) => reply.error(refusal(errno)),
        });
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.would_wait(flags) {
            return reply.error(refusal(Errno::AGAIN));
        }
        let ready = self.node(ino).and_then(|node| {
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                node.set_mode(node.status()?.st_mode & 0o1777)?;
            }
            Ok(node)
        });
        let node = match ready {
            Ok(node) => node,
            Err(errno) => return reply.error(refusal(errno)),
        };
        let length = data.len() as u32;
        self.filesystem.write(&node, offset, data, move |written| match written {
            Ok(()) => reply.written(length),
            Err(errno) => reply.error(refusal(errno)),
        });
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let Ok(node) = self.node(ino) {
            self.filesystem.closed(&node);
        }
        reply.ok();
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let Some((node, reply)) = self.known(ino, reply, ReplyEmpty::error) else { return };
        self.filesystem.sync(&node, move |synced| match synced {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(refusal(errno)),
        });
    }

    fn opendir(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(self.next_handle.fetch_add(1, Ordering::Relaxed)), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let known = if offset == 0 { None } else { self.listings().get(&fh.0).cloned() };
        let list = || self.filesystem.shared().names.list(&*self.node(ino)?).map(Arc::new);
        let listing = match known.map_or_else(list, Ok) {
            Ok(listing) => listing,
            Err(errno) => return reply.error(refusal(errno)),
        };
        self.listings().insert(fh.0, Arc::clone(&listing));
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(listing.len());
        for (position, listed) in (offset + 1..).zip(&listing[from..]) {
            let name = OsStr::from_bytes(&listed.name);
            if reply.add(INodeNo(listed.number), position, kind_of(listed.kind), name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.listings().remove(&fh.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let Some((node, reply)) = self.known(ino, reply, ReplyEmpty::error) else { return };
        let (filesystem, held) = (self.filesystem.clone(), Arc::clone(&node));
        let work = move || filesystem.shared().names.sync_directory(&held);
        let mds = &self.filesystem.shared().mds;
        self.filesystem.submit(mds, &node, Kind::Sync, work, move |synced| match synced {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(refusal(errno)),
        });
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let shared = self.filesystem.shared();
        let sum = || -> Result<[u64; 3], Errno> {
            let mut sum = [0; 3];
            for target in &shared.targets {
                let space = target.space()?;
                for (sum, blocks) in sum.iter_mut().zip([space.f_blocks, space.f_bfree, space.f_bavail]) {
                    *sum += blocks * space.f_frsize / BLOCK_BYTES;
                }
            }
            Ok(sum)
        };
        match (sum(), shared.names.space()) {
            (Ok([blocks, free, available]), Ok(names)) => reply.statfs(
                blocks,
                free,
                available,
                names.f_files,
                names.f_ffree,
                BLOCK_BYTES as u32,
                NAME_BYTES_MAX,
                BLOCK_BYTES as u32,
            ),
            (Err(errno), _) | (_, Err(errno)) => reply.error(refusal(errno)),
        }
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        self.empty(ino, reply, move |filesystem, node| xattrs::set(filesystem, node, &name, &value, flags));
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = self.node(ino).and_then(|node| xattrs::get(&self.filesystem, &node, name.as_bytes()));
        answer_attribute(reply, size, value);
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.node(ino).and_then(|node| xattrs::list(&self.filesystem, &node));
        answer_attribute(reply, size, names);
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.empty(ino, reply, move |_, node| xattrs::remove(node, &name));
    }

    fn fallocate(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let grown = self.node(ino).and_then(|node| match mode {
            0 if node.size()? < offset.saturating_add(length) => Ok(Some(node)),
            0 | libc::FALLOC_FL_KEEP_SIZE => Ok(None),
            _ => Err(Errno::OPNOTSUPP),
        });
        match grown {
            Ok(Some(node)) => {
                self.filesystem.set_size(&node, offset.saturating_add(length), move |set| match set {
                    Ok(()) => reply.ok(),
                    Err(errno) => reply.error(refusal(errno)),
                })
            }
            Ok(None) => reply.ok(),
            Err(errno) => reply.error(refusal(errno)),
        }
    }
}
