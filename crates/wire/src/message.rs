//! The messages of the control stream. Names are those of FT-LADS where FT-LADS has them.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use haul_model::limits::{
    BATCH_ITEMS_MAX, LINK_TARGET_BYTES_MAX, MEMBERS_MAX, OBJECT_BYTES_MAX, OBJECTS_PER_FILE_MAX,
    PLACEMENT_PIECES_MAX, PLACEMENT_TARGETS_MAX, SLOTS_MAX, TARGETS_MAX,
};
use haul_model::placement::Piece;
use haul_model::profile::Profile;
use haul_model::report::{FailedPaths, Stats};
use haul_model::stripe::Unlike;
use haul_model::{
    BlockId, Entry, EntryId, Failure, Hash, JobId, Laid, Placement, Plan, SessionId, SlotId, Target, Token,
};

use crate::bytes::{Malformed, Reader, put_bytes, put_failure, put_varint};
use crate::entry::{entry, id, put_entry, put_id};
use crate::profile::{profile, put_profile};
use crate::stripes::{plan, put_plan};

/// The protocol version that this code speaks best.
pub const VERSION: u16 = 8;
/// The oldest version that this code still speaks. (No release has spoken an older one.)
pub const VERSION_MIN: u16 = 8;

/// Feature bit of CONNECT: PROFILE is understood.
pub const FEATURE_PROFILE: u64 = 1;
/// Feature bit of CONNECT: BEFORE is understood.
pub const FEATURE_BEFORE: u64 = 2;

/// Which end somebody is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Reads.
    Source,
    /// Writes.
    Sink,
}

/// First message of each connection, from both ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect {
    /// Newest version spoken.
    pub version: u16,
    /// Oldest version spoken. Both ends use the newest that both speak.
    pub version_min: u16,
    /// Who sends this.
    pub role: Role,
    /// The same on each connection of a session.
    pub session: SessionId,
    /// Which job.
    pub job: JobId,
    /// Object size in bytes: the source's choice, echoed by the sink.
    pub object_bytes: u32,
    /// Slots in the sender's pool.
    pub slots: u32,
    /// Optional abilities, one bit each; unknown ones are ignored.
    pub features: u64,
}

/// What the sink says to an entry of NEW_FILE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is complete already.
    Skip,
    /// Send all of it.
    Start(Token),
    /// Send what the log bound to this token lacks.
    Resume(Token),
    /// Directory or symlink is made.
    Made,
    /// It will not be there.
    Fail(Failure),
}

/// One file of a MANIFEST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The file.
    pub id: EntryId,
    /// Where it starts in the payload; its length is its announced size.
    pub offset: u32,
    /// Root hash of its bytes; none where it follows the payload.
    pub hash: Option<Hash>,
}

/// The end of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// Complete, durable, under its final name. With the root hash for files that came in objects.
    Done(Option<Hash>),
    /// It will not be there.
    Failed(Failure),
    /// Nor will this one, but its unfinished file stays with all that is durable: a later session goes on with it.
    Kept(Failure),
}

/// Why something must be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RepairReason {
    /// Its payload was lost with a connection.
    Lost,
    /// Its bytes did not have the announced hash.
    Hash,
    /// It could not be made durable.
    Sync,
}

/// An object, or a bundle member, that must be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repair {
    /// The file.
    pub id: EntryId,
    /// Object number; `None` for a bundle member.
    pub index: Option<u32>,
    /// Why.
    pub reason: RepairReason,
}

/// How the source's object log stands; for the report of an initiator that is the sink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogStatus {
    /// Of new entries; `none` if there is no log.
    pub mechanism: Box<[u8]>,
    /// Of new entries.
    pub method: Box<[u8]>,
    /// Which thread writes it.
    pub writer: Box<[u8]>,
    /// Bytes that the logs took, at most.
    pub bytes_peak: u64,
    /// Logs at a time, at most.
    pub files_peak: u64,
    /// Where they are.
    pub location: Box<[u8]>,
    /// Why the log can no longer be written; empty as long as it can.
    pub lost: Box<[u8]>,
}

