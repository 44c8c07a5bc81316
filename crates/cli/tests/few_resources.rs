//! `haul cp` where the system gives it few threads, or few descriptors: it goes on with those that it gets, or says what it
//! lacks.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Nobody else has it, so that the limit counts the threads of the test and no others.
const USER: u32 = 1_987_654_321;
/// More than haul needs for a copy within one host.
const THREADS_MAX: usize = 96;
/// A thread that is missed is waited for by nobody.
const PATIENCE: Duration = Duration::from_secs(60);

fn give_away(path: &Path) {
    if rustix::process::geteuid().is_root() {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
}

#[test]
fn with_any_number_of_threads_a_copy_ends_well_or_says_what_it_lacks() {
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root, to be a user who has no other threads");
    }
    let bed = tempfile::tempdir().unwrap();
    // Where it was built nobody else may look.
    let haul = bed.path().join("haul");
    fs::copy(env!("CARGO_BIN_EXE_haul"), &haul).unwrap();
    let tree = bed.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..50 {
        fs::write(tree.join(format!("small-{number}")), vec![number; 3000]).unwrap();
    }
    fs::write(tree.join("large"), vec![1; 9 << 20]).unwrap();
    give_away(bed.path());
    let (mut well, mut refused) = (0, 0);
    for threads in (1..32).step_by(3).chain((32..=THREADS_MAX).step_by(16)) {
        let home = tempfile::tempdir_in(bed.path()).unwrap();
        give_away(home.path());
        let mut command = Command::new("bash");
        command.args(["-c", "ulimit -u \"$0\" && exec \"$@\"", &threads.to_string()]);
        command.arg(&haul).args(["cp", "-r", "--quiet"]).arg(&tree).arg(home.path().join("copy"));
        command.current_dir(home.path()).env_clear().env("HOME", home.path());
        command.env("PATH", std::env::var_os("PATH").unwrap()).stdin(Stdio::null());
        command.uid(USER).gid(USER);
        let began = Instant::now();
        let ended = command.output().unwrap();
        assert!(began.elapsed() < PATIENCE, "{threads} threads: {:?}", began.elapsed());
        let said = String::from_utf8_lossy(&ended.stderr);
        if ended.status.success() {
            well += 1;
            assert_eq!(fs::read(home.path().join("copy/large")).unwrap().len(), 9 << 20);
            assert_eq!(fs::read_dir(home.path().join("copy")).unwrap().count(), 51);
            continue;
        }
        refused += 1;
        assert!(!said.contains("panicked") && ended.status.code().is_some(), "{threads} threads: {said}");
        assert!(
            said.contains("thread") && said.contains("the system does not allow it"),
            "{threads} threads: {said}"
        );
    }
    assert!(well > 0, "{THREADS_MAX} threads are not enough");
    assert!(refused > 0, "one thread is enough");
}

#[test]
fn descriptors_of_directories_and_files_are_as_few_as_they_have_to_be() {
    for on in ["", "localhost:"] {
        is_copied_with_few_descriptors(on);
    }
}

