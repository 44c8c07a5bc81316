//! What it is worth to read a file of small stripes target by target: contiguous objects, each on all targets, against
//! objects that are the ranges of one target. Decision record 13 is about it.
//!
//! `cargo run --release -p haul-stripefs --example ranges` (as root, for FUSE). One file of 64 MiB, stripes of 64 KiB over
//! 4 targets of 100 MB/s; 4 threads, objects of 1 MiB.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use haul_stripefs::{Mount, Options, StripeFs, control};

const STRIPE: u64 = 64 << 10;
const TARGETS: u64 = 4;
const OBJECT: u64 = 1 << 20;
const BYTES: u64 = 64 << 20;
const THREADS: usize = 4;
const RUNS: usize = 5;

/// The ranges of object `index`: all of it, or those of one target of as many bytes.
fn ranges(index: u64, by_target: bool) -> Vec<(u64, u64)> {
    if !by_target {
        return vec![(index * OBJECT, OBJECT)];
    }
    let stripes = OBJECT / STRIPE;
    let (target, round) = (index % TARGETS, index / TARGETS);
    (0..stripes).map(|row| (((round * stripes + row) * TARGETS + target) * STRIPE, STRIPE)).collect()
}

fn read(file: &File, by_target: bool) -> std::io::Result<Duration> {
    let next = AtomicU64::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let work = || -> std::io::Result<()> {
            let mut buffer = vec![0; OBJECT as usize];
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= BYTES / OBJECT {
                    return Ok(());
                }
                let mut at = 0;
                for (offset, length) in ranges(index, by_target) {
                    file.read_exact_at(&mut buffer[at..at + length as usize], offset)?;
                    at += length as usize;
                }
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    Ok(started.elapsed())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let targets = (0..TARGETS).map(|number| directory.path().join(format!("target-{number}"))).collect();
    let mut options = Options::new(targets, directory.path().join("mds"));
    (options.stripe_count, options.stripe_bytes) = (TARGETS as u16, STRIPE as u32);
    let filesystem = StripeFs::open(&options)?;
    let mountpoint = directory.path().join("mount");
    std::fs::create_dir(&mountpoint)?;
    let mount = Mount::new(&filesystem, &mountpoint)?;
    std::fs::write(mountpoint.join("file"), vec![7; BYTES as usize])?;
    let file = File::open(mountpoint.join("file"))?;
    for (title, command) in [
        ("all alike, 1 ms each", "target all rate=100MB latency=1ms"),
        ("all alike, no latency", "target all rate=100MB latency=0ms"),
        ("one of four at a tenth, 1 ms each", "target 2 rate=10MB"),
    ] {
        control::execute(&filesystem, "target all reset")?;
        control::execute(&filesystem, "target all rate=100MB latency=1ms")?;
        control::execute(&filesystem, command)?;
        for by_target in [false, true] {
            let mut seconds = Vec::new();
            let before = requests(&filesystem);
            for _ in 0..RUNS {
                seconds.push(read(&file, by_target)?.as_secs_f64());
            }
            seconds.sort_by(f64::total_cmp);
            let requests = (requests(&filesystem) - before) / RUNS as u64;
            let what = if by_target { "ranges of one target" } else { "contiguous" };
            println!(
                "{title:<34} {what:<21} {:.2} s (best {:.2}, n = {RUNS}), {requests} requests at targets",
                seconds[RUNS / 2],
                seconds[0]
            );
        }
    }
    drop(mount);
    filesystem.finish(Duration::from_secs(5));
    Ok(())
}

fn requests(filesystem: &StripeFs) -> u64 {
    filesystem.counters().0.iter().map(|target| target.requests).sum()
}
