//! Peers that mostly make sense, so that what is hostile about them meets a master in every state.

use std::sync::Arc;

use haul_model::{BlockId, EntryId, Hash, Kind, SlotId, Token};
use haul_wire::{Answer, Member, Message, NewFile, Repair, RepairReason, Settled};

use crate::random::{OBJECT_BYTES, Random, SLOTS};

/// A source that mostly says what fits: else a master ends at the first word, and nothing behind it is tried.
#[derive(Default)]
pub struct Announcer {
    ids: u64,
    blocks: u64,
    directories: Vec<EntryId>,
    /// Entries that stand at DEST.
    tops: u32,
    announced: Vec<(EntryId, u64)>,
    files: Vec<(EntryId, u64)>,
    small: Vec<(EntryId, u64)>,
    /// Announced, and not arrived.
    pub payloads: Vec<(BlockId, SlotId, u32, Vec<Hash>)>,
    /// Acknowledged.
    durable: Vec<(EntryId, u32)>,
}

impl Announcer {
    pub fn message(&mut self, epoch: u32, granted: &[bool], random: &mut Random) -> Message {
        let slots: Vec<SlotId> =
            (0..SLOTS).map(SlotId).filter(|slot| granted[slot.0 as usize] && !self.uses(*slot)).collect();
        match random.below(9) {
            0..=2 => self.announce(random),
            3..=5 if !slots.is_empty() && !self.files.is_empty() => {
                let (id, size) = random.pick(&self.files);
                let objects = size.div_ceil(u64::from(OBJECT_BYTES)).min(4);
                let index = random.below(objects) as u32;
                let offset = u64::from(index) * u64::from(OBJECT_BYTES);
                let length = (size - offset).min(u64::from(OBJECT_BYTES)) as u32;
                let (block, slot, hash) = (self.block(), random.pick(&slots), random.hash());
                let (hash, follow) = if random.one_in(2) { (Some(hash), vec![]) } else { (None, vec![hash]) };
                self.payloads.push((block, slot, length, follow));
                Message::NewBlock { block, slot, epoch, id, index, length, hash }
            }
            6 if !slots.is_empty() && !self.small.is_empty() => {
                let mut length = 0;
                let mut members = Vec::new();
                let mut follow = Vec::new();
                for (id, size) in self.small.drain(..).take(3) {
                    let hash = random.some_hash();
                    follow.extend(hash.is_none().then(|| random.hash()));
                    members.push(Member { id, offset: length, hash });
                    length += size as u32;
                }
                let (block, slot) = (self.block(), random.pick(&slots));
                self.payloads.push((block, slot, length, follow));
                Message::Manifest { block, slot, epoch, length, members }
            }
            7 if !self.files.is_empty() => {
                let index = random.below(self.files.len() as u64) as usize;
                let (id, size) = self.files[index];
                let durable = self.durable.iter().filter(|(of, _)| *of == id).count() as u64;
                let complete = durable == size.div_ceil(u64::from(OBJECT_BYTES));
                if complete || random.one_in(30) {
                    self.files.swap_remove(index);
                    return Message::FileClose { id, root: None };
                }
                if random.one_in(20) {
                    self.files.swap_remove(index);
                    return Message::FileDrop { id, failure: random.failure(), restarts: random.one_in(2) };
                }
                Message::Ping
            }
            _ => Message::Ping,
        }
    }

    pub fn hear(&mut self, message: &Message) {
        match message {
            Message::BlockSync { objects, entries } => {
                self.durable.extend(objects);
                self.durable.sort_unstable();
                self.durable.dedup();
                self.files.retain(|(id, _)| entries.iter().all(|(settled, _)| settled != id));
            }
            Message::FileId { answers, .. } => {
                for (id, answer) in answers {
                    let Some(size) = self.announced.iter().find(|(of, _)| of == id).map(|(_, size)| *size)
                    else {
                        continue;
                    };
                    match answer {
                        Answer::Start(Token::NONE) => self.small.push((*id, size)),
                        Answer::Start(_) => self.files.push((*id, size)),
                        _ => {}
                    }
                }
            }
            Message::Repair(repairs) => {
                let members = repairs.iter().filter(|repair| repair.index.is_none());
                let sizes = &self.announced;
                let size = |id| sizes.iter().find(|(of, _)| *of == id).map_or(0, |(_, size)| *size);
                self.small.extend(members.map(|repair| (repair.id, size(repair.id))));
            }
            _ => {}
        }
    }

    pub fn uses(&self, slot: SlotId) -> bool {
        self.payloads.iter().any(|(_, used, ..)| *used == slot)
    }

    pub fn block(&mut self) -> BlockId {
        self.blocks += 1;
        BlockId(1000 + self.blocks)
    }

