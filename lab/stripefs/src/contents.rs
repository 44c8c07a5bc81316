//! Contents of files: requests are split by device, and answered when all parts are done.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::buffers::{ALIGNMENT, Buffer};
use crate::device::{Answer, Device, Job};
use crate::filesystem::StripeFs;
use crate::join::Join;
use crate::knobs::Kind;
use crate::layout::{Layout, Object, Place};
use crate::node::{Node, ObjectFile};

/// A range of a request that is in one place. Offsets are in bytes.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// `None`: in the body at the metadata server.
    object: Option<Object>,
    object_offset: u64,
    /// In the request.
    at: usize,
    bytes: usize,
}

/// What one device has of a request. Its bytes lie in a buffer of their own, one segment behind the other.
struct Part {
    target: Option<u32>,
    segments: Vec<Segment>,
}

impl Part {
    fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Calls `work` with each segment and its place in the part's buffer.
    fn each(&self, mut work: impl FnMut(&Segment, usize) -> Result<(), Errno>) -> Result<(), Errno> {
        let mut packed_at = 0;
        for segment in &self.segments {
            work(segment, packed_at)?;
            packed_at += segment.bytes;
        }
        Ok(())
    }
}

fn parts(layout: &Layout, offset: u64, bytes: u64) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for piece in layout.pieces(offset, bytes) {
        let object = match piece.place {
            Place::Hole => continue,
            Place::Metadata => None,
            Place::Object(object) => Some(object),
        };
        let at = (piece.offset - offset) as usize;
        let segment = Segment { object, object_offset: piece.object_offset, at, bytes: piece.bytes as usize };
        let target = object.map(|object| object.target);
        match parts.iter_mut().find(|part| part.target == target) {
            Some(part) => part.segments.push(segment),
            None => parts.push(Part { target, segments: vec![segment] }),
        }
    }
    parts
}

impl StripeFs {
    /// Reads; at the end of the file less than is asked for, or nothing.
    pub(crate) fn read(
        &self,
        node: &Arc<Node>,
        offset: u64,
        bytes: u64,
        answer: impl FnOnce(Result<&[u8], Errno>) + Send + 'static,
    ) {
        let found = node.size().and_then(|size| {
            let bytes = bytes.min(size.saturating_sub(offset));
            Ok((node.layout()?.filter(|_| bytes > 0), bytes as usize))
        });
        let (layout, bytes) = match found {
            Ok(found) => found,
            Err(errno) => return answer(Err(errno)),
        };
        let parts = layout.map_or_else(Vec::new, |layout| parts(&layout, offset, bytes as u64));
        let buffers = self.shared().buffers.clone();
        let join =
            Join::new(parts.len(), move |read: Result<Vec<(Part, Buffer)>, Errno>| match read.as_deref() {
                Err(errno) => answer(Err(*errno)),
                // The whole request in one segment: no copy.
                Ok([(part, buffer)]) if part.segments.len() == 1 && buffer.len() == bytes => {
                    answer(Ok(buffer))
                }
                Ok(read) => {
                    let mut whole = buffers.take(bytes);
                    whole.fill(0);
                    for (part, buffer) in read {
                        let _ = part.each(|segment, packed_at| {
                            let from = &buffer[packed_at..packed_at + segment.bytes];
                            whole[segment.at..segment.at + segment.bytes].copy_from_slice(from);
                            Ok(())
                        });
                    }
                    answer(Ok(&whole));
                }
            });
        for part in parts {
            let (filesystem, node, join) = (self.clone(), Arc::clone(node), Arc::clone(&join));
            self.submit_part(
                &node.clone(),
                Kind::Read,
                offset,
                part,
                move |part| {
                    let mut buffer = filesystem.shared().buffers.take(part.bytes());
                    part.each(|segment, packed_at| {
                        let into = &mut buffer[packed_at..packed_at + segment.bytes];
                        filesystem.read_segment(&node, segment, into)
                    })?;
                    Ok(buffer)
                },
                move |result| join.part(result),
            );
        }
    }

    /// Writes everything, or fails.
    pub(crate) fn write(
        &self,
        node: &Arc<Node>,
        offset: u64,
        data: &[u8],
        answer: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        let end = offset + data.len() as u64;
        let layout = match self.instantiate(node, end) {
            // Beyond what its components cover.
            Ok(layout) if layout.end() < end => return answer(Err(Errno::INVAL)),
            Ok(layout) => layout,
            Err(errno) => return answer(Err(errno)),
        };
        let parts = parts(&layout, offset, data.len() as u64);
        let join = Join::new(parts.len(), {
            let node = Arc::clone(node);
            move |written: Result<Vec<(Part, ())>, Errno>| answer(written.and_then(|_| node.written_to(end)))
        });
        for part in parts {
            let mut buffer = self.shared().buffers.take(part.bytes());
            let _ = part.each(|segment, packed_at| {
                let from = &data[segment.at..segment.at + segment.bytes];
                buffer[packed_at..packed_at + segment.bytes].copy_from_slice(from);
                Ok(())
            });
            let (filesystem, node, join) = (self.clone(), Arc::clone(node), Arc::clone(&join));
            self.submit_part(
                &node.clone(),
                Kind::Write,
                offset,
                part,
                move |part| {
                    part.each(|segment, packed_at| {
                        let from = &buffer[packed_at..packed_at + segment.bytes];
                        filesystem.write_segment(&node, segment, from)
                    })
                },
                move |result| join.part(result),
            );
        }
    }

