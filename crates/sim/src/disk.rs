//! The sink's disk: what is there now, and what of it would be there after a power cut.
//!
//! Contents are cells of one grain each. A write changes a cell at once and makes it dirty; only a sync makes it
//! durable. Names and attributes likewise. When the power goes, each dirty thing is kept, lost or (contents only) torn,
//! on its own.

use haul_model::Token;

use crate::content::{GARBAGE, HOLE};
use crate::random::Random;
use crate::tree::{PathId, Tree};

/// One grain of contents, or the hash that is kept beside it.
#[derive(Clone, Copy, Default, Debug)]
pub struct Cell {
    /// What a reader sees.
    pub now: u32,
    /// What survives.
    pub durable: u32,
    /// When it was written, if that is not durable yet.
    dirty: u32,
}

impl Cell {
    /// The same bytes over what is durable, or will be, change nothing.
    fn write(&mut self, content: u32, dirty: u32) {
        let is_safe = self.dirty != 0 || self.durable == content;
        let changes = self.now != content || content == GARBAGE;
        if changes || !is_safe {
            *self = Cell { now: content, dirty, ..*self };
        }
    }

    fn crash(&mut self, random: &mut Random) {
        if self.dirty != 0 {
            match random.below(5) {
                0 | 1 => self.durable = self.now,
                2 | 3 => {}
                _ => self.durable = GARBAGE,
            }
        }
        *self = Cell { now: self.durable, durable: self.durable, dirty: 0 };
    }
}

/// A file.
#[derive(Clone, Default, Debug)]
pub struct Inode {
    /// Bytes.
    pub size: u64,
    /// Its contents.
    pub cells: Vec<Cell>,
    /// The hashes of its objects, by cell.
    pub sums: Vec<Cell>,
    /// Which state's attributes it has; 0: none.
    pub attributes: Cell,
    /// Failed syncs.
    pub failures: u32,
}

/// What a final name leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Thing {
    /// A directory.
    Directory,
    /// A regular file, by its inode.
    File(usize),
    /// The symlink of that path.
    Link,
}

/// A final name.
#[derive(Clone, Copy, Default, Debug)]
pub struct Name {
    /// What a reader sees.
    pub now: Option<Thing>,
    /// What survives.
    pub durable: Option<Thing>,
    /// The temporary file whose rename made it what it is now.
    renamed: Option<usize>,
    /// Directories: the attributes are set, and durable.
    pub attributes: bool,
}

/// A temporary file.
#[derive(Clone, Copy, Debug)]
pub struct Temp {
    /// Its name.
    pub token: Token,
    /// What it is to become.
    pub path: PathId,
    /// Its inode.
    pub inode: usize,
    /// The name is there.
    pub now: bool,
    /// The name survives.
    pub durable: bool,
    /// It is gone because it got its final name.
    renamed: bool,
}

/// The disk under the destination.
pub struct Disk {
    grain: u32,
    /// By path.
    pub names: Vec<Name>,
    /// All files.
    pub inodes: Vec<Inode>,
    /// All temporary files that ever were.
    pub temps: Vec<Temp>,
    clock: u32,
}

impl Disk {
    /// Empty.
    pub fn new(grain: u32) -> Disk {
        Disk { grain, names: vec![], inodes: vec![], temps: vec![], clock: 0 }
    }

    /// Bytes of a cell.
    pub fn grain(&self) -> u32 {
        self.grain
    }

    /// There is a place for each path of the tree.
    pub fn fit(&mut self, tree: &Tree) {
        self.names.resize(tree.nodes.len(), Name::default());
    }

    /// Now, for [`Disk::sync`].
    pub fn clock(&self) -> u32 {
        self.clock
    }

    /// What stands there from before the job, durable.
    pub fn place(&mut self, path: PathId, thing: Thing) {
        self.names[path] = Name { now: Some(thing), durable: Some(thing), ..Name::default() };
    }

