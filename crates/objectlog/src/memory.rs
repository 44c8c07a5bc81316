//! A store in memory that can lose what was not synced, for tests of this crate and of those that use it.
//!
//! Model: a file is an inode with bytes; a name leads to an inode. Every write waits, in pieces of at most 512 bytes
//! (cut at multiples of 512), until its file is synced; every creation and removal of a name waits until the names are
//! synced. A crash keeps or loses each waiting thing on its own, and so makes states that are worse than any real disk
//! makes. A sync that fails loses what waited, and no later sync brings it back, though readers still see it: so do
//! the page caches of real systems.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::format::PAGE_BYTES;
use crate::store::LogStore;

/// Why an operation on a [`MemoryStore`] failed: it was told to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store was told to fail")
    }
}

#[derive(Clone, Default, Debug)]
struct Inode {
    /// As a reader sees it.
    seen: Vec<u8>,
    /// As it was when it was synced last.
    durable: Vec<u8>,
    /// Writes since then.
    waiting: Vec<(u64, Vec<u8>)>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Create(String, usize),
    Remove(String),
}

/// A [`LogStore`] in memory.
#[derive(Clone, Default, Debug)]
pub struct MemoryStore {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    names_durable: BTreeMap<String, usize>,
    names_waiting: Vec<NameChange>,
    operations: u64,
    operations_max: Option<u64>,
    changes: u64,
}

fn put(bytes: &mut Vec<u8>, offset: u64, piece: &[u8]) {
    let start = offset as usize;
    let end = start + piece.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[start..end].copy_from_slice(piece);
}

impl MemoryStore {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// With these files, all of them durable.
    pub fn with_files(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let mut store = Self::new();
        for (name, bytes) in files {
            store.names.insert(name, store.inodes.len());
            store.inodes.push(Inode { seen: bytes.clone(), durable: bytes, waiting: Vec::new() });
        }
        store.names_durable = store.names.clone();
        store
    }

    /// Every file as a reader sees it now.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.names.iter().map(|(name, &inode)| (name.clone(), self.inodes[inode].seen.clone())).collect()
    }

    /// Only what is durable: what is left if a crash loses all that it may.
    pub fn durable_files(&self) -> BTreeMap<String, Vec<u8>> {
        self.names_durable
            .iter()
            .map(|(name, &inode)| (name.clone(), self.inodes[inode].durable.clone()))
            .collect()
    }

    /// A state after a power cut. `keep` is asked once for each waiting piece and name: is it kept? Asked with random
    /// answers it can make any state that the model knows.
    pub fn crash(&self, mut keep: impl FnMut() -> bool) -> MemoryStore {
        let mut names = self.names_durable.clone();
        for change in &self.names_waiting {
            if !keep() {
                continue;
            }
            match change {
                NameChange::Create(name, inode) => names.insert(name.clone(), *inode),
                NameChange::Remove(name) => names.remove(name),
            };
        }
        let mut contents = |inode: usize| {
            let inode = &self.inodes[inode];
            let mut bytes = inode.durable.clone();
            for (offset, piece) in &inode.waiting {
                if keep() {
                    put(&mut bytes, *offset, piece);
                }
            }
            bytes
        };
        Self::with_files(names.into_iter().map(|(name, inode)| (name, contents(inode))))
    }

    /// From now on the first `operations` operations are performed and all later ones fail; `None`: none fails.
    pub fn fail_after(&mut self, operations: Option<u64>) {
        self.operations_max = operations.map(|more| self.operations.saturating_add(more));
    }

    /// How many operations were performed.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// How many of them changed something.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    fn count(&mut self) -> Result<(), Refused> {
        if self.operations_max.is_some_and(|max| self.operations >= max) {
            return Err(Refused);
        }
        self.operations += 1;
        Ok(())
    }
}

impl LogStore for MemoryStore {
    type Error = Refused;

    fn list(&mut self) -> Result<Vec<String>, Refused> {
        self.count()?;
        Ok(self.names.keys().cloned().collect())
    }

