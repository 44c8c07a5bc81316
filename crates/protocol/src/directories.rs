//! The directories that are alive: those with open entries, and their ancestors.
//!
//! Both masters keep one. A directory is settled when its end was announced, its own answer is in and none of its
//! children is open; then storage may forget it. So memory follows the entries under way, not the dataset.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashMap;
use haul_model::limits::{DEPTH_MAX, DIRECTORIES_OPEN_MAX, DIRECTORY_NAMES_BYTES_MAX, SOURCES_MAX};
use haul_model::{Code, EntryId, Failure};

/// Four times the longest path that a system call takes. No message takes more.
pub(crate) const TOLD_BYTES_MAX: usize = 16 << 10;
/// In front of what is left of a longer one.
const CUT: &[u8] = b"...";

/// A path to be told; of a very long one the end.
pub fn end_of(path: Box<[u8]>) -> Box<[u8]> {
    if path.len() <= TOLD_BYTES_MAX {
        return path;
    }
    [CUT, &path[path.len() - (TOLD_BYTES_MAX - CUT.len())..]].concat().into()
}

struct Node {
    parent: EntryId,
    name: Box<[u8]>,
    depth: u32,
    /// Open entries in it, alive subdirectories, and 1 until its end is announced.
    holds: u64,
    ended: bool,
}

/// Live directories by id.
pub struct Directories {
    nodes: HashMap<EntryId, Node>,
    roots: Vec<Box<[u8]>>,
    /// Whose end was not announced yet.
    listed: usize,
    name_bytes: usize,
}

impl Directories {
    /// `roots`: under which name below the destination each SOURCE will stand (empty: merged into it).
    pub fn new(roots: Vec<Box<[u8]>>) -> Self {
        Directories { nodes: HashMap::new(), roots, listed: 0, name_bytes: 0 }
    }

    /// Is there such a parent? (An entry that starts again may come after the end of its directory was announced: its
    /// old self keeps the directory alive.)
    pub fn check_parent(&self, parent: EntryId) -> Result<(), Failure> {
        match parent.root_index() {
            Some(index) if (index as usize) < self.roots.len().min(SOURCES_MAX) => Ok(()),
            None if self.nodes.contains_key(&parent) => Ok(()),
            _ => Err(Failure::new(Code::Protocol)),
        }
    }

    /// A directory is announced. It holds itself until [`Directories::end`].
    pub fn enter(&mut self, id: EntryId, parent: EntryId, name: &[u8]) -> Result<(), Failure> {
        self.check_parent(parent)?;
        let depth = self.nodes.get(&parent).map_or(0, |node| node.depth + 1);
        let name_bytes = self.name_bytes + name.len();
        let has_room = self.nodes.len() < DIRECTORIES_OPEN_MAX && name_bytes <= DIRECTORY_NAMES_BYTES_MAX;
        if !has_room || depth as usize > DEPTH_MAX {
            return Err(Failure::new(Code::LimitExceeded));
        }
        let node = Node { parent, name: name.into(), depth, holds: 1, ended: false };
        if self.nodes.insert(id, node).is_some() {
            return Err(Failure::new(Code::Protocol));
        }
        self.listed += 1;
        self.name_bytes = name_bytes;
        self.hold(parent);
        Ok(())
    }

    /// An entry of this directory is open.
    pub fn hold(&mut self, id: EntryId) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.holds += 1;
        }
    }

    /// No further entry will come. Directories that are settled by that go to `settled`, children first.
    pub fn end(&mut self, id: EntryId, settled: &mut Vec<EntryId>) -> Result<(), Failure> {
        match self.nodes.get_mut(&id) {
            Some(node) if !node.ended => node.ended = true,
            _ => return Err(Failure::new(Code::Protocol)),
        }
        self.listed -= 1;
        self.release(id, settled);
        Ok(())
    }

    /// An entry of this directory has ended.
    pub fn release(&mut self, mut id: EntryId, settled: &mut Vec<EntryId>) {
        while let Some(node) = self.nodes.get_mut(&id) {
            node.holds -= 1;
            if node.holds > 0 {
                return;
            }
            settled.push(id);
            let parent = node.parent;
            self.name_bytes -= node.name.len();
            self.nodes.remove(&id);
            id = parent;
        }
    }

    /// The path of `name` in `parent`, below the destination, to be told; of a very long one the end.
    ///
    /// A peer makes directories as deep as it likes with a few bytes each, and then has a thousand names in the deepest one fail.
    pub fn path(&self, parent: EntryId, name: &[u8]) -> Vec<u8> {
        let (index, mut path) = self.walk(parent, name, TOLD_BYTES_MAX);
        if path.len() > TOLD_BYTES_MAX {
            path.truncate(TOLD_BYTES_MAX - CUT.len());
            path.extend_from_slice(CUT);
        } else if let Some(root) = self.roots.get(index as usize) {
            prepend(&mut path, root);
        }
        path.reverse();
        path
    }

    /// What a log entry is found by: like the path, but with the number of the SOURCE, so that two merged SOURCEs
    /// with the same names stay apart.
    pub fn key(&self, parent: EntryId, name: &[u8]) -> Vec<u8> {
        let (index, mut path) = self.walk(parent, name, usize::MAX);
        path.push(b'/');
        let mut rest = index;
        loop {
            path.push(b'0' + (rest % 10) as u8);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        path.reverse();
        path
    }

    /// How many are alive.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The end of each was announced: nothing more will come into any.
    pub fn all_ended(&self) -> bool {
        self.listed == 0
    }

    /// None is alive.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Builds the path backwards, reversed byte by byte, up to the root or until it has more than so many bytes.
    fn walk(&self, mut parent: EntryId, name: &[u8], enough: usize) -> (u32, Vec<u8>) {
        let mut path: Vec<u8> = name.iter().rev().copied().collect();
        while let Some(node) = self.nodes.get(&parent).filter(|_| path.len() <= enough) {
            prepend(&mut path, &node.name);
            parent = node.parent;
        }
        (parent.root_index().unwrap_or(0), path)
    }
}

