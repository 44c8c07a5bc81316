//! Cpusets of this machine, where it allows them. In a process of its own: the whole process moves.

mod support;

use std::fs;
use std::path::Path;

use haul_testkit::lacks_here;
use haul_topology::zone::{self, Kind, Site, Zone};
use haul_topology::{Cpus, Machine, affinity};

#[test]
fn a_process_is_in_its_zone_until_that_is_dropped() {
    let root = Path::new("/");
    let before = affinity().unwrap();
    let one: Cpus = before.first().into_iter().collect();
    let site = match Site::find(root) {
        Ok(site) => site,
        // Then it says why, and there is nothing else to see.
        Err(reason) => {
            assert!(!reason.is_empty());
            return lacks_here(&format!("a place for a cpuset: {reason}"));
        }
    };
    let machine = Machine::read(root);
    let zone = match Zone::enter(&site, &machine, &one) {
        Ok(zone) => zone,
        Err(reason) => {
            assert!(reason.contains("haul-zone-"), "{reason}");
            assert_eq!(affinity().unwrap(), before, "nothing has changed");
            return lacks_here(&format!("a cpuset: {reason}"));
        }
    };
    let directory = zone.directory().to_owned();
    assert!(
        matches!(zone.kind(), Kind::Inside { because } if !because.is_empty())
            || *zone.kind() == Kind::Exclusive
    );
    assert_eq!(affinity().unwrap(), one, "all threads are inside");
    let of_thread = std::thread::spawn(|| affinity().unwrap()).join().unwrap();
    assert_eq!(of_thread, one);
    drop(zone);
    assert!(!directory.exists());
    assert_eq!(affinity().unwrap(), before);
    let wrong = Zone::enter(&site, &machine, &"8190".parse().unwrap()).unwrap_err();
    assert!(wrong.contains("cpuset.cpus cannot be set to 8190"), "{wrong}");
    assert!(!directory.exists(), "a zone that failed leaves nothing");
    assert_eq!(affinity().unwrap(), before);
}

#[test]
fn a_tree_without_control_groups_has_no_place_for_a_zone() {
    let tree = support::tree("vm-2cpu");
    assert_eq!(Site::find(tree.path()).unwrap_err(), "there are no control groups with cpusets");
}

#[test]
fn a_zone_goes_into_the_cpuset_of_the_first_version_and_beside_the_group_of_the_second() {
    let write = |root: &Path, path: &str, text: &str| {
        let path = root.join("sys/fs/cgroup").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let job = support::tree("slurm-cpuset");
    let own = "cpuset/slurm/uid_1000/job_7";
    assert!(Site::find(job.path()).unwrap_err().ends_with("job_7 is no cpuset"));
    write(job.path(), &format!("{own}/cpuset.cpus"), "12-35,60-83\n");
    write(job.path(), &format!("{own}/cgroup.procs"), "7\n");
    assert!(Site::find(job.path()).unwrap().parent.ends_with(own));
    let container = support::tree("container");
    let above = "kubepods/pod7";
    write(container.path(), &format!("{above}/cgroup.subtree_control"), "cpu memory\n");
    write(container.path(), &format!("{above}/c1/cgroup.procs"), "7\n");
    let said = Site::find(container.path()).unwrap_err();
    assert!(said.ends_with("pod7 gives no cpusets to groups in it"), "{said}");
    write(container.path(), &format!("{above}/cgroup.subtree_control"), "cpuset cpu\n");
    // What the container may use is a matter of its group.
    let limits = [
        ("memory.max", "2147483648\n", "max\n"),
        ("cpu.max", "150000 100000\n", "max 100000\n"),
        ("pids.max", "512\n", "max\n"),
        ("io.max", "8:16 rbps=2097152 wbps=max riops=max wiops=max\n", ""),
    ];
    for (name, limit, none) in limits {
        write(container.path(), &format!("{above}/c1/{name}"), limit);
        let said = Site::find(container.path()).unwrap_err();
        assert!(said.contains(&format!("c1 has a limit ({name})")), "{said}");
        write(container.path(), &format!("{above}/c1/{name}"), none);
    }
    assert!(Site::find(container.path()).unwrap().parent.ends_with(above));
}

#[test]
fn what_a_killed_command_left_goes_and_what_lives_stays() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = child.id();
    child.wait().unwrap();
    let alive = std::os::unix::process::parent_id();
    for (machine, parent) in [("partition", "transfers"), ("slurm-cpuset", "cpuset/slurm/uid_1000/job_7")] {
        let tree = support::tree(machine);
        let parent = tree.path().join("sys/fs/cgroup").join(parent);
        let names = [format!("haul-zone-{dead}"), format!("haul-zone-{alive}"), "haul-zone-x".into()];
        names.iter().for_each(|name| fs::create_dir_all(parent.join(name)).unwrap());
        zone::sweep(tree.path());
        let left = names.map(|name| parent.join(name).exists());
        assert_eq!(left, [false, true, true], "{machine}");
    }
}

/// The controller is in the hierarchy that has it by name: what is wrong there can be mended.
#[test]
fn where_both_versions_are_mounted_the_one_that_has_cpusets_is_told_of() {
    let tree = support::tree("slurm-cpuset");
    let file = tree.path().join("proc/self/cgroup");
    let groups = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{groups}0::/\n")).unwrap();
    let unified = "70 60 0:70 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    let mounts = tree.path().join("proc/self/mountinfo");
    fs::write(&mounts, fs::read_to_string(&mounts).unwrap() + unified).unwrap();
    fs::create_dir_all(tree.path().join("sys/fs/cgroup/unified")).unwrap();
    let said = Site::find(tree.path()).unwrap_err();
    assert!(said.contains("/cpuset") && !said.contains("unified"), "{said}");
}

#[test]
fn a_partition_is_not_ended_for_a_zone() {
    let tree = support::tree("partition");
    let group = tree.path().join("sys/fs/cgroup/transfers/haul");
    let set = |kind: &str| fs::write(group.join("cpuset.cpus.partition"), format!("{kind}\n")).unwrap();
    for kind in ["root", "isolated"] {
        set(kind);
        let said = Site::find(tree.path()).unwrap_err();
        assert!(said.ends_with("transfers/haul is a partition, which keeps others out already"), "{said}");
    }
    for kind in ["member", "root invalid (Cpu list in cpuset.cpus not exclusive)"] {
        set(kind);
        assert!(Site::find(tree.path()).unwrap().parent.ends_with("transfers"), "{kind}");
    }
}
