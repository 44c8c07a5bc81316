//! The few operations that a log needs of whatever holds it.
//!
//! Implemented by the mover over a real directory, by [`crate::MemoryStore`], and by the simulator's disk. Every
//! implementation passes [`crate::conformance`].

use alloc::string::String;
use alloc::vec::Vec;

/// A flat set of named byte arrays, with POSIX durability: what was not synced may be lost, whole or in parts, when
/// the power goes.
///
/// A page of 512 bytes at a multiple of 512 must reach the medium as a whole or not at all; where that does not hold,
/// a power cut in the middle of a write costs the objects of that page.
pub trait LogStore {
    /// What went wrong, for the caller.
    type Error: core::fmt::Debug;

    /// The names that are there, in any order. Names that no log has are left alone.
    fn list(&mut self) -> Result<Vec<String>, Self::Error>;

    /// Bytes of a file; `None` if it is not there.
    fn length(&mut self, name: &str) -> Result<Option<u64>, Self::Error>;

    /// Reads from `offset`; returns how many bytes, 0 only at or past the end, fewer than asked for at any time.
    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, Self::Error>;

    /// Writes all of `bytes`; creates the file, and extends it (a gap reads as zeros).
    fn write_at(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Removes the file; a missing one is no error.
    fn remove(&mut self, name: &str) -> Result<(), Self::Error>;

    /// Contents and lengths of these files are durable on return. Their names need [`LogStore::sync_names`].
    fn sync(&mut self, names: &[&str]) -> Result<(), Self::Error>;

    /// All creations and removals so far, of this and of earlier processes, are durable on return.
    fn sync_names(&mut self) -> Result<(), Self::Error>;
}

impl<S: LogStore + ?Sized> LogStore for &mut S {
    type Error = S::Error;

    fn list(&mut self) -> Result<Vec<String>, Self::Error> {
        (**self).list()
    }

    fn length(&mut self, name: &str) -> Result<Option<u64>, Self::Error> {
        (**self).length(name)
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, Self::Error> {
        (**self).read_at(name, offset, buffer)
    }

    fn write_at(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        (**self).write_at(name, offset, bytes)
    }

    fn remove(&mut self, name: &str) -> Result<(), Self::Error> {
        (**self).remove(name)
    }

    fn sync(&mut self, names: &[&str]) -> Result<(), Self::Error> {
        (**self).sync(names)
    }

    fn sync_names(&mut self) -> Result<(), Self::Error> {
        (**self).sync_names()
    }
}
