//! Bytes from one file into another within one host, and the hash of what arrived.
//!
//! Called by a sink that shares its process with the source. Where both files are on one file system the kernel copies
//! (`copy_file_range`, which shares blocks where the file system can). What is hashed then is the *new* file, where its
//! pages are in the cache: so the hash is that of what is there, whatever has become of the source meanwhile. Elsewhere, from memory
//! to memory where bytes are hashed, from memory file systems with huge pages, and where a file is small, bytes are read into a
//! buffer, hashed in it and written from it.
//!
//! What must stay true: every byte of the range is in the hash as the new file has it, once; nothing but the range is
//! written; holes of the source stay holes, and cost no page of either file.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use haul_model::profile::Stage;
use haul_model::{Code, Failure};
use rustix::fs::{self, FallocateFlags, SeekFrom};
use rustix::io::{Errno, pread, pwrite};

use crate::confine::sink_failure;
use crate::faults;
use crate::hashing::{self, ObjectHasher};
use crate::leases::patiently;
use crate::local;
use crate::page_cache;
use crate::piece::with_piece;
use crate::source::Status;

/// At a time: one thread copies while another hashes.
const PIECE_BYTES: usize = 4 << 20;
/// Written from a buffer at a time. Whole huge pages need not be cleared first.
const WRITTEN_BYTES: usize = 2 << 20;
/// Read into it at a time: they are in the core's cache when they are hashed.
const READ_BYTES: usize = hashing::PIECE_BYTES;
/// Up to here, where the bytes are hashed, a buffer costs less than what the kernel sets up for a copy, and the bytes are looked
/// at only once.
const BUFFERED_BYTES_MAX: usize = 128 << 10;
/// Where nothing is hashed, the kernel's copy is the faster one from here on.
const UNHASHED_BUFFERED_BYTES_MAX: usize = 8 << 10;

/// A range of a file. It is at the same place in the new one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub offset: u64,
    pub length: u64,
    /// So many bytes at a time at most; a multiple of a page.
    pub piece: usize,
    /// Of all of the file.
    pub file_bytes: u64,
    /// Nothing has been written there: what is no data of the source is a hole already.
    pub is_hole: bool,
}

impl Range {
    /// Of a file of so many bytes, in pieces as they suit the copy.
    pub fn new(offset: u64, length: u64, file_bytes: u64) -> Range {
        Range { offset, length, piece: PIECE_BYTES, file_bytes, is_hole: false }
    }

    /// In pieces of this size, or smaller ones.
    pub fn in_pieces(self, piece: usize) -> Range {
        Range { piece: piece.min(self.piece), ..self }
    }
}

/// How bytes are copied.
#[derive(Clone, Copy)]
enum Way {
    Kernel,
    /// So many bytes at a time.
    Buffer(usize),
}

/// Why a range did not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// It could not be read, or there is less of it.
    Source,
    /// It could not be written.
    Sink(Errno),
}

impl From<Trouble> for Failure {
    /// What is wrong with the source, the source tells when it is asked again.
    fn from(trouble: Trouble) -> Failure {
        match trouble {
            Trouble::Source => Code::HashMismatch.into(),
            Trouble::Sink(errno) => sink_failure(errno),
        }
    }
}

