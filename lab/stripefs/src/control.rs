//! What can be changed while it runs, by text.
//!
//! | command | what it does |
//! |---|---|
//! | `target WHICH WORD...` | changes targets; WHICH is `all`, or numbers and ranges like `0,3-5` |
//! | `mds WORD...` | changes the metadata server |
//! | `rename_flags=allow`, `=refuse` | `renameat2` with flags works, or is refused with `EINVAL` |
//! | `set_again=ignore`, `=refuse` | setting the layout of a file that has one does nothing, or fails with `EEXIST` |
//! | `unknown_pool=ignore`, `=refuse` | a layout with a pool that does not exist is taken, or fails with `EINVAL` |
//! | `group_lock=held`, `=free` | whoever reads or writes with `O_NONBLOCK` is refused with `EAGAIN`; others need not wait |
//! | `sizes=told`, `=halved` | files show their size, or half of it |
//! | `numbers=stay`, `=pass` | what is looked up again has the same inode number, or another one |
//! | `paths=alike`, `=numbered` | where case does not count: a file has one inode number, or one for each spelling of its name |
//! | `modes=kept`, `=refused` | modes can be set, or are refused with `EPERM` and always 0755 |
//! | `case=kept`, `=ignored` | names that differ in case are different, or the same |
//! | `colons=taken`, `=refused` | names may have colons in them, or are refused with `EINVAL` |
//! | `colons=found`, `=missed` | the same with `ENOENT` |
//! | `devices=taken`, `=refused` | names may end in a dot or a blank and be `aux` or `com1`, or are refused with `EINVAL` |
//! | `stats` | the clock of the trace, and counters of every target and the metadata server, as JSON; flushes the trace |
//!
//! | word | what it does |
//! |---|---|
//! | `rate=SIZE` | bytes a second, both directions together; 0 is no limit |
//! | `iops=N` | requests a second; 0 is no limit |
//! | `latency=TIME`, `jitter=TIME` | each request takes so much, and up to so much, longer |
//! | `stall=TIME` | stands still once, from now on |
//! | `stalls=PAUSE/PERIOD` | stands still regularly; 0 is never |
//! | `hang`, `hang=KIND` | answers nothing, or no requests of this kind: `read`, `write`, `sync`, `other` (names, sizes, removal) |
//! | `error=ERRNO` | everything fails, also what hangs; with `ENOSPC` and `EDQUOT` what writes does |
//! | `ok` | no hang, no error, no stall any more |
//! | `reset` | as new |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::{Counters, Device};
use crate::filesystem::{Shared, StripeFs};

/// Runs one command; the answer is one line.
pub fn execute(filesystem: &StripeFs, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let shared = filesystem.shared();
    match words[..] {
        ["target", which, ref words @ ..] if !words.is_empty() => {
            let devices: Vec<_> = shared.targets.iter().map(|target| &target.device).collect();
            let chosen = numbers(which, devices.len())?;
            turn(chosen.into_iter().map(|number| devices[number]), words)
        }
        ["mds", ref words @ ..] if !words.is_empty() => turn([&shared.mds].into_iter(), words),
        [word] if let Some((what, refuse)) = behaviour(word) => {
            what(shared).store(refuse, Ordering::Relaxed);
            Ok(String::new())
        }
        ["stats"] => {
            filesystem.flush_trace();
            Ok(statistics(filesystem))
        }
        _ => Err(format!("no command {line:?}")),
    }
}

type Switch = fn(&Shared) -> &AtomicBool;

