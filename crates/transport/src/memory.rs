//! The memory driver: a pair of streams within one process, one bounded pipe a direction.
//!
//! Called where both ends live in one process, and by every test that needs a stream it can trust. Bytes are copied in
//! chunks outside the lock, and chunk buffers are used again, so a payload of many MiB costs two copies and no
//! allocation once the pipe is warm.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::gate::{lock, wait};
use crate::{About, Cause, Closer, Receiver, Sender, Stream};

/// Bytes copied at a time: stays in the L2 cache between sender and receiver.
const CHUNK_BYTES: usize = 256 << 10;
/// Sends up to this size are appended to the newest chunk, so that many tiny ones do not make many chunks.
const APPEND_BYTES_MAX: usize = 4 << 10;

/// Two streams, each the other's peer. A direction holds at most `capacity_bytes` (at least 1) that were sent and not
/// received; then its sender blocks.
pub fn pair(capacity_bytes: usize) -> (Stream, Stream) {
    let there = Arc::new(Pipe::new(capacity_bytes.max(1)));
    let back = Arc::new(Pipe::new(capacity_bytes.max(1)));
    (end(there.clone(), back.clone()), end(back, there))
}

fn end(outgoing: Arc<Pipe>, incoming: Arc<Pipe>) -> Stream {
    let closed = Arc::new(AtomicBool::new(false));
    let closer = {
        let (outgoing, incoming) = (Arc::downgrade(&outgoing), Arc::downgrade(&incoming));
        let closed = closed.clone();
        Closer::new(move || {
            closed.store(true, Ordering::SeqCst);
            // What was sent before may still be received; of what was to come, nothing.
            if let Some(pipe) = outgoing.upgrade() {
                pipe.end(Ending::Abandoned);
            }
            if let Some(pipe) = incoming.upgrade() {
                pipe.cut();
            }
        })
    };
    let sender = PipeSender { pipe: outgoing, closed: closed.clone(), finished: false };
    let receiver = PipeReceiver { pipe: incoming, closed, chunk: Vec::new(), taken: 0, timeout: None };
    Stream::new(Box::new(sender), Box::new(receiver), closer, About::default())
}

struct Pipe {
    capacity: usize,
    state: Mutex<State>,
    readable: Condvar,
    writable: Condvar,
}

struct State {
    /// Sent and not yet taken by the receiver, oldest first; none is empty.
    queue: VecDeque<Vec<u8>>,
    /// Sent, or about to be queued by the sender, and not yet received.
    bytes: usize,
    /// Emptied chunks, to be used again; together at most the pipe's capacity.
    spare: Vec<Vec<u8>>,
    /// What the spare chunks can hold.
    spare_bytes: usize,
    /// Nothing will follow what is queued.
    ended: Option<Ending>,
    /// The receiver has gone: nothing is taken any more.
    cut: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Finished,
    Abandoned,
}

impl Pipe {
    fn new(capacity: usize) -> Self {
        let state = State {
            queue: VecDeque::new(),
            bytes: 0,
            spare: Vec::new(),
            spare_bytes: 0,
            ended: None,
            cut: false,
        };
        Pipe { capacity, state: Mutex::new(state), readable: Condvar::new(), writable: Condvar::new() }
    }

    fn cut(&self) {
        let mut state = lock(&self.state);
        state.cut = true;
        state.queue.clear();
        drop(state);
        self.notify_both();
    }

    fn end(&self, ending: Ending) {
        lock(&self.state).ended.get_or_insert(ending);
        self.notify_both();
    }

    /// Both, because a closer wakes its own end as well as the other.
    fn notify_both(&self) {
        self.readable.notify_all();
        self.writable.notify_all();
    }
}

/// Fails once the closer of this end was used. Asked with the pipe locked, so that no waiter misses it.
fn check_open(closed: &AtomicBool) -> io::Result<()> {
    match closed.load(Ordering::SeqCst) {
        true => Err(Cause::Closed.error("the stream was closed at this end")),
        false => Ok(()),
    }
}

struct PipeSender {
    pipe: Arc<Pipe>,
    closed: Arc<AtomicBool>,
    finished: bool,
}

impl PipeSender {
    fn check(&self, state: &State) -> io::Result<()> {
        check_open(&self.closed)?;
        if state.cut { Err(Cause::Lost.error("the other end has gone")) } else { Ok(()) }
    }

