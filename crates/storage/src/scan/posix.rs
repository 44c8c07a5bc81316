//! The scan of a POSIX file system.
//!
//! One frame for each directory between the SOURCE and the place where the scan stands. Only the deepest
//! [`FRAMES_HELD`] frames hold a descriptor and names that were read ahead; of the others the kernel's position in the
//! directory is remembered, and the scan comes back to them over `..`. So depth costs a small record, a directory's
//! length costs nothing, and no path is ever put together to open something.
//!
//! What must stay true: below a SOURCE only single names are opened, never through a symlink, and a directory that is
//! entered again is the one that was left (device and inode).

use std::collections::HashSet;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use haul_model::limits::DEPTH_MAX;
use haul_model::{Code, EntryId, Failure, Identity, Item, Kind, Laid, Placement, Plan};
use rustix::fs::{self, CWD, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::ahead::{Ahead, Look, Pace, Scouted, Seen};
use super::listing::{Listing, Scratch};
use super::merged::{Merged, Way};
use super::{OWNER_SOCKET, SCAN_BATCH, STATE_NEW, Scan, Scanned, is_unfinished_name, push_name};
use crate::confine::{check_name, look_beneath, open_beneath, source_failure};
use crate::local;
use crate::placing::{Objects, Placing};
use crate::sink::SourceName;
use crate::source::{Directories, Noatime, Place, Status, link_target};

/// Directories that the scan itself keeps open, and those that it is to come to, if the process may have so many.
const FRAMES_HELD: usize = 48;
const SCOUTED_MAX: usize = 64;
/// The deepest one, and the one that holds it.
const FRAMES_HELD_LEAST: usize = 2;
/// A batch ends early once the paths of its errors are this long: one path may have megabytes.
const ERROR_BYTES_SOFT: usize = 1 << 20;

/// Walks the SOURCEs of a [`PosixSource`](crate::source::PosixSource).
pub struct PosixScan {
    directories: Arc<Directories>,
    recursive: bool,
    ids: Arc<AtomicU64>,
    next_root: u32,
    /// From the top directory of the SOURCE down.
    stack: Vec<Frame>,
    /// What is on the stack: a directory that is met again below itself is not entered.
    ancestors: HashSet<Place>,
    scratch: Scratch,
    spare: Vec<Listing>,
    noatime: Noatime,
    unfinished: Arc<AtomicU64>,
    placed: Option<Placed>,
    merged: Option<Merged>,
    pace: Pace,
    /// Whether files keep their numbers on the file system that was met last.
    numbers: Option<(u64, bool)>,
}

/// Which files' layouts are looked at.
struct Placed {
    placing: Arc<Placing>,
    above: u64,
    objects: Objects,
}

struct Frame {
    id: EntryId,
    /// Empty for the top directory.
    name: Box<[u8]>,
    place: Place,
    /// The position behind the name looked at last.
    cookie: u64,
    held: Option<Held>,
    /// What new files in it are striped as, once that was asked.
    default: Option<Option<Box<Plan>>>,
}

struct Held {
    descriptor: Arc<OwnedFd>,
    listing: Listing,
    ahead: Ahead,
}

impl Held {
    fn new(descriptor: OwnedFd, listing: Listing) -> Held {
        Held { descriptor: Arc::new(descriptor), listing, ahead: Ahead::default() }
    }
}

impl Placed {
    /// What is known without a look at the file, and its descriptor if one is needed.
    fn look(&self, at: At<'_>, status: &Status, noatime: &Noatime) -> Result<Option<Laid>, Option<OwnedFd>> {
        let size = status.size();
        if status.kind() != Kind::File || size == 0 {
            return Ok(None);
        }
        if let Ok(told) = self.placing.without_a_look(status.place().device, size, self.objects) {
            return Ok(told);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = noatime.open(None, |extra| at.look(flags | extra)).map_err(|_| None)?;
        let same =
            Status::of(&file).is_ok_and(|now| now.kind() == Kind::File && now.place() == status.place());
        Err(same.then_some(file))
    }

    /// How a file lies that is too small for objects of its own. None if it is not.
    fn small(&self, at: At<'_>, status: &Status, noatime: &Noatime) -> Option<Option<Laid>> {
        if status.size() > self.above {
            return None;
        }
        Some(match self.look(at, status, noatime) {
            Ok(told) => told,
            Err(file) => file.and_then(|file| {
                self.placing.laid(file.as_fd(), status.place().device, status.size(), self.objects)
            }),
        })
    }
}

/// Where something is looked up.
#[derive(Clone, Copy)]
enum At<'a> {
    /// A SOURCE as it was typed; it may be followed.
    Root { path: &'a [u8], follow: bool },
    /// A checked name in a directory.
    Below { directory: BorrowedFd<'a>, name: &'a CStr },
}

/// What became of something that looked like a directory.
enum Entered {
    Frame(Frame),
    /// It was told what there is to tell.
    Told,
    /// Something else stands there by now.
    OtherKind,
}

/// Why there is no descriptor of a directory.
enum Closed {
    /// It is none any more.
    OtherKind,
    Failed(Failure),
    /// It was open, and nothing more can be learned of it.
    Lost(Errno),
}

/// Why the scan stopped reading a directory.
enum Stop {
    Full,
    Subdirectory(Frame),
    End,
    Failed(Errno),
}

impl PosixScan {
    pub(crate) fn new(directories: Arc<Directories>, recursive: bool, ids: Arc<AtomicU64>) -> Self {
        PosixScan {
            directories,
            recursive,
            ids,
            next_root: 0,
            stack: Vec::new(),
            ancestors: HashSet::new(),
            scratch: Scratch::new(),
            spare: Vec::new(),
            noatime: Noatime::new(),
            unfinished: Arc::default(),
            placed: None,
            merged: None,
            pace: Pace::default(),
            numbers: None,
        }
    }

    /// Files are told with how they lie, in objects of at most `object_bytes`; those above this size with what they are striped
    /// as.
    pub fn placed(mut self, placing: Arc<Placing>, above: u64, object_bytes: u32) -> PosixScan {
        self.placed = Some(Placed { placing, above, objects: Objects::AtMost(object_bytes) });
        self
    }

    /// Unfinished files of haul, which are passed over, are counted here.
    pub fn counting_unfinished(mut self, unfinished: Arc<AtomicU64>) -> PosixScan {
        self.unfinished = unfinished;
        self
    }

    /// SOURCEs have these names at the destination: of what two of them hold under one name only the first is told.
    pub fn named(mut self, names: &[SourceName]) -> PosixScan {
        self.merged = Merged::new(names);
        self
    }

    /// Begins the next SOURCE. False after the last one.
    fn begin_root(&mut self, batch: &mut Batch<'_>) -> bool {
        let index = self.next_root;
        let directories = Arc::clone(&self.directories);
        let Some(root) = directories.root(index) else { return false };
        self.next_root += 1;
        let at = At::Root { path: &root.path, follow: directories.locate_root(root).follow };
        let parent = EntryId::root(index);
        match at.status() {
            Err(errno) => self.tell_error(b"", root_failure(errno), batch),
            Ok(status) if status.kind() != Kind::Directory => {
                self.tell(at, &status, None, parent, b"", batch);
            }
            Ok(_) if !self.recursive => self.tell_error(b"", Code::SourceDirectory.into(), batch),
            Ok(_) => match self.enter(at, parent, b"", None, batch) {
                Entered::Frame(frame) => self.push(frame),
                Entered::Told => {}
                Entered::OtherKind => self.tell_error(b"", Code::SourceChanged.into(), batch),
            },
        }
        true
    }

    /// Goes on in the deepest directory.
    fn advance(&mut self, batch: &mut Batch<'_>) {
        let mut held = match self.take_held() {
            Ok(held) => held,
            Err(failure) => {
                self.tell_error(b"", failure, batch);
                return self.leave(None, batch);
            }
        };
        match self.list(&mut held, batch) {
            Stop::Full => self.put_back(held),
            Stop::Subdirectory(frame) => {
                self.put_back(held);
                self.push(frame);
            }
            Stop::End => {
                if self.hides_names(&held) {
                    let failure = Failure::os(Code::SourceRead, Errno::NOTCONN.raw_os_error());
                    self.tell_error(b"", failure, batch);
                }
                self.leave(Some(held), batch);
            }
            Stop::Failed(errno) => {
                self.tell_error(b"", source_failure(errno), batch);
                self.leave(Some(held), batch);
            }
        }
    }

    fn list(&mut self, held: &mut Held, batch: &mut Batch<'_>) -> Stop {
        let Some(top) = self.stack.len().checked_sub(1) else { return Stop::End };
        let parent = self.stack[top].id;
        while !batch.is_full() {
            let directory = held.descriptor.as_fd();
            let (placed, noatime, stack) = (self.placed.as_ref(), &self.noatime, &self.stack);
            let most = SCOUTED_MAX.min(self.directories.descriptors_max());
            let room = || most.saturating_sub(scouted(stack));
            held.ahead.fill(&held.listing, directory, &mut self.pace, room, |directory, name, file_type| {
                let at = At::Below { directory, name };
                match file_type {
                    FileType::Directory => scout(at, placed, noatime)
                        .map_or(Seen::Closed, |seen| Seen::Directory(Box::new(seen))),
                    _ => Seen::Name(look(at, placed, noatime)),
                }
            });
            let Some((name, file_type, cookie)) = held.listing.next() else {
                match held.listing.refill(directory, &mut self.scratch) {
                    Ok(true) => continue,
                    Ok(false) => return Stop::End,
                    Err(errno) => return Stop::Failed(errno),
                }
            };
            self.stack[top].cookie = cookie;
            let seen = held.ahead.take(cookie);
            if let Some(frame) = self.visit(directory, parent, (name, file_type), seen, batch) {
                return Stop::Subdirectory(frame);
            }
        }
        Stop::Full
    }

    /// Tells what stands under one name. A directory that could be entered is told and returned.
    fn visit(
        &mut self,
        directory: BorrowedFd<'_>,
        parent: EntryId,
        (name, file_type): (&CStr, FileType),
        seen: Option<Seen>,
        batch: &mut Batch<'_>,
    ) -> Option<Frame> {
        let at = At::Below { directory, name };
        let name = name.to_bytes();
        if let Err(failure) = check_name(name) {
            self.tell_error(name, failure, batch);
            return None;
        }
        let (seen, scouted) = match seen {
            Some(Seen::Name(seen)) => (Some(seen), None),
            Some(Seen::Directory(scouted)) => (None, Some(scouted)),
            Some(Seen::Closed) | None => (None, None),
        };
        if file_type == FileType::Directory {
            match self.enter(at, parent, name, scouted, batch) {
                Entered::Frame(frame) => return Some(frame),
                Entered::Told => return None,
                Entered::OtherKind => {}
            }
        }
        // It may be gone before it is looked at.
        if STATE_NEW.iter().any(|new| name == new.as_bytes()) {
            self.unfinished.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let Look { status, laid } = seen.unwrap_or_else(|| {
            let started = Instant::now();
            let seen = look(at, self.placed.as_ref(), &self.noatime);
            self.pace.took(1, started.elapsed());
            seen
        });
        let status = match status {
            Ok(status) => status,
            Err(errno) => {
                self.tell_error(name, source_failure(errno), batch);
                return None;
            }
        };
        match status.kind() {
            // The directory did not know the type, or it has changed twice since.
            Kind::Directory => match self.enter(at, parent, name, None, batch) {
                Entered::Frame(frame) => return Some(frame),
                Entered::Told => {}
                Entered::OtherKind => self.tell_error(name, Code::SourceChanged.into(), batch),
            },
            Kind::File | Kind::Symlink if is_unfinished_name(name) => {
                self.unfinished.fetch_add(1, Ordering::Relaxed);
            }
            Kind::Other if name == OWNER_SOCKET.as_bytes() => {}
            _ => {
                self.tell(at, &status, laid, parent, name, batch);
            }
        }
        None
    }

    /// Opens a directory, if it is not open yet, and tells it. What is told is of the descriptor, so it is what will be listed.
    fn enter(
        &mut self,
        at: At<'_>,
        parent: EntryId,
        name: &[u8],
        scouted: Option<Box<Scouted>>,
        batch: &mut Batch<'_>,
    ) -> Entered {
        if self.stack.len() >= DEPTH_MAX {
            self.tell_error(name, too_deep(), batch);
            return Entered::Told;
        }
        let scouted = match scouted.map_or_else(|| self.open(at), |scouted| Ok(*scouted)) {
            Ok(scouted) => scouted,
            Err(Closed::OtherKind) => return Entered::OtherKind,
            Err(Closed::Failed(failure)) => return self.tell_closed(at, parent, name, failure, batch),
            Err(Closed::Lost(errno)) => {
                self.tell_error(name, source_failure(errno), batch);
                return Entered::Told;
            }
        };
        let Scouted { descriptor, status, listing, ahead } = scouted;
        let place = status.place();
        if self.ancestors.contains(&place) {
            self.tell_error(name, too_deep(), batch);
            return Entered::Told;
        }
        let Some(id) = self.tell(at, &status, None, parent, name, batch) else { return Entered::Told };
        let descriptor = Arc::new(descriptor);
        self.directories.enter(id, parent, name, place, Some(Arc::clone(&descriptor)));
        let held = Some(Held { descriptor, listing, ahead });
        Entered::Frame(Frame { id, name: name.into(), place, cookie: 0, held, default: None })
    }

    fn open(&mut self, at: At<'_>) -> Result<Scouted, Closed> {
        let started = Instant::now();
        let opened = self.directories.retry_without_cache(|| open_directory(at, &self.noatime));
        let descriptor = match opened {
            Ok(descriptor) => descriptor,
            Err(failure) if failure.errno == Errno::NOTDIR.raw_os_error() => return Err(Closed::OtherKind),
            Err(failure) => return Err(Closed::Failed(failure)),
        };
        let status = Status::of(&descriptor).map_err(Closed::Lost)?;
        self.pace.took(1, started.elapsed());
        let listing = self.spare.pop().unwrap_or_default();
        Ok(Scouted { descriptor, status, listing, ahead: Ahead::default() })
    }

    /// A directory that cannot be listed: it will exist at the sink, empty, and is named.
    fn tell_closed(
        &mut self,
        at: At<'_>,
        parent: EntryId,
        name: &[u8],
        failure: Failure,
        batch: &mut Batch<'_>,
    ) -> Entered {
        match at.status() {
            Ok(status) if status.kind() != Kind::Directory => return Entered::OtherKind,
            Ok(status) => {
                if let Some(id) = self.tell(at, &status, None, parent, name, batch) {
                    self.directories.enter(id, parent, name, status.place(), None);
                    self.tell_error(name, failure, batch);
                    batch.push(Item::End(id));
                }
            }
            Err(errno) => self.tell_error(name, source_failure(errno), batch),
        }
        Entered::Told
    }

    fn tell(
        &mut self,
        at: At<'_>,
        status: &Status,
        laid: Option<Option<Laid>>,
        parent: EntryId,
        name: &[u8],
        batch: &mut Batch<'_>,
    ) -> Option<EntryId> {
        let way = if status.kind() == Kind::Directory { Way::Free } else { self.way(name, status) };
        // An earlier SOURCE has told of it. Of a SOURCE itself the other end has to hear.
        if way == Way::Same && matches!(at, At::Below { .. }) && self.numbers_stay(at, status) {
            return None;
        }
        let entry = status.entry(EntryId(0), parent, name).and_then(|mut entry| {
            if entry.kind != Kind::Directory && way == Way::Other {
                return Err(Code::SourceTwice.into());
            }
            // Without a change time of its own the number is all that tells it from another one of its size and time.
            let Identity { mtime, ctime, .. } = entry.identity;
            if entry.kind == Kind::File && ctime != mtime && !self.numbers_stay(at, status) {
                entry.identity.inode = 0;
            }
            if entry.kind == Kind::Symlink {
                entry.link_target = at.link_target()?;
            }
            Ok(entry)
        });
        match entry {
            Ok(mut entry) => {
                let id = EntryId(self.ids.fetch_add(1, Ordering::Relaxed));
                entry.id = id;
                let laid = match laid {
                    Some(laid) => laid.map(|laid| (laid, None)),
                    None => self.lay(at, status),
                };
                batch.push(match laid {
                    Some((laid, stripes)) => Item::Laid(entry, Box::new(laid), stripes),
                    None => Item::Entry(entry),
                });
                Some(id)
            }
            Err(failure) => {
                self.tell_error(name, failure, batch);
                None
            }
        }
    }

    /// Does a file have the same number for as long as it is there?
    fn numbers_stay(&mut self, at: At<'_>, status: &Status) -> bool {
        let device = status.place().device;
        if let Some((_, stay)) = self.numbers.filter(|(known, _)| *known == device) {
            return stay;
        }
        // The file's own: it may be mounted there alone.
        let stay = at.open(OFlags::PATH).and_then(local::numbers_stay);
        // Compared in vain a number costs a resend, not compared it can cost the data.
        let stay = stay.unwrap_or(true);
        self.numbers = Some((device, stay));
        stay
    }

    /// How a file lies, and what it is striped as if it is large enough for objects of its own and that was chosen for it. What
    /// cannot be found out is not told.
    fn lay(&mut self, at: At<'_>, status: &Status) -> Option<(Laid, Option<Box<Plan>>)> {
        let placed = self.placed.as_ref()?;
        if let Some(small) = placed.small(at, status, &self.noatime) {
            return small.map(|laid| (laid, None));
        }
        let file = match placed.look(at, status, &self.noatime) {
            Ok(told) => return told.map(|laid| (laid, None)),
            Err(file) => file?,
        };
        let (Placed { placing, objects, .. }, device) = (placed, status.place().device);
        let laid = placing.laid(file.as_fd(), device, status.size(), *objects);
        let mut chosen = || {
            placing.layouts().chosen_stripes(file.as_fd(), device, || match at {
                At::Root { .. } => placing.layouts().default_beside(file.as_fd(), device),
                At::Below { directory, .. } => {
                    // All files of a directory have the same.
                    let frame = self.stack.last_mut()?;
                    let ask = || placing.layouts().plan_of(directory, device).map(|(plan, _)| Box::new(plan));
                    frame.default.get_or_insert_with(ask).as_deref().cloned()
                }
            })
        };
        let stripes = chosen().map(Box::new);
        match (laid, stripes, objects) {
            (Some(laid), stripes, _) => Some((laid, stripes)),
            (None, stripes @ Some(_), Objects::AtMost(bytes) | Objects::Of(bytes)) => {
                Some((Laid { object_bytes: *bytes, placement: Placement::default() }, stripes))
            }
            (None, None, _) => None,
        }
    }

    /// The deepest directory has been listed, without an error, and yet not all of it was told.
    fn hides_names(&self, held: &Held) -> bool {
        let (Some(placed), Some(frame)) = (&self.placed, self.stack.last()) else { return false };
        placed.placing.layouts().hides_names(held.descriptor.as_fd(), frame.place.device)
    }

    /// `name`: in the deepest directory; empty for that directory itself, or for the SOURCE.
    fn tell_error(&self, name: &[u8], failure: Failure, batch: &mut Batch<'_>) {
        let root = self.next_root.checked_sub(1).and_then(|index| self.directories.root(index));
        let mut path = root.map(|root| root.label().to_vec()).unwrap_or_default();
        self.below(name).for_each(|name| push_name(&mut path, name));
        batch.push_error(path, failure);
    }

    /// The names that lead from the SOURCE to this one in the deepest directory.
    fn below<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + Clone {
        self.stack.iter().map(|frame| &*frame.name).chain([name]).filter(|name| !name.is_empty())
    }

    fn way(&self, name: &[u8], status: &Status) -> Way {
        let (Some(merged), Some(source)) = (&self.merged, self.next_root.checked_sub(1)) else {
            return Way::Free;
        };
        merged.way(&self.directories, source, self.below(name), status.place())
    }

    fn push(&mut self, frame: Frame) {
        self.ancestors.insert(frame.place);
        self.stack.push(frame);
        let most = FRAMES_HELD.min(self.directories.descriptors_max()).max(FRAMES_HELD_LEAST);
        let above = self.stack.len().checked_sub(most + 1).and_then(|index| self.stack.get_mut(index));
        if let Some(held) = above.and_then(|frame| frame.held.take()) {
            self.recycle(held.listing);
        }
    }

    /// The deepest directory has ended. `held` is what the scan had of it, if anything.
    fn leave(&mut self, held: Option<Held>, batch: &mut Batch<'_>) {
        let Some(frame) = self.stack.pop() else { return };
        self.ancestors.remove(&frame.place);
        batch.push(Item::End(frame.id));
        let Some(held) = held else { return };
        if let Some(parent) = self.stack.last_mut()
            && parent.held.is_none()
        {
            parent.held = climb(&self.directories, held, parent);
        } else {
            self.recycle(held.listing);
        }
    }

    /// The deepest directory's descriptor and names. Comes down from an ancestor if there is no other way.
    fn take_held(&mut self) -> Result<Held, Failure> {
        let frame = self.stack.last_mut().ok_or(Failure::new(Code::Internal))?;
        if let Some(held) = frame.held.take() {
            return Ok(held);
        }
        // Not a copy of the table's descriptor: two users would move one position.
        let anchor = self.directories.hold(frame.id)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = self
            .directories
            .retry_without_cache(|| retry_on_intr(|| fs::openat(&anchor, c".", flags, Mode::empty())))?;
        let mut held = Held::new(descriptor, self.spare.pop().unwrap_or_default());
        held.listing.resume(held.descriptor.as_fd(), frame.cookie).map_err(source_failure)?;
        Ok(held)
    }

    fn put_back(&mut self, held: Held) {
        if let Some(frame) = self.stack.last_mut() {
            frame.held = Some(held);
        }
    }

    fn recycle(&mut self, mut listing: Listing) {
        if self.spare.len() < FRAMES_HELD {
            listing.clear();
            self.spare.push(listing);
        }
    }
}

impl Scan for PosixScan {
    fn next(&mut self, out: &mut Vec<Scanned>) -> bool {
        let mut batch = Batch { full: out.len() + SCAN_BATCH, before: out.len(), out, error_bytes: 0 };
        while !batch.is_full() {
            if !self.stack.is_empty() {
                self.advance(&mut batch);
            } else if !self.begin_root(&mut batch) {
                break;
            }
        }
        batch.out.len() > batch.before
    }
}

/// What there is to know of a name. Of what may be a directory, or a large file, the rest is seen to when it is told.
fn look(at: At<'_>, placed: Option<&Placed>, noatime: &Noatime) -> Look {
    let status = at.status();
    let laid = match (&status, placed) {
        (Ok(status), Some(placed)) => placed.small(at, status, noatime),
        _ => None,
    };
    Look { status, laid }
}

fn open_directory(at: At<'_>, noatime: &Noatime) -> Result<OwnedFd, Errno> {
    noatime.open(None, |extra| at.open(OFlags::RDONLY | OFlags::DIRECTORY | extra))
}

/// Opens a directory that the scan is to come to, and looks at the first of what it holds.
fn scout(at: At<'_>, placed: Option<&Placed>, noatime: &Noatime) -> Option<Scouted> {
    let descriptor = open_directory(at, noatime).ok()?;
    let status = Status::of(&descriptor).ok()?;
    let (directory, mut listing) = (descriptor.as_fd(), Listing::default());
    listing.refill(directory, &mut Scratch::new()).ok()?;
    let ahead = Ahead::of_first(&listing, |name| look(At::Below { directory, name }, placed, noatime));
    Some(Scouted { descriptor, status, listing, ahead })
}

/// Directories that are open and that the scan has not come to.
fn scouted(stack: &[Frame]) -> usize {
    stack.iter().filter_map(|frame| frame.held.as_ref()).map(|held| held.ahead.directories()).sum()
}

/// Over `..` to the directory above, if that is still where the scan came from.
fn climb(directories: &Directories, child: Held, parent: &Frame) -> Option<Held> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let descriptor = directories
        .retry_without_cache(|| retry_on_intr(|| fs::openat(&child.descriptor, c"..", flags, Mode::empty())))
        .ok()?;
    // As long as a directory is open the kernel remembers those above it: they have the numbers that they had.
    if Status::of(&descriptor).ok()?.place() != parent.place {
        return None;
    }
    let mut listing = child.listing;
    listing.resume(descriptor.as_fd(), parent.cookie).ok()?;
    Some(Held::new(descriptor, listing))
}

fn too_deep() -> Failure {
    Failure::os(Code::SourceRead, Errno::LOOP.raw_os_error())
}

/// Of a SOURCE: what the user named was never there.
fn root_failure(errno: Errno) -> Failure {
    match errno {
        Errno::NOENT | Errno::NOTDIR => Failure::os(Code::SourceMissing, errno.raw_os_error()),
        Errno::LOOP => Failure::os(Code::SourceRead, errno.raw_os_error()),
        other => source_failure(other),
    }
}

impl At<'_> {
    fn status(self) -> Result<Status, Errno> {
        retry_on_intr(|| match self {
            At::Root { path, follow } => Status::of_name(CWD, path, follow),
            At::Below { directory, name } => Status::of_name(directory, name, false),
        })
    }

    fn open(self, flags: OFlags) -> Result<OwnedFd, Errno> {
        match self {
            At::Root { path, follow } => {
                let nofollow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
                retry_on_intr(|| fs::openat(CWD, path, flags | nofollow | OFlags::CLOEXEC, Mode::empty()))
            }
            At::Below { directory, name } => {
                match open_beneath(directory, name.to_bytes(), flags, Mode::empty()) {
                    // openat2's word for a symlink, where openat says that it is no directory.
                    Err(Errno::LOOP) => Err(Errno::NOTDIR),
                    other => other,
                }
            }
        }
    }

    /// The same, where a lease is not worth to be waited for: how a file lies is advice, and the scan goes on.
    fn look(self, flags: OFlags) -> Result<OwnedFd, Errno> {
        match self {
            At::Root { .. } => self.open(flags),
            At::Below { directory, name } => look_beneath(directory, name.to_bytes(), flags),
        }
    }

    fn link_target(self) -> Result<Box<[u8]>, Failure> {
        match self {
            At::Root { path, .. } => link_target(CWD, path),
            At::Below { directory, name } => link_target(directory, name),
        }
    }
}

/// What one call of [`Scan::next`] appends.
struct Batch<'a> {
    out: &'a mut Vec<Scanned>,
    before: usize,
    full: usize,
    error_bytes: usize,
}

impl Batch<'_> {
    fn is_full(&self) -> bool {
        self.out.len() >= self.full || self.error_bytes >= ERROR_BYTES_SOFT
    }

    fn push(&mut self, item: Item) {
        self.out.push(Scanned::Item(item));
    }

    fn push_error(&mut self, path: Vec<u8>, failure: Failure) {
        self.error_bytes += path.len();
        self.out.push(Scanned::Error { path, failure });
    }
}

#[cfg(test)]
mod tests;
