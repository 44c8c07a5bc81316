//! The object log from the command line: every mechanism and method through kill and resume, and the log's own troubles.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use haul_crashfs::{CrashFs, Kind, Mount};
use haul_testkit::alone;
use rustix::io::Errno;
use serde_json::Value;

const MECHANISMS: [&str; 3] = ["file", "transaction", "universal"];
const METHODS: [&str; 6] = ["char", "int", "enc", "binary", "bit8", "bit64"];
const WRITERS: [&str; 2] = ["thread", "comm"];
const OBJECT_BYTES: usize = 64 << 10;
/// Objects of each of the files of [`Bed::dataset`].
const OBJECTS: [usize; 3] = [100, 60, 40];
const OBJECTS_ALL: u64 = 200;
/// What each of these tests types: many objects, few of them under way.
const TYPED: [&str; 9] =
    ["cp", "-r", "--json", "--object-size", "64KiB", "--bundle-below", "0", "--memory", "1MiB"];

struct Bed {
    directory: tempfile::TempDir,
    state: PathBuf,
}

impl Bed {
    fn new() -> Bed {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        Bed { directory, state }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Three files of many objects, under names that are not only text.
    fn dataset(&self) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        let source = self.path("source");
        fs::create_dir_all(&source).unwrap();
        let names: [&[u8]; 3] = [b"first", b"a\xff\nb", &[b'n'; 250]];
        for ((number, name), objects) in (1u64..).zip(names).zip(OBJECTS) {
            let mut state = number;
            let bytes: Vec<u8> = (0..objects * OBJECT_BYTES)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect();
            fs::write(source.join(std::ffi::OsStr::from_bytes(name)), bytes).unwrap();
        }
        source
    }

    fn command(&self) -> Command {
        let mut command = alone(env!("CARGO_BIN_EXE_haul"), self.directory.path());
        command.env("TMPDIR", self.path("tmp")).env("HAUL_STATE_DIR", &self.state);
        fs::create_dir_all(self.path("tmp")).unwrap();
        command
    }

    fn copy(&self, options: &[&str], from: &str, to: &str) -> Command {
        let mut command = self.command();
        command.args(TYPED).args(options).args([from, to]);
        command
    }

    /// Starts it, and kills it once `is_time` says so of its state directory.
    fn kill_when(&self, mut command: Command, is_time: impl Fn(&Path) -> bool) {
        let mut child = Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_time(&self.state) {
            assert!(child.0.try_wait().unwrap().is_none(), "it ended before it was killed");
            assert!(Instant::now() < deadline, "it is not time after a minute");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn is_copied(&self) -> bool {
        let output = Command::new("diff").arg("-r").arg(self.path("source")).arg(self.path("sink")).output();
        output.unwrap().status.success()
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All logs below a state directory.
fn logs(state: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for end in ["jobs", "far"] {
        let jobs = fs::read_dir(state.join(end)).into_iter().flatten().flatten();
        for job in jobs {
            let files = fs::read_dir(job.path().join("log")).into_iter().flatten().flatten();
            found.extend(files.map(|file| file.path()).filter(|path| path.extension().is_some()));
        }
    }
    found
}

/// Objects that the logs say are durable.
fn logged(bed: &Bed) -> u64 {
    logged_below(bed, &bed.state)
}

fn logged_below(bed: &Bed, state: &Path) -> u64 {
    let Some(log) = logs(state).pop() else { return 0 };
    let output = bed.command().args(["log", "show", "--json"]).arg(log.parent().unwrap()).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    told["entries"].as_array().into_iter().flatten().filter_map(|entry| entry["done_count"].as_u64()).sum()
}

fn events(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

/// Killed in the middle with one log, continued with another: nothing that was logged is sent again.
fn killed_and_continued(mechanism: &str, method: &str, writer: &str) {
    let bed = Bed::new();
    bed.dataset();
    let log = ["--log-mechanism", mechanism, "--log-method", method, "--log-writer", writer];
    let slow = [&log[..], &["--bandwidth", "6MiB"]].concat();
    let about = format!("{mechanism} {method} {writer}");
    bed.kill_when(bed.copy(&slow, "source", "sink"), |_| logged(&bed) >= OBJECTS_ALL / 4);
    let known = logged(&bed);
    assert!(known >= OBJECTS_ALL / 4, "{about}: {known}");
    assert!(logs(&bed.state)[0].file_name().unwrap().to_str().unwrap().starts_with(mechanism), "{about}");

    let output = bed.copy(&["--log-mechanism", "universal"], "source", "sink").output().unwrap();
    assert_eq!(code(&output), 0, "{about}: {}", stderr(&output));
    assert!(bed.is_copied(), "{about}");
    let told = events(&output).pop().unwrap();
    // Files that were complete at the kill are skipped as files, the others' objects by the log.
    let skipped = told["objects_skipped"].as_u64().unwrap();
    let complete: u64 = told["bytes_skipped"].as_u64().unwrap() / OBJECT_BYTES as u64;
    assert!(skipped.max(complete) >= known, "{about}: {known} were logged: {told}");
    assert!(told["objects_sent"].as_u64().unwrap() <= OBJECTS_ALL - known, "{about}: {known}: {told}");
    assert_eq!(logs(&bed.state), Vec::<PathBuf>::new(), "{about}: nothing is left of a log");
}

#[test]
fn every_log_lives_through_a_kill() {
    let cases: Vec<_> = MECHANISMS
        .into_iter()
        .flat_map(|mechanism| METHODS.into_iter().map(move |method| (mechanism, method)))
        .enumerate()
        .collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while let Some((number, (mechanism, method))) =
                    cases.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    killed_and_continued(mechanism, method, WRITERS[number % 2]);
                }
            });
        }
    });
}

