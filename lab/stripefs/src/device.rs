//! One device: a queue, what slows it, and the threads that do its work.
//!
//! Requests are served in the order in which they arrive. Each first waits for its turn and for the time that its bytes
//! take ([`Pace`]); then a thread of the device does the work on the backing files; then the latency passes, in which
//! requests overlap, and it is answered. Nothing here waits for another device.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::knobs::{Kind, Knobs};
use crate::pace::Pace;
use crate::timer::Timer;
use crate::trace::{Request, Trace};

/// What is left to do when a request has been served: its answer.
pub type Answer = Box<dyn FnOnce() + Send>;
/// Does the work, or hears what it fails with; says how it went, and how to answer.
pub type Work = Box<dyn FnOnce(Option<Errno>) -> (Result<(), Errno>, Answer) + Send>;

/// A request.
pub struct Job {
    /// What it does.
    pub kind: Kind,
    /// How much; 0 costs no bandwidth.
    pub bytes: u64,
    /// Of which file, for the trace.
    pub inode: u64,
    /// Where in the file.
    pub offset: u64,
    /// The work.
    pub work: Work,
}

/// What has happened at a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Bytes that reads got.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Requests that are being served, the latency included.
    pub in_flight: u64,
    /// Requests that wait for their turn.
    pub queue: u64,
}

struct State {
    queue: VecDeque<(Duration, Job)>,
    knobs: Knobs,
    /// How often they were turned.
    turns: u64,
    pace: Pace,
    /// A request's bytes pass: the others wait.
    serving: bool,
    /// A pause that was asked for once.
    paused_until: Duration,
    counters: Counters,
    random: u64,
    stopping: bool,
}

impl State {
    /// Requests of this kind hang now.
    fn holds(&self, kind: Kind) -> bool {
        !self.stopping && self.knobs.hang.holds(kind)
    }
}

/// A device; its threads end after [`Device::stop`].
pub struct Device {
    /// Which target; `None` is the metadata server.
    target: Option<u32>,
    state: Mutex<State>,
    changed: Condvar,
    timer: Arc<Timer>,
    trace: Option<Arc<Trace>>,
    epoch: Instant,
}

