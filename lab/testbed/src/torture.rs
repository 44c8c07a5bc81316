//! The kill loop: real binaries over a real sshd, hit at random instants, continued until done, compared byte for byte.
//!
//! Each round follows from the seed and its number alone, so that it can be run again by itself (but for the instant at
//! which the machine happens to be at a step).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use haul_crashfs::random::Random;
use rustix::process::Signal;

use crate::attack::{Attack, Victim};
use crate::process::{is_alive, reap_orphans, signal, wait_gone, wait_until};
use crate::rounds::{
    Dataset, Datasets, MIB, Report, Summary, Variation, Verdict, allowed, choose_instant, login_time, mib,
    replay,
};
use crate::tree::{self, Options, compare};
use crate::watchdog;
use crate::world::{Job, LogChoice, Outcome, Program, Route, Running, World, claims};

/// A run that takes longer hangs.
const RUN_LIMIT: Duration = Duration::from_secs(120);
/// How long an attack waits for its victim to appear.
const VICTIM_LIMIT: Duration = Duration::from_secs(3);
const RECONNECT: Duration = Duration::from_secs(8);
/// Runs of a round until it must be done.
const RUNS_MAX: u32 = 8;
/// Writes that are no payload: logs, hashes, events.
const NOISE_BYTES: u64 = 4 * MIB;
/// How long the pause of the case lasts, once in [`LONG_PAUSE_EVERY`] rounds.
const LONG_PAUSE: Duration = Duration::from_secs(60);
const LONG_PAUSE_EVERY: u64 = 100;

/// Datasets of the rounds, the usual ones more often.
const DATASETS: [&str; 10] =
    ["edges", "edges", "edges", "small", "small", "big", "mixed", "mixed", "mixed", "huge"];

/// What to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many rounds.
    pub rounds: u64,
    /// Decides all of them.
    pub seed: u64,
    /// Only this one.
    pub only_round: Option<u64>,
    /// The binary.
    pub haul: PathBuf,
    /// Where all files go: rounds take turns between these. In memory and on a disk haul names small files differently.
    pub directories: Vec<PathBuf>,
    /// No round begins after this time.
    pub time_limit: Option<Duration>,
    /// The first violation ends the loop.
    pub until_violation: bool,
    /// Only these datasets; none: all.
    pub datasets: Vec<String>,
    /// Only these attacks, where they fit; none: all.
    pub attacks: Vec<String>,
    /// An end that was left over must be gone by then (its `--reconnect` is shorter).
    pub old_end_limit: Duration,
}

