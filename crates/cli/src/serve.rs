//! The far end: started through ssh, greets over standard input and output, then works over its own connections.
//!
//! ssh is only needed for the greeting. When it goes, the far end stays: it lives as long as its session does, waits
//! `--reconnect` for a lost peer, and yields at once to a newer session of the same job.

use std::ffi::OsString;
use std::io::BufReader;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use haul_model::error::Blame;
use haul_model::limits::{OBJECT_BYTES_MAX, OBJECT_BYTES_MIN, SLOTS_MAX, SOURCES_MAX, STREAMS_MAX};
use haul_model::{Code, HashKind, JobId, SessionId};
use haul_mover::connection::{Acceptor, Connector, Dialer, Established, Greeter, Introduction, TcpDial};
use haul_mover::end::Common;
use haul_mover::owner::{Owner, Started};
use haul_mover::{Error, Tuning, log};
use haul_objectlog::{Config, Mechanism, Method};
use haul_storage::engine::Wish;
use haul_storage::sink::SourceName;
use haul_topology::placer::Told;
use haul_topology::{Placer, Threads};
use haul_transport::{Identity, Listener, Role, Session, StreamKey, tcp};

use crate::bootstrap::{self, Line, Refusal, Request, TuningWords};
use crate::congestion::policy_of;
use crate::elsewhere::{bring_log_along, bring_log_back, substitute, used_last, why_not};
use crate::ends::{EndEngines, Ends, Spill};
use crate::initiator::bind;
use crate::job::state_directory;
use crate::options;
use crate::options::Seating;
use crate::plan::{
    check_can_become, check_tree_can_become, decision, decision_of, is_file, is_something_else, is_tree,
    labels,
};
use crate::session::{greeting_bytes, response};
use crate::settings::{HANG_AFTER_SECONDS, RECONNECT_SECONDS_MAX, slots_far_here, slots_here};
use crate::within::{self, Marker};
use crate::{placement, policy, report};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the first connection may take to come: the initiator may try several addresses.
const FIRST_CONNECTION: Duration = Duration::from_secs(90);
/// How long it may still take once ssh has gone: most likely the initiator has, too.
const FIRST_CONNECTION_WITHOUT_SSH: Duration = Duration::from_secs(5);

/// Where to dial, if the initiator has said so.
type Hinted = Arc<Mutex<Option<u16>>>;

/// `haul serve --stdio`
pub fn serve(_arguments: &options::Serve) -> Result<u8, Error> {
    ignore_hangup();
    let mut input = BufReader::new(std::io::stdin());
    let request = match bootstrap::read(&mut input) {
        Ok(Some(Line::Request(request))) => request,
        // Of another version, most likely.
        Err(error) => return refuse(&error),
        _ => {
            return Err(Error::new(Code::Usage, "haul serve --stdio is started by haul cp, through ssh"));
        }
    };
    // If that does not get through, neither does the answer.
    let _ = bootstrap::write(std::io::stdout(), &Line::Reached {});
    // Later lines are only hints about where to dial.
    let hinted = Arc::new(Mutex::new(None));
    let hints = Arc::clone(&hinted);
    // The initiator keeps it open as long as it lives.
    let has_ended = Arc::new(AtomicBool::new(false));
    let tells = Arc::clone(&has_ended);
    let _ = std::thread::Builder::new().name("haul-greeting".into()).spawn(move || {
        while let Ok(Some(line)) = bootstrap::read(&mut input) {
            // The newest counts, however many there are.
            if let Line::Dial { port } = line {
                *hints.lock().unwrap_or_else(PoisonError::into_inner) = Some(port);
            }
        }
        tells.store(true, Ordering::Release);
    });
    match run(&request, hinted, has_ended) {
        Ok(code) => Ok(code),
        Err(error) => refuse(&error),
    }
}

/// Tells the initiator why.
fn refuse(error: &Error) -> Result<u8, Error> {
    let told = bootstrap::write(std::io::stdout(), &Line::Refusal(Refusal::from(error)));
    if told.is_err() {
        report::error(error);
    }
    Ok(error.failure.code.exit())
}

/// A terminal or ssh that goes away does not end the session.
fn ignore_hangup() {
    let _ = signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::new(AtomicBool::new(false)));
}

