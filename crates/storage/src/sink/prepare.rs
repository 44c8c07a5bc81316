//! Names and directories, in the order of the scan: what is complete, what can be resumed, what has to be sent.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use haul_model::limits::{DEPTH_MAX, LINK_TARGET_BYTES_MAX};
use haul_model::op::{Prepare, Prepared};
use haul_model::{Attributes, Code, Entry, EntryId, Failure, Kind, Laid, Token};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::attributes::{self, Preserve, Status, attributes_failure, open_up, status};
use super::directories::{Directory, Found};
use super::faults::{Reach, SyncPoint};
use super::file_systems::{SyncMode, is_stored_as};
use super::lay::Lies;
use super::names::name_failure;
use super::objects::{PRIVATE, Unfinished};
use super::spool::{Record, RecordId};
use super::tokens::TempName;
use super::{PosixSink, State, lock};
use crate::confine::{self, sink_failure};
use crate::local;

/// What a batch came to.
#[derive(Default)]
pub(super) struct Prepares {
    /// One for each entry, in order.
    pub answers: Vec<(EntryId, Prepared)>,
    /// How some of them lie.
    pub laid: Vec<(EntryId, Laid)>,
    /// Those of which that is known only when they are made.
    pub unlaid: Vec<EntryId>,
}

/// Says nothing of the file itself: a server that is away, a right that is missing, a file system that is only to be read, a host
/// that has too little of something. What is not there, or is no file, will not be one another time either.
fn may_pass(errno: Errno) -> bool {
    const OF_THE_FILE: [Errno; 6] =
        [Errno::NOENT, Errno::LOOP, Errno::ISDIR, Errno::NOTDIR, Errno::NXIO, Errno::NODEV];
    !OF_THE_FILE.contains(&errno)
}

/// What an entry may take the place of. A symlink is replaced, never followed: it could lead anywhere.
fn may_be_replaced(present: FileType) -> bool {
    matches!(present, FileType::RegularFile | FileType::Symlink)
}

fn in_the_way(present: FileType) -> Code {
    if present == FileType::Directory { Code::SinkIsDirectory } else { Code::SinkSpecial }
}

impl PosixSink {
    pub(super) fn prepare(&self, items: Vec<Prepare>) -> Prepares {
        let mut done = Prepares { answers: Vec::with_capacity(items.len()), ..Prepares::default() };
        // Files of one directory come together.
        let mut last = None;
        for item in items {
            match item {
                Prepare::Entry { entry, resume, object_bytes } => {
                    let answer = match entry.kind {
                        Kind::Directory => self.prepare_directory(&entry).map(|()| Prepared::Made),
                        Kind::File => self.prepare_file(&entry, resume, object_bytes, &mut last),
                        Kind::Symlink => self.prepare_symlink(&entry),
                        Kind::Other => Err(Code::UnsupportedKind.into()),
                    };
                    let told = answer.and_then(|prepared| {
                        match self.lies(&entry, prepared, object_bytes)? {
                            Lies::So(found) => done.laid.extend(found.map(|found| (entry.id, found))),
                            Lies::Unknown => done.unlaid.push(entry.id),
                        }
                        Ok(prepared)
                    });
                    done.answers.push((entry.id, told.unwrap_or_else(Prepared::Fail)));
                }
                Prepare::End(id) => {
                    self.directory_ended(id);
                    last = None;
                }
            }
        }
        done
    }

