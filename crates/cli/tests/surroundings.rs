//! What is around a command is not always what it was, or what it should be: the home directory, TMPDIR, names.

mod support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use haul_testkit::lacks;
use serde_json::Value;
use support::{Bed, code, says, stderr};

#[test]
fn whoever_has_the_home_of_somebody_else_has_no_settings_there() {
    if !rustix::process::geteuid().is_root() {
        return lacks("root");
    }
    const SOMEBODY: u32 = 12_345;
    let bed = Bed::new();
    let home = bed.path("of-root");
    bed.write("of-root/.config/haul/config.toml", b"no-such-setting = 1\n");
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    let work = bed.path("work");
    bed.write("work/file", b"content");
    [bed.directory.path(), &work].iter().for_each(|path| chown(path, Some(SOMEBODY), None).unwrap());
    let run = |file: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_haul"));
        command.env_clear().env("HOME", &home).env("TMPDIR", &work).current_dir(&work).uid(SOMEBODY);
        command.args(["cp", "file", file]).output().unwrap()
    };
    let output = run("copy");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    // It is read where it can be.
    fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).unwrap();
    says(&run("other"), 2, &["no such setting: no-such-setting"]);
}

#[test]
fn a_tmpdir_that_says_nothing_is_none() {
    if !rustix::process::geteuid().is_root() {
        return lacks("root");
    }
    // Nobody has this number, or state there.
    let somebody = 1_900_000_000 + std::process::id();
    let state = format!("/tmp/haul-state-{somebody}");
    assert!(!Path::new(&state).exists(), "{state}");
    let bed = Bed::new();
    let file = bed.write("work/file", b"content");
    [bed.directory.path(), &bed.path("work")]
        .iter()
        .for_each(|path| chown(path, Some(somebody), None).unwrap());
    for tmpdir in ["", "relative"] {
        let mut command = bed.command();
        // No state can be kept below a file.
        command.current_dir(bed.path("work")).env("TMPDIR", tmpdir).env("HAUL_STATE_DIR", &file);
        let output = command.uid(somebody).args(["cp", "file", "copy"]).output().unwrap();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(stderr(&output).contains(&state), "{}", stderr(&output));
        let names = fs::read_dir(bed.path("work")).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<std::collections::BTreeSet<_>>(), ["copy", "file"].map(Into::into).into());
    }
    fs::remove_dir_all(&state).unwrap();
}

/// It may be mounted later, and would hide what is kept below it until then.
#[test]
fn no_directory_for_temporary_files_is_made() {
    let bed = Bed::new();
    let file = bed.write("file", b"content");
    let tmpdir = bed.path("not/mounted");
    let output = bed
        .command()
        .env("TMPDIR", &tmpdir)
        .env("HAUL_STATE_DIR", &file)
        .args(["cp", "file", "copy"])
        .output();
    let output = output.unwrap();
    says(&output, 1, &["not a directory"]);
    assert!(!bed.path("not").exists());
}

/// In `/proc` nothing can be made, and the kernel says that something is not there.
#[test]
fn where_nothing_can_be_made_nobody_is_said_to_have_moved_anything() {
    let bed = Bed::new();
    bed.write("tree/file", b"content");
    let output = bed.haul(&["cp", "-r", "tree", "/proc"]);
    says(&output, 3, &["/proc/tree", "cannot be written"]);
    assert!(!stderr(&output).contains("moved"), "{}", stderr(&output));
}

#[test]
fn nothing_is_kept_where_a_link_of_somebody_else_leads() {
    if !rustix::process::geteuid().is_root() {
        return lacks("root");
    }
    let bed = Bed::new();
    bed.write("file", b"content");
    for (place, owner) in [("own", 0), ("of-somebody", 12_345)] {
        fs::create_dir(bed.path(place)).unwrap();
        chown(bed.path(place), Some(owner), None).unwrap();
        let link = bed.path(&format!("link-to-{place}"));
        std::os::unix::fs::symlink(bed.path(place), &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(12_345), None).unwrap();
        let mut command = bed.command();
        command.env("HAUL_STATE_DIR", link.join("state")).args(["cp", "--log-required", "file", "copy"]);
        says(&command.output().unwrap(), 1, &["a symlink of another user"]);
        assert_eq!(fs::read_dir(bed.path(place)).unwrap().count(), 0, "{place}");
    }
    // One's own may lead anywhere.
    std::os::unix::fs::symlink(bed.path("own"), bed.path("link")).unwrap();
    let mut command = bed.command();
    let output = command.env("HAUL_STATE_DIR", bed.path("link/state")).args(["cp", "file", "copy"]).output();
    assert_eq!(code(&output.unwrap()), 0);
    assert!(bed.path("own/state/jobs").exists());
}

