//! What tests of several crates share.

use std::ffi::OsStr;
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::{Command, Stdio};

/// Files that are on a disk, and of which the best way to read and write them is measured.
pub const DISK: &str = "ext4 or XFS where it is built";
/// `cachestat`.
pub const COUNTED: &str = "a kernel that counts what is in memory (Linux 6.5)";

/// A test cannot show what it is there for, as this machine does not give it that: a developer is told, and the test ends.
/// Where each change is tested (`CI` is set, as `.ci/run` does) it fails: nothing is skipped there.
#[track_caller]
pub fn lacks(what: &str) {
    assert!(std::env::var_os("CI").is_none(), "{} needs {what}", this_test());
    lacks_here(what);
}

/// The same of what depends on where the sources lie, or on the control groups of the session: another place on the same machine
/// may give it. It is told, and fails nowhere.
pub fn lacks_here(what: &str) {
    // Not with `eprintln`: that is kept from those who run tests that pass.
    let _ = writeln!(std::io::stderr(), "skipped: {} needs {what}", this_test());
}

/// What a test finds in the page cache is the kernel's to change: it takes pages away when it likes, and keeps those that it is just busy
/// with. So what fails is tried anew, a few times. What is wrong fails each time.
pub fn undisturbed(test: impl Fn()) {
    const TRIES: usize = 5;
    for again in 1..TRIES {
        if std::panic::catch_unwind(AssertUnwindSafe(&test)).is_ok() {
            return;
        }
        let _ = writeln!(std::io::stderr(), "disturbed: {}, {again} of {TRIES}", this_test());
    }
    test();
}

/// A command in this directory, which has nothing of the user's but the `PATH`: its home directory is `home` there, and need not
/// exist, and what it keeps for a while is there, too.
pub fn alone(program: impl AsRef<OsStr>, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(directory).env_clear().env("HOME", directory.join("home")).env("TMPDIR", directory);
    command.envs(std::env::var_os("PATH").map(|path| ("PATH", path))).stdin(Stdio::null());
    command
}

fn this_test() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{lacks, lacks_here, undisturbed};

    #[test]
    fn what_is_disturbed_is_tried_anew_and_what_is_wrong_fails() {
        let tried = Cell::new(0);
        undisturbed(|| {
            tried.set(tried.get() + 1);
            assert_eq!(tried.get(), 3, "disturbed twice");
        });
        assert_eq!(tried.get(), 3);
        let always = std::panic::catch_unwind(|| undisturbed(|| panic!("wrong")));
        assert!(always.is_err());
    }

    const CHILD: &str = "HAUL_TEST_LACKS";

    #[test]
    fn what_is_skipped_is_told_and_fails_where_changes_are_tested() {
        if std::env::var_os(CHILD).is_some() {
            lacks_here("a place");
            return lacks("a unicorn");
        }
        for is_ci in [false, true] {
            let mut myself = std::process::Command::new(std::env::current_exe().unwrap());
            myself.arg("what_is_skipped").env(CHILD, "1").env_remove("CI");
            if is_ci {
                myself.env("CI", "true");
            }
            let ended = myself.output().unwrap();
            let said = [&ended.stdout[..], &ended.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert_eq!(ended.status.success(), !is_ci, "{said}");
            assert_eq!(said.matches("skipped: ").count(), 1 + usize::from(!is_ci), "{said}");
            assert!(
                said.contains("what_is_skipped_is_told_and_fails_where_changes_are_tested needs a unicorn")
            );
        }
    }
}
