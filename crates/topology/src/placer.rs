//! Places the threads of a transfer while it runs.
//!
//! Threads take a seat when they start ([`Placer::seat`]) and leave it when they end. Once it is known what the transfer goes
//! through ([`Placer::begin`]), a thread of its own looks at the machine, asks the service if there is one, plans, and puts
//! those that are there on their CPUs; who starts later is put there at once. Nobody waits for it.
//!
//! What must stay true: whatever the machine, the service and the kernel say, a transfer is not held up and does not fail.
//! A service that hangs or talks nonsense is told of once and planned without. CPUs are the service's again when the last
//! handle is dropped, or the process ends.

use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{Pid, gettid};
use rustix::time::{ClockId, clock_gettime};

use crate::pin::pin_thread;
use crate::service::client::Client;
use crate::service::message::DEVICES_MAX;
use crate::{
    Advice, Asking, Counters, Cpus, Load, Machine, Map, Placement, Plan, Reached, ThreadKind, Threads,
    Transfer, of_path, of_peer,
};

/// A service that does not answer sooner is none.
pub const PATIENCE: Duration = Duration::from_millis(100);
/// How long the load is looked at, at least.
const LOOK: Duration = Duration::from_millis(100);

/// SOURCEs that are looked at: more of them are on the same devices.
const PATHS_MAX: usize = 64;

/// Puts threads on CPUs.
pub trait Pins: Send + Sync {
    /// Puts a thread of this process there. An error leaves it where it was.
    fn pin(&self, thread: Pid, cpus: &Cpus) -> io::Result<()>;
}

/// By the kernel.
struct Kernel;

impl Pins for Kernel {
    fn pin(&self, thread: Pid, cpus: &Cpus) -> io::Result<()> {
        pin_thread(Some(thread), cpus)
    }
}

/// What is to be placed, and with what.
pub struct Wishes {
    /// What the machine is read from.
    pub root: PathBuf,
    /// What the user knows better.
    pub map: Map,
    /// Where contents are read from or written to on this host.
    pub storage: Vec<PathBuf>,
    /// How many of each kind.
    pub threads: Threads,
    /// Where the service may be.
    pub sockets: Vec<PathBuf>,
    /// How long it may take to answer.
    pub patience: Duration,
    /// Carries it out.
    pub pins: Box<dyn Pins>,
}

impl Wishes {
    /// On this host, with the service of this user.
    pub fn here(map: Map, storage: Vec<PathBuf>, threads: Threads) -> Wishes {
        let sockets = crate::service::usual_sockets();
        Wishes { root: host(), map, storage, threads, sockets, patience: PATIENCE, pins: pins() }
    }
}

/// Beneath what this host's `/sys` and `/proc` are.
#[cfg(not(feature = "faults"))]
pub fn host() -> PathBuf {
    PathBuf::from("/")
}

/// For tests: with `HAUL_TEST_MACHINE=DIRECTORY` it is the machine that was copied there.
#[cfg(feature = "faults")]
pub fn host() -> PathBuf {
    std::env::var_os("HAUL_TEST_MACHINE").map_or_else(|| PathBuf::from("/"), PathBuf::from)
}

#[cfg(not(feature = "faults"))]
fn pins() -> Box<dyn Pins> {
    Box::new(Kernel)
}

/// For tests: with `HAUL_TEST_PINS=FILE` nothing is pinned, but a line with the thread's name and its CPUs is added there.
#[cfg(feature = "faults")]
fn pins() -> Box<dyn Pins> {
    struct Recorder(PathBuf);
    impl Pins for Recorder {
        fn pin(&self, thread: Pid, cpus: &Cpus) -> io::Result<()> {
            use std::io::Write;
            let comm = format!("/proc/self/task/{}/comm", thread.as_raw_nonzero());
            let name = std::fs::read_to_string(comm)?;
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&self.0)?;
            file.write_all(format!("{} {cpus}\n", name.trim()).as_bytes())
        }
    }
    match std::env::var_os("HAUL_TEST_PINS") {
        Some(file) => Box::new(Recorder(file.into())),
        None => Box::new(Kernel),
    }
}

/// What came of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Told {
    /// What was planned.
    pub plan: Plan,
    /// The service has leased it.
    pub leased: bool,
    /// How the devices were found, in words.
    pub reached: Vec<String>,
    /// Threads that were put on their CPUs, of those that were there.
    pub pinned: usize,
    /// What did not work, in words; it was done without.
    pub trouble: Option<String>,
}

/// Is told what came of it, on a thread of its own.
pub type Tell = Box<dyn FnOnce(&Told) + Send>;

/// Gives threads their seats. Copies are handles of the same; the default gives none.
#[derive(Clone, Default)]
pub struct Placer {
    shared: Option<Arc<Shared>>,
    waiting: &'static [ThreadKind],
}