fn prepend(reversed: &mut Vec<u8>, name: &[u8]) {
    if name.is_empty() {
        return;
    }
    if !reversed.is_empty() {
        reversed.push(b'/');
    }
    reversed.extend(name.iter().rev());
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_directory_lives_until_its_end_and_its_last_child() {
        let mut directories = Directories::new(vec![b"top".as_slice().into()]);
        let mut settled = vec![];
        directories.enter(EntryId(1), EntryId::root(0), b"").unwrap();
        directories.enter(EntryId(2), EntryId(1), b"sub").unwrap();
        directories.hold(EntryId(2));
        assert_eq!(directories.path(EntryId(2), b"file"), b"top/sub/file");
        assert_eq!(directories.key(EntryId(2), b"file"), b"0/sub/file");
        directories.end(EntryId(2), &mut settled).unwrap();
        assert!(!directories.all_ended());
        directories.end(EntryId(1), &mut settled).unwrap();
        assert!(settled.is_empty() && directories.all_ended());
        directories.release(EntryId(2), &mut settled);
        assert_eq!(settled, [EntryId(2), EntryId(1)]);
        assert!(directories.is_empty());
    }

    /// Each costs what it is called, and its end may never come.
    #[test]
    fn names_of_live_directories_have_room_for_so_many_bytes() {
        let name = vec![b'n'; 1 << 20];
        let mut directories = Directories::new(vec![b"top".as_slice().into()]);
        let all = (DIRECTORY_NAMES_BYTES_MAX / name.len()) as u64;
        directories.enter(EntryId(1), EntryId::root(0), b"").unwrap();
        for number in 2..2 + all {
            directories.enter(EntryId(number), EntryId(1), &name).unwrap();
        }
        let one_more = |directories: &mut Directories| directories.enter(EntryId(1 << 40), EntryId(1), b"n");
        assert_eq!(one_more(&mut directories), Err(Failure::new(Code::LimitExceeded)));
        let mut settled = vec![];
        directories.end(EntryId(2), &mut settled).unwrap();
        one_more(&mut directories).unwrap();
        assert_eq!(directories.name_bytes, DIRECTORY_NAMES_BYTES_MAX - name.len() + 1);
    }

    #[test]
    fn a_parent_that_was_never_announced_or_is_settled_is_refused() {
        let mut directories = Directories::new(vec![b"top".as_slice().into()]);
        assert!(directories.enter(EntryId(1), EntryId::root(1), b"").is_err());
        assert!(directories.enter(EntryId(1), EntryId(7), b"x").is_err());
        directories.enter(EntryId(1), EntryId::root(0), b"").unwrap();
        assert!(directories.enter(EntryId(1), EntryId::root(0), b"").is_err());
        directories.hold(EntryId(1));
        directories.end(EntryId(1), &mut vec![]).unwrap();
        assert!(directories.end(EntryId(1), &mut vec![]).is_err(), "ended twice");
        directories.release(EntryId(1), &mut vec![]);
        assert!(directories.check_parent(EntryId(1)).is_err());
    }

    #[test]
    fn of_a_very_long_path_the_end_is_told_and_the_key_is_whole() {
        let mut directories = Directories::new(vec![b"top".as_slice().into()]);
        directories.enter(EntryId(1), EntryId::root(0), b"").unwrap();
        for id in 2..5_002 {
            directories.enter(EntryId(id), EntryId(id - 1), &[b'd'; 255]).unwrap();
        }
        let told = directories.path(EntryId(5_001), b"name");
        assert_eq!(told.len(), TOLD_BYTES_MAX);
        assert!(told.starts_with(b"...") && told.ends_with(b"d/name"));
        let mut whole = vec![b'd'; TOLD_BYTES_MAX];
        assert_eq!(end_of(whole.clone().into()).into_vec(), whole);
        whole.extend_from_slice(b"/name");
        let told = end_of(whole.into());
        assert!(told.len() == TOLD_BYTES_MAX && told.starts_with(b"...d") && told.ends_with(b"d/name"));
        assert_eq!(directories.key(EntryId(5_001), b"name").len(), 1 + 5_000 * 256 + 5);
        assert!(directories.path(EntryId(60), b"name").starts_with(b"top/d"));
    }

    #[test]
    fn merged_sources_share_a_path_but_not_a_key() {
        let directories = Directories::new(vec![b"".as_slice().into(), b"".as_slice().into()]);
        assert_eq!(directories.path(EntryId::root(1), b"x"), b"x");
        assert_eq!(directories.key(EntryId::root(1), b"x"), b"1/x");
        assert_eq!(directories.key(EntryId::root(0), b"x"), b"0/x");
    }
}
