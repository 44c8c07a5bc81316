//! Several transfers on one host and on the same targets: a scheduler and a neighbourhood each, statements in their own
//! bytes, and disks that share their bandwidth among the requests of all. Time is computed, so a figure is the same
//! everywhere.

use haul_protocol::neighbours::{Neighbourhood, Party};
use haul_protocol::scheduler::{Class, Config, Policy, Request, Scheduler, TargetId, Ticket};
use haul_protocol::{NeighbourBug, SchedulerBug};
use haul_wire::{Statement, TargetStatement};

/// Nanoseconds.
pub const SECOND: u64 = 1_000_000_000;
/// How often each of them speaks.
const BEAT: u64 = SECOND / 4;
/// What is read at a time.
const OBJECT: u32 = 4 << 20;
/// What identities begin with.
const IDENTITY: u64 = 0x5EED_0000;

/// One transfer.
#[derive(Clone, Copy)]
pub struct Transfer {
    /// Whose.
    pub user: u32,
    /// I/O threads.
    pub threads: u32,
    /// Objects that it has on each target.
    pub objects: u32,
    /// When it begins.
    pub starts: u64,
    /// When it is killed, with all that it has under way.
    pub killed: u64,
}

/// What is played.
#[derive(Clone)]
pub struct Setup {
    /// All transfers.
    pub transfers: Vec<Transfer>,
    /// Bytes a second of each target.
    pub rates: Vec<u64>,
    /// Do they speak to each other?
    pub speak: bool,
    /// So many others of another user claim everything, and do nothing.
    pub liars: u16,
    /// Figures are taken from, and until, here; then it ends.
    pub window: (u64, u64),
    /// Planted in all; without the feature `planted-bugs` it has no effect.
    pub bug: Option<NeighbourBug>,
    /// The same in their schedulers.
    pub scheduler_bug: Option<SchedulerBug>,
}

/// What came of it, in the window.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Requests of all on each target, at a time.
    pub under_way: Vec<f64>,
    /// The same of each transfer.
    pub own_under_way: Vec<Vec<f64>>,
    /// Bytes that each transfer got from each target.
    pub bytes: Vec<Vec<u64>>,
    /// The longest that a transfer with work on a target had no request there.
    pub longest_wait: Vec<Vec<u64>>,
    /// When each has ended.
    pub ended: Vec<Option<u64>>,
}

struct Disk {
    rate: u64,
    /// Transfer, ticket and bytes that are left.
    under_way: Vec<(usize, Ticket, f64)>,
}

impl Disk {
    fn share(&self) -> f64 {
        self.rate as f64 / self.under_way.len().max(1) as f64
    }

    fn next(&self, now: u64) -> u64 {
        let least = self.under_way.iter().map(|(.., left)| *left).min_by(f64::total_cmp);
        least.map_or(u64::MAX, |left| now + (left / self.share() * 1e9).ceil() as u64)
    }
}

struct Running {
    plan: Transfer,
    scheduler: Scheduler<u32>,
    neighbourhood: Neighbourhood,
    next_beat: u64,
    left: Vec<u32>,
    had_request: Vec<u64>,
    ended: Option<u64>,
}

impl Running {
    fn new(number: usize, plan: Transfer, setup: &Setup) -> Running {
        let party = Party { user: plan.user, transfer: 1000 + number as u64 };
        let mut config = Config::new(plan.threads, 4 * plan.threads, Policy::Adaptive(Default::default()));
        config.planted = planted(setup.scheduler_bug);
        let mut neighbourhood = Neighbourhood::new(party, planted(setup.bug));
        // Each met the targets in an order of its own.
        for target in 0..setup.rates.len() {
            neighbourhood.know(TargetId(target as u32), identity(target));
        }
        Running {
            plan,
            scheduler: Scheduler::new(config),
            neighbourhood,
            next_beat: plan.starts + number as u64 * 37_000_000 % BEAT,
            left: vec![plan.objects; setup.rates.len()],
            had_request: vec![plan.starts; setup.rates.len()],
            ended: None,
        }
    }

    fn runs(&self, now: u64) -> bool {
        (self.plan.starts..self.plan.killed).contains(&now) && self.ended.is_none()
    }
}

fn identity(target: usize) -> u64 {
    IDENTITY + target as u64 * 0x1_0001
}

