//! In which order directories are finished by several threads: each after all that are below it.
//!
//! The steps come children before parents, so when a directory is taken from them all of its children have been; those
//! that are not finished yet it waits for. Where two SOURCEs meet, one directory comes once for each of them; the one that
//! comes last has the last word, so it waits for the others, too. Only a bounded number waits, whatever the tree is like.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Condvar, Mutex, PoisonError};

use super::lock;

/// Directories that wait for others below them.
const WAITING_MAX: usize = 4096;

/// Something with a parent that comes later.
pub(crate) trait Below {
    /// What it is called by those below it.
    type Id: Copy + Eq + Hash;
    /// What it is itself.
    type Identity: Copy + Eq + Hash;

    fn id(&self) -> Self::Id;
    fn parent(&self) -> Self::Id;
    fn identity(&self) -> Self::Identity;
}

/// What several threads take their steps from.
pub(crate) struct Upwards<I, D: Below, E> {
    state: Mutex<State<I, D, E>>,
    changed: Condvar,
}

struct State<I, D: Below, E> {
    /// `None` after the last one.
    steps: Option<I>,
    error: Option<E>,
    /// Of steps that one has to wait for, how many were taken and are not done.
    left: HashMap<D::Id, u32>,
    /// Of those that are not done, the latest of each identity, and which follow which.
    latest: HashMap<D::Identity, D::Id>,
    followers: HashMap<D::Id, D::Id>,
    waiting: HashMap<D::Id, D>,
    /// They have nothing to wait for.
    ready: VecDeque<D>,
    /// Threads that wait for one that is ready.
    asleep: usize,
}

impl<I: Iterator<Item = Result<D, E>>, D: Below, E> Upwards<I, D, E> {
    pub(crate) fn new(steps: I) -> Self {
        let (left, latest, followers, waiting, ready) = Default::default();
        let state =
            State { steps: Some(steps), error: None, left, latest, followers, waiting, ready, asleep: 0 };
        Upwards { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Gives `work` one step after the other until none is left. Called by each of the threads.
    pub(crate) fn run(&self, mut work: impl FnMut(&D)) {
        let mut next = self.next(None);
        while let Some(step) = next {
            let taken = Taken { upwards: self, step: Some(step) };
            work(taken.step.as_ref().expect("it is not done yet"));
            next = taken.done();
        }
    }

    /// Why the steps ended before their end, if they did.
    pub(crate) fn error(&self) -> Option<E> {
        lock(&self.state).error.take()
    }

    /// The next step that has nothing to wait for; first of all the parent of the one that is `done`, whose
    /// descriptors are at hand.
    fn next(&self, done: Option<D>) -> Option<D> {
        let mut state = lock(&self.state);
        if let Some(step) = done {
            state.done(&step);
        }
        loop {
            if let Some(step) = state.ready.pop_front() {
                if state.asleep > 0 && (!state.ready.is_empty() || state.may_read()) {
                    self.changed.notify_one();
                }
                return Some(step);
            }
            if state.may_read() {
                state.read();
            } else if state.steps.is_none() && state.waiting.is_empty() {
                self.changed.notify_all();
                return None;
            } else {
                state.asleep += 1;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.asleep -= 1;
            }
        }
    }
}

impl<I: Iterator<Item = Result<D, E>>, D: Below, E> State<I, D, E> {
    fn may_read(&self) -> bool {
        self.steps.is_some() && self.waiting.len() < WAITING_MAX
    }

    fn read(&mut self) {
        match self.steps.as_mut().and_then(Iterator::next) {
            Some(Ok(step)) => {
                *self.left.entry(step.parent()).or_default() += 1;
                if let Some(before) = self.latest.insert(step.identity(), step.id()) {
                    self.followers.insert(before, step.id());
                    *self.left.entry(step.id()).or_default() += 1;
                }
                if self.left.contains_key(&step.id()) {
                    self.waiting.insert(step.id(), step);
                } else {
                    self.ready.push_back(step);
                }
            }
            Some(Err(error)) => {
                self.error = Some(error);
                self.steps = None;
            }
            None => self.steps = None,
        }
    }

    fn done(&mut self, step: &D) {
        match self.followers.remove(&step.id()) {
            Some(follower) => self.one_less(follower),
            None => _ = self.latest.remove(&step.identity()),
        }
        self.one_less(step.parent());
    }

    /// That `id` waits for.
    fn one_less(&mut self, id: D::Id) {
        let Some(count) = self.left.get_mut(&id) else { return };
        *count -= 1;
        if *count == 0 {
            self.left.remove(&id);
            self.waiting.remove(&id).into_iter().for_each(|step| self.ready.push_front(step));
        }
    }
}

/// A step in the hands of a thread. If that panics, the others go on all the same.
struct Taken<'u, I: Iterator<Item = Result<D, E>>, D: Below, E> {
    upwards: &'u Upwards<I, D, E>,
    step: Option<D>,
}

impl<I: Iterator<Item = Result<D, E>>, D: Below, E> Taken<'_, I, D, E> {
    fn done(mut self) -> Option<D> {
        self.upwards.next(self.step.take())
    }
}

