//! What programs expect of a file system; above all what haul's sink does with one.

mod common;

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use common::{Bench, K64, pattern};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;

fn names(bench: &Bench, name: &str) -> Vec<String> {
    let entries = fs::read_dir(bench.path(name)).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// The calls of `haul_storage::sink` on one file, in their order.
#[test]
fn an_unfinished_file_is_written_sealed_named_and_synced() {
    let bench = Bench::with(3, |options| options.stripe_count = 3);
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let open = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(bench.path(""), open | OFlags::DIRECTORY, Mode::empty()).unwrap();
    rustix::fs::mkdirat(&root, "d", Mode::RWXU).unwrap();
    let directory =
        rustix::fs::openat2(&root, "d", open | OFlags::DIRECTORY, Mode::empty(), resolve).unwrap();
    let create = open | OFlags::NOCTTY | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file =
        rustix::fs::openat2(&directory, ".haul-0", create, Mode::from_raw_mode(0o600), resolve).unwrap();
    let again = rustix::fs::openat2(&directory, ".haul-0", create, Mode::from_raw_mode(0o600), resolve);
    assert_eq!(again.unwrap_err(), Errno::EXIST);
    let bytes = pattern(5 * K64 + 7);
    // Out of order, as objects arrive.
    assert_eq!(rustix::io::pwrite(&file, &bytes[3 * K64..], 3 * K64 as u64), Ok(2 * K64 + 7));
    assert_eq!(rustix::io::pwrite(&file, &bytes[..3 * K64], 0), Ok(3 * K64));
    rustix::fs::fdatasync(&file).unwrap();
    rustix::fs::fchown(&file, Some(Uid::from_raw(1000)), Some(Gid::from_raw(1001))).unwrap();
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o1640)).unwrap();
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time(1, 2), last_modification: time(1_000_000_001, 123_456_789) };
    rustix::fs::futimens(&file, &times).unwrap();
    rustix::fs::fsync(&file).unwrap();
    rustix::fs::syncfs(&file).unwrap();
    rustix::fs::renameat_with(&directory, ".haul-0", &directory, "f", RenameFlags::NOREPLACE).unwrap();
    rustix::fs::fsync(&directory).unwrap();
    let status = rustix::fs::statat(&directory, "f", AtFlags::SYMLINK_NOFOLLOW).unwrap();
    assert_eq!(
        (status.st_uid, status.st_gid, status.st_mode & 0o7777, status.st_nlink),
        (1000, 1001, 0o1640, 1)
    );
    assert_eq!((status.st_mtime, status.st_mtime_nsec), (1_000_000_001, 123_456_789));
    assert_eq!(status.st_size as usize, bytes.len());
    assert!(status.st_blocks * 512 >= status.st_size, "no holes are told of where there are none");
    assert!(fs::read(bench.path("d/f")).unwrap() == bytes);
}

#[test]
fn rename_without_replacing_refuses_and_with_flags_only_if_that_is_not_refused() {
    let bench = Bench::new(1);
    fs::write(bench.path("a"), b"a").unwrap();
    fs::write(bench.path("b"), b"b").unwrap();
    let rename = |from: &str, to: &str, flags| {
        rustix::fs::renameat_with(CWD, bench.path(from), CWD, bench.path(to), flags)
    };
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    assert_eq!(rename("a", "b", RenameFlags::EXCHANGE), Err(Errno::INVAL));
    rename("a", "c", RenameFlags::NOREPLACE).unwrap();
    bench.control("rename_flags=refuse");
    assert_eq!(rename("c", "d", RenameFlags::NOREPLACE), Err(Errno::INVAL));
    rename("c", "b", RenameFlags::empty()).unwrap();
    assert_eq!(fs::read(bench.path("b")).unwrap(), b"a");
    assert_eq!(names(&bench, ""), ["b"]);
}