/// What is refused, and whether it is from now on.
fn behaviour(word: &str) -> Option<(Switch, bool)> {
    Some(match word {
        "rename_flags=allow" => (|it| &it.behaviour.refuse_rename_flags, false),
        "rename_flags=refuse" => (|it| &it.behaviour.refuse_rename_flags, true),
        "set_again=ignore" => (|it| &it.behaviour.refuse_set_again, false),
        "set_again=refuse" => (|it| &it.behaviour.refuse_set_again, true),
        "unknown_pool=ignore" => (|it| &it.behaviour.refuse_unknown_pool, false),
        "unknown_pool=refuse" => (|it| &it.behaviour.refuse_unknown_pool, true),
        "modes=kept" => (|it| &it.behaviour.refuse_modes, false),
        "modes=refused" => (|it| &it.behaviour.refuse_modes, true),
        "sizes=told" => (|it| &it.behaviour.halve_sizes, false),
        "sizes=halved" => (|it| &it.behaviour.halve_sizes, true),
        "numbers=stay" => (|it| &it.behaviour.other_numbers, false),
        "numbers=pass" => (|it| &it.behaviour.other_numbers, true),
        "paths=alike" => (|it| &it.behaviour.numbers_by_path, false),
        "paths=numbered" => (|it| &it.behaviour.numbers_by_path, true),
        "case=kept" => (|it| &it.names.fold_case, false),
        "case=ignored" => (|it| &it.names.fold_case, true),
        "colons=taken" => (|it| &it.names.refuse_colons, false),
        "colons=refused" => (|it| &it.names.refuse_colons, true),
        "colons=found" => (|it| &it.names.miss_colons, false),
        "colons=missed" => (|it| &it.names.miss_colons, true),
        "devices=taken" => (|it| &it.names.refuse_devices, false),
        "devices=refused" => (|it| &it.names.refuse_devices, true),
        "group_lock=free" => (|it| &it.behaviour.group_lock, false),
        "group_lock=held" => (|it| &it.behaviour.group_lock, true),
        _ => return None,
    })
}

fn turn<'a>(devices: impl Iterator<Item = &'a Arc<Device>>, words: &[&str]) -> Result<String, String> {
    let mut turned = Vec::new();
    for device in devices {
        let knobs = words.iter().try_fold(device.knobs(), |knobs, word| knobs.turned(word))?;
        turned.push((device, knobs));
    }
    // All words of all devices are right: now, as nearly at once as can be.
    turned.into_iter().for_each(|(device, knobs)| device.turn(knobs));
    Ok(String::new())
}

/// `all`, or numbers and ranges with commas between them.
pub fn numbers(text: &str, count: usize) -> Result<Vec<usize>, String> {
    if text == "all" {
        return Ok((0..count).collect());
    }
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| -> Result<usize, String> {
            let number = text.parse().ok().filter(|number| *number < count);
            number.ok_or_else(|| format!("{text:?} is none of the targets 0 to {}", count - 1))
        };
        numbers.extend(number(first)?..=number(last)?);
    }
    Ok(numbers)
}

fn statistics(filesystem: &StripeFs) -> String {
    let (targets, mds) = filesystem.counters();
    let object = |name: String, counters: &Counters| {
        let Counters { bytes_read, bytes_written, requests, errors, in_flight, queue } = counters;
        format!(
            "{{{name}\"bytes_read\":{bytes_read},\"bytes_written\":{bytes_written},\"requests\":{requests},\
             \"errors\":{errors},\"in_flight\":{in_flight},\"queue\":{queue}}}"
        )
    };
    let targets: Vec<_> = (0..)
        .zip(&targets)
        .map(|(number, counters): (u32, _)| object(format!("\"target\":{number},"), counters))
        .collect();
    let (targets, mds) = (targets.join(","), object(String::new(), &mds));
    let seconds = filesystem.age().as_secs_f64();
    format!("{{\"seconds\":{seconds:.6},\"targets\":[{targets}],\"mds\":{mds}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_named_by_numbers_and_ranges() {
        assert_eq!(numbers("all", 3), Ok(vec![0, 1, 2]));
        assert_eq!(numbers("0,2-4", 5), Ok(vec![0, 2, 3, 4]));
        for wrong in ["", "5", "-1", "1-", "x", "0,,1"] {
            assert!(numbers(wrong, 5).is_err(), "{wrong}");
        }
    }
}
