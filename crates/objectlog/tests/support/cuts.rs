//! Every point at which a process or the power can end while a log is written.

use std::collections::BTreeMap;

use haul_objectlog::memory::Refused;
use haul_objectlog::{LogStore, MemoryStore};

use super::Random;

/// Waiting writes and names that are lost and kept one by one; of more only some are.
const SINGLES_MAX: u64 = 24;

/// The store in the middle of something.
pub struct Cut {
    pub store: MemoryStore,
    /// A sync had failed: readers see what the disk may never get.
    pub sync_failed: bool,
}

/// The states of a write that are cut off at a multiple of 512 bytes, but for the last, which is all of it.
pub fn torn_writes(before: &MemoryStore, name: &str, offset: u64, bytes: &[u8]) -> Vec<MemoryStore> {
    let first = (512 - offset % 512) as usize;
    (first..bytes.len())
        .step_by(512)
        .filter_map(|end| {
            let mut store = before.clone();
            store.write_at(name, offset, &bytes[..end]).ok().map(|()| store)
        })
        .collect()
}

/// The states of a sync of several files of which only the first few are durable.
pub fn partial_syncs(before: &MemoryStore, names: &[&str]) -> Vec<MemoryStore> {
    (1..names.len())
        .filter_map(|count| {
            let mut store = before.clone();
            store.sync(&names[..count]).ok().map(|()| store)
        })
        .collect()
}

/// A write that fails after some of its pages: as a full disk does it.
pub fn write_in_part(
    store: &mut MemoryStore,
    name: &str,
    offset: u64,
    bytes: &[u8],
    pages: usize,
) -> Result<(), Refused> {
    let end = (512 - (offset % 512) as usize + 512 * pages).min(bytes.len());
    store.fail_after(None);
    let result = store.write_at(name, offset, &bytes[..end]);
    store.fail_after(Some(0));
    result
}

/// What a power cut can leave: nothing of what waits, any one part of it lost or kept alone, and random parts.
pub fn after_power_cut(store: &MemoryStore, random: &mut Random) -> Vec<MemoryStore> {
    let mut waiting = 0u64;
    let mut states = vec![store.crash(|| {
        waiting += 1;
        false
    })];
    let mut single = |index: u64, others: bool| {
        let mut asked = 0;
        states.push(store.crash(|| {
            asked += 1;
            (asked - 1 == index) != others
        }));
    };
    for step in 0..waiting.min(SINGLES_MAX) {
        let index = if waiting <= SINGLES_MAX { step } else { random.below(waiting) };
        single(index, false);
        single(index, true);
    }
    if waiting > 2 {
        states.extend([30, 70].map(|share| store.crash(|| random.chance(share))));
    }
    states
}

/// On some file systems a lost write shows what the blocks held before: here what a log of the same name had there.
/// `None` if nothing was lost where an older log was.
pub fn with_stale_pages(
    seen: &MemoryStore,
    cut: &MemoryStore,
    removed: &BTreeMap<String, Vec<u8>>,
) -> Option<MemoryStore> {
    let (seen, mut files, mut any) = (seen.files(), cut.files(), false);
    for (name, log) in &mut files {
        let (Some(seen), Some(stale)) = (seen.get(name), removed.get(name)) else { continue };
        log.resize(seen.len(), 0);
        let pages = log.chunks_mut(512).zip(seen.chunks(512)).zip(stale.chunks(512));
        for ((page, seen), stale) in pages {
            if page.iter().all(|byte| *byte == 0) && seen.iter().any(|byte| *byte != 0) {
                let length = page.len().min(stale.len());
                page[..length].copy_from_slice(&stale[..length]);
                any = true;
            }
        }
    }
    any.then(|| MemoryStore::with_files(files))
}