/// A message of the control stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Both: see [`Connect`].
    Connect(Connect),
    /// Source: entries, each with the token of the unfinished file that its log is bound to.
    NewFile(Vec<NewFile>),
    /// Sink: one answer per entry, in the order of NEW_FILE.
    FileId {
        /// What each entry becomes.
        answers: Vec<(EntryId, Answer)>,
        /// How files lie that are on several targets of the sink.
        laid: Vec<(EntryId, Laid)>,
        /// Files that are not striped as their sources are; one of each kind in a session.
        unlike: Vec<(EntryId, Unlike)>,
    },
    /// Source: an object is on its way into the slot.
    NewBlock {
        /// Names this transfer.
        block: BlockId,
        /// The credit used up.
        slot: SlotId,
        /// The connection on which the payload was sent.
        epoch: u32,
        /// The file.
        id: EntryId,
        /// Object number within the file.
        index: u32,
        /// Bytes.
        length: u32,
        /// BLAKE3 subtree value at its offset (root if it is the only object); none if it follows the payload.
        hash: Option<Hash>,
    },
    /// Source: a bundle is on its way into the slot.
    Manifest {
        /// Names this transfer.
        block: BlockId,
        /// The credit used up.
        slot: SlotId,
        /// The connection on which the payload was sent.
        epoch: u32,
        /// Bytes.
        length: u32,
        /// The files in it.
        members: Vec<Member>,
    },
    /// Sink: these slots may be sent into.
    BlockDone {
        /// Free again.
        slots: Vec<SlotId>,
        /// How many blocks may be under way to some of its targets from now on, at most; a target that was never named may
        /// have any number.
        allowances: Vec<(Target, u32)>,
    },
    /// Sink: these objects are durable, these entries have ended.
    BlockSync {
        /// File and object number.
        objects: Vec<(EntryId, u32)>,
        /// Entries with their ends.
        entries: Vec<(EntryId, Settled)>,
    },
    /// Sink: send these again.
    Repair(Vec<Repair>),
    /// Source: all objects of the file are durable, and it did not change while it was read.
    FileClose {
        /// The file.
        id: EntryId,
        /// Its root, where the source could compute it.
        root: Option<Hash>,
    },
    /// Source: forget this file. Also its answer when the sink says that it cannot have the file, unless the two cross:
    /// each entry that fails after FILE_ID is dropped exactly once.
    FileDrop {
        /// The file.
        id: EntryId,
        /// Why.
        failure: Failure,
        /// It starts again as a new entry, so it is not to be reported.
        restarts: bool,
    },
    /// Source: something below a SOURCE could not be read, for the report.
    Notice {
        /// Path below the destination.
        path: Box<[u8]>,
        /// Why.
        failure: Failure,
    },
    /// Source: every entry has ended; set the attributes of the directories.
    Bye(Stats),
    /// Sink: all is done. Paths whose directory attributes could not be set.
    Finished(FailedPaths),
    /// Both: the session ends here.
    Error(Failure),
    /// Both: I am alive, and this is what I have received.
    Ping,
    /// Source: when its log is lost, and before BYE.
    Log(Box<LogStatus>),
    /// Source: not all of its spill can be used any more, for the report.
    Spill {
        /// Why.
        failure: Failure,
        /// Bytes of it that still can be.
        room: u64,
    },
    /// Both, before BYE and FINISHED, if the other end has set [`FEATURE_PROFILE`]: where this end's time went.
    Profile(Box<Profile>),
    /// Source, of a file that goes on, if the sink has set [`FEATURE_BEFORE`]: so much of it was durable before, for the report only.
    Before {
        /// The file.
        id: EntryId,
        /// So many of its objects.
        objects: u64,
        /// And their bytes.
        bytes: u64,
    },
}

/// One step of NEW_FILE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NewFile {
    /// An entry.
    Entry {
        /// The entry.
        entry: Arc<Entry>,
        /// Of a file that comes in objects of its own, not in a bundle: how large they are to be. The sink may want
        /// smaller ones, unless the file goes on.
        object_bytes: Option<u32>,
        /// The unfinished file of an earlier session that the log speaks of.
        resume: Option<Token>,
        /// What it was striped as, if that was chosen for it; only of files with objects.
        stripes: Option<Box<Plan>>,
    },
    /// No further entry of this directory.
    End(EntryId),
}

const NOTICE_PATH_BYTES_MAX: usize = LINK_TARGET_BYTES_MAX * 4;
const WORD_BYTES_MAX: usize = 32;
const CAUSE_BYTES_MAX: usize = 1024;

fn put_token(out: &mut Vec<u8>, token: Option<Token>) {
    match token {
        Some(token) => {
            out.push(1);
            out.extend_from_slice(&token.0);
        }
        None => out.push(0),
    }
}

fn token(reader: &mut Reader<'_>) -> Result<Option<Token>, Malformed> {
    Ok(if reader.flag()? { Some(Token(reader.array()?)) } else { None })
}

