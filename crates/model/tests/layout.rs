//! Layouts against a model that deals out a file byte by byte.

use std::collections::BTreeMap;
use std::ops::Range;

use haul_model::layout::{Component, STRIPE_BYTES_MIN, STRIPE_BYTES_WHOLE, Stripes};
use haul_model::limits::{OBJECT_BYTES_MAX, OBJECT_BYTES_MIN};
use haul_model::{Layout, TargetId};
use proptest::prelude::*;

/// The model looks at so many bytes.
const BYTES: u64 = 300_000;

#[derive(Clone, Debug)]
struct Dealt {
    size: u64,
    width: usize,
    rows: u64,
    targets: Vec<u32>,
}

/// A component: bytes since the end of the one before, its own bytes, what is in it.
type Part = (u64, u64, Option<Dealt>);

fn dealt() -> impl Strategy<Value = Dealt> {
    (1..5usize, 1..4usize, 1..4u64, STRIPE_BYTES_MIN..40_000).prop_flat_map(|(width, sets, rows, size)| {
        proptest::collection::vec(0..6u32, width * sets).prop_map(move |targets| Dealt {
            size,
            width,
            rows,
            targets,
        })
    })
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let part = (prop_oneof![Just(0), 1..30_000u64], 1..120_000u64, proptest::option::of(dealt()));
    proptest::collection::vec(part, 0..5)
}

fn layout(parts: &[Part], last_is_open: bool) -> (Layout, Vec<Range<u64>>) {
    let mut at = 0;
    let mut ranges = Vec::new();
    for (index, (gap, length, _)) in parts.iter().enumerate() {
        let start = at + gap;
        at = if last_is_open && index + 1 == parts.len() { u64::MAX } else { start + length };
        ranges.push(start..at);
    }
    let components = parts.iter().zip(&ranges).map(|((_, _, dealt), range)| Component {
        range: range.clone(),
        stripes: dealt.as_ref().map(|dealt| {
            let targets = dealt.targets.iter().map(|target| TargetId(*target)).collect();
            Stripes::sets(dealt.size, dealt.width, dealt.rows, targets).unwrap()
        }),
    });
    (Layout::new(components.collect()).unwrap(), ranges)
}

/// Deals stripes out one after the other, and notes for each byte its target and the number of its deal.
fn deal(dealt: &Dealt) -> Vec<(TargetId, u64)> {
    let mut bytes = Vec::new();
    let mut deals = 0;
    loop {
        for set in dealt.targets.chunks(dealt.width) {
            for _ in 0..dealt.rows {
                for target in set {
                    for _ in 0..dealt.size {
                        bytes.push((TargetId(*target), deals));
                        if bytes.len() as u64 == BYTES {
                            return bytes;
                        }
                    }
                    // With one target at a time rows lie together, and one target alone has no stripes at all.
                    deals += u64::from(dealt.width > 1);
                }
            }
            deals += u64::from(dealt.targets.len() > 1);
        }
    }
}

