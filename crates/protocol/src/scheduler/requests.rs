//! What goes into the scheduler and what comes out of it.

/// Numbers are dense, from 0, and below [`TARGETS_MAX`](super::TARGETS_MAX).
pub use haul_model::TargetId;

use super::congestion::Policy;
use super::flights::Ticket;
use crate::planted::{Planted, SchedulerBug};

/// What kind of work a request is. Objects and bundles of a target take turns by bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// A range of one file.
    Object,
    /// Many small files.
    Bundle,
    /// Creates, opens, renames: work of a metadata server, which is a target of its own. It does not make another
    /// target share the threads.
    Name,
    /// What the caller has put aside, on a target of its own that has nothing else. As with names, no other target shares
    /// the threads because of it.
    Aside,
    /// Closing a file, repairs, the log: comes first, and knows no limit.
    Urgent,
}

impl Class {
    /// Its queue; urgent requests have one of their own.
    pub(super) fn number(self) -> Option<usize> {
        match self {
            Class::Object => Some(0),
            Class::Bundle => Some(1),
            Class::Name => Some(2),
            Class::Aside => Some(3),
            Class::Urgent => None,
        }
    }
}

/// Something to do on a target.
#[derive(Clone, Copy, Debug)]
pub struct Request<T> {
    /// What the caller calls it.
    pub item: T,
    /// Where.
    pub target: TargetId,
    /// The other end's target that it is for, if it needs one of that target's units.
    pub gate: Option<TargetId>,
    /// What it is.
    pub class: Class,
    /// How much is read or written. Of a bundle, a caller may count more, for what each file costs beside its bytes.
    pub bytes: u32,
}

/// A number at or above [`TARGETS_MAX`](super::TARGETS_MAX).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfRange;

/// How the I/O is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// As is fastest.
    Normal,
    /// In pieces of at most [`GENTLE_PIECE_BYTES`](haul_model::limits::GENTLE_PIECE_BYTES), one after the other: others
    /// wait for this target too.
    Gentle,
}

/// What to do now.
#[derive(Clone, Copy, Debug)]
pub struct Picked<T> {
    /// For [`Scheduler::finished`](super::Scheduler::finished) and [`Scheduler::gate_done`](super::Scheduler::gate_done).
    pub ticket: Ticket,
    /// What the caller calls it.
    pub item: T,
    /// Where.
    pub target: TargetId,
    /// How.
    pub pace: Pace,
}

/// A request that took too long. It has failed for now, though its thread may still be at it.
#[derive(Clone, Copy, Debug)]
pub struct WrittenOff<T> {
    /// Its ticket: when its thread comes back, [`Scheduler::finished`](super::Scheduler::finished) says `Late`.
    pub ticket: Ticket,
    /// What the caller calls it.
    pub item: T,
    /// Where.
    pub target: TargetId,
    /// Start another thread in place of the lost one. False when [`Config::lost_in_all`] were replaced.
    pub replace: bool,
}

/// What the end of a request means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finished {
    /// It was awaited.
    InTime,
    /// It had been written off: what it brings does not count. Its slot is free again; its thread is one too many if
    /// `spare`, else it goes on.
    Late {
        /// It was replaced meanwhile.
        spare: bool,
    },
    /// No such request is under way.
    Unknown,
}

/// What is known of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TargetView {
    /// Requests under way; urgent ones and lost ones do not count.
    pub under_way: u32,
    /// Requests that were written off and have not come back.
    pub lost: u32,
    /// Requests that wait; urgent ones do not count.
    pub queued: u64,
    /// How many may be under way or lost.
    pub depth: u32,
    /// How many the other end may have under way for it.
    pub allowance: u32,
    /// It is slow: one request at a time.
    pub congested: bool,
    /// It lost a request and has not answered since: one at a time, too.
    pub suspect: bool,
    /// It gets nothing more until a lost thread comes back.
    pub dead: bool,
}

/// What a request is given at least before it is written off. A disk that spins up or a server that fails over takes
/// less.
const PATIENCE_NANOS_MIN: u64 = 30_000_000_000;
/// And so many times what such a request usually takes there.
const PATIENCE: u64 = 20;
/// One thread may be lost to a bad block, or to a file that somebody has locked; two, to two files, say that the target hangs.
const LOST_PER_TARGET: u32 = 2;
/// Threads that hang cost memory and, when their target comes back, all write at once.
const LOST_IN_ALL_PER_THREAD: u32 = 2;

/// Fixed for the life of a scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// I/O threads.
    pub threads: u32,
    /// Slots of this end's pool, as far as it uses them at first ([`Scheduler::set_slots`](super::Scheduler::set_slots)).
    pub slots: u32,
    /// How targets are chosen.
    pub policy: Policy,
    /// After how long a request is written off; `None`: 20 times what such a request usually takes on its target, and
    /// no less than 30 s.
    pub patience_nanos: Option<u64>,
    /// Requests of this target take as long as they take, and it is never congested; one is written off only if somebody has said
    /// when.
    pub archive: Option<u32>,
    /// How long a congested target may be skipped; `None`: as long as 32 MiB take on a usual target, and no less than
    /// 2 s.
    pub aging_nanos: Option<u64>,
    /// A target that has lost so many threads is dead.
    pub lost_per_target: u32,
    /// How many lost threads are replaced. When no other is left, everything is handed back.
    pub lost_in_all: u32,
    /// For tests of the simulator only.
    pub planted: Planted<SchedulerBug>,
}

impl Config {
    /// Everything else derived.
    pub fn new(threads: u32, slots: u32, policy: Policy) -> Config {
        Config {
            threads,
            slots,
            policy,
            patience_nanos: None,
            archive: None,
            aging_nanos: None,
            lost_per_target: LOST_PER_TARGET,
            lost_in_all: threads.saturating_mul(LOST_IN_ALL_PER_THREAD),
            planted: Planted::default(),
        }
    }

    /// The bound of a request of this target that is expected to take so long, if there is something to go by.
    pub(super) fn patience_nanos(&self, target: u32, expected: Option<u64>) -> u64 {
        let is_awaited = self.archive == Some(target) && !self.planted.has(SchedulerBug::ArchiveGivenUp);
        let derived = match is_awaited {
            true => u64::MAX,
            false => expected.map_or(0, |expected| expected.saturating_mul(PATIENCE)).max(PATIENCE_NANOS_MIN),
        };
        self.patience_nanos.unwrap_or(derived)
    }
}
