//! Numbers that name things, one type each, so that one cannot be passed for another.

use core::fmt;

/// One entry (file, directory, symlink) of a session, numbered by the source in scan order from 1.
///
/// The k-th SOURCE that the user named hangs below the pseudo directory [`EntryId::root`]`(k)`: the peer sends no
/// name for it, so a hostile source cannot choose one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub u64);

impl EntryId {
    const ROOT_BIT: u64 = 1 << 63;

    /// The pseudo directory that holds only the `index`-th SOURCE of the command line.
    pub const fn root(index: u32) -> Self {
        EntryId(Self::ROOT_BIT | index as u64)
    }

    /// Which SOURCE this pseudo directory holds, or `None` for a real entry.
    pub const fn root_index(self) -> Option<u32> {
        if self.0 & Self::ROOT_BIT != 0 { Some(self.0 as u32) } else { None }
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.root_index() {
            Some(index) => write!(f, "root{index}"),
            None => write!(f, "e{}", self.0),
        }
    }
}

/// One transfer of one object: a repaired object gets a new block id, so a late payload is never taken for another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId(pub u64);

/// A buffer of a slot pool. A sink slot that the sink has granted is a credit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(pub u32);

/// 128 random bits, made by the sink, that name an unfinished file (`.haul-<32 hex digits>`).
///
/// Bytes 0..6 tag the job, 6..10 the session, 10..16 the file: so a later session of the same job can tell its own
/// left-over files from anybody else's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub [u8; 16]);

impl Token {
    /// No token: entries that travel in bundles.
    pub const NONE: Token = Token([0; 16]);

    /// The part that is the same for all files of a job at one sink.
    pub fn job_tag(&self) -> &[u8] {
        &self.0[..6]
    }

    /// The part that is the same for all files of one session of a job.
    pub fn session_tag(&self) -> &[u8] {
        &self.0[6..10]
    }
}

/// Of a whole file or bundle member, or of one object of a file. With BLAKE3 the root, or the subtree value at the object's
/// offset; shorter hashes are filled up with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Stands where the source has read nothing: both ends are one process, and the sink takes the bytes from the source's
    /// file itself. No bytes are known that have this hash.
    pub const LENT: Hash = Hash([0xff; 32]);
}

/// How contents are hashed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum HashKind {
    /// Not at all: nobody compares what arrives with what was read.
    None = 0,
    /// BLAKE3: a file's hash is what `b3sum` prints.
    #[default]
    Blake3 = 1,
    /// XXH3 of 128 bits: finds damage, but keeps nobody from making two contents alike. The hash of a file of one object is
    /// what `xxh128sum` prints; of others it is that of the hashes of its objects.
    Xxh3 = 2,
}

impl HashKind {
    /// All of them.
    pub const ALL: [HashKind; 3] = [HashKind::Blake3, HashKind::Xxh3, HashKind::None];

    /// As object logs have it.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// For people and options: `blake3`, `xxh3`, `none`.
    pub const fn name(self) -> &'static str {
        match self {
            HashKind::None => "none",
            HashKind::Blake3 => "blake3",
            HashKind::Xxh3 => "xxh3",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<HashKind> {
        HashKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Bytes of a hash that say something.
    pub const fn bytes(self) -> usize {
        match self {
            HashKind::None => 0,
            HashKind::Blake3 => 32,
            HashKind::Xxh3 => 16,
        }
    }
}

/// Names a job: a hash of what must exist at the end (see `docs/spec/wire.md`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub [u8; 16]);

/// Names one session (one source process and one sink process that work together). Random.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u8; 16]);

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

macro_rules! hex_format {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { hex(&self.0, f) }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { hex(&self.0, f) }
        }
    )*};
}
hex_format!(Token, Hash, JobId, SessionId);
