//! Changes logs as disks, people and other bugs would: somewhere, or just where a field is.

use super::Random;
use super::case::{self, Case};

const PAGE: usize = 512;

/// Where a record is in a log.
struct Place {
    page: usize,
    start: usize,
    length: usize,
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte))
}

fn index_pages(log: &[u8]) -> Vec<usize> {
    (0..log.len() / PAGE).map(|index| index * PAGE).filter(|at| &log[at + 4..at + 8] == b"HOLX").collect()
}

fn records(log: &[u8]) -> Vec<Place> {
    let mut found = Vec::new();
    for page in index_pages(log) {
        let mut start = page + 28;
        for _ in 0..number(&log[page + 24..page + 26]).min(6) {
            if start + 2 > page + PAGE {
                break;
            }
            let length = number(&log[start..start + 2]);
            if length < 80 || start + length > page + PAGE {
                break;
            }
            found.push(Place { page, start, length });
            start += length;
        }
    }
    found
}

fn pick<'v, T>(random: &mut Random, values: &'v [T]) -> Option<&'v T> {
    values.get(random.below(values.len() as u64) as usize)
}

/// A page of a log that is there whole.
fn page_of(random: &mut Random, log: &[u8]) -> Option<usize> {
    let pages = log.len() as u64 / PAGE as u64;
    (pages > 0).then(|| random.below(pages) as usize * PAGE)
}

/// Something somewhere, as it happens to a disk or a directory. No checksum is made right, so nothing that was not
/// recorded may be read afterwards.
pub fn damage(random: &mut Random, case: &mut Case) {
    if case.logs.is_empty() {
        return;
    }
    let count = case.logs.len() as u64;
    let (here, there) = (random.below(count) as usize, random.below(count) as usize);
    let other = case.logs[there].1.clone();
    let log = &mut case.logs[here].1;
    if log.is_empty() {
        return;
    }
    let start = random.below(log.len() as u64) as usize;
    let reach = random.one_of(&[8, 600]);
    let end = (start + 1 + random.below(reach) as usize).min(log.len());
    match random.below(15) {
        0 | 1 => log[start] ^= 1 << random.below(8),
        2 => log[start..end].fill(random.one_of(&[0, 0xff])),
        3 => log[start..end].iter_mut().for_each(|byte| *byte = random.next() as u8),
        4 => log.truncate(start),
        5 => log.truncate(start / PAGE * PAGE),
        6 => log.extend((0..random.below(1500)).map(|_| random.next() as u8)),
        7 => {
            // Two pages change places, within a log or between two.
            if let (Some(one), Some(two)) = (page_of(random, log), page_of(random, &other)) {
                let page = log[one..one + PAGE].to_vec();
                log[one..one + PAGE].copy_from_slice(&other[two..two + PAGE]);
                if let Some(place) = case.logs[there].1.get_mut(two..two + PAGE) {
                    place.copy_from_slice(&page);
                }
            }
        }
        8 => {
            if let (Some(one), Some(two)) = (page_of(random, log), page_of(random, &other)) {
                log[one..one + PAGE].copy_from_slice(&other[two..two + PAGE]);
            }
        }
        9 => {
            if let Some(page) = page_of(random, &other) {
                log.extend_from_slice(&other[page..page + PAGE]);
            }
        }
        10 => {
            // The beginning of one and the end of the other.
            let at = if random.chance(50) { start } else { start / PAGE * PAGE };
            log.truncate(at);
            log.extend_from_slice(other.get(at..).unwrap_or(&[]));
        }
        11 => {
            let insert: Vec<u8> = (0..random.below(20)).map(|_| random.next() as u8).collect();
            log.splice(start..start, insert);
        }
        12 => case.logs[here].0 = random.next() as u8,
        13 => {
            // A cell says that it is of the record in whose room it is.
            if let Some((cell, generation)) = cell_of(random, log) {
                log[cell + 4..cell + 8].copy_from_slice(&generation);
            }
        }
        _ => {
            if random.chance(50) {
                case.logs.remove(here);
            } else {
                case.logs.push((random.next() as u8, other));
            }
        }
    }
}

