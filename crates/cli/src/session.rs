//! `haul cp`: plans, starts the ends, waits, reports.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use haul_model::report::Stats;
use haul_model::{Code, HashKind, SessionId};
use haul_mover::connection::answers_within;
use haul_mover::connection::{Connector, Greeter, local};
use haul_mover::end::{Common, Outcome, Profiles, Running, Summary};
use haul_mover::owner::Started;
use haul_mover::{Error, Tuning, threads};
use haul_storage::sink::{Decision, SourceName};
use haul_topology::Placer;
use haul_topology::placer::Told as Placed;
use haul_transport::{Fingerprint, Identity, Role, Session, StreamKey};

use crate::alike;
use crate::bench::Measure;
use crate::bootstrap::{Line, Request, Response, TuningWords, told};
use crate::congestion::{self, Time};
use crate::ends::{EndEngines, Ends, Reading, Spill, read_layout_file};
use crate::initiator::{InitiatorConnector, Way};
use crate::interrupt::Interrupt;
use crate::job::{Job, Live, random, state_directory};
use crate::options::{Copy, Listen, Neighbours, Seating};
use crate::paths::{hex, unhex};
use crate::patience;
use crate::placement::{self, LENDS, WITHIN_PROCESS};
use crate::plan::{
    Direction, Plan, check_can_become, check_tree_can_become, decision, decision_of, decision_word,
    error_of_host, is_file, is_something_else, is_tree, labels,
};
use crate::report::{End, Setup, Shared, found_nothing, verdict};
use crate::settings::{Settings, slots_far_here};
use crate::ssh::{Silence, Ssh};
use crate::typed::Typed;
use crate::within::{self, Mark, Marker, Presence};
use crate::{past, report};

/// `haul cp`
pub fn copy(arguments: &Copy) -> Result<u8, Error> {
    let started = Instant::now();
    match Plan::new(arguments) {
        Ok(plan) => run(arguments, started, plan),
        Err(error) => Ok(report::not_begun(&error)),
    }
}

/// A transfer that is measured: like any other, but for what `measure` says.
pub fn measured(arguments: &Copy, measure: Measure) -> Result<u8, Error> {
    run(arguments, Instant::now(), Plan { measure, ..Plan::new(arguments)? })
}

/// What was planned by a command that was started then.
fn run(arguments: &Copy, started: Instant, plan: Plan) -> Result<u8, Error> {
    let how = [arguments.json, arguments.verbose, arguments.quiet];
    let reporter = Shared::new(plan.id.to_string(), started, how);
    reporter.with(|reporter| reporter.set_hash(plan.settings.hash.value.kind()));
    let (state, mut job) = match open(&plan) {
        Ok(opened) => opened,
        Err(error) => {
            let summary = of_one_that_never_began(error);
            return Ok(reporter.with(|reporter| reporter.finish(&summary, &Setup::default())));
        }
    };
    reporter.with(|reporter| reporter.set_profile(arguments.profile || arguments.verbose));
    reporter.with(|reporter| reporter.set_buffers_told(state.join("buffers-told")));
    if let Some(every) = plan.measure.progress_every() {
        reporter.with(|reporter| reporter.set_json_progress(every));
    }
    let told = reporter.clone();
    let interrupt = Interrupt::install(move || {
        let summary = of_one_that_never_began(Error::new(Code::Interrupted, ""));
        told.with(|reporter| _ = reporter.finish(&summary, &Setup::default()));
    })?;
    let result = match &plan.direction {
        Direction::Local => run_local(&plan, &mut job, &reporter, &interrupt),
        Direction::Push(host) | Direction::Pull(host) => {
            run_remote(&plan, host, &mut job, &reporter, &interrupt)
        }
    };
    let result = result.map_err(|error| plan.doubt_host(error));
    let began = result.is_ok();
    let failed_with = result.as_ref().err().map(|error| error.failure.code);
    // What was typed wrong says nothing of the job.
    let mistyped = failed_with == Some(Code::Usage);
    let nowhere = failed_with.is_some_and(|code| [Code::SinkMissing, Code::SinkNotDirectory].contains(&code));
    let is_nothing = |(summary, _): &Ended| found_nothing(summary);
    let is_slip = mistyped || nowhere || result.as_ref().is_ok_and(is_nothing);
    let never_was = job.record.sessions == 1 && is_slip;
    let (summary, mut setup) = match result {
        Ok(ended) => ended,
        Err(error) => (of_one_that_never_began(error), Setup::default()),
    };
    if !never_was && !mistyped {
        let beyond_help = reporter.with(|reporter| reporter.beyond_help());
        record(&mut job, &summary, beyond_help, began);
    }
    let (hangs, is_done) = (summary.hanging > 0, verdict(&summary).0 == "done");
    let keep = move || {
        match (never_was, mistyped) {
            (true, _) => {}
            (false, true) => save(|| job.save_as_before()),
            (false, false) => save(|| job.save()),
        }
        let kept = job.kept;
        if never_was {
            job.forget();
        } else if hangs {
            // What storage has not answered may still be done: the lock goes with the process, when the kernel lets that end.
            std::mem::forget(job);
        } else if is_done {
            job.clear();
            if job.record.sessions == 1 {
                job.directory.parent().into_iter().for_each(past::forget);
            }
        }
        kept
    };
    match patience::within(KEEPS_WITHIN, keep) {
        Some(kept) => setup.state += kept,
        None => reporter.with(|reporter| {
            reporter
                .note(&format!("{} does not answer: what came of this is not kept there", state.display()));
        }),
    }
    Ok(reporter.with(|reporter| reporter.finish(&summary, &setup)))
}

