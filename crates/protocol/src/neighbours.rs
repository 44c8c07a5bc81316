//! What other transfers on this host say of the targets that this end is at, and what follows for it.
//!
//! Every end says the same kind of thing to all others ([`Statement`]), keeps what it hears for as long as it is fresh, and
//! works out its own part of each target by itself. Nobody is in charge, so nobody's end has to be noticed: what is not
//! said again is forgotten.
//!
//! # Parts
//!
//! What one transfer alone may have under way on a target is split: users get equal parts, and so do the transfers of a
//! user. The units of it are numbered, from a number that rises with time: unit *k* is the user's with the number
//! *k mod U*, and of that user the transfer's with the number *(k div U) mod F*. All who hear the same find the same, and
//! each unit is exactly one transfer's; where there are fewer units than transfers they take turns.
//!
//! # Trust
//!
//! Who speaks, and for which user, the kernel says. What they say is advice within bounds: however many transfers another
//! user claims to have, they cost the transfers of this user half of a target at most; more than [`USERS_MAX`] users, which one
//! person can be where there are subordinate user numbers, cost no more than that many; that a target is congested counts only until it was tried from here ([`Scheduler::neighbours_said`](crate::scheduler::Scheduler::neighbours_said)).

use alloc::vec::Vec;

use hashbrown::HashMap;
use haul_model::limits::{NEIGHBOURS_MAX, STATEMENT_TARGETS_MAX};
use haul_wire::{Statement, TargetStatement};

use crate::planted::{NeighbourBug, Planted};
use crate::scheduler::{Said, TargetId, Told};

/// How long it is the same transfer's turn: about as long as a slow target needs for an object, so that the last request
/// of one turn is seldom there in all of the next.
const TURN_NANOS: u64 = 2_000_000_000;
/// A statement holds for so many of its periods: two may be lost.
const PERIODS: u64 = 3;
/// Whatever period it names.
const PERIOD_MILLIS: core::ops::RangeInclusive<u16> = 100..=4000;

/// A target is shared among so many users at most; where there are more, some have the same part.
pub const USERS_MAX: u64 = 8;

/// Whose requests they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Party {
    /// Number of the user.
    pub user: u32,
    /// Number of the transfer.
    pub transfer: u64,
}

struct Neighbour {
    party: Party,
    until_nanos: u64,
    /// By identity; only those that are known here.
    targets: HashMap<u64, TargetStatement>,
}

/// All that is heard by one end of a transfer.
pub struct Neighbourhood {
    own: Party,
    identities: HashMap<u64, TargetId>,
    known: Vec<Option<u64>>,
    neighbours: HashMap<u16, Neighbour>,
    planted: Planted<NeighbourBug>,
}

impl Neighbourhood {
    /// Nobody was heard.
    pub fn new(own: Party, planted: Planted<NeighbourBug>) -> Neighbourhood {
        Neighbourhood {
            own,
            identities: HashMap::new(),
            known: Vec::new(),
            neighbours: HashMap::new(),
            planted,
        }
    }

    /// By what number all transfers of this host know a target.
    pub fn know(&mut self, target: TargetId, identity: u64) {
        let index = target.0 as usize;
        if self.known.len() <= index {
            self.known.resize(index + 1, None);
        }
        if self.known[index].is_none() && self.identities.try_insert(identity, target).is_ok() {
            self.known[index] = Some(identity);
        }
    }

    /// What this end says of its targets.
    pub fn say(&self, said: impl Iterator<Item = Said>, period_millis: u16) -> Statement {
        let known = |target: TargetId| self.known.get(target.0 as usize).copied().flatten();
        let targets = said.filter_map(|said| {
            let Said { target, under_way, wants, congested, hangs } = said;
            let says = wants || congested || hangs || under_way > 0;
            let under_way = under_way.min(u32::from(u16::MAX)) as u16;
            let identity = known(target).filter(|_| says)?;
            Some(TargetStatement { identity, under_way, wants, congested, hangs })
        });
        let targets = targets.take(STATEMENT_TARGETS_MAX).collect();
        Statement { transfer: self.own.transfer, period_millis, targets }
    }

    /// The neighbour with this number says so. True if it is new.
    pub fn hear(&mut self, number: u16, user: u32, statement: &Statement, now_nanos: u64) -> bool {
        if usize::from(number) >= NEIGHBOURS_MAX {
            return false;
        }
        let Statement { transfer, period_millis, ref targets } = *statement;
        let period = period_millis.clamp(*PERIOD_MILLIS.start(), *PERIOD_MILLIS.end());
        let life_nanos = match self.planted.has(NeighbourBug::HeardForEver) {
            true => u64::MAX,
            false => PERIODS * u64::from(period) * 1_000_000,
        };
        let targets = targets.iter().filter(|target| self.identities.contains_key(&target.identity));
        let neighbour = Neighbour {
            party: Party { user, transfer },
            until_nanos: now_nanos.saturating_add(life_nanos),
            targets: targets.map(|target| (target.identity, *target)).collect(),
        };
        self.neighbours.insert(number, neighbour).is_none()
    }

