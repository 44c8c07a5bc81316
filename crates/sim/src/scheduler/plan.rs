//! What a history of the scheduler will be like: drawn once from its seed, before anything happens.

use haul_protocol::scheduler::{Adaptive, Class, Config, Lads, Policy, TargetId, Told};

use crate::random::Random;

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1000 * MS;

/// A target of this end.
#[derive(Clone, Default)]
pub(super) struct Device {
    /// Nanoseconds for a MiB.
    pub pace: u64,
    /// Requests that it serves at once as fast as one.
    pub width: u32,
    /// From, until, and how many times slower.
    pub slow: Vec<(u64, u64, u64)>,
    /// From, until: what would end in between ends after it. `u64::MAX`: never.
    pub stalls: Vec<(u64, u64)>,
    /// Permille of requests that fail.
    pub errors: u32,
}

/// A target of the other end.
#[derive(Clone)]
pub(super) struct Far {
    /// Nanoseconds for a request.
    pub pace: u64,
    /// When its allowance changes, and to what. The last one lets something through.
    pub allowances: Vec<(u64, u32)>,
    /// When it stops for ever, and the other end says so.
    pub fails: Option<u64>,
}

/// One request, and when it comes.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub at: u64,
    pub target: u32,
    pub gate: Option<u32>,
    pub class: Class,
    pub bytes: u32,
}

pub(super) struct Plan {
    pub config: Config,
    pub devices: Vec<Device>,
    pub fars: Vec<Far>,
    pub arrivals: Vec<Arrival>,
    /// What neighbours say, and when; in the end they say nothing.
    pub neighbours: Vec<(u64, Vec<Told>)>,
    /// How often a request that failed, was written off or handed back is pushed again.
    pub retries: u8,
    /// How much longer than usual a request may take, in percent.
    pub jitter: u64,
    /// The caller hears of the end of a request twice, in permille.
    pub repeats: u32,
    /// The caller does not do what was picked, in permille.
    pub cancels: u32,
    /// Requests are about so many files, by turns.
    pub files: u32,
    /// On so many of them every request hangs.
    pub locked: u32,
}

impl Plan {
    pub fn draw(random: &mut Random) -> Plan {
        let threads = random.scale(1, 48) as u32;
        let slots = if random.chance(800) { threads * 4 } else { random.between(1, 48) as u32 };
        let alone = random.chance(80);
        let targets = if alone { 1 } else { random.scale(2, 31) as u32 };
        let gates = if random.coin() { random.scale(1, 15) as u32 } else { 0 };
        let policy = policy(random);
        let jitter = *random.pick(&[0, 20, 100]);
        let pace = random.scale(MS / 10, 20 * MS);
        let span = random.scale(SECOND / 4, 16 * SECOND);
        let mut devices: Vec<Device> = (0..targets).map(|_| device(pace, random)).collect();
        disturb(&mut devices, span, random);
        let fars = (0..gates).map(|_| far(span, random)).collect();
        let arrivals = arrivals(targets, gates, span, random);
        // No healthy request takes as long as the bound: its depth is at most the threads.
        let most = |device: &Device| device.pace * 10 * 4 * u64::from(threads) * (100 + jitter) / 100;
        let longest = devices.iter().map(most).max().unwrap_or(0);
        let patience = random.scale(SECOND, 30 * SECOND).max(2 * longest);
        let derived = longest < 30 * SECOND && random.chance(300);
        let mut config = Config::new(threads, slots, policy);
        config.patience_nanos = (!derived).then_some(patience);
        config.archive = random.chance(300).then(|| random.below(u64::from(targets)) as u32);
        config.aging_nanos = random.chance(700).then(|| random.scale(20 * MS, 2 * SECOND));
        config.lost_per_target = random.between(1, 4) as u32;
        config.lost_in_all = match random.chance(150) {
            true => random.below(4) as u32,
            false => 200,
        };
        // In the end everything is brought back.
        let archive =
            config.archive.filter(|_| derived).and_then(|archive| devices.get_mut(archive as usize));
        for (from, until) in archive.into_iter().flat_map(|archive| &mut archive.stalls) {
            *until = (*until).min(*from + 1000 * SECOND);
        }
        let retries = random.below(3) as u8;
        Plan {
            config,
            devices,
            fars,
            arrivals,
            neighbours: Vec::new(),
            retries,
            jitter,
            repeats: if random.coin() { 0 } else { 100 },
            cancels: if random.chance(300) { 100 } else { 0 },
            files: u32::MAX,
            locked: 0,
        }
    }

    /// Draws how many files the requests are about; in half of all histories each is about one of its own.
    pub fn draw_files(&mut self, random: &mut Random) {
        if random.coin() {
            self.files = random.scale(1, 200) as u32;
            self.locked = if random.coin() { random.between(1, 4) as u32 } else { 0 };
        }
    }

    /// Is it about a file on which every request hangs? What an archive has is waited for for ever.
    pub fn is_locked(&self, id: u32) -> bool {
        let is_awaited = || {
            let target = self.arrivals[id as usize].target;
            self.config.patience_nanos.is_none() && self.config.archive == Some(target)
        };
        id % self.files < self.locked && !is_awaited()
    }

