//! Connections of a session: one control stream and N data streams, made together.
//!
//! One end dials, the other accepts; either may be the source. The control stream comes first: both ends send CONNECT
//! on it, and the dialer's frame proposes the epoch, higher than any before. Then come the data streams, each of
//! which starts with the epoch, so that a late stream of an abandoned attempt is not taken for one of this.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use haul_model::Code;
use haul_protocol::link::Frame;
use haul_transport::{Cause, Deadline, Listener, Purpose, Session, Stream, tcp};
use haul_wire::{Connect, FRAME_HEADER_BYTES, FrameHeader, Message, VERSION, VERSION_MIN};

use crate::Error;
use crate::process::Process;

/// How long a single handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// Where there are several addresses they share that, but each has so long: whoever says nothing at one of them must not take the
/// time of the right one.
const HANDSHAKE_SHARE_MIN: Duration = Duration::from_secs(5);
/// How long the next data stream of a connection may take to arrive. For all of them together no number would do: over a long path
/// each takes several round trips, and there may be 64.
const GATHER_TIMEOUT: Duration = Duration::from_secs(30);
/// So often the first connection of a session may break while it is made.
pub const FIRST_ATTEMPTS: u32 = 3;
/// So many data streams are dialed at a time: they mostly wait for the other end.
const DIALED_AT_ONCE: u16 = 8;

/// A connection that stands.
pub struct Established {
    /// Its number.
    pub epoch: u32,
    /// What the other end said of itself.
    pub peer: Connect,
    /// The other end has received our messages up to this number.
    pub peer_received: u64,
    /// Messages.
    pub control: Stream,
    /// Payloads.
    pub data: Vec<Stream>,
    /// Both ends are this process.
    pub shared: bool,
}

/// What this end says of itself when it connects.
#[derive(Clone)]
pub struct Introduction {
    /// CONNECT.
    pub connect: Connect,
    /// The highest epoch of which this end knows.
    pub epoch: u32,
    /// The highest message number received.
    pub received: u64,
}

/// Makes connections of one session. Called from a thread of its own, again after each loss.
pub trait Connector: Send {
    /// One attempt; may take some seconds. `patience` is how much is left of `--reconnect`.
    fn connect(&mut self, introduction: &Introduction, patience: Duration) -> Result<Established, Error>;
}

/// How raw streams are opened by the end that dials.
pub trait Dial: Send + Sync {
    /// Where the other end may be, in the order of preference.
    fn addresses(&self) -> &[SocketAddr];
    /// Opens one to that address.
    fn open(&self, address: SocketAddr) -> std::io::Result<Stream>;
    /// The other end is there: this address comes first from now on.
    fn prefer(&mut self, address: SocketAddr);
}

/// Dials TCP.
pub struct TcpDial {
    /// In the order of preference.
    pub addresses: Vec<SocketAddr>,
    /// For each of them.
    pub timeout: Duration,
}

impl Dial for TcpDial {
    fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    fn open(&self, address: SocketAddr) -> std::io::Result<Stream> {
        tcp::open(address, &tcp::Settings::default(), self.timeout)
    }

    fn prefer(&mut self, address: SocketAddr) {
        self.addresses.sort_by_key(|other| *other != address);
    }
}

/// The ssh through which the other end was started, or started this one, and which lives as long as that does.
pub enum Greeter {
    /// Its process.
    Process(Process),
    /// Its end is told here.
    Told(Arc<AtomicBool>),
}

impl Greeter {
    /// A child of this process that has not been waited for; none where that cannot be watched.
    pub fn of(child: i32) -> Option<Greeter> {
        let pid = rustix::process::Pid::from_raw(child)?;
        Process::of(pid).map(Greeter::Process)
    }

    /// It has not ended. It may without the other end.
    pub fn lives(&self) -> bool {
        match self {
            Greeter::Process(process) => !process.has_ended(),
            Greeter::Told(has_ended) => !has_ended.load(Ordering::Acquire),
        }
    }
}

