//! What cannot begin: what is said of it, whose it is, and with which exit code.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::Value;
use support::{Bed, code, says, stderr};

fn events(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn summary(output: &Output) -> Value {
    let last = events(output).pop().expect("no event");
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
    let whole = fs::read(job.join("job.json")).unwrap();
    fs::write(job.join("job.json"), "{").unwrap();
    let output = bed.haul(&["cp", "--json", "file", "copy"]);
    assert_eq!((code(&output), summary(&output)["error"]["code"].as_str()), (1, Some("state-damaged")));
    assert_eq!(summary(&output)["state"], "failed");
    let explained = bed.haul(&["explain", "file", "copy"]);
    assert!(code(&explained) == 1 && stderr(&explained).contains("job.json"), "{}", stderr(&explained));
    // What blocks it can be seen, and helped.
    let text = stderr(&output);
    let stop = text.split("then: haul ").nth(1).expect("what to do").trim();
    // So is one of a newer version, or of which nobody knows what it calls its files.
    for (field, value) in [("version", serde_json::json!(99)), ("instance", "ab".into())] {
        let mut record: Value = serde_json::from_slice(&whole).unwrap();
        record[field] = value;
        fs::write(job.join("job.json"), record.to_string()).unwrap();
        assert_eq!(code(&bed.haul(&["cp", "file", "copy"])), 1);
        assert_eq!(events(&bed.haul(&["status", "--json"]))[0]["state"], "damaged", "{field}");
    }
    let status = bed.haul(&["status"]);
    let listed = String::from_utf8(status.stdout).unwrap();
    assert!(listed.contains("damaged") && listed.contains(stop) && listed.contains("job.json"), "{listed}");
    let status = events(&bed.haul(&["status", "--json"]));
    assert_eq!((&status[0]["state"], &status[0]["can_continue"]), (&"damaged".into(), &false.into()));
    let output = bed.haul(&stop.split(' ').collect::<Vec<_>>());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(String::from_utf8(output.stdout).unwrap().contains(".haul- in their names"));
    assert_eq!(code(&bed.haul(&["cp", "file", "copy"])), 0);
}

#[test]
fn a_tree_does_not_become_what_a_file_is() {
    let bed = Bed::new();
    for number in 0..20 {
        bed.write(&format!("tree/{number}"), b"content");
    }
    bed.write("file", b"precious");
    std::os::unix::fs::symlink("nowhere", bed.path("dangling")).unwrap();
    let far = |name: &str| format!("localhost:{}", bed.path(name).display());
    for to in ["file", "dangling"] {
        for paths in [["tree", to], ["tree", &far(to)], [&far("tree"), to]] {
            let output = with_two_ends(&bed, &[&["-r"], &paths[..]].concat());
            says(
                &output,
                1,
                &[to, "stands where a directory must be", "name a directory as DEST, or a new name"],
            );
        }
    }
    assert_eq!(fs::read(bed.path("file")).unwrap(), b"precious");
    // A file may take the place of a file, and a tree go into what was a file when an earlier run saw it.
    assert_eq!(code(&bed.haul(&["cp", "-r", "tree/0", "file"])), 0);
    fs::remove_file(bed.path("file")).unwrap();
    assert_eq!(code(&bed.haul(&["cp", "-r", "tree", "file"])), 0);
}

#[test]
fn what_is_mistyped_says_nothing_of_a_job() {
    let bed = Bed::new();
    bed.write("tree/file", b"content");
    let status = || {
        let output = bed.haul(&["status", "--all", "--json"]);
        let jobs = events(&output).into_iter().map(|job| (job["state"].clone(), job["sessions"].clone()));
        jobs.collect::<Vec<_>>()
    };
    assert_eq!(code(&bed.haul(&["cp", "-r", "tree", "copy"])), 0);
    let done: [(Value, Value); 1] = [("done".into(), 1.into())];
    assert_eq!(status(), done);
    let mistyped = ["cp", "-r", "--layout-file", "tree/file", "tree", "copy"];
    assert_eq!(code(&bed.haul(&mistyped)), 2);
    assert_eq!(status(), done);
    assert_eq!(code(&bed.haul(&["cp", "-r", "treee", "other"])), 3);
    assert_eq!(code(&bed.haul(&["cp", "tree", "other"])), 3);
    assert_eq!(status(), done, "nothing was found, and nothing is to be continued");
    assert_eq!(code(&bed.haul(&["cp", "-r", "tree", "copy"])), 0);
    assert_eq!(status(), [("done".into(), 2.into())]);
}

#[test]
fn what_is_mistyped_does_not_lose_how_far_a_killed_one_was() {
    let bed = Bed::new();
    bed.write("file", &vec![7; 20 << 20]);
    let mut command = bed.command();
    let slow = ["cp", "--bandwidth", "6MiB", "--object-size", "1MiB"];
    let mut child =
        command.args(slow).args(["file", "copy"]).stderr(std::process::Stdio::null()).spawn().unwrap();
    let status = || {
        let job = events(&bed.haul(&["status", "--json"])).pop()?;
        Some(["state", "sessions", "bytes_done", "bytes_total"].map(|field| job[field].clone()))
    };
    while status().is_none_or(|[.., done, _]| done.as_u64() < Some(1 << 20)) {
        assert!(child.try_wait().unwrap().is_none(), "it was faster");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = status();
    assert!(killed.as_ref().is_some_and(|[state, ..]| state == "interrupted"), "{killed:?}");
    assert_eq!(code(&bed.haul(&["cp", "--layout-file", "file", "file", "copy"])), 2);
    assert_eq!(status(), killed);
    assert_eq!(code(&bed.haul(&["cp", "file", "copy"])), 0);
}

#[test]
fn what_was_not_sent_was_neither_compared_nor_encrypted() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let there = format!("localhost:{}", bed.path("copy").display());
    let told = |output: &Output| ["verified", "encrypted"].map(|field| summary(output)[field].clone());
    let copy = || with_two_ends(&bed, &["--json", "file", &there]);
    assert_eq!(told(&copy()), [Value::from("blake3"), true.into()]);
    assert_eq!(told(&copy()), [Value::Null, true.into()], "it was there already");
    let output = bed.haul(&["cp", "--json", "--ssh", "false", "file", "localhost:other"]);
    assert_eq!(told(&output), [Value::Null, Value::Null]);
}

#[test]
fn what_has_passed_of_an_object_is_told() {
    let bed = Bed::new();
    let bytes = 3 << 20;
    bed.write("file", &vec![7; bytes]);
    let there = format!("localhost:{}", bed.path("copy").display());
    let from = format!("localhost:{}", bed.path("file").display());
    for paths in [["file", &there], [&from, "back"], ["file", "here"]] {
        let output = with_two_ends(&bed, &[&["--json", "--bandwidth", "1MiB"], &paths[..]].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let sent = events(&output).into_iter().filter(|event| event["event"] == "progress");
        let mut sent: Vec<_> = sent.map(|event| event["bytes_sent"].as_u64().unwrap()).collect();
        assert!(sent.is_sorted(), "{sent:?}");
        sent.dedup();
        sent.retain(|sent| (1..bytes as u64).contains(sent));
        assert!(sent.len() >= 2, "{paths:?}: {sent:?}");
        assert_eq!(summary(&output)["bytes_sent"], bytes as u64);
    }
}

/// A script in place of ssh, called `name`.
fn script(bed: &Bed, name: &str, text: &str) -> String {
    let path = bed.path(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

#[test]
fn ssh_forwards_nothing_unless_the_user_says_so() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let told = bed.path("told");
    let text =
        format!("case \" $* \" in *\" -G \"*) ;; *) echo \"$*\" > '{}';; esac; exit 1", told.display());
    for (name, words, expected) in [
        ("ssh", "", "-a -x -oClearAllForwardings=yes -oPermitLocalCommand=no -T -- host "),
        (
            "ssh",
            " -A -o User=me",
            "-a -x -A -o User=me -oClearAllForwardings=yes -oPermitLocalCommand=no -T -- host ",
        ),
        ("rsh", " -l me", "-l me -T -- host "),
    ] {
        let program = script(&bed, name, &text);
        let output = bed.haul(&["cp", "--ssh", &format!("{program}{words}"), "file", "host:copy"]);
        assert_ne!(code(&output), 0);
        let asked = fs::read_to_string(&told).unwrap();
        assert!(asked.starts_with(expected), "{asked}");
    }
}

#[test]
fn a_far_end_that_has_the_request_and_does_not_answer_is_told_of_and_not_waited_for() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let asked = "case \" $* \" in *\" -G \"*) echo hostname localhost; exit;; esac";
    // Something that the shell there has left in the background is no answer, as long as it may be.
    let noise = "(sleep 1; echo mail; printf 'and mo'; sleep 2; echo re) &";
    let reached = "echo 'HAUL1 {\"reached\":{}}'";
    let program = script(&bed, "ssh", &format!("{asked}\n{noise}\n{reached}\nexec sleep 60"));
    let began = std::time::Instant::now();
    let mut command = bed.command();
    command.args(["cp", "--ssh", &program, "--hang-after", "6", "file", "host:copy"]);
    let output = command.env("HAUL_TEST_ANSWERS_WITHIN", "2").output().unwrap();
    let said = stderr(&output);
    assert_eq!(code(&output), 4, "{said}");
    let expected = [
        "host has the request and looks at DEST",
        "host has not answered for 6 s",
        "      what is copied there",
    ];
    assert_eq!(said.lines().count(), 3, "{said}");
    said.lines().zip(expected).for_each(|(line, words)| assert!(line.contains(words), "{said}"));
    assert!(began.elapsed().as_secs() < 50);
    // Nobody has the job any more.
    let output = bed.haul(&["cp", "--ssh", "false", "file", "host:copy"]);
    assert!(!stderr(&output).contains("already"), "{}", stderr(&output));
}

#[test]
fn a_login_that_hangs_is_told_of_and_waited_for_where_somebody_can_be_asked() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let haul = env!("CARGO_BIN_EXE_haul");
    let asked = "case \" $* \" in *\" -G \"*) echo hostname localhost; exit;; esac";
    let program = script(&bed, "ssh", &format!("{asked}\nsleep 8\nexec '{haul}' bench shell \"$@\""));
    let there = format!("localhost:{}", bed.path("copy").display());
    for (asks, expected) in [(None, 4), (Some("/bin/true"), 0)] {
        // Without a terminal.
        let mut command = haul_testkit::alone("setsid", bed.directory.path());
        command.args(["--wait", haul, "cp", "--ssh", &program, "--haul-path", haul, "--hang-after", "6"]);
        command.args(["file", &there]).env("HAUL_TEST_ANSWERS_WITHIN", "2");
        asks.map(|program| command.env("SSH_ASKPASS", program));
        let output = command.output().unwrap();
        let said = stderr(&output);
        assert_eq!(code(&output), expected, "{said}");
        assert!(said.contains("ssh to localhost has not started haul there yet"), "{said}");
        assert_eq!(said.contains("ssh has started nothing there for 6 s"), expected == 4, "{said}");
    }
}

/// Hardly anybody goes through a connection on which nothing has been started yet.
#[test]
fn an_ssh_that_logs_in_for_ever_is_not_left_behind_where_others_could_share_it() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let (haul, left) = (env!("CARGO_BIN_EXE_haul"), bed.path("left"));
    let asked = "case \" $* \" in *\" -G \"*) echo hostname localhost; echo controlmaster auto; exit;; esac";
    let program = script(&bed, "ssh", &format!("{asked}\nsleep 12; touch '{}'", left.display()));
    let mut command = haul_testkit::alone("setsid", bed.directory.path());
    command.args(["--wait", haul, "cp", "--ssh", &program, "--hang-after", "2", "file", "localhost:/copy"]);
    let output = command.env("HAUL_TEST_ANSWERS_WITHIN", "2").output().unwrap();
    assert_eq!(code(&output), 4, "{}", stderr(&output));
    std::thread::sleep(std::time::Duration::from_secs(12));
    assert!(!left.exists());
}

