//! Unfinished files below a destination, to be listed by `haul status` and removed by `haul stop --discard`.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use haul_model::{Failure, Token};
use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::attributes::Status;
use super::tokens::parse;
use crate::confine::{open_directory, sink_failure};

/// One file that a session left behind.
#[derive(Debug)]
pub struct Leftover {
    /// Below the destination; what it will be called when complete is not in it.
    pub path: PathBuf,
    /// Whose it is.
    pub token: Token,
    /// How much it holds, or will: unfinished files may have holes.
    pub size: u64,
    directory: Arc<OwnedFd>,
    name: Box<[u8]>,
}

impl Leftover {
    /// Removes it.
    pub fn remove(&self) -> Result<(), Failure> {
        fs::unlinkat(&*self.directory, &*self.name, AtFlags::empty()).map_err(sink_failure)
    }
}

/// Walks everything below `destination` without following links, for unfinished files of the job with this tag (of any
/// job without one).
///
/// Holds a descriptor for each level that it is in, and the names of the subdirectories of those.
pub fn leftovers(destination: &Path, job_tag: Option<[u8; 6]>) -> Result<Leftovers, Failure> {
    walk(destination, job_tag, true)
}

/// [`leftovers`] in `directory` itself alone.
pub fn leftovers_in(directory: &Path, job_tag: Option<[u8; 6]>) -> Result<Leftovers, Failure> {
    walk(directory, job_tag, false)
}

fn walk(destination: &Path, job_tag: Option<[u8; 6]>, below: bool) -> Result<Leftovers, Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = fs::openat(CWD, destination, flags, Mode::empty()).map_err(sink_failure)?;
    let mut found = Leftovers { job_tag, levels: Vec::new(), ready: VecDeque::new() };
    found.enter(Arc::new(root), PathBuf::new());
    if !below {
        found.levels.clear();
    }
    Ok(found)
}

/// What [`leftovers`] finds; an error is about one directory, the walk goes on.
#[derive(Debug)]
pub struct Leftovers {
    job_tag: Option<[u8; 6]>,
    levels: Vec<Level>,
    ready: VecDeque<Result<Leftover, (PathBuf, Failure)>>,
}

#[derive(Debug)]
struct Level {
    directory: Arc<OwnedFd>,
    path: PathBuf,
    /// Not entered yet.
    below: Vec<Box<[u8]>>,
}

impl Leftovers {
    fn enter(&mut self, directory: Arc<OwnedFd>, path: PathBuf) {
        let mut below = Vec::new();
        let mut buffer = [const { MaybeUninit::<u8>::uninit() }; 32 << 10];
        let mut entries = RawDir::new(directory.as_fd(), &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(errno) => {
                    self.ready.push_back(Err((path.clone(), sink_failure(errno))));
                    break;
                }
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let token = parse(name.to_bytes())
                .filter(|token| self.job_tag.is_none_or(|job_tag| token.job_tag() == job_tag));
            if token.is_none() && !matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
                continue;
            }
            let Ok(found) = fs::statat(&*directory, name, AtFlags::SYMLINK_NOFOLLOW).map(Status::from) else {
                continue;
            };
            match (token, found.kind) {
                (_, FileType::Directory) => below.push(name.to_bytes().into()),
                (Some(token), FileType::RegularFile | FileType::Symlink) => {
                    self.ready.push_back(Ok(Leftover {
                        path: path.join(os(name.to_bytes())),
                        token,
                        size: found.size,
                        directory: Arc::clone(&directory),
                        name: name.to_bytes().into(),
                    }))
                }
                _ => {}
            }
        }
        self.levels.push(Level { directory, path, below });
    }
}

impl Iterator for Leftovers {
    type Item = Result<Leftover, (PathBuf, Failure)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(found) = self.ready.pop_front() {
                return Some(found);
            }
            let level = self.levels.last_mut()?;
            let Some(name) = level.below.pop() else {
                self.levels.pop();
                continue;
            };
            let path = level.path.join(os(&name));
            match open_directory(level.directory.as_fd(), &name) {
                Ok(directory) => self.enter(Arc::new(directory), path),
                // Removed or replaced since it was listed.
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(errno) => return Some(Err((path, sink_failure(errno)))),
            }
        }
    }
}

fn os(name: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(name)
}
