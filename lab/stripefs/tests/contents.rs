//! Where bytes are, and that they come back.

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use common::{Bench, K64, MIB, components, composite, eventually, objects, pattern, stripes, wish};

const ANY: u16 = 0xffff;

/// What each object of a striped file must hold.
fn expected(bytes: &[u8], stripe: usize, count: usize) -> Vec<Vec<u8>> {
    let mut objects = vec![Vec::new(); count];
    bytes.chunks(stripe).enumerate().for_each(|(index, chunk)| objects[index % count].extend(chunk));
    objects
}

#[test]
fn bytes_are_where_the_layout_says() {
    let bench = Bench::new(5);
    let of = bench.file("f", &wish(3, 2 * K64, 1));
    let bytes = pattern(3 * MIB + 12345);
    fs::write(bench.path("f"), &bytes).unwrap();
    assert!(fs::read(bench.path("f")).unwrap() == bytes);
    for (object, expected) in of.iter().zip(expected(&bytes, 2 * K64, 3)) {
        assert!(bench.object(*object) == expected, "{object:?}");
    }
    let statistics = bench.control("stats");
    let statistics: serde_json::Value = serde_json::from_str(&statistics).unwrap();
    let written: Vec<_> =
        (0..5).map(|target| statistics["targets"][target]["bytes_written"].as_u64().unwrap()).collect();
    let lengths: Vec<_> = of.iter().map(|object| bench.object(*object).len() as u64).collect();
    assert_eq!(written, [0, lengths[0], lengths[1], lengths[2], 0]);
}

#[test]
fn bytes_that_pass_by_the_page_cache_come_back_whatever_their_sizes() {
    let bench = Bench::with(3, |options| options.direct = true);
    let of = bench.file("f", &wish(3, K64, 0));
    let bytes = pattern(2 * MIB + 5 * 4096 + 123);
    fs::write(bench.path("f"), &bytes).unwrap();
    // Over what is there: neither block begins or ends where a block of the device does.
    let file = OpenOptions::new().read(true).write(true).open(bench.path("f")).unwrap();
    let mut expected_bytes = bytes.clone();
    for (offset, length) in [(1, 10_000), (4096, 8192), (K64 as u64 - 7, 14), (2 * MIB as u64, 5 * 4096 + 1)]
    {
        let piece: Vec<u8> = pattern(length).iter().map(|byte| !byte).collect();
        file.write_all_at(&piece, offset).unwrap();
        expected_bytes[offset as usize..offset as usize + length].copy_from_slice(&piece);
    }
    file.sync_all().unwrap();
    assert!(fs::read(bench.path("f")).unwrap() == expected_bytes);
    for (object, expected) in of.iter().zip(expected(&expected_bytes, K64, 3)) {
        assert!(bench.object(*object) == expected, "{object:?}");
    }
    let mut odd = vec![0; 3000];
    file.read_exact_at(&mut odd, 5001).unwrap();
    assert!(odd[..] == expected_bytes[5001..8001]);
    // A hole that ends in the middle of a block.
    file.set_len(4 * MIB as u64 + 77).unwrap();
    expected_bytes.resize(4 * MIB + 77, 0);
    assert!(fs::read(bench.path("f")).unwrap() == expected_bytes);
}

#[test]
fn overstriped_objects_on_one_target_are_apart() {
    let bench = Bench::new(2);
    let of = bench.file("f", &stripes(0x0BD1_0BD0, 0x201, 5, K64, 0, None));
    let bytes = pattern(12 * K64 + 1);
    fs::write(bench.path("f"), &bytes).unwrap();
    assert!(fs::read(bench.path("f")).unwrap() == bytes);
    for (object, expected) in of.iter().zip(expected(&bytes, K64, 5)) {
        assert!(bench.object(*object) == expected, "{object:?}");
    }
}

#[test]
fn components_hold_their_part_and_the_metadata_server_its_own() {
    let bench = Bench::new(3);
    bench.mknod("f");
    let metadata = stripes(0x0BD1_0BD0, 0x100, 0, K64, ANY, None);
    let parts = [(0, K64 as u64, metadata), (K64 as u64, u64::MAX, wish(2, K64, 1))];
    bench.set_layout("f", &composite(&parts)).unwrap();
    let bytes = pattern(5 * K64 + 10);
    fs::write(bench.path("f"), &bytes).unwrap();
    assert!(fs::read(bench.path("f")).unwrap() == bytes);
    assert!(fs::read(bench.beside("mds/tree/f")).unwrap()[..K64] == bytes[..K64]);
    let layout = bench.layout("f").unwrap();
    let of = objects(components(&layout)[1].3);
    // Stripes 1, 3 and 5 are in the second object; offsets count from the beginning of the file.
    assert!(bench.object(of[1])[..K64] == bytes[K64..2 * K64]);
    assert!(bench.object(of[1])[2 * K64..] == bytes[5 * K64..]);
    assert!(bench.object(of[0])[..K64] == [0; K64], "a hole where the other component is");
    assert!(bench.object(of[0])[K64..2 * K64] == bytes[2 * K64..3 * K64]);
}

