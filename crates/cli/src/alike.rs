//! Commands that differ in nothing but how their paths are typed, or in `-p`.
//!
//! `haul cp -r data copy` and, once `copy` is there, `haul cp -r data/ copy/` (what a shell completes), or `haul cp -rp data copy`, are
//! different commands: the second one would make a whole copy in `copy/data`, beside what is unfinished. Whoever continues does not want
//! that.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use haul_model::{Code, JobId};
use haul_mover::Error;

use crate::job::{Identity, already_running, directory, known, places, read_record};
use crate::status::{self, Found};

/// What a command would be, if it were typed in other ways.
#[derive(Clone, Debug)]
pub struct Otherwise {
    /// It has this, and those of the next have not.
    preserve: bool,
    /// That differ in `-p`, and may in how their paths are typed.
    with_other_attributes: Vec<JobId>,
    /// Both: also unless SOURCE is a symlink.
    with_others_unless_link: Vec<JobId>,
    /// That mean the same.
    same: Vec<JobId>,
    /// That mean the same unless SOURCE, which is on another host, is a symlink: a transfer of several files was none of one.
    same_unless_link: Vec<JobId>,
}

/// Refuses a new transfer where an unfinished one is typed in one of these ways.
pub fn check(id: &JobId, otherwise: &Otherwise) -> Result<(), Error> {
    let Ok(places) = places() else { return Ok(()) };
    // One that ended before it found anything is no reason to begin it now.
    let has_found = |found: &Found| found.record.files_total > 0 || found.state() == "done";
    if latest(&places, id).is_some_and(|found| found.running || has_found(&found)) {
        return Ok(());
    }
    let Otherwise { same, same_unless_link, with_other_attributes, with_others_unless_link, .. } = otherwise;
    for other in
        [same, same_unless_link, with_other_attributes, with_others_unless_link].into_iter().flatten()
    {
        // What it has made nobody can tell.
        let mut records = places.iter().map(|state| known(&directory(state, other)));
        if let Some(Err(damaged)) =
            records.find(|known| known.as_ref().is_err_and(|error| error.failure.errno == 0))
        {
            return Err(damaged);
        }
    }
    let unfinished = |other: &JobId| latest(&places, other).filter(Found::can_go_on);
    let no_link = |others: &[JobId]| {
        let mut found = others.iter().filter_map(&unfinished);
        // A session that has just begun has counted nothing yet; the record is of the one before.
        let before = |found: &Found| read_record(&found.directory).map_or(0, |record| record.files_total);
        found.find(|found| found.record.files_total.max(before(found)) > 1)
    };
    let typed = same.iter().find_map(unfinished).or_else(|| no_link(same_unless_link));
    let (differs, how) = match (&typed, otherwise.preserve) {
        (Some(_), _) => ("only in how it was typed", "type it like that"),
        (None, true) => ("in having no -p", "leave -p out"),
        (None, false) => ("in having -p", "add -p"),
    };
    let with_others = || with_other_attributes.iter().find_map(unfinished);
    let found = typed.or_else(with_others).or_else(|| no_link(with_others_unless_link));
    let Some(found) = found else { return Ok(()) };
    if found.running {
        return Err(already_running(&found.directory));
    }
    let record = &found.record;
    let other = format!("{} -> {}", record.sources.join(" "), record.destination);
    let id = &record.job[..12.min(record.job.len())];
    let about = format!("an unfinished transfer differs from this one {differs}: {other}");
    let hint = format!("{how} to continue, or forget it: haul stop {id} --discard");
    Err(Error::new(Code::Usage, about).hint(hint))
}

/// A transfer may be known at two places.
fn latest(places: &[PathBuf], id: &JobId) -> Option<Found> {
    let found = places.iter().filter_map(|state| status::at(directory(state, id)));
    found.max_by_key(|found| (found.running, found.record.updated))
}

