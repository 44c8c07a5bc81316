//! What is read of recorded machines, of damaged ones, and of this one.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use haul_topology::{Counters, Cpus, DeviceKind, Load, Machine, Origin, Plan, Threads, Transfer};
use support::{cpus, machine, tree};

fn nodes_of(machine: &Machine, name: &str) -> Vec<usize> {
    assert!(machine.device(name).is_some(), "no {name} in {:?}", machine.devices);
    machine.nodes_of(name).into_iter().collect()
}

#[test]
fn two_sockets_with_two_threads_a_core() {
    let machine = machine("xeon-2s-data-transfer-node");
    assert_eq!(machine.nodes.len(), 2);
    assert_eq!(machine.nodes[1].cpus, cpus("6-11,18-23"));
    assert_eq!(machine.nodes[0].memory_bytes, 65832816 << 10);
    assert_eq!(machine.distance(0, 1), 21);
    assert_eq!(machine.siblings(3), cpus("3,15"));
    assert_eq!(machine.cpus.iter().filter(|cpu| cpu.core == cpu.number).count(), 12);
    assert_eq!(machine.caches.len(), 2);
    assert_eq!((machine.caches[0].level, machine.caches[0].bytes), (3, 20 << 20));
    assert_eq!((nodes_of(&machine, "eth0"), nodes_of(&machine, "eth3")), (vec![0], vec![1]));
    assert_eq!(nodes_of(&machine, "bond0"), [1], "by what it is made of");
    assert_eq!(nodes_of(&machine, "nvme1n1"), [0], "by its controller");
    assert_eq!(nodes_of(&machine, "sda"), [0], "by what its adapter is connected to");
    let md = machine.device("md0").unwrap();
    assert_eq!(md.below, ["nvme0n1", "nvme1n1"], "whole disks, not partitions");
    assert_eq!((md.origin, md.bytes), (Origin::Unknown, Some(3750502400 * 512)));
    assert_eq!(nodes_of(&machine, "md0"), [0]);
    assert_eq!(machine.device("eth2").unwrap().speed_mbit, Some(40_000));
    assert!(machine.device("lo").is_none() && machine.device("loop0").is_none());
    assert_eq!(machine.usable(), cpus("0-23"));
}

#[test]
fn eight_nodes_with_two_caches_each() {
    let machine = machine("epyc-7451-2s");
    assert_eq!((machine.nodes.len(), machine.cpus.len(), machine.caches.len()), (8, 96, 16));
    assert_eq!(machine.caches[1].cpus, cpus("3-5,51-53"));
    assert_eq!((machine.distance(0, 3), machine.distance(1, 5), machine.distance(1, 6)), (16, 28, 32));
    assert_eq!(nodes_of(&machine, "dm-0"), [2, 3]);
    let infiniband = machine.device("mlx5_0").unwrap();
    assert_eq!((infiniband.kind, infiniband.speed_mbit), (DeviceKind::Infiniband, Some(100_000)));
    assert_eq!(machine.cpu(50).unwrap().package, 0);
    assert_eq!(machine.cpu(95).unwrap().package, 1);
}

#[test]
fn cpus_that_are_numbered_across_sockets_are_on_their_nodes() {
    let machine = machine("xeon-e7-4s");
    assert_eq!(machine.nodes[1].cpus, cpus("2,6,10,14,18,22,26,30,34,38"));
    assert_eq!(machine.cpu(6).unwrap().node, Some(1));
    assert_eq!(nodes_of(&machine, "sdb"), [2]);
}

#[test]
fn an_arm_server() {
    let machine = machine("kunpeng-920-2s");
    assert_eq!((machine.nodes.len(), machine.cpus.len(), machine.caches.len()), (4, 128, 4));
    assert_eq!((machine.distance(1, 3), machine.distance(3, 1)), (24, 24));
    assert_eq!(machine.cpu(64).unwrap().package, 3180);
}

#[test]
fn cpus_that_are_switched_off_or_isolated_are_not_used() {
    let machine = machine("xeon-2s-offline");
    assert_eq!(machine.offline, cpus("3,5,8"));
    assert_eq!(machine.isolated, cpus("10-11"));
    assert_eq!(machine.nodes[1].cpus, cpus("1,7,9,11"));
    assert_eq!(machine.usable(), cpus("0-2,4,6-7,9"));
    assert_eq!(machine.cpu(3), None);
}

#[test]
fn what_control_groups_allow_is_known() {
    let container = machine("container");
    assert_eq!(container.usable(), cpus("6-17,54-65"));
    assert_eq!(container.limits.nodes, Some(cpus("1-2")));
    assert_eq!(container.limits.quota_millis, Some(12_500), "of a group above its own");
    let job = machine("slurm-cpuset");
    assert_eq!(job.usable(), cpus("12-35,60-83"));
    assert_eq!(job.limits.quota_millis, None, "-1 is none");
}

