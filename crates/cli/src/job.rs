//! The job's id, and what is kept of it where the command was typed.
//!
//! A job is a directory `jobs/<id>` in the state directory: the record (`job.json`), the lock that keeps a second
//! command of the same kind out, and for the ends that run on this host the object log and the spool.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use haul_model::report::Stats;
use haul_model::{Code, JobId};
use haul_mover::Error;
use haul_mover::durable::{self, StatePoint};
use haul_mover::owner::{make_with, remove_directory};
use haul_mover::runner::{Runner, host, is_file_at, is_locked, open_lock, try_lock};
use haul_storage::scan::STATE_NEW;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::elsewhere::{bring_along, bring_back, is_own, substitute, substitute_directory, why_not};
use crate::kin::{self, Kin};
use crate::paths::{harmless, hex, show, unhex};

/// `$HAUL_STATE_DIR`, else `$XDG_STATE_HOME/haul`, else `~/.local/state/haul`, with the user's entry for the home directory where
/// nothing says it (as under cron); else where state is kept when it cannot be written.
pub fn state_directory() -> Result<PathBuf, Error> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(path) = std::env::var_os("HAUL_STATE_DIR").filter(|path| !path.is_empty()) {
        return crate::paths::absolute(&path);
    }
    let home = || std::env::home_dir().filter(|home| home.is_absolute());
    Ok(absolute("XDG_STATE_HOME")
        .map(|base| base.join("haul"))
        .or_else(|| home().map(|home| home.join(".local/state/haul")))
        .unwrap_or_else(substitute_directory))
}

/// Where jobs are: where they belong and, if there is such a place, where they are kept while that cannot be written.
pub fn places() -> Result<Vec<PathBuf>, Error> {
    let (state, substitute) = (state_directory()?, substitute_directory());
    let usual = (state != substitute).then_some(state);
    Ok(usual.into_iter().chain(Some(substitute).filter(|directory| is_own(directory))).collect())
}

/// What decides which job a command is: only what decides what exists at its end.
pub struct Identity<'a> {
    /// Host as typed, empty here; absolute path here, path as typed there.
    pub sources: Vec<(&'a str, Vec<u8>)>,
    /// The same of DEST.
    pub destination: (&'a str, Vec<u8>),
    /// `-r`
    pub recursive: bool,
    /// `-p`
    pub preserve: bool,
    /// What tells this host from others, if a path here means something else on those: hosts may have a state directory in common.
    pub host: Option<Vec<u8>>,
}

/// Tells this host from others: those made from one image may have one number, and names may be given twice.
pub fn this_host() -> Vec<u8> {
    let number = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    format!("{} {}", host(), number.trim()).into_bytes()
}

impl Identity<'_> {
    /// The hash of all of it, with lengths, so that nothing can be read in two ways.
    pub fn id(&self) -> JobId {
        self.id_at(self.host.as_deref())
    }

    /// The same for all hosts.
    pub fn id_of_any_host(&self) -> JobId {
        self.id_at(None)
    }

    fn id_at(&self, this_host: Option<&[u8]>) -> JobId {
        let mut hasher = blake3::Hasher::new_derive_key("haul job id 2");
        let mut field = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        field(&(self.sources.len() as u64).to_le_bytes());
        for (host, path) in self.sources.iter().chain([&self.destination]) {
            field(host.as_bytes());
            field(path);
        }
        field(&[self.recursive.into(), self.preserve.into(), this_host.is_some().into()]);
        field(this_host.unwrap_or_default());
        let mut id = [0; 16];
        hasher.finalize_xof().fill(&mut id);
        JobId(id)
    }
}

/// How often it is written how far a transfer is: first after so long, then after twice as long each time, as far as this.
const LIVE_FIRST: Duration = Duration::from_millis(200);
const LIVE_EVERY: Duration = Duration::from_secs(2);
/// How long its last writing may take.
const LIVE_LAST: Duration = Duration::from_secs(2);

/// Files that are done and all, bytes that are done and all.
fn counts(stats: &Stats) -> [u64; 4] {
    let Stats { files_total, bytes_total, .. } = *stats;
    [stats.files_there(), files_total, stats.bytes_there(), bytes_total]
}

