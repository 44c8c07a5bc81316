//! `haul bench peers` from the command line, as small as it can be: haul and others move the same files, results are
//! compared, and what came out is written. As root it is all in namespaces of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

mod evaluation;

use evaluation::Evaluation;

const PEERS: &str = "haul,haul-plain,haul-here,raw,rsyncd,cp,tar,bbcp";

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

#[test]
fn the_comparison_measures_checks_writes_and_leaves_nothing() {
    let evaluation = Evaluation::new();
    let disk = evaluation.path("disk");
    let said = evaluation.run(&[
        "peers",
        "--case",
        "big,tree,tree-disk,cost",
        "--scale",
        "0.002",
        "--runs",
        "2",
        "--peer",
        PEERS,
        "--disk",
        disk.to_str().unwrap(),
    ]);
    let tools = ["haul", "haul-plain", "haul-here", "cp", "tar"];
    let installed = tools.into_iter().chain(is_installed("rsync").then_some("rsyncd"));
    for (case, bytes) in [("big", 8 << 20), ("tree", 0), ("tree-disk", 0)] {
        let size = evaluation.rows("peers-cases.csv", &format!("{case},"));
        let size: u64 = size[0].split(',').nth(2).unwrap().parse().unwrap();
        assert!(size == bytes || bytes == 0 && size > 1_000_000, "{case}: {size}");
        for tool in installed.clone().chain((case == "big").then_some("raw")) {
            let rows = evaluation.rows("peers-runs.csv", &format!("{case},{tool},"));
            assert_eq!(rows.len(), 2, "{case} {tool}: {rows:?}\n{said}");
            for row in rows {
                let numbers: Vec<f64> =
                    row.split(',').skip(3).take(5).map(|field| field.parse().unwrap()).collect();
                assert!(numbers[0] > 0.0 && numbers[0] < 60.0, "{row}");
                let has_far_end = tool == "haul" || tool == "haul-plain";
                // haul's far end lives long enough to be seen, and costs something.
                assert!(!has_far_end || numbers[2] > 0.0, "{row}");
            }
            assert_eq!(evaluation.rows("peers-tools.csv", &format!("{case},{tool},")).len(), 1);
        }
        if !is_installed("bbcp") {
            let rows = evaluation.rows("peers-runs.csv", &format!("{case},bbcp,0,"));
            assert!(rows[0].ends_with("not installed: no bbcp on the PATH"), "{rows:?}");
        }
    }
    assert_eq!(evaluation.rows("peers-cost.csv", "bytes,").len(), 4 * 2);
    assert_eq!(evaluation.rows("peers-cost.csv", "files,").len(), 3 * 2);
    let pictures = evaluation.check_page(
        "peers.md",
        &[
            "| big: speed of haul-plain against the fastest clear peer",
            "| big: speed of haul-here against cp -r (cp) | at least 0.50 |",
            "## One file of 8 MiB (big)",
            "smaller by",
            "| bbcp |",
            "haul bench peers",
            "CPU s/GB",
        ],
    );
    assert!(pictures.contains(&"peers-tree-disk.svg".to_owned()), "{pictures:?}");
    evaluation.check_nothing_left();
    assert_eq!(std::fs::read_dir(disk).unwrap().count(), 0, "nothing is left on the disk");

    // The page is made of the numbers alone, and they say on what machine they were measured.
    let page = evaluation.read("peers.md");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let measured = page.lines().filter(|line| line.starts_with("- ") && line.contains(kernel.trim()));
    assert_eq!(measured.count(), 3, "{page}");
    evaluation.run(&["peers", "--part", "report"]);
    assert_eq!(evaluation.read("peers.md"), page);
    // What cannot be measured again here stays.
    evaluation.run(&["peers", "--case", "tree-disk"]);
    assert_eq!(evaluation.read("peers.md"), page);
}

/// What is written down of a `cp` that does this behind a good copy; haul beside it is measured.
fn told_of_a_cp_that(evaluation: &Evaluation, does: &str) -> String {
    let programs = evaluation.path("programs");
    std::fs::create_dir(&programs).unwrap();
    let cp = programs.join("cp");
    std::fs::write(&cp, format!("#!/bin/sh\n/bin/cp \"$@\"\n{does}\n")).unwrap();
    std::fs::set_permissions(&cp, PermissionsExt::from_mode(0o755)).unwrap();
    let arguments = ["peers", "--case", "files", "--scale", "0.002", "--runs", "2", "--peer", "cp,haul-here"];
    let said = evaluation.run_with_programs(&programs, &arguments);
    assert_eq!(evaluation.rows("peers-runs.csv", "files,haul-here,").len(), 2);
    let rows = evaluation.rows("peers-runs.csv", "files,cp,");
    assert_eq!(rows.len(), 1, "{rows:?}\n{said}");
    rows[0].clone()
}

#[test]
fn a_tool_that_fails_without_a_word_was_not_measured() {
    let told = told_of_a_cp_that(&Evaluation::new(), "exit 7");
    assert!(told.contains("exit status: 7"), "{told}");
}

#[test]
fn a_tool_that_copies_well_once_and_then_makes_holes_is_found_out() {
    let evaluation = Evaluation::new();
    let once = evaluation.path("once");
    // Of the same size.
    let holes = "for f in \"$3\"/*; do s=$(stat -c %s \"$f\"); t=$(stat -c %Y \"$f\"); truncate -s 0 \"$f\"; truncate -s $s \"$f\"; touch -d @$t \"$f\"; done";
    let does = format!("if [ -e '{0}' ]; then {holes}; fi\ntouch '{0}'", once.display());
    let told = told_of_a_cp_that(&evaluation, &does);
    assert!(told.contains("the result differs"), "{told}");
}

#[test]
fn a_case_that_cannot_be_measured_does_not_keep_others_from_it() {
    let evaluation = Evaluation::new();
    let arguments = ["peers", "--case", "thirty,big", "--scale", "0.001", "--runs", "1", "--peer", "raw"];
    let output = evaluation.command(Path::new("/nowhere"), &arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("thirty: no tool"), "{said}");
    assert_eq!(evaluation.rows("peers-runs.csv", "big,raw,").len(), 1);
    evaluation.check_nothing_left();
}

#[test]
fn the_raw_pair_moves_a_file_and_says_when_it_cannot() {
    let bed = tempfile::tempdir().unwrap();
    let (source, sink) = (bed.path().join("source"), bed.path().join("sink"));
    let bytes: Vec<u8> = (0..3_000_001_u32).map(|number| (number % 251) as u8).collect();
    std::fs::write(&source, &bytes).unwrap();
    let raw = |from: &Path, to: &Path| {
        Command::new(Evaluation::haul()).args(["bench", "raw"]).arg(from).arg(to).output().unwrap()
    };
    let output = raw(&source, &sink);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read(&sink).unwrap() == bytes);
    assert_eq!(raw(&source, &bed.path().join("missing/sink")).status.code(), Some(1));
}

#[test]
fn an_unknown_peer_is_a_mistake_with_a_hint() {
    let output =
        Command::new(Evaluation::haul()).args(["bench", "peers", "--peer", "teleport"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("teleport") && said.contains("rsyncd"), "{said}");
}
