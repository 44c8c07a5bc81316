//! How the end that dials finds the other one.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use haul_model::{Code, JobId, SessionId};
use haul_mover::connection::{Acceptor, Connector, Dial, Dialer, Greeter, Introduction, TcpDial};
use haul_transport::fault::{self, Fault, When};
use haul_transport::trace::{self, Counters};
use haul_transport::{Bound, Identity, Listener, Role, Session, Stream, tcp};
use haul_wire::Connect;

const LONG: Duration = Duration::from_secs(20);

/// Both ends of one session.
fn sessions() -> (Session, Session) {
    let (source, sink) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let session = |role, own: &Identity, other: &Identity| {
        Session::new(SessionId([2; 16]), role, own, other.fingerprint(), None).unwrap()
    };
    (session(Role::Source, &source, &sink), session(Role::Sink, &sink, &source))
}

fn introduction(role: haul_wire::Role) -> Introduction {
    let connect = Connect {
        version: haul_wire::VERSION,
        version_min: haul_wire::VERSION_MIN,
        role,
        session: SessionId([2; 16]),
        job: JobId([1; 16]),
        object_bytes: 64 << 10,
        slots: 4,
        features: 0,
    };
    Introduction { connect, epoch: 0, received: 0 }
}

fn listen(session: Session, address: &str, port: u16) -> Listener {
    let bound = Bound::bind(Some(address.parse().unwrap()), port..=port).unwrap();
    Listener::start(bound, session, tcp::Settings::default(), LONG).unwrap()
}

/// How many data streams each end has in the end.
fn connect<D: Dial>(dialer: &mut Dialer<D>, listener: Listener) -> (Option<usize>, Option<usize>) {
    std::thread::scope(|scope| {
        let streams = dialer.streams;
        let accepted = scope.spawn(move || {
            let mut acceptor = Acceptor { accept: listener, streams };
            let made = acceptor.connect(&introduction(haul_wire::Role::Sink), LONG);
            made.ok().map(|made| made.data.len())
        });
        let made = dialer.connect(&introduction(haul_wire::Role::Source), LONG);
        (made.ok().map(|made| made.data.len()), accepted.join().unwrap())
    })
}

/// Opens a data stream once another one is being opened, too.
struct InPairs {
    dial: TcpDial,
    opened: Mutex<usize>,
    more: Condvar,
}

impl Dial for InPairs {
    fn addresses(&self) -> &[SocketAddr] {
        self.dial.addresses()
    }

    fn open(&self, address: SocketAddr) -> std::io::Result<Stream> {
        let mut opened = self.opened.lock().unwrap();
        *opened += 1;
        self.more.notify_all();
        // The first one is the control stream, which is alone.
        let wanted = if *opened == 1 { 1 } else { *opened / 2 * 2 + 1 };
        let (opened, waited) = self.more.wait_timeout_while(opened, LONG, |opened| *opened < wanted).unwrap();
        assert!(!waited.timed_out(), "it is opened alone");
        drop(opened);
        self.dial.open(address)
    }

    fn prefer(&mut self, address: SocketAddr) {
        self.dial.prefer(address);
    }
}

#[test]
fn several_data_streams_are_dialed_at_a_time() {
    let (source, sink) = sessions();
    let listener = listen(sink, "127.0.0.1", 0);
    let dial = TcpDial { addresses: vec![listener.address()], timeout: LONG };
    let dial = InPairs { dial, opened: Mutex::default(), more: Condvar::new() };
    let mut dialer = Dialer::new(dial, source, 20, None);
    assert_eq!(connect(&mut dialer, listener), (Some(20), Some(20)));
}

#[test]
fn where_somebody_else_listens_the_next_address_is_tried() {
    let (source, sink) = sessions();
    let right = listen(sink, "127.0.0.2", 0);
    let (there, port) = (right.address(), right.address().port());
    // Another transfer with the same port, on another host of the same name.
    let wrong = listen(sessions().1, "127.0.0.1", port);
    let dial = TcpDial { addresses: vec![wrong.address(), there], timeout: LONG };
    let mut dialer = Dialer::new(dial, source, 3, None);
    assert_eq!(connect(&mut dialer, right), (Some(3), Some(3)));
    assert_eq!(dialer.dial.addresses, [there, wrong.address()], "where it is comes first from now on");
    assert_eq!(wrong.refusals().count, 1, "data streams go to the right one");
}