#[test]
fn the_log_of_a_source_at_the_other_host_is_told_of_here() {
    let bed = Bed::new();
    bed.dataset();
    let haul = env!("CARGO_BIN_EXE_haul");
    let shell = format!("'{haul}' bench shell");
    let source = format!("localhost:{}", bed.path("source").display());
    let log = ["--log-mechanism", "file", "--log-method", "enc", "--log-writer", "comm"];
    let options = [&log[..], &["--ssh", &shell, "--haul-path", haul]].concat();
    let slow = [&options[..], &["--bandwidth", "6MiB"]].concat();
    bed.kill_when(bed.copy(&slow, &source, "sink"), |_| logged(&bed) >= OBJECTS_ALL / 4);
    let output = bed.copy(&options, &source, "sink").output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(bed.is_copied());
    let told = events(&output).pop().unwrap();
    assert!(told["objects_skipped"].as_u64().unwrap() >= OBJECTS_ALL / 8, "{told}");
    let log = &told["log"];
    assert_eq!(
        (&log["mechanism"], &log["method"], &log["writer"]),
        (&"file".into(), &"enc".into(), &"comm".into())
    );
    assert!(log["location"].as_str().unwrap().contains("/state/far/") && log["lost"].is_null(), "{log}");
    assert!(log["bytes_peak"].as_u64().unwrap() > 0, "{log}");
}

