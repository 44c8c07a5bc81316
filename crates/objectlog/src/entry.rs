//! What is known of one file in progress.

use alloc::sync::Arc;
use alloc::vec::Vec;

use haul_model::{Bitmap, Identity, Token};

use crate::format::{CELL_PAYLOAD_MAX, Extent, Origin};
use crate::method::Method;

/// Names an entry between [`begin`](crate::ObjectLog::begin) or [`resume`](crate::ObjectLog::resume) and its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle {
    pub(crate) slot: u32,
    pub(crate) serial: u32,
}

/// To what a log entry is bound beside its path: when any of it differs, the bits mean nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Binding {
    /// Which version of the source file.
    pub identity: Identity,
    /// Into objects of which size it was cut, in bytes.
    pub object_bytes: u32,
    /// Into how many (TotalBlocks of the paper).
    pub objects: u64,
    /// Which hash the objects were checked with.
    pub hash_kind: u8,
    /// Which unfinished file at the sink holds them. A token is never used for two versions of a file.
    pub token: Token,
    /// Where acknowledgements were not durable: the boot of the sink's host for as long as which they count.
    pub sink_boot: Option<[u8; 16]>,
}

/// Why a log entry is not to be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// The source file has another size.
    Size,
    /// It was modified.
    ModificationTime,
    /// Its status changed: modified with the time put back, renamed, or its attributes were set.
    ChangeTime,
    /// It was replaced by another file.
    Inode,
    /// Objects have another size now.
    ObjectBytes,
    /// The file is cut into another number of objects.
    Objects,
    /// Another hash is in use.
    HashKind,
    /// The sink's host was booted since, and what it acknowledged was not durable.
    SinkBoot,
}

impl Difference {
    /// For people.
    pub const fn text(self) -> &'static str {
        match self {
            Difference::Size => "the file has another size",
            Difference::ModificationTime => "the file was modified",
            Difference::ChangeTime => "the file's status changed",
            Difference::Inode => "the file was replaced",
            Difference::ObjectBytes => "the object size is another",
            Difference::Objects => "the number of objects is another",
            Difference::HashKind => "the hash is another",
            Difference::SinkBoot => "the sink was restarted, and what it acknowledged was not durable",
        }
    }
}

impl Binding {
    /// Why objects logged under `self` do not count for a transfer under `now`; `None` if they do.
    ///
    /// Tokens are not compared: whether the unfinished file is still there only the sink can say.
    pub fn difference(&self, now: &Binding) -> Option<Difference> {
        let (then, new) = (&self.identity, &now.identity);
        let checks = [
            (then.size == new.size, Difference::Size),
            (then.mtime == new.mtime, Difference::ModificationTime),
            (then.ctime == new.ctime, Difference::ChangeTime),
            (then.inode == new.inode, Difference::Inode),
            (self.object_bytes == now.object_bytes, Difference::ObjectBytes),
            (self.objects == now.objects, Difference::Objects),
            (self.hash_kind == now.hash_kind, Difference::HashKind),
            (self.sink_boot.is_none() || self.sink_boot == now.sink_boot, Difference::SinkBoot),
        ];
        checks.into_iter().find(|(same, _)| !same).map(|(_, difference)| difference)
    }
}

/// What the log holds of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Logged {
    /// To what it is bound.
    pub binding: Binding,
    /// The objects that are durable at the sink.
    pub done: Bitmap,
}

/// One file in progress, in memory.
pub(crate) struct Entry {
    pub path: Arc<[u8]>,
    pub logged: Logged,
    /// Looked up or begun in this run.
    pub seen: bool,
    /// Has something that is not in the store; it is in the list of dirty entries.
    pub dirty: bool,
    /// Where it is in a log of this process.
    pub place: Option<Place>,
    /// Logs of earlier processes, and given up ones of this process, that hold a record of it.
    pub old: Vec<u32>,
    /// The record with which it began, if that is in one of those.
    pub origin: Option<Origin>,
    /// What of it the next flush writes.
    pub unwritten: Unwritten,
    pub serial: u32,
}