/// The rounds in one place.
struct Loop {
    settings: Settings,
    directory: PathBuf,
    world: World,
    datasets: Datasets,
    /// How long ssh takes to log in.
    login: Duration,
    /// How long a run takes that nobody disturbs.
    usual: BTreeMap<(Route, bool, &'static str), Duration>,
}

/// All choices of a round.
struct Plan {
    random: Random,
    job: Job,
    dataset: Dataset,
    attacks: Vec<Attack>,
    /// An older copy is at the destination already.
    older_copy: bool,
    /// The run after the last is typed again to see that it moves nothing.
    idle_run: bool,
}

/// Runs the loop.
pub fn run(settings: &Settings) -> io::Result<Verdict> {
    let program = Program::new(&settings.haul)?;
    let mut loops = Vec::new();
    for directory in &settings.directories {
        loops.push(Loop::new(settings, program.clone(), directory)?);
    }
    let places: Vec<String> = settings.directories.iter().map(|place| place.display().to_string()).collect();
    println!("torture: seed {}, {} rounds, in {}", settings.seed, settings.rounds, places.join(" and "));
    let missing: Vec<_> = [
        "--streams",
        "--memory",
        "--reconnect",
        "--plain",
        "--log-mechanism",
        "--hash",
        "--spill",
        "--engine",
        "--io",
    ]
    .into_iter()
    .filter(|option| !program.has(option))
    .collect();
    if !missing.is_empty() && !program.is_stand_in() {
        return Err(io::Error::other(format!("this haul has no {}, which rounds vary", missing.join(" "))));
    }
    let mut summary = Summary::new("torture");
    let started = std::time::Instant::now();
    let rounds = settings.only_round.map_or(0..settings.rounds, |only| only..only + 1);
    for number in rounds {
        if settings.time_limit.is_some_and(|limit| started.elapsed() > limit) {
            summary.notes.push(("stopped early, at round".into(), number.to_string()));
            break;
        }
        watchdog::step(format!("round {number} of torture"));
        let mut report = Report::default();
        // Long pauses come in both places, too.
        let turn = (number + number / LONG_PAUSE_EVERY) as usize % loops.len();
        let looped = &mut loops[turn];
        let head = looped.round(number, &mut report)?;
        let mut replay = replay("torture", settings.seed, number, &settings.datasets);
        for attack in &settings.attacks {
            replay += &format!(" --attack '{attack}'");
        }
        if let [only] = &settings.directories[..] {
            replay += &format!(" --dir {}", only.parent().unwrap_or(only).display());
        }
        if !report.violations.is_empty() {
            looped.keep_evidence(number);
        }
        summary.add(number, &head, &report, &replay);
        if settings.until_violation && !report.violations.is_empty() {
            break;
        }
    }
    Ok(summary.finish())
}

impl Loop {
    fn new(settings: &Settings, program: Program, directory: &Path) -> io::Result<Loop> {
        let world = World::new(program, &directory.join("world"), None)?;
        let datasets = Datasets::new(&directory.join("datasets"), settings.seed)?;
        let login = login_time(&world)?;
        let (settings, directory) = (settings.clone(), directory.to_owned());
        Ok(Loop { settings, directory, world, datasets, login, usual: BTreeMap::new() })
    }

    fn plan(&mut self, number: u64) -> io::Result<Plan> {
        let seed = self.settings.seed;
        let mut random = Random::fork(seed.wrapping_add(number.wrapping_mul(0x9e37_79b9)), "torture");
        let route = *random.pick(&[Route::Push, Route::Push, Route::Pull, Route::Pull, Route::Local]);
        let name = *random.pick(&allowed(&DATASETS, &self.settings.datasets)?);
        let dataset = self.datasets.get(name)?;
        let wanted = &self.settings.attacks;
        let mut attacks: Vec<_> = (0..*random.pick(&[1, 1, 1, 2, 3]))
            .map(|_| Attack::choose_named(&mut random, route, wanted))
            .collect();
        if wanted.is_empty() && number % LONG_PAUSE_EVERY == LONG_PAUSE_EVERY / 2 {
            let end =
                if route == Route::Local { Victim::Near } else { *random.pick(&[Victim::Near, Victim::Far]) };
            attacks = vec![Attack::Pause(end, LONG_PAUSE)];
        }
        // (cp, which makes it, cannot copy the paths of `edges`.)
        let older_copy = random.chance(80) && matches!(name, "small" | "big" | "huge");
        // An older copy is found only where DEST was there before.
        let into = older_copy || random.chance(128);
        let job = Job {
            route,
            plain: route != Route::Local && random.chance(100),
            streams: Some(random.between(1, 6) as u32),
            memory_bytes: Some(*random.pick(&[32 * MIB, 64 * MIB, 128 * MIB])),
            reconnect: Some(RECONNECT),
            log: None,
            hash: None,
            spill: None,
            engine: None,
            hashes_early: false,
            source: dataset.path.clone(),
            destination: self.directory.join("sink"),
            into,
        };
        let idle_run = random.chance(64);
        // Drawn apart, so that a seed means the same attacks as before there was a choice.
        let log = LogChoice::choose(&mut Random::fork(seed.wrapping_add(number), "torture log"));
        let mut more = Random::fork(seed.wrapping_add(number), "torture hash and spill");
        let hash = Job::draw_hash(&mut more);
        let spill = more.chance(64).then(|| self.spill());
        let engine = Job::draw_engine(&mut Random::fork(seed.wrapping_add(number), "torture engine"));
        let hashes_early = Random::fork(seed.wrapping_add(number), "torture early hashes").chance(128);
        Ok(Plan {
            job: Job { log, hash, spill, engine, hashes_early, ..job },
            dataset,
            attacks,
            older_copy,
            idle_run,
            random,
        })
    }

