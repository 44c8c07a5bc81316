//! Each rule of durability, through a real mount with real system calls.

mod common;

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, UNIX_EPOCH};

use common::{Bench, outcomes};
use haul_crashfs::Mood;

#[test]
fn a_synced_file_with_a_synced_name_survives_every_mood_and_seed() {
    let bench = Bench::new();
    fs::create_dir(bench.path("d")).unwrap();
    let bytes: Vec<u8> = (0..100_000u32).map(|number| number as u8).collect();
    bench.write("d/f", &bytes);
    fs::set_permissions(bench.path("d/f"), Permissions::from_mode(0o640)).unwrap();
    for name in ["d/f", "d", ""] {
        bench.sync(name);
    }
    assert!(bench.filesystem.is_durable());
    for (seed, mood) in (0..200).zip(Mood::ALL.into_iter().cycle()) {
        assert_eq!(bench.filesystem.crash(seed, Some(mood)).lost(), 0);
        assert_eq!(bench.read("d/f").as_deref(), Some(&bytes[..]), "seed {seed} mood {mood}");
        assert_eq!(fs::metadata(bench.path("d/f")).unwrap().permissions().mode() & 0o7777, 0o640);
    }
}

#[test]
fn bytes_that_were_not_synced_can_be_lost_kept_and_torn() {
    let old = vec![1u8; 64 << 10];
    let new = vec![2u8; 64 << 10];
    let seen = outcomes(
        60,
        Mood::Coin,
        |bench| {
            bench.write("f", &old);
            bench.filesystem.sync_all();
            File::options().write(true).open(bench.path("f")).unwrap().write_all_at(&new, 0).unwrap();
        },
        |bench| {
            let now = bench.read("f").unwrap();
            let torn_within_a_page = now.chunks(4096).any(|page| page.contains(&1) && page.contains(&2));
            let sectors_are_whole =
                now.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0]));
            assert!(sectors_are_whole, "a disk writes sectors whole");
            match (now == old, now == new, torn_within_a_page) {
                (true, ..) => "lost",
                (_, true, _) => "kept",
                (.., true) => "torn",
                _ => "mixed",
            }
        },
    );
    for outcome in ["lost", "kept", "torn", "mixed"] {
        assert!(seen.contains_key(outcome), "{outcome} never came: {seen:?}");
    }
}

#[test]
fn fdatasync_keeps_bytes_and_size_but_no_attributes() {
    let bench = Bench::new();
    bench.write("f", b"");
    fs::set_permissions(bench.path("f"), Permissions::from_mode(0o600)).unwrap();
    bench.filesystem.sync_all();
    bench.append("f", b"hello");
    fs::set_permissions(bench.path("f"), Permissions::from_mode(0o644)).unwrap();
    let file = File::open(bench.path("f")).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(7)).unwrap();
    file.sync_data().unwrap();
    drop(file);
    bench.crash_hard();
    let metadata = fs::metadata(bench.path("f")).unwrap();
    assert_eq!(bench.read("f").unwrap(), b"hello");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_ne!(metadata.mtime(), 7);

    fs::set_permissions(bench.path("f"), Permissions::from_mode(0o644)).unwrap();
    bench.sync("f");
    bench.crash_hard();
    assert_eq!(fs::metadata(bench.path("f")).unwrap().permissions().mode() & 0o777, 0o644);
}

#[test]
fn a_new_name_needs_a_sync_of_its_directory_and_of_every_new_one_above() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("a/b")).unwrap();
    bench.write("a/b/f", b"x");
    bench.sync("a/b/f");
    bench.sync("a/b");
    bench.crash_hard();
    assert!(bench.names("").is_empty(), "the name of `a` was not synced, so all beneath it is gone");

    fs::create_dir_all(bench.path("a/b")).unwrap();
    bench.write("a/b/f", b"x");
    for name in ["a/b/f", "a/b", "a", ""] {
        bench.sync(name);
    }
    bench.write("a/b/g", b"y");
    bench.sync("a/b/g");
    bench.crash_hard();
    assert_eq!(bench.names("a/b"), ["f"], "fsync of `g` does not sync its name");
    assert_eq!(bench.read("a/b/f").unwrap(), b"x");
}

#[test]
fn a_synced_name_without_synced_bytes_leads_to_an_empty_short_or_zeroed_file() {
    let seen = outcomes(
        80,
        Mood::Scattered,
        |bench| {
            bench.write("f", &[7; 20_000]);
            bench.sync("");
        },
        |bench| {
            let now = bench.read("f").expect("its name was synced");
            match now.len() {
                0 => "empty",
                20_000 if now.iter().all(|byte| *byte == 7) => "whole",
                20_000 if now.iter().all(|byte| *byte == 0) => "zeros",
                20_000 => "mixed",
                _ => "short",
            }
        },
    );
    for outcome in ["empty", "short", "zeros", "mixed", "whole"] {
        assert!(seen.contains_key(outcome), "{outcome} never came: {seen:?}");
    }
}

