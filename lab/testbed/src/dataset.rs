//! Seeded trees: the same seed makes the same bytes, names, modes and times everywhere.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use haul_bench::dataset::source_tree;
use haul_crashfs::random::Random;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};

use crate::tree::{open_directory, open_root};

/// The default object of haul: sizes are chosen around it.
pub const OBJECT_BYTES: u64 = 4 << 20;
/// Longest target of a symlink, near what any file system takes.
pub const LINK_BYTES: usize = 4000;

/// Bytes written at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Names that have broken movers: each a component of its own.
pub const HARD_NAMES: [&[u8]; 16] = [
    b"new\nline",
    b"carriage\rreturn",
    b"\x1b[31mred\x1b[0m",
    b"\xff\xfe invalid \xc3\x28",
    b"-rf",
    b"--help",
    b" leading and trailing ",
    b"back\\slash",
    b"quote'\"`$(id)",
    b"percent %s %n",
    b"colon:at@host",
    b"...",
    b"star*?[a]",
    b"\x01\x7f\x80\x9b",
    "\u{fc}ml\u{e4}ut \u{1f4be}".as_bytes(),
    b".hidden",
];

/// What a dataset is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// All choices follow from it.
    pub seed: u64,
    /// Sizes are chosen around multiples of it.
    pub object_bytes: u64,
    /// Entries around every edge, hard names, odd attributes (see [`edges`]).
    pub edges: bool,
    /// Longest target of a symlink among these: ext4 and XFS take about 1,000 bytes, memory file systems 4,000.
    pub link_bytes: usize,
    /// Small files (0 to 64 KiB) in nested directories.
    pub small_files: u64,
    /// Files of several objects.
    pub big_files: u64,
    /// Bytes of each of these, about.
    pub big_bytes: u64,
    /// A generated source tree of so many files (see [`source_tree`]).
    pub source_files: u64,
}

impl Plan {
    /// Nothing yet.
    pub fn new(seed: u64) -> Self {
        Plan {
            seed,
            object_bytes: OBJECT_BYTES,
            edges: false,
            link_bytes: LINK_BYTES,
            small_files: 0,
            big_files: 0,
            big_bytes: 0,
            source_files: 0,
        }
    }

    /// Makes it in an existing directory.
    pub fn make(&self, root: &Path) -> io::Result<()> {
        if self.edges {
            let directory = root.join("edges");
            fs::create_dir(&directory)?;
            edges(&directory, self.seed, self.object_bytes, self.link_bytes)?;
        }
        if self.small_files > 0 {
            small_files(&root.join("small"), self.seed, self.small_files)?;
        }
        if self.source_files > 0 {
            source_tree(&root.join("source"), self.seed, self.source_files)?;
        }
        if self.big_files > 0 {
            let directory = root.join("big");
            fs::create_dir(&directory)?;
            for number in 0..self.big_files {
                // Seldom a whole number of objects.
                let mut random = Random::fork(self.seed, &format!("big size {number}"));
                let bytes = self.big_bytes.saturating_sub(random.below(self.object_bytes)) + 1;
                big_file(&directory.join(format!("big-{number}")), self.seed ^ number, bytes)?;
            }
            set_time(&directory, 1_500_000_000, 5)?;
        }
        set_time(root, 1_600_000_000, 123_456_789)
    }
}

/// Entries around every edge: sizes, names, depths, modes, times, links.
pub fn edges(root: &Path, seed: u64, object_bytes: u64, link_bytes: usize) -> io::Result<()> {
    let mut random = Random::fork(seed, "edges");
    sizes(&root.join("sizes"), &mut random, object_bytes)?;
    hard_names(&root.join("names"), &mut random)?;
    attributes(&root.join("attributes"), &mut random)?;
    links(&root.join("links"), &mut random, link_bytes)?;
    deep(root, &mut random)?;
    for empty in ["empty", "empty/within", "empty/within/empty"] {
        fs::create_dir(root.join(empty))?;
    }
    set_time(&root.join("empty/within/empty"), 3, 0)?;
    set_time(&root.join("empty/within"), 2, 999_999_999)?;
    set_time(&root.join("empty"), -1, 1)?;
    set_time(root, 1_234_567_890, 987_654_321)
}

