//! How the bytes of objects get from files into slots and back: with plain system calls or io_uring, through the page cache or
//! past it.
//!
//! An end has one [`Engines`]. It knows the devices that the end's files are on and, of each, which of the ways is the best one
//! here ([`choice`]); a file that is open has a [`Reach`], and each object makes an [`Attempt`]. What an engine leaves over (an
//! unaligned end, a part that a device did not take) goes through the page cache with plain system calls, which is the usual
//! way: so no engine has to be able to do everything, and errors are told by one piece of code.
//!
//! What must stay true: whatever is chosen, the same bytes are read and written, and the same errors told. The usual way is
//! taken without a measurement on file systems in memory, on those that are not known to be a local disk, for what is in the
//! page cache already, for files with holes, and where a target is to be asked for small pieces.

mod choice;
mod direct;
mod ring;

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use haul_buffers::{Lease, Pool};
use haul_meter::processor_nanos;
use rustix::io::{Errno, pread, pwrite, retry_on_intr};

use crate::local;
use choice::{Choice, Took, Turn};
use direct::Direct;
use ring::{Range, with_ring};

/// With which calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Engine {
    /// `pread` and `pwrite`.
    Posix,
    /// io_uring, several requests of one object at a time.
    Uring,
}

/// Through the page cache or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Io {
    /// Through it.
    Buffered,
    /// Past it (`O_DIRECT`).
    Direct,
}

/// One of the ways.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Way {
    /// With which calls.
    pub engine: Engine,
    /// Through the page cache or not.
    pub io: Io,
}

impl Way {
    /// The one that always works.
    pub const USUAL: Way = Way { engine: Engine::Posix, io: Io::Buffered };
    /// Past the page cache, one request after the other.
    pub const POSIX_DIRECT: Way = Way { engine: Engine::Posix, io: Io::Direct };
    /// Past the page cache, several requests at a time.
    pub const URING_DIRECT: Way = Way { engine: Engine::Uring, io: Io::Direct };
    /// Through the page cache, several requests at a time.
    pub const URING_BUFFERED: Way = Way { engine: Engine::Uring, io: Io::Buffered };
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.engine {
            Engine::Posix => "posix",
            Engine::Uring => "io_uring",
        })?;
        f.write_str(match self.io {
            Io::Buffered => ", buffered",
            Io::Direct => ", direct",
        })
    }
}

/// What a user leaves open; nothing: it is measured.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Wish {
    /// With which calls, if somebody says.
    pub engine: Option<Engine>,
    /// Through the page cache or not, if somebody says.
    pub io: Option<Io>,
}

impl Engine {
    /// In settings and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Posix => "posix",
            Engine::Uring => "uring",
        }
    }
}

impl Io {
    /// In settings and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Io::Buffered => "buffered",
            Io::Direct => "direct",
        }
    }
}

/// What says that nothing is wished.
const AUTO: &str = "auto";

impl Wish {
    /// As [`Wish::words`] says it. None for words that are not known.
    pub fn from_words(engine: &str, io: &str) -> Option<Wish> {
        let engine = match engine {
            AUTO => None,
            word => Some([Engine::Posix, Engine::Uring].into_iter().find(|engine| engine.name() == word)?),
        };
        let io = match io {
            AUTO => None,
            word => Some([Io::Buffered, Io::Direct].into_iter().find(|io| io.name() == word)?),
        };
        Some(Wish { engine, io })
    }

    /// Engine and I/O, each by its name, or `auto`.
    pub fn words(self) -> (&'static str, &'static str) {
        (self.engine.map_or(AUTO, Engine::name), self.io.map_or(AUTO, Io::name))
    }

    /// Something is asked for that is not usual.
    pub fn is_unusual(self) -> bool {
        self.engine == Some(Engine::Uring) || self.io == Some(Io::Direct)
    }
}

/// Whether files are read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// At a source.
    Read,
    /// At a sink.
    Write,
}

