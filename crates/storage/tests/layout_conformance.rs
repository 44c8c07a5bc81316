//! One suite for everything that knows layouts.

use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::create_dir_all;
use std::os::unix::fs::symlink;

use haul_model::layout::STRIPE_BYTES_MIN;
use haul_model::{Layout, TargetId};
use haul_storage::layout::{
    Answer, Attributes, Ceph, CephPrograms, FileSystem, Gluster, LayoutFile, LayoutSource, Local, Lustre,
    Mount, PerMount, Subject, TARGETS_MAX, Targets,
};
use rustix::io::{Errno, Result};

/// A file with at most one attribute.
struct Fake {
    name: &'static CStr,
    value: Result<Vec<u8>>,
}

impl Attributes for Fake {
    fn get(&self, name: &CStr) -> Result<Vec<u8>> {
        if name == self.name { self.value.clone() } else { Err(Errno::NODATA) }
    }
}

/// A source, an attribute that it understands, and the names of the targets of the first bytes then.
struct Sample {
    source: Box<dyn LayoutSource>,
    name: &'static CStr,
    value: Vec<u8>,
    first: &'static [&'static str],
    /// It looks at the attribute.
    reads: bool,
}

/// A v1 value with stripes of 1 MiB on these targets.
fn lov(targets: &[u32]) -> Vec<u8> {
    let mut value = [&0x0BD1_0BD0_u32.to_le_bytes()[..], &1_u32.to_le_bytes(), &[0; 16]].concat();
    value.extend_from_slice(&(1_u32 << 20).to_le_bytes());
    value.extend_from_slice(&(targets.len() as u16).to_le_bytes());
    value.extend_from_slice(&[0xff; 2]);
    for target in targets {
        value.extend_from_slice(&[0; 20]);
        value.extend_from_slice(&target.to_le_bytes());
    }
    value
}

fn sys() -> tempfile::TempDir {
    let sys = tempfile::tempdir().unwrap();
    create_dir_all(sys.path().join("dev/block")).unwrap();
    create_dir_all(sys.path().join("devices/sda")).unwrap();
    symlink(sys.path().join("devices/sda"), sys.path().join("dev/block/8:0")).unwrap();
    sys
}

fn samples(sys: &tempfile::TempDir) -> Vec<Sample> {
    let sample = |source, name, value: &[u8], first, reads| Sample {
        source,
        name,
        value: value.to_vec(),
        first,
        reads,
    };
    let rules = LayoutFile::parse(b"/data 1MiB one two").unwrap();
    vec![
        sample(Box::new(Lustre), c"lustre.lov", &lov(&[4, 0x1b]), &["OST0004", "OST001b", "OST0004"], true),
        sample(
            Box::new(Gluster),
            c"glusterfs.pathinfo",
            b"(<DISTRIBUTE:v-dht> (<REPLICATE:v-r-0> <POSIX(/b1):h1:/b1/f> <POSIX(/b2):h2:/b2/f>))\0",
            &["h1:/b1+h2:/b2", "h1:/b1+h2:/b2"],
            true,
        ),
        sample(
            Box::new(Gluster),
            c"trusted.glusterfs.pathinfo",
            b"(<STRIPE:v-stripe-0:[1048576]> <POSIX(/b1):h1:/b1/f> <POSIX(/b2):h2:/b2/f>)",
            &["h1:/b1", "h2:/b2", "h1:/b1"],
            true,
        ),
        sample(
            Box::new(Ceph::new(CephPrograms::default(), true)),
            c"ceph.file.layout",
            b"stripe_unit=1048576 stripe_count=2 object_size=2097152 pool=data",
            &["data.0", "data.1", "data.0", "data.1", "data.2", "data.3"],
            true,
        ),
        sample(Box::new(Local::new(sys.path().to_owned())), c"none", b"", &["sda"], false),
        sample(Box::new(PerMount), c"none", b"", &["server:/export"], false),
        sample(Box::new(rules), c"none", b"", &["one", "two", "one"], false),
    ]
}

fn file_system(device: u64) -> FileSystem {
    let mount = Mount { source: "server:/export".into(), point: "/data".into() };
    FileSystem { device, magic: 0, mount, btrfs: None }
}

/// The device of the made sysfs.
fn disk() -> u64 {
    rustix::fs::makedev(8, 0)
}

