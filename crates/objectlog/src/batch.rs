//! Gathers the writes to one log, so that neighbours go to the store in one call.

use alloc::string::ToString;
use alloc::vec::Vec;

use crate::error::{Doing, Error};
use crate::store::LogStore;

/// More than this is not held back.
const BYTES_MAX: usize = 1 << 20;

/// Writes to one log that have not gone to the store yet. No two of them overlap.
#[derive(Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    /// Offset in the log; start and length in `bytes`.
    parts: Vec<(u64, usize, usize)>,
    run: Vec<u8>,
    /// Where the furthest write ended.
    pub end: u64,
}

impl Batch {
    /// Room for a write, filled with zeros; a piece that is no multiple of 8 is followed by zeros that nobody owns.
    pub(crate) fn add(&mut self, offset: u64, length: usize) -> &mut [u8] {
        let start = self.bytes.len();
        let padded = length.next_multiple_of(8);
        self.bytes.resize(start + padded, 0);
        self.parts.push((offset, start, padded));
        &mut self.bytes[start..start + length]
    }

    pub(crate) fn is_large(&self) -> bool {
        self.bytes.len() >= BYTES_MAX
    }

    /// Hands everything to the store, in the order of the log. After an error the batch is empty all the same: its
    /// owner makes it again.
    pub(crate) fn write<S: LogStore>(&mut self, store: &mut S, name: &str) -> Result<(), Error<S::Error>> {
        self.parts.sort_unstable();
        let mut result = Ok(());
        let mut at = 0;
        for index in 0..self.parts.len() {
            let (offset, start, length) = self.parts[index];
            if self.run.is_empty() {
                at = offset;
            }
            self.run.extend_from_slice(&self.bytes[start..start + length]);
            let end = offset + length as u64;
            if self.parts.get(index + 1).is_none_or(|next| next.0 != end) {
                if let Err(error) = store.write_at(name, at, &self.run) {
                    result = Err(Error::Store { doing: Doing::Writing, name: name.to_string(), error });
                    break;
                }
                self.end = self.end.max(end);
                self.run.clear();
            }
        }
        self.run.clear();
        self.parts.clear();
        self.bytes.clear();
        result
    }
}
