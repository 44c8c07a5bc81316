//! Byte streams between the two ends of a session, and the drivers that carry them.
//!
//! Called by the comm threads of crate `mover`. Everything blocks; nothing here knows a message, an object or a file,
//! and no payload byte is copied more often than the driver's nature asks for (clear TCP: never).
//!
//! # The types
//!
//! | type | what it is |
//! |---|---|
//! | [`Stream`] | a duplex byte stream, whole: a [`Sender`], a [`Receiver`] and a [`Closer`], to be split over threads |
//! | [`Sender`], [`Receiver`] | the two halves; the one trait family that drivers and decorators implement |
//! | [`Closer`] | ends the stream from any thread |
//! | [`Session`] | what the two ends agreed on beforehand (id, roles, pinned certificates, key for clear streams) |
//! | [`Purpose`] | which stream of the session this is: control, or data number k |
//! | [`Cause`] | what went wrong, as a closed table; [`cause`] reads it from any `io::Error` of this crate |
//!
//! # The stack
//!
//! ```text
//! drivers      tcp::connect, Listener (sockets)     memory::pair (one process)
//! protection   Session::dial / Session::answer: mutual TLS 1.3, or a clear stream behind an HMAC challenge,
//!              then the hello that names the stream
//! decorators   trace (counts), rate (token bucket), fault (cut, stall, flip, delay): above or beneath protection
//! ```
//!
//! Each layer takes a [`Stream`] and gives one, so a test can flip a bit beneath TLS, and TLS runs over a pipe.
//!
//! # What must stay true
//!
//! - No stream is handed to a caller before both ends proved who they are (drivers alone prove nothing).
//! - Whatever a peer does, a handshake ends at its deadline and within its byte limit; see `docs/spec/streams.md`.
//! - Every implementation passes [`mod@conformance`].

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

pub mod conformance;
mod error;
pub mod fault;
mod gate;
mod identity;
mod listen;
pub mod memory;
mod plain;
pub mod rate;
mod session;
pub mod tcp;
mod tls;
pub mod trace;

pub use error::{Cause, cause};
pub use identity::{Fingerprint, Identity, StreamKey};
pub use listen::{Bound, Listener, Refusals};
pub use session::{Deadline, HELLO_BYTES, Purpose, Role, Session};

/// The half that sends. Dropped before [`finish`](Sender::finish), it ends its direction uncleanly (which a clear TCP
/// stream cannot tell from a clean end).
pub trait Sender: Send {
    /// Sends all of the parts, one behind the other, and returns once the driver has taken them over.
    ///
    /// A message with a small header and a payload of up to 64 MiB goes in one call, so that both leave together.
    /// After an error the half is of no more use: nobody knows how much has left.
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()>;

    /// Sends `head`, and behind it `room.len()` bytes of `file` from `offset`.
    ///
    /// What the file has no more (it was cut short) arrives as zeros: the stream keeps its order, and whoever knows the hash of
    /// the bytes, or looks at the file again, finds out. What cannot be read is an error, and no byte of it or behind it leaves.
    /// A driver that can take them straight from the file leaves `room` as it is. Where somebody is to `see` them, all that
    /// leaves behind `head` is shown, in order, as it leaves.
    fn send_file(
        &mut self,
        head: &[u8],
        file: BorrowedFd<'_>,
        offset: u64,
        room: &mut [u8],
        see: Option<See<'_>>,
    ) -> io::Result<()> {
        send_through_room(self, head, file, offset, room, see)
    }

    /// The clean end of this direction; the other direction stays open. A second call does nothing.
    fn finish(&mut self) -> io::Result<()>;
}

/// As [`Sender::send_file`] does it where bytes cannot be taken straight from the file.
pub(crate) fn send_through_room(
    sender: &mut (impl Sender + ?Sized),
    head: &[u8],
    file: BorrowedFd<'_>,
    offset: u64,
    room: &mut [u8],
    see: Option<See<'_>>,
) -> io::Result<()> {
    read_or_zero(file, offset, room)?;
    if let Some(see) = see {
        see(room);
    }
    sender.send(&[IoSlice::new(head), IoSlice::new(room)])
}

/// Whoever sees bytes on their way.
pub type See<'a> = &'a mut dyn FnMut(&[u8]);

/// The half that receives.
///
/// Read to the end before dropping it: a socket that is closed over unread bytes may take back what its end has sent.
pub trait Receiver: Send {
    /// Waits for bytes and returns how many came, at least 1, or 0 at the clean end. `into` must not be empty.
    ///
    /// Past the count, the content of `into` is unspecified afterwards.
    fn receive_some(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Fills `into`.
    ///
    /// A clean end before the first byte is [`Cause::CleanEnd`], one after it [`Cause::Truncated`]; both have the
    /// kind `UnexpectedEof`. Of an empty slice nothing is asked.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<()> {
        fill(into, |rest| self.receive_some(rest))
    }

