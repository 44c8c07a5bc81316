//! Trees, walked by descriptors: paths may be longer than any system call takes.
//!
//! An independent look at what a mover has made: nothing here is shared with it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};

/// Bytes compared at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// Names of unfinished files begin with this.
pub const UNFINISHED_PREFIX: &[u8] = b".haul-";

/// Whether this is the name of an unfinished file: the prefix and what tells files apart, on GlusterFS `.NAME` in front of it.
pub fn is_unfinished(name: &[u8]) -> bool {
    const TOKEN_BYTES: usize = 32;
    let behind = name.len().saturating_sub(UNFINISHED_PREFIX.len() + TOKEN_BYTES);
    name.starts_with(UNFINISHED_PREFIX)
        || name.starts_with(b".") && name[behind..].starts_with(UNFINISHED_PREFIX)
}

/// Opens a directory, never through a symlink.
pub fn open_directory(parent: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Opens the root of a tree; the last component may be a symlink.
pub fn open_root(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// The names in a directory, sorted, with what `lstat` says of each.
pub fn entries(directory: &OwnedFd) -> io::Result<BTreeMap<Vec<u8>, Stat>> {
    let mut found = BTreeMap::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        match rustix::fs::statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => drop(found.insert(name.to_vec(), stat)),
            // Removed between the two calls.
            Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(found)
}

/// What an entry is.
pub fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// One thing that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Below the roots.
    pub path: Vec<u8>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", shown(&self.path), self.what)
    }
}

/// A path for people: what is not printable is escaped.
pub fn shown(path: &[u8]) -> String {
    let text = path.escape_ascii().to_string();
    // Paths of four thousand bytes help nobody.
    if text.len() > 200 { format!("{}...{}", &text[..100], &text[text.len() - 60..]) } else { text }
}

/// What a comparison looks at.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Differences listed at most; more are only counted.
    pub listed_max: usize,
    /// Compare modification times (ns) of files and directories.
    pub times: bool,
    /// Compare permission bits, without setuid and setgid, which are not carried over.
    pub modes: bool,
    /// Left-overs of unfinished work in the second tree are a difference of their own kind.
    pub unfinished: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { listed_max: 50, times: true, modes: true, unfinished: true }
    }
}

/// What a comparison found.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// The first ones.
    pub differences: Vec<Difference>,
    /// All of them.
    pub count: u64,
    /// Files and symlinks compared.
    pub files: u64,
    /// Directories compared.
    pub directories: u64,
    /// Bytes compared.
    pub bytes: u64,
    /// Left-overs such as `.haul-*` in the second tree (counted as differences as well).
    pub unfinished: u64,
}

impl Comparison {
    /// No difference.
    pub fn is_same(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, options: &Options, path: &[u8], what: impl Into<String>) {
        self.count += 1;
        if self.differences.len() < options.listed_max {
            self.differences.push(Difference { path: path.to_vec(), what: what.into() });
        }
    }
}

/// Compares two trees byte for byte and attribute for attribute.
pub fn compare(a: &Path, b: &Path, options: &Options) -> io::Result<Comparison> {
    let (a, b) = (open_root(a)?, open_root(b)?);
    let mut comparison = Comparison::default();
    compare_attributes(options, &mut comparison, b".", &rustix::fs::fstat(&a)?, &rustix::fs::fstat(&b)?);
    compare_directories(options, &mut comparison, &mut Vec::new(), &a, &b)?;
    Ok(comparison)
}

fn compare_directories(
    options: &Options,
    comparison: &mut Comparison,
    path: &mut Vec<u8>,
    a: &OwnedFd,
    b: &OwnedFd,
) -> io::Result<()> {
    comparison.directories += 1;
    let (in_a, mut in_b) = (entries(a)?, entries(b)?);
    for (name, stat_a) in &in_a {
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        match in_b.remove(name) {
            None => comparison.add(options, path, "is missing"),
            Some(stat_b) if kind(stat_a) != kind(&stat_b) => {
                comparison.add(options, path, format!("is a {:?}, not a {:?}", kind(&stat_b), kind(stat_a)));
            }
            Some(stat_b) => {
                compare_entry(options, comparison, path, (a, stat_a), (b, &stat_b), OsStr::from_bytes(name))?;
            }
        }
        path.truncate(length);
    }
    for name in in_b.keys() {
        let full = [path.as_slice(), if path.is_empty() { b"" } else { b"/" }, name].concat();
        if is_unfinished(name) {
            comparison.unfinished += 1;
            if options.unfinished {
                comparison.add(options, &full, "is left over");
            }
        } else {
            comparison.add(options, &full, "is extra");
        }
    }
    Ok(())
}

