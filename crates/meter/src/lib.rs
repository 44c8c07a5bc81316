//! What the threads of an end are busy with, and for how long.
//!
//! A thread [joins](Meter::join) the meter of its end. From then on it says what it is [`at`], and the layers below, which
//! know nothing of ends, what that is [`within`]: reading is within an operation of the source's storage, and hashing within
//! reading. A moment belongs to the innermost stage alone, so the stages of a thread never add up to more than its time.
//!
//! It costs two looks at the clock a stage and one at the thread's processor time an operation, and no thread ever waits for
//! another: each counts for itself. Threads that have joined no meter (those of tests, of `haul layout`, of the control
//! stream) pay for one look at a thread-local variable.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use haul_model::profile::{Profile, Spent, Stage};
use rustix::time::{ClockId, clock_gettime};

mod arriving;
mod slow;

use arriving::Arrivals;
pub use arriving::Arriving;

/// The meter of one end. Clones are the same one.
#[derive(Clone, Default)]
pub struct Meter(Arc<Shared>);

#[derive(Default)]
struct Shared {
    threads: Mutex<Threads>,
    arrivals: Arrivals,
}

#[derive(Default)]
struct Threads {
    /// Of threads that have left.
    left: [Spent; Stage::COUNT],
    joined: Vec<Arc<Counters>>,
}

/// Of one thread, which alone writes to them.
#[derive(Default)]
struct Counters([Counter; Stage::COUNT]);

#[derive(Default)]
struct Counter {
    busy_nanos: AtomicU64,
    processor_nanos: AtomicU64,
    times: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    fn spent(&self) -> Spent {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Spent {
            busy_nanos: read(&self.busy_nanos),
            processor_nanos: read(&self.processor_nanos),
            times: read(&self.times),
            bytes: read(&self.bytes),
        }
    }
}

/// There is only one writer.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Meter {
    /// This thread works for the meter's end until the guard goes.
    pub fn join(&self) -> Joined {
        let counters = Arc::<Counters>::default();
        lock(&self.0.threads).joined.push(Arc::clone(&counters));
        let own = Own {
            meter: self.clone(),
            counters,
            stage: Cell::new(None),
            since: Cell::new(Instant::now()),
            operation: Default::default(),
            processor_nanos: Cell::new(processor_nanos()),
        };
        OWN.with_borrow_mut(|slot| *slot = Some(own));
        Joined(PhantomData)
    }

    /// What all threads have spent so far is written into the profile. What they are in the middle of is not in it.
    pub fn read(&self, profile: &mut Profile) {
        let threads = lock(&self.0.threads);
        for stage in Stage::ALL {
            let joined = threads.joined.iter().map(|counters| counters.0[*stage as usize].spent());
            *profile.spent_mut(*stage) = joined.fold(threads.left[*stage as usize], Spent::and);
        }
    }

    /// For how long, until now, at least one payload was arriving.
    pub fn arriving_nanos(&self, now: Instant) -> u64 {
        self.0.arrivals.nanos_until(now)
    }
}

/// What is guarded is valid between any two steps.
fn lock(threads: &Mutex<Threads>) -> MutexGuard<'_, Threads> {
    threads.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread belongs to an end for as long as this lives.
pub struct Joined(PhantomData<*const ()>);

impl Drop for Joined {
    fn drop(&mut self) {
        let Some(own) = OWN.with_borrow_mut(Option::take) else { return };
        let mut threads = lock(&own.meter.0.threads);
        threads.joined.retain(|counters| !Arc::ptr_eq(counters, &own.counters));
        for (left, counter) in threads.left.iter_mut().zip(&own.counters.0) {
            *left = left.and(counter.spent());
        }
    }
}

