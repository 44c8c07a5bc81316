//! Cpusets of this machine, where it allows them. In a process of its own: the whole process moves.

mod support;

use std::path::Path;

use haul_topology::zone::{Kind, Site, Zone};
use haul_topology::{Cpus, Machine, affinity};

#[test]
fn a_process_is_in_its_zone_until_that_is_dropped() {
    let root = Path::new("/");
    let before = affinity().unwrap();
    let one: Cpus = before.first().into_iter().collect();
    let site = match Site::find(root) {
        Ok(site) => site,
        // Then it says why, and there is nothing else to see.
        Err(reason) => return assert!(!reason.is_empty()),
    };
    let machine = Machine::read(root);
    let zone = match Zone::enter(&site, &machine, &one) {
        Ok(zone) => zone,
        Err(reason) => {
            assert!(reason.contains("haul-zone-"), "{reason}");
            return assert_eq!(affinity().unwrap(), before, "nothing has changed");
        }
    };
    let directory = zone.directory().to_owned();
    assert!(matches!(zone.kind(), Kind::Inside | Kind::Exclusive));
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
