//! What hangs on one of several storage targets is named, and nothing else; the command ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use haul_stripefs::{Mount, Options, StripeFs, control};
use haul_testkit::alone;

/// Much longer than any of it takes, `--hang-after` several times included.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two targets, each with a directory of the source and of the destination.
struct Bed {
    directory: tempfile::TempDir,
}

impl Bed {
    /// `hung` files that begin with `hung` on the one target, and `sound` files on each.
    fn new(hung: usize, sound: usize, bytes: usize) -> Bed {
        let bed = Bed { directory: tempfile::tempdir().unwrap() };
        for target in ["one", "two"] {
            fs::create_dir_all(bed.path("source").join(target)).unwrap();
            for number in 0..sound {
                fs::write(bed.path("source").join(target).join(format!("sound-{number}")), vec![7; bytes])
                    .unwrap();
            }
        }
        for number in 0..hung {
            fs::write(bed.path("source/one").join(format!("hung-{number}")), vec![8; bytes]).unwrap();
        }
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join(name)
    }

    /// Copies; what lies below `at` is on two targets, and at one of them `variable` hangs.
    fn copy(&self, at: &str, variable: &str, options: &[&str]) -> Output {
        let layout = self.path("layout");
        let lines = ["one", "two"].map(|name| format!("{} - {name}\n", self.path(at).join(name).display()));
        fs::write(&layout, lines.concat()).unwrap();
        alone("timeout", self.directory.path())
            .arg(PATIENCE.as_secs().to_string())
            .arg(env!("CARGO_BIN_EXE_haul"))
            .env(variable, "hung")
            .args(["cp", "-r", "--io-threads", "4", "--hang-after", "3", "--layout-file"])
            .arg(&layout)
            .args(options)
            .arg(self.path("source"))
            .arg(self.path("sink"))
            .output()
            .unwrap()
    }

    /// Those that hang are named, each once, and all others are there.
    fn only_what_hangs_failed(&self, output: &Output, hung: usize, sound: usize) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        for target in ["one", "two"] {
            for number in 0..sound {
                let name = format!("{target}/sound-{number}");
                let there = self.path("sink").join(&name).exists();
                assert!(there && !said.contains(&format!("{name}:")), "{name} failed: {said}");
            }
        }
        for number in 0..hung {
            let name = format!("one/hung-{number}:");
            assert_eq!(said.matches(&name).count(), 1, "{name} {said}");
        }
    }
}

#[test]
fn files_of_which_nobody_says_whether_they_changed() {
    let (hung, sound) = (40, 60);
    let bed = Bed::new(hung, sound, 100_000);
    let output = bed.copy("source", "HAUL_TEST_SOURCE_LOOK_HANGS", &["--bundle-below", "0"]);
    bed.only_what_hangs_failed(&output, hung, sound);
}

/// All of a bundle takes longer than what may hang for so long, and none of its files does.
#[test]
fn small_files_that_take_their_time_one_after_the_other_do_not_hang() {
    let bed = Bed::new(0, 0, 0);
    let targets = ["target-0", "target-1"].map(|name| bed.path(name));
    let filesystem = StripeFs::open(&Options::new(targets.to_vec(), bed.path("mds"))).unwrap();
    fs::create_dir(bed.path("striped")).unwrap();
    let _mount = Mount::new(&filesystem, &bed.path("striped")).expect("FUSE can be mounted");
    fs::create_dir(bed.path("striped/source")).unwrap();
    for number in 0..150 {
        fs::write(bed.path("striped/source").join(number.to_string()), vec![7; 2000]).unwrap();
    }
    control::execute(&filesystem, "target all latency=40ms").unwrap();
    for (source, sink) in [("striped/source", "read"), ("read", "striped/written")] {
        let output = alone("timeout", bed.directory.path())
            .arg(PATIENCE.as_secs().to_string())
            .arg(env!("CARGO_BIN_EXE_haul"))
            .args(["cp", "-r", "--io-threads", "4", "--hang-after", "1"])
            .args([bed.path(source), bed.path(sink)])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{sink}: {said}");
        assert_eq!(fs::read_dir(bed.path(sink)).unwrap().count(), 150);
    }
}