/// Each host has a state directory of its own.
#[test]
fn where_the_other_end_cannot_write_its_state_that_host_is_named() {
    let said =
        fails_through(|bed, far| format!("HAUL_STATE_DIR='{}/below' {far}", bed.path("file").display()));
    assert!(said.contains("on localhost, make it writable"), "{said}");
}

#[test]
fn a_haul_that_csh_does_not_find_is_missing() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let asked = "case \" $* \" in *\" -G \"*) echo hostname localhost; exit;; esac";
    let program = script(&bed, "ssh", &format!("{asked}\necho 'haul: Command not found.' >&2; exit 1"));
    let output = bed.haul(&["cp", "--ssh", &program, "file", "host:copy"]);
    let said = stderr(&output);
    assert_eq!(code(&output), 4, "{said}");
    // scp would not be told what this ssh is.
    let told = format!("copy it there: {program} host 'cat > haul && chmod +x haul' < $(command -v haul), ");
    assert!(said.contains(&told) && said.contains("--haul-path") && !said.contains("scp"), "{said}");
    let directory = bed.write("bin/ssh", &fs::read(bed.path("ssh")).unwrap()).parent().unwrap().to_owned();
    fs::set_permissions(directory.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
    let searched = std::env::join_paths([directory.as_path(), "/bin".as_ref(), "/usr/bin".as_ref()]).unwrap();
    for (ssh, copied) in [("ssh", "scp $(command -v haul) host:haul,"), ("ssh -F x", "ssh -F x host 'cat >")]
    {
        let mut command = bed.command();
        command.env("PATH", &searched);
        let said = stderr(&command.args(["cp", "--ssh", ssh, "file", "host:copy"]).output().unwrap());
        assert!(said.contains(&format!("copy it there: {copied}")), "{said}");
    }
}

