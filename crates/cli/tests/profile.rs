//! A stage that is made slow is the one that `haul cp` names, with both ends as processes of their own.
//!
//! Storage is slow because the file system is (`haul_stripefs`), the rate because a user limits it; everything else is slowed
//! down in the program (`HAUL_TEST_SLOW`, see crate `haul_meter`, and `HAUL_TEST_FRAMES_LATE`), at one end only.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use haul_stripefs::{Mount, Options, StripeFs, control};
use haul_testkit::alone;
use serde_json::Value;

const FILE_BYTES: usize = 8 << 20;

/// One transfer at a time: they are measured.
static ALONE: Mutex<()> = Mutex::new(());

struct Bed {
    directory: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Bed {
    fn new() -> Bed {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Bed { directory: tempfile::tempdir().unwrap(), _alone: alone }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// So many files of this size below `name`; no two are alike.
    fn files(&self, name: &str, count: usize, bytes: usize) -> PathBuf {
        let directory = self.path(name);
        fs::create_dir_all(&directory).unwrap();
        for number in 0..count {
            let mut state = number as u64 + 1;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            };
            let bytes: Vec<u8> = (0..bytes).map(|_| next()).collect();
            fs::write(directory.join(format!("{number}")), bytes).unwrap();
        }
        directory
    }

    /// A file system with one target; `slow` is what makes it so once it is filled.
    fn mounted(&self, name: &str) -> (StripeFs, Mount) {
        let options =
            Options::new(vec![self.path(&format!("{name}-target"))], self.path(&format!("{name}-mds")));
        let filesystem = StripeFs::open(&options).unwrap();
        fs::create_dir(self.path(name)).unwrap();
        let mount = Mount::new(&filesystem, &self.path(name)).expect("FUSE can be mounted");
        (filesystem, mount)
    }

    /// Pushes to another process on this host. `slow` are stages that are slow at the source, or at the sink.
    fn push(&self, slow: [Option<&str>; 2], options: &[&str], source: &Path, sink: &Path) -> Output {
        let haul = env!("CARGO_BIN_EXE_haul");
        let there = match slow[1] {
            Some(late) if late.starts_with("HAUL_") => format!("env {late} '{haul}' bench shell"),
            Some(slow) => format!("env HAUL_TEST_SLOW={slow} '{haul}' bench shell"),
            None => format!("env -u HAUL_TEST_SLOW '{haul}' bench shell"),
        };
        let mut command = alone(haul, self.directory.path());
        command
            // Or it depends on the machine what is left to do for the stages that are told of.
            .env("HAUL_TEST_HASHES_LATE", "1")
            .args(["cp", "-r", "--ssh", &there, "--haul-path", haul])
            .args(options)
            .arg(source)
            .arg(format!("localhost:{}", sink.display()));
        if let Some(slow) = slow[0] {
            command.env("HAUL_TEST_SLOW", slow);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        output
    }
}

/// What took most of a command, as the summary and the profile have it, and the seconds of it.
fn around(output: &Output, bottleneck: &str) -> f64 {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let [profile, summary] = told(output);
    assert_eq!(summary["bottleneck"], bottleneck, "{summary:#} {profile:#}");
    let most = &profile["waited"][0];
    assert_eq!((&most["for"], &most["share"]), (&bottleneck.into(), &summary["bottleneck_share"]));
    let (all, part) = (summary["seconds"].as_f64().unwrap(), most["seconds"].as_f64().unwrap());
    assert!((part / all - most["share"].as_f64().unwrap()).abs() < 0.01, "{summary:#} {profile:#}");
    part
}

/// The last events: the profile and the summary.
fn told(output: &Output) -> [Value; 2] {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let mut lines = text.lines().rev().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let (summary, profile) = (lines.next().unwrap(), lines.next().unwrap());
    assert_eq!((&summary["event"], &profile["event"]), (&"summary".into(), &"profile".into()));
    [profile, summary]
}

/// Is this what held it up, for most of the time, and were its threads at that?
fn check(output: &Output, bottleneck: &str, [end, stage]: [&str; 2]) -> Result<(), String> {
    let [profile, summary] = told(output);
    let share = summary["bottleneck_share"].as_f64().unwrap_or(0.0);
    let busy = profile[end]["stages"][stage]["busy_seconds"].as_f64().unwrap_or(0.0);
    let named = summary["bottleneck"] == bottleneck
        && summary["bottleneck_why"] == "waited"
        && (0.5..=1.0).contains(&share)
        && profile["waited"][0]["for"] == bottleneck
        // Nobody is at anything while slots are on their way.
        && (bottleneck == "sink-buffers" || busy >= share * profile[end]["seconds"].as_f64().unwrap() * 0.5);
    if named { Ok(()) } else { Err(format!("{summary}\n{profile:#}")) }
}

/// What else the machine is at may hold a run up as well, so two of three have to name it.
fn assert_named(bottleneck: &str, at: [&str; 2], mut run: impl FnMut(&str) -> Output) {
    let (mut right, mut wrong) = (0, Vec::new());
    for sink in ["first", "second", "third"] {
        match check(&run(sink), bottleneck, at) {
            Ok(()) => right += 1,
            Err(told) => wrong.push(told),
        }
        if right == 2 {
            return;
        }
        assert!(wrong.len() < 2, "not {bottleneck}: {}", wrong.join("\n"));
    }
}

/// Slow in the program, at the source or at the sink.
fn assert_slow(bottleneck: &str, at: [&str; 2], slow: &str, options: &[&str]) {
    let bed = Bed::new();
    let source = bed.files("source", 2, FILE_BYTES);
    let size = if options.contains(&"--object-size") { &[][..] } else { &["--object-size", "1MiB"] };
    let options = [&["--json"], size, options].concat();
    let slow = if at[0] == "source" { [Some(slow), None] } else { [None, Some(slow)] };
    assert_named(bottleneck, at, |sink| bed.push(slow, &options, &source, &bed.path(sink)));
}

#[test]
fn a_slow_scan() {
    // It looks twice: there are names, and there are no more.
    assert_slow("scan", ["source", "scan"], "scan=500000", &[]);
}

#[test]
fn slow_reads() {
    let bed = Bed::new();
    let (filesystem, _mount) = bed.mounted("slow");
    let source = bed.files("slow/source", 2, FILE_BYTES);
    control::execute(&filesystem, "target all rate=12MiB").unwrap();
    assert_named("source-read", ["source", "read"], |sink| {
        let output = bed.push([None, None], &["--json"], &source, &bed.path(sink));
        assert_eq!(told(&output)[0]["source"]["stages"]["read"]["bytes"], 2 * FILE_BYTES);
        output
    });
}

#[test]
fn a_slow_log_that_is_written_before_the_sink_is_listened_to() {
    assert_slow("state-directory", ["source", "log"], "log=100000", &["--log-writer", "comm"]);
}

#[test]
fn slow_hashing() {
    // 64 KiB at a time, on their way; an object of a whole file before it leaves, 256 KiB at a time.
    assert_slow("source-hash", ["source", "hash-on-way"], "hash=8000", &[]);
    assert_slow("source-hash", ["source", "hash"], "hash=30000", &["--object-size", "16MiB"]);
}

#[test]
fn within_one_host_larger_members_of_bundles_are_hashed_as_they_are_encrypted() {
    let bed = Bed::new();
    let source = bed.files("source", 5, 300_000);
    bed.files("source/small", 3, 10_000);
    for (sink, options, large) in
        [("encrypted", &["--json"][..], "hash-on-way"), ("clear", &["--json", "--plain"], "hash")]
    {
        let [profile, _] = told(&bed.push([None, None], options, &source, &bed.path(sink)));
        let hashed = |stage: &str| profile["source"]["stages"][stage]["bytes"].as_u64().unwrap_or(0);
        assert_eq!(hashed("hash") + hashed("hash-on-way"), 5 * 300_000 + 3 * 10_000, "{profile:#}");
        assert!(hashed(large) >= 5 * 300_000, "{profile:#}");
        for name in ["0", "4", "small/2"] {
            assert!(fs::read(source.join(name)).unwrap() == fs::read(bed.path(sink).join(name)).unwrap());
        }
    }
}

#[test]
fn a_slow_cipher() {
    assert_slow("source-cipher", ["source", "cipher"], "cipher=120000", &["--streams", "2"]);
}

#[test]
fn a_limit_of_the_rate() {
    assert_slow("bandwidth-limit", ["source", "limit"], "scan=0", &["--bandwidth", "12MiB"]);
}

#[test]
fn a_network_that_takes_no_more() {
    // 512 KiB at a time.
    assert_slow("network", ["source", "send"], "send=60000", &["--streams", "2"]);
}

#[test]
fn a_source_that_is_slow_to_hand_bytes_over() {
    assert_slow("source-send", ["source", "send"], "busy-send=40000", &["--streams", "1"]);
}

#[test]
fn slow_names() {
    assert_slow("sink-metadata", ["sink", "names"], "names=250000", &[]);
}

#[test]
fn a_sink_that_is_slow_to_take_what_comes() {
    // 512 KiB at a time, or less.
    assert_slow("sink-receive", ["sink", "receive"], "receive=40000", &["--streams", "1"]);
}

#[test]
fn few_buffers_for_a_long_way() {
    // What the sink says is always late: four slots are on their way to the source most of the time.
    let options = ["--object-size", "256KiB", "--memory", "1MiB", "--streams", "1"];
    let bed = Bed::new();
    let source = bed.files("source", 2, FILE_BYTES);
    let options = [&["--json"], &options[..]].concat();
    assert_named("sink-buffers", ["sink", "receive"], |sink| {
        bed.push([None, Some("HAUL_TEST_FRAMES_LATE=120")], &options, &source, &bed.path(sink))
    });
}

#[test]
fn slow_deciphering() {
    assert_slow("sink-cipher", ["sink", "cipher"], "cipher=120000", &["--streams", "2"]);
}

#[test]
fn slow_checks_of_what_arrived() {
    assert_slow("sink-hash", ["sink", "hash"], "hash=120000", &["--memory", "8MiB"]);
}

#[test]
fn slow_writes() {
    for options in [&["--json", "--object-size", "1MiB", "--memory", "8MiB"][..], &["--json"]] {
        let bed = Bed::new();
        let (filesystem, _mount) = bed.mounted("slow");
        let source = bed.files("source", 2, FILE_BYTES);
        control::execute(&filesystem, "target all rate=12MiB").unwrap();
        assert_named("sink-write", ["sink", "write"], |sink| {
            let output = bed.push([None, None], options, &source, &bed.path("slow").join(sink));
            assert_eq!(told(&output)[0]["sink"]["stages"]["write"]["bytes"], 2 * FILE_BYTES);
            output
        });
    }
}

#[test]
fn a_slow_metadata_server() {
    let bed = Bed::new();
    let (filesystem, _mount) = bed.mounted("slow");
    let source = bed.files("source", 30, 100);
    control::execute(&filesystem, "mds latency=8ms").unwrap();
    assert_named("sink-metadata", ["sink", "create"], |sink| {
        bed.push([None, None], &["--json"], &source, &bed.path("slow").join(sink))
    });
}

#[test]
fn making_large_files_is_slow() {
    assert_slow("sink-metadata", ["sink", "create"], "create=700000", &[]);
}

#[test]
fn slow_syncs() {
    assert_slow("sink-sync", ["sink", "sync"], "sync=400000", &[]);
}

/// Making the files keeps more threads busy than the syncs do; but nobody waits for those.
#[test]
fn slow_syncs_of_many_small_files() {
    let bed = Bed::new();
    let source = bed.files("many", 6000, 500);
    assert_named("sink-sync", ["sink", "sync"], |sink| {
        let options = ["--json", "--io-threads", "16"];
        bed.push([None, Some("sync=300000")], &options, &source, &bed.path(sink))
    });
}

#[test]
fn the_user_is_told_in_two_lines_and_in_full_when_asked() {
    let bed = Bed::new();
    let source = bed.files("source", 2, FILE_BYTES);
    let said = |options: &[&str], sink: &str| {
        let output = bed.push([None, None], options, &source, &bed.path(sink));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = said(&["--bandwidth", "12MiB"], "one");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("done: ") && lines[1].starts_with("mostly waited for the limit"), "{text}");
    assert!(lines[2].starts_with("      ") && lines[2].contains("--bandwidth"), "{text}");
    let text = said(&["--bandwidth", "12MiB", "--profile"], "two");
    for row in ["waited for", "source", "  hash", "  cipher", "  limit", "destination", "  write", "  sync"] {
        assert!(text.lines().skip(3).any(|line| line.starts_with(row)), "no {row:?} in {text}");
    }
    let text = said(&["--quiet"], "three");
    assert_eq!(text, "");
}

#[test]
fn a_transfer_within_one_process_and_one_that_was_pulled_are_measured_at_both_ends() {
    let bed = Bed::new();
    let source = bed.files("source", 2, FILE_BYTES);
    let haul = env!("CARGO_BIN_EXE_haul");
    let run = |from: String, to: &str, at_source: &[&str]| {
        let output = alone(haul, bed.directory.path())
            .args(["cp", "-r", "--json", "--ssh", &format!("'{haul}' bench shell"), "--haul-path", haul])
            .args([&from, to])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let [profile, _] = told(&output);
        for (end, stages) in [("source", at_source), ("sink", &["hash", "write", "sync"])] {
            for stage in stages {
                let spent = &profile[end]["stages"][stage];
                assert!(spent["times"].as_u64().unwrap() > 0, "{end} {stage}: {profile:#}");
            }
            assert!(profile[end]["processors"].as_u64().unwrap() > 0);
        }
        let all: f64 =
            profile["waited"].as_array().unwrap().iter().map(|part| part["share"].as_f64().unwrap()).sum();
        assert!(all <= 1.01, "no moment counts twice: {profile:#}");
    };
    // Within one process the sink reads the source's files.
    run(source.display().to_string(), "local", &["scan"]);
    run(format!("localhost:{}", source.display()), "pulled", &["scan", "read", "hash-on-way"]);
}

#[test]
fn a_slow_login_is_named_and_is_part_of_the_time() {
    let bed = Bed::new();
    let source = bed.files("source", 1, 1000);
    let (haul, ssh) = (env!("CARGO_BIN_EXE_haul"), bed.path("ssh"));
    fs::write(&ssh, format!("#!/bin/sh\nsleep 2\nexec '{haul}' bench shell \"$@\"\n")).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let run = |options: &[&str]| {
        alone(haul, bed.directory.path())
            .args(["cp", "-r", "--haul-path", haul, "--ssh"])
            .arg(&ssh)
            .args(options)
            .arg(&source)
            .arg(format!("localhost:{}", bed.path("sink").display()))
            .output()
            .unwrap()
    };
    let took = around(&run(&["--json"]), "connecting");
    assert!((2.0..20.0).contains(&took), "{took}");
    let [_, summary] = told(&run(&["--json"]));
    assert_eq!(
        (&summary["bytes_sent"], &summary["bottleneck"]),
        (&0.into(), &Value::Null),
        "nothing was to be done"
    );
    let text = String::from_utf8(run(&["--profile"]).stdout).unwrap();
    assert!(text.contains("\n  connecting (ssh login) ") && !text.contains("mostly waited"), "{text}");
}

#[test]
fn a_slow_state_directory_is_named_and_is_part_of_the_time() {
    let bed = Bed::new();
    let (filesystem, _mount) = bed.mounted("slow");
    let source = bed.files("source", 1, 1000);
    control::execute(&filesystem, "mds latency=50ms").unwrap();
    let began = Instant::now();
    let output = alone(env!("CARGO_BIN_EXE_haul"), bed.directory.path())
        .env("HAUL_STATE_DIR", bed.path("slow/state"))
        .args(["cp", "-r", "--json"])
        .args([source, bed.path("sink")])
        .output()
        .unwrap();
    let all = began.elapsed().as_secs_f64();
    around(&output, "state-directory");
    let told = told(&output)[1]["seconds"].as_f64().unwrap();
    assert!((all * 0.8..=all).contains(&told), "{told} of {all}");
}

#[test]
fn a_copy_of_what_was_not_in_memory_is_not_taken_for_writing() {
    let bed = Bed::new();
    let source = bed.files("source", 2, FILE_BYTES);
    let run = |cold: bool, sink: &str| {
        for number in 0..2 {
            let file = fs::File::open(source.join(number.to_string())).unwrap();
            file.sync_all().unwrap();
            if cold {
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            } else {
                std::io::copy(&mut &file, &mut std::io::sink()).unwrap();
            }
        }
        let output = alone(env!("CARGO_BIN_EXE_haul"), bed.directory.path())
            .env("HAUL_TEST_SLOW", "copy=1500000")
            .args(["cp", "-r", "--json"])
            .args([&source, &bed.path(sink)])
            .output()
            .unwrap();
        let [profile, summary] = told(&output);
        (profile["sink"]["stages"]["copy"]["bytes"].as_u64(), summary)
    };
    let (bytes, summary) = run(true, "cold");
    if bytes.is_none() {
        return haul_testkit::lacks("a local disk for temporary files, whose pages can be dropped");
    }
    assert_eq!(summary["bottleneck"], "copy", "{summary:#}");
    assert_eq!(run(false, "warm").0, None, "it is writing alone");
}