/// Copies the range from `source` to `sink` (open for both) and gives its bytes to `hasher`, if there is one.
pub(crate) fn carry(
    (source, status): (BorrowedFd<'_>, &Status),
    sink: BorrowedFd<'_>,
    range: Range,
    mut hasher: Option<&mut ObjectHasher>,
) -> Result<(), Trouble> {
    let end = range.offset.checked_add(range.length).ok_or(Trouble::Source)?;
    let buffered = if hasher.is_some() { BUFFERED_BYTES_MAX } else { UNHASHED_BUFFERED_BYTES_MAX };
    let sparse = status.has_holes();
    let mut way = match range.length {
        length if length <= buffered as u64 => Way::Buffer(buffered),
        // The kernel would copy 64 KiB at a time, and clear a huge page before the first of them.
        _ if status.has_huge_pages(source) => Way::Buffer(WRITTEN_BYTES),
        // From memory to memory no blocks are shared, and bytes are looked at only once.
        _ if hasher.is_some() && are_in_memory(source, sink) => Way::Buffer(READ_BYTES),
        _ => Way::Kernel,
    };
    let mut at = range.offset;
    while at < end {
        let (data, data_end) = if sparse { next_data(source, at, end)? } else { (at, end) };
        if data > at {
            leave_hole(sink, at, data - at, range, &mut hasher)?;
            at = data;
        }
        while at < data_end {
            let length = (data_end - at).min(range.piece as u64) as usize;
            let copied = match way {
                Way::Kernel => {
                    let is_read = may_wait() && !page_cache::has_most_ready(source, at, length as u32);
                    let _copying = is_read.then(|| haul_meter::within(Stage::Copy).bytes(length as u64));
                    let began = Instant::now();
                    let copied = copy_in_kernel(source, sink, at, length);
                    note_copy(length, began.elapsed());
                    match copied {
                        // Only of the one that is written to, which may tell it once: see `writes_behind`.
                        Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                            return Err(Trouble::Sink(errno));
                        }
                        other => other.is_ok(),
                    }
                }
                Way::Buffer(_) => false,
            };
            if copied {
                #[cfg(test)]
                faults::moments::pass(faults::moments::Moment::Copied);
                // What the two files share is read for the first time now: whose fault it is that it cannot be, the buffer tells.
                let done = hash_file(sink, at, length, &mut hasher);
                if done < length {
                    let rest = (at + done as u64, length - done);
                    copy_through_buffer(source, sink, rest, WRITTEN_BYTES, &mut hasher)?;
                }
            } else {
                // From here on: it can say what is wrong.
                let piece = if let Way::Buffer(piece) = way { piece } else { WRITTEN_BYTES };
                way = Way::Buffer(piece);
                copy_through_buffer(source, sink, (at, length), piece, &mut hasher)?;
            }
            at += length as u64;
        }
    }
    // A hole at the end makes the file no longer. What others write meanwhile is within the whole length, and is not cut off by it.
    if sparse && Status::of(sink).map_err(Trouble::Sink)?.identity().size < end {
        fs::ftruncate(sink, range.file_bytes).map_err(Trouble::Sink)?;
    }
    Ok(())
}

/// Both, and in pages that need not be written as a whole.
fn are_in_memory(source: BorrowedFd<'_>, sink: BorrowedFd<'_>) -> bool {
    let is_memory = |file| local::is_memory(file).unwrap_or(false);
    is_memory(source) && is_memory(sink) && Status::of(sink).is_ok_and(|status| !status.has_huge_pages(sink))
}

thread_local! {
    /// The last copy in the kernel by this thread took longer than one from memory does, or there was none yet.
    static WAITED: Cell<bool> = const { Cell::new(true) };
}

/// Is it worth while to ask whether the next range has to be read? That may be what a copy waits for, and the kernel does not say; but
/// to ask costs as much as to copy a small file.
fn may_wait() -> bool {
    WAITED.get()
}

fn note_copy(bytes: usize, took: Duration) {
    // From memory it is several GB/s, behind some microseconds.
    let from_memory = Duration::from_micros(100) + Duration::from_nanos(bytes as u64);
    WAITED.set(took > from_memory);
}

/// The next bytes from `at` that are no hole, cut to `end`: where they begin and end.
fn next_data(source: BorrowedFd<'_>, at: u64, end: u64) -> Result<(u64, u64), Trouble> {
    let data = match fs::seek(source, SeekFrom::Data(at)) {
        Ok(data) => data.min(end),
        Err(Errno::NXIO) => end,
        // It knows no holes.
        Err(_) => return Ok((at, end)),
    };
    if data == end {
        return Ok((end, end));
    }
    let hole = fs::seek(source, SeekFrom::Hole(data)).map_err(|_| Trouble::Source)?;
    Ok((data, hole.clamp(data, end)))
}

