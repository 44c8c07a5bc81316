//! The slot pool: the only owner of payload bytes.
//!
//! One mapping, cut into numbered slots of one size, aligned to huge pages, in which the kernel backs it where it can, and locked
//! in memory as far as that is allowed: a slot never goes to swap. Between threads
//! only slot numbers travel; whoever works on a slot takes a [`Lease`], and the pool makes sure that there is never a
//! second one; those who only read what is in it take a [`Reading`], of which there may be several. Memory of a slot is
//! touched (and locked) when it is first used, and the masters reuse the slot freed last, so a transfer that needs few slots costs
//! few pages.
//!
//! A part of a source slot can stand for a [`FileRange`] instead of holding its bytes: where the stream takes bytes
//! straight from a file, they are never copied into the slot, whose memory then stays untouched. Where both ends are one
//! process, a whole payload can be *lent*: the sink takes it from the source's files, and the slot only stands for it.
//!
//! The memory of a slot is always the same pages: those who hold on to them (io_uring, for requests) rely on it, so nobody
//! gives them back to the system while the pool lives.
//!
//! A sink slot can be *granted*: then, and only then, a receiving thread may take it for a payload that names it. That
//! check stands between a hostile peer and a slot that is being written to disk.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use haul_model::{Hash, SlotId};
use rustix::mm::{self, Advice, MapFlags, MlockFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

const LEASED: u32 = 1;
const GRANTED: u32 = 2;
/// What the slot stands for is lent.
const LENT: u32 = 4;
/// Those who only read what is in the slot, each counts as this.
const READER: u32 = 8;

/// The mapping begins at a multiple of this: a slot of as many bytes or more is made of whole huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Slots of one size in one mapping.
pub struct Pool {
    number: u64,
    base: NonNull<u8>,
    slot_bytes: usize,
    mapping_bytes: usize,
    locked_bytes: usize,
    states: Box<[AtomicU32]>,
    ranges: Box<[Mutex<Vec<FileRange>>]>,
    ranges_held: AtomicUsize,
}

/// Bytes of a payload that were left in their file.
pub struct FileRange {
    /// Where they would be in the slot.
    pub start: usize,
    /// How many; at least 1.
    pub length: usize,
    /// Open for reading.
    pub file: Arc<OwnedFd>,
    /// Where they are in the file.
    pub offset: u64,
    /// Whoever sends them shows them to it, and its hash follows the payload, behind those of the ranges before; nobody has
    /// hashed them yet.
    pub onlooker: Option<Box<dyn Onlooker>>,
}

/// Sees all bytes of a range, in order, and knows their hash then.
pub trait Onlooker: Send {
    /// The next bytes.
    fn see(&mut self, bytes: &[u8]);

    /// All were seen. Of bytes that must not be taken it tells a hash that is not theirs.
    fn hash(self: Box<Self>) -> Hash;
}

// SAFETY: the mapping is plain memory; every access goes through a `Lease`, of which `states` admits one per slot, or
// through `Reading`s, of which it admits any number while there is no lease.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Maps `count` slots of `slot_bytes` (a multiple of 4096) each. Nothing is touched yet. As many of the first ones as this
    /// process may lock are locked; where it may lock none that is no error ([`Pool::locked_bytes`]).
    pub fn new(count: u32, slot_bytes: u32) -> io::Result<Arc<Pool>> {
        Pool::beside(count, slot_bytes, 0)
    }

    /// The same; an error also where the process could not have `spare_bytes` more, for whatever else it needs addresses for.
    pub fn beside(count: u32, slot_bytes: u32, spare_bytes: usize) -> io::Result<Arc<Pool>> {
        assert!(slot_bytes.is_multiple_of(4096) && slot_bytes > 0 && count > 0, "slots are whole pages");
        let mapping_bytes = count as usize * slot_bytes as usize;
        let base = map_aligned(mapping_bytes, spare_bytes.next_multiple_of(4096))?;
        // SAFETY: exactly the mapping made above; advice does not change its contents. Best effort.
        let _ = unsafe { mm::madvise(base.as_ptr().cast(), mapping_bytes, Advice::LinuxHugepage) };
        // A child process would share pages into which devices write past the page cache, and which of the two had the bytes then
        // would be a matter of luck.
        // SAFETY: as above.
        let _ = unsafe { mm::madvise(base.as_ptr().cast(), mapping_bytes, Advice::LinuxDontFork) };
        let locked_bytes = lock(base, mapping_bytes, slot_bytes as usize);
        let states = (0..count).map(|_| AtomicU32::new(0)).collect();
        let ranges = (0..count).map(|_| Mutex::default()).collect();
        let ranges_held = AtomicUsize::new(0);
        static POOLS: AtomicU64 = AtomicU64::new(0);
        Ok(Arc::new(Pool {
            number: POOLS.fetch_add(1, Ordering::Relaxed),
            base,
            slot_bytes: slot_bytes as usize,
            mapping_bytes,
            locked_bytes,
            states,
            ranges,
            ranges_held,
        }))
    }

    /// No other pool of this process has or had it, also none at the same address.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How many slots there are.
    pub fn count(&self) -> u32 {
        self.states.len() as u32
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> usize {
        self.mapping_bytes
    }

    /// Bytes of slots, the first ones, that stay in memory once they are touched: all, or what `RLIMIT_MEMLOCK` allows.
    pub fn locked_bytes(&self) -> usize {
        self.locked_bytes
    }

    /// How many ranges of files stand in slots. Each may keep a file open, so whoever adds some keeps them few.
    pub fn file_ranges_held(&self) -> usize {
        self.ranges_held.load(Ordering::Relaxed)
    }

    /// Exclusive use of a slot; `None` if somebody has it or there is no such slot.
    pub fn lease(&self, slot: SlotId) -> Option<Lease<'_>> {
        let state = self.states.get(slot.0 as usize)?;
        let free = |state: u32| (state & LEASED == 0 && state < READER).then_some(state | LEASED);
        state.fetch_update(Ordering::AcqRel, Ordering::Acquire, free).ok()?;
        Some(Lease { pool: self, slot })
    }

    /// Use of what is in a slot together with others; `None` if somebody has it for themselves, or there is no such slot.
    pub fn read(&self, slot: SlotId) -> Option<Reading<'_>> {
        let state = self.states.get(slot.0 as usize)?;
        let free = |state: u32| (state & LEASED == 0).then(|| state.checked_add(READER)).flatten();
        state.fetch_update(Ordering::AcqRel, Ordering::Acquire, free).ok()?;
        Some(Reading { pool: self, slot })
    }

    /// Allows one payload to be received into the slot. False if somebody receives into it: the next payload would come into
    /// the same slot behind everybody's back.
    #[must_use]
    pub fn grant(&self, slot: SlotId) -> bool {
        let Some(state) = self.states.get(slot.0 as usize) else { return false };
        let allowed = |state: u32| (state & LEASED == 0).then_some(state | GRANTED);
        state.fetch_update(Ordering::AcqRel, Ordering::Acquire, allowed).is_ok()
    }

    /// Takes back what [`Pool::grant`] allowed, if it was not used yet.
    pub fn revoke(&self, slot: SlotId) {
        if let Some(state) = self.states.get(slot.0 as usize) {
            state.fetch_and(!GRANTED, Ordering::AcqRel);
        }
    }

    /// The same; false if it was used.
    #[must_use]
    pub fn take_back(&self, slot: SlotId) -> bool {
        let state = self.states.get(slot.0 as usize);
        state.is_some_and(|state| state.fetch_and(!GRANTED, Ordering::AcqRel) & GRANTED != 0)
    }

    /// Uses up the grant: exclusive use of the slot for one payload. `None` if the slot was not granted.
    pub fn lease_granted(&self, slot: SlotId) -> Option<Lease<'_>> {
        let state = self.states.get(slot.0 as usize)?;
        state.compare_exchange(GRANTED, LEASED, Ordering::AcqRel, Ordering::Acquire).ok()?;
        Some(Lease { pool: self, slot })
    }
}

