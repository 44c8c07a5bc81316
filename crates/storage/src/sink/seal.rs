//! The end of a file that arrived in objects: its root hash and its attributes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use haul_model::op::Progress;
use haul_model::{Code, Entry, Failure, Hash, HashKind, Token};
use rustix::fs::{self, SeekFrom};
use rustix::io::Errno;

use super::attributes::status;
use super::hashes::Cut;
use super::objects::Unfinished;
use super::table::entries_of;
use super::{PosixSink, lock, sums};
use crate::confine::sink_failure;
use crate::hashing::{Combiner, ObjectHasher, whole_hash};
use crate::leases::patiently;

/// Bytes of content read at once where an object is hashed again.
const REREAD_BYTES: usize = 256 << 10;

impl PosixSink {
    pub(super) fn seal(
        &self,
        entry: &Arc<Entry>,
        token: Token,
        object_bytes: u32,
        (root, progress): (Option<Hash>, &Progress),
    ) -> Result<Hash, Failure> {
        let mut reread = Reread { progress, given_up: &self.given_up, pieces: 0 };
        let file = self.unfinished(entry, token, object_bytes)?;
        let failures = file.failures();
        let contents = self.contents(&file).map_err(|failure| match failure {
            // What has its name is another file.
            Failure { code: Code::SinkWrite, errno: 0, .. } => Code::HashMismatch.into(),
            other => other,
        })?;
        let cut = Cut::of(entry, object_bytes, self.object_bytes)?;
        let present = status(contents.as_fd()).map_err(sink_failure)?;
        // Somebody has cut it off, or written to it: no later session could go on with it.
        if present.size != cut.size {
            return Err(Code::HashMismatch.into());
        }
        let found = match cut.count() {
            0 => whole_hash(self.hash, b""),
            // Of any bytes it is the same.
            _ if self.hash == HashKind::None => whole_hash(self.hash, b""),
            1 => {
                let gathered = lock(&file.hashes).gathered(0);
                gathered.map_or_else(|| self.reread(&contents, cut, 0, &mut reread), Ok)?
            }
            _ => self.combine(&file, &contents, cut, &mut reread)?,
        };
        if root.is_some_and(|root| root != found && !self.borrows(root)) {
            return Err(Code::HashMismatch.into());
        }
        self.set_attributes((contents.as_fd(), false), &file.directory, &entry.attributes)?;
        // Sealed again after a failed sync it relies on the one to come. If another has failed meanwhile, that one will, too.
        let _ = file.was_written(failures);
        file.sealed.store(true, Ordering::Release);
        Ok(found)
    }

    fn combine(
        &self,
        file: &Unfinished,
        contents: &OwnedFd,
        cut: Cut,
        reread: &mut Reread<'_>,
    ) -> Result<Hash, Failure> {
        let table = self.table(file);
        let told = table.as_deref().and_then(|table| self.is_of_this_inode(table, file, contents));
        let is_of_it = told.map(|(is_of_it, _)| is_of_it);
        let mut combiner = Combiner::new(self.hash);
        entries_of(table.as_deref(), cut, |index, entry| {
            let gathered = lock(&file.hashes).gathered(index);
            let saved = sums::decode(file.token, cut, index, entry);
            combiner.push(match gathered.or(saved.filter(|_| is_of_it == Some(true))) {
                Some(hash) => hash,
                // What is durable of a file with a table is in that, but for want of room. It is gone: the file, its device or its
                // server has gone back to what it was before.
                None if saved.is_none()
                    && is_of_it == Some(true)
                    && !lock(&file.hashes).is_unknown(index)
                    && (told == Some((true, false)) && sums::is_none(entry)
                        || is_hole(contents, cut.range(index))) =>
                {
                    return Err(Code::HashMismatch.into());
                }
                None => {
                    let found = self.reread(contents, cut, index, reread)?;
                    // Of a copy what was written later is missing, in the table that was copied with it, too.
                    let is_missing = saved.is_none() && is_of_it == Some(false);
                    if is_missing || saved.is_some_and(|saved| saved != found) {
                        return Err(Code::HashMismatch.into());
                    }
                    found
                }
            });
            Ok(())
        })?;
        combiner.root().ok_or_else(|| Code::Internal.into())
    }

    /// Hashes one object from the file.
    fn reread(
        &self,
        contents: &OwnedFd,
        cut: Cut,
        index: u64,
        told: &mut Reread<'_>,
    ) -> Result<Hash, Failure> {
        self.objects_reread.fetch_add(1, Ordering::Relaxed);
        let (offset, length) = cut.range(index);
        let mut hasher = ObjectHasher::at(self.hash, offset, cut.is_single());
        let mut buffer = vec![0; REREAD_BYTES];
        let mut done = 0;
        while done < length as usize {
            let part = REREAD_BYTES.min(length as usize - done);
            told.next()?;
            let read = self.hooks.before_reread();
            let read = read.and_then(|()| read_at(contents, &mut buffer[..part], offset + done as u64));
            let count = read.map_err(reread_failure)?;
            if count < part {
                return Err(Code::HashMismatch.into());
            }
            hasher.update(&buffer[..part]);
            done += part;
        }
        Ok(hasher.finish())
    }
}

/// How far the hashing of a whole file has come.
struct Reread<'a> {
    progress: &'a Progress,
    given_up: &'a AtomicBool,
    pieces: usize,
}

impl Reread<'_> {
    /// An error where nobody waits for it any more.
    fn next(&mut self) -> Result<(), Failure> {
        self.pieces += 1;
        let number = self.pieces & (u32::MAX as usize >> 1);
        let goes_on = self.progress.begins(number) && !self.given_up.load(Ordering::Relaxed);
        goes_on.then_some(()).ok_or(Failure::os(Code::SinkWrite, Errno::TIMEDOUT.raw_os_error()))
    }
}

/// Nothing was ever written there. No, where nobody can tell.
fn is_hole(contents: &OwnedFd, (offset, length): (u64, u32)) -> bool {
    match fs::seek(contents, SeekFrom::Data(offset)) {
        Ok(data) => data >= offset + u64::from(length),
        // No data behind it either.
        Err(errno) => errno == Errno::NXIO,
    }
}

/// What has gone bad on its medium is as good as other bytes than were sent: only to be written anew, in a new file.
fn reread_failure(errno: Errno) -> Failure {
    match errno {
        Errno::IO | Errno::BADMSG | Errno::UCLEAN => Failure::os(Code::HashMismatch, errno.raw_os_error()),
        _ => sink_failure(errno),
    }
}

/// Reads until `buffer` is full or the file ends; how many bytes.
pub(super) fn read_at(file: &OwnedFd, buffer: &mut [u8], offset: u64) -> rustix::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match patiently(file, || rustix::io::pread(file, &mut buffer[done..], offset + done as u64))? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}
