//! How fast one stream moves bytes over loopback, and what that costs in CPU at each end.
//!
//! `cargo run --release -p haul-transport --example throughput -- [GIB] [ROUNDS]`
//!
//! Compares the clear driver and the TLS driver with rustls' own record layer on the same sockets, by its buffered and
//! its unbuffered API. Rounds are interleaved; the first is not counted. Every line is a median, the best in brackets.

use std::io::{IoSlice, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use haul_model::SessionId;
use haul_transport::tcp::{self, Settings};
use haul_transport::{Identity, Purpose, Receiver, Role, Sender, Session, Stream, StreamKey, memory};
use rustix::time::{ClockId, clock_gettime};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

/// One object, as the mover sends it, from a ring of slots that does not fit in any cache.
const PAYLOAD_BYTES: usize = 4 << 20;
const SLOTS: usize = 64;
const HEADER_BYTES: usize = 64;

fn main() {
    let argument =
        |index, default| std::env::args().nth(index).map_or(default, |text| text.parse().expect("a number"));
    let (gibibytes, rounds): (usize, usize) = (argument(1, 4), argument(2, 5));
    let messages = (gibibytes << 30) / PAYLOAD_BYTES;
    type Run = fn(usize) -> Sample;
    let variants: [(&str, Run); 5] = [
        ("tcp, clear", clear),
        ("tls, this crate", tls),
        ("tls, rustls unbuffered", unbuffered),
        ("tls, rustls buffered", buffered),
        ("memory", in_memory),
    ];
    let mut samples = vec![Vec::new(); variants.len()];
    for round in 0..=rounds {
        for (index, (_, run)) in variants.iter().enumerate() {
            let sample = run(messages);
            if round > 0 {
                samples[index].push(sample);
            }
        }
    }
    println!("{:24} {:>18} {:>20} {:>20}", "", "GB/s", "sender CPU-s/GB", "receiver CPU-s/GB");
    for ((name, _), samples) in variants.iter().zip(&samples) {
        let gigabytes = (messages * PAYLOAD_BYTES) as f64 / 1e9;
        let column = |value: fn(&Sample) -> Duration| {
            let mut values: Vec<f64> =
                samples.iter().map(|sample| value(sample).as_secs_f64() / gigabytes).collect();
            values.sort_by(f64::total_cmp);
            (values[values.len() / 2], values[0])
        };
        let (wall, sender, receiver) = (column(|s| s.wall), column(|s| s.sender), column(|s| s.receiver));
        println!(
            "{name:24} {:9.2} [{:5.2}] {:12.3} [{:.3}] {:12.3} [{:.3}]",
            1.0 / wall.0,
            1.0 / wall.1,
            sender.0,
            sender.1,
            receiver.0,
            receiver.1
        );
    }
}

#[derive(Clone, Copy)]
struct Sample {
    wall: Duration,
    sender: Duration,
    receiver: Duration,
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs both ends, each on a thread, and measures them.
fn measure<T: Send>(
    send: impl FnOnce(&[Vec<u8>]) + Send,
    receive: impl FnOnce(&mut [Vec<u8>]) -> T + Send,
) -> Sample {
    // Touched before the clock starts.
    let source = vec![vec![5; PAYLOAD_BYTES]; SLOTS];
    let mut sink = vec![vec![6; PAYLOAD_BYTES]; SLOTS];
    let start = Instant::now();
    thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let before = thread_cpu();
            receive(&mut sink);
            thread_cpu() - before
        });
        let before = thread_cpu();
        send(&source);
        let sender = thread_cpu() - before;
        let receiver = receiver.join().expect("the receiver");
        Sample { wall: start.elapsed(), sender, receiver }
    })
}

fn streams(messages: usize, (dialed, accepted): (Stream, Stream)) -> Sample {
    let (mut sender, _back, _) = dialed.split();
    let (_reply, mut receiver, _) = accepted.split();
    measure(
        move |slots| send_all(&mut *sender, slots, messages),
        move |slots| receive_all(&mut *receiver, slots, messages),
    )
}

fn send_all(sender: &mut dyn Sender, slots: &[Vec<u8>], messages: usize) {
    for message in 0..messages {
        let payload = &slots[message % SLOTS];
        sender.send(&[IoSlice::new(&[1; HEADER_BYTES]), IoSlice::new(payload)]).expect("send");
    }
    sender.finish().expect("finish");
}

fn receive_all(receiver: &mut dyn Receiver, slots: &mut [Vec<u8>], messages: usize) {
    for message in 0..messages {
        receiver.receive(&mut [0; HEADER_BYTES]).expect("receive");
        receiver.receive(&mut slots[message % SLOTS]).expect("receive");
    }
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listen");
    let dialed = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let accepted = listener.accept().expect("accept").0;
    (dialed, accepted)
}

fn session_pair(key: Option<StreamKey>) -> (Stream, Stream) {
    let (source, sink) = (Identity::generate().expect("identity"), Identity::generate().expect("identity"));
    let id = SessionId([1; 16]);
    let dialer = Session::new(id, Role::Source, &source, sink.fingerprint(), key.clone()).expect("session");
    let answerer = Session::new(id, Role::Sink, &sink, source.fingerprint(), key).expect("session");
    let (dialed, accepted) = sockets();
    let stream = |socket: TcpStream| tcp::stream(socket.into(), None, &Settings::default()).expect("stream");
    let (dialed, accepted) = (stream(dialed), stream(accepted));
    let timeout = Duration::from_secs(10);
    let answering = thread::spawn(move || answerer.answer(accepted, timeout).expect("answer").1);
    let dialed = dialer.dial(dialed, Purpose::Data(0), timeout).expect("dial");
    (dialed, answering.join().expect("answer"))
}

