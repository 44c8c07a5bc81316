//! The object log of the source, as the engine keeps it: operations change memory, now and then it is flushed, and
//! later made durable.
//!
//! It is the real [`ObjectLog`], over a store that loses what was not synced when the power goes.

use std::cell::RefCell;
use std::rc::Rc;

use hashbrown::HashMap;
use haul_model::{Bitmap, EntryId, Token};
use haul_objectlog::{Binding, Config, Error, Handle, LogStore, MemoryStore, ObjectLog};
use haul_protocol::{LogOp, LogView, Logged};

/// The disk that the logs of a job are on: it outlives the processes that write to it.
#[derive(Clone, Default)]
pub struct Store(Rc<RefCell<MemoryStore>>);

impl Store {
    /// The power goes: what was not synced is kept or lost, piece by piece.
    pub fn crash(&self, keep: impl FnMut() -> bool) {
        let after = self.0.borrow().crash(keep);
        *self.0.borrow_mut() = after;
    }

    /// From now on the first `operations` operations are performed and all later ones fail; `None`: none fails.
    pub fn fail_after(&self, operations: Option<u64>) {
        self.0.borrow_mut().fail_after(operations);
    }

    /// Somebody removes all logs.
    pub fn clear(&self) {
        *self.0.borrow_mut() = MemoryStore::new();
    }
}

impl LogStore for Store {
    type Error = <MemoryStore as LogStore>::Error;

    fn list(&mut self) -> Result<Vec<String>, Self::Error> {
        self.0.borrow_mut().list()
    }

    fn length(&mut self, name: &str) -> Result<Option<u64>, Self::Error> {
        self.0.borrow_mut().length(name)
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, Self::Error> {
        self.0.borrow_mut().read_at(name, offset, buffer)
    }

    fn write_at(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        self.0.borrow_mut().write_at(name, offset, bytes)
    }

    fn remove(&mut self, name: &str) -> Result<(), Self::Error> {
        self.0.borrow_mut().remove(name)
    }

    fn sync(&mut self, names: &[&str]) -> Result<(), Self::Error> {
        self.0.borrow_mut().sync(names)
    }

    fn sync_names(&mut self) -> Result<(), Self::Error> {
        self.0.borrow_mut().sync_names()
    }
}

/// Some entries of a log: path, token, and the objects that are recorded.
type Entries = Vec<(Vec<u8>, Token, Bitmap)>;

/// What the end of a process may not take away.
#[derive(Clone, Default)]
pub struct Kept {
    /// Not by a SIGKILL.
    pub flushed: Entries,
    /// Not by a power cut either.
    pub synced: Entries,
}

impl Kept {
    fn forget(&mut self, path: &[u8]) {
        self.flushed.retain(|(kept, ..)| kept != path);
        self.synced.retain(|(kept, ..)| kept != path);
    }
}

type Logging<T> = Result<T, Error<<Store as LogStore>::Error>>;

const HASH_KIND: u8 = 1;

/// The log of one session.
pub struct JobLog {
    log: ObjectLog<Store>,
    handles: HashMap<EntryId, (Handle, Token, Vec<u8>)>,
    found: Vec<(Vec<u8>, Logged)>,
    kept: Kept,
}

impl JobLog {
    /// Reads what earlier sessions left.
    pub fn open(store: &Store, config: Config, kept: Kept) -> Logging<JobLog> {
        let (log, _) = ObjectLog::open(store.clone(), config)?;
        let found = log
            .iter()
            .map(|(path, logged)| {
                let Binding { identity, object_bytes, token, .. } = logged.binding;
                (path.to_vec(), Logged { identity, object_bytes, token, done: logged.done.clone() })
            })
            .collect();
        Ok(JobLog { log, handles: HashMap::new(), found, kept })
    }

    /// The first path of which it lacks something that was kept.
    pub fn lacks(&self) -> Option<&[u8]> {
        let is_there = |(path, token, done): &&(Vec<u8>, Token, Bitmap)| {
            let found = self.found.iter().find(|(found, _)| found == path);
            found.is_some_and(|(_, logged)| {
                let all = (0..done.len()).all(|index| !done.get(index) || logged.done.get(index));
                logged.token == *token && all
            })
        };
        self.kept.flushed.iter().find(|kept| !is_there(kept)).map(|(path, ..)| path.as_slice())
    }

    /// What the next process must find.
    pub fn kept(&self) -> Kept {
        self.kept.clone()
    }

    fn entries(&self) -> Entries {
        // Of a file without a durable object nothing is written.
        let entries = self.log.iter().filter(|(_, logged)| logged.done.count() > 0);
        entries.map(|(path, logged)| (path.to_vec(), logged.binding.token, logged.done.clone())).collect()
    }

    /// Which unfinished file the entry of this file is bound to.
    pub fn token_of(&self, id: EntryId) -> Option<Token> {
        self.handles.get(&id).map(|(_, token, _)| *token)
    }

    /// Files whose entries were begun or resumed, and not removed.
    pub fn held(&self) -> impl Iterator<Item = EntryId> {
        self.handles.keys().copied()
    }

    /// Entries that are there now.
    pub fn len(&self) -> usize {
        self.log.len()
    }

    /// Performs an operation, in memory.
    pub fn apply(&mut self, op: LogOp) -> Logging<()> {
        match op {
            LogOp::Begin { id, path, identity, object_bytes, objects, token } => {
                let binding =
                    Binding { identity, object_bytes, objects, hash_kind: HASH_KIND, token, sink_boot: None };
                self.kept.forget(&path);
                let handle = self.log.begin(&path, binding)?;
                self.handles.insert(id, (handle, token, path));
            }
            LogOp::Resume { id, path } => {
                let token = self.log.lookup(&path).map(|logged| logged.binding.token);
                if let (Some(handle), Some(token)) = (self.log.resume(&path), token) {
                    self.handles.insert(id, (handle, token, path));
                }
            }
            LogOp::Record { id, index } => {
                if let Some((handle, ..)) = self.handles.get(&id) {
                    self.log.record(*handle, u64::from(index))?;
                }
            }
            LogOp::Remove { id } => {
                if let Some((handle, _, path)) = self.handles.remove(&id) {
                    self.kept.forget(&path);
                    self.log.finish(handle)?;
                }
            }
            LogOp::Clear => {
                self.kept = Kept::default();
                let paths: Vec<Vec<u8>> = self.log.iter().map(|(path, _)| path.to_vec()).collect();
                for path in paths {
                    if let Some(handle) = self.log.resume(&path) {
                        self.log.finish(handle)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// What a SIGKILL may not lose any more.
    pub fn flush(&mut self) -> Logging<()> {
        self.log.flush()?;
        self.kept.flushed = self.entries();
        Ok(())
    }

    /// What a power cut may not lose any more.
    pub fn sync(&mut self) -> Logging<()> {
        self.log.sync()?;
        self.kept.flushed = self.entries();
        self.kept.synced = self.kept.flushed.clone();
        Ok(())
    }

    /// The process ends in order. What the next one must find.
    pub fn close(mut self) -> Logging<Kept> {
        self.sync()?;
        self.log.close()?;
        Ok(self.kept)
    }
}

impl LogView for JobLog {
    fn lookup(&mut self, path: &[u8]) -> Option<Logged> {
        self.found.iter().find(|(found, _)| found == path).map(|(_, logged)| logged.clone())
    }
}
