//! Another process of this host, that keeps being that one whoever gets its number next.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, Result};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// Held by a descriptor or, where the kernel knows none (before Linux 5.3) or a sandbox refuses it, known by when it was started.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    began: Option<u64>,
    held: Option<OwnedFd>,
}

impl Process {
    /// The one that has this number now, if there is one.
    pub fn of(pid: Pid) -> Option<Process> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(held) => Some(Process { pid, began: began(pid), held: Some(held) }),
            Err(Errno::SRCH) => None,
            Err(_) => Process::without_descriptor(pid),
        }
    }

    fn without_descriptor(pid: Pid) -> Option<Process> {
        let began = began(pid)?;
        Some(Process { pid, began: Some(began), held: None })
    }

    /// When it was started, in ticks since this host was booted.
    pub fn began(&self) -> Option<u64> {
        self.began
    }

    /// `ESRCH` once it has ended. Without a descriptor its number could change hands between a look and the signal; numbers are given out
    /// in turn, so that this takes all others first.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        match &self.held {
            Some(held) => pidfd_send_signal(held, signal),
            None if self.has_ended() => Err(Errno::SRCH),
            None => kill_process(self.pid, signal),
        }
    }

    /// Also where nobody has waited for it yet.
    pub fn has_ended(&self) -> bool {
        match &self.held {
            Some(held) => poll(&mut [PollFd::new(held, PollFlags::IN)], Some(&Timespec::default())) == Ok(1),
            None => began(self.pid) != self.began || self.is_zombie(),
        }
    }

    fn is_zombie(&self) -> bool {
        status(self.pid).is_none_or(|status| status.starts_with(['Z', 'X']))
    }
}

/// When the process with this number was started.
pub(crate) fn began(pid: Pid) -> Option<u64> {
    const BEGAN: usize = 19;
    status(pid)?.split_whitespace().nth(BEGAN)?.parse().ok()
}

/// `/proc/PID/stat` from the state on. The name in front may have anything in it.
fn status(pid: Pid) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.trim_start().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn one_is_ended_and_seen_to_end_with_a_descriptor_and_without() {
        for known_by in [Process::of, Process::without_descriptor] {
            let mut child = Command::new("sleep").arg("60").spawn().unwrap();
            let process = known_by(Pid::from_child(&child)).unwrap();
            assert!(process.began().is_some() && !process.has_ended());
            process.signal(Signal::KILL).unwrap();
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while !process.has_ended() {
                assert!(std::time::Instant::now() < deadline, "{process:?}");
            }
            // Nobody has waited for it: it still has its number.
            child.wait().unwrap();
            assert!(process.has_ended() && process.signal(Signal::KILL) == Err(Errno::SRCH));
            assert!(known_by(process.pid).is_none());
        }
    }

    #[test]
    fn another_one_with_the_number_is_left_in_peace() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let other =
            Process { began: Some(1), ..Process::without_descriptor(Pid::from_child(&child)).unwrap() };
        assert!(other.has_ended() && other.signal(Signal::KILL) == Err(Errno::SRCH));
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