fn clear(messages: usize) -> Sample {
    streams(messages, session_pair(Some(StreamKey::generate().expect("key"))))
}

fn tls(messages: usize) -> Sample {
    streams(messages, session_pair(None))
}

fn in_memory(messages: usize) -> Sample {
    streams(messages, memory::pair(4 << 20))
}

fn configs() -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("certificate");
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites = vec![rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256];
    let provider = Arc::new(provider);
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("root");
    let client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("certificate");
    server.send_tls13_tickets = 0;
    (Arc::new(client), Arc::new(server))
}

/// rustls as most programs use it: `Read` and `Write` around a connection.
fn buffered(messages: usize) -> Sample {
    let (client, server) = configs();
    let mut client = ClientConnection::new(client, "localhost".try_into().expect("name")).expect("client");
    let mut server = ServerConnection::new(server).expect("server");
    client.set_buffer_limit(Some(1 << 20));
    let (mut dialed, mut accepted) = sockets();
    measure(
        move |slots| {
            let mut stream = rustls::Stream::new(&mut client, &mut dialed);
            for message in 0..messages {
                stream.write_all(&[1; HEADER_BYTES]).expect("write");
                stream.write_all(&slots[message % SLOTS]).expect("write");
            }
            stream.flush().expect("flush");
        },
        move |slots| {
            let mut stream = rustls::Stream::new(&mut server, &mut accepted);
            for message in 0..messages {
                stream.read_exact(&mut [0; HEADER_BYTES]).expect("read");
                stream.read_exact(&mut slots[message % SLOTS]).expect("read");
            }
        },
    )
}

const BATCH_BYTES: usize = 16 << 14;

/// The unbuffered API with large buffers of our own.
fn unbuffered(messages: usize) -> Sample {
    let (client, server) = configs();
    let mut client =
        rustls::client::UnbufferedClientConnection::new(client, "localhost".try_into().expect("name"))
            .expect("client");
    let mut server = rustls::server::UnbufferedServerConnection::new(server).expect("server");
    let (mut dialed, mut accepted) = sockets();
    let mut output = vec![0; BATCH_BYTES + 16 * 64];
    macro_rules! shake_hands {
        ($connection:ident, $socket:ident) => {{
            let (mut input, mut outgoing) = (Vec::new(), Vec::new());
            loop {
                let UnbufferedStatus { discard, state, .. } = $connection.process_tls_records(&mut input);
                let (mut blocked, mut done) = (false, false);
                match state.expect("handshake") {
                    ConnectionState::EncodeTlsData(mut data) => {
                        let mut buffer = vec![0; 1 << 15];
                        let length = data.encode(&mut buffer).expect("room");
                        outgoing.extend_from_slice(&buffer[..length]);
                    }
                    ConnectionState::TransmitTlsData(data) => {
                        $socket.write_all(&outgoing).expect("write");
                        outgoing.clear();
                        data.done();
                    }
                    ConnectionState::BlockedHandshake => blocked = true,
                    _ => done = true,
                }
                input.drain(..discard);
                if done && !$connection.is_handshaking() {
                    break;
                }
                if blocked || done {
                    let mut buffer = [0; 4096];
                    let length = $socket.read(&mut buffer).expect("read");
                    input.extend_from_slice(&buffer[..length]);
                }
            }
            input
        }};
    }
    measure(
        move |slots| {
            shake_hands!(client, dialed);
            for message in 0..messages {
                for part in [&[1; HEADER_BYTES][..], &slots[message % SLOTS]] {
                    for batch in part.chunks(BATCH_BYTES) {
                        let ConnectionState::WriteTraffic(mut traffic) =
                            client.process_tls_records(&mut []).state.expect("traffic")
                        else {
                            panic!("no traffic state")
                        };
                        let length = traffic.encrypt(batch, &mut output).expect("room");
                        dialed.write_all(&output[..length]).expect("write");
                    }
                }
            }
        },
        move |slots| {
            let left = shake_hands!(server, accepted);
            let total = messages * (HEADER_BYTES + PAYLOAD_BYTES);
            let mut input = vec![0; 512 << 10];
            input[..left.len()].copy_from_slice(&left);
            let (mut filled, mut received, mut at) = (left.len(), 0, 0);
            while received < total {
                let mut start = 0;
                loop {
                    let status = server.process_tls_records(&mut input[start..filled]);
                    let mut discard = status.discard;
                    match status.state.expect("traffic") {
                        ConnectionState::ReadTraffic(mut traffic) => {
                            while let Some(record) = traffic.next_record() {
                                let record = record.expect("record");
                                discard += record.discard;
                                let slot = &mut slots[at / PAYLOAD_BYTES % SLOTS];
                                let room = &mut slot[at % PAYLOAD_BYTES..];
                                let length = room.len().min(record.payload.len());
                                room[..length].copy_from_slice(&record.payload[..length]);
                                at += length;
                                received += record.payload.len();
                            }
                            start += discard;
                        }
                        _ => {
                            start += discard;
                            break;
                        }
                    }
                }
                input.copy_within(start..filled, 0);
                filled -= start;
                if received < total {
                    filled += accepted.read(&mut input[filled..]).expect("read");
                }
            }
        },
    )
}