    /// Runs one round; what it is, for its line.
    fn round(&mut self, number: u64, report: &mut Report) -> io::Result<String> {
        let mut plan = self.plan(number)?;
        let usual = self.usual(&plan)?;
        let variation = Variation::add(&plan.dataset.path, &mut plan.random, 10 * MIB)?;
        self.clean()?;
        if plan.job.into {
            fs::create_dir(&plan.job.destination)?;
        }
        let mut needed = tree::totals(&plan.job.source)?.bytes;
        if plan.older_copy {
            needed -= older_copy(&plan.job, &mut plan.random)?;
        }
        let head = format!(
            "{:<5} {:<5} streams {} {:>3.0} MiB {:<5}{}{}{}",
            plan.job.route.name(),
            if plan.job.plain { "plain" } else { "tls" },
            plan.job.streams.unwrap_or(0),
            mib(plan.job.memory_bytes.unwrap_or(0)),
            plan.dataset.name,
            if plan.job.into { " into" } else { "" },
            if plan.older_copy { " older" } else { "" },
            plan.job.log.map_or(String::new(), |log| format!(" {log}")),
        ) + &plan.job.hash.map_or(String::new(), |hash| format!(" {hash}"))
            + if plan.job.spill.is_some() { " spill" } else { "" }
            + if plan.job.hashes_early && plan.job.route == Route::Push { " early" } else { "" }
            + &plan.job.engine.map_or(String::new(), |(engine, io)| format!(" {engine}/{io}"));
        self.disturb_until_done(&mut plan, usual, needed, report)?;
        if fs::read_dir(self.spill())?.next().is_some() {
            report.violate("left over", "something is left in the directory of the spill");
        }
        drop(variation);
        reap_orphans();
        Ok(head)
    }

