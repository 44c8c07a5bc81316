//! Storage that answers honestly, and fails now and then.

use haul_model::op::{
    Landed, MemberRead, MembersStep, Prepare, Prepared, SinkDone, SinkOp, SourceDone, SourceOp,
};
use haul_model::report::FailedPaths;
use haul_model::{Code, EntryId, Failure, Hash, Kind, SlotId, Token};

use crate::random::Random;

/// The slots that operations of the sink's storage are using.
pub fn slot_of(op: &SinkOp) -> Option<SlotId> {
    match op {
        SinkOp::WriteObject { slot, .. } | SinkOp::WriteMembers { slot, .. } => Some(*slot),
        _ => None,
    }
}

pub fn answer_sink(op: SinkOp, random: &mut Random) -> Option<SinkDone> {
    let codes = [Code::HashMismatch, Code::SinkWrite, Code::SinkSync, Code::SinkNoSpace];
    let result =
        |random: &mut Random| if random.one_in(5) { Err(random.pick(&codes).into()) } else { Ok(()) };
    let some = |ids: &[EntryId], random: &mut Random| {
        let fails = |id: &EntryId| random.one_in(6).then_some((*id, Failure::new(Code::SinkSync)));
        ids.iter().filter_map(fails).collect::<Vec<_>>()
    };
    Some(match op {
        SinkOp::Prepare { batch, items } => {
            let mut answers = Vec::new();
            for item in items {
                let Prepare::Entry { entry, resume, object_bytes, .. } = item else { continue };
                let objects = object_bytes.is_some();
                let token = Token([9; 16]);
                let answer = match (entry.kind, random.below(5)) {
                    (_, 0) => Prepared::Fail(Code::SinkPermission.into()),
                    (Kind::Directory, _) => Prepared::Made,
                    (_, 1) => Prepared::Skip,
                    (Kind::Symlink, _) => Prepared::Made,
                    (_, 2) if objects && resume.is_some() => Prepared::Resume(token),
                    _ => Prepared::Start(if objects { token } else { Token::NONE }),
                };
                answers.push((entry.id, answer));
            }
            let starts = |(_, answer): &&(EntryId, Prepared)| matches!(answer, Prepared::Start(token) | Prepared::Resume(token) if *token != Token::NONE);
            let unlaid =
                answers.iter().filter(starts).filter(|_| random.one_in(3)).map(|(id, _)| *id).collect();
            SinkDone::Prepared { batch, answers, laid: Vec::new(), unlaid }
        }
        SinkOp::WriteObject { block, entry, offset, length, .. } => {
            assert!(offset + u64::from(length) <= entry.size(), "a write past the end of the file");
            SinkDone::Written { block, result: result(random) }
        }
        SinkOp::WriteMembers { block, step, members, length, .. } => {
            for member in &members {
                assert!(u64::from(member.offset) + member.entry.size() <= u64::from(length));
            }
            let made = |random: &mut Random| match step {
                MembersStep::Make if random.one_in(3) => Landed::Made(7),
                MembersStep::Make if random.one_in(3) => Landed::Named,
                _ => Landed::Written,
            };
            let results = members.iter().map(|_| result(random).map(|()| made(random))).collect();
            SinkDone::WrittenMembers { block, step, results }
        }
        SinkOp::Lay { entry, .. } => {
            SinkDone::Laid { id: entry.id, result: result(random).map(|()| None), unlike: None }
        }
        SinkOp::Seal { entry, .. } => {
            let hash = random.hash();
            SinkDone::Sealed { id: entry.id, result: result(random).map(|()| hash) }
        }
        SinkOp::Sync { group, files } => SinkDone::Synced { group, failed: some(&files, random) },
        SinkOp::Publish { group, files } => SinkDone::Published { group, failed: some(&files, random) },
        SinkOp::SyncNames { group, entries } => {
            SinkDone::SyncedNames { group, failed: some(&entries, random) }
        }
        SinkOp::Discard { id, .. } => SinkDone::Discarded { id },
        SinkOp::FinishDirectories { .. } => SinkDone::DirectoriesFinished { failed: FailedPaths::default() },
        SinkOp::Forget { .. } => return None,
    })
}

/// Of every object; so the spill gives back what it was given.
const HASH: Hash = Hash([1; 32]);

pub fn answer_source(op: SourceOp, random: &mut Random) -> Option<SourceDone> {
    let codes = [Code::SourceChanged, Code::SourceRead, Code::SourceVanished];
    let result =
        |random: &mut Random| if random.one_in(6) { Err(random.pick(&codes).into()) } else { Ok(()) };
    Some(match op {
        SourceOp::ReadObject { block, on_the_way, .. } => {
            let hash = (!on_the_way || random.one_in(2)).then_some(HASH);
            SourceDone::Object { block, result: result(random).map(|()| hash) }
        }
        SourceOp::Spill { block, .. } => SourceDone::Spilled { block, result: result(random).map(|()| None) },
        SourceOp::Unspill { block, .. } => {
            let hash = if random.one_in(9) { random.hash() } else { HASH };
            SourceDone::Object { block, result: result(random).map(|()| Some(hash)) }
        }
        SourceOp::ReadMembers { block, members, on_the_way, .. } => {
            let mut offset = 0;
            let mut results = Vec::new();
            for entry in members {
                let start = offset;
                let hash = if on_the_way { random.some_hash() } else { Some(random.hash()) };
                offset += entry.size() as u32;
                results.push(result(random).map(|()| MemberRead { offset: start, hash }));
            }
            SourceDone::Members { block, length: offset, results }
        }
        SourceOp::Confirm { entry } => SourceDone::Confirmed { id: entry.id, result: result(random) },
        SourceOp::Restat { entry } => {
            let again = random.entry(entry.id, entry.parent);
            SourceDone::Restated { id: entry.id, result: result(random).map(|()| Box::new(again)) }
        }
        SourceOp::Release { .. } | SourceOp::Forget { .. } => return None,
    })
}

pub fn local_of(op: &SourceOp) -> Option<SlotId> {
    match op {
        SourceOp::ReadObject { slot, .. }
        | SourceOp::ReadMembers { slot, .. }
        | SourceOp::Spill { slot, .. }
        | SourceOp::Unspill { slot, .. } => Some(*slot),
        _ => None,
    }
}
