//! The words of a trace: messages and operations in one short line each.

use std::fmt;

use haul_model::op::{Landed, Prepare, Prepared, SinkDone, SinkOp, SourceDone, SourceOp};
use haul_model::{BlockId, Entry, EntryId, Failure, Hash, Kind, SlotId, Token};
use haul_protocol::LogOp;
use haul_wire::{Answer, Message, NewFile, RepairReason, Settled};

/// A value of another crate, in a form that can be read.
pub(crate) struct Short<'a, T: ?Sized>(pub &'a T);

/// Several of them, with commas between.
struct List<'a, T>(&'a [T]);

impl<T> fmt::Display for List<'_, T>
where
    for<'b> Short<'b, T>: fmt::Display,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.0.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{}", Short(item))?;
        }
        if self.0.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

macro_rules! short {
    ($($type:ty, |$value:ident, $f:ident| $body:expr;)*) => {$(
        impl fmt::Display for Short<'_, $type> {
            fn fmt(&self, $f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let $value = self.0;
                $body
            }
        }
    )*};
}

short! {
    EntryId, |id, f| match id.0.checked_sub(1 << 62) {
        Some(again) if id.root_index().is_none() => write!(f, "again{again}"),
        _ => write!(f, "{id:?}"),
    };
    SlotId, |slot, f| write!(f, "slot {}", slot.0);
    BlockId, |block, f| write!(f, "block {}", block.0);
    Token, |token, f| match token.0[6..] {
        _ if *token == Token::NONE => f.write_str("a bundle"),
        [a, b, c, d, .., last] => write!(f, "token {}.{last}", u32::from_be_bytes([a, b, c, d])),
        _ => Ok(()),
    };
    Hash, |hash, f| write!(f, "{:02x}{:02x}{:02x}", hash.0[0], hash.0[1], hash.0[2]);
    Failure, |failure, f| f.write_str(failure.code.name());
    Entry, |entry, f| {
        let (id, parent) = (Short(&entry.id), Short(&entry.parent));
        let name = String::from_utf8_lossy(&entry.name);
        match entry.kind {
            Kind::File => write!(f, "{id} file {parent}/{name} of {} B, state {}", entry.size(), entry.identity.ctime.seconds),
            kind => write!(f, "{id} {kind:?} {parent}/{name}"),
        }
    };
    NewFile, |item, f| match item {
        NewFile::End(id) => write!(f, "end of {}", Short(id)),
        NewFile::Entry { entry, object_bytes, resume, .. } => {
            write!(f, "{}", Short(&**entry))?;
            object_bytes.map_or(Ok(()), |bytes| write!(f, " in objects of {bytes}"))?;
            resume.map_or(Ok(()), |token| write!(f, " from {}", Short(&token)))
        }
    };
    (EntryId, Answer), |answer, f| {
        write!(f, "{} ", Short(&answer.0))?;
        match &answer.1 {
            Answer::Skip => f.write_str("is there"),
            Answer::Made => f.write_str("made"),
            Answer::Start(token) => write!(f, "starts in {}", Short(token)),
            Answer::Resume(token) => write!(f, "goes on in {}", Short(token)),
            Answer::Fail(failure) => write!(f, "fails: {}", Short(failure)),
        }
    };
    (EntryId, Prepared), |answer, f| {
        write!(f, "{} ", Short(&answer.0))?;
        match &answer.1 {
            Prepared::Skip => f.write_str("is there"),
            Prepared::Made => f.write_str("made"),
            Prepared::Start(token) => write!(f, "starts in {}", Short(token)),
            Prepared::Resume(token) => write!(f, "goes on in {}", Short(token)),
            Prepared::Fail(failure) => write!(f, "fails: {}", Short(failure)),
        }
    };
    (EntryId, haul_model::Laid), |laid, f| {
        write!(f, " {} in objects of {}", Short(&laid.0), laid.1.object_bytes)
    };
    (EntryId, u32), |object, f| write!(f, "{}[{}]", Short(&object.0), object.1);
    (EntryId, Failure), |failed, f| write!(f, "{}: {}", Short(&failed.0), Short(&failed.1));
    (EntryId, Settled), |settled, f| match &settled.1 {
        Settled::Done(_) => write!(f, "{} done", Short(&settled.0)),
        Settled::Failed(failure) => write!(f, "{} failed: {}", Short(&settled.0), Short(failure)),
        Settled::Kept(failure) => write!(f, "{} failed and stays: {}", Short(&settled.0), Short(failure)),
    };
    haul_wire::Repair, |repair, f| {
        let why = match repair.reason {
            RepairReason::Lost => "lost",
            RepairReason::Hash => "hash",
            RepairReason::Sync => "sync",
        };
        match repair.index {
            Some(index) => write!(f, "{}[{index}] ({why})", Short(&repair.id)),
            None => write!(f, "{} ({why})", Short(&repair.id)),
        }
    };
    haul_wire::Member, |member, f| write!(f, "{} at {}", Short(&member.id), member.offset);
    haul_model::op::MemberWritten, |result, f| match result {
        Ok(Landed::Written) => f.write_str("ok"),
        Ok(Landed::Made(target)) => write!(f, "made on {target}"),
        Ok(Landed::Named) => f.write_str("named"),
        Err(failure) => write!(f, "{}", Short(failure)),
    };
    Option<Hash>, |hash, f| match hash {
        Some(hash) => write!(f, "hash {}", Short(hash)),
        None => f.write_str("a hash that follows"),
    };
    Result<(), Failure>, |result, f| match result {
        Ok(()) => f.write_str("ok"),
        Err(failure) => write!(f, "{}", Short(failure)),
    };
    Message, |message, f| match message {
        Message::Connect(_) => f.write_str("CONNECT"),
        Message::NewFile(items) => write!(f, "NEW_FILE {}", List(items)),
        Message::FileId { answers, laid, .. } => write!(f, "FILE_ID {}{}", List(answers), List(laid)),
        Message::NewBlock { block, slot, epoch, id, index, length, hash } => write!(
            f,
            "NEW_BLOCK {} = {}[{index}], {length} B of {}, into {} (connection {epoch})",
            Short(block), Short(id), Short(hash), Short(slot)
        ),
        Message::Manifest { block, slot, epoch, length, members } => write!(
            f,
            "MANIFEST {} = {}, {length} B, into {} (connection {epoch})",
            Short(block), List(members), Short(slot)
        ),
        Message::BlockDone { slots, .. } => write!(f, "BLOCK_DONE {}", List(slots)),
        Message::BlockSync { objects, entries } if entries.is_empty() => write!(f, "BLOCK_SYNC {}", List(objects)),
        Message::BlockSync { entries, .. } => write!(f, "BLOCK_SYNC {}", List(entries)),
        Message::Repair(repairs) => write!(f, "REPAIR {}", List(repairs)),
        Message::FileClose { id, .. } => write!(f, "FILE_CLOSE {}", Short(id)),
        Message::Before { id, objects, .. } => write!(f, "BEFORE {}: {objects} objects", Short(id)),
        Message::FileDrop { id, failure, restarts } => {
            let again = if *restarts { ", starts again" } else { "" };
            write!(f, "FILE_DROP {}: {}{again}", Short(id), Short(failure))
        }
        Message::Notice { path, failure } => {
            write!(f, "NOTICE {}: {}", String::from_utf8_lossy(path), Short(failure))
        }
        Message::Bye(_) => f.write_str("BYE"),
        Message::Finished(failed) => write!(f, "FINISHED, {} directories failed", failed.count()),
        Message::Error(failure) => write!(f, "ERROR {}", Short(failure)),
        Message::Ping => f.write_str("PING"),
        Message::Log(_) => f.write_str("LOG"),
        Message::Profile(_) => f.write_str("PROFILE"),
        Message::Spill { failure, room } => write!(f, "SPILL {}, room for {room} B", Short(failure)),
    };
    SourceOp, |op, f| match op {
        SourceOp::ReadObject { block, entry, offset, length, slot, .. } => write!(
            f,
            "read {} = {} B at {offset} of {} into {}",
            Short(block), length, Short(&entry.id), Short(slot)
        ),
        SourceOp::ReadMembers { block, slot, members, .. } => {
            let ids: Vec<EntryId> = members.iter().map(|entry| entry.id).collect();
            write!(f, "read {} = {} into {}", Short(block), List(&ids), Short(slot))
        }
        SourceOp::Spill { block, slot, at, length } => {
            write!(f, "put {} = {length} B at {at} of the spill, from {}", Short(block), Short(slot))
        }
        SourceOp::Unspill { block, slot, at, length, .. } => {
            write!(f, "get {} = {length} B back from {at} of the spill into {}", Short(block), Short(slot))
        }
        SourceOp::Confirm { entry } => write!(f, "confirm {}", Short(&entry.id)),
        SourceOp::Restat { entry } => write!(f, "look again at {}", Short(&entry.id)),
        SourceOp::Release { id } => write!(f, "release {}", Short(id)),
        SourceOp::Forget { id } => write!(f, "forget {}", Short(id)),
    };
    SourceDone, |done, f| match done {
        SourceDone::Object { block, result } => {
            write!(f, "{} read: {}", Short(block), Short(&result.map(drop)))
        }
        SourceDone::Members { block, results, .. } => {
            let results: Vec<Result<(), Failure>> = results.iter().map(|result| result.map(drop)).collect();
            write!(f, "{} read: {}", Short(block), List(&results))
        }
        SourceDone::Spilled { block, result } => {
            write!(f, "{} put away: {}", Short(block), Short(&result.map(drop)))
        }
        SourceDone::Confirmed { id, result } => write!(f, "{} confirmed: {}", Short(id), Short(result)),
        SourceDone::Restated { id, result } => match result {
            Ok(entry) => write!(f, "{} is now {}", Short(id), Short(&**entry)),
            Err(failure) => write!(f, "{} is now {}", Short(id), Short(failure)),
        },
    };
    Prepare, |step, f| match step {
        Prepare::Entry { entry, .. } => write!(f, "{}", Short(&entry.id)),
        Prepare::End(id) => write!(f, "end of {}", Short(id)),
    };
    SinkOp, |op, f| match op {
        SinkOp::Prepare { batch, items } => write!(f, "prepare {batch}: {}", List(items)),
        SinkOp::WriteObject { block, entry, token, offset, length, slot, .. } => write!(
            f,
            "write {} from {}: {length} B at {offset} of {} in {}",
            Short(block), Short(slot), Short(&entry.id), Short(token)
        ),
        SinkOp::WriteMembers { block, step, slot, members, .. } => {
            let ids: Vec<EntryId> = members.iter().map(|member| member.entry.id).collect();
            write!(f, "{step:?} {} from {}: {}", Short(block), Short(slot), List(&ids))
        }
        SinkOp::Lay { entry, token, .. } => write!(f, "lay {} in {}", Short(&entry.id), Short(token)),
        SinkOp::Seal { entry, .. } => write!(f, "seal {}", Short(&entry.id)),
        SinkOp::Sync { group, files } => write!(f, "sync {group}: {}", List(files)),
        SinkOp::Publish { group, files } => write!(f, "publish {group}: {}", List(files)),
        SinkOp::SyncNames { group, entries } => write!(f, "sync names {group}: {}", List(entries)),
        SinkOp::Discard { id, keep: true, .. } => write!(f, "let go of {}", Short(id)),
        SinkOp::Discard { id, token, .. } => write!(f, "discard {} in {}", Short(id), Short(token)),
        SinkOp::Forget { id } => write!(f, "forget {}", Short(id)),
        SinkOp::FinishDirectories { .. } => f.write_str("finish directories"),
    };
    SinkDone, |done, f| match done {
        SinkDone::Prepared { batch, answers, laid, unlaid } => {
            write!(f, "prepared {batch}: {}{}, to be laid: {}", List(answers), List(laid), List(unlaid))
        }
        SinkDone::Laid { id, result, .. } => match result {
            Ok(laid) => write!(f, "{} is laid: {laid:?}", Short(id)),
            Err(failure) => write!(f, "{} cannot be laid: {}", Short(id), Short(failure)),
        },
        SinkDone::Written { block, result } => write!(f, "{} written: {}", Short(block), Short(result)),
        SinkDone::WrittenMembers { block, step, results } => {
            write!(f, "{} {step:?}: {}", Short(block), List(results))
        }
        SinkDone::Sealed { id, result } => write!(f, "{} sealed: {}", Short(id), Short(&result.map(drop))),
        SinkDone::Synced { group, failed } => write!(f, "synced {group}, failed {}", List(failed)),
        SinkDone::Published { group, failed } => write!(f, "published {group}, failed {}", List(failed)),
        SinkDone::SyncedNames { group, failed } => {
            write!(f, "synced names {group}, failed {}", List(failed))
        }
        SinkDone::Discarded { id } => write!(f, "discarded {}", Short(id)),
        SinkDone::DirectoriesFinished { failed } => {
            write!(f, "directories finished, {} failed", failed.count())
        }
    };
    LogOp, |op, f| match op {
        LogOp::Begin { id, objects, token, .. } => {
            write!(f, "begins {} of {objects} objects in {}", Short(id), Short(token))
        }
        LogOp::Resume { id, .. } => write!(f, "resumes {}", Short(id)),
        LogOp::Record { id, index } => write!(f, "records {}[{index}]", Short(id)),
        LogOp::Remove { id } => write!(f, "removes {}", Short(id)),
        LogOp::Clear => f.write_str("clears all"),
    };
}
