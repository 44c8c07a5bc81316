//! Which thread of a transfer belongs on which CPU.
//!
//! After MDTM: a thread that moves bytes gets a CPU near the device that it works with, to itself where there are plenty; where
//! there are fewer, those of a node share the CPUs that they were given there. Threads that mostly wait are anywhere in the
//! zone: the CPUs that a transfer uses. What must stay true: only CPUs that are online, allowed, not isolated and not another
//! transfer's are given out, none twice; within a node no core gets a second thread before each has one; the same input
//! gives the same plan.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Cpus, Load, Machine};

/// More threads than a transfer has.
const THREADS_MAX: usize = 1024;
/// CPUs that must be there for each that is given out, so that a thread has its own. With fewer the kernel's scheduler knows
/// better who has to wait: a thread that is put on a CPU waits there for whoever else is.
const CPUS_OWN: usize = 2;
/// And for every two that are given out, so that anything is placed: with fewer no other CPU is free for long.
const CPUS_OF_TWO: usize = 3;
/// Threads that mostly wait, for each CPU that they add to the zone, and how many CPUs that are at most.
const WAITING_PER_CPU: usize = 2;
const WAITING_CPUS_MAX: usize = 4;
/// CPUs that are busier than this are others', and a machine that is.
const BUSY_PERCENT_MAX: u8 = 50;
/// A node whose memory is so short that this share of the pages wanted there came from elsewhere.
const AWAY_PERCENT_MAX: u8 = 10;
/// Loads that differ by less are alike: samples are short.
const LOAD_STEP_PERCENT: u8 = 10;

/// What a thread does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadKind {
    /// Decides.
    Master,
    /// Reads or writes contents.
    Io,
    /// Receives over one stream.
    CommIn,
    /// Sends over one stream.
    CommOut,
    /// Hashes what others have read.
    Hash,
    /// Writes the object log.
    Log,
    /// Lists directories.
    Scan,
    /// Receives or sends messages.
    Control,
    /// Makes, names and syncs files.
    Errand,
}

impl ThreadKind {
    /// Whether bytes pass through it; others mostly wait.
    pub fn moves_bytes(self) -> bool {
        matches!(self, ThreadKind::Io | ThreadKind::CommIn | ThreadKind::CommOut | ThreadKind::Hash)
    }
}

impl fmt::Display for ThreadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ThreadKind::Master => "master",
            ThreadKind::Io => "io",
            ThreadKind::CommIn => "comm in",
            ThreadKind::CommOut => "comm out",
            ThreadKind::Hash => "hash",
            ThreadKind::Log => "log",
            ThreadKind::Scan => "scan",
            ThreadKind::Control => "control",
            ThreadKind::Errand => "errand",
        })
    }
}

/// How many threads of each kind.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Threads {
    /// [`ThreadKind::Master`]
    pub master: u16,
    /// [`ThreadKind::Io`]
    pub io: u16,
    /// [`ThreadKind::CommIn`]
    pub comm_in: u16,
    /// [`ThreadKind::CommOut`]
    pub comm_out: u16,
    /// [`ThreadKind::Hash`]
    pub hash: u16,
    /// [`ThreadKind::Log`]
    pub log: u16,
    /// [`ThreadKind::Scan`]
    pub scan: u16,
    /// [`ThreadKind::Control`]
    pub control: u16,
    /// [`ThreadKind::Errand`]
    pub errand: u16,
}

impl Threads {
    /// Of an end that reads, with so many threads for contents and so many streams.
    pub fn of_source(io: u16, streams: u16) -> Threads {
        let both_ways = 2;
        Threads {
            master: 1,
            io,
            comm_out: streams,
            log: 1,
            scan: 1,
            control: both_ways,
            ..Threads::default()
        }
    }

    /// Of an end that writes.
    pub fn of_sink(io: u16, streams: u16) -> Threads {
        let (both_ways, names_and_syncs) = (2, 2);
        let errand = names_and_syncs;
        Threads { master: 1, io, comm_in: streams, control: both_ways, errand, ..Threads::default() }
    }

