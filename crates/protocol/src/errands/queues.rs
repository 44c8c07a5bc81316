//! What waits for a thread, by the targets that it is on.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use haul_model::Target;
use haul_model::op::SinkOp;

/// An errand that waits for a thread.
pub(super) struct Waiting<A> {
    pub op: SinkOp,
    pub about: A,
    /// Its place in the order in which they were asked for.
    pub place: u64,
    /// How many syncs had been handed out by then.
    pub after: u64,
}

/// What is waited for differently. In the order in which they are handed out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    /// No sync.
    Quick,
    Sync,
    /// Either, when no group waits for it any more.
    Aside,
}

/// What waits, by its kind and the targets that it is on.
pub(super) struct Queues<A>(BTreeMap<(Kind, Vec<Target>), VecDeque<Waiting<A>>>);

impl<A> Default for Queues<A> {
    fn default() -> Self {
        Queues(BTreeMap::new())
    }
}

impl<A> Queues<A> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn count(&self, kind: Kind) -> usize {
        self.0.iter().filter(|((other, _), _)| *other == kind).map(|(_, queue)| queue.len()).sum()
    }

    pub fn push(&mut self, kind: Kind, targets: Vec<Target>, waiting: Waiting<A>) {
        self.0.entry((kind, targets)).or_default().push_back(waiting);
    }

    /// Takes the one of the lowest rank, of several the one that was asked for first. Those without a rank are left.
    pub fn take<R: Ord>(
        &mut self,
        rank: impl Fn(Kind, &[Target], &Waiting<A>) -> Option<R>,
    ) -> Option<(Kind, Vec<Target>, Waiting<A>)> {
        let ranked = self.0.iter().filter_map(|(key, queue)| {
            let first = queue.front()?;
            Some((rank(key.0, &key.1, first)?, first.place, key))
        });
        let (_, _, key) = ranked.min_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)))?;
        let key = key.clone();
        let queue = self.0.get_mut(&key)?;
        let waiting = queue.pop_front()?;
        if queue.is_empty() {
            self.0.remove(&key);
        }
        Some((key.0, key.1, waiting))
    }
}