/// The end that dials.
pub struct Dialer<D> {
    /// Opens raw streams.
    pub dial: D,
    /// Keys and pins.
    pub session: Session,
    /// Data streams to make.
    pub streams: u16,
    /// It has connected before: the other end listened then.
    pub connected: bool,
    /// In the last attempt the control stream came to stand.
    pub reached: bool,
    /// Tells of the other end where nothing listens.
    pub greeter: Option<Greeter>,
    /// The highest epoch that it has proposed.
    proposed: u32,
}

impl<D> Dialer<D> {
    /// One that has not connected yet.
    pub fn new(dial: D, session: Session, streams: u16, greeter: Option<Greeter>) -> Dialer<D> {
        Dialer { dial, session, streams, connected: false, reached: false, greeter, proposed: 0 }
    }
}

impl<D: Dial> Connector for Dialer<D> {
    fn connect(&mut self, introduction: &Introduction, _patience: Duration) -> Result<Established, Error> {
        self.reached = false;
        let (address, mut control) = self.control()?;
        self.dial.prefer(address);
        // A stream of an attempt that failed may still come to the other end.
        let epoch = next_epoch(introduction.epoch.max(self.proposed))?;
        self.proposed = epoch;
        send_connect(&mut control, introduction, epoch)?;
        let (header, peer) = receive_connect(&mut control, introduction)?;
        if header.epoch != epoch {
            return Err(Error::new(Code::Protocol, "CONNECT answers another epoch"));
        }
        self.reached = true;
        let data = self.data(address, epoch)?;
        self.connected = true;
        let shared = false;
        Ok(Established { epoch, peer, peer_received: header.received, control, data, shared })
    }
}

impl<D: Dial> Dialer<D> {
    /// The control stream, from the first address where the other end proves that it is there: a name may have the addresses of
    /// several hosts, and somebody else may listen at the same port of another one.
    fn control(&self) -> Result<(SocketAddr, Stream), Error> {
        let addresses = self.dial.addresses();
        let timeout = (HANDSHAKE_TIMEOUT / addresses.len().max(1) as u32).max(HANDSHAKE_SHARE_MIN);
        let mut of_first = None;
        let opened = tcp::first_of(addresses, |address| {
            let opened = self.stream(address, Purpose::Control, timeout);
            of_first = of_first.or(opened.as_ref().err().map(haul_transport::cause));
            opened.map(|stream| (address, stream))
        });
        opened.map_err(|error| {
            let cause = match of_first {
                // It was there the last time. Who else may be at the others tells nothing of it.
                Some(cause) if self.connected => cause,
                _ => haul_transport::cause(&error),
            };
            self.failed(cause, addresses, error.to_string())
        })
    }

    /// All data streams, from where the control stream came.
    fn data(&self, address: SocketAddr, epoch: u32) -> Result<Vec<Stream>, Error> {
        let next = AtomicU16::new(0);
        let one = |number| {
            let mut stream =
                self.stream(address, Purpose::Data(number), HANDSHAKE_TIMEOUT).map_err(|error| {
                    self.failed(haul_transport::cause(&error), &[address], format!("{address}: {error}"))
                })?;
            send(&mut stream, &[&epoch.to_le_bytes()])?;
            Ok::<_, Error>((number, stream))
        };
        let several = || {
            let mut opened = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= self.streams {
                    return Ok::<_, Error>(opened);
                }
                // Without one of them the others are of no use.
                opened.push(one(number).inspect_err(|_| next.store(self.streams, Ordering::Relaxed))?);
            }
        };
        let mut opened = thread::scope(|scope| {
            // Where the system gives no more threads, this one does it alone.
            let help = |_| thread::Builder::new().name("haul-dial".into()).spawn_scoped(scope, several).ok();
            let helpers: Vec<_> = (1..self.streams.min(DIALED_AT_ONCE)).map_while(help).collect();
            let mut opened = several();
            for helper in helpers {
                let others = helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                opened = opened.and_then(|opened| Ok([opened, others?].into_iter().flatten().collect()));
            }
            opened
        })?;
        opened.sort_by_key(|(number, _)| *number);
        Ok(opened.into_iter().map(|(_, stream)| stream).collect())
    }

    fn stream(&self, address: SocketAddr, purpose: Purpose, timeout: Duration) -> std::io::Result<Stream> {
        let raw = self.dial.open(address)?;
        self.session.dial(raw, purpose, timeout)
    }

    fn failed(&self, cause: Cause, addresses: &[SocketAddr], about: String) -> Error {
        // The other end listens as long as it lives. What refuses meanwhile, or answers something else, may be a router, a
        // firewall or a proxy: nobody who has proven to be the other end.
        let is_somebody_else = matches!(
            cause,
            Cause::Refused | Cause::Malformed | Cause::Unproven | Cause::Excess | Cause::Version
        );
        match (self.connected, cause) {
            (true, _) if is_somebody_else => {
                if self.greeter.as_ref().is_some_and(Greeter::lives) {
                    return Error::new(Code::ConnectionLost, about);
                }
                let all: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
                Error::new(Code::PeerEnded, all.join(", ")).hint("run the same command again to continue")
            }
            // No firewall: it came through before. What this host has no room for at the moment it may have later.
            (true, Cause::Filtered | Cause::Local) => Error::new(Code::ConnectionLost, about),
            _ => Error::new(cause.code(), about),
        }
    }
}

