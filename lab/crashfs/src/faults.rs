//! Operations that fail, hang or crawl, and syncs that lie.
//!
//! A lying sync answers "done" and does nothing. To a program it is the same as if its own call were missing, so a
//! crash loop must fail with it: that is how each sync of a program is shown to be needed, without editing it.

use std::fmt;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

/// Operations that faults tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Contents of files, read.
    Read,
    /// Contents of files, written, and sizes set.
    Write,
    /// `fsync` and `fdatasync` of files.
    Sync,
    /// `fsync` of directories.
    SyncDirectory,
    /// Files, directories and links made.
    Make,
    /// Names moved.
    Rename,
    /// Names removed.
    Remove,
    /// Attributes set.
    Attributes,
    /// Everything else.
    Other,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 9] = [
        Kind::Read,
        Kind::Write,
        Kind::Sync,
        Kind::SyncDirectory,
        Kind::Make,
        Kind::Rename,
        Kind::Remove,
        Kind::Attributes,
        Kind::Other,
    ];

    /// By its name, as [`fmt::Display`] prints it.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.to_string() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Sync => "sync",
            Kind::SyncDirectory => "sync-directory",
            Kind::Make => "make",
            Kind::Rename => "rename",
            Kind::Remove => "remove",
            Kind::Attributes => "attributes",
            Kind::Other => "other",
        })
    }
}

/// Syncs that are to lie: of files or directories whose last name contains `part` (empty: all of them).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SyncClass {
    /// [`Kind::Sync`] or [`Kind::SyncDirectory`].
    pub kind: Kind,
    /// Part of the name.
    pub part: Vec<u8>,
}

impl SyncClass {
    /// From `file`, `file:PART`, `directory` or `directory:PART`.
    pub fn parse(text: &str) -> Option<SyncClass> {
        let (kind, part) = text.split_once(':').unwrap_or((text, ""));
        let kind = match kind {
            "file" => Kind::Sync,
            "directory" => Kind::SyncDirectory,
            _ => return None,
        };
        Some(SyncClass { kind, part: part.as_bytes().to_vec() })
    }

    fn matches(&self, kind: Kind, name: &[u8]) -> bool {
        self.kind == kind
            && (self.part.is_empty() || name.windows(self.part.len()).any(|window| window == self.part))
    }
}

#[derive(Default)]
struct Rules {
    /// Operations of the kind that still succeed, then the error; forever or once.
    failing: Vec<(Kind, u64, Errno, bool)>,
    hanging: Vec<Kind>,
    slow: Vec<(Kind, Duration)>,
    lying: Vec<SyncClass>,
    powered_off: bool,
}

/// The faults of one mount.
#[derive(Default)]
pub struct Faults {
    rules: Mutex<Rules>,
    released: Condvar,
}

impl Faults {
    /// Called before each operation, holding no lock: may wait, may fail it.
    pub(crate) fn before(&self, kind: Kind) -> Result<(), Errno> {
        let mut rules = self.rules();
        while rules.hanging.contains(&kind) && !rules.powered_off {
            rules = self.released.wait(rules).unwrap_or_else(PoisonError::into_inner);
        }
        if rules.powered_off {
            return Err(Errno::IO);
        }
        let delay = rules.slow.iter().find(|(slow, _)| *slow == kind).map(|(_, delay)| *delay);
        let mut failed = None;
        rules.failing.retain_mut(|(failing, left, errno, once)| {
            if *failing != kind || failed.is_some() {
                return true;
            }
            if *left > 0 {
                *left -= 1;
                return true;
            }
            failed = Some(*errno);
            !*once
        });
        drop(rules);
        if let Some(delay) = delay {
            std::thread::sleep(delay);
        }
        failed.map_or(Ok(()), Err)
    }

    /// May the operation wait? Then it must not do so on a thread that others need.
    pub(crate) fn may_wait(&self, kind: Kind) -> bool {
        let rules = self.rules();
        rules.hanging.contains(&kind) || rules.slow.iter().any(|(slow, _)| *slow == kind)
    }

    /// Does this sync only pretend?
    pub(crate) fn lies(&self, kind: Kind, name: &[u8]) -> bool {
        self.rules().lying.iter().any(|class| class.matches(kind, name))
    }

    /// After `successes` more operations of this kind one fails (`once`), or all do.
    pub fn fail(&self, kind: Kind, successes: u64, errno: Errno, once: bool) {
        self.rules().failing.push((kind, successes, errno, once));
    }

    /// Operations of this kind wait until [`Faults::clear`].
    pub fn hang(&self, kind: Kind) {
        self.rules().hanging.push(kind);
    }

    /// Operations of this kind take so much longer.
    pub fn slow(&self, kind: Kind, delay: Duration) {
        self.rules().slow.push((kind, delay));
    }

    /// Syncs of this class answer and do nothing.
    pub fn lie(&self, class: SyncClass) {
        self.rules().lying.push(class);
    }

    /// Everything fails with `EIO`, also what hangs, until the crash.
    pub fn power_off(&self) {
        self.rules().powered_off = true;
        self.released.notify_all();
    }

    /// Power is back; other faults stay.
    pub(crate) fn power_on(&self) {
        self.rules().powered_off = false;
    }

    /// No more faults; what hangs goes on. Lying syncs stay: a device does not learn honesty.
    pub fn clear(&self) {
        let mut rules = self.rules();
        let lying = std::mem::take(&mut rules.lying);
        *rules = Rules { lying, powered_off: rules.powered_off, ..Rules::default() };
        drop(rules);
        self.released.notify_all();
    }

    fn rules(&self) -> std::sync::MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_operation_fails_once_or_from_then_on() {
        let faults = Faults::default();
        faults.fail(Kind::Write, 2, Errno::NOSPC, true);
        faults.fail(Kind::Sync, 1, Errno::IO, false);
        let writes: Vec<_> = (0..4).map(|_| faults.before(Kind::Write).is_ok()).collect();
        let syncs: Vec<_> = (0..4).map(|_| faults.before(Kind::Sync).is_ok()).collect();
        assert_eq!(writes, [true, true, false, true]);
        assert_eq!(syncs, [true, false, false, false]);
        faults.clear();
        assert!(faults.before(Kind::Sync).is_ok());
    }

    #[test]
    fn a_class_is_a_kind_and_part_of_a_name() {
        let class = SyncClass::parse("file:.haul-").unwrap();
        assert!(class.matches(Kind::Sync, b".haul-0123"));
        assert!(!class.matches(Kind::Sync, b"data"));
        assert!(!class.matches(Kind::SyncDirectory, b".haul-0123"));
        assert!(SyncClass::parse("directory").unwrap().matches(Kind::SyncDirectory, b""));
        assert!(SyncClass::parse("socket").is_none());
    }
}
