//! io_uring: one range of a file from or to the memory of a slot, in several requests that are under way together.
//!
//! Each thread has a ring of its own, made when it first needs one. What must stay true: a call returns only when the kernel
//! has answered every request of it, whatever went wrong, also when a panic passes through. Until then the memory is the
//! kernel's, and afterwards nothing of it is.
//!
//! Slots are registered with the ring as they are first used, so that the kernel looks up their pages once. Where the limit of
//! locked memory does not allow that, requests do without.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use haul_buffers::Pool;
use haul_model::SlotId;
use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use rustix::io::Errno;

use super::Direction;

/// Requests of one thread that are under way together. Two threads keep a disk of several queues as busy as it gets.
pub(super) const DEPTH: usize = 8;
/// Bytes of one request: no less, for the sake of those that are seeking; no more, or there are too few of them.
const PIECE_BYTES: (usize, usize) = (64 << 10, 1 << 20);
/// Where the kernel does not take requests, which it does not do for long.
const PAUSE: Duration = Duration::from_millis(1);
/// As many as a ring takes.
const REGISTERED_MAX: u32 = 1 << 14;

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// Of the current thread.
pub(super) struct Ring {
    uring: IoUring,
    /// Slots of this pool are registered with it.
    pool: Option<u64>,
    registered: Vec<bool>,
    /// Why no more of them are.
    full: Option<Errno>,
    /// What became of each request of the range that is under way.
    answers: Vec<Option<i32>>,
}

/// A range of a file, and where its bytes are or go.
pub(super) struct Range<'a> {
    pub direction: Direction,
    pub file: BorrowedFd<'a>,
    pub offset: u64,
    /// Aligned as the file wants it.
    pub memory: &'a mut [u8],
    /// Its slot, if it is registered.
    pub buffer: Option<u16>,
    /// Bytes of one request are a multiple of this.
    pub unit: usize,
}

/// Calls `work` with the ring of this thread; `Err` if there is none to be had.
pub(super) fn with_ring<T>(work: impl FnOnce(&mut Ring) -> T) -> Result<T, Errno> {
    RING.with_borrow_mut(|place| {
        if place.is_none() {
            *place = Some(Ring::new()?);
        }
        Ok(work(place.as_mut().expect("made above")))
    })
}

