//! Ports, addresses, what a failed dial is called, and a listener among strangers.

mod common;

use std::io::{IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, agreed, listener, raw_dial};
use haul_model::Code;
use haul_transport::tcp::{self, Settings};
use haul_transport::{Bound, Cause, Listener, Purpose, cause};
use rustix::net::{AddressFamily, SocketType, sockopt};

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn dial(address: SocketAddr) -> std::io::Result<haul_transport::Stream> {
    tcp::connect(&[address], &Settings::default(), Duration::from_millis(300))
}

/// A port that nobody listens on.
fn closed_port() -> SocketAddr {
    TcpListener::bind((LOCAL, 0)).unwrap().local_addr().unwrap()
}

/// A port that does not answer: its queue is full, so the kernel drops further requests, as a firewall would.
fn filtered_port() -> (SocketAddr, impl Drop) {
    struct Keep(#[allow(dead_code)] std::os::fd::OwnedFd, Vec<TcpStream>);
    impl Drop for Keep {
        fn drop(&mut self) {
            self.1.clear();
        }
    }
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(LOCAL, 0)).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    let mut connections = Vec::new();
    while let Ok(connection) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        connections.push(connection);
        assert!(connections.len() < 100, "the queue is never full");
    }
    (address, Keep(socket, connections))
}

#[test]
fn a_failed_dial_says_where_the_trouble_is() {
    let refused = closed_port();
    let error = dial(refused).unwrap_err();
    assert_eq!((cause(&error), cause(&error).code()), (Cause::Refused, Code::PortBlocked));
    assert!(error.to_string().contains(&refused.to_string()), "{error}");

    let (filtered, _keep) = filtered_port();
    let error = dial(filtered).unwrap_err();
    assert_eq!((cause(&error), cause(&error).code()), (Cause::Filtered, Code::PortBlocked));

    // A link-local group names no link.
    let group = SocketAddr::new(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into(), 1);
    let error = dial(group).unwrap_err();
    assert_eq!((cause(&error), cause(&error).code()), (Cause::Unreachable, Code::HostUnreachable), "{error}");
    // The discard prefix (RFC 6666): where it is routed at all, nobody answers.
    let discarded = SocketAddr::new(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1).into(), 1);
    let error = dial(discarded).unwrap_err();
    assert!(matches!(cause(&error), Cause::Unreachable | Cause::Filtered), "{error}");

    let error = tcp::resolve("no-such-host.invalid", 1, LONG).unwrap_err();
    assert_eq!((cause(&error), cause(&error).code()), (Cause::NameUnknown, Code::HostUnknown));
    assert!(error.to_string().contains("no-such-host.invalid"));
    let error = tcp::resolve("host\u{1b}[31m", 1, LONG).unwrap_err();
    assert!(!error.to_string().contains('\u{1b}'), "control characters are escaped");
}

#[test]
fn of_several_addresses_the_first_that_answers_is_taken_and_else_the_most_telling_error() {
    let agreed = agreed(false);
    let listener = listener(&agreed.sink, LONG);
    let refused = closed_port();
    let (filtered, _keep) = filtered_port();
    let short = Duration::from_millis(200);
    let stream = tcp::connect(&[filtered, refused, listener.address()], &Settings::default(), short).unwrap();
    assert_eq!(stream.about().peer, Some(listener.address()));
    for order in [[filtered, refused], [refused, filtered]] {
        let error = tcp::connect(&order, &Settings::default(), short).unwrap_err();
        assert_eq!(cause(&error), Cause::Refused);
        assert!(order.iter().all(|address| error.to_string().contains(&address.to_string())), "{error}");
    }
    assert_eq!(cause(&tcp::connect(&[], &Settings::default(), short).unwrap_err()), Cause::NameUnknown);
}

#[test]
fn a_name_is_resolved_to_the_port_that_was_asked_for() {
    let addresses = tcp::resolve("localhost", 77, LONG).unwrap();
    assert!(addresses.iter().all(|address| address.port() == 77 && address.ip().is_loopback()));
    assert!(!addresses.is_empty());
    assert_eq!(tcp::resolve("::1", 5, LONG).unwrap(), ["[::1]:5".parse().unwrap()]);
}

