//! The sink on a POSIX file system: files are written under temporary names below held directories, made durable, and
//! only then named.
//!
//! The engine's threads call [`PosixSink::run`]; the order of the operations is the masters' order rule. What must stay
//! true in here: nothing below the destination is reached but through a held directory and one checked name; no final
//! name is given to a file that was not complete; an operation that is answered with success stays true after a power
//! cut as far as its contract says so; nothing that a peer sends makes it panic.
//!
//! | module | part |
//! |---|---|
//! | `root` | the destination as typed, and as `cp` decides what it means |
//! | `directories`, `spool`, `finish` | directories, and their attributes at the end |
//! | `prepare`, `sweep` | what is there already, what is left over |
//! | `objects`, `table`, `sums`, `seal`, `hashes` | files that arrive in objects |
//! | `borrowed` | contents that are taken from the source's files, in the same process |
//! | `members`, `made`, `nameless` | files that arrive in bundles; those of them that are made first, and written target by target; those without a temporary name |
//! | `durable`, `file_systems`, `faults` | making things durable |
//! | `publish`, `names` | final names, and what file systems make of them |

mod attributes;
mod borrowed;
mod creation;
mod directories;
mod durable;
mod faults;
mod file_systems;
mod finish;
pub(crate) mod hashes;
mod lay;
mod leftovers;
mod made;
mod members;
mod nameless;
mod names;
mod objects;
mod prepare;
mod publish;
mod root;
mod seal;
mod spool;
pub(crate) mod sums;
mod sweep;
mod table;
pub(crate) mod tokens;
mod upwards;

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use haul_buffers::Pool;
use haul_model::op::{MembersStep, SinkDone, SinkOp};
use haul_model::stripe::Unlike;
use haul_model::{Code, Entry, EntryId, Failure, HashKind, Kind, Token};
use rustix::fs::{self, AtFlags};

use crate::SinkStorage;
use crate::confine::{check_name, sink_failure};
use crate::engine::{Direction, Engines, Wish};
use crate::layout::stripe::StripeSpec;
use crate::local::Budget;
use crate::placing::Placing;
use crate::source::Lender;
use attributes::{Preserve, status};
use creation::Creation;
use directories::{Directories, Directory, Found};
use faults::Hooks;
use file_systems::FileSystems;
use made::Made;
use members::Member;
use names::Names;
use objects::Unfinished;
use root::Place;
use spool::{RecordId, Spool};
use tokens::{TempName, TokenMaker, is_reserved};

pub use faults::SyncPoint;
#[cfg(feature = "faults")]
pub use faults::{Fault, Faults};
pub use file_systems::SyncMode;
pub use leftovers::{Leftover, Leftovers, leftovers, leftovers_in};
pub use root::{Decision, Destination, RootFailure, SinkRoot, SourceName, decide, probe};

/// What becomes of the bytes of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Contents {
    /// They are written.
    #[default]
    Written,
    /// They are checked and forgotten: each file is a hole of its size. Names, hashes of objects and everything that is
    /// needed to resume are as durable as ever. For measurements at sizes for which there is no disk.
    Discarded,
}

/// What a sink is told once.
#[derive(Clone, Debug)]
pub struct SinkSettings {
    /// Set owner and group too: `-p` as root.
    pub preserve_owner: bool,
    /// The same in all sessions of a job at this sink.
    pub job_tag: [u8; 6],
    /// Random for each session.
    pub session_tag: [u8; 4],
    /// Bytes of each object of this session: a power of two within the limits.
    pub object_bytes: u32,
    /// Where the attributes of directories wait; must exist.
    pub spool_directory: PathBuf,
    /// How contents are hashed: what arrives must have the hash that was announced.
    pub hash: HashKind,
    /// How things are made durable.
    pub sync: SyncMode,
    /// Whether contents are written.
    pub contents: Contents,
    /// Tells how files lie; nobody: all on one target.
    pub placing: Option<Arc<Placing>>,
    /// How new files are to be striped where that is possible; by their size if nobody says.
    pub stripe: Option<StripeSpec>,
    /// The source is in this process: it may lend what it does not read, and shows what symlinks lead to there.
    pub lender: Option<Lender>,
    /// Instead of what the environment asks for.
    #[cfg(feature = "faults")]
    pub faults: Option<Arc<Faults>>,
}

