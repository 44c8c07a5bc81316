//! Layouts at creation, through a real mount.

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use common::{Bench, K64, components, composite, objects, stripes, u16_at, u32_at, wish, wish_in_pool};
use rustix::fs::{CWD, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

const ANY: u16 = 0xffff;
const RAID0: u32 = 0x0BD1_0BD0;
const END: u64 = u64::MAX;

fn targets(bytes: &[u8]) -> Vec<u32> {
    objects(bytes).into_iter().map(|(target, _)| target).collect()
}

#[test]
fn a_new_file_has_the_default_and_one_from_mknod_nothing_until_it_is_written() {
    let bench = Bench::with(4, |options| options.stripe_count = 2);
    File::create(bench.path("opened")).unwrap();
    let layout = bench.layout("opened").unwrap();
    assert_eq!((layout.len(), u32_at(&layout, 24), u16_at(&layout, 28)), (32 + 48, K64 as u32, 2));
    assert_eq!(u16_at(&layout, 30), 0xffff, "the generation is hidden");
    assert_eq!(targets(&layout), [0, 1]);
    bench.mknod("made");
    assert_eq!(bench.layout("made"), Err(Errno::NODATA));
    File::open(bench.path("made")).unwrap();
    assert_eq!(bench.layout("made"), Err(Errno::NODATA), "reading needs no objects");
    OpenOptions::new().write(true).open(bench.path("made")).unwrap();
    assert_eq!(targets(&bench.layout("made").unwrap()), [2, 3]);
}

#[test]
fn a_layout_is_set_between_mknod_and_the_first_write() {
    let bench = Bench::new(5);
    assert_eq!(
        bench.file("a", &wish(3, 2 * K64, 4)).iter().map(|object| object.0).collect::<Vec<_>>(),
        [4, 0, 1]
    );
    assert_eq!(u32_at(&bench.layout("a").unwrap(), 24), 2 * K64 as u32);
    assert_eq!(bench.file("all", &wish(0xffff, K64, ANY)).len(), 5);
    assert_eq!(bench.file("more", &wish(100, K64, ANY)).len(), 5, "as many as there are");
    assert_eq!(bench.file("defaults", &wish(0, 0, ANY)).len(), 1);
    assert_eq!(u32_at(&bench.layout("defaults").unwrap(), 24), K64 as u32);
    let over = stripes(RAID0, 0x201, 12, K64, 0, None);
    let over = bench.file("over", &over);
    assert_eq!(over.iter().map(|object| object.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]);
    assert_eq!(u32_at(&bench.layout("over").unwrap(), 4), 0x201);
}

#[test]
fn chosen_targets_are_taken_in_their_order() {
    let bench = Bench::new(5);
    let mut chosen = stripes(0x0BD5_0BD0, 1, 3, K64, ANY, Some(""));
    for target in [4u32, 0, 2] {
        chosen.extend([0; 20]);
        chosen.extend(target.to_le_bytes());
    }
    assert_eq!(bench.file("f", &chosen).iter().map(|object| object.0).collect::<Vec<_>>(), [4, 0, 2]);
    assert_eq!(bench.layout("f").unwrap()[..4], RAID0.to_le_bytes(), "v1 once it has its objects");
}

#[test]
fn open_with_delayed_creation_leaves_the_layout_to_be_set_by_descriptor() {
    let bench = Bench::new(3);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOCTTY;
    // O_LOV_DELAY_CREATE is O_NOCTTY and FASYNC.
    let flags = flags | OFlags::from_bits_retain(libc::O_ASYNC as u32);
    let file = rustix::fs::openat(CWD, bench.path("f"), flags, Mode::from_raw_mode(0o600)).unwrap();
    let mut bytes = [0; 256];
    let read = |bytes: &mut [u8]| rustix::fs::fgetxattr(&file, "lustre.lov", bytes);
    assert_eq!(read(&mut bytes), Err(Errno::NODATA));
    rustix::fs::fsetxattr(&file, "lustre.lov", &wish(3, K64, 1), XattrFlags::CREATE).unwrap();
    let length = read(&mut bytes).unwrap();
    assert_eq!(targets(&bytes[..length]), [1, 2, 0]);
    rustix::io::pwrite(&file, b"x", 0).unwrap();
    assert_eq!(fs::read(bench.path("f")).unwrap(), b"x");
}

#[test]
fn a_second_layout_changes_nothing_and_is_an_error_only_if_that_is_asked_for() {
    let bench = Bench::new(3);
    bench.file("f", &wish(1, K64, 0));
    let before = bench.layout("f").unwrap();
    bench.set_layout("f", &wish(3, K64, 0)).expect("as Lustre answers setxattr");
    assert_eq!(bench.layout("f").unwrap(), before);
    bench.control("set_again=refuse");
    assert_eq!(bench.set_layout("f", &wish(3, K64, 0)), Err(Errno::EXIST));
    assert_eq!(bench.layout("f").unwrap(), before);
}

#[test]
fn wrong_wishes_are_refused_and_leave_the_file_without_a_layout() {
    let bench = Bench::new(3);
    bench.mknod("f");
    for (value, errno) in [
        (wish(1, K64 + 4096, ANY), Errno::INVAL),
        (wish(1, K64, 3), Errno::INVAL),
        (wish(1, K64, ANY)[..20].to_vec(), Errno::RANGE),
        (stripes(0x0BD2_0BD0, 1, 1, K64, ANY, None), Errno::INVAL),
        (stripes(RAID0, 0x100, 0, K64, ANY, None), Errno::INVAL),
        (composite(&[(0, K64 as u64 + 1, wish(1, K64, ANY))]), Errno::INVAL),
    ] {
        assert_eq!(bench.set_layout("f", &value), Err(errno), "{value:x?}");
    }
    assert_eq!(bench.layout("f"), Err(Errno::NODATA));
    std::os::unix::fs::symlink("f", bench.path("link")).unwrap();
    assert_eq!(rustix::fs::lgetxattr(bench.path("link"), "lustre.lov", &mut [0; 9][..]), Err(Errno::NODATA));
}

#[test]
fn pools_restrict_and_an_unknown_one_does_not() {
    let bench = Bench::with(5, |options| options.pools = BTreeMap::from([("flash".into(), vec![1, 3])]));
    let of = |objects: Vec<(u32, u64)>| objects.into_iter().map(|object| object.0).collect::<Vec<_>>();
    assert_eq!(of(bench.file("a", &wish_in_pool(0xffff, K64, 3, "flash"))), [3, 1]);
    let layout = bench.layout("a").unwrap();
    assert_eq!((&layout[..4], &layout[32..38]), (&0x0BD3_0BD0u32.to_le_bytes()[..], &b"flash\0"[..]));
    assert_eq!(of(bench.file("b", &wish_in_pool(0xffff, K64, ANY, "nowhere"))).len(), 5);
    bench.mknod("c");
    assert_eq!(bench.set_layout("c", &wish_in_pool(1, K64, 2, "flash")), Err(Errno::INVAL));
    bench.control("unknown_pool=refuse");
    assert_eq!(bench.set_layout("c", &wish_in_pool(1, K64, ANY, "nowhere")), Err(Errno::INVAL));
    bench.set_layout("c", &wish_in_pool(1, K64, ANY, "flash")).unwrap();
}

#[test]
fn a_directory_hands_its_default_to_files_and_new_directories() {
    let bench = Bench::new(4);
    fs::create_dir(bench.path("d")).unwrap();
    let shown = bench.layout("d").unwrap();
    assert_eq!((shown.len(), u16_at(&shown, 28)), (32, 1), "the file system's, without objects");
    bench.set_layout("d", &wish(3, 2 * K64, ANY)).unwrap();
    assert_eq!(u16_at(&bench.layout("d").unwrap(), 28), 3);
    File::create(bench.path("d/f")).unwrap();
    assert_eq!(objects(&bench.layout("d/f").unwrap()).len(), 3);
    fs::create_dir(bench.path("d/e")).unwrap();
    bench.mknod("d/e/g");
    fs::write(bench.path("d/e/g"), b"x").unwrap();
    assert_eq!(objects(&bench.layout("d/e/g").unwrap()).len(), 3);
    bench.set_layout("d", &wish(0, 0, ANY)).unwrap();
    File::create(bench.path("d/h")).unwrap();
    assert_eq!(objects(&bench.layout("d/h").unwrap()).len(), 1, "no default any more");
    assert_eq!(objects(&bench.layout("d/f").unwrap()).len(), 3, "files keep theirs");
    rustix::fs::removexattr(bench.path("d/e"), "lustre.lov").unwrap();
    assert_eq!(u16_at(&bench.layout("d/e").unwrap(), 28), 1);
    bench.set_layout("", &wish(2, K64, ANY)).unwrap();
    File::create(bench.path("d/i")).unwrap();
    assert_eq!(objects(&bench.layout("d/i").unwrap()).len(), 2, "the root's is everybody's");
}

/// 64 KiB at the metadata server, up to 1 MiB one stripe, then all.
fn progressive() -> Vec<u8> {
    composite(&[
        (0, K64 as u64, stripes(RAID0, 0x100, 0, K64, ANY, None)),
        (K64 as u64, 16 * K64 as u64, wish(1, K64, 2)),
        (16 * K64 as u64, END, wish(0xffff, 2 * K64, 0)),
    ])
}

#[test]
fn components_get_their_objects_with_the_first_write_into_them() {
    let bench = Bench::new(4);
    bench.mknod("f");
    bench.set_layout("f", &progressive()).unwrap();
    let flags = |bytes: &[u8]| components(bytes).iter().map(|component| component.0).collect::<Vec<_>>();
    let before = bench.layout("f").unwrap();
    assert_eq!(flags(&before), [0x10, 0, 0], "the part at the metadata server needs no objects");
    assert_eq!(components(&before)[2].3.len(), 32, "a header without objects");
    let file = OpenOptions::new().read(true).write(true).open(bench.path("f")).unwrap();
    file.write_all_at(&[1; 100], K64 as u64 - 100).unwrap();
    assert_eq!(flags(&bench.layout("f").unwrap()), [0x10, 0, 0]);
    file.write_all_at(&[1; 200], K64 as u64 - 100).unwrap();
    let after = bench.layout("f").unwrap();
    assert_eq!(flags(&after), [0x10, 0x10, 0]);
    assert!(u32_at(&after, 8) > u32_at(&before, 8), "the generation rises");
    assert_eq!(targets(components(&after)[1].3), [2]);
    file.write_all_at(&[1; 1], 40 * K64 as u64).unwrap();
    let last = bench.layout("f").unwrap();
    assert_eq!(flags(&last), [0x10, 0x10, 0x10]);
    assert_eq!(targets(components(&last)[2].3), [0, 1, 2, 3]);
    assert_eq!(components(&last)[1].3, components(&after)[1].3, "what is there stays");
}

#[test]
fn a_write_behind_a_component_and_a_new_size_give_it_objects_as_in_lustre() {
    let bench = Bench::new(4);
    bench.file("f", &wish(1, K64, 0));
    for (name, grow) in [
        (
            "written",
            (|file: &File| file.write_all_at(&[1], 20 * K64 as u64)) as fn(&File) -> std::io::Result<()>,
        ),
        ("sized", |file: &File| file.set_len(20 * K64 as u64)),
    ] {
        bench.mknod(name);
        bench.set_layout(name, &progressive()).unwrap();
        grow(&OpenOptions::new().write(true).open(bench.path(name)).unwrap()).unwrap();
        let layout = bench.layout(name).unwrap();
        assert!(components(&layout).iter().all(|component| component.0 == 0x10), "{name}");
    }
}

#[test]
fn the_attribute_is_listed_where_it_is_and_read_by_size_first() {
    let bench = Bench::new(2);
    let list = |name: &str| {
        let mut names = [0; 256];
        let length = rustix::fs::listxattr(bench.path(name), &mut names[..]).unwrap();
        String::from_utf8(names[..length].to_vec()).unwrap()
    };
    fs::write(bench.path("f"), b"").unwrap();
    rustix::fs::setxattr(bench.path("f"), "user.mine", b"1", XattrFlags::empty()).unwrap();
    assert_eq!(list("f"), "user.mine\0lustre.lov\0");
    bench.mknod("g");
    assert_eq!(list("g"), "");
    let size = rustix::fs::getxattr_query(bench.path("f"), "lustre.lov").unwrap();
    assert_eq!(size, bench.layout("f").unwrap().len());
    assert_eq!(rustix::fs::getxattr(bench.path("f"), "lustre.lov", &mut [0; 40][..]), Err(Errno::RANGE));
}

#[test]
fn everything_is_there_after_an_unmount() {
    let mut bench = Bench::with(4, |options| options.stripe_count = 2);
    fs::create_dir(bench.path("d")).unwrap();
    bench.set_layout("d", &progressive()).unwrap();
    let bytes = common::pattern(30 * K64 + 5);
    fs::write(bench.path("d/f"), &bytes).unwrap();
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(bench.path("g")).unwrap();
    fs::hard_link(bench.path("g"), bench.path("h")).unwrap();
    let before = (bench.layout("d/f").unwrap(), bench.layout("g").unwrap());
    bench.again();
    assert_eq!((bench.layout("d/f").unwrap(), bench.layout("h").unwrap()), before);
    assert!(fs::read(bench.path("d/f")).unwrap() == bytes);
    fs::write(bench.path("d/new"), &bytes).unwrap();
    let layout = bench.layout("d/new").unwrap();
    let numbers = |bytes: &[u8]| {
        let parts = components(bytes).into_iter().flat_map(|component| objects(component.3));
        parts.map(|object| object.1).collect::<Vec<_>>()
    };
    assert!(
        numbers(&layout).iter().all(|number| !numbers(&before.0).contains(number)),
        "numbers are used once"
    );
    assert!(fs::read(bench.path("d/f")).unwrap() == bytes);
    let options = |targets: usize| {
        let names = (0..targets).map(|number| bench.beside(&format!("target-{number}"))).collect();
        haul_stripefs::Options::new(names, bench.beside("mds"))
    };
    assert!(haul_stripefs::StripeFs::open(&options(3)).is_err(), "files are on a fourth target");
    assert!(haul_stripefs::StripeFs::open(&options(5)).is_ok());
}