impl<I: Iterator<Item = Result<D, E>>, D: Below, E> Drop for Taken<'_, I, D, E> {
    fn drop(&mut self) {
        if let Some(step) = self.step.take() {
            lock(&self.upwards.state).done(&step);
            self.upwards.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[derive(Clone, Copy)]
    struct Node {
        id: usize,
        parent: usize,
        same: usize,
    }

    fn node(id: usize, parent: usize) -> Node {
        Node { id, parent, same: id }
    }

    impl Below for Node {
        type Id = usize;
        type Identity = usize;

        fn id(&self) -> usize {
            self.id
        }

        fn parent(&self) -> usize {
            self.parent
        }

        fn identity(&self) -> usize {
            self.same
        }
    }

    /// Threads, and those at work now and at most.
    fn climb(parents: &[usize], threads: usize, work: impl Fn(&Node) + Sync) -> usize {
        let steps = (1..parents.len()).rev().map(|id| Ok::<_, ()>(node(id, parents[id])));
        let upwards = Upwards::new(steps);
        let left: Vec<AtomicUsize> = parents.iter().map(|_| AtomicUsize::new(0)).collect();
        parents[1..].iter().for_each(|parent| _ = left[*parent].fetch_add(1, Ordering::Relaxed));
        let (now, most, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    upwards.run(|node| {
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        assert_eq!(left[node.id].load(Ordering::SeqCst), 0, "{} is too early", node.id);
                        work(node);
                        left[node.parent].fetch_sub(1, Ordering::SeqCst);
                        now.fetch_sub(1, Ordering::SeqCst);
                        done.fetch_add(1, Ordering::SeqCst);
                    });
                });
            }
        });
        assert_eq!(done.into_inner(), parents.len() - 1, "each has its turn once");
        assert!(upwards.error().is_none());
        most.into_inner()
    }

    /// Trees of every kind, from chains to stars; 0 is above all.
    fn tree(length: usize, kind: usize) -> Vec<usize> {
        let mut seed = 0x9e37_79b9 ^ kind as u64;
        let mut below = |bound: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % bound
        };
        (0..length)
            .map(|id| match kind {
                0 => id.saturating_sub(1),
                1 => 0,
                2 => id / 2,
                3 => id.saturating_sub(1 + below(4)),
                _ => below(id.max(1)),
            })
            .collect()
    }

    #[test]
    fn everything_has_its_turn_after_all_that_is_below_it() {
        for threads in [1, 2, 5] {
            for kind in 0..5 {
                for length in [1, 2, 3, 40, 3 * WAITING_MAX] {
                    climb(&tree(length, kind), threads, |node| {
                        if node.id % 64 == 0 {
                            thread::yield_now();
                        }
                    });
                }
            }
        }
    }

    #[test]
    fn what_is_not_below_each_other_goes_on_at_once() {
        let wait = |_: &Node| thread::sleep(Duration::from_millis(2));
        for kind in [1, 2, 4] {
            let most = climb(&tree(200, kind), 8, wait);
            assert!(most >= 6, "tree {kind}: {most} at once");
        }
        assert_eq!(climb(&tree(30, 0), 8, wait), 1, "a chain");
    }

    #[test]
    fn of_those_that_are_the_same_the_last_has_its_turn_last() {
        // Three trees that meet: in each one directory, with less below it from tree to tree.
        let below = [0, 3, 30];
        let (mut steps, mut id) = (Vec::new(), 0);
        for count in below {
            let (top, shared) = (id + 1, id + 2);
            steps.push(Node { id: top, parent: 0, same: 1 });
            steps.push(Node { id: shared, parent: top, same: 2 });
            steps.extend((1..=count).map(|child| node(shared + child, shared)));
            id = shared + count;
        }
        for threads in [1, 8] {
            let upwards = Upwards::new(steps.iter().rev().map(|step| Ok::<_, ()>(*step)));
            let done = Mutex::new(Vec::new());
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        upwards.run(|node| {
                            thread::sleep(Duration::from_millis(1));
                            lock(&done).push(*node);
                        });
                    });
                }
            });
            for same in [1, 2] {
                let done = lock(&done);
                let turns: Vec<usize> =
                    done.iter().filter(|node| node.same == same).map(|node| node.id).collect();
                assert!(
                    turns.len() == below.len() && turns.is_sorted_by(|one, other| one > other),
                    "{turns:?}"
                );
            }
            let state = lock(&upwards.state);
            assert!(state.latest.is_empty() && state.followers.is_empty() && state.waiting.is_empty());
        }
    }

    #[test]
    fn an_error_ends_the_steps_and_what_was_taken_is_done() {
        let steps = [Ok(node(3, 2)), Ok(node(2, 1)), Err("gone"), Ok(node(1, 0))];
        let upwards = Upwards::new(steps.into_iter());
        let mut done = Vec::new();
        upwards.run(|node| done.push(node.id));
        assert_eq!((done, upwards.error()), (vec![3, 2], Some("gone")));
    }

    #[test]
    fn a_thread_that_panics_does_not_keep_the_others() {
        let steps = (1..50).rev().map(|id| Ok::<_, ()>(node(id, id / 2)));
        let upwards = Upwards::new(steps);
        let done = AtomicUsize::new(0);
        let work = |_: &Node| _ = done.fetch_add(1, Ordering::SeqCst);
        thread::scope(|scope| {
            let panics = scope.spawn(|| upwards.run(|_| panic!("planted")));
            assert!(panics.join().is_err());
            for other in [scope.spawn(|| upwards.run(&work)), scope.spawn(|| upwards.run(&work))] {
                assert!(other.join().is_ok());
            }
        });
        assert_eq!(done.into_inner(), 48);
    }
}