#[test]
fn the_first_free_port_of_a_range_is_bound() {
    // Neighbours of a port that the system chose; another program may take one in between, so several are tried.
    for _ in 0..50 {
        let taken = Bound::bind(Some(LOCAL), 0..=0).unwrap();
        let first = taken.address().port();
        if first > 65_000 {
            continue;
        }
        let error = Bound::bind(Some(LOCAL), first..=first).unwrap_err();
        assert_eq!((cause(&error), cause(&error).code()), (Cause::NoPort, Code::PortBlocked));
        assert!(error.to_string().contains(&first.to_string()), "{error}");
        if let Ok(next) = Bound::bind(Some(LOCAL), first..=first + 5) {
            assert!((first + 1..=first + 5).contains(&next.address().port()));
            return;
        }
    }
    panic!("no free port next to a taken one in 50 attempts");
}

#[test]
fn an_empty_range_is_an_error() {
    #[allow(clippy::reversed_empty_ranges, reason = "that is the point")]
    let error = Bound::bind(None, 9..=8).unwrap_err();
    assert_eq!(cause(&error), Cause::NoPort);
}

#[test]
fn without_an_address_both_families_are_served() {
    let agreed = agreed(false);
    let bound = Bound::bind(None, 0..=0).unwrap();
    let port = bound.address().port();
    let mut families: Vec<IpAddr> = vec![LOCAL];
    if bound.address().is_ipv6() {
        families.push(Ipv6Addr::LOCALHOST.into());
    }
    let listener = Listener::start(bound, agreed.sink.clone(), Settings::default(), LONG).unwrap();
    for family in families {
        let raw = tcp::connect(&[(family, port).into()], &Settings::default(), LONG).unwrap();
        agreed.source.dial(raw, Purpose::Control, LONG).unwrap();
        listener.accept(LONG).unwrap();
    }
}

#[test]
fn sockets_are_set_up_as_asked() {
    let raw = TcpListener::bind((LOCAL, 0)).unwrap();
    let dialed = TcpStream::connect(raw.local_addr().unwrap()).unwrap();
    let watch = dialed.try_clone().unwrap();
    let buffers = (
        sockopt::socket_recv_buffer_size(&watch).unwrap(),
        sockopt::socket_send_buffer_size(&watch).unwrap(),
    );
    let keepalive =
        tcp::Keepalive { idle: Duration::from_secs(7), interval: Duration::from_secs(3), probes: 4 };
    let settings = Settings { keepalive: Some(keepalive), user_timeout: Some(Duration::from_millis(12_345)) };
    let _stream = tcp::stream(dialed.into(), None, &settings).unwrap();
    assert!(sockopt::tcp_nodelay(&watch).unwrap());
    assert!(sockopt::socket_keepalive(&watch).unwrap());
    assert_eq!(sockopt::tcp_keepidle(&watch).unwrap(), Duration::from_secs(7));
    assert_eq!(sockopt::tcp_keepintvl(&watch).unwrap(), Duration::from_secs(3));
    assert_eq!(sockopt::tcp_keepcnt(&watch).unwrap(), 4);
    assert_eq!(sockopt::tcp_user_timeout(&watch).unwrap(), 12_345);
    let after = (
        sockopt::socket_recv_buffer_size(&watch).unwrap(),
        sockopt::socket_send_buffer_size(&watch).unwrap(),
    );
    assert_eq!(after, buffers, "autotuning was switched off");
}

#[test]
fn silent_strangers_do_not_keep_the_peer_out() {
    let agreed = agreed(true);
    let listener = listener(&agreed.sink, Duration::from_secs(600));
    // More than there are places, none of which would be free within the test.
    let strangers: Vec<_> = (0..200).map(|_| TcpStream::connect(listener.address()).unwrap()).collect();
    for purpose in [Purpose::Control, Purpose::Data(0), Purpose::Data(1)] {
        agreed.source.dial(raw_dial(&listener), purpose, LONG).unwrap();
        assert_eq!(listener.accept(LONG).unwrap().0, purpose);
    }
    // Those that were given up were told at once.
    assert!(listener.refusals().count >= 200 - 96);
    drop(strangers);
}

