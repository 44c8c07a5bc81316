//! The attribute `lustre.lov` by its bytes, apart from haul's own reader: what a file is striped as, and making one.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, XattrFlags};

const NAME: &str = "lustre.lov";
const V1: u32 = 0x0BD1_0BD0;
const V3: u32 = 0x0BD3_0BD0;
const COMPOSITE: u32 = 0x0BD6_0BD0;

/// How a range of a file is striped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    pub end: u64,
    pub stripes: u16,
    pub stripe_bytes: u32,
    pub pool: String,
}

/// What a file is striped as, and on which targets.
pub struct Found {
    pub parts: Vec<Part>,
    on: Vec<Vec<u32>>,
}

impl Found {
    /// Of all parts.
    pub fn targets(&self) -> Vec<u32> {
        self.on.concat()
    }

    /// Of one.
    pub fn targets_of(&self, part: usize) -> &[u32] {
        &self.on[part]
    }
}

/// What a file says.
pub fn of(path: &Path) -> io::Result<Found> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut value = vec![0; 64 << 10];
    let length = rustix::fs::getxattr(&name, NAME, &mut value[..])?;
    value.truncate(length);
    let mut found = Found { parts: Vec::new(), on: Vec::new() };
    if word(&value, 0) != COMPOSITE {
        plain(&value, u64::MAX, &mut found);
        return Ok(found);
    }
    for entry in value[32..].chunks(48).take(usize::from(short(&value, 14))) {
        let end = u64::from_le_bytes(entry[16..24].try_into().expect("eight bytes"));
        let (start, length) = (word(entry, 24) as usize, word(entry, 28) as usize);
        plain(&value[start..start + length], end, &mut found);
    }
    Ok(found)
}

fn plain(value: &[u8], end: u64, found: &mut Found) {
    let named = word(value, 0) == V3;
    let pool = if named { &value[32..48] } else { &[] };
    let pool = String::from_utf8_lossy(pool).trim_end_matches('\0').to_owned();
    let objects = value[if named { 48 } else { 32 }..].chunks(24);
    found.on.push(objects.map(|object| word(object, 20)).collect());
    found.parts.push(Part { end, stripes: short(value, 28), stripe_bytes: word(value, 24), pool });
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Makes a file that is striped so, with these contents.
pub fn make(path: &Path, parts: &[Part], contents: &[u8]) -> io::Result<()> {
    rustix::fs::mknodat(CWD, path, FileType::RegularFile, Mode::from_raw_mode(0o644), 0)?;
    set(path, parts)?;
    fs::OpenOptions::new().write(true).open(path)?;
    fs::write(path, contents)?;
    File::open(path)?.sync_all()
}

/// Of a directory: what new files in it get.
pub fn set(path: &Path, parts: &[Part]) -> io::Result<()> {
    let value = match parts {
        [part] => wish(part),
        parts => composite(parts),
    };
    Ok(rustix::fs::setxattr(path, NAME, &value, XattrFlags::empty())?)
}

fn wish(part: &Part) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(if part.pool.is_empty() { V1 } else { V3 }.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend(part.stripe_bytes.to_le_bytes());
    bytes.extend(part.stripes.to_le_bytes());
    bytes.extend(u16::MAX.to_le_bytes());
    if !part.pool.is_empty() {
        bytes.extend(part.pool.as_bytes());
        bytes.resize(48, 0);
    }
    bytes
}

fn composite(parts: &[Part]) -> Vec<u8> {
    let wishes: Vec<_> = parts.iter().map(wish).collect();
    let mut at = 32 + 48 * parts.len();
    let mut bytes = Vec::new();
    bytes.extend(COMPOSITE.to_le_bytes());
    bytes.extend(((at + wishes.iter().map(Vec::len).sum::<usize>()) as u32).to_le_bytes());
    bytes.resize(14, 0);
    bytes.extend((parts.len() as u16).to_le_bytes());
    bytes.resize(32, 0);
    let mut start = 0_u64;
    for (part, wish) in parts.iter().zip(&wishes) {
        bytes.extend([0; 8]);
        bytes.extend(start.to_le_bytes());
        bytes.extend(part.end.to_le_bytes());
        bytes.extend((at as u32).to_le_bytes());
        bytes.extend((wish.len() as u32).to_le_bytes());
        bytes.extend([0; 16]);
        (start, at) = (part.end, at + wish.len());
    }
    bytes.extend(wishes.concat());
    bytes
}