/// What does not go as it should, said once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// The kernel gives no rings to this process.
    NoRing(Errno),
    /// The limit of locked memory is too low for registered slots; it goes on without.
    NotRegistered(Errno),
    /// The file system of this device, by major and minor number, lets nobody past the page cache.
    NoDirect(u32, u32),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::NoRing(errno) => {
                write!(f, "io_uring is not available ({errno}): plain system calls are used")
            }
            Note::NotRegistered(errno) => write!(
                f,
                "buffers could not be registered with io_uring ({errno}): it goes on without (see ulimit -l)"
            ),
            Note::NoDirect(major, minor) => {
                write!(
                    f,
                    "the file system on device {major}:{minor} takes no direct I/O: it is buffered there"
                )
            }
        }
    }
}

/// What is known of a device.
#[derive(Clone, PartialEq, Debug)]
pub struct Told {
    /// Major and minor number.
    pub device: (u32, u32),
    /// Whether it was read or written.
    pub direction: Direction,
    /// Which way was chosen; none while it is measured.
    pub chosen: Option<Way>,
    /// What was measured, in bytes a second.
    pub rates: Vec<(Way, f64)>,
}

/// Troubles that tests ask for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Trouble {
    /// The kernel gives no rings.
    pub no_ring: bool,
    /// No file system takes direct I/O.
    pub no_direct: bool,
    /// Slots cannot be registered.
    pub no_registration: bool,
    /// Engines move only the first page of what they are asked for.
    pub cut_short: bool,
}

impl Trouble {
    /// `HAUL_TEST_ENGINE=<no-ring | no-direct | no-registration | cut-short>[,...]`.
    fn from_environment() -> Trouble {
        let mut trouble = Trouble::default();
        if cfg!(feature = "faults") {
            for word in std::env::var("HAUL_TEST_ENGINE").unwrap_or_default().split(',') {
                match word {
                    "no-ring" => trouble.no_ring = true,
                    "no-direct" => trouble.no_direct = true,
                    "no-registration" => trouble.no_registration = true,
                    "cut-short" => trouble.cut_short = true,
                    "" => {}
                    word => panic!("no trouble of an engine: {word:?}"),
                }
            }
        }
        trouble
    }
}

/// The ways of one end's devices.
pub struct Engines {
    direction: Direction,
    wish: Wish,
    processors: u32,
    trouble: Trouble,
    began: Instant,
    devices: Mutex<HashMap<u64, Arc<Device>>>,
    notes: Mutex<Vec<Note>>,
}

struct Device {
    number: u64,
    /// There is nothing to choose.
    usual: bool,
    choice: Mutex<Choice>,
}

impl Device {
    fn shown(&self) -> (u32, u32) {
        (rustix::fs::major(self.number), rustix::fs::minor(self.number))
    }
}

/// How an open file is reached.
pub(crate) struct Reach {
    device: Arc<Device>,
    /// A second descriptor, past the page cache, once somebody needed it. `None`: it cannot be had.
    direct: OnceLock<Option<Direct>>,
    /// What came of making room for all of the file, once somebody needed it.
    room: OnceLock<Result<(), Errno>>,
}

impl Reach {
    fn direct(&self, file: &OwnedFd) -> Option<&Direct> {
        self.direct.get_or_init(|| Direct::open(file)).as_ref()
    }
}

/// An object on its way. If it is dropped, it does not count.
pub(crate) struct Attempt<'a> {
    engines: &'a Engines,
    device: &'a Device,
    way: Way,
    turn: Option<Turn>,
    processor_nanos: u64,
}

