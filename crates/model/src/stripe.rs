//! How a file is, or is to be, striped over the targets of a file system: a plan, without saying which targets.
//!
//! `haul_storage::layout` finds out what a file was striped as and makes new ones so; a plan travels in NEW_FILE.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::limits::{PLAN_PARTS_MAX, STRIPES_MAX};

/// How many stripes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// As the file system does without being told.
    Default,
    /// So many, if there are so many targets.
    Exactly(u16),
    /// One on each target.
    All,
}

/// On what a part of a file lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where {
    /// On targets, one stripe each.
    Targets,
    /// On targets, several stripes each where there are more stripes than targets.
    TargetsRepeated,
    /// With the file's metadata.
    Metadata,
}

/// The name of a pool of targets: 1 to 15 letters, digits, `_`, `-` and `.`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pool(Box<str>);

impl Pool {
    /// `None` for what can be no name.
    pub fn new(name: &str) -> Option<Pool> {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        let valid = (1..=15).contains(&name.len()) && name.bytes().all(valid);
        // No component of a path either.
        let valid = valid && name.bytes().any(|byte| byte != b'.');
        valid.then(|| Pool(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// How one part of a file is to be striped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The byte after its last; `u64::MAX`: end of file.
    pub end: u64,
    /// On what it lies.
    pub place: Where,
    /// Stripes.
    pub count: Count,
    /// Bytes of a stripe; 0: as the file system does without being told.
    pub stripe_size: u32,
    /// The pool that targets are taken from.
    pub pool: Option<Pool>,
}

/// How a file is to be striped, part after part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    parts: Vec<Part>,
}

impl Plan {
    /// Each part begins where the one before ends, so the ends must go up. `None` otherwise, for no parts, and beyond the
    /// limits.
    pub fn new(parts: Vec<Part>) -> Option<Plan> {
        let upwards = parts.windows(2).all(|pair| pair[0].end < pair[1].end);
        let counts = |part: &Part| match part.count {
            Count::Exactly(count) => (1..=STRIPES_MAX).contains(&count),
            Count::Default | Count::All => true,
        };
        let valid = upwards
            && parts.first().is_some_and(|part| part.end > 0)
            && parts.len() <= PLAN_PARTS_MAX
            && parts.iter().all(counts);
        valid.then_some(Plan { parts })
    }

    /// The whole file alike.
    pub fn plain(count: Count, stripe_size: u32, pool: Option<Pool>) -> Plan {
        Plan { parts: vec![Part { end: u64::MAX, place: Where::Targets, count, stripe_size, pool }] }
    }

    /// In the order of the file.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The same, from whichever targets there are.
    pub fn without_pools(&self) -> Plan {
        let part = |part: &Part| Part { pool: None, ..part.clone() };
        Plan { parts: self.parts.iter().map(part).collect() }
    }

    /// The pools that it names.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.parts.iter().filter_map(|part| part.pool.as_ref())
    }

    /// What everybody gets who asks for nothing: at most one stripe, no pool, no parts.
    pub fn is_usual(&self) -> bool {
        let [part] = &*self.parts else { return false };
        part.place == Where::Targets
            && part.pool.is_none()
            && matches!(part.count, Count::Default | Count::Exactly(1))
    }

    /// Whether a file that is striped so was meant to be: its directory would have given it something else. Where the
    /// directory does not tell, whatever is not usual was.
    pub fn is_chosen(&self, default: Option<&Plan>) -> bool {
        let Some(default) = default else { return !self.is_usual() };
        let begins = |index: usize| index.checked_sub(1).map_or(0, |before| default.parts[before].end);
        let same = |(index, (is, given)): (usize, (&Part, &Part))| {
            // Of a short part no more stripes are made than it has room for.
            let room = given.end.saturating_sub(begins(index)).div_ceil(u64::from(given.stripe_size.max(1)));
            let fewer = match (is.count, given.count) {
                (Count::Exactly(is), Count::Exactly(given)) => is < given && u64::from(is) == room,
                _ => false,
            };
            (fewer || is.has_count_of(given)) && is.fulfils_but_for_count(given) && is.pool == given.pool
        };
        let parts = self.parts.iter().zip(&default.parts).enumerate();
        self.parts.len() != default.parts.len() || !parts.into_iter().all(same)
    }

    /// Whether a file that is striped like this one is striped as `wanted`.
    pub fn fulfils(&self, wanted: &Plan) -> bool {
        let fulfils = |(is, wanted): (&Part, &Part)| {
            let pool = wanted.pool.is_none() || is.pool == wanted.pool;
            pool && is.has_count_of(wanted) && is.fulfils_but_for_count(wanted)
        };
        self.parts.len() == wanted.parts.len() && self.parts.iter().zip(&wanted.parts).all(fulfils)
    }
}

impl Part {
    fn has_count_of(&self, wanted: &Part) -> bool {
        match (wanted.place, wanted.count) {
            (Where::Metadata, _) | (_, Count::Default | Count::All) => true,
            (_, Count::Exactly(_)) => self.count == wanted.count,
        }
    }