/// What a copy to this host says that goes through a script in the place of ssh, and fails as a whole; the script is made of what
/// starts the far end.
fn fails_through(ssh: impl Fn(&Bed, &str) -> String) -> String {
    let bed = Bed::new();
    bed.write("file", b"content");
    let haul = env!("CARGO_BIN_EXE_haul");
    let program = script(&bed, "ssh", &ssh(&bed, &format!("'{haul}' bench shell \"$@\"")));
    let there = format!("localhost:{}", bed.path("copy").display());
    let output = bed.haul(&["cp", "--ssh", &program, "--haul-path", haul, "file", &there]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    stderr(&output)
}

/// Whatever it said then would be about another host.
#[test]
fn a_far_end_that_does_not_say_what_becomes_of_the_destination_is_not_guessed_for() {
    let forget = "sed -u 's/\"decision\":\"[a-z]*\"/\"decision\":null/'";
    let said = fails_through(|_, far| format!("{far} | {forget}"));
    assert!(said.contains("has not said what becomes of DEST"), "{said}");
}

#[test]
fn a_greeting_that_asks_for_no_stream_or_for_too_many_is_refused() {
    for streams in ["0", "65"] {
        let other = format!("sed -u 's/\"streams\":[0-9]*/\"streams\":{streams}/'");
        let said = fails_through(|_, far| format!("{other} | {far}"));
        assert!(said.contains("asks for more than is allowed"), "{said}");
    }
}

/// It says something before it goes, or not; nobody waits for its connection.
#[test]
fn a_far_end_that_ends_before_it_connects_has_ended_and_no_firewall_is_in_its_way() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let haul = env!("CARGO_BIN_EXE_haul");
    // It never hears where to connect to.
    let program = script(&bed, "ssh", &format!("head -n 1 | '{haul}' bench shell \"$@\""));
    let began = std::time::Instant::now();
    let there = format!("localhost:{}", bed.path("copy").display());
    let output =
        bed.haul(&["cp", "--ssh", &program, "--haul-path", haul, "--listen", "here", "file", &there]);
    says(&output, 4, &["localhost", "the other end has ended", "run the same command again"]);
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
}

