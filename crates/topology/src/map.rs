//! `topology.toml`: which device is on which node, where nobody else tells.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use crate::{Device, Machine, Origin};

/// Longer ones are refused.
const FILE_BYTES_MAX: usize = 1 << 20;

/// What the user knows better than the kernel.
#[derive(Clone, Default, Debug)]
pub struct Map {
    /// Names, or their beginnings with `*` behind, and nodes; where it says so.
    devices: Vec<(String, usize, usize)>,
    /// Directories and the devices that they are on; the longest first.
    paths: Vec<(PathBuf, Vec<String>)>,
    file: PathBuf,
}

/// What is wrong with a map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapError {
    /// Which.
    pub file: PathBuf,
    /// From 1; 0 if no line is to blame.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file.display(), self.reason),
            line => write!(f, "{}:{line}: {}", self.file.display(), self.reason),
        }
    }
}

impl std::error::Error for MapError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default)]
    devices: BTreeMap<Spanned<String>, Spanned<usize>>,
    #[serde(default)]
    paths: BTreeMap<Spanned<String>, Spanned<Vec<String>>>,
}

impl Map {
    /// Of a text; `file` is for messages.
    pub fn parse(text: &str, file: &Path) -> Result<Map, MapError> {
        let wrong = |span: Option<Range<usize>>, reason: String| {
            let before = span.and_then(|span| text.get(..span.start));
            let line = before.map_or(0, |before| before.matches('\n').count() + 1);
            MapError { file: file.to_owned(), line, reason }
        };
        if text.len() > FILE_BYTES_MAX {
            return Err(wrong(None, too_long()));
        }
        let read: Text =
            toml::from_str(text).map_err(|error| wrong(error.span(), error.message().to_owned()))?;
        let mut map = Map { file: file.to_owned(), ..Map::default() };
        for (name, node) in read.devices {
            let span = name.span();
            let line = wrong(Some(span.clone()), String::new()).line;
            let name = name.into_inner();
            let stars = name.matches('*').count();
            if name.is_empty() || stars > 1 || stars == 1 && !name.ends_with('*') {
                return Err(wrong(
                    Some(span),
                    format!("{name:?} is no name of devices like \"nvme0n1\" or \"nvme*\""),
                ));
            }
            map.devices.push((name, node.into_inner(), line));
        }
        for (path, devices) in read.paths {
            let span = path.span();
            let path = PathBuf::from(path.into_inner());
            if !path.is_absolute() {
                return Err(wrong(Some(span), format!("{} is no absolute path", path.display())));
            }
            map.paths.push((path, devices.into_inner()));
        }
        // What is said more precisely goes first.
        map.devices.sort_by_key(|(name, _, _)| (name.ends_with('*'), std::cmp::Reverse(name.len())));
        Ok(map)
    }

    /// Of a file.
    pub fn read(file: &Path) -> Result<Map, MapError> {
        let wrong = |reason: String| MapError { file: file.to_owned(), line: 0, reason };
        let bytes = read_bounded(file).map_err(|error| wrong(error.to_string()))?;
        if bytes.len() > FILE_BYTES_MAX {
            return Err(wrong(too_long()));
        }
        let text = String::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
        Map::parse(&text, file)
    }

    /// The devices that a path without links is on, and the directory that says so, which may be a link to one: `followed` says to
    /// which.
    pub fn path(&self, path: &Path, followed: impl Fn(&Path) -> PathBuf) -> Option<(&Path, &[String])> {
        let holds = |prefix: &Path| path.starts_with(prefix).then(|| prefix.components().count());
        let depth = |prefix: &Path| holds(prefix).or_else(|| holds(&followed(prefix)));
        let held = self.paths.iter().filter_map(|said| Some((depth(&said.0)?, said)));
        let (_, (prefix, devices)) = held.max_by_key(|(depth, _)| *depth)?;
        Some((prefix, devices))
    }

    /// Puts devices on their nodes. Devices that this host does not have are no error (one map does for several hosts); nodes
    /// that it does not have are, and then all stays as it is.
    pub fn apply(&self, machine: &mut Machine) -> Result<(), MapError> {
        let nodes: Vec<usize> = machine.nodes.iter().map(|node| node.number).collect();
        let node_of = |device: &Device, by_beginning: bool| {
            let fits = |name: &str| match name.strip_suffix('*') {
                Some(beginning) => by_beginning && device.name.starts_with(beginning),
                None => device.name == name,
            };
            let Some((name, node, line)) = self.devices.iter().find(|(name, _, _)| fits(name)) else {
                return Ok(None);
            };
            if !nodes.contains(node) {
                let reason = format!("{name} cannot be on node {node}: this machine has {}", listed(&nodes));
                return Err(MapError { file: self.file.clone(), line: *line, reason });
            }
            Ok(Some(*node))
        };
        let all = |devices: &[Device], by_beginning| {
            devices.iter().map(|device| node_of(device, by_beginning)).collect::<Result<Vec<_>, _>>()
        };
        // There may be hundreds of these, which nobody means who means the disks of that beginning.
        let (of_devices, of_nowhere) = (all(&machine.devices, true)?, all(&machine.nowhere, false)?);
        let place = |(device, node): (&mut Device, Option<usize>)| {
            if node.is_some() {
                (device.node, device.origin) = (node, Origin::Map);
            }
        };
        machine.devices.iter_mut().zip(of_devices).for_each(place);
        machine.nowhere.iter_mut().zip(of_nowhere).for_each(place);
        machine.devices.extend(machine.nowhere.extract_if(.., |device| device.node.is_some()));
        machine.devices.sort_by(|one, next| (one.kind, &one.name).cmp(&(next.kind, &next.name)));
        Ok(())
    }
}

