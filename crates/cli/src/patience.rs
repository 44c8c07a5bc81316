//! What storage that hangs must not hold up for ever.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

/// What a thread of its own comes to within this time; it is left alone if that takes longer.
pub fn within<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(limit: Duration, act: F) -> Option<T> {
    let (tell, told) = mpsc::channel();
    let act = Arc::new(Mutex::new(Some(act)));
    let take = |act: &Mutex<Option<F>>| act.lock().unwrap_or_else(PoisonError::into_inner).take();
    let of_thread = Arc::clone(&act);
    let run = move || drop(take(&of_thread).map(|act| tell.send(act())));
    match thread::Builder::new().name("haul-keep".into()).spawn(run) {
        Ok(_) => told.recv_timeout(limit).ok(),
        // Where there is no thread to be had it is done here, however long it takes.
        Err(_) => take(&act).map(|act| act()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_left_alone() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
        let (go_on, waits) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(20), move || waits.recv().is_ok()), None);
        drop(go_on);
    }
}
