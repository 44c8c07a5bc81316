//! The attribute `lustre.lov`: how Lustre says, and is told, which objects on which servers make up a file.
//!
//! From the public headers `lustre_idl.h` and `lustre_user.h` (Lustre 2.16), offsets as its own `wiretest.c` asserts
//! them. Numbers are little-endian here; a value of a host of the other byte order has a magic that is not known.
//!
//! A plain layout, `lov_mds_md_v1` and `_v3` (to be set: `lov_user_md_v1`, `_v3`, the same bytes):
//!
//! | bytes | name | meaning |
//! |---|---|---|
//! | 0..4 | `lmm_magic` | 0x0BD10BD0: v1; 0x0BD30BD0: v3; 0x0BD50BD0: like v3, targets chosen by the user |
//! | 4..8 | `lmm_pattern` | low half: 0x001 striped, 0x100 on the metadata server, 0x200 overstriped (one target may hold several stripes), 0x800 compressed; 0x80000000: released to an archive; 0x40000000: objects are missing |
//! | 8..24 | `lmm_oi` | id of the file |
//! | 24..28 | `lmm_stripe_size` | bytes, a multiple of 64 KiB; 0: the default |
//! | 28..30 | `lmm_stripe_count` | objects; 0: the default; from 0xffe0: on all targets |
//! | 30..32 | `lmm_layout_gen` | read: generation; set: first target, 0xffff for any |
//! | 32..48 | `lmm_pool_name` | v3 only: text that ends with NUL |
//! | then 24 each | `lmm_objects` | 0..16 id of the object, 16..20 generation, 20..24 `l_ost_idx`: number of the target |
//!
//! A composite layout, `lov_comp_md_v1`:
//!
//! | bytes | name | meaning |
//! |---|---|---|
//! | 0..4 | `lcm_magic` | 0x0BD60BD0; 0x0BD80BD0 if components are extended as they fill |
//! | 4..8 | `lcm_size` | bytes of it all |
//! | 8..12 | `lcm_layout_gen` | generation |
//! | 12..14 | `lcm_flags` | state of mirrors |
//! | 14..16 | `lcm_entry_count` | components |
//! | 16..18 | `lcm_mirror_count` | mirrors less one |
//! | 18..32 | | other counts, padding |
//! | then 48 each | `lcm_entries` | `lov_comp_md_entry_v1` |
//!
//! One component, `lov_comp_md_entry_v1`:
//!
//! | bytes | name | meaning |
//! |---|---|---|
//! | 0..4 | `lcme_id` | bits 16 to 30: the mirror |
//! | 4..8 | `lcme_flags` | 0x1 stale, 0x10 has objects, 0x40 only room to extend the one before, 0x80 parity |
//! | 8..16, 16..24 | `lcme_extent` | first byte, byte after the last; all ones: end of file |
//! | 24..28, 28..32 | `lcme_offset`, `lcme_size` | where its plain layout is, from the beginning of the composite one |
//! | 32..48 | | generation, time, parameters of parity and compression |

use haul_model::layout::STRIPE_BYTES_MIN;

use super::stripe::{Count, Part, Plan, Pool, Where};

const MAGIC_V1: u32 = 0x0BD1_0BD0;
const MAGIC_V3: u32 = 0x0BD3_0BD0;
const MAGIC_SPECIFIC: u32 = 0x0BD5_0BD0;
const MAGIC_COMPOSITE: u32 = 0x0BD6_0BD0;
/// Composite, with components that are only room for extension.
const MAGIC_EXTENDING: u32 = 0x0BD8_0BD0;
/// A component that is in an archive (HSM), not on targets.
const MAGIC_FOREIGN: u32 = 0x0BD7_0BD0;

const V1_BYTES: usize = 32;
const V3_BYTES: usize = 48;
const OBJECT_BYTES: usize = 24;
const COMPOSITE_BYTES: usize = 32;
const ENTRY_BYTES: usize = 48;

const PATTERN_STRIPED: u32 = 0x001;
const PATTERN_METADATA: u32 = 0x100;
const PATTERN_OVERSTRIPED: u32 = 0x200;
const PATTERN_COMPRESSED: u32 = 0x800;
const PATTERN_RELEASED: u32 = 0x8000_0000;

const ENTRY_STALE: u32 = 0x1;
const ENTRY_HAS_OBJECTS: u32 = 0x10;
const ENTRY_EXTENSION: u32 = 0x40;
const ENTRY_PARITY: u32 = 0x80;
const MIRROR_BITS: u32 = 0x7FFF_0000;

/// `LOV_ALL_STRIPES_WIDE`: from here on counts mean all targets.
const COUNT_ALL_FROM: u16 = 0xffe0;
const COUNT_ALL: u16 = 0xffff;
const FIRST_TARGET_ANY: u16 = 0xffff;

/// What a value says of the mirror that is to be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lov {
    /// In the order of the file, not overlapping; not empty.
    pub components: Vec<LovComponent>,
}

