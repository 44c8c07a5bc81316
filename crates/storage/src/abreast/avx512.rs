//! BLAKE3's compression of sixteen nodes abreast: a register holds one word of each.
//!
//! What must stay true: the value of a lane is that of its own node, whatever the others are, and stays as it is once its node has
//! ended.

use std::arch::x86_64::*;
use std::array;
use std::cmp::Reverse;

use blake3::{BLOCK_LEN, OUT_LEN};

use super::trees::{Node, Value};

/// Nodes at a time.
pub(super) const LANES: usize = 16;

/// One word of each lane.
type Words = __m512i;

type Block = [u8; BLOCK_LEN];

/// The BLAKE3 paper, table 1.
const IV: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// Which word of a block comes where in each round: the permutation of table 2, again and again.
const SCHEDULE: [[usize; 16]; 7] = {
    const PERMUTATION: [usize; 16] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
    let mut schedule = [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]; 7];
    let mut round = 1;
    while round < schedule.len() {
        let mut at = 0;
        while at < PERMUTATION.len() {
            schedule[round][at] = schedule[round - 1][PERMUTATION[at]];
            at += 1;
        }
        round += 1;
    }
    schedule
};

/// Proof that the processor has them.
#[derive(Clone, Copy)]
pub(super) struct Lanes(());

impl Lanes {
    /// `None` if it has not.
    pub fn new() -> Option<Lanes> {
        is_x86_feature_detected!("avx512f").then_some(Lanes(()))
    }

    /// The value of each node, in order. There is one at least, and at most one for each lane; none is longer than the
    /// one before. What follows in the result is nobody's.
    pub fn values(self, nodes: &[Node<'_>]) -> [Value; LANES] {
        debug_assert!(nodes.is_sorted_by_key(|node| Reverse(node.bytes.len())));
        // SAFETY: the processor has AVX-512F, or there would be no `Lanes`.
        unsafe { values(nodes) }
    }
}

#[target_feature(enable = "avx512f")]
fn values(nodes: &[Node<'_>]) -> [Value; LANES] {
    let group = Group::new(nodes);
    let counters = words(&group.of_each(|node| node.counter));
    let mut values = [splat(0); 8];
    for (value, word) in values.iter_mut().zip(IV) {
        *value = splat(word);
    }
    for number in 0..group.common {
        let flags = words(&group.flags(number));
        compress(&mut values, &group.blocks(number), counters, splat(BLOCK_LEN as u32), flags);
    }
    let mut parts = [[0; BLOCK_LEN]; LANES];
    for number in group.common..group.count {
        let rest = group.rest(number, &mut parts);
        let before = values;
        compress(&mut values, &rest.blocks, counters, words(&rest.lengths), words(&rest.flags));
        for (value, before) in values.iter_mut().zip(before) {
            *value = _mm512_mask_mov_epi32(before, rest.active, *value);
        }
    }
    by_lane(values)
}

/// Nodes in lanes. Lanes without one do what the first does.
///
/// These are functions without vectors, since from one with them the compiler calls a closure for each lane.
struct Group<'a> {
    nodes: &'a [Node<'a>],
    /// The blocks of each that are full.
    full: [&'a [Block]; LANES],
    /// So many are full in all of them.
    common: usize,
    /// And so many blocks has the longest.
    count: usize,
}

/// What lanes take where some have part of a block, or none.
struct Rest<'a> {
    blocks: [&'a Block; LANES],
    lengths: [u32; LANES],
    flags: [u32; LANES],
    /// Which have one.
    active: u16,
}

impl<'a> Group<'a> {
    fn new(nodes: &'a [Node<'a>]) -> Self {
        let (longest, shortest) = (nodes[0].bytes.len(), nodes[nodes.len() - 1].bytes.len());
        let mut group = Group { nodes, full: [&[]; LANES], common: shortest / BLOCK_LEN, count: 0 };
        group.full = group.of_each(|node| node.bytes.as_chunks().0);
        // A node without bytes has a block all the same.
        group.count = longest.div_ceil(BLOCK_LEN).max(1);
        group
    }

