//! Files to move, made from a seed: the same seed makes the same bytes, names and times everywhere.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::evaluation::Lottery;

/// Bytes written at a time.
const CHUNK_BYTES: u64 = 1 << 20;

/// A file of random bytes, which no mover can compress.
pub fn random_file(path: &Path, seed: u64, bytes: u64) -> io::Result<()> {
    let mut lottery = Lottery::new(seed);
    let mut file = File::create(path)?;
    let mut chunk = vec![0; CHUNK_BYTES.min(bytes) as usize];
    let mut left = bytes;
    while left > 0 {
        let length = CHUNK_BYTES.min(left) as usize;
        lottery.fill(&mut chunk[..length]);
        file.write_all(&chunk[..length])?;
        left -= length as u64;
    }
    Ok(())
}

/// Something like the sources of an operating system: `count` files, most of them some KiB of text, in a tree of
/// directories up to five levels deep.
pub fn source_tree(root: &Path, seed: u64, count: u64) -> io::Result<()> {
    const PARTS: [&str; 12] = [
        "arch", "drivers", "fs", "include", "kernel", "lib", "mm", "net", "sound", "tools", "block", "crypto",
    ];
    let mut lottery = Lottery::new(seed);
    let mut text = Vec::new();
    while text.len() < 256 << 10 {
        let number = lottery.next();
        let (kind, field) = (number % 97, number % 13);
        writeln!(text, "static int f{number:x}(struct s{kind} *p) {{ return p->x{field}; }}")?;
    }
    fs::create_dir(root)?;
    let mut directory = root.to_owned();
    let part = |lottery: &mut Lottery| PARTS[lottery.below(PARTS.len() as u64) as usize];
    for number in 0..count {
        if number % 17 == 0 {
            directory = root.join(part(&mut lottery));
            for _ in 0..lottery.below(4) {
                directory.push(format!("{}{}", part(&mut lottery), lottery.below(12)));
            }
            fs::create_dir_all(&directory)?;
        }
        // The sizes of a kernel's files: median 5 KiB, mean 14 KiB.
        let length = match lottery.below(100) {
            0..10 => lottery.below(600),
            10..60 => 600 + lottery.below(6_000),
            60..92 => 4_000 + lottery.below(24_000),
            _ => 20_000 + lottery.below(120_000),
        };
        let start = lottery.below(text.len() as u64 - length) as usize;
        let path = directory.join(format!("{}-{number}.c", part(&mut lottery)));
        let mut file = File::create(&path)?;
        file.write_all(&text[start..start + length as usize])?;
        let time =
            Duration::new(1_400_000_000 + lottery.below(300_000_000), lottery.below(1_000_000_000) as u32);
        file.set_modified(SystemTime::UNIX_EPOCH + time)?;
        if number % 1000 == 999 {
            symlink(path.file_name().expect("a file"), directory.join(format!("link-{number}")))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Options, compare, totals};

    #[test]
    fn a_source_tree_has_as_many_files_as_were_asked_for_and_is_the_same_again() {
        let scratch = tempfile::tempdir().unwrap();
        let make = |name: &str, seed| {
            let root = scratch.path().join(name);
            source_tree(&root, seed, 1_200).unwrap();
            root
        };
        let (a, b, c) = (make("a", 1), make("b", 1), make("c", 2));
        let found = totals(&a).unwrap();
        assert_eq!((found.files, found.symlinks), (1_200, 1));
        let mean = found.bytes / found.files;
        assert!((10_000..20_000).contains(&mean), "{mean}");
        // Directories have the time at which they were made.
        let options = Options { times: false, ..Options::default() };
        assert!(compare(&a, &b, &options).unwrap().is_same());
        assert!(compare(&a, &c, &options).unwrap().count > 100);
    }

    #[test]
    fn random_files_have_their_size_and_differ_by_seed() {
        let scratch = tempfile::tempdir().unwrap();
        let make = |seed, bytes| {
            let path = scratch.path().join(format!("{seed}"));
            random_file(&path, seed, bytes).unwrap();
            fs::read(path).unwrap()
        };
        let (one, other) = (make(1, CHUNK_BYTES + 3), make(2, 13));
        assert_eq!((one.len() as u64, other.len()), (CHUNK_BYTES + 3, 13));
        assert_ne!(one[..13], other);
        assert_ne!(one[..8], one[8..16]);
        assert!(make(3, 0).is_empty());
    }
}
