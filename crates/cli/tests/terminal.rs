//! What a transfer looks like on a terminal.

use std::fs;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use haul_testkit::alone;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// What runs the command sees, and what the command writes to.
fn terminal() -> (File, OwnedFd) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs =
        rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    (ours.into(), theirs)
}

#[test]
fn what_ssh_says_does_not_tear_the_progress_line() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    fs::create_dir(path("source")).unwrap();
    fs::write(path("source/big"), vec![5; 6 << 20]).unwrap();
    let haul = env!("CARGO_BIN_EXE_haul");
    // `ssh -G` only asks for a name.
    let ssh = format!(
        "[ \"$1\" = -G ] || for n in 1 2 3 4 5 6 7 8 9; do sleep 0.2; echo banner $n >&2; done &\n\
         exec '{haul}' bench shell \"$@\"\n",
    );
    fs::write(path("ssh"), ssh).unwrap();
    let (mut ours, theirs) = terminal();
    let mut command = alone(haul, scratch.path());
    command.env("TERM", "xterm").args(["cp", "-r", "--bandwidth", "3MB/s", "--haul-path", haul]);
    command.arg("--ssh").arg(format!("sh '{}'", path("ssh").display())).arg(path("source"));
    command.arg(format!("localhost:{}", path("sink").display()));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(theirs).spawn().unwrap();
    // The command keeps what the terminal was opened as; the last one who has it open closes it.
    drop(command);
    let mut seen = Vec::new();
    // EIO is the end of a terminal that nobody has open.
    let _ = ours.read_to_end(&mut seen);
    assert!(child.wait().unwrap().success());
    let seen = String::from_utf8_lossy(&seen).into_owned();
    assert!(seen.contains("MiB"), "there is a progress line: {seen:?}");
    let torn: Vec<&str> = seen
        .match_indices("banner")
        .map(|(at, _)| &seen[..at])
        .filter(|before| {
            !before.is_empty() && !["\n", "\r", "\x1b[2K"].iter().any(|end| before.ends_with(end))
        })
        .collect();
    assert!(seen.matches("banner").count() >= 3, "{seen:?}");
    assert!(torn.is_empty(), "{seen:?}");
    assert!(fs::read(path("sink/big")).unwrap().len() == 6 << 20);
}

/// The prompt stands there, and what is typed behind it.
#[test]
fn a_job_in_the_background_leaves_the_terminal_to_the_shell() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    fs::write(path("file"), vec![5; 6 << 20]).unwrap();
    let copied = |how: &str| {
        let _ = fs::remove_file(path("copy"));
        let (mut ours, theirs) = terminal();
        let mut command = alone("setsid", scratch.path());
        command.env("TERM", "xterm").env("haul", env!("CARGO_BIN_EXE_haul")).args(["--ctty", "bash", "-c"]);
        command.arg(format!("set -m; \"$haul\" cp --bandwidth 3MB/s file copy >told {how}"));
        let errors = theirs.try_clone().unwrap();
        command.stdin(theirs).stdout(Stdio::null()).stderr(errors);
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut seen = Vec::new();
        let _ = ours.read_to_end(&mut seen);
        assert!(child.wait().unwrap().success());
        String::from_utf8_lossy(&seen).into_owned()
    };
    assert!(copied("").contains("MiB"), "it has a progress line");
    let seen = copied("& wait $!");
    assert!(!seen.contains("MiB") && !seen.contains('\x1b'), "{seen:?}");
}