/// The state directory, and the job in it.
fn open(plan: &Plan) -> Result<(PathBuf, Job), Error> {
    plan.check_policy()?;
    let settings = &plan.settings;
    threads::check_descriptors(settings.streams.value, settings.io_threads.value.into())?;
    let state = state_directory()?;
    alike::check(&plan.id, &plan.typed_otherwise)?;
    let required = plan.settings.log_required.value;
    let (mut job, log_trouble) =
        Job::open_anywhere(&state, required, &plan.id, |state| Job::open(state, &plan.id, &plan.about))?;
    job.log_trouble = log_trouble;
    Ok((state, job))
}

/// It reports like one that failed at once.
fn of_one_that_never_began(error: Error) -> Summary {
    let outcome = Outcome { failure: Some(error.failure), stats: Stats::default() };
    Summary {
        outcome,
        error: Some(error),
        profiles: Profiles::default(),
        log: None,
        hanging: 0,
        untold: false,
    }
}

/// Keeps how far it is for `haul status`.
fn live(job: &Job, reporter: &Shared) -> Live {
    let reporter = reporter.clone();
    Live::start(job, move || reporter.with(|reporter| reporter.stats()))
}

/// The outcome, for `haul status`, and how far it is if a session began. Not being able to keep it does not change the outcome.
fn record(job: &mut Job, summary: &Summary, beyond_help: u64, began: bool) {
    let (state, _) = verdict(summary);
    job.record.state = state.into();
    if began {
        job.record.count(&summary.outcome.stats);
        (job.record.files_failed, job.record.beyond_help) = (summary.outcome.stats.files_failed, beyond_help);
    }
    job.record.error = summary.error.as_ref().map(ToString::to_string);
}

fn save(save: impl FnOnce() -> Result<(), Error>) {
    if let Err(error) = save() {
        report::error(&error);
    }
}

/// What came of a session is kept within this, or not at all: whoever waits for it to end waits for that.
const KEEPS_WITHIN: Duration = Duration::from_secs(30);

fn ends<'a>(plan: &'a Plan, job: &Job) -> Ends<'a> {
    Ends {
        sources: &plan.sources,
        names: &plan.names,
        destination: &plan.destination,
        recursive: plan.recursive,
        preserve: plan.preserve,
        plain: plan.settings.plain.value && plan.direction != Direction::Local,
        hash: plan.settings.hash.value.kind(),
        instance: job.instance(),
        directory: job.directory.clone(),
        log_trouble: job.log_trouble.clone(),
        stripe: plan.settings.stripe.value.clone(),
        layout_file: plan.settings.layout_file.value.as_deref(),
        spill: plan
            .settings
            .spill
            .value
            .clone()
            .map(|directory| Spill { directory, bytes_max: plan.settings.spill_max.value }),
        alone: plan.settings.neighbours.value == Neighbours::Ignore,
        measure: &plan.measure,
        lends: lends(plan),
        engines: EndEngines::new(plan.settings.engines()),
        left_out: OnceLock::new(),
        log_opened: OnceLock::new(),
    }
}

/// Both ends are this process, and nothing asks for bytes that pass through it: a limit of their rate, a place to put them
/// aside, a layout by which reads are scheduled, an engine.
pub fn lends(plan: &Plan) -> bool {
    let Settings { bandwidth, spill, layout_file, .. } = &plan.settings;
    let passes = bandwidth.value.is_some() || spill.value.is_some() || layout_file.value.is_some();
    let passes = passes || plan.settings.engines().is_unusual();
    plan.direction == Direction::Local && !passes && !plan.measure.discard
}

