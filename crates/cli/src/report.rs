//! What the user sees: a progress line, JSON events, one line for what failed, the summary.

use std::cell::OnceCell;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul_model::report::{Fact, Stats};
use haul_model::stripe::Unlike;
use haul_model::{Blame, Code, Failure, Hash, HashKind};
use haul_mover::bottleneck::Around;
use haul_mover::end::Summary;
use haul_mover::{Error, Report, Reports};
use haul_storage::engine::{Note, Told, Wish};
use haul_topology::placer::Told as Placed;
use serde_json::{Map, Value, json};

use crate::bar::Bar;
use crate::elsewhere::is_kept;
use crate::engines;
use crate::paths::{hex, json as json_line, show};
use crate::told::{counted, progress_line, size, summary_line};
use crate::typed::Typed;
use crate::{placement, profile};

/// One JSON progress event this often.
const JSON_PROGRESS: Duration = Duration::from_secs(1);
/// The rate is that of about the last five seconds.
const RATE_SECONDS: f64 = 5.0;

/// An error that ends the command.
pub fn error(error: &Error) {
    let mut stderr = io::stderr().lock();
    let harmless = crate::paths::harmless;
    let _ = writeln!(stderr, "haul: {}", harmless(&error.to_string()));
    if let Some(hint) = &error.hint {
        let _ = writeln!(stderr, "      {}", harmless(hint));
    }
}

/// Where an internal error was noticed at an end that does not report: the other one is only told that there was one.
pub fn mistake_of_other_end(summary: &Summary) {
    if let Some(mistake) = summary.error.as_ref().filter(|error| error.failure.place.is_known()) {
        error(mistake);
    }
}

/// What the far end has to say of how it reads and writes.
pub fn note_of_far_end(note: &Note) {
    say_of_far_end(&note.to_string());
}

/// Of files that were not copied for their names.
pub fn left_out_text(count: u64) -> String {
    let files = counted(count, "file");
    format!(
        "{files} of the SOURCE left out: named as haul names what it has not finished (.haul-<32 hex digits>, .haul-record.new, .haul-progress.new)"
    )
}

/// A line of the far end on the user's terminal, if somebody listens still.
pub fn say_of_far_end(text: &str) {
    let _ = writeln!(io::stderr(), "haul: at the other end: {text}");
}

/// Tells the user of one transfer.
pub struct Reporter {
    json: bool,
    verbose: bool,
    quiet: bool,
    job: String,
    bar: Bar,
    /// The command.
    started: Instant,
    connected: Option<Instant>,
    last_json: Option<Instant>,
    rate: Rate,
    connections: u64,
    hash: HashKind,
    cipher: Option<&'static str>,
    /// Counters of the last progress report.
    pub stats: Stats,
    /// Of those that failed, how many are of a kind that is not copied.
    beyond_help: u64,
    json_every: Duration,
    first_object: Option<Duration>,
    log_lost: Option<String>,
    typed: Typed,
    /// Other transfers at the targets of each end, and the most that there were.
    neighbours: [usize; 2],
    neighbours_peak: usize,
    /// Where the time went is shown in full.
    profile: bool,
    /// Where threads on this host run, once that is decided.
    placement: Option<String>,
    /// Bytes of the slots of the end that reports, and of those that are locked.
    buffers: Option<(usize, usize)>,
    /// A file that is there once the user was told that buffers are not locked.
    buffers_told: Option<PathBuf>,
    /// The last event is out.
    finished: bool,
    /// Why something that was told on stdout did not get there.
    unwritten: OnceCell<io::Error>,
}

/// Which end reports.
#[derive(Clone, Copy)]
pub enum End {
    /// The one that reads.
    Source,
    /// The one that writes.
    Sink,
}

/// A smoothed rate in bytes a second.
struct Rate {
    since: Instant,
    at: Instant,
    bytes: u64,
    value: f64,
}

/// Shared between the engine's thread and the command.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Reporter>>);