#[test]
fn without_a_log_a_killed_file_starts_again() {
    let bed = Bed::new();
    bed.dataset();
    let none = ["--log-mechanism", "none"];
    let slow = [&none[..], &["--bandwidth", "6MiB"]].concat();
    let unfinished = |_: &Path| {
        let files = fs::read_dir(bed.path("sink")).into_iter().flatten().flatten();
        let sizes = files.filter_map(|file| file.metadata().ok()).map(|found| found.len());
        sizes.sum::<u64>() > 40 * OBJECT_BYTES as u64
    };
    bed.kill_when(bed.copy(&slow, "source", "sink"), unfinished);
    assert_eq!(logs(&bed.state), Vec::<PathBuf>::new());
    let output = bed.copy(&none, "source", "sink").output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(bed.is_copied());
    let told = events(&output).pop().unwrap();
    assert_eq!((&told["objects_skipped"], &told["log"]["mechanism"]), (&0.into(), &"none".into()));
    let left: Vec<_> =
        fs::read_dir(bed.path("sink")).unwrap().flatten().map(|file| file.file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

/// Killed half-way, then run where something cannot be read, then as at first: what was logged of it counts.
fn goes_on_after_a_run_without_it(
    bed: &Bed,
    sources: &[&str],
    run: impl Fn(Command) -> Command,
    away: impl Fn(bool),
) {
    let copy = |options: &[&str]| {
        let mut command = bed.command();
        command.args(TYPED).args(options).args(sources).arg("sink");
        run(command)
    };
    bed.kill_when(copy(&["--bandwidth", "6MiB"]), |_| logged(bed) >= OBJECTS_ALL / 4);
    let known = logged(bed);
    away(true);
    let output = copy(&[]).output().unwrap();
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    away(false);
    let output = copy(&[]).output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let told = events(&output).pop().unwrap();
    // Files that were complete at the kill are skipped as files.
    let complete = told["bytes_skipped"].as_u64().unwrap() / OBJECT_BYTES as u64;
    assert!(complete >= known, "{known} were logged: {told}");
    assert_eq!(logs(&bed.state), Vec::<PathBuf>::new(), "nothing is left of a log");
}

#[test]
fn a_source_that_was_away_for_a_run_goes_on() {
    let bed = Bed::new();
    bed.dataset();
    for directory in ["other", "sink"] {
        fs::create_dir(bed.path(directory)).unwrap();
    }
    fs::write(bed.path("other/file"), b"content").unwrap();
    let away = |away: bool| {
        let (here, there) = (bed.path("source"), bed.path("unmounted"));
        let (from, to) = if away { (here, there) } else { (there, here) };
        fs::rename(from, to).unwrap();
    };
    goes_on_after_a_run_without_it(&bed, &["source", "other"], |command| command, away);
}

#[test]
fn a_directory_that_could_not_be_listed_for_a_run_goes_on() {
    let bed = Bed::new();
    bed.dataset();
    fs::create_dir(bed.path("outer")).unwrap();
    fs::rename(bed.path("source"), bed.path("outer/inner")).unwrap();
    let root = rustix::process::geteuid().is_root();
    if root {
        let owner = Command::new("chown").args(["-R", "65534"]).arg(bed.directory.path()).status();
        assert!(owner.unwrap().success());
    }
    // Root reads everything.
    let run = |command: Command| {
        if !root {
            return command;
        }
        let mut ordinary = alone("setpriv", bed.directory.path());
        ordinary
            .args(["--reuid", "65534", "--clear-groups"])
            .arg(command.get_program())
            .args(command.get_args());
        ordinary.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        fs::set_permissions(bed.path("tmp"), fs::Permissions::from_mode(0o777)).unwrap();
        ordinary
    };
    let away = |away: bool| {
        let mode = if away { 0 } else { 0o755 };
        fs::set_permissions(bed.path("outer/inner"), fs::Permissions::from_mode(mode)).unwrap();
    };
    goes_on_after_a_run_without_it(&bed, &["outer"], run, away);
}

#[test]
fn contradictions_are_usage_errors() {
    let bed = Bed::new();
    bed.dataset();
    for wrong in [
        &["--log-required", "--log-mechanism", "none"][..],
        &["--log-transaction-files", "0"],
        &["--log-method", "bit7"],
        &["--bandwidth", "0"],
    ] {
        let output = bed.copy(wrong, "source", "sink").output().unwrap();
        assert_eq!(code(&output), 2, "{wrong:?}: {}", stderr(&output));
        assert!(!bed.path("sink").exists());
    }
}

/// A state directory on a file system that can be told to fail.
fn failing_bed() -> (Bed, CrashFs, Mount) {
    let mut bed = Bed::new();
    let filesystem = CrashFs::new(1);
    let at = bed.path("mount");
    fs::create_dir(&at).unwrap();
    let mount = Mount::new(&filesystem, &at).unwrap();
    bed.state = at.join("state");
    fs::create_dir(&bed.state).unwrap();
    bed.dataset();
    (bed, filesystem, mount)
}

#[test]
fn a_log_that_cannot_be_written_any_more_is_told_of_at_once_and_the_transfer_goes_on() {
    for errno in [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::ACCESS, Errno::IO] {
        let (bed, filesystem, _mount) = failing_bed();
        // A sink has state too: here its own.
        let haul = env!("CARGO_BIN_EXE_haul");
        let shell = format!("env HAUL_STATE_DIR='{}' '{haul}' bench shell", bed.path("far-state").display());
        let far = ["--ssh", &shell, "--haul-path", haul, "--bandwidth", "6MiB"];
        let sink = format!("localhost:{}", bed.path("sink").display());
        let mut running = bed.copy(&far, "source", &sink);
        let child = running.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while logged(&bed) == 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        filesystem.faults().fail(Kind::Write, 0, errno, false);
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 0, "{errno}: {}", stderr(&output));
        assert!(bed.is_copied(), "{errno}");
        let events = events(&output);
        let lost = events.iter().position(|event| event["event"] == "log_lost").expect("it is told");
        let later = events[lost..].iter().filter(|event| event["event"] == "progress").count();
        assert!(later > 0, "{errno}: told only at the end: {events:?}");
        let summary = events.last().unwrap();
        assert_eq!(summary["state"], "done");
        assert!(summary["log"]["lost"].is_string(), "{errno}: {summary}");
    }
}

#[test]
fn a_required_log_that_is_lost_ends_the_transfer_and_what_was_logged_counts() {
    let (bed, filesystem, _mount) = failing_bed();
    let mut running = bed.copy(&["--bandwidth", "6MiB", "--log-required"], "source", "sink");
    let child = running.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while logged(&bed) < OBJECTS_ALL / 8 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    filesystem.faults().fail(Kind::Write, 0, Errno::NOSPC, false);
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let told = events(&output).pop().unwrap();
    assert_eq!(told["error"]["code"], "log-unwritable", "{told}");
    assert!(stderr(&output).contains("log"), "{}", stderr(&output));
    filesystem.faults().clear();
    let output = bed.copy(&["--log-required"], "source", "sink").output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(bed.is_copied());
    assert!(events(&output).pop().unwrap()["objects_skipped"].as_u64().unwrap() >= OBJECTS_ALL / 8);
}

#[test]
fn a_state_directory_that_cannot_be_written_does_not_stop_a_transfer_unless_the_log_is_required() {
    let (bed, filesystem, _mount) = failing_bed();
    for kind in [Kind::Make, Kind::Write] {
        filesystem.faults().clear();
        filesystem.faults().fail(kind, 0, Errno::NOSPC, false);
        let refused = bed.copy(&["--log-required"], "source", "sink").output().unwrap();
        assert_eq!(code(&refused), 1, "{kind}: {}", stderr(&refused));
        let output = bed.copy(&[], "source", "sink").output().unwrap();
        assert_eq!(code(&output), 0, "{kind}: {}", stderr(&output));
        assert!(bed.is_copied());
        let events = events(&output);
        assert!(events.iter().any(|event| event["event"] == "log_lost"), "{kind}: {events:?}");
        let log = &events.last().unwrap()["log"];
        assert!(log["lost"].as_str().unwrap().contains("haul-state-"), "{kind}: {log}");
        fs::remove_dir_all(bed.path("sink")).unwrap();
    }
}

#[test]
fn what_was_known_comes_along_when_state_has_to_be_kept_elsewhere() {
    let (bed, filesystem, _mount) = failing_bed();
    bed.kill_when(bed.copy(&["--bandwidth", "6MiB"], "source", "sink"), |_| logged(&bed) >= OBJECTS_ALL / 4);
    let known = logged(&bed);
    filesystem.faults().fail(Kind::Write, 0, Errno::NOSPC, false);
    let output = bed.copy(&[], "source", "sink").output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(bed.is_copied());
    let told = events(&output).pop().unwrap();
    assert!(told["objects_sent"].as_u64().unwrap() <= OBJECTS_ALL - known, "{known} were known: {told}");
}

#[test]
fn what_was_known_comes_back_when_state_can_be_kept_in_its_place_again() {
    let (bed, filesystem, _mount) = failing_bed();
    let user = rustix::process::geteuid().as_raw();
    let elsewhere = bed.path("tmp").join(format!("haul-state-{user}"));
    let known = || logged_below(&bed, &elsewhere);
    filesystem.faults().fail(Kind::Write, 0, Errno::NOSPC, false);
    let paced = || bed.copy(&["--bandwidth", "6MiB"], "source", "sink");
    bed.kill_when(paced(), |_| {
        if known() < OBJECTS_ALL / 4 {
            return false;
        }
        filesystem.faults().clear();
        let second = bed.copy(&[], "source", "sink").output().unwrap();
        assert_eq!(code(&second), 1, "one is at work: {}", stderr(&second));
        assert!(stderr(&second).contains("already running"), "{}", stderr(&second));
        true
    });
    let known = known();
    let left_elsewhere = || fs::read_dir(elsewhere.join("kin")).into_iter().flatten().count();
    // What it made meanwhile is not taken for a directory that things go into.
    bed.kill_when(paced(), |_| logs(&elsewhere).is_empty() && logged(&bed) >= known);
    let output = bed.copy(&[], "source", "sink").output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(left_elsewhere(), 0, "nor is anything left of it there");
    assert!(bed.is_copied());
    let told = events(&output).pop().unwrap();
    assert!(told["objects_sent"].as_u64().unwrap() <= OBJECTS_ALL - known, "{known} were known: {told}");
}

#[test]
fn the_log_of_a_source_at_the_other_host_comes_back_too() {
    let (bed, filesystem, _mount) = failing_bed();
    let user = rustix::process::geteuid().as_raw();
    let elsewhere = bed.path("tmp").join(format!("haul-state-{user}"));
    let haul = env!("CARGO_BIN_EXE_haul");
    let shell = format!("env HAUL_STATE_DIR='{}' '{haul}' bench shell", bed.state.display());
    let source = format!("localhost:{}", bed.path("source").display());
    let pull = |options: &[&str]| {
        let options = [&["--ssh", &shell, "--haul-path", haul], options].concat();
        let mut command = bed.copy(&options, &source, "sink");
        command.env("HAUL_STATE_DIR", bed.path("near-state"));
        command
    };
    filesystem.faults().fail(Kind::Write, 0, Errno::NOSPC, false);
    let known = || logged_below(&bed, &elsewhere);
    bed.kill_when(pull(&["--bandwidth", "6MiB"]), |_| known() >= OBJECTS_ALL / 4);
    let known = known();
    filesystem.faults().clear();
    // It comes back with a run that finds nothing to copy, and stays.
    fs::rename(bed.path("source"), bed.path("away")).unwrap();
    assert_eq!(code(&pull(&[]).output().unwrap()), 3);
    fs::rename(bed.path("away"), bed.path("source")).unwrap();
    let output = pull(&[]).output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(bed.is_copied());
    let told = events(&output).pop().unwrap();
    assert!(told["objects_sent"].as_u64().unwrap() <= OBJECTS_ALL - known, "{known} were known: {told}");
    assert_eq!(fs::read_dir(elsewhere.join("far")).unwrap().count(), 0, "only one place has it");
}

#[test]
fn a_transfer_without_a_log_here_comes_back_too() {
    let (bed, filesystem, _mount) = failing_bed();
    let user = rustix::process::geteuid().as_raw();
    let elsewhere = bed.path("tmp").join(format!("haul-state-{user}/jobs"));
    let haul = env!("CARGO_BIN_EXE_haul");
    let shell = format!("env HAUL_STATE_DIR='{}' '{haul}' bench shell", bed.path("far-state").display());
    let source = format!("localhost:{}", bed.path("source").display());
    let pull = |rate| {
        let options = ["--ssh", &shell, "--haul-path", haul, "--bandwidth", rate];
        bed.copy(&options, &source, "sink")
    };
    filesystem.faults().fail(Kind::Write, 0, Errno::NOSPC, false);
    bed.kill_when(pull("6MiB"), |_| fs::read_dir(bed.path("sink")).is_ok_and(|names| names.count() > 0));
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1);
    filesystem.faults().clear();
    let output = pull("1GiB").output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(bed.is_copied());
    assert!(!stderr(&output).contains("for now"), "{}", stderr(&output));
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "only one place has it");
}

