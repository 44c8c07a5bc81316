//! Messages without sense.

use std::sync::Arc;

use haul_model::limits::TARGETS_MAX;
use haul_model::report::{FailedPaths, Stats};
use haul_model::stripe::Unlike;
use haul_model::{
    Attributes, BlockId, Code, Entry, EntryId, Failure, Hash, Identity, Kind, Laid, Placement, SlotId,
    Target, Token,
};
use haul_wire::{Answer, Member, Message, NewFile, Repair, RepairReason, Settled};

pub const OBJECT_BYTES: u32 = 64 << 10;
pub const SLOTS: u32 = 3;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    pub fn id(&mut self) -> EntryId {
        match self.below(12) {
            0 => EntryId::root(self.below(3) as u32),
            1 => EntryId((1 << 62) + self.below(3)),
            _ => EntryId(1 + self.below(9)),
        }
    }

    pub fn entry(&mut self, id: EntryId, parent: EntryId) -> Entry {
        let kind =
            self.pick(&[Kind::Directory, Kind::File, Kind::File, Kind::File, Kind::Symlink, Kind::Other]);
        let whole = u64::from(OBJECT_BYTES);
        let size = self.pick(&[0, 1, 100, whole - 1, whole, whole + 1, whole * 3, 1 << 36, i64::MAX as u64]);
        let name: &[u8] = if parent.root_index().is_some() { b"" } else { b"x" };
        let file = kind == Kind::File;
        Entry {
            id,
            parent,
            name: name.into(),
            kind,
            attributes: Attributes::default(),
            identity: if file { Identity { size, ..Identity::default() } } else { Identity::default() },
            links: 1,
            link_target: if kind == Kind::Symlink { b"to".as_slice().into() } else { Box::default() },
        }
    }

    pub fn failure(&mut self) -> Failure {
        Failure::new(self.pick(Code::ALL))
    }

    /// What a peer says of itself may be anything.
    fn stats(&mut self) -> Stats {
        let most = self.pick(&[0, 1, u64::MAX]);
        Stats {
            files_total: most,
            files_done: most,
            files_skipped: most,
            files_failed: most,
            directories: most,
            hard_links: most,
            bytes_total: most,
            bytes_sent: most,
            bytes_skipped: most,
            bytes_done: most,
            objects_sent: most,
            objects_skipped: most,
            objects_repaired: most,
            bytes_spilled: most,
        }
    }

    pub fn hash(&mut self) -> Hash {
        Hash([self.below(4) as u8; 32])
    }

    /// What may follow a payload.
    pub fn hashes(&mut self) -> Vec<Hash> {
        (0..self.below(4)).map(|_| self.hash()).collect()
    }

    pub fn some_hash(&mut self) -> Option<Hash> {
        (!self.one_in(3)).then(|| self.hash())
    }

    pub fn token(&mut self) -> Token {
        Token([self.below(4) as u8; 16])
    }

    pub fn slot(&mut self) -> SlotId {
        SlotId(self.below(u64::from(SLOTS) + 1) as u32)
    }

    /// What a source may say.
    pub fn source_message(&mut self, epoch: u32) -> Message {
        let block = BlockId(self.below(12));
        let epoch = (epoch + self.below(4) as u32).saturating_sub(1);
        let length = self.pick(&[0, 1, 100, OBJECT_BYTES - 1, OBJECT_BYTES, OBJECT_BYTES + 1]);
        let (id, slot, index) = (self.id(), self.slot(), self.below(4) as u32);
        match self.below(16) {
            0..=5 => Message::NewFile(
                (0..1 + self.below(4))
                    .map(|_| {
                        if self.one_in(5) {
                            return NewFile::End(self.id());
                        }
                        let (id, parent) = (self.id(), self.id());
                        let resume = self.one_in(3).then(|| self.token());
                        let entry = Arc::new(self.entry(id, parent));
                        let object_bytes =
                            self.pick(&[OBJECT_BYTES, OBJECT_BYTES, OBJECT_BYTES, 0, 1, u32::MAX]);
                        NewFile::Entry {
                            entry,
                            object_bytes: (!self.one_in(3)).then_some(object_bytes),
                            resume,
                            stripes: None,
                        }
                    })
                    .collect(),
            ),
            6..=8 => Message::NewBlock { block, slot, epoch, id, index, length, hash: self.some_hash() },
            9..=11 => {
                let member = |random: &mut Random| Member {
                    id: random.id(),
                    offset: random.pick(&[0, 0, 100, OBJECT_BYTES, u32::MAX]),
                    hash: random.some_hash(),
                };
                let members = (0..self.below(4)).map(|_| member(self)).collect();
                Message::Manifest { block, slot, epoch, length, members }
            }
            12 => Message::FileClose { id, root: self.one_in(2).then(|| self.hash()) },
            13 => Message::FileDrop { id, failure: self.failure(), restarts: self.one_in(2) },
            14 => Message::Notice { path: b"p".as_slice().into(), failure: self.failure() },
            _ if self.one_in(8) => Message::Bye(self.stats()),
            _ if self.one_in(8) => {
                let [objects, bytes] = [0; 2].map(|_| self.pick(&[0, 1, u64::from(OBJECT_BYTES), u64::MAX]));
                Message::Before { id, objects, bytes }
            }
            _ if self.one_in(8) => Message::Error(self.failure()),
            _ => Message::Ping,
        }
    }

    /// What a target of the sink may have under way.
    pub fn allowance(&mut self) -> (Target, u32) {
        (self.below(TARGETS_MAX as u64) as Target, self.pick(&[0, 1, 7, u32::MAX]))
    }

    /// What a sink may say.
    pub fn sink_message(&mut self) -> Message {
        let count = 1 + self.below(4);
        let settled = |random: &mut Random| match random.below(4) {
            0 => Settled::Failed(random.failure()),
            1 => Settled::Kept(random.failure()),
            2 => Settled::Done(None),
            _ => Settled::Done(Some(random.hash())),
        };
        match self.below(12) {
            0..=4 => {
                let answer = |random: &mut Random| match random.below(7) {
                    0 => Answer::Skip,
                    1 | 2 => Answer::Made,
                    3 => Answer::Start(Token::NONE),
                    4 => Answer::Start(random.token()),
                    5 => Answer::Resume(random.token()),
                    _ => Answer::Fail(random.failure()),
                };
                let laid = |random: &mut Random| Laid {
                    object_bytes: random.pick(&[OBJECT_BYTES, OBJECT_BYTES / 2, 0, 3, u32::MAX]),
                    placement: Placement::default(),
                };
                Message::FileId {
                    answers: (0..count).map(|_| (self.id(), answer(self))).collect(),
                    laid: (0..self.below(2)).map(|_| (self.id(), laid(self))).collect(),
                    unlike: (0..self.below(3)).map(|_| (self.id(), Unlike::NoPool)).collect(),
                }
            }
            5 | 6 => Message::BlockDone {
                slots: (0..count).map(|_| self.slot()).collect(),
                allowances: (0..self.below(3)).map(|_| self.allowance()).collect(),
            },
            7 | 8 => Message::BlockSync {
                objects: (0..count).map(|_| (self.id(), self.below(4) as u32)).collect(),
                entries: (0..self.below(3)).map(|_| (self.id(), settled(self))).collect(),
            },
            9 | 10 => {
                let reason = [RepairReason::Lost, RepairReason::Hash, RepairReason::Sync];
                let repair = |random: &mut Random| Repair {
                    id: random.id(),
                    index: (!random.one_in(3)).then(|| random.below(4) as u32),
                    reason: random.pick(&reason),
                };
                Message::Repair((0..count).map(|_| repair(self)).collect())
            }
            _ if self.one_in(8) => Message::Finished(FailedPaths::default()),
            _ if self.one_in(8) => Message::Error(self.failure()),
            _ => Message::Ping,
        }
    }
}