fn put_hash(out: &mut Vec<u8>, hash: Option<Hash>) {
    match hash {
        Some(hash) => {
            out.push(1);
            out.extend_from_slice(&hash.0);
        }
        None => out.push(0),
    }
}

fn hash(reader: &mut Reader<'_>) -> Result<Option<Hash>, Malformed> {
    Ok(if reader.flag()? { Some(reader.hash()?) } else { None })
}

fn slot(reader: &mut Reader<'_>) -> Result<SlotId, Malformed> {
    Ok(SlotId(reader.bounded(u64::from(SLOTS_MAX - 1))? as u32))
}

fn object_bytes(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    Ok(reader.bounded(u64::from(OBJECT_BYTES_MAX))? as u32)
}

fn target(reader: &mut Reader<'_>) -> Result<Target, Malformed> {
    Ok(reader.bounded(TARGETS_MAX as u64 - 1)? as Target)
}

fn put_laid(out: &mut Vec<u8>, laid: &Laid) {
    put_varint(out, u64::from(laid.object_bytes));
    put_varint(out, laid.placement.pieces().len() as u64);
    for Piece { first, run, targets } in laid.placement.pieces() {
        put_varint(out, u64::from(*first));
        put_varint(out, u64::from(*run));
        put_varint(out, targets.len() as u64);
        targets.iter().for_each(|target| put_varint(out, u64::from(*target)));
    }
}

fn laid(reader: &mut Reader<'_>) -> Result<Laid, Malformed> {
    let object_bytes = object_bytes(reader)?;
    let pieces = list(reader, PLACEMENT_PIECES_MAX, |reader| {
        let (first, run) = (index(reader)?, reader.u32()?);
        Ok(Piece { first, run, targets: list(reader, PLACEMENT_TARGETS_MAX, target)?.into() })
    })?;
    let placement = Placement::new(pieces).ok_or(Malformed("not a placement"))?;
    Ok(Laid { object_bytes, placement })
}

fn index(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    Ok(reader.bounded(OBJECTS_PER_FILE_MAX - 1)? as u32)
}

impl Message {
    /// The number in the frame header.
    pub fn kind(&self) -> u8 {
        match self {
            Message::Connect(_) => 0,
            Message::NewFile(_) => 1,
            Message::FileId { .. } => 2,
            Message::NewBlock { .. } => 3,
            Message::BlockDone { .. } => 4,
            Message::BlockSync { .. } => 5,
            Message::FileClose { .. } => 6,
            Message::Bye(_) => 7,
            Message::Manifest { .. } => 8,
            Message::Repair(_) => 9,
            Message::FileDrop { .. } => 10,
            Message::Notice { .. } => 11,
            Message::Finished(_) => 12,
            Message::Error(_) => 13,
            Message::Ping => 14,
            Message::Log(_) => 15,
            Message::Spill { .. } => 16,
            Message::Profile(_) => 17,
            Message::Before { .. } => 18,
        }
    }

    /// CONNECT and PING speak of one connection only: they have no sequence number and are never repeated.
    pub fn is_sequenced(&self) -> bool {
        !matches!(self, Message::Connect(_) | Message::Ping)
    }

