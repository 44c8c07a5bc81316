//! Keeps a process on the CPUs of its zone with a cpuset of its own, where that is allowed.
//!
//! A cpuset keeps all threads of the process, and what it starts, inside. It keeps others outside only where the kernel makes
//! the CPUs exclusive: with control groups of the second version as a partition, which needs root and a parent that is one; with the
//! first version never for processes that are in no cpuset of their own. [`Zone::kind`] says which it is.
//!
//! Where no cpuset can be made (not allowed, no such controller, a container), pinned threads are all there is. Nothing here
//! is ever an error for a transfer.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, getpid, test_kill_process};

use crate::limits::{Hierarchy, hierarchies};
use crate::tree::{Tree, names};
use crate::{Cpus, Machine};

/// Names of cpusets begin with this, and end with the id of the process.
const PREFIX: &str = "haul-zone-";

/// What a zone does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The process stays inside, others stay outside.
    Exclusive,
    /// The process stays inside; others may come.
    Inside {
        /// Why nobody keeps them out, in words.
        because: String,
    },
}

/// In this variable a command that was put on the CPUs of a plan finds which those are.
pub const VARIABLE: &str = "HAUL_ZONE";

/// Whether this process is on the CPUs of a plan that was made for what it does: one that somebody else moved elsewhere since is
/// not.
pub fn is_within(machine: &Machine) -> bool {
    is_zone(machine, &std::env::var(VARIABLE).unwrap_or_default())
}

fn is_zone(machine: &Machine, cpus: &str) -> bool {
    let zone: Option<Cpus> = cpus.parse().ok().filter(|cpus: &Cpus| !cpus.is_empty());
    zone.is_some() && machine.limits.cpus == zone
}

/// A cpuset that this process is in. It leaves it and removes it when this is dropped.
#[derive(Debug)]
pub struct Zone {
    directory: PathBuf,
    /// Where the process was.
    before: PathBuf,
    unified: bool,
    kind: Kind,
}

/// Where a cpuset would go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// In which directory.
    pub parent: PathBuf,
    /// The group that the process is in.
    before: PathBuf,
    unified: bool,
}

impl Site {
    /// Where this process may make a cpuset, or why it may not, in words. Looks only.
    pub fn find(root: &Path) -> Result<Site, String> {
        let tree = Tree::new(root);
        let mut reasons = Vec::new();
        for hierarchy in hierarchies(&tree, "self", "cpuset") {
            match site(&tree, &hierarchy) {
                Ok(site) => return Ok(site),
                Err(reason) => reasons.push((hierarchy.unified, reason)),
            }
        }
        // The controller is in one hierarchy only: where one has it by name, the unified one has not.
        let first = reasons.into_iter().min_by_key(|(unified, _)| *unified);
        Err(first.map_or_else(|| "there are no control groups with cpusets".into(), |(_, reason)| reason))
    }
}

fn site(tree: &Tree<'_>, hierarchy: &Hierarchy) -> Result<Site, String> {
    let before = tree.at(hierarchy.path(&hierarchy.group));
    let parent = parent(tree, hierarchy);
    let shown = parent.display();
    if hierarchy.unified {
        let controllers = crate::tree::text(&parent.join("cgroup.subtree_control")).unwrap_or_default();
        if !controllers.split_ascii_whitespace().any(|name| name == "cpuset") {
            return Err(format!("{shown} gives no cpusets to groups in it"));
        }
        // A cpuset beside it with CPUs of it would make the kernel end it, and others would come in.
        if is_partition(&before) {
            return Err(format!("{} is a partition, which keeps others out already", before.display()));
        }
        // A group beside it has none of its limits: a job would get more than it was given.
        if let Some(limit) = LIMITS.into_iter().find(|limit| limits(&before.join(limit))) {
            return Err(format!("{} has a limit ({limit}), which its zone would not have", before.display()));
        }
    } else if !parent.join("cpuset.cpus").exists() {
        return Err(format!("{shown} is no cpuset"));
    }
    let writable = [parent.as_path(), &before.join("cgroup.procs")]
        .iter()
        .all(|path| rustix::fs::access(*path, rustix::fs::Access::WRITE_OK).is_ok());
    if !writable {
        return Err(format!("{shown} cannot be written"));
    }
    Ok(Site { parent, before, unified: hierarchy.unified })
}

/// In the second version a group with processes cannot have groups with controllers in it, but for the top one: the zone goes
/// beside the process' own group.
fn parent(tree: &Tree<'_>, hierarchy: &Hierarchy) -> PathBuf {
    let above = hierarchy.group.rsplit_once('/').map_or("", |(above, _)| above);
    let group = if hierarchy.unified { above } else { &hierarchy.group };
    tree.at(hierarchy.path(group))
}

/// Limits of a group of the second version.
const LIMITS: [&str; 6] = ["memory.max", "memory.high", "memory.swap.max", "pids.max", "cpu.max", "io.max"];

/// Whether such a file limits anything: `max`, `max 100000` and nothing at all do not.
fn limits(file: &Path) -> bool {
    let text = crate::tree::text(file).unwrap_or_default();
    text.split_ascii_whitespace().next().is_some_and(|first| first != "max")
}

/// Whether a group of the second version has CPUs of its own. Of one that could not be a partition the kernel says so behind a word.
fn is_partition(group: &Path) -> bool {
    let kind = crate::tree::text(&group.join("cpuset.cpus.partition")).unwrap_or_default();
    matches!(kind.trim(), "root" | "isolated")
}

