//! What vouches for single parts of what a clear stream carries.
//!
//! A clear stream protects nothing. Its ends proved to each other, when it opened, that they hold the session's key; with a key
//! of their own for each stream, made from that one and from all that was said then, they go on doing so for the few bytes that
//! nobody on the path may alter (`docs/spec/streams.md`).

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::hmac;

/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

/// Makes and checks proofs that bytes come from an end of this stream. They do not tell which end, nor when: that must be in
/// the bytes.
#[derive(Clone)]
pub struct Proofs(Arc<hmac::Key>);

impl Proofs {
    pub(crate) fn new(key: &[u8; PROOF_BYTES]) -> Self {
        Proofs(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, key)))
    }

    fn over(&self, parts: &[&[u8]]) -> hmac::Context {
        let mut context = hmac::Context::with_key(&self.0);
        parts.iter().for_each(|part| context.update(part));
        context
    }

    /// The proof of the parts, one behind the other. Where one ends is not in it.
    pub fn prove(&self, parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
        self.over(parts).sign().as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
    }

    /// Whether it is. In constant time.
    pub fn hold(&self, parts: &[&[u8]], proof: &[u8; PROOF_BYTES]) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.prove(parts), proof).is_ok()
    }
}

impl fmt::Debug for Proofs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proofs(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_bytes_and_its_key_only() {
        let proofs = Proofs::new(&[7; 32]);
        let proof = proofs.prove(&[b"header", b"hash"]);
        assert!(proofs.hold(&[b"headerhash"], &proof));
        assert!(!proofs.hold(&[b"header", b"hash", b"x"], &proof));
        assert!(!proofs.hold(&[b"header", b"Hash"], &proof));
        assert!(!Proofs::new(&[8; 32]).hold(&[b"header", b"hash"], &proof));
        for byte in 0..PROOF_BYTES {
            let mut other = proof;
            other[byte] ^= 0x10;
            assert!(!proofs.hold(&[b"header", b"hash"], &other));
        }
        assert_eq!(format!("{proofs:?}"), "Proofs(secret)");
    }
}