impl SinkSettings {
    /// The usual: owners are not kept, and durability is measured.
    pub fn new(job_tag: [u8; 6], session_tag: [u8; 4], object_bytes: u32, spool_directory: PathBuf) -> Self {
        SinkSettings {
            preserve_owner: false,
            job_tag,
            session_tag,
            object_bytes,
            spool_directory,
            hash: HashKind::default(),
            sync: SyncMode::default(),
            contents: Contents::default(),
            placing: None,
            stripe: None,
            lender: None,
            #[cfg(feature = "faults")]
            faults: None,
        }
    }
}

/// What a sink cannot be opened for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenFailure {
    /// `StateUnwritable` for the spool.
    pub failure: Failure,
    /// Which path, where it is about one.
    pub path: Option<PathBuf>,
}

/// What is known of an entry between its first byte and its durable name.
enum State {
    /// A bundle member that is made, not yet written.
    Made(Made),
    /// A thread writes it, and removes it if it is not this any more.
    Filling(Token),
    /// A bundle member that is written, not yet named.
    Member(Member),
    /// A file with objects, not yet named.
    Unfinished(Arc<Unfinished>),
    /// It has its final name in this directory, not yet durable; before it got that, so many syncs of the directory had
    /// failed.
    Named(Arc<Directory>, u64),
}

/// Storage of the sink on a mounted file system.
pub struct PosixSink {
    preserve: Preserve,
    creation: Creation,
    object_bytes: u32,
    tokens: TokenMaker,
    hash: HashKind,
    sync: SyncMode,
    contents: Contents,
    placing: Option<Arc<Placing>>,
    stripe: Option<StripeSpec>,
    lender: Option<Lender>,
    engines: Arc<Engines>,
    /// It was told that a file is not striped as its source.
    unlike_told: [AtomicBool; Unlike::ALL.len()],
    hooks: Hooks,
    holder: Arc<Directory>,
    holder_path: PathBuf,
    places: Vec<Place>,
    only_directory: bool,
    /// Of the destination, where paths in reports begin with it.
    own_name: Box<[u8]>,
    /// Nobody waits for directories to be finished.
    given_up: AtomicBool,
    /// Several sources may end up in one directory: left-over files are only known when all of them have ended, and only then
    /// may it be closed to us.
    may_meet: bool,
    /// A SOURCE is a file or a symlink: its unfinished file lies beside the destination.
    holder_has_files: AtomicBool,
    directories: Directories,
    file_systems: FileSystems,
    spool: Spool,
    names: Names,
    states: Mutex<HashMap<EntryId, State>>,
    /// Unfinished files of earlier sessions that this one goes on with.
    resumed: Mutex<HashSet<Token>>,
    /// Unfinished files that this session cannot go on with and a later one may.
    spared: Mutex<sweep::Spared>,
    /// Files that have their final name, which could not be made durable: they may be written again.
    named_in_vain: Mutex<HashSet<EntryId>>,
    /// Descriptors that written members may hold until they are synced, and how many do.
    member_descriptors_max: usize,
    member_descriptors: AtomicUsize,
    objects_reread: AtomicU64,
}