/// The state of a job whose record cannot be read.
const DAMAGED: &str = "damaged";

impl Record {
    /// Of a job of which nothing can be read.
    pub fn unreadable(job: String, error: &Error, updated: u64) -> Record {
        Record {
            version: RECORD_VERSION,
            job,
            instance: String::new(),
            sources: Vec::new(),
            destination: String::new(),
            destination_here: None,
            decision: None,
            recursive: false,
            paths: Vec::new(),
            kin: None,
            state: DAMAGED.into(),
            started: updated,
            updated,
            sessions: 0,
            files_done: 0,
            files_total: 0,
            bytes_done: 0,
            bytes_total: 0,
            files_failed: 0,
            beyond_help: 0,
            error: Some(error.to_string()),
        }
    }

    /// Of this version, and with what names its unfinished files.
    fn is_sound(&self) -> bool {
        let instance = unhex(&self.instance).map(|instance| instance.len());
        self.version == RECORD_VERSION && instance == Some(16)
    }

    /// Nobody knows what it was.
    pub fn is_unreadable(&self) -> bool {
        self.state == DAMAGED
    }

    /// All that failed is of a kind that is not copied.
    pub fn is_beyond_help(&self) -> bool {
        self.state == "incomplete" && self.files_failed > 0 && self.files_failed == self.beyond_help
    }

    /// It failed before there was anything to continue.
    pub fn has_never_begun(&self) -> bool {
        let Record { sessions, files_total, bytes_total, .. } = *self;
        self.state == "failed" && sessions <= 1 && files_total == 0 && bytes_total == 0
    }

    /// How far it is.
    pub fn count(&mut self, stats: &Stats) {
        self.set_counts(counts(stats));
    }

    fn set_counts(&mut self, counts: [u64; 4]) {
        [self.files_done, self.files_total, self.bytes_done, self.bytes_total] = counts;
    }

    /// A process that runs, or was killed, has not written down in its record how far it is; one that has just begun, not
    /// even that it runs.
    pub fn look_at_progress(&mut self, directory: &Path, running: bool) {
        let told = std::fs::read(directory.join(PROGRESS)).ok();
        let Some(told) = told.and_then(|text| serde_json::from_slice::<Progress>(&text).ok()) else { return };
        let of_this_session = told.sessions == self.sessions && self.state == "running";
        if of_this_session || running && told.sessions > self.sessions {
            self.set_counts(told.counts);
            self.sessions = told.sessions;
            self.updated = self.updated.max(told.updated);
        }
    }
}

/// What is kept of a job.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Record {
    /// Of this layout.
    pub version: u32,
    /// 32 hex digits.
    pub job: String,
    /// 16 random bytes: the same job of another host or user has others.
    pub instance: String,
    /// As shown.
    pub sources: Vec<String>,
    /// As shown.
    pub destination: String,
    /// Bytes of a destination on this host, so that its unfinished files can be removed.
    pub destination_here: Option<String>,
    /// `into` or `as`, once decided.
    pub decision: Option<String>,
    /// `-r`; of older versions nobody knows.
    #[serde(default = "yes")]
    pub recursive: bool,
    /// Bytes of all SOURCEs and DEST as they are shown, in hex.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Where the command was typed, if that counts. What cannot be read of it is only advice.
    #[serde(default, deserialize_with = "kin::if_readable")]
    pub kin: Option<Kin>,
    /// running, done, incomplete, failed, interrupted.
    pub state: String,
    /// Seconds since 1970.
    pub started: u64,
    /// Seconds since 1970.
    pub updated: u64,
    /// Sessions so far.
    pub sessions: u64,
    /// As of the last session.
    #[serde(default)]
    pub files_done: u64,
    /// As of the last session.
    #[serde(default)]
    pub files_total: u64,
    /// As of the last session.
    #[serde(default)]
    pub bytes_done: u64,
    /// As of the last session.
    #[serde(default)]
    pub bytes_total: u64,
    /// As of the last session.
    #[serde(default)]
    pub files_failed: u64,
    /// Those of them that no further session can copy.
    #[serde(default)]
    pub beyond_help: u64,
    /// Why the last session failed.
    #[serde(default)]
    pub error: Option<String>,
}

