//! How fast the source half is: `cargo run --release -p haul-storage --example source_speed -- DIRECTORY [THREADS]`.
//!
//! Makes a tree of the size and shape of a Linux source tree and one large file in DIRECTORY (about 3 GiB; best on
//! tmpfs), then scans it and reads it, five times each, and prints medians: of the clock on the wall, and of processor
//! time, which says more on a busy machine. What it made stays for the next run.

use std::error::Error;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use haul_buffers::Pool;
use haul_model::op::{Progress, SourceDone, SourceOp};
use haul_model::{BlockId, Entry, Item, Kind, SlotId};
use haul_storage::SourceStorage;
use haul_storage::scan::{Scan, Scanned};
use haul_storage::source::{PosixSource, Root, SourceOptions};
use rustix::time::{ClockId, clock_gettime};

const FILES: u64 = 78_579;
const FILES_PER_DIRECTORY: u64 = 16;
const LARGE_BYTES: u64 = 2 << 30;
const OBJECT_BYTES: u32 = 4 << 20;
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let base = arguments.next().ok_or("usage: source_speed DIRECTORY [THREADS]")?;
    let threads: usize = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let tree = Path::new(&base).join("tree");
    let large = Path::new(&base).join("large");
    make_tree(&tree)?;
    make_large(&large)?;

    let (source, entries) = scan(&tree)?;
    let took = measure(|| assert_eq!(scan(&tree).map(|(_, found)| found.len()).ok(), Some(entries.len())));
    println!(
        "scan: {} entries, {took}; {:.2} us per entry",
        entries.len(),
        took.processor * 1e6 / entries.len() as f64
    );

    let files: Vec<_> = entries.into_iter().filter(|entry| entry.kind == Kind::File).collect();
    let bytes: u64 = files.iter().map(|entry| entry.size()).sum();
    let took = read(&source, bundles(&files), threads)?;
    println!(
        "ReadMembers: {} files, {:.2} GB, {took}; {:.2} us per file, {:.2} GB/s",
        files.len(),
        bytes as f64 / 1e9,
        took.processor * 1e6 / files.len() as f64,
        bytes as f64 / 1e9 / took.wall,
    );

    let (source, entries) = scan(&large)?;
    let entry = &entries[0];
    let objects = (0..entry.size().div_ceil(OBJECT_BYTES.into())).map(|index| {
        let offset = index * u64::from(OBJECT_BYTES);
        let length = u64::from(OBJECT_BYTES).min(entry.size() - offset) as u32;
        let entry = Arc::clone(entry);
        SourceOp::ReadObject {
            block: BlockId(index),
            entry,
            offset,
            length,
            slot: SlotId(0),
            single: false,
            again: false,
            on_the_way: false,
            gently: false,
        }
    });
    let took = read(&source, objects.collect(), threads)?;
    let bytes = entry.size() as f64 / 1e9;
    println!(
        "ReadObject: {bytes:.2} GB, {took}; {:.2} GB/s, {:.2} per core",
        bytes / took.wall,
        bytes / took.processor
    );
    Ok(())
}

type Dataset = (PosixSource, Vec<Arc<Entry>>);

fn scan(path: &Path) -> Result<Dataset, Box<dyn Error>> {
    let root = Root::new(path.to_str().ok_or("a path in UTF-8, please")?);
    let source = PosixSource::new(vec![root], SourceOptions::default());
    let mut scan = source.scan(Arc::new(AtomicU64::new(1)));
    let mut entries = Vec::new();
    let mut batch = Vec::new();
    while scan.next(&mut batch) {
        for found in batch.drain(..) {
            match found {
                Scanned::Item(Item::Entry(entry) | Item::Laid(entry, ..)) => entries.push(Arc::new(entry)),
                Scanned::Item(Item::End(_)) => {}
                Scanned::Error { failure, .. } => return Err(failure.to_string().into()),
            }
        }
    }
    Ok((source, entries))
}

fn bundles(files: &[Arc<Entry>]) -> Vec<SourceOp> {
    let bundle = |members| {
        let (block, slot) = (BlockId(0), SlotId(0));
        SourceOp::ReadMembers {
            block,
            slot,
            members,
            again: false,
            on_the_way: false,
            progress: Progress::default(),
        }
    };
    let mut bundles = Vec::new();
    let mut members = Vec::new();
    let mut bytes = 0;
    for entry in files {
        if bytes + entry.size() > u64::from(OBJECT_BYTES) || members.len() == 1024 {
            bundles.push(bundle(std::mem::take(&mut members)));
            bytes = 0;
        }
        bytes += entry.size();
        members.push(Arc::clone(entry));
    }
    bundles.push(bundle(members));
    bundles
}

/// Medians for all operations, shared out between the threads.
fn read(source: &PosixSource, ops: Vec<SourceOp>, threads: usize) -> Result<Seconds, Box<dyn Error>> {
    let pool = Pool::new(threads as u32, OBJECT_BYTES)?;
    Ok(measure(|| {
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for thread in 0..threads {
                let (next, ops, pool) = (&next, &ops, &pool);
                scope.spawn(move || {
                    while let Some(op) = ops.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let mut op = op.clone();
                        if let SourceOp::ReadMembers { slot, .. } | SourceOp::ReadObject { slot, .. } =
                            &mut op
                        {
                            *slot = SlotId(thread as u32);
                        }
                        match source.run(op, pool) {
                            Some(SourceDone::Object { result, .. }) => assert!(result.is_ok(), "{result:?}"),
                            Some(SourceDone::Members { results, .. }) => {
                                assert!(results.iter().all(|result| result.is_ok()));
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                });
            }
        });
    }))
}

struct Seconds {
    wall: f64,
    processor: f64,
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s ({:.3} s of processors)", self.wall, self.processor)
    }
}

fn measure(work: impl Fn()) -> Seconds {
    let processor_now = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (mut wall, mut processor) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (started, busy) = (Instant::now(), processor_now());
        work();
        wall.push(started.elapsed().as_secs_f64());
        processor.push(processor_now() - busy);
    }
    Seconds { wall: median(&mut wall), processor: median(&mut processor) }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Sizes as in a source tree: most a few KiB, some large, 14 KB on average; four levels of directories.
fn make_tree(tree: &Path) -> Result<(), Box<dyn Error>> {
    if tree.exists() {
        return Ok(());
    }
    let mut state = 1u64;
    let mut content = vec![0u8; 512 << 10];
    for (at, byte) in content.iter_mut().enumerate() {
        *byte = (at * 7 + at / 251) as u8;
    }
    for directory in 0..FILES.div_ceil(FILES_PER_DIRECTORY) {
        let path = tree.join(format!("part{}/group{}/unit{directory}", directory % 20, directory / 20 % 25));
        fs::create_dir_all(&path)?;
        let first = directory * FILES_PER_DIRECTORY;
        for file in first..FILES.min(first + FILES_PER_DIRECTORY) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = (state >> 11) as f64 / (1u64 << 53) as f64;
            let size = (-uniform.max(1e-9).ln() * 5_000.0).powf(1.1).min(400_000.0) as usize;
            let name = format!("some-source-file-{file}.c");
            fs::write(path.join(name), &content[..size])?;
        }
    }
    Ok(())
}

fn make_large(large: &Path) -> Result<(), Box<dyn Error>> {
    use std::io::Write;
    if large.exists() {
        return Ok(());
    }
    let mut file = fs::File::create(large)?;
    let mut piece = vec![0u8; 1 << 20];
    for round in 0..LARGE_BYTES >> 20 {
        piece.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at as u64 * 31 + round) as u8);
        file.write_all(&piece)?;
    }
    Ok(())
}
