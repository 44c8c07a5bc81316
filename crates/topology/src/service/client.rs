//! Asks the service.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::message::{ANSWER_BYTES_MAX, Answer, Request};
use super::peer::Peer;
use crate::{Cpus, Plan, Transfer};

/// A connection to the service. Leases end with it.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    patience: Duration,
}

impl Client {
    /// Connects to a service of this user or of root. One of anybody else is an error, whatever the path: who serves where this
    /// user's service would be decides where threads run. Neither connecting nor any answer takes longer than `patience`,
    /// whatever the other end does. [`trouble`] tells errors that mean no more than that nobody serves there.
    pub fn connect(socket: &Path, patience: Duration) -> io::Result<Client> {
        let stream = super::connect(socket)?;
        let peer = Peer::of(&stream)?;
        if !peer.is_trusted() {
            let reason = format!("it is user {}'s, neither this user's nor root's", peer.user);
            return Err(io::Error::new(ErrorKind::PermissionDenied, reason));
        }
        stream.set_nonblocking(false)?;
        Ok(Client { stream, patience })
    }

    /// Connects to the first of these where somebody serves, or says what is wrong at the first where something is.
    pub fn find(sockets: &[PathBuf], patience: Duration) -> Result<(&Path, Client), (&Path, io::Error)> {
        let mut wrong: Option<(&Path, io::Error)> = None;
        for socket in sockets {
            match Client::connect(socket, patience) {
                Ok(client) => return Ok((socket, client)),
                Err(error) if is_nobody(&error) => {}
                Err(error) => wrong = wrong.or(Some((socket, error))),
            }
        }
        Err(wrong.unwrap_or((Path::new(""), ErrorKind::NotFound.into())))
    }

    /// One request and its answer.
    pub fn ask(&mut self, request: &Request) -> io::Result<Answer> {
        let deadline = Instant::now() + self.patience;
        let left = || match deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::Error::from(ErrorKind::TimedOut)),
            left => Ok(Some(left)),
        };
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stream.set_write_timeout(left()?)?;
        self.stream.write_all(&line).map_err(in_time)?;
        let (mut answer, mut bytes) = (Vec::new(), [0; 16 << 10]);
        // Nothing was asked for yet that could follow it.
        while answer.last() != Some(&b'\n') {
            self.stream.set_read_timeout(left()?)?;
            let count = self.stream.read(&mut bytes).map_err(in_time)?;
            if count == 0 || answer.len() + count > ANSWER_BYTES_MAX {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            answer.extend_from_slice(&bytes[..count]);
        }
        Ok(serde_json::from_slice(&answer)?)
    }

    /// Where threads belong, leased if that is more than nothing; with the number of the lease.
    pub fn lease(&mut self, transfer: &Transfer) -> io::Result<(Plan, Option<u64>)> {
        self.plan(transfer, true)
    }

    /// Where threads would belong now; nothing is leased.
    pub fn look(&mut self, transfer: &Transfer) -> io::Result<Plan> {
        Ok(self.plan(transfer, false)?.0)
    }

    fn plan(&mut self, transfer: &Transfer, lease: bool) -> io::Result<(Plan, Option<u64>)> {
        match self.ask(&Request::Plan { transfer: transfer.clone(), lease })? {
            Answer::Plan { plan, lease } => Ok((plan, lease)),
            answer => Err(unexpected(answer)),
        }
    }

    /// CPUs that clients have.
    pub fn leased(&mut self) -> io::Result<Cpus> {
        match self.ask(&Request::Machine {})? {
            Answer::Machine { leased, .. } => Ok(leased),
            answer => Err(unexpected(answer)),
        }
    }

    /// Gives a lease back.
    pub fn release(&mut self, lease: u64) -> io::Result<Cpus> {
        match self.ask(&Request::Release { lease })? {
            Answer::Released { cpus } => Ok(cpus),
            answer => Err(unexpected(answer)),
        }
    }
}

/// What is to be told of a service that is done without, in words. None where nobody serves, as on most hosts.
pub fn trouble(socket: &Path, error: &io::Error) -> Option<String> {
    (!is_nobody(error)).then(|| format!("the placement service at {}: {error}", socket.display()))
}

/// Whether a connection fails with this because nobody serves there.
fn is_nobody(error: &io::Error) -> bool {
    // Nobody can serve at a path that is longer than that of a socket may be.
    [ErrorKind::NotFound, ErrorKind::ConnectionRefused, ErrorKind::InvalidFilename].contains(&error.kind())
}

/// A timeout of a socket is told as if it would block.
fn in_time(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

fn unexpected(answer: Answer) -> io::Error {
    match answer {
        Answer::Error { reason } => io::Error::other(reason),
        _ => ErrorKind::InvalidData.into(),
    }
}
