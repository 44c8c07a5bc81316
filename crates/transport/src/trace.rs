//! A decorator that counts what passes: bytes and calls, each way.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::{Receiver, See, Sender, Stream};

/// What has passed. Clones count together, so the streams of a session may share one.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    sent_bytes: AtomicU64,
    sends: AtomicU64,
    received_bytes: AtomicU64,
    receives: AtomicU64,
}

impl Counters {
    /// Bytes of all sends that returned without an error.
    pub fn sent_bytes(&self) -> u64 {
        self.0.sent_bytes.load(Ordering::Relaxed)
    }

    /// Calls of send.
    pub fn sends(&self) -> u64 {
        self.0.sends.load(Ordering::Relaxed)
    }

    /// Bytes that callers were given.
    pub fn received_bytes(&self) -> u64 {
        self.0.received_bytes.load(Ordering::Relaxed)
    }

    /// Calls of receive, of either kind.
    pub fn receives(&self) -> u64 {
        self.0.receives.load(Ordering::Relaxed)
    }
}

/// Counts what passes through `stream`.
pub fn wrap(stream: Stream, counters: &Counters) -> Stream {
    let Stream { sender, receiver, closer, about, arrivals } = stream;
    let sender = Box::new(TraceSender { lower: sender, counters: counters.clone() });
    let receiver = Box::new(TraceReceiver { lower: receiver, counters: counters.clone() });
    Stream { sender, receiver, closer, about, arrivals }
}

struct TraceSender {
    lower: Box<dyn Sender>,
    counters: Counters,
}

impl Sender for TraceSender {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.counters.0.sends.fetch_add(1, Ordering::Relaxed);
        self.lower.send(parts)?;
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.counters.0.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }

    fn send_file(
        &mut self,
        head: &[u8],
        file: BorrowedFd<'_>,
        offset: u64,
        room: &mut [u8],
        see: Option<See<'_>>,
    ) -> io::Result<()> {
        self.counters.0.sends.fetch_add(1, Ordering::Relaxed);
        self.lower.send_file(head, file, offset, room, see)?;
        let bytes = head.len() + room.len();
        self.counters.0.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.lower.finish()
    }
}

struct TraceReceiver {
    lower: Box<dyn Receiver>,
    counters: Counters,
}

impl TraceReceiver {
    fn count(&self, bytes: usize) {
        self.counters.0.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Receiver for TraceReceiver {
    fn receive_some(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.counters.0.receives.fetch_add(1, Ordering::Relaxed);
        self.lower.receive_some(into).inspect(|count| self.count(*count))
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<()> {
        self.counters.0.receives.fetch_add(1, Ordering::Relaxed);
        self.lower.receive(into).inspect(|()| self.count(into.len()))
    }

    fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.lower.set_timeout(timeout)
    }
}
