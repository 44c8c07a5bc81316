//! What programs expect of a file system, beside durability.

mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

use common::Bench;
use rustix::fs::{AtFlags, CWD, FallocateFlags, RenameFlags, Timespec, Timestamps};

#[test]
fn names_are_any_bytes_and_end_at_255() {
    let bench = Bench::new();
    let names: [&[u8]; 6] = [b"new\nline", b"\x1b[31m", b"\xff\xfe", b"-rf", b" blank ", &[b'n'; 255]];
    for name in names {
        fs::write(bench.path("").join(OsStr::from_bytes(name)), name).unwrap();
    }
    let mut seen: Vec<_> =
        fs::read_dir(bench.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    seen.sort();
    let mut expected: Vec<_> = names.iter().map(|name| OsStr::from_bytes(name).to_owned()).collect();
    expected.sort();
    assert_eq!(seen, expected);
    assert!(fs::write(bench.path(&"n".repeat(256)), b"").is_err());
}

#[test]
fn times_before_1970_keep_their_nanoseconds() {
    let bench = Bench::new();
    bench.write("f", b"");
    for (tv_sec, tv_nsec) in
        [(-2, 200_000_000), (-1, 0), (-1, 999_999_999), (0, 1), (4_000_000_000, 123_456_789)]
    {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, bench.path("f"), &times, AtFlags::empty()).unwrap();
        let metadata = fs::metadata(bench.path("f")).unwrap();
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (tv_sec, tv_nsec));
        assert_eq!((metadata.atime(), metadata.atime_nsec()), (tv_sec, tv_nsec));
    }
}

#[test]
fn exclusive_creation_and_rename_without_replacing_refuse() {
    let bench = Bench::new();
    bench.write("a", b"a");
    bench.write("b", b"b");
    assert!(File::options().write(true).create_new(true).open(bench.path("a")).is_err());
    let refused =
        rustix::fs::renameat_with(CWD, bench.path("a"), CWD, bench.path("b"), RenameFlags::NOREPLACE)
            .unwrap_err();
    assert_eq!(refused, rustix::io::Errno::EXIST);
    rustix::fs::renameat_with(CWD, bench.path("a"), CWD, bench.path("c"), RenameFlags::NOREPLACE).unwrap();
    assert_eq!(bench.names(""), ["b", "c"]);
}

#[test]
fn directories_are_removed_only_when_empty_and_never_moved_into_themselves() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("a/b")).unwrap();
    assert!(fs::remove_dir(bench.path("a")).is_err());
    assert!(fs::rename(bench.path("a"), bench.path("a/b/c")).is_err());
    assert!(fs::remove_file(bench.path("a")).is_err());
    fs::remove_dir_all(bench.path("a")).unwrap();
    assert!(bench.names("").is_empty());
}

#[test]
fn a_removed_file_lives_until_it_is_closed_and_memory_comes_back() {
    let bench = Bench::new();
    for round in 0..20 {
        let file = bench.create("f");
        file.write_all_at(&[round; 1 << 20], 0).unwrap();
        fs::remove_file(bench.path("f")).unwrap();
        let mut bytes = [0; 10];
        file.read_exact_at(&mut bytes, 1000).unwrap();
        assert_eq!((bytes, file.metadata().unwrap().nlink()), ([round; 10], 0));
        drop(file);
        bench.sync("");
    }
    // The kernel closes and forgets on its own time, but it does.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while bench.filesystem.statistics().bytes_used > 2 << 20 {
        assert!(std::time::Instant::now() < deadline, "{}", bench.filesystem.statistics());
        std::thread::yield_now();
    }
}

#[test]
fn ten_thousand_names_are_listed_once_each_with_their_inodes() {
    let bench = Bench::new();
    fs::create_dir(bench.path("d")).unwrap();
    for number in 0..10_000 {
        File::create(bench.path(&format!("d/{number:05}"))).unwrap();
    }
    assert_eq!(bench.names("d"), (0..10_000).map(|number| format!("{number:05}")).collect::<Vec<_>>());
    for entry in fs::read_dir(bench.path("d")).unwrap().take(10) {
        let entry = entry.unwrap();
        assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), entry.metadata().unwrap().ino());
    }
}

#[test]
fn space_can_be_reserved_and_locks_are_local() {
    let bench = Bench::new();
    let file = bench.create("f");
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 10_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10_000);
    file.try_lock().unwrap();
    assert!(File::open(bench.path("f")).unwrap().try_lock().is_err());
}

#[test]
fn a_tree_copied_in_and_out_is_the_same() {
    let bench = Bench::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let copied = Command::new("cp").arg("-r").arg(source).arg(bench.path("copy")).status().unwrap();
    assert!(copied.success());
    let same = Command::new("diff").arg("-r").arg(source).arg(bench.path("copy")).status().unwrap();
    assert!(same.success());
}

#[test]
fn the_binary_mounts_answers_commands_and_unmounts_when_its_input_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (mount, socket) = (directory.path().join("mount"), directory.path().join("control"));
    fs::create_dir(&mount).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_crashfs"))
        .args([mount.as_os_str(), OsStr::new("--control"), socket.as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"mounted ");
    fs::write(mount.join("f"), b"x").unwrap();
    let mut control = UnixStream::connect(&socket).unwrap();
    control.write_all(b"crash 1 nothing\n").unwrap();
    let mut answer = [0; 12];
    control.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ok names=1/1");
    assert!(fs::read_dir(&mount).unwrap().next().is_none());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(mount.to_str().unwrap()));
    assert!(!socket.exists());
}

#[test]
fn a_socket_can_live_in_it() {
    let bench = Bench::new();
    let listener = UnixListener::bind(bench.path("s")).unwrap();
    UnixStream::connect(bench.path("s")).unwrap();
    drop(listener);
}