#[test]
fn a_transfer_whose_record_cannot_be_read_does_not_decide_again_what_dest_means() {
    let bed = Bed::new();
    bed.dataset();
    let output = bed.copy(&[], "source", "sink").output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let job = fs::read_dir(bed.state.join("jobs")).unwrap().next().unwrap().unwrap().path();
    let record = job.join("job.json");
    let sound = fs::read_to_string(&record).unwrap();
    let newer = sound.replace("\"version\": 1", "\"version\": 2");
    for damaged in ["", &sound[..sound.len() / 2], &newer] {
        fs::write(&record, damaged).unwrap();
        let output = bed.copy(&[], "source", "sink").output().unwrap();
        assert_eq!(code(&output), 1, "{}", stderr(&output));
        assert!(stderr(&output).contains("job.json: what is kept of this transfer cannot be read"));
        assert!(bed.is_copied(), "nothing went into it");
        assert_eq!(fs::read_to_string(&record).unwrap(), damaged);
    }
    fs::write(&record, sound).unwrap();
    assert_eq!(code(&bed.copy(&[], "source", "sink").output().unwrap()), 0);
    assert!(bed.is_copied());
}

#[test]
fn somebody_elses_directory_is_not_used_for_state() {
    let (bed, filesystem, _mount) = failing_bed();
    let name = format!("haul-state-{}", rustix::process::geteuid().as_raw());
    let planted = bed.path("tmp").join(name);
    fs::create_dir_all(&planted).unwrap();
    fs::set_permissions(&planted, fs::Permissions::from_mode(0o777)).unwrap();
    filesystem.faults().fail(Kind::Make, 0, Errno::ROFS, false);
    let output = bed.copy(&[], "source", "sink").output().unwrap();
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(fs::read_dir(&planted).unwrap().next().is_none());
}

