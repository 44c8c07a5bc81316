//! How the end that was started by the user gets its connections.

use std::net::{IpAddr, SocketAddr};
use std::process::ChildStdin;
use std::time::{Duration, Instant};

use haul_model::Code;
use haul_mover::Error;
use haul_mover::connection::{
    Acceptor, Connector, Dialer, Established, FIRST_ATTEMPTS, Greeter, Introduction, TcpDial,
};
use haul_transport::{Bound, Listener, Session, tcp};

use crate::bootstrap::{self, Line};
use crate::options::Listen;

/// So long the far end tries to reach this one, and a little more.
const FIRST_CONNECTION_FROM_THERE: Duration = Duration::from_secs(95);
/// So long it tries once nothing has come through to it, or some streams have: then it waits for the others first.
const DIALED_BACK: Duration = Duration::from_secs(20);
const DIALED_BACK_AFTER_SOME: Duration = Duration::from_secs(45);
/// So long it waits to be reached, and a little less.
const FAR_END_WAITS: Duration = Duration::from_secs(80);
/// For one address of the other host; where there are many they share the time, since the other way is to be tried, too.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
const DIAL_TIMEOUT_MIN: Duration = Duration::from_secs(2);
/// Of the addresses that the far end names so many are tried.
const ADDRESSES_MAX: usize = 16;
/// So long one may still come once ssh has gone: most likely the far end has, too.
const CONNECTION_WITHOUT_SSH: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(300);
const LOOK_LEAST: Duration = Duration::from_millis(10);
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
    /// A connection has stood.
    pub connected: bool,
    /// What came of the attempts before.
    pub tried: Tried,
}

/// Attempts of the first connection.
#[derive(Default)]
pub struct Tried {
    /// How many were cut.
    cut: u32,
    /// One of them came as far as to the other end's answer, which waits for the rest of it.
    reached: bool,
}

impl Connector for InitiatorConnector {
    fn connect(&mut self, introduction: &Introduction, patience: Duration) -> Result<Established, Error> {
        match &mut self.way {
            Way::Dial(dialer) if dialer.connected => return dialer.connect(introduction, patience),
            Way::Accept(acceptor) if self.connected => return acceptor.connect(introduction, patience),
            Way::Accept(acceptor) => {
                let first = First { greeter: self.greeter.as_ref(), host: &self.host };
                let result = first.accept(acceptor, introduction, patience);
                self.connected = result.is_ok();
                return result;
            }
            Way::Undecided | Way::Dial(_) => {}
        }
        if self.listen == Listen::Here {
            return self.accept(introduction, patience);
        }
        let mut dialer = match std::mem::replace(&mut self.way, Way::Undecided) {
            Way::Dial(dialer) => dialer,
            _ => self.dialer()?,
        };
        let began = Instant::now();
        let result = dialer.connect(introduction, patience);
        self.tried.reached |= dialer.reached;
        // It waits longer than that for a connection: it has not ended for want of one.
        let has_ended =
            || began.elapsed() < FAR_END_WAITS && dialer.greeter.as_ref().is_some_and(|far| !far.lives());
        let is_cut = result.as_ref().is_err_and(|error| error.failure.code == Code::ConnectionLost);
        self.tried.cut += u32::from(is_cut);
        // The last attempt there is: the path may just be lossy.
        let is_in_the_way = |error: &Error| is_blocked(error) || is_cut && self.tried.cut >= FIRST_ATTEMPTS;
        match result {
            // Nothing is in the way.
            Err(error) if is_in_the_way(&error) && has_ended() => Err(ended(&self.host)),
            Err(error) if self.listen == Listen::Auto && is_in_the_way(&error) => {
                let reached = dialer.reached;
                self.greeter = dialer.greeter.take();
                let tried = if self.tried.reached { DIALED_BACK_AFTER_SOME } else { DIALED_BACK };
                let back = self.accept(introduction, patience.min(tried));
                back.map_err(|_| self.passes_nothing(error, reached))
            }
            result => {
                let reached = dialer.reached;
                self.way = Way::Dial(dialer);
                result.map_err(|error| self.passes_nothing(error, reached))
            }
        }
    }
}

/// Something between the hosts does not let the connection through, or takes it and lets nothing pass.
fn is_blocked(error: &Error) -> bool {
    let codes = [Code::PortBlocked, Code::HostUnreachable, Code::HostUnknown, Code::PeerSilent];
    codes.contains(&error.failure.code)
}

/// What the far end says it was reached under, as far as this end may connect there: it names addresses of its own, no names that are
/// looked up here, and nothing on this very host unless that is where the name leads.
fn told_addresses(told: &[String], port: u16, named: &[SocketAddr]) -> Vec<Vec<SocketAddr>> {
    let elsewhere = |address: &IpAddr| match address.to_canonical() {
        IpAddr::V4(v4) => {
            !(v4.is_loopback()
                || v4.is_unspecified()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_broadcast())
        }
        IpAddr::V6(v6) => {
            !(v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local() || v6.is_multicast())
        }
    };
    let may = |address: &IpAddr| elsewhere(address) || named.iter().any(|known| known.ip() == *address);
    let addresses = told.iter().take(ADDRESSES_MAX).filter_map(|text| text.parse::<IpAddr>().ok());
    addresses.filter(may).map(|address| vec![SocketAddr::new(address, port)]).collect()
}

