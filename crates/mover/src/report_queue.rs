//! Reports on their way to the caller, which takes them on a thread of their own.
//!
//! The caller writes to a terminal, a pipe or a file, and those may take nothing for hours (Ctrl-S, a pager, a slow reader). The
//! master leaves its reports here and goes on: the other end has to hear of it all the time. What waits here is bounded because a
//! master that is told that its caller is behind takes on nothing new: what it has taken on already is bounded, too, and so is how many
//! connections may bring their share of it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::report::{Report, Reports};
use crate::{Error, threads};

/// As many as entries may be open: of each comes one report, so that at most about twice as many wait.
pub(crate) const BEHIND: usize = 16_384;
/// Bytes of what they say: a path may be long, and another end says it.
const BEHIND_BYTES: usize = 16 << 20;
/// So many more come only of what one connection after the other has brought.
const CONNECTIONS: usize = 16;
#[cfg(test)]
pub(crate) const FAR_BEHIND: usize = CONNECTIONS * BEHIND;
/// After so many others progress is told in its place; a later one takes the place of one before.
const BETWEEN_PROGRESS: usize = 256;

/// Where the master leaves them. When it is dropped the rest is delivered, and the thread ends.
pub(crate) struct ReportQueue(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Report>,
    /// What those that wait say.
    bytes: usize,
    /// Reports of other kinds behind the last progress.
    since_progress: usize,
    closed: bool,
}

impl ReportQueue {
    /// With the thread that delivers them.
    pub(crate) fn start(reports: Reports) -> Result<(Self, JoinHandle<()>), Error> {
        let shared: Arc<Shared> = Arc::default();
        let queue = Arc::clone(&shared);
        let thread = threads::start("haul-reports", move || deliver(&queue, reports))?;
        Ok((ReportQueue(shared), thread))
    }

    /// Never waits for the caller.
    pub(crate) fn put(&self, report: Report) {
        let mut state = self.0.lock();
        state.put(report);
        if state.waiting.len() == 1 {
            self.0.changed.notify_one();
        }
    }

    /// Nothing new is to be taken on.
    pub(crate) fn is_behind(&self) -> bool {
        self.0.lock().is_behind(1)
    }

    /// No next connection is to bring more.
    pub(crate) fn is_far_behind(&self) -> bool {
        self.0.lock().is_behind(CONNECTIONS)
    }
}

impl Drop for ReportQueue {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_behind(&self, times: usize) -> bool {
        self.waiting.len() >= times * BEHIND || self.bytes >= times * BEHIND_BYTES
    }

    fn take(&mut self) -> Option<Report> {
        let next = self.waiting.pop_front()?;
        self.bytes -= next.bytes();
        Some(next)
    }

    fn put(&mut self, report: Report) {
        self.bytes += report.bytes();
        if !matches!(report, Report::Progress { .. }) {
            self.since_progress += 1;
            self.waiting.push_back(report);
            return;
        }
        // The last progress, unless it was delivered.
        let last = self.waiting.len().checked_sub(self.since_progress + 1);
        if let Some(last) = last
            && self.since_progress < BETWEEN_PROGRESS
        {
            self.waiting.remove(last);
        }
        self.since_progress = 0;
        self.waiting.push_back(report);
    }
}

fn deliver(queue: &Shared, mut reports: Reports) {
    loop {
        let idle = |state: &mut State| state.waiting.is_empty() && !state.closed;
        let waited = queue.changed.wait_while(queue.lock(), idle);
        // Nobody waits for it while it is delivered.
        let next = waited.unwrap_or_else(PoisonError::into_inner).take();
        match next {
            Some(report) => reports(report),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    use haul_model::report::{Fact, Stats};

    fn progress(objects_sent: u64) -> Report {
        Report::Progress { stats: Stats { objects_sent, ..Stats::default() }, totals_are_final: false }
    }

    fn fact(count: u64) -> Report {
        Report::Fact(Fact::FailedToo { count })
    }

    /// Facts as they are, progress as its complement.
    fn numbers(reports: impl IntoIterator<Item = Report>) -> Vec<u64> {
        let number = |report| match report {
            Report::Fact(Fact::FailedToo { count }) => count,
            Report::Progress { stats, .. } => !stats.objects_sent,
            other => panic!("{other:?}"),
        };
        reports.into_iter().map(number).collect()
    }

    #[test]
    fn of_progress_only_the_latest_waits_and_the_order_stays() {
        let mut state = State::default();
        [progress(1), progress(2), fact(3), fact(4), progress(5), progress(6), fact(7)]
            .into_iter()
            .for_each(|report| state.put(report));
        assert_eq!(numbers(state.waiting.drain(..)), [3, 4, !6, 7]);
        // What was delivered is not taken back.
        state.put(progress(8));
        assert_eq!(numbers(state.waiting.drain(..)), [!8]);
    }

    #[test]
    fn a_caller_that_is_behind_for_long_is_told_of_progress_all_the_same() {
        let mut state = State::default();
        for number in 0..1000 {
            state.put(fact(number));
            state.put(progress(number));
        }
        let told = numbers(state.waiting);
        assert_eq!(told.len(), 1001, "{told:?}");
    }

    #[test]
    fn few_long_ones_are_many_and_none_once_they_are_taken() {
        let long = || Report::LogLost { cause: "x".repeat(BEHIND_BYTES / 8) };
        let mut state = State::default();
        (0..7).for_each(|_| state.put(long()));
        assert!(!state.is_behind(1));
        state.put(long());
        assert!(state.is_behind(1) && !state.is_behind(2));
        state.put(progress(1));
        while state.take().is_some() {}
        assert!(!state.is_behind(1) && state.bytes == 0);
    }

    #[test]
    fn who_leaves_reports_does_not_wait_and_the_last_ones_are_delivered() {
        let (gate, opened) = mpsc::channel::<()>();
        let (delivered, all) = mpsc::channel();
        let reports = move |report| {
            // An error once the gate is open.
            let _ = opened.recv();
            delivered.send(report).unwrap();
        };
        let (queue, thread) = ReportQueue::start(Box::new(reports)).unwrap();
        for number in 0..=BEHIND as u64 {
            queue.put(fact(number));
        }
        assert!(queue.is_behind());
        drop((queue, gate));
        thread.join().unwrap();
        assert!(numbers(all.into_iter()).into_iter().eq(0..=BEHIND as u64));
    }
}