/// A job that this process works on.
pub struct Job {
    /// `jobs/<id>`
    pub directory: PathBuf,
    /// What is kept of it.
    pub record: Record,
    /// It is not where it belongs, and why.
    pub log_trouble: Option<String>,
    /// How long it took to keep it.
    pub kept: Duration,
    lock: std::fs::File,
    /// State, error and sessions when it was opened.
    before: (String, Option<String>, u64),
}

/// What is known of a job from its command.
#[derive(Clone, Default, Debug)]
pub struct About {
    /// Bytes of the SOURCEs, with their host.
    pub sources: Vec<Vec<u8>>,
    /// Bytes of DEST, with its host.
    pub destination: Vec<u8>,
    /// DEST, if it is on this host.
    pub destination_here: Option<PathBuf>,
    /// `-r`
    pub recursive: bool,
    /// Where the command was typed, if that counts.
    pub kin: Option<Kin>,
}

impl About {
    /// For people.
    pub fn sources_shown(&self) -> Vec<String> {
        self.sources.iter().map(|path| show(path)).collect()
    }

    /// For people.
    pub fn destination_shown(&self) -> String {
        show(&self.destination)
    }
}

const RECORD_VERSION: u32 = 1;

fn yes() -> bool {
    true
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The directory of a job.
pub fn directory(state: &Path, id: &JobId) -> PathBuf {
    state.join("jobs").join(id.to_string())
}

impl Job {
    /// Locks the job, and reads or makes its record.
    pub fn open(state: &Path, id: &JobId, about: &About) -> Result<Job, Error> {
        let began = Instant::now();
        let directory = directory(state, id);
        let lock = lock(&directory)?;
        let elsewhere = bring_back(state, id, &directory)?;
        let record = match known(&directory)? {
            Some(record) => record,
            None => {
                let mut instance = [0; 16];
                random(&mut instance)?;
                Record {
                    version: RECORD_VERSION,
                    job: id.to_string(),
                    instance: hex(&instance),
                    sources: about.sources_shown(),
                    destination: about.destination_shown(),
                    destination_here: about
                        .destination_here
                        .as_ref()
                        .map(|path| hex(path.as_os_str().as_bytes())),
                    decision: None,
                    recursive: about.recursive,
                    paths: Vec::new(),
                    kin: None,
                    state: "running".into(),
                    started: now(),
                    updated: now(),
                    sessions: 0,
                    files_done: 0,
                    files_total: 0,
                    bytes_done: 0,
                    bytes_total: 0,
                    files_failed: 0,
                    beyond_help: 0,
                    error: None,
                }
            }
        };
        let before = Default::default();
        let mut job = Job { directory, record, log_trouble: None, kept: Duration::ZERO, lock, before };
        job.record.kin.clone_from(&about.kin);
        job.record.paths = about.sources.iter().chain([&about.destination]).map(|path| hex(path)).collect();
        // How far a session was that was killed; one that had not begun knows nothing.
        let mut killed = job.record.clone();
        killed.look_at_progress(&job.directory, false);
        if killed.files_total > 0 {
            job.record = killed;
        }
        job.before = (job.record.state.clone(), job.record.error.take(), job.record.sessions);
        job.record.state = "running".into();
        job.record.sessions += 1;
        // What an earlier session has counted is not how far this one is. It stays in the record until this one has begun.
        Progress { sessions: job.record.sessions, updated: now(), counts: [0; 4] }.keep(&job.directory);
        job.save()?;
        if let Some(kin) = &about.kin {
            kin.note(state, id);
        }
        if let Some(elsewhere) = elsewhere {
            elsewhere.remove();
        }
        job.kept = began.elapsed();
        Ok(job)
    }

    /// [`open`](Self::open), in `state` or, where that cannot be written, in a directory that does not outlive the
    /// host's boot for sure; then with the reason. With `required` there is no second choice.
    pub fn open_anywhere(
        state: &Path,
        required: bool,
        id: &JobId,
        open: impl Fn(&Path) -> Result<Job, Error>,
    ) -> Result<(Job, Option<String>), Error> {
        let error = match open(state) {
            Ok(job) => return Ok((job, None)),
            Err(error) => error,
        };
        let place = directory(state, id);
        // It can be read who works at it, where no lock can be had.
        if is_running(&place) {
            return Err(already_running(&place));
        }
        let Some((substitute, cause)) = substitute(&error, required) else { return Err(error) };
        let opened = bring_along(state, &place, &directory(&substitute, id)).and_then(|()| open(&substitute));
        opened.map(|job| (job, Some(cause))).map_err(|other| why_not(error, other))
    }

    /// The random bytes that tell this job from the same one of another host.
    pub fn instance(&self) -> [u8; 16] {
        unhex(&self.record.instance).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; 16])
    }

    /// As if the command had never been typed.
    pub fn forget(self) {
        kin::forget(&self.directory, &self.record);
        let _ = remove_directory(&self.directory, self.lock);
    }

    /// It is done: its record stays, with an empty log for whoever looks; what only a job needs that runs does not.
    pub fn clear(&self) {
        let _ = std::fs::remove_dir(self.directory.join("spool"));
        let _ = std::fs::remove_file(self.directory.join(PROGRESS));
    }

    /// Makes the record durable as it was when the job was opened.
    pub fn save_as_before(&mut self) -> Result<(), Error> {
        (self.record.state, self.record.error, self.record.sessions) = self.before.clone();
        self.save()
    }

    /// Makes the record durable.
    pub fn save(&mut self) -> Result<(), Error> {
        let began = Instant::now();
        let saved = self.write();
        self.kept += began.elapsed();
        saved
    }

    fn write(&mut self) -> Result<(), Error> {
        self.record.updated = now();
        let path = self.directory.join("job.json");
        let failed = |error: std::io::Error| {
            Error::os(Code::StateUnwritable, path.display().to_string(), &error)
                .hint(haul_mover::owner::state_hint(&error))
        };
        let fresh = self.directory.join(STATE_NEW[0]);
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)
            .map_err(failed)?;
        let text = serde_json::to_vec_pretty(&self.record).expect("a record has only plain values");
        file.write_all(&text).and_then(|()| durable::sync(StatePoint::JobRecord, &file)).map_err(failed)?;
        std::fs::rename(&fresh, &path).map_err(failed)?;
        std::fs::File::open(&self.directory)
            .and_then(|held| durable::sync(StatePoint::JobName, &held))
            .map_err(failed)
    }
}

