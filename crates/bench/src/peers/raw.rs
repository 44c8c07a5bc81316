//! The raw pair: as little as a mover can do whose bytes pass through its own memory.
//!
//! A sender that only reads a file into slots and sends them, a receiver that only receives into slots and writes a file;
//! no hash, no protocol, no names. One connection, four slots of 1 MiB at each end, io_uring with registered buffers:
//! reads and writes run ahead, the stream stays in order. Each end is a process of its own, as a mover's ends are.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr::NonNull;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Bytes of a slot.
const SLOT_BYTES: usize = 1 << 20;
/// Slots of an end.
const SLOTS: usize = 4;
/// What completes: a read or write of a file, or, from here on, a send or receive.
const ON_STREAM: u64 = 1 << 32;
/// As registered.
const FILE: types::Fixed = types::Fixed(0);
const STREAM: types::Fixed = types::Fixed(1);

/// Copies one file to another with a process at each end; `receiver` is the command of the receiving one, without arguments.
pub fn copy(source: &Path, destination: &Path, mut receiver: Command) -> io::Result<()> {
    let file = File::open(source)?;
    let bytes = file.metadata()?.len();
    receiver.arg(destination).arg(bytes.to_string());
    let mut receiver = receiver.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut port = String::new();
    BufReader::new(receiver.stdout.take().expect("stdout is piped")).read_line(&mut port)?;
    let port: u16 = port.trim().parse().map_err(|_| io::Error::other("the receiver said no port"))?;
    send(&file, bytes, &TcpStream::connect(("127.0.0.1", port))?)?;
    match receiver.wait()? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("the receiver failed: {status}"))),
    }
}

/// The receiving end: says its port on standard output, takes one connection, and writes what comes.
pub fn receive_once(destination: &Path, bytes: u64) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    io::stdout().flush()?;
    let (stream, _) = listener.accept()?;
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(destination)?;
    receive(&file, bytes, &stream)?;
    match fs::metadata(destination)?.len() {
        length if length == bytes => Ok(()),
        length => Err(io::Error::other(format!("{length} bytes were written, not {bytes}"))),
    }
}

/// Slots in one mapping, registered with a ring together with a file and a stream. The ring goes first when it is dropped,
/// and with it everything that is under way in the slots.
struct Slots {
    ring: IoUring,
    memory: Memory,
}

struct Memory(NonNull<u8>);

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and nothing uses it any more: the ring, declared before it, is gone.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), SLOTS * SLOT_BYTES) };
    }
}

impl Slots {
    fn new(file: &File, stream: &TcpStream) -> io::Result<Slots> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: no address is asked for, so nothing that exists is touched.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                SLOTS * SLOT_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )?
        };
        let memory = Memory(NonNull::new(start.cast()).ok_or_else(|| io::Error::other("no memory"))?);
        let ring = IoUring::builder().setup_single_issuer().build(16)?;
        let slots = Slots { ring, memory };
        let buffers: Vec<libc::iovec> = (0..SLOTS)
            .map(|slot| libc::iovec { iov_base: slots.at(slot, 0).cast(), iov_len: SLOT_BYTES })
            .collect();
        // SAFETY: the mapping lives longer than the ring.
        unsafe { slots.ring.submitter().register_buffers(&buffers)? };
        slots.ring.submitter().register_files(&[file.as_raw_fd(), stream.as_raw_fd()])?;
        Ok(slots)
    }

    fn at(&self, slot: usize, offset: usize) -> *mut u8 {
        debug_assert!(slot < SLOTS && offset < SLOT_BYTES);
        // SAFETY: within the mapping.
        unsafe { self.memory.0.as_ptr().add(slot * SLOT_BYTES + offset) }
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: entries name parts of slots, which live as long as the ring; no two that are under way name the same part.
        unsafe { self.ring.submission().push(entry) }.map_err(|_| io::Error::other("the ring is full"))
    }

    /// Waits for at least one completion: its user data and the number of bytes.
    fn completed(&mut self) -> io::Result<Vec<(u64, usize)>> {
        self.ring.submit_and_wait(1)?;
        self.ring
            .completion()
            .map(|entry| match entry.result() {
                result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                result => Ok((entry.user_data(), result as usize)),
            })
            .collect()
    }
}

/// Bytes of the block with this number.
fn length(block: u64, bytes: u64) -> usize {
    (bytes - block * SLOT_BYTES as u64).min(SLOT_BYTES as u64) as usize
}

fn slot_of(block: u64) -> usize {
    (block % SLOTS as u64) as usize
}

