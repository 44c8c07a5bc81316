//! Faults, through a real mount.

mod common;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::time::Duration;

use common::Bench;
use haul_crashfs::{Kind, SyncClass};
use rustix::io::Errno;

#[test]
fn a_full_disk_takes_what_fits_and_goes_on_once_there_is_room() {
    let bench = Bench::new();
    assert!(rustix::fs::statvfs(bench.path("")).unwrap().f_bfree > 1000, "no limit at first");
    bench.filesystem.set_space(Some(10 * 4096));
    let mut file = bench.create("f");
    let error = file.write_all(&[1; 20 * 4096]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(file.metadata().unwrap().len(), 10 * 4096, "a short write first, the error after it");
    file.write_all_at(&[2; 4096], 0).expect("overwriting takes no space");
    let statistics = rustix::fs::statvfs(bench.path("f")).unwrap();
    assert_eq!(statistics.f_bfree, 0);
    bench.filesystem.set_space(None);
    file.write_all(&[1; 10 * 4096]).unwrap();
}

#[test]
fn a_failed_sync_reports_once_and_its_pages_never_reach_the_medium() {
    let bench = Bench::new();
    let file = bench.create("f");
    bench.sync("");
    file.write_all_at(&[1; 4096], 0).unwrap();
    bench.filesystem.faults().fail(Kind::Sync, 0, Errno::IO, true);
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    file.sync_data().expect("the kernel reports it once");
    drop(file);
    bench.crash_hard();
    assert_eq!(bench.read("f").unwrap(), [0; 4096], "who believed the second sync has lost the page");
}

#[test]
fn the_nth_write_fails_and_a_hanging_sync_holds_up_nothing_else() {
    let bench = Bench::new();
    let file = bench.create("f");
    bench.filesystem.faults().fail(Kind::Write, 1, Errno::DQUOT, true);
    file.write_all_at(b"1", 0).unwrap();
    assert!(file.write_all_at(b"2", 0).is_err());
    file.write_all_at(b"3", 0).unwrap();

    bench.filesystem.faults().hang(Kind::Sync);
    let (done, waiting) = mpsc::channel();
    let sync = std::thread::spawn(move || {
        let result = file.sync_data();
        done.send(()).unwrap();
        result
    });
    for number in 0..20 {
        bench.write(&format!("other-{number}"), b"x");
    }
    assert!(waiting.try_recv().is_err(), "still hanging");
    bench.filesystem.faults().clear();
    waiting.recv_timeout(Duration::from_secs(10)).expect("released");
    sync.join().unwrap().unwrap();
}

#[test]
fn without_power_everything_fails_and_after_the_crash_it_works_again() {
    let bench = Bench::new();
    bench.write("f", b"x");
    bench.filesystem.sync_all();
    bench.filesystem.faults().hang(Kind::Write);
    let path = bench.path("g");
    let stuck = std::thread::spawn(move || fs::write(path, b"y"));
    bench.filesystem.faults().power_off();
    assert!(stuck.join().unwrap().is_err(), "what hung fails too");
    assert!(bench.read("f").is_none());
    bench.filesystem.faults().clear();
    bench.crash_hard();
    assert_eq!(bench.read("f").unwrap(), b"x");
}

#[test]
fn a_lying_sync_is_as_good_as_none() {
    let bench = Bench::new();
    bench.filesystem.faults().lie(SyncClass::parse("file:.part").unwrap());
    for name in ["a.part", "b"] {
        bench.write(name, b"bytes");
        bench.sync(name);
    }
    bench.sync("");
    bench.crash_hard();
    assert_eq!(bench.read("a.part").unwrap(), b"");
    assert_eq!(bench.read("b").unwrap(), b"bytes");

    bench.filesystem.faults().lie(SyncClass::parse("directory").unwrap());
    File::create(bench.path("c")).unwrap();
    bench.sync("");
    bench.crash_hard();
    assert_eq!(bench.names(""), ["a.part", "b"]);
}
