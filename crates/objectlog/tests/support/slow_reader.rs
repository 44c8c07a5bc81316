//! Decodes logs as docs/spec/object-log.md says, with nothing of the crate's own code: slow, and written to be read
//! beside that page. Section numbers are those of the page.

use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRecord {
    pub log: String,
    pub mechanism: u8,
    pub method: u8,
    pub path: Vec<u8>,
    pub generation: u32,
    pub continued: bool,
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
fn log_number(name: &str) -> Option<u64> {
    let rest = name.strip_suffix(".log")?;
    let digits =
        ["file-", "transaction-", "universal-"].iter().find_map(|prefix| rest.strip_prefix(prefix))?;
    digits.parse().ok().filter(|number: &u64| number.to_string() == digits)
}

/// Section 5: the payloads of the believed cells of an extent.
fn cells<'l>(
    log: &'l [u8],
    kind: u8,
    log_number: u64,
    generation: u32,
    token: &[u8; 16],
    (offset, length): (u64, u64),
) -> Vec<(u64, &'l [u8])> {
    let mut found = Vec::new();
    let (mut start, mut index, end) = (offset, 0, offset + length);
    while start < end {
        let stop = ((start / 512 + 1) * 512).min(end);
        if let Some(cell) = log.get(start as usize..stop as usize)
            && cell.len() >= 8
            && number(&cell[4..8]) == u64::from(generation)
            && number(&cell[..4])
                == u64::from(crc32(&[
                    &[kind],
                    &log_number.to_le_bytes(),
                    &start.to_le_bytes(),
                    token,
                    &cell[4..],
                ]))
        {
            found.push((index, &cell[8..]));
        }
        index += 1;
        start = stop;
    }
    found
}

/// Section 6: the objects in one payload of an appending method.
fn numbers(method: u8, payload: &[u8]) -> Vec<u64> {
    let mut found = Vec::new();
    match method {
        0 => {
            let text: Vec<u8> = payload.iter().copied().take_while(|byte| *byte != 0).collect();
            found.extend(
                text.split_inclusive(|byte| *byte == b'\n').filter_map(|line| {
                    std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?.parse::<u64>().ok()
                }),
            );
        }
        1 => found.extend(
            payload.chunks_exact(8).map(number).take_while(|value| *value != 0).map(|value| value - 1),
        ),
        2 => {
            let mut rest = payload;
            while rest.first().is_some_and(|byte| *byte != 0) {
                let Some(length) = rest.iter().position(|byte| *byte < 0x80).map(|last| last + 1) else {
                    break;
                };
                found.push(
                    rest[..length].iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
                        - 1,
                );
                rest = &rest[length..];
            }
        }
        3 => found.extend(
            payload.chunks_exact(4).map(number).take_while(|value| *value != 0).map(|value| value - 1),
        ),
        _ => unreachable!(),
    }
    found
}

