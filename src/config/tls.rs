//! The certificates of TLS, as a program gives them, and the configuration of rustls that they make.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use once_cell::race::OnceBox;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::{Error, Result};
use crate::logging;
use crate::sys::{Arc, Mutex, Time};

/// The files are read again for a new connection if this time has passed.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The files are read again after a refused certificate if this time has passed.
const AFTER_A_REFUSAL: Duration = Duration::from_secs(1);

/// The certificates of TLS connections, with the feature `tls`: which servers are trusted, and who this process is. See
/// [`Builder::tls`](crate::Builder::tls).
///
/// | | by default | with this type |
/// | --- | --- | --- |
/// | trusted servers | Those that the system trusts. The environment variables `SSL_CERT_FILE` and `SSL_CERT_DIR` name other certificates, for the whole process. | Those whose certificate one of the roots has signed, and no others. |
/// | certificate of this process | None. A Redis accepts that only with `tls-auth-clients no` or `optional`. | That of [`client_pem`](Self::client_pem) or [`client_files`](Self::client_files). |
///
/// A server's certificate must be for the host of its URL. For sentinels and clusters, it must be for the address that
/// they announce.
///
/// Certificates are PEM. A PEM text or file may have several. Files are read when the manager is built. For a new
/// connection they are read again if a minute has passed, and at once if one side refuses the certificate of the other,
/// but at most once a second. So a renewed certificate needs no restart, and the files may be replaced before those of
/// the server or after them. If they cannot be used then, the manager logs a warning and uses the last ones. The
/// system's certificates are read only once.
///
/// A URL can name the files too: `rediss://host/?cacert=ca.crt&cert=client.crt&key=client.key`, for each topology
/// ([`LockManager::from_url`](crate::LockManager::from_url)).
///
/// `Debug` shows no key and no certificate.
///
/// # Example
///
/// ```no_run
/// use leasehold::{LockManager, Tls};
///
/// let tls = Tls::default()
///     .roots_file("/etc/redis/ca.crt")
///     .client_files("/etc/redis/client.crt", "/etc/redis/client.key");
/// let locks = LockManager::single("rediss://cache.example.com/").tls(tls).build()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Tls {
    roots: Vec<Pem>,
    client: Option<Identity>,
}

/// PEM, or the file that has it.
#[derive(Clone)]
enum Pem {
    Text(Vec<u8>),
    File(PathBuf),
}

/// The certificate of this process, and its key.
#[derive(Clone)]
struct Identity {
    certificate: Pem,
    key: Pem,
}

impl Tls {
    /// Trusts the servers whose certificates one of these roots has signed, in place of the system's roots. A second call
    /// adds roots.
    #[must_use]
    pub fn roots_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots.push(Pem::Text(pem.into()));
        self
    }

    /// Does the same as [`roots_pem`](Self::roots_pem) with the roots of a file, such as `ca.crt`.
    #[must_use]
    pub fn roots_file(mut self, path: impl AsRef<Path>) -> Self {
        self.roots.push(Pem::File(path.as_ref().to_owned()));
        self
    }

    /// Shows this certificate to each server that asks for one. The certificates between it and the server's root may
    /// follow it in the same text. `key` is its private key in PKCS #8, PKCS #1 or SEC 1, without a passphrase. A second
    /// call replaces both.
    #[must_use]
    pub fn client_pem(mut self, cert: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client = Some(Identity {
            certificate: Pem::Text(cert.into()),
            key: Pem::Text(key.into()),
        });
        self
    }

    /// Does the same as [`client_pem`](Self::client_pem) with the texts of two files. They may be one file.
    #[must_use]
    pub fn client_files(mut self, cert: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.client = Some(Identity {
            certificate: Pem::File(cert.as_ref().to_owned()),
            key: Pem::File(key.as_ref().to_owned()),
        });
        self
    }

    /// Reads all texts and files.
    fn read(&self) -> Result<PemTexts> {
        let roots = self.roots.iter().map(|root| root.read("roots"));
        let client = self.client.as_ref().map(|client| {
            let certificate = client.certificate.read("client certificate")?;
            let key = client.key.read("client key")?;
            Ok::<_, Error>((certificate, key))
        });
        Ok(PemTexts {
            roots: roots.collect::<Result<_>>()?,
            client: client.transpose()?,
        })
    }
}

