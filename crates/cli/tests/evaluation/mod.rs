//! What the end-to-end tests of the evaluations share: a bed, the command, and what it wrote.

// Each test binary uses a part of it.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An evaluation that writes into a temporary directory.
pub struct Evaluation {
    bed: tempfile::TempDir,
}

impl Evaluation {
    pub fn new() -> Evaluation {
        Evaluation { bed: tempfile::tempdir().unwrap() }
    }

    pub fn haul() -> &'static Path {
        Path::new(env!("CARGO_BIN_EXE_haul"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.bed.path().join(name)
    }

    /// `haul bench ...` with a report and a scratch directory of its own; it must succeed. What it said.
    pub fn run(&self, arguments: &[&str]) -> String {
        self.run_with_programs(Path::new("/nowhere"), arguments)
    }

    /// The same, with the programs of a directory before all others.
    pub fn run_with_programs(&self, directory: &Path, arguments: &[&str]) -> String {
        let output = self.command(directory, arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said
    }

    pub fn command(&self, directory: &Path, arguments: &[&str]) -> Command {
        let all = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(directory.to_owned()).chain(std::env::split_paths(&all));
        let mut command = Command::new(Self::haul());
        command
            .env("PATH", std::env::join_paths(all).unwrap())
            .arg("bench")
            .args(arguments)
            .arg("--report")
            .arg(self.path("report"))
            .arg("--dir")
            .arg(self.path("scratch"))
            .env("HAUL_STREAMS", "1")
            .stdin(Stdio::null());
        command
    }

    /// A file of the report.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path("report").join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The lines of a file of the report that start so.
    pub fn rows(&self, name: &str, start: &str) -> Vec<String> {
        self.read(name).lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
    }

    /// A page has these parts, and its pictures are there: their names.
    pub fn check_page(&self, name: &str, parts: &[&str]) -> Vec<String> {
        let page = self.read(name);
        for part in parts {
            assert!(page.contains(part), "{part} is not in the report");
        }
        let pictures = page.split("](").skip(1).map(|rest| rest.split(')').next().unwrap().to_owned());
        let pictures: Vec<String> = pictures.collect();
        for picture in &pictures {
            assert!(self.read(picture).ends_with("</svg>\n"), "{picture}");
        }
        pictures
    }

    /// Neither files nor mounts are left.
    pub fn check_nothing_left(&self) {
        assert_eq!(fs::read_dir(self.path("scratch")).unwrap().count(), 0, "nothing is left over");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(&*self.bed.path().to_string_lossy()), "{mounts}");
    }
}
