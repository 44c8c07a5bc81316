//! Plans for recorded machines: what must hold for all of them, and what is expected of each.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use haul_topology::{Cpus, Load, Machine, Map, NodeLoad, Placement, Plan, ThreadKind, Threads, Transfer};
use proptest::prelude::*;
use support::{NAMES, cpus, machine, machines};

const NAMES_ALL: usize = NAMES.len();

fn transfer(storage: &[&str], network: &[&str], io: u16, streams: u16) -> Transfer {
    let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let threads = Threads { master: 1, io, comm_out: streams, log: 1, scan: 1, ..Threads::default() };
    Transfer { storage: own(storage), network: own(network), threads, ..Transfer::default() }
}

/// The CPUs of threads that move bytes.
fn given(placement: &Placement) -> Cpus {
    let moving = placement.seats.iter().filter(|seat| seat.kind.moves_bytes());
    moving.fold(Cpus::new(), |all, seat| all.or(&seat.cpus))
}

fn placed(machine: &Machine, load: &Load, taken: &str, transfer: &Transfer) -> Placement {
    match Plan::of(machine, load, &cpus(taken), transfer) {
        Plan::Placed(placement) => placement,
        Plan::LeaveToKernel { because } => panic!("left to the kernel: {because}"),
    }
}

fn left(machine: &Machine, load: &Load, taken: &str, transfer: &Transfer) -> String {
    match Plan::of(machine, load, &cpus(taken), transfer) {
        Plan::Placed(placement) => panic!("placed: {placement:?}"),
        Plan::LeaveToKernel { because } => because,
    }
}

fn of_kind(placement: &Placement, kind: ThreadKind) -> Vec<(usize, String)> {
    let seats = placement.seats.iter().filter(|seat| seat.kind == kind);
    seats.map(|seat| (seat.node, seat.cpus.to_string())).collect()
}

fn nodes(placement: &Placement, kind: ThreadKind) -> Vec<usize> {
    of_kind(placement, kind).into_iter().map(|(node, _)| node).collect()
}

#[test]
fn threads_are_near_their_devices_and_have_cores_to_themselves() {
    let machine = machine("xeon-2s-data-transfer-node");
    let placement = placed(&machine, &Load::default(), "", &transfer(&["md0"], &["bond0"], 2, 4));
    assert_eq!(nodes(&placement, ThreadKind::Io), [0, 0]);
    assert_eq!(nodes(&placement, ThreadKind::CommOut), [1, 1, 1, 1]);
    assert_eq!(placement.buffers, 0, "what was read is hashed where it is");
    assert_eq!(nodes(&placement, ThreadKind::Master), [0]);
    let given = given(&placement);
    let cores: BTreeSet<usize> = given.iter().map(|cpu| machine.cpu(cpu).unwrap().core).collect();
    assert_eq!((given.len(), cores.len()), (6, 6), "six threads on six cores");
    assert_eq!(placement.zone.len(), 16, "nobody beside them, and two cores more for three that mostly wait");
    assert_eq!(placement.others.len(), 8);
    for kind in [ThreadKind::Master, ThreadKind::Log, ThreadKind::Scan] {
        let seat = placement.seats.iter().find(|seat| seat.kind == kind).unwrap();
        assert_eq!((&seat.cpus, seat.node), (&placement.zone, 0), "{kind}");
    }
}

#[test]
fn where_cpus_are_fewer_threads_share_those_of_their_node() {
    let machine = machine("xeon-2s-data-transfer-node");
    let mut transfer = transfer(&["md0"], &["bond0"], 8, 4);
    transfer.threads = Threads::of_source(8, 4);
    let placement = placed(&machine, &Load::default(), "", &transfer);
    assert!(!placement.own);
    // Six cores and their siblings: the kernel chooses among them.
    assert_eq!(of_kind(&placement, ThreadKind::Io), vec![(0, "0-5,12-17".to_owned()); 8]);
    assert_eq!(of_kind(&placement, ThreadKind::CommOut), vec![(1, "6-9,18-21".to_owned()); 4]);
    assert_eq!(placement.zone, cpus("0-9,12-21"));
    assert_eq!(placement.others, cpus("10-11,22-23"));
}

