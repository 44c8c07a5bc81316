//! What storage is asked of a file beside its contents: is it the version that was announced still, and what is it now?
//!
//! The questions have threads of their own, so that one that hangs holds up no read. Where files are on several targets they are
//! watched as the sink's errands are (`crate::errands`): one that takes long is relieved, and after a limit its file is named.
//! Where all is on one target there is nothing better to do than to wait for it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use haul_model::limits::ENTRIES_OPEN_MAX;
use haul_model::op::SourceOp;
use haul_model::{Code, EntryId, Failure};

use super::Source;
use super::choose::TIMED_OUT;
use crate::event::Action;
use crate::states::SourceState;

/// What takes longer gets another thread for those that come after it.
const LONG_NANOS: u64 = 2_000_000_000;
/// Or than so much of a limit that somebody has set.
const LONG_PART: u64 = 4;
/// So often they are looked for: by then the new threads may be held up, too.
const EVERY_NANOS: u64 = 100_000_000;
/// What takes longer is not waited for.
const LIMIT_NANOS: u64 = 120_000_000_000;

/// A question, and the state of the entry that waits for its answer.
struct Look {
    id: EntryId,
    waits_in: SourceState,
    since_nanos: u64,
}

/// Those that were asked, the oldest first. Some are answered.
#[derive(Default)]
pub(super) struct Looks {
    asked: VecDeque<Look>,
    next_relief_nanos: u64,
    /// So many were left when those that are answered were last taken out from between the others.
    left: usize,
}

impl Source {
    /// Asks storage; the entry is in the state in which it waits for the answer.
    pub(super) fn look(&mut self, id: EntryId, op: SourceOp) {
        if let Some(held) = self.entries.get(id) {
            let (waits_in, since_nanos) = (held.state, self.clock.now());
            self.looks.asked.push_back(Look { id, waits_in, since_nanos });
        }
        self.actions.push_back(Action::Source(op));
    }

    fn is_unanswered(&self, look: &Look) -> bool {
        self.entries.get(look.id).is_some_and(|held| held.state == look.waits_in)
    }

    /// Looks after those that take long.
    pub(super) fn watch_looks(&mut self) {
        let (now, several) = (self.clock.now(), self.hands.has_several_targets());
        let limit = self.config.hangs_after_nanos.unwrap_or(LIMIT_NANOS);
        while let Some(look) = self.looks.asked.front() {
            let waits = self.is_unanswered(look);
            if waits && !(several && now.saturating_sub(look.since_nanos) >= limit) {
                break;
            }
            let Some(Look { id, waits_in, .. }) = self.looks.asked.pop_front() else { break };
            if waits {
                let failure = Failure::os(Code::SourceRead, TIMED_OUT);
                // They only fail for an entry in another state.
                let _ = match waits_in {
                    SourceState::Confirming => self.on_confirmed(id, Err(failure)),
                    _ => self.on_restated(id, Err(failure)),
                };
            }
        }
        // Behind one that hangs.
        if self.looks.asked.len() > 2 * self.looks.left + ENTRIES_OPEN_MAX {
            let (asked, entries) = (&mut self.looks.asked, &self.entries);
            asked.retain(|look| entries.get(look.id).is_some_and(|held| held.state == look.waits_in));
            self.looks.left = asked.len();
        }
        if several && now >= self.looks.next_relief_nanos {
            self.looks.next_relief_nanos = now + EVERY_NANOS;
            let long_nanos = LONG_NANOS.min(limit / LONG_PART);
            let long = |look: &&Look| now.saturating_sub(look.since_nanos) >= long_nanos;
            let late = self.looks.asked.iter().take_while(long).filter(|look| self.is_unanswered(look));
            let relieved: Vec<Action> = late.map(|look| Action::RelieveLook(look.id)).collect();
            self.actions.extend(relieved);
        }
    }
}