    /// Of both ends in one process; nothing leaves it, so their streams mostly wait. Where the end that writes `copies` from
    /// the files of the other one, that one's threads do so, too.
    pub fn of_both(io: u16, streams: u16, copies: bool) -> Threads {
        let (source, sink) = (Threads::of_source(io, streams), Threads::of_sink(io, streams));
        let (io, waiting) = if copies { (io, io) } else { (io.saturating_mul(2), 0) };
        let streams = streams.saturating_mul(2);
        Threads {
            master: source.master + sink.master,
            io,
            control: (source.control + sink.control).saturating_add(streams),
            errand: sink.errand.saturating_add(waiting),
            log: source.log,
            scan: source.scan,
            ..Threads::default()
        }
    }

    /// Of all kinds together.
    pub fn total(&self) -> usize {
        self.moving() + self.waiting()
    }

    /// Those that move bytes.
    fn moving(&self) -> usize {
        [self.io, self.comm_in, self.comm_out, self.hash].into_iter().map(usize::from).sum()
    }

    /// Those that mostly wait.
    fn waiting(&self) -> usize {
        let Threads { master, log, scan, control, errand, .. } = *self;
        [master, log, scan, control, errand].into_iter().map(usize::from).sum()
    }

    /// CPUs that those add to the zone.
    fn cpus_of_waiting(&self) -> usize {
        self.waiting().div_ceil(WAITING_PER_CPU).min(WAITING_CPUS_MAX)
    }

    /// CPUs that all are given.
    fn cpus(&self) -> usize {
        self.moving() + self.cpus_of_waiting()
    }

    /// Those that move bytes, in the order in which they are given CPUs: one of each kind in turn, so that none is left for what
    /// the others did not want.
    fn in_order(&self) -> Vec<(ThreadKind, u16)> {
        let moving = [
            (ThreadKind::Io, self.io),
            (ThreadKind::CommOut, self.comm_out),
            (ThreadKind::CommIn, self.comm_in),
            (ThreadKind::Hash, self.hash),
        ];
        let all = |(kind, count)| (0..count).map(move |index| (kind, index));
        let mut order: Vec<_> = moving.into_iter().flat_map(all).collect();
        order.sort_by_key(|(_, index)| *index);
        order
    }

    /// Those that mostly wait.
    fn that_wait(&self) -> impl Iterator<Item = (ThreadKind, u16)> {
        let waiting = [
            (ThreadKind::Master, self.master),
            (ThreadKind::Log, self.log),
            (ThreadKind::Scan, self.scan),
            (ThreadKind::Control, self.control),
            (ThreadKind::Errand, self.errand),
        ];
        waiting.into_iter().flat_map(|(kind, count)| (0..count).map(move |index| (kind, index)))
    }
}

/// What is to be placed: one end of a transfer.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Transfer {
    /// Devices that contents are read from or written to; I/O threads take turns on them.
    pub storage: Vec<String>,
    /// Devices that streams go through; comm threads take turns on them.
    pub network: Vec<String>,
    /// Its threads.
    pub threads: Threads,
    /// The nodes of devices that whoever asks knows better than the kernel: of the user's map.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, BTreeSet<usize>>,
    /// How busy whoever asks was itself, in percent of a CPU: it is nobody else who needs those.
    #[serde(skip_serializing_if = "is_zero")]
    pub own_percent: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Transfer {
    /// With what a map has said about this machine.
    pub fn with_mapped(mut self, machine: &Machine) -> Transfer {
        let mapped = self.storage.iter().chain(&self.network).filter(|name| machine.is_mapped(name));
        self.nodes = mapped.map(|name| (name.clone(), machine.nodes_of(name))).collect();
        self
    }

    /// The nodes that a device is on; empty: not known.
    fn nodes_of(&self, machine: &Machine, name: &str) -> BTreeSet<usize> {
        let is_there = |node: &usize| machine.node(*node).is_some();
        let known: BTreeSet<usize> =
            self.nodes.get(name).into_iter().flatten().copied().filter(is_there).collect();
        if known.is_empty() { machine.nodes_of(name) } else { known }
    }
}

