//! Every source passes the one suite.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use haul_storage::SourceStorage;
use haul_storage::conformance_source::{Change, Fixture, SIZES, check_all};
use haul_storage::engine::{Direction, Engine, Engines, Io, Trouble, Wish};
use haul_storage::memory_source::MemorySource;
use haul_storage::scan::Scan;
use haul_storage::source::{PosixSource, Root, SourceOptions};
use haul_storage::synthetic::{Sizes, SyntheticSource, SyntheticSpec};

fn bytes(seed: usize, length: u64) -> Vec<u8> {
    (0..length as usize).map(|at| (at * 31 + at / 257 + seed * 7) as u8).collect()
}

/// Paths of the files of [`SIZES`], spread over directories at several depths.
fn paths() -> impl Iterator<Item = (usize, String, u64)> {
    SIZES.iter().enumerate().map(|(at, size)| {
        let directory = ["one", "one/two", "three", "one/two/four"][at % 4];
        (at, format!("{directory}/file{at}"), *size)
    })
}

struct Posix {
    scratch: tempfile::TempDir,
    source: PosixSource,
}

impl Posix {
    fn new(options: SourceOptions) -> Self {
        Posix::read_by(options, Wish::default(), Trouble::default())
    }

    fn read_by(options: SourceOptions, wish: Wish, trouble: Trouble) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        for (at, path, size) in paths() {
            let path = scratch.path().join("data").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes(at, size)).unwrap();
        }
        let root = Root::new(scratch.path().join("data").to_str().unwrap());
        let engines = Arc::new(Engines::with_trouble(Direction::Read, wish, trouble));
        Posix { source: PosixSource::with_engines(vec![root], options, engines), scratch }
    }

    fn path(&self, path: &[u8]) -> PathBuf {
        self.scratch.path().join("data").join(str::from_utf8(path).unwrap())
    }
}

impl Fixture for Posix {
    fn storage(&self) -> &dyn SourceStorage {
        &self.source
    }

    fn scan(&self, ids: Arc<AtomicU64>) -> Box<dyn Scan> {
        Box::new(self.source.scan(ids))
    }

    fn content(&self, path: &[u8]) -> Vec<u8> {
        fs::read(self.path(path)).unwrap()
    }

    fn change(&self, path: &[u8], change: Change) -> bool {
        let path = self.path(path);
        let before = fs::metadata(&path).unwrap();
        // A kernel's clock may tick more slowly than the test runs; wait until a change can be seen at all.
        wait_for_a_new_tick(&path);
        match change {
            Change::Grow => fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"x").unwrap(),
            Change::Shrink => {
                fs::File::options().write(true).open(&path).unwrap().set_len(before.len() - 1).unwrap()
            }
            Change::Rewrite => {
                let other = vec![0xa5; before.len() as usize];
                fs::OpenOptions::new().write(true).open(&path).unwrap().write_all(&other).unwrap();
                // Put the time back, as careful editors do: the change time still tells.
                let file = fs::File::options().write(true).open(&path).unwrap();
                file.set_modified(before.modified().unwrap()).unwrap();
            }
            Change::Replace => {
                let other = path.with_extension("new");
                fs::copy(&path, &other).unwrap();
                let file = fs::File::options().write(true).open(&other).unwrap();
                file.set_modified(before.modified().unwrap()).unwrap();
                fs::rename(&other, &path).unwrap();
            }
            Change::Vanish => fs::remove_file(&path).unwrap(),
        }
        true
    }
}

fn wait_for_a_new_tick(path: &Path) {
    use std::os::unix::fs::MetadataExt;
    let before = fs::metadata(path).unwrap();
    let probe = path.with_extension("tick");
    loop {
        fs::write(&probe, b"").unwrap();
        let now = fs::metadata(&probe).unwrap();
        if (now.ctime(), now.ctime_nsec()) > (before.ctime(), before.ctime_nsec()) {
            break;
        }
        std::hint::spin_loop();
    }
    fs::remove_file(&probe).unwrap();
}

struct Memory(MemorySource);

impl Memory {
    fn new() -> Self {
        let source = MemorySource::new(vec![Root::new("data")], true);
        for (at, path, size) in paths() {
            source.write(format!("data/{path}").as_bytes(), bytes(at, size));
        }
        Memory(source)
    }
}

impl Fixture for Memory {
    fn storage(&self) -> &dyn SourceStorage {
        &self.0
    }

    fn scan(&self, ids: Arc<AtomicU64>) -> Box<dyn Scan> {
        Box::new(self.0.scan(ids))
    }

    fn content(&self, path: &[u8]) -> Vec<u8> {
        self.0.content(&[b"data/", path].concat()).unwrap()
    }

    fn change(&self, path: &[u8], change: Change) -> bool {
        let path = &[b"data/", path].concat();
        let before = self.0.content(path).unwrap();
        match change {
            Change::Grow => self.0.append(path, b"x"),
            Change::Shrink => self.0.truncate(path, before.len() - 1),
            Change::Rewrite => self.0.write(path, vec![0xa5; before.len()]),
            Change::Replace => self.0.replace(path, before),
            Change::Vanish => self.0.remove(path),
        }
        true
    }
}

struct Synthetic(SyntheticSource);

impl Fixture for Synthetic {
    fn storage(&self) -> &dyn SourceStorage {
        &self.0
    }

    fn scan(&self, ids: Arc<AtomicU64>) -> Box<dyn Scan> {
        Box::new(self.0.scan(ids))
    }

    fn content(&self, path: &[u8]) -> Vec<u8> {
        let spec = self.0.spec();
        let file = spec.file_at(path).unwrap();
        let mut bytes = vec![0; spec.size(file) as usize];
        spec.fill(file, 0, &mut bytes);
        bytes
    }

    fn change(&self, _path: &[u8], _change: Change) -> bool {
        false
    }
}

#[test]
fn posix_conforms() {
    check_all(|| Posix::new(SourceOptions::default()));
}

#[test]
fn posix_conforms_with_a_single_directory_descriptor() {
    let options = SourceOptions { directory_descriptors_max: 1, ..SourceOptions::default() };
    check_all(|| Posix::new(options));
}

#[test]
fn posix_conforms_with_bytes_that_stay_in_their_files() {
    let options =
        SourceOptions { in_place: true, in_place_member_bytes_min: 1024, ..SourceOptions::default() };
    check_all(|| Posix::new(options));
}

#[test]
fn posix_conforms_with_every_engine() {
    let cut_short = Trouble { cut_short: true, ..Trouble::default() };
    for in_place in [false, true] {
        let options = SourceOptions { in_place, ..SourceOptions::default() };
        for engine in [Engine::Posix, Engine::Uring] {
            for io in [Io::Buffered, Io::Direct] {
                let wish = Wish { engine: Some(engine), io: Some(io) };
                check_all(|| Posix::read_by(options, wish, Trouble::default()));
                check_all(|| Posix::read_by(options, wish, cut_short));
            }
        }
    }
}

#[test]
fn memory_conforms() {
    check_all(Memory::new);
}

#[test]
fn synthetic_conforms() {
    check_all(|| {
        let sizes = Sizes::Cycle(SIZES.to_vec());
        Synthetic(SyntheticSource::new(SyntheticSpec { seed: 1, files: 25, files_per_directory: 7, sizes }))
    });
}