/// Of each byte: its target, and something that changes where a cut is due.
fn model(parts: &[Part], ranges: &[Range<u64>]) -> Vec<(Option<TargetId>, (usize, u64))> {
    let mut bytes = vec![(None, (0, 0)); BYTES as usize];
    let mut last = 0;
    for (index, ((_, _, dealt), range)) in parts.iter().zip(ranges).enumerate() {
        let clip = |offset: u64| offset.min(BYTES) as usize;
        bytes[last..clip(range.start)].fill((None, (2 * index, 0)));
        last = clip(range.end);
        let dealt = dealt.as_ref().map(deal);
        for at in clip(range.start)..last {
            bytes[at] = match &dealt {
                None => (None, (2 * index + 1, 0)),
                Some(dealt) => (Some(dealt[at].0), (2 * index + 1, dealt[at].1)),
            };
        }
    }
    bytes[last..].fill((None, (2 * parts.len(), 0)));
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn targets_and_cuts_are_those_of_the_bytes(parts in parts(), open: bool) {
        let (layout, ranges) = layout(&parts, open);
        let bytes = model(&parts, &ranges);
        let mut cut = 0;
        for at in 0..BYTES as usize {
            prop_assert_eq!(layout.target_at(at as u64), bytes[at].0, "at {}", at);
            if at > 0 && bytes[at].1 != bytes[at - 1].1 {
                cut = at;
            }
            // Asking is slow for each byte: at every edge, and now and then.
            let edge = at == cut || at + 1 == bytes.len() || bytes[at].1 != bytes[at + 1].1;
            if edge || at.is_multiple_of(50_021) {
                let next = (at..bytes.len()).find(|next| bytes[*next].1 != bytes[at].1);
                let told = layout.next_cut(at as u64).filter(|cut| *cut < BYTES);
                prop_assert_eq!(told, next.map(|next| next as u64), "after {}", at);
            }
        }
    }

    #[test]
    fn ranges_and_shares_are_those_of_the_bytes(
        parts in parts(), open: bool, start in 0..BYTES, length in 0..BYTES,
    ) {
        let (layout, ranges) = layout(&parts, open);
        let bytes = model(&parts, &ranges);
        let end = (start + length).min(BYTES);
        let mut held = vec![None; (end - start) as usize];
        for target in (0..6).map(TargetId) {
            let mut before = None;
            for range in layout.ranges_of(target, start..end) {
                prop_assert!(range.start < range.end && before.is_none_or(|before| before < range.start));
                before = Some(range.end);
                held[(range.start - start) as usize..(range.end - start) as usize].fill(Some(target));
            }
        }
        for (at, held) in held.iter().enumerate() {
            prop_assert_eq!(*held, bytes[start as usize + at].0);
        }
        let mut at = start;
        for (piece, target) in layout.pieces(start..end) {
            prop_assert_eq!((piece.start, target), (at, bytes[at as usize].0));
            at = piece.end;
        }
        prop_assert_eq!(at, end.max(start));

        let mut counted = BTreeMap::new();
        for (target, _) in &bytes[..end as usize] {
            target.iter().for_each(|target| *counted.entry(*target).or_insert(0) += 1);
        }
        let shares: BTreeMap<_, u64> = layout.shares(end).into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        prop_assert_eq!(shares, counted);
    }

    #[test]
    fn objects_lie_on_one_target_where_stripes_are_whole(
        // In units of 64 KiB, as file systems have them.
        stripes in proptest::collection::vec((1..200u64, 1..40u64, 1..5usize), 1..5),
        max in 1..u32::MAX,
        place in 0..1u64 << 34,
    ) {
        const UNIT: u64 = 64 << 10;
        let mut at = 0;
        let components = stripes.iter().enumerate().map(|(index, (size, count, width))| {
            let targets = (0..*width as u32).map(|target| TargetId(10 * index as u32 + target)).collect();
            let start = at;
            at += size * count * UNIT;
            Component { range: start..at, stripes: Stripes::round_robin(size * UNIT, targets) }
        });
        let layout = Layout::new(components.collect()).unwrap();
        let size = layout.object_size(max);
        prop_assert!(size.is_power_of_two() && (OBJECT_BYTES_MIN..=OBJECT_BYTES_MAX).contains(&size));
        prop_assert!(size <= max.max(OBJECT_BYTES_MIN));
        let place = place % at;
        let object = place / u64::from(size) * u64::from(size);
        let object = object..object + u64::from(size);
        for component in layout.components() {
            let stripes = component.stripes.as_ref().unwrap();
            let within = component.range.start <= object.start && object.end <= component.range.end;
            if within && stripes.size() >= STRIPE_BYTES_WHOLE {
                prop_assert_eq!(layout.pieces(object.clone()).count(), 1);
            }
        }
    }
}

fn striped(size: u64, targets: u32) -> Layout {
    Layout::whole(Stripes::round_robin(size, (0..targets).map(TargetId).collect()).unwrap())
}

