//! Any bytes as logs, without bound; `tests/fuzz_read.rs` runs a bounded part of it with every test.
//!
//! From `crates/objectlog`, after `cargo install cargo-fuzz`:
//!
//! ```sh
//! HAUL_FUZZ_CORPUS=$PWD/fuzz/corpus/read cargo test --profile checked --test fuzz_read
//! cargo +nightly fuzz run read -- -max_len=65536
//! ```
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use support::Random;
use support::allocation::Counting;
use support::case::Case;
use support::mutate::{damage, forge};
use support::read_check::check;

#[path = "../../tests/support/mod.rs"]
mod support;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
});

// Half of the changes know where the fields are: checksums hide them from a fuzzer.
fuzz_mutator!(|bytes: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mut random = Random(u64::from(seed));
    let mut case = Case::decode(&bytes[..size]);
    if random.chance(50) || case.logs.is_empty() {
        return fuzzer_mutate(bytes, size, max_size);
    }
    match random.below(8) {
        0 => case.config = random.next() as u8,
        1 => case.action = random.next() as u8,
        2..5 => damage(&mut random, &mut case),
        _ => forge(&mut random, &mut case),
    }
    let changed = case.encode();
    let length = changed.len().min(max_size);
    bytes[..length].copy_from_slice(&changed[..length]);
    length
});
