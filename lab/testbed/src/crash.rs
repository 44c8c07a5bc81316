//! The power-cut loop: both hosts keep their state, and the sink its files, on disks that lose what was not
//! synced: those of every other round on the crash file system, the others on ext4 or XFS. At a random instant one host,
//! or both, lose power; what was claimed before must be there right after it.
//!
//! With [`Settings::lies`] syncs of some class do nothing. Then the loop must fail: that is the proof that it would
//! notice if the program forgot that sync.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use haul_crashfs::random::Random;
use haul_crashfs::{CrashReport, Mood, SyncClass};
use rustix::process::Signal;

use crate::disk::{Disk, Medium};
use crate::process::{descendants, is_alive, own_pid, reap_orphans, signal, wait_gone};
use crate::rounds::{
    Dataset, Datasets, MIB, Report, Summary, Variation, Verdict, allowed, choose_instant, login_time, replay,
};
use crate::tree::{self, Options, compare};
use crate::watchdog;
use crate::world::{Job, LogChoice, Outcome, Program, Route, Running, World, claims};

const RUN_LIMIT: Duration = Duration::from_secs(120);
const RECONNECT: Duration = Duration::from_secs(5);
const RUNS_MAX: u32 = 8;

/// Every other round is on the crash file system: it loses more, and other things each time.
const MEDIA: [Medium; 4] = [Medium::Crashfs, Medium::Crashfs, Medium::Ext4, Medium::Xfs];
const DATASETS: [&str; 4] = ["crash-small", "crash-edges", "crash-big", "crash-mixed"];

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
    /// Where all files go.
    pub directory: PathBuf,
    /// No round begins after this time.
    pub time_limit: Option<Duration>,
    /// Syncs that do nothing.
    pub lies: Vec<SyncClass>,
    /// Every crash is of this kind.
    pub mood: Option<Mood>,
    /// The first violation ends the loop.
    pub until_violation: bool,
    /// Only these datasets; none: all.
    pub datasets: Vec<String>,
    /// Only disks of this kind.
    pub medium: Option<Medium>,
}

/// Which host loses power.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    Near,
    Far,
    Both,
}

impl Cut {
    fn name(self) -> &'static str {
        match self {
            Cut::Near => "power near",
            Cut::Far => "power far",
            Cut::Both => "power both",
        }
    }
}

