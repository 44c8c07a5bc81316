//! What the sink's storage does with the operations of its master, on the modelled [`Disk`].
//!
//! It follows the contract of `haul_model::op` and, where that leaves a choice, the worst that the real storage may do.

use hashbrown::HashMap;
use haul_model::op::{Landed, MemberWrite, MemberWritten, MembersStep, Prepare, Prepared, SinkDone, SinkOp};
use haul_model::placement::Piece;
use haul_model::report::FailedPaths;
use haul_model::{Code, Entry, EntryId, Failure, Hash, Kind, Laid, Placement, Target, Token};

use crate::content::{GARBAGE, HOLE, Payload, root_of};
use crate::disk::{Disk, Thing};
use crate::lay::laid;
use crate::plan::Rates;
use crate::random::Random;
use crate::tree::{PathId, Tree};

enum State {
    /// A bundle member that is made, not yet written.
    Made(usize),
    /// A bundle member that is written, not yet named.
    Member(usize),
    /// A file with objects, not yet named.
    Unfinished { temp: usize, sealed: bool },
    /// It has its final name, not yet durable.
    Named(PathId),
}

/// One for each entry, in order.
type Answers = Vec<(EntryId, Prepared)>;

struct Directory {
    path: PathId,
    failed: bool,
}

/// Storage of one session of the sink.
pub struct SinkStorage {
    session: u32,
    tokens: u64,
    directories: HashMap<EntryId, Directory>,
    states: HashMap<EntryId, State>,
    /// Unfinished files that stay for a later session, unless the source turns out to have started anew.
    kept: HashMap<EntryId, usize>,
    /// Of files that lie on several targets.
    placements: HashMap<EntryId, Laid>,
    claimed: Vec<Token>,
    prepared: Vec<PathId>,
    /// A target was found to be full when nothing was on any other: the sink may end the job then, whatever comes later.
    only_full_ones: bool,
}

/// What an operation works with, and what it tells beside its completion.
pub struct Context<'a> {
    /// The disk.
    pub disk: &'a mut Disk,
    /// The dataset, for names only.
    pub tree: &'a Tree,
    /// Chance.
    pub random: &'a mut Random,
    /// What goes wrong.
    pub rates: Rates,
    /// Paths that something happened to: their failure has a reason.
    pub troubled: &'a mut Vec<bool>,
    /// Directories that could not be listed.
    pub unlisted: &'a [PathId],
    /// Paths of which an unfinished file stays for a later session.
    pub left: &'a mut Vec<PathId>,
    /// The operation may have been given up by now: what it is about may be gone.
    pub late: bool,
    /// Something has hung in this session: files may be left.
    pub hung: bool,
    /// Targets that may be given up with all that is on them.
    pub dead: &'a [Target],
    /// Paths that got their final name.
    pub published: Vec<PathId>,
    /// The master broke the contract.
    pub broken: Option<String>,
}

impl Context<'_> {
    fn fails(&mut self, permille: u32, path: PathId, code: Code) -> Result<(), Failure> {
        if !self.random.chance(permille) {
            return Ok(());
        }
        self.troubled[path] = true;
        Err(Failure::os(code, 5))
    }

    fn has_room(&mut self, target: Target, path: PathId) -> Result<(), Failure> {
        if target == 0 || self.rates.full != target {
            return Ok(());
        }
        self.troubled[path] = true;
        Err(Failure::os(Code::SinkNoSpace, 28))
    }

    fn broken(&mut self, what: impl FnOnce() -> String) {
        if !self.late {
            self.broken.get_or_insert_with(what);
        }
    }
}

/// An operation under way, with what storage remembers of its beginning.
pub struct Started {
    /// The operation.
    pub op: SinkOp,
    /// The disk's clock.
    pub clock: u32,
    /// Failed syncs of the file so far.
    pub failures: u32,
    /// By which the master knows it, if it is an errand.
    pub number: Option<u64>,
    /// It takes effect when nobody waits for it any more.
    pub late: bool,
    /// Its end is told when nobody waits for it any more.
    pub told_late: bool,
}

impl SinkStorage {
    /// Of a session.
    pub fn new(session: u32) -> Self {
        SinkStorage {
            session,
            tokens: 0,
            directories: HashMap::new(),
            states: HashMap::new(),
            kept: HashMap::new(),
            placements: HashMap::new(),
            claimed: vec![],
            prepared: vec![],
            only_full_ones: false,
        }
    }