struct Shared {
    state: Mutex<State>,
    pins: Box<dyn Pins>,
}

struct State {
    /// Until it begins.
    plan: Option<(Planning, Tell)>,
    placed: Option<Placed>,
    /// Those that are there, by number, with their seats.
    threads: BTreeMap<i32, (ThreadKind, u16)>,
    /// Keeps the lease.
    _service: Option<Client>,
}

/// What is needed to plan.
struct Planning {
    root: PathBuf,
    map: Map,
    storage: Vec<PathBuf>,
    threads: Threads,
    sockets: Vec<PathBuf>,
    patience: Duration,
    since: Moment,
}

struct Placed {
    placement: Placement,
    machine: Machine,
}

/// The load that a service knows is of so long.
const LOAD_OF: Duration = Duration::from_secs(1);

/// What the machine and this process had done at some time.
struct Moment {
    at: Instant,
    counters: Counters,
    own: Duration,
}

impl Moment {
    fn now(root: &std::path::Path) -> Moment {
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let own = Duration::new(own.tv_sec.unsigned_abs(), own.tv_nsec.unsigned_abs() as u32);
        Moment { at: Instant::now(), counters: Counters::read(root), own }
    }

    /// What others did between two of them.
    fn load(&self, now: &Moment) -> Load {
        Load::between(&self.counters, &now.counters).without(self.own(now, Duration::ZERO))
    }

    /// For how many CPUs' whole time this process was busy, of so much time at least.
    fn own(&self, now: &Moment, least: Duration) -> f64 {
        let seconds = now.at.duration_since(self.at).max(least).as_secs_f64().max(f64::EPSILON);
        now.own.saturating_sub(self.own).as_secs_f64() / seconds
    }
}

/// The seat of the calling thread, until dropped.
pub struct Seated {
    shared: Option<Arc<Shared>>,
    /// It is the thread's own.
    _not_send: PhantomData<*const ()>,
}

impl Placer {
    /// For a transfer like this, which has not begun.
    pub fn new(wishes: Wishes, tell: Tell) -> Placer {
        let (planning, pins) = Planning::of(wishes);
        let state =
            State { plan: Some((planning, tell)), placed: None, threads: BTreeMap::new(), _service: None };
        Placer { shared: Some(Arc::new(Shared { state: Mutex::new(state), pins })), waiting: &[] }
    }

    /// A handle for an end whose threads of these kinds mostly wait.
    pub fn with_waiting(&self, kinds: &'static [ThreadKind]) -> Placer {
        Placer { shared: self.shared.clone(), waiting: kinds }
    }

    /// A seat for the calling thread: the first of its kind that is free.
    pub fn seat(&self, kind: ThreadKind) -> Seated {
        let kind = match kind {
            kind if !self.waiting.contains(&kind) => kind,
            ThreadKind::CommIn | ThreadKind::CommOut => ThreadKind::Control,
            _ => ThreadKind::Errand,
        };
        if let Some(shared) = &self.shared {
            let thread = gettid();
            let mut state = lock(&shared.state);
            let of_kind = |index: &u16| !state.threads.values().any(|seat| *seat == (kind, *index));
            let index = (0..u16::MAX).find(of_kind).unwrap_or(u16::MAX);
            state.threads.insert(thread.as_raw_nonzero().get(), (kind, index));
            if let Some(placed) = &state.placed {
                // Where it is not allowed, it is where the kernel put it.
                let _ = placed.put(&*shared.pins, thread, (kind, index));
            }
        }
        Seated { shared: self.shared.clone(), _not_send: PhantomData }
    }

    /// What the transfer goes through is known now: plans, in a thread of its own. Once; later calls do nothing. `peer` is where
    /// the other end is; none if it is in this process.
    pub fn begin(&self, peer: Option<IpAddr>) {
        let Some(shared) = &self.shared else { return };
        let Some((planning, tell)) = lock(&shared.state).plan.take() else { return };
        // Whoever plans keeps no lease alive.
        let shared = Arc::downgrade(shared);
        let run = move || {
            let mut thought = planning.think(peer, true);
            let Some(shared) = shared.upgrade() else { return };
            let service = thought.service.take();
            let mut told = thought.told(service.is_some());
            if let Plan::Placed(placement) = &told.plan {
                let placed = Placed { placement: placement.clone(), machine: thought.machine };
                let mut state = lock(&shared.state);
                let put = |(thread, seat): (&i32, &(ThreadKind, u16))| {
                    Pid::from_raw(*thread).map(|thread| placed.put(&*shared.pins, thread, *seat))
                };
                // Nobody ends while the lock is held.
                let put: Vec<io::Result<()>> = state.threads.iter().filter_map(put).collect();
                told.pinned = put.iter().filter(|put| put.is_ok()).count();
                match put.into_iter().find_map(Result::err) {
                    // What is not used is others' again.
                    Some(error) if told.pinned == 0 => {
                        told.trouble = Some(format!("threads cannot be put on CPUs: {error}"));
                        told.plan =
                            Plan::LeaveToKernel { because: "it lets no thread be put elsewhere".into() };
                        told.leased = false;
                    }
                    _ => (state.placed, state._service) = (Some(placed), service),
                }
            }
            tell(&told);
        };
        // Without it everything is where the kernel puts it.
        let _ = std::thread::Builder::new().name("haul-placer".into()).spawn(run);
    }
}

