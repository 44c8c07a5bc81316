//! `haul cp` within one host: contents go from file to file, and everything else is as between hosts.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haul_crashfs::{CrashFs, Mount};
use haul_testkit::alone;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use serde_json::Value;

const MIB: usize = 1 << 20;

/// What is copied, and where to.
struct Bed {
    from: tempfile::TempDir,
    to: tempfile::TempDir,
}

impl Bed {
    /// On one file system, which copies by itself.
    fn together() -> Bed {
        Bed { from: tempfile::tempdir().unwrap(), to: tempfile::tempdir().unwrap() }
    }

    /// In memory and on disk: no kernel copies from one to the other.
    fn apart() -> Bed {
        let from = tempfile::tempdir_in("/dev/shm").unwrap();
        let to = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let device = |path: &Path| fs::metadata(path).unwrap().dev();
        assert_ne!(device(from.path()), device(to.path()));
        Bed { from, to }
    }

    fn from(&self, name: &str) -> PathBuf {
        self.from.path().join(name)
    }

    fn to(&self, name: &str) -> PathBuf {
        self.to.path().join(name)
    }

    fn command(&self, options: &[&str], name: &str) -> Command {
        let mut command = alone(env!("CARGO_BIN_EXE_haul"), self.to.path());
        command.args(["cp", "-r", "--json", "--verbose"]).args(options);
        command.arg(self.from(name)).arg(self.to("there"));
        command
    }

    fn copy(&self, options: &[&str], name: &str) -> (Option<i32>, Vec<Value>) {
        let Output { stdout, stderr, status } = self.command(options, name).output().unwrap();
        let text = String::from_utf8(stdout).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).expect(line));
        let events: Vec<Value> = lines.collect();
        assert!(!events.is_empty(), "{}", String::from_utf8_lossy(&stderr));
        (status.code(), events)
    }
}

/// What is told of the one file that ends so.
fn told<'a>(events: &'a [Value], name: &str) -> &'a Value {
    let is_it = |event: &&Value| {
        event["event"] == "file" && event["path"].as_str().is_some_and(|path| path.ends_with(name))
    };
    events.iter().find(is_it).unwrap_or_else(|| panic!("nothing is told of {name}: {events:?}"))
}

fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251 + at / 4096) as u8 ^ seed).collect()
}

#[test]
fn files_of_all_sizes_arrive_on_the_same_file_system_and_on_another() {
    let sizes = [0, 1, 4096, 128 << 10, (128 << 10) + 1, MIB, 4 * MIB, 4 * MIB + 1, 33 * MIB + 5];
    for bed in [Bed::together(), Bed::apart()] {
        fs::create_dir_all(bed.from("tree/below")).unwrap();
        for (number, size) in sizes.into_iter().enumerate() {
            let name = if size < MIB { format!("tree/below/{size}") } else { format!("tree/{size}") };
            fs::write(bed.from(&name), content(number as u8, size)).unwrap();
        }
        let (code, events) = bed.copy(&[], "tree");
        let summary = events.last().unwrap();
        assert_eq!((code, &summary["objects_repaired"]), (Some(0), &0.into()), "{summary}");
        assert_eq!(summary["bytes_sent"], sizes.iter().sum::<usize>(), "{summary}");
        for (number, size) in sizes.into_iter().enumerate() {
            let name = if size < MIB { format!("below/{size}") } else { size.to_string() };
            let (expected, path) = (content(number as u8, size), bed.to("there").join(&name));
            assert!(fs::read(&path).unwrap() == expected, "{name}");
            if size > 4 * MIB {
                let hash = blake3::hash(&expected).to_string();
                assert_eq!(told(&events, &name)["hash"], hash, "{name}");
            }
            let mtime = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
            assert_eq!(mtime(&path), mtime(&bed.from("tree").join(&name)), "{name}");
        }
    }
}

#[test]
fn holes_stay_holes_and_cost_no_time() {
    for bed in [Bed::together(), Bed::apart()] {
        let source = fs::File::create(bed.from("sparse")).unwrap();
        source.set_len(512 * MIB as u64).unwrap();
        for at in [5 * MIB, 300 * MIB + 4096] {
            source.write_all_at(&content(3, 100_000), at as u64).unwrap();
        }
        let (code, events) = bed.copy(&[], "sparse");
        assert_eq!(code, Some(0), "{events:?}");
        let (from, to) = (fs::read(bed.from("sparse")).unwrap(), fs::read(bed.to("there")).unwrap());
        assert!(from == to);
        assert_eq!(told(&events, "")["hash"], blake3::hash(&to).to_string());
        let found = fs::metadata(bed.to("there")).unwrap();
        assert!(found.blocks() * 512 < 2 * MIB as u64, "{} blocks", found.blocks());
    }
}

