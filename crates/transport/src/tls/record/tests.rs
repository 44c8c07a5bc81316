//! The record layer against rustls' own, and against peers that break the protocol after a good handshake.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use rustls::{ClientConnection, ServerConnection};

use super::super::Profile;
use super::*;
use crate::conformance::pattern;
use crate::session::Deadline;
use crate::{Identity, cause, memory, tcp};

fn deadline() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// Profiles of two ends that pin each other, with or without AES hardware.
fn profiles(client_aes: bool, server_aes: bool) -> (Profile, Profile) {
    let (client, server) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    (
        Profile::with_aes(&client, server.fingerprint(), client_aes).unwrap(),
        Profile::with_aes(&server, client.fingerprint(), server_aes).unwrap(),
    )
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let dialed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (dialed, listener.accept().unwrap().0)
}

fn stream(socket: TcpStream) -> Stream {
    tcp::stream(socket.into(), None, &tcp::Settings::default()).unwrap()
}

/// What a test of one end against rustls needs of it.
trait Foreign: Read + Write + Send {
    /// New keys for what rustls sends from now on.
    fn refresh(&mut self);
    fn close(&mut self);
}

macro_rules! foreign {
    ($connection:ty) => {
        impl Foreign for rustls::StreamOwned<$connection, TcpStream> {
            fn refresh(&mut self) {
                self.conn.refresh_traffic_keys().unwrap();
            }

            fn close(&mut self) {
                self.conn.send_close_notify();
                self.flush().unwrap();
            }
        }
    };
}
foreign!(ClientConnection);
foreign!(ServerConnection);

/// Our end and rustls' own, in either role.
fn with_rustls(as_client: bool, aes: bool) -> (Agreed, Box<dyn Foreign>) {
    let (client, server) = profiles(aes, aes);
    let (ours, theirs) = sockets();
    if as_client {
        let mut connection = ServerConnection::new(server.server.clone()).unwrap();
        let shaking = thread::spawn(move || {
            let mut theirs = theirs;
            while connection.is_handshaking() {
                connection.complete_io(&mut theirs).unwrap();
            }
            rustls::StreamOwned::new(connection, theirs)
        });
        let agreed = client.agree_as_client(stream(ours), deadline()).unwrap();
        (agreed, Box::new(shaking.join().unwrap()))
    } else {
        let mut connection =
            ClientConnection::new(client.client.clone(), "haul".try_into().unwrap()).unwrap();
        let shaking = thread::spawn(move || {
            let mut theirs = theirs;
            while connection.is_handshaking() {
                connection.complete_io(&mut theirs).unwrap();
            }
            rustls::StreamOwned::new(connection, theirs)
        });
        let agreed = server.agree_as_server(stream(ours), &[], deadline()).unwrap();
        (agreed, Box::new(shaking.join().unwrap()))
    }
}

/// Sends 1 MB each way through `sender` and `receiver`, with rustls at the other end, and closes cleanly.
fn talk_to_rustls(
    mut sender: RecordSender,
    mut receiver: RecordReceiver,
    mut foreign: Box<dyn Foreign>,
    refresh: bool,
) {
    let ours = thread::spawn(move || {
        let bytes = pattern(1, 1_000_000);
        for piece in bytes.chunks(3_334) {
            let (header, payload) = piece.split_at(40);
            sender.send(&[IoSlice::new(header), IoSlice::new(payload)]).unwrap();
        }
        sender.finish().unwrap();
        let mut received = vec![0; 1_000_000];
        receiver.receive(&mut received).unwrap();
        assert!(received == pattern(2, 1_000_000), "from rustls");
        assert_eq!(cause(&receiver.receive(&mut [0]).unwrap_err()), Cause::CleanEnd);
    });
    let mut received = Vec::new();
    foreign.read_to_end(&mut received).unwrap();
    assert!(received == pattern(1, 1_000_000), "to rustls");
    for piece in pattern(2, 1_000_000).chunks(77_777) {
        foreign.write_all(piece).unwrap();
        if refresh {
            foreign.refresh();
        }
    }
    foreign.close();
    ours.join().unwrap();
}

