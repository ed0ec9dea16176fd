//! TLS, by rustls, on bytes in memory.

use std::io::{self, Read, Write};

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, InvalidMessage};

use crate::sys::Arc;

/// The state of a TLS connection.
pub(crate) struct TlsSession {
    client: ClientConnection,
    records: Records,
}

/// The progress in reading TLS records.
#[derive(Default)]
struct Records {
    /// The part of a header that has come. Its last two bytes are the length of the record.
    header: Vec<u8>,
    /// How many bytes are missing of the record after that.
    missing: usize,
}

/// Returns the client's side of a connection to this host.
pub(crate) fn client(host: &str, config: Arc<ClientConfig>) -> io::Result<TlsSession> {
    let host = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let mut client = ClientConnection::new(config, host).map_err(io::Error::other)?;
    // The output is taken at once.
    client.set_buffer_limit(None);
    let records = Records::default();
    Ok(TlsSession { client, records })
}

/// Returns what to do if one side has refused the certificate of the other, or has none that the other wants.
pub(crate) fn mend_of_certificates(error: &io::Error) -> Option<&'static str> {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, HandshakeFailure, UnknownCA, UnsupportedCertificate,
    };
    use CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, Other, UnknownIssuer,
    };
    const NAMELESS: &str = "the server's certificate has no subjectAltName, and its common name does not count; make \
                            one with `subjectAltName=DNS:host` or `IP:address`";
    let error = error.get_ref().and_then(|inner| inner.downcast_ref());
    Some(match error? {
        rustls::Error::InvalidCertificate(why) => match why {
            Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                "the server shows the certificate of an authority (CA:TRUE), as `openssl req -x509` makes it; sign a \
                 certificate for the server with it, by the lines in docs/operating.md"
            }
            NotValidForNameContext { presented, .. } if presented.is_empty() => NAMELESS,
            // Version 1 has no extensions. Without `-extfile`, `openssl x509 -req` makes it.
            Other(other) if other.to_string().contains("UnsupportedCertVersion") => NAMELESS,
            NotValidForName | NotValidForNameContext { .. } => {
                "the server's certificate is for other hosts; connect by one of its names, or add this one to its \
                 subjectAltName"
            }
            Expired | ExpiredContext { .. } => "the server's certificate has expired; renew it",
            UnknownIssuer => {
                "no trusted root has signed the server's certificate; name the file of its authority by \
                 `Tls::roots_file`, or `cacert` in the URL"
            }
            _ => "the server's certificate is not trusted",
        },
        rustls::Error::AlertReceived(alert) => match alert {
            // Up to TLS 1.2, a server reports a missing certificate as a failure of the handshake.
            CertificateRequired | HandshakeFailure => {
                "the server wants a certificate of this client; give it by `Tls::client_files`, or `cert` and `key` in \
                 the URL, or set `tls-auth-clients no` at the server"
            }
            UnknownCA
            | BadCertificate
            | CertificateUnknown
            | UnsupportedCertificate
            | CertificateExpired
            | CertificateRevoked
            | AccessDenied => {
                "the server does not trust the certificate of this client; its `tls-ca-cert-file` must have the \
                 authority that signed it"
            }
            _ => return None,
        },
        _ => return None,
    })
}

/// Returns whether the other side has sent something other than a record of TLS.
pub(crate) fn is_no_record(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(
        error,
        Some(rustls::Error::InvalidMessage(
            InvalidMessage::InvalidContentType
        ))
    )
}

impl TlsSession {
    pub(crate) fn is_shaking_hands(&self) -> bool {
        self.client.is_handshaking()
    }

    /// Adds the unsent encrypted bytes to `output`.
    pub(crate) fn take_output(&mut self, output: &mut Vec<u8>) {
        let client = &mut self.client;
        while client.wants_write() {
            // A write to memory does not fail.
            client.write_tls(output).ok();
        }
    }

    /// Encrypts some bytes, and adds them to `output`.
    pub(crate) fn encrypt(&mut self, bytes: &[u8], output: &mut Vec<u8>) -> io::Result<()> {
        let client = &mut self.client;
        client.writer().write_all(bytes)?;
        while client.wants_write() {
            client.write_tls(output)?;
        }
        Ok(())
    }

    /// Decrypts the next bytes that were read, and adds what they say to `plain`.
    pub(crate) fn decrypt(&mut self, mut read: &[u8], plain: &mut Vec<u8>) -> io::Result<()> {
        let Self { client, records } = self;
        records.note(read);
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

    /// Returns an error if a part of a record has come, or the end of the connection.
    pub(crate) fn check_records(&self) -> io::Result<()> {
        let Self { client, records } = self;
        if !client.wants_read() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !records.are_whole() {
            let words = "a part of a TLS record without a request";
            return Err(io::Error::new(io::ErrorKind::InvalidData, words));
        }
        Ok(())
    }
}

impl Records {
    /// Notes the next bytes that have come.
    fn note(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.missing > 0 {
                let come = self.missing.min(bytes.len());
                self.missing -= come;
                bytes = &bytes[come..];
                continue;
            }
            self.header.push(*first);
            bytes = rest;
            if let [_, _, _, high, low] = self.header[..] {
                self.missing = u16::from_be_bytes([high, low]).into();
                self.header.clear();
            }
        }
    }

    /// Returns whether the last byte that has come is the last one of a record.
    fn are_whole(&self) -> bool {
        self.header.is_empty() && self.missing == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_whole_with_the_last_byte_of_one() {
        // Of 300 bytes, of one, and of none.
        let first = [&[23, 3, 3, 1, 44][..], &[7; 300]].concat();
        let rest = [22, 3, 3, 0, 1, 9, 22, 3, 3, 0, 0];
        let ends = [first.len(), first.len() + 6, first.len() + 11];
        let bytes = [&first[..], &rest].concat();
        for step in [1, 2, 5, 7, 304, 400] {
            let (mut records, mut come) = (Records::default(), 0);
            for piece in bytes.chunks(step) {
                records.note(piece);
                come += piece.len();
                assert_eq!(records.are_whole(), ends.contains(&come), "{come}");
            }
        }
    }
}
