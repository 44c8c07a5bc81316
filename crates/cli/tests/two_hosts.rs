//! Copies between two hosts: two networks with a wire between them, each end in its own.
//!
//! Everything else here speaks over loopback, which is what haul takes for one host: there objects are hashed by the threads that
//! send them, and nothing is paced. Between hosts they are hashed before they leave.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use haul_testkit::lacks;
use serde_json::Value;

/// Longer than anything here lasts.
const PATIENCE: Duration = Duration::from_secs(40);
/// For documentation, so nobody's; and they are in networks of their own.
const NEAR: &str = "192.0.2.1";
const FAR: &str = "192.0.2.2";
const MIB: usize = 1 << 20;
/// None at all, in bundles as they are and from their files, one that may be an object of its own, many objects and a tail that
/// fits no unit.
const FILES: [(&str, usize); 7] = [
    ("empty", 0),
    ("one", 1),
    ("small", 5000),
    ("member", 300_000),
    ("medium", 700_001),
    ("single", 5 * MIB),
    ("below/big", 9 * MIB + 12_345),
];
/// And so many small ones.
const SMALL: usize = 40;
const ALL: usize = FILES.len() + SMALL;

/// A host, as far as its network goes. It lives as long as this and the processes in it; it has no name that could be left behind.
struct Host(OwnedFd);

impl Host {
    /// `None` where nobody may make one.
    fn new() -> Option<Host> {
        let apart = || {
            // SAFETY: unshare takes no pointers; of this thread alone the network changes.
            let made = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
            made.then(|| File::open("/proc/thread-self/ns/net").unwrap().into())
        };
        std::thread::spawn(apart).join().unwrap().map(Host)
    }

    fn place(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// The program becomes the process that is started.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.place())).arg(program).stdin(Stdio::null());
        command
    }

    fn ip(&self, words: &str) {
        let output = self.command("ip").args(words.split(' ')).output().expect("nsenter is there");
        assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Whether its end of the wire can be made to carry no more than this, as a router or a switch would.
    fn limit(&self, rate: &str) -> bool {
        let words = format!("qdisc replace dev wire root tbf rate {rate} burst 256kb latency 50ms");
        self.command("tc").args(words.split(' ')).status().is_ok_and(|status| status.success())
    }

    /// Bytes that its end of the wire has received.
    fn received(&self) -> u64 {
        let output = self.command("cat").arg("/proc/net/dev").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("wire:")).expect(&text);
        line.split_ascii_whitespace().next().unwrap().parse().unwrap()
    }
}

/// Both hosts; each has its home, and a directory with its name.
struct Bed {
    directory: tempfile::TempDir,
    near: Host,
    far: Host,
}

impl Bed {
    fn new() -> Option<Bed> {
        let (near, far) = (Host::new()?, Host::new()?);
        near.ip(&format!("link add name wire type veth peer name wire netns {}", far.place()));
        for (host, address) in [(&near, NEAR), (&far, FAR)] {
            host.ip(&format!("addr add {address}/24 dev wire"));
            host.ip("link set lo up");
            host.ip("link set wire up");
        }
        Some(Bed { directory: tempfile::tempdir().unwrap(), near, far })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, size: usize) -> usize {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut bytes = vec![0; size];
        blake3::Hasher::new().update(name.as_bytes()).finalize_xof().fill(&mut bytes);
        fs::write(path, bytes).unwrap();
        size
    }

    /// How many bytes there are in it.
    fn tree(&self, name: &str) -> usize {
        let small = (0..SMALL).map(|number| (format!("small files/{number}"), 100 * number));
        let named = FILES.map(|(name, size)| (name.to_owned(), size));
        named.into_iter().chain(small).map(|(file, size)| self.write(&format!("{name}/{file}"), size)).sum()
    }

