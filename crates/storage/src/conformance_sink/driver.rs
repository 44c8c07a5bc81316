//! Speaks to a sink as the masters would, one operation at a time, and panics where an answer has the wrong shape.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use haul_buffers::Pool;
use haul_model::op::{
    Landed, MemberWrite, MemberWritten, MembersStep, Prepare, Prepared, Progress, SinkDone, SinkOp,
};
use haul_model::{
    Attributes, BlockId, Code, Entry, EntryId, Failure, Hash, HashKind, Identity, Kind, SlotId, Target,
    Timestamp, Token,
};

use super::OBJECT;
use crate::SinkStorage;
use crate::hashing::object_hash;
use crate::sink::hashes::Cut;

/// One session of a sink.
pub struct Driver {
    sink: Box<dyn SinkStorage>,
    pool: Arc<Pool>,
    next: AtomicU64,
    /// Members that got their names when they were written: nothing more is asked about them.
    named: Mutex<BTreeSet<EntryId>>,
}

/// The time that entries have unless a test says otherwise.
pub const TIME: Timestamp = Timestamp { seconds: 1_500_000_000, nanos: 123_456_789 };

impl Driver {
    /// Of this sink.
    pub fn new(sink: Box<dyn SinkStorage>) -> Self {
        let pool = Pool::new(2, 4 << 20).expect("memory for two slots");
        Driver { sink, pool, next: AtomicU64::new(1), named: Mutex::default() }
    }

    /// The sink.
    pub fn sink(&self) -> &dyn SinkStorage {
        &*self.sink
    }

    /// Its slots.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Any operation.
    pub fn run(&self, op: SinkOp) -> Option<SinkDone> {
        self.sink.run(op, &self.pool)
    }

    /// The session has failed.
    pub fn give_up(&self) {
        self.sink.give_up();
    }

    /// A new entry with a number of its own.
    pub fn entry(&self, parent: EntryId, name: &[u8], kind: Kind) -> Entry {
        let id = EntryId(self.next.fetch_add(1, Ordering::Relaxed));
        let mode = if kind == Kind::Directory { 0o755 } else { 0o644 };
        let attributes = Attributes { mode, mtime: TIME, atime: TIME, ..Attributes::default() };
        let identity = Identity::default();
        Entry {
            id,
            parent,
            name: name.into(),
            kind,
            attributes,
            identity,
            links: 1,
            link_target: Box::default(),
        }
    }

    /// A new file of so many bytes.
    pub fn file(&self, parent: EntryId, name: &[u8], size: usize) -> Entry {
        let mut entry = self.entry(parent, name, Kind::File);
        entry.identity = Identity { size: size as u64, mtime: TIME, ctime: TIME, inode: entry.id.0 };
        entry
    }

    /// A new symlink.
    pub fn symlink(&self, parent: EntryId, name: &[u8], target: &[u8]) -> Entry {
        Entry { link_target: target.into(), ..self.entry(parent, name, Kind::Symlink) }
    }

    /// What the sink says to one entry.
    pub fn prepare(&self, entry: &Entry, resume: Option<Token>, objects: bool) -> Prepared {
        let object_bytes = objects.then_some(OBJECT);
        let item = Prepare::Entry { entry: Arc::new(entry.clone()), resume, object_bytes };
        match self.run(SinkOp::Prepare { batch: 7, items: vec![item] }) {
            Some(SinkDone::Prepared { batch: 7, answers, unlaid, .. }) => {
                let [(id, answer)] = answers[..] else { panic!("one answer was expected: {answers:?}") };
                assert_eq!(id, entry.id);
                if unlaid.is_empty() { answer } else { self.lay(entry, answer) }
            }
            other => panic!("an answer was expected: {other:?}"),
        }
    }

    fn lay(&self, entry: &Entry, prepared: Prepared) -> Prepared {
        let (token, resumed) = match prepared {
            Prepared::Start(token) => (token, false),
            Prepared::Resume(token) => (token, true),
            other => panic!("{other:?} has nothing to be made"),
        };
        let entry = Arc::new(entry.clone());
        match self.run(SinkOp::Lay { entry, token, resumed, object_bytes: OBJECT, stripes: None }) {
            Some(SinkDone::Laid { result: Ok(_), .. }) => prepared,
            Some(SinkDone::Laid { result: Err(failure), .. }) => Prepared::Fail(failure),
            other => panic!("an answer was expected: {other:?}"),
        }
    }

    /// A directory that must come into being; its id.
    pub fn directory(&self, parent: EntryId, name: &[u8]) -> EntryId {
        let entry = self.entry(parent, name, Kind::Directory);
        assert_eq!(self.prepare(&entry, None, false), Prepared::Made, "{name:?}");
        entry.id
    }

    /// The token of a file that must be sent in objects.
    pub fn start(&self, entry: &Entry) -> Token {
        match self.prepare(entry, None, true) {
            Prepared::Start(token) if token != Token::NONE => token,
            other => panic!("{:?} should start: {other:?}", entry.name),
        }
    }

