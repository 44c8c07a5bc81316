//! What must hold of several transfers on the same targets, as questions that a planted bug answers wrongly.

use haul_sim::NeighbourBug;
use haul_sim::neighbours::{Figures, SECOND, Setup, Transfer, run};

pub const TARGETS: usize = 4;
/// Of a disk.
pub const RATE: u64 = 36_363_636;
const THREADS: u32 = 22;
/// One alone may have a third of its threads on a target.
const ALLOWED: f64 = 7.0;
/// The first one has a tenth.
pub const SLOW: usize = 0;

/// So many of one user, each with more threads than the targets need; the first target is slow.
pub fn transfers(count: usize) -> Setup {
    let one = Transfer { user: 1000, threads: THREADS, objects: 1600, starts: 0, killed: u64::MAX };
    let mut rates = vec![RATE; TARGETS];
    rates[SLOW] = RATE / 10;
    Setup {
        transfers: vec![one; count],
        rates,
        speak: true,
        liars: 0,
        window: (10 * SECOND, 50 * SECOND),
        bug: None,
        scheduler_bug: None,
    }
}

/// Requests of all on a target, compared with those that one alone has, or may have.
pub fn too_many(all: &Figures, alone: &Figures) -> Option<String> {
    (0..TARGETS).find_map(|target| {
        let (all, alone) = (all.under_way[target], alone.under_way[target]);
        // One request of the last turn may still be there in the next one.
        let most = if target == SLOW { alone + 1.0 } else { 1.05 * ALLOWED };
        (all > most).then(|| format!("target {target} has {all:.2} requests of all, {alone:.2} of one alone"))
    })
}

/// All get the same, within a fifth.
pub fn unfair(all: &Figures) -> Option<String> {
    let bytes: Vec<u64> = all.bytes.iter().map(|bytes| bytes.iter().sum()).collect();
    let (least, most) = (bytes.iter().min()?, bytes.iter().max()?);
    (least * 6 < most * 5).then(|| format!("one got {least} bytes, another {most}"))
}

/// Nobody waits for longer than the turns of all others, and what is left of one.
pub fn starved(all: &Figures, count: u64) -> Option<String> {
    let longest = all.longest_wait.iter().flatten().max()?;
    let bound = 2 * SECOND * count + 3 * SECOND;
    (*longest > bound).then(|| format!("one waited for {longest} ns"))
}

/// Of four, three are killed: the other one soon has as much of each target as if it had always been alone.
pub fn not_taken_over(bug: Option<NeighbourBug>) -> Option<String> {
    let mut setup = Setup { bug, window: (14 * SECOND, 34 * SECOND), ..transfers(4) };
    setup.transfers[1..].iter_mut().for_each(|one| one.killed = 12 * SECOND);
    let (left, alone) = (run(&setup), run(&Setup { window: setup.window, ..transfers(1) }));
    (0..TARGETS).find_map(|target| {
        let (left, alone) = (left.bytes[0][target], alone.bytes[0][target]);
        (left * 5 < alone * 4).then(|| format!("it gets {left} bytes of target {target}, and {alone} alone"))
    })
}

/// One user has five transfers, another has one: each user gets half of the slow target.
pub fn unfair_to_users(bug: Option<NeighbourBug>) -> Option<String> {
    let mut setup = Setup { bug, window: (4 * SECOND, 100 * SECOND), ..transfers(6) };
    setup.transfers[0].user = 7;
    let figures = run(&setup);
    let bytes: Vec<u64> = figures.bytes.iter().map(|bytes| bytes[SLOW]).collect();
    let (own, all) = (bytes[0], bytes.iter().sum::<u64>());
    (!(all * 35..=all * 65).contains(&(own * 100))).then(|| format!("{own} of {all} bytes: {bytes:?}"))
}
