//! What tests of the command have in common: a directory with a home directory in it that is not there yet, and what they ask of an output.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use haul_testkit::alone;

/// Gone with the test.
pub struct Bed {
    pub directory: tempfile::TempDir,
}

impl Bed {
    pub fn new() -> Bed {
        Bed { directory: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// With nothing of the user's settings.
    pub fn command(&self) -> Command {
        alone(env!("CARGO_BIN_EXE_haul"), self.directory.path())
    }

    pub fn haul(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().unwrap()
    }
}

pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// One line for the error, at most one for the hint.
pub fn says(output: &Output, expected: i32, words: &[&str]) {
    let text = stderr(output);
    assert_eq!(code(output), expected, "{text}");
    assert!(text.starts_with("haul: ") && text.lines().count() <= 2, "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text}"));
}