/// The same command with its paths typed in other ways: with a slash at the end or without, with `./` before or without. All SOURCEs in the
/// same way, as they mostly come from one pattern.
pub fn typed_otherwise(identity: &Identity<'_>) -> Otherwise {
    // A symlink is copied as a link, and with a slash behind it as what it leads to; of another host nobody knows.
    let may_be_link = |(host, path): &(&str, Vec<u8>)| !host.is_empty() || is_link(path);
    let slash = identity.sources.first().is_some_and(|(_, path)| path.ends_with(b"/"));
    let is_one_elsewhere = matches!(&identity.sources[..], [(host, _)] if !host.is_empty());
    let (ends, unless_link): (&[&str], &[&str]) =
        match identity.recursive && identity.sources.iter().any(may_be_link) {
            false => (&["", "/"], &[]),
            true if slash => (&["/"], if is_one_elsewhere { &[""] } else { &[] }),
            true => (&[""], &[]),
        };
    let Identity { preserve, .. } = *identity;
    Otherwise {
        preserve,
        with_other_attributes: typed(identity, ends, !preserve),
        with_others_unless_link: typed(identity, unless_link, !preserve),
        same: typed(identity, ends, preserve),
        same_unless_link: typed(identity, unless_link, preserve),
    }
}

/// With these ends of SOURCEs, and `-p` or not.
fn typed(identity: &Identity<'_>, ends: &[&str], preserve: bool) -> Vec<JobId> {
    let here = std::env::current_dir().unwrap_or_default();
    let here = here.as_os_str().as_bytes();
    let (host, destination) = &identity.destination;
    // A dot at the end of a SOURCE means what is in it; of DEST it says nothing.
    let destination = Typed::of(here, host, destination, true);
    let source = |(host, path): &'_ (&str, Vec<u8>)| Typed::of(here, host, path, false);
    let sources: Vec<_> = identity.sources.iter().map(source).collect();
    let own = identity.id();
    let mut ids = Vec::new();
    for begin in ["", "./"] {
        for end in ends {
            let mut spelled = Vec::with_capacity(sources.len());
            for (typed, (host, _)) in sources.iter().zip(&identity.sources) {
                spelled.push((*host, typed.spelled(begin, end)));
            }
            for begin in ["", "./"] {
                for end in ["", "/", "/."] {
                    let destination = (*host, destination.spelled(begin, end));
                    let (sources, host) = (spelled.clone(), identity.host.clone());
                    ids.push(Identity { sources, destination, host, preserve, ..*identity }.id());
                }
            }
        }
    }
    ids.sort_unstable_by_key(|id| id.0);
    ids.dedup();
    ids.retain(|id| *id != own);
    ids
}

/// A path in its parts.
struct Typed {
    /// The working directory and a slash, if the path is in it.
    here: Vec<u8>,
    /// Without `./` before and slashes behind.
    plain: Vec<u8>,
    /// It is typed with all that leads to it, or is nothing but such signs.
    is_fixed: [bool; 2],
}

impl Typed {
    fn of(here: &[u8], host: &str, path: &[u8], ends_in_dot: bool) -> Typed {
        let here = [here, b"/"].concat();
        let below = path.strip_prefix(&here[..]).filter(|_| host.is_empty());
        let mut plain = below.unwrap_or(path);
        while let Some(rest) = plain.strip_prefix(b"./") {
            plain = rest;
            while let [b'/', rest @ ..] = plain {
                plain = rest;
            }
        }
        loop {
            plain = match plain {
                [rest @ .., b'/'] => rest,
                [rest @ .., b'/', b'.'] if ends_in_dot => rest,
                _ => break,
            }
        }
        let is_nothing = plain.is_empty() || plain == b".";
        let here = if below.is_some() { here } else { Vec::new() };
        let plain = if is_nothing { below.unwrap_or(path) } else { plain };
        Typed { here, plain: plain.to_vec(), is_fixed: [is_nothing || plain.starts_with(b"/"), is_nothing] }
    }

    fn spelled(&self, begin: &str, end: &str) -> Vec<u8> {
        let [begin, end] = [(begin, self.is_fixed[0]), (end, self.is_fixed[1])]
            .map(|(sign, is_fixed)| if is_fixed { "" } else { sign });
        [&self.here, begin.as_bytes(), &self.plain, end.as_bytes()].concat()
    }
}