fn sizes(directory: &Path, random: &mut Random, object_bytes: u64) -> io::Result<()> {
    fs::create_dir(directory)?;
    let object = object_bytes;
    let sizes =
        [0, 1, 4095, 4096, 4097, object - 1, object, object + 1, 2 * object, 2 * object + 1, 3 * object - 1];
    for size in sizes {
        big_file(&directory.join(size.to_string()), random.next(), size)?;
    }
    // Blocks that repeat and blocks of zeros: bytes that land in the wrong place show only where they differ.
    let mut file = File::create(directory.join("zeros"))?;
    file.set_len(object + 5)?;
    file.write_all(b"begins")?;
    set_time(&directory.join("zeros"), 1_000_000_000, 1)?;
    set_time(directory, 1_300_000_000, 42)
}

fn hard_names(directory: &Path, random: &mut Random) -> io::Result<()> {
    fs::create_dir(directory)?;
    for name in HARD_NAMES {
        let path = directory.join(OsStr::from_bytes(name));
        big_file(&path, random.next(), random.clone().below(300))?;
        let inner = directory.join(OsStr::from_bytes(&[name, b".d"].concat()));
        fs::create_dir(&inner)?;
        fs::write(inner.join(OsStr::from_bytes(name)), name)?;
        set_time(&inner.join(OsStr::from_bytes(name)), 1_100_000_000, 7)?;
        set_time(&inner, 1_100_000_001, 7)?;
    }
    big_file(&directory.join("n".repeat(255)), random.next(), 17)?;
    set_time(directory, 1_400_000_000, 0)
}

fn attributes(directory: &Path, random: &mut Random) -> io::Result<()> {
    fs::create_dir(directory)?;
    for mode in [0o400, 0o444, 0o600, 0o644, 0o666, 0o700, 0o755, 0o777, 0o4755, 0o2755, 0o1644] {
        let path = directory.join(format!("mode-{mode:o}"));
        big_file(&path, random.next(), 100)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    let times = [
        (0, 0),
        (-1, 999_999_999),
        (-86_400 * 365 * 50, 1),
        (1, 1),
        (2_147_483_647, 999),
        (4_102_444_800, 5),
    ];
    for (seconds, nanos) in times {
        let path = directory.join(format!("time{seconds}.{nanos}"));
        big_file(&path, random.next(), 10)?;
        set_time(&path, seconds, nanos)?;
    }
    for (name, mode) in [("read-only", 0o555), ("private", 0o700), ("sticky", 0o1777), ("group", 0o2775)] {
        let inner = directory.join(name);
        fs::create_dir(&inner)?;
        big_file(&inner.join("file"), random.next(), 5000)?;
        fs::create_dir(inner.join("below"))?;
        big_file(&inner.join("below/file"), random.next(), 10)?;
        set_time(&inner.join("below"), 1_200_000_000, 1)?;
        fs::set_permissions(inner.join("below"), fs::Permissions::from_mode(mode & 0o777))?;
        set_time(&inner, 1_200_000_000, 2)?;
        fs::set_permissions(&inner, fs::Permissions::from_mode(mode))?;
    }
    set_time(directory, 1_700_000_000, 0)
}

fn links(directory: &Path, random: &mut Random, longest: usize) -> io::Result<()> {
    fs::create_dir(directory)?;
    big_file(&directory.join("file"), random.next(), 1000)?;
    fs::hard_link(directory.join("file"), directory.join("file-again"))?;
    fs::create_dir(directory.join("directory"))?;
    fs::hard_link(directory.join("file"), directory.join("directory/file-once-more"))?;
    let long = "x/".repeat(longest / 2);
    for (name, target) in [
        ("to-file", "file"),
        ("to-directory", "directory"),
        ("dangling", "nothing is here"),
        ("to-itself", "to-itself"),
        ("absolute", "/etc/hostname"),
        ("up", "../../../../../../../.."),
        ("long", long.as_str()),
    ] {
        symlink(target, directory.join(name))?;
    }
    symlink(OsStr::from_bytes(b"bytes\n\xff\x1b"), directory.join("bytes"))?;
    set_time(&directory.join("directory"), 1_650_000_000, 1)?;
    set_time(directory, 1_650_000_000, 2)
}

/// A chain of directories with a path longer than PATH_MAX, and files along it.
fn deep(root: &Path, random: &mut Random) -> io::Result<()> {
    let name = "d".repeat(200);
    let mut held: Vec<OwnedFd> = vec![open_root(root)?];
    for level in 0..22 {
        let parent = held.last().expect("the root");
        rustix::fs::mkdirat(parent, &name, Mode::from_raw_mode(0o755))?;
        let directory = open_directory(parent, OsStr::new(&name))?;
        if level % 7 == 0 || level == 21 {
            write_at(&directory, "file", random, 3000)?;
        }
        held.push(directory);
    }
    // Deepest first: making an entry changes the time of its directory.
    for (level, directory) in held.iter().enumerate().skip(1).rev() {
        rustix::fs::futimens(directory, &times(1_550_000_000 + level as i64, level as u32))?;
    }
    Ok(())
}

fn write_at(directory: impl AsFd, name: &str, random: &mut Random, length: usize) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file: File = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o640))?.into();
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    file.write_all(&bytes)?;
    rustix::fs::futimens(&file, &times(1_450_000_000, 11))?;
    Ok(())
}

