//! A directory is not copied into itself: the scan would find what the sink has just made, again and again.
//!
//! Where the ends are two processes the far one finds out, which may run on the same host, whatever that is called. Directories are
//! told to it as marks: those of one directory are equal, within a session and as long as its host is not booted again. (Who
//! knows the boot and tries all numbers finds out which number a directory has, and nothing else.) Copies of a virtual machine
//! may have equal ones, so the other end must be found on this host, too.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use haul_model::{Code, SessionId};
use haul_mover::Error;
use haul_mover::owner::Started;
use haul_storage::layout::unescaped;
use serde::{Deserialize, Serialize};

/// So deep can a path go.
const DEPTH_MAX: usize = 4096;

/// A directory.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Debug)]
pub struct Mark(String);

/// Makes marks of directories on this host, for one session.
pub struct Marker(blake3::Hasher);

impl Marker {
    /// None where the host has no name that it changes when it boots.
    pub fn new(session: SessionId) -> Option<Marker> {
        let boot = Started::now()?.boot;
        let mut marker = Marker::here();
        marker.0.update(&session.0).update(boot.as_bytes());
        Some(marker)
    }

    /// Whose marks nobody else is told.
    fn here() -> Marker {
        Marker(blake3::Hasher::new_derive_key("haul directory mark 1"))
    }

    fn mark(&self, directory: &Metadata) -> Mark {
        let mut hasher = self.0.clone();
        hasher.update(&directory.dev().to_le_bytes()).update(&directory.ino().to_le_bytes());
        Mark(crate::paths::hex(&hasher.finalize().as_bytes()[..16]))
    }

    /// Of each SOURCE that is a directory.
    pub fn sources(&self, sources: &[OsString]) -> Vec<Option<Mark>> {
        let mark = |source: &OsString| {
            // With `-r` a symlink is copied as a link. (`link/` and `link/.` are the directory, also for the system.)
            let found = Path::new(source).symlink_metadata().ok()?;
            found.is_dir().then(|| self.mark(&found))
        };
        sources.iter().map(mark).collect()
    }

    /// Of DEST and all directories above it; where DEST is new, of those that it will stand in.
    pub fn destination(&self, destination: &OsStr) -> Vec<Option<Mark>> {
        let destination = PathBuf::from(destination);
        let there = destination.ancestors().find_map(|ancestor| {
            let ancestor = if ancestor.as_os_str().is_empty() { Path::new(".") } else { ancestor };
            ancestor.canonicalize().ok()
        });
        let Some(there) = there else { return Vec::new() };
        let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mut found = HashSet::new();
        for path in std::iter::once(there.clone()).chain(other_paths(&there, mount_number(&there), &mounts)) {
            // Something else may be mounted above it.
            if is_same(&path, &there) {
                let above =
                    path.ancestors().take(DEPTH_MAX).filter_map(|directory| directory.metadata().ok());
                found.extend(above.map(|directory| self.mark(&directory)));
            }
        }
        found.into_iter().map(Some).collect()
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino()));
    place(one).is_ok_and(|one| place(other).is_ok_and(|other| one == other))
}

/// The number of the mount that a path leads to: others may be hidden beneath it.
fn mount_number(path: &Path) -> Option<u64> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}

/// Where else this directory is found, as parts of its file system are mounted (bind mounts); itself among them.
fn other_paths(there: &Path, number: Option<u64>, mountinfo: &[u8]) -> Vec<PathBuf> {
    let mounts: Vec<Mount> = mountinfo.split(|byte| *byte == b'\n').filter_map(Mount::parse).collect();
    let holder = match number {
        Some(number) => mounts.iter().find(|mount| mount.number == number),
        // Before Linux 5.8. Of several at one place the last one is seen.
        None => {
            let above = mounts.iter().filter(|mount| there.starts_with(&mount.at));
            above.max_by_key(|mount| mount.at.components().count())
        }
    };
    let Some(holder) = holder else { return Vec::new() };
    let Ok(below) = there.strip_prefix(&holder.at) else { return Vec::new() };
    let within = holder.root.join(below);
    let of_one_system = mounts.iter().filter(|mount| mount.device == holder.device);
    of_one_system.filter_map(|mount| Some(mount.at.join(within.strip_prefix(&mount.root).ok()?))).collect()
}

/// A line of /proc/self/mountinfo.
struct Mount<'a> {
    number: u64,
    device: &'a [u8],
    /// What of the file system is mounted.
    root: PathBuf,
    /// Where.
    at: PathBuf,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a [u8]) -> Option<Mount<'a>> {
        let mut fields = line.split(|byte| *byte == b' ');
        let (number, _parent, device) = (fields.next()?, fields.next()?, fields.next()?);
        let number = std::str::from_utf8(number).ok()?.parse().ok()?;
        let (root, at) = (fields.next()?, fields.next()?);
        let path = |field| PathBuf::from(OsString::from_vec(unescaped(field)));
        Some(Mount { number, device, root: path(root), at: path(at) })
    }
}

/// An end of a session that can be found on its host, until dropped.
pub struct Presence(#[expect(dead_code, reason = "it is there")] UnixListener);

impl Presence {
    /// None where it cannot be found.
    pub fn new(session: SessionId) -> Option<Presence> {
        UnixListener::bind_addr(&name(session).ok()?).ok().map(Presence)
    }
}

/// Is the other end of this session on this host? One in another network namespace is not found.
fn is_here(session: SessionId) -> bool {
    // Unlike a connection this waits for nobody, whatever other users have done with the name.
    let taken = name(session).and_then(|name| UnixListener::bind_addr(&name));
    taken.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

/// In no directory. Nothing is ever said there.
fn name(session: SessionId) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("haul-session-{session}"))
}

