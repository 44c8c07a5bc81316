//! The listening end of the TCP driver: a bound port, then handshakes off the accepting thread.
//!
//! Called by crate `mover`. A port is bound before the peer is known (its number goes to the peer over ssh);
//! connections wait in the kernel until [`Listener::start`] is told the session.
//!
//! What must stay true: a peer that connects and says nothing holds a bounded slot for a bounded time, and never keeps
//! another out. When all slots are taken a handshake is given up for the newest: the oldest one that has not sent a byte or,
//! where nearly all have, the oldest. So somebody who wants to keep the real peer out has to connect [`HANDSHAKES_MAX`] times within its
//! two round trips, and to say something each time, again and again.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haul_model::limits::STREAMS_MAX;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};

use crate::gate::{lock, wait};
use crate::session::Deadline;
use crate::tcp::{self, Settings};
use crate::{Arrivals, Cause, Closer, Purpose, Session, Stream};

/// Handshakes at once: more than the streams of a session, which so never push each other out.
const HANDSHAKES_MAX: usize = READY_MAX + 31;
/// So many may have had no time yet to say something.
const SILENT_MIN: usize = 8;
/// Streams that are ready and not yet taken by [`Listener::accept`].
const READY_MAX: usize = STREAMS_MAX as usize + 1;
/// Connections that the kernel keeps for us.
const BACKLOG: i32 = 128;
/// Before accepting again when this host is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Handshakes need little; the default of 8 MiB would count against a user's address space limit.
const STACK_BYTES: usize = 512 << 10;

/// A port that is listened on, without a session yet.
#[derive(Debug)]
pub struct Bound {
    socket: OwnedFd,
    address: SocketAddr,
}

impl Bound {
    /// Listens on the first free port of the range; 0 lets the system choose. Without an address: on all addresses of
    /// this host, IPv6 and IPv4.
    pub fn bind(address: Option<IpAddr>, ports: RangeInclusive<u16>) -> io::Result<Self> {
        let (first, last) = (*ports.start(), *ports.end());
        let mut reason = "the range is empty".to_owned();
        for port in ports {
            let attempt = match address {
                Some(address) => bind_one(SocketAddr::new(address, port)),
                // A host may have IPv6 switched off.
                None => bind_one((Ipv6Addr::UNSPECIFIED, port).into()).or_else(|errno| match errno {
                    Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL => {
                        bind_one((Ipv4Addr::UNSPECIFIED, port).into())
                    }
                    errno => Err(errno),
                }),
            };
            match attempt {
                Ok((socket, address)) => return Ok(Bound { socket, address }),
                Err(errno) => reason = io::Error::from(errno).to_string(),
            }
        }
        let host = address.map_or(String::new(), |address| format!(" of {address}"));
        Err(Cause::NoPort.error(format!("cannot listen on any port of {first} to {last}{host}: {reason}")))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn bind_one(address: SocketAddr) -> rustix::io::Result<(OwnedFd, SocketAddr)> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A port whose last connections are still in TIME_WAIT is free for us.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, !address.ip().is_unspecified())?;
    }
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    let address = SocketAddr::try_from(net::getsockname(&socket)?)?;
    Ok((socket, address))
}

/// Takes the streams of one session as its peer opens them.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

/// Connections that were not accepted as streams: strangers, port scanners, or a peer with a problem.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Refusals {
    /// How many.
    pub count: u64,
    /// Why, of the last one.
    pub last: Option<(Cause, String)>,
}

#[derive(Debug)]
struct Shared {
    socket: OwnedFd,
    session: Session,
    settings: Settings,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Handshakes that may be given up, oldest first.
    pending: VecDeque<Pending>,
    next_handshake: u64,
    /// Threads that shake hands; more than `pending` while those that were given up wind up.
    handshakes: usize,
    ready: VecDeque<(Purpose, Stream)>,
    /// Places in `ready` for peers that were just told yes.
    reserved: usize,
    refusals: Refusals,
    stopped: bool,
}

#[derive(Debug)]
struct Pending {
    number: u64,
    closer: Closer,
    arrivals: Arrivals,
}

impl Pending {
    /// Whoever connects has something to say at once.
    fn is_silent(&self) -> bool {
        self.arrivals.bytes() == Some(0)
    }
}

impl State {
    /// The oldest handshake that has not sent a byte. A few may just not have come to it, so where there are no more the oldest of
    /// all goes.
    fn give_up(&mut self) -> Option<Pending> {
        let silent = |(place, pending): (usize, &Pending)| pending.is_silent().then_some(place);
        let mut silent = self.pending.iter().enumerate().filter_map(silent);
        let oldest = silent.next().filter(|_| silent.count() + 1 >= SILENT_MIN);
        self.pending.remove(oldest.unwrap_or(0))
    }
}

