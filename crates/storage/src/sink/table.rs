//! Where the hashes of an unfinished file's objects are: in memory, and beside the file once they must outlive the process.
//!
//! A file of which all was written before anything was synced needs no table on disk: what is next is its final name. One that is
//! synced before it is whole gets its hashes into the table ([`sums`]) first, all that have gathered at once. A crash between the
//! sync of a whole file and its name costs that its objects are hashed again from the file, and they are few: no more than may
//! wait to be synced.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use haul_model::{Failure, Hash, HashKind, ObjectSet, Timestamp};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::attributes::status;
use super::hashes::Cut;
use super::objects::{PRIVATE, Unfinished};
use super::seal::read_at;
use super::sums::{Inode, Of};
use super::tokens::TempName;
use super::{PosixSink, lock, sums};
use crate::carry::write_all_at;
use crate::confine::{self, sink_failure};

/// The hashes of one file.
#[derive(Default)]
pub(super) struct Hashes {
    /// Of objects that were written and are not in the table. Where nothing is hashed they only say which.
    gathered: BTreeMap<u64, Hash>,
    /// Objects that threads are writing.
    writing: BTreeMap<u64, Writing>,
    /// Objects that were written, and nobody knows their hash.
    unknown: BTreeSet<u64>,
    /// A table that is made now has not those of all objects: of an earlier session, or of a table that was of no use.
    lacks_earlier: bool,
    /// It was synced before it was whole, so there may be a table.
    in_parts: bool,
    /// Which are in it; of no length before the first is.
    saved: ObjectSet,
    /// An earlier session may have left others in it.
    is_unread: bool,
    /// The table, if it is open.
    table: Option<Arc<OwnedFd>>,
}

/// How one object is written.
#[derive(Default)]
struct Writing {
    threads: u32,
    /// Two copies of it were written at a time: which bytes of which are there then, nobody knows.
    at_once: bool,
}

impl Hashes {
    /// An object is to be written: what was known of it holds no longer. Is there perhaps a table that knows something of it, too?
    pub fn begin(&mut self, index: u64) -> bool {
        self.gathered.remove(&index);
        self.unknown.remove(&index);
        let writing = self.writing.entry(index).or_default();
        writing.threads += 1;
        writing.at_once |= writing.threads > 1;
        self.is_unread || self.saved.contains(index)
    }

    /// It was written, and has this hash; or was not.
    pub fn end(&mut self, index: u64, hash: Option<Hash>) {
        let Some(writing) = self.writing.get_mut(&index) else { return };
        writing.threads -= 1;
        match hash {
            Some(hash) if !writing.at_once => _ = self.gathered.insert(index, hash),
            Some(_) => _ = self.unknown.insert(index),
            None => {}
        }
        if writing.threads == 0 {
            self.writing.remove(&index);
        }
    }

    /// These are in the table, or will be soon.
    fn save(&mut self, cut: Cut, indices: impl IntoIterator<Item = u64>) {
        if self.saved.total() == 0 {
            self.saved = ObjectSet::new(cut.count());
        }
        indices.into_iter().for_each(|index| _ = self.saved.insert(index));
    }

    /// They could not be put into the table, or not all of them: the next time, but for what is being written over meanwhile.
    fn keep(&mut self, gathered: BTreeMap<u64, Hash>) {
        for (index, hash) in gathered {
            if !self.writing.contains_key(&index) {
                self.gathered.insert(index, hash);
            }
        }
    }

    /// It was written by two threads at a time: what it is now tells the file alone.
    pub fn is_unknown(&self, index: u64) -> bool {
        self.unknown.contains(&index)
    }

    /// Of an object that is not in the table.
    pub fn gathered(&self, index: u64) -> Option<Hash> {
        self.gathered.get(&index).copied()
    }

