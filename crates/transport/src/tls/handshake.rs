//! Drives rustls through a handshake over any stream, within a deadline and a byte limit, then takes the keys over.
//!
//! rustls is fed one record at a time: a record behind the last one of the handshake belongs to [`record`](super::record)
//! and must not be opened here.

use std::io::{self, IoSlice};

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{ContentType, Error, ExtractedSecrets};

use super::record::{RECORD_BYTES_MAX, RECORD_HEADER_BYTES, Schedule};
use super::{LINGER, failed, local};
use crate::session::{Deadline, unfinished};
use crate::{Cause, Stream};

/// What a peer may send until the handshake is done. Ours takes about 4 KiB, most of it post-quantum key shares.
const HANDSHAKE_BYTES_MAX: usize = 64 << 10;
/// Read at a time; a record of the handshake is smaller.
const READ_BYTES: usize = 4 << 10;

/// The client's and the server's connection of rustls, which have no type in common.
pub(super) trait Connection {
    type Data;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn is_handshaking(&self) -> bool;
    /// There is something to encode.
    fn wants_write(&self) -> bool;
    fn into_traffic(self) -> Result<Traffic, Error>;
}

/// The keys that the handshake has agreed on, and where later ones come from.
pub(super) struct Traffic {
    pub(super) secrets: ExtractedSecrets,
    pub(super) schedule: Box<dyn Schedule>,
    pub(super) cipher: Option<&'static str>,
}

/// A stream whose handshake is done.
pub(super) struct Agreed {
    pub(super) stream: Stream,
    pub(super) traffic: Traffic,
    /// Came on the stream behind the handshake.
    pub(super) received: Vec<u8>,
}

impl Traffic {
    fn new<D: Send + 'static>((secrets, kernel): (ExtractedSecrets, KernelConnection<D>)) -> Self
    where
        KernelConnection<D>: Schedule,
    {
        let cipher = kernel.negotiated_cipher_suite().suite().as_str();
        Traffic { secrets, schedule: Box::new(kernel), cipher }
    }
}

impl Connection for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn is_handshaking(&self) -> bool {
        (**self).is_handshaking()
    }

    fn wants_write(&self) -> bool {
        (**self).wants_write()
    }

    fn into_traffic(self) -> Result<Traffic, Error> {
        self.dangerous_into_kernel_connection().map(Traffic::new)
    }
}

impl Connection for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn is_handshaking(&self) -> bool {
        (**self).is_handshaking()
    }

    fn wants_write(&self) -> bool {
        (**self).wants_write()
    }

    fn into_traffic(self) -> Result<Traffic, Error> {
        self.dangerous_into_kernel_connection().map(Traffic::new)
    }
}

enum Failed {
    /// The connection broke, or the deadline passed.
    Stream(io::Error),
    /// rustls refused; it has an alert for the peer.
    Tls(Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Failed::Stream(error)
    }
}

/// Shakes hands. `received` came on the stream already.
pub(super) fn run(
    mut connection: impl Connection,
    mut stream: Stream,
    received: &[u8],
    deadline: Deadline,
) -> io::Result<Agreed> {
    let mut incoming = Incoming { bytes: received.to_vec(), fed: 0, total: received.len() };
    match drive(&mut connection, &mut stream, &mut incoming, deadline) {
        Ok(()) => {
            let traffic = connection.into_traffic().map_err(local)?;
            Ok(Agreed { stream, traffic, received: incoming.bytes })
        }
        Err(Failed::Stream(error)) => Err(unfinished(error)),
        Err(Failed::Tls(error)) => {
            // Best effort: the peer learns why, if it still listens.
            let _ = send_alert(&mut connection, &mut incoming, &mut stream, deadline);
            Err(failed(error))
        }
    }
}

/// What came and is not done with.
struct Incoming {
    bytes: Vec<u8>,
    /// Whole records at the front that rustls has been given.
    fed: usize,
    /// Ever received.
    total: usize,
}

impl Incoming {
    /// Lets one more whole record be fed, reading it first if need be.
    fn feed(&mut self, stream: &mut Stream, deadline: Deadline) -> io::Result<()> {
        self.read(RECORD_HEADER_BYTES, stream, deadline)?;
        let header = &self.bytes[self.fed..][..RECORD_HEADER_BYTES];
        let length = RECORD_HEADER_BYTES + usize::from(u16::from_be_bytes([header[3], header[4]]));
        // Looked at before its bytes are waited for: whoever speaks something else is told so at once.
        let known = (u8::from(ContentType::ChangeCipherSpec)..=u8::from(ContentType::ApplicationData))
            .contains(&header[0]);
        if !known || header[1] != 3 || length > RECORD_BYTES_MAX {
            return Err(Cause::Malformed.error("the other end does not speak TLS"));
        }
        self.read(length, stream, deadline)?;
        self.fed += length;
        Ok(())
    }