/// How far a session is that runs, or was when it was killed. In a file of its own, which may be lost.
#[derive(Serialize, Deserialize)]
struct Progress {
    sessions: u64,
    updated: u64,
    counts: [u64; 4],
}

const PROGRESS: &str = "progress.json";

impl Progress {
    fn keep(&self, directory: &Path) {
        let text = serde_json::to_vec(self).expect("it has only numbers");
        let fresh = directory.join(STATE_NEW[1]);
        let written = std::fs::write(&fresh, text);
        drop(written.and_then(|()| std::fs::rename(&fresh, directory.join(PROGRESS))));
    }
}

/// Keeps what `haul status` shows of a transfer that runs; nothing depends on it, and nobody waits for it.
pub struct Live {
    ended: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Live {
    /// `stats` is how far it is.
    pub fn start(job: &Job, stats: impl Fn() -> Stats + Send + 'static) -> Live {
        let ended = Arc::new(AtomicBool::new(false));
        let (stop, sessions, directory) = (Arc::clone(&ended), job.record.sessions, job.directory.clone());
        let run = move || {
            let mut pause = LIVE_FIRST;
            while !stop.load(Ordering::Acquire) {
                std::thread::park_timeout(pause);
                Progress { sessions, updated: now(), counts: counts(&stats()) }.keep(&directory);
                pause = (2 * pause).min(LIVE_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("haul-status".into()).spawn(run).ok();
        Live { ended, thread }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // Storage that hangs is not waited for.
        let deadline = Instant::now() + LIVE_LAST;
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Random bytes from the kernel.
pub fn random(bytes: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(bytes).map_err(|error| Error::new(Code::Internal, format!("no random numbers: {error}")))
}

/// What is kept of the job in `directory`; none if it is new. A job of which nobody can tell what it has decided does not begin
/// anew: DEST may be there since.
pub fn known(directory: &Path) -> Result<Option<Record>, Error> {
    let path = directory.join("job.json");
    let id = directory.file_name().unwrap_or_default().to_string_lossy();
    let id = id.get(..12).unwrap_or(&id);
    let hint = format!("to begin anew, see what DEST is by now, then: haul stop {id} --discard");
    let text = match read_file(&path) {
        Ok(text) => text,
        // There is no state directory, or something else has its name.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => {
            return Err(Error::os(Code::StateDamaged, path.display().to_string(), &error).hint(hint));
        }
    };
    let record = serde_json::from_slice(&text).ok();
    match record.filter(Record::is_sound) {
        Some(record) => Ok(Some(record)),
        None => Err(Error::new(Code::StateDamaged, path.display().to_string()).hint(hint)),
    }
}

/// What is kept of the job in `directory`, if it can be read. It may be somebody else's: what it says is for a terminal.
pub fn read_record(directory: &Path) -> Option<Record> {
    let record: Option<Record> = serde_json::from_slice(&read_file(&directory.join("job.json")).ok()?).ok();
    let mut record = record.filter(Record::is_sound)?;
    // Bytes of it are counted.
    unhex(&record.job)?;
    let shown = record
        .sources
        .iter_mut()
        .chain([&mut record.job, &mut record.state, &mut record.destination])
        .chain(&mut record.error);
    shown.for_each(|text| *text = harmless(text));
    Some(record)
}

/// A record has the paths of some thousand SOURCEs at most.
const RECORD_BYTES_MAX: u64 = 64 << 20;

/// A file, and nothing that would be waited for or that has no end.
fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut options = std::fs::File::options();
    let file = options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(ErrorKind::InvalidInput.into());
    }
    let mut text = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// Is a process at work on the job?
pub fn is_running(directory: &Path) -> bool {
    is_locked(&directory.join("lock"))
}

/// Who holds the lock, as far as the lock says.
pub fn runner(directory: &Path) -> Option<Runner> {
    Runner::read(&directory.join("lock"))
}

const PATIENCE_MOST: Duration = Duration::from_secs(5);
const PATIENCE_AFAR: Duration = Duration::from_secs(1);

/// What whoever comes second is told.
pub fn already_running(directory: &Path) -> Error {
    let who = runner(directory).map_or("another process".to_owned(), |runner| runner.to_string());
    let id = directory.file_name().unwrap_or_default().to_string_lossy();
    let id: String = id.chars().take(12).collect();
    Error::new(Code::AlreadyRunning, who)
        .hint(format!("see it with: haul status; end it with: haul stop {id}"))
}

/// Makes the directory of a job, and locks it.
pub fn lock(directory: &Path) -> Result<std::fs::File, Error> {
    let path = directory.join("lock");
    let failed = |error: std::io::Error| {
        Error::os(Code::StateUnwritable, path.display().to_string(), &error)
            .hint(haul_mover::owner::state_hint(&error))
    };
    let began = Instant::now();
    loop {
        let file = make_with(directory, || open_lock(&path).map_err(failed))?;
        while !try_lock(&file).map_err(failed)? {
            let runner = runner(directory);
            let patience = match &runner {
                // A process that was killed a moment ago may still be going.
                Some(runner) if is_dying(runner) => PATIENCE_MOST,
                Some(runner) if runner.is_here() => Duration::ZERO,
                // One that nobody can see may be long gone, and who looks whether it is has the lock for a moment.
                Some(_) => PATIENCE_AFAR,
                None => PATIENCE_MOST,
            };
            if began.elapsed() >= patience {
                return Err(already_running(directory));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // Whoever had it may have removed it with all that is kept of the job.
        if is_file_at(&file, &path) {
            Runner::write(&file).map_err(failed)?;
            return Ok(file);
        }
    }
}

/// It has been killed, or is gone already. Of one on another host nobody here knows.
fn is_dying(runner: &Runner) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", runner.pid()));
    let (true, Some(_process)) = (runner.is_here(), runner.process()) else { return runner.is_here() };
    let Ok(status) = status else { return true };
    let state =
        |line: &str| line.strip_prefix("State:").map(|state| state.trim_start().starts_with(['Z', 'X']));
    let killed = |line: &str| {
        let pending = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(pending.trim(), 16).ok().map(|pending| pending >> 8 & 1 == 1)
    };
    status.lines().any(|line| state(line) == Some(true) || killed(line) == Some(true))
}

/// Host and path in one.
pub fn spelled(host: &str, path: &[u8]) -> Vec<u8> {
    if host.is_empty() { path.to_vec() } else { [host.as_bytes(), b":", path].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(sources: &[(&'static str, &[u8])]) -> Identity<'static> {
        Identity {
            sources: sources.iter().map(|(host, path)| (*host, path.to_vec())).collect(),
            destination: ("host", b"d".to_vec()),
            recursive: true,
            preserve: false,
            host: None,
        }
    }

    #[test]
    fn whatever_decides_what_exists_at_the_end_decides_the_id() {
        let id = identity(&[("", b"/a")]).id();
        assert_eq!(id, identity(&[("", b"/a")]).id());
        assert_ne!(id, identity(&[("", b"/b")]).id());
        assert_ne!(id, identity(&[("h", b"/a")]).id());
        assert_ne!(id, Identity { recursive: false, ..identity(&[("", b"/a")]) }.id());
        assert_ne!(id, Identity { preserve: true, ..identity(&[("", b"/a")]) }.id());
        let of_host = |host: &[u8]| Identity { host: Some(host.to_vec()), ..identity(&[("", b"/a")]) }.id();
        assert_eq!(of_host(b"one"), of_host(b"one"));
        assert!(of_host(b"one") != of_host(b"other") && of_host(b"") != id);
        assert_ne!(identity(&[("", b"/a"), ("", b"/b")]).id(), identity(&[("", b"/a/b"), ("", b"/")]).id());
    }

    #[test]
    fn where_a_command_was_typed_is_only_advice() {
        let state = tempfile::tempdir().unwrap();
        let job = Job::open(state.path(), &JobId([7; 16]), &About::default()).unwrap();
        let path = job.directory.join("job.json");
        let mut written: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        written["kin"] = serde_json::json!({ "command": "c", "whereabouts": { "host": "h", "boot": "b" } });
        std::fs::write(&path, written.to_string()).unwrap();
        assert!(known(&job.directory).unwrap().unwrap().kin.is_none());
    }

    #[test]
    fn a_second_command_is_kept_out_while_the_first_one_runs() {
        let state = tempfile::tempdir().unwrap();
        let id = JobId([7; 16]);
        let open = || Job::open(state.path(), &id, &About::default());
        let first = open().unwrap();
        let refused = open().err().unwrap();
        assert_eq!(refused.failure.code, Code::AlreadyRunning);
        let instance = first.instance();
        drop(first);
        let again = open().unwrap();
        assert_eq!((again.instance(), again.record.sessions), (instance, 2));
    }

    #[test]
    fn a_lock_that_was_removed_with_its_job_is_not_taken_for_the_job() {
        let state = tempfile::tempdir().unwrap();
        let job = state.path().join("jobs/1");
        let held = lock(&job).unwrap();
        // As one does that was killed: it is waited for.
        std::fs::write(job.join("lock"), "").unwrap();
        let waits = std::thread::spawn({
            let job = job.clone();
            move || lock(&job).map(|_held| is_running(&job))
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished());
        std::fs::remove_dir_all(&job).unwrap();
        drop(held);
        assert!(waits.join().unwrap().unwrap(), "it has the lock that is there now");
    }
}
