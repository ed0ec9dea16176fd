//! A socket to a server, on which every answer has an end in time.
//!
//! The redis crate's own connection has none: its time limit counts from one piece of an answer to the next, so that a
//! server that says a byte now and then keeps a thread for as long as it likes; and at its end, one that listened waits
//! for the answer to an UNSUBSCRIBE. Here the limit is for all of a request and its answer, and an answer has a greatest
//! length, so that no server, nor what was taken for one, makes this process run out of memory. What bytes mean is the
//! redis crate's to say.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use redis::{Cmd, ConnectionAddr, Parser, Value};

/// The longest answer, in bytes. A page of 200 locks is some 50,000. What is read of an answer takes up to some twenty
/// times as much memory, where it is made of the smallest pieces.
const LONGEST: usize = 8 << 20;
/// A limit on the socket that is so much too long is as good.
const AS_GOOD: Duration = Duration::from_millis(1);

pub(super) struct Socket {
    stream: Stream,
    parser: Parser,
    /// How many bytes may still come of the answer under way.
    left: usize,
    /// Room for a request.
    packed: Vec<u8>,
}

/// What went wrong. Nothing more can be asked after it.
#[derive(Debug)]
pub(super) enum Fault {
    Io(io::Error),
    /// What came is no answer, for this reason.
    Malformed(String),
}

enum Stream {
    Plain(Limited),
    #[cfg(feature = "tls")]
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, Limited>>),
}

/// What bytes go through, and for how long.
struct Limited {
    os: Os,
    until: Instant,
    /// The time limit that is set on the socket; none where there is none.
    set: Option<Duration>,
}

enum Os {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects within `limit`, which begins when the name's addresses are known.
    pub(super) fn connect(address: &ConnectionAddr, limit: Duration) -> io::Result<Self> {
        let plain = |os| Stream::Plain(Limited::new(os));
        let stream = match address {
            ConnectionAddr::Tcp(host, port) => plain(dial((&**host, *port), limit)?),
            ConnectionAddr::Unix(path) => plain(Os::Unix(UnixStream::connect(path)?)),
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, port, .. } => {
                let client = tls(host)?;
                let os = Limited::new(dial((&**host, *port), limit)?);
                Stream::Tls(Box::new(rustls::StreamOwned::new(client, os)))
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Self {
            stream,
            parser: Parser::new(),
            left: LONGEST,
            packed: Vec::new(),
        })
    }

    /// Sends a command and reads its answer, both within `limit`.
    pub(super) fn request(&mut self, command: &Cmd, limit: Duration) -> Result<Value, Fault> {
        self.send(command, limit)?;
        self.answer()
    }

    /// Sends a command whose answer comes among the [`next`](Self::next) things that are said.
    pub(super) fn send(&mut self, command: &Cmd, limit: Duration) -> Result<(), Fault> {
        self.stream.limited().begin(limit);
        self.packed.clear();
        command.write_packed_command(&mut self.packed);
        let sent = self.stream.write_all(&self.packed);
        sent.and_then(|()| self.stream.flush()).map_err(Fault::Io)
    }

    /// What the server says next by itself; none where that is not all there within `limit`. What has come of it by
    /// then is kept.
    pub(super) fn next(&mut self, limit: Duration) -> Result<Option<Value>, Fault> {
        self.stream.limited().begin(limit);
        match self.answer() {
            Ok(value) => Ok(Some(value)),
            Err(Fault::Io(error)) if is_timeout(&error) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    fn answer(&mut self) -> Result<Value, Fault> {
        let mut source = Source {
            stream: &mut self.stream,
            left: &mut self.left,
            failed: None,
        };
        match (self.parser.parse_value(&mut source), source.failed) {
            (Ok(value), _) => {
                self.left = LONGEST;
                Ok(value)
            }
            (Err(_), Some(fault)) => Err(fault),
            (Err(error), None) => Err(Fault::Malformed(error.to_string())),
        }
    }
}

/// Where an answer comes from. It keeps what went wrong there, of which the parser tells less.
struct Source<'a> {
    stream: &'a mut Stream,
    left: &'a mut usize,
    failed: Option<Fault>,
}

impl Read for Source<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let fault = match self.stream.read(to) {
            Ok(0) if !to.is_empty() => Fault::Io(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) if count > *self.left => {
                Fault::Malformed("an answer of more than 8 MiB".to_owned())
            }
            Ok(count) => {
                *self.left -= count;
                return Ok(count);
            }
            Err(error) => Fault::Io(error),
        };
        self.failed = Some(fault);
        Err(io::ErrorKind::Other.into())
    }
}

