//! The challenge that opens a clear stream: both ends prove that they hold the session's [`StreamKey`].
//!
//! Called by [`Session`](crate::Session). Four messages, all of fixed length (`docs/spec/streams.md`):
//!
//! ```text
//! dialer -> listener   hello 32, nonce 32
//! listener -> dialer   nonce 32
//! dialer -> listener   proof 32  = HMAC-SHA256(key, label | hello | dialer nonce | listener nonce)
//! listener -> dialer   answer 1, proof 32 = HMAC-SHA256(key, label | hello | dialer nonce | listener nonce | answer)
//! ```
//!
//! The hello holds role, session, kind and number, so a proof counts for one stream only; both nonces are in it, so it
//! counts once; the labels and the role keep it from being sent back. The listener proves nothing to a dialer that has
//! not. What follows is protected by nothing: who can alter packets can alter payloads. The hashes that tell come over the control
//! stream, which is encrypted, and none is believed that comes here.

use std::io::{self, IoSlice};

use aws_lc_rs::hmac;

use crate::identity::random;
use crate::session::{Answer, Deadline, HELLO_BYTES};
use crate::{Cause, Purpose, Stream, StreamKey};

const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
/// Bytes of the dialer's first message.
pub(crate) const OPENING_BYTES: usize = HELLO_BYTES + NONCE_BYTES;

const LABEL_DIALER: &[u8; 16] = b"haul-s1-dialer\0\0";
const LABEL_LISTENER: &[u8; 16] = b"haul-s1-listener";

struct Prover {
    key: hmac::Key,
    opening: [u8; OPENING_BYTES],
    challenge: [u8; NONCE_BYTES],
}

impl Prover {
    fn new(key: &StreamKey, opening: &[u8; OPENING_BYTES], challenge: [u8; NONCE_BYTES]) -> Self {
        Prover { key: hmac::Key::new(hmac::HMAC_SHA256, key.expose()), opening: *opening, challenge }
    }

    fn message(&self, label: &[u8; 16], answer: &[u8]) -> Vec<u8> {
        [label, &self.opening[..], &self.challenge, answer].concat()
    }

    fn prove(&self, label: &[u8; 16], answer: &[u8]) -> [u8; PROOF_BYTES] {
        let tag = hmac::sign(&self.key, &self.message(label, answer));
        tag.as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
    }

    /// In constant time.
    fn verify(&self, label: &[u8; 16], answer: &[u8], proof: &[u8]) -> bool {
        hmac::verify(&self.key, &self.message(label, answer), proof).is_ok()
    }
}

pub(crate) fn dial(
    stream: &mut Stream,
    hello: &[u8; HELLO_BYTES],
    key: &StreamKey,
    deadline: Deadline,
) -> io::Result<()> {
    let mut opening = [0; OPENING_BYTES];
    opening[..HELLO_BYTES].copy_from_slice(hello);
    opening[HELLO_BYTES..].copy_from_slice(&random()?);
    stream.sender.send(&[IoSlice::new(&opening)])?;

    let mut challenge = [0; NONCE_BYTES];
    deadline.receive(&mut *stream.receiver, &mut challenge)?;
    let prover = Prover::new(key, &opening, challenge);
    stream.sender.send(&[IoSlice::new(&prover.prove(LABEL_DIALER, &[]))])?;

    let mut reply = [0; 1 + PROOF_BYTES];
    deadline.receive(&mut *stream.receiver, &mut reply)?;
    let (answer, proof) = reply.split_at(1);
    if !prover.verify(LABEL_LISTENER, answer, proof) {
        return Err(Cause::Unproven.error(match answer {
            [answer] if *answer == Answer::Unproven as u8 => "the listener did not believe this end",
            _ => "the listener could not prove that it holds the key",
        }));
    }
    Answer::read(answer[0])?;
    Ok(())
}

/// `decide` is asked only about a dialer that has proved itself.
pub(crate) fn answer(
    stream: &mut Stream,
    opening: &[u8; OPENING_BYTES],
    key: &StreamKey,
    deadline: Deadline,
    decide: impl FnOnce(&[u8; HELLO_BYTES]) -> Result<Purpose, Answer>,
) -> io::Result<Purpose> {
    let prover = Prover::new(key, opening, random()?);
    stream.sender.send(&[IoSlice::new(&prover.challenge)])?;

    let mut proof = [0; PROOF_BYTES];
    deadline.receive(&mut *stream.receiver, &mut proof)?;
    if !prover.verify(LABEL_DIALER, &[], &proof) {
        // Without a proof of its own: a stranger gets nothing that is made with the key.
        let reply = [&[Answer::Unproven as u8][..], &[0; PROOF_BYTES]].concat();
        stream.sender.send(&[IoSlice::new(&reply)])?;
        return Err(Answer::Unproven.refusal());
    }
    let hello = opening.first_chunk().expect("an opening begins with a hello");
    let decision = decide(hello);
    let answer = [decision.err().unwrap_or(Answer::Accepted) as u8];
    let proof = prover.prove(LABEL_LISTENER, &answer);
    stream.sender.send(&[IoSlice::new(&answer), IoSlice::new(&proof)])?;
    decision.map_err(Answer::refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with another implementation (Python's hmac and hashlib).
    #[test]
    fn proofs_are_what_the_specification_says() {
        let mut opening = [0; OPENING_BYTES];
        opening.iter_mut().enumerate().for_each(|(index, byte)| *byte = index as u8);
        let prover = Prover::new(&StreamKey::from_bytes(&[0x0b; 32]), &opening, [0xc5; NONCE_BYTES]);
        let hex = |bytes: [u8; PROOF_BYTES]| bytes.map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(
            hex(prover.prove(LABEL_DIALER, &[])),
            "7b5bf62577cfabeeac3b646ced8ad3bd8e4b82a5d671a109c875cb1698c15546"
        );
        assert_eq!(
            hex(prover.prove(LABEL_LISTENER, &[0])),
            "5faa4594eab3bcfc527d409275019a29dd9366e59c51412ff09deb1eca900f8e"
        );
    }

    #[test]
    fn a_proof_counts_for_one_role_hello_nonce_and_answer_only() {
        let key = StreamKey::from_bytes(&[1; 32]);
        let prover = Prover::new(&key, &[2; OPENING_BYTES], [3; NONCE_BYTES]);
        let proof = prover.prove(LABEL_LISTENER, &[0]);
        assert!(prover.verify(LABEL_LISTENER, &[0], &proof));
        assert!(!prover.verify(LABEL_LISTENER, &[1], &proof));
        assert!(!prover.verify(LABEL_DIALER, &[0], &proof));
        assert!(!prover.verify(LABEL_LISTENER, &[0], &proof[..31]));
        for index in 0..OPENING_BYTES {
            let mut opening = [2; OPENING_BYTES];
            opening[index] ^= 1;
            assert!(!Prover::new(&key, &opening, [3; NONCE_BYTES]).verify(LABEL_LISTENER, &[0], &proof));
        }
        assert!(!Prover::new(&key, &[2; OPENING_BYTES], [4; NONCE_BYTES]).verify(
            LABEL_LISTENER,
            &[0],
            &proof
        ));
        let other = StreamKey::from_bytes(&[5; 32]);
        assert!(!Prover::new(&other, &[2; OPENING_BYTES], [3; NONCE_BYTES]).verify(
            LABEL_LISTENER,
            &[0],
            &proof
        ));
    }
}