#[test]
fn one_thread_more_than_there_are_seats_for_is_where_its_kind_is() {
    let machine = machine("xeon-2s-data-transfer-node");
    let placement = placed(&machine, &Load::default(), "11,23", &transfer(&["md0"], &["bond0"], 2, 2));
    assert!(placement.own);
    assert_eq!(placement.beside(&machine, ThreadKind::Io), cpus("0-5,12-17"), "also where nobody sits");
    assert_eq!(placement.beside(&machine, ThreadKind::CommOut), cpus("6-10,18-22"), "but others");
    assert_eq!(placement.beside(&machine, ThreadKind::Errand), placement.zone);
    let everywhere = placement.zone.or(&placement.others);
    assert_eq!(placement.beside(&machine, ThreadKind::Hash), everywhere, "it has no node");
}

#[test]
fn a_plan_of_somebody_else_is_carried_out_only_if_it_can_be() {
    let machine = machine("xeon-2s-data-transfer-node");
    let transfer = transfer(&["md0"], &["bond0"], 2, 2);
    let good = placed(&machine, &Load::default(), "", &transfer);
    assert!(good.fits(&machine, &transfer.threads));
    let fits = |change: &dyn Fn(&mut Placement)| {
        let mut changed = good.clone();
        change(&mut changed);
        changed.fits(&machine, &transfer.threads)
    };
    assert!(!fits(&|it| it.seats[0].cpus = Cpus::new()));
    assert!(!fits(&|it| it.seats[3].cpus = cpus("3,24")), "there is no CPU 24");
    assert!(!fits(&|it| it.zone = Cpus::new()));
    assert!(!fits(&|it| it.zone = cpus("0-500")));
    assert!(!fits(&|it| drop(it.seats.pop())));
    assert!(!fits(&|it| it.seats[1].index = 7));
    let mut narrow = machine.clone();
    narrow.limits.cpus = Some(cpus("0-3,6-9"));
    assert!(!good.fits(&narrow, &transfer.threads), "it may not use them all");
}

#[test]
fn the_kernel_keeps_its_hands_on_small_machines_whatever_is_asked() {
    for (io, streams) in [(1, 1), (2, 2), (8, 4), (64, 64)] {
        for threads in [
            Threads::of_source(io, streams),
            Threads::of_sink(io, streams),
            Threads::of_both(io, streams, true),
        ] {
            let transfer = Transfer { threads, ..transfer(&["vda"], &["eth0"], 0, 0) };
            left(&machine("vm-2cpu"), &Load::default(), "", &transfer);
        }
    }
}

#[test]
fn a_node_without_cores_left_gives_siblings_before_another_node_is_used() {
    let machine = machine("xeon-2s-data-transfer-node");
    let transfer = transfer(&["md0"], &["bond0"], 1, 8);
    let placement = placed(&machine, &Load::default(), "", &transfer);
    assert_eq!(nodes(&placement, ThreadKind::CommOut), [1; 8]);
    let comm = of_kind(&placement, ThreadKind::CommOut);
    let numbers: Vec<&str> = comm.iter().map(|(_, cpu)| cpu.as_str()).collect();
    assert_eq!(numbers, ["6", "7", "8", "9", "10", "11", "18", "19"]);
    let seat = placement.seats.iter().find(|seat| seat.cpus == cpus("18")).unwrap();
    assert!(seat.because.ends_with("bond0 is on node 1; shares its core"), "{}", seat.because);
}

