//! Writes a log to its store, in the order that makes every crash harmless.
//!
//! One flush: (1) records and extents of entries that have something to write under them, (2) sync, (3) data,
//! (4) index pages that lost records, (5) where entries moved out of old logs: sync again, then remove those logs.
//! A flush without new entries and without growth is step 3 alone.
//!
//! After an error the next flush does again what was left. A failed sync is never repeated: what was written since
//! the last good one may be gone, so the log is given up and its entries move to a new one.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::encode::{DataWriter, hand_over, record_of, write_path};
use crate::entry::{Entry, Place, Tail, Unwritten};
use crate::error::{Doing, Error};
use crate::format::{self, Extent, Header, Origin, PAGE_BYTES};
use crate::logfile::{LogFile, PageState};
use crate::method::Mechanism;
use crate::object_log::{ObjectLog, OldLog};
use crate::slab::Slab;
use crate::store::LogStore;

/// A universal log is compacted when the entries in it need less than one part in so many of its size.
const COMPACT_RATIO: u64 = 4;

impl<S: LogStore> ObjectLog<S> {
    /// Hands everything to the store. What was recorded before survives the end of this process; a power cut only
    /// after [`sync`](Self::sync).
    ///
    /// Blocks on a sync of the store if an entry is written for the first time, grows or moves.
    pub fn flush(&mut self) -> Result<(), Error<S::Error>> {
        self.write_out()?;
        if let Some(id) = self.current
            && self.config.mechanism == Mechanism::Universal
            && self.files.get(id).is_some_and(|file| {
                file.bytes >= self.config.compact_bytes_min
                    && file.live_bytes.saturating_mul(COMPACT_RATIO) <= file.bytes
            })
        {
            self.give_up(id);
            self.write_out()?;
        }
        Ok(())
    }

    /// Flushes, and makes everything durable: a power cut loses nothing of it.
    pub fn sync(&mut self) -> Result<(), Error<S::Error>> {
        self.flush()?;
        let unsynced: Vec<u32> =
            self.files.iter().filter(|(_, file)| file.unsynced && file.bytes > 0).map(|(id, _)| id).collect();
        self.sync_files(&unsynced)?;
        let olds: Vec<u32> =
            self.olds.iter().filter(|(_, old)| old.unsynced && old.files > 0).map(|(id, _)| id).collect();
        if !olds.is_empty() {
            let names: Vec<&str> =
                olds.iter().filter_map(|&id| Some(self.olds.get(id)?.name.as_str())).collect();
            if let Err(error) = self.store.sync(&names) {
                let name = names.first().map_or_else(String::new, |name| name.to_string());
                olds.iter().for_each(|&id| self.touch(id));
                return Err(Error::Store { doing: Doing::Syncing, name, error });
            }
            for id in olds {
                if let Some(old) = self.olds.get_mut(id) {
                    old.unsynced = false;
                }
            }
        }
        if self.names_unsynced {
            self.sync_names()?;
        }
        Ok(())
    }

    /// Makes everything durable and removes logs without entries: nothing is left when every file is finished.
    pub fn close(mut self) -> Result<S, Error<S::Error>> {
        self.wind_up()?;
        Ok(self.store)
    }

    /// What [`close`](Self::close) does, for an owner that keeps the log.
    pub fn wind_up(&mut self) -> Result<(), Error<S::Error>> {
        // To remove what nothing is left in takes no room, and must not fail for want of it.
        if !self.is_empty() {
            self.flush()?;
        }
        self.current = None;
        for (id, file) in self.files.iter_mut() {
            if !file.listed {
                file.listed = true;
                self.listed.push(id);
            }
        }
        self.sync()
    }

    fn write_out(&mut self) -> Result<(), Error<S::Error>> {
        self.absorb();
        let mut work = core::mem::take(&mut self.dirty);
        work.sort_unstable();
        work.dedup();
        work.retain(|&slot| self.entries.get(slot).is_some_and(|entry| entry.dirty));
        work.iter().for_each(|&slot| self.place(slot));
        work.sort_by_key(|&slot| self.place_of(slot).map(|place| place.file));
        if let Err(error) = self.write_index().and_then(|()| self.write_data(&work)) {
            self.dirty.append(&mut work);
            return Err(error);
        }
        work.clear();
        self.dirty = work;
        self.write_removals()?;
        self.settle()?;
        self.remove_logs()
    }

    fn place_of(&self, slot: u32) -> Option<&Place> {
        self.entries.get(slot)?.place.as_ref()
    }

