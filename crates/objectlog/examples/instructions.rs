//! Logs a workload of the paper into memory, so that its instructions can be counted: `lab/instructions.sh` runs this
//! under callgrind for every mechanism and method, and takes off what the same run costs with the mechanism `none`.
//!
//! `instructions WORKLOAD MECHANISM METHOD [OBJECTS_PER_FLUSH]`, where WORKLOAD is `big` (100 files of 954 objects) or
//! `small` (10,000 files of one object), 11 of them in progress at a time. A file is finished after the flush that
//! follows its last object, so every object reaches the store.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hint::black_box;

use haul_model::{Identity, Timestamp, Token};
use haul_objectlog::{Binding, Config, Handle, LogStore, Mechanism, Method, ObjectLog};

/// Files in progress: the paper's targets.
const FILES_OPEN: usize = 11;
const OBJECT_BYTES: u32 = 1 << 20;

/// Copies bytes, and nothing else: neither a file system nor a disk is counted.
#[derive(Default)]
struct Bytes(BTreeMap<String, Vec<u8>>);

impl LogStore for Bytes {
    type Error = Infallible;

    fn list(&mut self) -> Result<Vec<String>, Infallible> {
        Ok(self.0.keys().cloned().collect())
    }

    fn length(&mut self, name: &str) -> Result<Option<u64>, Infallible> {
        Ok(self.0.get(name).map(|log| log.len() as u64))
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, Infallible> {
        let rest = self.0.get(name).and_then(|log| log.get(offset as usize..)).unwrap_or(&[]);
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn write_at(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), Infallible> {
        if !self.0.contains_key(name) {
            self.0.insert(name.to_string(), Vec::new());
        }
        if let Some(log) = self.0.get_mut(name) {
            let (start, end) = (offset as usize, offset as usize + bytes.len());
            if log.len() < end {
                log.resize(end, 0);
            }
            log[start..end].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<(), Infallible> {
        self.0.remove(name);
        Ok(())
    }

    fn sync(&mut self, _: &[&str]) -> Result<(), Infallible> {
        Ok(())
    }

    fn sync_names(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

type Log = Option<ObjectLog<Bytes>>;

/// One file in progress.
struct Moving {
    handle: Option<Handle>,
    /// Objects that were recorded.
    count: u64,
}

fn begin(log: &mut Log, file: u64, objects: u64) -> Moving {
    // 25 bytes, as in the specification's table of sizes.
    let path = format!("dataset/run-07/file-{file:05}");
    let mut token = [0; 16];
    token[..8].copy_from_slice(&file.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    let binding = Binding {
        identity: Identity {
            size: objects * u64::from(OBJECT_BYTES),
            mtime: Timestamp { seconds: 1_700_000_000, nanos: 1 },
            ctime: Timestamp { seconds: 1_700_000_000, nanos: 2 },
            inode: file,
        },
        object_bytes: OBJECT_BYTES,
        objects,
        hash_kind: 1,
        token: Token(token),
        sink_boot: None,
    };
    let path = black_box(path);
    let binding = black_box(binding);
    let handle = log.as_mut().map(|log| log.begin(path.as_bytes(), binding).expect("the file can be logged"));
    Moving { handle, count: 0 }
}

/// Files whose objects are all recorded are finished after the flush.
fn flush(log: &mut Log, ending: &mut Vec<Moving>) {
    if let Some(log) = log {
        let Ok(()) = log.flush() else { unreachable!("the store never fails") };
    }
    for file in ending.drain(..) {
        if let (Some(log), Some(handle)) = (log.as_mut(), black_box(file).handle) {
            log.finish(handle).expect("the entry is there");
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = || -> ! {
        eprintln!("instructions big|small MECHANISM|none METHOD [OBJECTS_PER_FLUSH]");
        std::process::exit(2)
    };
    let [workload, mechanism, method, rest @ ..] = &arguments[..] else { usage() };
    let (files, objects) = match workload.as_str() {
        "big" => (100, 954),
        "small" => (10_000, 1),
        _ => usage(),
    };
    let Some(method) = Method::from_name(method) else { usage() };
    let objects_per_flush = rest.first().map_or(8, |number| number.parse().unwrap_or_else(|_| usage()));
    let mut log: Log = (mechanism != "none").then(|| {
        let mechanism = Mechanism::from_name(mechanism).unwrap_or_else(|| usage());
        let config = Config { mechanism, method, ..Config::default() };
        let Ok((log, _)) = ObjectLog::open(Bytes::default(), config) else {
            unreachable!("the store is empty")
        };
        log
    });

    let (mut moving, mut ending) = (Vec::new(), Vec::new());
    let (mut next, mut recorded, mut flushes) = (0, 0u64, 0u64);
    let mut random = 1u64;
    loop {
        while next < files && moving.len() < FILES_OPEN {
            moving.push(begin(&mut log, next, objects));
            next += 1;
        }
        if moving.is_empty() {
            break;
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = (random >> 33) as usize % moving.len();
        let file = &mut moving[index];
        // Objects come out of order: 7 has no divisor in common with either count.
        let object = black_box(file.count * 7 % objects);
        if let (Some(log), Some(handle)) = (log.as_mut(), file.handle) {
            log.record(handle, object).expect("the object is one of the file");
        }
        file.count += 1;
        recorded += 1;
        if file.count == objects {
            ending.push(moving.swap_remove(index));
        }
        if recorded.is_multiple_of(objects_per_flush) {
            flush(&mut log, &mut ending);
            flushes += 1;
        }
    }
    flush(&mut log, &mut ending);
    flushes += 1;
    let peak_bytes = log.as_ref().map_or(0, |log| log.usage().bytes_peak);
    if let Some(log) = log {
        let Ok(store) = log.close() else { unreachable!("the store never fails") };
        assert!(store.0.is_empty(), "logs are left although every file is finished");
    }
    println!("{recorded} objects, {flushes} flushes, logs of {peak_bytes} bytes at most");
}
