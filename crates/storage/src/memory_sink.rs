//! A sink in memory, for tests of what stands above storage.
//!
//! Behaves as [`PosixSink`](crate::sink::PosixSink) as far as the conformance suite can tell, but makes nothing durable
//! and knows no errors of its own. What outlives a session is the [`MemoryTree`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use haul_buffers::Pool;
use haul_model::op::{Landed, MemberWrite, Prepare, Prepared, SinkDone, SinkOp};
use haul_model::report::FailedPaths;
use haul_model::{Attributes, Code, Entry, EntryId, Failure, Hash, HashKind, Kind, Token};

use crate::SinkStorage;
use crate::confine::check_name;
use crate::hashing::{Combiner, object_hash};
use crate::sink::SourceName;
use crate::sink::hashes::Cut;
use crate::sink::sums;
use crate::sink::tokens::{TempName, TokenMaker, is_reserved, parse};

/// What stands under a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// A directory.
    Directory,
    /// A file with its contents.
    File(Vec<u8>),
    /// A symbolic link with its target.
    Symlink(Box<[u8]>),
}

/// One thing in a [`MemoryTree`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryNode {
    /// What it is.
    pub kind: MemoryKind,
    /// Mode, owner and times.
    pub attributes: Attributes,
}

/// What is below the destination, by path; a directory comes before what is in it.
#[derive(Debug, Default)]
pub struct MemoryTree {
    nodes: Mutex<BTreeMap<Vec<u8>, MemoryNode>>,
}