fn array<const N: usize>(text: &str) -> Result<[u8; N], Error> {
    greeting_bytes(text)?
        .try_into()
        .map_err(|_| Error::new(Code::Protocol, "the greeting has a field of another length"))
}

fn path(text: &str) -> Result<OsString, Error> {
    greeting_bytes(text).map(OsString::from_vec)
}

/// `~` and what is below it are where a shell on this host would find them.
fn at_home(path: OsString) -> OsString {
    let below = path.as_bytes().strip_prefix(b"~").filter(|below| matches!(below, [] | [b'/', ..]));
    let (Some(below), Some(home)) = (below, std::env::home_dir()) else { return path };
    OsString::from_vec([home.as_os_str().as_bytes(), below].concat())
}

fn tuning(words: &TuningWords) -> Result<(Tuning, log::Settings), Error> {
    let fits = words.object_bytes.is_power_of_two()
        && (OBJECT_BYTES_MIN..=OBJECT_BYTES_MAX).contains(&words.object_bytes)
        && (2..=SLOTS_MAX).contains(&words.slots)
        && (1..=64).contains(&words.io_threads)
        && (words.io_threads..=64).contains(&words.io_threads_max)
        && words.bundle_bytes_max <= u64::from(words.object_bytes)
        && words.reconnect_seconds <= RECONNECT_SECONDS_MAX;
    let policy = policy_of(&words.congestion, words.congestion_threshold_nanos, words.congestion_skips);
    match (fits, log_settings(words), policy) {
        (true, Some(log), Some(policy)) => {
            let tuning = Tuning {
                object_bytes: words.object_bytes,
                slots: words.slots,
                slots_far: words.slots,
                io_threads: words.io_threads,
                io_threads_max: words.io_threads_max,
                policy,
                hangs_after: words.hang_after.map(|seconds| {
                    let (least, most) = (*HANG_AFTER_SECONDS.start(), *HANG_AFTER_SECONDS.end());
                    Duration::from_secs(seconds.clamp(least, most))
                }),
                bundle_bytes_max: words.bundle_bytes_max,
                reconnect: Duration::from_secs(words.reconnect_seconds),
                unattended: true,
                report_done: words.report_done,
                bandwidth: words.bandwidth,
            };
            Ok((tuning, log))
        }
        _ => Err(too_much()),
    }
}

fn too_much() -> Error {
    Error::new(Code::LimitExceeded, "the greeting asks for more than is allowed")
}

fn log_settings(words: &TuningWords) -> Option<log::Settings> {
    let writer = log::Writer::ALL.into_iter().find(|writer| writer.name() == words.log_writer)?;
    let config = match words.log_mechanism.as_str() {
        "none" => None,
        mechanism => Some(Config {
            mechanism: Mechanism::from_name(mechanism)?,
            method: Method::from_name(&words.log_method)?,
            transaction_files: words.log_transaction_files,
            ..Config::default()
        }),
    };
    let hash = HashKind::from_name(&words.hash)?;
    Some(log::Settings { config, writer, required: words.log_required, hash })
}