/// What a value says of a range of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LovComponent {
    /// First byte.
    pub start: u64,
    /// Byte after the last; `u64::MAX`: end of file.
    pub end: u64,
    /// On what.
    pub place: Where,
    /// Bytes; 0: the default.
    pub stripe_size: u32,
    /// Stripes that are wanted, with or without objects.
    pub count: Count,
    /// The pool that targets are taken from.
    pub pool: Option<Pool>,
    /// Numbers of the targets of the objects, in the order of stripes; empty as long as there are none.
    pub targets: Vec<u32>,
    /// It is in an archive, and has no objects until somebody reads it.
    pub released: bool,
    /// Only room for the component before it.
    pub extension: bool,
}

impl Lov {
    /// What a file of this layout was striped as. Room for extension counts as part of what it extends. `None` where a
    /// part of the file has no layout at all, and beyond the limits of a plan.
    pub fn plan(&self) -> Option<Plan> {
        let mut parts: Vec<Part> = Vec::with_capacity(self.components.len());
        let mut start = 0;
        for component in &self.components {
            if component.start != start {
                return None;
            }
            start = component.end;
            match parts.last_mut() {
                Some(before) if component.extension => before.end = component.end,
                _ => parts.push(Part {
                    end: component.end,
                    place: component.place,
                    count: component.count,
                    stripe_size: component.stripe_size,
                    pool: component.pool.clone(),
                }),
            }
        }
        Plan::new(parts)
    }
}

/// Reads a value. `None` for everything that is not known or not sound.
pub fn decode(value: &[u8]) -> Option<Lov> {
    let components = match number(value, 0)? {
        MAGIC_COMPOSITE | MAGIC_EXTENDING => composite(value)?,
        _ => vec![plain(value, 0, u64::MAX)?],
    };
    let ordered = components.windows(2).all(|pair| pair[0].end <= pair[1].start);
    let sound = components.iter().all(|component| component.start < component.end);
    (ordered && sound && !components.is_empty()).then_some(Lov { components })
}

fn plain(value: &[u8], start: u64, end: u64) -> Option<LovComponent> {
    let head = match number(value, 0)? {
        MAGIC_V1 => V1_BYTES,
        MAGIC_V3 | MAGIC_SPECIFIC => V3_BYTES,
        _ => return None,
    };
    let objects = value.get(head..)?;
    let pattern = number(value, 4)?;
    let place = match pattern & 0xffff & !PATTERN_COMPRESSED {
        // A default that leaves the pattern open means stripes.
        0 | PATTERN_STRIPED => Where::Targets,
        OVERSTRIPED => Where::TargetsRepeated,
        PATTERN_METADATA => Where::Metadata,
        _ => return None,
    };
    let stripe_size = number(value, 24)?;
    let count = match short(value, 28)? {
        0 => Count::Default,
        COUNT_ALL_FROM.. => Count::All,
        count => Count::Exactly(count),
    };
    let released = pattern & PATTERN_RELEASED != 0;
    let targets = match count {
        Count::Exactly(count) if place != Where::Metadata && !released && !objects.is_empty() => {
            let objects = objects.get(..usize::from(count) * OBJECT_BYTES)?;
            objects.chunks_exact(OBJECT_BYTES).map(|object| number(object, 20)).collect::<Option<Vec<_>>>()?
        }
        _ => Vec::new(),
    };
    if !targets.is_empty() && u64::from(stripe_size) < STRIPE_BYTES_MIN {
        return None;
    }
    let pool = if head == V3_BYTES { pool(&value[V1_BYTES..V3_BYTES])? } else { None };
    Some(LovComponent { start, end, place, stripe_size, count, pool, targets, released, extension: false })
}

/// From a field of 16 bytes that is filled up with NUL: `Some(None)` if it is empty, `None` if it is no text.
fn pool(field: &[u8]) -> Option<Option<Pool>> {
    let name = &field[..field.iter().position(|byte| *byte == 0)?];
    match std::str::from_utf8(name).ok()? {
        "" => Some(None),
        name => Pool::new(name).map(Some),
    }
}

const OVERSTRIPED: u32 = PATTERN_STRIPED | PATTERN_OVERSTRIPED;

/// An entry of a composite layout.
struct Entry<'a> {
    flags: u32,
    mirror: u32,
    start: u64,
    end: u64,
    value: &'a [u8],
}

