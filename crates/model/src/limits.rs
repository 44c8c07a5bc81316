//! Every bound of the protocol in one place. A peer that exceeds one is ended with `limit-exceeded`.
//!
//! A limit of 0 never means unlimited.

/// Bytes of one name. Linux file systems stop at 255, FUSE at 1024.
pub const NAME_BYTES_MAX: usize = 1024;
/// Bytes of a symlink target (PATH_MAX).
pub const LINK_TARGET_BYTES_MAX: usize = 4096;
/// Sources of one command, and so of one session.
pub const SOURCES_MAX: usize = 65_536;
/// Bytes of one control message.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Entries, answers, members or results of one message.
pub const BATCH_ITEMS_MAX: usize = 1024;
/// A batch of entries is sent once it has grown to this many bytes.
pub const BATCH_BYTES_SOFT: usize = 128 << 10;
/// Bytes of the paths of directories that are named as failed; what fails beyond is only counted.
pub const FAILED_BYTES_MAX: usize = 512 << 10;
/// Files in one bundle.
pub const MEMBERS_MAX: usize = 1024;
/// Hashes that follow one payload.
pub const HASHES_FOLLOWING_MAX: usize = 31;
/// Smallest object.
pub const OBJECT_BYTES_MIN: u32 = 64 << 10;
/// Largest object.
pub const OBJECT_BYTES_MAX: u32 = 64 << 20;
/// Storage targets that an end tells apart.
pub const TARGETS_MAX: usize = 4096;
/// Pieces of one file's placement.
pub const PLACEMENT_PIECES_MAX: usize = 64;
/// Targets in all pieces of one file's placement (Lustre: 2,000 stripes).
pub const PLACEMENT_TARGETS_MAX: usize = 2048;
/// Parts of a file that are striped each in its own way (Lustre's tools stop at 32).
pub const PLAN_PARTS_MAX: usize = 64;
/// Stripes of one part (`LOV_MAX_STRIPE_COUNT`).
pub const STRIPES_MAX: u16 = 2000;
/// Objects in the source's spill.
pub const SPILLED_OBJECTS_MAX: usize = 1 << 20;
/// Targets that one end of a transfer tells its neighbours of.
pub const STATEMENT_TARGETS_MAX: usize = 1024;
/// Ends of transfers on one host that hear each other.
pub const NEIGHBOURS_MAX: usize = 256;
/// Slots of one pool.
pub const SLOTS_MAX: u32 = 4096;
/// Data streams of one session.
pub const STREAMS_MAX: u32 = 64;
/// Entries announced by the source and not yet settled. Bounds the memory of both ends.
pub const ENTRIES_OPEN_MAX: usize = 16_384;
/// Files with objects on the way; each costs a descriptor at both ends.
pub const FILES_OPEN_MAX: usize = 256;
/// Directories alive at once (ancestors of open entries, plus ended ones with open children).
pub const DIRECTORIES_OPEN_MAX: usize = 1 << 20;
/// Bytes of all their names.
pub const DIRECTORY_NAMES_BYTES_MAX: usize = 128 << 20;
/// Depth of the tree below a SOURCE.
pub const DEPTH_MAX: usize = 65_536;
/// Largest file: 8 EiB, the range of `off_t`.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Objects of one file that a log can hold (the paper's 32-bit block numbers).
pub const OBJECTS_PER_FILE_MAX: u64 = u32::MAX as u64;
/// Control messages that a peer may leave unacknowledged.
pub const UNACKED_MESSAGES_MAX: usize = 65_536;
/// And their bytes: several times what honest ends have under way.
pub const UNACKED_BYTES_MAX: usize = 256 << 20;
/// Bytes of control messages that wait for the master; then no more are received.
pub const MESSAGES_WAITING_BYTES_MAX: usize = 64 << 20;
/// How often an object or member is sent before its file is named as failed.
pub const ATTEMPTS_MAX: u8 = 4;
/// How often a file that changed while it was read starts again before it is named.
pub const RESTARTS_MAX: u8 = 2;
/// I/O to a target that is to be spared goes in pieces of at most this, one after the other: less than `cp` asks for at a
/// time, so that whoever else uses the target waits no longer than beside that.
pub const GENTLE_PIECE_BYTES: usize = 64 << 10;
/// Sync group: no more credits are granted once this many bytes wait to become durable.
pub const SYNC_GROUP_BYTES: u64 = 64 << 20;
/// And so much for each target where there are several and each file is synced by itself: a target has something to do while
/// what was written to it before is synced.
pub const SYNC_GROUP_BYTES_TARGET: u64 = 16 << 20;
/// Ceiling of the sync group when one second of data, or what its targets need, is more than [`SYNC_GROUP_BYTES`].
pub const SYNC_GROUP_BYTES_MAX: u64 = 256 << 20;
/// Unpublished files in one sync group; each may hold a descriptor until the group is durable.
pub const SYNC_GROUP_FILES_MAX: usize = 4096;
