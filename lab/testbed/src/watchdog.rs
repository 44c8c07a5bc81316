//! What a loop begins ends, or is told and ended.
//!
//! What is tested here, and what it is tested on, can hang where no limit of a loop reaches it: who waits for a file
//! system whose server does not answer cannot even be killed. [`start`] is called once, by the binary; loops say with
//! [`step`] what they begin. Where the next step does not come in time, every process is told with what its threads wait
//! for, and the mounts of this testbed are let go, so that who waits for them gets an error. Where that does not help
//! either, everything ends, with exit code 1.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::process::{Seen, descendants, end_all, look, own_pid};

const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// What is under way, and since when.
static UNDER_WAY: Mutex<Option<(String, Instant)>> = Mutex::new(None);
/// Mounts were let go.
static LET_GO: AtomicBool = AtomicBool::new(false);

/// A loop begins something that has an end. Nothing is watched before the first of them.
pub fn step(name: impl Into<String>) {
    *lock() = Some((name.into(), Instant::now()));
}

fn lock() -> std::sync::MutexGuard<'static, Option<(String, Instant)>> {
    UNDER_WAY.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Watches over this process. A step may take `limit`, which is several times what the longest takes on a slow machine.
pub fn start(limit: Duration, let_go: fn(), leave_nothing: fn()) {
    std::thread::spawn(move || {
        let mut told = None;
        loop {
            std::thread::sleep(LOOKS_EVERY);
            let Some((name, since)) = lock().clone() else { continue };
            if since.elapsed() > limit && told != Some(since) {
                told = Some(since);
                eprintln!(
                    "testbed: {name} has not ended after {} s. There are\n{}",
                    limit.as_secs(),
                    processes()
                );
                LET_GO.store(true, Ordering::SeqCst);
                let_go();
            } else if since.elapsed() > 2 * limit {
                eprintln!("testbed: {name} does not end at all");
                end_all(leave_nothing, 1);
            }
        }
    });
}

/// Mounts were let go since this was asked last.
pub fn has_let_go() -> bool {
    LET_GO.swap(false, Ordering::SeqCst)
}

/// A thread of this process waits for the server of a file system.
pub fn waits_for_a_server(pid: i32) -> bool {
    threads(pid).keys().any(|waits| is_request(waits))
}

fn is_request(waits: &str) -> bool {
    waits.contains("request_wait_answer") || waits.starts_with('D')
}

/// This process and all below it, each with what its threads wait for; those that wait for a server last.
pub fn processes() -> String {
    let all = look(own_pid()).into_iter().chain(descendants(own_pid()));
    let mut all: Vec<_> = all.map(|seen| (threads(seen.pid), seen)).collect();
    all.sort_by_key(|(threads, _)| threads.keys().any(|waits| is_request(waits)));
    let mut text = String::new();
    for (threads, Seen { pid, parent, name, .. }) in &all {
        let threads: Vec<String> = threads.iter().map(|(waits, count)| format!("{count} {waits}")).collect();
        let _ = writeln!(text, "  {pid} {name} (child of {parent}): {}", threads.join("; "));
    }
    text
}

/// The threads of a process, by state and place in the kernel. Nothing here looks into its memory, for which this would
/// have to wait, too.
fn threads(pid: i32) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let state = status.lines().find_map(|line| line.strip_prefix("State:\t")?.chars().next());
        let waits = format!("{} {}", state.unwrap_or('?'), frames(&task.path()).join("<"));
        *all.entry(waits).or_default() += 1;
    }
    all
}

/// Where in the kernel a thread is, the innermost first; only root is told more than one.
fn frames(task: &Path) -> Vec<String> {
    const SHOWN_MAX: usize = 6;
    let stack = fs::read_to_string(task.join("stack")).unwrap_or_default();
    let name = |line: &str| Some(line.split_whitespace().last()?.split('+').next()?.to_owned());
    let frames: Vec<String> = stack.lines().filter_map(name).take(SHOWN_MAX).collect();
    if frames.is_empty() {
        return vec![fs::read_to_string(task.join("wchan")).unwrap_or_default()];
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Guarded, wait_until};
    use std::process::Command;

    #[test]
    fn what_a_child_waits_for_is_told() {
        let child = Guarded::spawn(Command::new("sleep").arg("30")).unwrap();
        let expected = format!("  {} sleep (child of {}): 1 S ", child.pid(), own_pid());
        let asleep = || {
            let told = processes();
            told.lines().any(|line| line.starts_with(&expected) && line.contains("nanosleep"))
        };
        assert!(wait_until(Duration::from_secs(10), asleep), "{}", processes());
        assert!(!waits_for_a_server(child.pid()));
    }
}