impl Pem {
    fn read(&self, what: &str) -> Result<Vec<u8>> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => fs::read(path).map_err(|error| {
                wrong(format!(
                    "the file of the {what}, {}: {error}",
                    path.display()
                ))
            }),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("roots", &self.roots.len())
            .field("has_client_certificate", &self.client.is_some())
            .finish()
    }
}

/// The configuration of rustls for the connections of a manager. It follows the files of its certificates.
pub(crate) struct TlsClients {
    given: Tls,
    /// Held by the thread that reads the files, so that an earlier reading never takes the place of a later one.
    reading: Mutex<()>,
    last: Mutex<LastRead>,
}

/// The last texts that could be used.
struct LastRead {
    /// When a thread last began to read them for a new connection, or has read them after a refusal.
    at: Time,
    /// When other texts took the place of the last ones.
    changed: Time,
    texts: PemTexts,
    config: Arc<ClientConfig>,
}

impl TlsClients {
    /// Reads the certificates.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] with the option `tls`.
    pub(crate) fn new(given: Tls) -> Result<Self> {
        let texts = given.read()?;
        let now = Time::now();
        let last = LastRead {
            at: now,
            changed: now,
            config: texts.config()?,
            texts,
        };
        Ok(Self {
            given,
            reading: Mutex::new(()),
            last: Mutex::new(last),
        })
    }

    /// Returns the configuration for a new connection.
    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        let now = Time::now();
        {
            let mut last = self.last.lock();
            if now.since(last.at) < READ_AGAIN_AFTER {
                return Arc::clone(&last.config);
            }
            // The other threads go on with the last one meanwhile.
            last.at = now;
        }
        self.read_again();
        Arc::clone(&self.last.lock().config)
    }

    /// Returns whether the certificates have changed since `begun`, when a connection began of which one side has refused
    /// the certificate of the other. Reads the files again, but at most once a second, because the refusal may last.
    pub(crate) fn have_changed_since(&self, begun: Time) -> bool {
        let changed = |last: &LastRead| last.changed >= begun;
        {
            let last = self.last.lock();
            if changed(&last) || last.at.elapsed() < AFTER_A_REFUSAL {
                return changed(&last);
            }
        }
        // Threads that are refused meanwhile read the files too: none of them could go on with the last certificates.
        self.read_again();
        let mut last = self.last.lock();
        last.at = Time::now();
        changed(&last)
    }

    fn read_again(&self) {
        let _reading = self.reading.lock();
        let read = self.given.read();
        let renewed = read.and_then(|texts| Ok((texts.config()?, texts)));
        let mut last = self.last.lock();
        match renewed {
            // A configuration keeps sessions to resume, so it is replaced only for other texts.
            Ok((config, texts)) if texts != last.texts => {
                (last.config, last.texts, last.changed) = (config, texts, Time::now());
            }
            Ok(_) => {}
            Err(error) => logging::warning!(
                "the certificates cannot be read again, so the last ones stay in use: {error}"
            ),
        }
    }
}

impl fmt::Debug for TlsClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.given.fmt(f)
    }
}

/// Installs ring as the process's provider of cryptography, unless the program has installed a provider.
pub(crate) fn provide_crypto() {
    if CryptoProvider::get_default().is_none() {
        // This fails only if the program installs its own at the same moment, which serves as well.
        ring::default_provider().install_default().ok();
    }
}

/// Returns the configuration of managers without a [`Tls`]: it trusts the certificates that the system trusts.
pub(crate) fn default_config() -> io::Result<Arc<ClientConfig>> {
    // One for the process: to read the system's certificates takes milliseconds, and it keeps sessions to resume. A
    // `OnceCell` blocks while another thread fills it, and in a forked child that thread may not exist. A
    // child that connects can still block at the mutex of rustls's cache of sessions.
    static CONFIG: OnceBox<Arc<ClientConfig>> = OnceBox::new();
    let config = CONFIG.get_or_try_init(|| {
        let builder = ClientConfig::builder().with_root_certificates(system_roots()?);
        io::Result::Ok(Box::new(builder.with_no_client_auth().into()))
    })?;
    Ok(Arc::clone(config))
}

