//! `haul cp` with each engine: the same files arrive, a transfer that was killed goes on, and what a machine cannot do is said.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use haul_testkit::alone;
use serde_json::Value;

const WAYS: [[&str; 4]; 5] = [
    ["--engine", "auto", "--io", "auto"],
    ["--engine", "posix", "--io", "direct"],
    ["--engine", "uring", "--io", "direct"],
    ["--engine", "uring", "--io", "buffered"],
    ["--engine", "posix", "--io", "buffered"],
];

/// On a disk: directories for temporary files are often in memory.
struct Bed {
    directory: tempfile::TempDir,
}

impl Bed {
    /// Files that end with a page and files that do not; one with a hole, one that is empty, one that is small.
    fn new() -> Bed {
        let bed = Bed { directory: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() };
        for directory in ["tree", "home"] {
            fs::create_dir(bed.path(directory)).unwrap();
        }
        for (number, size) in
            [0, 5, 1 << 20, (1 << 20) + 1, (3 << 20) - 1, (6 << 20) + 4096].into_iter().enumerate()
        {
            let bytes = (0..size).map(|at: usize| (at / 1000 * 31 + at % 253 + number * 7) as u8);
            fs::write(bed.path("tree").join(number.to_string()), bytes.collect::<Vec<u8>>()).unwrap();
        }
        let holes = fs::File::create(bed.path("tree").join("holes")).unwrap();
        holes.set_len((5 << 20) + 7).unwrap();
        holes.write_all_at(&[7; 10_000], 2 << 20).unwrap();
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, options: &[&str], paths: [&str; 2]) -> Command {
        let haul = env!("CARGO_BIN_EXE_haul");
        let mut command = alone(haul, self.directory.path());
        command
            .args(["cp", "-r", "--json", "--object-size", "1MiB", "--bundle-below", "64KiB"])
            .args(options);
        command.args(["--ssh", &format!("{haul} bench shell"), "--haul-path", haul]).args(paths);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn copy(&self, options: &[&str], paths: [&str; 2]) -> Output {
        self.command(options, paths).output().unwrap()
    }

    fn is_whole(&self, output: &Output, about: &str) -> Value {
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        let summary: Value = serde_json::from_str(text.lines().last().unwrap_or("null")).unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{about}: {error} {summary}");
        for entry in fs::read_dir(self.path("tree")).unwrap().flatten() {
            let [one, other] = [entry.path(), self.path("there").join(entry.file_name())]
                .map(|path| fs::read(path).unwrap());
            assert!(one == other, "{about}: {:?}", entry.file_name());
        }
        assert_eq!(fs::read_dir(self.path("there")).unwrap().count(), 7, "{about}: nothing else is there");
        summary
    }
}

#[test]
fn every_engine_moves_every_file_on_one_host_and_between_two() {
    for way in WAYS {
        for (from, to, more) in [
            ("tree", "there", &[][..]),
            ("tree", "localhost:@", &["--plain"]),
            ("tree", "localhost:@", &[]),
            ("localhost:@", "there", &["--plain"]),
        ] {
            let bed = Bed::new();
            let named = |place: &str, name: &str| match place.strip_suffix('@') {
                Some(host) => format!("{host}{}", bed.path(name).display()),
                None => place.to_owned(),
            };
            let (from, to) = (named(from, "tree"), named(to, "there"));
            let output = bed.copy(&[&way[..], more].concat(), [&from, &to]);
            let about = format!("{way:?} {from} {to} {more:?}");
            let summary = bed.is_whole(&output, &about);
            assert_eq!(summary["objects_repaired"], 0, "{about}");
            assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{about}");
            let again = bed.copy(&[&way[..], more].concat(), [&from, &to]);
            assert_eq!(bed.is_whole(&again, &about)["bytes_sent"], 0, "{about}");
        }
    }
}

#[test]
fn a_transfer_that_was_killed_goes_on_with_another_engine() {
    for (number, way) in WAYS.into_iter().enumerate() {
        let bed = Bed::new();
        let destination = format!("localhost:{}", bed.path("there").display());
        let slow = [&way[..], &["--bandwidth", "8MiB"]].concat();
        let mut first = bed.command(&slow, ["tree", &destination]).spawn().unwrap();
        // Objects are on their way then; where none is yet, the second run has more to do.
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline && first.try_wait().unwrap().is_none() {
            let begun = fs::read_dir(bed.path("there")).into_iter().flatten().flatten();
            if begun.filter_map(|entry| entry.metadata().ok()).any(|found| found.len() > 1 << 20) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        first.kill().unwrap();
        first.wait().unwrap();
        let other = WAYS[(number + 1) % WAYS.len()];
        let output = bed.copy(&other, ["tree", &destination]);
        bed.is_whole(&output, &format!("{way:?}, then {other:?}"));
    }
}

#[test]
fn what_the_machine_cannot_do_is_said_to_whom_asked_for_it() {
    let with = |trouble: &str, options: &[&str]| {
        let bed = Bed::new();
        let destination = format!("localhost:{}", bed.path("there").display());
        let mut command = bed.command(options, ["tree", &destination]);
        let output = command.env("HAUL_TEST_ENGINE", trouble).output().unwrap();
        let summary = bed.is_whole(&output, trouble);
        (String::from_utf8_lossy(&output.stderr).into_owned(), summary)
    };
    let (said, summary) = with("no-ring", &["--engine", "uring", "--io", "direct"]);
    assert_eq!(said.matches("haul: io_uring is not available").count(), 1, "{said}");
    assert_eq!(summary["engines"][0]["chosen"]["engine"], "posix", "{summary}");
    let can_be_direct = !said.contains("haul: the file system on device");
    let expected = if can_be_direct { "direct" } else { "buffered" };
    assert_eq!(summary["engines"][0]["chosen"]["io"], expected, "the other wish: {summary}");
    let (said, _) = with("no-direct", &["--engine", "posix", "--io", "direct"]);
    assert_eq!(
        said.lines().filter(|line| line.starts_with("haul: the file system on device")).count(),
        1,
        "{said}"
    );
    let (said, _) = with("no-ring,no-direct", &[]);
    assert_eq!(said, "", "nobody has asked for it");
}

#[test]
fn explain_says_what_is_measured_and_what_is_asked_for() {
    let explain = |options: &[&str], to: &str| {
        let bed = Bed::new();
        let mut command = alone(env!("CARGO_BIN_EXE_haul"), bed.directory.path());
        let output = command.arg("explain").args(options).args(["tree", to]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let line = |text: &str, name: &str| {
        text.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_default().to_owned()
    };
    let text = explain(&["--engine", "uring", "--io", "direct"], "host:there");
    assert!(
        line(&text, "engine ").contains("uring") && line(&text, "engine ").contains("--engine"),
        "{text}"
    );
    assert!(line(&text, "reading here").contains("io_uring, direct"), "{text}");
    assert_eq!(line(&text, "writing here"), "", "that is elsewhere");
    let text = explain(&[], "there");
    assert!(line(&text, "io ").contains("auto") && line(&text, "io ").contains("measured"), "{text}");
    assert!(line(&text, "writing here").contains("from file to file"), "{text}");
}
