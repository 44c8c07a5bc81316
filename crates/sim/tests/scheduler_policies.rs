//! What the policies are worth on devices that share their bandwidth among their requests: the time that a dataset takes,
//! against the work-conserving bound. Time is computed, so a figure is the same everywhere.

use haul_protocol::scheduler::{Class, Config, Lads, Policy, Request, Scheduler, TargetId, Ticket};
use haul_sim::bound::{Load, bound_nanos};
use haul_sim::random::Random;

const TARGETS: u32 = 11;
/// 11 of them are 400 MB/s.
const RATE: u64 = 36_363_636;
const OBJECT: u32 = 4 << 20;
/// A file has 64 MiB on four targets; 80 of them are 5 GiB.
const FILES: u32 = 80;
const OBJECTS_PER_FILE: u32 = 16;
const STRIPES: u32 = 4;
const SECOND: u64 = 1_000_000_000;

/// Requests under way, each with the bytes that are left.
#[derive(Default)]
struct Disk {
    /// Requests that it takes to get all of its rate.
    width: u32,
    rates: Vec<(u64, u64)>,
    under_way: Vec<(Ticket, f64)>,
}

impl Disk {
    fn share(&self, now: u64) -> f64 {
        let rate = self.rates.iter().rev().find(|(from, _)| *from <= now).map_or(0, |(_, rate)| *rate);
        rate as f64 / self.under_way.len().max(self.width as usize) as f64
    }

    /// When the first request ends, or the rate changes.
    fn next(&self, now: u64) -> u64 {
        let change = self.rates.iter().map(|(from, _)| *from).find(|from| *from > now).unwrap_or(u64::MAX);
        let least = self.under_way.iter().map(|(_, left)| *left).min_by(f64::total_cmp);
        let ends = least.map_or(u64::MAX, |left| now + (left / self.share(now) * 1e9).ceil() as u64);
        ends.min(change)
    }

    fn advance(&mut self, now: u64, until: u64) -> Vec<Ticket> {
        let moved = self.share(now) * (until - now) as f64 / 1e9;
        self.under_way.iter_mut().for_each(|(_, left)| *left -= moved);
        let (ended, rest) = self.under_way.drain(..).partition(|(_, left)| *left < 0.5);
        self.under_way = rest;
        let ended: Vec<(Ticket, f64)> = ended;
        ended.into_iter().map(|(ticket, _)| ticket).collect()
    }
}

/// The rates of all targets when `slow` of them have a tenth, others every `step` if that is not 0.
fn rates(slow: usize, step: u64) -> Vec<Vec<(u64, u64)>> {
    let mut random = Random::new(11);
    let mut rates = vec![Vec::new(); TARGETS as usize];
    for round in 0..if step == 0 { 1 } else { 400 } {
        let mut order: Vec<usize> = (0..rates.len()).collect();
        for index in 0..slow {
            let other = random.between(index as u64, order.len() as u64 - 1) as usize;
            order.swap(index, other);
        }
        for (index, target) in order.into_iter().enumerate() {
            rates[target].push((round * step, if index < slow { RATE / 10 } else { RATE }));
        }
    }
    rates
}

/// How much of the work-conserving bound a policy reaches.
fn share_of_bound(policy: Policy, threads: u32, width: u32, rates: &[Vec<(u64, u64)>]) -> f64 {
    let mut scheduler = Scheduler::new(Config::new(threads, 4 * threads, policy));
    let mut disks: Vec<Disk> =
        rates.iter().map(|rates| Disk { width, rates: rates.clone(), ..Disk::default() }).collect();
    let mut bytes = vec![0u64; disks.len()];
    for number in 0..FILES * OBJECTS_PER_FILE {
        let (file, object) = (number / OBJECTS_PER_FILE, number % OBJECTS_PER_FILE);
        let target = (file * STRIPES + object % STRIPES) % TARGETS;
        bytes[target as usize] += u64::from(OBJECT);
        let request =
            Request { item: (), target: TargetId(target), gate: None, class: Class::Object, bytes: OBJECT };
        scheduler.push(request, 0).unwrap();
    }
    let mut now = 0;
    while scheduler.queued() > 0 || scheduler.under_way() > 0 {
        while scheduler.under_way() < threads
            && let Some(picked) = scheduler.pick(now)
        {
            disks[picked.target.0 as usize].under_way.push((picked.ticket, f64::from(OBJECT)));
        }
        let next = disks.iter().map(|disk| disk.next(now)).min().unwrap();
        for disk in &mut disks {
            for ticket in disk.advance(now, next) {
                scheduler.finished(ticket, next, true);
            }
        }
        now = next;
    }
    let loads = rates.iter().zip(bytes).enumerate();
    let loads: Vec<Load> = loads
        .map(|(index, (rates, bytes))| Load { name: index.to_string(), bytes, rates: rates.clone() })
        .collect();
    bound_nanos(&loads).expect("every target gets there") as f64 / now as f64
}

