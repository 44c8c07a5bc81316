//! Nodes, CPUs, caches and devices, from a tree of `/sys` and `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::load::is_online;
use crate::tree::{Tree, names};
use crate::{CPUS_MAX, Cpus, Limits};

/// More nodes than any kernel is built for (`CONFIG_NODES_SHIFT` is at most 10).
pub const NODES_MAX: usize = 1024;
/// Devices that are looked at, of each kind.
const DEVICES_MAX: usize = 4096;
/// Layers of devices on devices that are followed: a bond below a VLAN below a bridge, a partition below md below LVM.
const LAYERS_MAX: usize = 8;

pub(crate) const CPU_DIRECTORY: &str = "sys/devices/system/cpu";
pub(crate) const NODE_DIRECTORY: &str = "sys/devices/system/node";

/// The host, as far as it is known.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// By number, upwards; at least one if there are CPUs.
    pub nodes: Vec<Node>,
    /// Those that are online, by number, upwards.
    pub cpus: Vec<Cpu>,
    /// CPUs that are there and are switched off.
    pub offline: Cpus,
    /// CPUs that the kernel puts nothing on unless it is told to; they belong to whoever set that up.
    pub isolated: Cpus,
    /// The largest caches that CPUs share.
    pub caches: Vec<L3>,
    /// By kind and name.
    pub devices: Vec<Device>,
    /// Those without hardware and without parts: loop, zram, veth. A map may say where what is behind them is ([`crate::Map::apply`]).
    #[serde(skip)]
    pub nowhere: Vec<Device>,
    /// What this process may use of it.
    pub limits: Limits,
}

/// CPUs and the memory beside them.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// The kernel's.
    pub number: usize,
    /// Its CPUs that are online; none for a node of memory alone.
    pub cpus: Cpus,
    /// How far each node is, 10 being here (ACPI SLIT). Nothing of the only node where it is not known which there are.
    pub distances: BTreeMap<usize, u32>,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of it that are free or could be at once (page cache that is not in use).
    pub free_bytes: u64,
}

/// What the kernel schedules on: a core, or one of several threads of a core.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cpu {
    /// The kernel's.
    pub number: usize,
    /// None for a CPU without memory beside it.
    pub node: Option<usize>,
    /// The socket.
    pub package: usize,
    /// The lowest CPU of its core that is online: siblings have the same.
    pub core: usize,
    /// Index into [`Machine::caches`].
    pub cache: Option<usize>,
}

/// A cache of the third level, or of the highest there is.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct L3 {
    /// 2 or 3, mostly.
    pub level: u8,
    /// Its CPUs that are online.
    pub cpus: Cpus,
    /// Its size.
    pub bytes: u64,
}

/// What a device is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A network interface.
    Network,
    /// An RDMA device.
    Infiniband,
    /// A disk, or a set of them.
    Block,
}

/// Who says on which node a device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Nobody: the firmware does not tell, or a virtual machine hides it.
    Unknown,
    /// The kernel.
    Kernel,
    /// The user's map.
    Map,
}

/// A network interface or disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Device {
    /// `eth0`, `nvme0n1`
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Of the device itself; [`Machine::nodes_of`] follows those that it is made of.
    pub node: Option<usize>,
    /// Who says so.
    pub origin: Origin,
    /// Mbit/s of a network interface that is up.
    pub speed_mbit: Option<u64>,
    /// Size of a disk.
    pub bytes: Option<u64>,
    /// What a set (bond, md, device mapper) is made of.
    pub below: Vec<String>,
}

impl Machine {
    /// Reads the tree beneath `root`: `/` for this host. What is not there is not known; nothing is an error.
    pub fn read(root: &Path) -> Machine {
        let tree = Tree::new(root);
        let mut machine = read_cpus(&tree);
        (machine.devices, machine.nowhere) = read_devices(&tree, &machine);
        machine.limits = Limits::read(&tree, None);
        machine
    }

    /// With the limits of another process of this host.
    pub fn of_process(mut self, root: &Path, process: u32) -> Machine {
        self.limits = Limits::read(&Tree::new(root), Some(process));
        self
    }

