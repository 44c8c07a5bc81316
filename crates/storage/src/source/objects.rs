//! One object of a large file into a slot.

use std::os::fd::OwnedFd;

use haul_buffers::{Lease, Pool};
use haul_model::limits::GENTLE_PIECE_BYTES;
use haul_model::{Code, Failure, Hash, HashKind};
use rustix::io::{Errno, pread};

use super::files::OpenFile;
use super::mapping;
use super::status::Status;
use crate::confine::source_failure;
use crate::engine::{Attempt, Way};
use crate::faults;
use crate::hashing::{ObjectHasher, PIECE_BYTES};
use crate::leases::patiently;
use crate::piece::with_piece;

/// Where nothing is copied, so much is hashed at a time.
const SEEN_BYTES: usize = 512 << 10;

/// One object, as [`SourceOp::ReadObject`](haul_model::op::SourceOp::ReadObject) asks for it.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub offset: u64,
    pub length: u32,
    pub single: bool,
    /// In small pieces: others wait for the same target.
    pub gently: bool,
}

impl Wanted {
    /// What is read, then hashed, at a time.
    pub fn piece_bytes(self) -> usize {
        if self.gently { GENTLE_PIECE_BYTES } else { PIECE_BYTES }
    }
}

/// Reads the object to the start of the slot, the way that the attempt is for, and hashes it piece by piece.
///
/// `SourceChanged` where the file ends before: the scan saw it longer.
pub(crate) fn read_object(
    kind: HashKind,
    file: &OpenFile,
    wanted: Wanted,
    attempt: &mut Attempt<'_>,
    (lease, pool): (&mut Lease<'_>, &Pool),
) -> Result<Hash, Failure> {
    let Wanted { offset, length, single, .. } = wanted;
    let mut hasher = ObjectHasher::new(kind, offset, length, single)?;
    let length = length as usize;
    if lease.len() < length {
        return Err(Code::Internal.into());
    }
    let mut hash = |piece: &mut [u8]| {
        faults::source_bytes_read(piece);
        hasher.update(piece);
        faults::source_bytes_hashed(piece);
    };
    let mut done = 0;
    if attempt.way() != Way::USUAL {
        let from = (&file.reach, &*file.descriptor);
        done = attempt
            .read(from, offset, length, (lease, pool), faults::source_read, &mut hash)
            .map_err(source_failure)?;
    }
    let mut at = offset + done as u64;
    for piece in lease[done..length].chunks_mut(wanted.piece_bytes()) {
        read_piece(&file.descriptor, at, piece, faults::source_read)?;
        hash(piece);
        at += piece.len() as u64;
    }
    Ok(hasher.finish())
}

/// As [`read_object`], but the bytes are only hashed: through a piece of memory that stays in the core's cache, or where they
/// are, if that is cheaper.
pub(crate) fn hash_object(kind: HashKind, file: &OwnedFd, wanted: Wanted) -> Result<Hash, Failure> {
    let Wanted { offset, length, single, .. } = wanted;
    faults::source_read().map_err(source_failure)?;
    if kind == HashKind::None {
        return ObjectHasher::new(kind, offset, length, single).map(ObjectHasher::finish);
    }
    let new = || ObjectHasher::new(kind, offset, length, single);
    let read = |at, piece: &mut [u8]| read_piece(file, at, piece, faults::source_read);
    hash_in_place(file, (offset, length), wanted.piece_bytes(), new, read, || Ok(()))
}

/// The hash of a range of a file, by `read` through a piece of memory that stays in the core's cache, or where it is, if that is
/// cheaper. `pause` is called between pieces, and may end it.
pub(crate) fn hash_in_place(
    file: &OwnedFd,
    (offset, length): (u64, u32),
    piece_bytes: usize,
    new: impl Fn() -> Result<ObjectHasher, Failure>,
    read: impl Fn(u64, &mut [u8]) -> Result<(), Failure>,
    pause: impl Fn() -> Result<(), Failure>,
) -> Result<Hash, Failure> {
    let end = offset.saturating_add(length.into());
    let mut hasher = new()?;
    let status = Status::of(file).map_err(source_failure)?;
    // A look at a hole through a mapping would make a page of it.
    let mut paused = Ok(());
    let seen = !status.has_holes()
        && mapping::with_bytes(file, &status, (offset, length as usize), |bytes| {
            paused = bytes.chunks(piece_bytes.max(SEEN_BYTES)).try_for_each(|piece| {
                hasher.update(piece);
                pause()
            });
        });
    paused?;
    // What a mapping shows between the end of a file and the end of its last page are zeros, not an error.
    if seen && end <= Status::of(file).map_err(source_failure)?.identity().size {
        return Ok(hasher.finish());
    }
    let mut hasher = new()?;
    with_piece(piece_bytes, |bytes| {
        let mut at = offset;
        while at < end {
            let piece = &mut bytes[..piece_bytes.min((end - at) as usize)];
            read(at, piece)?;
            hasher.update(piece);
            at += piece.len() as u64;
            pause()?;
        }
        Ok(hasher.finish())
    })
}

/// All of it. `before` is asked before each call.
pub(super) fn read_piece(
    file: &OwnedFd,
    offset: u64,
    piece: &mut [u8],
    before: impl Fn() -> Result<(), Errno>,
) -> Result<(), Failure> {
    let mut filled = 0;
    while filled < piece.len() {
        before().map_err(source_failure)?;
        let at = offset + filled as u64;
        match patiently(file, || pread(file, &mut piece[filled..], at)).map_err(source_failure)? {
            0 => return Err(Code::SourceChanged.into()),
            count => filled += count,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashing::object_hash;
    use crate::huge_pages::with_huge_pages;
    use rustix::io::pwrite;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    const OBJECT: usize = 1 << 20;

    fn whole_and_cut_short(directory: &Path, huge: bool) {
        let bytes: Vec<u8> = (0..4 * OBJECT as u32).map(|at| (at / 3) as u8 ^ (at >> 13) as u8).collect();
        let file = File::create_new(directory.join("file")).unwrap();
        pwrite(&file, &bytes, 0).unwrap();
        let file = OwnedFd::from(File::open(directory.join("file")).unwrap());
        let status = Status::of(&file).unwrap();
        assert_eq!(mapping::with_bytes(&file, &status, (0, OBJECT), |_| ()), huge);
        for kind in [HashKind::Blake3, HashKind::Xxh3] {
            for gently in [false, true] {
                for (at, object) in bytes.chunks(OBJECT).enumerate() {
                    let offset = (at * OBJECT) as u64;
                    let wanted = Wanted { offset, length: OBJECT as u32, single: false, gently };
                    let expected = object_hash(kind, object, offset, false);
                    assert_eq!(hash_object(kind, &file, wanted), Ok(expected), "{kind:?} at {offset}");
                }
            }
        }
        // In the middle of a page: what a mapping shows of the rest of it is no part of the file.
        File::options()
            .write(true)
            .open(directory.join("file"))
            .unwrap()
            .set_len(OBJECT as u64 + 100)
            .unwrap();
        let wanted = Wanted { offset: OBJECT as u64, length: 4096, single: false, gently: false };
        assert_eq!(hash_object(HashKind::Xxh3, &file, wanted), Err(Code::SourceChanged.into()));
    }

    #[test]
    fn what_stays_in_its_file_is_hashed_as_it_is() {
        whole_and_cut_short(tempfile::tempdir().unwrap().path(), false);
    }

    #[test]
    fn a_hole_stays_one_where_pages_are_huge() {
        let directory = tempfile::tempdir().unwrap();
        with_huge_pages(directory.path(), || {
            let file = File::create_new(directory.path().join("file")).unwrap();
            file.set_len(16 * OBJECT as u64).unwrap();
            pwrite(&file, b"x", 0).unwrap();
            let file = OwnedFd::from(File::open(directory.path().join("file")).unwrap());
            let blocks = || std::fs::metadata(directory.path().join("file")).unwrap().blocks();
            let before = blocks();
            let wanted = Wanted { offset: 8 << 20, length: 8 << 20, single: false, gently: false };
            let zeros = vec![0; 8 << 20];
            assert_eq!(
                hash_object(HashKind::Blake3, &file, wanted),
                Ok(object_hash(HashKind::Blake3, &zeros, 8 << 20, false))
            );
            assert_eq!(blocks(), before);
        });
    }

    #[test]
    fn so_it_is_where_pages_are_huge() {
        let directory = tempfile::tempdir().unwrap();
        with_huge_pages(directory.path(), || whole_and_cut_short(directory.path(), true));
    }
}