#[test]
fn objects_are_as_large_as_stripes_let_them_be() {
    for (layout, max, size) in [
        (striped(1 << 20, 4), 8 << 20, 1 << 20),
        (striped(4 << 20, 4), 8 << 20, 4 << 20),
        (striped(16 << 20, 4), 8 << 20, 8 << 20),
        (striped(3 << 20, 4), 8 << 20, 1 << 20),
        (striped(5 << 18, 4), 8 << 20, 1 << 18),
        // No object fits those.
        (striped(4_000_000, 4), 4 << 20, 4 << 20),
        // Small stripes: an object is a vector.
        (striped(64 << 10, 4), 8 << 20, 8 << 20),
        // One target has no cuts.
        (striped(1 << 20, 1), 8 << 20, 8 << 20),
        (Layout::none(), 9 << 20, 8 << 20),
        (Layout::single(TargetId(0)), u32::MAX, 64 << 20),
        (Layout::single(TargetId(0)), 0, 64 << 10),
    ] {
        assert_eq!(layout.object_size(max), size, "{layout:?}");
    }
    // Data on the metadata server up to 1 MiB, then stripes of 4 MiB.
    let targets = vec![TargetId(1), TargetId(2)];
    let components = vec![
        Component { range: 0..1 << 20, stripes: Some(Stripes::one(TargetId(0))) },
        Component { range: 1 << 20..u64::MAX, stripes: Stripes::round_robin(4 << 20, targets.clone()) },
    ];
    assert_eq!(Layout::new(components).unwrap().object_size(8 << 20), 1 << 20);
    // Up to 64 KiB: the first object is across the edge, the others need not be small for it.
    let components = vec![
        Component { range: 0..64 << 10, stripes: Some(Stripes::one(TargetId(0))) },
        Component { range: 64 << 10..u64::MAX, stripes: Stripes::round_robin(4 << 20, targets) },
    ];
    assert_eq!(Layout::new(components).unwrap().object_size(8 << 20), 4 << 20);
}

#[test]
fn the_end_of_all_files_is_no_cut_and_overflows_nothing() {
    let open = striped(1 << 20, 3);
    assert_eq!(open.next_cut(u64::MAX), None);
    assert_eq!(open.next_cut(u64::MAX - 1), None);
    let last = u64::MAX / (1 << 20) * (1 << 20);
    assert_eq!(open.next_cut(last), None);
    assert_eq!(open.next_cut(last - 1), Some(last));
    assert_eq!(open.target_at(u64::MAX), None, "no file has that byte");
    assert!(open.target_at(u64::MAX - 1).is_some());
    assert_eq!(open.shares(u64::MAX).iter().map(|(_, bytes)| bytes).sum::<u64>(), u64::MAX);
    assert_eq!(Layout::single(TargetId(7)).next_cut(0), None);
    assert_eq!(Layout::single(TargetId(7)).shares(u64::MAX), [(TargetId(7), u64::MAX)]);
    assert_eq!(Layout::none().shares(5), []);
}

#[test]
fn what_is_no_layout_is_refused() {
    let target = || vec![TargetId(0), TargetId(1)];
    assert_eq!(Stripes::round_robin(0, target()), None);
    assert_eq!(Stripes::round_robin(STRIPE_BYTES_MIN - 1, target()), None);
    assert_eq!(Stripes::round_robin(1 << 20, Vec::new()), None);
    assert_eq!(Stripes::round_robin(u64::MAX, target()), None, "a turn longer than any file");
    assert_eq!(Stripes::sets(1 << 20, 0, 1, target()), None);
    assert_eq!(Stripes::sets(1 << 20, 1, 0, target()), None);
    assert_eq!(Stripes::sets(1 << 20, 3, 1, target()), None);
    let part = |range| Component { range, stripes: None };
    assert_eq!(Layout::new(vec![part(0..5), part(4..6)]), None);
    assert_eq!(Layout::new(vec![part(5..6), part(0..5)]), None);
    assert_eq!(Layout::new(vec![part(5..5)]), None);
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = 6..5;
    assert_eq!(Layout::new(vec![part(backwards)]), None);
    assert!(Layout::new(vec![part(0..5), part(5..6)]).is_some());
}