    /// CPUs that threads of this process can be put on, and whose memory it may have; a node that has none (the kernel counts it
    /// among those of which none may be had) is no reason against its CPUs.
    pub fn usable(&self) -> Cpus {
        let may = |number| self.limits.nodes.as_ref().is_none_or(|nodes| nodes.has(number));
        let is_known = self.nodes.iter().any(|node| node.memory_bytes > 0);
        let has_none = |node: &Node| is_known && node.memory_bytes == 0;
        let nodes = self.nodes.iter().filter(|node| has_none(node) || may(node.number));
        let all = nodes.fold(Cpus::new(), |all, node| all.or(&node.cpus)).without(&self.isolated);
        self.limits.cpus.as_ref().map_or_else(|| all.clone(), |allowed| all.and(allowed))
    }

    /// The node with this number.
    pub fn node(&self, number: usize) -> Option<&Node> {
        self.nodes.iter().find(|node| node.number == number)
    }

    /// The CPU with this number, if it is online.
    pub fn cpu(&self, number: usize) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&number, |cpu| cpu.number).ok().map(|at| &self.cpus[at])
    }

    /// All CPUs of the core that a CPU is of, itself included.
    pub fn siblings(&self, number: usize) -> Cpus {
        let core = self.cpu(number).map(|cpu| cpu.core);
        self.cpus.iter().filter(|cpu| Some(cpu.core) == core).map(|cpu| cpu.number).collect()
    }

    /// How far one node is from another, 10 being here.
    pub fn distance(&self, from: usize, to: usize) -> u32 {
        let told = self.node(from).and_then(|node| node.distances.get(&to).copied());
        told.unwrap_or(if from == to { 10 } else { 20 })
    }

    /// The device with this name.
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// The nodes that a device is on: its own, else those of what it is made of. Empty: not known.
    pub fn nodes_of(&self, name: &str) -> BTreeSet<usize> {
        self.placed(name).into_iter().filter_map(|device| device.node).collect()
    }

    /// Whether the user's map says where a device is.
    pub fn is_mapped(&self, name: &str) -> bool {
        self.placed(name).into_iter().any(|device| device.origin == Origin::Map)
    }

    /// A device, or those that it is made of, whose nodes are known.
    fn placed(&self, name: &str) -> Vec<&Device> {
        let (mut placed, mut seen) = (Vec::new(), BTreeSet::new());
        let mut layer = vec![name];
        for _ in 0..LAYERS_MAX {
            let devices = layer.iter().filter_map(|name| self.device(name));
            let (known, without): (Vec<&Device>, Vec<&Device>) =
                devices.partition(|device| device.node.is_some());
            placed.extend(known);
            layer = without.iter().flat_map(|device| device.below.iter().map(String::as_str)).collect();
            layer.retain(|name| seen.insert(*name));
        }
        placed
    }
}

fn read_cpus(tree: &Tree<'_>) -> Machine {
    let file = |cpu: usize, path: &str| format!("{CPU_DIRECTORY}/cpu{cpu}/{path}");
    let mut present: Cpus = tree.numbered(CPU_DIRECTORY, "cpu").into_iter().collect();
    if present.is_empty() {
        present = tree.cpus(format!("{CPU_DIRECTORY}/present")).unwrap_or_default();
    }
    // A sandbox may have no /sys: how many CPUs there are is known all the same, where they are is not.
    let blind = present.is_empty();
    if blind {
        present = counted(tree);
    }
    let told = tree.cpus(format!("{CPU_DIRECTORY}/online"));
    let online = match told {
        _ if blind => present.clone(),
        Some(online) if !online.and(&present).is_empty() => online.and(&present),
        _ => present.iter().filter(|cpu| is_online(tree, *cpu)).collect(),
    };
    let mut nodes: Vec<Node> = tree
        .numbered(NODE_DIRECTORY, "node")
        .into_iter()
        .filter(|number| *number < NODES_MAX)
        .map(|number| read_node(tree, number, &online))
        .collect();
    if nodes.iter().all(|node| node.cpus.is_empty()) {
        // A kernel without NUMA.
        let (memory_bytes, free_bytes) = memory(&tree.text("proc/meminfo").unwrap_or_default());
        let distances = if blind { BTreeMap::new() } else { BTreeMap::from([(0, 10)]) };
        nodes = vec![Node { number: 0, cpus: online.clone(), distances, memory_bytes, free_bytes }];
    }
    let mut caches: Vec<L3> = Vec::new();
    let mut cpus = Vec::new();
    for number in online.iter() {
        let siblings = ["topology/core_cpus_list", "topology/thread_siblings_list"];
        let siblings = siblings.iter().find_map(|path| tree.cpus(file(number, path)));
        let core = siblings.unwrap_or_default().and(&online).first().unwrap_or(number);
        let cache = read_cache(tree, number, &online).map(|cache| {
            caches.iter().position(|known| *known == cache).unwrap_or_else(|| {
                caches.push(cache);
                caches.len() - 1
            })
        });
        let package = tree.value(file(number, "topology/physical_package_id")).unwrap_or(0);
        let node = nodes.iter().find(|node| node.cpus.has(number)).map(|node| node.number);
        cpus.push(Cpu { number, node, package, core, cache });
    }
    let isolated = tree.cpus(format!("{CPU_DIRECTORY}/isolated")).unwrap_or_default().and(&online);
    Machine { nodes, cpus, offline: present.without(&online), isolated, caches, ..Machine::default() }
}