    /// An earlier session may have left one.
    pub fn has_table(&mut self) {
        (self.in_parts, self.is_unread, self.lacks_earlier) = (true, true, true);
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
    /// Before a sync: what has gathered goes into the table, unless the file is whole. What finds no room there comes with a later
    /// group, or is hashed again from the file; this fails where a table would stay that does not say so.
    pub(super) fn save_hashes(&self, file: &Unfinished) -> Result<(), Failure> {
        let cut = file.cut();
        let _alone = lock(&file.table_changes);
        let (gathered, lacks) = {
            let mut hashes = lock(&file.hashes);
            if cut.is_single() || hashes.is_whole(cut) {
                return Ok(());
            }
            hashes.in_parts = true;
            let gathered = std::mem::take(&mut hashes.gathered);
            hashes.save(cut, gathered.keys().copied());
            (gathered, !hashes.unknown.is_empty())
        };
        if self.hash == HashKind::None {
            return Ok(());
        }
        let written = if gathered.is_empty() { Ok(()) } else { self.write_table(file, &gathered) };
        if written.is_err() {
            lock(&file.hashes).keep(gathered);
        }
        if written.is_err() || lacks { self.tell_lack(file) } else { Ok(()) }
    }

    /// What is durable of this file may have no hash in the table, which says so, or goes.
    fn tell_lack(&self, file: &Unfinished) -> Result<(), Failure> {
        // It has its place already; but a file system that writes nothing in place (btrfs) has no room for that either.
        match self.write_of(file, |of| Of { lacks: true, ..of }) {
            Ok(_) => Ok(()),
            Err(_) => self.drop_table(file),
        }
    }

    /// There is none, or none that can be used, and nobody is to believe it later.
    fn drop_table(&self, file: &Unfinished) -> Result<(), Failure> {
        let held = self.directories.descriptor(&file.directory)?;
        match fs::unlinkat(&held, TempName::sums(file.token).as_c_str(), AtFlags::empty()) {
            // A directory is nobody's table.
            Ok(()) | Err(Errno::NOENT | Errno::ISDIR | Errno::PERM) => {
                let mut hashes = lock(&file.hashes);
                (hashes.is_unread, hashes.saved, hashes.table) = (false, ObjectSet::default(), None);
                hashes.lacks_earlier = true;
                Ok(())
            }
            Err(errno) => Err(sink_failure(errno)),
        }
    }

    /// Changes what the table says of itself. No, where there is none that says anything.
    fn write_of(&self, file: &Unfinished, change: impl FnOnce(Of) -> Of) -> Result<bool, Failure> {
        let Some(table) = self.table(file) else { return Ok(false) };
        let Some(of) = table_of(&table, file) else { return Ok(false) };
        let entry = sums::encode_of(file.token, file.cut(), change(of));
        let written = self.hooks.before_table();
        written.and_then(|()| write_all_at(&table, &entry, place_of(file.cut()))).map_err(sink_failure)?;
        Ok(true)
    }

    fn write_table(&self, file: &Unfinished, hashes: &BTreeMap<u64, Hash>) -> Result<(), Failure> {
        let table = match self.table(file) {
            Some(table) => table,
            None => self.make_table(file)?,
        };
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for (index, hash) in hashes {
            let entry = sums::encode(file.token, file.cut(), *index, *hash);
            let place = index * sums::ENTRY_BYTES as u64;
            match runs.last_mut() {
                Some((start, run)) if *start + run.len() as u64 == place => run.extend(entry),
                _ => runs.push((place, entry.to_vec())),
            }
        }
        let put = |(place, run): &(u64, Vec<u8>)| {
            self.hooks.before_table()?;
            write_all_at(&table, run, *place)
        };
        runs.iter().try_for_each(put).map_err(sink_failure)
    }

    /// Before other bytes may come where an object was: what the table says of it would be said of them.
    pub(super) fn forget_hash(&self, file: &Unfinished, index: u64) -> Result<(), Failure> {
        let _alone = lock(&file.table_changes);
        let Some(table) = self.table(file) else {
            return self.drop_table(file);
        };
        let cut = file.cut();
        if lock(&file.hashes).is_unread {
            let mut known = Vec::new();
            entries_of(Some(&table), cut, |index, entry| {
                known.extend(sums::decode(file.token, cut, index, entry).map(|_| index));
                Ok(())
            })?;
            let mut hashes = lock(&file.hashes);
            hashes.save(cut, known);
            hashes.is_unread = false;
        }
        if lock(&file.hashes).saved.contains(index) {
            let place = index * sums::ENTRY_BYTES as u64;
            write_all_at(&table, &sums::FORGOTTEN, place).map_err(sink_failure)?;
            lock(&file.hashes).saved.remove(index);
        }
        Ok(())
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
        let is_own = file.directory.file_system.is_own(now.uid, held.as_fd(), &self.tokens).unwrap_or(false);
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
        if let Some(inode) = self.contents(file).ok().and_then(|contents| inode(&contents)) {
            let lacks = lock(&file.hashes).lacks_earlier;
            let entry = sums::encode_of(file.token, file.cut(), Of { inode, lacks });
            let written = self.hooks.before_table();
            let written = written.and_then(|()| write_all_at(&made, &entry, place_of(file.cut())));
            written.map_err(|errno| {
                // Later ones would go into one that does not say what it is of.
                let _ = fs::unlinkat(&held, name.as_c_str(), AtFlags::empty());
                sink_failure(errno)
            })?;
        }
        let made = Arc::new(made);
        lock(&file.hashes).table = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Whether a table is of this very file, and not of one that this is a copy of: what was written after it was copied would be
    /// missing here, and in the table. And whether it lacks some hashes. None where it does not say.
    pub(super) fn is_of_this_inode(
        &self,
        table: &OwnedFd,
        file: &Unfinished,
        contents: &OwnedFd,
    ) -> Option<(bool, bool)> {
        let Of { inode: written_to, lacks } = table_of(table, file)?;
        Some((inode(contents).is_some_and(|found| found.is(&written_to)), lacks))
    }

    /// From now on nothing of the file is believed that does not have its hash in the table, whoever goes on with it. No, where there is
    /// no table.
    pub(super) fn distrust(&self, file: &Unfinished) -> Result<bool, Failure> {
        let _alone = lock(&file.table_changes);
        let none = Inode { number: 0, born: None };
        if file.cut().is_single() {
            return Ok(false);
        }
        self.write_of(file, |of| Of { inode: none, ..of })
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

fn inode(contents: &OwnedFd) -> Option<Inode> {
    let told = fs::statx(contents, c"", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::BTIME).ok()?;
    let (born, is_told) = (told.stx_btime, told.stx_mask & StatxFlags::BTIME.bits() != 0);
    let born = is_told.then_some(Timestamp { seconds: born.tv_sec, nanos: born.tv_nsec });
    Some(Inode { number: told.stx_ino, born })
}

/// What the table says of itself.
fn table_of(table: &OwnedFd, file: &Unfinished) -> Option<Of> {
    let mut entry = [0; sums::ENTRY_BYTES];
    read_at(table, &mut entry, place_of(file.cut())).ok()?;
    sums::decode_of(file.token, file.cut(), &entry)
}

fn place_of(cut: Cut) -> u64 {
    cut.count() * sums::ENTRY_BYTES as u64
}

/// Entries of a table that are read at once.
const ENTRIES: u64 = 1024;

/// Each entry of a table, in order. What cannot be read, or is not there, does not pass its check.
pub(super) fn entries_of(
    table: Option<&OwnedFd>,
    cut: Cut,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut entries = vec![0; ENTRIES.min(cut.count()) as usize * sums::ENTRY_BYTES];
    for first in (0..cut.count()).step_by(ENTRIES as usize) {
        let count = ENTRIES.min(cut.count() - first);
        entries.fill(0);
        let wanted = &mut entries[..count as usize * sums::ENTRY_BYTES];
        if let Some(table) = table {
            let _ = read_at(table, wanted, first * sums::ENTRY_BYTES as u64);
        }
        for (index, entry) in (first..).zip(wanted.chunks_exact(sums::ENTRY_BYTES)) {
            each(index, entry)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_object_that_two_threads_write_at_a_time_no_hash_is_known() {
        let [one, other] = [1, 2].map(|byte| Hash([byte; 32]));
        let mut hashes = Hashes::default();
        hashes.begin(5);
        hashes.end(5, Some(one));
        assert_eq!(hashes.gathered(5), Some(one));
        hashes.begin(5);
        assert_eq!(hashes.gathered(5), None, "it is being written over");
        hashes.begin(5);
        hashes.end(5, Some(one));
        hashes.end(5, Some(other));
        assert_eq!(hashes.gathered(5), None);
        hashes.begin(5);
        hashes.end(5, None);
        assert_eq!(hashes.gathered(5), None, "that failed");
        hashes.begin(5);
        hashes.end(5, Some(other));
        assert_eq!(hashes.gathered(5), Some(other));
    }
}
