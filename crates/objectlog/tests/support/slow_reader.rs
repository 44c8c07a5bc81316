//! Decodes logs as docs/spec/object-log.md says, with nothing of the crate's own code: slow, and written to be read
//! beside that page. Section numbers are those of the page.

use std::collections::BTreeMap;

/// The number of a log and a generation there.
pub type Origin = (u64, u32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRecord {
    pub log: String,
    pub mechanism: u8,
    pub method: u8,
    pub path: Vec<u8>,
    /// Where the path is, if it is not in the record, and its length.
    pub path_outside: Option<((u64, u64), usize)>,
    pub generation: u32,
    /// Of a continued record.
    pub origin: Option<Origin>,
    pub hash_kind: u8,
    pub object_bytes: u32,
    pub objects: u64,
    pub size: u64,
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
    pub inode: u64,
    pub token: [u8; 16],
    pub sink_boot: Option<[u8; 16]>,
    pub extents: Vec<(u64, u64)>,
    pub done: Vec<u64>,
}

impl SlowRecord {
    fn same_entry(&self, other: &SlowRecord) -> bool {
        let key = |record: &SlowRecord| {
            let SlowRecord {
                hash_kind,
                object_bytes,
                objects,
                size,
                mtime,
                ctime,
                inode,
                token,
                sink_boot,
                ..
            } = record;
            (*hash_kind, *object_bytes, *objects, *size, *mtime, *ctime, *inode, *token, *sink_boot)
        };
        self.path == other.path && key(self) == key(other)
    }
}

/// CRC-32 with the reversed polynomial 0xedb88320.
fn crc32(parts: &[&[u8]]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let (mut value, mut bit) = (index as u32, 0);
            while bit < 8 {
                value = (value >> 1) ^ (0xedb8_8320 & (value & 1).wrapping_neg());
                bit += 1;
            }
            table[index] = value;
            index += 1;
        }
        table
    };
    let bytes = parts.iter().copied().flatten();
    !bytes.fold(!0, |crc, byte| (crc >> 8) ^ TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize])
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Section 2: the number in the name of a log.
pub fn log_number(name: &str) -> Option<u64> {
    let rest = name.strip_suffix(".log")?;
    let digits =
        ["file-", "transaction-", "universal-"].iter().find_map(|prefix| rest.strip_prefix(prefix))?;
    digits.parse().ok().filter(|number: &u64| *number > 0 && number.to_string() == digits)
}

/// Section 5: the cells of an extent, as far as the log goes: number, offset, bytes.
fn cells(log: &[u8], (offset, length): (u64, u64)) -> impl Iterator<Item = (u64, u64, &[u8])> {
    let (mut start, mut index, end) = (offset, 0, offset + length);
    std::iter::from_fn(move || {
        let stop = ((start / 512 + 1) * 512).min(end);
        let cell = log.get(usize::try_from(start).ok()?..usize::try_from(stop).ok()?)?;
        let found = (start < end).then_some((index, start, cell))?;
        (start, index) = (stop, index + 1);
        Some(found)
    })
}

/// Section 5: an extent of up to 512 bytes lies within one page, a longer one starts on a page.
fn is_placed((offset, length): (u64, u64)) -> bool {
    if length <= 512 { offset % 512 + length <= 512 } else { offset.is_multiple_of(512) }
}

fn cell_checksum(kind: u8, log_number: u64, offset: u64, token: &[u8; 16], cell: &[u8]) -> u32 {
    crc32(&[&[kind], &log_number.to_le_bytes(), &offset.to_le_bytes(), token, &cell[4..]])
}

/// Section 5: the payloads of the believed cells of an extent.
fn payloads<'l>(
    log: &'l [u8],
    kind: u8,
    log_number: u64,
    record: &SlowRecord,
    extent: (u64, u64),
) -> Vec<(u64, &'l [u8])> {
    let is_believed = |offset, cell: &[u8]| {
        cell.len() >= 8
            && number(&cell[4..8]) == u64::from(record.generation)
            && number(&cell[..4]) == u64::from(cell_checksum(kind, log_number, offset, &record.token, cell))
    };
    cells(log, extent)
        .filter(|(_, offset, cell)| is_believed(*offset, cell))
        .map(|(index, _, cell)| (index, &cell[8..]))
        .collect()
}

