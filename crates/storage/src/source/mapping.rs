//! Looking at a range of a file where it is: in memory, through a mapping, without a copy.
//!
//! Called for files on memory file systems with huge pages, to hash them. There a mapping costs next to nothing beside that;
//! where pages are small it costs more than reading them through a buffer that stays in the core's cache, and is not made. A thread
//! keeps its mapping for the objects that follow: to take one away makes all threads of the process forget where their pages are.
//!
//! A mapped file that is cut short answers an access with SIGBUS. The handler that is installed here lets zeros stand where the
//! file's bytes were and takes a note; what was made of the bytes is then thrown away and the range is read with system calls,
//! which can say what is wrong. A SIGBUS anywhere else ends the process as ever.
//!
//! What must stay true: the handler touches nothing but the two thread-local cells and one system call, and acts only
//! within the range that this very thread is looking at.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

use rustix::mm::{self, MapFlags, ProtFlags};

use super::status::{Place, Status};

/// Mapped at a time. A mapping begins at a multiple of it, so that its pages may be huge.
const MAPPED_BYTES: u64 = 16 << 20;

thread_local! {
    /// First and last address, exclusive, of what this thread is reading.
    static WINDOW: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    static LOST: Cell<bool> = const { Cell::new(false) };
    static MAPPED: RefCell<Option<Mapped>> = const { RefCell::new(None) };
}

/// A part of a file. As long as it is mapped no other file can have its inode number.
struct Mapped {
    place: Place,
    offset: u64,
    start: *mut c_void,
    length: usize,
}

impl Mapped {
    /// At least this range of the file.
    fn new(file: impl AsFd, place: Place, range: (u64, usize)) -> Option<Mapped> {
        let offset = range.0 / MAPPED_BYTES * MAPPED_BYTES;
        let before = usize::try_from(range.0 - offset).ok()?;
        let length = before.checked_add(range.1)?.max(MAPPED_BYTES as usize);
        let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; it is read-only, and nobody else knows of it.
        let start = unsafe { mm::mmap(ptr::null_mut(), length, protection, flags, file, offset) }.ok()?;
        Some(Mapped { place, offset, start, length })
    }

