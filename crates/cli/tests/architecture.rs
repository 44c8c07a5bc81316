//! ARCHITECTURE.md is true: the names in it exist, and the crates use each other in one direction only.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `haul_storage` is crates/storage, `haul_crashfs` lab/crashfs.
fn crate_directory(name: &str) -> Option<PathBuf> {
    let short = name.strip_prefix("haul_")?;
    ["crates", "lab"].into_iter().map(|place| root().join(place).join(short)).find(|path| path.is_dir())
}

fn sources(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.clone(), fs::read_to_string(&path).unwrap()));
        }
    }
    found
}

#[test]
fn the_names_in_the_code_map_exist() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut checked = 0;
    for (at, _) in text.match_indices("`haul_") {
        let name = text[at + 1..].split('`').next().unwrap();
        let mut parts = name.split("::");
        let directory = crate_directory(parts.next().unwrap());
        let directory = directory.unwrap_or_else(|| panic!("no crate for {name}"));
        let sources = sources(&directory.join("src"));
        for part in parts {
            let is_module = sources.iter().any(|(path, _)| {
                path.file_stem().is_some_and(|stem| stem == part) || path.parent().unwrap().ends_with(part)
            });
            let is_item = sources.iter().any(|(_, text)| {
                ["struct", "enum", "trait", "fn"].iter().any(|kind| text.contains(&format!("{kind} {part}")))
            });
            assert!(is_module || is_item, "{name}: there is no {part}");
        }
        checked += 1;
    }
    assert!(checked > 20, "only {checked} names found");
    // The parts of modules, in parentheses behind them.
    let walk = text.split("## The walk of one object").nth(1).unwrap().split("\n## ").next().unwrap();
    let all: Vec<_> = ["protocol", "storage", "mover"]
        .iter()
        .flat_map(|name| sources(&root().join("crates").join(name).join("src")))
        .collect();
    for group in walk.split("(`").skip(1) {
        for part in group.split(')').next().unwrap().split(", ") {
            let part = part.trim_matches('`');
            assert!(
                all.iter().any(|(path, _)| path.file_stem().is_some_and(|stem| stem == part)),
                "the walk names {part}, which is no module"
            );
        }
    }
}

#[test]
fn crates_use_only_those_above_them() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = text.split("## Crates").nth(1).unwrap().split("\n## ").next().unwrap();
    let order: Vec<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `haul"))
        .map(|line| format!("haul{}", line.split('`').next().unwrap()).replace('_', "-"))
        .collect();
    assert!(order.len() >= 11, "{order:?}");
    for place in ["crates", "lab"] {
        for entry in fs::read_dir(root().join(place)).unwrap().flatten() {
            let Ok(manifest) = fs::read_to_string(entry.path().join("Cargo.toml")) else { continue };
            let name =
                manifest.lines().find_map(|line| line.strip_prefix("name = ")).unwrap().trim_matches('"');
            let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or("");
            let dependencies = dependencies.split("\n[").next().unwrap();
            let position = |name: &str| order.iter().position(|other| other == name);
            for line in dependencies.lines().filter(|line| line.starts_with("haul-")) {
                let used = line.split(['.', ' ', '=']).next().unwrap();
                if let (Some(user), Some(used_at)) = (position(name), position(used)) {
                    assert!(used_at < user, "{name} uses {used}, which stands below it");
                } else {
                    assert!(place == "lab" || used == "haul-crashfs", "{name} or {used} is not in the table");
                }
            }
        }
    }
}