/// Systems differ in what they call it.
fn is_timeout(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
    kinds.contains(&error.kind())
}

impl Stream {
    fn limited(&mut self) -> &mut Limited {
        match self {
            Self::Plain(limited) => limited,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => &mut stream.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(limited) => limited.read(to),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(to),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(limited) => limited.write(from),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(limited) => limited.flush(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl Limited {
    fn new(os: Os) -> Self {
        Self {
            os,
            until: Instant::now(),
            set: None,
        }
    }

    /// All that follows ends within `limit`.
    fn begin(&mut self, limit: Duration) {
        // Settings keep it at an hour at the most.
        self.until = Instant::now() + limit;
    }

    /// Sets what is left of the time on the socket, before it is waited for. Most requests are sent and answered in one
    /// piece each, and have the same limit: what is set is then right to the millisecond, and is not set again.
    fn limit(&mut self) -> io::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let is_right = |set: Duration| set >= left && set <= left + AS_GOOD;
        if !self.set.is_some_and(is_right) {
            self.os.set_limit(left)?;
            self.set = Some(left);
        }
        Ok(())
    }

    /// Does it until it is done or has failed: where a signal is handled meanwhile, it is begun again.
    fn go<T>(&mut self, mut work: impl FnMut(&mut Os) -> io::Result<T>) -> io::Result<T> {
        loop {
            self.limit()?;
            match work(&mut self.os) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

impl Read for Limited {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.go(|os| match os {
            Os::Tcp(stream) => stream.read(to),
            Os::Unix(stream) => stream.read(to),
        })
    }
}

impl Write for Limited {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.go(|os| match os {
            Os::Tcp(stream) => stream.write(from),
            Os::Unix(stream) => stream.write(from),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Os {
    fn set_limit(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))
            }
        }
    }
}

/// Tries the addresses that a name stands for, one after the other. They share the time that is left then, so that a
/// first one that says nothing leaves some for the others.
fn dial(host: impl ToSocketAddrs, limit: Duration) -> io::Result<Os> {
    let addresses: Vec<_> = host.to_socket_addrs()?.collect();
    let until = Instant::now() + limit;
    let mut untried = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        let share = until.saturating_duration_since(Instant::now()) / untried;
        untried -= 1;
        // Not nothing, which is refused.
        match TcpStream::connect_timeout(&address, share.max(AS_GOOD)) {
            Ok(stream) => {
                // Requests are small and wait for their answers: nothing is gained by holding packets back.
                stream.set_nodelay(true)?;
                return Ok(Os::Tcp(stream));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The client's side of TLS, which trusts whom the system trusts.
#[cfg(feature = "tls")]
fn tls(host: &str) -> io::Result<rustls::ClientConnection> {
    let mut trusted = rustls::RootCertStore::empty();
    let mut found = rustls_native_certs::load_native_certs();
    if let Some(error) = found.errors.pop() {
        return Err(io::Error::other(error));
    }
    for certificate in found.certs {
        trusted.add(certificate).map_err(io::Error::other)?;
    }
    let config = rustls::ClientConfig::builder()
        .with_root_certificates(trusted)
        .with_no_client_auth();
    let host =
        rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    rustls::ClientConnection::new(config.into(), host).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    /// A listener that lets nobody in any more: its queue is full. Those in it are kept with it.
    fn silent() -> (TcpListener, SocketAddr, Vec<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let mut queued = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            queued.push(stream);
        }
        (listener, address, queued)
    }

    #[test]
    fn addresses_share_the_time_limit() {
        const LIMIT: Duration = Duration::from_secs(2);
        let (_listener, silent, _queued) = silent();
        let listening = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let open = listening.local_addr().expect("an address");

        let begun = Instant::now();
        let failed = dial(&[silent; 10][..], LIMIT).err().map(|e| e.kind());
        let took = begun.elapsed();
        assert_eq!(failed, Some(io::ErrorKind::TimedOut));
        assert!(took < LIMIT * 5, "not 10 times as long: {took:?}");

        assert!(dial(&[silent, silent, open][..], LIMIT).is_ok());
        assert!(dial(&[][..], LIMIT).is_err());
    }
}