/// What DEST means is decided once, and durable before anything is made that would change the answer.
fn decide(plan: &Plan, job: &mut Job) -> Result<Decision, Error> {
    let file = is_file(&plan.sources, plan.recursive);
    let decided = decision(&plan.destination, &plan.names, file, job.record.decision.as_deref())?;
    check_can_become(&plan.destination, file, decided)?;
    let (tree, stands) = (is_tree(&plan.sources, plan.recursive), is_something_else(&plan.destination));
    check_tree_can_become(&plan.destination, decided, tree && plan.measure.synthetic.is_none(), stands)?;
    store_decision(job, decided)?;
    Ok(decided)
}

fn store_decision(job: &mut Job, decided: Decision) -> Result<(), Error> {
    let word = decision_word(decided);
    if job.record.decision.as_deref() != Some(word) {
        job.record.decision = Some(word.into());
        job.save()?;
    }
    Ok(())
}

fn new_session() -> Result<SessionId, Error> {
    let mut session = [0; 16];
    random(&mut session)?;
    Ok(SessionId(session))
}

type Ended = (Summary, Setup);

fn run_local(plan: &Plan, job: &mut Job, reporter: &Shared, interrupt: &Interrupt) -> Result<Ended, Error> {
    if plan.recursive && plan.measure.synthetic.is_none() {
        within::check_here(&plan.sources, &plan.destination)?;
    }
    let decided = decide(plan, job)?;
    let roots = labels(decided, &plan.names, &plan.destination);
    reporter.with(|reporter| reporter.set_typed(Typed::new(plan, decided, &roots)));
    let session = new_session()?;
    let (dial, accept) = local::pair(plan.settings.streams.value);
    let ends = ends(plan, job);
    let begun = ends.begin(&plan.settings.tuning(plan.verbose), false)?;
    let placer = placer(plan, reporter);
    let common = |connector: Box<dyn Connector>, reports, waiting| Common {
        tuning: plan.settings.tuning(plan.verbose),
        job: plan.id,
        session,
        epoch: 0,
        roots: roots.clone(),
        connector,
        reports,
        placer: placer.with_waiting(waiting),
    };
    let lender = begun.as_ref().map(|reading| reading.lender());
    let sink = common(Box::new(accept), reporter.neighbours(End::Sink), WITHIN_PROCESS);
    let sink = ends.sink(sink, decided, lender)?;
    let waiting = if ends.lends { LENDS } else { WITHIN_PROCESS };
    let source = common(Box::new(dial), reporter.reports(End::Source), waiting);
    let source = ends.source(source, plan.settings.log(), begun)?;
    let sink = sink.start()?;
    let source = source.start()?;
    interrupt.watch(&source);
    let _live = live(job, reporter);
    let (mut summary, sink) = Running::wait_for_both(source, sink);
    report::mistake_of_other_end(&sink);
    summary.hanging += sink.hanging;
    let log = summary.log.clone();
    let (engines, wished) = (ends.engines.told(), plan.settings.engines());
    let (verified, left_out, state) = (ends.verified(), ends.left_out(), ends.log_kept(log.as_ref()));
    Ok((summary, Setup { verified, left_out, log, engines, wished, state, ..Setup::default() }))
}

/// Gives threads on this host their seats; what came of it is reported.
fn placer(plan: &Plan, reporter: &Shared) -> Placer {
    let (storage, threads) = placement::here(plan);
    let end = match plan.direction {
        Direction::Local => "both",
        Direction::Push(_) => "source",
        Direction::Pull(_) => "sink",
    };
    let reporter = reporter.clone();
    let tell = move |told: &Placed| reporter.with(|reporter| reporter.placed(end, told));
    placement::placer(plan.settings.topology.value, storage, threads, Box::new(tell))
}

