//! Which devices a transfer goes through: the disks below a path, the network interface towards a peer. Of this host only.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, major, minor, statx};

use crate::links::Remote;
use crate::machine::whole_disk;
use crate::tree::Tree;
use crate::{DeviceKind, Machine, Map};

/// File systems in files on file systems that are followed.
const LAYERS_MAX: usize = 4;
/// Flags of routes: RTF_UP, RTF_REJECT of linux/route.h.
const UP: u32 = 1;
const REJECT: u32 = 0x200;

/// How something is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reached {
    /// Names of devices; none if there are none, or they are not known.
    pub devices: Vec<String>,
    /// What kind they are.
    pub kind: DeviceKind,
    /// How that is known, or why not, in words.
    pub because: String,
    /// It is this host: no device is between.
    pub is_here: bool,
}

impl Reached {
    fn new(kind: DeviceKind, devices: Vec<String>, because: String) -> Reached {
        Reached { devices, kind, because, is_here: false }
    }
}

/// The devices that the contents of a path are on. A path that is not there yet is where its directory is; the user's map
/// goes before what the kernel says.
pub fn of_path(root: &Path, machine: &Machine, map: &Map, path: &Path) -> Reached {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut there = path.as_path();
    while let (false, Some(above)) = (there.exists(), there.parent()) {
        there = above;
    }
    let path = there.canonicalize().unwrap_or_else(|_| there.to_owned());
    // What this host does not have does not count: one map does for several hosts.
    let remote = Remote::of(&Tree::new(root));
    let said = map.path(&path, |prefix| remote.followed(prefix)).and_then(|(prefix, devices)| {
        let here: Vec<String> =
            devices.iter().filter(|name| machine.device(name).is_some()).cloned().collect();
        (!here.is_empty() || devices.is_empty()).then_some((prefix, here))
    });
    if let Some((prefix, devices)) = said {
        let kind = devices
            .first()
            .and_then(|name| machine.device(name))
            .map_or(DeviceKind::Block, |device| device.kind);
        let because = format!("the map says so of {}", prefix.display());
        return Reached::new(kind, devices, because);
    }
    below_path(&Tree::new(root), &path, 0)
}

fn below_path(tree: &Tree<'_>, path: &Path, layer: usize) -> Reached {
    let shown = path.display();
    let none = |because: String| Reached::new(DeviceKind::Block, Vec::new(), because);
    let Ok(status) = fs::metadata(path) else { return none(format!("{shown} cannot be looked at")) };
    let (major, minor) = (major(status.dev()), minor(status.dev()));
    if major != 0 {
        let entry = tree.at(format!("sys/dev/block/{major}:{minor}"));
        return below_device(tree, &entry, path, layer);
    }
    let Some((kind, source, options)) = mount_of(tree, path) else {
        return none(format!("the file system of {shown} is not known"));
    };
    if let Some(name) = source.strip_prefix("/dev/")
        && let Ok(device) = Path::new("/dev").join(name).canonicalize()
        && let Some(name) = device.file_name()
    {
        return below_device(tree, &tree.at("sys/class/block").join(name), path, layer);
    }
    if kind == "tmpfs" || kind == "ramfs" {
        return none(format!("{shown} is in memory ({kind})"));
    }
    match server(&source, &options) {
        Some(address) => {
            let reached = towards(tree, address);
            Reached { because: format!("{shown} is {kind} of {address}; {}", reached.because), ..reached }
        }
        None => none(format!("{kind} does not tell what {shown} is on; the map can")),
    }
}

fn below_device(tree: &Tree<'_>, entry: &Path, path: &Path, layer: usize) -> Reached {
    let shown = path.display();
    let backing = |entry: &Path| crate::tree::text(&entry.join("loop/backing_file"));
    // A partition of a loop device is in its directory.
    let backing = backing(entry).or_else(|| backing(entry.canonicalize().ok()?.parent()?));
    if let Some(file) = backing.as_deref().map(str::trim).filter(|_| layer < LAYERS_MAX) {
        let reached = below_path(tree, Path::new(file), layer + 1);
        return Reached { because: format!("{shown} is on {file}; {}", reached.because), ..reached };
    }
    match whole_disk(entry) {
        Some(name) => Reached::new(DeviceKind::Block, vec![name.clone()], format!("{shown} is on {name}")),
        None => Reached::new(DeviceKind::Block, Vec::new(), format!("the device of {shown} is not known")),
    }
}

