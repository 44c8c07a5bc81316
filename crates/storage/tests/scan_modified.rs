//! A directory that changes while it is scanned: nothing breaks, and what does not change is found once.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use haul_model::{Code, Item, Kind};
use haul_storage::conformance_source::check_order;
use haul_storage::scan::{Scan, Scanned};
use haul_storage::source::{PosixSource, Root, SourceOptions};

const STABLE: usize = 400;

fn stir(top: &Path, until: &AtomicBool) {
    let mut round = 0u32;
    while !until.load(Ordering::Relaxed) {
        round += 1;
        let directory = top.join(format!("d{}", round % 4));
        let flicker = directory.join(format!("flicker{}", round % 97));
        match round % 7 {
            0 => drop(fs::write(&flicker, b"x")),
            1 => drop(fs::create_dir_all(flicker.join("below/further"))),
            2 => drop(fs::remove_file(&flicker)),
            3 => drop(fs::remove_dir_all(&flicker)),
            4 => drop(std::os::unix::fs::symlink("/etc", &flicker)),
            5 => drop(fs::rename(&flicker, top.join("d0/moved"))),
            _ => drop(fs::rename(top.join("d0/moved"), &flicker)),
        }
    }
}

#[test]
fn what_does_not_change_is_found_once_while_everything_else_comes_and_goes() {
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    let scratch = tempfile::tempdir_in(base).unwrap();
    for directory in 0..4 {
        fs::create_dir(scratch.path().join(format!("d{directory}"))).unwrap();
    }
    for file in 0..STABLE {
        fs::write(scratch.path().join(format!("d{}/stable{file}", file % 4)), b"").unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| stir(scratch.path(), &done));
        let rounds = std::panic::catch_unwind(|| (0..40).for_each(|_| round(scratch.path())));
        done.store(true, Ordering::Relaxed);
        rounds.unwrap();
    });
}

fn round(top: &Path) {
    let source = PosixSource::new(vec![Root::new(top.to_str().unwrap())], SourceOptions::default());
    let mut scan = source.scan(Arc::new(AtomicU64::new(1)));
    let (mut batch, mut items) = (Vec::new(), Vec::new());
    while scan.next(&mut batch) {
        for scanned in batch.drain(..) {
            match scanned {
                Scanned::Item(item) => items.push(item),
                Scanned::Error { path, failure } => {
                    let path = String::from_utf8(path).unwrap();
                    assert!(path.contains("flicker") || path.contains("moved"), "{path}: {failure}");
                    assert!(
                        matches!(failure.code, Code::SourceVanished | Code::SourceChanged),
                        "{path}: {failure}"
                    );
                }
            }
        }
    }
    check_order(&items, 1);
    let mut stable: HashMap<&[u8], usize> = HashMap::new();
    for item in &items {
        if let Item::Entry(entry) = item
            && entry.name.starts_with(b"stable")
        {
            assert_eq!(entry.kind, Kind::File);
            *stable.entry(&entry.name).or_default() += 1;
        }
    }
    assert_eq!(stable.len(), STABLE);
    assert!(stable.values().all(|count| *count == 1));
}
