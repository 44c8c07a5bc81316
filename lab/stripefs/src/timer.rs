//! Things that are done later, by one thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Waiting {
    tasks: BTreeMap<(Instant, u64), Task>,
    given: u64,
    stopping: bool,
}

/// What waits for its time. Its thread ends after [`Timer::stop`].
#[derive(Default)]
pub struct Timer {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Timer {
    /// With its thread.
    pub fn start() -> std::io::Result<Arc<Timer>> {
        let timer = Arc::new(Timer::default());
        let own = Arc::clone(&timer);
        std::thread::Builder::new().name("stripefs-timer".into()).spawn(move || own.work())?;
        Ok(timer)
    }

    /// Does it then, or at once if the timer has stopped.
    pub fn at(&self, due: Instant, task: Task) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.stopping {
            drop(waiting);
            return task();
        }
        let number = waiting.given;
        waiting.given += 1;
        waiting.tasks.insert((due, number), task);
        let is_first = waiting.tasks.keys().next() == Some(&(due, number));
        drop(waiting);
        if is_first {
            self.changed.notify_one();
        }
    }

    /// Everything that waits is done now.
    pub fn stop(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
        self.changed.notify_one();
    }

    fn work(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = Instant::now();
            let first = waiting.tasks.keys().next().map(|(due, _)| *due);
            match first {
                Some(due) if due <= now || waiting.stopping => {
                    let task = waiting.tasks.pop_first();
                    drop(waiting);
                    if let Some((_, task)) = task {
                        task();
                    }
                    waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                }
                Some(due) => {
                    let waited = self.changed.wait_timeout(waiting, due - now);
                    waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                None if waiting.stopping => return,
                None => waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}
