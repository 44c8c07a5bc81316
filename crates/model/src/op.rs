//! What the masters ask of storage, as values.
//!
//! The masters (crate `protocol`) emit operations, storage (crate `storage`, or the simulator's disk) performs them and
//! answers with a completion. As values they can be queued, traced, delayed, failed and replayed by decorators.
//!
//! The order in which the masters emit them *is* the order rule; storage never reorders what it was not asked to.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::report::FailedPaths;
use crate::stripe::Unlike;
use crate::{BlockId, Entry, EntryId, Failure, Hash, Laid, Plan, SlotId, Target, Token};

/// Which kind of thread runs an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// One after the other, in the order emitted: names and directories.
    Ordered,
    /// In parallel: contents.
    Data,
    /// In parallel: files that are made and striped before their contents come.
    Lay,
    /// Makes things durable; may take long and must not hold up the other lanes.
    Sync,
    /// The same for what is on slow targets: it must not hold up the rest of that.
    Slow,
}

/// The source master asks its storage.
#[derive(Clone, Debug)]
pub enum SourceOp {
    /// Read `length` bytes at `offset` into `slot` and hash them.
    ///
    /// The file is opened below its held directory with `O_NOFOLLOW` on the first read and stays open until
    /// [`SourceOp::Release`]; if it is not the version of `entry.identity` then, the result is `SourceChanged`.
    ReadObject {
        /// Echoed in the completion.
        block: BlockId,
        /// The file.
        entry: Arc<Entry>,
        /// Where the object starts, in bytes.
        offset: u64,
        /// How long it is, in bytes; at least 1.
        length: u32,
        /// Where the bytes go.
        slot: SlotId,
        /// The object is the whole file: the hash is the root, not a subtree value.
        single: bool,
        /// The bytes must be in the slot and not change any more: the object is sent again, perhaps because what arrived was
        /// not what was hashed, or it goes on into the spill.
        again: bool,
        /// Whoever sends them may hash the bytes on their way: then the result has no hash.
        on_the_way: bool,
        /// In pieces of at most [`GENTLE_PIECE_BYTES`](crate::limits::GENTLE_PIECE_BYTES), one after the other: files are on
        /// several targets, and others wait for this one, too.
        gently: bool,
    },
    /// Read whole files one behind the other into `slot`. One that fails or has changed takes no space.
    ReadMembers {
        /// Echoed in the completion.
        block: BlockId,
        /// Where the bytes go.
        slot: SlotId,
        /// The files, in the order in which they are packed.
        members: Vec<Arc<Entry>>,
        /// As above, of any of them.
        again: bool,
        /// As above, of each of them; at most [`HASHES_FOLLOWING_MAX`](crate::limits::HASHES_FOLLOWING_MAX).
        on_the_way: bool,
        /// How far storage is; the master looks at it, and abandons nothing.
        progress: Progress,
    },
    /// Write the bytes of `slot` into the spill file.
    Spill {
        /// Echoed in the completion.
        block: BlockId,
        /// Where the bytes are.
        slot: SlotId,
        /// Where they go in the spill file: a multiple of [`OBJECT_BYTES_MIN`](crate::limits::OBJECT_BYTES_MIN).
        at: u64,
        /// How many.
        length: u32,
    },
    /// Read an object back from the spill file into `slot` and hash it.
    Unspill {
        /// Echoed in the completion, which is that of `ReadObject`.
        block: BlockId,
        /// Where the bytes go.
        slot: SlotId,
        /// Where they are in the spill file.
        at: u64,
        /// Where the object starts in its own file, in bytes: its hash follows from that, too.
        offset: u64,
        /// How long it is, in bytes.
        length: u32,
        /// The object is the whole file.
        single: bool,
        /// What `Spill` has told of it.
        mark: Option<Hash>,
    },
    /// Is the descriptor that was read from still the version of `entry.identity`?
    Confirm {
        /// The file.
        entry: Arc<Entry>,
    },
    /// What is under this name now? (The file changed and starts again.)
    Restat {
        /// The entry as it was.
        entry: Arc<Entry>,
    },
    /// Close the file's descriptor, if there is one. No completion.
    Release {
        /// The file.
        id: EntryId,
    },
    /// The directory is settled; drop what is held of it. No completion.
    Forget {
        /// The directory.
        id: EntryId,
    },
}