/// A new mapping that begins at a multiple of [`HUGE_PAGE_BYTES`]; of whole pages more than that, which are given back.
fn map_aligned(bytes: usize, spare_bytes: usize) -> io::Result<NonNull<u8>> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    let more_bytes = HUGE_PAGE_BYTES.checked_add(spare_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
    let whole_bytes = bytes.checked_add(more_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: a new private anonymous mapping at an address of the kernel's choice aliases nothing.
    let whole = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), whole_bytes, protection, flags)? };
    let whole = whole.cast::<u8>();
    let before = whole.align_offset(HUGE_PAGE_BYTES);
    let behind = more_bytes - before;
    for (start, length) in [(0, before), (before + bytes, behind)] {
        if length > 0 {
            // SAFETY: a part, in whole pages, of the mapping made above, which nobody knows yet. What cannot be given back is
            // never touched.
            let _ = unsafe { mm::munmap(whole.add(start).cast(), length) };
        }
    }
    // SAFETY: within the mapping made above.
    Ok(NonNull::new(unsafe { whole.add(before) }).expect("mmap does not return null"))
}

/// Locks whole slots from the beginning, as many as this process may, each when it is touched. How many bytes that are.
fn lock(base: NonNull<u8>, bytes: usize, slot_bytes: usize) -> usize {
    // SAFETY: a part of a mapping that lives as long as the pool; nothing is touched, and contents stay as they are.
    let locked = |bytes| unsafe { mm::mlock_with(base.as_ptr().cast(), bytes, MlockFlags::ONFAULT) }.is_ok();
    // Who has the right is not limited.
    if locked(bytes) {
        return bytes;
    }
    let limit = getrlimit(Resource::Memlock).current.and_then(|limit| usize::try_from(limit).ok());
    let mut within = limit.unwrap_or(0).min(bytes) / slot_bytes;
    // Another pool of this process may have taken a part of it.
    while within > 0 && !locked(within * slot_bytes) {
        within /= 2;
    }
    within * slot_bytes
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; leases borrow the pool, so none is left.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.mapping_bytes) };
    }
}