#[test]
fn delayed_allocation_leaves_zero_length_files_under_their_final_names() {
    let seen = outcomes(
        20,
        Mood::NamesWithoutData,
        |bench| {
            bench.write("f", b"old");
            bench.filesystem.sync_all();
            bench.write("f.tmp", b"new");
            fs::rename(bench.path("f.tmp"), bench.path("f")).unwrap();
        },
        |bench| bench.read("f").unwrap(),
    );
    assert!(seen.contains_key(&b""[..]), "{seen:?}");
    assert!(seen.contains_key(&[0; 3][..]), "{seen:?}");
    assert_eq!(seen.len(), 2, "{seen:?}");
}

#[test]
fn a_rename_is_lost_or_kept_as_a_whole_and_never_takes_both_names() {
    let seen = outcomes(
        60,
        Mood::Coin,
        |bench| {
            bench.write("f", b"old");
            bench.write("f.tmp", b"new");
            bench.filesystem.sync_all();
            fs::rename(bench.path("f.tmp"), bench.path("f")).unwrap();
        },
        |bench| (bench.read("f"), bench.read("f.tmp")),
    );
    let text = |text: &str| Some(text.as_bytes().to_vec());
    assert_eq!(seen.keys().cloned().collect::<Vec<_>>(), [(text("new"), None), (text("old"), text("new"))]);
}

#[test]
fn a_rename_is_durable_after_a_sync_of_the_directory() {
    let bench = Bench::new();
    bench.write("f.tmp", b"new");
    bench.filesystem.sync_all();
    fs::rename(bench.path("f.tmp"), bench.path("f")).unwrap();
    bench.sync("f");
    bench.crash_hard();
    assert_eq!(bench.names(""), ["f.tmp"], "fsync of the file does not sync the rename");
    fs::rename(bench.path("f.tmp"), bench.path("f")).unwrap();
    bench.sync("");
    bench.crash_hard();
    assert_eq!(bench.names(""), ["f"]);
}

#[test]
fn a_move_between_directories_may_leave_both_names_and_never_none() {
    let seen = outcomes(
        120,
        Mood::Coin,
        |bench| {
            fs::create_dir(bench.path("a")).unwrap();
            fs::create_dir(bench.path("b")).unwrap();
            bench.write("a/f", b"x");
            bench.filesystem.sync_all();
            fs::rename(bench.path("a/f"), bench.path("b/f")).unwrap();
        },
        |bench| (bench.read("a/f").is_some(), bench.read("b/f").is_some()),
    );
    assert_eq!(
        seen.keys().copied().collect::<Vec<_>>(),
        [(false, true), (true, false), (true, true)],
        "{seen:?}"
    );
}

#[test]
fn a_move_stays_whole_when_only_the_old_directory_is_synced() {
    let bench = Bench::new();
    fs::create_dir(bench.path("a")).unwrap();
    fs::create_dir(bench.path("b")).unwrap();
    bench.write("a/f", b"x");
    bench.filesystem.sync_all();
    fs::rename(bench.path("a/f"), bench.path("b/f")).unwrap();
    bench.sync("a");
    bench.crash_hard();
    assert!(bench.names("a").is_empty());
    assert_eq!(bench.read("b/f").unwrap(), b"x");
}

#[test]
fn a_moved_directory_has_one_name_whatever_was_synced() {
    for synced in [&[][..], &["a"], &["b"], &["a", "b"]] {
        let seen = outcomes(
            30,
            Mood::Coin,
            |bench| {
                for name in ["a", "b", "a/d"] {
                    fs::create_dir(bench.path(name)).unwrap();
                }
                bench.write("a/d/f", b"x");
                bench.filesystem.sync_all();
                fs::rename(bench.path("a/d"), bench.path("b/d")).unwrap();
                synced.iter().for_each(|name| bench.sync(name));
            },
            |bench| (bench.read("a/d/f").is_some(), bench.read("b/d/f").is_some()),
        );
        assert!(seen.keys().all(|(old, new)| old != new), "{synced:?} {seen:?}");
        assert_eq!(seen.len(), if synced.is_empty() { 2 } else { 1 }, "{synced:?} {seen:?}");
    }
}

#[test]
fn an_unsynced_removal_can_be_lost_and_the_file_is_back_whole() {
    let seen = outcomes(
        40,
        Mood::Coin,
        |bench| {
            bench.write("f", b"precious");
            bench.filesystem.sync_all();
            fs::remove_file(bench.path("f")).unwrap();
        },
        |bench| bench.read("f"),
    );
    assert_eq!(seen.keys().cloned().collect::<Vec<_>>(), [None, Some(b"precious".to_vec())]);
    let bench = Bench::new();
    bench.write("f", b"precious");
    bench.filesystem.sync_all();
    fs::remove_file(bench.path("f")).unwrap();
    bench.sync("");
    bench.crash_hard();
    assert!(bench.names("").is_empty());
}