/// Kind, source and options of the mount that a path is in.
fn mount_of(tree: &Tree<'_>, path: &Path) -> Option<(String, String, String)> {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return None;
    }
    let id = found.stx_mnt_id.to_string();
    let text = tree.text("proc/self/mountinfo")?;
    let line = text.lines().find(|line| line.split(' ').next() == Some(&id))?;
    let mut after = line.split_once(" - ")?.1.split(' ').map(str::to_owned);
    Some((after.next()?, after.next()?, after.next().unwrap_or_default()))
}

/// The server of a network file system: option `addr=`, or `10.0.0.1@tcp:/name` of Lustre, or `10.0.0.1:/export`.
fn server(source: &str, options: &str) -> Option<IpAddr> {
    let option = options.split(',').find_map(|option| option.strip_prefix("addr="));
    let named = source.split(['@', ',']).next().and_then(|first| match first.rsplit_once(":/") {
        Some((host, _)) => Some(host.trim_matches(['[', ']'])),
        None => source.contains('@').then_some(first),
    });
    option.or(named)?.parse().ok()
}

fn this_host(address: IpAddr) -> Reached {
    let because = format!("{address} is this host");
    Reached { is_here: true, ..Reached::new(DeviceKind::Network, Vec::new(), because) }
}

/// The network interface that an address is routed to.
fn towards(tree: &Tree<'_>, address: IpAddr) -> Reached {
    let address = address.to_canonical();
    if address.is_loopback() {
        return this_host(address);
    }
    let found = match address {
        IpAddr::V4(address) => route4(&tree.text("proc/net/route").unwrap_or_default(), address.octets()),
        IpAddr::V6(address) => {
            route6(&tree.text("proc/net/ipv6_route").unwrap_or_default(), address.octets())
        }
    };
    match found {
        Some(name) if name == "lo" => this_host(address),
        Some(name) => {
            Reached::new(DeviceKind::Network, vec![name.clone()], format!("the route to {address} is {name}"))
        }
        None => Reached::new(DeviceKind::Network, Vec::new(), format!("there is no route to {address}")),
    }
}

/// Addresses of this host are in no table that can be read, but only they can be bound. Where the system allows that of all
/// (`ip_nonlocal_bind`), packets to them come from the same address, to primary ones at least. Nothing is sent.
fn is_own(address: IpAddr) -> bool {
    let (version, any): (_, IpAddr) = match address {
        IpAddr::V4(_) => ("ipv4", Ipv4Addr::UNSPECIFIED.into()),
        IpAddr::V6(_) => ("ipv6", Ipv6Addr::UNSPECIFIED.into()),
    };
    let setting = std::fs::read_to_string(format!("/proc/sys/net/{version}/ip_nonlocal_bind"));
    let any_can_be_bound = setting.is_ok_and(|setting| setting.trim() == "1");
    let from = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    UdpSocket::bind((address, 0)).is_ok()
        && (!any_can_be_bound || from().is_ok_and(|from| from.ip() == address))
}

/// The network interface towards a peer; none for an address of this host.
pub fn of_peer(root: &Path, address: IpAddr) -> Reached {
    if root == Path::new("/") && is_own(address) {
        return this_host(address);
    }
    towards(&Tree::new(root), address)
}

/// Lines of `Iface Destination Gateway Flags RefCnt Use Metric Mask ...`; addresses are the bytes of the network as a
/// number of this machine, in hexadecimal.
fn route4(table: &str, address: [u8; 4]) -> Option<String> {
    let address = u32::from_be_bytes(address);
    let candidates = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
        let bytes = |at: usize| Some(u32::from_be_bytes(number(at)?.to_ne_bytes()));
        let (destination, mask, flags) = (bytes(1)?, bytes(7)?, number(3)?);
        let metric: u32 = fields.get(6)?.parse().ok()?;
        let fits = address & mask == destination & mask && flags & UP != 0 && flags & REJECT == 0;
        fits.then(|| ((mask.count_ones(), std::cmp::Reverse(metric)), fields[0].to_owned()))
    });
    candidates.max_by_key(|(rank, _)| *rank).map(|(_, name)| name)
}