    fn of_each<T>(&self, of: impl Fn(&Node<'a>) -> T) -> [T; LANES] {
        array::from_fn(|lane| of(self.nodes.get(lane).unwrap_or(&self.nodes[0])))
    }

    /// Full ones.
    fn blocks(&self, number: usize) -> [&'a Block; LANES] {
        array::from_fn(|lane| &self.full[lane][number])
    }

    /// Of those.
    fn flags(&self, number: usize) -> [u32; LANES] {
        if number > 0 && number + 1 < self.common {
            return [0; LANES];
        }
        self.of_each(|node| node.flags(number, (number + 1) * BLOCK_LEN == node.bytes.len()))
    }

    /// Those of the nodes that have one, filled up with zeros.
    fn rest<'b>(&self, number: usize, parts: &'b mut [Block; LANES]) -> Rest<'b>
    where
        'a: 'b,
    {
        let (mut lengths, mut flags, mut active) = ([0; LANES], [0; LANES], 0);
        for (lane, (node, part)) in self.nodes.iter().zip(parts.iter_mut()).enumerate() {
            let rest = node.bytes.get(number * BLOCK_LEN..).unwrap_or_default();
            if rest.is_empty() && number > 0 {
                continue;
            }
            active |= 1 << lane;
            lengths[lane] = rest.len().min(BLOCK_LEN) as u32;
            flags[lane] = node.flags(number, rest.len() <= BLOCK_LEN);
            if rest.len() < BLOCK_LEN {
                *part = [0; BLOCK_LEN];
                part[..rest.len()].copy_from_slice(rest);
            }
        }
        let parts = &*parts;
        let blocks = array::from_fn(|lane| self.full[lane].get(number).unwrap_or(&parts[lane]));
        Rest { blocks, lengths, flags, active }
    }
}

/// The BLAKE3 paper, section 2.2.
#[target_feature(enable = "avx512f")]
fn compress(
    values: &mut [Words; 8],
    blocks: &[&Block; LANES],
    counters: Words,
    lengths: Words,
    flags: Words,
) {
    let m = by_word(blocks);
    let [v0, v1, v2, v3, v4, v5, v6, v7] = *values;
    let [v8, v9, v10, v11] = array::from_fn(|word| splat(IV[word]));
    // Contents have fewer than 2^32 chunks here.
    let mut v = [v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, counters, splat(0), lengths, flags];
    // Four quarter rounds, step by step together: they do not wait for each other.
    macro_rules! mix {
        ($($a:literal $b:literal $c:literal $d:literal, $x:expr, $y:expr;)*) => {
            $(v[$a] = _mm512_add_epi32(v[$a], m[$x]);)*
            $(v[$a] = _mm512_add_epi32(v[$a], v[$b]);)*
            $(v[$d] = _mm512_xor_si512(v[$d], v[$a]);)*
            $(v[$d] = _mm512_ror_epi32::<16>(v[$d]);)*
            $(v[$c] = _mm512_add_epi32(v[$c], v[$d]);)*
            $(v[$b] = _mm512_xor_si512(v[$b], v[$c]);)*
            $(v[$b] = _mm512_ror_epi32::<12>(v[$b]);)*
            $(v[$a] = _mm512_add_epi32(v[$a], m[$y]);)*
            $(v[$a] = _mm512_add_epi32(v[$a], v[$b]);)*
            $(v[$d] = _mm512_xor_si512(v[$d], v[$a]);)*
            $(v[$d] = _mm512_ror_epi32::<8>(v[$d]);)*
            $(v[$c] = _mm512_add_epi32(v[$c], v[$d]);)*
            $(v[$b] = _mm512_xor_si512(v[$b], v[$c]);)*
            $(v[$b] = _mm512_ror_epi32::<7>(v[$b]);)*
        };
    }
    // Unrolled: only then is all of `v` in registers.
    macro_rules! rounds {
        ($($round:literal)*) => { $(
            mix!(
                0 4 8 12, SCHEDULE[$round][0], SCHEDULE[$round][1];
                1 5 9 13, SCHEDULE[$round][2], SCHEDULE[$round][3];
                2 6 10 14, SCHEDULE[$round][4], SCHEDULE[$round][5];
                3 7 11 15, SCHEDULE[$round][6], SCHEDULE[$round][7];
            );
            mix!(
                0 5 10 15, SCHEDULE[$round][8], SCHEDULE[$round][9];
                1 6 11 12, SCHEDULE[$round][10], SCHEDULE[$round][11];
                2 7 8 13, SCHEDULE[$round][12], SCHEDULE[$round][13];
                3 4 9 14, SCHEDULE[$round][14], SCHEDULE[$round][15];
            );
        )* };
    }
    rounds!(0 1 2 3 4 5 6);
    *values = array::from_fn(|word| _mm512_xor_si512(v[word], v[word + 8]));
}