#[test]
fn the_history_of_a_name_survives_as_a_prefix() {
    let seen = outcomes(
        200,
        Mood::Coin,
        |bench| {
            bench.write("f.tmp", b"1");
            bench.sync("f.tmp");
            fs::rename(bench.path("f.tmp"), bench.path("f")).unwrap();
            bench.write("f.tmp", b"2");
            bench.sync("f.tmp");
            fs::rename(bench.path("f.tmp"), bench.path("f")).unwrap();
        },
        |bench| (bench.read("f"), bench.read("f.tmp")),
    );
    let text = |text: &str| Some(text.as_bytes().to_vec());
    let allowed =
        [(None, None), (None, text("1")), (text("1"), None), (text("1"), text("2")), (text("2"), None)];
    assert!(seen.keys().all(|state| allowed.contains(state)), "{seen:?}");
    assert_eq!(seen.len(), allowed.len(), "{seen:?}");
}

#[test]
fn names_survive_in_order_where_there_is_a_journal() {
    let seen = outcomes(
        40,
        Mood::Journal,
        |bench| {
            for number in 0..10 {
                bench.write(&number.to_string(), b"");
            }
        },
        |bench| {
            let names = bench.names("");
            assert!(names.iter().enumerate().all(|(number, name)| *name == number.to_string()), "{names:?}");
            names.len()
        },
    );
    assert!(seen.len() > 3, "{seen:?}");
}

#[test]
fn hard_links_and_symlinks_follow_their_directory() {
    let bench = Bench::new();
    bench.write("f", b"x");
    bench.filesystem.sync_all();
    fs::hard_link(bench.path("f"), bench.path("g")).unwrap();
    symlink("target", bench.path("s")).unwrap();
    assert_eq!(fs::metadata(bench.path("f")).unwrap().nlink(), 2);
    bench.crash_hard();
    assert_eq!(bench.names(""), ["f"]);
    assert_eq!(fs::metadata(bench.path("f")).unwrap().nlink(), 1);
    fs::hard_link(bench.path("f"), bench.path("g")).unwrap();
    symlink("target", bench.path("s")).unwrap();
    bench.sync("");
    bench.crash_hard();
    assert_eq!(bench.names(""), ["f", "g", "s"]);
    assert_eq!(fs::metadata(bench.path("g")).unwrap().nlink(), 2);
    assert_eq!(fs::read_link(bench.path("s")).unwrap().to_str(), Some("target"));
}

#[test]
fn attributes_of_a_directory_need_its_own_sync() {
    let bench = Bench::new();
    fs::create_dir(bench.path("d")).unwrap();
    bench.filesystem.sync_all();
    let set =
        || File::open(bench.path("d")).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(9)).unwrap();
    let mtime = || fs::metadata(bench.path("d")).unwrap().mtime();
    set();
    bench.sync("");
    bench.crash_hard();
    assert_ne!(mtime(), 9);
    set();
    bench.sync("d");
    bench.crash_hard();
    assert_eq!(mtime(), 9);
}

#[test]
fn an_unsynced_cut_is_lost_and_a_synced_one_is_not() {
    let bench = Bench::new();
    bench.write("f", &[7; 10_000]);
    bench.filesystem.sync_all();
    File::options().write(true).open(bench.path("f")).unwrap().set_len(10).unwrap();
    bench.crash_hard();
    assert_eq!(bench.read("f").unwrap(), [7; 10_000]);
    let file = File::options().write(true).open(bench.path("f")).unwrap();
    file.set_len(10).unwrap();
    file.sync_data().unwrap();
    drop(file);
    bench.crash_hard();
    assert_eq!(bench.read("f").unwrap(), [7; 10]);
}

#[test]
fn written_bytes_show_at_once_and_lost_ones_leave_the_page_cache() {
    let bench = Bench::new();
    bench.write("f", &[1; 8192]);
    bench.filesystem.sync_all();
    let file = File::options().read(true).write(true).open(bench.path("f")).unwrap();
    file.write_all_at(b"second", 0).unwrap();
    assert_eq!(&bench.read("f").unwrap()[..6], b"second", "written bytes show at once");
    file.sync_data().unwrap();
    file.write_all_at(b"third!", 0).unwrap();
    drop(file);
    bench.crash_hard();
    assert_eq!(&bench.read("f").unwrap()[..6], b"second", "the kernel shows no page of the time before");
}

#[test]
fn descriptors_of_the_time_before_a_crash_are_dead() {
    let bench = Bench::new();
    bench.write("f", b"x");
    bench.filesystem.sync_all();
    let mut file = File::options().append(true).open(bench.path("f")).unwrap();
    bench.crash_hard();
    assert!(file.write_all(b"a ghost writes").is_err());
    assert!(file.sync_all().is_err());
    drop(file);
    assert_eq!(bench.read("f").unwrap(), b"x");
    // What the kernel forgets of the old inodes must not take the new ones with it.
    for _ in 0..50 {
        bench.append("f", b"y");
        bench.sync("f");
        bench.crash_hard();
    }
    assert_eq!(bench.read("f").unwrap().len(), 51);
}