/// What the summary says beside the counters.
#[derive(Default)]
pub struct Setup {
    /// Data is encrypted on its way; none where it leaves no process.
    pub encrypted: Option<bool>,
    /// By what hash all that was sent was compared with what was read; none where nobody does, as within one process.
    pub verified: Option<HashKind>,
    /// So many bytes were hashed while the other end was being reached.
    pub hashed_early: u64,
    /// So many unfinished files of haul were found at this end, and not copied.
    pub left_out: u64,
    /// Which end's report this is.
    pub log: Option<haul_mover::log::LogSummary>,
    /// How this end read and wrote.
    pub engines: (Vec<Told>, Vec<Note>),
    /// What the user wished of that could not all be.
    pub wished: Wish,
    /// How long it took until there was a connection to the other end, if that is elsewhere.
    pub connecting: Duration,
    /// And what is kept of the job, apart from what is written while contents are copied.
    pub state: Duration,
}

impl Setup {
    /// By what hash it was compared, if there was anything to compare.
    pub fn verified_of(&self, stats: &Stats) -> Option<HashKind> {
        self.verified.filter(|_| stats.bytes_done > 0)
    }
}

impl Shared {
    /// A reporter for the job of a command that was started then.
    pub fn new(job: String, started: Instant, [json, verbose, quiet]: [bool; 3]) -> Self {
        let bar = Bar::new(!json && !quiet && io::stderr().is_terminal());
        let rate = Rate::begun();
        Shared(Arc::new(Mutex::new(Reporter {
            json,
            verbose,
            quiet,
            job,
            bar,
            started,
            connected: None,
            last_json: None,
            rate,
            connections: 0,
            cipher: None,
            stats: Stats::default(),
            beyond_help: 0,
            json_every: JSON_PROGRESS,
            first_object: None,
            log_lost: None,
            typed: Typed::default(),
            neighbours: [0; 2],
            neighbours_peak: 0,
            profile: false,
            placement: None,
            buffers: None,
            buffers_told: None,
            finished: false,
            unwritten: OnceCell::new(),
            hash: HashKind::default(),
        })))
    }

    /// With the reporter; a panic elsewhere does not silence it.
    pub fn with<T>(&self, work: impl FnOnce(&mut Reporter) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// For an end of the engine.
    pub fn reports(&self, end: End) -> Reports {
        let shared = self.clone();
        Box::new(move |report| shared.with(|reporter| reporter.report(end, report)))
    }

    /// For the end whose other reports would only repeat the first one's.
    pub fn neighbours(&self, end: End) -> Reports {
        let mut reports = self.reports(end);
        Box::new(move |report| {
            if let Report::Neighbours { .. } = report {
                reports(report);
            }
        })
    }
}

impl Reporter {
    /// A file's hash as tools print it.
    fn shown(&self, hash: Option<Hash>) -> Value {
        let shown = hash.filter(|_| self.hash != HashKind::None);
        shown.map_or(Value::Null, |hash| hash.to_string()[..2 * self.hash.bytes()].into())
    }

