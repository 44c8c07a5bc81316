//! What the metadata server decides: defaults, pools, and which targets a component gets.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

use crate::layout::{ANY, Component, END, Layout, Object, Pattern, UNIT_BYTES};

/// From here on a stripe count says how many stripes each target gets: 0x10000 less the count.
const COUNT_PER_TARGET: u16 = 0xffe0;

/// The rules of one file system.
#[derive(Debug)]
pub struct Policy {
    targets: u32,
    pools: BTreeMap<String, Vec<u32>>,
    default_count: u16,
    default_bytes: u32,
    next: AtomicUsize,
}

impl Policy {
    /// For so many targets. The error says what is wrong, for people.
    pub fn new(
        targets: usize,
        pools: BTreeMap<String, Vec<u32>>,
        default_count: u16,
        default_bytes: u32,
    ) -> Result<Policy, String> {
        let targets = u32::try_from(targets).ok().filter(|count| (1..2000).contains(count));
        let targets = targets.ok_or("there must be 1 to 1999 targets")?;
        if default_bytes == 0 || u64::from(default_bytes) % UNIT_BYTES != 0 {
            return Err("the stripe size must be a multiple of 64 KiB".into());
        }
        for (name, members) in &pools {
            if name.is_empty() || name.len() > 15 || members.is_empty() {
                return Err(format!("a pool has a name of 1 to 15 bytes and some targets: {name:?}"));
            }
            if let Some(target) = members.iter().find(|target| **target >= targets) {
                return Err(format!("pool {name}: there is no target {target}"));
            }
        }
        let default_count = default_count.max(1);
        Ok(Policy { targets, pools, default_count, default_bytes, next: AtomicUsize::new(0) })
    }

    /// What a new file gets where no directory says otherwise.
    pub fn default_layout(&self) -> Layout {
        Layout::plain(self.default_count, self.default_bytes)
    }

    /// A wish as it is kept: with the defaults filled in. `EINVAL` if it cannot be granted.
    ///
    /// As in Lustre (`lod_find_pool`) a pool that does not exist restricts nothing, and keeps its name.
    pub fn admit(&self, mut wish: Layout) -> Result<Layout, Errno> {
        for component in &mut wish.components {
            if component.pattern == Pattern::Metadata {
                component.stripe_count = 0;
                continue;
            }
            let members = self.members(&component.pool);
            let is_member = |target: u32| match &members {
                Some(members) => members.contains(&target),
                None => target < self.targets,
            };
            let first_is_wrong = component.first != ANY && !is_member(component.first.into());
            if first_is_wrong || !component.listed.iter().all(|target| is_member(*target)) {
                return Err(Errno::INVAL);
            }
            let mut listed = component.listed.clone();
            listed.sort_unstable();
            listed.dedup();
            if listed.len() < component.listed.len() && component.pattern != Pattern::Overstriped {
                return Err(Errno::INVAL);
            }
            if component.stripe_bytes == 0 {
                component.stripe_bytes = self.default_bytes;
            }
            if component.stripe_count == 0 {
                component.stripe_count = self.default_count;
            }
        }
        Ok(wish)
    }

    /// The layout once everything that begins before `end` has its objects, or `None` if it has them already.
    pub fn instantiate<E>(
        &self,
        layout: &Layout,
        end: u64,
        mut new_id: impl FnMut() -> Result<u64, E>,
    ) -> Result<Option<Layout>, E> {
        let lacks = |component: &Component| component.objects.is_none() && component.start < end;
        if !layout.components.iter().any(lacks) {
            return Ok(None);
        }
        let mut layout = layout.clone();
        layout.generation += 1;
        for component in layout.components.iter_mut().filter(|component| lacks(component)) {
            let targets = self.targets_for(component, layout.composite);
            let object = |target: &u32| Ok(Object { target: *target, id: new_id()? });
            component.objects = Some(targets.iter().map(object).collect::<Result<_, E>>()?);
        }
        Ok(Some(layout))
    }

    fn targets_for(&self, component: &Component, composite: bool) -> Vec<u32> {
        if component.pattern == Pattern::Metadata {
            return Vec::new();
        }
        if !component.listed.is_empty() {
            return component.listed.clone();
        }
        let members = self.members(&component.pool).unwrap_or_else(|| (0..self.targets).collect());
        let mut count = match component.stripe_count {
            count @ COUNT_PER_TARGET.. => members.len() * (0x10000 - usize::from(count)),
            count => usize::from(count),
        };
        if component.pattern != Pattern::Overstriped {
            count = count.min(members.len());
        }
        // More than this would never hold anything.
        if composite && component.end != END {
            let stripes = (component.end - component.start).div_ceil(u64::from(component.stripe_bytes));
            count = count.min(stripes as usize);
        }
        let first = match component.first {
            ANY => self.next.fetch_add(count, Ordering::Relaxed),
            first => members.iter().position(|member| *member == u32::from(first)).unwrap_or(0),
        };
        (0..count).map(|index| members[(first + index) % members.len()]).collect()
    }

