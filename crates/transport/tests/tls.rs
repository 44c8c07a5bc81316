//! Who gets through mutual TLS, who does not, and what both ends are told.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{Agreed, LONG, agreed, listener, memory_pair, raw_dial, session, sockets};
use haul_model::SessionId;
use haul_transport::fault::{self, Fault, When};
use haul_transport::tcp::{self, Settings};
use haul_transport::{Cause, Fingerprint, Identity, Listener, Purpose, Role, Session, Stream, cause, trace};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::{default_provider, sign::any_ecdsa_type};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{AlertDescription, ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};

/// Dials `listener` as `dialer`, which must fail at both ends; the causes there.
fn refused(listener: &Listener, dialer: &Session, purpose: Purpose) -> (Cause, Cause) {
    let error = dialer.dial(raw_dial(listener), purpose, LONG).expect_err("a refusal");
    (cause(&error), last_refusal(listener))
}

/// Why the listener refused its last dialer; nobody was accepted.
fn last_refusal(listener: &Listener) -> Cause {
    let error = listener.accept(Duration::ZERO).expect_err("nobody is let in");
    assert_eq!(cause(&error), Cause::Silent);
    let start = Instant::now();
    loop {
        if let Some((cause, _)) = listener.refusals().last {
            return cause;
        }
        assert!(start.elapsed() < LONG, "the listener neither accepts nor refuses");
        thread::yield_now();
    }
}

#[test]
fn two_ends_that_pin_each_other_meet() {
    let agreed = agreed(false);
    let listener = listener(&agreed.sink, LONG);
    for purpose in [Purpose::Control, Purpose::Data(0), Purpose::Data(63)] {
        let dialed = agreed.source.dial(raw_dial(&listener), purpose, LONG).unwrap();
        let (accepted_purpose, accepted) = listener.accept(LONG).unwrap();
        assert_eq!(accepted_purpose, purpose);
        assert!(dialed.about().cipher.is_some());
        assert_eq!(dialed.about().cipher, accepted.about().cipher);
        assert_eq!(dialed.about().peer, Some(listener.address()));
        assert!(accepted.about().peer.is_some());
    }
    assert_eq!(listener.refusals().count, 0);
}

#[test]
fn either_role_may_listen() {
    let agreed = agreed(false);
    let listener = listener(&agreed.source, LONG);
    agreed.sink.dial(raw_dial(&listener), Purpose::Control, LONG).unwrap();
    assert_eq!(listener.accept(LONG).unwrap().0, Purpose::Control);
}

#[test]
fn a_listener_with_another_certificate_than_pinned_is_refused() {
    let agreed = agreed(false);
    let stranger = Identity::generate().unwrap();
    let dialer = session(Role::Source, &agreed.source_identity, stranger.fingerprint(), None);
    let listener = listener(&agreed.sink, LONG);
    assert_eq!(refused(&listener, &dialer, Purpose::Control), (Cause::Unproven, Cause::Unproven));
}

#[test]
fn a_dialer_with_another_certificate_than_pinned_is_refused_and_told() {
    let agreed = agreed(false);
    let stranger = Identity::generate().unwrap();
    let dialer = session(Role::Source, &stranger, agreed.sink_identity.fingerprint(), None);
    let listener = listener(&agreed.sink, LONG);
    assert_eq!(refused(&listener, &dialer, Purpose::Control), (Cause::Unproven, Cause::Unproven));
}

#[test]
fn an_end_does_not_meet_itself() {
    // A man in the middle who connects an end to itself, with its own certificate pinned by mistake.
    let identity = Identity::generate().unwrap();
    let alone = session(Role::Source, &identity, identity.fingerprint(), None);
    let listener = listener(&alone, LONG);
    assert_eq!(refused(&listener, &alone, Purpose::Control), (Cause::Malformed, Cause::Malformed));
}

#[test]
fn a_hello_of_another_session_role_or_stream_is_refused_and_told() {
    let Agreed { source, sink, source_identity, sink_identity, .. } = agreed(false);
    let other_id = SessionId([0x5f; 16]);
    let other =
        Session::new(other_id, Role::Source, &source_identity, sink_identity.fingerprint(), None).unwrap();
    let same_role = session(Role::Sink, &source_identity, sink_identity.fingerprint(), None);
    for (dialer, purpose) in
        [(&other, Purpose::Control), (&same_role, Purpose::Control), (&source, Purpose::Data(64))]
    {
        let listener = listener(&sink, LONG);
        assert_eq!(refused(&listener, dialer, purpose), (Cause::Malformed, Cause::Malformed), "{purpose:?}");
    }
}