    fn report(&mut self, end: End, report: Report) {
        match report {
            Report::Fact(Fact::Failed { path, failure }) => self.failed(&path, failure),
            Report::Fact(Fact::FailedToo { count }) => self.failed_too(count),
            Report::Fact(Fact::SpillFailed { failure, room }) => self.spill_failed(failure, room),
            Report::Fact(Fact::Done { path, bytes, hash }) => {
                if self.json {
                    let mut event = path_fields("file", &path);
                    event.insert("bytes".into(), bytes.into());
                    event.insert("hash".into(), self.shown(hash));
                    self.event(Value::Object(event));
                } else if self.verbose {
                    let shown = show(&path);
                    self.line(&shown);
                }
            }
            Report::Fact(Fact::Unlike { path, why }) => self.unlike(&path, why),
            Report::Progress { stats, totals_are_final } => self.progress(stats, totals_are_final),
            Report::Connected { streams, cipher } => {
                self.connections += 1;
                if self.connected.is_none() {
                    // The login is no part of how fast it goes.
                    (self.connected, self.rate) = (Some(Instant::now()), Rate::begun());
                }
                self.cipher = cipher;
                if self.json {
                    self.event(json!({"event": "connected", "streams": streams, "cipher": cipher}));
                } else if self.connections > 1 {
                    self.note("connected again");
                }
            }
            Report::Reconnecting { cause } => {
                let cause = show(cause.as_bytes());
                if self.json {
                    self.event(json!({"event": "reconnecting", "cause": cause}));
                } else {
                    self.note(&format!("the connection was lost ({cause}); connecting again"));
                }
            }
            Report::Neighbours { transfers, targets } => self.neighbours(end, transfers, targets),
            Report::Buffers { bytes, locked_bytes } => {
                self.buffers = Some((bytes, locked_bytes));
                self.tell_of_locks(bytes, locked_bytes);
            }
            Report::FirstObject => self.first_object = Some(self.started.elapsed()),
            Report::LogLost { cause } => {
                let cause = show(cause.as_bytes());
                if self.json {
                    self.event(json!({"event": "log_lost", "cause": cause}));
                } else {
                    let what_follows = match is_kept(&cause) {
                        true => "this transfer can be resumed as long as that directory is there",
                        false => "from here on this transfer cannot be resumed",
                    };
                    self.note(&format!("the object log is lost ({cause}): {what_follows}"));
                }
                self.log_lost = Some(cause);
            }
        }
    }

    fn neighbours(&mut self, end: End, transfers: usize, targets: usize) {
        self.neighbours[end as usize] = transfers;
        self.neighbours_peak = self.neighbours_peak.max(transfers);
        if self.json {
            let end = match end {
                End::Source => "source",
                End::Sink => "sink",
            };
            self.event(
                json!({"event": "neighbours", "end": end, "transfers": transfers, "targets": targets}),
            );
        }
    }

    /// Where threads on this host run; `end` is which end of the transfer that is.
    pub fn placed(&mut self, end: &str, told: &Placed) {
        if self.finished {
            return;
        }
        if self.json {
            self.event(placement::event(end, told));
        } else if let Some(trouble) = &told.trouble {
            self.note(&show(trouble.as_bytes()));
        }
        self.placement = Some(placement::line(told));
    }

    fn failed(&mut self, path: &[u8], failure: Failure) {
        // Trouble at an end is told of the path that the user knows there.
        let typed = match failure.code.blame() {
            _ if [Code::SourceDirectory, Code::SourceTwice, Code::LinkToItself].contains(&failure.code) => {
                self.typed.at_source(path)
            }
            Blame::Source => self.typed.at_source(path),
            // There was no place for what directories there are to look like.
            _ if failure.code == Code::StateUnwritable => self.typed.at_destination(path),
            Blame::Sink => self.typed.at_destination(path),
            _ => None,
        };
        let path = typed.as_deref().unwrap_or(path);
        self.beyond_help += u64::from(failure.code == Code::UnsupportedKind);
        if self.json {
            self.event(failed_event(path, failure));
        } else {
            let error = Error { failure, about: show(path), hint: None };
            self.note(&error.to_string());
        }
    }

    /// How many of those that failed no further run can copy.
    pub fn beyond_help(&self) -> u64 {
        self.beyond_help
    }

    fn failed_too(&self, count: u64) {
        match self.json {
            true => self.event(json!({"event": "failed_too", "count": count})),
            false => {
                let directories = if count == 1 { "directory" } else { "directories" };
                self.note(&format!("{count} more {directories} failed, too many to name"));
            }
        }
    }

