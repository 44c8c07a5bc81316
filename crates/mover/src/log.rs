//! The object log in a directory, and who writes it.
//!
//! The master decides what is logged. By default it hands the operations to a thread of the log, which gathers what is
//! there, applies it and writes it with one flush, so that a batch of acknowledgements costs few writes. With
//! [`Writer::Comm`], the paper's synchronous logging, the comm thread that received a message writes what the master
//! made of it before it receives the next one. Either way the log is made durable once a second: what a power cut costs
//! beyond that is resends, never wrong bytes. A log that cannot be written is reported at once, and once.

use std::collections::HashMap;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender as QueueSender, bounded, unbounded};
use haul_model::profile::Stage;
use haul_model::{Code, EntryId, HashKind};
use haul_objectlog::{Binding, Config, Handle, LogStore, ObjectLog, Usage};
use haul_protocol::{LogOp, LogView, Logged};
use haul_topology::ThreadKind;
use haul_wire::LogStatus;

use crate::Error;
use crate::error::lacks_descriptors;
use crate::master::{Input, Inputs};
use crate::muster::Muster;
use crate::threads;

mod store;

pub use store::DirectoryStore;

const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Who writes the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Writer {
    /// The comm thread that received the acknowledgement: the paper's synchronous logging.
    Comm,
    /// A thread of the log: the paper's asynchronous logging.
    #[default]
    Thread,
}

impl Writer {
    /// Both.
    pub const ALL: [Writer; 2] = [Writer::Comm, Writer::Thread];

    /// As options and reports have it.
    pub const fn name(self) -> &'static str {
        match self {
            Writer::Comm => "comm",
            Writer::Thread => "thread",
        }
    }
}

/// How a source logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Of the log; none: nothing is logged, and nothing can be resumed (the paper's plain LADS).
    pub config: Option<Config>,
    /// Who writes.
    pub writer: Writer,
    /// A transfer that cannot be logged ends, rather than going on without a log.
    pub required: bool,
    /// With which hash objects are checked: what was logged with another one does not count.
    pub hash: HashKind,
}

impl Settings {
    /// Of a log that holds nothing yet.
    fn summary(&self, location: &Path) -> LogSummary {
        let words = self.config.map(|config| (config.mechanism.name(), config.method.name()));
        let (mechanism, method) = words.unwrap_or(("none", "none"));
        LogSummary {
            mechanism: mechanism.into(),
            method: method.into(),
            writer: if words.is_some() { self.writer.name() } else { "none" }.into(),
            bytes_peak: 0,
            files_peak: 0,
            location: location.to_owned(),
            lost: None,
            closing: Duration::ZERO,
        }
    }
}

/// The log of a source, before its session starts.
pub struct SourceLog {
    kept: Option<ObjectLog<DirectoryStore>>,
    settings: Settings,
    summary: LogSummary,
}

impl SourceLog {
    /// The log is kept, but not where it would be found for sure: it counts as lost, and nothing of it is left out.
    pub fn count_as_lost(&mut self, cause: String) {
        self.summary.lost.get_or_insert(cause);
    }

    /// Nothing is logged.
    pub fn none() -> SourceLog {
        let settings =
            Settings { config: None, writer: Writer::default(), required: false, hash: HashKind::default() };
        SourceLog { kept: None, settings, summary: settings.summary(Path::new("")) }
    }

    /// Opens the log in `directory`, which is made if it is not there.
    ///
    /// A log of a newer version is an error. So is trouble with the directory if the log is required; else the session
    /// begins without, and says so.
    pub fn open(directory: &Path, settings: Settings) -> Result<SourceLog, Error> {
        let summary = settings.summary(directory);
        let Some(config) = settings.config else {
            // What an earlier run has logged is void once files begin again without a log.
            if directory.exists()
                && let Err(error) = open_log(directory, Config::default())
                && error.failure.code == Code::LogVersion
            {
                return Err(error);
            }
            remove_logs(directory);
            return Ok(SourceLog { kept: None, settings, summary });
        };
        match open_log(directory, config) {
            Ok((_, Some(error))) if settings.required => Err(error),
            // What it holds counts, also where nothing can be written to it.
            Ok((log, unwritable)) => {
                let lost = unwritable.map(|error| error.to_string());
                Ok(SourceLog { kept: Some(log), settings, summary: LogSummary { lost, ..summary } })
            }
            // What is durable is known there alone: to begin anew would be to throw it away.
            Err(error)
                if settings.required
                    || [Code::LogVersion, Code::LogDamaged, Code::SystemRefused]
                        .contains(&error.failure.code) =>
            {
                Err(error)
            }
            Err(error) => {
                let lost = Some(error.to_string());
                Ok(SourceLog { kept: None, settings, summary: LogSummary { lost, ..summary } })
            }
        }
    }
}