    fn fulfils_but_for_count(&self, wanted: &Part) -> bool {
        let size = wanted.place == Where::Metadata
            || wanted.stripe_size == 0
            || self.stripe_size == wanted.stripe_size;
        size && self.end == wanted.end && self.place == wanted.place
    }
}

/// Why a file is not striped as its source is, although nobody asked for something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unlike {
    /// There is no such pool: its targets are taken from all.
    NoPool,
    /// The file system does not take it.
    NotTaken,
}

impl Unlike {
    /// In the order of their numbers on the wire.
    pub const ALL: [Unlike; 2] = [Unlike::NoPool, Unlike::NotTaken];

    /// Stable, for scripts.
    pub const fn name(self) -> &'static str {
        match self {
            Unlike::NoPool => "no-pool",
            Unlike::NotTaken => "not-taken",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_system_made_is_compared_with_what_was_wanted() {
        let made = Plan::plain(Count::Exactly(4), 1 << 20, Pool::new("p"));
        for (wanted, fulfilled) in [
            (Plan::plain(Count::Exactly(4), 1 << 20, Pool::new("p")), true),
            (Plan::plain(Count::Exactly(4), 0, None), true),
            (Plan::plain(Count::All, 0, None), true),
            (Plan::plain(Count::Exactly(5), 0, None), false),
            (Plan::plain(Count::Exactly(4), 2 << 20, None), false),
            (Plan::plain(Count::Exactly(4), 0, Pool::new("q")), false),
        ] {
            assert_eq!(made.fulfils(&wanted), fulfilled, "{wanted:?}");
        }
        let parted = Plan::new(vec![part(1 << 20, Count::Default), part(u64::MAX, Count::Default)]).unwrap();
        assert!(!made.fulfils(&parted) && !parted.fulfils(&made));
        assert!(!parted.is_usual());
    }

    fn part(end: u64, count: Count) -> Part {
        Part { end, place: Where::Targets, count, stripe_size: 1 << 20, pool: None }
    }

    #[test]
    fn what_makes_no_sense_is_no_plan() {
        let many = |parts: u64| (1..=parts).map(|end| part(end, Count::All)).collect();
        for parts in [
            vec![],
            vec![part(0, Count::All)],
            vec![part(2, Count::All), part(2, Count::All)],
            vec![part(2, Count::Exactly(0))],
            vec![part(2, Count::Exactly(STRIPES_MAX + 1))],
            many(PLAN_PARTS_MAX as u64 + 1),
        ] {
            assert_eq!(Plan::new(parts), None);
        }
        assert!(Plan::new(many(PLAN_PARTS_MAX as u64)).is_some());
        for name in ["", ".", "..", "a/b", "sixteen-letters-", "ü"] {
            assert_eq!(Pool::new(name), None, "{name}");
        }
        assert!(Pool::new("flash.1_a-B").is_some());
    }

    #[test]
    fn chosen_is_what_the_directory_would_not_have_given() {
        let plain = |count, pool: &str| Plan::plain(Count::Exactly(count), 1 << 20, Pool::new(pool));
        let (one, four) = (plain(1, ""), plain(4, ""));
        assert!(!one.is_chosen(None) && four.is_chosen(None), "nobody tells: one stripe is usual");
        assert!(!four.is_chosen(Some(&four)) && one.is_chosen(Some(&four)));
        assert!(plain(4, "flash").is_chosen(Some(&four)) && four.is_chosen(Some(&plain(4, "flash"))));
        let larger = Plan::plain(Count::Exactly(4), 4 << 20, None);
        assert!(larger.is_chosen(Some(&four)));
        assert!(!larger.is_chosen(Some(&Plan::plain(Count::All, 0, None))), "as many as there are");
        let parted =
            |count| Plan::new(vec![part(2 << 20, Count::Exactly(count)), part(u64::MAX, Count::All)]);
        let (short, full) = (parted(2).unwrap(), parted(8).unwrap());
        assert!(!short.is_chosen(Some(&full)), "2 MiB have room for two stripes");
        assert!(parted(1).unwrap().is_chosen(Some(&full)) && full.is_chosen(Some(&short)));
        assert!(four.is_chosen(Some(&full)) && full.is_chosen(Some(&four)));
    }

    #[test]
    fn without_its_pools_all_else_stays() {
        let plan = Plan::plain(Count::Exactly(3), 2 << 20, Pool::new("flash"));
        assert_eq!(plan.pools().map(Pool::as_str).collect::<Vec<_>>(), ["flash"]);
        assert_eq!(plan.without_pools(), Plan::plain(Count::Exactly(3), 2 << 20, None));
    }
}