    /// Directories that are held and files that have no durable final name yet.
    pub fn held(&self) -> (usize, usize) {
        (self.directories.len(), self.states.len())
    }

    /// Did this session make that token?
    pub fn is_of_session(&self, token: Token) -> bool {
        token.session_tag() == self.session.to_be_bytes()
    }

    fn token(&mut self) -> Token {
        self.tokens += 1;
        let mut token = Token(*b"haulhaul-session");
        token.0[6..10].copy_from_slice(&self.session.to_be_bytes());
        token.0[10..].copy_from_slice(&self.tokens.to_be_bytes()[2..]);
        token
    }

    /// An operation is handed over.
    pub fn start(&self, op: SinkOp, disk: &Disk) -> Started {
        let failures = match &op {
            SinkOp::WriteObject { entry, .. } => match self.states.get(&entry.id) {
                Some(State::Unfinished { temp, .. }) => disk.inodes[disk.temps[*temp].inode].failures,
                _ => 0,
            },
            _ => 0,
        };
        Started { op, clock: disk.clock(), failures, number: None, late: false, told_late: false }
    }

    /// What an object of a file is on.
    pub fn target_at(&self, id: EntryId, offset: u64) -> Target {
        let laid = self.placements.get(&id);
        laid.map_or(0, |laid| laid.placement.target((offset / u64::from(laid.object_bytes)) as u32))
    }

    /// An operation takes effect.
    pub fn perform(
        &mut self,
        started: Started,
        slots: &[Payload],
        context: &mut Context,
    ) -> Option<SinkDone> {
        let Started { op, clock, failures, .. } = started;
        Some(match op {
            SinkOp::Prepare { batch, items } => {
                let (answers, laid, unlaid) = self.prepare(items, context);
                SinkDone::Prepared { batch, answers, laid, unlaid }
            }
            SinkOp::Lay { entry, token, resumed, object_bytes, .. } => {
                let result = self.make(&entry, token, resumed, object_bytes, context);
                if result.is_err() && resumed {
                    // What was begun by an earlier session stays for a later one.
                    self.states.remove(&entry.id);
                    context.left.push(context.tree.path_of(&entry));
                }
                SinkDone::Laid { id: entry.id, result, unlike: None }
            }
            SinkOp::WriteObject { block, entry, token, offset, length, slot, hash, single, .. } => {
                let payload = &slots[slot.0 as usize];
                let object = Object { offset, length, hash, single, failures };
                let target = self.target_at(entry.id, offset);
                let path = context.tree.path_of(&entry);
                let room = context.has_room(target, path);
                self.only_full_ones |= room.is_err() && !self.is_on_others(target);
                let result = room.and_then(|()| self.write_object(&entry, token, object, payload, context));
                SinkDone::Written { block, result }
            }
            // It was given up while it hung: nothing of it stays.
            SinkOp::WriteMembers { block, step, progress, .. } if !progress.ends() => {
                SinkDone::WrittenMembers { block, step, results: Vec::new() }
            }
            SinkOp::WriteMembers { block, step, slot, members, .. } => {
                let payload = &slots[slot.0 as usize];
                let several = context.random.chance(300);
                let in_memory = !several && context.random.chance(150);
                let write = |member: MemberWrite| match step {
                    MembersStep::Make if in_memory => {
                        let id = member.entry.id;
                        self.make_member(member, payload, several, context)?;
                        self.name_at_once(id, context)
                    }
                    MembersStep::Make => self.make_member(member, payload, several, context),
                    MembersStep::Fill { target, .. } => {
                        let room = context.has_room(target, context.tree.path_of(&member.entry));
                        room.and_then(|()| self.fill_member(member, payload, context))
                            .map(|()| Landed::Written)
                    }
                };
                SinkDone::WrittenMembers { block, step, results: members.into_iter().map(write).collect() }
            }
            SinkOp::Seal { entry, token, root, .. } => {
                SinkDone::Sealed { id: entry.id, result: self.seal(&entry, token, root, context) }
            }
            SinkOp::Sync { group, files } => {
                let sync = |id: &EntryId| Some((*id, self.sync(*id, clock, context).err()?));
                SinkDone::Synced { group, failed: files.iter().filter_map(sync).collect() }
            }
            SinkOp::Publish { group, files } => {
                let publish = |id: &EntryId| Some((*id, self.publish(*id, context).err()?));
                SinkDone::Published { group, failed: files.iter().filter_map(publish).collect() }
            }
            SinkOp::SyncNames { group, entries } => {
                let sync = |id: &EntryId| Some((*id, self.sync_name(*id, context).err()?));
                SinkDone::SyncedNames { group, failed: entries.iter().filter_map(sync).collect() }
            }
            SinkOp::Discard { id, keep: true, .. } => {
                if let Some(State::Unfinished { temp, .. }) = self.states.remove(&id) {
                    self.kept.insert(id, temp);
                }
                SinkDone::Discarded { id }
            }
            SinkOp::Discard { id, token, .. } => {
                self.discard(id, token, context.disk);
                SinkDone::Discarded { id }
            }
            SinkOp::Forget { id } => {
                self.forget(id, context);
                return None;
            }
            SinkOp::FinishDirectories { whole } => {
                SinkDone::DirectoriesFinished { failed: self.finish(whole, context) }
            }
        })
    }