/// Sixteen blocks, each of sixteen words: the first word of all, the second of all, and so on.
#[target_feature(enable = "avx512f")]
fn by_word(blocks: &[&Block; LANES]) -> [Words; 16] {
    // SAFETY: so many bytes are there.
    let rows = array::from_fn(|lane| unsafe { _mm512_loadu_si512(blocks[lane].as_ptr().cast()) });
    // Of four rows each: in the `q`th quarter of `fours[4 * r + c]` are the words `4 * q + c` of the rows from `4 * r` on.
    let mut fours = rows;
    for (rows, fours) in rows.as_chunks::<4>().0.iter().zip(fours.as_chunks_mut::<4>().0) {
        let [a, b, c, d] = *rows;
        let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        *fours = [
            _mm512_unpacklo_epi64(ab_low, cd_low),
            _mm512_unpackhi_epi64(ab_low, cd_low),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ];
    }
    let mut words = fours;
    for c in 0..4 {
        const EVEN: i32 = 0b10_00_10_00;
        const ODD: i32 = 0b11_01_11_01;
        let (ab, cd) = ((fours[c], fours[4 + c]), (fours[8 + c], fours[12 + c]));
        let ab_even = _mm512_shuffle_i32x4::<EVEN>(ab.0, ab.1);
        let cd_even = _mm512_shuffle_i32x4::<EVEN>(cd.0, cd.1);
        let ab_odd = _mm512_shuffle_i32x4::<ODD>(ab.0, ab.1);
        let cd_odd = _mm512_shuffle_i32x4::<ODD>(cd.0, cd.1);
        words[c] = _mm512_shuffle_i32x4::<EVEN>(ab_even, cd_even);
        words[4 + c] = _mm512_shuffle_i32x4::<EVEN>(ab_odd, cd_odd);
        words[8 + c] = _mm512_shuffle_i32x4::<ODD>(ab_even, cd_even);
        words[12 + c] = _mm512_shuffle_i32x4::<ODD>(ab_odd, cd_odd);
    }
    words
}

/// As they are written.
#[target_feature(enable = "avx512f")]
fn by_lane(values: [Words; 8]) -> [Value; LANES] {
    let mut rows = [[0u32; LANES]; 8];
    for (row, words) in rows.iter_mut().zip(values) {
        // SAFETY: there is room for so many words.
        unsafe { _mm512_storeu_si512(row.as_mut_ptr().cast(), words) };
    }
    array::from_fn(|lane| {
        let mut value = [0; OUT_LEN];
        for (bytes, row) in value.as_chunks_mut::<4>().0.iter_mut().zip(&rows) {
            *bytes = row[lane].to_le_bytes();
        }
        value
    })
}

#[target_feature(enable = "avx512f")]
fn words(of_lanes: &[u32; LANES]) -> Words {
    // SAFETY: so many words are there.
    unsafe { _mm512_loadu_si512(of_lanes.as_ptr().cast()) }
}

/// The same for all lanes.
#[target_feature(enable = "avx512f")]
fn splat(word: u32) -> Words {
    _mm512_set1_epi32(word.cast_signed())
}
