//! CephFS: how a file is cut into objects, and which OSD serves each.
//!
//! The virtual attribute `ceph.file.layout` says, in any order, e.g.
//! `stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cephfs_data`. Stripe units are dealt to `stripe_count`
//! objects until each has `object_size` bytes, then to the next set of objects. Object `n` of a file is called by the numbers of both,
//! `10000000000.0000002a`; the hash of the name leads to a placement group ([`hash`]), and the cluster's map from there to the OSDs
//! ([`cluster`]). The first of them reads and writes for all: it is the target.
//!
//! Asking the cluster takes a few tenths of a second, so it is done when it may be worth it: for all but a
//! single small file. Where nobody can be asked, all that is known is that any two objects are most likely on different OSDs; so the
//! number of the file and that of the object in it, together modulo a small number, stand in for its target. The file counts too, or
//! all files of one object would be on one target, which may never have more than its share of the threads.

mod cluster;
mod hash;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use haul_model::layout::{Component, Stripes};
use haul_model::limits::PLACEMENT_TARGETS_MAX;
use haul_model::{Layout, TargetId};

use super::attributes::{Status, is_never};
use super::stripe::{Count, Plan, Pool as PoolName};
use super::{Answer, Domain, Kind, LayoutSource, Subject, Targets};
pub use cluster::CephPrograms;
use cluster::{Pool, Told};

/// At least so many targets for the objects of a pool, if they can be divided into whole sets.
const OBJECT_TARGETS: usize = 16;
/// A file with more objects in a set has one target for the mount.
const STRIPE_COUNT_MAX: usize = 256;
/// Of so many pieces of a file the OSD is told; the number of the object stands for that of the others. It leaves room for these in what a
/// master can be told of a file.
const PIECES_MAX: u64 = PLACEMENT_TARGETS_MAX as u64 * 3 / 4;
/// A file of so much is worth to ask the cluster.
const WORTH_BYTES: u64 = 1 << 20;
/// So many smaller ones are told by number before it is asked. More would spread the objects of an OSD over more targets than one, each
/// with a part of the threads and slots of its own: an OSD that hangs could get all of them.
const FILES_BEFORE: u32 = 1;
/// More pools are not asked for.
const POOLS_MAX: usize = 16;

/// Asks for `ceph.file.layout`, and the cluster for its OSDs.
pub struct Ceph {
    programs: CephPrograms,
    /// Which files are asked for at once.
    eager: bool,
    files: AtomicU32,
    pools: Mutex<Vec<Known>>,
}

/// A pool that was asked for, or one of a cluster that has not answered.
struct Known {
    device: u64,
    name: String,
    pool: Option<Arc<Pool>>,
    /// The cluster has said nothing at all.
    is_silent: bool,
}

impl Ceph {
    /// With programs that answer as Ceph's do. `eager`: they are asked for the first file already.
    pub fn new(programs: CephPrograms, eager: bool) -> Ceph {
        Ceph { programs, eager, files: AtomicU32::new(0), pools: Mutex::default() }
    }

    /// Where the objects of a file are, if that is known, or worth to be asked. Other threads wait meanwhile, as they would ask the
    /// same.
    fn pool(&self, file: &Subject<'_>, striping: &Striping, size: u64) -> Option<Arc<Pool>> {
        let device = file.file_system.device;
        let is_worth_it =
            self.eager || size >= WORTH_BYTES || self.files.fetch_add(1, Ordering::Relaxed) >= FILES_BEFORE;
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let of_device = || pools.iter().filter(|known| known.device == device);
        if let Some(known) = of_device().find(|known| known.name == striping.pool) {
            return known.pool.clone();
        }
        let is_silent = of_device().any(|known| known.is_silent);
        if !is_worth_it || is_silent || pools.len() >= POOLS_MAX {
            return None;
        }
        let fsid = file.attributes.get(c"ceph.cluster_fsid").ok();
        let fsid = fsid.as_deref().and_then(text_of);
        let told = cluster::ask(&self.programs, &striping.pool, fsid, cluster::LIMIT);
        let is_silent = matches!(told, Told::Nothing);
        let pool = if let Told::Pool(pool) = told { Some(Arc::new(pool)) } else { None };
        pools.push(Known { device, name: striping.pool.clone(), pool: pool.clone(), is_silent });
        pool
    }
}

