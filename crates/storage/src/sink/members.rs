//! Small files, many at once: each is checked, written under a temporary name or none and given its attributes.
//!
//! This is the path that millions of files take, so each system call counts: create, write, mode, times, close (and
//! later rename). No path is built, nothing is looked up that the previous member had too. Where nothing becomes more durable than it
//! is, in memory, they get their final names here as well.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use haul_buffers::Pool;
use haul_model::op::{Landed, MemberWrite, MemberWritten, Progress};
use haul_model::profile::Stage;
use haul_model::{Attributes, Code, Entry, EntryId, Failure, Kind, SlotId, Token};
use rustix::fs::{self, OFlags};
use rustix::io::Errno;

use super::directories::Directory;
use super::faults::{Reach, SyncPoint};
use super::file_systems::SyncMode;
use super::made::Made;
use super::objects::PRIVATE;
use super::{Contents, PosixSink, State, attributes, lock};
use crate::confine::sink_failure;
use crate::faults;
use crate::hashing::{TOGETHER_BYTES, are_better_together, is_object, whole_hashes};
use crate::source::{Lender, LentMembers};

/// A member that is written.
pub(super) struct Member {
    pub entry: Arc<Entry>,
    pub token: Token,
    pub directory: Arc<Directory>,
    /// Open until it is synced, where that is done file by file.
    pub descriptor: Option<OwnedFd>,
    /// It is this, and has no name yet.
    pub nameless: Option<OwnedFd>,
    /// It is durable, as far as its own descriptor told.
    pub synced: bool,
    /// [`FileSystem::errors`](super::file_systems::FileSystem::errors) before it was written.
    pub errors: u64,
}

/// The directory of the previous member: most bundles have few.
type Last = Option<(EntryId, Arc<Directory>, Arc<OwnedFd>)>;

impl PosixSink {
    pub(super) fn write_members(
        &self,
        members: Vec<MemberWrite>,
        slot: SlotId,
        length: u32,
        pool: &Pool,
        progress: &Progress,
    ) -> Vec<MemberWritten> {
        // Nobody may write into the slot now, and it exists: else a master is wrong.
        let Some(reading) = pool.read(slot) else {
            return members.iter().map(|_| Err(Code::Internal.into())).collect();
        };
        let bytes = &reading[..reading.len().min(length as usize)];
        let mut results: Vec<MemberWritten> = Vec::with_capacity(members.len());
        let mut written = Vec::with_capacity(members.len());
        let mut last = None;
        let mut lent = self.lender.as_ref().map(Lender::members);
        for (number, (member, checked)) in self.checked(members, bytes).enumerate() {
            if !progress.begins(number) {
                break;
            }
            let id = member.entry.id;
            let result = self.write_member(member, checked, bytes, &mut last, lent.as_mut());
            results.push(result.map(|(state, landed)| {
                written.push((number, id, state));
                landed
            }));
        }
        let (mut replaced, mut complete) = (Vec::new(), Vec::new());
        let mut states = lock(&self.states);
        if !progress.ends() {
            drop(states);
            // They were given up, or are being made anew.
            written.into_iter().for_each(|(.., state)| self.remove_state(state));
            return results;
        }
        // From here on the answer is waited for.
        for (number, id, state) in written {
            replaced.extend(match state {
                State::Member(member) if self.is_as_durable_as_can_be(&member) => {
                    complete.push((number, member));
                    states.remove(&id)
                }
                state => states.insert(id, state),
            });
        }
        drop(states);
        // The same member again: its earlier copy goes.
        replaced.into_iter().for_each(|state| self.remove_state(state));
        // A part of making them: whoever waits for the one waits for the other.
        let mut last = None;
        for (number, member) in complete {
            results[number] = self.name_in_memory(member, &mut last);
        }
        results
    }

    /// Members with what [`PosixSink::check`] says of them, just before they are written.
    fn checked(
        &self,
        members: Vec<MemberWrite>,
        bytes: &[u8],
    ) -> impl Iterator<Item = (MemberWrite, Option<bool>)> {
        let mut members = members.into_iter();
        let next = move || Some(together(&mut members)).filter(|some| !some.is_empty());
        std::iter::from_fn(next).flat_map(|some| {
            let checked = self.check(&some, bytes);
            some.into_iter().zip(checked)
        })
    }

    /// Of members that take less time to hash together, whether they have arrived as they were announced. The others are hashed when
    /// they are written, or lent and not in the slot.
    fn check(&self, members: &[MemberWrite], bytes: &[u8]) -> Vec<Option<bool>> {
        let is_hashed = |member: &MemberWrite| {
            let bytes = contents(member, bytes)?;
            (are_better_together(self.hash, bytes.len()) && !self.borrows(member.hash)).then_some(bytes)
        };
        let hashed: Vec<_> = members.iter().map(is_hashed).collect();
        let together: Vec<_> = hashed.iter().copied().flatten().collect();
        let mut hashes = whole_hashes(self.hash, &together).into_iter();
        let is_intact =
            |(member, bytes): (&MemberWrite, Option<_>)| bytes.map(|_| hashes.next() == Some(member.hash));
        members.iter().zip(hashed).map(is_intact).collect()
    }

