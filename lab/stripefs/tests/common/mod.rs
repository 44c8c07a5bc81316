//! An emulated file system mounted for one test.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use haul_stripefs::{Mount, Options, StripeFs, control};
use rustix::io::Errno;
use tempfile::TempDir;

pub const K64: usize = 64 << 10;
pub const MIB: usize = 1 << 20;

pub struct Bench {
    pub filesystem: StripeFs,
    mount: Option<Mount>,
    // Dropped after the mount that is in it.
    directory: TempDir,
    options: Options,
}

impl Bench {
    /// With so many targets, one stripe of 64 KiB for each file.
    pub fn new(targets: usize) -> Self {
        Self::with(targets, |_| {})
    }

    pub fn with(targets: usize, change: impl FnOnce(&mut Options)) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = |name: String| directory.path().join(name);
        let names = (0..targets).map(|number| path(format!("target-{number}"))).collect();
        let mut options = Options::new(names, path("mds".into()));
        options.stripe_bytes = K64 as u32;
        change(&mut options);
        fs::create_dir(path("mount".into())).unwrap();
        let filesystem = StripeFs::open(&options).unwrap();
        let mount = mount(&filesystem, &path("mount".into()));
        Bench { filesystem, mount: Some(mount), directory, options }
    }

    /// Unmounts, and mounts what is in the directories.
    pub fn again(&mut self) {
        self.mount = None;
        self.filesystem.finish(Duration::from_secs(5));
        self.filesystem = StripeFs::open(&self.options).unwrap();
        self.mount = Some(mount(&self.filesystem, &self.path("")));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("mount").join(name)
    }

    pub fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn control(&self, line: &str) -> String {
        control::execute(&self.filesystem, line).unwrap()
    }

    /// The attribute as it is read.
    pub fn layout(&self, name: &str) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; 65536];
        let length = rustix::fs::getxattr(self.path(name), "lustre.lov", bytes.as_mut_slice())?;
        bytes.truncate(length);
        Ok(bytes)
    }

    pub fn set_layout(&self, name: &str, value: &[u8]) -> Result<(), Errno> {
        rustix::fs::setxattr(self.path(name), "lustre.lov", value, rustix::fs::XattrFlags::empty())
    }

    /// A file without objects.
    pub fn mknod(&self, name: &str) {
        use rustix::fs::{CWD, FileType, Mode};
        rustix::fs::mknodat(CWD, self.path(name), FileType::RegularFile, Mode::from_raw_mode(0o644), 0)
            .unwrap();
    }

    /// A file with this layout, and its objects as (target, number).
    pub fn file(&self, name: &str, wish: &[u8]) -> Vec<(u32, u64)> {
        self.mknod(name);
        self.set_layout(name, wish).unwrap();
        objects(&self.layout(name).unwrap())
    }

    /// What a target holds of an object; nothing if there is none.
    pub fn object(&self, object: (u32, u64)) -> Vec<u8> {
        fs::read(self.object_path(object)).unwrap_or_default()
    }

    pub fn object_path(&self, (target, number): (u32, u64)) -> PathBuf {
        self.beside(&format!("target-{target}/O/0/d{}/{number}", number % 32))
    }

    /// How many objects the targets have.
    pub fn objects_left(&self) -> usize {
        let directories = (0..self.options.targets.len())
            .flat_map(|target| (0..32).map(move |number| format!("target-{target}/O/0/d{number}")));
        directories.map(|directory| fs::read_dir(self.beside(&directory)).unwrap().count()).sum()
    }
}

fn mount(filesystem: &StripeFs, directory: &Path) -> Mount {
    Mount::new(filesystem, directory).expect("mounting needs /dev/fuse, and root or fusermount3 (make deps)")
}

/// `lov_user_md_v1` as a user writes it.
pub fn wish(count: u16, stripe_bytes: usize, first: u16) -> Vec<u8> {
    stripes(0x0BD1_0BD0, 1, count, stripe_bytes, first, None)
}

/// `lov_user_md_v3` with a pool.
pub fn wish_in_pool(count: u16, stripe_bytes: usize, first: u16, pool: &str) -> Vec<u8> {
    stripes(0x0BD3_0BD0, 1, count, stripe_bytes, first, Some(pool))
}

pub fn stripes(
    magic: u32,
    pattern: u32,
    count: u16,
    stripe_bytes: usize,
    first: u16,
    pool: Option<&str>,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(magic.to_le_bytes());
    bytes.extend(pattern.to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend((stripe_bytes as u32).to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(first.to_le_bytes());
    if let Some(pool) = pool {
        let mut name = pool.as_bytes().to_vec();
        name.resize(16, 0);
        bytes.extend(name);
    }
    bytes
}

/// `lov_comp_md_v1` of these extents and their stripes.
pub fn composite(components: &[(u64, u64, Vec<u8>)]) -> Vec<u8> {
    let mut offset = 32 + 48 * components.len();
    let size = offset + components.iter().map(|(.., blob)| blob.len()).sum::<usize>();
    let mut bytes = Vec::new();
    bytes.extend(0x0BD6_0BD0u32.to_le_bytes());
    bytes.extend((size as u32).to_le_bytes());
    bytes.extend([0; 6]);
    bytes.extend((components.len() as u16).to_le_bytes());
    bytes.extend([0; 16]);
    for (start, end, blob) in components {
        bytes.extend([0; 8]);
        bytes.extend(start.to_le_bytes());
        bytes.extend(end.to_le_bytes());
        bytes.extend((offset as u32).to_le_bytes());
        bytes.extend((blob.len() as u32).to_le_bytes());
        bytes.extend([0; 16]);
        offset += blob.len();
    }
    components.iter().for_each(|(.., blob)| bytes.extend(blob));
    bytes
}

/// Target and number of each object in the stripes of a plain attribute, or of one component.
pub fn objects(bytes: &[u8]) -> Vec<(u32, u64)> {
    let header = if bytes[..4] == 0x0BD1_0BD0u32.to_le_bytes() { 32 } else { 48 };
    bytes[header..].chunks_exact(24).map(|row| (u32_at(row, 20), u64_at(row, 0))).collect()
}

/// (flags, start, end, stripes) of each component.
pub fn components(bytes: &[u8]) -> Vec<(u32, u64, u64, &[u8])> {
    assert_eq!(u32_at(bytes, 0), 0x0BD6_0BD0);
    assert_eq!(u32_at(bytes, 4) as usize, bytes.len());
    let entries = bytes[32..].chunks_exact(48).take(u16_at(bytes, 14).into());
    entries
        .map(|entry| {
            let (offset, length) = (u32_at(entry, 24) as usize, u32_at(entry, 28) as usize);
            (u32_at(entry, 4), u64_at(entry, 8), u64_at(entry, 16), &bytes[offset..offset + length])
        })
        .collect()
}

pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Bytes that differ at every offset that matters.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at.wrapping_mul(0x9E37_79B1) >> 24) as u8).collect()
}

/// Waits for something that comes by itself, for 20 seconds at most.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
