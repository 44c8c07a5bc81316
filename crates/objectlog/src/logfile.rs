//! One log of this process: its index pages and its room. Memory only; [`crate::flush`] writes it.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

use crate::format::{self, Extent, INDEX_ROOM_BYTES, PAGE_BYTES, RECORD_BYTES_MIN};
use crate::method::Mechanism;
use crate::space::Space;

/// What the store lacks of an index page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PageState {
    /// Nothing.
    Clean,
    /// It still has records of entries that are gone; they do no harm.
    Removed,
    /// Records or extents that must be durable before anything is written under them.
    Added,
}

pub(crate) struct IndexPage {
    pub offset: u64,
    /// The entries whose records are in it.
    pub slots: Vec<u32>,
    pub state: PageState,
    /// It was handed to the store before.
    pub written: bool,
    room: usize,
}

pub(crate) struct LogFile {
    pub number: u64,
    pub name: String,
    /// Entries that were ever placed here.
    pub births: u32,
    /// Entries that are here.
    pub live: u32,
    /// What they need, in bytes.
    pub live_bytes: u64,
    /// Length of the file in the store.
    pub bytes: u64,
    /// Something was to be written: even if that failed, the file may be there.
    pub begun: bool,
    /// Has writes that are not durable.
    pub unsynced: bool,
    /// Its name is durable.
    pub named: bool,
    /// It is in the list of logs that the next flush looks at.
    pub listed: bool,
    pub pages: Vec<IndexPage>,
    /// Room left and number of every page that may take another record.
    open_pages: BTreeSet<(usize, u32)>,
    space: Space,
}

impl LogFile {
    pub(crate) fn new(mechanism: Mechanism, number: u64) -> Self {
        LogFile {
            number,
            name: format::log_name(mechanism, number),
            births: 0,
            live: 0,
            live_bytes: 0,
            bytes: 0,
            begun: false,
            unsynced: false,
            named: false,
            listed: false,
            pages: Vec::new(),
            open_pages: BTreeSet::new(),
            space: Space::default(),
        }
    }

    /// Room for a record in the fullest page that has it; the number of the page.
    pub(crate) fn add_record(&mut self, slot: u32, bytes: usize) -> u32 {
        let number = match self.open_pages.range((bytes, 0)..).next().copied() {
            Some(open) => {
                self.open_pages.remove(&open);
                open.1
            }
            None => {
                let offset = self.space.take(PAGE_BYTES as u64).offset;
                let page = IndexPage {
                    offset,
                    slots: Vec::new(),
                    state: PageState::Clean,
                    written: false,
                    room: INDEX_ROOM_BYTES,
                };
                self.pages.push(page);
                (self.pages.len() - 1) as u32
            }
        };
        let page = &mut self.pages[number as usize];
        page.room -= bytes;
        page.slots.push(slot);
        page.state = PageState::Added;
        if page.room >= RECORD_BYTES_MIN {
            self.open_pages.insert((page.room, number));
        }
        self.births += 1;
        self.live += 1;
        self.live_bytes += bytes as u64;
        number
    }

    /// The entry is gone from this page.
    pub(crate) fn remove_record(&mut self, number: u32, slot: u32, bytes: usize) {
        let page = &mut self.pages[number as usize];
        page.slots.retain(|other| *other != slot);
        self.open_pages.remove(&(page.room, number));
        page.room += bytes;
        self.open_pages.insert((page.room, number));
        page.state = match (page.slots.is_empty(), page.written) {
            (true, false) => PageState::Clean,
            (true, true) => PageState::Removed,
            (false, _) => page.state.max(PageState::Removed),
        };
        self.live -= 1;
        self.live_bytes -= bytes as u64;
    }

    pub(crate) fn take(&mut self, length: u64) -> Extent {
        self.live_bytes += length;
        self.space.take(length)
    }

    pub(crate) fn give(&mut self, extent: Extent) {
        self.live_bytes -= extent.length;
        self.space.give(extent);
    }

    pub(crate) fn has(&self, state: PageState) -> bool {
        self.pages.iter().any(|page| page.state == state)
    }
}
