//! The metadata server: names, attributes and layouts, in a directory of a real file system.
//!
//! `tree` is the tree that is shown, with a sparse file for each file: its size, times, modes and owners are those that
//! are shown, its layout is an extended attribute, and a metadata component is its contents. `next` is the first object
//! number that no life of this file system has used, `targets` how many there must be.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{self, AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;

use crate::node::Node;

/// Numbers that are taken from `next` at once.
const NUMBERS_AT_ONCE: u64 = 10_000;

/// The kernel's number of the root.
pub const ROOT: u64 = 1;
/// In the second number of a node.
pub const OTHER: u64 = 1 << 62;
/// Numbers of a node under other spellings of its name have something here.
const SPELLING: u64 = 0x3FFF << SPELLING_SHIFT;
const SPELLING_SHIFT: u32 = 48;

/// Who makes something, and how it is protected.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permissions.
    pub mode: u32,
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// Its inode.
    pub number: u64,
    /// What it is.
    pub kind: FileType,
}

struct Numbers {
    next: u64,
    reserved: u64,
    file: PathBuf,
}

/// The tree, and the nodes of it that the kernel knows.
pub struct Names {
    /// Each with how often the kernel was told of it.
    nodes: Mutex<HashMap<u64, (Arc<Node>, u64)>>,
    numbers: Mutex<Numbers>,
    tree: OwnedFd,
    /// Names that differ in case are the same.
    pub fold_case: AtomicBool,
    /// Names with a colon are refused.
    pub refuse_colons: AtomicBool,
    /// So are they, with the error of what is not there.
    pub miss_colons: AtomicBool,
    /// Names that end in a dot or a blank, or are those of devices, are refused.
    pub refuse_devices: AtomicBool,
}

impl Names {
    /// In this directory, which may be new or of an earlier life, for so many targets: never fewer than it had.
    pub fn open(directory: &Path, targets: usize) -> io::Result<Names> {
        let tree = directory.join("tree");
        std::fs::create_dir_all(&tree)?;
        let counted = directory.join("targets");
        match read_number(&counted)? {
            Some(before) if before > targets as u64 => {
                return Err(io::Error::other(format!("it has {before} targets, not {targets}")));
            }
            _ => write_number(&counted, targets as u64)?,
        }
        let file = directory.join("next");
        let next = read_number(&file)?.unwrap_or(1);
        let tree = fs::openat(CWD, &tree, HELD | OFlags::DIRECTORY, Mode::empty())?;
        let root = Node::new(ROOT, FileType::Directory, tree.try_clone()?);
        Ok(Names {
            nodes: Mutex::new(HashMap::from([(ROOT, (Arc::new(root), 1))])),
            numbers: Mutex::new(Numbers { next, reserved: next, file }),
            tree,
            fold_case: AtomicBool::new(false),
            refuse_colons: AtomicBool::new(false),
            miss_colons: AtomicBool::new(false),
            refuse_devices: AtomicBool::new(false),
        })
    }

