//! Which targets hold a file, asked of whatever file system it is on.
//!
//! [`Layouts::of`] answers for every file: by the user's layout file, else by the first source that knows the file
//! system, else one target for the mount. It never fails: a layout is advice, and a strange one may cost speed, no more.
//!
//! What must stay true: attributes are bytes that somebody else wrote, so no length, count or number in them is
//! believed before it was checked; memory is bounded whatever they say ([`Targets`]); asking costs a file one system
//! call or two, and files on local disks none. (A Ceph cluster is asked by programs, once for a pool, in bounded time.)
//!
//! | module | part |
//! |---|---|
//! | `lustre`, `lov` | Lustre and what answers like it; the binary attribute |
//! | `gluster`, `ceph` | GlusterFS bricks, CephFS objects |
//! | `local` | disks below partitions, md, device mapper, btrfs |
//! | `rules` | the user's layout file |
//! | `mounts` | what is mounted; one target for each mount |
//! | `targets` | numbers and names of targets |
//! | `stripe`, `create`, `pools` | how new files are striped |

mod attributes;
mod ceph;
mod create;
mod gluster;
mod local;
pub mod lov;
mod lustre;
mod mounts;
mod pools;
mod rules;
pub mod stripe;
mod targets;

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use haul_model::{Layout, TargetId};
use rustix::fs::{self, Mode, OFlags};

pub use attributes::{Attributes, Status};
pub use ceph::{Ceph, CephPrograms};
pub use create::{Outcome, create};
pub use gluster::Gluster;
pub(crate) use gluster::is_gluster;
pub use local::Local;
pub use lustre::Lustre;
pub(crate) use mounts::of as mount_of;
pub use mounts::{Mount, PerMount, unescaped};
pub use rules::{LayoutFile, LayoutFileError};
pub use targets::{Domain, TARGETS_MAX, Target, Targets};

/// Who knew the layout.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Lustre, or what answers `lustre.lov`.
    Lustre,
    /// GlusterFS.
    Gluster,
    /// CephFS.
    Ceph,
    /// Disks of this host.
    Local,
    /// Nobody: one target for the mount.
    Mount,
    /// The user's layout file.
    File,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Lustre => "lustre",
            Kind::Gluster => "gluster",
            Kind::Ceph => "ceph",
            Kind::Local => "local",
            Kind::Mount => "mount",
            Kind::File => "file",
        })
    }
}

/// What is known of a file system before a file of it is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileSystem {
    /// `st_dev`.
    pub device: u64,
    /// `f_type`.
    pub magic: u64,
    /// Where it is mounted, and from what.
    pub mount: Mount,
    /// Of btrfs: its id. One file system has many devices, and each subvolume an `st_dev` of its own.
    pub btrfs: Option<[u8; 16]>,
}

/// A file or directory whose layout is wanted.
pub struct Subject<'a> {
    /// What it is on.
    pub file_system: &'a FileSystem,
    /// Its extended attributes.
    pub attributes: &'a dyn Attributes,
    /// Its absolute path, where somebody wants to know.
    pub path: Option<&'a [u8]>,
    /// The file system is known to be of the source's kind: that a file has no layout means something.
    pub known: bool,
}

/// What a source says of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// This holds it.
    Found(Layout),
    /// Not for this file.
    Unknown,
    /// Not for any file on this device.
    Never,
}

/// Something that knows layouts of one kind of file system.
pub trait LayoutSource: Send + Sync {
    /// Of which kind.
    fn kind(&self) -> Kind;

