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
    let (ends, unless_link): (&[&'static str], &[&'static str]) =
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
fn typed(identity: &Identity<'_>, ends: &[&'static str], preserve: bool) -> Vec<JobId> {
    let here = std::env::current_dir().unwrap_or_default();
    let here = here.as_os_str().as_bytes();
    let (host, destination) = &identity.destination;
    // A dot at the end of a SOURCE means what is in it; of DEST it says nothing.
    let destination = Typed::of(here, host, destination, true);
    let destinations = ways(host, &["", "/", "/."], std::slice::from_ref(&destination));
    let mut destinations: Vec<_> = destinations.into_iter().map(|way| destination.spelled(way)).collect();
    destinations.sort_unstable();
    destinations.dedup();
    let source = |(host, path): &'_ (&str, Vec<u8>)| Typed::of(here, host, path, false);
    let sources: Vec<_> = identity.sources.iter().map(source).collect();
    let of_sources = identity.sources.first().map_or("", |(host, _)| host);
    let own = identity.id();
    let mut ids = Vec::new();
    for way in ways(of_sources, ends, &sources) {
        let spelled = sources.iter().zip(&identity.sources);
        let spelled: Vec<_> = spelled.map(|(typed, (host, _))| (*host, typed.spelled(way))).collect();
        for destination in &destinations {
            let (sources, destination) = (spelled.clone(), (*host, destination.clone()));
            let host = identity.host.clone();
            ids.push(Identity { sources, destination, host, preserve, ..*identity }.id());
        }
    }
    ids.sort_unstable_by_key(|id| id.0);
    ids.dedup();
    ids.retain(|id| *id != own);
    ids
}

/// What stands before a path and behind it, and which one it is of those that name [`Typed::whole`].
type Way = (&'static str, &'static str, usize);

/// All ways to type these paths of a host, with these ends.
fn ways(host: &str, ends: &[&'static str], paths: &[Typed]) -> Vec<Way> {
    let begins: &[&str] = if host.is_empty() { &["", "./"] } else { &["", "./", "~/"] };
    let wholes = paths.iter().map(|path| path.whole.len()).max().unwrap_or(0).max(1);
    let around = begins.iter().flat_map(|begin| ends.iter().map(move |end| (*begin, *end)));
    around.flat_map(|(begin, end)| (0..wholes).map(move |whole| (begin, end, whole))).collect()
}

/// A path in its parts.
struct Typed {
    /// The working directory and a slash, if the path is in it.
    here: Vec<u8>,
    /// Without `./` or `~/` before and slashes behind.
    plain: Vec<u8>,
    /// It is typed with all that leads to it.
    is_absolute: bool,
    /// On another host, where it is a home directory unless something stands before it.
    is_tilde: bool,
    /// Of what is nothing but such signs, all ways to type it: the directory itself from which others count, or `/`.
    whole: Vec<Vec<u8>>,
}

impl Typed {
    fn of(here: &[u8], host: &str, path: &[u8], is_destination: bool) -> Typed {
        let (is_here, inside) = (host.is_empty(), [here, b"/"].concat());
        let below = match is_here {
            true if is_destination && path == here => Some(&b""[..]),
            true => path.strip_prefix(&inside[..]),
            false => path.strip_prefix(b"~").filter(|below| matches!(below, [] | [b'/', ..])),
        };
        // A SOURCE that is typed as the working directory's path has its name.
        let below =
            below.map(without_slashes).filter(|below| !is_here || is_destination || !below.is_empty());
        let is_absolute = below.is_none() && path.starts_with(b"/");
        let mut plain = below.unwrap_or(path);
        while let Some(rest) = plain.strip_prefix(b"./") {
            plain = without_slashes(rest);
        }
        loop {
            plain = match plain {
                [rest @ .., b'/'] => rest,
                [rest @ .., b'/', b'.'] if is_destination => rest,
                _ => break,
            }
        }
        let is_nothing = plain.is_empty() || plain == b".";
        let (before, signs): (&[u8], &[&str]) = match is_nothing {
            false => (b"", &[]),
            true if is_absolute => (path, &[""]),
            true if !is_here => (b"", &[".", "./", "./.", "~", "~/", "~/."]),
            true if is_destination => (here, &["", "/", "/.", "/./", "/.//", "/./."]),
            true => (&inside, &[".", "./", ".//", "./."]),
        };
        let whole = signs.iter().map(|sign| [before, sign.as_bytes()].concat()).collect();
        let is_tilde = !is_here && plain.starts_with(b"~");
        let here = if is_here && below.is_some() { inside } else { Vec::new() };
        Typed { here, plain: plain.to_vec(), is_absolute, is_tilde, whole }
    }

    fn spelled(&self, (begin, end, whole): Way) -> Vec<u8> {
        if let Some(path) = self.whole.get(whole).or(self.whole.last()) {
            return path.clone();
        }
        let begin = match begin {
            _ if self.is_absolute => "",
            "" if self.is_tilde => "./",
            begin => begin,
        };
        [&self.here, begin.as_bytes(), &self.plain, end.as_bytes()].concat()
    }
}

fn without_slashes(path: &[u8]) -> &[u8] {
    let begin = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    &path[begin..]
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
    fn the_directory_from_which_paths_count_is_found_however_it_is_typed() {
        let here = std::env::current_dir().unwrap();
        let below = |signs: &str| format!("{}{signs}", here.display());
        let at_home = [".", "./", "./.", "~", "~/", "~/."].map(str::to_owned);
        // Whether it is SOURCE, its host, how it is typed, and what is something else.
        let ways: [(bool, &str, Vec<String>, Vec<String>); 4] = [
            (false, "", ["", "/", "/.", "/./", "/.//"].map(below).into(), vec!["/".into(), below("/a")]),
            (
                true,
                "",
                ["/.", "/./", "/.//", "/./."].map(below).into(),
                vec!["/".into(), below(""), below("/"), below("/a/.")],
            ),
            (false, "host", at_home.to_vec(), vec!["/".into(), "/.".into(), "./~".into(), "a".into()]),
            (true, "host", at_home.to_vec(), vec!["/".into(), "/.".into(), "./~".into(), "a/.".into()]),
        ];
        for (is_source, host, typed, others) in &ways {
            let of = |path| match is_source {
                true => identity((host, path), ("", "/b"), true),
                false => identity(("", "/a"), (host, path), true),
            };
            for one in typed {
                for other in typed.iter().filter(|other| *other != one) {
                    assert!(is_alike(&of(one), &of(other)), "{is_source} {host} {one} {other}");
                }
                for other in others {
                    assert!(!is_alike(&of(one), &of(other)), "{is_source} {host} {one} {other}");
                    assert!(!is_alike(&of(other), &of(one)), "{is_source} {host} {other} {one}");
                }
            }
        }
        let far = |path| identity(("", "/a"), ("host", path), true);
        assert!(is_alike(&far("~/a"), &far("a")) && is_alike(&far("./a/"), &far("~/a")));
        assert!(is_alike(&far("~/~a"), &far("./~a")), "a name that begins like that");
        assert!(!is_alike(&far("~/a"), &far("./~/a")) && !is_alike(&far("./~"), &far("~")));
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
