//! What survives a power cut.
//!
//! The choice has two levels. A [`Mood`] sets how likely each class of change is to survive, so that the extremes (all
//! lost, names without data, data without names) come as often as the mixtures; within it every item is chosen alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::node::{Body, Node};
use super::{Change, Disk, Number, ROOT};
use crate::random::Random;

/// What became of one change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    Lost,
    Kept,
    Torn,
}

impl Choice {
    /// `keep` and `tear` are shares of 256; the tearing share is taken from both sides.
    pub(super) fn roll(random: &mut Random, keep: u16, tear: u16) -> Choice {
        if random.chance(tear) {
            Choice::Torn
        } else if random.chance(keep) {
            Choice::Kept
        } else {
            Choice::Lost
        }
    }
}

/// How likely each class of change is to survive, in shares of 256.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    pub names: u16,
    /// Names survive as a journal has them: all before some instant, none after it.
    pub names_in_order: bool,
    pub attributes: u16,
    pub sizes: u16,
    pub pages: u16,
    pub torn: u16,
    pub garbage: u16,
}

/// What kind of crash it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mood {
    /// Exactly what was synced is there.
    Nothing,
    /// Everything had just been written back.
    Everything,
    /// Each change, page and sector by a coin.
    Coin,
    /// Names, attributes and sizes are there, contents are not: zero-length files and files full of zeros, as delayed
    /// allocation leaves them.
    NamesWithoutData,
    /// Contents are there, names are not.
    DataWithoutNames,
    /// Names up to some instant, contents by a coin: a metadata journal.
    Journal,
    /// Everything survives but single torn pages.
    Torn,
    /// Another likelihood for each class.
    Scattered,
}

impl Mood {
    /// All of them.
    pub const ALL: [Mood; 8] = [
        Mood::Nothing,
        Mood::Everything,
        Mood::Coin,
        Mood::NamesWithoutData,
        Mood::DataWithoutNames,
        Mood::Journal,
        Mood::Torn,
        Mood::Scattered,
    ];

    /// By its name, as [`fmt::Display`] prints it.
    pub fn from_name(name: &str) -> Option<Mood> {
        Mood::ALL.into_iter().find(|mood| mood.to_string() == name)
    }

    pub(super) fn shares(self, random: &mut Random) -> Shares {
        let even = Shares {
            names: 128,
            names_in_order: false,
            attributes: 128,
            sizes: 128,
            pages: 128,
            torn: 64,
            garbage: 16,
        };
        let all =
            |share| Shares { names: share, attributes: share, sizes: share, pages: share, torn: 0, ..even };
        match self {
            Mood::Nothing => Shares { garbage: 0, ..all(0) },
            Mood::Everything => all(256),
            Mood::Coin => even,
            Mood::NamesWithoutData => Shares {
                names: 256,
                attributes: 256,
                sizes: if random.chance(128) { 256 } else { 0 },
                ..all(0)
            },
            Mood::DataWithoutNames => Shares { names: 0, attributes: 0, ..all(256) },
            Mood::Journal => Shares { names_in_order: true, ..even },
            Mood::Torn => Shares { torn: 128, ..all(256) },
            Mood::Scattered => {
                let mut share = || random.below(257) as u16;
                Shares {
                    names: share(),
                    attributes: share(),
                    sizes: share(),
                    pages: share(),
                    torn: share() / 4,
                    garbage: share() / 4,
                    names_in_order: share() > 192,
                }
            }
        }
    }
}

impl fmt::Display for Mood {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Mood::Nothing => "nothing",
            Mood::Everything => "everything",
            Mood::Coin => "coin",
            Mood::NamesWithoutData => "names-without-data",
            Mood::DataWithoutNames => "data-without-names",
            Mood::Journal => "journal",
            Mood::Torn => "torn",
            Mood::Scattered => "scattered",
        })
    }
}

/// What a crash found unsynced, and what it did with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct CrashReport {
    pub names_unsynced: u64,
    pub names_lost: u64,
    /// Cross-directory moves that left both names.
    pub names_doubled: u64,
    pub attributes_unsynced: u64,
    pub attributes_lost: u64,
    pub sizes_unsynced: u64,
    pub sizes_lost: u64,
    pub sizes_torn: u64,
    pub pages_unsynced: u64,
    pub pages_lost: u64,
    pub pages_torn: u64,
    /// Files, directories and links that are there afterwards.
    pub nodes_left: u64,
}

impl CrashReport {
    /// Changes that did not survive whole.
    pub fn lost(&self) -> u64 {
        self.names_lost
            + self.names_doubled
            + self.attributes_lost
            + self.sizes_lost
            + self.sizes_torn
            + self.pages_lost
            + self.pages_torn
    }
}