    /// It has no name, and all that is left to do is to give it one.
    fn is_as_durable_as_can_be(&self, member: &Member) -> bool {
        member.nameless.is_some() && member.directory.file_system.in_memory && !self.hooks.watches_syncs()
    }

    /// The descriptor of a directory, which mostly is that of the member before.
    fn held_again<'a>(
        &self,
        directory: &Arc<Directory>,
        last: &'a mut Option<(Arc<Directory>, Arc<OwnedFd>)>,
    ) -> Result<BorrowedFd<'a>, Failure> {
        let is_known = |(known, _): &(Arc<Directory>, _)| Arc::ptr_eq(known, directory);
        if !last.as_ref().is_some_and(is_known) {
            *last = Some((Arc::clone(directory), self.directories.descriptor(directory)?));
        }
        last.as_ref().map(|(_, held)| held.as_fd()).ok_or_else(|| Code::Internal.into())
    }

    /// Its final name. Where that fails nothing of it stays.
    fn name_in_memory(
        &self,
        member: Member,
        last: &mut Option<(Arc<Directory>, Arc<OwnedFd>)>,
    ) -> MemberWritten {
        let Member { entry, token, directory, nameless: Some(file), .. } = member else {
            return Err(Code::Internal.into());
        };
        let named = self
            .held_again(&directory, last)
            .and_then(|held| self.name_at_last(&file, &entry, token, (&directory, held)));
        self.close_nameless(file);
        named.map(|()| Landed::Named)
    }

    /// The state that the member is in then, and how far it has come. `checked`: whether it is intact, if that is known.
    fn write_member(
        &self,
        member: MemberWrite,
        checked: Option<bool>,
        bytes: &[u8],
        last: &mut Last,
        lent: Option<&mut LentMembers<'_>>,
    ) -> Result<(State, Landed), Failure> {
        let bytes = contents(&member, bytes).ok_or(Code::Protocol)?;
        let MemberWrite { entry, hash, .. } = member;
        let lent = lent.filter(|_| self.borrows(hash));
        let is_intact = || lent.is_some() || is_object(self.hash, bytes, 0, true, hash);
        if !checked.unwrap_or_else(is_intact) {
            return Err(Code::HashMismatch.into());
        }
        let (directory, held) = match last {
            Some((parent, directory, held)) if *parent == entry.parent && parent.root_index().is_none() => {
                // The directory is known to be right, not yet this name.
                self.name_of(&entry)?;
                (Arc::clone(directory), Arc::clone(held))
            }
            _ => {
                let (directory, _) = self.locate(&entry)?;
                let held = self.directories.descriptor(&directory)?;
                *last = Some((entry.parent, Arc::clone(&directory), Arc::clone(&held)));
                (directory, held)
            }
        };
        let errors = directory.file_system.errors();
        faults::hang("HAUL_TEST_SINK_MAKE_HANGS", &entry.name);
        let nameless = self.make_nameless(&entry.attributes, &directory, held.as_fd());
        let (is_nameless, has_mode) =
            (nameless.is_some(), nameless.as_ref().is_some_and(|made| made.has_mode));
        let (token, file) = match nameless {
            Some(made) => (self.tokens.make(), made.file),
            None => self.create(&entry, &directory, held.as_fd()).map_err(sink_failure)?,
        };
        if let Some(target) = self.is_to_be_filled(file.as_fd(), directory.identity.0, entry.size()) {
            if is_nameless {
                // It counts once, as one that is to be filled.
                self.member_descriptors.fetch_sub(1, Ordering::Relaxed);
                // As long as it is not whole it is nobody else's business.
                let private = fs::fchmod(&file, PRIVATE).map_err(attributes::attributes_failure);
                let named = private.and_then(|()| self.name_for_now(&file, &entry, token, &directory));
                if let Err(failure) = named {
                    self.close_nameless(file);
                    return Err(failure);
                }
            }
            return Ok((State::Made(Made { entry, token, directory, file }), Landed::Made(target)));
        }
        let filled = match lent {
            Some(lent) => self.borrow_member(&entry, lent, file.as_fd(), usize::MAX),
            None => self.fill(file.as_fd(), bytes, usize::MAX).map_err(sink_failure),
        };
        let complete = filled
            .and_then(|()| self.set_attributes((file.as_fd(), has_mode), &directory, &entry.attributes));
        if is_nameless {
            if let Err(failure) = complete {
                self.close_nameless(file);
                return Err(failure);
            }
            let nameless = Some(file);
            let member = Member { entry, token, directory, descriptor: None, nameless, synced: true, errors };
            return Ok((State::Member(member), Landed::Written));
        }
        let descriptor = match complete {
            Ok(()) => self.keep_until_synced(file, &directory),
            Err(failure) => Err(failure),
        };
        match descriptor {
            Ok(descriptor) => {
                let synced = descriptor.is_none();
                let member = Member { entry, token, directory, descriptor, nameless: None, synced, errors };
                Ok((State::Member(member), Landed::Written))
            }
            Err(failure) => {
                self.remove_temporary(&entry, &directory, token);
                Err(failure)
            }
        }
    }

    /// What a file has whose contents are complete. Without its mode where that cannot be stored: better so than not at all.
    pub(super) fn set_attributes(
        &self,
        (file, has_mode): (BorrowedFd<'_>, bool),
        directory: &Arc<Directory>,
        wanted: &Attributes,
    ) -> Result<(), Failure> {
        let set = match self.preserve.complete(file, wanted, has_mode) {
            Err(errno) if attributes::refuses(errno) && !self.stores_modes(directory) => {
                self.preserve.complete(file, wanted, true)
            }
            set => set,
        };
        set.map_err(attributes::attributes_failure)
    }

    pub(super) fn stores_modes(&self, directory: &Arc<Directory>) -> bool {
        let held = self.directories.descriptor(directory);
        held.map_or(true, |held| directory.file_system.stores_modes(held.as_fd(), &self.tokens))
    }

    fn create(
        &self,
        entry: &Entry,
        directory: &Directory,
        held: BorrowedFd<'_>,
    ) -> rustix::io::Result<(Token, OwnedFd)> {
        // Somebody may plant a name; nobody can plant them all.
        const TRIES: usize = 8;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut result = Err(Errno::EXIST);
        for _ in 0..TRIES {
            let token = self.tokens.make();
            let name = self.temporary_name(entry, directory, token);
            let open = || fs::openat(held, name.as_c_str(), flags, PRIVATE);
            match self.directories.retry_without_cache(open) {
                Ok(file) => return Ok((token, file)),
                Err(Errno::EXIST | Errno::INTR) => result = Err(Errno::EXIST),
                Err(errno) => return Err(errno),
            }
        }
        result
    }

    /// Writes all of it, so much at a time.
    pub(super) fn fill(
        &self,
        file: BorrowedFd<'_>,
        mut bytes: &[u8],
        piece: usize,
    ) -> rustix::io::Result<()> {
        let _write = haul_meter::within(Stage::Write).bytes(bytes.len() as u64);
        self.hooks.before_write()?;
        if self.contents == Contents::Discarded {
            return fs::ftruncate(file, bytes.len() as u64);
        }
        while !bytes.is_empty() {
            match rustix::io::write(file, &bytes[..bytes.len().min(piece)]) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// A descriptor reports what went wrong with its file's write-back; where the file system as a whole does that,
    /// it need not be kept.
    pub(super) fn keep_until_synced(
        &self,
        file: OwnedFd,
        directory: &Directory,
    ) -> Result<Option<OwnedFd>, Failure> {
        if directory.file_system.whole || self.sync == SyncMode::Never {
            return Ok(None);
        }
        if self.member_descriptors.fetch_add(1, Ordering::Relaxed) < self.member_descriptors_max {
            return Ok(Some(file));
        }
        // Few descriptors on this machine: slower, but as safe.
        self.member_descriptors.fetch_sub(1, Ordering::Relaxed);
        let synced = self.hooks.sync(SyncPoint::MemberData, file.as_fd(), Reach::Everything);
        synced.map(|()| None).map_err(super::durable::sync_failure)
    }
}

/// The next members, as many as are hashed together.
fn together(members: &mut impl Iterator<Item = MemberWrite>) -> Vec<MemberWrite> {
    let (mut some, mut bytes) = (Vec::new(), 0);
    while bytes < TOGETHER_BYTES as u64
        && let Some(member) = members.next()
    {
        bytes = member.entry.size().saturating_add(bytes);
        some.push(member);
    }
    some
}

/// Its bytes in the slot, if it is a file and they are there.
fn contents<'a>(MemberWrite { entry, offset, .. }: &MemberWrite, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let size = usize::try_from(entry.size()).ok().filter(|_| entry.kind == Kind::File)?;
    let start = *offset as usize;
    let end = start.checked_add(size)?;
    bytes.get(start..end)
}

impl Member {
    /// Its descriptor, if it is still open; the caller closes it.
    pub fn take_descriptor(&mut self, open: &AtomicUsize) -> Option<OwnedFd> {
        let taken = self.descriptor.take();
        if taken.is_some() {
            open.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }
}