/// CPUs that have done something, or nothing, since the machine was started.
fn counted(tree: &Tree<'_>) -> Cpus {
    let text = tree.text("proc/stat").unwrap_or_default();
    let number = |line: &str| line.split_ascii_whitespace().next()?.strip_prefix("cpu")?.parse().ok();
    text.lines().filter_map(number).filter(|cpu| *cpu < CPUS_MAX).collect()
}

fn read_node(tree: &Tree<'_>, number: usize, online: &Cpus) -> Node {
    let base = format!("{NODE_DIRECTORY}/node{number}");
    let cpus = tree.cpus(format!("{base}/cpulist")).unwrap_or_default().and(online);
    // Distances are in the order of the nodes that are online.
    let order: Vec<usize> = match tree.cpus(format!("{NODE_DIRECTORY}/online")) {
        Some(online) if !online.is_empty() => online.iter().collect(),
        _ => tree.numbered(NODE_DIRECTORY, "node"),
    };
    let text = tree.text(format!("{base}/distance")).unwrap_or_default();
    // The kernel's are below 256, and 10 is the least.
    let distances = text.split_ascii_whitespace().map(|word| word.parse().ok());
    let distances = order.into_iter().zip(distances);
    let distances = distances
        .filter_map(|(node, distance)| Some((node, distance.filter(|far| (10..256).contains(far))?)));
    let (memory_bytes, free_bytes) = memory(&tree.text(format!("{base}/meminfo")).unwrap_or_default());
    Node { number, cpus, distances: distances.collect(), memory_bytes, free_bytes }
}

/// All bytes, and those that are free or could be, of `/proc/meminfo` or a node's `meminfo`.
fn memory(text: &str) -> (u64, u64) {
    let bytes = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| Some(line.split_once(name)?.1))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let all = bytes("MemTotal:").unwrap_or(0);
    let idle = ["MemFree:", "Inactive(file):"].iter().filter_map(|name| bytes(name));
    (all, idle.fold(0, u64::saturating_add).min(all))
}

/// The cache of the highest level that a CPU has.
fn read_cache(tree: &Tree<'_>, cpu: usize, online: &Cpus) -> Option<L3> {
    let base = format!("{CPU_DIRECTORY}/cpu{cpu}/cache");
    let levels = tree.numbered(&base, "index").into_iter().filter_map(|index| {
        let of = |name: &str| format!("{base}/index{index}/{name}");
        let level: u8 = tree.value(of("level"))?;
        let cpus = tree.cpus(of("shared_cpu_list"))?.and(online);
        let text = tree.text(of("size")).unwrap_or_default();
        let text = text.trim();
        let (number, unit) = match text.strip_suffix('K') {
            Some(number) => (number, 1 << 10),
            None => (text.strip_suffix('M').unwrap_or(text), 1 << 20),
        };
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).unwrap_or(0);
        (level > 1 && cpus.has(cpu)).then_some(L3 { level, cpus, bytes })
    });
    levels.max_by_key(|cache| cache.level)
}

