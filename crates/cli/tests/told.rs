//! What haul tells its user is what is so, and helps.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use haul_model::Code;
use serde_json::Value;
use support::{Bed, code, says, stderr};

impl Bed {
    /// With a far end on this host, through no ssh.
    fn far(&self, arguments: &[&str]) -> Output {
        let haul = env!("CARGO_BIN_EXE_haul");
        let shell = format!("'{haul}' bench shell");
        let [command, rest @ ..] = arguments else { panic!("no command") };
        self.haul(&[&[command, "--ssh", &shell, "--haul-path", haul], rest].concat())
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn summary(output: &Output) -> Value {
    let text = stdout(output);
    let last: Value = serde_json::from_str(text.lines().last().expect("no event")).unwrap();
    assert_eq!(last["event"], "summary");
    last
}

#[test]
fn no_time_for_another_connection_is_time_enough_for_the_first() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let local = bed.haul(&["cp", "--reconnect", "0", "file", "copy"]);
    assert_eq!(code(&local), 0, "{}", stderr(&local));
    for listen in ["auto", "here"] {
        let there = format!("localhost:{}", bed.path(listen).display());
        let push = bed.far(&["cp", "--reconnect", "0", "--listen", listen, "file", &there]);
        assert_eq!(code(&push), 0, "{listen}: {}", stderr(&push));
        let pull = bed.far(&["cp", "--reconnect", "0", "--listen", listen, &there, "back"]);
        assert_eq!(code(&pull), 0, "{listen}: {}", stderr(&pull));
    }
}

#[test]
fn a_file_needs_the_directory_that_it_is_to_go_into() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let far = |name: &str| format!("localhost:{}", bed.path(name).display());
    let missing = ["no such directory at the destination", "mkdir -p", "none/"];
    let (there, from) = (far("none/"), far("file"));
    says(&bed.haul(&["cp", "file", "none/"]), 1, &missing);
    says(&bed.haul(&["cp", "-r", "file", "none/"]), 1, &missing);
    says(&bed.far(&["cp", "file", &there]), 1, &missing);
    says(&bed.far(&["cp", &from, "none/"]), 1, &missing);
    // The hint helps: it is decided anew.
    fs::create_dir(bed.path("none")).unwrap();
    let again: [&dyn Fn() -> Output; 3] =
        [&|| bed.haul(&["cp", "file", "none/"]), &|| bed.far(&["cp", "file", &there]), &|| {
            bed.far(&["cp", &from, "none/"])
        }];
    for copy in again {
        let copied = copy();
        assert_eq!(code(&copied), 0, "{}", stderr(&copied));
        fs::remove_file(bed.path("none/file")).unwrap();
    }
    // A directory becomes it, and a file in its place goes into it.
    bed.write("tree/name", b"content");
    assert_eq!(code(&bed.haul(&["cp", "-r", "tree", "new/"])), 0);
    assert!(bed.path("new/name").exists());
    fs::remove_dir_all(bed.path("tree")).unwrap();
    bed.write("tree", b"content");
    assert_eq!(code(&bed.haul(&["cp", "-r", "tree", "new/"])), 0);
    assert!(bed.path("new/tree").exists());
}

#[test]
fn explain_promises_no_hash_that_nobody_computes() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let hashing = |arguments: &[&str]| {
        let text = stdout(&bed.haul(&[&["explain"], arguments].concat()));
        text.lines().find(|line| line.starts_with("hash ")).expect("a row").to_owned()
    };
    let (late, early) = ("BLAKE3 of files over 4.0 MiB, of what has arrived", "BLAKE3 over every object");
    assert!(hashing(&["file", "copy"]).contains(late));
    assert!(
        hashing(&["--bundle-below", "1MiB", "--hash", "xxh3", "file", "copy"])
            .contains("XXH3 of files over 1.0 MiB")
    );
    assert!(hashing(&["--bandwidth", "9MiB", "file", "copy"]).contains(early));
    assert!(hashing(&["/proc/version", "copy"]).contains(early), "it is read through buffers");
    assert!(hashing(&["file", "host:copy"]).contains(early));
    let copy =
        |options: &[&str]| summary(&bed.haul(&[&["cp", "--json"], options, &["file", "copy"]].concat()));
    assert_eq!(copy(&[])["verified"], Value::Null);
    fs::remove_file(bed.path("copy")).unwrap();
    assert_eq!(copy(&["--bandwidth", "9MiB"])["verified"], "blake3");
}

