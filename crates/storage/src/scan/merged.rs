//! SOURCEs whose contents go into one directory (`a/. b/.`), and may hold the same names.
//!
//! Directories of one name become one. Of files only one can arrive: that of the SOURCE that was named first, in every run. The
//! others are named as failed, and not copied over it. Nothing is remembered: what is found in a later SOURCE is looked
//! up in those before it.

use std::os::fd::AsFd;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use super::push_name;
use crate::confine::open_some_directories;
use crate::sink::SourceName;
use crate::source::{Directories, Place, Status};
use haul_model::Kind;

/// How something that is no directory stands to what earlier SOURCEs have where it would arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// They have nothing there.
    Free,
    /// It is the same: it was named twice, or is a hard link.
    Same,
    /// They have another one.
    Other,
}

/// The names of all SOURCEs, where two of them may hold the same ones.
pub(super) struct Merged(Vec<SourceName>);

impl Merged {
    /// None if no two of them can meet.
    pub fn new(names: &[SourceName]) -> Option<Merged> {
        let meet = names.len() > 1 && names.contains(&SourceName::Contents);
        meet.then(|| Merged(names.to_vec()))
    }

    /// Something that is no directory, and stands in this SOURCE under these names.
    pub fn way<'a>(
        &'a self,
        directories: &Directories,
        source: u32,
        below: impl Iterator<Item = &'a [u8]> + Clone,
        place: Place,
    ) -> Way {
        // What it is at the destination.
        let Some(name) = self.0.get(source as usize) else { return Way::Free };
        let path: Vec<&[u8]> = match name {
            SourceName::Named(name) => std::iter::once(name.as_slice()).chain(below).collect(),
            SourceName::Contents => below.collect(),
        };
        let found = (0..source).zip(&self.0).find_map(|(earlier, name)| {
            let root = directories.root(earlier)?;
            let rest = match name {
                SourceName::Named(name) => path.strip_prefix(&[name.as_slice()])?,
                SourceName::Contents => &path,
            };
            let follow = rest.is_empty() && directories.locate_root(root).follow;
            let status = status_below(&root.path, rest, follow).ok()?;
            let is_told = [Kind::File, Kind::Symlink].contains(&status.kind());
            // What is behind a symlink is not that SOURCE's.
            (is_told && leads_there(&root.path, rest)).then(|| status.place())
        });
        match found {
            None => Way::Free,
            Some(it) if it == place => Way::Same,
            Some(_) => Way::Other,
        }
    }
}

/// Is there no symlink on the way to it from the SOURCE?
fn leads_there(root: &[u8], names: &[&[u8]]) -> bool {
    let Some((_, mut above)) = names.split_last() else { return true };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(mut held) = openat(CWD, root, flags, Mode::empty()) else { return false };
    while !above.is_empty() {
        let Ok((reached, count)) = open_some_directories(held.as_fd(), above) else { return false };
        (held, above) = (reached, &above[count..]);
    }
    true
}

/// What stands below a SOURCE, however long the path is.
fn status_below(root: &[u8], names: &[&[u8]], follow: bool) -> Result<Status, Errno> {
    let joined = |path: &[u8], names: &[&[u8]]| {
        let mut path = path.to_vec();
        names.iter().for_each(|name| push_name(&mut path, name));
        path
    };
    match Status::of_name(CWD, joined(root, names), follow) {
        // A system call takes 4095 bytes.
        Err(Errno::NAMETOOLONG) => {}
        other => return other,
    }
    let (last, above) = names.split_last().ok_or(Errno::NAMETOOLONG)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut held = openat(CWD, root, flags, Mode::empty())?;
    // Of 255 bytes at most each, on the file systems that there are.
    for some in above.chunks(NAMES_AT_ONCE) {
        held = openat(&held, joined(b"", some), flags, Mode::empty())?;
    }
    Status::of_name(&held, *last, false)
}

