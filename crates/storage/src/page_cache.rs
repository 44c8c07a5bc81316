//! The kernel's page cache is left as it was found.
//!
//! A dataset that goes by once would push out what others on the same host work with. So what was not in the cache when a
//! file was opened is dropped from it once it is of no more use, and so is what was written, once it is durable. What was
//! there stays there. All of it is advice: where the kernel cannot tell (`cachestat` is there from Linux 6.5 on), nothing is
//! dropped, and on memory file systems the cache is all there is and nothing can be.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{Advice, fadvise};

/// `cachestat(2)`, the same number on all architectures.
const CACHESTAT: libc::c_long = 451;
/// What was read less than so many bytes ago may still be on its way from the cache to the other end.
const NEAR_BYTES: u64 = 1 << 30;

/// `struct cachestat_range`; a length of 0 reaches to the end.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// `struct cachestat`.
#[repr(C)]
#[derive(Default)]
struct Pages {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// How many pages of the file are in the cache; `None` where the kernel cannot tell.
pub(crate) fn pages(file: impl AsFd) -> Option<u64> {
    pages_of(file, Range { offset: 0, length: 0 })
}

/// At least half of the range is in the cache, or the kernel cannot tell.
pub(crate) fn holds_most_of(file: impl AsFd, offset: u64, length: u32) -> bool {
    let all = u64::from(length).div_ceil(rustix::param::page_size() as u64);
    pages_of(file, Range { offset, length: length.into() }).is_none_or(|cached| cached * 2 >= all)
}

/// All of the range is in the cache.
pub(crate) fn holds_all_of(file: impl AsFd, offset: u64, length: u32) -> bool {
    let page = rustix::param::page_size() as u64;
    let all = (offset + u64::from(length)).div_ceil(page) - offset / page;
    pages_of(file, Range { offset, length: length.into() }).is_some_and(|cached| cached >= all)
}

fn pages_of(file: impl AsFd, range: Range) -> Option<u64> {
    let mut pages = Pages::default();
    // SAFETY: both structures are as the kernel declares them and live until the call returns; flags are 0.
    let result =
        unsafe { libc::syscall(CACHESTAT, file.as_fd().as_raw_fd(), &raw const range, &raw mut pages, 0) };
    (result == 0).then_some(pages.cached)
}

/// Nothing of the file is in the cache, so nothing that it is read for need stay there.
pub(crate) fn is_absent(file: impl AsFd) -> bool {
    pages(file) == Some(0)
}

/// A file that is read once. Nothing of it stays in the cache where nothing was.
pub(crate) struct Passing<F: AsFd>(Option<F>);

impl<F: AsFd> Passing<F> {
    /// Before it is read.
    pub fn new(file: F) -> Passing<F> {
        Passing(is_absent(&file).then_some(file))
    }
}

impl<F: AsFd> Drop for Passing<F> {
    fn drop(&mut self) {
        self.0.as_ref().into_iter().for_each(drop_all);
    }
}

/// Drops what can be dropped of the whole file.
pub(crate) fn drop_all(file: impl AsFd) {
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

/// Drops what lies far enough behind `offset`, up to which a file has been read roughly in order.
pub(crate) fn drop_behind(file: impl AsFd, offset: u64, length: u32) {
    let far = offset.saturating_sub(NEAR_BYTES);
    if far > 0 {
        let start = far.saturating_sub(u64::from(length));
        let _ = fadvise(file, start, std::num::NonZeroU64::new(far - start), Advice::DontNeed);
    }
}
