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

/// Runs the ignored test of that name in a process of its own, whose limit is `HAUL_LIMIT`.
fn in_child(limit: &str, expected: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
        .envs([("HAUL_LIMIT", limit), ("HAUL_EXPECTED", expected)])
        .output()
        .unwrap();
    let succeeded = output.status.success();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(succeeded && said.contains("was looked at"), "{said}");
}

#[test]
#[ignore = "of another test"]
fn child() {
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let (limit, expected) = (number("HAUL_LIMIT"), number("HAUL_EXPECTED"));
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
    in_child(&all.to_string(), &all.to_string());
}

#[test]
fn as_many_of_the_first_slots_as_the_limit_allows_are_locked() {
    let limit = 3 * u64::from(SLOT) + 4096;
    in_child(&limit.to_string(), &(3 * u64::from(SLOT)).to_string());
}

#[test]
fn where_the_limit_is_less_than_a_slot_nothing_is_locked_and_nothing_fails() {
    for limit in ["0", "4096", "8191"] {
        in_child(limit, "0");
    }
}
