//! What `haul layout` says of files on a volume, against what `getfattr` says.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::network::succeed;
use crate::parallel::{files, join};

/// The attribute as text, asked by a program that knows nothing of haul.
pub(super) fn pathinfo(path: &Path) -> io::Result<String> {
    let mut command = Command::new("getfattr");
    command.args(["--only-values", "--absolute-names", "-n", "glusterfs.pathinfo"]).arg(path);
    Ok(String::from_utf8_lossy(&succeed(&mut command)?.stdout).into_owned())
}

/// `host:/brick` of a file: the first brick that is told, up to the path that ends in its name.
fn brick_of(path: &Path) -> io::Result<String> {
    let told = pathinfo(path)?;
    let strange = || io::Error::other(format!("{}: {told}", path.display()));
    let (brick, rest) =
        told.split_once("<POSIX(").and_then(|(_, rest)| rest.split_once("):")).ok_or_else(strange)?;
    let (host, real) = rest.split_once(':').ok_or_else(strange)?;
    // The file is where it is said to be, and no link to another brick.
    let real = Path::new(real.trim_end_matches([')', '>', '\0']));
    let whole = real
        .symlink_metadata()
        .is_ok_and(|found| found.len() > 0 || path.metadata().is_ok_and(|file| file.len() == 0));
    if whole { Ok(format!("{host}:{brick}")) } else { Err(strange()) }
}

/// What is wrong with the table and the JSON of a tree.
pub(super) fn is_wrong(haul: &Path, tree: &Path) -> io::Result<Option<String>> {
    let mut expected = BTreeMap::new();
    let mut bytes: BTreeMap<String, u64> = BTreeMap::new();
    for path in files(tree)? {
        let path = join(tree, &path);
        let brick = brick_of(&path)?;
        *bytes.entry(brick.clone()).or_default() += path.metadata()?.len();
        expected.insert(path, brick);
    }
    let text = succeed(Command::new(haul).args(["layout", "-r", "--json"]).arg(tree))?.stdout;
    let events =
        text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let mut found = BTreeMap::new();
    let mut told: BTreeMap<String, u64> = BTreeMap::new();
    for event in events {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match event["event"].as_str() {
            Some("layout") if event["kind"] == "gluster" => {
                found.insert(PathBuf::from(text(&event["path"])), text(&event["parts"][0]["targets"][0]));
            }
            Some("summary") => {
                for target in event["targets"].as_array().into_iter().flatten() {
                    told.insert(text(&target["name"]), target["bytes"].as_u64().unwrap_or(0));
                }
            }
            Some("directory") => {}
            _ => return Ok(Some(format!("haul layout --json: {event}"))),
        }
    }
    let differs = expected.iter().find(|(path, brick)| found.get(*path) != Some(brick));
    if let Some((path, brick)) = differs {
        let said = found.get(path);
        return Ok(Some(format!("{} is on {brick}, and haul says {said:?}", path.display())));
    }
    if found.len() != expected.len() || told != bytes {
        return Ok(Some(format!("{} files on {told:?}, not {} on {bytes:?}", found.len(), expected.len())));
    }
    let table = succeed(Command::new(haul).args(["layout", "-r"]).arg(tree))?.stdout;
    let table = String::from_utf8_lossy(&table);
    let is_told = |(path, brick): (&PathBuf, &String)| {
        let row = table.lines().find(|line| line.ends_with(&format!(" {}", path.display())));
        row.is_some_and(|row| row.contains(" gluster ") && row.contains(&**brick))
    };
    let missing = expected.iter().find(|pair| !is_told(*pair));
    Ok(missing.map(|(path, brick)| format!("the table does not say that {} is on {brick}", path.display())))
}
