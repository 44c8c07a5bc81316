//! What the evaluation asks of a parallel file system, whichever it is: [`Stripes`](super::stripes::Stripes) or
//! [`Volume`](super::volume::Volume).

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::TARGETS;
use super::device::Direction;
use super::sampler::Sampler;
use super::trace::Request;

/// One parallel file system of [`TARGETS`] targets whose speed can be set.
pub trait FileSystem: Send + Sync {
    /// Where it is mounted.
    fn directory(&self) -> &Path;

    /// Bytes a second of one target, each way; 0 is no limit.
    fn limit(&self, target: usize, rate: u64) -> io::Result<()>;

    /// The same in one direction, while it is being used.
    fn change_limit(&self, target: usize, rate: u64, direction: Direction) -> io::Result<()>;

    /// No target has a limit.
    fn unlimited(&self) -> io::Result<()> {
        (0..TARGETS).try_for_each(|target| self.limit(target, 0))
    }

    /// Waits until it has nothing left to do, and has no file in a cache.
    fn settle(&self) -> io::Result<()>;

    /// Bytes on each target of the files in a directory below the root.
    fn bytes_of(&self, tree: &str) -> io::Result<Vec<u64>>;

    /// Waits until everything that was written is on the targets.
    fn flush(&self) -> io::Result<()>;

    /// Begins to watch what its targets do.
    fn watch(&self) -> io::Result<Watch>;

    /// What its targets did since; times are seconds from `started` on.
    fn seen(&self, watch: Watch, started: Instant, moved: Moved) -> io::Result<Seen>;

    /// Processor time that it has used.
    fn processor_time(&self) -> Duration;
}

/// Under way from [`FileSystem::watch`] to [`FileSystem::seen`].
pub enum Watch {
    /// A place in a trace.
    Trace(u64),
    /// Devices are looked at every now and then.
    Devices(Sampler),
}

/// What a run has moved at one end.
#[derive(Clone, Copy, Debug)]
pub enum Moved<'a> {
    /// Files of which each target has so many bytes.
    Read(&'a [u64]),
    /// A directory below the root.
    Written(&'a str),
}

/// What targets were seen to do in a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Seen {
    /// Bytes of the files on each.
    pub bytes: Vec<u64>,
    /// When each had moved all, or nearly all of them; 0 where there are none.
    pub ends: Vec<f64>,
    /// Each request; none where the file system does not tell.
    pub requests: Option<Vec<Request>>,
}