/// Nothing is written but where that is the only way in which what an earlier attempt has put there goes.
fn leave_hole(
    sink: BorrowedFd<'_>,
    offset: u64,
    length: u64,
    Range { piece, is_hole, .. }: Range,
    hasher: &mut Option<&mut ObjectHasher>,
) -> Result<(), Trouble> {
    let there = match is_hole {
        true => 0,
        false => Status::of(sink).map_err(Trouble::Sink)?.identity().size.saturating_sub(offset).min(length),
    };
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punched = there == 0 || fs::fallocate(sink, punch, offset, there).is_ok();
    let piece = piece.min(BUFFERED_BYTES_MAX);
    with_piece(piece, |buffer| {
        let buffer = &mut buffer[..piece];
        if !punched {
            clear(sink, offset, offset + there, buffer).map_err(Trouble::Sink)?;
        }
        let Some(hasher) = hasher else { return Ok(()) };
        buffer.fill(0);
        let mut left = length;
        while left > 0 {
            let zeros = &buffer[..left.min(piece as u64) as usize];
            hasher.update(zeros);
            left -= zeros.len() as u64;
        }
        Ok(())
    })
}

/// Writes zeros over what is there, where no hole can be made of it; what is a hole, or all zeros, stays as it is.
fn clear(file: BorrowedFd<'_>, mut at: u64, end: u64, buffer: &mut [u8]) -> Result<(), Errno> {
    while at < end {
        let (data, data_end) = next_data(file, at, end).map_err(|_| Errno::IO)?;
        at = data;
        while at < data_end {
            let piece = (data_end - at).min(buffer.len() as u64) as usize;
            let piece = &mut buffer[..piece];
            let count = patiently(file, || pread(file, &mut *piece, at))?;
            if count == 0 {
                return Ok(());
            }
            let found = &mut piece[..count];
            if found.iter().any(|byte| *byte != 0) {
                found.fill(0);
                write_all_at(file, found, at)?;
            }
            at += count as u64;
        }
        at = data_end.max(at);
    }
    Ok(())
}

/// `Err` where the kernel does not do it, or not to the end: which of the files is to blame it does not tell.
fn copy_in_kernel(
    source: BorrowedFd<'_>,
    sink: BorrowedFd<'_>,
    offset: u64,
    length: usize,
) -> Result<(), Errno> {
    faults::kernel_copy()?;
    let (mut from, mut to) = (offset, offset);
    let end = offset + length as u64;
    while from < end {
        let left = (end - from) as usize;
        let copied =
            patiently(source, || fs::copy_file_range(source, Some(&mut from), sink, Some(&mut to), left))?;
        if copied == 0 {
            return Err(Errno::NODATA);
        }
    }
    Ok(())
}

/// Gives what is there now to the hasher. How much of it could be read.
fn hash_file(
    file: BorrowedFd<'_>,
    offset: u64,
    length: usize,
    hasher: &mut Option<&mut ObjectHasher>,
) -> usize {
    let Some(hasher) = hasher else { return length };
    with_piece(BUFFERED_BYTES_MAX, |buffer| {
        let mut done = 0;
        while done < length {
            let part = &mut buffer[..(length - done).min(BUFFERED_BYTES_MAX)];
            match patiently(file, || pread(file, &mut *part, offset + done as u64)) {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    hasher.update(&part[..count]);
                    done += count;
                }
            }
        }
        done
    })
}

fn copy_through_buffer(
    source: BorrowedFd<'_>,
    sink: BorrowedFd<'_>,
    (offset, length): (u64, usize),
    piece: usize,
    hasher: &mut Option<&mut ObjectHasher>,
) -> Result<(), Trouble> {
    with_piece(length.min(piece), |buffer| {
        let mut done = 0;
        while done < length {
            let part = (length - done).min(buffer.len());
            let (buffer, at) = (&mut buffer[..part], offset + done as u64);
            read_and_hash(source, buffer, at, hasher)?;
            write_all_at(sink, buffer, at).map_err(Trouble::Sink)?;
            done += part;
        }
        Ok(())
    })
}