/// A value that is at some edge.
fn edge(random: &mut Random, now: u64) -> u64 {
    match random.below(10) {
        0 => 0,
        1 => 1,
        2 => now.wrapping_add(1),
        3 => now.wrapping_sub(1),
        4 => u64::MAX,
        5 => i64::MAX as u64,
        6 => 1 << random.below(64),
        7 => (1u64 << random.below(64)).wrapping_sub(1),
        8 => now.wrapping_mul(2),
        _ => random.next() >> random.below(64),
    }
}

fn set_edge(random: &mut Random, field: &mut [u8]) {
    let bytes = field.len();
    let value = edge(random, number(field) as u64).to_le_bytes();
    field.copy_from_slice(&value[..bytes]);
}

/// Offset and length of the fields of an index page, and of a record: sections 3 and 4 of the specification.
const PAGE_FIELDS: [(usize, usize); 7] = [(8, 2), (10, 1), (11, 1), (12, 4), (16, 8), (24, 2), (26, 2)];
const RECORD_FIELDS: [(usize, usize); 16] = [
    (0, 2),
    (2, 1),
    (3, 1),
    (4, 4),
    (8, 4),
    (12, 4),
    (16, 4),
    (20, 4),
    (24, 8),
    (32, 8),
    (48, 4),
    (56, 8),
    (64, 8),
    (80, 8),
    (88, 8),
    (96, 8),
];

/// A field, a record or a payload becomes another, and the checksums are to be made right: nobody but the user can
/// make such logs, and they may claim anything.
pub fn forge(random: &mut Random, case: &mut Case) {
    case.flags |= case::SEAL_PAGES;
    if random.chance(70) {
        case.flags |= case::SEAL_CELLS;
    }
    if random.chance(50) {
        case.flags |= case::RENUMBER;
    }
    if random.chance(3) {
        case.flags |= case::CLAIM_CELLS;
    }
    let count = case.logs.len() as u64;
    if count == 0 {
        return;
    }
    let other = case.logs[random.below(count) as usize].1.clone();
    let log = &mut case.logs[random.below(count) as usize].1;
    let (places, other_places) = (records(log), records(&other));
    let (Some(place), Some(model)) = (pick(random, &places), pick(random, &other_places)) else { return };
    let model = &other[model.start..model.start + model.length];
    match random.below(13) {
        0 => {
            let field = pick(random, &PAGE_FIELDS).map_or(0..1, |(at, bytes)| *at..at + bytes);
            set_edge(random, &mut log[place.page..][field]);
        }
        1..4 => {
            let field = pick(random, &RECORD_FIELDS).map_or(0..1, |(at, bytes)| *at..at + bytes);
            if field.end <= place.length {
                set_edge(random, &mut log[place.start..][field]);
            }
        }
        4 => {
            // An extent is moved by a little.
            if let Some(offset) = log[place.start..place.start + place.length].get_mut(80..88) {
                let by = random.one_of(&[8i64, 512, 4, 24, 1 << 20, -8, -512, -4]);
                let moved = (number(offset) as i64).wrapping_add(by);
                offset.copy_from_slice(&moved.to_le_bytes());
            }
        }
        5 | 6 => {
            // The same entry in another log, perhaps another generation of it, perhaps continued.
            let bytes = model.len();
            if bytes <= place.length {
                log[place.start..place.start + bytes].copy_from_slice(model);
                log[place.start..place.start + 2].copy_from_slice(&(place.length as u16).to_le_bytes());
                log[place.start + 2] |= u8::from(random.chance(70));
            }
        }
        7 => log[place.start + 2] ^= 1 << random.below(8),
        8 => {
            // One record more in this page.
            let used = number(&log[place.page + 26..place.page + 28]);
            let end = place.page + 28 + used;
            if end + model.len() <= place.page + PAGE {
                log[end..end + model.len()].copy_from_slice(model);
                let count = number(&log[place.page + 24..place.page + 26]) + 1;
                set_count(log, place.page, count, used + model.len());
            }
        }
        9 => crowd(random, log, place, model),
        _ => payload(random, log, place),
    }
}