#[test]
fn a_killed_copy_goes_on_where_it_was() {
    const SIZE: usize = 384 * MIB;
    let bed = Bed::together();
    let bytes = content(7, SIZE);
    fs::write(bed.from("large"), &bytes).unwrap();
    // It may be done before it is killed: then once more.
    for round in 0.. {
        assert!(round < 40, "it was never killed in time");
        let mut child = bed.command(&["--object-size", "256KiB"], "large");
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The first record: something is durable.
        let jobs = bed.to("home/.local/state/haul/jobs");
        let logged = || {
            let logs = fs::read_dir(&jobs).into_iter().flatten().flatten();
            logs.flat_map(|job| fs::read_dir(job.path().join("log")).into_iter().flatten().flatten())
                .any(|log| log.metadata().is_ok_and(|log| log.len() > 0))
        };
        let started = Instant::now();
        // It stands still while the log is looked at: a copy within one host does not take long.
        let pid = Pid::from_child(&child);
        while child.try_wait().unwrap().is_none() && started.elapsed() < Duration::from_secs(60) {
            kill_process(pid, Signal::STOP).unwrap();
            if logged() {
                break;
            }
            kill_process(pid, Signal::CONT).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        // There is a log; when there is something in it depends on the machine.
        if child.try_wait().unwrap().is_none() {
            kill_process(pid, Signal::CONT).unwrap();
        }
        std::thread::sleep(Duration::from_millis(10 * (round % 20)));
        child.kill().unwrap();
        child.wait().unwrap();
        let killed = !bed.to("there").exists();
        let (code, events) = bed.copy(&["--object-size", "256KiB"], "large");
        assert_eq!(code, Some(0), "{events:?}");
        assert!(fs::read(bed.to("there")).unwrap() == bytes);
        let summary = events.last().unwrap();
        if killed && summary["objects_skipped"].as_u64().unwrap() > 0 {
            assert_eq!(told(&events, "")["hash"], blake3::hash(&bytes).to_string());
            let names = || fs::read_dir(bed.to.path()).unwrap().flatten().map(|entry| entry.file_name());
            assert!(names().all(|name| !name.to_string_lossy().starts_with(".haul-")), "{:?}", names());
            return;
        }
        fs::remove_file(bed.to("there")).unwrap();
        fs::remove_dir_all(bed.to("home")).unwrap();
    }
}

#[test]
fn a_file_that_changes_meanwhile_arrives_as_it_is_in_the_end_or_is_named() {
    for (bed, size) in [(Bed::together(), 64 * MIB), (Bed::apart(), 64 * MIB), (Bed::together(), 3 * MIB)] {
        fs::create_dir(bed.from("tree")).unwrap();
        let path = bed.from("tree/file");
        fs::write(&path, content(1, size)).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        // Each round writes its number at all these places, one after the other, while a copy may be at any of them.
        let places = || (0..64).map(|mark| mark * (size / 64));
        let write = |round: u64| {
            places().for_each(|at| file.write_all_at(&round.to_le_bytes(), at as u64).unwrap());
        };
        write(0);
        let done = AtomicBool::new(false);
        let (code, events) = std::thread::scope(|scope| {
            scope.spawn(|| {
                let until = Instant::now() + Duration::from_millis(700);
                for round in 1.. {
                    if done.load(Ordering::Relaxed) || Instant::now() > until {
                        return;
                    }
                    write(round);
                    // What has just been written is not read yet.
                    std::thread::sleep(Duration::from_millis(45));
                }
            });
            let ended = bed.copy(&[], "tree");
            done.store(true, Ordering::Relaxed);
            ended
        });
        let there = bed.to("there/file");
        match code {
            Some(0) => {
                let arrived = fs::read(&there).unwrap();
                if size > 4 * MIB {
                    assert_eq!(told(&events, "file")["hash"], blake3::hash(&arrived).to_string());
                }
                // As it was at some moment.
                let round = |at: usize| u64::from_le_bytes(arrived[at..at + 8].try_into().unwrap());
                let rounds: Vec<u64> = places().rev().map(round).collect();
                assert!(rounds.is_sorted() && rounds[63] - rounds[0] <= 1, "{rounds:?}");
            }
            Some(3) => {
                assert!(!there.exists());
                let failed = events.iter().find(|event| event["event"] == "failed").unwrap();
                assert_eq!(failed["code"], "source-changed", "{failed}");
            }
            other => panic!("{other:?}: {events:?}"),
        }
    }
}

#[test]
fn files_that_may_not_be_read_are_named_and_none_of_them_counts_as_sent() {
    // What this thread starts from here on may not read everything, even as root.
    for privilege in [CapabilitySet::DAC_OVERRIDE, CapabilitySet::DAC_READ_SEARCH] {
        let _ = remove_capability_from_bounding_set(privilege);
    }
    let bed = Bed::together();
    fs::create_dir(bed.from("tree")).unwrap();
    let closed = [("small", 10), ("large", 5 * MIB)];
    for (name, size) in closed.into_iter().chain([("open", 10)]) {
        fs::write(bed.from("tree").join(name), content(1, size)).unwrap();
    }
    for (name, _) in closed {
        fs::set_permissions(bed.from("tree").join(name), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let (code, events) = bed.copy(&[], "tree");
    assert_eq!(code, Some(3), "{events:?}");
    let failed = events.iter().filter(|event| event["event"] == "failed");
    let mut failed: Vec<_> = failed.map(|event| event["path"].as_str().unwrap()).collect();
    failed.sort_unstable();
    assert!(failed.len() == 2 && failed[0].ends_with("large") && failed[1].ends_with("small"), "{failed:?}");
    let summary = events.last().unwrap();
    assert_eq!((&summary["files_done"], &summary["objects_repaired"]), (&1.into(), &0.into()), "{summary}");
    // Small ones that cannot be read are not seen to be so before they are lent.
    assert_eq!((&summary["bytes_sent"], &summary["objects_sent"]), (&10.into(), &1.into()), "{summary}");
    let profile = events.iter().find(|event| event["event"] == "profile").unwrap();
    let read = profile["source"]["stages"]["read"]["bytes"].as_u64();
    assert_eq!(read.unwrap_or(0), 0, "{profile}");
    assert_eq!(fs::read(bed.to("there/open")).unwrap(), content(1, 10));
}

/// XFS in a file, on a loop device.
struct Xfs {
    at: PathBuf,
    _directory: tempfile::TempDir,
}

impl Xfs {
    /// `None` where none can be mounted, which is told.
    fn make() -> Option<Xfs> {
        if !rustix::process::geteuid().is_root() {
            haul_testkit::lacks("root, to mount an XFS");
            return None;
        }
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (image, at) = (directory.path().join("image"), directory.path().join("mount"));
        fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
        fs::create_dir(&at).unwrap();
        let made = Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(&image).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mounted = Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at).output().unwrap();
        if !mounted.status.success() {
            haul_testkit::lacks(&format!("loop devices: {}", String::from_utf8_lossy(&mounted.stderr)));
            return None;
        }
        Some(Xfs { at, _directory: directory })
    }

    /// Bytes that are taken.
    fn used(&self) -> u64 {
        rustix::fs::syncfs(fs::File::open(&self.at).unwrap()).unwrap();
        let status = rustix::fs::statvfs(&self.at).unwrap();
        (status.f_blocks - status.f_bfree) * status.f_frsize
    }
}

impl Drop for Xfs {
    fn drop(&mut self) {
        // Where that fails the directory stays, which is all that can be done about it here.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

#[test]
fn a_copy_shares_its_blocks_where_the_file_system_can() {
    let Some(xfs) = Xfs::make() else { return };
    let within = || tempfile::tempdir_in(&xfs.at).unwrap();
    let bed = Bed { from: within(), to: within() };
    fs::create_dir(bed.from("tree")).unwrap();
    let (large, small) = (content(1, 64 * MIB + 5), content(2, MIB));
    fs::write(bed.from("tree/large"), &large).unwrap();
    fs::write(bed.from("tree/small"), &small).unwrap();
    for (options, hashed) in [(&[][..], true), (&["--hash", "none"], false)] {
        let before = xfs.used();
        let (code, events) = bed.copy(options, "tree");
        assert_eq!(code, Some(0), "{events:?}");
        let taken = xfs.used().saturating_sub(before);
        assert!(taken < 8 << 20, "{taken} bytes are taken for 64 MiB that could be shared");
        assert!(fs::read(bed.to("there/large")).unwrap() == large);
        assert!(fs::read(bed.to("there/small")).unwrap() == small);
        if hashed {
            assert_eq!(told(&events, "large")["hash"], blake3::hash(&large).to_string());
        }
        // What is written to one is not in the other.
        let copy = fs::File::options().write(true).open(bed.to("there/large")).unwrap();
        copy.write_all_at(b"another", 1 << 20).unwrap();
        assert!(fs::read(bed.from("tree/large")).unwrap() == large);
        fs::remove_dir_all(bed.to("there")).unwrap();
    }
}

#[test]
fn a_limit_of_the_rate_holds_also_here() {
    let bed = Bed::together();
    fs::write(bed.from("file"), content(1, 8 * MIB)).unwrap();
    let started = Instant::now();
    let (code, _) = bed.copy(&["--bandwidth", "8MiB"], "file");
    assert_eq!(code, Some(0));
    assert!(started.elapsed() > Duration::from_millis(500), "{:?}", started.elapsed());
}

/// It has its whole length from the start, and what is written into it stays in it, also where it goes on with what an earlier run has
/// left.
#[test]
fn holes_stay_holes_where_none_can_be_made_in_what_is_there() {
    for is_killed in [false, true] {
        let bed = Bed::together();
        let from = fs::File::create(bed.from("sparse")).unwrap();
        from.set_len(96 * MIB as u64).unwrap();
        for at in [0, 50] {
            from.write_all_at(&vec![7; MIB], at * MIB as u64).unwrap();
        }
        let filesystem = CrashFs::new(1);
        let _mount = Mount::new(&filesystem, bed.to.path()).unwrap();
        let state = tempfile::tempdir().unwrap();
        let command = |options: &[&str]| {
            let mut command = bed.command(&[&["--object-size", "8MiB"], options].concat(), "sparse");
            command.env("HAUL_STATE_DIR", state.path());
            command
        };
        if is_killed {
            let mut child = command(&["--bandwidth", "16MiB"]).stderr(Stdio::null()).spawn().unwrap();
            let began = Instant::now();
            while filesystem.statistics().bytes_used < MIB as u64 / 2 {
                assert!(began.elapsed() < Duration::from_secs(30) && child.try_wait().unwrap().is_none());
                std::thread::sleep(Duration::from_millis(2));
            }
            // Until objects are durable: else there is nothing to go on with.
            std::thread::sleep(Duration::from_millis(2500));
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(!bed.to("there").exists(), "it was faster");
        }
        // What is paced goes through buffers, and fills holes.
        let before = filesystem.statistics().bytes_used;
        let output = command(&[]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let told = String::from_utf8(output.stdout).unwrap();
        let summary: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
        assert_eq!(summary["bytes_skipped"].as_u64() > Some(0), is_killed, "{summary}");
        assert!(fs::read(bed.from("sparse")).unwrap() == fs::read(bed.to("there")).unwrap());
        let used = filesystem.statistics().bytes_used.saturating_sub(before);
        assert!(used < 6 * MIB as u64, "{used} bytes more, killed: {is_killed}");
    }
}

/// As where somebody collects links to files in one directory, and copies them to where the files are.
#[test]
fn a_symlink_does_not_take_the_place_of_the_file_that_it_leads_to_where_it_is() {
    let bed = Bed::together();
    let way = |name: &str| bed.from.path().join(name);
    for directory in ["run/day/links", "store", "data"] {
        fs::create_dir_all(way(directory)).unwrap();
    }
    for (file, link, target) in [
        ("store/far", "run/day/links/far", "../../../store/far"),
        ("data/alone", "alone", "data/alone"),
        ("raw", "data/raw", "../raw"),
    ] {
        fs::write(way(file), b"precious").unwrap();
        symlink(target, way(link)).unwrap();
    }
    symlink("nowhere", way("run/day/links/dangling")).unwrap();
    for (source, destination, file) in [
        ("run/day/links/.", "store", "store/far"),
        ("alone", "data/alone", "data/alone"),
        ("data/raw", ".", "raw"),
    ] {
        let mut command = alone(env!("CARGO_BIN_EXE_haul"), bed.to.path());
        command.current_dir(bed.from.path()).args(["cp", "-r", source, destination]);
        let ended = command.output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr);
        assert!(
            ended.status.code() == Some(3) && told.contains("leads to the very file"),
            "{source}: {told}"
        );
        assert!(!fs::symlink_metadata(way(file)).unwrap().is_symlink(), "{source}");
        assert_eq!(fs::read(way(file)).unwrap(), b"precious", "{source}");
    }
    // Nothing is lost where the file has another name.
    fs::hard_link(way("store/far"), way("store/again")).unwrap();
    let mut command = alone(env!("CARGO_BIN_EXE_haul"), bed.to.path());
    command.current_dir(bed.from.path()).args(["cp", "-r", "run/day/links/.", "store"]);
    assert!(command.status().unwrap().success());
    assert_eq!(fs::read(way("store/again")).unwrap(), b"precious");
    assert!(fs::symlink_metadata(way("store/far")).unwrap().is_symlink());
}