impl<'a> Entry<'a> {
    fn decode(composite: &'a [u8], at: usize, entries_end: usize) -> Option<Entry<'a>> {
        let entry = composite.get(at..at + ENTRY_BYTES)?;
        let (offset, size) = (number(entry, 24)? as usize, number(entry, 28)? as usize);
        let value = composite.get(offset..offset.checked_add(size)?)?;
        (offset >= entries_end).then_some(Entry {
            flags: number(entry, 4)?,
            mirror: number(entry, 0)? & MIRROR_BITS,
            start: long(entry, 8)?,
            end: long(entry, 16)?,
            value,
        })
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    fn component(&self) -> Option<LovComponent> {
        let mut component = plain(self.value, self.start, self.end)?;
        component.extension = self.has(ENTRY_EXTENSION);
        if !self.has(ENTRY_HAS_OBJECTS) {
            component.targets = Vec::new();
        }
        Some(component)
    }
}

/// The components of the first mirror that is whole and not stale; where all are stale, of the first.
fn composite(value: &[u8]) -> Option<Vec<LovComponent>> {
    let value = value.get(..number(value, 4)? as usize)?;
    let count = usize::from(short(value, 14)?);
    let entries_end = COMPOSITE_BYTES + count * ENTRY_BYTES;
    let entries =
        (0..count).map(|index| Entry::decode(value, COMPOSITE_BYTES + index * ENTRY_BYTES, entries_end));
    let mut entries = entries.collect::<Option<Vec<_>>>()?;
    // Each has its own bytes: so all of them together have no more objects than the value has room for.
    let bytes: usize = entries.iter().map(|entry| entry.value.len()).sum();
    if bytes > value.len().checked_sub(entries_end)? {
        return None;
    }
    entries.retain(|entry| !entry.has(ENTRY_PARITY));
    let readable = |mirror: &&[Entry<'_>]| {
        mirror.iter().all(|entry| !entry.has(ENTRY_STALE) && number(entry.value, 0) != Some(MAGIC_FOREIGN))
    };
    let mirrors = || entries.chunk_by(|one, next| one.mirror == next.mirror);
    let mirror = mirrors().find(readable).or_else(|| mirrors().next())?;
    // An extension that was used up has no bytes left.
    mirror.iter().filter(|entry| entry.start != entry.end).map(Entry::component).collect()
}

/// The value that makes Lustre stripe a new file as planned.
pub fn encode(plan: &Plan) -> Vec<u8> {
    let parts = plan.parts();
    if let [part] = parts
        && part.place != Where::Metadata
    {
        return encode_plain(part);
    }
    let values: Vec<_> = parts.iter().map(encode_plain).collect();
    let entries_end = COMPOSITE_BYTES + parts.len() * ENTRY_BYTES;
    let size = entries_end + values.iter().map(Vec::len).sum::<usize>();
    let mut bytes = Vec::with_capacity(size);
    bytes.extend_from_slice(&MAGIC_COMPOSITE.to_le_bytes());
    bytes.extend_from_slice(&(size as u32).to_le_bytes());
    bytes.resize(14, 0);
    bytes.extend_from_slice(&(parts.len() as u16).to_le_bytes());
    bytes.resize(COMPOSITE_BYTES, 0);
    let (mut start, mut offset) = (0_u64, entries_end);
    for (part, value) in parts.iter().zip(&values) {
        let entry_end = bytes.len() + ENTRY_BYTES;
        // The server chooses ids and sets the flags.
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&start.to_le_bytes());
        bytes.extend_from_slice(&part.end.to_le_bytes());
        bytes.extend_from_slice(&(offset as u32).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.resize(entry_end, 0);
        start = part.end;
        offset += value.len();
    }
    values.iter().for_each(|value| bytes.extend_from_slice(value));
    bytes
}

fn encode_plain(part: &Part) -> Vec<u8> {
    let (magic, pattern) = match (&part.pool, part.place) {
        (_, Where::Metadata) => (MAGIC_V1, PATTERN_METADATA),
        (None, Where::Targets) => (MAGIC_V1, PATTERN_STRIPED),
        (None, Where::TargetsRepeated) => (MAGIC_V1, OVERSTRIPED),
        (Some(_), Where::Targets) => (MAGIC_V3, PATTERN_STRIPED),
        (Some(_), Where::TargetsRepeated) => (MAGIC_V3, OVERSTRIPED),
    };
    let (count, stripe_size) = match (part.place, part.count) {
        // Its one stripe is as long as the part, and must not be counted.
        (Where::Metadata, _) => (0, part.end.min(u64::from(u32::MAX)) as u32),
        (_, Count::Default) => (0, part.stripe_size),
        (_, Count::All) => (COUNT_ALL, part.stripe_size),
        (_, Count::Exactly(count)) => (count, part.stripe_size),
    };
    let mut bytes = Vec::with_capacity(V3_BYTES);
    bytes.extend_from_slice(&magic.to_le_bytes());
    bytes.extend_from_slice(&pattern.to_le_bytes());
    bytes.resize(24, 0);
    bytes.extend_from_slice(&stripe_size.to_le_bytes());
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&FIRST_TARGET_ANY.to_le_bytes());
    if let Some(pool) = part.pool.as_ref().filter(|_| magic == MAGIC_V3) {
        bytes.extend_from_slice(pool.as_str().as_bytes());
        bytes.resize(V3_BYTES, 0);
    }
    bytes
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