fn ask(sample: &Sample, value: Result<Vec<u8>>, device: u64, known: bool, targets: &Targets) -> Answer {
    let (attributes, file_system) = (Fake { name: sample.name, value }, file_system(device));
    let path = Some(&b"/data/set/file"[..]);
    sample
        .source
        .layout(&Subject { file_system: &file_system, attributes: &attributes, path, known }, targets)
}

fn found(answer: Answer) -> Option<Layout> {
    match answer {
        Answer::Found(layout) => Some(layout),
        Answer::Unknown | Answer::Never => None,
    }
}

/// Whatever was read, this must hold.
fn is_sound(layout: &Layout, targets: &Targets) {
    let mut known: HashSet<TargetId> = targets.all().iter().map(|target| target.id).collect();
    known.insert(TargetId::ARCHIVE);
    let mut end = 0;
    for component in layout.components() {
        assert!(end <= component.range.start && component.range.start < component.range.end);
        end = component.range.end;
        let Some(stripes) = &component.stripes else { continue };
        assert!(stripes.size() >= STRIPE_BYTES_MIN && !stripes.targets().is_empty());
        assert!(stripes.targets().iter().all(|target| known.contains(target)));
        assert!(stripes.targets().iter().all(|target| !targets.describe(*target).is_empty()));
    }
    let mut at = 0;
    for _ in 0..64 {
        let Some(cut) = layout.next_cut(at) else { break };
        assert!(cut > at);
        assert_eq!(layout.target_at(at), layout.target_at(cut - 1));
        at = cut;
    }
    for length in [0, 1, 1 << 40, u64::MAX] {
        assert!(
            layout.shares(length).iter().map(|(_, bytes)| u128::from(*bytes)).sum::<u128>()
                <= u128::from(length)
        );
    }
    assert!(layout.object_size(1 << 20).is_power_of_two());
}

#[test]
fn what_is_understood_names_the_same_targets_every_time() {
    let sys = sys();
    for sample in samples(&sys) {
        let targets = Targets::default();
        let ask = || found(ask(&sample, Ok(sample.value.clone()), disk(), false, &targets));
        let layout = ask().unwrap_or_else(|| panic!("{}", sample.source.kind()));
        is_sound(&layout, &targets);
        let names: Vec<_> =
            (0..sample.first.len() as u64).map(|mib| layout.target_at(mib << 20).unwrap()).collect();
        let names: Vec<_> = names.into_iter().map(|target| targets.describe(target)).collect();
        assert_eq!(names.iter().map(|name| &**name).collect::<Vec<_>>(), sample.first);
        let named = targets.all().len();
        assert_eq!(ask(), Some(layout));
        assert_eq!(targets.all().len(), named);
    }
}

#[test]
fn an_attribute_that_cannot_be_read_is_no_layout() {
    let sys = sys();
    for sample in samples(&sys).into_iter().filter(|sample| sample.reads) {
        let kind = sample.source.kind();
        for errno in [Errno::NODATA, Errno::ACCESS, Errno::PERM, Errno::IO, Errno::RANGE, Errno::STALE] {
            let answer = ask(&sample, Err(errno), disk(), false, &Targets::default());
            assert_eq!(answer, Answer::Unknown, "{kind} {errno}");
        }
        let answer = ask(&sample, Ok(Vec::new()), disk(), true, &Targets::default());
        assert_eq!(answer, Answer::Unknown, "{kind}");
    }
}

#[test]
fn a_file_system_without_such_attributes_is_not_asked_again() {
    struct Without;
    impl Attributes for Without {
        fn get(&self, _name: &CStr) -> Result<Vec<u8>> {
            Err(Errno::OPNOTSUPP)
        }
    }
    let sys = sys();
    for sample in samples(&sys).into_iter().filter(|sample| sample.reads) {
        let (file_system, targets) = (file_system(1), Targets::default());
        let subject = Subject { file_system: &file_system, attributes: &Without, path: None, known: true };
        assert_eq!(sample.source.layout(&subject, &targets), Answer::Never, "{}", sample.source.kind());
        assert!(sample.source.plan(&subject).is_none());
    }
}

#[test]
fn a_new_file_of_a_known_lustre_is_on_no_target_yet() {
    let sys = sys();
    let lustre = samples(&sys).swap_remove(0);
    let layout = found(ask(&lustre, Err(Errno::NODATA), 1, true, &Targets::default())).unwrap();
    assert_eq!(layout, Layout::none());
}

