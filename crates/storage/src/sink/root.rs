//! The destination as the user typed it: what is there, and which name each SOURCE gets.
//!
//! The path that the user typed is trusted, symlinks in it are followed. What is opened here is held for the session;
//! everything else is reached from it.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use haul_model::limits::SOURCES_MAX;
use haul_model::{Code, Failure};
use rustix::fs::{self, Access, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::tokens::is_reserved;
use crate::confine::{check_name, sink_failure};

/// What is at the destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// A directory, or a symlink to one.
    Directory,
    /// Something else; a file can be replaced by a file.
    Other,
    /// Nothing, but the directory that would hold it is there.
    Absent,
}

/// What is meant by DEST, as `cp` decides it. Decided by the first run of a job and stored: after it, DEST exists and
/// would be taken for something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Each SOURCE goes into the directory DEST under its own name.
    Into,
    /// The only SOURCE becomes DEST.
    As,
}

/// Which name a SOURCE has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SourceName {
    /// The last component of its path.
    Named(Vec<u8>),
    /// It ends in `.`, `..` or `/`'s like `src/.`: its contents are merged into the destination.
    Contents,
}

/// The destination cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootFailure {
    /// `SinkMissing`, `SinkNotDirectory` or what the system said.
    pub failure: Failure,
    /// Which path.
    pub path: PathBuf,
}

impl RootFailure {
    fn new(failure: impl Into<Failure>, path: &Path) -> Self {
        RootFailure { failure: failure.into(), path: path.into() }
    }
}

/// Looks what is at `destination`.
pub fn probe(destination: &Path) -> Result<Destination, RootFailure> {
    if destination.as_os_str().is_empty() {
        return Err(RootFailure::new(Code::SinkMissing, destination));
    }
    match fs::statat(CWD, destination, AtFlags::empty()) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
            Ok(Destination::Directory)
        }
        // A link to a device would be replaced by a file, and the host may need it (`/dev/stdout`).
        Ok(stat)
            if destination.is_symlink()
                && (FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
                    || leads_to_descriptor(destination)) =>
        {
            Err(RootFailure::new(Code::SinkSpecial, destination))
        }
        Ok(_) => Ok(Destination::Other),
        // `file/` for something that is no directory.
        Err(Errno::NOTDIR) => Err(RootFailure::new(Code::SinkNotDirectory, destination)),
        Err(Errno::NOENT) => {
            let (parent, name) = split(destination)?;
            match fs::statat(CWD, &parent, AtFlags::empty()) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {}
                Ok(_) | Err(Errno::NOTDIR) => return Err(RootFailure::new(Code::SinkNotDirectory, &parent)),
                Err(Errno::NOENT) => return Err(RootFailure::new(Code::SinkMissing, &parent)),
                Err(errno) => return Err(RootFailure::new(sink_failure(errno), &parent)),
            }
            // A symlink that leads nowhere.
            let there = fs::statat(CWD, parent.join(OsStr::from_bytes(&name)), AtFlags::SYMLINK_NOFOLLOW);
            Ok(if there.is_ok() { Destination::Other } else { Destination::Absent })
        }
        Err(errno) => Err(RootFailure::new(sink_failure(errno), destination)),
    }
}

/// Is it a link to what some process has open, which may be a file (`/dev/stdout`, redirected)? Before Linux 5.6 nobody says.
fn leads_to_descriptor(link: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = fs::openat2(CWD, link, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
    opened.is_err_and(|errno| errno == Errno::LOOP)
}

/// What `cp` would mean by DEST.
pub fn decide(
    destination: &Path,
    there: Destination,
    sources: &[SourceName],
) -> Result<Decision, RootFailure> {
    match there {
        Destination::Directory => Ok(Decision::Into),
        Destination::Absent if sources.len() == 1 => Ok(Decision::As),
        Destination::Absent => Err(RootFailure::new(Code::SinkMissing, destination)),
        Destination::Other if sources.len() == 1 && !ends_in_slash(destination) => Ok(Decision::As),
        Destination::Other => Err(RootFailure::new(Code::SinkNotDirectory, destination)),
    }
}

/// Where one SOURCE ends up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Under this name in the held directory.
    Named(Box<[u8]>),
    /// It is the held directory.
    Held,
}

/// The opened destination.
#[derive(Debug)]
pub struct SinkRoot {
    pub(crate) holder: OwnedFd,
    /// Where it was found.
    pub(crate) path: PathBuf,
    pub(crate) places: Vec<Place>,
    /// DEST was typed with a `/` at its end and was not there: only a directory may become it.
    pub(crate) only_directory: bool,
    /// Of DEST, where a SOURCE becomes it: paths in reports begin with it then. Else with the name of the SOURCE, of which there may
    /// be several, and DEST itself is an empty path.
    pub(crate) own_name: Box<[u8]>,
}

