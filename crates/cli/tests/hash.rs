//! `haul cp --hash`: each way to check contents, on one host, in clear text and encrypted; through a kill.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use haul_testkit::alone;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

const OBJECT: usize = 256 << 10;
/// Small ones travel in a bundle, the others as one object and as many.
const FILES: [(&str, usize); 5] =
    [("empty", 0), ("small", 1000), ("one", OBJECT), ("many", 9 * OBJECT + 5), ("more", 12 * OBJECT)];
const HASHES: [&str; 3] = ["blake3", "xxh3", "none"];

struct Bed {
    directory: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        let bed = Bed { directory: tempfile::tempdir().unwrap() };
        for directory in ["tree", "home"] {
            fs::create_dir(bed.path(directory)).unwrap();
        }
        for (name, size) in FILES {
            fs::write(bed.path("tree").join(name), content(name, size)).unwrap();
        }
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, options: &[&str], to: &str) -> Command {
        let haul = env!("CARGO_BIN_EXE_haul");
        let mut command = alone(haul, self.directory.path());
        command.args([
            "cp",
            "-r",
            "--json",
            "--verbose",
            "--object-size",
            "256KiB",
            "--bundle-below",
            "64KiB",
        ]);
        command.args(options).args(["--ssh", &format!("{haul} bench shell"), "--haul-path", haul]);
        command.args(["tree", to]);
        command
    }

    fn copy(&self, options: &[&str], to: &str) -> Vec<Value> {
        Self::done(self.command(options, to), options)
    }

    fn done(mut command: Command, options: &[&str]) -> Vec<Value> {
        let Output { stdout, stderr, status } = command.output().unwrap();
        let text = String::from_utf8(stdout).unwrap();
        assert_eq!(status.code(), Some(0), "{options:?}: {} {text}", String::from_utf8_lossy(&stderr));
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    fn is_whole(&self, to: &str) {
        assert_eq!(fs::read_dir(self.path(to)).unwrap().count(), FILES.len(), "{to}");
        for (name, size) in FILES {
            assert!(fs::read(self.path(to).join(name)).unwrap() == content(name, size), "{to}/{name}");
        }
    }
}

fn content(name: &str, size: usize) -> Vec<u8> {
    (0..size).map(|at| (at / 1000 * 31 + at % 253 + name.len() * 7) as u8).collect()
}

/// As `b3sum` and `xxh128sum` print it.
fn usual(hash: &str, bytes: &[u8]) -> String {
    match hash {
        "blake3" => blake3::hash(bytes).to_string(),
        _ => format!("{:032x}", twox_hash::XxHash3_128::oneshot(bytes)),
    }
}

#[test]
fn every_hash_is_reported_as_what_it_is() {
    let bed = Bed::new();
    for hash in HASHES {
        for (route, options, there) in [
            ("local", &[][..], ""),
            ("clear", &["--plain"][..], "localhost:"),
            ("tls", &[][..], "localhost:"),
        ] {
            let name = format!("{hash}-{route}");
            let to = bed.path(&name);
            let options = [&["--hash", hash], options].concat();
            let command = bed.command(&options, &format!("{there}{}", to.display()));
            let events = Bed::done(command, &options);
            bed.is_whole(&name);
            let summary = events.last().unwrap();
            assert_eq!((&summary["hash"], &summary["state"]), (&hash.into(), &"done".into()), "{summary}");
            for (file, size) in FILES {
                let told = events.iter().find(|event| {
                    event["event"] == "file"
                        && event["path"].as_str().is_some_and(|path| path.ends_with(file))
                });
                let told = told.unwrap_or_else(|| panic!("{name}: nothing is told of {file}: {events:?}"));
                // A member of a bundle has none; one of many objects is its own with XXH3.
                let shown = match (hash, size) {
                    ("none", _) | (_, ..=1000) => Value::Null,
                    ("xxh3", size) if size > OBJECT => {
                        assert_eq!(told["hash"].as_str().map(str::len), Some(32), "{told}");
                        continue;
                    }
                    _ => usual(hash, &content(file, size)).into(),
                };
                assert_eq!(told["hash"], shown, "{name} {told}");
            }
        }
    }
}

#[test]
fn a_hash_that_nobody_knows_is_named() {
    let bed = Bed::new();
    let output = bed.command(&["--hash", "md5"], "there").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--hash"), "{output:?}");
}

/// Kills both ends once something is durable.
fn kill(mut child: Child, bed: &Bed, to: &str) {
    let unfinished = || {
        let mut names = fs::read_dir(bed.path(to)).into_iter().flatten().flatten();
        names.any(|name| name.file_name().to_string_lossy().starts_with(".haul-"))
    };
    let started = Instant::now();
    while !unfinished() && started.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(700));
    assert!(child.try_wait().unwrap().is_none(), "it has ended before it was killed");
    kill_process_group(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
}

#[test]
fn a_killed_transfer_goes_on_with_the_same_hash_and_starts_its_file_again_with_another() {
    let bed = Bed::new();
    for (number, (first, second)) in
        [("xxh3", "xxh3"), ("none", "none"), ("xxh3", "blake3"), ("none", "xxh3")].into_iter().enumerate()
    {
        let name = format!("there-{number}");
        let to = format!("localhost:{}", bed.path(&name).display());
        let mut command = bed.command(&["--plain", "--hash", first, "--bandwidth", "2MiB"], &to);
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        kill(command.spawn().unwrap(), &bed, &name);
        let events = bed.copy(&["--plain", "--hash", second], &to);
        bed.is_whole(&name);
        let summary = events.last().unwrap();
        let skipped = summary["objects_skipped"].as_u64().unwrap();
        assert_eq!(skipped > 0, first == second, "{first}, {second}: {summary}");
    }
}

/// A symlink has nothing that could be compared, and a summary says so in both forms.
#[test]
fn of_what_was_not_sent_nothing_is_told_as_verified() {
    let bed = Bed::new();
    fs::remove_dir_all(bed.path("tree")).unwrap();
    fs::create_dir(bed.path("tree")).unwrap();
    std::os::unix::fs::symlink("anywhere", bed.path("tree/link")).unwrap();
    for is_sent in [false, true] {
        if is_sent {
            fs::write(bed.path("tree/file"), b"content").unwrap();
        }
        let to = |form| format!("localhost:{}", bed.path(&format!("{form}-{is_sent}")).display());
        let events = Bed::done(bed.command(&[], &to("json")), &[]);
        let verified = events.last().unwrap()["verified"].is_string();
        let haul = env!("CARGO_BIN_EXE_haul");
        let mut plain = alone(haul, bed.directory.path());
        plain.args([
            "cp",
            "-r",
            "--ssh",
            &format!("{haul} bench shell"),
            "--haul-path",
            haul,
            "tree",
            &to("plain"),
        ]);
        let output = plain.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success() && said.contains("durable"), "{said}");
        assert_eq!([verified, said.contains("verified")], [is_sent; 2], "{said}");
    }
}
