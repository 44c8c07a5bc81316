//! How busy CPUs and the memory of nodes are: what was counted between two looks.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::machine::{CPU_DIRECTORY, NODE_DIRECTORY, NODES_MAX};
use crate::tree::Tree;
use crate::{CPUS_MAX, Cpus};

/// What has been counted since the machine was started.
#[derive(Clone, Default, Debug)]
pub struct Counters {
    /// Of each CPU: ticks in which it worked, and all.
    cpus: BTreeMap<usize, (u64, u64)>,
    /// Of each node: pages that went where they were wanted, and pages that were wanted here and had to go elsewhere.
    nodes: BTreeMap<usize, (u64, u64)>,
    /// Percent of the last ten seconds in which something waited for memory.
    memory_pressure: Option<u8>,
}

/// What happened between two looks. Empty: nothing is known.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Percent of its time that each CPU worked.
    pub cpus: BTreeMap<usize, u8>,
    /// Of each node's memory.
    pub nodes: BTreeMap<usize, NodeLoad>,
    /// Percent of the last ten seconds in which something waited for memory, anywhere.
    pub memory_pressure: Option<u8>,
}

/// Of a node's memory.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeLoad {
    /// Percent of the pages wanted of it that had to be taken from other nodes.
    pub away: u8,
}

impl Counters {
    /// What is counted now, beneath a root.
    pub fn read(root: &Path) -> Counters {
        let tree = Tree::new(root);
        let mut cpus = BTreeMap::new();
        for line in tree.text("proc/stat").unwrap_or_default().lines() {
            let mut fields = line.split_ascii_whitespace();
            let Some(cpu) = fields.next().and_then(|name| name.strip_prefix("cpu")?.parse::<usize>().ok())
            else {
                continue;
            };
            // user nice system idle iowait irq softirq steal; guest times are in user already.
            let ticks: Vec<u64> = fields.take(8).map_while(|field| field.parse().ok()).collect();
            if cpu >= CPUS_MAX || ticks.len() < 4 {
                continue;
            }
            let all = ticks.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
            let idle = ticks[3].saturating_add(ticks.get(4).copied().unwrap_or(0));
            cpus.insert(cpu, (all.saturating_sub(idle), all));
        }
        let mut nodes = BTreeMap::new();
        for node in tree.numbered(NODE_DIRECTORY, "node").into_iter().filter(|node| *node < NODES_MAX) {
            let text = tree.text(format!("{NODE_DIRECTORY}/node{node}/numastat")).unwrap_or_default();
            let count = |name: &str| {
                text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0)
            };
            nodes.insert(node, (count("numa_hit "), count("numa_foreign ")));
        }
        let pressure = tree.text("proc/pressure/memory").unwrap_or_default();
        let memory_pressure = pressure.lines().find_map(|line| {
            let percent: f64 = line.strip_prefix("some avg10=")?.split(' ').next()?.parse().ok()?;
            (0.0..=100.0).contains(&percent).then_some(percent.round() as u8)
        });
        Counters { cpus, nodes, memory_pressure }
    }
}

impl Load {
    /// Between two looks.
    pub fn between(before: &Counters, after: &Counters) -> Load {
        let percent = |part: u64, whole: u64| -> Option<u8> {
            let share = u128::from(part.min(whole)) * 100 / u128::from(whole.max(1));
            (whole > 0).then_some(share as u8)
        };
        let cpus = after.cpus.iter().filter_map(|(cpu, (busy, all))| {
            let (busy_before, all_before) = before.cpus.get(cpu)?;
            Some((*cpu, percent(busy.saturating_sub(*busy_before), all.saturating_sub(*all_before))?))
        });
        let nodes = after.nodes.iter().filter_map(|(node, (here, away))| {
            let (here_before, away_before) = before.nodes.get(node)?;
            let here = here.saturating_sub(*here_before);
            let away = away.saturating_sub(*away_before);
            Some((*node, NodeLoad { away: percent(away, here.saturating_add(away))? }))
        });
        Load { cpus: cpus.collect(), nodes: nodes.collect(), memory_pressure: after.memory_pressure }
    }

    /// Without what this process did itself, which was busy for so many CPUs' whole time. On which CPUs is not known: what all
    /// of them worked is lessened alike.
    pub fn without(mut self, own_cpus: f64) -> Load {
        let all: f64 = self.cpus.values().map(|percent| f64::from(*percent) / 100.0).sum();
        let others = if all > 0.0 { (1.0 - own_cpus / all).clamp(0.0, 1.0) } else { 1.0 };
        self.cpus.values_mut().for_each(|percent| *percent = (f64::from(*percent) * others).round() as u8);
        self
    }

    /// Percent of its time that a CPU worked; 0 if that is not known.
    pub fn of(&self, cpu: usize) -> u8 {
        self.cpus.get(&cpu).copied().unwrap_or(0)
    }

    /// The mean of some CPUs, in percent.
    pub fn mean(&self, cpus: &Cpus) -> u8 {
        let sum: usize = cpus.iter().map(|cpu| usize::from(self.of(cpu))).sum();
        (sum / cpus.len().max(1)) as u8
    }
}

/// Whether a CPU is online, for a tree whose `online` list is missing.
pub(crate) fn is_online(tree: &Tree<'_>, cpu: usize) -> bool {
    tree.value::<u8>(format!("{CPU_DIRECTORY}/cpu{cpu}/online")) != Some(0)
}
