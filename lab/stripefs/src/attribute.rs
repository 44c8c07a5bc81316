//! The extended attribute `lustre.lov` in bytes.
//!
//! Facts from `lustre_user.h` and `lustre_idl.h`; all numbers are little-endian, nothing is padded.
//!
//! | at | plain layout, or what one component points to | bytes |
//! |---|---|---|
//! | 0 | magic: 0x0BD10BD0 v1, 0x0BD30BD0 v3, 0x0BD50BD0 as v3 with the targets chosen by the user | 4 |
//! | 4 | pattern: 0x1 stripes, 0x201 overstriped, 0x100 on the metadata server | 4 |
//! | 8 | file: object number, sequence | 8 + 8 |
//! | 24 | stripe size | 4 |
//! | 28 | stripe count; 0xffff all targets | 2 |
//! | 30 | when set, first target or 0xffff; when read, 0xffff | 2 |
//! | 32 | not in v1: name of the pool, zeros behind it | 16 |
//! | then | for each object: number 8, sequence 8, generation 4, target 4 | 24 each |
//!
//! | at | composite layout, magic 0x0BD60BD0 | bytes |
//! |---|---|---|
//! | 0 | magic, size of everything, layout generation | 4 + 4 + 4 |
//! | 12 | flags, entries, mirrors - 1 | 2 + 2 + 2 |
//! | 18 | parity components, padding | 14 |
//! | 32 | for each component: id, flags (0x10: has its objects) | 4 + 4 |
//! |    | first byte, first byte behind (all ones: no end) | 8 + 8 |
//! |    | offset and size of what is in the table above, layout generation | 4 + 4 + 4 |
//! |    | time stamp, parity and compression | 8 + 4 |
//!
//! A component without objects still has its header. The client replaces the generation at 30 by 0xffff when the
//! attribute is read (`ll_sanitize_xattr`), and leaves the file at 8 zero within composites (`lov_lsm_pack`).
//! The same bytes are kept by the metadata server, but with the first target at 30.

use rustix::io::Errno;

use crate::layout::{ANY, Component, END, Layout, Object, Pattern, UNIT_BYTES};

/// The attribute's name.
pub const NAME: &str = "lustre.lov";

const MAGIC_V1: u32 = 0x0BD1_0BD0;
const MAGIC_V3: u32 = 0x0BD3_0BD0;
const MAGIC_SPECIFIC: u32 = 0x0BD5_0BD0;
const MAGIC_COMPOSITE: u32 = 0x0BD6_0BD0;

const PATTERN_STRIPED: u32 = 0x1;
const PATTERN_OVERSTRIPED: u32 = 0x201;
const PATTERN_METADATA: u32 = 0x100;

const FLAG_INSTANTIATED: u32 = 0x10;

const HEADER_BYTES: usize = 32;
const POOL_BYTES: usize = 16;
const OBJECT_BYTES: usize = 24;
const ENTRY_BYTES: usize = 48;
/// More than Lustre's 2000 stripes in a few components need, and the most that an attribute may have.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;
/// Sequence of the files' numbers: the first that a metadata server hands out.
const FILE_SEQUENCE: u64 = 0x2_0000_0400;

/// Who reads what is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// A user, of the file with this inode number.
    File(u64),
    /// A user, of a directory's default.
    Directory,
    /// The metadata server itself.
    Stored,
}