    fn unlike(&self, path: &[u8], why: Unlike) {
        let typed = self.typed.at_destination(path);
        let path = typed.as_deref().unwrap_or(path);
        if self.json {
            let mut event = path_fields("striped_otherwise", path);
            event.insert("why".into(), why.name().into());
            return self.event(Value::Object(event));
        }
        let why = match why {
            Unlike::NoPool => "there is no pool of that name",
            Unlike::NotTaken => "the file system does not take it",
        };
        let shown = show(path);
        self.note(&format!("{shown} and maybe others are not striped as at the source: {why}"));
    }

    fn left_out(&self, count: u64) {
        match self.json {
            true => self.event(json!({"event": "left_out", "unfinished_files": count})),
            false => self.note(&left_out_text(count)),
        }
    }

    fn spill_failed(&self, failure: Failure, room: u64) {
        if self.json {
            self.event(json!({
                "event": "spill_failed",
                "code": failure.code.name(),
                "errno": failure.errno,
                "room": room,
            }));
            return;
        }
        let why = match failure.errno {
            0 => "it gave back other bytes than it was given".into(),
            errno => io::Error::from_raw_os_error(errno).to_string(),
        };
        self.note(&match room {
            0 => format!("the spill directory is not used any more ({why}); nothing is lost"),
            room => format!("the spill directory takes no more than {} ({why}); nothing is lost", size(room)),
        });
    }

    /// How contents are hashed.
    pub fn set_hash(&mut self, hash: HashKind) {
        self.hash = hash;
    }

    /// Whether all is shown of where the time went.
    pub fn set_profile(&mut self, profile: bool) {
        self.profile = profile;
    }

    /// How often progress is told in JSON.
    pub fn set_json_progress(&mut self, every: Duration) {
        self.json_every = every;
    }

    /// Keeps in this file that the user was told of buffers that are not locked.
    pub fn set_buffers_told(&mut self, file: PathBuf) {
        self.buffers_told = Some(file);
    }

    /// What the user's rights do not allow is told once for all transfers: it changes nothing but how fast some of them are.
    fn tell_of_locks(&self, bytes: usize, locked_bytes: usize) {
        let told = self.buffers_told.as_ref().filter(|_| locked_bytes < bytes && !self.json && !self.quiet);
        // Where that cannot be kept it is told again.
        let first = |file: &PathBuf| {
            let made = File::options().write(true).create_new(true).open(file);
            made.err().is_none_or(|error| error.kind() != io::ErrorKind::AlreadyExists)
        };
        if told.is_some_and(first) {
            self.note(&format!(
                "buffers: {}; it goes on without, and this is told once",
                locked(bytes, locked_bytes)
            ));
        }
    }

    /// The progress line, for who writes to the terminal beside this.
    pub fn bar(&self) -> Bar {
        self.bar.clone()
    }

    /// What the user calls SOURCEs and DEST.
    pub fn set_typed(&mut self, typed: Typed) {
        self.typed = typed;
    }

    /// A line on stderr that does not tear the progress line.
    /// To whoever listens, above the progress.
    pub fn note(&self, text: &str) {
        self.bar.above(|| drop(writeln!(io::stderr(), "haul: {text}")));
    }

    fn line(&self, text: &str) {
        self.bar.above(|| self.write(text));
    }

    fn event(&self, event: Value) {
        self.write(&json_line(&event));
    }

    /// A line on stdout; whether it was written counts at the end.
    fn write(&self, line: &str) {
        if let Err(error) = writeln!(io::stdout(), "{line}") {
            let _ = self.unwritten.set(error);
        }
    }

    /// When the first connection stood.
    pub fn connected(&self) -> Option<Instant> {
        self.connected
    }

