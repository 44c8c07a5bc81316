//! A directory's names, a buffer at a time, with the position to go on from.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, RawDir, SeekFrom, seek};
use rustix::io::Errno;

/// Bytes asked of the kernel at a time: some hundred names.
const BUFFER_BYTES: usize = 32 << 10;

/// Where the kernel puts names before they are sorted out; one for a whole scan.
pub(crate) struct Scratch(Box<[MaybeUninit<u8>]>);

impl Scratch {
    pub fn new() -> Self {
        Scratch(vec![MaybeUninit::uninit(); BUFFER_BYTES].into_boxed_slice())
    }
}

/// Names that were read from one directory and not been looked at yet.
#[derive(Default)]
pub(crate) struct Listing {
    names: Vec<u8>,
    records: Vec<Record>,
    next: usize,
}

#[derive(Clone, Copy)]
struct Record {
    /// The kernel's position behind this name.
    cookie: u64,
    name_start: u32,
    name_end: u32,
    file_type: FileType,
}

impl Listing {
    /// The next name, its type as far as the directory knows it, and the position behind it.
    pub fn next(&mut self) -> Option<(&CStr, FileType, u64)> {
        let record = *self.records.get(self.next)?;
        self.next += 1;
        self.told(record)
    }

    /// What [`Listing::next`] will give.
    pub fn upcoming(&self) -> impl Iterator<Item = (&CStr, FileType, u64)> {
        let rest = self.records.get(self.next..).unwrap_or_default();
        rest.iter().map_while(|record| self.told(*record))
    }

    fn told(&self, record: Record) -> Option<(&CStr, FileType, u64)> {
        let bytes = self.names.get(record.name_start as usize..record.name_end as usize)?;
        let name = CStr::from_bytes_with_nul(bytes).ok()?;
        Some((name, record.file_type, record.cookie))
    }

    /// Reads on where the directory's descriptor stands. False at the end of the directory.
    pub fn refill(&mut self, directory: BorrowedFd<'_>, scratch: &mut Scratch) -> Result<bool, Errno> {
        self.clear();
        loop {
            let mut stream = RawDir::new(directory, &mut scratch.0);
            let mut seen = false;
            loop {
                match stream.next() {
                    None => break,
                    Some(Err(Errno::INTR)) => continue,
                    Some(Err(errno)) => return Err(errno),
                    Some(Ok(entry)) => {
                        seen = true;
                        let name = entry.file_name();
                        if name != c"." && name != c".." {
                            self.push(name, entry.file_type(), entry.next_entry_cookie());
                        }
                    }
                }
                if stream.is_buffer_empty() {
                    break;
                }
            }
            // A buffer that held only `.` and `..` says nothing about what follows.
            if !seen || !self.records.is_empty() {
                return Ok(seen);
            }
        }
    }

    /// Forgets what was read and puts the descriptor to a position that [`Listing::next`] gave.
    pub fn resume(&mut self, directory: BorrowedFd<'_>, cookie: u64) -> Result<(), Errno> {
        self.clear();
        // Positions are opaque: some file systems use the whole 64 bits of what lseek takes as signed.
        seek(directory, SeekFrom::Start(cookie)).map(|_| ())
    }

    /// Empty again, with its memory.
    pub fn clear(&mut self) {
        self.names.clear();
        self.records.clear();
        self.next = 0;
    }

    fn push(&mut self, name: &CStr, file_type: FileType, cookie: u64) {
        let name_start = self.names.len() as u32;
        self.names.extend_from_slice(name.to_bytes_with_nul());
        let name_end = self.names.len() as u32;
        self.records.push(Record { cookie, name_start, name_end, file_type });
    }
}
