//! Asks the service.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::message::{ANSWER_BYTES_MAX, Answer, Request};
use crate::{Cpus, Plan, Transfer};

/// A connection to the service. Leases end with it.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects; an error means that nobody serves there, and nothing more. No answer takes longer than `patience`.
    pub fn connect(socket: &Path, patience: Duration) -> io::Result<Client> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    /// One request and its answer.
    pub fn ask(&mut self, request: &Request) -> io::Result<Answer> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)?;
        let mut answer = Vec::new();
        (&mut self.stream).take(ANSWER_BYTES_MAX as u64).read_until(b'\n', &mut answer)?;
        if answer.last() != Some(&b'\n') {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&answer)?)
    }

    /// Where threads belong, leased if that is more than nothing; with the number of the lease.
    pub fn lease(&mut self, transfer: &Transfer) -> io::Result<(Plan, Option<u64>)> {
        match self.ask(&Request::Plan { transfer: transfer.clone(), lease: true })? {
            Answer::Plan { plan, lease } => Ok((plan, lease)),
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

fn unexpected(answer: Answer) -> io::Error {
    match answer {
        Answer::Error { reason } => io::Error::other(reason),
        _ => ErrorKind::InvalidData.into(),
    }
}