    /// How far it is.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    fn progress(&mut self, stats: Stats, totals_are_final: bool) {
        self.stats = stats;
        self.rate.update(stats.bytes_sent);
        if self.json && self.last_json.is_none_or(|at| at.elapsed() >= self.json_every) {
            self.last_json = Some(Instant::now());
            self.event(json!({
                "event": "progress",
                "seconds": seconds(self.started.elapsed()),
                "files_total": stats.files_total,
                "files_done": stats.files_there(),
                "files_failed": stats.files_failed,
                "bytes_total": stats.bytes_total,
                "bytes_done": stats.bytes_there(),
                "bytes_sent": stats.bytes_sent,
                "totals_are_final": totals_are_final,
                "bytes_per_second": self.rate.value as u64,
            }));
        }
        self.bar.show(|| {
            let mut line = progress_line(&stats, totals_are_final, self.rate.value);
            let neighbours = self.neighbours.into_iter().max().unwrap_or(0);
            if neighbours > 0 {
                line.push_str(&format!("  beside {}", counted(neighbours as u64, "other transfer")));
            }
            line
        });
    }

    /// The end: the summary on stdout, the error on stderr. Returns the exit code.
    pub fn finish(&mut self, summary: &Summary, setup: &Setup) -> u8 {
        self.bar.end();
        let stats = summary.outcome.stats;
        let (state, code) = verdict(summary);
        let elapsed = self.started.elapsed();
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let around = Around {
            whole_nanos: nanos(elapsed),
            connecting_nanos: nanos(setup.connecting),
            state_nanos: nanos(setup.state),
        };
        self.finished = true;
        if setup.left_out > 0 {
            self.left_out(setup.left_out);
        }
        if self.json {
            profile::event(&summary.profiles, &around, setup.hashed_early)
                .into_iter()
                .for_each(|event| self.event(event));
            self.event(self.summary_event(summary, setup, state, &around));
        }
        if let Some(reason) = &summary.error {
            error(&with_hint(self.typed.error(reason.clone())));
        }
        let began = stats.files_total > 0 || summary.outcome.failure.is_none();
        if !self.json && !self.quiet && began {
            let mut line = summary_line(&stats, state, elapsed, setup, self.cipher);
            if let Some(cause) = &self.log_lost {
                line.push_str(&format!("; the object log was LOST ({cause})"));
            } else if setup.log.as_ref().is_some_and(|log| log.mechanism == "none") {
                line.push_str("; no object log");
            }
            if self.neighbours_peak > 0 {
                let others = counted(self.neighbours_peak as u64, "other transfer");
                line.push_str(&format!("; shared storage targets with {others} on this host"));
            }
            self.line(&line);
            if is_at_work(summary) {
                profile::verdict(&summary.profiles, &around).into_iter().for_each(|text| self.line(&text));
            }
            if self.profile {
                self.line(&profile::table(&summary.profiles, &around));
                if setup.hashed_early > 0 {
                    let bytes = size(setup.hashed_early);
                    self.line(&format!(
                        "before that  {bytes} hashed while the destination was being reached"
                    ));
                }
                engines::lines(&setup.engines).iter().for_each(|line| self.line(line));
                if let Some((bytes, locked_bytes)) = self.buffers {
                    self.line(&format!("buffers      {}", locked(bytes, locked_bytes)));
                }
                self.placement.iter().for_each(|line| self.line(&format!("threads      {line}")));
            }
        } else if !self.json && state == "incomplete" {
            self.note(&format!("{} failed", counted(stats.files_failed, "file")));
        }
        if setup.wished.is_unusual() {
            setup.engines.1.iter().for_each(|note| self.note(&note.to_string()));
        }
        if summary.hanging > 0 {
            let threads = if summary.hanging == 1 { "thread waits" } else { "threads wait" };
            self.note(&format!(
                "{} {threads} for storage that does not answer; this process ends when it does",
                summary.hanging
            ));
        }
        let unwritten = self.unwritten.take().map_or(Ok(()), |error| ended(Err(error)));
        let Err(unwritten) = unwritten else { return code };
        let about = format!("the transfer is {state}; {}", unwritten.about);
        error(&Error { about, ..unwritten });
        // A script must not take what it has read for all that there was to tell.
        if code == 0 { unwritten.failure.code.exit() } else { code }
    }

