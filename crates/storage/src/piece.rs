//! A thread's piece of memory, through which bytes of files pass.
//!
//! It begins at a page: the kernel copies to and from there faster than to and from an odd address, and XXH3 takes half the time.

use std::cell::RefCell;

const ALIGNMENT: usize = 4 << 10;

thread_local! {
    static MEMORY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// So many bytes, with whatever was left in them. Not to be asked for by `work` again.
pub(crate) fn with_piece<T>(bytes: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    MEMORY.with_borrow_mut(|memory| {
        if memory.len() < bytes + ALIGNMENT {
            *memory = vec![0; bytes + ALIGNMENT];
        }
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        work(&mut memory[start..start + bytes])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_begins_at_a_page_however_long_it_is() {
        for bytes in [1, 5000, 128 << 10, 64 << 10, 1 << 20, (2 << 20) + 1] {
            with_piece(bytes, |piece| {
                assert_eq!(piece.as_ptr() as usize % ALIGNMENT, 0);
                assert_eq!(piece.len(), bytes);
            });
        }
    }
}