#[test]
fn any_range_reads_as_in_a_plain_file() {
    let bench = Bench::new(4);
    bench.mknod("f");
    let parts = [(0, 2 * K64 as u64, wish(1, K64, 3)), (2 * K64 as u64, u64::MAX, wish(3, K64, 0))];
    bench.set_layout("f", &composite(&parts)).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(bench.path("f")).unwrap();
    let plain = tempfile::tempfile().unwrap();
    let bytes = pattern(MIB);
    let mut state = 3u64;
    let mut below = |end: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % end
    };
    for step in 0..300 {
        let (offset, length) = (below(20 * K64), below(5 * K64));
        match step % 6 {
            0 => {
                file.set_len(offset as u64).unwrap();
                plain.set_len(offset as u64).unwrap();
            }
            1..4 => {
                let from = &bytes[below(100)..][..length];
                file.write_all_at(from, offset as u64).unwrap();
                plain.write_all_at(from, offset as u64).unwrap();
            }
            _ => {
                let read = |file: &File| {
                    let mut into = vec![1; length];
                    let count = file.read_at(&mut into, offset as u64).unwrap();
                    into.truncate(count);
                    into
                };
                assert!(read(&file) == read(&plain), "step {step}: {length} at {offset}");
            }
        }
        assert_eq!(file.metadata().unwrap().len(), plain.metadata().unwrap().len(), "step {step}");
    }
}

#[test]
fn what_was_cut_off_reads_as_zeros_when_the_file_grows_again() {
    let bench = Bench::new(3);
    bench.file("f", &wish(3, K64, 0));
    fs::write(bench.path("f"), vec![7; 9 * K64]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(bench.path("f")).unwrap();
    file.set_len(4 * K64 as u64 + 10).unwrap();
    file.set_len(9 * K64 as u64).unwrap();
    let mut bytes = vec![1; 9 * K64];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes[..4 * K64 + 10].iter().all(|byte| *byte == 7));
    assert!(bytes[4 * K64 + 10..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_hole_costs_nothing_and_reads_as_zeros() {
    let bench = Bench::new(3);
    let of = bench.file("f", &wish(3, K64, 0));
    let file = OpenOptions::new().read(true).write(true).open(bench.path("f")).unwrap();
    file.write_all_at(b"end", 1 << 40).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 40) + 3);
    let mut bytes = [1; 100];
    file.read_exact_at(&mut bytes, 1 << 39).unwrap();
    assert_eq!(bytes, [0; 100]);
    assert_eq!(of.iter().filter(|object| !bench.object_path(**object).exists()).count(), 2);
}

#[test]
fn a_removed_file_lives_until_it_is_closed_and_its_objects_go() {
    let bench = Bench::with(3, |options| options.stripe_count = 3);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(bench.path("f")).unwrap();
    file.write_all_at(&pattern(3 * K64), 0).unwrap();
    assert_eq!(bench.objects_left(), 3);
    fs::remove_file(bench.path("f")).unwrap();
    let mut bytes = vec![0; 3 * K64];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == pattern(3 * K64));
    file.write_all_at(b"still", 0).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    drop(file);
    eventually("objects of a removed file go", || bench.objects_left() == 0);
    // One that nobody has open, one with two names, one that another replaces.
    fs::write(bench.path("a"), vec![1; 3 * K64]).unwrap();
    fs::hard_link(bench.path("a"), bench.path("b")).unwrap();
    fs::remove_file(bench.path("a")).unwrap();
    assert!(fs::read(bench.path("b")).unwrap() == vec![1; 3 * K64]);
    assert_eq!(bench.objects_left(), 3);
    fs::write(bench.path("c"), vec![2; 3 * K64]).unwrap();
    fs::rename(bench.path("c"), bench.path("b")).unwrap();
    eventually("objects of a replaced file go", || bench.objects_left() == 3);
    assert!(fs::read(bench.path("b")).unwrap() == vec![2; 3 * K64]);
}

#[test]
fn direct_and_cached_opens_give_the_same_bytes() {
    for cached in [false, true] {
        let bench = Bench::with(3, |options| (options.cached, options.stripe_count) = (cached, 2));
        let bytes = pattern(2 * MIB);
        fs::write(bench.path("f"), &bytes).unwrap();
        assert!(fs::read(bench.path("f")).unwrap() == bytes);
        let direct =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(bench.path("f")).unwrap();
        // Aligned, as O_DIRECT wants it where it means something.
        let mut room = vec![0; MIB + 4096];
        let start = room.as_ptr().align_offset(4096);
        direct.read_exact_at(&mut room[start..start + MIB], MIB as u64).unwrap();
        assert!(room[start..start + MIB] == bytes[MIB..], "cached: {cached}");
    }
}

#[test]
fn many_threads_write_and_read_one_file() {
    let bench = Bench::with(4, |options| options.stripe_count = 4);
    let file = File::create_new(bench.path("f")).unwrap();
    file.set_len(16 * MIB as u64).unwrap();
    let bytes = pattern(MIB);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (bench, bytes) = (&bench, &bytes);
            scope.spawn(move || {
                let file = OpenOptions::new().read(true).write(true).open(bench.path("f")).unwrap();
                for index in (thread..16).step_by(4) {
                    file.write_all_at(&bytes[index..], (index * MIB) as u64).unwrap();
                    let mut back = vec![0; MIB - index];
                    file.read_exact_at(&mut back, (index * MIB) as u64).unwrap();
                    assert!(back == bytes[index..]);
                }
            });
        }
    });
}
