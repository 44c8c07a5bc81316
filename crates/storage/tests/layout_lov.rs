//! `lustre.lov`: values made by hand, values made by `encode`, and values that are damaged.

use haul_model::layout::STRIPE_BYTES_MIN;
use haul_storage::layout::lov::{Lov, decode, encode};
use haul_storage::layout::stripe::{Count, Part, Plan, Pool, Where};

struct Case {
    title: String,
    says: Vec<String>,
    value: Vec<u8>,
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in include_str!("lov.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(title) = line.strip_prefix("== ") {
            cases.push(Case { title: title.into(), says: Vec::new(), value: Vec::new() });
        } else if let Some(hex) = line.strip_prefix("    ") {
            cases.last_mut().unwrap().value.extend(unhex(hex));
        } else {
            cases.last_mut().unwrap().says.push(line.into());
        }
    }
    cases
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ' && *byte != b'\n').collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn told(lov: Option<&Lov>) -> Vec<String> {
    let Some(lov) = lov else { return vec!["unknown".into()] };
    let part = |part: &haul_storage::layout::lov::LovComponent| {
        let end = if part.end == u64::MAX { "eof".into() } else { part.end.to_string() };
        let place = match part.place {
            Where::Targets => "targets",
            Where::TargetsRepeated => "repeated",
            Where::Metadata => "metadata",
        };
        let count = match part.count {
            Count::Default => "default".into(),
            Count::All => "all".into(),
            Count::Exactly(count) => count.to_string(),
        };
        let pool = part.pool.as_ref().map_or("-", Pool::as_str);
        let on: Vec<_> = part.targets.iter().map(|target| format!("{target:04x}")).collect();
        let on = match (part.released, on.is_empty()) {
            (true, true) => "the archive".into(),
            (_, true) => "nothing".into(),
            _ => on.join(" "),
        };
        let extension = if part.extension { " (extension)" } else { "" };
        format!("{}..{end} {place} {count}x{} pool {pool} on {on}{extension}", part.start, part.stripe_size)
    };
    lov.components.iter().map(part).collect()
}

#[test]
fn values_made_by_hand_say_what_they_say() {
    let cases = cases();
    assert!(cases.len() > 40, "{}", cases.len());
    for case in cases {
        assert_eq!(told(decode(&case.value).as_ref()), case.says, "{}", case.title);
    }
}

fn part(end: u64, count: Count, stripe_size: u32, pool: Option<&str>) -> Part {
    let pool = pool.map(|name| Pool::new(name).unwrap());
    Part { end, place: Where::Targets, count, stripe_size, pool }
}

#[test]
fn what_is_set_has_exactly_these_bytes() {
    let none = "00000000 00000000 00000000 00000000";
    let plain = Plan::plain(Count::Exactly(4), 1 << 20, None);
    assert_eq!(encode(&plain), unhex(&format!("d00bd10b 01000000 {none} 00001000 0400ffff")));
    let default = Plan::plain(Count::Default, 0, None);
    assert_eq!(encode(&default), unhex(&format!("d00bd10b 01000000 {none} 00000000 0000ffff")));
    let all = Plan::plain(Count::All, 4 << 20, Pool::new("flash"));
    let pool = "666c6173 68000000 00000000 00000000";
    assert_eq!(encode(&all), unhex(&format!("d00bd30b 01000000 {none} 00004000 ffffffff {pool}")));

    let mut metadata = part(65536, Count::Default, 0, None);
    metadata.place = Where::Metadata;
    let mut repeated = part(u64::MAX, Count::Exactly(8), 1 << 20, None);
    repeated.place = Where::TargetsRepeated;
    let parted =
        Plan::new(vec![metadata, part(1 << 30, Count::Exactly(2), 4 << 20, Some("flash")), repeated]);
    let entry =
        |extent: &str, offset: &str, size: &str| format!("00000000 00000000 {extent} {offset} {size} {none}");
    let expected = [
        // 176 bytes of head and entries, then 32, 48 and 32.
        "d00bd60b 20010000 00000000 00000300 00000000 00000000 00000000 00000000",
        &entry("00000000 00000000 00000100 00000000", "b0000000", "20000000"),
        &entry("00000100 00000000 00000040 00000000", "d0000000", "30000000"),
        &entry("00000040 00000000 ffffffff ffffffff", "00010000", "20000000"),
        &format!("d00bd10b 00010000 {none} 00000100 0000ffff"),
        &format!("d00bd30b 01000000 {none} 00004000 0200ffff {pool}"),
        &format!("d00bd10b 01020000 {none} 00001000 0800ffff"),
    ];
    assert_eq!(encode(&parted.unwrap()), unhex(&expected.concat()));
}

/// Marsaglia's xorshift: no test needs better numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

