//! What some file systems do otherwise: files that cannot be read at once, modes that cannot be set, names that they take for the
//! same or do not take.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Output;

use haul_stripefs::{Mount, Options, StripeFs, control};
use haul_testkit::alone;
use serde_json::Value;

struct Bed {
    // Unmounted first.
    _mount: Mount,
    filesystem: StripeFs,
    directory: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let filesystem = StripeFs::open(&Options::new(vec![path("target")], path("mds"))).unwrap();
        fs::create_dir(path("striped")).unwrap();
        let _mount = Mount::new(&filesystem, &path("striped")).expect("FUSE can be mounted");
        Bed { _mount, filesystem, directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn copy(&self, options: &[&str], from: &str, to: &str, is_far: bool) -> Output {
        let haul = env!("CARGO_BIN_EXE_haul");
        let to = self.path(to).display().to_string();
        alone("timeout", self.directory.path())
            .args(["60", haul, "cp", "-r", "--ssh", &format!("'{haul}' bench shell"), "--haul-path", haul])
            .args(options)
            .arg(self.path(from))
            .arg(if is_far { format!("localhost:{to}") } else { to })
            .output()
            .unwrap()
    }
}

fn contents(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7 + seed) as u8).collect()
}

/// The events of a copy with `--json`, and the exit code.
fn events(output: &Output) -> (Vec<Value>, Option<i32>) {
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    (lines.map(|line| serde_json::from_slice(line).unwrap()).collect(), output.status.code())
}

/// Code and path of what failed.
fn failed(events: &[Value]) -> BTreeSet<(String, String)> {
    let text = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
    let failed = events.iter().filter(|event| event["event"] == "failed");
    failed.map(|event| (text(event, "code"), text(event, "path"))).collect()
}

#[test]
fn where_modes_cannot_be_set_files_arrive_without() {
    let bed = Bed::new();
    control::execute(&bed.filesystem, "modes=refused").unwrap();
    let source = bed.path("source");
    fs::create_dir_all(source.join("below")).unwrap();
    let files = [("tiny", 10), ("below/small", 300_000), ("big", 9 << 20)];
    for (name, bytes) in files {
        fs::write(source.join(name), contents(bytes, 0)).unwrap();
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(0o640)).unwrap();
    }
    fs::set_permissions(source.join("below"), fs::Permissions::from_mode(0o750)).unwrap();
    for is_far in [false, true] {
        let sink = format!("striped/sink-{is_far}");
        for (done, skipped) in [(3, 0), (0, 3)] {
            let (events, code) = events(&bed.copy(&["--json"], "source", &sink, is_far));
            assert_eq!((code, failed(&events)), (Some(0), BTreeSet::new()), "far: {is_far}");
            let summary = events.last().unwrap();
            assert_eq!((&summary["files_done"], &summary["files_skipped"]), (&done.into(), &skipped.into()));
        }
        for (name, bytes) in files {
            assert!(fs::read(bed.path(&sink).join(name)).unwrap() == contents(bytes, 0), "{name}");
        }
        // Whether modes can be set was tried somewhere: times are what they were.
        let time = |path: PathBuf| fs::metadata(path).unwrap().modified().unwrap();
        assert_eq!(time(bed.path(&sink).join("below")), time(source.join("below")), "far: {is_far}");
    }
}

/// Neither of two names takes the place of the other, whether DEST is new, or was found, or is what an earlier run has left.
#[test]
fn where_case_does_not_count_no_file_takes_the_place_of_another() {
    check_that_none_takes_the_place_of_another("paths=alike");
}

/// As libfuse gives them to file systems that know only paths (exfat-fuse).
#[test]
fn neither_does_it_where_each_form_of_a_name_has_a_number() {
    check_that_none_takes_the_place_of_another("paths=numbered");
}