/// The attribute of a layout.
pub fn encode(layout: &Layout, view: View) -> Vec<u8> {
    if !layout.composite {
        return layout.components.first().map_or_else(Vec::new, |only| stripes(only, view, false));
    }
    let blobs: Vec<_> = layout.components.iter().map(|component| stripes(component, view, true)).collect();
    let mut offset = HEADER_BYTES + ENTRY_BYTES * blobs.len();
    let size = offset + blobs.iter().map(Vec::len).sum::<usize>();
    let mut bytes = Vec::with_capacity(size);
    bytes.extend(MAGIC_COMPOSITE.to_le_bytes());
    bytes.extend((size as u32).to_le_bytes());
    bytes.extend(layout.generation.to_le_bytes());
    bytes.extend(0u16.to_le_bytes());
    bytes.extend((blobs.len() as u16).to_le_bytes());
    bytes.extend([0; 16]);
    for (component, blob) in layout.components.iter().zip(&blobs) {
        let flags = if component.objects.is_some() { FLAG_INSTANTIATED } else { 0 };
        bytes.extend(component.id.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(component.start.to_le_bytes());
        bytes.extend(component.end.to_le_bytes());
        bytes.extend((offset as u32).to_le_bytes());
        bytes.extend((blob.len() as u32).to_le_bytes());
        bytes.extend([0; 16]);
        offset += blob.len();
    }
    bytes.extend(blobs.concat());
    bytes
}

fn stripes(component: &Component, view: View, in_composite: bool) -> Vec<u8> {
    let listed =
        component.objects.is_none() && !matches!(view, View::File(_)) && !component.listed.is_empty();
    let magic = match (listed, component.pool.is_empty()) {
        (true, _) => MAGIC_SPECIFIC,
        (false, true) => MAGIC_V1,
        (false, false) => MAGIC_V3,
    };
    let pattern = match component.pattern {
        Pattern::Striped => PATTERN_STRIPED,
        Pattern::Overstriped => PATTERN_OVERSTRIPED,
        Pattern::Metadata => PATTERN_METADATA,
    };
    let (number, sequence) = match view {
        View::File(inode) if !in_composite => (inode & 0xffff_ffff, FILE_SEQUENCE + (inode >> 32)),
        _ => (0, 0),
    };
    let objects = component.objects.as_deref().unwrap_or(&[]);
    let count = if objects.is_empty() { component.stripe_count } else { objects.len() as u16 };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + POOL_BYTES + OBJECT_BYTES * usize::from(count));
    bytes.extend(magic.to_le_bytes());
    bytes.extend(pattern.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(component.stripe_bytes.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(if matches!(view, View::File(_)) { ANY } else { component.first }.to_le_bytes());
    if magic != MAGIC_V1 {
        let mut pool = [0; POOL_BYTES];
        let length = component.pool.len().min(POOL_BYTES - 1);
        pool[..length].copy_from_slice(&component.pool.as_bytes()[..length]);
        bytes.extend(pool);
    }
    let mut object = |id: u64, target: u32| {
        bytes.extend(id.to_le_bytes());
        bytes.extend([0; 12]);
        bytes.extend(target.to_le_bytes());
    };
    if listed {
        component.listed.iter().for_each(|target| object(0, *target));
    } else {
        objects.iter().for_each(|one| object(one.id, one.target));
    }
    bytes
}

/// What the metadata server has stored, objects and all.
pub fn decode_stored(bytes: &[u8]) -> Result<Layout, Errno> {
    decode(bytes, true)
}

/// What a user wishes; objects in it (of another file, from which it was copied) are not taken over.
///
/// `ERANGE` where it is cut off, `EINVAL` where it cannot be, `EOPNOTSUPP` for mirrors, which are not emulated.
pub fn decode_wish(bytes: &[u8]) -> Result<Layout, Errno> {
    decode(bytes, false)
}

fn decode(bytes: &[u8], stored: bool) -> Result<Layout, Errno> {
    if bytes.len() < HEADER_BYTES || bytes.len() > ATTRIBUTE_BYTES_MAX {
        return Err(Errno::RANGE);
    }
    if u32_at(bytes, 0)? != MAGIC_COMPOSITE {
        let mut component = decode_stripes(bytes, stored, stored)?;
        // Without a composite around it Lustre has no component on the metadata server.
        if component.pattern == Pattern::Metadata {
            return Err(Errno::INVAL);
        }
        // Copied from a file: the first target was not a wish.
        if !stored && component.first == 0 && component.objects.is_some() {
            component.first = ANY;
        }
        if !stored {
            component.objects = None;
        }
        return Ok(Layout { composite: false, generation: u32::from(stored), components: vec![component] });
    }
    let (size, entries) = (u32_at(bytes, 4)? as usize, usize::from(u16_at(bytes, 14)?));
    if bytes.len() < size || size < HEADER_BYTES + entries * ENTRY_BYTES {
        return Err(Errno::RANGE);
    }
    if u16_at(bytes, 16)? != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let mut components = Vec::with_capacity(entries);
    let mut copied = false;
    for index in 0..entries {
        let entry = &bytes[HEADER_BYTES + index * ENTRY_BYTES..][..ENTRY_BYTES];
        let instantiated = u32_at(entry, 4)? & FLAG_INSTANTIATED != 0;
        let (offset, length) = (u32_at(entry, 24)? as usize, u32_at(entry, 28)? as usize);
        let blob = offset.checked_add(length).and_then(|end| bytes.get(offset..end)).ok_or(Errno::RANGE)?;
        let mut component = decode_stripes(blob, stored, stored && instantiated)?;
        component.id = if stored { u32_at(entry, 0)? } else { index as u32 + 1 };
        (component.start, component.end) = (u64_at(entry, 8)?, u64_at(entry, 16)?);
        copied |= instantiated;
        components.push(component);
    }
    if !stored {
        for component in &mut components {
            component.objects = None;
            component.first = if copied { ANY } else { component.first };
        }
    }
    check_extents(&components)?;
    let generation = u32_at(bytes, 8)?;
    Ok(Layout { composite: true, generation, components })
}

/// Each begins where the one before ends, at 0 the first, on multiples of 64 KiB and of its own stripe size.
fn check_extents(components: &[Component]) -> Result<(), Errno> {
    let mut expected = 0;
    for component in components {
        let end = component.end;
        if component.start != expected || end <= component.start || (end != END && end % UNIT_BYTES != 0) {
            return Err(Errno::INVAL);
        }
        let stripe = u64::from(component.stripe_bytes);
        match component.pattern {
            // One stripe that is all of the component, which begins the file.
            Pattern::Metadata if component.start != 0 || stripe != end => return Err(Errno::INVAL),
            Pattern::Metadata if component.stripe_count > 1 || !component.pool.is_empty() => {
                return Err(Errno::INVAL);
            }
            _ if stripe != 0 && end != END && end % stripe != 0 => return Err(Errno::INVAL),
            _ => {}
        }
        expected = end;
    }
    if components.is_empty() { Err(Errno::INVAL) } else { Ok(()) }
}

fn decode_stripes(bytes: &[u8], stored: bool, with_objects: bool) -> Result<Component, Errno> {
    if bytes.len() < HEADER_BYTES {
        return Err(Errno::RANGE);
    }
    let magic = u32_at(bytes, 0)?;
    let pattern = match u32_at(bytes, 4)? {
        // 0 is what users write who want the default.
        0 | PATTERN_STRIPED => Pattern::Striped,
        PATTERN_OVERSTRIPED => Pattern::Overstriped,
        PATTERN_METADATA => Pattern::Metadata,
        _ => return Err(Errno::INVAL),
    };
    let (pool, behind) = match magic {
        MAGIC_V1 => (String::new(), HEADER_BYTES),
        MAGIC_V3 | MAGIC_SPECIFIC => {
            let pool = bytes.get(HEADER_BYTES..HEADER_BYTES + POOL_BYTES).ok_or(Errno::RANGE)?;
            let length = pool.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
            let pool = std::str::from_utf8(&pool[..length]).map_err(|_| Errno::INVAL)?;
            (pool.to_owned(), HEADER_BYTES + POOL_BYTES)
        }
        _ => return Err(Errno::INVAL),
    };
    let stripe_bytes = u32_at(bytes, 24)?;
    if u64::from(stripe_bytes) % UNIT_BYTES != 0 {
        return Err(Errno::INVAL);
    }
    let stripe_count = u16_at(bytes, 28)?;
    let mut component = Component {
        pattern,
        first: u16_at(bytes, 30)?,
        pool,
        ..Component::plain(stripe_count, stripe_bytes)
    };
    let rows: Vec<_> = bytes[behind..].chunks_exact(OBJECT_BYTES).take(usize::from(stripe_count)).collect();
    let target = |row: &&[u8]| u32_at(row, 20);
    if magic == MAGIC_SPECIFIC {
        if rows.len() != usize::from(stripe_count) {
            return Err(Errno::RANGE);
        }
        component.listed = rows.iter().map(target).collect::<Result<_, _>>()?;
    } else if with_objects || (!stored && rows.iter().any(|row| row[..16] != [0; 16])) {
        let object = |row: &&[u8]| Ok(Object { id: u64_at(row, 0)?, target: target(row)? });
        component.objects = Some(rows.iter().map(object).collect::<Result<_, Errno>>()?);
    }
    Ok(component)
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Errno> {
    array_at(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Errno> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, Errno> {
    array_at(bytes, at).map(u64::from_le_bytes)
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Errno> {
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).ok_or(Errno::RANGE)
}
