//! CephFS: how a file is cut into objects.
//!
//! The virtual attribute `ceph.file.layout` says, in any order, e.g.
//! `stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cephfs_data`. Stripe units are dealt to `stripe_count`
//! objects until each has `object_size` bytes, then to the next set of objects.
//!
//! Which OSD has an object only the cluster's map tells. What is known is that any two objects are most likely on
//! different OSDs; so the number of the file and that of the object in it, together modulo a small number, stand in for
//! its target. The file counts too, or all files of one object would be on one target, which may never have more than
//! its share of the threads.

use haul_model::Layout;
use haul_model::layout::Stripes;

use super::attributes::is_never;
use super::stripe::{Count, Plan, Pool};
use super::{Answer, Domain, Kind, LayoutSource, Subject, Targets};

/// At least so many targets for the objects of a pool, if they can be divided into whole sets.
const OBJECT_TARGETS: usize = 16;
/// A file with more objects in a set has one target for the mount.
const STRIPE_COUNT_MAX: usize = 256;

/// Asks for `ceph.file.layout`.
pub struct Ceph;

impl LayoutSource for Ceph {
    fn kind(&self) -> Kind {
        Kind::Ceph
    }

    fn layout(&self, file: &Subject<'_>, targets: &Targets) -> Answer {
        match file.attributes.get(c"ceph.file.layout") {
            Ok(value) => {
                let inode = file.attributes.inode().unwrap_or(0);
                let layout =
                    parse(&value).and_then(|found| found.layout(file.file_system.device, inode, targets));
                layout.map_or(Answer::Unknown, Answer::Found)
            }
            Err(errno) if is_never(errno) => Answer::Never,
            Err(_) => Answer::Unknown,
        }
    }

    fn plan(&self, thing: &Subject<'_>) -> Option<Plan> {
        let found = parse(&thing.attributes.get(c"ceph.dir.layout").ok()?)?;
        let count = Count::Exactly(found.stripe_count.try_into().ok()?);
        Some(Plan::plain(count, found.stripe_unit.try_into().ok()?, Pool::new(&found.pool)))
    }
}

struct Striping {
    stripe_unit: u64,
    stripe_count: usize,
    object_size: u64,
    pool: String,
}

impl Striping {
    fn layout(&self, device: u64, inode: u64, targets: &Targets) -> Option<Layout> {
        let count = OBJECT_TARGETS.next_multiple_of(self.stripe_count);
        // Numbers of files that were made one after the other follow each other.
        let first = (inode % count as u64) as usize;
        let name = |object: usize| {
            targets.id(Domain::Device(device), &format!("{}.{}", self.pool, (first + object) % count))
        };
        let rows = self.object_size / self.stripe_unit;
        Some(Layout::whole(Stripes::sets(
            self.stripe_unit,
            self.stripe_count,
            rows,
            (0..count).map(name).collect(),
        )?))
    }
}

fn parse(value: &[u8]) -> Option<Striping> {
    let text = std::str::from_utf8(value).ok()?;
    let text = text.strip_suffix('\0').unwrap_or(text);
    let mut found = Striping { stripe_unit: 0, stripe_count: 0, object_size: 0, pool: String::new() };
    for field in text.split_ascii_whitespace() {
        match field.split_once('=')? {
            ("stripe_unit", value) => found.stripe_unit = value.parse().ok()?,
            ("stripe_count", value) => found.stripe_count = value.parse().ok()?,
            ("object_size", value) => found.object_size = value.parse().ok()?,
            ("pool", value) => found.pool = value.to_owned(),
            _ => {}
        }
    }
    let counts = (1..=STRIPE_COUNT_MAX).contains(&found.stripe_count) && !found.pool.is_empty();
    let sizes =
        found.stripe_unit > 0 && found.object_size > 0 && found.object_size.is_multiple_of(found.stripe_unit);
    (counts && sizes).then_some(found)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn layout(text: &str) -> Option<(Layout, Targets)> {
        layout_of(text, 0)
    }

    fn layout_of(text: &str, inode: u64) -> Option<(Layout, Targets)> {
        let targets = Targets::default();
        let layout = parse(text.as_bytes())?.layout(1, inode, &targets)?;
        Some((layout, targets))
    }

    /// From the definition: the object of each byte, looked up by the numbers that the documentation names.
    fn object_number(offset: u64, unit: u64, count: u64, size: u64) -> u64 {
        let (block, units_per_object) = (offset / unit, size / unit);
        let (stripe, position) = (block / count, block % count);
        stripe / units_per_object * count + position
    }

    #[test]
    fn objects_are_dealt_as_ceph_deals_them() {
        for (unit, count, size) in
            [(4 << 20, 1, 4 << 20), (1 << 20, 4, 4 << 20), (65536, 3, 1 << 20), (65536, 256, 65536)]
        {
            let text = format!(
                "stripe_unit={unit} stripe_count={count} object_size={size} pool=data pool_namespace=n"
            );
            let (layout, targets) = layout(&text).unwrap();
            let targets_of_pool = 16_u64.next_multiple_of(count);
            assert_eq!(targets.all().len() as u64, targets_of_pool);
            for offset in (0..400 << 20).step_by(40_961) {
                let object = object_number(offset, unit, count, size) % targets_of_pool;
                let name = targets.describe(layout.target_at(offset).unwrap());
                assert_eq!(*name, *format!("data.{object}"), "{text} at {offset}");
            }
        }
        let (default, _) =
            layout("stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cephfs_data").unwrap();
        assert_eq!(default.next_cut(5), Some(4 << 20));
        let (rows, _) = layout("stripe_unit=1048576 stripe_count=1 object_size=4194304 pool=p").unwrap();
        assert_eq!(rows.next_cut(5), Some(4 << 20), "units of one object lie together");
    }

    #[test]
    fn files_of_one_object_are_not_all_on_one_target() {
        let text = "stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=p";
        // As a metadata server gives them.
        let first: HashSet<String> = (0x100_0000_01f4_u64..)
            .take(16)
            .map(|inode| {
                let (layout, targets) = layout_of(text, inode).unwrap();
                let (first, next) = (layout.target_at(0).unwrap(), layout.target_at(4 << 20).unwrap());
                assert_ne!(first, next, "objects that follow each other");
                targets.describe(first).to_string()
            })
            .collect();
        assert_eq!(first.len(), 16);
    }

    #[test]
    fn what_is_no_layout_is_unknown() {
        for text in [
            "",
            "stripe_unit",
            "stripe_unit=0 stripe_count=1 object_size=4194304 pool=p",
            "stripe_unit=4194304 stripe_count=0 object_size=4194304 pool=p",
            "stripe_unit=4194304 stripe_count=1 object_size=0 pool=p",
            "stripe_unit=4194304 stripe_count=1 object_size=6291456 pool=p",
            "stripe_unit=4194304 stripe_count=1 object_size=4194304",
            "stripe_unit=4194304 stripe_count=257 object_size=4194304 pool=p",
            "stripe_unit=1 stripe_count=1 object_size=4194304 pool=p",
            "stripe_unit=-1 stripe_count=1 object_size=4194304 pool=p",
            "stripe_unit=99999999999999999999 stripe_count=1 object_size=4194304 pool=p",
            "stripe_unit=9223372036854775808 stripe_count=2 object_size=9223372036854775808 pool=p",
        ] {
            assert!(layout(text).is_none(), "{text}");
        }
    }
}
