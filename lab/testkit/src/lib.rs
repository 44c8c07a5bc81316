//! What tests of several crates share.

use std::ffi::OsStr;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
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
/// with. So where a claim about them ([`cached`], [`cached_eq`]) fails, all is tried anew, a few times. All else fails at once.
pub fn undisturbed(test: impl Fn()) {
    const TRIES: usize = 5;
    for again in 1..TRIES {
        match catch_unwind(AssertUnwindSafe(&test)) {
            Ok(()) => return,
            Err(why) if !why.is::<Disturbed>() => resume_unwind(why),
            Err(_) => {
                let _ = writeln!(std::io::stderr(), "disturbed: {}, {again} of {TRIES}", this_test());
            }
        }
    }
    test();
}

/// Within [`undisturbed`]: so it is in the page cache, or else with these words.
#[macro_export]
macro_rules! cached {
    ($holds:expr $(,)?) => { $crate::cached!($holds, "{}", stringify!($holds)) };
    ($holds:expr, $($words:tt)+) => { if !$holds { $crate::disturbed(&format!($($words)+)) } };
}

/// Within [`undisturbed`]: this is found of the page cache.
#[macro_export]
macro_rules! cached_eq {
    ($found:expr, $expected:expr $(,)?) => { $crate::cached_eq!($found, $expected, "") };
    ($found:expr, $expected:expr, $($words:tt)+) => {{
        let (found, expected) = (&$found, &$expected);
        if *found != *expected {
            $crate::disturbed(&format!("{found:?}, not {expected:?} {}", format!($($words)+)))
        }
    }};
}

struct Disturbed;

/// Ends the test, or this try of it.
#[track_caller]
pub fn disturbed(what: &str) -> ! {
    let _ = writeln!(std::io::stderr(), "{} at {}: {what}", this_test(), std::panic::Location::caller());
    std::panic::panic_any(Disturbed)
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
            cached_eq!(tried.get(), 3, "disturbed twice");
            cached!(tried.get() > 2);
        });
        assert_eq!(tried.get(), 3);
        for (is_of_cache, tries) in [(true, 5), (false, 1)] {
            let tried = Cell::new(0);
            let wrong = || {
                tried.set(tried.get() + 1);
                cached!(!is_of_cache, "always");
                panic!("wrong");
            };
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| undisturbed(wrong)));
            assert!(failed.is_err() && tried.get() == tries, "{}", tried.get());
        }
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