#[test]
fn damaged_attributes_are_unknown_or_sound() {
    let sys = sys();
    let mut random = 0x243f_6a88_85a3_08d3_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    for sample in samples(&sys).into_iter().filter(|sample| sample.reads) {
        let targets = Targets::default();
        for length in 0..sample.value.len() {
            let cut = sample.value[..length].to_vec();
            if let Some(layout) = found(ask(&sample, Ok(cut), 1, true, &targets)) {
                is_sound(&layout, &targets);
            }
        }
        let mut sound = 0;
        for _ in 0..4000 {
            let mut value = sample.value.clone();
            for _ in 0..1 + next() % 3 {
                let at = next() % value.len();
                match next() % 4 {
                    0 => value[at] ^= 1 << (next() % 8),
                    1 => value[at] = next() as u8,
                    2 => value[at] = b"()<>:[] =0123456789"[next() % 19],
                    _ => value.insert(at, b"()<>:[] =0123456789"[next() % 19]),
                }
            }
            if let Some(layout) = found(ask(&sample, Ok(value), 1, true, &targets)) {
                is_sound(&layout, &targets);
                sound += 1;
            }
        }
        assert!(sound > 0, "{}: nothing was understood", sample.source.kind());
    }
}

#[test]
fn no_number_of_file_systems_fills_the_memory() {
    let sys = sys();
    for sample in samples(&sys) {
        let targets = Targets::default();
        for device in 0..2 * TARGETS_MAX as u64 {
            if let Some(layout) = found(ask(&sample, Ok(sample.value.clone()), device, true, &targets)) {
                let target = layout.target_at(0).unwrap();
                assert!(!targets.describe(target).is_empty());
            }
        }
        assert!(targets.all().len() <= TARGETS_MAX);
    }
}

#[test]
fn where_the_shard_size_can_be_read_only_the_first_shard_is_on_the_brick() {
    struct Sharded(&'static [u8]);
    impl Attributes for Sharded {
        fn get(&self, name: &CStr) -> Result<Vec<u8>> {
            match name.to_bytes() {
                b"glusterfs.pathinfo" => Ok(b"(<DISTRIBUTE:v> <POSIX(/b):h:/b/f>)".to_vec()),
                b"trusted.glusterfs.shard.block-size" => Ok(self.0.to_vec()),
                _ => Err(Errno::NODATA),
            }
        }
    }
    let ask = |size| {
        let (file_system, targets) = (file_system(1), Targets::default());
        let subject =
            Subject { file_system: &file_system, attributes: &Sharded(size), path: None, known: true };
        let layout = found(Gluster.layout(&subject, &targets)).unwrap();
        let name = |offset| targets.describe(layout.target_at(offset).unwrap()).to_string();
        (layout.next_cut(0), name(0), name(1 << 40))
    };
    let brick = || "h:/b".to_owned();
    assert_eq!(ask(&[0, 0, 0, 0, 0, 64, 0, 0]), (Some(4 << 20), brick(), "server:/export shards".into()));
    for odd in [&[][..], &[0; 8], &[1; 7], &[1; 9], &[0xff; 8]] {
        assert_eq!(ask(odd), (None, brick(), brick()), "{odd:?}");
    }
}

#[test]
fn directories_say_how_their_new_files_are_striped() {
    use haul_storage::layout::stripe::{Count, Plan, Pool};
    let ask = |source: &dyn LayoutSource, name, value: &[u8]| {
        let attributes = Fake { name, value: Ok(value.to_vec()) };
        let file_system = file_system(1);
        source.plan(&Subject { file_system: &file_system, attributes: &attributes, path: None, known: false })
    };
    let plan = Plan::plain(Count::All, 4 << 20, Pool::new("flash"));
    let value = haul_storage::layout::lov::encode(&plan);
    assert_eq!(ask(&Lustre, c"lustre.lov", &value), Some(plan));
    let ceph_source = Ceph::new(CephPrograms::default(), true);
    let ceph = b"stripe_unit=1048576 stripe_count=2 object_size=2097152 pool=data";
    assert_eq!(
        ask(&ceph_source, c"ceph.dir.layout", ceph),
        Some(Plan::plain(Count::Exactly(2), 1 << 20, Pool::new("data")))
    );
    assert_eq!(ask(&ceph_source, c"ceph.dir.layout", b""), None);
    assert_eq!(ask(&PerMount, c"none", b""), None);
}