#[test]
fn a_clear_stream_is_never_a_way_around_encryption() {
    // One end wants --plain, the other does not know of it: both directions fail, on both ends.
    let encrypted = agreed(false);
    let key = haul_transport::StreamKey::generate().unwrap();
    let (source, sink) = (&encrypted.source_identity, &encrypted.sink_identity);
    let plain_source = session(Role::Source, source, sink.fingerprint(), Some(key.clone()));
    let plain_sink = session(Role::Sink, sink, source.fingerprint(), Some(key));

    let listening = listener(&encrypted.sink, LONG);
    let (dialer, answerer) = refused(&listening, &plain_source, Purpose::Data(0));
    assert_eq!((dialer, answerer), (Cause::Lost, Cause::Malformed));

    let listening = listener(&plain_sink, LONG);
    assert_eq!(
        refused(&listening, &encrypted.source, Purpose::Data(0)),
        (Cause::Malformed, Cause::Malformed)
    );
}

#[derive(Debug)]
struct Credulous;

/// Believes any server, so that these tests reach the checks of the listener.
impl ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

fn foreign_config(
    versions: &[&'static rustls::SupportedProtocolVersion],
    certified: Option<CertifiedKey>,
) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Credulous));
    match certified {
        Some(certified) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified))),
        None => builder.with_no_client_auth(),
    }
}

fn key_pair() -> PrivateKeyDer<'static> {
    PrivatePkcs8KeyDer::from(rcgen::KeyPair::generate().unwrap().serialize_der()).into()
}

/// Connects to `listener` as another TLS program would, and says how far it came: the alert that ended it, or none.
fn foreign(listener: &Listener, config: ClientConfig) -> Result<ClientConnection, Option<AlertDescription>> {
    let mut socket = TcpStream::connect(listener.address()).unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), "haul".try_into().unwrap()).unwrap();
    let mut stream = rustls::Stream::new(&mut connection, &mut socket);
    // The listener judges the client's certificate after the client is done: only an answer to more bytes tells.
    let result = stream
        .write_all(b"x")
        .and_then(|()| stream.flush())
        .and_then(|()| stream.read(&mut [0; 1]).map(drop));
    let Err(error) = result else { return Ok(connection) };
    let alert = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match alert {
        Some(rustls::Error::AlertReceived(alert)) => Err(Some(*alert)),
        _ => Err(None),
    }
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let listener = listener(&agreed(false).sink, LONG);
    let result = foreign(&listener, foreign_config(&[&rustls::version::TLS13], None));
    assert_eq!(result.err(), Some(Some(AlertDescription::CertificateRequired)));
    assert_eq!(last_refusal(&listener), Cause::Unproven);
}

#[test]
fn a_client_that_shows_the_pinned_certificate_without_its_key_is_refused() {
    let agreed = agreed(false);
    let listener = listener(&agreed.sink, LONG);
    let stolen = CertificateDer::from(agreed.source_identity.certificate().to_vec());
    let certified = CertifiedKey::new(vec![stolen], any_ecdsa_type(&key_pair()).unwrap());
    let result = foreign(&listener, foreign_config(&[&rustls::version::TLS13], Some(certified)));
    assert_eq!(result.err(), Some(Some(AlertDescription::DecryptError)));
    assert_eq!(last_refusal(&listener), Cause::Unproven);
}

#[test]
fn a_server_that_shows_the_pinned_certificate_without_its_key_is_refused() {
    let agreed = agreed(false);
    let stolen = CertificateDer::from(agreed.sink_identity.certificate().to_vec());
    let certified = CertifiedKey::new(vec![stolen], any_ecdsa_type(&key_pair()).unwrap());
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    let (dialed, mut accepted) = sockets();
    let impostor = thread::spawn(move || {
        let mut connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        connection.complete_io(&mut accepted).is_err()
    });
    let stream = tcp::stream(dialed.into(), None, &Settings::default()).unwrap();
    let error = agreed.source.dial(stream, Purpose::Control, LONG).unwrap_err();
    assert_eq!(cause(&error), Cause::Unproven, "{error}");
    assert!(impostor.join().unwrap());
}

#[test]
fn a_client_of_tls_1_2_is_refused() {
    let listener = listener(&agreed(false).sink, LONG);
    let result = foreign(&listener, foreign_config(&[&rustls::version::TLS12], None));
    assert_eq!(result.err(), Some(Some(AlertDescription::ProtocolVersion)));
    assert_eq!(last_refusal(&listener), Cause::Malformed);
}