    /// Where the range is, if all of it is mapped here.
    fn find(&self, place: Place, (offset, length): (u64, usize)) -> Option<*const u8> {
        let before = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        let ends = before.checked_add(length)? <= self.length;
        (self.place == place && ends).then(|| self.start.cast::<u8>().wrapping_add(before).cast_const())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` has made, or what the handler has put in its place; nobody holds a slice of it.
        let _ = unsafe { mm::munmap(self.start, self.length) };
    }
}

/// Gives `see` the bytes of the range, where the file's pages are huge. There should be no hole: a look at one makes a page of
/// it. False, whatever `see` has made of them, if they could not all be had.
pub(super) fn with_bytes(
    file: impl AsFd,
    status: &Status,
    range: (u64, usize),
    see: impl FnOnce(&[u8]),
) -> bool {
    status.has_huge_pages(&file) && with_mapped(file, status.place(), range, see)
}

fn with_mapped(file: impl AsFd, place: Place, range: (u64, usize), see: impl FnOnce(&[u8])) -> bool {
    let page = rustix::param::page_size();
    let (offset, length) = range;
    // SIGBUS comes for pages; a range that does not begin with one is no object's.
    if length == 0 || !offset.is_multiple_of(page as u64) || !install() {
        return false;
    }
    MAPPED.with_borrow_mut(|mapped| {
        let find = |mapped: &Option<Mapped>| mapped.as_ref().and_then(|mapped| mapped.find(place, range));
        if find(mapped).is_none() {
            *mapped = Mapped::new(file, place, range);
        }
        let Some(start) = find(mapped) else { return false };
        LOST.set(false);
        WINDOW.set((start as usize, start as usize + length.next_multiple_of(page)));
        // The handler runs between the two fences, whatever the compiler thinks of the order.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: mapped and readable, for as long as the slice lives. Another process may write to the file meanwhile:
        // then the bytes are any bytes, which is all that a hash needs, and the sink finds out.
        see(unsafe { std::slice::from_raw_parts(start, length) });
        compiler_fence(Ordering::SeqCst);
        WINDOW.set((0, 0));
        if LOST.get() {
            *mapped = None;
        }
        !LOST.get()
    })
}

static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Is the handler in place? Installed once.
fn install() -> bool {
    let install = || {
        // SAFETY: plain structures, for which zeros are valid; the handler follows the rules of the module.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction =
                on_bus_error as extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            (libc::sigaction(libc::SIGBUS, &action, &mut before) == 0).then_some(before)
        }
    };
    BEFORE.get_or_init(install).is_some()
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel hands a valid structure to a handler with SA_SIGINFO; of what a process has sent, the address
    // means nothing.
    let (is_fault, at) = unsafe { ((*info).si_code > 0, (*info).si_addr() as usize) };
    let (start, end) = WINDOW.get();
    if is_fault && (start..end).contains(&at) {
        let from = at - (at - start) % rustix::param::page_size();
        // SAFETY: replaces pages of our own mapping, which this thread alone reads, by zeros.
        let replaced = unsafe {
            libc::mmap(
                from as *mut c_void,
                end - from,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if replaced != libc::MAP_FAILED {
            LOST.set(true);
            return;
        }
    }
    // Not ours: the access is repeated, or the signal raised again, under the action that was there before.
    let before = BEFORE.get().copied().flatten();
    // SAFETY: either what the system gave us, or the default.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &before.unwrap_or(action), ptr::null_mut());
        if !is_fault {
            libc::raise(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::OwnedFd;

    /// Whatever its pages are: mapped all the same.
    fn see(file: &OwnedFd, range: (u64, usize), see: impl FnOnce(&[u8])) -> bool {
        with_mapped(file, Status::of(file).unwrap().place(), range, see)
    }

    fn file_of(bytes: &[u8]) -> (File, OwnedFd) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        let descriptor = file.try_clone().unwrap().into();
        (file, descriptor)
    }

    #[test]
    fn a_range_is_seen_as_it_is() {
        let bytes: Vec<u8> = (0..100_000).map(|at| (at % 251) as u8).collect();
        let (_file, descriptor) = file_of(&bytes);
        for (offset, length) in [(0, 1), (0, 100_000), (4096, 5000), (98_304, 1696)] {
            let mut seen = Vec::new();
            assert!(see(&descriptor, (offset, length), |bytes| seen = bytes.to_vec()));
            assert!(seen == bytes[offset as usize..][..length], "{offset}+{length}");
        }
        assert!(!see(&descriptor, (100, 10), |_| panic!("not a page")));
    }

    #[test]
    fn a_mapping_is_kept_for_what_it_holds_and_not_taken_for_another_file() {
        let far = MAPPED_BYTES - 4096;
        let files: Vec<_> = (1..4u8)
            .map(|byte| {
                let (file, descriptor) = file_of(&[byte; 4096]);
                file.set_len(MAPPED_BYTES * 2).unwrap();
                rustix::io::pwrite(&file, &[byte + 10; 8192], far).unwrap();
                (byte, descriptor)
            })
            .collect();
        let mapped = || MAPPED.with_borrow(|mapped| mapped.as_ref().map(|it| (it.start as usize, it.length)));
        for (byte, descriptor) in files.iter().chain(&files) {
            assert!(see(descriptor, (0, 4096), |bytes| assert!(bytes.iter().all(|at| at == byte))));
            let first = mapped();
            assert!(see(descriptor, (far, 4096), |bytes| assert_eq!(bytes[0], byte + 10)));
            assert_eq!(mapped(), first, "the same");
            assert!(see(descriptor, (far, 8192), |bytes| assert_eq!(bytes[8191], byte + 10)));
            assert_eq!(
                mapped().map(|(_, length)| length),
                Some(MAPPED_BYTES as usize + 4096),
                "a longer one"
            );
            assert!(see(descriptor, (MAPPED_BYTES, 4096), |bytes| assert_eq!(bytes[0], byte + 10)));
        }
    }

    #[test]
    fn a_file_that_is_cut_short_under_the_reader_is_noticed_and_ends_nothing() {
        for left in [0, 1, 4096, 300_000] {
            let (file, descriptor) = file_of(&vec![7; 1 << 20]);
            let mut sum = 0u64;
            let whole = see(&descriptor, (0, 1 << 20), |bytes| {
                file.set_len(left).unwrap();
                sum = bytes.iter().map(|byte| u64::from(*byte)).sum();
            });
            assert!(!whole, "{left}");
            assert!(sum <= 7 * left, "{left}: what is gone reads as zeros");
            // The next one is none the worse.
            file.set_len(1 << 20).unwrap();
            assert!(see(&descriptor, (0, 1 << 20), |_| ()));
        }
    }

    #[test]
    fn threads_do_not_disturb_each_other() {
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    for round in 0..200 {
                        let (file, descriptor) = file_of(&vec![thread; 64 << 10]);
                        let cut = (round + usize::from(thread)).is_multiple_of(2);
                        let whole = see(&descriptor, (0, 64 << 10), |bytes| {
                            if cut {
                                file.set_len(0).unwrap();
                            }
                            assert!(bytes.iter().all(|byte| *byte == if cut { 0 } else { thread }));
                        });
                        assert_eq!(whole, !cut);
                    }
                });
            }
        });
    }
}