/// Tuning and log settings, as words for the greeting.
fn words(tuning: &Tuning, settings: &Settings) -> TuningWords {
    use std::os::unix::ffi::OsStrExt;
    let log = settings.log();
    let config = log.config.unwrap_or_default();
    let (congestion, limits) = congestion::words(tuning.policy);
    TuningWords {
        object_bytes: tuning.object_bytes,
        slots: tuning.slots,
        memory_grows: settings.memory_grows(),
        io_threads: tuning.io_threads,
        io_threads_max: tuning.io_threads_max,
        congestion: congestion.into(),
        congestion_threshold_nanos: limits.threshold.map(Time::nanos),
        congestion_skips: limits.skips,
        engine: settings.engines().words().0.into(),
        io: settings.engines().words().1.into(),
        hang_after: tuning.hangs_after.map(|after| after.as_secs()),
        alone: settings.neighbours.value == Neighbours::Ignore,
        unplaced: settings.topology.value == Seating::Off,
        stripe: settings.stripe.value.as_ref().map(ToString::to_string),
        spill: settings.spill.value.as_ref().map(|directory| hex(directory.as_os_str().as_bytes())),
        spill_max: settings.spill_max.value,
        hash: log.hash.name().into(),
        bundle_bytes_max: tuning.bundle_bytes_max,
        reconnect_seconds: tuning.reconnect.as_secs(),
        report_done: tuning.report_done,
        bandwidth: tuning.bandwidth,
        log_mechanism: log.config.map_or("none", |config| config.mechanism.name()).into(),
        log_method: config.method.name().into(),
        log_transaction_files: config.transaction_files,
        log_writer: log.writer.name().into(),
        log_required: log.required,
    }
}

/// Of what is on this host, by which the far end knows whether a directory would be copied into itself.
fn marks(plan: &Plan, session: SessionId) -> Vec<Option<Mark>> {
    let is_scanned = plan.recursive && plan.measure.synthetic.is_none();
    let Some(marker) = Marker::new(session).filter(|_| is_scanned) else { return Vec::new() };
    match plan.direction {
        Direction::Pull(_) => marker.destination(&plan.destination),
        Direction::Local | Direction::Push(_) => marker.sources(&plan.sources),
    }
}