impl Zone {
    /// Puts this process, with all its threads, into a cpuset of these CPUs and of the memory of all nodes that it may use. The
    /// error says in words why that cannot be; then nothing has changed.
    pub fn enter(site: &Site, machine: &Machine, cpus: &Cpus) -> Result<Zone, String> {
        if cpus.is_empty() {
            return Err("there are no CPUs for it".into());
        }
        let directory = site.parent.join(format!("{PREFIX}{}", getpid().as_raw_nonzero()));
        let wrong = |what: &str, error: &io::Error| format!("{}: {what}: {error}", directory.display());
        fs::create_dir(&directory).map_err(|error| wrong("cannot be made", &error))?;
        let because = "the first version of control groups keeps nobody out".into();
        let kind = Kind::Inside { because };
        let mut zone =
            Zone { directory: directory.clone(), before: site.before.clone(), unified: site.unified, kind };
        let nodes: Cpus =
            machine.nodes.iter().filter(|node| node.memory_bytes > 0).map(|node| node.number).collect();
        let nodes = match &machine.limits.nodes {
            Some(allowed) => allowed.and(&nodes),
            None => nodes,
        };
        let nodes = if nodes.is_empty() { machine.limits.nodes.clone().unwrap_or_default() } else { nodes };
        let write = |name: &str, value: &dyn std::fmt::Display| {
            let written = write(&directory.join(name), &value.to_string());
            written.map_err(|error| wrong(&format!("{name} cannot be set to {value}"), &error))
        };
        write("cpuset.cpus", cpus)?;
        write("cpuset.mems", &nodes)?;
        if site.unified {
            // It says "root" and then why not, if it cannot be one.
            let partition = directory.join("cpuset.cpus.partition");
            let asked = self::write(&partition, "root");
            let told = crate::tree::text(&partition).unwrap_or_default();
            zone.kind = match asked {
                Ok(()) if told.trim() == "root" => Kind::Exclusive,
                asked => {
                    let _ = self::write(&partition, "member");
                    let told = asked.err().map_or_else(|| told.trim().to_owned(), |error| error.to_string());
                    Kind::Inside { because: format!("the kernel makes no partition of it: {told}") }
                }
            };
        }
        write("cgroup.procs", &getpid().as_raw_nonzero())?;
        Ok(zone)
    }

    /// What it does.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Zone {
    fn drop(&mut self) {
        // Whatever becomes of the directory, it keeps nobody from these CPUs any more.
        if self.unified {
            let _ = write(&self.directory.join("cpuset.cpus.partition"), "member");
        }
        // What this process started may be in it too, and goes along: to where it was, or above where that has gone.
        let groups: Vec<&Path> = match self.before.exists() {
            true => vec![&self.before],
            false => self.before.ancestors().skip(1).collect(),
        };
        for _ in 0..16 {
            let inside = crate::tree::text(&self.directory.join("cgroup.procs")).unwrap_or_default();
            inside.lines().for_each(|process| {
                let takes = |group: &&&Path| write(&group.join("cgroup.procs"), process).is_ok();
                let _ = groups.iter().find(takes);
            });
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
        }
    }
}

/// Removes cpusets of processes that were killed, wherever this process could make one; a partition keeps its CPUs from everybody,
/// also without a process. The kernel keeps those that have processes.
pub fn sweep(root: &Path) {
    let tree = Tree::new(root);
    for parent in hierarchies(&tree, "self", "cpuset").iter().map(|hierarchy| parent(&tree, hierarchy)) {
        for name in names(&parent) {
            let process = name.strip_prefix(PREFIX).and_then(|id| Pid::from_raw(id.parse().ok()?));
            if let Some(process) = process
                && (process == getpid() || test_kill_process(process) == Err(rustix::io::Errno::SRCH))
            {
                let _ = fs::remove_dir(parent.join(name));
            }
        }
    }
}

fn write(file: &Path, value: &str) -> io::Result<()> {
    // One write: each is an order to the kernel.
    fs::OpenOptions::new().write(true).open(file)?.write_all(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_on_exactly_these_cpus_was_put_there() {
        let mut machine = Machine::default();
        assert!(!is_zone(&machine, ""), "nothing is known, and nothing is said");
        machine.limits.cpus = Some("0-3,8".parse().unwrap());
        assert!(is_zone(&machine, "0-3,8"));
        for other in ["", "0-3", "0-8", "nonsense"] {
            assert!(!is_zone(&machine, other), "{other}");
        }
    }

    /// A session's group goes with the last process in it, which may be this one on its way into the zone.
    #[test]
    fn a_zone_is_left_upwards_where_the_group_before_it_has_gone() {
        let groups = tempfile::tempdir().unwrap();
        let directory = groups.path().join("session/haul-zone-7");
        fs::create_dir_all(&directory).unwrap();
        for (group, inside) in [(directory.as_path(), "7\n8\n"), (groups.path(), "")] {
            fs::write(group.join("cgroup.procs"), inside).unwrap();
        }
        fs::write(directory.join("cpuset.cpus.partition"), "root..").unwrap();
        let before = groups.path().join("session/gone/scope");
        drop(Zone { directory: directory.clone(), before, kind: Kind::Exclusive, unified: true });
        assert_eq!(fs::read_to_string(groups.path().join("cgroup.procs")).unwrap(), "8", "one at a time");
        assert_eq!(fs::read_to_string(directory.join("cpuset.cpus.partition")).unwrap(), "member");
    }
}