/// How much of the bound is reached where one target has all objects, as fast as can be, and the other end's targets are the
/// slower ones: each serves what has arrived for it, one after the other.
fn share_of_bound_behind_gates(slots: u32, rates: &[Vec<(u64, u64)>]) -> f64 {
    const OBJECT: u32 = 1 << 20;
    const OBJECTS_PER_FILE: u32 = 64;
    const FILES: u32 = 88;
    let mut scheduler = Scheduler::new(Config::new(32, slots, Policy::Adaptive(Default::default())));
    let mut waiting = vec![std::collections::VecDeque::new(); rates.len()];
    // When the first one of each will be done.
    let mut ends = vec![u64::MAX; rates.len()];
    for number in 0..FILES * OBJECTS_PER_FILE {
        let (file, object) = (number / OBJECTS_PER_FILE, number % OBJECTS_PER_FILE);
        let there = TargetId((file * STRIPES + object % STRIPES) % TARGETS);
        let request = Request {
            item: there,
            target: TargetId(0),
            gate: Some(there),
            class: Class::Object,
            bytes: OBJECT,
        };
        scheduler.push(request, 0).unwrap();
    }
    let load = |index: usize, bytes| Load { name: index.to_string(), bytes, rates: rates[index].clone() };
    let served = |index: usize, now: u64| {
        let rate = rates[index].iter().rev().find(|(from, _)| *from <= now).map_or(0, |(_, rate)| *rate);
        now + u64::from(OBJECT) * SECOND / rate
    };
    let (mut now, mut under_way) = (0, 0);
    loop {
        while under_way < slots
            && let Some(picked) = scheduler.pick(now)
        {
            scheduler.finished(picked.ticket, now, true);
            let there = picked.item.0 as usize;
            waiting[there].push_back(picked.ticket);
            if waiting[there].len() == 1 {
                ends[there] = served(there, now);
            }
            under_way += 1;
        }
        let (there, end) = ends.iter().copied().enumerate().min_by_key(|(_, end)| *end).unwrap();
        if end == u64::MAX {
            break;
        }
        now = end;
        assert!(scheduler.gate_done(waiting[there].pop_front().unwrap()));
        under_way -= 1;
        ends[there] = if waiting[there].is_empty() { u64::MAX } else { served(there, now) };
    }
    assert_eq!(scheduler.queued(), 0);
    let bytes = u64::from(FILES * OBJECTS_PER_FILE) * u64::from(OBJECT) / rates.len() as u64;
    let loads: Vec<Load> = (0..rates.len()).map(|index| load(index, bytes)).collect();
    bound_nanos(&loads).expect("every target gets there") as f64 / now as f64
}

#[test]
fn every_target_of_the_other_end_has_something_to_do_where_that_is_the_slower_one() {
    for slots in [48, 64, 256] {
        for (slow, step) in [(0, 0), (1, 0), (1, 3 * SECOND)] {
            let share = share_of_bound_behind_gates(slots, &rates(slow, step));
            println!("{slots} slots, {slow} slow, step {step}: {share:.3}");
            assert!(share > 0.9, "{slots} slots, {slow} slow, step {step}: {share}");
        }
    }
}

#[test]
fn policies_reach_their_share_of_the_bound() {
    let policies = [
        ("file order", Policy::FileOrder),
        ("layout", Policy::Layout),
        ("lads", Policy::Lads(Lads::default())),
        ("adaptive", Policy::Adaptive(Default::default())),
    ];
    println!("{:40} {}", "share of the bound", policies.map(|(name, _)| format!("{name:>12}")).concat());
    let disturbed = [(0, 0), (1, 0), (2, 0), (4, 0), (1, 3 * SECOND), (2, 3 * SECOND), (4, 3 * SECOND)];
    let narrow = [8, 32].into_iter().flat_map(|threads| disturbed.map(|it| (threads, 1, it)));
    for (threads, width, (slow, step)) in narrow.chain([(160, 8, (0, 0)), (160, 8, (1, 3 * SECOND))]) {
        let rates = rates(slow, step);
        let shares = policies.map(|(_, policy)| share_of_bound(policy, threads, width, &rates));
        let name = format!(
            "{threads} threads, width {width}, {slow} slow{}",
            if step > 0 { ", moving" } else { "" }
        );
        println!("{name:40} {}", shares.map(|share| format!("{share:12.3}")).concat());
        let [file_order, layout, lads, adaptive] = shares;
        assert!(shares.iter().all(|share| *share <= 1.0), "{name}: better than the bound");
        match (threads, slow, step) {
            // With fewer threads than targets nobody reaches the bound.
            (8, ..) => {}
            // Depth has to be found: two rounds of a second of the twelve that this takes.
            (_, 0, _) if width > 1 => assert!(layout > 0.97 && lads > 0.97 && adaptive > 0.85, "{name}"),
            (_, 0, _) => assert!(layout > 0.97 && lads > 0.97 && adaptive > 0.97, "{name}"),
            // One request at a time is little for a wide target; but it is let out again.
            _ if width > 1 => assert!(adaptive > 0.8, "{name}: {adaptive}"),
            _ => assert!(lads > 0.9 && adaptive > 0.9, "{name}: lads {lads}, adaptive {adaptive}"),
        }
        if threads == 32 && (slow, step) == (1, 3 * SECOND) {
            assert!(adaptive > 1.5 * file_order, "{name}: {adaptive} and {file_order}");
        }
    }
}