/// Section 6: the lengths that the extents of a file of so many objects have.
fn extent_lengths(method: u8, objects: u64) -> Vec<u64> {
    let pages = |payload: u64| payload.div_ceil(504) * 512;
    let bits = |payload: u64| vec![if payload <= 504 { 8 + payload } else { pages(payload) }];
    let widest = match method {
        0 => (objects - 1).to_string().len() as u64 + 1,
        1 => 8,
        2 => u64::from(64 - objects.leading_zeros()).div_ceil(7),
        3 => 4,
        4 => return bits(objects.div_ceil(8)),
        _ => return bits(8 * objects.div_ceil(64)),
    };
    if objects * widest <= 504 {
        return vec![8 + objects * widest];
    }
    let mut left = objects.div_ceil(504 / widest);
    let first = left.div_ceil(16);
    let mut lengths = Vec::new();
    for step in [1, 1, 2, 4, 8] {
        let here = left.min(first * step);
        lengths.extend((here > 0).then_some(here * 512));
        left -= here;
    }
    lengths
}

/// Section 6: the objects in one payload of an appending method.
fn numbers(method: u8, payload: &[u8]) -> Vec<u64> {
    let until_zero = |values: &mut dyn Iterator<Item = u64>| -> Vec<u64> {
        values.take_while(|value| *value != 0).map(|value| value - 1).collect()
    };
    match method {
        0 => payload
            .split_inclusive(|byte| *byte == b'\n')
            .map_while(|line| {
                let digits = line.strip_suffix(b"\n").filter(|line| line.iter().all(u8::is_ascii_digit))?;
                std::str::from_utf8(digits).ok()?.parse().ok()
            })
            .collect(),
        1 => until_zero(&mut payload.chunks_exact(8).map(number)),
        2 => {
            let (mut found, mut rest) = (Vec::new(), payload);
            // Five bytes hold every number; what has more than six is not taken for one.
            while let Some(last) = rest.iter().take(6).position(|byte| *byte < 0x80)
                && rest[last] != 0
            {
                let (groups, after) = rest.split_at(last + 1);
                let value = groups.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f));
                found.push(value - 1);
                rest = after;
            }
            found
        }
        _ => until_zero(&mut payload.chunks_exact(4).map(number)),
    }
}

/// Section 3: the index pages that are believed, whatever their version; offset and bytes.
fn summed_pages(log: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let pages = log.chunks_exact(512).enumerate().map(|(index, page)| (index as u64 * 512, page));
    pages.filter(|(offset, page)| {
        &page[4..8] == b"HOLX"
            && number(&page[..4]) == u64::from(crc32(&[b"I", &offset.to_le_bytes(), &page[4..]]))
    })
}

/// Section 11: a version that is newer makes the whole directory refused.
pub fn is_newer(files: &BTreeMap<String, Vec<u8>>) -> bool {
    let logs = files.iter().filter(|(name, _)| log_number(name).is_some());
    logs.flat_map(|(_, log)| summed_pages(log)).any(|(_, page)| number(&page[8..10]) > 1)
}