/// Also tells what keeps it from being written.
fn open_log(directory: &Path, config: Config) -> Result<(ObjectLog<DirectoryStore>, Option<Error>), Error> {
    let unwritable = |error: &std::io::Error| {
        Error::os(Code::LogUnwritable, directory.display().to_string(), error)
            .hint(crate::owner::state_hint(error))
    };
    crate::owner::make_directory(directory).map_err(|mut error| {
        if error.failure.code == Code::StateUnwritable {
            error.failure.code = Code::LogUnwritable;
        }
        error
    })?;
    let store = DirectoryStore::open(directory).map_err(|error| match may_be_read_later(&error) {
        true => Error::os(Code::LogDamaged, directory.display().to_string(), &error).hint(UNREADABLE),
        false => unwritable(&error),
    })?;
    // Whether something can be written is known before the first file moves.
    let trouble = store.probe().err().map(|error| unwritable(&error));
    let told = |error: &haul_objectlog::Error<std::io::Error>| match error {
        haul_objectlog::Error::Store { error: why, .. } if lacks_descriptors(why) => {
            Error::os(error.code(), directory.display().to_string(), why)
        }
        _ => Error::new(error.code(), format!("{}: {error}", directory.display())),
    };
    let (log, _replay) = ObjectLog::open(store, config).map_err(|error| told(&error))?;
    let is_to_be_read = |error: &&haul_objectlog::Error<std::io::Error>| match error {
        haul_objectlog::Error::Store { error: why, .. } => may_be_read_later(why),
        _ => false,
    };
    match log.unreadable().iter().find(is_to_be_read) {
        Some(error) => Err(told(error).hint(UNREADABLE)),
        None => Ok((log, trouble)),
    }
}

/// It exists, but what is in it cannot be known now.
const UNREADABLE: &str =
    "it knows what is durable: make it readable again, or forget the transfer with haul stop ID --discard";

/// What stands in a log's place was never one.
fn may_be_read_later(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let never = [Errno::ISDIR, Errno::NOENT, Errno::LOOP].map(Errno::raw_os_error);
    !error.raw_os_error().is_some_and(|errno| never.contains(&errno))
}

/// As far as it can be done: what stays costs room only.
fn remove_logs(directory: &Path) {
    let Ok(mut store) = DirectoryStore::open(directory) else { return };
    for name in store.list().unwrap_or_default() {
        if haul_objectlog::is_log_name(&name) {
            let _ = store.remove(&name);
        }
    }
}

/// What the summary says of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogSummary {
    /// Of new entries; `none` if there is no log.
    pub mechanism: String,
    /// Of new entries.
    pub method: String,
    /// Who writes it.
    pub writer: String,
    /// Room that the logs took, at most.
    pub bytes_peak: u64,
    /// Logs at a time, at most.
    pub files_peak: u64,
    /// Where they are.
    pub location: PathBuf,
    /// They could not be written to the end: the transfer could not have been resumed from there on.
    pub lost: Option<String>,
    /// How long it took to close them here, when all else was done.
    pub closing: Duration,
}

impl LogSummary {
    /// For the other end.
    pub(crate) fn status(&self) -> LogStatus {
        LogStatus {
            mechanism: self.mechanism.as_bytes().into(),
            method: self.method.as_bytes().into(),
            writer: self.writer.as_bytes().into(),
            bytes_peak: self.bytes_peak,
            files_peak: self.files_peak,
            location: self.location.as_os_str().as_bytes().into(),
            lost: self.lost.as_deref().unwrap_or_default().as_bytes().into(),
        }
    }

    /// From the other end.
    pub(crate) fn of(status: LogStatus) -> LogSummary {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        LogSummary {
            mechanism: text(&status.mechanism),
            method: text(&status.method),
            writer: text(&status.writer),
            bytes_peak: status.bytes_peak,
            files_peak: status.files_peak,
            location: PathBuf::from(std::ffi::OsString::from_vec(status.location.into_vec())),
            lost: (!status.lost.is_empty()).then(|| text(&status.lost)),
            closing: Duration::ZERO,
        }
    }
}

/// What was in the log when the session began, by path.
struct Found(HashMap<Vec<u8>, Logged>);

impl LogView for Found {
    fn lookup(&mut self, path: &[u8]) -> Option<Logged> {
        self.0.remove(path)
    }
}

