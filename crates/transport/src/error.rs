//! What can go wrong with a stream, as a closed table that maps to the rows of `haul_model::Code`.
//!
//! The traits speak `io::Error`, so that a caller may treat every stream alike; each error of this crate carries its
//! row inside, and [`cause`] reads it back.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, ErrorKind};

use haul_model::Code;

macro_rules! table {
    ($($(#[$text:meta])* $cause:ident $kind:ident $code:ident;)*) => {
        /// What went wrong.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Cause { $($(#[$text])* $cause,)* }

        impl Cause {
            /// The row of the table that everyone shares.
            pub const fn code(self) -> Code { match self { $(Cause::$cause => Code::$code,)* } }

            const fn kind(self) -> ErrorKind { match self { $(Cause::$cause => ErrorKind::$kind,)* } }
        }
    };
}

table! {
    /// The host name has no address, or its resolver does not answer.
    NameUnknown NotFound HostUnknown;
    /// The host answered that nothing listens on the port.
    Refused ConnectionRefused PortBlocked;
    /// Nothing answered the connection request in time, or something on the way forbids it: probably a firewall.
    Filtered TimedOut PortBlocked;
    /// No route to the host, or its network says that it is down.
    Unreachable HostUnreachable HostUnreachable;
    /// No port of the range can be listened on.
    NoPort AddrInUse PortBlocked;
    /// The other end finished, before the first byte of what was asked for.
    CleanEnd UnexpectedEof ConnectionLost;
    /// The other end finished, or vanished, within what was asked for.
    Truncated UnexpectedEof ConnectionLost;
    /// The stream was ended at this end, by its [`Closer`](crate::Closer).
    Closed ConnectionAborted ConnectionLost;
    /// No byte came within the timeout.
    Silent TimedOut PeerSilent;
    /// The connection broke.
    Lost ConnectionReset ConnectionLost;
    /// A range of a file that was to be sent could not be read: the stream ends, so that nothing arrives in its place.
    Unreadable Other ConnectionLost;
    /// The other end could not prove who it is, or did not believe this one.
    Unproven PermissionDenied AuthFailed;
    /// A record came with other bytes than were sent: bad hardware, or an attacker.
    Altered InvalidData ConnectionLost;
    /// The other end speaks something else than this protocol.
    Malformed InvalidData Protocol;
    /// The other end sent more than a limit allows.
    Excess InvalidData LimitExceeded;
    /// The other end speaks another version of this protocol.
    Version Unsupported PeerVersion;
    /// The other end holds as many streams as it can.
    Busy ResourceBusy ConnectionLost;
    /// This host refuses a resource (descriptors, memory, threads, random bytes).
    Local Other SystemRefused;
}

impl Cause {
    /// An error of this cause. `detail` is for people and names what was being done.
    pub(crate) fn error(self, detail: impl Into<Cow<'static, str>>) -> io::Error {
        io::Error::new(self.kind(), StreamError { cause: self, detail: detail.into() })
    }
}

/// Why this error happened: exact for errors of this crate, by kind for others.
pub fn cause(error: &io::Error) -> Cause {
    if let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamError>()) {
        return inner.cause;
    }
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Cause::Silent,
        ErrorKind::UnexpectedEof => Cause::Truncated,
        ErrorKind::ConnectionRefused => Cause::Refused,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => {
            Cause::Unreachable
        }
        ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::NotConnected => Cause::Lost,
        _ => Cause::Local,
    }
}

#[derive(Debug)]
struct StreamError {
    cause: Cause,
    detail: Cow<'static, str>,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for StreamError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_survives_in_its_error_and_foreign_errors_are_read_by_kind() {
        for (row, code) in [
            (Cause::NameUnknown, Code::HostUnknown),
            (Cause::Refused, Code::PortBlocked),
            (Cause::Filtered, Code::PortBlocked),
            (Cause::Unreachable, Code::HostUnreachable),
            (Cause::Silent, Code::PeerSilent),
            (Cause::Unproven, Code::AuthFailed),
        ] {
            assert_eq!((cause(&row.error("x")), row.code()), (row, code));
        }
        assert_eq!(cause(&ErrorKind::BrokenPipe.into()), Cause::Lost);
        assert_eq!(cause(&io::Error::other("x")), Cause::Local);
    }
}
