//! The TCP driver: dialing, and the two halves over a socket.
//!
//! Called by crate `mover` to dial, by the listener to wrap what it accepted. Socket buffers are never set: the
//! kernel's autotuning follows the path's bandwidth and delay, a fixed size switches it off.
//!
//! A clear TCP stream cannot tell a clean end from an end by [`Closer`] or by a dying process: all
//! send a FIN. Who speaks over one must have a last message.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use crate::{About, Arrivals, Cause, Closer, Receiver, See, Sender, Stream};

/// Probes on an idle connection, so that a vanished peer or a forgetful firewall is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keepalive {
    /// Silence before the first probe. Whole seconds, at least 1.
    pub idle: Duration,
    /// Between probes. Whole seconds, at least 1.
    pub interval: Duration,
    /// Unanswered probes after which the connection is lost.
    pub probes: u32,
}

/// How sockets are set up. `TCP_NODELAY` is always on: the layers above send whole messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Probes while idle.
    pub keepalive: Option<Keepalive>,
    /// How long sent bytes may stay unacknowledged before the connection is lost (TCP_USER_TIMEOUT, RFC 5482).
    pub user_timeout: Option<Duration>,
}

impl Default for Settings {
    /// A dead path is noticed within a minute and a half, idle or not; firewalls that forget idle connections
    /// commonly do so after 5 minutes or more.
    fn default() -> Self {
        Settings {
            keepalive: Some(Keepalive {
                idle: Duration::from_secs(30),
                interval: Duration::from_secs(10),
                probes: 6,
            }),
            user_timeout: Some(Duration::from_secs(90)),
        }
    }
}