/// What these locks guard is valid between any two steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engines {
    /// Of an end that reads or writes.
    pub fn new(direction: Direction, wish: Wish) -> Engines {
        Engines::with_trouble(direction, wish, Trouble::from_environment())
    }

    /// With what a test asks for.
    pub fn with_trouble(direction: Direction, wish: Wish, trouble: Trouble) -> Engines {
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        let (devices, notes, began) = (Mutex::default(), Mutex::default(), Instant::now());
        Engines { direction, wish, processors, trouble, began, devices, notes }
    }

    /// Of a file on this device.
    pub(crate) fn reach(&self, file: impl AsFd, device: u64) -> Reach {
        let known = lock(&self.devices).get(&device).cloned();
        let device = known.unwrap_or_else(|| {
            let ways = if self.is_worth_a_look(file) { self.wish.ways() } else { vec![Way::USUAL] };
            let choice = Choice::new(&ways, self.processors);
            let new = Device { number: device, usual: choice.is_usual(), choice: Mutex::new(choice) };
            // Another thread may have been first.
            Arc::clone(lock(&self.devices).entry(device).or_insert_with(|| Arc::new(new)))
        });
        Reach { device, direct: OnceLock::new(), room: OnceLock::new() }
    }

    /// Who asks for a way gets it everywhere; else only disks are measured.
    fn is_worth_a_look(&self, file: impl AsFd) -> bool {
        self.wish != Wish::default() || local::is_disk(file).unwrap_or(false)
    }

    /// The next object. `usual`: it goes the usual way whatever is best, and is nothing to be measured.
    ///
    /// So does what is `cached`, in the page cache already, unless somebody has asked for something else.
    pub(crate) fn attempt<'a>(
        &'a self,
        reach: &'a Reach,
        usual: bool,
        cached: impl FnOnce() -> bool,
    ) -> Attempt<'a> {
        let device = &*reach.device;
        let nothing = Attempt { engines: self, device, way: Way::USUAL, turn: None, processor_nanos: 0 };
        if usual || device.usual {
            return nothing;
        }
        if self.wish.io.is_none() && cached() {
            return nothing;
        }
        let (way, turn) = lock(&device.choice).begin(self.now());
        let processor_nanos = if turn.is_some() { processor_nanos() } else { 0 };
        Attempt { way, turn, processor_nanos, ..nothing }
    }

    /// What was found out, device by device, and what does not go as it should.
    pub fn told(&self) -> (Vec<Told>, Vec<Note>) {
        let tell = |device: &Arc<Device>| {
            let choice = lock(&device.choice);
            Told {
                device: device.shown(),
                direction: self.direction,
                chosen: choice.decided(),
                rates: choice.rates(),
            }
        };
        let devices = lock(&self.devices);
        let mut told: Vec<Told> = devices.values().filter(|device| !device.usual).map(tell).collect();
        told.sort_by_key(|told| told.device);
        (told, lock(&self.notes).clone())
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn note(&self, note: Note) {
        let mut notes = lock(&self.notes);
        let known = notes.iter().any(|known| match (known, note) {
            (Note::NoDirect(..), _) | (_, Note::NoDirect(..)) => *known == note,
            _ => std::mem::discriminant(known) == std::mem::discriminant(&note),
        });
        if !known {
            notes.push(note);
        }
    }

    /// Nobody goes this way any more.
    fn refuse_rings(&self, errno: Errno) {
        self.note(Note::NoRing(errno));
        let devices = lock(&self.devices);
        devices.values().for_each(|device| lock(&device.choice).refuse(|way| way.engine == Engine::Uring));
    }

    fn refuse_direct(&self, device: &Device) {
        let (major, minor) = device.shown();
        self.note(Note::NoDirect(major, minor));
        lock(&device.choice).refuse(|way| way.io == Io::Direct);
    }
}