/// One member that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberRead {
    /// Where it starts in the slot.
    pub offset: u32,
    /// Root hash of its bytes; none where it is hashed on its way.
    pub hash: Option<Hash>,
}

/// Completions of [`SourceOp`].
#[derive(Clone, Debug)]
pub enum SourceDone {
    /// Of `ReadObject`, where `SourceChanged` means that fewer bytes were there than asked for; and of `Unspill`.
    Object {
        /// The block.
        block: BlockId,
        /// Its hash; none where it is hashed on its way.
        result: Result<Option<Hash>, Failure>,
    },
    /// Of `ReadMembers`.
    Members {
        /// The block.
        block: BlockId,
        /// Bytes used in the slot.
        length: u32,
        /// One for each member asked for, in order.
        results: Vec<Result<MemberRead, Failure>>,
    },
    /// Of `Spill`.
    Spilled {
        /// The block.
        block: BlockId,
        /// All of it is in the spill file? With what it is known by when it is read back, where objects have no hash.
        result: Result<Option<Hash>, Failure>,
    },
    /// Of `Confirm`: `SourceChanged` if it is another version.
    Confirmed {
        /// The file.
        id: EntryId,
        /// Unchanged?
        result: Result<(), Failure>,
    },
    /// Of `Restat`.
    Restated {
        /// The entry that was asked for.
        id: EntryId,
        /// The file as it is now (with the old id).
        result: Result<Box<Entry>, Failure>,
    },
}

/// One step of [`SinkOp::Prepare`].
#[derive(Clone, Debug)]
pub enum Prepare {
    /// Make the directory or symlink; look whether the file is there already.
    Entry {
        /// What is to exist.
        entry: Arc<Entry>,
        /// The unfinished file that the source's log is bound to.
        resume: Option<Token>,
        /// The file will come in objects of so many bytes, or smaller ones where it lies better then; `None`: as a bundle
        /// member.
        object_bytes: Option<u32>,
    },
    /// No further entry of this directory: left-over unfinished files of earlier sessions of this job go.
    End(EntryId),
}

/// What [`SinkOp::Prepare`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prepared {
    /// Complete already (kind, size, mtime at the granularity that the sink stores, or link target); attributes that
    /// differed have been set.
    Skip,
    /// Send it. The token names its unfinished file; [`Token::NONE`] for members of bundles.
    Start(Token),
    /// The unfinished file is there: send what the log lacks.
    Resume(Token),
    /// Directory or symlink is made, not durable yet.
    Made,
    /// It cannot be done.
    Fail(Failure),
}

/// Which step of writing a bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MembersStep {
    /// All members. Those that lie on a target of which something is known are only made: which one that is, is known then.
    Make,
    /// Contents and attributes of those that were made on this target. Another thread may be at those of another target.
    Fill {
        /// Which one.
        target: Target,
        /// As with objects.
        gently: bool,
    },
}

/// Where storage is in a list of members: both sides see it, so that who has waited for too long knows for which one, and nothing
/// comes of the rest behind his back.
#[derive(Clone, Debug)]
pub struct Progress(Arc<AtomicU32>);

impl Default for Progress {
    /// No thread has begun.
    fn default() -> Self {
        Progress(Arc::new(AtomicU32::new(Self::WAITS)))
    }
}

impl Progress {
    const WAITS: u32 = u32::MAX - 2;
    const ENDED: u32 = u32::MAX - 1;
    const ABANDONED: u32 = u32::MAX;

    fn enters(&self, state: u32) -> bool {
        let goes_on = |now| (now != Self::ABANDONED).then_some(state);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, goes_on).is_ok()
    }

    /// Storage begins with this member. False: nobody waits for it.
    pub fn begins(&self, member: usize) -> bool {
        self.enters(u32::try_from(member).unwrap_or(0))
    }

    /// Storage has done with all of them. False: nobody waits, and nothing of what was done may stay.
    pub fn ends(&self) -> bool {
        self.enters(Self::ENDED)
    }

    /// Something that is another number when storage has come further.
    pub fn mark(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// From now on nobody waits. At which member storage is, or a number that no member has; none if it has done with all: then its
    /// answer counts.
    pub fn abandon(&self) -> Option<usize> {
        let runs = |now| (now != Self::ENDED).then_some(Self::ABANDONED);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, runs).ok().map(|member| member as usize)
    }
}

