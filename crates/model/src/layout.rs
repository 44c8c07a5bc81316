//! Layouts: which target holds which byte range of a file.
//!
//! `haul_storage::layout` finds them out; the scheduler asks them where to cut a file and on which target's queue a
//! piece belongs. Offsets are bytes from the beginning of the file; `u64::MAX` as an end is the end of the file,
//! wherever that is.
//!
//! What must stay true: the components of a layout are in order and do not overlap, so each byte has one target or none.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::limits::{OBJECT_BYTES_MAX, OBJECT_BYTES_MIN};

/// A storage device that serves I/O on its own. A number of this process; `haul_storage::layout` knows its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TargetId(pub u32);

impl TargetId {
    /// What is in an archive is on no device from which it could be read.
    pub const ARCHIVE: TargetId = TargetId(u32::MAX);
}

/// No file system stripes in smaller pieces (Lustre and CephFS: 64 KiB). Keeps the pieces of one object countable.
pub const STRIPE_BYTES_MIN: u64 = 4096;
/// Stripes of at least this are worth an object of their own; where they are smaller, an object lies on all targets of the
/// stripes, which count as one ([`Layout::with_sets`]).
pub const STRIPE_BYTES_WHOLE: u64 = 1 << 20;

/// How a range of a file is dealt out to targets.
///
/// Stripe `n` of the file is bytes `n * size..(n + 1) * size`, counted from the beginning of the file, not of the
/// component. Stripes are dealt to `width` targets, `rows` times round, then to the next `width` of the list, and from
/// the last of the list to the first again. Plain round robin is a list that is `width` long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stripes {
    size: u64,
    width: usize,
    rows: u64,
    targets: Box<[TargetId]>,
}

impl Stripes {
    /// All on one target.
    pub fn one(target: TargetId) -> Stripes {
        Stripes { size: u64::MAX, width: 1, rows: 1, targets: Box::new([target]) }
    }

    /// Stripe `n` is on target `n` modulo their number. `None` without targets, or for stripes that are too small.
    pub fn round_robin(size: u64, targets: Vec<TargetId>) -> Option<Stripes> {
        let width = targets.len();
        Stripes::sets(size, width, 1, targets)
    }

    /// The general form. `None` also where `width` does not divide the number of targets, a number is zero, or one turn
    /// over all targets is longer than any file.
    pub fn sets(size: u64, width: usize, rows: u64, targets: Vec<TargetId>) -> Option<Stripes> {
        let valid = size >= STRIPE_BYTES_MIN && rows > 0 && width > 0 && !targets.is_empty();
        let turn = || size.checked_mul(rows)?.checked_mul(targets.len() as u64);
        let valid = valid && targets.len().is_multiple_of(width) && turn().is_some();
        valid.then(|| Stripes { size, width, rows, targets: targets.into_boxed_slice() })
    }

    /// Bytes of a stripe; `u64::MAX` where nothing is striped.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Over how many targets it goes at a time.
    pub fn width(&self) -> usize {
        self.width
    }

    /// In the order in which they get stripes; one may come twice.
    pub fn targets(&self) -> &[TargetId] {
        &self.targets
    }

    /// After so many bytes everything comes again; `u64::MAX` where nothing is striped.
    pub(crate) fn turn(&self) -> u64 {
        self.size.saturating_mul(self.rows).saturating_mul(self.targets.len() as u64)
    }

    /// Bytes that lie together: pieces end at multiples of it.
    pub(crate) fn run(&self) -> u64 {
        match (self.targets.len(), self.width) {
            (1, _) => u64::MAX,
            (_, 1) => self.size.saturating_mul(self.rows),
            _ => self.size,
        }
    }

    fn target_at(&self, offset: u64) -> TargetId {
        let (stripe, width) = (offset / self.size, self.width as u64);
        let set = stripe / width / self.rows;
        // Neither product nor sum can exceed the number of the stripe.
        let place = (set * width + stripe % width) % self.targets.len() as u64;
        self.targets[place as usize]
    }

    /// How many of the first `length` bytes of the file are on the target at `place` of the list.
    fn bytes_before(&self, place: usize, length: u64) -> u64 {
        let (place, width) = (place as u64, self.width as u64);
        let row = self.size * width;
        let set = row * self.rows;
        let turn = self.size * self.rows * self.targets.len() as u64;
        let in_set = (length % turn).saturating_sub(place / width * set).min(set);
        let in_row = (in_set % row).saturating_sub(place % width * self.size).min(self.size);
        length / turn * self.size * self.rows + in_set / row * self.size + in_row
    }
}

/// A range of a file and where it lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Component {
    /// Bytes from the beginning of the file.
    pub range: Range<u64>,
    /// `None`: nothing yet. Who writes there first makes the file system choose.
    pub stripes: Option<Stripes>,
}

/// What holds which ranges of a file. What no component covers is on no target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    components: Vec<Component>,
}