fn compare_entry(
    options: &Options,
    comparison: &mut Comparison,
    path: &mut Vec<u8>,
    (a, stat_a): (&OwnedFd, &Stat),
    (b, stat_b): (&OwnedFd, &Stat),
    name: &OsStr,
) -> io::Result<()> {
    match kind(stat_a) {
        FileType::Directory => {
            compare_attributes(options, comparison, path, stat_a, stat_b);
            compare_directories(
                options,
                comparison,
                path,
                &open_directory(a, name)?,
                &open_directory(b, name)?,
            )
        }
        FileType::RegularFile => {
            comparison.files += 1;
            compare_attributes(options, comparison, path, stat_a, stat_b);
            if stat_a.st_size != stat_b.st_size {
                comparison.add(
                    options,
                    path,
                    format!("has {} bytes, not {}", stat_b.st_size, stat_a.st_size),
                );
            } else if let Some(at) = first_difference(a, b, name)? {
                comparison.add(options, path, format!("differs at byte {at}"));
            }
            comparison.bytes += stat_a.st_size as u64;
            Ok(())
        }
        FileType::Symlink => {
            comparison.files += 1;
            let (a, b) =
                (rustix::fs::readlinkat(a, name, Vec::new())?, rustix::fs::readlinkat(b, name, Vec::new())?);
            if a != b {
                comparison.add(options, path, format!("leads to {b:?}, not {a:?}"));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn compare_attributes(options: &Options, comparison: &mut Comparison, path: &[u8], a: &Stat, b: &Stat) {
    let mode = |stat: &Stat| stat.st_mode & 0o1777;
    if options.modes && mode(a) != mode(b) {
        comparison.add(options, path, format!("has mode {:04o}, not {:04o}", mode(b), mode(a)));
    }
    let time = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec);
    if options.times && time(a) != time(b) {
        comparison.add(options, path, format!("was modified at {:?}, not {:?}", time(b), time(a)));
    }
}

fn first_difference(a: &OwnedFd, b: &OwnedFd, name: &OsStr) -> io::Result<Option<u64>> {
    let open = |parent: &OwnedFd| -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?.into())
    };
    let (a, b) = (open(a)?, open(b)?);
    let (mut bytes_a, mut bytes_b) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let mut at = 0;
    loop {
        let (length_a, length_b) = (read_full(&a, &mut bytes_a, at)?, read_full(&b, &mut bytes_b, at)?);
        let (part_a, part_b) = (&bytes_a[..length_a], &bytes_b[..length_b]);
        if part_a != part_b {
            let same = part_a.iter().zip(part_b).take_while(|(a, b)| a == b).count();
            return Ok(Some(at + same as u64));
        }
        if length_a == 0 {
            return Ok(None);
        }
        at += length_a as u64;
    }
}

fn read_full(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut length = 0;
    while length < bytes.len() {
        match file.read_at(&mut bytes[length..], at + length as u64)? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

/// Compares one file or symlink of two trees, with its attributes; the path is relative to both.
pub fn compare_one(a: &Path, b: &Path, path: &[u8], options: &Options) -> io::Result<Comparison> {
    let mut comparison = Comparison::default();
    let mut shown_path = path.to_vec();
    let (parents, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b""[..], path),
    };
    let descend = |root: &Path| -> io::Result<OwnedFd> {
        let mut directory = open_root(root)?;
        for part in parents.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            directory = open_directory(&directory, OsStr::from_bytes(part))?;
        }
        Ok(directory)
    };
    let name = OsStr::from_bytes(name);
    let a = descend(a)?;
    let stat_a = rustix::fs::statat(&a, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let b = descend(b).and_then(|b| Ok((rustix::fs::statat(&b, name, AtFlags::SYMLINK_NOFOLLOW)?, b)));
    match b {
        Err(_) => comparison.add(options, path, "is missing"),
        Ok((stat_b, _)) if kind(&stat_a) != kind(&stat_b) => {
            comparison.add(options, path, "is of another kind")
        }
        Ok((stat_b, b)) => {
            compare_entry(options, &mut comparison, &mut shown_path, (&a, &stat_a), (&b, &stat_b), name)?;
        }
    }
    Ok(comparison)
}

/// Every entry with what tells whether somebody has touched it since.
pub type Fingerprint = BTreeMap<Vec<u8>, (u64, u32, i64, (i64, u64), (i64, u64))>;

/// Inode, mode, size and times of all entries, but not of the root's parents.
pub fn fingerprint(root: &Path) -> io::Result<Fingerprint> {
    fn visit(directory: &OwnedFd, path: &[u8], found: &mut Fingerprint) -> io::Result<()> {
        for (name, stat) in entries(directory)? {
            let full = [path, b"/", &name].concat();
            if kind(&stat) == FileType::Directory {
                visit(&open_directory(directory, OsStr::from_bytes(&name))?, &full, found)?;
            }
            found.insert(full, sign(&stat));
        }
        Ok(())
    }
    let mut found = Fingerprint::new();
    let root = open_root(root)?;
    visit(&root, b"", &mut found)?;
    found.insert(Vec::new(), sign(&rustix::fs::fstat(&root)?));
    Ok(found)
}

fn sign(stat: &Stat) -> (u64, u32, i64, (i64, u64), (i64, u64)) {
    let (mtime, ctime) = ((stat.st_mtime, stat.st_mtime_nsec), (stat.st_ctime, stat.st_ctime_nsec));
    (stat.st_ino, stat.st_mode, stat.st_size, mtime, ctime)
}

/// What has changed between two fingerprints, at most `listed_max`.
pub fn changes(before: &Fingerprint, after: &Fingerprint, listed_max: usize) -> Vec<Difference> {
    let mut found = Vec::new();
    for path in before.keys().chain(after.keys().filter(|path| !before.contains_key(*path))) {
        let what = match (before.get(path), after.get(path)) {
            (Some(before), Some(after)) if before == after => continue,
            (Some(_), Some(_)) => "was touched",
            (Some(_), None) => "was removed",
            (None, _) => "was made",
        };
        if found.len() < listed_max {
            found.push(Difference { path: path.clone(), what: what.to_owned() });
        }
    }
    found
}

/// What is in a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Regular files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Directories, the root not counted.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
}

/// Counts what is in a tree.
pub fn totals(root: &Path) -> io::Result<Totals> {
    fn visit(directory: &OwnedFd, totals: &mut Totals) -> io::Result<()> {
        for (name, stat) in entries(directory)? {
            match kind(&stat) {
                FileType::Directory => {
                    totals.directories += 1;
                    visit(&open_directory(directory, OsStr::from_bytes(&name))?, totals)?;
                }
                FileType::RegularFile => {
                    totals.files += 1;
                    totals.bytes += stat.st_size as u64;
                }
                FileType::Symlink => totals.symlinks += 1,
                _ => {}
            }
        }
        Ok(())
    }
    let mut totals = Totals::default();
    visit(&open_root(root)?, &mut totals)?;
    Ok(totals)
}

/// Cuts every file in a tree to nothing.
pub fn empty_files(root: &Path) -> io::Result<()> {
    fn visit(directory: &OwnedFd) -> io::Result<()> {
        for (name, stat) in entries(directory)? {
            let name = OsStr::from_bytes(&name);
            match kind(&stat) {
                FileType::Directory => visit(&open_directory(directory, name)?)?,
                FileType::RegularFile => {
                    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    rustix::fs::openat(directory, name, flags, Mode::empty())?;
                }
                _ => {}
            }
        }
        Ok(())
    }
    visit(&open_root(root)?)
}

/// Removes what is in a directory, also read-only directories and paths of any length, and the directory itself.
pub fn remove(root: &Path) -> io::Result<()> {
    fn empty(directory: &OwnedFd) -> io::Result<()> {
        for (name, stat) in entries(directory)? {
            let name = OsStr::from_bytes(&name);
            if kind(&stat) == FileType::Directory {
                if stat.st_mode & 0o700 != 0o700 {
                    rustix::fs::chmodat(directory, name, Mode::RWXU, AtFlags::empty())?;
                }
                empty(&open_directory(directory, name)?)?;
                rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?;
            } else {
                rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
            }
        }
        Ok(())
    }
    if root.symlink_metadata().is_err() {
        return Ok(());
    }
    rustix::fs::chmodat(CWD, root, Mode::RWXU, AtFlags::empty())?;
    empty(&open_root(root)?)?;
    std::fs::remove_dir(root)
}