    /// The attacks one after the other, then runs until done, then every check.
    fn disturb_until_done(
        &self,
        plan: &mut Plan,
        usual: Duration,
        needed: u64,
        report: &mut Report,
    ) -> io::Result<()> {
        let mut old: Vec<Running> = Vec::new();
        let mut sent = Vec::new();
        let mut done = false;
        // The machine may have been busy with something else when the usual time was measured.
        let mut fastest = per_second(needed, usual);
        for attack in plan.attacks.clone() {
            let quiet = if plan.job.route == Route::Local { Duration::ZERO } else { self.login };
            let instant = choose_instant(&mut plan.random, quiet, usual);
            let mut run = self.world.start(&plan.job)?;
            report.runs += 1;
            if !run.wait_for_instant(instant) {
                report.tell(format!("ended before {:.3} s", instant.as_secs_f64()));
                done = self.settle(plan, &mut run, Duration::ZERO, &mut sent, 0, report);
                old.push(run);
                if done {
                    break;
                }
                continue;
            }
            let written = run.bytes_written().unwrap_or(0);
            fastest = fastest.max(per_second(written, instant));
            if matches!(attack, Attack::Cut { .. }) && plan.random.chance(200) {
                // Mostly while data flows, sometimes in the handshakes.
                wait_until(VICTIM_LIMIT, || run.is_connected() || run.has_ended());
                std::thread::sleep(usual.saturating_sub(quiet) * plan.random.below(50) as u32 / 100);
            }
            let connected = run.is_connected();
            let mut hit = Vec::new();
            report.tried.push(attack.name());
            // Who is not there yet is hit as soon as it is.
            wait_until(VICTIM_LIMIT, || {
                hit = attack.strike(&run);
                !hit.is_empty() || run.has_ended()
            });
            let at = format!("{:.3} of {:.3} s", instant.as_secs_f64(), usual.as_secs_f64());
            if hit.is_empty() {
                report.tell(format!("{attack} at {at} found nobody"));
            } else {
                report.attacks.push(attack.name());
                report.tell(format!("{attack} at {at}"));
            }
            if let Attack::Pause(_, time) = attack {
                std::thread::sleep(time);
                for pid in &hit {
                    signal(*pid, Signal::CONT);
                }
            }
            done = match attack {
                Attack::Supersede(victim) if !hit.is_empty() => {
                    self.supersede(plan, victim, &mut run, &hit, &mut old, &mut sent, written, report)?
                }
                _ => self.settle(plan, &mut run, RUN_LIMIT, &mut sent, written, report),
            };
            let heals = match attack {
                Attack::Cut { .. } => connected,
                Attack::Pause(_, time) => connected && time < RECONNECT,
                _ => false,
            };
            if heals && !hit.is_empty() && !done {
                report.violate("not finished", format!("did not go on by itself after: {attack}"));
            }
            old.push(run);
            if done {
                break;
            }
            let gap = if plan.random.chance(128) { plan.random.below(10) } else { plan.random.below(400) };
            std::thread::sleep(Duration::from_millis(gap));
        }
        while !done {
            if report.runs >= RUNS_MAX {
                report.violate("not finished", format!("not done after {} runs", report.runs));
                break;
            }
            let mut run = self.world.start(&plan.job)?;
            report.runs += 1;
            done = self.settle(plan, &mut run, RUN_LIMIT, &mut sent, 0, report);
            if !done
                && let Some(outcome) = run.wait(Duration::ZERO)
                && !matches!(outcome.status.code(), Some(0 | 4))
            {
                report.violate("not finished", format!("undisturbed run: {}", outcome.told()));
            }
            old.push(run);
        }
        self.check_end(plan, &mut old, report)?;
        let again = sent.iter().sum::<u64>().saturating_sub(needed);
        // A cut costs what was on its way, without a new run; so does a pause that looks like one.
        let is_cut = |attack: &&Attack| match attack {
            Attack::Cut { .. } => true,
            Attack::Pause(_, time) => *time >= LONG_PAUSE,
            _ => false,
        };
        let cuts = plan.attacks.iter().filter(is_cut).count() as u64;
        let faults = u64::from(report.runs - 1) + cuts;
        // Of a run that was killed nobody knows what it has sent, only what was written.
        let bound = bound(plan, fastest) * faults + NOISE_BYTES;
        report.sent_again = Some((again, bound));
        if again > bound {
            report.violate("sent again", format!("{again} bytes, at most {bound} may be"));
        }
        for run in &old {
            if report.violations.is_empty() {
                run.forget();
            }
        }
        Ok(())
    }

    /// An end hangs (it was stopped), and the command is typed again.
    ///
    /// Where the initiator is dead, the new run must take over from the far end that hangs. Where it hangs itself, the
    /// new run may take over or refuse; then the old one has to finish once it wakes up.
    #[expect(clippy::too_many_arguments, reason = "the state of a round")]
    fn supersede(
        &self,
        plan: &Plan,
        victim: Victim,
        run: &mut Running,
        hit: &[i32],
        old: &mut Vec<Running>,
        sent: &mut Vec<u64>,
        written: u64,
        report: &mut Report,
    ) -> io::Result<bool> {
        if victim == Victim::Far {
            run.kill();
            sent.push(written);
            return Ok(false);
        }
        // One that was stopped before it owned the job is no old end: it begins when it wakes up, as any later run would.
        // (One that is at work without the lock is an old end all the more.)
        let owned = holds_lock(run.near()) || run.is_connected();
        let mut second = self.world.start(&plan.job)?;
        report.runs += 1;
        let done = self.settle(plan, &mut second, RUN_LIMIT, sent, 0, report);
        let refused = second.wait(Duration::ZERO).is_some_and(|outcome| outcome.status.code() == Some(1));
        old.push(second);
        if done && owned {
            sent.push(written);
            return Ok(true);
        }
        if done {
            for pid in hit {
                signal(*pid, Signal::CONT);
            }
            return Ok(self.settle(plan, run, RUN_LIMIT, sent, 0, report));
        }
        if !refused {
            report
                .violate("not finished", "a second run beside one that hangs neither took over nor refused");
        }
        for pid in hit {
            signal(*pid, Signal::CONT);
        }
        Ok(self.settle(plan, run, RUN_LIMIT, sent, written, report))
    }

