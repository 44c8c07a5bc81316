//! `haul cp --spill`: a network that is slower than the source, on one host and between two ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use haul_testkit::alone;
use serde_json::Value;

const FILES: usize = 6;
const FILE_BYTES: usize = 4 << 20;
/// 24 MiB in objects of 256 KiB through 8 buffers, within a second and a half.
const SLOW: [&str; 6] = ["--object-size", "256KiB", "--memory", "2MiB", "--bandwidth", "16MiB"];

struct Bed {
    directory: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        let bed = Bed { directory: tempfile::tempdir().unwrap() };
        for directory in ["tree", "home", "home/flash"] {
            fs::create_dir(bed.path(directory)).unwrap();
        }
        for number in 0..FILES {
            // No two objects are alike, and the last of a file is a short one.
            let bytes = (0..FILE_BYTES + number).map(|at| (at / 1000 * 31 + at % 253 + number * 7) as u8);
            fs::write(bed.path("tree").join(number.to_string()), bytes.collect::<Vec<u8>>()).unwrap();
        }
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn copy(&self, options: &[&str], paths: [&str; 2]) -> Output {
        let haul = env!("CARGO_BIN_EXE_haul");
        let mut command = alone(haul, self.directory.path());
        command.args(["cp", "-r", "--json"]).args(SLOW).args(options);
        command.args(["--ssh", &format!("{haul} bench shell"), "--haul-path", haul]).args(paths);
        command.output().unwrap()
    }
}

fn events(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// All of it arrived, and most of it waited in the spill.
fn is_whole(bed: &Bed, output: &Output) {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let events = events(output);
    let summary = events.last().unwrap();
    assert_eq!(output.status.code(), Some(0), "{error} {summary}");
    for number in 0..FILES {
        let [one, other] =
            ["tree", "there"].map(|place| fs::read(bed.path(place).join(number.to_string())).unwrap());
        assert!(one == other, "{number}");
    }
    let spilled = summary["bytes_spilled"].as_u64().unwrap();
    assert!(spilled > (FILES * FILE_BYTES / 4) as u64, "{summary}");
    assert_eq!(summary["objects_repaired"], 0, "{summary}");
    assert!(events.iter().all(|event| event["event"] != "spill_failed"), "{events:?}");
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().count() == 0
}

#[test]
fn what_the_network_cannot_take_waits_in_the_spill() {
    let bed = Bed::new();
    let output = bed.copy(&["--spill", "home/flash"], ["tree", "there"]);
    is_whole(&bed, &output);
    assert!(is_empty(&bed.path("home/flash")));
}

#[test]
fn the_spill_is_at_the_source_also_when_that_is_the_other_host() {
    for options in [&["--spill", "flash"][..], &["--spill", "flash", "--plain"]] {
        let bed = Bed::new();
        let from = format!("localhost:{}", bed.path("tree").display());
        is_whole(&bed, &bed.copy(options, [&from, "there"]));
        assert!(is_empty(&bed.path("home/flash")));
    }
}

#[test]
fn a_clear_push_is_sent_from_the_spill() {
    let bed = Bed::new();
    let to = format!("localhost:{}", bed.path("there").display());
    is_whole(&bed, &bed.copy(&["--spill", "home/flash", "--plain"], ["tree", &to]));
}

#[test]
fn a_small_spill_is_used_again_and_again() {
    let bed = Bed::new();
    let output = bed.copy(&["--spill", "home/flash", "--spill-max", "1MiB"], ["tree", "there"]);
    assert_eq!(output.status.code(), Some(0));
    let spilled = events(&output).last().unwrap()["bytes_spilled"].as_u64().unwrap();
    assert!(spilled > 2 << 20, "{spilled}");
}

#[test]
fn without_the_option_nothing_is_put_away() {
    let bed = Bed::new();
    let output = bed.copy(&[], ["tree", "there"]);
    assert_eq!(events(&output).last().unwrap()["bytes_spilled"], 0);
}

#[test]
fn a_directory_that_cannot_be_used_is_an_error_before_anything_is_copied() {
    let bed = Bed::new();
    let from = format!("localhost:{}", bed.path("tree").display());
    for paths in [["tree", "there"], [&from, "there"]] {
        let output = bed.copy(&["--spill", "missing"], paths);
        let summary = events(&output).last().unwrap().clone();
        assert_eq!(
            (output.status.code(), &summary["error"]["code"]),
            (Some(1), &Value::from("spill-failed"))
        );
        assert!(String::from_utf8_lossy(&output.stderr).contains("missing (--spill)"), "{summary}");
        assert!(!bed.path("there").exists() || is_empty(&bed.path("there")));
    }
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let bed = Bed::new();
    for options in [
        &["--spill", "home/flash", "--congestion", "none"][..],
        &["--spill-max", "1GiB"],
        &["--spill", "home/flash", "--spill-max", "100KiB"],
    ] {
        let output = bed.copy(options, ["tree", "there"]);
        assert_eq!(output.status.code(), Some(2), "{options:?}");
    }
}
