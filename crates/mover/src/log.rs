//! The object log in a directory, written on a thread of its own.
//!
//! The master hands over operations; this thread gathers what is there, applies it and writes it with one flush, so
//! that a batch of acknowledgements costs few writes. It makes the log durable once a second: what a power cut costs
//! beyond that is resends, never wrong bytes. A log that cannot be written is reported once; the transfer goes on.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender as QueueSender, unbounded};
use haul_model::EntryId;
use haul_objectlog::{Binding, Config, Handle, LogStore, ObjectLog, Usage};
use haul_protocol::{LogOp, LogView, Logged};

use crate::Error;
use crate::durable::{self, StatePoint};
use crate::master::{Input, Inputs};

/// Operations between two looks at the clock.
const BATCH_MAX: usize = 4096;
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// A directory of log files.
pub struct DirectoryStore {
    path: PathBuf,
    directory: File,
    open: HashMap<String, File>,
}

impl DirectoryStore {
    /// Opens the directory; it must be there.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Ok(DirectoryStore { path: path.to_owned(), directory: File::open(path)?, open: HashMap::new() })
    }

    fn file(&mut self, name: &str, create: bool) -> std::io::Result<&File> {
        if !self.open.contains_key(name) {
            let file = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create(create)
                .truncate(false)
                .mode(0o600)
                .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
                .open(self.path.join(name))?;
            self.open.insert(name.to_owned(), file);
        }
        Ok(&self.open[name])
    }
}

impl LogStore for DirectoryStore {
    type Error = std::io::Error;