    pub fn announce(&mut self, random: &mut Random) -> Message {
        let mut items = Vec::new();
        for _ in 0..1 + random.below(3) {
            self.ids += 1;
            let id = EntryId(100 + self.ids);
            // Two SOURCEs, mostly directories, and seldom one of them once more.
            let is_top =
                self.directories.is_empty() || self.tops < 2 && random.one_in(5) || random.one_in(2000);
            let parent = match is_top {
                true => EntryId::root(self.tops % 2),
                false => random.pick(&self.directories),
            };
            self.tops += u32::from(is_top);
            let mut entry = random.entry(id, parent);
            if entry.kind == Kind::Other || is_top && !random.one_in(20) {
                entry.kind = Kind::Directory;
            }
            let size = entry.size();
            let objects = entry.kind == Kind::File && size > 100;
            match entry.kind {
                Kind::Directory => self.directories.push(id),
                // A number of objects that a log cannot hold ends the session, rightly.
                Kind::File if size > 1 << 36 => continue,
                Kind::File => self.announced.push((id, size)),
                _ => {}
            }
            let object_bytes = objects.then_some(OBJECT_BYTES);
            items.push(NewFile::Entry { entry: Arc::new(entry), object_bytes, resume: None, stripes: None });
        }
        if random.one_in(6) && !self.directories.is_empty() {
            let ended = self.directories.swap_remove(random.below(self.directories.len() as u64) as usize);
            items.push(NewFile::End(ended));
        }
        Message::NewFile(items)
    }
}

/// A sink that mostly says what fits.
#[derive(Default)]
pub struct Answerer {
    open: Vec<(EntryId, Kind, bool, Option<Token>)>,
    pub withheld: Vec<SlotId>,
    objects: Vec<(EntryId, u32)>,
    members: Vec<EntryId>,
    closing: Vec<EntryId>,
}

impl Answerer {
    pub fn hear(&mut self, message: &Message) {
        match message {
            Message::NewFile(items) => {
                for item in items {
                    let NewFile::Entry { entry, object_bytes, resume, .. } = item else { continue };
                    self.open.push((entry.id, entry.kind, object_bytes.is_some(), *resume));
                }
            }
            Message::NewBlock { id, index, slot, .. } => {
                self.objects.push((*id, *index));
                self.withheld.push(*slot);
            }
            Message::Manifest { members, slot, .. } => {
                self.members.extend(members.iter().map(|member| member.id));
                self.withheld.push(*slot);
            }
            Message::FileClose { id, .. } => self.closing.push(*id),
            _ => {}
        }
    }

    pub fn message(&mut self, random: &mut Random) -> Message {
        match random.below(6) {
            0 | 1 if !self.open.is_empty() => {
                let answer = |(id, kind, objects, resume): (_, _, _, Option<Token>)| match kind {
                    _ if random.one_in(8) => (id, Answer::Fail(random.failure())),
                    Kind::Directory => (id, Answer::Made),
                    Kind::Symlink => (id, if random.one_in(2) { Answer::Skip } else { Answer::Made }),
                    _ if random.one_in(6) => (id, Answer::Skip),
                    _ if resume.is_some() => (id, Answer::Resume(resume.unwrap_or(Token::NONE))),
                    _ if objects => (id, Answer::Start(Token([2; 16]))),
                    _ => (id, Answer::Start(Token::NONE)),
                };
                let answers = self.open.drain(..).map(answer).collect();
                Message::FileId { answers, laid: Vec::new(), unlike: Vec::new() }
            }
            2 if !self.withheld.is_empty() => {
                let allowances = (0..random.below(3)).map(|_| random.allowance()).collect();
                Message::BlockDone { slots: std::mem::take(&mut self.withheld), allowances }
            }
            3 if !self.objects.is_empty() => {
                let (id, index) = self.objects.swap_remove(random.below(self.objects.len() as u64) as usize);
                match random.below(4) {
                    0 => Message::Repair(vec![Repair { id, index: Some(index), reason: RepairReason::Hash }]),
                    1 if random.one_in(4) => {
                        let entries = vec![(id, Settled::Failed(random.failure()))];
                        Message::BlockSync { objects: vec![], entries }
                    }
                    _ => Message::BlockSync { objects: vec![(id, index)], entries: vec![] },
                }
            }
            4 if !self.members.is_empty() => {
                let id = self.members.swap_remove(0);
                match random.below(4) {
                    0 => Message::Repair(vec![Repair { id, index: None, reason: RepairReason::Sync }]),
                    1 => Message::BlockSync {
                        objects: vec![],
                        entries: vec![(id, Settled::Failed(random.failure()))],
                    },
                    _ => Message::BlockSync { objects: vec![], entries: vec![(id, Settled::Done(None))] },
                }
            }
            5 if !self.closing.is_empty() => {
                let id = self.closing.swap_remove(0);
                Message::BlockSync {
                    objects: vec![],
                    entries: vec![(id, Settled::Done(Some(random.hash())))],
                }
            }
            _ => Message::Ping,
        }
    }
}