#[test]
fn output_that_is_not_written_is_no_success() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let full = |arguments: &[&str]| {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        bed.command().args(arguments).stdout(full).output().unwrap()
    };
    for (options, copy) in [(&["--json"][..], "events"), (&["-v"], "names"), (&[], "line")] {
        let output = full(&[&["cp"], options, &["file", copy]].concat());
        says(&output, 1, &["the transfer is done", "writing the output", "no space left on device"]);
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        assert_eq!(fs::read(bed.path(copy)).unwrap(), b"content");
    }
    let missing = full(&["cp", "--json", "missing", "other"]);
    assert_eq!(code(&missing), 3, "what ended it counts: {}", stderr(&missing));
    assert_eq!(code(&full(&["cp", "-q", "file", "quiet"])), 0, "nothing was to be written");
    for command in [
        &["status"][..],
        &["explain", "file", "x"],
        &["generate", "man"],
        &["generate", "completions", "zsh"],
    ] {
        says(&full(command), 1, &["writing the output", "no space left on device"]);
    }
}

#[test]
fn who_reads_the_output_may_leave() {
    let bed = Bed::new();
    bed.write("file", b"content");
    for command in [
        &["cp", "--json", "file", "events"][..],
        &["cp", "-v", "file", "names"],
        &["status"],
        &["explain", "file", "x"],
        &["generate", "man"],
        &["generate", "completions", "zsh"],
    ] {
        let mut piped = bed.command();
        piped.args(command).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((code(&output), &*stderr(&output)), (0, ""), "{command:?}");
    }
    assert!(bed.path("events").exists() && bed.path("names").exists());
}

#[test]
fn a_copy_within_one_host_is_not_held_up_by_a_network() {
    let bed = Bed::new();
    bed.write("file", b"content");
    for arguments in [&["missing", "other"][..], &["file", "copy"], &["--bandwidth", "1GiB", "file", "slow"]]
    {
        let output = bed.haul(&[&["cp", "--json"], arguments].concat());
        assert!(!stdout(&output).contains("\"network\""), "{}", stdout(&output));
    }
}

impl Bed {
    /// A copy that takes its time.
    fn start_slowly(&self, source: &str) -> Child {
        self.start(&[source, "copy"])
    }

