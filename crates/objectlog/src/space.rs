//! Which bytes of a log are taken.

use alloc::collections::BTreeMap;

use crate::format::{Extent, PAGE_BYTES};

const PAGE: u64 = PAGE_BYTES as u64;
/// Small pieces are taken in multiples of this.
const GRAIN: u64 = 8;

/// Hands out room of one log, lowest first. Pieces up to a page lie within one page; longer ones start on a page.
#[derive(Default)]
pub(crate) struct Space {
    /// Start to length; neighbours are merged.
    free: BTreeMap<u64, u64>,
    /// Bytes that were ever handed out; a multiple of the page.
    end: u64,
}

impl Space {
    pub(crate) fn take(&mut self, length: u64) -> Extent {
        let rounded = length.next_multiple_of(GRAIN);
        let start = self.find(rounded).unwrap_or_else(|| {
            let start = self.end;
            self.end += rounded.next_multiple_of(PAGE);
            self.release(start, self.end - start);
            start
        });
        self.carve(start, rounded);
        Extent { offset: start, length }
    }

    pub(crate) fn give(&mut self, extent: Extent) {
        if extent.length > 0 {
            self.release(extent.offset, extent.length.next_multiple_of(GRAIN));
        }
    }

    fn find(&self, rounded: u64) -> Option<u64> {
        self.free.iter().find_map(|(&start, &length)| {
            let page_end = start.next_multiple_of(PAGE);
            let fits_here = start % PAGE == 0 || start + rounded <= page_end;
            let candidate = if fits_here { start } else { page_end };
            (candidate + rounded <= start + length).then_some(candidate)
        })
    }

    fn carve(&mut self, start: u64, length: u64) {
        let Some((&free_start, &free_length)) = self.free.range(..=start).next_back() else { return };
        self.free.remove(&free_start);
        if free_start < start {
            self.free.insert(free_start, start - free_start);
        }
        let (end, free_end) = (start + length, free_start + free_length);
        if end < free_end {
            self.free.insert(end, free_end - end);
        }
    }

    fn release(&mut self, mut start: u64, mut length: u64) {
        if let Some((&before, &before_length)) = self.free.range(..start).next_back()
            && before + before_length == start
        {
            self.free.remove(&before);
            start = before;
            length += before_length;
        }
        if let Some(after_length) = self.free.remove(&(start + length)) {
            length += after_length;
        }
        self.free.insert(start, length);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn pieces_never_overlap_or_straddle_and_all_room_comes_back() {
        let mut space = Space::default();
        let mut taken: Vec<Extent> = Vec::new();
        let mut state = 1u64;
        for step in 0..4000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = state >> 33;
            if random % 5 < 2 && !taken.is_empty() {
                space.give(taken.swap_remove(random as usize % taken.len()));
            } else {
                let length =
                    if random.is_multiple_of(3) { (random % 7 + 1) * PAGE } else { random % 512 + 1 };
                let new = space.take(length);
                let new_end = new.offset + new.length;
                assert!(if length < PAGE {
                    new.offset / PAGE == (new_end - 1) / PAGE
                } else {
                    new.offset % PAGE == 0
                });
                for old in &taken {
                    assert!(old.offset >= new_end || old.offset + old.length <= new.offset, "step {step}");
                }
                taken.push(new);
            }
        }
        taken.into_iter().for_each(|extent| space.give(extent));
        assert_eq!(space.free.into_iter().collect::<Vec<_>>(), [(0, space.end)]);
    }

    #[test]
    fn the_lowest_room_is_used_again_before_the_log_grows() {
        let mut space = Space::default();
        let pieces: Vec<Extent> = (0..8).map(|_| space.take(128)).collect();
        assert_eq!(space.end, 1024);
        space.give(pieces[1]);
        assert_eq!(space.take(100), Extent { offset: 128, length: 100 });
        assert_eq!(space.take(513).offset, 1024);
    }
}
