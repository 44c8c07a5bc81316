//! Memory follows what is under way, not the dataset: a million files through both ends, with a sink that checks what it
//! is given and keeps nothing.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use haul_buffers::Pool;
use haul_model::op::{Landed, Prepare, Prepared, SinkDone, SinkOp};
use haul_model::report::{Fact, FailedPaths};
use haul_model::{Hash, Kind};
use haul_mover::connection::{Connector, local};
use haul_mover::log::SourceLog;
use haul_mover::{Report, SinkEnd, SourceEnd};
use haul_storage::SinkStorage;
use haul_storage::synthetic::{Sizes, SyntheticSource, SyntheticSpec};

const FILES: u64 = 1_000_000;
const POOL_BYTES: u64 = 32 << 20;

/// Answers like a sink whose every operation succeeds at once.
#[derive(Default)]
struct Keepless {
    written: AtomicU64,
    published: AtomicU64,
    named: AtomicU64,
}

impl SinkStorage for Keepless {
    fn run(&self, op: SinkOp, pool: &Pool) -> Option<SinkDone> {
        Some(match op {
            SinkOp::Prepare { batch, items } => {
                let answers = items.iter().filter_map(|item| match item {
                    Prepare::Entry { entry, .. } if entry.kind == Kind::Directory => {
                        Some((entry.id, Prepared::Made))
                    }
                    Prepare::Entry { entry, .. } => {
                        Some((entry.id, Prepared::Start(haul_model::Token::NONE)))
                    }
                    Prepare::End(_) => None,
                });
                SinkDone::Prepared { batch, answers: answers.collect(), laid: Vec::new(), unlaid: Vec::new() }
            }
            SinkOp::WriteMembers { block, step, slot, members, length, .. } => {
                let lease = pool.lease(slot).expect("the slot is the writer's");
                for member in &members {
                    let start = member.offset as usize;
                    let bytes = &lease[start..start + member.entry.size() as usize];
                    assert_eq!(Hash(*blake3::hash(bytes).as_bytes()), member.hash);
                    assert!(start + bytes.len() <= length as usize);
                }
                self.written.fetch_add(members.len() as u64, Ordering::Relaxed);
                SinkDone::WrittenMembers { block, step, results: vec![Ok(Landed::Written); members.len()] }
            }
            SinkOp::Sync { group, .. } => SinkDone::Synced { group, failed: Vec::new() },
            SinkOp::Publish { group, files } => {
                self.published.fetch_add(files.len() as u64, Ordering::Relaxed);
                SinkDone::Published { group, failed: Vec::new() }
            }
            SinkOp::SyncNames { group, entries } => {
                self.named.fetch_add(entries.len() as u64, Ordering::Relaxed);
                SinkDone::SyncedNames { group, failed: Vec::new() }
            }
            SinkOp::FinishDirectories { .. } => {
                SinkDone::DirectoriesFinished { failed: FailedPaths::default() }
            }
            SinkOp::Forget { .. } => return None,
            SinkOp::Lay { .. }
            | SinkOp::WriteObject { .. }
            | SinkOp::Seal { .. }
            | SinkOp::Discard { .. } => {
                panic!("small files come in bundles")
            }
        })
    }
}

fn resident_bytes_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_million_files_fit_into_the_memory_of_what_is_under_way() {
    let spec =
        SyntheticSpec { seed: 1, files: FILES, files_per_directory: 1000, sizes: Sizes::Uniform(0, 200) };
    let storage = Arc::new(SyntheticSource::new(spec));
    let scan = Box::new(storage.scan(Arc::new(AtomicU64::new(1))));
    let tuning = support::tuning((POOL_BYTES >> 21) as u32, 1 << 20);
    let failed = Arc::new(Mutex::new(Vec::new()));
    let (dial, accept) = local::pair(1);
    let common = |connector: Box<dyn Connector>| {
        let failed = failed.clone();
        let report = move |report| {
            if let Report::Fact(Fact::Failed { path, failure }) = report {
                failed.lock().unwrap().push((path, failure));
            }
        };
        support::common(tuning.clone(), connector, Box::new(report))
    };
    let sink_storage = Arc::new(Keepless::default());
    let sink = SinkEnd {
        common: common(Box::new(accept)),
        storage: sink_storage.clone(),
        shared: None,
        recursive: true,
    };
    let source = SourceEnd {
        common: common(Box::new(dial)),
        storage,
        scan,
        log: SourceLog::none(),
        spill_bytes_max: 0,
        shared: None,
    };
    let sink = sink.start().unwrap();
    let summary = source.start().unwrap().wait();
    assert!(sink.wait().error.is_none());
    assert!(summary.error.is_none(), "{summary:?}");
    let stats = summary.outcome.stats;
    assert_eq!((stats.files_total, stats.files_done, stats.files_failed), (FILES, FILES, 0));
    assert!(failed.lock().unwrap().is_empty());
    for count in [&sink_storage.written, &sink_storage.published, &sink_storage.named] {
        assert_eq!(count.load(Ordering::Relaxed), FILES);
    }
    // Both ends are in this process: far below 200 MB for each.
    let peak = resident_bytes_peak();
    println!("peak {} MiB with pools of {} MiB in all", peak >> 20, POOL_BYTES >> 20);
    assert!(peak < POOL_BYTES + (200 << 20), "{} MiB", peak >> 20);
}
