//! What can be chosen, what is wished, and what is told of it.

use std::fmt;

use rustix::io::Errno;

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
                // Rings count as locked memory.
                let limit = if *errno == Errno::NOMEM { " (see ulimit -l)" } else { "" };
                write!(f, "io_uring is not available ({errno}): plain system calls are used{limit}")
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
    /// File systems take the flag of direct I/O and no request.
    pub no_direct_requests: bool,
    /// The kernel has no memory for a direct request at the moment.
    pub no_direct_memory: bool,
    /// Engines move only the first page of what they are asked for.
    pub cut_short: bool,
}

impl Trouble {
    /// `HAUL_TEST_ENGINE=<no-ring | no-direct | no-registration | cut-short>[,...]`.
    pub(super) fn from_environment() -> Trouble {
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