fn whole(count: usize, wanted: usize) -> io::Result<()> {
    if count == wanted { Ok(()) } else { Err(io::Error::other("a part of a block was read or written")) }
}

/// Reads run ahead; sends are in order, one at a time.
fn send(file: &File, bytes: u64, stream: &TcpStream) -> io::Result<()> {
    let mut slots = Slots::new(file, stream)?;
    let blocks = bytes.div_ceil(SLOT_BYTES as u64);
    let (mut read, mut sent, mut offset) = (0, 0, 0);
    let mut is_ready = [false; SLOTS];
    let mut is_sending = false;
    while sent < blocks {
        while read < blocks && read < sent + SLOTS as u64 {
            let slot = slot_of(read);
            let entry =
                opcode::ReadFixed::new(FILE, slots.at(slot, 0), length(read, bytes) as u32, slot as u16);
            slots.push(&entry.offset(read * SLOT_BYTES as u64).build().user_data(read))?;
            read += 1;
        }
        let slot = slot_of(sent);
        if !is_sending && is_ready[slot] {
            let rest = (length(sent, bytes) - offset) as u32;
            let entry = opcode::Send::new(STREAM, slots.at(slot, offset), rest)
                .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL);
            slots.push(&entry.build().user_data(ON_STREAM))?;
            is_sending = true;
        }
        for (data, count) in slots.completed()? {
            if data != ON_STREAM {
                whole(count, length(data, bytes))?;
                is_ready[slot_of(data)] = true;
                continue;
            }
            is_sending = false;
            offset += count;
            if offset == length(sent, bytes) {
                is_ready[slot_of(sent)] = false;
                (sent, offset) = (sent + 1, 0);
            }
        }
    }
    Ok(())
}

/// Receives are in order, one at a time; writes stay behind.
fn receive(file: &File, bytes: u64, stream: &TcpStream) -> io::Result<()> {
    let mut slots = Slots::new(file, stream)?;
    let blocks = bytes.div_ceil(SLOT_BYTES as u64);
    let (mut received, mut written, mut offset) = (0, 0, 0);
    let mut is_busy = [false; SLOTS];
    let mut is_receiving = false;
    while written < blocks {
        let slot = slot_of(received);
        if !is_receiving && received < blocks && !is_busy[slot] {
            let rest = (length(received, bytes) - offset) as u32;
            let entry = opcode::Recv::new(STREAM, slots.at(slot, offset), rest).flags(libc::MSG_WAITALL);
            slots.push(&entry.build().user_data(ON_STREAM))?;
            is_receiving = true;
        }
        for (data, count) in slots.completed()? {
            if data != ON_STREAM {
                whole(count, length(data, bytes))?;
                is_busy[slot_of(data)] = false;
                written += 1;
                continue;
            }
            is_receiving = false;
            offset += count;
            let wanted = length(received, bytes);
            if offset == wanted {
                let slot = slot_of(received);
                let entry = opcode::WriteFixed::new(FILE, slots.at(slot, 0), wanted as u32, slot as u16);
                slots.push(&entry.offset(received * SLOT_BYTES as u64).build().user_data(received))?;
                is_busy[slot] = true;
                (received, offset) = (received + 1, 0);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::random_file;

    #[test]
    fn every_size_around_the_slots_arrives_as_it_was() {
        let scratch = tempfile::tempdir().unwrap();
        let slot = SLOT_BYTES as u64;
        for bytes in [1, slot - 1, slot, slot + 1, SLOTS as u64 * slot, 9 * slot + 4097] {
            let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
            random_file(&from, bytes, bytes).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let destination = File::create(&to).unwrap();
            let receiver = std::thread::spawn(move || {
                receive(&destination, bytes, &listener.accept().unwrap().0).unwrap();
            });
            send(&File::open(&from).unwrap(), bytes, &TcpStream::connect(address).unwrap()).unwrap();
            receiver.join().unwrap();
            assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap(), "{bytes} bytes");
        }
    }

    #[test]
    fn a_stream_that_ends_early_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let destination = File::create(scratch.path().join("to")).unwrap();
        let receiver = std::thread::spawn(move || {
            receive(&destination, 3 << 20, &listener.accept().unwrap().0).map_err(|error| error.kind())
        });
        TcpStream::connect(address).unwrap().write_all(&[7; 100]).unwrap();
        assert_eq!(receiver.join().unwrap(), Err(io::ErrorKind::UnexpectedEof));
    }
}