    /// No more entries of this directory.
    pub fn end(&self, id: EntryId) {
        match self.run(SinkOp::Prepare { batch: 0, items: vec![Prepare::End(id)] }) {
            Some(SinkDone::Prepared { answers, .. }) if answers.is_empty() => {}
            other => panic!("no answers were expected: {other:?}"),
        }
    }

    /// Writes a bundle.
    pub fn write_members(&self, members: &[(&Entry, &[u8])]) -> Vec<Result<(), Failure>> {
        let mut lease = self.pool.lease(SlotId(0)).expect("the slot is free");
        let mut writes = Vec::new();
        let mut length = 0;
        for (entry, bytes) in members {
            lease[length..][..bytes.len()].copy_from_slice(bytes);
            let hash = Hash(*blake3::hash(bytes).as_bytes());
            writes.push(MemberWrite { entry: Arc::new((*entry).clone()), offset: length as u32, hash });
            length += bytes.len();
        }
        drop(lease);
        self.run_members(writes, length as u32)
    }

    /// Writes a bundle whose bytes are in slot 0 already.
    pub fn run_members(&self, members: Vec<MemberWrite>, length: u32) -> Vec<Result<(), Failure>> {
        let mut results = self.members_step(MembersStep::Make, &members, length);
        let targets: BTreeSet<Target> = results.iter().filter_map(|result| target_of(*result)).collect();
        for target in targets {
            let made: Vec<_> =
                (0..members.len()).filter(|at| target_of(results[*at]) == Some(target)).collect();
            let those: Vec<_> = made.iter().map(|at| members[*at].clone()).collect();
            let filled = self.members_step(MembersStep::Fill { target, gently: false }, &those, length);
            made.into_iter().zip(filled).for_each(|(at, result)| results[at] = result);
        }
        results
            .into_iter()
            .map(|result| result.map(|landed| assert!(!matches!(landed, Landed::Made(_)))))
            .collect()
    }

    /// Why a file cannot have its name: that is told when it is to get it, or where that is done with its contents.
    pub fn refused_name(&self, entry: &Entry, bytes: &[u8]) -> Code {
        match self.write_members(&[(entry, bytes)])[..] {
            [Err(failure)] => return failure.code,
            [Ok(())] => assert_eq!(self.sync(&[entry.id]), []),
            ref results => panic!("one result was expected: {results:?}"),
        }
        match self.publish(&[entry.id])[..] {
            [(id, failure)] if id == entry.id => failure.code,
            ref failures => panic!("{:?} has its name: {failures:?}", entry.name),
        }
    }

    /// One step of writing a bundle whose bytes are in slot 0 already.
    pub fn members_step(
        &self,
        step: MembersStep,
        members: &[MemberWrite],
        length: u32,
    ) -> Vec<MemberWritten> {
        let ids = members.iter().map(|member| member.entry.id);
        let (count, members) = (members.len(), members.to_vec());
        let (block, slot, progress) = (BlockId(3), SlotId(0), Progress::default());
        match self.run(SinkOp::WriteMembers { block, step, slot, length, members, progress }) {
            Some(SinkDone::WrittenMembers { block: BlockId(3), step: told, results })
                if results.len() == count && told == step =>
            {
                let named = ids.zip(&results).filter(|(_, result)| **result == Ok(Landed::Named));
                self.named.lock().unwrap().extend(named.map(|(id, _)| id));
                results
            }
            other => panic!("{count} results were expected: {other:?}"),
        }
    }

    /// Writes one object, the `index`-th of `content`.
    pub fn write_object(
        &self,
        entry: &Entry,
        token: Token,
        content: &[u8],
        index: u64,
    ) -> Result<(), Failure> {
        let cut = Cut { size: content.len() as u64, object_bytes: OBJECT };
        let (offset, length) = cut.range(index);
        let bytes = &content[offset as usize..][..length as usize];
        let hash = object_hash(HashKind::Blake3, bytes, offset, cut.is_single());
        self.pool.lease(SlotId(1)).expect("the slot is free")[..bytes.len()].copy_from_slice(bytes);
        self.run_object(entry, token, (offset, length, cut.is_single()), hash)
    }

    /// Writes an object whose bytes are in slot 1 already; offset, length, whether it is the whole file.
    pub fn run_object(
        &self,
        entry: &Entry,
        token: Token,
        (offset, length, single): (u64, u32, bool),
        hash: Hash,
    ) -> Result<(), Failure> {
        let entry = Arc::new(entry.clone());
        let (block, slot) = (BlockId(9), SlotId(1));
        match self.run(SinkOp::WriteObject {
            block,
            entry,
            token,
            object_bytes: OBJECT,
            offset,
            length,
            slot,
            hash,
            single,
            gently: false,
        }) {
            Some(SinkDone::Written { block: BlockId(9), result }) => result,
            other => panic!("a result was expected: {other:?}"),
        }
    }

