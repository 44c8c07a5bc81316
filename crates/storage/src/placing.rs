//! What the masters are told of where files lie.
//!
//! A layout says all that can be known of a file; the masters need only what keeps one target's trouble to itself. Of
//! files that lie on the one target of the device that was met first (a plain local file system, say) nothing is told.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use haul_model::limits::TARGETS_MAX;
use haul_model::placement::ARCHIVE;
use haul_model::{Laid, Target, TargetId};

use crate::layout::{Found, Kind, Layouts};

/// Tells how files lie. Shared between threads.
#[derive(Debug)]
pub struct Placing {
    layouts: Arc<Layouts>,
    /// The device of which nothing is told.
    home: OnceLock<u64>,
    /// All files of it lie alike, for ever: the common case, which is to cost a small file nothing.
    home_is_uniform: AtomicBool,
}

impl Placing {
    /// Nothing was met yet.
    pub fn new(layouts: Arc<Layouts>) -> Placing {
        Placing { layouts, home: OnceLock::new(), home_is_uniform: AtomicBool::new(false) }
    }

    /// What is asked.
    pub fn layouts(&self) -> &Layouts {
        &self.layouts
    }

    /// Targets that were met since there were `from` of them: the masters' number of each, and by what all processes of
    /// this host know it.
    pub fn identities(&self, from: usize) -> Vec<(Target, u64)> {
        let met = self.layouts.targets_since(from);
        met.iter().map(|target| (number(target.id), target.identity())).collect()
    }

    /// How an open regular file of this size lies.
    pub fn laid(&self, file: BorrowedFd<'_>, device: u64, size: u64, objects: Objects) -> Option<Laid> {
        self.tell(&self.layouts.find(file, device), device, size, objects)
    }

    /// The same without a look at the file, where all files of its device lie alike and that is known already: `Err` else.
    pub fn without_a_look(&self, device: u64, size: u64, objects: Objects) -> Result<Option<Laid>, Unknown> {
        let is_home = || self.home.get() == Some(&device);
        if self.home_is_uniform.load(Ordering::Relaxed) && is_home() {
            return Ok(None);
        }
        let found = self.layouts.uniform(device).ok_or(Unknown)?;
        let told = self.tell(&found, device, size, objects);
        if is_home() {
            self.home_is_uniform.store(true, Ordering::Relaxed);
        }
        Ok(told)
    }

    fn tell(&self, found: &Found, device: u64, size: u64, objects: Objects) -> Option<Laid> {
        let one = matches!(found.kind, Kind::Local | Kind::Mount);
        if one && *self.home.get_or_init(|| device) == device {
            return None;
        }
        let sets = found.layout.with_sets(size, |members| self.layouts.set(device, members));
        let layout = sets.as_ref().unwrap_or(&found.layout);
        match objects {
            Objects::AtMost(bytes) => layout.laid(size, bytes, number),
            Objects::Of(object_bytes) => {
                let placement = layout.placement(size, object_bytes, number)?;
                Some(Laid { object_bytes, placement })
            }
        }
    }
}

/// How large the objects of a file are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Objects {
    /// As large as its layout allows, and no larger than this.
    AtMost(u32),
    /// It was begun so. If it lies otherwise by now, some are on two targets and count for the first.
    Of(u32),
}

/// It takes a look at the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unknown;

/// The masters' number of a target; 0 is what nothing is told of, and then comes the archive.
fn number(target: TargetId) -> Target {
    match target {
        TargetId::ARCHIVE => ARCHIVE,
        TargetId(number) => {
            number.saturating_add(u32::from(ARCHIVE) + 1).min(TARGETS_MAX as u32 - 1) as Target
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_model::layout::{Component, Layout, Stripes};

    use super::*;
    use crate::layout::Options;

    fn placing() -> Placing {
        let layouts = Layouts::new(Options::default());
        let named = |number: u32| assert_eq!(layouts.named(7, &format!("OST{number:04x}")), TargetId(number));
        (0..5).for_each(named);
        Placing::new(Arc::new(layouts))
    }

    fn told(placing: &Placing, size: u64, components: Vec<Component>) -> Laid {
        let found = Found { layout: Layout::new(components).unwrap(), kind: Kind::Lustre };
        placing.tell(&found, 7, size, Objects::AtMost(4 << 20)).unwrap()
    }

    fn part(range: std::ops::Range<u64>, stripe: u64, targets: &[u32]) -> Component {
        let targets = targets.iter().map(|target| TargetId(*target)).collect();
        Component { range, stripes: Stripes::round_robin(stripe, targets) }
    }

    #[test]
    fn what_is_in_the_archive_is_on_a_target_of_its_own() {
        let placing = placing();
        let half = Component { range: 0..8 << 20, stripes: Some(Stripes::one(TargetId::ARCHIVE)) };
        let laid = told(&placing, 16 << 20, vec![half, part(8 << 20..u64::MAX, 4 << 20, &[0])]);
        let on: Vec<_> = (0..4).map(|index| laid.placement.target(index)).collect();
        assert_eq!(on, [ARCHIVE, ARCHIVE, ARCHIVE + 1, ARCHIVE + 1]);
        assert_eq!(
            number(TargetId(u32::MAX - 1)),
            TARGETS_MAX as Target - 1,
            "the last one stands for all others"
        );
    }

    #[test]
    fn stripes_that_are_too_small_for_objects_make_their_targets_one() {
        let placing = placing();
        let whole = |stripe, targets: &[u32]| vec![part(0..u64::MAX, stripe, targets)];
        let set = told(&placing, 64 << 20, whole(64 << 10, &[3, 1, 2, 0]));
        assert_eq!(set.object_bytes, 4 << 20);
        let on = |laid: &Laid, objects: u32| {
            (0..objects).map(|index| laid.placement.target(index)).collect::<Vec<_>>()
        };
        let first = on(&set, 16);
        assert!(first.iter().all(|target| *target == first[0]), "{first:?}");
        assert!(first[0] > 6, "no member is blamed for the others");
        assert_eq!(told(&placing, 64 << 20, whole(64 << 10, &[0, 1, 2, 3])), set, "the same set");
        assert_ne!(told(&placing, 64 << 20, whole(64 << 10, &[0, 1, 2, 4])), set);
        assert_eq!(on(&told(&placing, 64 << 10, whole(64 << 10, &[3, 1])), 1), [5], "it is on one of them");
        assert_eq!(on(&told(&placing, 4 << 20, whole(1 << 20, &[3, 1])), 4), [5, 3, 5, 3], "large enough");
        let parted = vec![part(0..4 << 20, 64 << 10, &[0, 1]), part(4 << 20..u64::MAX, 4 << 20, &[0, 1])];
        let parted = on(&told(&placing, 12 << 20, parted), 3);
        assert!(parted[0] > 6 && parted[1..] == [3, 2], "{parted:?}");
    }
}