#[test]
fn a_haul_that_is_there_and_cannot_be_run_is_not_told_to_be_missing() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let asked = "case \" $* \" in *\" -G \"*) echo hostname localhost; exit;; esac";
    let says_why = "echo 'sh: haul: cannot execute binary file: Exec format error' >&2; exit 126";
    let program = script(&bed, "ssh", &format!("{asked}\n{says_why}"));
    let output = bed.haul(&["cp", "--ssh", &program, "file", "host:copy"]);
    // After what the shell has said.
    let said = stderr(&output);
    assert_eq!(code(&output), 4, "{said}");
    assert!(said.contains("haul: host: sh: haul: cannot execute binary file"), "{said}");
    assert!(said.contains("haul is there and cannot be run") && !said.contains("not found"), "{said}");
}

#[test]
fn an_ssh_through_which_other_sessions_go_is_left_alone() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let haul = env!("CARGO_BIN_EXE_haul");
    let cases = [("auto", "", true), ("false", "", false), ("auto", "no/such/directory/", true)];
    for (case, (master, below, lives)) in cases.into_iter().enumerate() {
        let ended = bed.path(&format!("ended-{case}"));
        let program = script(
            &bed,
            "ssh",
            &format!(
                "case \" $* \" in *\" -G \"*) echo hostname localhost; echo controlmaster {master}; exit;; esac\n\
                 '{haul}' bench shell \"$@\"; exec < /dev/null > /dev/null 2>&1; sleep 5; touch '{}'",
                ended.display()
            ),
        );
        let to = format!("localhost:{}", bed.path(&format!("{below}copy-{case}")).display());
        let output = bed.haul(&["cp", "--ssh", &program, "--haul-path", haul, "file", &to]);
        assert_eq!(code(&output) == 0, below.is_empty(), "{}", stderr(&output));
        assert!(!ended.exists(), "it is not waited for");
        std::thread::sleep(std::time::Duration::from_secs(4));
        assert_eq!(ended.exists(), lives, "{master} {below}");
    }
}