impl PosixSink {
    /// A sink below `root`. Raises the soft limit of open files of the process to the hard one.
    pub fn open(root: SinkRoot, settings: SinkSettings) -> Result<PosixSink, OpenFailure> {
        let fail = |failure: Failure| OpenFailure { failure, path: None };
        if !hashes::Cut::allows(settings.object_bytes) {
            return Err(fail(Code::LimitExceeded.into()));
        }
        let budget = Budget::of_this_process();
        let tokens = TokenMaker::new(settings.job_tag, settings.session_tag);
        let spool = Spool::create(&settings.spool_directory, &tokens).map_err(|errno| OpenFailure {
            failure: finish::spool_failure(errno),
            path: Some(settings.spool_directory.clone()),
        })?;
        let file_systems = FileSystems::new(settings.sync);
        let held = || {
            let status = status(root.holder.as_fd())?;
            let file_system = file_systems.of(root.holder.as_fd(), status.device)?;
            Ok((status, file_system))
        };
        let (status, file_system) = held().map_err(|errno| fail(sink_failure(errno)))?;
        let merged = root.places.contains(&Place::Held);
        let found = Found { descriptor: root.holder, status, made: false };
        Ok(PosixSink {
            preserve: Preserve { owner: settings.preserve_owner },
            creation: Creation::of_this_process(),
            object_bytes: settings.object_bytes,
            tokens,
            hash: settings.hash,
            sync: settings.sync,
            contents: settings.contents,
            placing: settings.placing,
            stripe: settings.stripe,
            lender: settings.lender,
            engines: Arc::new(Engines::new(Direction::Write, Wish::default())),
            unlike_told: Default::default(),
            #[cfg(feature = "faults")]
            hooks: Hooks::new(settings.faults),
            #[cfg(not(feature = "faults"))]
            hooks: Hooks::default(),
            holder: Directory::held(found, RecordId::HOLDER, file_system),
            holder_path: root.path,
            may_meet: merged && root.places.len() > 1,
            places: root.places,
            only_directory: root.only_directory,
            own_name: root.own_name,
            given_up: AtomicBool::new(false),
            holder_has_files: AtomicBool::new(false),
            directories: Directories::new(budget.directories),
            file_systems,
            spool,
            names: Names::default(),
            states: Mutex::new(HashMap::new()),
            resumed: Mutex::new(HashSet::new()),
            spared: Mutex::default(),
            named_in_vain: Mutex::new(HashSet::new()),
            member_descriptors_max: budget.members,
            member_descriptors: AtomicUsize::new(0),
            objects_reread: AtomicU64::new(0),
        })
    }

    /// With these engines.
    pub fn with_engines(self, engines: Arc<Engines>) -> PosixSink {
        PosixSink { engines, ..self }
    }

    /// What writes the objects of its files.
    pub fn engines(&self) -> &Arc<Engines> {
        &self.engines
    }

    /// Objects whose hash had to be computed again from the file, because the one beside it was lost or damaged.
    pub fn objects_reread(&self) -> u64 {
        self.objects_reread.load(Ordering::Relaxed)
    }

    /// The name of an entry in its directory. Every operation asks anew, whatever an earlier one found: no name is
    /// used that was not checked.
    fn name_of<'a>(&'a self, entry: &'a Entry) -> Result<&'a [u8], Failure> {
        if entry.id.root_index().is_some() {
            return Err(Code::Protocol.into());
        }
        if let Some(index) = entry.parent.root_index() {
            if !entry.name.is_empty() {
                return Err(Code::Confinement.into());
            }
            return match self.places.get(index as usize) {
                None => Err(Code::Confinement.into()),
                Some(Place::Named(name)) if entry.kind == Kind::Directory || !self.only_directory => Ok(name),
                Some(Place::Named(_)) => Err(Code::SinkNotDirectory.into()),
                Some(Place::Held) => Err(Code::SinkIsDirectory.into()),
            };
        }
        check_name(&entry.name)?;
        if is_reserved(&entry.name) {
            return Err(Code::NameInvalid.into());
        }
        Ok(&entry.name)
    }

    /// What an entry is called in this directory until it is complete.
    fn temporary_name(&self, entry: &Entry, directory: &Directory, token: Token) -> TempName {
        self.temporary_name_where(entry, directory.file_system.gluster, token)
    }

    /// The same, where names place files or do not.
    fn temporary_name_where(&self, entry: &Entry, by_name: bool, token: Token) -> TempName {
        match by_name.then(|| self.name_of(entry)) {
            Some(Ok(name)) => TempName::placed_as(name, token),
            _ => TempName::contents(token),
        }
    }

    /// Removes what an entry has under its temporary name. What stays is swept by a later session.
    fn remove_temporary(&self, entry: &Entry, directory: &Arc<Directory>, token: Token) {
        if let Ok(held) = self.directories.descriptor(directory) {
            let name = self.temporary_name(entry, directory, token);
            let _ = fs::unlinkat(&held, name.as_c_str(), AtFlags::empty());
        }
    }