/// Where an entry is.
pub(crate) struct Place {
    pub file: u32,
    pub generation: u32,
    pub page: u32,
    pub record_bytes: usize,
    /// All that the plan of the method has; the last ones may not be taken yet.
    pub extents: Vec<Extent>,
    pub path_extent: Option<Extent>,
    /// The record is durable, with all extents that are taken.
    pub indexed: bool,
    /// Appending methods: the cell that the next number goes to.
    pub tail: Tail,
    /// What `tail` becomes once the cells that are being written have been written.
    pub tail_next: Option<Tail>,
}

/// The last cell of an appending method.
#[derive(Clone, Default)]
pub(crate) struct Tail {
    /// Its number within the entry.
    pub cell: u64,
    /// What is in it.
    pub payload: Vec<u8>,
}

/// Objects that were recorded and are not in the store.
pub(crate) enum Unwritten {
    /// All that are done: nothing was written of this entry yet.
    All,
    /// Bit methods: cells that have to be written, one bit each.
    Cells(Vec<u64>),
    /// Appending methods: objects in the order in which they were recorded.
    Objects(Vec<u32>),
}

impl Unwritten {
    /// Everything has been written.
    pub(crate) fn none(method: Method, objects: u64) -> Self {
        if method.is_bits() {
            let cells = objects.div_ceil(CELL_PAYLOAD_MAX as u64 * 8);
            Unwritten::Cells(alloc::vec![0; cells.div_ceil(64) as usize])
        } else {
            Unwritten::Objects(Vec::new())
        }
    }

    /// Object `object` has just been recorded.
    pub(crate) fn note(&mut self, object: u64) {
        match self {
            Unwritten::All => {}
            Unwritten::Cells(cells) => {
                let cell = object / (CELL_PAYLOAD_MAX as u64 * 8);
                if let Some(word) = cells.get_mut((cell / 64) as usize) {
                    *word |= 1 << (cell % 64);
                }
            }
            Unwritten::Objects(objects) => objects.push(object as u32),
        }
    }

    pub(crate) fn clear(&mut self) {
        match self {
            Unwritten::All => {}
            Unwritten::Cells(cells) => cells.fill(0),
            Unwritten::Objects(objects) => objects.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_model::Timestamp;

    use super::*;

    #[test]
    fn every_field_of_a_binding_but_the_token_is_compared() {
        let time = |seconds, nanos| Timestamp { seconds, nanos };
        let identity = Identity { size: 9, mtime: time(1, 2), ctime: time(3, 4), inode: 5 };
        let base = Binding {
            identity,
            object_bytes: 4,
            objects: 3,
            hash_kind: 1,
            token: Token([1; 16]),
            sink_boot: Some([2; 16]),
        };
        assert_eq!(base.difference(&base), None);
        assert_eq!(base.difference(&Binding { token: Token([9; 16]), ..base }), None);
        let with = |identity| Binding { identity, ..base };
        for (now, difference) in [
            (with(Identity { size: 8, ..identity }), Difference::Size),
            (with(Identity { mtime: time(1, 3), ..identity }), Difference::ModificationTime),
            (with(Identity { ctime: time(4, 4), ..identity }), Difference::ChangeTime),
            (with(Identity { inode: 6, ..identity }), Difference::Inode),
            (Binding { object_bytes: 5, ..base }, Difference::ObjectBytes),
            (Binding { objects: 4, ..base }, Difference::Objects),
            (Binding { hash_kind: 2, ..base }, Difference::HashKind),
            (Binding { sink_boot: None, ..base }, Difference::SinkBoot),
            (Binding { sink_boot: Some([3; 16]), ..base }, Difference::SinkBoot),
        ] {
            assert_eq!(base.difference(&now), Some(difference));
        }
        let durable = Binding { sink_boot: None, ..base };
        assert_eq!(durable.difference(&base), None, "what was durable stays so whatever the boot");
    }
}
