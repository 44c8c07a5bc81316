//! What cannot begin: what is said of it, whose it is, and with which exit code.

mod support;

use std::fs;
use std::process::Output;

use serde_json::Value;
use support::{Bed, code, says, stderr};

fn summary(output: &Output) -> Value {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().expect("no event")).unwrap();
    assert_eq!(last["event"], "summary");
    last
}

/// At the other end of this host.
fn with_two_ends(bed: &Bed, arguments: &[&str]) -> Output {
    let haul = env!("CARGO_BIN_EXE_haul");
    let mut command = bed.command();
    command.arg("cp").args(["--ssh", &format!("'{haul}' bench shell"), "--haul-path", haul]);
    command.args(arguments).output().unwrap()
}

#[test]
fn a_directory_that_is_missing_here_is_made_here_and_the_file_that_is_pulled_goes_into_it() {
    let bed = Bed::new();
    let file = bed.path("file");
    let source = format!("localhost:{}", file.display());
    for recursive in [&[][..], &["-r"]] {
        let pull = |to: &str| with_two_ends(&bed, &[recursive, &[&source, to]].concat());
        bed.write("file", b"content");
        let missing = pull("new/");
        says(&missing, 1, &["haul: new/: no such directory", "make it first: mkdir -p new"]);
        assert!(!stderr(&missing).contains("localhost"), "{}", stderr(&missing));
        fs::create_dir(bed.path("new")).unwrap();
        assert_eq!(code(&pull("new/")), 0);
        assert!(bed.path("new/file").exists());
        fs::remove_dir_all(bed.path("new")).unwrap();
    }
    // A directory that was made since an earlier run that found nothing.
    fs::remove_file(&file).unwrap();
    assert_eq!(code(&with_two_ends(&bed, &[&source, "later"])), 3);
    fs::create_dir(bed.path("later")).unwrap();
    bed.write("file", b"content");
    let output = with_two_ends(&bed, &[&source, "later"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(bed.path("later/file").exists());
}

#[test]
fn what_the_other_end_refuses_is_told_as_that_hosts() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let source = format!("localhost:{}", bed.path("file").display());
    let output = with_two_ends(&bed, &["--spill", "/nope", &source, "copy"]);
    says(&output, 1, &["haul: localhost: /nope (--spill)"]);
}

#[test]
fn homes_of_others_are_no_directories_of_that_name() {
    let bed = Bed::new();
    bed.write("file", b"content");
    for paths in [["file", "localhost:~root"], ["localhost:~root/x", "copy"]] {
        says(
            &bed.haul(&[&["cp"], &paths[..]].concat()),
            2,
            &["only ~ and ~/... are known", "localhost:./~root"],
        );
    }
    for paths in [["file", "localhost:~"], ["localhost:~/x", "copy"], ["file", "localhost:./~x"]] {
        assert_eq!(code(&bed.haul(&[&["explain"], &paths[..]].concat())), 0);
    }
}

#[test]
fn what_is_refused_is_explained_with_the_same_exit_code() {
    let bed = Bed::new();
    bed.write("directory/file", b"content");
    for paths in [["directory", "new/"], ["missing", "new/"], ["directory/file", "new/"], ["missing", "new"]]
    {
        let output = bed.haul(&[&["cp"], &paths[..]].concat());
        let explained = bed.haul(&[&["explain"], &paths[..]].concat());
        assert_eq!(code(&explained), code(&output), "{paths:?}: {} {}", stderr(&output), stderr(&explained));
        let (text, explained) = (stderr(&output), stderr(&explained));
        assert_eq!(explained.lines().next(), text.lines().next(), "{paths:?}");
    }
}

#[test]
fn what_never_began_has_a_summary_too() {
    let bed = Bed::new();
    bed.write("file", b"content");
    assert_eq!(code(&bed.haul(&["cp", "file", "copy"])), 0);
    let jobs = bed.path("home/.local/state/haul/jobs");
    let job = fs::read_dir(jobs).unwrap().next().unwrap().unwrap().path();
    fs::write(job.join("job.json"), "{").unwrap();
    let output = bed.haul(&["cp", "--json", "file", "copy"]);
    assert_eq!((code(&output), summary(&output)["error"]["code"].as_str()), (1, Some("state-damaged")));
    assert_eq!(summary(&output)["state"], "failed");
    let explained = bed.haul(&["explain", "file", "copy"]);
    assert!(code(&explained) == 1 && stderr(&explained).contains("job.json"), "{}", stderr(&explained));
}
