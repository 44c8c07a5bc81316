use std::os::unix::fs::PermissionsExt;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::*;
use crate::source::{PosixSource, Root, SourceOptions};

fn scan_of(top: &std::path::Path) -> PosixScan {
    let source =
        PosixSource::new(vec![Root::with_label(top.to_str().unwrap(), "top")], SourceOptions::default());
    source.scan(Arc::new(AtomicU64::new(1)))
}

/// Bind mounts and file systems with a bug can show a directory below itself. Mounting needs privileges, so the
/// scan is told instead that it already stands in the directory.
#[test]
fn a_directory_met_again_below_itself_is_named_and_not_entered() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(scratch.path().join("again/below")).unwrap();
    let mut scan = scan_of(scratch.path());
    scan.ancestors.insert(Status::of_name(CWD, scratch.path().join("again"), false).unwrap().place());
    let mut found = Vec::new();
    while scan.next(&mut found) {}
    let failure = Failure::os(Code::SourceRead, Errno::LOOP.raw_os_error());
    assert!(found.contains(&Scanned::Error { path: b"top/again".to_vec(), failure }), "{found:?}");
    assert_eq!(found.len(), 3, "the top, the error, the end of the top: {found:?}");
}

/// GlusterFS lists a directory without what is on bricks that are down.
#[test]
fn a_directory_whose_listing_lacks_names_is_told_and_named() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(scratch.path().join("lacks/deeper")).unwrap();
    std::fs::write(scratch.path().join("lacks/file"), b"x").unwrap();
    let lacks = std::fs::File::open(scratch.path().join("lacks")).unwrap();
    let (layouts, _) = crate::layout::tests::listing_lacks(&lacks, true);
    let mut scan = scan_of(scratch.path()).placed(Arc::new(Placing::new(Arc::new(layouts))), 0, 1 << 20);
    let mut found = Vec::new();
    while scan.next(&mut found) {}
    let failure = Failure::os(Code::SourceRead, Errno::NOTCONN.raw_os_error());
    let errors: Vec<&Scanned> =
        found.iter().filter(|scanned| matches!(scanned, Scanned::Error { .. })).collect();
    assert_eq!(errors, [&Scanned::Error { path: b"top/lacks".to_vec(), failure }]);
    assert_eq!(found.len(), 8, "what is listed is told all the same: {found:?}");
}

/// All that can stand under a name, in several directories, as it is told where looks are quick and where they are not.
#[test]
fn what_is_looked_at_ahead_is_told_as_ever() {
    let scratch = tempfile::tempdir().unwrap();
    for directory in 0..200_usize {
        let directory = scratch.path().join(format!("many/{}/{}/{directory}", directory % 3, directory % 7));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("file"), b"x").unwrap();
    }
    for directory in ["", "a", "a/b", "c"] {
        let directory = scratch.path().join(directory);
        std::fs::create_dir_all(&directory).unwrap();
        for name in 0..50_usize {
            std::fs::write(directory.join(format!("file-{name}")), vec![b'x'; name % 7 * 100]).unwrap();
        }
        std::os::unix::fs::symlink("file-1", directory.join("link")).unwrap();
        std::fs::write(directory.join(format!(".haul-{}", "0".repeat(32))), b"x").unwrap();
        fs::mkfifoat(CWD, directory.join("fifo"), Mode::RUSR).unwrap();
        for name in ["closed", "blind"] {
            std::fs::create_dir(directory.join(name)).unwrap();
            std::fs::write(directory.join(name).join("file"), b"x").unwrap();
        }
    }
    let set_modes = |closed, blind| {
        for directory in ["", "a", "a/b", "c"].map(|directory| scratch.path().join(directory)) {
            for (name, mode) in [("closed", closed), ("blind", blind)] {
                std::fs::set_permissions(directory.join(name), PermissionsExt::from_mode(mode)).unwrap();
            }
        }
    };
    set_modes(0, 0o600);
    let layouts = || {
        let top = std::fs::File::open(scratch.path()).unwrap();
        Arc::new(Placing::new(Arc::new(crate::layout::tests::listing_lacks(&top, false).0)))
    };
    let tell = |mut scan: PosixScan, slow: bool| {
        let mut found = Vec::new();
        loop {
            scan.pace = Pace::default();
            scan.pace.took(1000, std::time::Duration::from_secs(u64::from(slow)));
            if !scan.next(&mut found) {
                return (found, scan.unfinished.load(Ordering::Relaxed));
            }
        }
    };
    let as_ordinary_user = || {
        set_capabilities(
            None,
            CapabilitySets { effective: CapabilitySet::empty(), ..capabilities(None).unwrap() },
        )
        .unwrap();
        // Reading a symlink changes its access time, the first time.
        tell(scan_of(scratch.path()), false);
        let plain = tell(scan_of(scratch.path()), false);
        assert_eq!(tell(scan_of(scratch.path()), true), plain);
        // A file in each of 200 directories in 3 times 7 in 3 in one; directories end, too.
        let closed = plain.0.iter().filter(|scanned| matches!(scanned, Scanned::Error { .. })).count();
        assert_eq!(closed, 4 * 2, "what is in a directory, or that one cannot see that");
        let others = plain.0.len() - closed;
        assert_eq!((others, plain.1), (4 * (54 + 2 * 2) + 200 + 2 * (200 + 21 + 3 + 1), 4));
        let placed = |above| scan_of(scratch.path()).placed(layouts(), above, 1 << 20);
        for above in [0, 250, 1 << 20] {
            assert_eq!(tell(placed(above), true), tell(placed(above), false), "small up to {above}");
        }
    };
    std::thread::scope(|scope| scope.spawn(as_ordinary_user).join()).unwrap();
    set_modes(0o700, 0o700);
}

#[test]
fn no_more_directories_are_opened_ahead_than_descriptors_are_kept() {
    let scratch = tempfile::tempdir().unwrap();
    for directory in 0..64_usize {
        std::fs::create_dir_all(scratch.path().join(format!("{}/{directory}/below", directory % 8))).unwrap();
    }
    let options = SourceOptions { directory_descriptors_max: 3, ..SourceOptions::default() };
    let source = PosixSource::new(vec![Root::new(scratch.path().to_str().unwrap())], options);
    let mut scan = source.scan(Arc::new(AtomicU64::new(1)));
    let mut most = 0;
    let mut found = Vec::new();
    loop {
        scan.pace = Pace::default();
        scan.pace.took(1000, std::time::Duration::from_secs(1));
        let mut one = vec![];
        let mut batch = Batch { full: 1, before: 0, out: &mut one, error_bytes: 0 };
        if scan.stack.is_empty() {
            if !scan.begin_root(&mut batch) {
                break;
            }
        } else {
            scan.advance(&mut batch);
        }
        most = most.max(scouted(&scan.stack));
        found.extend(one);
    }
    assert!(most > 0 && most <= 3, "{most}");
}

#[test]
fn a_directory_may_be_met_again_beside_itself() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::create_dir(scratch.path().join("a")).unwrap();
    let root = || Root::new(scratch.path().to_str().unwrap());
    let source = PosixSource::new(vec![root(), root()], SourceOptions::default());
    let mut found = Vec::new();
    let mut scan = source.scan(Arc::new(AtomicU64::new(1)));
    while scan.next(&mut found) {}
    assert!(found.iter().all(|scanned| matches!(scanned, Scanned::Item(_))), "{found:?}");
    assert_eq!(found.len(), 8);
    assert!(scan.ancestors.is_empty());
}
