//! The same by text: one command a line in, one answer a line out, beginning with `ok` or `error`.
//!
//! | command | what it does |
//! |---|---|
//! | `crash SEED [MOOD]` | power is lost and comes back; answers what was lost |
//! | `power-off` | everything fails with EIO until the crash |
//! | `sync` | everything becomes durable |
//! | `stats` | counters |
//! | `space BYTES` or `space off` | writes beyond it find no space |
//! | `fail KIND N ERRNO [once]` | after N more operations of the kind, fail |
//! | `hang KIND` | operations of the kind wait until `clear` |
//! | `slow KIND MICROSECONDS` | they take so much longer |
//! | `lie file[:PART]` or `lie directory[:PART]` | syncs of these answer and do nothing |
//! | `clear` | no more faults (lies stay) |

use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::io::Errno;

use crate::disk::Mood;
use crate::faults::{Kind, SyncClass};
use crate::handle::CrashFs;

/// Answers every connection until the listener fails.
pub fn serve(filesystem: &CrashFs, listener: &UnixListener) {
    let filesystem = filesystem.clone();
    haul_fuse::control::serve(listener, move |line: &str| execute(&filesystem, line));
}

/// Runs one command; the text is for people.
pub fn execute(filesystem: &CrashFs, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let faults = filesystem.faults();
    let done = Ok(String::new());
    match words[..] {
        ["crash", seed] => Ok(filesystem.crash(number(seed)?, None).to_string()),
        ["crash", seed, mood] => {
            let mood = Mood::from_name(mood).ok_or_else(|| format!("no mood {mood:?}"))?;
            Ok(filesystem.crash(number(seed)?, Some(mood)).to_string())
        }
        ["power-off"] => {
            faults.power_off();
            done
        }
        ["sync"] => {
            filesystem.sync_all();
            done
        }
        ["stats"] => Ok(filesystem.statistics().to_string()),
        ["space", "off"] => {
            filesystem.set_space(None);
            done
        }
        ["space", bytes] => {
            filesystem.set_space(Some(number(bytes)?));
            done
        }
        ["fail", what, successes, errno] => {
            faults.fail(kind(what)?, number(successes)?, error_number(errno)?, false);
            done
        }
        ["fail", what, successes, errno, "once"] => {
            faults.fail(kind(what)?, number(successes)?, error_number(errno)?, true);
            done
        }
        ["hang", what] => {
            faults.hang(kind(what)?);
            done
        }
        ["slow", what, micros] => {
            faults.slow(kind(what)?, Duration::from_micros(number(micros)?));
            done
        }
        ["lie", class] => {
            faults.lie(SyncClass::parse(class).ok_or_else(|| format!("no class {class:?}"))?);
            done
        }
        ["clear"] => {
            faults.clear();
            done
        }
        _ => Err(format!("no command {line:?}")),
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

fn kind(text: &str) -> Result<Kind, String> {
    Kind::from_name(text).ok_or_else(|| {
        let names: Vec<_> = Kind::ALL.iter().map(ToString::to_string).collect();
        format!("{text:?} is none of {}", names.join(" "))
    })
}

fn error_number(text: &str) -> Result<Errno, String> {
    Ok(match text {
        "EIO" => Errno::IO,
        "ENOSPC" => Errno::NOSPC,
        "EDQUOT" => Errno::DQUOT,
        "EROFS" => Errno::ROFS,
        "ESTALE" => Errno::STALE,
        "EACCES" => Errno::ACCESS,
        _ => return Err(format!("{text:?} is none of EIO ENOSPC EDQUOT EROFS ESTALE EACCES")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_the_table_is_understood_and_nothing_else() {
        let filesystem = CrashFs::new(1);
        for line in [
            "crash 1",
            "crash 1 names-without-data",
            "power-off",
            "sync",
            "stats",
            "space 4096",
            "space off",
            "fail write 3 ENOSPC",
            "fail sync-directory 0 EIO once",
            "hang sync",
            "slow read 10",
            "lie file:.haul-",
            "lie directory",
            "clear",
        ] {
            assert!(execute(&filesystem, line).is_ok(), "{line}");
        }
        for line in
            ["", "crash", "crash x", "crash 1 happy", "fail write 3 EWHAT", "hang sleep", "lie socket"]
        {
            assert!(execute(&filesystem, line).is_err(), "{line}");
        }
    }
}
