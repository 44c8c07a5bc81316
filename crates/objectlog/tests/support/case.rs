//! Some logs as one string of bytes and back: what the fuzzer changes, and what a failure is kept as.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | flags: which checksums are made right before the logs are read, so that what is behind them is reached |
//! | 1 | with which mechanism and method the logs are gone on with |
//! | 1 | what is done with them then |
//! | 1 | how many logs there are, less 1, modulo 8 |
//! | 4 each | the name of a log in one byte, its length in three; the last has what is left |
//! | | the logs |

use std::collections::BTreeMap;

use haul_objectlog::Config;

use super::{combinations, slow_reader};

/// Index pages get the checksum of their content.
pub const SEAL_PAGES: u8 = 1;
/// Cells get the checksum of their content under the record that they belong to.
pub const SEAL_CELLS: u8 = 2;
/// Index pages say the number of their log.
pub const RENUMBER: u8 = 4;
/// Cells belong to the record in whose room they are.
pub const CLAIM_CELLS: u8 = 8;

const LOGS_MAX: usize = 8;
/// More is cut off: the slow reader is slow.
pub const BYTES_MAX: usize = 128 << 10;

const NAMES: [&str; 3] = ["file", "transaction", "universal"];
/// Numbers for which a name's byte has no room.
const LARGE: [u64; 5] = [1 << 32, 1 << 63, u64::MAX - (1 << 33), u64::MAX - 1, u64::MAX];
const SMALL: u64 = 80;

/// One input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    pub flags: u8,
    pub config: u8,
    pub action: u8,
    pub logs: Vec<(u8, Vec<u8>)>,
}

/// The byte of a name; `None` if that number cannot be said.
pub fn name_byte(name: &str) -> Option<u8> {
    let (mechanism, number) = name.strip_suffix(".log")?.split_once('-')?;
    let mechanism = NAMES.iter().position(|known| *known == mechanism)? as u8;
    let number = number.parse::<u8>().ok().filter(|number| u64::from(*number) < SMALL)?;
    Some(number * 3 + mechanism)
}

/// A name, and its number.
pub fn name_of(byte: u8) -> (String, u64) {
    let code = u64::from(byte / 3);
    let number = LARGE.get(code.wrapping_sub(SMALL) as usize).copied().unwrap_or(code);
    (format!("{}-{number}.log", NAMES[usize::from(byte % 3)]), number)
}

impl Case {
    /// Any bytes are a case.
    pub fn decode(bytes: &[u8]) -> Case {
        let bytes = &bytes[..bytes.len().min(BYTES_MAX)];
        let (head, mut rest) = bytes.split_at(bytes.len().min(4));
        let head: Vec<u8> = head.iter().copied().chain([0; 4]).take(4).collect();
        let count = usize::from(head[3]) % LOGS_MAX + 1;
        let mut sizes = Vec::new();
        while sizes.len() < count
            && let Some((size, after)) = rest.split_first_chunk::<4>()
        {
            sizes.push((size[0], u32::from_le_bytes([size[1], size[2], size[3], 0]) as usize));
            rest = after;
        }
        let mut logs = Vec::new();
        for (index, (name, length)) in sizes.iter().enumerate() {
            let is_last = index + 1 == sizes.len();
            let (log, after) = rest.split_at(if is_last { rest.len() } else { (*length).min(rest.len()) });
            logs.push((*name, log.to_vec()));
            rest = after;
        }
        Case { flags: head[0], config: head[1], action: head[2], logs }
    }

    /// Bytes that decode to this case, if it has a log and no more than eight.
    pub fn encode(&self) -> Vec<u8> {
        let count = self.logs.len().clamp(1, LOGS_MAX);
        let mut bytes = vec![self.flags, self.config, self.action, (count - 1) as u8];
        for (name, log) in self.logs.iter().take(count) {
            bytes.push(*name);
            bytes.extend_from_slice(&(log.len() as u32).to_le_bytes()[..3]);
        }
        self.logs.iter().take(count).for_each(|(_, log)| bytes.extend_from_slice(log));
        bytes
    }

    /// The directory that is read. Of two logs with one number only the first is there: numbers are unique.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut numbers = Vec::new();
        let mut files = BTreeMap::new();
        for (byte, log) in &self.logs {
            let (name, number) = name_of(*byte);
            if numbers.contains(&number) {
                continue;
            }
            numbers.push(number);
            let mut log = log.clone();
            for (index, page) in log.chunks_exact_mut(512).enumerate() {
                if &page[4..8] != b"HOLX" {
                    continue;
                }
                if self.flags & RENUMBER != 0 {
                    page[16..24].copy_from_slice(&number.to_le_bytes());
                }
                if self.flags & SEAL_PAGES != 0 {
                    slow_reader::seal_index_page(page, index as u64 * 512);
                }
            }
            if self.flags & (SEAL_CELLS | CLAIM_CELLS) != 0 {
                slow_reader::seal_cells(&name, &mut log, self.flags & CLAIM_CELLS != 0);
            }
            files.insert(name, log);
        }
        files
    }

    /// How the process that goes on with the logs keeps its own; small limits, so that they are reached.
    pub fn config(&self) -> Config {
        let index = usize::from(self.config);
        let config = combinations().nth(index % 18).unwrap_or_default();
        Config {
            transaction_files: 1 + (index / 18 % 4) as u32,
            compact_bytes_min: 2048 << (index / 72),
            objects_max: 1 << 20,
            ..config
        }
    }
}