/// Small files in nested directories, a hundred or so in each.
pub fn small_files(root: &Path, seed: u64, count: u64) -> io::Result<()> {
    let mut random = Random::fork(seed, "small");
    fs::create_dir(root)?;
    let mut directory = root.to_owned();
    for number in 0..count {
        if number % 100 == 0 {
            directory = root.join(format!("{:02}", number / 100 % 16)).join(format!("{:04}", number / 100));
            fs::create_dir_all(&directory)?;
        }
        // Mostly a few KiB, some empty, some tens of KiB.
        let length = match random.below(20) {
            0 => 0,
            1..=2 => random.below(64 << 10),
            _ => random.below(8 << 10),
        };
        big_file(&directory.join(format!("file-{number:06}")), random.next(), length)?;
    }
    Ok(())
}

/// A file of random bytes with a time of its own.
pub fn big_file(path: &Path, seed: u64, bytes: u64) -> io::Result<()> {
    let mut random = Random::fork(seed, "bytes");
    let mut file = File::create(path)?;
    let mut chunk = vec![0; CHUNK_BYTES.min(bytes as usize)];
    let mut left = bytes;
    while left > 0 {
        let length = (CHUNK_BYTES as u64).min(left) as usize;
        random.fill(&mut chunk[..length]);
        file.write_all(&chunk[..length])?;
        left -= length as u64;
    }
    let time = times(1_300_000_000 + random.below(400_000_000) as i64, random.below(1_000_000_000) as u32);
    Ok(rustix::fs::futimens(&file, &time)?)
}

fn times(tv_sec: i64, nanos: u32) -> Timestamps {
    let time = Timespec { tv_sec, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// Sets the modification time; of symlinks, their own.
pub fn set_time(path: &Path, seconds: i64, nanos: u32) -> io::Result<()> {
    Ok(rustix::fs::utimensat(CWD, path, &times(seconds, nanos), AtFlags::SYMLINK_NOFOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Options, compare, totals};

    #[test]
    fn the_same_plan_makes_the_same_tree_and_another_seed_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let make = |name: &str, seed| {
            let root = directory.path().join(name);
            fs::create_dir(&root).unwrap();
            let plan = Plan {
                edges: true,
                object_bytes: 64 << 10,
                small_files: 250,
                big_files: 2,
                big_bytes: 300 << 10,
                source_files: 100,
                ..Plan::new(seed)
            };
            plan.make(&root).unwrap();
            root
        };
        let (a, b, c) = (make("a", 1), make("b", 1), make("c", 2));
        let options = Options { times: false, ..Options::default() };
        assert!(compare(&a, &b, &options).unwrap().is_same());
        assert!(compare(&a, &c, &options).unwrap().count > 100);
        let totals = totals(&a).unwrap();
        assert!(totals.files > 400 && totals.symlinks >= 8 && totals.directories > 60, "{totals:?}");
    }

    #[test]
    fn every_edge_is_there() {
        let directory = tempfile::tempdir().unwrap();
        edges(directory.path(), 1, OBJECT_BYTES, LINK_BYTES).unwrap();
        for size in [0, 1, 4095, 4096, 4097, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, 3 * (4 << 20) - 1] {
            let path = directory.path().join("sizes").join(size.to_string());
            assert_eq!(fs::metadata(path).unwrap().len(), size);
        }
        let mut depth = 0;
        let mut held = open_root(directory.path()).unwrap();
        while let Ok(next) = open_directory(&held, OsStr::new(&"d".repeat(200))) {
            held = next;
            depth += 201;
        }
        assert!(depth > 4096, "{depth}");
        let early = fs::metadata(directory.path().join("attributes/time-1.999999999")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::mtime(&early), -1);
    }
}