    fn start(&self, paths: &[&str]) -> Child {
        let mut command = self.command();
        let haul = env!("CARGO_BIN_EXE_haul");
        command.args(["cp", "-q", "--bandwidth", "5MiB", "--object-size", "1MiB", "--haul-path", haul]);
        command.arg("--ssh").arg(format!("'{haul}' bench shell")).args(paths).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Waits until something is durable, and says what the unfinished file is called.
    fn unfinished(&self, child: &mut Child, directory: &str) -> String {
        loop {
            assert!(child.try_wait().unwrap().is_none(), "it has ended");
            let names = fs::read_dir(self.path(directory)).into_iter().flatten().flatten();
            let names: Vec<_> = names.map(|entry| entry.file_name().into_string().unwrap()).collect();
            if let Some(sums) = names.iter().find(|name| name.ends_with(".sums")) {
                return sums.strip_suffix(".sums").unwrap().to_owned();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What is told of the only transfer.
    fn status(&self) -> Value {
        serde_json::from_slice(&self.haul(&["status", "--json"]).stdout).unwrap()
    }

    /// The only transfer's directory, once there is one.
    fn job(&self) -> Option<PathBuf> {
        let jobs = fs::read_dir(self.path("home/.local/state/haul/jobs")).ok()?;
        jobs.flatten().map(|entry| entry.path()).next()
    }
}

#[test]
fn status_of_a_transfer_that_runs_again_is_not_that_of_the_time_before() {
    let bed = Bed::new();
    bed.write("big", &vec![3; 12 << 20]);
    assert_eq!(code(&bed.haul(&["cp", "-q", "big", "copy"])), 0);
    assert_eq!(bed.status()["bytes_done"], 12 << 20);
    bed.write("big", &vec![4; 13 << 20]);
    let mut child = bed.start_slowly("big");
    let mut told = 0;
    while told < 10 && child.try_wait().unwrap().is_none() {
        let status = bed.status();
        if status["sessions"] == 2 {
            told += 1;
            assert!(status["bytes_done"].as_u64().unwrap() < 12 << 20, "{status}");
        }
    }
    assert_eq!(told, 10, "it ended too early");
    child.kill().unwrap();
    child.wait().unwrap();
    let status = bed.status();
    assert_eq!(status["state"], "interrupted");
    assert!(status["bytes_done"].as_u64().unwrap() < 12 << 20, "{status}");
}

#[test]
fn status_of_a_transfer_that_does_not_begin_again_is_that_of_the_time_before() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let there = format!("localhost:{}", bed.path("copy").display());
    assert_eq!(code(&bed.far(&["cp", "-q", "file", &there])), 0);
    assert_eq!(code(&bed.haul(&["cp", "-q", "--ssh", "false", "file", &there])), 4);
    let status = bed.status();
    assert_eq!((&status["state"], &status["bytes_done"]), (&"failed".into(), &7.into()));
}

#[test]
fn status_of_a_new_transfer_soon_tells_how_far_it_is() {
    let bed = Bed::new();
    bed.write("big", &vec![3; 30 << 20]);
    let mut child = bed.start_slowly("big");
    let counted = || {
        let job = bed.job()?;
        let progress = job.join("progress.json");
        let told: Value = serde_json::from_slice(&fs::read(&progress).ok()?).ok()?;
        let written = |path| fs::metadata(path).and_then(|found| found.modified()).ok();
        let after = written(progress)?.duration_since(written(job.join("job.json"))?).ok()?;
        (told["counts"][3] == 30 << 20).then_some(after)
    };
    let after = loop {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        if let Some(after) = counted() {
            break after;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(after < Duration::from_millis(1500), "{after:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    let status = bed.status();
    assert_eq!((&status["state"], &status["bytes_total"]), (&"interrupted".into(), &(30 << 20).into()));
}

#[test]
fn stop_says_what_is_left_and_where() {
    let bed = Bed::new();
    bed.write("big", &vec![3; 60 << 20]);
    fs::create_dir(bed.path("there")).unwrap();
    let (there, renamed) = (bed.path("there"), bed.path("there/renamed"));
    let (there, renamed) =
        (format!("localhost:{}", there.display()), format!("localhost:{}", renamed.display()));
    let stop = |child: &mut Child, options: &[&str]| {
        let job = bed.status()["job"].as_str().unwrap().to_owned();
        let told = bed.haul(&[&["stop", &job], options].concat());
        assert_eq!(code(&told), 0, "{}", stderr(&told));
        child.wait().unwrap();
        stdout(&told)
    };
    let mut before = String::new();
    for (destination, place) in [(&there, "in"), (&renamed, "beside")] {
        let mut child = bed.start(&["big", destination]);
        let left = bed.unfinished(&mut child, "there");
        let told = stop(&mut child, &["--discard"]);
        let of_this = &left[..".haul-".len() + 12];
        let expected = format!(
            "stopped\nforgotten; unfinished files may be left {place} {destination} or below it, with {of_this} in their names\n"
        );
        assert_eq!(told, expected);
        assert_ne!(std::mem::replace(&mut before, of_this.to_owned()), of_this, "another transfer's");
        fs::remove_file(bed.path("there").join(&left)).unwrap();
        fs::remove_file(bed.path("there").join(left + ".sums")).unwrap();
    }
    let mut child = bed.start_slowly("big");
    bed.unfinished(&mut child, ".");
    // As a terminal does (Ctrl-Z).
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    assert_eq!(stop(&mut child, &[]), "stopped; run the same command again to continue\n");
    assert_eq!(stop(&mut child, &["--discard"]), "forgotten; 1 unfinished file removed\n");
    // What else is in a directory that holds copies is nobody's; where it is away it cannot be looked at.
    fs::create_dir_all(bed.path("shared/much/else")).unwrap();
    let mut child = bed.start(&["big", "shared"]);
    bed.unfinished(&mut child, "shared");
    assert_eq!(stop(&mut child, &[]), "stopped; run the same command again to continue\n");
    fs::rename(bed.path("shared"), bed.path("away")).unwrap();
    let told = stop(&mut child, &["--discard"]);
    assert!(
        told.starts_with("forgotten; 0 unfinished files removed, but not all of it could be looked at"),
        "{told}"
    );
    assert!(told.contains("may be left in ") && told.contains("shared or below it"), "{told}");
}

#[test]
fn paths_of_options_do_nothing_to_a_terminal_either() {
    let bed = Bed::new();
    bed.write("file", b"content");
    for option in ["--spill", "--layout-file"] {
        let told = bed.haul(&["cp", option, "a\x1b[31m\nhaul: b", "file", "copy"]);
        assert!(stderr(&told).starts_with("haul: a\\u{1b}[31m\\nhaul: b"), "{}", stderr(&told));
    }
}

#[test]
fn who_wants_it_quiet_gets_what_the_help_says() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let help = stdout(&bed.haul(&["cp", "--help"]));
    assert!(help.contains("No progress line and no summary"), "{help}");
    let quiet = bed.haul(&["cp", "-q", "file", "copy"]);
    assert_eq!((code(&quiet), &*stdout(&quiet), &*stderr(&quiet)), (0, "", ""));
    assert_eq!(summary(&bed.haul(&["cp", "-q", "--json", "file", "copy"]))["state"], "done");
    says(&bed.haul(&["cp", "-q", "missing", "other"]), 3, &["haul: missing: no such file"]);
}

#[test]
fn values_are_taken_as_people_write_them_or_it_is_said_where_they_stand() {
    let bed = Bed::new();
    let with = |variable: &str, value: &str| {
        bed.command().args(["explain", ".", "host:x", "-r"]).env(variable, value).output().unwrap()
    };
    for (value, shown) in [("1", "CLEAR"), ("yes", "CLEAR"), ("True", "CLEAR"), ("0", "TLS"), ("no", "TLS")] {
        let output = with("HAUL_PLAIN", value);
        assert!(code(&output) == 0 && stdout(&output).contains(shown), "{value}: {}", stderr(&output));
    }
    says(&with("HAUL_PLAIN", "maybe"), 2, &["HAUL_PLAIN", "neither true nor false"]);
    says(&with("HAUL_STREAMS", "0"), 2, &["HAUL_STREAMS must be from 1 to 64"]);
    let memory = bed.haul(&["explain", "-r", "--memory", "64.5MiB", ".", "x"]);
    assert!(stdout(&memory).contains("at most 64.5 MiB"), "{}", stdout(&memory));
    bed.write("home/.config/haul/config.toml", b"streams = 0\n");
    says(&bed.haul(&["explain", "-r", ".", "x"]), 2, &["config.toml: streams must be from 1 to 64"]);
}

#[test]
fn every_code_that_a_transfer_can_end_with_is_in_the_guide() {
    let guide =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/copying.md")).unwrap();
    let table = guide.split_once("| code (in `failed`").unwrap().1;
    let of_other_commands = [Code::SocketUnusable, Code::BenchFailed];
    for code in Code::ALL.iter().filter(|code| !of_other_commands.contains(code)) {
        assert!(table.contains(&format!("`{}`", code.name())), "{}", code.name());
    }
}

#[test]
fn one_file_is_no_files() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let copied = stdout(&bed.haul(&["cp", "file", "copy"]));
    assert!(copied.starts_with("done: 1 of 1 file, 7 B sent"), "{copied}");
    let again = stdout(&bed.haul(&["cp", "file", "copy"]));
    assert!(again.starts_with("nothing to do: the file is there already"), "{again}");
    assert!(stderr(&bed.haul(&["cp", "-q", "missing", "other"])).ends_with("haul: 1 file failed\n"));
    assert!(stdout(&bed.haul(&["status"])).contains("1 of 1 file, 7 B of 7 B"));
}

#[test]
fn what_cannot_be_done_is_said_with_what_helps() {
    let bed = Bed::new();
    bed.write("file", b"content");
    says(&bed.haul(&["generate", "man", "--to", "missing"]), 1, &["missing: no such directory", "mkdir -p"]);
    says(&bed.haul(&["stop", ""]), 2, &["the id of a transfer is empty", "haul status"]);
    for nobody in [&["status", "f00"][..], &["status", "--json", "f00"], &["stop", "f00"]] {
        says(&bed.haul(nobody), 2, &["f00: no such transfer", "haul status"]);
    }
    assert_eq!(stdout(&bed.haul(&["status"])), "no transfers\n");
    says(&bed.haul(&["topology", "--root", "missing"]), 2, &["missing: no machine is described there"]);
    for resume in ["resume", "continue"] {
        let told = bed.haul(&[resume, "file", "copy"]);
        let text = stderr(&told);
        assert!(code(&told) == 2 && text.contains("the same 'haul cp' command again continues"), "{text}");
        assert!(!text.contains("serve"), "{text}");
    }
    assert!(!stderr(&bed.haul(&["serv"])).contains("'serve'"));
    assert!(stderr(&bed.haul(&["statu"])).contains("'status'"));
}

#[test]
fn a_port_that_is_taken_is_not_one_that_is_blocked() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let taken = std::net::TcpListener::bind(("::", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let there = format!("localhost:{}", bed.path("copy").display());
    for listen in ["far", "here"] {
        let output = bed.far(&["cp", "--port", &port, "--listen", listen, "file", &there]);
        says(&output, 4, &[&port, "in use", "name others with --port"]);
        assert!(!stderr(&output).contains("open a TCP port"), "{}", stderr(&output));
    }
}

#[test]
fn topology_knows_the_names_that_ssh_knows() {
    let bed = Bed::new();
    let ssh = bed.write("bin/ssh", b"#!/bin/sh\necho hostname 127.0.0.1\n");
    fs::set_permissions(ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = bed.command();
    command
        .args(["topology", "--to", "alias.invalid:/x"])
        .env("PATH", format!("{}:/bin", bed.path("bin").display()));
    let output = command.output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

#[test]
fn explain_says_what_a_copy_would_refuse_and_ends_like_it() {
    let bed = Bed::new();
    bed.write("file", b"content");
    rustix::fs::mkfifoat(rustix::fs::CWD, bed.path("fifo"), rustix::fs::Mode::RUSR).unwrap();
    bed.write("tree/name", b"content");
    for (arguments, expected, words) in [
        (&["missing", "x"][..], 3, "haul: missing: no such file or directory\n"),
        (&["missing", "localhost:x"], 3, "haul: missing: no such file or directory\n"),
        (&["tree", "x"], 3, "haul: tree: is a directory, and -r was not given\n"),
        (&["file", "none/x"], 1, "haul: none/: no such directory at the destination\n"),
        (&["file", "none/"], 1, "haul: none/: no such directory at the destination\n"),
        (&["-r", "tree", "tree/inner"], 2, "into itself"),
        (&["file", "fifo"], 3, "haul: fifo: a device, fifo or socket stands there\n"),
        (
            &["--spill", "none", "file", "x"],
            1,
            "haul: none (--spill): the spill directory cannot be used: no such",
        ),
        (
            &["--spill", "file", "file", "x"],
            1,
            "haul: file (--spill): the spill directory cannot be used: not a",
        ),
        (&["--layout-file", "none", "file", "x"], 2, "haul: none: "),
        (&["--layout-file", "file", "file", "x"], 2, "haul: file:1: "),
    ] {
        let explained = bed.haul(&[&["explain"], arguments].concat());
        says(&explained, expected, &[words]);
        assert!(stdout(&explained).contains("\nhash "), "all the rest is told, too");
        assert!(bed.job().is_none());
    }
    for arguments in [&["file", "fifo"][..], &["--spill", "none", "file", "x"]] {
        let explained = bed.haul(&[&["explain"], arguments].concat());
        let copied = bed.haul(&[&["cp", "-q"], arguments].concat());
        assert!(stderr(&copied).starts_with(&stderr(&explained)), "{}", stderr(&copied));
        assert_eq!(code(&copied), code(&explained));
    }
    let copied = bed.haul(&["cp", "-q", "tree", "x"]);
    assert!(
        code(&copied) == 3 && stderr(&copied).contains("haul: tree: is a directory, and -r was not given\n")
    );
    assert_eq!(code(&bed.haul(&["explain", "localhost:missing", "x"])), 0, "nothing is contacted");
    assert_eq!(code(&bed.haul(&["explain", "-r", "tree", "file", "tree/.."])), 0);
}

/// A copy of a few seconds, of `content`.
fn slowly(bed: &Bed) -> Command {
    bed.write("content", &vec![7; 12 << 20]);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP INT; exec \"$0\" cp --bandwidth 6MiB content copy"]);
    command.arg(env!("CARGO_BIN_EXE_haul")).current_dir(bed.directory.path()).env("HOME", bed.path("home"));
    command.stderr(Stdio::piped());
    command
}

/// `nohup`, and what a script runs in its background.
#[test]
fn what_ignores_a_hangup_or_an_interrupt_goes_on() {
    for signal in [rustix::process::Signal::HUP, rustix::process::Signal::INT] {
        let bed = Bed::new();
        let child = slowly(&bed).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(700));
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 0, "{signal:?}: {}", stderr(&output));
        assert!(bed.path("copy").exists());
    }
}

/// A terminal that goes away hangs up twice, and a host that goes down terminates and hangs up.
#[test]
fn what_is_told_twice_at_once_ends_in_order() {
    use rustix::process::Signal;
    // (Whoever runs this may have it ignore a hangup.)
    for signals in [[Signal::TERM, Signal::HUP], [Signal::TERM, Signal::TERM]] {
        let bed = Bed::new();
        bed.write("content", &vec![7; 12 << 20]);
        let mut command = bed.command();
        command.args(["cp", "--json", "--bandwidth", "6MiB", "content", "copy"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(700));
        let pid = rustix::process::Pid::from_child(&child);
        for signal in signals {
            rustix::process::kill_process(pid, signal).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 130, "{}", stderr(&output));
        let told = stdout(&output);
        let last: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
        assert_eq!(
            (&last["event"], &last["state"]),
            (&"summary".into(), &"interrupted".into()),
            "{signals:?}: {last}"
        );
    }
}

#[test]
fn a_destination_that_is_full_is_named_and_not_what_follows_from_it() {
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root");
    }
    let bed = Bed::new();
    (0..300).for_each(|number| drop(bed.write(&format!("many/{number}"), b"content")));
    let full = bed.path("full");
    fs::create_dir(&full).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "nr_inodes=1", "none"]).arg(&full).status();
    assert!(mount.unwrap().success());
    let output = bed.haul(&["cp", "-r", "many", "full/"]);
    assert!(Command::new("umount").arg(&full).status().unwrap().success());
    let text = stderr(&output);
    assert_eq!(code(&output), 1, "{text}");
    assert!(text.contains("no space left") && !text.contains("could not be made"), "{text}");
}

#[test]
fn an_end_that_writes_knows_when_everything_was_found() {
    let bed = Bed::new();
    bed.write("tree/a/content", &vec![7; 12 << 20]);
    (0..50).for_each(|number| drop(bed.write(&format!("tree/{number}/file"), b"content")));
    let there = format!("localhost:{}", bed.path("tree").display());
    let output = bed.far(&["cp", "-r", "--json", "--bandwidth", "6MiB", &there, "back"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let told = stdout(&output);
    let mut progress = told.lines().filter(|line| line.contains("\"event\":\"progress\""));
    let last: Value = serde_json::from_str(progress.next_back().expect("no progress")).unwrap();
    assert_eq!((&last["totals_are_final"], &last["files_total"]), (&true.into(), &51.into()), "{last}");
}

#[test]
fn a_tree_without_files_is_not_nothing() {
    let bed = Bed::new();
    fs::create_dir_all(bed.path("tree/below")).unwrap();
    let output = bed.haul(&["cp", "-r", "tree", "copy"]);
    assert!(stdout(&output).contains("done: 2 directories without files"), "{}", stdout(&output));
}

#[test]
fn state_that_is_kept_elsewhere_is_found() {
    let bed = Bed::new();
    let state = bed.write("state", b"a file, not a directory");
    fs::create_dir(bed.path("tmp")).unwrap();
    let told = |arguments: &[&str]| {
        let mut command = bed.command();
        command.env("TMPDIR", bed.path("tmp")).env("HAUL_STATE_DIR", &state);
        command.args(arguments).output().unwrap()
    };
    bed.write("tree/file", b"content");
    bed.write("copy/tree/file/in-its-way", b"");
    let output = told(&["cp", "-r", "tree", "copy"]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("can be resumed as long as"), "{}", stderr(&output));
    let status: Value = serde_json::from_str(&stdout(&told(&["status", "--json"]))).unwrap();
    assert!(status["state_directory"].as_str().unwrap().contains("haul-state-"), "{status}");
    assert!(stdout(&told(&["explain", "-r", "tree", "copy"])).contains("haul-state-"));
    let discarded = told(&["stop", "--discard", status["job"].as_str().unwrap()]);
    assert_eq!(code(&discarded), 0, "{}", stderr(&discarded));
    assert!(stdout(&told(&["status"])).contains("no transfers"));
}

#[test]
fn explanations_can_be_read_by_programs_and_refuse_what_a_copy_refuses() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let output = bed.haul(&["explain", "--json", "--streams", "3", "file", "copy"]);
    let told = stdout(&output);
    let mut settings = told.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert!(settings.any(|setting| setting["name"] == "hash" && setting["event"] == "setting"), "{told}");
    assert!(Command::new("mkfifo").arg(bed.path("fifo")).status().unwrap().success());
    for command in ["explain", "cp"] {
        says(
            &bed.haul(&[command, "-q", "fifo", "copy"]),
            3,
            &["fifo", "is neither file, directory nor symlink"],
        );
    }
    fs::set_permissions(bed.path("file"), fs::Permissions::from_mode(0o000)).unwrap();
    for command in ["explain", "cp"] {
        let output = as_ordinary_user(&bed, &[command, "-q", "file", "copy"]);
        says(&output, 3, &["permission denied at the source"]);
    }
}

/// As root as another one, who may write where the test is.
fn as_ordinary_user(bed: &Bed, arguments: &[&str]) -> Output {
    if !rustix::process::geteuid().is_root() {
        return bed.haul(arguments);
    }
    fs::create_dir_all(bed.path("open")).unwrap();
    for open in ["open", ""] {
        fs::set_permissions(bed.path(open), fs::Permissions::from_mode(0o777)).unwrap();
    }
    let haul = bed.command();
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(haul.get_program());
    command.current_dir(haul.get_current_dir().unwrap());
    command.envs(haul.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("HOME", bed.path("open/home")).env("HAUL_STATE_DIR", bed.path("open/state"));
    command.args(arguments).output().unwrap()
}

#[test]
fn an_end_of_a_plan_is_there_or_is_said_not_to_be() {
    let bed = Bed::new();
    let code = Code::Usage.exit().into();
    says(&bed.haul(&["topology", "--from", "none"]), code, &["none: no such file, device or address"]);
    let told = stdout(&bed.haul(&["topology", "--to", "none"]));
    assert!(told.contains("it is not there yet"), "{told}");
}

#[test]
fn files_that_are_left_out_for_their_names_are_counted() {
    const TOLD: &str = "2 files of the SOURCE left out";
    let bed = Bed::new();
    let token = "00112233445566778899aabbccddeeff";
    bed.write("data/a", b"whole");
    bed.write(&format!("data/.haul-{token}"), b"half");
    bed.write(&format!("data/deeper/.haul-{token}.sums"), b"half");
    let (here, there) = (|name: &str| bed.path(name).display().to_string(), "localhost:");
    let source = here("data");
    for (from, to) in [
        (source.clone(), here("local")),
        (source.clone(), format!("{there}{}", here("push"))),
        (format!("{there}{source}"), here("pull")),
    ] {
        let output = bed.far(&["cp", "-r", &from, &to]);
        says(&output, 0, &[TOLD, ".haul-<32 hex digits>"]);
        assert_eq!(stderr(&output).matches(TOLD).count(), 1, "{from} to {to}");
    }
    let names = |name: &str| fs::read_dir(bed.path(name)).unwrap().count();
    assert_eq!(["local", "push", "pull"].map(names), [2, 2, 2], "`a` and `deeper`");
    let output = bed.haul(&["cp", "-r", "--json", "data", "json"]);
    let events: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = events.iter().find(|event| event["event"] == "left_out").expect("an event of its own");
    assert_eq!(told["unfinished_files"], 2);
    assert_eq!(events.last().unwrap()["event"], "summary");
    // Nothing is said where there was nothing of the kind, as with one that the user names.
    let named = format!("data/.haul-{token}");
    let output = bed.haul(&["cp", &named, "single"]);
    assert_eq!((code(&output), stderr(&output).as_str()), (0, ""));
}

#[test]
fn events_name_the_paths_that_the_text_names() {
    let bed = Bed::new();
    bed.write("pr/file", b"contents");
    bed.write("taken/pr/file/in the way", b"");
    assert!(Command::new("mkfifo").arg(bed.path("pr/ff")).status().unwrap().success());
    for (arguments, code, path) in [
        (["missing.dat", "newname"], "source-missing", "missing.dat"),
        (["pr", "backup"], "unsupported-kind", "pr/ff"),
        (["pr", "taken"], "sink-is-directory", "taken/pr/file"),
    ] {
        let told = |options: &[&str]| bed.haul(&[&["cp", "-r"], options, &arguments].concat());
        let events = String::from_utf8(told(&["--json"]).stdout).unwrap();
        let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let failed: Vec<_> = events.filter(|event| event["event"] == "failed").collect();
        assert!(failed.iter().any(|event| event["code"] == code && event["path"] == path), "{failed:?}");
        let text = String::from_utf8(told(&[]).stderr).unwrap();
        assert!(text.contains(&format!("haul: {path}: ")), "{text}");
    }
}

#[test]
fn settings_come_from_the_user_s_own_directory_and_never_from_where_a_command_is_typed() {
    let bed = Bed::new();
    bed.write("file", b"content");
    bed.write(".config/haul/config.toml", b"streams = 7");
    let typed = |home: &str| {
        let mut command = bed.command();
        command.env_remove("XDG_CONFIG_HOME").env("HOME", home);
        stdout(&command.args(["explain", "file", "localhost:/nowhere/x"]).output().unwrap())
    };
    assert!(typed(bed.path("").to_str().unwrap()).contains("config.toml"), "it is read there");
    for home in ["", ".", "home/.."] {
        assert!(!typed(home).contains("config.toml"), "HOME={home:?}");
    }
}

#[test]
fn a_port_can_be_said_wherever_a_range_can() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let config = bed.write("config/haul/config.toml", b"port = 50001");
    let explain = |port: Option<&str>, options: &[&str]| {
        let mut command = bed.command();
        command.env("XDG_CONFIG_HOME", bed.path("config"));
        command.envs(port.map(|port| ("HAUL_PORT", port)));
        let command = command.arg("explain").args(options).args(["file", "localhost:/nowhere/x"]);
        stdout(&command.output().unwrap())
    };
    let says = |told: String, range: &str, origin: &str| {
        let line = told.lines().find(|line| line.trim_start().starts_with("port-range")).unwrap().to_owned();
        assert!(line.contains(range) && line.contains(origin), "{line}");
    };
    says(explain(None, &[]), "50001 to 50001", config.to_str().unwrap());
    says(explain(Some("50002"), &[]), "50002 to 50002", "HAUL_PORT");
    says(explain(Some("50002"), &["--port-range", "50003-50004"]), "50003 to 50004", "--port-range");
    says(explain(Some("50002"), &["--port", "50005"]), "50005 to 50005", "--port)");
    std::fs::write(config, "port-range = '50006-50007'").unwrap();
    says(explain(None, &[]), "50006 to 50007", "config.toml");
}

#[test]
fn a_dest_in_which_nothing_can_be_made_is_told_once() {
    let bed = Bed::new();
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root, to be another user");
    }
    (0..30).for_each(|number| drop(bed.write(&format!("tree/{number}"), b"content")));
    fs::create_dir_all(bed.path("theirs/there/tree")).unwrap();
    let typed = |arguments: &[&str]| as_ordinary_user(&bed, arguments);
    for destination in ["theirs/new", "theirs"] {
        for verb in ["cp", "explain"] {
            let output = typed(&[verb, "-r", "tree", destination]);
            assert_eq!(code(&output), 1, "{}", stderr(&output));
            assert!(stderr(&output).lines().count() <= 3, "{}", stderr(&output));
            assert!(stderr(&output).contains("permission denied"), "{}", stderr(&output));
        }
    }
    // What is there may be complete, or others may let this one write.
    let output = typed(&["cp", "-r", "tree", "theirs/there"]);
    assert!(stderr(&output).lines().count() > 30, "{}", stderr(&output));
}

#[test]
fn every_field_of_every_event_is_in_the_specification() {
    let bed = Bed::new();
    bed.write("tree/file", b"content");
    bed.write("tree/other", &vec![7; 3 << 20]);
    bed.write("blocked/tree/file/in-its-way", b"");
    let there = |name: &str| format!("localhost:{}", bed.path(name).display());
    let outputs = [
        bed.haul(&["cp", "-r", "-v", "--json", "--profile", "tree", "here"]),
        bed.haul(&["cp", "-r", "-v", "--json", "tree", "blocked"]),
        bed.far(&["cp", "-r", "-v", "--json", "tree", &there("pushed")]),
        bed.far(&["cp", "-r", "-v", "--json", &there("tree"), "pulled"]),
        bed.haul(&["cp", "--json", "missing", "copy"]),
        bed.haul(&["status", "--json"]),
        bed.haul(&["explain", "-r", "--json", "tree", "there"]),
        bed.haul(&["topology", "--json"]),
    ];
    let specification = include_str!("../../../docs/spec/events.md");
    let is_named = |key: &str| specification.contains(&format!("`{key}`"));
    let mut seen = std::collections::BTreeSet::new();
    for output in &outputs {
        for line in stdout(output).lines() {
            let event: Value = serde_json::from_str(line).unwrap();
            let name = event["event"].as_str().unwrap().to_owned();
            assert!(is_named(&name), "{name}");
            let fields = event.as_object().unwrap().iter();
            let below = ["log", "error"].into_iter().filter_map(|field| event[field].as_object()).flatten();
            let unnamed = fields.chain(below).map(|(key, _)| key).find(|key| !is_named(key));
            assert_eq!(unnamed, None, "of {name}");
            seen.insert(name);
        }
    }
    for name in
        ["connected", "failed", "file", "job", "placement", "profile", "setting", "summary", "topology"]
    {
        assert!(seen.contains(name), "{name} was not told: {seen:?}");
    }
}
