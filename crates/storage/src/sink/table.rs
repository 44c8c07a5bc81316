//! Where the hashes of an unfinished file's objects are: in memory, and beside the file once they must outlive the process.
//!
//! A file of which all was written before anything was synced needs no table on disk: what is next is its final name. One that is
//! synced before it is whole gets its hashes into the table ([`sums`]) first, all that have gathered at once. A crash between the
//! sync of a whole file and its name costs that its objects are hashed again from the file, and they are few: no more than may
//! wait to be synced.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use haul_model::{Failure, Hash, HashKind};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};

use super::attributes::status;
use super::hashes::Cut;
use super::objects::{PRIVATE, Unfinished};
use super::tokens::TempName;
use super::{PosixSink, lock, sums};
use crate::carry::write_all_at;
use crate::confine::{self, sink_failure};

/// The hashes of one file.
#[derive(Default)]
pub(super) struct Hashes {
    /// Of objects that were written and are not in the table. Where nothing is hashed they only say which.
    gathered: BTreeMap<u64, Hash>,
    /// It was synced before it was whole, so there may be a table.
    in_parts: bool,
    /// The table, if it is open.
    table: Option<Arc<OwnedFd>>,
}

impl Hashes {
    /// An object was written.
    pub fn gather(&mut self, index: u64, hash: Hash) {
        self.gathered.insert(index, hash);
    }

    /// Of an object that is not in the table.
    pub fn gathered(&self, index: u64) -> Option<Hash> {
        self.gathered.get(&index).copied()
    }

    /// An earlier session may have left one.
    pub fn has_table(&mut self) {
        self.in_parts = true;
    }

    /// What was not synced is lost.
    pub fn lose(&mut self) {
        self.gathered.clear();
    }

    /// See [`Unfinished::is_whole`].
    pub fn is_whole(&self, cut: Cut) -> bool {
        !self.in_parts && self.gathered.len() as u64 == cut.count()
    }

    /// Closes the table; it is opened again when needed.
    pub fn close(&mut self) {
        self.table = None;
    }

    /// The table, if it is open now.
    pub fn open_table(&self) -> Option<Arc<OwnedFd>> {
        self.table.clone()
    }
}

impl PosixSink {
    /// Before a sync: what has gathered goes into the table, unless the file is whole.
    pub(super) fn save_hashes(&self, file: &Unfinished) -> Result<(), Failure> {
        let cut = file.cut();
        let gathered = {
            let mut hashes = lock(&file.hashes);
            if cut.is_single() || hashes.is_whole(cut) {
                return Ok(());
            }
            hashes.in_parts = true;
            std::mem::take(&mut hashes.gathered)
        };
        if gathered.is_empty() || self.hash == HashKind::None {
            return Ok(());
        }
        let table = match self.table(file) {
            Some(table) => table,
            None => self.make_table(file)?,
        };
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for (index, hash) in gathered {
            let entry = sums::encode(file.token, cut, index, hash);
            let place = index * sums::ENTRY_BYTES as u64;
            match runs.last_mut() {
                Some((start, run)) if *start + run.len() as u64 == place => run.extend(entry),
                _ => runs.push((place, entry.to_vec())),
            }
        }
        runs.iter().try_for_each(|(place, run)| write_all_at(&table, run, *place)).map_err(sink_failure)
    }

    /// The table of this file, if there is one that can be used.
    pub(super) fn table(&self, file: &Unfinished) -> Option<Arc<OwnedFd>> {
        let mut hashes = lock(&file.hashes);
        if !hashes.in_parts || hashes.table.is_some() {
            return hashes.table.clone();
        }
        let held = self.directories.descriptor(&file.directory).ok()?;
        let (name, flags) = (TempName::sums(file.token), OFlags::RDWR | OFlags::NONBLOCK);
        let open = || confine::open_beneath(held.as_fd(), name.as_bytes(), flags, Mode::empty());
        let table = self.directories.retry_without_cache(open).ok()?;
        let now = status(table.as_fd()).ok()?;
        let is_own = file.directory.file_system.is_own(now.uid, held.as_fd(), &self.tokens);
        if now.kind != FileType::RegularFile || now.links != 1 || !is_own {
            return None;
        }
        hashes.table = Some(Arc::new(table));
        hashes.table.clone()
    }

    fn make_table(&self, file: &Unfinished) -> Result<Arc<OwnedFd>, Failure> {
        let held = self.directories.descriptor(&file.directory)?;
        let (name, flags) = (TempName::sums(file.token), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL);
        // Whatever is there is nothing of ours: without a table the objects are hashed again from the file.
        let _ = fs::unlinkat(&held, name.as_c_str(), AtFlags::empty());
        let create = || confine::open_beneath(held.as_fd(), name.as_bytes(), flags, PRIVATE);
        let made = self.directories.retry_without_cache(create).map_err(sink_failure)?;
        let made = Arc::new(made);
        lock(&file.hashes).table = Some(Arc::clone(&made));
        Ok(made)
    }

    /// The file goes, or has its final name.
    pub(super) fn remove_table(&self, file: &Unfinished) {
        if file.cut().count() > 1
            && lock(&file.hashes).in_parts
            && let Ok(held) = self.directories.descriptor(&file.directory)
        {
            let _ = fs::unlinkat(&held, TempName::sums(file.token).as_c_str(), AtFlags::empty());
        }
    }
}
