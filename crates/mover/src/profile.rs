//! Keeps account of where the time of this end goes, and takes what the other end says of its.

use std::time::{Duration, Instant};

use haul_buffers::Pool;
use haul_meter::Meter;
use haul_model::profile::{Buffers, Profile, Waiting};
use haul_wire::Role;
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::end::Profiles;

/// Of one session.
pub(crate) struct Profiler {
    pub(crate) meter: Meter,
    /// Since the first connection.
    began: Option<(Instant, HostTime)>,
    /// Of this process, from before: files may be hashed while the other end is reached.
    processor_nanos_before: u64,
    allowed: Allowed,
    waited_nanos: [u64; Waiting::COUNT],
    waiting: Option<Waiting>,
    since: Instant,
    /// For how long payloads had been arriving then.
    arriving_nanos: u64,
    peer: Option<Profile>,
    /// Without those that are in use.
    buffers: Buffers,
    round_trip_nanos: Option<u64>,
    one_process: bool,
    stood_still: Duration,
}

impl Profiler {
    pub(crate) fn new(meter: Meter, pool: &Pool) -> Self {
        let slot_bytes = (pool.bytes() / (pool.count() as usize).max(1)) as u32;
        Profiler {
            meter,
            began: None,
            processor_nanos_before: 0,
            allowed: Allowed::now(),
            waited_nanos: [0; Waiting::COUNT],
            waiting: None,
            since: Instant::now(),
            arriving_nanos: 0,
            peer: None,
            buffers: Buffers { slots_used: 0, slots: pool.count(), slot_bytes },
            round_trip_nanos: None,
            one_process: false,
            stood_still: Duration::ZERO,
        }
    }

    /// The first connection stands, or another one; to an end in the same process, or to one elsewhere.
    pub(crate) fn connected(&mut self, one_process: bool, round_trip: Option<Duration>) {
        self.one_process = one_process;
        self.round_trip_nanos = round_trip.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        if self.began.is_none() {
            self.began = Some((Instant::now(), HostTime::now(&self.allowed)));
            self.processor_nanos_before = process_nanos();
        }
    }

    /// From now on the master waits for this.
    pub(crate) fn waits(&mut self, waiting: Option<Waiting>) {
        self.waiting = waiting;
    }

    /// The time until now was spent waiting for what it waited for.
    pub(crate) fn passed(&mut self, now: Instant) {
        for (waiting, nanos) in self.waited_until(now).into_iter().flatten() {
            self.waited_nanos[waiting as usize] += nanos;
        }
        self.since = now;
        self.arriving_nanos = self.meter.arriving_nanos(now);
    }

    /// For so long until now this process was stopped: it waited for nothing.
    pub(crate) fn stood_still(&mut self, time: Duration) {
        self.stood_still += time;
        self.since += time;
        if let Some((began, _)) = &mut self.began {
            *began += time;
        }
    }

    /// What it waited for since it last looked. Masters hear of payloads that are whole; threads know of those that are not.
    fn waited_until(&self, now: Instant) -> [Option<(Waiting, u64)>; 2] {
        let Some(waiting) = self.waiting else { return [None, None] };
        let all = nanos(self.since, now);
        let arriving = match waiting {
            Waiting::Payload | Waiting::Next => {
                self.meter.arriving_nanos(now).saturating_sub(self.arriving_nanos).min(all)
            }
            _ => 0,
        };
        [Some((waiting, all - arriving)), Some((Waiting::Arriving, arriving))]
    }

    /// The other end has told its own.
    pub(crate) fn hear(&mut self, peer: Profile) {
        self.peer = Some(peer);
    }

    /// Of this end, until now, with what it still waits for; so many slots were in use at a time.
    pub(crate) fn own(&self, slots_used: u32) -> Option<Profile> {
        let (began, host) = self.began?;
        let now = Instant::now();
        let mut profile = Profile {
            wall_nanos: nanos(began, now),
            processor_nanos: process_nanos().saturating_sub(self.processor_nanos_before),
            processors: self.allowed.count,
            host_busy_permille: HostTime::now(&self.allowed).busy_permille_since(host),
            buffers: Buffers { slots_used, ..self.buffers },
            round_trip_nanos: self.round_trip_nanos,
            ..Profile::default()
        };
        self.meter.read(&mut profile);
        for waiting in Waiting::ALL {
            *profile.waited_nanos_mut(*waiting) = self.waited_nanos[*waiting as usize];
        }
        for (waiting, nanos) in self.waited_until(now).into_iter().flatten() {
            *profile.waited_nanos_mut(waiting) += nanos;
        }
        Some(profile)
    }

