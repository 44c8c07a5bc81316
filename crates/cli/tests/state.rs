//! What is kept of jobs: by whom, of which host, and how it goes.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use support::{Bed, code, says, stderr};

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn jobs_of(bed: &Bed) -> usize {
    fs::read_dir(bed.path("home/.local/state/haul/jobs")).map_or(0, |jobs| jobs.count())
}

/// The command on a host of this name, with the same state directory; only root may make one.
fn on_host(bed: &Bed, host: &str, arguments: &[&str]) -> Output {
    on_host_with(bed, host, "exec \"$@\"", arguments)
}

/// The same within a script, which may mount what nobody else sees.
fn on_host_with(bed: &Bed, host: &str, script: &str, arguments: &[&str]) -> Output {
    let haul = bed.command();
    let script = format!("hostname \"$1\"; shift; {script}");
    let mut command = Command::new("unshare");
    command.args(["--uts", "--mount", "sh", "-c", &script, "sh", host]);
    command.arg(haul.get_program()).args(arguments).current_dir(haul.get_current_dir().unwrap());
    command.env_clear().envs(haul.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.output().unwrap()
}

/// A script opens them.
#[test]
fn directories_are_told_as_they_are_called() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let bed = Bed::new();
    bed.write("file", b"content");
    for name in [&b"back\\slash"[..], b"no\xfftext"] {
        let state = bed.path("states").join(OsStr::from_bytes(name));
        let haul = |arguments: &[&str]| {
            let output = bed.command().env("HAUL_STATE_DIR", &state).args(arguments).output().unwrap();
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            stdout(&output)
        };
        haul(&["cp", "file", "copy"]);
        let event: serde_json::Value = serde_json::from_str(haul(&["status", "--json"]).trim()).unwrap();
        let told = event["state_directory"].as_str().unwrap();
        let bytes = match event["state_directory_hex"].as_str() {
            Some(hex) => (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect(),
            None => told.as_bytes().to_vec(),
        };
        let told = PathBuf::from(OsStr::from_bytes(&bytes));
        assert!(told.starts_with(&state) && told.is_dir(), "{told:?}");
    }
}

#[test]
fn what_a_path_means_on_one_host_decides_nothing_on_another() {
    let bed = Bed::new();
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root, for a host of another name");
    }
    bed.write("data/f", b"data");
    let copy = ["cp", "-r", "data", "out"];
    assert_eq!(code(&on_host(&bed, "one", &copy)), 0);
    assert!(bed.path("out/f").exists());
    // The local disk of another host, where that path is a directory with a file of this name.
    let disk = "mount -t tmpfs none out && echo precious > out/f && \"$@\" && cp -r out seen";
    let other = on_host_with(&bed, "other", disk, &copy);
    assert_eq!(code(&other), 0, "{}", stderr(&other));
    assert_eq!(fs::read(bed.path("seen/f")).unwrap(), b"precious\n");
    assert_eq!(fs::read(bed.path("seen/data/f")).unwrap(), b"data");
    assert_eq!(jobs_of(&bed), 2);
}

#[test]
fn a_job_goes_on_where_the_host_goes_by_another_name() {
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root, for a host of another name");
    }
    let bed = Bed::new();
    bed.write("source/file", b"content");
    bed.write("source/big", &vec![7; 9 << 20]);
    let copy = ["cp", "-r", "source", "sink"];
    let first = on_host(&bed, "pod-1", &["cp", "-r", "--json", "source", "sink"]);
    assert_eq!(code(&first), 0, "{}", stderr(&first));
    let again = on_host(&bed, "pod-2", &copy);
    assert_eq!(code(&again), 0, "{}", stderr(&again));
    assert!(!bed.path("sink/source").exists(), "it was decided what DEST is to be");
    assert!(String::from_utf8_lossy(&again.stdout).contains("nothing to do"), "{again:?}");
    let known = bed.haul(&["status", "--json"]);
    assert_eq!(String::from_utf8_lossy(&known.stdout).lines().count(), 1, "{known:?}");
    // And on, from name to name; explain sees the same.
    let told = on_host(&bed, "pod-3", &[&["explain"], &copy[1..]].concat());
    assert!(String::from_utf8_lossy(&told.stdout).contains("it continues"), "{told:?}");
    assert_eq!(code(&on_host(&bed, "pod-3", &copy)), 0);
    assert!(!bed.path("sink/source").exists());
    // What was forgotten is so under all names.
    let id: serde_json::Value = serde_json::from_slice(&known.stdout).unwrap();
    let forgotten = bed.haul(&["stop", "--discard", id["job"].as_str().unwrap()]);
    assert_eq!(code(&forgotten), 0, "{}", stderr(&forgotten));
    let home = bed.path("home/.local/state/haul");
    let left: Vec<_> = fs::read_dir(home.join("kin")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let anew = on_host(&bed, "pod-2", &copy);
    assert!(code(&anew) == 0 && bed.path("sink/source/file").exists(), "{}", stderr(&anew));
}