/// A certificate of another program, with a sink that pins it.
fn foreign_identity() -> (CertifiedKey, Session) {
    let pair = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["x".to_owned()]).unwrap().self_signed(&pair).unwrap();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, certificate.der());
    let fingerprint = Fingerprint(digest.as_ref().try_into().unwrap());
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pair.serialize_der()));
    let certified = CertifiedKey::new(vec![certificate.der().clone()], any_ecdsa_type(&key).unwrap());
    (certified, session(Role::Sink, &Identity::generate().unwrap(), fingerprint, None))
}

#[test]
fn no_tickets_are_given_and_nothing_is_resumed() {
    let (certified, sink) = foreign_identity();
    let listener = listener(&sink, LONG);
    let config = Arc::new(foreign_config(&[&rustls::version::TLS13], Some(certified)));
    for _ in 0..2 {
        let mut socket = TcpStream::connect(listener.address()).unwrap();
        let mut connection = ClientConnection::new(config.clone(), "haul".try_into().unwrap()).unwrap();
        let mut stream = rustls::Stream::new(&mut connection, &mut socket);
        let mut hello = [0; 32];
        hello[..8].copy_from_slice(&[b'h', b'a', b'u', b'l', 1, 1, 1, 1]);
        hello[16..].copy_from_slice(&common::SESSION.0);
        stream.write_all(&hello).unwrap();
        let mut answer = [9];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0], "the hello of docs/spec/streams.md is accepted");
        assert_eq!(connection.tls13_tickets_received(), 0);
        assert_eq!(connection.handshake_kind(), Some(rustls::HandshakeKind::Full));
        assert_eq!(listener.accept(LONG).unwrap().0, Purpose::Control);
    }
}

#[test]
fn a_chain_behind_the_pinned_certificate_is_refused() {
    let (certified, sink) = foreign_identity();
    let mut chain = certified.cert.clone();
    chain.push(CertificateDer::from(Identity::generate().unwrap().certificate().to_vec()));
    let listener = listener(&sink, LONG);
    let certified = CertifiedKey::new(chain, certified.key);
    let result = foreign(&listener, foreign_config(&[&rustls::version::TLS13], Some(certified)));
    assert_eq!(result.err(), Some(Some(AlertDescription::AccessDenied)));
}

#[test]
fn the_first_flight_names_nobody() {
    let agreed = agreed(false);
    let (dialed, mut accepted) = sockets();
    let stream = tcp::stream(dialed.into(), None, &Settings::default()).unwrap();
    let dialing = thread::spawn(move || agreed.source.dial(stream, Purpose::Control, LONG));
    let mut header = [0; 5];
    accepted.read_exact(&mut header).unwrap();
    assert_eq!(header[0], 22);
    let mut hello = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
    accepted.read_exact(&mut hello).unwrap();
    drop(accepted);
    assert!(!hello.windows(4).any(|window| window == b"haul"), "a name in the clear");
    // type, length, version, random; session id; suites; compression; then extensions as (type, length, bytes).
    let mut at = 4 + 2 + 32;
    at += 1 + usize::from(hello[at]);
    at += 2 + usize::from(u16::from_be_bytes([hello[at], hello[at + 1]]));
    at += 1 + usize::from(hello[at]) + 2;
    let mut extensions = Vec::new();
    while at < hello.len() {
        extensions.push(u16::from_be_bytes([hello[at], hello[at + 1]]));
        at += 4 + usize::from(u16::from_be_bytes([hello[at + 2], hello[at + 3]]));
    }
    assert_eq!(at, hello.len());
    let forbidden = [
        (0, "server_name"),
        (16, "alpn"),
        (35, "session_ticket"),
        (41, "pre_shared_key"),
        (42, "early_data"),
    ];
    for (number, name) in forbidden {
        assert!(!extensions.contains(&number), "{name}");
    }
    assert!(extensions.contains(&43), "supported_versions, so this was parsed right");
    assert_eq!(cause(&dialing.join().unwrap().unwrap_err()), Cause::Lost);
}

fn answer_on(socket: TcpStream, sink: &Session, timeout: Duration) -> Cause {
    let stream = tcp::stream(socket.into(), None, &Settings::default()).unwrap();
    cause(&sink.answer(stream, timeout).expect_err("a refusal"))
}

