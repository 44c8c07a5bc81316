//! Commands that differ in nothing but how their paths are typed.
//!
//! `haul cp -r data copy` and, once `copy` is there, `haul cp -r data/ copy/` (what a shell completes) are different commands: the
//! second one would make a whole copy in `copy/data`, beside what is unfinished. Whoever continues does not want that.

use haul_model::{Code, JobId};
use haul_mover::Error;

use crate::job::{About, Record, is_known, places, read_record};
use crate::paths::unhex;

/// Refuses a new transfer where an unfinished one is typed in another way.
pub fn check(id: &JobId, about: &About) -> Result<(), Error> {
    let Ok(places) = places() else { return Ok(()) };
    if places.iter().any(|state| is_known(state, id)) {
        return Ok(());
    }
    let typed = about.sources.iter().chain([&about.destination]).cloned().collect::<Vec<_>>();
    let unfinished = places
        .iter()
        .filter_map(|state| std::fs::read_dir(state.join("jobs")).ok())
        .flat_map(|entries| entries.flatten())
        .filter_map(|entry| read_record(&entry.path()))
        .find(|record| record.can_go_on() && record.recursive == about.recursive && is_alike(record, &typed));
    let Some(record) = unfinished else { return Ok(()) };
    let other = format!("{} -> {}", record.sources.join(" "), record.destination);
    let id = &record.job[..12.min(record.job.len())];
    let error = Error::new(
        Code::Usage,
        format!("an unfinished transfer differs from this one only in how it was typed: {other}"),
    );
    Err(error.hint(format!("type it like that to continue, or forget it: haul stop {id} --discard")))
}

fn is_alike(record: &Record, typed: &[Vec<u8>]) -> bool {
    let known = record.paths.iter().map(|path| unhex(path)).collect::<Option<Vec<_>>>();
    known.is_some_and(|known| all_plain(&known) == all_plain(typed))
}

/// DEST is the last of them: a dot at its end says nothing, either.
fn all_plain(paths: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut plain: Vec<Vec<u8>> = paths.iter().map(|path| self::plain(path)).collect();
    if let Some(destination) = plain.last_mut()
        && destination.ends_with(b"/.")
    {
        destination.truncate(destination.len() - 2);
    }
    plain
}

/// Without what says nothing: `./`, `//`, a slash at the end. A dot at the end of a SOURCE does.
fn plain(path: &[u8]) -> Vec<u8> {
    let last = path.split(|byte| *byte == b'/').count() - 1;
    let mut plain = Vec::with_capacity(path.len());
    for (number, part) in path.split(|byte| *byte == b'/').enumerate() {
        let says_nothing = part.is_empty() && number > 0 || part == b"." && number < last;
        if says_nothing {
            continue;
        }
        // Of another host's path the first part has the host in front.
        let part =
            part.strip_suffix(b".").filter(|host| host.ends_with(b":") && number < last).unwrap_or(part);
        if number > 0 && !plain.ends_with(b":") {
            plain.push(b'/');
        }
        plain.extend_from_slice(part);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_otherwise_is_the_same() {
        let is_same = |one: &str, other: &str| plain(one.as_bytes()) == plain(other.as_bytes());
        for (one, other) in [
            ("/a/b", "/a/b/"),
            ("/a/b", "/a//b//"),
            ("/a/b", "/a/./b"),
            ("/a/b", "/./a/b/"),
            ("host:a/b", "host:a/b/"),
            ("host:a", "host:./a"),
            ("host:/a", "host:/a/"),
            ("host:~/a", "host:~/a//"),
        ] {
            assert!(
                is_same(one, other),
                "{one} {other}: {:?} {:?}",
                plain(one.as_bytes()),
                plain(other.as_bytes())
            );
        }
        for (one, other) in [
            ("/a/b", "/a/c"),
            ("/a/b", "/a/b/."),
            ("/a/..", "/a"),
            ("host:a", "host:/a"),
            ("host:", "host:/"),
            ("host:a", "other:a"),
            ("/a/.b", "/a/b"),
            ("host:.", "host:"),
        ] {
            assert!(!is_same(one, other), "{one} {other}");
        }
    }
}