    /// Writes all objects of a file, in order.
    pub fn write_objects(&self, entry: &Entry, token: Token, content: &[u8]) {
        for index in 0..(Cut { size: content.len() as u64, object_bytes: OBJECT }).count() {
            self.write_object(entry, token, content, index).expect("the object can be written");
        }
    }

    /// Writes all objects of a file and syncs it, once before it is whole: its hashes are in the table beside it.
    pub fn write_in_parts(&self, entry: &Entry, token: Token, content: &[u8]) {
        self.write_object(entry, token, content, 0).expect("the object can be written");
        assert_eq!(self.sync(&[entry.id]), []);
        self.write_objects(entry, token, content);
        assert_eq!(self.sync(&[entry.id]), []);
    }

    /// Ends a file.
    pub fn seal(&self, entry: &Entry, token: Token, root: Option<Hash>) -> Result<Hash, Failure> {
        match self.run(SinkOp::Seal {
            entry: Arc::new(entry.clone()),
            token,
            object_bytes: OBJECT,
            root,
            progress: Progress::default(),
        }) {
            Some(SinkDone::Sealed { id, result }) if id == entry.id => result,
            other => panic!("a result was expected: {other:?}"),
        }
    }

    /// Did this member get its name when it was written?
    pub fn is_named(&self, id: EntryId) -> bool {
        self.named.lock().unwrap().contains(&id)
    }

    fn in_work(&self, files: &[EntryId]) -> Vec<EntryId> {
        files.iter().copied().filter(|id| !self.is_named(*id)).collect()
    }

    /// Makes contents durable; what failed.
    pub fn sync(&self, files: &[EntryId]) -> Vec<(EntryId, Failure)> {
        match self.run(SinkOp::Sync { group: 5, files: self.in_work(files) }) {
            Some(SinkDone::Synced { group: 5, failed }) => failed,
            other => panic!("a result was expected: {other:?}"),
        }
    }

    /// Gives final names; what failed.
    pub fn publish(&self, files: &[EntryId]) -> Vec<(EntryId, Failure)> {
        match self.run(SinkOp::Publish { group: 6, files: self.in_work(files) }) {
            Some(SinkDone::Published { group: 6, failed }) => failed,
            other => panic!("a result was expected: {other:?}"),
        }
    }

    /// Makes names durable; what failed.
    pub fn sync_names(&self, entries: &[EntryId]) -> Vec<(EntryId, Failure)> {
        match self.run(SinkOp::SyncNames { group: 8, entries: self.in_work(entries) }) {
            Some(SinkDone::SyncedNames { group: 8, failed }) => failed,
            other => panic!("a result was expected: {other:?}"),
        }
    }

    /// All that follows once contents are written; nothing may fail.
    pub fn settle(&self, files: &[EntryId]) {
        assert_eq!(self.sync(files), []);
        assert_eq!(self.publish(files), []);
        assert_eq!(self.sync_names(files), []);
    }

    /// Drops a file.
    pub fn discard(&self, id: EntryId, token: Token) {
        self.let_go(id, token, false);
    }

    /// The same, but what is unfinished of it may stay.
    pub fn let_go(&self, id: EntryId, token: Token, keep: bool) {
        match self.run(SinkOp::Discard { id, token, keep }) {
            Some(SinkDone::Discarded { id: discarded }) if discarded == id => {}
            other => panic!("a result was expected: {other:?}"),
        }
    }

    /// Everything is settled; what failed.
    pub fn finish(&self) -> Vec<(Box<[u8]>, Failure)> {
        match self.run(SinkOp::FinishDirectories { whole: true }) {
            Some(SinkDone::DirectoriesFinished { failed }) => failed.named().to_vec(),
            other => panic!("a result was expected: {other:?}"),
        }
    }

    /// A whole file as a bundle member, up to its durable name.
    pub fn put_member(&self, parent: EntryId, name: &[u8], content: &[u8]) -> Entry {
        let entry = self.file(parent, name, content.len());
        assert_eq!(self.prepare(&entry, None, false), Prepared::Start(Token::NONE));
        assert_eq!(self.write_members(&[(&entry, content)]), [Ok(())]);
        self.settle(&[entry.id]);
        entry
    }

    /// A whole file in objects, up to its durable name.
    pub fn put_objects(&self, parent: EntryId, name: &[u8], content: &[u8]) -> Entry {
        let entry = self.file(parent, name, content.len());
        let token = self.start(&entry);
        self.write_objects(&entry, token, content);
        let root = Hash(*blake3::hash(content).as_bytes());
        assert_eq!(self.seal(&entry, token, Some(root)), Ok(root));
        self.settle(&[entry.id]);
        entry
    }
}

fn target_of(result: MemberWritten) -> Option<Target> {
    match result {
        Ok(Landed::Made(target)) => Some(target),
        _ => None,
    }
}

/// Bytes that differ everywhere, and for each `seed`.
pub fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}