    /// A node that the kernel knows. `ESTALE` if it does not.
    pub fn node(&self, number: u64) -> Result<Arc<Node>, Errno> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.get(&own(number)).map(|(node, _)| Arc::clone(node)).ok_or(Errno::STALE)
    }

    /// The name as it is kept, or will be.
    fn kept<'a>(&self, parent: &Node, name: &'a OsStr) -> Result<Cow<'a, OsStr>, Errno> {
        let has_colon = name.as_bytes().contains(&b':');
        if self.miss_colons.load(Ordering::Relaxed) && has_colon {
            return Err(Errno::NOENT);
        }
        let refuse_devices = self.refuse_devices.load(Ordering::Relaxed);
        let is_refused = self.refuse_colons.load(Ordering::Relaxed) && has_colon;
        if is_refused || refuse_devices && is_of_device(name.as_bytes()) {
            return Err(Errno::INVAL);
        }
        if self.fold_case.load(Ordering::Relaxed) {
            let folded = without_case(name.as_bytes());
            let listed = self.list(parent)?;
            if let Some(same) = listed.into_iter().find(|it| without_case(&it.name) == folded) {
                return Ok(OsString::from_vec(same.name).into());
            }
        }
        Ok(name.into())
    }

    /// What the number of a node has in it under this name, where numbers go by path; nothing under the name as it is kept.
    pub fn spelling(&self, parent: &Node, name: &OsStr) -> u64 {
        let is_kept = self.kept(parent, name).is_ok_and(|kept| &*kept == name);
        let folded = name.as_bytes().iter().fold(1u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte));
        if is_kept { 0 } else { (folded << SPELLING_SHIFT & SPELLING).max(1 << SPELLING_SHIFT) }
    }

    /// What has this name; the kernel is told of it.
    pub fn lookup(&self, parent: &Node, name: &OsStr) -> Result<(Arc<Node>, Stat), Errno> {
        let (held, status) = hold(parent, &self.kept(parent, name)?)?;
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let (node, count) =
            nodes.entry(status.st_ino).or_insert_with(|| (Arc::new(node_of(held, &status)), 0));
        *count += 1;
        Ok((Arc::clone(node), status))
    }

    /// The kernel forgets so many of the times that it was told.
    pub fn forget(&self, number: u64, times: u64) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, count)) = nodes.get_mut(&own(number))
            && number != ROOT
        {
            *count = count.saturating_sub(times);
            if *count == 0 {
                nodes.remove(&own(number));
            }
        }
    }

    /// What has this name, without the kernel's knowing.
    fn peek(&self, parent: &Node, name: &OsStr) -> Result<Arc<Node>, Errno> {
        let (held, status) = hold(parent, &self.kept(parent, name)?)?;
        self.node(status.st_ino).or_else(|_| Ok(Arc::new(node_of(held, &status))))
    }

    /// A new empty file.
    pub fn make_file(&self, parent: &Node, name: &OsStr, owner: Owner) -> Result<(Arc<Node>, Stat), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(parent.held(), &*self.kept(parent, name)?, flags, Mode::RUSR | Mode::WUSR)?;
        self.made(parent, name, owner)
    }

    /// A new fifo, socket or device.
    pub fn make_special(
        &self,
        parent: &Node,
        name: &OsStr,
        owner: Owner,
        device: u32,
    ) -> Result<(Arc<Node>, Stat), Errno> {
        let kind = FileType::from_raw_mode(owner.mode);
        fs::mknodat(parent.held(), name, kind, Mode::RUSR | Mode::WUSR, device.into())?;
        self.made(parent, name, owner)
    }

    /// A new directory, with the default layout of its parent.
    pub fn make_directory(
        &self,
        parent: &Node,
        name: &OsStr,
        mut owner: Owner,
    ) -> Result<(Arc<Node>, Stat), Errno> {
        owner.mode |= parent.status()?.st_mode & libc::S_ISGID;
        fs::mkdirat(parent.held(), &*self.kept(parent, name)?, Mode::RWXU)?;
        let (node, status) = self.made(parent, name, owner)?;
        if let Some(default) = parent.layout()? {
            node.set_layout(&mut node.state(), (*default).clone())?;
        }
        Ok((node, status))
    }

    /// A new symbolic link.
    pub fn make_symlink(
        &self,
        parent: &Node,
        name: &OsStr,
        target: &Path,
        owner: Owner,
    ) -> Result<(Arc<Node>, Stat), Errno> {
        fs::symlinkat(target, parent.held(), &*self.kept(parent, name)?)?;
        self.made(parent, name, owner)
    }

    fn made(&self, parent: &Node, name: &OsStr, owner: Owner) -> Result<(Arc<Node>, Stat), Errno> {
        let above = parent.status()?;
        let gid = if above.st_mode & libc::S_ISGID != 0 { above.st_gid } else { owner.gid };
        let (uid, gid) = (Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(gid)));
        fs::chownat(parent.held(), name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        let (node, _) = self.lookup(parent, name)?;
        if node.kind != FileType::Symlink {
            node.set_mode(owner.mode)?;
        }
        let status = node.status()?;
        Ok((node, status))
    }

    /// One more name for a file.
    pub fn link(&self, node: &Node, parent: &Node, name: &OsStr) -> Result<(Arc<Node>, Stat), Errno> {
        let kept = self.kept(parent, name)?;
        fs::linkat(CWD, node.path(), parent.held(), &*kept, AtFlags::SYMLINK_FOLLOW)?;
        self.lookup(parent, name)
    }

    /// Removes a name that is no directory's; what had it, if that was its last.
    pub fn unlink(&self, parent: &Node, name: &OsStr) -> Result<Option<Arc<Node>>, Errno> {
        let node = self.peek(parent, name)?;
        fs::unlinkat(parent.held(), &*self.kept(parent, name)?, AtFlags::empty())?;
        Ok(without_names(node))
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, parent: &Node, name: &OsStr) -> Result<(), Errno> {
        fs::unlinkat(parent.held(), &*self.kept(parent, name)?, AtFlags::REMOVEDIR)
    }

    /// Moves a name; what had the new one, if that was its last.
    pub fn rename(
        &self,
        parent: &Node,
        name: &OsStr,
        new_parent: &Node,
        new_name: &OsStr,
        replace: bool,
    ) -> Result<Option<Arc<Node>>, Errno> {
        let replaced = match self.peek(new_parent, new_name) {
            Ok(node) => Some(node),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let [name, new_name] = [self.kept(parent, name)?, self.kept(new_parent, new_name)?];
        fs::renameat_with(parent.held(), &*name, new_parent.held(), &*new_name, flags)?;
        Ok(replaced.and_then(without_names))
    }

    /// Where a symbolic link leads.
    pub fn read_link(&self, node: &Node) -> Result<Vec<u8>, Errno> {
        Ok(fs::readlinkat(node.held(), c"", Vec::new())?.into_bytes())
    }

    /// Every name of a directory, `.` and `..` too.
    pub fn list(&self, node: &Node) -> Result<Vec<Listed>, Errno> {
        let directory = open_directory(node)?;
        let mut names = Vec::new();
        for entry in Dir::new(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes().to_vec();
            // The root has another number than its directory, and nobody asks who is above it.
            let is_root = node.number == ROOT && matches!(&*name, b"." | b"..");
            let number = if is_root { ROOT } else { entry.ino() };
            names.push(Listed { name, number, kind: entry.file_type() });
        }
        Ok(names)
    }

    /// The names of a directory become durable.
    pub fn sync_directory(&self, node: &Node) -> Result<(), Errno> {
        fs::fsync(open_directory(node)?)
    }

    /// Room for names and for the contents of metadata components.
    pub fn space(&self) -> Result<fs::StatVfs, Errno> {
        // An O_PATH descriptor is enough for statvfs.
        fs::fstatvfs(&self.tree)
    }

    /// A number for an object, that none ever had.
    pub fn new_number(&self) -> Result<u64, Errno> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if numbers.next == numbers.reserved {
            let reserved = numbers.next + NUMBERS_AT_ONCE;
            write_number(&numbers.file, reserved)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            numbers.reserved = reserved;
        }
        numbers.next += 1;
        Ok(numbers.next - 1)
    }
}