    /// Which targets hold a file. Must not fail or panic whatever the attributes are.
    fn layout(&self, file: &Subject<'_>, targets: &Targets) -> Answer;

    /// Whether a listing of a directory lacks names because what holds them is down; `None` where nobody knows. Most
    /// file systems fail instead.
    fn hides_names(&self, _directory: &Subject<'_>) -> Option<bool> {
        None
    }

    /// How a file was striped, or how files that are made in a directory are, if the file system says so.
    fn plan(&self, _thing: &Subject<'_>) -> Option<stripe::Plan> {
        None
    }
}

/// What layouts are made from.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the user says.
    pub layout_file: Option<LayoutFile>,
    /// Where sysfs is.
    pub sys: PathBuf,
    /// Where the mounts of this process are listed.
    pub mountinfo: PathBuf,
    /// What asks a Ceph cluster.
    pub ceph: CephPrograms,
    /// Whatever takes a moment to find out is found out for the first file already, and not only where it may be worth it.
    pub eager: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            layout_file: None,
            sys: "/sys".into(),
            mountinfo: "/proc/self/mountinfo".into(),
            ceph: CephPrograms::default(),
            eager: false,
        }
    }
}

/// A layout and who knew it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// What holds which bytes.
    pub layout: Layout,
    /// Who knew it.
    pub kind: Kind,
}

/// Layouts of all files that one end of a transfer touches. Shared between threads.
pub struct Layouts {
    mountinfo: PathBuf,
    targets: Targets,
    rules: Option<LayoutFile>,
    /// In the order in which a FUSE mount is asked.
    asked: [Box<dyn LayoutSource>; 3],
    /// What they say holds for a whole device.
    fixed: [Box<dyn LayoutSource>; 2],
    devices: Mutex<HashMap<u64, Arc<Device>>>,
}

impl fmt::Debug for Layouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layouts").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// `f_type`, from linux/magic.h and the file systems' own headers.
const LUSTRE_MAGIC: u64 = 0x0BD0_0BD0;
const CEPH_MAGIC: u64 = 0x00C3_6400;
const FUSE_MAGIC: u64 = 0x6573_5546;

/// A device that never answered is not asked for ever: each question costs a message to a FUSE server.
const QUESTIONS_MAX: u32 = 256;
/// Snapshots of btrfs are devices of their own, any number of them; beyond this they are looked up anew.
const DEVICES_MAX: usize = 4096;

/// What is remembered of one `st_dev`.
struct Device {
    file_system: FileSystem,
    /// Which of [`Layouts::asked`] may answer, and how often each was asked in vain.
    may_answer: [bool; 3],
    in_vain: [AtomicU32; 3],
    /// How often it was asked in vain whether a listing lacks names.
    listings_in_vain: AtomicU32,
    /// Which one did, or does because of the kind of file system.
    answers: OnceLock<usize>,
    /// What holds for all files that none of them knows.
    other: Found,
}

impl Device {
    /// Whether the source at this place of [`Layouts::asked`] may know something.
    fn is_asked(&self, place: usize) -> bool {
        match self.answers.get() {
            Some(answers) => *answers == place,
            None => self.may_answer[place] && self.in_vain[place].load(Ordering::Relaxed) < QUESTIONS_MAX,
        }
    }
}

impl Layouts {
    /// Nothing is looked up yet.
    pub fn new(options: Options) -> Layouts {
        Layouts {
            mountinfo: options.mountinfo,
            targets: Targets::default(),
            rules: options.layout_file,
            asked: [Box::new(Lustre), Box::new(Gluster), Box::new(Ceph::new(options.ceph, options.eager))],
            fixed: [Box::new(Local::new(options.sys)), Box::new(PerMount)],
            devices: Mutex::new(HashMap::new()),
        }
    }

    /// The layout of an open regular file with this `st_dev`.
    pub fn of(&self, file: BorrowedFd<'_>, device: u64) -> Layout {
        self.find(file, device).layout
    }

