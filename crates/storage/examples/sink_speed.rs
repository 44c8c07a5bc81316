//! What the sink costs for each small file, by operation.
//!
//! `cargo run --release -p haul-storage --example sink_speed -- DIRECTORY [FILES] [BYTES]`: writes FILES files (78,579 by
//! default, as many as a Linux source tree) of BYTES each into new directories below DIRECTORY, and prints microseconds a
//! file. Meant for a memory file system, with one thread, so that it is the program that is measured.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_buffers::Pool;
use haul_model::op::{MemberWrite, MembersStep, Prepare, Progress, SinkDone, SinkOp};
use haul_model::{Attributes, Entry, EntryId, Hash, Identity, Kind, SlotId, Timestamp};
use haul_storage::SinkStorage;
use haul_storage::sink::{Decision, PosixSink, SinkRoot, SinkSettings, SourceName, SyncMode};

const FILES_PER_DIRECTORY: u64 = 16;
const BUNDLE_BYTES: u64 = 4 << 20;
const MEMBERS_MAX: u64 = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: sink_speed DIRECTORY [FILES] [BYTES]")?;
    let files: u64 = arguments.next().map_or(Ok(78_579), |text| text.parse())?;
    let bytes: u64 = arguments.next().map_or(Ok(14 << 10), |text| text.parse())?;
    let pool = Pool::new(1, BUNDLE_BYTES as u32)?;
    let content: Vec<u8> = (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    let hash = Hash(*blake3::hash(&content).as_bytes());
    let count = (BUNDLE_BYTES / bytes.max(1)).min(MEMBERS_MAX);
    let mut lease = pool.lease(SlotId(0)).ok_or("the slot is free")?;
    for member in 0..count {
        lease[(member * bytes) as usize..][..bytes as usize].copy_from_slice(&content);
    }
    drop(lease);

    let destination = Path::new(&directory).join("sink-speed");
    let sink = open(&destination)?;
    let mut spent = [("", Duration::ZERO, Duration::ZERO); 6];
    let mut timed = |step: usize, name, op| {
        let (start, used) = (Instant::now(), processor_time());
        let done = sink.run(op, &pool);
        spent[step].0 = name;
        spent[step].1 += start.elapsed();
        spent[step].2 += processor_time() - used;
        check(done)
    };
    let top = entry(1, EntryId::root(0), Vec::new(), Kind::Directory, 0);
    timed(0, "prepare", prepare([top].into()))?;
    let mut number = 0;
    while number < files {
        let batch: Vec<Arc<Entry>> = (number..files.min(number + count))
            .flat_map(|file| {
                let directory = 2 + file / FILES_PER_DIRECTORY;
                let new = (file % FILES_PER_DIRECTORY == 0).then(|| {
                    entry(directory, EntryId(1), format!("directory-{directory}").into(), Kind::Directory, 0)
                });
                let name = format!("a-file-{file}.c").into();
                new.into_iter().chain([entry((1 << 40) + file, EntryId(directory), name, Kind::File, bytes)])
            })
            .collect();
        timed(0, "prepare", prepare(batch.clone()))?;
        let members: Vec<MemberWrite> = batch
            .into_iter()
            .filter(|entry| entry.kind == Kind::File)
            .zip(0..)
            .map(|(entry, at)| MemberWrite { entry, offset: at * bytes as u32, hash })
            .collect();
        let ids: Vec<EntryId> = members.iter().map(|member| member.entry.id).collect();
        let length = (bytes * members.len() as u64) as u32;
        let op = SinkOp::WriteMembers {
            block: haul_model::BlockId(0),
            step: MembersStep::Make,
            slot: SlotId(0),
            length,
            members,
            progress: Progress::default(),
        };
        timed(1, "write members", op)?;
        timed(2, "sync", SinkOp::Sync { group: 0, files: ids.clone() })?;
        timed(3, "publish", SinkOp::Publish { group: 0, files: ids.clone() })?;
        timed(4, "sync names", SinkOp::SyncNames { group: 0, entries: ids })?;
        number += count;
    }
    timed(5, "finish directories", SinkOp::FinishDirectories { whole: true })?;
    let each = |time: Duration| time.as_secs_f64() * 1e6 / files as f64;
    for (name, elapsed, used) in spent {
        println!("{name:20} {:7.2} us a file, {:6.2} of them on a processor", each(elapsed), each(used));
    }
    Ok(())
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn open(destination: &Path) -> Result<PosixSink, Box<dyn Error>> {
    let spool_directory = std::env::temp_dir();
    let settings = SinkSettings {
        preserve_owner: false,
        job_tag: *b"speed-",
        session_tag: *b"test",
        object_bytes: BUNDLE_BYTES as u32,
        spool_directory,
        hash: haul_model::HashKind::default(),
        sync: SyncMode::Measured,
        contents: haul_storage::sink::Contents::Written,
        placing: None,
        stripe: None,
        lender: None,
        #[cfg(feature = "faults")]
        faults: None,
    };
    let sources = [SourceName::Named(b"source".to_vec())];
    let root = SinkRoot::open(destination, Decision::As, &sources).map_err(|error| format!("{error:?}"))?;
    Ok(PosixSink::open(root, settings).map_err(|error| format!("{error:?}"))?)
}

fn entry(id: u64, parent: EntryId, name: Vec<u8>, kind: Kind, size: u64) -> Arc<Entry> {
    let time = Timestamp { seconds: 1_600_000_000, nanos: 123_456_789 };
    let mode = if kind == Kind::Directory { 0o755 } else { 0o644 };
    Arc::new(Entry {
        id: EntryId(id),
        parent,
        name: name.into(),
        kind,
        attributes: Attributes { mode, uid: 0, gid: 0, mtime: time, atime: time },
        identity: Identity { size, mtime: time, ctime: time, inode: id },
        links: 1,
        link_target: Box::default(),
    })
}

fn prepare(entries: Vec<Arc<Entry>>) -> SinkOp {
    let item = |entry| Prepare::Entry { entry, resume: None, object_bytes: None };
    SinkOp::Prepare { batch: 0, items: entries.into_iter().map(item).collect() }
}

/// A measurement of something that fails says nothing.
fn check(done: Option<SinkDone>) -> Result<(), Box<dyn Error>> {
    let failed = match &done {
        Some(SinkDone::WrittenMembers { results, .. }) => results.iter().any(|result| result.is_err()),
        Some(SinkDone::Synced { failed, .. } | SinkDone::Published { failed, .. }) => !failed.is_empty(),
        Some(SinkDone::SyncedNames { failed, .. }) => !failed.is_empty(),
        Some(SinkDone::DirectoriesFinished { failed }) => failed.count() > 0,
        _ => false,
    };
    if failed { Err(format!("{done:?}").into()) } else { Ok(()) }
}