/// Those that are somewhere, and those that are not.
fn read_devices(tree: &Tree<'_>, machine: &Machine) -> (Vec<Device>, Vec<Device>) {
    let (mut devices, mut nowhere) = (Vec::new(), Vec::new());
    for (kind, directory) in [
        (DeviceKind::Network, "sys/class/net"),
        (DeviceKind::Infiniband, "sys/class/infiniband"),
        (DeviceKind::Block, "sys/block"),
    ] {
        for name in tree.names(directory).into_iter().take(DEVICES_MAX) {
            let base = tree.at(directory).join(&name);
            let below = below(&base, kind);
            if below.is_empty() && !base.join("device").exists() {
                let (node, origin, speed_mbit, bytes) = (None, Origin::Unknown, None, None);
                nowhere.push(Device { name, kind, node, origin, speed_mbit, bytes, below });
                continue;
            }
            // One of several ways to an NVMe namespace, which is listed itself.
            if tree.value::<u32>(Path::new(directory).join(&name).join("hidden")) == Some(1) {
                continue;
            }
            let node = node_of(tree, &base).filter(|node| machine.node(*node).is_some());
            let origin = if node.is_some() { Origin::Kernel } else { Origin::Unknown };
            let path = |file: &str| Path::new(directory).join(&name).join(file);
            let speed_mbit = match kind {
                DeviceKind::Network => {
                    tree.value::<i64>(path("speed")).and_then(|speed| u64::try_from(speed).ok())
                }
                DeviceKind::Infiniband => infiniband_speed(tree, &path("ports")),
                DeviceKind::Block => None,
            };
            // Sectors of 512 bytes, whatever the disk has.
            let sectors = tree.value::<u64>(path("size")).filter(|_| kind == DeviceKind::Block);
            let bytes = sectors.and_then(|sectors| sectors.checked_mul(512));
            devices.push(Device { name, kind, node, origin, speed_mbit, bytes, below });
        }
    }
    (devices, nowhere)
}

/// `100 Gb/sec (4X EDR)` of the first port.
fn infiniband_speed(tree: &Tree<'_>, ports: &Path) -> Option<u64> {
    let port = tree.names(ports).into_iter().next()?;
    let rate = tree.text(ports.join(port).join("rate"))?;
    let gbit: f64 = rate.split_once(" Gb/sec")?.0.trim().parse().ok()?;
    (0.0..100_000.0).contains(&gbit).then_some((gbit * 1000.0) as u64)
}

/// What a device is made of: whole disks below md and device mapper, interfaces below bonds, VLANs and bridges.
fn below(base: &Path, kind: DeviceKind) -> Vec<String> {
    let mut found: Vec<String> = match kind {
        DeviceKind::Block => {
            let slaves = base.join("slaves");
            names(&slaves).iter().filter_map(|name| whole_disk(&slaves.join(name))).collect()
        }
        DeviceKind::Network => {
            let lower =
                names(base).into_iter().filter_map(|name| Some(name.strip_prefix("lower_")?.to_owned()));
            lower.chain(names(&base.join("brif"))).collect()
        }
        DeviceKind::Infiniband => Vec::new(),
    };
    found.sort();
    found.dedup();
    found
}

/// The disk that a block device's directory is of or in.
pub(crate) fn whole_disk(directory: &Path) -> Option<String> {
    let mut directory = directory.canonicalize().ok()?;
    if directory.join("partition").exists() {
        directory.pop();
    }
    Some(directory.file_name()?.to_str()?.to_owned())
}

/// The node of the hardware behind a device's directory.
fn node_of(tree: &Tree<'_>, base: &Path) -> Option<usize> {
    let read = |directory: &Path| -> Option<usize> {
        let text = crate::tree::text(&directory.join("numa_node"))?;
        // -1: not known here; perhaps further up.
        text.trim().parse::<usize>().ok().filter(|node| *node < NODES_MAX)
    };
    // An NVMe namespace is below its controller, that below the PCI device.
    let near = [base.join("device"), base.join("device/device")];
    if let Some(node) = near.iter().find_map(|directory| read(directory)) {
        return Some(node);
    }
    let top = tree.at("sys/devices").canonicalize().ok()?;
    let above = |start: &Path| -> Option<usize> {
        let start = start.canonicalize().ok()?;
        let up = start.ancestors().take_while(|directory| directory.starts_with(&top) && **directory != *top);
        up.take(64).find_map(read)
    };
    // With several paths to one NVMe namespace, controllers stand beside it.
    let controllers = || -> Option<usize> {
        let subsystem = base.canonicalize().ok()?.parent().map(PathBuf::from)?;
        let links = names(&subsystem).into_iter().filter(|name| is_controller(name));
        links.take(16).find_map(|name| above(&subsystem.join(name)))
    };
    above(base).or_else(controllers)
}

/// `nvme` and a number.
fn is_controller(name: &str) -> bool {
    name.strip_prefix("nvme")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

const _: () = assert!(NODES_MAX <= CPUS_MAX, "sets of nodes are written as sets of CPUs");