/// Sections 3 and 4: every record of one log.
pub fn read_log(name: &str, log: &[u8]) -> Vec<SlowRecord> {
    let Some(log_number) = log_number(name) else { return Vec::new() };
    let mut found = Vec::new();
    for (index, page) in log.chunks_exact(512).enumerate() {
        let offset = index as u64 * 512;
        if &page[4..8] != b"HOLX"
            || number(&page[..4]) != u64::from(crc32(&[b"I", &offset.to_le_bytes(), &page[4..]]))
        {
            continue;
        }
        if number(&page[8..10]) != 1 || number(&page[16..24]) != log_number {
            continue;
        }
        let (mechanism, method) = (page[10], page[11]);
        let mut at = 28;
        for _ in 0..number(&page[24..26]) {
            let length = number(&page[at..at + 2]) as usize;
            let record = &page[at..at + length];
            at += length;
            let flags = record[2];
            let path_bytes = number(&record[16..20]) as usize;
            let extent_count = number(&record[20..24]) as usize;
            let mut rest = &record[80..];
            let mut extents = Vec::new();
            for _ in 0..extent_count {
                extents.push((number(&rest[..8]), number(&rest[8..16])));
                rest = &rest[16..];
            }
            let mut sink_boot = None;
            if flags & 2 != 0 {
                sink_boot = Some(rest[..16].try_into().unwrap());
                rest = &rest[16..];
            }
            let generation = number(&record[4..8]) as u32;
            let token: [u8; 16] = record[64..80].try_into().unwrap();
            let path = if flags & 4 != 0 {
                let extent = (number(&rest[..8]), number(&rest[8..16]));
                let pieces = cells(log, b'P', log_number, generation, &token, extent);
                let mut path: Vec<u8> = pieces.into_iter().flat_map(|(_, piece)| piece.to_vec()).collect();
                if path.len() < path_bytes {
                    continue;
                }
                path.truncate(path_bytes);
                path
            } else {
                rest.to_vec()
            };
            let objects = number(&record[12..16]);
            let mut done = Vec::new();
            for extent in &extents {
                for (index, payload) in cells(log, b'D', log_number, generation, &token, *extent) {
                    if method < 4 {
                        done.extend(numbers(method, payload));
                        continue;
                    }
                    for bit in 0..payload.len() as u64 * 8 {
                        if payload[(bit / 8) as usize] >> (bit % 8) & 1 == 1 {
                            done.push(index * 504 * 8 + bit);
                        }
                    }
                }
            }
            done.retain(|object| *object < objects);
            done.sort_unstable();
            done.dedup();
            found.push(SlowRecord {
                log: name.to_string(),
                mechanism,
                method,
                path,
                generation,
                continued: flags & 1 != 0,
                hash_kind: record[3],
                object_bytes: number(&record[8..12]) as u32,
                objects,
                size: number(&record[24..32]),
                mtime: (number(&record[32..40]) as i64, number(&record[48..52]) as u32),
                ctime: (number(&record[40..48]) as i64, number(&record[52..56]) as u32),
                inode: number(&record[56..64]),
                token,
                sink_boot,
                extents,
                done,
            });
        }
    }
    found
}

/// Section 7: what all logs of a directory say together, by path.
pub fn read_all(files: &BTreeMap<String, Vec<u8>>) -> BTreeMap<Vec<u8>, SlowRecord> {
    let mut records: Vec<(u64, SlowRecord)> = files
        .iter()
        .filter_map(|(name, log)| Some((log_number(name)?, read_log(name, log))))
        .flat_map(|(number, records)| records.into_iter().map(move |record| (number, record)))
        .collect();
    records.sort_by_key(|(number, record)| std::cmp::Reverse((*number, record.generation)));
    let mut found: BTreeMap<Vec<u8>, (SlowRecord, bool)> = BTreeMap::new();
    for (_, record) in records {
        match found.get_mut(&record.path) {
            None => {
                let open = record.continued;
                found.insert(record.path.clone(), (record, open));
            }
            Some((latest, open)) => {
                let joins = *open && latest.same_entry(&record);
                if joins {
                    latest.done.extend(&record.done);
                    latest.done.sort_unstable();
                    latest.done.dedup();
                }
                *open = joins && record.continued;
            }
        }
    }
    found.into_iter().map(|(path, (record, _))| (path, record)).collect()
}

/// For the planted bug of checksums that are bound to nothing: makes every cell in the room of a record one of its own.
pub fn seal_whatever_is_there(name: &str, mut log: Vec<u8>) -> Vec<u8> {
    let number = log_number(name).unwrap_or(0);
    for record in read_log(name, &log) {
        for (offset, length) in record.extents {
            let (mut start, end) = (offset, offset + length);
            while start < end {
                let stop = ((start / 512 + 1) * 512).min(end);
                if let Some(cell) = log.get_mut(start as usize..stop as usize) {
                    cell[4..8].copy_from_slice(&record.generation.to_le_bytes());
                    let place = start.to_le_bytes();
                    let sum = crc32(&[b"D", &number.to_le_bytes(), &place, &record.token, &cell[4..]]);
                    cell[..4].copy_from_slice(&sum.to_le_bytes());
                }
                start = stop;
            }
        }
    }
    log
}

/// Makes the checksum of an index page right again after something in it was changed.
pub fn seal_index_page(page: &mut [u8], offset: u64) {
    let sum = crc32(&[b"I", &offset.to_le_bytes(), &page[4..512]]);
    page[..4].copy_from_slice(&sum.to_le_bytes());
}
