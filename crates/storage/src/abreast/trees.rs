//! How contents become nodes, and nodes come to lanes.

use std::cmp::Reverse;

use blake3::{CHUNK_LEN, OUT_LEN};
use haul_model::Hash;

use super::avx512::LANES;
use super::{ALONE_BYTES_MIN, alone};

/// Domain flags of the BLAKE3 paper, table 3.
const CHUNK_START: u32 = 1 << 0;
const CHUNK_END: u32 = 1 << 1;
const PARENT: u32 = 1 << 2;
const ROOT: u32 = 1 << 3;

/// So many chunks are gathered before they are hashed: enough to fill the lanes, with a bound to the memory for their values.
const GATHERED_MAX: usize = 1024;

/// A node of a tree: a chunk or a parent.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    /// At most a chunk, which begins at its first block and ends at its last; a parent has one block.
    pub bytes: &'a [u8],
    /// Which chunk of its content it is; 0 for a parent.
    pub counter: u32,
    /// Flags of the first block.
    pub first: u32,
    /// And of the last, which may be the first.
    pub last: u32,
    /// Where its value goes.
    pub place: usize,
}

impl Node<'_> {
    const NONE: Node<'static> = Node { bytes: &[], counter: 0, first: 0, last: 0, place: 0 };

    /// Of one of its blocks.
    pub fn flags(&self, number: usize, is_last: bool) -> u32 {
        (if number == 0 { self.first } else { 0 }) | (if is_last { self.last } else { 0 })
    }
}

/// What a node becomes.
pub(super) type Value = [u8; OUT_LEN];

/// Contents that are hashed together.
#[derive(Default)]
struct Gathered<'a> {
    trees: Vec<Tree>,
    /// The values of the level that each tree has come to.
    values: Vec<Value>,
    chunks: Vec<Node<'a>>,
    /// Less than a chunk: they end before others.
    parts: Vec<Node<'a>>,
}

/// Of one content.
struct Tree {
    number: usize,
    /// Where its values begin.
    start: usize,
    /// How many there are.
    width: usize,
}

/// The hash of each, in order. `values_of` tells the values of one to [`LANES`] nodes, none of which is longer than the one before.
pub(super) fn hash_each(contents: &[&[u8]], values_of: impl Fn(&[Node<'_>]) -> [Value; LANES]) -> Vec<Hash> {
    let mut hashes = Vec::with_capacity(contents.len());
    let mut gathered = Gathered::default();
    for (number, &content) in contents.iter().enumerate() {
        if content.len() >= ALONE_BYTES_MIN {
            hashes.push(alone(content));
            continue;
        }
        hashes.push(Hash([0; OUT_LEN]));
        gathered.add(number, content);
        if gathered.values.len() >= GATHERED_MAX {
            gathered.hash(&values_of, &mut hashes);
        }
    }
    gathered.hash(&values_of, &mut hashes);
    hashes
}

impl<'a> Gathered<'a> {
    fn add(&mut self, number: usize, content: &'a [u8]) {
        let (chunks, part) = content.as_chunks::<CHUNK_LEN>();
        // A content without bytes is one chunk, without bytes.
        let has_part = !part.is_empty() || content.is_empty();
        let (start, width) = (self.values.len(), chunks.len() + usize::from(has_part));
        let last = CHUNK_END | if width == 1 { ROOT } else { 0 };
        // There are fewer than 32 chunks.
        let node =
            |bytes, at| Node { bytes, counter: at as u32, first: CHUNK_START, last, place: start + at };
        self.chunks.extend(chunks.iter().enumerate().map(|(at, chunk)| node(chunk, at)));
        self.parts.extend(has_part.then(|| node(part, width - 1)));
        self.values.resize(start + width, [0; OUT_LEN]);
        self.trees.push(Tree { number, start, width });
    }

    /// All of them, which are gone then.
    fn hash(&mut self, values_of: &impl Fn(&[Node<'_>]) -> [Value; LANES], hashes: &mut [Hash]) {
        // The longest first, as lanes want them.
        self.parts.sort_unstable_by_key(|node| Reverse(node.bytes.len()));
        self.chunks.append(&mut self.parts);
        for nodes in self.chunks.chunks(LANES) {
            put(&mut self.values, nodes.iter().map(|node| node.place), values_of(nodes));
        }
        self.chunks.clear();
        self.merge(values_of);
        for Tree { number, start, .. } in self.trees.drain(..) {
            hashes[number] = Hash(self.values[start]);
        }
        self.values.clear();
    }

    /// Level by level, those of all trees together, until each has come to its root.
    fn merge(&mut self, values_of: &impl Fn(&[Node<'_>]) -> [Value; LANES]) {
        let Gathered { trees, values, .. } = self;
        let mut parents = Vec::new();
        loop {
            for tree in trees.iter().filter(|tree| tree.width > 1) {
                let last = PARENT | if tree.width == 2 { ROOT } else { 0 };
                parents.extend((0..tree.width / 2).map(|at| (tree.start + 2 * at, tree.start + at, last)));
            }
            if parents.is_empty() {
                return;
            }
            for group in parents.chunks(LANES) {
                let mut nodes = [Node::NONE; LANES];
                for (node, &(children, place, last)) in nodes.iter_mut().zip(group) {
                    let bytes = values[children..children + 2].as_flattened();
                    *node = Node { bytes, last, place, ..Node::NONE };
                }
                let made = values_of(&nodes[..group.len()]);
                put(values, group.iter().map(|&(_, place, _)| place), made);
            }
            parents.clear();
            for tree in trees.iter_mut().filter(|tree| tree.width > 1) {
                // The one without a neighbour goes up as it is.
                if !tree.width.is_multiple_of(2) {
                    values[tree.start + tree.width / 2] = values[tree.start + tree.width - 1];
                }
                tree.width = tree.width.div_ceil(2);
            }
        }
    }
}

fn put(values: &mut [Value], places: impl Iterator<Item = usize>, made: [Value; LANES]) {
    places.zip(made).for_each(|(place, value)| values[place] = value);
}

/// As the crate has it.
#[cfg(test)]
pub(super) fn value_of(node: &Node<'_>) -> Value {
    use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

    let is_root = node.last & ROOT != 0;
    if node.last & PARENT != 0 {
        let (left, right) = node.bytes.split_at(OUT_LEN);
        let (left, right) = (left.try_into().unwrap(), right.try_into().unwrap());
        return match is_root {
            true => merge_subtrees_root(left, right, Mode::Hash).into(),
            false => merge_subtrees_non_root(left, right, Mode::Hash),
        };
    }
    assert_eq!((node.first, node.last & !ROOT), (CHUNK_START, CHUNK_END));
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(u64::from(node.counter) * CHUNK_LEN as u64).update(node.bytes);
    if is_root { *hasher.finalize().as_bytes() } else { hasher.finalize_non_root() }
}
