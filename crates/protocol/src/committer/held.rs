//! What was written of files that are not to be synced yet (decision 16).

use alloc::vec::Vec;

use hashbrown::HashMap;
use haul_model::EntryId;

use super::WrittenObject;

/// Files that are not whole hold at most this part of what may wait.
pub(super) const HELD_SHARE: u64 = 4;
/// Nothing of a file waits for the rest of it for longer than this,
pub(super) const HELD_NANOS_MAX: u64 = 1_000_000_000;
/// or than this when nothing of it comes.
pub(super) const IDLE_NANOS_MAX: u64 = 250_000_000;

/// What was written of one file.
#[derive(Default)]
struct Held {
    objects: Vec<WrittenObject>,
    bytes: u64,
    since_nanos: u64,
    last_nanos: u64,
    /// It will be released once nothing is being written into it.
    set_apart: bool,
}

impl Held {
    fn due_nanos(&self) -> u64 {
        (self.since_nanos + HELD_NANOS_MAX).min(self.last_nanos + IDLE_NANOS_MAX)
    }
}

/// Of all files.
#[derive(Default)]
pub(super) struct HeldFiles {
    files: HashMap<EntryId, Held>,
    bytes: u64,
    /// When to look for those that have been held for long enough.
    look_nanos: u64,
}

impl HeldFiles {
    /// None is held.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Of all that are held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Objects of this file that are held.
    pub fn count(&self, id: EntryId) -> usize {
        self.files.get(&id).map_or(0, |held| held.objects.len())
    }

    /// An object was written.
    pub fn hold(&mut self, object: WrittenObject, now_nanos: u64) {
        let held = self.files.entry(object.id).or_default();
        if held.objects.is_empty() {
            held.since_nanos = now_nanos;
        }
        held.last_nanos = now_nanos;
        held.objects.push(object);
        held.bytes += u64::from(object.bytes);
        self.bytes += u64::from(object.bytes);
        self.look_nanos = self.look_nanos.min(held.due_nanos());
    }

    /// All that is held of this file is not held any more.
    pub fn take(&mut self, id: EntryId) -> Vec<WrittenObject> {
        let Some(held) = self.files.remove(&id) else { return Vec::new() };
        self.bytes -= held.bytes;
        held.objects
    }

    /// It will be released in a while.
    pub fn set_apart(&mut self, id: EntryId) {
        if let Some(held) = self.files.get_mut(&id) {
            held.set_apart = true;
        }
    }

    /// What was held back because something else of this file was being synced.
    pub fn can_be_looked_at(&mut self, id: EntryId) {
        if let Some(held) = self.files.get(&id) {
            self.look_nanos = self.look_nanos.min(held.due_nanos());
        }
    }

    /// A file that has been held for long enough, or that makes room where `window_bytes` may wait in all.
    pub fn next_to_release(
        &mut self,
        window_bytes: u64,
        now_nanos: u64,
        quiet: bool,
        may_be_synced: impl Fn(EntryId) -> bool,
    ) -> Option<EntryId> {
        if self.files.is_empty() {
            return None;
        }
        let can = || self.files.iter().filter(|(id, held)| !held.set_apart && may_be_synced(**id));
        let most = window_bytes / HELD_SHARE;
        // Those that are set apart make room soon: not all files at once are to stand still.
        if self.bytes > most
            && let Some((id, _)) = can().max_by_key(|(id, held)| (held.bytes, **id))
            && can().map(|(_, held)| held.bytes).sum::<u64>() > most
        {
            return Some(*id);
        }
        if !quiet && now_nanos < self.look_nanos {
            return None;
        }
        let oldest = can().map(|(id, held)| (held.due_nanos(), *id)).min();
        self.look_nanos = oldest.map_or(u64::MAX, |(due, _)| due);
        oldest.filter(|(due, _)| quiet || *due <= now_nanos).map(|(_, id)| id)
    }

    /// When to look again although nothing happens.
    pub fn deadline_nanos(&self) -> Option<u64> {
        (!self.files.is_empty() && self.look_nanos < u64::MAX).then_some(self.look_nanos)
    }
}