#[test]
fn the_rate_is_kept_whatever_the_streams() {
    let bed = Bed::new();
    bed.dataset();
    let started = Instant::now();
    let output = bed.copy(&["--bandwidth", "8MiB", "--streams", "4"], "source", "sink").output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    // 12.5 MiB; the bucket lets 50 ms pass at once.
    let seconds = started.elapsed().as_secs_f64();
    assert!(seconds > 1.45, "{seconds}");
    assert!(bed.is_copied());
}

/// It takes as long as its storage takes for it, and nothing is under way.
#[test]
fn who_waits_for_the_log_to_be_read_can_interrupt_that() {
    let bed = Bed::new();
    bed.dataset();
    bed.kill_when(bed.copy(&["--bandwidth", "6MiB"], "source", "sink"), |_| logged(&bed) > 0);
    let log = logs(&bed.state).pop().unwrap();
    let filled = fs::File::options().write(true).open(&log).unwrap();
    filled.set_len(1 << 40).unwrap();
    let mut command = bed.copy(&[], "source", "sink");
    let mut runs = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    std::thread::sleep(Duration::from_secs(1));
    let pid = rustix::process::Pid::from_child(&runs.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let deadline = Instant::now() + Duration::from_secs(40);
    let ended = loop {
        match runs.0.try_wait().unwrap() {
            Some(ended) => break ended,
            None => assert!(Instant::now() < deadline, "it reads on"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let mut said = String::new();
    runs.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let last: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(ended.code(), Some(130), "{said}");
    assert_eq!((&last["event"], &last["state"]), (&"summary".into(), &"interrupted".into()), "{said}");
}