/// State stays whole: nothing that is done under this lock can fail half-way.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Seated {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            lock(&shared.state).threads.remove(&gettid().as_raw_nonzero().get());
        }
    }
}

impl Placed {
    fn put(&self, pins: &dyn Pins, thread: Pid, (kind, index): (ThreadKind, u16)) -> io::Result<()> {
        let seat = self.placement.seats.iter().find(|seat| (seat.kind, seat.index) == (kind, index));
        let cpus = match seat {
            Some(seat) => seat.cpus.clone(),
            None => self.placement.beside(&self.machine, kind),
        };
        pins.pin(thread, &cpus)
    }
}

/// What came of looking and asking.
struct Thought {
    plan: Plan,
    service: Option<Client>,
    machine: Machine,
    reached: Vec<String>,
    trouble: Option<String>,
}

/// What would be planned now, and nothing else: nothing is leased, nobody is put anywhere.
pub fn look(wishes: Wishes, peer: Option<IpAddr>) -> Told {
    let (planning, _) = Planning::of(wishes);
    planning.think(peer, false).told(false)
}

impl Thought {
    fn told(&self, leased: bool) -> Told {
        let Thought { plan, reached, trouble, .. } = self;
        Told { plan: plan.clone(), leased, reached: reached.clone(), pinned: 0, trouble: trouble.clone() }
    }
}

impl Planning {
    fn of(wishes: Wishes) -> (Planning, Box<dyn Pins>) {
        let Wishes { root, map, storage, threads, sockets, patience, pins } = wishes;
        let since = Moment::now(&root);
        (Planning { root, map, storage, threads, sockets, patience, since }, pins)
    }

    fn think(self, peer: Option<IpAddr>, lease: bool) -> Thought {
        let mut machine = Machine::read(&self.root);
        let map_trouble = self.map.apply(&mut machine).err().map(|error| error.to_string());
        machine.limits.chosen = crate::zone::is_within(&machine);
        let (mut transfer, reached, is_peer_here) = self.transfer(&machine, peer);
        let own = self.since.own(&Moment::now(&self.root), LOAD_OF);
        transfer.own_percent = (100.0 * own).round() as u32;
        let asking = Asking { sockets: &self.sockets, patience: self.patience, lease };
        let advice = Advice::of(&machine, &transfer, &asking, || {
            std::thread::sleep(LOOK.saturating_sub(self.since.at.elapsed()));
            self.since.load(&Moment::now(&self.root))
        });
        let Advice { plan, service, trouble } = advice;
        let plan = match plan {
            // It plans the same at this moment: each CPU would have a thread of both. Not where this end was given its CPUs.
            Plan::Placed(_) if is_peer_here && service.is_none() && !machine.limits.chosen => {
                Plan::LeaveToKernel {
                    because: "the other end is on this host, too, and no service keeps them apart".into(),
                }
            }
            plan => plan,
        };
        let trouble = trouble.or(map_trouble);
        Thought { plan, service, machine, reached, trouble }
    }

    /// With the devices that it goes through, how those were found, and whether the other end is on this host.
    fn transfer(&self, machine: &Machine, peer: Option<IpAddr>) -> (Transfer, Vec<String>, bool) {
        let mut transfer = Transfer { threads: self.threads, ..Transfer::default() };
        let mut reached = Vec::new();
        let mut add = |names: &mut Vec<String>, found: Reached| {
            for name in found.devices {
                if !names.contains(&name) && names.len() < DEVICES_MAX / 2 {
                    names.push(name);
                }
            }
            if !reached.contains(&found.because) {
                reached.push(found.because);
            }
        };
        for path in self.storage.iter().take(PATHS_MAX) {
            add(&mut transfer.storage, of_path(&self.root, machine, &self.map, path));
        }
        let mut is_peer_here = false;
        if let Some(peer) = peer {
            let found = of_peer(&self.root, peer);
            is_peer_here = found.is_here;
            add(&mut transfer.network, found);
        }
        (transfer, reached, is_peer_here)
    }
}
