//! Signals that end a command, or would.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGXFSZ,
};

/// SIGTERM, and SIGINT and SIGHUP where they are not ignored on behalf of whoever started the command: by a shell that runs it in the
/// background of a script, or `nohup`.
pub fn that_end() -> Vec<i32> {
    heard(&[SIGINT, SIGTERM, SIGHUP])
}

/// What else is for a command that haul runs for somebody, where it is not ignored.
pub fn for_commands() -> Vec<i32> {
    heard(&[SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH])
}

fn heard(signals: &[i32]) -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_heard = |signal: &i32| *signal == SIGTERM || ignored(&status) & (1 << (signal - 1)) == 0;
    signals.iter().copied().filter(is_heard).collect()
}

/// A file that is larger than this process may make them (`ulimit -f`) fails by itself, with EFBIG.
pub fn outlive_large_files() {
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Who waits for its signals elsewhere (`signalfd`) has them blocked, and so has what it starts: that would hear of none. Before
/// there is another thread.
pub fn unblock() {
    unblock_these(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD]);
}

/// The same of what is for commands, once somebody hears it: it would end this process.
pub fn unblock_for_commands() {
    unblock_these(&for_commands());
}

fn unblock_these(signals_heard: &[i32]) {
    let mut signals = std::mem::MaybeUninit::uninit();
    // SAFETY: the set is made empty before signals are put into it, which all exist; only this thread's mask is changed.
    unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        for signal in signals_heard {
            libc::sigaddset(signals.as_mut_ptr(), *signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, signals.as_ptr(), std::ptr::null_mut());
    }
}

/// Whoever ignores the ends of its children lets a command that it starts ignore them, too; here they are waited for.
pub fn hear_of_children() {
    let _ = signal_hook::flag::register(SIGCHLD, Arc::new(AtomicBool::new(false)));
}

/// A bit for each signal, the lowest one for signal 1.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        assert_eq!(ignored("Name:\thaul\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored("Name:\thaul\n"), 0);
    }
}
