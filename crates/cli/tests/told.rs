//! What haul tells its user is what is so, and helps.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

struct Bed {
    directory: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        let bed = Bed { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(bed.path("home")).unwrap();
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_haul"));
        // An empty home directory, and nothing of the user's settings.
        command
            .current_dir(self.directory.path())
            .env_clear()
            .env("HOME", self.path("home"))
            .env("PATH", std::env::var_os("PATH").unwrap())
            .stdin(Stdio::null());
        command
    }

    fn haul(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().unwrap()
    }

    /// With a far end on this host, through no ssh.
    fn far(&self, arguments: &[&str]) -> Output {
        let haul = env!("CARGO_BIN_EXE_haul");
        let shell = format!("'{haul}' bench shell");
        let [command, rest @ ..] = arguments else { panic!("no command") };
        self.haul(&[&[command, "--ssh", &shell, "--haul-path", haul], rest].concat())
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn no_time_for_another_connection_is_time_enough_for_the_first() {
    let bed = Bed::new();
    bed.write("file", b"content");
    let local = bed.haul(&["cp", "--reconnect", "0", "file", "copy"]);
    assert_eq!(code(&local), 0, "{}", stderr(&local));
    for listen in ["auto", "here"] {
        let there = format!("localhost:{}", bed.path(listen).display());
        let push = bed.far(&["cp", "--reconnect", "0", "--listen", listen, "file", &there]);
        assert_eq!(code(&push), 0, "{listen}: {}", stderr(&push));
        let pull = bed.far(&["cp", "--reconnect", "0", "--listen", listen, &there, "back"]);
        assert_eq!(code(&pull), 0, "{listen}: {}", stderr(&pull));
    }
}