    /// Waits for the end of a run, checks what it claims, and notes what it sent. True if it is done.
    fn settle(
        &self,
        plan: &Plan,
        run: &mut Running,
        limit: Duration,
        sent: &mut Vec<u64>,
        written: u64,
        report: &mut Report,
    ) -> bool {
        let Some(outcome) = run.wait(limit) else {
            report.violate("not finished", format!("still running after {} s", RUN_LIMIT.as_secs()));
            run.kill();
            sent.push(written);
            return false;
        };
        report.tell(outcome.told());
        sent.push(outcome.number("bytes_sent").unwrap_or(written));
        self.check_claims(plan, &outcome, report);
        if !outcome.claims_done() {
            return false;
        }
        let same =
            report.check("false done", &compare(&plan.job.source, &plan.job.result(), &Options::default()));
        if outcome.contradicts_itself() {
            report.violate(
                "false done",
                format!("{}, but the summary says {:?}", outcome.ended(), outcome.summary()),
            );
        }
        same || outcome.is_done()
    }

    fn check_claims(&self, plan: &Plan, outcome: &Outcome, report: &mut Report) {
        let result = plan.job.result();
        for path in claims(&outcome.events) {
            let comparison = tree::compare_one(&plan.job.source, &result, &path, &Options::default());
            if !report.check("false done", &comparison) {
                return;
            }
        }
    }

    /// Everything is there, nothing is left over, and nobody writes any more.
    fn check_end(&self, plan: &Plan, old: &mut [Running], report: &mut Report) -> io::Result<()> {
        let result = plan.job.result();
        report.check("difference", &compare(&plan.job.source, &result, &Options::default()));
        let before = tree::fingerprint(&plan.job.destination);
        let mut pids: Vec<i32> =
            old.iter().flat_map(|run| run.far().into_iter().chain([run.near()])).collect();
        pids.sort_unstable();
        pids.dedup();
        // Ends that were stopped and superseded wake up to a job that is done without them.
        for pid in &pids {
            signal(*pid, Signal::CONT);
        }
        let limit = wait_until(self.settings.old_end_limit, || {
            for run in old.iter_mut() {
                run.has_ended();
            }
            pids.iter().all(|pid| !is_alive(*pid))
        });
        if !limit {
            let left: Vec<_> = pids.iter().filter(|pid| is_alive(**pid)).collect();
            report.violate(
                "old end",
                format!("processes {left:?} still run {} s later", self.settings.old_end_limit.as_secs()),
            );
            for pid in left {
                signal(*pid, Signal::KILL);
                wait_gone(*pid, Duration::from_secs(5));
            }
        }
        if let (Ok(before), Ok(after)) = (before, tree::fingerprint(&plan.job.destination)) {
            for change in tree::changes(&before, &after, 5) {
                report.violate("old end", format!("written after the end: {change}"));
            }
        }
        let unfinished = unfinished(&plan.job.destination);
        if unfinished > 0 {
            report.violate("left over", format!("{unfinished} unfinished files"));
        }
        if plan.idle_run && report.violations.is_empty() {
            self.check_idle_run(plan, report)?;
        }
        Ok(())
    }

    /// A finished dataset run again moves nothing and says so.
    fn check_idle_run(&self, plan: &Plan, report: &mut Report) -> io::Result<()> {
        let mut run = self.world.start(&plan.job)?;
        match run.wait(RUN_LIMIT) {
            Some(outcome) if outcome.is_done() && outcome.number("bytes_sent") == Some(0) => run.forget(),
            Some(outcome) => report.violate(
                "sent again",
                format!(
                    "a finished dataset run again: {}, sent {:?}",
                    outcome.ended(),
                    outcome.number("bytes_sent")
                ),
            ),
            None => report.violate("not finished", "a finished dataset run again does not end"),
        }
        Ok(())
    }