    fn length(&mut self, name: &str) -> Result<Option<u64>, Refused> {
        self.count()?;
        Ok(self.names.get(name).map(|&inode| self.inodes[inode].seen.len() as u64))
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, Refused> {
        self.count()?;
        let Some(&inode) = self.names.get(name) else { return Ok(0) };
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|start| self.inodes[inode].seen.get(start..))
            .unwrap_or(&[]);
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn write_at(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), Refused> {
        self.count()?;
        self.changes += 1;
        let inode = match self.names.get(name) {
            Some(&inode) => inode,
            None => {
                let inode = self.inodes.len();
                self.inodes.push(Inode::default());
                self.names.insert(name.to_string(), inode);
                self.names_waiting.push(NameChange::Create(name.to_string(), inode));
                inode
            }
        };
        let inode = &mut self.inodes[inode];
        put(&mut inode.seen, offset, bytes);
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let page_rest = PAGE_BYTES - (at % PAGE_BYTES as u64) as usize;
            let (piece, after) = rest.split_at(page_rest.min(rest.len()));
            inode.waiting.push((at, piece.to_vec()));
            at += piece.len() as u64;
            rest = after;
        }
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<(), Refused> {
        self.count()?;
        if self.names.remove(name).is_some() {
            self.changes += 1;
            self.names_waiting.push(NameChange::Remove(name.to_string()));
        }
        Ok(())
    }

    fn sync(&mut self, names: &[&str]) -> Result<(), Refused> {
        let result = self.count();
        self.changes += 1;
        for name in names {
            if let Some(&inode) = self.names.get(*name) {
                let inode = &mut self.inodes[inode];
                let waiting = core::mem::take(&mut inode.waiting);
                if result.is_ok() {
                    waiting.iter().for_each(|(offset, piece)| put(&mut inode.durable, *offset, piece));
                }
            }
        }
        result
    }

    fn sync_names(&mut self) -> Result<(), Refused> {
        self.count()?;
        self.changes += 1;
        self.names_durable.clone_from(&self.names);
        self.names_waiting.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_passes_the_conformance_suite() {
        crate::conformance::check(MemoryStore::new);
    }

    #[test]
    fn a_crash_keeps_what_was_synced_and_may_lose_the_rest_piece_by_piece() {
        let mut store = MemoryStore::new();
        store.write_at("a", 0, &[1; 600]).unwrap();
        assert!(store.crash(|| false).files().is_empty());
        store.sync(&["a"]).unwrap();
        assert!(store.crash(|| false).files().is_empty(), "the name is not durable");
        store.sync_names().unwrap();
        assert_eq!(store.crash(|| false).files()["a"], [1; 600]);

        store.write_at("a", 500, &[2; 600]).unwrap();
        let mut turn = 0;
        let torn = store.crash(|| {
            turn += 1;
            turn == 2
        });
        let bytes = &torn.files()["a"];
        assert_eq!((bytes.len(), bytes[511], bytes[512], bytes[1023]), (1024, 1, 2, 2));

        store.remove("a").unwrap();
        assert_eq!(store.crash(|| false).files()["a"], [1; 600]);
        assert!(store.crash(|| true).files().is_empty());
    }

    #[test]
    fn what_a_failed_sync_was_to_keep_is_lost_even_if_a_later_one_succeeds() {
        let mut store = MemoryStore::with_files([("a".to_string(), alloc::vec![1; 10])]);
        store.write_at("a", 0, &[2; 5]).unwrap();
        store.fail_after(Some(0));
        assert_eq!(store.sync(&["a"]), Err(Refused));
        store.fail_after(None);
        store.write_at("a", 8, &[3]).unwrap();
        store.sync(&["a"]).unwrap();
        assert_eq!(store.files()["a"], [2, 2, 2, 2, 2, 1, 1, 1, 3, 1]);
        assert_eq!(store.durable_files()["a"], [1, 1, 1, 1, 1, 1, 1, 1, 3, 1]);
    }

    #[test]
    fn a_name_that_is_made_again_leads_to_another_file() {
        let mut store = MemoryStore::with_files([("a".to_string(), alloc::vec![1; 10])]);
        store.remove("a").unwrap();
        store.write_at("a", 0, &[2]).unwrap();
        assert_eq!(store.crash(|| false).files()["a"], [1; 10]);
        store.sync(&["a"]).unwrap();
        store.sync_names().unwrap();
        assert_eq!(store.crash(|| false).files()["a"], [2]);
    }
}
