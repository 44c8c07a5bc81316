//! What a report says of the machine that it was made on.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::mm::Advice;

/// How many cores this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

/// The first line that a program prints.
pub fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let Ok(output) = output else { return "-".into() };
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&text).lines().next().unwrap_or("-").to_owned()
}

/// Processor and kernel, beside what was measured with them.
pub fn line() -> String {
    format!("{}, {}", processor(), first_line("uname", &["-sr"]))
}

fn processor() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1)).unwrap_or("-");
    format!("{model}, {} cores", cores())
}

/// A table with the machine and the program that write the report; more rows may follow.
pub fn table(haul: &Path) -> String {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = memory.lines().next().unwrap_or("-").trim_start_matches("MemTotal:").trim();
    let mut text = String::from("| this page was written with | |\n|---|---|\n");
    let _ = write!(
        text,
        "| processor | {} |\n| memory | {memory} |\n| kernel | {} |\n| haul | {} |\n",
        processor(),
        first_line("uname", &["-sr"]),
        first_line(&haul.to_string_lossy(), &["--version"]),
    );
    text
}

/// What is left alone of memory that nobody uses.
const SPARED_BYTES: usize = 3 << 29;
const PIECE_BYTES: usize = 256 << 20;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// On a virtual machine, so many bytes of memory that nobody uses are written to, once, and given back. Such a machine may have to
/// get them from its host first, which costs more than a copy: whoever came first would pay for it. No more than are needed: the
/// more there are, the longer the host is busy taking them back while a run goes on. (Space that is only set aside in a memory
/// file system is not touched.)
pub fn touch_free_memory(bytes: usize) {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let free = match is_virtual(&read("/proc/cpuinfo".as_ref())) {
        true => free_bytes(&read("/proc/meminfo".as_ref())).unwrap_or(0),
        false => 0,
    };
    let group = read("/proc/self/cgroup".as_ref());
    let free = free.min(group_room_bytes("/sys/fs/cgroup".as_ref(), &group));
    let pieces = free.saturating_sub(SPARED_BYTES).min(bytes) / PIECE_BYTES;
    let _all_at_a_time: Vec<_> = (0..pieces).map(|_| touched()).collect();
}

fn is_virtual(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or("");
    flags.split_whitespace().any(|flag| flag == "hypervisor")
}

/// What the groups of this process (version 2), from its own up, leave it before it is ended for its memory.
fn group_room_bytes(root: &Path, groups: &str) -> usize {
    let Some(own) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else { return usize::MAX };
    let room = |group: &Path| {
        let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<usize>().ok();
        Some(number("memory.max")?.saturating_sub(number("memory.current")?))
    };
    let groups = root.join(own);
    groups
        .ancestors()
        .take_while(|group| group.starts_with(root))
        .filter_map(room)
        .min()
        .unwrap_or(usize::MAX)
}

/// A piece of memory of which each byte was written, in huge pages: a host gives those at once.
fn touched() -> Vec<u8> {
    let mut piece: Vec<u8> = Vec::with_capacity(PIECE_BYTES);
    let before = piece.as_ptr().align_offset(HUGE_PAGE_BYTES);
    let start = piece.as_mut_ptr().wrapping_add(before);
    // SAFETY: advice on whole pages within the piece, which does not change what is in them. Best effort.
    let _ = unsafe { rustix::mm::madvise(start.cast(), PIECE_BYTES - before, Advice::LinuxHugepage) };
    piece.resize(PIECE_BYTES, 1);
    piece
}

fn free_bytes(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemFree:"))?;
    let kib: usize = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_found() {
        assert_eq!(free_bytes("MemTotal:       16 kB\nMemFree:        12 kB\n"), Some(12 << 10));
        assert_eq!(free_bytes("MemTotal:       16 kB\n"), None);
    }

    #[test]
    fn no_more_is_taken_than_the_groups_of_this_process_allow() {
        let root = tempfile::tempdir().unwrap();
        let job = root.path().join("slurm/job");
        fs::create_dir_all(&job).unwrap();
        let set = |group: &Path, name: &str, text: &str| fs::write(group.join(name), text).unwrap();
        assert_eq!(group_room_bytes(root.path(), "0::/slurm/job\n"), usize::MAX);
        set(&job, "memory.max", "max\n");
        set(&job, "memory.current", "10\n");
        assert_eq!(group_room_bytes(root.path(), "0::/slurm/job\n"), usize::MAX, "no limit");
        set(&root.path().join("slurm"), "memory.max", "1000\n");
        set(&root.path().join("slurm"), "memory.current", "400\n");
        assert_eq!(group_room_bytes(root.path(), "0::/slurm/job\n"), 600, "that of the group above");
        set(&job, "memory.max", "30\n");
        assert_eq!(group_room_bytes(root.path(), "0::/slurm/job\n"), 20);
    }

    #[test]
    fn a_virtual_machine_says_so() {
        assert!(is_virtual("processor : 0\nflags\t\t: fpu vme hypervisor sse\n"));
        assert!(!is_virtual("processor : 0\nflags\t\t: fpu vme sse\n") && !is_virtual(""));
    }
}