impl Attempt<'_> {
    /// Which way it goes.
    pub(crate) fn way(&self) -> Way {
        self.way
    }

    /// So many bytes are where they belong.
    pub(crate) fn done(mut self, bytes: u64) {
        let mut choice = lock(&self.device.choice);
        match self.turn.take() {
            Some(turn) => {
                let processor_nanos = processor_nanos().saturating_sub(self.processor_nanos);
                choice.end(turn, self.engines.now(), Some(Took { bytes, processor_nanos }));
            }
            None if !self.device.usual => choice.went(bytes),
            None => {}
        }
    }

    /// The range was written; as far as it went through the page cache and is measured, until the device has it: else the way
    /// would look as fast as memory is. Nothing is made durable by that.
    pub(crate) fn await_device(&self, (reach, file): (&Reach, &OwnedFd), offset: u64, length: u64) {
        if self.turn.is_some() && self.way.io == Io::Buffered {
            // A descriptor hears of each error of its file once. Those of this range are for the one that is synced.
            reach
                .direct(file)
                .into_iter()
                .for_each(|other| direct::await_device(&other.file, offset, length));
        }
    }

    /// It is not of its way what this takes.
    fn is_disturbed(&mut self) {
        if let Some(turn) = self.turn.take() {
            lock(&self.device.choice).end(turn, self.engines.now(), None);
        }
    }

    /// Reads as many bytes from `offset` on to the start of the slot as the way can, and gives them to `seen`, in order. How many:
    /// the others are to be read as usual. `before` each request; `piece`: bytes of one where there is one at a time.
    pub(crate) fn read(
        &mut self,
        (reach, file): (&Reach, &OwnedFd),
        offset: u64,
        length: usize,
        (lease, pool): (&mut Lease<'_>, &Pool),
        mut before: impl FnMut() -> Result<(), Errno>,
        mut seen: impl FnMut(&mut [u8]),
    ) -> Result<usize, Errno> {
        let Some(door) = self.door(reach, file, offset, None)? else { return Ok(0) };
        // Behind the end of a file there is nothing: what is asked for beyond an unaligned end does not come.
        let asked = self.cut(length.next_multiple_of(door.unit).min(lease.len()), door.unit);
        let mut passed = 0;
        let mut seen = |bytes: &mut [u8]| {
            let wanted = bytes.len().min(length - passed);
            passed += wanted;
            if wanted > 0 {
                seen(&mut bytes[..wanted]);
            }
        };
        let result = match self.way.engine {
            Engine::Uring => {
                self.in_ring(&door, offset, asked, (lease, pool), Direction::Read, before, &mut seen)
            }
            Engine::Posix => {
                let mut at = 0;
                loop {
                    let space = &mut lease[at..asked.min(at + DIRECT_PIECE_BYTES)];
                    if space.is_empty() {
                        break Ok(());
                    }
                    let read = before()
                        .and_then(|()| retry_on_intr(|| pread(door.file, &mut *space, offset + at as u64)));
                    match read {
                        Ok(count) => {
                            seen(&mut space[..count]);
                            at += count;
                            if count < DIRECT_PIECE_BYTES {
                                break Ok(());
                            }
                        }
                        Err(errno) => break Err(errno),
                    }
                }
            }
        };
        self.settle(result, door.is_direct).map(|()| passed)
    }

    /// Writes as many bytes of the slot's beginning as the way can. How many: the others are to be written as usual.
    pub(crate) fn write(
        &mut self,
        (reach, file): (&Reach, &OwnedFd),
        offset: u64,
        length: usize,
        (lease, pool): (&mut Lease<'_>, &Pool),
        file_bytes: u64,
    ) -> Result<usize, Errno> {
        let Some(door) = self.door(reach, file, offset, Some(file_bytes))? else { return Ok(0) };
        let asked = self.cut(length - length % door.unit, door.unit);
        let mut written = 0;
        let result = match self.way.engine {
            Engine::Uring => {
                let count = |bytes: &mut [u8]| written += bytes.len();
                self.in_ring(&door, offset, asked, (lease, pool), Direction::Write, || Ok(()), count)
            }
            Engine::Posix if asked == 0 => Ok(()),
            Engine::Posix => {
                retry_on_intr(|| pwrite(door.file, &lease[..asked], offset)).map(|count| written = count)
            }
        };
        self.settle(result, door.is_direct)?;
        // Where the page cache goes on it begins with a page of its own.
        Ok(if written < length { written - written % door.unit } else { written })
    }

    /// Which descriptor this way uses; `None`: this object goes as usual.
    fn door<'d>(
        &mut self,
        reach: &'d Reach,
        file: &'d OwnedFd,
        offset: u64,
        file_bytes: Option<u64>,
    ) -> Result<Option<Door<'d>>, Errno> {
        if self.way.io == Io::Buffered {
            return Ok(Some(Door { file, unit: 1, is_direct: false }));
        }
        match reach.direct(file).filter(|_| !self.engines.trouble.no_direct) {
            Some(direct) if offset.is_multiple_of(direct.unit as u64) => {
                if let Some(bytes) = file_bytes {
                    (*reach.room.get_or_init(|| direct::set_aside(file, bytes)))?;
                }
                Ok(Some(Door { file: &direct.file, unit: direct.unit, is_direct: true }))
            }
            Some(_) => {
                self.is_disturbed();
                Ok(None)
            }
            None => {
                self.is_disturbed();
                self.engines.refuse_direct(self.device);
                Ok(None)
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what both directions have in common")]
    fn in_ring(
        &mut self,
        door: &Door<'_>,
        offset: u64,
        length: usize,
        (lease, pool): (&mut Lease<'_>, &Pool),
        direction: Direction,
        before: impl FnMut() -> Result<(), Errno>,
        seen: impl FnMut(&mut [u8]),
    ) -> Result<(), Errno> {
        if length == 0 {
            return Ok(());
        }
        let Trouble { no_ring, no_registration, .. } = self.engines.trouble;
        let transfer = |ring: &mut ring::Ring| {
            let slot = lease.slot();
            let buffer = match no_registration {
                false => ring.buffer(pool, slot, &mut lease[..]),
                true => Err(Errno::NOMEM),
            };
            let (buffer, why) = (buffer.unwrap_or(None), buffer.err());
            let memory = &mut lease[..length];
            let (file, unit) = (door.file.as_fd(), door.unit);
            let range = Range { direction, file, offset, memory, buffer, unit };
            (ring.transfer(range, before, seen), why)
        };
        match if no_ring { Err(Errno::PERM) } else { with_ring(transfer) } {
            Ok((result, why)) => {
                why.into_iter().for_each(|why| self.engines.note(Note::NotRegistered(why)));
                result.map(drop)
            }
            Err(errno) => {
                self.is_disturbed();
                self.engines.refuse_rings(errno);
                Ok(())
            }
        }
    }

    /// A file system may take the flag and no request; or none that is aligned like this.
    fn settle(&mut self, result: Result<(), Errno>, is_direct: bool) -> Result<(), Errno> {
        match result {
            Err(Errno::INVAL | Errno::OPNOTSUPP) if is_direct => {
                self.is_disturbed();
                self.engines.refuse_direct(self.device);
                Ok(())
            }
            other => other,
        }
    }

    fn cut(&self, length: usize, unit: usize) -> usize {
        if self.engines.trouble.cut_short { length.min(4096.max(unit)) } else { length }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.is_disturbed();
    }
}

/// Of one request where there is one at a time: large enough for a disk, small enough that what was read is in the cache of the
/// core that hashes it.
const DIRECT_PIECE_BYTES: usize = 1 << 20;

/// What bytes pass through.
struct Door<'a> {
    file: &'a OwnedFd,
    unit: usize,
    is_direct: bool,
}

/// Whether this process may have rings; for those who want to know beforehand.
pub fn rings_are_allowed() -> Result<(), Errno> {
    ring::is_allowed()
}

/// Is what is at this path on a device of which the best way is measured? None if there is nothing.
pub fn is_measured(path: &std::path::Path) -> Option<bool> {
    let held = rustix::fs::open(
        path,
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    local::is_disk(held.ok()?).ok()
}