impl SinkRoot {
    /// Opens what `decision` needs; `sources` in the order of the command line.
    pub fn open(
        destination: &Path,
        decision: Decision,
        sources: &[SourceName],
    ) -> Result<SinkRoot, RootFailure> {
        let (path, places) = SinkRoot::places(destination, decision, sources)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let holder = fs::openat(CWD, &path, flags, Mode::empty()).map_err(|errno| {
            let failure = match errno {
                Errno::NOENT => Failure::os(Code::SinkMissing, errno.raw_os_error()),
                _ => sink_failure(errno),
            };
            RootFailure::new(failure, &path)
        })?;
        may_make_one_of(&holder, &places).map_err(|errno| RootFailure::new(sink_failure(errno), &path))?;
        let only_directory = decision == Decision::As && ends_in_slash(destination);
        let own_name = match (decision, &places[..]) {
            (Decision::As, [Place::Named(name)]) => name.clone(),
            _ => Box::default(),
        };
        Ok(SinkRoot { holder, path, places, only_directory, own_name })
    }

    /// What [`open`](Self::open) would say of the names of the sources, wherever DEST is.
    pub fn check_names(
        destination: &Path,
        decision: Decision,
        sources: &[SourceName],
    ) -> Result<(), RootFailure> {
        SinkRoot::places(destination, decision, sources).map(drop)
    }

    /// The directory that is needed, and where in it the sources end up.
    fn places(
        destination: &Path,
        decision: Decision,
        sources: &[SourceName],
    ) -> Result<(PathBuf, Vec<Place>), RootFailure> {
        let fail = |code: Code| RootFailure::new(code, destination);
        if sources.is_empty() || sources.len() > SOURCES_MAX {
            return Err(fail(Code::Usage));
        }
        let (path, places) = match (decision, sources) {
            (Decision::As, [_]) => {
                let (parent, name) = split(destination)?;
                (parent, vec![Place::Named(name.into())])
            }
            (Decision::As, _) => return Err(fail(Code::Usage)),
            (Decision::Into, _) => {
                let place = |source: &SourceName| match source {
                    SourceName::Named(name) => Place::Named(name.as_slice().into()),
                    SourceName::Contents => Place::Held,
                };
                (destination.to_path_buf(), sources.iter().map(place).collect())
            }
        };
        let mut names = HashSet::new();
        for place in &places {
            let Place::Named(name) = place else { continue };
            let path = path.join(OsStr::from_bytes(name));
            check_name(name).map_err(|failure| RootFailure::new(failure, &path))?;
            if is_reserved(name) {
                return Err(RootFailure::new(Code::NameInvalid, &path));
            }
            // One would overwrite the other.
            if !names.insert(name.clone()) {
                return Err(RootFailure::new(Code::Usage, &path));
            }
        }
        Ok((path, places))
    }

    /// The directory that holds the destination, or is it.
    pub fn holder(&self) -> std::os::fd::BorrowedFd<'_> {
        self.holder.as_fd()
    }
}

/// Where none of the SOURCEs is there yet, and none can be made, that is to be told once, and not with each of a million files.
fn may_make_one_of(holder: &OwnedFd, places: &[Place]) -> Result<(), Errno> {
    let is_missing = |place: &Place| match place {
        Place::Named(name) => {
            fs::statat(holder, &**name, AtFlags::SYMLINK_NOFOLLOW).err() == Some(Errno::NOENT)
        }
        Place::Held => false,
    };
    if !places.iter().all(is_missing) {
        return Ok(());
    }
    // By what this process may do now; where the kernel cannot say, trying will.
    match fs::accessat(holder, c".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        Err(errno @ (Errno::ACCESS | Errno::ROFS)) => Err(errno),
        _ => Ok(()),
    }
}

fn ends_in_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

/// The directory that holds `destination`, and its name there.
///
/// Not by [`Path::parent`], which silently drops a last `.`.
fn split(destination: &Path) -> Result<(PathBuf, Vec<u8>), RootFailure> {
    let bytes = destination.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let start = bytes[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let name = &bytes[start..end];
    check_name(name).map_err(|_| RootFailure::new(Code::SinkMissing, destination))?;
    let parent = if start == 0 { Path::new(".") } else { Path::new(OsStr::from_bytes(&bytes[..start])) };
    Ok((parent.to_path_buf(), name.to_vec()))
}
