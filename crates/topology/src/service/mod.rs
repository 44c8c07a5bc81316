//! The service: several processes ask for plans, and none is given CPUs that another has.
//!
//! [`message`] is what goes over the socket (docs/spec/topology-service.md), [`leases`] who has which CPUs, [`server`] and
//! [`client`] the two ends, of which each looks at who the other one is.

pub mod client;
pub mod leases;
pub mod message;
mod peer;
pub mod server;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::getuid;

/// Where the service of this user is if nobody says otherwise: in the directory for sockets of this login, else in one of
/// this user's own in the directory for temporary files.
pub fn default_socket() -> PathBuf {
    usual_sockets().swap_remove(0)
}

/// Where the service of this user may be, [`default_socket`] first: a login, a job and a unit of the system have different
/// directories for sockets, so it may have been started where another one was the first.
pub fn usual_sockets() -> Vec<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let user = getuid().as_raw();
    // After `su` it may be that of another user.
    let is_shut = |path: &Path| access(path, Access::EXEC_OK) == Err(Errno::ACCESS);
    let said = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let said = said.filter(|path| path.is_absolute() && !is_shut(path));
    let usual = Some(PathBuf::from(format!("/run/user/{user}"))).filter(|path| path.is_dir());
    let mut directories: Vec<PathBuf> = said.into_iter().chain(usual).collect();
    directories.dedup();
    // Anybody can make one of that name there, and would be told of to whoever has another one.
    let is_own = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.uid() == user);
    let own = own_directory();
    if directories.is_empty() || is_own(&own) {
        directories.push(own);
    }
    directories.into_iter().map(|directory| directory.join("haul-topology.sock")).collect()
}

/// Connects at once, or not at all: a queue that is full is one that nobody takes from. The stream does not block.
fn connect(socket: &Path) -> std::io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(socket)?)?;
    Ok(UnixStream::from(stream))
}

/// `$TMPDIR`, or `/tmp` where that says nothing or depends on the working directory.
pub fn temporary_directory() -> PathBuf {
    Some(std::env::temp_dir()).filter(|path| path.is_absolute()).unwrap_or_else(|| "/tmp".into())
}

/// With the host's name: a directory for temporary files may be shared by hosts, and a socket in it is one host's alone.
fn own_directory() -> PathBuf {
    let host = rustix::system::uname().nodename().to_string_lossy().replace('/', "_");
    temporary_directory().join(format!("haul-run-{}-{host}", getuid().as_raw()))
}

/// Makes the directory of [`default_socket`] if it is the one in the directory for temporary files.
fn make_directory(socket: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};

    let Some(directory) = socket.parent().filter(|directory| *directory == own_directory()) else {
        return Ok(());
    };
    if let Err(error) = std::fs::DirBuilder::new().mode(0o700).create(directory)
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    // Somebody else may have been quicker.
    let found = std::fs::symlink_metadata(directory)?;
    if !found.is_dir() || found.uid() != getuid().as_raw() || found.mode() & 0o077 != 0 {
        let reason = format!("{} is not this user's alone", directory.display());
        return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, reason));
    }
    Ok(())
}
