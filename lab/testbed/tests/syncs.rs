//! No sync is forgotten: every one has a name, and `testbed syncs` removes every name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The two files that may call the system.
const CALLERS: [&str; 2] = ["crates/storage/src/sink/faults.rs", "crates/mover/src/durable.rs"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn sources(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Names as the two files spell them: `Variant "name";` and `Variant => "name",`.
fn named(file: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(repository().join(file)).unwrap();
    let text = text.split("#[cfg(all(test").next().unwrap();
    let quoted = |line: &str| Some(line.split('"').nth(1)?.to_owned());
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| line.ends_with("\";") && !line.contains('=') || line.contains("=> \""))
        .filter_map(quoted)
        .collect()
}

#[test]
fn every_named_sync_is_removed_by_the_testbed() {
    let mut expected = named(CALLERS[0]);
    assert_eq!(expected.len(), 13, "{expected:?}");
    let state = named(CALLERS[1]);
    assert_eq!(state.len(), 5, "{state:?}");
    expected.extend(state.into_iter().map(|name| format!("state/{name}")));
    let removed: BTreeSet<String> = haul_testbed::syncs::names().map(str::to_owned).collect();
    assert_eq!(removed, expected);
}

#[test]
fn nothing_is_made_durable_without_a_name() {
    let root = repository();
    let mut files = Vec::new();
    // Evaluations sync what they measure, and no transfer needs that.
    let transfers = |held: &fs::DirEntry| held.file_name() != "bench";
    for held in fs::read_dir(root.join("crates")).unwrap().flatten().filter(transfers) {
        sources(&held.path().join("src"), &mut files);
    }
    for file in files {
        let shown = file.strip_prefix(&root).unwrap().to_str().unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap();
        for call in ["sync_all()", "sync_data()", "fsync(", "fdatasync(", "syncfs("] {
            let calls = code.lines().any(|line| line.contains(call) && !line.trim_start().starts_with("//"));
            assert!(!calls || CALLERS.contains(&shown), "{shown} calls {call}");
        }
    }
}