    /// Everything that was written to a file, and its size and layout, become durable.
    pub(crate) fn sync(&self, node: &Arc<Node>, answer: impl FnOnce(Result<(), Errno>) + Send + 'static) {
        let objects: Vec<_> = match node.layout() {
            Ok(layout) => {
                layout.iter().flat_map(|layout| layout.objects()).map(|(_, _, object)| object).collect()
            }
            Err(errno) => return answer(Err(errno)),
        };
        let join = Join::new(objects.len() + 1, |result: Result<Vec<()>, Errno>| answer(result.map(drop)));
        let body = (Arc::clone(node), Arc::clone(&join));
        self.submit(
            &self.shared().mds,
            node,
            Kind::Sync,
            move || fs::fsync(&*body.0.body()?),
            move |result| {
                body.1.part(result);
            },
        );
        for object in objects {
            let (filesystem, held, join) = (self.clone(), Arc::clone(node), Arc::clone(&join));
            let work = move || filesystem.sync_object(&held, object);
            self.submit(self.device(Some(object.target)), node, Kind::Sync, work, move |result| {
                join.part(result);
            });
        }
    }

    /// Makes a file so long.
    pub(crate) fn set_size(
        &self,
        node: &Arc<Node>,
        size: u64,
        answer: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        let cut = || -> Result<Vec<(Object, u64)>, Errno> {
            let shrinks = size < node.size()?;
            let layout = match node.layout()? {
                None if size == 0 => None,
                // As Lustre does: up to the byte behind the end.
                _ => Some(self.instantiate(node, size.saturating_add(1))?),
            };
            if layout.as_ref().is_some_and(|layout| layout.end() < size) {
                return Err(Errno::INVAL);
            }
            let shorter = |layout: Arc<Layout>| -> Vec<_> {
                let objects = layout.objects().filter(|(component, ..)| component.end > size);
                objects
                    .map(|(component, index, object)| (object, component.object_bytes(index, size)))
                    .collect()
            };
            Ok(layout.filter(|_| shrinks).map_or_else(Vec::new, shorter))
        };
        let objects = match cut() {
            Ok(objects) => objects,
            Err(errno) => return answer(Err(errno)),
        };
        let join = Join::new(objects.len(), {
            let node = Arc::clone(node);
            move |cut: Result<Vec<()>, Errno>| answer(cut.and_then(|_| node.set_size(size)))
        });
        for (object, bytes) in objects {
            let (filesystem, held, join) = (self.clone(), Arc::clone(node), Arc::clone(&join));
            let work = move || filesystem.cut_object(&held, object, bytes);
            self.submit(self.device(Some(object.target)), node, Kind::Other, work, move |result| {
                join.part(result);
            });
        }
    }

    /// Removes the objects of a file that has neither name nor user any more. Nobody waits for it.
    pub(crate) fn destroy(&self, node: &Arc<Node>) {
        let Ok(Some(layout)) = node.layout() else { return };
        for (_, _, object) in layout.objects() {
            let filesystem = self.clone();
            let work = move || {
                let (directory, name) = filesystem.shared().targets[object.target as usize].locate(object.id);
                match fs::unlinkat(directory, name, AtFlags::empty()) {
                    // Nothing was ever written to it.
                    Err(Errno::NOENT) => Ok(()),
                    removed => removed,
                }
            };
            self.submit(self.device(Some(object.target)), node, Kind::Other, work, |_| {});
        }
    }

