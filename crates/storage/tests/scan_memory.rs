//! What the scan keeps does not grow with the dataset. A binary of its own, because it counts every allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use haul_buffers::Pool;
use haul_model::op::SourceOp;
use haul_model::{Item, Kind};
use haul_storage::SourceStorage;
use haul_storage::scan::{Scan, Scanned};
use haul_storage::source::{PosixSource, Root, SourceOptions};
use haul_storage::synthetic::{Sizes, SyntheticSource, SyntheticSpec};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator as it came; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promise about `layout` is the one that is needed.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` above with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Scans to the end as a session does: batches are dropped, ended directories forgotten. How many files there were,
/// and how far memory went above what it was.
fn scan(scan: &mut dyn Scan, storage: &dyn SourceStorage) -> (usize, usize) {
    let pool = Pool::new(1, 4096).unwrap();
    let mut batch = Vec::new();
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let mut files = 0;
    while scan.next(&mut batch) {
        for scanned in batch.drain(..) {
            match scanned {
                Scanned::Item(Item::Entry(entry) | Item::Laid(entry, ..)) => {
                    files += usize::from(entry.kind == Kind::File);
                }
                Scanned::Item(Item::End(id)) => drop(storage.run(SourceOp::Forget { id }, &pool)),
                Scanned::Error { path, failure } => panic!("{}: {failure}", path.escape_ascii()),
            }
        }
    }
    (files, PEAK.load(Ordering::Relaxed) - before)
}

// One test: the counters are of the whole process.
#[test]
fn memory_does_not_grow_with_names_or_directories() {
    const BOUND_BYTES: usize = 3 << 20;
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    let scratch = tempfile::tempdir_in(base).unwrap();

    let wide = scratch.path().join("wide");
    fs::create_dir(&wide).unwrap();
    for file in 0..200_000 {
        fs::File::create(wide.join(format!("one-of-very-many-files-{file:0>20}"))).unwrap();
    }
    let source = PosixSource::new(vec![Root::new(wide.to_str().unwrap())], SourceOptions::default());
    let (files, peak) = scan(&mut source.scan(Arc::new(AtomicU64::new(1))), &source);
    assert_eq!(files, 200_000);
    assert!(peak < BOUND_BYTES, "{peak} bytes for one directory");

    let many = scratch.path().join("many");
    for directory in 0..20_000 {
        fs::create_dir_all(many.join(format!("{}/{directory}", directory % 100))).unwrap();
    }
    let options = SourceOptions { directory_descriptors_max: 64, ..SourceOptions::default() };
    let source = PosixSource::new(vec![Root::new(many.to_str().unwrap())], options);
    let (files, peak) = scan(&mut source.scan(Arc::new(AtomicU64::new(1))), &source);
    assert_eq!(files, 0);
    assert!(peak < BOUND_BYTES, "{peak} bytes for many directories");

    let sizes = Sizes::Uniform(0, 20_000);
    let spec = SyntheticSpec { seed: 1, files: 1_000_000, files_per_directory: 1000, sizes };
    let source = SyntheticSource::new(spec);
    let (files, peak) = scan(&mut source.scan(Arc::new(AtomicU64::new(1))), &source);
    assert_eq!(files, 1_000_000);
    assert!(peak < BOUND_BYTES, "{peak} bytes for a million synthetic files");
}
