//! A flag that threads can wait for: what lets a decorator block and still be ended by a closer.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Locks, also after a panic of another holder: the states behind the locks of this crate are valid at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a change; until `deadline` if there is one. False once the deadline has passed.
pub(crate) fn wait<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Option<Instant>,
) -> (MutexGuard<'a, T>, bool) {
    let Some(deadline) = deadline else {
        return (changed.wait(guard).unwrap_or_else(PoisonError::into_inner), true);
    };
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return (guard, false);
    }
    (changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0, true)
}

/// Opens once and stays open.
#[derive(Default)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn open(&self) {
        *lock(&self.open) = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_open(&self) -> bool {
        *lock(&self.open)
    }

    /// Waits until it opens, or for `timeout`; tells whether it is open.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> bool {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut open = lock(&self.open);
        while !*open {
            let in_time;
            (open, in_time) = wait(&self.changed, open, deadline);
            if !in_time {
                break;
            }
        }
        *open
    }
}
