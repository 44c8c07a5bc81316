//! A request in parts: it is answered when the last part is done.

use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

type Then<T> = Box<dyn FnOnce(Result<Vec<T>, Errno>) + Send>;

struct State<T> {
    left: usize,
    done: Vec<T>,
    failed: Option<Errno>,
    then: Option<Then<T>>,
}

/// The parts that are under way.
pub struct Join<T> {
    state: Mutex<State<T>>,
}

impl<T: Send + 'static> Join<T> {
    /// Calls `then` with what so many parts came to, in any order, or with the first failure; at once if there are none.
    pub fn new(parts: usize, then: impl FnOnce(Result<Vec<T>, Errno>) + Send + 'static) -> Arc<Self> {
        let mut then: Option<Then<T>> = Some(Box::new(then));
        if parts == 0
            && let Some(then) = then.take()
        {
            then(Ok(Vec::new()));
        }
        let state = State { left: parts, done: Vec::with_capacity(parts), failed: None, then };
        Arc::new(Join { state: Mutex::new(state) })
    }

    /// A part is done.
    pub fn part(&self, result: Result<T, Errno>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(part) => state.done.push(part),
            Err(errno) => state.failed = state.failed.or(Some(errno)),
        }
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        let result = state.failed.map_or_else(|| Ok(std::mem::take(&mut state.done)), Err);
        let then = state.then.take();
        drop(state);
        if let Some(then) = then {
            then(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn the_last_part_answers_and_one_failure_is_enough() {
        let (sender, answers) = mpsc::channel();
        let join = |parts| {
            let sender = sender.clone();
            Join::new(parts, move |result| sender.send(result).unwrap())
        };
        join(0);
        assert_eq!(answers.try_recv(), Ok(Ok(vec![])));
        let good = join(2);
        good.part(Ok(1));
        assert!(answers.try_recv().is_err());
        good.part(Ok(2));
        assert_eq!(answers.try_recv(), Ok(Ok(vec![1, 2])));
        let bad = join(2);
        bad.part(Err(Errno::IO));
        assert!(answers.try_recv().is_err(), "the others are still under way");
        bad.part(Ok(1));
        assert_eq!(answers.try_recv(), Ok(Err(Errno::IO)));
    }
}