    /// Appends the message, without its frame header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Message::Connect(connect) => {
                put_varint(out, u64::from(connect.version));
                put_varint(out, u64::from(connect.version_min));
                out.push(matches!(connect.role, Role::Sink).into());
                out.extend_from_slice(&connect.session.0);
                out.extend_from_slice(&connect.job.0);
                put_varint(out, u64::from(connect.object_bytes));
                put_varint(out, u64::from(connect.slots));
                put_varint(out, connect.features);
            }
            Message::NewFile(items) => {
                put_varint(out, items.len() as u64);
                for item in items {
                    match item {
                        NewFile::Entry { entry, object_bytes: None, .. } => {
                            out.push(1);
                            put_entry(out, entry);
                        }
                        NewFile::Entry { entry, object_bytes: Some(bytes), resume, stripes } => {
                            out.push(2);
                            put_entry(out, entry);
                            put_varint(out, u64::from(*bytes));
                            put_token(out, *resume);
                            put_plan(out, stripes.as_deref());
                        }
                        NewFile::End(id) => {
                            out.push(0);
                            put_id(out, *id);
                        }
                    }
                }
            }
            Message::FileId { answers, laid, unlike } => {
                put_varint(out, answers.len() as u64);
                for (id, answer) in answers {
                    put_id(out, *id);
                    match answer {
                        Answer::Skip => out.push(0),
                        Answer::Made => out.push(1),
                        Answer::Start(token) if *token == Token::NONE => out.push(2),
                        Answer::Start(token) => {
                            out.push(3);
                            out.extend_from_slice(&token.0);
                        }
                        Answer::Resume(token) => {
                            out.push(4);
                            out.extend_from_slice(&token.0);
                        }
                        Answer::Fail(failure) => {
                            out.push(5);
                            put_failure(out, *failure);
                        }
                    }
                }
                put_varint(out, laid.len() as u64);
                for (id, laid) in laid {
                    put_id(out, *id);
                    put_laid(out, laid);
                }
                put_varint(out, unlike.len() as u64);
                for (id, why) in unlike {
                    put_id(out, *id);
                    out.push(*why as u8);
                }
            }
            Message::NewBlock { block, slot, epoch, id, index, length, hash } => {
                put_varint(out, block.0);
                put_varint(out, u64::from(slot.0));
                put_varint(out, u64::from(*epoch));
                put_id(out, *id);
                put_varint(out, u64::from(*index));
                put_varint(out, u64::from(*length));
                put_hash(out, *hash);
            }
            Message::Manifest { block, slot, epoch, length, members } => {
                put_varint(out, block.0);
                put_varint(out, u64::from(slot.0));
                put_varint(out, u64::from(*epoch));
                put_varint(out, u64::from(*length));
                put_varint(out, members.len() as u64);
                for member in members {
                    put_id(out, member.id);
                    put_varint(out, u64::from(member.offset));
                    put_hash(out, member.hash);
                }
            }
            Message::BlockDone { slots, allowances } => {
                put_varint(out, slots.len() as u64);
                slots.iter().for_each(|slot| put_varint(out, u64::from(slot.0)));
                put_varint(out, allowances.len() as u64);
                for (target, count) in allowances {
                    put_varint(out, u64::from(*target));
                    put_varint(out, u64::from(*count));
                }
            }
            Message::BlockSync { objects, entries } => {
                put_varint(out, objects.len() as u64);
                for (id, index) in objects {
                    put_id(out, *id);
                    put_varint(out, u64::from(*index));
                }
                put_varint(out, entries.len() as u64);
                for (id, settled) in entries {
                    put_id(out, *id);
                    match settled {
                        Settled::Done(root) => {
                            out.push(0);
                            put_hash(out, *root);
                        }
                        Settled::Failed(failure) => {
                            out.push(1);
                            put_failure(out, *failure);
                        }
                        Settled::Kept(failure) => {
                            out.push(2);
                            put_failure(out, *failure);
                        }
                    }
                }
            }
            Message::Repair(repairs) => {
                put_varint(out, repairs.len() as u64);
                for repair in repairs {
                    put_id(out, repair.id);
                    put_varint(out, repair.index.map_or(0, |index| u64::from(index) + 1));
                    out.push(match repair.reason {
                        RepairReason::Lost => 0,
                        RepairReason::Hash => 1,
                        RepairReason::Sync => 2,
                    });
                }
            }
            Message::FileClose { id, root } => {
                put_id(out, *id);
                put_hash(out, *root);
            }
            Message::FileDrop { id, failure, restarts } => {
                put_id(out, *id);
                put_failure(out, *failure);
                out.push((*restarts).into());
            }
            Message::Notice { path, failure } => {
                put_bytes(out, &path[..path.len().min(NOTICE_PATH_BYTES_MAX)]);
                put_failure(out, *failure);
            }
            Message::Bye(stats) => stats_fields(stats).into_iter().for_each(|field| put_varint(out, field)),
            Message::Finished(failed) => {
                put_varint(out, failed.named().len() as u64);
                for (path, failure) in failed.named() {
                    put_bytes(out, &path[..path.len().min(NOTICE_PATH_BYTES_MAX)]);
                    put_failure(out, *failure);
                }
                put_varint(out, failed.more());
            }
            Message::Error(failure) => put_failure(out, *failure),
            Message::Ping => {}
            Message::Log(status) => {
                for word in [&status.mechanism, &status.method, &status.writer] {
                    put_bytes(out, &word[..word.len().min(WORD_BYTES_MAX)]);
                }
                put_varint(out, status.bytes_peak);
                put_varint(out, status.files_peak);
                put_bytes(out, &status.location[..status.location.len().min(NOTICE_PATH_BYTES_MAX)]);
                put_bytes(out, &status.lost[..status.lost.len().min(CAUSE_BYTES_MAX)]);
            }
            Message::Spill { failure, room } => {
                put_failure(out, *failure);
                put_varint(out, *room);
            }
            Message::Profile(profile) => put_profile(out, profile),
            Message::Before { id, objects, bytes } => {
                put_id(out, *id);
                put_varint(out, *objects);
                put_varint(out, *bytes);
            }
        }
    }

    /// The message of this kind; all of `bytes` must belong to it.
    pub fn decode(kind: u8, bytes: &[u8]) -> Result<Message, Malformed> {
        let reader = &mut Reader::new(bytes);
        let message = match kind {
            0 => Message::Connect(connect(reader)?),
            1 => Message::NewFile(list(reader, BATCH_ITEMS_MAX, |reader| {
                Ok(match reader.u8()? {
                    0 => NewFile::End(id(reader)?),
                    1 => NewFile::Entry {
                        entry: Arc::new(entry(reader)?),
                        object_bytes: None,
                        resume: None,
                        stripes: None,
                    },
                    2 => NewFile::Entry {
                        entry: file(reader)?,
                        object_bytes: Some(object_bytes(reader)?),
                        resume: token(reader)?,
                        stripes: plan(reader)?.map(Box::new),
                    },
                    _ => return Err(Malformed("no such step")),
                })
            })?),
            2 => Message::FileId {
                answers: list(reader, BATCH_ITEMS_MAX, |reader| Ok((id(reader)?, answer(reader)?)))?,
                laid: list(reader, BATCH_ITEMS_MAX, |reader| Ok((id(reader)?, laid(reader)?)))?,
                unlike: list(reader, Unlike::ALL.len(), |reader| Ok((id(reader)?, unlike(reader)?)))?,
            },
            3 => Message::NewBlock {
                block: BlockId(reader.varint()?),
                slot: slot(reader)?,
                epoch: reader.u32()?,
                id: id(reader)?,
                index: index(reader)?,
                length: reader.bounded(u64::from(OBJECT_BYTES_MAX))? as u32,
                hash: hash(reader)?,
            },
            4 => Message::BlockDone {
                slots: list(reader, SLOTS_MAX as usize, slot)?,
                allowances: list(reader, TARGETS_MAX, |reader| Ok((target(reader)?, reader.u32()?)))?,
            },
            5 => Message::BlockSync {
                objects: list(reader, BATCH_ITEMS_MAX, |reader| Ok((id(reader)?, index(reader)?)))?,
                entries: list(reader, BATCH_ITEMS_MAX, |reader| Ok((id(reader)?, settled(reader)?)))?,
            },
            6 => Message::FileClose { id: id(reader)?, root: hash(reader)? },
            7 => Message::Bye(stats(reader)?),
            8 => Message::Manifest {
                block: BlockId(reader.varint()?),
                slot: slot(reader)?,
                epoch: reader.u32()?,
                length: reader.bounded(u64::from(OBJECT_BYTES_MAX))? as u32,
                members: list(reader, MEMBERS_MAX, |reader| {
                    let (id, offset) = (id(reader)?, reader.bounded(u64::from(OBJECT_BYTES_MAX))?);
                    Ok(Member { id, offset: offset as u32, hash: hash(reader)? })
                })?,
            },
            9 => Message::Repair(list(reader, BATCH_ITEMS_MAX, repair)?),
            10 => Message::FileDrop { id: id(reader)?, failure: reader.failure()?, restarts: reader.flag()? },
            11 => Message::Notice { path: reader.boxed(NOTICE_PATH_BYTES_MAX)?, failure: reader.failure()? },
            12 => {
                let named = list(reader, BATCH_ITEMS_MAX, |reader| {
                    Ok((reader.boxed(NOTICE_PATH_BYTES_MAX)?, reader.failure()?))
                })?;
                let named = FailedPaths::from_iter(named);
                if named.more() > 0 {
                    return Err(Malformed("more paths than one message has room for"));
                }
                Message::Finished(named.with_more(reader.varint()?))
            }
            13 => Message::Error(reader.failure()?),
            14 => Message::Ping,
            15 => Message::Log(Box::new(LogStatus {
                mechanism: reader.boxed(WORD_BYTES_MAX)?,
                method: reader.boxed(WORD_BYTES_MAX)?,
                writer: reader.boxed(WORD_BYTES_MAX)?,
                bytes_peak: reader.varint()?,
                files_peak: reader.varint()?,
                location: reader.boxed(NOTICE_PATH_BYTES_MAX)?,
                lost: reader.boxed(CAUSE_BYTES_MAX)?,
            })),
            16 => Message::Spill { failure: reader.failure()?, room: reader.varint()? },
            17 => Message::Profile(Box::new(profile(reader)?)),
            18 => Message::Before { id: id(reader)?, objects: reader.varint()?, bytes: reader.varint()? },
            _ => return Err(Malformed("no such message")),
        };
        reader.end()?;
        Ok(message)
    }
}