/// Two transfers are not in each other's way: whoever is done last has the name.
#[test]
fn of_two_transfers_to_one_file_one_wins_and_nothing_is_mixed() {
    let bed = Bed::new();
    let sources = ["one", "two"].map(|name| {
        let bytes = vec![name.as_bytes()[0]; 12 << 20];
        (bed.write(&format!("{name}/file"), &bytes), bytes)
    });
    fs::create_dir(bed.path("out")).unwrap();
    let mut running = sources.each_ref().map(|(source, _)| {
        let mut command = bed.command();
        command
            .args(["cp", "--quiet", "--bandwidth", "20MB/s"])
            .arg(source)
            .arg(bed.path("out/file"))
            .spawn()
            .unwrap()
    });
    // While both are at it there is nothing under the name, or all of one.
    while running.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
        let found = fs::read(bed.path("out/file")).unwrap_or_else(|_| sources[0].1.clone());
        assert!(sources.iter().any(|(_, bytes)| *bytes == found));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(running.iter_mut().all(|child| child.wait().unwrap().success()));
    let found = fs::read(bed.path("out/file")).unwrap();
    assert!(sources.iter().any(|(_, bytes)| *bytes == found));
    assert_eq!(fs::read_dir(bed.path("out")).unwrap().count(), 1);
}

#[test]
fn paths_are_told_to_programs_as_they_are() {
    let bed = Bed::new();
    let names: [&[u8]; 3] = [b"a\nline", b"back\\slash", b"w\xff"];
    for name in names {
        let directory = bed.directory.path().join(Path::new(std::ffi::OsStr::from_bytes(name)));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("file"), b"content").unwrap();
        let mut command = bed.command();
        let output = command.current_dir(&directory).args(["cp", "file", "copy"]).output().unwrap();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    let output = bed.haul(&["status", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let told: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for name in names {
        let path =
            [bed.directory.path().canonicalize().unwrap().as_os_str().as_bytes(), b"/", name, b"/copy"]
                .concat();
        let is_it = |event: &&Value| match std::str::from_utf8(&path) {
            Ok(path) => event["destination"] == path && event["destination_hex"].is_null(),
            Err(_) => {
                let hex: String = path.iter().map(|byte| format!("{byte:02x}")).collect();
                event["destination_hex"] == hex && event["sources_hex"].as_array().unwrap().len() == 1
            }
        };
        assert!(told.iter().any(|event| is_it(&event)), "{told:#?}");
    }
}

#[test]
fn what_a_copy_refuses_at_once_is_refused_before() {
    let bed = Bed::new();
    bed.write("directory/file", b"content");
    bed.write("file", b"content");
    let both = |arguments: &[&str]| {
        let [explained, copied] = ["explain", "cp"].map(|word| bed.haul(&[&[word], arguments].concat()));
        assert_eq!(code(&explained), code(&copied), "{arguments:?}: {}", stderr(&explained));
        code(&copied)
    };
    assert_eq!(both(&["-r", "directory", "file"]), 1);
    assert_eq!(both(&["--ssh", "'", "file", "host:copy"]), 2);
    let state = bed.path("file");
    let mut commands = ["explain", "cp"].map(|word| {
        let mut command = bed.command();
        command
            .env("HAUL_STATE_DIR", &state)
            .env("TMPDIR", bed.directory.path())
            .args([word, "file", "copy"]);
        command
    });
    let codes = commands.each_mut().map(|command| code(&command.output().unwrap()));
    assert_eq!(codes, [0, 0], "its state is kept elsewhere");
    let codes = commands.each_mut().map(|command| code(&command.arg("--log-required").output().unwrap()));
    assert_eq!(codes, [1, 1]);
}
