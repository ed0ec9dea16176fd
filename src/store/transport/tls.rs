//! TLS, by rustls. It trusts the certificates that the system trusts.
//!
//! One thread may write on a connection while another one reads, and both need the state of rustls. So it has a mutex,
//! and no input or output happens under it: the callers have the bytes in memory.

use std::io::{self, Read, Write};

use once_cell::race::OnceBox;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, ClientConnection, RootCertStore};

use crate::sync::{Arc, Mutex};

/// The state of a TLS connection.
pub(crate) struct Tls(Mutex<ClientConnection>);

/// Installs ring as the process's provider of cryptography, unless the program has installed a provider.
pub(crate) fn provide_crypto() {
    if CryptoProvider::get_default().is_none() {
        // This fails only if the program installs its own at the same moment, which serves as well.
        ring::default_provider().install_default().ok();
    }
}

/// Returns the client's side of a connection to this host.
pub(crate) fn client(host: &str) -> io::Result<Tls> {
    // One for the process: to read the system's certificates takes milliseconds, and it keeps sessions to resume. A
    // `OnceCell` blocks while another thread fills it, and in a forked child that thread may not exist. A
    // child that connects can still block at the mutex of rustls's cache of sessions.
    static CONFIG: OnceBox<Arc<ClientConfig>> = OnceBox::new();
    let config = CONFIG.get_or_try_init(|| {
        let mut found = rustls_native_certs::load_native_certs();
        let mut trusted = RootCertStore::empty();
        // A certificate that cannot be read does not make the others untrusted.
        let (readable, _) = trusted.add_parsable_certificates(found.certs);
        if readable == 0 {
            return Err(match found.errors.pop() {
                Some(error) => io::Error::other(error),
                None => io::Error::other("the system has no certificates"),
            });
        }
        let builder = ClientConfig::builder().with_root_certificates(trusted);
        Ok(Box::new(builder.with_no_client_auth().into()))
    })?;
    let host = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let mut client = ClientConnection::new(Arc::clone(config), host).map_err(io::Error::other)?;
    // The output is taken at once.
    client.set_buffer_limit(None);
    Ok(Tls(Mutex::new(client)))
}

/// Returns whether one side has refused the certificate of the other, or has none that the other wants. A server that
/// wants one says so by `HandshakeFailure` up to TLS 1.2.
pub(crate) fn is_of_a_certificate(error: &io::Error) -> bool {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, HandshakeFailure, UnknownCA, UnsupportedCertificate,
    };
    let error = error.get_ref().and_then(|inner| inner.downcast_ref());
    match error {
        Some(rustls::Error::InvalidCertificate(_)) => true,
        Some(rustls::Error::AlertReceived(alert)) => matches!(
            alert,
            AccessDenied
                | BadCertificate
                | CertificateExpired
                | CertificateRequired
                | CertificateRevoked
                | CertificateUnknown
                | HandshakeFailure
                | UnknownCA
                | UnsupportedCertificate
        ),
        _ => false,
    }
}

impl Tls {
    pub(crate) fn is_shaking_hands(&self) -> bool {
        self.0.lock().is_handshaking()
    }

    /// Adds the unsent encrypted bytes to `output`.
    pub(crate) fn take_output(&self, output: &mut Vec<u8>) {
        let mut client = self.0.lock();
        while client.wants_write() {
            // A write to memory does not fail.
            client.write_tls(output).ok();
        }
    }

    /// Encrypts some bytes, and adds them to `output`.
    pub(crate) fn encrypt(&self, bytes: &[u8], output: &mut Vec<u8>) -> io::Result<()> {
        let mut client = self.0.lock();
        client.writer().write_all(bytes)?;
        while client.wants_write() {
            client.write_tls(output)?;
        }
        Ok(())
    }

    /// Decrypts the next bytes that were read, and adds what they say to `plain`.
    pub(crate) fn decrypt(&self, mut read: &[u8], plain: &mut Vec<u8>) -> io::Result<()> {
        let mut client = self.0.lock();
        while !read.is_empty() {
            client.read_tls(&mut read)?;
            let state = client.process_new_packets();
            let state = state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let (begin, more) = (plain.len(), state.plaintext_bytes_to_read());
            plain.resize(begin + more, 0);
            client.reader().read_exact(&mut plain[begin..])?;
            if state.peer_has_closed() {
                break;
            }
        }
        Ok(())
    }
}