/// What to do with the threads of a transfer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "placement", rename_all = "kebab-case")]
pub enum Plan {
    /// Nothing: there is nothing to gain.
    LeaveToKernel {
        /// Why, in words.
        because: String,
    },
    /// Put each on its CPU.
    Placed(Placement),
}

/// Where threads belong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Placement {
    /// One for each thread.
    pub seats: Vec<Seat>,
    /// Those that move bytes have a CPU each; else those of a node share theirs.
    pub own: bool,
    /// The node whose memory buffers should be of.
    pub buffers: usize,
    /// Why that one, in words.
    pub because: String,
    /// The CPUs of the transfer: those of its threads, and their siblings where nobody else has them.
    pub zone: Cpus,
    /// CPUs that are left to others.
    pub others: Cpus,
}

/// The place of one thread.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seat {
    /// What the thread does.
    pub kind: ThreadKind,
    /// Which of its kind, from 0.
    pub index: u16,
    /// Where it may run.
    pub cpus: Cpus,
    /// The node of these CPUs, or of one of them; for a thread that mostly waits, the one of the buffers.
    pub node: usize,
    /// The device that it works with, where there is but one of its kind.
    pub device: Option<String>,
    /// Why there, in words.
    pub because: String,
}

impl Placement {
    /// Whether it can be carried out: CPUs that this process may use, nodes that there are, one seat for each thread. What a service
    /// says need not.
    pub fn fits(&self, machine: &Machine, threads: &Threads) -> bool {
        let usable = machine.usable();
        let within = |cpus: &Cpus| cpus.without(&usable).is_empty();
        let may = |cpus: &Cpus| !cpus.is_empty() && within(cpus);
        let is_there = |node: usize| machine.node(node).is_some();
        let seats = self.seats.iter().map(|seat| (seat.kind, seat.index)).collect::<BTreeSet<_>>();
        let all = threads.in_order().into_iter().chain(threads.that_wait()).collect::<BTreeSet<_>>();
        seats == all
            && self.seats.len() == all.len()
            && self.seats.iter().all(|seat| may(&seat.cpus) && is_there(seat.node))
            && may(&self.zone)
            && within(&self.others)
            && is_there(self.buffers)
    }

    /// Where one more thread of a kind may run, for which there is no seat: on the nodes of those that have one, wherever
    /// nobody else is.
    pub fn beside(&self, machine: &Machine, kind: ThreadKind) -> Cpus {
        if !kind.moves_bytes() {
            return self.zone.clone();
        }
        let nodes = self.seats.iter().filter(|seat| seat.kind == kind).map(|seat| seat.node);
        let nodes = nodes.filter_map(|node| machine.node(node));
        let near = nodes.fold(Cpus::new(), |all, node| all.or(&node.cpus));
        let free = self.zone.or(&self.others);
        let near = near.and(&free);
        if near.is_empty() { free } else { near }
    }
}

impl Plan {
    /// Where the threads of a transfer belong on this machine under this load, while `taken` are other transfers' CPUs.
    pub fn of(machine: &Machine, load: &Load, taken: &Cpus, transfer: &Transfer) -> Plan {
        let free = machine.usable().without(taken);
        let busy = busy_cores(machine, load);
        // Near to a device, but somebody else's, is worse than far from it.
        let is_idle = |cpu: &usize| machine.cpu(*cpu).is_none_or(|cpu| busy[&cpu.core] <= BUSY_PERCENT_MAX);
        let idle: Cpus = free.iter().filter(is_idle).collect();
        match reason_to_leave(machine, load, &free, &idle, transfer) {
            Some(because) => Plan::LeaveToKernel { because },
            None => Plan::Placed(Planner::new(machine, load, busy, taken, idle).place(transfer, &free)),
        }
    }

    /// The CPUs that it keeps from other transfers.
    pub fn zone(&self) -> Cpus {
        match self {
            Plan::LeaveToKernel { .. } => Cpus::new(),
            Plan::Placed(placement) => placement.zone.clone(),
        }
    }
}

