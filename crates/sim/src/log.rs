//! The object log of the source, as the engine keeps it: operations change memory, now and then it is flushed, and
//! later made durable.
//!
//! It is the real [`ObjectLog`], over a store that loses what was not synced when the power goes.

use std::cell::RefCell;
use std::rc::Rc;

use hashbrown::HashMap;
use haul_model::{EntryId, Token};
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

type Logging<T> = Result<T, Error<<Store as LogStore>::Error>>;

const HASH_KIND: u8 = 1;

/// The log of one session.
pub struct JobLog {
    log: ObjectLog<Store>,
    handles: HashMap<EntryId, (Handle, Token)>,
    found: Vec<(Vec<u8>, Logged)>,
}

impl JobLog {
    /// Reads what earlier sessions left.
    pub fn open(store: &Store, config: Config) -> Logging<JobLog> {
        let (log, _) = ObjectLog::open(store.clone(), config)?;
        let found = log
            .iter()
            .map(|(path, logged)| {
                let Binding { identity, object_bytes, token, .. } = logged.binding;
                (path.to_vec(), Logged { identity, object_bytes, token, done: logged.done.clone() })
            })
            .collect();
        Ok(JobLog { log, handles: HashMap::new(), found })
    }

    /// Which unfinished file the entry of this file is bound to.
    pub fn token_of(&self, id: EntryId) -> Option<Token> {
        self.handles.get(&id).map(|(_, token)| *token)
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
                let handle = self.log.begin(&path, binding)?;
                self.handles.insert(id, (handle, token));
            }
            LogOp::Resume { id, path } => {
                let token = self.log.lookup(&path).map(|logged| logged.binding.token);
                if let (Some(handle), Some(token)) = (self.log.resume(&path), token) {
                    self.handles.insert(id, (handle, token));
                }
            }
            LogOp::Record { id, index } => {
                if let Some((handle, _)) = self.handles.get(&id) {
                    self.log.record(*handle, u64::from(index))?;
                }
            }
            LogOp::Remove { id } => {
                if let Some((handle, _)) = self.handles.remove(&id) {
                    self.log.finish(handle)?;
                }
            }
            LogOp::Clear => {
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
        self.log.flush()
    }

    /// What a power cut may not lose any more.
    pub fn sync(&mut self) -> Logging<()> {
        self.log.sync()
    }

    /// The process ends in order.
    pub fn close(self) -> Logging<()> {
        self.log.close().map(drop)
    }
}

impl LogView for JobLog {
    fn lookup(&mut self, path: &[u8]) -> Option<Logged> {
        self.found.iter().find(|(found, _)| found == path).map(|(_, logged)| logged.clone())
    }
}