struct Loop {
    settings: Settings,
    world: World,
    datasets: Datasets,
    login: Duration,
    usual: BTreeMap<(Route, bool, Medium, &'static str), Duration>,
    lost: CrashReport,
    rounds: BTreeMap<Medium, u64>,
}

/// The disks of both hosts, mounted for one round.
struct Disks {
    near: Disk,
    far: Disk,
}

struct Plan {
    random: Random,
    medium: Medium,
    job: Job,
    dataset: Dataset,
    cuts: Vec<Cut>,
    idle_run: bool,
}

/// On each host: all but the account is for haul to make, as for somebody who has no `.local` yet.
const STATE: &str = "account/.local/state/haul";

/// Runs the loop.
pub fn run(settings: &Settings) -> io::Result<Verdict> {
    let program = Program::new(&settings.haul)?;
    let directory = settings.directory.clone();
    for host in ["near", "far"] {
        fs::create_dir_all(directory.join(host))?;
    }
    let states = (directory.join("near").join(STATE), directory.join("far").join(STATE));
    let world = World::new(program, &directory.join("world"), Some(states))?;
    let datasets = Datasets::new(&directory.join("datasets"), settings.seed)?;
    println!("crash: seed {}, {} rounds, in {}", settings.seed, settings.rounds, directory.display());
    let mut summary = Summary::new("crash");
    let login = login_time(&world)?;
    let mut looped = Loop {
        settings: settings.clone(),
        world,
        datasets,
        login,
        usual: BTreeMap::new(),
        lost: CrashReport::default(),
        rounds: BTreeMap::new(),
    };
    let started = std::time::Instant::now();
    for number in settings.only_round.map_or(0..settings.rounds, |only| only..only + 1) {
        if settings.time_limit.is_some_and(|limit| started.elapsed() > limit) {
            summary.notes.push(("stopped early, at round".into(), number.to_string()));
            break;
        }
        watchdog::step(format!("round {number} of crash"));
        let mut report = Report::default();
        let head = looped.round(number, &mut report)?;
        let replay = replay("crash", settings.seed, number, &settings.datasets);
        let failed = !report.violations.is_empty();
        summary.add(number, &head, &report, &replay);
        if failed && settings.until_violation {
            break;
        }
    }
    for (medium, rounds) in &looped.rounds {
        summary.notes.push((format!("rounds on {medium}"), rounds.to_string()));
    }
    summary.notes.push(("lost / found unsynced on crashfs".into(), looped.lost.to_string()));
    Ok(summary.finish())
}

impl Loop {
    fn plan(&mut self, number: u64) -> io::Result<Plan> {
        let seed = self.settings.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9));
        let mut random = Random::fork(seed, "crash");
        let route = *random.pick(&[Route::Push, Route::Pull, Route::Local]);
        let name = *random.pick(&allowed(&DATASETS, &self.settings.datasets)?);
        let dataset = self.datasets.get(name)?;
        let sink = match route {
            Route::Push => self.settings.directory.join("far"),
            Route::Pull | Route::Local => self.settings.directory.join("near"),
        };
        let job = Job {
            route,
            plain: route != Route::Local && random.chance(64),
            streams: Some(random.between(1, 4) as u32),
            memory_bytes: Some(32 * MIB),
            reconnect: Some(RECONNECT),
            log: LogChoice::choose(&mut Random::fork(seed, "crash log")),
            hash: Job::draw_hash(&mut Random::fork(seed, "crash hash")),
            // It goes with the process, however that ends.
            spill: None,
            engine: Job::draw_engine(&mut Random::fork(seed, "crash engine")),
            hashes_early: false,
            source: dataset.path.clone(),
            destination: sink.join("data/result"),
            into: random.chance(128),
        };
        let cuts = (0..*random.pick(&[1, 1, 2, 3]))
            .map(|_| match route {
                Route::Local => Cut::Near,
                _ => *random.pick(&[Cut::Near, Cut::Far, Cut::Both]),
            })
            .collect();
        // A kernel's file system does not lie, and has one mood.
        let own = !self.settings.lies.is_empty() || self.settings.mood.is_some();
        let media = if own { &MEDIA[..1] } else { &MEDIA[..] };
        let medium = self.settings.medium.unwrap_or(*Random::fork(seed, "crash medium").pick(media));
        Ok(Plan { job, dataset, cuts, idle_run: random.chance(64), medium, random })
    }

    fn round(&mut self, number: u64, report: &mut Report) -> io::Result<String> {
        let mut plan = self.plan(number)?;
        let usual = self.usual(&plan)?;
        let variation = Variation::add(&plan.dataset.path, &mut plan.random, 3 * MIB)?;
        let disks = self.mount(plan.medium, plan.random.next(), &plan.job)?;
        let head = format!(
            "{:<7} {:<5} {:<5} streams {} {:<11}{}",
            plan.medium,
            plan.job.route.name(),
            if plan.job.plain { "plain" } else { "tls" },
            plan.job.streams.unwrap_or(0),
            plan.dataset.name,
            if plan.job.into { " into" } else { "" },
        );
        *self.rounds.entry(plan.medium).or_default() += 1;
        self.cut_until_done(&mut plan, &disks, usual, report)?;
        self.lost += disks.near.lost();
        self.lost += disks.far.lost();
        end_far_ends(&self.world);
        drop(disks);
        drop(variation);
        reap_orphans();
        Ok(head)
    }

    /// New, empty disks with the directories that an operator would have made, all durable.
    fn mount(&self, medium: Medium, seed: u64, job: &Job) -> io::Result<Disks> {
        let directory = &self.settings.directory;
        let mount = |host: &str, seed: u64| {
            let image = directory.join(host).with_extension("image");
            Disk::new(medium, seed, &directory.join(host), &image)
        };
        let disks = Disks { near: mount("near", seed)?, far: mount("far", seed.wrapping_add(1))? };
        for host in ["near", "far"] {
            for made in ["account", "data"] {
                fs::create_dir(directory.join(host).join(made))?;
            }
        }
        if job.into {
            fs::create_dir(&job.destination)?;
        }
        for disk in [&disks.near, &disks.far] {
            disk.sync()?;
            disk.lie(&self.settings.lies);
        }
        Ok(disks)
    }

    fn cut_until_done(
        &self,
        plan: &mut Plan,
        disks: &Disks,
        usual: Duration,
        report: &mut Report,
    ) -> io::Result<()> {
        let mut done = false;
        for cut in plan.cuts.clone() {
            let quiet = if plan.job.route == Route::Local { Duration::ZERO } else { self.login };
            let instant = choose_instant(&mut plan.random, quiet, usual);
            let mut run = self.world.start(&plan.job)?;
            report.runs += 1;
            if run.wait_for_instant(instant) {
                let seed = plan.random.next();
                self.power_cut(plan, disks, cut, seed, &mut run, report)?;
                report.tell(format!(
                    "{} at {:.3} of {:.3} s",
                    cut.name(),
                    instant.as_secs_f64(),
                    usual.as_secs_f64()
                ));
                report.attacks.push(cut.name());
            } else {
                report.tell(format!("ended before {:.3} s", instant.as_secs_f64()));
            }
            done = self.settle(plan, &mut run, report);
            run.forget();
            if done {
                break;
            }
        }
        while !done {
            if report.runs >= RUNS_MAX {
                report.violate("not finished", format!("not done after {} runs", report.runs));
                return Ok(());
            }
            let mut run = self.world.start(&plan.job)?;
            report.runs += 1;
            done = self.settle(plan, &mut run, report);
            if !done
                && let Some(outcome) = run.wait(Duration::ZERO)
                && !matches!(outcome.status.code(), Some(0 | 4))
            {
                report.violate("not finished", format!("undisturbed run: {}", outcome.told()));
            }
            run.forget();
        }
        report.check("difference", &compare(&plan.job.source, &plan.job.result(), &Options::default()));
        self.cut_after_the_end(plan, disks, report)
    }

    /// "Done" means durable: both hosts lose power once more, and exactly what was synced is left.
    fn cut_after_the_end(&self, plan: &Plan, disks: &Disks, report: &mut Report) -> io::Result<()> {
        end_far_ends(&self.world);
        disks.near.cut_power(1, Some(Mood::Nothing))?;
        disks.far.cut_power(1, Some(Mood::Nothing))?;
        let comparison = compare(&plan.job.source, &plan.job.result(), &Options::default());
        let durable = report.check("false done", &comparison);
        if plan.idle_run && durable {
            let mut run = self.world.start(&plan.job)?;
            let outcome = run.wait(RUN_LIMIT);
            let idle = |outcome: &Outcome| outcome.is_done() && outcome.number("bytes_sent") == Some(0);
            if !outcome.as_ref().is_some_and(idle) {
                let ended = outcome.map(|outcome| (outcome.ended(), outcome.number("bytes_sent")));
                report.violate("sent again", format!("a finished dataset after a power cut: {ended:?}"));
            }
            run.kill();
            run.forget();
        }
        Ok(())
    }

    /// All processes of the host die at once, then its disk forgets. No new far end starts in between.
    fn power_cut(
        &self,
        plan: &Plan,
        disks: &Disks,
        cut: Cut,
        seed: u64,
        run: &mut Running,
        report: &mut Report,
    ) -> io::Result<()> {
        let mood = self.settings.mood;
        self.world.sshd().pause();
        let doomed = self.stop_hosts(cut, run);
        for pid in &doomed {
            signal(*pid, Signal::KILL);
        }
        run.has_ended();
        for pid in doomed {
            if pid != run.near() && !wait_gone(pid, Duration::from_secs(10)) {
                report.violate("not finished", format!("process {pid} does not die"));
            }
        }
        if cut != Cut::Far {
            run.kill();
        }
        let claimed = claims(&run.events());
        if cut != Cut::Near {
            disks.far.cut_power(seed, mood)?;
        }
        if cut != Cut::Far {
            disks.near.cut_power(seed.wrapping_add(1), mood)?;
        }
        let (source, result) = (&plan.job.source, plan.job.result());
        for path in &claimed {
            if !report.check("false done", &tree::compare_one(source, &result, path, &Options::default())) {
                break;
            }
        }
        if !claimed.is_empty() {
            report.tell(format!("{} claims checked", claimed.len()));
        }
        self.world.sshd().resume();
        Ok(())
    }

    /// Stops every process of the hosts that lose power: those of earlier runs, too, and what is forked meanwhile.
    fn stop_hosts(&self, cut: Cut, run: &Running) -> BTreeSet<i32> {
        let mut stopped = BTreeSet::new();
        loop {
            let mut near: BTreeSet<i32> = descendants(run.near()).iter().map(|seen| seen.pid).collect();
            near.insert(run.near());
            let is_doomed = |pid: i32| match cut {
                _ if pid == self.world.sshd().pid() => false,
                Cut::Near => near.contains(&pid),
                Cut::Far => !near.contains(&pid),
                Cut::Both => true,
            };
            let running = descendants(own_pid()).into_iter().filter(|seen| !seen.has_ended());
            let doomed = running.map(|seen| seen.pid).filter(|pid| is_doomed(*pid));
            let new: Vec<i32> = doomed.filter(|pid| !stopped.contains(pid)).collect();
            if new.is_empty() {
                return stopped;
            }
            for pid in new {
                signal(pid, Signal::STOP);
                stopped.insert(pid);
            }
        }
    }

    /// Waits for the end of a run; true if it is done, and then the trees are the same.
    fn settle(&self, plan: &Plan, run: &mut Running, report: &mut Report) -> bool {
        let Some(outcome) = run.wait(RUN_LIMIT) else {
            report.violate("not finished", format!("still running after {} s", RUN_LIMIT.as_secs()));
            run.kill();
            return false;
        };
        report.tell(outcome.told());
        if !outcome.claims_done() {
            return false;
        }
        if outcome.contradicts_itself() {
            report.violate(
                "false done",
                format!("{}, but the summary says {:?}", outcome.ended(), outcome.summary()),
            );
        }
        report.check("false done", &compare(&plan.job.source, &plan.job.result(), &Options::default()));
        true
    }

    fn usual(&mut self, plan: &Plan) -> io::Result<Duration> {
        let key = (plan.job.route, plan.job.plain, plan.medium, plan.dataset.name);
        if let Some(usual) = self.usual.get(&key) {
            return Ok(*usual);
        }
        let disks = self.mount(plan.medium, 7, &plan.job)?;
        let mut run = self.world.start(&plan.job)?;
        let outcome =
            run.wait(RUN_LIMIT).ok_or_else(|| io::Error::other("an undisturbed run does not end"))?;
        if !outcome.is_done() {
            return Err(io::Error::other(format!(
                "an undisturbed run ({key:?}) fails already: {} {}\n{:?}",
                outcome.ended(),
                outcome.last_errors(),
                outcome.summary()
            )));
        }
        println!("crash: {key:?} takes {:.2} s undisturbed", outcome.elapsed.as_secs_f64());
        run.forget();
        end_far_ends(&self.world);
        drop(disks);
        self.usual.insert(key, outcome.elapsed);
        Ok(outcome.elapsed)
    }
}

/// Nobody uses a disk that is about to be unmounted or crashed.
fn end_far_ends(world: &World) {
    let own = own_pid();
    for seen in descendants(own) {
        let is_session = seen.pid != world.sshd().pid();
        if is_session && is_alive(seen.pid) {
            signal(seen.pid, Signal::KILL);
            wait_gone(seen.pid, Duration::from_secs(10));
        }
    }
}