#[test]
fn rustls_understands_our_records_and_we_its_in_both_roles_and_suites() {
    for (as_client, aes) in [(true, true), (true, false), (false, true), (false, false)] {
        let (agreed, foreign) = with_rustls(as_client, aes);
        let expected = if aes { "TLS13_AES_128_GCM_SHA256" } else { "TLS13_CHACHA20_POLY1305_SHA256" };
        assert_eq!(agreed.traffic.cipher, Some(expected));
        let (sender, receiver) = halves(agreed).unwrap();
        talk_to_rustls(sender, receiver, foreign, false);
    }
}

#[test]
fn keys_are_updated_in_step_with_rustls_in_both_directions() {
    for as_client in [true, false] {
        let (agreed, foreign) = with_rustls(as_client, true);
        let (mut sender, receiver) = halves(agreed).unwrap();
        (sender.records_per_key, sender.records_left) = (3, 3);
        talk_to_rustls(sender, receiver, foreign, true);
    }
}

#[test]
fn aes_is_used_only_where_both_ends_have_it_in_hardware() {
    for (client_aes, server_aes) in [(true, true), (true, false), (false, true), (false, false)] {
        let ((sender, _), _) = connected(profiles(client_aes, server_aes));
        let algorithm = sender.keys.key.algorithm();
        assert_eq!(algorithm == &aead::AES_128_GCM, client_aes && server_aes, "{client_aes} {server_aes}");
    }
}

type Halves = (RecordSender, RecordReceiver);

/// Both ends of this crate, over memory.
fn connected((client, server): (Profile, Profile)) -> (Halves, Halves) {
    let (dialed, accepted) = memory::pair(1 << 20);
    let accepting =
        thread::spawn(move || halves(server.agree_as_server(accepted, &[], deadline()).unwrap()).unwrap());
    let dialed = halves(client.agree_as_client(dialed, deadline()).unwrap()).unwrap();
    (dialed, accepting.join().unwrap())
}

fn pair() -> (Halves, Halves) {
    connected(profiles(true, true))
}

impl RecordSender {
    /// What a peer outside the profile might send.
    fn forge(&mut self, kind: ContentType, content: &[u8]) {
        self.seal(kind, Plain::At(content)).unwrap();
    }

    fn forge_key_update(&mut self, message: &[u8]) {
        self.forge(ContentType::Handshake, message);
        self.keys = Keys::new(lock(&self.shared.schedule).next_sending().unwrap()).unwrap();
    }

    /// The records made so far, instead of sending them.
    fn take(&mut self) -> Vec<u8> {
        let used = std::mem::take(&mut self.used);
        self.output[..used].to_vec()
    }

    fn send_raw(&mut self, bytes: &[u8]) {
        self.lower.send(&[IoSlice::new(bytes)]).unwrap();
    }
}

/// The cause with which `receiver` refuses, for small and large slices alike; it must then stay refused.
fn refusal(make: impl Fn(&mut RecordSender)) -> Cause {
    let causes = [1usize, 100_000].map(|space| {
        let ((mut sender, _keep), (_reply, mut receiver)) = pair();
        make(&mut sender);
        if sender.used > 0 {
            sender.flush().unwrap();
        }
        let mut into = vec![0; space];
        let error = receiver.receive_some(&mut into).unwrap_err();
        assert_eq!(cause(&receiver.receive_some(&mut into).unwrap_err()), cause(&error), "it stays refused");
        cause(&error)
    });
    assert_eq!(causes[0], causes[1], "whatever the slice");
    causes[0]
}