/// Within this process, or by two.
fn is_copied_with_few_descriptors(on: &str) {
    let bed = tempfile::tempdir().unwrap();
    let tree = bed.path().join("tree");
    for number in 0..800 {
        let directory = tree.join(format!("directory-{number}"));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..5 {
            fs::write(directory.join(format!("small-{file}")), [number as u8; 3000]).unwrap();
        }
    }
    for number in 0..40 {
        fs::write(tree.join(format!("large-{number}")), vec![number; 5 << 20]).unwrap();
    }
    let mut command = Command::new("bash");
    command.args([
        "-c",
        "ulimit -n 128 && exec \"$@\"",
        "haul",
        env!("CARGO_BIN_EXE_haul"),
        "cp",
        "-r",
        "--quiet",
    ]);
    command.args(["--ssh", concat!(env!("CARGO_BIN_EXE_haul"), " bench shell")]);
    command.args(["--haul-path", env!("CARGO_BIN_EXE_haul")]);
    command.arg(&tree).arg(format!("{on}{}", bed.path().join("copy").display()));
    command.current_dir(bed.path()).env_clear().env("HOME", bed.path().join("home"));
    fs::create_dir(bed.path().join("home")).unwrap();
    command.env("PATH", std::env::var_os("PATH").unwrap()).stdin(Stdio::null());
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{on} {}", String::from_utf8_lossy(&ended.stderr));
    for (number, file) in (0..800).flat_map(|number| (0..5).map(move |file| (number, file))) {
        let copy = bed.path().join(format!("copy/directory-{number}/small-{file}"));
        assert_eq!(fs::read(copy).unwrap(), [number as u8; 3000]);
    }
    for number in 0..40 {
        assert_eq!(fs::read(bed.path().join(format!("copy/large-{number}"))).unwrap(), vec![number; 5 << 20]);
    }
}

/// Whatever is to be opened when there are no more.
#[test]
fn no_directory_is_blamed_for_descriptors_that_are_missing() {
    let bed = tempfile::tempdir().unwrap();
    let tree = tree_of_small_files(bed.path(), 10);
    let mut refused = 0;
    // With some more each file has to wait for one, in vain.
    for descriptors in (6..12).chain([15]) {
        let mut command = haul_testkit::alone("bash", bed.path());
        // Who started it has left it many that are open.
        let taken = "while (( taken++ < 64 - $0 )); do exec {one}</; done; ulimit -n 64 && exec \"$@\"";
        command.args(["-c", taken, &(descriptors - 3).to_string()]);
        command.args([env!("CARGO_BIN_EXE_haul"), "cp", "-r", "-q"]).arg(&tree);
        let ended = command.arg(bed.path().join(descriptors.to_string())).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        for wrong in ["panicked", "make room", "make it writable", "damaged", "state directory"] {
            assert!(!said.contains(wrong), "{descriptors}: {said}");
        }
        refused += usize::from(said.contains("ulimit"));
    }
    assert!(refused > 0, "there were always enough");
}

/// Each of them would be waited for, for a second or more.
#[test]
fn where_a_process_may_have_too_few_files_open_nothing_is_begun() {
    const HAUL: &str = env!("CARGO_BIN_EXE_haul");
    let bed = tempfile::tempdir().unwrap();
    let tree = tree_of_small_files(bed.path(), 200);
    // Deeper than there are descriptors.
    let deepest = (0..60).fold(tree.clone(), |above, depth| above.join(format!("deep-{depth}")));
    fs::create_dir_all(&deepest).unwrap();
    fs::write(deepest.join("file"), b"content").unwrap();
    let far = bed.path().join("far");
    fs::write(tree.join("large"), vec![1; 20 << 20]).unwrap();
    let copy = |(here, there): (u32, u32), (streams, threads): (u32, u32), to: &str| {
        fs::write(&far, format!("#!/bin/bash\nulimit -n {there} && exec {HAUL} \"$@\"\n")).unwrap();
        fs::set_permissions(&far, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = haul_testkit::alone("bash", bed.path());
        command.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &here.to_string(), HAUL, "cp", "-r", "-q"]);
        command.args(["--ssh", concat!(env!("CARGO_BIN_EXE_haul"), " bench shell"), "--haul-path"]);
        command.arg(&far).args(["--streams", &streams.to_string(), "--io-threads", &threads.to_string()]);
        command.arg(&tree).arg(to).output().unwrap()
    };
    let copied = bed.path().join("copy");
    let elsewhere = format!("localhost:{}", copied.display());
    let too_few = [
        ((2, 8), 32, (16, 16)),
        ((2, 8), 32, (24, 24)),
        ((2, 8), 32, (31, 31)),
        // Each stream takes some, and each of many threads.
        ((16, 2), 60, (40, 40)),
        ((10, 32), 96, (48, 48)),
        ((2, 2), 32, (256, 16)),
        ((2, 2), 32, (256, 31)),
        ((64, 2), 156, (256, 100)),
    ];
    for (streams, needed, (here, there)) in too_few {
        let to = if here == there { copied.to_str().unwrap() } else { &elsewhere };
        let ended = copy((here, there), streams, to);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{here} {there}: {said}");
        let wanted = format!("no more than {there} open files, and this needs {needed}");
        assert!(said.contains(&wanted) && said.contains("ulimit -n"), "{here} {there}: {said}");
        assert!(!copied.exists() && (here != there || !bed.path().join("home").exists()), "{here} {there}");
    }
    let enough = [((2, 8), 32), ((2, 2), 48), ((16, 8), 60), ((64, 2), 156), ((2, 32), 80)];
    for (number, (streams, limit)) in enough.into_iter().enumerate() {
        for on in ["", "localhost:"] {
            let reached = bed.path().join(format!("copy-{number}-{}", on.len()));
            let ended = copy((limit, limit), streams, &format!("{on}{}", reached.display()));
            assert!(ended.status.success(), "{limit} {on}{}", String::from_utf8_lossy(&ended.stderr));
            assert_eq!(fs::read_dir(&reached).unwrap().count(), 202);
            assert!(reached.join(deepest.strip_prefix(&tree).unwrap()).join("file").exists());
        }
    }
}

