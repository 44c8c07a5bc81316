//! `haul layout` as a user meets it: what it says of files, and what it leaves alone.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use haul_testkit::alone;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use serde_json::Value;

struct Bed {
    directory: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        Bed { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        // As the kernel knows it.
        self.directory.path().canonicalize().unwrap().join(name)
    }

    /// A file of this size, all hole.
    fn file(&self, name: &str, bytes: u64) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::File::create(path).unwrap().set_len(bytes).unwrap();
    }

    /// `@` in a line stands for the directory.
    fn rules(&self, lines: &str) -> String {
        let here = self.directory.path().canonicalize().unwrap();
        fs::write(self.path("rules"), lines.replace('@', here.to_str().unwrap())).unwrap();
        self.path("rules").to_str().unwrap().to_owned()
    }

    fn layout(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = alone(env!("CARGO_BIN_EXE_haul"), self.directory.path());
        command.env("COLUMNS", "70").arg("layout").args(arguments);
        command
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What was printed, if the exit code is the expected one.
fn told(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn events(output: &Output, code: i32) -> Vec<Value> {
    told(output, code).lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

const MIB: u64 = 1 << 20;

#[test]
fn files_are_shown_with_their_stripes_and_targets_with_their_bytes() {
    let bed = Bed::new();
    bed.file("data/a", 10 * MIB);
    bed.file("data/small/b", 1000);
    let rules = bed.rules("@/data 4MiB ost0 ost1 ost2\n@/data/small - ost0\n");
    let said = told(&bed.layout(&["--layout-file", &rules, "data/a", "data/small/b"]), 0);
    let lines: Vec<_> = said.lines().collect();
    let fields = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
    assert_eq!(fields(0), ["size", "stripes", "of", "kind", "targets", "path"]);
    assert_eq!(fields(1), ["10.0", "MiB", "3", "4.0", "MiB", "file", "ost0", "ost1", "ost2", "data/a"]);
    assert_eq!(fields(2), ["1000", "B", "1", "file", "ost0", "data/small/b"]);
    assert_eq!(lines[0].find("path"), lines[1].find("data/a"), "{said}");
    assert_eq!(lines[1].find("data/a"), lines[2].find("data/small/b"), "{said}");
    assert_eq!(lines[4], "2 files, 10.0 MiB on 3 targets");
    let bars: BTreeMap<_, _> =
        lines[5..8].iter().map(|line| (&line[..4], line.matches('#').count())).collect();
    // ost0 has the longest, ost2 half of it and ost1 as much as ost0 but for 1000 bytes.
    assert!(
        bars["ost0"] >= bars["ost1"] && bars["ost1"] > 20 && bars["ost2"].abs_diff(bars["ost0"] / 2) <= 1,
        "{said}"
    );
    assert!(lines[8].starts_with("fullest: 1.20 x the mean"), "{said}");
    assert!(lines[5..].iter().all(|line| line.len() <= 70), "{said}");
}

#[test]
fn json_is_one_object_a_line_and_ends_with_a_summary() {
    let bed = Bed::new();
    bed.file("a", 10 * MIB);
    bed.file("empty", 0);
    let rules = bed.rules("@ 4MiB ost0 ost1 ost2\n");
    let events = events(&bed.layout(&["--json", "--layout-file", &rules, "a", "empty", "missing", "."]), 3);
    assert_eq!(events.len(), 5);
    let part = &events[0]["parts"][0];
    assert_eq!(
        (&events[0]["event"], &events[0]["path"], &events[0]["kind"]),
        (&"layout".into(), &"a".into(), &"file".into())
    );
    assert_eq!(
        (&events[0]["size"], &part["start"], &part["end"]),
        (&(10 * MIB).into(), &0.into(), &Value::Null)
    );
    assert_eq!((&part["stripes"], &part["stripe_size"]), (&3.into(), &(4 * MIB).into()));
    assert_eq!(part["targets"], serde_json::json!(["ost0", "ost1", "ost2"]));
    assert_eq!((&events[2]["event"], &events[2]["code"]), (&"failed".into(), &"source-missing".into()));
    assert_eq!((&events[3]["event"], &events[3]["default"]), (&"directory".into(), &Value::Null));
    let summary = &events[4];
    assert_eq!(summary["event"], "summary");
    assert_eq!((&summary["files_total"], &summary["files_failed"]), (&3.into(), &1.into()));
    assert_eq!((&summary["bytes_total"], &summary["bytes_on_no_target"]), (&(10 * MIB).into(), &0.into()));
    let bytes: Vec<_> = summary["targets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|target| target["bytes"].as_u64().unwrap())
        .collect();
    assert_eq!(bytes, [4 * MIB, 4 * MIB, 2 * MIB]);
}

#[test]
fn every_file_has_a_target_whatever_it_is_on() {
    let bed = Bed::new();
    bed.file("here", 5);
    for (path, kinds) in [("here", &["local", "mount"][..]), ("/proc/self/status", &["mount"])] {
        let events = events(&bed.layout(&["--json", path]), 0);
        assert!(kinds.contains(&events[0]["kind"].as_str().unwrap()), "{path}: {}", events[0]);
        assert_eq!(events[0]["parts"][0]["targets"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn trees_are_walked_without_following_symlinks() {
    let bed = Bed::new();
    let mut expected = Vec::new();
    for number in 0..40 {
        let name = format!("tree/d{}/e/f{number}", number % 4);
        bed.file(&name, number);
        expected.push(name);
    }
    bed.file("outside/no", 1);
    symlink("../outside", bed.path("tree/to-outside")).unwrap();
    symlink("d0/e/f0", bed.path("tree/to-file")).unwrap();
    symlink("nowhere", bed.path("tree/dangling")).unwrap();
    symlink("tree", bed.path("named")).unwrap();
    let paths = |arguments: &[&str]| {
        let events = events(&bed.layout(arguments), 0);
        let files = events.iter().filter(|event| event["event"] == "layout");
        let mut paths: Vec<_> = files.map(|event| event["path"].as_str().unwrap().to_owned()).collect();
        paths.sort();
        paths
    };
    expected.sort();
    assert_eq!(paths(&["-r", "--json", "tree"]), expected);
    assert_eq!(paths(&["--json", "tree"]), Vec::<String>::new(), "without -r a directory is only itself");
    assert_eq!(paths(&["-r", "--json", "named"]).len(), 40, "what the user names is followed");
    assert!(told(&bed.layout(&["tree"]), 0).contains("no default"));
}

#[test]
fn what_cannot_be_looked_at_is_named_and_the_rest_goes_on() {
    let bed = Bed::new();
    bed.file("a", 5);
    bed.file("line\nfeed", 5);
    let output = bed.layout(&["a", "missing", "a/below", "line\nfeed", "dev\x1bnull"]);
    let said = told(&output, 3);
    let errors = text(&output.stderr);
    assert_eq!(
        said.lines().filter(|line| line.ends_with(" a") || line.ends_with("line\\nfeed")).count(),
        2,
        "{said}"
    );
    let named: Vec<_> = errors.lines().filter(|line| line.starts_with("haul: ")).collect();
    assert_eq!(named.len(), 3, "{errors}");
    assert!(named[0].contains("missing: no such file or directory"), "{errors}");
    assert!(named[2].contains("dev\\u{1b}null"), "{errors}");

    let odd = OsStr::from_bytes(b"not \xff text");
    fs::write(bed.path("").join(odd), b"x").unwrap();
    let event = &events(&bed.command(&["--json"]).arg(odd).output().unwrap(), 0)[0];
    assert_eq!(event["path_hex"], "6e6f7420ff2074657874");
}

#[test]
fn a_directory_without_permission_is_named() {
    // What this thread starts from here on may not look everywhere, even as root. Others have no such privilege to lose.
    for privilege in [CapabilitySet::DAC_OVERRIDE, CapabilitySet::DAC_READ_SEARCH] {
        let _ = remove_capability_from_bounding_set(privilege);
    }
    let bed = Bed::new();
    bed.file("tree/closed/a", 5);
    bed.file("tree/b", 5);
    fs::set_permissions(bed.path("tree/closed"), fs::Permissions::from_mode(0o000)).unwrap();
    let output = bed.layout(&["-r", "tree"]);
    fs::set_permissions(bed.path("tree/closed"), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(told(&output, 3).contains("tree/b"));
    assert!(text(&output.stderr).contains("tree/closed: permission denied"));
}

#[test]
fn a_fifo_or_device_is_never_opened() {
    let bed = Bed::new();
    bed.file("tree/a", 5);
    let fifo = bed.path("tree/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    symlink("fifo", bed.path("tree/to-fifo")).unwrap();
    // Opening the FIFO for reading would wait for ever: the end of this process is the test.
    let output = bed.layout(&["tree/fifo", "tree/to-fifo", "/dev/null", "tree/a"]);
    assert!(told(&output, 3).contains("tree/a"));
    let errors = text(&output.stderr);
    assert_eq!(errors.matches("is neither file, directory nor symlink").count(), 3, "{errors}");
    assert!(told(&bed.layout(&["-r", "tree"]), 0).contains("1 file,"));
}

#[test]
fn a_layout_file_that_is_wrong_is_a_usage_error_with_its_line() {
    let bed = Bed::new();
    bed.file("a", 5);
    let rules = bed.rules("# fine\n@ - x\n@/b 17 x y\n");
    let output = bed.layout(&["--layout-file", &rules, "a"]);
    assert_eq!(told(&output, 2), "");
    assert!(text(&output.stderr).contains("rules:3: "), "{}", text(&output.stderr));
    assert_eq!(told(&bed.layout(&["--layout-file", "no-such", "a"]), 2), "");
    assert_eq!(told(&bed.layout(&[]), 2), "");
}

#[test]
fn a_reader_that_has_seen_enough_ends_it_quietly() {
    let bed = Bed::new();
    for number in 0..2000 {
        bed.file(&format!("tree/a-name-that-is-long-enough-to-fill-the-pipe-soon-{number}"), 1);
    }
    let mut child =
        bed.command(&["-r", "--json", "tree"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 1];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}
