//! What the two ends of a session agreed on, and how a raw stream becomes a stream of that session.
//!
//! Called by crate `mover` on what [`tcp::connect`](crate::tcp::connect) gave, and by the listener on what it accepted.
//! The bytes are specified in `docs/spec/streams.md`: protection first (TLS, or the challenge of [`plain`]), and within
//! it the hello, which says which stream of which session this is. Only then is the stream the caller's.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_model::SessionId;
use haul_model::limits::STREAMS_MAX;

use crate::{Cause, Fingerprint, Identity, Receiver, Stream, StreamKey, plain, tls};

/// Which end somebody is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Role {
    /// Reads the dataset.
    Source = 1,
    /// Writes the dataset.
    Sink = 2,
}

impl Role {
    fn other(self) -> Role {
        match self {
            Role::Source => Role::Sink,
            Role::Sink => Role::Source,
        }
    }
}

/// Which stream of a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Purpose {
    /// Messages; always encrypted.
    Control,
    /// Payloads, on data stream k of at most [`STREAMS_MAX`].
    Data(u16),
}

/// What the two ends agreed on over ssh before they connect. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Session(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: SessionId,
    role: Role,
    profile: tls::Profile,
    key: Option<StreamKey>,
}

/// Bytes of a hello.
pub const HELLO_BYTES: usize = 32;
const MAGIC: &[u8; 4] = b"haul";
const VERSION: u8 = 1;
/// First byte of every TLS handshake record (RFC 8446, 5.1).
const TLS_HANDSHAKE_RECORD: u8 = 22;

/// How the bytes of a stream are protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Protection {
    Tls = 1,
    Plain = 2,
}

/// The listener's answer to a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Answer {
    Accepted = 0,
    Unproven = 1,
    Version = 2,
    Mismatch = 3,
    Busy = 4,
}

impl Answer {
    /// What the dialer makes of it.
    pub(crate) fn read(byte: u8) -> io::Result<()> {
        match byte {
            0 => Ok(()),
            1 => Err(Cause::Unproven.error("the listener did not believe this end")),
            2 => Err(Cause::Version.error("the listener speaks another version of the stream protocol")),
            3 => Err(Cause::Malformed.error("the listener expects another session or stream")),
            4 => Err(Cause::Busy.error("the listener holds as many streams as it can")),
            _ => Err(Cause::Malformed.error("the listener gave an unknown answer")),
        }
    }

    /// What the listener itself reports when it gives another answer than yes.
    pub(crate) fn refusal(self) -> io::Error {
        match self {
            Answer::Accepted => Cause::Local.error("an accepted stream was treated as refused"),
            Answer::Unproven => Cause::Unproven.error("the dialer could not prove that it holds the key"),
            Answer::Version => {
                Cause::Version.error("the dialer speaks another version of the stream protocol")
            }
            Answer::Mismatch => Cause::Malformed.error("the dialer wants another session or stream"),
            Answer::Busy => Cause::Busy.error("too many streams wait to be taken"),
        }
    }
}

/// When a handshake must be over. Taken before anything is held for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// From now.
    pub fn after(timeout: Duration) -> Self {
        let now = Instant::now();
        // A timeout beyond the clock's range is a day, not "never".
        Deadline(now.checked_add(timeout).unwrap_or(now + Duration::from_secs(86_400)))
    }

    /// Lets the next receive wait until the deadline, and no longer.
    pub(crate) fn arm(&self, receiver: &mut dyn Receiver) -> io::Result<()> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Cause::Silent.error("the handshake was not over at its deadline"));
        }
        receiver.set_timeout(Some(left))
    }

    /// Fills `into`, which a peer that sends one byte now and then cannot drag past the deadline.
    pub fn receive(&self, receiver: &mut dyn Receiver, into: &mut [u8]) -> io::Result<()> {
        crate::fill(into, |rest| {
            self.arm(receiver)?;
            receiver.receive_some(rest)
        })
        .map_err(unfinished)
    }
}

/// An end within a handshake is a broken connection, however clean it looks.
pub(crate) fn unfinished(error: io::Error) -> io::Error {
    match crate::cause(&error) {
        Cause::CleanEnd | Cause::Truncated => {
            Cause::Lost.error("the other end closed the connection within the handshake")
        }
        _ => error,
    }
}

impl Session {
    /// `identity` is this end's, `peer` the fingerprint that the other end's certificate must have. With a `key`, data
    /// streams are clear and authenticated under it (`--plain`); without, everything is encrypted.
    pub fn new(
        id: SessionId,
        role: Role,
        identity: &Identity,
        peer: Fingerprint,
        key: Option<StreamKey>,
    ) -> io::Result<Self> {
        let profile = tls::Profile::new(identity, peer)?;
        Ok(Session(Arc::new(Inner { id, role, profile, key })))
    }

    fn protection(&self, purpose: Purpose) -> Protection {
        match (purpose, &self.0.key) {
            (Purpose::Data(_), Some(_)) => Protection::Plain,
            _ => Protection::Tls,
        }
    }

    /// The hello that this end sends when it dials.
    fn hello(&self, purpose: Purpose) -> [u8; HELLO_BYTES] {
        let (kind, number) = match purpose {
            Purpose::Control => (1, 0),
            Purpose::Data(number) => (2, number),
        };
        let mut hello = [0; HELLO_BYTES];
        hello[..4].copy_from_slice(MAGIC);
        hello[4] = VERSION;
        hello[5] = self.0.role as u8;
        hello[6] = kind;
        hello[7] = self.protection(purpose) as u8;
        hello[8..10].copy_from_slice(&number.to_le_bytes());
        hello[16..].copy_from_slice(&self.0.id.0);
        hello
    }