#[test]
fn where_no_memory_may_be_had_nothing_is_put() {
    let tree = tree("xeon-2s-data-transfer-node");
    fs::create_dir_all(tree.path().join("proc/self")).unwrap();
    let status = "Name:\thaul\nCpus_allowed_list:\t0-23\nMems_allowed_list:\t1\n";
    fs::write(tree.path().join("proc/self/status"), status).unwrap();
    assert_eq!(Machine::read(tree.path()).usable(), cpus("6-11,18-23"));
}

/// Of a node without memory the kernel says to everybody that none of its memory may be had.
#[test]
fn cpus_of_a_node_without_memory_are_used() {
    let tree = tree("xeon-2s-data-transfer-node");
    fs::create_dir_all(tree.path().join("proc/self")).unwrap();
    let status = "Name:\thaul\nCpus_allowed_list:\t0-23\nMems_allowed_list:\t0\n";
    fs::write(tree.path().join("proc/self/status"), status).unwrap();
    let none = "Node 1 MemTotal:       0 kB\nNode 1 MemFree:        0 kB\n";
    fs::write(tree.path().join("sys/devices/system/node/node1/meminfo"), none).unwrap();
    assert_eq!(Machine::read(tree.path()).usable(), cpus("0-23"));
}

/// Of what a partition asked for, others may have a part; what it has is what counts.
#[test]
fn of_a_partition_what_it_has_is_used_and_not_what_it_asked_for() {
    let tree = tree("partition");
    let has = cpus("6-11,18-35,54-59,66-83");
    let write = |path: &str, text: &str| fs::write(tree.path().join(path), text).unwrap();
    assert_eq!(Machine::read(tree.path()).usable(), has);
    // Its group alone says so.
    write("proc/self/status", "Name:\thaul\nCpus_allowed_list:\t0-95\nMems_allowed_list:\t0-7\n");
    for kind in ["root", "isolated", "member", "root invalid (Cpu list in cpuset.cpus not exclusive)", ""] {
        write("sys/fs/cgroup/transfers/haul/cpuset.cpus.partition", kind);
        assert_eq!(Machine::read(tree.path()).usable(), has, "{kind}");
    }
    // Kernels that count isolated partitions as isolated: those of others were not its own before.
    write("sys/devices/system/cpu/isolated", "12-17,60-65\n");
    assert_eq!(Machine::read(tree.path()).usable(), has);
    // Nothing is put where no load is balanced: its own is left alone.
    write("sys/devices/system/cpu/isolated", "6-35,54-83\n");
    assert_eq!(Machine::read(tree.path()).usable(), cpus(""));
}

#[test]
fn cpus_without_memory_beside_them_are_on_no_node() {
    let machine = machine("xeon-x7550-4s");
    assert_eq!((machine.nodes.len(), machine.cpus.len()), (1, 64));
    assert_eq!(machine.cpu(1).unwrap().node, None);
    assert_eq!(machine.usable().len(), 32);
}

#[test]
fn virtual_machines_hide_where_devices_are() {
    for name in ["vm-2cpu", "vm-2nodes"] {
        let machine = machine(name);
        assert!(nodes_of(&machine, "vda").is_empty());
        assert!(
            machine
                .devices
                .iter()
                .all(|device| device.origin == Origin::Unknown && device.speed_mbit.is_none())
        );
    }
}

#[test]
fn this_machine_is_read() {
    let root = Path::new("/");
    let machine = Machine::read(root);
    let here = haul_topology::affinity().unwrap();
    assert!(!machine.nodes.is_empty());
    let all = machine.cpus.iter().map(|cpu| cpu.number).collect();
    assert_eq!(here.without(&all), cpus(""), "CPUs that this thread may run on are online");
    assert_eq!(machine.limits.cpus.clone().unwrap().without(&here), cpus(""));
    let counters = Counters::read(root);
    let load = Load::between(&counters, &counters);
    assert!(load.cpus.is_empty(), "no time has passed");
    assert!(machine.nodes.iter().map(|node| node.memory_bytes).sum::<u64>() > 0);
}