/// The addresses of a host, in the order in which they should be tried.
///
/// The system's resolver cannot be interrupted: past `timeout` it is left to itself, on its own thread.
pub fn resolve(host: &str, port: u16, timeout: Duration) -> io::Result<Vec<SocketAddr>> {
    let unknown = |why: &str| Cause::NameUnknown.error(format!("host {host:?}: {why}"));
    let (found, answer) = mpsc::sync_channel(1);
    let name = host.to_owned();
    std::thread::Builder::new()
        .name("resolve".into())
        .spawn(move || {
            let result = (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
            // Nobody listens any more once the timeout has passed.
            let _ = found.send(result);
        })
        .map_err(|error| Cause::Local.error(format!("cannot start a thread to resolve a name: {error}")))?;
    match answer.recv_timeout(timeout) {
        Ok(Ok(addresses)) if addresses.is_empty() => Err(unknown("has no address")),
        Ok(Ok(addresses)) => Ok(addresses),
        Ok(Err(error)) => Err(unknown(&error.to_string())),
        Err(_) => Err(unknown(&format!("its name was not resolved within {timeout:?}"))),
    }
}

/// Connects to the first of the addresses that answers, each within `timeout`; else the error is that of [`first_of`].
///
/// The stream proves nothing yet: see [`Session::dial`](crate::Session::dial).
pub fn connect(addresses: &[SocketAddr], settings: &Settings, timeout: Duration) -> io::Result<Stream> {
    first_of(addresses, |address| open(address, settings, timeout))
}

/// Connects to this address; the error does not name it.
pub fn open(address: SocketAddr, settings: &Settings, timeout: Duration) -> io::Result<Stream> {
    // A zero timeout is an error of the caller for std, but only "at once" here.
    match TcpStream::connect_timeout(&address, timeout.max(Duration::from_millis(1))) {
        Ok(socket) => stream(socket.into(), Some(address), settings),
        Err(error) => Err(connect_cause(&error).error(error.to_string())),
    }
}

/// What the first of the addresses gives with which the attempt succeeds.
///
/// When none does, the error is the most telling of all: [`Cause::Refused`] (the host is up), then [`Cause::Filtered`], then what
/// somebody answered who is not who was to be reached, then [`Cause::Unreachable`]; its text has every address with its reason.
pub fn first_of<T>(
    addresses: &[SocketAddr],
    mut attempt: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut told = Cause::NameUnknown;
    let mut reasons = String::new();
    for address in addresses {
        let error = match attempt(*address) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let cause = crate::cause(&error);
        if reasons.is_empty() || rank(cause) > rank(told) {
            told = cause;
        }
        let separator = if reasons.is_empty() { "" } else { "; " };
        reasons.push_str(&format!("{separator}{address}: {error}"));
    }
    if reasons.is_empty() {
        reasons.push_str("no address to connect to");
    }
    Err(told.error(reasons))
}

/// How much a failed attempt tells about where the trouble is.
fn rank(cause: Cause) -> u8 {
    match cause {
        Cause::Refused => 4,
        Cause::Filtered => 3,
        // There may be no way to addresses of a kind, IPv6 for instance.
        Cause::Unreachable => 1,
        Cause::Local | Cause::NameUnknown => 0,
        _ => 2,
    }
}

fn connect_cause(error: &io::Error) -> Cause {
    if error.kind() == io::ErrorKind::TimedOut {
        return Cause::Filtered;
    }
    match Errno::from_io_error(error) {
        Some(Errno::CONNREFUSED) => Cause::Refused,
        // EACCES, EPERM: a rule of the local firewall, or "administratively prohibited" from one on the way.
        Some(Errno::TIMEDOUT | Errno::ACCESS | Errno::PERM | Errno::CONNRESET) => Cause::Filtered,
        Some(
            Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::NETDOWN
            | Errno::HOSTDOWN
            | Errno::ADDRNOTAVAIL
            | Errno::AFNOSUPPORT
            | Errno::INVAL,
        ) => Cause::Unreachable,
        _ => Cause::Local,
    }
}

/// The shortest round trip of a connection so far: that of its handshake at least.
fn round_trip(fd: &OwnedFd) -> Option<Duration> {
    // `tcpi_min_rtt`, since Linux 4.6.
    let micros = u32::from_ne_bytes(info_at::<148, 4>(fd)?);
    // Not known yet: all bits are set.
    (micros != u32::MAX).then(|| Duration::from_micros(micros.into()))
}

/// Bytes that have come, taken or not.
fn arrived(fd: &OwnedFd) -> Option<u64> {
    // `tcpi_bytes_received`, since Linux 4.1.
    info_at::<128, 8>(fd).map(u64::from_ne_bytes)
}

/// A number that the kernel keeps of a connection.
///
/// The structure that it fills (`tcp_info` of linux/tcp.h) has grown with its versions, and the one of the C library has not: where
/// a number is in it is part of the kernel's interface.
fn info_at<const AT: usize, const BYTES: usize>(fd: &OwnedFd) -> Option<[u8; BYTES]> {
    let mut info = [0_u8; 256];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes, which is what there is room for.
    let asked = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if asked != 0 {
        return None;
    }
    info.get(..length as usize)?.get(AT..AT + BYTES)?.try_into().ok()
}

/// Whether the other end has the address of this one.
fn is_same_host(fd: &OwnedFd, peer: Option<SocketAddr>) -> bool {
    let own = net::getsockname(fd).ok().and_then(|address| SocketAddr::try_from(address).ok());
    let host = |address: SocketAddr| address.ip().to_canonical();
    peer.map(host).is_some_and(|peer| peer.is_loopback() || own.map(host) == Some(peer))
}

/// Within one host there is no network that could be congested: what paces its sends for the network's sake (BBR, where it is the
/// system's default) only costs timers and wakes the receiver for each piece. Best effort: not every system has CUBIC, or lets
/// everybody choose it.
fn leave_unpaced(fd: &OwnedFd) {
    let paces = sockopt::tcp_congestion(fd).is_ok_and(|name| name.starts_with("bbr"));
    if paces {
        let _ = sockopt::set_tcp_congestion(fd, "cubic");
    }
}

/// A stream over a socket that is connected already.
pub fn stream(fd: OwnedFd, peer: Option<SocketAddr>, settings: &Settings) -> io::Result<Stream> {
    apply(&fd, settings).map_err(|errno| Cause::Local.error(format!("cannot set up a socket: {errno}")))?;
    let round_trip = round_trip(&fd);
    let socket = Arc::new(Socket { fd, closed: AtomicBool::new(false) });
    // Weak: a closer that outlives both halves must not keep the connection open.
    let handle = Arc::downgrade(&socket);
    let closer = Closer::new(move || {
        if let Some(socket) = handle.upgrade() {
            socket.closed.store(true, Ordering::SeqCst);
            // Wakes blocked calls. Fails only where the connection is gone already.
            let _ = net::shutdown(&socket.fd, Shutdown::Both);
        }
    });
    let handle = Arc::downgrade(&socket);
    let arrivals = Arrivals::new(move || handle.upgrade().and_then(|socket| arrived(&socket.fd)));
    let same_host = is_same_host(&socket.fd, peer);
    let about = About { peer, cipher: None, same_host, round_trip };
    if same_host {
        leave_unpaced(&socket.fd);
    }
    let sender = TcpSender { socket: socket.clone(), ended: false };
    let receiver = TcpReceiver { socket };
    Ok(Stream::new(Box::new(sender), Box::new(receiver), closer, about).with_arrivals(arrivals))
}

fn apply(fd: &OwnedFd, settings: &Settings) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(fd, true)?;
    if let Some(keepalive) = settings.keepalive {
        let second = Duration::from_secs(1);
        sockopt::set_socket_keepalive(fd, true)?;
        sockopt::set_tcp_keepidle(fd, keepalive.idle.max(second))?;
        sockopt::set_tcp_keepintvl(fd, keepalive.interval.max(second))?;
        sockopt::set_tcp_keepcnt(fd, keepalive.probes)?;
    }
    if let Some(timeout) = settings.user_timeout {
        // 0 would mean the system's default.
        let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1);
        sockopt::set_tcp_user_timeout(fd, millis)?;
    }
    Ok(())
}