/// Section 4: one record, without its objects, and without its path if that is outside.
fn record(name: &str, mechanism: u8, method: u8, bytes: &[u8]) -> Option<SlowRecord> {
    let field = |at: usize, length: usize| bytes.get(at..at + length).map(number);
    let signed = |at| field(at, 8).map(|value| value as i64);
    let extent = |at| {
        let (offset, length) = (field(at, 8)?, field(at + 8, 8)?);
        offset.checked_add(length).filter(|end| *end < 1 << 63).map(|_| (offset, length))
    };
    let flags = field(2, 1)?;
    let generation = field(4, 4).filter(|generation| *generation > 0)? as u32;
    let objects = field(12, 4).filter(|objects| *objects > 0)?;
    let path_bytes = field(16, 4).filter(|bytes| *bytes <= 65_536 * 1_025)? as usize;
    let extent_count = field(20, 4).filter(|count| *count <= 5)? as usize;
    let extents = (0..extent_count).map(|index| extent(80 + 16 * index)).collect::<Option<Vec<_>>>()?;
    let mut end = 80 + 16 * extent_count;
    let mut sink_boot = None;
    if flags & 2 != 0 {
        sink_boot = Some(bytes.get(end..end + 16)?.try_into().ok()?);
        end += 16;
    }
    let mut origin = (flags & 1 != 0).then_some((0, 0));
    if flags & 8 != 0 {
        // Only a continued record has one.
        origin = Some(origin.and(field(end, 8).zip(field(end + 8, 4)))?).map(|(log, of)| (log, of as u32));
        end += 12;
    }
    let (mut path, mut path_outside) = (Vec::new(), None);
    if flags & 4 != 0 {
        let found = extent(end)?;
        let length = if path_bytes <= 504 { 8 + path_bytes } else { path_bytes.div_ceil(504) * 512 };
        path_outside = (found.1 == length as u64).then_some(Some((found, path_bytes)))?;
        end += 16;
    } else {
        path = bytes.get(end..end + path_bytes)?.to_vec();
        end += path_bytes;
    }
    (flags < 16 && end == bytes.len()).then_some(())?;
    Some(SlowRecord {
        log: name.to_string(),
        mechanism,
        method,
        path,
        path_outside,
        generation,
        origin,
        hash_kind: field(3, 1)? as u8,
        object_bytes: field(8, 4)? as u32,
        objects,
        size: field(24, 8)?,
        mtime: (signed(32)?, field(48, 4)? as u32),
        ctime: (signed(40)?, field(52, 4)? as u32),
        inode: field(56, 8)?,
        token: bytes.get(64..80)?.try_into().ok()?,
        sink_boot,
        extents,
        done: Vec::new(),
    })
}

/// Sections 3 and 4: every record of one log, as its index pages say it.
pub fn index_records(name: &str, log: &[u8]) -> Vec<SlowRecord> {
    let mut found = Vec::new();
    for (_, page) in summed_pages(log) {
        let (mechanism, method, used) = (page[10], page[11], number(&page[26..28]) as usize);
        let is_version_1 = number(&page[8..10]) == 1;
        if !is_version_1 || log_number(name) != Some(number(&page[16..24])) || mechanism > 2 || method > 5 {
            continue;
        }
        let Some(mut rest) = page[28..].get(..used) else { continue };
        for _ in 0..number(&page[24..26]) {
            let Some((bytes, after)) =
                rest.get(..2).and_then(|length| rest.split_at_checked(number(length) as usize))
            else {
                break;
            };
            // What is behind a record that makes no sense makes none either.
            let Some(record) = record(name, mechanism, method, bytes) else { break };
            rest = after;
            let planned = extent_lengths(method, record.objects);
            let fits = |(extent, length): (&(u64, u64), &u64)| {
                *extent == (0, 0) || extent.1 == *length && is_placed(*extent)
            };
            if record.extents.len() == planned.len() && record.extents.iter().zip(&planned).all(fits) {
                found.push(record);
            }
        }
    }
    found
}