/// Bundles that no thread is left for are given up, too.
#[test]
fn where_all_targets_of_the_destination_hang_the_copy_ends() {
    let bed = Bed::new(0, 0, 0);
    let targets: Vec<_> = (0..6).map(|number| bed.path(&format!("target-{number}"))).collect();
    let filesystem = StripeFs::open(&Options::new(targets, bed.path("mds"))).unwrap();
    fs::create_dir(bed.path("striped")).unwrap();
    let _mount = Mount::new(&filesystem, &bed.path("striped")).expect("FUSE can be mounted");
    for number in 0..12 {
        fs::write(bed.path("source/one").join(format!("large-{number}")), vec![7; 3_000_000]).unwrap();
    }
    for number in 0..300 {
        fs::write(bed.path("source/two").join(number.to_string()), vec![7; 3000]).unwrap();
    }
    control::execute(&filesystem, "target all hang").unwrap();
    let mut child = alone("timeout", bed.directory.path())
        .arg(PATIENCE.as_secs().to_string())
        .arg(env!("CARGO_BIN_EXE_haul"))
        .args([
            "cp",
            "-r",
            "--io-threads",
            "1",
            "--hang-after",
            "1",
            "--memory",
            "16MiB",
            "--object-size",
            "1MiB",
        ])
        .args([bed.path("source"), bed.path("striped/sink")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A process whose threads wait for a file system that does not answer cannot end, and keeps its output open.
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
    let ends = |line: String| line.contains("this process ends when it does");
    let mut ended = false;
    while !ended && let Ok(line) = told.recv_timeout(PATIENCE / 2) {
        ended = ends(line);
    }
    control::execute(&filesystem, "target all ok").unwrap();
    let code = child.wait().unwrap().code();
    assert!(ended && code.is_some_and(|code| code != 0 && code != 124), "{code:?}");
}

#[test]
fn small_files_that_are_never_made() {
    let (hung, sound) = (5, 500);
    let bed = Bed::new(hung, sound, 2000);
    // Several bundles.
    let output =
        bed.copy("sink", "HAUL_TEST_SINK_MAKE_HANGS", &["--object-size", "64KiB", "--bundle-below", "64KiB"]);
    bed.only_what_hangs_failed(&output, hung, sound);
}

/// Each of them keeps a slot: that cannot go on for ever.
#[test]
fn where_nearly_nothing_can_be_made_the_copy_ends() {
    let bed = Bed::new(100, 0, 2000);
    let options = ["--object-size", "64KiB", "--bundle-below", "64KiB", "--memory", "512KiB"];
    let output = bed.copy("sink", "HAUL_TEST_SINK_MAKE_HANGS", &options);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("half of the buffers"), "{said}");
}

/// A push whose streams never read what was left in files; the far end runs behind `before`.
fn push_that_hangs(bed: &Bed, before: &str) -> Command {
    let haul = env!("CARGO_BIN_EXE_haul");
    let mut command = alone("timeout", bed.directory.path());
    command
        .arg(PATIENCE.as_secs().to_string())
        .arg(haul)
        .env("HAUL_TEST_STREAM_HANGS", "yes")
        .args(["cp", "-r", "--plain", "--reconnect", "2", "--haul-path", haul])
        .args(["--ssh", &format!("{before} '{haul}' bench shell")])
        .arg(bed.path("source"))
        .arg(format!("localhost:{}", bed.path("sink").display()));
    command
}

/// It holds a slot of a connection that is lost: without it there is no other connection.
#[test]
fn a_stream_that_waits_for_storage_when_its_connection_is_lost_ends_the_transfer() {
    let bed = Bed::new(0, 3, 2_000_000);
    // The far end is killed in the middle.
    let output = push_that_hangs(&bed, "timeout -s KILL 3").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code().is_some_and(|code| code != 124), "it waits for ever: {said}");
    assert!(said.contains("of the lost connection waits for storage"), "{said}");
}

#[test]
fn a_stream_that_waits_for_storage_does_not_keep_a_command_that_is_interrupted() {
    let bed = Bed::new(0, 3, 2_000_000);
    let run = push_that_hangs(&bed, "").stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    // `timeout` passes it on.
    let pid = rustix::process::Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("interrupted") && said.contains("wait"), "{said}");
}
