//! A push hashes what is in memory while the other end is being reached, and what changes meanwhile is not lost.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use haul_testkit::{COUNTED, alone, lacks};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;

const OBJECT: usize = 512 << 10;
/// In a bundle and too small, in a bundle, large enough to come first, as one object, as many.
const FILES: [(&str, usize); 5] =
    [("small", 1000), ("little", 20_000), ("member", 300_000), ("one", 500_000), ("many", 9 * OBJECT + 5)];
const HASHED_EARLY: usize = 20_000 + 300_000 + 500_000 + 9 * OBJECT + 5;

struct Bed {
    directory: tempfile::TempDir,
}

impl Bed {
    /// In memory. `None` where nobody can know what is there (`cachestat` is there from Linux 6.5 on).
    fn new() -> Option<Bed> {
        use_no_more_processors_than_time();
        let bed = Bed { directory: tempfile::tempdir_in("/dev/shm").unwrap() };
        fs::create_dir(bed.path("tree")).unwrap();
        for (name, size) in FILES {
            fs::write(bed.source(name), content(name, size)).unwrap();
        }
        let file = File::open(bed.source("small")).unwrap();
        let (range, mut pages) = ([0u64; 2], [0u64; 5]);
        // SAFETY: `cachestat(2)` reads two numbers, offset and length, and writes five.
        let result = unsafe { libc::syscall(451, file.as_raw_fd(), range.as_ptr(), pages.as_mut_ptr(), 0) };
        (result == 0).then_some(bed)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn source(&self, name: &str) -> PathBuf {
        self.path("tree").join(name)
    }

    /// A push to a host that answers when [`Bed::answer`] was called. Threads that give way may take their time to hash everything.
    fn push(&self, options: &[&str]) -> Child {
        let haul = env!("CARGO_BIN_EXE_haul");
        let go = self.path("go");
        let _ = fs::remove_file(self.path("hashed"));
        let _ = fs::remove_file(&go);
        let script = format!(
            "until [ -e '{}' ]; do sleep 0.05; done\nexec '{haul}' bench shell \"$@\"\n",
            go.display()
        );
        fs::write(self.path("ssh"), script).unwrap();
        alone(haul, self.directory.path())
            .env("HAUL_TEST_HASHED_EARLY", self.path("hashed"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .args(["cp", "-r", "--json", "-v", "--object-size", "512KiB", "--bundle-below", "400KiB"])
            .args(["--ssh", &format!("sh '{}'", self.path("ssh").display()), "--haul-path", haul])
            .args(options)
            .arg("tree")
            .arg(format!("localhost:{}", self.path("copy").display()))
            .spawn()
            .unwrap()
    }

    fn wait_until_hashed(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.path("hashed").exists() {
            assert!(Instant::now() < deadline, "it is not hashed");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn answer(&self) {
        fs::write(self.path("go"), b"").unwrap();
    }

    /// What it has told: of files, and of the whole.
    fn ended(&self, child: Child) -> Vec<Value> {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{} {text}", String::from_utf8_lossy(&output.stderr));
        for (name, _) in FILES {
            let copy = fs::read(self.path("copy").join(name)).unwrap();
            assert!(copy == fs::read(self.source(name)).unwrap(), "{name}");
        }
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }
}

/// Where processor time is rationed nothing is hashed early; it is not for those that may use no more processors than they have time
/// of, as this thread and what it starts from here on.
fn use_no_more_processors_than_time() {
    let usable = std::thread::available_parallelism().unwrap().get();
    let all = sched_getaffinity(None).unwrap();
    let mut few = CpuSet::new();
    (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).take(usable).for_each(|cpu| few.set(cpu));
    sched_setaffinity(None, &few).unwrap();
}

fn content(name: &str, size: usize) -> Vec<u8> {
    (0..size).map(|at| (at / 1000 * 31 + at % 253 + name.len() * 7) as u8).collect()
}

fn event<'a>(events: &'a [Value], name: &str) -> &'a Value {
    events.iter().find(|event| event["event"] == name).unwrap_or_else(|| panic!("no {name}: {events:?}"))
}

#[test]
fn what_is_in_memory_is_hashed_while_the_other_end_is_reached() {
    for options in [&[][..], &["--plain"], &["--plain", "--hash", "xxh3"]] {
        let Some(bed) = Bed::new() else { return lacks(COUNTED) };
        let child = bed.push(options);
        bed.wait_until_hashed();
        bed.answer();
        let events = bed.ended(child);
        let (profile, summary) = (event(&events, "profile"), event(&events, "summary"));
        assert_eq!(profile["hashed_early_bytes"], HASHED_EARLY, "{options:?}: {profile:#}");
        // Nothing of it is hashed again.
        let bytes = |stage: &str| profile["source"]["stages"][stage]["bytes"].as_u64().unwrap_or(0);
        assert_eq!((bytes("hash"), bytes("hash-on-way")), (1000, 0), "{options:?}: {profile:#}");
        assert_eq!((&summary["objects_repaired"], &summary["files_done"]), (&0.into(), &5.into()));
    }
}

#[test]
fn a_file_that_was_changed_since_is_sent_as_it_is_now() {
    for options in [&[][..], &["--plain"]] {
        let Some(bed) = Bed::new() else { return lacks(COUNTED) };
        let child = bed.push(options);
        bed.wait_until_hashed();
        for name in ["member", "one", "many"] {
            let file = File::options().write(true).open(bed.source(name)).unwrap();
            file.write_all_at(b"changed", 200_000).unwrap();
        }
        bed.answer();
        let events = bed.ended(child);
        assert_eq!(event(&events, "summary")["files_done"], 5, "{options:?}: {events:?}");
    }
}

/// Writes through a mapping, which leaves no trace in the times of a file in memory.
fn change_silently(path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len() as usize;
    let (protection, at_any, fd) =
        (libc::PROT_READ | libc::PROT_WRITE, std::ptr::null_mut(), file.as_raw_fd());
    // SAFETY: a new mapping of the whole file; one byte of it is changed, and it is taken away.
    unsafe {
        let start = libc::mmap(at_any, length, protection, libc::MAP_SHARED, fd, 0);
        assert_ne!(start, libc::MAP_FAILED);
        *start.cast::<u8>().add(200_000) ^= 1;
        libc::munmap(start, length);
    }
}

#[test]
fn so_is_one_that_was_changed_without_a_trace() {
    for options in [&[][..], &["--plain"]] {
        let Some(bed) = Bed::new() else { return lacks(COUNTED) };
        let version = |name| {
            let metadata = fs::metadata(bed.source(name)).unwrap();
            (metadata.mtime_nsec(), metadata.ctime_nsec())
        };
        let child = bed.push(options);
        bed.wait_until_hashed();
        let names = ["member", "one", "many"];
        let before = names.map(version);
        names.iter().for_each(|name| change_silently(&bed.source(name)));
        let no_trace = names.map(version) == before;
        bed.answer();
        let events = bed.ended(child);
        if no_trace {
            // The sink has found each of them wrong once.
            assert_eq!(event(&events, "summary")["objects_repaired"], 3, "{options:?}: {events:?}");
        }
        let told =
            events.iter().find(|event| event["path"].as_str().is_some_and(|path| path.ends_with("many")));
        let hash = blake3::hash(&fs::read(bed.path("copy/many")).unwrap()).to_string();
        assert_eq!(told.unwrap()["hash"], hash, "{options:?}");
    }
}

#[test]
fn what_was_found_long_ago_is_looked_for_anew() {
    let Some(bed) = Bed::new() else { return lacks(COUNTED) };
    let child = bed.push(&[]);
    let began = Instant::now();
    bed.wait_until_hashed();
    fs::write(bed.source("small"), content("other", 1001)).unwrap();
    std::thread::sleep(Duration::from_secs(14).saturating_sub(began.elapsed()));
    bed.answer();
    let events = bed.ended(child);
    assert_eq!(
        event(&events, "profile")["source"]["stages"]["hash-on-way"]["bytes"],
        9 * OBJECT + 5 + 300_000
    );
}
