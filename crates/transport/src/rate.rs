//! A decorator that limits how fast is sent: one token bucket for all streams that share a [`Limit`].
//!
//! Only sending is limited. A receiver that is slow on purpose would fill the path's buffers instead, and a limit at
//! the source is a limit everywhere.

use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haul_meter::within;
use haul_model::profile::Stage;

use crate::gate::{Gate, lock};
use crate::{Cause, Closer, See, Sender, Stream};

/// How much may pass at once after a pause, in time at the limit.
const BURST: Duration = Duration::from_millis(50);
/// Payloads are cut into pieces, so that a large one does not make the line uneven: of half a burst, within these bounds.
const PIECE_BYTES_MIN: usize = 4 << 10;
const PIECE_BYTES_MAX: usize = 256 << 10;
/// And no piece takes longer than this, however low the limit is: a stream on which nothing comes for long is taken for dead.
const PIECE_SECONDS_MAX: u64 = 10;

/// The bucket, as arithmetic: it has a level, a clock is passed in.
#[derive(Debug)]
struct Bucket {
    bytes_per_second: NonZeroU64,
    /// When the bucket is full again if nothing more is taken; in the past, it is full.
    full_at: Option<Instant>,
}

impl Bucket {
    /// Takes `bytes` and returns how long the taker has to wait before it may send them. The debt of others counts, so
    /// that takers are served in the order in which they came.
    fn take(&mut self, bytes: usize, now: Instant) -> Duration {
        let cost = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second.get() as f64);
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + cost;
        self.full_at = Some(full_at);
        // Up to a burst of debt is what the bucket holds.
        (full_at - now).saturating_sub(BURST)
    }

    /// What was taken did not leave.
    fn give_back(&mut self, bytes: usize) {
        let cost = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second.get() as f64);
        self.full_at = self.full_at.and_then(|at| at.checked_sub(cost));
    }

    fn piece_bytes(&self) -> usize {
        let burst = self.bytes_per_second.get() as f64 * BURST.as_secs_f64();
        let longest = self.bytes_per_second.get().saturating_mul(PIECE_SECONDS_MAX);
        let least = usize::try_from(longest).unwrap_or(usize::MAX).min(PIECE_BYTES_MIN);
        ((burst / 2.0) as usize).clamp(least, PIECE_BYTES_MAX)
    }
}

/// A limit that any number of streams share. Clones are the same limit.
#[derive(Clone, Debug)]
pub struct Limit(Arc<Mutex<Bucket>>);

impl Limit {
    /// Of so many bytes a second. (A limit of 0 does not exist.)
    pub fn new(bytes_per_second: NonZeroU64) -> Self {
        Limit(Arc::new(Mutex::new(Bucket { bytes_per_second, full_at: None })))
    }

    /// Another limit from now on.
    pub fn set(&self, bytes_per_second: NonZeroU64) {
        lock(&self.0).bytes_per_second = bytes_per_second;
    }
}

/// Sends through `stream` no faster than `limit` allows.
pub fn wrap(stream: Stream, limit: &Limit) -> Stream {
    let Stream { sender, receiver, closer, about, arrivals } = stream;
    let closed = Arc::new(Gate::default());
    let sender = Box::new(RateSender { lower: sender, limit: limit.clone(), closed: closed.clone() });
    let closer = Closer::new(move || {
        closed.open();
        closer.close();
    });
    Stream { sender, receiver, closer, about, arrivals }
}

struct RateSender {
    lower: Box<dyn Sender>,
    limit: Limit,
    closed: Arc<Gate>,
}

impl RateSender {
    /// Waits until so many bytes may leave.
    fn wait(&self, bytes: usize) -> io::Result<()> {
        let pause = lock(&self.limit.0).take(bytes, Instant::now());
        if pause.is_zero() {
            return Ok(());
        }
        let _limit = within(Stage::Limit);
        if self.closed.wait(Some(pause)) {
            lock(&self.limit.0).give_back(bytes);
            return Err(Cause::Closed.error("the stream was closed at this end"));
        }
        Ok(())
    }

    fn piece_bytes(&self) -> usize {
        lock(&self.limit.0).piece_bytes()
    }
}

impl Sender for RateSender {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let piece_bytes = self.piece_bytes();
        for piece in parts.iter().flat_map(|part| part.chunks(piece_bytes)) {
            self.wait(piece.len())?;
            self.lower.send(&[IoSlice::new(piece)])?;
        }
        Ok(())
    }

    fn send_file(
        &mut self,
        head: &[u8],
        file: BorrowedFd<'_>,
        offset: u64,
        room: &mut [u8],
        mut see: Option<See<'_>>,
    ) -> io::Result<()> {
        if room.is_empty() {
            return self.send(&[IoSlice::new(head)]);
        }
        let mut head = head;
        let mut offset = offset;
        for piece in room.chunks_mut(self.piece_bytes()) {
            self.wait(head.len() + piece.len())?;
            let see = see.as_mut().map(|see| &mut **see as See<'_>);
            self.lower.send_file(head, file, offset, piece, see)?;
            offset += piece.len() as u64;
            head = &[];
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.lower.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(bytes_per_second: u64) -> Bucket {
        Bucket { bytes_per_second: NonZeroU64::new(bytes_per_second).unwrap(), full_at: None }
    }

    /// Takes pieces back to back on a clock that only waiting moves; the time that it took.
    fn run(bucket: &mut Bucket, pieces: usize, bytes: usize, start: Instant) -> Duration {
        let mut now = start;
        for _ in 0..pieces {
            now += bucket.take(bytes, now);
        }
        now - start
    }

    #[test]
    fn over_time_the_rate_is_the_limit_whatever_the_pieces() {
        for (pieces, bytes) in [(1_000, 100_000), (10_000, 10_000), (10, 10_000_000)] {
            let time = run(&mut bucket(10_000_000), pieces, bytes, Instant::now());
            let expected = Duration::from_secs(10) - BURST;
            assert!(time.abs_diff(expected) < Duration::from_millis(1), "{bytes}: {time:?}");
        }
    }

    #[test]
    fn however_low_the_limit_a_piece_leaves_soon() {
        for limit in [1, 7, 100, 1000, 5000, 1_000_000, u64::MAX] {
            let piece = bucket(limit).piece_bytes();
            assert!(piece > 0 && piece as u64 <= limit.saturating_mul(PIECE_SECONDS_MAX), "{limit}: {piece}");
        }
    }

    #[test]
    fn a_pause_earns_one_burst_and_no_more() {
        let mut bucket = bucket(1_000_000);
        let start = Instant::now();
        run(&mut bucket, 100, 10_000, start);
        let later = start + Duration::from_secs(3_600);
        assert_eq!(bucket.take(50_000, later), Duration::ZERO);
        let wait = bucket.take(10_000, later);
        assert!(wait.abs_diff(Duration::from_millis(10)) < Duration::from_micros(10), "{wait:?}");
    }

    #[test]
    fn what_did_not_leave_is_no_debt() {
        let limit = Limit::new(NonZeroU64::new(1000).unwrap());
        let closed = Arc::new(Gate::default());
        closed.open();
        let sender = |closed: &Arc<Gate>| {
            let (stream, _other) = crate::memory::pair(1 << 20);
            RateSender { lower: stream.split().0, limit: limit.clone(), closed: Arc::clone(closed) }
        };
        for _ in 0..64 {
            assert!(sender(&closed).wait(10_000).is_err());
        }
        assert!(lock(&limit.0).take(50, Instant::now()).is_zero(), "no more than a burst");
    }
}