struct Socket {
    fd: OwnedFd,
    /// By the closer of this end, so that its own shutdown is not taken for the peer's clean end.
    closed: AtomicBool,
}

impl Socket {
    fn closed(&self) -> Option<io::Error> {
        let closed = self.closed.load(Ordering::SeqCst);
        closed.then(|| Cause::Closed.error("the stream was closed at this end"))
    }

    fn failed(&self, errno: Errno, doing: &'static str) -> io::Error {
        self.closed().unwrap_or_else(|| Cause::Lost.error(format!("{doing}: {}", io::Error::from(errno))))
    }
}

struct TcpSender {
    socket: Arc<Socket>,
    ended: bool,
}

/// Parts handed to the kernel in one call (it takes up to 1024; messages have 2 or 3).
const PARTS_PER_CALL: usize = 16;

impl TcpSender {
    fn send_flags(&mut self, parts: &[IoSlice<'_>], flags: SendFlags) -> io::Result<()> {
        if self.ended {
            return Err(self
                .socket
                .closed()
                .unwrap_or_else(|| Cause::Lost.error("sending on a direction that has ended")));
        }
        for group in parts.chunks(PARTS_PER_CALL) {
            let mut window = [IoSlice::new(&[]); PARTS_PER_CALL];
            window[..group.len()].copy_from_slice(group);
            let mut rest = &mut window[..group.len()];
            // Skips empty parts at the front, so that an empty rest means that nothing is left.
            IoSlice::advance_slices(&mut rest, 0);
            while !rest.is_empty() {
                // Without NOSIGNAL a lost peer would end the process where SIGPIPE is not ignored.
                let sent = net::sendmsg(
                    &self.socket.fd,
                    rest,
                    &mut SendAncillaryBuffer::default(),
                    SendFlags::NOSIGNAL | flags,
                );
                match sent {
                    Ok(count) => IoSlice::advance_slices(&mut rest, count),
                    Err(Errno::INTR) => {}
                    Err(errno) => {
                        self.ended = true;
                        return Err(self.socket.failed(errno, "sending"));
                    }
                }
            }
        }
        Ok(())
    }

    /// As much as the kernel moves by itself, from the file's pages to the socket. How much that was.
    fn splice(&self, file: BorrowedFd<'_>, offset: u64, length: usize) -> usize {
        let mut moved = 0;
        while moved < length {
            let mut from = offset + moved as u64;
            match rustix::fs::sendfile(&self.socket.fd, file, Some(&mut from), length - moved) {
                Err(Errno::INTR) => {}
                Ok(count) if count > 0 => moved += count,
                // The file has become shorter or cannot be sent this way, or the connection is lost: the plain send that
                // follows tells them apart.
                Ok(_) | Err(_) => break,
            }
        }
        moved
    }
}

impl Sender for TcpSender {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.send_flags(parts, SendFlags::empty())
    }

    /// `sendfile`: SIGPIPE cannot be switched off for it, but Rust programs ignore that signal from the start. What somebody is to
    /// see is read and sent.
    fn send_file(
        &mut self,
        head: &[u8],
        file: BorrowedFd<'_>,
        offset: u64,
        room: &mut [u8],
        see: Option<See<'_>>,
    ) -> io::Result<()> {
        if see.is_some() {
            let result = crate::send_through_room(self, head, file, offset, room, see);
            self.ended |= result.is_err();
            return result;
        }
        let more = if room.is_empty() { SendFlags::empty() } else { SendFlags::MORE };
        self.send_flags(&[IoSlice::new(head)], more)?;
        let moved = self.splice(file, offset, room.len());
        if moved == room.len() {
            return Ok(());
        }
        // Or the rest would be read, which may take long, for nobody.
        if let Some(error) = self.socket.closed() {
            self.ended = true;
            return Err(error);
        }
        let rest = &mut room[moved..];
        if let Err(error) = crate::read_or_zero(file, offset + moved as u64, rest) {
            self.ended = true;
            return Err(error);
        }
        self.send_flags(&[IoSlice::new(rest)], SendFlags::empty())
    }