    fn list(&mut self) -> Result<Vec<String>, Self::Error> {
        let names = std::fs::read_dir(&self.path)?;
        names.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn length(&mut self, name: &str) -> Result<Option<u64>, Self::Error> {
        match self.file(name, false) {
            Ok(file) => Ok(Some(file.metadata()?.len())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, Self::Error> {
        self.file(name, false)?.read_at(buffer, offset)
    }

    fn write_at(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        self.file(name, true)?.write_all_at(bytes, offset)
    }

    fn remove(&mut self, name: &str) -> Result<(), Self::Error> {
        self.open.remove(name);
        match std::fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn sync(&mut self, names: &[&str]) -> Result<(), Self::Error> {
        names.iter().try_for_each(|name| durable::sync_data(StatePoint::LogData, self.file(name, false)?))
    }

    fn sync_names(&mut self) -> Result<(), Self::Error> {
        durable::sync(StatePoint::LogNames, &self.directory)
    }
}

/// The kind of hash that objects are checked with: BLAKE3 subtree values. Part of what a log entry is bound to.
const HASH_KIND_BLAKE3: u8 = 1;

/// A log that was opened: what it holds, before its thread starts.
pub struct Kept {
    log: ObjectLog<DirectoryStore>,
    location: PathBuf,
    config: Config,
}

impl Kept {
    /// Opens the log in `directory`, which is made if it is not there.
    pub fn open(directory: &Path, config: Config) -> Result<Kept, Error> {
        crate::owner::make_directory(directory)?;
        let about = || directory.display().to_string();
        let store = DirectoryStore::open(directory)
            .map_err(|error| Error::os(haul_model::Code::LogUnwritable, about(), &error))?;
        let (log, _replay) = ObjectLog::open(store, config)
            .map_err(|error| Error::new(error.code(), format!("{}: {error}", about())))?;
        Ok(Kept { log, location: directory.to_owned(), config })
    }
}

/// What the summary says of the log.
#[derive(Clone, Debug)]
pub struct LogSummary {
    /// Of new entries.
    pub mechanism: &'static str,
    /// Of new entries.
    pub method: &'static str,
    /// Room that the logs took, at most.
    pub bytes_peak: u64,
    /// Where they are.
    pub location: PathBuf,
    /// They could not be written to the end: the transfer could not have been resumed from there on.
    pub lost: Option<String>,
}

/// What was in the log when the session began, by path.
struct Found(HashMap<Vec<u8>, Logged>);

impl LogView for Found {
    fn lookup(&mut self, path: &[u8]) -> Option<Logged> {
        self.0.remove(path)
    }
}

/// The thread that keeps the log.
pub(crate) struct Logger {
    operations: QueueSender<LogOp>,
    thread: JoinHandle<LogSummary>,
}

impl Logger {
    /// Starts it. Also returns what the log holds, for the master to ask.
    pub(crate) fn start(kept: Kept, inputs: Inputs) -> (Logger, Box<dyn LogView + Send>) {
        let found = kept.log.iter().filter(|(_, logged)| logged.binding.hash_kind == HASH_KIND_BLAKE3).map(
            |(path, logged)| {
                let Binding { identity, object_bytes, token, .. } = logged.binding;
                (path.to_vec(), Logged { identity, object_bytes, token, done: logged.done.clone() })
            },
        );
        let found = Box::new(Found(found.collect()));
        let (operations, queue) = unbounded();
        let work = move || Keeper::new(kept, inputs).run(&queue);
        let thread =
            std::thread::Builder::new().name("haul-log".into()).spawn(work).expect("a thread can be started");
        (Logger { operations, thread }, found)
    }

    /// Queues an operation; never blocks. What is queued is bounded by what the master lets be under way.
    pub(crate) fn run(&self, op: LogOp) {
        let _ = self.operations.send(op);
    }

    /// Everything queued is written and durable on return.
    pub(crate) fn finish(self) -> LogSummary {
        drop(self.operations);
        self.thread.join().unwrap_or_else(|_| LogSummary {
            mechanism: "none",
            method: "none",
            bytes_peak: 0,
            location: PathBuf::new(),
            lost: Some("the log thread has panicked".into()),
        })
    }
}

/// The log on its thread.
struct Keeper {
    log: ObjectLog<DirectoryStore>,
    handles: HashMap<EntryId, Handle>,
    inputs: Inputs,
    summary: LogSummary,
    unsynced_since: Option<Instant>,
}

impl Keeper {
    fn new(kept: Kept, inputs: Inputs) -> Self {
        let summary = LogSummary {
            mechanism: kept.config.mechanism.name(),
            method: kept.config.method.name(),
            bytes_peak: 0,
            location: kept.location,
            lost: None,
        };
        Keeper { log: kept.log, handles: HashMap::new(), inputs, summary, unsynced_since: None }
    }

    fn run(mut self, queue: &crossbeam_channel::Receiver<LogOp>) -> LogSummary {
        loop {
            let wait = self.unsynced_since.map_or(Duration::from_secs(3600), |since| {
                (since + SYNC_EVERY).saturating_duration_since(Instant::now())
            });
            match queue.recv_timeout(wait) {
                Ok(op) => {
                    self.apply(op);
                    queue.try_iter().take(BATCH_MAX).for_each(|op| self.apply(op));
                    self.write(ObjectLog::flush);
                    // However busy the queue is, a second's worth is the most that a power cut may cost.
                    if self.unsynced_since.get_or_insert_with(Instant::now).elapsed() >= SYNC_EVERY {
                        self.sync();
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.sync(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let Usage { bytes_peak, .. } = self.log.usage();
        self.summary.bytes_peak = bytes_peak;
        if let Err(error) = self.log.close() {
            self.summary.lost.get_or_insert_with(|| error.to_string());
        }
        self.summary
    }

    fn apply(&mut self, op: LogOp) {
        let result = match op {
            LogOp::Begin { id, path, identity, object_bytes, objects, token } => {
                let hash_kind = HASH_KIND_BLAKE3;
                let binding = Binding { identity, object_bytes, objects, hash_kind, token, sink_boot: None };
                self.log.begin(&path, binding).map(|handle| {
                    self.handles.insert(id, handle);
                })
            }
            LogOp::Resume { id, path } => {
                if let Some(handle) = self.log.resume(&path) {
                    self.handles.insert(id, handle);
                }
                Ok(())
            }
            LogOp::Record { id, index } => match self.handles.get(&id) {
                Some(handle) => self.log.record(*handle, u64::from(index)).map(drop),
                None => Ok(()),
            },
            LogOp::Remove { id } => match self.handles.remove(&id) {
                Some(handle) => self.log.finish(handle),
                None => Ok(()),
            },
            LogOp::Clear => {
                self.log.remove_stale();
                Ok(())
            }
        };
        if let Err(error) = result {
            self.lose(error.to_string());
        }
    }

    fn sync(&mut self) {
        if self.unsynced_since.take().is_some() {
            self.write(ObjectLog::sync);
        }
    }

    fn write<E: std::fmt::Display>(
        &mut self,
        write: impl FnOnce(&mut ObjectLog<DirectoryStore>) -> Result<(), E>,
    ) {
        if let Err(error) = write(&mut self.log) {
            self.lose(error.to_string());
        }
    }

    fn lose(&mut self, cause: String) {
        if self.summary.lost.is_none() {
            self.summary.lost = Some(cause.clone());
            let _ = self.inputs.try_send(Input::LogLost { cause });
        }
    }
}
