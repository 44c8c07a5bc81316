//! Pairs of connected streams, and sessions for both ends.
#![allow(dead_code, reason = "each test file uses its part")]

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::time::Duration;

use haul_model::SessionId;
use haul_transport::fault::{self, Fault, When};
use haul_transport::tcp::{self, Settings};
use haul_transport::{
    Bound, Fingerprint, Identity, Listener, Purpose, Role, Session, Stream, StreamKey, memory, rate, trace,
};

/// For handshakes that are meant to succeed.
pub const LONG: Duration = Duration::from_secs(30);
pub const SESSION: SessionId = SessionId([0x5e; 16]);

/// The sessions of a source and a sink that agreed with each other.
pub struct Agreed {
    pub source: Session,
    pub sink: Session,
    pub source_identity: Identity,
    pub sink_identity: Identity,
    pub key: Option<StreamKey>,
}

pub fn agreed(plain: bool) -> Agreed {
    let (source_identity, sink_identity) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let key = plain.then(|| StreamKey::generate().unwrap());
    let source = session(Role::Source, &source_identity, sink_identity.fingerprint(), key.clone());
    let sink = session(Role::Sink, &sink_identity, source_identity.fingerprint(), key.clone());
    Agreed { source, sink, source_identity, sink_identity, key }
}

pub fn session(role: Role, identity: &Identity, peer: Fingerprint, key: Option<StreamKey>) -> Session {
    Session::new(SESSION, role, identity, peer, key).unwrap()
}

/// A listener of `session` on a port of its own.
pub fn listener(session: &Session, timeout: Duration) -> Listener {
    let bound = Bound::bind(Some(Ipv4Addr::LOCALHOST.into()), 0..=0).unwrap();
    Listener::start(bound, session.clone(), Settings::default(), timeout).unwrap()
}

pub fn raw_dial(listener: &Listener) -> Stream {
    tcp::connect(&[listener.address()], &Settings::default(), LONG).unwrap()
}

/// Two connected sockets.
pub fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let dialed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (dialed, listener.accept().unwrap().0)
}

pub fn tcp_pair() -> (Stream, Stream) {
    let (one, other) = sockets();
    let stream = |socket: TcpStream| tcp::stream(socket.into(), None, &Settings::default()).unwrap();
    (stream(one), stream(other))
}

/// The same, but they know that they are on one host.
pub fn near_tcp_pair() -> (Stream, Stream) {
    let (one, other) = sockets();
    let stream = |socket: TcpStream| {
        let peer = socket.peer_addr().unwrap();
        tcp::stream(socket.into(), Some(peer), &Settings::default()).unwrap()
    };
    (stream(one), stream(other))
}

pub fn memory_pair() -> (Stream, Stream) {
    memory::pair(1 << 20)
}

/// Two raw streams made into streams of a session.
pub fn protect(agreed: &Agreed, purpose: Purpose, (dialed, accepted): (Stream, Stream)) -> (Stream, Stream) {
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| agreed.sink.answer(accepted, LONG).unwrap());
        let dialed = agreed.source.dial(dialed, purpose, LONG).unwrap();
        let (answered, accepted) = answering.join().unwrap();
        assert_eq!(answered, purpose);
        (dialed, accepted)
    })
}

/// By way of a listener, as the mover does it.
pub fn through_listener(plain: bool, purpose: Purpose) -> (Stream, Stream) {
    let agreed = agreed(plain);
    let listener = listener(&agreed.sink, LONG);
    let dialed = agreed.source.dial(raw_dial(&listener), purpose, LONG).unwrap();
    let (accepted_purpose, accepted) = listener.accept(LONG).unwrap();
    assert_eq!(accepted_purpose, purpose);
    (dialed, accepted)
}

pub fn tls_pair() -> (Stream, Stream) {
    through_listener(false, Purpose::Data(3))
}

pub fn tls_memory_pair() -> (Stream, Stream) {
    protect(&agreed(false), Purpose::Control, memory_pair())
}

pub fn plain_pair() -> (Stream, Stream) {
    through_listener(true, Purpose::Data(0))
}

pub fn traced((one, other): (Stream, Stream)) -> (Stream, Stream) {
    let counters = trace::Counters::default();
    (trace::wrap(one, &counters), trace::wrap(other, &counters))
}

pub fn limited((one, other): (Stream, Stream)) -> (Stream, Stream) {
    let limit = rate::Limit::new(NonZeroU64::new(20_000_000_000).unwrap());
    (rate::wrap(one, &limit), rate::wrap(other, &limit))
}

/// With a fault each way that never comes.
pub fn spared((one, other): (Stream, Stream)) -> (Stream, Stream) {
    let wrap = |stream| {
        let stream = fault::sending(stream, When::Byte(u64::MAX), Fault::Cut);
        fault::receiving(stream, When::Signal(fault::Signal::new()), Fault::Stall)
    };
    (wrap(one), wrap(other))
}

/// What a dialer sends first on a clear stream (docs/spec/streams.md): a hello with this version, kind and protection, and
/// a nonce.
pub fn opening(version: u8, kind: u8, protection: u8) -> [u8; 64] {
    let mut opening = [0x55; 64];
    opening[..16]
        .copy_from_slice(&[b'h', b'a', b'u', b'l', version, 1, kind, protection, 0, 0, 0, 0, 0, 0, 0, 0]);
    opening[16..32].copy_from_slice(&SESSION.0);
    opening
}

/// The dialer's proof, made without the crate's help.
pub fn proof(key: &StreamKey, opening: &[u8; 64], challenge: &[u8; 32]) -> [u8; 32] {
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, key.expose());
    let message = [&b"haul-s1-dialer\0\0"[..], opening, challenge].concat();
    aws_lc_rs::hmac::sign(&key, &message).as_ref().try_into().unwrap()
}
