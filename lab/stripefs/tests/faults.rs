//! Slow, faulty and hung targets, through a real mount.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::{Bench, K64, MIB, eventually, wish};

/// A file on each target: `f0`, `f1` and so on.
fn one_each(targets: u16) -> Bench {
    let bench = Bench::new(targets.into());
    (0..targets).for_each(|target| {
        bench.file(&format!("f{target}"), &wish(1, K64, target));
    });
    bench
}

fn open(bench: &Bench, name: &str) -> File {
    OpenOptions::new().read(true).write(true).open(bench.path(name)).unwrap()
}

fn counter(bench: &Bench, target: usize, name: &str) -> u64 {
    let statistics: serde_json::Value = serde_json::from_str(&bench.control("stats")).unwrap();
    statistics["targets"][target][name].as_u64().unwrap()
}

#[test]
fn a_failing_target_fails_alone_and_in_both_directions() {
    let bench = one_each(3);
    (0..3).for_each(|target| fs::write(bench.path(&format!("f{target}")), b"before").unwrap());
    bench.control("target 1 error=EIO");
    let file = open(&bench, "f1");
    let code = |error: std::io::Error| error.raw_os_error();
    assert_eq!(code(file.write_all_at(b"x", 0).unwrap_err()), Some(libc::EIO));
    assert_eq!(code(file.read_at(&mut [0; 6], 0).unwrap_err()), Some(libc::EIO));
    assert_eq!(code(file.sync_all().unwrap_err()), Some(libc::EIO));
    for target in [0, 2] {
        let file = open(&bench, &format!("f{target}"));
        file.write_all_at(b"AFTER", 0).unwrap();
        file.sync_all().unwrap();
    }
    assert_eq!(counter(&bench, 1, "errors"), 3);
    bench.control("target 1 ok");
    assert_eq!(fs::read(bench.path("f1")).unwrap(), b"before", "what failed was not written");
}