fn run(request: &Request, hinted: Hinted, has_ended: Arc<AtomicBool>) -> Result<u8, Error> {
    let (oldest, newest) = haul_mover::PROTOCOL;
    if request.protocol.1 < oldest || request.protocol.0 > newest {
        let about = format!(
            // It is read where the greeting comes from.
            "haul {} there speaks another protocol than haul {} here",
            env!("CARGO_PKG_VERSION"),
            request.haul
        );
        return Err(
            Error::new(Code::PeerVersion, about).hint("install the same version of haul on both hosts")
        );
    }
    haul_mover::threads::check_descriptors(request.streams, request.tuning.io_threads)?;
    if request.key.is_some() {
        policy::check_plain()?;
    }
    let is_sink = match request.role.as_str() {
        "sink" => true,
        "source" => false,
        _ => return Err(Error::new(Code::Protocol, "the greeting names no role")),
    };
    go_home();
    if !(1..=STREAMS_MAX as u16).contains(&request.streams) {
        return Err(too_much());
    }
    let (mut tuning, log) = tuning(&request.tuning)?;
    if request.tuning.memory_grows {
        tuning.slots = slots_here(tuning.slots, tuning.object_bytes);
        tuning.slots_far = match is_sink {
            true => slots_far_here(tuning.slots, tuning.object_bytes),
            false => tuning.slots,
        };
    }
    let stripe = request.tuning.stripe.as_deref().map(str::parse).transpose();
    let stripe = stripe
        .map_err(|reason: String| Error::new(Code::Protocol, format!("the greeting's stripes: {reason}")))?;
    let spill = request.tuning.spill.as_deref().map(path).transpose()?;
    let bytes_max = request.tuning.spill_max;
    let spill = spill.map(|directory| Spill { directory: directory.into(), bytes_max });
    let engines = Wish::from_words(&request.tuning.engine, &request.tuning.io)
        .ok_or_else(|| Error::new(Code::Protocol, "the greeting names no engine that is known here"))?;
    let job = JobId(array(&request.job)?);
    let instance: [u8; 16] = array(&request.instance)?;
    let session = SessionId(array(&request.session)?);
    let sources =
        request.sources.iter().map(|text| path(text).map(at_home)).collect::<Result<Vec<_>, _>>()?;
    let names = request
        .names
        .iter()
        .map(|name| match name {
            Some(name) => Ok(SourceName::Named(greeting_bytes(name)?)),
            None => Ok(SourceName::Contents),
        })
        .collect::<Result<Vec<_>, Error>>()?;
    if sources.len() != names.len() || sources.is_empty() || sources.len() > SOURCES_MAX {
        return Err(Error::new(Code::Protocol, "the greeting has not one name for each SOURCE"));
    }
    if request.decision.as_deref().is_some_and(|word| decision_of(word).is_none()) {
        return Err(Error::new(Code::Protocol, "the greeting has a decision that is not known here"));
    }
    let destination = at_home(path(&request.destination)?);
    if let Some(marker) = Marker::new(session) {
        let there = &request.marks;
        match is_sink {
            true => within::check_with(session, &sources, there, &marker.destination(&destination)),
            false => within::check_with(session, &sources, &marker.sources(&sources), there),
        }?;
    }
    let decided = match (is_sink, request.decision.as_deref()) {
        (false, None) => return Err(Error::new(Code::Protocol, "the greeting lacks the decision")),
        (true, earlier) => {
            let decided = decision(&destination, &names, request.file, earlier)?;
            check_can_become(&destination, request.file, decided)?;
            check_tree_can_become(&destination, decided, request.tree, is_something_else(&destination))?;
            decided
        }
        (false, earlier) => {
            let decided = decision(&destination, &names, false, earlier)?;
            check_can_become(&destination, is_file(&sources, request.recursive), decided)?;
            let tree = is_tree(&sources, request.recursive);
            check_tree_can_become(&destination, decided, tree, request.stands)?;
            decided
        }
    };
    let part = far_part(&job, &instance);
    let state = state_directory()?;
    let mut directory = state.join(&part);
    let mut log_trouble = None;
    let started = request.started.as_ref().map(|(boot, nanos)| Started { boot: boot.clone(), nanos: *nanos });
    let used = used_last(&directory);
    let owner = match Owner::claim(&directory, started.as_ref()) {
        Ok(owner) => {
            if !is_sink {
                bring_log_back(&state, &part, started.as_ref(), used);
            }
            owner
        }
        Err(error) => {
            // A sink that is not found again by the next session could not be told to yield.
            let choice = substitute(&error, is_sink || log.required);
            let Some((substitute, cause)) = choice else { return Err(error) };
            bring_log_along(&state, &part, &substitute);
            directory = substitute.join(&part);
            log_trouble = Some(cause);
            Owner::claim(&directory, started.as_ref()).map_err(|other| why_not(error, other))?
        }
    };
    // What was brought along or back is of earlier sessions.
    let is_new = owner.is_first() && !directory.join("log").exists();
    let mut claimed = Claimed { owner, is_new };

    let stream = |error: std::io::Error| Error::stream("preparing the session", &error);
    let identity = Identity::generate().map_err(stream)?;
    let key = match &request.key {
        Some(text) => Some(StreamKey::from_bytes(&array(text)?)),
        None => None,
    };
    let peer = request.fingerprint.parse().map_err(stream)?;
    let role = if is_sink { Role::Sink } else { Role::Source };
    let keys = Session::new(session, role, &identity, peer, key).map_err(stream)?;
    let (listener, port) = match request.listen {
        true => {
            let bound = bind(request.ports)?;
            let port = bound.address().port();
            let started = Listener::start(bound, keys.clone(), tcp::Settings::default(), HANDSHAKE_TIMEOUT);
            (Some(started.map_err(stream)?), port)
        }
        false => (None, 0),
    };
    let (client, server) = ssh_connection();
    let connector = FarConnector {
        acceptor: listener.map(|accept| Acceptor { accept, streams: request.streams }),
        dialer: None,
        hinted,
        has_ended,
        client,
        session: keys,
        streams: request.streams,
        decided: false,
    };
    let common = Common {
        tuning,
        job,
        session,
        epoch: claimed.owner.epoch(),
        roots: labels(decided, &names, &destination),
        connector: Box::new(connector),
        reports: Box::new(|_| {}),
        placer: placer(request, is_sink, &sources, &destination),
    };
    let ends = Ends {
        sources: &sources,
        names: &names,
        destination: &destination,
        recursive: request.recursive,
        preserve: request.preserve,
        plain: request.key.is_some(),
        hash: log.hash,
        instance,
        directory,
        log_trouble,
        stripe,
        layout_file: None,
        spill,
        alone: request.tuning.alone,
        measure: &request.measure,
        lends: false,
        engines: EndEngines::new(engines),
        left_out: OnceLock::new(),
        log_opened: OnceLock::new(),
    };
    let answer = response(
        &identity,
        port,
        server.into_iter().collect(),
        claimed.owner.epoch(),
        is_sink.then_some(decided),
        ends.hash,
    );
    let running = match is_sink {
        true => {
            let end = ends.sink(common, decided, None)?;
            greet(&answer)?;
            end.start().inspect_err(too_late)?
        }
        false => {
            let end = ends.source(common, log, None)?;
            greet(&answer)?;
            end.start().inspect_err(too_late)?
        }
    };
    let is_new = std::mem::take(&mut claimed.is_new);
    let stopper = running.stopper();
    claimed.owner.on_yield(move || stopper.stop(Code::Superseded.into()));
    let summary = running.wait();
    let (state, code) = report::verdict(&summary);
    let is_done = state == "done" && summary.hanging == 0;
    // The initiator forgets such a job: nobody would ever come back for it.
    if is_done || is_new && report::found_nothing(&summary) {
        claimed.owner.remove();
    }
    // The lock goes with the process: threads that storage has not let go may still write.
    std::mem::forget(claimed);
    report::mistake_of_other_end(&summary);
    // Over ssh it may be heard. That there was no connection the initiator knows.
    let is_news = |error: &&Error| summary.untold && error.failure.code.blame() != Blame::Network;
    if let Some(error) = summary.error.as_ref().filter(is_news) {
        too_late(error);
    }
    if engines.is_unusual() {
        // ssh may have gone; then nobody listens.
        ends.engines.told().1.iter().for_each(report::note_of_far_end);
    }
    if ends.left_out() > 0 {
        report::say_of_far_end(&report::left_out_text(ends.left_out()));
    }
    // The initiator reports; here only the exit code is left.
    Ok(code)
}