#[test]
fn where_the_other_end_is_at_no_address_each_is_told_with_its_reason() {
    let (source, _sink) = sessions();
    let (one, other) = (listen(sessions().1, "127.0.0.1", 0), listen(sessions().1, "127.0.0.1", 0));
    let addresses = vec![one.address(), other.address()];
    let dial = TcpDial { addresses: addresses.clone(), timeout: LONG };
    let mut dialer = Dialer::new(dial, source, 1, None);
    let mut attempt = |connected| {
        dialer.connected = connected;
        dialer.connect(&introduction(haul_wire::Role::Source), LONG).err().expect("nobody is there")
    };
    let error = attempt(false);
    assert_eq!(error.failure.code, Code::AuthFailed);
    let told = |address: &SocketAddr| error.about.contains(&format!("{address}: "));
    assert!(addresses.iter().all(told), "{error}");
    // It was at the first one, where nothing listens any more: whoever is at the second one does not matter.
    drop(one);
    assert_eq!(attempt(true).failure.code, Code::PeerEnded);
    assert_eq!(attempt(false).failure.code, Code::PortBlocked);
}

#[test]
fn who_lives_has_not_ended_whatever_refuses() {
    let (source, sink) = sessions();
    let listener = listen(sink, "127.0.0.1", 0);
    let dial = TcpDial { addresses: vec![listener.address()], timeout: LONG };
    drop(listener);
    let mut ssh = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let greeter = Greeter::of(ssh.id() as i32);
    let mut dialer = Dialer::new(dial, source, 1, greeter);
    dialer.connected = true;
    let mut attempt =
        || dialer.connect(&introduction(haul_wire::Role::Source), LONG).err().unwrap().failure.code;
    assert_eq!(attempt(), Code::ConnectionLost);
    ssh.kill().unwrap();
    ssh.wait().unwrap();
    assert_eq!(attempt(), Code::PeerEnded);
}

/// A proxy, a router's own page, another program at the port of one that has ended.
#[test]
fn who_answers_something_else_is_not_the_other_end_that_was_there() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = vec![listener.local_addr().unwrap()];
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = std::io::Write::write_all(&mut stream.unwrap(), b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let has_ended = Arc::new(AtomicBool::new(false));
    let dial = TcpDial { addresses, timeout: LONG };
    let greeter = Some(Greeter::Told(Arc::clone(&has_ended)));
    let mut dialer = Dialer::new(dial, sessions().0, 1, greeter);
    let mut attempt = |connected| {
        dialer.connected = connected;
        dialer.connect(&introduction(haul_wire::Role::Source), LONG).err().unwrap().failure.code
    };
    assert_eq!(attempt(false), Code::Protocol);
    assert_eq!(attempt(true), Code::ConnectionLost);
    has_ended.store(true, Ordering::Release);
    assert_eq!(attempt(true), Code::PeerEnded);
}

/// Alters a byte of what comes on the control stream, beneath TLS.
struct Alters {
    dial: TcpDial,
    byte: u64,
    received: Counters,
    opened: AtomicBool,
}

impl Dial for Alters {
    fn addresses(&self) -> &[SocketAddr] {
        self.dial.addresses()
    }

    fn open(&self, address: SocketAddr) -> std::io::Result<Stream> {
        let stream = self.dial.open(address)?;
        if self.opened.swap(true, Ordering::AcqRel) {
            return Ok(stream);
        }
        let stream = trace::wrap(stream, &self.received);
        Ok(fault::receiving(stream, When::Byte(self.byte), Fault::Flip(7)))
    }

    fn prefer(&mut self, _address: SocketAddr) {}
}

/// Once the ends have proven themselves, whatever comes otherwise was not sent so: another connection may do.
#[test]
fn what_is_altered_while_a_connection_is_made_costs_that_connection() {
    let attempt = |byte| {
        let (source, sink) = sessions();
        let listener = listen(sink, "127.0.0.1", 0);
        let dial = TcpDial { addresses: vec![listener.address()], timeout: LONG };
        let received = Counters::default();
        let dial = Alters { dial, byte, received: received.clone(), opened: AtomicBool::new(false) };
        let mut dialer = Dialer::new(dial, source, 1, None);
        // It goes on waiting for a data stream.
        std::thread::spawn(move || {
            let mut acceptor = Acceptor { accept: listener, streams: 1 };
            let _ = acceptor.connect(&introduction(haul_wire::Role::Sink), LONG);
        });
        let made = dialer.connect(&introduction(haul_wire::Role::Source), LONG);
        (made.err(), received.received_bytes())
    };
    let (error, all) = attempt(u64::MAX);
    assert!(error.is_none());
    let mut body = Vec::new();
    haul_wire::Message::Connect(introduction(haul_wire::Role::Sink).connect).encode(&mut body);
    // CONNECT comes in a record of its own, the last one: 5 bytes before it, and 17 behind. How long a signature in the handshake is
    // differs from time to time.
    let record = all - (5 + haul_wire::FRAME_HEADER_BYTES + body.len() + 17) as u64;
    let is_met = (0..100).any(|_| {
        let Some(error) = attempt(record).0.filter(|error| error.about.starts_with("connecting: ")) else {
            return false;
        };
        assert_eq!(error.failure.code, Code::ConnectionLost, "{error}");
        error.about.contains("not a protected TLS record")
    });
    assert!(is_met, "the type of a record was never altered");
}