/// Lines of `destination length source length hop metric refs uses flags iface`, all but the last in hexadecimal.
fn route6(table: &str, address: [u8; 16]) -> Option<String> {
    let address = u128::from_be_bytes(address);
    let candidates = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
        let destination = u128::from_str_radix(fields.first()?, 16).ok()?;
        let (length, metric, flags) = (number(1)?, number(5)?, number(8)?);
        let mask = u128::MAX.checked_shl(128_u32.checked_sub(length)?).unwrap_or(0);
        let fits = address & mask == destination & mask && flags & UP != 0 && flags & REJECT == 0;
        fits.then(|| Some(((length, std::cmp::Reverse(metric)), (*fields.get(9)?).to_owned())))?
    });
    candidates.max_by_key(|(rank, _)| *rank).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Origin};

    const ROUTES: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth1\t00000000\t0100000A\t0003\t0\t0\t50\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
ib0\t0000A8C0\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
ib1\t0005A8C0\t00000000\t0201\t0\t0\t0\t00FFFFFF\t0\t0\t0
damaged\tzz
";

    #[test]
    fn the_longest_route_counts_then_the_one_with_the_least_metric() {
        let to = |address: [u8; 4]| route4(ROUTES, address);
        assert_eq!(to([10, 0, 0, 7]).as_deref(), Some("eth0"));
        assert_eq!(to([192, 168, 9, 9]).as_deref(), Some("ib0"));
        // ib1 refuses what goes there.
        assert_eq!(to([192, 168, 5, 1]).as_deref(), Some("ib0"));
        assert_eq!(to([8, 8, 8, 8]).as_deref(), Some("eth1"));
        assert_eq!(route4("", [8, 8, 8, 8]), None);
    }

    #[test]
    fn routes_of_the_sixth_version_are_read_too() {
        let zero = "0".repeat(32);
        let line = |prefix: &str, length: &str, metric: &str, flags: &str, name: &str| {
            format!("{prefix:0<32} {length} {zero} 00 {zero} {metric} 00000001 00000000 {flags} {name}\n")
        };
        let table = line("", "00", "00000400", "00000003", "eth0")
            + &line("20010db8", "20", "00000100", "00000001", "ib0")
            + &line("20010db8", "20", "00000080", "00000201", "eth2")
            + &line("fe80", "40", "00000100", "00000001", "eth1")
            + "damaged\n";
        let to = |text: &str| route6(&table, text.parse::<std::net::Ipv6Addr>().unwrap().octets());
        assert_eq!(to("2001:db8::1").as_deref(), Some("ib0"));
        assert_eq!(to("2a00::1").as_deref(), Some("eth0"));
        assert_eq!(to("fe80::1").as_deref(), Some("eth1"));
    }

    #[test]
    fn servers_of_network_file_systems_are_told_by_options_or_by_their_source() {
        let address =
            |source: &str, options: &str| server(source, options).map(|address| address.to_string());
        assert_eq!(address("nas:/x", "rw,addr=10.0.0.1,hard").as_deref(), Some("10.0.0.1"));
        assert_eq!(address("10.1.0.4@tcp:/scratch", "rw").as_deref(), Some("10.1.0.4"));
        assert_eq!(address("10.1.0.4@tcp:10.1.0.5@tcp:/scratch", "rw").as_deref(), Some("10.1.0.4"));
        assert_eq!(address("[2001:db8::1]:/export", "rw").as_deref(), Some("2001:db8::1"));
        assert_eq!(address("nas:/x", "rw"), None);
        assert_eq!(address("overlay", "lowerdir=/a:/b"), None);
    }

    #[test]
    fn partitions_are_on_their_disk_and_loop_devices_where_their_file_is() {
        use std::fs::{create_dir_all, write};
        use std::os::unix::fs::symlink;
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for directory in ["sys/dev/block", "sys/block/sda/sda2", "sys/block/dm-0", "sys/block/loop0/loop"] {
            create_dir_all(at(directory)).unwrap();
        }
        write(at("sys/block/sda/sda2/partition"), "2\n").unwrap();
        let image = at("image");
        write(&image, "").unwrap();
        write(at("sys/block/loop0/loop/backing_file"), format!("{}\n", image.display())).unwrap();
        let own = fs::metadata(&image).unwrap().dev();
        let own = format!("{}:{}", major(own), minor(own));
        for (number, target) in [("8:2", "sda/sda2"), ("253:0", "dm-0"), ("7:0", "loop0"), (&own, "dm-0")] {
            // Where the directory for temporary files is in memory, its number is nobody's.
            symlink(Path::new("../../block").join(target), at("sys/dev/block").join(number)).unwrap();
        }
        let tree = Tree::new(root.path());
        let reached = |number: &str| {
            below_device(&tree, &tree.at("sys/dev/block").join(number), Path::new("/a/path"), 0)
        };
        assert_eq!(reached("8:2").devices, ["sda"]);
        assert_eq!(reached("8:2").because, "/a/path is on sda");
        assert_eq!(reached("253:0").devices, ["dm-0"]);
        assert!(reached("9:9").devices.is_empty());
        let beginning = format!("/a/path is on {}; ", image.display());
        assert!(reached("7:0").because.starts_with(&beginning), "{:?}", reached("7:0"));
        if !own.starts_with("0:") {
            assert_eq!(reached("7:0").devices, ["dm-0"]);
        }
    }

    #[test]
    fn the_map_may_name_a_link_and_what_this_host_lacks_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().canonicalize().unwrap().join(name);
        fs::create_dir_all(at("real/below")).unwrap();
        std::os::unix::fs::symlink("real", at("link")).unwrap();
        let mut machine = Machine::default();
        machine.devices.push(Device {
            name: "sda".into(),
            kind: DeviceKind::Block,
            node: None,
            origin: Origin::Kernel,
            speed_mbit: None,
            bytes: None,
            below: Vec::new(),
        });
        let told = |prefix: &str, devices: &str, path: &str| {
            let text = format!("[paths]\n\"{}\" = [{devices}]\n", at(prefix).display());
            let map = Map::parse(&text, Path::new("map")).unwrap();
            let reached = of_path(Path::new("/"), &machine, &map, &at(path));
            reached.because.starts_with("the map says so").then_some(reached.devices)
        };
        let sda = Some(vec!["sda".to_owned()]);
        for (prefix, path) in [("link", "link/below"), ("real", "link/below"), ("real", "real")] {
            assert_eq!(told(prefix, "\"sda\"", path), sda, "{prefix} {path}");
        }
        assert_eq!(told("real", "\"nvme9n1\", \"sda\"", "real/below/new"), sda);
        assert_eq!(told("real", "\"nvme9n1\"", "real/below"), None, "the kernel may know it");
        // What is mapped is where it is, however one gets there.
        fs::create_dir(at("other")).unwrap();
        std::os::unix::fs::symlink("../other", at("real/out")).unwrap();
        for path in ["real/out", "real/../other/new"] {
            assert_eq!(told("real", "\"sda\"", path), None, "{path}");
        }
        assert_eq!(told("real", "", "real/below"), Some(vec![]), "it is on none");
    }

    #[test]
    fn memory_is_on_no_disk_and_a_path_that_is_not_there_is_where_its_directory_is() {
        let machine = Machine::default();
        let map = Map::default();
        let root = Path::new("/");
        let reached = of_path(root, &machine, &map, Path::new("/proc/self/not/there"));
        assert_eq!(reached.devices, Vec::<String>::new(), "{reached:?}");
        let here = of_path(root, &machine, &map, Path::new("."));
        let below = of_path(root, &machine, &map, Path::new("not-there/at/all"));
        assert_eq!(here.devices, below.devices);
    }

    #[test]
    fn addresses_of_this_host_need_no_interface() {
        for address in ["127.0.0.1", "::1", "127.9.9.9"] {
            let reached = of_peer(Path::new("/"), address.parse().unwrap());
            assert!(reached.devices.is_empty() && reached.because.contains("this host"), "{reached:?}");
        }
    }
}