    fn prepare(
        &mut self,
        items: Vec<Prepare>,
        context: &mut Context,
    ) -> (Answers, Vec<(EntryId, Laid)>, Vec<EntryId>) {
        let (mut answers, mut laid, mut unlaid) = (Vec::new(), Vec::new(), Vec::new());
        for item in items {
            match item {
                Prepare::Entry { entry, resume, object_bytes, .. } => {
                    let answer = match entry.kind {
                        Kind::Directory => self.prepare_directory(&entry, context),
                        Kind::Symlink => self.prepare_link(&entry, context),
                        _ => self.prepare_file(&entry, resume, object_bytes.is_some(), context),
                    };
                    if let (Ok(Prepared::Start(_) | Prepared::Resume(_)), Some(bytes)) =
                        (&answer, object_bytes)
                    {
                        let resumed = matches!(answer, Ok(Prepared::Resume(_)));
                        match context.random.chance(300) {
                            true => unlaid.push(entry.id),
                            false => {
                                let found = self.lay(&entry, resumed, bytes, context);
                                laid.extend(found.map(|laid| (entry.id, laid)))
                            }
                        }
                    }
                    answers.push((entry.id, answer.unwrap_or_else(Prepared::Fail)));
                }
                Prepare::End(id) => match self.directories.get(&id) {
                    Some(Directory { path, .. }) if context.unlisted.contains(path) => {
                        context.broken(|| format!("{id:?}, which could not be listed, is swept"));
                    }
                    Some(Directory { path, failed: false }) => self.sweep(Some(*path), context),
                    Some(_) => {}
                    None => context.broken(|| format!("the end of {id:?}, which is not held")),
                },
            }
        }
        (answers, laid, unlaid)
    }

    /// Makes an unfinished file before it is known how it lies.
    fn make(
        &mut self,
        entry: &Entry,
        token: Token,
        resumed: bool,
        object_bytes: u32,
        context: &mut Context,
    ) -> Result<Option<Laid>, Failure> {
        let path = self.locate(entry, context)?;
        context.fails(context.rates.no_space / 2, path, Code::SinkNoSpace)?;
        context.fails(context.rates.prepare_error, path, Code::SinkPermission)?;
        if entry.size() > 0 {
            let temp = self.unfinished(entry, token, context)?;
            let inode = context.disk.temps[temp].inode;
            context.disk.set_size(inode, entry.size());
        }
        Ok(self.lay(entry, resumed, object_bytes, context))
    }

    /// Some files lie on several targets; then what starts may want smaller objects.
    fn lay(
        &mut self,
        entry: &Entry,
        resumed: bool,
        object_bytes: u32,
        context: &mut Context,
    ) -> Option<Laid> {
        let starts = !resumed;
        if !context.random.chance(300) {
            return None;
        }
        let smaller = starts && object_bytes / 2 >= context.disk.grain() && context.random.coin();
        let laid = laid(if smaller { object_bytes / 2 } else { object_bytes }, context.random);
        self.place(entry, laid.clone(), context);
        Some(laid)
    }

    fn place(&mut self, entry: &Entry, laid: Laid, context: &mut Context) {
        self.placements.insert(entry.id, laid);
        if context.dead.iter().any(|target| self.is_on(entry.id, *target)) {
            let path = context.tree.path_of(entry);
            context.troubled[path] = true;
            context.left.push(path);
        }
    }