fn tree_of_small_files(bed: &Path, number: usize) -> PathBuf {
    let tree = bed.join("tree");
    fs::create_dir(&tree).unwrap();
    (0..number).for_each(|number| fs::write(tree.join(number.to_string()), b"content").unwrap());
    tree
}

/// A pool takes what is there beside the stacks and heaps of threads, and what is named after its slots is one of them.
#[test]
fn with_few_addresses_there_are_fewer_buffers() {
    let bed = tempfile::tempdir().unwrap();
    fs::create_dir(bed.path().join("tree")).unwrap();
    for number in 0..30 {
        fs::write(bed.path().join(format!("tree/{number}")), vec![number; 100_000]).unwrap();
    }
    let large = ["--object-size", "64MiB", "--memory", "512MiB", "--bundle-below", "0"];
    let on = "localhost:";
    let ways = [("", "", &large[..], 600), ("", on, &large, 600), (on, "", &[], 1_000), (on, "", &[], 3_100)];
    let ways = ways.into_iter().chain([(on, "", &[][..], 3_250), (on, "", &[], 3_400), ("", "", &[], 700)]);
    for (number, (from, to, options, megabytes)) in ways.enumerate() {
        let mut command = Command::new("bash");
        command.args(["-c", "ulimit -v \"$0\" && exec \"$@\"", &(megabytes * 1000).to_string()]);
        command.arg(env!("CARGO_BIN_EXE_haul")).args(["cp", "-r", "--quiet"]).args(options);
        command.args(["--ssh", concat!(env!("CARGO_BIN_EXE_haul"), " bench shell")]);
        command.args(["--haul-path", env!("CARGO_BIN_EXE_haul")]);
        command.arg(format!("{from}{}", bed.path().join("tree").display()));
        command.arg(format!("{to}{}", bed.path().join(format!("copy-{number}")).display()));
        command.current_dir(bed.path()).env_clear().env("HOME", bed.path());
        command.env("PATH", std::env::var_os("PATH").unwrap()).stdin(Stdio::null());
        let ended = command.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "from {from:?} to {to:?} with {megabytes} MB: {said}");
        for file in 0..30 {
            let copy = fs::read(bed.path().join(format!("copy-{number}/{file}"))).unwrap();
            assert_eq!(copy, vec![file; 100_000]);
        }
    }
}

