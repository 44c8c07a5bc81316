//! What was lent and could not be had: it counts as sent no longer.
//!
//! Within one process a payload is lent before anybody has looked at it (decision 19). Whoever takes it may find that it cannot be
//! read; then it was never sent, as it would not have been between two processes. A bundle counts as one object as long as any of
//! its members was had.

use alloc::collections::BTreeMap;

/// Bundles of which no member is known to have been had.
#[derive(Default)]
pub(super) struct Lent {
    last: u32,
    /// Members that were not refused, by the bundle's number; those numbers are not 0.
    bundles: BTreeMap<u32, usize>,
}

impl Lent {
    /// A bundle of so many members is lent. Its number.
    pub fn begins(&mut self, members: usize) -> u32 {
        self.last = self.last.checked_add(1).unwrap_or(1);
        self.bundles.insert(self.last, members);
        self.last
    }

    /// A member has ended otherwise than by being refused.
    pub fn had(&mut self, bundle: u32) {
        self.bundles.remove(&bundle);
    }

    /// A member could not be had. True if none of its bundle could.
    pub fn refused(&mut self, bundle: u32) -> bool {
        let Some(left) = self.bundles.get_mut(&bundle) else { return false };
        *left = left.saturating_sub(1);
        let none = *left == 0;
        if none {
            self.bundles.remove(&bundle);
        }
        none
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_was_sent_unless_all_its_members_were_refused() {
        let mut lent = Lent::default();
        let (all, some) = (lent.begins(2), lent.begins(2));
        assert!(!lent.refused(all) && !lent.refused(some));
        lent.had(some);
        assert!(lent.refused(all) && !lent.refused(some));
        assert!(lent.bundles.is_empty());
    }
}