    /// A member of a bundle is on this target.
    fn place_member(&mut self, entry: &Entry, target: Target, context: &mut Context) {
        let piece = Piece { first: 0, run: 1, targets: [target].into() };
        let placement = Placement::new(vec![piece]).unwrap_or_default();
        self.place(entry, Laid { object_bytes: 1, placement }, context);
    }

    /// A part of the entry is on this target, as far as the master was told.
    pub fn is_on(&self, id: EntryId, target: Target) -> bool {
        let pieces = self.placements.get(&id).map(|laid| laid.placement.pieces());
        pieces.is_some_and(|pieces| pieces.iter().any(|piece| piece.targets.contains(&target)))
    }

    /// What the entry is on.
    pub fn targets_of(&self, id: EntryId) -> Vec<Target> {
        let pieces = self.placements.get(&id).into_iter().flat_map(|laid| laid.placement.pieces());
        let mut targets: Vec<Target> = pieces.flat_map(|piece| piece.targets.iter().copied()).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// Entries of which a part is on this target.
    pub fn all_on(&self, target: Target) -> Vec<EntryId> {
        self.placements.keys().copied().filter(|id| self.is_on(*id, target)).collect()
    }

    /// This one is full; as far as the sink could know, all are.
    pub fn has_only_full_ones(&self, target: Target) -> bool {
        self.only_full_ones || !self.is_on_others(target)
    }

    /// Something is known to be on another target.
    fn is_on_others(&self, target: Target) -> bool {
        let pieces = self.placements.values().flat_map(|laid| laid.placement.pieces());
        pieces.flat_map(|piece| &piece.targets).any(|other| *other != target && *other != 0)
    }

    /// The path of an entry, if its directory is there.
    fn locate(&mut self, entry: &Entry, context: &mut Context) -> Result<PathId, Failure> {
        let path = context.tree.path_of(entry);
        if entry.parent.root_index().is_some() {
            return Ok(path);
        }
        match self.directories.get(&entry.parent) {
            Some(directory) if directory.failed => {
                context.troubled[path] = true;
                Err(Code::SinkParentFailed.into())
            }
            Some(directory) if Some(directory.path) == context.tree.nodes[path].parent => Ok(path),
            _ => {
                context.broken(|| format!("{:?} is used, but {:?} is not held", entry.id, entry.parent));
                Err(Code::Internal.into())
            }
        }
    }

    fn prepare_directory(&mut self, entry: &Entry, context: &mut Context) -> Result<Prepared, Failure> {
        let located = self.locate(entry, context);
        let path = context.tree.path_of(entry);
        let made = located.and_then(|path| {
            context.fails(context.rates.no_space / 2, path, Code::SinkNoSpace)?;
            context.fails(context.rates.prepare_error, path, Code::SinkPermission)?;
            let name = &mut context.disk.names[path];
            match name.now {
                None => name.now = Some(Thing::Directory),
                Some(Thing::Directory) => {}
                Some(_) => {
                    context.troubled[path] = true;
                    return Err(Code::SinkNotDirectory.into());
                }
            }
            self.prepared.push(path);
            Ok(Prepared::Made)
        });
        self.directories.insert(entry.id, Directory { path, failed: made.is_err() });
        made
    }

    fn prepare_link(&mut self, entry: &Entry, context: &mut Context) -> Result<Prepared, Failure> {
        let path = self.locate(entry, context)?;
        context.fails(context.rates.prepare_error, path, Code::SinkPermission)?;
        match context.disk.names[path].now {
            Some(Thing::Link) => return Ok(Prepared::Skip),
            Some(Thing::Directory) => {
                context.troubled[path] = true;
                return Err(Code::SinkIsDirectory.into());
            }
            Some(Thing::File(_)) | None => {}
        }
        context.disk.names[path].now = Some(Thing::Link);
        self.states.insert(entry.id, State::Named(path));
        Ok(Prepared::Made)
    }

    fn prepare_file(
        &mut self,
        entry: &Entry,
        resume: Option<Token>,
        objects: bool,
        context: &mut Context,
    ) -> Result<Prepared, Failure> {
        let path = self.locate(entry, context)?;
        context.fails(context.rates.no_space / 2, path, Code::SinkNoSpace)?;
        context.fails(context.rates.prepare_error, path, Code::SinkPermission)?;
        match context.disk.names[path].now {
            Some(Thing::Directory) => {
                context.troubled[path] = true;
                return Err(Code::SinkIsDirectory.into());
            }
            Some(Thing::File(inode)) => {
                let file = &context.disk.inodes[inode];
                let present = &context.tree.stamps[file.attributes.now as usize];
                if file.size == entry.size() && present.mtime == entry.attributes.mtime {
                    let stamp = Tree::stamp_of(entry);
                    context.disk.fix_attributes(inode, stamp);
                    return Ok(Prepared::Skip);
                }
            }
            Some(Thing::Link) | None => {}
        }
        if !objects {
            return Ok(Prepared::Start(Token::NONE));
        }
        if let Some(token) = resume
            && let Some(temp) = context.disk.find(token)
            && !self.is_of_session(token)
        {
            if context.disk.temps[temp].path != path {
                context.broken(|| format!("{:?} resumes the unfinished file of another", entry.id));
            }
            self.claimed.push(token);
            self.states.insert(entry.id, State::Unfinished { temp, sealed: false });
            return Ok(Prepared::Resume(token));
        }
        Ok(Prepared::Start(self.token()))
    }

    /// Removes what earlier sessions left and this one did not take up.
    fn sweep(&self, directory: Option<PathId>, context: &mut Context) {
        for temp in &mut context.disk.temps {
            let left_over = !self.is_of_session(temp.token) && !self.claimed.contains(&temp.token);
            if left_over && context.tree.nodes[temp.path].parent == directory {
                temp.now = false;
            }
        }
    }

    fn unfinished(&mut self, entry: &Entry, token: Token, context: &mut Context) -> Result<usize, Failure> {
        let path = self.locate(entry, context)?;
        if let Some(State::Unfinished { temp, .. }) = self.states.get(&entry.id)
            && context.disk.temps[*temp].token == token
        {
            return Ok(*temp);
        }
        if !self.is_of_session(token) {
            context.broken(|| format!("{:?} writes to {token:?}, which was not claimed", entry.id));
            return Err(Code::Internal.into());
        }
        let temp = context.disk.create(token, path);
        self.states.insert(entry.id, State::Unfinished { temp, sealed: false });
        Ok(temp)
    }

    fn write_object(
        &mut self,
        entry: &Entry,
        token: Token,
        object: Object,
        payload: &Payload,
        context: &mut Context,
    ) -> Result<(), Failure> {
        let path = context.tree.path_of(entry);
        let piece = payload.pieces.first().copied().filter(|piece| piece.length == object.length);
        let right = piece.is_some_and(|piece| piece.hash(object.offset, object.single) == object.hash);
        let Some(piece) = piece.filter(|_| right) else {
            if !payload.altered {
                context.broken(|| format!("{:?} at {}: the slot holds other bytes", entry.id, object.offset));
            }
            return Err(Code::HashMismatch.into());
        };
        context.fails(context.rates.no_space, path, Code::SinkNoSpace)?;
        let temp = self.unfinished(entry, token, context)?;
        let inode = context.disk.temps[temp].inode;
        if let Err(failure) = context.fails(context.rates.write_error, path, Code::SinkWrite) {
            // Of what comes too late the same bytes may have been written again, and acknowledged: those it does not spoil.
            let left = if context.late { piece.content } else { GARBAGE };
            context.disk.write(inode, object.offset, object.length, left, true);
            return Err(failure);
        }
        // A sync of the file failed since this write began: storage says so, or only the failed sync does.
        let kept = context.disk.inodes[inode].failures == object.failures || context.random.coin();
        context.disk.write(inode, object.offset, object.length, piece.content, kept);
        if kept { Ok(()) } else { Err(Code::SinkSync.into()) }
    }

    /// Writes a member, or makes it where it may lie on several targets.
    fn make_member(
        &mut self,
        member: MemberWrite,
        payload: &Payload,
        several: bool,
        context: &mut Context,
    ) -> MemberWritten {
        let path = self.locate(&member.entry, context)?;
        self.content_of(&member, payload, context)?;
        context.fails(context.rates.no_space, path, Code::SinkNoSpace)?;
        self.remove(member.entry.id, context.disk);
        let token = self.token();
        let temp = context.disk.create(token, path);
        self.states.insert(member.entry.id, State::Made(temp));
        if several && member.entry.size() > 0 {
            let target = context.random.between(1, 4) as Target;
            self.place_member(&member.entry, target, context);
            return Ok(Landed::Made(target));
        }
        self.fill_member(member, payload, context).map(|()| Landed::Written)
    }

    /// A member that is written is as durable as it will be, and gets its name.
    fn name_at_once(&mut self, id: EntryId, context: &mut Context) -> MemberWritten {
        let named = self.sync(id, context.disk.clock(), context).and_then(|()| self.publish(id, context));
        let Some(State::Named(path)) = self.states.get(&id).filter(|_| named.is_ok()) else {
            self.remove(id, context.disk);
            return named.and(Err(Code::Internal.into()));
        };
        context.disk.sync_name(*path);
        context.tree.ancestors(*path).for_each(|parent| context.disk.sync_name(parent));
        self.states.remove(&id);
        Ok(Landed::Named)
    }

    /// What the slot holds for a member.
    fn content_of(
        &self,
        member: &MemberWrite,
        payload: &Payload,
        context: &mut Context,
    ) -> Result<u32, Failure> {
        let MemberWrite { entry, offset, hash } = member;
        let mut content = HOLE;
        if entry.size() > 0 {
            let fits = |piece: &&crate::content::Piece| {
                piece.at == *offset && u64::from(piece.length) == entry.size() && piece.hash(0, true) == *hash
            };
            let Some(piece) = payload.pieces.iter().find(fits) else {
                if !payload.altered {
                    context.broken(|| format!("{:?}: the slot holds other bytes", entry.id));
                }
                return Err(Code::HashMismatch.into());
            };
            content = piece.content;
        } else if *hash != root_of(HOLE, 0) {
            context.broken(|| format!("{:?}: an empty file has another hash", entry.id));
            return Err(Code::HashMismatch.into());
        }
        Ok(content)
    }

    /// The contents and attributes of a member that is made.
    fn fill_member(
        &mut self,
        member: MemberWrite,
        payload: &Payload,
        context: &mut Context,
    ) -> Result<(), Failure> {
        let path = self.locate(&member.entry, context)?;
        let content = self.content_of(&member, payload, context)?;
        let entry = member.entry;
        let Some(State::Made(temp)) = self.states.get(&entry.id) else {
            context.broken(|| format!("{:?} is to be filled, and was not made", entry.id));
            return Err(Code::Internal.into());
        };
        let temp = *temp;
        context.fails(context.rates.write_error, path, Code::SinkWrite)?;
        let inode = context.disk.temps[temp].inode;
        if entry.size() > 0 {
            context.disk.write(inode, 0, entry.size() as u32, content, true);
        }
        context.disk.set_attributes(inode, Tree::stamp_of(&entry));
        self.states.insert(entry.id, State::Member(temp));
        Ok(())
    }

    fn seal(
        &mut self,
        entry: &Entry,
        token: Token,
        root: Option<Hash>,
        context: &mut Context,
    ) -> Result<Hash, Failure> {
        let path = context.tree.path_of(entry);
        context.fails(context.rates.seal_error, path, Code::SinkAttributes)?;
        let temp = self.unfinished(entry, token, context)?;
        let inode = context.disk.temps[temp].inode;
        let size = context.disk.inodes[inode].size;
        if size != entry.size() {
            context.broken(|| format!("{:?} is sealed with {size} bytes of {}", entry.id, entry.size()));
            return Err(Code::SinkWrite.into());
        }
        let file = &context.disk.inodes[inode];
        // A hash that was lost or damaged is computed again from the contents.
        let known = |(sum, cell): (&crate::disk::Cell, &crate::disk::Cell)| match sum.now {
            HOLE | GARBAGE => cell.now,
            content => content,
        };
        let mut contents = file.sums.iter().zip(&file.cells).map(known);
        let first = contents.next().unwrap_or(HOLE);
        let content = if contents.all(|content| content == first) { first } else { GARBAGE };
        let found = root_of(content, entry.size());
        if root.is_some_and(|root| root != found) {
            return Err(Code::HashMismatch.into());
        }
        context.disk.set_attributes(inode, Tree::stamp_of(entry));
        self.states.insert(entry.id, State::Unfinished { temp, sealed: true });
        Ok(found)
    }

    fn sync(&mut self, id: EntryId, since: u32, context: &mut Context) -> Result<(), Failure> {
        let (temp, named) = match self.states.get(&id) {
            Some(State::Member(temp)) => (*temp, false),
            Some(State::Unfinished { temp, .. }) => (*temp, true),
            Some(State::Named(_)) => return Ok(()),
            Some(State::Made(_)) | None => return Err(Code::Internal.into()),
        };
        let (inode, path) = (context.disk.temps[temp].inode, context.disk.temps[temp].path);
        let full = context.fails(context.rates.no_space / 2, path, Code::SinkNoSpace);
        let synced = full.and_then(|()| context.fails(context.rates.sync_error, path, Code::SinkSync));
        if let Err(failure) = synced {
            context.disk.fail_sync(inode, context.random);
            match self.states.get_mut(&id) {
                Some(State::Unfinished { sealed, .. }) => *sealed = false,
                _ => self.remove(id, context.disk),
            }
            return Err(failure);
        }
        context.disk.sync(inode, since, context.random);
        if named {
            context.disk.temps[temp].durable = true;
            context.tree.ancestors(path).for_each(|parent| context.disk.sync_name(parent));
        }
        Ok(())
    }

    fn publish(&mut self, id: EntryId, context: &mut Context) -> Result<(), Failure> {
        let temp = match self.states.get(&id) {
            Some(State::Member(temp) | State::Unfinished { temp, sealed: true }) => *temp,
            Some(State::Named(_)) => return Ok(()),
            Some(State::Made(_) | State::Unfinished { .. }) | None => {
                context.broken(|| format!("{id:?} is published, but is not ready"));
                return Err(Code::Internal.into());
            }
        };
        let path = context.disk.temps[temp].path;
        context.fails(context.rates.publish_error, path, Code::SinkPermission)?;
        context.disk.rename(temp, path);
        context.published.push(path);
        self.states.insert(id, State::Named(path));
        Ok(())
    }

    fn sync_name(&mut self, id: EntryId, context: &mut Context) -> Result<(), Failure> {
        let Some(State::Named(path)) = self.states.get(&id) else {
            context.broken(|| format!("the name of {id:?} is synced, but it has none"));
            return Err(Code::Internal.into());
        };
        let path = *path;
        context.fails(context.rates.names_error, path, Code::SinkSync)?;
        context.disk.sync_name(path);
        context.tree.ancestors(path).for_each(|parent| context.disk.sync_name(parent));
        self.states.remove(&id);
        Ok(())
    }

    fn discard(&mut self, id: EntryId, token: Token, disk: &mut Disk) {
        if let Some(temp) = self.kept.remove(&id) {
            disk.temps[temp].now = false;
        }
        let meant = match self.states.get(&id) {
            Some(State::Unfinished { temp, .. }) => disk.temps[*temp].token == token,
            _ => true,
        };
        if meant {
            self.remove(id, disk);
        }
    }

    /// Removes what an entry has without a final name. A final name stays.
    fn remove(&mut self, id: EntryId, disk: &mut Disk) {
        if let Some(State::Made(temp) | State::Member(temp) | State::Unfinished { temp, .. }) =
            self.states.remove(&id)
        {
            disk.temps[temp].now = false;
        }
    }

    fn forget(&mut self, id: EntryId, context: &mut Context) {
        let Some(Directory { path, .. }) = self.directories.remove(&id) else {
            context.broken(|| format!("{id:?} is forgotten, but is not held"));
            return;
        };
        let parent_of = |path: PathId| context.tree.nodes[path].parent;
        let used = self.states.values().any(|state| match state {
            State::Made(temp) | State::Member(temp) | State::Unfinished { temp, .. } => {
                parent_of(context.disk.temps[*temp].path) == Some(path)
            }
            State::Named(named) => parent_of(*named) == Some(path),
        });
        let names_failed = context.rates.names_error > 0 || context.hung;
        if used && !names_failed || self.directories.values().any(|it| parent_of(it.path) == Some(path)) {
            context.broken(|| format!("{id:?} is forgotten, but something in it is open"));
        }
    }

    fn finish(&mut self, whole: bool, context: &mut Context) -> FailedPaths {
        let mut failed = FailedPaths::default();
        for path in std::mem::take(&mut self.prepared) {
            if let Err(failure) = context.fails(context.rates.finish_error, path, Code::SinkAttributes) {
                failed.add(failure, || context.tree.nodes[path].path.clone().into());
            } else {
                context.disk.names[path].attributes = true;
            }
            context.disk.sync_directory(Some(path), context.tree);
        }
        if whole {
            self.sweep(None, context);
        }
        context.disk.sync_directory(None, context.tree);
        failed
    }
}

struct Object {
    offset: u64,
    length: u32,
    hash: Hash,
    single: bool,
    failures: u32,
}
