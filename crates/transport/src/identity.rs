//! Who an end is: the certificate of one session with its fingerprint, and the one-time key of clear streams.
//!
//! Both are made when a session starts and die with the process. Fingerprints and the key travel over ssh; a private
//! key never leaves [`Identity`], and nothing secret can be printed.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::digest;
use rustls::crypto::aws_lc_rs::sign::any_ecdsa_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use zeroize::Zeroize;

use crate::Cause;

/// The SHA-256 of a certificate's DER bytes; written as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Self {
        let digest = digest::digest(&digest::SHA256, certificate);
        Fingerprint(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

impl FromStr for Fingerprint {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        let malformed = || Cause::Malformed.error("a fingerprint is 64 hex digits");
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(malformed());
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..][..2], 16).map_err(|_| malformed())?;
        }
        Ok(Fingerprint(bytes))
    }
}

/// A key pair (ECDSA P-256) and its self-signed certificate, for one session.
///
/// The certificate names nobody: only its fingerprint counts, so it tells a listener on the wire neither host nor user.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
}

impl Identity {
    /// A new one.
    pub fn generate() -> io::Result<Self> {
        let failed =
            |error: &dyn fmt::Display| Cause::Local.error(format!("cannot make a certificate: {error}"));
        let mut pair = rcgen::KeyPair::generate().map_err(|error| failed(&error))?;
        let mut parameters =
            rcgen::CertificateParams::new(["haul".to_owned()]).map_err(|error| failed(&error))?;
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        let certificate = parameters.self_signed(&pair).map_err(|error| failed(&error))?;
        let certificate = certificate.der().clone();

        let mut key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.serialize_der()));
        pair.zeroize();
        let signer = any_ecdsa_type(&key);
        key.zeroize();
        let signer = signer.map_err(|error| failed(&error))?;
        let fingerprint = Fingerprint::of(&certificate);
        Ok(Identity { certified: Arc::new(CertifiedKey::new(vec![certificate], signer)), fingerprint })
    }

    /// What the other end must pin.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The certificate, as DER. It is no secret.
    pub fn certificate(&self) -> &[u8] {
        &self.certified.cert[0]
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// The key under which both ends of a clear stream prove who they are. One a session, made by one end, carried to the
/// other over ssh; wiped when dropped.
#[derive(Clone)]
pub struct StreamKey([u8; 32]);

impl StreamKey {
    /// A new one.
    pub fn generate() -> io::Result<Self> {
        Ok(StreamKey(random()?))
    }

    /// As it came over ssh. The caller wipes its own copy.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        StreamKey(*bytes)
    }

    /// To be carried over ssh, and nowhere else.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Drop for StreamKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamKey(secret)")
    }
}

/// 32 bytes that nobody can guess.
pub(crate) fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Cause::Local.error("the system gives no random bytes"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_of_the_certificate_and_survives_its_text() {
        let (one, other) = (Identity::generate().unwrap(), Identity::generate().unwrap());
        assert_ne!(one.fingerprint(), other.fingerprint());
        assert_eq!(one.fingerprint(), Fingerprint::of(&one.certified().cert[0]));
        assert_eq!(one.fingerprint().to_string().parse::<Fingerprint>().unwrap(), one.fingerprint());
        let text = one.fingerprint().to_string();
        for bad in ["", "zz", &text[1..], &text.replace(|_: char| true, "+"), &format!("{text}0")] {
            assert!(bad.parse::<Fingerprint>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_certificate_names_neither_host_nor_user() {
        let identity = Identity::generate().unwrap();
        let der = identity.certificate();
        let contains = |needle: &[u8]| der.windows(needle.len()).any(|window| window == needle);
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        // A shorter name may stand in any random bytes.
        assert!(
            host.trim().len() < 4 || !contains(host.trim().as_bytes()),
            "host name {host} in the certificate"
        );
        assert!(!contains(b"rcgen"));
    }

    #[test]
    fn secrets_are_not_printed() {
        let key = StreamKey::from_bytes(&[0xab; 32]);
        assert_eq!(format!("{key:?}"), "StreamKey(secret)");
        let identity = Identity::generate().unwrap();
        let text = format!("{identity:?}");
        assert!(text.contains("fingerprint") && text.len() < 160, "{text}");
    }
}