/// Operations that wait for the log thread: far more than are ever under way.
const WAITING_MAX: usize = if cfg!(test) { 100 } else { 1 << 20 };
/// How long the next of the last of them may take.
const FINISH_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// How long it may take over some of them while others wait.
const SERVE_MAX: Duration = FINISH_MAX;
const LOOK_AGAIN: Duration = Duration::from_millis(1);
pub(crate) const NO_ANSWER: &str = "its storage does not answer";

/// The log of a session that runs.
pub(crate) struct Logger {
    required: bool,
    shared: Arc<Mutex<LogSummary>>,
    work: Work,
    /// The thread of a log that was given up as its storage did not answer.
    left: Option<JoinHandle<()>>,
    /// That it does not answer was told.
    is_lost: bool,
}

/// How the log stands that the comm thread writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommStands {
    /// It writes nothing, if there is such a log.
    Free,
    /// It is at it.
    Busy,
    /// Its storage does not answer.
    Stuck,
}

enum Work {
    /// There is no log (any more).
    None,
    Thread {
        operations: QueueSender<LogOp>,
        thread: JoinHandle<()>,
        progress: Progress,
    },
    Comm {
        keeper: CommLog,
        /// Until the comm thread comes for them.
        waiting: Vec<LogOp>,
        progress: Progress,
    },
}

/// Of the log thread, as whoever gives it work sees it.
#[derive(Default)]
struct Progress {
    /// Grows with each operation, write and sync that the thread brings to an end.
    ended: Arc<AtomicU64>,
    /// What it was when something waited, when that was looked at last, and how long it had stood then.
    seen: Option<(u64, Instant, Duration)>,
}

impl Progress {
    /// Something has waited too long for the thread to come for it. Of the time between two looks not more than a step counts: all of
    /// this process may have been stopped.
    fn has_stopped(&mut self, waits: bool) -> bool {
        const STEPS: u32 = 60;
        let (ended, now) = (self.ended.load(Ordering::Relaxed), Instant::now());
        let stood = match self.seen {
            Some((seen, at, stood)) if seen == ended => stood + (now - at).min(SERVE_MAX / STEPS),
            _ => Duration::ZERO,
        };
        self.seen = waits.then_some((ended, now, stood));
        waits && stood >= SERVE_MAX
    }
}

impl Work {
    fn comm(keeper: Keeper) -> Work {
        let progress = Progress { ended: Arc::clone(&keeper.ended), seen: None };
        Work::Comm { keeper: CommLog(Arc::new(Mutex::new(keeper))), waiting: Vec::new(), progress }
    }
}

/// What the comm thread of the control stream writes to.
#[derive(Clone)]
pub(crate) struct CommLog(Arc<Mutex<Keeper>>);

impl CommLog {
    /// Applies and writes what the master made of a message.
    pub(crate) fn write(&self, operations: Vec<LogOp>) {
        lock(&self.0).write_all(operations);
    }