fn is_link(path: &[u8]) -> bool {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    Path::new(OsStr::from_bytes(&path[..end])).is_symlink()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity<'a>(source: (&'a str, &str), destination: (&'a str, &str), recursive: bool) -> Identity<'a> {
        let bytes = |path: &str| path.as_bytes().to_vec();
        let (sources, destination) =
            (vec![(source.0, bytes(source.1))], (destination.0, bytes(destination.1)));
        Identity { sources, destination, recursive, preserve: false, host: Some(b"here".to_vec()) }
    }

    fn is_alike(one: &Identity<'_>, other: &Identity<'_>) -> bool {
        typed_otherwise(one).same.contains(&other.id())
    }

    #[test]
    fn what_means_the_same_is_found_however_it_is_typed_and_nothing_else() {
        let here = std::env::current_dir().unwrap();
        let here = |path: &str| format!("{}/{path}", here.display());
        let of = |source: &str, to: &str| (here(source), to.to_owned());
        let typed = [
            of("a", "b"),
            of("a/", "b"),
            of("./a", "b/"),
            of("./a/", "./b"),
            of("a", "./b/"),
            of("a/", "b/."),
            of("a//", "b//"),
        ];
        for (number, (source, to)) in typed.iter().enumerate() {
            let one = identity(("", source), ("host", to), true);
            for (other, (source, to)) in typed.iter().enumerate() {
                let other_one = identity(("", source), ("host", to), true);
                // Whoever types two slashes types one the next time.
                if number != other && other < 6 {
                    assert!(is_alike(&one, &other_one), "{:?} {:?}", typed[number], typed[other]);
                }
            }
            for (source, to, recursive) in [
                (&*here("a/."), "b", true),
                (&here("c"), "b", true),
                (&here("a"), "/b", true),
                (&here("a"), "b", false),
                ("/a", "b", true),
            ] {
                assert!(!is_alike(&one, &identity(("", source), ("host", to), recursive)), "{source} {to}");
            }
            let source = here("a");
            assert!(!is_alike(&one, &identity(("", &source), ("other", "b"), true)));
            let known = identity(("", &source), ("host", "b"), true);
            assert!(!is_alike(&one, &Identity { host: None, ..known }), "on another host");
            let known = identity(("", &source), ("host", "b"), true);
            let preserves = Identity { preserve: true, ..known };
            assert!(!is_alike(&one, &preserves));
            assert!(
                typed_otherwise(&one).with_other_attributes.contains(&preserves.id()),
                "of that it is told"
            );
        }
        // A home directory is nobody's root.
        let home = |path| identity(("", "/a"), ("host", path), true);
        assert!(["/", "/.", "//"].iter().all(|root| !is_alike(&home(""), &home(root))));
    }

    #[test]
    fn a_slash_behind_what_may_be_a_link_says_something() {
        let far = |path| identity(("host", path), ("", "/b"), true);
        assert!(!is_alike(&far("a"), &far("a/")) && !is_alike(&far("a/"), &far("a")));
        let unless_link = |one: &Identity<'_>, other: &Identity<'_>| {
            typed_otherwise(one).same_unless_link.contains(&other.id())
        };
        assert!(unless_link(&far("a/"), &far("a")) && unless_link(&far("./a/"), &far("a")));
        assert!(!unless_link(&far("a"), &far("a/")), "it may have been one");
        assert!(is_alike(&far("./a"), &far("a")));
        let scratch = tempfile::tempdir().unwrap();
        let (directory, link) = (scratch.path().join("directory"), scratch.path().join("link"));
        std::fs::create_dir(&directory).unwrap();
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        for (path, recursive, is_same) in
            [(&directory, true, true), (&link, true, false), (&link, false, true)]
        {
            let path = path.to_str().unwrap();
            let slashed = format!("{path}/");
            let ids = [path, &slashed].map(|path| identity(("", path), ("", "/b"), recursive));
            assert_eq!(is_alike(&ids[0], &ids[1]), is_same, "{path} {recursive}");
            assert_eq!(is_alike(&ids[1], &ids[0]), is_same, "{path} {recursive}");
        }
    }
}
