//! What a process may use: its affinity, its cpuset, its quota.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Cpus;
use crate::tree::Tree;

/// More levels of control groups than anybody nests.
const LEVELS_MAX: usize = 32;

/// What a process may use.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// CPUs that it may run on; none: not known, so all.
    pub cpus: Option<Cpus>,
    /// Nodes that it may have memory of; none: not known, so all.
    pub nodes: Option<Cpus>,
    /// Thousandths of a CPU that its control groups may use all together.
    pub quota_millis: Option<u64>,
    /// These CPUs were chosen for what it does: a plan has put it there ([`crate::zone::is_within`]).
    #[serde(skip)]
    pub chosen: bool,
}

/// Bytes of memory that a process beneath this root can have without pushing others out: what the kernel takes for available, and
/// what its control groups may use yet, all together. None: not known.
pub fn memory_available(root: &Path) -> Option<u64> {
    let tree = Tree::new(root);
    let text = tree.text("proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    let left = |hierarchy: &Hierarchy| hierarchy.memory_left(&tree);
    let left = hierarchies(&tree, "self", "memory").iter().filter_map(left).min();
    Some(kib.saturating_mul(1024).min(left.unwrap_or(u64::MAX)))
}

/// A hierarchy of control groups that a process is in: where it is mounted, and the process' place in it.
pub(crate) struct Hierarchy {
    /// Without `/` at its beginning: beneath the root.
    pub(crate) mount: String,
    /// Without `/` at its beginning; empty at the top.
    pub(crate) group: String,
    /// The second version, where all controllers share a hierarchy?
    pub(crate) unified: bool,
}

impl Limits {
    /// Of a process; none: of this one.
    pub(crate) fn read(tree: &Tree<'_>, process: Option<u32>) -> Limits {
        let who = process.map_or_else(|| "self".to_owned(), |id| id.to_string());
        let status = tree.text(format!("proc/{who}/status")).unwrap_or_default();
        let list = |name: &str| -> Option<Cpus> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.parse().ok().filter(|cpus: &Cpus| !cpus.is_empty())
        };
        let mut cpus = list("Cpus_allowed_list:");
        let mut nodes = list("Mems_allowed_list:");
        for hierarchy in hierarchies(tree, &who, "cpuset") {
            let base = hierarchy.path(&hierarchy.group);
            let (own, memory) = match hierarchy.unified {
                true => ("cpuset.cpus.effective", "cpuset.mems.effective"),
                false => ("cpuset.effective_cpus", "cpuset.effective_mems"),
            };
            let narrow = |known: &mut Option<Cpus>, file: &str| {
                let Some(told) = tree.cpus(format!("{base}/{file}")).filter(|told| !told.is_empty()) else {
                    return;
                };
                let both = known.as_ref().map_or_else(|| told.clone(), |known| known.and(&told));
                // Two that exclude each other are a file of something else.
                if !both.is_empty() {
                    *known = Some(both);
                }
            };
            narrow(&mut cpus, own);
            narrow(&mut nodes, memory);
        }
        let quota = |hierarchy: &Hierarchy| hierarchy.quota(tree);
        let quota_millis = hierarchies(tree, &who, "cpu").iter().filter_map(quota).min();
        Limits { cpus, nodes, quota_millis, chosen: false }
    }
}

impl Hierarchy {
    /// A group's directory, beneath the root.
    pub(crate) fn path(&self, group: &str) -> String {
        if group.is_empty() { self.mount.clone() } else { format!("{}/{group}", self.mount) }
    }

    /// The group and all above it, in that order.
    fn groups(&self) -> impl Iterator<Item = &str> {
        std::iter::successors(Some(self.group.as_str()), |group| match group.rsplit_once('/') {
            Some((above, _)) => Some(above),
            None => (!group.is_empty()).then_some(""),
        })
        .take(LEVELS_MAX)
    }

    /// Bytes of memory that it and the groups above it may use yet.
    fn memory_left(&self, tree: &Tree<'_>) -> Option<u64> {
        // Beyond `high` nobody is killed, and whoever takes memory waits.
        let (limits, used, gives_way): (&[&str], &str, &[&str]) = match self.unified {
            true => (
                &["memory.max", "memory.high"],
                "memory.current",
                &["active_file", "inactive_file", "slab_reclaimable"],
            ),
            false => (
                &["memory.limit_in_bytes"],
                "memory.usage_in_bytes",
                &["total_active_file", "total_inactive_file"],
            ),
        };
        let of = |group: &str| {
            let file = |name: &str| format!("{}/{name}", self.path(group));
            let limit = limits.iter().filter_map(|name| tree.value::<u64>(file(name))).min()?;
            let used = tree.value::<u64>(file(used)).unwrap_or(0);
            // What files have in the page cache gives way, and what the kernel remembers of names.
            let counts = tree.text(file("memory.stat")).unwrap_or_default();
            let count = |name: &str| {
                let mut words = counts.lines().filter_map(|line| line.split_once(' '));
                words.find(|(key, _)| *key == name).and_then(|(_, bytes)| bytes.trim().parse::<u64>().ok())
            };
            let cached = gives_way.iter().copied().filter_map(count).fold(0, u64::saturating_add);
            Some(limit.saturating_sub(used.saturating_sub(cached)))
        };
        self.groups().filter_map(of).min()
    }