impl MemoryTree {
    /// What is there now.
    pub fn nodes(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, MemoryNode>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One session of a sink in memory.
pub struct MemorySink {
    tree: Arc<MemoryTree>,
    sources: Vec<SourceName>,
    preserve_owner: bool,
    object_bytes: u32,
    tokens: TokenMaker,
    session: Mutex<Session>,
}

#[derive(Default)]
struct Session {
    directories: HashMap<EntryId, Directory>,
    /// To be finished, in the order of their announcement.
    announced: Vec<(Vec<u8>, Attributes)>,
    states: HashMap<EntryId, State>,
    resumed: HashSet<Token>,
}

#[derive(Clone)]
struct Directory {
    path: Vec<u8>,
    made: bool,
}

#[derive(Clone)]
struct State {
    entry: Arc<Entry>,
    directory: Directory,
    /// None once it has its final name.
    token: Option<Token>,
    sealed: bool,
}

type Outcome<T> = Result<T, Failure>;

impl MemorySink {
    /// A session on `tree`. The tags and `object_bytes` are those of
    /// [`SinkSettings`](crate::sink::SinkSettings).
    pub fn open(
        tree: Arc<MemoryTree>,
        sources: &[SourceName],
        (job_tag, session_tag): ([u8; 6], [u8; 4]),
        object_bytes: u32,
        preserve_owner: bool,
    ) -> Outcome<MemorySink> {
        if !Cut::allows(object_bytes) {
            return Err(Code::LimitExceeded.into());
        }
        Ok(MemorySink {
            tree,
            sources: sources.to_vec(),
            preserve_owner,
            object_bytes,
            tokens: TokenMaker::new(job_tag, session_tag),
            session: Mutex::default(),
        })
    }

    fn locate(&self, session: &Session, entry: &Entry) -> Outcome<(Directory, Vec<u8>)> {
        if entry.id.root_index().is_some() {
            return Err(Code::Protocol.into());
        }
        if let Some(index) = entry.parent.root_index() {
            if !entry.name.is_empty() {
                return Err(Code::Confinement.into());
            }
            let holder = Directory { path: Vec::new(), made: false };
            return match self.sources.get(index as usize) {
                Some(SourceName::Named(name)) => Ok((holder, name.clone())),
                Some(SourceName::Contents) if entry.kind == Kind::Directory => Ok((holder, Vec::new())),
                Some(SourceName::Contents) => Err(Code::SinkIsDirectory.into()),
                None => Err(Code::Confinement.into()),
            };
        }
        check_name(&entry.name)?;
        if is_reserved(&entry.name) {
            return Err(Code::NameInvalid.into());
        }
        let directory = session.directories.get(&entry.parent).ok_or(Code::SinkParentFailed)?.clone();
        let path = below(&directory.path, &entry.name);
        Ok((directory, path))
    }

    fn wanted(&self, entry: &Entry, present: Option<&Attributes>) -> Attributes {
        let owner = present.copied().unwrap_or_default();
        let (uid, gid) = if self.preserve_owner {
            (entry.attributes.uid, entry.attributes.gid)
        } else {
            (owner.uid, owner.gid)
        };
        Attributes { mode: entry.attributes.mode & 0o1777, uid, gid, ..entry.attributes }
    }

    fn prepare(&self, session: &mut Session, items: Vec<Prepare>) -> Vec<(EntryId, Prepared)> {
        let mut answers = Vec::new();
        for item in items {
            match item {
                Prepare::Entry { entry, resume, object_bytes, .. } => {
                    let answer = match entry.kind {
                        Kind::Directory => self.prepare_directory(session, &entry),
                        Kind::File => self.prepare_file(session, &entry, resume, object_bytes.is_some()),
                        Kind::Symlink => self.prepare_symlink(session, &entry),
                        Kind::Other => Err(Code::UnsupportedKind.into()),
                    };
                    answers.push((entry.id, answer.unwrap_or_else(Prepared::Fail)));
                }
                Prepare::End(id) => {
                    let ended = session.directories.get(&id).filter(|directory| !directory.made);
                    if let Some(path) = ended.map(|directory| directory.path.clone()) {
                        self.sweep(session, &path);
                    }
                }
            }
        }
        answers
    }

    fn prepare_directory(&self, session: &mut Session, entry: &Entry) -> Outcome<Prepared> {
        let (parent, path) = self.locate(session, entry)?;
        if let Some(known) = session.directories.get(&entry.id) {
            return if known.path == path { Ok(Prepared::Made) } else { Err(Code::Protocol.into()) };
        }
        let mut nodes = self.tree.nodes();
        let made = match nodes.get_mut(&path) {
            // The destination itself.
            _ if path.is_empty() => false,
            Some(_) if parent.made => return Err(Code::NameTaken.into()),
            Some(node) if node.kind == MemoryKind::Directory => {
                node.attributes.mode |= 0o700;
                false
            }
            Some(_) => return Err(Code::SinkNotDirectory.into()),
            None => {
                let attributes = Attributes { mode: 0o700, ..Attributes::default() };
                nodes.insert(path.clone(), MemoryNode { kind: MemoryKind::Directory, attributes });
                true
            }
        };
        session.announced.push((path.clone(), entry.attributes));
        session.directories.insert(entry.id, Directory { path, made });
        Ok(Prepared::Made)
    }

    fn prepare_file(
        &self,
        session: &mut Session,
        entry: &Arc<Entry>,
        resume: Option<Token>,
        objects: bool,
    ) -> Outcome<Prepared> {
        let (directory, path) = self.locate(session, entry)?;
        let is_earlier = |state: &State| state.token.is_some() && state.token != resume;
        if session.states.get(&entry.id).is_some_and(is_earlier) {
            self.remove_state(session, entry.id);
        }
        let mut nodes = self.tree.nodes();
        match nodes.get_mut(&path) {
            _ if directory.made => {}
            Some(node) if node.kind == MemoryKind::Directory => return Err(Code::SinkIsDirectory.into()),
            Some(MemoryNode { kind: MemoryKind::File(bytes), attributes })
                if bytes.len() as u64 == entry.size() && attributes.mtime == entry.attributes.mtime =>
            {
                let atime = attributes.atime;
                *attributes = Attributes { atime, ..self.wanted(entry, Some(attributes)) };
                return Ok(Prepared::Skip);
            }
            _ => {}
        }
        if !objects {
            return Ok(Prepared::Start(Token::NONE));
        }
        // One unfinished file is one entry's.
        let has_it = |state: &State| state.token.is_some() && state.token == resume;
        let known = session.states.get(&entry.id).is_some_and(has_it);
        if let Some(token) = resume
            && self.tokens.is_of_job(token)
            && (known || !self.tokens.is_of_session(token) && !session.resumed.contains(&token))
            && let Some(MemoryNode { kind: MemoryKind::File(bytes), attributes }) =
                nodes.get_mut(&temporary(&directory, TempName::contents(token)))
            && bytes.len() as u64 <= entry.size()
        {
            attributes.mode = 0o600;
            session.resumed.insert(token);
            let state = State { entry: Arc::clone(entry), directory, token: resume, sealed: false };
            session.states.insert(entry.id, state);
            return Ok(Prepared::Resume(token));
        }
        Ok(Prepared::Start(self.tokens.make()))
    }

    fn prepare_symlink(&self, session: &mut Session, entry: &Arc<Entry>) -> Outcome<Prepared> {
        let (directory, path) = self.locate(session, entry)?;
        let target = &entry.link_target;
        if target.is_empty()
            || target.contains(&0)
            || target.len() >= haul_model::limits::LINK_TARGET_BYTES_MAX
        {
            return Err(Code::NameInvalid.into());
        }
        let mut nodes = self.tree.nodes();
        let wanted = Attributes { mode: 0o777, ..self.wanted(entry, None) };
        let link = MemoryNode { kind: MemoryKind::Symlink(target.clone()), attributes: wanted };
        match nodes.get_mut(&path) {
            Some(present) if directory.made && present.kind != link.kind => {
                return Err(Code::NameTaken.into());
            }
            Some(present) if present.kind == MemoryKind::Directory => {
                return Err(Code::SinkIsDirectory.into());
            }
            Some(present) if present.kind == link.kind && !directory.made => {
                *present = link;
                return Ok(Prepared::Skip);
            }
            _ => {}
        }
        nodes.insert(path, link);
        let state = State { entry: Arc::clone(entry), directory, token: None, sealed: true };
        session.states.insert(entry.id, state);
        Ok(Prepared::Made)
    }

    fn sweep(&self, session: &Session, directory: &[u8]) {
        self.tree.nodes().retain(|path, _| {
            let (parent, name) = split(path);
            let left_over = |token: Token| {
                self.tokens.is_of_job(token)
                    && !self.tokens.is_of_session(token)
                    && !session.resumed.contains(&token)
            };
            parent != directory || !parse(name).is_some_and(left_over)
        });
    }

    fn write_members(
        &self,
        session: &mut Session,
        members: Vec<MemberWrite>,
        bytes: &[u8],
    ) -> Vec<Outcome<()>> {
        let mut write = |MemberWrite { entry, offset, hash }| -> Outcome<()> {
            let entry: Arc<Entry> = entry;
            if entry.kind != Kind::File {
                return Err(Code::Protocol.into());
            }
            let start = offset as usize;
            let end = usize::try_from(entry.size()).ok().and_then(|size| start.checked_add(size));
            let bytes = end.and_then(|end| bytes.get(start..end)).ok_or(Code::Protocol)?;
            if object_hash(HashKind::Blake3, bytes, 0, true) != hash {
                return Err(Code::HashMismatch.into());
            }
            let (directory, _) = self.locate(session, &entry)?;
            self.remove_state(session, entry.id);
            let token = self.tokens.make();
            let node =
                MemoryNode { kind: MemoryKind::File(bytes.to_vec()), attributes: self.wanted(&entry, None) };
            self.tree.nodes().insert(temporary(&directory, TempName::contents(token)), node);
            let id = entry.id;
            session.states.insert(id, State { entry, directory, token: Some(token), sealed: true });
            Ok(())
        };
        members.into_iter().map(&mut write).collect()
    }

    fn unfinished(&self, session: &mut Session, entry: &Arc<Entry>, token: Token) -> Outcome<State> {
        if let Some(state) = session.states.get(&entry.id)
            && state.token == Some(token)
        {
            return Ok(state.clone());
        }
        if entry.kind != Kind::File || !self.tokens.is_of_session(token) {
            return Err(Code::Internal.into());
        }
        let (directory, _) = self.locate(session, entry)?;
        self.remove_state(session, entry.id);
        let attributes = Attributes { mode: 0o600, ..Attributes::default() };
        let node = MemoryNode { kind: MemoryKind::File(Vec::new()), attributes };
        self.tree.nodes().insert(temporary(&directory, TempName::contents(token)), node);
        let state = State { entry: Arc::clone(entry), directory, token: Some(token), sealed: false };
        session.states.insert(entry.id, state.clone());
        Ok(state)
    }

    fn write_object(
        &self,
        session: &mut Session,
        entry: &Arc<Entry>,
        token: Token,
        (object_bytes, offset, single, hash): (u32, u64, bool, Hash),
        bytes: &[u8],
    ) -> Outcome<()> {
        let cut = Cut::of(entry, object_bytes, self.object_bytes)?;
        let index = cut.index(offset, bytes.len() as u32, single)?;
        if object_hash(HashKind::Blake3, bytes, offset, single) != hash {
            return Err(Code::HashMismatch.into());
        }
        let state = self.unfinished(session, entry, token)?;
        if state.sealed {
            return Ok(());
        }
        self.write_at(&temporary(&state.directory, TempName::contents(token)), offset, bytes);
        if !single {
            let sum = sums::encode(token, cut, index, hash);
            let path = temporary(&state.directory, TempName::sums(token));
            self.write_at(&path, index * sums::ENTRY_BYTES as u64, &sum);
        }
        Ok(())
    }

    fn write_at(&self, path: &[u8], offset: u64, bytes: &[u8]) {
        let mut nodes = self.tree.nodes();
        let node = nodes.entry(path.to_vec()).or_insert_with(|| MemoryNode {
            kind: MemoryKind::File(Vec::new()),
            attributes: Attributes { mode: 0o600, ..Attributes::default() },
        });
        let MemoryKind::File(content) = &mut node.kind else { return };
        let start = offset as usize;
        if content.len() < start + bytes.len() {
            content.resize(start + bytes.len(), 0);
        }
        content[start..][..bytes.len()].copy_from_slice(bytes);
    }

    fn seal(
        &self,
        session: &mut Session,
        entry: &Arc<Entry>,
        token: Token,
        object_bytes: u32,
        root: Option<Hash>,
    ) -> Outcome<Hash> {
        let state = self.unfinished(session, entry, token)?;
        let cut = Cut::of(entry, object_bytes, self.object_bytes)?;
        let mut nodes = self.tree.nodes();
        let table = nodes.get(&temporary(&state.directory, TempName::sums(token))).cloned();
        let Some(MemoryNode { kind: MemoryKind::File(content), attributes }) =
            nodes.get_mut(&temporary(&state.directory, TempName::contents(token)))
        else {
            return Err(Code::SinkWrite.into());
        };
        if content.len() as u64 != cut.size {
            return Err(Code::HashMismatch.into());
        }
        let table = match table {
            Some(MemoryNode { kind: MemoryKind::File(table), .. }) => table,
            _ => Vec::new(),
        };
        let mut combiner = Combiner::new(HashKind::Blake3);
        for (index, entry) in
            (0..cut.count()).zip(table.chunks(sums::ENTRY_BYTES).chain(std::iter::repeat(&[][..])))
        {
            let (offset, length) = cut.range(index);
            let bytes = &content[offset as usize..][..length as usize];
            let known = sums::decode(token, cut, index, entry);
            combiner.push(known.unwrap_or_else(|| object_hash(HashKind::Blake3, bytes, offset, false)));
        }
        let found = combiner.root().unwrap_or_else(|| object_hash(HashKind::Blake3, content, 0, true));
        if root.is_some_and(|root| root != found) {
            return Err(Code::HashMismatch.into());
        }
        *attributes = self.wanted(entry, Some(attributes));
        drop(nodes);
        session.states.insert(entry.id, State { sealed: true, ..state });
        Ok(found)
    }

    fn publish(&self, session: &mut Session, id: EntryId) -> Outcome<()> {
        let state = session.states.get(&id).ok_or(Code::Internal)?.clone();
        let Some(token) = state.token else { return Ok(()) };
        if !state.sealed {
            return Err(Code::Internal.into());
        }
        let (_, path) = self.locate(session, &state.entry)?;
        let mut nodes = self.tree.nodes();
        match nodes.get(&path).map(|node| &node.kind) {
            Some(_) if state.directory.made => return Err(Code::NameTaken.into()),
            Some(MemoryKind::Directory) => return Err(Code::SinkIsDirectory.into()),
            _ => {}
        }
        let node = nodes.remove(&temporary(&state.directory, TempName::contents(token)));
        nodes.insert(path, node.ok_or(Code::SinkWrite)?);
        nodes.remove(&temporary(&state.directory, TempName::sums(token)));
        session.resumed.remove(&token);
        session.states.insert(id, State { token: None, ..state });
        Ok(())
    }

    fn remove_state(&self, session: &mut Session, id: EntryId) {
        let Some(state) = session.states.remove(&id) else { return };
        let Some(token) = state.token else { return };
        session.resumed.remove(&token);
        let mut nodes = self.tree.nodes();
        nodes.remove(&temporary(&state.directory, TempName::contents(token)));
        nodes.remove(&temporary(&state.directory, TempName::sums(token)));
    }

    fn finish_directories(&self, session: &Session) -> FailedPaths {
        let mut failed = FailedPaths::default();
        let mut nodes = self.tree.nodes();
        for (path, wanted) in session.announced.iter().rev().filter(|(path, _)| !path.is_empty()) {
            match nodes.get_mut(path) {
                Some(MemoryNode { kind: MemoryKind::Directory, attributes }) => {
                    let mode = wanted.mode & 0o1777 | attributes.mode & 0o2000;
                    let (uid, gid) = if self.preserve_owner {
                        (wanted.uid, wanted.gid)
                    } else {
                        (attributes.uid, attributes.gid)
                    };
                    *attributes = Attributes { mode, uid, gid, ..*wanted };
                }
                _ => failed.add(Code::SinkParentFailed.into(), || path.as_slice().into()),
            }
        }
        failed
    }
}

impl SinkStorage for MemorySink {
    fn run(&self, op: SinkOp, pool: &Pool) -> Option<SinkDone> {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let session = &mut *session;
        let failures = |results: Vec<(EntryId, Outcome<()>)>| {
            results.into_iter().filter_map(|(id, result)| Some((id, result.err()?))).collect()
        };
        Some(match op {
            SinkOp::Prepare { batch, items } => SinkDone::Prepared {
                batch,
                answers: self.prepare(session, items),
                laid: Vec::new(),
                unlaid: Vec::new(),
            },
            // All is on one target, so it never asks for that.
            SinkOp::Lay { entry, .. } => SinkDone::Laid { id: entry.id, result: Ok(None), unlike: None },
            SinkOp::WriteObject {
                block,
                entry,
                token,
                object_bytes,
                offset,
                length,
                slot,
                hash,
                single,
                ..
            } => {
                let result = pool.lease(slot).ok_or(Failure::new(Code::Internal)).and_then(|lease| {
                    let bytes = lease.get(..length as usize).ok_or(Code::Protocol)?;
                    self.write_object(session, &entry, token, (object_bytes, offset, single, hash), bytes)
                });
                SinkDone::Written { block, result }
            }
            SinkOp::WriteMembers { block, step, slot, length, members, progress } => {
                let results = match pool.lease(slot).filter(|_| progress.ends()) {
                    Some(lease) => {
                        self.write_members(session, members, &lease[..lease.len().min(length as usize)])
                    }
                    None => members.iter().map(|_| Err(Code::Internal.into())).collect(),
                };
                let results = results.into_iter().map(|result| result.map(|()| Landed::Written)).collect();
                SinkDone::WrittenMembers { block, step, results }
            }
            SinkOp::Seal { entry, token, object_bytes, root, .. } => SinkDone::Sealed {
                id: entry.id,
                result: self.seal(session, &entry, token, object_bytes, root),
            },
            SinkOp::Sync { group, files } => {
                let known = |id: &EntryId| session.states.get(id).map(|_| ()).ok_or(Code::Internal.into());
                let results = files.iter().map(|id| (*id, known(id))).collect();
                SinkDone::Synced { group, failed: failures(results) }
            }
            SinkOp::Publish { group, files } => {
                let results = files.into_iter().map(|id| (id, self.publish(session, id))).collect();
                SinkDone::Published { group, failed: failures(results) }
            }
            SinkOp::SyncNames { group, entries } => {
                let mut named = |id: &EntryId| match session.states.get(id) {
                    Some(State { token: None, .. }) => {
                        session.states.remove(id);
                        Ok(())
                    }
                    _ => Err(Code::Internal.into()),
                };
                let results = entries.iter().map(|id| (*id, named(id))).collect();
                SinkDone::SyncedNames { group, failed: failures(results) }
            }
            SinkOp::Discard { id, token, keep } => {
                let other = session.states.get(&id).is_some_and(|state| {
                    token != Token::NONE && state.token.is_some_and(|known| known != token)
                });
                if keep && token != Token::NONE && !other {
                    session.states.remove(&id);
                } else if !other {
                    self.remove_state(session, id);
                }
                SinkDone::Discarded { id }
            }
            SinkOp::Forget { id } => {
                session.directories.remove(&id);
                return None;
            }
            SinkOp::FinishDirectories { .. } => {
                SinkDone::DirectoriesFinished { failed: self.finish_directories(session) }
            }
        })
    }
}

fn below(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

fn temporary(directory: &Directory, name: TempName) -> Vec<u8> {
    below(&directory.path, name.as_bytes())
}