impl std::ops::AddAssign for CrashReport {
    fn add_assign(&mut self, other: CrashReport) {
        self.names_unsynced += other.names_unsynced;
        self.names_lost += other.names_lost;
        self.names_doubled += other.names_doubled;
        self.attributes_unsynced += other.attributes_unsynced;
        self.attributes_lost += other.attributes_lost;
        self.sizes_unsynced += other.sizes_unsynced;
        self.sizes_lost += other.sizes_lost;
        self.sizes_torn += other.sizes_torn;
        self.pages_unsynced += other.pages_unsynced;
        self.pages_lost += other.pages_lost;
        self.pages_torn += other.pages_torn;
        self.nodes_left += other.nodes_left;
    }
}

impl fmt::Display for CrashReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "names={}/{} doubled={} attributes={}/{} sizes={}+{}/{} pages={}+{}/{} nodes_left={}",
            self.names_lost,
            self.names_unsynced,
            self.names_doubled,
            self.attributes_lost,
            self.attributes_unsynced,
            self.sizes_lost,
            self.sizes_torn,
            self.sizes_unsynced,
            self.pages_lost,
            self.pages_torn,
            self.pages_unsynced,
            self.nodes_left,
        )
    }
}

impl Disk {
    /// Power is lost and comes back. Every open handle is gone, and the generation has grown by one.
    pub fn crash(&mut self, seed: u64, mood: Option<Mood>) -> CrashReport {
        let mut random = Random::fork(seed, "crash");
        let mood = mood.unwrap_or_else(|| *random.pick(&Mood::ALL));
        let shares = mood.shares(&mut random);
        let mut report = CrashReport::default();
        self.crash_names(&mut random, &shares, &mut report);
        let reached = self.reached_from_root();
        self.nodes.retain(|number, _| reached.contains_key(number));
        for (number, (links, parent)) in &reached {
            let node = self.nodes.get_mut(number).expect("reached");
            node.restart(*links);
            node.crash_attributes(&mut random, &shares, &mut report);
            match &mut node.body {
                Body::File(content) => content.crash(&mut random, &shares, &mut report),
                Body::Directory(directory) => directory.restart(*parent),
                Body::Symlink(_) | Body::Special { .. } => {}
            }
        }
        self.count_pages();
        self.handles.clear();
        self.generation += 1;
        report.nodes_left = reached.len() as u64 - 1;
        report
    }

    fn crash_names(&mut self, random: &mut Random, shares: &Shares, report: &mut CrashReport) {
        let changes = std::mem::take(&mut self.changes);
        let cut = random.below(changes.len() as u64 + 1);
        // A change that depends on a lost one is lost too: each name has a history, and what survives is a prefix.
        let mut broken: BTreeSet<(Number, Vec<u8>)> = BTreeSet::new();
        let mut directory_moves_broken = false;
        // Moves that did not arrive: their old names stay.
        let mut lost_moves = BTreeSet::new();
        for (position, (sequence, change)) in changes.into_iter().enumerate() {
            let names = change.names();
            let moves_directory = matches!(&change, Change::Arrive { node, .. } if self.is_directory(*node));
            let depends_on_lost = names.iter().any(|name| broken.contains(name));
            let out_of_order = moves_directory && directory_moves_broken;
            let intact = !(depends_on_lost || out_of_order);
            let wanted = if let Change::Leave { arrival, .. } = &change {
                // Arriving was decided for both; here only: is the old name still there as well?
                let arrived = !lost_moves.contains(arrival);
                let doubled =
                    arrived && !self.is_directory(change.node()) && !random.chance(shares.names.max(64));
                report.names_doubled += u64::from(doubled);
                arrived && !doubled
            } else {
                report.names_unsynced += 1;
                if shares.names_in_order { (position as u64) < cut } else { random.chance(shares.names) }
            };
            if intact && wanted {
                self.apply(&change);
            } else {
                if !matches!(change, Change::Leave { .. }) {
                    report.names_lost += 1;
                }
                lost_moves.insert(sequence);
                directory_moves_broken |= moves_directory;
                broken.extend(names);
            }
        }
    }

    /// Links and parent of every node that durable names lead to.
    fn reached_from_root(&self) -> BTreeMap<Number, (u32, Number)> {
        let mut reached = BTreeMap::from([(ROOT, (1, ROOT))]);
        let mut open = vec![ROOT];
        while let Some(number) = open.pop() {
            let Some(Node { body: Body::Directory(directory), .. }) = self.nodes.get(&number) else {
                continue;
            };
            for child in directory.durable.values() {
                let entry = reached.entry(*child).or_insert((0, number));
                entry.0 += 1;
                if entry.0 == 1 && self.is_directory(*child) {
                    open.push(*child);
                }
            }
        }
        reached
    }
}
