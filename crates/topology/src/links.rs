//! Where links lead, without a question to a server: one that is away would not answer, and has to do with one line of a map only.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use crate::tree::Tree;

/// As many as the kernel follows.
const LINKS_MAX: usize = 40;
/// Without a device, and answered by this host all the same.
const LOCAL: [&str; 7] = ["tmpfs", "ramfs", "rootfs", "devtmpfs", "overlay", "zfs", "bcachefs"];

/// Mounts that somebody else answers for: a server, a daemon, or who mounts it when it is asked for.
#[derive(Clone, Default, Debug)]
pub struct Remote {
    points: Vec<PathBuf>,
}

impl Remote {
    /// Of this process.
    pub fn of(tree: &Tree<'_>) -> Remote {
        Remote::parse(&tree.text("proc/self/mountinfo").unwrap_or_default())
    }

    fn parse(mountinfo: &str) -> Remote {
        let point = |line: &str| {
            let (before, after) = line.split_once(" - ")?;
            let (kind, source) = after.split_once(' ')?;
            let is_local = LOCAL.contains(&kind) || source.starts_with("/dev/");
            let point = before.split(' ').nth(4)?;
            (!is_local).then(|| PathBuf::from(unescaped(point)))
        };
        Remote { points: mountinfo.lines().filter_map(point).collect() }
    }

    /// What an absolute path leads to. Links in mounts of others are taken for directories.
    pub fn followed(&self, path: &Path) -> PathBuf {
        let mut at = PathBuf::from("/");
        let mut rest: VecDeque<OsString> = parts(path).collect();
        let mut links = 0;
        while let Some(part) = rest.pop_front() {
            if part == ".." {
                at.pop();
                continue;
            }
            at.push(part);
            if self.points.contains(&at) {
                at.extend(rest);
                return at;
            }
            if links < LINKS_MAX
                && let Ok(target) = at.read_link()
            {
                links += 1;
                at.pop();
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                parts(&target).rev().for_each(|part| rest.push_front(part));
            }
        }
        at
    }
}

/// Names and `..`.
fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        _ => None,
    })
}

/// The kernel writes blanks as `\040`.
fn unescaped(text: &str) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let escaped =
            behind.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn mounts_of_servers_and_daemons_are_told_from_those_of_this_host() {
        let text = "22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n\
                    23 22 0:20 / /dev/shm rw - tmpfs tmpfs rw\n\
                    24 22 0:30 / /lustre rw - lustre 10.0.0.1@tcp:/fs rw\n\
                    25 22 0:31 / /home/with\\040blank rw - nfs4 server:/home rw\n\
                    26 22 0:32 / /auto rw - autofs /etc/auto.direct rw\n";
        let points: Vec<PathBuf> = ["/lustre", "/home/with blank", "/auto"].map(PathBuf::from).into();
        assert_eq!(Remote::parse(text).points, points);
    }

    #[test]
    fn links_are_followed_up_to_what_somebody_else_answers_for() {
        let bed = tempfile::tempdir().unwrap();
        let bed = bed.path().canonicalize().unwrap();
        let at = |name: &str| bed.join(name);
        std::fs::create_dir_all(at("real/inner")).unwrap();
        symlink(at("real"), at("absolute")).unwrap();
        symlink("absolute/../real/inner", at("relative")).unwrap();
        symlink(at("loop"), at("loop")).unwrap();
        // What is behind it is not looked at.
        symlink(at("real"), at("mounted")).unwrap();
        symlink(at("mounted"), at("leads-there")).unwrap();
        let remote = Remote { points: vec![at("mounted")] };
        for (path, leads_to) in [
            ("absolute/inner", "real/inner"),
            ("relative", "real/inner"),
            ("missing/below", "missing/below"),
            ("mounted/inner", "mounted/inner"),
            ("leads-there/inner", "mounted/inner"),
        ] {
            assert_eq!(remote.followed(&at(path)), at(leads_to), "{path}");
        }
        remote.followed(&at("loop"));
    }
}