#[test]
fn buffers_for_which_there_are_no_addresses_are_not_promised() {
    let bed = tempfile::tempdir().unwrap();
    fs::write(bed.path().join("file"), b"content").unwrap();
    let explain = |kilobytes: &str, options: &[&str], to: &str| {
        let mut command = haul_testkit::alone("bash", bed.path());
        command.args(["-c", "ulimit -v \"$0\" && exec \"$@\"", kilobytes, env!("CARGO_BIN_EXE_haul")]);
        let explained = command.arg("explain").args(options).args(["file", to]).output().unwrap();
        let said = String::from_utf8(explained.stdout).unwrap();
        let row = |name: &str| said.lines().find(|line| line.starts_with(name)).unwrap_or("").to_owned();
        (explained.status.code(), row("memory"), row("buffers"), String::from_utf8(explained.stderr).unwrap())
    };
    let usual = ["--memory", "256MiB", "--io-threads", "2"];
    for to in ["copy", "localhost:copy", "localhost:/copy"] {
        let (code, memory, buffers, said) = explain("700000", &usual, to);
        assert_eq!(code, Some(0), "{said}");
        assert!(memory.contains("as this process may have few addresses (ulimit -v)"), "{memory}");
        assert!(!memory.contains("256") && !memory.contains("64 slots"), "{memory}");
        assert!(!buffers.contains("256"), "{buffers}");
        let (_, memory, ..) = explain("unlimited", &usual, to);
        assert!(memory.contains("256") && memory.contains("5 to 64 slots"), "{memory}");
    }
    let large = ["--memory", "512MiB", "--object-size", "64MiB"];
    let (code, _, buffers, said) = explain("200000", &large, "copy");
    assert_eq!(code, Some(1), "{said}");
    assert!(!buffers.is_empty() && said.contains("ulimit -v") && said.contains("--object-size"), "{said}");
}