#[test]
fn a_record_may_be_anybodys() {
    let bed = Bed::new();
    let state = bed.path("state");
    let job = state.join("jobs/0123456789abcdef0123456789abcdef");
    fs::create_dir_all(&job).unwrap();
    bed.write("file", b"content");
    assert_eq!(code(&bed.haul(&["cp", "file", "copy"])), 0);
    let jobs = bed.path("home/.local/state/haul/jobs");
    let own = fs::read_dir(jobs).unwrap().next().unwrap().unwrap().path();
    let mut record: Value = serde_json::from_slice(&fs::read(own.join("job.json")).unwrap()).unwrap();
    record["sources"] = vec!["\u{1b}[2J\u{1b}]0;title\u{7}"].into();
    record["destination"] = "\u{9b}2J".into();
    record["state"] = "\u{1b}c".into();
    fs::write(job.join("job.json"), record.to_string()).unwrap();
    let status = || bed.command().env("HAUL_STATE_DIR", &state).args(["status", "--all"]).output().unwrap();
    let shown = String::from_utf8(status().stdout).unwrap();
    assert!(shown.contains("title") && !shown.contains(['\u{1b}', '\u{7}', '\u{9b}']), "{shown:?}");
    // Nobody waits for one who would never write.
    fs::remove_file(job.join("job.json")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, job.join("job.json"), rustix::fs::Mode::RUSR).unwrap();
    assert_eq!(code(&status()), 0);
}

#[test]
fn who_became_root_keeps_nothing_in_a_home_of_before() {
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root, for a directory of somebody else");
    }
    let bed = Bed::new();
    bed.write("file", b"content");
    fs::create_dir(bed.path("others")).unwrap();
    std::os::unix::fs::chown(bed.path("others"), Some(12_345), Some(12_345)).unwrap();
    let copy_as = |became_root: &str, state: &str, options: &[&str]| {
        let mut command = bed.command();
        command.env("HAUL_STATE_DIR", bed.path(state)).env("TMPDIR", bed.directory.path());
        command.env("SUDO_UID", became_root);
        command.args(["cp"]).args(options).args(["file", "copy"]).output().unwrap()
    };
    let copy = |state: &str, options: &[&str]| copy_as("12345", state, options);
    assert_eq!(code(&copy("others/state/below", &[])), 0, "it is kept elsewhere");
    says(&copy("others/state/below", &["--log-required"]), 1, &["it is user 12345's"]);
    assert!(!bed.path("others/state").exists());
    assert_eq!(code(&copy("own/state/below", &["--log-required"])), 0);
    // A home that a container's root has of the host.
    assert_eq!(code(&copy_as("0", "others/home/below", &["--log-required"])), 0);
}