    /// Draws what neighbours say, whether it makes sense or not; in half of all histories there are none.
    pub fn draw_neighbours(&mut self, random: &mut Random) {
        if random.coin() {
            return;
        }
        let span = self.arrivals.last().map_or(0, |last| last.at) + random.scale(SECOND / 4, 8 * SECOND);
        let mut at = random.below(span);
        while self.neighbours.len() < 40 && at < 2 * span {
            let targets = 0..self.devices.len() as u32;
            let named: Vec<u32> = targets.filter(|_| random.chance(600)).collect();
            let told = named.into_iter().map(|target| told(target, random)).collect();
            self.neighbours.push((at, told));
            at += random.scale(span / 32 + 1, span);
        }
        self.neighbours.push((at, Vec::new()));
    }

    /// Will this target never answer from some time on, or not for so long that requests are written off?
    pub fn is_sick(&self, target: u32) -> bool {
        let is_locked =
            |(id, arrival): (usize, &Arrival)| arrival.target == target && self.is_locked(id as u32);
        !self.devices[target as usize].stalls.is_empty()
            || self.locked > 0 && self.arrivals.iter().enumerate().any(is_locked)
    }
}

fn told(target: u32, random: &mut Random) -> Told {
    let parts = random.scale(1, 64) as u32;
    let under_way = if random.chance(100) { u32::MAX } else { random.below(64) as u32 };
    let place = random.below(u64::from(parts)) as u32;
    Told { target: TargetId(target), parts, place, under_way, congested: random.chance(200) }
}

fn policy(random: &mut Random) -> Policy {
    let threshold_nanos = random.chance(200).then(|| random.scale(MS, 100 * MS));
    let window = random.between(1, 8) as u8;
    match random.below(10) {
        0 => Policy::FileOrder,
        1 | 2 => Policy::Layout,
        3..=5 => {
            let skip = random.coin().then(|| *random.pick(&[0, 1, 7, 100, u32::MAX]));
            Policy::Lads(Lads { threshold_nanos, window, skip })
        }
        6 => Policy::Adaptive(Adaptive { threshold_nanos, window }),
        _ => Policy::Adaptive(Adaptive::default()),
    }
}

fn device(pace: u64, random: &mut Random) -> Device {
    let width = if random.coin() { 1 } else { random.scale(1, 16) as u32 };
    let errors = if random.chance(150) { random.scale(1, 500) as u32 } else { 0 };
    Device { pace: pace * random.between(80, 120) / 100, width, errors, ..Device::default() }
}

/// Congestion that stays, comes and goes or moves; stalls; hangs.
fn disturb(devices: &mut [Device], span: u64, random: &mut Random) {
    let targets = devices.len() as u64;
    match random.below(4) {
        0 => {}
        1 => {
            for _ in 0..random.between(1, targets.div_ceil(3)) {
                devices[random.below(targets) as usize].slow.push((0, u64::MAX, 10));
            }
        }
        2 => {
            let step = random.scale(span / 32 + 1, span);
            let mut from = 0;
            while from < 2 * span {
                devices[random.below(targets) as usize].slow.push((from, from + step, 10));
                from += step;
            }
        }
        _ => {
            for _ in 0..random.between(1, 6) {
                let from = random.below(span);
                let until = from + random.scale(span / 32 + 1, span);
                devices[random.below(targets) as usize].slow.push((from, until, random.between(2, 10)));
            }
        }
    }
    if random.chance(500) {
        for _ in 0..random.between(1, targets.div_ceil(2)) {
            let from = random.below(span);
            let until = if random.chance(600) { u64::MAX } else { from + random.scale(SECOND, 128 * SECOND) };
            devices[random.below(targets) as usize].stalls.push((from, until));
        }
    }
}

fn far(span: u64, random: &mut Random) -> Far {
    let mut allowances = Vec::new();
    if random.chance(800) {
        let mut at = 0;
        while allowances.len() < 12 && at < 2 * span {
            allowances.push((at, random.below(5) as u32));
            at += random.scale(span / 16 + 1, span);
        }
        allowances.push((at, random.between(1, 4) as u32));
    }
    let fails = random.chance(60).then(|| random.below(span));
    Far { pace: random.scale(MS / 10, 50 * MS), allowances, fails }
}

fn arrivals(targets: u32, gates: u32, span: u64, random: &mut Random) -> Vec<Arrival> {
    let count = random.scale(8, 400);
    let at_once = random.chance(600);
    // Requests go to all targets, to each for a while, or mostly to one.
    let spread = random.below(3);
    let favourite = random.below(u64::from(targets)) as u32;
    let names = random.chance(200);
    let large = random.coin();
    let mut arrivals: Vec<Arrival> = (0..count)
        .map(|index| {
            let target = match spread {
                0 => random.below(u64::from(targets)) as u32,
                1 => (index / 8 % u64::from(targets)) as u32,
                _ if random.chance(600) => favourite,
                _ => random.below(u64::from(targets)) as u32,
            };
            let class = match random.below(20) {
                0 => Class::Urgent,
                1..=5 => Class::Bundle,
                6 if names => Class::Name,
                _ => Class::Object,
            };
            let bytes = match class {
                Class::Object if large => 4 << 20,
                Class::Object => random.scale(1, 4 << 20) as u32,
                Class::Bundle => random.scale(64 << 10, 1 << 20) as u32,
                Class::Name | Class::Aside | Class::Urgent => 0,
            };
            let gated = gates > 0 && matches!(class, Class::Object | Class::Bundle) && !random.chance(50);
            let gate = gated.then(|| random.below(u64::from(gates)) as u32);
            let at = if at_once || random.coin() { 0 } else { random.below(span) };
            Arrival { at, target, gate, class, bytes }
        })
        .collect();
    arrivals.sort_by_key(|arrival| arrival.at);
    arrivals
}
