//! Payloads pass a stream piece by piece, so that progress can be told on a path where a whole one takes seconds; on a fast one
//! a piece is all of it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PIECE_BYTES_MIN: usize = 64 << 10;
/// A piece that takes less is too small,
const SHORT: Duration = Duration::from_millis(50);
/// and one that takes longer too large.
const LONG: Duration = Duration::from_millis(250);

/// Bytes of payloads that have passed their streams and are not whole; clones count together.
#[derive(Clone, Default)]
pub(crate) struct UnderWay(Arc<AtomicU64>);

impl UnderWay {
    /// Now.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How one stream cuts its payloads.
pub(crate) struct Pieces {
    bytes: usize,
    under_way: UnderWay,
    /// Of this stream.
    passed: u64,
}

impl Pieces {
    pub(crate) fn new(under_way: &UnderWay) -> Self {
        Pieces { bytes: PIECE_BYTES_MIN, under_way: under_way.clone(), passed: 0 }
    }

    /// All of the range passes.
    pub(crate) fn pass<E>(
        &mut self,
        range: Range<usize>,
        mut piece: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.saturating_add(self.bytes));
            let began = Instant::now();
            piece(at..end)?;
            self.took(end - at, began.elapsed());
            at = end;
        }
        Ok(())
    }

    /// The payload is whole, and counts as that from now on.
    pub(crate) fn whole(&mut self) {
        self.under_way.0.fetch_sub(std::mem::take(&mut self.passed), Ordering::Relaxed);
    }

    fn took(&mut self, bytes: usize, time: Duration) {
        self.passed += bytes as u64;
        self.under_way.0.fetch_add(bytes as u64, Ordering::Relaxed);
        if time < SHORT && bytes >= self.bytes {
            self.bytes = self.bytes.saturating_mul(2);
        } else if time > LONG {
            self.bytes = (self.bytes / 2).max(PIECE_BYTES_MIN);
        }
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.whole();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_as_large_as_the_stream_is_fast() {
        let under_way = UnderWay::default();
        let mut pieces = Pieces::new(&under_way);
        let payload = 4 << 20;
        let mut passed = Vec::new();
        for _ in 0..3 {
            passed.clear();
            let mut pass = |piece| {
                passed.push(piece);
                Ok::<_, ()>(())
            };
            pieces.pass(10..payload, &mut pass).unwrap();
            assert_eq!((passed[0].start, passed[passed.len() - 1].end), (10, payload));
            assert!(passed.windows(2).all(|two| two[0].end == two[1].start));
            assert_eq!(under_way.bytes(), payload as u64 - 10);
            pieces.whole();
            assert_eq!(under_way.bytes(), 0);
        }
        assert_eq!(passed.len(), 1, "nothing is slow here");
        for _ in 0..10 {
            pieces.took(0, LONG * 2);
        }
        assert_eq!(pieces.bytes, PIECE_BYTES_MIN);
        pieces.took(5, Duration::ZERO);
        assert_eq!(pieces.bytes, PIECE_BYTES_MIN, "the end of a payload says nothing");
    }

    #[test]
    fn what_was_under_way_on_a_stream_that_ends_is_not_any_more() {
        let under_way = UnderWay::default();
        let mut pieces = Pieces::new(&under_way);
        let cut_off = |piece: Range<usize>| if piece.start == 0 { Ok(()) } else { Err("cut off") };
        assert_eq!(pieces.pass(0..1 << 20, cut_off), Err("cut off"));
        assert_eq!(under_way.bytes(), PIECE_BYTES_MIN as u64);
        drop(pieces);
        assert_eq!(under_way.bytes(), 0);
    }
}
