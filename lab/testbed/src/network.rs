//! A network of its own for servers that refuse loopback addresses.
//!
//! A network namespace with one address on its loopback device. It lives as long as this value and the processes in it;
//! nothing of it has a name that could be left behind. (`ip netns` names it, and its `exec` hides mounts.)

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use crate::process::unblock_signals;

/// A network namespace and its address.
pub struct Network {
    namespace: OwnedFd,
    address: String,
}

impl Network {
    /// Only root may.
    pub fn new(address: &str) -> io::Result<Network> {
        let own = address.to_owned();
        // A thread leaves the network of the process, and what it starts goes with it.
        let made = std::thread::spawn(move || -> io::Result<OwnedFd> {
            // SAFETY: unshare takes no pointers; of this thread alone the network changes.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                let error = io::Error::last_os_error();
                return Err(io::Error::new(
                    error.kind(),
                    format!("a network of its own needs root: {error}"),
                ));
            }
            ip(&["link", "set", "lo", "up"])?;
            ip(&["addr", "add", &format!("{own}/32"), "dev", "lo"])?;
            Ok(File::open("/proc/thread-self/ns/net")?.into())
        });
        let namespace = made.join().expect("the thread does not panic")?;
        Ok(Network { namespace, address: address.to_owned() })
    }

    /// Its address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A program that runs in it, with the mounts of this process. This value must outlive the call that starts it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let namespace = self.namespace.as_raw_fd();
        // SAFETY: between fork and exec only setns is called, which is async-signal-safe; nothing is allocated.
        unsafe {
            command.pre_exec(move || match libc::setns(namespace, libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        unblock_signals(&mut command);
        command.stdin(Stdio::null());
        command
    }
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    succeed(Command::new("ip").args(arguments)).map(drop)
}

/// Runs a command to its end; what it said if it failed.
pub fn succeed(command: &mut Command) -> io::Result<Output> {
    succeed_with(command.stdin(Stdio::null()))
}

/// The same for one that has a standard input.
pub fn succeed_with(command: &mut Command) -> io::Result<Output> {
    let output = command.output();
    let output = output.map_err(|error| io::Error::new(error.kind(), format!("{command:?}: {error}")))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = [output.stderr, output.stdout].concat();
    Err(io::Error::other(format!("{command:?} failed: {}", String::from_utf8_lossy(&said).trim())))
}