thread_local! {
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

/// What a thread knows of itself.
struct Own {
    meter: Meter,
    counters: Arc<Counters>,
    stage: Cell<Option<Stage>>,
    since: Cell<Instant>,
    /// Time of each stage since the outermost one began.
    operation: [Cell<u64>; Stage::COUNT],
    /// Of this thread, when the last operation ended.
    processor_nanos: Cell<u64>,
}

/// Processor time of this thread so far.
pub fn processor_nanos() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

impl Own {
    /// The time until now belongs to the stage so far; from here on to another one.
    fn turn(&self, stage: Option<Stage>) {
        let now = Instant::now();
        if let Some(before) = self.stage.replace(stage) {
            let nanos = (now - self.since.get()).as_nanos() as u64;
            add(&self.counters.0[before as usize].busy_nanos, nanos);
            let operation = &self.operation[before as usize];
            operation.set(operation.get() + nanos);
        }
        self.since.set(now);
    }

    /// An operation has ended: what processor time it took belongs to the stages that do nothing but compute, as far as they
    /// lasted, and the rest of it to the others in proportion.
    fn end(&self) {
        let now = processor_nanos();
        let mut left = now.saturating_sub(self.processor_nanos.replace(now));
        let mut others = 0;
        for (stage, lasted) in Stage::ALL.iter().zip(&self.operation) {
            if matches!(stage, Stage::Hash | Stage::HashOnWay | Stage::Cipher) {
                let computed = left.min(lasted.take());
                add(&self.counters.0[*stage as usize].processor_nanos, computed);
                left -= computed;
            }
            others += lasted.get();
        }
        for (counter, lasted) in self.counters.0.iter().zip(&self.operation) {
            let lasted = lasted.take();
            if lasted > 0 {
                let part = u128::from(left.min(others)) * u128::from(lasted) / u128::from(others);
                add(&counter.processor_nanos, part as u64);
            }
        }
    }
}

/// A thread is at something, for as long as this lives.
#[must_use = "the stage ends where this goes"]
pub struct At {
    /// None where nothing is counted.
    stage: Option<Stage>,
    before: Option<Stage>,
    times: u64,
    bytes: u64,
    /// It belongs to the thread.
    thread: PhantomData<*const ()>,
}

/// This thread begins an operation of this stage.
pub fn at(stage: Stage) -> At {
    let at = enter(stage, true);
    if at.stage.is_some() {
        slow::down(stage);
    }
    at
}

/// The beginning of a payload is there, and this thread takes the rest. Nothing is counted if it has joined no meter.
pub fn arriving() -> Arriving {
    let counted = OWN
        .with_borrow(|own| own.as_ref().inspect(|own| own.meter.0.arrivals.begin(Instant::now())).is_some());
    Arriving { counted, thread: PhantomData }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        OWN.with_borrow(|own| {
            if let Some(own) = own.as_ref().filter(|_| self.counted) {
                own.meter.0.arrivals.end(Instant::now());
            }
        });
    }
}

/// What this thread is at goes through this stage; nothing is counted if it is at nothing.
#[inline]
pub fn within(stage: Stage) -> At {
    let at = enter(stage, false);
    if at.stage.is_some() {
        slow::down(stage);
    }
    at
}

/// What this thread is at waits for another thread that is at this stage; the time counts for that, and it does not happen once more.
pub fn awaits(stage: Stage) -> At {
    let mut at = enter(stage, false);
    at.count(0);
    at
}

#[inline]
fn enter(stage: Stage, first: bool) -> At {
    OWN.with_borrow(|own| match own {
        Some(own) if first || own.stage.get().is_some() => {
            let before = own.stage.get();
            let named = before.map_or(stage, |outer| stage.within(outer));
            own.turn(Some(named));
            At { stage: Some(named), before, times: 1, bytes: 0, thread: PhantomData }
        }
        _ => At { stage: None, before: None, times: 0, bytes: 0, thread: PhantomData },
    })
}

impl At {
    /// So many bytes of contents go through.
    pub fn bytes(mut self, bytes: u64) -> At {
        self.bytes += bytes;
        self
    }

    /// It counts as so many operations.
    pub fn count(&mut self, times: u64) {
        self.times = times;
    }
}