    /// How many are heard.
    pub fn count(&self) -> usize {
        self.neighbours.len()
    }

    /// Their numbers.
    pub fn numbers(&self) -> impl Iterator<Item = u16> + '_ {
        self.neighbours.keys().copied()
    }

    /// What follows for each target of which others say something, and how many other transfers are at them. `now_nanos`
    /// is a time that is the same for all processes of the host.
    pub fn tell(&mut self, now_nanos: u64) -> (Vec<Told>, usize) {
        self.neighbours.retain(|_, neighbour| neighbour.until_nanos > now_nanos);
        let own = self.own;
        let others = || self.neighbours.values().filter(|neighbour| neighbour.party != own);
        let (mut told, mut met) = (Vec::new(), Vec::new());
        let mut parties = Vec::new();
        for (identity, target) in &self.identities {
            parties.clear();
            let (mut under_way, mut congested) = (0u32, false);
            for neighbour in others() {
                let Some(says) = neighbour.targets.get(identity) else { continue };
                congested |= says.congested || says.hangs;
                under_way += u32::from(says.under_way);
                if says.wants || says.under_way > 0 {
                    parties.push(neighbour.party);
                }
            }
            if parties.is_empty() && !congested {
                continue;
            }
            met.extend_from_slice(&parties);
            let (parts, place) = self.part(&mut parties, *identity, now_nanos);
            told.push(Told { target: *target, parts, place, under_way, congested });
        }
        told.sort_unstable_by_key(|told| told.target);
        met.sort_unstable();
        met.dedup();
        (told, met.len())
    }

    /// In how many parts a target's units come, and which is ours now.
    fn part(&self, parties: &mut Vec<Party>, identity: u64, now_nanos: u64) -> (u32, u32) {
        parties.push(self.own);
        if self.planted.has(NeighbourBug::UsersForgotten) {
            parties.iter_mut().for_each(|party| party.user = 0);
        }
        parties.sort_unstable();
        parties.dedup();
        let own_user = if self.planted.has(NeighbourBug::UsersForgotten) { 0 } else { self.own.user };
        let family = parties.iter().filter(|party| party.user == own_user);
        let number = family.clone().filter(|party| party.transfer < self.own.transfer).count() as u64;
        let family = family.count() as u64;
        let earlier = |one: &&[Party]| one[0].user < own_user;
        let users = parties.chunk_by(|one, other| one.user == other.user);
        let own = users.clone().filter(earlier).count() as u64 % USERS_MAX;
        let users = (users.count() as u64).min(USERS_MAX);
        let parts = users * family;
        let turn = match self.planted.has(NeighbourBug::TurnsStand) {
            true => 0,
            false => now_nanos / TURN_NANOS,
        };
        // Other targets begin with others, so that those who take turns are at different ones.
        let first = turn.wrapping_add(identity % (1 << 32)) % parts;
        let mut place = (own + users * number + parts - first) % parts;
        if self.planted.has(NeighbourBug::EverybodyFirst) {
            place = 0;
        }
        (parts as u32, place as u32)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const OST: u64 = 0xF00D_0000_0007;
    const SECOND: u64 = 1_000_000_000;

    fn at(party: Party) -> Neighbourhood {
        let mut neighbourhood = Neighbourhood::new(party, Planted::default());
        neighbourhood.know(TargetId(1), OST);
        neighbourhood
    }

    fn wants(transfer: u64) -> Statement {
        let target = TargetStatement { identity: OST, wants: true, ..TargetStatement::default() };
        Statement { transfer, period_millis: 250, targets: [target].into() }
    }

    /// What each of them finds at a time, having heard all.
    fn parts(parties: &[Party], now_nanos: u64) -> Vec<(u32, u32)> {
        let all = parties.iter().map(|own| {
            let mut neighbourhood = at(*own);
            for (number, party) in parties.iter().enumerate() {
                neighbourhood.hear(number as u16, party.user, &wants(party.transfer), now_nanos);
            }
            let (told, transfers) = neighbourhood.tell(now_nanos);
            assert_eq!(transfers, parties.len() - 1);
            told.first().map_or((1, 0), |told| (told.parts, told.place))
        });
        all.collect()
    }

    fn share(depth: u32, (parts, place): (u32, u32)) -> u32 {
        depth / parts + u32::from(place < depth % parts)
    }

    #[test]
    fn shares_add_up_to_the_whole_and_everybody_has_a_turn() {
        let party = |user, transfer| Party { user, transfer };
        let groups: [&[Party]; 4] = [
            &[party(7, 1)],
            &[party(7, 4), party(7, 2), party(7, 99)],
            &[party(7, 4), party(7, 2), party(9, 99), party(3, 50), party(3, 51)],
            &[party(0, u64::MAX), party(u32::MAX, 0)],
        ];
        for parties in groups {
            let mut had = vec![[0; 20]; parties.len()];
            const TURNS: u64 = 60;
            for turn in 0..TURNS {
                let parts = parts(parties, turn * TURN_NANOS + 5);
                for depth in 1..20 {
                    let shares: Vec<u32> = parts.iter().map(|part| share(depth, *part)).collect();
                    assert_eq!(shares.iter().sum::<u32>(), depth, "{parties:?}: {shares:?}");
                    shares.iter().zip(&mut had).for_each(|(share, had)| had[depth as usize] += share);
                }
            }
            let users: hashbrown::HashSet<u32> = parties.iter().map(|party| party.user).collect();
            for (party, had) in parties.iter().zip(had) {
                let family = parties.iter().filter(|other| other.user == party.user).count();
                for (depth, had) in had.iter().enumerate() {
                    assert_eq!(*had as usize * users.len() * family, depth * TURNS as usize, "{party:?}");
                }
            }
        }
    }

    #[test]
    fn another_user_costs_half_however_many_transfers_it_claims() {
        let mut neighbourhood = at(Party { user: 1000, transfer: 1 });
        for number in 0..400 {
            neighbourhood.hear(number, 666, &wants(u64::from(number) + 5), 0);
        }
        assert!(neighbourhood.count() <= NEIGHBOURS_MAX);
        assert_eq!(neighbourhood.tell(1).0[0].parts, 2);
    }

    #[test]
    fn whoever_claims_to_be_many_users_leaves_an_eighth_at_all_times() {
        for own in [1000, 0, u32::MAX] {
            let mut neighbourhood = at(Party { user: own, transfer: 1 });
            for number in 0..250 {
                neighbourhood.hear(number, 500 + u32::from(number), &wants(u64::from(number) + 5), 0);
            }
            let had = (0..8).map(|turn| {
                let told = neighbourhood.tell(1 + turn * TURN_NANOS).0[0];
                neighbourhood.neighbours.values_mut().for_each(|neighbour| neighbour.until_nanos = u64::MAX);
                share(8, (told.parts, told.place))
            });
            assert_eq!(had.collect::<Vec<_>>(), [1; 8], "{own}");
            let told = neighbourhood.tell(1).0[0];
            assert_eq!(u64::from(told.parts), USERS_MAX);
        }
    }

    #[test]
    fn what_is_not_said_again_is_forgotten_and_the_other_end_of_this_transfer_is_no_neighbour() {
        let mut neighbourhood = at(Party { user: 1, transfer: 1 });
        neighbourhood.hear(4, 1, &wants(1), 0);
        assert_eq!(neighbourhood.tell(1), (Vec::new(), 0));
        assert!(neighbourhood.hear(5, 1, &wants(2), SECOND));
        assert!(!neighbourhood.hear(5, 1, &wants(2), SECOND));
        assert_eq!(neighbourhood.tell(SECOND + 749_000_000).1, 1);
        assert_eq!(neighbourhood.tell(SECOND + 750_000_000), (Vec::new(), 0));
        let forever = Statement { period_millis: u16::MAX, ..wants(2) };
        neighbourhood.hear(5, 1, &forever, 0);
        assert_eq!(neighbourhood.tell(12 * SECOND).1, 0);
    }

    #[test]
    fn only_targets_with_something_to_say_are_told_of_and_only_known_ones_are_kept() {
        let mut neighbourhood = at(Party { user: 1, transfer: 1 });
        neighbourhood.know(TargetId(2), OST);
        neighbourhood.know(TargetId(3), OST + 1);
        let said = |target, under_way, congested| Said {
            target: TargetId(target),
            under_way,
            wants: false,
            congested,
            hangs: false,
        };
        let all = [said(0, 9, true), said(1, 70_000, false), said(2, 9, true), said(3, 0, false)];
        let statement = neighbourhood.say(all.into_iter(), 250);
        let only = TargetStatement { identity: OST, under_way: u16::MAX, ..TargetStatement::default() };
        assert_eq!(statement.targets, [only], "a second number of one target is not told of");
        let mut other = at(Party { user: 1, transfer: 2 });
        let unknown = TargetStatement { identity: 77, wants: true, ..TargetStatement::default() };
        let congested = TargetStatement { identity: OST, congested: true, ..TargetStatement::default() };
        other.hear(0, 1, &Statement { targets: [unknown, congested].into(), ..wants(1) }, 0);
        let told = Told { target: TargetId(1), parts: 1, place: 0, under_way: 0, congested: true };
        assert_eq!(other.tell(1), ([told].into(), 0), "who does nothing there has no part");
    }
}