    /// The least that it and the groups above it may use.
    fn quota(&self, tree: &Tree<'_>) -> Option<u64> {
        let of = |group: &str| -> Option<u64> {
            let base = self.path(group);
            let (quota, period) = if self.unified {
                let text = tree.text(format!("{base}/cpu.max"))?;
                let (quota, period) = text.trim().split_once(' ')?;
                (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?)
            } else {
                let quota = tree.value::<u64>(format!("{base}/cpu.cfs_quota_us"))?;
                (quota, tree.value::<u64>(format!("{base}/cpu.cfs_period_us"))?)
            };
            (quota > 0).then(|| quota.saturating_mul(1000).checked_div(period))?
        };
        self.groups().filter_map(of).min()
    }
}

/// Where a process is in the hierarchies that have a controller. The one of the second version always counts: its files are
/// there if it has the controller.
pub(crate) fn hierarchies(tree: &Tree<'_>, who: &str, controller: &str) -> Vec<Hierarchy> {
    let groups = tree.text(format!("proc/{who}/cgroup")).unwrap_or_default();
    let mounts = tree.text(format!("proc/{who}/mountinfo")).unwrap_or_default();
    let mut found = Vec::new();
    for line in groups.lines().take(LEVELS_MAX) {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let unified = number == "0" && controllers.is_empty();
        if !unified && !controllers.split(',').any(|name| name == controller) {
            continue;
        }
        // A name may hold anything; `..` in it is somewhere else (outside of a namespace).
        if group.split('/').any(|part| part == "..") {
            continue;
        }
        if let Some((mount, top)) = mount_of(&mounts, unified, controller) {
            // In a container the top of what is mounted may be the process' own group.
            let inside = group.strip_prefix(top.trim_end_matches('/')).unwrap_or("");
            found.push(Hierarchy { mount, group: inside.trim_matches('/').to_owned(), unified });
        }
    }
    found
}

/// Where a hierarchy is mounted, and which of its groups is the top there.
fn mount_of(mounts: &str, unified: bool, controller: &str) -> Option<(String, String)> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let fits = match unified {
            true => kind == "cgroup2",
            false => kind == "cgroup" && options.split(',').any(|name| name == controller),
        };
        let mut fields = before.split(' ').skip(3);
        let (top, point) = (fields.next()?, fields.next()?);
        fits.then(|| (point.trim_matches('/').to_owned(), top.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_what_the_kernel_and_the_control_groups_allow() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let available = || memory_available(root.path());
        assert_eq!(available(), None);
        write("proc/meminfo", "MemTotal:  16000000 kB\nMemAvailable:    8388608 kB\n");
        assert_eq!(available(), Some(8 << 30));
        write("proc/self/cgroup", "0::/jobs/one\n");
        write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        write("sys/fs/cgroup/jobs/one/memory.max", "max\n");
        assert_eq!(available(), Some(8 << 30));
        write("sys/fs/cgroup/jobs/memory.max", "1073741824\n");
        assert_eq!(available(), Some(1 << 30), "of a group above");
        write("sys/fs/cgroup/jobs/one/memory.high", "805306368\n");
        assert_eq!(available(), Some(768 << 20), "beyond it threads wait");
        write("sys/fs/cgroup/jobs/memory.current", "943718400\n");
        assert_eq!(available(), Some(124 << 20), "others of the group have most of it");
        let counts = "anon 629145600\nfile 314572800\ninactive_file 209715200\nactive_file 52428800\n";
        write("sys/fs/cgroup/jobs/memory.stat", &format!("{counts}slab_reclaimable 52428800\n"));
        assert_eq!(available(), Some(424 << 20), "a part of that is cache");
        write("sys/fs/cgroup/jobs/one/memory.current", "900000000\n");
        assert_eq!(available(), Some(0), "more than it may have");
        write("proc/self/cgroup", "4:memory:/batch\n");
        write("proc/self/mountinfo", "31 20 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
        write("sys/fs/cgroup/memory/batch/memory.limit_in_bytes", "536870912\n");
        assert_eq!(available(), Some(512 << 20), "of the first version");
        write("sys/fs/cgroup/memory/batch/memory.usage_in_bytes", "503316480\n");
        let counts = "total_inactive_file 67108864\ntotal_active_file 33554432\n";
        write("sys/fs/cgroup/memory/batch/memory.stat", counts);
        assert_eq!(available(), Some(128 << 20));
        write("proc/meminfo", "MemAvailable:    1024 kB\n");
        assert_eq!(available(), Some(1 << 20), "the machine has less");
    }
}