/// Names that make no path which is too long.
const NAMES_AT_ONCE: usize = 4095 / 256;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use haul_model::{Code, Item};

    use super::*;
    use crate::scan::{Scan, Scanned};
    use crate::source::{PosixSource, Root, SourceOptions};

    /// What is told of SOURCEs with these names: entries that are no directories, and the errors.
    fn told(top: &Path, sources: &[(&str, Option<&str>)]) -> (usize, Vec<(String, Code)>) {
        let root =
            |(path, _): &(&str, Option<&str>)| Root::with_label(top.join(path).to_str().unwrap(), *path);
        let name = |(_, name): &(&str, Option<&str>)| match name {
            Some(name) => SourceName::Named(name.as_bytes().to_vec()),
            None => SourceName::Contents,
        };
        let names: Vec<SourceName> = sources.iter().map(name).collect();
        let source = PosixSource::new(sources.iter().map(root).collect(), SourceOptions::default());
        let mut scan = source.scan(Arc::new(AtomicU64::new(1))).named(&names);
        let (mut found, mut others, mut errors) = (Vec::new(), 0, Vec::new());
        while scan.next(&mut found) {}
        for it in found {
            match it {
                Scanned::Error { path, failure } => {
                    errors.push((String::from_utf8(path).unwrap(), failure.code));
                }
                Scanned::Item(Item::Entry(entry)) => others += usize::from(entry.kind != Kind::Directory),
                Scanned::Item(_) => {}
            }
        }
        errors.sort_by(|one: &(String, Code), other| one.0.cmp(&other.0));
        (others, errors)
    }

    fn fails(paths: &[&str]) -> Vec<(String, Code)> {
        paths.iter().map(|path| ((*path).to_owned(), Code::SourceTwice)).collect()
    }

    #[test]
    fn files_below_a_path_that_no_system_call_takes_are_seen_to_meet() {
        let scratch = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let name = [b'd'; 250];
        for top in ["t", "u"] {
            std::fs::create_dir(scratch.path().join(top)).unwrap();
            let mut held = openat(CWD, scratch.path().join(top), flags, Mode::empty()).unwrap();
            for _ in 0..20 {
                rustix::fs::mkdirat(&held, &name[..], Mode::RWXU).unwrap();
                held = openat(&held, &name[..], flags, Mode::empty()).unwrap();
            }
            for file in ["both", top] {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
                openat(&held, file, flags, Mode::RWXU).unwrap();
            }
        }
        let (others, errors) = told(scratch.path(), &[("t/.", None), ("u/.", None)]);
        let [(path, Code::SourceTwice)] = &errors[..] else { panic!("{errors:?}") };
        assert!(path.starts_with("u/./d") && path.ends_with("d/both"), "{path}");
        assert_eq!(others, 3);
    }

    #[test]
    fn of_files_that_would_be_one_the_first_is_told_and_the_others_are_named() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path();
        for directory in ["t/both", "u/both", "u/f/below", "v/both"] {
            std::fs::create_dir_all(top.join(directory)).unwrap();
        }
        for file in
            ["t/one", "t/both/deep", "t/f", "u/two", "u/both/deep", "u/both/own", "v/one", "v/both/own"]
        {
            std::fs::write(top.join(file), file).unwrap();
        }
        symlink("nowhere", top.join("t/link")).unwrap();
        symlink("elsewhere", top.join("v/link")).unwrap();
        assert_eq!(told(top, &[("t/.", None)]), (4, vec![]));
        assert_eq!(told(top, &[("t/.", None), ("u/.", None)]), (4 + 2, fails(&["u/./both/deep"])));
        let three = [("t/.", None), ("u/.", None), ("v/.", None)];
        assert_eq!(told(top, &three), (6, fails(&["u/./both/deep", "v/./both/own", "v/./link", "v/./one"])));
        // Under a name of its own each stands apart, unless another one's contents have that name.
        assert_eq!(told(top, &[("t", Some("t")), ("u", Some("u"))]), (4 + 3, vec![]));
        assert_eq!(told(top, &[("t/one", Some("one")), ("v/.", None)]), (1 + 2, fails(&["v/./one"])));
        assert_eq!(told(top, &[("v/.", None), ("t/one", Some("one"))]), (3, fails(&["t/one"])));
        assert_eq!(told(top, &[("t/both", Some("both")), ("u/.", None)]), (1 + 2, fails(&["u/./both/deep"])));
        assert_eq!(told(top, &[("u/.", None), ("t/both", Some("both"))]), (3, fails(&["t/both/deep"])));
        // The sink says what it thinks of a directory and a file of one name.
        assert_eq!(told(top, &[("u/.", None), ("t/f", Some("f"))]), (3 + 1, vec![]));
        // A file that is named twice is no other one, nor is a hard link: once is enough.
        assert_eq!(told(top, &[("v/.", None), ("v/.", None)]), (3, vec![]));
        std::fs::create_dir_all(top.join("w/both")).unwrap();
        std::fs::hard_link(top.join("v/both/own"), top.join("w/both/own")).unwrap();
        assert_eq!(told(top, &[("v/.", None), ("w/.", None)]), (3, vec![]));
        // Of what the user names the other end hears each time.
        assert_eq!(told(top, &[("v/.", None), ("v/one", Some("one"))]), (3 + 1, vec![]));
        // What a symlink leads to is not in the SOURCE that has it.
        std::fs::create_dir_all(top.join("x/led")).unwrap();
        std::fs::write(top.join("x/led/own"), "other").unwrap();
        std::fs::create_dir_all(top.join("y")).unwrap();
        symlink("../v/both", top.join("y/led")).unwrap();
        assert_eq!(told(top, &[("y/.", None), ("x/.", None)]), (1 + 1, vec![]));
    }
}
