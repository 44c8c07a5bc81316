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

mod attempt;
mod choice;
mod direct;
mod ring;
mod way;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use crate::local;
use choice::Choice;
use direct::Direct;

pub(crate) use attempt::Attempt;
pub use way::{Direction, Engine, Io, Note, Told, Trouble, Way, Wish};

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

/// Where the first so many files cannot go past the page cache, none is asked any more.
const FILES_WITHOUT_DIRECT: u32 = 3;

struct Device {
    number: u64,
    /// There is nothing to choose.
    usual: bool,
    /// A file there could be opened past the page cache.
    has_direct: AtomicBool,
    /// So many of which that is said could not.
    without_direct: AtomicU32,
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
    /// A second descriptor, past the page cache, once somebody needed it.
    direct: OnceLock<Result<Direct, Errno>>,
    /// What came of making room for all of the file, once somebody needed it.
    room: OnceLock<Result<(), Errno>>,
}

impl Reach {
    fn direct(&self, file: &OwnedFd) -> Result<&Direct, Errno> {
        let open = || {
            let direct = Direct::open(file);
            let device = &self.device;
            match &direct {
                Ok(_) => device.has_direct.store(true, Ordering::Relaxed),
                Err(_) => _ = device.without_direct.fetch_add(1, Ordering::Relaxed),
            }
            direct
        };
        self.direct.get_or_init(open).as_ref().map_err(|errno| *errno)
    }
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
            let choice = Choice::new(&ways, self.processors).or(self.wish.instead());
            let (usual, choice) = (choice.is_usual(), Mutex::new(choice));
            let new = Device {
                number: device,
                usual,
                has_direct: AtomicBool::new(false),
                without_direct: AtomicU32::new(0),
                choice,
            };
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
        if usual || device.usual || self.wish.io.is_none() && cached() {
            return Attempt::usual(self, device);
        }
        let turn = lock(&device.choice).begin(self.now());
        Attempt::new(self, device, turn)
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

    /// A file could not be opened past the page cache: does no file of the device go that way, or this one, or none at the moment?
    fn refuse_direct_unless_alone(&self, device: &Device, errno: Errno) {
        let of_device = match errno {
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => false,
            // A file with inline data, a verity or an encrypted one, one whose mode has changed since it was opened: others may do.
            Errno::OPNOTSUPP | Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::STALE => {
                device.without_direct.load(Ordering::Relaxed) >= FILES_WITHOUT_DIRECT
            }
            _ => true,
        };
        if of_device && !device.has_direct.load(Ordering::Relaxed) {
            self.refuse_direct(device);
        }
    }

    fn refuse_direct(&self, device: &Device) {
        let (major, minor) = device.shown();
        self.note(Note::NoDirect(major, minor));
        lock(&device.choice).refuse(|way| way.io == Io::Direct);
    }
}

/// Whether this process may have rings; for those who want to know beforehand.
pub fn rings_are_allowed() -> Result<(), Errno> {
    ring::is_allowed()
}

/// Is what is at this path on a device of which the best way is measured? None if there is nothing.
pub fn is_measured(path: &Path) -> Option<bool> {
    let held = fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    local::is_disk(held.ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engines() -> (Engines, Reach, OwnedFd) {
        let wish = Wish { io: Some(Io::Direct), ..Wish::default() };
        let engines = Engines::with_trouble(Direction::Read, wish, Trouble::default());
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        let reach = engines.reach(&file, 7);
        (engines, reach, file)
    }

    #[test]
    fn a_file_that_cannot_go_past_the_page_cache_does_not_keep_others_from_it() {
        let (engines, reach, _) = engines();
        let told = |engines: &Engines| engines.told().1.len();
        engines.refuse_direct_unless_alone(&reach.device, Errno::MFILE);
        for refused in 1..FILES_WITHOUT_DIRECT {
            reach.device.without_direct.store(refused, Ordering::Relaxed);
            for errno in [Errno::OPNOTSUPP, Errno::ACCESS, Errno::NOENT] {
                engines.refuse_direct_unless_alone(&reach.device, errno);
            }
        }
        assert_eq!(told(&engines), 0);
        reach.device.without_direct.store(FILES_WITHOUT_DIRECT, Ordering::Relaxed);
        engines.refuse_direct_unless_alone(&reach.device, Errno::OPNOTSUPP);
        assert_eq!(told(&engines), 1, "it is the device");
    }

    #[test]
    fn where_one_file_could_none_speaks_for_all() {
        let (engines, reach, file) = engines();
        let other = engines.reach(std::fs::File::open("/proc/self/status").unwrap(), 7);
        let of_proc = std::fs::File::open("/proc/self/status").unwrap().into();
        assert!(other.direct(&of_proc).is_err());
        if reach.direct(&file).is_err() {
            return haul_testkit::lacks_here("direct I/O where temporary files are");
        }
        for errno in [Errno::INVAL, Errno::OPNOTSUPP] {
            engines.refuse_direct_unless_alone(&other.device, errno);
        }
        assert_eq!(engines.told().1.len(), 0);
    }
}
