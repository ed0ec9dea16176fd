//! TLS, by rustls. It trusts the certificates that the system trusts.

use std::io;

use once_cell::sync::OnceCell;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::sync::Arc;

/// Installs ring as the process's provider of cryptography, unless the program has installed a provider.
pub(crate) fn provide_crypto() {
    if CryptoProvider::get_default().is_none() {
        // This fails only if the program installs its own at the same moment, which serves as well.
        ring::default_provider().install_default().ok();
    }
}

/// Returns the client's side of a connection to this host.
pub(super) fn client(host: &str) -> io::Result<ClientConnection> {
    // One for the process: to read the system's certificates takes milliseconds, and it keeps sessions to resume.
    static CONFIG: OnceCell<Arc<ClientConfig>> = OnceCell::new();
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
        Ok(builder.with_no_client_auth().into())
    })?;
    let host = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    ClientConnection::new(Arc::clone(config), host).map_err(io::Error::other)
}
