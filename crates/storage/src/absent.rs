//! Which parts of a file were not in the page cache before it was read: they need not stay there.
//!
//! Somebody may have looked at its header, or a transfer that was killed have left its last GiB there. That stays, as it was found;
//! the rest goes by.

use std::ops::Range;
use std::os::fd::AsFd;

use crate::page_cache::{drop_all, drop_range, holds_none_of, is_counted, pages};

/// What was read less than so many bytes ago may still be on its way from the cache to the other end.
pub(crate) const NEAR_BYTES: u64 = 1 << 30;
/// A file is looked at in so many pieces at most, or in so many where a few pages of each are asked for.
const PIECES: u64 = 4096;
const PIECES_ASKED: u64 = 64;
/// Of so many bytes at least: about what the kernel reads for somebody who looks at a header.
const PIECE_BYTES: u64 = 16 << 10;

/// Parts of a file, in their order.
#[derive(Default)]
pub(crate) struct Absent(Vec<Range<u64>>);

const ALL: Range<u64> = 0..u64::MAX;

impl Absent {
    /// Before anything is read of a file of which so many pages are in the cache, if the kernel can tell.
    pub fn of(file: impl AsFd, size: u64, cached: Option<u64>) -> Absent {
        let page = rustix::param::page_size() as u64;
        match cached {
            Some(0) => Absent(vec![ALL]),
            Some(cached) if cached < size.div_ceil(page) => {
                let pieces = if is_counted(&file) { PIECES } else { PIECES_ASKED };
                Absent::in_pieces(file, size, size.div_ceil(pieces).next_power_of_two().max(PIECE_BYTES))
            }
            _ => Absent::default(),
        }
    }

    fn in_pieces(file: impl AsFd, size: u64, piece: u64) -> Absent {
        let mut parts: Vec<Range<u64>> = Vec::new();
        for start in (0..size).step_by(piece as usize) {
            let end = (start + piece).min(size);
            if !holds_none_of(&file, start, end - start) {
                continue;
            }
            match parts.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end = end,
                None => parts.push(start..end),
            }
        }
        Absent(parts)
    }

    /// Drops what lies far enough behind `offset`, up to which the file has been read roughly in order.
    pub fn drop_behind(&self, file: impl AsFd, offset: u64, length: u32) {
        let far = offset.saturating_sub(NEAR_BYTES);
        let start = far.saturating_sub(u64::from(length));
        let first = self.0.partition_point(|part| part.end <= start);
        for part in self.0[first..].iter().take_while(|part| part.start < far) {
            let (start, end) = (part.start.max(start), part.end.min(far));
            drop_range(&file, start, end - start);
        }
    }

    /// Drops all of them.
    pub fn drop_all(&self, file: impl AsFd) {
        match &self.0[..] {
            [all] if *all == ALL => drop_all(file),
            parts => parts.iter().for_each(|part| drop_range(&file, part.start, part.end - part.start)),
        }
    }
}

/// A file that is read once, as a whole. What was not in the cache does not stay there.
pub(crate) struct Passing<F: AsFd> {
    file: F,
    absent: Absent,
}

impl<F: AsFd> Passing<F> {
    /// Before it is read.
    pub fn new(file: F, size: u64) -> Passing<F> {
        let absent = Absent::of(&file, size, pages(&file));
        Passing { file, absent }
    }

    /// Before one is read that is nowhere but in the cache.
    pub fn in_memory(file: F) -> Passing<F> {
        Passing { file, absent: Absent::default() }
    }

    /// Something of it was not in the cache.
    pub fn goes(&self) -> bool {
        !self.absent.0.is_empty()
    }
}

impl<F: AsFd> Drop for Passing<F> {
    fn drop(&mut self) {
        self.absent.drop_all(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use haul_testkit::{cached_eq, undisturbed};
    use rustix::fs::Advice;

    use super::*;
    use crate::page_cache::{counted_pages, is_emptied};

    /// Holes have pages, too, once they are read.
    fn file_of(bytes: u64) -> Option<(tempfile::TempDir, File)> {
        let scratch = tempfile::tempdir().unwrap();
        File::create(scratch.path().join("long")).unwrap().set_len(bytes).unwrap();
        let file = File::open(scratch.path().join("long")).unwrap();
        rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
        read(&file, 0, 1);
        is_emptied(&file).then_some((scratch, file))
    }

    fn read(file: &File, offset: u64, pages: usize) {
        rustix::io::pread(file, &mut vec![0; pages * 4096][..], offset).unwrap();
    }

    const LACKING: &str = "temporary files on a disk, and a kernel that counts what is in memory of them";

    #[test]
    fn what_was_read_long_ago_is_dropped_and_what_was_read_lately_is_not() {
        undisturbed(|| {
            let Some((_scratch, file)) = file_of(3 << 30) else { return haul_testkit::lacks_here(LACKING) };
            let absent = Absent::of(&file, 3 << 30, pages(&file));
            read(&file, (1 << 30) - (1 << 20), 256);
            read(&file, 1 << 30, 256);
            cached_eq!(pages(&file), Some(512));
            absent.drop_behind(&file, 1 << 30, 1 << 20);
            cached_eq!(pages(&file), Some(512), "it may still be on its way");
            absent.drop_behind(&file, 2 << 30, 1 << 20);
            cached_eq!(pages(&file), Some(256));
            absent.drop_all(&file);
            cached_eq!(pages(&file), Some(0));
        });
    }

    #[test]
    fn what_somebody_had_there_stays_and_the_rest_goes() {
        undisturbed(|| {
            let size = (12 << 20) + 5000;
            let Some((_scratch, file)) = file_of(size) else { return haul_testkit::lacks_here(LACKING) };
            read(&file, 0, 1);
            read(&file, 5 << 20, 300);
            let absent = Absent::of(&file, size, pages(&file));
            let kib = |from: u64, to: u64| from << 10..to << 10;
            cached_eq!(absent.0, [kib(16, 5 << 10), kib((5 << 10) + 1200, 0).start..size]);
            let all = size.div_ceil(4096) as usize;
            read(&file, 0, all);
            absent.drop_all(&file);
            // The pieces in which something was.
            let left = [(0, 16 << 10), (5 << 20, 1200 << 10)]
                .map(|(start, length)| counted_pages(&file, start, length).unwrap());
            cached_eq!((left, pages(&file)), ([4, 300], Some(304)));

            read(&file, 0, all);
            let absent = Absent::of(&file, size, pages(&file));
            absent.drop_all(&file);
            cached_eq!(pages(&file), Some(all as u64), "all of it was there");
        });
    }
}