    /// The same, and who knew it.
    pub fn find(&self, file: BorrowedFd<'_>, device: u64) -> Found {
        let device = self.device(file, device);
        if let Some(rules) = &self.rules {
            let path = path_of(file);
            let path = path.as_deref().map(CStr::to_bytes);
            let subject = Subject { file_system: &device.file_system, attributes: &file, path, known: false };
            if let Answer::Found(layout) = rules.layout(&subject, &self.targets) {
                return Found { layout, kind: rules.kind() };
            }
        }
        for (place, source) in self.asked.iter().enumerate() {
            let in_vain = &device.in_vain[place];
            if !device.is_asked(place) {
                continue;
            }
            let known = device.answers.get().is_some();
            let subject = Subject { file_system: &device.file_system, attributes: &file, path: None, known };
            match source.layout(&subject, &self.targets) {
                Answer::Found(layout) => {
                    let _ = device.answers.set(place);
                    return Found { layout, kind: source.kind() };
                }
                Answer::Unknown => {
                    in_vain.fetch_add(u32::from(!known), Ordering::Relaxed);
                }
                Answer::Never => in_vain.store(QUESTIONS_MAX, Ordering::Relaxed),
            }
        }
        device.other.clone()
    }

    /// What holds for all files of a device, where it is known and no file needs to be asked.
    pub fn uniform(&self, device: u64) -> Option<Found> {
        let known = self.devices.lock().unwrap_or_else(PoisonError::into_inner).get(&device).cloned()?;
        let asked = |place: usize| {
            known.may_answer[place] && known.in_vain[place].load(Ordering::Relaxed) < QUESTIONS_MAX
        };
        let varies =
            self.rules.is_some() || known.answers.get().is_some() || (0..self.asked.len()).any(asked);
        (!varies).then(|| known.other.clone())
    }

    /// Whether a listing of an open directory, just made, lacks names because what holds them is down.
    pub fn hides_names(&self, directory: BorrowedFd<'_>, device: u64) -> bool {
        let device = self.device(directory, device);
        let known = device.answers.get().is_some();
        if !known && device.listings_in_vain.load(Ordering::Relaxed) >= QUESTIONS_MAX {
            return false;
        }
        for place in (0..self.asked.len()).filter(|place| device.is_asked(*place)) {
            let subject =
                Subject { file_system: &device.file_system, attributes: &directory, path: None, known };
            if let Some(hides) = self.asked[place].hides_names(&subject) {
                let _ = device.answers.set(place);
                return hides;
            }
        }
        device.listings_in_vain.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Looks a device up by any open file or directory of it.
    pub fn meet(&self, file: BorrowedFd<'_>, device: u64) {
        self.device(file, device);
    }

    /// Whether files of a device can be told how to be striped, as far as that is known.
    pub fn may_be_striped(&self, device: u64) -> bool {
        let known = self.devices.lock().unwrap_or_else(PoisonError::into_inner).get(&device).cloned();
        known.is_some_and(|known| known.is_asked(0))
    }

    /// How an open file was striped, or new files in an open directory are, if the file system says so: what a copy of
    /// the file may be striped as.
    pub fn plan_of(&self, thing: BorrowedFd<'_>, device: u64) -> Option<(stripe::Plan, Kind)> {
        let device = self.device(thing, device);
        let file_system = &device.file_system;
        let subject = Subject { file_system, attributes: &thing, path: None, known: false };
        let may =
            |place: &usize| device.answers.get().map_or(device.may_answer[*place], |known| known == place);
        (0..self.asked.len()).filter(may).find_map(|place| {
            let source = &self.asked[place];
            Some((source.plan(&subject)?, source.kind()))
        })
    }

    /// What an open file on Lustre was striped as, if that was chosen for it: `default` says what a new file beside it would
    /// get.
    pub fn chosen_stripes(
        &self,
        file: BorrowedFd<'_>,
        device: u64,
        default: impl FnOnce() -> Option<stripe::Plan>,
    ) -> Option<stripe::Plan> {
        if !self.may_be_striped(device) {
            return None;
        }
        let (plan, _) = self.plan_of(file, device).filter(|(_, kind)| *kind == Kind::Lustre)?;
        plan.is_chosen(default().as_ref()).then_some(plan)
    }

    /// What new files in the directory of an open file get, if it says so: of a file that was found by its path alone.
    pub fn default_beside(&self, file: BorrowedFd<'_>, device: u64) -> Option<stripe::Plan> {
        let path = path_of(file)?;
        let directory = Path::new(OsStr::from_bytes(path.to_bytes())).parent()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let held = fs::open(directory, flags, Mode::empty()).ok()?;
        Some(self.plan_of(held.as_fd(), device)?.0)
    }

    /// A plan as the file system of a device can fulfil it: without its pools if one of them is known not to be there.
    pub fn without_missing_pools(&self, device: u64, plan: stripe::Plan) -> (stripe::Plan, bool) {
        let known = self.devices.lock().unwrap_or_else(PoisonError::into_inner).get(&device).cloned();
        let Some(known) = known else { return (plan, false) };
        let source = &known.file_system.mount.source;
        let places = pools::usual_places();
        let missing = plan.pools().any(|pool| pools::exists(&places, source, pool.as_str()) == Some(false));
        if missing { (plan.without_pools(), true) } else { (plan, false) }
    }

    /// The number of several targets of a device that objects are spread over.
    pub fn set(&self, device: u64, members: &[TargetId]) -> TargetId {
        self.targets.set(Domain::Device(device), members)
    }

    /// A target of a device that some layout has named.
    #[cfg(test)]
    pub(crate) fn named(&self, device: u64, name: &str) -> TargetId {
        self.targets.id(Domain::Device(device), name)
    }

    /// The name of a target.
    pub fn describe(&self, target: TargetId) -> Arc<str> {
        self.targets.describe(target)
    }

    /// All targets that any layout named so far.
    pub fn targets(&self) -> Vec<Target> {
        self.targets.all()
    }

    /// Those that were first named since there were `from` of them.
    pub fn targets_since(&self, from: usize) -> Vec<Target> {
        self.targets.since(from)
    }

    /// Where the file system of a target is mounted; `None` for those of the host, and for what was long ago.
    pub fn mount_of(&self, target: &Target) -> Option<Mount> {
        let Domain::Device(number) = target.domain else { return None };
        let known = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&number).map(|device| device.file_system.mount.clone())
    }