fn set_count(log: &mut [u8], page: usize, count: usize, used: usize) {
    log[page + 24..page + 26].copy_from_slice(&(count as u16).to_le_bytes());
    log[page + 26..page + 28].copy_from_slice(&(used as u16).to_le_bytes());
}

/// The log grows by pages full of records that are all alike but for their generation or path: they share all room.
fn crowd(random: &mut Random, log: &mut Vec<u8>, place: &Place, model: &[u8]) {
    log.resize(log.len().next_multiple_of(PAGE), 0);
    let keep_generation = random.chance(50);
    for _ in 0..1 + random.below(24) {
        let page = log.len();
        log.extend_from_within(place.page..place.page + 28);
        log.resize(page + PAGE, 0);
        let fit = ((PAGE - 28) / model.len()).min(6);
        for index in 0..fit {
            let start = page + 28 + index * model.len();
            let record = &mut log[start..start + model.len()];
            record.copy_from_slice(model);
            if !keep_generation {
                record[4..8].copy_from_slice(&(random.next() as u32).to_le_bytes());
            } else if let Some(last) = record.last_mut().filter(|_| model[2] & 4 == 0) {
                *last = random.next() as u8;
            }
        }
        set_count(log, page, fit, fit * model.len());
    }
}

/// Where a cell of some record begins, and the record's generation.
fn cell_of(random: &mut Random, log: &[u8]) -> Option<(usize, [u8; 4])> {
    let places = records(log);
    let place = pick(random, &places)?;
    let record = &log[place.start..place.start + place.length];
    let at = 80 + 16 * random.below(number(&record[20..24]) as u64) as usize;
    let extent = record.get(at..at.checked_add(16)?)?;
    let (offset, length) = (number(&extent[..8]), number(&extent[8..]));
    let cell = offset.checked_add(random.below(length.div_ceil(512) as u64) as usize * 512)?;
    (cell.checked_add(8)? <= log.len()).then_some((cell, record[4..8].try_into().ok()?))
}

/// Something else in the room of a record.
fn payload(random: &mut Random, log: &mut [u8], place: &Place) {
    let objects = number(&log[place.start + 12..place.start + 16]) as u64;
    let Some((cell, generation)) = cell_of(random, log) else { return };
    let end = (cell / PAGE * PAGE + PAGE).min(log.len());
    if end <= cell + 8 {
        return;
    }
    let bytes = &mut log[cell..end];
    bytes[4..8].copy_from_slice(&generation);
    let at = 8 + random.below(bytes.len() as u64 - 8) as usize;
    match random.below(6) {
        0 => bytes[at..].fill(random.next() as u8),
        1 => {
            let object =
                random.one_of(&[0, 1, objects.wrapping_sub(1), objects, objects + 1, u64::MAX, u64::MAX - 1]);
            let text = format!("{object}\n");
            let value = object.to_le_bytes();
            let new = random.one_of(&[text.as_bytes(), &value[..], &value[..4]]);
            let at = if random.chance(50) { 8 } else { at / 4 * 4 };
            let fits = new.len().min(bytes.len() - at);
            bytes[at..at + fits].copy_from_slice(&new[..fits]);
        }
        2 => bytes[at..].iter_mut().for_each(|byte| *byte = random.next() as u8 | 0x80),
        3 => bytes[at..].iter_mut().for_each(|byte| *byte = b'0' + (random.next() % 10) as u8),
        _ => bytes[at] = random.next() as u8,
    }
}
