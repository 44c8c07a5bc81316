//! The challenge of clear streams against everybody who does not hold the key, or holds it and lies.

mod common;

use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::thread;

use common::{Agreed, LONG, agreed, listener, memory_pair, raw_dial, session, sockets};
use haul_transport::tcp::{self, Settings};
use haul_transport::{Cause, Identity, Purpose, Role, Session, Stream, StreamKey, cause};

const OPENING: usize = 64;
const CHALLENGE: usize = 32;
const PROOF: usize = 32;
const REPLY: usize = 33;

fn stream(socket: TcpStream) -> Stream {
    tcp::stream(socket.into(), None, &Settings::default()).unwrap()
}

fn read<const N: usize>(socket: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    socket.read_exact(&mut bytes).unwrap();
    bytes
}

/// A socket whose other end `session` answers, and the answer's outcome.
fn answering(session: &Session) -> (TcpStream, thread::JoinHandle<Result<Purpose, Cause>>) {
    let (dialed, accepted) = sockets();
    let session = session.clone();
    let outcome = thread::spawn(move || {
        let result = session.answer(stream(accepted), LONG);
        result.map(|(purpose, _)| purpose).map_err(|error| cause(&error))
    });
    (dialed, outcome)
}

/// A socket whose other end `session` dials on, and the dial's outcome.
fn dialing(session: &Session, purpose: Purpose) -> (TcpStream, thread::JoinHandle<Result<(), Cause>>) {
    let (dialed, accepted) = sockets();
    let session = session.clone();
    let outcome = thread::spawn(move || {
        session.dial(stream(dialed), purpose, LONG).map(drop).map_err(|error| cause(&error))
    });
    (accepted, outcome)
}

#[test]
fn data_is_clear_and_control_is_encrypted_all_the_same() {
    let agreed = agreed(true);
    let listener = listener(&agreed.sink, LONG);
    for (purpose, encrypted) in [(Purpose::Control, true), (Purpose::Data(7), false)] {
        let dialed = agreed.source.dial(raw_dial(&listener), purpose, LONG).unwrap();
        let (accepted_purpose, accepted) = listener.accept(LONG).unwrap();
        assert_eq!(accepted_purpose, purpose);
        for stream in [dialed, accepted] {
            assert_eq!(stream.about().cipher.is_some(), encrypted);
        }
    }
}

#[test]
fn another_key_is_refused_and_both_ends_are_told() {
    let Agreed { sink, source_identity, sink_identity, .. } = agreed(true);
    let other = Some(StreamKey::generate().unwrap());
    let dialer = session(Role::Source, &source_identity, sink_identity.fingerprint(), other);
    let listener = listener(&sink, LONG);
    let error = dialer.dial(raw_dial(&listener), Purpose::Data(0), LONG).unwrap_err();
    assert_eq!(cause(&error), Cause::Unproven);
    while listener.refusals().count == 0 {
        thread::yield_now();
    }
    assert_eq!(listener.refusals().last.unwrap().0, Cause::Unproven);
}

#[test]
fn a_recorded_handshake_is_worth_nothing() {
    let agreed = agreed(true);
    // Recorded by somebody on the path of a handshake that went well.
    let (mut near, dialed) = dialing(&agreed.source, Purpose::Data(2));
    let (mut far, answered) = answering(&agreed.sink);
    let opening: [u8; OPENING] = read(&mut near);
    far.write_all(&opening).unwrap();
    let challenge: [u8; CHALLENGE] = read(&mut far);
    near.write_all(&challenge).unwrap();
    let proof: [u8; PROOF] = read(&mut near);
    far.write_all(&proof).unwrap();
    let reply: [u8; REPLY] = read(&mut far);
    near.write_all(&reply).unwrap();
    assert_eq!(dialed.join().unwrap(), Ok(()));
    assert_eq!(answered.join().unwrap(), Ok(Purpose::Data(2)));

    // Played to the listener again.
    let (mut far, answered) = answering(&agreed.sink);
    far.write_all(&opening).unwrap();
    assert_ne!(read::<CHALLENGE>(&mut far), challenge);
    far.write_all(&proof).unwrap();
    assert_eq!(answered.join().unwrap(), Err(Cause::Unproven));

    // And to the dialer.
    let (mut near, dialed) = dialing(&agreed.source, Purpose::Data(2));
    assert_ne!(read::<OPENING>(&mut near)[32..], opening[32..]);
    near.write_all(&challenge).unwrap();
    assert_ne!(read::<PROOF>(&mut near), proof);
    near.write_all(&reply).unwrap();
    assert_eq!(dialed.join().unwrap(), Err(Cause::Unproven));
}

#[test]
fn a_proof_sent_back_proves_nothing() {
    let agreed = agreed(true);
    // The "listener" has no key: it returns what the dialer made, with each answer.
    for answer in 0..=5 {
        let (mut near, dialed) = dialing(&agreed.source, Purpose::Data(0));
        let opening: [u8; OPENING] = read(&mut near);
        near.write_all(&opening[32..]).unwrap();
        let proof: [u8; PROOF] = read(&mut near);
        near.write_all(&[&[answer][..], &proof].concat()).unwrap();
        assert_eq!(dialed.join().unwrap(), Err(Cause::Unproven));
    }
}

