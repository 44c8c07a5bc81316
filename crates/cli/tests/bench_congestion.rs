//! `haul bench congestion` from the command line, as small as it can be: file systems are made, one target is slow, files
//! are moved, and what came out is written. Needs root and FUSE, as the tests of the emulated file system do.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_evaluation_makes_its_laboratory_moves_files_writes_and_leaves_nothing() {
    let haul = Path::new(env!("CARGO_BIN_EXE_haul"));
    assert!(haul.with_file_name("stripefs").is_file(), "cargo build --workspace makes stripefs beside haul");
    let bed = tempfile::tempdir().unwrap();
    let (report, scratch) = (bed.path().join("report"), bed.path().join("scratch"));
    let output = Command::new(haul)
        .args(["bench", "congestion", "--throttle", "emulated", "--scale", "0.0001", "--rate", "220MB"])
        .args(["--part", "transfers", "--end", "source,sink", "--slow", "1", "--motion", "moving"])
        .args(["--step", "1", "--mover", "file-order,adaptive", "--runs", "1"])
        .arg("--report")
        .arg(&report)
        .arg("--dir")
        .arg(&scratch)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let read =
        |name: &str| fs::read_to_string(report.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let transfers = read("lads-transfers.csv");
    for end in ["source", "sink"] {
        for mover in ["file-order", "adaptive"] {
            let start = format!("{end},1,true,{mover},0,");
            let row = transfers.lines().find(|line| line.starts_with(&start));
            let row = row.unwrap_or_else(|| panic!("no {start} in\n{transfers}"));
            let numbers: Vec<f64> = row.split(',').skip(5).map(|field| field.parse().unwrap()).collect();
            let (seconds, bound, at_slow, imbalance) = (numbers[0], numbers[1], numbers[4], numbers[7]);
            // 738 MB at 220 MB/s are 3.4 s, and nobody is faster than the bound; files are spread evenly.
            assert!(bound > 3.3 && seconds > bound * 0.98, "{row}");
            assert!(at_slow > 0.0 && imbalance < 0.05, "{row}");
        }
    }
    let page = read("lads.md");
    for part in
        ["Share of the work-conserving bound", "haul bench congestion", "| source | 1 |", "| sink | 1 |"]
    {
        assert!(page.contains(part), "{part} is not in the report");
    }
    let pictures: Vec<&str> = page.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()).collect();
    assert!(pictures.contains(&"lads-order-adaptive.svg"), "{pictures:?}");
    for picture in pictures {
        assert!(read(picture).ends_with("</svg>\n"), "{picture}");
    }
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0, "nothing is left over");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains("haul-congestion"), "{mounts}");
}
