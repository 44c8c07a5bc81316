//! Descriptors stay few whatever the dataset. A binary of its own, because it counts those of the whole process.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use haul_buffers::Pool;
use haul_model::op::SourceOp;
use haul_model::{Entry, SlotId};
use haul_storage::SourceStorage;
use haul_storage::conformance_source::{read_members, read_object, scan_all};
use haul_storage::scan::Scan;
use haul_storage::source::{PosixSource, Root, SourceOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const DIRECTORIES: usize = 5000;

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn source(top: &Path, directory_descriptors_max: usize) -> PosixSource {
    let root = Root::new(top.to_str().unwrap());
    PosixSource::new(vec![root], SourceOptions { directory_descriptors_max, ..SourceOptions::default() })
}

fn check_content(source: &PosixSource, pool: &Pool, path: &[u8], entry: &Arc<Entry>) {
    let (length, results) = read_members(source, pool, &[Arc::clone(entry)]);
    assert!(results[0].is_ok(), "{}: {:?}", path.escape_ascii(), results[0]);
    let slot = pool.lease(SlotId(0)).unwrap();
    assert_eq!(&slot[..length as usize], path, "each file holds its path");
}

// One test: it changes a limit of the process.
#[test]
fn descriptors_are_bounded_and_directories_come_back() {
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    let scratch = tempfile::tempdir_in(base).unwrap();
    let mut deepest = scratch.path().to_path_buf();
    for directory in 0..DIRECTORIES {
        // Most side by side, three levels down; some in a chain of their own.
        let below = if directory % 50 == 0 {
            deepest.push(format!("chain{directory}"));
            deepest.clone()
        } else {
            scratch.path().join(format!("a{}/b{}/c{directory}", directory % 7, directory % 31))
        };
        fs::create_dir_all(&below).unwrap();
        let file = below.join("file");
        fs::write(&file, file.strip_prefix(scratch.path()).unwrap().to_str().unwrap()).unwrap();
    }
    few_are_enough(scratch.path());
    running_out_is_survived(scratch.path());
}

fn few_are_enough(top: &Path) {
    let before = open_descriptors();
    let source = source(top, 16);
    let mut scan = source.scan(Arc::new(AtomicU64::new(1)));
    let mut peak = 0;
    let mut batch = Vec::new();
    while scan.next(&mut batch) {
        peak = peak.max(open_descriptors());
    }
    drop(scan);
    // The table, the scan's own frames, one on the way, and the listing that counts.
    assert!(peak - before <= 16 + 48 + 2, "{} descriptors for the scan", peak - before);
    assert!(open_descriptors() - before <= 16);

    let found = scan_all(&mut source.scan(Arc::new(AtomicU64::new(1_000_000))), 1_000_000);
    assert_eq!(found.files.len(), DIRECTORIES);
    let pool = Pool::new(1, 4096).unwrap();
    // Far from the order of the scan: nearly every read has to open directories again.
    for step in 0..DIRECTORIES {
        let (path, entry) = &found.files[step * 1237 % DIRECTORIES];
        check_content(&source, &pool, path, entry);
        if step % 100 == 0 {
            assert!(open_descriptors() - before <= 2 * 16 + 2, "{}", open_descriptors() - before);
        }
    }
    for (path, entry) in &found.files {
        check_content(&source, &pool, path, entry);
    }

    // Files stay open from their first object to their release, and no longer.
    let quiet = open_descriptors();
    for (_, entry) in &found.files[..200] {
        assert!(read_object(&source, &pool, entry, 0, entry.size() as u32, true).is_ok());
    }
    assert!(open_descriptors() >= quiet + 150);
    for (_, entry) in &found.files[..200] {
        source.run(SourceOp::Release { id: entry.id }, &pool);
    }
    assert!(open_descriptors() <= quiet + 16);
}

/// The table may hold more than the process is allowed: what is held is given back when the kernel says no.
fn running_out_is_survived(top: &Path) {
    let before = getrlimit(Resource::Nofile);
    let allowed = open_descriptors() as u64 + 200;
    setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum: before.maximum }).unwrap();
    let source = source(top, 100_000);
    let found = scan_all(&mut source.scan(Arc::new(AtomicU64::new(1))), 1);
    assert_eq!(found.files.len(), DIRECTORIES);
    let pool = Pool::new(1, 4096).unwrap();
    for (path, entry) in &found.files {
        check_content(&source, &pool, path, entry);
    }
    drop(source);
    setrlimit(Resource::Nofile, before).unwrap();
}