fn list<T>(
    reader: &mut Reader<'_>,
    max: usize,
    mut item: impl FnMut(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let count = reader.count(max)?;
    (0..count).map(|_| item(reader)).collect()
}

fn file(reader: &mut Reader<'_>) -> Result<Arc<Entry>, Malformed> {
    let entry = entry(reader)?;
    if entry.size() == 0 {
        return Err(Malformed("only a file with content has objects"));
    }
    Ok(Arc::new(entry))
}

fn connect(reader: &mut Reader<'_>) -> Result<Connect, Malformed> {
    Ok(Connect {
        version: reader.bounded(u64::from(u16::MAX))? as u16,
        version_min: reader.bounded(u64::from(u16::MAX))? as u16,
        role: if reader.flag()? { Role::Sink } else { Role::Source },
        session: SessionId(reader.array()?),
        job: JobId(reader.array()?),
        object_bytes: reader.bounded(u64::from(OBJECT_BYTES_MAX))? as u32,
        slots: reader.bounded(u64::from(SLOTS_MAX))? as u32,
        features: reader.varint()?,
    })
}

fn answer(reader: &mut Reader<'_>) -> Result<Answer, Malformed> {
    Ok(match reader.u8()? {
        0 => Answer::Skip,
        1 => Answer::Made,
        2 => Answer::Start(Token::NONE),
        3 => Answer::Start(Token(reader.array()?)),
        4 => Answer::Resume(Token(reader.array()?)),
        5 => Answer::Fail(reader.failure()?),
        _ => return Err(Malformed("no such answer")),
    })
}

fn unlike(reader: &mut Reader<'_>) -> Result<Unlike, Malformed> {
    Unlike::ALL.get(usize::from(reader.u8()?)).copied().ok_or(Malformed("no such difference"))
}

fn settled(reader: &mut Reader<'_>) -> Result<Settled, Malformed> {
    Ok(match reader.u8()? {
        0 => Settled::Done(hash(reader)?),
        1 => Settled::Failed(reader.failure()?),
        2 => Settled::Kept(reader.failure()?),
        _ => return Err(Malformed("no such end")),
    })
}

fn repair(reader: &mut Reader<'_>) -> Result<Repair, Malformed> {
    Ok(Repair {
        id: id(reader)?,
        index: match reader.bounded(OBJECTS_PER_FILE_MAX)? {
            0 => None,
            index => Some((index - 1) as u32),
        },
        reason: match reader.u8()? {
            0 => RepairReason::Lost,
            1 => RepairReason::Hash,
            2 => RepairReason::Sync,
            _ => return Err(Malformed("no such reason")),
        },
    })
}

fn stats_fields(stats: &Stats) -> [u64; 14] {
    let Stats {
        files_total,
        files_done,
        files_skipped,
        files_failed,
        directories,
        hard_links,
        bytes_total,
        bytes_sent,
        bytes_skipped,
        bytes_done,
        objects_sent,
        objects_skipped,
        objects_repaired,
        bytes_spilled,
    } = *stats;
    [
        files_total,
        files_done,
        files_skipped,
        files_failed,
        directories,
        hard_links,
        bytes_total,
        bytes_sent,
        bytes_skipped,
        bytes_done,
        objects_sent,
        objects_skipped,
        objects_repaired,
        bytes_spilled,
    ]
}

fn stats(reader: &mut Reader<'_>) -> Result<Stats, Malformed> {
    Ok(Stats {
        files_total: reader.varint()?,
        files_done: reader.varint()?,
        files_skipped: reader.varint()?,
        files_failed: reader.varint()?,
        directories: reader.varint()?,
        hard_links: reader.varint()?,
        bytes_total: reader.varint()?,
        bytes_sent: reader.varint()?,
        bytes_skipped: reader.varint()?,
        bytes_done: reader.varint()?,
        objects_sent: reader.varint()?,
        objects_skipped: reader.varint()?,
        objects_repaired: reader.varint()?,
        bytes_spilled: reader.varint()?,
    })
}