#[test]
fn garbage_is_refused_at_once() {
    let agreed = agreed(false);
    let mut long_record = vec![22, 3, 1, 0xff, 0xff];
    long_record.resize(70_000, 7);
    let garbage: [&[u8]; 7] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        &[0; 100],
        &[0xff; 5_000],
        &[22, 3, 1, 0, 4, 1, 0, 0, 0],
        &[22, 3, 1, 0, 5, 2, 0, 0, 1, 0],
        &long_record,
    ];
    for bytes in garbage {
        let (mut dialed, accepted) = sockets();
        dialed.write_all(bytes).unwrap();
        assert_eq!(answer_on(accepted, &agreed.sink, LONG), Cause::Malformed, "{:?}", &bytes[..5]);
        // And the same from a listener, to a dialer.
        let (dialed, mut accepted) = sockets();
        accepted.write_all(bytes).unwrap();
        let stream = tcp::stream(dialed.into(), None, &Settings::default()).unwrap();
        let error = agreed.source.dial(stream, Purpose::Control, LONG).unwrap_err();
        assert_eq!(cause(&error), Cause::Malformed, "{:?}: {error}", &bytes[..5]);
    }
}

#[test]
fn a_handshake_without_end_is_refused_at_its_byte_limit() {
    // A ClientHello that claims 16 MiB, in records of 16 KiB.
    let (mut dialed, accepted) = sockets();
    let flooding = thread::spawn(move || {
        let mut record = vec![1; 5 + (1 << 14)];
        record[..5].copy_from_slice(&[22, 3, 1, 0x40, 0]);
        let mut first = record.clone();
        first[5..9].copy_from_slice(&[1, 0xff, 0xff, 0xff]);
        let mut sent = 0;
        let mut next = first;
        while sent < 64 << 20 && dialed.write_all(&next).is_ok() {
            sent += next.len();
            next.clone_from(&record);
        }
        sent
    });
    let cause = answer_on(accepted, &agreed(false).sink, LONG);
    assert!(matches!(cause, Cause::Malformed | Cause::Excess), "{cause:?}");
    assert!(flooding.join().unwrap() < 64 << 20, "it was cut off");
}

/// How many bytes a dialer sends until its stream is accepted.
fn dialer_bytes(agreed: &Agreed) -> u64 {
    let counters = trace::Counters::default();
    let (dialed, accepted) = memory_pair();
    common::protect(agreed, Purpose::Data(1), (trace::wrap(dialed, &counters), accepted));
    counters.sent_bytes()
}

#[test]
fn a_handshake_in_crumbs_is_refused_at_its_byte_limit() {
    // A ClientHello of 60,000 bytes, which TLS allows, in records of one byte: 360,000 bytes.
    let (mut dialed, accepted) = sockets();
    let crumbling = thread::spawn(move || {
        let record = |byte| [22, 3, 1, 0, 1, byte];
        let mut bytes = [1, 0, 0xea, 0x60].map(record).concat();
        bytes.resize(bytes.len() + 6 * 60_000, 0);
        bytes[24..].chunks_exact_mut(6).for_each(|crumb| crumb.copy_from_slice(&record(0)));
        // It is cut off somewhere on the way.
        let _ = dialed.write_all(&bytes);
    });
    assert_eq!(answer_on(accepted, &agreed(false).sink, LONG), Cause::Excess);
    crumbling.join().unwrap();
}

#[test]
fn a_silent_peer_is_given_up_at_the_deadline_in_each_phase() {
    const SHORT: Duration = Duration::from_millis(100);
    for plain in [false, true] {
        let agreed = agreed(plain);
        // Nothing at all, to a listener and to a dialer.
        let (quiet, accepted) = sockets();
        assert_eq!(answer_on(accepted, &agreed.sink, SHORT), Cause::Silent);
        drop(quiet);
        let (dialed, quiet) = sockets();
        let stream = tcp::stream(dialed.into(), None, &Settings::default()).unwrap();
        let error = agreed.source.dial(stream, Purpose::Data(1), SHORT).unwrap_err();
        assert_eq!(cause(&error), Cause::Silent);
        drop(quiet);
        // Silence from byte n on, within each message that the dialer sends. (Signatures differ in length by a few bytes.)
        let whole = dialer_bytes(&agreed);
        for byte in [1, 40, 65, whole / 2, 2 * whole / 3, whole - 30, whole - 8] {
            let (dialed, accepted) = memory_pair();
            let dialed = fault::sending(dialed, When::Byte(byte), Fault::Stall);
            let closer = dialed.closer();
            let source = agreed.source.clone();
            let dialing = thread::spawn(move || source.dial(dialed, Purpose::Data(1), LONG));
            let Err(error) = agreed.sink.answer(accepted, SHORT) else {
                panic!("a stream after {byte} bytes");
            };
            assert_eq!(cause(&error), Cause::Silent, "{byte}: {error}");
            closer.close();
            assert!(dialing.join().unwrap().is_err());
        }
    }
}