impl Listener {
    /// Starts to take streams of `session`. Each connection must have become one within `handshake_timeout`.
    pub fn start(
        bound: Bound,
        session: Session,
        settings: Settings,
        handshake_timeout: Duration,
    ) -> io::Result<Self> {
        let Bound { socket, address } = bound;
        let shared = Arc::new(Shared {
            socket,
            session,
            settings,
            timeout: handshake_timeout,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let acceptor = {
            let shared = shared.clone();
            thread("accept", move || accept_all(&shared))?
        };
        Ok(Listener { shared, address, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next stream that the peer has opened and proved. [`Cause::Silent`] if none came within `timeout`; the text
    /// says what was refused meanwhile. [`Cause::Closed`] after the closer was used.
    pub fn accept(&self, timeout: Duration) -> io::Result<(Purpose, Stream)> {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = lock(&self.shared.state);
        loop {
            if let Some(ready) = state.ready.pop_front() {
                return Ok(ready);
            }
            if state.stopped {
                return Err(Cause::Closed.error("the listener was closed"));
            }
            let in_time;
            (state, in_time) = wait(&self.shared.changed, state, deadline);
            if !in_time && state.ready.is_empty() {
                let seconds = timeout.as_secs_f64().round();
                return Err(Cause::Silent.error(match &state.refusals {
                    Refusals { count, last: Some((_, why)) } => {
                        format!("no stream came within {seconds} s; {count} were refused, the last one because {why}")
                    }
                    _ => format!("no stream came within {seconds} s"),
                }));
            }
        }
    }

    /// What was refused so far.
    pub fn refusals(&self) -> Refusals {
        lock(&self.shared.state).refusals.clone()
    }

    /// Ends the listener from any thread: a waiting [`Listener::accept`] returns, the port is free once the listener
    /// is dropped. Streams that were taken live on.
    pub fn closer(&self) -> Closer {
        let shared = Arc::downgrade(&self.shared);
        Closer::new(move || {
            if let Some(shared) = shared.upgrade() {
                shared.stop();
            }
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(acceptor) = self.acceptor.take() {
            // A panic of the acceptor has been reported by its thread.
            let _ = acceptor.join();
        }
        let mut state = lock(&self.shared.state);
        while state.handshakes > 0 {
            state = wait(&self.shared.changed, state, None).0;
        }
    }
}

impl Shared {
    fn stop(&self) {
        // On Linux this wakes a blocked accept.
        let _ = net::shutdown(&self.socket, Shutdown::Both);
        let mut state = lock(&self.state);
        state.stopped = true;
        state.pending.drain(..).for_each(|pending| pending.closer.close());
        state.ready.clear();
        drop(state);
        self.changed.notify_all();
    }

    fn refused(&self, error: &io::Error) {
        let mut state = lock(&self.state);
        state.refusals.count += 1;
        state.refusals.last = Some((crate::cause(error), error.to_string()));
    }

    /// Keeps a place for a stream that is about to be accepted.
    fn reserve(&self) -> bool {
        let mut state = lock(&self.state);
        let free = !state.stopped && state.ready.len() + state.reserved < READY_MAX;
        state.reserved += usize::from(free);
        free
    }

    fn shake(&self, stream: Stream, deadline: Deadline) {
        let mut reserved = false;
        let result = self.session.answer_if(stream, deadline, |_| {
            reserved = self.reserve();
            reserved
        });
        lock(&self.state).reserved -= usize::from(reserved);
        match result {
            Ok(ready) => {
                let mut state = lock(&self.state);
                if !state.stopped {
                    state.ready.push_back(ready);
                }
            }
            Err(error) => self.refused(&error),
        }
    }
}

/// A place among the handshakes, given back when dropped: also by a thread that panics or never starts.
struct Place {
    shared: Arc<Shared>,
    number: u64,
}

impl Place {
    /// Waits for a place, giving up a handshake if need be; `None` once the listener is stopped.
    fn take(shared: &Arc<Shared>, closer: Closer, arrivals: Arrivals) -> Option<Place> {
        let mut state = lock(&shared.state);
        while !state.stopped && state.handshakes >= HANDSHAKES_MAX {
            // One at a time: while an earlier one winds up, its place is the next to be free.
            if state.pending.len() == state.handshakes
                && let Some(given_up) = state.give_up()
            {
                given_up.closer.close();
            }
            state = wait(&shared.changed, state, None).0;
        }
        if state.stopped {
            return None;
        }
        let number = state.next_handshake;
        state.next_handshake += 1;
        state.handshakes += 1;
        state.pending.push_back(Pending { number, closer, arrivals });
        Some(Place { shared: shared.clone(), number })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.pending.retain(|other| other.number != self.number);
        state.handshakes -= 1;
        drop(state);
        self.shared.changed.notify_all();
    }
}

/// Runs until the listener is stopped.
fn accept_all(shared: &Arc<Shared>) {
    loop {
        let accepted = net::acceptfrom_with(&shared.socket, SocketFlags::CLOEXEC);
        // The clock of a connection starts before anything is held for it.
        let deadline = Deadline::after(shared.timeout);
        if lock(&shared.state).stopped {
            return;
        }
        let result = match accepted {
            Ok((socket, peer)) => begin(shared, socket, peer.and_then(|peer| peer.try_into().ok()), deadline),
            // The connection went away while it waited.
            Err(Errno::INTR | Errno::CONNABORTED) => Ok(()),
            Err(errno) => {
                let state = lock(&shared.state);
                drop(wait(&shared.changed, state, Some(Instant::now() + ACCEPT_PAUSE)));
                Err(Cause::Local.error(format!("accepting a connection: {}", io::Error::from(errno))))
            }
        };
        if let Err(error) = result {
            shared.refused(&error);
        }
    }
}

/// Hands a connection to a thread of its own.
fn begin(
    shared: &Arc<Shared>,
    socket: OwnedFd,
    peer: Option<SocketAddr>,
    deadline: Deadline,
) -> io::Result<()> {
    let stream = tcp::stream(socket, peer, &shared.settings)?;
    let Some(place) = Place::take(shared, stream.closer(), stream.arrivals()) else { return Ok(()) };
    thread("handshake", move || place.shared.shake(stream, deadline)).map(drop)
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.into())
        .stack_size(STACK_BYTES)
        .spawn(body)
        .map_err(|error| Cause::Local.error(format!("cannot start a thread: {error}")))
}