#[test]
fn what_was_planned_is_read_back() {
    let mut random = Random(7);
    for _ in 0..2000 {
        let mut end = 0;
        let mut parts = Vec::new();
        for _ in 0..1 + random.below(6) {
            end += 65536 * (1 + random.next() % 1000);
            let count = match random.below(4) {
                0 => Count::Default,
                1 => Count::All,
                _ => Count::Exactly(1 + random.below(2000) as u16),
            };
            let mut part =
                part(end, count, 65536 * random.below(65536) as u32, [None, Some("pool")][random.below(2)]);
            if random.below(3) == 0 {
                part.place = Where::TargetsRepeated;
            }
            parts.push(part);
        }
        if random.below(2) == 0 {
            parts.last_mut().unwrap().end = u64::MAX;
        }
        let whole = parts.len() > 1 || parts[0].end == u64::MAX;
        let plan = Plan::new(parts).unwrap();
        let read = decode(&encode(&plan)).unwrap().plan().unwrap();
        assert!(read.fulfils(&plan) || !whole, "{plan:?}\n{read:?}");
        assert!(read == plan || !whole);
    }
}

#[test]
fn damaged_values_are_read_within_bounds_or_not_at_all() {
    let values: Vec<_> =
        cases().into_iter().map(|case| case.value).filter(|value| !value.is_empty()).collect();
    let mut random = Random(0x6a75_6c69);
    let mut read = 0;
    for round in 0..60_000 {
        let mut value = values[round % values.len()].clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(value.len());
            match random.below(6) {
                0 => value[at] ^= 1 << random.below(8),
                1 => value[at] = random.next() as u8,
                2 => value.truncate(at + 1),
                3 => value.extend((0..random.below(200)).map(|_| random.next() as u8).collect::<Vec<_>>()),
                // Numbers at the edges, where they are.
                4 => {
                    let edge = [0, 1, 0x1f, 0x20, 0x7fff_ffff, 0x8000_0000, u32::MAX][random.below(7)];
                    let at = at / 4 * 4;
                    if let Some(word) = value.get_mut(at..at + 4) {
                        word.copy_from_slice(&u32::to_le_bytes(edge));
                    }
                }
                _ => {
                    let from = random.below(value.len());
                    let length = random.below(value.len() - from.max(at));
                    value.copy_within(from..from + length, at);
                }
            }
        }
        let Some(lov) = decode(&value) else { continue };
        read += 1;
        let mut end = 0;
        let mut objects = 0;
        for component in &lov.components {
            assert!(end <= component.start && component.start < component.end, "round {round}");
            end = component.end;
            objects += component.targets.len();
            assert!(component.targets.is_empty() || u64::from(component.stripe_size) >= STRIPE_BYTES_MIN);
        }
        assert!(objects * 24 <= value.len() && lov.components.len() <= value.len() / 32, "round {round}");
        if let Some(plan) = lov.plan() {
            assert!(encode(&plan).len() <= 96 * lov.components.len() + 32);
        }
    }
    assert!((5_000..59_000).contains(&read), "{read}: the mutations hit too much or too little");
}

#[test]
fn the_largest_values_are_read() {
    // 2000 stripes, and 1000 parts: what the largest attribute can hold.
    let mut wide = unhex("d00bd10b 01000000 00000000 00000000 00000000 00000000 00001000 d007ffff");
    for index in 0..2000_u32 {
        wide.extend_from_slice(&[0; 20]);
        wide.extend_from_slice(&index.to_le_bytes());
    }
    let targets = &decode(&wide).unwrap().components[0].targets;
    assert_eq!((targets.len(), targets[1999]), (2000, 1999));
    // As many entries, then as many plain layouts of one stripe without objects.
    const PARTS: u32 = 800;
    let mut value = unhex("d00bd60b");
    value.extend((32 + PARTS * 80).to_le_bytes());
    value.resize(14, 0);
    value.extend((PARTS as u16).to_le_bytes());
    value.resize(32, 0);
    for number in 0..u64::from(PARTS) {
        value.extend([0; 8]);
        value.extend((number * 65536).to_le_bytes());
        value.extend(((number + 1) * 65536).to_le_bytes());
        value.extend((32 + PARTS * 48 + number as u32 * 32).to_le_bytes());
        value.extend(32_u32.to_le_bytes());
        value.extend([0; 16]);
    }
    let plain = encode(&Plan::plain(Count::Exactly(1), 65536, None));
    (0..PARTS).for_each(|_| value.extend(&plain));
    assert!(value.len() < 65536);
    let read = decode(&value).unwrap();
    assert_eq!(read.components.len(), PARTS as usize);
    assert_eq!(read.plan(), None, "more than is passed on");
}
