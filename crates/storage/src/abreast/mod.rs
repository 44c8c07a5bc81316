//! BLAKE3 of many small contents at once (decision 29).
//!
//! The crate fills the lanes of a processor's vector registers with chunks of one content. With sixteen lanes a file of 4 KiB leaves
//! twelve of them empty, and what a file has beyond a multiple of 16 KiB takes nearly as long as another 16 KiB would. Here
//! each lane takes a chunk of whichever content has one; only how chunks and parents are put to lanes is special, the
//! value is that of `blake3::hash` (BLAKE3 paper, sections 2.1 to 2.5).
//!
//! Where the processor has no such registers, and for contents that fill the lanes by themselves, the crate does it.

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod trees;

use haul_model::Hash;

/// From here on a content fills the lanes by itself, or nearly so.
const ALONE_BYTES_MIN: usize = 32 << 10;

/// Whether contents of so many bytes are hashed in less time here, on this processor.
pub(crate) fn pays(bytes: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    let there_are_lanes = avx512::Lanes::new().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    let there_are_lanes = false;
    there_are_lanes && bytes < ALONE_BYTES_MIN
}

/// The hash of each, in order.
pub(crate) fn hash_each(contents: &[&[u8]]) -> Vec<Hash> {
    #[cfg(target_arch = "x86_64")]
    if let Some(lanes) = avx512::Lanes::new() {
        return trees::hash_each(contents, |nodes| lanes.values(nodes));
    }
    contents.iter().copied().map(alone).collect()
}

fn alone(content: &[u8]) -> Hash {
    Hash(*blake3::hash(content).as_bytes())
}

#[cfg(test)]
mod tests {
    use haul_testkit::lacks_here;
    use proptest::prelude::*;

    use super::*;

    /// More than is hashed abreast.
    const LONGEST: usize = 34 << 10;

    fn bytes(seed: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    }

    fn check(contents: &[&[u8]]) {
        let expected: Vec<Hash> = contents.iter().copied().map(alone).collect();
        assert_eq!(hash_each(contents), expected);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(trees::hash_each(contents, by_the_crate), expected);
    }

    /// What lanes make of nodes, one by one: whatever this processor has, the trees are right.
    #[cfg(target_arch = "x86_64")]
    fn by_the_crate(nodes: &[trees::Node<'_>]) -> [trees::Value; avx512::LANES] {
        assert!(nodes.is_sorted_by_key(|node| std::cmp::Reverse(node.bytes.len())));
        let mut values = [[0; blake3::OUT_LEN]; avx512::LANES];
        values.iter_mut().zip(nodes).for_each(|(value, node)| *value = trees::value_of(node));
        values
    }

    #[test]
    fn this_processor_has_the_lanes() {
        #[cfg(target_arch = "x86_64")]
        if avx512::Lanes::new().is_some() {
            return;
        }
        // Then the other tests say nothing of them.
        lacks_here("a processor with AVX-512");
    }

    #[test]
    fn every_length_has_the_hash_that_it_has_alone() {
        let all = bytes(1, LONGEST);
        check(&[]);
        // All lengths to a few chunks, then all around blocks.
        let near = |length: &usize| *length <= 5 << 10 || [0, 1, 63].contains(&(length % 64));
        for length in (0..=all.len()).filter(near) {
            check(&[&all[..length]]);
        }
    }

    #[test]
    fn neighbours_of_all_lengths_do_not_disturb_each_other() {
        let all = bytes(2, 1 << 20);
        let lengths: Vec<usize> = (0..1500).map(|number: usize| number * 7919 % 3001).collect();
        let contents: Vec<&[u8]> = lengths.iter().map(|length| &all[*length * 3..][..*length]).collect();
        check(&contents);
    }

    #[test]
    fn contents_of_one_chunk_less_one_and_more_fill_and_overflow_the_lanes() {
        let all = bytes(3, 1 << 20);
        for count in [1, 2, 15, 16, 17, 31, 32, 33, 511, 512, 513] {
            for length in [0, 1, 64, 1023, 1024, 1025] {
                let contents: Vec<&[u8]> = (0..count).map(|number| &all[number..][..length]).collect();
                check(&contents);
            }
        }
    }

    proptest! {
        #[test]
        fn many_have_the_hashes_that_each_has_alone(
            seed: u64,
            lengths in prop::collection::vec(
                prop_oneof![4 => 0usize..3000, 2 => 0usize..20_000, 1 => 30_000usize..40_000],
                0..60,
            ),
        ) {
            let contents: Vec<Vec<u8>> = (0..).zip(lengths).map(|(n, length)| bytes(seed ^ n, length)).collect();
            let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
            check(&contents);
        }
    }
}