/// Plays it.
pub fn run(setup: &Setup) -> Figures {
    let targets = setup.rates.len();
    let mut running: Vec<Running> =
        setup.transfers.iter().enumerate().map(|(number, plan)| Running::new(number, *plan, setup)).collect();
    let mut disks: Vec<Disk> =
        setup.rates.iter().map(|rate| Disk { rate: *rate, under_way: Vec::new() }).collect();
    let all = running.len();
    let mut figures = Figures {
        under_way: vec![0.0; targets],
        own_under_way: vec![vec![0.0; targets]; all],
        bytes: vec![vec![0; targets]; all],
        longest_wait: vec![vec![0; targets]; all],
        ended: vec![None; all],
    };
    for one in &mut running {
        for object in 0..one.plan.objects {
            for target in 0..targets {
                let target = TargetId(target as u32);
                let request =
                    Request { item: object, target, gate: None, class: Class::Object, bytes: OBJECT };
                one.scheduler.push(request, 0).expect("a number in range");
            }
        }
    }
    let (from, until) = setup.window;
    let mut now = 0;
    while now < until && running.iter().any(|one| one.ended.is_none() && one.plan.killed > now) {
        beat(&mut running, setup, now);
        for (number, one) in running.iter_mut().enumerate() {
            start(number, one, &mut disks, now);
        }
        let next = next_event(&running, &disks, now).min(until);
        let measured = next.saturating_sub(now.max(from)) as f64 / (until - from) as f64;
        for (target, disk) in disks.iter_mut().enumerate() {
            figures.under_way[target] += measured * disk.under_way.len() as f64;
            let moved = disk.share() * (next - now) as f64 / 1e9;
            for (transfer, _, left) in &mut disk.under_way {
                *left -= moved;
                figures.own_under_way[*transfer][target] += measured;
            }
            let (ended, rest) = disk.under_way.drain(..).partition(|(.., left)| *left < 0.5);
            disk.under_way = rest;
            let ended: Vec<(usize, Ticket, f64)> = ended;
            for (transfer, ticket, _) in ended {
                let one = &mut running[transfer];
                one.scheduler.finished(ticket, next, true);
                one.left[target] -= 1;
                figures.bytes[transfer][target] += if next >= from { u64::from(OBJECT) } else { 0 };
            }
            disk.under_way.retain(|(transfer, ..)| setup.transfers[*transfer].killed > next);
        }
        now = next;
        for (number, one) in running.iter_mut().enumerate() {
            wait(one, &disks, number, now, &mut figures.longest_wait[number]);
            if one.left.iter().all(|left| *left == 0) && one.ended.is_none() {
                one.ended = Some(now);
            }
        }
    }
    figures.ended = running.iter().map(|one| one.ended).collect();
    figures
}

/// Whose time it is speaks, and hears what the others said last.
fn beat(running: &mut [Running], setup: &Setup, now: u64) {
    for number in 0..running.len() {
        let one = &mut running[number];
        if one.next_beat > now {
            continue;
        }
        one.next_beat = now + BEAT;
        if !setup.speak || !one.runs(now) {
            continue;
        }
        let bytes = one.neighbourhood.say(one.scheduler.said(now), (BEAT / 1_000_000) as u16).encode();
        let statement = Statement::decode(&bytes).expect("what was encoded");
        let user = one.plan.user;
        for other in (0..running.len()).filter(|other| *other != number) {
            running[other].neighbourhood.hear(number as u16, user, &statement, now);
        }
        let one = &mut running[number];
        for liar in 0..setup.liars {
            one.neighbourhood.hear(100 + liar, u32::MAX, &lie(liar, setup.rates.len()), now);
        }
        let (told, _) = one.neighbourhood.tell(now);
        one.scheduler.neighbours_said(&told, now);
    }
}

/// Everything is congested, hangs and is full.
fn lie(number: u16, targets: usize) -> Statement {
    let lie = |target| TargetStatement {
        identity: identity(target),
        under_way: u16::MAX,
        wants: true,
        congested: true,
        hangs: true,
    };
    Statement {
        transfer: u64::from(number),
        period_millis: u16::MAX,
        targets: (0..targets).map(lie).collect(),
    }
}

fn start(number: usize, one: &mut Running, disks: &mut [Disk], now: u64) {
    if !one.runs(now) {
        return;
    }
    while one.scheduler.under_way() < one.plan.threads
        && let Some(picked) = one.scheduler.pick(now)
    {
        disks[picked.target.0 as usize].under_way.push((number, picked.ticket, f64::from(OBJECT)));
    }
}

fn next_event(running: &[Running], disks: &[Disk], now: u64) -> u64 {
    let beats = running.iter().filter(|one| one.ended.is_none() && one.plan.killed > now);
    let beats = beats.map(|one| one.next_beat.max(one.plan.starts).max(now + 1));
    let kills = running.iter().map(|one| one.plan.killed).filter(|killed| *killed > now);
    let disks = disks.iter().map(|disk| disk.next(now));
    beats.chain(kills).chain(disks).min().unwrap_or(u64::MAX)
}

fn wait(one: &mut Running, disks: &[Disk], number: usize, now: u64, longest: &mut [u64]) {
    for (target, disk) in disks.iter().enumerate() {
        let has = disk.under_way.iter().any(|(transfer, ..)| *transfer == number);
        if has || one.left[target] == 0 || !one.runs(now) {
            one.had_request[target] = now;
        }
        longest[target] = longest[target].max(now.saturating_sub(one.had_request[target]));
    }
}

#[cfg(feature = "planted-bugs")]
fn planted<B>(bug: Option<B>) -> haul_protocol::Planted<B> {
    haul_protocol::Planted(bug)
}

#[cfg(not(feature = "planted-bugs"))]
fn planted<B: PartialEq>(_: Option<B>) -> haul_protocol::Planted<B> {
    haul_protocol::Planted::default()
}