    /// `haul cp` at the near end, with the far one in its own network.
    fn command(&self, options: &[&str], from: &str, to: &str) -> Command {
        let haul = env!("CARGO_BIN_EXE_haul");
        let (place, home) = (self.far.place(), self.path("far home"));
        let ssh = format!("nsenter --net={place} env 'HOME={}' '{haul}' bench shell", home.display());
        let mut command = self.near.command(haul);
        command
            .current_dir(self.directory.path())
            .env_clear()
            .env("HOME", self.path("near home"))
            .env("PATH", std::env::var_os("PATH").unwrap())
            // Or it could not be told where the rest is hashed.
            .env("HAUL_TEST_HASHES_LATE", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .args(["cp", "-r", "--json", "--object-size", "1MiB", "--reconnect", "5"])
            .args(["--ssh", &ssh, "--haul-path", haul])
            .args(options);
        for path in [from, to] {
            let there = |path| format!("{FAR}:{}", self.path(path).display());
            command.arg(path.strip_prefix("far:").map_or_else(|| path.to_owned(), there));
        }
        command
    }

    fn copy(&self, options: &[&str], from: &str, to: &str) -> [Value; 2] {
        told(&finish(self.command(options, from, to).spawn().unwrap()))
    }

    fn is_same(&self, from: &str, to: &str) {
        let names = |name: &str| {
            let below = |path: PathBuf| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
            let below = |path: PathBuf| below(path).collect::<std::collections::BTreeSet<_>>();
            ["", "below", "small files"].map(|directory| below(self.path(name).join(directory)))
        };
        assert_eq!(names(from), names(to));
        let small = (0..SMALL).map(|number| format!("small files/{number}"));
        for name in small.chain(FILES.map(|(name, _)| name.to_owned())) {
            let read = |tree| fs::read(self.path(tree).join(&name)).unwrap();
            assert!(read(from) == read(to), "{name}");
        }
    }
}

/// Waits for its end, as long as that may take.
fn finish(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Of one that has ended there is nothing to kill.
    let _ = child.kill();
    child.wait_with_output().unwrap()
}

/// The last events: the profile and the summary.
fn told(output: &Output) -> [Value; 2] {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{} {text}", String::from_utf8_lossy(&output.stderr));
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    ["profile", "summary"].map(|name| events.iter().rfind(|event| event["event"] == name).unwrap().clone())
}

/// Neither end took the other for one on its own host.
fn was_between_hosts(profile: &Value, bytes: usize) {
    let source = |stage: &str| profile["source"]["stages"][stage]["bytes"].as_u64().unwrap_or(0);
    assert_eq!(source("hash"), bytes as u64, "{profile:#}");
    assert_eq!((source("hash-on-way"), source("read-on-way")), (0, 0), "{profile:#}");
}

#[test]
fn a_tree_is_copied_either_way_and_again_nothing_is_moved() {
    let Some(bed) = Bed::new() else { return lacks("root, for networks of its own") };
    let bytes = bed.tree("tree");
    for (options, encrypted) in [(&[][..], true), (&["--plain"], false)] {
        for (from, to, sink) in [("tree", "far:pushed", &bed.far), ("far:tree", "pulled", &bed.near)] {
            let to = &format!("{to} {encrypted}");
            let before = sink.received();
            let [profile, summary] = bed.copy(options, from, to);
            let about = format!("{from} {options:?}: {summary:#}");
            assert!(sink.received() - before > bytes as u64, "{about}");
            assert_eq!(summary["files_done"], ALL, "{about}");
            assert_eq!((&summary["bytes_sent"], &summary["objects_repaired"]), (&bytes.into(), &0.into()));
            assert_eq!(summary["cipher"].is_string(), encrypted, "{about}");
            was_between_hosts(&profile, bytes);
            bed.is_same("tree", to.trim_start_matches("far:"));
            let [_, summary] = bed.copy(options, from, to);
            assert_eq!((&summary["bytes_sent"], &summary["files_skipped"]), (&0.into(), &ALL.into()));
        }
    }
}

impl Bed {
    /// At either end: a source has the log.
    fn log_contents(&self) -> Vec<Vec<u8>> {
        let homes = ["near home/.local/state/haul/jobs", "far home/.local/state/haul/far"]
            .map(|jobs| self.path(jobs));
        let jobs = homes.into_iter().filter_map(|jobs| fs::read_dir(jobs).ok()).flatten().flatten();
        let logs = jobs.filter_map(|job| fs::read_dir(job.path().join("log")).ok());
        logs.flatten().flatten().filter_map(|entry| fs::read(entry.path()).ok()).collect()
    }
}

#[test]
fn the_same_command_goes_on_where_the_near_end_was_killed() {
    let Some(bed) = Bed::new() else { return lacks("root, for networks of its own") };
    let bytes = bed.write("tree/big", 24 * MIB + 54_321);
    let push = (&[][..], "tree", "far:pushed");
    for (options, from, to) in [push, (&["--plain"], "tree", "far:clear"), (&[], "far:tree", "pulled")] {
        let arrived = bed.path(to.trim_start_matches("far:"));
        // Slow, so that there is a middle; and with few buffers, or all of it would be on its way at once.
        let slow = [&["--bandwidth", "8MiB", "--memory", "4MiB"], options].concat();
        let mut child = bed.command(&slow, from, to).spawn().unwrap();
        let began = Instant::now();
        // It was made, and has told several times what is durable.
        let (mut contents, mut changes) = (bed.log_contents(), 0);
        while changes < 4 && child.try_wait().unwrap().is_none() && began.elapsed() < PATIENCE {
            let now = bed.log_contents();
            changes += u32::from(now != contents);
            contents = now;
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success() && changes == 4, "not in its middle: {changes}");
        assert!(!arrived.join("big").exists(), "no half file under its final name");
        let [profile, summary] = bed.copy(options, from, to);
        let number = |field: &str| summary[field].as_u64().unwrap() as usize;
        assert!(number("objects_skipped") > 0, "{summary:#}");
        assert_eq!(number("bytes_sent") + number("bytes_skipped"), bytes, "{summary:#}");
        was_between_hosts(&profile, number("bytes_sent"));
        let read = |tree: PathBuf| fs::read(tree.join("big")).unwrap();
        assert!(read(arrived.clone()) == read(bed.path("tree")), "{to}");
        assert_eq!(fs::read_dir(&arrived).unwrap().count(), 1, "nothing else is left");
        assert_eq!(bed.copy(options, from, to)[1]["bytes_sent"], 0);
    }
}

#[test]
fn a_wire_that_is_full_is_named_not_the_buffers_that_it_empties() {
    let Some(bed) = Bed::new() else { return lacks("root, for networks of its own") };
    if !(bed.near.limit("200mbit") && bed.far.limit("200mbit")) {
        return lacks("tc, and a kernel with its token buckets");
    }
    bed.write("tree/big", 40 * MIB);
    let pull = ["far:tree", "pulled"];
    for (number, (options, [from, to])) in [
        (&[][..], ["tree", "far:pushed"]),
        (&["--plain"], ["tree", "far:pushed"]),
        (&["--streams", "1"], ["tree", "far:pushed"]),
        (&["--streams", "6"], ["tree", "far:pushed"]),
        (&["--plain", "--streams", "6"], ["tree", "far:pushed"]),
        (&[], pull),
    ]
    .into_iter()
    .enumerate()
    {
        // What else the machine is at may hold a run up as well.
        let named = (0..3).find_map(|run| {
            let [profile, summary] = bed.copy(options, from, &format!("{to} {number} {run}"));
            let share = summary["bottleneck_share"].as_f64().unwrap_or(0.0);
            let told = || eprintln!("{options:?} {from}: {summary:#} {profile:#}");
            let is_named = summary["bottleneck"] == "network" && share >= 0.6;
            if !is_named {
                told();
            }
            is_named.then_some(())
        });
        assert!(named.is_some(), "{options:?} {from}: not the network in three runs");
    }
}

/// Nobody is to be sent to a disk that could take more.
#[test]
fn writes_that_take_long_beside_each_other_are_not_what_is_waited_for() {
    let Some(bed) = Bed::new() else { return lacks("root, for networks of its own") };
    if !(bed.near.limit("200mbit") && bed.far.limit("200mbit")) {
        return lacks("tc, and a kernel with its token buckets");
    }
    bed.write("tree/big", 40 * MIB);
    let limit = ["--bandwidth", "12MiB", "--plain"];
    for (options, expected) in [(&[][..], "network"), (&["--plain"], "network"), (&limit, "bandwidth-limit")]
    {
        let named = (0..3).any(|run| {
            let options = [options, &["--io-threads", "6"]].concat();
            let mut command =
                bed.command(&options, "tree", &format!("far:{expected} {} {run}", options.len()));
            // A MiB takes 80 ms, of six at a time.
            let child = command.env("HAUL_TEST_SLOW", "write=80000").spawn().unwrap();
            let [profile, summary] = told(&finish(child));
            let is_named = summary["bottleneck"] == expected;
            if !is_named {
                eprintln!("{options:?}: {summary:#} {profile:#}");
            }
            is_named
        });
        assert!(named, "{options:?}: not {expected} in three runs");
    }
}
