//! A crash file system mounted for one test.
#![allow(dead_code)]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use haul_crashfs::{CrashFs, CrashReport, Mood, Mount};
use tempfile::TempDir;

pub struct Bench {
    pub filesystem: CrashFs,
    // Dropped before the directory that it covers.
    _mount: Mount,
    directory: TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let filesystem = CrashFs::new(1);
        let mount = Mount::new(&filesystem, directory.path())
            .expect("mounting needs /dev/fuse, and root or fusermount3 (make deps)");
        Bench { filesystem, _mount: mount, directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.path(name)).ok()
    }

    pub fn create(&self, name: &str) -> File {
        OpenOptions::new().create_new(true).read(true).write(true).mode(0o600).open(self.path(name)).unwrap()
    }

    pub fn append(&self, name: &str, bytes: &[u8]) {
        OpenOptions::new().append(true).open(self.path(name)).unwrap().write_all(bytes).unwrap();
    }

    /// `fsync` of a file or directory.
    pub fn sync(&self, name: &str) {
        File::open(self.path(name)).unwrap().sync_all().unwrap();
    }

    pub fn sync_data(&self, name: &str) {
        File::open(self.path(name)).unwrap().sync_data().unwrap();
    }

    /// Crash in which exactly what was synced survives.
    pub fn crash_hard(&self) -> CrashReport {
        self.filesystem.crash(1, Some(Mood::Nothing))
    }

    pub fn names(&self, name: &str) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.path(name))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }
}

/// Counts in how many of `rounds` crashes of a newly made state each outcome comes.
pub fn outcomes<T: Ord>(
    rounds: u64,
    mood: Mood,
    mut prepare: impl FnMut(&Bench),
    mut look: impl FnMut(&Bench) -> T,
) -> std::collections::BTreeMap<T, u64> {
    let bench = Bench::new();
    let mut counts = std::collections::BTreeMap::new();
    for seed in 0..rounds {
        for entry in fs::read_dir(bench.path("")).unwrap() {
            remove(&entry.unwrap().path());
        }
        bench.filesystem.sync_all();
        prepare(&bench);
        bench.filesystem.crash(seed, Some(mood));
        *counts.entry(look(&bench)).or_insert(0) += 1;
    }
    counts
}

fn remove(path: &Path) {
    if path.symlink_metadata().unwrap().is_dir() {
        fs::remove_dir_all(path).unwrap();
    } else {
        fs::remove_file(path).unwrap();
    }
}
