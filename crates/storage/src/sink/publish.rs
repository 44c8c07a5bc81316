//! Final names, and the removal of what does not get one.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use haul_model::{Code, Entry, EntryId, Failure, Token};
use rustix::fs::{self, AtFlags};
use rustix::io::Errno;

use super::attributes::Status;
use super::directories::Directory;
use super::names::name_failure;
use super::objects::Unfinished;
use super::prepare::rename_if_free;
use super::{PosixSink, State, lock};

impl PosixSink {
    pub(super) fn publish(&self, files: &[EntryId]) -> Vec<(EntryId, Failure)> {
        let mut taken = Vec::with_capacity(files.len());
        let mut states = lock(&self.states);
        taken.extend(files.iter().map(|id| (*id, states.remove(id))));
        drop(states);
        let mut failed = Vec::new();
        let mut settled = Vec::with_capacity(files.len());
        for (id, state) in taken {
            let (state, result) = self.publish_one(state);
            settled.extend(state.map(|state| (id, state)));
            failed.extend(result.err().map(|failure| (id, failure)));
        }
        let mut states = lock(&self.states);
        let replaced: Vec<State> =
            settled.into_iter().filter_map(|(id, state)| states.insert(id, state)).collect();
        drop(states);
        // Whatever came meanwhile goes.
        replaced.into_iter().for_each(|state| self.remove_state(state));
        failed
    }

    /// The state that the file is in afterwards.
    fn publish_one(&self, state: Option<State>) -> (Option<State>, Result<(), Failure>) {
        match state {
            Some(State::Member(mut member)) => {
                let directory = Arc::clone(&member.directory);
                drop(member.take_descriptor(&self.member_descriptors));
                let failures = directory.sync_failures();
                let named = match &member.nameless {
                    Some(file) => self.directories.descriptor(&directory).and_then(|held| {
                        self.name_at_last(file, &member.entry, member.token, (&directory, held.as_fd()))
                    }),
                    None => self.name(&member.entry, member.token, &directory),
                };
                match named {
                    Ok(()) => {
                        member.nameless.into_iter().for_each(|file| self.close_nameless(file));
                        (Some(State::Named(directory, failures)), Ok(()))
                    }
                    Err(failure) => (Some(State::Member(member)), Err(failure)),
                }
            }
            Some(State::Unfinished(file)) => {
                if !file.sealed.load(Ordering::Acquire) {
                    return (Some(State::Unfinished(file)), Err(Code::Internal.into()));
                }
                if !self.is_what_was_written(&file) {
                    return (Some(State::Unfinished(file)), Err(Code::HashMismatch.into()));
                }
                let failures = file.directory.sync_failures();
                match self.name(&file.entry, file.token, &file.directory) {
                    Ok(()) => {
                        // After the name: were it before, a crash between the two could cost a re-read of the whole
                        // file. What a crash leaves of it is swept by the next session.
                        self.remove_table(&file);
                        lock(&self.resumed).remove(&file.token);
                        file.close();
                        (Some(State::Named(Arc::clone(&file.directory), failures)), Ok(()))
                    }
                    // Nor can any other run name it.
                    Err(failure) if failure.code == Code::NameInvalid => {
                        self.remove_state(State::Unfinished(file));
                        (None, Err(failure))
                    }
                    Err(failure) => (Some(State::Unfinished(file)), Err(failure)),
                }
            }
            // Done already.
            Some(named @ State::Named(..)) => (Some(named), Ok(())),
            state @ (Some(State::Made(_) | State::Filling(_)) | None) => (state, Err(Code::Internal.into())),
        }
    }

    /// Nobody has put another file in its place, as programs do that copy a file and give the copy its name.
    fn is_what_was_written(&self, file: &Unfinished) -> bool {
        let Ok(held) = self.directories.descriptor(&file.directory) else { return true };
        let name = self.temporary_name(&file.entry, &file.directory, file.token);
        let found = fs::statat(&held, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW).map(Status::from);
        // One that is not there any more, or cannot be looked at, fails by itself when it is to be named.
        found.map_or(true, |now| file.is(&now))
    }

    /// Instead of the temporary one.
    pub(super) fn name(
        &self,
        entry: &Entry,
        token: Token,
        directory: &Arc<Directory>,
    ) -> Result<(), Failure> {
        let name = self.name_of(entry)?;
        let held = self.directories.descriptor(directory)?;
        let temporary = self.temporary_name(entry, directory, token);
        let claim = || self.claim_name(directory, held.as_fd(), name, temporary.as_bytes());
        let replace = || fs::renameat(&held, temporary.as_c_str(), &held, name);
        // In a directory that this session made, whatever has the name is another entry of the dataset whose name this
        // file system takes for the same; unless it is this one, whose name could not be made durable before.
        let named = if directory.made {
            let claim = || claim().map_err(|_| Errno::EXIST);
            match rename_if_free(held.as_fd(), temporary.as_c_str(), name, claim) {
                Err(Errno::EXIST) if lock(&self.named_in_vain).contains(&entry.id) => replace(),
                other => other,
            }
        } else {
            claim()?;
            replace()
        };
        named.map_err(|errno| match errno {
            Errno::EXIST | Errno::NOTEMPTY => Code::NameTaken.into(),
            // What is to be named is there: what is not there is such a name (exfat-fuse).
            Errno::NOENT if fs::statat(&held, temporary.as_c_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok() => {
                Code::NameInvalid.into()
            }
            _ => name_failure(errno),
        })
    }

    pub(super) fn discard(&self, id: EntryId, token: Token, keep: bool) {
        let mut states = lock(&self.states);
        if keep
            && let Some(State::Unfinished(file)) = states.get(&id)
            && file.token == token
        {
            // It is remembered, as the source may have begun anew meanwhile: then it goes after all.
            let kept = Arc::clone(file);
            drop(states);
            return kept.close();
        }
        let is_meant = match states.get(&id) {
            // A late word about an earlier version of the entry must not hit the present one.
            Some(State::Unfinished(file)) => file.token == token,
            Some(State::Made(_) | State::Filling(_) | State::Member(_) | State::Named(..)) => true,
            None => false,
        };
        let state = if is_meant { states.remove(&id) } else { None };
        drop(states);
        state.into_iter().for_each(|state| self.remove_state(state));
    }

    /// Removes what an entry has at the sink without a final name. A final name stays.
    pub(super) fn remove_state(&self, state: State) {
        match state {
            State::Made(made) => self.remove_made(made),
            // Whose thread may hang: a removal would wait for as long as it does.
            State::Filling(_) => {}
            State::Member(mut member) => {
                drop(member.take_descriptor(&self.member_descriptors));
                match member.nameless {
                    Some(file) => self.close_nameless(file),
                    None => self.remove_temporary(&member.entry, &member.directory, member.token),
                }
            }
            State::Unfinished(file) => {
                file.close();
                lock(&self.resumed).remove(&file.token);
                self.remove_temporary(&file.entry, &file.directory, file.token);
                self.remove_table(&file);
            }
            State::Named(..) => {}
        }
    }
}