#[test]
fn io_threads_are_on_all_nodes_of_a_set_of_disks() {
    let machine = machine("epyc-7451-2s");
    let placement = placed(&machine, &Load::default(), "", &transfer(&["dm-0"], &["enp65s0"], 4, 4));
    assert_eq!(nodes(&placement, ThreadKind::Io), [2, 3, 2, 3]);
    let io: Vec<_> = placement.seats.iter().filter(|seat| seat.kind == ThreadKind::Io).collect();
    // Any of them is given any part of the set.
    assert!(io.iter().all(|seat| seat.cpus == io[0].cpus && seat.cpus.len() == 4), "{io:?}");
    let of_node = |node: usize| io[0].cpus.and(&machine.node(node).unwrap().cpus).len();
    assert_eq!((of_node(2), of_node(3)), (2, 2));
    let because = "storage is on nodes 2-3; each thread works with all of it";
    assert!(
        io.iter().all(|seat| seat.because == because && seat.device.as_deref() == Some("dm-0")),
        "{io:?}"
    );
    let one_each =
        placed(&machine, &Load::default(), "", &transfer(&["nvme0n1", "nvme2n1"], &["enp65s0"], 2, 2));
    let io = one_each.seats.iter().find(|seat| seat.kind == ThreadKind::Io).unwrap();
    assert_eq!((io.device.as_deref(), io.cpus.len()), (None, 2), "{io:?}");
    assert_eq!(nodes(&placement, ThreadKind::CommOut), [5; 4]);
    assert!([2, 3].contains(&placement.buffers));
    // Node 5 has two caches: two threads in each.
    let caches: Vec<_> = of_kind(&placement, ThreadKind::CommOut)
        .iter()
        .map(|(_, cpu)| machine.cpu(cpu.parse().unwrap()).unwrap().cache.unwrap())
        .collect();
    let mut counts = BTreeMap::new();
    caches.iter().for_each(|cache| *counts.entry(*cache).or_insert(0) += 1);
    assert_eq!(counts.into_values().collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn a_node_that_is_full_overflows_to_the_nearest() {
    let machine = machine("epyc-7451-2s");
    let placement = placed(&machine, &Load::default(), "", &transfer(&["nvme0n1"], &[], 16, 0));
    let io = nodes(&placement, ThreadKind::Io);
    assert_eq!(io.iter().filter(|node| **node == 2).count(), 12, "{io:?}");
    assert!(io.iter().all(|node| *node < 4), "on the same socket: {io:?}");
    let far = placement.seats.iter().find(|seat| seat.node != 2).unwrap();
    assert!(far.because.contains("no CPU left; node 0 is nearest (distance 16)"), "{}", far.because);
}

#[test]
fn the_least_loaded_cores_go_first() {
    let machine = machine("xeon-e7-4s");
    let mut load = Load::default();
    machine.cpus.iter().for_each(|cpu| {
        load.cpus.insert(cpu.number, 3);
    });
    // Of node 2 all but CPUs 33 and 37 work, but not so much that they are others'.
    machine.nodes[2].cpus.iter().filter(|cpu| *cpu < 33).for_each(|cpu| {
        load.cpus.insert(cpu, 45);
    });
    let placement = placed(&machine, &load, "", &transfer(&["sdb"], &["p3p1"], 1, 1));
    let chosen = given(&placement);
    assert_eq!(chosen, cpus("33,37"));
    let zone = &placement.zone;
    assert!(
        zone.iter().all(|cpu| machine.cpu(cpu).unwrap().node == Some(2)),
        "near goes before idle: {zone}"
    );
}

#[test]
fn what_others_keep_busy_is_not_taken_however_near_it_is() {
    let machine = machine("xeon-2s-data-transfer-node");
    let busy = |of: &str| {
        let percent = |cpu| (cpu, if cpus(of).has(cpu) { 100 } else { 0 });
        Load { cpus: machine.cpus.iter().map(|cpu| percent(cpu.number)).collect(), ..Load::default() }
    };
    // A program that is bound to the disks' socket has all of that; half of the machine is idle.
    let placement = placed(&machine, &busy("0-5,12-17"), "", &transfer(&["md0"], &["bond0"], 2, 2));
    assert!(placement.zone.and(&cpus("0-5,12-17")).is_empty(), "{placement:?}");
    assert_eq!((nodes(&placement, ThreadKind::Io), placement.buffers), (vec![1, 1], 1));
    let io = &placement.seats.iter().find(|seat| seat.kind == ThreadKind::Io).unwrap().because;
    assert!(io.contains("md0 is on node 0, which has no CPU left"), "{io}");
    assert!(placement.others.has(0), "it is left to them");
    // Its other thread works for the same core.
    let placement = placed(&machine, &busy("0-3"), "", &transfer(&["md0"], &["bond0"], 2, 2));
    assert_eq!(of_kind(&placement, ThreadKind::Io), [(0, "4".to_owned()), (0, "5".to_owned())]);
    let said = left(&machine, &busy("0-9"), "", &transfer(&["md0"], &["bond0"], 2, 2));
    assert_eq!(said, "others keep 20 of 24 CPUs busy: the machine is shared");
}

#[test]
fn on_cpus_that_were_chosen_for_it_a_transfer_is_placed_within_them() {
    let mut machine = machine("xeon-2s-data-transfer-node");
    let mut transfer = transfer(&["md0"], &["bond0"], 8, 4);
    transfer.threads = Threads::of_source(8, 4);
    let chosen = placed(&machine, &Load::default(), "", &transfer).zone;
    machine.limits.cpus = Some(chosen.clone());
    let said = left(&machine, &Load::default(), "", &transfer);
    assert!(said.contains("15 of 20 CPUs"), "whoever has these CPUs for another reason: {said}");
    machine.limits.chosen = true;
    let placement = placed(&machine, &Load::default(), "", &transfer);
    assert_eq!(of_kind(&placement, ThreadKind::Io), vec![(0, "0-5,12-17".to_owned()); 8]);
    assert_eq!(of_kind(&placement, ThreadKind::CommOut), vec![(1, "6-9,18-21".to_owned()); 4]);
    assert_eq!(placement.zone, chosen);
    machine.limits.cpus = Some(cpus("0-5,6-9"));
    left(&machine, &Load::default(), "", &transfer);
}

#[test]
fn whoever_asks_may_know_better_where_a_device_is() {
    let machine = machine("vm-2nodes");
    let asked = transfer(&["vda"], &[], 2, 0);
    assert!(left(&machine, &Load::default(), "", &asked).contains("the node of vda is not known"));
    let mut known = machine.clone();
    Map::parse("[devices]\nvda = 1\n", std::path::Path::new("map")).unwrap().apply(&mut known).unwrap();
    let told = asked.clone().with_mapped(&known);
    let placement = placed(&machine, &Load::default(), "", &told);
    assert_eq!((nodes(&placement, ThreadKind::Io), placement.buffers), (vec![1, 1], 1));
    // What the kernel says is known to both; a node that there is not is not believed.
    assert_eq!(asked.clone().with_mapped(&machine), asked);
    let wrong = Transfer { nodes: BTreeMap::from([("vda".into(), BTreeSet::from([7]))]), ..asked };
    assert!(left(&machine, &Load::default(), "", &wrong).contains("the node of vda is not known"));
}

#[test]
fn buffers_are_where_data_has_the_shortest_way() {
    let machine = machine("kunpeng-920-2s");
    let load = Load::default();
    let buffers = |storage: &[&str], network: &[&str], load: &Load| {
        placed(&machine, load, "", &transfer(storage, network, 4, 4)).buffers
    };
    assert_eq!(buffers(&["nvme0n1"], &["enp125s0f0"], &load), 2, "storage counts twice: it is hashed too");
    assert_eq!(buffers(&[], &["enp125s0f0"], &load), 0);
    assert_eq!(buffers(&["nvme0n1", "nvme1n1"], &["enp189s0f0"], &load), 2);
    // Node 2 is short of memory: the other node of its socket is near.
    let short = Load { nodes: BTreeMap::from([(2, NodeLoad { away: 40 })]), ..Load::default() };
    assert_eq!(buffers(&["nvme0n1"], &["enp189s0f0"], &short), 3);
}

#[test]
fn buffers_are_on_a_node_that_has_memory() {
    let mut machine = machine("xeon-2s-data-transfer-node");
    let transfer = transfer(&["md0"], &["bond0"], 2, 2);
    let with = placed(&machine, &Load::default(), "", &transfer).buffers;
    machine.nodes.iter_mut().find(|node| node.number == with).unwrap().memory_bytes = 0;
    let without = placed(&machine, &Load::default(), "", &transfer);
    assert_ne!(without.buffers, with);
    assert!(without.seats.iter().any(|seat| seat.node == with), "its CPUs are near to the device still");
}

#[test]
fn machines_without_anything_to_gain_are_left_alone() {
    let idle = Load::default();
    let usual = |storage: &str, network: &str| transfer(&[storage], &[network], 2, 2);
    let said = left(&machine("vm-2cpu"), &idle, "", &usual("vda", "eth0"));
    assert!(said.contains("one node"), "{said}");
    let said = left(&machine("xeon-x7550-4s"), &idle, "", &usual("sda", "eth0"));
    assert!(said.contains("one node"), "{said}");
    let said = left(&machine("vm-2nodes"), &idle, "", &usual("vdb", "ens3"));
    assert_eq!(said, "the node of ens3, vdb is not known; topology.toml can tell");
    let said = left(&machine("container"), &idle, "", &usual("dm-0", "enp65s0"));
    assert_eq!(said, "the control group may use 12.5 CPUs of 24: the machine is shared");
    let transfer_node = machine("xeon-2s-data-transfer-node");
    let said = left(&transfer_node, &idle, "", &transfer(&["md0"], &["bond0"], 8, 7));
    assert!(said.starts_with("18 threads that want 17 of 24 CPUs: "), "{said}");
    placed(&transfer_node, &idle, "", &transfer(&["md0"], &["bond0"], 8, 6));
    let said = left(&transfer_node, &idle, "0-15", &usual("md0", "bond0"));
    assert!(said.starts_with("7 threads that want 6 of 8 CPUs (16 more are other transfers'): "), "{said}");
    assert!(!placed(&transfer_node, &idle, "0-14", &usual("md0", "bond0")).own);
    assert!(!placed(&transfer_node, &idle, "0-12", &usual("md0", "bond0")).own);
    assert!(placed(&transfer_node, &idle, "0-11", &usual("md0", "bond0")).own);
    let said = left(&transfer_node, &idle, "", &Transfer::default());
    assert_eq!(said, "there are no threads to place");
    let said = left(&transfer_node, &idle, "", &transfer(&[], &[], 2, 2));
    assert_eq!(said, "no device is known that the transfer goes through");
    let busy = Load { cpus: (0..24).map(|cpu| (cpu, 60)).collect(), ..Load::default() };
    let said = left(&transfer_node, &busy, "", &usual("md0", "bond0"));
    assert_eq!(said, "others keep the CPUs 60 % busy: the machine is shared");
}

#[test]
fn a_process_that_may_use_one_node_has_nothing_to_choose_from() {
    let mut machine = machine("epyc-7451-2s");
    machine.limits.cpus = Some(cpus("6-11,54-59"));
    let said = left(&machine, &Load::default(), "", &transfer(&["dm-0"], &["enp65s0"], 1, 1));
    assert_eq!(said, "this process may use 1 of 8 nodes: there is nothing to choose from");
}

#[test]
fn a_transfer_stays_in_its_partition_and_next_to_a_node_that_is_anothers() {
    let machine = machine("partition");
    let placement = placed(&machine, &Load::default(), "", &transfer(&["dm-0"], &["enp65s0"], 4, 4));
    assert!(placement.own);
    // Node 2 has half of the disks and no CPU of this partition: node 1 is nearest.
    assert_eq!(nodes(&placement, ThreadKind::Io), [1, 3, 1, 3]);
    assert_eq!(nodes(&placement, ThreadKind::CommOut), [5; 4]);
    assert_eq!(placement.zone.or(&placement.others), machine.usable());
    let mut isolated = machine.clone();
    isolated.isolated = machine.usable();
    let said = left(&isolated, &Load::default(), "", &transfer(&["dm-0"], &["enp65s0"], 1, 1));
    assert_eq!(said, "this process may use 0 of 8 nodes: there is nothing to choose from");
}

/// What a service says is anything at all.
#[test]
fn a_plan_for_other_threads_or_another_machine_does_not_fit() {
    let machine = machine("slurm-cpuset");
    let transfer = transfer(&["dm-0"], &["enp65s0"], 2, 2);
    let right = placed(&machine, &Load::default(), "", &transfer);
    assert!(right.fits(&machine, &transfer.threads));
    type Change = fn(&mut Placement);
    let wrong: [(&str, Change); 10] = [
        ("no seats", |plan| plan.seats.clear()),
        ("one is missing", |plan| drop(plan.seats.pop())),
        ("one twice", |plan| plan.seats.push(plan.seats[0].clone())),
        ("one too many", |plan| plan.seats[0].index = 9),
        ("a seat that is nowhere", |plan| plan.seats[0].cpus = Cpus::new()),
        ("a seat on a CPU that is not the job's", |plan| plan.seats[0].cpus = cpus("11-12")),
        ("a node that is not there", |plan| plan.seats[0].node = 8),
        ("no zone", |plan| plan.zone = Cpus::new()),
        ("buffers that are nowhere", |plan| plan.buffers = 99),
        ("others where this process may not be", |plan| plan.others = cpus("0")),
    ];
    for (what, change) in wrong {
        let mut plan = right.clone();
        change(&mut plan);
        assert!(!plan.fits(&machine, &transfer.threads), "{what}");
    }
}

#[test]
fn a_job_stays_in_its_cpuset() {
    let machine = machine("slurm-cpuset");
    let placement = placed(&machine, &Load::default(), "", &transfer(&["dm-0"], &["enp65s0"], 4, 4));
    assert_eq!(nodes(&placement, ThreadKind::Io), [2, 3, 2, 3]);
    assert_eq!(nodes(&placement, ThreadKind::CommOut), [5; 4]);
    assert!(placement.zone.without(&machine.usable()).is_empty());
}

#[test]
fn a_map_tells_what_a_virtual_machine_hides() {
    let mut machine = machine("vm-2nodes");
    let map = Map::parse("[devices]\nens3 = 1\n\"vd*\" = 0\n", std::path::Path::new("map")).unwrap();
    map.apply(&mut machine).unwrap();
    let placement = placed(&machine, &Load::default(), "", &transfer(&["vdb"], &["ens3"], 2, 2));
    assert_eq!(nodes(&placement, ThreadKind::Io), [0, 0]);
    assert_eq!(nodes(&placement, ThreadKind::CommOut), [1, 1]);
}

#[test]
fn two_transfers_share_no_core() {
    let machine = machine("epyc-7451-2s");
    let transfer = transfer(&["dm-0"], &["enp65s0"], 2, 2);
    let first = placed(&machine, &Load::default(), "", &transfer);
    let second = placed(&machine, &Load::default(), &first.zone.to_string(), &transfer);
    assert!(first.zone.and(&second.zone).is_empty());
    assert_eq!((nodes(&first, ThreadKind::Io), nodes(&second, ThreadKind::Io)), (vec![2, 3], vec![2, 3]));
}

fn any_load() -> impl Strategy<Value = Load> {
    let percent = prop_oneof![4 => 0u8..=50, 1 => 0u8..=100];
    let loads = prop::collection::btree_map(0usize..130, percent, 0..130);
    let away = prop::collection::btree_map(0usize..8, (0u8..=100).prop_map(|away| NodeLoad { away }), 0..8);
    (loads, away).prop_map(|(cpus, nodes)| Load { cpus, nodes, memory_pressure: None })
}

fn any_threads() -> impl Strategy<Value = Threads> {
    let few = 0u16..9;
    let waiting = (0u16..2, 0u16..2, 0u16..2, 0u16..6, 0u16..6);
    (few.clone(), few.clone(), few, 0u16..4, waiting).prop_map(
        |(io, comm_in, comm_out, hash, (master, log, scan, control, errand))| Threads {
            master,
            io,
            comm_in,
            comm_out,
            hash,
            log,
            scan,
            control,
            errand,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_machine_the_rules_hold(
        which in 0..NAMES_ALL,
        load in any_load(),
        taken in prop::collection::btree_set(0usize..130, 0..40),
        threads in any_threads(),
        picks in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..5),
        allowed in prop::option::of(prop::collection::btree_set(0usize..130, 1..100)),
        quota in prop::option::of(500u64..200_000),
        mapped in any::<bool>(),
        chosen in prop::bool::weighted(0.2),
    ) {
        let (name, machine) = &machines()[which];
        let mut machine = machine.clone();
        if let Some(allowed) = allowed {
            machine.limits.cpus = Some(allowed.into_iter().collect());
        }
        if quota.is_some() {
            machine.limits.quota_millis = quota;
        }
        if mapped {
            let last = machine.nodes.last().unwrap().number;
            let map = format!("[devices]\n\"v*\" = {last}\n\"e*\" = 0\n");
            Map::parse(&map, std::path::Path::new("map")).unwrap().apply(&mut machine).unwrap();
        }
        machine.limits.chosen = chosen;
        let taken: Cpus = taken.into_iter().collect();
        let mut transfer = Transfer { threads, ..Transfer::default() };
        for (pick, is_storage) in picks {
            let mut names: Vec<String> = machine.devices.iter().map(|device| device.name.clone()).collect();
            names.push("not-there".into());
            let name = pick.get(&names).clone();
            if is_storage { transfer.storage.push(name) } else { transfer.network.push(name) }
        }
        let plan = Plan::of(&machine, &load, &taken, &transfer);
        prop_assert_eq!(&plan, &Plan::of(&machine, &load, &taken, &transfer), "the same again");
        let usable = machine.usable();
        let all_free = usable.without(&taken);
        // No CPU of whose core works more than half of the time.
        let is_idle = |cpu: &usize| machine.siblings(*cpu).iter().all(|sibling| load.of(sibling) <= 50);
        let free: Cpus = all_free.iter().filter(is_idle).collect();
        let nodes: BTreeSet<usize> = usable.iter().map(|cpu| machine.cpu(cpu).unwrap().node.unwrap()).collect();
        let Threads { io, comm_in, comm_out, hash, .. } = threads;
        let moving = usize::from(io + comm_in + comm_out + hash);
        let wanted = moving + (threads.total() - moving).div_ceil(2).min(4);
        let enough = if chosen { free.len() >= wanted } else { 2 * free.len() >= 3 * wanted };
        let small = nodes.len() < 2 || !enough;
        let shared = machine.limits.quota_millis.is_some_and(|quota| quota < usable.len() as u64 * 1000)
            || load.mean(&all_free) > 50;
        let Plan::Placed(placement) = &plan else {
            let known = transfer.storage.iter().chain(&transfer.network).any(|name| !machine.nodes_of(name).is_empty());
            prop_assert!(small || shared || !known || threads.total() == 0, "{}: {:?}", name, plan);
            return Ok(());
        };
        prop_assert!(!small && !shared && threads.total() > 0, "{}: {:?}", name, plan);
        // Every thread once, in order.
        prop_assert_eq!(placement.seats.len(), threads.total());
        let kinds: Vec<_> = placement.seats.iter().map(|seat| (seat.kind, seat.index)).collect();
        prop_assert!(kinds.windows(2).all(|two| two[0] < two[1]), "{:?}", kinds);
        prop_assert_eq!(placement.own, free.len() >= 2 * wanted);
        prop_assert!(placement.fits(&machine, &threads));
        // Online, allowed, nobody else's; where each has its own, none twice.
        let mut given = Cpus::new();
        for seat in &placement.seats {
            prop_assert!(!seat.cpus.is_empty() && seat.cpus.without(&free).is_empty(), "{}: {:?}", name, seat);
            if !seat.kind.moves_bytes() {
                prop_assert_eq!(&seat.cpus, &placement.zone);
                continue;
            }
            // Those of a kind whose devices are on several nodes are on all of these.
            let spread = seat.because.contains("works with all of it");
            if placement.own && !spread {
                prop_assert_eq!(seat.cpus.len(), 1);
                prop_assert!(given.and(&seat.cpus).is_empty(), "{}: {:?}", name, seat);
            }
            given = given.or(&seat.cpus);
            let on_node = |cpu: usize| machine.cpu(cpu).unwrap().node == Some(seat.node);
            prop_assert!(seat.cpus.iter().any(on_node) && (spread || seat.cpus.iter().all(on_node)), "{:?}", seat);
        }
        // Those that share have a CPU each, if not one of their own.
        for node in &machine.nodes {
            let seats = placement.seats.iter().filter(|seat| seat.kind.moves_bytes() && seat.node == node.number);
            prop_assert!(seats.count() <= node.cpus.and(&placement.zone).len(), "{}: node {}", name, node.number);
        }
        prop_assert!(placement.zone.len() >= wanted, "{}: {}", name, placement.zone);
        prop_assert!(placement.zone.without(&free).is_empty() && given.without(&placement.zone).is_empty());
        prop_assert_eq!(placement.zone.or(&placement.others), all_free);
        prop_assert!(placement.zone.and(&placement.others).is_empty());
        // On a node, no core has two threads (of this one or of others) while a core of it has none.
        for node in &machine.nodes {
            let mut on_core: BTreeMap<usize, (usize, bool)> = BTreeMap::new();
            for cpu in node.cpus.iter().filter_map(|cpu| machine.cpu(cpu)) {
                let (count, could) = on_core.entry(cpu.core).or_default();
                *count += usize::from(given.has(cpu.number)) + usize::from(taken.has(cpu.number));
                *could |= free.has(cpu.number);
            }
            let doubled = on_core.iter().any(|(core, (count, _))| {
                *count > 1 && !given.and(&machine.siblings(*core)).is_empty()
            });
            let empty = on_core.values().any(|(count, could)| *count == 0 && *could);
            prop_assert!(!(placement.own && doubled && empty), "{}: node {} {:?}", name, node.number, on_core);
        }
        // Near: a thread is away from its device's node only if that has no CPU left.
        for seat in placement.seats.iter().filter(|seat| seat.kind.moves_bytes()) {
            let wanted = match &seat.device {
                Some(device) if !machine.nodes_of(device).is_empty() => machine.nodes_of(device),
                None if seat.because.contains("works with all of it") => continue,
                _ => BTreeSet::from([placement.buffers]),
            };
            if !wanted.contains(&seat.node) {
                let left: Vec<usize> = wanted.iter().filter_map(|node| {
                    machine.node(*node).and_then(|node| node.cpus.and(&free).without(&given).first())
                }).collect();
                prop_assert!(left.len() < wanted.len(), "{}: {:?} though {:?} are free", name, seat, left);
            }
        }
    }
}