    fn summary_event(&self, summary: &Summary, setup: &Setup, state: &str, around: &Around) -> Value {
        let stats = summary.outcome.stats;
        let [bottleneck, bottleneck_share, bottleneck_why] = match is_at_work(summary) {
            true => profile::summary(&summary.profiles, around),
            false => [Value::Null, Value::Null, Value::Null],
        };
        let log = setup.log.as_ref().map(|log| {
            json!({
                "mechanism": log.mechanism,
                "method": log.method,
                "writer": log.writer,
                "bytes_peak": log.bytes_peak,
                "files_peak": log.files_peak,
                "location": log.location.to_string_lossy(),
                "lost": log.lost.as_ref().map(|cause| show(cause.as_bytes())),
            })
        });
        json!({
            "event": "summary",
            "job": self.job,
            "state": state,
            "files_total": stats.files_total,
            "files_done": stats.files_done,
            "files_skipped": stats.files_skipped,
            "files_failed": stats.files_failed,
            "directories": stats.directories,
            "hard_links": stats.hard_links,
            "bytes_total": stats.bytes_total,
            "bytes_sent": stats.bytes_sent,
            "bytes_skipped": stats.bytes_skipped,
            "bytes_done": stats.bytes_done,
            "objects_sent": stats.objects_sent,
            "objects_skipped": stats.objects_skipped,
            "objects_repaired": stats.objects_repaired,
            "bytes_spilled": stats.bytes_spilled,
            "seconds": seconds(Duration::from_nanos(around.whole_nanos)),
            "seconds_to_first_object": self.first_object.map(seconds),
            "hash": self.hash.name(),
            "verified": setup.verified_of(&stats).map(HashKind::name),
            "encrypted": setup.encrypted.filter(|_| self.connections > 0),
            "cipher": self.cipher,
            "connections": self.connections,
            "neighbours_peak": self.neighbours_peak,
            "log": log,
            "engines": engines::values(&setup.engines.0),
            "durability": "object",
            "bottleneck": bottleneck,
            "bottleneck_share": bottleneck_share,
            "bottleneck_why": bottleneck_why,
            "error": summary.error.as_ref().map(|error| json!({
                "code": error.failure.code.name(),
                "errno": error.failure.errno,
                "text": error.to_string(),
            })),
        })
    }
}

/// Something was to be done: nothing holds up what is done already.
fn is_at_work(summary: &Summary) -> bool {
    let Stats { files_done, files_failed, bytes_sent, .. } = summary.outcome.stats;
    files_done > 0 || files_failed > 0 || bytes_sent > 0
}

/// A SOURCE that is not there, or that cannot be copied so: there is nothing to go on with.
pub fn found_nothing(summary: &Summary) -> bool {
    let Stats { files_failed, files_total, directories, bytes_total, .. } = summary.outcome.stats;
    let is_over = summary.outcome.failure.is_none() && summary.hanging == 0;
    is_over && files_failed > 0 && files_total <= files_failed && (directories, bytes_total) == (0, 0)
}

/// State and exit code.
pub fn verdict(summary: &Summary) -> (&'static str, u8) {
    match summary.outcome.failure {
        Some(Failure { code: Code::Interrupted, .. }) => ("interrupted", 130),
        Some(failure) => ("failed", exit_of_job(failure.code)),
        None if summary.outcome.stats.files_failed > 0 => ("incomplete", 3),
        None => ("done", 0),
    }
}

/// A row that is about one file fails the job with 1 when it ends the job.
pub fn exit_of_job(code: Code) -> u8 {
    if code.exit() == 3 { 1 } else { code.exit() }
}

/// Tells why nothing has begun that could be finished but for some files; the exit code.
pub fn not_begun(error: &Error) -> u8 {
    self::error(error);
    exit_of_job(error.failure.code)
}