#[test]
fn what_a_user_may_not_replace_or_list_is_told_before_anything_is_sent() {
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root, for files of somebody else");
    }
    let bed = Bed::new();
    bed.write("big", &vec![7; 9 << 20]);
    for (name, mode) in [("sticky", 0o1777), ("unlisted", 0o1733)] {
        fs::create_dir(bed.path(name)).unwrap();
        fs::set_permissions(bed.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    bed.write("sticky/big", b"of root");
    fs::set_permissions(bed.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = |to: &str| {
        let haul = bed.command();
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(haul.get_program());
        command.env_clear().envs(haul.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("HAUL_STATE_DIR", bed.path("sticky/state")).current_dir(haul.get_current_dir().unwrap());
        command.args(["cp", "--json", "big", to]).output().unwrap()
    };
    let output = copy("sticky/big");
    let failed = events(&output).into_iter().find(|event| event["event"] == "failed").unwrap();
    assert_eq!((code(&output), &failed["code"]), (3, &"sink-permission".into()), "{}", stderr(&output));
    assert_eq!(summary(&output)["bytes_sent"], 0);
    let names: Vec<_> = fs::read_dir(bed.path("sticky")).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().starts_with(".haul-")), "{names:?}");
    says(&copy("unlisted/"), 1, &["permission denied", "not list it"]);
}

/// A server that is away for a moment, a name that something else has: what is durable of a big file is not sent again for that.
#[test]
fn what_is_durable_of_a_file_stays_while_it_cannot_be_read_or_has_no_place() {
    const BYTES: u64 = 24 << 20;
    let bed = Bed::new();
    fs::create_dir_all(bed.path("source/below")).unwrap();
    let content: Vec<u8> = (0..BYTES).map(|at| (at >> 12) as u8 ^ (at >> 20) as u8).collect();
    bed.write("source/below/big", &content);
    let haul = env!("CARGO_BIN_EXE_haul");
    let destination = format!("localhost:{}", bed.path("there").display());
    let run = |trouble: Option<(&str, &str)>, options: &[&str]| {
        let mut command = bed.command();
        command.args(["cp", "-r", "--json", "--ssh", &format!("'{haul}' bench shell"), "--haul-path", haul]);
        command.args(["--object-size", "1MiB", "--memory", "4MiB"]).args(options);
        command.env("HAUL_TEST_HASHES_LATE", "1").envs(trouble);
        command.args(["source", &destination]).output().unwrap()
    };
    let left = || {
        let found = fs::read_dir(bed.path("there/below")).unwrap().map(|entry| entry.unwrap().file_name());
        found.filter(|name| name.to_string_lossy().starts_with(".haul-")).count()
    };
    let failed_with = |output: &Output, wanted: &str| {
        assert_eq!(code(output), 3, "{}", stderr(output));
        let events = events(output);
        let failed: Vec<_> = events.iter().filter(|event| event["event"] == "failed").collect();
        assert!(failed.len() == 1 && failed[0]["code"] == wanted, "{failed:?}");
        assert!(left() > 0, "nothing is left of it: {wanted}");
    };
    let first = run(Some(("HAUL_TEST_SOURCE_READ_EIO", "17+")), &["--bandwidth", "12MiB"]);
    failed_with(&first, "source-read");
    let again = run(Some(("HAUL_TEST_SOURCE_READ_EIO", "1+")), &[]);
    failed_with(&again, "source-read");
    fs::create_dir(bed.path("there/below/big")).unwrap();
    failed_with(&run(None, &[]), "sink-is-directory");
    fs::remove_dir(bed.path("there/below/big")).unwrap();
    let last = run(None, &[]);
    assert_eq!(code(&last), 0, "{}", stderr(&last));
    let sent = summary(&last)["bytes_sent"].as_u64().unwrap();
    assert!(sent <= BYTES - (8 << 20), "{sent} bytes were sent again");
    assert!(fs::read(bed.path("there/below/big")).unwrap() == content && left() == 0);
}

/// Of a big file some objects are durable when a write fails for want of a right. The run after what happens `between` sends the
/// rest alone.
fn goes_on_after(between: impl Fn(&dyn Fn(&[&str]) -> Output)) {
    const TROUBLE: (&str, &str) = ("HAUL_TEST_FAIL", "write:17:13");
    const BYTES: u64 = 24 << 20;
    let bed = Bed::new();
    let content: Vec<u8> = (0..BYTES).map(|at| (at >> 12) as u8 ^ (at >> 20) as u8).collect();
    bed.write("source/big", &content);
    let haul = env!("CARGO_BIN_EXE_haul");
    let destination = format!("localhost:{}", bed.path("there").display());
    let run = |around: &[&str], trouble: Option<(&str, &str)>, options: &[&str]| {
        let mut command = haul_testkit::alone("env", &bed.path("."));
        command.args(around).args([haul, "cp", "-r", "--json", "--haul-path", haul]);
        command.args([
            "--ssh",
            &format!("'{haul}' bench shell"),
            "--object-size",
            "1MiB",
            "--memory",
            "4MiB",
        ]);
        command.args(options).envs(trouble).args(["source", &destination]).output().unwrap()
    };
    let first = run(&[], Some(TROUBLE), &["--bandwidth", "12MiB"]);
    assert_eq!(code(&first), 3, "{}", stderr(&first));
    between(&|around| run(around, None, &[]));
    let last = run(&[], None, &[]);
    assert_eq!(code(&last), 0, "{}", stderr(&last));
    let sent = summary(&last)["bytes_sent"].as_u64().unwrap();
    assert!(sent <= BYTES - (6 << 20), "{sent} bytes were sent again");
    assert!(fs::read(bed.path("there/big")).unwrap() == content);
    assert_eq!(fs::read_dir(bed.path("there")).unwrap().count(), 1);
}

#[test]
fn a_destination_that_is_read_only_for_one_run_costs_nothing() {
    const READ_ONLY: &str = "mount --bind there there && mount -o remount,ro,bind there && exec \"$@\"";
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root, to mount");
    }
    goes_on_after(|run| {
        let output = run(&["unshare", "--mount", "sh", "-c", READ_ONLY, "sh"]);
        assert!(code(&output) == 1 && stderr(&output).contains("read-only"), "{}", stderr(&output));
    });
}

