//! The disk as the kernel's FUSE client sees it.
//!
//! Nothing is cached by name or attribute (time to live 0), so a crash shows at the next path lookup. Inode numbers
//! survive a crash, as on a disk, with another generation: the kernel takes them for other inodes then, and every
//! descriptor of the time before fails.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use haul_fuse::times;
use rustix::io::Errno;

use crate::disk::{Attributes, Body, Disk, NAME_BYTES_MAX, Number, PAGE_BYTES, Result, Scope, Stat, Time};
use crate::faults::Kind;
use crate::handle::{CrashFs, now};

const NOW_STALE: Duration = Duration::ZERO;
/// What `statfs` shows where no limit is set.
const SPACE_BYTES: u64 = 1 << 40;

pub(crate) struct Adapter {
    filesystem: CrashFs,
}

impl Adapter {
    pub(crate) fn new(filesystem: CrashFs) -> Self {
        Adapter { filesystem }
    }

    /// Runs an operation and answers. One that may wait gets a thread of its own, so that a hanging sync holds up
    /// nothing but itself.
    fn run<R: Send + 'static, T>(
        &self,
        kind: Kind,
        reply: R,
        refuse: fn(R, fuser::Errno),
        work: impl FnOnce(&mut Disk) -> Result<T> + Send + 'static,
        answer: impl FnOnce(R, T) + Send + 'static,
    ) {
        let filesystem = self.filesystem.clone();
        let waits = filesystem.faults().may_wait(kind);
        let task = move || {
            let result = filesystem.faults().before(kind).and_then(|()| work(&mut filesystem.disk()));
            match result {
                Ok(value) => answer(reply, value),
                Err(errno) => refuse(reply, fuser::Errno::from_i32(errno.raw_os_error())),
            }
        };
        if waits {
            std::thread::spawn(task);
        } else {
            task();
        }
    }

    fn entry(
        &self,
        kind: Kind,
        reply: ReplyEntry,
        work: impl FnOnce(&mut Disk) -> Result<Number> + Send + 'static,
    ) {
        let seen = move |disk: &mut Disk| {
            let number = work(disk)?;
            let stat = disk.stat(number)?;
            disk.remember(number);
            Ok((attributes_of(&stat), Generation(disk.generation())))
        };
        self.run(kind, reply, ReplyEntry::error, seen, |reply, (attributes, generation)| {
            reply.entry(&NOW_STALE, &attributes, generation);
        });
    }

    fn empty(
        &self,
        kind: Kind,
        reply: ReplyEmpty,
        work: impl FnOnce(&mut Disk) -> Result<()> + Send + 'static,
    ) {
        self.run(kind, reply, ReplyEmpty::error, work, |reply, ()| reply.ok());
    }

    /// A sync that is to fail loses what it should have written, one that lies does nothing.
    fn sync(&self, kind: Kind, handle: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let filesystem = self.filesystem.clone();
        let waits = filesystem.faults().may_wait(kind);
        let scope = if datasync { Scope::Data } else { Scope::All };
        let task = move || {
            let failed = filesystem.faults().before(kind);
            let mut disk = filesystem.disk();
            let result = disk.opened(handle.0).and_then(|number| match failed {
                Err(errno) => {
                    if kind == Kind::Sync {
                        disk.fail_sync(number)?;
                    }
                    Err(errno)
                }
                Ok(()) if filesystem.faults().lies(kind, disk.last_name(number)) => Ok(()),
                Ok(()) if kind == Kind::SyncDirectory => disk.sync_directory(number, scope),
                Ok(()) => disk.sync_file(number, scope),
            });
            drop(disk);
            match result {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(fuser::Errno::from_i32(errno.raw_os_error())),
            }
        };
        if waits {
            std::thread::spawn(task);
        } else {
            task();
        }
    }
}

fn fresh(request: &Request, mode: u32) -> Attributes {
    let time = now();
    Attributes {
        mode: mode & 0o7777,
        uid: request.uid(),
        gid: request.gid(),
        accessed: time,
        modified: time,
        changed: time,
    }
}

fn attributes_of(stat: &Stat) -> FileAttr {
    let Attributes { mode, uid, gid, accessed, modified, changed } = stat.attributes;
    FileAttr {
        ino: INodeNo(stat.number),
        size: stat.size,
        blocks: stat.blocks,
        atime: system_time(accessed),
        mtime: system_time(modified),
        ctime: system_time(changed),
        crtime: UNIX_EPOCH,
        kind: file_type(stat.format),
        perm: mode as u16,
        nlink: stat.links,
        uid,
        gid,
        rdev: stat.device,
        blksize: PAGE_BYTES as u32,
        flags: 0,
    }
}