#[test]
fn load_is_what_happened_between_two_looks() {
    let directory = tempfile::tempdir().unwrap();
    let look = |stat: &str, hit: u64, foreign: u64| {
        let node = directory.path().join("sys/devices/system/node/node0");
        fs::create_dir_all(&node).unwrap();
        fs::create_dir_all(directory.path().join("proc/pressure")).unwrap();
        fs::write(directory.path().join("proc/stat"), stat).unwrap();
        fs::write(node.join("numastat"), format!("numa_hit {hit}\nnuma_miss 0\nnuma_foreign {foreign}\n"))
            .unwrap();
        let pressure = "some avg10=12.34 avg60=1.00 avg300=0.00 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n";
        fs::write(directory.path().join("proc/pressure/memory"), pressure).unwrap();
        Counters::read(directory.path())
    };
    let before =
        look("cpu  9 9 9 9\ncpu0 100 0 100 800 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0\ncpu2 5 0 0 100\n", 1000, 0);
    // CPU 0 works for 75 of 100 ticks, CPU 1 waits for its disk all the time, CPU 2 went back, CPU 3 is new.
    let after =
        look("cpu0 150 0 125 825 0 0 0 0\ncpu1 0 0 0 100 50 0 0 0\ncpu2 0 0 0 50\ncpu3 1 1 1 1\n", 1900, 100);
    let load = Load::between(&before, &after);
    assert_eq!(load.cpus.into_iter().collect::<Vec<_>>(), [(0, 75), (1, 0)]);
    assert_eq!(load.nodes[&0].away, 10);
    assert_eq!(load.memory_pressure, Some(12));
}

/// Every file of a machine, one at a time, says something that no kernel says.
#[test]
fn no_file_however_damaged_is_more_than_knowledge_lost() {
    fn files(directory: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                files(&entry.path(), found);
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    let tree = tree("container");
    let mut all = Vec::new();
    files(tree.path(), &mut all);
    // Files of one kind are alike: the first CPUs do for all.
    let first = |path: &Path| {
        let text = path.to_str().unwrap();
        !text.contains("/cpu/cpu") || ["/cpu0/", "/cpu7/"].iter().any(|cpu| text.contains(cpu))
    };
    all.retain(|path| first(path));
    assert!(all.len() > 60);
    let damages: [&[u8]; 6] = [
        b"",
        b"-1\n",
        b"0-4294967295\n",
        b"18446744073709551615 99999999999999999999\n",
        b"\xff\xfe\0",
        b"9",
    ];
    for file in all {
        let before = fs::read(&file).unwrap();
        for damage in damages {
            fs::write(&file, damage).unwrap();
            let machine = Machine::read(tree.path());
            assert!(!machine.nodes.is_empty());
            assert!(machine.usable().len() <= 96, "{} {damage:?}", file.display());
            let known: BTreeSet<usize> = machine.nodes.iter().map(|node| node.number).collect();
            assert!(machine.devices.iter().all(|device| machine.nodes_of(&device.name).is_subset(&known)));
            let counters = Counters::read(tree.path());
            let _ = Load::between(&counters, &counters);
        }
        fs::remove_file(&file).unwrap();
        assert!(!Machine::read(tree.path()).nodes.is_empty());
        fs::write(&file, before).unwrap();
    }
    assert_eq!(Machine::read(tree.path()), machine("container"), "everything is as it was");
}

#[test]
fn nothing_is_waited_for_and_circles_end() {
    use std::os::unix::fs::symlink;
    let tree = tree("vm-2cpu");
    let at = |path: &str| tree.path().join(path);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("proc/meminfo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    fs::remove_dir_all(at("sys/devices/system/node")).unwrap();
    for (name, below) in [("dm-0", "dm-1"), ("dm-1", "dm-0")] {
        fs::create_dir_all(at(&format!("sys/block/{name}/slaves"))).unwrap();
        symlink(format!("../../{below}"), at(&format!("sys/block/{name}/slaves/{below}"))).unwrap();
    }
    symlink("loop", at("sys/block/loop")).unwrap();
    let machine = Machine::read(tree.path());
    assert_eq!(machine.nodes.len(), 1, "a kernel without NUMA is one node");
    assert_eq!(machine.nodes[0].cpus, cpus("0-1"));
    assert!(nodes_of(&machine, "dm-0").is_empty());
}

#[test]
fn without_sys_there_are_cpus_and_nothing_is_said_of_nodes() {
    let blind = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(blind.path().join("proc/self")).unwrap();
    std::fs::write(blind.path().join("proc/stat"), "cpu  5 0 5 90\ncpu0 5 0 5 40\ncpu3 0 0 0 50\nctxt 7\n")
        .unwrap();
    std::fs::write(blind.path().join("proc/self/status"), "Cpus_allowed_list:\t0-1,3\n").unwrap();
    let machine = Machine::read(blind.path());
    assert_eq!(machine.usable(), "0,3".parse().unwrap());
    let threads = Threads { io: 2, comm_out: 1, ..Threads::default() };
    let transfer = Transfer { threads, ..Transfer::default() };
    let plan = Plan::of(&machine, &Load::default(), &Cpus::new(), &transfer);
    assert!(
        matches!(&plan, Plan::LeaveToKernel { because } if because.contains("is not known here")),
        "{plan:?}"
    );
}

#[test]
fn an_empty_tree_is_a_machine_without_anything() {
    let empty = tempfile::tempdir().unwrap();
    let machine = Machine::read(empty.path());
    assert_eq!((machine.cpus.len(), machine.devices.len(), machine.usable().len()), (0, 0, 0));
}