/// Fills the buffer.
fn read_and_hash(
    source: BorrowedFd<'_>,
    buffer: &mut [u8],
    offset: u64,
    hasher: &mut Option<&mut ObjectHasher>,
) -> Result<(), Trouble> {
    let mut filled = 0;
    while filled < buffer.len() {
        let end = buffer.len().min(filled + READ_BYTES);
        let (space, at) = (&mut buffer[filled..end], offset + filled as u64);
        let reading = haul_meter::within(Stage::Read);
        let count = patiently(source, || pread(source, &mut *space, at)).map_err(|_| Trouble::Source)?;
        drop(reading.bytes(count as u64));
        if count == 0 {
            return Err(Trouble::Source);
        }
        if let Some(hasher) = hasher {
            hasher.update(&space[..count]);
        }
        filled += count;
    }
    Ok(())
}

/// All of it.
pub(crate) fn write_all_at(file: impl AsFd, mut bytes: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match patiently(&file, || pwrite(&file, bytes, offset))? {
            0 => return Err(Errno::IO),
            count => {
                bytes = &bytes[count..];
                offset += count as u64;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::Path;

    use haul_model::{Hash, HashKind};

    use super::*;
    use crate::faults::moments::kernel_refuses;
    use crate::hashing::object_hash;
    use crate::huge_pages::with_huge_pages;

    #[test]
    fn the_kernels_copy_is_writing_only_where_nothing_had_to_be_read_for_it() {
        haul_testkit::undisturbed(|| {
            const SIZE: u64 = 4 << 20;
            let place = tempfile::tempdir().unwrap();
            let (source, sink) = (made(&place, "source"), made(&place, "sink"));
            source.write_all_at(&bytes(SIZE), 0).unwrap();
            source.sync_all().unwrap();
            if !page_cache::is_emptied(&source) {
                return haul_testkit::lacks_here(
                    "temporary files on a disk, of which nothing stays in memory",
                );
            }
            let meter = haul_meter::Meter::default();
            let _joined = meter.join();
            let copied = || {
                let at = haul_meter::at(Stage::Write);
                let status = Status::of(&source).unwrap();
                carry((source.as_fd(), &status), sink.as_fd(), Range::new(0, SIZE, SIZE), None).unwrap();
                drop(at);
                let mut profile = haul_model::profile::Profile::default();
                meter.read(&mut profile);
                [Stage::Copy, Stage::Write]
                    .map(|stage| (profile.spent(stage).bytes, profile.spent(stage).times))
            };
            haul_testkit::cached_eq!(copied(), [(SIZE, 1), (0, 1)]);
            haul_testkit::cached_eq!(copied(), [(SIZE, 1), (0, 2)], "it was in memory then");
            assert!(read(&sink) == bytes(SIZE));
        });
    }

    const EDGES: [u64; 9] = [
        1,
        4095,
        4097,
        BUFFERED_BYTES_MAX as u64,
        BUFFERED_BYTES_MAX as u64 + 1,
        (3 << 20) + 5,
        PIECE_BYTES as u64 - 1,
        PIECE_BYTES as u64,
        1 << 20,
    ];

    /// In memory and on the disk that tests run on.
    fn places() -> Vec<tempfile::TempDir> {
        let memory = tempfile::tempdir_in("/dev/shm");
        memory.into_iter().chain([tempfile::tempdir().unwrap()]).collect()
    }

    /// Where the kernel copies also what is hashed.
    fn on_a_disk() -> Option<tempfile::TempDir> {
        let place = tempfile::tempdir().unwrap();
        let is_memory = local::is_memory(std::fs::File::open(place.path()).unwrap()).unwrap();
        if is_memory {
            haul_testkit::lacks_here("temporary files on a disk");
        }
        (!is_memory).then_some(place)
    }

    /// There, and where pages are huge.
    fn everywhere(work: impl Fn(&Path) + Sync) {
        places().iter().for_each(|place| work(place.path()));
        let place = tempfile::tempdir().unwrap();
        with_huge_pages(place.path(), || work(place.path()));
    }

    fn made(place: impl AsRef<Path>, name: &str) -> File {
        let path = place.as_ref().join(name);
        File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap()
    }

    fn bytes(length: u64) -> Vec<u8> {
        (0..length).map(|at| (at % 251 + at / 4096) as u8).collect()
    }

    fn read(file: &File) -> Vec<u8> {
        let mut all = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut all, 0).unwrap();
        all
    }

    /// Carries it as an object of its own; the hash of what arrived.
    fn carried(kind: HashKind, source: &File, sink: &File, range: Range) -> Result<Hash, Trouble> {
        let mut hasher = ObjectHasher::new(kind, range.offset, range.length as u32, false).unwrap();
        let status = Status::of(source).unwrap();
        carry((source.as_fd(), &status), sink.as_fd(), range, Some(&mut hasher))?;
        Ok(hasher.finish())
    }

    #[test]
    fn what_arrives_is_what_was_there_and_has_its_hash_whoever_copies() {
        everywhere(|place| {
            let (source, all) = (made(place, "source"), bytes(12 << 20));
            source.write_all_at(&all, 0).unwrap();
            for errno in
                [None, Some(Errno::XDEV), Some(Errno::OPNOTSUPP), Some(Errno::INVAL), Some(Errno::IO)]
            {
                for after in 0..3 {
                    for length in EDGES {
                        for piece in [usize::MAX, 64 << 10] {
                            match errno {
                                Some(errno) => kernel_refuses(after, errno),
                                None => kernel_refuses(usize::MAX, Errno::IO),
                            }
                            let sink = made(place, "sink");
                            let range = Range::new(4 << 20, length, (4 << 20) + length).in_pieces(piece);
                            let hash = carried(HashKind::Blake3, &source, &sink, range).unwrap();
                            let expected = &all[4 << 20..][..length as usize];
                            let found = read(&sink);
                            assert_eq!(found.len() as u64, (4 << 20) + length);
                            assert!(found[..4 << 20].iter().all(|byte| *byte == 0), "nothing but the range");
                            assert!(&found[4 << 20..] == expected, "{errno:?} {after} {length}");
                            assert_eq!(hash, object_hash(HashKind::Blake3, expected, 4 << 20, false));
                        }
                    }
                }
            }
        });
    }

    #[test]
    fn every_kind_of_hash_is_of_what_arrived() {
        let all = bytes(2 << 20);
        // The kernel copies on one file system, a buffer is used in memory, and between the two.
        let places = places();
        for (from, to) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
            let (Some(from), Some(to)) = (places.get(from), places.get(to)) else { continue };
            let source = made(from, "source");
            source.write_all_at(&all, 0).unwrap();
            for kind in [HashKind::Blake3, HashKind::Xxh3] {
                let sink = made(to, "sink");
                let hash = carried(kind, &source, &sink, Range::new(0, 2 << 20, 2 << 20)).unwrap();
                assert_eq!(hash, object_hash(kind, &all, 0, false));
                assert!(read(&sink) == all);
            }
            let sink = made(to, "sink");
            let status = Status::of(&source).unwrap();
            carry((source.as_fd(), &status), sink.as_fd(), Range::new(0, 2 << 20, 2 << 20), None).unwrap();
            assert!(read(&sink) == all);
        }
    }

    #[test]
    fn a_hole_is_made_where_something_may_be_and_left_where_nothing_was_written() {
        for place in &places() {
            let (source, sink) = (made(place, "source"), made(place, "sink"));
            source.set_len(4 << 20).unwrap();
            if !Status::of(&source).unwrap().has_holes() {
                continue;
            }
            let range = Range::new(0, 4 << 20, 4 << 20);
            sink.write_all_at(&[7; 4 << 20], 0).unwrap();
            carried(HashKind::Blake3, &source, &sink, Range { is_hole: true, ..range }).unwrap();
            assert!(read(&sink).iter().all(|byte| *byte == 7), "not even looked at");
            carried(HashKind::Blake3, &source, &sink, range).unwrap();
            assert!(read(&sink).iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_source_that_has_become_shorter_is_to_blame() {
        everywhere(|place| {
            for (there, length) in [(0, 10), (9, 10), (1 << 20, 4 << 20), ((4 << 20) - 1, 4 << 20)] {
                let (source, sink) = (made(place, "source"), made(place, "sink"));
                source.write_all_at(&bytes(there), 0).unwrap();
                let result = carried(HashKind::Blake3, &source, &sink, Range::new(0, length, length));
                assert_eq!(result, Err(Trouble::Source), "{there} of {length}");
            }
        });
    }

    #[test]
    fn a_sink_that_cannot_be_written_is_told_with_what_is_wrong() {
        everywhere(|place| {
            let source = made(place, "source");
            source.write_all_at(&bytes(4 << 20), 0).unwrap();
            let only_read = File::open(place.join("source")).unwrap();
            for length in [10, 4 << 20] {
                let result = carried(HashKind::Blake3, &source, &only_read, Range::new(0, length, length));
                assert_eq!(result, Err(Trouble::Sink(Errno::BADF)));
            }
        });
    }

    /// On NFS the kernel's copy may be told of it, for what was written before, and a write that follows is not.
    #[test]
    fn room_that_the_kernels_copy_misses_is_not_looked_for_again() {
        let Some(place) = on_a_disk() else { return };
        let (source, sink) = (made(&place, "source"), made(&place, "sink"));
        source.write_all_at(&bytes(4 << 20), 0).unwrap();
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG] {
            kernel_refuses(0, errno);
            let range = Range::new(0, 4 << 20, 4 << 20);
            let carried = carried(HashKind::Blake3, &source, &sink, range);
            assert_eq!(carried.err(), Some(Trouble::Sink(errno)));
        }
    }

    #[test]
    fn holes_stay_holes_and_count_as_zeros() {
        const DATA: u64 = 64 << 10;
        for place in places() {
            for written in [vec![], vec![0], vec![20 * DATA], vec![63 * DATA], vec![0, 20 * DATA, 40 * DATA]]
            {
                for refused in [false, true] {
                    kernel_refuses(if refused { 0 } else { usize::MAX }, Errno::XDEV);
                    let (source, sink) = (made(&place, "source"), made(&place, "sink"));
                    source.set_len(4 << 20).unwrap();
                    for at in &written {
                        source.write_all_at(&bytes(DATA), *at).unwrap();
                    }
                    // What an earlier attempt has left there.
                    sink.write_all_at(&[0xee; 3 * DATA as usize], 10 * DATA).unwrap();
                    let (all, blocks) = (read(&source), source.metadata().unwrap().blocks());
                    let hash =
                        carried(HashKind::Blake3, &source, &sink, Range::new(0, 4 << 20, 4 << 20)).unwrap();
                    assert_eq!(hash, object_hash(HashKind::Blake3, &all, 0, false), "{written:?}");
                    assert_eq!(source.metadata().unwrap().blocks(), blocks, "the source's holes are filled");
                    let found = sink.metadata().unwrap();
                    assert_eq!(found.len(), 4 << 20, "{written:?}");
                    assert!(found.blocks() * 512 <= (written.len() as u64 + 1) * DATA, "{written:?}");
                    assert!(read(&sink) == all, "{written:?}");
                }
            }
        }
    }

    #[test]
    fn what_has_no_room_is_told() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        crate::huge_pages::with_memory(to.path(), c"size=1036k", || {
            let source = made(&from, "source");
            source.write_all_at(&bytes(4 << 20), 0).unwrap();
            // The last write that fits fits in part.
            for length in [1 << 20, (1 << 20) + 12_289, 2 << 20] {
                let sink = made(&to, "sink");
                let result = carried(HashKind::Blake3, &source, &sink, Range::new(0, length, length));
                let fits = length <= 1 << 20;
                assert_eq!(result.err(), (!fits).then_some(Trouble::Sink(Errno::NOSPC)), "{length}");
            }
        });
    }

    #[test]
    fn the_hash_is_of_what_arrived() {
        let Some(place) = on_a_disk() else { return };
        let (source, all) = (made(&place, "source"), bytes(1 << 20));
        source.write_all_at(&all, 0).unwrap();
        let sink = made(&place, "sink");
        let other = source.try_clone().unwrap();
        crate::faults::moments::once(crate::faults::moments::Moment::Copied, move || {
            other.write_all_at(b"changed", 0).unwrap()
        });
        let hash = carried(HashKind::Blake3, &source, &sink, Range::new(0, 1 << 20, 1 << 20)).unwrap();
        assert_ne!(read(&source), all, "it was changed");
        assert_eq!(hash, object_hash(HashKind::Blake3, &read(&sink), 0, false));
    }

    #[test]
    fn what_the_kernel_has_copied_and_cannot_be_read_is_copied_anew_and_the_source_is_to_blame() {
        let all = bytes(1 << 20);
        for is_lost in [false, true] {
            let Some(place) = on_a_disk() else { return };
            let (source, sink) = (made(&place, "source"), made(&place, "sink"));
            source.write_all_at(&all, 0).unwrap();
            let (of_source, of_sink) = (source.try_clone().unwrap(), sink.try_clone().unwrap());
            crate::faults::moments::once(crate::faults::moments::Moment::Copied, move || {
                of_sink.set_len(100_000).unwrap();
                if is_lost {
                    of_source.set_len(50_000).unwrap();
                }
            });
            let result = carried(HashKind::Blake3, &source, &sink, Range::new(0, 1 << 20, 1 << 20));
            match is_lost {
                true => assert_eq!(result.err(), Some(Trouble::Source)),
                false => {
                    assert_eq!(result, Ok(object_hash(HashKind::Blake3, &all, 0, false)));
                    assert!(read(&sink) == all);
                }
            }
        }
    }

    #[test]
    fn data_that_goes_on_behind_a_range_of_a_file_with_holes_is_not_of_this_range() {
        for place in places() {
            let source = made(&place, "source");
            source.set_len(4 << 20).unwrap();
            source.write_all_at(&bytes(2 << 20), 1 << 20).unwrap();
            let all = read(&source);
            let sink = made(&place, "sink");
            for (at, end) in [(2 << 20, 4 << 20), (0, 2 << 20)] {
                let hash =
                    carried(HashKind::Blake3, &source, &sink, Range::new(at, 2 << 20, 4 << 20)).unwrap();
                let expected = &all[at as usize..end];
                assert_eq!(hash, object_hash(HashKind::Blake3, expected, at, false), "{at}");
            }
            assert!(read(&sink) == all);
            let sink = made(&place, "sink");
            carried(HashKind::Blake3, &source, &sink, Range::new(0, 2 << 20, 4 << 20)).unwrap();
            assert_eq!(read(&sink).len(), 2 << 20, "nothing is written behind it");
        }
    }

    #[test]
    fn a_range_that_ends_in_a_hole_cuts_off_nothing_behind_it() {
        for place in places() {
            let source = made(&place, "source");
            source.set_len(3 << 16).unwrap();
            source.write_all_at(b"begins", 0).unwrap();
            source.write_all_at(b"ends", 3 << 16).unwrap();
            let (size, status) = (source.metadata().unwrap().len(), Status::of(&source).unwrap());
            for _ in 0..500 {
                let sink = made(&place, "sink");
                std::thread::scope(|scope| {
                    for (offset, length) in [(0, 3 << 16), (3 << 16, 4)] {
                        let (source, sink, status) = (source.as_fd(), sink.as_fd(), &status);
                        scope.spawn(move || {
                            carry((source, status), sink, Range::new(offset, length, size), None).unwrap()
                        });
                    }
                });
                assert_eq!(read(&sink), read(&source));
            }
        }
    }
}
