//! The loops, tried on a mover that is right and on ones with a planted bug: a loop that finds nothing there would find
//! nothing in haul.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;

struct Seen {
    passed: bool,
    table: BTreeMap<String, String>,
    output: String,
}

impl Seen {
    fn violations(&self, class: &str) -> u64 {
        self.table[&format!("violation: {class}")].parse().unwrap()
    }
}

/// Runs a loop over the stand-in with one bug.
fn run(bug: &str, arguments: &[&str]) -> Seen {
    let output = Command::new(env!("CARGO_BIN_EXE_testbed"))
        .args(arguments)
        .args(["--haul", env!("CARGO_BIN_EXE_stand-in"), "--until-violation", "--seconds", "300"])
        .env("STAND_IN_BUG", bug)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let table = text
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
        .collect::<BTreeMap<_, _>>();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(table.contains_key("rounds"), "the loop did not come to its end: {text}\n{errors}");
    if let Some(kept) = text.lines().find_map(|line| line.strip_prefix("testbed: kept ")) {
        haul_testbed::tree::remove(kept.as_ref()).unwrap();
    }
    Seen { passed: output.status.success(), table, output: text }
}

#[test]
fn a_mover_that_is_right_passes_the_kill_loop() {
    let seen = run("", &["torture", "--rounds", "12", "--dataset", "edges", "--dataset", "small"]);
    assert!(seen.passed, "{}", seen.output);
    assert_eq!(seen.table["rounds"], "12");
    assert!(seen.output.contains("torture: 12 passed, 0 failed"));
}

/// Disks that anybody may have, and those that only root has.
fn media() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() {
        return &["crashfs", "ext4", "xfs"];
    }
    haul_testkit::lacks("root");
    &["crashfs"]
}

#[test]
fn a_mover_that_is_right_passes_the_power_cut_loop() {
    for medium in media() {
        let seen = run("", &["crash", "--rounds", "10", "--medium", medium]);
        assert!(seen.passed, "{}", seen.output);
        assert!(seen.output.contains("crash: 10 passed, 0 failed"));
    }
}

/// A loop mostly waits: these run side by side. Each ends with its first violation.
fn side_by_side<T: Copy + Send + Sync>(all: &[T], run: impl Fn(T) + Copy + Send + Sync) {
    thread::scope(|scope| {
        for one in all {
            scope.spawn(move || run(*one));
        }
    });
}

#[test]
fn planted_bugs_are_found_by_the_kill_loop() {
    let bugs = [
        ("early-name", "false done"),
        ("early-claim", "false done"),
        ("left-overs", "left over"),
        ("false-done", "false done"),
        ("skips-by-size", "false done"),
        ("sends-twice", "sent again"),
        ("far-lingers", "old end"),
        ("no-takeover", "old end"),
    ];
    side_by_side(&bugs, |(bug, class)| {
        let dataset = if bug == "skips-by-size" { "small" } else { "edges" };
        // Some show in about every twentieth round, later on a busy machine.
        let mut arguments =
            vec!["torture", "--rounds", "400", "--dataset", dataset, "--old-end-seconds", "3"];
        // It takes an end that hangs while it writes.
        if bug == "no-takeover" {
            arguments.extend(["--attack", "supersede"]);
        }
        let seen = run(bug, &arguments);
        assert!(!seen.passed && seen.violations(class) > 0, "{bug} was not found: {}", seen.output);
    });
}

#[test]
fn planted_bugs_are_found_by_the_power_cut_loop() {
    side_by_side(media(), |medium| {
        // About every fourth round finds the early name, and the first that does is the last.
        for bug in ["no-file-sync", "no-directory-sync", "early-name"] {
            let dataset = if bug == "early-name" { "crash-big" } else { "crash-small" };
            let seen = run(bug, &["crash", "--rounds", "200", "--dataset", dataset, "--medium", medium]);
            let found = !seen.passed && seen.violations("false done") > 0;
            assert!(found, "{bug} was not found on {medium}: {}", seen.output);
        }
    });
}

#[test]
fn a_disk_that_lies_about_syncs_is_found_by_the_power_cut_loop() {
    for lie in ["file:.haul-", "directory"] {
        let seen = run("", &["crash", "--rounds", "200", "--dataset", "crash-small", "--lie", lie]);
        assert!(!seen.passed && seen.violations("false done") > 0, "{lie} was not found: {}", seen.output);
    }
}

#[test]
fn options_that_are_to_be_varied_and_are_not_there_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let mover = directory.path().join("haul");
    std::fs::write(&mover, "#!/bin/sh\necho --streams --memory\n").unwrap();
    std::fs::set_permissions(&mover, PermissionsExt::from_mode(0o755)).unwrap();
    let mut testbed = Command::new(env!("CARGO_BIN_EXE_testbed"));
    testbed.args(["torture", "--rounds", "1", "--haul"]).arg(&mover).arg("--dir").arg(directory.path());
    let output = testbed.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("this haul has no --reconnect --plain"), "{errors}");
}

#[test]
fn a_round_without_an_end_is_told_and_ended() {
    let directory = tempfile::tempdir().unwrap();
    let mover = directory.path().join("stand-in");
    let script =
        "#!/bin/sh\ncase \"$*\" in *--help*) exit ;; esac\ntrap '' TERM\nwhile :; do sleep 0.25; done\n";
    std::fs::write(&mover, script).unwrap();
    std::fs::set_permissions(&mover, PermissionsExt::from_mode(0o755)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_testbed"))
        .args(["--step-seconds", "2", "torture", "--rounds", "1", "--dataset", "small", "--haul"])
        .arg(&mover)
        .arg("--dir")
        .arg(directory.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("round 0 of torture has not ended after 2 s"), "{errors}");
    assert!(errors.contains("round 0 of torture does not end at all"), "{errors}");
    // The mover, and what it waits for.
    assert!(errors.contains(" stand-in (child of ") && errors.contains("wait"), "{errors}");
    let left: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["stand-in"]);
    assert!(
        haul_testbed::process::descendants(haul_testbed::process::own_pid())
            .iter()
            .all(|seen| seen.name != "hangs")
    );
}
