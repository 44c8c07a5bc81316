//! Buffers that are used again: new memory for each megabyte would cost more than copying it.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Largest request of the kernel.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Kept when nobody uses them.
const KEPT: usize = 64;
/// Where each begins, in memory: what devices ask for that are read and written without the page cache.
pub const ALIGNMENT: usize = 4096;

/// Where they come from.
#[derive(Clone, Default)]
pub struct Buffers {
    free: Arc<Mutex<Vec<Box<[u8]>>>>,
}

/// So many bytes; goes back by itself.
pub struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    length: usize,
    home: Buffers,
}

impl Buffers {
    /// One of `length` bytes, which are any.
    pub fn take(&self, length: usize) -> Buffer {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = match free {
            Some(bytes) if bytes.len() >= length + ALIGNMENT => bytes,
            _ => vec![0; length.max(REQUEST_BYTES_MAX) + ALIGNMENT].into_boxed_slice(),
        };
        let start = bytes.as_ptr().addr().wrapping_neg() % ALIGNMENT;
        Buffer { bytes, start, length, home: self.clone() }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.home.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}