    /// rustls is done with so many bytes. It keeps positions in what was fed, so this is due after every call, also
    /// after one that failed.
    fn discard(&mut self, count: usize) {
        self.bytes.drain(..count);
        self.fed -= count;
    }

    /// Reads until `count` bytes follow those that were fed.
    fn read(&mut self, count: usize, stream: &mut Stream, deadline: Deadline) -> io::Result<()> {
        while self.bytes.len() - self.fed < count {
            let mut buffer = [0; READ_BYTES];
            deadline.arm(&mut *stream.receiver)?;
            let received = stream.receiver.receive_some(&mut buffer)?;
            if received == 0 {
                return Err(Cause::CleanEnd.error("the other end closed the connection"));
            }
            self.total += received;
            if self.total > HANDSHAKE_BYTES_MAX {
                return Err(Cause::Excess.error("TLS handshake: the other end sent too many bytes"));
            }
            self.bytes.extend_from_slice(&buffer[..received]);
        }
        Ok(())
    }
}

fn drive(
    connection: &mut impl Connection,
    stream: &mut Stream,
    incoming: &mut Incoming,
    deadline: Deadline,
) -> Result<(), Failed> {
    enum Next {
        Process,
        Feed,
        Done,
    }
    let mut outgoing = Vec::new();
    loop {
        let UnbufferedStatus { discard, state, .. } = connection.process(&mut incoming.bytes[..incoming.fed]);
        let next = match state {
            Ok(ConnectionState::EncodeTlsData(data)) => {
                encode(data, &mut outgoing);
                Ok(Next::Process)
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                stream.sender.send(&[IoSlice::new(&outgoing)])?;
                outgoing.clear();
                data.done();
                Ok(Next::Process)
            }
            Ok(ConnectionState::BlockedHandshake) => Ok(Next::Feed),
            Ok(ConnectionState::WriteTraffic(_)) => Ok(Next::Done),
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                Err(Cause::CleanEnd.error("the other end closed the connection").into())
            }
            Ok(_) => Err(Cause::Malformed.error("TLS handshake: data before its end").into()),
            Err(error) => Err(Failed::Tls(error)),
        };
        incoming.discard(discard);
        match next? {
            Next::Process => {}
            Next::Done if !connection.is_handshaking() && incoming.fed == 0 => return Ok(()),
            Next::Feed | Next::Done => incoming.feed(stream, deadline)?,
        }
    }
}

fn encode<D>(mut data: EncodeTlsData<'_, D>, outgoing: &mut Vec<u8>) {
    let start = outgoing.len();
    if let Err(EncodeError::InsufficientSize(size)) = data.encode(&mut []) {
        outgoing.resize(start + size.required_size, 0);
        data.encode(&mut outgoing[start..]).expect("the size that was asked for");
    }
}

/// Sends what rustls still has to say after it failed, then waits a little for the peer to have read it.
fn send_alert(
    connection: &mut impl Connection,
    incoming: &mut Incoming,
    stream: &mut Stream,
    deadline: Deadline,
) -> io::Result<()> {
    let mut outgoing = Vec::new();
    // With nothing to encode, rustls would go on reading where it has failed.
    while connection.wants_write() {
        let UnbufferedStatus { discard, state, .. } = connection.process(&mut incoming.bytes[..incoming.fed]);
        let Ok(ConnectionState::EncodeTlsData(data)) = state else { break };
        encode(data, &mut outgoing);
        incoming.discard(discard);
    }
    if outgoing.is_empty() {
        return Ok(());
    }
    stream.sender.send(&[IoSlice::new(&outgoing)])?;
    stream.sender.finish()?;
    let linger = deadline.min(Deadline::after(LINGER));
    let mut buffer = [0; READ_BYTES];
    let mut left = HANDSHAKE_BYTES_MAX / READ_BYTES;
    while left > 0 {
        linger.arm(&mut *stream.receiver)?;
        if stream.receiver.receive_some(&mut buffer)? == 0 {
            break;
        }
        left -= 1;
    }
    Ok(())
}