    fn prepare_directory(&self, entry: &Entry) -> Result<(), Failure> {
        if self.is_held(entry) {
            return self.prepare_held(entry);
        }
        let (parent, name) = self.locate(entry)?;
        if let Some(known) = self.directories.get(entry.id) {
            let same = known.name.as_ref() == name
                && known.parent.as_ref().is_some_and(|known| Arc::ptr_eq(known, &parent));
            return if same { Ok(()) } else { Err(Code::Protocol.into()) };
        }
        if parent.depth as usize >= DEPTH_MAX || !self.directories.has_room() {
            return Err(Code::LimitExceeded.into());
        }
        let held = self.directories.descriptor(&parent)?;
        let made = match fs::mkdirat(&held, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => true,
            // Made by us under another name of the same entry: this file system does not tell them apart.
            Err(Errno::EXIST) if parent.made => return Err(Code::NameTaken.into()),
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(self.making_failure(held.as_fd(), errno)),
        };
        if !parent.made {
            self.claim_name(&parent, held.as_fd(), name, name)?;
        }
        let open = || open_writable(held.as_fd(), name, made);
        let found = self.directories.retry_without_cache(open).map_err(sink_failure)?;
        let file_system = || self.file_systems.of(found.descriptor.as_fd(), found.status.device);
        let file_system = self.directories.retry_without_cache(file_system).map_err(sink_failure)?;
        let record = self.spool.append(&Record {
            parent: parent.record,
            name: name.into(),
            identity: (found.status.device, found.status.inode),
            made,
            attributes: entry.attributes,
        });
        self.directories.add(entry.id, parent, name, found, record, file_system);
        Ok(())
    }

    /// The destination itself is an entry: its contents are merged.
    fn prepare_held(&self, entry: &Entry) -> Result<(), Failure> {
        if !entry.name.is_empty() || entry.id.root_index().is_some() {
            return Err(Code::Confinement.into());
        }
        if self.directories.get(entry.id).is_some() {
            return Ok(());
        }
        let held = self.directories.descriptor(&self.holder)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = || -> rustix::io::Result<Found> {
            let descriptor = fs::openat(&held, c".", flags, Mode::empty())?;
            let status = ensure_writable(descriptor.as_fd(), status(descriptor.as_fd())?)?;
            Ok(Found { descriptor, status, made: false })
        };
        let found = self.directories.retry_without_cache(opened).map_err(sink_failure)?;
        // As its owner wants it to be: only what is in it is a SOURCE's.
        let mode = if was_made_writable(&found.status) { found.status.mode } else { Record::MODE_STAYS };
        let record = self.spool.append(&Record {
            parent: RecordId::HOLDER,
            name: Box::default(),
            identity: (found.status.device, found.status.inode),
            made: false,
            attributes: Attributes { mode, ..entry.attributes },
        });
        let directory = Directory::held(found, record, Arc::clone(&self.holder.file_system));
        self.directories.add_held(entry.id, directory);
        Ok(())
    }

    /// What a file that cannot be gone on with this time has left stays for another.
    fn prepare_file(
        &self,
        entry: &Arc<Entry>,
        resume: Option<Token>,
        object_bytes: Option<u32>,
        last: &mut Option<(EntryId, Arc<Directory>)>,
    ) -> Result<Prepared, Failure> {
        let prepared = self.prepare_file_or_fail(entry, resume, object_bytes, last);
        // But where it can never have its name.
        let stays = prepared.is_err_and(|failure| failure.code != Code::NameInvalid);
        if let Some(token) = resume.filter(|token| stays && self.tokens.is_of_job(*token)) {
            lock(&self.spared).add(token);
        }
        prepared
    }

    /// What is begun of an entry lies in its directory, which may be the one that holds the SOURCEs.
    fn look_beside_destination(&self, directory: &Arc<Directory>) {
        if Arc::ptr_eq(directory, &self.holder) {
            self.holder_has_files.store(true, Ordering::Relaxed);
        }
    }