/// No more than is needed to see that it is too long: a device may have no end.
fn read_bounded(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn too_long() -> String {
    format!("is longer than {FILE_BYTES_MAX} bytes")
}

fn listed(nodes: &[usize]) -> String {
    match nodes {
        [one] => format!("node {one} only"),
        nodes => format!("nodes {}", nodes.iter().copied().collect::<crate::Cpus>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceKind, Node};

    fn machine() -> Machine {
        let device = |name: &str| Device {
            name: name.into(),
            kind: DeviceKind::Block,
            node: None,
            origin: Origin::Unknown,
            speed_mbit: None,
            bytes: None,
            below: Vec::new(),
        };
        let node = |number| Node { number, ..Node::default() };
        let devices = ["eth0", "vda", "vdb", "vdc"].map(device).to_vec();
        Machine { nodes: vec![node(0), node(1)], devices, ..Machine::default() }
    }

    fn parse(text: &str) -> Result<Map, String> {
        Map::parse(text, Path::new("map")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_device_without_hardware_is_where_its_own_name_says() {
        let mut machine = machine();
        let bare = |name: &str| Device { name: name.into(), ..machine.devices[0].clone() };
        machine.nowhere = vec![bare("br-ex"), bare("eth9"), bare("veth7")];
        let map = parse("[devices]\nbr-ex = 1\n\"eth*\" = 0\n\"v*\" = 0\n").unwrap();
        map.apply(&mut machine).unwrap();
        assert_eq!(machine.nodes_of("br-ex").into_iter().collect::<Vec<_>>(), [1]);
        assert!(
            machine.is_mapped("br-ex")
                && machine.device("eth9").is_none()
                && machine.device("veth7").is_none()
        );
        let names: Vec<&str> = machine.devices.iter().map(|device| device.name.as_str()).collect();
        assert!(names.is_sorted() && names.len() == 5, "{names:?}");
        let wrong = parse("[devices]\nveth7 = 5\n").unwrap().apply(&mut machine);
        assert!(wrong.is_err() && machine.nowhere.len() == 2);
    }

    #[test]
    fn the_most_precise_name_counts() {
        let map = parse("[devices]\n\"vd*\" = 1\nvdb = 0\n\"v*\" = 0\nnot-here = 7\n").unwrap();
        let mut machine = machine();
        map.apply(&mut machine).unwrap();
        let nodes: Vec<_> = machine.devices.iter().map(|device| (device.node, device.origin)).collect();
        let told = |node| (Some(node), Origin::Map);
        assert_eq!(nodes, [(None, Origin::Unknown), told(1), told(0), told(1)]);
    }

    #[test]
    fn a_map_that_does_not_fit_changes_nothing() {
        let map = parse("[devices]\neth0 = 1\nvdb = 7\n").unwrap();
        let mut machine = machine();
        let before = machine.clone();
        map.apply(&mut machine).unwrap_err();
        assert_eq!(machine, before);
    }

    #[test]
    fn the_longest_directory_counts() {
        let map = parse("[paths]\n\"/data\" = [\"vda\"]\n\"/data/fast\" = [\"vdb\", \"vdc\"]\n").unwrap();
        let devices =
            |path: &str| map.path(Path::new(path), Path::to_owned).map(|(_, devices)| devices.join(" "));
        assert_eq!(devices("/data/x").as_deref(), Some("vda"));
        assert_eq!(devices("/data/fast/x/y").as_deref(), Some("vdb vdc"));
        assert_eq!(devices("/database"), None);
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (text, expected) in [
            ("[devices]\nvda = 1\nvdb = \"x\"\n", "map:3: "),
            ("[devices]\nvda = -1\n", "map:2: "),
            ("# a map\n[device]\nvda = 1\n", "map:2: unknown field `device`"),
            ("zone = 3\n", "map:1: unknown field `zone`"),
            ("[devices]\n\"*da\" = 1\n", "map:2: \"*da\" is no name"),
            ("[devices]\n\n\"\" = 1\n", "map:3: \"\" is no name"),
            ("[paths]\n\"data\" = [\"vda\"]\n", "map:2: data is no absolute path"),
            ("[paths]\n\"/data\" = \"vda\"\n", "map:2: "),
            ("[devices\n", "map:1: "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
        let map = parse("[devices]\n\neth0 = 2\n").unwrap();
        let error = map.apply(&mut machine()).unwrap_err().to_string();
        assert_eq!(error, "map:3: eth0 cannot be on node 2: this machine has nodes 0-1");
        assert!(parse(&format!("# {}", "x".repeat(FILE_BYTES_MAX))).unwrap_err().contains("longer"));
    }

    #[test]
    fn of_a_file_without_end_no_more_is_read_than_a_map_may_have() {
        let error = Map::read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.to_string(), "/dev/zero: is longer than 1048576 bytes");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("map");
        // The limit is in the middle of a letter of two bytes.
        let comment = format!("#{}", "ö".repeat(FILE_BYTES_MAX / 2));
        std::fs::write(&file, comment).unwrap();
        assert!(Map::read(&file).unwrap_err().reason.contains("longer"));
        std::fs::write(&file, format!("#{}\n", "x".repeat(FILE_BYTES_MAX - 2))).unwrap();
        assert!(Map::read(&file).is_ok(), "as long as it may be");
        std::fs::write(&file, b"# \xff\n").unwrap();
        assert!(Map::read(&file).unwrap_err().reason.contains("utf-8"));
    }

    #[test]
    fn a_map_that_is_not_there_is_an_error_that_names_it() {
        let error = Map::read(Path::new("/not/there.toml")).unwrap_err().to_string();
        assert!(error.starts_with("/not/there.toml: "), "{error}");
    }
}
