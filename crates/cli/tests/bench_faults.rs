//! `haul bench faults` from the command line, as small as it can be: everything is run, hit, counted and written.

use std::fs;
use std::process::{Command, Stdio};

#[test]
fn the_evaluation_runs_and_writes_tables_numbers_and_pictures() {
    let bed = tempfile::tempdir().unwrap();
    let (report, scratch) = (bed.path().join("report"), bed.path().join("scratch"));
    let output = Command::new(env!("CARGO_BIN_EXE_haul"))
        .args(["bench", "faults", "--workload", "big", "--part", "overhead,space,recovery"])
        .args(["--scale", "0.002", "--recovery-scale", "0.002", "--log", "universal+bit64,file+char"])
        .args(["--runs", "2", "--rounds-max", "2", "--seconds", "3", "--parallel", "8", "--point", "50"])
        .arg("--report")
        .arg(&report)
        .arg("--dir")
        .arg(&scratch)
        .env("HAUL_STREAMS", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let read =
        |name: &str| fs::read_to_string(report.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let rows = |name: &str, start: &str| {
        let text = read(name);
        text.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect::<Vec<_>>()
    };
    for log in ["universal+bit64", "file+char", "default"] {
        assert_eq!(rows("ft-lads-big-overhead.csv", &format!("{log},")).len(), 2, "{log}");
        for fault in ["source", "sink", "network"] {
            assert_eq!(
                rows("ft-lads-big-recovery.csv", &format!("{log},{fault},50,")).len(),
                2,
                "{log} {fault}"
            );
        }
    }
    // A log has room, none has not; what is sent again is far below the 200 MB of the workload.
    for row in rows("ft-lads-big-space.csv", "universal+bit64,") {
        let bytes: u64 = row.split(',').nth(1).unwrap().parse().unwrap();
        assert!((512..20_000).contains(&bytes), "{row}");
    }
    for row in rows("ft-lads-big-recovery.csv", "universal+bit64,source") {
        let again: u64 = row.split(',').nth(5).unwrap().parse().unwrap();
        assert!(again < 120_000_000, "{row}");
        let first: f64 = row.split(',').nth(6).unwrap().parse().unwrap();
        assert!(first > 0.0 && first < 30.0, "{row}");
    }
    let page = read("ft-lads.md");
    for part in [
        "Figure 5",
        "Figure 7",
        "Figure 8",
        "Figure 10",
        "| universal+bit64 | source | 50 |",
        "haul bench faults",
    ] {
        assert!(page.contains(part), "{part} is not in the report");
    }
    for picture in page.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
        assert!(read(picture).ends_with("</svg>\n"), "{picture}");
    }
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0, "nothing is left over");
}