fn with_hint(mut error: Error) -> Error {
    if error.hint.is_none() {
        error.hint = match error.failure.code {
            Code::SinkNoSpace | Code::SinkQuota => {
                Some("nothing that is done is lost: make room, then run the same command again".into())
            }
            Code::SinkHangs => Some("run the same command again when it answers".into()),
            Code::SinkReadOnly => Some("make it writable, then run the same command again".into()),
            Code::Interrupted => Some("run the same command again to continue".into()),
            Code::ConnectionLost | Code::PeerSilent => {
                Some("run the same command again to continue, or give it longer with --reconnect".into())
            }
            Code::PortBlocked => Some(
                "open a TCP port between the hosts and name it with --port or --port-range, or try --listen here".into(),
            ),
            Code::Superseded => Some("the same transfer was started again elsewhere and goes on there".into()),
            _ => None,
        };
    }
    error
}

/// The beginning of an event about a path.
pub fn path_fields(event: &str, path: &[u8]) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("event".into(), event.into());
    fields.insert("path".into(), String::from_utf8_lossy(path).into());
    if std::str::from_utf8(path).is_err() {
        fields.insert("path_hex".into(), hex(path).into());
    }
    fields
}

/// The event of a file that failed.
pub fn failed_event(path: &[u8], failure: Failure) -> Value {
    let mut event = path_fields("failed", path);
    event.insert("code".into(), failure.code.name().into());
    event.insert("errno".into(), failure.errno.into());
    event.insert("text".into(), failure.code.text().into());
    Value::Object(event)
}

/// Who reads the output may have seen enough.
pub fn ended(written: io::Result<()>) -> Result<(), Error> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::os(Code::SystemRefused, "writing the output", &error))
        }
        _ => Ok(()),
    }
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

impl Rate {
    fn begun() -> Rate {
        let now = Instant::now();
        Rate { since: now, at: now, bytes: 0, value: 0.0 }
    }

    fn update(&mut self, bytes: u64) {
        let elapsed = self.at.elapsed().as_secs_f64();
        if elapsed < 0.05 {
            return;
        }
        let now = bytes.saturating_sub(self.bytes) as f64 / elapsed;
        let weight = (elapsed / RATE_SECONDS).min(1.0);
        let all = self.since.elapsed().as_secs_f64();
        // At first it is that of all so far: what leaves in the first moment says little of what follows.
        self.value = match all < RATE_SECONDS {
            true => bytes as f64 / all,
            false => self.value * (1.0 - weight) + now * weight,
        };
        self.at = Instant::now();
        self.bytes = bytes;
    }
}

/// How much of the buffers stays in memory, in words.
pub fn locked(bytes: usize, locked_bytes: usize) -> String {
    let (all, some) = (size(bytes as u64), size(locked_bytes as u64));
    match locked_bytes {
        0 => "not locked in memory: more than this user may lock (ulimit -l)".into(),
        some if some == bytes => "locked in memory, as far as they are used".into(),
        _ => format!("the first {some} of {all} locked in memory: this user may lock no more (ulimit -l)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_paths_that_are_no_text_keep_their_bytes() {
        let fields = path_fields("failed", b"a\xff\n");
        assert_eq!(fields["path_hex"], "61ff0a");
        assert!(!serde_json::to_string(&fields).unwrap().contains('\n'));
    }
    #[test]
    fn how_fast_it_goes_at_first_has_nothing_of_what_was_before() {
        let started = Instant::now().checked_sub(Duration::from_secs(8)).unwrap();
        let shared = Shared::new(String::new(), started, [false, false, true]);
        shared.with(|reporter| {
            (reporter.rate.since, reporter.rate.at) = (started, started);
            reporter.report(End::Source, Report::Connected { streams: 1, cipher: None });
            std::thread::sleep(Duration::from_millis(200));
            reporter.rate.update(1_000_000);
            // A second of a slow machine, but not eight.
            assert!(reporter.rate.value > 500_000.0, "{}", reporter.rate.value);
        });
    }
}