fn system_roots() -> io::Result<RootCertStore> {
    let mut found = rustls_native_certs::load_native_certs();
    let mut trusted = RootCertStore::empty();
    // A certificate that cannot be read does not make the others untrusted.
    let (readable, _) = trusted.add_parsable_certificates(found.certs);
    if readable > 0 {
        return Ok(trusted);
    }
    Err(match found.errors.pop() {
        Some(error) => io::Error::other(error),
        None => io::Error::other("the system has no certificates"),
    })
}

/// The texts of a [`Tls`].
#[derive(PartialEq)]
struct PemTexts {
    roots: Vec<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

impl PemTexts {
    /// Makes the configuration of rustls.
    fn config(&self) -> Result<Arc<ClientConfig>> {
        let roots = if self.roots.is_empty() {
            system_roots().map_err(|error| wrong(error.to_string()))?
        } else {
            let mut trusted = RootCertStore::empty();
            for certificate in self.roots.iter().map(|pem| certificates(pem, "roots")) {
                for certificate in certificate? {
                    let added = trusted.add(certificate);
                    added.map_err(|error| wrong(format!("a root cannot be used: {error}")))?;
                }
            }
            trusted
        };
        let builder = ClientConfig::builder().with_root_certificates(roots);
        Ok(Arc::new(match &self.client {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates(chain, "client certificate")?;
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|_| wrong("the client key has no private key in PEM".to_owned()))?;
                let config = builder.with_client_auth_cert(chain, key);
                config.map_err(|error| {
                    wrong(format!("the client certificate and its key: {error}"))
                })?
            }
        }))
    }
}

/// Reads the certificates of a PEM text. At least one must be there.
fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| wrong(format!("the {what} cannot be read as PEM")))?;
    if all.is_empty() {
        return Err(wrong(format!("the {what} have no certificate in PEM")));
    }
    Ok(all)
}

fn wrong(reason: String) -> Error {
    Error::config("tls", reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Machine;
    use crate::sys::test_machine::manual::ManualClock;

    /// Returns the path of a file that the tests of TLS have.
    fn given(name: &str) -> PathBuf {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
        tests.join(name)
    }

    #[test]
    fn a_renewed_file_is_used_after_a_minute_or_a_refusal_and_a_broken_one_is_not() {
        provide_crypto();
        let clock = Arc::new(ManualClock::starting_at(Time::from_nanos(7)));
        let _entered = Machine::new(Arc::clone(&clock) as _).enter();
        let name = format!("leasehold-tls-{}.pem", std::process::id());
        let path = std::env::temp_dir().join(name);
        let copy = |name| fs::copy(given(name), &path).expect("a file");
        copy("authority.pem");
        let clients = TlsClients::new(Tls::default().roots_file(&path)).expect("a certificate");
        let first = clients.config();
        let is_same = |other: &Arc<ClientConfig>| Arc::ptr_eq(&clients.config(), other);

        copy("other.pem");
        let moment = Duration::from_nanos(1);
        clock.advance(READ_AGAIN_AFTER.saturating_sub(moment));
        assert!(is_same(&first), "it was read a moment ago");
        clock.advance(moment);
        let second = clients.config();
        assert!(!is_same(&first));

        copy("client.key");
        clock.advance(READ_AGAIN_AFTER);
        assert!(is_same(&second), "the file has no certificate");
        fs::remove_file(&path).expect("it was there");
        clock.advance(READ_AGAIN_AFTER);
        assert!(is_same(&second), "there is no file");
        copy("other.pem");
        clock.advance(READ_AGAIN_AFTER);
        assert!(is_same(&second), "sessions can be resumed");

        // A refused certificate.
        copy("authority.pem");
        let begun = Time::now();
        clock.advance(AFTER_A_REFUSAL.saturating_sub(moment));
        assert!(
            !clients.have_changed_since(begun),
            "it was read a moment ago"
        );
        clock.advance(moment);
        assert!(clients.have_changed_since(begun));
        assert!(!is_same(&second));
        // The connection began before another thread has read the files.
        assert!(clients.have_changed_since(begun));
        clock.advance(moment);
        let third = clients.config();
        let later = Time::now();
        copy("client.key");
        clock.advance(AFTER_A_REFUSAL);
        assert!(!clients.have_changed_since(later), "it has no certificate");
        copy("other.pem");
        assert!(
            !clients.have_changed_since(later),
            "a refusal that lasts reads once a second"
        );
        assert!(is_same(&third));
        fs::remove_file(&path).ok();
    }
}