/// A peer is in the midst of its challenge when, behind `before` strangers, `after` more come, none of which says anything: `given_up`
/// of them lose their places, and the peer does not.
fn outlives_strangers(before: usize, after: usize, given_up: u64) {
    let agreed = agreed(true);
    let listener = listener(&agreed.sink, Duration::from_secs(600));
    let stranger = |_| TcpStream::connect(listener.address()).unwrap();
    let mut strangers: Vec<_> = (0..before).map(stranger).collect();
    let mut peer = TcpStream::connect(listener.address()).unwrap();
    let opening = common::opening(1, 2, 2);
    peer.write_all(&opening).unwrap();
    let mut challenge = [0; 32];
    peer.read_exact(&mut challenge).unwrap();
    strangers.extend((0..after).map(stranger));
    let start = Instant::now();
    while listener.refusals().count < given_up {
        assert!(start.elapsed() < LONG);
        thread::yield_now();
    }
    peer.write_all(&common::proof(agreed.key.as_ref().unwrap(), &opening, &challenge)).unwrap();
    let mut answer = [9; 33];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], 0);
    assert_eq!(listener.accept(LONG).unwrap().0, Purpose::Data(0));
    assert_eq!(listener.refusals().count, given_up);
}

#[test]
fn a_newcomer_costs_the_oldest_stranger_its_place_and_nobody_else() {
    outlives_strangers(95, 20, 20);
}

/// Over a long way, those who say nothing come faster than its round trips.
#[test]
fn any_number_of_silent_strangers_cost_one_that_speaks_nothing() {
    outlives_strangers(0, 300, 300 - 95);
}

#[test]
fn each_silent_stranger_is_given_up_at_its_own_deadline() {
    let agreed = agreed(false);
    let listener = listener(&agreed.sink, Duration::from_millis(50));
    let _strangers: Vec<_> = (0..5).map(|_| TcpStream::connect(listener.address()).unwrap()).collect();
    let start = Instant::now();
    while listener.refusals().count < 5 {
        assert!(start.elapsed() < LONG);
        thread::yield_now();
    }
    assert_eq!(listener.refusals().last.unwrap().0, Cause::Silent);
    let error = listener.accept(Duration::from_millis(1)).unwrap_err();
    assert_eq!(cause(&error), Cause::Silent);
    assert!(error.to_string().contains('5'), "{error}");
}

#[test]
fn streams_that_nobody_takes_are_bounded() {
    let agreed = agreed(true);
    let listener = listener(&agreed.sink, LONG);
    let streams: Vec<_> = (0..65)
        .map(|number| {
            let purpose = if number == 64 { Purpose::Control } else { Purpose::Data(number) };
            agreed.source.dial(raw_dial(&listener), purpose, LONG).unwrap()
        })
        .collect();
    for purpose in [Purpose::Data(0), Purpose::Control] {
        let error = agreed.source.dial(raw_dial(&listener), purpose, LONG).unwrap_err();
        assert_eq!(cause(&error), Cause::Busy);
    }
    listener.accept(LONG).unwrap();
    // The peer may be quicker than the thread that hands its stream over.
    agreed.source.dial(raw_dial(&listener), Purpose::Data(0), LONG).unwrap();
    drop(streams);
}

#[test]
fn a_closed_listener_wakes_its_waiter_and_frees_its_port() {
    let agreed = agreed(false);
    let listener = listener(&agreed.sink, LONG);
    let address = listener.address();
    let silent = TcpStream::connect(address).unwrap();
    let raw = raw_dial(&listener);
    let closer = listener.closer();
    let waiting = thread::spawn(move || {
        let error = listener.accept(LONG).unwrap_err();
        drop(listener);
        cause(&error)
    });
    closer.close();
    assert_eq!(waiting.join().unwrap(), Cause::Closed);
    closer.close();
    assert!(agreed.source.dial(raw, Purpose::Control, LONG).is_err());
    drop(silent);
    assert_eq!(cause(&dial(address).unwrap_err()), Cause::Refused);
    Bound::bind(Some(address.ip()), address.port()..=address.port()).unwrap();
}

#[test]
fn accepted_streams_outlive_their_listener() {
    let agreed = agreed(false);
    let listener = listener(&agreed.sink, LONG);
    let dialed = agreed.source.dial(raw_dial(&listener), Purpose::Control, LONG).unwrap();
    let (_, accepted) = listener.accept(LONG).unwrap();
    drop(listener);
    let ((mut sender, _r, _), (_s, mut receiver, _)) = (dialed.split(), accepted.split());
    sender.send(&[IoSlice::new(b"still here")]).unwrap();
    let mut bytes = [0; 10];
    receiver.receive(&mut bytes).unwrap();
    assert_eq!(&bytes, b"still here");
}