    /// Marks the entries that move out of old logs, so that those can go.
    fn absorb(&mut self) {
        for index in 0..self.dirty.len() {
            let olds = match self.entries.get(self.dirty[index]) {
                Some(entry) if entry.place.is_none() => entry.old.clone(),
                _ => continue,
            };
            olds.into_iter().for_each(|old| self.touch(old));
        }
        if self.config.mechanism == Mechanism::Universal && (self.absorb || !self.dirty.is_empty()) {
            // One log for all files: whatever else is there moves into it.
            for (_, old) in self.olds.iter_mut() {
                old.touched = true;
                self.absorb = true;
            }
        }
        while core::mem::take(&mut self.absorb) {
            let mut emptied: Vec<u32> = Vec::new();
            for (slot, entry) in self.entries.iter_mut() {
                let touched = |id: &u32| self.olds.get(*id).is_some_and(|old| old.touched);
                if entry.place.is_some() || !entry.old.iter().any(touched) {
                    continue;
                }
                for id in &entry.old {
                    if let Some(old) = self.olds.get_mut(*id)
                        && !old.touched
                    {
                        old.touched = true;
                        self.absorb = true;
                    }
                }
                if entry.logged.done.count() == 0 {
                    emptied.append(&mut entry.old);
                } else if !entry.dirty {
                    entry.dirty = true;
                    self.dirty.push(slot);
                }
            }
            for id in emptied {
                if let Some(old) = self.olds.get_mut(id) {
                    old.unsettled -= 1;
                    if old.unsettled == 0 {
                        self.settled.push(id);
                    }
                }
            }
        }
    }

    /// Sees to it that the entry has a record, and room for what it has to write.
    fn place(&mut self, slot: u32) {
        let method = self.config.method;
        let Some(entry) = self.entries.get(slot) else { return };
        let binding = &entry.logged.binding;
        let plan = method.plan(binding.objects);
        let needed = plan.extents_needed(entry.logged.done.count());
        if let Some(place) = &entry.place
            && place.extents[..needed].iter().all(|extent| extent.length > 0)
        {
            return;
        }
        let path_bytes = entry.path.len();
        let record_bytes = format::record_bytes(
            plan.lengths().len(),
            binding.sink_boot.is_some(),
            entry.origin.is_some(),
            path_bytes,
        );
        let id = match &entry.place {
            Some(place) => place.file,
            None => self.file_for_new_entry(),
        };
        let (Some(file), Some(entry)) = (self.files.get_mut(id), self.entries.get_mut(slot)) else { return };
        let place = entry.place.get_or_insert_with(|| {
            let page = file.add_record(slot, record_bytes);
            let outside = path_bytes > format::PATH_INLINE_MAX;
            Place {
                file: id,
                generation: file.births,
                page,
                record_bytes,
                extents: alloc::vec![Extent::default(); plan.lengths().len()],
                path_extent: outside.then(|| file.take(format::path_extent_bytes(path_bytes))),
                indexed: false,
                tail: Tail::default(),
                tail_next: None,
            }
        });
        for (extent, length) in place.extents.iter_mut().zip(plan.lengths()).take(needed) {
            if extent.length == 0 {
                *extent = file.take(*length);
            }
        }
        file.pages[place.page as usize].state = PageState::Added;
        if !file.listed {
            file.listed = true;
            self.listed.push(id);
        }
        if !entry.old.is_empty() {
            self.moved.push(slot);
        }
    }

    fn file_for_new_entry(&mut self) -> u32 {
        let births_max = match self.config.mechanism {
            Mechanism::File => 1,
            Mechanism::Transaction => self.config.transaction_files,
            Mechanism::Universal => u32::MAX,
        };
        if let Some(id) = self.current
            && self.files.get(id).is_some_and(|file| file.births < births_max)
        {
            return id;
        }
        if let Some(file) = self.current.and_then(|id| self.files.get_mut(id))
            && !file.listed
        {
            // No longer the current one: it goes once it is empty.
            file.listed = true;
            self.listed.extend(self.current);
        }
        let id = self.files.insert(LogFile::new(self.config.mechanism, self.next_number));
        self.next_number += 1;
        self.current = Some(id);
        id
    }