impl LayoutSource for Ceph {
    fn kind(&self) -> Kind {
        Kind::Ceph
    }

    fn layout(&self, file: &Subject<'_>, targets: &Targets) -> Answer {
        let value = match file.attributes.get(c"ceph.file.layout") {
            Ok(value) => value,
            Err(errno) if is_never(errno) => return Answer::Never,
            Err(_) => return Answer::Unknown,
        };
        let Some(striping) = parse(&value) else { return Answer::Unknown };
        let status = file.attributes.status();
        let pool = status.and_then(|status| self.pool(file, &striping, status.size));
        let device = file.file_system.device;
        striping
            .layout(device, status.unwrap_or_default(), pool.as_deref(), targets)
            .map_or(Answer::Unknown, Answer::Found)
    }

    fn plan(&self, thing: &Subject<'_>) -> Option<Plan> {
        let found = parse(&thing.attributes.get(c"ceph.dir.layout").ok()?)?;
        let count = Count::Exactly(found.stripe_count.try_into().ok()?);
        Some(Plan::plain(count, found.stripe_unit.try_into().ok()?, PoolName::new(&found.pool)))
    }
}

struct Striping {
    stripe_unit: u64,
    stripe_count: usize,
    object_size: u64,
    pool: String,
    namespace: String,
}

impl Striping {
    fn layout(&self, device: u64, file: Status, pool: Option<&Pool>, targets: &Targets) -> Option<Layout> {
        let by_number = || self.stripes(self.by_number(device, file.inode, targets));
        let Some(pool) = pool else { return Some(Layout::whole(by_number()?)) };
        let set_bytes = self.object_size.checked_mul(self.stripe_count as u64)?;
        let told = file.size.div_ceil(set_bytes).clamp(1, self.sets_told_max());
        let by_osd =
            self.stripes(self.by_osd(told as usize * self.stripe_count, device, file.inode, pool, targets))?;
        if file.size <= told * set_bytes {
            return Some(Layout::whole(by_osd));
        }
        let edge = told * set_bytes;
        Layout::new(vec![
            Component { range: 0..edge, stripes: Some(by_osd) },
            Component { range: edge..u64::MAX, stripes: Some(by_number()?) },
        ])
    }

    fn stripes(&self, objects: Vec<TargetId>) -> Option<Stripes> {
        Stripes::sets(self.stripe_unit, self.stripe_count, self.object_size / self.stripe_unit, objects)
    }

    /// Sets of objects of which the OSDs are told; at least one.
    fn sets_told_max(&self) -> u64 {
        let pieces_of_object = match self.stripe_count {
            1 => 1,
            _ => self.object_size / self.stripe_unit,
        };
        (PIECES_MAX / pieces_of_object.saturating_mul(self.stripe_count as u64).max(1)).max(1)
    }

    fn by_number(&self, device: u64, inode: u64, targets: &Targets) -> Vec<TargetId> {
        let count = OBJECT_TARGETS.next_multiple_of(self.stripe_count);
        // Numbers of files that were made one after the other follow each other.
        let first = (inode % count as u64) as usize;
        let name = |object: usize| {
            targets.id(Domain::Device(device), &format!("{}.{}", self.pool, (first + object) % count))
        };
        (0..count).map(name).collect()
    }

    fn by_osd(
        &self,
        objects: usize,
        device: u64,
        inode: u64,
        pool: &Pool,
        targets: &Targets,
    ) -> Vec<TargetId> {
        let mut known: HashMap<Option<u32>, TargetId> = HashMap::new();
        let mut name = String::new();
        let target = |object: usize| {
            name.clear();
            let _ = write!(name, "{inode:x}.{object:08x}");
            let osd = pool.osd(&self.namespace, &name);
            *known.entry(osd).or_insert_with(|| {
                // What nobody serves waits for somebody who does, and holds up nothing else.
                let name = osd.map_or_else(|| format!("{}.down", self.pool), |osd| format!("osd.{osd}"));
                targets.id(Domain::Device(device), &name)
            })
        };
        (0..objects).map(target).collect()
    }
}

fn text_of(value: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(value).ok()?;
    Some(text.strip_suffix('\0').unwrap_or(text))
}

