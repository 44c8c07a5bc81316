//! What a test holds of a crash file system.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::disk::{CrashReport, Disk, Mood, Time};
use crate::faults::Faults;

struct Shared {
    disk: Mutex<Disk>,
    faults: Faults,
    crashes: Mutex<(u64, CrashReport)>,
}

/// One crash file system; clones are the same one. It outlives its mount, so it can be unmounted and mounted again.
#[derive(Clone)]
pub struct CrashFs {
    shared: Arc<Shared>,
}

/// What is in a crash file system.
#[derive(Clone, Copy, Debug)]
pub struct Statistics {
    /// Nodes in memory.
    pub nodes: usize,
    /// Bytes that shown contents occupy.
    pub bytes_used: u64,
    /// Bytes of contents that were read.
    pub bytes_read: u64,
    /// Changes of names that a crash could lose now.
    pub names_unsynced: usize,
    /// Crashes so far.
    pub crashes: u64,
    /// The sum of their reports.
    pub lost: CrashReport,
}

impl fmt::Display for Statistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "nodes={} bytes_used={} names_unsynced={} crashes={} {}",
            self.nodes, self.bytes_used, self.names_unsynced, self.crashes, self.lost
        )
    }
}

impl CrashFs {
    /// Empty, owned by the caller. `seed` decides what a kernel would have written back early.
    pub fn new(seed: u64) -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        CrashFs {
            shared: Arc::new(Shared {
                disk: Mutex::new(Disk::new(seed, uid, gid, now())),
                faults: Faults::default(),
                crashes: Mutex::new((0, CrashReport::default())),
            }),
        }
    }

    /// Power is lost and comes back: what was not synced is lost, kept or torn. The processes that used it should be
    /// dead by then; one that is not finds its descriptors stale.
    pub fn crash(&self, seed: u64, mood: Option<Mood>) -> CrashReport {
        let mut disk = self.disk();
        let report = disk.crash(seed, mood);
        let mut crashes = self.shared.crashes.lock().unwrap_or_else(PoisonError::into_inner);
        crashes.0 += 1;
        crashes.1 += report;
        drop(disk);
        self.faults().power_on();
        report
    }

    /// Everything becomes durable: how a test sets up its beginning.
    pub fn sync_all(&self) {
        self.disk().sync_all();
    }

    /// A crash right now could lose nothing.
    pub fn is_durable(&self) -> bool {
        self.disk().is_durable()
    }

    /// Writes beyond this many bytes in use find no space.
    pub fn set_space(&self, bytes: Option<u64>) {
        self.disk().set_space(bytes);
    }

    /// What makes operations fail, hang or lie.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Counters.
    pub fn statistics(&self) -> Statistics {
        let disk = self.disk();
        let (crashes, lost) = *self.shared.crashes.lock().unwrap_or_else(PoisonError::into_inner);
        Statistics {
            nodes: disk.nodes(),
            bytes_used: disk.bytes_used(),
            bytes_read: disk.bytes_read(),
            names_unsynced: disk.names_unsynced(),
            crashes,
            lost,
        }
    }

    pub(crate) fn disk(&self) -> MutexGuard<'_, Disk> {
        self.shared.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn now() -> Time {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: now.as_secs() as i64, nanos: now.subsec_nanos() }
}