#[test]
fn a_full_target_can_be_read_and_a_request_over_several_fails_with_it() {
    let bench = one_each(2);
    bench.file("wide", &wish(2, K64, 0));
    fs::write(bench.path("wide"), vec![1; 4 * K64]).unwrap();
    bench.control("target 1 error=ENOSPC");
    let file = open(&bench, "wide");
    let error = file.write_all_at(&vec![2; 4 * K64], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    file.write_all_at(&vec![2; K64], 2 * K64 as u64).expect("this stripe is on the other target");
    assert_eq!(fs::read(bench.path("wide")).unwrap().len(), 4 * K64);
    file.sync_all().unwrap();
}

#[test]
fn a_hung_target_holds_up_nothing_but_its_own_requests_until_it_is_released() {
    let bench = one_each(3);
    fs::write(bench.path("f1"), vec![1; K64]).unwrap();
    bench.control("target 1 hang");
    let (done, finished) = mpsc::channel();
    // More than there are threads of any kind: none of them may be the one that waits.
    for index in 0..40 {
        let (file, done) = (open(&bench, "f1"), done.clone());
        thread::spawn(move || {
            let result = match index % 3 {
                0 => file.read_at(&mut [0; 100], 0).map(drop),
                1 => file.write_all_at(&[2; 100], 0),
                _ => file.sync_all(),
            };
            done.send(result).unwrap();
        });
    }
    // The kernel lets only one sync of a file wait, and no write beside it; all reads.
    eventually("all reads wait", || counter(&bench, 1, "queue") >= 14);
    for target in [0, 2] {
        let file = open(&bench, &format!("f{target}"));
        file.write_all_at(&vec![3; MIB], 0).unwrap();
        file.sync_all().unwrap();
        file.read_exact_at(&mut vec![0; MIB], 0).unwrap();
    }
    // Names and attributes too.
    fs::rename(bench.path("f2"), bench.path("g2")).unwrap();
    assert_eq!(fs::metadata(bench.path("f1")).unwrap().len(), K64 as u64);
    fs::read_dir(bench.path("")).unwrap().for_each(drop);
    assert!(finished.try_recv().is_err(), "nothing of the hung target was answered");
    bench.control("target 1 ok");
    for _ in 0..40 {
        finished.recv_timeout(Duration::from_secs(20)).expect("released").unwrap();
    }
}

#[test]
fn a_file_of_known_size_is_written_on_while_one_of_its_targets_hangs() {
    let bench = Bench::new(3);
    bench.file("f", &wish(3, K64, 0));
    open(&bench, "f").set_len(6 * K64 as u64).unwrap();
    bench.control("target 1 hang");
    let file = open(&bench, "f");
    let waiting = thread::spawn(move || file.write_all_at(&vec![1; K64], K64 as u64));
    eventually("it waits", || counter(&bench, 1, "queue") == 1);
    let file = open(&bench, "f");
    for stripe in [0, 2, 3, 5] {
        file.write_all_at(&vec![2; K64], stripe * K64 as u64).unwrap();
    }
    assert!(!waiting.is_finished());
    bench.control("target 1 ok");
    waiting.join().unwrap().unwrap();
}

#[test]
fn an_error_ends_a_hang_for_those_that_wait() {
    let bench = one_each(1);
    fs::write(bench.path("f0"), vec![1; K64]).unwrap();
    bench.control("target 0 hang");
    let file = open(&bench, "f0");
    let waiting = thread::spawn(move || file.read_at(&mut [0; 100], 0));
    eventually("it waits", || counter(&bench, 0, "queue") == 1);
    bench.control("target 0 error=EIO");
    assert_eq!(waiting.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
}

#[test]
fn a_mount_ends_while_a_target_hangs() {
    let bench = one_each(2);
    let file = open(&bench, "f0");
    bench.control("target 0 hang");
    let waiting = thread::spawn(move || file.write_all_at(b"x", 0));
    eventually("it waits", || counter(&bench, 0, "queue") == 1);
    let filesystem = bench.filesystem.clone();
    drop(bench);
    filesystem.finish(Duration::from_secs(5));
    // Answered or cut off: but it ends.
    let _ = waiting.join().unwrap();
}

#[test]
fn a_target_is_no_faster_than_its_rate_in_both_directions_together() {
    const RATE: f64 = 3e6;
    const BYTES: usize = 10_000_000;
    let bench = one_each(2);
    fs::write(bench.path("f0"), vec![1; BYTES / 2]).unwrap();
    bench.control("target 0 rate=3MB");
    let begin = Instant::now();
    thread::scope(|scope| {
        let bench = &bench;
        scope.spawn(move || open(bench, "f0").read_exact_at(&mut vec![0; BYTES / 2], 0).unwrap());
        scope.spawn(move || open(bench, "f0").write_all_at(&vec![2; BYTES / 2], 0).unwrap());
        scope.spawn(move || {
            fs::write(bench.path("f1"), vec![3; 4 * MIB]).unwrap();
            let took = begin.elapsed().as_secs_f64();
            assert!(took < BYTES as f64 / RATE, "{took} s: the other one is done before");
        });
    });
    let took = begin.elapsed().as_secs_f64();
    assert!(took >= BYTES as f64 / RATE - 0.001, "{took} s for what takes {} s", BYTES as f64 / RATE);
    // Generous: the machine may be busy.
    assert!(took < 10.0 * BYTES as f64 / RATE, "{took} s");
}

#[test]
fn a_small_request_waits_behind_what_came_before_it() {
    let bench = one_each(1);
    fs::write(bench.path("f0"), vec![1; MIB]).unwrap();
    bench.control("target 0 rate=2MB");
    let (big, small) = (open(&bench, "f0"), open(&bench, "f0"));
    let begin = Instant::now();
    let reader = thread::spawn(move || {
        big.read_exact_at(&mut vec![0; MIB], 0).unwrap();
        begin.elapsed()
    });
    eventually("it is served", || counter(&bench, 0, "in_flight") == 1);
    small.read_exact_at(&mut [0; 10], 0).unwrap();
    let waited = begin.elapsed();
    let big = reader.join().unwrap();
    // Time is taken in pieces, each rounded.
    assert!(waited.as_secs_f64() >= 0.98 * MIB as f64 / 2e6, "{waited:?}, and the big one {big:?}");
}

#[test]
fn a_rate_changes_while_a_request_is_served() {
    let bench = one_each(1);
    fs::write(bench.path("f0"), vec![1; MIB]).unwrap();
    bench.control("target 0 rate=1B");
    let file = open(&bench, "f0");
    let reader = thread::spawn(move || file.read_exact_at(&mut vec![0; MIB], 0));
    eventually("it is served", || counter(&bench, 0, "in_flight") == 1);
    bench.control("target 0 rate=0");
    // At the first rate a piece would have taken an hour.
    let begin = Instant::now();
    reader.join().unwrap().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
}

#[test]
fn latency_is_added_to_each_request_and_overlaps() {
    let bench = one_each(1);
    fs::write(bench.path("f0"), vec![1; K64]).unwrap();
    bench.control("target 0 latency=500ms jitter=10ms");
    let begin = Instant::now();
    thread::scope(|scope| {
        for _ in 0..30 {
            scope.spawn(|| {
                let file = open(&bench, "f0");
                let begin = Instant::now();
                file.read_exact_at(&mut [0; 10], 0).unwrap();
                assert!(begin.elapsed() >= Duration::from_millis(500));
            });
        }
    });
    assert!(begin.elapsed() < Duration::from_secs(14), "one after the other would take 15 s");
}

#[test]
fn a_stall_passes() {
    let bench = one_each(1);
    fs::write(bench.path("f0"), vec![1; K64]).unwrap();
    let file = open(&bench, "f0");
    let begin = Instant::now();
    bench.control("target 0 stall=300ms");
    file.read_exact_at(&mut [0; 10], 0).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(300), "{:?}", begin.elapsed());
    bench.control("target 0 stall=1000s");
    bench.control("target 0 ok");
    file.read_exact_at(&mut [0; 10], 0).unwrap();
    bench.control("target 0 stalls=300ms/600ms");
    let begin = Instant::now();
    let mut longest = Duration::ZERO;
    while begin.elapsed() < Duration::from_millis(1800) {
        let one = Instant::now();
        file.read_exact_at(&mut [0; 10], 0).unwrap();
        longest = longest.max(one.elapsed());
    }
    // Some of it may have passed before the read came.
    assert!(longest >= Duration::from_millis(100), "{longest:?}");
}

#[test]
fn a_slow_metadata_server_paces_creation_and_a_hung_one_leaves_contents_alone() {
    let bench = one_each(1);
    bench.control("mds latency=20ms");
    let begin = Instant::now();
    (0..10).for_each(|number| drop(File::create(bench.path(&format!("new{number}"))).unwrap()));
    assert!(begin.elapsed() >= Duration::from_millis(200), "{:?}", begin.elapsed());
    bench.control("mds reset iops=50");
    let begin = Instant::now();
    (0..10).for_each(|number| fs::create_dir(bench.path(&format!("dir{number}"))).unwrap());
    assert!(begin.elapsed() >= Duration::from_millis(190), "{:?}", begin.elapsed());
    bench.control("mds reset");
    let file = open(&bench, "f0");
    bench.control("mds hang");
    let path = bench.path("late");
    let waiting = thread::spawn(move || fs::create_dir(path));
    file.write_all_at(&vec![1; MIB], 0).unwrap();
    assert!(!waiting.is_finished());
    bench.control("mds error=EROFS");
    assert_eq!(waiting.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EROFS));
    bench.control("mds ok");
    fs::create_dir(bench.path("late")).unwrap();
}

#[test]
fn commands_that_are_wrong_change_nothing() {
    let bench = one_each(2);
    for wrong in [
        "",
        "target",
        "target 2 hang",
        "target 0",
        "target all hang error=EWHAT",
        "mds",
        "stats now",
        "rate=1",
    ] {
        assert!(haul_stripefs::control::execute(&bench.filesystem, wrong).is_err(), "{wrong}");
    }
    fs::write(bench.path("f0"), b"x").unwrap();
}
