//! What is typed otherwise, or wrong: nothing is begun by mistake, and messages say what it is.

mod support;

use std::fs;

use support::{Bed, code, says, stderr};

/// With one file that cannot be copied: a directory stands where it must be.
fn unfinished(bed: &Bed) {
    bed.write("data/x/one", b"1");
    bed.write("data/y", b"2");
    fs::create_dir_all(bed.path("copy/data/y")).unwrap();
    assert_eq!(code(&bed.haul(&["cp", "-r", "-q", "data", "copy"])), 3);
}

#[test]
fn an_unfinished_transfer_that_is_typed_otherwise_is_not_begun_anew() {
    let bed = Bed::new();
    unfinished(&bed);
    for typed in [["data/", "copy/"], ["./data", "copy"], ["data", "copy/."], ["data", ".//copy"]] {
        for verb in ["explain", "cp"] {
            let output = bed.haul(&[verb, "-r", typed[0], typed[1]]);
            says(&output, 2, &["only in how it was typed", "haul stop "]);
        }
    }
    // It would be another transfer; where the first one has made `copy`, one into `copy/data`.
    for (verb, from) in [("cp", "data"), ("explain", "data"), ("cp", "./data/")] {
        says(&bed.haul(&[verb, "-rp", from, "copy"]), 2, &["in having no -p", "leave -p out", "haul stop "]);
    }
    // What it told works.
    let output = bed.haul(&["cp", "-r", "data/", "copy/"]);
    let text = stderr(&output);
    let id = text.split("haul stop ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert_eq!(code(&bed.haul(&["stop", id, "--discard"])), 0);
    fs::remove_dir(bed.path("copy/data/y")).unwrap();
    assert_eq!(code(&bed.haul(&["cp", "-r", "data/", "copy/"])), 0);
    // Once it is done anything may be typed.
    assert_eq!(code(&bed.haul(&["cp", "-r", "data", "copy"])), 0);
}

/// What is typed for the directory that paths count from stands for it alone, and nothing else of the path tells that it is the same.
#[test]
fn the_directory_from_which_paths_count_is_the_same_however_it_is_typed() {
    let bed = Bed::new();
    bed.write("from/data/x/one", b"1");
    bed.write("from/data/y", b"2");
    let haul = env!("CARGO_BIN_EXE_haul");
    let shell = format!("'{haul}' bench shell");
    let copy = |within: &str, from: &str, to: &str| {
        let mut command = bed.command();
        command.current_dir(bed.path(within)).args(["cp", "-r", "-q", "--ssh", &shell]);
        command.args(["--haul-path", haul, from, to]).output().unwrap()
    };
    let here = |within: &str, signs: &str| format!("{}{signs}", bed.path(within).display());
    // `$PWD/.` is what `.` is, and `host:.` what `host:` is.
    let at_home: Vec<_> = ["", "./", "./.", "~", "~/"].map(|path| format!("localhost:{path}")).into();
    let dest = [".".to_owned(), "./".into(), ".//".into(), here("to", ""), here("to", "/")].to_vec();
    let source = [".".to_owned(), "./".into(), "./.".into()].to_vec();
    let there = format!("localhost:{}", here("copy", ""));
    // What is in the way, where the command is typed, whether DEST varies, what does not, and how the other one is typed.
    let cases = [
        ("to/data/y", "to", true, "../from/data", &dest),
        ("copy/data/y", "from", false, "../copy", &source),
        ("copy/data/y", "from", false, &there, &source),
        ("home/data/y", "from", true, "data", &at_home),
        ("copy/home/from/data/y", "from", false, "../copy/home", &at_home),
    ];
    for (in_the_way, within, is_dest, other, typed) in cases {
        let is_home = typed == &at_home;
        for first in typed {
            for directory in ["to", "copy", "home"] {
                let _ = fs::remove_dir_all(bed.path(directory));
            }
            fs::create_dir_all(bed.path("to")).unwrap();
            fs::create_dir_all(bed.path(in_the_way)).unwrap();
            if is_home && !is_dest {
                bed.write("home/from/data/x/one", b"1");
                bed.write("home/from/data/y", b"2");
            }
            let copy = |path: &str| match is_dest {
                true => copy(within, other, path),
                false => copy(within, path, other),
            };
            let failed = copy(first);
            assert_eq!(code(&failed), 3, "{first} {other}: {}", stderr(&failed));
            for again in typed.iter().filter(|again| *again != first) {
                says(&copy(again), 2, &["only in how it was typed", "haul stop "]);
            }
        }
    }
}

/// Of a command that ended before it began nothing is known, and a record that says nothing may be of anything.
#[test]
fn what_failed_before_it_began_or_cannot_be_read_makes_no_way_for_a_second_copy() {
    let bed = Bed::new();
    bed.write("data/x/one", b"1");
    bed.write("data/y", b"2");
    let haul = env!("CARGO_BIN_EXE_haul");
    let shell = format!("'{haul}' bench shell");
    let there = format!("localhost:{}", bed.path("data").display());
    let slashed = format!("{there}/");
    let pull = |shell: &str, options: &str, from: &str| {
        bed.haul(&["cp", options, "-q", "--ssh", shell, "--haul-path", haul, from, "copy"])
    };
    assert_eq!(code(&pull("false", "-rp", &there)), 4, "{there} cannot be reached");
    fs::create_dir_all(bed.path("copy/data/y")).unwrap();
    assert_eq!(code(&pull(&shell, "-r", &there)), 3);
    for (options, from) in [("-rp", &there), ("-rp", &slashed), ("-r", &slashed)] {
        says(&pull(&shell, options, from), 2, &["an unfinished transfer differs", "haul stop "]);
    }
    let jobs = fs::read_dir(bed.path("home/.local/state/haul/jobs")).unwrap();
    for job in jobs {
        fs::write(job.unwrap().path().join("job.json"), "{").unwrap();
    }
    says(&pull(&shell, "-r", &slashed), 1, &["job.json", "--discard"]);
}

/// Shells complete paths of other hosts with a slash, too. What has several files was no symlink.
#[test]
fn a_slash_behind_a_directory_of_another_host_begins_no_second_copy() {
    let bed = Bed::new();
    bed.write("data/x/one", b"1");
    bed.write("data/y", b"2");
    fs::create_dir_all(bed.path("copy/data/y")).unwrap();
    let haul = env!("CARGO_BIN_EXE_haul");
    let shell = format!("'{haul}' bench shell");
    let there = format!("localhost:{}", bed.path("data").display());
    let pull = |from: &str| bed.haul(&["cp", "-r", "-q", "--ssh", &shell, "--haul-path", haul, from, "copy"]);
    assert_eq!(code(&pull(&there)), 3);
    let output = pull(&format!("{there}/"));
    says(&output, 2, &["only in how it was typed", "haul stop "]);
    fs::remove_dir(bed.path("copy/data/y")).unwrap();
    assert_eq!(code(&pull(&there)), 0);
}

#[test]
fn one_that_runs_is_told_as_that() {
    let bed = Bed::new();
    bed.write("data/file", &vec![1; 8 << 20]);
    let words = ["cp", "-r", "-q", "--bandwidth", "2MiB", "data", "copy"];
    let mut running = bed.command().args(words).spawn().unwrap();
    let began = std::time::Instant::now();
    while !bed.path("copy").exists() && began.elapsed().as_secs() < 30 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let output = bed.haul(&["cp", "-r", "./data", "copy"]);
    says(&output, 1, &["already running", "haul stop "]);
    let explained = bed.haul(&["explain", "-r", "data", "copy"]);
    assert!(
        String::from_utf8_lossy(&explained.stdout).contains("(running, 1 session so far)"),
        "{explained:?}"
    );
    assert!(!stderr(&output).contains("--discard"));
    assert!(running.wait().unwrap().success());
}

#[test]
fn what_no_further_run_can_copy_is_told_as_that() {
    let bed = Bed::new();
    bed.write("data/file", b"1");
    rustix::fs::mkfifoat(rustix::fs::CWD, bed.path("data/fifo"), rustix::fs::Mode::from(0o600)).unwrap();
    assert_eq!(code(&bed.haul(&["cp", "-r", "data", "copy"])), 3);
    let status = String::from_utf8(bed.haul(&["status"]).stdout).unwrap();
    assert!(status.contains("; 1 failed") && status.contains("cannot be copied"), "{status}");
    assert!(!status.contains("run the same command"), "{status}");
    assert_eq!(code(&bed.haul(&["cp", "-r", "data/", "other/"])), 3, "nothing is left to continue");
}

#[test]
fn a_slip_leaves_no_transfer_and_is_told_for_what_it_is() {
    let bed = Bed::new();
    bed.write("file", b"1");
    bed.write("12:00", b"2");
    for (words, expected, text) in [
        (&["cp", "file", "nowhere/copy"][..], 1, "no such directory at the destination"),
        (&["stop", "zzz"], 2, "zzz: no such transfer\n"),
        (&["cp", "--ssh", "false", "12:00", "copy"], 4, "a file of that name is here: ./12:00"),
    ] {
        let output = bed.haul(words);
        says(&output, expected, &[text]);
        assert!(!stderr(&output).contains("well formed"), "{}", stderr(&output));
    }
    let status = String::from_utf8(bed.haul(&["status", "--all"]).stdout).unwrap();
    assert!(!status.contains("nowhere"), "{status}");
}

/// As WRF calls its output.
#[test]
fn who_names_files_with_colons_is_told_how_to_type_them() {
    let bed = Bed::new();
    let files = ["wrfout_d01_2005-08-28_00:00:00", "wrfout_d01_2005-08-28_06:00:00"];
    files.iter().for_each(|file| drop(bed.write(file, b"content")));
    for (from, to) in [(&files[..], "cluster:"), (&files[..1], "cluster:"), (&files[..], "copy")] {
        for verb in ["cp", "explain"] {
            let output = bed.haul(&[&[verb], from, &[to]].concat());
            let told = format!("a file of the name {0} is here: ./{0}", files[0]);
            says(&output, 2, &["must be on ", &told]);
        }
    }
    let others = bed.haul(&["cp", "one:file", "other:file", "copy"]);
    says(&others, 2, &["must be on the same host"]);
    assert!(!stderr(&others).contains("is here"), "{}", stderr(&others));
}