    /// Of both.
    pub(crate) fn both(&self, role: Role, slots_used: u32) -> Profiles {
        let (own, peer) = (self.own(slots_used), self.peer);
        let (source, sink) = match role {
            Role::Source => (own, peer),
            Role::Sink => (peer, own),
        };
        Profiles { source, sink, one_process: self.one_process, stood_still: self.stood_still }
    }
}

fn nanos(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}

/// Of this process, since it was started.
fn process_nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

/// The processors that this process may use, before its threads are given some of them.
struct Allowed {
    count: u32,
    /// None where that cannot be told: all.
    cpus: Option<CpuSet>,
}

impl Allowed {
    fn now() -> Allowed {
        let count = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        Allowed { count, cpus: sched_getaffinity(None).ok() }
    }

    fn has(&self, cpu: usize) -> bool {
        self.cpus.as_ref().is_none_or(|cpus| cpu < CpuSet::MAX_CPU && cpus.is_set(cpu))
    }
}

/// Time of these processors, in ticks of the host.
#[derive(Clone, Copy, Default)]
struct HostTime {
    all: u64,
    idle: u64,
}

impl HostTime {
    /// Nothing where `/proc` does not tell.
    fn now(allowed: &Allowed) -> HostTime {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        HostTime::of(&text, |cpu| allowed.has(cpu))
    }

    /// From the lines of `/proc/stat` of these processors (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal;
    /// guests are in user.
    fn of(text: &str, is_allowed: impl Fn(usize) -> bool) -> HostTime {
        let mut time = HostTime::default();
        for line in text.lines() {
            let Some((cpu, fields)) = line.strip_prefix("cpu").and_then(|rest| rest.split_once(' ')) else {
                continue;
            };
            if !cpu.parse().is_ok_and(&is_allowed) {
                continue;
            }
            let ticks: Vec<u64> =
                fields.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
            if let [_, _, _, idle, ..] = ticks[..] {
                time.all += ticks.iter().sum::<u64>();
                time.idle += idle + ticks.get(4).unwrap_or(&0);
            }
        }
        time
    }

