//! Names: made, moved and removed now, durable later.

use rustix::io::Errno;

use super::node::{Attributes, Body, Directory, Node};
use super::{Change, Disk, NAME_BYTES_MAX, Number, ROOT, Result, Time};

impl Disk {
    /// The node of a name.
    pub fn lookup(&self, parent: Number, name: &[u8]) -> Result<Number> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let directory = self.directory(parent)?;
        match name {
            b"." => Ok(parent),
            b".." => Ok(directory.parent),
            _ => directory.names.get(name).copied().ok_or(Errno::NOENT),
        }
    }

    /// Makes a file, directory, symlink or special file.
    pub fn make(
        &mut self,
        parent: Number,
        name: &[u8],
        body: Body,
        attributes: Attributes,
    ) -> Result<Number> {
        self.check_new(parent, name)?;
        let number = self.next_number;
        self.next_number += 1;
        let body = match body {
            Body::Directory(_) => Body::Directory(Directory::new(parent)),
            other => other,
        };
        self.nodes.insert(number, Node::new(body, attributes, name));
        self.show(parent, name, number, attributes.changed)?;
        self.record(Change::Link { directory: parent, name: name.to_vec(), node: number });
        Ok(number)
    }

    /// The body of a new, empty directory.
    pub fn empty_directory() -> Body {
        Body::Directory(Directory::new(ROOT))
    }

    /// The body of a new, empty file.
    pub fn empty_file() -> Body {
        Body::File(Default::default())
    }

    /// Another name for a file.
    pub fn link(&mut self, number: Number, parent: Number, name: &[u8], now: Time) -> Result<()> {
        if self.is_directory(number) {
            return Err(Errno::PERM);
        }
        self.check_new(parent, name)?;
        let node = self.node_mut(number)?;
        node.links += 1;
        node.attributes.changed = now;
        self.show(parent, name, number, now)?;
        self.record(Change::Link { directory: parent, name: name.to_vec(), node: number });
        Ok(())
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&mut self, parent: Number, name: &[u8], now: Time) -> Result<()> {
        let number = self.lookup(parent, name)?;
        if self.is_directory(number) {
            return Err(Errno::ISDIR);
        }
        self.remove(parent, name, number, now)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&mut self, parent: Number, name: &[u8], now: Time) -> Result<()> {
        let number = self.lookup(parent, name)?;
        if !self.directory(number)?.names.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.remove(parent, name, number, now)
    }

    /// Moves a name, over another where `replace` allows it.
    pub fn rename(
        &mut self,
        parent: Number,
        name: &[u8],
        new_parent: Number,
        new_name: &[u8],
        replace: bool,
        now: Time,
    ) -> Result<()> {
        let number = self.lookup(parent, name)?;
        if new_name.len() > NAME_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if self.is_directory(number) && self.is_within(new_parent, number)? {
            return Err(Errno::INVAL);
        }
        if let Some(target) = self.directory(new_parent)?.names.get(new_name).copied() {
            if !replace {
                return Err(Errno::EXIST);
            }
            if target == number {
                return Ok(());
            }
            match (self.is_directory(number), self.is_directory(target)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !self.directory(target)?.names.is_empty() => return Err(Errno::NOTEMPTY),
                _ => {}
            }
            let node = self.node_mut(target)?;
            node.links -= 1;
            node.attributes.changed = now;
            self.directory_mut(new_parent)?.names.remove(new_name);
            self.collect(target);
        }
        self.directory_mut(parent)?.names.remove(name);
        self.touch(parent, now)?;
        self.show(new_parent, new_name, number, now)?;
        let node = self.node_mut(number)?;
        node.attributes.changed = now;
        node.last_name = new_name.to_vec();
        if let Body::Directory(directory) = &mut node.body {
            directory.parent = new_parent;
        }
        let (from, to) = (name.to_vec(), new_name.to_vec());
        if parent == new_parent {
            self.record(Change::Rename { directory: parent, from, to, node: number });
        } else {
            let origin = (parent, from.clone());
            let arrival =
                self.record(Change::Arrive { directory: new_parent, name: to, node: number, from: origin });
            self.record(Change::Leave { directory: parent, name: from, node: number, arrival });
        }
        Ok(())
    }

    /// Entries of an open directory from `position` on; position 0 reads it afresh.
    pub fn list(&mut self, handle: u64, position: u64) -> Result<&[(Vec<u8>, Number)]> {
        let number = self.opened(handle)?;
        if position == 0 {
            let directory = self.directory(number)?;
            let mut listing = vec![(b".".to_vec(), number), (b"..".to_vec(), directory.parent)];
            listing.extend(directory.names.iter().map(|(name, node)| (name.clone(), *node)));
            self.handles.get_mut(&handle).ok_or(Errno::STALE)?.listing = listing;
        }
        let listing = &self.handles.get(&handle).ok_or(Errno::STALE)?.listing;
        Ok(listing.get(position as usize..).unwrap_or(&[]))
    }

    /// Makes the changes of a directory up to one of them durable.
    ///
    /// The old name of a move between directories leaves the medium only after the new one has reached it, as a
    /// journal guarantees: a file that was moved is never without a name.
    pub(super) fn persist_names(&mut self, number: Number, last: u64) -> Result<()> {
        let directory = self.directory_mut(number)?;
        let later =
            directory.pending.iter().position(|sequence| *sequence > last).unwrap_or(directory.pending.len());
        let due: Vec<u64> = directory.pending.drain(..later).collect();
        for sequence in due {
            let Some(change) = self.changes.remove(&sequence) else { continue };
            if let Change::Leave { arrival, .. } = &change
                && let Some(other) = self.changes.get(arrival)
            {
                self.persist_names(other.directory(), *arrival)?;
            }
            self.apply(&change);
            self.release_hold(change.node());
            // A directory has one name at every instant, so its two halves reach the medium together.
            if let Change::Arrive { node, from: (origin, _), .. } = &change
                && self.is_directory(*node)
                && self.changes.contains_key(&(sequence + 1))
            {
                self.persist_names(*origin, sequence + 1)?;
            }
        }
        Ok(())
    }

    /// A change reaches the medium.
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Link { directory, name, node } | Change::Arrive { directory, name, node, .. } => {
                self.set_durable(*directory, name, Some(*node));
            }
            Change::Unlink { directory, name, .. } => self.set_durable(*directory, name, None),
            Change::Leave { directory, name, .. } => self.set_durable(*directory, name, None),
            Change::Rename { directory, from, to, node } => {
                self.set_durable(*directory, from, None);
                self.set_durable(*directory, to, Some(*node));
            }
        }
    }

    fn set_durable(&mut self, directory: Number, name: &[u8], node: Option<Number>) {
        // The directory itself may be gone: then nobody will see its names.
        let Ok(found) = self.directory_mut(directory) else { return };
        let before = match node {
            Some(node) => found.durable.insert(name.to_vec(), node),
            None => found.durable.remove(name),
        };
        if let Some(number) = node
            && let Some(node) = self.nodes.get_mut(&number)
        {
            node.held += 1;
        }
        if let Some(before) = before {
            self.release_hold(before);
        }
    }

    fn record(&mut self, change: Change) -> u64 {
        let sequence = self.next_change;
        self.next_change += 1;
        if let Ok(directory) = self.directory_mut(change.directory()) {
            directory.pending.push(sequence);
        }
        if let Some(node) = self.nodes.get_mut(&change.node()) {
            node.held += 1;
        }
        self.changes.insert(sequence, change);
        sequence
    }

    fn remove(&mut self, parent: Number, name: &[u8], number: Number, now: Time) -> Result<()> {
        self.directory_mut(parent)?.names.remove(name);
        self.touch(parent, now)?;
        let node = self.node_mut(number)?;
        node.links -= 1;
        node.attributes.changed = now;
        self.record(Change::Unlink { directory: parent, name: name.to_vec(), node: number });
        Ok(())
    }

    fn show(&mut self, parent: Number, name: &[u8], number: Number, now: Time) -> Result<()> {
        self.directory_mut(parent)?.names.insert(name.to_vec(), number);
        self.touch(parent, now)
    }

    fn touch(&mut self, number: Number, now: Time) -> Result<()> {
        let node = self.node_mut(number)?;
        (node.attributes.modified, node.attributes.changed) = (now, now);
        Ok(())
    }

    fn check_new(&self, parent: Number, name: &[u8]) -> Result<()> {
        match self.lookup(parent, name) {
            // A removed directory that is still open takes no new names.
            Err(Errno::NOENT) if self.node(parent)?.links > 0 => Ok(()),
            Err(errno) => Err(errno),
            Ok(_) => Err(Errno::EXIST),
        }
    }

    /// Is `number` the directory `ancestor` or beneath it?
    fn is_within(&self, mut number: Number, ancestor: Number) -> Result<bool> {
        loop {
            if number == ancestor {
                return Ok(true);
            }
            if number == ROOT {
                return Ok(false);
            }
            number = self.directory(number)?.parent;
        }
    }
}