    fn finish(&mut self) -> io::Result<()> {
        if let Some(error) = self.socket.closed() {
            return Err(error);
        }
        if !self.ended {
            self.ended = true;
            net::shutdown(&self.socket.fd, Shutdown::Write)
                .map_err(|errno| self.socket.failed(errno, "finishing"))?;
        }
        Ok(())
    }
}

impl Drop for TcpSender {
    fn drop(&mut self) {
        // The other half may live on; the peer must not wait for bytes that nobody will send.
        let _ = net::shutdown(&self.socket.fd, Shutdown::Write);
    }
}

struct TcpReceiver {
    socket: Arc<Socket>,
}

impl TcpReceiver {
    fn receive_flags(&mut self, into: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        loop {
            match net::recv(&self.socket.fd, &mut *into, flags) {
                Ok((0, _)) => return self.socket.closed().map_or(Ok(0), Err),
                Ok((count, _)) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(Cause::Silent.error("no byte came within the timeout")),
                Err(errno) => return Err(self.socket.failed(errno, "receiving")),
            }
        }
    }
}

impl Receiver for TcpReceiver {
    fn receive_some(&mut self, into: &mut [u8]) -> io::Result<usize> {
        debug_assert!(!into.is_empty(), "an empty receive cannot be told from the clean end");
        self.receive_flags(into, RecvFlags::empty())
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<()> {
        // The kernel fills the whole slice before it wakes us: fewer calls and wake-ups for large payloads.
        crate::fill(into, |rest| self.receive_flags(rest, RecvFlags::WAITALL))
    }

    fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        // 0 would mean for ever.
        let timeout = timeout.map(|timeout| timeout.max(Duration::from_millis(1)));
        sockopt::set_socket_timeout(&self.socket.fd, Timeout::Recv, timeout)
            .map_err(|errno| Cause::Local.error(format!("cannot set a receive timeout: {errno}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Fails on a system that has CUBIC if a socket stays with what paces; where it cannot be had the socket stays as it was.
    #[test]
    fn within_one_host_nothing_is_paced() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (has_bbr, has_cubic) = {
            let other = OwnedFd::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            let has = |name| sockopt::set_tcp_congestion(&other, name).is_ok();
            (has("bbr"), has("cubic"))
        };
        let paced = if has_bbr { "bbr" } else { "reno" };
        sockopt::set_tcp_congestion(&socket, paced).unwrap();
        let fd = OwnedFd::from(socket);
        leave_unpaced(&fd);
        let expected = if has_bbr && has_cubic { "cubic" } else { paced };
        assert_eq!(sockopt::tcp_congestion(&fd).unwrap(), expected);
    }

    fn both_ends() -> (Stream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let near = connect(&[address], &Settings::default(), Duration::from_secs(10)).unwrap();
        let (socket, peer) = listener.accept().unwrap();
        let far = stream(socket.into(), Some(peer), &Settings::default()).unwrap();
        (near, far)
    }

    #[test]
    fn what_has_come_is_known_before_it_is_taken_and_until_the_stream_goes() {
        let (near, mut far) = both_ends();
        let arrivals = near.arrivals();
        let comes = |bytes| {
            for _ in 0..1000 {
                if arrivals.bytes() == Some(bytes) {
                    return true;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            false
        };
        assert!(comes(0));
        far.sender().send(&[IoSlice::new(&[7; 1000])]).unwrap();
        assert!(comes(1000), "{arrivals:?}");
        let (sender, mut receiver, _) = near.split();
        receiver.receive(&mut [0; 600]).unwrap();
        far.sender().send(&[IoSlice::new(&[7; 10])]).unwrap();
        assert!(comes(1010), "{arrivals:?}");
        drop((sender, receiver));
        assert_eq!(arrivals.bytes(), None);
    }

    #[test]
    fn both_ends_of_a_connection_know_how_far_it_is() {
        let (near, far) = both_ends();
        for stream in [near, far] {
            let round_trip = stream.about().round_trip.expect("since Linux 4.6");
            assert!(round_trip < Duration::from_millis(500), "{round_trip:?} to this host");
        }
        let nowhere = rustix::net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).unwrap();
        assert_eq!(round_trip(&nowhere), None, "it is not connected");
    }
}