fn parse(value: &[u8]) -> Option<Striping> {
    let mut found = Striping {
        stripe_unit: 0,
        stripe_count: 0,
        object_size: 0,
        pool: String::new(),
        namespace: String::new(),
    };
    for field in text_of(value)?.split_ascii_whitespace() {
        match field.split_once('=')? {
            ("stripe_unit", value) => found.stripe_unit = value.parse().ok()?,
            ("stripe_count", value) => found.stripe_count = value.parse().ok()?,
            ("object_size", value) => found.object_size = value.parse().ok()?,
            ("pool", value) => found.pool = value.to_owned(),
            ("pool_namespace", value) => found.namespace = value.to_owned(),
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
    use std::ffi::CStr;

    use rustix::io::{Errno, Result};

    use super::super::{Attributes, FileSystem, Mount};
    use super::cluster::tests::{FSID, POOL, programs};
    use super::*;

    fn layout(text: &str) -> Option<(Layout, Targets)> {
        layout_of(text, 0)
    }

    fn layout_of(text: &str, inode: u64) -> Option<(Layout, Targets)> {
        let targets = Targets::default();
        let layout = parse(text.as_bytes())?.layout(1, Status { inode, size: 0 }, None, &targets)?;
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

    /// A file of the recorded cluster.
    struct File {
        layout: String,
        status: Status,
        fsid: &'static str,
    }

    impl Attributes for File {
        fn get(&self, name: &CStr) -> Result<Vec<u8>> {
            match name.to_bytes() {
                b"ceph.file.layout" => Ok(self.layout.clone().into_bytes()),
                b"ceph.cluster_fsid" => Ok(self.fsid.into()),
                _ => Err(Errno::NODATA),
            }
        }

        fn status(&self) -> Option<Status> {
            Some(self.status)
        }
    }

    const INODE: u64 = 0x100_0000_0001;
    const SIMPLE: &str = "stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cfs_data";

    fn file(layout: &str, size: u64) -> File {
        File { layout: layout.to_owned(), status: Status { inode: INODE, size }, fsid: FSID }
    }

    fn ask(ceph: &Ceph, file: &File, device: u64, targets: &Targets) -> Layout {
        let mount = Mount { source: "ceph-fuse".into(), point: "/ceph".into() };
        let file_system = FileSystem { device, magic: 0, mount, btrfs: None };
        let subject = Subject { file_system: &file_system, attributes: file, path: None, known: true };
        match ceph.layout(&subject, targets) {
            Answer::Found(layout) => layout,
            other => panic!("{other:?}"),
        }
    }

    /// The names of the targets of the first bytes of so many pieces of this size.
    fn names(layout: &Layout, piece: u64, count: u64, targets: &Targets) -> Vec<String> {
        let name = |number| targets.describe(layout.target_at(number * piece).unwrap()).to_string();
        (0..count).map(name).collect()
    }

    #[test]
    fn objects_are_on_the_osds_that_the_cluster_names() {
        let scratch = tempfile::tempdir().unwrap();
        let (ceph, targets) = (Ceph::new(programs(scratch.path()), true), Targets::default());
        let layout = ask(&ceph, &file(SIMPLE, 9 << 20), 1, &targets);
        assert_eq!(names(&layout, 4 << 20, 3, &targets), ["osd.1", "osd.0", "osd.2"]);
        let empty = ask(&ceph, &file(SIMPLE, 0), 1, &targets);
        assert_eq!(names(&empty, 4 << 20, 1, &targets), ["osd.1"]);
        // Units go round two objects, twice; then round the next two.
        let striped = "stripe_unit=1048576 stripe_count=2 object_size=2097152 pool=cfs_data";
        let layout = ask(&ceph, &file(striped, (5 << 20) + 1), 1, &targets);
        let pool = ceph.pools.lock().unwrap()[0].pool.clone().unwrap();
        let third = pool.osd("", "10000000001.00000003").unwrap();
        let expected = [
            "osd.1",
            "osd.0",
            "osd.1",
            "osd.0",
            "osd.2",
            &format!("osd.{third}"),
            "osd.2",
            &format!("osd.{third}"),
        ];
        assert_eq!(names(&layout, 1 << 20, 8, &targets), expected);
        // The namespace is part of what is hashed.
        let apart = ask(&ceph, &file(&format!("{SIMPLE} pool_namespace=ns1"), 9 << 20), 1, &targets);
        let in_namespace = |object| format!("osd.{}", pool.osd("ns1", object).unwrap());
        let objects = ["10000000001.00000000", "10000000001.00000001", "10000000001.00000002"];
        assert_eq!(names(&apart, 4 << 20, 3, &targets), objects.map(in_namespace));
        let asked = std::fs::read_to_string(scratch.path().join("asked")).unwrap();
        assert_eq!(asked, "--connect-timeout 3 osd getmap\n", "once for all files");
    }

    #[test]
    fn of_a_long_file_the_first_objects_are_told_and_all_of_it_fits_into_a_placement() {
        let scratch = tempfile::tempdir().unwrap();
        let (ceph, targets) = (Ceph::new(programs(scratch.path()), true), Targets::default());
        for (layout, told) in [
            (SIMPLE, PIECES_MAX * (4 << 20)),
            ("stripe_unit=1048576 stripe_count=4 object_size=4194304 pool=cfs_data", PIECES_MAX << 20),
        ] {
            for size in [1, told - 1, told, told + 1, 1 << 42] {
                let found = ask(&ceph, &file(layout, size), 1, &targets);
                let name = |offset| targets.describe(found.target_at(offset).unwrap());
                assert!(name(0).starts_with("osd.") && name(told.min(size) - 1).starts_with("osd."));
                assert_eq!(name(size - 1).starts_with("cfs_data."), size > told, "{size} of {layout}");
                assert!(found.laid(size, 4 << 20, |target| target.0 as u16).is_some());
            }
        }
    }

    #[test]
    fn a_pool_that_is_not_in_the_map_says_nothing_of_others() {
        let scratch = tempfile::tempdir().unwrap();
        let (ceph, targets) = (Ceph::new(programs(scratch.path()), true), Targets::default());
        let gone = SIMPLE.replace(POOL, "of-yesterday");
        let first =
            |layout: &str| names(&ask(&ceph, &file(layout, 1), 1, &targets), 1, 1, &targets).remove(0);
        assert_eq!(first(&gone), format!("of-yesterday.{}", INODE % 16));
        assert_eq!(first(SIMPLE), "osd.1");
        first(&gone);
        let asked = std::fs::read_to_string(scratch.path().join("asked")).unwrap();
        assert_eq!(asked.lines().count(), 2, "once for each");
    }

    #[test]
    fn a_cluster_is_asked_when_it_is_worth_it_and_only_once() {
        let scratch = tempfile::tempdir().unwrap();
        let (ceph, targets) = (Ceph::new(programs(scratch.path()), false), Targets::default());
        let first = |size| names(&ask(&ceph, &file(SIMPLE, size), 1, &targets), 1, 1, &targets).remove(0);
        let by_number = format!("{POOL}.{}", INODE % 16);
        for _ in 0..FILES_BEFORE {
            assert_eq!(first(WORTH_BYTES - 1), by_number);
        }
        assert_eq!(first(WORTH_BYTES - 1), "osd.1", "it is not the only one");
        let (ceph, targets) = (Ceph::new(programs(scratch.path()), false), Targets::default());
        let first = |size| names(&ask(&ceph, &file(SIMPLE, size), 1, &targets), 1, 1, &targets).remove(0);
        assert_eq!(first(WORTH_BYTES), "osd.1", "it is large");
        assert_eq!(first(1), "osd.1", "it is known by now");
        let asked = || std::fs::read_to_string(scratch.path().join("asked")).unwrap().lines().count();
        assert_eq!(asked(), 2);
        // The mount belongs to another cluster: nobody is asked of it again, whatever the pool.
        let other = File { fsid: "another", ..file(SIMPLE, 1 << 30) };
        for pool in ["cfs_data", "cfs_data", "big"] {
            let other = File { layout: SIMPLE.replace("cfs_data", pool), ..file(&other.layout, 1 << 30) };
            let other = File { fsid: "another", ..other };
            let found = ask(&ceph, &other, 2, &targets);
            assert_eq!(names(&found, 1, 1, &targets), [format!("{pool}.{}", INODE % 16)]);
        }
        assert_eq!(asked(), 3);
    }
}