    /// Steps 1 and 2: after this, every extent that is taken is in a durable record.
    fn write_index(&mut self) -> Result<(), Error<S::Error>> {
        let added: Vec<u32> = self
            .listed
            .iter()
            .copied()
            .filter(|&id| self.files.get(id).is_some_and(|file| file.has(PageState::Added)))
            .collect();
        for &id in &added {
            self.write_pages(id, PageState::Added)?;
        }
        self.sync_files(&added)?;
        if added.iter().any(|&id| self.files.get(id).is_some_and(|file| !file.named))
            && let Err(error) = self.sync_names()
        {
            added.iter().for_each(|&id| self.give_up(id));
            return Err(error);
        }
        for &id in &added {
            let Some(file) = self.files.get_mut(id) else { continue };
            file.named = true;
            for page in file.pages.iter_mut().filter(|page| page.state == PageState::Added) {
                page.state = PageState::Clean;
                for &slot in &page.slots {
                    if let Some(place) = self.entries.get_mut(slot).and_then(|entry| entry.place.as_mut()) {
                        place.indexed = true;
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes the index pages of this log that are in `state`, and the paths that have no room in them.
    fn write_pages(&mut self, id: u32, state: PageState) -> Result<(), Error<S::Error>> {
        let Some(file) = self.files.get_mut(id) else { return Ok(()) };
        let header = Header {
            mechanism: self.config.mechanism,
            method: self.config.method,
            transaction_files: self.config.transaction_files,
            number: file.number,
        };
        for page in file.pages.iter_mut().filter(|page| page.state == state) {
            let entries = &self.entries;
            let records = page.slots.iter().filter_map(|&slot| record_of(entries.get(slot)?));
            format::write_index_page(self.batch.add(page.offset, PAGE_BYTES), page.offset, &header, records);
            page.written = true;
            for &slot in &page.slots {
                if let Some(entry) = self.entries.get(slot) {
                    write_path(entry, file.number, &mut self.batch);
                }
            }
        }
        hand_over(&mut self.batch, &mut self.store, file, &mut self.usage)
    }

    /// Step 3.
    fn write_data(&mut self, work: &[u32]) -> Result<(), Error<S::Error>> {
        let file_of = |entries: &Slab<Entry>, slot: u32| Some(entries.get(slot)?.place.as_ref()?.file);
        let mut rest = work;
        while let Some(&first) = rest.first() {
            let Some(id) = file_of(&self.entries, first) else {
                rest = &rest[1..];
                continue;
            };
            let count = rest.iter().take_while(|&&slot| file_of(&self.entries, slot) == Some(id)).count();
            let (here, after) = rest.split_at(count);
            rest = after;
            let Some(file) = self.files.get_mut(id) else { continue };
            for &slot in here {
                if let Some(entry) = self.entries.get_mut(slot) {
                    let mut writer = DataWriter {
                        batch: &mut self.batch,
                        store: &mut self.store,
                        file,
                        usage: &mut self.usage,
                    };
                    writer.entry(entry, self.config.method)?;
                }
            }
            hand_over(&mut self.batch, &mut self.store, file, &mut self.usage)?;
            for &slot in here {
                let Some(entry) = self.entries.get_mut(slot) else { continue };
                entry.dirty = false;
                match &mut entry.unwritten {
                    Unwritten::All => {
                        entry.unwritten = Unwritten::none(self.config.method, entry.logged.binding.objects);
                    }
                    unwritten => unwritten.clear(),
                }
                if let Some(place) = &mut entry.place
                    && let Some(tail) = place.tail_next.take()
                {
                    place.tail = tail;
                }
            }
        }
        Ok(())
    }

    /// Step 4. Not synced: an entry that is gone and comes back costs a question to the sink.
    fn write_removals(&mut self) -> Result<(), Error<S::Error>> {
        for index in 0..self.listed.len() {
            let id = self.listed[index];
            if self.is_complete(id) || !self.files.get(id).is_some_and(|file| file.has(PageState::Removed)) {
                continue;
            }
            self.write_pages(id, PageState::Removed)?;
            if let Some(file) = self.files.get_mut(id) {
                let removed = file.pages.iter_mut().filter(|page| page.state == PageState::Removed);
                removed.for_each(|page| page.state = PageState::Clean);
            }
        }
        Ok(())
    }

    /// Step 5: what moved is durable in its new place, and its old logs are free of it.
    fn settle(&mut self) -> Result<(), Error<S::Error>> {
        if self.moved.is_empty() {
            return Ok(());
        }
        let mut files: Vec<u32> =
            self.moved.iter().filter_map(|&slot| self.place_of(slot).map(|place| place.file)).collect();
        files.sort_unstable();
        files.dedup();
        files.retain(|&id| self.files.get(id).is_some_and(|file| file.unsynced));
        self.sync_files(&files)?;
        for slot in core::mem::take(&mut self.moved) {
            let olds = match self.entries.get_mut(slot) {
                Some(entry) if entry.place.is_some() => core::mem::take(&mut entry.old),
                _ => continue,
            };
            olds.into_iter().for_each(|old| self.settle_one(old));
        }
        // Those logs were touched when the entries were marked; all else in them has moved too.
        self.absorb = false;
        Ok(())
    }

    /// A log of this process that has no entries and gets no more.
    fn is_complete(&self, id: u32) -> bool {
        self.files.get(id).is_some_and(|file| {
            let full = match self.config.mechanism {
                Mechanism::File => true,
                Mechanism::Transaction => file.births >= self.config.transaction_files,
                Mechanism::Universal => file.bytes >= self.config.compact_bytes_min,
            };
            file.live == 0 && (full || self.current != Some(id))
        })
    }

    /// Not synced: a log that comes back holds nothing that is not true, or is older than what replaced it.
    fn remove_logs(&mut self) -> Result<(), Error<S::Error>> {
        while let Some(&id) = self.listed.last() {
            if self.is_complete(id) {
                if let Some(file) = self.files.get(id)
                    && file.begun
                {
                    remove_log(&mut self.store, &file.name)?;
                    self.usage.shrink(file.bytes, u64::from(file.bytes > 0));
                    self.names_unsynced = true;
                }
                self.files.remove(id);
                self.current = self.current.filter(|current| *current != id);
            } else if let Some(file) = self.files.get_mut(id) {
                file.listed = false;
            }
            self.listed.pop();
        }
        while let Some(&id) = self.settled.last() {
            if let Some(old) = self.olds.get(id) {
                remove_log(&mut self.store, &old.name)?;
                self.usage.shrink(old.bytes, old.files);
                self.names_unsynced = true;
            }
            self.olds.remove(id);
            self.settled.pop();
        }
        Ok(())
    }

    fn sync_files(&mut self, ids: &[u32]) -> Result<(), Error<S::Error>> {
        if ids.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = ids.iter().filter_map(|&id| Some(self.files.get(id)?.name.as_str())).collect();
        let result = self.store.sync(&names);
        if let Err(error) = result {
            let name = names.first().map_or_else(String::new, |name| name.to_string());
            ids.iter().for_each(|&id| self.give_up(id));
            return Err(Error::Store { doing: Doing::Syncing, name, error });
        }
        for &id in ids {
            if let Some(file) = self.files.get_mut(id) {
                file.unsynced = false;
            }
        }
        Ok(())
    }

    fn sync_names(&mut self) -> Result<(), Error<S::Error>> {
        self.store.sync_names().map_err(|error| Error::Store {
            doing: Doing::SyncingNames,
            name: String::new(),
            error,
        })?;
        self.names_unsynced = false;
        Ok(())
    }

    /// Nothing is written under records that were never durable: a log that has no others goes at once. Each flush makes one where
    /// no sync succeeds.
    fn is_of_use(&mut self, file: &LogFile) -> bool {
        if file.named || !file.begun || remove_log(&mut self.store, &file.name).is_err() {
            return file.begun;
        }
        self.usage.shrink(file.bytes, u64::from(file.bytes > 0));
        self.names_unsynced = true;
        false
    }

    /// This log becomes an old one: the next flush moves what is in it to a new log.
    fn give_up(&mut self, id: u32) {
        let Some(file) = self.files.remove(id) else { return };
        self.current = self.current.filter(|current| *current != id);
        self.listed.retain(|listed| *listed != id);
        let old = self.is_of_use(&file).then(|| {
            self.olds.insert(OldLog {
                name: file.name,
                bytes: file.bytes,
                files: u64::from(file.bytes > 0),
                unsettled: file.live,
                touched: true,
                unsynced: true,
            })
        });
        for slot in file.pages.iter().flat_map(|page| &page.slots).copied() {
            let Some(entry) = self.entries.get_mut(slot) else { continue };
            if let Some(place) = entry.place.take() {
                let here = Origin { log: file.number, generation: place.generation };
                entry.origin.get_or_insert(here);
            }
            entry.unwritten = Unwritten::All;
            entry.old.extend(old);
            if !entry.dirty {
                entry.dirty = true;
                self.dirty.push(slot);
            }
        }
        match old {
            Some(old) if file.live == 0 => self.settled.push(old),
            _ => self.absorb = true,
        }
    }
}

fn remove_log<S: LogStore>(store: &mut S, name: &str) -> Result<(), Error<S::Error>> {
    store.remove(name).map_err(|error| Error::Store { doing: Doing::Removing, name: name.to_string(), error })
}