/// How far a member has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Landed {
    /// It is written; it has to become durable and to get its name yet.
    Written,
    /// It is made on this target, and empty.
    Made(Target),
    /// It is complete under its final name, where nothing can be made more durable than it is: in memory.
    Named,
}

/// What became of a member.
pub type MemberWritten = Result<Landed, Failure>;

/// One member of a bundle, as the sink is to write it.
#[derive(Clone, Debug)]
pub struct MemberWrite {
    /// The file.
    pub entry: Arc<Entry>,
    /// Where it starts in the slot.
    pub offset: u32,
    /// BLAKE3 root that its bytes must have.
    pub hash: Hash,
}

/// The sink master asks its storage.
#[derive(Clone, Debug)]
pub enum SinkOp {
    /// Names and directories, in order.
    Prepare {
        /// Echoed in the completion.
        batch: u64,
        /// The steps.
        items: Vec<Prepare>,
    },
    /// Make the unfinished file of a file that is to come in objects, striped and of its full size, or open the one that it
    /// goes on with: how it lies is known only then. If that fails nothing new stays.
    Lay {
        /// The file.
        entry: Arc<Entry>,
        /// Names the unfinished file.
        token: Token,
        /// It is there: objects keep their size.
        resumed: bool,
        /// Bytes of each object at most.
        object_bytes: u32,
        /// What it was striped as at the source, if that was chosen for it.
        stripes: Option<Box<Plan>>,
    },
    /// Check the hash, then write the object into the unfinished file `token` (created on its first write, mode
    /// 0600) and its hash beside it.
    WriteObject {
        /// Echoed in the completion.
        block: BlockId,
        /// The file.
        entry: Arc<Entry>,
        /// Names the unfinished file.
        token: Token,
        /// Bytes of each object of the file but the last.
        object_bytes: u32,
        /// Where the object starts in the file.
        offset: u64,
        /// Its length.
        length: u32,
        /// Where the bytes are.
        slot: SlotId,
        /// What they must hash to; else `HashMismatch` and nothing is written.
        hash: Hash,
        /// The object is the whole file.
        single: bool,
        /// In pieces of at most [`GENTLE_PIECE_BYTES`](crate::limits::GENTLE_PIECE_BYTES), one after the other: others wait
        /// for this target too.
        gently: bool,
    },
    /// Check each member's hash, write it under a temporary name or none and set its attributes; in memory, give it its final name as
    /// well, once nobody can give the bundle up any more. Members fail one by one.
    WriteMembers {
        /// Echoed in the completion.
        block: BlockId,
        /// Echoed in the completion: all members at first, then those of one target.
        step: MembersStep,
        /// Where the bytes are.
        slot: SlotId,
        /// Bytes that arrived in the slot.
        length: u32,
        /// The files.
        members: Vec<MemberWrite>,
        /// How far all of it is, for as long as somebody waits.
        progress: Progress,
    },
    /// All objects are durable: combine the root hash, compare it with `root` where the source could tell, set the
    /// attributes on the descriptor.
    Seal {
        /// The file.
        entry: Arc<Entry>,
        /// Names the unfinished file.
        token: Token,
        /// Bytes of each of its objects but the last.
        object_bytes: u32,
        /// The source's root, where it read every object itself.
        root: Option<Hash>,
        /// Tells that it gets further where objects are read once more.
        progress: Progress,
    },
    /// Make durable: contents, attributes and hashes of these files, and the temporary names of files with objects.
    Sync {
        /// Echoed in the completion.
        group: u64,
        /// Written, or sealed, since their last sync.
        files: Vec<EntryId>,
    },
    /// Give these files (durable, attributes set) their final names.
    Publish {
        /// Echoed in the completion.
        group: u64,
        /// The files.
        files: Vec<EntryId>,
    },
    /// Make the names of these entries durable, and those of all their parents up to the destination.
    SyncNames {
        /// Echoed in the completion.
        group: u64,
        /// Published files and new symlinks.
        entries: Vec<EntryId>,
    },
    /// The file is dropped: remove its unfinished file and hashes.
    Discard {
        /// The file.
        id: EntryId,
        /// Its unfinished file; [`Token::NONE`] for members.
        token: Token,
        /// What is unfinished of a file that comes in objects stays for a later session, which is told of it by the log.
        keep: bool,
    },
    /// The directory is settled; drop what is held of it. No completion.
    Forget {
        /// The directory.
        id: EntryId,
    },
    /// Everything is settled: set the attributes of all directories of this session, deepest first, and make them
    /// durable.
    FinishDirectories {
        /// All below the SOURCEs was listed, so what is left over of earlier sessions of this job goes, where it could not before.
        whole: bool,
    },
}