/// Can rings be made at all? For those who only want to know.
pub(super) fn is_allowed() -> Result<(), Errno> {
    Ring::new().map(drop)
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

impl Ring {
    fn new() -> Result<Ring, Errno> {
        let entries = DEPTH as u32;
        // What older kernels do not know costs them a few wake-ups.
        let tuned = IoUring::builder().setup_single_issuer().setup_coop_taskrun().build(entries);
        let uring = tuned.or_else(|_| IoUring::new(entries)).map_err(|error| errno(&error))?;
        let (pool, registered, full, answers) = (None, Vec::new(), None, Vec::new());
        let mut ring = Ring { uring, pool, registered, full, answers };
        ring.prove()?;
        Ok(ring)
    }

    /// That one can be made does not say that it may be used, nor that it can do what is asked of it here (Linux 5.6).
    fn prove(&mut self) -> Result<(), Errno> {
        let mut probe = Probe::new();
        self.uring.submitter().register_probe(&mut probe).map_err(|error| errno(&error))?;
        let needed =
            [opcode::Read::CODE, opcode::Write::CODE, opcode::ReadFixed::CODE, opcode::WriteFixed::CODE];
        if !needed.iter().all(|code| probe.is_supported(*code)) {
            return Err(Errno::OPNOTSUPP);
        }
        // SAFETY: it names no memory.
        unsafe { self.uring.submission().push(&opcode::Nop::new().build()) }.map_err(|_| Errno::BUSY)?;
        loop {
            match self.uring.submit_and_wait(1) {
                Ok(_) => break,
                Err(error) if errno(&error) == Errno::INTR => {}
                Err(error) => return Err(errno(&error)),
            }
        }
        match self.uring.completion().next() {
            Some(answer) if answer.result() >= 0 => Ok(()),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Under which number this slot is registered, whose memory begins there. The error is told once.
    pub(super) fn buffer(
        &mut self,
        pool: &Pool,
        slot: SlotId,
        memory: &mut [u8],
    ) -> Result<Option<u16>, Errno> {
        if self.pool != Some(pool.number()) {
            self.turn_to(pool);
        }
        let Some(known) = self.registered.get_mut(slot.0 as usize) else { return Ok(None) };
        if *known {
            return Ok(u16::try_from(slot.0).ok());
        }
        if self.full.is_some() {
            return Ok(None);
        }
        let vector = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        // SAFETY: the kernel holds on to the pages behind this memory, wherever they are mapped. Requests name the number only
        // together with an address in this slot of this pool, which no other pool shares (`turn_to`), and a pool never
        // changes what pages a slot is made of.
        match unsafe { self.uring.submitter().register_buffers_update(slot.0, &[vector], None) } {
            Ok(()) => {
                *known = true;
                Ok(u16::try_from(slot.0).ok())
            }
            Err(error) => {
                self.full = Some(errno(&error));
                Err(errno(&error))
            }
        }
    }

    /// Another pool: nothing of the one before is registered any more.
    fn turn_to(&mut self, pool: &Pool) {
        if !self.registered.is_empty() {
            let _ = self.uring.submitter().unregister_buffers();
        }
        let count = pool.count().min(REGISTERED_MAX);
        let table = self.uring.submitter().register_buffers_sparse(count);
        // Kernels before 5.19 have no such table.
        self.registered = vec![false; if table.is_ok() { count as usize } else { 0 }];
        self.full = None;
        self.pool = Some(pool.number());
    }

    /// Moves the range. How many bytes were moved, from its start on: fewer than asked for where the file ends, and where a
    /// request was cut short for no reason that was told.
    ///
    /// `before` is called before each request, `seen` with the bytes of each in their order, while others are under way.
    pub(super) fn transfer(
        &mut self,
        range: Range<'_>,
        mut before: impl FnMut() -> Result<(), Errno>,
        mut seen: impl FnMut(&mut [u8]),
    ) -> Result<usize, Errno> {
        let length = range.memory.len();
        let piece = (length / DEPTH).clamp(PIECE_BYTES.0, PIECE_BYTES.1).next_multiple_of(range.unit);
        let pieces = length.div_ceil(piece);
        self.answers.clear();
        self.answers.resize(pieces, None);
        let memory = range.memory.as_mut_ptr();
        let bytes_of = |number: usize| (length - number * piece).min(piece);
        let mut flight = Flight { uring: &mut self.uring, answers: &mut self.answers, under_way: 0 };
        let (mut asked, mut answered, mut moved) = (0, 0, 0);
        let mut ends: Option<Result<(), Errno>> = None;
        loop {
            while ends.is_none() && asked < pieces && flight.under_way < DEPTH {
                if let Err(errno) = before() {
                    ends = Some(Err(errno));
                    break;
                }
                // SAFETY: within the memory: `asked` is below `pieces`.
                let at = unsafe { memory.add(asked * piece) };
                let request = range.request(at, bytes_of(asked), (asked * piece) as u64);
                // SAFETY: the memory is borrowed until this function returns, which it does not before `flight` has ended.
                unsafe { flight.push(&request.user_data(asked as u64)) };
                asked += 1;
            }
            if flight.under_way == 0 {
                break;
            }
            flight.wait();
            while ends.is_none()
                && answered < asked
                && let Some(answer) = flight.answers[answered]
            {
                let count = match usize::try_from(answer) {
                    Ok(count) => count.min(bytes_of(answered)),
                    // Whoever asks next is told what is wrong, if something is.
                    Err(_) if is_interruption(answer) => 0,
                    Err(_) => {
                        ends = Some(Err(Errno::from_raw_os_error(-answer)));
                        break;
                    }
                };
                // SAFETY: the request for these bytes has been answered, and no other one names them.
                seen(unsafe { std::slice::from_raw_parts_mut(memory.add(answered * piece), count) });
                moved += count;
                if count < bytes_of(answered) {
                    ends = Some(Ok(()));
                }
                answered += 1;
            }
        }
        match ends {
            Some(Err(errno)) => Err(errno),
            Some(Ok(())) | None => Ok(moved),
        }
    }
}

fn is_interruption(answer: i32) -> bool {
    [Errno::INTR, Errno::AGAIN].contains(&Errno::from_raw_os_error(-answer))
}

impl Range<'_> {
    fn request(&self, memory: *mut u8, length: usize, at: u64) -> squeue::Entry {
        let (file, length, offset) = (types::Fd(self.file.as_raw_fd()), length as u32, self.offset + at);
        match (self.direction, self.buffer) {
            (Direction::Read, None) => opcode::Read::new(file, memory, length).offset(offset).build(),
            (Direction::Write, None) => opcode::Write::new(file, memory, length).offset(offset).build(),
            (Direction::Read, Some(buffer)) => {
                opcode::ReadFixed::new(file, memory, length, buffer).offset(offset).build()
            }
            (Direction::Write, Some(buffer)) => {
                opcode::WriteFixed::new(file, memory, length, buffer).offset(offset).build()
            }
        }
    }
}

/// Requests that the kernel has not answered. It ends when all are.
struct Flight<'a> {
    uring: &'a mut IoUring,
    answers: &'a mut [Option<i32>],
    under_way: usize,
}

impl Flight<'_> {
    /// # Safety
    ///
    /// The memory that the request names must stay until the flight has ended, and nobody else may touch it.
    unsafe fn push(&mut self, request: &squeue::Entry) {
        // SAFETY: as the caller promises.
        unsafe { self.uring.submission().push(request) }
            .expect("a ring has room for all that may be under way");
        self.under_way += 1;
    }

    /// Waits for at least one answer.
    fn wait(&mut self) {
        loop {
            let result = self.uring.submit_and_wait(1);
            let before = self.under_way;
            for answer in self.uring.completion() {
                let number = cqueue::Entry::user_data(&answer) as usize;
                self.answers[number] = Some(answer.result());
                self.under_way -= 1;
            }
            match result {
                _ if self.under_way < before => return,
                Err(error) if errno(&error) != Errno::INTR => std::thread::sleep(PAUSE),
                _ => {}
            }
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        while self.under_way > 0 {
            self.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haul_testkit::{lacks, lacks_here};
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 31 + at / 4093) as u8).collect()
    }

    /// None where this machine has no rings.
    fn ring() -> Option<Ring> {
        Ring::new().ok()
    }

    fn range<'a>(direction: Direction, file: &'a std::fs::File, memory: &'a mut [u8]) -> Range<'a> {
        Range { direction, file: file.as_fd(), offset: 0, memory, buffer: None, unit: 4096 }
    }

    #[test]
    fn bytes_are_seen_once_and_in_their_order() {
        let Some(mut ring) = ring() else { return lacks("io_uring") };
        for length in [1, 4096, 4097, 65_536, 65_537, 1_000_001, 1 << 20, (3 << 20) + 5, 20 << 20] {
            let expected = bytes(length);
            let file = tempfile::tempfile().unwrap();
            let mut memory = expected.clone();
            assert_eq!(
                ring.transfer(range(Direction::Write, &file, &mut memory), || Ok(()), |_| ()),
                Ok(length)
            );
            memory.fill(0);
            let mut seen = Vec::new();
            let read = range(Direction::Read, &file, &mut memory);
            assert_eq!(
                ring.transfer(
                    read,
                    || Ok(()),
                    |bytes| {
                        assert!(seen.len().is_multiple_of(4096), "requests begin on units");
                        seen.extend_from_slice(bytes);
                    }
                ),
                Ok(length)
            );
            assert!(seen == expected && memory == expected, "{length}");
        }
    }

    #[test]
    fn a_range_that_is_longer_than_its_file_ends_with_it() {
        let Some(mut ring) = ring() else { return lacks("io_uring") };
        let file = tempfile::tempfile().unwrap();
        for length in [0, 1, 100_000, 1 << 20] {
            file.set_len(0).unwrap();
            file.write_all_at(&bytes(length), 0).unwrap();
            let mut memory = vec![0; 2 << 20];
            let mut seen = 0;
            let read = range(Direction::Read, &file, &mut memory);
            assert_eq!(ring.transfer(read, || Ok(()), |bytes| seen += bytes.len()), Ok(length));
            assert_eq!(seen, length);
            assert!(memory[..length] == bytes(length));
        }
    }

    #[test]
    fn it_ends_where_a_request_was_cut_short() {
        let Some(mut ring) = ring() else { return lacks("io_uring") };
        // It gives some pages at a time.
        let file = std::fs::File::open("/proc/kallsyms").unwrap();
        let expected = std::fs::read("/proc/kallsyms").unwrap();
        if expected.len() <= 1 << 20 {
            return lacks_here("a large /proc/kallsyms");
        }
        let mut memory = vec![0; 1 << 20];
        let mut seen = Vec::new();
        let read = range(Direction::Read, &file, &mut memory);
        let moved = ring.transfer(read, || Ok(()), |bytes| seen.extend_from_slice(bytes)).unwrap();
        assert!(moved == seen.len() && moved > 0 && moved < 1 << 17, "{moved}");
        assert!(seen == expected[..moved] && memory[..moved] == expected[..moved]);
    }

    #[test]
    fn errors_are_told_when_nothing_is_under_way_any_more() {
        let Some(mut ring) = ring() else { return lacks("io_uring") };
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut memory = bytes(4 << 20);
        let write = range(Direction::Write, &file, &mut memory);
        assert_eq!(ring.transfer(write, || Ok(()), |_| ()), Err(Errno::BADF), "it is open for reading");
        let mut left = 3;
        let mut last_one_fails = || {
            left -= 1;
            if left == 0 { Err(Errno::IO) } else { Ok(()) }
        };
        let file = tempfile::tempfile().unwrap();
        let write = range(Direction::Write, &file, &mut memory);
        assert_eq!(ring.transfer(write, &mut last_one_fails, |_| ()), Err(Errno::IO));
        // The next one finds no answers of theirs.
        let mut write = range(Direction::Write, &file, &mut memory);
        write.offset = 8192;
        assert_eq!(ring.transfer(write, || Ok(()), |_| ()), Ok(4 << 20));
    }

    #[test]
    fn a_panic_passes_only_when_nothing_is_under_way_any_more() {
        let Some(mut ring) = ring() else { return lacks("io_uring") };
        let file = tempfile::tempfile().unwrap();
        file.set_len(4 << 20).unwrap();
        let mut memory = vec![1; 4 << 20];
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let read = range(Direction::Read, &file, &mut memory);
            ring.transfer(read, || Ok(()), |_| panic!("as a test wants it"))
        }));
        assert!(ended.is_err());
        assert_eq!(ring.uring.completion().count(), 0);
        memory.fill(1);
        let mut sum = 0;
        let read = range(Direction::Read, &file, &mut memory);
        assert_eq!(
            ring.transfer(
                read,
                || Ok(()),
                |bytes| sum += bytes.iter().map(|one| u64::from(*one)).sum::<u64>()
            ),
            Ok(4 << 20)
        );
        assert_eq!(sum, 0);
    }

    #[test]
    fn slots_are_registered_once_and_those_of_another_pool_anew() {
        let Some(mut ring) = ring() else { return lacks("io_uring") };
        let file = tempfile::tempfile().unwrap();
        for round in 0..3u8 {
            // Likely at the same address as the one before.
            let pool = Pool::new(2, 1 << 20).unwrap();
            for slot in [SlotId(1), SlotId(0), SlotId(1)] {
                let mut lease = pool.lease(slot).unwrap();
                lease.fill(round * 10 + slot.0 as u8);
                let buffer = ring.buffer(&pool, slot, &mut lease).unwrap_or(None);
                let write = Range { buffer, ..range(Direction::Write, &file, &mut lease) };
                assert_eq!(ring.transfer(write, || Ok(()), |_| ()), Ok(1 << 20));
                let mut there = vec![0; 1 << 20];
                file.read_exact_at(&mut there, 0).unwrap();
                assert!(there.iter().all(|byte| *byte == round * 10 + slot.0 as u8));
            }
            let pool = Pool::new(1, 4096).unwrap();
            let mut lease = pool.lease(SlotId(0)).unwrap();
            assert_eq!(ring.buffer(&pool, SlotId(7), &mut lease), Ok(None), "no such slot");
        }
    }
}
