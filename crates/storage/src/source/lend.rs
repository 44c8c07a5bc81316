//! Lending: a sink in the same process takes contents from the source's files itself.
//!
//! Between two ends in one process bytes would be read into a slot, copied into another and written from there. Instead the
//! source says [`Hash::LENT`](haul_model::Hash::LENT) of an object or a bundle without a look at its bytes, and the sink's
//! thread takes them from here. Whatever it finds wrong with the source it answers as if the bytes had arrived damaged: it is
//! asked for them again, and the second time they go through a slot, where the source's own thread sees what is wrong.
//!
//! The sink also sees here what a symlink leads to where it is, before it takes the place of that.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use haul_buffers::Pool;
use haul_model::op::MemberRead;
use haul_model::{Code, Entry, Failure, Hash, SlotId};
use rustix::fs::{Mode, OFlags};

use super::PosixSource;
use super::Status;
use super::files::{OpenFile, check_version};
use super::members::{MemberReader, Staying};
use crate::absent::Passing;
use crate::local;

/// What a sink takes contents from. Entries are those of the source's scan.
#[derive(Clone)]
pub struct Lender(Arc<PosixSource>);

impl Lender {
    /// Contents only of a source with [`SourceOptions::lend`](super::SourceOptions::lend).
    pub fn new(source: &Arc<PosixSource>) -> Lender {
        Lender(Arc::clone(source))
    }

    /// The file whose objects the source has lent; none if it has been released since.
    pub(crate) fn file(&self, entry: &Entry) -> Option<Arc<OpenFile>> {
        self.0.files.get(entry)
    }

    /// Device and inode number of what a symlink leads to at the source. Looked at only.
    pub(crate) fn led_to(&self, entry: &Entry) -> Option<(u64, u64)> {
        let location = self.0.directories.locate(entry).ok()?;
        let status = Status::of_name(location.directory(), location.name, true).ok()?;
        Some((status.place().device, status.place().inode))
    }

    /// Opens members of one bundle.
    pub(crate) fn members(&self) -> LentMembers<'_> {
        let PosixSource { directories, noatime, hash, .. } = &*self.0;
        let reader = MemberReader::new(directories, noatime, *hash, Staying::default());
        LentMembers { reader, lendable: None }
    }
}

/// Whether files at `path` are lent to a sink in the same process; true where nothing is.
pub fn is_lent(path: &Path) -> bool {
    match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(held) => local::may_be_lent(&held).unwrap_or(false),
        Err(_) => true,
    }
}

impl fmt::Debug for Lender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lender")
    }
}

/// Files of one bundle.
pub(crate) struct LentMembers<'a> {
    reader: MemberReader<'a>,
    /// Whether files of the file system that was met last may be.
    lendable: Option<(u64, bool)>,
}

impl LentMembers<'_> {
    /// The file, in the version that the scan has seen.
    pub fn open(&mut self, entry: &Entry) -> Result<(OwnedFd, Status), Failure> {
        self.reader.open(entry)
    }

    /// Its directory is on a file system whose files may be, but it may be mounted there alone.
    pub fn may_be_lent(&mut self, file: &OwnedFd, status: &Status) -> bool {
        let device = status.place().device;
        let known = self.lendable.filter(|(known, _)| *known == device);
        let (_, lendable) = known.unwrap_or_else(|| (device, local::may_be_lent(file).unwrap_or(false)));
        self.lendable = Some((device, lendable));
        lendable
    }

    /// Before it is read.
    pub fn passing<'f>(&mut self, file: &'f OwnedFd, status: &Status) -> Passing<&'f OwnedFd> {
        self.reader.passing(file, status)
    }

    /// Is it still that version, now that all of it was read?
    pub fn check(&self, file: &OwnedFd, entry: &Entry) -> Result<(), Failure> {
        check_version(file, &entry.identity).map(drop)
    }
}

impl PosixSource {
    /// Lends a bundle: how many bytes its members have, and where each would be. `None` if one of them is to be read here.
    pub(super) fn lend_members(
        &self,
        slot: SlotId,
        members: &[Arc<Entry>],
        pool: &Pool,
    ) -> Option<(u32, Vec<Result<MemberRead, Failure>>)> {
        let mut used = 0u32;
        let mut last = None;
        let mut results = Vec::with_capacity(members.len());
        for entry in members {
            // A file system that is not known may take its time: it has the source's threads, which may hang.
            if last != Some(entry.parent) {
                let held = self.directories.locate(entry).ok()?.held_directory()?;
                if !local::may_be_lent(&held).unwrap_or(false) {
                    return None;
                }
                last = Some(entry.parent);
            }
            let offset = used;
            used = used.checked_add(u32::try_from(entry.size()).ok()?)?;
            results.push(Ok(MemberRead { offset, hash: Some(Hash::LENT) }));
        }
        let mut lease = pool.lease(slot)?;
        if lease.len() < used as usize {
            return None;
        }
        lease.set_file_ranges(Vec::new());
        lease.set_lent(true);
        Some((used, results))
    }

    /// Lends an object of a file that is open.
    pub(super) fn lend_object(&self, length: u32, slot: SlotId, pool: &Pool) -> Result<Hash, Failure> {
        let mut lease = pool.lease(slot).ok_or(Failure::new(Code::Internal))?;
        if lease.len() < length as usize {
            return Err(Code::Internal.into());
        }
        lease.set_file_ranges(Vec::new());
        lease.set_lent(true);
        Ok(Hash::LENT)
    }
}