    /// How long to wait for the next byte; `None`, the first state, means for ever.
    ///
    /// When it is over the call fails with [`Cause::Silent`]. If no byte had come in that call, the stream is as it
    /// was and may be waited on again.
    fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()>;
}

/// Fills `room` from the file; zeros where it ends.
pub(crate) fn read_or_zero(file: BorrowedFd<'_>, offset: u64, room: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < room.len() {
        match rustix::io::pread(file, &mut room[filled..], offset + filled as u64) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) => {
                room[filled..].fill(0);
                return Ok(());
            }
            Ok(count) => filled += count,
            Err(errno) => return Err(Cause::Unreadable.error(format!("reading a file: {errno}"))),
        }
    }
    Ok(())
}

/// Fills `into` by repeated calls; see [`Receiver::receive`] for the errors.
pub(crate) fn fill(into: &mut [u8], mut some: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        match some(&mut into[filled..])? {
            0 if filled == 0 => return Err(Cause::CleanEnd.error("the other end has finished")),
            0 => return Err(Cause::Truncated.error("the other end finished within a message")),
            count => filled += count,
        }
    }
    Ok(())
}

/// Ends a stream from any thread: a blocked send or receive of this end returns [`Cause::Closed`] promptly, as does
/// every later one. What had not left yet is lost. The other end sees an end or an error, whichever its driver can tell.
#[derive(Clone)]
pub struct Closer(Arc<dyn Fn() + Send + Sync>);

impl Closer {
    /// `close` must not block and may be called many times.
    pub fn new(close: impl Fn() + Send + Sync + 'static) -> Self {
        Closer(Arc::new(close))
    }

    /// Ends the stream.
    pub fn close(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Closer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closer")
    }
}

/// How many bytes have come to this end of a stream, whether or not anybody has taken them: for any thread.
#[derive(Clone, Default)]
pub struct Arrivals(Option<Arc<dyn Fn() -> Option<u64> + Send + Sync>>);

impl Arrivals {
    /// `count` must not block; `None` once nobody knows any more.
    pub fn new(count: impl Fn() -> Option<u64> + Send + Sync + 'static) -> Self {
        Arrivals(Some(Arc::new(count)))
    }

    /// Since the stream stands, with all that the layers below put around what passes; none where that is not known.
    pub fn bytes(&self) -> Option<u64> {
        self.0.as_ref().and_then(|count| count())
    }
}

impl fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Arrivals").field(&self.bytes()).finish()
    }
}

/// What may be told about a stream to people: for `--json`, receipts and traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct About {
    /// Where the other end is; none in one process.
    pub peer: Option<SocketAddr>,
    /// The TLS cipher suite, by its registered name; none on a clear stream.
    pub cipher: Option<&'static str>,
    /// Both ends are on one host: nothing but its processors moves the bytes.
    pub same_host: bool,
    /// From one end to the other and back, as the network was at its fastest when the connection was made; none if that is not
    /// known, as in one process.
    pub round_trip: Option<Duration>,
}

/// A duplex byte stream that has not been split over threads yet.
pub struct Stream {
    pub(crate) sender: Box<dyn Sender>,
    pub(crate) receiver: Box<dyn Receiver>,
    pub(crate) closer: Closer,
    pub(crate) about: About,
    pub(crate) arrivals: Arrivals,
}

impl Stream {
    /// From the parts of a driver or decorator.
    pub fn new(sender: Box<dyn Sender>, receiver: Box<dyn Receiver>, closer: Closer, about: About) -> Self {
        Stream { sender, receiver, closer, about, arrivals: Arrivals::default() }
    }

    /// The same, of a driver that knows what has come, or of a decorator that passes on what its lower stream knows.
    pub fn with_arrivals(self, arrivals: Arrivals) -> Self {
        Stream { arrivals, ..self }
    }

    /// How much has come.
    pub fn arrivals(&self) -> Arrivals {
        self.arrivals.clone()
    }

    /// The halves, each for a thread of its own, and the handle that ends both.
    pub fn split(self) -> (Box<dyn Sender>, Box<dyn Receiver>, Closer) {
        (self.sender, self.receiver, self.closer)
    }

    /// The sending half, while the stream is still whole.
    pub fn sender(&mut self) -> &mut dyn Sender {
        &mut *self.sender
    }

    /// The receiving half, while the stream is still whole.
    pub fn receiver(&mut self) -> &mut dyn Receiver {
        &mut *self.receiver
    }

    /// The handle that ends both halves.
    pub fn closer(&self) -> Closer {
        self.closer.clone()
    }

    /// What may be told about it.
    pub fn about(&self) -> About {
        self.about
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.about).finish()
    }
}
