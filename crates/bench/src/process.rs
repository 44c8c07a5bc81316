//! Processes that are started, watched and ended, each by its own id.
//!
//! Called by the benches and by the testbed. A process makes itself the reaper of everything it started
//! ([`adopt_orphans`]), so that no far end, ssh or old session can get out of its sight, and [`end_descendants`] ends
//! exactly those and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};

use crate::evaluation::say;

/// How often a condition that has no file descriptor is looked at again.
pub const POLL: Duration = Duration::from_millis(2);
const KILL_LIMIT: Duration = Duration::from_secs(30);

/// A process of `/proc`.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its id.
    pub pid: i32,
    /// Its parent.
    pub parent: i32,
    /// `R`, `S`, `T`, `Z`, ...
    pub state: u8,
    /// The name of the program, at most 15 bytes.
    pub name: String,
    /// When it started, in clock ticks since boot: tells processes with the same id apart.
    pub started: u64,
    /// Processor time of itself and of the children it has waited for, in clock ticks.
    pub ticks: u64,
}

impl Seen {
    /// Nothing of it runs any more.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Looks at one process.
pub fn look(pid: i32) -> Option<Seen> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let (head, tail) = (text.find('(')?, text.rfind(')')?);
    let fields: Vec<&str> = text[tail + 1..].split_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    Some(Seen {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        state: *fields.first()?.as_bytes().first()?,
        name: text[head + 1..tail].to_owned(),
        started: number(19)?,
        ticks: number(11)? + number(12)? + number(13)? + number(14)?,
    })
}

/// Everything below a process, parents before children.
pub fn descendants(root: i32) -> Vec<Seen> {
    let mut all: Vec<Seen> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(look)
        .collect();
    let mut found = Vec::new();
    let mut parents = BTreeSet::from([root]);
    loop {
        let (below, rest): (Vec<Seen>, Vec<Seen>) =
            all.into_iter().partition(|seen| parents.contains(&seen.parent));
        if below.is_empty() {
            return found;
        }
        parents = below.iter().map(|seen| seen.pid).collect();
        found.extend(below);
        all = rest;
    }
}

/// Descendants of this process whose parents end become its own children.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Takes in children that ended and that nobody waits for: all but the [`Guarded`] ones.
pub fn reap_orphans() {
    let guarded = guarded();
    for seen in descendants(own_pid()) {
        if seen.has_ended()
            && seen.parent == own_pid()
            && !guarded.contains(&seen.pid)
            && let Some(pid) = Pid::from_raw(seen.pid)
        {
            // Where somebody else was quicker it is gone as well.
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

/// Clock ticks as time.
pub fn ticks(ticks: u64) -> Duration {
    Duration::from_nanos(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// The id of this process.
pub fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Sends a signal; false where the process is not there.
pub fn signal(pid: i32, signal: Signal) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| rustix::process::kill_process(pid, signal).is_ok())
}

/// Runs (or is stopped), that is, could still write.
pub fn is_alive(pid: i32) -> bool {
    look(pid).is_some_and(|seen| !seen.has_ended())
}

/// Waits until a process has ended; false where it has not within `limit`.
pub fn wait_gone(pid: i32, limit: Duration) -> bool {
    wait_until(limit, || !is_alive(pid))
}

/// Waits for a condition, bounded.
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(POLL);
    }
}

/// Ends everything below a process: asks first (`SIGTERM`), then kills. Returns what had to be killed.
pub fn end_descendants(root: i32) -> Vec<Seen> {
    for seen in descendants(root) {
        // A stopped process acts on nothing but SIGKILL and SIGCONT.
        signal(seen.pid, Signal::TERM);
        signal(seen.pid, Signal::CONT);
    }
    let all_ended = || descendants(root).iter().all(Seen::has_ended);
    if wait_until(Duration::from_secs(2), all_ended) {
        return Vec::new();
    }
    let mut killed = Vec::new();
    // Twice, as one may have started another meanwhile.
    for _ in 0..2 {
        for seen in descendants(root) {
            if !seen.has_ended() && signal(seen.pid, Signal::KILL) {
                killed.push(seen);
            }
        }
        wait_until(Duration::from_secs(5), all_ended);
    }
    killed
}

/// The ids of [`Guarded`] children that were not waited for yet. Locked while one is started, waited for or left alone, so that
/// nobody takes in a child, and with it its exit status, before its owner is known.
static GUARDED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

fn guarded() -> MutexGuard<'static, BTreeSet<i32>> {
    GUARDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child that is killed and waited for when it is dropped, and that dies when this process dies.
pub struct Guarded {
    child: Child,
    status: Option<ExitStatus>,
}

impl Guarded {
    /// Starts it in a process group of its own, so that a Ctrl-C reaches only this process, which then ends it.
    pub fn spawn(command: &mut Command) -> io::Result<Guarded> {
        command.process_group(0);
        die_with_this_process(command);
        let mut guarded = guarded();
        let child = command.spawn()?;
        guarded.insert(child.id() as i32);
        Ok(Guarded { child, status: None })
    }

    /// Its id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The child itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its exit status, if it has ended.
    pub fn status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            let mut guarded = guarded();
            self.status = self.child.try_wait().ok().flatten();
            if self.status.is_some() {
                guarded.remove(&self.pid());
            }
        }
        self.status
    }

    /// Waits, bounded.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        wait_until(limit, || self.status().is_some());
        self.status
    }

    /// Kills and waits; not for ever, as who waits in the kernel for somebody that does not answer cannot be killed.
    pub fn kill(&mut self) {
        if self.status().is_none() {
            let _ = self.child.kill();
            if self.wait(KILL_LIMIT).is_none() {
                say(&format!("process {} was killed, and does not end", self.pid()));
            }
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The kernel kills the child when the thread that spawned it ends: call only from threads that live as long.
pub fn die_with_this_process(command: &mut Command) {
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe; nothing is allocated.
    unsafe {
        command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?));
    }
}