/// Percent that the busiest CPU of each core works.
fn busy_cores(machine: &Machine, load: &Load) -> BTreeMap<usize, u8> {
    let mut busy = BTreeMap::new();
    for cpu in &machine.cpus {
        let of_core: &mut u8 = busy.entry(cpu.core).or_default();
        *of_core = load.of(cpu.number).max(*of_core);
    }
    busy
}

/// Why nothing is to be gained, or something to be lost, with CPUs that are no other transfer's and those of them that are idle.
fn reason_to_leave(
    machine: &Machine,
    load: &Load,
    free: &Cpus,
    idle: &Cpus,
    transfer: &Transfer,
) -> Option<String> {
    let threads = transfer.threads.total();
    let wanted = transfer.threads.cpus();
    // Where they were chosen for it by a plan, that has seen to it that there are others.
    let enough = |cpus: &Cpus| match machine.limits.chosen {
        true => cpus.len() >= wanted,
        false => 2 * cpus.len() >= CPUS_OF_TWO * wanted,
    };
    let usable = machine.usable();
    let nodes = machine.nodes.iter().filter(|node| !node.cpus.and(&usable).is_empty()).count();
    if threads == 0 {
        return Some("there are no threads to place".into());
    }
    if nodes < 2 {
        return Some(match machine.nodes.len() {
            1 if machine.nodes[0].distances.is_empty() => {
                "which CPUs are near to which devices is not known here (no /sys)".into()
            }
            0 | 1 => "the machine has one node: every CPU is as near to every device".into(),
            all => format!("this process may use {nodes} of {all} nodes: there is nothing to choose from"),
        });
    }
    if threads > THREADS_MAX || !enough(free) {
        let others = usable.len() - free.len();
        let others =
            if others > 0 { format!(" ({others} more are other transfers')") } else { String::new() };
        let free = free.len();
        return Some(format!(
            "{threads} threads that want {wanted} of {free} CPUs{others}: with less than {CPUS_OF_TWO} for 2 the kernel spreads them better"
        ));
    }
    if let Some(quota) = machine.limits.quota_millis.filter(|quota| *quota < usable.len() as u64 * 1000) {
        let (whole, tenths) = (quota / 1000, quota % 1000 / 100);
        return Some(format!(
            "the control group may use {whole}.{tenths} CPUs of {}: the machine is shared",
            usable.len()
        ));
    }
    let busy = load.mean(free);
    if busy > BUSY_PERCENT_MAX {
        return Some(format!("others keep the CPUs {busy} % busy: the machine is shared"));
    }
    if !enough(idle) {
        let (busy, free) = (free.len() - idle.len(), free.len());
        return Some(format!("others keep {busy} of {free} CPUs busy: the machine is shared"));
    }
    let named = transfer.storage.iter().chain(&transfer.network);
    if named.clone().next().is_none() {
        return Some("no device is known that the transfer goes through".into());
    }
    if named.clone().all(|name| transfer.nodes_of(machine, name).is_empty()) {
        let names: BTreeSet<&str> = named.map(String::as_str).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        return Some(format!("the node of {names} is not known; topology.toml can tell"));
    }
    None
}

/// A device that threads take turns on, and a node of it.
type Post = (String, Option<usize>);

struct Planner<'a> {
    machine: &'a Machine,
    load: &'a Load,
    /// CPUs that nobody has yet.
    free: Cpus,
    /// Those that this transfer was given.
    given: Cpus,
    /// Threads, of this transfer or of others, on each core and in each cache.
    on_core: BTreeMap<usize, u32>,
    in_cache: BTreeMap<usize, u32>,
    /// Percent that the busiest CPU of each core works.
    busy: BTreeMap<usize, u8>,
}

