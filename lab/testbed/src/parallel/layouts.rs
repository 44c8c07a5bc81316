//! What `haul layout` says of a tree, against what is known of it otherwise.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::network::succeed;

/// So many targets of a file are named in the table.
const SHOWN: usize = 4;

/// How the files of a tree lie.
#[derive(Default)]
pub(crate) struct Expected {
    /// Targets of each file, in the order of the file.
    files: BTreeMap<PathBuf, Vec<String>>,
    /// Bytes on each target that has any.
    bytes: BTreeMap<String, u64>,
}

impl Expected {
    /// A file and its targets.
    pub(crate) fn file(&mut self, path: PathBuf, targets: Vec<String>) {
        self.files.insert(path, targets);
    }

    /// Some of its bytes.
    pub(crate) fn bytes(&mut self, target: &str, bytes: u64) {
        if bytes > 0 {
            *self.bytes.entry(target.to_owned()).or_default() += bytes;
        }
    }

    /// What is wrong with the JSON and the table of the tree. `haul` starts the program.
    pub(crate) fn is_wrong(
        &self,
        haul: &dyn Fn() -> Command,
        kind: &str,
        tree: &Path,
    ) -> io::Result<Option<String>> {
        let text = succeed(haul().args(["layout", "-r", "--json"]).arg(tree))?.stdout;
        let events =
            text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
        let mut found: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
        let mut told: BTreeMap<String, u64> = BTreeMap::new();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for event in events {
            match event["event"].as_str() {
                Some("layout") if event["kind"] == kind => {
                    let targets = list(&event["parts"][0]["targets"]).iter().map(text).collect();
                    found.insert(PathBuf::from(text(&event["path"])), targets);
                }
                Some("summary") => {
                    let targets = list(&event["targets"]).into_iter();
                    let bytes = targets.map(|it| (text(&it["name"]), it["bytes"].as_u64().unwrap_or(0)));
                    told = bytes.filter(|(_, bytes)| *bytes > 0).collect();
                }
                Some("directory") => {}
                _ => return Ok(Some(format!("haul layout --json: {event}"))),
            }
        }
        let differs = self.files.iter().find(|(path, targets)| found.get(*path) != Some(targets));
        if let Some((path, targets)) = differs {
            let said = found.get(path);
            return Ok(Some(format!("{} is on {targets:?}, and haul says {said:?}", path.display())));
        }
        if found.len() != self.files.len() || told != self.bytes {
            let (files, bytes) = (self.files.len(), &self.bytes);
            return Ok(Some(format!("{} files on {told:?}, not {files} on {bytes:?}", found.len())));
        }
        let table = succeed(haul().args(["layout", "-r"]).arg(tree))?.stdout;
        let table = String::from_utf8_lossy(&table);
        let is_told = |(path, targets): &(&PathBuf, &Vec<String>)| {
            let row = table.lines().find(|line| line.ends_with(&format!(" {}", path.display())));
            let shown = targets.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(" ");
            row.is_some_and(|row| row.contains(&format!(" {kind} ")) && row.contains(&shown))
        };
        let missing = self.files.iter().find(|pair| !is_told(pair));
        Ok(missing.map(|(path, targets)| {
            format!("the table does not say that {} is on {targets:?}", path.display())
        }))
    }
}