    /// How long the job takes when nobody disturbs it; measured once for each kind.
    fn usual(&mut self, plan: &Plan) -> io::Result<Duration> {
        let key = (plan.job.route, plan.job.plain, plan.dataset.name);
        if let Some(usual) = self.usual.get(&key) {
            return Ok(*usual);
        }
        self.clean()?;
        let job = Job { into: false, ..plan.job.clone() };
        let mut run = self.world.start(&job)?;
        let outcome =
            run.wait(RUN_LIMIT).ok_or_else(|| io::Error::other("an undisturbed run does not end"))?;
        let comparison = compare(&job.source, &job.result(), &Options::default());
        if !outcome.is_done() || !comparison.as_ref().is_ok_and(tree::Comparison::is_same) {
            return Err(io::Error::other(format!(
                "an undisturbed run ({:?}, {}) fails already: {} {}\n{:?}\n{:?}",
                key,
                job.destination.display(),
                outcome.ended(),
                outcome.last_errors(),
                outcome.summary(),
                comparison.map(|comparison| comparison.differences)
            )));
        }
        run.forget();
        self.usual.insert(key, outcome.elapsed);
        Ok(outcome.elapsed)
    }

    fn clean(&self) -> io::Result<()> {
        tree::remove(&self.directory.join("sink"))?;
        // State of earlier rounds must not help or hinder: the destination is another one in truth.
        for state in [self.world.states().0, self.world.states().1] {
            tree::remove(state)?;
            fs::create_dir_all(state)?;
        }
        fs::create_dir_all(self.spill())
    }

    /// Where the source may keep what the sink cannot take yet.
    fn spill(&self) -> PathBuf {
        self.directory.join("spill")
    }

    /// Events, errors and state of a failed round, beside everything else.
    fn keep_evidence(&self, number: u64) {
        let kept = self.directory.join(format!("failed-{number}"));
        let _ = fs::create_dir_all(&kept);
        for name in ["runs", "near-state", "far-state"] {
            let _ = fs::rename(self.directory.join("world").join(name), kept.join(name));
        }
        let _ = fs::create_dir_all(self.directory.join("world/runs"));
        println!("      ! evidence in {}", kept.display());
    }
}

/// What goes by in a second.
fn per_second(bytes: u64, time: Duration) -> u64 {
    (bytes as f64 / time.as_secs_f64().max(0.05)) as u64
}

/// What may go by in the second in which nothing becomes durable.
fn a_second(fastest: u64) -> u64 {
    fastest.clamp(64 * MIB, 256 * MIB)
}

/// The sink's slots plus one sync group: what one kill may cost.
fn bound(plan: &Plan, fastest: u64) -> u64 {
    plan.job.memory_bytes.unwrap_or(0) + a_second(fastest)
}

/// Puts an older version of the dataset at the destination; how many bytes of it are complete already.
fn older_copy(job: &Job, random: &mut Random) -> io::Result<u64> {
    let result = job.result();
    let status = Command::new("cp").arg("-a").arg(&job.source).arg(&result).status()?;
    if !status.success() {
        return Err(io::Error::other("cp -a failed"));
    }
    let mut complete = tree::totals(&job.source)?.bytes;
    for entry in fs::read_dir(result.join("varied"))? {
        let entry = entry?;
        let bytes = entry.metadata()?.len();
        match random.below(4) {
            0 => fs::remove_file(entry.path())?,
            1 => fs::write(entry.path(), b"an older version")?,
            // The same size, another time.
            2 => crate::dataset::set_time(&entry.path(), 1_000_000_000, 0)?,
            _ => continue,
        }
        complete -= bytes;
    }
    Ok(complete)
}

fn unfinished(root: &Path) -> u64 {
    tree::fingerprint(root).map_or(0, |found| {
        let name = |path: &[u8]| path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
        found.keys().filter(|path| tree::is_unfinished(&name(path))).count() as u64
    })
}

/// Does the process own a job? (Its lock is the only one that it ever takes.)
fn holds_lock(pid: i32) -> bool {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().any(|line| {
        let mut words = line.split_whitespace().filter(|word| *word != "->");
        words.nth(1) == Some("FLOCK") && words.nth(2).and_then(|word| word.parse().ok()) == Some(pid)
    })
}
