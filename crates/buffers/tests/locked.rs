//! Slots are locked as far as this process may, and nothing is touched by that. Limits are those of a process, so each case is one.

use std::process::Command;

use haul_buffers::Pool;
use haul_model::SlotId;
use rustix::process::{Resource, Rlimit, setrlimit};

/// All together 64 KiB: what any user may lock, and nobody may raise his limit.
const SLOT: u32 = 8 << 10;
const SLOTS: u32 = 8;

/// KiB of a line of /proc/self/status.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    line.trim().trim_end_matches(" kB").trim().parse().expect(line)
}

/// Bytes of the pool that begins there that are in memory.
fn resident(start: usize) -> u64 {
    let (mut bytes, mut inside) = (0, false);
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let address = |text: &str| usize::from_str_radix(text, 16).ok();
        if let Some((Some(from), Some(_))) = range.map(|(from, to)| (address(from), address(to))) {
            inside = (start..start + (SLOTS * SLOT) as usize).contains(&from);
        }
        if let (true, Some(kib)) = (inside, line.strip_prefix("Rss:")) {
            bytes += kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
        }
    }
    bytes
}

/// The test `name` in a process of its own that may lock so many bytes, and locks `expected` of them; in that process: looks.
fn with_limit(name: &str, limit: u64, expected: u64) {
    const LIMIT: &str = "HAUL_TEST_LIMIT";
    const EXPECTED: &str = "HAUL_TEST_EXPECTED";
    let number = |variable: &str| std::env::var(variable).ok().map(|text| text.parse::<u64>().unwrap());
    if let (Some(limit), Some(expected)) = (number(LIMIT), number(EXPECTED)) {
        return look(limit, expected);
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .envs([(LIMIT, limit.to_string()), (EXPECTED, expected.to_string())])
        .output()
        .unwrap();
    let succeeded = output.status.success();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(succeeded && said.contains("was looked at"), "{said}");
}

fn look(limit: u64, expected: u64) {
    drop_right_to_lock();
    setrlimit(Resource::Memlock, Rlimit { current: Some(limit), maximum: Some(limit) }).unwrap();
    let pool = Pool::new(SLOTS, SLOT).unwrap();
    assert_eq!(pool.locked_bytes() as u64, expected);
    assert_eq!(status("VmLck:") * 1024, expected);
    let start = pool.lease(SlotId(0)).unwrap().as_ptr().addr();
    assert_eq!(resident(start), 0, "nothing is touched");
    // Locked or not, all of them can be used.
    for slot in 0..SLOTS {
        pool.lease(SlotId(slot)).unwrap().fill(7);
    }
    assert!(resident(start) >= u64::from(SLOTS * SLOT));
    drop(pool);
    assert_eq!(status("VmLck:"), 0);
    println!("was looked at");
}

/// Root may lock as much as it likes; another user may not.
fn drop_right_to_lock() {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    let CapabilitySets { mut effective, permitted, inheritable } = capabilities(None).unwrap();
    effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable }).unwrap();
}

#[test]
fn all_slots_are_locked_where_the_limit_allows_it() {
    let all = u64::from(SLOTS) * u64::from(SLOT);
    with_limit("all_slots_are_locked_where_the_limit_allows_it", all, all);
}

#[test]
fn as_many_of_the_first_slots_as_the_limit_allows_are_locked() {
    let three = 3 * u64::from(SLOT);
    with_limit("as_many_of_the_first_slots_as_the_limit_allows_are_locked", three + 4096, three);
}

#[test]
fn where_the_limit_is_less_than_a_slot_nothing_is_locked_and_nothing_fails() {
    for limit in [0, 4096, 8191] {
        with_limit("where_the_limit_is_less_than_a_slot_nothing_is_locked_and_nothing_fails", limit, 0);
    }
}
