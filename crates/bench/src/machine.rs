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

/// A table with the machine and the program under test; more rows may follow.
pub fn table(haul: &Path) -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1)).unwrap_or("-");
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = memory.lines().next().unwrap_or("-").trim_start_matches("MemTotal:").trim();
    let mut text = String::from("| what | |\n|---|---|\n");
    let _ = write!(
        text,
        "| processor | {model}, {} cores |\n| memory | {memory} |\n| kernel | {} |\n| haul | {} |\n",
        cores(),
        first_line("uname", &["-sr"]),
        first_line(&haul.to_string_lossy(), &["--version"]),
    );
    text
}

/// What is left alone of memory that nobody uses.
const SPARED_BYTES: usize = 3 << 29;
const PIECE_BYTES: usize = 256 << 20;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory that nobody uses is written to, once, and given back. A virtual machine may have to get it from its host first, which
/// costs more than a copy: whoever came first would pay for it. (Space that is only set aside in a memory file system is not
/// touched.)
pub fn touch_free_memory() {
    drop(hold_free_memory(SPARED_BYTES));
}

/// All memory that nobody uses, but for so many bytes: what is left is soon touched, and soon used again.
pub fn hold_free_memory(left_bytes: usize) -> Held {
    let free = fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(free_bytes).unwrap_or(0);
    let pieces = free.saturating_sub(left_bytes) / PIECE_BYTES;
    Held { _pieces: (0..pieces).map(|_| touched()).collect() }
}

/// Memory that is given back when this is dropped.
pub struct Held {
    _pieces: Vec<Vec<u8>>,
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
}
