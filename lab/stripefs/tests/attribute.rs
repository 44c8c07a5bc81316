//! `lustre.lov` in bytes, against what was put together by hand from the tables of `lustre_user.h`.

use haul_stripefs::attribute::{View, decode_stored, decode_wish, encode};
use haul_stripefs::layout::{ANY, Component, END, Layout, Object, Pattern};
use rustix::io::Errno;

/// Bytes in hex; what stands behind a # is for people.
fn hex(text: &str) -> Vec<u8> {
    let digits: String = text
        .lines()
        .map(|line| line.split('#').next().unwrap())
        .flat_map(str::chars)
        .filter(char::is_ascii_hexdigit)
        .collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn plain(component: Component) -> Layout {
    Layout { composite: false, generation: 1, components: vec![component] }
}

fn objects(of: &[(u32, u64)]) -> Option<Vec<Object>> {
    Some(of.iter().map(|(target, id)| Object { target: *target, id: *id }).collect())
}

const V1: &str = "
    d00bd10b 01000000                   # LOV_USER_MAGIC_V1, RAID0
    2301000000000000 0004000002000000   # the file 0x123 in sequence 0x200000400
    00001000 0200 ffff                  # 1 MiB, 2 stripes, no offset
    0101000000000000 0000000000000000 00000000 03000000
    0201000000000000 0000000000000000 00000000 00000000
";

#[test]
fn a_plain_layout_is_v1() {
    let layout =
        plain(Component { objects: objects(&[(3, 0x101), (0, 0x102)]), ..Component::plain(2, 1 << 20) });
    assert_eq!(encode(&layout, View::File(0x123)), hex(V1));
}

#[test]
fn a_pool_makes_it_v3() {
    let golden = hex("
        d00bd30b 01000000
        2301000000000000 0004000002000000
        00000100 0100 ffff
        666c617368 0000000000000000000000   # flash, 16 bytes in all
        0700000000000000 0000000000000000 00000000 0a000000
    ");
    let component =
        Component { pool: "flash".into(), objects: objects(&[(10, 7)]), ..Component::plain(1, 65536) };
    assert_eq!(encode(&plain(component), View::File(0x123)), golden);
}

#[test]
fn overstriping_is_a_pattern_of_its_own() {
    let golden = hex("
        d00bd10b 01020000                   # RAID0 | OVERSTRIPING
        2301000000000000 0004000002000000
        00000100 0200 ffff
        0100000000000000 0000000000000000 00000000 05000000
        0200000000000000 0000000000000000 00000000 05000000
    ");
    let component = Component {
        pattern: Pattern::Overstriped,
        objects: objects(&[(5, 1), (5, 2)]),
        ..Component::plain(2, 65536)
    };
    assert_eq!(encode(&plain(component), View::File(0x123)), golden);
}

/// 64 KiB on the metadata server, up to 1 MiB one stripe, then all targets of a pool once something is there.
fn progressive() -> Layout {
    let first = Component {
        id: 1,
        end: 0x1_0000,
        pattern: Pattern::Metadata,
        objects: Some(Vec::new()),
        ..Component::plain(0, 0x1_0000)
    };
    let second = Component {
        id: 2,
        start: 0x1_0000,
        end: 0x10_0000,
        objects: objects(&[(2, 0x0a0b)]),
        ..Component::plain(1, 0x1_0000)
    };
    let third =
        Component { id: 3, start: 0x10_0000, pool: "flash".into(), ..Component::plain(0xffff, 0x20_0000) };
    Layout { composite: true, generation: 2, components: vec![first, second, third] }
}

const PROGRESSIVE: &str = "
    d00bd60b 38010000 02000000 0000 0300 0000  # 0x138 bytes, generation 2, 3 entries, 1 mirror
    00 00 00000000 0000000000000000
    01000000 10000000 0000000000000000 0000010000000000 b0000000 20000000 00000000 0000000000000000 00000000
    02000000 10000000 0000010000000000 0000100000000000 d0000000 38000000 00000000 0000000000000000 00000000
    03000000 00000000 0000100000000000 ffffffffffffffff 08010000 30000000 00000000 0000000000000000 00000000
    d00bd10b 00010000 0000000000000000 0000000000000000 00000100 0000 ffff     # at 0xb0: on the MDT
    d00bd10b 01000000 0000000000000000 0000000000000000 00000100 0100 ffff     # at 0xd0
    0b0a000000000000 0000000000000000 00000000 02000000
    d00bd30b 01000000 0000000000000000 0000000000000000 00002000 ffff ffff     # at 0x108: -1 stripes
    666c617368 0000000000000000000000
";

#[test]
fn a_composite_points_to_its_components() {
    assert_eq!(encode(&progressive(), View::File(0x123)), hex(PROGRESSIVE));
}

#[test]
fn a_default_says_where_to_begin_and_which_targets_were_listed() {
    let golden = hex("
        d00bd50b 01000000                   # LOV_USER_MAGIC_SPECIFIC
        0000000000000000 0000000000000000
        00000100 0200 ffff
        00000000000000000000000000000000    # no pool
        0000000000000000 0000000000000000 00000000 04000000
        0000000000000000 0000000000000000 00000000 01000000
    ");
    let listed = plain(Component { listed: vec![4, 1], ..Component::plain(2, 65536) });
    assert_eq!(encode(&listed, View::Directory), golden);
    assert_eq!(decode_wish(&golden).unwrap().components[0].listed, [4, 1]);
    let first = plain(Component { first: 7, ..Component::plain(2, 65536) });
    assert_eq!(encode(&first, View::Directory)[30..32], [7, 0]);
}

#[test]
fn what_is_stored_is_read_back() {
    let listed = Component { listed: vec![1, 0], first: 1, ..Component::plain(2, 65536) };
    let mut wished = progressive();
    wished.components[2] = Component { id: 3, start: 0x10_0000, ..listed };
    let file =
        plain(Component { first: 3, objects: objects(&[(3, 1), (0, 2)]), ..Component::plain(2, 65536) });
    for layout in [progressive(), wished, file] {
        assert_eq!(decode_stored(&encode(&layout, View::Stored)).unwrap(), layout);
    }
}

#[test]
fn a_wish_takes_neither_objects_nor_first_targets_from_the_file_that_it_was_copied_from() {
    let mut copied = hex(V1);
    copied[30..32].fill(0);
    let wish = decode_wish(&copied).unwrap();
    assert_eq!(wish.components, [Component { first: ANY, ..Component::plain(2, 1 << 20) }]);
    let wish = decode_wish(&hex(PROGRESSIVE)).unwrap();
    assert!(wish.components.iter().all(|component| component.objects.is_none() && component.first == ANY));
    assert_eq!(wish.components[2].end, END);
}

#[test]
fn what_cannot_be_is_refused() {
    let v1 = |change: fn(&mut Vec<u8>)| {
        let mut bytes = hex(V1);
        change(&mut bytes);
        decode_wish(&bytes).unwrap_err()
    };
    assert_eq!(v1(|bytes| bytes.truncate(31)), Errno::RANGE);
    assert_eq!(v1(|bytes| bytes[0] = 0), Errno::INVAL, "no magic");
    assert_eq!(v1(|bytes| bytes.swap(0, 3)), Errno::INVAL, "the other byte order");
    assert_eq!(v1(|bytes| bytes[4] = 2), Errno::INVAL, "RAID1");
    assert_eq!(v1(|bytes| bytes[5] = 1), Errno::INVAL, "on the metadata server without a composite");
    assert_eq!(v1(|bytes| bytes[25] = 1), Errno::INVAL, "no multiple of 64 KiB");
    let composite = |change: fn(&mut Vec<u8>)| {
        let mut bytes = hex(PROGRESSIVE);
        change(&mut bytes);
        decode_wish(&bytes).unwrap_err()
    };
    assert_eq!(composite(|bytes| bytes.truncate(0x137)), Errno::RANGE, "shorter than it says");
    assert_eq!(composite(|bytes| bytes[14] = 0), Errno::INVAL, "nothing in it");
    assert_eq!(composite(|bytes| bytes[14..16].fill(0xff)), Errno::RANGE, "more than is there");
    assert_eq!(composite(|bytes| bytes[16] = 1), Errno::OPNOTSUPP, "mirrors");
    assert_eq!(composite(|bytes| bytes[32 + 48 + 8] = 1), Errno::INVAL, "a gap");
    assert_eq!(composite(|bytes| bytes[32 + 48 + 18] = 0), Errno::INVAL, "an end before the beginning");
    assert_eq!(composite(|bytes| bytes[32 + 24..32 + 28].fill(0xff)), Errno::RANGE, "stripes outside");
    assert_eq!(
        composite(|bytes| bytes[0xb0 + 26] = 2),
        Errno::INVAL,
        "MDT part of another size than its extent"
    );
    assert_eq!(
        composite(|bytes| bytes[0xd0 + 24..0xd0 + 28].copy_from_slice(&[0, 0, 0x20, 0])),
        Errno::INVAL
    );
}

#[test]
fn any_bytes_are_refused_or_understood_without_harm() {
    let mut state = 7u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for golden in [V1, PROGRESSIVE] {
        let golden = hex(golden);
        for _ in 0..50_000 {
            let mut bytes = golden.clone();
            for _ in 0..1 + random() % 4 {
                let at = random() % bytes.len();
                bytes[at] = random() as u8;
            }
            bytes.truncate(1 + random() % (2 * bytes.len()));
            for layout in [decode_wish(&bytes), decode_stored(&bytes)].into_iter().flatten() {
                encode(&layout, View::File(1));
            }
        }
    }
}