#[test]
fn what_no_peer_of_the_profile_sends_is_refused() {
    let data = ContentType::ApplicationData;
    let handshake = ContentType::Handshake;
    assert_eq!(refusal(|s| s.forge(data, &[])), Cause::Malformed, "empty data");
    assert_eq!(refusal(|s| s.forge(ContentType::from(0), &[0; 9])), Cause::Malformed, "padding only");
    assert_eq!(refusal(|s| s.forge(ContentType::from(99), b"x")), Cause::Malformed, "unknown type");
    assert_eq!(refusal(|s| s.forge(ContentType::ChangeCipherSpec, &[1])), Cause::Malformed);
    assert_eq!(refusal(|s| s.forge(handshake, &[4, 0, 0, 3, 0, 0, 0])), Cause::Malformed, "session ticket");
    assert_eq!(refusal(|s| s.forge(handshake, &[])), Cause::Malformed);
    assert_eq!(refusal(|s| s.forge(handshake, &[24, 0, 0, 1, 2])), Cause::Malformed, "bad key update");
    assert_eq!(
        refusal(|s| s.forge(handshake, &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0])),
        Cause::Malformed,
        "two in one"
    );
    let idle_updates =
        |s: &mut RecordSender| (0..=IDLE_UPDATES_MAX).for_each(|_| s.forge_key_update(&KEY_UPDATE));
    assert_eq!(refusal(idle_updates), Cause::Excess, "keys that serve nothing");
    assert_eq!(refusal(|s| s.forge(ContentType::Alert, &[2, 40])), Cause::Malformed, "handshake_failure");
    assert_eq!(refusal(|s| s.forge(ContentType::Alert, &[2, 116])), Cause::Unproven, "certificate_required");
    assert_eq!(refusal(|s| s.forge(ContentType::Alert, &[0])), Cause::Malformed, "half an alert");
    assert_eq!(refusal(|s| s.send_raw(&[20, 3, 3, 0, 1, 1])), Cause::Malformed, "not protected");
    assert_eq!(refusal(|s| s.send_raw(&[23, 3, 3, 0, 16])), Cause::Malformed, "shorter than its tag");
    assert_eq!(refusal(|s| s.send_raw(&[23, 3, 3, 0x40, 18])), Cause::Excess, "longer than a record");
    assert_eq!(refusal(|s| s.send_raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")), Cause::Malformed);
}

#[test]
fn a_record_is_believed_once_in_its_place_and_as_it_was_made() {
    let record = |s: &mut RecordSender, text: &[u8]| {
        s.forge(ContentType::ApplicationData, text);
        s.take()
    };
    let second_first = |s: &mut RecordSender| {
        let (_first, second) = (record(s, b"one"), record(s, b"two"));
        s.send_raw(&second);
    };
    assert_eq!(refusal(second_first), Cause::Altered, "out of order");
    for byte in [5, 7, 8, 20, 3 + 5 + 16] {
        let flipped = |s: &mut RecordSender| {
            let mut bytes = record(s, b"one");
            bytes[byte] ^= 0x10;
            s.send_raw(&bytes);
        };
        assert_eq!(refusal(flipped), Cause::Altered, "byte {byte}");
    }

    let ((mut sender, _back), (_reply, mut receiver)) = pair();
    let bytes = record(&mut sender, b"one");
    sender.send_raw(&bytes);
    sender.send_raw(&bytes);
    let mut into = [0; 3];
    receiver.receive(&mut into).unwrap();
    assert_eq!(cause(&receiver.receive(&mut into).unwrap_err()), Cause::Altered, "replayed");
}

#[test]
fn a_failed_receiver_ends_the_stream_for_the_peer_too() {
    let ((mut sender, mut back), (_reply, mut receiver)) = pair();
    sender.send_raw(&[23, 3, 3, 0, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(cause(&receiver.receive(&mut [0]).unwrap_err()), Cause::Altered);
    assert_eq!(cause(&back.receive(&mut [0]).unwrap_err()), Cause::Lost);
}

#[test]
fn padding_and_data_behind_the_close_are_ignored() {
    let ((mut sender, _back), (_reply, mut receiver)) = pair();
    // The type of the record is the last byte that is not zero: "abc", its type, three zeros.
    let mut padded = b"abc".to_vec();
    padded.extend([23, 0, 0]);
    sender.seal(ContentType::from(0), Plain::At(&padded)).unwrap();
    sender.forge(ContentType::Alert, &CLOSE_NOTIFY);
    sender.forge(ContentType::ApplicationData, b"late");
    sender.flush().unwrap();
    let mut into = [0; 100];
    assert_eq!(receiver.receive_some(&mut into).unwrap(), 3);
    assert_eq!(&into[..3], b"abc");
    assert_eq!(receiver.receive_some(&mut into).unwrap(), 0);
    assert_eq!(receiver.receive_some(&mut into).unwrap(), 0);
}

#[test]
fn a_requested_key_update_is_answered_before_the_next_data() {
    let ((mut sender, mut back), (mut reply, mut receiver)) = pair();
    reply.send(&[IoSlice::new(b"under the first key")]).unwrap();
    reply.send(&[IoSlice::new(b", twice")]).unwrap();
    let mut into = [0; 26];
    back.receive(&mut into).unwrap();
    assert_eq!((&into, reply.keys.sequence), (b"under the first key, twice", 2));
    sender.forge(ContentType::ApplicationData, b"a");
    sender.forge_key_update(&KEY_UPDATE_REQUESTED);
    sender.forge(ContentType::ApplicationData, b"b");
    sender.flush().unwrap();
    let mut into = [0; 2];
    receiver.receive(&mut into).unwrap();
    assert_eq!(&into, b"ab");
    reply.send(&[IoSlice::new(b"first")]).unwrap();
    assert_eq!(reply.keys.sequence, 1, "the first record under the second key");
    let mut into = [0; 5];
    back.receive(&mut into).unwrap();
    assert_eq!(&into, b"first");
    reply.send(&[IoSlice::new(b"again")]).unwrap();
    assert_eq!(reply.keys.sequence, 2, "one request, one update");
}

#[test]
fn a_nonce_is_the_iv_and_the_sequence_number_and_is_used_once() {
    let ((sender, _back), _far) = pair();
    let mut keys = sender.keys;
    for sequence in [0, 1, 255, 256, 65_536, 1 << 32, u64::MAX - 1] {
        keys.sequence = sequence;
        // RFC 8446, 5.3: the number as 96 bits, big-endian, against the IV.
        let mut expected = keys.iv;
        for (index, byte) in u128::from(sequence).to_be_bytes()[4..].iter().enumerate() {
            expected[index] ^= byte;
        }
        assert_eq!(keys.nonce().unwrap().as_ref(), &expected, "{sequence}");
        assert_eq!(keys.sequence, sequence + 1);
    }
    assert_eq!(cause(&keys.nonce().err().unwrap()), Cause::Excess, "it never starts again");
}

#[test]
fn a_key_serves_no_more_records_than_its_limit() {
    let ((mut sender, _back), (_reply, mut receiver)) = pair();
    assert_eq!((sender.records_left, sender.records_per_key), (RECORDS_PER_KEY, RECORDS_PER_KEY));
    const { assert!(RECORDS_PER_KEY < 1 << 24) };
    (sender.records_per_key, sender.records_left) = (5, 5);
    let reading = thread::spawn(move || {
        let mut into = vec![0; 40 * PLAIN_BYTES_MAX];
        receiver.receive(&mut into).unwrap();
        // 5 of data and the update itself, seven times, then 5 of data.
        assert_eq!(receiver.keys.sequence, 5);
        into
    });
    let bytes = pattern(3, 40 * PLAIN_BYTES_MAX);
    sender.send(&[IoSlice::new(&bytes)]).unwrap();
    assert_eq!(sender.keys.sequence, 5);
    assert!(reading.join().unwrap() == bytes);
}

#[test]
fn a_large_payload_travels_in_whole_records_behind_its_header() {
    let ((mut sender, _back), (_reply, mut receiver)) = pair();
    sender
        .send(&[IoSlice::new(&[1; 64]), IoSlice::new(&[2; 3 * PLAIN_BYTES_MAX]), IoSlice::new(&[3; 7])])
        .unwrap();
    let mut sizes = Vec::new();
    let mut into = vec![0; RECORD_BYTES];
    while sizes.iter().sum::<usize>() < 64 + 3 * PLAIN_BYTES_MAX + 7 {
        sizes.push(receiver.receive_some(&mut into).unwrap());
    }
    assert_eq!(sizes, [64, PLAIN_BYTES_MAX, PLAIN_BYTES_MAX, PLAIN_BYTES_MAX, 7]);
    sender.send(&[IoSlice::new(&[4; 5]), IoSlice::new(&[]), IoSlice::new(&[5; 6])]).unwrap();
    assert_eq!(receiver.receive_some(&mut into).unwrap(), 11, "small parts share a record");
}