fn file_type(format: u32) -> FileType {
    match format {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn system_time(time: Time) -> SystemTime {
    times::system_time(time.seconds, time.nanos)
}

fn time_from(time: TimeOrNow, now: Time) -> Time {
    times::sent_time(time).map_or(now, |(seconds, nanos)| Time { seconds, nanos })
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Refused where the kernel is older: only speed is lost.
        let _ = config.add_capabilities(InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO);
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        self.entry(Kind::Other, reply, move |disk| disk.lookup(parent.0, &name));
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        self.filesystem.disk().forget(ino.0, nlookup);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.run(Kind::Other, reply, ReplyAttr::error, move |disk| disk.stat(ino.0), answer_attributes);
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
        let kind = if size.is_some() { Kind::Write } else { Kind::Attributes };
        let work = move |disk: &mut Disk| {
            let now = now();
            if let Some(size) = size {
                disk.set_size(ino.0, size, now)?;
            }
            disk.set_attributes(ino.0, now, |attributes| {
                attributes.mode = mode.map_or(attributes.mode, |mode| mode & 0o7777);
                attributes.uid = uid.unwrap_or(attributes.uid);
                attributes.gid = gid.unwrap_or(attributes.gid);
                attributes.accessed = atime.map_or(attributes.accessed, |time| time_from(time, now));
                attributes.modified = mtime.map_or(attributes.modified, |time| time_from(time, now));
            })?;
            disk.stat(ino.0)
        };
        self.run(kind, reply, ReplyAttr::error, work, answer_attributes);
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        let work = move |disk: &mut Disk| Ok(disk.read_link(ino.0)?.to_vec());
        self.run(Kind::Read, reply, ReplyData::error, work, |reply, target| reply.data(&target));
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
        let name = name.as_bytes().to_vec();
        let attributes = fresh(request, mode);
        self.entry(Kind::Make, reply, move |disk| {
            let format = mode & libc::S_IFMT;
            let special = Body::Special { format, device: rdev };
            let body = if matches!(format, 0 | libc::S_IFREG) { Disk::empty_file() } else { special };
            disk.make(parent.0, &name, body, attributes)
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
        let name = name.as_bytes().to_vec();
        let attributes = fresh(request, mode);
        self.entry(Kind::Make, reply, move |disk| {
            disk.make(parent.0, &name, Disk::empty_directory(), attributes)
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.empty(Kind::Remove, reply, move |disk| disk.unlink(parent.0, &name, now()));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.empty(Kind::Remove, reply, move |disk| disk.remove_directory(parent.0, &name, now()));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let name = link_name.as_bytes().to_vec();
        let body = Body::Symlink(target.as_os_str().as_bytes().to_vec());
        let attributes = fresh(request, 0o777);
        self.entry(Kind::Make, reply, move |disk| disk.make(parent.0, &name, body, attributes));
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
        let (name, new_name) = (name.as_bytes().to_vec(), newname.as_bytes().to_vec());
        self.empty(Kind::Rename, reply, move |disk| {
            if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
                return Err(Errno::INVAL);
            }
            let replace = !flags.contains(RenameFlags::RENAME_NOREPLACE);
            disk.rename(parent.0, &name, newparent.0, &new_name, replace, now())
        });
    }

    fn link(&self, _request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let name = newname.as_bytes().to_vec();
        self.entry(Kind::Make, reply, move |disk| {
            disk.link(ino.0, newparent.0, &name, now())?;
            Ok(ino.0)
        });
    }

    fn open(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.run(Kind::Other, reply, ReplyOpen::error, move |disk| disk.open(ino.0), answer_opened);
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let work = move |disk: &mut Disk| {
            let bytes = disk.read(disk.opened(fh.0)?, offset, u64::from(size))?;
            disk.count_read(bytes.len());
            Ok(bytes)
        };
        self.run(Kind::Read, reply, ReplyData::error, work, |reply, bytes| reply.data(&bytes));
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.filesystem.faults().may_wait(Kind::Write) {
            let data = data.to_vec();
            let work = move |disk: &mut Disk| disk.write(disk.opened(fh.0)?, offset, &data, now());
            self.run(Kind::Write, reply, ReplyWrite::error, work, |reply, length| {
                reply.written(length as u32)
            });
            return;
        }
        let result = self.filesystem.faults().before(Kind::Write).and_then(|()| {
            let mut disk = self.filesystem.disk();
            let number = disk.opened(fh.0)?;
            disk.write(number, offset, data, now())
        });
        match result {
            Ok(length) => reply.written(length as u32),
            Err(errno) => reply.error(fuser::Errno::from_i32(errno.raw_os_error())),
        }
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.filesystem.disk().close(fh.0);
        reply.ok();
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.sync(Kind::Sync, fh, datasync, reply);
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.run(Kind::Other, reply, ReplyOpen::error, move |disk| disk.open(ino.0), answer_opened);
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut disk = self.filesystem.disk();
        let entries = match disk.list(fh.0, offset) {
            Ok(entries) => entries.to_vec(),
            Err(errno) => return reply.error(fuser::Errno::from_i32(errno.raw_os_error())),
        };
        for (position, (name, number)) in (offset + 1..).zip(entries) {
            // A name of the listing whose node is gone by now.
            let Ok(stat) = disk.stat(number) else { continue };
            if reply.add(INodeNo(number), position, file_type(stat.format), OsStr::from_bytes(&name)) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut disk = self.filesystem.disk();
        let generation = Generation(disk.generation());
        let entries = match disk.list(fh.0, offset) {
            Ok(entries) => entries.to_vec(),
            Err(errno) => return reply.error(fuser::Errno::from_i32(errno.raw_os_error())),
        };
        for (position, (name, number)) in (offset + 1..).zip(entries) {
            let Ok(stat) = disk.stat(number) else { continue };
            let attributes = attributes_of(&stat);
            let full = reply.add(
                INodeNo(number),
                position,
                OsStr::from_bytes(&name),
                &NOW_STALE,
                &attributes,
                generation,
            );
            if full {
                break;
            }
            // The kernel counts no lookup for these two.
            if !matches!(name.as_slice(), b"." | b"..") {
                disk.remember(number);
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
        self.filesystem.disk().close(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _request: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.sync(Kind::SyncDirectory, fh, datasync, reply);
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let disk = self.filesystem.disk();
        let total = disk.space().unwrap_or(SPACE_BYTES) / PAGE_BYTES;
        let free = total.saturating_sub(disk.bytes_used() / PAGE_BYTES);
        let unit = PAGE_BYTES as u32;
        reply.statfs(total, free, free, disk.nodes() as u64, 1 << 32, unit, NAME_BYTES_MAX as u32, unit);
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
        let name = name.as_bytes().to_vec();
        let attributes = fresh(request, mode);
        let work = move |disk: &mut Disk| {
            let number = match disk.make(parent.0, &name, Disk::empty_file(), attributes) {
                Err(Errno::EXIST) if flags & libc::O_EXCL == 0 => disk.lookup(parent.0, &name)?,
                made => made?,
            };
            let handle = disk.open(number)?;
            disk.remember(number);
            Ok((attributes_of(&disk.stat(number)?), Generation(disk.generation()), handle))
        };
        self.run(Kind::Make, reply, ReplyCreate::error, work, |reply, (attributes, generation, handle)| {
            reply.created(&NOW_STALE, &attributes, generation, FileHandle(handle), FopenFlags::empty());
        });
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
        self.empty(Kind::Write, reply, move |disk| match mode {
            0 => {
                let size = disk.stat(ino.0)?.size.max(offset + length);
                disk.set_size(ino.0, size, now())
            }
            libc::FALLOC_FL_KEEP_SIZE => Ok(()),
            _ => Err(Errno::OPNOTSUPP),
        });
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let work = move |disk: &mut Disk| {
            let size = disk.stat(ino.0)?.size as i64;
            match whence {
                _ if offset < 0 || offset >= size => Err(Errno::NXIO),
                libc::SEEK_DATA => Ok(offset),
                libc::SEEK_HOLE => Ok(size),
                _ => Err(Errno::INVAL),
            }
        };
        self.run(Kind::Other, reply, ReplyLseek::error, work, |reply, offset| reply.offset(offset));
    }
}

fn answer_attributes(reply: ReplyAttr, stat: Stat) {
    reply.attr(&NOW_STALE, &attributes_of(&stat));
}

fn answer_opened(reply: ReplyOpen, handle: u64) {
    reply.opened(FileHandle(handle), FopenFlags::empty());
}
