//! What could not be listed at the source, so that the sink leaves alone what is unfinished there.

use alloc::boxed::Box;

use hashbrown::HashSet;
use haul_model::{Code, Failure};

/// Bytes of paths that are kept; beyond that it may be anything.
const BYTES_MAX: usize = 1 << 20;

/// Directories of which something may be missing among what was announced.
#[derive(Default)]
pub struct Unlisted {
    paths: HashSet<Box<[u8]>>,
    bytes: usize,
    /// There were too many to tell.
    may_be_any: bool,
}

impl Unlisted {
    /// NOTICE: the path could not be read. It may be a directory, or in one.
    pub fn add(&mut self, path: &[u8], failure: Failure) {
        // What is only of another kind has no contents.
        if failure.code == Code::UnsupportedKind || self.may_be_any {
            return;
        }
        let parent = path.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |slash| &path[..slash]);
        for path in [path, parent] {
            if !self.paths.contains(path) {
                self.bytes += path.len() + size_of::<Box<[u8]>>();
                self.paths.insert(path.into());
            }
        }
        self.may_be_any |= self.bytes > BYTES_MAX || path.len() >= crate::directories::TOLD_BYTES_MAX;
        if self.may_be_any {
            self.paths = HashSet::new();
        }
    }

    /// Everything was listed.
    pub fn is_nothing(&self) -> bool {
        self.paths.is_empty() && !self.may_be_any
    }

    /// May something be missing of what was announced in the directory of this path?
    pub fn may_be_in(&self, path: impl FnOnce() -> alloc::vec::Vec<u8>) -> bool {
        self.may_be_any || !self.paths.is_empty() && self.paths.contains(&*path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    const CLOSED: Failure = Failure::new(Code::SourcePermission);

    fn is_in(unlisted: &Unlisted, path: &str) -> bool {
        unlisted.may_be_in(|| path.as_bytes().to_vec())
    }

    #[test]
    fn it_is_in_what_could_not_be_read_and_in_what_holds_that() {
        let mut unlisted = Unlisted::default();
        assert!(unlisted.is_nothing() && !is_in(&unlisted, "top"));
        unlisted.add(b"top/fifo", Code::UnsupportedKind.into());
        assert!(unlisted.is_nothing());
        unlisted.add(b"top/a/b", CLOSED);
        assert!(!unlisted.is_nothing());
        for (path, is) in
            [("top/a/b", true), ("top/a", true), ("top", false), ("top/a/c", false), ("", false)]
        {
            assert_eq!(is_in(&unlisted, path), is, "{path:?}");
        }
        unlisted.add(b"gone", CLOSED);
        assert!(is_in(&unlisted, ""), "DEST itself");
    }

    #[test]
    fn of_too_many_it_may_be_anywhere() {
        let mut unlisted = Unlisted::default();
        for number in 0u32..40_000 {
            unlisted.add(&[b"top/".to_vec(), vec![b'x'; 30], number.to_le_bytes().to_vec()].concat(), CLOSED);
        }
        assert!(is_in(&unlisted, "elsewhere") && !unlisted.is_nothing() && unlisted.paths.is_empty());
        let mut unlisted = Unlisted::default();
        unlisted.add(&Vec::from([b'x'; crate::directories::TOLD_BYTES_MAX]), CLOSED);
        assert!(is_in(&unlisted, "elsewhere"), "of a path whose beginning is not told");
    }
}