impl InitiatorConnector {
    fn dialer(&mut self) -> Result<Dialer<TcpDial>, Error> {
        let addresses = self.addresses()?;
        let share = (FAR_END_WAITS / 2) / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
        let dial = TcpDial { addresses, timeout: share.clamp(DIAL_TIMEOUT_MIN, DIAL_TIMEOUT) };
        Ok(Dialer::new(dial, self.session.clone(), self.streams, self.greeter.take()))
    }

    /// Of a first connection that was taken and not answered, or cut: that haul runs there ssh has shown.
    fn passes_nothing(&self, error: Error, reached: bool) -> Error {
        match error.failure.code {
            _ if reached && (is_blocked(&error) || error.failure.code == Code::ConnectionLost) => error.hint(
                "one stream has come through and not all of the others: something on the way counts them; try fewer --streams",
            ),
            Code::ConnectionLost => error.hint(format!(
                "something on the way may cut connections to port {}: open it (--port-range says which), or try --listen here",
                self.port
            )),
            Code::PeerSilent => error.hint(format!(
                "something on the way takes connections to port {} and lets nothing pass: open it (--port-range says which), or try --listen here",
                self.port
            )),
            _ => error,
        }
    }

    fn addresses(&self) -> Result<Vec<SocketAddr>, Error> {
        let named = tcp::resolve(&self.host, self.port, DIAL_TIMEOUT);
        let known = named.as_deref().unwrap_or_default();
        let told = told_addresses(&self.response_addresses, self.port, known);
        match named {
            Err(error) if told.is_empty() => Err(Error::stream(&self.host, &error)),
            named => Ok(in_order([named.unwrap_or_default()].into_iter().chain(told).collect())),
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
        let first = First { greeter: self.greeter.as_ref(), host: &self.host };
        let result = first.accept(&mut acceptor, introduction, patience);
        self.connected = result.is_ok();
        let result = result.map_err(|error| match error.failure.code {
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

/// Waits for the first connection.
struct First<'a> {
    greeter: Option<&'a Greeter>,
    host: &'a str,
}

impl First<'_> {
    /// Where the far end ends before it would for want of a connection, nobody has to wait, and nothing is in its way.
    fn accept(
        &self,
        acceptor: &mut Acceptor<Listener>,
        introduction: &Introduction,
        patience: Duration,
    ) -> Result<Established, Error> {
        let began = Instant::now();
        let mut deadline = began + patience;
        let mut has_ended = false;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let error = match acceptor.connect(introduction, left.clamp(LOOK_LEAST, LOOK_EVERY)) {
                Err(error) if error.failure.code == Code::PeerSilent => error,
                result => return result,
            };
            if left <= LOOK_EVERY {
                return Err(if has_ended { ended(self.host) } else { error });
            }
            let is_early = began.elapsed() < FAR_END_WAITS;
            if is_early && !has_ended && self.greeter.is_some_and(|far| !far.lives()) {
                has_ended = true;
                deadline = deadline.min(Instant::now() + CONNECTION_WITHOUT_SSH);
            }
        }
    }
}

/// Nobody is there any more.
fn ended(host: &str) -> Error {
    Error::new(Code::PeerEnded, host).hint("it has said why, if it could; run the same command again")
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
    fn a_far_end_names_no_host_but_itself() {
        let named = [SocketAddr::from(([127, 0, 0, 1], 7)), SocketAddr::from(([192, 0, 2, 1], 7))];
        let told = |texts: &[&str], named: &[SocketAddr]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            told_addresses(&texts, 7, named).concat()
        };
        let tricks = [
            "127.0.0.1",
            "::1",
            "::ffff:127.0.0.2",
            "0.0.0.0",
            "::",
            "169.254.169.254",
            "fe80::1",
            "224.0.0.1",
            "ff02::1",
            "localhost",
            "db.internal",
            "",
        ];
        assert_eq!(told(&tricks, &named[1..]), []);
        assert_eq!(told(&["127.0.0.1"], &named), named[..1], "that is where the name leads");
        assert_eq!(told(&["10.1.2.3", "2001:db8::5"], &[]).len(), 2);
        assert_eq!(told(&["10.1.2.3"; 100], &[]).len(), ADDRESSES_MAX);
    }

    #[test]
    fn of_many_addresses_of_a_name_the_one_that_was_reached_comes_first() {
        let address = |last: u8| SocketAddr::from(([10, 0, 0, last], 7));
        let list = |addresses: &[u8]| addresses.iter().map(|last| address(*last)).collect::<Vec<_>>();
        assert_eq!(in_order(vec![list(&[1, 2, 3, 2]), list(&[3])]), list(&[3, 1, 2]));
        assert_eq!(in_order(vec![list(&[1]), list(&[9]), list(&[1])]), list(&[1, 9]), "a jump host");
        assert_eq!(in_order(vec![]), []);
    }
}