    /// The directory and the name of an entry that is not the held destination itself.
    fn locate<'a>(&'a self, entry: &'a Entry) -> Result<(Arc<Directory>, &'a [u8]), Failure> {
        let name = self.name_of(entry)?;
        if entry.parent.root_index().is_some() {
            return Ok((Arc::clone(&self.holder), name));
        }
        let directory = self.directories.get(entry.parent).ok_or(Code::SinkParentFailed)?;
        Ok((directory, name))
    }

    /// The entry is the destination itself, which its contents are merged into.
    fn is_held(&self, entry: &Entry) -> bool {
        let place = entry.parent.root_index().and_then(|index| self.places.get(index as usize));
        place == Some(&Place::Held) && entry.kind == Kind::Directory
    }
}

impl SinkStorage for PosixSink {
    fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    fn run(&self, op: SinkOp, pool: &Pool) -> Option<SinkDone> {
        match op {
            SinkOp::Prepare { batch, items } => {
                let prepare::Prepares { answers, laid, unlaid } = self.prepare(items);
                Some(SinkDone::Prepared { batch, answers, laid, unlaid })
            }
            SinkOp::Lay { entry, token, resumed, object_bytes, stripes } => {
                let (result, unlike) =
                    match self.lay(&entry, token, resumed, object_bytes, stripes.as_deref()) {
                        Ok((laid, unlike)) => (Ok(laid), unlike),
                        Err(failure) => (Err(failure), None),
                    };
                Some(SinkDone::Laid { id: entry.id, result, unlike })
            }
            SinkOp::WriteObject {
                block,
                entry,
                token,
                object_bytes,
                offset,
                length,
                slot,
                hash,
                single,
                gently,
            } => {
                let object = objects::Object { object_bytes, offset, length, hash, single, gently };
                let result = self.write_object(&entry, token, object, slot, pool);
                Some(SinkDone::Written { block, result })
            }
            SinkOp::WriteMembers { block, step, slot, length, members, progress } => {
                let results = match step {
                    MembersStep::Make => self.write_members(members, slot, length, pool, &progress),
                    MembersStep::Fill { gently, .. } => {
                        self.fill_members((members, &progress), gently, slot, length, pool)
                    }
                };
                Some(SinkDone::WrittenMembers { block, step, results })
            }
            SinkOp::Seal { entry, token, object_bytes, root, progress } => {
                let result = self.seal(&entry, token, object_bytes, (root, &progress));
                Some(SinkDone::Sealed { id: entry.id, result })
            }
            SinkOp::Sync { group, files } => {
                Some(SinkDone::Synced { group, failed: self.sync_files(&files) })
            }
            SinkOp::Publish { group, files } => {
                Some(SinkDone::Published { group, failed: self.publish(&files) })
            }
            SinkOp::SyncNames { group, entries } => {
                Some(SinkDone::SyncedNames { group, failed: self.sync_names(&entries) })
            }
            SinkOp::Discard { id, token, keep } => {
                self.discard(id, token, keep);
                Some(SinkDone::Discarded { id })
            }
            SinkOp::Forget { id } => {
                // Where SOURCEs meet, others have names in it yet.
                if let Some(directory) = self.directories.get(id).filter(|_| !self.may_meet) {
                    self.names.forget(directory.identity);
                }
                self.directories.forget(id);
                None
            }
            SinkOp::FinishDirectories { whole } => {
                Some(SinkDone::DirectoriesFinished { failed: self.finish_directories(whole) })
            }
        }
    }

    fn syncs_each(&self) -> bool {
        self.sync != SyncMode::Never && !self.holder.file_system.whole
    }

    fn lies_apart(&self) -> bool {
        let (Some(placing), Ok(held)) = (&self.placing, self.directories.descriptor(&self.holder)) else {
            return false;
        };
        let device = self.holder.identity.0;
        placing.layouts().meet(held.as_fd(), device);
        placing.layouts().uniform(device).is_none()
    }
}

/// A panic elsewhere must not spread: what these locks guard is valid between any two steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(shared: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    shared.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(shared: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    shared.write().unwrap_or_else(PoisonError::into_inner)
}