/// The right to act for a job. A first session that could not begin leaves nothing behind.
struct Claimed {
    owner: Owner,
    /// Nothing was known of the job, and it has not begun.
    is_new: bool,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if self.is_new {
            self.owner.remove();
        }
    }
}

/// Gives threads on this host their seats. Only who wants to know hears what came of it, on the initiator's terminal.
fn placer(request: &Request, is_sink: bool, sources: &[OsString], destination: &OsString) -> Placer {
    let (io, streams) = (request.tuning.io_threads as u16, request.streams);
    let paths = if is_sink { std::slice::from_ref(destination) } else { sources };
    let nowhere = if is_sink { request.measure.discard } else { request.measure.synthetic.is_some() };
    let storage = paths.iter().filter(|_| !nowhere).map(PathBuf::from).collect();
    let threads = if is_sink { Threads::of_sink(io, streams) } else { Threads::of_source(io, streams) };
    let choice = if request.tuning.unplaced { Seating::Off } else { Seating::Auto };
    let talks = request.tuning.report_done;
    let tell = move |told: &Told| {
        if let Some(trouble) = &told.trouble {
            report::say_of_far_end(&crate::paths::show(trouble.as_bytes()));
        }
        if talks {
            report::say_of_far_end(&format!("threads: {}", placement::line(told)));
        }
    };
    placement::placer(choice, storage, threads, Box::new(tell))
}

