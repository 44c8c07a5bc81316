//! Past the page cache: a second descriptor of a file that is open, and what its file system asks of ranges.
//!
//! The second descriptor is opened through `/proc/self/fd`, so it is of the very file that was opened, whatever stands under
//! its name by now. A range that begins and ends on a unit goes through it; the rest, less than a unit at the end of a file,
//! through the page cache. A unit is a page at least, so no page is written both ways; where both are used one after the other,
//! the kernel writes back and throws away what the cache holds of a range before it is read or written directly.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{self, AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::source::Status;

/// What all devices take, and a page of most machines.
const UNIT_BYTES: usize = 4096;
/// An object is a multiple of this at least, but for the last one of a file.
const UNIT_BYTES_MAX: usize = 64 << 10;

/// A file, past the page cache.
pub(super) struct Direct {
    pub file: OwnedFd,
    /// Ranges begin and end on multiples of this, in bytes.
    pub unit: usize,
}

impl Direct {
    /// Of what is open there.
    pub fn open(file: &OwnedFd) -> Result<Direct, Errno> {
        let unit = unit(file).ok_or(Errno::OPNOTSUPP)?;
        let keep = OFlags::ACCMODE | OFlags::NOATIME;
        let flags = (fs::fcntl_getfl(file)? & keep) | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOCTTY;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let opened = retry_on_intr(|| fs::open(path.as_str(), flags, Mode::empty()))?;
        // Somebody may have mounted something else on /proc.
        let same = Status::of(file)?.place() == Status::of(&opened)?.place();
        if same { Ok(Direct { file: opened, unit }) } else { Err(Errno::OPNOTSUPP) }
    }
}

/// Kernels before 6.1 do not tell; then what all devices take is tried. A page at least.
fn unit(file: &OwnedFd) -> Option<usize> {
    Some(unit_of_device(file)?.max(rustix::param::page_size()))
}

fn unit_of_device(file: &OwnedFd) -> Option<usize> {
    let Ok(told) = fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Some(UNIT_BYTES);
    };
    if !StatxFlags::from_bits_retain(told.stx_mask).contains(StatxFlags::DIOALIGN) {
        return Some(UNIT_BYTES);
    }
    let (memory, offset) = (told.stx_dio_mem_align as usize, told.stx_dio_offset_align as usize);
    // Slots begin on pages; 0 says that there is no direct I/O.
    let fits = (1..=UNIT_BYTES).contains(&memory) && (1..=UNIT_BYTES_MAX).contains(&offset);
    (fits && offset.is_power_of_two()).then(|| offset.max(UNIT_BYTES))
}

/// Gives a file that is to be written its size and its room at once: a write that makes a file longer keeps all others of it
/// waiting, and one that has to look for room keeps its thread waiting.
///
/// Where there is no room for all of it, what there is room for is still written: such writes tell themselves what is wrong.
pub(super) fn set_aside(file: &OwnedFd, bytes: u64) -> Result<(), Errno> {
    if bytes == 0 {
        return Ok(());
    }
    let room = retry_on_intr(|| fs::fallocate(file, FallocateFlags::empty(), 0, bytes));
    if room.is_err() && Status::of(file.as_fd())?.identity().size < bytes {
        return fs::ftruncate(file, bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    #[test]
    fn the_second_descriptor_is_of_the_same_file_whatever_has_its_name() {
        let scratch = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = scratch.path().join("file");
        std::fs::write(&path, vec![1; 8192]).unwrap();
        let file: OwnedFd = File::open(&path).unwrap().into();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, vec![2; 8192]).unwrap();
        let Ok(direct) = Direct::open(&file) else {
            return haul_testkit::lacks_here("direct I/O where it is built");
        };
        assert!(direct.unit >= 4096 && fs::fcntl_getfl(&direct.file).unwrap().contains(OFlags::DIRECT));
        assert!(!fs::fcntl_getfl(&file).unwrap().contains(OFlags::DIRECT), "the first one is as it was");
        let same = |other: &OwnedFd| Status::of(other).unwrap().place() == Status::of(&file).unwrap().place();
        assert!(same(&direct.file));
        assert_eq!(
            rustix::io::write(&direct.file, &[0; 4096]),
            Err(Errno::BADF),
            "open for reading, as that one"
        );
    }

    #[test]
    fn a_file_gets_its_size_and_never_loses_any() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        let file: OwnedFd = file.into();
        for (bytes, size) in [(0, 10_000), (5000, 10_000), (1 << 20, 1 << 20)] {
            set_aside(&file, bytes).unwrap();
            assert_eq!(Status::of(&file).unwrap().identity().size, size);
        }
        let mut there = [0; 10_001];
        rustix::io::pread(&file, &mut there[..], 0).unwrap();
        assert_eq!((&there[..10_000], there[10_000]), (&[7; 10_000][..], 0));
        assert_eq!(set_aside(&file, i64::MAX as u64), Err(Errno::FBIG), "no file is as large as that");
    }
}
