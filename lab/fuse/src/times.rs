//! Times, seconds since 1970 with nanoseconds that always count forward.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::TimeOrNow;

/// For the kernel.
pub fn system_time(seconds: i64, nanos: u32) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(nanos));
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let whole = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// The time that the kernel sent; `None` is now.
///
/// For times before 1970 the library subtracts the nanoseconds where they are to be added, so they are taken out of
/// its answer as they were put in; the tests of early times fail should that ever be mended there.
pub fn sent_time(time: TimeOrNow) -> Option<(i64, u32)> {
    let TimeOrNow::SpecificTime(time) = time else { return None };
    Some(match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
        Err(error) => {
            let before = error.duration();
            (-(before.as_secs() as i64), before.subsec_nanos())
        }
    })
}
