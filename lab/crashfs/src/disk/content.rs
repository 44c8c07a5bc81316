//! The bytes of one file: as the kernel shows them, and as they are on the medium.
//!
//! Both are maps of 4 KiB pages that share what is equal, so that a synced file costs its bytes once. Pages that were
//! never written are absent and read as zeros.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::crash::{Choice, CrashReport, Shares};
use crate::random::Random;

/// The unit of write-back.
pub const PAGE_BYTES: u64 = 4096;
/// The unit that a disk writes whole.
pub const SECTOR_BYTES: usize = 512;

type Page = Arc<[u8; PAGE_BYTES as usize]>;

/// See the module.
#[derive(Default)]
pub struct Content {
    size: u64,
    pages: BTreeMap<u64, Page>,
    durable_size: u64,
    durable_pages: BTreeMap<u64, Page>,
    /// Pages that the next sync writes.
    dirty: BTreeSet<u64>,
    /// Pages whose write-back failed: the kernel has marked them clean and reported the error once, the medium does
    /// not have them, and no later sync writes them (only writing them again does).
    abandoned: BTreeSet<u64>,
}

impl Content {
    /// Bytes, as shown.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Pages that the shown state occupies.
    pub fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    /// How many pages a write of this range would add.
    pub fn pages_added(&self, offset: u64, length: u64) -> u64 {
        if length == 0 {
            return 0;
        }
        let (first, last) = (offset / PAGE_BYTES, (offset + length - 1) / PAGE_BYTES);
        (last - first + 1) - self.pages.range(first..=last).count() as u64
    }