/// Refuses the first SOURCE that DEST is in.
fn check(
    sources: &[OsString],
    source_marks: &[Option<Mark>],
    destination_marks: &[Option<Mark>],
) -> Result<(), Error> {
    let above: HashSet<_> = destination_marks.iter().flatten().collect();
    let is_above = |mark: &Option<Mark>| mark.as_ref().is_some_and(|mark| above.contains(mark));
    match sources.iter().zip(source_marks).find(|(_, mark)| is_above(mark)) {
        None => Ok(()),
        Some((source, _)) => {
            let about = crate::paths::show(source.as_bytes());
            let about = format!("{about}: a directory cannot be copied into itself");
            Err(Error::new(Code::Usage, about).hint("choose a destination outside of it"))
        }
    }
}

/// [`check`], with marks of which some are the other end's: if that is on another host, their being equal means nothing.
pub fn check_with(
    session: SessionId,
    sources: &[OsString],
    source_marks: &[Option<Mark>],
    destination_marks: &[Option<Mark>],
) -> Result<(), Error> {
    check(sources, source_marks, destination_marks).or_else(|error| match is_here(session) {
        true => Err(error),
        false => Ok(()),
    })
}

/// [`check`], where both are on this host.
pub fn check_here(sources: &[OsString], destination: &OsStr) -> Result<(), Error> {
    let marker = Marker::here();
    check(sources, &marker.sources(sources), &marker.destination(destination))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_one_directory_are_equal_within_a_session_and_tell_nothing_beyond_it() {
        let scratch = tempfile::tempdir().unwrap();
        let (inner, other) = (scratch.path().join("inner"), scratch.path().join("other"));
        std::fs::create_dir(&inner).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink("inner", scratch.path().join("link")).unwrap();
        let sources = |names: &[&str]| -> Vec<OsString> {
            names.iter().map(|name| scratch.path().join(name).into_os_string()).collect()
        };
        let names = ["inner", "other", "other/../inner/.", "link", "link/", "nothing"];
        let marker = |session| Marker::new(SessionId([session; 16])).unwrap();
        let marks = marker(1).sources(&sources(&names));
        assert_eq!(marks[0], marks[2], "however it is called");
        assert_eq!(marks[0], marks[4]);
        assert_ne!(marks[0], marks[1]);
        assert_eq!((&marks[3], &marks[5]), (&None, &None), "a link, and nothing");
        assert_eq!(marks, marker(1).sources(&sources(&names)), "another process finds the same");
        assert_ne!(marks[0], marker(2).sources(&sources(&["inner"]))[0]);
        let roots = ["/proc", "/sys"].map(OsString::from);
        let number = |root: &OsString| Path::new(root).metadata().unwrap().ino();
        assert_eq!(number(&roots[0]), number(&roots[1]), "two file systems number theirs alike");
        let of_roots = marker(1).sources(&roots);
        assert_ne!(of_roots[0], of_roots[1]);
        let above = marker(1).destination(inner.join("new/deeper").as_os_str());
        assert!(above.contains(&marks[0]) && !above.contains(&marks[1]));
        assert_eq!(above.len(), marker(1).destination(inner.as_os_str()).len());
    }

    #[test]
    fn a_directory_is_found_wherever_its_part_of_a_file_system_is_mounted() {
        let mounts = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                       30 22 8:1 /data/set /mnt/here\\040too rw shared:1 - ext4 /dev/sda1 rw\n\
                       31 22 8:1 /data /tmp rw - ext4 /dev/sda1 rw\n\
                       33 22 0:40 / /tmp rw - tmpfs tmpfs rw\n\
                       32 22 8:1 /data/set/deep /srv rw - ext4 /dev/sda1 rw\n\
                       broken\n";
        let paths = |there: &str| -> Vec<String> {
            let found = other_paths(Path::new(there), None, mounts);
            found.iter().map(|path| path.to_str().unwrap().to_owned()).collect()
        };
        // What is mounted above it is told by who looks.
        let deep = ["/data/set/deep/x", "/mnt/here too/deep/x", "/tmp/set/deep/x", "/srv/x"];
        assert_eq!(paths("/srv/x"), deep);
        assert_eq!(paths("/mnt/here too/deep/x"), deep);
        assert_eq!(paths("/data/set/deep/x"), deep);
        assert_eq!(paths("/elsewhere"), ["/elsewhere"]);
        assert_eq!(paths("/tmp/x"), ["/tmp/x"], "of what was mounted last");
        assert_eq!(paths("/database"), ["/database"], "a name that only begins like it");
        // What the kernel says of a path counts, also where a longer one is hidden beneath a later mount.
        let hidden = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                       40 22 0:41 / /n/b/c rw - tmpfs tmpfs rw\n\
                       41 22 0:42 / /n rw - tmpfs tmpfs rw\n\
                       42 41 8:1 /m/deep /n/b rw - ext4 /dev/sda1 rw\n";
        let found = other_paths(Path::new("/n/b/c"), Some(42), hidden);
        assert_eq!(found, [Path::new("/m/deep/c"), Path::new("/n/b/c")]);
    }

    #[test]
    fn an_end_is_found_on_its_host_as_long_as_it_is_there() {
        let mut session = [0; 16];
        crate::job::random(&mut session).unwrap();
        let session = SessionId(session);
        assert!(!is_here(session));
        let (sources, marks) = (["tree".into()], [Some(Mark("same".into()))]);
        let is_refused = || check_with(session, &sources, &marks, &marks).is_err();
        assert!(!is_refused(), "marks are equal on two copies of a virtual machine");
        let presence = Presence::new(session).unwrap();
        assert!(is_here(session) && is_refused() && !is_here(SessionId([0; 16])));
        drop(presence);
        assert!(!is_here(session) && !is_refused());
    }
}
