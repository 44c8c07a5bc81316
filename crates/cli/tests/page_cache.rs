//! `haul cp` leaves the page cache as it found it, at both ends.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use haul_testkit::{COUNTED, alone, cached, cached_eq, lacks, undisturbed};
use rustix::fs::{Advice, fadvise, fstatfs};

const TMPFS: u64 = 0x0102_1994;
/// One that travels as one object, one as several, and some in a bundle. The last of those is large enough to be sent
/// straight from its file.
const FILES: [(&str, usize); 5] =
    [("one", 1 << 20), ("several", (3 << 20) + 5), ("small", 5000), ("medium", 40_000), ("large", 600_000)];
/// Smaller copies that came in bundles stay in the cache.
const DROPPED_MIN: usize = 16 << 10;

/// Pages of the file that are in the cache; `None` where the kernel cannot tell (`cachestat` is there from Linux 6.5 on).
fn cached(path: &Path) -> Option<u64> {
    let file = File::open(path).unwrap();
    let (range, mut pages) = ([0u64; 2], [0u64; 5]);
    // SAFETY: `cachestat(2)` reads two numbers, offset and length, and writes five.
    let result = unsafe { libc::syscall(451, file.as_raw_fd(), range.as_ptr(), pages.as_mut_ptr(), 0) };
    (result == 0).then_some(pages[0])
}

/// On a disk; what is there now is on it. `warm`: and in the cache.
fn dataset(directory: &Path, warm: bool) {
    fs::create_dir(directory.join("tree")).unwrap();
    for (name, size) in FILES {
        let path = directory.join("tree").join(name);
        fs::write(&path, vec![7; size]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        if !warm {
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        }
    }
}

#[test]
fn what_was_not_in_the_cache_is_not_there_afterwards_and_what_was_stays() {
    undisturbed(|| {
        let haul = env!("CARGO_BIN_EXE_haul");
        let shell = format!("{haul} bench shell");
        let ways: [(&str, &[&str]); 3] = [("", &[]), ("127.0.0.1:", &["--plain"]), ("127.0.0.1:", &[])];
        for (host, options) in ways {
            for warm in [false, true] {
                // Not where directories for temporary files are: those are often in memory.
                let bed = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
                dataset(bed.path(), warm);
                let source = |name: &str| bed.path().join("tree").join(name);
                let Some(before) = cached(&source("several")) else { return lacks(COUNTED) };
                let in_memory =
                    fstatfs(File::open(bed.path()).unwrap().as_fd()).unwrap().f_type as u64 == TMPFS;
                cached_eq!(before > 0, warm || in_memory, "of the source before");
                let to = &format!("{host}{}", bed.path().join("copy").display());
                let mut command = alone(haul, bed.path());
                command.args(["cp", "-r", "--quiet", "--object-size", "1MiB", "--bundle-below", "1MiB"]);
                command.args(options).args(["--ssh", &shell, "--haul-path", haul, "tree", to]);
                let ended = command.output().unwrap();
                assert!(
                    ended.status.success(),
                    "{to} {options:?}: {}",
                    String::from_utf8_lossy(&ended.stderr)
                );
                for (name, size) in FILES {
                    let pages = cached(&source(name)).unwrap();
                    if warm || in_memory {
                        cached!(pages > 0, "{to} {options:?}: {name} of the source");
                    } else {
                        // What left straight from the cache stays there until the other end's kernel has acknowledged it.
                        let on_their_way = if options.is_empty() { 0 } else { size as u64 / 4096 / 2 };
                        assert!(
                            pages <= on_their_way,
                            "{to} {options:?}: {pages} pages of {name} of the source"
                        );
                    }
                    let copy = bed.path().join("copy").join(name);
                    if size >= DROPPED_MIN && !in_memory {
                        cached_eq!(cached(&copy), Some(0), "{to} {options:?}: {name} of the copy");
                    }
                    assert_eq!(fs::read(&copy).unwrap(), vec![7; size]);
                }
            }
        }
    });
}

/// What somebody has looked at, as the header of each file.
#[test]
fn of_files_at_which_somebody_has_looked_that_stays_and_the_rest_goes() {
    undisturbed(|| {
        let files = [("large", 9 << 20), ("medium", 3 << 20), ("small", 600_000), ("smallest", 100_000)];
        let haul = env!("CARGO_BIN_EXE_haul");
        let shell = format!("{haul} bench shell");
        for (host, options) in [("", &[][..]), ("127.0.0.1:", &[]), ("127.0.0.1:", &["--io", "buffered"])] {
            let bed = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            fs::create_dir(bed.path().join("tree")).unwrap();
            let at = |name: &str| bed.path().join("tree").join(name);
            for (name, bytes) in files {
                fs::write(at(name), vec![7; bytes]).unwrap();
                let file = File::open(at(name)).unwrap();
                file.sync_all().unwrap();
                fadvise(&file, 0, None, Advice::DontNeed).unwrap();
                if cached(&at(name)) != Some(0) {
                    return lacks(COUNTED);
                }
                fadvise(&file, 0, None, Advice::Random).unwrap();
                file.read_at(&mut [0], 0).unwrap();
                cached_eq!(cached(&at(name)), Some(1), "{name}");
            }
            let mut command = alone(haul, bed.path());
            command.args(["cp", "-r", "--quiet", "--object-size", "1MiB"]).args(options);
            command.args(["--ssh", &shell, "--haul-path", haul, "tree"]);
            let ended = command.arg(format!("{host}{}", bed.path().join("copy").display())).output().unwrap();
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
            for (name, _) in files {
                let pages = cached(&at(name)).unwrap();
                // As it was found, or somewhat more: a file system may keep several pages together.
                cached!((1..=16).contains(&pages), "{host} {options:?}: {pages} pages of {name}");
            }
        }
    });
}