/// Completions of [`SinkOp`].
#[derive(Clone, Debug)]
pub enum SinkDone {
    /// Of `Prepare`: one answer per entry, in order.
    Prepared {
        /// The batch.
        batch: u64,
        /// What was found.
        answers: Vec<(EntryId, Prepared)>,
        /// Of those files of them that lie on several targets, where that can be told without them: how.
        laid: Vec<(EntryId, Laid)>,
        /// Those that have to be made first ([`SinkOp::Lay`]), in order.
        unlaid: Vec<EntryId>,
    },
    /// Of `Lay`.
    Laid {
        /// The file.
        id: EntryId,
        /// How it lies, if it is not all on the one usual target. One that goes on keeps the size of its objects.
        result: Result<Option<Laid>, Failure>,
        /// It is not striped as its source is; told once of each kind in all of a session.
        unlike: Option<Unlike>,
    },
    /// Of `WriteObject`.
    Written {
        /// The block.
        block: BlockId,
        /// `HashMismatch`: send again.
        result: Result<(), Failure>,
    },
    /// Of `WriteMembers`.
    WrittenMembers {
        /// The block.
        block: BlockId,
        /// The step.
        step: MembersStep,
        /// One for each member, in order.
        results: Vec<MemberWritten>,
    },
    /// Of `Seal`: the root hash of the whole file.
    Sealed {
        /// The file.
        id: EntryId,
        /// What `b3sum` prints for it.
        result: Result<Hash, Failure>,
    },
    /// Of `Sync`: files that could not be made durable; what they received since their last good sync is lost.
    Synced {
        /// The group.
        group: u64,
        /// With their errors.
        failed: Vec<(EntryId, Failure)>,
    },
    /// Of `Publish`.
    Published {
        /// The group.
        group: u64,
        /// With their errors.
        failed: Vec<(EntryId, Failure)>,
    },
    /// Of `SyncNames`.
    SyncedNames {
        /// The group.
        group: u64,
        /// Entries whose names may not be durable.
        failed: Vec<(EntryId, Failure)>,
    },
    /// Of `Discard`.
    Discarded {
        /// The file.
        id: EntryId,
    },
    /// Of `FinishDirectories`.
    DirectoriesFinished {
        /// Paths below the destination, with their errors.
        failed: FailedPaths,
    },
}

impl SinkOp {
    /// Which kind of thread runs it, unless what it is about is on slow targets.
    pub fn lane(&self) -> Lane {
        match self {
            SinkOp::Prepare { .. } | SinkOp::Forget { .. } | SinkOp::FinishDirectories { .. } => {
                Lane::Ordered
            }
            SinkOp::WriteObject { .. } | SinkOp::WriteMembers { .. } => Lane::Data,
            SinkOp::Lay { .. } => Lane::Lay,
            SinkOp::Seal { .. }
            | SinkOp::Sync { .. }
            | SinkOp::Publish { .. }
            | SinkOp::SyncNames { .. }
            | SinkOp::Discard { .. } => Lane::Sync,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_abandoned_or_ends_and_never_both() {
        let ends = Progress::default();
        let waits = ends.mark();
        assert!(ends.begins(0) && ends.mark() != waits);
        let first = ends.mark();
        assert!(ends.clone().begins(1) && ends.mark() != first, "both sides see it");
        assert!(ends.ends());
        assert_eq!(ends.abandon(), None, "its answer counts");

        let hangs = Progress::default();
        assert!(hangs.begins(0) && hangs.begins(7));
        assert_eq!(hangs.abandon(), Some(7));
        assert!(!hangs.begins(8) && !hangs.ends(), "nobody waits for it");

        let never_begun = Progress::default();
        assert!(never_begun.abandon().is_some_and(|at| at > crate::limits::MEMBERS_MAX));
        assert!(!never_begun.begins(0));
    }
}
