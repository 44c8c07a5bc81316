//! Whole small files, one behind the other into a slot.
//!
//! Five system calls a file: open, status, read, status, close. The second status is what proves that the bytes
//! belong to one version: it is taken after the last byte was read and must equal what the scan saw.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use haul_model::op::MemberRead;
use haul_model::{Code, Entry, EntryId, Failure, Hash};
use rustix::io::{read, retry_on_intr};

use super::directories::{Directories, Location};
use super::files::{Noatime, check_version, open_regular};
use super::hashing::{ObjectHasher, PIECE_BYTES, whole_hash};
use crate::confine::{check_name, source_failure};
use crate::faults;

/// Reads files of one bundle. Neighbours mostly share their directory, so the last one stays at hand.
pub(crate) struct MemberReader<'a> {
    directories: &'a Directories,
    noatime: &'a Noatime,
    last: Option<(EntryId, Arc<OwnedFd>)>,
}

impl<'a> MemberReader<'a> {
    pub fn new(directories: &'a Directories, noatime: &'a Noatime) -> Self {
        MemberReader { directories, noatime, last: None }
    }

    /// Reads the file to `slot[offset..]`. Bytes behind `offset` are undefined after an error.
    pub fn read(&mut self, entry: &Entry, slot: &mut [u8], offset: usize) -> Result<MemberRead, Failure> {
        let space = usize::try_from(entry.size())
            .ok()
            .and_then(|size| slot.get_mut(offset..offset.checked_add(size)?))
            .ok_or(Failure::new(Code::Internal))?;
        let start = u32::try_from(offset).map_err(|_| Failure::new(Code::Internal))?;
        let location = self.locate(entry)?;
        let file = open_regular(self.directories, &location, self.noatime, entry)?;
        let hash = read_whole(&file, space)?;
        // Nothing lies between the first status and the second where nothing is read.
        if !space.is_empty() {
            check_version(&file, &entry.identity)?;
        }
        Ok(MemberRead { offset: start, hash })
    }

    fn locate<'e>(&mut self, entry: &'e Entry) -> Result<Location<'e>, Failure>
    where
        'a: 'e,
    {
        if let Some((parent, held)) = &self.last
            && *parent == entry.parent
        {
            check_name(&entry.name)?;
            return Ok(Location::held(Arc::clone(held), &entry.name));
        }
        let location = self.directories.locate(entry)?;
        self.last = location.held_directory().map(|held| (entry.parent, held));
        Ok(location)
    }
}

fn read_whole(file: impl AsFd, space: &mut [u8]) -> Result<Hash, Failure> {
    if space.len() <= PIECE_BYTES {
        read_exactly(&file, space)?;
        faults::source_bytes_read(space);
        let hash = whole_hash(space);
        faults::source_bytes_hashed(space);
        return Ok(hash);
    }
    let length = u32::try_from(space.len()).map_err(|_| Failure::new(Code::Internal))?;
    let mut hasher = ObjectHasher::new(0, length, true)?;
    for piece in space.chunks_mut(PIECE_BYTES) {
        read_exactly(&file, piece)?;
        faults::source_bytes_read(piece);
        hasher.update(piece);
        faults::source_bytes_hashed(piece);
    }
    Ok(hasher.finish())
}

fn read_exactly(file: &impl AsFd, mut rest: &mut [u8]) -> Result<(), Failure> {
    while !rest.is_empty() {
        faults::source_read().map_err(source_failure)?;
        match retry_on_intr(|| read(file, &mut *rest)).map_err(source_failure)? {
            0 => return Err(Code::SourceChanged.into()),
            count => rest = rest.get_mut(count..).ok_or(Failure::new(Code::Internal))?,
        }
    }
    Ok(())
}
