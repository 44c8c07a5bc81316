//! One object on its way through an engine.

use std::os::fd::{AsFd, OwnedFd};

use haul_buffers::{Lease, Pool};
use haul_meter::processor_nanos;
use rustix::io::{Errno, pread, pwrite};

use super::choice::{Took, Turn};
use super::ring::{Range, Ring, with_ring};
use super::{Device, Direction, Engine, Engines, Io, Note, Reach, Trouble, Way, direct, lock};
use crate::leases::patiently;
use crate::page_cache;

/// Of one request where there is one at a time: large enough for a disk, small enough that what was read is in the cache of the
/// core that hashes it.
const DIRECT_PIECE_BYTES: usize = 1 << 20;

/// What bytes pass through.
struct Door<'a> {
    file: &'a OwnedFd,
    unit: usize,
    is_direct: bool,
}

/// An object on its way. If it is dropped, it does not count.
pub(crate) struct Attempt<'a> {
    engines: &'a Engines,
    device: &'a Device,
    way: Way,
    turn: Option<Turn>,
    processor_nanos: u64,
}

impl<'a> Attempt<'a> {
    /// The usual way, and nothing that is measured.
    pub(super) fn usual(engines: &'a Engines, device: &'a Device) -> Attempt<'a> {
        Attempt { engines, device, way: Way::USUAL, turn: None, processor_nanos: 0 }
    }

    /// This way.
    pub(super) fn new(
        engines: &'a Engines,
        device: &'a Device,
        (way, turn): (Way, Option<Turn>),
    ) -> Attempt<'a> {
        let processor_nanos = if turn.is_some() { processor_nanos() } else { 0 };
        Attempt { engines, device, way, turn, processor_nanos }
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
                .for_each(|other| page_cache::await_device(&other.file, offset, length));
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
            _ if door.is_direct && self.engines.trouble.no_direct_requests => Err(Errno::INVAL),
            _ if door.is_direct && self.engines.trouble.no_direct_memory => Err(Errno::NOMEM),
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
                    let read = before().and_then(|()| {
                        patiently(door.file, || pread(door.file, &mut *space, offset + at as u64))
                    });
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
            _ if door.is_direct && self.engines.trouble.no_direct_requests => Err(Errno::INVAL),
            _ if door.is_direct && self.engines.trouble.no_direct_memory => Err(Errno::NOMEM),
            Engine::Uring => {
                let count = |bytes: &mut [u8]| written += bytes.len();
                self.in_ring(&door, offset, asked, (lease, pool), Direction::Write, || Ok(()), count)
            }
            Engine::Posix if asked == 0 => Ok(()),
            Engine::Posix => patiently(door.file, || pwrite(door.file, &lease[..asked], offset))
                .map(|count| written = count),
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
        let direct = if self.engines.trouble.no_direct { Err(Errno::INVAL) } else { reach.direct(file) };
        match direct {
            Ok(direct) if offset.is_multiple_of(direct.unit as u64) => {
                if let Some(bytes) = file_bytes {
                    (*reach.room.get_or_init(|| direct::set_aside(file, bytes)))?;
                }
                Ok(Some(Door { file: &direct.file, unit: direct.unit, is_direct: true }))
            }
            Ok(_) => {
                self.is_disturbed();
                Ok(None)
            }
            Err(errno) => {
                self.is_disturbed();
                self.engines.refuse_direct_unless_alone(self.device, errno);
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
        let transfer = |ring: &mut Ring| {
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
            // Pages have to stay where they are for it, and may not be allowed to: as usual it may go.
            Err(Errno::NOMEM | Errno::NOBUFS | Errno::FAULT) if is_direct => {
                self.is_disturbed();
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
