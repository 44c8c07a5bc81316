//! What devices have moved as time goes on: seen from outside, where a file system tells nothing of its requests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::device::{Bytes, Device};

/// How often devices are looked at: the error of every time that is told.
const EVERY: Duration = Duration::from_millis(50);

/// Looks at devices until it is asked what it saw.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<Vec<Sample>>>>,
}

/// What each device had moved by a time.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// When.
    pub at: Instant,
    /// Since the first sample.
    pub moved: Vec<Bytes>,
}

impl Sampler {
    /// Begins.
    pub fn new(devices: Arc<Vec<Device>>) -> io::Result<Sampler> {
        let look = move || devices.iter().map(Device::moved).collect::<io::Result<Vec<Bytes>>>();
        let first = look()?;
        let stop = Arc::new(AtomicBool::new(false));
        let ends = stop.clone();
        let thread = std::thread::Builder::new().name("sampler".into()).spawn(move || {
            let mut samples = Vec::new();
            loop {
                // Looked at once more after it was told to stop, so that the end is seen.
                let last = ends.load(Ordering::Acquire);
                let now = look()?;
                let since = |(now, first): (&Bytes, &Bytes)| Bytes {
                    read: now.read - first.read,
                    written: now.written - first.written,
                };
                samples
                    .push(Sample { at: Instant::now(), moved: now.iter().zip(&first).map(since).collect() });
                if last {
                    return Ok(samples);
                }
                std::thread::sleep(EVERY);
            }
        })?;
        Ok(Sampler { stop, thread: Some(thread) })
    }

    /// Ends, and tells what it saw: at least one sample.
    pub fn finish(mut self) -> io::Result<Vec<Sample>> {
        self.stop.store(true, Ordering::Release);
        let joined = self.thread.take().map(JoinHandle::join);
        let Some(Ok(samples)) = joined else { return Err(io::Error::other("the sampler has panicked")) };
        samples
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Devices go when the last who has them goes: that is not to be this thread.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// When a target had moved `bytes`, in seconds since `started`: the first sample that has them. Where none has (some came out of
/// a cache), when it moved something for the last time.
pub fn end_of(samples: &[Sample], target: usize, bytes: u64, started: Instant, of: fn(&Bytes) -> u64) -> f64 {
    if bytes == 0 {
        return 0.0;
    }
    let moved = |sample: &Sample| of(&sample.moved[target]);
    let last = samples.last().map_or(0, moved);
    let found = samples.iter().find(|sample| moved(sample) >= bytes.min(last));
    found.map_or(0.0, |sample| sample.at.saturating_duration_since(started).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_ends_when_its_bytes_have_moved() {
        let started = Instant::now();
        let sample = |seconds, read: [u64; 2], written| Sample {
            at: started + Duration::from_secs(seconds),
            moved: read.map(|read| Bytes { read, written }).to_vec(),
        };
        let samples = [
            sample(0, [0, 0], 0),
            sample(1, [50, 0], 7),
            sample(2, [100, 40], 7),
            // The log of the target's own file system.
            sample(9, [101, 40], 9),
        ];
        let read = |bytes: &Bytes| bytes.read;
        assert_eq!(end_of(&samples, 0, 100, started, read), 2.0);
        // Less than was to move: some of it was in a cache.
        assert_eq!(end_of(&samples, 1, 100, started, read), 2.0);
        assert_eq!(end_of(&samples, 1, 0, started, read), 0.0);
        assert_eq!(end_of(&samples, 1, 8, started, |bytes| bytes.written), 9.0);
        assert_eq!(end_of(&[], 0, 1, started, read), 0.0);
    }
}
