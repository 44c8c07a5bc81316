//! The binary.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::eventually;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

struct Program {
    child: Child,
    directory: TempDir,
}

impl Program {
    /// With three targets; ends with the test whatever happens.
    fn start(more: &[&str]) -> Program {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("mount")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_stripefs"));
        command.arg(path("mount")).arg("--targets").args([path("t0"), path("t1"), path("t2")]);
        command.arg("--control").arg(path("control")).arg("--trace").arg(path("trace")).args(more);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("mounted "), "{line:?}");
        Program { child, directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn control(&self, words: &[&str]) -> std::process::Output {
        let program = Command::new(env!("CARGO_BIN_EXE_stripefs"));
        let mut command = program;
        command.arg("ctl").arg(self.path("control")).args(words).output().unwrap()
    }

    /// It ended by itself, and left nothing.
    fn ended(mut self) {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success());
        assert!(!is_mounted(&self.path("mount")) && !self.path("control").exists());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if is_mounted(&self.path("mount")) {
            haul_fuse::detach(&self.path("mount"));
        }
    }
}

fn is_mounted(path: &Path) -> bool {
    fs::read_to_string("/proc/self/mountinfo").unwrap().contains(path.to_str().unwrap())
}

#[test]
fn it_mounts_answers_commands_traces_and_ends_with_its_input() {
    let more = ["--stripe-count", "-1", "--stripe-size", "64KiB", "--pool", "pair=0,2"];
    let mut program = Program::start(&more);
    fs::write(program.path("mount/f"), vec![1; 200_000]).unwrap();
    assert_eq!(fs::read(program.path("mount/f")).unwrap().len(), 200_000);
    let answer = program.control(&["target", "1", "latency=1ms"]);
    assert!(answer.status.success() && answer.stdout.is_empty());
    let answer = program.control(&["target", "9", "hang"]);
    assert!(!answer.status.success() && String::from_utf8(answer.stderr).unwrap().contains("\"9\""));
    let answer = program.control(&["stats"]);
    let statistics: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!(statistics["targets"].as_array().unwrap().len(), 3);
    let trace = fs::read_to_string(program.path("trace")).unwrap();
    let mut lines = trace.lines();
    assert_eq!(lines.next(), Some("start,end,target,inode,offset,bytes,rw"));
    let mut sums = [[0u64; 3]; 2];
    for line in lines {
        let fields: Vec<_> = line.split(',').collect();
        let (start, end): (f64, f64) = (fields[0].parse().unwrap(), fields[1].parse().unwrap());
        assert!(start <= end && fields.len() == 7, "{line}");
        let target: usize = fields[2].parse().unwrap();
        sums[usize::from(fields[6] == "w")][target] += fields[5].parse::<u64>().unwrap();
    }
    assert_eq!(sums, [[68_928, 65_536, 65_536]; 2]);
    drop(program.child.stdin.take());
    program.ended();
}

#[test]
fn it_ends_on_a_signal_also_while_a_target_hangs() {
    let program = Program::start(&[]);
    fs::write(program.path("mount/f"), b"x").unwrap();
    assert!(program.control(&["target", "all", "hang"]).status.success());
    let path = program.path("mount/f");
    let reader = std::thread::spawn(move || fs::read(path));
    let waits = || {
        let statistics: serde_json::Value =
            serde_json::from_slice(&program.control(&["stats"]).stdout).unwrap();
        let queues = statistics["targets"].as_array().unwrap().iter();
        queues.map(|target| target["queue"].as_u64().unwrap()).sum::<u64>() > 0
    };
    eventually("the reader waits", waits);
    let pid = Pid::from_raw(program.child.id() as i32).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    program.ended();
    let _ = reader.join().unwrap();
}

#[test]
fn wrong_arguments_are_refused_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    for (more, reason) in [
        (vec!["--stripe-size", "65537"], "64 KiB"),
        (vec!["--pool", "p=7"], "\"7\""),
        (vec!["--pool", "p"], "NAME=TARGETS"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stripefs"));
        command.args([directory.path().as_os_str(), OsStr::new("--targets")]).arg(directory.path().join("t"));
        let output = command.args(more).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(reason), "{text}");
    }
}
