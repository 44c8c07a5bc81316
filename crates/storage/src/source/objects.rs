//! One object of a large file into a slot.

use std::os::fd::OwnedFd;

use haul_model::{Code, Failure, Hash};
use rustix::io::{pread, retry_on_intr};

use super::hashing::{ObjectHasher, PIECE_BYTES};
use crate::confine::source_failure;
use crate::faults;

/// Reads `length` bytes at `offset` to the start of `slot` and hashes them piece by piece.
///
/// `SourceChanged` where the file ends before: the scan saw it longer.
pub(crate) fn read_object(
    file: &OwnedFd,
    offset: u64,
    length: u32,
    single: bool,
    slot: &mut [u8],
) -> Result<Hash, Failure> {
    let mut hasher = ObjectHasher::new(offset, length, single)?;
    let space = slot.get_mut(..length as usize).ok_or(Failure::new(Code::Internal))?;
    let mut at = offset;
    for piece in space.chunks_mut(PIECE_BYTES) {
        let mut filled = 0;
        while filled < piece.len() {
            faults::source_read().map_err(source_failure)?;
            match retry_on_intr(|| pread(file, &mut piece[filled..], at)).map_err(source_failure)? {
                0 => return Err(Code::SourceChanged.into()),
                count => {
                    filled += count;
                    at += count as u64;
                }
            }
        }
        faults::source_bytes_read(piece);
        hasher.update(piece);
        faults::source_bytes_hashed(piece);
    }
    Ok(hasher.finish())
}