fn check_that_none_takes_the_place_of_another(numbers: &str) {
    let bed = Bed::new();
    control::execute(&bed.filesystem, "case=ignored").unwrap();
    control::execute(&bed.filesystem, numbers).unwrap();
    let source = bed.path("source");
    let pairs = [
        ("README", "Readme", 1000),
        ("BIG.dat", "big.dat", 9 << 20),
        ("Data/f", "data/f", 100),
        ("\u{c4}rger.txt", "\u{e4}rger.txt", 500),
        // In a directory with nothing else.
        ("only/\u{c9}", "only/\u{e9}", 200),
        ("same/A", "same/a", 300),
    ];
    for (one, other, bytes) in pairs {
        for (seed, name) in [one, other].into_iter().enumerate() {
            let is_same = name.starts_with("same/");
            fs::create_dir_all(source.join(name).parent().unwrap()).unwrap();
            fs::write(source.join(name), contents(bytes, if is_same { 0 } else { seed })).unwrap();
            if is_same {
                let file = fs::File::options().write(true).open(source.join(name)).unwrap();
                file.set_modified(std::time::UNIX_EPOCH).unwrap();
            }
        }
    }
    std::os::unix::fs::symlink("nowhere", source.join("Link")).unwrap();
    std::os::unix::fs::symlink("elsewhere", source.join("link")).unwrap();
    for (is_far, is_there) in [(false, false), (false, true), (true, false), (true, true)] {
        let sink = format!("striped/sink-{is_far}-{is_there}");
        if is_there {
            fs::create_dir(bed.path(&sink)).unwrap();
        }
        for run in 0..3 {
            let (events, code) = events(&bed.copy(&["--json"], "source/.", &sink, is_far));
            let failed = failed(&events);
            let told = format!("far: {is_far}, there: {is_there}, run {run}: {failed:?}");
            assert_eq!(code, Some(3), "{told}");
            let taken = failed.iter().filter(|(code, _)| code == "name-taken");
            let taken: BTreeSet<String> =
                taken.map(|(_, path)| path.rsplit('/').next().unwrap().to_lowercase()).collect();
            let expected =
                ["a", "big.dat", "data", "link", "readme", "\u{e4}rger.txt", "\u{e9}"].map(String::from);
            assert_eq!(taken, BTreeSet::from(expected), "{told}");
            assert_eq!(failed.len(), 8, "and what is in the directory: {told}");
            for (one, other, bytes) in pairs {
                let lost = |name: &str| failed.iter().any(|(_, path)| path.ends_with(name));
                assert!(lost(one) != lost(other), "{one} {told}");
                let there = fs::read(bed.path(&sink).join(one)).unwrap();
                let seed = usize::from(lost(one) && !one.starts_with("same/"));
                assert!(there == contents(bytes, seed), "{one} {told}");
            }
        }
    }
}

#[test]
fn names_that_the_file_system_does_not_take_are_told_before_anything_is_sent() {
    check_that_colons_are_told("colons=refused");
}

/// As exfat-fuse does it.
#[test]
fn so_are_those_of_which_it_says_that_they_are_not_there() {
    check_that_colons_are_told("colons=missed");
}