    fn device(&self, file: BorrowedFd<'_>, number: u64) -> Arc<Device> {
        let known = || self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = known().get(&number) {
            return Arc::clone(device);
        }
        let device = Arc::new(self.look_up(file, number));
        let mut known = known();
        if known.len() >= DEVICES_MAX {
            known.clear();
        }
        Arc::clone(known.entry(number).or_insert(device))
    }

    fn look_up(&self, file: BorrowedFd<'_>, device: u64) -> Device {
        #[allow(clippy::unnecessary_cast)]
        let magic = fs::fstatfs(file).map_or(0, |found| found.f_type as u64 & 0xFFFF_FFFF);
        let file_system = FileSystem {
            device,
            magic,
            mount: mounts::of(file, device, &self.mountinfo),
            btrfs: local::btrfs_id(file, magic),
        };
        self.remembered(file, file_system)
    }

    fn remembered(&self, file: BorrowedFd<'_>, file_system: FileSystem) -> Device {
        let (may_answer, answers) = match file_system.magic {
            LUSTRE_MAGIC => ([true, false, false], Some(0)),
            CEPH_MAGIC => ([false, false, true], Some(2)),
            FUSE_MAGIC => ([true; 3], None),
            _ => ([false; 3], None),
        };
        let subject = Subject { file_system: &file_system, attributes: &file, path: None, known: true };
        let other = self.fixed.iter().find_map(|source| match source.layout(&subject, &self.targets) {
            Answer::Found(layout) => Some(Found { layout, kind: source.kind() }),
            _ => None,
        });
        Device {
            other: other.unwrap_or(Found { layout: Layout::none(), kind: Kind::Mount }),
            file_system,
            may_answer,
            in_vain: [const { AtomicU32::new(0) }; 3],
            listings_in_vain: AtomicU32::new(0),
            answers: answers.map(OnceLock::from).unwrap_or_default(),
        }
    }
}

/// Where an open file is, as far as the kernel still knows.
fn path_of(file: BorrowedFd<'_>) -> Option<CString> {
    fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new()).ok()
}

#[cfg(test)]
pub(crate) mod tests;
