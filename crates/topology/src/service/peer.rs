//! Who is at the other end of a socket, as the kernel says. Both ends ask: a path tells neither who serves there nor who comes.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use rustix::process::getuid;

/// The process at the other end: the one that connected, or the one that began to listen.
pub(super) struct Peer {
    /// None for a process of another namespace, which has no number here. The type that rustix has for both cannot say that.
    pub(super) process: Option<u32>,
    pub(super) user: u32,
}

impl Peer {
    pub(super) fn of(stream: &UnixStream) -> io::Result<Peer> {
        let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes into a structure of that size, which is
        // made of numbers.
        let asked = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &raw mut length,
            )
        };
        if asked != 0 || length as usize != size_of::<libc::ucred>() {
            return Err(io::Error::last_os_error());
        }
        Ok(Peer { process: u32::try_from(peer.pid).ok().filter(|process| *process > 0), user: peer.uid })
    }

    /// Whether it is of this user, or of root, who can do anything with this process anyway. Nobody else is served or believed.
    pub(super) fn is_trusted(&self) -> bool {
        trusts(getuid().as_raw(), self.user)
    }
}

fn trusts(user: u32, other: u32) -> bool {
    other == user || other == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_and_root_are_trusted_and_nobody_is_by_root_but_root() {
        assert!(trusts(1000, 1000) && trusts(1000, 0) && trusts(0, 0));
        assert!(!trusts(1000, 1001) && !trusts(0, 1000));
    }

    #[test]
    fn a_peer_is_this_process_and_its_user_where_it_speaks_with_itself() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&one).unwrap();
        assert_eq!((peer.process, peer.user), (Some(std::process::id()), getuid().as_raw()));
        assert!(peer.is_trusted());
    }
}