    fn busy_permille_since(self, before: HostTime) -> u16 {
        let (all, idle) = (self.all.saturating_sub(before.all), self.idle.saturating_sub(before.idle));
        let busy = all.saturating_sub(idle);
        (busy * 1000).checked_div(all).unwrap_or(0) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_busy_the_host_was_is_what_was_not_idle() {
        let of = |text| HostTime::of(text, |cpu| cpu < 2);
        let before = of(
            "cpu  900 0 50 1000 10 0 0 0 0 0\ncpu0 50 0 50 500 0 0 0 0 0 0\ncpu1 50 0 0 500 10 0 0 0 0 0\ncpu2 9 9 9 9",
        );
        let after = of(
            "cpu  999 0 70 1010 20 0 0 0 7 7\ncpu0 100 0 60 505 10 0 0 0 7 7\ncpu1 60 0 10 505 10 0 0 0\ncpu2 90 9 9 90\nintr 1",
        );
        assert_eq!(after.busy_permille_since(before), 800);
        assert_eq!(before.busy_permille_since(after), 0, "clocks that run backwards are no trouble");
        assert_eq!((of("").all, of("cpu0 1 2 3\n").all), (0, 0));
    }

    #[test]
    fn processor_time_is_that_of_the_run() {
        let mut profiler = Profiler::new(Meter::default(), &Pool::new(4, 4096).unwrap());
        let before = process_nanos();
        while process_nanos() < before + 100_000_000 {
            std::hint::spin_loop();
        }
        let all = process_nanos();
        profiler.connected(true, None);
        let spent = profiler.own(0).unwrap().processor_nanos;
        assert!(spent <= process_nanos() - all, "{spent} of {all}");
    }

    #[test]
    fn for_as_long_as_a_process_was_stopped_it_waited_for_nothing() {
        let mut profiler = Profiler::new(Meter::default(), &Pool::new(4, 4096).unwrap());
        profiler.connected(true, None);
        profiler.waits(Some(Waiting::Next));
        let pause = Duration::from_millis(30);
        std::thread::sleep(pause);
        profiler.stood_still(pause);
        profiler.passed(Instant::now());
        assert!(profiler.waited_nanos[Waiting::Next as usize] < pause.as_nanos() as u64);
        let profiles = profiler.both(Role::Source, 0);
        assert_eq!(profiles.mostly_stood_still(), Some(pause));
        for (times, told) in [(3, Some(pause)), (11, None)] {
            let ran = Profile { wall_nanos: pause.as_nanos() as u64 * times, ..Profile::default() };
            let profiles = Profiles { source: Some(ran), ..profiles };
            assert_eq!((profiles.mostly_stood_still(), profiles.stood_still_for_long()), (None, told));
        }
        // It is measured by all of the time, of which who was stopped counts only what it ran.
        let wall = |times: u64| {
            Some(Profile { wall_nanos: pause.as_nanos() as u64 * times / 10, ..Profile::default() })
        };
        for (source, sink, mostly) in
            [(15, None, false), (9, None, true), (15, Some(25), false), (9, Some(19), true)]
        {
            let profiles = Profiles { source: wall(source), sink: sink.and_then(wall), ..profiles };
            assert_eq!(profiles.mostly_stood_still().is_some(), mostly, "{source} {sink:?}");
        }
    }

    #[test]
    fn a_sink_that_waits_for_payloads_waits_for_those_that_arrive_or_for_others_to_begin() {
        let meter = Meter::default();
        let mut profiler = Profiler::new(meter.clone(), &Pool::new(4, 4096).unwrap());
        let _joined = meter.join();
        let told = |profiler: &Profiler| {
            [Waiting::Payload, Waiting::Arriving].map(|waiting| profiler.waited_nanos[waiting as usize])
        };
        let arrive = |profiler: &mut Profiler| {
            let arriving = haul_meter::arriving();
            let began = Instant::now();
            while began.elapsed().as_micros() < 100 {}
            drop(arriving);
            profiler.passed(Instant::now());
        };
        profiler.waits(Some(Waiting::Payload));
        arrive(&mut profiler);
        let [silent, arriving] = told(&profiler);
        assert!(arriving >= 100_000, "{arriving}");
        profiler.passed(profiler.since + Duration::from_secs(1));
        assert_eq!(told(&profiler), [silent + 1_000_000_000, arriving], "nothing came");
        profiler.waits(Some(Waiting::Write));
        arrive(&mut profiler);
        assert_eq!(told(&profiler)[1], arriving, "it waited for something else");
    }

    #[test]
    fn time_belongs_to_what_was_waited_for_when_it_passed() {
        let mut profiler = Profiler::new(Meter::default(), &Pool::new(4, 4096).unwrap());
        let start = profiler.since;
        let at = |millis| start + std::time::Duration::from_millis(millis);
        profiler.passed(at(5));
        profiler.waits(Some(Waiting::Read));
        profiler.passed(at(25));
        profiler.waits(Some(Waiting::Send));
        profiler.passed(at(26));
        profiler.passed(at(29));
        let mut expected = [0; Waiting::COUNT];
        (expected[Waiting::Read as usize], expected[Waiting::Send as usize]) = (20_000_000, 4_000_000);
        assert_eq!(profiler.waited_nanos, expected);
        assert!(profiler.own(0).is_none(), "no connection ever stood");
        profiler.connected(false, Some(Duration::from_micros(7)));
        let own = profiler.own(3).unwrap();
        assert_eq!(own.buffers, Buffers { slots_used: 3, slots: 4, slot_bytes: 4096 });
        assert_eq!(own.round_trip_nanos, Some(7000));
        assert_eq!(own.waited_nanos(Waiting::Read), 20_000_000);
        // It is told of while it is waited for.
        profiler.waits(Some(Waiting::Settle));
        profiler.since = start.checked_sub(Duration::from_secs(1)).unwrap();
        assert!(profiler.own(3).unwrap().waited_nanos(Waiting::Settle) >= 1_000_000_000);
        // Another connection of the same run.
        profiler.began =
            profiler.began.map(|(began, host)| (began.checked_sub(Duration::from_secs(9)).unwrap(), host));
        profiler.connected(false, None);
        assert!(profiler.own(3).unwrap().wall_nanos >= 9_000_000_000);
    }
}