/// Where proven streams come from at the end that accepts.
pub trait Accept: Send {
    /// The next one, or an error of kind `TimedOut` or `WouldBlock` when none came in time.
    fn next(&mut self, timeout: Duration) -> std::io::Result<(Purpose, Stream)>;

    /// They come from this process.
    fn is_shared(&self) -> bool {
        false
    }
}

impl Accept for Listener {
    fn next(&mut self, timeout: Duration) -> std::io::Result<(Purpose, Stream)> {
        Listener::accept(self, timeout)
    }
}

/// The end that accepts.
pub struct Acceptor<A> {
    /// Gives proven streams.
    pub accept: A,
    /// Data streams to expect.
    pub streams: u16,
}

impl<A: Accept> Connector for Acceptor<A> {
    fn connect(&mut self, introduction: &Introduction, patience: Duration) -> Result<Established, Error> {
        let deadline = Instant::now() + patience;
        let mut control = self.wait_for_control(deadline)?;
        loop {
            let (header, peer) = receive_connect(&mut control, introduction)?;
            if header.epoch <= introduction.epoch {
                return Err(Error::new(Code::Protocol, "CONNECT proposes an old epoch"));
            }
            let epoch = header.epoch;
            send_connect(&mut control, introduction, epoch)?;
            match self.gather(epoch, GATHER_TIMEOUT)? {
                Gathered::All(data) => {
                    let shared = self.accept.is_shared();
                    let peer_received = header.received;
                    return Ok(Established { epoch, peer, peer_received, control, data, shared });
                }
                Gathered::Superseded(newer) => control = newer,
                Gathered::Lost => {
                    // The dialer takes it for made, and must notice.
                    drop(control);
                    control = self.wait_for_control(deadline.max(Instant::now() + GATHER_TIMEOUT))?;
                }
            }
        }
    }
}

enum Gathered {
    All(Vec<Stream>),
    /// The dialer has begun another attempt.
    Superseded(Stream),
    /// A stream of it, or of an older attempt, was lost before it had said of which: of this attempt nothing may come.
    Lost,
}