    fn prepare_file_or_fail(
        &self,
        entry: &Arc<Entry>,
        resume: Option<Token>,
        object_bytes: Option<u32>,
        last: &mut Option<(EntryId, Arc<Directory>)>,
    ) -> Result<Prepared, Failure> {
        let (directory, name) = match last {
            Some((parent, directory)) if *parent == entry.parent => {
                (Arc::clone(directory), self.name_of(entry)?)
            }
            _ => {
                let (directory, name) = self.locate(entry)?;
                *last = Some((entry.parent, Arc::clone(&directory)));
                (directory, name)
            }
        };
        self.look_beside_destination(&directory);
        self.drop_earlier(entry.id, resume);
        // Nothing is in a directory that this session made but what this session puts there.
        if !directory.made {
            let held = self.directories.descriptor(&directory)?;
            let found = fs::statat(&held, name, AtFlags::SYMLINK_NOFOLLOW).map(Status::from);
            if let Ok(present) = &found {
                if !may_be_replaced(present.kind) {
                    return Err(in_the_way(present.kind).into());
                }
                self.claim_name(&directory, held.as_fd(), name, name)?;
                if self.is_complete(&directory, held.as_fd(), entry, present) {
                    self.fix_attributes((&directory, held.as_fd()), name, entry, present)?;
                    return Ok(Prepared::Skip);
                }
                may_be_renamed_over(held.as_fd(), present).map_err(parent_failure)?;
            }
            found.map(drop).or_else(|errno| match errno {
                Errno::NOENT => Ok(()),
                _ => Err(parent_failure(errno)),
            })?;
        }
        let Some(object_bytes) = object_bytes else { return Ok(Prepared::Start(Token::NONE)) };
        self.try_name(&directory, self.directories.descriptor(&directory)?.as_fd(), name)?;
        if let Some(token) = resume
            && self.tokens.is_of_job(token)
            && (!directory.made || self.tokens.is_of_session(token))
            && self.claim(&directory, entry, token, object_bytes)?
        {
            return Ok(Prepared::Resume(token));
        }
        Ok(Prepared::Start(self.tokens.make()))
    }

    /// The entry starts again: what this session has of its earlier version goes.
    fn drop_earlier(&self, id: EntryId, resume: Option<Token>) {
        let mut states = lock(&self.states);
        let earlier = match states.get(&id) {
            Some(State::Made(_) | State::Filling(_) | State::Member(_)) => states.remove(&id),
            Some(State::Unfinished(file)) if Some(file.token) != resume => states.remove(&id),
            _ => None,
        };
        drop(states);
        if let Some(state) = earlier {
            self.remove_state(state);
        }
    }

    fn is_complete(
        &self,
        directory: &Directory,
        held: BorrowedFd<'_>,
        entry: &Entry,
        present: &Status,
    ) -> bool {
        let wanted = entry.attributes.mtime;
        present.kind == FileType::RegularFile
            && present.size == entry.size()
            && is_stored_as(&directory.file_system, held, &self.tokens, present.mtime, wanted)
    }