#[test]
fn a_command_that_cannot_be_leaves_no_transfer_behind() {
    let bed = Bed::new();
    bed.write("a/f", b"data");
    bed.write("b/f", b"data");
    assert_eq!(code(&bed.haul(&["cp", "-r", "a", "a/below"])), 2);
    fs::create_dir(bed.path("into")).unwrap();
    for verb in ["cp", "explain"] {
        says(&bed.haul(&[verb, "a/f", "b/f", "into"]), 2, &["two SOURCEs have the same name"]);
    }
    assert_eq!(jobs_of(&bed), 0);
}

fn names_in(directory: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A home directory may have room for so many names only, and what is copied file by file is as many jobs.
#[test]
fn little_is_kept_of_what_is_done_and_nothing_at_the_far_end() {
    let bed = Bed::new();
    bed.write("tree/file", b"content");
    fs::create_dir_all(bed.path("tree/is-file")).unwrap();
    bed.write("blocked/is-file", b"in the way");
    let haul = env!("CARGO_BIN_EXE_haul");
    let shell = format!("'{haul}' bench shell");
    let far = ["--ssh", shell.as_str(), "--haul-path", haul];
    let there = |name: &str| format!("localhost:{}", bed.path(name).display());
    let state = bed.path("home/.local/state/haul");
    let copy = |source: &str, destination: &str, expected: i32| {
        let output = bed.haul(&[&["cp", "-r"], &far[..], &[source, destination]].concat());
        assert_eq!(code(&output), expected, "{}", stderr(&output));
    };
    // The second one has to know what the first one has decided.
    for _ in 0..2 {
        copy("tree", &there("pushed"), 0);
        copy(&there("tree"), "pulled", 0);
        copy("tree", "beside", 0);
    }
    for name in ["pushed", "pulled", "beside"] {
        assert_eq!(fs::read(bed.path(name).join("file")).unwrap(), b"content");
        assert!(!bed.path(name).join("tree").exists());
    }
    assert_eq!(names_in(state.join("far")), [""; 0]);
    assert_eq!(jobs_of(&bed), 3);
    for job in names_in(state.join("jobs")) {
        let mut kept = names_in(state.join("jobs").join(job));
        // Of those that were read here; there is nothing in it.
        kept.retain(|name| name != "log");
        assert_eq!(kept, ["job.json", "lock"]);
    }
    let listed = bed.haul(&["status"]);
    assert_eq!(stdout(&listed).matches("done").count(), 3, "{}", stdout(&listed));
    // Of what was not there, or could not be, nobody comes back for anything.
    for _ in 0..3 {
        copy("missing", &there("pushed"), 3);
        copy(&there("missing"), "pulled", 3);
    }
    fs::create_dir_all(bed.path("other")).unwrap();
    bed.write("other/file", b"content");
    let clash = bed.haul(&[&["cp", "-r"], &far[..], &["tree/file", "other/file", &there("pushed")]].concat());
    assert_eq!(code(&clash), 2, "{}", stderr(&clash));
    assert_eq!(names_in(state.join("far")), [""; 0]);
    // What may be gone on with stays as it is.
    copy("tree/.", &there("blocked"), 3);
    assert_eq!(names_in(state.join("far")).len(), 1);
}

#[test]
fn a_link_to_a_device_is_not_replaced() {
    let bed = Bed::new();
    bed.write("file", b"data");
    symlink("/dev/null", bed.path("link")).unwrap();
    for verb in ["explain", "cp"] {
        says(&bed.haul(&[verb, "file", "link"]), 1, &["link", "a device, fifo or socket stands there"]);
    }
    assert!(bed.path("link").is_symlink());
}

#[test]
fn a_file_goes_into_a_directory_that_was_made_where_it_was() {
    let bed = Bed::new();
    bed.write("file", b"data");
    assert_eq!(code(&bed.haul(&["cp", "file", "name"])), 0);
    fs::remove_file(bed.path("name")).unwrap();
    fs::create_dir(bed.path("name")).unwrap();
    let again = bed.haul(&["cp", "file", "name"]);
    assert_eq!(code(&again), 0, "{}", stderr(&again));
    assert!(bed.path("name/file").exists());
}

/// Whoever stops it learns that what was running has ended.
#[test]
fn a_transfer_that_something_starts_again_at_once_is_not_one_that_does_not_end() {
    let bed = Bed::new();
    bed.write("file", &vec![7; 64 << 20]);
    bed.write("again", b"");
    let script = format!(
        "while [ -e again ]; do '{}' cp -q --bandwidth 1MiB file copy; done",
        env!("CARGO_BIN_EXE_haul")
    );
    let mut shell = bed.command();
    let mut runs = Command::new("sh");
    runs.args(["-c", &script]).current_dir(bed.path("")).env_clear();
    runs.envs(shell.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut runs = runs.spawn().unwrap();
    let job = || fs::read_dir(bed.path("home/.local/state/haul/jobs")).ok()?.flatten().next();
    let deadline = Instant::now() + Duration::from_secs(20);
    let id = loop {
        if let Some(job) = job()
            && fs::read_to_string(job.path().join("lock")).is_ok_and(|text| text.ends_with('\n'))
            && job.path().join("job.json").exists()
        {
            break job.file_name().into_string().unwrap();
        }
        assert!(Instant::now() < deadline, "it does not begin");
        std::thread::sleep(Duration::from_millis(10));
    };
    let began = Instant::now();
    let stopped = shell.args(["stop", &id]).output().unwrap();
    assert!(began.elapsed() < Duration::from_secs(20), "{}", stderr(&stopped));
    // Or it was not there again yet.
    if code(&stopped) != 0 {
        says(&stopped, 1, &["has ended, and another one goes on", "what starts it again"]);
    }
    fs::remove_file(bed.path("again")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while runs.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline);
        bed.haul(&["stop", &id]);
    }
}

#[test]
fn a_transfer_is_stopped_and_forgotten_by_who_runs_it() {
    let bed = Bed::new();
    bed.write("file", &vec![7; 64 << 20]);
    let mut runs = bed.command().args(["cp", "-q", "--bandwidth", "1MiB", "file", "copy"]).spawn().unwrap();
    let job = || fs::read_dir(bed.path("home/.local/state/haul/jobs")).ok()?.flatten().next();
    let deadline = Instant::now() + Duration::from_secs(20);
    let lock = loop {
        if let Some(lock) = job().map(|job| job.path().join("lock"))
            && fs::read_to_string(&lock).is_ok_and(|text| text.ends_with('\n'))
        {
            break lock;
        }
        assert!(Instant::now() < deadline, "it does not begin");
        std::thread::sleep(Duration::from_millis(10));
    };
    let id = lock.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    let said = fs::read_to_string(&lock).unwrap();
    // Its number is that of a process on another host, and here that of somebody else.
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    let words: Vec<&str> = said.split_whitespace().collect();
    let elsewhere = format!("{} elsewhere {} {} {}\n", other.id(), words[2], words[3], words[4]);
    fs::write(&lock, elsewhere).unwrap();
    says(&bed.haul(&["stop", &id]), 1, &["on elsewhere", "stop it there"]);
    fs::write(&lock, format!("{} {} {} {} 1\n", other.id(), words[1], words[2], words[3])).unwrap();
    let _ = bed.haul(&["stop", &id]);
    assert!(other.try_wait().unwrap().is_none(), "it has nothing to do with it");
    assert!(runs.try_wait().unwrap().is_none());
    let discard = bed.haul(&["stop", "--discard", &id]);
    assert!(code(&discard) != 0 && lock.exists(), "it runs: {}", stdout(&discard));
    fs::write(&lock, said).unwrap();
    if rustix::process::geteuid().is_root() {
        // Anybody can keep a lock, and have the number of any process in it.
        std::os::unix::fs::chown(&lock, Some(1), None).unwrap();
        says(&bed.haul(&["stop", &id]), 1, &["is another user's than the state", "it was not ended"]);
        std::os::unix::fs::chown(&lock, Some(0), None).unwrap();
        assert!(runs.try_wait().unwrap().is_none());
    }
    let stopped = bed.haul(&["stop", "--discard", &id]);
    assert_eq!(code(&stopped), 0, "{}", stderr(&stopped));
    assert_eq!(runs.wait().unwrap().code(), Some(130));
    assert!(!lock.exists());
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn a_transfer_that_runs_with_its_state_elsewhere_keeps_a_second_one_out() {
    let bed = Bed::new();
    bed.write("file", &vec![7; 64 << 20]);
    bed.write("no-directory", b"");
    fs::create_dir(bed.path("tmp")).unwrap();
    let copy = || {
        let mut command = bed.command();
        command.env("HAUL_STATE_DIR", bed.path("no-directory/state")).env("TMPDIR", bed.path("tmp"));
        command.args(["cp", "-q", "--bandwidth", "1MiB", "file", "copy"]);
        command
    };
    let mut runs = copy().spawn().unwrap();
    let user = rustix::process::geteuid().as_raw();
    let jobs = bed.path(&format!("tmp/haul-state-{user}/jobs"));
    let locked = || {
        let job = fs::read_dir(&jobs).ok()?.flatten().next()?;
        fs::read_to_string(job.path().join("lock")).ok().filter(|said| said.ends_with('\n'))
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while locked().is_none() {
        assert!(Instant::now() < deadline, "it does not begin");
        std::thread::sleep(Duration::from_millis(10));
    }
    let second = copy().output().unwrap();
    runs.kill().unwrap();
    runs.wait().unwrap();
    says(&second, 1, &[&format!("process {}", runs.id()), "haul status"]);
}

/// A disk that has become read-only, or a host that has the home directory so.
#[test]
fn a_transfer_that_runs_is_seen_where_its_state_cannot_be_written() {
    let bed = Bed::new();
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root, to mount a file system");
    }
    bed.write("file", &vec![7; 64 << 20]);
    fs::create_dir(bed.path("tmp")).unwrap();
    let haul = |command: &mut Command| {
        let of_bed = bed.command();
        command.current_dir(of_bed.get_current_dir().unwrap()).env_clear();
        command.envs(of_bed.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("HAUL_STATE_DIR", bed.path("state")).env("TMPDIR", bed.path("tmp"));
    };
    let copy = ["cp", "-q", "--bandwidth", "1MiB", "file", "copy"];
    let mut first = bed.command();
    haul(&mut first);
    let mut runs = first.args(copy).spawn().unwrap();
    let begun = || {
        fs::read_dir(bed.path("state/jobs")).is_ok_and(|mut jobs| {
            let lock = jobs.next().map(|job| job.unwrap().path().join("lock"));
            lock.is_some_and(|lock| fs::read_to_string(lock).is_ok_and(|said| said.ends_with('\n')))
        })
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !begun() {
        assert!(Instant::now() < deadline, "it does not begin");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut second = Command::new("unshare");
    haul(&mut second);
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && shift && exec \"$@\"";
    second.args(["--mount", "sh", "-c", script, "sh"]).arg(bed.path("state"));
    let second = second.arg(bed.command().get_program()).args(copy).output().unwrap();
    runs.kill().unwrap();
    runs.wait().unwrap();
    says(&second, 1, &[&format!("process {}", runs.id()), "haul status"]);
    assert_eq!(names_in(bed.path("tmp")), [""; 0], "two would work at one job");
}

#[test]
fn a_pull_that_goes_on_counts_what_was_there() {
    let bed = Bed::new();
    bed.write("file", &vec![7; 64 << 20]);
    let haul = env!("CARGO_BIN_EXE_haul");
    let shell = format!("'{haul}' bench shell");
    let source = format!("localhost:{}", bed.path("file").display());
    let told = || -> serde_json::Value {
        serde_json::from_str(&stdout(&bed.haul(&["status", "--json"]))).unwrap_or_default()
    };
    let pull_until = |is_enough: &dyn Fn(u64) -> bool| {
        let mut command = bed.command();
        command.args(["cp", "-q", "--bandwidth", "8MiB", "--object-size", "1MiB", "--ssh", &shell]);
        let mut runs = command.args(["--haul-path", haul, &source, "copy"]).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while told()["state"] != "running" || !is_enough(told()["bytes_done"].as_u64().unwrap_or(0)) {
            assert!(Instant::now() < deadline && runs.try_wait().unwrap().is_none(), "{}", told());
            std::thread::sleep(Duration::from_millis(50));
        }
        let pid = rustix::process::Pid::from_child(&runs);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert_eq!(runs.wait().unwrap().code(), Some(130));
        let told = told();
        assert_eq!(told["state"], "interrupted");
        told["bytes_done"].as_u64().unwrap()
    };
    let first = pull_until(&|bytes| bytes >= 32 << 20);
    // At once, and not when as much has come again. What was on its way to the log may be sent again.
    let began = Instant::now();
    let second = pull_until(&|bytes| bytes > 0);
    assert!(began.elapsed() < Duration::from_secs(3), "too slow to tell");
    assert!((first - (4 << 20)..64 << 20).contains(&second), "{second}, and {first} before");
}

#[test]
fn a_list_that_may_lack_transfers_is_no_success() {
    let bed = Bed::new();
    bed.write("file", b"content");
    bed.write("no-directory", b"");
    fs::create_dir(bed.path("tmp")).unwrap();
    let haul = |state: &str, words: &[&str]| {
        let mut command = bed.command();
        command.env("HAUL_STATE_DIR", bed.path(state)).env("TMPDIR", bed.path("tmp"));
        command.args(words).output().unwrap()
    };
    // What cannot be listed by anybody, also by root.
    fs::create_dir(bed.path("state")).unwrap();
    symlink("jobs", bed.path("state/jobs")).unwrap();
    says(&haul("state", &["status"]), 1, &["state/jobs"]);
    assert_eq!(code(&haul("no-directory/state", &["cp", "-q", "file", "copy"])), 0);
    let is_listed = |words: &[&str]| {
        let output = haul("state", words);
        says(&output, 1, &["state/jobs"]);
        stdout(&output).contains("copy")
    };
    assert!(is_listed(&["status"]) && is_listed(&["status", "--json"]));
    // It may be one of those.
    assert!(!is_listed(&["status", "zzz"]));
    assert_eq!(code(&haul("no-directory/state", &["status"])), 0);
}

/// Somebody else than who runs the tests, if that is root: root may read everything.
const USER: u32 = 1_987_654_322;

#[test]
fn a_state_directory_that_is_out_of_reach_for_a_moment_is_not_one_without_records() {
    let bed = Bed::new();
    bed.write("src/a", b"data");
    for directory in ["closed/state", "closed/anothers", "tmp", "home"] {
        fs::create_dir_all(bed.path(directory)).unwrap();
    }
    // Where it was built nobody else may look.
    fs::copy(env!("CARGO_BIN_EXE_haul"), bed.path("program")).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        for path in ["", "src", "src/a", "closed", "closed/state", "tmp", "home"] {
            std::os::unix::fs::chown(bed.path(path), Some(USER), Some(USER)).unwrap();
        }
    }
    let copy = |state: &str, to: &str| {
        let haul = bed.command();
        let mut command = Command::new(bed.path("program"));
        command.args(["cp", "-r", "src", to]).current_dir(haul.get_current_dir().unwrap());
        command.env_clear().envs(haul.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("HAUL_STATE_DIR", bed.path(state)).env("TMPDIR", bed.path("tmp"));
        if is_root {
            command.uid(USER).gid(USER);
        }
        command.output().unwrap()
    };
    let close =
        |path: &str, mode| fs::set_permissions(bed.path(path), fs::Permissions::from_mode(mode)).unwrap();
    assert_eq!(code(&copy("closed/state", "new")), 0);
    close("closed", 0);
    let refused = copy("closed/state", "new");
    assert_eq!(code(&refused), 1, "{}", stderr(&refused));
    assert!(
        stderr(&refused).contains("job.json") && !stderr(&refused).contains("set HAUL_STATE_DIR"),
        "{}",
        stderr(&refused)
    );
    close("closed", 0o700);
    assert_eq!(code(&copy("closed/state", "new")), 0);
    assert!(bed.path("new/a").exists() && !bed.path("new/src").exists());
    // In the home directory of another user nothing was ever kept.
    if is_root {
        close("closed/anothers", 0o700);
        let other = copy("closed/anothers/below", "other");
        assert_eq!(code(&other), 0, "{}", stderr(&other));
        assert!(stderr(&other).contains("as TMPDIR says"), "{}", stderr(&other));
    }
}

/// A home directory on a server that is gone when all is copied. A batch job would run into its limit, and look as if it had failed.
#[test]
fn a_home_that_hangs_at_the_end_keeps_nobody_from_hearing_that_it_is_done() {
    let bed = Bed::new();
    bed.write("file", &vec![7; 6 << 20]);
    let hangs = bed.path("hangs");
    let mut command = bed.command();
    command.args(["cp", "--bandwidth", "2MiB", "file", "copy"]).env("HAUL_TEST_STATE_HANGS", &hangs);
    let running =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let began = std::time::Instant::now();
    // Its directory is there when its record is durable.
    let unfinished = || {
        fs::read_dir(bed.path(""))
            .unwrap()
            .flatten()
            .any(|found| found.file_name().to_string_lossy().starts_with(".haul-"))
    };
    while !unfinished() {
        assert!(began.elapsed().as_secs() < 60, "it does not begin");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fs::write(&hangs, b"").unwrap();
    let output = running.wait_with_output().unwrap();
    says(&output, 0, &["does not answer: what came of this is not kept there"]);
    assert!(bed.path("copy").exists() && stdout(&output).contains("done"), "{}", stdout(&output));
    fs::remove_file(hangs).unwrap();
    // The next run finds that it was not kept, and nothing to do.
    assert_eq!(code(&bed.haul(&["cp", "file", "copy"])), 0);
}