    /// Reads the other end's hello: it must be, bit for bit, one that this session's other end would send.
    fn read_hello(&self, hello: &[u8; HELLO_BYTES], protection: Protection) -> Result<Purpose, Answer> {
        if &hello[..4] != MAGIC {
            return Err(Answer::Mismatch);
        }
        if hello[4] != VERSION {
            return Err(Answer::Version);
        }
        let number = u16::from_le_bytes([hello[8], hello[9]]);
        let purpose = match hello[6] {
            1 => Purpose::Control,
            2 if u32::from(number) < STREAMS_MAX => Purpose::Data(number),
            _ => return Err(Answer::Mismatch),
        };
        let mut expected = self.hello(purpose);
        expected[5] = self.0.role.other() as u8;
        match *hello == expected && self.protection(purpose) == protection {
            true => Ok(purpose),
            false => Err(Answer::Mismatch),
        }
    }

    /// Makes a raw stream, which this end opened, a stream of the session, within `timeout`.
    ///
    /// Both ends send a flight at once, so the raw stream must hold 4 KiB each way before it blocks: any socket does.
    /// Returns once the listener has accepted it, so an error here is the whole story: [`Cause::Unproven`] when one end
    /// did not believe the other, [`Cause::Silent`] at the deadline, [`Cause::Malformed`] for anything but haul.
    pub fn dial(&self, stream: Stream, purpose: Purpose, timeout: Duration) -> io::Result<Stream> {
        let closer = stream.closer();
        let result = self.dial_within(stream, purpose, Deadline::after(timeout));
        result.inspect_err(|_| closer.close())
    }

    fn dial_within(&self, mut stream: Stream, purpose: Purpose, deadline: Deadline) -> io::Result<Stream> {
        let hello = self.hello(purpose);
        match (self.protection(purpose), &self.0.key) {
            (Protection::Plain, Some(key)) => plain::dial(&mut stream, &hello, key, deadline)?,
            _ => {
                stream = self.0.profile.connect(stream, deadline)?;
                stream.sender.send(&[IoSlice::new(&hello)])?;
                let mut answer = [0];
                deadline.receive(&mut *stream.receiver, &mut answer)?;
                Answer::read(answer[0])?;
            }
        }
        stream.receiver.set_timeout(None)?;
        Ok(stream)
    }

    /// Makes a raw stream, which the other end opened, a stream of the session, within `timeout`. The [`Listener`]
    /// does this for sockets; tests and other drivers call it.
    ///
    /// [`Listener`]: crate::Listener
    pub fn answer(&self, stream: Stream, timeout: Duration) -> io::Result<(Purpose, Stream)> {
        self.answer_if(stream, Deadline::after(timeout), |_| true)
    }

    /// As [`Session::answer`]; `admit` is asked about a proven peer, and its no is told to the dialer.
    pub(crate) fn answer_if(
        &self,
        stream: Stream,
        deadline: Deadline,
        admit: impl FnOnce(Purpose) -> bool,
    ) -> io::Result<(Purpose, Stream)> {
        let closer = stream.closer();
        let result = self.answer_within(stream, deadline, admit);
        result.inspect_err(|_| closer.close())
    }

    fn answer_within(
        &self,
        mut stream: Stream,
        deadline: Deadline,
        admit: impl FnOnce(Purpose) -> bool,
    ) -> io::Result<(Purpose, Stream)> {
        let mut opening = [0; plain::OPENING_BYTES];
        deadline.arm(&mut *stream.receiver)?;
        let count = match stream.receiver.receive_some(&mut opening)? {
            0 => return Err(Cause::Lost.error("the dialer closed the connection before its first byte")),
            count => count,
        };
        let decide = |protection, hello: &[u8; HELLO_BYTES]| {
            let purpose = self.read_hello(hello, protection)?;
            if admit(purpose) { Ok(purpose) } else { Err(Answer::Busy) }
        };
        let purpose = match (opening[0], &self.0.key) {
            (TLS_HANDSHAKE_RECORD, _) => {
                stream = self.0.profile.accept(stream, &opening[..count], deadline)?;
                let mut hello = [0; HELLO_BYTES];
                deadline.receive(&mut *stream.receiver, &mut hello)?;
                let decision = decide(Protection::Tls, &hello);
                let answer = decision.err().unwrap_or(Answer::Accepted);
                stream.sender.send(&[IoSlice::new(&[answer as u8])])?;
                decision.map_err(Answer::refusal)?
            }
            (first, Some(key)) if first == MAGIC[0] => {
                if count < opening.len() {
                    deadline.receive(&mut *stream.receiver, &mut opening[count..])?;
                }
                plain::answer(&mut stream, &opening, key, deadline, |hello| decide(Protection::Plain, hello))?
            }
            (first, None) if first == MAGIC[0] => {
                return Err(
                    Cause::Malformed.error("the dialer wants a clear stream, but this session is encrypted")
                );
            }
            _ => return Err(Cause::Malformed.error("the dialer speaks neither TLS nor this protocol")),
        };
        stream.receiver.set_timeout(None)?;
        Ok((purpose, stream))
    }
}