impl Layout {
    /// `None` if they are out of order, overlap, or one is empty.
    pub fn new(components: Vec<Component>) -> Option<Layout> {
        let whole = components.iter().all(|component| component.range.start < component.range.end);
        let ordered = components.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start);
        (whole && ordered).then_some(Layout { components })
    }

    /// All of the file alike.
    pub fn whole(stripes: Stripes) -> Layout {
        Layout { components: vec![Component { range: 0..u64::MAX, stripes: Some(stripes) }] }
    }

    /// All of the file on one target.
    pub fn single(target: TargetId) -> Layout {
        Layout::whole(Stripes::one(target))
    }

    /// Nothing of the file is on any target yet.
    pub fn none() -> Layout {
        Layout { components: vec![Component { range: 0..u64::MAX, stripes: None }] }
    }

    /// As objects see a file of `size`: where stripes are too small for an object each, all targets that a component is dealt
    /// to are one. `set` gives such a set its number. `None` where nothing changes.
    pub fn with_sets(&self, size: u64, mut set: impl FnMut(&[TargetId]) -> TargetId) -> Option<Layout> {
        let is_set = |component: &Component| {
            let end = component.range.end.min(size);
            let run = component.stripes.as_ref().map_or(u64::MAX, Stripes::run);
            run < STRIPE_BYTES_WHOLE
                && component.range.start < end
                && component.range.start / run < (end - 1) / run
        };
        if !self.components.iter().any(is_set) {
            return None;
        }
        let components = self.components.iter().map(|component| match &component.stripes {
            Some(stripes) if is_set(component) => {
                let mut members = stripes.targets.to_vec();
                members.sort_unstable();
                members.dedup();
                Component { range: component.range.clone(), stripes: Some(Stripes::one(set(&members))) }
            }
            _ => component.clone(),
        });
        Some(Layout { components: components.collect() })
    }

    /// In the order of the file.
    pub fn components(&self) -> &[Component] {
        &self.components
    }

    /// What holds the byte at `offset`.
    pub fn target_at(&self, offset: u64) -> Option<TargetId> {
        let stripes = self.component_at(offset).ok()?.stripes.as_ref()?;
        Some(stripes.target_at(offset))
    }

    /// The first offset after this one where another stripe or component begins; `None` if none does.
    pub fn next_cut(&self, offset: u64) -> Option<u64> {
        let cut = match self.component_at(offset) {
            Err(next) => self.components.get(next)?.range.start,
            Ok(component) => {
                let end = component.range.end;
                component.stripes.as_ref().map_or(end, |stripes| {
                    let run = stripes.run();
                    (offset / run)
                        .checked_add(1)
                        .and_then(|stripe| stripe.checked_mul(run))
                        .unwrap_or(end)
                        .min(end)
                })
            }
        };
        (cut > offset && cut < u64::MAX).then_some(cut)
    }

    /// The pieces of a range, each within one stripe of one component, without gaps.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, Option<TargetId>)> + '_ {
        let mut start = range.start;
        core::iter::from_fn(move || {
            if start >= range.end {
                return None;
            }
            let end = self.next_cut(start).unwrap_or(range.end).min(range.end);
            let piece = (start..end, self.target_at(start));
            start = end;
            Some(piece)
        })
    }

    /// What of `range` one target holds, as few ranges as possible.
    pub fn ranges_of(&self, target: TargetId, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut pieces = self
            .pieces(range)
            .filter(move |(_, holder)| *holder == Some(target))
            .map(|(range, _)| range)
            .peekable();
        core::iter::from_fn(move || {
            let mut found = pieces.next()?;
            while let Some(more) = pieces.next_if(|next| next.start == found.end) {
                found.end = more.end;
            }
            Some(found)
        })
    }

    /// How many of the first `length` bytes are on each target, each target once, in order of number. What is missing
    /// to `length` is on none.
    pub fn shares(&self, length: u64) -> Vec<(TargetId, u64)> {
        let mut shares = Vec::new();
        for component in &self.components {
            let Some(stripes) = &component.stripes else { continue };
            let end = component.range.end.min(length);
            let start = component.range.start.min(end);
            let bytes = |place| stripes.bytes_before(place, end) - stripes.bytes_before(place, start);
            shares.extend(stripes.targets.iter().enumerate().map(|(place, target)| (*target, bytes(place))));
        }
        shares.sort_unstable_by_key(|(target, _)| *target);
        shares.dedup_by(|(target, bytes), (kept, sum)| {
            let same = target == kept;
            *sum += if same { *bytes } else { 0 };
            same
        });
        shares
    }

    /// The best size for the objects of this file: the largest power of two up to `max` (and within the limits of
    /// objects) with which each object lies on one target, wherever stripes have at least [`STRIPE_BYTES_WHOLE`].
    ///
    /// Smaller stripes do not count: there an object lies on several targets anyhow. Nor do edges between components that
    /// are not at a multiple of [`STRIPE_BYTES_WHOLE`]: one object is across each.
    pub fn object_size(&self, max: u32) -> u32 {
        let max = max.clamp(OBJECT_BYTES_MIN, OBJECT_BYTES_MAX);
        let mut size = 1 << max.ilog2();
        let mut divide = |boundary: u64| {
            if boundary != u64::MAX && boundary > 0 {
                size = size.min(1 << boundary.trailing_zeros().min(31));
            }
        };
        for component in &self.components {
            let edges = [component.range.start, component.range.end];
            edges.into_iter().filter(|edge| edge.is_multiple_of(STRIPE_BYTES_WHOLE)).for_each(&mut divide);
            let run = component.stripes.as_ref().map_or(u64::MAX, Stripes::run);
            // With another one no size serves: objects lie across its edges whatever they are.
            if run >= STRIPE_BYTES_WHOLE && run.is_multiple_of(u64::from(OBJECT_BYTES_MIN)) {
                divide(run);
            }
        }
        size.max(OBJECT_BYTES_MIN)
    }

    /// The component that covers `offset`, else the number of the next one.
    fn component_at(&self, offset: u64) -> Result<&Component, usize> {
        let next = self.components.partition_point(|component| component.range.end <= offset);
        self.components.get(next).filter(|component| component.range.start <= offset).ok_or(next)
    }
}