/// SIGINT, SIGTERM and SIGHUP end everything that was started, then this process, after `leave_nothing`. Blocks the signals in
/// the calling thread (and so in all that it starts), and must be called before any other thread exists.
pub fn end_all_on_signal(leave_nothing: fn()) {
    // SAFETY: `set` is initialised by sigemptyset before it is read, and zeros are a valid `sigaction` to be filled; the calls have
    // no other preconditions.
    let set = unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigaddset(&mut set, libc::SIGTERM);
        // Where it is ignored (`nohup`) it stays so; a signal that is waited for would come all the same.
        let mut now = std::mem::zeroed::<libc::sigaction>();
        if libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut now) == 0 && now.sa_sigaction != libc::SIG_IGN
        {
            libc::sigaddset(&mut set, libc::SIGHUP);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    };
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: both pointers are to live locals.
        unsafe { libc::sigwait(&set, &mut signal) };
        say(&format!("ended by signal {signal}; ending what was started"));
        end_all(leave_nothing, 130)
    });
}

/// Ends everything that was started, then this process, after `leave_nothing`, while another thread may still be at work.
pub fn end_all(leave_nothing: fn(), exit_code: i32) -> ! {
    ENDING.store(true, Ordering::SeqCst);
    end_descendants(own_pid());
    leave_nothing();
    std::process::exit(exit_code)
}

/// Set when everything is to end.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Where [`end_all`] is at work this does not return: what failed because of it is not to be told, and the process is not
/// to end before nothing is left.
pub fn leave_the_rest_to_the_end() {
    while ENDING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Undoes the blocked signals of [`end_all_on_signal`] in a child.
pub fn unblock_signals(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only async-signal-safe calls, nothing is allocated.
    unsafe {
        command.pre_exec(|| {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&mut set);
            libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn a_dropped_child_is_gone_and_others_are_untouched() {
        let mut other = Guarded::spawn(Command::new("sleep").arg("300")).unwrap();
        let child = Guarded::spawn(Command::new("sleep").arg("30")).unwrap();
        let pid = child.pid();
        assert!(is_alive(pid));
        drop(child);
        assert!(!is_alive(pid));
        assert!(other.status().is_none());
    }

    #[test]
    fn what_is_guarded_is_not_taken_in_as_an_orphan() {
        let mut child = Guarded::spawn(&mut Command::new("true")).unwrap();
        assert!(wait_gone(child.pid(), Duration::from_secs(30)));
        reap_orphans();
        assert!(child.status().is_some_and(|status| status.success()));
    }

    #[test]
    fn grandchildren_are_found_and_ended_though_stopped() {
        let mut shell = Guarded::spawn(
            Command::new("sh").args(["-c", "sleep 31 & sleep 32 & echo ready; wait"]).stdout(Stdio::piped()),
        )
        .unwrap();
        let mut ready = [0; 6];
        io::Read::read_exact(shell.child().stdout.as_mut().unwrap(), &mut ready).unwrap();
        let sleeps =
            || descendants(shell.pid()).into_iter().filter(|seen| seen.name == "sleep").map(|seen| seen.pid);
        wait_until(Duration::from_secs(5), || sleeps().count() == 2);
        let pids: Vec<i32> = sleeps().collect();
        assert_eq!(pids.len(), 2);
        signal(pids[0], Signal::STOP);
        end_descendants(shell.pid());
        assert!(pids.iter().all(|pid| !is_alive(*pid)));
    }

    #[test]
    fn a_name_with_parentheses_and_blanks_is_parsed() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("a ) b (");
        fs::copy("/bin/sleep", &program).unwrap();
        let child = Guarded::spawn(Command::new(&program).arg("30")).unwrap();
        let seen = look(child.pid()).unwrap();
        assert_eq!((seen.name.as_str(), seen.parent), ("a ) b (", own_pid()));
    }
}
