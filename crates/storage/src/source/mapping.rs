//! Hashing a range of a file where it is: in the page cache, through a mapping, without a copy.
//!
//! Called for objects that are sent straight from their file. A mapped file that is cut short, or whose disk fails, answers
//! an access with SIGBUS. The handler that is installed here lets zeros stand where the file's bytes were and takes a
//! note; the hash is then thrown away and the range is read with system calls, which can say what is wrong. A SIGBUS
//! anywhere else ends the process as ever.
//!
//! What must stay true: the handler touches nothing but the two thread-local cells and one system call, and acts only
//! within the range that this very thread is hashing.

use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

use rustix::mm::{self, Advice, MapFlags, ProtFlags};

thread_local! {
    /// First and last address, exclusive, of what this thread is reading.
    static WINDOW: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    static LOST: Cell<bool> = const { Cell::new(false) };
}

/// Gives `see` the bytes of the range. False, whatever `see` has made of them, if they could not all be had.
pub(crate) fn with_bytes(file: impl AsFd, offset: u64, length: usize, see: impl FnOnce(&[u8])) -> bool {
    let page = rustix::param::page_size();
    // SIGBUS comes for pages; a range that does not begin with one is no object's.
    if length == 0 || !offset.is_multiple_of(page as u64) || !install() {
        return false;
    }
    // SAFETY: a new mapping at an address of the kernel's choice; it is read-only and unmapped below.
    let mapped =
        unsafe { mm::mmap(ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, file, offset) };
    let Ok(start) = mapped else { return false };
    // SAFETY: the mapping made above. Reading ahead is best effort.
    let _ = unsafe { mm::madvise(start, length, Advice::LinuxPopulateRead) };
    LOST.set(false);
    WINDOW.set((start as usize, start as usize + length.next_multiple_of(page)));
    // The handler runs between the two fences, whatever the compiler thinks of the order.
    compiler_fence(Ordering::SeqCst);
    // SAFETY: mapped and readable, for as long as the slice lives. Another process may write to the file meanwhile: then
    // the bytes are any bytes, which is all that a hash needs, and the sink finds out.
    see(unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) });
    compiler_fence(Ordering::SeqCst);
    WINDOW.set((0, 0));
    // SAFETY: the mapping made above, or what the handler has put in its place; nobody holds a slice of it any more.
    let _ = unsafe { mm::munmap(start, length) };
    !LOST.get()
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

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid structure to a handler with SA_SIGINFO; of what a process has sent, the address
    // means nothing.
    let (is_fault, at) = unsafe { ((*info).si_code > 0, (*info).si_addr() as usize) };
    let (start, end) = WINDOW.get();
    if is_fault && (start..end).contains(&at) {
        let from = at - (at - start) % rustix::param::page_size();
        // SAFETY: replaces pages of our own mapping, which this thread alone reads, by zeros.
        let replaced = unsafe {
            libc::mmap(
                from as *mut libc::c_void,
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
            assert!(with_bytes(&descriptor, offset, length, |bytes| seen = bytes.to_vec()));
            assert!(seen == bytes[offset as usize..][..length], "{offset}+{length}");
        }
        assert!(!with_bytes(&descriptor, 100, 10, |_| panic!("not a page")));
    }

    #[test]
    fn a_file_that_is_cut_short_under_the_reader_is_noticed_and_ends_nothing() {
        for left in [0, 1, 4096, 300_000] {
            let (file, descriptor) = file_of(&vec![7; 1 << 20]);
            let mut sum = 0u64;
            let whole = with_bytes(&descriptor, 0, 1 << 20, |bytes| {
                file.set_len(left).unwrap();
                sum = bytes.iter().map(|byte| u64::from(*byte)).sum();
            });
            assert!(!whole, "{left}");
            assert!(sum <= 7 * left, "{left}: what is gone reads as zeros");
            // The next one is none the worse.
            file.set_len(1 << 20).unwrap();
            assert!(with_bytes(&descriptor, 0, 1 << 20, |_| ()));
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
                        let whole = with_bytes(&descriptor, 0, 64 << 10, |bytes| {
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