#[test]
fn an_end_that_is_connected_to_itself_refuses() {
    // The key is the same on both sides; the roles are not.
    let agreed = agreed(true);
    let (dialed, accepted) = memory_pair();
    let source = agreed.source.clone();
    let answered = thread::spawn(move || source.answer(accepted, LONG).map(drop));
    let error = agreed.source.dial(dialed, Purpose::Data(0), LONG).unwrap_err();
    assert_eq!(cause(&error), Cause::Malformed);
    assert_eq!(cause(&answered.join().unwrap().unwrap_err()), Cause::Malformed);
}

#[test]
fn a_stream_cannot_be_passed_off_as_another() {
    let agreed = agreed(true);
    // A man in the middle makes stream 1 out of stream 0, or changes any other byte of the hello or a nonce.
    for byte in 0..OPENING {
        let (mut near, dialed) = dialing(&agreed.source, Purpose::Data(0));
        let (mut far, answered) = answering(&agreed.sink);
        let mut opening: [u8; OPENING] = read(&mut near);
        opening[byte] ^= 1;
        far.write_all(&opening).unwrap();
        if byte == 0 {
            assert_eq!(answered.join().unwrap(), Err(Cause::Malformed));
            continue;
        }
        near.write_all(&read::<CHALLENGE>(&mut far)).unwrap();
        far.write_all(&read::<PROOF>(&mut near)).unwrap();
        assert_eq!(answered.join().unwrap(), Err(Cause::Unproven), "byte {byte}");
        near.write_all(&read::<REPLY>(&mut far)).unwrap();
        assert_eq!(dialed.join().unwrap(), Err(Cause::Unproven), "byte {byte}");
    }
}

#[test]
fn an_answer_cannot_be_changed_on_the_way() {
    let agreed = agreed(true);
    for byte in 0..CHALLENGE + REPLY {
        let (mut near, dialed) = dialing(&agreed.source, Purpose::Data(0));
        let (mut far, _answered) = answering(&agreed.sink);
        far.write_all(&read::<OPENING>(&mut near)).unwrap();
        let mut challenge: [u8; CHALLENGE] = read(&mut far);
        if byte < CHALLENGE {
            challenge[byte] ^= 0x80;
        }
        near.write_all(&challenge).unwrap();
        far.write_all(&read::<PROOF>(&mut near)).unwrap();
        let mut reply: [u8; REPLY] = read(&mut far);
        if byte >= CHALLENGE {
            reply[byte - CHALLENGE] ^= 0x80;
        }
        near.write_all(&reply).unwrap();
        assert_eq!(dialed.join().unwrap(), Err(Cause::Unproven), "byte {byte}");
    }
}

#[test]
fn a_stranger_gets_nothing_made_with_the_key() {
    let agreed = agreed(true);
    let (mut far, answered) = answering(&agreed.sink);
    far.write_all(&[b'h'; OPENING]).unwrap();
    let _challenge: [u8; CHALLENGE] = read(&mut far);
    far.write_all(&[0; PROOF]).unwrap();
    let reply: [u8; REPLY] = read(&mut far);
    assert_eq!((reply[0], &reply[1..]), (1, &[0; PROOF][..]));
    assert_eq!(far.read(&mut [0]).unwrap(), 0, "and the connection is closed");
    assert_eq!(answered.join().unwrap(), Err(Cause::Unproven));
}

#[test]
fn a_control_stream_is_never_clear() {
    // A peer that has the key, and asks for a clear control stream: the hello says so, and is proved.
    let key = StreamKey::from_bytes(&[7; 32]);
    let (source, sink) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let answerer = session(Role::Sink, &sink, source.fingerprint(), Some(key.clone()));
    for (kind, protection) in [(1, 2), (1, 1), (2, 1)] {
        let (mut far, answered) = answering(&answerer);
        let opening = common::opening(1, kind, protection);
        far.write_all(&opening).unwrap();
        let challenge = read(&mut far);
        far.write_all(&common::proof(&key, &opening, &challenge)).unwrap();
        assert_eq!(read::<REPLY>(&mut far)[0], 3, "the answer of docs/spec/streams.md");
        assert_eq!(answered.join().unwrap(), Err(Cause::Malformed));
    }
}

#[test]
fn a_dialer_of_another_version_is_told_so() {
    let key = StreamKey::from_bytes(&[7; 32]);
    let (source, sink) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let answerer = session(Role::Sink, &sink, source.fingerprint(), Some(key.clone()));
    let (mut far, answered) = answering(&answerer);
    let opening = common::opening(2, 2, 2);
    far.write_all(&opening).unwrap();
    let challenge = read(&mut far);
    far.write_all(&common::proof(&key, &opening, &challenge)).unwrap();
    assert_eq!(read::<REPLY>(&mut far)[0], 2);
    assert_eq!(answered.join().unwrap(), Err(Cause::Version));
}

#[test]
fn what_follows_the_challenge_is_the_callers_from_its_first_byte() {
    // A peer that does not wait for the answer: its first payload comes in one packet with its proof.
    let (dialed, accepted) = common::protect(&agreed(true), Purpose::Data(0), memory_pair());
    let ((mut sender, _r, _), (_s, mut receiver, _)) = (dialed.split(), accepted.split());
    sender.send(&[IoSlice::new(b"first")]).unwrap();
    let mut bytes = [0; 5];
    receiver.receive(&mut bytes).unwrap();
    assert_eq!(&bytes, b"first");
}
