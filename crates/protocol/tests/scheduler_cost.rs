//! What a decision costs: under a microsecond an object (pick, end of the read, end at the other end) with 2,000 targets
//! and 10,000,000 queued requests, gates that close included; and less than another to queue it. `cargo test --profile checked -p haul-protocol --test scheduler_cost -- --nocapture` prints figures.

use std::collections::VecDeque;

use haul_protocol::scheduler::{Class, Config, Policy, Request, Scheduler, TargetId, Ticket};
use rustix::time::{ClockId, clock_gettime};

const TARGETS: u32 = 2_000;
const QUEUED: u32 = 10_000_000;
/// Objects that are timed together, and how often: the quickest batches are those that nothing disturbed. Where a busy host
/// gives a virtual machine half a processor and less of its memory, they may be long in coming.
const BATCH: u32 = 5_000;
const BATCHES: u32 = 200;
const BATCHES_MAX: u32 = 10 * BATCHES;
/// So many must be quick: one alone may have met nothing of what costs time.
const QUICK: usize = BATCHES as usize / 20;
const NANOS_MAX: f64 = 1_000.0;

/// Nanoseconds of processor time for each of a batch: a busy machine takes time away, and hardly any of this.
fn timed(work: impl FnOnce()) -> f64 {
    let nanos = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let begun = nanos();
    work();
    (nanos() - begun) / f64::from(BATCH)
}

/// Which gate the request has, and how many may be under way behind each.
struct Gates {
    of: fn(u32) -> Option<TargetId>,
    units: u32,
}

struct Machine {
    scheduler: Scheduler<u64>,
    gates: Gates,
    threads: usize,
    reading: VecDeque<Ticket>,
    writing: VecDeque<Ticket>,
    now: u64,
    pushed: u32,
    refused: u64,
}

impl Machine {
    fn new(policy: Policy, gates: Gates, threads: u32) -> Machine {
        let mut scheduler = Scheduler::new(Config::new(threads, 4 * threads, policy));
        (0..TARGETS).for_each(|gate| scheduler.set_allowance(TargetId(gate), gates.units).unwrap());
        let (reading, writing) = (VecDeque::new(), VecDeque::new());
        let threads = threads as usize;
        Machine { scheduler, gates, threads, reading, writing, now: 0, pushed: 0, refused: 0 }
    }

    fn push(&mut self) {
        let number = self.pushed;
        self.pushed = self.pushed.wrapping_add(1);
        let target = TargetId(number % TARGETS);
        let (gate, class) = ((self.gates.of)(number), Class::Object);
        let request = Request { item: u64::from(number), target, gate, class, bytes: 4 << 20 };
        self.scheduler.push(request, self.now).unwrap();
    }

    /// Moves so many objects: each is picked, read and written.
    fn step(&mut self, objects: u32) {
        for _ in 0..objects {
            self.now += 1_000;
            while self.reading.len() < self.threads {
                match self.scheduler.pick(self.now) {
                    Some(picked) => self.reading.push_back(picked.ticket),
                    None => {
                        self.refused += 1;
                        break;
                    }
                }
            }
            if let Some(ticket) = self.reading.pop_front() {
                self.scheduler.finished(ticket, self.now, true);
                self.writing.push_back(ticket);
            }
            if self.writing.len() > 2 * self.threads || self.reading.is_empty() {
                let ticket = self.writing.pop_front().expect("something is under way");
                self.scheduler.gate_done(ticket);
            }
        }
    }
}

fn cost(name: &str, policy: Policy, gates: Gates, threads: u32) {
    let closes = gates.units < u32::MAX;
    let mut machine = Machine::new(policy, gates, threads);
    (0..QUEUED).for_each(|_| machine.push());
    let (mut moves, mut pushes) = (Vec::new(), Vec::new());
    let was_quick = |times: &[f64]| times.iter().filter(|time| **time < NANOS_MAX).count() >= QUICK;
    while moves.len() < BATCHES as usize
        || moves.len() < BATCHES_MAX as usize && !(was_quick(&moves) && was_quick(&pushes))
    {
        moves.push(timed(|| machine.step(BATCH)));
        pushes.push(timed(|| (0..BATCH).for_each(|_| machine.push())));
    }
    let [(quick, median), (push_quick, push_median)] = [&mut moves, &mut pushes].map(|times| {
        times.sort_by(f64::total_cmp);
        (times[QUICK - 1], times[times.len() / 2])
    });
    let refused = machine.refused;
    println!(
        "{name:24} pick to done {median:4.0} ns (quick {quick:.0}), push {push_median:4.0} ns (quick {push_quick:.0}), \
         {refused} picks of nothing"
    );
    assert!(machine.scheduler.queued() >= u64::from(QUEUED) - 4 * u64::from(threads));
    assert!(quick < NANOS_MAX, "{name}: {quick} ns for an object");
    assert!(push_quick < NANOS_MAX, "{name}: {push_quick} ns to queue an object");
    if closes {
        assert!(refused > u64::from(BATCH * BATCHES / 2), "{name}: gates do not close");
    }
}

#[test]
fn a_decision_costs_less_than_a_microsecond() {
    let adaptive = || Policy::Adaptive(Default::default());
    cost("no gates", adaptive(), Gates { of: |_| None, units: u32::MAX }, 256);
    cost("lads, no gates", Policy::Lads(Default::default()), Gates { of: |_| None, units: u32::MAX }, 256);
    // Files are striped alike at both ends.
    let alike = |number| Some(TargetId(number * 7 % TARGETS));
    cost("a gate for each target", adaptive(), Gates { of: alike, units: u32::MAX }, 256);
    // Each target has objects for each of 100 targets of the other end, which are what limits.
    let mixed = |number: u32| Some(TargetId((number / TARGETS) % 100));
    cost("100 gates that close", adaptive(), Gates { of: mixed, units: 2 }, 256);
    // And for some of 2,000, few of which are open at a time.
    let many = |number: u32| Some(TargetId((number % TARGETS + 61 * (number / TARGETS % 40)) % TARGETS));
    cost("2000 gates that close", adaptive(), Gates { of: many, units: 1 }, 3_000);
}