impl Drop for At {
    #[inline]
    fn drop(&mut self) {
        let Some(stage) = self.stage else { return };
        OWN.with_borrow(|own| {
            let Some(own) = own else { return };
            let counter = &own.counters.0[stage as usize];
            add(&counter.times, self.times);
            add(&counter.bytes, self.bytes);
            own.turn(self.before);
            if self.before.is_none() {
                own.end();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MILLISECOND: u64 = 1_000_000;

    fn profile(meter: &Meter) -> Profile {
        let mut profile = Profile::default();
        meter.read(&mut profile);
        profile
    }

    fn pause() {
        std::thread::sleep(Duration::from_millis(5));
    }

    #[test]
    fn who_waits_for_a_stage_of_another_thread_is_at_it_and_does_not_count() {
        let meter = Meter::default();
        let joined = meter.join();
        {
            let _write = at(Stage::Write);
            let _create = awaits(Stage::Create);
            pause();
        }
        drop(joined);
        let profile = profile(&meter);
        let (create, write) = (profile.spent(Stage::Create), profile.spent(Stage::Write));
        assert!(
            create.busy_nanos >= 5 * MILLISECOND && write.busy_nanos < create.busy_nanos,
            "{create:?} {write:?}"
        );
        assert_eq!((create.times, write.times), (0, 1));
    }

    #[test]
    fn a_moment_belongs_to_the_innermost_stage_alone() {
        let meter = Meter::default();
        let joined = meter.join();
        let began = Instant::now();
        {
            let _read = at(Stage::Read).bytes(7);
            pause();
            for _ in 0..2 {
                let _hash = within(Stage::Hash).bytes(3);
                pause();
            }
        }
        let all = began.elapsed().as_nanos() as u64;
        let told = profile(&meter);
        let (read, hash) = (told.spent(Stage::Read), told.spent(Stage::Hash));
        assert!(read.busy_nanos >= 5 * MILLISECOND && hash.busy_nanos >= 10 * MILLISECOND, "{told:?}");
        assert!(read.busy_nanos + hash.busy_nanos <= all, "{told:?} in {all}");
        assert_eq!((read.times, read.bytes, hash.times, hash.bytes), (1, 7, 2, 6));
        drop(joined);
        assert_eq!(profile(&meter), told, "what a thread has spent stays when it goes");
    }

    #[test]
    fn what_is_read_and_hashed_where_it_is_sent_is_told_apart() {
        let meter = Meter::default();
        let _joined = meter.join();
        for outer in [Stage::Read, Stage::Send, Stage::Cipher] {
            let _outer = at(outer);
            drop(within(Stage::Read));
            drop(within(Stage::Hash).bytes(5));
        }
        let told = profile(&meter);
        let times = [Stage::Read, Stage::Hash, Stage::ReadOnWay, Stage::HashOnWay];
        assert_eq!(times.map(|stage| told.spent(stage).times), [2, 1, 2, 2]);
        assert_eq!(told.spent(Stage::HashOnWay).bytes, 10);
    }

    #[test]
    fn waiting_is_not_time_of_a_processor_and_computing_is() {
        let meter = Meter::default();
        let _joined = meter.join();
        let mut sum = 0u64;
        {
            let _send = at(Stage::Send);
            std::thread::sleep(Duration::from_millis(30));
            let _cipher = within(Stage::Cipher);
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(30) {
                sum = (0..1000).fold(sum, |sum, number| sum.rotate_left(1) ^ number);
            }
        }
        assert_ne!(sum, 1);
        let told = profile(&meter);
        let (send, cipher) = (told.spent(Stage::Send), told.spent(Stage::Cipher));
        assert!(send.processor_nanos < 10 * MILLISECOND, "{told:?}");
        assert!(cipher.processor_nanos > 5 * MILLISECOND, "{told:?}");
        assert!(cipher.processor_nanos <= cipher.busy_nanos, "{told:?}");
    }

    #[test]
    fn only_threads_of_an_end_count_and_only_when_they_are_at_something() {
        let meter = Meter::default();
        drop(at(Stage::Read));
        let joined = meter.join();
        drop(within(Stage::Receive).bytes(5));
        assert_eq!(profile(&meter), Profile::default());
        let others = meter.clone();
        std::thread::spawn(move || {
            drop(at(Stage::Write));
            let _joined = others.join();
            drop(at(Stage::Sync));
        })
        .join()
        .unwrap();
        let told = profile(&meter);
        assert_eq!((told.spent(Stage::Write).times, told.spent(Stage::Sync).times), (0, 1));
        drop(joined);
    }
}
