//! Comparison, fingerprints and removal of trees, tried on datasets with every edge.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use haul_testbed::dataset;
use haul_testbed::tree::{Difference, Options, changes, compare, compare_one, fingerprint, remove};

fn pair() -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let (a, b) = (directory.path().join("a"), directory.path().join("b"));
    for root in [&a, &b] {
        fs::create_dir(root).unwrap();
        dataset::edges(root, 1, 64 << 10, dataset::LINK_BYTES).unwrap();
    }
    (directory, a, b)
}

#[test]
fn equal_trees_are_equal_beyond_the_longest_path() {
    let (_directory, a, b) = pair();
    let comparison = compare(&a, &b, &Options::default()).unwrap();
    assert!(comparison.is_same(), "{:?}", comparison.differences);
    assert!(comparison.files > 30 && comparison.directories > 20, "{comparison:?}");
}

#[test]
fn every_kind_of_difference_is_named_once() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 12] = [
        ("differs at byte 65535", |b| {
            let file = fs::OpenOptions::new().write(true).open(b.join("sizes/65536")).unwrap();
            let modified = file.metadata().unwrap().modified().unwrap();
            let mut last = [0];
            File::open(b.join("sizes/65536")).unwrap().read_exact_at(&mut last, 65_535).unwrap();
            file.write_all_at(&[last[0] ^ 1], 65_535).unwrap();
            file.set_modified(modified).unwrap();
        }),
        ("has 0 bytes, not 1", |b| {
            let file = fs::OpenOptions::new().write(true).open(b.join("sizes/1")).unwrap();
            let modified = file.metadata().unwrap().modified().unwrap();
            file.set_len(0).unwrap();
            file.set_modified(modified).unwrap();
        }),
        ("is missing", |b| {
            let modified = fs::metadata(b.join("sizes")).unwrap().modified().unwrap();
            fs::remove_file(b.join("sizes/4095")).unwrap();
            File::open(b.join("sizes")).unwrap().set_modified(modified).unwrap();
        }),
        ("is extra", |b| add(b, "sizes/other")),
        ("is left over", |b| add(b, "sizes/.haul-00112233445566778899aabbccddeeff")),
        ("is left over", |b| add(b, "sizes/.4096.haul-00112233445566778899aabbccddeeff")),
        ("has mode 0640", |b| {
            fs::set_permissions(b.join("sizes/4096"), fs::Permissions::from_mode(0o640)).unwrap();
        }),
        ("has mode 0711", |b| {
            fs::set_permissions(b.join("sizes"), fs::Permissions::from_mode(0o711)).unwrap()
        }),
        ("was modified at (", |b| {
            let file = File::open(b.join("sizes/4096")).unwrap();
            let before = file.metadata().unwrap().modified().unwrap();
            file.set_modified(before + Duration::from_nanos(1)).unwrap();
        }),
        ("was modified at (7, 0)", |b| {
            File::open(b.join("sizes")).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(7)).unwrap();
        }),
        ("leads to", |b| {
            replace(b, "links/dangling", |path| symlink("elsewhere", path).unwrap());
        }),
        ("is a RegularFile, not a Symlink", |b| {
            replace(b, "links/dangling", |path| fs::write(path, b"").unwrap());
        }),
    ];
    fn add(b: &Path, name: &str) {
        let parent = b.join(name).parent().unwrap().to_owned();
        let modified = fs::metadata(&parent).unwrap().modified().unwrap();
        fs::write(b.join(name), b"").unwrap();
        File::open(&parent).unwrap().set_modified(modified).unwrap();
    }
    fn replace(b: &Path, name: &str, make: impl FnOnce(&Path)) {
        let path = b.join(name);
        let parent = path.parent().unwrap().to_owned();
        let modified = fs::metadata(&parent).unwrap().modified().unwrap();
        fs::remove_file(&path).unwrap();
        make(&path);
        File::open(&parent).unwrap().set_modified(modified).unwrap();
    }
    for (what, damage) in damages {
        let (_directory, a, b) = pair();
        damage(&b);
        let comparison = compare(&a, &b, &Options::default()).unwrap();
        assert_eq!(comparison.count, 1, "{what}: {:?}", comparison.differences);
        assert!(comparison.differences[0].what.contains(what), "{what}: {:?}", comparison.differences);
    }
}

#[test]
fn a_fingerprint_shows_a_write_that_restores_size_and_time() {
    let (_directory, a, _) = pair();
    let before = fingerprint(&a).unwrap();
    assert!(changes(&before, &fingerprint(&a).unwrap(), 9).is_empty());
    let file = fs::OpenOptions::new().write(true).open(a.join("sizes/4096")).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(b"x", 0).unwrap();
    file.set_modified(modified).unwrap();
    let changes = changes(&before, &fingerprint(&a).unwrap(), 9);
    assert_eq!(changes, [Difference { path: b"/sizes/4096".to_vec(), what: "was touched".into() }]);
}

#[test]
fn one_file_is_compared_alone_and_removal_leaves_nothing() {
    let (_directory, a, b) = pair();
    fs::remove_file(b.join("sizes/1")).unwrap();
    let check = |path: &[u8]| compare_one(&a, &b, path, &Options::default()).unwrap().count;
    assert_eq!((check(b"sizes/1"), check(b"sizes/4095"), check(b"links/dangling")), (1, 0, 0));
    remove(&b).unwrap();
    assert!(!b.exists());
    remove(&b).unwrap();
}