    /// A complete durable file.
    pub fn whole_file(&mut self, content: u32, size: u64, stamp: u32) -> usize {
        let cell = |value| Cell { now: value, durable: value, dirty: 0 };
        let cells = vec![cell(content); self.cells_of(size)];
        let sums = cells.clone();
        self.inodes.push(Inode { size, cells, sums, attributes: cell(stamp), failures: 0 });
        self.inodes.len() - 1
    }

    /// How many cells `size` bytes take.
    pub fn cells_of(&self, size: u64) -> usize {
        size.div_ceil(u64::from(self.grain)) as usize
    }

    /// A new temporary file.
    pub fn create(&mut self, token: Token, path: PathId) -> usize {
        self.inodes.push(Inode::default());
        let inode = self.inodes.len() - 1;
        self.temps.push(Temp { token, path, inode, now: true, durable: false, renamed: false });
        self.temps.len() - 1
    }

    /// The temporary file of this name, if it is there.
    pub fn find(&self, token: Token) -> Option<usize> {
        self.temps.iter().rposition(|temp| temp.now && temp.token == token)
    }

    /// Writes a range; `kept`: it may still be made durable (not where a sync has just failed).
    pub fn write(&mut self, inode: usize, offset: u64, length: u32, content: u32, kept: bool) {
        self.clock += 1;
        let dirty = if kept { self.clock } else { 0 };
        let (first, end) = (offset / u64::from(self.grain), offset + u64::from(length));
        let end_cell = self.cells_of(end);
        let file = &mut self.inodes[inode];
        file.size = file.size.max(end);
        if file.cells.len() < end_cell {
            file.cells.resize(end_cell, Cell::default());
            file.sums.resize(end_cell, Cell::default());
        }
        for cell in first as usize..end_cell {
            file.cells[cell].write(content, dirty);
            if content != GARBAGE {
                file.sums[cell].write(content, dirty);
            }
        }
    }

    /// Makes a file so long: what was not written is a hole.
    pub fn set_size(&mut self, inode: usize, size: u64) {
        let cells = self.cells_of(size);
        let file = &mut self.inodes[inode];
        file.size = file.size.max(size);
        file.cells.resize(cells.max(file.cells.len()), Cell::default());
        file.sums.resize(cells.max(file.sums.len()), Cell::default());
    }

    /// Sets mode and times to those of a state.
    pub fn set_attributes(&mut self, inode: usize, stamp: u32) {
        self.clock += 1;
        let file = &mut self.inodes[inode];
        file.attributes = Cell { now: stamp, dirty: self.clock, ..file.attributes };
    }

    /// Sets mode and times, durably: of a file that is complete already.
    pub fn fix_attributes(&mut self, inode: usize, stamp: u32) {
        self.inodes[inode].attributes = Cell { now: stamp, durable: stamp, dirty: 0 };
    }

    /// Makes a file durable as it was at `since`; what was written later is covered or not.
    pub fn sync(&mut self, inode: usize, since: u32, random: &mut Random) {
        let file = &mut self.inodes[inode];
        let all = file.cells.iter_mut().chain(&mut file.sums).chain([&mut file.attributes]);
        for cell in all.filter(|cell| cell.dirty != 0) {
            if cell.dirty <= since || random.coin() {
                *cell = Cell { now: cell.now, durable: cell.now, dirty: 0 };
            }
        }
    }

    /// A sync of the file fails: what is dirty is called clean and is, or is not, on the medium.
    pub fn fail_sync(&mut self, inode: usize, random: &mut Random) {
        let file = &mut self.inodes[inode];
        file.failures += 1;
        let all = file.cells.iter_mut().chain(&mut file.sums).chain([&mut file.attributes]);
        for cell in all.filter(|cell| cell.dirty != 0) {
            let durable = if random.coin() { cell.now } else { cell.durable };
            let now = if random.coin() { cell.now } else { durable };
            *cell = Cell { now, durable, dirty: 0 };
        }
    }

