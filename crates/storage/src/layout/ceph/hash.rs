//! From the name of an object to its placement group.
//!
//! The function is part of Ceph's protocol, as clients compute it too: Bob Jenkins' hash of 1996 of the name, then as many of its
//! bits as the number of groups has, one fewer where that leads beyond the last group.

/// What Ceph calls this hash (`CEPH_STR_HASH_RJENKINS`).
pub(super) const RJENKINS: u64 = 2;

/// The placement group of an object in a pool of so many; 0 where that is none.
pub(super) fn group(namespace: &str, object: &str, groups: u32) -> u32 {
    let hashed = match namespace {
        "" => rjenkins(object.as_bytes()),
        _ => rjenkins(&[namespace.as_bytes(), b"\x1f", object.as_bytes()].concat()),
    };
    let mask = groups.next_power_of_two().wrapping_sub(1);
    match hashed & mask {
        group if group < groups => group,
        beyond => beyond & (mask >> 1),
    }
}

fn rjenkins(bytes: &[u8]) -> u32 {
    let word = |four: &[u8], at: usize| {
        let byte = |place: usize| u32::from(four.get(at + place).copied().unwrap_or(0)) << (8 * place);
        (0..4).fold(0, |sum, place| sum | byte(place))
    };
    let mut state = [0x9e37_79b9, 0x9e37_79b9, 0_u32];
    let mut blocks = bytes.chunks_exact(12);
    for block in &mut blocks {
        state = mix([0, 4, 8].map(|at| state[at / 4].wrapping_add(word(block, at))));
    }
    let rest = blocks.remainder();
    // The lowest byte of the last word is for the length.
    let last = word(rest.get(8..).unwrap_or_default(), 0) << 8;
    let last = last.wrapping_add(bytes.len() as u32);
    let [a, b, c] = state;
    mix([a.wrapping_add(word(rest, 0)), b.wrapping_add(word(rest, 4)), c.wrapping_add(last)])[2]
}

fn mix([mut a, mut b, mut c]: [u32; 3]) -> [u32; 3] {
    for (to_a, to_b, to_c) in [(13, 8, 13), (12, 16, 5), (3, 10, 15)] {
        a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> to_a);
        b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << to_b);
        c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> to_c);
    }
    [a, b, c]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Ceph 16.2 said (`ceph osd map POOL OBJECT [NAMESPACE]`, `raw_pgid`).
    const RECORDED: [(&str, &str, u32); 8] = [
        ("", "x", 0xd6d9_af33),
        ("", "haul.2", 0xd687_923c),
        ("", "haul.32", 0x07d8_d532),
        ("", "haul.64", 0xb57c_2586),
        ("", "a-longer-name-of-an-object.00000001", 0xb691_e2af),
        ("", "10000000000.00000001", 0x5338_8f2a),
        ("", "twelve-bytes", 0xd42b_1abb),
        ("ns1", "10000000000.00000001", 0xb7c1_09ae),
    ];

    #[test]
    fn objects_are_in_the_groups_that_ceph_says() {
        for (namespace, object, hashed) in RECORDED {
            assert_eq!(group(namespace, object, 1 << 31), hashed & 0x7fff_ffff, "{namespace} {object}");
            assert_eq!(group(namespace, object, 64), hashed % 64);
        }
    }

    #[test]
    fn where_groups_are_no_power_of_two_every_object_has_one_all_the_same() {
        assert_eq!(group("", "x", 12), 0x3);
        // 0xc is beyond the last.
        assert_eq!(group("", "haul.2", 16), 0xc);
        assert_eq!(group("", "haul.2", 12), 0x4);
        for groups in 1..100 {
            assert!((0..200).all(|number: u32| group("", &number.to_string(), groups) < groups));
        }
        assert_eq!(group("", "x", 0), 0);
    }
}