fn run_remote(
    plan: &Plan,
    host: &str,
    job: &mut Job,
    reporter: &Shared,
    interrupt: &Interrupt,
) -> Result<Ended, Error> {
    use std::os::unix::ffi::OsStrExt;
    let settings = &plan.settings;
    let push = matches!(plan.direction, Direction::Push(_));
    let plain = settings.plain.value;
    // It counts once the end that reads has nothing against it, which knows what the SOURCE is.
    let earlier = job.record.decision.clone();
    let decided = match push {
        true => None,
        false => Some(decision(&plan.destination, &plan.names, plan.is_one_file(), earlier.as_deref())?),
    };
    let session = new_session()?;
    let stream = |error: std::io::Error| Error::stream("preparing the session", &error);
    settings.layout_file.value.as_deref().map(read_layout_file).transpose()?;
    let (reaching, kept) = (Instant::now(), job.kept);
    // Connecting takes ssh longest; everything else is made ready meanwhile.
    let mut ssh = Ssh::start(
        &settings.ssh.value,
        host,
        &settings.haul_path.value,
        reporter.with(|reporter| reporter.bar()),
    )?;
    let ends = ends(plan, job);
    let identity = Identity::generate().map_err(stream)?;
    let key = plain.then(StreamKey::generate).transpose().map_err(stream)?;
    let mut tuning = settings.tuning(plan.verbose);
    if !push && settings.memory_grows() {
        tuning.slots_far = slots_far_here(tuning.slots, tuning.object_bytes);
    }
    let mut begun = if push { ends.begin(&tuning, true)? } else { None };
    let listen_far = settings.listen.value != Listen::Here;
    let request = Request {
        haul: env!("CARGO_PKG_VERSION").into(),
        protocol: haul_mover::PROTOCOL,
        role: if push { "sink" } else { "source" }.into(),
        job: plan.id.to_string(),
        instance: hex(&job.instance()),
        session: session.to_string(),
        // This process has the job here by now, so its order is the order of those that had it.
        started: Started::now().map(|started| (started.boot, started.nanos)),
        fingerprint: identity.fingerprint().to_string(),
        key: key.as_ref().map(|key| hex(key.expose())),
        streams: settings.streams.value,
        ports: settings.ports.value,
        listen: listen_far,
        sources: plan.sources.iter().map(|path| hex(path.as_bytes())).collect(),
        names: plan
            .names
            .iter()
            .map(|name| match name {
                SourceName::Named(name) => Some(hex(name)),
                SourceName::Contents => None,
            })
            .collect(),
        destination: hex(plan.destination.as_bytes()),
        decision: decided.map(decision_word).map(str::to_owned).or(earlier),
        file: push && is_file(&plan.sources, plan.recursive),
        tree: push && is_tree(&plan.sources, plan.recursive),
        stands: !push && is_something_else(&plan.destination),
        marks: marks(plan, session),
        recursive: plan.recursive,
        preserve: plan.preserve,
        tuning: words(&tuning, settings),
        measure: plan.measure.clone(),
    };
    let presence = Presence::new(session);
    // A request can be longer than what a pipe holds while nobody reads.
    let patience = tuning.hangs_after.unwrap_or_default().max(answers_within());
    let tell = |silence| {
        let what = if push { "DEST" } else { "SOURCE" };
        let told = match silence {
            Silence::OfLogin => {
                format!("ssh to {host} has not started haul there yet: it connects or logs in")
            }
            Silence::OfStorage => format!("{host} has the request and looks at {what}; no answer yet"),
        };
        reporter.with(|reporter| reporter.note(&told));
    };
    let answer = ssh.answer(Line::Request(Box::new(request)), patience, interrupt, tell);
    drop(presence);
    let hashed_early = begun.as_mut().map_or(0, Reading::end_hashing);
    interrupt.check()?;
    let response = match answer? {
        // One that was asked to listen says where.
        Line::Response(response) if !listen_far || response.port != 0 => response,
        Line::Refusal(refusal) => return Err(error_of_host(host, push, refusal.into())),
        _ => return Err(Error::new(Code::Protocol, "the other end answered something else")),
    };
    if response.hash != settings.hash.value.kind().name() {
        let about = format!("haul {} there cannot check contents with --hash here", told(&response.haul));
        return Err(
            Error::new(Code::PeerVersion, about).hint("install the same version of haul on both hosts")
        );
    }
    let decided = match decided {
        Some(decided) => decided,
        None => decision_of(response.decision.as_deref().unwrap_or_default())
            .ok_or_else(|| Error::new(Code::Protocol, "the other end has not said what becomes of DEST"))?,
    };
    store_decision(job, decided)?;
    let roots = labels(decided, &plan.names, &plan.destination);
    reporter.with(|reporter| reporter.set_typed(Typed::new(plan, decided, &roots)));
    let resolved_host = ssh.host_name(interrupt)?;
    let peer: Fingerprint =
        response.fingerprint.parse().map_err(|error| Error::stream("the greeting", &error))?;
    let role = if push { Role::Source } else { Role::Sink };
    let session_keys = Session::new(session, role, &identity, peer, key).map_err(stream)?;
    let connector = InitiatorConnector {
        host: resolved_host,
        response_addresses: response.addresses,
        port: response.port,
        streams: settings.streams.value,
        ports: settings.ports.value,
        listen: settings.listen.value,
        session: session_keys,
        input: ssh.take_input(),
        greeter: Greeter::of(ssh.pid()),
        way: Way::Undecided,
        connected: false,
        tried: Default::default(),
    };
    let common = Common {
        tuning,
        job: plan.id,
        session,
        epoch: response.epoch,
        roots,
        connector: Box::new(connector),
        reports: reporter.reports(if push { End::Source } else { End::Sink }),
        placer: placer(plan, reporter),
    };
    let running = match push {
        true => ends.source(common, settings.log(), begun)?.start()?,
        false => ends.sink(common, decided, None)?.start()?,
    };
    interrupt.watch(&running);
    let live = live(job, reporter);
    let summary = running.wait();
    drop(live);
    drop(ssh);
    let log = summary.log.clone();
    let (encrypted, verified, left_out) = (Some(!plain), ends.verified(), ends.left_out());
    let connected = reporter.with(|reporter| reporter.connected());
    let reached = connected.map_or(Duration::ZERO, |at| at.saturating_duration_since(reaching));
    // What was kept of the job before that is told as such.
    let connecting = reached.saturating_sub(job.kept - kept + ends.log_kept(None));
    let state = ends.log_kept(log.as_ref());
    let (engines, wished) = (ends.engines.told(), plan.settings.engines());
    Ok((
        summary,
        Setup { encrypted, verified, hashed_early, left_out, log, engines, wished, connecting, state },
    ))
}

/// Reads bytes that the greeting carries as hex.
pub fn greeting_bytes(text: &str) -> Result<Vec<u8>, Error> {
    unhex(text).ok_or_else(|| Error::new(Code::Protocol, "the greeting has a malformed field"))
}

/// The answer of a far end, for [`crate::serve`].
pub fn response(
    identity: &Identity,
    port: u16,
    addresses: Vec<String>,
    epoch: u32,
    decision: Option<Decision>,
    hash: HashKind,
) -> Line {
    Line::Response(Response {
        haul: env!("CARGO_PKG_VERSION").into(),
        fingerprint: identity.fingerprint().to_string(),
        port,
        addresses,
        epoch,
        decision: decision.map(decision_word).map(str::to_owned),
        hash: hash.name().into(),
    })
}
