//! What the evaluations share: lots, tools of the system, CSV files, pages and pictures.
//!
//! - [`csv`]: numbers as files that say how they were made.
//! - [`page`]: tables and pictures for people.

pub mod csv;
pub mod page;

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// For the person who waits, if there is one still: what was started is ended all the same.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "bench: {text}");
}

/// Draws by lot, always the same for a seed (SplitMix64).
pub(crate) struct Lottery(u64);

impl Lottery {
    pub(crate) fn new(seed: u64) -> Lottery {
        Lottery(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// 0..`end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Random bytes.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        bytes.chunks_mut(8).for_each(|word| {
            let random = self.next().to_le_bytes();
            word.copy_from_slice(&random[..word.len()]);
        });
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end as u64 + 1) as usize);
        }
    }
}

/// Where a program of the PATH is, or of the places that only root's PATH has.
pub(crate) fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    places.map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// Runs a tool of the system to its end, and says what it had to say if it fails.
pub(crate) fn tool(command: &mut Command) -> io::Result<String> {
    let words: Vec<String> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let words = words.join(" ");
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{words}: {error}"));
    let output = command.stdin(Stdio::null()).output().map_err(named)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{words}: {}", said.trim())))
}

/// From now on mounts of this process are seen by it and its children alone: when they end, however they end, the kernel
/// unmounts everything. To be called before it has other threads; only root may.
pub fn own_mounts() -> io::Result<()> {
    // SAFETY: no memory is involved; the call concerns the mount namespace of this thread, the only one there is yet.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    tool(Command::new("mount").args(["--make-rprivate", "/"])).map(drop)
}

/// From now on this process and its children have a network of their own, in which there is loopback alone: servers that
/// listen everywhere are reached by nobody else, and every port is free. To be called before it has other threads. Who is not
/// root needs a user namespace for it, in which everybody else is nobody, and which not every system allows.
pub fn own_network() -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        // Some systems allow the namespace and nothing in it: better known before this process is in one.
        // SAFETY: there is no other thread, so the child may do what this process may; it ends by itself.
        let child = unsafe { libc::fork() };
        match child {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: nothing of the parent is to be run at its end.
            0 => unsafe { libc::_exit(i32::from(enter_network().is_err())) },
            _ => {}
        }
        let mut status = 0;
        // SAFETY: the pointer is to a live local.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if waited != child || status != 0 {
            return Err(io::Error::other("the system allows no user namespace with a network"));
        }
    }
    enter_network()
}

fn enter_network() -> io::Result<()> {
    let checked = |done: libc::c_int| if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) };
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let own_user = if user.is_root() { 0 } else { libc::CLONE_NEWUSER };
    // SAFETY: no memory is involved; the call concerns the namespaces of this thread, the only one there is yet.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET | own_user) })?;
    if own_user != 0 {
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{0} {0} 1", user.as_raw()))?;
        fs::write("/proc/self/gid_map", format!("{0} {0} 1", group.as_raw()))?;
    }
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: all bytes zero are a valid request: a name without letters, and no flags.
    let mut request = unsafe { std::mem::zeroed::<libc::ifreq>() };
    for (place, letter) in request.ifr_name.iter_mut().zip(b"lo") {
        *place = *letter as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the descriptor is open, and the pointer is to a live request with a name that ends within it.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_every_item_and_depends_on_the_seed_alone() {
        let drawn = |seed| {
            let mut items: Vec<u32> = (0..50).collect();
            Lottery::new(seed).shuffle(&mut items);
            items
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        let mut sorted = drawn(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn a_program_is_found_and_one_that_is_not_there_is_not() {
        assert!(installed("sh").is_some_and(|path| path.ends_with("sh")));
        assert!(installed("no-such-program").is_none());
    }
}