#[test]
fn links_symlinks_and_directories() {
    let bench = Bench::new(2);
    fs::write(bench.path("f"), b"x").unwrap();
    fs::hard_link(bench.path("f"), bench.path("g")).unwrap();
    assert_eq!(fs::metadata(bench.path("f")).unwrap().nlink(), 2);
    fs::write(bench.path("g"), b"yy").unwrap();
    assert_eq!(fs::read(bench.path("f")).unwrap(), b"yy");
    let long = "t/".repeat(2000);
    std::os::unix::fs::symlink(&long, bench.path("s")).unwrap();
    assert_eq!(fs::read_link(bench.path("s")).unwrap().to_str(), Some(&*long));
    let time = Timespec { tv_sec: 5, tv_nsec: 6 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, bench.path("s"), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    rustix::fs::chownat(CWD, bench.path("s"), Some(Uid::from_raw(7)), None, AtFlags::SYMLINK_NOFOLLOW)
        .unwrap();
    let status = fs::symlink_metadata(bench.path("s")).unwrap();
    assert_eq!((status.mtime(), status.mtime_nsec(), status.uid()), (5, 6, 7));
    fs::create_dir_all(bench.path("a/b")).unwrap();
    assert_eq!(fs::remove_dir(bench.path("a")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    assert!(fs::rename(bench.path("a"), bench.path("a/b/c")).is_err());
    assert!(fs::remove_file(bench.path("a")).is_err());
    fs::rename(bench.path("a/b"), bench.path("c")).unwrap();
    fs::remove_dir(bench.path("a")).unwrap();
    assert_eq!(names(&bench, ""), ["c", "f", "g", "s"]);
    let listener = UnixListener::bind(bench.path("socket")).unwrap();
    UnixStream::connect(bench.path("socket")).unwrap();
    drop(listener);
}

#[test]
fn names_are_any_bytes_and_times_any_times() {
    let bench = Bench::new(1);
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
    for (tv_sec, tv_nsec) in [(-2, 200_000_000), (-1, 999_999_999), (0, 1), (2_000_000_000, 123_456_789)] {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, bench.path("-rf"), &times, AtFlags::empty()).unwrap();
        let status = fs::metadata(bench.path("-rf")).unwrap();
        assert_eq!((status.mtime(), status.mtime_nsec()), (tv_sec, tv_nsec));
    }
}

#[test]
fn writing_moves_the_time_and_takes_setuid_away() {
    let bench = Bench::new(1);
    fs::write(bench.path("f"), vec![1; 100]).unwrap();
    let time = Timespec { tv_sec: 1000, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, bench.path("f"), &times, AtFlags::empty()).unwrap();
    let file = File::options().write(true).open(bench.path("f")).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    assert!(fs::metadata(bench.path("f")).unwrap().mtime() > 1_000_000);
    fs::set_permissions(bench.path("f"), Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(fs::metadata(bench.path("f")).unwrap().mode() & 0o7777, 0o4755);
}

#[test]
fn five_thousand_names_are_listed_once_each_with_their_inodes() {
    let bench = Bench::new(1);
    fs::create_dir(bench.path("d")).unwrap();
    (0..5000).for_each(|number| bench.mknod(&format!("d/{number:04}")));
    assert_eq!(names(&bench, "d"), (0..5000).map(|number| format!("{number:04}")).collect::<Vec<_>>());
    for entry in fs::read_dir(bench.path("d")).unwrap().take(10) {
        let entry = entry.unwrap();
        assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), entry.metadata().unwrap().ino());
    }
}

#[test]
fn attributes_of_users_are_kept_and_foreign_ones_refused() {
    use rustix::fs::XattrFlags;
    let bench = Bench::new(1);
    fs::write(bench.path("f"), b"").unwrap();
    let set = |name: &str, flags| rustix::fs::setxattr(bench.path("f"), name, b"value", flags);
    set("user.a", XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.a", XattrFlags::CREATE), Err(Errno::EXIST));
    let mut value = [0; 16];
    assert_eq!(rustix::fs::getxattr(bench.path("f"), "user.a", &mut value[..]), Ok(5));
    rustix::fs::removexattr(bench.path("f"), "user.a").unwrap();
    assert_eq!(rustix::fs::getxattr(bench.path("f"), "user.a", &mut value[..]), Err(Errno::NODATA));
    assert!(set("trusted.stripefs.layout", XattrFlags::empty()).is_err(), "its own affair");
    assert!(set("lustre.lov.set", XattrFlags::empty()).is_err(), "not emulated");
}

#[test]
fn room_is_that_of_the_targets() {
    let bench = Bench::new(3);
    let one = rustix::fs::statvfs(bench.beside("target-0")).unwrap();
    let all = rustix::fs::statvfs(bench.path("")).unwrap();
    assert_eq!(all.f_blocks * all.f_frsize / 4096, 3 * (one.f_blocks * one.f_frsize / 4096));
    let file = File::create(bench.path("f")).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 10_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10_000);
    file.try_lock().unwrap();
    assert!(File::open(bench.path("f")).unwrap().try_lock().is_err());
}

#[test]
fn appending_goes_to_the_end() {
    let bench = Bench::with(2, |options| options.stripe_count = 2);
    for _ in 0..100 {
        let mut file = File::options().append(true).create(true).open(bench.path("f")).unwrap();
        file.write_all(&pattern(1777)).unwrap();
    }
    assert!(fs::read(bench.path("f")).unwrap() == pattern(1777).repeat(100));
}

#[test]
fn a_tree_copied_in_and_out_is_the_same() {
    let mut bench = Bench::with(3, |options| options.stripe_count = 2);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let copied = Command::new("cp").arg("-rp").arg(source).arg(bench.path("copy")).status().unwrap();
    assert!(copied.success());
    let is_same = |bench: &Bench| {
        Command::new("diff").arg("-r").arg(source).arg(bench.path("copy")).status().unwrap().success()
    };
    assert!(is_same(&bench));
    bench.again();
    assert!(is_same(&bench));
    fs::remove_dir_all(bench.path("copy")).unwrap();
    common::eventually("all objects are gone", || bench.objects_left() == 0);
}