/// Memory that may not be locked is no reason to stop, and is told to each user once.
#[test]
fn without_locked_memory_it_goes_on_and_says_so_once() {
    let bed = tempfile::tempdir().unwrap();
    let haul = bed.path().join("haul");
    fs::copy(env!("CARGO_BIN_EXE_haul"), &haul).unwrap();
    fs::write(bed.path().join("file"), vec![7; 5 << 20]).unwrap();
    give_away(bed.path());
    let copy = |options: &[&str], destination: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", "ulimit -l 0 && exec \"$@\"", "haul"]).arg(&haul).arg("cp").args(options);
        command.args(["file", destination]).current_dir(bed.path()).env_clear().env("HOME", bed.path());
        command.env("PATH", std::env::var_os("PATH").unwrap()).stdin(Stdio::null());
        if rustix::process::geteuid().is_root() {
            command.uid(USER).gid(USER);
        }
        let ended = command.output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(ended.status.success(), "{said}");
        assert_eq!(fs::read(bed.path().join(destination)).unwrap(), vec![7; 5 << 20]);
        said
    };
    for silent in ["--quiet", "--json"] {
        assert_eq!(copy(&[silent], silent.trim_start_matches('-')), "");
    }
    let said = copy(&[], "first");
    assert!(said.contains("not locked in memory") && said.contains("ulimit -l"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(copy(&[], "second"), "", "it was told");
}

/// Objects are not made smaller by themselves: what is unfinished would begin anew.
#[test]
fn memory_without_room_for_two_objects_is_a_mistake_that_says_what_would_be_right() {
    let bed = tempfile::tempdir().unwrap();
    fs::write(bed.path().join("file"), vec![7; 5 << 20]).unwrap();
    let copy = |options: &[&str]| {
        let mut command = haul_testkit::alone(env!("CARGO_BIN_EXE_haul"), bed.path());
        command.arg("cp").args(options).args(["file", "copy"]).output().unwrap()
    };
    let ended = copy(&["--memory", "1MiB", "--object-size", "512KiB"]);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(fs::read(bed.path().join("copy")).unwrap(), vec![7; 5 << 20]);
    for wrong in [&["--memory", "1MiB"][..], &["--memory", "1MiB", "--object-size", "1MiB"]] {
        let ended = copy(wrong);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(
            said.contains("at least two objects, which have") && said.contains("--object-size"),
            "{said}"
        );
    }
}

/// Later each growth of the table would make all threads wait.
#[test]
fn there_is_room_for_descriptors_before_there_are_threads() {
    let bed = tempfile::tempdir().unwrap();
    for (limit, expected) in [(None, 16_384), (Some(1000), 1000)] {
        let mut command = Command::new("bash");
        let limit = limit.map_or(String::new(), |limit: u64| format!("ulimit -n {limit}; "));
        command.args(["-c", &format!("{limit}exec \"$@\""), "bash", env!("CARGO_BIN_EXE_haul")]);
        command.args(["serve", "--stdio"]).env("HOME", bed.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let read = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();
        let number = |text: &str, of: &str, column: usize| {
            let line = text.lines().find_map(|line| line.strip_prefix(of)).unwrap().to_owned();
            line.split_whitespace().nth(column).unwrap().parse::<u64>().unwrap_or(u64::MAX)
        };
        let has_room = || {
            let most = number(&read("limits"), "Max open files", 0);
            number(&read("status"), "FDSize:", 0) >= most.min(expected)
        };
        let began = Instant::now();
        while !has_room() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = read("status");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(began.elapsed() < PATIENCE, "{status}");
    }
}

/// Some close every descriptor that they might have, one by one, and some can only use a thousand.
#[test]
fn programs_that_are_started_keep_the_limit_of_descriptors() {
    let bed = tempfile::tempdir().unwrap();
    let ssh = bed.path().join("ssh");
    fs::write(&ssh, "ulimit -Sn >> \"$(dirname \"$0\")/limits\"; exit 1\n").unwrap();
    fs::write(bed.path().join("file"), "contents").unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new("bash");
        command.args(["-c", "ulimit -Sn 345; exec \"$@\"", "bash", env!("CARGO_BIN_EXE_haul")]);
        command.args(arguments).env("HOME", bed.path()).current_dir(bed.path()).output().unwrap()
    };
    let failed = run(&["cp", "--ssh", &format!("sh {}", ssh.display()), "file", "nowhere:file"]);
    assert!(!failed.status.success(), "{failed:?}");
    let limits = fs::read_to_string(bed.path().join("limits")).unwrap();
    assert!(!limits.is_empty() && limits.lines().all(|limit| limit == "345"), "{limits}");
    let ran = run(&["topology", "run", "--", "sh", "-c", "ulimit -Sn"]);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "345\n", "{ran:?}");
}

/// As where a quota of names is used up: the table of a big file's hashes cannot be made beside it.
#[test]
fn without_room_for_one_more_name_nothing_is_lost_of_a_big_file() {
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root, for a file system of its own");
    }
    let bed = tempfile::tempdir().unwrap();
    let path = |name: &str| bed.path().join(name);
    fs::create_dir(path("disk")).unwrap();
    let content: Vec<u8> = (0..48_u32 << 18).flat_map(|word| word.to_le_bytes()).collect();
    fs::write(path("big"), &content).unwrap();
    let haul = env!("CARGO_BIN_EXE_haul");
    // The directory and one file. The first run is killed, the second one goes on.
    let script = "mount -t tmpfs -o size=100m,nr_inodes=2 none disk || exit 9\n\
                  copy() { \"$haul\" cp --ssh \"'$haul' bench shell\" --haul-path \"$haul\" \"$@\" big \"localhost:$PWD/disk/big\"; }\n\
                  timeout -s KILL 3 bash -c \"$(declare -f copy); copy --bandwidth 10MiB/s\"\n\
                  copy --json > events && cp disk/big seen";
    let mut command = haul_testkit::alone("unshare", bed.path());
    command.args(["--mount", "bash", "-c", script]).env("haul", haul);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(path("seen")).unwrap() == content);
    let events = fs::read_to_string(path("events")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    assert!(summary["objects_skipped"].as_u64().unwrap() > 0, "{summary:#}");
}