    /// Gives a temporary file its final name.
    pub fn rename(&mut self, temp: usize, path: PathId) {
        let earlier = self.names[path].renamed.replace(temp);
        if let Some(earlier) = earlier {
            self.temps[earlier].renamed = false;
        }
        self.temps[temp].now = false;
        self.temps[temp].renamed = true;
        self.names[path].now = Some(Thing::File(self.temps[temp].inode));
    }

    /// Makes one final name durable.
    pub fn sync_name(&mut self, path: PathId) {
        let name = &mut self.names[path];
        name.durable = name.now;
        if let Some(temp) = name.renamed.take() {
            self.temps[temp].durable = false;
            self.temps[temp].renamed = false;
        }
    }

    /// Makes everything in one directory (`None`: the destination) durable, down to the names of temporary files.
    pub fn sync_directory(&mut self, directory: Option<PathId>, tree: &Tree) {
        let children = match directory {
            Some(path) => &tree.nodes[path].children,
            None => &tree.roots,
        };
        for child in children {
            self.sync_name(*child);
        }
        for temp in self.temps.iter_mut().filter(|temp| tree.nodes[temp.path].parent == directory) {
            temp.durable = temp.now;
        }
    }

    /// Are all directories above `path` there after a power cut?
    pub fn is_reachable(&self, path: PathId, tree: &Tree) -> bool {
        tree.ancestors(path).all(|parent| self.names[parent].durable == Some(Thing::Directory))
    }

    /// Is this file one whole content of that size? As seen now, or after a power cut.
    pub fn holds(&self, inode: usize, content: u32, size: u64, durable: bool) -> bool {
        let file = &self.inodes[inode];
        let right = |cell: &Cell| if durable { cell.durable == content } else { cell.now == content };
        file.size == size && file.cells.len() == self.cells_of(size) && file.cells.iter().all(right)
    }

    /// The content of this file, if it is one and whole.
    pub fn whole(&self, inode: usize, durable: bool) -> Option<u32> {
        let file = &self.inodes[inode];
        let first = file.cells.first();
        let content = first.map_or(HOLE, |cell| if durable { cell.durable } else { cell.now });
        let whole = self.holds(inode, content, file.size, durable);
        (whole && (file.size == 0 || content != HOLE && content != GARBAGE)).then_some(content)
    }

    /// The power goes.
    pub fn crash(&mut self, tree: &Tree, random: &mut Random) {
        for file in &mut self.inodes {
            file.cells.iter_mut().for_each(|cell| cell.crash(random));
            file.sums.iter_mut().for_each(|cell| cell.crash(random));
            if file.attributes.dirty != 0 && random.coin() {
                file.attributes.durable = file.attributes.now;
            }
            file.attributes =
                Cell { now: file.attributes.durable, durable: file.attributes.durable, dirty: 0 };
        }
        for path in 0..self.names.len() {
            let kept = random.coin();
            let name = &mut self.names[path];
            if name.now != name.durable && kept {
                name.durable = name.now;
            }
            if let Some(temp) = name.renamed.take() {
                let temp = &mut self.temps[temp];
                temp.renamed = false;
                temp.durable &= !kept;
                temp.now = temp.durable;
            }
            // Parents come before children: what was in a lost directory is lost with it.
            let parent = tree.nodes[path].parent;
            let lost = parent.is_some_and(|parent| self.names[parent].now != Some(Thing::Directory));
            let name = &mut self.names[path];
            if lost {
                name.durable = None;
            }
            if name.durable != Some(Thing::Directory) {
                name.attributes = false;
            }
            name.now = name.durable;
        }
        for temp in &mut self.temps {
            if temp.now != temp.durable && random.coin() {
                temp.durable = temp.now;
            }
            let parent = tree.nodes[temp.path].parent;
            temp.durable &= parent.is_none_or(|parent| self.names[parent].now == Some(Thing::Directory));
            temp.now = temp.durable;
        }
    }
}