/// Exclusive use of the bytes of one slot, until dropped.
pub struct Lease<'a> {
    pool: &'a Pool,
    slot: SlotId,
}

impl Lease<'_> {
    /// Which slot.
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// The payload is lent, or not: neither in the slot nor in ranges of files.
    pub fn set_lent(&mut self, lent: bool) {
        let state = &self.pool.states[self.slot.0 as usize];
        match lent {
            true => state.fetch_or(LENT, Ordering::AcqRel),
            false => state.fetch_and(!LENT, Ordering::AcqRel),
        };
    }

    /// Whether the payload is lent.
    pub fn is_lent(&self) -> bool {
        self.pool.states[self.slot.0 as usize].load(Ordering::Acquire) & LENT != 0
    }

    /// These parts of the payload are in files, in the order of their `start`; all else is in the slot.
    pub fn set_file_ranges(&mut self, ranges: Vec<FileRange>) {
        self.pool.ranges_held.fetch_add(ranges.len(), Ordering::Relaxed);
        let before = self.replace(ranges);
        self.pool.ranges_held.fetch_sub(before.len(), Ordering::Relaxed);
    }

    /// Which parts of the payload are in files. They can be taken once: a payload that is sent again is read again.
    pub fn take_file_ranges(&mut self) -> Vec<FileRange> {
        let taken = self.replace(Vec::new());
        self.pool.ranges_held.fetch_sub(taken.len(), Ordering::Relaxed);
        taken
    }

    fn replace(&mut self, ranges: Vec<FileRange>) -> Vec<FileRange> {
        let mut held = self.pool.ranges[self.slot.0 as usize].lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *held, ranges)
    }
}

impl Deref for Lease<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let offset = self.slot.0 as usize * self.pool.slot_bytes;
        // SAFETY: in bounds (`lease` checked the number), and `states` admits no other lease of this slot.
        unsafe { std::slice::from_raw_parts(self.pool.base.as_ptr().add(offset), self.pool.slot_bytes) }
    }
}