impl Device {
    /// With so many threads. `epoch` is when the trace begins.
    pub fn start(
        target: Option<u32>,
        threads: usize,
        timer: &Arc<Timer>,
        trace: Option<&Arc<Trace>>,
        epoch: Instant,
    ) -> std::io::Result<Arc<Device>> {
        let device = Arc::new(Device {
            target,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                knobs: Knobs::default(),
                turns: 0,
                pace: Pace::default(),
                serving: false,
                paused_until: Duration::ZERO,
                counters: Counters::default(),
                random: (u64::from(target.unwrap_or(u32::MAX)) << 1) | 1,
                stopping: false,
            }),
            changed: Condvar::new(),
            timer: Arc::clone(timer),
            trace: trace.cloned(),
            epoch,
        });
        for _ in 0..threads.max(1) {
            let own = Arc::clone(&device);
            let name = target.map_or_else(|| "mds".to_owned(), |target| format!("target-{target}"));
            std::thread::Builder::new().name(name).spawn(move || own.work())?;
        }
        Ok(device)
    }

    /// Takes a request over; never waits.
    pub fn submit(&self, job: Job) {
        let mut state = self.lock();
        state.queue.push_back((self.epoch.elapsed(), job));
        drop(state);
        self.changed.notify_one();
    }

    /// How it behaves now.
    pub fn knobs(&self) -> Knobs {
        self.lock().knobs
    }

    /// Changes how it behaves, from now on.
    pub fn turn(&self, mut knobs: Knobs) {
        let now = self.epoch.elapsed();
        let mut state = self.lock();
        if let Some(pause) = knobs.stall.take() {
            state.paused_until = now + pause;
        }
        state.knobs = knobs;
        state.turns += 1;
        state.pace.not_before(now);
        drop(state);
        self.changed.notify_all();
    }

    /// Whether a request would be served at once.
    pub fn is_plain(&self) -> bool {
        let state = self.lock();
        state.knobs.is_plain() && state.queue.is_empty() && self.end_of_pause(&state).is_none()
    }

    /// What has happened.
    pub fn counters(&self) -> Counters {
        let state = self.lock();
        Counters { queue: state.queue.len() as u64, ..state.counters }
    }

    /// Nothing slows or holds it any more; its threads do what waits and end.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopping = true;
        state.knobs = Knobs::default();
        drop(state);
        self.changed.notify_all();
    }

    fn work(self: &Arc<Self>) {
        while let Some((arrived, job, fault)) = self.next() {
            let Job { kind, bytes, inode, offset, work } = job;
            let (result, answer) = work(fault);
            let is_write = kind == Kind::Write;
            let target = self.target;
            let request = Request { start: arrived, end: arrived, target, inode, offset, bytes, is_write };
            let delay = self.delay();
            if delay.is_zero() {
                self.finish(kind, result, request);
                answer();
                continue;
            }
            let device = Arc::clone(self);
            let late = move || {
                device.finish(kind, result, request);
                answer();
            };
            self.timer.at(Instant::now() + delay, Box::new(late));
        }
    }

    /// The next request once its bytes have passed, and what it fails with. `None` is the end.
    fn next(&self) -> Option<(Duration, Job, Option<Errno>)> {
        let mut state = self.lock();
        let place = loop {
            if state.serving {
                state = self.wait(state, None);
                continue;
            }
            if state.queue.is_empty() && state.stopping {
                return None;
            }
            // What hangs lets the rest pass. A fault ends a hang, for those that it hits.
            let goes =
                |(_, job): &(Duration, Job)| state.knobs.fault(job.kind).is_some() || !state.holds(job.kind);
            let Some(place) = state.queue.iter().position(goes) else {
                state = self.wait(state, None);
                continue;
            };
            let kind = state.queue[place].1.kind;
            if state.knobs.fault(kind).is_none() && self.stands_still(&state) {
                state = self.wait_for_motion(state);
                continue;
            }
            break place;
        };
        let (arrived, job) = state.queue.remove(place)?;
        state.counters.in_flight += 1;
        let speed = state.knobs.speed;
        if state.knobs.fault(job.kind).is_none() && !speed.is_unlimited() {
            state.serving = true;
            state.pace.begin(arrived, speed);
            state = self.pass(state, &job);
            state.serving = false;
            self.changed.notify_all();
        }
        let fault = state.knobs.fault(job.kind);
        Some((arrived, job, fault))
    }

    /// Waits until the bytes of a request have passed, piece by piece, as fast as the knobs then say.
    fn pass<'a>(&'a self, mut state: MutexGuard<'a, State>, job: &Job) -> MutexGuard<'a, State> {
        let mut left = job.bytes;
        loop {
            if state.stopping || state.knobs.fault(job.kind).is_some() {
                return state;
            }
            if state.holds(job.kind) {
                state = self.wait(state, None);
                state.pace.not_before(self.epoch.elapsed());
                continue;
            }
            if self.stands_still(&state) {
                state = self.wait_for_motion(state);
                continue;
            }
            let speed = state.knobs.speed;
            let piece = speed.piece_bytes(left);
            let (begun, until) = (self.epoch.elapsed(), state.pace.reserve(piece, speed));
            left -= piece;
            let turns = state.turns;
            while !state.stopping && state.turns == turns && self.epoch.elapsed() < until {
                state = self.wait(state, Some(until));
            }
            let now = self.epoch.elapsed();
            if state.turns != turns && now < until {
                // What has not passed yet is reserved anew.
                let rest = (until - now).as_secs_f64() / (until - begun).as_secs_f64();
                left += (piece as f64 * rest) as u64;
                state.pace.restart(now);
            }
            if left == 0 {
                return state;
            }
        }
    }

    fn stands_still(&self, state: &State) -> bool {
        !state.stopping && self.end_of_pause(state).is_some()
    }

    fn end_of_pause(&self, state: &State) -> Option<Duration> {
        let now = self.epoch.elapsed();
        let once = Some(state.paused_until).filter(|until| *until > now);
        let regular = state.knobs.stalls.and_then(|stalls| stalls.end_of_pause(now));
        once.max(regular)
    }

    fn wait_for_motion<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let until = self.end_of_pause(&state);
        let mut state = self.wait(state, until);
        state.pace.not_before(self.epoch.elapsed());
        state
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, until: Option<Duration>) -> MutexGuard<'a, State> {
        let Some(until) = until else {
            return self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        let left = until.saturating_sub(self.epoch.elapsed());
        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Latency and jitter of one request.
    fn delay(&self) -> Duration {
        let mut state = self.lock();
        let Knobs { latency, jitter, .. } = state.knobs;
        if jitter.is_zero() {
            return latency;
        }
        // Xorshift: good enough for jitter.
        state.random ^= state.random << 13;
        state.random ^= state.random >> 7;
        state.random ^= state.random << 17;
        latency + jitter.mul_f64((state.random >> 11) as f64 / (1u64 << 53) as f64)
    }

    fn finish(&self, kind: Kind, result: Result<(), Errno>, request: Request) {
        let mut state = self.lock();
        let counters = &mut state.counters;
        counters.requests += 1;
        counters.in_flight -= 1;
        match (result, kind) {
            (Err(_), _) => counters.errors += 1,
            (Ok(()), Kind::Read) => counters.bytes_read += request.bytes,
            (Ok(()), Kind::Write) => counters.bytes_written += request.bytes,
            (Ok(()), Kind::Sync | Kind::Other) => {}
        }
        drop(state);
        if let Some(trace) = &self.trace
            && request.bytes > 0
        {
            trace.add(&Request { end: self.epoch.elapsed(), ..request });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