    /// Up to `length` bytes at `offset`; fewer only at the end of the file.
    pub fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let end = offset.saturating_add(length).min(self.size);
        if offset >= end {
            return Vec::new();
        }
        let mut bytes = Vec::with_capacity((end - offset) as usize);
        let mut at = offset;
        while at < end {
            let within = (at % PAGE_BYTES) as usize;
            let take = ((PAGE_BYTES as usize) - within).min((end - at) as usize);
            match self.pages.get(&(at / PAGE_BYTES)) {
                Some(page) => bytes.extend_from_slice(&page[within..within + take]),
                None => bytes.resize(bytes.len() + take, 0),
            }
            at += take as u64;
        }
        bytes
    }

    /// Writes. A dirty page that is written again may have been written back in between, as a kernel under memory
    /// pressure does: `early` is the chance (of 256) that the medium has the older version.
    pub fn write(&mut self, offset: u64, data: &[u8], random: &mut Random, early: u16) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let number = at / PAGE_BYTES;
            let within = (at % PAGE_BYTES) as usize;
            let take = (PAGE_BYTES as usize - within).min(rest.len());
            if !self.dirty.insert(number)
                && random.chance(early)
                && let Some(page) = self.pages.get(&number)
            {
                self.durable_pages.insert(number, page.clone());
            }
            self.abandoned.remove(&number);
            if take == PAGE_BYTES as usize {
                let page: [u8; PAGE_BYTES as usize] = rest[..take].try_into().expect("a whole page");
                self.pages.insert(number, Arc::new(page));
            } else {
                let page = self.pages.entry(number).or_insert_with(|| Arc::new([0; PAGE_BYTES as usize]));
                Arc::make_mut(page)[within..within + take].copy_from_slice(&rest[..take]);
            }
            at += take as u64;
            rest = &rest[take..];
        }
        self.size = self.size.max(at);
    }

    /// Cuts or extends (with zeros).
    pub fn set_size(&mut self, size: u64) {
        if size < self.size {
            let first_whole = size.div_ceil(PAGE_BYTES);
            for number in self.pages.split_off(&first_whole).into_keys() {
                self.dirty.insert(number);
                self.abandoned.remove(&number);
            }
            let within = (size % PAGE_BYTES) as usize;
            if within != 0
                && let Some(page) = self.pages.get_mut(&(size / PAGE_BYTES))
            {
                Arc::make_mut(page)[within..].fill(0);
                self.dirty.insert(size / PAGE_BYTES);
            }
        }
        self.size = size;
    }

    /// Everything shown is on the medium now (except abandoned pages).
    pub fn sync(&mut self) {
        for number in std::mem::take(&mut self.dirty) {
            match self.pages.get(&number) {
                Some(page) => self.durable_pages.insert(number, page.clone()),
                None => self.durable_pages.remove(&number),
            };
        }
        self.durable_size = self.size;
    }

    /// A sync that failed: its pages will not be tried again.
    pub fn fail_sync(&mut self) {
        self.abandoned.append(&mut self.dirty);
    }

    /// Nothing would be lost.
    pub fn is_durable(&self) -> bool {
        self.dirty.is_empty() && self.abandoned.is_empty() && self.size == self.durable_size
    }

    /// Power is lost: chooses what survives, and shows it from now on.
    pub(super) fn crash(&mut self, random: &mut Random, shares: &Shares, report: &mut CrashReport) {
        self.crash_size(random, shares, report);
        let mut unsynced = std::mem::take(&mut self.dirty);
        unsynced.append(&mut self.abandoned);
        // Most file systems lose or keep a file's pages together; some scatter.
        let together = random.chance(96).then(|| Choice::roll(random, shares.pages, 0));
        for number in unsynced {
            let choice = together.unwrap_or_else(|| Choice::roll(random, shares.pages, shares.torn));
            report.pages_unsynced += 1;
            match choice {
                Choice::Kept => match self.pages.get(&number) {
                    Some(page) => drop(self.durable_pages.insert(number, page.clone())),
                    None => drop(self.durable_pages.remove(&number)),
                },
                Choice::Lost => {
                    report.pages_lost += 1;
                    // A block that was allocated but never written holds what another file left there.
                    if !self.durable_pages.contains_key(&number) && random.chance(shares.garbage) {
                        let mut page = [0; PAGE_BYTES as usize];
                        random.fill(&mut page);
                        self.durable_pages.insert(number, Arc::new(page));
                    }
                }
                Choice::Torn => {
                    report.pages_torn += 1;
                    self.tear(number, random);
                }
            }
        }
        self.cut_durable();
        self.pages = self.durable_pages.clone();
        self.size = self.durable_size;
    }

    fn crash_size(&mut self, random: &mut Random, shares: &Shares, report: &mut CrashReport) {
        if self.size == self.durable_size {
            return;
        }
        report.sizes_unsynced += 1;
        match Choice::roll(random, shares.sizes, shares.torn) {
            Choice::Kept => self.durable_size = self.size,
            Choice::Lost => report.sizes_lost += 1,
            // The size that the file had at some moment in between.
            Choice::Torn => {
                let (low, high) = (self.size.min(self.durable_size), self.size.max(self.durable_size));
                let between = random.between(low, high);
                let unit = if random.chance(128) { PAGE_BYTES } else { 1 };
                self.durable_size = (between / unit * unit).max(low);
                report.sizes_torn += 1;
            }
        }
    }

    /// Some sectors of the page reached the medium.
    fn tear(&mut self, number: u64, random: &mut Random) {
        let zeros = [0; PAGE_BYTES as usize];
        let new = self.pages.get(&number).map_or(&zeros, |page| page.as_ref());
        let mut page = self.durable_pages.get(&number).map_or(zeros, |page| **page);
        for (sector, bytes) in new.chunks_exact(SECTOR_BYTES).enumerate() {
            if random.chance(128) {
                page[sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES].copy_from_slice(bytes);
            }
        }
        self.durable_pages.insert(number, Arc::new(page));
    }

    /// Nothing lies behind the end of the file, or it would show when the file grows again.
    fn cut_durable(&mut self) {
        self.durable_pages.split_off(&self.durable_size.div_ceil(PAGE_BYTES));
        let within = (self.durable_size % PAGE_BYTES) as usize;
        if within != 0
            && let Some(page) = self.durable_pages.get_mut(&(self.durable_size / PAGE_BYTES))
        {
            Arc::make_mut(page)[within..].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Mood;

    fn crash(content: &mut Content, seed: u64, mood: Mood) -> CrashReport {
        let mut report = CrashReport::default();
        let mut random = Random::new(seed);
        let shares = mood.shares(&mut random);
        content.crash(&mut random, &shares, &mut report);
        report
    }

    #[test]
    fn sparse_files_read_zeros_and_cost_only_what_was_written() {
        let mut content = Content::default();
        content.write(1 << 40, b"x", &mut Random::new(1), 0);
        assert_eq!((content.size(), content.pages()), ((1 << 40) + 1, 1));
        assert_eq!(content.read((1 << 40) - 2, 10), [0, 0, b'x']);
        assert_eq!(content.pages_added(1 << 40, 4096), 0);
        assert_eq!(content.pages_added((1 << 40) - 1, 4097), 1);
    }

    #[test]
    fn a_cut_leaves_nothing_behind_the_end() {
        let mut content = Content::default();
        content.write(0, &[7; 10_000], &mut Random::new(1), 0);
        content.sync();
        content.set_size(5_000);
        content.set_size(10_000);
        assert!(content.read(5_000, 5_000).iter().all(|byte| *byte == 0));
        content.sync();
        crash(&mut content, 1, Mood::Nothing);
        assert!(content.read(5_000, 5_000).iter().all(|byte| *byte == 0));
        assert!(content.read(0, 5_000).iter().all(|byte| *byte == 7));
    }

    #[test]
    fn an_unsynced_cut_can_be_lost_with_the_old_bytes_back() {
        let mut content = Content::default();
        content.write(0, &[7; 10_000], &mut Random::new(1), 0);
        content.sync();
        content.set_size(0);
        crash(&mut content, 1, Mood::Nothing);
        assert_eq!(content.read(0, 20_000), [7; 10_000]);
    }

    #[test]
    fn a_sync_after_a_failed_one_does_not_bring_the_pages_back() {
        let mut content = Content::default();
        content.write(0, &[7; 4096], &mut Random::new(1), 0);
        content.fail_sync();
        content.sync();
        assert!(!content.is_durable());
        crash(&mut content, 1, Mood::Nothing);
        assert_eq!(content.read(0, 4096), [0; 4096], "the size is durable, the page is not");
    }

    #[test]
    fn an_older_version_of_a_page_can_reach_the_medium() {
        let mut content = Content::default();
        content.write(0, &[1; 4096], &mut Random::new(1), 256);
        content.write(0, &[2; 4096], &mut Random::new(1), 256);
        content.durable_size = 4096;
        crash(&mut content, 1, Mood::Nothing);
        assert_eq!(content.read(0, 4096), [1; 4096]);
    }
}