/// The number that it has whatever it is called.
fn own(number: u64) -> u64 {
    number & !(OTHER | SPELLING)
}

fn without_case(name: &[u8]) -> Vec<u8> {
    std::str::from_utf8(name).map_or_else(|_| name.to_ascii_lowercase(), |it| it.to_lowercase().into_bytes())
}

/// As Windows sees it, as far as tests need it.
fn is_of_device(name: &[u8]) -> bool {
    let stem = name.split(|byte| *byte == b'.').next().unwrap_or_default();
    let is_dots = name.iter().all(|byte| *byte == b'.');
    !is_dots && matches!(name.last(), Some(b'.' | b' '))
        || [&b"aux"[..], b"com1"].iter().any(|it| it.eq_ignore_ascii_case(stem))
}

const HELD: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn hold(parent: &Node, name: &OsStr) -> Result<(OwnedFd, Stat), Errno> {
    let held = fs::openat(parent.held(), name, HELD, Mode::empty())?;
    let status = fs::fstat(&held)?;
    Ok((held, status))
}

fn node_of(held: OwnedFd, status: &Stat) -> Node {
    Node::new(status.st_ino, FileType::from_raw_mode(status.st_mode), held)
}

fn without_names(node: Arc<Node>) -> Option<Arc<Node>> {
    let is_file = node.kind == FileType::RegularFile;
    let is_dead = is_file && node.status().is_ok_and(|status| status.st_nlink == 0);
    is_dead.then_some(node)
}

fn open_directory(node: &Node) -> Result<OwnedFd, Errno> {
    fs::openat(node.held(), c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn read_number(file: &Path) -> io::Result<Option<u64>> {
    match std::fs::read_to_string(file) {
        Ok(text) => {
            let number = text.trim().parse();
            number.map(Some).map_err(|_| io::Error::other(format!("{file:?} is damaged")))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// At once, and durable: no crash lets an object's number be used twice.
fn write_number(file: &Path, number: u64) -> io::Result<()> {
    let temporary = file.with_extension("new");
    std::fs::write(&temporary, format!("{number}\n"))?;
    std::fs::File::open(&temporary)?.sync_all()?;
    std::fs::rename(&temporary, file)
}