#[test]
fn a_right_that_is_missing_for_one_run_costs_nothing() {
    goes_on_after(|_| ());
}

/// As where a part of DEST has a quota of its own, or is another file system.
#[test]
fn where_a_part_of_the_destination_has_no_room_it_is_named() {
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root");
    }
    for (options, what) in [("size=64k", "no space left"), ("ro", "read-only")] {
        for (name, bytes) in [("small", 100 << 10), ("big", 6 << 20)] {
            let bed = Bed::new();
            bed.write(&format!("tree/part/{name}"), &vec![7; bytes]);
            bed.write("tree/other", b"content");
            let part = bed.path("there/part");
            fs::create_dir_all(&part).unwrap();
            let mount =
                Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(&part).status();
            assert!(mount.unwrap().success());
            let far = format!("localhost:{}", bed.path("there").display());
            let from = format!("localhost:{}/.", bed.path("tree").display());
            let ends: [&[&str]; 2] = [&["-r", "tree/.", &far], &["-r", &from, "there"]];
            let mut outputs = vec![bed.haul(&["cp", "-r", "tree/.", "there"])];
            outputs.extend(ends.iter().map(|arguments| with_two_ends(&bed, arguments)));
            assert!(Command::new("umount").arg(&part).status().unwrap().success());
            for output in outputs {
                let text = stderr(&output);
                assert!([1, 3].contains(&code(&output)), "{text}");
                assert!(text.contains(&format!("there/part/{name}: ")) && text.contains(what), "{text}");
            }
        }
    }
}

#[test]
fn an_answer_of_the_other_end_without_a_port_is_no_answer() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let haul = env!("CARGO_BIN_EXE_haul");
    let script = format!("#!/bin/sh\n'{haul}' \"$@\" | sed -u 's/\"port\":[0-9]*/\"port\":0/'\n");
    let far = bed.write("far", script.as_bytes());
    fs::set_permissions(&far, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = bed.command();
    command.args(["cp", "--ssh", &format!("'{haul}' bench shell"), "--haul-path"]).arg(&far).arg("file");
    let began = std::time::Instant::now();
    let output = command.arg(format!("localhost:{}", bed.path("copy").display())).output().unwrap();
    says(&output, 1, &["broke the protocol"]);
    assert!(began.elapsed().as_secs() < 8, "nothing is waited for at port 0: {:?}", began.elapsed());
}

/// Whoever is greeted believes nothing that cannot be.
#[test]
fn a_greeting_that_contradicts_itself_is_refused() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let haul = env!("CARGO_BIN_EXE_haul");
    let shell = format!("'{haul}' bench shell");
    for (replaced, by, said) in [
        ("\"names\":\\[", "\"names\":[null,", "not one name for each SOURCE"),
        ("\"sources\":\\[[^]]*\\]", "\"sources\":[]", "not one name for each SOURCE"),
        ("\"decision\":null", "\"decision\":\"beside\"", "a decision that is not known here"),
    ] {
        let script = format!("#!/bin/sh\nsed -u 's/{replaced}/{by}/' | '{haul}' \"$@\"\n");
        let far = bed.write("far", script.as_bytes());
        fs::set_permissions(&far, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = bed.command();
        command.args(["cp", "--ssh", &shell, "--haul-path"]).arg(&far).arg("file");
        let output = command.arg(format!("localhost:{}", bed.path("copy").display())).output().unwrap();
        says(&output, 1, &[said]);
        assert!(!bed.path("copy").exists(), "{said}");
    }
}
