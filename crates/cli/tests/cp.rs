//! `haul cp` as a user meets it on one host: what goes where, what it says, how it exits.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::{Bed, code, says, stderr};

impl Bed {
    fn jobs(&self) -> Vec<PathBuf> {
        let jobs = self.path("home/.local/state/haul/jobs");
        fs::read_dir(jobs).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

fn summary(output: &Output) -> serde_json::Value {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let events: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let last = events.last().unwrap().clone();
    assert_eq!(last["event"], "summary");
    last
}

#[test]
fn a_tree_is_copied_and_the_same_command_again_moves_nothing() {
    let bed = Bed::new();
    bed.write("src/a/b/file", b"content");
    bed.write("src/empty", b"");
    bed.write("src/big", &vec![7; 9 << 20]);
    fs::create_dir(bed.path("src/nothing in it")).unwrap();
    symlink("no/where", bed.path("src/dangling")).unwrap();
    fs::set_permissions(bed.path("src/empty"), fs::Permissions::from_mode(0o6751)).unwrap();
    fs::set_permissions(bed.path("src/a"), fs::Permissions::from_mode(0o555)).unwrap();
    let first = bed.haul(&["cp", "-r", "--json", "src", "dst"]);
    assert_eq!(code(&first), 0, "{}", stderr(&first));
    let told = summary(&first);
    assert_eq!((&told["state"], &told["files_done"]), (&"done".into(), &4.into()));
    assert_eq!(told["bytes_sent"], 7 + (9 << 20));
    for name in ["a/b/file", "empty", "big", "nothing in it", "a", "."] {
        let (from, to) = (bed.path("src").join(name), bed.path("dst").join(name));
        let (from_data, to_data) = (fs::metadata(&from).unwrap(), fs::metadata(&to).unwrap());
        assert_eq!(from_data.mode() & 0o777, to_data.mode() & 0o777, "{name}");
        assert_eq!(to_data.mode() & 0o6000, 0, "{name}: setuid and setgid are never set");
        assert_eq!(
            (from_data.mtime(), from_data.mtime_nsec()),
            (to_data.mtime(), to_data.mtime_nsec()),
            "{name}"
        );
        if from_data.is_file() {
            assert_eq!(fs::read(&from).unwrap(), fs::read(&to).unwrap(), "{name}");
        }
    }
    assert_eq!(fs::read_link(bed.path("dst/dangling")).unwrap(), Path::new("no/where"));

    let again = bed.haul(&["cp", "-r", "--json", "src", "dst"]);
    assert_eq!(code(&again), 0, "{}", stderr(&again));
    let told = summary(&again);
    assert_eq!((&told["bytes_sent"], &told["files_skipped"]), (&0.into(), &4.into()));
    assert!(!bed.path("dst/src").exists(), "DEST means the same although it is there now");
    let plain = bed.haul(&["cp", "-r", "src", "dst"]);
    assert!(String::from_utf8_lossy(&plain.stdout).contains("0 bytes moved"));
}

#[test]
fn destinations_mean_what_they_mean_to_cp() {
    let bed = Bed::new();
    bed.write("one", b"1");
    bed.write("dir/two", b"2");
    fs::create_dir(bed.path("there")).unwrap();
    assert_eq!(code(&bed.haul(&["cp", "one", "renamed"])), 0);
    assert_eq!(fs::read(bed.path("renamed")).unwrap(), b"1");
    assert_eq!(code(&bed.haul(&["cp", "-r", "one", "dir", "there"])), 0);
    assert_eq!(fs::read(bed.path("there/one")).unwrap(), b"1");
    assert_eq!(fs::read(bed.path("there/dir/two")).unwrap(), b"2");
    assert_eq!(code(&bed.haul(&["cp", "-r", "dir/.", "there"])), 0);
    assert_eq!(fs::read(bed.path("there/two")).unwrap(), b"2");
    bed.write("one", b"newer");
    assert_eq!(code(&bed.haul(&["cp", "one", "renamed"])), 0);
    assert_eq!(fs::read(bed.path("renamed")).unwrap(), b"newer");
}

#[test]
fn names_of_any_bytes_arrive_and_cannot_control_the_terminal() {
    let bed = Bed::new();
    fs::create_dir(bed.path("src")).unwrap();
    let names: [&[u8]; 8] =
        [b"new\nline", b"cr\r", b"esc\x1b[31m", b"\xff\xfe", b"-rf", b" ", b"back\\slash", b"$(id)"];
    for name in names {
        fs::write(bed.path("src").join(OsStr::from_bytes(name)), name).unwrap();
    }
    let output = bed.haul(&["cp", "-r", "-v", "src", "dst"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(output.stdout.iter().all(|byte| *byte == b'\n' || (0x20..0x7f).contains(byte)));
    for name in names {
        assert_eq!(fs::read(bed.path("dst").join(OsStr::from_bytes(name))).unwrap(), name);
    }
    let output = bed.haul(&["cp", "-r", "-v", "--json", "src", "other"]);
    let events = String::from_utf8(output.stdout).unwrap();
    let files: Vec<serde_json::Value> = events
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|event| event["event"] == "file")
        .collect();
    assert_eq!(files.len(), names.len());
    assert!(
        files.iter().any(|file| file["path_hex"] == "6f746865722ffffe"),
        "other/ and two bytes that are no text"
    );
    assert!(files.iter().any(|file| file["path"] == "other/ "));
}

#[test]
fn bad_input_is_named_in_one_line_with_the_right_exit_code() {
    let bed = Bed::new();
    bed.write("file", b"x");
    bed.write("tree/name", b"x");
    says(&bed.haul(&["cp", "file", "no/such/dir/x"]), 1, &["no/such/dir", "no such directory"]);
    says(&bed.haul(&["cp", "file", "file/x"]), 1, &["file", "directory must be"]);
    says(&bed.haul(&["cp", "missing", "out"]), 3, &["missing", "no such file"]);
    says(&bed.haul(&["cp", "tree", "out"]), 3, &["tree", "-r"]);
    says(&bed.haul(&["cp", "file", "tree/name", "out"]), 1, &["out"]);
    says(&bed.haul(&["cp", "file", "--", "-oProxyCommand=id:x"]), 2, &[]);
    says(&bed.haul(&["cp", "--object-size", "5000", "file", "out"]), 2, &["--object-size"]);
    says(&bed.haul(&["cp", "a:x", "b:y"]), 2, &["on this host"]);
    says(&bed.haul(&["cp", "-r", "tree", "tree/inner"]), 2, &["tree", "into itself", "outside"]);
    symlink("tree", bed.path("way-in")).unwrap();
    says(&bed.haul(&["cp", "-r", "tree", "way-in/deeper"]), 2, &["into itself"]);
    assert_eq!(fs::read_dir(bed.path("tree")).unwrap().count(), 1, "nothing was made in it");
    fs::create_dir(bed.path("treehouse")).unwrap();
    assert_eq!(
        code(&bed.haul(&["cp", "-r", "tree", "treehouse/copy"])),
        0,
        "a name that only begins like it"
    );
    assert_eq!(code(&bed.haul(&["cp", "-r", "way-in", "tree/link"])), 0, "a link is copied as a link");
    fs::remove_file(bed.path("tree/link")).unwrap();
    fs::create_dir_all(bed.path("blocked/name")).unwrap();
    says(&bed.haul(&["cp", "-r", "-q", "tree/.", "blocked"]), 3, &["haul: blocked/name: a directory stands"]);
    let (far, there) = (far(), format!("localhost:{}", bed.path("blocked").display()));
    let far: Vec<&str> = far.iter().map(String::as_str).collect();
    let output = bed.haul(&[&["cp", "-r", "-q"], &far[..], &["tree/.", &there]].concat());
    says(&output, 3, &[&format!("haul: {there}/name: a directory stands")]);
    bed.write("flat", b"x");
    fs::create_dir_all(bed.path("deep/flat")).unwrap();
    fs::write(bed.path("deep/flat/x"), b"y").unwrap();
    fs::create_dir(bed.path("into")).unwrap();
    fs::write(bed.path("into/flat"), b"z").unwrap();
    let output = bed.haul(&["cp", "-r", "deep/flat", "into"]);
    assert_eq!(code(&output), 3);
    let told = "haul: into/flat: a file or symlink stands where a directory must be\n";
    assert!(stderr(&output).starts_with(told), "{}", stderr(&output));
    assert_eq!(fs::read(bed.path("into/flat")).unwrap(), b"z", "what stood there is untouched");
}

#[test]
fn trouble_at_the_source_is_told_of_the_path_that_was_typed() {
    let bed = Bed::new();
    bed.write("a/tree/file", b"x");
    std::os::unix::net::UnixListener::bind(bed.path("a/tree/socket")).unwrap();
    for (source, destination, told) in [
        ("a/tree", "out", "haul: a/tree/socket: "),
        ("a/tree/", "other", "haul: a/tree/socket: "),
        ("a/tree/.", "third", "haul: a/tree/socket: "),
    ] {
        let output = bed.haul(&["cp", "-r", source, destination]);
        assert_eq!(code(&output), 3);
        assert!(stderr(&output).starts_with(told), "{source}: {}", stderr(&output));
    }
    says(&bed.haul(&["cp", "-q", "missing", "out"]), 3, &["haul: missing: no such file or directory\n"]);
    says(&bed.haul(&["cp", "-q", "-r", "missing/.", "out"]), 3, &["haul: missing/.: no such file"]);
    bed.write("same/same/x", b"x");
    std::os::unix::net::UnixListener::bind(bed.path("same/same/y")).unwrap();
    let output = bed.haul(&["cp", "-r", "same/same", "fourth"]);
    assert!(stderr(&output).starts_with("haul: same/same/y: "), "{}", stderr(&output));
}

#[test]
fn a_state_directory_that_cannot_be_made_is_said_with_a_hint() {
    let bed = Bed::new();
    bed.write("file", b"x");
    bed.write("home", b"a file, not a directory");
    says(&bed.haul(&["cp", "--log-required", "file", "out"]), 1, &["HAUL_STATE_DIR"]);
    assert!(!bed.path("out").exists());
    // Where nothing is required, it is said and the copy is made.
    fs::create_dir(bed.path("tmp")).unwrap();
    let output = bed.command().env("TMPDIR", bed.path("tmp")).args(["cp", "file", "out"]).output().unwrap();
    says(&output, 0, &["the object log is lost", "haul-state-"]);
    assert_eq!(fs::read(bed.path("out")).unwrap(), b"x");
}

/// Starts a copy of a big file, kills it once some of it is durable, and returns how much was.
fn kill_midway(bed: &Bed) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < deadline, "never killed midway");
        let mut child = bed
            .command()
            .args(["cp", "--object-size", "64KiB", "--memory", "256KiB", "big", "out"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Its creation, its first bits, and some more.
        let (mut contents, mut changes) = (Vec::new(), 0);
        while changes < 4 && child.try_wait().unwrap().is_none() {
            let now = bed.log_contents();
            changes += u32::from(now != contents);
            contents = now;
        }
        child.kill().unwrap();
        if !child.wait().unwrap().success() && changes == 4 && !bed.path("out").exists() {
            return;
        }
        let _ = fs::remove_file(bed.path("out"));
    }
}

impl Bed {
    fn has_no_leftovers(&self) {
        let names = fs::read_dir(self.path(".")).unwrap().flatten().map(|entry| entry.file_name());
        let left: Vec<_> = names.filter(|name| name.as_bytes().starts_with(b".haul-")).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    fn log_contents(&self) -> Vec<Vec<u8>> {
        let logs = self.jobs_or_none().into_iter().filter_map(|job| fs::read_dir(job.join("log")).ok());
        logs.flatten().flatten().filter_map(|entry| fs::read(entry.path()).ok()).collect()
    }

    fn jobs_or_none(&self) -> Vec<PathBuf> {
        if self.path("home/.local/state/haul/jobs").exists() { self.jobs() } else { Vec::new() }
    }
}

/// Kills a copy, optionally damages its log, continues; how many objects did not have to be sent again.
fn kill_and_continue(damage: bool) -> u64 {
    let bed = Bed::new();
    let bytes: Vec<u8> =
        (0..48u32 << 18).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    bed.write("big", &bytes);
    kill_midway(&bed);
    assert!(!bed.path("out").exists(), "no half file under its final name");
    let text = String::from_utf8(bed.haul(&["status"]).stdout).unwrap();
    assert!(text.contains("interrupted") && text.contains("same command again"), "{text}");
    if damage {
        for entry in fs::read_dir(bed.jobs()[0].join("log")).unwrap().flatten() {
            let length = entry.metadata().unwrap().len() as usize;
            fs::write(entry.path(), vec![0x5a; length]).unwrap();
        }
    }
    let again = ["cp", "--object-size", "64KiB", "--memory", "256KiB", "--json", "big", "out"];
    let output = bed.haul(&again);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let told = summary(&output);
    assert_eq!(fs::read(bed.path("out")).unwrap(), bytes);
    let sent = told["bytes_sent"].as_u64().unwrap() + told["bytes_skipped"].as_u64().unwrap();
    assert_eq!(sent, bytes.len() as u64, "every byte is either sent or was durable");
    bed.has_no_leftovers();
    told["objects_skipped"].as_u64().unwrap()
}

#[test]
fn a_killed_copy_can_be_seen_and_continues_with_what_is_durable() {
    // The kill may come between the log's creation and its first bit.
    assert!((0..20).any(|_| kill_and_continue(false) > 0), "nothing was ever continued");
}

#[test]
fn a_damaged_log_costs_only_resends() {
    assert_eq!(kill_and_continue(true), 0);
}

#[test]
fn a_copy_that_is_given_up_leaves_nothing_behind() {
    let bed = Bed::new();
    bed.write("big", &vec![3; 48 << 20]);
    kill_midway(&bed);
    let id = bed.jobs()[0].file_name().unwrap().to_str().unwrap().to_owned();
    let output = bed.haul(&["stop", &id, "--discard"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(bed.jobs().is_empty());
    bed.has_no_leftovers();
    says(&bed.haul(&["stop", &id]), 2, &["no such transfer"]);
}

/// A far end on this host, through no ssh.
fn far() -> [String; 4] {
    let haul = env!("CARGO_BIN_EXE_haul");
    ["--ssh".into(), format!("'{haul}' bench shell"), "--haul-path".into(), haul.into()]
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What ssh has been told already it goes on with when the command that told it is killed.
#[test]
fn an_end_that_ssh_starts_late_for_a_killed_copy_does_not_end_the_next_one() {
    let bed = Bed::new();
    let bytes = vec![5; 5 << 20];
    bed.write("file", &bytes);
    let haul = env!("CARGO_BIN_EXE_haul");
    // The first login takes until somebody says so.
    let script = format!(
        "[ \"$1\" = -G ] && exec '{haul}' bench shell \"$@\"\n\
         mkdir held 2>/dev/null || exec '{haul}' bench shell \"$@\"\n\
         tries=0; until [ -e go ] || [ $tries = 6000 ]; do tries=$((tries + 1)); sleep 0.01; done\n\
         '{haul}' bench shell \"$@\" 2>said\n\
         touch ended\n"
    );
    let script = bed.write("shell", script.as_bytes());
    let shell = format!("sh {}", script.display());
    let there = format!("localhost:{}", bed.path("copy").display());
    let start = || {
        let mut command = bed.command();
        command.args(["cp", "--ssh", &shell, "--haul-path", haul, "--bandwidth", "1MiB"]);
        command.args(["--object-size", "1MiB", "file", &there]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut first = start();
    wait_until("the first login", || bed.path("held").exists());
    std::thread::sleep(Duration::from_millis(300));
    first.kill().unwrap();
    first.wait().unwrap();
    let second = start();
    let is_unfinished = |entry: fs::DirEntry| entry.file_name().as_bytes().starts_with(b".haul-");
    wait_until("the second is at it", || {
        fs::read_dir(bed.path("")).unwrap().flatten().any(is_unfinished) || bed.path("copy").exists()
    });
    assert!(!bed.path("copy").exists(), "it takes five seconds");
    bed.write("go", b"");
    wait_until("the late one has ended", || bed.path("ended").exists());
    let output = second.wait_with_output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(fs::read(bed.path("copy")).unwrap(), bytes);
}

/// Small files are made with their mode, large ones get it at the end; directories are private until then.
#[test]
fn modes_are_those_of_the_source_whatever_the_umask() {
    let haul = env!("CARGO_BIN_EXE_haul");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    for umask in ["000", "022", "077"] {
        let bed = Bed::new();
        let modes = [0o400, 0o444, 0o600, 0o640, 0o644, 0o666, 0o755, 0o777];
        for (directory, of_directory) in [("tree/open", 0o777), ("tree/closed", 0o700), ("tree", 0o755)] {
            for of_file in modes {
                for (name, size) in [("small", 1000), ("large", 100_000)] {
                    let path = bed.write(&format!("{directory}/{name}-{of_file:o}"), &vec![1; size]);
                    fs::set_permissions(path, fs::Permissions::from_mode(of_file)).unwrap();
                }
            }
            let of_directory = fs::Permissions::from_mode(of_directory);
            fs::set_permissions(bed.path(directory), of_directory).unwrap();
        }
        let far = far();
        for (copy, there, options) in [
            ("here", "here".to_string(), &[][..]),
            ("there", format!("localhost:{}", bed.path("there").display()), &far),
        ] {
            let mut command = bed.command();
            command.args(["cp", "-r", "--bundle-below", "64KiB"]).args(options).args(["tree", &there]);
            // The shell of the far end has this umask, too.
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh", haul]).args(command.get_args());
            shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            let output = shell.current_dir(bed.path("")).stdin(Stdio::null()).output().unwrap();
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            for directory in ["", "open", "closed"] {
                let (from, to) = (bed.path("tree").join(directory), bed.path(copy).join(directory));
                assert_eq!(mode(&to), mode(&from), "umask {umask}, {copy}: {directory}");
                for name in fs::read_dir(&from).unwrap().map(|entry| entry.unwrap().file_name()) {
                    let (from, to) = (from.join(&name), to.join(&name));
                    assert_eq!(mode(&to), mode(&from), "umask {umask}, {copy}: {directory}/{name:?}");
                }
            }
        }
    }
}

#[test]
fn options_stand_anywhere_and_home_is_that_of_the_far_host() {
    let bed = Bed::new();
    bed.write("tree/file", b"content");
    // An alias may have said it already; of values the last one counts.
    let output = bed.haul(&["cp", "-r", "--streams", "2", "tree", "-r", "copy", "--streams", "1"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(bed.path("copy/file").exists());
    says(&bed.haul(&["cp", "-r", "tree"]), 2, &["a DEST to copy it to is missing"]);
    let far = far();
    let far: Vec<&str> = far.iter().map(String::as_str).collect();
    fs::create_dir_all(bed.path("home")).unwrap();
    let push = bed.haul(&[&["cp", "-r"], &far[..], &["tree", "localhost:~/there"]].concat());
    assert_eq!(code(&push), 0, "{}", stderr(&push));
    assert_eq!(fs::read(bed.path("home/there/file")).unwrap(), b"content");
    let pull = bed.haul(&[&["cp"], &far[..], &["localhost:~/there/file", "back"]].concat());
    assert_eq!(code(&pull), 0, "{}", stderr(&pull));
    assert_eq!(fs::read(bed.path("back")).unwrap(), b"content");
    // A directory of this name would be a trap.
    fs::create_dir(bed.path("homes")).unwrap();
    let pull = bed.haul(&[&["cp", "-r"], &far[..], &["localhost:~/", "homes"]].concat());
    assert_eq!(code(&pull), 0, "{}", stderr(&pull));
    assert_eq!(fs::read(bed.path("homes/there/file")).unwrap(), b"content");
    assert!(!bed.path("homes/~").exists());
}

/// The other end may be on this host, whatever the user calls it.
#[test]
fn a_directory_is_not_copied_into_itself_through_another_end_either() {
    let bed = Bed::new();
    bed.write("tree/inner/name", b"content");
    bed.write("file", b"content");
    symlink("tree/inner", bed.path("way-in")).unwrap();
    let far = far();
    let far: Vec<&str> = far.iter().map(String::as_str).collect();
    let there = |name: &str| format!("localhost:{}", bed.path(name).display());
    let copy = |sources: &[&str], destination: &str| {
        bed.haul(&[&["cp", "-q", "-r"], &far[..], sources, &[destination]].concat())
    };
    let words = ["tree: a directory cannot be copied into itself", "outside of it"];
    for destination in ["tree", "tree/inner", "way-in"] {
        says(&copy(&["file", "tree"], &there(destination)), 2, &words);
        says(&copy(&[&there("file"), &there("tree")], destination), 2, &words);
    }
    says(&copy(&["tree"], &there("tree/inner/new")), 2, &words);
    says(&copy(&[&there("tree/.")], "tree/inner/new"), 2, &["tree/.: a directory", "into itself"]);
    let names: Vec<_> =
        fs::read_dir(bed.path("tree")).unwrap().map(|name| name.unwrap().file_name()).collect();
    assert_eq!(names, ["inner"], "nothing was made in it");
    assert_eq!(fs::read_dir(bed.path("tree/inner")).unwrap().count(), 1);
    for (sources, destination) in [
        (&["tree/inner"][..], there("tree/copy")),
        (&["tree"], there("treehouse")),
        (&["way-in"], there("tree/inner")),
        (&[&*there("tree/inner")], "tree/pulled".into()),
    ] {
        let output = copy(sources, &destination);
        assert_eq!(code(&output), 0, "{sources:?} to {destination}: {}", stderr(&output));
    }
    assert_eq!(fs::read(bed.path("tree/pulled/name")).unwrap(), b"content");
}

#[test]
fn status_tells_how_far_a_running_copy_is() {
    let bed = Bed::new();
    bed.write("big", &vec![3; 30 << 20]);
    let mut command = bed.command();
    command.args(["cp", "-q", "--bandwidth", "5MiB", "--object-size", "1MiB", "big", "copy"]);
    let mut child = command.spawn().unwrap();
    let mut told = Vec::new();
    while child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(200));
        let status = bed.haul(&["status", "--json"]);
        let text = String::from_utf8(status.stdout).unwrap();
        let job: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        if job["state"] == "running" {
            told.push((job["bytes_done"].as_u64().unwrap(), job["bytes_total"].as_u64().unwrap()));
        }
    }
    assert!(child.wait().unwrap().success());
    assert!(told.iter().any(|(done, total)| *done > 0 && done < total && *total == 30 << 20), "{told:?}");
    let status = bed.haul(&["status"]);
    assert!(String::from_utf8(status.stdout).unwrap().contains("30.0 MiB of 30.0 MiB"));
}

#[test]
fn status_leaves_out_what_was_done_long_ago_unless_it_is_asked_for() {
    let bed = Bed::new();
    bed.write("file", b"content");
    for copy in ["old", "new"] {
        assert_eq!(code(&bed.haul(&["cp", "-q", "file", copy])), 0);
    }
    let record = |job: &PathBuf| -> serde_json::Value {
        serde_json::from_slice(&fs::read(job.join("job.json")).unwrap()).unwrap()
    };
    let jobs = bed.jobs();
    let old = jobs.iter().find(|job| record(job)["destination"].as_str().unwrap().ends_with("old")).unwrap();
    let mut changed = record(old);
    changed["updated"] = (changed["updated"].as_u64().unwrap() - 2 * 86_400).into();
    fs::write(old.join("job.json"), changed.to_string()).unwrap();
    let told = |words: &[&str]| {
        let text = String::from_utf8(bed.haul(words).stdout).unwrap();
        (
            ["old", "new"]
                .map(|copy| text.contains(&format!("-> {copy}")) || text.contains(&format!("/{copy}\n"))),
            text,
        )
    };
    let (shown, text) = told(&["status"]);
    assert_eq!(shown, [false, true], "{text}");
    assert!(text.contains("1 ended a day or longer ago") && text.contains("--all"), "{text}");
    let (shown, text) = told(&["status", "--all"]);
    assert_eq!(shown, [true, true], "{text}");
    assert!(!text.contains("--all"), "{text}");
    // Asked for by its name it is shown, too.
    let name = old.file_name().unwrap().to_str().unwrap();
    assert_eq!(told(&["status", &name[..12]]).0, [true, false]);
}

/// Processes whose command line begins so.
fn running(words: &[u8]) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let is_one = |process: &fs::DirEntry| {
        fs::read(process.path().join("cmdline")).is_ok_and(|it| it.starts_with(words))
    };
    processes.filter(is_one).count()
}

#[test]
fn what_connects_for_ever_can_be_interrupted() {
    let bed = Bed::new();
    let many: Vec<String> = (0..500).map(|number| format!("{}-{number}", "name".repeat(20))).collect();
    many.iter().for_each(|name| drop(bed.write(name, b"content")));
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let connects = "case \"$*\" in *-G*) echo hostname localhost; exit;; esac;";
    let haul = env!("CARGO_BIN_EXE_haul");
    // Known among all processes of the machine.
    let (long, others) = [100, 30].map(|seconds| format!("{seconds}.25{}", std::process::id())).into();
    // Also where a program has started ssh that does not hand on what it is told; and where it is told more than a pipe holds.
    for (script, sources) in [
        ("exec sleep 100".to_owned(), &many[..1]),
        (format!("sleep {long}; true"), &many[..1]),
        (format!("{connects} sleep {long}; true"), &many[..]),
        // As ssh has something that it connects through.
        (format!("{connects} sleep 9 | sleep {long}"), &many[..1]),
        // What it has started for others lives on.
        (format!("{connects} sleep {others} > /dev/null 2>&1 & exec sleep {long}"), &many[..1]),
        // One that does not say what it connects to.
        (
            format!("case \"$*\" in *-G*) sleep {long};; *) exec '{haul}' bench shell \"$@\";; esac"),
            &many[..1],
        ),
    ] {
        let mut command = bed.command();
        command.args([
            "cp",
            "--ssh",
            &format!("sh -c '{}' ssh", script.replace('\'', "\"")),
            "--haul-path",
            haul,
        ]);
        command.args(sources).arg(format!("localhost:{}/", bed.path("").display()));
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        let began = Instant::now();
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 130, "{script}: {}", stderr(&output));
        assert!(began.elapsed() < Duration::from_secs(6), "{script}: {:?}", began.elapsed());
    }
    assert_eq!(running(format!("sleep\0{others}").as_bytes()), 1, "others may use it");
    let began = Instant::now();
    while running(format!("sleep\0{long}").as_bytes()) > 0 {
        assert!(began.elapsed() < Duration::from_secs(5), "what they have started ends, too");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_is_no_file_is_neither_replaced_nor_taken_for_an_empty_one() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let fifo = bed.path("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let output = bed.haul(&["cp", "file", "fifo"]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("a device, fifo or socket stands there"), "{}", stderr(&output));
    assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    // It shows a size of 0, and has contents.
    let output = bed.haul(&["cp", "/proc/version", "version"]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot be read"), "{}", stderr(&output));
    assert!(!bed.path("version").exists());
}

#[test]
fn explain_names_each_settings_origin_and_does_nothing() {
    let bed = Bed::new();
    bed.write("x", b"content");
    bed.write("home/.config/haul/config.toml", b"streams = 3\n");
    let output = bed
        .command()
        .args(["explain", "--reconnect", "9", "x", "host:y"])
        .env("HAUL_MEMORY", "64MiB")
        .output();
    let output = output.unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(row("streams").contains("config.toml"), "{text}");
    assert!(row("memory").contains("HAUL_MEMORY") && row("memory").contains("64.0 MiB"), "{text}");
    assert!(!row("memory").contains("long"), "that is all: {text}");
    assert!(row("reconnect").contains("--reconnect"), "{text}");
    assert!(row("object-size").contains("default"), "{text}");
    assert!(bed.jobs_or_none().is_empty());
    bed.write("home/.config/haul/config.toml", b"steams = 3\n");
    says(&bed.haul(&["explain", "x", "y"]), 2, &["no such setting: steams"]);
}

#[test]
fn explain_says_which_end_uses_more_memory_where_nobody_limits_it() {
    let bed = Bed::new();
    let memory = |from: &str, to: &str| {
        let text = String::from_utf8(bed.haul(&["explain", from, to]).stdout).unwrap();
        text.lines().find(|line| line.starts_with("memory")).expect("a row").to_owned()
    };
    assert!(memory("x", "host:y").contains("host more, if the network is long"));
    let pull = memory("host:x", "y");
    assert!(pull.contains("here up to") || pull.contains("more would not fit here"), "{pull}");
    assert!(memory("x", "y").contains("at most 256 MiB"));
    assert!(!memory("x", "y").contains(';'), "there is no network");
}

#[test]
fn limits_of_congestion_come_from_anywhere_and_have_to_make_sense() {
    let bed = Bed::new();
    bed.write("x", b"content");
    let explained = |arguments: &[&str]| {
        let output = bed.haul(&[&["explain"], arguments, &["x", "y"]].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let row = |text: &str, name: &str| {
        let row = text.lines().find(|line| line.split_whitespace().next() == Some(name));
        row.map(|row| row.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let text = explained(&["--congestion", "lads", "--congestion-threshold", "20ms"]);
    let threshold = row(&text, "congestion-threshold").unwrap();
    assert_eq!(threshold, "congestion-threshold 20ms (--congestion-threshold)");
    assert!(row(&text, "congestion-skips").unwrap().contains("as measured"), "{text}");
    bed.write(
        "home/.config/haul/config.toml",
        b"congestion = \"lads\"\ncongestion-skips = 8\nhang-after = 9\n",
    );
    let text = explained(&[]);
    assert!(row(&text, "congestion-skips").unwrap().starts_with("congestion-skips 8 "), "{text}");
    assert!(row(&text, "hang-after").unwrap().contains("config.toml"), "{text}");
    // Another policy is nearer than what the file says of its own.
    let text = explained(&["--congestion", "adaptive"]);
    assert_eq!(row(&text, "congestion-skips"), None);
    // What is there for one policy is for the commands that have it, also where no policy is named.
    let only_others = [
        ("congestion-skips = 8\n", "congestion-skips"),
        ("congestion = \"none\"\ncongestion-threshold = \"20ms\"\n", "congestion-threshold"),
    ];
    for (file, name) in only_others {
        bed.write("home/.config/haul/config.toml", file.as_bytes());
        assert_eq!(row(&explained(&[]), name), None, "{file}");
        assert_eq!(row(&explained(&["--congestion", "layout"]), name), None, "{file}");
        assert!(row(&explained(&["--congestion", "lads"]), name).unwrap().contains("config.toml"), "{file}");
    }
    bed.write("home/.config/haul/config.toml", b"");
    let wrong = bed.haul(&["cp", "--congestion-threshold", "20", "x", "y"]);
    assert!(code(&wrong) == 2 && stderr(&wrong).contains("20ms"), "{}", stderr(&wrong));
    let none = ["cp", "--congestion", "none", "--congestion-threshold", "20ms", "x", "y"];
    says(&bed.haul(&none), 2, &["--congestion-threshold"]);
}

#[test]
fn what_contradicts_is_named_as_whoever_wrote_it_finds_it() {
    let bed = Bed::new();
    bed.write("x", b"content");
    let with = |settings: &str, arguments: &[&str]| {
        bed.write("home/.config/haul/config.toml", settings.as_bytes());
        bed.haul(&[&["explain"], arguments, &["x", "y"]].concat())
    };
    // Only for those commands that have a --spill.
    assert_eq!(code(&with("spill-max = \"10GiB\"\n", &[])), 0);
    let output = with("spill = \"/flash\"\n", &["--congestion", "none"]);
    says(&output, 2, &["config.toml: spill and --congestion none contradict each other"]);
    let output = with("log-required = true\n", &["--log-mechanism", "none"]);
    says(&output, 2, &["config.toml: log-required and --log-mechanism none", "HAUL_LOG_REQUIRED=no"]);
    let output = with("port = 50000\nport-range = \"6000-6001\"\n", &[]);
    says(&output, 2, &["config.toml: port and ", "config.toml: port-range contradict each other"]);
    assert_eq!(code(&with("port = 50000\n", &["--port-range", "6000-6001"])), 0);
}

#[test]
fn what_is_explained_is_what_is_used() {
    let bed = Bed::new();
    bed.write("x", b"content");
    let explained = |arguments: &[&str]| {
        let output = bed.haul(&[&["explain"], arguments, &["x", "localhost:y"]].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let words = String::from_utf8(output.stdout).unwrap();
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let text = explained(&["--bundle-below", "32MiB", "--memory", "32GiB"]);
    assert!(text.contains("bundle-below 4.0 MiB, as an object holds no more (--bundle-below)"), "{text}");
    assert!(text.contains("memory at most 16.0 GiB (") && text.contains(" to 4096 slots"), "{text}");
    assert!(text.contains("; no end has more slots (--memory)"), "{text}");
    let text = explained(&["--object-size", "64KiB"]);
    assert!(text.contains("bundle-below 64.0 KiB, as an object holds no more (default"), "{text}");
}

#[test]
fn how_long_is_waited_has_limits_wherever_it_is_said() {
    let bed = Bed::new();
    bed.write("x", b"content");
    says(&bed.haul(&["cp", "--reconnect", "18446744073709551615", "x", "y"]), 2, &["--reconnect", "604800"]);
    assert_eq!(code(&bed.haul(&["cp", "--reconnect", "604800", "x", "y"])), 0);
    let wrong = bed.command().env("HAUL_HANG_AFTER", "0").args(["cp", "x", "z"]).output().unwrap();
    says(&wrong, 2, &["HAUL_HANG_AFTER", "86400"]);
    bed.write("home/.config/haul/config.toml", b"reconnect = 604801\n");
    says(&bed.haul(&["explain", "x", "z"]), 2, &["config.toml: reconnect"]);
}

#[test]
fn help_of_each_command_and_the_generated_pages_are_there() {
    let bed = Bed::new();
    for command in ["cp", "status", "stop", "explain", "generate"] {
        assert_eq!(code(&bed.haul(&[command, "--help"])), 0);
    }
    let help = String::from_utf8(bed.haul(&["cp", "--help"]).stdout).unwrap();
    assert!(help.contains("Exit codes"), "{help}");
    // As `haul explain` says it.
    let streams = "one for each core, at most 4";
    assert!(help.contains(&format!("Data streams [default: {streams}]")), "{help}");
    let explained = bed.haul(&["explain", "x", "y"]);
    assert!(String::from_utf8(explained.stdout).unwrap().contains(&format!("(default: {streams})")));
    assert!(!bed.haul(&["generate", "man"]).stdout.is_empty());
    let script = bed.haul(&["generate", "completions", "bash"]).stdout;
    assert!(!script.is_empty());
    // What bash offers behind these words; where that is nothing it offers files.
    bed.write("completions", &script);
    let offered = |words: &[&str]| {
        let words: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
        let last = words.len() - 1;
        let script = format!(
            "source completions; COMP_WORDS=({}); COMP_CWORD={last}; _haul haul {} {}; echo \"${{COMPREPLY[*]}}\"",
            words.join(" "),
            words[last],
            words[last - 1],
        );
        let output = Command::new("bash").args(["-c", &script]).current_dir(bed.path("")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    for words in [&["haul", "cp", ""][..], &["haul", "cp", "-r", ""], &["haul", "explain", "one", "t"]] {
        assert_eq!(offered(words), "", "{words:?}");
    }
    assert_eq!(offered(&["haul", "cp", "--pl"]), "--plain");
    assert_eq!(offered(&["haul", "cp", "--hash", "x"]), "xxh3");
    assert_eq!(offered(&["haul", "exp"]), "explain");
}