/// Sections 4 to 6: every record of one log, with its path and objects.
pub fn read_log(name: &str, log: &[u8]) -> Vec<SlowRecord> {
    let Some(log_number) = log_number(name) else { return Vec::new() };
    let mut found = index_records(name, log);
    // Section 10: no more memory than the log is long, so no cell counts for the paths of two records.
    let mut path_bytes_left = log.len();
    found.retain_mut(|record| {
        if let Some((extent, length)) = record.path_outside {
            if length > path_bytes_left || !is_placed(extent) {
                return false;
            }
            let pieces = payloads(log, b'P', log_number, record, extent);
            record.path = pieces.iter().flat_map(|(_, piece)| piece.iter().copied()).collect();
            if pieces.len() < cells(log, extent).count().max(1) || record.path.len() < length {
                return false;
            }
            record.path.truncate(length);
            path_bytes_left -= length;
        }
        let mut done = Vec::new();
        for extent in &record.extents {
            for (index, payload) in payloads(log, b'D', log_number, record, *extent) {
                if record.method < 4 {
                    done.extend(numbers(record.method, payload));
                    continue;
                }
                let bits = (0..payload.len() as u64 * 8)
                    .filter(|bit| payload[(bit / 8) as usize] >> (bit % 8) & 1 == 1);
                done.extend(bits.map(|bit| index * 504 * 8 + bit));
            }
        }
        done.retain(|object| *object < record.objects);
        done.sort_unstable();
        done.dedup();
        record.done = done;
        true
    });
    found
}

/// Section 7: what all logs of a directory say together, by path.
pub fn read_all(files: &BTreeMap<String, Vec<u8>>) -> BTreeMap<Vec<u8>, SlowRecord> {
    let mut records: Vec<(u64, SlowRecord)> = files
        .iter()
        .filter_map(|(name, log)| Some((log_number(name)?, read_log(name, log))))
        .flat_map(|(number, records)| records.into_iter().map(move |record| (number, record)))
        .collect();
    records.sort_by(|(number, record), (other_number, other)| {
        (other_number, &other.log, other.generation).cmp(&(number, &record.log, record.generation))
    });
    // Of each path how far back older records may still be joined.
    let mut found: BTreeMap<Vec<u8>, (SlowRecord, Option<Origin>)> = BTreeMap::new();
    for (number, record) in records {
        match found.get_mut(&record.path) {
            None => {
                let open = record.origin;
                found.insert(record.path.clone(), (record, open));
            }
            Some((latest, open)) => {
                let reaches = open.is_some_and(|origin| origin <= (number, record.generation));
                let joins = reaches && latest.same_entry(&record);
                if joins {
                    latest.done.extend(&record.done);
                    latest.done.sort_unstable();
                    latest.done.dedup();
                }
                *open = record.origin.max(*open).filter(|_| joins && record.origin.is_some());
            }
        }
    }
    found.into_iter().map(|(path, (record, _))| (path, record)).collect()
}

/// For the planted bug of checksums that are bound to nothing: makes every cell in the room of a record one of its own.
pub fn seal_whatever_is_there(name: &str, mut log: Vec<u8>) -> Vec<u8> {
    seal_cells(name, &mut log, true);
    log
}

/// Makes the checksums of the cells of every record right again after something in them was changed: of those that
/// have its generation, or of all in its room, which then have it.
pub fn seal_cells(name: &str, log: &mut [u8], all: bool) {
    let number = log_number(name).unwrap_or(0);
    for record in index_records(name, log) {
        let path = record.path_outside.map(|(extent, _)| (b'P', extent));
        for (kind, extent) in record.extents.iter().map(|extent| (b'D', *extent)).chain(path) {
            let places: Vec<(u64, usize)> =
                cells(log, extent).map(|(_, offset, cell)| (offset, cell.len())).collect();
            for (offset, length) in places {
                let cell = &mut log[offset as usize..offset as usize + length];
                let generation = record.generation.to_le_bytes();
                if length >= 8 && (all || cell[4..8] == generation) {
                    cell[4..8].copy_from_slice(&generation);
                    let sum = cell_checksum(kind, number, offset, &record.token, cell);
                    cell[..4].copy_from_slice(&sum.to_le_bytes());
                }
            }
        }
    }
}

/// Makes the checksum of an index page right again after something in it was changed.
pub fn seal_index_page(page: &mut [u8], offset: u64) {
    let sum = crc32(&[b"I", &offset.to_le_bytes(), &page[4..512]]);
    page[..4].copy_from_slice(&sum.to_le_bytes());
}
