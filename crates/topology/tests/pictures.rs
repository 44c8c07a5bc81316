//! Pictures and plans of recorded machines, as people see them.
//!
//! `HAUL_GOLDEN_WRITE=1 cargo test -p haul-topology --test pictures` writes them anew; look at what changed.

mod support;

use std::fs;
use std::path::PathBuf;

use haul_topology::{DeviceKind, Load, Machine, Plan, Style, Threads, Transfer, picture, words};
use support::{cpus, machines};

/// A load that is made of the numbers of the CPUs.
fn load(machine: &Machine) -> Load {
    let percent = |cpu: usize| if cpu.is_multiple_of(5) { (cpu * 7 % 40) as u8 } else { 0 };
    Load {
        cpus: machine.cpus.iter().map(|cpu| (cpu.number, percent(cpu.number))).collect(),
        ..Load::default()
    }
}

/// All disks that are in no set, and the fastest network.
fn transfer(machine: &Machine) -> Transfer {
    let of_kind = |kind| machine.devices.iter().filter(move |device| device.kind == kind);
    let in_set = |name: &String| machine.devices.iter().any(|device| device.below.contains(name));
    let storage = of_kind(DeviceKind::Block).map(|device| device.name.clone()).filter(|name| !in_set(name));
    let network = of_kind(DeviceKind::Network).max_by_key(|device| device.speed_mbit);
    let network = network.map(|device| device.name.clone()).into_iter();
    let threads = Threads { master: 1, io: 2, comm_out: 2, log: 1, scan: 1, ..Threads::default() };
    Transfer { storage: storage.collect(), network: network.collect(), threads, ..Transfer::default() }
}

#[test]
fn every_recorded_machine_looks_as_it_did() {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests", "pictures"].iter().collect();
    for (name, machine) in machines() {
        let (load, transfer) = (load(machine), transfer(machine));
        let plan = Plan::of(machine, &load, &cpus(""), &transfer);
        let text = picture(machine, &load, Style::Utf8) + "\n" + &words(&plan);
        let file = folder.join(format!("{name}.txt"));
        if std::env::var_os("HAUL_GOLDEN_WRITE").is_some() {
            fs::write(&file, &text).unwrap();
        }
        let expected = fs::read_to_string(&file).unwrap_or_default();
        assert!(text == expected, "{name} differs from {}:\n{text}", file.display());
    }
}

#[test]
fn pictures_are_a_hundred_wide_at_most_and_in_ascii_if_wanted() {
    for (name, machine) in machines() {
        let load = load(machine);
        let (ascii, utf8) = (picture(machine, &load, Style::Ascii), picture(machine, &load, Style::Utf8));
        assert!(ascii.is_ascii(), "{name}");
        let lengths = |text: &str| text.lines().map(|line| line.chars().count()).collect::<Vec<_>>();
        assert_eq!(lengths(&ascii), lengths(&utf8), "{name}");
        let plan = words(&Plan::of(machine, &load, &cpus(""), &transfer(machine)));
        assert!(lengths(&(utf8 + &plan)).into_iter().all(|length| length <= 100), "{name}:\n{plan}");
        assert!(ascii.lines().all(|line| line.trim_end() == line), "{name}: blanks at the end");
    }
}