impl<'a> Planner<'a> {
    fn new(
        machine: &'a Machine,
        load: &'a Load,
        busy: BTreeMap<usize, u8>,
        taken: &Cpus,
        free: Cpus,
    ) -> Self {
        let (on_core, in_cache) = (BTreeMap::new(), BTreeMap::new());
        let mut planner = Planner { machine, load, free, given: Cpus::new(), on_core, in_cache, busy };
        taken.iter().for_each(|cpu| planner.count(cpu));
        planner
    }

    /// `all` are those that no other transfer has.
    fn place(mut self, transfer: &Transfer, all: &Cpus) -> Placement {
        let usable = self.free.clone();
        let storage = self.posts(transfer, &transfer.storage);
        let network = self.posts(transfer, &transfer.network);
        let (buffers, because) = self.buffers(&storage, &network);
        let own = usable.len() >= CPUS_OWN * transfer.threads.cpus();
        let mut seats = Vec::new();
        for (kind, index) in transfer.threads.in_order() {
            let turn = |posts: &[Post]| posts.get(usize::from(index) % posts.len().max(1)).cloned();
            let post = match kind {
                ThreadKind::Io => turn(&storage),
                ThreadKind::CommIn | ThreadKind::CommOut => turn(&network),
                _ => None,
            };
            seats.push(self.seat(kind, index, post, buffers, own));
        }
        for _ in 0..transfer.threads.cpus_of_waiting() {
            self.take(buffers);
        }
        let cores = self.given.iter().fold(Cpus::new(), |all, cpu| all.or(&self.machine.siblings(cpu)));
        let zone = cores.and(&usable);
        if !own {
            for seat in &mut seats {
                seat.cpus = self.machine.node(seat.node).map_or(Cpus::new(), |node| node.cpus.and(&zone));
            }
        }
        spread(&mut seats, &[ThreadKind::Io], "storage", &storage);
        spread(&mut seats, &[ThreadKind::CommOut, ThreadKind::CommIn], "the network", &network);
        let (node, device) = (buffers, None);
        seats.extend(transfer.threads.that_wait().map(|(kind, index)| {
            let because = "mostly waits".into();
            Seat { kind, index, cpus: zone.clone(), node, device: device.clone(), because }
        }));
        seats.sort_by_key(|seat| (seat.kind, seat.index));
        let others = all.without(&zone);
        Placement { seats, own, buffers, because, zone, others }
    }

    /// Each device with each of its nodes.
    fn posts(&self, transfer: &Transfer, names: &[String]) -> Vec<Post> {
        let of = |name: &String| {
            let nodes = transfer.nodes_of(self.machine, name);
            let known: Vec<Post> = nodes.into_iter().map(|node| (name.clone(), Some(node))).collect();
            if known.is_empty() { vec![(name.clone(), None)] } else { known }
        };
        names.iter().flat_map(of).collect()
    }

    /// The node that buffers should be on: where the data has the shortest way in all. Bytes pass between storage and buffers,
    /// are hashed in the buffers, and pass between buffers and network; threads that hash are the storage's.
    fn buffers(&self, storage: &[Post], network: &[Post]) -> (usize, String) {
        let nodes = |posts: &[Post]| posts.iter().filter_map(|(_, node)| *node).collect::<Vec<_>>();
        let (storage, network) = (nodes(storage), nodes(network));
        let way = |to: usize| {
            let sum = |from: &[usize]| {
                from.iter().map(|from| u64::from(self.machine.distance(*from, to))).sum::<u64>()
            };
            // Means, but in whole numbers; storage counts twice for the hash.
            let (of_storage, of_network) = (storage.len().max(1) as u64, network.len().max(1) as u64);
            let way = 2 * sum(&storage) * of_network + sum(&network) * of_storage;
            let away = self.load.nodes.get(&to).is_some_and(|node| node.away > AWAY_PERCENT_MAX);
            way + if away { 30 * of_storage * of_network } else { 0 }
        };
        let candidates = self.machine.nodes.iter().filter(|node| !node.cpus.and(&self.free).is_empty());
        // What a node is said to have may be unknown of all.
        let best = candidates.min_by_key(|node| (node.memory_bytes == 0, way(node.number), node.number));
        let best = best.map_or(0, |node| node.number);
        let (at_storage, at_network) = (storage.contains(&best), network.contains(&best));
        let because = match (at_storage, at_network) {
            (true, true) => "storage and network are there",
            (true, false) if network.is_empty() => "storage is there; the node of the network is not known",
            (false, true) if storage.is_empty() => {
                "the network is there; the node of the storage is not known"
            }
            (true, false) => {
                "storage is there, and what was read is hashed there before it crosses to the network"
            }
            (false, true) => "the network is there, and storage is on several nodes",
            (false, false) => {
                "it has the shortest way to storage and network of the nodes that have free CPUs"
            }
        };
        (best, because.into())
    }