/// Nobody waits for a refusal after the answer: what is on standard error the user sees.
fn too_late(error: &Error) {
    report::say_of_far_end(&crate::paths::harmless(&error.to_string()));
}

fn greet(answer: &Line) -> Result<(), Error> {
    bootstrap::write(std::io::stdout(), answer)
        .map_err(|error| Error::os(Code::SshFailed, "answering the greeting", &error))
}

/// Paths are relative to the home directory, where ssh starts us anyway.
fn go_home() {
    if let Some(home) = std::env::var_os("HOME") {
        let _ = std::env::set_current_dir(home);
    }
}

/// The state of the far end of a job: apart from the jobs that were typed here, even where both share a home directory.
fn far_part(job: &JobId, instance: &[u8; 16]) -> PathBuf {
    let short = crate::paths::hex(&instance[..8]);
    Path::new("far").join(format!("{job}-{short}"))
}

/// Client and server address of the ssh connection, as sshd tells them.
fn ssh_connection() -> (Option<String>, Option<String>) {
    let text = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
    (words.first().cloned(), words.get(2).cloned())
}

/// Accepts what the initiator dials, until the initiator says that it cannot and is to be dialed.
struct FarConnector {
    acceptor: Option<Acceptor<Listener>>,
    dialer: Option<Dialer<TcpDial>>,
    hinted: Hinted,
    /// The ssh connection, and the initiator with it.
    has_ended: Arc<AtomicBool>,
    client: Option<String>,
    session: Session,
    streams: u16,
    decided: bool,
}

impl Connector for FarConnector {
    fn connect(&mut self, introduction: &Introduction, patience: Duration) -> Result<Established, Error> {
        if self.decided {
            return self.again(introduction, patience);
        }
        let mut deadline = Instant::now() + FIRST_CONNECTION;
        loop {
            let hint = self.hinted.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(port) = hint {
                self.dialer = Some(self.dialer(port)?);
                self.acceptor = None;
            } else if self.has_ended.load(Ordering::Acquire) {
                deadline = deadline.min(Instant::now() + FIRST_CONNECTION_WITHOUT_SSH);
            }
            let result = self.again(introduction, Duration::from_millis(300));
            match result {
                Ok(established) => {
                    self.decided = true;
                    return Ok(established);
                }
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) if self.dialer.is_some() => std::thread::sleep(Duration::from_millis(300)),
                Err(_) => {}
            }
        }
    }
}

impl FarConnector {
    fn again(&mut self, introduction: &Introduction, patience: Duration) -> Result<Established, Error> {
        match (&mut self.dialer, &mut self.acceptor) {
            (Some(dialer), _) => dialer.connect(introduction, patience),
            (None, Some(acceptor)) => acceptor.connect(introduction, patience),
            (None, None) => {
                std::thread::sleep(patience.min(Duration::from_millis(300)));
                Err(Error::new(Code::ConnectionLost, "not told where to dial"))
            }
        }
    }

    fn dialer(&self, port: u16) -> Result<Dialer<TcpDial>, Error> {
        let client = self.client.as_deref().unwrap_or("127.0.0.1");
        let addresses = tcp::resolve(client, port, DIAL_TIMEOUT)
            .map_err(|error| Error::stream("dialing back", &error))?;
        let dial = TcpDial { addresses, timeout: DIAL_TIMEOUT };
        let (session, streams) = (self.session.clone(), self.streams);
        let greeter = Some(Greeter::Told(Arc::clone(&self.has_ended)));
        Ok(Dialer::new(dial, session, streams, greeter))
    }
}