fn check_that_colons_are_told(how: &str) {
    let bed = Bed::new();
    control::execute(&bed.filesystem, how).unwrap();
    let source = bed.path("source");
    fs::create_dir_all(source.join("12:00")).unwrap();
    for (name, bytes) in [("run_12:00:00.nc", 9 << 20), ("12:00/small", 10), ("small:er", 10), ("good", 10)] {
        fs::write(source.join(name), contents(bytes, 0)).unwrap();
    }
    for is_far in [false, true] {
        let sink = format!("striped/sink-{is_far}");
        for _ in 0..2 {
            let (events, code) = events(&bed.copy(&["--json"], "source", &sink, is_far));
            let failed = failed(&events);
            assert_eq!(code, Some(3), "{failed:?}");
            let invalid = failed.iter().filter(|(code, _)| code == "name-invalid").count();
            assert_eq!((invalid, failed.len()), (3, 4), "{failed:?}");
            let sent = events.last().unwrap()["bytes_sent"].as_u64().unwrap();
            assert!(sent < 1000, "{sent} bytes");
            let there: Vec<_> =
                fs::read_dir(bed.path(&sink)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(there, ["good"]);
        }
    }
}

#[test]
fn names_that_windows_does_not_take_are_told_before_anything_is_sent() {
    let bed = Bed::new();
    control::execute(&bed.filesystem, "colons=refused").unwrap();
    control::execute(&bed.filesystem, "devices=refused").unwrap();
    let source = bed.path("source");
    fs::create_dir_all(source.join("Aux")).unwrap();
    for name in ["big.", "blank ", "aux.dat", "COM1", "Aux/file", "com0.nc", "auxiliary"] {
        fs::write(source.join(name), contents(5 << 20, 0)).unwrap();
    }
    for is_far in [false, true] {
        let sink = format!("striped/sink-{is_far}");
        for run in 0..2 {
            let (events, code) = events(&bed.copy(&["--json"], "source", &sink, is_far));
            let failed = failed(&events);
            assert_eq!(code, Some(3), "{failed:?}");
            let invalid = failed.iter().filter(|(code, _)| code == "name-invalid").count();
            assert_eq!((invalid, failed.len()), (5, 6), "{failed:?}");
            let sent = events.last().unwrap()["bytes_sent"].as_u64().unwrap();
            assert!(sent < [11 << 20, 1000][run], "{sent} bytes");
            let there = fs::read_dir(bed.path(&sink)).unwrap().map(|entry| entry.unwrap().file_name());
            assert_eq!(
                there.collect::<BTreeSet<_>>(),
                BTreeSet::from(["auxiliary".into(), "com0.nc".into()])
            );
        }
    }
}

#[test]
fn files_on_which_somebody_else_holds_a_lock() {
    let bed = Bed::new();
    let source = bed.path("striped/source");
    fs::create_dir(&source).unwrap();
    let sizes = [("tiny", 10), ("small", 300_000), ("big", 9 << 20)];
    sizes.iter().for_each(|(name, bytes)| fs::write(source.join(name), contents(*bytes, 0)).unwrap());
    control::execute(&bed.filesystem, "group_lock=held").unwrap();
    let options: [&[&str]; 3] = [&[], &["--plain"], &["--io", "direct"]];
    for (number, options) in options.into_iter().enumerate() {
        for is_far in [false, true] {
            let sink = format!("sink-{number}-{is_far}");
            let output = bed.copy(options, "striped/source", &sink, is_far);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{options:?}, far: {is_far}: {said}");
            for (name, bytes) in sizes {
                assert!(fs::read(bed.path(&sink).join(name)).unwrap() == contents(bytes, 0), "{name} {said}");
            }
        }
    }
}

/// The root of a container: what is read may lie in a layer that is never written to.
#[test]
fn within_an_overlay_files_are_copied_by_the_kernel() {
    const MOUNT: &str = "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 99; \
                         echo more >> merged/data/changed && exec \"$@\"";
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root, to mount");
    }
    let bed = tempfile::tempdir().unwrap();
    let path = |name: &str| bed.path().join(name);
    for name in ["lower/data", "upper", "work", "merged"] {
        fs::create_dir_all(path(name)).unwrap();
    }
    for (name, bytes, seed) in [("big", 9 << 20, 1), ("changed", 5 << 20, 2), ("small", 5000, 3)] {
        fs::write(path("lower/data").join(name), contents(bytes, seed)).unwrap();
    }
    let mut command = alone("unshare", bed.path());
    command.args(["--mount", "sh", "-c", MOUNT, "sh", env!("CARGO_BIN_EXE_haul"), "cp", "-r", "--json"]);
    let output = command.args(["merged/data", "merged/copy"]).output().unwrap();
    let (events, code) = events(&output);
    if code == Some(99) {
        return haul_testkit::lacks_here("overlays of directories for temporary files");
    }
    assert_eq!(code, Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let more = [contents(5 << 20, 2), b"more\n".to_vec()].concat();
    for (name, expected) in [("big", contents(9 << 20, 1)), ("changed", more), ("small", contents(5000, 3))] {
        assert!(fs::read(path("upper/copy").join(name)).unwrap() == expected, "{name}");
    }
    let profile = events.iter().find(|event| event["event"] == "profile").unwrap();
    let read = &profile["source"]["stages"]["read"]["bytes"];
    assert!(read.is_null() || *read == 0, "{profile:#}");
}

/// As where one file of a network file system is mounted into a container.
#[test]
fn a_file_that_is_mounted_alone_is_no_file_of_the_file_system_around_it() {
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root, to mount");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir(path("source")).unwrap();
    fs::write(path("source/own"), b"content").unwrap();
    fs::write(path("source/version"), b"").unwrap();
    // It shows no size, and has contents.
    let script = "mount --bind /proc/version source/version && exec \"$@\"";
    let output = alone("unshare", directory.path())
        .args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_haul"), "cp", "-r", "--json"])
        .args(["source", "copy"])
        .output()
        .unwrap();
    let (events, code) = events(&output);
    let version = path("source/version").display().to_string();
    let named = failed(&events).into_iter().map(|(code, path)| (code, version.ends_with(&path)));
    assert_eq!((named.collect::<Vec<_>>(), code), (vec![("source-read".to_owned(), true)], Some(3)));
    assert!(path("copy/own").exists() && !path("copy/version").exists());
}
