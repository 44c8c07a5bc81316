//! Protection by mutual TLS 1.3 with one-time certificates that both ends pin.
//!
//! Called by [`Session`](crate::Session). The profile (`docs/spec/streams.md`) is what the two ends of one program
//! need and nothing else: TLS 1.3 only, a certificate from both sides, no names, no tickets, no early data.
//!
//! rustls does the handshake and owns the key schedule. The records after it are made in [`record`], because rustls
//! holds both directions in one object, allocates for every record and copies each payload twice; see the decision
//! record `docs/decisions/0006-tls-records-are-our-own.md` with the measurements.

mod handshake;
mod pins;
mod record;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::pki_types::ServerName;
use rustls::server::{NoServerSessionStorage, UnbufferedServerConnection};
use rustls::sign::SingleCertAndKey;
use rustls::{AlertDescription, ClientConfig, ServerConfig};

use crate::session::Deadline;
use crate::{Cause, Fingerprint, Identity, Stream};
use handshake::Agreed;
use pins::Pinned;

/// Both roles of TLS, ready for any number of streams with one peer.
pub(crate) struct Profile {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl fmt::Debug for Profile {
    /// The configurations hold the private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Profile")
    }
}

/// Whether AES is faster than ChaCha20 here.
fn aes_hardware() -> bool {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    {
        std::is_x86_feature_detected!("aes") && std::is_x86_feature_detected!("pclmulqdq")
    }
    #[cfg(target_arch = "aarch64")]
    {
        std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull")
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
    {
        false
    }
}

fn provider(aes: bool) -> CryptoProvider {
    let mut cipher_suites =
        vec![cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_CHACHA20_POLY1305_SHA256];
    if !aes {
        cipher_suites.reverse();
    }
    // The hybrid first: what is recorded today stays secret from a quantum computer.
    let kx_groups = vec![kx_group::X25519MLKEM768, kx_group::X25519];
    CryptoProvider { cipher_suites, kx_groups, ..aws_lc_rs::default_provider() }
}

impl Profile {
    pub(crate) fn new(identity: &Identity, peer: Fingerprint) -> io::Result<Self> {
        Self::with_aes(identity, peer, aes_hardware())
    }

    fn with_aes(identity: &Identity, peer: Fingerprint, aes: bool) -> io::Result<Self> {
        let provider = Arc::new(provider(aes));
        let pinned = Arc::new(Pinned::new(peer, provider.signature_verification_algorithms));
        let own = Arc::new(SingleCertAndKey::from(identity.certified()));
        let versions = &[&rustls::version::TLS13];

        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(local)?
            .dangerous()
            .with_custom_certificate_verifier(pinned.clone())
            .with_client_cert_resolver(own.clone());
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        client.enable_secret_extraction = true;

        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(local)?
            .with_client_cert_verifier(pinned)
            .with_cert_resolver(own);
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.max_early_data_size = 0;
        server.enable_secret_extraction = true;
        // The dialer's order counts, unless this end is the one without AES hardware: AES needs it at both ends.
        server.ignore_client_order = !aes;
        Ok(Profile { client: Arc::new(client), server: Arc::new(server) })
    }

    /// The dialer's side, on a stream that carried nothing yet.
    pub(crate) fn connect(&self, stream: Stream, deadline: Deadline) -> io::Result<Stream> {
        record::protect(self.agree_as_client(stream, deadline)?)
    }

    /// The listener's side; `received` is what came on the stream so far.
    pub(crate) fn accept(&self, stream: Stream, received: &[u8], deadline: Deadline) -> io::Result<Stream> {
        record::protect(self.agree_as_server(stream, received, deadline)?)
    }

    fn agree_as_client(&self, stream: Stream, deadline: Deadline) -> io::Result<Agreed> {
        // Never sent (`enable_sni`) and never compared: the pin is the name.
        let name = ServerName::try_from("haul").expect("a DNS name");
        let connection = UnbufferedClientConnection::new(self.client.clone(), name).map_err(local)?;
        handshake::run(connection, stream, &[], deadline)
    }

    fn agree_as_server(&self, stream: Stream, received: &[u8], deadline: Deadline) -> io::Result<Agreed> {
        let connection = UnbufferedServerConnection::new(self.server.clone()).map_err(local)?;
        handshake::run(connection, stream, received, deadline)
    }
}

/// An error that the peer has no part in.
fn local(error: rustls::Error) -> io::Error {
    Cause::Local.error(format!("TLS cannot be set up: {error}"))
}

/// What a failed handshake means.
fn failed(error: rustls::Error) -> io::Error {
    use rustls::Error::*;
    let cause = match &error {
        InvalidCertificate(_) | NoCertificatesPresented => Cause::Unproven,
        AlertReceived(alert) => return alerted(*alert),
        DecryptError => Cause::Altered,
        PeerSentOversizedRecord => Cause::Excess,
        _ => Cause::Malformed,
    };
    cause.error(format!("TLS handshake: {error}"))
}

/// What an alert of the peer means, during the handshake or after it.
fn alerted(alert: AlertDescription) -> io::Error {
    use AlertDescription::*;
    let cause = match alert {
        BadCertificate
        | UnsupportedCertificate
        | CertificateRevoked
        | CertificateExpired
        | CertificateUnknown
        | CertificateRequired
        | UnknownCA
        | AccessDenied
        | NoCertificate => Cause::Unproven,
        BadRecordMac | DecryptError => Cause::Altered,
        ProtocolVersion => Cause::Version,
        InternalError | UserCanceled => Cause::Lost,
        _ => Cause::Malformed,
    };
    cause.error(format!("the other end ended the TLS connection: {alert:?}"))
}

/// After a refusal: how long to read on, so that closing over unread bytes does not take the alert back.
const LINGER: Duration = Duration::from_secs(1);