#[test]
fn a_peer_that_sends_a_byte_now_and_then_does_not_get_past_the_deadline() {
    let agreed = agreed(false);
    for first in [22, b'h'] {
        let (mut dialed, accepted) = sockets();
        let trickling = thread::spawn(move || {
            let mut next = first;
            // Each byte comes well within the deadline, all of them never.
            while dialed.write_all(&[next]).is_ok() {
                next = 3;
                thread::sleep(Duration::from_millis(5));
            }
        });
        let sink = session(
            Role::Sink,
            &agreed.sink_identity,
            agreed.source_identity.fingerprint(),
            Some(haul_transport::StreamKey::generate().unwrap()),
        );
        let start = Instant::now();
        let cause = answer_on(accepted, &sink, Duration::from_millis(150));
        assert_eq!(cause, Cause::Silent);
        assert!(start.elapsed() >= Duration::from_millis(150));
        trickling.join().unwrap();
    }
}

#[test]
fn nor_does_one_that_has_proven_itself() {
    let agreed = agreed(false);
    // Of its last record, which says which stream this is, all but a little.
    let at_once = dialer_bytes(&agreed) - 60;
    let ((dialed, mut from), (mut to, accepted)) = (sockets(), sockets());
    let (mut back_from, mut back_to) = (to.try_clone().unwrap(), from.try_clone().unwrap());
    let back = thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
    let trickling = thread::spawn(move || {
        let mut byte = [0];
        let mut passed = 0;
        while from.read(&mut byte).is_ok_and(|count| count == 1) && to.write_all(&byte).is_ok() {
            passed += 1;
            if passed > at_once {
                thread::sleep(Duration::from_millis(50));
            }
        }
    });
    let stream = tcp::stream(dialed.into(), None, &Settings::default()).unwrap();
    let source = agreed.source.clone();
    let dialing = thread::spawn(move || source.dial(stream, Purpose::Data(1), LONG));
    let start = Instant::now();
    assert_eq!(answer_on(accepted, &agreed.sink, Duration::from_millis(400)), Cause::Silent);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(dialing.join().unwrap().is_err());
    trickling.join().unwrap();
    drop(back);
}

/// Sends 100 kB from source to sink, over TLS over a network that flips one bit; what arrived, and how it ended.
fn over_flipped(agreed: &Agreed, byte: u64, bit: u8) -> Result<Vec<u8>, Cause> {
    let (dialed, accepted) = memory_pair();
    let dialed = fault::sending(dialed, When::Byte(byte), Fault::Flip(bit));
    let source = agreed.source.clone();
    let closer = accepted.closer();
    let sending = thread::spawn(move || {
        let (mut sender, _receiver, _) = source.dial(dialed, Purpose::Data(0), LONG)?.split();
        sender.send(&[std::io::IoSlice::new(&haul_transport::conformance::pattern(1, 100_000))])?;
        sender.finish()
    });
    let result = agreed.sink.answer(accepted, LONG).and_then(|(_, stream): (_, Stream)| {
        let (_sender, mut receiver, _) = stream.split();
        let mut bytes = vec![0; 100_000];
        receiver.receive(&mut bytes).map(|()| bytes)
    });
    closer.close();
    let _ = sending.join().unwrap();
    result.map_err(|error| cause(&error))
}

#[test]
fn a_flipped_bit_beneath_tls_never_passes_as_data() {
    let agreed = agreed(false);
    let expected = haul_transport::conformance::pattern(1, 100_000);
    // Behind the handshake, whose length is about 2.3 kB.
    for byte in [4_000, 20_000, 33_333, 60_000, 99_000] {
        assert_eq!(over_flipped(&agreed, byte, 5), Err(Cause::Altered), "byte {byte}");
    }
    // Within it: refused, or a byte that means nothing (the version in a record's header).
    for byte in (0..2_600).step_by(37) {
        match over_flipped(&agreed, byte, (byte % 8) as u8) {
            Ok(bytes) => assert!(bytes == expected, "byte {byte}"),
            Err(cause) => assert!(
                matches!(
                    cause,
                    Cause::Altered
                        | Cause::Malformed
                        | Cause::Unproven
                        | Cause::Excess
                        | Cause::Lost
                        | Cause::Version
                ),
                "byte {byte}: {cause:?}"
            ),
        }
    }
}
