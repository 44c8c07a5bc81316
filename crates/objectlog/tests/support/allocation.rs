//! Counts what a piece of code allocates, for tests that hold the reader to the bound of the specification.
//!
//! A binary that wants figures makes [`Counting`] its global allocator; elsewhere every figure is 0.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, and figures for each thread.
pub struct Counting;

/// `peak` more bytes for a moment, of which `kept` stay.
fn count(peak: i64, kept: i64) {
    let live = LIVE_BYTES.get();
    PEAK_BYTES.set(PEAK_BYTES.get().max(live + peak));
    LIVE_BYTES.set(live + kept);
}

// SAFETY: every call goes to the system's allocator with the caller's own arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64, layout.size() as i64);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64, layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // While the bytes are copied both are there.
        count(size as i64, size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// How many bytes more than before were allocated at once while `work` ran on this thread.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = LIVE_BYTES.get();
    PEAK_BYTES.set(before);
    let result = work();
    (result, (PEAK_BYTES.get() - before) as u64)
}