impl<A: Accept> Acceptor<A> {
    fn wait_for_control(&mut self, deadline: Instant) -> Result<Stream, Error> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(Code::ConnectionLost, "the other end did not connect in time"));
            }
            match self.accept.next(left) {
                Ok((Purpose::Control, stream)) => return Ok(stream),
                // Of an attempt that was given up.
                Ok((Purpose::Data(_), stream)) => stream.closer().close(),
                Err(error) => return Err(Error::stream("waiting for the other end", &error)),
            }
        }
    }

    /// `patience` is for the next one of them.
    fn gather(&mut self, epoch: u32, patience: Duration) -> Result<Gathered, Error> {
        let mut deadline = Instant::now() + patience;
        let mut data: Vec<Option<Stream>> = (0..self.streams).map(|_| None).collect();
        while data.iter().any(Option::is_none) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.accept.next(left) {
                Ok((Purpose::Control, stream)) => return Ok(Gathered::Superseded(stream)),
                Ok((Purpose::Data(number), mut stream)) => {
                    let mut bytes = [0; 4];
                    if receive(&mut stream, &mut bytes, HANDSHAKE_TIMEOUT).is_err() {
                        return Ok(Gathered::Lost);
                    }
                    match data.get_mut(usize::from(number)) {
                        Some(place) if u32::from_le_bytes(bytes) == epoch => {
                            // One that came before does not bring them nearer to being all.
                            if place.replace(stream).is_none() {
                                deadline = Instant::now() + patience;
                            }
                        }
                        _ => stream.closer().close(),
                    }
                }
                Err(error) => return Err(Error::stream("waiting for data streams", &error)),
            }
        }
        Ok(Gathered::All(data.into_iter().flatten().collect()))
    }
}

fn send(stream: &mut Stream, parts: &[&[u8]]) -> Result<(), Error> {
    let parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    stream.sender().send(&parts).map_err(|error| broken(&error))
}

fn receive(stream: &mut Stream, into: &mut [u8], timeout: Duration) -> Result<(), Error> {
    let receiver = stream.receiver();
    let result = Deadline::after(timeout).receive(receiver, into).and_then(|()| receiver.set_timeout(None));
    result.map_err(|error| broken(&error))
}

/// The other end has proven itself: what does not come as it must was not sent by it so, and another connection may bring it.
fn broken(error: &std::io::Error) -> Error {
    match haul_transport::cause(error) {
        Cause::Malformed | Cause::Excess => Error::new(Code::ConnectionLost, format!("connecting: {error}")),
        _ => Error::stream("connecting", error),
    }
}

/// What the other end began with may be the last there is.
fn next_epoch(known: u32) -> Result<u32, Error> {
    known.checked_add(1).ok_or_else(|| Error::new(Code::LimitExceeded, "there are no more epochs"))
}

fn send_connect(stream: &mut Stream, introduction: &Introduction, epoch: u32) -> Result<(), Error> {
    let message = Message::Connect(introduction.connect.clone());
    let mut body = Vec::new();
    message.encode(&mut body);
    let length = body.len() as u32;
    let header =
        FrameHeader { length, epoch, sequence: 0, received: introduction.received, kind: message.kind() };
    send(stream, &[&header.encode(), &body])
}

/// Receives CONNECT and checks that it is one of this session, in a version that both ends speak.
fn receive_connect(
    stream: &mut Stream,
    introduction: &Introduction,
) -> Result<(FrameHeader, Connect), Error> {
    let malformed = |_| Error::new(Code::Protocol, "CONNECT is malformed");
    let mut bytes = [0; FRAME_HEADER_BYTES];
    receive(stream, &mut bytes, HANDSHAKE_TIMEOUT)?;
    let header = FrameHeader::decode(&bytes).map_err(malformed)?;
    if header.length > 256 {
        return Err(Error::new(Code::LimitExceeded, "CONNECT is too long"));
    }
    let mut body = vec![0; header.length as usize];
    receive(stream, &mut body, HANDSHAKE_TIMEOUT)?;
    let Message::Connect(peer) = Message::decode(header.kind, &body).map_err(malformed)? else {
        return Err(Error::new(Code::Protocol, "something else came before CONNECT"));
    };
    let ours = &introduction.connect;
    if peer.version < VERSION_MIN || peer.version_min > VERSION {
        let about = format!(
            "protocol {} to {} there, {VERSION_MIN} to {VERSION} here",
            peer.version_min, peer.version
        );
        return Err(Error::new(Code::PeerVersion, about));
    }
    if peer.session != ours.session || peer.job != ours.job || peer.role == ours.role {
        return Err(Error::new(Code::Protocol, "CONNECT is of another session"));
    }
    Ok((header, peer))
}

/// Writes a frame as the control stream carries it.
pub(crate) fn put_frame(out: &mut Vec<u8>, frame: &Frame) {
    out.extend_from_slice(&frame.header.encode());
    out.extend_from_slice(&frame.body);
}

