//! Files of `/sys` and `/proc` beneath a root, each read within bounds.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::OFlags;

use crate::Cpus;

/// What one file says at most: `/proc/stat` of 8192 CPUs with a thousand interrupts.
const FILE_BYTES_MAX: u64 = 2 << 20;
/// Entries of a directory at most.
const ENTRIES_MAX: usize = 16_384;

/// A tree with `sys` and `proc` in it.
pub(crate) struct Tree<'a> {
    root: &'a Path,
}

impl<'a> Tree<'a> {
    pub(crate) fn new(root: &'a Path) -> Tree<'a> {
        Tree { root }
    }

    /// Where a path (without `/` at its beginning) is.
    pub(crate) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// The text of a file. None if it is not there, is none, or cannot be read; then nothing is known.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        text(&self.at(path))
    }

    /// A word or number.
    pub(crate) fn value<T: FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.trim().parse().ok()
    }

    /// A list of CPUs.
    pub(crate) fn cpus(&self, path: impl AsRef<Path>) -> Option<Cpus> {
        self.value(path)
    }

    /// Names in a directory, sorted.
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        names(&self.at(path))
    }

    /// Numbers `n` of entries `<prefix>n` of a directory, upwards.
    pub(crate) fn numbered(&self, path: impl AsRef<Path>, prefix: &str) -> Vec<usize> {
        let number = |name: &String| name.strip_prefix(prefix)?.parse().ok();
        let mut numbers: Vec<usize> = self.names(path).iter().filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }
}

/// As [`Tree::text`], of a path that is known already.
pub(crate) fn text(path: &Path) -> Option<String> {
    // A FIFO in a copied tree must not be waited for.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC).bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Names in a directory, sorted; what is no UTF-8 is no device.
pub(crate) fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().take(ENTRIES_MAX).flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}