    /// It names a pool that does not exist.
    pub fn has_unknown_pool(&self, wish: &Layout) -> bool {
        let unknown =
            |component: &Component| !component.pool.is_empty() && !self.pools.contains_key(&component.pool);
        wish.components.iter().any(unknown)
    }

    fn members(&self, pool: &str) -> Option<Vec<u32>> {
        self.pools.get(pool).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        let pools = BTreeMap::from([("flash".to_owned(), vec![1, 3])]);
        Policy::new(5, pools, 1, 1 << 20).unwrap()
    }

    fn targets(policy: &Policy, wish: Layout, end: u64) -> Vec<Vec<u32>> {
        let mut id = 0;
        let new_id = || {
            id += 1;
            Ok::<u64, Errno>(id)
        };
        let admitted = policy.admit(wish).unwrap();
        let layout = policy.instantiate(&admitted, end, new_id).unwrap().unwrap();
        let of = |component: &Component| {
            component.objects.iter().flatten().map(|object| object.target).collect::<Vec<_>>()
        };
        layout.components.iter().map(of).collect()
    }

    #[test]
    fn files_go_round_the_targets() {
        let policy = policy();
        assert_eq!(targets(&policy, Layout::plain(3, 65536), 0x1), [[0, 1, 2]]);
        assert_eq!(targets(&policy, Layout::plain(3, 65536), 0x1), [[3, 4, 0]]);
        assert_eq!(targets(&policy, Layout::plain(0, 0), 0x1), [[1]]);
    }

    #[test]
    fn counts_end_at_the_targets_but_for_overstriping() {
        let policy = policy();
        let wish = |count, pattern| {
            let component = Component { pattern, first: 4, ..Component::plain(count, 65536) };
            Layout { components: vec![component], ..Layout::plain(1, 65536) }
        };
        assert_eq!(targets(&policy, wish(0xffff, Pattern::Striped), 1), [[4, 0, 1, 2, 3]]);
        assert_eq!(targets(&policy, wish(9, Pattern::Striped), 1), [[4, 0, 1, 2, 3]]);
        assert_eq!(targets(&policy, wish(7, Pattern::Overstriped), 1), [[4, 0, 1, 2, 3, 4, 0]]);
        assert_eq!(targets(&policy, wish(0xfffe, Pattern::Overstriped), 1)[0].len(), 10);
    }

    #[test]
    fn pools_restrict_unless_they_are_unknown() {
        let policy = policy();
        let wish = |pool: &str, first, listed: &[u32]| {
            let listed = listed.to_vec();
            let component = Component { pool: pool.into(), first, listed, ..Component::plain(2, 65536) };
            Layout { components: vec![component], ..Layout::plain(1, 65536) }
        };
        assert_eq!(targets(&policy, wish("flash", 3, &[]), 1), [[3, 1]]);
        assert_eq!(targets(&policy, wish("flash", ANY, &[3, 1]), 1), [[3, 1]]);
        assert_eq!(targets(&policy, wish("unknown", 4, &[]), 1), [[4, 0]]);
        assert_eq!(policy.admit(wish("flash", 2, &[])), Err(Errno::INVAL));
        assert_eq!(policy.admit(wish("flash", ANY, &[1, 2])), Err(Errno::INVAL));
        assert_eq!(policy.admit(wish("", 5, &[])), Err(Errno::INVAL));
        assert_eq!(policy.admit(wish("", ANY, &[1, 1])), Err(Errno::INVAL));
    }

    #[test]
    fn components_get_objects_when_they_are_reached_and_no_more_than_fit() {
        let policy = policy();
        let first = Component { id: 1, end: 131_072, first: 0, ..Component::plain(5, 65536) };
        let second = Component { id: 2, start: 131_072, first: 0, ..Component::plain(5, 65536) };
        let wish = Layout { composite: true, generation: 0, components: vec![first, second] };
        assert_eq!(targets(&policy, wish.clone(), 131_072), [vec![0, 1], vec![]]);
        assert_eq!(targets(&policy, wish, 131_073), [vec![0, 1], vec![0, 1, 2, 3, 4]]);
    }
}