impl DerefMut for Lease<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let offset = self.slot.0 as usize * self.pool.slot_bytes;
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pool.base.as_ptr().add(offset), self.pool.slot_bytes) }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.pool.states[self.slot.0 as usize].fetch_and(!LEASED, Ordering::AcqRel);
    }
}

/// Use of the bytes of one slot together with others who read it, until dropped.
pub struct Reading<'a> {
    pool: &'a Pool,
    slot: SlotId,
}

impl Deref for Reading<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let offset = self.slot.0 as usize * self.pool.slot_bytes;
        // SAFETY: in bounds (`read` checked the number), and `states` admits no lease of this slot, so nobody writes.
        unsafe { std::slice::from_raw_parts(self.pool.base.as_ptr().add(offset), self.pool.slot_bytes) }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.pool.states[self.slot.0 as usize].fetch_sub(READER, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_lease_at_a_time_and_keeps_its_bytes() {
        let pool = Pool::new(3, 4096).unwrap();
        let mut lease = pool.lease(SlotId(1)).unwrap();
        assert!(pool.lease(SlotId(1)).is_none());
        assert!(pool.lease(SlotId(1)).is_none(), "a refused lease must not end the one that is held");
        assert!(pool.lease(SlotId(3)).is_none());
        lease.fill(7);
        drop(lease);
        assert!(pool.lease(SlotId(0)).unwrap().iter().all(|byte| *byte == 0));
        assert!(pool.lease(SlotId(1)).unwrap().iter().all(|byte| *byte == 7));
        assert!(pool.lease(SlotId(2)).unwrap().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn addresses_that_are_to_be_spare_must_be_there_and_are_given_back() {
        let addresses = || {
            let status = std::fs::read_to_string("/proc/self/statm").unwrap();
            status.split(' ').next().unwrap().parse::<usize>().unwrap() * 4096
        };
        let before = addresses();
        let pool = Pool::beside(2, 4096, 1 << 40).unwrap();
        assert!(addresses().saturating_sub(before) < 1 << 39, "they are given back");
        assert_eq!(pool.bytes(), 2 * 4096);
        drop(pool);
        assert!(Pool::beside(2, 4096, 1 << 60).is_err());
        assert!(Pool::beside(2, 4096, usize::MAX / 2).is_err());
    }

    #[test]
    fn slots_are_made_of_whole_huge_pages() {
        for (count, slot_bytes) in [(1, 4096), (3, 2 << 20), (7, 4 << 20), (5, 64 << 10)] {
            let pool = Pool::new(count, slot_bytes).unwrap();
            let first = pool.lease(SlotId(0)).unwrap();
            assert!(first.as_ptr().addr().is_multiple_of(2 << 20));
            drop(first);
            let mut last = pool.lease(SlotId(count - 1)).unwrap();
            last.fill(1);
            assert_eq!(pool.bytes(), count as usize * slot_bytes as usize);
        }
    }

    #[test]
    fn several_read_a_slot_and_nobody_writes_into_it_meanwhile() {
        let pool = Pool::new(2, 4096).unwrap();
        pool.lease(SlotId(0)).unwrap().fill(7);
        let (one, other) = (pool.read(SlotId(0)).unwrap(), pool.read(SlotId(0)).unwrap());
        assert!(one.iter().chain(&*other).all(|byte| *byte == 7));
        assert!(pool.lease(SlotId(0)).is_none());
        assert!(pool.grant(SlotId(0)));
        assert!(pool.lease_granted(SlotId(0)).is_none(), "a payload would be written into it");
        drop(one);
        assert!(pool.lease(SlotId(0)).is_none() && pool.lease_granted(SlotId(0)).is_none());
        drop(other);
        let lease = pool.lease_granted(SlotId(0)).unwrap();
        assert!(pool.read(SlotId(0)).is_none() && pool.read(SlotId(2)).is_none());
        drop(lease);
        assert!(pool.read(SlotId(0)).is_some());
    }

    #[test]
    fn a_range_of_a_file_is_taken_once_and_does_not_outlive_what_is_read_next() {
        let pool = Pool::new(2, 4096).unwrap();
        let file = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let range = || FileRange { start: 0, length: 9, file: file.clone(), offset: 7, onlooker: None };
        pool.lease(SlotId(1)).unwrap().set_file_ranges(vec![range()]);
        assert!(pool.lease(SlotId(0)).unwrap().take_file_ranges().is_empty());
        assert_eq!(pool.file_ranges_held(), 1);
        assert_eq!(pool.lease(SlotId(1)).unwrap().take_file_ranges()[0].offset, 7);
        assert!(pool.lease(SlotId(1)).unwrap().take_file_ranges().is_empty());
        pool.lease(SlotId(1)).unwrap().set_file_ranges(vec![range(), range()]);
        assert_eq!(pool.file_ranges_held(), 2);
        pool.lease(SlotId(1)).unwrap().set_file_ranges(Vec::new());
        assert!(pool.lease(SlotId(1)).unwrap().take_file_ranges().is_empty());
        assert_eq!(
            (pool.file_ranges_held(), Arc::strong_count(&file)),
            (0, 1),
            "the pool keeps the file open"
        );
    }

    #[test]
    fn what_is_lent_is_so_until_the_slot_is_used_for_something_else() {
        let pool = Pool::new(2, 4096).unwrap();
        pool.lease(SlotId(1)).unwrap().set_lent(true);
        assert!(pool.lease(SlotId(1)).unwrap().is_lent());
        assert!(!pool.lease(SlotId(0)).unwrap().is_lent());
        let (one, other) = (pool.read(SlotId(1)).unwrap(), pool.read(SlotId(1)).unwrap());
        assert!(pool.lease(SlotId(1)).is_none(), "somebody reads it");
        drop((one, other));
        let mut lease = pool.lease(SlotId(1)).unwrap();
        lease.set_lent(false);
        assert!(!lease.is_lent() && pool.lease(SlotId(1)).is_none());
    }

    #[test]
    fn a_payload_needs_a_grant_and_uses_it_up() {
        let pool = Pool::new(2, 4096).unwrap();
        assert!(pool.lease_granted(SlotId(0)).is_none());
        assert!(pool.grant(SlotId(0)));
        assert!(pool.lease_granted(SlotId(1)).is_none());
        drop(pool.lease_granted(SlotId(0)).unwrap());
        assert!(pool.lease_granted(SlotId(0)).is_none(), "a second payload for the same credit");
        assert!(pool.grant(SlotId(0)));
        pool.revoke(SlotId(0));
        assert!(pool.lease_granted(SlotId(0)).is_none());
    }

    #[test]
    fn a_slot_that_is_received_into_is_neither_granted_nor_taken_back() {
        let pool = Pool::new(2, 4096).unwrap();
        assert!(!pool.take_back(SlotId(0)) && !pool.take_back(SlotId(2)) && !pool.grant(SlotId(2)));
        assert!(pool.grant(SlotId(0)) && pool.take_back(SlotId(0)));
        assert!(pool.lease_granted(SlotId(0)).is_none());
        assert!(pool.grant(SlotId(0)));
        let receiving = pool.lease_granted(SlotId(0)).unwrap();
        assert!(!pool.take_back(SlotId(0)), "it is used");
        assert!(!pool.grant(SlotId(0)), "it is being used");
        drop(receiving);
        assert!(!pool.take_back(SlotId(0)));
        assert!(pool.lease_granted(SlotId(0)).is_none(), "nothing is left of what was refused");
        assert!(pool.grant(SlotId(0)));
    }

    #[test]
    fn a_granted_slot_in_use_is_not_given_to_a_payload() {
        let pool = Pool::new(1, 4096).unwrap();
        assert!(pool.grant(SlotId(0)));
        let lease = pool.lease(SlotId(0)).unwrap();
        assert!(pool.lease_granted(SlotId(0)).is_none());
        drop(lease);
        assert!(pool.lease_granted(SlotId(0)).is_some());
    }
}