    /// Mode and owner of a file whose contents are complete.
    ///
    /// Its atime is left alone: reading either copy changes it, so that each run would touch every file.
    fn fix_attributes(
        &self,
        (directory, parent): (&Directory, BorrowedFd<'_>),
        name: &[u8],
        entry: &Entry,
        present: &Status,
    ) -> Result<(), Failure> {
        let mode = Preserve::file_mode(&entry.attributes);
        let owner_is_right = !self.preserve.differs_in_owner(present, &entry.attributes);
        let mode_is_right = present.mode == mode || !directory.file_system.stores_modes(parent, &self.tokens);
        if owner_is_right && mode_is_right {
            return Ok(());
        }
        let fix = || -> rustix::io::Result<()> {
            let open = || open_whatever_its_mode(parent, name, OFlags::RDONLY | OFlags::NONBLOCK);
            let file = self.directories.retry_without_cache(open)?;
            let now = status(file.as_fd())?;
            if (now.device, now.inode) != (present.device, present.inode) {
                return Err(Errno::STALE);
            }
            if self.preserve.differs_in_owner(&now, &entry.attributes) {
                attributes::set_owner(file.as_fd(), &entry.attributes)?;
            }
            // A new owner may have cleared bits of it.
            match fs::fchmod(&file, Mode::from_raw_mode(mode)) {
                Err(errno) if !mode_is_right || !attributes::refuses(errno) => return Err(errno),
                _ => {}
            }
            match self.sync {
                SyncMode::Never => Ok(()),
                // At the end, with the directories.
                SyncMode::Measured if self.file_systems.is_whole(now.device) => Ok(()),
                _ => self.hooks.sync(SyncPoint::SkippedAttributes, file.as_fd(), Reach::Everything),
            }
        };
        fix().map_err(attributes_failure)
    }

    /// Goes on with the unfinished file of an earlier session, if it is one beyond doubt.
    fn claim(
        &self,
        directory: &Arc<Directory>,
        entry: &Arc<Entry>,
        token: Token,
        object_bytes: u32,
    ) -> Result<bool, Failure> {
        if !self.may_claim(entry, token) {
            return Ok(false);
        }
        let held = self.directories.descriptor(directory)?;
        let name = self.temporary_name(entry, directory, token);
        let flags = OFlags::RDWR | OFlags::NONBLOCK;
        let open = || {
            let open = || open_whatever_its_mode(held.as_fd(), name.as_bytes(), flags);
            self.directories.retry_without_cache(open)
        };
        let opened = match open() {
            Err(Errno::NOENT) if self.rename_unfinished(directory, held.as_fd(), entry, token) => open(),
            other => other,
        };
        let looked_at = opened.and_then(|file| status(file.as_fd()).map(|present| (file, present)));
        let (file, present) = match looked_at {
            Ok(found) => found,
            // Somebody else's will be no other time either.
            Err(Errno::ACCESS | Errno::PERM) if !self.owns(directory, held.as_fd(), &name) => {
                return Ok(false);
            }
            // It may be there, and as it was, another time.
            Err(errno) if may_pass(errno) => return Err(sink_failure(errno)),
            Err(_) => return Ok(false),
        };
        let is_own = directory.file_system.is_own(present.uid, held.as_fd(), &self.tokens);
        // Where that cannot be told it is not given up.
        let is_own = is_own.map_err(sink_failure)?;
        // It has the owner of the entry already if the session ended between sealing and naming it.
        let owner_is_right = is_own || (self.preserve.owner && present.uid == entry.attributes.uid);
        let is_ours = present.kind == FileType::RegularFile && present.links == 1 && owner_is_right;
        // It had its whole length before anything of it was durable: what is missing now somebody has cut off.
        if !is_ours || present.size != entry.size() {
            return Ok(false);
        }
        let is_put_back = was_put_back(&file, entry);
        let hide = || -> rustix::io::Result<()> {
            if !is_own {
                fs::fchown(&file, Some(rustix::process::geteuid()), None)?;
            }
            if present.mode == PRIVATE.as_raw_mode() {
                return Ok(());
            }
            match fs::fchmod(&file, PRIVATE) {
                Err(errno) if !attributes::refuses(errno) || self.stores_modes(directory) => Err(errno),
                _ => Ok(()),
            }
        };
        match hide() {
            Err(Errno::ACCESS | Errno::PERM) if !is_own => return Ok(false),
            Err(errno) if may_pass(errno) => return Err(sink_failure(errno)),
            Err(_) => return Ok(false),
            Ok(()) => {}
        }
        let found = Unfinished::resumed(entry, token, object_bytes, Arc::clone(directory), &present);
        // Without its hashes nothing tells what is missing in it.
        if is_put_back && !self.distrust(&found)? {
            return Ok(false);
        }
        let mut states = lock(&self.states);
        let known = match states.get(&entry.id) {
            Some(State::Unfinished(file)) if file.token == token => {
                // Its mode is no longer that of a complete file.
                file.sealed.store(false, Ordering::Release);
                true
            }
            _ => false,
        };
        if !known {
            states.insert(entry.id, State::Unfinished(Arc::new(found)));
        }
        drop(states);
        lock(&self.resumed).insert(token);
        Ok(true)
    }

    /// Whether what has this name is ours, as far as can be told.
    fn owns(&self, directory: &Directory, held: BorrowedFd<'_>, name: &TempName) -> bool {
        let found = fs::statat(held, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW).map(Status::from);
        let is_own = |found: Status| directory.file_system.is_own(found.uid, held, &self.tokens);
        found.and_then(is_own).unwrap_or(true)
    }

    /// One unfinished file is one entry's: with two that have it, what is complete under the name of the one could still be
    /// written to as the other. A source that goes by its log never says so.
    fn may_claim(&self, entry: &Entry, token: Token) -> bool {
        match lock(&self.states).get(&entry.id) {
            Some(State::Unfinished(file)) if file.token == token => true,
            // Those of this session are known to belong to others.
            _ => !self.tokens.is_of_session(token) && !lock(&self.resumed).contains(&token),
        }
    }

    /// It has the other of the two names that an unfinished file can have, if an earlier haul made it, or one that was told
    /// something else of the file system; from now on it has the one that it is looked for by.
    fn rename_unfinished(
        &self,
        directory: &Directory,
        held: BorrowedFd<'_>,
        entry: &Entry,
        token: Token,
    ) -> bool {
        let by_name = directory.file_system.gluster;
        let [now, other] =
            [by_name, !by_name].map(|by_name| self.temporary_name_where(entry, by_name, token));
        now.as_bytes() != other.as_bytes()
            && rename_if_free(held, other.as_c_str(), now.as_bytes(), || Ok(())).is_ok()
    }

    fn prepare_symlink(&self, entry: &Entry) -> Result<Prepared, Failure> {
        let (directory, name) = self.locate(entry)?;
        let target = &*entry.link_target;
        if target.is_empty() || target.contains(&0) || target.len() >= LINK_TARGET_BYTES_MAX {
            return Err(Code::NameInvalid.into());
        }
        self.look_beside_destination(&directory);
        self.drop_earlier(entry.id, None);
        let held = self.directories.descriptor(&directory)?;
        let failures = directory.sync_failures();
        if directory.made {
            if lock(&self.named_in_vain).remove(&entry.id) && leads_to(held.as_fd(), name, target) {
                // Its name was lost: it has to be made again.
                fs::unlinkat(&held, name, AtFlags::empty()).map_err(parent_failure)?;
            }
            match fs::symlinkat(target, &held, name) {
                Ok(()) => {}
                // Asked for twice; else another entry, whose name this file system takes for the same.
                Err(Errno::EXIST) if leads_to(held.as_fd(), name, target) => {}
                Err(Errno::EXIST) => return Err(Code::NameTaken.into()),
                Err(errno) => return Err(self.making_failure(held.as_fd(), errno)),
            }
            self.complete_symlink(&directory, held.as_fd(), name, &entry.attributes)?;
        } else {
            match fs::statat(&held, name, AtFlags::SYMLINK_NOFOLLOW).map(Status::from) {
                Ok(present) if !may_be_replaced(present.kind) => {
                    return Err(in_the_way(present.kind).into());
                }
                Ok(_) if self.claim_name(&directory, held.as_fd(), name, name).is_err() => {
                    return Err(Code::NameTaken.into());
                }
                Ok(present) if present.kind == FileType::Symlink && leads_to(held.as_fd(), name, target) => {
                    self.fix_symlink(&directory, held.as_fd(), name, entry, &present)?;
                    return Ok(Prepared::Skip);
                }
                Ok(present) if self.is_what_is_led_to(held.as_fd(), entry, &present) => {
                    return Err(Code::LinkToItself.into());
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(parent_failure(errno)),
            }
            self.replace_by_symlink(&directory, held.as_fd(), name, entry)?;
        }
        lock(&self.states).insert(entry.id, State::Named(directory, failures));
        Ok(Prepared::Made)
    }

    /// A symlink leads to the file that it would take the place of, which has no other name: it would be lost, and the symlink lead
    /// to itself, or nowhere. Does it do so here, or where it is at the source? Looked at only; what is behind a symlink is never
    /// opened.
    fn is_what_is_led_to(&self, parent: BorrowedFd<'_>, entry: &Entry, present: &Status) -> bool {
        if present.kind != FileType::RegularFile || present.links > 1 {
            return false;
        }
        let here = || {
            let found = fs::statat(parent, &*entry.link_target, AtFlags::empty()).map(Status::from).ok()?;
            Some((found.device, found.inode))
        };
        let there = || self.lender.as_ref()?.led_to(entry);
        let place = Some((present.device, present.inode));
        here() == place || there() == place
    }

    fn fix_symlink(
        &self,
        directory: &Directory,
        held: BorrowedFd<'_>,
        name: &[u8],
        entry: &Entry,
        present: &Status,
    ) -> Result<(), Failure> {
        let wanted = &entry.attributes;
        let same_time = is_stored_as(&directory.file_system, held, &self.tokens, present.mtime, wanted.mtime);
        if same_time && !self.preserve.differs_in_owner(present, wanted) {
            return Ok(());
        }
        self.complete_symlink(directory, held, name, wanted)
    }

    fn complete_symlink(
        &self,
        directory: &Directory,
        held: BorrowedFd<'_>,
        name: impl rustix::path::Arg + Copy,
        wanted: &Attributes,
    ) -> Result<(), Failure> {
        if !directory.file_system.sets_links(held, &self.tokens) {
            return Ok(());
        }
        let complete = || self.preserve.complete_symlink(held, name, wanted);
        self.directories.retry_without_cache(complete).map_err(attributes_failure)
    }

    /// Whatever has the name now is replaced at once, never missing in between.
    fn replace_by_symlink(
        &self,
        directory: &Directory,
        held: BorrowedFd<'_>,
        name: &[u8],
        entry: &Entry,
    ) -> Result<(), Failure> {
        let temporary = self.temporary_name(entry, directory, self.tokens.make());
        let made = fs::symlinkat(&*entry.link_target, held, temporary.as_c_str());
        made.map_err(|errno| self.making_failure(held, errno))?;
        let attributes = self.complete_symlink(directory, held, temporary.as_c_str(), &entry.attributes);
        let named = attributes.and_then(|()| {
            self.claim_name(directory, held, name, temporary.as_bytes())?;
            fs::renameat(held, temporary.as_c_str(), held, name).map_err(name_failure)
        });
        if named.is_err() {
            // Best effort: a later session sweeps what stays.
            let _ = fs::unlinkat(held, temporary.as_c_str(), AtFlags::empty());
        }
        named
    }

    /// A new name in a directory, of which some (in `/proc`) are as if they were not there, although they are.
    fn making_failure(&self, held: BorrowedFd<'_>, errno: Errno) -> Failure {
        match status(held) {
            Ok(there) if there.links > 0 => self.refusal(held, errno),
            _ => parent_failure(errno),
        }
    }

    fn directory_ended(&self, id: EntryId) {
        if self.may_meet {
            return;
        }
        if let Some(directory) = self.directories.get(id)
            && !directory.made
            && let Ok(held) = self.directories.descriptor(&directory)
        {
            self.sweep(held.as_fd());
        }
    }
}

/// A new name that does not take the place of what has it.
///
/// File systems that know no flags (NFS, 9p, older FUSE) are asked first who has the name: without that, one of two names that they
/// take for the same would silently be replaced by the other. What others are about to rename has no name yet then: so whoever
/// calls `claim`s it before.
pub(super) fn rename_if_free(
    held: BorrowedFd<'_>,
    from: &std::ffi::CStr,
    to: &[u8],
    claim: impl FnOnce() -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    match fs::renameat_with(held, from, held, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            claim()?;
            rename_where_free(held, from, to)
        }
        other => other,
    }
}

fn rename_where_free(held: BorrowedFd<'_>, from: &std::ffi::CStr, to: &[u8]) -> rustix::io::Result<()> {
    match fs::statat(held, to, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Err(Errno::EXIST),
        Err(Errno::NOENT) => fs::renameat(held, from, held, to),
        Err(errno) => Err(errno),
    }
}

/// A name in a directory that was there a moment ago.
fn parent_failure(errno: Errno) -> Failure {
    match errno {
        Errno::NOENT => Code::SinkMoved.into(),
        _ => name_failure(errno),
    }
}

/// In a directory like `/tmp` what somebody else has made stays: better known before all that is to replace it is there.
fn may_be_renamed_over(held: BorrowedFd<'_>, present: &Status) -> rustix::io::Result<()> {
    const STICKY: u32 = 0o1000;
    let own = rustix::process::geteuid();
    if own.is_root() || present.uid == own.as_raw() {
        return Ok(());
    }
    let directory = status(held)?;
    let may = directory.mode & STICKY == 0 || directory.uid == own.as_raw();
    if may || has_capability(CapabilitySet::FOWNER) { Ok(()) } else { Err(Errno::PERM) }
}

fn has_capability(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

/// Opens a directory that was made or found, so that we can write in it.
fn open_writable(parent: BorrowedFd<'_>, name: &[u8], made: bool) -> rustix::io::Result<Found> {
    let descriptor = match confine::open_directory(parent, name) {
        Err(Errno::ACCESS) => {
            open_up(&confine::hold_directory(parent, name)?, 0o700)?;
            confine::open_directory(parent, name)?
        }
        other => other?,
    };
    let status = ensure_writable(descriptor.as_fd(), status(descriptor.as_fd())?)?;
    Ok(Found { descriptor, status, made })
}

/// As it was found.
fn was_made_writable(present: &Status) -> bool {
    present.mode & 0o700 != 0o700 && present.uid == rustix::process::geteuid().as_raw()
}

/// Read-only directories of our own are writable until the end, when they get their attributes.
fn ensure_writable(descriptor: BorrowedFd<'_>, present: Status) -> rustix::io::Result<Status> {
    if was_made_writable(&present) {
        fs::fchmod(descriptor, Mode::from_raw_mode(present.mode | 0o700))?;
    }
    Ok(present)
}

/// Opens our own file even where its mode does not let us.
pub(super) fn open_whatever_its_mode(
    parent: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    match confine::open_beneath(parent, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let held = confine::open_beneath(parent, name, OFlags::PATH, Mode::empty())?;
            open_up(&held, 0o600)?;
            confine::open_beneath(parent, name, flags, Mode::empty())
        }
        other => other,
    }
}

fn leads_to(parent: BorrowedFd<'_>, name: &[u8], target: &[u8]) -> bool {
    let mut buffer = [const { MaybeUninit::<u8>::uninit() }; LINK_TARGET_BYTES_MAX];
    fs::readlinkat_raw(parent, name, &mut buffer).is_ok_and(|(found, _)| found == target)
}

/// Somebody has set its times, as programs do that put back what they have kept (`cp -a`, `rsync -a`, `tar`), also into the file that is
/// there: what was written since they kept it is missing. A write sets both times to one moment, and a file that is complete has
/// its final one.
fn was_put_back(file: &OwnedFd, entry: &Entry) -> bool {
    let Ok(found) = fs::fstat(file) else { return false };
    let (written, changed) = ((found.st_mtime, found.st_mtime_nsec), (found.st_ctime, found.st_ctime_nsec));
    #[allow(clippy::unnecessary_cast)]
    let is_final = found.st_mtime as i64 == entry.attributes.mtime.seconds;
    // Others have times of their servers, or of their own making.
    written != changed && !is_final && local::may_be_lent(file).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_not_taken_from_another_file_where_the_kernel_cannot_see_to_that() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        std::fs::write(at("new"), b"new").unwrap();
        std::fs::write(at("taken"), b"taken").unwrap();
        std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
        let held = OwnedFd::from(std::fs::File::open(scratch.path()).unwrap());
        let rename = |to: &[u8]| rename_where_free(held.as_fd(), c"new", to);
        for name in [&b"taken"[..], b"dangling"] {
            assert_eq!(rename(name), Err(Errno::EXIST));
        }
        assert_eq!(rename(b"free"), Ok(()));
        assert_eq!(std::fs::read(at("taken")).unwrap(), b"taken");
        assert_eq!(std::fs::read(at("free")).unwrap(), b"new");
    }
}
