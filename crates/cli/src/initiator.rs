//! How the end that was started by the user gets its connections.

use std::net::SocketAddr;
use std::process::ChildStdin;
use std::time::{Duration, Instant};

use haul_model::Code;
use haul_mover::Error;
use haul_mover::connection::{Acceptor, Connector, Dialer, Established, Greeter, Introduction, TcpDial};
use haul_transport::{Bound, Listener, Session, tcp};

use crate::bootstrap::{self, Line};
use crate::options::Listen;

/// So long the far end tries to reach this one, and a little more.
const FIRST_CONNECTION_FROM_THERE: Duration = Duration::from_secs(95);
/// So long it waits to be reached, and a little less.
const FAR_END_WAITS: Duration = Duration::from_secs(80);
/// For one address of the other host; where there are many they share the time, since the other way is to be tried, too.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
const DIAL_TIMEOUT_MIN: Duration = Duration::from_secs(2);
/// Of the addresses that the far end names so many are tried.
const ADDRESSES_MAX: usize = 16;
/// For one handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);

/// Which way connections are made, once that is known.
pub enum Way {
    /// Nothing was tried yet.
    Undecided,
    /// The far end listens.
    Dial(Dialer<TcpDial>),
    /// This end does.
    Accept(Acceptor<Listener>),
}

/// The initiator dials the far end; where that does not work, the far end dials the initiator.
pub struct InitiatorConnector {
    /// The name that ssh uses.
    pub host: String,
    /// Under which it was reached.
    pub response_addresses: Vec<String>,
    /// Of its listener.
    pub port: u16,
    /// Of data.
    pub streams: u16,
    /// On which this end may listen.
    pub ports: (u16, u16),
    /// Which end listens.
    pub listen: Listen,
    /// Who proves what to whom.
    pub session: Session,
    /// Kept open: its end would tell the far end nothing, but a second line can.
    pub input: Option<ChildStdin>,
    /// The ssh that it belongs to.
    pub greeter: Option<Greeter>,
    /// Undecided at first.
    pub way: Way,
}

impl Connector for InitiatorConnector {
    fn connect(&mut self, introduction: &Introduction, patience: Duration) -> Result<Established, Error> {
        match &mut self.way {
            Way::Dial(dialer) => return dialer.connect(introduction, patience),
            Way::Accept(acceptor) => return acceptor.connect(introduction, patience),
            Way::Undecided => {}
        }
        if self.listen == Listen::Here {
            return self.accept(introduction, patience);
        }
        let addresses = self.addresses()?;
        let share = (FAR_END_WAITS / 2) / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
        let dial = TcpDial { addresses, timeout: share.clamp(DIAL_TIMEOUT_MIN, DIAL_TIMEOUT) };
        let mut dialer = Dialer::new(dial, self.session.clone(), self.streams, self.greeter.take());
        let began = Instant::now();
        let result = dialer.connect(introduction, patience);
        // It waits longer than that for a connection: it has not ended for want of one.
        let has_ended =
            || began.elapsed() < FAR_END_WAITS && dialer.greeter.as_ref().is_some_and(|far| !far.lives());
        match result {
            // Nothing is in the way: nobody is there any more.
            Err(error) if is_blocked(&error) && has_ended() => Err(Error::new(Code::PeerEnded, &*self.host)
                .hint("it has said why, if it could; run the same command again")),
            Err(error) if self.listen == Listen::Auto && is_blocked(&error) => {
                self.accept(introduction, patience.min(Duration::from_secs(20))).map_err(|_| error)
            }
            result => {
                self.way = Way::Dial(dialer);
                result
            }
        }
    }
}

/// Something between the hosts does not let the connection through.
fn is_blocked(error: &Error) -> bool {
    matches!(error.failure.code, Code::PortBlocked | Code::HostUnreachable | Code::HostUnknown)
}

impl InitiatorConnector {
    fn addresses(&self) -> Result<Vec<SocketAddr>, Error> {
        let answered = self.response_addresses.iter().take(ADDRESSES_MAX);
        let found = std::iter::once(&self.host)
            .chain(answered)
            .map(|host| tcp::resolve(host, self.port, DIAL_TIMEOUT));
        let (mut lists, mut first_error) = (Vec::new(), None);
        for found in found {
            match found {
                Ok(addresses) => lists.push(addresses),
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        match first_error {
            Some(error) if lists.is_empty() => Err(Error::stream(&self.host, &error)),
            _ => Ok(in_order(lists)),
        }
    }

    fn accept(&mut self, introduction: &Introduction, patience: Duration) -> Result<Established, Error> {
        let failed = |error: std::io::Error| Error::stream("listening", &error);
        let bound = bind(self.ports)?;
        let port = bound.address().port();
        let listener =
            Listener::start(bound, self.session.clone(), tcp::Settings::default(), HANDSHAKE_TIMEOUT)
                .map_err(failed)?;
        if let Some(input) = &mut self.input {
            bootstrap::write(input, &Line::Dial { port })
                .map_err(|error| Error::os(Code::SshFailed, "writing to ssh", &error))?;
        }
        let mut acceptor = Acceptor { accept: listener, streams: self.streams };
        let patience = patience.min(FIRST_CONNECTION_FROM_THERE);
        let result = acceptor.connect(introduction, patience).map_err(|error| match error.failure.code {
            Code::PeerSilent => {
                Error::new(Code::PortBlocked, format!("port {port} of this host, from {}", self.host))
                    .hint("open it (--port-range says which), or let the other end listen (--listen far)")
            }
            _ => error,
        });
        self.way = Way::Accept(acceptor);
        result
    }
}

/// The addresses of the name that ssh uses come first; the one under which the far end was reached helps where that name belongs
/// to a jump host or an alias. Where it is one of many that the name has, it is the one.
fn in_order(lists: Vec<Vec<SocketAddr>>) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for (number, list) in lists.into_iter().enumerate() {
        for address in list {
            match addresses.iter().position(|known| *known == address) {
                Some(known) if number > 0 => addresses[..=known].rotate_right(1),
                Some(_) => {}
                None => addresses.push(address),
            }
        }
    }
    addresses
}

/// Takes the first of these ports that is free.
pub fn bind((first, last): (u16, u16)) -> Result<Bound, Error> {
    Bound::bind(None, first..=last).map_err(|error| {
        Error::stream("listening", &error).hint("name others with --port or --port-range, or none at all")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_addresses_of_a_name_the_one_that_was_reached_comes_first() {
        let address = |last: u8| SocketAddr::from(([10, 0, 0, last], 7));
        let list = |addresses: &[u8]| addresses.iter().map(|last| address(*last)).collect::<Vec<_>>();
        assert_eq!(in_order(vec![list(&[1, 2, 3, 2]), list(&[3])]), list(&[3, 1, 2]));
        assert_eq!(in_order(vec![list(&[1]), list(&[9]), list(&[1])]), list(&[1, 9]), "a jump host");
        assert_eq!(in_order(vec![]), []);
    }
}