    fn send_part(&mut self, mut rest: &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            let mut state = lock(&self.pipe.state);
            self.check(&state)?;
            while state.bytes >= self.pipe.capacity {
                state = wait(&self.pipe.writable, state, None).0;
                self.check(&state)?;
            }
            let mut receiver_may_wait = false;
            let count = rest.len().min(self.pipe.capacity - state.bytes).min(CHUNK_BYTES);
            let (now, later) = rest.split_at(count);
            rest = later;
            state.bytes += count;
            if let Some(newest) = state.queue.back_mut()
                && count <= APPEND_BYTES_MAX
                && newest.capacity() - newest.len() >= count
            {
                newest.extend_from_slice(now);
            } else {
                let mut chunk = state.spare.pop().unwrap_or_default();
                state.spare_bytes -= chunk.capacity();
                drop(state);
                chunk.clear();
                chunk.reserve(count.max(APPEND_BYTES_MAX.min(self.pipe.capacity)));
                chunk.extend_from_slice(now);
                state = lock(&self.pipe.state);
                self.check(&state)?;
                receiver_may_wait = state.queue.is_empty();
                state.queue.push_back(chunk);
            }
            drop(state);
            // A wake-up is a system call, also where nobody sleeps.
            if receiver_may_wait {
                self.pipe.readable.notify_one();
            }
        }
        Ok(())
    }
}

impl Sender for PipeSender {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        if self.finished {
            return Err(Cause::Lost.error("sending on a direction that has ended"));
        }
        parts.iter().try_for_each(|part| self.send_part(part))
    }

    fn finish(&mut self) -> io::Result<()> {
        check_open(&self.closed)?;
        self.finished = true;
        self.pipe.end(Ending::Finished);
        Ok(())
    }
}

impl Drop for PipeSender {
    fn drop(&mut self) {
        self.pipe.end(Ending::Abandoned);
    }
}

struct PipeReceiver {
    pipe: Arc<Pipe>,
    closed: Arc<AtomicBool>,
    /// Being received; its first `taken` bytes are gone.
    chunk: Vec<u8>,
    taken: usize,
    timeout: Option<Duration>,
}

impl PipeReceiver {
    /// Waits for the next chunk; false at the clean end.
    fn next_chunk(&mut self) -> io::Result<bool> {
        let deadline = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = lock(&self.pipe.state);
        loop {
            check_open(&self.closed)?;
            if let Some(next) = state.queue.pop_front() {
                let emptied = std::mem::replace(&mut self.chunk, next);
                self.taken = 0;
                if emptied.capacity() > 0 && state.spare_bytes + emptied.capacity() <= self.pipe.capacity {
                    state.spare_bytes += emptied.capacity();
                    state.spare.push(emptied);
                }
                return Ok(true);
            }
            match state.ended {
                Some(Ending::Finished) => return Ok(false),
                Some(Ending::Abandoned) => {
                    return Err(Cause::Lost.error("the other end left without finishing"));
                }
                None => {}
            }
            let in_time;
            (state, in_time) = wait(&self.pipe.readable, state, deadline);
            if !in_time {
                return Err(Cause::Silent.error("no byte came within the timeout"));
            }
        }
    }
}

impl Receiver for PipeReceiver {
    fn receive_some(&mut self, into: &mut [u8]) -> io::Result<usize> {
        debug_assert!(!into.is_empty(), "an empty receive cannot be told from the clean end");
        if self.taken == self.chunk.len() && !self.next_chunk()? {
            return Ok(0);
        }
        let count = into.len().min(self.chunk.len() - self.taken);
        into[..count].copy_from_slice(&self.chunk[self.taken..][..count]);
        self.taken += count;
        let mut state = lock(&self.pipe.state);
        check_open(&self.closed)?;
        let sender_may_wait = state.bytes >= self.pipe.capacity;
        state.bytes -= count;
        drop(state);
        if sender_may_wait {
            self.pipe.writable.notify_one();
        }
        Ok(count)
    }

    fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.timeout = timeout;
        Ok(())
    }
}

impl Drop for PipeReceiver {
    fn drop(&mut self) {
        // Nobody will make room any more: the sender must not wait for it.
        self.pipe.cut();
    }
}