    /// Somebody is at it.
    fn is_busy(&self) -> bool {
        matches!(self.0.try_lock(), Err(TryLockError::WouldBlock))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has it ended? It is waited for as long as it gets on.
fn ends(thread: &JoinHandle<()>, ended: &AtomicU64) -> bool {
    let (mut seen, mut since) = (ended.load(Ordering::Relaxed), Instant::now());
    while !thread.is_finished() && since.elapsed() < FINISH_MAX {
        std::thread::sleep(LOOK_AGAIN);
        let now = ended.load(Ordering::Relaxed);
        if std::mem::replace(&mut seen, now) != now {
            since = Instant::now();
        }
    }
    thread.is_finished()
}

impl Logger {
    /// Starts it. Also returns what the log holds, for the master to ask.
    pub(crate) fn start(
        log: SourceLog,
        inputs: Inputs,
        muster: &Muster,
    ) -> (Logger, Box<dyn LogView + Send>) {
        let SourceLog { kept, settings, summary } = log;
        let (required, hash) = (settings.required, settings.hash);
        if let Some(cause) = &summary.lost {
            let _ = inputs.try_send(Input::LogLost { cause: cause.clone() });
        }
        let lost = summary.lost.is_some();
        let shared = Arc::new(Mutex::new(summary));
        let Some(log) = kept else {
            let logger = Logger { required, shared, work: Work::None, left: None, is_lost: false };
            return (logger, Box::new(Found(HashMap::new())));
        };
        let found = log.iter().filter(|(_, logged)| logged.binding.hash_kind == hash.number()).map(
            |(path, logged)| {
                let Binding { identity, object_bytes, token, .. } = logged.binding;
                (path.to_vec(), Logged { identity, object_bytes, token, done: logged.done.clone() })
            },
        );
        let found = Box::new(Found(found.collect()));
        let progress = Progress::default();
        let keeper = Keeper {
            log,
            hash,
            handles: HashMap::new(),
            inputs,
            shared: shared.clone(),
            unsynced_since: None,
            lost,
            ended: Arc::clone(&progress.ended),
        };
        let work = match settings.writer {
            Writer::Comm => Work::comm(keeper),
            Writer::Thread => {
                let (operations, queue) = unbounded();
                let muster = muster.clone();
                let (keep, kept) = bounded::<Keeper>(1);
                let run = move || {
                    let _there = muster.join(ThreadKind::Log);
                    kept.into_iter().for_each(|keeper| keeper.run(&queue));
                };
                match threads::start("haul-log", run) {
                    Ok(thread) => {
                        // It waits for this.
                        let _ = keep.send(keeper);
                        Work::Thread { operations, thread, progress }
                    }
                    // The comm thread can do it.
                    Err(_) => Work::comm(keeper),
                }
            }
        };
        (Logger { required, shared, work, left: None, is_lost: false }, found)
    }

    /// Takes an operation over; never blocks. Where so much waits, or so long, that its storage must be hanging, the log is lost, and why.
    /// Where it answers after all it goes on with what has waited, as long as that is not too much.
    pub(crate) fn run(&mut self, op: LogOp) -> Option<String> {
        let mut lost = None;
        if let Work::Thread { operations, progress, .. } = &mut self.work {
            let is_too_much = operations.len() >= WAITING_MAX;
            if progress.has_stopped(!operations.is_empty()) || is_too_much {
                lost = self.lose();
            }
            if is_too_much && let Work::Thread { thread, .. } = std::mem::replace(&mut self.work, Work::None)
            {
                // It ends by itself, if ever.
                self.left = Some(thread);
            }
        }
        match &mut self.work {
            Work::None => {}
            Work::Thread { operations, .. } => drop(operations.send(op)),
            Work::Comm { waiting, .. } => waiting.push(op),
        }
        lost
    }

    /// Its storage does not answer: why it is lost, the first time.
    pub(crate) fn lose(&mut self) -> Option<String> {
        if std::mem::replace(&mut self.is_lost, true) {
            return None;
        }
        lock(&self.shared).lost = Some(NO_ANSWER.into());
        Some(NO_ANSWER.into())
    }

    /// For the comm thread of the control stream, if it is to write.
    pub(crate) fn comm(&self) -> Option<CommLog> {
        match &self.work {
            Work::Comm { keeper, .. } => Some(keeper.clone()),
            Work::None | Work::Thread { .. } => None,
        }
    }

    /// How the comm thread stands now.
    pub(crate) fn comm_stands(&mut self) -> CommStands {
        let Work::Comm { keeper, progress, .. } = &mut self.work else { return CommStands::Free };
        let is_busy = keeper.is_busy();
        match (is_busy, progress.has_stopped(is_busy)) {
            (false, _) => CommStands::Free,
            (true, false) => CommStands::Busy,
            (true, true) => CommStands::Stuck,
        }
    }

    /// What has come together for the comm thread.
    pub(crate) fn take_waiting(&mut self) -> Vec<LogOp> {
        match &mut self.work {
            Work::Comm { waiting, .. } => std::mem::take(waiting),
            Work::None | Work::Thread { .. } => Vec::new(),
        }
    }

    /// Without a log the transfer is to end.
    pub(crate) fn is_required(&self) -> bool {
        self.required
    }

    /// As it stands.
    pub(crate) fn summary(&self) -> LogSummary {
        lock(&self.shared).clone()
    }

    /// Everything that was taken over is written and durable on return, unless the log's storage does not answer. Also whether a thread
    /// is left that waits for that.
    pub(crate) fn finish(self) -> (LogSummary, bool) {
        let Logger { shared, mut work, mut left, .. } = self;
        let mut is_left = false;
        let began = Instant::now();
        let has_stopped = match &mut work {
            Work::Thread { operations, progress, .. } => progress.has_stopped(!operations.is_empty()),
            Work::Comm { keeper, progress, .. } => progress.has_stopped(keeper.is_busy()),
            Work::None => false,
        };
        if has_stopped {
            lock(&shared).lost.get_or_insert_with(|| NO_ANSWER.into());
        }
        let ending = match work {
            Work::None => None,
            // It was waited for long enough.
            Work::Thread { thread, .. } if has_stopped => {
                left = Some(thread);
                None
            }
            Work::Comm { .. } if has_stopped => {
                is_left = true;
                None
            }
            Work::Thread { operations, thread, progress } => {
                drop(operations);
                Some((thread, progress.ended))
            }
            Work::Comm { keeper, waiting, progress: Progress { ended, .. } } => {
                let close = move || {
                    let mut keeper = lock(&keeper.0);
                    keeper.write_all(waiting);
                    keeper.close();
                };
                let started = threads::start("haul-log", close);
                started
                    .map_err(|error| lock(&shared).lost = Some(error.to_string()))
                    .ok()
                    .map(|it| (it, ended))
            }
        };
        is_left |= left.is_some_and(|thread| !thread.is_finished());
        let (mut is_hanging, mut intact) = (false, true);
        if let Some((thread, ended)) = ending {
            match ends(&thread, &ended) {
                true => intact = thread.join().is_ok(),
                false => {
                    is_hanging = true;
                    lock(&shared).lost = Some(NO_ANSWER.into());
                }
            }
        }
        let mut summary = lock(&shared).clone();
        summary.closing = began.elapsed();
        if !intact {
            summary.lost = Some("the log thread has panicked".into());
        }
        (summary, is_hanging || is_left)
    }
}

/// The log, in the hands of who writes it.
struct Keeper {
    log: ObjectLog<DirectoryStore>,
    hash: HashKind,
    handles: HashMap<EntryId, Handle>,
    inputs: Inputs,
    shared: Arc<Mutex<LogSummary>>,
    unsynced_since: Option<Instant>,
    lost: bool,
    /// See [`Progress`].
    ended: Arc<AtomicU64>,
}

impl Keeper {
    /// The thread of the log.
    fn run(mut self, queue: &crossbeam_channel::Receiver<LogOp>) {
        loop {
            let wait = self.unsynced_since.map_or(Duration::from_secs(3600), |since| {
                (since + SYNC_EVERY).saturating_duration_since(Instant::now())
            });
            match queue.recv_timeout(wait) {
                // All that waits: of a file that has ended meanwhile nothing is written.
                Ok(op) => self.write_all(std::iter::once(op).chain(queue.try_iter().take(queue.len()))),
                Err(RecvTimeoutError::Timeout) => self.sync(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.close();
    }

    fn write_all(&mut self, operations: impl IntoIterator<Item = LogOp>) {
        let mut operations = operations.into_iter().peekable();
        if operations.peek().is_none() {
            // Most of what the thread that receives hears is nothing to log.
            if self.unsynced_since.is_some_and(|since| since.elapsed() >= SYNC_EVERY) {
                self.sync();
            }
            return;
        }
        let _at = haul_meter::at(Stage::Log);
        operations.for_each(|op| self.apply(op));
        self.write(ObjectLog::flush);
        // However busy the queue is, a second's worth is the most that a power cut may cost.
        if self.unsynced_since.get_or_insert_with(Instant::now).elapsed() >= SYNC_EVERY {
            self.sync();
        }
    }

    fn apply(&mut self, op: LogOp) {
        let result = match op {
            LogOp::Begin { id, path, identity, object_bytes, objects, token } => {
                let hash_kind = self.hash.number();
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
        match result {
            // Its directory has listed a name twice, of which the other one has the entry now.
            Ok(()) | Err(haul_objectlog::Error::StaleHandle) => {}
            Err(error) => self.lose(error.to_string()),
        }
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn sync(&mut self) {
        let _at = haul_meter::at(Stage::Log);
        if self.unsynced_since.take().is_some() {
            self.write(ObjectLog::sync);
        }
    }

    fn close(&mut self) {
        self.write(ObjectLog::wind_up);
    }

    fn write<E: std::fmt::Display>(
        &mut self,
        write: impl FnOnce(&mut ObjectLog<DirectoryStore>) -> Result<(), E>,
    ) {
        let result = write(&mut self.log);
        self.ended.fetch_add(1, Ordering::Relaxed);
        let Usage { bytes_peak, files_peak, .. } = self.log.usage();
        let mut summary = lock(&self.shared);
        (summary.bytes_peak, summary.files_peak) = (bytes_peak, files_peak);
        drop(summary);
        if let Err(error) = result {
            self.lose(error.to_string());
        }
    }

    /// It is tried again with every flush; but for a time, nothing of this transfer was logged.
    fn lose(&mut self, cause: String) {
        if !std::mem::replace(&mut self.lost, true) {
            lock(&self.shared).lost = Some(cause.clone());
            let _ = self.inputs.send(Input::LogLost { cause });
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