/// In one process: both ends hold a connector over the same pipes.
pub mod local {
    use super::*;
    use crossbeam_channel::{Receiver as Queue, Sender as QueueSender, bounded};

    /// The dialing half of a process-local session.
    pub struct LocalDial {
        streams: QueueSender<(Purpose, Stream)>,
        count: u16,
    }

    /// The accepting half.
    pub struct LocalAccept {
        streams: Queue<(Purpose, Stream)>,
    }

    /// Both halves.
    pub fn pair(streams: u16) -> (LocalDial, Acceptor<LocalAccept>) {
        let (sender, receiver) = bounded(usize::from(streams) + 1);
        let accept = LocalAccept { streams: receiver };
        (LocalDial { streams: sender, count: streams }, Acceptor { accept, streams })
    }

    impl Accept for LocalAccept {
        fn next(&mut self, timeout: Duration) -> std::io::Result<(Purpose, Stream)> {
            self.streams.recv_timeout(timeout).map_err(|_| std::io::ErrorKind::TimedOut.into())
        }

        fn is_shared(&self) -> bool {
            true
        }
    }

    /// Bytes that a pipe of one process may hold.
    const PIPE_BYTES: usize = 1 << 20;

    impl Connector for LocalDial {
        fn connect(
            &mut self,
            introduction: &Introduction,
            _patience: Duration,
        ) -> Result<Established, Error> {
            let epoch = next_epoch(introduction.epoch)?;
            let open = |purpose| {
                let (here, there) = haul_transport::memory::pair(PIPE_BYTES);
                let gone = |_| Error::new(Code::ConnectionLost, "the other end has ended");
                self.streams.send((purpose, there)).map_err(gone)?;
                Ok::<_, Error>(here)
            };
            let mut control = open(Purpose::Control)?;
            let mut data = Vec::new();
            for number in 0..self.count {
                let mut stream = open(Purpose::Data(number))?;
                send(&mut stream, &[&epoch.to_le_bytes()])?;
                data.push(stream);
            }
            send_connect(&mut control, introduction, epoch)?;
            let (header, peer) = receive_connect(&mut control, introduction)?;
            let shared = true;
            Ok(Established { epoch, peer, peer_received: header.received, control, data, shared })
        }
    }
}

/// What a far end that has the request may take to answer it, at least: it may have to end an older session first, and reads its
/// log.
#[cfg(not(feature = "faults"))]
pub fn answers_within() -> Duration {
    ANSWERS_WITHIN
}

/// The same. For tests: `HAUL_TEST_ANSWERS_WITHIN=SECONDS`.
#[cfg(feature = "faults")]
pub fn answers_within() -> Duration {
    let seconds = |text: String| text.parse().expect("seconds");
    let asked = std::env::var("HAUL_TEST_ANSWERS_WITHIN");
    asked.map_or(ANSWERS_WITHIN, |text| Duration::from_secs(seconds(text)))
}

const ANSWERS_WITHIN: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;
    use haul_transport::memory;

    /// A far dialer, whose data streams come one by one.
    struct Far {
        numbers: Vec<u16>,
        apart: Duration,
    }

    impl Accept for Far {
        fn next(&mut self, timeout: Duration) -> std::io::Result<(Purpose, Stream)> {
            if self.numbers.is_empty() || timeout < self.apart {
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            thread::sleep(self.apart);
            let (here, mut there) = memory::pair(64);
            send(&mut there, &[&1_u32.to_le_bytes()]).unwrap();
            Ok((Purpose::Data(self.numbers.remove(0)), here))
        }
    }

    #[test]
    fn each_data_stream_has_its_own_time_to_arrive() {
        let patience = Duration::from_millis(1000);
        let apart = Duration::from_millis(200);
        let gather =
            |numbers: Vec<u16>| Acceptor { accept: Far { numbers, apart }, streams: 8 }.gather(1, patience);
        assert!(matches!(gather((0..8).collect()), Ok(Gathered::All(data)) if data.len() == 8));
        // The same one again and again is not more of them.
        assert!(gather([vec![0; 20], (1..8).collect()].concat()).is_err());
    }
}
