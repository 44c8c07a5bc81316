//! Commands that differ in nothing but how their paths are typed.
//!
//! `haul cp -r data copy` and, once `copy` is there, `haul cp -r data/ copy/` (what a shell completes) are different commands: the
//! second one would make a whole copy in `copy/data`, beside what is unfinished. Whoever continues does not want that. So a record has,
//! beside the job's id, what that would be if all paths were typed plainly ([`plain_id`]).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use haul_model::{Code, JobId};
use haul_mover::Error;

use crate::job::{Identity, already_running, is_known, places};
use crate::status::known_transfers;

/// Refuses a new transfer where an unfinished one is typed in another way.
pub fn check(id: &JobId, plain_id: &str) -> Result<(), Error> {
    let Ok(places) = places() else { return Ok(()) };
    if places.iter().any(|state| is_known(state, id)) {
        return Ok(());
    }
    let is_alike = |alike: &Option<String>| alike.as_deref() == Some(plain_id);
    let (transfers, _) = known_transfers(&places);
    let found = transfers.into_iter().find(|it| is_alike(&it.record.alike) && it.can_go_on());
    let Some(found) = found else { return Ok(()) };
    if found.running {
        return Err(already_running(&found.directory));
    }
    let record = &found.record;
    let other = format!("{} -> {}", record.sources.join(" "), record.destination);
    let id = &record.job[..12.min(record.job.len())];
    let error = Error::new(
        Code::Usage,
        format!("an unfinished transfer differs from this one only in how it was typed: {other}"),
    );
    Err(error.hint(format!("type it like that to continue, or forget it: haul stop {id} --discard")))
}

/// The id that the same command has if its paths are typed plainly.
pub fn plain_id(identity: &Identity<'_>) -> String {
    let mut sources = Vec::with_capacity(identity.sources.len());
    for (host, path) in &identity.sources {
        // A symlink is copied as a link, and with a slash behind it as what it leads to; of another host nobody knows.
        let may_be_link = identity.recursive && (!host.is_empty() || is_link(path));
        let mut plain = plain(path);
        plain.extend((may_be_link && path.ends_with(b"/")).then_some(b'/'));
        sources.push((*host, plain));
    }
    let (host, destination) = &identity.destination;
    let mut destination = plain(destination);
    // A dot at the end of a SOURCE means what is in it.
    if destination == b"." || destination.ends_with(b"/.") {
        destination.pop();
        destination = plain(&destination);
    }
    let plain =
        Identity { sources, destination: (host, destination), host: identity.host.clone(), ..*identity };
    plain.id().to_string()
}

fn is_link(path: &[u8]) -> bool {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    Path::new(OsStr::from_bytes(&path[..end])).is_symlink()
}

/// Without what says nothing: `./`, `//`, slashes at the end.
fn plain(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
    let last = parts.pop();
    parts.retain(|part| *part != b".");
    let last = last.filter(|last| *last != b"." || !path.ends_with(b"/"));
    let relative = parts.into_iter().chain(last).collect::<Vec<_>>().join(&b'/');
    if path.starts_with(b"/") { [b"/", &relative[..]].concat() } else { relative }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_otherwise_is_the_same() {
        let text = |path: &str| String::from_utf8(plain(path.as_bytes())).unwrap();
        for (typed, expected) in [
            ("/a/b", "/a/b"),
            ("/a/b/", "/a/b"),
            ("//a///b//", "/a/b"),
            ("/./a/./b", "/a/b"),
            ("a/b/", "a/b"),
            ("./a", "a"),
            ("./", ""),
            ("", ""),
            ("/", "/"),
            ("~/a//", "~/a"),
            ("/a/12:/b", "/a/12:/b"),
            ("/a/..", "/a/.."),
            ("/a/.b", "/a/.b"),
            ("/a/b/.", "/a/b/."),
            (".", "."),
        ] {
            assert_eq!(text(typed), expected, "{typed}");
        }
    }

    fn id(sources: &[(&str, &str)], destination: (&str, &str), recursive: bool, preserve: bool) -> String {
        let bytes = |path: &str| path.as_bytes().to_vec();
        let sources = sources.iter().map(|(host, path)| (*host, bytes(path))).collect();
        let destination = (destination.0, bytes(destination.1));
        plain_id(&Identity { sources, destination, recursive, preserve, host: None })
    }

    #[test]
    fn what_means_something_else_is_another_transfer() {
        let known = id(&[("", "/a")], ("host", "b"), true, false);
        for same in [("/a/", "b/"), ("//a", "./b"), ("/./a", "b/."), ("/a//", "b//./")] {
            assert_eq!(id(&[("", same.0)], ("host", same.1), true, false), known, "{same:?}");
        }
        for other in [
            id(&[("", "/a")], ("host", "/b"), true, false),
            id(&[("", "/a")], ("other", "b"), true, false),
            id(&[("", "/a/.")], ("host", "b"), true, false),
            id(&[("", "/a")], ("host", "b"), false, false),
            id(&[("", "/a")], ("host", "b"), true, true),
            id(&[("", "/a"), ("", "/a")], ("host", "b"), true, false),
        ] {
            assert_ne!(other, known);
        }
        // The home directory.
        let homes = ["", ".", "./", "./."].map(|home| id(&[("", "/a")], ("host", home), true, false));
        assert!(homes.iter().all(|home| *home == homes[0]));
        assert_ne!(homes[0], id(&[("", "/a")], ("host", "/"), true, false));
        // Of another host nobody knows what is a link.
        let far = |path| id(&[("host", path)], ("", "/b"), true, false);
        assert_ne!(far("a"), far("a/"));
        assert_eq!(far("./a"), far("a"));
        let scratch = tempfile::tempdir().unwrap();
        let (directory, link) = (scratch.path().join("directory"), scratch.path().join("link"));
        std::fs::create_dir(&directory).unwrap();
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        for (path, recursive, is_same) in
            [(&directory, true, true), (&link, true, false), (&link, false, true)]
        {
            let path = path.to_str().unwrap();
            let ids = [path.to_owned(), format!("{path}/")]
                .map(|it| id(&[("", &it)], ("", "/b"), recursive, false));
            assert_eq!(ids[0] == ids[1], is_same, "{path} {recursive}");
        }
    }
}
