//! What an end tells may be written to a terminal that was stopped: the session goes on, and ends.

mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::time::Duration;

use haul_model::HashKind;
use haul_model::report::Fact;
use haul_mover::connection::local;
use haul_mover::log::SourceLog;
use haul_mover::{Report, SinkEnd, SourceEnd, Tuning};
use haul_storage::memory_sink::{MemorySink, MemoryTree};
use haul_storage::sink::SourceName;
use haul_storage::synthetic::{Sizes, SyntheticSource, SyntheticSpec};

const OBJECT_BYTES: u32 = 64 << 10;
const FILES: u64 = 50;

#[test]
fn a_source_whose_reports_nobody_takes_moves_everything() {
    let sizes = Sizes::Cycle(vec![100, 64 << 10, 0, (128 << 10) + 1]);
    let spec = SyntheticSpec { seed: 1, files: FILES, files_per_directory: 7, sizes };
    let storage = SyntheticSource::new(spec).hashed(HashKind::Blake3);
    let scan = Box::new(storage.scan(Arc::new(AtomicU64::new(1))));
    let (dial, accept) = local::pair(2);
    let tuning = Tuning { report_done: true, ..support::tuning(4, OBJECT_BYTES) };

    let (gate, opened) = mpsc::channel::<()>();
    let (told, all) = mpsc::channel();
    let reports = move |report| {
        // That of the pool comes before the session.
        if !matches!(report, Report::Buffers { .. }) {
            let ended_first =
                opened.recv_timeout(Duration::from_secs(20)) != Err(mpsc::RecvTimeoutError::Timeout);
            told.send((report, ended_first)).unwrap();
        }
    };
    let source = SourceEnd {
        common: support::common(tuning.clone(), Box::new(dial), Box::new(reports)),
        storage: Arc::new(storage),
        scan,
        log: SourceLog::none(),
        spill_bytes_max: 0,
        shared: None,
    };
    let names = [SourceName::Named(b"many".to_vec())];
    let tree = Arc::new(MemoryTree::default());
    let sink = MemorySink::open(tree, &names, ([1; 6], [2; 4]), OBJECT_BYTES, false).unwrap();
    let common = support::common(tuning, Box::new(accept), Box::new(|_| {}));
    let sink = SinkEnd { common, storage: Arc::new(sink), shared: None, recursive: true }.start().unwrap();
    let source = source.start().unwrap();
    let sink = sink.wait();
    assert!(sink.error.is_none(), "{:?}", sink.error);
    drop(gate);
    assert!(source.wait().error.is_none());
    // All of it was told when the end returned.
    let all: Vec<_> = all.try_iter().collect();
    assert!(all.iter().all(|(_, ended_first)| *ended_first), "the session waited for a report to be taken");
    let done = |(report, _): &&(Report, bool)| matches!(report, Report::Fact(Fact::Done { .. }));
    assert_eq!(all.iter().filter(done).count() as u64, FILES);
}