    fn seat(&mut self, kind: ThreadKind, index: u16, post: Option<Post>, buffers: usize, own: bool) -> Seat {
        let wanted = post.as_ref().and_then(|(_, node)| *node).unwrap_or(buffers);
        let (cpu, node) = self.take(wanted);
        let near = match &post {
            Some((device, Some(_))) => format!("{device} is on node {wanted}"),
            Some((device, None)) => {
                format!("the node of {device} is not known; buffers are on node {wanted}")
            }
            None => format!("buffers are on node {wanted}"),
        };
        let far = if node == wanted {
            String::new()
        } else {
            format!(
                ", which has no CPU left; node {node} is nearest (distance {})",
                self.machine.distance(wanted, node)
            )
        };
        let shared =
            self.machine.cpu(cpu).and_then(|cpu| self.on_core.get(&cpu.core)).copied().unwrap_or(0) > 1;
        let core = if shared && own { "; shares its core" } else { "" };
        let device = post.map(|(device, _)| device);
        Seat { kind, index, cpus: Cpus::from_iter([cpu]), node, device, because: near + &far + core }
    }

    /// The best CPU of a node, or of the nearest that has one.
    fn take(&mut self, wanted: usize) -> (usize, usize) {
        let candidates = self.free.iter().filter_map(|cpu| {
            let cpu = self.machine.cpu(cpu)?;
            let node = cpu.node?;
            let away = if node == wanted { 0 } else { self.machine.distance(wanted, node).max(1) };
            let count = |counts: &BTreeMap<usize, u32>, of: usize| counts.get(&of).copied().unwrap_or(0);
            let busy = self.busy.get(&cpu.core).copied().unwrap_or(0);
            let cache = cpu.cache.map_or(0, |cache| count(&self.in_cache, cache));
            Some((away, node, count(&self.on_core, cpu.core), busy / LOAD_STEP_PERCENT, cache, cpu.number))
        });
        let (_, node, _, _, _, cpu) = candidates.min().expect("there are more CPUs than are given out");
        self.free = self.free.without(&Cpus::from_iter([cpu]));
        self.given.add(cpu);
        self.count(cpu);
        (cpu, node)
    }

    fn count(&mut self, cpu: usize) {
        if let Some(cpu) = self.machine.cpu(cpu) {
            *self.on_core.entry(cpu.core).or_default() += 1;
            if let Some(cache) = cpu.cache {
                *self.in_cache.entry(cache).or_default() += 1;
            }
        }
    }
}

/// Any thread of a kind works with all devices of its kind: where those are on several nodes, so are all their CPUs.
fn spread(seats: &mut [Seat], kinds: &[ThreadKind], what: &str, posts: &[Post]) {
    let nodes: Cpus = posts.iter().filter_map(|(_, node)| *node).collect();
    if nodes.len() < 2 {
        return;
    }
    let devices: BTreeSet<&String> = posts.iter().map(|(device, _)| device).collect();
    for kind in kinds {
        let cpus =
            seats.iter().filter(|seat| seat.kind == *kind).fold(Cpus::new(), |all, seat| all.or(&seat.cpus));
        for seat in seats.iter_mut().filter(|seat| seat.kind == *kind) {
            seat.cpus = cpus.clone();
            seat.because = format!("{what} is on nodes {nodes}; each thread works with all of it");
            if devices.len() > 1 {
                seat.device = None;
            }
        }
    }
}