    fn submit_part<T: Send + 'static>(
        &self,
        node: &Node,
        kind: Kind,
        offset: u64,
        part: Part,
        work: impl FnOnce(&Part) -> Result<T, Errno> + Send + 'static,
        answer: impl FnOnce(Result<(Part, T), Errno>) + Send + 'static,
    ) {
        let first = part.segments.first().map_or(0, |segment| segment.at as u64);
        let (bytes, device) = (part.bytes() as u64, self.device(part.target));
        let work = move || work(&part).map(|done| (part, done));
        device.submit(Job {
            kind,
            bytes,
            inode: node.number,
            offset: offset + first,
            work: boxed(work, answer),
        });
    }

    /// Something that costs a device no bandwidth.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        device: &Device,
        node: &Node,
        kind: Kind,
        work: impl FnOnce() -> Result<T, Errno> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        device.submit(Job { kind, bytes: 0, inode: node.number, offset: 0, work: boxed(work, answer) });
    }

    fn device(&self, target: Option<u32>) -> &Device {
        target.map_or(&self.shared().mds, |target| &self.shared().targets[target as usize].device)
    }

    fn read_segment(&self, node: &Node, segment: &Segment, into: &mut [u8]) -> Result<(), Errno> {
        let Some(object) = segment.object else {
            return read_full(&*node.body()?, into, segment.object_offset);
        };
        match self.object(node, object, false)? {
            Some(open) => read_object(&open, into, segment.object_offset),
            None => {
                into.fill(0);
                Ok(())
            }
        }
    }

    fn write_segment(&self, node: &Node, segment: &Segment, from: &[u8]) -> Result<(), Errno> {
        let Some(object) = segment.object else {
            return write_full(&*node.body()?, from, segment.object_offset);
        };
        let open = self.object(node, object, true)?.ok_or(Errno::IO)?;
        write_object(&open, from, segment.object_offset)
    }

    fn sync_object(&self, node: &Node, object: Object) -> Result<(), Errno> {
        // What was never written has nothing to be made durable.
        let Some(open) = self.object(node, object, false)? else { return Ok(()) };
        fs::fsync(&open.file)?;
        if open.is_new.swap(false, Ordering::AcqRel) {
            let synced = fs::fsync(self.shared().targets[object.target as usize].locate(object.id).0);
            open.is_new.fetch_or(synced.is_err(), Ordering::AcqRel);
            synced?;
        }
        Ok(())
    }

    fn cut_object(&self, node: &Node, object: Object, bytes: u64) -> Result<(), Errno> {
        let Some(open) = self.object(node, object, false)? else { return Ok(()) };
        if fs::fstat(&open.file)?.st_size as u64 > bytes { fs::ftruncate(&open.file, bytes) } else { Ok(()) }
    }

    /// An object's file; without `make`, `None` where nothing was ever written to it.
    fn object(&self, node: &Node, object: Object, make: bool) -> Result<Option<Arc<ObjectFile>>, Errno> {
        if let Some(open) = node.state().objects.get(&object.id) {
            return Ok(Some(Arc::clone(open)));
        }
        // Opened without the lock: another target must not wait for this one.
        let (directory, name) = self.shared().targets[object.target as usize].locate(object.id);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let flags = if make { flags | OFlags::CREATE } else { flags };
        let file = match fs::openat(directory, &name, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::NOENT) if !make => return Ok(None),
            file => file?,
        };
        let direct = match self.shared().direct {
            true => {
                Some(fs::openat(directory, &name, (flags - OFlags::CREATE) | OFlags::DIRECT, Mode::empty())?)
            }
            false => None,
        };
        // Whether this call has made it is not known; syncing its directory once more does no harm.
        let open = Arc::new(ObjectFile { file, direct, is_new: AtomicBool::new(true) });
        let mut state = node.state();
        if state.opens == 0 {
            return Ok(Some(open));
        }
        Ok(Some(Arc::clone(state.objects.entry(object.id).or_insert(open))))
    }
}

fn boxed<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
) -> crate::device::Work {
    Box::new(move |fault| {
        let result = fault.map_or_else(work, Err);
        let status = result.as_ref().map(|_| ()).map_err(|errno| *errno);
        (status, Box::new(move || answer(result)) as Answer)
    })
}

/// What of a range may go past the page cache: whole blocks, from a block on, in memory too.
fn direct_bytes(bytes: &[u8], offset: u64) -> usize {
    let aligned = bytes.as_ptr().addr().is_multiple_of(ALIGNMENT) && offset.is_multiple_of(ALIGNMENT as u64);
    if aligned { bytes.len() - bytes.len() % ALIGNMENT } else { 0 }
}

fn read_object(open: &ObjectFile, into: &mut [u8], offset: u64) -> Result<(), Errno> {
    let whole = direct_bytes(into, offset);
    let done = match &open.direct {
        // Less than was asked for is the end, or a rest that is no block.
        Some(direct) if whole > 0 => {
            rustix::io::retry_on_intr(|| rustix::io::pread(direct, &mut into[..whole], offset))?
        }
        _ => 0,
    };
    read_full(&open.file, &mut into[done..], offset + done as u64)
}

fn write_object(open: &ObjectFile, from: &[u8], offset: u64) -> Result<(), Errno> {
    let whole = direct_bytes(from, offset);
    let done = match &open.direct {
        Some(direct) if whole > 0 => {
            rustix::io::retry_on_intr(|| rustix::io::pwrite(direct, &from[..whole], offset))?
        }
        _ => 0,
    };
    write_full(&open.file, &from[done..], offset + done as u64)
}

/// What lies behind the end of the object, which is within the file, is zeros.
fn read_full(file: &OwnedFd, mut into: &mut [u8], mut offset: u64) -> Result<(), Errno> {
    while !into.is_empty() {
        match rustix::io::pread(file, &mut *into, offset) {
            Ok(0) => {
                into.fill(0);
                return Ok(());
            }
            Ok(count) => {
                into = &mut into[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn write_full(file: &OwnedFd, mut from: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !from.is_empty() {
        match rustix::io::pwrite(file, from, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => {
                from = &from[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
