//! What storage says to a session that is superseded.

use haul_model::op::{Prepare, Prepared, SinkDone, SinkOp};
use haul_model::report::FailedPaths;
use haul_model::{Code, EntryId, Failure};

/// The completion of an operation that is refused because a newer session owns the destination.
pub fn refused(op: &SinkOp) -> Option<SinkDone> {
    let failure = Failure::new(Code::Superseded);
    let all = |ids: &[EntryId]| ids.iter().map(|id| (*id, failure)).collect();
    Some(match op {
        SinkOp::Prepare { batch, items } => {
            let refuse = |item: &Prepare| match item {
                Prepare::Entry { entry, .. } => Some((entry.id, Prepared::Fail(failure))),
                Prepare::End(_) => None,
            };
            let answers = items.iter().filter_map(refuse).collect();
            SinkDone::Prepared { batch: *batch, answers, laid: Vec::new(), unlaid: Vec::new() }
        }
        SinkOp::WriteObject { block, .. } => SinkDone::Written { block: *block, result: Err(failure) },
        SinkOp::WriteMembers { block, step, members, .. } => {
            let results = members.iter().map(|_| Err(failure)).collect();
            SinkDone::WrittenMembers { block: *block, step: *step, results }
        }
        SinkOp::Lay { entry, .. } => SinkDone::Laid { id: entry.id, result: Err(failure), unlike: None },
        SinkOp::Seal { entry, .. } => SinkDone::Sealed { id: entry.id, result: Err(failure) },
        SinkOp::Sync { group, files } => SinkDone::Synced { group: *group, failed: all(files) },
        SinkOp::Publish { group, files } => SinkDone::Published { group: *group, failed: all(files) },
        SinkOp::SyncNames { group, entries } => SinkDone::SyncedNames { group: *group, failed: all(entries) },
        SinkOp::Discard { id, .. } => SinkDone::Discarded { id: *id },
        SinkOp::Forget { .. } => return None,
        SinkOp::FinishDirectories { .. } => SinkDone::DirectoriesFinished { failed: FailedPaths::default() },
    })
}
